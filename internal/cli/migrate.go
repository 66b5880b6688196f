package cli

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/migrate"
)

// migrationRun is the JSON result of mw migrate up and status.
type migrationRun struct {
	Applied []migrate.Migration `json:"applied"`
	Pending []migrate.Migration `json:"pending"`
}

func newMigrateCommand(app *App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database to this program's schema",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return Usagef("say up or status; see %s --help", cmd.CommandPath())
		},
	}
	cmd.AddCommand(newMigrateUpCommand(app), newMigrateStatusCommand(app))
	return cmd
}

func newMigrateUpCommand(app *App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Apply every pending migration; safe from several replicas at once",
		Args:  cobra.NoArgs,
	}
	useDatabase(app, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		applied, err := migrate.Up(cmd.Context(), app.Settings.DatabaseURL)
		if err != nil {
			return databaseError(err)
		}
		if app.JSON {
			return app.PrintJSON(migrationRun{Applied: applied, Pending: []migrate.Migration{}})
		}
		for _, m := range applied {
			fmt.Fprintln(app.Out, "applied", m.Name)
		}
		if len(applied) == 0 {
			fmt.Fprintln(app.Out, "nothing to apply")
		}
		return nil
	}
	return cmd
}

func newMigrateStatusCommand(app *App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the migrations; exits 1 when some are pending",
		Args:  cobra.NoArgs,
	}
	useDatabase(app, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all, err := migrate.Status(cmd.Context(), app.Settings.DatabaseURL)
		if err != nil {
			return databaseError(err)
		}
		run := migrationRun{Applied: []migrate.Migration{}, Pending: []migrate.Migration{}}
		for _, m := range all {
			if m.AppliedAt == nil {
				run.Pending = append(run.Pending, m)
			} else {
				run.Applied = append(run.Applied, m)
			}
		}
		if err := printMigrations(app, run); err != nil {
			return err
		}
		if len(run.Pending) > 0 {
			return ErrSilent
		}
		return nil
	}
	return cmd
}

func printMigrations(app *App, run migrationRun) error {
	if app.JSON {
		return app.PrintJSON(run)
	}
	w := tabwriter.NewWriter(app.Out, 0, 0, 2, ' ', 0)
	for _, m := range run.Applied {
		fmt.Fprintf(w, "%s\tapplied %s\n", m.Name, m.AppliedAt.UTC().Format(time.RFC3339))
	}
	for _, m := range run.Pending {
		fmt.Fprintf(w, "%s\tpending\n", m.Name)
	}
	return w.Flush()
}

// useDatabase gives cmd the settings it needs to reach the database, and
// refuses to run without an address.
func useDatabase(app *App, cmd *cobra.Command) {
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if app.Settings.DatabaseURL == "" {
			return Usagef("no database is named: give --database-url or MW_DATABASE_URL")
		}
		return nil
	}
	app.UseSettings(cmd, "databaseUrl", "logLevel", "logFormat")
}

// databaseError tells a database that cannot be reached from one that refused.
func databaseError(err error) error {
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) && !errors.Is(err, context.Canceled) {
		return Unavailable(err)
	}
	return err
}
