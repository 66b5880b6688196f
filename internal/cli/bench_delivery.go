package cli

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/bench"
)

func newBenchDeliveryCommand(app *App) *cobra.Command {
	options := bench.DeliveryOptions{
		Options: bench.Options{NATS: true}, Subscribers: 1000, Idle: 10_000, Events: 4000, Probes: 300, Rest: 30 * time.Second,
	}
	cmd := &cobra.Command{
		Use:   "delivery",
		Short: "Measure Events per second to many subscribers, and what idle ones cost",
		Long: `Delivery posts Messages to one Group with many WebSocket subscribers, which run in a
process of their own and check that they get every Event once and in order. Beside the
rate stands what the machine does in the same run when the same frames are just written to
as many connections, one by one and many at once. Then it connects subscribers to which
nothing happens and prints what each holds in memory and all of them use of a core.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().IntVar(&options.Subscribers, "subscribers", options.Subscribers, "subscribers under load")
	cmd.Flags().IntVar(&options.Events, "events", options.Events, "Events that are posted to them")
	cmd.Flags().IntVar(&options.Idle, "idle", options.Idle, "idle subscribers")
	cmd.Flags().IntVar(&options.Probes, "probes", options.Probes, "Commands whose way to a subscriber is timed")
	cmd.Flags().DurationVar(&options.Rest, "rest", options.Rest, "how long the idle subscribers are watched")
	cmd.Flags().StringSliceVar(&options.Parts, "parts", nil, "what to measure: "+strings.Join(bench.DeliveryParts, ", "))
	cmd.Flags().StringVar(&options.Profile, "profile", "", "write processor profiles of the parts to files that begin with this")
	cmd.Flags().StringVar(&options.DataDir, "data", "", "folder of the database; empty for a temporary one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if options.Subscribers < 1 || options.Idle < 1 || options.Events < 1 || options.Probes < 1 || max(options.Subscribers, options.Idle) > 15_000 {
			return Usagef("--subscribers, --idle, --events and --probes must be at least 1, --subscribers and --idle at most 15000")
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		options.Program = []string{self, "bench", "subscribers"}
		report, err := bench.RunDelivery(cmd.Context(), options, func(step string) { fmt.Fprintln(app.Err, step) })
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

// newBenchSubscribersCommand is the other process of bench delivery.
func newBenchSubscribersCommand(app *App) *cobra.Command {
	return &cobra.Command{
		Use: "subscribers", Short: "Be the subscribers that mw bench delivery measures", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.RunSubscribers(cmd.Context(), os.Stdin, app.Out)
		},
	}
}
