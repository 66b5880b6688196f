// Package e2e tests whole processes: what a crash or an outage in the middle of
// a Mission leaves behind.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/examples"
	"github.com/missionweave/server/internal/cli"
	"github.com/missionweave/server/internal/demo"
	"github.com/missionweave/server/internal/missionfile"
	"github.com/missionweave/server/internal/verify"
)

// childVariable makes this test program run mw instead of the tests, so that a
// server can be killed without building another program.
const childVariable = "MW_E2E_ARGUMENTS"

func TestMain(m *testing.M) {
	if arguments := os.Getenv(childVariable); arguments != "" {
		_ = os.Unsetenv(childVariable)
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		code := cli.NewApp().Run(ctx, strings.Split(arguments, "\n"))
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// process is a running mw dev.
type process struct {
	cmd    *exec.Cmd
	errors bytes.Buffer
}

// startDev runs mw dev and returns when it is ready.
func startDev(t *testing.T, dir string, portBase int) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(self)} //nolint:noctx // it is killed by the test
	p.cmd.Env = append(os.Environ(), childVariable+"="+strings.Join([]string{
		"dev", "--data", dir, "--port-base", strconv.Itoa(portBase),
	}, "\n"))
	p.cmd.Stderr = &p.errors
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	want := "ready " + filepath.Join(dir, "dev.json")
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == want {
			return p
		}
	}
	_ = p.cmd.Wait()
	t.Fatalf("mw dev ended before it was ready:\n%s", p.errors.String())
	return nil
}

func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
}

// stop ends the process as an operator does; it must end cleanly.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("mw dev after SIGTERM: %v\n%s", err, p.errors.String())
	}
}

// freePorts finds a base whose six ports are free.
func freePorts(t *testing.T) int {
	t.Helper()
	for range 100 {
		base := 20000 + rand.IntN(20000)
		var held []net.Listener
		for _, port := range []int{base, base + 1, base + 10, base + 11, base + 20, base + 21} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)) //nolint:noctx // returns at once
			if err != nil {
				break
			}
			held = append(held, l)
		}
		for _, l := range held {
			_ = l.Close()
		}
		if len(held) == 6 {
			return base
		}
	}
	t.Fatal("no free ports")
	return 0
}

// watcher is a timeline that tells when an Event of the Mission was seen.
type watcher struct {
	mu   sync.Mutex
	text bytes.Buffer
	seen map[int]chan struct{}
}

func newWatcher(sequences ...int) *watcher {
	s := &watcher{seen: map[int]chan struct{}{}}
	for _, n := range sequences {
		s.seen[n] = make(chan struct{})
	}
	return s
}

func (s *watcher) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(b)
	if fields := strings.Fields(string(b)); len(fields) > 1 {
		if n, err := strconv.Atoi(fields[0]); err == nil {
			if c, ok := s.seen[n]; ok {
				delete(s.seen, n)
				close(c)
			}
		}
	}
	return len(b), nil
}

func (s *watcher) wait(sequence int) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.seen[sequence]; ok {
		return c
	}
	done := make(chan struct{})
	close(done)
	return done
}

func (s *watcher) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func mission(t *testing.T) *missionfile.File {
	t.Helper()
	file, err := missionfile.Parse(examples.ReleaseName, examples.Release)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// verified fails the test unless the database is what its log says.
func verified(t *testing.T, databaseURL string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	report, err := verify.Database(t.Context(), pool, verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !report.OK() {
		var b bytes.Buffer
		_, _ = report.WriteTo(&b)
		t.Errorf("verify:\n%s", b.String())
	}
}

func TestAMissionSurvivesServersKilledInTheMiddleOfIt(t *testing.T) {
	dir, base := t.TempDir(), freePorts(t)
	p := startDev(t, dir, base)
	stack, err := client.ReadDevStack(filepath.Join(dir, "dev.json"))
	if err != nil {
		t.Fatal(err)
	}
	kills := []int{3, 19, 34}
	seen := newWatcher(kills...)
	type result struct {
		summary *demo.Summary
		err     error
	}
	finished := make(chan result, 1)
	go func() {
		summary, err := demo.Run(t.Context(), demo.Options{Stack: stack, File: mission(t), Out: seen, Limit: 3 * time.Minute})
		finished <- result{summary, err}
	}()
	for _, sequence := range kills {
		select {
		case <-seen.wait(sequence):
		case r := <-finished:
			t.Fatalf("the Mission ended before Event %d: %v\n%s", sequence, r.err, seen)
		}
		p.kill(t)
		p = startDev(t, dir, base)
	}
	r := <-finished
	if r.err != nil {
		t.Fatalf("%v\n%s\nserver:\n%s", r.err, seen, p.errors.String())
	}
	if stack, err = client.ReadDevStack(filepath.Join(dir, "dev.json")); err != nil {
		t.Fatal(err)
	}
	verified(t, stack.DatabaseURL)
	p.stop(t)
}
