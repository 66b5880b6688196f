package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

func TestCardsFollowTheRulesOfRegistration(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	agent, other := registrytest.Agent("worker"), registrytest.Agent("other")
	org.AddAgent(t, other)
	first := org.AddAgent(t, agent)
	revision := head(t, org)

	next := func(change func(*protocol.AgentCard)) protocol.AgentCard {
		card := first
		card.CardVersion, card.IssuedAt = 2, registrytest.Now()
		card.PublicKeys = slices.Clone(first.PublicKeys)
		change(&card)
		return card
	}
	sign := func(card protocol.AgentCard, s trust.Signer) []byte {
		document, _, err := trust.SignDocument(protocol.KindAgentCard, &card, s)
		if err != nil {
			t.Fatal(err)
		}
		return document
	}
	service := registrytest.Service(registry.RoleRegistry)
	addKey := func(k protocol.PublicKey) func(*protocol.AgentCard) {
		return func(c *protocol.AgentCard) { c.PublicKeys = append(c.PublicKeys, k) }
	}
	fresh := registrytest.Signer(protocol.ActorAgent, "worker", 2)
	key := func(s trust.Signer, validFrom string) protocol.PublicKey {
		return protocol.PublicKey{KeyID: s.KeyID, Algorithm: trust.Algorithm, PublicKey: s.PublicKey(), ValidFrom: validFrom}
	}
	for _, tc := range []struct {
		rule string
		card protocol.AgentCard
		by   trust.Signer
		code protocol.Code
	}{
		{"same version", next(func(c *protocol.AgentCard) { c.CardVersion = 1 }), service, protocol.CodeRevisionConflict},
		{"version skipped", next(func(c *protocol.AgentCard) { c.CardVersion = 3 }), service, protocol.CodeRevisionConflict},
		{"foreign Organization", next(func(c *protocol.AgentCard) { c.OrganizationID = "urn:test:elsewhere" }), service, protocol.CodeAuthForbidden},
		{"issuer without the duty", next(func(*protocol.AgentCard) {}), registrytest.Service(registry.RoleMetering), protocol.CodeAuthForbidden},
		{"key of another Agent", next(addKey(key(other, registrytest.Now()))), service, protocol.CodeAuthInvalidSignature},
		{"public key under another id", next(addKey(protocol.PublicKey{
			KeyID: fresh.KeyID, Algorithm: trust.Algorithm, PublicKey: agent.PublicKey(), ValidFrom: registrytest.Now(),
		})), service, protocol.CodeAuthInvalidSignature},
		{"small-order key", next(addKey(protocol.PublicKey{
			KeyID: fresh.KeyID, Algorithm: trust.Algorithm, ValidFrom: registrytest.Now(),
			PublicKey: "7P______________________________________38",
		})), service, protocol.CodeAuthInvalidSignature},
		{"one key listed twice", next(addKey(first.PublicKeys[0])), service, protocol.CodeAuthInvalidSignature},
		{"other validFrom for a known key", next(func(c *protocol.AgentCard) { c.PublicKeys[0].ValidFrom = registrytest.At(time.Minute) }), service, protocol.CodeAuthInvalidSignature},
		{"new key backdated", next(addKey(key(fresh, registrytest.At(-2*time.Hour)))), service, protocol.CodeInvalidCommand},
		{"capability twice", next(func(c *protocol.AgentCard) { c.Capabilities = append(slices.Clone(c.Capabilities), c.Capabilities[0]) }), service, protocol.CodeInvalidCommand},
		{"issued in the future", next(func(c *protocol.AgentCard) { c.IssuedAt = registrytest.At(time.Minute) }), service, protocol.CodeInvalidCommand},
	} {
		err := org.Service.RegisterSignedCard(t.Context(), registrar, sign(tc.card, tc.by))
		if codeOf(err) != tc.code {
			t.Errorf("%s: %v, want %s", tc.rule, err, tc.code)
		}
	}
	tampered := sign(next(func(*protocol.AgentCard) {}), service)
	tampered = []byte(strings.Replace(string(tampered), `"maxConcurrency":1`, `"maxConcurrency":9`, 1))
	if err := org.Service.RegisterSignedCard(t.Context(), registrar, tampered); codeOf(err) != protocol.CodeAuthInvalidSignature {
		t.Errorf("tampered card: %v", err)
	}
	if after := head(t, org); after != revision {
		t.Errorf("refusals moved the revision from %d to %d", revision, after)
	}

	end := registrytest.At(time.Hour)
	org.AddCard(t, next(func(c *protocol.AgentCard) {
		c.PublicKeys = append(c.PublicKeys, key(fresh, registrytest.Now()))
		c.PublicKeys[1].ValidUntil = end
	}))
	record, err := org.Service.Key(t.Context(), fresh.KeyID)
	if err != nil || record.ValidUntil != end || record.Principal != agent.Principal {
		t.Errorf("key of a card: %+v %v", record, err)
	}
	third := next(func(c *protocol.AgentCard) { c.CardVersion, c.Status = 3, registry.CardRevoked })
	document := org.AddCard(t, third)
	got, err := org.Service.Card(t.Context(), agent.Principal.ID, 0)
	if err != nil || string(got) != string(document) {
		t.Errorf("present card: %s %v", got, err)
	}
	if got, err := org.Service.Card(t.Context(), agent.Principal.ID, 1); err != nil || !strings.Contains(string(got), `"cardVersion":1`) {
		t.Errorf("first version: %s %v", got, err)
	}
	if _, err := org.Service.Card(t.Context(), agent.Principal.ID, 9); !errors.Is(err, registry.ErrUnknown) {
		t.Errorf("version that does not exist: %v", err)
	}
	view, err := org.Directory.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if card, _ := view.Agent(agent.Principal.ID); card.Version != 3 || card.Alive(time.Now()) {
		t.Errorf("revoked Agent in the view: %+v", card)
	}
}

