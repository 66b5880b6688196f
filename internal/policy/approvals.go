package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/trust"
)

// Kinds of the Commands about ASKs.
const (
	kindRequestAction = "ext.missionweave.approval.request_action"
	kindConsumeAction = "ext.missionweave.approval.consume_action"
)

// attempts is how often a Command is made anew because the WorkItem moved on.
const attempts = 8

// requestAction is the payload of request_action.
type requestAction struct {
	RequestID           string   `json:"requestId"`
	ActionID            string   `json:"actionId"`
	ActionType          string   `json:"actionType"`
	AgentID             string   `json:"agentId"`
	OwnershipEpoch      int64    `json:"ownershipEpoch"`
	ExecutionLeaseID    string   `json:"executionLeaseId,omitempty"`
	Operation           string   `json:"operation"`
	Resources           []string `json:"resources"`
	ArgumentsDigest     string   `json:"argumentsDigest"`
	ArgsEqualityVersion string   `json:"argsEqualityVersion"`
	ManifestVersion     string   `json:"manifestVersion"`
	RuleID              string   `json:"ruleId"`
	Reason              string   `json:"reason"`
	Provenance          []string `json:"provenance"`
	SideEffectClass     string   `json:"sideEffectClass"`
	ExpiresAt           string   `json:"expiresAt"`
}

// consumeAction is the payload of consume_action.
type consumeAction struct {
	RequestID         string `json:"requestId"`
	ApprovalID        string `json:"approvalId"`
	ActionID          string `json:"actionId"`
	ExecutionLeaseID  string `json:"executionLeaseId"`
	CapabilityTokenID string `json:"capabilityTokenId"`
}

// ask sends the request of an ASK to the Group's log. The row holds the signed
// Command first: after a crash, or with the Authority away, the same one is sent
// again, and the log takes it once.
func (s *Service) ask(ctx context.Context, x *row) (*Answer, error) {
	class := manifest.ClassUnknown
	if m, err := s.load(ctx, s.cfg.Pool, x.manifestVersion); err != nil {
		return nil, err
	} else if known, ok := m.Class(x.entry.ActionType); ok {
		class = known
	}
	resources := []string{}
	if x.resource != "" {
		resources = append(resources, x.resource)
	}
	payload := requestAction{
		RequestID: x.requestID, ActionID: x.actionID, ActionType: x.entry.ActionType, AgentID: x.agentID, OwnershipEpoch: x.ownershipEpoch,
		ExecutionLeaseID: x.leaseID, Operation: x.operation, Resources: resources, ArgumentsDigest: x.argumentsDigest,
		ArgsEqualityVersion: manifest.ArgsEquality, ManifestVersion: x.manifestVersion, RuleID: x.entry.RuleID,
		Reason: clip(x.entry.Reason, 4000), Provenance: dedupe(x.entry.Provenance), SideEffectClass: class,
		ExpiresAt: lexical.FormatMicros(*x.requestExpires),
	}
	err := s.send(ctx, x, stateAsking, kindRequestAction, payload)
	if err != nil {
		if unsettled(err) {
			return nil, err
		}
		// Nobody can be asked, so nothing is allowed.
		x.entry.Reason = "the ASK was refused: " + string(code(err))
		x.entry.Decision, x.entry.Choices, x.state = manifest.DENY, nil, stateDenied
		return s.settle(ctx, x, stateAsking)
	}
	x.state, x.command = stateAsked, nil
	var moved bool
	err = pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) (err error) {
		moved, err = x.update(ctx, tx, stateAsking)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !moved {
		return s.again(ctx, x)
	}
	return x.answer(), nil
}

// unsettled tells that a Command may have been accepted, or may still be when it is
// sent again: the row stays on its way, because a human's answer must not be lost
// to a busy Authority.
func unsettled(err error) bool {
	var refusal *protocol.Error
	return !errors.As(err, &refusal) || refusal.Code == protocol.CodeInternalError || refusal.Code == protocol.CodeRateLimited || refusal.Retryable
}

