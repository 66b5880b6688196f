package groups

import (
	"slices"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// Use of a Delegation Grant (COMMANDS.md 7.5). A Grant is judged anew at every
// use: nothing about it is remembered as valid.

// delegate is the capacity of whoever cites a Grant; the Coordinator needs none.
func (x *Ctx) delegate(d *delegated) (Capacity, bool) {
	return CapacityDelegate, d.DelegationGrantID != "" && x.Actor() != x.Group.CoordinatorActor()
}

// delegationAuthority is P17 for work.authorize and work.offer: rows 1 to 4 for
// a delegate, and what the other two capacities must or must not send.
func (x *Ctx) delegationAuthority(d *delegated) (*protocol.DelegationGrant, error) {
	switch x.Capacity {
	case CapacityDelegate:
		if d.EmergencyOverride != nil {
			return nil, forbid("override_not_applicable")
		}
		return x.grant(d.DelegationGrantID)
	case CapacityMissionOwner:
		if x.Actor().Type != protocol.ActorHuman {
			return nil, forbid("human_required")
		}
		if d.EmergencyOverride == nil {
			return nil, forbid("override_required")
		}
	default:
		if d.DelegationGrantID != "" {
			return nil, forbid("grant_not_needed")
		}
		if d.EmergencyOverride != nil {
			return nil, forbid("override_not_applicable")
		}
	}
	return nil, nil
}

func (x *Ctx) grant(id string) (*protocol.DelegationGrant, error) {
	g, m := x.Group.Grants[id], x.Membership
	switch {
	case g == nil, g.GranteeAgentID != x.Actor().ID,
		m.State != membershipStateActive, m.Role != roleWorkDelegate, !x.holds(ScopeWorkDelegate),
		m.MembershipEpoch != g.GranteeMembershipEpoch:
		return nil, forbid("grant")
	case g.CoordinatorEpoch != x.Group.Mission.Coordinator.CoordinatorEpoch,
		g.GrantedBy != x.Group.CoordinatorActor():
		return nil, refuse(protocol.CodeAuthStaleCoordinator, "grant")
	}
	target := x.Group.WorkItems[g.TargetWorkItemID]
	if !leases.Before(x.World.Now, g.ExpiresAt) || target == nil || !target.Unfinished() {
		return nil, forbid("grant")
	}
	return g, nil
}

// grantScope is rows 5 to 8 of P23: w is the WorkItem offered, or the parent of
// the one to be authorized (below is then 1), nil when there is none.
func (x *Ctx) grantScope(g *protocol.DelegationGrant, w *WorkItem, below int64, c *protocol.WorkContract) error {
	depth, inside := x.Group.depthBelow(w, g.TargetWorkItemID)
	switch {
	case !inside:
		return forbid("grant_scope")
	case depth+below > g.MaxDescendantDepth:
		return forbid("grant_depth")
	}
	for _, r := range c.RequiredCapabilities {
		if !slices.ContainsFunc(g.AllowedCapabilities, func(a protocol.CapabilityRef) bool {
			return a.ID == r.ID && leases.AtLeast(r.Version, a.Version)
		}) {
			return forbid("grant_capability")
		}
	}
	if below == 0 && w.DelegationGrantID != "" && w.DelegationGrantID != g.GrantID {
		return forbid("grant_scope")
	}
	if budgetCurrency(c.Budget, g.Budget.Currency) {
		return invalid("currency_mismatch")
	}
	return nil
}

// depthBelow counts the parent links from w up to the WorkItem target.
func (s *State) depthBelow(w *WorkItem, target string) (depth int64, ok bool) {
	for ; w != nil; w = s.WorkItems[w.ParentWorkItemID] {
		if w.WorkItemID == target {
			return depth, true
		}
		depth++
	}
	return 0, false
}

// grantBudget is row 9 of P24: the contract budgets of everything authorized or
// offered under the Grant stay within its ceilings; workItemID counts with the
// budget it is about to have.
func (x *Ctx) grantBudget(g *protocol.DelegationGrant, workItemID string, b protocol.Budget) error {
	total := budget.FromBudget(b)
	for id := range x.Group.attributed[g.GrantID] {
		if id != workItemID {
			total = total.Plus(budget.FromBudget(x.Group.WorkItems[id].Contract.Budget))
		}
	}
	if over := total.Exceeding(budget.FromBudget(g.Budget)); over != 0 {
		return exceededBudget("grant", &budget.Exceeded{
			Account: budget.WorkItemRef(g.TargetWorkItemID), Dimensions: over,
		})
	}
	return nil
}
