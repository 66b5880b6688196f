package scenario

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/scenario/wire"
)

// hand is a Worker in a process of its own, seen from the play.
type hand struct {
	s     *scene
	name  string
	id    string // its Agent
	slots int
	dir   string // its key and where the server is: all that outlives the process

	mu      sync.Mutex
	cmd     *exec.Cmd
	in      io.WriteCloser
	read    chan struct{} // closed when it has said its last
	said    []told        // by this process
	ever    []told        // by all of its processes
	changed chan struct{}
	errors  *bytes.Buffer
}

// engage hires an Agent for a Worker process and starts it, behind a wire if there
// is one. The caller must dismiss it.
func (s *scene) engage(ctx context.Context, name string, slots int, through *wire.Wire) *hand {
	dir, err := os.MkdirTemp("", "missionweave-worker-")
	s.must("make a folder for "+name, err)
	h := &hand{s: s, name: name, slots: slots, dir: dir, changed: make(chan struct{})}
	c, err := s.stack.Hire(ctx, client.Hiring{Name: name, Capabilities: []string{"errand.run@1.0.0"}, MaxConcurrency: 8, Dir: dir})
	if err == nil {
		h.id = c.Principal().ID
		c.Close()
		s.call(h.id, name)
		err = h.writeStack(through)
	}
	if err == nil {
		err = h.start()
	}
	if err != nil {
		h.dismiss()
		s.must("engage "+name, err)
	}
	return h
}

// writeStack writes a dev.json without any key in it.
func (h *hand) writeStack(through *wire.Wire) error {
	stack := *h.s.stack
	stack.Principals, stack.DatabaseURL, stack.NATSURL, stack.Policy = nil, "", "", nil
	if through != nil {
		stack.AuthorityURL, stack.WSURL = through.AuthorityURL(), through.WebSocketURL()
	}
	b, err := json.Marshal(&stack)
	if err != nil {
		return fmt.Errorf("scenario: %w", err)
	}
	return os.WriteFile(filepath.Join(h.dir, "stack.json"), b, 0o600) //nolint:wrapcheck // names the file
}

// start starts the process.
func (h *hand) start() error {
	cmd := h.s.opt.Command("demo", "worker", "--stack", filepath.Join(h.dir, "stack.json"), "--keys", h.dir, "--agent", h.name, "--slots", fmt.Sprint(h.slots))
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("scenario: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("scenario: %w", err)
	}
	failures := new(bytes.Buffer)
	cmd.Stderr = failures
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("scenario: start a Worker: %w", err)
	}
	read := make(chan struct{})
	h.mu.Lock()
	h.cmd, h.in, h.read, h.said, h.errors = cmd, in, read, nil, failures
	h.mu.Unlock()
	go func() {
		defer close(read)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var t told
			if json.Unmarshal(lines.Bytes(), &t) == nil {
				h.hear(t)
			}
		}
	}()
	return nil
}

func (h *hand) hear(t told) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said, h.ever = append(h.said, t), append(h.ever, t)
	close(h.changed)
	h.changed = make(chan struct{})
}

// tell writes a line to the process; one that is gone hears nothing.
func (h *hand) tell(format string, args ...any) {
	h.mu.Lock()
	in := h.in
	h.mu.Unlock()
	if in != nil {
		_, _ = fmt.Fprintf(in, format+"\n", args...)
	}
}

// state asks the process until its answer is the awaited one.
func (h *hand) state(ctx context.Context, what string, ok func(told) bool) told {
	var last told
	h.s.eventually(ctx, what, func() bool {
		h.mu.Lock()
		n := len(h.said)
		h.mu.Unlock()
		h.tell("state")
		for {
			h.mu.Lock()
			later := h.said[n:]
			i := slices.IndexFunc(later, func(t told) bool { return t.What == "state" })
			if i >= 0 {
				last = later[i]
			}
			changed := h.changed
			h.mu.Unlock()
			if i >= 0 {
				return ok(last)
			}
			select {
			case <-changed:
			case <-h.read:
				return false
			case <-ctx.Done():
				return false
			}
		}
	})
	return last
}

// count counts what its processes have said.
func (h *hand) count(what string, f func(told) bool) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, t := range h.ever {
		if t.What == what && f(t) {
			n++
		}
	}
	return n
}

// end ends the process with a signal, 0 for the end of its input, and returns how
// it ended.
func (h *hand) end(signal syscall.Signal) error {
	h.mu.Lock()
	cmd, in, read := h.cmd, h.in, h.read
	h.cmd, h.in = nil, nil
	h.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if signal != 0 {
		if err := cmd.Process.Signal(signal); err != nil {
			return fmt.Errorf("scenario: %w", err)
		}
	}
	_ = in.Close()
	<-read
	return cmd.Wait() //nolint:wrapcheck // says how it ended
}

// killed tells whether a process ended by a signal and not on its own.
func killed(err error, signal syscall.Signal) bool {
	e, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return false
	}
	status, ok := e.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == signal
}

// dismiss ends the process and forgets its key.
func (h *hand) dismiss() {
	if err := h.end(0); err != nil {
		h.s.line.note("%s ended: %v %s", h.name, err, h.errors)
	}
	_ = os.RemoveAll(h.dir)
}

// welcome makes it a member of Missions.
func (h *hand) welcome(ctx context.Context, missions ...*mission) {
	for _, m := range missions {
		m.lead.do(ctx, h.s, client.Command{Kind: "membership.change"}, map[string]any{
			"member": client.Actor{Type: client.Agent, ID: h.id}, "role": "worker", "visibilityStartSequence": 1,
		})
	}
}

// give authorizes a WorkItem and offers it to this Worker only.
func (h *hand) give(ctx context.Context, m *mission, title string, t task, edit ...func(*client.WorkContract)) string {
	c := h.s.contract("Run the errand "+title+".", "errand.run", t, edit...)
	id := h.s.authorize(ctx, m, title, c)
	delete(h.s.held, id) // its gate is its process's: lifted by a line
	m.lead.do(ctx, h.s, client.Command{Kind: "work.offer", WorkItemID: id}, h.s.offer(c, "coder", map[string]any{"candidateAgentIds": []string{h.id}}))
	return id
}

// order is the queue of a Group with what runs of it in front.
func (t told) order(group string, of func(id string) string) []string {
	var out []string
	for _, id := range t.Running {
		if of(id) == group {
			out = append(out, id)
		}
	}
	return append(out, t.Queues[group]...)
}
