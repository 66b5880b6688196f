package groups

import (
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// Execution by the owner: work.start, the renewal of its Execution Lease, and
// work.checkpoint.

type executing struct {
	approval  *ExecutionApproval
	expiresAt string
}

// executorRow asks for the scope where new authority or provenance arises; what
// follows from a lease already held (workerRow) asks for the lease alone, and
// whoever loses the scope loses the lease.
var (
	executorRow = []CapacityRow{{CapacityWorker, ScopeWorkExecute}}
	workerRow   = []CapacityRow{{CapacityWorker, ""}}
)

func workStartKind() Kind {
	return kind(Kind{
		Kind: "work.start", WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem,
		Shape: shapeWorkStart, Capacities: executorRow, Limits: []string{LimitActive},
	}, plan[workStart, executing]{
		Ownership: func(x *Ctx, p *workStart, _ *executing) error { return x.ownedBy(x.Item, p.OwnershipEpoch) },
		Leases:    func(x *Ctx, _ *workStart, _ *executing) error { return x.Item.startable(x.World.Now) },
		Revision:  itemRevision[workStart, executing],
		State: func(x *Ctx, _ *workStart, _ *executing) error {
			if err := missionActive(x); err != nil {
				return err
			}
			if err := x.itemRow(); err != nil {
				return err
			}
			if !x.Group.dependenciesMet(&x.Item.Contract) {
				return wrongState("dependency", x.Item.State)
			}
			return x.compatible(x.Item)
		},
		Values: func(x *Ctx, p *workStart, s *executing) (err error) {
			if !leases.Before(x.World.Now, x.Item.Contract.Deadline) {
				return invalid("deadline")
			}
			s.expiresAt, err = x.until(x.World.Org.Leases.Execution, p.ExecutionLeaseSeconds)
			return err
		},
		Approvals: func(x *Ctx, _ *workStart, s *executing) (err error) {
			s.approval, err = x.pass(x.Item)
			return err
		},
		Limits: func(x *Ctx, _ *workStart, _ *executing) error {
			limit := x.activeLimit()
			x.soften(LimitActive, int64(x.Agent.Load.Active)+1, int64(limit))
			if x.Agent.Load.Active+1 > limit {
				x.over(LimitActive, int64(limit), 0)
			}
			return nil
		},
		Budget: func(x *Ctx, _ *workStart, _ *executing) error { return x.paused(x.Item) },
		Emit:   startEmit,
	})
}

func startEmit(x *Ctx, p *workStart, s *executing) error {
	w, now, session := x.Item, x.World.Now, x.Command.Envelope.SessionEpoch
	lease := leases.Open(protocol.LeaseExecution, leases.Terms{
		LeaseID: x.Mint(), MissionID: w.MissionID, GroupID: w.GroupID, WorkItemID: w.WorkItemID,
		HolderAgentID: x.Actor().ID, SessionEpoch: session, OwnershipEpoch: p.OwnershipEpoch,
		Now: now, ExpiresAt: s.expiresAt,
	})
	payload := &WorkStarted{
		WorkItemID: w.WorkItemID, State: protocol.WorkActive, OwnershipEpoch: p.OwnershipEpoch,
		ExecutionLease: lease, ExecutionLeaseExpiresAt: lease.ExpiresAt,
		OwnershipLease: leases.Raise(*w.Ownership, now, lease.ExpiresAt, session),
	}
	if s.approval != nil {
		payload.ApprovalID = s.approval.ApprovalID
	}
	x.emit("work.started", payload, emission{WorkItem: w, Primary: true})
	return nil
}

func executionLeaseRenewKind() Kind {
	return kind(Kind{
		Kind: "ext.missionweaveprotocol.core.work_execution_lease_renew", WorkItem: WorkItemRequired,
		Aggregate: AggregateWorkItem, Shape: shapeExecutionLeaseRenew, Capacities: workerRow,
	}, plan[executionLeaseRenew, executing]{
		References: func(x *Ctx, p *executionLeaseRenew, _ *executing) error { return x.knownEvidence(p.Progress) },
		Ownership: func(x *Ctx, p *executionLeaseRenew, _ *executing) error {
			return x.ownedBy(x.Item, p.OwnershipEpoch)
		},
		Leases: func(x *Ctx, p *executionLeaseRenew, _ *executing) error {
			return x.executing(x.Item, p.ExecutionLeaseID)
		},
		Revision: itemRevision[executionLeaseRenew, executing],
		State: func(x *Ctx, _ *executionLeaseRenew, _ *executing) error {
			if err := activeWork(x); err != nil {
				return err
			}
			return x.compatible(x.Item)
		},
		Values: func(x *Ctx, p *executionLeaseRenew, s *executing) (err error) {
			if s.expiresAt, err = x.until(x.World.Org.Leases.Execution, p.LeaseSeconds); err != nil {
				return err
			}
			if leases.Compare(s.expiresAt, x.Item.Execution.ExpiresAt) <= 0 {
				return invalid("lease_not_extended")
			}
			return nil
		},
		Approvals: func(x *Ctx, _ *executionLeaseRenew, _ *executing) error {
			_, err := x.pass(x.Item)
			return err
		},
		Budget: func(x *Ctx, _ *executionLeaseRenew, _ *executing) error { return x.paused(x.Item) },
		Emit: func(x *Ctx, p *executionLeaseRenew, s *executing) error {
			w, now, session := x.Item, x.World.Now, x.Command.Envelope.SessionEpoch
			lease := leases.Renew(*w.Execution, now, s.expiresAt, session)
			x.emit("work.progressed", &WorkProgressed{
				WorkItemID: w.WorkItemID, State: protocol.WorkActive, OwnershipEpoch: p.OwnershipEpoch,
				ExecutionLease: lease, ExecutionLeaseExpiresAt: lease.ExpiresAt,
				OwnershipLease: leases.Raise(*w.Ownership, now, lease.ExpiresAt, session),
				Progress:       p.Progress, ScheduleEstimate: p.ScheduleEstimate,
			}, emission{WorkItem: w, Primary: true})
			return nil
		},
	})
}

// activeWork is the P22 row of everything a Worker does while it executes.
func activeWork(x *Ctx) error {
	if err := missionActive(x); err != nil {
		return err
	}
	return x.itemRow()
}

func workCheckpointKind() Kind {
	return kind(Kind{
		Kind: "work.checkpoint", WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem,
		Shape: shapeWorkCheckpoint, Capacities: workerRow,
	}, plan[workCheckpoint, executing]{
		Authority: func(x *Ctx, _ *workCheckpoint, _ *executing) error { return x.offlineAuthority() },
		References: func(x *Ctx, p *workCheckpoint, _ *executing) error {
			if err := x.checkpointReferences(&p.Progress, p.StateArtifactHash); err != nil {
				return err
			}
			return x.offlineReferences()
		},
		Ownership: func(x *Ctx, p *workCheckpoint, _ *executing) error {
			if err := x.ownedBy(x.Item, p.OwnershipEpoch); err != nil {
				return err
			}
			return x.offlineOwnership()
		},
		Leases: func(x *Ctx, p *workCheckpoint, _ *executing) error {
			if err := x.executing(x.Item, p.ExecutionLeaseID); err != nil {
				return err
			}
			return x.offlineLease()
		},
		Revision: itemRevision[workCheckpoint, executing],
		State:    func(x *Ctx, _ *workCheckpoint, _ *executing) error { return activeWork(x) },
		Values: func(x *Ctx, p *workCheckpoint, s *executing) (err error) {
			if err := x.offlineValues(); err != nil {
				return err
			}
			s.expiresAt, err = x.until(x.World.Org.Leases.Ownership, p.ResumeWithinSeconds)
			return err
		},
		Budget: func(x *Ctx, _ *workCheckpoint, _ *executing) error { return x.offlineBudget() },
		Emit: func(x *Ctx, p *workCheckpoint, s *executing) error {
			w, now := x.Item, x.World.Now
			if err := x.offlineCharge(); err != nil {
				return err
			}
			x.emit("work.checkpointed", &WorkCheckpointed{
				WorkItemID: w.WorkItemID, State: protocol.WorkQueued, OwnershipEpoch: p.OwnershipEpoch,
				CheckpointID: x.Mint(), Progress: p.Progress, StateArtifactHash: p.StateArtifactHash,
				ClosedLeases: []protocol.Lease{
					leases.Close(*w.Execution, now, leases.Released, leases.ReasonCheckpointed),
				},
				OwnershipLease:   leases.Set(*w.Ownership, now, s.expiresAt, "", x.Command.Envelope.SessionEpoch),
				ScheduleEstimate: p.ScheduleEstimate,
			}, emission{WorkItem: w, Primary: true})
			return nil
		},
	})
}

// checkpointReferences is P18 of a checkpoint: what it names is known.
func (x *Ctx) checkpointReferences(p *protocol.Progress, stateHash string) error {
	if err := x.knownEvidence(p); err != nil || stateHash == "" {
		return err
	}
	_, err := x.knownContent(&x.Item.Contract, stateHash)
	return err
}

// until holds a requested duration against policy and spells the expiry.
func (x *Ctx) until(bounds leases.Bounds, seconds *int64) (string, error) {
	if err := leaseBounds(bounds, seconds); err != nil {
		return "", err
	}
	return x.leaseUntil(bounds, seconds)
}
