package authz

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/missionweave/server/internal/authz/tokens"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
)

// Whoever checks online asks the state and needs no revocation. Whoever checks
// offline needs to hear of it: the sweeper looks at the tokens that are out
// whenever a log has grown, writes down which of them ended, and announces it.

// RevokedSubject is where revocations are published: one JSON object each, with
// tokenId, reason, revokedAt and expiresAt. A message may get lost; the list at
// GET /v1/revocations does not.
const RevokedSubject = "missionweave.tokens.revoked"

// wakeSubjects are the subjects whose messages mean that something may have ended.
var wakeSubjects = []string{"missionweave.events.*", "missionweave.sessions"}

const wakePause = 20 * time.Millisecond

func (s *Service) announce(r revocation, now time.Time) {
	if s.cfg.NATS == nil {
		return
	}
	b, err := json.Marshal(map[string]string{
		"tokenId": r.tokenID, "reason": r.reason,
		"revokedAt": lexical.FormatMicros(now.UTC()), "expiresAt": lexical.FormatMicros(r.expiresAt.UTC()),
	})
	if err == nil {
		err = s.cfg.NATS.Publish(RevokedSubject, b)
	}
	if err != nil {
		s.cfg.Log.Warn("a revocation was not announced", "err", err)
	}
}

// Run sweeps until ctx ends: woken over NATS, and every SweepEvery without.
func (s *Service) Run(ctx context.Context) error {
	if s.cfg.NATS != nil {
		for _, subject := range wakeSubjects {
			sub, err := s.cfg.NATS.Subscribe(subject, func(*nats.Msg) { s.Wake() })
			if err != nil {
				return fmt.Errorf("authz: %w", err)
			}
			defer func() { _ = sub.Unsubscribe() }()
		}
	}
	ticker := time.NewTicker(s.cfg.SweepEvery)
	defer ticker.Stop()
	var forgotten time.Time
	for {
		if now := s.cfg.Now(); now.Sub(forgotten) >= forgetEvery {
			forgotten = now
			if _, err := s.Forget(ctx); err != nil && ctx.Err() == nil {
				s.cfg.Log.WarnContext(ctx, "tokens that ended long ago could not be forgotten", "err", err)
			}
		}
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.WarnContext(ctx, "tokens could not be looked at", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			// Events come in bursts, and one look serves them all.
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(wakePause):
			}
		case <-ticker.C:
		}
	}
}

// forgetEvery is the pause between two looks at what may be forgotten, forgetAtOnce
// the most rows of one statement.
const (
	forgetEvery  = 10 * time.Minute
	forgetAtOnce = 1000
)

// Forget deletes the rows of tokens whose expiry lies a day back, and returns how
// many there were. Nothing asks for them any more: no check takes an expired token,
// the revocation list leaves it out, and the Policy Log has issue and end. The row of
// an approval for one use stays; the database refuses what is too early.
func (s *Service) Forget(ctx context.Context) (n int64, err error) {
	for _, sql := range []string{
		`DELETE FROM token_revocations WHERE token_id IN (SELECT token_id FROM token_revocations
			WHERE expires_at < clock_timestamp() - interval '1 day 1 minute' ORDER BY expires_at LIMIT $1)`,
		`DELETE FROM issued_tokens WHERE token_id IN (SELECT t.token_id FROM issued_tokens t
			WHERE t.expires_at < clock_timestamp() - interval '1 day 1 minute' AND NOT t.one_shot
				AND NOT EXISTS (SELECT FROM token_revocations r WHERE r.token_id = t.token_id)
			ORDER BY t.expires_at LIMIT $1)`,
	} {
		for {
			tag, err := s.cfg.Store.Reader().Exec(ctx, sql, forgetAtOnce)
			if err != nil {
				return n, fmt.Errorf("authz: forget: %w", err)
			}
			n += tag.RowsAffected()
			if tag.RowsAffected() < forgetAtOnce {
				break
			}
		}
	}
	return n, nil
}

// Wake makes Run look at once.
func (s *Service) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// out is a token that is out.
type out struct {
	revocation
	claims Claims
	keyID  string
}

