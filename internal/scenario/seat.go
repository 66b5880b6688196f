package scenario

import (
	"context"
	"fmt"
	"sync"

	"github.com/missionweave/server/client"
)

// actor is a Principal with its own key and connection. A human has no session.
type actor struct {
	name    string
	c       *client.Client
	session *client.Session
}

// seat is an actor in one Mission's Group: what it was told, and Commands under
// its present epochs.
type seat struct {
	*actor
	m *mission
	// sessionEpoch is that of an Agent which has its session elsewhere; nil for
	// humans and services.
	sessionEpoch func() int64
	cancel       context.CancelFunc
	done         chan struct{}

	mu      sync.Mutex
	board   *client.Board
	log     []client.Delivery
	changed chan struct{}
	ended   error
}

// sit subscribes an Agent to a Group, or follows it as a human over SSE, and
// keeps learning until the Membership, the session or the stage ends.
func (a *actor) sit(ctx context.Context, m *mission, watch func(client.Event)) (*seat, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &seat{
		actor: a, m: m, cancel: cancel, done: make(chan struct{}), board: client.NewBoard(a.c.Principal(), m.group),
		changed: make(chan struct{}),
	}
	take := func(d client.Delivery) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.log = append(s.log, d)
		err := s.board.Learn(d.Event)
		if watch != nil {
			watch(d.Event)
		}
		close(s.changed)
		s.changed = make(chan struct{})
		return err
	}
	if a.session == nil {
		go s.end(func() error { return a.c.Follow(life, m.group, 0, take) })
		return s, nil
	}
	sub, err := a.session.Subscribe(ctx, m.group, 0)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("%s joins %s: %w", a.name, m.name, err)
	}
	go s.end(func() error {
		for {
			d, err := sub.Next(life)
			if err != nil {
				return err //nolint:wrapcheck // kept as it is
			}
			if err := take(d); err != nil {
				return err
			}
			_ = a.session.Acknowledge(life, m.group, d.Event.Sequence)
		}
	})
	return s, nil
}

func (s *seat) end(f func() error) {
	defer close(s.done)
	err := f()
	s.mu.Lock()
	s.ended = err
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
}

func (s *seat) leave() {
	s.cancel()
	<-s.done
}

// read looks at the Board.
func read[T any](s *seat, f func(*client.Board) T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f(s.board)
}

// until waits until the Board says so.
func (s *seat) until(ctx context.Context, f func(*client.Board) bool) error {
	for {
		s.mu.Lock()
		ok, changed, ended := f(s.board), s.changed, s.ended
		s.mu.Unlock()
		if ok {
			return nil
		}
		if ended != nil {
			return ended
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx) //nolint:wrapcheck // says what took too long
		case <-changed:
		}
	}
}

// events are the Events of some kinds so far.
func (s *seat) events(kinds ...string) []client.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []client.Event
	for _, d := range s.log {
		for _, k := range kinds {
			if d.Event.Kind == k {
				out = append(out, d.Event)
			}
		}
	}
	return out
}

// try sends a Command under the actor's present epochs and waits until the actor
// itself has been told of it.
func (s *seat) try(ctx context.Context, cmd client.Command, payload any) (*client.Event, error) {
	cmd.GroupID = s.m.group
	s.mu.Lock()
	if cmd.MembershipEpoch == 0 {
		cmd.MembershipEpoch = s.board.Epoch()
	}
	if s.board.CoordinatorID == s.c.Principal().ID && cmd.CoordinatorEpoch == 0 {
		cmd.CoordinatorEpoch = s.board.CoordinatorEpoch
	}
	s.mu.Unlock()
	if s.session == nil {
		if s.sessionEpoch != nil && cmd.SessionEpoch == 0 {
			cmd.SessionEpoch = s.sessionEpoch()
		}
		receipt, err := s.c.Post(ctx, cmd, payload)
		if err != nil {
			return nil, err //nolint:wrapcheck // judged by its code
		}
		first := receipt.Events[0]
		last := first.Sequence
		for _, e := range receipt.Events {
			if e.GroupID == s.m.group {
				last = max(last, e.Sequence)
			}
		}
		// A Command may leave several Events; what comes next rests on all of them.
		if err := s.until(ctx, func(b *client.Board) bool { return b.Head >= last }); err != nil {
			return nil, err
		}
		return s.event(first.EventID), nil
	}
	e, err := s.session.Command(ctx, cmd, payload)
	if err != nil {
		return nil, err //nolint:wrapcheck // judged by its code
	}
	return e, s.until(ctx, func(b *client.Board) bool { return b.Head >= e.Sequence })
}

// event finds an Event that the actor was told.
func (s *seat) event(id string) *client.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.log {
		if d.Event.EventID == id {
			return &d.Event
		}
	}
	return &client.Event{}
}

// do is try that breaks the scene off.
func (s *seat) do(ctx context.Context, sc *scene, cmd client.Command, payload any) *client.Event {
	e, err := s.try(ctx, cmd, payload)
	sc.must(fmt.Sprintf("%s by %s", cmd.Kind, s.name), err)
	return e
}

// await waits for a state of a WorkItem.
func (s *seat) await(ctx context.Context, sc *scene, id, state string) {
	err := s.until(ctx, func(b *client.Board) bool { return b.Items[id] != nil && b.Items[id].State == state })
	sc.must(fmt.Sprintf("%s becomes %s", sc.nameOf(id), state), err)
}

// awaitThat waits for anything.
func (s *seat) awaitThat(ctx context.Context, sc *scene, what string, f func(*client.Board) bool) {
	sc.must(what, s.until(ctx, f))
}

// item is a copy of a WorkItem on the Board.
func (s *seat) item(id string) client.Work {
	return read(s, func(b *client.Board) client.Work {
		if w := b.Items[id]; w != nil {
			return *w
		}
		return client.Work{}
	})
}
