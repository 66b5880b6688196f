package groups

import (
	"time"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// The execution gate (COMMANDS.md 7.4): whether a human, or a service, must
// have agreed before work starts, and whether one has. It is computed from
// state and clock, never stored.

// Gates, as details.gate of APPROVAL_REQUIRED names them.
const (
	gateNone      = "not_required"
	gatePolicy    = "policy_required"
	gateHuman     = "human_required"
	gateRootHuman = "root_human"
)

// Execution approval statuses.
const (
	executionApproved = "approved"
	executionDenied   = "denied"
	executionRevoked  = "revoked"
	executionExpired  = "expired"
)

// Approval request statuses.
const (
	requestPending    = "pending"
	requestGranted    = "granted"
	requestDenied     = "denied"
	requestExpired    = "expired"
	requestSuperseded = "superseded"
)

// Gate is the start gate of a WorkItem.
type Gate struct {
	// Kind is not_required, policy_required (a service may open it) or
	// human_required.
	Kind string
	// RuleID is the Organization policy rule that asks for it, if one does.
	RuleID string
}

// Required reports that somebody must agree.
func (g Gate) Required() bool { return g.Kind != gateNone }

// OpensByService reports a gate that a service may open.
func (g Gate) OpensByService() bool { return g.Kind == gatePolicy }

// GateOf says what a contract and policy demand. Only what asks for a human
// keeps a service from opening it.
func (s *State) GateOf(c *protocol.WorkContract, org *Organization) Gate {
	g := Gate{Kind: gateNone}
	if org.ExecutionPolicyRule != nil {
		g.RuleID = org.ExecutionPolicyRule(c)
	}
	switch c.SideEffectRisk {
	case "high_risk", "destructive":
		g.Kind = gateHuman
	case "external":
		if s.Mission.ApprovalPolicy.HighRiskExecutionApproval {
			g.Kind = gateHuman
		}
	}
	switch {
	case c.ExecutionApproval == gateHuman:
		g.Kind = gateHuman
	case g.Kind == gateNone && (c.ExecutionApproval == gatePolicy || g.RuleID != ""):
		g.Kind = gatePolicy
	}
	return g
}

// Opened returns the execution approval that satisfies the gate for the
// WorkItem's current Ownership Epoch at now, nil when none does. A denial of
// the gate counts against every earlier approval of the epoch, a denied
// request only against itself.
func (w *WorkItem) Opened(g Gate, now time.Time) *ExecutionApproval {
	for i := len(w.Executions) - 1; i >= 0; i-- {
		e := &w.Executions[i]
		if w.Owner == nil || e.OwnershipEpoch != w.Owner.OwnershipEpoch {
			continue
		}
		switch e.Status {
		case executionDenied:
			if e.RequestID == "" {
				return nil
			}
		case executionApproved:
			if e.ExpiresAt != "" && !leases.Before(now, e.ExpiresAt) {
				continue
			}
			if e.Approver.Type == protocol.ActorHuman ||
				e.Approver.Type == protocol.ActorService && g.Kind == gatePolicy {
				return e
			}
		}
	}
	return nil
}

// pass is the gate check of P23: APPROVAL_REQUIRED while the gate is closed,
// else the approval that opens it, nil when none is needed.
func (x *Ctx) pass(w *WorkItem) (*ExecutionApproval, error) {
	g := x.Group.GateOf(&w.Contract, x.World.Org)
	if !g.Required() {
		return nil, nil
	}
	if e := w.Opened(g, x.World.Now); e != nil {
		return e, nil
	}
	err := protocol.NewError(protocol.CodeApprovalRequired, "execution").WithDetail("gate", g.Kind)
	if g.RuleID != "" {
		err = err.WithDetail("ruleId", g.RuleID)
	}
	return nil, err
}

// gateWaiting is how a served WorkItem says that its start waits for somebody.
const gateWaiting = "awaiting_execution_approval"

// ClockOf computes what a served WorkItem says that depends on the clock and on
// accounts of other Groups (COMMANDS.md 6.3, 7.2, 7.4); group looks those up.
func (s *State) ClockOf(w *WorkItem, org *Organization, now time.Time, group func(id string) (*State, error)) (WorkItemClock, error) {
	var c WorkItemClock
	if !w.Unfinished() {
		return c, nil
	}
	if g := s.GateOf(&w.Contract, org); w.State == protocol.WorkQueued && g.Required() && w.Opened(g, now) == nil {
		c.Gate = gateWaiting
	}
	a, _, _, err := pausedBy(s, w, group)
	c.Paused = a != nil
	return c, err
}