// settle makes a row final with its log entry and evidence record.
func (s *Service) settle(ctx context.Context, x *row, from string) (*Answer, error) {
	moved := false
	err := pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) error {
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		x.decidedAt, x.command = now, nil
		if moved, err = x.update(ctx, tx, from); err != nil || !moved {
			return err
		}
		m, err := s.load(ctx, tx, x.manifestVersion)
		if errors.Is(err, errNoVersion) {
			err = nil
		}
		if err != nil {
			return err
		}
		return s.record(ctx, tx, protocol.Actor{Type: protocol.ActorAgent, ID: x.agentID}, x, m)
	})
	if err != nil {
		return nil, err
	}
	if !moved {
		return s.again(ctx, x)
	}
	return x.answer(), nil
}

// again answers with what somebody else made of a row meanwhile.
func (s *Service) again(ctx context.Context, x *row) (*Answer, error) {
	now, err := findAction(ctx, s.cfg.Pool, `agent_id = $1 AND action_id = $2`, x.agentID, x.actionID)
	if err != nil {
		return nil, err
	}
	if now == nil {
		return nil, errors.New("policy: a Proposed Action is gone")
	}
	return now.answer(), nil
}

// send signs a Command about the row's WorkItem, keeps it in the row and submits
// it; it is made anew while the WorkItem's revision moves. A Command that is in the
// row already is sent as it is.
func (s *Service) send(ctx context.Context, x *row, state, kind string, payload any) error {
	var before []byte // what the row holds
	before = x.command
	for range attempts {
		if x.command == nil {
			if err := s.sign(ctx, x, kind, payload); err != nil {
				return err
			}
			// Of several that come here at once one stores its Command, and all send that.
			tag, err := s.cfg.Pool.Exec(ctx, `UPDATE proposed_actions SET command = $4
				WHERE agent_id = $1 AND action_id = $2 AND state = $3 AND command IS NOT DISTINCT FROM $5`,
				x.agentID, x.actionID, state, x.command, before)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				now, err := findAction(ctx, s.cfg.Pool, `agent_id = $1 AND action_id = $2`, x.agentID, x.actionID)
				if err != nil {
					return err
				}
				if now == nil || now.state != state {
					return nil // somebody else is done with it; the row says how
				}
				x.command = now.command
			}
			before = x.command
			if x.command == nil {
				continue
			}
		}
		_, _, perr := s.cfg.Submit(ctx, x.command)
		if perr == nil {
			return nil
		}
		if perr.Code != protocol.CodeRevisionConflict && !(perr.Code == protocol.CodeAuthInvalidSignature && staleCommand(x.command, time.Now())) {
			return perr
		}
		x.command = nil
	}
	return protocol.NewError(protocol.CodeRevisionConflict, "")
}

// staleCommand tells a Command that was kept so long that it is not fresh any more:
// if it had been accepted, it would be answered by its receipt.
func staleCommand(command []byte, now time.Time) bool {
	issued, err := strictjson.Raw(command).Value()
	if err != nil {
		return true
	}
	at, err := time.Parse(time.RFC3339Nano, issued.Member("issuedAt").Str())
	return err != nil || now.Sub(at) > time.Minute
}

func (s *Service) sign(ctx context.Context, x *row, kind string, payload any) error {
	g, err := s.cfg.Store.LoadGroup(ctx, x.groupID)
	if errors.Is(err, events.ErrGroupUnknown) {
		return protocol.NewError(protocol.CodeGroupNotFound, "")
	}
	if err != nil {
		return err
	}
	w, ok := g.State.WorkItems[x.workItemID]
	if !ok {
		return invalid("unknown_reference")
	}
	signer, err := s.cfg.Signer(ctx)
	if err != nil {
		return err
	}
	raw, err := strictjson.Marshal(payload)
	if err != nil {
		return err
	}
	now, err := s.now(ctx, s.cfg.Pool)
	if err != nil {
		return err
	}
	revision := w.Revision
	x.command, _, err = trust.SignDocument(protocol.KindCommand, &protocol.Command{
		ProtocolVersion: protocol.Version, ActionID: s.cfg.Mint(), Actor: signer.Principal, Kind: kind,
		GroupID: x.groupID, WorkItemID: x.workItemID, ExpectedRevision: &revision,
		CorrelationID: s.cfg.Mint(), IssuedAt: lexical.FormatMicros(now), Payload: raw,
	}, signer)
	return err
}

