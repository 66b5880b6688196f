package authz

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/authz/tokens"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/policylog"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/sessions"
)

// CapabilityRequest is the body of POST /v1/capability-tokens.
type CapabilityRequest struct {
	GroupID          string           `json:"groupId"`
	WorkItemID       string           `json:"workItemId"`
	OwnershipEpoch   int64            `json:"ownershipEpoch"`
	ExecutionLeaseID string           `json:"executionLeaseId"`
	Operations       []string         `json:"operations"`
	Resources        []string         `json:"resources"`
	Budget           *protocol.Budget `json:"budget,omitempty"`
	TTLSeconds       int64            `json:"ttlSeconds,omitempty"`
	ApprovalID       string           `json:"approvalId,omitempty"`
}

// MembershipRequest is the body of POST /v1/membership-tokens.
type MembershipRequest struct {
	GroupID string `json:"groupId"`
}

// Grant answers both.
type Grant struct {
	Token     string `json:"token"`
	TokenID   string `json:"tokenId"`
	ExpiresAt string `json:"expiresAt"`
}

// issuing is one request on its way through a transaction that holds the Agent's
// session lock and the Group's row: between the read and the commit no session of
// the Agent is opened and no Event of the Group is written.
type issuing struct {
	s      *Service
	kind   string
	holder sessions.Identity
	group  string
	item   string
	body   any // what was asked, for the log

	conn  *pgxpool.Conn
	facts facts
	view  *registry.View
	head  int64 // of the Group, as decided on
	row   issued
}

// issued is a row of issued_tokens.
type issued struct {
	claims tokens.Claims
	keyID  string // of the Agent
}

// IssueCapability gives an Agent a Capability Token for work that it does now.
// Refusals are those of groups.State.Entitle, AUTH_REQUIRED and
// AUTH_STALE_SESSION for the session, GROUP_NOT_FOUND, and APPROVAL_REQUIRED for
// an approval of one action that has had its token.
func (s *Service) IssueCapability(ctx context.Context, holder sessions.Identity, r CapabilityRequest) (Grant, *protocol.Error) {
	i := &issuing{s: s, kind: tokens.TypCapability, holder: holder, group: r.GroupID, item: r.WorkItemID, body: r}
	life := DefaultLife
	if r.TTLSeconds > 0 {
		life = time.Duration(r.TTLSeconds) * time.Second
	}
	return i.run(ctx, life, func(st *groups.State, above func(string) (*groups.State, error)) ([]string, error) {
		e, err := st.Entitle(groups.Standing{
			AgentID: holder.Principal.ID, SessionEpoch: holder.SessionEpoch, WorkItemID: r.WorkItemID,
			OwnershipEpoch: r.OwnershipEpoch, ExecutionLeaseID: r.ExecutionLeaseID, ApprovalID: r.ApprovalID,
		}, groups.Wish{Operations: r.Operations, Resources: r.Resources, Budget: r.Budget}, s.organization(i.view), i.facts.now, above)
		if err != nil {
			return nil, err
		}
		c := &i.row.claims
		c.MissionID, c.MembershipEpoch = e.MissionID, e.MembershipEpoch
		c.WorkItemID, c.OwnershipEpoch, c.ExecutionLeaseID = r.WorkItemID, r.OwnershipEpoch, r.ExecutionLeaseID
		c.Operations, c.Budget = r.Operations, tokens.LimitsOf(e.Budget)
		c.ApprovalID, c.OneShot, c.ArgumentsDigest = e.ApprovalID, e.OneShot, e.ArgumentsDigest
		for _, a := range e.Access {
			c.Access = append(c.Access, tokens.Access{Resource: a.Resource, Operations: a.Operations, Constraints: []byte(a.Constraints)})
		}
		return e.Ends, nil
	})
}

// IssueMembership gives an Agent a token that states its Membership. Refusals:
// GROUP_NOT_FOUND, MEMBERSHIP_REQUIRED, and those of the session.
func (s *Service) IssueMembership(ctx context.Context, holder sessions.Identity, r MembershipRequest) (Grant, *protocol.Error) {
	i := &issuing{s: s, kind: tokens.TypMembership, holder: holder, group: r.GroupID, body: r}
	return i.run(ctx, DefaultLife, func(st *groups.State, _ func(string) (*groups.State, error)) ([]string, error) {
		m, err := st.MemberFor(holder.Principal, 0, i.facts.now)
		if err != nil {
			return nil, err
		}
		c := &i.row.claims
		c.MissionID, c.MembershipEpoch, c.Role, c.Scopes = m.MissionID, m.MembershipEpoch, m.Role, m.Scopes
		if m.ProvisionalExpiresAt != "" && m.ActivatedAt == "" {
			return []string{m.ProvisionalExpiresAt}, nil
		}
		return nil, nil
	})
}

