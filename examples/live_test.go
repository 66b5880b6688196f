package examples_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/testwait"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// build builds every example program once.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "examples-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "./workers/...", "./coordinator") //nolint:noctx // it ends
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return dir, nil
})

// program is a running example.
type program struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *bytes.Buffer
	done chan error
}

// start starts an example; it is killed at the end of the test.
func start(t *testing.T, name string, args ...string) *program {
	t.Helper()
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, cmd: exec.Command(filepath.Join(dir, name), args...), out: new(bytes.Buffer), done: make(chan error, 1)} //nolint:noctx // the test ends it
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(p.kill)
	return p
}

// kill ends it without a chance to tidy up.
func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	err := <-p.done
	p.done <- err
}

// coordinate runs the example Coordinator to its end and returns what it printed.
func coordinate(t *testing.T, args ...string) (string, error) {
	t.Helper()
	p := start(t, "coordinator", args...)
	err := <-p.done
	p.done <- err
	return p.out.String(), err
}

func TestEveryExampleIsRunHere(t *testing.T) {
	programs, err := filepath.Glob("workers/*/main.go")
	if err != nil || len(programs) != 3 {
		t.Errorf("the tests below run echo, reviewer and shell; there are %v, %v", programs, err)
	}
}

func TestEchoFinishesAMissionAlsoWhenItWasKilledBeforeTheOffer(t *testing.T) {
	dev := testkit.Start(t).DevFile()
	worker := start(t, "echo", "--stack", dev)
	agent := filepath.Join(filepath.Dir(dev), "agents", "echo.json")
	testwait.Until(t, "echo is registered", func() bool { _, err := os.Stat(agent); return err == nil })
	first, err := os.ReadFile(agent)
	if err != nil {
		t.Fatal(err)
	}
	worker.kill()
	finished := make(chan string, 1)
	go func() {
		out, err := coordinate(t, "--stack", dev, "--worker", "echo", "Say hello.")
		finished <- fmt.Sprint(out, err)
	}()
	start(t, "echo", "--stack", dev)
	if got := <-finished; got != "Say hello.\n<nil>" {
		t.Errorf("%q", got)
	}
	second, err := os.ReadFile(agent)
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("restarted, it is another Agent: %s, %s, %v", first, second, err)
	}
}

func TestAReviewerDecidesWhetherAResultIsAccepted(t *testing.T) {
	dev := testkit.Start(t).DevFile()
	start(t, "echo", "--stack", dev)
	start(t, "reviewer", "--stack", dev)
	for _, c := range []struct{ mention, want string }{
		{"hello", "Say hello.\n<nil>"},
		{"goodbye", `does not accept it: failed: Read 1 Artifacts; 0 contain "goodbye".`},
	} {
		out, err := coordinate(t, "--stack", dev, "--reviewer", "reviewer", "--mention", c.mention, "Say hello.")
		if got := fmt.Sprint(out, err); !strings.Contains(got, c.want) {
			t.Errorf("looking for %s: %q", c.mention, got)
		}
	}
}

// shellStand is a dev stack with the shell Worker's manifest, in which sh may run.
type shellStand struct {
	*testkit.Stack
	t   *testing.T
	dev string
	// gate is called for every request to the Authorization Service, before it is
	// passed on and, with the answer, after. It may wait for release.
	gate atomic.Pointer[func(r *http.Request, answered bool)]
	// runs is a file to which a command adds a line each time it runs.
	runs string
}

