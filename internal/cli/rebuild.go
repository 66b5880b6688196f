package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/verify"
)

func newRebuildCommand(app *App) *cobra.Command {
	var stack string
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Drop what is derived from the logs and make it again",
		Long: `Drop and rebuild, Group by Group, everything that follows from the signed Events:
projections, Policy Logs, timers and snapshots. The logs themselves are only read. A
server may be at work.`,
		Args: cobra.NoArgs,
	}
	app.UseSettings(cmd, "databaseUrl", "logLevel", "logFormat")
	cmd.Flags().StringVar(&stack, "stack", "", "dev.json of a running dev stack, for its database")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		url, err := app.databaseOf(stack)
		if err != nil {
			return err
		}
		store, err := events.Open(cmd.Context(), url, events.Options{})
		if err != nil {
			return databaseError(err)
		}
		defer store.Close()
		groups := 0
		err = verify.Rebuild(cmd.Context(), store, func(string) { groups++ })
		if err != nil {
			return databaseError(err)
		}
		if app.JSON {
			return app.PrintJSON(map[string]int{"groups": groups})
		}
		_, err = fmt.Fprintf(app.Out, "%d Groups rebuilt\n", groups)
		return err
	}
	return cmd
}
