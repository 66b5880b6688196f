// Package evidencesuite runs a folder of evidence cases against
// internal/evidence: cases.json (rules), comparability.json, envelope.json,
// canon.json (canonical bytes) and signed/ (signatures and chains).
//
// The cases are files that others write, so the hazard is a run that passes
// because it did not look: a file that is missing, an expectation that is not
// understood and a case that names a vector that is not there are misses.
package evidencesuite

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Miss is a case that did not come out as expected.
type Miss struct {
	Part string `json:"part"`
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Part counts one kind of case.
type Part struct {
	Name   string `json:"name"`
	Passed int    `json:"passed"`
	Total  int    `json:"total"`
}

// Report is the outcome of a run.
type Report struct {
	Parts  []Part   `json:"parts"`
	Misses []Miss   `json:"misses"`
	Notes  []string `json:"notes"` // things that a case says and that nothing here decides
}

// OK tells whether every case passed and there were cases.
func (r *Report) OK() bool { return len(r.Misses) == 0 }

// WriteTo prints the counts in one line, then one line per miss and per note.
func (r *Report) WriteTo(w io.Writer) (int64, error) {
	line := ""
	for i, p := range r.Parts {
		if i > 0 {
			line += " "
		}
		line += fmt.Sprintf("%s %d/%d", p.Name, p.Passed, p.Total)
	}
	line += "\n"
	for _, m := range r.Misses {
		line += fmt.Sprintf("miss %s %s: %s\n", m.Part, m.Name, m.Why)
	}
	for _, n := range r.Notes {
		line += "note " + n + "\n"
	}
	n, err := io.WriteString(w, line)
	return int64(n), err
}

type run struct {
	dir    string
	report *Report
	part   *Part
}

// Run runs the folder. The error says that dir is no folder; what is wrong in it
// is a miss.
func Run(dir string) (*Report, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", dir)
	}
	r := &run{dir: dir, report: &Report{Misses: []Miss{}, Notes: []string{}}}
	for _, part := range []struct {
		name string
		do   func() error
	}{
		{"rules", r.rules},
		{"comparability", r.comparability},
		{"envelope", r.envelope},
		{"canonical", r.canonical},
		{"signatures", r.signatures},
	} {
		r.report.Parts = append(r.report.Parts, Part{Name: part.name})
		r.part = &r.report.Parts[len(r.report.Parts)-1]
		if err := part.do(); err != nil {
			r.part.Total++
			r.report.Misses = append(r.report.Misses, Miss{part.name, "(all)", err.Error()})
		}
	}
	return r.report, nil
}

// result counts a case; why is empty for a pass.
func (r *run) result(name, why string) {
	r.part.Total++
	if why == "" {
		r.part.Passed++
		return
	}
	r.report.Misses = append(r.report.Misses, Miss{r.part.Name, name, why})
}

func (r *run) note(format string, args ...any) {
	r.report.Notes = append(r.report.Notes, fmt.Sprintf(format, args...))
}

// maxFile bounds what is read into memory at once.
const maxFile = 64 << 20

func (r *run) read(name string) ([]byte, error) {
	path := filepath.Join(r.dir, filepath.FromSlash(name))
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, maxFile)
	}
	return os.ReadFile(path)
}
