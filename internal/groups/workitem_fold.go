package groups

import (
	"crypto/sha256"
	"slices"
	"time"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Folding helpers for WorkItems: every change of an owner, an offer, a lease or
// a contract goes through one of these, because indexes hang on them.

// workItem returns the WorkItem an Event revises, with its revision and time
// set; a missing one is an integrity error.
func (s *State) workItem(ev *Event, id, state string) (*WorkItem, error) {
	w, ok := s.WorkItems[id]
	if !ok {
		return nil, integrity(ev, "revises unknown WorkItem %s", id)
	}
	if ev.WorkItemID != id {
		return nil, integrity(ev, "envelope names WorkItem %q, payload %q", ev.WorkItemID, id)
	}
	was := w.Unfinished()
	w.Revision, w.UpdatedAt, w.State = *ev.AggregateRevision, ev.OccurredAt, state
	if was != w.Unfinished() {
		s.trackContract(w)
	}
	return w, nil
}

// setOwner records who owns the WorkItem now; nil clears the record and keeps
// the Ownership Epoch (COMMANDS.md E10).
func (s *State) setOwner(w *WorkItem, owner *protocol.Owner) {
	if w.Owner != nil {
		unindex(s.owned, w.Owner.AgentID, w.WorkItemID)
	}
	w.Owner, w.OwnerFenced, w.Custody = owner, false, false
	if owner == nil {
		return
	}
	w.OwnershipEpoch = owner.OwnershipEpoch
	if w.Owners == nil {
		w.Owners = map[string]int64{}
	}
	w.Owners[owner.AgentID] = owner.OwnershipEpoch
	index(s.owned, owner.AgentID, w.WorkItemID)
	for i := range w.Requests {
		if r := &w.Requests[i]; r.Status == "pending" && r.OwnershipEpoch != owner.OwnershipEpoch {
			r.Status = "superseded"
		}
	}
}

// fenceOwner keeps the owner record and makes it dead for good.
func (s *State) fenceOwner(w *WorkItem) { w.OwnerFenced = true }

// setLease makes a lease current under its type.
func (s *State) setLease(w *WorkItem, l protocol.Lease) {
	switch l.LeaseType {
	case protocol.LeaseOwnership:
		w.Ownership = &l
	case protocol.LeaseExecution:
		w.Execution = &l
	case protocol.LeaseBlocked:
		w.Blocked = &l
	}
	s.leaseOwners[l.LeaseID] = w.WorkItemID
}

// closeLeases moves leases out of their slots into the closed ones.
func (s *State) closeLeases(w *WorkItem, closed []protocol.Lease) {
	for _, l := range closed {
		for _, slot := range []**protocol.Lease{&w.Ownership, &w.Execution, &w.Blocked} {
			if *slot != nil && (*slot).LeaseID == l.LeaseID {
				*slot = nil
			}
		}
		s.leaseOwners[l.LeaseID] = w.WorkItemID
		at := slices.IndexFunc(w.ClosedLeases, func(c protocol.Lease) bool { return c.LeaseID == l.LeaseID })
		if at >= 0 {
			w.ClosedLeases = slices.Clone(w.ClosedLeases)
			w.ClosedLeases[at] = l
			continue
		}
		w.ClosedLeases = append(w.ClosedLeases[:len(w.ClosedLeases):len(w.ClosedLeases)], l)
	}
}

// setOffers replaces the offers and remembers who ever held one.
func (s *State) setOffers(w *WorkItem, offers []protocol.Offer) {
	w.Offers = offers
	for _, o := range offers {
		index(s.offered, o.AgentID, w.WorkItemID)
	}
}

// withdraw returns the offers with the named ones withdrawn.
func withdraw(offers []protocol.Offer, ids []string) []protocol.Offer {
	if len(ids) == 0 {
		return offers
	}
	out := slices.Clone(offers)
	for i := range out {
		if slices.Contains(ids, out[i].OfferID) {
			out[i].Status = OfferWithdrawn
		}
	}
	return out
}

// Offer statuses.
const (
	OfferPending   = "pending"
	OfferAccepted  = "accepted"
	OfferDeclined  = "declined"
	OfferWithdrawn = "withdrawn"
	OfferExpired   = "expired"
	OfferLostRace  = "lost_race"
)

// pendingOffers lists the ids of offers nobody has answered, expired or not.
func pendingOffers(offers []protocol.Offer) []string {
	ids := []string{}
	for _, o := range offers {
		if o.Status == OfferPending {
			ids = append(ids, o.OfferID)
		}
	}
	return ids
}

// liveOffers lists the ids of offers that somebody could still accept at now.
func (w *WorkItem) liveOffers(now time.Time) []string {
	return pendingOffers(rewriteOffers(w.Offers, now))
}

// rewriteOffers is what an Event that rewrites offers writes: pending ones past
// their expiry are recorded as expired (COMMANDS.md 4.4).
func rewriteOffers(offers []protocol.Offer, now time.Time) []protocol.Offer {
	out := slices.Clone(offers)
	for i := range out {
		if out[i].Status == OfferPending && !leases.Before(now, out[i].ExpiresAt) {
			out[i].Status = OfferExpired
		}
	}
	return out
}

// Leases are all open leases of the WorkItem.
func (w *WorkItem) openLeases() []*protocol.Lease {
	var out []*protocol.Lease
	for _, l := range []*protocol.Lease{w.Ownership, w.Execution, w.Blocked} {
		if l != nil {
			out = append(out, l)
		}
	}
	return out
}

// closing returns the WorkItem's open leases as an Event closes them; the
// Ownership Lease ends in its own state.
func (w *WorkItem) closing(now time.Time, state, ownershipState, reason string) []protocol.Lease {
	out := []protocol.Lease{}
	for _, l := range w.openLeases() {
		s := state
		if l.LeaseType == protocol.LeaseOwnership {
			s = ownershipState
		}
		out = append(out, leases.Close(*l, now, s, reason))
	}
	return out
}

// Lease returns a lease of the WorkItem, open or closed.
func (w *WorkItem) Lease(id string) (protocol.Lease, bool) {
	for _, l := range w.openLeases() {
		if l.LeaseID == id {
			return *l, true
		}
	}
	for _, l := range w.ClosedLeases {
		if l.LeaseID == id {
			return l, true
		}
	}
	return protocol.Lease{}, false
}

// trackContract keeps the duplicate_decomposition index in step with the
// WorkItem's contract, parent and state.
func (s *State) trackContract(w *WorkItem) {
	if w.key != (contractKey{}) {
		s.untrack(w.key, w.WorkItemID)
		w.key = contractKey{}
	}
	if w.Unfinished() {
		w.key = contractKeyOf(w.ParentWorkItemID, &w.Contract)
		s.track(w.key, w.WorkItemID)
	}
}

func (s *State) track(k contractKey, id string) {
	if s.contracts[k] == nil {
		s.contracts[k] = map[string]bool{}
	}
	s.contracts[k][id] = true
}

func (s *State) untrack(k contractKey, id string) {
	delete(s.contracts[k], id)
	if len(s.contracts[k]) == 0 {
		delete(s.contracts, k)
	}
}

// Duplicate reports that an unfinished WorkItem or open Proposal other than
// except has an equal contract under the same parent.
func (s *State) Duplicate(parentWorkItemID string, c *protocol.WorkContract, except string) bool {
	for id := range s.contracts[contractKeyOf(parentWorkItemID, c)] {
		if id != except {
			return true
		}
	}
	return false
}

// contractKeyOf digests a contract without its version.
func contractKeyOf(parent string, c *protocol.WorkContract) contractKey {
	plain := *c
	plain.ContractVersion = 0
	b, err := strictjson.Marshal(&plain)
	if err != nil {
		// A contract that came out of JSON goes back into it.
		panic(err)
	}
	return contractKey{parent, sha256.Sum256(b)}
}

func index(m map[string]map[string]bool, key, id string) {
	if m[key] == nil {
		m[key] = map[string]bool{}
	}
	m[key][id] = true
}

func unindex(m map[string]map[string]bool, key, id string) {
	delete(m[key], id)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// sortedIDs lists a set in byte order.
func sortedIDs(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for id := range set {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// eventTime is occurredAt as a time; Events have whole microseconds.
func eventTime(ev *Event) (time.Time, error) {
	at, err := lexical.ParseTimestamp(ev.OccurredAt)
	if err != nil {
		return time.Time{}, integrity(ev, "occurredAt is not a time")
	}
	return at.Time(), nil
}