// useAnswer decides an action again with the human's answer to the ASK asked. own
// is the row of the action id that is being proposed: asked itself, one whose use
// of the answer was interrupted, or nil for a new one.
func (s *Service) useAnswer(ctx context.Context, who sessions.Identity, p *Proposal, parameters strictjson.Value, digest string, asked, own *row) (*Answer, error) {
	given, err := s.given(ctx, p.GroupID, asked)
	if err != nil {
		return nil, err
	}
	if given == nil || given.Decision == nil {
		if own != nil {
			return own.answer(), nil // nobody has answered yet
		}
		return nil, protocol.NewError(protocol.CodeApprovalRequired, "pending")
	}
	if own != nil && own.state == stateConsuming && given.ConsumedByActionID != "" {
		if done, err := s.finish(ctx, own); done != nil || err != nil {
			return done, err
		}
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
		if q.r.Approval, err = approvalOf(given, asked); err != nil {
			return err
		}
		if x, err = s.answered(who, p, digest, &claims, q, given, asked); err != nil {
			return err
		}
		if own == nil {
			return s.insert(ctx, tx, who, x, q.m)
		}
		return s.replace(ctx, tx, who, x, own, q.m)
	})
	if errors.Is(err, errTaken) {
		return s.Propose(ctx, who, *p)
	}
	if err != nil {
		return nil, err
	}
	if x.state == stateConsuming {
		return s.consume(ctx, x)
	}
	return x.answer(), nil
}

// given is the ASK of a row with its answer, as the Group's log has it; nil for one
// that is not there.
func (s *Service) given(ctx context.Context, groupID string, asked *row) (*groups.ActionApproval, error) {
	g, err := s.cfg.Store.LoadGroup(ctx, groupID)
	if err != nil {
		return nil, err
	}
	w, ok := g.State.WorkItems[asked.workItemID]
	if !ok {
		return nil, nil //nolint:nilnil // said above
	}
	for i := range w.ActionRequests {
		if w.ActionRequests[i].Request.RequestID == asked.requestID {
			return &w.ActionRequests[i], nil
		}
	}
	return nil, nil //nolint:nilnil // said above
}

// answered is the row of a proposal that was decided with an answer.
func (s *Service) answered(who sessions.Identity, p *Proposal, digest string, claims *authz.Claims, q *question, given *groups.ActionApproval, asked *row) (x *row, err error) {
	d := q.m.Decide(q.r)
	uncovered := d.Rule == manifest.Escalation || d.Rule == manifest.Uncovered
	if d.Verdict == manifest.ASK || uncovered {
		// The answer does not allow it. Asking about the same action twice is not
		// possible, so this is the end of it; a new proposal may be asked about.
		d.Verdict, d.Choices, d.Review = manifest.DENY, nil, false
		d.Reason = answerReason(given, q.r, &d)
	}
	x = s.newRow(who, p, digest, claims, q.m, q.r, &d, q.now)
	x.requestID, x.requestExpires = "", nil
	if d.Verdict == manifest.DENY && uncovered {
		if x.stale, err = staleOf(given, asked, digest, q.now); err != nil {
			return nil, err
		}
	}
	if d.ApprovalID != "" {
		x.state, x.approvalID = stateConsuming, d.ApprovalID
		if x.approvalHash, err = given.Decision.Approval.SigningHash(); err != nil {
			return nil, err
		}
		x.usesRequestID, x.usesActionID = asked.requestID, asked.actionID
	}
	return x, nil
}

