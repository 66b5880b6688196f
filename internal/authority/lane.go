package authority

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
)

// Patience of a lane. A round that fails because the database is away is tried
// again for a moment, so that a failover of a second costs latency and not
// errors; an outcome that is unknown is asked for much longer.
const (
	lanePatience   = 1500 * time.Millisecond
	settlePatience = 10 * time.Second
	// roundPatience bounds the reads of a round: a database that neither answers
	// nor hangs up must not hold a lane.
	roundPatience = 15 * time.Second
	raceAttempts  = 60
	// cardAttempts is how often a card is decided again that the Registry refused
	// inside the transaction; then its refusal is the Command's.
	cardAttempts = 3
)

// lane decides the Commands of its trees, one round after another. Everything in
// it belongs to its goroutine but the queue.
type lane struct {
	s     *Service
	queue chan *task
	hot   *hotStates
	// last is the latest clock reading: a lane's time does not run backwards.
	last time.Time
}

func newLane(s *Service, _ int) *lane {
	n := len(s.lanes) + 1
	return &lane{
		s: s, queue: make(chan *task, s.opt.Queue),
		hot: newHotStates(max(16, s.opt.HotGroups/max(n, s.opt.Lanes)), s.opt.HotEvents/int64(s.opt.Lanes)),
	}
}

// run serves until the service stops and the queue is empty.
func (l *lane) run() {
	for {
		select {
		case t := <-l.queue:
			l.work(l.collect(nil, t))
			continue
		default:
		}
		select {
		case t := <-l.queue:
			l.work(l.collect(nil, t))
		case <-l.s.stopping:
			if len(l.queue) == 0 {
				return
			}
		}
	}
}

// collect adds everything that waits, up to the size of a round.
func (l *lane) collect(tasks []*task, more ...*task) []*task {
	tasks = append(tasks, more...)
	for len(tasks) < l.s.opt.Round {
		select {
		case t := <-l.queue:
			tasks = append(tasks, t)
		default:
			return tasks
		}
	}
	return tasks
}

// poison is a failure that one task of a round brought about.
type poison struct {
	task *task
	err  error
}

func (p *poison) Error() string { return "authority: " + p.err.Error() }
func (p *poison) Unwrap() error { return p.err }

// serve decides tasks in sequence until each has its outcome.
func (l *lane) serve(tasks []*task) {
	began := time.Now()
	for attempt := 0; len(tasks) > 0; attempt++ {
		r := newRound(l)
		ctx, cancel := context.WithTimeout(context.Background(), roundPatience)
		err := r.run(ctx, tasks)
		cancel()
		if errors.Is(err, events.ErrIndeterminate) {
			err = l.settle(r, err)
		}
		if err == nil {
			l.s.stats.rounds.Add(1)
			r.finish()
			tasks, attempt, began = tasks[r.taken():], -1, time.Now()
			continue
		}
		r.drop()
		var bad *poison
		var refusal *protocol.Error
		switch {
		case errors.As(err, &bad):
			l.s.log.Error("Command cannot be decided", "kind", bad.task.env.Kind, "group", bad.task.env.GroupID, "err", bad.err)
			bad.task.fail(protocol.Internal(bad.err))
			tasks = without(tasks, bad.task)
		case moved(err):
			l.s.stats.redecided.Add(1)
			if attempt >= raceAttempts {
				fail(tasks, protocol.NewError(protocol.CodeBackpressure, "").WithRetryAfter(retryAfterMs).WithCause(err))
				return
			}
			if attempt > 2 {
				time.Sleep(time.Duration(rand.Int64N(int64(min(attempt, 20)) * int64(time.Millisecond)))) //nolint:gosec // spread only
			}
		case errors.Is(err, events.ErrUnavailable), errors.Is(err, errNotCurrent):
			if time.Since(began) > lanePatience {
				fail(tasks, protocol.Internal(err))
				return
			}
			time.Sleep(50 * time.Millisecond)
		case errors.Is(err, events.ErrIndeterminate):
			fail(tasks, protocol.Internal(err))
			return
		case errors.As(err, &refusal) && (attempt < cardAttempts || r.taken() == 1):
			// The Registry refuses under its lock what was fine a moment ago.
			if attempt >= cardAttempts {
				l.s.auditor.post(tasks[0].audit(refusal, r.now))
				tasks[0].fail(refusal)
				tasks = tasks[1:]
			}
		case len(tasks) > 1:
			// One of them is more than the database takes: find out which.
			l.s.log.Error("round failed, split", "tasks", len(tasks), "err", err)
			half := len(tasks) / 2
			l.serve(tasks[:half])
			l.serve(tasks[half:])
			return
		default:
			l.s.log.Error("Command cannot be committed", "kind", tasks[0].env.Kind, "group", tasks[0].env.GroupID, "err", err)
			fail(tasks, protocol.Internal(err))
			return
		}
	}
}

// moved reports that a condition of the round was outdated: decided again, it
// will be right.
func moved(err error) bool {
	return errors.Is(err, events.ErrHeadMoved) || errors.Is(err, events.ErrReceiptExists) ||
		errors.Is(err, events.ErrSessionMoved) || errors.Is(err, events.ErrAdmissionExists) || errors.Is(err, events.ErrRegistryMoved)
}

// settle finds out what became of a commit whose answer got lost: nil when it
// happened, a reason to decide again when it did not, ErrIndeterminate when even
// that cannot be learned in time.
func (l *lane) settle(r *round, lost error) error {
	l.s.stats.settled.Add(1)
	l.s.log.Warn("commit without answer", "tasks", len(r.tasks), "err", lost)
	ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
	defer cancel()
	for {
		committed, err := l.s.store.Settle(ctx, r.attempt)
		switch {
		case err == nil && committed:
			return nil
		case err == nil:
			return fmt.Errorf("%w: %w", events.ErrHeadMoved, lost)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", events.ErrIndeterminate, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (t *task) fail(err *protocol.Error) { t.done <- outcome{err: err} }

func fail(tasks []*task, err *protocol.Error) {
	for _, t := range tasks {
		own := *err
		t.fail(&own)
	}
}

func without(tasks []*task, gone *task) []*task {
	out := make([]*task, 0, len(tasks))
	for _, t := range tasks {
		if t != gone {
			out = append(out, t)
		}
	}
	return out
}
