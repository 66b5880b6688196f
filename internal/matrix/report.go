package matrix

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Count is how many rows of a table have a case that passed.
type Count struct {
	Passed int `json:"passed"`
	Total  int `json:"total"`
}

// Report is what a run found.
type Report struct {
	Commands    Count `json:"commands"`
	Events      Count `json:"events"`
	Transitions Count `json:"transitions"`
	Negatives   Count `json:"negatives"`
	Precedence  Count `json:"precedence"`
	// Failed are cases whose outcome is not the one of the table.
	Failed []string `json:"failed"`
	// Missing are rows without a case.
	Missing []string `json:"missing"`
}

// OK reports that every row has a case and every case passed.
func (r *Report) OK() bool { return len(r.Failed) == 0 && len(r.Missing) == 0 }

// WriteTo prints the counts, then one line per failure and per row without a case.
func (r *Report) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "commands %d/%d events %d/%d transitions %d/%d negatives %d/%d precedence %d/%d\n",
		r.Commands.Passed, r.Commands.Total, r.Events.Passed, r.Events.Total, r.Transitions.Passed, r.Transitions.Total,
		r.Negatives.Passed, r.Negatives.Total, r.Precedence.Passed, r.Precedence.Total)
	for _, f := range r.Failed {
		fmt.Fprintf(&b, "failed %s\n", f)
	}
	for _, m := range r.Missing {
		fmt.Fprintf(&b, "missing %s\n", m)
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// tally counts the rows of one table and lists what is not there.
func (r *Report) tally(c *Count, table string, rows []string, passed map[string]bool, failed map[string]bool) {
	c.Total = len(rows)
	for _, row := range rows {
		switch {
		case passed[row] && !failed[row]:
			c.Passed++
		case !failed[row]:
			r.Missing = append(r.Missing, table+" "+row)
		}
	}
	slices.Sort(r.Missing)
}