// Sweep revokes the tokens that are out and whose ground is gone. It is not safe
// for concurrent use with itself.
func (s *Service) Sweep(ctx context.Context) error {
	withdrawn, err := s.withdrawals(ctx)
	if err != nil {
		return err
	}
	moved, revision, err := s.moved(ctx, withdrawn != s.sweptW)
	if err != nil {
		return err
	}
	now := s.cfg.Now()
	failed := false
	var ended []revocation
	for groupID, head := range moved {
		more, err := s.sweepGroup(ctx, groupID)
		if err != nil {
			// One Group that cannot be read must not hide the others.
			s.cfg.Log.WarnContext(ctx, "tokens of a Group could not be looked at", "group", groupID, "err", err)
			failed = true
			continue
		}
		s.swept[groupID] = head
		ended = append(ended, more...)
	}
	if err := s.revoke(ctx, now, ended); err != nil {
		clear(s.swept) // look at everything again
		return err
	}
	if !failed {
		s.sweptR, s.sweptW = revision, withdrawn
	}
	return nil
}

// withdrawals is a number that another withdrawal changes. Where that is not known
// each sweep takes it for changed.
func (s *Service) withdrawals(ctx context.Context) (int64, error) {
	switch m := s.cfg.Manifests.(type) {
	case nil:
		return s.sweptW, nil
	case CountedManifests:
		return m.Withdrawals(ctx, s.cfg.Store.Reader())
	}
	return s.sweptW + 1, nil
}

// moved lists the Groups with tokens out where something has happened since they
// were looked at: a log of the Mission tree has grown (an account above is charged
// from elsewhere), the Registry has changed, a session was replaced, a manifest was
// withdrawn, or a token is so new that it may have been stored after the
// last look at what it does not lock.
func (s *Service) moved(ctx context.Context, withdrawn bool) (map[string]int64, int64, error) {
	pool := s.cfg.Store.Reader()
	var revision int64
	if err := pool.QueryRow(ctx, `SELECT coalesce((SELECT revision FROM registry_head), 0)`).Scan(&revision); err != nil {
		return nil, 0, fmt.Errorf("authz: sweep: %w", err)
	}
	rows, err := pool.Query(ctx, `
		SELECT t.group_id, (SELECT sum(o.head_sequence)::bigint FROM groups o WHERE o.tree_id = g.tree_id),
			bool_or(t.session_epoch <> s.session_epoch) OR max(t.issued_at) > $1
		FROM issued_tokens t
		JOIN groups g ON g.group_id = t.group_id
		JOIN agent_sessions s ON s.agent_id = t.agent_id
		WHERE t.expires_at > clock_timestamp() AND NOT EXISTS (SELECT FROM token_revocations r WHERE r.token_id = t.token_id)
		GROUP BY t.group_id, g.tree_id`, s.cfg.Now().Add(-2*s.cfg.SweepEvery))
	if err != nil {
		return nil, 0, fmt.Errorf("authz: sweep: %w", err)
	}
	moved, present := map[string]int64{}, map[string]int64{}
	var groupID string
	var head int64
	var stale bool
	_, err = pgx.ForEachRow(rows, []any{&groupID, &head, &stale}, func() error {
		present[groupID] = s.swept[groupID]
		if stale || s.swept[groupID] != head || revision != s.sweptR || withdrawn {
			moved[groupID] = head
		}
		return nil
	})
	s.swept = present
	return moved, revision, err
}

