package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/bench"
)

func newBenchManifestCommand(app *App) *cobra.Command {
	d := time.Second
	cmd := &cobra.Command{
		Use:   "manifest",
		Short: "Measure one World Manifest decision over sizes of manifests and stores",
		Long: `Manifest measures one decision with 20 provenance records, a schema and predicates, for
manifests of 10 to 10,000 rules and stores of up to 1,000,000 records, beside one bare
Ed25519 verification of the same run.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if d < 100*time.Millisecond {
				return Usagef("--duration must be at least 100ms")
			}
			report, err := bench.RunManifest(d)
			if err != nil {
				return err
			}
			if app.JSON {
				return app.PrintJSON(report)
			}
			_, err = report.WriteTo(app.Out)
			return err
		},
	}
	cmd.Flags().DurationVar(&d, "duration", d, "how long each row is measured")
	return cmd
}
