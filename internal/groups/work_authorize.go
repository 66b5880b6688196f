package groups

import (
	"unicode/utf8"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/protocol"
)

// work.authorize: an obligation comes into being, and its budget is set aside.

type authorizing struct {
	grant    *protocol.DelegationGrant
	proposal *Proposal
	parent   *WorkItem
	replaced *WorkItem
	contract *protocol.WorkContract
}

func workAuthorizeKind() Kind {
	return kind(Kind{
		Kind: "work.authorize", WorkItem: WorkItemNew, Aggregate: AggregateWorkItem, Shape: shapeWorkAuthorize,
		Capacities: []CapacityRow{
			{CapacityCoordinator, ScopeWorkAuthorize},
			{CapacityDelegate, ScopeWorkDelegate},
			{CapacityMissionOwner, ScopeWorkOverride},
		},
		Limits: []string{LimitDepth, LimitDuplicate},
	}, plan[workAuthorize, authorizing]{
		Judge: func(x *Ctx, p *workAuthorize) (Capacity, bool) { return x.delegate(&p.delegated) },
		Extensions: func(x *Ctx, p *workAuthorize, _ *authorizing) error {
			if p.Contract == nil {
				return nil
			}
			return x.extensionsIn(p.Contract.Extensions)
		},
		Authority: func(x *Ctx, p *workAuthorize, s *authorizing) (err error) {
			s.grant, err = x.delegationAuthority(&p.delegated)
			return err
		},
		References: authorizeReferences,
		Revision: func(x *Ctx, p *workAuthorize, _ *authorizing) int64 {
			if p.ProposalID == "" {
				return 0
			}
			return x.Group.Revision(proposalAggregate(p.ProposalID))
		},
		State:  authorizeState,
		Values: authorizeValues,
		Limits: authorizeLimits,
		Budget: authorizeBudget,
		Emit:   authorizeEmit,
	})
}

func authorizeReferences(x *Ctx, p *workAuthorize, s *authorizing) error {
	g, self := x.Group, x.Command.Envelope.WorkItemID
	if g.WorkItems[self] != nil {
		return invalid("identifier_in_use")
	}
	s.contract = p.Contract
	if p.ProposalID != "" {
		if s.proposal = g.Proposals[p.ProposalID]; s.proposal == nil {
			return invalid("unknown_reference")
		}
		if s.contract == nil {
			s.contract = &s.proposal.Contract
		}
	}
	for _, ref := range []struct {
		id string
		to **WorkItem
	}{{p.ParentWorkItemID, &s.parent}, {p.ReplacesWorkItemID, &s.replaced}} {
		if ref.id == "" {
			continue
		}
		if *ref.to = g.WorkItems[ref.id]; *ref.to == nil {
			return invalid("unknown_reference")
		}
	}
	return x.knownDependencies(s.contract, self)
}

func authorizeState(x *Ctx, _ *workAuthorize, s *authorizing) error {
	if err := missionActive(x); err != nil {
		return err
	}
	if s.proposal != nil && s.proposal.Status != ProposalOpen {
		return wrongState("proposal_not_open", "")
	}
	if s.replaced != nil {
		if err := inState(s.replaced, protocol.WorkFailed, protocol.WorkCancelled); err != nil {
			return err
		}
	}
	if s.parent != nil && (s.parent.State == protocol.WorkVerified || s.parent.State == protocol.WorkCancelled) {
		return wrongState("parent_terminal", s.parent.State)
	}
	return nil
}

func authorizeValues(x *Ctx, p *workAuthorize, s *authorizing) error {
	if p.Exclusive != nil && !*p.Exclusive {
		return invalid("not_supported")
	}
	if err := x.contractValues(s.contract, 1, func() error { return authorizeCycle(x, s) }); err != nil {
		return err
	}
	if s.grant != nil {
		return x.grantScope(s.grant, s.parent, 1, s.contract)
	}
	return nil
}

