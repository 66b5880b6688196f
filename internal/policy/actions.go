package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/policylog"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/sessions"
)

// Proposal is a Proposed Action as an Agent sends it.
type Proposal struct {
	ActionID        string         `json:"actionId"`
	GroupID         string         `json:"groupId"`
	WorkItemID      string         `json:"workItemId"`
	CapabilityToken string         `json:"capabilityToken"`
	ActionType      string         `json:"actionType"`
	Parameters      strictjson.Raw `json:"parameters"`
	Provenance      []string       `json:"provenance"`
	Operation       string         `json:"operation"`
	Resource        string         `json:"resource"`
	Mode            manifest.Mode  `json:"mode"`
	// ArgsEqualityVersion must be the one that the server uses, when given.
	ArgsEqualityVersion string `json:"argsEqualityVersion"`
	// ApprovalRequestID names the ASK whose answer is to be used.
	ApprovalRequestID string `json:"approvalRequestId"`
	// Reason is the Agent's own words, for the human who is asked.
	Reason string `json:"reason"`
}

// digest is the proposal's identity: what may not change under one action id. The
// token is renewed, and an approval is named later.
func (p *Proposal) digest(argumentsDigest string) string {
	return digestOf(marshal(map[string]any{
		"groupId": p.GroupID, "workItemId": p.WorkItemID, "actionType": p.ActionType, "arguments": argumentsDigest,
		"provenance": orEmpty(p.Provenance), "operation": p.Operation, "resource": p.Resource, "mode": string(p.Mode),
	}))
}

// Answer is the decision about a Proposed Action.
type Answer struct {
	ActionID        string           `json:"actionId"`
	Decision        manifest.Verdict `json:"decision"`
	RuleID          string           `json:"ruleId"`
	Rule            string           `json:"rule"`
	Laws            []string         `json:"laws"`
	Reason          string           `json:"reason"`
	ManifestVersion string           `json:"manifestVersion"`
	ArgumentsDigest string           `json:"argumentsDigest"`
	TrustLevel      string           `json:"trustLevel"`
	Tainted         bool             `json:"tainted"`
	ApprovalRequest *ApprovalRequest `json:"approvalRequest,omitempty"`
	// ApprovalID is the approval that this ALLOW used up.
	ApprovalID string `json:"approvalId,omitempty"`
	// EvidenceRecordID is the record of the decision.
	EvidenceRecordID string `json:"evidenceRecordId,omitempty"`
}

// ApprovalRequest is the ASK in the Group's log.
type ApprovalRequest struct {
	RequestID string   `json:"requestId"`
	Choices   []string `json:"choices"`
	ExpiresAt string   `json:"expiresAt"`
}

// States of a proposed action.
const (
	stateAsking    = "asking"
	stateAsked     = "asked"
	stateConsuming = "consuming"
	stateAllowed   = "allowed"
	stateDenied    = "denied"
)

// row is a stored Proposed Action.
type row struct {
	agentID, actionID, groupID, workItemID string
	digest, sessionID                      string
	ownershipEpoch                         int64
	leaseID, tokenID                       string
	state                                  string
	entry                                  manifest.Entry
	manifestVersion, argumentsDigest       string
	operation, resource                    string
	requestID                              string
	requestExpires                         *time.Time
	approvalID, approvalHash               string
	usesRequestID, usesActionID            string
	command                                []byte
	review                                 bool
	proposedAt, decidedAt                  time.Time
	outcomeDigest                          string
	outcome                                []byte
	evidenceID                             string
	// stale is an answer that was given and does not count for this action. It is
	// known while a denial is recorded and not stored with it.
	stale *staleAnswer
	// policyEntry is the id of the Policy Log entry that is about to be written: the
	// evidence names it.
	policyEntry string
}

const sqlAction = `SELECT agent_id, action_id, group_id, work_item_id, proposal_digest, session_id, ownership_epoch, execution_lease_id,
	token_id, state, entry, manifest_version, arguments_digest, operation, resource, coalesce(request_id, ''), request_expires_at,
	coalesce(approval_id, ''), coalesce(approval_hash, ''), coalesce(uses_request_id, ''), coalesce(uses_action_id, ''), command, review, proposed_at, decided_at,
	coalesce(outcome_digest, ''), outcome, coalesce(evidence_record_id, '') FROM proposed_actions`

