package matrix

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Count is how many rows of a table have a case that passed.
type Count struct {
	Passed int `json:"passed"`
	Total  int `json:"total"`
	// Unreachable rows are part of the total and not of what passed.
	Unreachable int `json:"unreachable,omitempty"`
}

// Row is a row that cannot be reached, and why.
type Row struct {
	Row    string `json:"row"`
	Reason string `json:"reason"`
}

// Report is what a run found.
type Report struct {
	Commands    Count `json:"commands"`
	Events      Count `json:"events"`
	Transitions Count `json:"transitions"`
	Negatives   Count `json:"negatives"`
	Precedence  Count `json:"precedence"`
	// Pairs are the states and Commands without a row in the tables.
	Pairs Count `json:"pairs"`
	// Failed are cases whose outcome is not the one of the table.
	Failed []string `json:"failed"`
	// Missing are rows without a case.
	Missing []string `json:"missing"`
	// Unreachable are rows that no client can bring about.
	Unreachable []Row `json:"unreachable"`
	// Kinds are the counts per Command kind, in the order of the catalogue.
	Kinds []KindCount `json:"kinds"`
}

// KindCount is what a run found for one Command kind.
type KindCount struct {
	Kind      string `json:"kind"`
	Positives Count  `json:"positives"`
	Negatives Count  `json:"negatives"`
	// Sets are the letters of the common sets that the negatives contain.
	Sets string `json:"sets"`
}

// OK reports that every row that can be reached has a case and every case passed.
func (r *Report) OK() bool { return len(r.Failed) == 0 && len(r.Missing) == 0 }

// counts are the tables in the order in which they are printed.
func (r *Report) counts() []struct {
	name string
	*Count
} {
	return []struct {
		name string
		*Count
	}{
		{"commands", &r.Commands},
		{"events", &r.Events},
		{"transitions", &r.Transitions},
		{"negatives", &r.Negatives},
		{"precedence", &r.Precedence},
		{"pairs", &r.Pairs},
	}
}

// Line is the counts in one line.
func (r *Report) Line() string {
	var b strings.Builder
	for _, c := range r.counts() {
		fmt.Fprintf(&b, "%s %d/%d ", c.name, c.Passed, c.Total)
	}
	return strings.TrimSpace(b.String())
}

// Results is the report as a file: indented JSON, the same bytes for the same
// findings.
func (r *Report) Results() ([]byte, error) {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("matrix: encode the results: %w", err)
	}
	return append(b, '\n'), nil
}

// WriteTo prints the counts, then one line per failure, per row without a case and
// per row out of reach.
func (r *Report) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Line())
	fmt.Fprintf(&b, "failed %d missing %d unreachable %d\n", len(r.Failed), len(r.Missing), len(r.Unreachable))
	for _, f := range r.Failed {
		fmt.Fprintf(&b, "failed %s\n", f)
	}
	for _, m := range r.Missing {
		fmt.Fprintf(&b, "missing %s\n", m)
	}
	for _, u := range r.Unreachable {
		fmt.Fprintf(&b, "unreachable %s\n  %s\n", u.Row, u.Reason)
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// tally counts the rows of one table and lists what is not there. Whatever passed
// has been reached, so the list of the unreachable cannot hide it.
func (r *Report) tally(c *Count, table string, rows []string, passed map[string]bool, failed map[string]bool) {
	for _, row := range rows {
		c.Total++
		reason, excused := unreachable[table+" "+row]
		switch {
		case passed[row] && excused:
			r.Failed = append(r.Failed, table+" "+row+": was reached and is listed as unreachable")
		case passed[row] && !failed[row]:
			c.Passed++
		case failed[row]:
		case excused:
			c.Unreachable++
			r.Unreachable = append(r.Unreachable, Row{table + " " + row, reason})
		default:
			r.Missing = append(r.Missing, table+" "+row)
		}
	}
	slices.Sort(r.Missing)
}
