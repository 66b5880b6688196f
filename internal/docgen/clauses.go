package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
)

//go:embed clauses.yaml
var clausesFile []byte

// section is a section of the protocol text with its obligations.
type section struct {
	Section, Title string
	// Musts is how often the section says MUST, SHALL or REQUIRED.
	Musts   int
	Clauses []clause
}

// clause is one obligation, or several that belong together.
type clause struct {
	// N is how many of the section's words it covers, 1 when not given.
	N            int
	Says, Reason string
	Proof        []string
	// Also says what the proofs do not.
	Also string
}

// readClauses returns the sections in the order of the text.
func readClauses() ([]section, error) {
	var all []section
	if err := yaml.UnmarshalWithOptions(clausesFile, &all, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("clauses.yaml: %w", err)
	}
	for i := range all {
		for j := range all[i].Clauses {
			if c := &all[i].Clauses[j]; c.N == 0 {
				c.N = 1
			}
		}
	}
	return all, nil
}

// clauses is docs/clauses.md. Ids are ours: the section and the place in it.
func clauses() []byte {
	all, err := readClauses()
	if err != nil {
		fail(err)
	}
	words, proven, reasoned := 0, 0, 0
	for _, s := range all {
		for _, c := range s.Clauses {
			words += c.N
			if len(c.Proof) > 0 {
				proven += c.N
			} else {
				reasoned += c.N
			}
		}
	}
	var b bytes.Buffer
	b.WriteString(head + "# Clauses\n\n")
	fmt.Fprintf(&b, "What MissionWeaveProtocol 0.1 obliges to (MUST, SHALL, REQUIRED), in our words, and what shows that this server keeps it. The text has %d such words; %d are covered by named tests, %d by a reason why there is none. `matrix` is a row of `mw conformance matrix`, `bundle` one of `mw conformance`, everything else a Go test. The text itself prevails.\n", words, proven, reasoned)
	for _, s := range all {
		fmt.Fprintf(&b, "\n## %s %s\n\n| Id | Words | Obligation | Shown by |\n| --- | --- | --- | --- |\n", s.Section, s.Title)
		for i, c := range s.Clauses {
			shown := "Not tested: " + c.Reason
			if len(c.Proof) > 0 {
				quoted := make([]string, len(c.Proof))
				for j, p := range c.Proof {
					quoted[j] = "`" + p + "`"
				}
				shown = strings.Join(quoted, ", ")
				if c.Also != "" {
					shown += ". " + c.Also
				}
			}
			fmt.Fprintf(&b, "| %s-%d | %d | %s | %s |\n", s.Section, i+1, c.N, c.Says, shown)
		}
	}
	return b.Bytes()
}
