package authority_test

import (
	"testing"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/authority/authoritytest"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// A Command that would cause more Events than the bound is refused before the
// commit and leaves nothing; one that ends work is never refused for its size
// (COMMANDS.md 8.12).
func TestMostEventsOfOneCommand(t *testing.T) {
	r := authoritytest.Start(t, authoritytest.Options{Change: func(o *authority.Options) { o.MostEvents = 1 }})
	owner, coordinator, worker := r.AddHuman("owner"), r.AddAgent("coordinator"), r.AddAgent("worker")
	m := r.NewMission(owner, coordinator)
	m.Join(worker, "worker")
	for range 3 {
		id := m.Authorize()
		m.Must(worker, m.Accept(id, m.OfferTo(id, worker)[worker.Principal.ID]))
	}
	open := m.Authorize()
	before := m.State().Head

	// An offer that revises the contract is two Events.
	offer := m.Offer(open, worker)
	var payload map[string]any
	doc, err := strictjson.Parse(offer.Payload)
	if err != nil {
		t.Fatal(err)
	}
	payload = map[string]any{}
	for name, v := range doc.Root().Members() {
		payload[name] = protocol.Raw(v.Raw())
	}
	revised := m.Contract()
	revised["contractVersion"] = 2
	payload["contract"] = revised
	offer.Payload = authoritytest.Payload(t, payload)
	_, refusal := m.Send(coordinator, offer)
	if refusal == nil || refusal.Code != protocol.CodeInternalError || !refusal.Retryable {
		t.Errorf("two Events under a bound of one: %v", refusal)
	}
	if got := m.State().Head; got != before {
		t.Errorf("head %d after a refusal, was %d", got, before)
	}

	// The end of a Membership with three owned WorkItems is four.
	m.Must(coordinator, protocol.Command{Kind: "membership.end", Payload: authoritytest.Payload(t, map[string]any{"member": worker.Principal})})
	if got := m.State().Head; got != before+4 {
		t.Errorf("head %d after the end of a Membership, was %d", got, before)
	}
}
