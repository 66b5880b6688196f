package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

var registrar = registry.Author{Principal: registrytest.Service(registry.RoleRegistry).Principal}

func codeOf(err error) protocol.Code {
	var perr *protocol.Error
	if errors.As(err, &perr) {
		return perr.Code
	}
	return ""
}

func head(t *testing.T, org *registrytest.Org) (revision int64) {
	t.Helper()
	if err := org.Pool.QueryRow(t.Context(), `SELECT revision FROM registry_head`).Scan(&revision); err != nil {
		t.Fatal(err)
	}
	return revision
}

func count(t *testing.T, org *registrytest.Org, query string, args ...any) (n int) {
	t.Helper()
	if err := org.Pool.QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestFoundingIsCompleteAndRepeatable(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	view, err := org.Directory.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range append(registry.ServiceRoles(), registry.RoleContextGenerator) {
		if len(view.Services(role)) != 1 {
			t.Errorf("role %s: %v", role, view.Services(role))
		}
	}
	if view.IsService(registrytest.Human("mission-owner").Principal) || view.IsService(registrytest.Agent("context-generator").Principal) {
		t.Error("a Principal that is no service counts as one")
	}
	if got, want := view.Evidence.Len(), len(registry.ServiceRoles())+2; got != want {
		t.Errorf("%d keys, want %d", got, want)
	}
	card, ok := view.Agent(registrytest.Agent("context-generator").Principal.ID)
	if !ok || card.Status != registry.CardActive {
		t.Fatalf("context generator's card: %+v", card)
	}
	if _, failure := trust.VerifyBytes(protocol.KindAgentCard, card.Document, view.Evidence); failure != nil {
		t.Errorf("founded card does not verify: %v", failure)
	}
	profiles := view.Profiles()
	if len(profiles) != 1 || profiles[0].Profile.ProfileURI != registry.OwnProfileURI || profiles[0].Profile.Critical {
		t.Fatalf("profiles: %+v", profiles)
	}
	if _, failure := trust.VerifyBytes(protocol.KindExtensionProfile, profiles[0].Document, view.Evidence); failure != nil {
		t.Errorf("own profile does not verify: %v", failure)
	}
	if n := count(t, org, `SELECT count(*) FROM org_events`); n != 1 {
		t.Errorf("%d Organization facts, want the founded card's", n)
	}
	if n := count(t, org, `SELECT count(*) FROM admissions`); n != 2 {
		t.Errorf("%d admission records, want those of card and profile", n)
	}

	before := head(t, org)
	if err := org.Service.Bootstrap(t.Context(), org.Founding); err != nil {
		t.Fatalf("second start: %v", err)
	}
	if after := head(t, org); after != before {
		t.Errorf("a second start moved the revision from %d to %d", before, after)
	}
	other := org.Founding
	other.OrganizationID = "urn:test:other"
	if err := org.Service.Bootstrap(t.Context(), other); !errors.Is(err, registry.ErrOtherOrganization) {
		t.Errorf("start for another Organization: %v", err)
	}
	contradiction := org.Founding
	contradiction.Principals = slices.Clone(contradiction.Principals)
	contradiction.Principals[1].PublicKey = registrytest.Agent("stranger").PublicKey()
	var fault *trust.BindingFault
	if err := org.Service.Bootstrap(t.Context(), contradiction); !errors.As(err, &fault) {
		t.Errorf("start with other key material under a known id: %v", err)
	}
}

func TestFoundersKeysMayBeOlderThanTheFounding(t *testing.T) {
	t.Parallel()
	org := registrytest.NewEmpty(t)
	s := registrytest.Service(registry.RoleRegistry)
	old := registrytest.At(-30 * 24 * time.Hour)
	founding := registry.Founding{OrganizationID: registrytest.OrganizationID, Principals: []registry.Founder{
		{Role: registry.RoleRegistry, Principal: s.Principal, KeyID: s.KeyID, PublicKey: s.PublicKey(), ValidFrom: old},
	}}
	if err := org.Service.Bootstrap(t.Context(), founding); err != nil {
		t.Fatal(err)
	}
	if key, err := org.Service.Key(t.Context(), s.KeyID); err != nil || key.ValidFrom != old {
		t.Errorf("founder's key %+v: %v", key, err)
	}
	founding.Principals = append(founding.Principals, registry.Founder{Role: "owner", Principal: s.Principal, KeyID: s.KeyID, PublicKey: s.PublicKey()})
	if err := org.Service.Bootstrap(t.Context(), founding); err == nil {
		t.Error("a role that is no duty was accepted")
	}
	founding.Principals = founding.Principals[1:]
	if err := org.Service.Bootstrap(t.Context(), founding); err == nil {
		t.Error("a founding without the registry's own key was accepted")
	}
}

func TestReplicasMayFoundAtTheSameTime(t *testing.T) {
	t.Parallel()
	first := registrytest.New(t) // only for its Founding and test stack
	fresh := registrytest.NewEmpty(t)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		_, service := fresh.Replica(t, nil)
		wg.Go(func() { errs[i] = service.Bootstrap(t.Context(), first.Founding) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n := count(t, fresh, `SELECT count(*) FROM agent_cards`); n != 1 {
		t.Errorf("%d cards", n)
	}
}

func TestKeysThatBreakARuleOfTheOrganizationAreRefused(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	alice := registrytest.Human("alice")
	org.AddKey(t, alice)
	before := head(t, org)

	binding := func(change func(*trust.Binding)) trust.Binding {
		b := registrytest.Signer(protocol.ActorHuman, "bob", 1).Binding(registrytest.Now())
		change(&b)
		return b
	}
	for _, tc := range []struct {
		rule    string
		binding trust.Binding
		code    protocol.Code
	}{
		{"key id of another Principal", binding(func(b *trust.Binding) { b.KeyID = alice.KeyID }), protocol.CodeAuthInvalidSignature},
		{"public key of another Principal", binding(func(b *trust.Binding) { b.PublicKey = alice.PublicKey() }), protocol.CodeAuthInvalidSignature},
		{"second key id for the same tuple", binding(func(b *trust.Binding) {
			b.Principal, b.PublicKey = alice.Principal, alice.PublicKey()
		}), protocol.CodeAuthInvalidSignature},
		{"known key id, other validFrom", func() trust.Binding { return alice.Binding(registrytest.At(time.Minute)) }(), protocol.CodeAuthInvalidSignature},
		{"identity point", binding(func(b *trust.Binding) { b.PublicKey = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" }), protocol.CodeAuthInvalidSignature},
		{"small-order point", binding(func(b *trust.Binding) { b.PublicKey = "7P______________________________________38" }), protocol.CodeAuthInvalidSignature},
		{"not canonical", binding(func(b *trust.Binding) { b.PublicKey = "7v______________________________________38" }), protocol.CodeAuthInvalidSignature},
		{"wrong length", binding(func(b *trust.Binding) { b.PublicKey = "AQAA" }), protocol.CodeAuthInvalidSignature},
		{"pad bits", binding(func(b *trust.Binding) { b.PublicKey = b.PublicKey[:42] + "_" }), protocol.CodeAuthInvalidSignature},
		{"validFrom more than an hour ago", binding(func(b *trust.Binding) { b.ValidFrom = registrytest.At(-61 * time.Minute) }), protocol.CodeInvalidCommand},
	} {
		if _, _, err := org.Service.RegisterKey(t.Context(), registrar, tc.binding); codeOf(err) != tc.code {
			t.Errorf("%s: %v", tc.rule, err)
		}
	}
	if after := head(t, org); after != before {
		t.Errorf("refusals moved the revision from %d to %d", before, after)
	}

	record, created, err := org.Service.RegisterKey(t.Context(), registrar, func() trust.Binding {
		known, err := org.Service.Key(t.Context(), alice.KeyID)
		if err != nil {
			t.Fatal(err)
		}
		return alice.Binding(known.ValidFrom)
	}())
	if err != nil || created || record.KeyID != alice.KeyID {
		t.Errorf("identical binding again: %v created=%v %+v", err, created, record)
	}
	if _, created, err := org.Service.RegisterKey(t.Context(), registrar, binding(func(b *trust.Binding) {
		b.ValidFrom = registrytest.At(-59 * time.Minute)
	})); err != nil || !created {
		t.Errorf("validFrom within the hour: %v", err)
	}
}

func TestRacingRegistrationsOfOnePublicKeyHaveOneWinner(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	shared := registrytest.Signer(protocol.ActorHuman, "shared", 1)
	const racers = 16
	errs := make([]error, racers)
	var wg sync.WaitGroup
	for i := range racers {
		_, service := org.Service, org.Service
		if i%4 == 0 {
			_, service = org.Replica(t, nil)
		}
		b := shared.Binding(registrytest.Now())
		b.KeyID += ":" + string(rune('a'+i))
		b.Principal.ID += string(rune('a' + i))
		wg.Go(func() { _, _, errs[i] = service.RegisterKey(t.Context(), registrar, b) })
	}
	wg.Wait()
	won := 0
	for i, err := range errs {
		switch {
		case err == nil:
			won++
		case codeOf(err) != protocol.CodeAuthInvalidSignature:
			t.Errorf("racer %d: %v", i, err)
		}
	}
	if won != 1 {
		t.Errorf("%d registrations won", won)
	}
	public, _ := lexical.DecodeBase64URL(shared.PublicKey())
	if n := count(t, org, `SELECT count(*) FROM key_bindings WHERE public_key = $1`, public); n != 1 {
		t.Errorf("%d bindings of one public key", n)
	}
}

func TestBoundariesOnlyMoveEarlier(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	s := registrytest.Human("carol")
	org.AddKey(t, s)
	hour, day := registrytest.At(time.Hour), registrytest.At(24*time.Hour)

	step := func(validUntil, revokedAt string, wantCode protocol.Code, wantChanged bool, wantHistory int) {
		t.Helper()
		record, changed, err := org.Service.AppendValidity(t.Context(), registrar, s.KeyID, validUntil, revokedAt)
		if codeOf(err) != wantCode {
			t.Fatalf("validUntil %q revokedAt %q: %v", validUntil, revokedAt, err)
		}
		if wantCode == "" && (changed != wantChanged || len(record.History) != wantHistory) {
			t.Fatalf("validUntil %q revokedAt %q: changed %v, history %+v", validUntil, revokedAt, changed, record.History)
		}
	}
	step(day, "", "", true, 1)
	step(day, "", "", false, 1)
	step(registrytest.At(25*time.Hour), "", protocol.CodeInvalidCommand, false, 0)
	step(hour, "", "", true, 2)
	step(day, hour, protocol.CodeInvalidCommand, false, 0)
	step("", day, "", true, 3)
	step(hour, hour, "", true, 4)
	step("", registrytest.At(2*time.Hour), protocol.CodeInvalidCommand, false, 0)

	record, err := org.Service.Key(t.Context(), s.KeyID)
	if err != nil {
		t.Fatal(err)
	}
	if record.ValidUntil != hour || record.RevokedAt != hour {
		t.Errorf("effective boundaries: %+v", record)
	}
	if v := record.History[3]; v.ValidUntil != "" || v.RevokedAt != hour || v.ChangedBy != registrar.Principal {
		t.Errorf("a boundary that says nothing new was recorded: %+v", v)
	}
	if _, _, err := org.Service.AppendValidity(t.Context(), registrar, "urn:test:key:none", hour, ""); !errors.Is(err, registry.ErrUnknown) {
		t.Errorf("unknown key: %v", err)
	}
}

func TestTheDatabaseItselfRefusesToRewriteHistory(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	s := registrytest.Human("dave")
	org.AddKey(t, s)
	org.EndKey(t, s.KeyID, registrytest.At(time.Hour), "")
	other := registrytest.Signer(protocol.ActorHuman, "eve", 1)
	org.AddKey(t, other)
	for _, statement := range []string{
		`UPDATE key_bindings SET principal_id = 'urn:test:human:mallory'`,
		`UPDATE key_bindings SET public_key = decode(repeat('07', 32), 'hex') WHERE key_id = '` + s.KeyID + `'`,
		`DELETE FROM key_bindings WHERE key_id = '` + other.KeyID + `'`,
		`TRUNCATE key_bindings CASCADE`,
		`UPDATE key_validity SET valid_until = NULL, revoked_at = '2100-01-01T00:00:00Z'`,
		`DELETE FROM key_validity`,
		`TRUNCATE key_validity`,
		`INSERT INTO key_validity SELECT key_id, sequence + 5, valid_until, revoked_at, recorded_at, changed_by_type, changed_by_id, revision FROM key_validity`,
		`UPDATE agent_cards SET status = 'revoked'`,
		`DELETE FROM agent_cards`,
		`DELETE FROM extension_profiles`,
		`DELETE FROM org_services`,
		`UPDATE registry_head SET revision = revision + 2`,
		`UPDATE registry_head SET revision = revision - 1`,
		`DELETE FROM registry_head`,
		`INSERT INTO organizations VALUES ('urn:test:second', now())`,
	} {
		_, err := org.Pool.Exec(t.Context(), statement)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || !strings.HasPrefix(pg.Code, "23") {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

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

func TestEvidenceOfEveryRevisionCanBeReadAgain(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	s := registrytest.Human("erin")
	before := head(t, org)
	org.AddKey(t, s)
	bound := head(t, org)
	org.EndKey(t, s.KeyID, registrytest.At(time.Hour), "")
	ended := head(t, org)

	read := func(revision int64) *registry.EvidenceDocument {
		t.Helper()
		doc, err := org.Service.Evidence(t.Context(), revision)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := trust.NewEvidence(doc.OrganizationID, doc.Revision, doc.TrustBindings()); err != nil {
			t.Errorf("revision %d: %v", revision, err)
		}
		return doc
	}
	find := func(doc *registry.EvidenceDocument) *registry.KeyRecord {
		i := slices.IndexFunc(doc.Bindings, func(k registry.KeyRecord) bool { return k.KeyID == s.KeyID })
		if i < 0 {
			return nil
		}
		return &doc.Bindings[i]
	}
	if find(read(before)) != nil {
		t.Error("the key is in evidence from before it was bound")
	}
	if k := find(read(bound)); k == nil || k.ValidUntil != "" || len(k.History) != 0 {
		t.Errorf("at the binding's revision: %+v", k)
	}
	if k := find(read(ended)); k == nil || k.ValidUntil == "" || len(k.History) != 1 {
		t.Errorf("at the last revision: %+v", k)
	}
	if now := read(0); now.Revision != ended {
		t.Errorf("present revision %d, want %d", now.Revision, ended)
	}
	if _, err := org.Service.Evidence(t.Context(), ended+1); !errors.Is(err, registry.ErrUnknown) {
		t.Errorf("revision to come: %v", err)
	}
}

func TestProfilesAreRegisteredOnce(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	policy := registrytest.Service(registry.RolePolicy)
	profile := protocol.ExtensionProfile{
		ProfileURI: "urn:test:profile:one", Name: "One", Version: "1.0.0", SchemaURI: "urn:test:schema:one",
		SchemaHash:           "sha256:0000000000000000000000000000000000000000000000000000000000000001",
		RequiredCapabilities: []protocol.CapabilityRef{}, CommandKinds: []string{"ext.test.one.do"}, EventKinds: []string{"ext.test.one.done"},
		ApprovedBy: policy.Principal, ApprovedAt: registrytest.Now(),
	}
	register := func(change func(*protocol.ExtensionProfile), by trust.Signer) (bool, error) {
		p := profile
		p.ApprovedBy = by.Principal
		change(&p)
		document, _, err := trust.SignDocument(protocol.KindExtensionProfile, &p, by)
		if err != nil {
			t.Fatal(err)
		}
		return org.Service.RegisterProfile(t.Context(), registrar, document)
	}
	if created, err := register(func(*protocol.ExtensionProfile) {}, policy); err != nil || !created {
		t.Fatalf("first: %v", err)
	}
	if created, err := register(func(*protocol.ExtensionProfile) {}, policy); err != nil || created {
		t.Errorf("identical again: %v created=%v", err, created)
	}
	for _, tc := range []struct {
		rule   string
		change func(*protocol.ExtensionProfile)
		by     trust.Signer
		code   protocol.Code
	}{
		{"same version, other content", func(p *protocol.ExtensionProfile) { p.Name = "Two" }, policy, protocol.CodeInvalidCommand},
		{"kind of another profile", func(p *protocol.ExtensionProfile) { p.ProfileURI = "urn:test:profile:two" }, policy, protocol.CodeInvalidCommand},
		{"kind of the server", func(p *protocol.ExtensionProfile) {
			p.ProfileURI, p.CommandKinds = "urn:test:profile:two", []string{"ext.missionweave.budget.increase"}
			p.EventKinds = nil
		}, policy, protocol.CodeInvalidCommand},
		{"approver without duty", func(p *protocol.ExtensionProfile) { p.Version = "1.1.0" }, registrytest.Service(registry.RoleMetering), protocol.CodeAuthForbidden},
		{"approver a human", func(p *protocol.ExtensionProfile) { p.Version = "1.1.0" }, registrytest.Human("mission-owner"), protocol.CodeAuthForbidden},
		{"approved in the future", func(p *protocol.ExtensionProfile) { p.Version, p.ApprovedAt = "1.1.0", registrytest.At(time.Minute) }, policy, protocol.CodeInvalidCommand},
	} {
		if _, err := register(tc.change, tc.by); codeOf(err) != tc.code {
			t.Errorf("%s: %v", tc.rule, err)
		}
	}
	if created, err := register(func(p *protocol.ExtensionProfile) { p.Version = "2.0.0" }, policy); err != nil || !created {
		t.Errorf("next version with the same kinds: %v", err)
	}
}

// The kinds of the own profile are those of the command profile.
func TestOwnProfileListsEveryKindOfTheCommandProfile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(sharedDir(t), "protocol", "COMMANDS.md"))
	if err != nil {
		t.Skipf("command profile not here: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## 6. Event catalogue")
	rest, _, _ = strings.Cut(rest, "\n### 6.3")
	events := kindsIn(rest)
	var commands []string
	before, _, _ := strings.Cut(string(text), "\n## 6. Event catalogue")
	for _, line := range strings.Split(before, "\n") {
		if strings.HasPrefix(line, "#### ") {
			commands = append(commands, kindsIn(line)...)
		}
	}
	commands = append(commands, "ext.missionweave.approval.decide_action", "ext.missionweave.approval.consume_action")
	profile, err := registry.OwnProfile(protocol.Actor{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []struct {
		name      string
		want, got []string
	}{{"Command kinds", commands, profile.CommandKinds}, {"Event kinds", events, profile.EventKinds}} {
		slices.Sort(list.want)
		if diff := cmp.Diff(slices.Compact(list.want), list.got); diff != "" {
			t.Errorf("%s (-profile text +schema file): %s", list.name, diff)
		}
	}
}

func kindsIn(text string) []string {
	return regexp.MustCompile(`ext\.missionweave(?:\.[a-z_]+){2,}`).FindAllString(text, -1)
}

func sharedDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("MW_SHARED"); dir != "" {
		return dir
	}
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, serr := os.Stat(filepath.Join(dir, "go.mod")); serr == nil {
			return filepath.Join(dir, "..", "shared")
		}
		dir = filepath.Dir(dir)
	}
	t.Skip("no go.mod above the working directory")
	return ""
}
