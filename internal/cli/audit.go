package cli

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/events"
)

func newAuditCommand(app *App) *cobra.Command {
	var filter events.AuditFilter
	var since time.Duration
	var stack string
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Find why Commands were refused, from the protected audit records",
		Long: `List protected audit records, the latest first: the step and, for a signature that
was not accepted, the verification stage and the reason that its sender was not
told. It reads the database; no service gives these records out.`,
		Example: "  mw audit --stack .data/dev.json --action urn:uuid:…\n  mw audit --hash sha256:… --json",
		Args:    cobra.NoArgs,
	}
	app.UseSettings(cmd, "databaseUrl", "logLevel", "logFormat")
	cmd.Flags().StringVar(&stack, "stack", "", "dev.json of a running dev stack, for its database")
	cmd.Flags().StringVar(&filter.GroupID, "group", "", "only this Group")
	cmd.Flags().StringVar(&filter.ActorID, "actor", "", "only Commands of this Principal")
	cmd.Flags().StringVar(&filter.ActionID, "action", "", "only this Action ID")
	cmd.Flags().StringVar(&filter.Hash, "hash", "", "only the Command with this signing hash, or the body with this hash")
	cmd.Flags().DurationVar(&since, "since", 0, "only the last span of time, such as 1h")
	cmd.Flags().IntVar(&filter.Limit, "limit", 100, "most records")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		url, err := app.databaseOf(stack)
		if err != nil {
			return err
		}
		if since > 0 {
			filter.Since = time.Now().Add(-since)
		}
		pool, err := pgxpool.New(cmd.Context(), url)
		if err != nil {
			return Usagef("the database URL cannot be used")
		}
		defer pool.Close()
		records, err := events.FindAudits(cmd.Context(), pool, filter)
		if err != nil {
			return databaseError(err)
		}
		if app.JSON {
			return app.PrintJSON(records)
		}
		w := tabwriter.NewWriter(app.Out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "TIME\tSTEP\tSTAGE\tCODE\tREASON\tKIND\tACTION")
		for _, r := range records {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.RecordedAt.Format("2006-01-02T15:04:05.000Z"), r.Step, r.Stage, r.Code, r.Reason, r.Kind, r.ActionID)
		}
		return w.Flush()
	}
	return cmd
}

// databaseOf is the database of a dev stack, or the configured one.
func (a *App) databaseOf(stack string) (string, error) {
	url := a.Settings.DatabaseURL
	if stack != "" {
		dev, err := client.ReadDevStack(stack)
		if err != nil {
			return "", Unavailable(err)
		}
		url = dev.DatabaseURL
	}
	if url == "" {
		return "", Usagef("no database is named: give --stack, --database-url or MW_DATABASE_URL")
	}
	return url, nil
}
