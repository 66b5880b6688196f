package cli

import (
	"context"
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
		Use:   "export GROUP|MISSION",
		Short: "Write the audit bundle of a Group, which mw verify checks offline",
		Long: `Export writes one file with everything that proves what happened in a Group: signed
Commands with their receipts, Events, keys with their history, Admission Records, Policy Log,
state, decisions about tokens and actions, and evidence records. The id of a Mission stands for
its Group. It is for the MissionOwner, the root MissionOwner and services that archive. The
layout is described in docs/audit-bundle.md. Without --out the bundle goes to standard output.
A file appears only when the bundle is whole, and then takes the place of one of that name.`,
		Example: "  mw export --out group.mwbundle urn:uuid:…\n  mw verify group.mwbundle",
		Args:    cobra.ExactArgs(1),
	}
	app.UseSettings(cmd, "dataDir")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if stack == "" {
			stack = filepath.Join(app.Settings.DataDir, "dev.json")
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
		return app.export(cmd.Context(), c, args[0], out)
	}
	cmd.Flags().StringVar(&stack, "stack", "", "dev.json of a running stack (default: that in --data-dir)")
	cmd.Flags().StringVar(&role, "as", "mission-owner", "role of the Principal that asks: mission-owner or archival")
	cmd.Flags().StringVar(&out, "out", "", "file to write")
	return cmd
}

// export writes the bundle of a Group, or of the Group of a Mission, and says what it
// wrote where that is not the bundle's own stream.
func (a *App) export(ctx context.Context, c *client.Client, id, out string) error {
	write := func(group string) (written int64, replaced bool, err error) {
		if out == "" {
			w := &counting{w: a.Out}
			err = c.ExportGroup(ctx, group, w)
			return w.n, false, err
		}
		_, statErr := os.Stat(out)
		err = wholeFile(out, func(w io.Writer) error {
			counted := &counting{w: w}
			err := c.ExportGroup(ctx, group, counted)
			written = counted.n
			return err
		})
		return written, statErr == nil, err
	}
	written, replaced, err := write(id)
	var refused *client.Error
	if errors.As(err, &refused) && refused.Code == "GROUP_NOT_FOUND" {
		mission, missionErr := c.Mission(ctx, id)
		if missionErr != nil || mission.GroupID == "" {
			return fmt.Errorf("%w: neither a Group nor a Mission that this Principal may see; mw mission list names the Missions", exported(err))
		}
		written, replaced, err = write(mission.GroupID)
	}
	if err != nil || out == "" || a.JSON {
		return exported(err)
	}
	what := "wrote"
	if replaced {
		what = "replaced what was there, and wrote"
	}
	_, err = fmt.Fprintf(a.Out, "%s: %s %d bytes\n", out, what, written)
	return err
}

// counting counts what is written.
type counting struct {
	w io.Writer
	n int64
}

func (c *counting) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err //nolint:wrapcheck // an io.Writer
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
	if errors.Is(err, bundle.ErrNotBundle) {
		return Usagef("%s is not a bundle that mw export wrote", name)
	}
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
