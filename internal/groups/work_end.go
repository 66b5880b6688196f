package groups

import (
	"slices"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// work.fail and work.cancel.

func workFailKind() Kind {
	return kind(Kind{
		Kind: "work.fail", WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem, Shape: shapeWorkFail,
		Capacities: []CapacityRow{{CapacityCoordinator, ScopeWorkVerify}, {CapacityWorker, ""}},
		Documents:  []DocumentRow{{"evidence", protocol.KindEvidence, true}},
	}, plan[workFail, noScratch]{
		// Whoever names an Ownership Epoch speaks as the owner, even a
		// Coordinator; nobody is an owner without naming one.
		Judge: func(x *Ctx, p *workFail) (Capacity, bool) {
			switch {
			case x.Actor().Type != protocol.ActorAgent:
				return CapacityNone, true
			case p.OwnershipEpoch != 0:
				return CapacityWorker, true
			case x.Actor() == x.Group.CoordinatorActor():
				return CapacityCoordinator, true
			}
			return CapacityNone, true
		},
		Authority: func(x *Ctx, p *workFail, _ *noScratch) error {
			var only *protocol.Actor
			if x.Capacity == CapacityWorker {
				actor := x.Actor()
				only = &actor
			}
			return x.evidenceSigners(x.Group, p.Evidence, only)
		},
		References: func(x *Ctx, p *workFail, _ *noScratch) error {
			if err := x.evidenceBindings(x.Item, p.Evidence); err != nil {
				return err
			}
			for _, e := range p.Evidence {
				if e.Doc.Type != evidenceFailure {
					return invalid("binding_mismatch")
				}
			}
			return nil
		},
		Ownership: func(x *Ctx, p *workFail, _ *noScratch) error {
			if x.Capacity != CapacityWorker {
				return nil
			}
			return x.ownedBy(x.Item, p.OwnershipEpoch)
		},
		Leases: func(x *Ctx, p *workFail, _ *noScratch) error {
			if x.Capacity != CapacityWorker {
				return nil
			}
			return x.executing(x.Item, p.ExecutionLeaseID)
		},
		Revision: itemRevision[workFail, noScratch],
		State: func(x *Ctx, _ *workFail, _ *noScratch) error {
			if x.Capacity == CapacityWorker {
				return x.itemRowOf(causeOwnFailure)
			}
			return x.itemRow()
		},
		Values: func(_ *Ctx, p *workFail, _ *noScratch) error {
			if !slices.ContainsFunc(p.Evidence, func(e *Signed[protocol.Evidence]) bool {
				return e.Doc.Result == resultFailed
			}) {
				return invalid("evidence_incomplete")
			}
			return nil
		},
		Emit: func(x *Ctx, p *workFail, _ *noScratch) error {
			e := ending{failed: true, reason: p.Reason, lease: leases.ReasonFailed}
			return x.endWork(e, func(f *WorkFailed) {
				f.FailureCode, f.Evidence = p.FailureCode, p.Evidence
				if x.Capacity == CapacityWorker {
					f.OwnershipEpoch = p.OwnershipEpoch
				}
			})
		},
	})
}

func workCancelKind() Kind {
	return kind(Kind{
		Kind: "work.cancel", WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem, Shape: shapeWorkCancel,
		Capacities: []CapacityRow{
			{CapacityCoordinator, ScopeWorkAuthorize},
			{CapacityMissionOwner, ScopeMissionCancel},
			{CapacityService, ""},
		},
	}, plan[workCancel, noScratch]{
		Revision: itemRevision[workCancel, noScratch],
		State:    func(x *Ctx, _ *workCancel, _ *noScratch) error { return x.itemRow() },
		Emit: func(x *Ctx, p *workCancel, _ *noScratch) error {
			return x.endWork(ending{reason: p.Reason, lease: leases.ReasonCancelled}, nil)
		},
	})
}

// endWork ends the envelope's WorkItem and a child Mission that lives by it.
func (x *Ctx) endWork(e ending, edit func(*WorkFailed)) error {
	w := x.Item
	id := x.endItem(x.Group, w, e, emission{Primary: true}, "", edit)
	if !w.ChildIsLive() {
		return nil
	}
	return x.endChildMission(x.Group, w, e, id)
}
