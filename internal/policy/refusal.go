package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/aeplog"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/sessions"
)

// emitRefusal writes the evidence record of an action whose token does not carry
// it: what was tried, and what became of the lease under which it was tried. An
// action about a WorkItem that nobody owned yet belongs to no run and leaves its
// Policy Log entry only.
func (s *Service) emitRefusal(ctx context.Context, tx pgx.Tx, who sessions.Identity, p *Proposal, digest string, refused *protocol.Error, now time.Time) error {
	g, err := s.cfg.Store.LoadGroup(ctx, p.GroupID)
	if errors.Is(err, events.ErrGroupUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	w, ok := g.State.WorkItems[p.WorkItemID]
	if !ok || w.Owners[who.Principal.ID] == 0 {
		return nil // not its work: the refusal of a stranger is no part of the run
	}
	e := aeplog.Entry{
		Run: aeplog.Run{GroupID: p.GroupID, WorkItemID: p.WorkItemID, OwnershipEpoch: w.Owners[who.Principal.ID]}, At: now,
		TraceID: p.ActionID, Budget: ledgerOf(g.State, p.WorkItemID),
		Context: &evidence.RunContext{AgentID: who.Principal.ID, SessionID: sessionID(who), DelegationChain: []string{}},
		Action: evidence.Action{
			ActionID: p.ActionID, ToolName: p.ActionType, TimestampMS: now.UnixMilli(), EvidenceRefs: []string{},
			SideEffectClass: manifest.ClassUnknown, ArgumentsDigest: digest, InputTaintLabels: []string{}, OutputTaintLabels: []string{},
			CapabilityDecision: &evidence.CapabilityDecision{
				Capability: p.Operation, Subject: who.Principal.ID, Resource: p.Resource, Decision: decisionDeny,
				ReasonCode: string(refused.Code), DenyReasonClass: refusalClass(refused),
			},
		},
	}
	if err := s.endedLease(ctx, tx, &e, p, who.Principal.ID, now); err != nil {
		return err
	}
	_, err = s.cfg.Evidence.Append(ctx, tx, e)
	return err
}

func refusalClass(refused *protocol.Error) string {
	switch {
	case refused.Reason == "resource" || refused.Reason == "work_item":
		return "resource-scope"
	case refused.Reason == "arguments":
		return reasonArgument
	case refused.Code == protocol.CodeBudgetExceeded:
		return "other"
	}
	return reasonDelegation
}

// endedLease says how the last Execution Lease of the Agent ended, if it has
// ended: by its own time, or by an Event, which is named.
func (s *Service) endedLease(ctx context.Context, tx pgx.Tx, e *aeplog.Entry, p *Proposal, agentID string, now time.Time) error {
	g, err := s.cfg.Store.LoadGroup(ctx, p.GroupID)
	if err != nil {
		return err
	}
	_, l := leaseAt(g.State, p.WorkItemID, "")
	if l == nil || l.HolderAgentID != agentID || l.OwnershipEpoch != e.Run.OwnershipEpoch || insideLease(l, now) {
		return nil
	}
	a := &e.Action
	lease := leaseEvidence(l, now)
	switch {
	case !now.Before(instant(l.ExpiresAt)):
		a.ApprovalDecision = decisionExpired
	default:
		a.ApprovalDecision = decisionRevoked
		if lease.RevocationEventID, err = closingEvent(ctx, tx, p.GroupID, l); err != nil || lease.RevocationEventID == "" {
			return err
		}
	}
	a.ScopeLeaseID, a.Lease, a.ApprovalGrant = l.LeaseID, lease, grantLease
	a.ArgumentDrift = &evidence.ArgumentDrift{Result: resultNotChecked, ApprovalOrLeaseID: l.LeaseID}
	return nil
}

// closingEvent is the Event with which a lease was closed.
func closingEvent(ctx context.Context, tx pgx.Tx, groupID string, l *protocol.Lease) (string, error) {
	var id string
	err := tx.QueryRow(ctx, `SELECT 'urn:uuid:' || e.event_id FROM groups g
		JOIN event_log e ON e.tree_id = g.tree_id AND e.group_id = g.group_id
		WHERE g.group_id = $1 AND e.occurred_at >= $2 AND position(convert_to($3, 'UTF8') IN e.document) > 0
		ORDER BY e.sequence LIMIT 1`, groupID, instant(l.ClosedAt), l.LeaseID).Scan(&id)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("policy: the Event that closed a lease: %w", err)
	}
	return id, nil
}
