package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/term"

	"github.com/missionweave/server/internal/scenario"
	"github.com/missionweave/server/internal/scenario/machine"
)

// playOptions are the flags of mw demo --scenario.
type playOptions struct {
	scenario, stack, address, data string
	seed                           uint64
	faults                         bool
	limit                          time.Duration
}

// play plays a scenario on a server of its own or on a running one.
func (a *App) play(ctx context.Context, o playOptions) error {
	if o.scenario != "two-missions" {
		return Usagef("there is no scenario %q; there is two-missions", o.scenario)
	}
	run := func(ctx context.Context, devFile string, machinery scenario.Machinery) error {
		stack, err := stackAt(devFile, o.address)
		if err != nil {
			return err
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
			Stack: stack, Seed: o.seed, Faults: o.faults, Machinery: machinery,
			Out: out, Columns: columns, Color: isTerminal(out), Limit: o.limit,
		})
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err // what was cut short says nothing about the server
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
	switch {
	case o.stack != "":
		return run(ctx, o.stack, nil)
	case o.faults:
		return a.withMachine(ctx, o.data, run)
	}
	return a.withOwnStack(ctx, o.data, func(ctx context.Context, devFile string) error { return run(ctx, devFile, nil) })
}

// withMachine runs f against a server that f can break, and verifies what is left.
func (a *App) withMachine(ctx context.Context, data string, f func(context.Context, string, scenario.Machinery) error) (err error) {
	if data == "" {
		if data, err = os.MkdirTemp("", "missionweave-demo-"); err != nil {
			return fmt.Errorf("make a folder for the server: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	_, _ = fmt.Fprintln(a.Err, "starting a server of its own that can be broken (PostgreSQL, NATS, three services)")
	server, err := machine.Start(ctx, machine.Options{
		Dir: data, Log: io.Discard, // it will complain, and rightly
		Command: func(args ...string) *exec.Cmd { return exec.Command(self, args...) }, //nolint:gosec,noctx // it ends with the play
	})
	if err != nil {
		return devError(ctx, err)
	}
	defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx))) }()
	if err := f(ctx, server.DevFile, server); err != nil {
		return err
	}
	if err := server.StopServices(); err != nil {
		return err
	}
	out := a.Out
	if a.JSON {
		a.Out = a.Err
		defer func() { a.Out = out }()
	}
	return a.verifyDatabase(ctx, server.DatabaseURL, "")
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
