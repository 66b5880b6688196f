package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/missionweave/server/internal/scenario"
)

// held fails the test for every check of a play that does not hold.
func held(t *testing.T, report *scenario.Report, out string, least int) {
	t.Helper()
	for _, k := range report.Checks {
		if !k.OK {
			t.Errorf("%s: %s: %s", k.Scene, k.Name, k.Proof)
		}
	}
	if len(report.Checks) < least || report.Passed != len(report.Checks) || report.Failed != 0 || !report.OK {
		t.Errorf("%d checks, %d passed, %d failed; want at least %d, and all of them", len(report.Checks), report.Passed, report.Failed, least)
	}
	if t.Failed() {
		t.Logf("\n%s", out)
	}
}

func TestAPlayStandsSideBySideOnATerminal(t *testing.T) {
	o := startOutage(t)
	var out bytes.Buffer
	report, err := scenario.TwoMissions(t.Context(), scenario.Options{Stack: o.stack, Seed: 7, Out: &out, Columns: 160, Limit: 4 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	held(t, report, out.String(), 60)
	if !strings.Contains(out.String(), "│") {
		t.Errorf("no columns in\n%s", &out)
	}
	verified(t, o.File.DatabaseURL)
}

// buildMW builds mw once.
var buildMW = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "mw-e2e-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "mw")
	if out, err := exec.Command("go", "build", "-o", path, "github.com/missionweave/server/cmd/mw").CombinedOutput(); err != nil { //nolint:noctx // bounded by the test
		return "", errors.New(string(out))
	}
	return path, nil
})

// played is what mw demo printed and how it ended.
type played struct {
	scenario.Report
	Database string `json:"database"`
	exit     int
	words    string // standard error
}

// play runs mw demo --scenario two-missions --json to its end.
func play(t *testing.T, args ...string) *played {
	t.Helper()
	mw, err := buildMW()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s is kept", mw)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, mw, append([]string{"demo", "--scenario", "two-missions", "--json"}, args...)...) //nolint:gosec // built above
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	err = cmd.Run()
	if e, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || e.ExitCode() < 0) {
		t.Fatalf("%v\n%s", err, &words)
	}
	p := &played{exit: cmd.ProcessState.ExitCode(), words: words.String()}
	if err := json.Unmarshal(out.Bytes(), p); err != nil {
		t.Fatalf("exit %d, no report: %v\n%s", p.exit, err, &words)
	}
	return p
}

// suite is the list of faults that the failure suite owes (issue 8, point 3) and
// under each the checks that prove what comes of it.
var suite = []struct {
	fault, scene string
	checks       []string
}{
	{"duplicate delivery to a Worker", "Duplicate delivery", []string{
		"a Worker is sent every Event twice, and some again after a resume", "what the server sends again is the same, byte for byte",
		"the client library drops every repeated Event", "a Worker hears a repeated Message once", "work that is told twice is done once: told-twice",
		"a Command that arrives twice over WebSocket acts once",
	}},
	{"duplicate delivery to the gateway", "Duplicates on the bus", []string{
		"Events are published again at NATS, with the same message id and with another",
		"the gateway passes no repeated Event on over WebSocket", "the gateway passes no repeated Event on over SSE",
	}},
	{"duplicate and colliding Commands", "Duplicate and colliding Commands", []string{
		"a Command that is sent again gets its first receipt, byte for byte", "another Command under the same Action ID is refused",
		"a collision over WebSocket is refused alike", "duplicates and collisions leave one Event and one Message for each Action ID",
	}},
	{"Worker restart and queue rebuilding", "Worker killed", []string{
		"the Worker's process is killed in the middle of its work", "the queue of billing is rebuilt from the log, in order",
		"the queue of search is rebuilt from the log, in order", "the restarted Worker owns its work under the same Ownership Epochs",
		"everything that the dead Worker had is carried out once",
	}},
	{"Coordinator lost and replaced", "Coordinator lost", []string{
		"a replacement gets a higher Coordinator Epoch", "the old Coordinator's epoch is fenced",
		"what the old Coordinator decided late is not there", "the Mission goes on under the replacement",
	}},
	{"Worker disconnected, offline reconciliation and its charge", "Worker disconnected", []string{
		"offline usage beyond the budget refuses charge and progress alike", "progress outside the grace is not taken",
		"offline progress is reconciled with its charge, in one step", "the charge is what was used offline, once",
	}},
	{"lease expiry and reassignment", "Lease expired", []string{
		"an expired lease is not renewed", "expired work is reassigned under a higher Ownership Epoch",
		"the late result of the old owner is refused: its Artifact does not count any more",
		"a late result that names the new owner's Artifact is refused", "what came late changed nothing",
	}},
	{"stale Session, Membership and Ownership epochs", "Stale epochs", []string{
		"a Command of a replaced session is refused", "a Command under an old Membership is refused", "what was said under stale epochs is not there",
		"a Command under an old Ownership Epoch is refused", "what came under stale epochs changed nothing",
	}},
	{"authority kill -9 and restart", "Authority killed", []string{
		"work and Commands are under way when kill-9 begins", "every Command under way is accepted in the end through kill-9",
		"every Command under way has exactly one effect through kill-9", "every Command sent again in the same bytes after kill-9 is a replay",
		"what was answered before kill-9 is still there", "work goes on after kill-9 under its lease, owner and session", "no sequence is missing or repeated through kill-9",
	}},
	{"database restart", "Database restarted", []string{
		"work and Commands are under way when database begins", "without the database a Command is refused retryably",
		"every Command under way has exactly one effect through database", "every Command sent again in the same bytes after database is a replay",
		"no sequence is missing or repeated through database",
	}},
	{"NATS loss", "NATS lost", []string{
		"work and Commands are under way when NATS begins", "every Command under way has exactly one effect through NATS",
		"without NATS the log is written and followed", "what was committed without NATS is published when it is back", "no sequence is missing or repeated through NATS",
	}},
	{"human change request", "Change request", []string{
		"a human change request makes the Mission active again", "an Approval of what was sent back is refused", "corrective work changes what can be handed in",
	}},
	{"high-priority arrival", "High-priority arrival", []string{
		"a high-priority arrival takes the only slot, at a checkpoint", "what made room goes on under the same Ownership Epoch, with its state",
	}},
}

