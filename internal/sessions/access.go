package sessions

import (
	"bytes"
	"context"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/transcript"
)

// AccessRequest is the body of POST /v1/access/challenge.
type AccessRequest struct {
	Principal   protocol.Actor `json:"principal"`
	KeyID       string         `json:"keyId"`
	ClientNonce string         `json:"clientNonce"`
}

// AccessChallenge answers it. Challenge is base64url of the bytes to sign.
type AccessChallenge struct {
	Challenge   string `json:"challenge"`
	ServerNonce string `json:"serverNonce"`
	ExpiresAt   string `json:"expiresAt"`
}

// AccessProof is the body of POST /v1/access/token.
type AccessProof struct {
	Challenge          string `json:"challenge"`
	ChallengeSignature string `json:"challengeSignature"`
	KeyID              string `json:"keyId"`
}

// AccessGrant answers it.
type AccessGrant struct {
	AccessToken string `json:"accessToken"`
	ExpiresAt   string `json:"expiresAt"`
}

// Shapes of the two bodies.
var (
	ShapeAccessRequest = shape.Object(
		shape.Req("principal", protocol.ShapeActor),
		shape.Req("keyId", protocol.ShapeID),
		shape.Req("clientNonce", protocol.ShapeBase64URL),
	)
	ShapeAccessProof = shape.Object(
		shape.Req("challenge", protocol.ShapeBase64URL),
		shape.Req("challengeSignature", protocol.ShapeBase64URL),
		shape.Req("keyId", protocol.ShapeID),
	)
)

// ChallengeAccess makes a challenge for any Principal. Whether the Principal and
// the key exist is not disclosed: a challenge is always made.
func (s *Service) ChallengeAccess(ctx context.Context, r AccessRequest) (AccessChallenge, *protocol.Error) {
	t, challenge, perr := s.challenge(ctx, transcript.Access, r.Principal, r.KeyID, r.ClientNonce)
	if perr != nil {
		return AccessChallenge{}, perr
	}
	return AccessChallenge{Challenge: challenge, ServerNonce: t.ServerNonce, ExpiresAt: t.ExpiresAt}, nil
}

// GrantAccess trades the signature of a challenge for an access token. The token
// lives no longer than its key and, for an Agent, its card. Every failed proof is
// the neutral AUTH_INVALID_SIGNATURE.
func (s *Service) GrantAccess(ctx context.Context, p AccessProof) (AccessGrant, *protocol.Error) {
	offered, err := lexical.DecodeBase64URL(p.Challenge)
	if err != nil {
		return AccessGrant{}, unproven("challenge_encoding")
	}
	claimed, err := transcript.Read(transcript.Access, offered)
	if err != nil {
		return AccessGrant{}, unproven("challenge_form")
	}
	t, signed, perr := s.take(ctx, transcript.Access, claimed.ServerNonce)
	if perr != nil {
		return AccessGrant{}, perr
	}
	if !bytes.Equal(signed, offered) || t.KeyID != p.KeyID {
		return AccessGrant{}, unproven("challenge_mismatch")
	}
	view, err := s.cfg.Directory.Current(ctx)
	if err != nil {
		return AccessGrant{}, protocol.Internal(err)
	}
	ends, perr := s.prove(view, t, signed, p.ChallengeSignature)
	if perr != nil {
		return AccessGrant{}, perr
	}
	signer, end, err := s.signing(ctx, view)
	if err != nil {
		return AccessGrant{}, protocol.Internal(err)
	}
	now := s.cfg.Now()
	id := Identity{
		Principal: t.Principal, KeyID: t.KeyID, Kind: AccessToken, TokenID: s.cfg.Mint(),
		ExpiresAt: earliest(now.Add(s.cfg.AccessLife), append(ends, end)...),
	}
	token, err := mint(signer, view.OrganizationID, id, now)
	if err != nil {
		return AccessGrant{}, protocol.Internal(err)
	}
	return AccessGrant{AccessToken: token, ExpiresAt: formatInstant(id.ExpiresAt)}, nil
}

// formatInstant is the form of expiresAt in answers.
func formatInstant(t time.Time) string { return lexical.FormatMicros(t) }
