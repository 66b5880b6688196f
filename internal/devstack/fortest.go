package devstack

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/migrate"
)

// TB is what this package needs of testing.TB; naming it here keeps package
// testing out of the server's programs.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

const (
	testDirPrefix   = "missionweave-test-"
	testStartWithin = 90 * time.Second
	testDropWithin  = 20 * time.Second
	testDirMaxAge   = 15 * time.Minute
)

var shared struct {
	once  sync.Once
	stack *Stack
	err   error
}

// ForTest returns the servers shared by all tests of this process, started at
// the first call. They end with the process, also when it is killed, and their
// files with them. Durability is off: tests of crashes start their own stack.
// Take a database of your own with NewDatabase, and stop nothing here.
//
// A missing PostgreSQL fails the test: skipping would let a green run say
// nothing.
func ForTest(t TB) *Stack {
	t.Helper()
	shared.once.Do(func() { shared.stack, shared.err = startShared() })
	if shared.err != nil {
		t.Fatalf("test stack: %v", shared.err)
	}
	return shared.stack
}

// StopShared ends the servers of ForTest, for a TestMain that looks for leaked
// goroutines after its tests. Without it they end with the process.
func StopShared(ctx context.Context) error {
	var err error
	shared.once.Do(func() { shared.err = fmt.Errorf("the test stack was stopped before its first use") })
	if shared.stack != nil {
		err = shared.stack.Stop(ctx)
		shared.err = fmt.Errorf("the test stack was stopped")
		if shared.stack.Dir != "" {
			_ = os.RemoveAll(shared.stack.Dir)
		}
	}
	return err
}

func startShared() (*Stack, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testStartWithin)
	defer cancel()
	removeStaleTestDirs(ctx, os.TempDir())
	dir, err := os.MkdirTemp("", testDirPrefix)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil { // passed through by the database account
		return nil, err
	}
	if err := startWatchdog(dir); err != nil {
		return nil, err
	}
	return Start(ctx, Options{DataDir: dir, fast: true})
}

// removeStaleTestDirs removes what test processes left that were killed along
// with their watchdog. Nobody holds the lock of such a folder.
func removeStaleTestDirs(ctx context.Context, tmp string) {
	dirs, _ := filepath.Glob(filepath.Join(tmp, testDirPrefix+"*"))
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < testDirMaxAge {
			continue
		}
		lay := layout{root: dir}
		release, err := lay.lock()
		if err != nil {
			continue
		}
		if endPrevious(ctx, lay.dataDir(), slog.New(slog.DiscardHandler)) == nil {
			_ = os.RemoveAll(dir)
		}
		release()
	}
}

// templateDatabase is the migrated database that test databases are copied from.
type templateDatabase struct {
	once sync.Once
	name string
	err  error
	next atomic.Int64
}

// NewDatabase makes a fresh migrated database and returns its URL. It is
// dropped when the test ends, with whatever connections it still has.
func (s *Stack) NewDatabase(t TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testStartWithin)
	defer cancel()
	s.templates.once.Do(func() { s.templates.name, s.templates.err = s.makeTemplate(ctx) })
	if s.templates.err != nil {
		t.Fatalf("migrated template database: %v", s.templates.err)
	}
	return s.newDatabase(ctx, t, s.templates.name)
}

// NewEmptyDatabase is NewDatabase without the schema.
func (s *Stack) NewEmptyDatabase(t TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testStartWithin)
	defer cancel()
	return s.newDatabase(ctx, t, "template1")
}

func (s *Stack) newDatabase(ctx context.Context, t TB, template string) string {
	t.Helper()
	name := fmt.Sprintf("mw_test_%d_%d_%d", os.Getpid(), time.Now().UnixNano(), s.templates.next.Add(1))
	create := "CREATE DATABASE " + name + " TEMPLATE " + template
	if s.cluster != nil && s.cluster.fast {
		create += " STRATEGY FILE_COPY" // the faster one where nothing is synced
	}
	if err := s.admin(ctx, create); err != nil {
		t.Fatalf("test database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testDropWithin)
		defer cancel()
		if err := s.admin(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Logf("drop test database: %v", err)
		}
	})
	url, err := withDatabase(s.SocketDatabaseURL, name)
	if err != nil {
		t.Fatalf("test database: %v", err)
	}
	return url
}

// makeTemplate migrates a database under another name and renames it when it is
// complete, so that a template found under its name is whole. The name holds the
// schema's fingerprint: an external server outlives schemas.
func (s *Stack) makeTemplate(ctx context.Context) (string, error) {
	schema, err := migrate.Fingerprint()
	if err != nil {
		return "", err
	}
	name := "mw_template_" + schema[:16]
	raw := fmt.Sprintf("%s_%d_%d", name, os.Getpid(), time.Now().UnixNano())

	conn, err := pgx.Connect(ctx, s.DatabaseURL)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var exists bool
	const known = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)"
	if err := conn.QueryRow(ctx, known, name).Scan(&exists); err != nil || exists {
		return name, err
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+raw); err != nil {
		return "", err
	}
	url, err := withDatabase(s.DatabaseURL, raw)
	if err != nil {
		return "", err
	}
	if _, err := migrate.Up(ctx, url); err != nil {
		_, _ = conn.Exec(ctx, "DROP DATABASE "+raw+" WITH (FORCE)")
		return "", err
	}
	if _, err := conn.Exec(ctx, "ALTER DATABASE "+raw+" RENAME TO "+name); err != nil {
		// Another test process was faster; its template is as good.
		_, _ = conn.Exec(ctx, "DROP DATABASE "+raw+" WITH (FORCE)")
		if err := conn.QueryRow(ctx, known, name).Scan(&exists); err != nil || !exists {
			return "", fmt.Errorf("template %s did not appear: %w", name, err)
		}
	}
	return name, nil
}

// admin runs one statement in the stack's own database, over one connection that
// is kept: a connection costs as much as the copy of a small database.
func (s *Stack) admin(ctx context.Context, sql string) error {
	s.adminConn.mu.Lock()
	defer s.adminConn.mu.Unlock()
	if c := s.adminConn.conn; c == nil || c.IsClosed() {
		conn, err := pgx.Connect(ctx, s.SocketDatabaseURL)
		if err != nil {
			return err
		}
		s.adminConn.conn = conn
	}
	_, err := s.adminConn.conn.Exec(ctx, sql)
	if err != nil && ctx.Err() == nil && s.adminConn.conn.IsClosed() {
		// PostgreSQL was restarted since; an outage is what some tests are about.
		if s.adminConn.conn, err = pgx.Connect(ctx, s.SocketDatabaseURL); err != nil {
			return err
		}
		_, err = s.adminConn.conn.Exec(ctx, sql)
	}
	return err
}

// keptConn is the connection of admin.
type keptConn struct {
	mu   sync.Mutex
	conn *pgx.Conn
}

func (k *keptConn) close(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn != nil {
		_ = k.conn.Close(ctx)
		k.conn = nil
	}
}