func TestACardCannotExtendAKeyThatEnds(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	agent := registrytest.Agent("worker")
	card := org.AddAgent(t, agent)
	revoked := registrytest.At(time.Minute)
	org.EndKey(t, agent.KeyID, "", revoked)
	again := func(change func(k *protocol.PublicKey)) error {
		next := card
		next.CardVersion, next.IssuedAt = card.CardVersion+1, registrytest.Now()
		next.PublicKeys = slices.Clone(card.PublicKeys)
		change(&next.PublicKeys[0])
		document, _, err := trust.SignDocument(protocol.KindAgentCard, &next, registrytest.Service(registry.RoleRegistry))
		if err != nil {
			t.Fatal(err)
		}
		if err := org.Service.RegisterSignedCard(t.Context(), registrar, document); err != nil {
			return err
		}
		card = next
		return nil
	}
	if err := again(func(k *protocol.PublicKey) { k.RevokedAt = registrytest.At(time.Hour) }); codeOf(err) != protocol.CodeAuthInvalidSignature {
		t.Errorf("card that moves revokedAt later: %v", err)
	}
	if err := again(func(*protocol.PublicKey) {}); err != nil {
		t.Errorf("card that does not mention revokedAt: %v", err)
	}
	record, err := org.Service.Key(t.Context(), agent.KeyID)
	if err != nil || record.RevokedAt != revoked || len(record.History) != 1 {
		t.Errorf("key after the cards: %+v %v", record, err)
	}
	earlier := registrytest.At(30 * time.Second)
	if err := again(func(k *protocol.PublicKey) { k.RevokedAt = earlier }); err != nil {
		t.Errorf("card that moves revokedAt earlier: %v", err)
	}
	if record, err = org.Service.Key(t.Context(), agent.KeyID); err != nil || record.RevokedAt != earlier {
		t.Errorf("key after an earlier boundary: %+v %v", record, err)
	}
}

