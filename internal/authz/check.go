package authz

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/authz/tokens"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/policylog"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/sessions"
)

// CheckCapability verifies a Capability Token and asks whether everything it was
// issued for still stands, now. q is the caller's transaction, in which no Events
// may have been written, or nil for a connection of the Service.
//
// Refusals: AUTH_REQUIRED (malformed, forged, for another audience, expired,
// unknown, revoked; the holder's key, card or session has ended),
// AUTH_STALE_SESSION, MEMBERSHIP_REQUIRED, MEMBERSHIP_STALE, AUTH_FORBIDDEN
// (scope; manifest_withdrawn), WORK_STALE_OWNERSHIP, WORK_LEASE_EXPIRED,
// INVALID_STATE_TRANSITION (the Mission or the work has ended), APPROVAL_REQUIRED,
// BUDGET_EXCEEDED. It fails closed: what cannot be asked is INTERNAL_ERROR.
//
// A token proves nothing about who sends it: the caller compares Subject with the
// Principal it authenticated, or asks for a proof of the key in Confirmation.
func (s *Service) CheckCapability(ctx context.Context, q Querier, token string) (Claims, *protocol.Error) {
	c, err := s.check(ctx, q, token, tokens.TypCapability)
	if err != nil {
		return Claims{}, refusal(err)
	}
	return *c, nil
}

// CheckMembership is CheckCapability for a Membership Token.
func (s *Service) CheckMembership(ctx context.Context, q Querier, token string) (Claims, *protocol.Error) {
	c, err := s.check(ctx, q, token, tokens.TypMembership)
	if err != nil {
		return Claims{}, refusal(err)
	}
	return *c, nil
}

func (s *Service) check(ctx context.Context, q Querier, token string, typ ...string) (*Claims, error) {
	if q == nil {
		q = s.cfg.Store.Reader()
	}
	c, err := s.read(ctx, token, typ...)
	if err != nil {
		if errors.Is(err, errUnavailable) {
			return nil, err
		}
		reason := "token"
		if errors.Is(err, tokens.ErrExpired) {
			reason = "expired"
		}
		return nil, protocol.NewError(protocol.CodeAuthRequired, reason).WithCause(err)
	}
	return c, s.stillStands(ctx, q, c)
}

var errUnavailable = errors.New("authz: the Registry cannot be asked")

// read verifies form, signature and time. A key that a current view does not have
// is looked for in the newest one.
func (s *Service) read(ctx context.Context, token string, typ ...string) (*Claims, error) {
	view, err := s.cfg.Directory.View(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	c, err := s.readIn(view, token, typ)
	if errors.Is(err, tokens.ErrKey) {
		if view, err = s.cfg.Directory.Current(ctx); err != nil {
			return nil, fmt.Errorf("%w: %w", errUnavailable, err)
		}
		c, err = s.readIn(view, token, typ)
	}
	return c, err
}

func (s *Service) readIn(view *registry.View, token string, typ []string) (*Claims, error) {
	now := s.cfg.Now()
	return tokens.Read(token, tokens.Expect{
		Typ: typ, Audience: view.OrganizationID, Now: now,
		Key: func(kid, issuer string, issuedAt time.Time) (ed25519.PublicKey, bool) {
			key, ok := view.Evidence.Key(kid)
			if !ok || !view.HasRole(key.Principal(), registry.RoleAuthorization) || key.Principal().ID != issuer {
				return nil, false
			}
			// Whoever has a key after its end can date tokens back.
			valid := key.Interval()
			return key.PublicKey(), valid.Contains(lexical.InstantOf(issuedAt)) && valid.Contains(lexical.InstantOf(now))
		},
	})
}

// stillStands asks the table, the session and the Group about a token that was
// verified, in one round trip.
func (s *Service) stillStands(ctx context.Context, q Querier, c *Claims) error {
	chain, err := s.groups.chain(ctx, c.GroupID)
	if err != nil {
		return err
	}
	var b pgx.Batch
	var f facts
	var known, revoked bool
	var keyID string
	b.Queue(`SELECT t.key_id, r.token_id IS NOT NULL FROM issued_tokens t
		LEFT JOIN token_revocations r ON r.token_id = t.token_id WHERE t.token_id = $1`, c.ID).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&keyID, &revoked}, func() error {
			known = true
			return nil
		})
		return err
	})
	queueFacts(&b, c.Subject, &f)
	t := queueTails(&b, chain)
	if err := q.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("authz: check: %w", err)
	}
	switch {
	case !known:
		return protocol.NewError(protocol.CodeAuthRequired, "unknown_token")
	case !f.now.Before(time.Time(c.ExpiresAt)):
		return protocol.NewError(protocol.CodeAuthRequired, "expired")
	}
	view, err := s.cfg.Directory.AtLeast(ctx, f.revision)
	if err != nil {
		return err
	}
	if perr := agentStands(view, &f, c.Subject, keyID, c.SessionEpoch); perr != nil {
		return perr
	}
	err = s.groups.decide(ctx, q, t, func(st *groups.State, above func(string) (*groups.State, error)) error {
		return upholds(st, c, s.organization(view), f.now, above)
	})
	if err != nil {
		return err
	}
	if err := s.manifestStands(ctx, q, c.ManifestVersion); err != nil {
		return err
	}
	if revoked {
		// Asked last: what ended the token says more than that it ended.
		return protocol.NewError(protocol.CodeAuthRequired, "revoked")
	}
	return nil
}

