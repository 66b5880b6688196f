package groups

import (
	"time"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// work.block and work.unblock: a Worker that cannot go on gives its slot back
// and keeps the work for a bounded time.

func workBlockKind() Kind {
	return kind(Kind{
		Kind: "work.block", WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem,
		Shape: shapeWorkBlock, Capacities: workerRow,
		Documents: []DocumentRow{{"evidence", protocol.KindEvidence, true}},
	}, plan[workBlock, executing]{
		Authority: func(x *Ctx, p *workBlock, _ *executing) error {
			return x.evidenceSigners(x.Group, p.Evidence, nil)
		},
		References: func(x *Ctx, p *workBlock, _ *executing) error {
			if err := x.checkpointReferences(&p.Progress, p.StateArtifactHash); err != nil {
				return err
			}
			return x.evidenceBindings(x.Item, p.Evidence)
		},
		Ownership: func(x *Ctx, p *workBlock, _ *executing) error { return x.ownedBy(x.Item, p.OwnershipEpoch) },
		Leases:    func(x *Ctx, p *workBlock, _ *executing) error { return x.executing(x.Item, p.ExecutionLeaseID) },
		Revision:  itemRevision[workBlock, executing],
		State:     func(x *Ctx, _ *workBlock, _ *executing) error { return activeWork(x) },
		Values: func(x *Ctx, p *workBlock, s *executing) (err error) {
			s.expiresAt, err = x.until(x.World.Org.Leases.Blocked, p.BlockedLeaseSeconds)
			return err
		},
		Emit: func(x *Ctx, p *workBlock, s *executing) error {
			w, now, session := x.Item, x.World.Now, x.Command.Envelope.SessionEpoch
			blocked := leases.Open(protocol.LeaseBlocked, leases.Terms{
				LeaseID: x.Mint(), MissionID: w.MissionID, GroupID: w.GroupID, WorkItemID: w.WorkItemID,
				HolderAgentID: x.Actor().ID, SessionEpoch: session, OwnershipEpoch: p.OwnershipEpoch,
				Now: now, ExpiresAt: s.expiresAt, Grace: x.World.Org.Leases.Grace,
			})
			ownership := leases.Set(*w.Ownership, now, s.expiresAt, "", session)
			x.emit("work.blocked", &WorkBlocked{
				WorkItemID: w.WorkItemID, State: protocol.WorkBlocked,
				Reason: p.Reason, RequiredResolution: p.RequiredResolution, Evidence: p.Evidence,
				ClosedLeases: []protocol.Lease{
					leases.Close(*w.Execution, now, leases.Released, leases.ReasonBlocked),
				},
				OwnershipEpoch: p.OwnershipEpoch, CheckpointID: x.Mint(), Progress: &p.Progress,
				StateArtifactHash: p.StateArtifactHash, OwnershipLease: &ownership, BlockedLease: &blocked,
				ScheduleEstimate: p.ScheduleEstimate,
			}, emission{WorkItem: w, Primary: true})
			return nil
		},
	})
}

// unblockSeconds is how long an unblocked owner has at least to start again
// (COMMANDS.md 4.5).
const unblockSeconds = 900

func workUnblockKind() Kind {
	return kind(Kind{
		Kind: "work.unblock", WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem, Shape: shapeWorkUnblock,
		Capacities: []CapacityRow{{CapacityCoordinator, ScopeWorkAuthorize}},
	}, plan[workUnblock, noScratch]{
		Revision: itemRevision[workUnblock, noScratch],
		State: func(x *Ctx, _ *workUnblock, _ *noScratch) error {
			if err := missionActive(x); err != nil {
				return err
			}
			if err := x.itemRow(); err != nil {
				return err
			}
			if x.Item.ChildIsLive() {
				return wrongState("child_live", x.Item.State)
			}
			return nil
		},
		Emit: func(x *Ctx, p *workUnblock, _ *noScratch) error {
			w, now := x.Item, x.World.Now
			payload := &WorkUnblocked{WorkItemID: w.WorkItemID, Resolution: p.Resolution, ClosedLeases: []protocol.Lease{}}
			if w.Blocked != nil {
				payload.ClosedLeases = append(payload.ClosedLeases,
					leases.Close(*w.Blocked, now, leases.Released, leases.ReasonUnblocked))
			}
			if w.resumable(now) {
				raised := leases.Raise(*w.Ownership, now, leases.In(now, unblockSeconds*time.Second), 0)
				payload.State, payload.OwnershipLease = protocol.WorkQueued, &raised
			} else {
				payload.State, payload.OwnershipReleased = protocol.WorkOpen, true
				for _, l := range []*protocol.Lease{w.Ownership, w.Execution} {
					if l != nil {
						payload.ClosedLeases = append(payload.ClosedLeases,
							leases.Close(*l, now, leases.Revoked, leases.ReasonOwnerLapsed))
					}
				}
			}
			x.emit("work.unblocked", payload, emission{WorkItem: w, Primary: true})
			return nil
		},
	})
}

// resumable reports that the owner of blocked work can go on: both its leases
// are live, and it is an owner, not custody.
func (w *WorkItem) resumable(now time.Time) bool {
	return w.Owner != nil && !w.OwnerFenced && !w.Custody &&
		leases.LiveAt(w.Ownership, now) && leases.LiveAt(w.Blocked, now)
}
