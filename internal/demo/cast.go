package demo

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/missionfile"
)

// cast is everybody who takes part.
type cast struct {
	owner       *client.Client
	coordinator *client.Client
	workers     []player
	names       map[string]string // Principal id -> name shown
}

type player struct {
	name   string
	client *client.Client
}

// assemble registers the Coordinator and the Workers as new Agents of the
// Organization, and loads the MissionOwner.
func assemble(ctx context.Context, opt Options) (*cast, error) {
	registrar, err := connect(opt.Stack, "registry")
	if err != nil {
		return nil, err
	}
	defer registrar.Close()
	owner, err := connect(opt.Stack, "mission-owner")
	if err != nil {
		return nil, err
	}
	c := &cast{owner: owner, names: map[string]string{owner.Principal().ID: "mission-owner"}}
	hire := func(w missionfile.Worker) (*client.Client, error) {
		agent, err := register(ctx, opt.Stack, registrar, owner.Principal(), w)
		if err != nil {
			return nil, expect("the Registry to register "+w.Name, err)
		}
		c.names[agent.Principal().ID] = w.Name
		return agent, nil
	}
	c.coordinator, err = hire(missionfile.Worker{
		Name: "coordinator", MaxConcurrency: 4,
		Capabilities: []missionfile.Capability{{ID: "mission.coordinate", Version: "1.0.0"}},
	})
	if err != nil {
		return nil, err
	}
	for _, w := range opt.File.Workers {
		agent, err := hire(w)
		if err != nil {
			return nil, err
		}
		c.workers = append(c.workers, player{name: w.Name, client: agent})
	}
	return c, nil
}

func connect(stack *client.DevStack, role string) (*client.Client, error) {
	identity, err := stack.Identity(role)
	if err != nil {
		return nil, err
	}
	return stack.Connect(identity)
}

// register makes a key for a new Agent and has the Organization sign its card.
func register(ctx context.Context, stack *client.DevStack, registrar *client.Client, owner client.Actor, w missionfile.Worker) (*client.Client, error) {
	unique := strings.TrimPrefix(client.NewID(), "urn:uuid:")
	identity, err := client.NewIdentity(client.Actor{Type: client.Agent, ID: "urn:missionweave:agent:" + w.Name + ":" + unique})
	if err != nil {
		return nil, err
	}
	now := client.Timestamp(time.Now())
	card := client.AgentCard{
		AgentID: identity.Principal.ID, OrganizationID: stack.OrganizationID, CardVersion: 1,
		DisplayName: w.Name, Owner: owner, Status: "active", ProtocolVersions: []string{"0.1"},
		Endpoints: []client.Endpoint{{Transport: "wss", URI: "wss://agents.invalid/" + w.Name}},
		PublicKeys: []client.PublicKey{{
			KeyID: identity.KeyID, Algorithm: "Ed25519", PublicKey: identity.PublicKey(), ValidFrom: now,
		}},
		MaxConcurrency: max(1, w.MaxConcurrency), IssuedAt: now,
	}
	for _, k := range w.Capabilities {
		card.Capabilities = append(card.Capabilities, capability(k))
	}
	if _, err := registrar.RegisterAgent(ctx, card); err != nil {
		return nil, err
	}
	return stack.Connect(identity)
}

// capability declares a capability with the schemas it is known by. The demo's
// schemas are names, so their hashes are those of the names.
func capability(k missionfile.Capability) client.Capability {
	in := "urn:missionweave:demo:" + k.ID + ":input"
	out := "urn:missionweave:demo:" + k.ID + ":output"
	return client.Capability{
		ID: k.ID, Version: k.Version,
		InputSchema: in, InputSchemaHash: hashOf(in), OutputSchema: out, OutputSchemaHash: hashOf(out),
		Constraints: client.Raw("{}"), VerifiedEvidence: []string{"urn:missionweave:demo:assessment:" + k.ID},
	}
}

func hashOf(text string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text))) }

func (c *cast) close() {
	c.owner.Close()
	c.coordinator.Close()
	for _, w := range c.workers {
		w.client.Close()
	}
}

// agentOf is the Agent id of a Worker in the file.
func (c *cast) agentOf(name string) string {
	for _, w := range c.workers {
		if w.name == name {
			return w.client.Principal().ID
		}
	}
	return ""
}