// upholds asks the Group whether a token of either kind is still true.
func upholds(st *groups.State, c *Claims, org *groups.Organization, now time.Time, above func(string) (*groups.State, error)) error {
	if c.Typ == tokens.TypMembership {
		_, err := st.MemberFor(protocol.Actor{Type: protocol.ActorAgent, ID: c.Subject}, c.MembershipEpoch, now)
		if err == nil && st.Terminal() {
			err = protocol.NewError(protocol.CodeInvalidStateTransition, "mission_terminal")
		}
		return err
	}
	return st.Upholds(groups.Standing{
		AgentID: c.Subject, SessionEpoch: c.SessionEpoch, MembershipEpoch: c.MembershipEpoch,
		WorkItemID: c.WorkItemID, OwnershipEpoch: c.OwnershipEpoch, ExecutionLeaseID: c.ExecutionLeaseID,
		ApprovalID: c.ApprovalID,
	}, org, now, above)
}

func (s *Service) manifestStands(ctx context.Context, q Querier, version string) error {
	if s.cfg.Manifests == nil || version == "" {
		return nil
	}
	withdrawn, err := s.cfg.Manifests.Withdrawn(ctx, q, version)
	if err != nil {
		return fmt.Errorf("authz: manifest: %w", err)
	}
	if withdrawn {
		return protocol.NewError(protocol.CodeAuthForbidden, "manifest_withdrawn")
	}
	return nil
}

// Introspection answers POST /v1/introspect (RFC 7662). Of a token that is not
// active it says nothing else.
type Introspection struct {
	Active bool `json:"active"`
	// TokenType is RFC 7662's token_type.
	TokenType string `json:"token_type,omitempty"`
	*Claims
}

// Introspect says whether a token is good now, to a service Principal about any
// token and to an Agent about its own. Every reason not to be good looks the same.
// The error is one of asking, never of the token.
func (s *Service) Introspect(ctx context.Context, caller sessions.Identity, token string) (Introspection, *protocol.Error) {
	c, err := s.check(ctx, nil, token, tokens.TypCapability, tokens.TypMembership)
	if err != nil {
		if perr := refusal(err); perr.Code == protocol.CodeInternalError {
			return Introspection{}, perr
		}
		return Introspection{}, nil
	}
	if caller.Principal.Type != protocol.ActorService && caller.Principal != (protocol.Actor{Type: protocol.ActorAgent, ID: c.Subject}) {
		return Introspection{}, nil
	}
	return Introspection{Active: true, TokenType: c.Typ, Claims: c}, nil
}

// Revoke ends a token (RFC 7009): at the wish of the Agent it was issued to, or of
// a service of the Organization. A token that is not ours, or not good any more,
// is nothing to revoke and no error; somebody else's is AUTH_FORBIDDEN.
func (s *Service) Revoke(ctx context.Context, caller sessions.Identity, token string) *protocol.Error {
	c, err := s.read(ctx, token, tokens.TypCapability, tokens.TypMembership)
	if errors.Is(err, errUnavailable) {
		return protocol.Internal(err)
	}
	if err != nil {
		return nil //nolint:nilerr // RFC 7009 section 2.2: an invalid token is no error
	}
	view, err := s.cfg.Directory.View(ctx)
	if err != nil {
		return protocol.Internal(err)
	}
	if own := caller.Principal == (protocol.Actor{Type: protocol.ActorAgent, ID: c.Subject}); !own && !view.IsService(caller.Principal) {
		return protocol.NewError(protocol.CodeAuthForbidden, "not_holder")
	}
	ended := []revocation{{
		tokenID: c.ID, reason: "requested", expiresAt: time.Time(c.ExpiresAt), groupID: c.GroupID, workItemID: c.WorkItemID,
		by: caller.Principal, manifest: c.ManifestVersion,
	}}
	if err := s.revoke(ctx, s.cfg.Now(), ended); err != nil {
		return protocol.Internal(err)
	}
	return nil
}

// revocation is a token that ends, and why.
type revocation struct {
	tokenID, reason     string
	code                protocol.Code
	expiresAt           time.Time
	groupID, workItemID string
	by                  protocol.Actor
	manifest            string
}

// revoke records what ended and its decision, and announces what was new. A token
// that was revoked already stays as it is.
func (s *Service) revoke(ctx context.Context, now time.Time, ended []revocation) error {
	for _, r := range ended {
		input, err := strictjson.Marshal(map[string]any{"tokenId": r.tokenID, "cause": r.reason})
		if err != nil {
			return err
		}
		d := policylog.Decision{
			ID: s.cfg.Mint(), At: now, Category: policylog.Token, Outcome: "revoked", Code: r.code, Reason: r.reason,
			RuleIDs: []string{"protocol:12"}, Principal: r.by, GroupID: r.groupID, WorkItemID: r.workItemID,
			SubjectID: r.tokenID, Input: input, ManifestVersion: r.manifest,
		}
		var fresh bool
		err = pgx.BeginFunc(ctx, s.cfg.Store.Reader(), func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `INSERT INTO token_revocations (token_id, reason, revoked_at, expires_at)
				SELECT token_id, $2, $3, expires_at FROM issued_tokens WHERE token_id = $1 ON CONFLICT DO NOTHING`, r.tokenID, r.reason, now)
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			fresh = true
			return policylog.Append(ctx, tx, d)
		})
		if err != nil {
			return fmt.Errorf("authz: revoke: %w", err)
		}
		if fresh {
			s.announce(r, now)
		}
	}
	return nil
}