// replace moves the row own on to x, with log entry and evidence record when that
// is final. errTaken when own is not what is stored any more.
func (s *Service) replace(ctx context.Context, tx pgx.Tx, who sessions.Identity, x, own *row, m *manifest.Manifest) error {
	stored, err := findAction(ctx, tx, `agent_id = $1 AND action_id = $2 FOR UPDATE`, own.agentID, own.actionID)
	if err != nil {
		return err
	}
	if stored == nil || stored.state != own.state || !bytes.Equal(stored.command, own.command) {
		return errTaken
	}
	x.requestID, x.requestExpires, x.proposedAt = own.requestID, own.requestExpires, own.proposedAt
	if x.state == stateConsuming && own.state == stateConsuming && x.leaseID == own.leaseID && x.approvalID == own.approvalID {
		// The Command that may be on its way is the one that is sent again: another one
		// could be refused because the first was taken.
		x.command, x.tokenID = own.command, own.tokenID
	}
	if _, err := x.update(ctx, tx, own.state); err != nil {
		return err
	}
	if x.state == stateConsuming {
		return nil
	}
	return s.record(ctx, tx, who.Principal, x, m)
}

// consume sends the Command that uses an answer up. The log takes one of all that
// are sent for one answer; every other use is denied.
func (s *Service) consume(ctx context.Context, x *row) (*Answer, error) {
	err := s.send(ctx, x, stateConsuming, kindConsumeAction, consumeAction{
		RequestID: x.usesRequestID, ApprovalID: x.approvalID, ActionID: x.usesActionID,
		ExecutionLeaseID: x.leaseID, CapabilityTokenID: x.tokenID,
	})
	switch {
	case err == nil:
		x.state = stateAllowed
	case unsettled(err):
		return nil, err
	default:
		// What another request sent for this row may have been taken before.
		if stored, ferr := findAction(ctx, s.cfg.Pool, `agent_id = $1 AND action_id = $2`, x.agentID, x.actionID); ferr != nil {
			return nil, ferr
		} else if stored != nil && stored.state == stateConsuming {
			if done, ferr := s.finish(ctx, stored); done != nil || ferr != nil {
				return done, ferr
			}
		}
		x.entry.Decision, x.state = manifest.DENY, stateDenied
		x.entry.Rule, x.entry.RuleID = manifest.OneShotApproval, manifest.OneShotApproval
		x.entry.Reason = "the approval could not be used: " + string(code(err))
		x.approvalID = ""
	}
	return s.settle(ctx, x, stateConsuming)
}

// approvalOf is the answer as the engine reads it; nil where it is no approval for
// one use.
func approvalOf(given *groups.ActionApproval, asked *row) (*manifest.Approval, error) {
	d := given.Decision
	if d.Approval.Doc.Decision != "approved" || d.Scope != manifest.ChoiceOneShot {
		return nil, nil
	}
	expires, err := time.Parse(time.RFC3339Nano, d.ExpiresAt)
	if err != nil {
		return nil, fmt.Errorf("policy: expiry of an approval: %w", err)
	}
	return &manifest.Approval{
		ID: d.Approval.Doc.ApprovalID, ActionType: given.Request.ActionType, ParametersDigest: given.Request.ArgumentsDigest,
		ArgsEquality: given.Request.ArgsEqualityVersion, ManifestVersion: given.Request.ManifestVersion,
		Session: asked.sessionID, WorkItem: asked.workItemID, Actor: given.Request.AgentID,
		ExpiresAt: expires, Consumed: given.ConsumedByActionID != "",
	}, nil
}

func answerReason(given *groups.ActionApproval, r *manifest.Request, d *manifest.Decision) string {
	switch decision := given.Decision; {
	case decision.Approval.Doc.Decision != "approved":
		return "a human denied it"
	case decision.Scope != manifest.ChoiceOneShot:
		return "a human wants the manifest extended for it, which has not happened"
	case r.Approval != nil:
		_, why := r.Approval.Covers(r, d.Digest, d.ManifestVersion)
		return "the approval does not cover it: " + why
	}
	return d.Reason
}

func dedupe(ids []string) []string {
	out := make([]string, 0, len(ids))
	seen := map[string]bool{}
	for _, id := range ids {
		if !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out
}

// clip shortens a text to n characters.
func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n])
	}
	return s
}
