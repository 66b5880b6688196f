package devstack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DefaultDatabase is the database a stack makes on first start.
const DefaultDatabase = "missionweave"

// ErrExternal says that a server is not the stack's own and cannot be stopped
// or started by it.
var ErrExternal = errors.New("the server is external")

// Options says where a stack lives and what it uses instead of its own servers.
type Options struct {
	// DataDir is the stack's folder, made when absent. It may stay empty when
	// both URLs are given.
	DataDir string
	// DatabaseURL and NATSURL name servers to use instead of private ones. Empty
	// means the environment's MW_DATABASE_URL and MW_NATS_URL, and without those
	// a private server.
	DatabaseURL string
	NATSURL     string
	// Database is the name of the private cluster's database, by default
	// DefaultDatabase.
	Database string
	// PostgresPort and NATSPort are wished for; 0 means the last start's port. A
	// port that is taken is replaced by a free one.
	PostgresPort int
	NATSPort     int
	// PostgresSettings are added to the private cluster's configuration.
	PostgresSettings map[string]string
	// Logger gets what an operator should see; nil drops it.
	Logger *slog.Logger

	fast bool // no durability, for ForTest
}

// Stack is a running pair of servers, private or external.
type Stack struct {
	// DatabaseURL reaches the database over TCP and contains its password.
	DatabaseURL string
	// SocketDatabaseURL reaches the same database over a unix socket, for this
	// account and root only, without a password and at less cost; for an external
	// server it equals DatabaseURL.
	SocketDatabaseURL string
	// NATSURL reaches NATS and contains its password.
	NATSURL string
	// NATSSystemURL reaches NATS's system account and NATSIssuerSeed is the key
	// whose word NATS takes for Workers; both are secret, and empty for an external
	// server.
	NATSSystemURL, NATSIssuerSeed string
	// Dir is the absolute folder of the stack, empty if nothing is private.
	Dir string

	log     *slog.Logger
	cluster *cluster  // nil: external
	nats    *natsNode // nil: external
	unlock  func()

	templates templateDatabase // of NewDatabase
	adminConn keptConn
}

// Start brings the stack up and returns when both servers answer. The context
// bounds the start only; Stop ends the stack. Errors: ErrInUse, ErrNoPostgres,
// and what the servers say.
func Start(ctx context.Context, opts Options) (_ *Stack, err error) {
	s := &Stack{log: opts.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.DatabaseURL = firstNonEmpty(opts.DatabaseURL, os.Getenv("MW_DATABASE_URL"))
	s.SocketDatabaseURL = s.DatabaseURL
	s.NATSURL = firstNonEmpty(opts.NATSURL, os.Getenv("MW_NATS_URL"))
	if s.DatabaseURL != "" && s.NATSURL != "" {
		return s, nil
	}
	lay, err := newLayout(opts.DataDir)
	if err != nil {
		return nil, err
	}
	s.Dir = lay.root
	if s.unlock, err = lay.lock(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
		}
	}()
	remembered, err := lay.loadState()
	if err != nil {
		return nil, err
	}
	if s.DatabaseURL == "" {
		if err := s.startPostgres(ctx, lay, opts, &remembered); err != nil {
			return nil, err
		}
	}
	if s.NATSURL == "" {
		if remembered.NATSSystemPassword == "" || remembered.NATSIssuerSeed == "" {
			remembered.NATSSystemPassword = newSecret()
			if remembered.NATSIssuerSeed, err = newIssuer(); err != nil {
				return nil, err
			}
		}
		s.nats = &natsNode{
			layout: lay, password: remembered.NATSPassword, systemPassword: remembered.NATSSystemPassword,
			issuer: remembered.NATSIssuerSeed, log: s.log,
		}
		if err := s.nats.start(firstNonZero(opts.NATSPort, remembered.NATSPort), false); err != nil {
			return nil, err
		}
		s.NATSURL, s.NATSSystemURL, s.NATSIssuerSeed = s.nats.url(), s.nats.systemURL(), s.nats.issuer
		remembered.NATSPort = s.nats.port
	}
	return s, lay.saveState(remembered)
}

func (s *Stack) startPostgres(ctx context.Context, lay layout, opts Options, remembered *state) error {
	c, err := newCluster(ctx, lay, remembered.PostgresPassword, opts.fast, opts.PostgresSettings, s.log)
	if err != nil {
		return err
	}
	if err := c.start(ctx, firstNonZero(opts.PostgresPort, remembered.PostgresPort), false); err != nil {
		return err
	}
	s.cluster = c
	database := firstNonEmpty(opts.Database, DefaultDatabase)
	if err := ensureDatabase(ctx, c.url("postgres"), database); err != nil {
		return err
	}
	s.DatabaseURL, s.SocketDatabaseURL = c.url(database), c.socketURL(database)
	remembered.PostgresPort, remembered.PostgresPassword = c.port, c.password
	return nil
}

// ensureDatabase creates the database if it is missing.
func ensureDatabase(ctx context.Context, adminURL, name string) error {
	conn, err := pgx.Connect(ctx, adminURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil {
		return err
	}
	if exists {
		return nil
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42P04" { // duplicate_database
		return nil
	}
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// Stop ends the private servers: NATS first, since it only carries copies, then
// PostgreSQL with a fast shutdown, or at once when the context ends before. It
// may be called again.
func (s *Stack) Stop(ctx context.Context) error {
	var err error
	s.adminConn.close(ctx)
	if s.nats != nil {
		s.nats.stop()
	}
	if s.cluster != nil {
		err = s.cluster.halt(ctx)
		if s.cluster.socketDir != (layout{root: s.Dir}).runDir() {
			_ = os.Remove(s.cluster.socketDir) // in a shared temporary folder
		}
	}
	if s.unlock != nil {
		s.unlock()
		s.unlock = nil
	}
	return err
}

// StopPostgres shuts the private PostgreSQL down until StartPostgres, for tests
// of an outage. ErrExternal if it is not private.
func (s *Stack) StopPostgres(ctx context.Context) error {
	if s.cluster == nil {
		return ErrExternal
	}
	return s.cluster.halt(ctx)
}

// StartPostgres ends an outage begun by StopPostgres, on the same port.
func (s *Stack) StartPostgres(ctx context.Context) error {
	if s.cluster == nil {
		return ErrExternal
	}
	return s.cluster.start(ctx, s.cluster.port, true)
}

// KillPostgres ends the private postmaster with SIGKILL. It is started again by
// the stack, like after any crash.
func (s *Stack) KillPostgres() error {
	if s.cluster == nil {
		return ErrExternal
	}
	return s.cluster.kill()
}

// StopNATS shuts the private NATS server down until StartNATS.
func (s *Stack) StopNATS() error {
	if s.nats == nil {
		return ErrExternal
	}
	s.nats.stop()
	return nil
}

// NATSStore is the folder of the private NATS server's files, for tests that lose
// it while the server is stopped; "" for an external server.
func (s *Stack) NATSStore() string {
	if s.nats == nil {
		return ""
	}
	return s.nats.layout.natsDir()
}

// StartNATS ends an outage begun by StopNATS, on the same port and store.
func (s *Stack) StartNATS() error {
	if s.nats == nil {
		return ErrExternal
	}
	return s.nats.start(s.nats.port, true)
}

func firstNonEmpty(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func firstNonZero(values ...int) int {
	for _, v := range values {
		if v != 0 {
			return v
		}
	}
	return 0
}
