// Package cli is the mw command line.
//
// Each command has its own file with a constructor newXCommand(app) that is
// listed in newRoot. Commands translate: they read flags, call the package that
// does the work, and print. Rules that a script may rely on:
//
//   - Standard output carries the result and nothing else; with --json it is one
//     JSON value (or one per line where a command streams). Words for people, and
//     errors, go to standard error.
//   - The exit codes are those of ExitCode, the same for every command.
//   - Every flag has an environment variable: MW_ and the flag's name in capitals
//     with underscores. A flag that is given wins.
//   - A secret is never printed and never taken from an argument that other
//     users of the machine could read, unless the user gives it there.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/missionweave/server/internal/config"
)

// Exit codes of mw.
const (
	ExitOK          = 0   // it worked
	ExitFailure     = 1   // it ran and found or met a failure
	ExitUsage       = 2   // wrong arguments, flags or settings; nothing was done
	ExitUnavailable = 3   // a server it needs cannot be reached
	ExitIncomplete  = 4   // all that could be done worked, and not all that was asked for could be done
	ExitInterrupted = 130 // ended by an interrupt or termination signal before it was done
)

const exitCodeHelp = `Exit codes: 0 it worked · 1 it ran and met a failure · 2 wrong arguments or
settings, nothing was done · 3 a server it needs cannot be reached · 4 what could be
done worked, and not all that was asked for could be done · 130 interrupted.
Every flag can be given as environment variable MW_NAME, a flag wins.`

// ErrUsage marks errors of arguments and flags (exit code 2).
var ErrUsage = errors.New("usage")

// ErrUnavailable marks errors of a server that cannot be reached (exit code 3).
var ErrUnavailable = errors.New("unavailable")

// Usagef is an error for ExitUsage.
func Usagef(format string, args ...any) error {
	return &marked{err: fmt.Errorf(format, args...), mark: ErrUsage}
}

// Unavailable marks err for ExitUnavailable; nil stays nil.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &marked{err: err, mark: ErrUnavailable}
}

// ErrIncomplete marks what could only be done in part (exit code 4).
var ErrIncomplete = errors.New("incomplete")

// Incomplete marks err for ExitIncomplete.
func Incomplete(err error) error { return &marked{err: err, mark: ErrIncomplete} }

// marked adds a class to an error without adding words to it.
type marked struct{ err, mark error }

func (m *marked) Error() string   { return m.err.Error() }
func (m *marked) Unwrap() []error { return []error{m.err, m.mark} }

// App is what the commands share.
type App struct {
	In       io.Reader
	Out, Err io.Writer
	Environ  []string // as os.Environ

	// JSON is the --json flag.
	JSON bool
	// Settings and Log are set before a command with UseSettings runs.
	Settings *config.Settings
	Log      *slog.Logger

	// program runs mw as a program of its own; nil is this program.
	program func(args ...string) *exec.Cmd

	loader *config.Loader
}

// NewApp is an App on the process's own streams and environment.
func NewApp() *App {
	return &App{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ()}
}

// Main runs mw with the process's arguments and returns the exit code. The
// first interrupt or termination signal cancels the command's context so that
// it can stop cleanly; a second one ends the process at once.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // restores the default action for a second signal
	return NewApp().Run(ctx, os.Args[1:])
}

// Run runs one command line and returns its exit code.
func (a *App) Run(ctx context.Context, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	return a.execute(ctx, root)
}

// execute runs a command tree on the App's streams.
func (a *App) execute(ctx context.Context, root *cobra.Command) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	err := root.ExecuteContext(ctx)
	code := exitCode(ctx, err)
	switch {
	case code == ExitInterrupted:
		fmt.Fprintln(a.Err, "mw: interrupted")
	case err != nil && !errors.Is(err, ErrSilent):
		fmt.Fprintf(a.Err, "mw: %v\n", err)
	}
	return code
}

// needsSubcommand runs a command that only groups others: forgetting which one was
// meant is a fault of usage everywhere.
func needsSubcommand(cmd *cobra.Command, _ []string) error {
	return Usagef("say what to do; see %s --help", cmd.CommandPath())
}

