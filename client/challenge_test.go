package client

import (
	"crypto/ed25519"
	"encoding/base64"
	"testing"
	"time"
)

func TestOnlyAChallengeOfTheProtocolIsSigned(t *testing.T) {
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	own := map[string]string{
		"agentId": "urn:x:agent", "keyId": "urn:x:key", "clientNonce": "bm9uY2U", "protocolVersion": "0.1",
	}
	const good = `{"agentId":"urn:x:agent","challengeId":"AAAA","clientNonce":"bm9uY2U",` +
		`"expiresAt":"2026-07-15T08:00:36+00:00","keyId":"urn:x:key","protocolVersion":"0.1","serverNonce":"BBBB"}`
	cases := map[string]struct {
		text   string
		signed bool
	}{
		"the seven members":        {good, true},
		"not canonical":            {" " + good, false},
		"another nonce":            {`{"agentId":"urn:x:agent","challengeId":"AAAA","clientNonce":"b3RoZXI","expiresAt":"2026-07-15T08:00:36+00:00","keyId":"urn:x:key","protocolVersion":"0.1","serverNonce":"BBBB"}`, false},
		"another Agent":            {`{"agentId":"urn:x:other","challengeId":"AAAA","clientNonce":"bm9uY2U","expiresAt":"2026-07-15T08:00:36+00:00","keyId":"urn:x:key","protocolVersion":"0.1","serverNonce":"BBBB"}`, false},
		"one member more":          {`{"agentId":"urn:x:agent","challengeId":"AAAA","clientNonce":"bm9uY2U","expiresAt":"2026-07-15T08:00:36+00:00","keyId":"urn:x:key","kind":"mission.approve","protocolVersion":"0.1","serverNonce":"BBBB"}`, false},
		"one member less":          {`{"agentId":"urn:x:agent","challengeId":"AAAA","clientNonce":"bm9uY2U","expiresAt":"2026-07-15T08:00:36+00:00","keyId":"urn:x:key","protocolVersion":"0.1"}`, false},
		"a member that is no text": {`{"agentId":"urn:x:agent","challengeId":{},"clientNonce":"bm9uY2U","expiresAt":"2026-07-15T08:00:36+00:00","keyId":"urn:x:key","protocolVersion":"0.1","serverNonce":"BBBB"}`, false},
		"a Command":                {`{"actionId":"urn:x:a","kind":"mission.approve"}`, false},
		"no JSON":                  {`approve`, false},
	}
	for name, c := range cases {
		signature, err := signChallenge(base64.RawURLEncoding.EncodeToString([]byte(c.text)), own, key)
		if signed := err == nil; signed != c.signed {
			t.Errorf("%s: signed is %v", name, signed)
		}
		if raw, _ := base64.RawURLEncoding.DecodeString(signature); c.signed && !ed25519.Verify(key.Public().(ed25519.PublicKey), []byte(c.text), raw) {
			t.Errorf("%s: the signature is not one over the decoded bytes", name)
		}
	}
	if _, err := signChallenge("not base64url!", own, key); err == nil {
		t.Error("a challenge that is no base64url was signed")
	}
}

func TestBackoffGrowsToItsBoundAndNeverBeyond(t *testing.T) {
	r := Retry{First: time.Millisecond, Most: 50 * time.Millisecond}
	for attempt := range 100 {
		if w := r.wait(attempt); w < 0 || w > r.Most {
			t.Fatalf("attempt %d waits %s", attempt, w)
		}
	}
}