// authorizeCycle looks for a way back from the dependencies to the new
// WorkItem. Nothing depends on an id that is new, except through the WorkItem
// it replaces.
func authorizeCycle(x *Ctx, s *authorizing) error {
	self := x.Command.Envelope.WorkItemID
	for _, id := range s.contract.DependencyWorkItemIDs {
		if id == self {
			return invalid("cycle")
		}
	}
	if s.replaced != nil && x.Group.reaches(s.contract.DependencyWorkItemIDs, s.replaced.WorkItemID) {
		return invalid("cycle")
	}
	return nil
}

func authorizeLimits(x *Ctx, p *workAuthorize, s *authorizing) error {
	limits := x.limits()
	if !limits.DuplicateDecompositionOff && x.Group.Duplicate(p.ParentWorkItemID, s.contract, p.ProposalID) {
		x.over(LimitDuplicate, 1, 0)
	}
	if depthOf(s.parent) > limits.DelegationDepth {
		x.over(LimitDepth, limits.DelegationDepth, 0)
	}
	return nil
}

// depthOf is the delegation depth of a WorkItem below parent.
func depthOf(parent *WorkItem) int64 {
	if parent == nil {
		return 0
	}
	return parent.DelegationDepth + 1
}

// parentAccount is the account a WorkItem below parent reserves from.
func (s *State) parentAccount(parentWorkItemID string) budget.Ref {
	if parentWorkItemID != "" {
		return budget.WorkItemRef(parentWorkItemID)
	}
	return budget.MissionRef(s.Mission.MissionID)
}

func authorizeBudget(x *Ctx, p *workAuthorize, s *authorizing) error {
	err := x.Group.Ledger.CheckReserve(x.Group.parentAccount(p.ParentWorkItemID), budget.FromBudget(s.contract.Budget))
	if err != nil {
		return overBudget("", err)
	}
	if s.grant != nil {
		return x.grantBudget(s.grant, x.Command.Envelope.WorkItemID, s.contract.Budget)
	}
	return nil
}

func authorizeEmit(x *Ctx, p *workAuthorize, s *authorizing) error {
	g, actor, id := x.Group, x.Actor(), x.Command.Envelope.WorkItemID
	conversation := protocol.Conversation{
		ConversationID: x.Mint(), MissionID: g.Mission.MissionID, GroupID: g.GroupID, Type: "work_item",
		PrimaryWorkItemID: id, Title: p.Title, Access: protocol.ConversationAccess{Mode: "group"},
		CreatedBy: actor, CreatedAt: x.Now, State: "active", Revision: 1,
	}
	if conversation.Title == "" {
		conversation.Title = prefix(s.contract.Goal, 500)
	}
	created := actor
	if s.proposal != nil {
		created = s.proposal.ProposedBy
	}
	payload := &WorkAuthorized{
		WorkItemID: id, State: protocol.WorkOpen,
		WorkItem: protocol.WorkItem{
			WorkItemID: id, MissionID: g.Mission.MissionID, GroupID: g.GroupID,
			ConversationID: conversation.ConversationID,
			Revision:       1, State: protocol.WorkOpen, Exclusive: true, Contract: *s.contract,
			CreatedBy: created, AuthorizedBy: &actor, CreatedAt: x.Now, UpdatedAt: x.Now,
		},
		Conversation: conversation,
		ProposalID:   p.ProposalID, ParentWorkItemID: p.ParentWorkItemID, ReplacesWorkItemID: p.ReplacesWorkItemID,
		DelegationGrantID: p.DelegationGrantID, DelegationDepth: depthOf(s.parent),
		EmergencyOverride: p.EmergencyOverride,
	}
	if p.EmergencyOverride != nil {
		payload.PolicyLogEntryID = x.Mint()
	}
	x.emit("work.authorized", payload, emission{
		WorkItemID: id, Conversation: conversation.ConversationID, Primary: true,
	})
	return nil
}

// prefix is the first n Unicode scalars of s.
func prefix(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n])
}
