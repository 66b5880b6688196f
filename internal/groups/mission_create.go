package groups

import (
	"errors"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

// missionTerms are the members that all three ways to create a Mission share.
type missionTerms struct {
	MissionID               string                         `json:"missionId"`
	GroupID                 string                         `json:"groupId"`
	CoordinatorAgentID      string                         `json:"coordinatorAgentId"`
	Objective               string                         `json:"objective"`
	DefinitionOfDone        []protocol.AcceptanceCriterion `json:"definitionOfDone"`
	Budget                  protocol.Budget                `json:"budget"`
	Deadline                string                         `json:"deadline"`
	ApprovalPolicy          *protocol.ApprovalPolicy       `json:"approvalPolicy"`
	Title                   string                         `json:"title"`
	Permissions             []protocol.ResourceGrant       `json:"permissions"`
	AllowedCapabilities     []protocol.CapabilityRef       `json:"allowedCapabilities"`
	PinnedProfiles          []protocol.PinnedProfile       `json:"pinnedProfiles"`
	CoordinatorLeaseSeconds *int64                         `json:"coordinatorLeaseSeconds"`
}

// missionCreate is the payload of mission.create and mission.create_follow_up.
type missionCreate struct {
	missionTerms
	FollowUpToMissionID string                     `json:"followUpToMissionId"`
	Revocation          *Signed[protocol.Approval] `json:"revocation"`
}

func (p *missionCreate) checkEnvelope(env *protocol.Command) string {
	if p.GroupID != env.GroupID {
		return "envelope_mismatch"
	}
	return ""
}

func (p *missionCreate) documents() []documentRef { return approvalRefs(p.Revocation) }

// approvalRefs lists the Approvals that are there.
func approvalRefs(docs ...*Signed[protocol.Approval]) []documentRef {
	var out []documentRef
	for _, d := range docs {
		if d != nil {
			out = append(out, documentRef{protocol.KindApproval, d.Doc.OccurredAt})
		}
	}
	return out
}

var shapeMissionCreate = shape.Object(
	shape.Req("missionId", protocol.ShapeID),
	shape.Req("groupId", protocol.ShapeID),
	shape.Req("coordinatorAgentId", protocol.ShapeID),
	shape.Req("objective", shape.Text(10000)),
	shape.Req("definitionOfDone", shapeDefinitionOfDone),
	shape.Req("budget", shapeBudget),
	shape.Req("deadline", protocol.ShapeTimestamp),
	shape.Req("approvalPolicy", protocol.ShapeApprovalPolicy.Extend(shape.Req("finalHumanApproval", shape.True))),
	shape.Opt("title", shape.Text(500)),
	shape.Opt("permissions", shape.Array(protocol.ShapeResourceGrant)),
	shape.Opt("allowedCapabilities", shapeCapabilities),
	shape.Opt("pinnedProfiles", protocol.ShapePinnedProfiles),
	shape.Opt("coordinatorLeaseSeconds", secs(maxCoordinatorSeconds)),
).Rule(uniqueMember("definitionOfDone", "criterionId")).Rule(uniqueMember("allowedCapabilities", "id"))

// creation is what the steps of a creating kind hand on.
type creation struct {
	agent  *Agent
	source *State // follow-up only
}

func missionCreateKinds() []Kind {
	steps := plan[missionCreate, creation]{
		Extensions: func(x *Ctx, p *missionCreate, _ *creation) error { return x.pinnable(p.PinnedProfiles) },
		Authority: func(x *Ctx, p *missionCreate, _ *creation) error {
			if p.Revocation != nil && p.Revocation.Doc.Approver != x.Actor() {
				return forbid("signer")
			}
			return nil
		},
		References: missionCreateReferences,
		Relation: func(x *Ctx, _ *missionCreate, s *creation) error {
			if s.source != nil && s.source.Mission.MissionOwner != x.Actor() {
				return forbid("not_owner")
			}
			return nil
		},
		Revision: func(*Ctx, *missionCreate, *creation) int64 { return 0 },
		State: func(_ *Ctx, p *missionCreate, s *creation) error {
			if s.source == nil {
				return nil
			}
			if s.source.Mission.State != protocol.MissionApproved {
				return wrongState("mission_not_approved", s.source.Mission.State)
			}
			if p.Revocation != nil && s.source.Approvals[s.source.Mission.ApprovalID].RevokedBy != "" {
				return wrongState("approval_revoked", s.source.Mission.State)
			}
			return nil
		},
		Values: func(x *Ctx, p *missionCreate, _ *creation) error {
			if !leases.Before(x.World.Now, p.Deadline) {
				return invalid("deadline")
			}
			return leaseBounds(x.World.Org.Leases.Coordinator, p.CoordinatorLeaseSeconds)
		},
		Budget: func(x *Ctx, p *missionCreate, _ *creation) error {
			return withinCeiling(x, budget.MissionRef(p.MissionID), budget.FromBudget(p.Budget))
		},
		Emit: missionCreateEmit,
	}
	create := Kind{
		Kind: "mission.create", Capacities: []CapacityRow{{CapacityCreator, ""}},
		Creates: true, Shape: shapeMissionCreate, Aggregate: AggregateMission,
	}
	followUp := create
	followUp.Kind = "mission.create_follow_up"
	followUp.Shape = shapeMissionCreate.Extend(
		shape.Req("followUpToMissionId", protocol.ShapeID),
		shape.Opt("revocation", protocol.ShapeApproval),
	)
	followUp.Documents = []DocumentRow{{"revocation", protocol.KindApproval, false}}
	return []Kind{kind(create, steps), kind(followUp, steps)}
}

// pinnable refuses a profile that the Registry does not know; the server's own
// one is always known.
func (x *Ctx) pinnable(profiles []protocol.PinnedProfile) error {
	for _, p := range profiles {
		own := p.ProfileURI == OwnProfileURI && p.MajorVersion == OwnProfileMajor
		if !own && !x.World.Org.Profiles[p.ProfileURI][p.MajorVersion] {
			return protocol.NewError(protocol.CodeUnknownCriticalExtension, "").WithDetail("profileUri", p.ProfileURI)
		}
	}
	return nil
}

// registeredAgent is the "Agent id" of COMMANDS.md 3.1.
func (x *Ctx) registeredAgent(id string) (*Agent, error) {
	a, err := x.World.agent(id)
	if err != nil {
		return nil, err
	}
	if a == nil || a.Card == nil || a.Card.Status == "revoked" {
		return nil, invalid("unknown_reference")
	}
	return a, nil
}

// unusedMission checks that a new Mission's ids are free in the Organization.
func (x *Ctx) unusedMission(missionID, groupID string) error {
	of, err := x.World.missionGroup(missionID)
	if err != nil {
		return err
	}
	g, err := x.World.group(groupID)
	if err != nil {
		return err
	}
	if of != "" || g != nil {
		return invalid("identifier_in_use")
	}
	return nil
}

func missionCreateReferences(x *Ctx, p *missionCreate, s *creation) error {
	if err := x.unusedMission(p.MissionID, p.GroupID); err != nil {
		return err
	}
	var err error
	if s.agent, err = x.registeredAgent(p.CoordinatorAgentID); err != nil {
		return err
	}
	if p.FollowUpToMissionID == "" {
		return nil
	}
	of, err := x.World.missionGroup(p.FollowUpToMissionID)
	if err != nil {
		return err
	}
	if of == "" {
		return invalid("unknown_reference")
	}
	g, err := x.World.group(of)
	if err != nil {
		return err
	}
	if g == nil {
		return invalid("unknown_reference")
	}
	if _, ok := g.MemberNow(x.Actor(), x.World.Now); !ok {
		return invalid("unknown_reference")
	}
	s.source = g
	if p.Revocation == nil {
		return nil
	}
	a := &p.Revocation.Doc
	approved, ended := g.Approvals[g.Mission.ApprovalID]
	if a.Kind != approvalMissionFinal || a.Decision != decisionRevoked || a.MissionID != g.Mission.MissionID ||
		a.GroupID != g.GroupID || a.WorkItemID != "" ||
		ended && (a.RevokesApprovalID != g.Mission.ApprovalID || a.MissionRevision != approved.Signed.Doc.MissionRevision) {
		return invalid("binding_mismatch")
	}
	if _, used := g.Approvals[a.ApprovalID]; used {
		return invalid("identifier_in_use")
	}
	return nil
}

// leaseBounds refuses a duration that Organization policy does not allow.
func leaseBounds(b leases.Bounds, seconds *int64) error {
	if _, err := b.Duration(seconds); errors.Is(err, leases.ErrBounds) {
		return invalid("lease_bounds")
	}
	return nil
}

// leaseUntil spells the expiry of a lease of the given length.
func (x *Ctx) leaseUntil(b leases.Bounds, seconds *int64) (string, error) {
	d, err := b.Duration(seconds)
	if err != nil {
		return "", err
	}
	return leases.In(x.World.Now, d), nil
}

// withinCeiling holds a root Mission's budget against the Organization's.
func withinCeiling(x *Ctx, account budget.Ref, v budget.Vector) error {
	ceiling := x.World.Org.MissionCeiling
	if ceiling == nil {
		return nil
	}
	if over := v.Exceeding(budget.FromBudget(*ceiling)); over != 0 {
		return exceededBudget("", &budget.Exceeded{Account: account, Dimensions: over})
	}
	return nil
}

// exceededBudget is BUDGET_EXCEEDED with what the ledger says is short.
func exceededBudget(reason string, e *budget.Exceeded) error {
	return protocol.NewError(protocol.CodeBudgetExceeded, reason).
		WithDetail("account", e.Account).WithDetail("dimensions", e.Dimensions.Names())
}

// founding is what creates a Group: the documents of sequence 1.
type founding struct {
	terms    *missionTerms
	owner    protocol.Actor
	agent    *Agent // first Coordinator
	policy   protocol.ApprovalPolicy
	parent   *protocol.MissionParent
	followUp string
	// observer is the root human of a child Mission.
	observer *protocol.Actor
}

// found makes the documents of a new Mission's first Event.
func (x *Ctx) found(f founding) (*MissionCreated, error) {
	t := f.terms
	expires, err := x.leaseUntil(x.World.Org.Leases.Coordinator, t.CoordinatorLeaseSeconds)
	if err != nil {
		return nil, err
	}
	lease := leases.Open(protocol.LeaseCoordinator, leases.Terms{
		LeaseID: x.Mint(), MissionID: t.MissionID, GroupID: t.GroupID, HolderAgentID: f.agent.ID,
		SessionEpoch: max(f.agent.CurrentSessionEpoch, 1), CoordinatorEpoch: 1,
		Now: x.World.Now, ExpiresAt: expires,
	})
	conversation := protocol.Conversation{
		ConversationID: x.Mint(), MissionID: t.MissionID, GroupID: t.GroupID, Type: "group",
		Title: t.Title, Access: protocol.ConversationAccess{Mode: "group"},
		CreatedBy: x.Actor(), CreatedAt: x.Now, State: "active", Revision: 1,
	}
	if conversation.Title == "" {
		conversation.Title = "Mission"
	}
	pinned := t.PinnedProfiles
	if !pinsOwn(pinned) {
		pinned = append(pinned[:len(pinned):len(pinned)],
			protocol.PinnedProfile{ProfileURI: OwnProfileURI, MajorVersion: OwnProfileMajor})
	}
	created := &MissionCreated{
		Mission: protocol.Mission{
			MissionID: t.MissionID, GroupID: t.GroupID, Revision: 1,
			Objective: t.Objective, DefinitionOfDone: t.DefinitionOfDone, MissionOwner: f.owner,
			Coordinator: protocol.Coordinator{
				AgentID: f.agent.ID, AgentCardVersion: f.agent.Card.CardVersion,
				CoordinatorEpoch: 1, LeaseID: lease.LeaseID,
			},
			State: protocol.MissionActive, Budget: t.Budget, Deadline: t.Deadline,
			ApprovalPolicy: f.policy, Parent: f.parent, FollowUpToMissionID: f.followUp,
			PinnedProfiles: pinned, CreatedAt: x.Now,
		},
		Group: protocol.Group{
			GroupID: t.GroupID, MissionID: t.MissionID, State: groupActive,
			MainConversationID: conversation.ConversationID, CreatedAt: x.Now,
		},
		Conversation:        conversation,
		CoordinatorLease:    lease,
		Permissions:         t.Permissions,
		AllowedCapabilities: t.AllowedCapabilities,
		PolicyLogEntryID:    x.Mint(),
	}
	found := func(member protocol.Actor, role string, extra ...string) {
		row, _ := roleFor(role, member.Type)
		created.Memberships = append(created.Memberships, protocol.Membership{
			MembershipID: x.Mint(), MissionID: t.MissionID, GroupID: t.GroupID, Member: member, Role: role,
			State: membershipStateActive, MembershipEpoch: 1,
			Scopes:                  append(row.Default[:len(row.Default):len(row.Default)], extra...),
			VisibilityStartSequence: 1, GrantedAt: x.Now, ActivatedAt: x.Now,
		})
	}
	found(f.owner, roleMissionOwner)
	found(protocol.Actor{Type: protocol.ActorAgent, ID: f.agent.ID}, roleCoordinator)
	if f.observer != nil {
		found(*f.observer, roleObserver, ScopeMissionInspect, ScopeApprovalExecution)
	}
	return created, nil
}

func pinsOwn(profiles []protocol.PinnedProfile) bool {
	for _, p := range profiles {
		if p.ProfileURI == OwnProfileURI {
			return true
		}
	}
	return false
}

func missionCreateEmit(x *Ctx, p *missionCreate, s *creation) error {
	created, err := x.found(founding{
		terms: &p.missionTerms, owner: x.Actor(), agent: s.agent,
		policy: *p.ApprovalPolicy, followUp: p.FollowUpToMissionID,
	})
	if err != nil {
		return err
	}
	name := "mission.created"
	if s.source != nil {
		name = "mission.follow_up.created"
		created.FollowUpToMissionID, created.Revocation = p.FollowUpToMissionID, p.Revocation
	}
	id := x.emit(name, created, emission{Primary: true, TreeID: p.MissionID})
	if s.source == nil || s.source.Archived() {
		return nil
	}
	x.emitTo(s.source, "ext.missionweave.authority.follow_up_linked", &FollowUpLinked{
		FollowUpMissionID: p.MissionID, FollowUpGroupID: p.GroupID, Revocation: p.Revocation,
		PolicyLogEntryID: x.Mint(),
	}, emission{Source: id})
	return nil
}