func scanAction(r pgx.CollectableRow) (*row, error) {
	var x row
	var entry []byte
	err := r.Scan(&x.agentID, &x.actionID, &x.groupID, &x.workItemID, &x.digest, &x.sessionID, &x.ownershipEpoch, &x.leaseID,
		&x.tokenID, &x.state, &entry, &x.manifestVersion, &x.argumentsDigest, &x.operation, &x.resource, &x.requestID, &x.requestExpires,
		&x.approvalID, &x.approvalHash, &x.usesRequestID, &x.usesActionID, &x.command, &x.review, &x.proposedAt, &x.decidedAt, &x.outcomeDigest, &x.outcome, &x.evidenceID)
	if err != nil {
		return nil, err
	}
	return &x, strictjson.Raw(entry).Decode(&x.entry)
}

func findAction(ctx context.Context, q authz.Querier, where string, args ...any) (*row, error) {
	rows, err := q.Query(ctx, sqlAction+` WHERE `+where, args...)
	if err != nil {
		return nil, err
	}
	x, err := pgx.CollectExactlyOneRow(rows, scanAction)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return x, err
}

func (x *row) answer() *Answer {
	e := &x.entry
	a := &Answer{
		ActionID: x.actionID, Decision: e.Decision, RuleID: e.RuleID, Rule: e.Rule, Laws: orEmpty(e.Laws), Reason: e.Reason,
		ManifestVersion: x.manifestVersion, ArgumentsDigest: x.argumentsDigest, TrustLevel: e.TrustLevel, Tainted: e.Tainted,
		ApprovalID: x.approvalID, EvidenceRecordID: x.evidenceID,
	}
	if x.state == stateConsuming {
		// Nothing is allowed before the log has taken the use of the approval.
		a.Decision = manifest.ASK
	}
	if x.requestID != "" && x.requestExpires != nil && e.Decision == manifest.ASK {
		a.ApprovalRequest = &ApprovalRequest{
			RequestID: x.requestID, Choices: orEmpty(e.Choices), ExpiresAt: x.requestExpires.UTC().Format(time.RFC3339Nano),
		}
	}
	return a
}

// Propose decides a Proposed Action. Sent again with the same action id it answers
// the same; with another content it is ACTION_ID_COLLISION. With approvalRequestId
// the answer to that ASK is used, once.
//
// Errors: AUTH_FORBIDDEN (session_token, holder, resource), those of
// CheckCapability, SCHEMA_VALIDATION_FAILED, INVALID_COMMAND (unknown_reference for
// an ASK), and those of the Authority about the Commands that it needs.
func (s *Service) Propose(ctx context.Context, who sessions.Identity, p Proposal) (*Answer, error) {
	if who.Principal.Type != protocol.ActorAgent || who.Kind != sessions.SessionToken {
		return nil, forbidden("session_token")
	}
	if p.ArgsEqualityVersion != "" && p.ArgsEqualityVersion != manifest.ArgsEquality {
		return nil, httpkit.SchemaError("/argsEqualityVersion", "const")
	}
	if _, err := s.enter(ctx, who.Principal, p.GroupID); err != nil {
		return nil, err
	}
	parameters, err := p.Parameters.Value()
	if err != nil {
		return nil, err
	}
	digest, err := manifest.ParametersDigest(parameters)
	if err != nil {
		return nil, protocol.NewError(protocol.CodeProtocolViolation, "canonical_form")
	}
	x, err := findAction(ctx, s.cfg.Pool, `agent_id = $1 AND action_id = $2`, who.Principal.ID, p.ActionID)
	if err != nil {
		return nil, err
	}
	switch {
	case p.Mode != "":
	case x != nil:
		p.Mode = x.entry.Mode // the mode may have changed since: it is the same proposal
	default:
		if p.Mode, err = s.modeOf(ctx, s.cfg.Pool, p.GroupID, who); err != nil {
			return nil, err
		}
	}
	switch {
	case x == nil:
		return s.proposeNew(ctx, who, &p, parameters, digest)
	case x.digest != p.digest(digest):
		return nil, protocol.NewError(protocol.CodeActionIDCollision, "")
	case x.state == stateAsking:
		return s.ask(ctx, x)
	case x.state == stateConsuming:
		return s.useAgain(ctx, who, &p, parameters, digest, x)
	case x.state == stateAsked && p.ApprovalRequestID != "":
		if p.ApprovalRequestID != x.requestID {
			return nil, invalid("binding_mismatch")
		}
		return s.useAnswer(ctx, who, &p, parameters, digest, x, x)
	}
	return x.answer(), nil
}

