package scenario

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestAPromiseWhoseCheckDidNotRunIsBroken(t *testing.T) {
	st := &stage{line: newTimeline(new(strings.Builder), 0, false)}
	for _, p := range promises {
		for _, name := range p.Checks {
			if name != "the audit bundle verifies offline" {
				st.checks.add(Check{Name: name, OK: true})
			}
		}
	}
	st.keep()
	var missed []string
	for _, k := range st.checks.all {
		if !k.OK {
			missed = append(missed, k.Name)
		}
	}
	if !slices.Equal(missed, []string{"the audit bundle verifies offline"}) {
		t.Errorf("missed: %q", missed)
	}
}

func TestTheDocumentationListsEveryPromiseWithItsChecks(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "scenario.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string][]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| ([^|]+) \\| (`.+`) \\|$").FindAllStringSubmatch(string(doc), -1) {
		for _, check := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[2], -1) {
			listed[row[1]] = append(listed[row[1]], check[1])
		}
	}
	for _, p := range promises {
		if !slices.Equal(listed[p.Name], p.Checks) {
			t.Errorf("docs/scenario.md lists for %q\n%q, the code\n%q", p.Name, listed[p.Name], p.Checks)
		}
		delete(listed, p.Name)
	}
	for name := range listed {
		t.Errorf("docs/scenario.md lists %q, which nothing promises", name)
	}
}
