package bundle

import (
	"fmt"
	"io"
)

// Problem is one thing in a bundle that is not as it must be.
type Problem struct {
	// Line is the number of the physical line, 0 for what no line is to blame for.
	Line int64  `json:"line,omitempty"`
	Kind string `json:"kind,omitempty"`
	// Sequence is that of the Event, or of the last one before the line.
	Sequence int64  `json:"sequence,omitempty"`
	Subject  string `json:"subject,omitempty"`
	Problem  string `json:"problem"`
}

func (p Problem) String() string {
	s := p.Problem
	if p.Subject != "" {
		s = p.Subject + ": " + s
	}
	if p.Sequence > 0 {
		s = fmt.Sprintf("#%d %s", p.Sequence, s)
	}
	if p.Kind != "" {
		s = p.Kind + " " + s
	}
	if p.Line == 0 {
		return s
	}
	return fmt.Sprintf("line %d: %s", p.Line, s)
}

// MostProblems bounds what a Report lists; Total counts all.
const MostProblems = 1000

// Report is what a verification looked at and found.
type Report struct {
	Format         string `json:"format"`
	OrganizationID string `json:"organizationId"`
	GroupID        string `json:"groupId"`
	Head           int64  `json:"head"`
	SealedBy       string `json:"sealedBy,omitempty"`
	SealedAt       string `json:"sealedAt,omitempty"`
	// SealKey is the key of the seal: what a reader compares with what it knows of
	// the Organization.
	SealKey       string    `json:"sealKey,omitempty"`
	SealPublicKey string    `json:"sealPublicKey,omitempty"`
	Lines         int64     `json:"lines"`
	Keys          int64     `json:"keys"`
	Commands      int64     `json:"commands"`
	Receipts      int64     `json:"receipts"`
	Events        int64     `json:"events"`
	Documents     int64     `json:"embeddedDocuments"`
	Admissions    int64     `json:"admissionRecords"`
	PolicyEntries int64     `json:"policyLogEntries"`
	Decisions     int64     `json:"decisions"`
	Tokens        int64     `json:"tokens"`
	Runs          int64     `json:"runs"`
	Records       int64     `json:"evidenceRecords"`
	Signatures    int64     `json:"signatures"`
	Total         int       `json:"problems"`
	Problems      []Problem `json:"list"`
	// Warnings are about the records as a whole; they are no problems.
	Warnings []string `json:"warnings,omitempty"`
}

// OK reports that there is no problem.
func (r *Report) OK() bool { return r.Total == 0 }

func (r *Report) add(p Problem) {
	r.Total++
	if len(r.Problems) < MostProblems {
		r.Problems = append(r.Problems, p)
	}
}

// WriteTo prints the problems, one a line, and then what was looked at.
func (r *Report) WriteTo(w io.Writer) (int64, error) {
	var n int64
	say := func(format string, args ...any) error {
		k, err := fmt.Fprintf(w, format+"\n", args...)
		n += int64(k)
		return err
	}
	for _, p := range r.Problems {
		if err := say("%s", p); err != nil {
			return n, err
		}
	}
	if r.Total > len(r.Problems) {
		if err := say("… and %d more", r.Total-len(r.Problems)); err != nil {
			return n, err
		}
	}
	for _, w := range r.Warnings {
		if err := say("warning: %s", w); err != nil {
			return n, err
		}
	}
	verdict := "nothing is wrong"
	if r.Total > 0 {
		verdict = fmt.Sprintf("%d problems", r.Total)
	}
	if r.SealedAt != "" {
		if err := say("sealed at %s by %s with key %s, public key %s", r.SealedAt, r.SealedBy, r.SealKey, r.SealPublicKey); err != nil {
			return n, err
		}
	}
	return n, say("Group %s up to #%d: %d lines, %d keys, %d Commands with %d receipts, %d Events, %d embedded documents, %d Admission Records, %d Policy Log entries, %d decisions about %d tokens and other things, %d evidence records in %d runs, %d signatures: %s",
		r.GroupID, r.Head, r.Lines, r.Keys, r.Commands, r.Receipts, r.Events, r.Documents, r.Admissions, r.PolicyEntries, r.Decisions, r.Tokens, r.Records, r.Runs, r.Signatures, verdict)
}