func newShellStand(t *testing.T) *shellStand {
	t.Helper()
	s := &shellStand{Stack: testkit.Start(t), t: t, runs: filepath.Join(t.TempDir(), "runs")}
	source, err := os.ReadFile("workers/shell/manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(source), `["echo", `, `["sh", "echo", `, 1)
	if _, err := s.As("policy").InstallManifest(t.Context(), "shell", changed, ""); err != nil {
		t.Fatal(err)
	}
	s.dev = s.DevFile()
	target, err := url.Parse(s.AuthzURL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := func(answered bool) {
			if f := s.gate.Load(); f != nil {
				(*f)(r, answered)
			}
		}
		call(false)
		buffered := httptest.NewRecorder()
		proxy.ServeHTTP(buffered, r)
		call(true)
		for name, values := range buffered.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(buffered.Code)
		_, _ = io.Copy(w, buffered.Body)
	}))
	t.Cleanup(front.Close)
	text, err := os.ReadFile(s.dev)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.dev, bytes.ReplaceAll(text, []byte(s.AuthzURL), []byte(front.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// order has the Coordinator ask for a command in the background.
func (s *shellStand) order(command []string, stdin string) <-chan string {
	s.t.Helper()
	constraints, err := json.Marshal(map[string]any{"run": map[string]any{"command": command, "stdin": stdin}})
	if err != nil {
		s.t.Fatal(err)
	}
	done := make(chan string, 1)
	go func() {
		out, err := coordinate(s.t, "--stack", s.dev, "--worker", "shell", "--capability", "shell.run", "--shell", "--constraints", string(constraints), "Run it.")
		done <- fmt.Sprint(out, err)
	}()
	return done
}

// counting is a command that tells each time it runs.
func (s *shellStand) counting(then string) []string {
	return []string{"sh", "-c", "echo run >> " + s.runs + "; " + then}
}

func (s *shellStand) count() int {
	text, _ := os.ReadFile(s.runs) // not there before the first run
	return strings.Count(string(text), "run")
}

// worker starts the shell Worker.
func (s *shellStand) worker(args ...string) *program {
	s.t.Helper()
	return start(s.t, "shell", append([]string{"--stack", s.dev}, args...)...)
}

// stopAt waits, at a point of the worker's next request to a path, until the
// worker is killed.
func (s *shellStand) stopAt(suffix string, answered bool) (reached, release chan struct{}) {
	reached, release = make(chan struct{}), make(chan struct{})
	var once sync.Once
	f := func(r *http.Request, after bool) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, suffix) && after == answered {
			once.Do(func() { close(reached); <-release })
		}
	}
	s.gate.Store(&f)
	return reached, release
}

// await waits for a channel, with a test's patience.
func await[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Patience)
	defer cancel()
	select {
	case v = <-c:
	case <-ctx.Done():
		t.Fatal("not in time: " + what)
	}
	return v
}

// record finds the action of the only WorkItem as the server keeps it, and the
// evidence records of it.
func (s *shellStand) record() (action strictjson.Value, records []strictjson.Value) {
	s.t.Helper()
	missions, err := s.Owner.Missions(s.t.Context(), "")
	if err != nil || len(missions) != 1 {
		s.t.Fatalf("%d Missions, %v", len(missions), err)
	}
	query := "?groupId=" + url.QueryEscape(missions[0].GroupID)
	get := func(path string) strictjson.Value {
		a := s.Do(testkit.Request{Method: http.MethodGet, URL: s.AuthzURL + path, Token: s.Token(s.Owner)})
		if a.Status != http.StatusOK {
			s.t.Fatalf("%s: %d %s", path, a.Status, a.Body)
		}
		return a.Value(s.t)
	}
	var actions []strictjson.Value
	for _, a := range get("/v1/actions" + query).Member("items").Items() {
		actions = append(actions, a)
	}
	if len(actions) != 1 {
		s.t.Fatalf("%d Proposed Actions, want one however often the Worker began", len(actions))
	}
	for _, r := range get("/v1/evidence" + query).Member("items").Items() {
		for _, a := range r.Member("actions").Items() {
			records = append(records, a)
		}
	}
	return actions[0], records
}