func TestUnsignedCardsAreSignedOrRefused(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	agent := registrytest.Agent("unsigned")
	register := func(service *registry.Service, change func(*protocol.AgentCard)) ([]byte, error) {
		card := registrytest.Card(agent)
		change(&card)
		return service.RegisterCard(t.Context(), registrar, unsigned(t, card))
	}
	if _, err := register(org.Service, func(c *protocol.AgentCard) { c.IssuedAt = registrytest.At(-time.Hour) }); codeOf(err) != protocol.CodeInvalidCommand {
		t.Errorf("issued before our key was valid: %v", err)
	}
	if _, err := register(org.Service, func(c *protocol.AgentCard) { c.IssuedAt = "2026-01-01T00:00:00+00:00" }); codeOf(err) != protocol.CodeInvalidCommand {
		t.Errorf("issuedAt not in UTC Z: %v", err)
	}
	document, err := register(org.Service, func(*protocol.AgentCard) {})
	if err != nil {
		t.Fatal(err)
	}
	view, err := org.Directory.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, failure := trust.VerifyBytes(protocol.KindAgentCard, document, view.Evidence); failure != nil {
		t.Errorf("the signed card does not verify: %v", failure)
	}

	// With an Authority, the Registry does not register by itself: it commands.
	var command []byte
	_, commanding := org.Replica(t, func(_ context.Context, body []byte) ([]byte, bool, *protocol.Error) {
		command = body
		return []byte(`{}`), false, nil
	})
	next := func(c *protocol.AgentCard) {
		c.CardVersion, c.PublicKeys = 2, slices.Clone(c.PublicKeys)
		known, err := org.Service.Key(t.Context(), agent.KeyID)
		if err != nil {
			t.Fatal(err)
		}
		c.PublicKeys[0].ValidFrom = known.ValidFrom
	}
	document, err = register(commanding, next)
	if err != nil {
		t.Fatal(err)
	}
	verified, failure := trust.VerifyBytes(protocol.KindCommand, command, view.Evidence)
	if failure != nil {
		t.Fatalf("the Registry's Command does not verify: %v", failure)
	}
	embedded := verified.Value.Member("payload").Member("agentCard")
	if verified.Value.Member("kind").Str() != protocol.CommandAgentCardRegister || string(embedded.Raw()) != string(document) {
		t.Errorf("command: %s", command)
	}
	if card, _ := view.Agent(agent.Principal.ID); card.Version != 1 {
		t.Errorf("the Registry registered version %d itself", card.Version)
	}
	// What the Authority calls in its transaction.
	tx, err := org.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	hash, err := trust.SigningHash(embedded)
	if err != nil {
		t.Fatal(err)
	}
	if err := registry.ApplyCard(t.Context(), tx, org.Directory, document, hash, registrar.Principal, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if view, err = org.Directory.Current(t.Context()); err != nil {
		t.Fatal(err)
	}
	if card, _ := view.Agent(agent.Principal.ID); card.Version != 2 {
		t.Errorf("after the Command: version %d", card.Version)
	}
}

func TestListsAreFilteredOrderedAndPaged(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	var want []string
	for _, name := range []string{"c", "a", "d", "b"} {
		s := registrytest.Agent(name)
		card := registrytest.Card(s)
		if name == "b" {
			card.Status = registry.CardDeprecated
		}
		if name != "d" {
			card.Capabilities[0].ID = "code.review"
		}
		org.AddCard(t, card)
		want = append(want, s.Principal.ID)
	}
	want = append(want, registrytest.Agent("context-generator").Principal.ID)
	slices.Sort(want)
	list := func(f registry.CardFilter) (ids []string) {
		t.Helper()
		for {
			documents, next, err := org.Service.Cards(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			if len(documents) > f.Limit {
				t.Fatalf("page of %d", len(documents))
			}
			for _, d := range documents {
				var card struct{ AgentID string }
				if err := json.Unmarshal(d, &card); err != nil {
					t.Fatal(err)
				}
				ids = append(ids, card.AgentID)
			}
			if next == "" {
				return ids
			}
			f.After = next
		}
	}
	for _, limit := range []int{1, 2, 5, 100} {
		if diff := cmp.Diff(want, list(registry.CardFilter{Limit: limit})); diff != "" {
			t.Errorf("all, pages of %d: %s", limit, diff)
		}
	}
	id := func(name string) string { return registrytest.Agent(name).Principal.ID }
	if diff := cmp.Diff([]string{id("a"), id("b"), id("c")}, list(registry.CardFilter{Capability: "code.review", Limit: 2})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{id("b")}, list(registry.CardFilter{Capability: "code.review", Status: registry.CardDeprecated, Limit: 2})); diff != "" {
		t.Error(diff)
	}
}

// unsigned is a card as a client posts it: without signature.
func unsigned(t *testing.T, card protocol.AgentCard) strictjson.Value {
	t.Helper()
	text, err := strictjson.Marshal(card)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := strictjson.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return doc.Root()
}
