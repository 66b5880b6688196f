package cli

import (
	"context"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/server"
)

func newServeCommand(app *App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run one service against an external PostgreSQL and NATS",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return Usagef("say which service; see %s --help", cmd.CommandPath())
		},
	}
	for _, s := range server.Services {
		cmd.AddCommand(newServiceCommand(app, s))
	}
	return cmd
}

func newServiceCommand(app *App, s server.Service) *cobra.Command {
	cmd := &cobra.Command{
		Use:   s.Name,
		Short: fmt.Sprintf("Run the %s (usual port %d, management %d)", s.Name, s.Port, s.Port+1),
		Args:  cobra.NoArgs,
	}
	app.UseSettings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return server.Serve(cmd.Context(), s, app.Settings, app.Log)
	}
	return cmd
}

// ServiceMain runs the program of a single service: its command with a health
// check beside it.
func ServiceMain(name string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	app := NewApp()
	for _, s := range server.Services {
		if s.Name == name {
			root := newServiceCommand(app, s)
			root.AddCommand(HealthcheckCommand(app, fmt.Sprintf("http://127.0.0.1:%d/readyz", s.Port+1)))
			return app.execute(ctx, root)
		}
	}
	return ExitUsage
}

func newInitCommand(app *App) *cobra.Command {
	var hosts []string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the Organization's keys and certificate, and found it in the database",
		Long: `Make what the services need on their first start: the Organization with its
service Principals and keys (mode 0600) in the key folder, a self-signed
certificate where none is, and, when a database is configured, the Organization's
records in it. What is there already stays.`,
		Args: cobra.NoArgs,
	}
	app.UseSettings(cmd)
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "host name for the certificate, besides localhost; may be repeated")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		organization, err := server.Init(cmd.Context(), app.Settings, hosts, app.Log)
		if err != nil {
			return err
		}
		if app.JSON {
			return app.PrintJSON(organization)
		}
		_, err = fmt.Fprintln(app.Out, organization.ID)
		return err
	}
	return cmd
}
