package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options are the limits of a Store; the zero value of each means its default.
type Options struct {
	// OrganizationID scopes the Admission Log.
	OrganizationID string
	// Writers bounds the connections that commit, default 8.
	Writers int32
	// Readers bounds the connections that read, default 16.
	Readers int32
	// CommitTimeout bounds the wait for a commit's answer, default 30 s; past it
	// the outcome is settled like that of a lost connection.
	CommitTimeout time.Duration
	// BulkRows is from how many receipts and Events on a batch is sent with COPY,
	// default 64.
	BulkRows int
	// SnapshotEvery is how many Events a quiet Group may be ahead of its snapshot,
	// default 2,000; a busy one may be ahead by fifty times as many, or by as many
	// as the snapshot stands for. SnapshotQuiet is how long a Group must not have
	// grown to count as quiet, default 2 s.
	SnapshotEvery int64
	SnapshotQuiet time.Duration
	// TrimChunk is how many Events of an archived Group one transaction takes out of
	// the online log, default 5,000.
	TrimChunk int64
	// Hooks are for tests.
	Hooks Hooks
}

// Hooks let a test stand in for a crash.
type Hooks struct {
	// BeforeCommit runs before anything is sent; its error is returned.
	BeforeCommit func(*Batch) error
	// AfterCommit runs after the server confirmed; its error is returned in
	// place of success, as if the answer had been lost.
	AfterCommit func(*Batch) error
	// AfterTrim runs after Events up to a sequence were taken out; its error ends
	// the trimming there.
	AfterTrim func(groupID string, to int64) error
}

// Store is one Organization's database. It is safe for concurrent use.
type Store struct {
	options Options
	hooks   Hooks
	writers *pgxpool.Pool
	readers *pgxpool.Pool
	trees   *treeCache
}

// Open connects lazily to the database; it fails only for a bad URL. Close it.
func Open(ctx context.Context, url string, options Options) (*Store, error) {
	if options.Writers <= 0 {
		options.Writers = 8
	}
	if options.Readers <= 0 {
		options.Readers = 16
	}
	if options.CommitTimeout <= 0 {
		options.CommitTimeout = 30 * time.Second
	}
	if options.BulkRows <= 0 {
		options.BulkRows = 64
	}
	if options.SnapshotEvery <= 0 {
		options.SnapshotEvery = 2000
	}
	if options.TrimChunk <= 0 {
		options.TrimChunk = 5000
	}
	if options.SnapshotQuiet <= 0 {
		options.SnapshotQuiet = 2 * time.Second
	}
	s := &Store{options: options, hooks: options.Hooks, trees: newTreeCache(100_000)}
	var err error
	if s.writers, err = pool(ctx, url, options.Writers, "mw-writer"); err != nil {
		return nil, err
	}
	if s.readers, err = pool(ctx, url, options.Readers, "mw-reader"); err != nil {
		s.writers.Close()
		return nil, err
	}
	return s, nil
}

// started is where a connection keeps its server process's start time.
const started = "mw.backend_start"

func pool(ctx context.Context, url string, size int32, name string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("events: database URL: %w", err)
	}
	cfg.MaxConns = size
	cfg.ConnConfig.RuntimeParams["application_name"] = name
	// Every statement here looks rows up by key. A plan made while a table was
	// nearly empty must not keep scanning it when it has grown, so the planner is
	// held to index lookups and to one plan per statement.
	for _, param := range []string{"enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"} {
		cfg.ConnConfig.RuntimeParams[param] = "off"
	}
	cfg.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	cfg.ConnConfig.RuntimeParams["timezone"] = "UTC"
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		useByteaArrays(conn.TypeMap())
		var at time.Time
		err := conn.QueryRow(ctx, "SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()").Scan(&at)
		conn.PgConn().CustomData()[started] = at
		return err
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// Close gives all connections back.
func (s *Store) Close() {
	s.writers.Close()
	s.readers.Close()
}

// Reader is the pool for reads of other packages.
func (s *Store) Reader() *pgxpool.Pool { return s.readers }

// OrganizationID is the scope of the Admission Log.
func (s *Store) OrganizationID() string { return s.options.OrganizationID }

// Ping reports whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.readers.Ping(ctx); err != nil {
		return unavailable(err)
	}
	return nil
}

// Now reads the database's clock, which decides every expiry.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	var now time.Time
	err := s.readers.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	return now.UTC(), read(err)
}

// unavailable marks an error of reaching the database; nothing was committed.
func unavailable(err error) error {
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// read marks the error of a read that failed for want of a database.
func read(err error) error {
	if err == nil {
		return nil
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Severity != "FATAL" && pg.Code[:2] != "57" && pg.Code[:2] != "53" && pg.Code[:2] != "08" {
		return err
	}
	if errors.Is(err, pgx.ErrNoRows) || errors.Is(err, context.Canceled) {
		return err
	}
	return unavailable(err)
}
