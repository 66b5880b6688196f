package groups

import (
	"time"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// Offline reconciliation (COMMANDS.md 7.7): a Worker hands in, under its
// present session, what it did under a former Execution Lease while it was cut
// off. Each function is the part of one step; without a binding it is empty.

// offlineAuthority is P17: the binding is the actor's own and of this Group.
func (x *Ctx) offlineAuthority() error {
	b, env := x.Offline, &x.Command.Envelope
	if b == nil {
		return nil
	}
	if env.Actor != (protocol.Actor{Type: protocol.ActorAgent, ID: b.AgentID}) || b.GroupID != env.GroupID ||
		env.WorkItemID != "" && b.WorkItemID != env.WorkItemID {
		return forbid("offline_binding")
	}
	return nil
}

// offlineReferences is P18: the historical lease is the actor's, of that
// WorkItem and epoch, and the Conversation is the WorkItem's.
func (x *Ctx) offlineReferences() error {
	b := x.Offline
	if b == nil {
		return nil
	}
	w := x.Group.WorkItems[b.WorkItemID]
	if w == nil {
		return invalid("unknown_reference")
	}
	l, ok := w.Lease(b.ExecutionLeaseID)
	if !ok || l.LeaseType != protocol.LeaseExecution || l.OwnershipEpoch != b.OwnershipEpoch ||
		l.HolderAgentID != b.AgentID {
		return invalid("unknown_reference")
	}
	if conversation := x.Command.Envelope.ConversationID; conversation != "" && conversation != w.ConversationID {
		return invalid("binding_mismatch")
	}
	return nil
}

// offlineOwnership is P19: the WorkItem is still the actor's under the same
// Ownership Epoch.
func (x *Ctx) offlineOwnership() error {
	if x.Offline == nil {
		return nil
	}
	return x.offlineItem().currentOwner(x.Offline.AgentID, x.Offline.OwnershipEpoch)
}

func (x *Ctx) offlineItem() *WorkItem { return x.Group.WorkItems[x.Offline.WorkItemID] }

// offlineLease is P20: the work was done inside the historical lease and the
// grace that policy allows, and was put aside before it was sent.
func (x *Ctx) offlineLease() error {
	b := x.Offline
	if b == nil {
		return nil
	}
	l, _ := x.offlineItem().Lease(b.ExecutionLeaseID)
	upTo := func(a, b string) bool { return leases.Compare(a, b) <= 0 }
	before := func(a, b string) bool { return leases.Compare(a, b) < 0 }
	ok := l.SessionEpoch == b.SessionEpoch && b.SessionEpoch <= x.Agent.CurrentSessionEpoch &&
		leases.Compare(b.ExecutionLeaseExpiresAt, l.ExpiresAt) == 0 &&
		upTo(l.StartsAt, b.DisconnectedAt) && before(b.DisconnectedAt, l.ExpiresAt) &&
		upTo(b.DisconnectedAt, b.BufferedAt) && before(b.BufferedAt, b.GraceDeadline) &&
		upTo(b.GraceDeadline, l.ExpiresAt) &&
		within(b.DisconnectedAt, b.GraceDeadline, x.World.Org.offlineGrace()) &&
		(l.ClosedAt == "" || upTo(b.BufferedAt, l.ClosedAt)) &&
		upTo(b.BufferedAt, x.Command.Envelope.IssuedAt)
	if !ok {
		return leaseExpiredError(protocol.LeaseExecution)
	}
	return nil
}

// defaultOfflineGrace applies when the Organization names none.
const defaultOfflineGrace = 900 * time.Second

func (o *Organization) offlineGrace() time.Duration {
	if o.OfflineGrace > 0 {
		return o.OfflineGrace
	}
	return defaultOfflineGrace
}

// within reports to − from ≤ d.
func within(from, to string, d time.Duration) bool {
	a, err := lexical.ParseTimestamp(from)
	if err != nil {
		return false
	}
	b, err := lexical.ParseTimestamp(to)
	return err == nil && !b.After(a.Add(d))
}

// offlineValues is P23: nothing outward was done, and money is the tree's.
func (x *Ctx) offlineValues() error {
	if x.Offline == nil {
		return nil
	}
	u := &x.Offline.ResourceUsageDelta
	if u.ExternalSideEffects != 0 {
		return invalid("offline_side_effect")
	}
	return x.usageCurrency(u)
}

// usageCurrency refuses money in another currency than the tree's.
func (x *Ctx) usageCurrency(u *budget.Usage) error {
	if u.Financial == 0 {
		return nil
	}
	return x.foreignMoney(int64(u.Financial), u.Currency)
}

// offlineBudget is P24.
func (x *Ctx) offlineBudget() error {
	if x.Offline == nil {
		return nil
	}
	return x.checkCharge(x.offlineItem(), x.Offline.ResourceUsageDelta.Vector())
}

// offlineCharge appends the charge, before the progress it belongs to; an empty
// delta leaves no Event.
func (x *Ctx) offlineCharge() error {
	b := x.Offline
	if b == nil || b.ResourceUsageDelta.Vector().IsZero() {
		return nil
	}
	return x.emitCharge(charge{
		item: x.offlineItem(), delta: b.ResourceUsageDelta.Vector(),
		leaseID: b.ExecutionLeaseID, epoch: b.OwnershipEpoch,
		offline: &OfflineReconciliation{
			DisconnectedAt: b.DisconnectedAt, BufferedAt: b.BufferedAt, GraceDeadline: b.GraceDeadline,
			ExecutionSessionEpoch: b.SessionEpoch, ReconciliationSessionEpoch: x.Command.Envelope.SessionEpoch,
			ReconciledAt: x.Now, ProgressActionID: x.Command.Envelope.ActionID,
		},
	})
}