// check asks whether the token permits the proposal, and logs a refusal.
func (s *Service) check(ctx context.Context, q authz.Querier, who sessions.Identity, p *Proposal, digest string) (authz.Claims, error) {
	claims, perr := s.cfg.Tokens.CheckCapability(ctx, q, p.CapabilityToken)
	switch {
	case perr != nil:
	case claims.Subject != who.Principal.ID || claims.SessionEpoch != who.SessionEpoch:
		perr = forbidden("holder")
	case claims.GroupID != p.GroupID || claims.WorkItemID != p.WorkItemID:
		perr = forbidden("work_item")
	case !claims.Allows(p.Operation, p.Resource):
		perr = forbidden("resource")
	case claims.ArgumentsDigest != "" && claims.ArgumentsDigest != digest:
		perr = forbidden("arguments")
	}
	if perr == nil {
		return claims, nil
	}
	return claims, s.refused(ctx, who, p, digest, perr)
}

// refused records that an action was refused before any manifest was asked, and
// gives the refusal. A failure inside is no decision.
func (s *Service) refused(ctx context.Context, who sessions.Identity, p *Proposal, digest string, perr *protocol.Error) error {
	if perr.Code == protocol.CodeInternalError {
		return perr
	}
	err := pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) error {
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		id := s.cfg.Mint()
		if err := s.emitRefusal(ctx, tx, who, p, digest, perr, now, id); err != nil {
			return err
		}
		return policylog.Append(ctx, tx, policylog.Decision{
			ID: id, At: now, Category: policylog.Gate, Outcome: "refused", Code: perr.Code, Reason: perr.Reason,
			RuleIDs: []string{"protocol:12"}, Principal: who.Principal, GroupID: p.GroupID, WorkItemID: p.WorkItemID, SubjectID: p.ActionID,
			Input: marshal(map[string]any{
				"actionType": p.ActionType, "argumentsDigest": digest, "operation": p.Operation, "resource": p.Resource,
			}),
		})
	})
	if err != nil {
		return err
	}
	return perr
}

// request is the question to the engine.
func request(who sessions.Identity, p *Proposal, parameters strictjson.Value, records manifest.Records, capabilities []string, now time.Time) *manifest.Request {
	return &manifest.Request{
		Mode: p.Mode, Action: p.ActionType, Parameters: parameters, Chain: p.Provenance, Records: records,
		Actor: who.Principal.ID, Session: sessionID(who), WorkItem: p.WorkItemID, Capabilities: capabilities,
		Operation: p.Operation, Resource: p.Resource, Now: now,
	}
}

// capabilitiesOf are the required capabilities of a WorkItem's contract.
func (s *Service) capabilitiesOf(ctx context.Context, groupID, workItemID string) ([]string, error) {
	g, err := s.cfg.Store.LoadGroup(ctx, groupID)
	if err != nil {
		return nil, err
	}
	w, ok := g.State.WorkItems[workItemID]
	if !ok {
		return nil, nil
	}
	var out []string
	for _, c := range w.Contract.RequiredCapabilities {
		out = append(out, c.ID)
	}
	return out, nil
}

// question is what a decision about a proposal rests on, as one transaction sees it.
type question struct {
	now time.Time
	m   *manifest.Manifest // nil where none is in force
	r   *manifest.Request
}

// prepare checks the token of a proposal and reads what its WorkItem may do; ask
// then makes the question in a transaction.
func (s *Service) prepare(ctx context.Context, who sessions.Identity, p *Proposal, parameters strictjson.Value, digest string) (claims authz.Claims, ask func(pgx.Tx) (*question, error), err error) {
	capabilities, err := s.capabilitiesOf(ctx, p.GroupID, p.WorkItemID)
	if err != nil {
		return claims, nil, err
	}
	if claims, err = s.check(ctx, nil, who, p, digest); err != nil {
		return claims, nil, err
	}
	return claims, func(tx pgx.Tx) (*question, error) {
		now, err := s.now(ctx, tx)
		if err != nil {
			return nil, err
		}
		records, err := ancestry(ctx, tx, p.GroupID, p.Provenance)
		if err != nil {
			return nil, err
		}
		m, err := s.inForce(ctx, tx, p.GroupID)
		if err != nil {
			return nil, err
		}
		return &question{now, m, request(who, p, parameters, records, capabilities, now)}, nil
	}, nil
}

