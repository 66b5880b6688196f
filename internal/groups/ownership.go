package groups

import (
	"time"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// Who may act on a WorkItem as its owner, and whether an owner is still live.

// ownedBy is P19 in Worker capacity: somebody who never owned the WorkItem has
// no business here, somebody who does not own it now under this epoch is late.
// Custody is no ownership.
func (x *Ctx) ownedBy(w *WorkItem, epoch int64) error {
	actor := x.Actor().ID
	if w.Owners[actor] == 0 {
		return forbid("not_owner")
	}
	return w.currentOwner(actor, epoch)
}

// currentOwner answers WORK_STALE_OWNERSHIP unless the Agent owns the WorkItem
// under this Ownership Epoch.
func (w *WorkItem) currentOwner(agentID string, epoch int64) error {
	if w.Owner == nil || w.OwnerFenced || w.Custody || w.Owner.AgentID != agentID || w.Owner.OwnershipEpoch != epoch {
		return refuse(protocol.CodeWorkStaleOwnership, "stale_ownership")
	}
	return nil
}

// epochCurrent is P19 for those who are not the owner: the epoch they name is
// the last one given out. An approval may still be denied after its owner was
// fenced, so no owner needs to be there.
func (w *WorkItem) epochCurrent(epoch int64) error {
	if epoch != w.OwnershipEpoch {
		return refuse(protocol.CodeWorkStaleOwnership, "stale_ownership")
	}
	return nil
}

// executing is P20: the lease named is the WorkItem's current Execution Lease,
// of the actor's present session, and unexpired.
func (x *Ctx) executing(w *WorkItem, leaseID string) error {
	l := w.Execution
	if l == nil || l.LeaseID != leaseID || l.HolderAgentID != x.Actor().ID ||
		l.SessionEpoch != x.Command.Envelope.SessionEpoch || !leases.LiveAt(l, x.World.Now) {
		return leaseExpiredError(protocol.LeaseExecution)
	}
	return nil
}

func leaseExpiredError(leaseType string) error {
	return protocol.NewError(protocol.CodeWorkLeaseExpired, leaseType).WithDetail("leaseType", leaseType)
}

// startable is P20 of queued work: the Ownership Lease is unexpired and, before
// the first start under this epoch, the start-by time has not passed.
func (w *WorkItem) startable(now time.Time) error {
	if !leases.LiveAt(w.Ownership, now) {
		return leaseExpiredError(protocol.LeaseOwnership)
	}
	if !w.started() && !leases.Before(now, w.Ownership.StartBy) {
		return leaseExpiredError(protocol.LeaseOwnership)
	}
	return nil
}

// started reports that work was started under the present Ownership Epoch.
func (w *WorkItem) started() bool { return w.Owner != nil && w.StartedEpoch == w.Owner.OwnershipEpoch }

// OwnerLive decides COMMANDS.md 4.2.1; card is the owner's present Agent Card,
// looked at for queued work only.
func (w *WorkItem) OwnerLive(card *protocol.AgentCard, now time.Time) bool {
	if w.Owner == nil || w.OwnerFenced {
		return false
	}
	o := leases.Ownership{
		State: w.State, Ownership: w.Ownership, Execution: w.Execution, Blocked: w.Blocked,
		Started: w.started(), Custody: w.Custody, ChildLive: w.ChildIsLive(),
	}
	if w.State == protocol.WorkQueued {
		o.PinsHeld = pinsHeld(card, w.Owner)
	}
	return leases.OwnerLive(o, now)
}

// pinsHeld reports that a card still satisfies what the owner was pinned to.
func pinsHeld(card *protocol.AgentCard, owner *protocol.Owner) bool {
	return card != nil && card.Status != cardRevoked && leases.Match(card.Capabilities, owner.CapabilityPins)
}

const cardRevoked = "revoked"

// ownerLive is OwnerLive with the card the World knows.
func (x *Ctx) ownerLive(w *WorkItem) (bool, error) {
	if w.Owner == nil {
		return false, nil
	}
	var card *protocol.AgentCard
	if w.State == protocol.WorkQueued && !w.Custody {
		a, err := x.World.agent(w.Owner.AgentID)
		if err != nil {
			return false, err
		}
		if a != nil {
			card = a.Card
		}
	}
	return w.OwnerLive(card, x.World.Now), nil
}

// compatible is the P22 row of work.start and lease renewal: a card that lost
// a pinned capability needs renewed acceptance.
func (x *Ctx) compatible(w *WorkItem) error {
	if !pinsHeld(x.Agent.Card, w.Owner) {
		return wrongState("acceptance_required", w.State)
	}
	return nil
}

// inState is the state row of P22.
func inState(w *WorkItem, states ...string) error {
	for _, s := range states {
		if w.State == s {
			return nil
		}
	}
	return wrongState("state", w.State)
}

// itemRevision is P21 of the kinds whose aggregate is the WorkItem.
func itemRevision[P, S any](x *Ctx, _ *P, _ *S) int64 {
	return x.Group.Revision(workItemAggregate(x.Item.WorkItemID))
}
