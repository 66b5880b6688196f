package groups

import (
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// How an end spreads (COMMANDS.md D15): a Mission takes its unfinished
// WorkItems and its living child Missions with it, a child tells its parent
// WorkItem. Deciding does not change state, so what has already ended in this
// decision is passed along, never looked up.

// ending says how a Mission or WorkItem ends.
type ending struct {
	// failed, else cancelled.
	failed bool
	reason string
	// lease is the closure reason of the leases that end with a WorkItem.
	lease string
}

// endItem appends work.failed or work.cancelled; edit completes the payload of
// a failure, nil leaves it. A propagated failure is policy (★).
func (x *Ctx) endItem(g *State, w *WorkItem, e ending, m emission, sourceEventID string, edit func(*WorkFailed)) string {
	m.WorkItem = w
	closed := w.closing(x.World.Now, leases.Revoked, leases.Revoked, e.lease)
	withdrawn := w.liveOffers(x.World.Now)
	if !e.failed {
		return x.out.emit(g.GroupID, g, "work.cancelled", &WorkCancelled{
			WorkItemID: w.WorkItemID, State: protocol.WorkCancelled, Reason: e.reason, ClosedLeases: closed,
			WithdrawnOfferIDs: withdrawn, PreviousOwner: w.Owner, SourceEventID: sourceEventID,
		}, m)
	}
	payload := &WorkFailed{
		WorkItemID: w.WorkItemID, State: protocol.WorkFailed, Reason: e.reason, ClosedLeases: closed,
		WithdrawnOfferIDs: withdrawn, PreviousOwner: w.Owner, SourceEventID: sourceEventID,
	}
	if sourceEventID != "" {
		payload.PolicyLogEntryID = x.Mint()
	}
	if edit != nil {
		edit(payload)
	}
	return x.out.emit(g.GroupID, g, "work.failed", payload, m)
}

// endMission appends a Mission's end in its Group, the end of its unfinished
// WorkItems by id, and then, Group by Group, the end of its living children.
// ended is a WorkItem that this decision has already ended, with its child; nil
// for none. It returns the id of the Mission's own Event.
func (x *Ctx) endMission(g *State, e ending, evidence []*Signed[protocol.Evidence], ended *WorkItem,
	m emission, sourceGroupID string,
) (string, error) {
	var closed *protocol.Lease
	if l := g.CoordinatorLease; l.State == leases.Active {
		c := leases.Close(*l, x.World.Now, leases.Released, leases.ReasonMissionEnded)
		closed = &c
	}
	var id string
	if e.failed {
		id = x.out.emit(g.GroupID, g, "mission.terminated", &MissionTerminated{
			MissionID: g.Mission.MissionID, Reason: e.reason, Evidence: evidence, ClosedLease: closed,
			SourceEventID: m.Source, SourceGroupID: sourceGroupID, PolicyLogEntryID: x.Mint(),
		}, m)
	} else {
		id = x.out.emit(g.GroupID, g, "mission.cancelled", &MissionCancelled{
			MissionID: g.Mission.MissionID, Reason: e.reason, ClosedLease: closed,
			SourceEventID: m.Source, SourceGroupID: sourceGroupID, PolicyLogEntryID: x.Mint(),
		}, m)
	}
	items := emission{}
	if m.Source != "" {
		items.Source = id
	}
	e.lease = leases.ReasonMissionEnded
	var custody []*WorkItem
	for _, itemID := range sortedIDs(keySet(g.WorkItems)) {
		w := g.WorkItems[itemID]
		if w == ended || !w.Unfinished() {
			continue
		}
		x.endItem(g, w, e, items, id, nil)
		if w.ChildIsLive() {
			custody = append(custody, w)
		}
	}
	for _, w := range custody {
		if err := x.endChildMission(g, w, e, id); err != nil {
			return "", err
		}
	}
	return id, nil
}

// endChildMission ends the living child Mission of a WorkItem of g, because of
// the Event source there.
func (x *Ctx) endChildMission(g *State, w *WorkItem, e ending, source string) error {
	child, err := x.World.group(w.Child().GroupID)
	if err != nil {
		return err
	}
	if child == nil {
		return &IntegrityError{Problem: "child Group " + w.Child().GroupID + " is gone"}
	}
	if child.Terminal() {
		return nil
	}
	_, err = x.endMission(child, e, nil, nil, emission{Source: source}, g.GroupID)
	return err
}

// childEnded tells the parent WorkItem that its child Mission failed or was
// cancelled, by the declared failure policy; a cancelled child always leaves
// it blocked. source is the child's Event.
func (x *Ctx) childEnded(child *State, failed bool, source string) error {
	if !child.IsChild() {
		return nil
	}
	g, w, err := x.parentItem(child)
	if err != nil || w == nil {
		return err
	}
	link, m := w.Child(), emission{WorkItem: w, Source: source}
	outcome := ChildCancelled
	if failed {
		outcome = ChildFailed
	}
	if !failed || link.FailurePolicy == failBlocks {
		payload := &WorkBlocked{
			WorkItemID: w.WorkItemID, State: protocol.WorkBlocked,
			Reason:             "child Mission " + outcome,
			RequiredResolution: "Replace the child Mission, unblock, fail or cancel the WorkItem.",
			ChildMissionID:     link.MissionID, ChildOutcome: outcome, SourceEventID: source,
			ClosedLeases:     w.closing(x.World.Now, leases.Released, leases.Revoked, leases.ReasonChildMission),
			PolicyLogEntryID: x.Mint(),
		}
		if failed {
			payload.Evidence = append(payload.Evidence, x.authorityEvidence(w, evidenceFailure, resultFailed, nil))
		}
		x.emitTo(g, "work.blocked", payload, m)
		return nil
	}
	e := ending{failed: true, reason: "child Mission failed", lease: leases.ReasonFailed}
	x.endItem(g, w, e, m, source, func(p *WorkFailed) {
		p.ChildMissionID = link.MissionID
		p.Evidence = append(p.Evidence, x.authorityEvidence(w, evidenceFailure, resultFailed, nil))
	})
	if link.FailurePolicy != failMission {
		return nil
	}
	end, err := x.endMission(g, e, nil, w, emission{Source: source}, child.GroupID)
	if err != nil {
		return err
	}
	return x.childEnded(g, true, end)
}

// childApproved tells the parent WorkItem that its child Mission was approved:
// the Approval becomes its Evidence.
func (x *Ctx) childApproved(child *State, approvalID string, hashes []string, source string) error {
	g, w, err := x.parentItem(child)
	if err != nil || w == nil {
		return err
	}
	evidence := x.authorityEvidence(w, evidencePolicyCheck, resultPassed, hashes)
	x.emitTo(g, "work.result.accepted", &WorkResultAccepted{
		WorkItemID: w.WorkItemID, State: protocol.WorkVerified,
		ChildMissionID: child.Mission.MissionID, ApprovalID: approvalID,
		Evidence: []*Signed[protocol.Evidence]{evidence},
		Submission: &protocol.Submission{
			ArtifactHashes: hashes, EvidenceIDs: []string{evidence.Doc.EvidenceID}, SubmittedAt: x.Now,
		},
		ClosedLeases:  w.closing(x.World.Now, leases.Released, leases.Released, leases.ReasonVerified),
		SourceEventID: source, PolicyLogEntryID: x.Mint(),
	}, emission{WorkItem: w, Source: source})
	return nil
}

// parentItem finds the WorkItem that waits for a child Mission; nil when it
// waits no longer.
func (x *Ctx) parentItem(child *State) (*State, *WorkItem, error) {
	g, err := x.World.group(child.Mission.ParentGroupID)
	if err != nil {
		return nil, nil, err
	}
	if g == nil {
		return nil, nil, &IntegrityError{Problem: "parent Group " + child.Mission.ParentGroupID + " is gone"}
	}
	w := g.WorkItems[child.Mission.Parent.WorkItemID]
	if w == nil || w.State != protocol.WorkBlocked || !w.ChildIsLive() ||
		w.Child().MissionID != child.Mission.MissionID {
		return g, nil, nil
	}
	return g, w, nil
}

// authorityEvidence makes Evidence that the Authority itself signs: about the
// WorkItem, for all criteria of its contract.
func (x *Ctx) authorityEvidence(w *WorkItem, evidenceType, result string, hashes []string) *Signed[protocol.Evidence] {
	criteria := make([]string, 0, len(w.Contract.AcceptanceCriteria))
	for _, c := range w.Contract.AcceptanceCriteria {
		criteria = append(criteria, c.CriterionID)
	}
	e := &Signed[protocol.Evidence]{Doc: protocol.Evidence{
		EvidenceID: x.Mint(), MissionID: w.MissionID, GroupID: w.GroupID, WorkItemID: w.WorkItemID,
		Type: evidenceType, Subject: protocol.EvidenceSubject{Type: subjectWorkItem, ID: w.WorkItemID},
		CriterionIDs: criteria, Method: "End of the child Mission as the Group Authority recorded it.",
		Result: result, ArtifactHashes: hashes, GeneratedBy: x.World.Org.Authority, CreatedAt: x.Now,
	}}
	x.out.sign = append(x.out.sign, signRequest(protocol.KindEvidence, x.World.Org.Authority, e))
	return e
}

// Failure policies of a child Mission.
const (
	failBlocks  = "block_parent_work_item"
	failItem    = "fail_parent_work_item"
	failMission = "fail_parent_mission"
)
