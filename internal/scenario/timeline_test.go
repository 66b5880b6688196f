package scenario

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/missionweave/server/client"
)

// shown prints an Event of both Missions, of a child and a check, as wide as asked.
func shown(columns int) []string {
	var out strings.Builder
	line := newTimeline(&out, columns, false)
	event := client.Event{Sequence: 7, Kind: "ext.missionweave.authority.budget_exhausted", Actor: client.Actor{Type: client.Agent, ID: "coder"}, WorkItemID: "index"}
	line.event(&mission{name: billing}, event)
	line.event(&mission{name: search, column: 1}, event)
	line.event(&mission{name: "security-1", column: 3}, event)
	line.check(Check{Name: "it holds", OK: true, Proof: strings.Repeat("because ", 40)})
	line.note("%s", strings.Repeat("noted ", 40))
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func TestMissionsStandSideBySideOnATerminalAndNothingIsWider(t *testing.T) {
	for _, columns := range []int{80, 100, 161} {
		lines := shown(columns)
		for _, l := range lines {
			if n := utf8.RuneCountInString(l); n > columns {
				t.Errorf("%d characters on %d columns: %s", n, columns, l)
			}
		}
		bar := func(i int) int { return slices.Index([]rune(lines[i]), '│') }
		if !strings.Contains(lines[0], billing) || !strings.Contains(lines[0], search) {
			t.Errorf("no heads: %s", lines[0])
		}
		if left := bar(2); left < columns/3 || left != bar(3) || left != bar(4) {
			t.Errorf("the columns do not line up:\n%s", strings.Join(lines, "\n"))
		}
		if strings.TrimSpace(string([]rune(lines[2])[bar(2)+1:])) != "" || strings.TrimSpace(string([]rune(lines[3])[9:bar(3)])) != "" {
			t.Errorf("an Event stands in the wrong column:\n%s", strings.Join(lines, "\n"))
		}
		if !strings.Contains(lines[4], "│ └ security-1 7") {
			t.Errorf("a child is not named in its parent's column: %s", lines[4])
		}
	}
}

func TestAPipeGetsPlainLinesWithTheWholeProof(t *testing.T) {
	lines := shown(0)
	if len(lines) != 5 || strings.ContainsAny(strings.Join(lines, ""), "│┼…\x1b") {
		t.Errorf("%q", lines)
	}
	if !strings.Contains(lines[3], strings.Repeat("because ", 39)) {
		t.Errorf("the proof is cut: %s", lines[3])
	}
}

func TestTheTableHasEveryCheckWithItsWholeProof(t *testing.T) {
	var out strings.Builder
	proof := strings.Repeat("because ", 60) + "so"
	newTimeline(&out, 80, false).table(&Report{
		Checks: []Check{{Scene: "One", Name: "it holds", OK: true, Proof: proof}, {Scene: "Two", Name: "it fails"}}, Failed: 1, Passed: 1,
		Promises: []Kept{{Promise: "Something", Checks: 2, Held: 1}},
	})
	for _, want := range []string{"One\n", "ok  it holds", "NOT it fails", "NOT Something", "1 of  2 checks", "2 checks, 1 failed", "NOT Two: it fails"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if got := strings.Count(out.String(), "because"); got != 60 {
		t.Errorf("%d of 60 words of a proof", got)
	}
}
