package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/casefile"
	"github.com/missionweave/server/internal/manifest"
)

func newManifestCommand(app *App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "manifest",
		Short: "Check, compile, compare and try World Manifests",
		Long: `Manifest works on World Manifests without a server: files in the layout
worldmanifest/1, or in the scenario layout through an importer that reports what it
could not carry over. Only trace asks a server, for what it decided.`,
		Args: cobra.NoArgs,
		RunE: needsSubcommand,
	}
	cmd.AddCommand(
		newManifestCheckCommand(app), newManifestCompileCommand(app), newManifestResolveCommand(app),
		newManifestDiffCommand(app), newManifestSimulateCommand(app), newManifestCoverageCommand(app),
		newManifestTestCommand(app), newManifestTraceCommand(app),
	)
	return cmd
}

// maxTrace bounds a trace file in memory.
const maxTrace = 256 << 20

// readFile reads a file, or standard input for -, up to a size.
func (a *App) readFile(name string, limit int64) ([]byte, error) {
	in := a.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, Usagef("%w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	out, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(out)) > limit {
		return nil, Usagef("%s is larger than %d bytes", name, limit)
	}
	return out, nil
}

// readManifest reads and compiles a manifest. What is wrong with it was said when
// the error is ErrSilent.
func (a *App) readManifest(name string) (*manifest.Manifest, *manifest.Report, error) {
	source, err := a.readFile(name, manifest.MaxSourceBytes)
	if err != nil {
		return nil, nil, err
	}
	m, report, err := manifest.Parse(name, source)
	var invalid *manifest.Invalid
	if errors.As(err, &invalid) {
		if a.JSON {
			if err := a.PrintJSON(map[string]any{"valid": false, "faults": invalid.Faults}); err != nil {
				return nil, nil, err
			}
		}
		for i := range invalid.Faults {
			fmt.Fprintln(a.Err, invalid.Faults[i].String())
		}
		return nil, nil, ErrSilent
	}
	if err != nil {
		return nil, nil, err
	}
	return m, report, nil
}

func (a *App) tellReport(report *manifest.Report) {
	for i := range report.NotCarried {
		fmt.Fprintf(a.Err, "%s\n", report.NotCarried[i].String())
	}
}

func newManifestCheckCommand(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a manifest and print its version",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			m, report, err := app.readManifest(args[0])
			if err != nil {
				return err
			}
			if app.JSON {
				return app.PrintJSON(map[string]any{
					"valid": true, "version": m.Version(), "name": m.Name(), "layout": report.Layout, "notCarried": report.NotCarried,
					"actions": len(m.Actions()), "rules": m.RuleCount(),
				})
			}
			app.tellReport(report)
			_, err = fmt.Fprintf(app.Out, "%s %s: %d actions, %d rules\n", m.Version(), m.Name(), len(m.Actions()), m.RuleCount())
			return err
		},
	}
}

func newManifestCompileCommand(app *App) *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "compile FILE",
		Short: "Write the canonical compiled form of a manifest",
		Long: `Compile writes the canonical form, whose SHA-256 is the version, to standard output or
to --out. It is a manifest itself: compiling it again gives the same version.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			m, report, err := app.readManifest(args[0])
			if err != nil {
				return err
			}
			app.tellReport(report)
			fmt.Fprintf(app.Err, "version %s\n", m.Version())
			if out != "" {
				return os.WriteFile(out, m.Canonical(), 0o644) //nolint:gosec // a manifest is no secret
			}
			_, err = app.Out.Write(append(m.Canonical(), '\n'))
			return err
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "file to write to; empty for standard output")
	return cmd
}

func newManifestDiffCommand(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "diff FROM TO",
		Short: "Show what becomes allowed or denied between two manifests",
		Long: `Diff enumerates the space of actions, modes, trust contexts and named conditions, and
prints every place where the two decide otherwise. Predicates count as true or false.
It exits 1 when there is a difference.`,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			from, _, err := app.readManifest(args[0])
			if err != nil {
				return err
			}
			to, _, err := app.readManifest(args[1])
			if err != nil {
				return err
			}
			d := manifest.Compare(from, to)
			if app.JSON {
				err = app.PrintJSON(d)
			} else {
				err = printDiff(app.Out, d)
			}
			if err == nil && !d.Empty() {
				return ErrSilent
			}
			return err
		},
	}
}

func newManifestTestCommand(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "test CASES.json",
		Short: "Run a case file against the engine",
		Long: `Test runs the cases of a file. Manifest paths in it are relative to the file. It prints
passed/total and each miss, and exits 1 on a miss.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			source, err := app.readFile(args[0], maxTrace)
			if err != nil {
				return err
			}
			dir := filepath.Dir(args[0])
			report, err := casefile.Run(source, func(name string) ([]byte, error) {
				return app.readFile(filepath.Join(dir, filepath.FromSlash(name)), manifest.MaxSourceBytes)
			})
			if err != nil {
				return Usagef("%w", err)
			}
			if app.JSON {
				err = app.PrintJSON(report)
			} else {
				err = printCases(app.Out, report)
			}
			if err == nil && !report.OK() {
				return ErrSilent
			}
			return err
		},
	}
}

func printCases(w io.Writer, r *casefile.Report) error {
	if _, err := fmt.Fprintf(w, "%d/%d\n", r.Passed, r.Total); err != nil {
		return err
	}
	for i := range r.Misses {
		m := &r.Misses[i]
		fmt.Fprintf(w, "%s %s: want %s, got %s", m.ID, m.Name, m.Expected, m.Got)
		if m.Reason != "" {
			fmt.Fprintf(w, " (%s)", m.Reason)
		}
		fmt.Fprintln(w)
		for _, n := range m.Notes {
			fmt.Fprintf(w, "  %s\n", n)
		}
	}
	return nil
}
