package devstack

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestKilledPostmasterComesBackOnItsPortWithEveryCommit(t *testing.T) {
	t.Parallel()
	s := startStack(t, Options{DataDir: openDir(t)})
	ctx := testContext(t)
	mustQuery(t, s.DatabaseURL, "CREATE TABLE kept AS SELECT 42 AS n")
	// A backend in the middle of a statement outlives its postmaster for a
	// moment and still holds the shared memory.
	busy, err := pgx.Connect(ctx, s.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close(ctx) }()
	ended := make(chan error, 1)
	go func() { _, err := busy.Exec(ctx, "SELECT pg_sleep(600)"); ended <- err }()
	eventually(t, "the statement runs", func() bool {
		return mustQuery(t, s.DatabaseURL, "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'") == "1"
	})
	if err := s.KillPostgres(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "PostgreSQL answers again on its old URL", func() bool {
		out, err := query(ctx, s.DatabaseURL, "SELECT n FROM kept")
		return err == nil && out == "42"
	})
	if err := <-ended; err == nil {
		t.Error("the interrupted statement succeeded")
	}
}

func TestOutageLastsUntilItIsEnded(t *testing.T) {
	t.Parallel()
	s := startStack(t, Options{DataDir: openDir(t), fast: true})
	if err := s.StopPostgres(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := query(testContext(t), s.DatabaseURL, "SELECT 1"); err == nil {
		t.Fatal("PostgreSQL answers during the outage")
	}
	if err := s.KillPostgres(); err == nil {
		t.Error("killed a PostgreSQL that does not run")
	}
	if err := s.StartPostgres(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if got := mustQuery(t, s.DatabaseURL, "SELECT 1"); got != "1" {
		t.Errorf("got %q", got)
	}
	if err := s.StartPostgres(testContext(t)); err == nil {
		t.Error("started a PostgreSQL that already runs")
	}
}

func TestKilledProgramTakesItsPostgresAlongAndTheNextStartContinues(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	other := runHelper(t, "stack", dir)
	mustQuery(t, other.word, "CREATE TABLE kept AS SELECT 42 AS n")
	if err := other.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.cmd.Wait()
	s := startStack(t, Options{DataDir: dir})
	if s.DatabaseURL != other.word {
		t.Error("the database URL changed")
	}
	if got := mustQuery(t, s.DatabaseURL, "SELECT n FROM kept"); got != "42" {
		t.Errorf("row = %q, want 42", got)
	}
}

func TestTerminatedProgramShutsItsClusterDownCleanly(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	other := runHelper(t, "stack", dir)
	if err := other.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := other.cmd.Wait(); err != nil {
		t.Fatalf("the program ended with %v", err)
	}
	if pids := mustServing(t, dir); len(pids) != 0 {
		t.Errorf("processes %v still serve", pids)
	}
	if got := controlState(t, dir); got != "shut down" {
		t.Errorf("cluster state = %q, want a clean shut down", got)
	}
}

// A postmaster that nobody told of its parent's death, as on systems without
// that signal, or when only the program's thread was lost.
func TestPostgresThatStillRunsIsStoppedAndReplaced(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	s := startStack(t, Options{DataDir: dir})
	mustQuery(t, s.DatabaseURL, "CREATE TABLE kept AS SELECT 42 AS n")
	c := s.cluster
	stopStack(t, s)

	name, inherit, err := c.dirFor(c.layout.dataDir())
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(inherit)
	left := c.command(testContext(t), c.bin.postgres(), []string{"-D", name, "-p", strconv.Itoa(c.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=" + c.socketDir}, inherit, 0)
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- left.Wait() }()
	eventually(t, "the left-over PostgreSQL answers", func() bool {
		_, err := query(testContext(t), s.DatabaseURL, "INSERT INTO kept VALUES (43)")
		return err == nil
	})

	again := startStack(t, Options{DataDir: dir})
	if err := <-ended; err != nil {
		t.Errorf("the left-over PostgreSQL ended with %v, want a clean shutdown", err)
	}
	if got := mustQuery(t, again.DatabaseURL, "SELECT sum(n) FROM kept"); got != "85" {
		t.Errorf("sum = %q, want 85", got)
	}
	if pids := mustServing(t, dir); slices.Contains(pids, left.Process.Pid) {
		t.Error("the left-over process still serves")
	}
}

func TestStalePidFiles(t *testing.T) {
	t.Parallel()
	cases := map[string]func(t *testing.T, c *cluster) string{
		"of a dead process": func(*testing.T, *cluster) string { return pidFile(1 << 22) }, // above pid_max
		"of a process id that a stranger has now": func(t *testing.T, c *cluster) string {
			cmd := c.command(t.Context(), "/bin/sleep", []string{"600"}, nil, syscall.SIGKILL)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
					t.Errorf("the stranger was ended: %v", err)
				}
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			return pidFile(cmd.Process.Pid)
		},
		"cut short by a crash":   func(*testing.T, *cluster) string { return "12" },
		"empty":                  func(*testing.T, *cluster) string { return "" },
		"that is not a number":   func(*testing.T, *cluster) string { return "x\ny\n" },
		"with a negative number": func(*testing.T, *cluster) string { return "-1\n" },
	}
	dir := openDir(t)
	first := startStack(t, Options{DataDir: dir, fast: true})
	stopStack(t, first)
	path := filepath.Join(first.cluster.layout.dataDir(), "postmaster.pid")
	for name, content := range cases {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(content(t, first.cluster)), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := first.cluster.acct.own(path); err != nil {
				t.Fatal(err)
			}
			again := startStack(t, Options{DataDir: dir, fast: true})
			if got := mustQuery(t, again.DatabaseURL, "SELECT 1"); got != "1" {
				t.Errorf("got %q", got)
			}
		})
	}
}

func pidFile(pid int) string {
	return strconv.Itoa(pid) + "\n/somewhere\n1700000000\n5432\n/tmp\n127.0.0.1\n        1         2\nready\n"
}

func TestHalfMadeClusterIsMadeAnew(t *testing.T) {
	t.Parallel()
	lay, err := newLayout(openDir(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(lay.freshDataDir(), "base"), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(lay.freshDataDir(), "PG_VERSION"), []byte("15\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startStack(t, Options{DataDir: lay.root, fast: true})
	if got := mustQuery(t, s.DatabaseURL, "SELECT 1"); got != "1" {
		t.Errorf("got %q", got)
	}
}

func TestProgramAccountMayNotEnterTheFolderAbove(t *testing.T) {
	t.Parallel()
	closed := filepath.Dir(openDir(t))
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(closed, "data")
	s := startStack(t, Options{DataDir: dir, fast: true})
	mustQuery(t, s.DatabaseURL, "CREATE TABLE kept AS SELECT 42 AS n")
	if os.Geteuid() == 0 {
		if got := mustQuery(t, s.DatabaseURL, "SHOW data_directory"); !strings.HasPrefix(got, "/proc/self/fd/") {
			t.Errorf("data_directory = %q, want an inherited descriptor", got)
		}
	}
	if err := s.KillPostgres(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a restart", func() bool {
		out, err := query(testContext(t), s.SocketDatabaseURL, "SELECT n FROM kept")
		return err == nil && out == "42"
	})
	info, err := os.Stat(closed)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the closed folder's mode became %v (%v)", info.Mode(), err)
	}
}

func TestRefusedPasswordIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	s := startStack(t, Options{DataDir: dir, fast: true})
	lay := s.cluster.layout
	stopStack(t, s)
	st, err := lay.loadState()
	if err != nil {
		t.Fatal(err)
	}
	st.PostgresPassword = "another"
	if err := lay.saveState(st); err != nil {
		t.Fatal(err)
	}
	_, err = Start(testContext(t), Options{DataDir: dir, fast: true, Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "password") {
		t.Errorf("error = %v, want one about the password", err)
	}
	if pids := mustServing(t, dir); len(pids) != 0 {
		t.Errorf("the failed start left %v running", pids)
	}
}

func TestServersOfForTestEndWithTheirProcess(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"fortest-wait", "fortest-panic"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			other := runHelper(t, mode, "")
			dir := other.word
			if mode == "fortest-wait" {
				if len(mustServing(t, dir)) == 0 {
					t.Fatal("no PostgreSQL serves the other process")
				}
				if err := other.cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			if err := other.cmd.Wait(); err == nil {
				t.Fatal("the other process ended well")
			}
			eventually(t, "its PostgreSQL ends and its folder goes", func() bool {
				_, err := os.Stat(dir)
				return errors.Is(err, os.ErrNotExist) && len(mustServing(t, dir)) == 0
			})
		})
	}
}

// controlState asks PostgreSQL's own tool how the cluster was left.
func controlState(t *testing.T, dir string) string {
	t.Helper()
	all, err := FindBinaries(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(all[0].Dir, "pg_controldata"), "-D", filepath.Join(dir, "postgres", "data"))
	cmd.Env = []string{"LC_ALL=C"}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(line, "Database cluster state:"); ok {
			return strings.TrimSpace(v)
		}
	}
	t.Fatalf("no state in %s", out)
	return ""
}
