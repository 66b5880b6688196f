package policy

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/aeplog"
	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/manifest"
)

// Words of evidence records (evidence/RULES.md, section 1).
const (
	grantOneShot = "one-shot-payload"
	grantLease   = "bounded-lease"
	recordTaint  = "untrusted"
)

// evidenceEntry is what every record about an action says.
func (s *Service) evidenceEntry(ctx context.Context, x *row, m *manifest.Manifest, at time.Time) (aeplog.Entry, error) {
	class := manifest.ClassUnknown
	if m != nil {
		class, _ = m.Class(x.entry.ActionType)
	}
	labels := []string{}
	if x.entry.Tainted {
		labels = append(labels, recordTaint)
	}
	e := aeplog.Entry{
		Run: aeplog.Run{GroupID: x.groupID, WorkItemID: x.workItemID, OwnershipEpoch: x.ownershipEpoch}, At: at,
		TraceID: x.actionID, PolicyBundleDigest: x.manifestVersion,
		Context: &evidence.RunContext{AgentID: x.agentID, SessionID: x.sessionID, DelegationChain: []string{}},
		Action: evidence.Action{
			ActionID: x.actionID, ToolName: x.entry.ActionType, TimestampMS: at.UnixMilli(), EvidenceRefs: []string{},
			SideEffectClass: class, ArgumentsDigest: x.argumentsDigest,
			InputTaintLabels: labels, OutputTaintLabels: slices.Clone(labels),
			CapabilityDecision: &evidence.CapabilityDecision{
				Capability: x.operation, Subject: x.agentID, Resource: x.resource, Decision: gross(x.entry.Decision), ReasonCode: x.entry.RuleID,
			},
		},
	}
	if x.approvalID != "" {
		e.Action.EvidenceRefs = append(e.Action.EvidenceRefs, x.approvalID)
	}
	if x.requestID != "" {
		e.Action.EvidenceRefs = append(e.Action.EvidenceRefs, x.requestID)
	}
	for _, id := range x.entry.Provenance {
		e.Inputs = append(e.Inputs, evidence.InputRef{URI: id, TaintLabels: slices.Clone(labels)})
	}
	if x.entry.Decision == manifest.DENY {
		e.Action.CapabilityDecision.DenyReasonClass = denyClass(&x.entry)
	}
	return e, nil
}

func gross(v manifest.Verdict) string {
	switch v {
	case manifest.ALLOW:
		return "allow"
	case manifest.ASK:
		return "ask_user"
	}
	return "deny"
}

// denyClass is the class of reasons of a denial.
func denyClass(e *manifest.Entry) string {
	switch e.Rule {
	case manifest.TaintContainmentLaw:
		return "tainted-input"
	case manifest.Uncovered:
		return "tool-identity"
	case manifest.SchemaInvalid, manifest.ShapeInvalid:
		return "argument"
	case manifest.CapabilityBoundaryLaw:
		return "resource-scope"
	}
	return "policy-rule"
}

// emitDecision writes the evidence record of a decision.
func (s *Service) emitDecision(ctx context.Context, tx pgx.Tx, x *row, m *manifest.Manifest) (string, error) {
	e, err := s.evidenceEntry(ctx, x, m, x.decidedAt)
	if err != nil {
		return "", err
	}
	if err := s.authorize(ctx, x, &e, "", x.decidedAt); err != nil {
		return "", err
	}
	return s.cfg.Evidence.Append(ctx, tx, e)
}

// authorize says under which authority the action stands: an answer for exactly
// these arguments, or the Execution Lease. observed is the digest of what was
// executed, "" before that.
func (s *Service) authorize(ctx context.Context, x *row, e *aeplog.Entry, observed string, at time.Time) error {
	a := &e.Action
	if x.entry.Decision == manifest.ASK {
		return nil // nothing authorizes it yet
	}
	decision := gross(x.entry.Decision)
	if x.approvalHash != "" && x.approvalID != "" {
		a.ApprovalGrant, a.ApprovalDecision, a.ApprovalContextHash = grantOneShot, decision, x.approvalHash
		a.ArgumentDrift = &evidence.ArgumentDrift{
			Result: "matched", ApprovalOrLeaseID: x.approvalHash, ApprovedArgDigest: x.argumentsDigest,
			ObservedArgDigest: x.argumentsDigest, ArgsEqualityVersion: manifest.ArgsEquality,
		}
		if observed != "" {
			a.ArgumentDrift.ObservedArgDigest = observed
		}
		return nil
	}
	lease, err := s.leaseOf(ctx, x, at)
	if err != nil || lease == nil {
		return err
	}
	a.ScopeLeaseID, a.Lease = x.leaseID, lease
	a.ApprovalGrant, a.ApprovalDecision = grantLease, decision
	a.ArgumentDrift = &evidence.ArgumentDrift{Result: "not-checked", ApprovalOrLeaseID: x.leaseID}
	if observed != "" {
		a.ArgumentDrift.Result, a.ArgumentDrift.ArgsEqualityVersion = "matched", manifest.ArgsEquality
		a.ArgumentDrift.ApprovedArgDigest, a.ArgumentDrift.ObservedArgDigest = x.argumentsDigest, observed
	}
	return nil
}

// leaseOf is the Execution Lease as it is in force at a time; nil where it is not
// known any more.
func (s *Service) leaseOf(ctx context.Context, x *row, at time.Time) (*evidence.LeaseEvidence, error) {
	g, err := s.cfg.Store.LoadGroup(ctx, x.groupID)
	if err != nil {
		return nil, err
	}
	w, ok := g.State.WorkItems[x.workItemID]
	if !ok || w.Execution == nil || w.Execution.LeaseID != x.leaseID {
		return nil, nil
	}
	starts, err1 := time.Parse(time.RFC3339Nano, w.Execution.StartsAt)
	expires, err2 := time.Parse(time.RFC3339Nano, w.Execution.ExpiresAt)
	if err1 != nil || err2 != nil || !starts.Before(expires) || !at.Before(expires) {
		return nil, nil //nolint:nilerr // without a window there is nothing to say
	}
	started := at
	if started.Before(starts) {
		started = starts
	}
	return &evidence.LeaseEvidence{
		LeaseID: x.leaseID, GrantedAtMS: starts.UnixMilli(), ExpiresAtMS: expires.UnixMilli(), StartedAtMS: started.UnixMilli(),
	}, nil
}
