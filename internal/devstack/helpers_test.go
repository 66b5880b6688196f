package devstack

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Modes of the test binary when it plays a program that owns a stack.
const (
	helperModeVar = "MW_DEVSTACK_TEST_HELPER"
	helperDirVar  = "MW_DEVSTACK_TEST_DIR"
)

func TestMain(m *testing.M) {
	// These tests are about private servers.
	for _, v := range []string{"MW_DATABASE_URL", "MW_NATS_URL"} {
		_ = os.Unsetenv(v)
	}
	if mode := os.Getenv(helperModeVar); mode != "" {
		helperMain(mode, os.Getenv(helperDirVar))
		return
	}
	os.Exit(m.Run())
}

// helperMain is the other program: it starts a stack, says where, and waits to
// be ended in the way its mode says.
func helperMain(mode, dir string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch mode {
	case "stack":
		s, err := Start(ctx, Options{DataDir: dir})
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println("ready", s.DatabaseURL)
		<-ctx.Done()
		if err := s.Stop(context.Background()); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	case "fortest-wait", "fortest-panic":
		s := ForTest(helperTB{})
		fmt.Println("ready", s.Dir)
		if mode == "fortest-panic" {
			panic("a test that panics")
		}
		<-ctx.Done()
	}
}

// helperTB is the least a test can be.
type helperTB struct{}

func (helperTB) Helper()                   {}
func (helperTB) Cleanup(func())            {}
func (helperTB) Logf(string, ...any)       {}
func (helperTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

type helperProgram struct {
	cmd  *exec.Cmd
	word string // what it said after "ready"
}

// runHelper starts the other program and waits for its ready line.
func runHelper(t *testing.T, mode, dir string) *helperProgram {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperModeVar+"="+mode, helperDirVar+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the other program said %q: %v", line, err)
	}
	word, ok := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if !ok {
		t.Fatalf("the other program said %q", line)
	}
	return &helperProgram{cmd: cmd, word: word}
}

// openDir makes a folder that every account can pass through, unlike
// t.TempDir, which only its owner can enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "missionweave-devstack-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "data")
}

// startStack starts a stack and stops it with the test.
func startStack(t *testing.T, opts Options) *Stack {
	t.Helper()
	ctx := testContext(t)
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	}
	s, err := Start(ctx, opts)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() { stopStack(t, s) })
	return s
}

func stopStack(t *testing.T, s *Stack) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	// Late lines of a stopping server must not panic a finished test.
	defer func() { _ = recover() }()
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// query runs one statement and returns the first column of its first row as
// text, or "" without rows.
func query(ctx context.Context, url, sql string) (string, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	var out string
	for rows.Next() {
		values := rows.RawValues()
		if out == "" && len(values) > 0 {
			out = string(values[0])
		}
	}
	return out, rows.Err()
}

func mustQuery(t *testing.T, url, sql string) string {
	t.Helper()
	out, err := query(testContext(t), url, sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return out
}

// eventually asks again until ok or the test's patience ends.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("did not happen: %s", what)
		}
	}
}

func mustServing(t *testing.T, dir string) []int {
	t.Helper()
	pids, err := serving(filepath.Join(dir, "postgres", "data"))
	if err != nil {
		t.Fatal(err)
	}
	return pids
}
