// Package transcript makes and reads the challenges that precede a session or an
// access token (COMMANDS.md 8.1; API.md, access tokens).
//
// The hazard it guards against is a signature over something else. The server
// signs nothing and the client signs bytes that the server chose, so the client
// has to see that they are a challenge, for itself: a false server could
// otherwise have it sign a Command. Read accepts exactly the canonical bytes of
// an object with exactly the members of a challenge; nothing that passes it can
// be the signing bytes of a Signed Document.
//
// The package is pure: nonces and times are arguments.
package transcript

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Purpose is what a challenge is for.
type Purpose string

// The two kinds of challenge. They differ in their members, so neither can be
// used as the other.
const (
	Session Purpose = "session"
	Access  Purpose = "access"
)

// ErrNotChallenge is bytes that are not a challenge, or not for the one who was
// to sign them.
var ErrNotChallenge = errors.New("not a challenge for this Principal and key")

// Transcript is what a challenge binds. Principal is an Agent for Session.
type Transcript struct {
	Purpose     Purpose
	Principal   protocol.Actor
	KeyID       string
	ClientNonce string
	ServerNonce string
	ChallengeID string
	// ExpiresAt is UTC in the form +00:00; see FormatExpiry.
	ExpiresAt string
}

// New makes a transcript from its random parts: 32 bytes for the server's nonce,
// 18 for the challenge id.
func New(purpose Purpose, principal protocol.Actor, keyID, clientNonce string, serverNonce [32]byte, challengeID [18]byte, expiresAt time.Time) Transcript {
	return Transcript{
		Purpose: purpose, Principal: principal, KeyID: keyID, ClientNonce: clientNonce,
		ServerNonce: lexical.EncodeBase64URL(serverNonce[:]),
		ChallengeID: lexical.EncodeBase64URL(challengeID[:]),
		ExpiresAt:   FormatExpiry(expiresAt),
	}
}

// FormatExpiry writes a time as YYYY-MM-DDTHH:MM:SS+00:00, with .ffffff before
// the offset only when there are microseconds.
func FormatExpiry(t time.Time) string {
	t = t.UTC().Truncate(time.Microsecond)
	if t.Nanosecond() == 0 {
		return t.Format("2006-01-02T15:04:05+00:00")
	}
	return t.Format("2006-01-02T15:04:05.000000+00:00")
}

// common, with one of the two types after it, is the exact set of members.
type common struct {
	ChallengeID     string `json:"challengeId"`
	ClientNonce     string `json:"clientNonce"`
	ExpiresAt       string `json:"expiresAt"`
	KeyID           string `json:"keyId"`
	ProtocolVersion string `json:"protocolVersion"`
	ServerNonce     string `json:"serverNonce"`
}

type sessionMembers struct {
	AgentID string `json:"agentId"`
	common
}

type accessMembers struct {
	PrincipalID   string `json:"principalId"`
	PrincipalType string `json:"principalType"`
	common
}

var (
	commonShape = shape.Object(
		shape.Req("challengeId", shape.String().Min(24).Max(24).Match(lexical.ValidBase64URL)),
		shape.Req("clientNonce", shape.String().Max(4096).Match(lexical.ValidBase64URL)),
		shape.Req("expiresAt", protocol.ShapeTimestamp),
		shape.Req("keyId", protocol.ShapeID),
		shape.Req("protocolVersion", protocol.ShapeVersion),
		shape.Req("serverNonce", shape.String().Min(43).Max(43).Match(lexical.ValidBase64URL)),
	)
	sessionShape = commonShape.Extend(shape.Req("agentId", protocol.ShapeID))
	accessShape  = commonShape.Extend(
		shape.Req("principalId", protocol.ShapeID),
		shape.Req("principalType", shape.Enum(protocol.ActorAgent, protocol.ActorHuman, protocol.ActorService)),
	)
)

// Bytes are the canonical bytes that are signed.
func (t Transcript) Bytes() ([]byte, error) {
	members := common{
		ChallengeID: t.ChallengeID, ClientNonce: t.ClientNonce, ExpiresAt: t.ExpiresAt,
		KeyID: t.KeyID, ProtocolVersion: protocol.Version, ServerNonce: t.ServerNonce,
	}
	if t.Purpose == Session {
		return strictjson.Marshal(sessionMembers{t.Principal.ID, members})
	}
	return strictjson.Marshal(accessMembers{t.Principal.ID, t.Principal.Type, members})
}

// Read reads the bytes of a challenge; anything but the canonical form of a
// transcript of this purpose is ErrNotChallenge.
func Read(purpose Purpose, b []byte) (Transcript, error) {
	doc, err := strictjson.Parse(b)
	if err != nil {
		return Transcript{}, fmt.Errorf("%w: %w", ErrNotChallenge, err)
	}
	want := accessShape
	if purpose == Session {
		want = sessionShape
	}
	v := doc.Root()
	if fault := want.Check(v); fault != nil {
		return Transcript{}, fmt.Errorf("%w: %w", ErrNotChallenge, fault)
	}
	text := func(name string) string { return v.Member(name).Str() }
	t := Transcript{
		Purpose: purpose, KeyID: text("keyId"), ClientNonce: text("clientNonce"),
		ServerNonce: text("serverNonce"), ChallengeID: text("challengeId"), ExpiresAt: text("expiresAt"),
		Principal: protocol.Actor{Type: text("principalType"), ID: text("principalId")},
	}
	if purpose == Session {
		t.Principal = protocol.Actor{Type: protocol.ActorAgent, ID: text("agentId")}
	}
	canonical, err := t.Bytes()
	if err != nil || !bytes.Equal(canonical, b) {
		return Transcript{}, fmt.Errorf("%w: not canonical", ErrNotChallenge)
	}
	return t, nil
}

// Check is the client's duty before it signs: it decodes a challenge and returns
// the bytes to sign if they are a transcript of this purpose for exactly this
// Principal, key and client nonce.
func Check(purpose Purpose, challenge string, principal protocol.Actor, keyID, clientNonce string) ([]byte, error) {
	b, err := lexical.DecodeBase64URL(challenge)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotChallenge, err)
	}
	t, err := Read(purpose, b)
	if err != nil {
		return nil, err
	}
	if t.Principal != principal || t.KeyID != keyID || t.ClientNonce != clientNonce {
		return nil, ErrNotChallenge
	}
	return b, nil
}
