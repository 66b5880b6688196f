package scenario

// suite is what the failure suite knows of itself.
type suite struct {
	course *Course
	notRun []NotRun
}

// Course is what a seed decides about the failure suite.
type Course struct{}

// NotRun is a fault that could not be played, and why. It is no check: it says
// nothing about the server, good or bad.
type NotRun struct {
	Fault string `json:"fault"`
	Why   string `json:"why"`
}

// omitted prints what was not run.
func (t *timeline) omitted(r *Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range r.NotRun {
		t.printf("%s %s: %s", t.paint("1;33", "  not run"), n.Fault, n.Why)
	}
}
