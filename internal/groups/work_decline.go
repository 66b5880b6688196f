package groups

import (
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// What happens to offered work besides acceptance: a candidate declines, or a
// dependency is added and everybody must look again.

type declining struct{ offer *protocol.Offer }

func offerDeclineKind() Kind {
	return kind(Kind{
		Kind: "ext.missionweave.work.offer_decline", WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem,
		Shape: shapeOfferDecline, Provisional: true, Capacities: []CapacityRow{{CapacityMember, ""}},
	}, plan[offerDecline, declining]{
		Authority: func(x *Ctx, _ *offerDecline, _ *declining) error { return agentsOnly(x) },
		References: func(x *Ctx, p *offerDecline, s *declining) (err error) {
			s.offer, err = x.offer(p.OfferID)
			return err
		},
		Relation: func(x *Ctx, _ *offerDecline, s *declining) error { return x.ownOffer(s.offer) },
		Leases:   func(x *Ctx, _ *offerDecline, s *declining) error { return x.declinable(s.offer) },
		Revision: itemRevision[offerDecline, declining],
		State: func(x *Ctx, _ *offerDecline, _ *declining) error {
			if err := missionActive(x); err != nil {
				return err
			}
			return x.itemRow()
		},
		Emit: func(x *Ctx, p *offerDecline, _ *declining) error {
			w := x.Item
			offers := rewriteOffers(w.Offers, x.World.Now)
			for i := range offers {
				if offers[i].OfferID == p.OfferID {
					offers[i].Status, offers[i].DeclineReason = OfferDeclined, p.DeclineReason
				}
			}
			x.emit("ext.missionweave.work.offer_declined", &WorkOfferDeclined{
				WorkItemID: w.WorkItemID, State: w.State, OfferID: p.OfferID, AgentID: x.Actor().ID,
				DeclineReason: p.DeclineReason, Comments: p.Comments, Offers: offers,
			}, emission{WorkItem: w, Primary: true})
			return nil
		},
	})
}

// declinable is P20 of a refusal: only who lost a race is told that another
// won; an offer that its own holder accepted is as far gone as a withdrawn one
// (COMMANDS.md 5.4).
func (x *Ctx) declinable(o *protocol.Offer) error {
	switch {
	case o.Status == OfferLostRace:
		return refuse(protocol.CodeWorkAlreadyOwned, o.Status)
	case o.Status != OfferPending:
		return refuse(protocol.CodeWorkOfferExpired, o.Status)
	case !leases.Before(x.World.Now, o.ExpiresAt):
		return refuse(protocol.CodeWorkOfferExpired, OfferExpired)
	}
	return nil
}

func dependencyAddKind() Kind {
	return kind(Kind{
		Kind:     "ext.missionweaveprotocol.core.work_dependency_add",
		WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem, Shape: shapeDependencyAdd,
		Capacities: []CapacityRow{{CapacityCoordinator, ScopeWorkAuthorize}, {CapacityService, ""}},
	}, plan[dependencyAdd, noScratch]{
		References: func(x *Ctx, p *dependencyAdd, _ *noScratch) error {
			for _, id := range p.DependencyWorkItemIDs {
				if x.Group.WorkItems[id] == nil {
					return invalid("unknown_reference")
				}
			}
			return nil
		},
		Revision: itemRevision[dependencyAdd, noScratch],
		State: func(x *Ctx, _ *dependencyAdd, _ *noScratch) error {
			if err := missionActive(x); err != nil {
				return err
			}
			switch x.Item.State {
			case protocol.WorkOpen, protocol.WorkOffered:
				return nil
			case protocol.WorkQueued, protocol.WorkActive, protocol.WorkBlocked, protocol.WorkSubmitted:
				return wrongState("acceptance_required", x.Item.State)
			}
			return wrongState("state", x.Item.State)
		},
		Values: func(x *Ctx, p *dependencyAdd, _ *noScratch) error {
			if x.Group.reaches(p.DependencyWorkItemIDs, x.Item.WorkItemID) {
				return invalid("cycle")
			}
			for _, id := range p.DependencyWorkItemIDs {
				for _, present := range x.Item.Contract.DependencyWorkItemIDs {
					if id == present {
						return invalid("duplicate")
					}
				}
			}
			return nil
		},
		Emit: func(x *Ctx, p *dependencyAdd, _ *noScratch) error {
			w := x.Item
			c := w.Contract
			c.ContractVersion++
			c.DependencyWorkItemIDs = append(c.DependencyWorkItemIDs[:len(c.DependencyWorkItemIDs):len(c.DependencyWorkItemIDs)],
				p.DependencyWorkItemIDs...)
			x.emit("work.contract.revised", &WorkContractRevised{
				WorkItemID: w.WorkItemID, State: w.State, Contract: c, ContractVersion: c.ContractVersion,
				Cause: revisedByDependency, AddedDependencyWorkItemIDs: p.DependencyWorkItemIDs,
				WithdrawnOfferIDs: w.liveOffers(x.World.Now),
			}, emission{WorkItem: w, Primary: true})
			return nil
		},
	})
}

func ownershipLeaseRenewKind() Kind {
	return kind(Kind{
		Kind: "ext.missionweave.work.ownership_lease_renew", WorkItem: WorkItemRequired,
		Aggregate: AggregateWorkItem, Shape: shapeOwnershipLeaseRenew, Capacities: workerRow,
	}, plan[ownershipLeaseRenew, executing]{
		Ownership: func(x *Ctx, p *ownershipLeaseRenew, _ *executing) error {
			return x.ownedBy(x.Item, p.OwnershipEpoch)
		},
		Leases:   func(x *Ctx, _ *ownershipLeaseRenew, _ *executing) error { return x.Item.startable(x.World.Now) },
		Revision: itemRevision[ownershipLeaseRenew, executing],
		State: func(x *Ctx, _ *ownershipLeaseRenew, _ *executing) error {
			if err := missionActive(x); err != nil {
				return err
			}
			return x.itemRow()
		},
		Values: func(x *Ctx, p *ownershipLeaseRenew, s *executing) (err error) {
			w := x.Item
			if s.expiresAt, err = x.until(x.World.Org.Leases.Ownership, p.LeaseSeconds); err != nil {
				return err
			}
			if leases.Compare(s.expiresAt, w.Ownership.ExpiresAt) <= 0 {
				return invalid("lease_not_extended")
			}
			if leases.Compare(s.expiresAt, w.Contract.Deadline) > 0 {
				return invalid("deadline")
			}
			if p.StartBy != "" && (leases.Compare(p.StartBy, w.Ownership.StartBy) < 0 ||
				leases.Compare(p.StartBy, s.expiresAt) > 0) {
				return invalid("deadline")
			}
			return nil
		},
		Emit: func(x *Ctx, p *ownershipLeaseRenew, s *executing) error {
			w, startBy := x.Item, p.StartBy
			if startBy == "" {
				startBy = s.expiresAt
			}
			x.emit("ext.missionweave.work.ownership_lease_renewed", &OwnershipLeaseRenewed{
				WorkItemID: w.WorkItemID, State: w.State, OwnershipEpoch: p.OwnershipEpoch,
				OwnershipLease: leases.Set(*w.Ownership, x.World.Now, s.expiresAt, startBy,
					x.Command.Envelope.SessionEpoch),
				ScheduleEstimate: p.ScheduleEstimate,
			}, emission{WorkItem: w, Primary: true})
			return nil
		},
	})
}
