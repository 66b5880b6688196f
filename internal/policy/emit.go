package policy

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/aeplog"
	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/protocol"
)

// Words of evidence records (docs/evidence-rules.md).
const (
	grantOneShot = "one-shot-payload"
	grantLease   = "bounded-lease"
	recordTaint  = "untrusted"

	resultMatched    = "matched"
	resultDrifted    = "drifted"
	resultNotChecked = "not-checked"

	decisionAllow   = "allow"
	decisionDeny    = "deny"
	decisionExpired = "expired"
	decisionRevoked = "revoked"
	decisionDrift   = "drift-requires-reapproval"

	reasonArgument   = "argument"
	reasonDelegation = "missing-delegation"

	// extensionNamespace is where evidence of an approval's end is named.
	extensionNamespace = "org.missionweave"
)

// evidenceEntry is what every record about an action says.
func (s *Service) evidenceEntry(ctx context.Context, tx pgx.Tx, x *row, m *manifest.Manifest, at time.Time) (aeplog.Entry, *groups.State, error) {
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
	if x.usesActionID != x.actionID {
		e.Action.ParentActionID = x.usesActionID
	}
	for _, id := range x.entry.Provenance {
		e.Inputs = append(e.Inputs, evidence.InputRef{URI: id, TaintLabels: slices.Clone(labels)})
	}
	if x.entry.Decision == manifest.DENY {
		e.Action.CapabilityDecision.DenyReasonClass = denyClass(&x.entry)
	}
	g, err := s.cfg.Store.LoadGroup(ctx, x.groupID)
	if err != nil {
		return e, nil, err
	}
	e.Budget = ledgerOf(g.State, x.workItemID)
	e.Action.EvidenceRefs = references(x.policyEntry, x.approvalID, x.requestID, x.usesRequestID, headOf(g.State))
	var ids []string
	for _, r := range x.entry.Records {
		ids = append(ids, r.ID)
	}
	e.Action.MemoryReadRefs, err = memoryRead(ctx, tx, x.groupID, ids)
	return e, g.State, err
}

