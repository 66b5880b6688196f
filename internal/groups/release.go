package groups

import (
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// What a fenced Agent leaves behind: leases revoked by a takeover, WorkItems
// whose owner left, offers nobody can accept any more (COMMANDS.md D16, D17).

// Reasons of ownership_released and offers_withdrawn.
const (
	releaseEnded = "membership_ended"
	releaseRole  = "role_changed"
)

// Reasons of work_execution_lease_revoked.
const (
	revokeSession = "session_replaced"
	revokeAgent   = "agent_revoked"
)

// releaseMember emits what an Agent loses with work.execute (its ownership)
// and with work.accept_offer (its pending offers), by WorkItem id.
func (x *Ctx) releaseMember(g *State, member protocol.Actor, reason string, execute, offers bool, m emission) {
	if member.Type != protocol.ActorAgent {
		return
	}
	now := x.World.Now
	if execute {
		for _, id := range sortedIDs(g.owned[member.ID]) {
			w := g.WorkItems[id]
			if w.Custody || w.OwnerFenced {
				continue
			}
			switch w.State {
			case protocol.WorkQueued, protocol.WorkActive, protocol.WorkBlocked:
			default:
				continue
			}
			m.WorkItem = w
			x.out.emit(g.GroupID, g, "ext.missionweave.authority.ownership_released", &OwnershipReleased{
				WorkItemID: id, State: w.State, Owner: *w.Owner, Reason: reason,
				ClosedLeases: w.closing(now, leases.Revoked, leases.Revoked, leases.ReasonMembershipEnded),
			}, m)
		}
	}
	if !offers {
		return
	}
	for _, id := range sortedIDs(g.offered[member.ID]) {
		w := g.WorkItems[id]
		current := rewriteOffers(w.Offers, now)
		var ids []string
		for _, o := range current {
			if o.AgentID == member.ID && o.Status == OfferPending {
				ids = append(ids, o.OfferID)
			}
		}
		if len(ids) == 0 {
			continue
		}
		m.WorkItem = w
		x.out.emit(g.GroupID, g, "ext.missionweave.authority.offers_withdrawn", &OffersWithdrawn{
			WorkItemID: id, State: w.State, OfferIDs: ids, Reason: reason, Offers: withdraw(current, ids),
		}, m)
	}
}

// revokeExecution emits the revocation of an Agent's running work in one
// Group, by WorkItem id; source is the Organization fact behind it.
func (x *Ctx) revokeExecution(g *State, agentID, reason string, sessionEpoch int64, source string) {
	for _, id := range sortedIDs(g.owned[agentID]) {
		w := g.WorkItems[id]
		if w.State != protocol.WorkActive || w.Custody || w.OwnerFenced {
			continue
		}
		closed := []protocol.Lease{}
		if w.Execution != nil {
			closed = append(closed, leases.Close(*w.Execution, x.World.Now, leases.Revoked, reason))
		}
		x.emitTo(g, "ext.missionweaveprotocol.core.work_execution_lease_revoked", &LeaseRevoked{
			WorkItemID: id, State: protocol.WorkQueued, ExecutionLeaseID: w.lastExecution(),
			OwnershipEpoch: w.OwnershipEpoch, Reason: reason, SessionEpoch: sessionEpoch, ClosedLeases: closed,
		}, emission{WorkItem: w, Source: source})
	}
}

// lastExecution is the id of the current Execution Lease or of the last one.
func (w *WorkItem) lastExecution() string {
	if w.Execution != nil {
		return w.Execution.LeaseID
	}
	for i := len(w.ClosedLeases) - 1; i >= 0; i-- {
		if w.ClosedLeases[i].LeaseType == protocol.LeaseExecution {
			return w.ClosedLeases[i].LeaseID
		}
	}
	return ""
}

func releaseEvents() []EventKind {
	return []EventKind{
		eventKind("ext.missionweave.authority.ownership_released", AggregateWorkItem, false,
			func(p *OwnershipReleased) string { return p.WorkItemID },
			func(s *State, ev *Event, p *OwnershipReleased) error {
				w, err := s.workItem(ev, p.WorkItemID, p.State)
				if err != nil {
					return err
				}
				s.closeLeases(w, p.ClosedLeases)
				s.fenceOwner(w)
				return nil
			}),
		eventKind("ext.missionweave.authority.offers_withdrawn", AggregateWorkItem, false,
			func(p *OffersWithdrawn) string { return p.WorkItemID },
			func(s *State, ev *Event, p *OffersWithdrawn) error {
				w, err := s.workItem(ev, p.WorkItemID, p.State)
				if err != nil {
					return err
				}
				s.setOffers(w, p.Offers)
				return nil
			}),
		eventKind("ext.missionweaveprotocol.core.work_execution_lease_revoked", AggregateWorkItem, false,
			func(p *LeaseRevoked) string { return p.WorkItemID },
			func(s *State, ev *Event, p *LeaseRevoked) error {
				w, err := s.workItem(ev, p.WorkItemID, p.State)
				if err != nil {
					return err
				}
				s.closeLeases(w, p.ClosedLeases)
				return nil
			}),
	}
}
