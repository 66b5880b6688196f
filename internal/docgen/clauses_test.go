package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestEveryClauseIsCountedAndShown(t *testing.T) {
	all, err := readClauses()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		sum := 0
		for i, c := range s.Clauses {
			sum += c.N
			if c.Says == "" || (len(c.Proof) == 0) == (c.Reason == "") {
				t.Errorf("%s-%d: needs words, and either proofs or a reason", s.Section, i+1)
			}
		}
		if sum != s.Musts {
			t.Errorf("section %s: %d of %d words are covered", s.Section, sum, s.Musts)
		}
	}
}

// TestProofsExist looks every Go test up in its folder. Rows of the matrix are
// looked up by internal/matrix.
func TestProofsExist(t *testing.T) {
	all, err := readClauses()
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{}
	for _, s := range all {
		for _, c := range s.Clauses {
			for _, proof := range c.Proof {
				folder, name, ok := strings.Cut(proof, " ")
				switch {
				case folder == "matrix":
					continue
				case folder == "bundle":
					if name != "structural" && name != "cryptography" && name != "admission" {
						t.Errorf("no bundle %q", name)
					}
					continue
				case !ok:
					t.Errorf("%q is no proof", proof)
					continue
				}
				if sources[folder] == "" {
					files, _ := filepath.Glob(filepath.Join("..", "..", folder, "*_test.go"))
					for _, f := range files {
						b, err := os.ReadFile(f)
						if err != nil {
							t.Fatal(err)
						}
						sources[folder] += string(b)
					}
				}
				if !regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name) + `\(`).MatchString(sources[folder]) {
					t.Errorf("%s: there is no %s", folder, name)
				}
			}
		}
	}
}

// TestClausesCoverTheText counts the words of the protocol text, where there is a
// copy of it.
func TestClausesCoverTheText(t *testing.T) {
	path := os.Getenv("MW_PROTOCOL_TEXT")
	if path == "" {
		t.Skip("MW_PROTOCOL_TEXT names no copy of the protocol's PROTOCOL.md")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	heading, word := regexp.MustCompile(`^###? (\d+(?:\.\d+)?)\.? `), regexp.MustCompile(`MUST|SHALL|REQUIRED`)
	counted, now := map[string]int{}, "0"
	for line := range strings.Lines(string(text)) {
		if m := heading.FindStringSubmatch(line); m != nil {
			now = m[1]
		}
		counted[now] += len(word.FindAllString(line, -1))
	}
	all, err := readClauses()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if counted[s.Section] != s.Musts {
			t.Errorf("section %s says it %d times, clauses.yaml %d", s.Section, counted[s.Section], s.Musts)
		}
		delete(counted, s.Section)
	}
	for s, n := range counted {
		if n > 0 {
			t.Errorf("section %s has %d clauses that clauses.yaml does not", s, n)
		}
	}
}
