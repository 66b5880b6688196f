package policy

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/policylog"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/sessions"
)

// Outcome is what was executed.
type Outcome struct {
	ObservedParameters      strictjson.Raw `json:"observedParameters,omitempty"`
	ObservedArgumentsDigest string         `json:"observedArgumentsDigest,omitempty"`
	// Result is success, failure or skipped.
	Result              string         `json:"result"`
	ResultDigest        string         `json:"resultDigest,omitempty"`
	Usage               strictjson.Raw `json:"usage,omitempty"`
	StateDigestKind     string         `json:"stateDigestKind,omitempty"`
	StateDigestCoverage strictjson.Raw `json:"stateDigestCoverage,omitempty"`
	PreStateDigest      string         `json:"preStateDigest,omitempty"`
	PostStateDigest     string         `json:"postStateDigest,omitempty"`
}

// outcomeReported is the Policy Log's word for what was executed of an action.
const outcomeReported = "reported"

// Reported answers an outcome.
type Reported struct {
	EvidenceRecordID string `json:"evidenceRecordId"`
	// ArgumentDrift is matched, drifted, or not-checked where no arguments were told.
	ArgumentDrift string `json:"argumentDrift"`
}

// Report stores what an Agent executed of an allowed action, with its evidence
// record. Sent again with the same content it answers the same. A digest that
// differs from what was decided is a drift: the record says that what was executed
// was not what was allowed.
//
// Errors: NotFound for an action of somebody else, INVALID_STATE_TRANSITION for one
// that was not allowed (a skipped one may be reported in any final state),
// ACTION_ID_COLLISION for another outcome than before.
func (s *Service) Report(ctx context.Context, who sessions.Identity, actionID string, o Outcome) (*Reported, error) {
	observed := o.ObservedArgumentsDigest
	if len(o.ObservedParameters) > 0 {
		v, err := o.ObservedParameters.Value()
		if err != nil {
			return nil, err
		}
		digest, err := manifest.ParametersDigest(v)
		if err != nil {
			return nil, protocol.NewError(protocol.CodeProtocolViolation, "canonical_form")
		}
		if observed != "" && observed != digest {
			return nil, httpkit.SchemaError("/observedArgumentsDigest", "const")
		}
		observed = digest
	}
	// The parameters themselves are not kept: their digest says what has to be known.
	o.ObservedParameters, o.ObservedArgumentsDigest = nil, observed
	content := marshal(&o)
	var out *Reported
	err := pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) error {
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		x, err := findAction(ctx, tx, `agent_id = $1 AND action_id = $2 FOR UPDATE`, who.Principal.ID, actionID)
		if err != nil {
			return err
		}
		switch {
		case x == nil || who.Principal.Type != protocol.ActorAgent:
			return httpkit.NotFound()
		case x.outcome != nil && x.outcomeDigest != digestOf(content):
			return protocol.NewError(protocol.CodeActionIDCollision, "outcome")
		case x.outcome != nil:
			out = &Reported{}
			return strictjson.Raw(x.outcome).Decode(out)
		case x.state == stateAllowed:
		case x.state == stateDenied && o.Result == "skipped":
		default:
			return protocol.NewError(protocol.CodeInvalidStateTransition, "not_allowed")
		}
		out, err = s.emitOutcome(ctx, tx, x, &o, now)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE proposed_actions SET outcome = $3, outcome_digest = $4 WHERE agent_id = $1 AND action_id = $2`,
			x.agentID, x.actionID, marshal(out), digestOf(content)); err != nil {
			return err
		}
		return policylog.Append(ctx, tx, policylog.Decision{
			ID: s.cfg.Mint(), At: now, Category: policylog.Action, Outcome: outcomeReported, Reason: o.Result, RuleIDs: []string{out.ArgumentDrift},
			ManifestVersion: x.manifestVersion, Principal: who.Principal, GroupID: x.groupID, WorkItemID: x.workItemID, SubjectID: x.actionID,
			Input: content, Result: marshal(out),
		})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// emitOutcome writes the evidence record of what was executed.
func (s *Service) emitOutcome(ctx context.Context, tx pgx.Tx, x *row, o *Outcome, now time.Time) (*Reported, error) {
	m, err := s.load(ctx, tx, x.manifestVersion)
	if err != nil && !errors.Is(err, errNoVersion) {
		return nil, err
	}
	e, _, err := s.evidenceEntry(ctx, tx, x, m, now)
	if err != nil {
		return nil, err
	}
	a := &e.Action
	if err := s.standsOn(ctx, tx, x, a, o.ObservedArgumentsDigest); err != nil {
		return nil, err
	}
	out := &Reported{ArgumentDrift: resultMatched}
	if o.ObservedArgumentsDigest == "" {
		out.ArgumentDrift = resultNotChecked
	}
	a.Outcome, a.ResultDigest = o.Result, o.ResultDigest
	if a.MemoryWriteRefs, err = memoryWritten(ctx, tx, x); err != nil {
		return nil, err
	}
	a.StateDigestKind, a.StateDigestCoverage = o.StateDigestKind, o.StateDigestCoverage
	a.PreStateDigest, a.PostStateDigest = o.PreStateDigest, o.PostStateDigest
	if o.ObservedArgumentsDigest != "" {
		a.ArgumentsDigest = o.ObservedArgumentsDigest
	}
	if o.ObservedArgumentsDigest != "" && o.ObservedArgumentsDigest != x.argumentsDigest {
		out.ArgumentDrift = resultDrifted
		// What was executed was not allowed, whatever was.
		a.CapabilityDecision.Decision, a.CapabilityDecision.DenyReasonClass = decisionDeny, reasonArgument
		a.CapabilityDecision.ReasonCode = "argument_drift"
	}
	out.EvidenceRecordID, err = s.cfg.Evidence.Append(ctx, tx, e)
	if errors.Is(err, evidence.ErrDraft) {
		// All the rest of a record is made here: only what the Agent says about the
		// state can break a rule.
		return nil, httpkit.SchemaError("/stateDigestCoverage", "aep/v0.3")
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// emitWritten writes the evidence record of a memory write that an action allowed:
// the service did it itself, so that nobody has to report it.
func (s *Service) emitWritten(ctx context.Context, tx pgx.Tx, agentID, actionID string, w *MemoryWrite, out *Written, now time.Time) error {
	x, err := findAction(ctx, tx, `agent_id = $1 AND action_id = $2`, agentID, actionID)
	if err != nil {
		return err
	}
	m, err := s.load(ctx, tx, x.manifestVersion)
	if err != nil && !errors.Is(err, errNoVersion) {
		return err
	}
	e, _, err := s.evidenceEntry(ctx, tx, x, m, now)
	if err != nil {
		return err
	}
	a := &e.Action
	if err := s.standsOn(ctx, tx, x, a, x.argumentsDigest); err != nil {
		return err
	}
	a.Outcome, a.MemoryWriteRefs = "success", references(w.Key)
	if out.Tainted && !slices.Contains(a.OutputTaintLabels, recordTaint) {
		a.OutputTaintLabels = append(a.OutputTaintLabels, recordTaint)
	}
	e.Outputs = []evidence.OutputRef{{URI: out.RecordID}}
	_, err = s.cfg.Evidence.Append(ctx, tx, e)
	return err
}

// Action is a Proposed Action for those who look after it.
type Action struct {
	Answer
	AgentID    string         `json:"agentId"`
	GroupID    string         `json:"groupId"`
	WorkItemID string         `json:"workItemId"`
	State      string         `json:"state"`
	Mode       manifest.Mode  `json:"mode"`
	ActionType string         `json:"actionType"`
	Operation  string         `json:"operation"`
	Resource   string         `json:"resource,omitempty"`
	Parameters strictjson.Raw `json:"parameters,omitempty"`
	// Provenance is where the data came from, nearest first.
	Provenance []Provenance `json:"provenance"`
	// Choices are what an ASK offers, also after it was answered.
	Choices    []string `json:"choices"`
	ProposedAt string   `json:"proposedAt"`
	DecidedAt  string   `json:"decidedAt"`
	Review     bool     `json:"review"`
	Explained  []string `json:"explained"`
}

// mayInspect lets the Agent of an action and those who decide about it see it.
func (s *Service) mayInspect(ctx context.Context, who sessions.Identity, x *row) error {
	access, err := s.enter(ctx, who.Principal, x.groupID)
	if err != nil {
		return undisclosed(err)
	}
	switch {
	case who.Principal.Type == protocol.ActorAgent && who.Principal.ID == x.agentID, access.Manages:
		return nil
	case who.Principal.Type == protocol.ActorService:
		ok, err := s.keeper(ctx, who.Principal)
		if err == nil && !ok {
			err = httpkit.NotFound()
		}
		return err
	}
	now, err := s.now(ctx, s.cfg.Pool)
	if err != nil {
		return err
	}
	if err := s.approver(ctx, who.Principal, x.groupID, now); err != nil {
		return undisclosed(err)
	}
	return nil
}

// undisclosed makes a refusal look like what does not exist. A failure to ask stays
// one: whoever may know must not be told that there is nothing.
func undisclosed(err error) error {
	if refusal := code(err); refusal != "" && refusal != protocol.CodeInternalError {
		return httpkit.NotFound()
	}
	return err
}

// Inspect is everything about one action: what, why, where the data came from.
// agentID may be empty when the caller is the Agent.
func (s *Service) Inspect(ctx context.Context, who sessions.Identity, agentID, actionID string) (*Action, error) {
	where, args := `action_id = $1 AND agent_id = $2`, []any{actionID, agentID}
	if agentID == "" {
		if args[1] = who.Principal.ID; who.Principal.Type != protocol.ActorAgent {
			where, args = `action_id = $1 ORDER BY proposed_at LIMIT 1`, args[:1]
		}
	}
	x, err := findAction(ctx, s.cfg.Pool, where, args...)
	if err != nil {
		return nil, err
	}
	if x == nil {
		return nil, httpkit.NotFound()
	}
	if err := s.mayInspect(ctx, who, x); err != nil {
		return nil, err
	}
	return s.actionOf(ctx, x)
}

func (s *Service) actionOf(ctx context.Context, x *row) (*Action, error) {
	records, err := ancestry(ctx, s.cfg.Pool, x.groupID, x.entry.Provenance)
	if err != nil {
		return nil, err
	}
	a := &Action{
		Answer: *x.answer(), AgentID: x.agentID, GroupID: x.groupID, WorkItemID: x.workItemID, State: x.state, Mode: x.entry.Mode,
		ActionType: x.entry.ActionType, Operation: x.operation, Resource: x.resource, Parameters: x.entry.Parameters,
		Provenance: chainOf(records, x.entry.Provenance...), Choices: orEmpty(x.entry.Choices),
		ProposedAt: x.proposedAt.UTC().Format(time.RFC3339Nano), DecidedAt: x.decidedAt.UTC().Format(time.RFC3339Nano), Review: x.review,
		Explained: []string{},
	}
	m, err := s.load(ctx, s.cfg.Pool, x.manifestVersion)
	if errors.Is(err, errNoVersion) {
		return a, nil
	}
	if err != nil {
		return nil, err
	}
	if r, err := x.entry.Request(); err == nil {
		_, steps := m.Explain(r)
		for _, step := range steps {
			a.Explained = append(a.Explained, step.Name+": "+step.Said)
		}
	}
	if x.entry.Rule == manifest.OneShotApproval {
		a.Explained = append(a.Explained, "approval: "+x.entry.Reason)
	}
	return a, nil
}

// ListActions is a page of a Group's actions in the order of their proposal, for
// those who look after it; review selects background denials that wait for a human.
func (s *Service) ListActions(ctx context.Context, who sessions.Identity, groupID, state string, review bool, after []string, limit int) (items []*Action, next []string, err error) {
	if err := s.mayInspect(ctx, who, &row{groupID: groupID}); err != nil {
		return nil, nil, err
	}
	since, afterID := time.Unix(0, 0), ""
	if after != nil {
		if since, err = time.Parse(time.RFC3339Nano, after[0]); err != nil {
			return nil, nil, httpkit.SchemaError("/after", "format")
		}
		afterID = after[1]
	}
	rows, err := s.cfg.Pool.Query(ctx, sqlAction+` WHERE group_id = $1 AND ($2 = '' OR state = $2) AND (NOT $3 OR review)
		AND (proposed_at, action_id) > ($4, $5) ORDER BY proposed_at, action_id LIMIT $6`,
		groupID, strings.TrimSpace(state), review, since, afterID, limit+1)
	if err != nil {
		return nil, nil, err
	}
	found, err := pgx.CollectRows(rows, scanAction)
	if err != nil {
		return nil, nil, err
	}
	for i, x := range found {
		if i == limit {
			next = []string{found[i-1].proposedAt.UTC().Format(time.RFC3339Nano), found[i-1].actionID}
			break
		}
		a, err := s.actionOf(ctx, x)
		if err != nil {
			return nil, nil, err
		}
		items = append(items, a)
	}
	return items, next, nil
}
