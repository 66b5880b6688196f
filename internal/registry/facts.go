package registry

import (
	"context"
	"encoding/hex"
	"strings"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// kindAgentCardRegistered is the Event of a registered card.
const kindAgentCardRegistered = "ext.missionweaveprotocol.registry.agent_card_registered"

// foundingPolicy is the cause of facts that no Command caused: those of the
// Organization's first start.
const foundingPolicy = "urn:missionweave:policy:founding"

// admit writes the First-Admission Record of a document that this service
// accepts without the Authority, in the transaction of the change.
func (s *Service) admit(ctx context.Context, m *mutation, v *trust.Verified) error {
	if !v.Contains(lexical.InstantOf(m.now)) {
		return protocol.NewError(protocol.CodeAuthInvalidSignature, trust.ReasonTrustedTime).
			WithStage(trust.StageAdmission.String())
	}
	// A record of the same document from a registration that was refused later is
	// as good: nothing of it depends on who won.
	_, err := m.tx.Exec(ctx, `
		INSERT INTO admissions (organization_id, signing_hash, record_id, document_kind, key_id,
			principal_type, principal_id, trusted_accepted_at, accepted_by)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (signing_hash, organization_id) DO NOTHING`,
		v.OrganizationID, hashBytes(v.SigningHash), bareUUID(s.cfg.Mint()), string(v.Kind), v.KeyID,
		v.Principal.Type, v.Principal.ID, m.now, s.cfg.Signer.Principal.ID)
	return err
}

// cardFact writes the Event of a card that was registered without a Command.
func (s *Service) cardFact(ctx context.Context, m *mutation, v *trust.Verified, document []byte) error {
	version, _ := v.Value.Member("cardVersion").Int()
	agentID := v.Value.Member("agentId").Str()
	payload, err := strictjson.Marshal(struct {
		AgentID     string       `json:"agentId"`
		CardVersion int64        `json:"cardVersion"`
		AgentCard   protocol.Raw `json:"agentCard"`
	}{agentID, version, document})
	if err != nil {
		return err
	}
	eventID := s.cfg.Mint()
	event, signingHash, err := trust.SignDocument(protocol.KindEvent, &protocol.Event{
		ProtocolVersion: protocol.Version,
		EventID:         eventID,
		Kind:            kindAgentCardRegistered,
		Actor:           m.by,
		Cause:           protocol.Cause{Type: "policy", ID: foundingPolicy},
		CorrelationID:   eventID,
		OccurredAt:      lexical.FormatMicros(m.now),
		Payload:         payload,
		AcceptedBy:      s.cfg.Signer.Principal,
	}, s.cfg.Signer)
	if err != nil {
		return err
	}
	_, err = m.tx.Exec(ctx, `
		INSERT INTO org_events (event_id, kind, subject_id, occurred_at, signing_hash,
			admission_id, admission_key_id, admission_at, admission_by, document)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $4, $8, $9)`,
		bareUUID(eventID), kindAgentCardRegistered, agentID, m.now, hashBytes(signingHash),
		bareUUID(s.cfg.Mint()), s.cfg.Signer.KeyID, s.cfg.Signer.Principal.ID, event)
	return err
}

// hashBytes is the raw form of a signing hash that trust made.
func hashBytes(signingHash string) []byte {
	b, err := hex.DecodeString(strings.TrimPrefix(signingHash, "sha256:"))
	if err != nil {
		panic("registry: malformed signing hash " + signingHash)
	}
	return b
}

func bareUUID(id string) string { return strings.TrimPrefix(id, "urn:uuid:") }
