package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/migrate"
)

// finding is one examined thing. Help says what to do when it is not well.
type finding struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	Found string `json:"found"`
	Help  string `json:"help,omitempty"`
}

const doctorPatience = 5 * time.Second

func newDoctorCommand(app *App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Examine what the server needs on this machine",
		Long: `Examine what the server needs with the present settings: the configured PostgreSQL
and NATS, or the programs for private ones, and the data folder. Changes nothing.
Exit code 1 when something is not well.`,
		Args: cobra.NoArgs,
	}
	app.UseSettings(cmd, "databaseUrl", "natsUrl", "dataDir")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), 4*doctorPatience)
		defer cancel()
		return reportFindings(app, examine(ctx, app.Settings))
	}
	return cmd
}

func examine(ctx context.Context, s *config.Settings) []finding {
	var all []finding
	if s.DatabaseURL == "" {
		all = append(all, examinePrograms(ctx))
	} else {
		all = append(all, examineDatabase(ctx, s.DatabaseURL)...)
	}
	if s.NATSURL == "" {
		all = append(all, finding{Check: "NATS", OK: true, Found: "none configured, the embedded one is used"})
	} else {
		all = append(all, examineNATS(ctx, s.NATSURL))
	}
	return append(all, examineDataDir(s.DataDir))
}

func reportFindings(app *App, all []finding) error {
	sick := 0
	for _, f := range all {
		if !f.OK {
			sick++
		}
	}
	var err error
	if app.JSON {
		err = app.PrintJSON(all)
	} else {
		w := tabwriter.NewWriter(app.Out, 0, 0, 2, ' ', 0)
		for _, f := range all {
			verdict := "ok"
			if !f.OK {
				verdict = "FAIL"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", verdict, f.Check, f.Found)
			if f.Help != "" && !f.OK {
				fmt.Fprintf(w, "\t\t-> %s\n", f.Help)
			}
		}
		err = w.Flush()
	}
	if err == nil && sick > 0 {
		return ErrSilent
	}
	return err
}

func examinePrograms(ctx context.Context) finding {
	f := finding{Check: "PostgreSQL programs", Help: "run scripts/setup, or name a database with MW_DATABASE_URL"}
	all, err := devstack.FindBinaries(ctx)
	if err != nil {
		f.Found = err.Error()
		return f
	}
	f.OK, f.Found = true, fmt.Sprintf("version %d in %s", all[0].Major, all[0].Dir)
	return f
}

func examineDatabase(ctx context.Context, url string) []finding {
	server := finding{Check: "PostgreSQL server", Help: "start it, or mend MW_DATABASE_URL"}
	connectCtx, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	conn, err := pgx.Connect(connectCtx, url)
	if err != nil {
		server.Found = err.Error()
		return []finding{server}
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var version, fsync string
	err = conn.QueryRow(ctx, "SELECT current_setting('server_version_num'), current_setting('fsync')").Scan(&version, &fsync)
	number, convErr := strconv.Atoi(version)
	if err := errors.Join(err, convErr); err != nil {
		server.Found = err.Error()
		return []finding{server}
	}
	server.Found = fmt.Sprintf("version %d at %s", number/10000, config.Redact(url))
	server.OK = number/10000 >= devstack.MinPostgresMajor
	if !server.OK {
		server.Help = fmt.Sprintf("version %d or newer is needed", devstack.MinPostgresMajor)
	}
	durable := finding{
		Check: "durability", OK: fsync == "on", Found: "fsync " + fsync,
		Help: "with fsync off an answered Command can be lost in a crash",
	}
	schema := finding{Check: "schema", OK: true, Found: "is this program's", Help: "run mw migrate up"}
	if err := migrate.Check(ctx, url); err != nil {
		schema.OK, schema.Found = false, err.Error()
		if errors.Is(err, migrate.ErrNewerSchema) {
			schema.Help = "run a newer program"
		}
	}
	return []finding{server, durable, schema}
}

func examineNATS(ctx context.Context, url string) finding {
	f := finding{Check: "NATS", Help: "Commands still commit without it, but subscribers hear of them late; start it, or mend MW_NATS_URL"}
	conn, err := nats.Connect(url, nats.Timeout(doctorPatience), nats.Name("mw doctor"))
	if err != nil {
		f.Found = err.Error()
		return f
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err == nil {
		_, err = js.AccountInfo(ctx)
	}
	if err != nil {
		f.Found, f.Help = fmt.Sprintf("no JetStream: %v", err), "start it with JetStream"
		return f
	}
	f.OK, f.Found = true, "JetStream at "+config.Redact(url)
	return f
}

// examineDataDir tries the nearest folder that exists: the rest would be made.
func examineDataDir(dir string) finding {
	f := finding{Check: "data folder", Found: dir, Help: "choose another with --data-dir"}
	abs, err := filepath.Abs(dir)
	if err != nil {
		f.Found = err.Error()
		return f
	}
	existing := abs
	for {
		info, err := os.Stat(existing)
		if err == nil {
			if !info.IsDir() {
				f.Found = existing + " is no folder"
				return f
			}
			break
		}
		if !errors.Is(err, os.ErrNotExist) || existing == filepath.Dir(existing) {
			f.Found = err.Error()
			return f
		}
		existing = filepath.Dir(existing)
	}
	probe, err := os.CreateTemp(existing, ".mw-doctor-")
	if err != nil {
		f.Found = err.Error()
		return f
	}
	err = errors.Join(probe.Close(), os.Remove(probe.Name()))
	f.OK, f.Found = err == nil, abs
	return f
}
