package registry

import (
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// Role is a duty that Organization policy gives a Principal.
type Role string

// The roles of service Principals, and the one of the Agent that makes Context
// Packages (COMMANDS.md 3.4.1; API.md, dev stack contract).
const (
	RoleRegistry         Role = "registry"
	RoleIdentity         Role = "identity"
	RoleGroupAuthority   Role = "group-authority"
	RoleAuthorization    Role = "authorization"
	RoleArchival         Role = "archival"
	RolePolicy           Role = "policy"
	RoleMetering         Role = "metering"
	RoleEvidence         Role = "evidence"
	RoleContextGenerator Role = "context-generator"
)

// ServiceRoles lists the roles of services.
func ServiceRoles() []Role {
	return []Role{
		RoleRegistry, RoleIdentity, RoleGroupAuthority, RoleAuthorization,
		RoleArchival, RolePolicy, RoleMetering, RoleEvidence,
	}
}

// Agent card states (agent-card.schema).
const (
	CardActive     = "active"
	CardDeprecated = "deprecated"
	CardRevoked    = "revoked"
)

// KeyRecord is a signing key as the Registry shows it (API.md, GET /v1/keys).
// ValidUntil and RevokedAt are the effective boundaries: the earliest of the
// whole history.
type KeyRecord struct {
	KeyID      string           `json:"keyId"`
	Principal  protocol.Actor   `json:"principal"`
	Algorithm  string           `json:"algorithm"`
	PublicKey  string           `json:"publicKey"`
	ValidFrom  string           `json:"validFrom"`
	ValidUntil string           `json:"validUntil,omitempty"`
	RevokedAt  string           `json:"revokedAt,omitempty"`
	History    []ValidityRecord `json:"history"`
}

// ValidityRecord is one append-only status record of a key.
type ValidityRecord struct {
	ChangedAt  string         `json:"changedAt"`
	ChangedBy  protocol.Actor `json:"changedBy"`
	ValidUntil string         `json:"validUntil,omitempty"`
	RevokedAt  string         `json:"revokedAt,omitempty"`
}

// EvidenceDocument is the complete Registry evidence at one revision (API.md,
// GET /v1/registry/evidence).
type EvidenceDocument struct {
	OrganizationID string      `json:"organizationId"`
	Revision       int64       `json:"revision"`
	Bindings       []KeyRecord `json:"bindings"`
}

// Bindings returns the evidence in the form that trust.NewEvidence takes.
func (d *EvidenceDocument) TrustBindings() []trust.Binding {
	bindings := make([]trust.Binding, len(d.Bindings))
	for i := range d.Bindings {
		bindings[i] = d.Bindings[i].binding()
	}
	return bindings
}

func (k *KeyRecord) binding() trust.Binding {
	b := trust.Binding{
		KeyID: k.KeyID, Principal: k.Principal, Algorithm: k.Algorithm,
		PublicKey: k.PublicKey, ValidFrom: k.ValidFrom,
	}
	for i, v := range k.History {
		b.History = append(b.History, trust.Validity{
			Sequence: int64(i) + 1, RecordedAt: v.ChangedAt, ValidUntil: v.ValidUntil, RevokedAt: v.RevokedAt,
		})
	}
	return b
}

// Card is one registered version of an Agent Card. It is shared and must not be
// changed.
type Card struct {
	AgentID  string
	Version  int64
	Status   string
	Document []byte // exact signed bytes
	Card     protocol.AgentCard
}

// Alive reports whether the Agent may hold a session at an instant: its card is
// not revoked and not past its validUntil (COMMANDS.md P13; deprecated still
// works).
func (c *Card) Alive(now time.Time) bool {
	end, ok := c.ValidUntil()
	return c.Status != CardRevoked && (!ok || now.Before(end))
}

// ValidUntil is the card's own end; ok is false when it has none. An end that
// cannot be read counts as past.
func (c *Card) ValidUntil() (end time.Time, ok bool) {
	if c.Card.ValidUntil == "" {
		return time.Time{}, false
	}
	return instant(c.Card.ValidUntil), true
}

func decodeCard(document []byte) (*Card, error) {
	doc, err := strictjson.Parse(document)
	if err != nil {
		return nil, err
	}
	c := &Card{Document: document}
	if err := strictjson.Decode(doc.Root(), &c.Card); err != nil {
		return nil, err
	}
	c.AgentID, c.Version, c.Status = c.Card.AgentID, c.Card.CardVersion, c.Card.Status
	return c, nil
}

// Profile is a registered Extension Profile.
type Profile struct {
	Document []byte // exact signed bytes
	Profile  protocol.ExtensionProfile
}

func decodeProfile(document []byte) (*Profile, error) {
	doc, err := strictjson.Parse(document)
	if err != nil {
		return nil, err
	}
	p := &Profile{Document: document}
	if err := strictjson.Decode(doc.Root(), &p.Profile); err != nil {
		return nil, err
	}
	return p, nil
}
