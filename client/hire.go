package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/missionweave/server/internal/protocol/lexical"
)

// Hiring describes an Agent for a dev stack.
type Hiring struct {
	// Name is shown, and is part of the Agent's id.
	Name string
	// Capabilities are "id@version", such as text.echo@1.0.0.
	Capabilities []string
	// MaxConcurrency bounds the active WorkItems, default 4.
	MaxConcurrency int64
	// Dir keeps the Agent's key, so that the next start is the same Agent; "" makes
	// a new Agent every time.
	Dir string
}

// storedAgent is what Dir/NAME.json says; the key is in NAME.seed beside it.
type storedAgent struct {
	Principal      Actor  `json:"principal"`
	KeyID          string `json:"keyId"`
	OrganizationID string `json:"organizationId"`
}

// Hire registers a new Agent with the Organization of a dev stack, or loads the
// one that Dir keeps, and connects as it. It needs the stack's registry key,
// which an Organization of its own keeps to its administrators.
func (d *DevStack) Hire(ctx context.Context, h Hiring) (*Client, error) {
	identity, known, err := h.load(d.OrganizationID)
	if err != nil {
		return nil, err
	}
	if !known {
		if identity, err = d.register(ctx, h); err != nil {
			return nil, err
		}
		if err := h.store(identity, d.OrganizationID); err != nil {
			return nil, err
		}
	}
	return d.Connect(identity)
}

func (d *DevStack) register(ctx context.Context, h Hiring) (Identity, error) {
	registrarIdentity, err := d.Identity("registry")
	if err != nil {
		return Identity{}, err
	}
	owner, err := d.Identity("mission-owner")
	if err != nil {
		return Identity{}, err
	}
	registrar, err := d.Connect(registrarIdentity)
	if err != nil {
		return Identity{}, err
	}
	defer registrar.Close()
	identity, err := NewIdentity(Actor{
		Type: Agent, ID: "urn:missionweave:agent:" + h.Name + ":" + strings.TrimPrefix(NewID(), "urn:uuid:"),
	})
	if err != nil {
		return Identity{}, err
	}
	card, err := h.card(identity, d.OrganizationID, owner.Principal)
	if err != nil {
		return Identity{}, err
	}
	if _, err := registrar.RegisterAgent(ctx, card); err != nil {
		return Identity{}, fmt.Errorf("client: register %s: %w", h.Name, err)
	}
	return identity, nil
}

func (h Hiring) card(identity Identity, organizationID string, owner Actor) (AgentCard, error) {
	now := Timestamp(time.Now())
	card := AgentCard{
		AgentID: identity.Principal.ID, OrganizationID: organizationID, CardVersion: 1, DisplayName: h.Name,
		Owner: owner, Status: "active", ProtocolVersions: []string{"0.1"},
		Endpoints:  []Endpoint{{Transport: "wss", URI: "wss://agents.invalid/" + h.Name}},
		PublicKeys: []PublicKey{{KeyID: identity.KeyID, Algorithm: "Ed25519", PublicKey: identity.PublicKey(), ValidFrom: now}},
		IssuedAt:   now, MaxConcurrency: max(h.MaxConcurrency, 1),
	}
	if h.MaxConcurrency == 0 {
		card.MaxConcurrency = 4
	}
	for _, text := range h.Capabilities {
		id, version, ok := strings.Cut(text, "@")
		if !ok {
			return AgentCard{}, fmt.Errorf("client: capability %q is not id@version", text)
		}
		in, out := "urn:missionweave:dev:"+id+":input", "urn:missionweave:dev:"+id+":output"
		card.Capabilities = append(card.Capabilities, Capability{
			ID: id, Version: version, InputSchema: in, InputSchemaHash: Hash([]byte(in)), OutputSchema: out, OutputSchemaHash: Hash([]byte(out)),
			Constraints: Raw("{}"), VerifiedEvidence: []string{"urn:missionweave:dev:assessment:" + id},
		})
	}
	return card, nil
}

func (h Hiring) load(organizationID string) (Identity, bool, error) {
	if h.Dir == "" {
		return Identity{}, false, nil
	}
	b, err := os.ReadFile(filepath.Join(h.Dir, h.Name+".json"))
	if errors.Is(err, os.ErrNotExist) {
		return Identity{}, false, nil
	}
	if err != nil {
		return Identity{}, false, fmt.Errorf("client: read the Agent: %w", err)
	}
	var stored storedAgent
	if err := json.Unmarshal(b, &stored); err != nil {
		return Identity{}, false, fmt.Errorf("client: %s.json: %w", h.Name, err)
	}
	if stored.OrganizationID != organizationID {
		return Identity{}, false, nil // of a stack that is no more
	}
	key, err := ReadSeed(filepath.Join(h.Dir, h.Name+".seed"))
	if err != nil {
		return Identity{}, false, err
	}
	return Identity{Principal: stored.Principal, KeyID: stored.KeyID, Key: key}, true, nil
}

func (h Hiring) store(identity Identity, organizationID string) error {
	if h.Dir == "" {
		return nil
	}
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		return fmt.Errorf("client: keep the Agent: %w", err)
	}
	about, err := json.MarshalIndent(storedAgent{identity.Principal, identity.KeyID, organizationID}, "", "  ")
	if err != nil {
		return fmt.Errorf("client: keep the Agent: %w", err)
	}
	seed := lexical.EncodeBase64URL(identity.Key.Seed())
	// The key comes first: without it the other file is worth nothing.
	if err := os.WriteFile(filepath.Join(h.Dir, h.Name+".seed"), []byte(seed+"\n"), 0o600); err != nil {
		return fmt.Errorf("client: keep the Agent's key: %w", err)
	}
	if err := os.WriteFile(filepath.Join(h.Dir, h.Name+".json"), append(about, '\n'), 0o600); err != nil {
		return fmt.Errorf("client: keep the Agent: %w", err)
	}
	return nil
}
