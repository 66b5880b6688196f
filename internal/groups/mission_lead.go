package groups

import (
	"slices"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

// Leadership and ends of a Mission: mission.assign_coordinator,
// ext.missionweave.mission.extend_deadline, mission.cancel, mission.terminate.

// assignCoordinator is the payload of mission.assign_coordinator.
type assignCoordinator struct {
	CoordinatorAgentID string                           `json:"coordinatorAgentId"`
	LeaseSeconds       *int64                           `json:"leaseSeconds"`
	Reason             string                           `json:"reason"`
	ContextPackage     *Signed[protocol.ContextPackage] `json:"contextPackage"`
}

func (p *assignCoordinator) documents() []documentRef { return contextRefs(p.ContextPackage) }

// assignment is what its steps hand on.
type assignment struct {
	agent *Agent
	// children are the living direct child Groups, in byte order, when the
	// Agent changes: it becomes their MissionOwner.
	children []*State
}

// extendDeadline is the payload of ext.missionweave.mission.extend_deadline.
type extendDeadline struct {
	Deadline string `json:"deadline"`
	Reason   string `json:"reason"`
}

// missionCancel is the payload of mission.cancel.
type missionCancel struct {
	Reason string `json:"reason"`
}

// missionTerminate is the payload of mission.terminate.
type missionTerminate struct {
	Reason   string                       `json:"reason"`
	Evidence []*Signed[protocol.Evidence] `json:"evidence"`
}

func (p *missionTerminate) documents() []documentRef { return evidenceRefs(p.Evidence) }

func missionLeadKinds() []Kind {
	return []Kind{
		kind(Kind{
			Kind: "mission.assign_coordinator", Aggregate: AggregateMission,
			Capacities: []CapacityRow{
				{CapacityMissionOwner, ScopeMissionReplaceCoordinator}, {CapacityService, ""},
			},
			Documents: []DocumentRow{{"contextPackage", protocol.KindContextPackage, false}},
			Shape: shape.Object(
				shape.Req("coordinatorAgentId", protocol.ShapeID),
				shape.Opt("leaseSeconds", secs(maxCoordinatorSeconds)),
				shape.Opt("reason", shape.Text(4000)),
				shape.Opt("contextPackage", protocol.ShapeContextPackage),
			),
		}, plan[assignCoordinator, assignment]{
			Extensions: func(x *Ctx, p *assignCoordinator, _ *assignment) error {
				return x.contextExtensions(p.ContextPackage)
			},
			Authority: func(x *Ctx, p *assignCoordinator, _ *assignment) error {
				return x.contextSigner(p.ContextPackage)
			},
			References: func(x *Ctx, p *assignCoordinator, s *assignment) (err error) {
				if s.agent, err = x.registeredAgent(p.CoordinatorAgentID); err != nil {
					return err
				}
				return x.bindContext(p.ContextPackage, "")
			},
			Revision: missionRevision[assignCoordinator, assignment],
			State:    func(x *Ctx, _ *assignCoordinator, _ *assignment) error { return x.missionRow() },
			Values:   assignValues,
			Emit:     assignEmit,
		}),
		kind(Kind{
			Kind: "ext.missionweave.mission.extend_deadline", Aggregate: AggregateMission,
			Capacities: []CapacityRow{{CapacityMissionOwner, ScopeMissionApprove}, {CapacityService, ""}},
			Shape: shape.Object(
				shape.Req("deadline", protocol.ShapeTimestamp),
				shape.Req("reason", shape.Text(4000)),
			),
		}, plan[extendDeadline, noScratch]{
			Revision: missionRevision[extendDeadline, noScratch],
			State:    func(x *Ctx, _ *extendDeadline, _ *noScratch) error { return x.missionRow() },
			Values: func(x *Ctx, p *extendDeadline, _ *noScratch) error {
				m := x.Group.Mission
				if leases.Compare(p.Deadline, m.Deadline) <= 0 {
					return invalid("deadline")
				}
				if m.Parent == nil {
					return nil
				}
				parent, err := x.parent(x.Group)
				if err != nil {
					return err
				}
				w := parent.WorkItems[m.Parent.WorkItemID]
				if leases.Compare(p.Deadline, parent.Mission.Deadline) > 0 ||
					w != nil && leases.Compare(p.Deadline, w.Contract.Deadline) > 0 {
					return invalid("deadline")
				}
				return nil
			},
			Emit: func(x *Ctx, p *extendDeadline, _ *noScratch) error {
				x.emit("ext.missionweave.mission.deadline_extended", &MissionDeadlineExtended{
					MissionID: x.Group.Mission.MissionID, PreviousDeadline: x.Group.Mission.Deadline,
					Deadline: p.Deadline, Reason: p.Reason, PolicyLogEntryID: x.Mint(),
				}, emission{Primary: true})
				return nil
			},
		}),
		kind(Kind{
			Kind: "mission.cancel", Aggregate: AggregateMission,
			Capacities: []CapacityRow{{CapacityMissionOwner, ScopeMissionCancel}, {CapacityService, ""}},
			Shape:      shape.Object(shape.Req("reason", shape.Text(4000))),
		}, plan[missionCancel, noScratch]{
			Revision: missionRevision[missionCancel, noScratch],
			State:    func(x *Ctx, _ *missionCancel, _ *noScratch) error { return x.missionRow() },
			Emit: func(x *Ctx, p *missionCancel, _ *noScratch) error {
				return x.endOwnMission(ending{reason: p.Reason}, nil)
			},
		}),
		kind(Kind{
			Kind: "mission.terminate", Aggregate: AggregateMission,
			Capacities: []CapacityRow{{CapacityCoordinator, ScopeMissionCoordinate}, {CapacityService, ""}},
			Documents:  []DocumentRow{{"evidence", protocol.KindEvidence, true}},
			Shape: shape.Object(
				shape.Req("reason", shape.Text(4000)),
				shape.Opt("evidence", shapeEvidences.Min(1)),
			),
		}, plan[missionTerminate, noScratch]{
			Authority: func(x *Ctx, p *missionTerminate, _ *noScratch) error {
				return x.evidenceSigners(x.Group, p.Evidence, nil)
			},
			References: terminateReferences,
			Revision:   missionRevision[missionTerminate, noScratch],
			State:      func(x *Ctx, _ *missionTerminate, _ *noScratch) error { return x.missionRow() },
			Emit: func(x *Ctx, p *missionTerminate, _ *noScratch) error {
				return x.endOwnMission(ending{failed: true, reason: p.Reason}, p.Evidence)
			},
		}),
	}
}

// parent loads the Group of a child Mission's parent.
func (x *Ctx) parent(child *State) (*State, error) {
	g, err := x.World.group(child.Mission.ParentGroupID)
	if err == nil && g == nil {
		err = &IntegrityError{Problem: "parent Group " + child.Mission.ParentGroupID + " is gone"}
	}
	return g, err
}

// endOwnMission ends the envelope's Mission with all that lives by it, and
// tells the parent.
func (x *Ctx) endOwnMission(e ending, evidence []*Signed[protocol.Evidence]) error {
	id, err := x.endMission(x.Group, e, evidence, nil, emission{Primary: true}, "")
	if err != nil {
		return err
	}
	return x.childEnded(x.Group, e.failed, id)
}

// terminateReferences binds a failure report to the parent WorkItem of a child
// Mission, else to a WorkItem of the Mission.
func terminateReferences(x *Ctx, p *missionTerminate, _ *noScratch) error {
	if len(p.Evidence) == 0 {
		return nil
	}
	g := x.Group
	if g.IsChild() {
		var err error
		if g, err = x.parent(x.Group); err != nil {
			return err
		}
	}
	for i, e := range p.Evidence {
		d := &e.Doc
		w := g.WorkItems[d.WorkItemID]
		ofMission := d.Subject.Type == subjectMission && d.Subject.ID == x.Group.Mission.MissionID
		if w == nil || g != x.Group && w.WorkItemID != x.Group.Mission.Parent.WorkItemID ||
			d.Type != evidenceFailure || d.MissionID != w.MissionID || d.GroupID != w.GroupID ||
			!ofMission && !w.isSubject(d.Subject) || !w.names(d.CriterionIDs) {
			return invalid("binding_mismatch")
		}
		if err := x.sameEvidence(e, p.Evidence[:i]); err != nil {
			return err
		}
	}
	return nil
}

const subjectMission = "mission"

// names reports that every criterion id is one of the contract's.
func (w *WorkItem) names(criteria []string) bool {
	for _, id := range criteria {
		if !slices.ContainsFunc(w.Contract.AcceptanceCriteria, func(c protocol.AcceptanceCriterion) bool {
			return c.CriterionID == id
		}) {
			return false
		}
	}
	return true
}

func assignValues(x *Ctx, p *assignCoordinator, s *assignment) error {
	g := x.Group
	if err := leaseBounds(x.World.Org.Leases.Coordinator, p.LeaseSeconds); err != nil {
		return err
	}
	agent := agentOf(p.CoordinatorAgentID)
	if agent == g.CoordinatorActor() {
		if p.ContextPackage != nil {
			return invalid("context_not_applicable")
		}
		return nil
	}
	if agent == g.Mission.MissionOwner {
		return invalid("same_agent")
	}
	var err error
	if s.children, err = x.liveChildren(g); err != nil {
		return err
	}
	for _, child := range s.children {
		if child.CoordinatorActor() == agent {
			return invalid("same_agent")
		}
	}
	return nil
}

func agentOf(id string) protocol.Actor { return protocol.Actor{Type: protocol.ActorAgent, ID: id} }

// liveChildren loads the Groups of the living direct child Missions, in byte
// order of the Group ids.
func (x *Ctx) liveChildren(g *State) ([]*State, error) {
	var ids []string
	for _, w := range g.WorkItems {
		if w.ChildIsLive() {
			ids = append(ids, w.Child().GroupID)
		}
	}
	slices.Sort(ids)
	need := &Need{}
	var out []*State
	for _, id := range ids {
		child, known := x.World.Groups[id]
		switch {
		case !known:
			need.Groups = append(need.Groups, id)
		case child == nil:
			return nil, &IntegrityError{Problem: "child Group " + id + " is gone"}
		case !child.Terminal():
			out = append(out, child)
		}
	}
	if len(need.Groups) > 0 {
		return nil, need
	}
	return out, nil
}

func assignEmit(x *Ctx, p *assignCoordinator, s *assignment) error {
	g := x.Group
	was := g.Mission.Coordinator
	expires, err := x.leaseUntil(x.World.Org.Leases.Coordinator, p.LeaseSeconds)
	if err != nil {
		return err
	}
	lease := leases.Open(protocol.LeaseCoordinator, leases.Terms{
		LeaseID: x.Mint(), MissionID: g.Mission.MissionID, GroupID: g.GroupID, HolderAgentID: s.agent.ID,
		SessionEpoch: max(s.agent.CurrentSessionEpoch, 1), CoordinatorEpoch: was.CoordinatorEpoch + 1,
		Now: x.World.Now, ExpiresAt: expires,
	})
	assigned := &MissionCoordinatorAssigned{
		PreviousCoordinator: FormerCoordinator{was.AgentID, was.CoordinatorEpoch},
		Coordinator: protocol.Coordinator{
			AgentID: s.agent.ID, AgentCardVersion: s.agent.Card.CardVersion,
			CoordinatorEpoch: lease.CoordinatorEpoch, LeaseID: lease.LeaseID,
		},
		CoordinatorLease: lease, Reason: p.Reason, ContextPackage: p.ContextPackage,
	}
	if g.CoordinatorLease.State == leases.Active {
		closed := leases.Close(*g.CoordinatorLease, x.World.Now, leases.Revoked, leases.ReasonCoordinatorReplaced)
		assigned.ClosedLease = &closed
	}
	changes := s.agent.ID != was.AgentID
	if changes && assigned.ContextPackage == nil {
		if assigned.ContextPackage, err = x.generateContext(g, ""); err != nil {
			return err
		}
	}
	assigned.PolicyLogEntryID = x.Mint()
	id := x.emit("mission.coordinator.assigned", assigned, emission{Primary: true})
	if !changes {
		return nil
	}
	fresh := agentOf(s.agent.ID)
	x.appoint(g, fresh, roleCoordinator, "coordinator_assigned", assigned.ContextPackage, emission{})
	x.appoint(g, agentOf(was.AgentID), roleWorker, "coordinator_replaced", nil, emission{})
	for _, child := range s.children {
		m := emission{Source: id}
		owner := child.Mission.MissionOwner
		x.emitTo(child, "ext.missionweave.authority.mission_owner_transferred", &MissionOwnerTransferred{
			MissionID: child.Mission.MissionID, PreviousMissionOwner: owner, MissionOwner: fresh,
			SourceEventID: id, PolicyLogEntryID: x.Mint(),
		}, m)
		x.appoint(child, fresh, roleMissionOwner, "owner_transferred", nil, m)
		if old, ok := child.MemberNow(owner, x.World.Now); ok {
			x.emitTo(child, "membership.ended", x.endMembership(child, old, "owner_transferred"), m)
		}
		// The new owner may have worked there until now.
		x.releaseMember(child, fresh, releaseRole, true, true, m)
	}
	return nil
}

// appoint emits the Membership change that gives an Agent a role by the
// Authority's rule: active, with the role's scopes, seeing all a MissionOwner
// or Coordinator must see.
func (x *Ctx) appoint(g *State, member protocol.Actor, role, reason string,
	c *Signed[protocol.ContextPackage], m emission,
) {
	row, _ := roleFor(role, member.Type)
	doc := protocol.Membership{
		MissionID: g.Mission.MissionID, GroupID: g.GroupID, Member: member,
		GrantedAt: x.Now, ActivatedAt: x.Now, VisibilityStartSequence: 1,
	}
	changed := &MembershipChanged{Reason: reason}
	if record, ok := g.Member(member); ok {
		epoch := record.MembershipEpoch
		changed.PreviousEpoch = &epoch
		changed.ClosedDelegationGrantIDs = x.liveGrants(g, record)
		doc.MembershipID = record.MembershipID
		if now, ok := g.MemberNow(member, x.World.Now); ok {
			doc = *now
			if doc.ActivatedAt == "" {
				doc.ActivatedAt = x.Now
			}
			doc.ProvisionalExpiresAt = ""
			if role == roleCoordinator || role == roleMissionOwner {
				doc.VisibilityStartSequence = 1
			}
		}
	}
	if doc.MembershipID == "" {
		doc.MembershipID = x.Mint()
	}
	if c != nil {
		doc.ContextPackageID = c.Doc.ContextPackageID
	}
	doc.Role, doc.State, doc.Scopes = role, membershipStateActive, row.Default
	doc.MembershipEpoch = x.nextRevision(g, membershipAggregate(member))
	changed.Membership = doc
	x.out.emit(g.GroupID, g, "membership.changed", changed, m)
}

func missionLeadEvents() []EventKind {
	return []EventKind{
		eventKind("mission.coordinator.assigned", AggregateMission, true, nil,
			func(s *State, ev *Event, p *MissionCoordinatorAssigned) error {
				if p.Coordinator.CoordinatorEpoch != s.Mission.Coordinator.CoordinatorEpoch+1 {
					return integrity(ev, "assigns Coordinator Epoch %d", p.Coordinator.CoordinatorEpoch)
				}
				s.reviseMission(ev, s.Mission.State)
				lease := p.CoordinatorLease
				s.Mission.Coordinator, s.CoordinatorLease = p.Coordinator, &lease
				s.create(leaseAggregate(lease.LeaseID))
				if p.ContextPackage != nil {
					s.ContextPackages[p.ContextPackage.Doc.ContextPackageID] = p.ContextPackage
				}
				return nil
			}),
		eventKind("ext.missionweave.mission.deadline_extended", AggregateMission, true, nil,
			func(s *State, ev *Event, p *MissionDeadlineExtended) error {
				s.reviseMission(ev, s.Mission.State)
				s.Mission.Deadline = p.Deadline
				return nil
			}),
		eventKind("mission.cancelled", AggregateMission, true, nil,
			func(s *State, ev *Event, p *MissionCancelled) error {
				s.reviseMission(ev, protocol.MissionCancelled)
				s.endMission(p.ClosedLease)
				return nil
			}),
		eventKind("mission.terminated", AggregateMission, true, nil,
			func(s *State, ev *Event, p *MissionTerminated) error {
				s.reviseMission(ev, protocol.MissionFailed)
				s.storeEvidence(p.Evidence)
				s.endMission(p.ClosedLease)
				return nil
			}),
		eventKind("ext.missionweave.authority.mission_owner_transferred", AggregateMission, true, nil,
			func(s *State, ev *Event, p *MissionOwnerTransferred) error {
				if s.Mission.MissionOwner != p.PreviousMissionOwner {
					return integrity(ev, "transfers from %s", p.PreviousMissionOwner.ID)
				}
				s.reviseMission(ev, s.Mission.State)
				s.Mission.MissionOwner = p.MissionOwner
				return nil
			}),
		eventKind("ext.missionweave.authority.soft_limit_reached", AggregateMission, false, nil,
			func(s *State, ev *Event, _ *SoftLimitReached) error {
				s.reviseMission(ev, s.Mission.State)
				return nil
			}),
	}
}
