package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	superuser       = "missionweave"
	logRotateBytes  = 16 << 20
	startAttempts   = 5
	readyPoll       = 20 * time.Millisecond
	readyPatience   = 60 * time.Second
	restartMinDelay = 100 * time.Millisecond
	restartMaxDelay = 5 * time.Second
)

// durableSettings suit one development machine: modest memory, few and large
// checkpoints, and every commit on disk.
var durableSettings = map[string]string{
	"fsync":                      "on",
	"synchronous_commit":         "on",
	"full_page_writes":           "on",
	"shared_buffers":             "256MB",
	"max_connections":            "200",
	"max_wal_size":               "2GB",
	"min_wal_size":               "768MB",
	"checkpoint_timeout":         "15min",
	"random_page_cost":           "1.1",
	"jit":                        "off",
	"timezone":                   "UTC",
	"log_timezone":               "UTC",
	"log_checkpoints":            "off",
	"log_min_messages":           "warning",
	"logging_collector":          "off",
	"unix_socket_permissions":    "0700",
	"password_encryption":        "scram-sha-256",
	"listen_addresses":           "127.0.0.1",
	"external_pid_file":          "",
	"shared_preload_libraries":   "",
	"max_locks_per_transaction":  "128",
	"idle_session_timeout":       "0",
	"dynamic_shared_memory_type": "posix",
}

// fastSettings give durability up for speed; ForTest alone uses them. Commits
// still reach the kernel before they are answered, so that a killed postmaster
// loses none.
var fastSettings = map[string]string{
	"fsync":            "off",
	"full_page_writes": "off",
	"wal_level":        "minimal",
	"max_wal_senders":  "0",
	"shared_buffers":   "64MB",
	"max_connections":  "100",
	"max_wal_size":     "512MB",
}

// cluster is one private PostgreSQL: its files, and the process while it runs.
type cluster struct {
	layout    layout
	bin       Binaries
	acct      account
	socketDir string
	password  string
	settings  map[string]string
	fast      bool
	log       *slog.Logger

	life sync.Mutex // held by start and halt, so that they never overlap

	mu      sync.Mutex
	port    int
	proc    *process           // nil while stopped
	cancel  context.CancelFunc // ends the supervisor; nil while stopped
	stopped chan struct{}      // closed when the supervisor has returned
}

// process is one run of the postmaster.
type process struct {
	handle  *os.Process
	logFrom int64 // where its lines begin in the log file
	exited  chan struct{}
	err     error // how it ended; read after exited is closed
}

// newCluster finds the programs and prepares the folders; it starts nothing.
func newCluster(ctx context.Context, l layout, password string, fast bool, extra map[string]string, log *slog.Logger) (*cluster, error) {
	all, err := FindBinaries(ctx)
	if err != nil {
		return nil, err
	}
	bin, err := chooseBinaries(all, l.dataDir())
	if err != nil {
		return nil, err
	}
	acct, err := chooseAccount(l.dataDir())
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(l.postgresDir(), 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	sock, err := l.socketDir(acct)
	if err != nil {
		return nil, err
	}
	settings := map[string]string{}
	for _, m := range []map[string]string{durableSettings, extra} {
		for k, v := range m {
			settings[k] = v
		}
	}
	if fast {
		for k, v := range fastSettings {
			settings[k] = v
		}
	}
	settings["unix_socket_directories"] = sock
	return &cluster{
		layout: l, bin: bin, acct: acct, socketDir: sock, password: password,
		settings: settings, fast: fast, log: log,
	}, nil
}

// url is the TCP connection URL of a database of this cluster; it holds the
// password.
func (c *cluster) url(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, c.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)), Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// socketURL is the same over the unix socket, which needs no password and costs
// less per connection and per round trip.
func (c *cluster) socketURL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User(superuser), Path: "/" + database,
		RawQuery: url.Values{"host": {c.socketDir}, "port": {strconv.Itoa(c.port)}}.Encode(),
	}
	return u.String()
}

