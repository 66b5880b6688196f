package scenario

import (
	"context"
	"math/rand/v2"
	"slices"
)

// suite is what the failure suite knows of itself.
type suite struct {
	course *Course
	notRun []NotRun
}

// needs is what a fault cannot be played without.
type needs int

const (
	nothing needs = iota
	program       // Options.Command: mw as a program of its own
	machinery
)

// fault is one thing that goes wrong, with the scene that shows what comes of it.
type fault struct {
	name  string
	play  func(context.Context, *scene, turn)
	needs needs
}

// faults are all faults of the suite, in the order in which they are drawn.
func faults() []fault {
	return []fault{
		{"Duplicate delivery", duplicateDelivery, program},
		{"Duplicates on the bus", duplicateOnBus, machinery},
		{"Duplicate and colliding Commands", duplicateCommands, nothing},
		{"Worker killed", killWorker, program},
		{"Coordinator lost", loseCoordinator, nothing},
		{"Worker disconnected", disconnect, nothing},
		{"Lease expired", expireLease, nothing},
		{"Stale epochs", staleEpochs, nothing},
		{"Authority killed", killAuthority, machinery},
		{"Database restarted", restartDatabase, machinery},
		{"NATS lost", loseNATS, machinery},
		{"Change request", requestChanges, nothing},
		{"High-priority arrival", arriveFirst, program},
	}
}

// Course is everything that a seed decides about the failure suite: which fault
// comes when, and whom it hits. It decides nothing else: ids, keys, times, and how
// the Events of those who work at the same time interleave differ from run to run.
type Course struct {
	Turns []Turn `json:"turns"`
}

// Turn is one fault of a Course.
type Turn struct {
	Fault string `json:"fault"`
	// Mission is hit, and where a fault needs two, the other one is beside it.
	Mission string `json:"mission"`
	// Draws choose victims inside the scene: which Event is repeated, which
	// WorkItem comes first, how many Events a resume asks for again.
	Draws []int `json:"draws"`
}

// turn is a Turn with what it names.
type turn struct {
	mission, other *mission
	draws          []int
}

// draw is choice number i among n, counted from 0.
func (t turn) draw(i, n int) int { return t.draws[i%len(t.draws)] % n }

// shuffled is a permutation of a list by choice number i.
func shuffled[T any](t turn, i int, list ...T) []T {
	out := slices.Clone(list)
	rand.New(rand.NewPCG(uint64(t.draws[i%len(t.draws)]), 7)).Shuffle(len(out), func(a, b int) { out[a], out[b] = out[b], out[a] }) //nolint:gosec // a choice to repeat, not a secret
	return out
}

// drawn is how many choices a turn has.
const drawn = 6

// NewCourse draws the whole suite: what cannot be played somewhere changes nothing
// about the rest.
func NewCourse(seed uint64) *Course {
	random := rand.New(rand.NewPCG(seed, 22)) //nolint:gosec // a course to repeat, not a secret
	c := new(Course)
	for _, f := range faults() {
		t := Turn{Fault: f.name, Mission: []string{"billing", "search"}[random.IntN(2)]}
		for range drawn {
			t.Draws = append(t.Draws, random.IntN(1000))
		}
		c.Turns = append(c.Turns, t)
	}
	random.Shuffle(len(c.Turns), func(i, j int) { c.Turns[i], c.Turns[j] = c.Turns[j], c.Turns[i] })
	return c
}

// NotRun is a fault that could not be played, and why. It is no check: it says
// nothing about the server, good or bad.
type NotRun struct {
	Fault string `json:"fault"`
	Why   string `json:"why"`
}

// why says what is missing for a fault, "" when it can be played.
func (st *stage) why(n needs) string {
	switch {
	case n == machinery && st.opt.Machinery == nil:
		return "it breaks the server, which only a server of the play's own allows (leave out --stack and --url)"
	case n != nothing && st.opt.Command == nil:
		return "it needs mw as a program of its own, to run a Worker that can be killed"
	default:
		return ""
	}
}

// faults plays the failure suite.
func (st *stage) faults(ctx context.Context) {
	st.suite.course = NewCourse(st.opt.Seed)
	all := faults()
	for _, t := range st.suite.course.Turns {
		f := all[slices.IndexFunc(all, func(f fault) bool { return f.name == t.Fault })]
		if why := st.why(f.needs); why != "" {
			st.suite.notRun = append(st.suite.notRun, NotRun{Fault: f.name, Why: why})
			st.line.note("not run: %s: %s", f.name, why)
			continue
		}
		st.run(ctx, "Fault: "+f.name, func(ctx context.Context, s *scene) {
			other := "billing"
			if t.Mission == other {
				other = "search"
			}
			f.play(ctx, s, turn{mission: s.mission(t.Mission), other: s.mission(other), draws: t.Draws})
		})
	}
}

// omitted prints what was not run.
func (t *timeline) omitted(r *Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range r.NotRun {
		t.printf("%s %s: %s", t.paint("1;33", "  not run"), n.Fault, n.Why)
	}
	if len(r.NotRun) > 0 {
		t.printf("%s", t.paint("1;33", "the suite is incomplete: nothing is known about what was not run"))
	}
}
