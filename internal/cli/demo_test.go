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

func TestDemoSaysAtOnceThatNothingAnswersAtItsStack(t *testing.T) {
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
	var out, errs bytes.Buffer
	app := cli.NewApp()
	app.Out, app.Err, app.Environ = &out, &errs, nil
	code := app.Run(context.Background(), []string{"demo", "--stack", path})
	if code != cli.ExitUnavailable || !strings.Contains(errs.String(), "is mw dev running?") {
		t.Errorf("exit %d, %s", code, errs.String())
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