// ErrSilent is a failure about which everything was said already.
var ErrSilent = errors.New("failed")

func exitCode(ctx context.Context, err error) int {
	var setting *config.Error
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrUsage), errors.As(err, &setting):
		return ExitUsage
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return ExitInterrupted
	case errors.Is(err, ErrUnavailable):
		return ExitUnavailable
	case errors.Is(err, ErrIncomplete):
		return ExitIncomplete
	default:
		return ExitFailure
	}
}

// newRoot lists every command.
func newRoot(app *App) *cobra.Command {
	root := &cobra.Command{
		Use:           "mw",
		Short:         "Run and use a MissionWeave server",
		Long:          "mw runs a MissionWeave server and talks to one.\n\n" + exitCodeHelp,
		Version:       readVersion().String(),
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return app.prepare(cmd)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usagef("%w; see %s --help", err, cmd.CommandPath())
	})
	root.PersistentFlags().BoolVar(&app.JSON, "json", false, "print the result as JSON")
	root.AddCommand(
		newDevCommand(app),
		newDemoCommand(app),
		newMCPCommand(app),
		newServeCommand(app),
		newInitCommand(app),
		newMigrateCommand(app),
		newKeysCommand(app),
		newSignCommand(app),
		newMissionCommand(app),
		newApprovalsCommand(app),
		newWatchCommand(app),
		newReplayCommand(app),
		newConfigCommand(app),
		newDoctorCommand(app),
		newHealthcheckCommand(app),
		newConformanceCommand(app),
		newVerifyCommand(app),
		newExportCommand(app),
		newEvidenceCommand(app),
		newRebuildCommand(app),
		newAuditCommand(app),
		newManifestCommand(app),
		newBenchCommand(app),
		newVersionCommand(app),
	)
	markUsageErrors(root)
	return root
}

// markUsageErrors makes wrong arguments exit with ExitUsage. Cobra's own error
// for them has no type.
func markUsageErrors(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return Usagef("%w; see %s --help", err, cmd.CommandPath())
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		markUsageErrors(sub)
	}
}

// settingsAnnotation marks commands that read Settings.
const settingsAnnotation = "missionweave.settings"

// UseSettings gives cmd a flag for each named setting, or for all without
// names, and fills app.Settings and app.Log before it runs.
func (a *App) UseSettings(cmd *cobra.Command, names ...string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[settingsAnnotation] = "yes"
	loader := config.NewLoader()
	loader.Bind(cmd.Flags(), names...)
	previous := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		a.loader = loader
		if err := loader.Load(a.Environ); err != nil {
			return err
		}
		a.Settings, a.Log = loader.Settings, newLogger(a.Err, loader.Settings)
		if previous != nil {
			return previous(cmd, args)
		}
		return nil
	}
}

// prepare fills the flags that were not given from the environment. Settings
// have their own loader, which knows more sources.
func (a *App) prepare(cmd *cobra.Command) error {
	settings := map[string]bool{config.FileFlag: true}
	if cmd.Annotations[settingsAnnotation] != "" {
		for _, f := range config.New().Fields() {
			settings[f.Flag()] = true
		}
	}
	var err error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || settings[f.Name] || f.Name == "help" || f.Name == "version" {
			return
		}
		name := config.EnvPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := a.lookupEnv(name)
		if !ok || value == "" {
			return
		}
		if setErr := cmd.Flags().Set(f.Name, value); setErr != nil {
			err = errors.Join(err, Usagef("environment %s: %w", name, setErr))
		}
	})
	return err
}

func (a *App) lookupEnv(name string) (string, bool) {
	value, ok := "", false
	for _, kv := range a.Environ { // the last one counts, as for a new process
		if n, v, has := strings.Cut(kv, "="); has && n == name {
			value, ok = v, true
		}
	}
	return value, ok
}

// PrintJSON writes v as one indented JSON value.
func (a *App) PrintJSON(v any) error {
	enc := json.NewEncoder(a.Out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// newLogger logs to w in the form that the settings ask for.
func newLogger(w io.Writer, s *config.Settings) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(s.LogLevel)) // checked by the settings
	opts := &slog.HandlerOptions{Level: level}
	if s.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
