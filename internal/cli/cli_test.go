package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/devstack"
)

type outcome struct {
	code     int
	out, err string
}

// run plays one command line with its own environment.
func run(t *testing.T, env []string, args ...string) outcome {
	t.Helper()
	return runContext(t, t.Context(), env, args...)
}

func runContext(t *testing.T, ctx context.Context, env []string, args ...string) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	app := &App{In: strings.NewReader(""), Out: &out, Err: &errs, Environ: env}
	code := app.Run(ctx, args)
	return outcome{code: code, out: out.String(), err: errs.String()}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	nobody := "postgres://u:geheim@127.0.0.1:1/x?connect_timeout=2"
	cases := map[string]struct {
		ctx  context.Context
		env  []string
		args []string
		want int
		says string // part of standard error
	}{
		"no command shows the help":         {args: nil, want: ExitOK},
		"unknown command":                   {args: []string{"misson"}, want: ExitUsage, says: "misson"},
		"unknown flag":                      {args: []string{"version", "--colour"}, want: ExitUsage, says: "colour"},
		"argument too many":                 {args: []string{"version", "x"}, want: ExitUsage, says: "mw version --help"},
		"group without its command":         {args: []string{"migrate"}, want: ExitUsage, says: "up or status"},
		"setting out of bounds":             {args: []string{"config", "--session-life-seconds=0"}, want: ExitUsage, says: "--session-life-seconds"},
		"variable out of bounds":            {env: []string{"MW_SESSION_LIFE_SECONDS=0"}, args: []string{"config"}, want: ExitUsage, says: "MW_SESSION_LIFE_SECONDS"},
		"variable of a plain flag":          {env: []string{"MW_TIMEOUT=soon"}, args: []string{"healthcheck"}, want: ExitUsage, says: "MW_TIMEOUT"},
		"migrate without a database":        {args: []string{"migrate", "up"}, want: ExitUsage, says: "MW_DATABASE_URL"},
		"database that does not answer":     {env: []string{"MW_DATABASE_URL=" + nobody}, args: []string{"migrate", "status"}, want: ExitUnavailable},
		"service that does not answer":      {args: []string{"healthcheck", "http://127.0.0.1:1/readyz"}, want: ExitUnavailable},
		"address that is none":              {args: []string{"healthcheck", "readyz"}, want: ExitUsage, says: "readyz"},
		"interrupted before it was done":    {ctx: cancelled, env: []string{"MW_DATABASE_URL=" + nobody}, args: []string{"migrate", "up"}, want: ExitInterrupted},
		"database address that is unusable": {env: []string{"MW_DATABASE_URL=postgres://u:geheim@h:port/x"}, args: []string{"migrate", "up"}, want: ExitFailure},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := c.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			got := runContext(t, ctx, c.env, c.args...)
			if got.code != c.want {
				t.Errorf("exit code %d, want %d; it said %q", got.code, c.want, got.err)
			}
			if !strings.Contains(got.err, c.says) {
				t.Errorf("standard error %q does not say %q", got.err, c.says)
			}
			if strings.Contains(got.err+got.out, "geheim") {
				t.Errorf("a password was printed: %q", got.err)
			}
		})
	}
}

func TestMigrateUpThenStatus(t *testing.T) {
	t.Parallel()
	env := []string{"MW_DATABASE_URL=" + devstack.ForTest(t).NewEmptyDatabase(t)}
	if got := run(t, env, "migrate", "status"); got.code != ExitFailure || !strings.Contains(got.out, "pending") {
		t.Errorf("status before up = %+v, want exit code 1 and pending migrations", got)
	}
	if got := run(t, env, "migrate", "up"); got.code != ExitOK || !strings.Contains(got.out, "applied 0001_") {
		t.Errorf("up = %+v", got)
	}
	got := run(t, env, "migrate", "status", "--json")
	var status migrationRun
	if err := json.Unmarshal([]byte(got.out), &status); err != nil || got.code != ExitOK {
		t.Fatalf("status = %+v, %v", got, err)
	}
	if len(status.Applied) == 0 || len(status.Pending) != 0 {
		t.Errorf("status after up = %+v", status)
	}
	if got := run(t, env, "migrate", "up"); got.code != ExitOK || !strings.Contains(got.out, "nothing") {
		t.Errorf("second up = %+v", got)
	}
}

func TestConfigHidesSecretsAndTellsSources(t *testing.T) {
	t.Parallel()
	env := []string{"MW_DATABASE_URL=postgres://u:geheim@db/x", "MW_HELLOS_PER_MINUTE=7", "MW_HELOS=1"}
	for _, args := range [][]string{{"config"}, {"config", "--json"}} {
		got := run(t, env, append(args, "--session-life-seconds=60")...)
		if got.code != ExitOK || strings.Contains(got.out+got.err, "geheim") {
			t.Errorf("%v = %+v", args, got)
		}
		for _, part := range []string{"environment", "flag", "default", "u:***@db/x", "MW_SESSION_LIFE_SECONDS"} {
			if !strings.Contains(got.out, part) {
				t.Errorf("%v does not say %q", args, part)
			}
		}
		if !strings.Contains(got.err, "MW_HELOS") {
			t.Errorf("%v does not warn of a misspelt variable: %q", args, got.err)
		}
	}
}

func TestHealthcheckFollowsTheAnswer(t *testing.T) {
	t.Parallel()
	ready := true
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte("answer"))
	}))
	defer srv.Close()
	if got := run(t, nil, "healthcheck", srv.URL); got.code != ExitOK || !strings.Contains(got.out, "answer") {
		t.Errorf("ready: %+v", got)
	}
	ready = false
	if got := run(t, nil, "healthcheck", srv.URL, "--json"); got.code != ExitFailure || !strings.Contains(got.out, "503") {
		t.Errorf("not ready: %+v", got)
	}
}

func TestVersionIsPrintedBothWays(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"--version"}, {"version", "--json"}} {
		if got := run(t, nil, args...); got.code != ExitOK || !strings.Contains(got.out, ProtocolVersion) {
			t.Errorf("%v = %+v", args, got)
		}
	}
	var v versionInfo
	if err := json.Unmarshal([]byte(run(t, []string{"MW_JSON=true"}, "version").out), &v); err != nil || v.Version == "" {
		t.Errorf("MW_JSON=true: %+v, %v", v, err)
	}
}

// Every command is reachable from newRoot, says what it does, and checks its
// arguments.
func TestEveryCommandIsDescribed(t *testing.T) {
	t.Parallel()
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" || cmd.Args == nil || (cmd.RunE == nil && !cmd.HasSubCommands()) {
			t.Errorf("%q lacks a description, an argument check or an action", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&App{Environ: os.Environ()}))
}

// A command that only groups others is no success without one of them.
func TestGroupingCommandsNeedASubcommand(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mission", "approvals", "keys", "evidence", "manifest"} {
		if got := run(t, nil, name); got.code != ExitUsage || !strings.Contains(got.err, "say what to do") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
