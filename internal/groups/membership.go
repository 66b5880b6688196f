package groups

import (
	"slices"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

// membershipChange is the payload of membership.change.
type membershipChange struct {
	Member                  protocol.Actor                   `json:"member"`
	Role                    string                           `json:"role"`
	State                   string                           `json:"state"`
	Scopes                  []string                         `json:"scopes"`
	VisibilityStartSequence *int64                           `json:"visibilityStartSequence"`
	MembershipID            string                           `json:"membershipId"`
	ProvisionalExpiresAt    string                           `json:"provisionalExpiresAt"`
	ContextPackage          *Signed[protocol.ContextPackage] `json:"contextPackage"`
}

func (p *membershipChange) documents() []documentRef { return contextRefs(p.ContextPackage) }

// membershipEnd is the payload of membership.end.
type membershipEnd struct {
	Member protocol.Actor `json:"member"`
	Reason string         `json:"reason"`
}

// membershipPlan is what a membership.change works out on its way.
type membershipPlan struct {
	// old is nil for a new or ended member; record is whatever there was.
	old, record *protocol.Membership
	state       string
	row         RoleRow
	scopes      []string
	start       int64
}

func memberKinds() []Kind {
	managers := []CapacityRow{
		{CapacityMissionOwner, ScopeMembershipManage},
		{CapacityCoordinator, ScopeMembershipManage},
		{CapacityService, ""},
	}
	return slices.Concat(grantKinds(), []Kind{
		kind(Kind{
			Kind: "membership.change", Capacities: managers, Aggregate: AggregateMembership,
			Documents: []DocumentRow{{"contextPackage", protocol.KindContextPackage, false}},
			Shape: shape.Object(
				shape.Req("member", protocol.ShapeActor),
				shape.Req("role", protocol.ShapeRole),
				shape.Opt("state", shape.Enum(membershipStateActive, membershipStateProvisional)),
				shape.Opt("scopes", protocol.ShapeScopes),
				shape.Opt("visibilityStartSequence", protocol.ShapeSafeInteger),
				shape.Opt("membershipId", protocol.ShapeID),
				shape.Opt("provisionalExpiresAt", protocol.ShapeTimestamp),
				shape.Opt("contextPackage", protocol.ShapeContextPackage),
			).Rules(
				shape.When("state", shape.Const(membershipStateProvisional)).Require("provisionalExpiresAt").
					Otherwise().Forbid("provisionalExpiresAt"),
			),
		}, plan[membershipChange, membershipPlan]{
			Extensions: func(x *Ctx, p *membershipChange, _ *membershipPlan) error {
				return x.contextExtensions(p.ContextPackage)
			},
			Authority: func(x *Ctx, p *membershipChange, _ *membershipPlan) error {
				owner := x.Capacity == CapacityMissionOwner && x.Actor().Type == protocol.ActorHuman
				root := p.Member == x.Group.RootOwner() // whose own scope it is
				if slices.Contains(p.Scopes, ScopeApprovalExecution) && !root && !owner && x.Capacity != CapacityService {
					return forbid("scope")
				}
				return x.contextSigner(p.ContextPackage)
			},
			References: membershipChangeReferences,
			Revision: func(x *Ctx, p *membershipChange, _ *membershipPlan) int64 {
				return x.Group.Revision(membershipAggregate(p.Member))
			},
			State:  membershipChangeState,
			Values: membershipChangeValues,
			Emit:   membershipChangeEmit,
		}),
		kind(Kind{
			Kind: "membership.end", Capacities: append(managers, CapacityRow{CapacitySelf, ""}),
			Aggregate: AggregateMembership, Provisional: true,
			Shape: shape.Object(
				shape.Req("member", protocol.ShapeActor),
				shape.Opt("reason", shape.Text(4000)),
			),
		}, plan[membershipEnd, noScratch]{
			Judge: func(x *Ctx, p *membershipEnd) (Capacity, bool) { return CapacitySelf, p.Member == x.Actor() },
			References: func(x *Ctx, p *membershipEnd, _ *noScratch) error {
				if _, ok := x.Group.MemberNow(p.Member, x.World.Now); !ok {
					return invalid("unknown_reference")
				}
				return nil
			},
			Revision: func(x *Ctx, p *membershipEnd, _ *noScratch) int64 {
				return x.Group.Revision(membershipAggregate(p.Member))
			},
			State: func(x *Ctx, _ *membershipEnd, _ *noScratch) error { return missionOpen(x) },
			Values: func(x *Ctx, p *membershipEnd, _ *noScratch) error {
				if p.Member == x.Group.Mission.MissionOwner || p.Member == x.Group.CoordinatorActor() ||
					p.Member == x.Group.RootOwner() {
					return invalid("role")
				}
				return nil
			},
			Emit: func(x *Ctx, p *membershipEnd, _ *noScratch) error {
				m := x.Group.Memberships[p.Member]
				x.emit("membership.ended", x.endMembership(x.Group, m, "ended"), emission{Primary: true})
				x.releaseMember(x.Group, m.Member, releaseEnded, true, true, emission{})
				return nil
			},
		}),
	})
}

func membershipChangeReferences(x *Ctx, p *membershipChange, s *membershipPlan) error {
	g := x.Group
	switch p.Member.Type {
	case protocol.ActorAgent:
		if _, err := x.registeredAgent(p.Member.ID); err != nil {
			return err
		}
	case protocol.ActorHuman:
		if !x.World.KeyBound(p.Member) {
			return invalid("unknown_reference")
		}
	}
	s.record, _ = g.Member(p.Member)
	s.old, _ = g.MemberNow(p.Member, x.World.Now)
	if p.MembershipID != "" {
		if s.record != nil && s.record.MembershipID != p.MembershipID {
			return invalid("binding_mismatch")
		}
		for actor, m := range g.Memberships {
			if m.MembershipID == p.MembershipID && actor != p.Member {
				return invalid("identifier_in_use")
			}
		}
	}
	return x.bindContext(p.ContextPackage, "")
}

func membershipChangeState(x *Ctx, p *membershipChange, s *membershipPlan) error {
	if err := missionOpen(x); err != nil {
		return err
	}
	s.state = p.State
	switch {
	case s.state != "":
	case s.old != nil:
		s.state = s.old.State
	default:
		s.state = membershipStateActive
	}
	if s.old != nil && s.old.State == membershipStateActive && s.state == membershipStateProvisional {
		return wrongState("member_active", s.old.State)
	}
	return nil
}

func membershipChangeValues(x *Ctx, p *membershipChange, s *membershipPlan) error {
	g := x.Group
	recorded := ""
	switch p.Member {
	case g.Mission.MissionOwner:
		recorded = roleMissionOwner
	case g.CoordinatorActor():
		recorded = roleCoordinator
	}
	taken := p.Role == roleMissionOwner || p.Role == roleCoordinator
	switch {
	case (taken || recorded != "") && p.Role != recorded,
		g.IsChild() && p.Member == g.RootOwner(),
		recorded != "" && s.state != membershipStateActive:
		return invalid("role")
	}
	row, ok := roleFor(p.Role, p.Member.Type)
	if !ok {
		return invalid("member_type")
	}
	s.row = row
	switch {
	case p.Scopes != nil:
		s.scopes = p.Scopes
	case s.old != nil && s.old.Role == p.Role:
		s.scopes = s.old.Scopes
	default:
		s.scopes = row.Default
	}
	for _, scope := range s.scopes {
		if !row.allows(scope) {
			return invalid("scope")
		}
	}
	sequence := x.nextSequence(g)
	switch {
	case p.VisibilityStartSequence != nil:
		s.start = *p.VisibilityStartSequence
	case s.old != nil:
		s.start = s.old.VisibilityStartSequence
	default:
		s.start = sequence
	}
	switch {
	case s.start > sequence,
		s.old != nil && max(s.start, 1) > max(s.old.VisibilityStartSequence, 1),
		recorded != "" && max(s.start, 1) != 1:
		return invalid("visibility")
	}
	if p.ProvisionalExpiresAt != "" && (!leases.Before(x.World.Now, p.ProvisionalExpiresAt) ||
		leases.Compare(p.ProvisionalExpiresAt, g.Mission.Deadline) > 0) {
		return invalid("deadline")
	}
	return nil
}

func membershipChangeEmit(x *Ctx, p *membershipChange, s *membershipPlan) error {
	g := x.Group
	m := protocol.Membership{
		MembershipID: p.MembershipID, MissionID: g.Mission.MissionID, GroupID: g.GroupID,
		Member: p.Member, GrantedAt: x.Now,
	}
	changed := &MembershipChanged{Reason: "granted"}
	if s.record != nil {
		m.MembershipID = s.record.MembershipID
		epoch := s.record.MembershipEpoch
		changed.PreviousEpoch = &epoch
		changed.ClosedDelegationGrantIDs = x.liveGrants(g, s.record)
	}
	if s.old != nil {
		m = *s.old
		changed.Reason = "changed"
		if s.old.State == membershipStateProvisional && s.state == membershipStateActive {
			changed.Reason = "activated"
		}
	}
	if m.MembershipID == "" {
		m.MembershipID = x.Mint()
	}
	m.Role, m.State, m.Scopes, m.VisibilityStartSequence = p.Role, s.state, s.scopes, s.start
	m.MembershipEpoch = x.nextRevision(g, membershipAggregate(p.Member))
	switch {
	case s.state == membershipStateActive && m.ActivatedAt == "":
		m.ActivatedAt, m.ProvisionalExpiresAt = x.Now, ""
	case p.ProvisionalExpiresAt != "":
		m.ProvisionalExpiresAt = p.ProvisionalExpiresAt
	}
	changed.ContextPackage = p.ContextPackage
	// A provisional Membership given anew is a new look at the Group, and the
	// package it was first given may be old (COMMANDS.md 3.4.1).
	due := p.State == membershipStateProvisional || m.ContextPackageID == ""
	if s.state == membershipStateProvisional && changed.ContextPackage == nil && due {
		var err error
		if changed.ContextPackage, err = x.generateContext(g, ""); err != nil {
			return err
		}
	}
	if changed.ContextPackage != nil {
		m.ContextPackageID = changed.ContextPackage.Doc.ContextPackageID
	}
	changed.Membership = m
	x.emit("membership.changed", changed, emission{Primary: true})
	x.releaseMember(g, p.Member, releaseRole,
		!slices.Contains(s.scopes, ScopeWorkExecute), !slices.Contains(s.scopes, ScopeWorkAcceptOffer), emission{})
	return nil
}

// activate emits the Membership change that acceptance of an offer makes of a
// provisional member.
func (x *Ctx) activate(m *protocol.Membership) {
	doc, epoch := *m, m.MembershipEpoch
	doc.State, doc.ActivatedAt, doc.ProvisionalExpiresAt = membershipStateActive, x.Now, ""
	doc.MembershipEpoch = x.nextRevision(x.Group, membershipAggregate(m.Member))
	x.emit("membership.changed", &MembershipChanged{
		Membership: doc, PreviousEpoch: &epoch, Reason: "activated", ClosedDelegationGrantIDs: x.liveGrants(x.Group, m),
	}, emission{})
}

// liveGrants lists the Delegation Grants that a change of the Membership kills.
func (x *Ctx) liveGrants(g *State, m *protocol.Membership) []string {
	if m.Member.Type != protocol.ActorAgent {
		return nil
	}
	var ids []string
	for id, grant := range g.Grants {
		if grant.GranteeAgentID == m.Member.ID && grant.GranteeMembershipEpoch == m.MembershipEpoch &&
			grant.CoordinatorEpoch == g.Mission.Coordinator.CoordinatorEpoch &&
			leases.Before(x.World.Now, grant.ExpiresAt) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// endMembership is the payload that ends a Membership.
func (x *Ctx) endMembership(g *State, m *protocol.Membership, reason string) *MembershipEnded {
	doc := *m
	doc.State, doc.EndedAt = membershipStateEnded, x.Now
	doc.MembershipEpoch = x.nextRevision(g, membershipAggregate(m.Member))
	return &MembershipEnded{
		Membership: doc, Member: m.Member, Reason: reason, ClosedDelegationGrantIDs: x.liveGrants(g, m),
	}
}

func memberEvents() []EventKind {
	return slices.Concat([]EventKind{
		eventKind("membership.changed", AggregateMembership, false,
			func(p *MembershipChanged) string { return membershipAggregate(p.Membership.Member).ID },
			func(s *State, ev *Event, p *MembershipChanged) error {
				if p.ContextPackage != nil {
					s.ContextPackages[p.ContextPackage.Doc.ContextPackageID] = p.ContextPackage
				}
				return s.setMembership(ev, p.Membership)
			}),
		eventKind("membership.ended", AggregateMembership, false,
			func(p *MembershipEnded) string { return membershipAggregate(p.Membership.Member).ID },
			func(s *State, ev *Event, p *MembershipEnded) error {
				if p.Member != p.Membership.Member || p.Membership.State != membershipStateEnded {
					return integrity(ev, "ends another Membership than its document")
				}
				return s.setMembership(ev, p.Membership)
			}),
	}, releaseEvents(), grantEvents())
}

func (s *State) setMembership(ev *Event, m protocol.Membership) error {
	if m.MembershipEpoch != *ev.AggregateRevision || m.GroupID != s.GroupID {
		return integrity(ev, "document has epoch %d in Group %s", m.MembershipEpoch, m.GroupID)
	}
	s.Memberships[m.Member] = &m
	s.scheduleMember(&m)
	return nil
}
