package evidence

import (
	"fmt"
	"slices"
	"strings"
)

// Finding is one rule that a record breaks, or a warning about it.
type Finding struct {
	Rule    string `json:"rule"`    // id of the rule in [Rules]
	Name    string `json:"name"`    // E_… or W_…
	Path    string `json:"path"`    // JSON Pointer (RFC 6901) to the place; empty for the whole record
	Message string `json:"message"` // for people
}

func (f Finding) String() string {
	path := f.Path
	if path == "" {
		path = "/"
	}
	return fmt.Sprintf("%s %s %s: %s", f.Rule, f.Name, path, f.Message)
}

// SignatureState says what is known about a record's signature.
type SignatureState string

// What [Check] can say about a signature.
const (
	SignatureNotChecked SignatureState = "not-checked"
	SignatureValid      SignatureState = "valid"
	SignatureInvalid    SignatureState = "invalid"
)

// Report is the judgement over one record: every error, in the order of the
// rules and then of the document.
type Report struct {
	Errors    []Finding      `json:"errors"`
	Warnings  []Finding      `json:"warnings"`
	Signature SignatureState `json:"signature"`
	Tiers     []int          `json:"tiers"` // the tiers that ran to their end
}

// OK tells whether no rule was broken.
func (r *Report) OK() bool { return len(r.Errors) == 0 }

// Names are the distinct error names in order.
func (r *Report) Names() []string { return names(r.Errors) }

// WarningNames are the distinct warning names in order.
func (r *Report) WarningNames() []string { return names(r.Warnings) }

func names(list []Finding) []string {
	out := []string{}
	for _, f := range list {
		if !slices.Contains(out, f.Name) {
			out = append(out, f.Name)
		}
	}
	return out
}

// checker collects findings. Paths are built by the callers.
type checker struct {
	root     *Value
	v3       bool // v0.3, or a v0.4 body
	errors   []Finding
	warnings []Finding
}

func (c *checker) fail(rule, name, path, format string, args ...any) {
	c.errors = append(c.errors, Finding{rule, name, path, fmt.Sprintf(format, args...)})
}

func (c *checker) warn(rule, name, path, format string, args ...any) {
	c.warnings = append(c.warnings, Finding{rule, name, path, fmt.Sprintf(format, args...)})
}

// order sorts findings by rule, keeping the order of the document within one.
func order(list []Finding) []Finding {
	slices.SortStableFunc(list, func(a, b Finding) int { return rulePosition[a.Rule] - rulePosition[b.Rule] })
	if list == nil {
		list = []Finding{}
	}
	return list
}

func at(path, name string) string {
	return path + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

func atIndex(path string, i int) string { return fmt.Sprintf("%s/%d", path, i) }
