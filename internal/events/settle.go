package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Attempt is a commit on its way: the server process that runs it, and a row
// that exists exactly if it committed.
type Attempt struct {
	pid     uint32
	started time.Time
	witness func(*pgx.Batch, *bool)
}

// attempt notes the witness before the commit is sent.
func (s *Store) attempt(conn *pgxpool.Conn, b *Batch) *Attempt {
	a := &Attempt{pid: conn.Conn().PgConn().PID()}
	a.started, _ = conn.Conn().PgConn().CustomData()[started].(time.Time)
	exists := func(sql string, args ...any) func(*pgx.Batch, *bool) {
		return func(q *pgx.Batch, found *bool) {
			q.Queue("SELECT EXISTS ("+sql+")", args...).QueryRow(func(row pgx.Row) error { return row.Scan(found) })
		}
	}
	switch {
	case len(b.Events) > 0:
		ev := &b.Events[0]
		id, _ := uuidBytes(ev.EventID)
		a.witness = exists("SELECT FROM event_log WHERE tree_id = $1 AND group_id = $2 AND sequence = $3 AND event_id = $4",
			ev.TreeID, ev.GroupID, ev.Sequence, id)
	case len(b.OrgEvents) > 0:
		id, _ := uuidBytes(b.OrgEvents[0].EventID)
		a.witness = exists("SELECT FROM org_events WHERE event_id = $1", id)
	case len(b.Audits) > 0:
		id, _ := uuidBytes(b.Audits[0].ID)
		a.witness = exists("SELECT FROM audit_records WHERE audit_id = $1", id)
	}
	return a
}

// Settle finds out what became of an attempt whose answer got lost. The server
// process that ran it is ended first: a process that nobody listens to can still
// commit, and an absence that is read before that would be a lie. Until Settle
// answers without error nothing may be decided on the Groups of the batch.
//
// A batch without a witness (timers, snapshots) counts as not committed; to
// write it again is harmless.
func (s *Store) Settle(ctx context.Context, a *Attempt) (committed bool, err error) {
	if a == nil || a.witness == nil {
		return false, nil
	}
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		alive, err := s.end(ctx, a)
		if err != nil {
			return false, err
		}
		if !alive {
			break
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("%w: %w", ErrIndeterminate, ctx.Err())
		case <-time.After(wait):
		}
	}
	var q pgx.Batch
	a.witness(&q, &committed)
	if err := s.readers.SendBatch(ctx, &q).Close(); err != nil {
		return false, read(err)
	}
	return committed, nil
}

// end asks the attempt's server process to stop and tells whether it is there.
func (s *Store) end(ctx context.Context, a *Attempt) (alive bool, err error) {
	var asked bool
	err = s.readers.QueryRow(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE pid = $1 AND backend_start = $2`, int32(a.pid), a.started).Scan(&asked) //nolint:gosec // a process id
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, read(err)
}