// run decides, signs and stores. What decide returns are instants that the token
// must not outlive.
func (i *issuing) run(ctx context.Context, life time.Duration, decide func(*groups.State, func(string) (*groups.State, error)) ([]string, error)) (Grant, *protocol.Error) {
	if i.holder.Kind != sessions.SessionToken {
		return Grant{}, protocol.NewError(protocol.CodeAuthForbidden, "session_required")
	}
	grant, err := i.issue(ctx, life, decide)
	if err == nil {
		return grant, nil
	}
	perr := refusal(err)
	if logged := i.logRefusal(ctx, perr); logged != nil {
		return Grant{}, protocol.Internal(errors.Join(perr, logged))
	}
	return Grant{}, perr
}

func (i *issuing) issue(ctx context.Context, life time.Duration, decide func(*groups.State, func(string) (*groups.State, error)) ([]string, error)) (_ Grant, err error) {
	s := i.s
	chain, err := s.groups.chain(ctx, i.group)
	if err != nil {
		return Grant{}, err
	}
	if i.conn, err = s.cfg.Store.Reader().Acquire(ctx); err != nil {
		return Grant{}, fmt.Errorf("authz: %w", err)
	}
	// A connection that is left inside a transaction is closed by the pool.
	defer i.conn.Release()
	defer func() {
		if err != nil && !i.conn.Conn().IsClosed() {
			back, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
			defer cancel()
			_, _ = i.conn.Exec(back, "rollback")
		}
	}()
	tails, err := i.lockAndRead(ctx, chain)
	if err != nil {
		return Grant{}, err
	}
	if i.view, err = s.cfg.Directory.AtLeast(ctx, i.facts.revision); err != nil {
		return Grant{}, err
	}
	if perr := agentStands(i.view, &i.facts, i.holder.Principal.ID, i.holder.KeyID, i.holder.SessionEpoch); perr != nil {
		return Grant{}, perr
	}
	var ends []string
	err = s.groups.decide(ctx, i.conn, tails, func(st *groups.State, above func(string) (*groups.State, error)) (err error) {
		i.head = st.Head
		ends, err = decide(st, above)
		return err
	})
	if err != nil {
		return Grant{}, err
	}
	if err := i.bindManifest(ctx); err != nil {
		return Grant{}, err
	}
	token, err := i.sign(ctx, life, ends)
	if err != nil {
		return Grant{}, err
	}
	if err := i.store(ctx); err != nil {
		return Grant{}, err
	}
	c := &i.row.claims
	return Grant{Token: token, TokenID: c.ID, ExpiresAt: lexical.FormatMicros(time.Time(c.ExpiresAt))}, nil
}

// sqlLock takes the Agent's lock while its rows are found, and the Group's row last:
// rows are locked when everything below them has been evaluated. What is read under
// both is read by later statements, which see what was committed before.
const sqlLock = `SELECT g.head_sequence FROM (SELECT pg_advisory_xact_lock_shared($1) AS held OFFSET 0) agent, groups g
WHERE g.group_id = $2 AND agent.held IS NOT NULL FOR SHARE OF g`

// lockAndRead opens the transaction: the locks in the order of every commit of
// the Authority (the Agent's, then the Group's row), and only then the read, all
// in one round trip.
func (i *issuing) lockAndRead(ctx context.Context, chain []*cached) (*tails, error) {
	var b pgx.Batch
	b.Queue("begin")
	b.Queue(sqlLock, events.AgentLockKey(i.holder.Principal.ID), i.group).QueryRow(func(row pgx.Row) error {
		return row.Scan(&i.head)
	})
	queueFacts(&b, i.holder.Principal.ID, &i.facts)
	if m, ok := i.s.cfg.Manifests.(BatchedManifests); ok && i.kind == tokens.TypCapability {
		m.QueueInForce(&b, i.group, &i.row.claims.ManifestVersion)
	}
	t := queueTails(&b, chain)
	if err := i.conn.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("authz: read: %w", err)
	}
	return t, nil
}

func (i *issuing) bindManifest(ctx context.Context) error {
	if _, read := i.s.cfg.Manifests.(BatchedManifests); read || i.s.cfg.Manifests == nil || i.kind != tokens.TypCapability {
		return nil
	}
	version, err := i.s.cfg.Manifests.InForce(ctx, i.conn, i.group)
	if err != nil {
		return fmt.Errorf("authz: manifest: %w", err)
	}
	i.row.claims.ManifestVersion = version
	return nil
}

