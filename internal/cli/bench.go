package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/bench"
)

func newBenchCommand(app *App) *cobra.Command {
	options := bench.Options{Groups: []int{1, 100}, Clients: []int{1, 8, 32}, Duration: 3 * time.Second, NATS: true}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure signed Commands per second beside a bare batched insert",
		Long: `Bench starts an Authority on a private, durable PostgreSQL and has clients post signed
Messages, one after another each. Beside each number stands what the machine does in the
same run with the same bytes: a bare insert in transactions of the same size, and that
insert with one signature verified and one made for each row.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().IntSliceVar(&options.Groups, "groups", options.Groups, "numbers of Groups")
	cmd.Flags().IntSliceVar(&options.Clients, "clients", options.Clients, "numbers of clients")
	cmd.Flags().DurationVar(&options.Duration, "duration", options.Duration, "how long each cell runs")
	cmd.Flags().IntVar(&options.Lanes, "lanes", 0, "lanes of the Authority; 0 for its default")
	cmd.Flags().BoolVar(&options.NATS, "nats", true, "publish to NATS meanwhile")
	cmd.Flags().StringVar(&options.DataDir, "data", "", "folder of the database; empty for a temporary one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, n := range append(append([]int{}, options.Groups...), options.Clients...) {
			if n < 1 || n > 100_000 {
				return Usagef("--groups and --clients take numbers from 1 to 100000")
			}
		}
		if options.Duration < 100*time.Millisecond {
			return Usagef("--duration must be at least 100ms")
		}
		report, err := bench.Run(cmd.Context(), options, func(c bench.Cell) {
			fmt.Fprintf(app.Err, "%d Groups, %d clients: %.0f Commands/s\n", c.Groups, c.Clients, c.PerSecond)
		})
		if err != nil {
			return err
		}
		if app.JSON {
			return app.PrintJSON(report)
		}
		_, err = report.WriteTo(app.Out)
		return err
	}
	cmd.AddCommand(newBenchManifestCommand(app))
	cmd.AddCommand(newBenchGrowthCommand(app), newBenchDeliveryCommand(app), newBenchSubscribersCommand(app))
	return cmd
}

func newBenchGrowthCommand(app *App) *cobra.Command {
	options := bench.GrowthOptions{Options: bench.Options{NATS: true}, Events: 100_000, WorkItems: 10_000}
	cmd := &cobra.Command{
		Use:   "growth",
		Short: "Measure whether a Command costs more in a large Group",
		Long: `Growth posts the same Commands to a small and a large Group, which take turns, and
prints what one costs in each. Then it loads the large Group into an empty memory.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().IntVar(&options.Events, "events", options.Events, "Events of the large Group")
	cmd.Flags().IntVar(&options.WorkItems, "work-items", options.WorkItems, "WorkItems of the large Group")
	cmd.Flags().StringVar(&options.DataDir, "data", "", "folder of the database; empty for a temporary one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if options.Events < 1000 || options.WorkItems < 100 {
			return Usagef("--events must be at least 1000, --work-items at least 100")
		}
		report, err := bench.RunGrowth(cmd.Context(), options, func(step string) { fmt.Fprintln(app.Err, step) })
		if err != nil {
			return err
		}
		if app.JSON {
			return app.PrintJSON(report)
		}
		_, err = report.WriteTo(app.Out)
		return err
	}
	return cmd
}
