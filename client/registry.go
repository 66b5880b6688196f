package client

import (
	"context"
	"fmt"
	"net/http"

	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// RegisterAgent sends an unsigned Agent Card to the Registry, which checks it,
// signs it with the Organization's key and registers its keys. The Client's
// Principal must be a service that may write to the Registry.
func (c *Client) RegisterAgent(ctx context.Context, card AgentCard) (*AgentCard, error) {
	signed := new(AgentCard)
	if err := c.writeSigned(ctx, "/v1/agent-cards", map[string]any{"card": card}, signed); err != nil {
		return nil, err
	}
	return signed, nil
}

// KeyBinding binds a key id to exactly one Principal, algorithm and public key.
type KeyBinding struct {
	KeyID     string `json:"keyId"`
	Principal Actor  `json:"principal"`
	Algorithm string `json:"algorithm"`
	PublicKey string `json:"publicKey"`
	ValidFrom string `json:"validFrom"`
}

// RegisterKey binds a key of a human or service. Agents' keys come with their
// Agent Cards.
func (c *Client) RegisterKey(ctx context.Context, binding KeyBinding) error {
	return c.writeSigned(ctx, "/v1/keys", binding, nil)
}

// EndKey sets boundaries of a key's validity, or moves them earlier: validUntil,
// revokedAt or both, "" leaving one as it is.
func (c *Client) EndKey(ctx context.Context, keyID, validUntil, revokedAt string) error {
	members := map[string]any{"keyId": keyID}
	if validUntil != "" {
		members["validUntil"] = validUntil
	}
	if revokedAt != "" {
		members["revokedAt"] = revokedAt
	}
	return c.writeSigned(ctx, Path("v1", "keys", keyID, "validity"), members, nil)
}

// writeSigned posts {members…, requestedAt, signature}: the body that proves
// who wants to write and when (API.md, Registry).
func (c *Client) writeSigned(ctx context.Context, path string, members, dst any) error {
	return c.writeSignedTo(ctx, c.opt.RegistryURL, path, members, dst)
}

// writeSignedTo is writeSigned to any of the services.
func (c *Client) writeSignedTo(ctx context.Context, base, path string, members, dst any) error {
	if base == "" {
		return errNoURL
	}
	plain, err := strictjson.Marshal(members)
	if err != nil {
		return fmt.Errorf("client: encode the request: %w", err)
	}
	body, err := trust.SignBody(plain, Timestamp(c.opt.Now()), c.opt.Identity.signer())
	if err != nil {
		return fmt.Errorf("client: sign the request: %w", err)
	}
	a, err := c.authorized(ctx, call{
		method: http.MethodPost, url: base + path,
		contentType: "application/json", body: body,
	})
	if err != nil || dst == nil {
		return err
	}
	return decode(a.body, dst)
}

// AgentCard reads the current card of an Agent.
func (c *Client) AgentCard(ctx context.Context, agentID string) (*AgentCard, error) {
	if c.opt.RegistryURL == "" {
		return nil, errNoURL
	}
	card := new(AgentCard)
	if err := c.get(ctx, c.opt.RegistryURL, Path("v1", "agent-cards", agentID), nil, card); err != nil {
		return nil, err
	}
	return card, nil
}
