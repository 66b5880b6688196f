package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func newConfigCommand(app *App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the effective settings and where each comes from",
		Long: `Print the effective settings with their unit and source. Secrets are hidden.

Sources, the later one wins: default, settings file (--config or MW_CONFIG, YAML
or JSON with the names below), environment, flag. A secret MW_X can also be given
as MW_X_FILE, the name of a file that holds it.`,
		Args: cobra.NoArgs,
	}
	app.UseSettings(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		for _, name := range app.loader.UnknownEnv() {
			app.Log.Warn("this variable is no setting of the server", "name", name)
		}
		entries := app.loader.Entries()
		if app.JSON {
			return app.PrintJSON(entries)
		}
		w := tabwriter.NewWriter(app.Out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "SETTING\tVALUE\tUNIT\tSOURCE\tVARIABLE")
		for _, e := range entries {
			fmt.Fprintf(w, "%s\t%v\t%s\t%s\t%s\n", e.Name, e.Value, e.Unit, e.Source, e.Env)
		}
		return w.Flush()
	}
	return cmd
}
