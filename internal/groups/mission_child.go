package groups

import (
	"bytes"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// missionCreateChild is the payload of mission.create_child.
type missionCreateChild struct {
	missionTerms
	ParentWorkItemID string                   `json:"parentWorkItemId"`
	FailurePolicy    string                   `json:"failurePolicy"`
	SelectionBasis   *protocol.SelectionBasis `json:"selectionBasis"`
}

func (p *missionCreateChild) checkEnvelope(env *protocol.Command) string {
	if p.GroupID == env.GroupID || p.ParentWorkItemID != "" && p.ParentWorkItemID != env.WorkItemID {
		return "envelope_mismatch"
	}
	return ""
}

// custodyRule is the policy rule of a selection basis that nobody gave.
const custodyRule = "missionweave:child-custody"

func missionChildKind() Kind {
	return kind(Kind{
		Kind: "mission.create_child", Capacities: []CapacityRow{{CapacityCoordinator, ScopeMissionCoordinate}},
		WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem,
		Limits: []string{LimitDuplicate, LimitDepth},
		Shape: shapeMissionCreate.Without("approvalPolicy").Extend(
			shape.Opt("workItemId", protocol.ShapeID),
			shape.Opt("parentWorkItemId", protocol.ShapeID),
			shape.Opt("approvalPolicy", protocol.ShapeApprovalPolicy),
			shape.Opt("failurePolicy", shape.Enum(failBlocks, failItem, failMission)),
			shape.Opt("selectionBasis", protocol.ShapeSelectionBasis),
		),
	}, plan[missionCreateChild, creation]{
		Extensions: func(x *Ctx, p *missionCreateChild, _ *creation) error { return x.pinnable(p.PinnedProfiles) },
		References: func(x *Ctx, p *missionCreateChild, s *creation) (err error) {
			if err := x.unusedMission(p.MissionID, p.GroupID); err != nil {
				return err
			}
			s.agent, err = x.registeredAgent(p.CoordinatorAgentID)
			return err
		},
		Revision: itemRevision[missionCreateChild, creation],
		State: func(x *Ctx, _ *missionCreateChild, _ *creation) error {
			if err := missionActive(x); err != nil {
				return err
			}
			if err := x.itemRow(); err != nil {
				return err
			}
			if x.Item.ChildIsLive() {
				return wrongState("child_live", x.Item.State)
			}
			return nil
		},
		Values: childValues,
		Limits: childLimits,
		Budget: func(x *Ctx, p *missionCreateChild, _ *creation) error {
			return overBudget("", x.Group.Ledger.CheckReserve(x.Item.Account(), budget.FromBudget(p.Budget)))
		},
		Emit: childEmit,
	})
}

func childValues(x *Ctx, p *missionCreateChild, s *creation) error {
	m, w := x.Group.Mission, x.Item
	switch {
	case p.CoordinatorAgentID == x.Actor().ID:
		return invalid("same_agent")
	case !leases.Before(x.World.Now, p.Deadline), leases.Compare(p.Deadline, m.Deadline) > 0,
		leases.Compare(p.Deadline, w.Contract.Deadline) > 0:
		return invalid("deadline")
	case p.SelectionBasis != nil && !basisHolds(p.SelectionBasis, &w.Contract, []*Agent{s.agent}):
		return invalid("selection_basis")
	}
	if err := leaseBounds(x.World.Org.Leases.Coordinator, p.CoordinatorLeaseSeconds); err != nil {
		return err
	}
	if err := x.foreignBudget(p.Budget); err != nil {
		return err
	}
	switch {
	case !permitted(w.Contract.AllowedResources, p.Permissions):
		return forbid("permission")
	case p.AllowedCapabilities != nil && !underCeiling(m.AllowedCapabilities, p.AllowedCapabilities):
		return forbid("capability")
	case p.ApprovalPolicy != nil && m.ApprovalPolicy.HighRiskExecutionApproval &&
		!p.ApprovalPolicy.HighRiskExecutionApproval:
		return forbid("approval_policy")
	}
	return nil
}

func childLimits(x *Ctx, p *missionCreateChild, _ *creation) error {
	limits := x.limits()
	if !limits.DuplicateDecompositionOff {
		children, err := x.liveChildren(x.Group)
		if err != nil {
			return err
		}
		for _, c := range children {
			same, err := sameAim(c.Mission, p)
			if err != nil {
				return err
			}
			if same {
				x.over(LimitDuplicate, 1, 0)
				break
			}
		}
	}
	if x.Group.Depth()+1 > limits.DelegationDepth {
		x.over(LimitDepth, limits.DelegationDepth, 0)
	}
	return nil
}

// sameAim compares objective and definition of done as JSON values.
func sameAim(m *Mission, p *missionCreateChild) (bool, error) {
	if m.Objective != p.Objective {
		return false, nil
	}
	a, err := strictjson.Marshal(m.DefinitionOfDone)
	if err != nil {
		return false, err
	}
	b, err := strictjson.Marshal(p.DefinitionOfDone)
	return bytes.Equal(a, b), err
}

func childEmit(x *Ctx, p *missionCreateChild, s *creation) error {
	g, w, now := x.Group, x.Item, x.World.Now
	actor := x.Actor()
	policy := protocol.ApprovalPolicy{
		HighRiskExecutionApproval: g.Mission.ApprovalPolicy.HighRiskExecutionApproval,
		PolicyVersion:             g.Mission.ApprovalPolicy.PolicyVersion,
	}
	if p.ApprovalPolicy != nil {
		policy = *p.ApprovalPolicy
	}
	terms := p.missionTerms
	if terms.AllowedCapabilities == nil {
		terms.AllowedCapabilities = g.Mission.AllowedCapabilities
	}
	failure := p.FailurePolicy
	if failure == "" {
		failure = failBlocks
	}
	epoch := w.OwnershipEpoch + 1
	lease := leases.Open(protocol.LeaseBlocked, leases.Terms{
		LeaseID: x.Mint(), MissionID: w.MissionID, GroupID: w.GroupID, WorkItemID: w.WorkItemID,
		HolderAgentID: actor.ID, SessionEpoch: x.Command.Envelope.SessionEpoch, OwnershipEpoch: epoch,
		Now: now, ExpiresAt: p.Deadline,
	})
	basis := p.SelectionBasis
	if basis == nil {
		basis = w.SelectionBasis
	}
	if basis == nil {
		basis = &protocol.SelectionBasis{
			RequiredCapabilities: w.Contract.RequiredCapabilities, VerifiedMatches: w.Contract.RequiredCapabilities,
			AuthorizationEligible: true, AvailabilityEstimate: x.Now, ReliabilityEvidence: []string{},
			PolicyRulesApplied: []string{custodyRule},
		}
	}
	id := x.emit("mission.child.created", &MissionChildCreated{
		WorkItemID: w.WorkItemID, State: protocol.WorkBlocked,
		ChildMissionID: p.MissionID, ChildGroupID: p.GroupID, ChildCoordinatorAgentID: p.CoordinatorAgentID,
		ChildBudget: p.Budget, ChildDeadline: p.Deadline, FailurePolicy: failure,
		Owner: protocol.Owner{
			AgentID: actor.ID, AgentCardVersion: x.Agent.Card.CardVersion,
			CapabilityPins: w.Contract.RequiredCapabilities, OwnershipEpoch: epoch,
			OwnershipLeaseID: lease.LeaseID, AcceptedAt: x.Now,
		},
		SelectionBasis: *basis, CustodyLease: lease,
		ClosedLeases:      w.closing(now, leases.Revoked, leases.Revoked, leases.ReasonChildMission),
		WithdrawnOfferIDs: w.liveOffers(now), PreviousOwner: w.Owner,
	}, emission{WorkItem: w, Primary: true})
	root := g.RootOwner()
	created, err := x.found(founding{
		terms: &terms, owner: actor, agent: s.agent, policy: policy, observer: &root,
		parent: &protocol.MissionParent{
			MissionID: g.Mission.MissionID, WorkItemID: w.WorkItemID, Depth: g.Depth() + 1,
		},
	})
	if err != nil {
		return err
	}
	created.ParentGroupID, created.ParentWorkItemID = g.GroupID, w.WorkItemID
	created.SourceEventID, created.FailurePolicy = id, failure
	x.out.emit(p.GroupID, nil, "mission.created", created, emission{Source: id, TreeID: g.TreeID})
	return nil
}
