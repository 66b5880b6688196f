package registry

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/signedwrite"
	"github.com/missionweave/server/internal/trust"
)

// CheckCard judges a card against the Registry at a view (COMMANDS.md 5.7):
// AUTH_FORBIDDEN for another Organization, REVISION_CONFLICT for a version that
// does not follow, AUTH_INVALID_SIGNATURE for a key that breaks a rule or whose
// validity it would extend, INVALID_COMMAND for an issuedAt in the future or a
// capability declared twice. It does not look at the card's signature. The view
// must be the one that the registration commits on.
func CheckCard(view *View, card *protocol.AgentCard, now time.Time, future time.Duration) *protocol.Error {
	if card.OrganizationID != view.OrganizationID {
		return protocol.NewError(protocol.CodeAuthForbidden, "foreign_organization").WithStep("P17")
	}
	if known, ok := view.Agent(card.AgentID); ok && card.CardVersion != known.Version+1 {
		return protocol.NewError(protocol.CodeRevisionConflict, "card_version").
			WithRevision(card.CardVersion, known.Version).WithStep("P18")
	}
	if _, _, err := cardKeys(view.Evidence, card, view.Revision+1, now); err != nil {
		var perr *protocol.Error
		if errors.As(refuse(err), &perr) {
			return perr.WithStep("P18")
		}
		return protocol.Internal(err)
	}
	for _, key := range card.PublicKeys {
		if _, known := view.Evidence.Key(key.KeyID); !known && instant(key.ValidFrom).Before(now.Add(-maxBackdate)) {
			return invalid("valid_from").WithStep("P23")
		}
	}
	type capability struct{ id, version string }
	seen := map[capability]bool{}
	for _, c := range card.Capabilities {
		if seen[capability{c.ID, c.Version}] {
			return invalid("capability_twice").WithStep("P23")
		}
		seen[capability{c.ID, c.Version}] = true
	}
	if instant(card.IssuedAt).After(now.Add(future)) {
		return invalid("timestamp").WithStep("P23")
	}
	return nil
}

// cardKeys turns the keys of a card into bindings, and tries them: added are new
// bindings, changed are known keys with the one record that the card adds to
// their history. A known key whose boundary the card moves later, or repeats
// with other content, is a *trust.BindingFault; a boundary that the card does
// not mention stays as it is.
func cardKeys(ev *trust.Evidence, card *protocol.AgentCard, revision int64, now time.Time) (added, changed []trust.Binding, err error) {
	m := mutation{now: now}
	declared := make([]trust.Binding, 0, len(card.PublicKeys))
	listed := map[string]bool{}
	for _, key := range card.PublicKeys {
		if listed[key.KeyID] {
			return nil, nil, &trust.BindingFault{KeyID: key.KeyID, Reason: trust.FaultKeyIDReused}
		}
		listed[key.KeyID] = true
		b := trust.Binding{
			KeyID: key.KeyID, Principal: protocol.Actor{Type: protocol.ActorAgent, ID: card.AgentID},
			Algorithm: key.Algorithm, PublicKey: key.PublicKey, ValidFrom: key.ValidFrom,
		}
		known, ok := ev.Key(key.KeyID)
		if !ok {
			if key.ValidUntil != "" || key.RevokedAt != "" {
				b.History = []trust.Validity{{
					Sequence: 1, RecordedAt: lexical.FormatMicros(now), ValidUntil: key.ValidUntil, RevokedAt: key.RevokedAt,
				}}
			}
			added = append(added, b)
			declared = append(declared, b)
			continue
		}
		change, later, err := m.narrowing(known, key.ValidUntil, key.RevokedAt)
		if err != nil {
			return nil, nil, err
		}
		if later {
			return nil, nil, &trust.BindingFault{KeyID: key.KeyID, Reason: trust.FaultBoundaryLater}
		}
		if change != nil {
			b.History = []trust.Validity{*change}
			changed = append(changed, b)
		}
		declared = append(declared, b)
	}
	_, err = ev.Extend(revision, declared)
	return added, changed, err
}

