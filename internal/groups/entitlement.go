package groups

import (
	"slices"
	"time"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// What a Capability Token may grant, and for how long it stays true
// (PROTOCOL.md 12, COMMANDS.md 7.2 to 7.4). The Authorization Service asks; the
// answer comes from the same state, clock and rules as the Group's Commands.

// Standing is what a token is about: work that an Agent does now. A token is good
// while all of it stands.
type Standing struct {
	AgentID string
	// SessionEpoch is the Agent's present one for a new token, and the token's
	// for one that is checked.
	SessionEpoch int64
	// MembershipEpoch is the token's; 0 for a new token, which takes the present.
	MembershipEpoch  int64
	WorkItemID       string
	OwnershipEpoch   int64
	ExecutionLeaseID string
	// ApprovalID is the approval that the token was issued under, or that a new
	// one asks to be issued under; "" for none.
	ApprovalID string
}

// Wish is what a new token asks for.
type Wish struct {
	Operations, Resources []string
	// Budget nil asks for all there is.
	Budget *protocol.Budget
}

// Entitlement is what a token may grant.
type Entitlement struct {
	MissionID       string
	MembershipEpoch int64
	// Access pairs each resource with the operations that the contract permits
	// on it, and with the contract's constraints.
	Access []protocol.ResourceGrant
	// Budget has all six dimensions.
	Budget protocol.Budget
	// ApprovalID is the approval behind it, "" when none is needed nor named.
	ApprovalID string
	// OneShot says that the approval covers exactly one action.
	OneShot         bool
	ArgumentsDigest string
	// GateRule is the Organization policy rule that asks for the approval.
	GateRule string
	// Ends are the instants at which the lease and the approval end.
	Ends []string
}

// Approved is the part of an execution or action approval that bounds a token.
type approved struct {
	id, expiresAt, digest string
	operations, resources []string
	budget                *protocol.Budget
}

// Entitle decides on a new token. Refusals, in this order: MEMBERSHIP_REQUIRED,
// AUTH_FORBIDDEN (provisional, scope, not_owner), INVALID_COMMAND
// (unknown_reference), WORK_STALE_OWNERSHIP, APPROVAL_REQUIRED for queued work
// whose gate is closed, WORK_LEASE_EXPIRED, INVALID_STATE_TRANSITION,
// AUTH_FORBIDDEN:permission, APPROVAL_REQUIRED, INVALID_COMMAND:currency_mismatch,
// BUDGET_EXCEEDED.
// group looks Groups above this one up.
func (s *State) Entitle(t Standing, wish Wish, org *Organization, now time.Time, group func(id string) (*State, error)) (*Entitlement, error) {
	w, m, gate, a, err := s.stands(t, org, now)
	if err != nil {
		return nil, err
	}
	e := &Entitlement{MissionID: s.Mission.MissionID, MembershipEpoch: m.MembershipEpoch, Ends: []string{w.Execution.ExpiresAt}, GateRule: gate.RuleID}
	if e.Access, err = access(w.Contract.AllowedResources, wish); err != nil {
		return nil, err
	}
	if a != nil {
		if err := a.cover(wish, gate); err != nil {
			return nil, err
		}
		e.ApprovalID, e.ArgumentsDigest, e.OneShot = a.id, a.digest, a.digest != ""
		e.Ends = append(e.Ends, a.expiresAt)
	}
	e.Budget, err = s.entitledBudget(w, a, wish.Budget, group)
	return e, err
}

// Upholds decides whether a token that was issued earlier is still good at now:
// nil, or the refusal that a new one like it would meet.
func (s *State) Upholds(t Standing, org *Organization, now time.Time, group func(id string) (*State, error)) error {
	w, _, _, _, err := s.stands(t, org, now)
	if err != nil {
		return err
	}
	_, _, err = s.ancestry(w, group)
	return err
}

// MemberFor is what a Membership Token may say: the Principal's Membership at
// now, active and of this epoch (0 for whichever is present).
func (s *State) MemberFor(p protocol.Actor, epoch int64, now time.Time) (*protocol.Membership, error) {
	m, ever := s.Memberships[p]
	if !ever {
		return nil, refuse(protocol.CodeGroupNotFound, "")
	}
	if membershipEnded(m, now) {
		return nil, protocol.NewError(protocol.CodeMembershipRequired, "").WithGroup(s.GroupID)
	}
	if epoch != 0 && epoch != m.MembershipEpoch {
		return nil, protocol.NewError(protocol.CodeMembershipStale, "").
			WithDetail("expectedMembershipEpoch", m.MembershipEpoch).WithDetail("receivedMembershipEpoch", epoch)
	}
	return m, nil
}

// stands is what new and old tokens have in common.
func (s *State) stands(t Standing, org *Organization, now time.Time) (w *WorkItem, m *protocol.Membership, gate Gate, a *approved, err error) {
	agent := protocol.Actor{Type: protocol.ActorAgent, ID: t.AgentID}
	if m, err = s.MemberFor(agent, t.MembershipEpoch, now); err != nil {
		return nil, nil, gate, nil, err
	}
	switch {
	case m.State != membershipStateActive:
		err = forbid("provisional")
	case !holdsScope(m, ScopeWorkExecute):
		err = forbid("scope")
	}
	if err != nil {
		return nil, nil, gate, nil, err
	}
	w, ok := s.WorkItems[t.WorkItemID]
	if !ok {
		return nil, nil, gate, nil, invalid("unknown_reference")
	}
	if t.ApprovalID != "" && !w.knowsApproval(t.ApprovalID) {
		return nil, nil, gate, nil, invalid("unknown_reference")
	}
	if w.Owners[t.AgentID] == 0 {
		return nil, nil, gate, nil, forbid("not_owner")
	}
	if err := w.currentOwner(t.AgentID, t.OwnershipEpoch); err != nil {
		return nil, nil, gate, nil, err
	}
	gate = s.GateOf(&w.Contract, org)
	// Work that waits for its gate has no lease yet: what it lacks is the approval.
	if w.State == protocol.WorkQueued && gate.Required() && w.Opened(gate, now) == nil {
		return nil, nil, gate, nil, gateClosed(gate)
	}
	l := w.Execution
	if l == nil || l.LeaseID != t.ExecutionLeaseID || l.HolderAgentID != t.AgentID ||
		l.SessionEpoch != t.SessionEpoch || !leases.LiveAt(l, now) {
		return nil, nil, gate, nil, leaseExpiredError(protocol.LeaseExecution)
	}
	switch {
	case s.Archived():
		err = wrongState("group_archived", s.Mission.State)
	case s.Mission.State != protocol.MissionActive:
		err = wrongState("mission_not_active", s.Mission.State)
	case w.State != protocol.WorkActive:
		err = wrongState("state", w.State)
	default:
		a, err = w.approvedBy(t.ApprovalID, gate, now)
	}
	return w, m, gate, a, err
}

func gateClosed(g Gate) error {
	err := protocol.NewError(protocol.CodeApprovalRequired, "execution").WithDetail("gate", g.Kind)
	if g.RuleID != "" {
		err = err.WithDetail("ruleId", g.RuleID)
	}
	return err
}

// knowsApproval reports that an approval of execution or of an action was ever
// given for the WorkItem under this id.
func (w *WorkItem) knowsApproval(id string) bool {
	return slices.ContainsFunc(w.Executions, func(e ExecutionApproval) bool { return e.ApprovalID == id }) ||
		slices.ContainsFunc(w.ActionRequests, func(a ActionApproval) bool {
			return a.Decision != nil && a.Decision.Approval.Doc.ApprovalID == id
		})
}

// approvedBy finds the approval that a token rests on: the one that is named, or
// the one that opens the gate. An approval that is named and no longer in force
// is APPROVAL_REQUIRED even where no gate asks for one. An approval of a single
// action narrows, and does not open the gate.
func (w *WorkItem) approvedBy(id string, gate Gate, now time.Time) (*approved, error) {
	var opened *ExecutionApproval
	if gate.Required() {
		if opened = w.Opened(gate, now); opened == nil {
			return nil, gateClosed(gate)
		}
	}
	if id == "" {
		return opened.bounds(), nil
	}
	for i := range w.ActionRequests {
		a := &w.ActionRequests[i]
		if a.Decision == nil || a.Decision.Approval.Doc.ApprovalID != id {
			continue
		}
		if !a.Granted(now) || w.Owner.OwnershipEpoch != a.Request.OwnershipEpoch {
			return nil, gateClosed(gate)
		}
		r := &a.Request
		return &approved{
			id: id, expiresAt: a.Decision.ExpiresAt, digest: r.ArgumentsDigest,
			operations: []string{r.Operation}, resources: r.Resources,
		}, nil
	}
	if e := w.inForce(id, gate, now); e != nil {
		return e.bounds(), nil
	}
	return nil, gateClosed(gate)
}

// inForce is Opened for one approval that is named: it may be an older one than
// the last, but no denial of the gate may have followed it.
func (w *WorkItem) inForce(id string, gate Gate, now time.Time) *ExecutionApproval {
	for i := len(w.Executions) - 1; i >= 0; i-- {
		e := &w.Executions[i]
		if e.OwnershipEpoch != w.Owner.OwnershipEpoch {
			continue
		}
		if e.Status == executionDenied && e.RequestID == "" {
			return nil
		}
		if e.ApprovalID != id {
			continue
		}
		human := e.Approver.Type == protocol.ActorHuman
		if e.Status != executionApproved || !leases.Before(now, e.ExpiresAt) || !human && gate.Kind == gateHuman {
			return nil
		}
		return e
	}
	return nil
}

func (e *ExecutionApproval) bounds() *approved {
	if e == nil {
		return nil
	}
	return &approved{
		id: e.ApprovalID, expiresAt: e.ExpiresAt, digest: e.ArgumentsDigest,
		operations: e.Operations, resources: e.Resources, budget: e.Budget,
	}
}

// cover checks that a wish lies within an approval: what lies outside has not
// been approved.
func (a *approved) cover(wish Wish, gate Gate) error {
	for _, op := range wish.Operations {
		if !slices.Contains(a.operations, op) {
			return gateClosed(gate)
		}
	}
	for _, r := range wish.Resources {
		if !slices.ContainsFunc(a.resources, func(allowed string) bool { return covers(allowed, r) }) {
			return gateClosed(gate)
		}
	}
	return nil
}

// access pairs what is wished with what the contract permits. Every resource has
// to permit one of the operations at least, and every operation be permitted on
// one of the resources; nothing is added to what was asked.
func access(grants []protocol.ResourceGrant, wish Wish) ([]protocol.ResourceGrant, error) {
	if !coverable(grants, wish.Operations, wish.Resources) {
		return nil, forbid("permission")
	}
	var out []protocol.ResourceGrant
	for _, r := range wish.Resources {
		found := false
		for _, g := range grants {
			if !covers(g.Resource, r) {
				continue
			}
			var ops []string
			for _, op := range wish.Operations {
				if slices.Contains(g.Operations, op) {
					ops = append(ops, op)
				}
			}
			if len(ops) > 0 {
				found = true
				out = append(out, protocol.ResourceGrant{Resource: r, Operations: ops, Constraints: g.Constraints})
			}
		}
		if !found {
			return nil, forbid("permission")
		}
	}
	return out, nil
}

// entitledBudget is the budget of a token: the wish, which may exceed neither the
// contract, nor what remains there and in the whole ancestry, nor the approval;
// or the least of all these when nothing is wished.
func (s *State) entitledBudget(w *WorkItem, a *approved, wish *protocol.Budget, group func(id string) (*State, error)) (protocol.Budget, error) {
	currency := s.Ledger.Currency()
	most, account, err := s.ancestry(w, group)
	if err != nil {
		return protocol.Budget{}, err
	}
	most = least(most, budget.FromBudget(w.Contract.Budget))
	if a != nil && a.budget != nil {
		most = least(most, budget.FromBudget(*a.budget))
	}
	if wish == nil {
		return budget.ToBudget(most, currency), nil
	}
	if budgetCurrency(*wish, currency) {
		return protocol.Budget{}, invalid("currency_mismatch")
	}
	asked := budget.FromBudget(*wish)
	if over := asked.Exceeding(most); over != 0 {
		return protocol.Budget{}, protocol.NewError(protocol.CodeBudgetExceeded, "token").
			WithDetail("account", account.Ref).WithDetail("dimensions", over.Names())
	}
	return budget.ToBudget(asked, currency), nil
}

// ancestry is what the WorkItem's account may still spend, as it and everything
// above it allow; BUDGET_EXCEEDED:paused while one of them is exhausted in what
// running work consumes. Accounts of other Groups are not named.
func (s *State) ancestry(w *WorkItem, group func(id string) (*State, error)) (most budget.Vector, own *budget.Account, err error) {
	own, ok := s.Ledger.Account(w.Account())
	if !ok {
		return most, nil, &IntegrityError{Problem: "WorkItem " + w.WorkItemID + " has no account"}
	}
	exhausted, dims, near, err := pausedBy(s, w, group)
	if err != nil {
		return most, nil, err
	}
	if exhausted != nil {
		refusal := protocol.NewError(protocol.CodeBudgetExceeded, "paused")
		if near {
			refusal = refusal.WithDetail("account", exhausted.Ref).WithDetail("dimensions", dims.Names())
		}
		return most, nil, refusal
	}
	most = least(own.Remaining(), own.Limit)
	for g, account := s, own; ; {
		for a := account; a != nil; a = a.Parent() {
			most = least(most, a.Limit.Minus(a.Usage()))
		}
		up, ok := g.Ledger.Up()
		if !ok {
			return most, own, nil
		}
		if g, err = group(up.GroupID); err != nil {
			return most, nil, err
		}
		if g == nil {
			return most, nil, &IntegrityError{Problem: "parent Group " + up.GroupID + " is gone"}
		}
		if account, ok = g.Ledger.Account(up.Account); !ok {
			return most, nil, &IntegrityError{Problem: "account above the Group is gone"}
		}
	}
}

// least is the smaller amount of each dimension, never below zero.
func least(a, b budget.Vector) budget.Vector {
	for i := range a {
		a[i] = max(min(a[i], b[i]), 0)
	}
	return a
}