func TestTheEvidenceOfACommandIsAboutExactlyWhatRan(t *testing.T) {
	s := newShellStand(t)
	s.worker()
	out := await(t, "the Mission", s.order([]string{"sha256sum"}, "abc"))
	const digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if out != digest+"  -\n<nil>" {
		t.Fatalf("%q", out)
	}
	action, records := s.record()
	p := action.Member("parameters")
	for name, want := range map[string]string{
		"argv": `["sha256sum"]`, "stdinDigest": `"sha256:` + digest + `"`, "environment": `["PATH=/usr/bin:/bin"]`,
	} {
		if got := string(p.Member(name).Raw()); got != want {
			t.Errorf("decided on %s %s, want %s", name, got, want)
		}
	}
	if got := p.Member("executable").Str(); filepath.Base(got) != "sha256sum" {
		t.Errorf("executable %q", got)
	}
	if got := p.Member("directory").Str(); !strings.HasPrefix(got, filepath.Join(filepath.Dir(s.dev), "shell-work")+"/") {
		t.Errorf("directory %q", got)
	}
	arguments, err := manifest.ParametersDigest(p)
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 2 {
		t.Fatalf("%d records, want one of the decision and one of the execution", len(records))
	}
	for i, r := range records {
		if r.Member("action_id").Str() != action.Member("actionId").Str() || r.Member("arguments_digest").Str() != arguments {
			t.Errorf("record %d is about %s", i, r.Raw())
		}
	}
	executed := records[1]
	for path, want := range map[string]string{
		"outcome": "success", "result_digest": client.Hash([]byte(digest + "  -\n")), "approval_decision": "allow",
	} {
		if got := executed.Member(path).Str(); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	drift := executed.Member("argument_drift")
	if drift.Member("result").Str() != "matched" || drift.Member("observed_arg_digest").Str() != arguments || drift.Member("approved_arg_digest").Str() != arguments {
		t.Errorf("drift %s", drift.Raw())
	}
}

func TestWhatTheManifestDeniesIsNotExecuted(t *testing.T) {
	s := newShellStand(t)
	s.worker()
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out := await(t, "the Mission", s.order([]string{"rm", victim}, ""))
	if !strings.Contains(out, "failed: Not executed: the World Manifest says DENY (listed-programs-only)") {
		t.Errorf("%q", out)
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
	if action, records := s.record(); action.Member("state").Str() != "denied" || len(records) != 1 {
		t.Errorf("%s, %d records", action.Raw(), len(records))
	}
}

// A Worker that is killed at any point runs its command at most once.
func TestAKilledShellWorkerRunsItsCommandAtMostOnce(t *testing.T) {
	for _, c := range []struct {
		name, path string
		answered   bool
		forget     bool // the journal is lost, as on another machine
		runs       int
		want       string
	}{
		{"before the decision", "/v1/actions", false, false, 1, "done\n<nil>"},
		{"between decision and execution", "/v1/actions", true, false, 1, "done\n<nil>"},
		{"between decision and execution, journal lost", "/v1/actions", true, true, 0, "is not run again"},
		{"between execution and report", "/outcome", false, false, 1, "done\n<nil>"},
		{"after the report", "/outcome", true, false, 1, "done\n<nil>"},
		{"after the report, journal lost", "/outcome", true, true, 1, "is not run again"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newShellStand(t)
			reached, release := s.stopAt(c.path, c.answered)
			w := s.worker()
			done := s.order(s.counting("echo done"), "")
			await(t, "the point is reached", reached)
			w.kill()
			close(release)
			if c.forget {
				if err := os.RemoveAll(filepath.Join(filepath.Dir(s.dev), "shell-work")); err != nil {
					t.Fatal(err)
				}
			}
			s.worker()
			if out := await(t, "the Mission", done); !strings.Contains(out, c.want) {
				t.Errorf("%q, want %q", out, c.want)
			}
			s.record() // one Action
			if got := s.count(); got != c.runs {
				t.Errorf("the command ran %d times, want %d", got, c.runs)
			}
		})
	}
	t.Run("during the execution", func(t *testing.T) {
		s := newShellStand(t)
		w := s.worker()
		// The command outlives its Worker, and so must not be begun beside itself.
		done := s.order(s.counting("echo $$ > "+s.runs+".pid; sleep 600"), "")
		testwait.Until(t, "the command runs", func() bool { b, err := os.ReadFile(s.runs + ".pid"); return err == nil && len(b) > 0 })
		w.kill()
		t.Cleanup(func() {
			var pid int
			text, _ := os.ReadFile(s.runs + ".pid")
			if _, err := fmt.Sscan(string(text), &pid); err == nil && pid > 1 {
				_ = syscall.Kill(-pid, syscall.SIGKILL)
			}
		})
		s.worker()
		if out := await(t, "the Mission", done); !strings.Contains(out, "An earlier run was interrupted") {
			t.Errorf("%q", out)
		}
		_, records := s.record()
		if last := records[len(records)-1]; s.count() != 1 || last.Member("outcome").Str() != "failure" || last.Member("argument_drift").Member("result").Str() != "not-checked" {
			t.Errorf("%d runs; the record says %s", s.count(), last.Raw())
		}
	})
}
