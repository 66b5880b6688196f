// Command testreport reads "go test -json" from standard input, prints what
// plain "go test" would print, and ends with a line "N passed, N failed, N
// skipped".
//
// The hazard it guards against is a green run that tested nothing: a wrong
// package pattern, a build tag or a skip can leave every package "ok". So it
// exits 1 when a test failed, when a package did not build, and when not one
// test passed. Subtests are not counted, their parents are.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// event is one line of test2json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build events
	Test        string
	Output      string
	FailedBuild string
}

type counts struct{ passed, failed, skipped, broken int }

func (c counts) ok() bool { return c.failed == 0 && c.broken == 0 && c.passed > 0 }

func main() {
	c, err := report(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	if !c.ok() {
		os.Exit(1)
	}
}

// report copies what matters from in to out and counts. The output of a test is
// kept back until it is known to have failed.
func report(in io.Reader, out io.Writer) (counts, error) {
	var c counts
	held := map[string][]string{} // package and test -> its output
	skips := map[string]int{}     // reason -> tests
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 1<<20), 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			// The go command itself speaks plainly when it cannot begin.
			fmt.Fprintln(out, lines.Text())
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "output":
			switch {
			case e.Test != "":
				held[key] = append(held[key], e.Output)
			case !noise(e.Output):
				fmt.Fprint(out, e.Output)
			}
		case "pass", "fail", "skip":
			if e.Test == "" {
				if e.Action == "fail" {
					c.broken++
				}
				continue
			}
			if e.Action == "fail" {
				fmt.Fprint(out, strings.Join(held[key], ""))
			}
			if e.Action == "skip" {
				skips[reason(held[key])]++
			}
			delete(held, key)
			if strings.Contains(e.Test, "/") {
				continue
			}
			switch e.Action {
			case "pass":
				c.passed++
			case "fail":
				c.failed++
			default:
				c.skipped++
			}
		}
	}
	if err := lines.Err(); err != nil {
		return c, err
	}
	// What a test said before its process died is all there is to see.
	for _, key := range sortedKeys(held) {
		fmt.Fprintf(out, "--- UNFINISHED: %s\n%s", key, strings.Join(held[key], ""))
	}
	for _, why := range sortedKeys(skips) {
		fmt.Fprintf(out, "skipped %d: %s\n", skips[why], why)
	}
	if c.passed == 0 {
		fmt.Fprintln(out, "no test was executed")
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", c.passed, max(c.failed, min(1, c.broken)), c.skipped)
	return c, nil
}

// noise is what go test prints for a package only with -v or -json.
func noise(line string) bool {
	return line == "PASS\n" || line == "FAIL\n" || strings.HasPrefix(line, "=== ") || strings.HasSuffix(line, "[no test files]\n")
}

// reason is what a skipped test said last.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "--- ") && !strings.HasPrefix(line, "=== ") {
			if _, text, ok := strings.Cut(line, ": "); ok {
				return text
			}
			return line
		}
	}
	return "no reason given"
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
