package verify

import (
	"fmt"
	"io"
)

// Difference is one thing that is not as the log says.
type Difference struct {
	// Group is empty for what belongs to no Group; Sequence is 0 when the
	// difference is not about one Event.
	Group    string `json:"group,omitempty"`
	Sequence int64  `json:"sequence,omitempty"`
	// Subject names the row: a table and its key.
	Subject string `json:"subject"`
	Problem string `json:"problem"`
}

func (d Difference) String() string {
	s := d.Subject + ": " + d.Problem
	if d.Group == "" {
		return s
	}
	if d.Sequence == 0 {
		return fmt.Sprintf("%s: %s", d.Group, s)
	}
	return fmt.Sprintf("%s #%d: %s", d.Group, d.Sequence, s)
}

// MostDifferences bounds what a Report lists; Total counts all.
const MostDifferences = 1000

// Report is what a verification looked at and found.
type Report struct {
	OrganizationID string `json:"organizationId"`
	Groups         int64  `json:"groups"`
	Events         int64  `json:"events"`
	OrgEvents      int64  `json:"organizationEvents"`
	Receipts       int64  `json:"receipts"`
	Documents      int64  `json:"embeddedDocuments"`
	Admissions     int64  `json:"admissionRecords"`
	// Trimmed counts the Events of archived Groups that are not kept any more; for
	// them stand signed snapshots.
	Trimmed     int64        `json:"trimmedEvents,omitempty"`
	Total       int          `json:"differences"`
	Differences []Difference `json:"list"`
}

// OK reports that nothing differs.
func (r *Report) OK() bool { return r.Total == 0 }

func (r *Report) add(d Difference) {
	r.Total++
	if len(r.Differences) < MostDifferences {
		r.Differences = append(r.Differences, d)
	}
}

// WriteTo prints the differences, one a line, and a last line that counts.
func (r *Report) WriteTo(w io.Writer) (int64, error) {
	var n int64
	line := func(format string, args ...any) error {
		k, err := fmt.Fprintf(w, format+"\n", args...)
		n += int64(k)
		return err
	}
	for _, d := range r.Differences {
		if err := line("%s", d); err != nil {
			return n, err
		}
	}
	if r.Total > len(r.Differences) {
		if err := line("… and %d more", r.Total-len(r.Differences)); err != nil {
			return n, err
		}
	}
	verdict := "nothing differs"
	if r.Total > 0 {
		verdict = fmt.Sprintf("%d differences", r.Total)
	}
	if r.Trimmed > 0 {
		if err := line("%d Events of archived Groups are not kept any more; signed snapshots stand for them", r.Trimmed); err != nil {
			return n, err
		}
	}
	return n, line("%d Groups, %d Events, %d Organization Events, %d receipts, %d embedded documents, %d Admission Records: %s",
		r.Groups, r.Events, r.OrgEvents, r.Receipts, r.Documents, r.Admissions, verdict)
}
