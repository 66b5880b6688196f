// Package denials keeps the protected audit of callers that were refused outside
// the Command pipeline: wrong credentials, failed handshakes, rate limits.
//
// The hazard is a stranger who fills our disk by being refused. Refusals are
// therefore counted in memory, per peer, code, stage and reason, and written
// every few seconds as one row per such key and hour. Memory is bounded; what
// exceeds the bound is counted for the peer named "*".
package denials

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/trust"
)

const (
	maxPending   = 4096
	flushEvery   = 5 * time.Second
	flushTimeout = 5 * time.Second
	// OtherPeers is the peer of what exceeds the bound on memory.
	OtherPeers = "*"
)

// Log counts and writes denials.
type Log struct {
	pool *pgxpool.Pool
	now  func() time.Time
	log  *slog.Logger

	mu      sync.Mutex
	pending map[key]*tally
}

type key struct {
	hour                      time.Time
	peer, code, stage, reason string
}

func (k key) compare(o key) int {
	return cmp.Or(k.hour.Compare(o.hour), cmp.Compare(k.peer, o.peer), cmp.Compare(k.code, o.code),
		cmp.Compare(k.stage, o.stage), cmp.Compare(k.reason, o.reason))
}

type tally struct {
	count       int64
	first, last time.Time
}

// New returns a Log; Run writes it.
func New(pool *pgxpool.Pool, now func() time.Time, log *slog.Logger) *Log {
	if now == nil {
		now = time.Now
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Log{pool: pool, now: now, log: log, pending: map[key]*tally{}}
}

// Note counts one refusal of a peer. It never blocks on the database.
func (l *Log) Note(peer string, refusal *protocol.Error) {
	now := l.now().UTC()
	stage, reason := refusal.Stage, refusal.Reason
	if failure, ok := trust.FailureOf(refusal); ok {
		stage, reason = failure.Stage.String(), failure.Reason
	}
	k := key{now.Truncate(time.Hour), peer, string(refusal.Code), stage, reason}
	l.mu.Lock()
	defer l.mu.Unlock()
	t, ok := l.pending[k]
	if !ok && len(l.pending) >= maxPending {
		k.peer = OtherPeers
		t, ok = l.pending[k]
	}
	if !ok {
		t = &tally{first: now}
		l.pending[k] = t
	}
	t.count++
	t.last = now
}

// Run writes until ctx ends, and once more then.
func (l *Log) Run(ctx context.Context) error {
	ticker := time.NewTicker(flushEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if err := l.Flush(ctx); err != nil {
				l.log.WarnContext(ctx, "denials not written", "err", err)
			}
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
			defer cancel()
			return l.Flush(last)
		}
	}
}

// Flush writes what is pending. On failure it is kept for the next time.
func (l *Log) Flush(ctx context.Context) error {
	l.mu.Lock()
	pending := l.pending
	l.pending = map[key]*tally{}
	l.mu.Unlock()
	if len(pending) == 0 {
		return nil
	}
	batch := &pgx.Batch{}
	// One order for all processes: they may write the same rows at the same time.
	for _, k := range slices.SortedFunc(maps.Keys(pending), key.compare) {
		t := pending[k]
		batch.Queue(`
			INSERT INTO access_denials (hour, peer, code, stage, reason, occurrences, first_at, last_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
			ON CONFLICT (hour, peer, code, stage, reason) DO UPDATE SET
				occurrences = access_denials.occurrences + excluded.occurrences,
				first_at = least(access_denials.first_at, excluded.first_at),
				last_at = greatest(access_denials.last_at, excluded.last_at)`,
			k.hour, k.peer, k.code, k.stage, k.reason, t.count, t.first, t.last)
	}
	err := l.pool.SendBatch(ctx, batch).Close()
	if err != nil {
		l.restore(pending)
	}
	return err
}

// restore puts back what could not be written. A batch is one transaction, so
// none of it was.
func (l *Log) restore(pending map[key]*tally) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, t := range pending {
		if _, ok := l.pending[k]; !ok && len(l.pending) >= maxPending {
			k.peer = OtherPeers
		}
		if now, ok := l.pending[k]; ok {
			now.count += t.count
			now.first = minTime(now.first, t.first)
			now.last = maxTime(now.last, t.last)
		} else {
			l.pending[k] = t
		}
	}
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func maxTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
