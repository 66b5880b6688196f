// Package registrytest founds an Organization on a fresh database of the test
// stack, with a signer for each of its services, so that tests of what rests on
// the Registry begin where a first start ends.
package registrytest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// OrganizationID is the Organization of every Org.
const OrganizationID = "urn:test:organization"

// Org is a founded Organization.
type Org struct {
	DatabaseURL string
	Pool        *pgxpool.Pool
	Directory   *registry.Directory
	Service     *registry.Service
	// Founding is what the first start brought.
	Founding registry.Founding
}

// New founds an Organization with one service per role, the Agent
// context-generator and the human mission-owner.
func New(t testing.TB) *Org {
	t.Helper()
	org := NewEmpty(t)
	org.Founding = registry.Founding{OrganizationID: OrganizationID}
	for _, role := range registry.ServiceRoles() {
		s := Service(role)
		org.Founding.Principals = append(org.Founding.Principals, registry.Founder{
			Role: role, Principal: s.Principal, KeyID: s.KeyID, PublicKey: s.PublicKey(),
		})
	}
	generator, owner := Agent("context-generator"), Human("mission-owner")
	org.Founding.Principals = append(org.Founding.Principals,
		registry.Founder{Role: registry.RoleContextGenerator, Principal: generator.Principal, KeyID: generator.KeyID, PublicKey: generator.PublicKey()},
		registry.Founder{Principal: owner.Principal, KeyID: owner.KeyID, PublicKey: owner.PublicKey()})
	card := Card(generator)
	card.IssuedAt, card.PublicKeys[0].ValidFrom = "", ""
	org.Founding.Cards = []protocol.AgentCard{card}
	if err := org.Service.Bootstrap(t.Context(), org.Founding); err != nil {
		t.Fatalf("found the Organization: %v", err)
	}
	return org
}

// NewEmpty is a migrated database without Organization.
func NewEmpty(t testing.TB) *Org {
	t.Helper()
	org := &Org{DatabaseURL: devstack.ForTest(t).NewDatabase(t)}
	org.Pool = NewPool(t, org.DatabaseURL)
	org.Directory, org.Service = org.Replica(t, nil)
	return org
}

// NewPool opens a pool that ends with the test.
func NewPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.WithoutCancel(t.Context()), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Replica is another process's Directory and Service on the same database.
func (o *Org) Replica(t testing.TB, submit registry.SubmitFunc) (*registry.Directory, *registry.Service) {
	t.Helper()
	pool := o.Pool
	if o.Directory != nil {
		pool = NewPool(t, o.DatabaseURL)
	}
	directory := registry.NewDirectory(pool, registry.DirectoryOptions{})
	return directory, registry.New(registry.Config{
		Pool: pool, Directory: directory, Signer: Service(registry.RoleRegistry), Submit: submit,
		Mint: Mint, Now: time.Now, Future: 30 * time.Second,
	})
}

// AddAgent registers an Agent with one key.
func (o *Org) AddAgent(t testing.TB, s trust.Signer) protocol.AgentCard {
	t.Helper()
	card := Card(s)
	o.AddCard(t, card)
	return card
}

// AddCard signs a card as the registry service does, and registers it.
func (o *Org) AddCard(t testing.TB, card protocol.AgentCard) []byte {
	t.Helper()
	registrar := Service(registry.RoleRegistry)
	document, _, err := trust.SignDocument(protocol.KindAgentCard, &card, registrar)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Service.RegisterSignedCard(t.Context(), registry.Author{Principal: registrar.Principal}, document); err != nil {
		t.Fatalf("register card of %s: %v", card.AgentID, err)
	}
	return document
}

// AddKey binds a key to its Principal from now on.
func (o *Org) AddKey(t testing.TB, s trust.Signer) {
	t.Helper()
	registrar := Service(registry.RoleRegistry)
	_, _, err := o.Service.RegisterKey(t.Context(), registry.Author{Principal: registrar.Principal}, s.Binding(Now()))
	if err != nil {
		t.Fatalf("bind %s: %v", s.KeyID, err)
	}
}

// EndKey sets boundaries of a key; empty ones stay.
func (o *Org) EndKey(t testing.TB, keyID, validUntil, revokedAt string) {
	t.Helper()
	registrar := Service(registry.RoleRegistry)
	_, _, err := o.Service.AppendValidity(t.Context(), registry.Author{Principal: registrar.Principal}, keyID, validUntil, revokedAt)
	if err != nil {
		t.Fatalf("end %s: %v", keyID, err)
	}
}

// Service is the signer of the service with a role.
func Service(role registry.Role) trust.Signer { return Signer(protocol.ActorService, string(role), 1) }

// Agent is the signer of an Agent's first key.
func Agent(name string) trust.Signer { return Signer(protocol.ActorAgent, name, 1) }

// Human is the signer of a human's first key.
func Human(name string) trust.Signer { return Signer(protocol.ActorHuman, name, 1) }

// Signer is the n-th key of a Principal; its seed follows from the arguments.
func Signer(actorType, name string, n int) trust.Signer {
	id := actorType + ":" + name
	seed := sha256.Sum256([]byte(id + string(rune('0'+n))))
	s, err := trust.NewSigner("urn:test:key:"+id+":"+string(rune('0'+n)), protocol.Actor{Type: actorType, ID: "urn:test:" + id}, seed[:])
	if err != nil {
		panic(err)
	}
	return s
}

// Card is the first card of an Agent, unsigned, issued now, with the signer's
// key and one capability.
func Card(s trust.Signer) protocol.AgentCard {
	const hash = "sha256:0000000000000000000000000000000000000000000000000000000000000001"
	return protocol.AgentCard{
		AgentID: s.Principal.ID, OrganizationID: OrganizationID, CardVersion: 1, DisplayName: "Agent",
		Owner: protocol.Actor{Type: protocol.ActorHuman, ID: "urn:test:human:mission-owner"}, Status: registry.CardActive,
		ProtocolVersions: []string{protocol.Version},
		Endpoints:        []protocol.Endpoint{{Transport: "wss", URI: "wss://agents.test/one"}},
		PublicKeys:       []protocol.PublicKey{{KeyID: s.KeyID, Algorithm: trust.Algorithm, PublicKey: s.PublicKey(), ValidFrom: Now()}},
		Capabilities: []protocol.Capability{{
			ID: "text.write", Version: "1.0.0", InputSchema: "urn:test:schema:in", InputSchemaHash: hash,
			OutputSchema: "urn:test:schema:out", OutputSchemaHash: hash, Constraints: protocol.Raw(`{}`),
			VerifiedEvidence: []string{"urn:test:evidence:1"},
		}},
		MaxConcurrency: 1, IssuedAt: Now(),
	}
}

// Now is the time in the form of protected times.
func Now() string { return lexical.FormatMicros(time.Now()) }

// At is a time some way from now in that form.
func At(d time.Duration) string { return lexical.FormatMicros(time.Now().Add(d)) }

// Mint is a fresh urn:uuid: id.
func Mint() string {
	var random [10]byte
	_, _ = rand.Read(random[:])
	return lexical.UUIDv7(time.Now(), random)
}
