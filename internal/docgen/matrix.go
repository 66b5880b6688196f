package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The tables of docs/conformance.md come from the results of the behavioural
// matrix, which are committed: a document must not depend on a server that runs
// somewhere. That the live matrix still has these results is a test of
// internal/matrix.

const (
	resultsFile     = "internal/matrix/results.json"
	conformanceFile = "docs/conformance.md"
	matrixBegin     = "<!-- Made by internal/docgen from internal/matrix/results.json; do not edit up to the end mark. -->\n"
	matrixEnd       = "<!-- End of what docgen made. -->\n"
)

// results is the part of the matrix's report that the document tells.
type results struct {
	Commands, Events, Transitions, Negatives, Precedence, Pairs tally
	Failed, Missing                                             []string
	Unreachable                                                 []struct{ Row, Reason string }
	Kinds                                                       []struct {
		Kind, Sets           string
		Positives, Negatives tally
	}
}

type tally struct{ Passed, Total, Unreachable int }

func (t tally) String() string {
	if t.Unreachable == 0 {
		return fmt.Sprintf("%d/%d", t.Passed, t.Total)
	}
	return fmt.Sprintf("%d/%d, %d out of reach", t.Passed, t.Total, t.Unreachable)
}

func (t tally) complete() bool { return t.Passed+t.Unreachable == t.Total }

// conformance is docs/conformance.md below root with its tables made anew.
func conformance(root string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(root, resultsFile)) //nolint:gosec // a path of this repository
	if err != nil {
		return nil, err
	}
	var r results
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", resultsFile, err)
	}
	page, err := os.ReadFile(filepath.Join(root, conformanceFile)) //nolint:gosec // a path of this repository
	if err != nil {
		return nil, err
	}
	before, rest, ok := bytes.Cut(page, []byte(matrixBegin))
	_, after, ended := bytes.Cut(rest, []byte(matrixEnd))
	if !ok || !ended {
		return nil, errors.New(conformanceFile + " has no marks around the tables of the matrix")
	}
	return bytes.Join([][]byte{before, []byte(matrixBegin), r.tables(), []byte(matrixEnd), after}, nil), nil
}

func (r *results) tables() []byte {
	var b bytes.Buffer
	complete := len(r.Failed) == 0 && len(r.Missing) == 0
	for _, t := range []tally{r.Commands, r.Events, r.Transitions, r.Negatives, r.Precedence, r.Pairs} {
		complete = complete && t.complete()
	}
	if complete {
		fmt.Fprintf(&b, "\nEvery row that a client can bring about is proven. %d rows are out of reach of any client; each is listed below with its reason and is not counted as proven.\n", len(r.Unreachable))
	} else {
		fmt.Fprintf(&b, "\nNot complete: %d cases fail and %d rows have no case. No full behavioural conformance is claimed.\n", len(r.Failed), len(r.Missing))
	}
	b.WriteString("\n| Table | What one row proves | Result |\n| --- | --- | --- |\n")
	for _, row := range []struct {
		name, proves string
		t            tally
	}{
		{"Commands", "all positive cases of a Command kind are accepted, folded and served as folded", r.Commands},
		{"Events", "the kind was emitted, has its schema and payload profile, verifies, and folds", r.Events},
		{"Transitions", "a row of section 4 was taken from one state", r.Transitions},
		{"Negatives", "a refusal has its code and reason, adds nothing to the Group, and leaves no receipt under its Action ID", r.Negatives},
		{"Precedence", "of two faults the one that goes first answers", r.Precedence},
		{"Pairs", "a Command in a state without a row is refused", r.Pairs},
	} {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", row.name, row.proves, row.t)
	}
	b.WriteString("\n### By Command\n\nSets are the letters of the Command profile's section 10.1; the negatives contain theirs, the row's own and those of the WebSocket door.\n\n| Command | Sets | Positive | Negative |\n| --- | --- | --- | --- |\n")
	for _, k := range r.Kinds {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Kind, k.Sets, k.Positives, k.Negatives)
	}
	b.WriteString("\n### Out of reach\n\n| Row | Why |\n| --- | --- |\n")
	for _, u := range r.Unreachable {
		fmt.Fprintf(&b, "| %s | %s |\n", strings.ReplaceAll(u.Row, "|", "\\|"), strings.ReplaceAll(u.Reason, "|", "\\|"))
	}
	for _, list := range []struct {
		title string
		rows  []string
	}{{"Without a case", r.Missing}, {"Failing", r.Failed}} {
		if len(list.rows) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n", list.title)
		for _, row := range list.rows {
			fmt.Fprintf(&b, "* %s\n", row)
		}
	}
	b.WriteString("\n")
	return b.Bytes()
}