// references are what there is of the given ids, each once.
func references(ids ...string) []string {
	out := []string{}
	for _, id := range ids {
		if id != "" && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// headOf is the id of the last Event that a decision was taken on.
func headOf(st *groups.State) string {
	id, _ := st.EventAt(st.Head)
	return id
}

// memoryRead are the keys of the memory values among the records of an ancestry: what
// an action knows of memory.
func memoryRead(ctx context.Context, tx pgx.Tx, groupID string, records []string) ([]string, error) {
	if len(records) == 0 {
		return nil, nil
	}
	return memoryKeys(ctx, tx, `SELECT DISTINCT key COLLATE "C" FROM memory_values WHERE group_id = $1 AND record_id = ANY ($2) ORDER BY 1`, groupID, records)
}

// memoryWritten are the keys that an action wrote.
func memoryWritten(ctx context.Context, tx pgx.Tx, x *row) ([]string, error) {
	if x.entry.ActionType != WriteAction {
		return nil, nil
	}
	return memoryKeys(ctx, tx, `SELECT DISTINCT m.key COLLATE "C" FROM memory_values m JOIN provenance_records r USING (record_id)
		WHERE m.group_id = $1 AND m.action_id = $2 AND r.made_by_id = $3 ORDER BY 1`, x.groupID, x.actionID, x.agentID)
}

func memoryKeys(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]string, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// ledgerOf is the account of a WorkItem in the members that a record has; money
// and compute have none there.
func ledgerOf(st *groups.State, workItemID string) *evidence.BudgetLedger {
	a, ok := st.Ledger.Account(budget.WorkItemRef(workItemID))
	if !ok {
		return nil
	}
	used := a.Usage()
	spent := func(dimension int) *evidence.Spent {
		out := &evidence.Spent{Spent: float64(used[dimension])}
		if limit := float64(a.Limit[dimension]); limit > 0 {
			out.Limit = &limit
		}
		return out
	}
	latency := &evidence.Latency{ActualMS: float64(used[budget.WallClockSeconds]) * 1000}
	if limit := float64(a.Limit[budget.WallClockSeconds]) * 1000; limit > 0 {
		latency.LimitMS = &limit
	}
	return &evidence.BudgetLedger{
		Token: spent(budget.ModelTokens), Tool: spent(budget.ToolCalls), Risk: spent(budget.ExternalSideEffects), Latency: latency,
	}
}

func gross(v manifest.Verdict) string {
	switch v {
	case manifest.ALLOW:
		return decisionAllow
	case manifest.ASK:
		return "ask_user"
	}
	return decisionDeny
}

// denyClass is the class of reasons of a denial.
func denyClass(e *manifest.Entry) string {
	switch e.Rule {
	case manifest.TaintContainmentLaw:
		return "tainted-input"
	case manifest.Uncovered:
		return "tool-identity"
	case manifest.SchemaInvalid, manifest.ShapeInvalid:
		return reasonArgument
	case manifest.CapabilityBoundaryLaw:
		return "resource-scope"
	}
	return "policy-rule"
}

// emitDecision writes the evidence record of a decision.
func (s *Service) emitDecision(ctx context.Context, tx pgx.Tx, x *row, m *manifest.Manifest) (string, error) {
	e, st, err := s.evidenceEntry(ctx, tx, x, m, x.decidedAt)
	if err != nil {
		return "", err
	}
	a := &e.Action
	if x.entry.Decision == manifest.ALLOW && x.entry.ActionType == WriteAction && x.entry.Parameters != nil {
		if p, err := x.entry.Parameters.Value(); err == nil {
			a.MemoryWriteRefs = references(p.Member("key").Str())
		}
	}
	switch {
	case x.entry.Decision == manifest.ASK: // nothing authorizes it yet
	case x.stale != nil:
		x.stale.tell(a, x.argumentsDigest)
	case x.approvalHash != "" && x.approvalID != "":
		oneShot(a, x)
	default:
		w, l := leaseAt(st, x.workItemID, x.leaseID)
		if l == nil {
			break // a denial whose lease is not known stands on no grant
		}
		a.ScopeLeaseID, a.Lease, a.ApprovalGrant = x.leaseID, leaseEvidence(w, l, x.decidedAt), grantLease
		a.ApprovalDecision = gross(x.entry.Decision)
		a.ArgumentDrift = &evidence.ArgumentDrift{Result: resultNotChecked, ApprovalOrLeaseID: x.leaseID}
		if a.ApprovalDecision == decisionAllow && !insideLease(l, x.decidedAt) {
			// It ended between the check of the token and now: the decision must not
			// take effect.
			return "", protocol.NewError(protocol.CodeWorkLeaseExpired, w.State)
		}
		if a.ApprovalDecision == decisionAllow && a.Lease.Limit != nil {
			n, err := s.cfg.Evidence.NextInvocation(ctx, tx, e.Run, a)
			if err != nil {
				return "", err
			}
			if n > *a.Lease.Limit {
				return "", protocol.NewError(protocol.CodeBudgetExceeded, "").WithDetail("dimension", "toolCallLimit")
			}
		}
	}
	return s.cfg.Evidence.Append(ctx, tx, e)
}

// oneShot says that an action stands on an answer for exactly its arguments.
func oneShot(a *evidence.Action, x *row) {
	a.ApprovalGrant, a.ApprovalDecision, a.ApprovalContextHash = grantOneShot, gross(x.entry.Decision), x.approvalHash
	a.ArgumentDrift = &evidence.ArgumentDrift{
		Result: resultMatched, ApprovalOrLeaseID: x.approvalHash, ApprovedArgDigest: x.argumentsDigest,
		ObservedArgDigest: x.argumentsDigest, ArgsEqualityVersion: manifest.ArgsEquality,
	}
}

// standsOn repeats in the record of an outcome the authority that the record of the
// decision has, and compares the arguments.
func (s *Service) standsOn(ctx context.Context, tx pgx.Tx, x *row, a *evidence.Action, observed string) error {
	if x.entry.Decision != manifest.ALLOW {
		return nil
	}
	if x.approvalHash != "" && x.approvalID != "" {
		oneShot(a, x)
	} else {
		lease, err := s.cfg.Evidence.Lease(ctx, tx, x.evidenceID, x.actionID)
		if err != nil || lease == nil {
			return err
		}
		a.ScopeLeaseID, a.Lease, a.ApprovalGrant, a.ApprovalDecision = lease.LeaseID, lease, grantLease, decisionAllow
		a.ArgumentDrift = &evidence.ArgumentDrift{
			Result: resultMatched, ApprovalOrLeaseID: lease.LeaseID, ApprovedArgDigest: x.argumentsDigest,
			ArgsEqualityVersion: manifest.ArgsEquality,
		}
	}
	d := a.ArgumentDrift
	d.ObservedArgDigest = observed
	switch observed {
	case "":
		*d = evidence.ArgumentDrift{Result: resultNotChecked, ApprovalOrLeaseID: d.ApprovalOrLeaseID}
	case x.argumentsDigest:
	default:
		d.Result, d.DriftReason = resultDrifted, "the executed arguments are not those that were decided on"
		a.ApprovalDecision = decisionDrift
	}
	return nil
}

// staleAnswer is an approval that an action was proposed under and that does not
// cover it.
type staleAnswer struct {
	actionID, approvalID, hash string
	approved                   string // digest of the arguments it was given for
	expired                    bool
}

// staleOf tells why an answer does not count: it was given for other arguments, or
// its time is over. nil for every other reason.
func staleOf(given *groups.ActionApproval, asked *row, digest string, now time.Time) (*staleAnswer, error) {
	approval, err := approvalOf(given, asked)
	if err != nil || approval == nil {
		return nil, err
	}
	out := &staleAnswer{actionID: asked.actionID, approvalID: approval.ID, approved: approval.ParametersDigest, expired: !now.Before(approval.ExpiresAt)}
	if out.approved == digest && !out.expired {
		return nil, nil //nolint:nilnil // something else is the reason
	}
	out.hash, err = given.Decision.Approval.SigningHash()
	return out, err
}

// tell says in the record of a denial what was approved and what was tried.
func (st *staleAnswer) tell(a *evidence.Action, observed string) {
	a.ApprovalGrant, a.ApprovalContextHash, a.ApprovalDecision = grantOneShot, st.hash, decisionDrift
	a.EvidenceRefs = append(a.EvidenceRefs, st.approvalID)
	a.ArgumentDrift = &evidence.ArgumentDrift{
		Result: resultDrifted, ApprovalOrLeaseID: st.hash, ApprovedArgDigest: st.approved, ObservedArgDigest: observed,
		ArgsEqualityVersion: manifest.ArgsEquality, DriftReason: "the proposed arguments are not those that were approved",
	}
	if st.actionID != a.ActionID {
		a.ParentActionID = st.actionID
	}
	a.CapabilityDecision.DenyReasonClass, a.CapabilityDecision.ReasonCode = reasonArgument, "argument_drift"
	if st.approved == observed {
		a.ApprovalDecision, a.ArgumentDrift.Result, a.ArgumentDrift.DriftReason = decisionExpired, resultMatched, ""
		a.CapabilityDecision.DenyReasonClass, a.CapabilityDecision.ReasonCode = reasonDelegation, "approval_expired"
		a.CapabilityDecision.ApprovalExtension = &evidence.ApprovalExtension{
			Namespace: extensionNamespace, Mode: "approval-expired", EvidenceDigest: st.hash,
		}
	}
}

// leaseAt finds an Execution Lease of a WorkItem, open or closed. The last one of
// all is meant by an empty id.
func leaseAt(st *groups.State, workItemID, leaseID string) (*groups.WorkItem, *protocol.Lease) {
	w, ok := st.WorkItems[workItemID]
	if !ok {
		return nil, nil
	}
	if leaseID != "" {
		l, ok := w.Lease(leaseID)
		if !ok {
			return w, nil
		}
		return w, &l
	}
	if w.Execution != nil {
		return w, w.Execution
	}
	for i := len(w.ClosedLeases) - 1; i >= 0; i-- {
		if w.ClosedLeases[i].LeaseType == protocol.LeaseExecution {
			return w, &w.ClosedLeases[i]
		}
	}
	return w, nil
}

func instant(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return t
}

// insideLease tells whether a lease was good at a time.
func insideLease(l *protocol.Lease, at time.Time) bool {
	return at.Before(instant(l.ExpiresAt)) && (l.ClosedAt == "" || at.Before(instant(l.ClosedAt)))
}

// leaseEvidence is a lease as it stands, checked at a time. The clocks of the
// service and of the Authority may differ by a moment: nothing starts before its
// lease. Its invocations are limited by the tool calls of the Work Contract, if
// that grants any.
func leaseEvidence(w *groups.WorkItem, l *protocol.Lease, at time.Time) *evidence.LeaseEvidence {
	starts := instant(l.StartsAt)
	if at.Before(starts) {
		at = starts
	}
	e := &evidence.LeaseEvidence{
		LeaseID: l.LeaseID, GrantedAtMS: starts.UnixMilli(), ExpiresAtMS: instant(l.ExpiresAt).UnixMilli(), StartedAtMS: at.UnixMilli(),
	}
	if limit := w.Contract.Budget.ToolCallLimit; limit != nil && *limit > 0 {
		n := *limit
		e.Limit = &n
	}
	return e
}
