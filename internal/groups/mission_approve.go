package groups

import (
	"slices"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

// missionRenew is the payload of mission.renew_coordinator.
type missionRenew struct {
	LeaseSeconds *int64 `json:"leaseSeconds"`
}

// missionSubmit is the payload of mission.submit_for_approval.
type missionSubmit struct {
	ArtifactHashes   []string          `json:"artifactHashes"`
	AcceptedFailures []AcceptedFailure `json:"acceptedFailures"`
}

// missionVerdict is the payload of mission.approve and mission.request_changes.
type missionVerdict struct {
	Approval      *Signed[protocol.Approval] `json:"approval"`
	HumanApproval *Signed[protocol.Approval] `json:"humanApproval"`
}

func (p *missionVerdict) documents() []documentRef { return approvalRefs(p.Approval, p.HumanApproval) }

type noScratch struct{}

func missionKinds() []Kind {
	return slices.Concat(missionCreateKinds(), missionLeadKinds(), []Kind{
		missionChildKind(),
		kind(Kind{
			Kind: "mission.renew_coordinator", Capacities: []CapacityRow{{CapacityCoordinator, ""}},
			Aggregate: AggregateCoordinatorLease,
			Shape:     shape.Object(shape.Opt("leaseSeconds", secs(maxCoordinatorSeconds))),
		}, plan[missionRenew, noScratch]{
			Revision: func(x *Ctx, _ *missionRenew, _ *noScratch) int64 {
				return x.Group.Revision(leaseAggregate(x.Group.CoordinatorLease.LeaseID))
			},
			State: func(x *Ctx, _ *missionRenew, _ *noScratch) error { return x.missionRow() },
			Values: func(x *Ctx, p *missionRenew, _ *noScratch) error {
				bounds := x.World.Org.Leases.Coordinator
				if err := leaseBounds(bounds, p.LeaseSeconds); err != nil {
					return err
				}
				expires, err := x.leaseUntil(bounds, p.LeaseSeconds)
				if err != nil {
					return err
				}
				if leases.Compare(expires, x.Group.CoordinatorLease.ExpiresAt) <= 0 {
					return invalid("lease_not_extended")
				}
				return nil
			},
			Emit: func(x *Ctx, p *missionRenew, _ *noScratch) error {
				expires, err := x.leaseUntil(x.World.Org.Leases.Coordinator, p.LeaseSeconds)
				if err != nil {
					return err
				}
				lease := leases.Renew(*x.Group.CoordinatorLease, x.World.Now, expires, x.Command.Envelope.SessionEpoch)
				x.emit("mission.coordinator.renewed", &MissionCoordinatorRenewed{
					CoordinatorEpoch: lease.CoordinatorEpoch, CoordinatorLease: lease,
				}, emission{Primary: true})
				return nil
			},
		}),
		kind(Kind{
			Kind:       "mission.submit_for_approval",
			Capacities: []CapacityRow{{CapacityCoordinator, ScopeMissionCoordinate}},
			Aggregate:  AggregateMission,
			Shape: shape.Object(
				shape.Req("artifactHashes", shapeHashes.Min(1)),
				shape.Opt("acceptedFailures", shape.Array(shape.Object(
					shape.Req("workItemId", protocol.ShapeID),
					shape.Req("reason", shape.Text(4000)),
				)).Min(1)),
			),
		}, plan[missionSubmit, noScratch]{
			References: missionSubmitReferences,
			Revision:   missionRevision[missionSubmit, noScratch],
			State:      missionSubmitState,
			Emit: func(x *Ctx, p *missionSubmit, _ *noScratch) error {
				x.emit("mission.submitted_for_approval", &MissionSubmittedForApproval{
					MissionID:        x.Group.Mission.MissionID,
					MissionRevision:  x.nextRevision(x.Group, missionAggregate(x.Group.GroupID)),
					ArtifactHashes:   slices.Sorted(slices.Values(p.ArtifactHashes)),
					AcceptedFailures: p.AcceptedFailures,
				}, emission{Primary: true})
				return nil
			},
		}),
		verdictKind("mission.approve", decisionApproved, true, missionApproveEmit),
		verdictKind("mission.request_changes", decisionChangesRequested, false, missionRequestChangesEmit),
	})
}

// missionRevision is what most Mission Commands revise.
func missionRevision[P, S any](x *Ctx, _ *P, _ *S) int64 {
	return x.Group.Revision(missionAggregate(x.Group.GroupID))
}

func missionSubmitReferences(x *Ctx, p *missionSubmit, _ *noScratch) error {
	var fromChildren map[string]bool
	for _, hash := range p.ArtifactHashes {
		if x.Group.verifiedArtifact(hash) {
			continue
		}
		if fromChildren == nil {
			fromChildren = x.Group.childArtifacts()
		}
		if !fromChildren[hash] {
			return invalid("unknown_reference")
		}
	}
	for _, f := range p.AcceptedFailures {
		w, ok := x.Group.WorkItems[f.WorkItemID]
		if !ok {
			return invalid("unknown_reference")
		}
		if w.State != protocol.WorkFailed {
			return invalid("binding_mismatch")
		}
	}
	return nil
}

// verifiedArtifact reports that a verified WorkItem published an Artifact with
// the hash.
func (s *State) verifiedArtifact(hash string) bool {
	for _, a := range s.artifactsByHash[hash] {
		if w := s.WorkItems[a.Manifest.Doc.WorkItemID]; w != nil && w.State == protocol.WorkVerified {
			return true
		}
	}
	return false
}

// childArtifacts are the hashes that verified WorkItems took over from their
// approved child Missions.
func (s *State) childArtifacts() map[string]bool {
	out := map[string]bool{}
	for _, w := range s.WorkItems {
		if c := w.Child(); c != nil && c.State == ChildApproved && w.State == protocol.WorkVerified {
			for _, hash := range c.ApprovedHashes {
				out[hash] = true
			}
		}
	}
	return out
}

func missionSubmitState(x *Ctx, p *missionSubmit, _ *noScratch) error {
	if err := x.missionRow(); err != nil {
		return err
	}
	accepted := map[string]bool{}
	for _, f := range p.AcceptedFailures {
		accepted[f.WorkItemID] = true
	}
	verified, unfinished, live := false, false, false
	for _, w := range x.Group.WorkItems {
		switch {
		case w.State == protocol.WorkVerified:
			verified = true
		case w.State == protocol.WorkCancelled:
		case w.State == protocol.WorkFailed && (accepted[w.WorkItemID] || x.Group.superseded(w)):
		default:
			unfinished = true
		}
		live = live || w.ChildIsLive()
	}
	switch {
	case live:
		return wrongState("child_live", x.Group.Mission.State)
	case !verified || unfinished:
		return wrongState("work_unfinished", x.Group.Mission.State)
	}
	return nil
}

// superseded reports that a WorkItem that stands in for w is verified or is
// itself superseded (COMMANDS.md 5.1, submit_for_approval). Replacements are
// made after what they replace, so the chain ends.
func (s *State) superseded(w *WorkItem) bool {
	for _, id := range w.ReplacedBy {
		r := s.WorkItems[id]
		if r != nil && (r.State == protocol.WorkVerified || s.superseded(r)) {
			return true
		}
	}
	return false
}

// verdict is what the steps of a verdict hand on.
type verdict struct{}

// verdictKind is the row of mission.approve or mission.request_changes.
func verdictKind(name, decision string, coApproval bool, emit func(*Ctx, *missionVerdict, *verdict) error) Kind {
	row := Kind{
		Kind:       name,
		Capacities: []CapacityRow{{CapacityMissionOwner, ScopeMissionApprove}},
		Aggregate:  AggregateMission,
		Documents:  []DocumentRow{{"approval", protocol.KindApproval, false}},
		Shape:      shape.Object(shape.Req("approval", protocol.ShapeApproval)),
	}
	if coApproval {
		row.Documents = append(row.Documents, DocumentRow{"humanApproval", protocol.KindApproval, false})
		row.Shape = row.Shape.Extend(shape.Opt("humanApproval", protocol.ShapeApproval))
	}
	return kind(row, plan[missionVerdict, verdict]{
		Authority: func(x *Ctx, p *missionVerdict, _ *verdict) error {
			if p.Approval.Doc.Approver != x.Actor() {
				return forbid("signer")
			}
			if p.HumanApproval != nil && p.HumanApproval.Doc.Approver != x.Group.RootOwner() {
				return forbid("signer")
			}
			return nil
		},
		References: func(x *Ctx, p *missionVerdict, _ *verdict) error {
			approvalKind := approvalMissionFinal
			if x.Group.IsChild() {
				approvalKind = approvalChildMission
			}
			if err := x.bindVerdict(&p.Approval.Doc, approvalKind, decision); err != nil {
				return err
			}
			if p.HumanApproval == nil {
				return nil
			}
			if p.HumanApproval.Doc.ApprovalID == p.Approval.Doc.ApprovalID {
				return invalid("identifier_in_use")
			}
			return x.bindVerdict(&p.HumanApproval.Doc, approvalMissionFinal, decision)
		},
		Revision: missionRevision[missionVerdict, verdict],
		State:    func(x *Ctx, _ *missionVerdict, _ *verdict) error { return x.missionRow() },
		Values: func(x *Ctx, p *missionVerdict, _ *verdict) error {
			if p.HumanApproval != nil && !x.needsCoApproval() {
				return invalid("not_applicable")
			}
			for _, a := range []*Signed[protocol.Approval]{p.Approval, p.HumanApproval} {
				if a == nil {
					continue
				}
				if err := x.judgeVerdict(&a.Doc, decision); err != nil {
					return err
				}
			}
			return nil
		},
		Approvals: func(x *Ctx, p *missionVerdict, _ *verdict) error {
			if coApproval && p.HumanApproval == nil && x.needsCoApproval() {
				return protocol.NewError(protocol.CodeApprovalRequired, "root_human").WithDetail("gate", "root_human")
			}
			return nil
		},
		Emit: emit,
	})
}

// needsCoApproval reports a child Mission that its policy lets end only with
// the root human's Approval.
func (x *Ctx) needsCoApproval() bool {
	return x.Group.IsChild() && x.Group.Mission.ApprovalPolicy.FinalHumanApproval
}

// bindVerdict holds the ids of an Approval against the Group (P18).
func (x *Ctx) bindVerdict(a *protocol.Approval, approvalKind, decision string) error {
	m := x.Group.Mission
	if a.Kind != approvalKind || a.Decision != decision || a.MissionID != m.MissionID || a.GroupID != m.GroupID ||
		a.WorkItemID != "" && (m.Parent == nil || a.WorkItemID != m.Parent.WorkItemID) {
		return invalid("binding_mismatch")
	}
	if _, used := x.Group.Approvals[a.ApprovalID]; used {
		return invalid("identifier_in_use")
	}
	return nil
}

// judgeVerdict holds an Approval against what was submitted (P23).
func (x *Ctx) judgeVerdict(a *protocol.Approval, decision string) error {
	m := x.Group.Mission
	if a.MissionRevision != m.Submission.MissionRevision {
		return protocol.NewError(protocol.CodeRevisionConflict, "").
			WithRevision(a.MissionRevision, m.Submission.MissionRevision)
	}
	same := sameSet(a.ArtifactHashes, m.Submission.ArtifactHashes)
	if !same && (decision == decisionApproved || len(a.ArtifactHashes) > 0) {
		return invalid("artifact_set")
	}
	if v := m.ApprovalPolicy.PolicyVersion; v != "" && a.AcceptancePolicyVersion != v {
		return invalid("policy_version")
	}
	if decision == decisionChangesRequested && blank(a.Comments) {
		return invalid("comments")
	}
	return nil
}

// sameSet compares two lists of distinct strings.
func sameSet(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	set := setOf(a...)
	for _, s := range b {
		if !set[s] {
			return false
		}
	}
	return true
}

func missionApproveEmit(x *Ctx, p *missionVerdict, _ *verdict) error {
	id := x.emit("mission.approved", &MissionApproved{
		MissionID: x.Group.Mission.MissionID, Approval: p.Approval, HumanApproval: p.HumanApproval,
		ClosedLease:      leases.Close(*x.Group.CoordinatorLease, x.World.Now, leases.Released, leases.ReasonMissionEnded),
		PolicyLogEntryID: x.Mint(),
	}, emission{Primary: true})
	if !x.Group.IsChild() {
		return nil
	}
	return x.childApproved(x.Group, p.Approval.Doc.ApprovalID, x.Group.Mission.Submission.ArtifactHashes, id)
}

func missionRequestChangesEmit(x *Ctx, p *missionVerdict, _ *verdict) error {
	x.emit("mission.changes_requested", &MissionChangesRequested{
		MissionID: x.Group.Mission.MissionID, Approval: p.Approval, PolicyLogEntryID: x.Mint(),
	}, emission{Primary: true})
	return nil
}
