package cli

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/matrix"
)

func newMatrixCommand(app *App) *cobra.Command {
	var stack, data, results string
	var kinds []string
	cmd := &cobra.Command{
		Use:   "matrix",
		Short: "Play the behavioural conformance matrix against a server",
		Long: `Matrix plays, with real signatures over HTTP and WebSocket, what the Command profile
asks of every Command: that it is accepted, and each way in which it must be refused,
leaving nothing behind. From the Events it reads it tells which Event kinds were
emitted, valid and folded, and which rows of the transition tables were taken.

It prints one line of counts; the totals come from the tables. Then it prints one line
per case that failed, one per row that has no case, and one per row that no client can
bring about, with the reason. It exits 1 when a case failed or a row has none.

Without --stack it starts a server of its own. A server that is given is told apart by
its policy: rows that its policy keeps out of reach are listed as missing.`,
		Args: cobra.NoArgs,
	}
	app.UseSettings(cmd)
	cmd.Flags().StringVar(&stack, "stack", "", "dev.json of a running dev stack")
	cmd.Flags().StringVar(&data, "data", "", "folder for the server of its own; by default one that is removed afterwards")
	cmd.Flags().StringSliceVar(&kinds, "kind", nil, "only these Command kinds")
	cmd.Flags().StringVar(&results, "results", "", "write the results to this file, from which docs/conformance.md is made")
	cmd.MarkFlagsMutuallyExclusive("results", "kind")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		run := func(ctx context.Context, devFile string) error { return app.matrix(ctx, devFile, results, kinds) }
		if stack != "" {
			return run(cmd.Context(), stack)
		}
		matrix.Tune(app.Settings)
		return app.withOwnStack(cmd.Context(), data, run)
	}
	return cmd
}

func (a *App) matrix(ctx context.Context, devFile, results string, kinds []string) error {
	stack, err := client.ReadDevStack(devFile)
	if err != nil {
		return Unavailable(err)
	}
	report, err := matrix.Run(ctx, matrix.Options{Stack: stack, Kinds: kinds, Plays: 8})
	if err != nil {
		return err
	}
	if results != "" {
		b, err := report.Results()
		if err != nil {
			return err
		}
		if err := os.WriteFile(results, b, 0o644); err != nil { //nolint:gosec // results are public
			return Unavailable(err)
		}
	}
	if a.JSON {
		err = a.PrintJSON(report)
	} else {
		_, err = report.WriteTo(a.Out)
	}
	if err == nil && !report.OK() {
		return ErrSilent
	}
	return err
}
