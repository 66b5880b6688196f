package scenario

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/client/schedule"
)

// WorkerProcess is a Worker in a program of its own, which the failure suite
// kills, cuts off and starts again. What it knows is its key and what the server
// sends: nothing of an earlier run. It says on Out, a JSON object a line, what its
// code was called for, which is evidence about the client library that the play
// could not see from outside; and obeys lines on In:
//
//	state           say what the queues, slots and counts are
//	lift GATE       let work go on that waits there
//	class GROUP N   put a Group into a priority class
//
// The end of In stops it at checkpoints, as the end of the play would.
type WorkerProcess struct {
	Client *client.Client
	Slots  int
	In     io.Reader
	Out    io.Writer

	worker *client.Worker
	gates  *gates
	mu     sync.Mutex // Out
}

// told is a line that a WorkerProcess writes.
type told struct {
	What string `json:"what"` // starts, begins, saved, waits, ends, hears, state
	// Of begins, saved, waits and ends: one run of Do.
	WorkItemID string `json:"workItemId,omitempty"`
	GroupID    string `json:"groupId,omitempty"`
	Ownership  int64  `json:"ownershipEpoch,omitempty"`
	LeaseID    string `json:"leaseId,omitempty"`
	Text       string `json:"text,omitempty"`
	MessageID  string `json:"messageId,omitempty"`
	// Of state.
	Session  int64               `json:"sessionEpoch,omitempty"`
	Running  []string            `json:"running,omitempty"` // by slot
	Queues   map[string][]string `json:"queues,omitempty"`  // by Group, in its order
	Heads    map[string]int64    `json:"heads,omitempty"`   // by Group
	Received int64               `json:"received,omitempty"`
	Repeated int64               `json:"repeated,omitempty"`
}

func (p *WorkerProcess) say(t told) {
	b, err := json.Marshal(t)
	if err != nil {
		panic(err) // strings and numbers
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.Out.Write(append(b, '\n'))
}

// Run works until In ends, ctx ends, or the session does.
func (p *WorkerProcess) Run(ctx context.Context) error {
	p.gates = newGates()
	var err error
	p.worker, err = client.NewWorker(client.WorkerOptions{
		Client: p.Client, Slots: p.Slots, Do: p.do, Hear: p.hear, Discover: 50 * time.Millisecond, LeaseSeconds: 60,
		Policy: schedule.Policy{AgeStep: time.Hour}, // nothing ages within a play
	})
	if err != nil {
		return fmt.Errorf("scenario: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer stop()
		lines := bufio.NewScanner(p.In)
		for lines.Scan() {
			p.obey(lines.Text())
		}
	}()
	p.say(told{What: "starts"})
	if err := p.worker.Run(ctx); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("scenario: %w", err)
	}
	return nil
}

func (p *WorkerProcess) obey(line string) {
	words := strings.Fields(line)
	switch {
	case len(words) == 1 && words[0] == "state":
		p.say(p.state())
	case len(words) == 2 && words[0] == "lift":
		p.gates.lift(words[1])
	case len(words) == 3 && words[0] == "class":
		var class int
		if _, err := fmt.Sscan(words[2], &class); err == nil {
			p.worker.SetShare(words[1], schedule.Share{Class: class})
		}
	}
}

func (p *WorkerProcess) state() told {
	t := told{What: "state", Heads: p.worker.Cursors(), Queues: map[string][]string{}}
	if session := p.worker.Session(); session != nil {
		t.Session = session.Epoch()
		t.Received, t.Repeated = session.Received()
	}
	for _, run := range p.worker.Running() {
		t.Running = append(t.Running, run.ID)
	}
	for group := range t.Heads {
		t.Queues[group] = p.worker.Queue(group)
	}
	return t
}

func (p *WorkerProcess) hear(_ context.Context, room client.Room, m client.Message) {
	p.say(told{What: "hears", GroupID: room.GroupID, MessageID: m.MessageID})
}

// do goes to the first milestone, waits there if the contract names a gate, and
// goes on from the saved state if there is one.
func (p *WorkerProcess) do(ctx context.Context, job *client.Job) error {
	var t task
	if err := json.Unmarshal(job.Contract.Constraints, &t); err != nil {
		return err //nolint:wrapcheck // becomes the failure report
	}
	run := told{WorkItemID: job.WorkItemID, GroupID: job.GroupID, Ownership: job.OwnershipEpoch, LeaseID: job.LeaseID()}
	tell := func(what, text string) {
		line := run
		line.What, line.Text = what, text
		p.say(line)
	}
	tell("begins", "")
	saved, err := job.Saved(ctx)
	if err != nil {
		return err //nolint:wrapcheck // the server's words
	}
	if saved != nil {
		tell("saved", string(saved))
	}
	state := fmt.Appendf(nil, "%s is half done", job.WorkItemID)
	if err := job.Reached(ctx, "half", state); err != nil {
		return err //nolint:wrapcheck // ErrPaused among them
	}
	if t.Gate != "" {
		tell("waits", t.Gate)
		select {
		case <-ctx.Done():
			return ctx.Err() //nolint:wrapcheck // the Job's
		case <-job.Yield:
			if err := job.Reached(ctx, "half", state); err != nil {
				return err //nolint:wrapcheck // ErrPaused
			}
		case <-p.gates.of(t.Gate):
		}
	}
	hash, err := job.Publish(ctx, "text/plain", []byte("Done: "+job.Contract.Goal+"\n"))
	if err != nil {
		return err //nolint:wrapcheck // the server's words
	}
	if err := job.Submit(ctx, "Compared what was made with the goal.", []string{hash}); err != nil {
		return err //nolint:wrapcheck // the server's words
	}
	tell("ends", "")
	return nil
}

// gates hold a process's Jobs back until the play lifts them.
type gates struct {
	mu   sync.Mutex
	open map[string]chan struct{}
}

func newGates() *gates { return &gates{open: map[string]chan struct{}{}} }

func (g *gates) of(name string) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, ok := g.open[name]
	if !ok {
		c = make(chan struct{})
		g.open[name] = c
	}
	return c
}

// lift opens a gate for good.
func (g *gates) lift(name string) {
	c := g.of(name)
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-c:
	default:
		close(c)
	}
}
