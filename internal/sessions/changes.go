package sessions

import (
	"context"
	"fmt"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry"
)

// Look is the place in the database up to which the sessions are known; the zero
// value knows nothing. It is only good for the database it came from.
type Look struct {
	// transaction is the oldest one that had not ended: everything before it has
	// been seen.
	transaction string
}

// Changes is what a look found.
type Changes struct {
	// Look is where the next look begins.
	Look Look
	// Complete tells that nothing was known before, so that Epochs says nothing
	// about what it does not name: Recheck answers for those.
	Complete bool
	// Epochs are the Session Epochs, by Agent, that were opened since the last look;
	// some may be known already.
	Epochs map[string]int64
	// Revision is that of the Registry: with a new one, keys and Agent Cards may
	// have ended.
	Revision int64

	service *Service
	view    *registry.View
}

// Changed tells which sessions were opened since a look. What it costs depends on
// how many those are, and not on how many there are.
func (s *Service) Changed(ctx context.Context, since Look) (*Changes, error) {
	c := &Changes{Epochs: map[string]int64{}, service: s}
	from := since.transaction
	if from == "" {
		from = noTransaction
	}
	// Without a row the snapshot is all there is. Rows of transactions that are yet
	// to come are those of another database that this one was restored from.
	rows, err := s.cfg.Pool.Query(ctx, `
		SELECT pg_snapshot_xmin(n.now)::text, pg_snapshot_xmin(n.now) < $1::text::xid8, n.revision, s.agent_id, s.session_epoch
		FROM (SELECT pg_current_snapshot() AS now, revision FROM registry_head) n
		LEFT JOIN agent_sessions s ON s.changed_in >= $1::text::xid8 AND s.changed_in < pg_snapshot_xmax(n.now)`, from)
	if err != nil {
		return nil, fmt.Errorf("sessions: changes: %w", err)
	}
	defer rows.Close()
	backwards := false
	for rows.Next() {
		var agent *string
		var epoch *int64
		if err := rows.Scan(&c.Look.transaction, &backwards, &c.Revision, &agent, &epoch); err != nil {
			return nil, fmt.Errorf("sessions: changes: %w", err)
		}
		if agent != nil {
			c.Epochs[*agent] = *epoch
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("sessions: changes: %w", err)
	}
	// A database that has gone back in time is another one.
	c.Complete = since.transaction == "" || backwards
	c.view, err = s.cfg.Directory.AtLeast(ctx, c.Revision)
	return c, err
}

// noTransaction is past all of them: a first look reads no session.
const noTransaction = "18446744073709551615"

// Holds tells whether an Identity still holds as far as Changes knows, and until
// when its key and Agent Card let it; zero means for ever. Expiry is left to the
// caller, as in Recheck.
func (c *Changes) Holds(id Identity) (until time.Time, refusal *protocol.Error) {
	if id.Kind == SessionToken && c.Epochs[id.Principal.ID] > id.SessionEpoch {
		return until, stale(id.SessionEpoch)
	}
	ends, reason := c.service.holder(c.view, id.Principal, id.KeyID)
	if reason != "" {
		return until, protocol.NewError(protocol.CodeAuthRequired, reason)
	}
	for _, end := range ends {
		if end.ok && (until.IsZero() || end.t.Before(until)) {
			until = end.t
		}
	}
	return until, nil
}
