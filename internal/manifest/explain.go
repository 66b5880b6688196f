package manifest

// Step is one step of a decision, as section 3 numbers them.
type Step struct {
	Number int    `json:"step"`
	Name   string `json:"name"`
	Said   string `json:"said"`
}

var stepNames = [...]string{
	1: "shape", 2: "provenance", 3: "laws", 4: "schema", 5: "explicit deny", 6: "escalation", 7: "allow", 8: "uncovered",
}

// Explain takes the same decision as Decide and tells every step of it.
func (m *Manifest) Explain(r *Request) (Decision, []Step) {
	var d Decision
	var steps []Step
	m.decide(r, &d, func(step int, said string) {
		name := stepNames[step]
		if step == 8 && (d.Rule == Escalation || d.Rule == OneShotApproval) {
			name = "mode and approval"
		}
		steps = append(steps, Step{step, name, said})
	})
	return d, steps
}
