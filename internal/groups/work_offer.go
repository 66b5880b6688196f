package groups

import (
	"slices"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// work.offer: candidates are asked, an owner that is no longer live is fenced.

type offering struct {
	grant      *protocol.DelegationGrant
	candidates []*Agent
	contract   *protocol.WorkContract // the one offered: revised or present
	expiresAt  string
	// uncovered says that a candidate cannot read the whole Group.
	uncovered bool
}

func workOfferKind() Kind {
	return kind(Kind{
		Kind: "work.offer", WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem, Shape: shapeWorkOffer,
		Capacities: []CapacityRow{
			{CapacityCoordinator, ScopeWorkOffer},
			{CapacityDelegate, ScopeWorkDelegate},
			{CapacityMissionOwner, ScopeWorkOverride},
		},
		Documents: []DocumentRow{{"contextPackage", protocol.KindContextPackage, false}},
	}, plan[workOffer, offering]{
		Judge: func(x *Ctx, p *workOffer) (Capacity, bool) { return x.delegate(&p.delegated) },
		Extensions: func(x *Ctx, p *workOffer, _ *offering) error {
			if p.Contract != nil {
				if err := x.extensionsIn(p.Contract.Extensions); err != nil {
					return err
				}
			}
			return x.contextExtensions(p.ContextPackage)
		},
		Authority: func(x *Ctx, p *workOffer, s *offering) (err error) {
			if s.grant, err = x.delegationAuthority(&p.delegated); err != nil {
				return err
			}
			return x.contextSigner(p.ContextPackage)
		},
		References: offerReferences,
		Revision:   itemRevision[workOffer, offering],
		State:      offerState,
		Values:     offerValues,
		Budget:     offerBudget,
		Emit:       offerEmit,
	})
}

func offerReferences(x *Ctx, p *workOffer, s *offering) error {
	for _, id := range p.CandidateAgentIDs {
		a, err := x.registeredAgent(id)
		if err != nil {
			return err
		}
		s.candidates = append(s.candidates, a)
	}
	s.contract = &x.Item.Contract
	if p.Contract != nil {
		s.contract = p.Contract
		if err := x.knownDependencies(p.Contract, x.Item.WorkItemID); err != nil {
			return err
		}
	}
	return x.bindContext(p.ContextPackage, x.Item.WorkItemID)
}

func offerState(x *Ctx, _ *workOffer, _ *offering) error {
	if err := missionActive(x); err != nil {
		return err
	}
	w := x.Item
	if err := x.itemRow(); err != nil {
		return err
	}
	if w.ChildIsLive() {
		return wrongState("child_live", w.State)
	}
	live, err := x.ownerLive(w)
	if err != nil {
		return err
	}
	if live {
		return wrongState("owner_live", w.State)
	}
	return nil
}

func offerValues(x *Ctx, p *workOffer, s *offering) error {
	if p.Contract != nil && p.Mode == offerExtend {
		return invalid("mode")
	}
	for _, a := range s.candidates {
		m, ok := x.Group.MemberNow(protocol.Actor{Type: protocol.ActorAgent, ID: a.ID}, x.World.Now)
		if !ok || !holdsScope(m, ScopeWorkAcceptOffer) {
			return invalid("candidate")
		}
		s.uncovered = s.uncovered || m.VisibilityStartSequence > 1
	}
	for _, a := range s.candidates {
		if !leases.Match(a.Card.Capabilities, s.contract.RequiredCapabilities) {
			return invalid("capability_mismatch")
		}
	}
	if !basisHolds(&p.SelectionBasis, s.contract, s.candidates) {
		return invalid("selection_basis")
	}
	if !leases.Before(x.World.Now, s.contract.Deadline) {
		return invalid("deadline")
	}
	if p.Contract != nil {
		w := x.Item
		if err := x.contractValues(p.Contract, w.Contract.ContractVersion+1, func() error {
			if x.Group.reaches(p.Contract.DependencyWorkItemIDs, w.WorkItemID) {
				return invalid("cycle")
			}
			return nil
		}); err != nil {
			return err
		}
	}
	if s.grant != nil {
		if err := x.grantScope(s.grant, x.Item, 0, s.contract); err != nil {
			return err
		}
	}
	expiresAt, err := x.until(x.World.Org.Leases.Offer, p.OfferExpiresInSeconds)
	if err != nil {
		return err
	}
	// An offer that outlives the contract could be accepted to no effect.
	if leases.Compare(s.contract.Deadline, expiresAt) < 0 {
		expiresAt = s.contract.Deadline
	}
	s.expiresAt = expiresAt
	return nil
}

// basisHolds checks a selection basis against the contract and every candidate
// (COMMANDS.md 3.5).
func basisHolds(b *protocol.SelectionBasis, c *protocol.WorkContract, candidates []*Agent) bool {
	if !b.AuthorizationEligible || !sameCapabilities(b.RequiredCapabilities, c.RequiredCapabilities) {
		return false
	}
	for _, a := range candidates {
		for _, match := range b.VerifiedMatches {
			if !slices.ContainsFunc(a.Card.Capabilities, func(held protocol.Capability) bool {
				return leases.Satisfies(protocol.CapabilityRef{ID: held.ID, Version: held.Version}, match)
			}) {
				return false
			}
		}
	}
	return true
}

// sameCapabilities compares two lists as sets.
func sameCapabilities(a, b []protocol.CapabilityRef) bool {
	within := func(x, y []protocol.CapabilityRef) bool {
		for _, c := range x {
			if !slices.Contains(y, c) {
				return false
			}
		}
		return true
	}
	return within(a, b) && within(b, a)
}

func offerBudget(x *Ctx, p *workOffer, s *offering) error {
	w, limit := x.Item, budget.FromBudget(s.contract.Budget)
	var err error
	switch {
	case w.State == protocol.WorkFailed:
		err = x.Group.Ledger.CheckReopen(w.Account(), limit)
	case p.Contract != nil:
		err = x.Group.Ledger.CheckLimit(w.Account(), limit)
	}
	if err != nil {
		return overBudget("", err)
	}
	if s.grant != nil {
		return x.grantBudget(s.grant, w.WorkItemID, s.contract.Budget)
	}
	return nil
}

func offerEmit(x *Ctx, p *workOffer, s *offering) error {
	w, now := x.Item, x.World.Now
	offers := rewriteOffers(w.Offers, now)
	if p.Contract != nil {
		withdrawn := pendingOffers(offers)
		x.emit("work.contract.revised", &WorkContractRevised{
			WorkItemID: w.WorkItemID, State: w.State, Contract: *p.Contract,
			ContractVersion: p.Contract.ContractVersion, Cause: revisedByOffer, WithdrawnOfferIDs: withdrawn,
		}, emission{WorkItem: w})
		offers = withdraw(offers, withdrawn)
	}
	payload := &WorkOfferCreated{
		WorkItemID: w.WorkItemID, State: protocol.WorkOffered,
		CreatedOfferIDs: []string{}, ExtendedOfferIDs: []string{}, WithdrawnOfferIDs: []string{},
		SelectionBasis: p.SelectionBasis, ContractVersion: s.contract.ContractVersion,
		ClosedLeases:   []protocol.Lease{},
		ContextPackage: p.ContextPackage, DelegationGrantID: p.DelegationGrantID,
		EmergencyOverride: p.EmergencyOverride,
	}
	if p.Mode != offerExtend {
		payload.WithdrawnOfferIDs = pendingOffers(offers)
		offers = withdraw(offers, payload.WithdrawnOfferIDs)
	}
	for _, a := range s.candidates {
		at := slices.IndexFunc(offers, func(o protocol.Offer) bool {
			return o.AgentID == a.ID && o.Status == OfferPending
		})
		if at >= 0 {
			offers[at].ExpiresAt, offers[at].AgentCardVersion = s.expiresAt, a.Card.CardVersion
			payload.ExtendedOfferIDs = append(payload.ExtendedOfferIDs, offers[at].OfferID)
			continue
		}
		offer := protocol.Offer{
			OfferID: x.Mint(), AgentID: a.ID, AgentCardVersion: a.Card.CardVersion,
			ExpiresAt: s.expiresAt, Status: OfferPending,
		}
		offers = append(offers, offer)
		payload.CreatedOfferIDs = append(payload.CreatedOfferIDs, offer.OfferID)
	}
	payload.Offers = offers
	if w.Owner != nil {
		payload.PreviousOwner = w.Owner
		payload.ClosedLeases = w.closing(now, leases.Revoked, leases.Revoked, leases.ReasonOwnerLapsed)
	}
	if payload.ContextPackage == nil && s.uncovered {
		made, err := x.generateContext(x.Group, w.WorkItemID)
		if err != nil {
			return err
		}
		payload.ContextPackage = made
	}
	if p.EmergencyOverride != nil {
		payload.PolicyLogEntryID = x.Mint()
	}
	x.emit("work.offer.created", payload, emission{WorkItem: w, Primary: true})
	return nil
}

// Causes of work.contract.revised.
const (
	revisedByOffer      = "offer"
	revisedByDependency = "dependency_added"
)