// ApplyCard registers a signed and admitted card inside the caller's
// transaction, under the head's lock, as the fact that the Command
// agent_card_register states. The refusals of CheckCard are repeated on the
// revision the lock protects; the caller must roll back on any error. by is the
// Principal that becomes the author of the key records.
//
// It is what the Authority's pipeline calls; the Directory of this process
// follows by itself after the commit.
func ApplyCard(ctx context.Context, tx Querier, d *Directory, document []byte, signingHash string, by protocol.Actor, future time.Duration) error {
	m, err := d.begin(ctx, tx, by)
	if err != nil {
		return err
	}
	return m.applyCard(ctx, document, signingHash, future)
}

func (m *mutation) applyCard(ctx context.Context, document []byte, signingHash string, future time.Duration) error {
	card, err := decodeCard(document)
	if err != nil {
		return err
	}
	if perr := CheckCard(m.base, &card.Card, m.now, future); perr != nil {
		return perr
	}
	added, changed, err := cardKeys(m.base.Evidence, &card.Card, m.revision, m.now)
	if err != nil {
		return refuse(err)
	}
	for _, b := range added {
		if err := m.insertKey(ctx, b); err != nil {
			return err
		}
	}
	for _, b := range append(added, changed...) {
		for _, v := range b.History {
			err := insertValidity(ctx, m.tx, b.KeyID, v.Sequence, ValidityRecord{
				ChangedAt: v.RecordedAt, ChangedBy: m.by, ValidUntil: v.ValidUntil, RevokedAt: v.RevokedAt,
			}, m.revision)
			if err != nil {
				return err
			}
		}
	}
	return insertCard(ctx, m.tx, card, signingHash, m.revision, m.now)
}

// RegisterCard checks an unsigned card, signs it with the Organization's key and
// has it registered. It returns the signed bytes. v has passed the shape of a
// card without signature.
func (s *Service) RegisterCard(ctx context.Context, author Author, v strictjson.Value) ([]byte, error) {
	if w := author.Write; w != nil {
		if err := w.Unused(ctx, s.cfg.Pool); err != nil {
			return nil, err
		}
	}
	view, err := s.cfg.Directory.Current(ctx)
	if err != nil {
		return nil, err
	}
	var card protocol.AgentCard
	if err := strictjson.Decode(v, &card); err != nil {
		return nil, err
	}
	now := s.cfg.Now()
	if perr := CheckCard(view, &card, now, s.cfg.Future); perr != nil && !s.isPresent(view, &card, v) {
		return nil, perr
	}
	document, err := s.signCard(view, v)
	if err != nil {
		return nil, err
	}
	if s.cfg.Submit == nil {
		return document, s.RegisterSignedCard(ctx, author, document)
	}
	command, err := s.cardCommand(document, author.Write, now)
	if err != nil {
		return nil, err
	}
	if _, _, perr := s.cfg.Submit(ctx, command); perr != nil {
		return nil, perr
	}
	if author.Write != nil {
		if err := author.Write.Record(ctx, s.cfg.Pool); err != nil {
			return nil, err
		}
	}
	s.follow(ctx)
	return document, nil
}

// isPresent reports whether exactly this card is registered already: by a body
// whose answer was lost. The Authority then answers with the receipt, or refuses
// the version to a body that is a new one.
func (s *Service) isPresent(view *View, card *protocol.AgentCard, v strictjson.Value) bool {
	present, ok := view.Agent(card.AgentID)
	if !ok || present.Version != card.CardVersion || s.cfg.Submit == nil {
		return false
	}
	document, err := s.signCard(view, v)
	return err == nil && bytes.Equal(document, present.Document)
}

// signCard signs and then verifies what it signed: a card whose issuedAt our key
// cannot sign for is refused here and not by everyone who reads it.
func (s *Service) signCard(view *View, v strictjson.Value) ([]byte, error) {
	if !lexical.IsUTCZ(v.Member("issuedAt").Str()) {
		return nil, invalid("timestamp")
	}
	document, _, err := trust.SignDocument(protocol.KindAgentCard, v, s.cfg.Signer)
	if err != nil {
		var canonical *strictjson.CanonicalError
		if errors.As(err, &canonical) {
			return nil, protocol.NewError(protocol.CodeProtocolViolation, "data_model").WithCause(err)
		}
		return nil, err
	}
	if _, failure := trust.VerifyBytes(protocol.KindAgentCard, document, view.Evidence); failure != nil {
		return nil, invalid("timestamp").WithCause(failure.Diagnostic())
	}
	return document, nil
}

