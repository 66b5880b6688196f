package client

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"

	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// nonce is 16 random bytes as base64url.
func nonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return lexical.EncodeBase64URL(b[:])
}

// errChallenge is deliberately without detail: whoever sent such a challenge
// is not a server of this protocol.
var errChallenge = errors.New("client: the server's challenge is not one; it was not signed")

// signChallenge checks a challenge and signs its decoded bytes. own holds the
// members that must have the caller's values; the remaining members must be
// exactly the ones the server chooses (COMMANDS.md 8.1). A challenge that is
// anything else could be a Command, and is not signed.
func signChallenge(challenge string, own map[string]string, key ed25519.PrivateKey) (string, error) {
	transcript, err := lexical.DecodeBase64URL(challenge)
	if err != nil {
		return "", errChallenge
	}
	doc, err := strictjson.Parse(transcript)
	if err != nil || doc.Root().Kind() != strictjson.Object {
		return "", errChallenge
	}
	canonical, err := doc.Root().AppendJCS(nil)
	if err != nil || !bytes.Equal(canonical, transcript) {
		return "", errChallenge
	}
	theirs := []string{"challengeId", "expiresAt", "serverNonce"}
	if doc.Root().Len() != len(own)+len(theirs) {
		return "", errChallenge
	}
	for name, value := range own {
		if v, ok := doc.Root().Get(name); !ok || v.Kind() != strictjson.String || v.Str() != value {
			return "", errChallenge
		}
	}
	for _, name := range theirs {
		if v, ok := doc.Root().Get(name); !ok || v.Kind() != strictjson.String {
			return "", errChallenge
		}
	}
	return lexical.EncodeBase64URL(ed25519.Sign(key, transcript)), nil
}
