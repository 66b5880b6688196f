package manifest

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInvalid is matched by every error of Load, Compile and Extend.
var ErrInvalid = errors.New("manifest: invalid")

// FaultKind is a class of faults that somebody acts on.
type FaultKind uint8

// Kinds of faults.
const (
	FaultOther FaultKind = iota
	// FaultUndeclaredAction is a rule about an action outside the ontology.
	// Fault.Subject is the action.
	FaultUndeclaredAction
	// FaultRedefinition is an extension that would change what exists.
	// Fault.Subject is the name.
	FaultRedefinition
	// FaultUnreachable is a rule that can never decide anything. Fault.Subject is
	// its id.
	FaultUnreachable
)

// Fault is one thing that is wrong, and where.
type Fault struct {
	File   string    `json:"file,omitempty"`
	Line   int       `json:"line"` // 1-based; 0 when there is no source text
	Path   string    `json:"path"` // such as rules[3].condition.action; "" is the whole
	Reason string    `json:"reason"`
	Kind   FaultKind `json:"-"`
	// Subject is the name that the kind is about.
	Subject string `json:"-"`
}

func (f *Fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
	}
	b.WriteString(": ")
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Reason)
	return b.String()
}

// Invalid is a manifest that does not load: every fault found, at most maxFaults,
// in the order of the text.
type Invalid struct{ Faults []Fault }

// maxFaults bounds what a hopeless file can make us say.
const maxFaults = 50

func (e *Invalid) Error() string {
	lines := make([]string, len(e.Faults))
	for i := range e.Faults {
		lines[i] = e.Faults[i].String()
	}
	return strings.Join(lines, "\n")
}

// Is reports ErrInvalid.
func (e *Invalid) Is(target error) bool { return target == ErrInvalid }

// Undeclared reports whether a rule about this action, which the ontology does
// not have, is among the faults.
func (e *Invalid) Undeclared(action string) bool {
	for i := range e.Faults {
		if e.Faults[i].Kind == FaultUndeclaredAction && e.Faults[i].Subject == action {
			return true
		}
	}
	return false
}

// faults collects what is wrong with one file.
type faults struct {
	file  string
	lines map[string]int
	list  []Fault
}

func (f *faults) add(path, format string, args ...any) {
	f.put(Fault{Path: path, Reason: fmt.Sprintf(format, args...)})
}

func (f *faults) at(line int, path, format string, args ...any) {
	f.put(Fault{Line: line, Path: path, Reason: fmt.Sprintf(format, args...)})
}

func (f *faults) put(x Fault) {
	if len(f.list) >= maxFaults {
		return
	}
	x.File = f.file
	if x.Line == 0 {
		x.Line = f.lineOf(x.Path)
	}
	f.list = append(f.list, x)
}

// lineOf is the line of a path, or of the nearest parent that has one.
func (f *faults) lineOf(path string) int {
	for {
		if line, ok := f.lines[path]; ok {
			return line
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return f.lines[""]
		}
		path = path[:cut]
	}
}

// deepest extends a path by the steps that the source text has.
func (f *faults) deepest(path string, steps ...string) string {
	for _, s := range steps {
		if _, ok := f.lines[path+s]; !ok {
			break
		}
		path += s
	}
	return path
}

func (f *faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	return &Invalid{Faults: f.list}
}
