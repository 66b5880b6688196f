package missionfile

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
)

// The bounds below are those of the normative Mission and Work Contract
// schemas: what passes here is not refused there.
var (
	namePattern       = regexp.MustCompile(`^[a-z0-9]+(?:-[a-z0-9]+)*$`)
	criterionPattern  = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$`)
	capabilityPattern = regexp.MustCompile(`^[a-z0-9]+(?:[.-][a-z0-9]+)+$`)
	versionPattern    = regexp.MustCompile(`^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$`)
	mediaTypePattern  = regexp.MustCompile(`^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+$`)
	currencyPattern   = regexp.MustCompile(`^[A-Z]{3}$`)
	evidenceTypes     = []string{
		"artifact_integrity", "schema_validation", "deterministic_test", "business_rule",
		"reviewer_assessment", "human_review", "policy_check",
	}
	urgencies = []string{"routine", "normal", "high", "critical"}
)

// checker collects the first fault, with its place.
type checker struct {
	name  string
	tree  *ast.File
	first *Error
}

func (c *checker) fault(field, format string, args ...any) {
	if c.first == nil {
		c.first = &Error{Name: c.name, Line: lineOf(c.tree, field), Field: field, Reason: fmt.Sprintf(format, args...)}
	}
}

func (c *checker) text(field, value string, most int) {
	switch {
	case strings.TrimSpace(value) == "":
		c.fault(field, "is required")
	case utf8.RuneCountInString(value) > most:
		c.fault(field, "is longer than %d characters", most)
	}
}

func (c *checker) file(f *File) {
	c.mission(&f.Mission)
	if len(f.Workers) < 2 {
		c.fault("workers", "needs at least two Workers")
	}
	workers := map[string]Worker{}
	for i, w := range f.Workers {
		field := fmt.Sprintf("workers[%d]", i)
		c.worker(field, w)
		if _, twice := workers[w.Name]; twice {
			c.fault(field+".name", "%q is used twice", w.Name)
		}
		workers[w.Name] = w
	}
	if len(f.WorkItems) == 0 {
		c.fault("workItems", "needs at least one WorkItem")
	}
	known := map[string]bool{}
	for i, w := range f.WorkItems {
		c.workItem(fmt.Sprintf("workItems[%d]", i), w, workers, known, f.Mission)
	}
	if r := f.ChangeRound; r != nil {
		c.text("changeRound.comments", r.Comments, 10000)
		if len(r.WorkItems) == 0 {
			c.fault("changeRound.workItems", "needs at least one corrective WorkItem")
		}
		for i, w := range r.WorkItems {
			c.workItem(fmt.Sprintf("changeRound.workItems[%d]", i), w, workers, known, f.Mission)
		}
	}
	c.total(f)
}

func (c *checker) mission(m *Mission) {
	c.text("mission.objective", m.Objective, 10000)
	if m.Title != "" {
		c.text("mission.title", m.Title, 500)
	}
	c.criteria("mission.definitionOfDone", m.DefinitionOfDone)
	c.budget("mission.budget", m.Budget)
	c.span("mission.deadline", m.Deadline)
}

func (c *checker) span(field string, s Span) {
	if s.Duration() <= 0 {
		c.fault(field, "is not a positive span such as 90s, 15m or 48h")
	}
}

func (c *checker) criteria(field string, list []Criterion) {
	if len(list) == 0 {
		c.fault(field, "needs at least one criterion")
	}
	seen := map[string]bool{}
	for i, k := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		if !criterionPattern.MatchString(k.ID) {
			c.fault(at+".id", "must match %s", criterionPattern)
		}
		if seen[k.ID] {
			c.fault(at+".id", "%q is used twice", k.ID)
		}
		seen[k.ID] = true
		c.text(at+".description", k.Description, 4000)
		if len(k.Evidence) == 0 {
			c.fault(at+".evidence", "needs at least one Evidence type")
		}
		for j, e := range k.Evidence {
			if !slices.Contains(evidenceTypes, e) {
				c.fault(fmt.Sprintf("%s.evidence[%d]", at, j), "%q is not one of %s", e, strings.Join(evidenceTypes, ", "))
			}
		}
	}
}

func (c *checker) budget(field string, b Budget) {
	dimensions := b.values()
	for name, v := range dimensions {
		if v < 0 {
			c.fault(field+"."+name, "must not be negative")
		}
		if v > 1<<53-1 {
			c.fault(field+"."+name, "is too large")
		}
	}
	if micro := b.Financial * 1e6; math.Abs(micro-math.Round(micro)) > 1e-3 {
		c.fault(field+".financial", "has more than six decimals")
	}
	if b.Financial > 0 && !currencyPattern.MatchString(b.Currency) {
		c.fault(field+".currency", "is required with a financial limit, as three capital letters")
	}
	if b == (Budget{}) {
		c.fault(field, "is required")
	}
}

// values lists the six dimensions under the names used in the file.
func (b Budget) values() map[string]float64 {
	return map[string]float64{
		"financial": b.Financial, "modelTokens": float64(b.ModelTokens), "toolCalls": float64(b.ToolCalls),
		"computeSeconds": float64(b.ComputeSeconds), "wallClockSeconds": float64(b.WallClockSeconds),
		"externalSideEffects": float64(b.ExternalSideEffects),
	}
}

func (c *checker) worker(field string, w Worker) {
	if !namePattern.MatchString(w.Name) {
		c.fault(field+".name", "must be lower-case words joined by hyphens")
	}
	if len(w.Capabilities) == 0 {
		c.fault(field+".capabilities", "needs at least one capability")
	}
	for i, k := range w.Capabilities {
		c.capability(fmt.Sprintf("%s.capabilities[%d]", field, i), k)
	}
	if w.MaxConcurrency < 0 {
		c.fault(field+".maxConcurrency", "must not be negative")
	}
}

func (c *checker) capability(field string, k Capability) {
	if !capabilityPattern.MatchString(k.ID) || len(k.ID) > 200 {
		c.fault(field+".id", "must be lower-case words joined by dots or hyphens, such as code.build")
	}
	if !versionPattern.MatchString(k.Version) {
		c.fault(field+".version", "must be a version such as 1.0.0")
	}
}

func (c *checker) workItem(field string, w WorkItem, workers map[string]Worker, known map[string]bool, m Mission) {
	if !namePattern.MatchString(w.ID) {
		c.fault(field+".id", "must be lower-case words joined by hyphens")
	}
	if known[w.ID] {
		c.fault(field+".id", "%q is used twice", w.ID)
	}
	c.text(field+".goal", w.Goal, 10000)
	c.text(field+".impact", w.Impact, 4000)
	if !slices.Contains(urgencies, w.Urgency) {
		c.fault(field+".urgency", "%q is not one of %s", w.Urgency, strings.Join(urgencies, ", "))
	}
	for i, d := range w.DependsOn {
		if !known[d] {
			c.fault(fmt.Sprintf("%s.dependsOn[%d]", field, i), "%q is not a WorkItem listed before this one", d)
		}
	}
	known[w.ID] = true
	if len(w.Capabilities) == 0 {
		c.fault(field+".capabilities", "needs at least one capability")
	}
	for i, k := range w.Capabilities {
		c.capability(fmt.Sprintf("%s.capabilities[%d]", field, i), k)
	}
	c.criteria(field+".criteria", w.Criteria)
	if len(w.Deliverables) == 0 {
		c.fault(field+".deliverables", "needs at least one deliverable")
	}
	for i, d := range w.Deliverables {
		at := fmt.Sprintf("%s.deliverables[%d]", field, i)
		if !criterionPattern.MatchString(d.ID) {
			c.fault(at+".id", "must match %s", criterionPattern)
		}
		c.text(at+".description", d.Description, 4000)
		c.mediaType(at+".mediaType", d.MediaType)
	}
	c.budget(field+".budget", w.Budget)
	c.span(field+".deadline", w.Deadline)
	if w.Deadline.Duration() > m.Deadline.Duration() {
		c.fault(field+".deadline", "must be at most the Mission's %s", m.Deadline)
	}
	if len(w.Candidates) == 0 {
		c.fault(field+".candidates", "needs at least one Worker")
	}
	for i, name := range w.Candidates {
		at := fmt.Sprintf("%s.candidates[%d]", field, i)
		worker, ok := workers[name]
		if !ok {
			c.fault(at, "%q is not a Worker of this file", name)
			continue
		}
		for _, need := range w.Capabilities {
			if !slices.ContainsFunc(worker.Capabilities, func(has Capability) bool { return has == need }) {
				c.fault(at, "%q lacks capability %s %s", name, need.ID, need.Version)
			}
		}
	}
	for i, p := range w.Phases {
		c.text(fmt.Sprintf("%s.phases[%d]", field, i), p, 500)
	}
	c.mediaType(field+".artifact.mediaType", w.Artifact.MediaType)
	if w.Artifact.Content == "" {
		c.fault(field+".artifact.content", "is required")
	}
}

func (c *checker) mediaType(field, value string) {
	if !mediaTypePattern.MatchString(value) {
		c.fault(field, "must be a media type such as text/markdown")
	}
}

// total refuses WorkItems that together ask for more than the Mission has:
// the Authority would refuse the last of them with BUDGET_EXCEEDED.
func (c *checker) total(f *File) {
	sum := map[string]float64{}
	for _, w := range f.All() {
		for name, v := range w.Budget.values() {
			sum[name] += v
		}
		if w.Budget.Financial > 0 && w.Budget.Currency != f.Mission.Budget.Currency {
			c.fault("mission.budget.currency", "differs from the currency of WorkItem %q", w.ID)
		}
	}
	limits := f.Mission.Budget.values()
	for _, name := range []string{"financial", "modelTokens", "toolCalls", "computeSeconds", "wallClockSeconds", "externalSideEffects"} {
		if sum[name] > limits[name]+1e-9 {
			c.fault("mission.budget."+name, "is less than the %v that the WorkItems ask for together", sum[name])
		}
	}
}
