// Package presence shares between replicas what Agents last said of themselves
// (PROTOCOL.md 6.2, COMMANDS.md 8.9).
//
// The hazard is a presence that outlives its Agent: a record counts only until
// it expires, only for the Agent's current Session Epoch, and goes with the
// connection that said it. It renews nothing and proves nothing. Records are
// written behind the connection's back, the latest of each Agent only, so that
// an Agent that says much costs the database little.
package presence

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Pauses of Run.
const (
	flushEvery = 200 * time.Millisecond
	sweepEvery = time.Minute
)

// Store is safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool
	log  *slog.Logger

	mu    sync.Mutex
	dirty map[string]said // by Agent
	gone  map[string]struct{}
}

type said struct {
	record     protocol.PresenceRecord
	connection string
	expires    time.Time
}

// New makes a Store. Run writes for it.
func New(pool *pgxpool.Pool, log *slog.Logger) *Store {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Store{pool: pool, log: log, dirty: map[string]said{}, gone: map[string]struct{}{}}
}

// Note keeps what an Agent says over a connection. It does not wait.
func (s *Store) Note(connection string, record protocol.PresenceRecord, expires time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty[record.AgentID] = said{record, connection, expires}
}

// Ended forgets what was said over a connection. It does not wait.
func (s *Store) Ended(connection, agentID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d, ok := s.dirty[agentID]; ok && d.connection == connection {
		delete(s.dirty, agentID)
	}
	s.gone[connection] = struct{}{}
}

// Of returns the records of Agents that hold now.
func (s *Store) Of(ctx context.Context, agentIDs []string) (map[string]protocol.PresenceRecord, error) {
	rows, err := s.pool.Query(ctx, `SELECT p.agent_id, p.document FROM presence p
		JOIN agent_sessions a ON a.agent_id = p.agent_id AND a.session_epoch = p.session_epoch
		WHERE p.agent_id = ANY($1) AND p.expires_at > clock_timestamp()`, agentIDs)
	if err != nil {
		return nil, fmt.Errorf("presence: %w", err)
	}
	out := map[string]protocol.PresenceRecord{}
	var id string
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &document}, func() error {
		var record protocol.PresenceRecord
		doc, err := strictjson.Parse(document)
		if err == nil {
			err = strictjson.Decode(doc.Root(), &record)
		}
		out[id] = record
		return err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("presence: %w", err)
	}
	return out, nil
}

const (
	sqlSay = `INSERT INTO presence AS p (agent_id, session_epoch, connection, expires_at, document)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::timestamptz[], $5::bytea[])
ON CONFLICT (agent_id) DO UPDATE SET session_epoch = excluded.session_epoch, connection = excluded.connection,
	expires_at = excluded.expires_at, document = excluded.document WHERE p.session_epoch <= excluded.session_epoch`

	sqlEnd = `DELETE FROM presence WHERE connection = ANY($1)`

	sqlSweep = `DELETE FROM presence WHERE expires_at < clock_timestamp()`
)

// Flush writes what was noted.
func (s *Store) Flush(ctx context.Context) error {
	s.mu.Lock()
	dirty, gone := s.dirty, s.gone
	s.dirty, s.gone = map[string]said{}, map[string]struct{}{}
	s.mu.Unlock()
	if len(dirty) == 0 && len(gone) == 0 {
		return nil
	}
	var q pgx.Batch
	if len(dirty) > 0 {
		n := len(dirty)
		agents, connections, documents := make([]string, 0, n), make([]string, 0, n), make([][]byte, 0, n)
		epochs, expires := make([]int64, 0, n), make([]time.Time, 0, n)
		for id, d := range dirty {
			b, err := strictjson.Marshal(d.record)
			if err != nil {
				return fmt.Errorf("presence: %w", err)
			}
			agents, epochs, connections = append(agents, id), append(epochs, d.record.SessionEpoch), append(connections, d.connection)
			expires, documents = append(expires, d.expires), append(documents, b)
		}
		q.Queue(sqlSay, agents, epochs, connections, expires, documents)
	}
	if len(gone) > 0 {
		ended := make([]string, 0, len(gone))
		for c := range gone {
			ended = append(ended, c)
		}
		q.Queue(sqlEnd, ended)
	}
	if err := s.pool.SendBatch(ctx, &q).Close(); err != nil {
		return fmt.Errorf("presence: %w", err)
	}
	return nil
}

// Run writes until the context ends. What could not be written is said again by
// its Agent, or expires.
func (s *Store) Run(ctx context.Context) error {
	flush, sweep := time.NewTicker(flushEvery), time.NewTicker(sweepEvery)
	defer flush.Stop()
	defer sweep.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = s.Flush(last) // connections that ended with the server
			return nil
		case <-flush.C:
			err = s.Flush(ctx)
		case <-sweep.C:
			_, err = s.pool.Exec(ctx, sqlSweep)
		}
		if err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "presence not shared", "err", err)
		}
	}
}