// dirFor is how the account names dir: its path, or an inherited descriptor
// when a folder on the way is closed to the account.
func (c *cluster) dirFor(dir string) (name string, inherit []*os.File, err error) {
	at, ok := c.acct.mayEnter(filepath.Dir(dir))
	if ok {
		return dir, nil, nil
	}
	if !canPassDir {
		return "", nil, fmt.Errorf("account %s may not enter %s, which is on the way to %s; choose another data directory", c.acct.name, at, dir)
	}
	f, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return "/proc/self/fd/3", []*os.File{f}, nil // the first inherited file is always 3
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// command prepares a server program: bare environment, so that PG* variables of
// the caller cannot point it at another cluster.
func (c *cluster) command(ctx context.Context, program string, args []string, inherit []*os.File, onParentDeath syscall.Signal) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"PATH=" + c.bin.Dir + ":/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.Dir = "/"
	cmd.ExtraFiles = inherit
	cmd.SysProcAttr = childAttr(c.acct, onParentDeath)
	return cmd
}

// initialise makes the cluster if there is none. It is built beside its place
// and moved there when complete, so a crash leaves no half-made cluster.
func (c *cluster) initialise(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(c.layout.dataDir(), "PG_VERSION")); err == nil {
		return nil
	}
	fresh := c.layout.freshDataDir()
	if err := c.prepareFresh(fresh); err != nil {
		return err
	}
	switch {
	case c.fast && c.copyCached(fresh):
	case c.fast:
		if err := c.prepareFresh(fresh); err != nil { // a copy may have failed half way
			return err
		}
		if err := c.initdb(ctx, fresh); err != nil {
			return err
		}
		c.keepCached(fresh)
	default:
		if err := c.initdb(ctx, fresh); err != nil {
			return err
		}
	}
	if err := os.Rename(fresh, c.layout.dataDir()); err != nil {
		return err
	}
	return syncDir(c.layout.postgresDir())
}

// prepareFresh makes the folder empty and the account's.
func (c *cluster) prepareFresh(fresh string) error {
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return err
	}
	return c.acct.own(fresh)
}

// initdb makes a cluster in the empty folder with the stack's password.
func (c *cluster) initdb(ctx context.Context, fresh string) error {
	// The socket's folder is the one place both accounts can reach by a path.
	pwFile := filepath.Join(c.socketDir, "initdb.pw")
	if err := os.WriteFile(pwFile, []byte(c.password+"\n"), 0o600); err != nil {
		return err
	}
	defer func() { _ = os.Remove(pwFile) }()
	if err := c.acct.own(pwFile); err != nil {
		return err
	}
	dir, inherit, err := c.dirFor(fresh)
	if err != nil {
		return err
	}
	defer closeAll(inherit)
	args := []string{
		"-D", dir, "-U", superuser, "--pwfile", pwFile,
		// The socket lies in a folder that only the database account can enter, so
		// the file system has already asked who comes.
		"--auth-local", "trust", "--auth-host", "scram-sha-256",
		"--encoding", "UTF8", "--no-locale", "--no-instructions",
	}
	if c.fast {
		args = append(args, "--no-sync")
	}
	runtime.LockOSThread() // the thread is the parent that must outlive the child
	out, err := c.command(ctx, c.bin.initdb(), args, inherit, syscall.SIGKILL).CombinedOutput()
	runtime.UnlockOSThread()
	if err != nil {
		return fmt.Errorf("initdb as %s: %w: %s", c.accountName(), err, lastLines(string(out), 5))
	}
	return nil
}

func (c *cluster) accountName() string {
	if c.acct.drop {
		return c.acct.name
	}
	return "the current user"
}

