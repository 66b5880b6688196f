package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/server"
)

func newDevCommand(app *App) *cobra.Command {
	var data string
	var portBase int
	var insecure bool
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run all three services with a private PostgreSQL and NATS",
		Long: `Run the Authority, the Registry and the Authorization Service in one process,
on a private PostgreSQL and an embedded NATS below the data folder. The first
start makes an Organization, its keys and a certificate; a later start on the
same folder goes on where the last one ended, however it ended.

When everything answers, DIR/dev.json says where it is, and one line
"ready DIR/dev.json" is printed on standard output.`,
		Args: cobra.NoArgs,
	}
	app.UseSettings(cmd)
	cmd.Flags().StringVar(&data, "data", "", "folder for everything the stack keeps (the same as --data-dir)")
	cmd.Flags().IntVar(&portBase, "port-base", 8420, "port of the Authority; the others are counted from it; 0 takes free ports")
	cmd.Flags().BoolVar(&insecure, "insecure-loopback", false, "serve plain HTTP and WebSocket")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if data != "" {
			app.Settings.DataDir = data
		}
		if portBase < 0 || portBase > 65535-21 {
			return Usagef("--port-base must be between 0 and %d", 65535-21)
		}
		dev, err := server.OpenDev(cmd.Context(), server.DevOptions{
			Settings: app.Settings, PortBase: portBase, Insecure: insecure, Log: app.Log,
		})
		if err != nil {
			return devError(cmd.Context(), err)
		}
		return dev.Run(cmd.Context(), func() error {
			path := filepath.Join(app.Settings.DataDir, "dev.json")
			app.describeDev(dev.File, path)
			_, err := fmt.Fprintf(app.Out, "ready %s\n", path)
			return err
		})
	}
	return cmd
}

// devError says what to do about the two faults that a newcomer meets. A start
// that was interrupted fails in many ways, none of which is worth telling.
func devError(ctx context.Context, err error) error {
	var op *net.OpError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, devstack.ErrNoPostgres):
		return fmt.Errorf("%w\nrun scripts/setup, which installs them or says how", err)
	case errors.As(err, &op) && errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w\nanother program has this port; choose others with --port-base, or 0 for free ones", err)
	}
	return err
}

// describeDev tells a person where everything is and what to try.
func (a *App) describeDev(f server.DevFile, path string) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(a.Err, format+"\n", args...) }
	p("")
	p("  Authority      %s   (WebSocket %s)", f.AuthorityURL, f.WSURL)
	p("  Registry       %s", f.RegistryURL)
	p("  Authorization  %s", f.AuthzURL)
	p("  Organization   %s", f.OrganizationID)
	if len(f.Principals) > 0 {
		p("  Keys           %s", filepath.Join(filepath.Dir(f.Principals[0].SeedFile), "ROLE.seed"))
	}
	curl := "curl"
	if f.CAFile != "" {
		p("  Certificate    %s", f.CAFile)
		curl = "curl --cacert " + shellWord(f.CAFile)
	}
	p("")
	p("Try")
	p("  %s demo --stack %s", shellWord(os.Args[0]), shellWord(path))
	p("  %s %s/openapi.yaml", curl, f.AuthorityURL)
	p("  %s verify --database --stack %s", shellWord(os.Args[0]), shellWord(path))
	p("")
}

// shellWord quotes a path for pasting where it needs that.
func shellWord(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("/._-+@%", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}
