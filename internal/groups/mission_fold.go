package groups

import (
	"slices"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/protocol"
)

// Approval words of approval.schema.
const (
	approvalMissionFinal = "mission_final"
	approvalChildMission = "child_mission"

	decisionApproved         = "approved"
	decisionChangesRequested = "changes_requested"
	decisionRevoked          = "revoked"
)

func missionEvents() []EventKind {
	return slices.Concat(missionLeadEvents(), []EventKind{
		eventKind("mission.created", AggregateMission, true, nil, foldMissionCreated),
		eventKind("mission.follow_up.created", AggregateMission, true, nil, foldMissionCreated),
		eventKind("mission.coordinator.renewed", AggregateCoordinatorLease, false,
			func(p *MissionCoordinatorRenewed) string { return p.CoordinatorLease.LeaseID },
			func(s *State, ev *Event, p *MissionCoordinatorRenewed) error {
				l := p.CoordinatorLease
				if l.LeaseID != s.CoordinatorLease.LeaseID || p.CoordinatorEpoch != s.Mission.Coordinator.CoordinatorEpoch {
					return integrity(ev, "renews a lease that is not current")
				}
				s.CoordinatorLease = &l
				return nil
			}),
		eventKind("mission.submitted_for_approval", AggregateMission, false, nil,
			func(s *State, ev *Event, p *MissionSubmittedForApproval) error {
				if p.MissionRevision != *ev.AggregateRevision {
					return integrity(ev, "submits revision %d", p.MissionRevision)
				}
				s.reviseMission(ev, protocol.MissionAwaitingApproval)
				sub := MissionSubmission{
					MissionRevision: p.MissionRevision, ArtifactHashes: p.ArtifactHashes,
					AcceptedFailures: p.AcceptedFailures,
				}
				s.Mission.Submission = &sub
				s.Mission.Submissions = append(s.Mission.Submissions, sub)
				return nil
			}),
		eventKind("mission.approved", AggregateMission, true, nil,
			func(s *State, ev *Event, p *MissionApproved) error {
				s.reviseMission(ev, protocol.MissionApproved)
				s.Mission.ApprovalID = p.Approval.Doc.ApprovalID
				s.storeApproval(p.Approval)
				s.storeApproval(p.HumanApproval)
				s.endMission(&p.ClosedLease)
				return nil
			}),
		eventKind("mission.changes_requested", AggregateMission, true, nil,
			func(s *State, ev *Event, p *MissionChangesRequested) error {
				s.reviseMission(ev, protocol.MissionActive)
				s.Mission.Submission = nil
				s.storeApproval(p.Approval)
				return nil
			}),
		eventKind("ext.missionweave.authority.follow_up_linked", AggregateMission, true, nil,
			func(s *State, ev *Event, p *FollowUpLinked) error {
				s.reviseMission(ev, s.Mission.State)
				s.FollowUps = append(s.FollowUps, FollowUp{p.FollowUpMissionID, p.FollowUpGroupID})
				if p.Revocation != nil {
					s.storeApproval(p.Revocation)
					s.revoke(p.Revocation)
				}
				return nil
			}),
	})
}

func foldMissionCreated(s *State, ev *Event, p *MissionCreated) error {
	m := &Mission{
		Mission: p.Mission, Permissions: p.Permissions, AllowedCapabilities: p.AllowedCapabilities,
		ParentGroupID: p.ParentGroupID, FailurePolicy: p.FailurePolicy,
	}
	group, conversation, lease := p.Group, p.Conversation, p.CoordinatorLease
	if m.GroupID != ev.GroupID || group.GroupID != ev.GroupID || m.Revision != 1 {
		return integrity(ev, "documents belong to Group %s", m.GroupID)
	}
	s.Mission, s.Group, s.CoordinatorLease = m, &group, &lease
	s.Conversations[conversation.ConversationID] = &conversation
	s.create(groupAggregate(group.GroupID))
	s.create(leaseAggregate(lease.LeaseID))
	s.create(conversationAggregate(conversation.ConversationID))
	for _, member := range p.Memberships {
		s.Memberships[member.Member] = &member
		s.create(membershipAggregate(member.Member))
		if member.Member.Type == protocol.ActorHuman {
			m.RootHuman = member.Member
		}
	}
	var up budget.Upward
	if m.Parent == nil {
		if s.TreeID == "" {
			s.TreeID = m.MissionID
		}
	} else {
		up = budget.Upward{GroupID: p.ParentGroupID, Account: budget.WorkItemRef(p.ParentWorkItemID)}
	}
	if p.Revocation != nil {
		s.storeApproval(p.Revocation)
	}
	err := s.Ledger.OpenRoot(budget.MissionRef(m.MissionID), budget.FromBudget(m.Budget), m.Budget.Currency, up)
	if err != nil {
		return integrity(ev, "%v", err)
	}
	return nil
}

// create gives an aggregate that an Event of another aggregate brought into
// being its first revision.
func (s *State) create(a Aggregate) {
	s.revisions[a] = 1
	s.changed.touch(a)
}

// reviseMission sets the Mission's revision and state; the document is
// replaced, never written through.
func (s *State) reviseMission(ev *Event, state string) {
	s.Mission.Revision, s.Mission.State = *ev.AggregateRevision, state
}

// endMission releases the Coordinator lease and closes what is open.
func (s *State) endMission(closed *protocol.Lease) {
	if closed != nil {
		l := *closed
		s.CoordinatorLease = &l
	}
	for _, p := range s.Proposals {
		if p.Status == ProposalOpen {
			s.closeProposal(p, ProposalClosed)
		}
	}
}

func (s *State) closeProposal(p *Proposal, status string) {
	p.Status = status
	s.untrack(p.key, p.ProposalID)
	s.changed.touch(proposalAggregate(p.ProposalID))
}

func (s *State) storeApproval(a *Signed[protocol.Approval]) {
	if a != nil {
		s.Approvals[a.Doc.ApprovalID] = &Approval{Signed: a}
	}
}

// revoke marks the Approval that a revocation names.
func (s *State) revoke(by *Signed[protocol.Approval]) {
	if old, ok := s.Approvals[by.Doc.RevokesApprovalID]; ok {
		old.RevokedBy = by.Doc.ApprovalID
	}
}
