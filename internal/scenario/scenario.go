// Package scenario plays what the protocol asks for as proof (spec section 22) on
// a live server: Missions that run at the same time and share a Worker, and what
// can go wrong with them.
//
// Everybody in it is a client of its own with a key of its own, over HTTP and
// WebSocket; nobody knows anything but what the server sent. The scenes are the
// hands of the MissionOwner and the Coordinators. Workers run on their own: what a
// scene wants of one it writes into a Conversation, what a Worker knows it says
// there (talk.go), and what it is told at its start is in its setup (craft.go).
// Outside of the server stands a system of its own that external actions change
// (external.go).
//
// The hazard of such a show is that it proves nothing: therefore every claim is a
// named check with what proves it, read back from the server; what must be shown
// is listed (promises.go) and fails where its check did not run; and a scene that
// breaks off is a failed check of its own.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/missionweave/server/client"
)

// Options says where to play and who watches.
type Options struct {
	Stack *client.DevStack
	// Seed decides whatever the scenes choose; chooser says what that is.
	Seed uint64
	// Faults plays the failure suite too. Machinery breaks the server, and Command
	// runs mw as a program of its own; what needs one that is nil is not run.
	Faults    bool
	Machinery Machinery
	Command   func(args ...string) *exec.Cmd
	// Out receives the timeline and the table of checks. Columns is the width of a
	// terminal, 0 for plain lines.
	Out     io.Writer
	Columns int
	Color   bool
	// Limit ends a play that does not come to its end.
	Limit time.Duration
}

// Check is one claim with what proves it.
type Check struct {
	Scene string `json:"scene"`
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	// Proof says what was seen: the Event, the refusal, the count.
	Proof string `json:"proof"`
}

// Report is what a play has to show.
type Report struct {
	Scenario string  `json:"scenario"`
	Seed     uint64  `json:"seed"`
	Faults   bool    `json:"faults"`
	OK       bool    `json:"ok"`
	Passed   int     `json:"passed"`
	Failed   int     `json:"failed"`
	Checks   []Check `json:"checks"`
	// NotRun are the faults that could not be played here, and Course is what the
	// seed has decided about those that were; both are of the failure suite.
	NotRun   []NotRun          `json:"notRun"`
	Course   *Course           `json:"course,omitempty"`
	Missions map[string]string `json:"missions"` // name -> missionId
	Events   int               `json:"events"`
	// Promises are what the scenario is there to show, with how many checks of each
	// hold. Choices are what the seed has decided.
	Promises []Kept   `json:"promises"`
	Choices  []string `json:"choices"`
	Seconds  float64  `json:"seconds"`
}

// checks collects checks; several scenes may run at once.
type checks struct {
	mu  sync.Mutex
	all []Check
}

func (c *checks) add(k Check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, k)
}

// scene is a part of the play. Its methods panic with *broken when the play
// cannot go on; run turns that into a failed check.
type scene struct {
	*stage
	name string
	held map[string]*mission // WorkItems at a gate that this scene has to open
}

// broken ends a scene.
type broken struct{ err error }

// sceneLimit ends a scene that waits for something that does not come.
const sceneLimit = time.Minute

// run plays a scene. What breaks it off is a failed check, and the next scene
// begins.
func (st *stage) run(ctx context.Context, name string, f func(ctx context.Context, s *scene)) {
	ctx, cancel := context.WithTimeoutCause(ctx, sceneLimit, fmt.Errorf("not within %s", sceneLimit))
	defer cancel()
	s := &scene{stage: st, name: name, held: map[string]*mission{}}
	st.line.scene(name)
	defer s.letGo(context.WithoutCancel(ctx)) // whatever happens, no Worker waits for a scene that is over
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *broken:
			s.check("the scene is played to its end", false, "%v", r.err)
		case runtime.Error: // what a scene took for granted is not there
			s.check("the scene is played to its end", false, "%v", r)
		default:
			panic(r)
		}
	}()
	f(ctx, s)
}

// check records a claim and what proves it.
func (s *scene) check(name string, ok bool, proof string, args ...any) {
	k := Check{Scene: s.name, Name: name, OK: ok, Proof: fmt.Sprintf(proof, args...)}
	s.checks.add(k)
	s.line.check(k)
}

// refused checks that the server refused with a code and, where it is given, for
// exactly this reason; a reason of "" is a refusal that discloses none.
func (s *scene) refused(name string, err error, code client.Code, reason ...string) {
	e, ok := errors.AsType[*client.Error](err)
	switch {
	case err == nil:
		s.check(name, false, "it was accepted, want %s", code)
	case !ok:
		s.check(name, false, "no refusal but %v, want %s", err, code)
	case len(reason) > 0 && e.Reason != reason[0]:
		s.check(name, false, "refused with %s (%s), want %s (%s)", e.Code, e.Reason, code, reason[0])
	case e.Reason != "":
		s.check(name, e.Code == code, "refused with %s (%s)", e.Code, e.Reason)
	default:
		s.check(name, e.Code == code, "refused with %s", e.Code)
	}
}

// must breaks the scene off.
func (s *scene) must(what string, err error) {
	if err != nil {
		panic(&broken{fmt.Errorf("%s: %w", what, err)})
	}
}

// TwoMissions plays the scenario and returns its report. The error is that of the
// stage (no server, no Agents); what the server did wrong is in the report.
func TwoMissions(ctx context.Context, opt Options) (*Report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, opt.Limit, fmt.Errorf("the play was not over within %s", opt.Limit))
	defer cancel()
	started := time.Now()
	st, err := newStage(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer st.close()
	for _, part := range []struct {
		name string
		play func(context.Context, *scene)
	}{
		{"Two Missions begin", begin},
		{"The stages are planned", plan},
		{"Clarification before acceptance", clarify},
		{"Sub-work: proposed and delegated", subWork},
		{"Block and resume", blockAndResume},
		{"Shared Worker", shareWorker},
		{"Preemption", preempt},
		{"Code review and integration", review},
		{"Nothing leaks", isolate},
		{"Execution Approval", gate},
		{"Budget", exhaust},
		{"Child Missions", children},
	} {
		st.run(ctx, part.name, part.play)
	}
	if opt.Faults {
		st.faults(ctx)
	}
	for _, part := range []struct {
		name string
		play func(context.Context, *scene)
	}{
		{"Approval", approve},
		{"Follow-up and archival", conclude},
		{"Audit", audit},
		{"The whole log", inspect},
	} {
		st.run(ctx, part.name, part.play)
	}
	st.keep()
	report := st.report(time.Since(started))
	st.line.table(report)
	st.line.omitted(report)
	return report, nil
}

func (st *stage) report(took time.Duration) *Report {
	r := &Report{
		Scenario: "two-missions", Seed: st.opt.Seed, Faults: st.opt.Faults, OK: true, Checks: st.checks.all,
		Missions: map[string]string{}, Seconds: took.Seconds(), NotRun: st.suite.notRun, Course: st.suite.course,
		Choices: st.choose.taken(), Promises: kept(st.checks.all),
	}
	for _, k := range r.Checks {
		if k.OK {
			r.Passed++
		} else {
			r.Failed++
			r.OK = false
		}
	}
	for _, m := range st.missions {
		r.Missions[m.name] = m.id
		r.Events += m.events()
	}
	return r
}
