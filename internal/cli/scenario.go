package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/scenario"
)

// playOptions are the flags of mw demo --scenario.
type playOptions struct {
	scenario, stack, data string
	seed                  uint64
	limit                 time.Duration
}

// play plays a scenario on a server of its own or on a running one.
func (a *App) play(ctx context.Context, o playOptions) error {
	if o.scenario != "two-missions" {
		return Usagef("there is no scenario %q; there is two-missions", o.scenario)
	}
	run := func(ctx context.Context, devFile string) error {
		stack, err := client.ReadDevStack(devFile)
		if err != nil {
			return Unavailable(err)
		}
		if err := answers(ctx, stack); err != nil {
			return Unavailable(fmt.Errorf("nothing answers at %s (%w); is mw dev running?", stack.AuthorityURL, err))
		}
		out, columns := a.Out, 0
		if a.JSON {
			out = io.Discard
		} else {
			columns = width(out)
		}
		report, err := scenario.TwoMissions(ctx, scenario.Options{
			Stack: stack, Seed: o.seed, Out: out, Columns: columns, Color: isTerminal(out), Limit: o.limit,
		})
		if err != nil {
			return err
		}
		if a.JSON {
			if err := a.PrintJSON(report); err != nil {
				return err
			}
		}
		if !report.OK {
			return ErrSilent
		}
		return nil
	}
	if o.stack != "" {
		return run(ctx, o.stack)
	}
	return a.withOwnStack(ctx, o.data, run)
}

// width is that of a terminal, 0 for everything else.
func width(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return columns
}
