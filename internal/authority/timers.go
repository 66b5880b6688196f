package authority

import (
	"context"
	"errors"
	"time"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
)

// Timers (COMMANDS.md 7.8). What expires is already without effect at its
// expiry; the sweeper only records the fact, once, through the same lane and
// compare-and-set as any Command. Each Group has at most one row that says when
// to look at it: what its state says at its head, and written in the transaction
// that moves the head.

// sweepTask asks a lane to look at a Group's timers.
type sweepTask struct{ groupID string }

// sweep writes the expiries of one Group that are due.
func (r *round) sweep(t *task) error {
	r.s.stats.sweeps.Add(1)
	gr, ok := r.groups[t.sweep.groupID]
	if !ok {
		return nil
	}
	decision := groups.Sweep(r.world, gr.State)
	if err := r.seal(decision.Sign); err != nil {
		return &poison{t, err}
	}
	for i := range decision.Drafts {
		if _, err := r.applyDraft(&decision.Drafts[i]); err != nil {
			return &poison{t, err}
		}
	}
	r.s.stats.timerEvents.Add(int64(len(decision.Drafts)))
	return nil
}

// Sweep records every expiry that is due in all Groups, page by page to the end,
// and returns how many Groups were looked at. Several processes may sweep at
// once: a fact that another one wrote first is not written again.
func (s *Service) Sweep(ctx context.Context) (looked int, err error) {
	const page = 200
	after := events.DueGroup{}
	for {
		due, err := s.store.DueGroups(ctx, after, page)
		if err != nil {
			return looked, err
		}
		tasks := make([]*task, 0, len(due))
		for _, g := range due {
			t := &task{sweep: &sweepTask{g.GroupID}, tree: g.TreeID, done: make(chan outcome, 1)}
			select {
			case s.laneOf(g.TreeID).queue <- t:
				tasks = append(tasks, t)
			case <-s.stopping:
				return looked, errStopping
			case <-ctx.Done():
				return looked, ctx.Err()
			}
		}
		for _, t := range tasks {
			select {
			case o := <-t.done:
				if o.err != nil {
					err = errors.Join(err, o.err)
				}
			case <-ctx.Done():
				return looked, ctx.Err()
			case <-s.stopped:
				return looked, errStopping
			}
		}
		looked += len(due)
		if err != nil || len(due) < page {
			return looked, err
		}
		after = due[len(due)-1]
	}
}

var errStopping = errors.New("authority: stopping")

// RunSweeper sweeps every interval until the context ends.
func (s *Service) RunSweeper(ctx context.Context, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("sweep of timers not finished", "err", err)
			}
		}
	}
}
