package groups

import (
	"slices"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

// Authority that is handed on: Delegation Grants and Cooperation Override
// Grants (COMMANDS.md 5.2). How they are used stands in delegation.go and
// limits.go.

// grantDelegation is the payload of membership.grant_delegation.
type grantDelegation struct {
	GrantID             string                   `json:"grantId"`
	GranteeAgentID      string                   `json:"granteeAgentId"`
	TargetWorkItemID    string                   `json:"targetWorkItemId"`
	AllowedCapabilities []protocol.CapabilityRef `json:"allowedCapabilities"`
	Budget              protocol.Budget          `json:"budget"`
	MaxDescendantDepth  int64                    `json:"maxDescendantDepth"`
	ExpiresAt           string                   `json:"expiresAt"`
}

// grantOverride is the payload of policy.grant_cooperation_override.
type grantOverride struct {
	GrantID           string         `json:"grantId"`
	PolicyName        string         `json:"policyName"`
	Beneficiary       protocol.Actor `json:"beneficiary"`
	TargetCommandKind string         `json:"targetCommandKind"`
	TargetActionID    string         `json:"targetActionId"`
	Reason            string         `json:"reason"`
	ExpiresAt         string         `json:"expiresAt"`
}

// handover is what the steps of grant_delegation hand on.
type handover struct {
	target  *WorkItem
	grantee *protocol.Membership
}

func grantKinds() []Kind {
	return []Kind{
		kind(Kind{
			Kind: "membership.grant_delegation", Aggregate: AggregateWorkItem,
			Capacities: []CapacityRow{{CapacityCoordinator, ScopeMissionCoordinate}},
			Limits:     []string{LimitDepth},
			Shape: shape.Object(
				shape.Req("grantId", protocol.ShapeID),
				shape.Req("granteeAgentId", protocol.ShapeID),
				shape.Req("targetWorkItemId", protocol.ShapeID),
				shape.Req("allowedCapabilities", shapeCapabilities),
				shape.Req("budget", shapeBudget.Requiring("currency", "financialLimit", "modelTokenLimit",
					"toolCallLimit", "computeSecondsLimit", "wallClockSecondsLimit", "externalSideEffectLimit")),
				shape.Req("maxDescendantDepth", protocol.ShapeSafeInteger),
				shape.Req("expiresAt", protocol.ShapeTimestamp),
			).Rule(uniqueMember("allowedCapabilities", "id")),
		}, plan[grantDelegation, handover]{
			References: func(x *Ctx, p *grantDelegation, s *handover) error {
				if _, used := x.Group.Grants[p.GrantID]; used {
					return invalid("identifier_in_use")
				}
				var member, item bool
				s.grantee, member = x.Group.Member(agentOf(p.GranteeAgentID))
				s.target, item = x.Group.WorkItems[p.TargetWorkItemID]
				if !member || !item {
					return invalid("unknown_reference")
				}
				return nil
			},
			Revision: func(x *Ctx, p *grantDelegation, _ *handover) int64 {
				return x.Group.Revision(workItemAggregate(p.TargetWorkItemID))
			},
			State: func(x *Ctx, _ *grantDelegation, s *handover) error {
				if err := missionActive(x); err != nil {
					return err
				}
				return inState(s.target, unfinishedWork...)
			},
			Values: func(x *Ctx, p *grantDelegation, s *handover) error {
				switch {
				case s.grantee.State != membershipStateActive, s.grantee.Role != roleWorkDelegate,
					!holdsScope(s.grantee, ScopeWorkDelegate):
					return invalid("role")
				case p.GranteeAgentID == x.Actor().ID:
					return invalid("same_agent")
				case !leases.Before(x.World.Now, p.ExpiresAt),
					leases.Compare(p.ExpiresAt, x.Group.Mission.Deadline) > 0:
					return invalid("deadline")
				}
				return x.foreignBudget(p.Budget)
			},
			Limits: func(x *Ctx, p *grantDelegation, _ *handover) error {
				if most := x.limits().DelegationDepth; p.MaxDescendantDepth > most {
					x.over(LimitDepth, most, 0)
				}
				return nil
			},
			Budget: func(x *Ctx, p *grantDelegation, _ *handover) error {
				return withinMission(x.Group, p.Budget)
			},
			Emit: func(x *Ctx, p *grantDelegation, s *handover) error {
				x.emit("membership.delegation.granted", &DelegationGranted{
					DelegationGrant: protocol.DelegationGrant{
						GrantID: p.GrantID, GranteeAgentID: p.GranteeAgentID,
						MissionID: x.Group.Mission.MissionID, GroupID: x.Group.GroupID,
						TargetWorkItemID: p.TargetWorkItemID, AllowedCapabilities: p.AllowedCapabilities,
						Budget: p.Budget, MaxDescendantDepth: p.MaxDescendantDepth,
						GranteeMembershipEpoch: s.grantee.MembershipEpoch,
						CoordinatorEpoch:       x.Group.Mission.Coordinator.CoordinatorEpoch,
						GrantedBy:              x.Actor(), GrantedAt: x.Now, ExpiresAt: p.ExpiresAt,
					},
					PolicyLogEntryID: x.Mint(),
				}, emission{WorkItem: s.target, Primary: true})
				return nil
			},
		}),
		kind(Kind{
			Kind: "policy.grant_cooperation_override", Aggregate: AggregateOverride,
			Capacities: []CapacityRow{{CapacityMissionOwner, ScopePolicyOverride}, {CapacityService, ""}},
			Shape: shape.Object(
				shape.Req("grantId", protocol.ShapeID),
				shape.Req("policyName", shape.Enum(LimitMessageRate, LimitProposalRate, LimitDepth,
					LimitQueued, LimitActive, LimitDuplicate)),
				shape.Req("beneficiary", protocol.ShapeActor),
				shape.Req("targetCommandKind", protocol.ShapeCommandKind),
				shape.Req("targetActionId", protocol.ShapeID),
				shape.Req("reason", shape.Text(4000)),
				shape.Req("expiresAt", protocol.ShapeTimestamp),
			),
		}, plan[grantOverride, noScratch]{
			Authority: func(x *Ctx, p *grantOverride, _ *noScratch) error {
				if x.Actor().Type == protocol.ActorAgent && p.Beneficiary == x.Actor() {
					return forbid("self_grant")
				}
				return nil
			},
			References: func(x *Ctx, p *grantOverride, _ *noScratch) error {
				if _, used := x.Group.Overrides[p.GrantID]; used {
					return invalid("identifier_in_use")
				}
				if _, ok := x.Group.MemberNow(p.Beneficiary, x.World.Now); !ok {
					return invalid("unknown_reference")
				}
				return nil
			},
			Revision: func(*Ctx, *grantOverride, *noScratch) int64 { return 0 },
			State:    func(x *Ctx, _ *grantOverride, _ *noScratch) error { return missionOpen(x) },
			Values: func(x *Ctx, p *grantOverride, _ *noScratch) error {
				switch {
				case !slices.Contains(LimitedKinds[p.PolicyName], p.TargetCommandKind):
					return invalid("override_not_applicable")
				case !leases.Before(x.World.Now, p.ExpiresAt),
					leases.Compare(p.ExpiresAt, x.Group.Mission.Deadline) > 0:
					return invalid("deadline")
				}
				done, err := x.World.accepted(ActionRef{p.Beneficiary, p.TargetActionID})
				if err != nil {
					return err
				}
				if done {
					return invalid("target_accepted")
				}
				return nil
			},
			Emit: func(x *Ctx, p *grantOverride, _ *noScratch) error {
				x.emit("policy.cooperation_override.granted", &CooperationOverrideGranted{
					CooperationOverrideGrant: CooperationOverrideGrant{
						GrantID: p.GrantID, MissionID: x.Group.Mission.MissionID, GroupID: x.Group.GroupID,
						PolicyName: p.PolicyName, Beneficiary: p.Beneficiary,
						TargetCommandKind: p.TargetCommandKind, TargetActionID: p.TargetActionID,
						Reason: p.Reason, Approver: x.Actor(), GrantedAt: x.Now, ExpiresAt: p.ExpiresAt,
					},
					PolicyLogEntryID: x.Mint(),
				}, emission{Primary: true})
				return nil
			},
		}),
	}
}

// withinMission holds a budget that reserves nothing against the Mission's.
func withinMission(g *State, b protocol.Budget) error {
	mission := g.Ledger.Root()
	if over := budget.FromBudget(b).Exceeding(mission.Limit); over != 0 {
		return exceededBudget("", &budget.Exceeded{Account: mission.Ref, Dimensions: over})
	}
	return nil
}

func grantEvents() []EventKind {
	return []EventKind{
		eventKind("membership.delegation.granted", AggregateGrant, true,
			func(p *DelegationGranted) string { return p.DelegationGrant.GrantID },
			func(s *State, ev *Event, p *DelegationGranted) error {
				grant := p.DelegationGrant
				s.Grants[grant.GrantID] = &grant
				return nil
			}),
		eventKind("policy.cooperation_override.granted", AggregateOverride, true,
			func(p *CooperationOverrideGranted) string { return p.CooperationOverrideGrant.GrantID },
			func(s *State, ev *Event, p *CooperationOverrideGranted) error {
				s.Overrides[p.CooperationOverrideGrant.GrantID] = &Override{
					CooperationOverrideGrant: p.CooperationOverrideGrant,
				}
				return nil
			}),
		eventKind("ext.missionweave.authority.cooperation_override_consumed", AggregateOverride, true,
			func(p *CooperationOverrideConsumed) string { return p.GrantID },
			func(s *State, ev *Event, p *CooperationOverrideConsumed) error {
				old, ok := s.Overrides[p.GrantID]
				if !ok || old.ConsumedByEventID != "" {
					return integrity(ev, "consumes Override Grant %s", p.GrantID)
				}
				used := *old
				used.ConsumedByEventID = p.ConsumedByEventID
				s.Overrides[p.GrantID] = &used
				return nil
			}),
	}
}