// missing lists what the suite owes and the report does not have.
func missing(report *scenario.Report, notRun ...string) []string {
	ran := map[string]bool{}
	for _, k := range report.Checks {
		if k.OK {
			ran[k.Scene+"\n"+k.Name] = true
		}
	}
	var out []string
	for _, f := range suite {
		for _, name := range f.checks {
			if !ran["Fault: "+f.scene+"\n"+name] && !slices.Contains(notRun, f.scene) {
				out = append(out, f.fault+": "+name)
			}
		}
	}
	return out
}

// inCourse fails the test unless the scenes came as the seed says.
func inCourse(t *testing.T, p *played, notRun ...string) {
	t.Helper()
	course := scenario.NewCourse(p.Seed)
	if !reflect.DeepEqual(p.Course, course) {
		t.Errorf("the report says %+v, seed %d is %+v", p.Course, p.Seed, course)
	}
	var want, got []string
	for _, turn := range course.Turns {
		if !slices.Contains(notRun, turn.Fault) {
			want = append(want, "Fault: "+turn.Fault)
		}
	}
	for _, k := range p.Checks {
		if strings.HasPrefix(k.Scene, "Fault: ") && (len(got) == 0 || got[len(got)-1] != k.Scene) {
			got = append(got, k.Scene)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the faults came as %q, want %q", got, want)
	}
}

// A server of its own, everything that can break, to the exit code.
func TestTheProgramPlaysTheWholeFailureSuite(t *testing.T) {
	p := play(t, "--faults", "--seed", "7")
	held(t, &p.Report, p.words, 150)
	if p.exit != 0 || len(p.NotRun) != 0 {
		t.Errorf("exit %d, not run %v\n%s", p.exit, p.NotRun, p.words)
	}
	if p.Database != "verified" || !strings.Contains(p.words, `"differences": 0`) {
		t.Errorf("the database is %s\n%s", p.Database, p.words)
	}
	for _, m := range missing(&p.Report) {
		t.Errorf("the suite owes %s", m)
	}
	inCourse(t, p)
}

// On somebody else's server not everything is broken, and the program says so.
func TestTheProgramSaysWhatItCouldNotBreak(t *testing.T) {
	o := startOutage(t)
	p := play(t, "--faults", "--seed", "11", "--stack", o.Path)
	held(t, &p.Report, p.words, 120)
	if p.exit != 4 || !strings.Contains(p.words, "4 of 13 faults were not run here") {
		t.Errorf("exit %d\n%s", p.exit, p.words)
	}
	var notRun []string
	for _, n := range p.NotRun {
		notRun = append(notRun, n.Fault)
		if !strings.Contains(n.Why, "--stack") {
			t.Errorf("%s is not run: %s", n.Fault, n.Why)
		}
	}
	slices.Sort(notRun)
	if want := []string{"Authority killed", "Database restarted", "Duplicates on the bus", "NATS lost"}; !slices.Equal(notRun, want) {
		t.Errorf("not run: %q, want %q", notRun, want)
	}
	for _, m := range missing(&p.Report, notRun...) {
		t.Errorf("the suite owes %s", m)
	}
	inCourse(t, p, notRun...)
	verified(t, o.File.DatabaseURL)
}

// A server whose Organization has no archival service cannot archive: what rests
// on that is missed, the rest holds, and the exit code is that of a miss.
func TestTheProgramExitsWithOneOnAMiss(t *testing.T) {
	o := startOutage(t)
	b, err := os.ReadFile(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	file["principals"] = slices.DeleteFunc(file["principals"].([]any), func(p any) bool { return p.(map[string]any)["role"] == "archival" })
	if b, err = json.Marshal(file); err != nil {
		t.Fatal(err)
	}
	lacking := filepath.Join(filepath.Dir(o.Path), "lacking.json")
	if err := os.WriteFile(lacking, b, 0o600); err != nil {
		t.Fatal(err)
	}
	p := play(t, "--stack", lacking)
	var missed []string
	for _, k := range p.Checks {
		if !k.OK {
			missed = append(missed, k.Scene+": "+k.Proof)
		}
	}
	if p.exit != 1 || p.OK || p.Failed != len(missed) || p.Passed < 60 {
		t.Errorf("exit %d, ok %v, %d failed, %d passed", p.exit, p.OK, p.Failed, p.Passed)
	}
	if len(missed) == 0 || len(missed) > 3 || !strings.Contains(missed[0], `no Principal with role "archival"`) {
		t.Errorf("missed: %q", missed)
	}
}