// sign fills the common claims and signs. The token ends with the first of: its
// life, the policy's bound, the session, the Agent's key, the signing key, and
// what the decision named.
func (i *issuing) sign(ctx context.Context, life time.Duration, ends []string) (string, error) {
	s, c, now := i.s, &i.row.claims, i.facts.now.Truncate(time.Microsecond)
	signer, err := s.cfg.Keys.Signer(ctx, i.conn, i.view, now)
	if err != nil {
		return "", err
	}
	until := now.Add(min(life, s.cfg.MaxLife))
	bound := func(t time.Time) {
		if t.Before(until) {
			until = t
		}
	}
	bound(i.facts.sessionExpires)
	for _, keyID := range []string{signer.KeyID, i.holder.KeyID} {
		if key, ok := i.view.Evidence.Key(keyID); ok {
			if end, ok := registry.KeyEnd(key); ok {
				bound(end)
			}
		}
	}
	for _, text := range ends {
		at, err := lexical.ParseTimestamp(text)
		if err != nil {
			return "", fmt.Errorf("authz: expiry: %w", err)
		}
		bound(at.Time())
	}
	holderKey, ok := i.view.Evidence.Key(i.holder.KeyID)
	if !ok {
		return "", errors.New("authz: the holder's key is gone")
	}
	c.Typ, c.KeyID = i.kind, signer.KeyID
	c.Issuer, c.Audience, c.Subject, c.ID = signer.Principal.ID, i.view.OrganizationID, i.holder.Principal.ID, s.cfg.Mint()
	c.IssuedAt, c.ExpiresAt = tokens.NumericDate(now), tokens.NumericDate(until.UTC().Truncate(time.Microsecond))
	c.Confirmation = tokens.Confirmation{JKT: tokens.Thumbprint(holderKey.PublicKey())}
	c.GroupID, c.SessionEpoch = i.group, i.holder.SessionEpoch
	i.row.keyID = i.holder.KeyID
	return tokens.Sign(c, signer.Private)
}

const sqlIssue = `INSERT INTO issued_tokens (token_id, kind, group_id, agent_id, key_id, session_epoch, membership_epoch,
	work_item_id, ownership_epoch, execution_lease_id, approval_id, one_shot, manifest_version, signing_key_id, issued_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, nullif($8, ''), nullif($9, 0), nullif($10, ''), nullif($11, ''), $12, nullif($13, ''), $14, $15, $16)`

// store records the token and its decision and commits: nothing that is not in
// the table counts as issued.
func (i *issuing) store(ctx context.Context) error {
	c := &i.row.claims
	kind := kindCapability
	if i.kind == tokens.TypMembership {
		kind = kindMembership
	}
	var b pgx.Batch
	b.Queue(sqlIssue, c.ID, kind, c.GroupID, c.Subject, i.row.keyID, c.SessionEpoch, c.MembershipEpoch,
		c.WorkItemID, c.OwnershipEpoch, c.ExecutionLeaseID, c.ApprovalID, c.OneShot, c.ManifestVersion, c.KeyID,
		time.Time(c.IssuedAt), time.Time(c.ExpiresAt))
	d, err := i.decision("issued")
	if err != nil {
		return err
	}
	d.SubjectID, d.ManifestVersion = c.ID, c.ManifestVersion
	result := map[string]any{"tokenId": c.ID, "expiresAt": lexical.FormatMicros(time.Time(c.ExpiresAt))}
	if c.ApprovalID != "" {
		result["approvalId"] = c.ApprovalID
	}
	if d.Result, err = strictjson.Marshal(result); err != nil {
		return err
	}
	if err := policylog.Queue(&b, d); err != nil {
		return err
	}
	b.Queue("commit")
	// The answer to a commit is waited for: a token whose storing is in doubt is
	// not given out, and if it was stored nobody holds it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	err = i.conn.SendBatch(ctx, &b).Close()
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.ConstraintName == "issued_tokens_one_shot" {
		return protocol.NewError(protocol.CodeApprovalRequired, "approval_used").WithDetail("gate", "one_shot")
	}
	if err != nil {
		return fmt.Errorf("authz: store: %w", err)
	}
	return nil
}

const storeTimeout = 30 * time.Second

// Kinds of issued_tokens.
const (
	kindCapability = "capability"
	kindMembership = "membership"
)

// decision is the Policy Log entry of the request: what was asked, by whom, and
// up to which Event of the Group it was decided.
func (i *issuing) decision(outcome string) (policylog.Decision, error) {
	at := i.facts.now
	if at.IsZero() {
		at = i.s.cfg.Now()
	}
	input, err := strictjson.Marshal(map[string]any{
		"typ": i.kind, "request": i.body, "groupHead": i.head, "at": lexical.FormatMicros(at),
		"sessionEpoch": i.holder.SessionEpoch, "keyId": i.holder.KeyID,
	})
	return policylog.Decision{
		ID: i.s.cfg.Mint(), At: at, Category: policylog.Token, Outcome: outcome, RuleIDs: []string{"protocol:12"},
		Principal: i.holder.Principal, GroupID: i.group, WorkItemID: i.item, Input: input,
	}, err
}

// logRefusal records a refusal. Failures inside are no decisions.
func (i *issuing) logRefusal(ctx context.Context, perr *protocol.Error) error {
	if perr.Code == protocol.CodeInternalError {
		return nil
	}
	d, err := i.decision("refused")
	if err != nil {
		return err
	}
	d.Code, d.Reason = perr.Code, perr.Reason
	if rule, ok := perr.Details["ruleId"].(string); ok {
		d.RuleIDs = append(d.RuleIDs, rule)
	}
	return policylog.Append(ctx, i.s.cfg.Store.Reader(), d)
}
