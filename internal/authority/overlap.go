package authority

import (
	"context"
	"errors"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
)

// Rounds overlap: while one commits, the lane decides the next on the states that
// the first will leave behind; what comes too late for that waits for the one
// after. The second commits only after the
// first has, and fails with it. This is safe for the same reason that a wrong
// state in memory is: the commit compares the heads.
//
// Only plain rounds overlap, those whose decisions depend on nothing but Group
// states, sessions and keys. What makes a Group, opens a session, registers a
// card, counts an Agent's work over all Groups or reads the log itself is decided
// when nothing is under way.

// notPlain are the Command kinds that look beyond the states in memory.
var notPlain = map[string]bool{
	"mission.create": true, "mission.create_follow_up": true, "mission.create_child": true,
	"work.accept_offer": true, "work.start": true,
	protocol.CommandSessionOpen: true, protocol.CommandAgentCardRegister: true,
	"ext.missionweaveprotocol.core.group_archive": true,
}

func plain(tasks []*task) bool {
	for _, t := range tasks {
		if t.sweep != nil || notPlain[t.env.Kind] {
			return false
		}
	}
	return true
}

// work decides tasks, and what arrives meanwhile, until nothing is under way.
func (l *lane) work(tasks []*task) {
	for len(tasks) > 0 {
		if !plain(tasks) {
			l.serve(tasks)
			return
		}
		r := newRound(l)
		if !l.extend(r, tasks) {
			l.serve(tasks)
			return
		}
		tasks = l.fly(r)
	}
}

// extend is round.extend; when it fails the round is dropped, and its tasks are
// to be served in sequence, where failures are sorted out.
func (l *lane) extend(r *round, tasks []*task) bool {
	ctx, cancel := context.WithTimeout(context.Background(), roundPatience)
	defer cancel()
	if err := r.extend(ctx, tasks); err != nil {
		r.drop()
		return false
	}
	return true
}

// fly commits a decided round and, while that is under way, decides the next,
// and so on. It returns the tasks it took and did not decide; nothing is under
// way then.
func (l *lane) fly(r *round) (waiting []*task) {
	for {
		if err := r.assemble(); err != nil {
			r.drop()
			l.serve(r.tasks)
			return waiting
		}
		if r.idle() {
			r.finish()
			return waiting
		}
		landed := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), roundPatience)
			defer cancel()
			landed <- r.commit(ctx)
		}()
		next, late, err := l.meanwhile(r, landed, waiting)
		waiting = late
		if errors.Is(err, events.ErrIndeterminate) {
			err = l.settle(r, err)
		}
		if err != nil {
			r.drop()
			if next != nil {
				next.drop()
				waiting = append(next.tasks, waiting...)
			}
			if moved(err) {
				l.s.stats.redecided.Add(1)
			}
			l.serve(r.tasks)
			return waiting
		}
		l.s.stats.rounds.Add(1)
		r.finish()
		if next == nil {
			return waiting
		}
		next.behind = nil
		if !plain(waiting) {
			// What was decided goes first; then nothing is under way for the rest.
			l.land(next)
			return waiting
		}
		r = next
	}
}

// meanwhile takes tasks until the commit under way has landed, and decides them
// whenever there are enough to be worth a look of their own. What comes too late
// for that is left for the round after: the database does not wait for it.
func (l *lane) meanwhile(r *round, landed <-chan error, waiting []*task) (next *round, late []*task, err error) {
	enough := max(4, len(r.tasks)/2)
	queue := l.queue
	for {
		if queue != nil && len(waiting) >= enough {
			if !plain(waiting) {
				queue = nil
				continue
			}
			if next == nil {
				next = newRound(l)
				next.behind = r
			}
			if !l.extend(next, waiting) {
				// Decided in sequence, after the commit.
				waiting, next, queue = next.tasks, nil, nil
				continue
			}
			waiting = nil
			if len(next.tasks) >= l.s.opt.Round {
				queue = nil
			}
		}
		from := queue
		if len(waiting) >= l.s.opt.Round {
			from = nil // the rest waits where its senders are pushed back
		}
		select {
		case err := <-landed:
			return next, waiting, err
		case t := <-from:
			waiting = l.collect(waiting, t)
		}
	}
}

// land commits a decided round in sequence.
func (l *lane) land(r *round) {
	err := r.assemble()
	if err == nil && !r.idle() {
		ctx, cancel := context.WithTimeout(context.Background(), roundPatience)
		defer cancel()
		if err = r.commit(ctx); errors.Is(err, events.ErrIndeterminate) {
			err = l.settle(r, err)
		}
	}
	if err != nil {
		r.drop()
		l.serve(r.tasks)
		return
	}
	l.s.stats.rounds.Add(1)
	r.finish()
}