// proposeNew decides an action that was not seen before, and records it with its
// decision in one transaction.
func (s *Service) proposeNew(ctx context.Context, who sessions.Identity, p *Proposal, parameters strictjson.Value, digest string) (*Answer, error) {
	if p.ApprovalRequestID != "" {
		asked, err := findAction(ctx, s.cfg.Pool, `group_id = $1 AND request_id = $2 AND agent_id = $3`, p.GroupID, p.ApprovalRequestID, who.Principal.ID)
		if err != nil {
			return nil, err
		}
		if asked == nil {
			return nil, invalid("unknown_reference")
		}
		return s.useAnswer(ctx, who, p, parameters, digest, asked, nil)
	}
	claims, ask, err := s.prepare(ctx, who, p, parameters, digest)
	if err != nil {
		return nil, err
	}
	var x *row
	err = pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) error {
		q, err := ask(tx)
		if err != nil {
			return err
		}
		d := q.m.Decide(q.r)
		x = s.newRow(who, p, digest, &claims, q.m, q.r, &d, q.now)
		return s.insert(ctx, tx, who, x, q.m)
	})
	if errors.Is(err, errTaken) {
		// Somebody else was first with this action id: the answer is theirs.
		return s.Propose(ctx, who, *p)
	}
	var perr *protocol.Error
	if errors.As(err, &perr) && (perr.Code == protocol.CodeBudgetExceeded || perr.Code == protocol.CodeWorkLeaseExpired) {
		return nil, s.refused(ctx, who, p, digest, perr) // the decision did not take effect
	}
	if err != nil {
		return nil, err
	}
	if x.state == stateAsking {
		return s.ask(ctx, x)
	}
	return x.answer(), nil
}

// newRow is a decided proposal as it is stored.
func (s *Service) newRow(who sessions.Identity, p *Proposal, digest string, claims *authz.Claims, m *manifest.Manifest, r *manifest.Request, d *manifest.Decision, now time.Time) *row {
	x := &row{
		agentID: who.Principal.ID, actionID: p.ActionID, groupID: p.GroupID, workItemID: p.WorkItemID, digest: p.digest(digest),
		sessionID: r.Session, ownershipEpoch: claims.OwnershipEpoch, leaseID: claims.ExecutionLeaseID, tokenID: claims.ID,
		argumentsDigest: digest, operation: p.Operation, resource: p.Resource, proposedAt: now, decidedAt: now,
	}
	x.decide(m, r, d)
	if d.Verdict == manifest.ASK {
		expires := now.Add(s.cfg.AskFor).Truncate(time.Microsecond)
		x.requestID, x.requestExpires, x.state = s.cfg.Mint(), &expires, stateAsking
		if reason := strings.TrimSpace(p.Reason); reason != "" {
			// The Agent's words come last and are marked as its own: they are no facts.
			x.entry.Reason = fmt.Sprintf("%s. The Agent says: %s", d.Reason, reason)
		}
	}
	return x
}

// decide takes a decision over into the row.
func (x *row) decide(m *manifest.Manifest, r *manifest.Request, d *manifest.Decision) {
	x.entry = *d.Entry(r)
	x.entry.ActionID, x.entry.LeaseID, x.entry.TokenID = x.actionID, x.leaseID, x.tokenID
	x.manifestVersion, x.review = d.ManifestVersion, d.Review
	x.state = stateDenied
	if d.Verdict == manifest.ALLOW {
		x.state = stateAllowed
	}
	if m != nil && m.Secret(x.entry.ActionType) {
		x.entry.Parameters = nil // the log outlives secrets
	}
}

// errTaken is an action id that another request stored first.
var errTaken = errors.New("policy: the action id is taken")

// insert stores a new row, with its log entry and evidence record when it is final.
func (s *Service) insert(ctx context.Context, tx pgx.Tx, who sessions.Identity, x *row, m *manifest.Manifest) error {
	tag, err := tx.Exec(ctx, `INSERT INTO proposed_actions (agent_id, action_id, group_id, work_item_id, proposal_digest, session_id,
			ownership_epoch, execution_lease_id, token_id, state, entry, manifest_version, arguments_digest, operation, resource,
			request_id, request_expires_at, approval_id, approval_hash, command, review, proposed_at, decided_at, uses_request_id, uses_action_id)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, nullif($16, ''), $17, nullif($18, ''), nullif($19, ''),
			$20, $21, $22, $23, nullif($24, ''), nullif($25, '')) ON CONFLICT (agent_id, action_id) DO NOTHING`,
		x.agentID, x.actionID, x.groupID, x.workItemID, x.digest, x.sessionID, x.ownershipEpoch, x.leaseID, x.tokenID, x.state,
		marshal(&x.entry), x.manifestVersion, x.argumentsDigest, x.operation, x.resource, x.requestID, x.requestExpires,
		x.approvalID, x.approvalHash, x.command, x.review, x.proposedAt, x.decidedAt, x.usesRequestID, x.usesActionID)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return errTaken
	}
	if x.state == stateConsuming {
		return nil
	}
	return s.record(ctx, tx, who.Principal, x, m)
}

