package server

import (
	"context"
	"fmt"
	"time"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registryhttp"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/sessions/sessionshttp"
)

// Registry is the Agent Registry.
type Registry struct {
	*base
	router *httpkit.Router
}

// OpenRegistry makes the Agent Registry. submit executes the Commands it issues
// and forwards.
func OpenRegistry(ctx context.Context, o Options, submit registryhttp.Authority) (_ *Registry, err error) {
	b, err := open(ctx, "registry", o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.pool.Close()
		}
	}()
	service, err := b.registryService(submit)
	if err != nil {
		return nil, err
	}
	cfg, err := b.identities()
	if err != nil {
		return nil, err
	}
	identities := sessions.New(cfg)
	r := &Registry{base: b, router: b.router(identities)}
	p := o.Settings.Policy
	r.router.Add(registryhttp.Routes(registryhttp.Options{
		Service: service, Directory: b.directory, Authority: submit,
		FreshPast: p.FreshnessPast(), FreshFuture: p.FreshnessFuture(), Now: time.Now,
	})...)
	r.router.Add(sessionshttp.AccessRoutes(identities, sessionshttp.NewLimiter())...)
	addContract(r.router)
	return r, nil
}

func (b *base) registryService(submit registryhttp.Authority) (*registry.Service, error) {
	signer, err := b.signer(registry.RoleRegistry)
	if err != nil {
		return nil, err
	}
	cfg := registry.Config{
		Pool: b.pool, Directory: b.directory, Signer: signer, Mint: mint, Now: time.Now,
		Future: b.Settings.Policy.FreshnessFuture(), Log: b.Log,
	}
	if submit != nil {
		cfg.Submit = func(ctx context.Context, command []byte) ([]byte, bool, *protocol.Error) {
			return submit.Submit(ctx, command, "registry")
		}
	}
	return registry.New(cfg), nil
}

// Run serves until ctx ends, then drains.
func (r *Registry) Run(ctx context.Context) error { return r.serve(ctx, r.router, nil) }

// Found makes the Organization in the database if it is not there: its
// Principals with their keys, the card of its context generator, its own
// extension profile. Run again it changes nothing.
func Found(ctx context.Context, o Options) error {
	b, err := open(ctx, "founding", o)
	if err != nil {
		return err
	}
	defer b.pool.Close()
	service, err := b.registryService(nil)
	if err != nil {
		return err
	}
	founding := registry.Founding{OrganizationID: o.Keys.ID}
	for _, p := range o.Keys.Principals {
		if p.PublicKey == "" {
			return fmt.Errorf("server: found the Organization: the key of %s is missing", p.Role)
		}
		role := registry.Role(p.Role)
		if p.Principal.Type == protocol.ActorHuman {
			role = ""
		}
		founding.Principals = append(founding.Principals, registry.Founder{
			Role: role, Principal: p.Principal, KeyID: p.KeyID, PublicKey: p.PublicKey, ValidFrom: o.Keys.CreatedAt,
		})
		if role == registry.RoleContextGenerator {
			founding.Cards = append(founding.Cards, generatorCard(o.Keys.ID, p.Principal, p.KeyID, p.PublicKey, o.Keys.CreatedAt))
		}
	}
	if err := service.Bootstrap(ctx, founding); err != nil {
		return fmt.Errorf("server: found the Organization: %w", err)
	}
	return nil
}

// generatorCard is the card of the Agent in whose name the Authority makes
// Context Packages (COMMANDS.md 3.4.1). It takes no connections.
func generatorCard(organizationID string, agent protocol.Actor, keyID, publicKey, validFrom string) protocol.AgentCard {
	const schema = "urn:missionweave:schema:context-package"
	return protocol.AgentCard{
		AgentID: agent.ID, OrganizationID: organizationID, CardVersion: 1, DisplayName: "Context generator",
		Owner:            protocol.Actor{Type: protocol.ActorService, ID: organizationID},
		Status:           registry.CardActive,
		ProtocolVersions: []string{protocol.Version},
		Endpoints:        []protocol.Endpoint{{Transport: "wss", URI: "wss://context-generator.invalid/"}},
		PublicKeys:       []protocol.PublicKey{{KeyID: keyID, Algorithm: "Ed25519", PublicKey: publicKey, ValidFrom: validFrom}},
		Capabilities: []protocol.Capability{{
			ID: "context.generate", Version: "1.0.0",
			InputSchema: schema, InputSchemaHash: hashOf(schema), OutputSchema: schema, OutputSchemaHash: hashOf(schema),
			Constraints: protocol.Raw("{}"), VerifiedEvidence: []string{"urn:missionweave:evidence:built-in"},
		}},
		MaxConcurrency: 1,
	}
}
