// Package demo carries out a Mission from a Mission file against a live
// server: a MissionOwner, a Coordinator and Workers, each with its own key and
// its own client, who know of each other only what the server tells them.
//
// It is the newcomer's first look and an acceptance test at once. Therefore
// nothing is assumed to have worked: every actor decides from the Events it
// was sent, a refusal that was not expected ends the run, and at the end the
// whole log is read again from the first Event and checked.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/missionfile"
)

// Options says what to carry out, where, and who watches.
type Options struct {
	Stack *client.DevStack
	File  *missionfile.File
	// Out receives the timeline and the summary.
	Out io.Writer
	// Color marks kinds and states; off when the output is not a terminal.
	Color bool
	// Limit ends a run that does not come to its end.
	Limit time.Duration
}

// Deviation is a run that did not go as it should.
type Deviation struct {
	Expected string
	Got      error
}

func (d *Deviation) Error() string { return "expected " + d.Expected + ", but: " + d.Got.Error() }
func (d *Deviation) Unwrap() error { return d.Got }

func expect(what string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Deviation](err); ok {
		return err
	}
	return &Deviation{Expected: what, Got: err}
}

// Run carries the Mission out and returns what happened. The error is a
// *Deviation when the server did something else than the protocol says.
func Run(ctx context.Context, opt Options) (*Summary, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, opt.Limit,
		fmt.Errorf("the Mission was not finished within %s", opt.Limit))
	defer cancel()
	started := time.Now()
	line := newTimeline(opt.Out, opt.Color)
	cast, err := assemble(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer cast.close()
	line.cast(cast)
	ids := missionIDs{mission: client.NewID(), group: client.NewID()}
	plan := newPlan(opt.File, cast, ids, started)

	owner := &missionOwner{client: cast.owner, plan: plan, line: line}
	if err := owner.create(ctx); err != nil {
		return nil, err
	}
	// Everyone works until the MissionOwner has approved; then done ends them.
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	crew, work := errgroup.WithContext(work)
	crew.Go(func() error {
		err := owner.decide(work)
		if err == nil {
			stop(errFinished)
		}
		return err
	})
	crew.Go(func() error {
		return (&coordinator{member: member{client: cast.coordinator, plan: plan, line: line}}).work(work)
	})
	for _, w := range cast.workers {
		crew.Go(func() error {
			return (&worker{name: w.name, member: member{client: w.client, plan: plan, line: line}}).work(work)
		})
	}
	if err := crew.Wait(); err != nil && !errors.Is(context.Cause(work), errFinished) {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		return nil, expect("the Mission to reach its Approval", err)
	}
	summary, err := inspect(ctx, cast, plan)
	if err != nil {
		return nil, err
	}
	summary.Seconds = time.Since(started).Seconds()
	line.summary(summary)
	return summary, nil
}

// errFinished ends the actors when the Mission has been approved.
var errFinished = errors.New("the Mission is approved")
