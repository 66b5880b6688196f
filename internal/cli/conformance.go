package cli

import (
	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/conformance"
)

func newConformanceCommand(app *App) *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "conformance --root DIR",
		Short: "Run the protocol's conformance bundles against this program",
		Long: `Conformance runs the structural, cryptography and admission bundles of a protocol
checkout (the directory that holds conformance/, cryptography/, admission/ and schemas/)
against this program. It first compares every file that a manifest pins with its digest.
It prints one line per bundle, passed and total, then one line per miss.`,
		Example: "  mw conformance --root ../shared/protocol",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if root == "" {
				return Usagef("--root is needed: the directory of a protocol checkout")
			}
			report, err := conformance.Run(root)
			if err != nil {
				return Usagef("%w", err)
			}
			if app.JSON {
				err = app.PrintJSON(report)
			} else {
				_, err = report.WriteTo(app.Out)
			}
			if err == nil && !report.OK() {
				return ErrSilent
			}
			return err
		},
	}
	cmd.Flags().StringVar(&root, "root", "", "directory of a protocol checkout")
	cmd.AddCommand(newMatrixCommand(app))
	return cmd
}
