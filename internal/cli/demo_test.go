package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/cli"
)

// stackFile writes the dev.json of a server that is not there.
func stackFile(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	seed := filepath.Join(dir, "owner.seed")
	if err := os.WriteFile(seed, []byte(strings.Repeat("A", 43)), 0o600); err != nil {
		t.Fatal(err)
	}
	stack, err := json.Marshal(map[string]any{
		"authorityUrl": "http://127.0.0.1:1",
		"principals": []map[string]any{{
			"role": "mission-owner", "keyId": "urn:x:k", "seedFile": seed,
			"principal": map[string]string{"type": "human", "id": "urn:x:h"},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "dev.json")
	if err := os.WriteFile(path, stack, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDemoSaysAtOnceThatNothingAnswersAtItsStack(t *testing.T) {
	path := stackFile(t)
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--stack", path}, cli.ExitUnavailable, "nothing answers at http://127.0.0.1:1 "},
		{[]string{"--stack", path, "--url", "http://127.0.0.1:2"}, cli.ExitUnavailable, "nothing answers at http://127.0.0.1:2 "},
		{[]string{"--stack", path, "--url", "https://127.0.0.1:3/", "--scenario", "two-missions"}, cli.ExitUnavailable, "nothing answers at https://127.0.0.1:3 "},
		{[]string{"--url", "http://127.0.0.1:2"}, cli.ExitUsage, "--url needs --stack"},
		{[]string{"--scenario", "two-missions", "--mission", "other.yaml"}, cli.ExitUsage, "exclude each other"},
		{[]string{"--seed", "5"}, cli.ExitUsage, "belong to --scenario"},
		{[]string{"--faults"}, cli.ExitUsage, "belong to --scenario"},
		{[]string{"--stack", path, "--url", "127.0.0.1:2"}, cli.ExitUsage, "--url takes"},
		{[]string{"--stack", path, "--url", "http://127.0.0.1:2/v1"}, cli.ExitUsage, "--url takes"},
		{[]string{"--stack", path, "--url", "http://user:secret@127.0.0.1:2"}, cli.ExitUsage, "--url takes"},
	} {
		var out, errs bytes.Buffer
		app := cli.NewApp()
		app.Out, app.Err, app.Environ = &out, &errs, nil
		code := app.Run(context.Background(), append([]string{"demo"}, tc.args...))
		if code != tc.code || !strings.Contains(errs.String(), tc.says) {
			t.Errorf("%v: exit %d, %s", tc.args, code, errs.String())
		}
	}
}

func TestAnInterruptedStartSaysSoAndNothingElse(t *testing.T) {
	for _, command := range []string{"demo", "dev"} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var out, errs bytes.Buffer
		app := cli.NewApp()
		app.Out, app.Err, app.Environ = &out, &errs, nil
		code := app.Run(ctx, []string{command, "--data", t.TempDir()})
		if code != cli.ExitInterrupted || !strings.HasSuffix(errs.String(), "mw: interrupted\n") || strings.Contains(errs.String(), "scripts/setup") {
			t.Errorf("%s: exit %d, %q", command, code, errs.String())
		}
	}
}