// sweepGroup looks at the tokens of one Group that are out.
func (s *Service) sweepGroup(ctx context.Context, groupID string) ([]revocation, error) {
	chain, err := s.groups.chain(ctx, groupID)
	if err != nil {
		return nil, err
	}
	pool := s.cfg.Store.Reader()
	list, agents, err := s.tokensOut(ctx, groupID)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	var b pgx.Batch
	for _, f := range agents {
		queueFacts(&b, f.agent, &f.facts)
	}
	t := queueTails(&b, chain)
	if err := pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("authz: sweep: %w", err)
	}
	var view *registry.View
	for _, f := range agents {
		if view, err = s.cfg.Directory.AtLeast(ctx, f.revision); err != nil {
			return nil, err
		}
	}
	var ended []revocation
	err = s.groups.decide(ctx, pool, t, func(st *groups.State, above func(string) (*groups.State, error)) error {
		org := s.organization(view)
		for _, o := range list {
			f := agents[o.claims.Subject]
			var err error
			// A session that only ran out may be resumed: it ends no token.
			if perr := agentStands(view, &f.facts, o.claims.Subject, o.keyID, o.claims.SessionEpoch); perr != nil && perr.Reason != "session_expired" {
				err = perr
			} else {
				err = upholds(st, &o.claims, org, f.now, above)
			}
			var perr *protocol.Error
			switch {
			case err == nil:
			case errors.As(err, &perr) && perr.Code != protocol.CodeInternalError:
				o.code, o.reason = perr.Code, string(perr.Code)
				ended = append(ended, o.revocation)
			default:
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.withWithdrawn(ctx, pool, list, ended)
}

// withWithdrawn adds the tokens whose manifest was withdrawn.
func (s *Service) withWithdrawn(ctx context.Context, q Querier, list []*out, ended []revocation) ([]revocation, error) {
	known := map[string]error{}
	for _, o := range list {
		version := o.claims.ManifestVersion
		if version == "" {
			continue
		}
		err, asked := known[version]
		if !asked {
			err = s.manifestStands(ctx, q, version)
			known[version] = err
		}
		var perr *protocol.Error
		switch {
		case err == nil:
		case errors.As(err, &perr):
			o.code, o.reason = perr.Code, perr.Reason
			ended = append(ended, o.revocation)
		default:
			return nil, err
		}
	}
	return ended, nil
}

type agentFacts struct {
	facts
	agent string
}

func (s *Service) tokensOut(ctx context.Context, groupID string) ([]*out, map[string]*agentFacts, error) {
	view, err := s.cfg.Directory.View(ctx)
	if err != nil {
		return nil, nil, err
	}
	issuer := protocol.Actor{}
	if services := view.Services(registry.RoleAuthorization); len(services) > 0 {
		issuer = services[0]
	}
	rows, err := s.cfg.Store.Reader().Query(ctx, `
		SELECT token_id, kind, agent_id, key_id, session_epoch, membership_epoch, coalesce(work_item_id, ''), coalesce(ownership_epoch, 0),
			coalesce(execution_lease_id, ''), coalesce(approval_id, ''), coalesce(manifest_version, ''), expires_at
		FROM issued_tokens t
		WHERE group_id = $1 AND expires_at > clock_timestamp()
		AND NOT EXISTS (SELECT FROM token_revocations r WHERE r.token_id = t.token_id)`, groupID)
	if err != nil {
		return nil, nil, fmt.Errorf("authz: sweep: %w", err)
	}
	agents := map[string]*agentFacts{}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*out, error) {
		o := &out{}
		c := &o.claims
		var kind string
		err := row.Scan(&c.ID, &kind, &c.Subject, &o.keyID, &c.SessionEpoch, &c.MembershipEpoch, &c.WorkItemID, &c.OwnershipEpoch,
			&c.ExecutionLeaseID, &c.ApprovalID, &c.ManifestVersion, &o.expiresAt)
		c.Typ = tokens.TypCapability
		if kind == kindMembership {
			c.Typ = tokens.TypMembership
		}
		c.GroupID = groupID
		o.tokenID, o.groupID, o.workItemID, o.by, o.manifest = c.ID, groupID, c.WorkItemID, issuer, c.ManifestVersion
		if agents[c.Subject] == nil {
			agents[c.Subject] = &agentFacts{agent: c.Subject}
		}
		return o, err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("authz: sweep: %w", err)
	}
	return list, agents, nil
}

// Revoked is a token on the revocation list.
type Revoked struct {
	TokenID   string `json:"tokenId"`
	ExpiresAt string `json:"expiresAt"`
}

// Revocations is a page of the tokens that were revoked and would still be in
// force, ordered by id.
func (s *Service) Revocations(ctx context.Context, after string, limit int) ([]Revoked, error) {
	rows, err := s.cfg.Store.Reader().Query(ctx, `
		SELECT token_id, expires_at FROM token_revocations
		WHERE expires_at > clock_timestamp() AND token_id > $1 ORDER BY token_id LIMIT $2`, after, limit)
	if err != nil {
		return nil, fmt.Errorf("authz: revocations: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Revoked, error) {
		var r Revoked
		var at time.Time
		err := row.Scan(&r.TokenID, &at)
		r.ExpiresAt = lexical.FormatMicros(at.UTC())
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("authz: revocations: %w", err)
	}
	return list, nil
}
