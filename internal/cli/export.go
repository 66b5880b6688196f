package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/bundle"
)

func newExportCommand(app *App) *cobra.Command {
	var stack, role, out string
	cmd := &cobra.Command{
		Use:   "export GROUP",
		Short: "Write the audit bundle of a Group, which mw verify checks offline",
		Long: `Export writes one file with everything that proves what happened in a Group: signed
Commands and Events, keys with their history, Admission Records, Policy Log, state and
evidence records. It is for the MissionOwner, the root MissionOwner and services that
archive. The layout is described in docs/audit-bundle.md. Without --out the bundle goes to
standard output. A file appears only when the bundle is whole.`,
		Example: "  mw export --stack .data/dev.json --out group.mwbundle urn:uuid:…\n  mw verify group.mwbundle",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if stack == "" {
				return Usagef("--stack is needed: the dev.json of the stack")
			}
			dev, err := client.ReadDevStack(stack)
			if err != nil {
				return Unavailable(err)
			}
			identity, err := dev.Identity(role)
			if err != nil {
				return Usagef("%w", err)
			}
			c, err := dev.Connect(identity)
			if err != nil {
				return Usagef("%w", err)
			}
			if out == "" {
				return exported(c.ExportGroup(cmd.Context(), args[0], app.Out))
			}
			return wholeFile(out, func(w io.Writer) error { return exported(c.ExportGroup(cmd.Context(), args[0], w)) })
		},
	}
	cmd.Flags().StringVar(&stack, "stack", "", "dev.json of a running stack")
	cmd.Flags().StringVar(&role, "as", "mission-owner", "role of the Principal that asks: mission-owner or archival")
	cmd.Flags().StringVar(&out, "out", "", "file to write")
	return cmd
}

// exported tells a server that refused from one that cannot be reached.
func exported(err error) error {
	var refused *client.Error
	if err == nil || errors.As(err, &refused) {
		return err
	}
	return Unavailable(err)
}

// wholeFile writes a file that appears under its name only when write succeeded.
func wholeFile(name string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".mwbundle-*")
	if err != nil {
		return Usagef("%w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	return err
}

// verifyBundle checks an audit bundle and prints the report.
func (a *App) verifyBundle(cmd *cobra.Command, name string, pins []string) error {
	opt := bundle.Options{Pin: map[string]string{}}
	for _, p := range pins {
		id, key, ok := strings.Cut(p, "=")
		if !ok || id == "" || key == "" {
			return Usagef("--pin is KEYID=PUBLICKEY")
		}
		opt.Pin[id] = key
	}
	in := a.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return Usagef("%w", err)
		}
		defer f.Close()
		in = f
	}
	report, err := bundle.Verify(cmd.Context(), in, opt)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if a.JSON {
		err = a.PrintJSON(report)
	} else {
		_, err = report.WriteTo(a.Out)
	}
	if err == nil && !report.OK() {
		return ErrSilent
	}
	return err
}