// cardCommand commands the registration. For a signed body the Command follows
// from the body alone: when the Authority's answer was lost, the same body makes
// the same Command and gets the same receipt, instead of a second registration.
func (s *Service) cardCommand(document []byte, w *signedwrite.Write, now time.Time) ([]byte, error) {
	payload, err := strictjson.Marshal(struct {
		AgentCard protocol.Raw `json:"agentCard"`
	}{document})
	if err != nil {
		return nil, err
	}
	c := protocol.Command{
		ProtocolVersion: protocol.Version,
		Actor:           s.cfg.Signer.Principal,
		Kind:            protocol.CommandAgentCardRegister,
		Payload:         payload,
	}
	if w != nil {
		c.ActionID = "urn:missionweave:write:" + strings.TrimPrefix(w.Signed.SigningHash, "sha256:")
		c.IssuedAt = w.Signed.ProtectedText
	} else {
		c.ActionID, c.IssuedAt = s.cfg.Mint(), lexical.FormatMicros(now)
	}
	c.CorrelationID = c.ActionID
	command, _, err := trust.SignDocument(protocol.KindCommand, &c, s.cfg.Signer)
	return command, err
}

// RegisterSignedCard registers a card without the Authority: all six stages, the
// issuer's duty, the rules of CheckCard, and the Event of the fact, in one
// transaction.
func (s *Service) RegisterSignedCard(ctx context.Context, author Author, document []byte) error {
	return s.mutate(ctx, author, func(m *mutation) error {
		return s.registerCard(ctx, m, document)
	})
}

func (s *Service) registerCard(ctx context.Context, m *mutation, document []byte) error {
	verified, failure := trust.VerifyBytes(protocol.KindAgentCard, document, m.base.Evidence)
	if failure != nil {
		return failure.Error()
	}
	if !m.base.HasRole(verified.Principal, RoleRegistry) {
		return protocol.NewError(protocol.CodeAuthForbidden, "card_issuer").WithStep("P17")
	}
	if err := m.applyCard(ctx, document, verified.SigningHash, s.cfg.Future); err != nil {
		return err
	}
	if err := s.admit(ctx, m, verified); err != nil {
		return err
	}
	return s.cardFact(ctx, m, verified, document)
}

// Card returns a version of an Agent's card, 0 meaning the present one;
// ErrUnknown when there is none.
func (s *Service) Card(ctx context.Context, agentID string, version int64) ([]byte, error) {
	query, args := `SELECT c.document FROM agents a JOIN agent_cards c USING (agent_id, card_version) WHERE agent_id = $1`, []any{agentID}
	if version > 0 {
		query, args = `SELECT document FROM agent_cards WHERE agent_id = $1 AND card_version = $2`, []any{agentID, version}
	}
	var document []byte
	err := s.cfg.Pool.QueryRow(ctx, query, args...).Scan(&document)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrUnknown
	}
	return document, err
}

// CardFilter selects present cards. Empty members select all; After is the last
// Agent id of the page before.
type CardFilter struct {
	Capability, Status, After string
	Limit                     int
}

// Cards lists the present cards in the order of their Agent ids, with the id to
// continue after, "" at the end.
func (s *Service) Cards(ctx context.Context, f CardFilter) (documents [][]byte, next string, err error) {
	rows, err := s.cfg.Pool.Query(ctx, `
		SELECT a.agent_id, c.document FROM agents a JOIN agent_cards c USING (agent_id, card_version)
		WHERE ($1 = '' OR a.capabilities @> ARRAY[$1]) AND ($2 = '' OR a.status = $2) AND a.agent_id > $3
		ORDER BY a.agent_id LIMIT $4`, f.Capability, f.Status, f.After, f.Limit+1)
	if err != nil {
		return nil, "", err
	}
	var agentID, last string
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&agentID, &document}, func() error {
		if len(documents) == f.Limit {
			next = last
			return nil
		}
		documents = append(documents, append([]byte(nil), document...))
		last = agentID
		return nil
	})
	return documents, next, err
}
