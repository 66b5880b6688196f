// Package casefile runs case files against the World Manifest engine: lists of
// manifests, inputs and what is expected of them, in neutral names.
//
// A case file writes records as an Agent would send them, so the hazard is to
// believe them: they are stored as records of their own first, and the engine
// computes trust and taint from the channel map as it does for any stored record.
// What a case says that this package does not understand is told, because a case
// that passed by being ignored proves nothing.
package casefile

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Case is one case. Raw members differ between the groups.
type Case struct {
	ID       string         `json:"id"`
	Name     string         `json:"name"`
	Manifest *string        `json:"manifest"`
	Context  strictjson.Raw `json:"context"`
	Action   strictjson.Raw `json:"action"`
	Expected strictjson.Raw `json:"expected"`
	Setup    strictjson.Raw `json:"setup"`
}

// Outcome is what came of a case.
type Outcome struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"`
	Passed   bool     `json:"passed"`
	Expected string   `json:"expected"`
	Got      string   `json:"got"`
	Reason   string   `json:"reason,omitempty"`
	Notes    []string `json:"notes,omitempty"` // what was not understood
}

// Report is what came of a file.
type Report struct {
	Passed int       `json:"passed"`
	Total  int       `json:"total"`
	Misses []Outcome `json:"misses"`
	// Notes are of cases that passed.
	Notes []string `json:"notes,omitempty"`
}

// OK reports that every case passed and that there was one.
func (r *Report) OK() bool { return r.Total > 0 && r.Passed == r.Total }

// Files reads a file by its path relative to the case file.
type Files func(name string) ([]byte, error)

// Run runs a case file: a JSON array of cases.
func Run(source []byte, files Files) (*Report, error) {
	var cases []Case
	if err := strictjson.Raw(source).Decode(&cases); err != nil {
		return nil, fmt.Errorf("case file: %w", err)
	}
	report := &Report{Total: len(cases), Misses: []Outcome{}}
	for i := range cases {
		out := run(&cases[i], files)
		switch {
		case !out.Passed:
			report.Misses = append(report.Misses, out)
		default:
			report.Passed++
			for _, n := range out.Notes {
				report.Notes = append(report.Notes, out.ID+": "+n)
			}
		}
	}
	return report, nil
}

// play is one case being played.
type play struct {
	c       *Case
	m       *manifest.Manifest
	loadErr error
	notes   []string
}

func (p *play) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

func run(c *Case, files Files) Outcome {
	p := &play{c: c}
	out := Outcome{ID: c.ID, Name: c.Name}
	err := p.load(files)
	if err == nil {
		err = p.judge(&out)
	}
	if err != nil {
		out.Passed, out.Got = false, "error: "+err.Error()
	}
	out.Notes = p.notes
	return out
}

// load reads the manifest and applies the setup's extensions.
func (p *play) load(files Files) error {
	if p.c.Manifest == nil {
		return nil
	}
	source, err := files(path.Clean(*p.c.Manifest))
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	p.m, _, err = manifest.Parse(*p.c.Manifest, source)
	if errors.Is(err, manifest.ErrInvalid) {
		p.loadErr = err
		return nil
	}
	return err
}

// object gives the members of a raw object to their readers and notes the others.
func (p *play) object(what string, raw strictjson.Raw, known map[string]func(v strictjson.Value) error) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	v, err := raw.Value()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return p.members(what, v, known)
}

func (p *play) members(what string, v strictjson.Value, known map[string]func(v strictjson.Value) error) error {
	if v.Kind() != strictjson.Object {
		return fmt.Errorf("%s: is not an object", what)
	}
	for name, value := range v.Members() {
		read, ok := known[name]
		if !ok {
			p.note("%s.%s is not understood", what, name)
			continue
		}
		if read == nil || value.IsNull() {
			continue
		}
		if err := read(value); err != nil {
			return fmt.Errorf("%s.%s: %w", what, name, err)
		}
	}
	return nil
}

func into(dst any) func(strictjson.Value) error {
	return func(v strictjson.Value) error { return strictjson.Decode(v, dst) }
}

// start is the time at which a case begins; cases know spans only.
var start = time.Unix(0, 0).UTC()

// aliases are names that case files use for our rule names.
var aliases = map[string]string{
	"OneShotApproval": manifest.OneShotApproval, "OneShot": manifest.OneShotApproval, "ApprovedOnce": manifest.OneShotApproval,
	"Approved": manifest.OneShotApproval, "Approval": manifest.OneShotApproval,
	"Shape": manifest.ShapeInvalid, "Malformed": manifest.ShapeInvalid, "InvalidShape": manifest.ShapeInvalid,
	"UnknownMode": manifest.ShapeInvalid, "InvalidMode": manifest.ShapeInvalid,
}

// ruleMatches compares an expected rule with a decision: by its rule name, or by
// the id of the manifest's rule behind it.
func ruleMatches(want, rule, ruleID string) bool {
	if alias, ok := aliases[want]; ok && alias == rule {
		return true
	}
	return want == rule || want == ruleID
}

func said(verdict, rule string) string { return strings.TrimSpace(verdict + " " + rule) }
