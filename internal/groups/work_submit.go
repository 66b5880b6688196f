package groups

import (
	"slices"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// work.submit and work.accept_result: a Worker hands in, the Coordinator
// verifies.

func workSubmitKind() Kind {
	return kind(Kind{
		Kind: "work.submit", WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem,
		Shape: shapeWorkSubmit, Capacities: workerRow,
		Documents: []DocumentRow{{"evidence", protocol.KindEvidence, true}},
	}, plan[workSubmit, noScratch]{
		Authority: func(x *Ctx, p *workSubmit, _ *noScratch) error {
			return x.evidenceSigners(x.Group, p.Evidence, nil)
		},
		References: func(x *Ctx, p *workSubmit, _ *noScratch) error {
			if err := x.evidenceBindings(x.Item, p.Evidence); err != nil {
				return err
			}
			for _, hash := range p.ArtifactHashes {
				if !x.Item.published(hash, x.Item.OwnershipEpoch) {
					return invalid("unknown_reference")
				}
			}
			return nil
		},
		Ownership: func(x *Ctx, p *workSubmit, _ *noScratch) error { return x.ownedBy(x.Item, p.OwnershipEpoch) },
		Leases:    func(x *Ctx, p *workSubmit, _ *noScratch) error { return x.executing(x.Item, p.ExecutionLeaseID) },
		Revision:  itemRevision[workSubmit, noScratch],
		State:     func(x *Ctx, _ *workSubmit, _ *noScratch) error { return activeWork(x) },
		Values: func(x *Ctx, p *workSubmit, _ *noScratch) error {
			if !submissionCovers(&x.Item.Contract, p.Evidence) {
				return invalid("evidence_incomplete")
			}
			return nil
		},
		Emit: func(x *Ctx, p *workSubmit, _ *noScratch) error {
			w := x.Item
			x.emit("work.submitted", &WorkSubmitted{
				WorkItemID: w.WorkItemID, State: protocol.WorkSubmitted, OwnershipEpoch: p.OwnershipEpoch,
				Submission: protocol.Submission{
					ArtifactHashes: p.ArtifactHashes, EvidenceIDs: evidenceIDs(p.Evidence), SubmittedAt: x.Now,
				},
				Evidence: p.Evidence,
				ClosedLeases: []protocol.Lease{
					leases.Close(*w.Execution, x.World.Now, leases.Released, leases.ReasonSubmitted),
				},
			}, emission{WorkItem: w, Primary: true})
			return nil
		},
	})
}

func workAcceptResultKind() Kind {
	return kind(Kind{
		Kind: "work.accept_result", WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem,
		Shape:      shapeWorkAcceptResult,
		Capacities: []CapacityRow{{CapacityCoordinator, ScopeWorkVerify}},
		Documents:  []DocumentRow{{"evidence", protocol.KindEvidence, true}},
	}, plan[workAcceptResult, noScratch]{
		Authority: func(x *Ctx, p *workAcceptResult, _ *noScratch) error {
			return x.evidenceSigners(x.Group, p.Evidence, nil)
		},
		References: func(x *Ctx, p *workAcceptResult, _ *noScratch) error {
			return x.evidenceBindings(x.Item, p.Evidence)
		},
		Revision: itemRevision[workAcceptResult, noScratch],
		State: func(x *Ctx, _ *workAcceptResult, _ *noScratch) error {
			if err := missionActive(x); err != nil {
				return err
			}
			return x.itemRow()
		},
		Values: acceptResultValues,
		Emit: func(x *Ctx, p *workAcceptResult, _ *noScratch) error {
			w := x.Item
			x.emit("work.result.accepted", &WorkResultAccepted{
				WorkItemID: w.WorkItemID, State: protocol.WorkVerified, OwnershipEpoch: w.Owner.OwnershipEpoch,
				Evidence:     p.Evidence,
				ClosedLeases: w.closing(x.World.Now, leases.Released, leases.Released, leases.ReasonVerified),
			}, emission{WorkItem: w, Primary: true})
			return nil
		},
	})
}

func acceptResultValues(x *Ctx, p *workAcceptResult, _ *noScratch) error {
	w := x.Item
	owner := protocol.Actor{Type: protocol.ActorAgent, ID: w.Owner.AgentID}
	all := slices.Clone(p.Evidence)
	for _, id := range w.Submission.EvidenceIDs {
		if e := x.Group.Evidence[id]; e != nil {
			all = append(all, e)
		}
	}
	if !reviewCovers(&w.Contract, owner, all) {
		return invalid("evidence_incomplete")
	}
	for _, e := range p.Evidence {
		if e.Doc.Result == resultFailed {
			return invalid("evidence_failed")
		}
	}
	if owner == x.Actor() && !slices.ContainsFunc(all, func(e *Signed[protocol.Evidence]) bool {
		return e.Doc.Result == resultPassed && e.Doc.GeneratedBy != owner
	}) {
		return forbid("sole_reviewer")
	}
	return nil
}
