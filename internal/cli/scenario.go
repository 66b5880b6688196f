package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/missionweave/server/client"
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

// playReport is the report of a play with what was found in the database after it.
type playReport struct {
	*scenario.Report
	// Database is "verified" when mw verify --database found no difference on the
	// play's own server, "different" when it did, and otherwise says why not.
	Database string `json:"database"`
}

// play plays a scenario on a server of its own or on a running one.
func (a *App) play(ctx context.Context, o playOptions) error {
	if o.scenario != "two-missions" {
		return Usagef("there is no scenario %q; there is two-missions", o.scenario)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if a.program == nil {
		a.program = func(args ...string) *exec.Cmd { return exec.Command(self, args...) } //nolint:gosec,noctx // it ends with the play
	}
	report := &playReport{Database: "not verified: it is not the play's own"}
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
		report.Report, err = scenario.TwoMissions(ctx, scenario.Options{
			Stack: stack, Seed: o.seed, Faults: o.faults, Machinery: machinery, Command: a.program,
			Out: out, Columns: columns, Color: isTerminal(out), Limit: o.limit,
		})
		if err != nil {
			return err
		}
		return ctx.Err() // what was cut short says nothing about the server
	}
	switch {
	case o.stack != "":
		err = run(ctx, o.stack, nil)
	case o.faults:
		err = a.withMachine(ctx, o.data, report, run)
	default:
		err = a.withOwnStack(ctx, o.data, func(ctx context.Context, devFile string) error { return run(ctx, devFile, nil) })
	}
	if err != nil {
		return err
	}
	return a.judge(report)
}

// judge prints the report for programs and makes an exit code of it.
func (a *App) judge(report *playReport) error {
	if a.JSON {
		if err := a.PrintJSON(report); err != nil {
			return err
		}
	}
	switch {
	case !report.OK, report.Database == "different":
		return ErrSilent
	case len(report.NotRun) > 0:
		return Incomplete(fmt.Errorf("%d checks hold, and %d of %d faults were not run here", report.Passed, len(report.NotRun), len(report.Course.Turns)))
	default:
		return nil
	}
}

// withMachine runs f against a server that f can break, and verifies what is left,
// whatever f found.
func (a *App) withMachine(ctx context.Context, data string, report *playReport, f func(context.Context, string, scenario.Machinery) error) (err error) {
	if data == "" {
		if data, err = os.MkdirTemp("", "missionweave-demo-"); err != nil {
			return fmt.Errorf("make a folder for the server: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	}
	_, _ = fmt.Fprintln(a.Err, "starting a server of its own that can be broken (PostgreSQL, NATS, three services)")
	server, err := machine.Start(ctx, machine.Options{
		Dir: data, Log: io.Discard, // it will complain, and rightly
		Command: a.program,
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
	report.Database = "verified"
	if err := a.verifyDatabase(ctx, server.DatabaseURL, ""); errors.Is(err, ErrSilent) {
		report.Database = "different"
	} else if err != nil {
		return err
	}
	return nil
}

// newDemoWorkerCommand is a Worker of the failure suite in a process of its own.
func newDemoWorkerCommand(app *App) *cobra.Command {
	var stack, keys, name string
	var slots int
	cmd := &cobra.Command{
		Use:    "worker",
		Short:  "Be a Worker of mw demo --faults, to be killed and started again",
		Args:   cobra.NoArgs,
		Hidden: true, // the play starts it
	}
	cmd.Flags().StringVar(&stack, "stack", "", "where the server is, as dev.json")
	cmd.Flags().StringVar(&keys, "keys", "", "folder of the Agent's key")
	cmd.Flags().StringVar(&name, "agent", "", "name of the Agent in that folder")
	cmd.Flags().IntVar(&slots, "slots", 1, "how much it carries out at once")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		file, err := client.ReadDevStack(stack)
		if err != nil {
			return Unavailable(err)
		}
		agent, err := file.Hire(cmd.Context(), client.Hiring{Name: name, Dir: keys})
		if err != nil {
			return err
		}
		defer agent.Close()
		return (&scenario.WorkerProcess{Client: agent, Slots: slots, In: app.In, Out: app.Out}).Run(cmd.Context())
	}
	return cmd
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
