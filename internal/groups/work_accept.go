package groups

import (
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// work.accept_offer: exactly one candidate becomes the owner.

type accepting struct {
	offer     *protocol.Offer
	pins      []protocol.CapabilityRef
	expiresAt string
	startBy   string
}

func workAcceptOfferKind() Kind {
	return kind(Kind{
		Kind: "work.accept_offer", WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem,
		Shape: shapeWorkAcceptOffer, Provisional: true,
		Capacities: []CapacityRow{{CapacityMember, ScopeWorkAcceptOffer}},
		Limits:     []string{LimitQueued, LimitActive},
	}, plan[workAcceptOffer, accepting]{
		Authority: func(x *Ctx, _ *workAcceptOffer, _ *accepting) error { return agentsOnly(x) },
		References: func(x *Ctx, p *workAcceptOffer, s *accepting) (err error) {
			s.offer, err = x.offer(p.OfferID)
			return err
		},
		Relation: func(x *Ctx, _ *workAcceptOffer, s *accepting) error { return x.ownOffer(s.offer) },
		Leases:   func(x *Ctx, _ *workAcceptOffer, s *accepting) error { return x.offerOpen(s.offer) },
		Revision: itemRevision[workAcceptOffer, accepting],
		State: func(x *Ctx, _ *workAcceptOffer, _ *accepting) error {
			if err := missionActive(x); err != nil {
				return err
			}
			return x.itemRow()
		},
		Values: acceptValues,
		Limits: func(x *Ctx, _ *workAcceptOffer, _ *accepting) error {
			limit := x.limits().QueuedWorkItems
			x.soften(LimitQueued, int64(x.Agent.Load.Queued)+1, int64(limit))
			if x.Agent.Load.Queued+1 > limit {
				x.over(LimitQueued, int64(limit), 0)
			}
			if limit := x.activeLimit(); x.Agent.Load.Active > limit {
				x.over(LimitActive, int64(limit), 0)
			}
			return nil
		},
		Budget: func(x *Ctx, _ *workAcceptOffer, _ *accepting) error { return x.paused(x.Item) },
		Emit:   acceptEmit,
	})
}

// agentsOnly refuses the kinds that only an Agent can mean.
func agentsOnly(x *Ctx) error {
	if x.Actor().Type != protocol.ActorAgent {
		return forbid("agent_required")
	}
	return nil
}

// activeLimit is min(policy, the card's maxConcurrency).
func (x *Ctx) activeLimit() int {
	return min(x.limits().ActiveWorkItems, int(x.Agent.Card.MaxConcurrency))
}

// offer is P18: the offer exists on this WorkItem.
func (x *Ctx) offer(id string) (*protocol.Offer, error) {
	for i := range x.Item.Offers {
		if o := &x.Item.Offers[i]; o.OfferID == id {
			return o, nil
		}
	}
	return nil, invalid("unknown_reference")
}

// ownOffer is P18b.
func (x *Ctx) ownOffer(o *protocol.Offer) error {
	if o.AgentID != x.Actor().ID {
		return forbid("not_candidate")
	}
	return nil
}

// offerOpen is P20 (COMMANDS.md E3): whoever lost a race learns so, whatever
// else became of the offer; anything else that is not pending came too late.
func (x *Ctx) offerOpen(o *protocol.Offer) error {
	w := x.Item
	taken := w.Owner != nil && !w.Custody && w.Owner.AgentID != o.AgentID
	switch {
	case taken, o.Status == OfferLostRace, o.Status == OfferAccepted:
		return refuse(protocol.CodeWorkAlreadyOwned, o.Status)
	case o.Status != OfferPending:
		return refuse(protocol.CodeWorkOfferExpired, o.Status)
	case !leases.Before(x.World.Now, o.ExpiresAt):
		return refuse(protocol.CodeWorkOfferExpired, OfferExpired)
	}
	return nil
}

func acceptValues(x *Ctx, p *workAcceptOffer, s *accepting) error {
	pins, missing := leases.Pins(x.Agent.Card.Capabilities, x.Item.Contract.RequiredCapabilities)
	if len(missing) > 0 {
		return forbid("capability")
	}
	s.pins = pins
	if !leases.Before(x.World.Now, x.Item.Contract.Deadline) {
		return invalid("deadline")
	}
	expiresAt, err := x.until(x.World.Org.Leases.Ownership, p.OwnershipLeaseSeconds)
	if err != nil {
		return err
	}
	s.expiresAt, s.startBy = expiresAt, expiresAt
	if p.StartBy != "" {
		if !leases.Before(x.World.Now, p.StartBy) || leases.Compare(p.StartBy, expiresAt) > 0 {
			return invalid("deadline")
		}
		s.startBy = p.StartBy
	}
	return nil
}

func acceptEmit(x *Ctx, p *workAcceptOffer, s *accepting) error {
	w, actor := x.Item, x.Actor()
	offers := rewriteOffers(w.Offers, x.World.Now)
	for i := range offers {
		switch o := &offers[i]; {
		case o.OfferID == p.OfferID:
			o.Status = OfferAccepted
		case o.Status == OfferPending:
			o.Status = OfferLostRace
		}
	}
	epoch := w.OwnershipEpoch + 1
	lease := leases.Open(protocol.LeaseOwnership, leases.Terms{
		LeaseID: x.Mint(), MissionID: w.MissionID, GroupID: w.GroupID, WorkItemID: w.WorkItemID,
		HolderAgentID: actor.ID, SessionEpoch: x.Command.Envelope.SessionEpoch, OwnershipEpoch: epoch,
		Now: x.World.Now, ExpiresAt: s.expiresAt, StartBy: s.startBy, Grace: x.World.Org.Leases.Grace,
	})
	card := x.Agent.Card.CardVersion
	x.emit("work.offer.accepted", &WorkOfferAccepted{
		WorkItemID: w.WorkItemID, State: protocol.WorkQueued, OfferID: p.OfferID, Offers: offers,
		Owner: protocol.Owner{
			AgentID: actor.ID, AgentCardVersion: card, CapabilityPins: s.pins, OwnershipEpoch: epoch,
			OwnershipLeaseID: lease.LeaseID, AcceptedAt: x.Now,
		},
		OwnershipEpoch: epoch, OwnershipLease: lease, AgentCardVersion: card, CapabilityPins: s.pins,
		ScheduleEstimate: p.ScheduleEstimate,
	}, emission{WorkItem: w, Primary: true})
	if x.Membership.State == membershipStateProvisional {
		x.activate(x.Membership)
	}
	return nil
}
