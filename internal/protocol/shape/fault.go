package shape

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Keywords of faults, named as JSON Schema names the rule that failed.
const (
	KeywordType       = "type"
	KeywordConst      = "const"
	KeywordEnum       = "enum"
	KeywordMinLength  = "minLength"
	KeywordMaxLength  = "maxLength"
	KeywordPattern    = "pattern"
	KeywordFormat     = "format"
	KeywordMinimum    = "minimum"
	KeywordMaximum    = "maximum"
	KeywordMinItems   = "minItems"
	KeywordMaxItems   = "maxItems"
	KeywordUnique     = "uniqueItems"
	KeywordRequired   = "required"
	KeywordAdditional = "additionalProperties"
	KeywordNames      = "propertyNames"
	KeywordMinMembers = "minProperties"
	KeywordMaxMembers = "maxProperties"
	KeywordAnyOf      = "anyOf"
	// KeywordNot marks a member that a conditional rule forbids.
	KeywordNot = "not"
	// KeywordRule marks a rule that no JSON Schema keyword expresses.
	KeywordRule = "rule"
)

// Fault is one way in which a value is not of its shape.
type Fault struct {
	// Path is the JSON Pointer of the faulty value. For a missing member it
	// names the member; for an unknown one too, unless its name is not fit to
	// be repeated, and then it names the object.
	Path string
	// Keyword names the rule that failed.
	Keyword string
	// Reason is a token for rules that have one, else empty.
	Reason string
	// MissingOnly says that something is absent and nothing is wrong: a
	// required member is missing or a required array is too short.
	MissingOnly bool
}

// Error says path, keyword and reason; never a value.
func (f *Fault) Error() string {
	var b strings.Builder
	b.WriteString("shape: ")
	if f.Path == "" {
		b.WriteString("document")
	} else {
		b.WriteString(f.Path)
	}
	b.WriteString(": ")
	b.WriteString(f.Keyword)
	if f.Reason != "" {
		b.WriteString(" (" + f.Reason + ")")
	}
	return b.String()
}

// FaultAt makes a fault of a custom rule. path is relative to the value that
// the rule was given: "" for the value itself, "/budget/currency" for a part.
func FaultAt(path, reason string) *Fault {
	return &Fault{Path: path, Keyword: KeywordRule, Reason: reason}
}

// Under returns the fault with its path moved below prefix, a JSON Pointer.
func (f *Fault) Under(prefix string) *Fault {
	c := *f
	c.Path = prefix + f.Path
	return &c
}

// Missing sorts the faults of one value, as CheckAll gives them: only is true
// when there are faults and all of them are MissingOnly; paths are the JSON
// Pointers of what is missing, in the order found. This is the test between
// WORK_CONTRACT_INCOMPLETE and SCHEMA_VALIDATION_FAILED (COMMANDS.md 3.3).
func Missing(faults []Fault) (paths []string, only bool) {
	only = len(faults) > 0
	for i := range faults {
		if !faults[i].MissingOnly {
			only = false
			continue
		}
		paths = append(paths, faults[i].Path)
	}
	return paths, only
}

// Token escapes a member name for use in a JSON Pointer.
func Token(name string) string {
	if !strings.ContainsAny(name, "~/") {
		return name
	}
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

// maxEcho bounds a member name of the input that a fault repeats; the longest
// legal names are ids.
const maxEcho = 512

// echoable tells whether a member name may stand in a fault's path: short,
// and text that every reader displays as what it is.
func echoable(name string) bool {
	if len(name) > maxEcho || !utf8.ValidString(name) {
		return false
	}
	for _, r := range name {
		if !strconv.IsPrint(r) {
			return false
		}
	}
	return true
}
