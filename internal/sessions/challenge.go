package sessions

import (
	"context"
	"crypto/ed25519"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/transcript"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// maxChallenge is the longest challenge that a frame may hold (common.schema,
// base64url).
const maxChallenge = 4096

// expiredPerInsert is how many forgotten challenges each new one sweeps away:
// more than one, so that the table shrinks after a flood.
const expiredPerInsert = 8

// unproven is the one answer to every failed proof; why is for the audit.
func unproven(why string) *protocol.Error {
	return protocol.NewError(protocol.CodeAuthInvalidSignature, why)
}

// challenge makes a transcript and keeps it where any replica finds it.
func (s *Service) challenge(ctx context.Context, purpose transcript.Purpose, principal protocol.Actor, keyID, clientNonce string) (transcript.Transcript, string, *protocol.Error) {
	now := s.cfg.Now()
	expiresAt := now.Add(s.cfg.ChallengeLife).UTC().Truncate(time.Microsecond)
	t := transcript.New(purpose, principal, keyID, clientNonce, random[[32]byte](), random[[18]byte](), expiresAt)
	b, err := t.Bytes()
	if err != nil {
		return t, "", protocol.Internal(err)
	}
	challenge := lexical.EncodeBase64URL(b)
	if len(challenge) > maxChallenge {
		return t, "", protocol.NewError(protocol.CodeSchemaValidationFailed, "").
			WithDetail("path", "/clientNonce").WithDetail("keyword", shape.KeywordMaxLength)
	}
	_, err = s.cfg.Pool.Exec(ctx, `
		WITH expired AS (
			DELETE FROM challenges WHERE server_nonce IN (
				SELECT server_nonce FROM challenges WHERE expires_at < $5 ORDER BY expires_at LIMIT $6 FOR UPDATE SKIP LOCKED)
		)
		INSERT INTO challenges (server_nonce, purpose, transcript, expires_at) VALUES ($1, $2, $3, $4)`,
		t.ServerNonce, string(purpose), b, expiresAt, now, expiredPerInsert)
	if err != nil {
		return t, "", protocol.Internal(err)
	}
	return t, challenge, nil
}

// take takes a challenge out: whoever does has the only chance to answer it.
func (s *Service) take(ctx context.Context, purpose transcript.Purpose, serverNonce string) (t transcript.Transcript, signed []byte, perr *protocol.Error) {
	var kept transcript.Purpose
	var expiresAt time.Time
	err := s.cfg.Pool.QueryRow(ctx, `
		DELETE FROM challenges WHERE server_nonce = $1 RETURNING purpose, transcript, expires_at`,
		serverNonce).Scan(&kept, &signed, &expiresAt)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return t, nil, unproven("no_challenge")
	case err != nil:
		return t, nil, protocol.Internal(err)
	case kept != purpose:
		return t, nil, unproven("other_purpose")
	case !s.cfg.Now().Before(expiresAt):
		return t, nil, unproven("challenge_expired")
	}
	if t, err = transcript.Read(purpose, signed); err != nil {
		return t, nil, protocol.Internal(err)
	}
	return t, signed, nil
}

// prove verifies the signature over a transcript, and that its Principal may have
// a credential now. ends are the ends that a credential must not outlive.
func (s *Service) prove(view *registry.View, t transcript.Transcript, signed []byte, signature string) (ends []optionalTime, perr *protocol.Error) {
	public := ed25519.PublicKey(s.decoy.Private[ed25519.SeedSize:])
	if key, ok := view.Evidence.Key(t.KeyID); ok {
		public = key.PublicKey()
	}
	raw, err := lexical.DecodeBase64URL(signature)
	if err != nil || len(raw) != ed25519.SignatureSize {
		raw = make([]byte, ed25519.SignatureSize)
	}
	// With a public key that is proven to be in the prime-order subgroup, the
	// equation holds for no other R than one of it; S is checked here because the
	// rule is ours and not the library's.
	proven := trust.CheckS(raw[32:]) == nil && ed25519.Verify(public, signed, raw)
	ends, reason := s.holder(view, t.Principal, t.KeyID)
	switch {
	case reason != "":
		return nil, unproven(reason)
	case err != nil:
		return nil, unproven("signature_encoding").WithCause(err)
	case !proven:
		return nil, unproven("signature")
	}
	return ends, nil
}