// start brings the cluster up, on wantPort if it is free and else on a port of
// its own choice (a fixed port must be had), and supervises it until halt. The
// context bounds the start and not the life of the cluster.
func (c *cluster) start(ctx context.Context, wantPort int, fixed bool) error {
	c.life.Lock()
	defer c.life.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		return errors.New("PostgreSQL already runs")
	}
	proc, err := c.launch(ctx, wantPort, fixed)
	if err != nil {
		return err
	}
	superviseCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.proc, c.cancel, c.stopped = proc, cancel, make(chan struct{})
	go c.supervise(superviseCtx, proc, c.stopped)
	return nil
}

// launch runs postmasters until one answers queries. Called with mu held.
func (c *cluster) launch(ctx context.Context, wantPort int, fixed bool) (*process, error) {
	if err := endPrevious(ctx, c.layout.dataDir(), c.log); err != nil {
		return nil, err
	}
	if err := endPrevious(ctx, c.layout.freshDataDir(), c.log); err != nil {
		return nil, err
	}
	if err := c.initialise(ctx); err != nil {
		return nil, err
	}
	var lastErr error
	for attempt := range startAttempts {
		port := wantPort
		if !fixed && (attempt > 0 || port == 0 || !portIsFree(port)) {
			var err error
			if port, err = freePort(); err != nil {
				return nil, err
			}
		}
		if c.port != port { // unchanged on a restart, when others read it
			c.port = port
		}
		proc, err := c.spawn(port)
		if err != nil {
			return nil, err
		}
		lastErr = c.waitReady(ctx, proc)
		if lastErr == nil {
			return proc, nil
		}
		endNow(proc)
		if fixed || ctx.Err() != nil || !strings.Contains(c.logTail(proc), "Address already in use") {
			return nil, lastErr
		}
	}
	return nil, lastErr
}

// spawn starts one postmaster.
func (c *cluster) spawn(port int) (*process, error) {
	// Lock files of sockets from a killed run could name a process id that is
	// in use again, which PostgreSQL would take for a rival.
	old, _ := filepath.Glob(filepath.Join(c.socketDir, ".s.PGSQL.*"))
	for _, f := range old {
		_ = os.Remove(f)
	}
	logFile, err := c.openLog()
	if err != nil {
		return nil, err
	}
	defer func() { _ = logFile.Close() }()
	dir, inherit, err := c.dirFor(c.layout.dataDir())
	if err != nil {
		return nil, err
	}
	defer closeAll(inherit)
	args := []string{"-D", dir, "-p", strconv.Itoa(port)}
	for k, v := range c.settings {
		args = append(args, "-c", k+"="+v)
	}
	onDeath := syscall.SIGINT // fast shutdown
	if c.fast {
		onDeath = syscall.SIGQUIT
	}
	// No context: the postmaster ends by halt, with a checkpoint, and never by a
	// kill because somebody's deadline passed.
	cmd := c.command(context.Background(), c.bin.postgres(), args, inherit, onDeath)
	cmd.Stdout, cmd.Stderr = logFile, logFile

	proc := &process{exited: make(chan struct{})}
	if proc.logFrom, err = logFile.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		// The kernel takes the death of the starting thread for the parent's, so
		// the thread stays with the child until it has been waited for.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		proc.handle = cmd.Process
		started <- nil
		proc.err = cmd.Wait()
		close(proc.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start PostgreSQL as %s: %w", c.accountName(), err)
	}
	return proc, nil
}

// waitReady returns nil once the server answers a query with our password.
func (c *cluster) waitReady(ctx context.Context, proc *process) error {
	ctx, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	var lastErr error
	for {
		conn, err := pgx.Connect(ctx, c.url("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		lastErr = err
		var refused *pgconn.PgError
		if errors.As(err, &refused) && strings.HasPrefix(refused.Code, "28") {
			return fmt.Errorf("PostgreSQL in %s refuses the stack's own password: %w", c.layout.root, err)
		}
		select {
		case <-proc.exited:
			return fmt.Errorf("PostgreSQL ended while starting (%w), see %s: %s", exitOf(proc), c.layout.postgresLog(), c.logTail(proc))
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL is not ready: %w, last: %w", ctx.Err(), lastErr)
		case <-tick.C:
		}
	}
}
