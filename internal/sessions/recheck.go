package sessions

import (
	"context"
	"fmt"

	"github.com/missionweave/server/internal/protocol"
)

// Recheck is Check for the many connections of a process at once, by one query:
// the answer at i is about ids[i], nil where it still holds. Expiry is left to
// the caller, because a session may have been renewed by another token.
func (s *Service) Recheck(ctx context.Context, ids []Identity) ([]*protocol.Error, error) {
	agents := make([]string, len(ids))
	for i, id := range ids {
		agents[i] = id.Principal.ID
	}
	var revision int64
	if err := s.cfg.Pool.QueryRow(ctx, `SELECT revision FROM registry_head`).Scan(&revision); err != nil {
		return nil, fmt.Errorf("sessions: recheck: %w", err)
	}
	rows, err := s.cfg.Pool.Query(ctx, `SELECT agent_id, session_epoch FROM agent_sessions WHERE agent_id = ANY($1)`, agents)
	if err != nil {
		return nil, fmt.Errorf("sessions: recheck: %w", err)
	}
	defer rows.Close()
	epochs := make(map[string]int64, len(ids))
	for rows.Next() {
		var agent string
		var epoch int64
		if err := rows.Scan(&agent, &epoch); err != nil {
			return nil, fmt.Errorf("sessions: recheck: %w", err)
		}
		epochs[agent] = epoch
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("sessions: recheck: %w", err)
	}
	view, err := s.cfg.Directory.AtLeast(ctx, revision)
	if err != nil {
		return nil, err
	}
	out := make([]*protocol.Error, len(ids))
	for i, id := range ids {
		if id.Kind == SessionToken && epochs[id.Principal.ID] > id.SessionEpoch {
			out[i] = stale(id.SessionEpoch)
		} else if _, reason := s.holder(view, id.Principal, id.KeyID); reason != "" {
			out[i] = protocol.NewError(protocol.CodeAuthRequired, reason)
		}
	}
	return out, nil
}
