package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/examples"
	"github.com/missionweave/server/internal/demo"
	"github.com/missionweave/server/internal/missionfile"
	"github.com/missionweave/server/internal/server"
)

func newDemoCommand(app *App) *cobra.Command {
	var mission, stack, address, data string
	var limit time.Duration
	var play playOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Carry out a Mission from its creation to human Approval",
		Long: `Read a Mission from a YAML file and carry it out on a real server: as
MissionOwner, Coordinator and Workers, each with a key and a client of its own,
over HTTP and WebSocket. Every step is a signed Command, and everybody knows only
the Events that the server sends. Anything unexpected ends the run with exit code
1 and says what was expected.

With --scenario two-missions it plays two Missions that run at the same time and
share a Worker: every claim is a named check with what proves it, and the exit code
is 1 when one does not hold.

--faults adds the failure suite: Events and Commands delivered twice, a Worker and
the services killed with SIGKILL in the middle of their work, the database and NATS
taken away, Coordinators and sessions replaced, leases expired, a human and an
urgent arrival in between. --seed decides in which order the faults come, which
Mission each one hits and which victim it takes there; the report's "course" says
what that was. Ids, times and the interleaving of what runs at once are not the
seed's. On a server of somebody else's (--stack, --url) the services, the database
and NATS are not broken: those faults are listed as "not run", are counted apart
from the checks, and the exit code is then 4 instead of 0.

Without --stack it starts a server of its own, on a private PostgreSQL and NATS,
verifies the database afterwards, and stops it.`,
		Args: cobra.NoArgs,
	}
	app.UseSettings(cmd)
	cmd.Flags().StringVar(&mission, "mission", "", "Mission file, by default "+examples.ReleaseName)
	cmd.Flags().StringVar(&stack, "stack", "", "dev.json of a running server")
	cmd.Flags().StringVar(&address, "url", "", "Authority of a running server, when it is reached elsewhere than --stack says; --stack still says whose keys to use")
	cmd.Flags().StringVar(&data, "data", "", "folder for the server of its own; by default one that is removed afterwards")
	cmd.Flags().DurationVar(&limit, "limit", 5*time.Minute, "longest time the Mission may take")
	cmd.Flags().StringVar(&play.scenario, "scenario", "", "two-missions instead of a Mission file")
	cmd.Flags().BoolVar(&play.faults, "faults", false, "with --scenario: break everything that can break, and check that it recovers; exit code 4 when something could not be broken here")
	cmd.Flags().Uint64Var(&play.seed, "seed", 1, "course of the failure suite: the same seed plays the same faults in the same order on the same victims")
	cmd.AddCommand(newDemoWorkerCommand(app))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if address != "" && stack == "" {
			return Usagef("--url needs --stack: an address does not say whose keys to use")
		}
		if play.scenario != "" && mission != "" {
			return Usagef("--mission and --scenario exclude each other")
		}
		if play.scenario == "" && (play.faults || cmd.Flags().Changed("seed")) {
			return Usagef("--faults and --seed belong to --scenario")
		}
		if play.scenario != "" {
			play.stack, play.address, play.data, play.limit = stack, address, data, limit
			return app.play(cmd.Context(), play)
		}
		file, err := loadMission(mission)
		if err != nil {
			return Usagef("%w", err)
		}
		run := func(ctx context.Context, devFile string) error {
			return app.demo(ctx, devFile, address, file, limit)
		}
		if stack != "" {
			return run(cmd.Context(), stack)
		}
		return app.withOwnStack(cmd.Context(), data, run)
	}
	return cmd
}

func loadMission(path string) (*missionfile.File, error) {
	if path == "" {
		return missionfile.Parse(examples.ReleaseName, examples.Release)
	}
	return missionfile.Load(path)
}

// stackAt reads dev.json; address, unless it is empty, is where the Authority is.
func stackAt(devFile, address string) (*client.DevStack, error) {
	stack, err := client.ReadDevStack(devFile)
	if err != nil {
		return nil, Unavailable(err)
	}
	if address == "" {
		return stack, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/")+u.RawQuery+u.Fragment != "" || u.User != nil {
		return nil, Usagef("--url takes http://HOST:PORT or https://HOST:PORT")
	}
	stack.AuthorityURL = u.Scheme + "://" + u.Host
	stack.WSURL = "ws" + strings.TrimPrefix(stack.AuthorityURL, "http") + "/ws"
	return stack, nil
}

func (a *App) demo(ctx context.Context, devFile, address string, file *missionfile.File, limit time.Duration) error {
	stack, err := stackAt(devFile, address)
	if err != nil {
		return err
	}
	if err := answers(ctx, stack); err != nil {
		return Unavailable(fmt.Errorf("nothing answers at %s (%w); is mw dev running?", stack.AuthorityURL, err))
	}
	out := a.Out
	if a.JSON {
		out = io.Discard
	}
	summary, err := demo.Run(ctx, demo.Options{Stack: stack, File: file, Out: out, Color: isTerminal(out), Limit: limit})
	if err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(summary)
	}
	return nil
}

// answers asks the server once. Waiting for one that is away is right only when
// a Mission has begun.
func answers(ctx context.Context, stack *client.DevStack) error {
	identity, err := stack.Identity("mission-owner")
	if err != nil {
		return err
	}
	c, err := stack.Connect(identity)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return c.Probe(ctx)
}

// withOwnStack runs f against a dev stack that lives only as long as f.
func (a *App) withOwnStack(ctx context.Context, data string, f func(ctx context.Context, devFile string) error) (err error) {
	if data == "" {
		if data, err = os.MkdirTemp("", "missionweave-demo-"); err != nil {
			return fmt.Errorf("make a folder for the server: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	}
	a.Settings.DataDir = data
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	_, _ = fmt.Fprintln(a.Err, "starting a server of its own (PostgreSQL, NATS, three services)")
	// The timeline is what the user came for: only warnings come in between.
	quiet := *a.Settings
	if quiet.LogLevel == "info" {
		quiet.LogLevel = "warn"
	}
	dev, err := server.OpenDev(ctx, server.DevOptions{Settings: a.Settings, Log: newLogger(a.Err, &quiet)})
	if err != nil {
		return devError(ctx, err)
	}
	serving, end := context.WithCancel(ctx)
	defer end()
	ready, stopped := make(chan struct{}), make(chan error, 1)
	go func() { stopped <- dev.Run(serving, func() error { close(ready); return nil }) }()
	select {
	case err := <-stopped:
		return err
	case <-ready:
	}
	err = f(ctx, dev.Path)
	if err == nil && !a.JSON {
		err = a.verifyDatabase(ctx, dev.File.DatabaseURL, "")
	}
	end()
	return errors.Join(err, <-stopped)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == ""
}
