package cli

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/verify"
)

func newVerifyCommand(app *App) *cobra.Command {
	var database bool
	var group, stack string
	var pins []string
	cmd := &cobra.Command{
		Use:   "verify BUNDLE|--database",
		Short: "Recompute everything from the signed log and print what differs",
		Long: `Verify BUNDLE checks an audit bundle (mw export) and needs nothing else: no server, no
database, no configuration. It prints every problem with the line of the file it is in.
The keys come with the bundle; --pin names those that you know from elsewhere.

Verify --database reads one snapshot of a database and makes everything again from the signed
Events and Commands and the Registry's keys: sequences, signatures (all six stages),
First-Admission Records, receipts, aggregate revisions, heads, timers, Policy Logs,
projections, snapshots, Agent Cards and Extension Profiles. It prints one line per difference, with Group and sequence,
then a line that counts; it exits 1 when anything differs. A server may be at work.`,
		Example: "  mw verify group.mwbundle\n  mw verify --database --database-url postgres://…\n  mw verify --database --stack .data/dev.json",
		Args:    cobra.MaximumNArgs(1),
	}
	app.UseSettings(cmd, "databaseUrl", "logLevel", "logFormat")
	cmd.Flags().BoolVar(&database, "database", false, "verify the database of --database-url")
	cmd.Flags().StringVar(&stack, "stack", "", "dev.json of a running dev stack, for its database")
	cmd.Flags().StringVar(&group, "group", "", "only this Group")
	cmd.Flags().StringArrayVar(&pins, "pin", nil, "KEYID=PUBLICKEY (base64url) of a Group Authority that must have sealed the bundle")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case database == (len(args) == 1):
			return Usagef("say what to verify, a BUNDLE or --database; see %s --help", cmd.CommandPath())
		case !database:
			return app.verifyBundle(cmd, args[0], pins)
		}
		url, err := app.databaseOf(stack)
		if err != nil {
			return err
		}
		return app.verifyDatabase(cmd.Context(), url, group)
	}
	return cmd
}

// verifyDatabase verifies a database, or one Group in it, and prints the report.
func (a *App) verifyDatabase(ctx context.Context, url, group string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return Usagef("the database URL cannot be used")
	}
	defer pool.Close()
	report, err := verify.Database(ctx, pool, verify.Options{Group: group})
	if err != nil {
		return databaseError(err)
	}
	if group != "" && report.Groups == 0 {
		return fmt.Errorf("there is no Group %s", group)
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