// record writes the Policy Log entry and the evidence record of a decision.
func (s *Service) record(ctx context.Context, tx pgx.Tx, who protocol.Actor, x *row, m *manifest.Manifest) error {
	rules := x.entry.Laws
	if len(rules) == 0 {
		rules = []string{x.entry.RuleID}
	}
	x.policyEntry = s.cfg.Mint()
	evidenceID, err := s.emitDecision(ctx, tx, x, m)
	if err != nil {
		return err
	}
	x.evidenceID = evidenceID
	if _, err := tx.Exec(ctx, `UPDATE proposed_actions SET evidence_record_id = $3 WHERE agent_id = $1 AND action_id = $2`,
		x.agentID, x.actionID, evidenceID); err != nil {
		return err
	}
	return policylog.Append(ctx, tx, policylog.Decision{
		ID: x.policyEntry, At: x.decidedAt, Category: policylog.Action, Outcome: strings.ToLower(string(x.entry.Decision)), RuleIDs: rules,
		ManifestVersion: x.manifestVersion, Principal: who, GroupID: x.groupID, WorkItemID: x.workItemID, SubjectID: x.actionID,
		Input: marshal(&x.entry), Result: marshal(x.answer()),
	})
}

// update moves a row forward; false when somebody else did.
func (x *row) update(ctx context.Context, tx pgx.Tx, from string) (bool, error) {
	tag, err := tx.Exec(ctx, `UPDATE proposed_actions SET state = $4, entry = $5, manifest_version = $6, approval_id = nullif($7, ''),
			approval_hash = nullif($8, ''), command = $9, review = $10, decided_at = $11, token_id = $12, execution_lease_id = $13,
			uses_request_id = nullif($14, ''), uses_action_id = nullif($15, '')
		WHERE agent_id = $1 AND action_id = $2 AND state = $3`,
		x.agentID, x.actionID, from, x.state, marshal(&x.entry), x.manifestVersion, x.approvalID, x.approvalHash, x.command, x.review,
		x.decidedAt, x.tokenID, x.leaseID, x.usesRequestID, x.usesActionID)
	return tag.RowsAffected() == 1, err
}

// modeOf is the mode of a session: as set for it, for its Agent, for the Group,
// and background where nobody said anything.
func (s *Service) modeOf(ctx context.Context, q authz.Querier, groupID string, who sessions.Identity) (manifest.Mode, error) {
	var mode string
	err := q.QueryRow(ctx, `SELECT mode FROM (
			SELECT DISTINCT ON (agent_id, session_id) agent_id, session_id, mode FROM action_modes
			WHERE group_id = $1 AND agent_id IN ('', $2) AND session_id IN ('', $3) ORDER BY agent_id, session_id, entry DESC
		) m ORDER BY session_id DESC, agent_id DESC LIMIT 1`, groupID, who.Principal.ID, sessionID(who)).Scan(&mode)
	if errors.Is(err, pgx.ErrNoRows) {
		return manifest.Background, nil
	}
	return manifest.Mode(mode), err
}

// SetMode says how far a human is: for a Group, for one Agent in it, or for the
// session of that Agent with this epoch. The writer holds approval.execution.
func (s *Service) SetMode(ctx context.Context, who sessions.Identity, groupID, agentID string, sessionEpoch int64, mode manifest.Mode) error {
	now, err := s.now(ctx, s.cfg.Pool)
	if err != nil {
		return err
	}
	if _, err := s.enter(ctx, who.Principal, groupID); err != nil {
		return err
	}
	if err := s.approver(ctx, who.Principal, groupID, now); err != nil {
		return err
	}
	session := ""
	if sessionEpoch > 0 {
		session = manifestSession(agentID, sessionEpoch)
	}
	return pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO action_modes (group_id, agent_id, session_id, mode, set_by, set_at) VALUES ($1, $2, $3, $4, $5, $6)`,
			groupID, agentID, session, string(mode), who.Principal.ID, now); err != nil {
			return err
		}
		return policylog.Append(ctx, tx, policylog.Decision{
			ID: s.cfg.Mint(), At: now, Category: policylog.Escalation, Outcome: "mode", RuleIDs: []string{"modes:1"}, Principal: who.Principal,
			GroupID: groupID, SubjectID: agentID, Input: marshal(map[string]any{"mode": string(mode), "sessionEpoch": sessionEpoch}),
		})
	})
}
