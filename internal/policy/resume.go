package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/sessions"
)

// What a crash or an Authority out of reach left on its way is finished here,
// without waiting for the Agent to come back. The hazard is finishing too much: a
// use that the log has not taken is an Agent's to ask for again, under a token and
// laws that hold then, and nobody else's.

// resumePause is the pause between two looks, and resumeAfter how long a row has
// been on its way when a look takes it for left behind.
const (
	resumePause = time.Second
	resumeAfter = 3 * time.Second
	resumePage  = 100
)

// useAgain goes on with a use of an answer that did not come to its end. What the
// log has taken was used, whatever holds by now. What it has not taken is decided
// again: the token, the manifest and every law may have changed since.
func (s *Service) useAgain(ctx context.Context, who sessions.Identity, p *Proposal, parameters strictjson.Value, digest string, x *row) (*Answer, error) {
	if done, err := s.finish(ctx, x); done != nil || err != nil {
		return done, err
	}
	asked := x
	if x.usesRequestID != x.requestID {
		var err error
		if asked, err = findAction(ctx, s.cfg.Pool, `group_id = $1 AND request_id = $2 AND agent_id = $3`, x.groupID, x.usesRequestID, x.agentID); err != nil {
			return nil, err
		}
		if asked == nil {
			return nil, errors.New("policy: the ASK of a use is gone")
		}
	}
	return s.useAnswer(ctx, who, p, parameters, digest, asked, x)
}

// finish makes a row final whose Command is in the log; nil when it is not there.
func (s *Service) finish(ctx context.Context, x *row) (*Answer, error) {
	taken, err := s.taken(ctx, x.command)
	if err != nil || !taken {
		return nil, err
	}
	x.state = stateAllowed
	return s.settle(ctx, x, stateConsuming)
}

// taken tells whether a signed Command was accepted.
func (s *Service) taken(ctx context.Context, command []byte) (there bool, err error) {
	if command == nil {
		return false, nil
	}
	v, err := strictjson.Raw(command).Value()
	if err != nil {
		return false, fmt.Errorf("policy: a stored Command: %w", err)
	}
	actor := v.Member("actor")
	err = s.cfg.Pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM receipts WHERE actor_type = $1 AND actor_id = $2 AND action_id = $3)`,
		actor.Member("type").Str(), actor.Member("id").Str(), v.Member("actionId").Str()).Scan(&there)
	return there, err
}

// Run finishes what is on its way until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	ticker := time.NewTicker(resumePause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := s.Resume(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.WarnContext(ctx, "Proposed Actions on their way could not be finished", "err", err)
		}
	}
}

// Resume looks once at every Proposed Action that has been on its way for a while:
// an ASK is sent, a use that the log took is recorded, and one that can never be
// taken any more is denied.
func (s *Service) Resume(ctx context.Context) error {
	var failed error
	since, agent, action := time.Unix(0, 0), "", ""
	for {
		rows, err := s.cfg.Pool.Query(ctx, sqlAction+` WHERE state IN ('asking', 'consuming') AND decided_at < clock_timestamp() - $1::interval
			AND (decided_at, agent_id, action_id) > ($2, $3, $4) ORDER BY decided_at, agent_id, action_id LIMIT $5`,
			resumeAfter, since, agent, action, resumePage)
		if err != nil {
			return err
		}
		page, err := pgx.CollectRows(rows, scanAction)
		if err != nil {
			return err
		}
		for _, x := range page {
			since, agent, action = x.decidedAt, x.agentID, x.actionID
			// One that cannot be finished now must not hold up the others.
			if err := s.resume(ctx, x); err != nil && failed == nil {
				failed = err
			}
		}
		if len(page) < resumePage || ctx.Err() != nil {
			return failed
		}
	}
}

func (s *Service) resume(ctx context.Context, x *row) error {
	if x.state == stateAsking {
		_, err := s.ask(ctx, x)
		return err
	}
	if done, err := s.finish(ctx, x); done != nil || err != nil {
		return err
	}
	over, err := s.useIsOver(ctx, x)
	if err != nil || !over {
		return err
	}
	if stored, err := findAction(ctx, s.cfg.Pool, `agent_id = $1 AND action_id = $2`, x.agentID, x.actionID); err != nil || stored == nil || stored.state != stateConsuming {
		return err
	}
	_, err = s.consume(ctx, x) // the log says no for good
	return err
}

// useIsOver tells that the log can take no use under the row any more: the answer
// was used or has expired, the lease has ended, or the Agent owns the work no more.
func (s *Service) useIsOver(ctx context.Context, x *row) (bool, error) {
	given, err := s.given(ctx, x.groupID, &row{workItemID: x.workItemID, requestID: x.usesRequestID})
	if err != nil {
		return false, err
	}
	g, err := s.cfg.Store.LoadGroup(ctx, x.groupID)
	if err != nil {
		return false, err
	}
	now, err := s.now(ctx, s.cfg.Pool)
	if err != nil {
		return false, err
	}
	if given == nil || !given.Granted(now) {
		return true, nil
	}
	w, l := leaseAt(g.State, x.workItemID, x.leaseID)
	return l == nil || !insideLease(l, now) || w.Owner == nil || w.Owner.AgentID != x.agentID, nil
}
