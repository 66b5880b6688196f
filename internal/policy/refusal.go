package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/aeplog"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/sessions"
)

// emitRefusal writes the evidence record of an action that was refused before any
// manifest was asked: what was tried, and what became of the lease under which it was
// tried. Who never owned the WorkItem leaves it in the run of its present epoch, and
// who names none of the Group in the Group's own.
func (s *Service) emitRefusal(ctx context.Context, tx pgx.Tx, who sessions.Identity, p *Proposal, digest string, refused *protocol.Error, now time.Time, policyEntry string) error {
	g, err := s.cfg.Store.LoadGroup(ctx, p.GroupID)
	if errors.Is(err, events.ErrGroupUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	run := aeplog.Run{GroupID: p.GroupID, WorkItemID: p.GroupID}
	if w, ok := g.State.WorkItems[p.WorkItemID]; ok {
		run.WorkItemID, run.OwnershipEpoch = p.WorkItemID, w.OwnershipEpoch
		if epoch := w.Owners[who.Principal.ID]; epoch > 0 {
			run.OwnershipEpoch = epoch
		}
	}
	e := aeplog.Entry{
		Run: run, At: now, TraceID: p.ActionID, Budget: ledgerOf(g.State, p.WorkItemID),
		Context: &evidence.RunContext{AgentID: who.Principal.ID, SessionID: sessionID(who), DelegationChain: []string{}},
		Action: evidence.Action{
			ActionID: p.ActionID, ToolName: p.ActionType, TimestampMS: now.UnixMilli(),
			EvidenceRefs: references(policyEntry, p.ApprovalRequestID, headOf(g.State)), ArgumentsDigest: digest,
			CapabilityDecision: &evidence.CapabilityDecision{
				Capability: p.Operation, Subject: who.Principal.ID, Resource: p.Resource, Decision: decisionDeny,
				ReasonCode: string(refused.Code), DenyReasonClass: refusalClass(refused),
			},
		},
	}
	if err := s.describe(ctx, tx, &e, p); err != nil {
		return err
	}
	if err := s.endedLease(ctx, tx, &e, p, who.Principal.ID, refused, now); err != nil {
		return err
	}
	_, err = s.cfg.Evidence.Append(ctx, tx, e)
	return err
}

// describe says of a refused action what the manifest in force says of its kind, and
// what its data is: it was not asked to decide.
func (s *Service) describe(ctx context.Context, tx pgx.Tx, e *aeplog.Entry, p *Proposal) error {
	a := &e.Action
	a.SideEffectClass = manifest.ClassUnknown
	records, err := ancestry(ctx, tx, p.GroupID, p.Provenance)
	if err != nil {
		return err
	}
	m, err := s.inForce(ctx, tx, p.GroupID)
	if err != nil {
		return err
	}
	labels := []string{}
	tainted := len(p.Provenance) > 0 // without a manifest nothing is known of channels
	if m != nil {
		a.SideEffectClass, _ = m.Class(p.ActionType)
		e.PolicyBundleDigest = m.Version()
		tainted = m.Context(p.Provenance, records).Tainted
	}
	if tainted {
		labels = append(labels, recordTaint)
	}
	a.InputTaintLabels, a.OutputTaintLabels = labels, slices.Clone(labels)
	for _, id := range p.Provenance {
		e.Inputs = append(e.Inputs, evidence.InputRef{URI: id, TaintLabels: slices.Clone(labels)})
	}
	ids := make([]string, 0, len(records))
	for id := range records {
		ids = append(ids, id)
	}
	a.MemoryReadRefs, err = memoryRead(ctx, tx, p.GroupID, ids)
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
// ended: by its own time, by an Event, which is named, or by its invocations.
func (s *Service) endedLease(ctx context.Context, tx pgx.Tx, e *aeplog.Entry, p *Proposal, agentID string, refused *protocol.Error, now time.Time) error {
	g, err := s.cfg.Store.LoadGroup(ctx, p.GroupID)
	if err != nil {
		return err
	}
	w, l := leaseAt(g.State, p.WorkItemID, "")
	usedUp := refused.Code == protocol.CodeBudgetExceeded
	if l == nil || l.HolderAgentID != agentID || l.OwnershipEpoch != e.Run.OwnershipEpoch || insideLease(l, now) && !usedUp {
		return nil
	}
	a := &e.Action
	lease := leaseEvidence(w, l, now)
	switch {
	case insideLease(l, now):
		a.ApprovalDecision = decisionExpired
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
