package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/scenario"
	"github.com/missionweave/server/internal/scenario/machine"
)

// held fails the test for every check of a play that does not hold.
func held(t *testing.T, report *scenario.Report, out *bytes.Buffer, least int) {
	t.Helper()
	for _, k := range report.Checks {
		if !k.OK {
			t.Errorf("%s: %s: %s", k.Scene, k.Name, k.Proof)
		}
	}
	if len(report.Checks) < least {
		t.Errorf("%d checks, want at least %d", len(report.Checks), least)
	}
	if t.Failed() {
		t.Logf("\n%s", out)
	}
}

func TestTwoMissionsShareAWorkerAndEverythingHolds(t *testing.T) {
	o := startOutage(t)
	var out bytes.Buffer
	report, err := scenario.TwoMissions(t.Context(), scenario.Options{Stack: o.stack, Seed: 7, Out: &out, Limit: 4 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	held(t, report, &out, 60)
	verified(t, o.File.DatabaseURL)
}

func TestAPlayStandsSideBySideOnATerminal(t *testing.T) {
	o := startOutage(t)
	var out bytes.Buffer
	report, err := scenario.TwoMissions(t.Context(), scenario.Options{Stack: o.stack, Seed: 7, Out: &out, Columns: 160, Limit: 4 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	held(t, report, &out, 60)
	if !strings.Contains(out.String(), "│") {
		t.Errorf("no columns in\n%s", &out)
	}
}

func TestTwoMissionsSurviveEverythingThatCanBreak(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	server, err := machine.Start(t.Context(), machine.Options{Dir: t.TempDir(), Log: &log, Command: func(args ...string) *exec.Cmd {
		cmd := exec.Command(self) //nolint:noctx // the machine ends it
		cmd.Env = append(os.Environ(), childVariable+"="+strings.Join(args, "\n"))
		return cmd
	}})
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	stack, err := client.ReadDevStack(server.DevFile)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	report, err := scenario.TwoMissions(t.Context(), scenario.Options{
		Stack: stack, Seed: 7, Faults: true, Machinery: server, Out: &out, Limit: 5 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	held(t, report, &out, 100)
	if err := server.StopServices(); err != nil {
		t.Error(err)
	}
	verified(t, server.DatabaseURL)
}
