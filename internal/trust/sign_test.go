package trust

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"pgregory.net/rapid"
)

// typedDocument decodes a document of testdata into its Go type, as pointer.
func typedDocument(t testing.TB, kind protocol.DocumentKind) any {
	t.Helper()
	dst := map[protocol.DocumentKind]any{
		protocol.KindAgentCard: new(protocol.AgentCard), protocol.KindApproval: new(protocol.Approval),
		protocol.KindArtifact: new(protocol.Artifact), protocol.KindCommand: new(protocol.Command),
		protocol.KindContextPackage: new(protocol.ContextPackage), protocol.KindEvent: new(protocol.Event),
		protocol.KindEvidence: new(protocol.Evidence), protocol.KindExtensionProfile: new(protocol.ExtensionProfile),
		protocol.KindGroupSnapshot: new(protocol.GroupSnapshot),
	}[kind]
	if err := strictjson.Decode(parse(t, unsignedDocument(t, kind)), dst); err != nil {
		t.Fatal(err)
	}
	return dst
}

// valueOf is the document that p points to, without the pointer.
func valueOf(p any) any {
	switch d := p.(type) {
	case *protocol.AgentCard:
		return *d
	case *protocol.Approval:
		return *d
	case *protocol.Artifact:
		return *d
	case *protocol.Command:
		return *d
	case *protocol.ContextPackage:
		return *d
	case *protocol.Event:
		return *d
	case *protocol.Evidence:
		return *d
	case *protocol.ExtensionProfile:
		return *d
	case *protocol.GroupSnapshot:
		return *d
	}
	panic("no document")
}

// Whatever form a document is given in, and signed however often, its bytes,
// hash and envelope are the same.
func TestSigningFormsAgree(t *testing.T) {
	ev := testEvidence(t)
	for _, kind := range signedKinds() {
		t.Run(string(kind), func(t *testing.T) {
			signer := documentSigners[kind]
			text := unsignedDocument(t, kind)
			want, wantHash, err := SignDocument(kind, text, signer)
			if err != nil {
				t.Fatal(err)
			}
			typed := typedDocument(t, kind)
			for name, doc := range map[string]any{
				"pointer": typed, "value": valueOf(typed), "json": parse(t, text), "raw": protocol.Raw(text),
				"bytes": text, "already signed": want, "signed by another": signedWithAnother(t, kind),
			} {
				got, hash, err := SignDocument(kind, doc, signer)
				if err != nil {
					t.Errorf("%s: %v", name, err)
				} else if !bytes.Equal(got, want) || hash != wantHash {
					t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
				}
			}
			again, _, err := SignDocument(kind, typed, signer)
			if err != nil || !bytes.Equal(again, want) {
				t.Errorf("signing the signed pointer again: %v", err)
			}
			whole, err := strictjson.Marshal(typed)
			if err != nil || !bytes.Equal(whole, want) {
				t.Errorf("the pointer's own signature is not the one in the bytes (%v)", err)
			}
			if prefixed, _, err := AppendSigned([]byte("x"), kind, typed, signer); err != nil || string(prefixed) != "x"+string(want) {
				t.Errorf("AppendSigned: %v", err)
			}
			if _, failure := VerifyBytes(kind, want, ev); failure != nil {
				t.Error(failure)
			}
		})
	}
}

func signedWithAnother(t *testing.T, kind protocol.DocumentKind) []byte {
	s := documentSigners[kind]
	s.KeyID, s.Private = "urn:test:key:another", testKey(77)
	return resign(t, kind, unsignedDocument(t, kind), s)
}

func TestSigningRefuses(t *testing.T) {
	command := unsignedDocument(t, protocol.KindCommand)
	noKey, shortKey, badID := ben, ben, ben
	noKey.Private, shortKey.Private, badID.KeyID = nil, ben.Private[:32], "ben's key"
	for _, c := range []struct {
		name   string
		kind   protocol.DocumentKind
		doc    any
		signer Signer
		want   error
	}{
		{"no key", protocol.KindCommand, command, noKey, ErrSignerKey},
		{"a seed instead of a key", protocol.KindCommand, command, shortKey, ErrSignerKey},
		{"a key without a proper id", protocol.KindCommand, command, badID, ErrSignerKey},
		{"another Principal", protocol.KindCommand, command, ann, ErrSigner},
		{"a human for an Agent Card", protocol.KindAgentCard, unsignedDocument(t, protocol.KindAgentCard), ann, ErrSigner},
		{"a protected time with an offset", protocol.KindCommand, setMember(t, command, "issuedAt", `"2031-03-02T09:30:00+01:00"`), ben, ErrTime},
		{"no protected time", protocol.KindCommand, setMember(t, command, "issuedAt", ""), ben, ErrTime},
		{"a kind that is not signed", protocol.KindMessage, command, ben, ErrNotSignable},
		{"a type that is not signed", protocol.KindCommand, &protocol.Message{}, ben, ErrNotSignable},
		{"the type of another kind", protocol.KindCommand, &protocol.Event{}, ben, ErrNotSignable},
		{"nothing", protocol.KindCommand, nil, ben, ErrNotSignable},
		{"an array", protocol.KindCommand, []byte("[]"), ben, ErrNotSignable},
	} {
		if out, _, err := SignDocument(c.kind, c.doc, c.signer); !errors.Is(err, c.want) || len(out) != 0 {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	var syntax *strictjson.SyntaxError
	if _, _, err := SignDocument(protocol.KindCommand, []byte("{"), ben); !errors.As(err, &syntax) {
		t.Errorf("broken JSON: %v", err)
	}
	var canonical *strictjson.CanonicalError
	if _, _, err := SignDocument(protocol.KindCommand, setMember(t, command, "payload.x", "1e400"), ben); !errors.As(err, &canonical) {
		t.Errorf("a number beyond binary64: %v", err)
	}
	if _, err := NewSigner(ben.KeyID, ben.Principal, make([]byte, 31)); !errors.Is(err, ErrSignerKey) {
		t.Errorf("short seed: %v", err)
	}
}

func TestPrintingASignerShowsNoKey(t *testing.T) {
	seed := fmt.Sprintf("%d", ben.Private[:4])
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, v := range []any{ben, &ben} {
			if text := fmt.Sprintf(format, v); strings.Contains(text, strings.Trim(seed, "[]")) || !strings.Contains(text, ben.KeyID) {
				t.Errorf("%s prints %s", format, text)
			}
		}
	}
}

// The place of the signature member must be the one that a full canonicalisation
// gives it, whatever the other names are.
func TestSpliceEqualsCanonicalisation(t *testing.T) {
	name := rapid.OneOf(rapid.StringMatching(`[a-z]{0,4}`), rapid.String(),
		rapid.SampledFrom([]string{"sig", "signatur", "signature2", "signatures", "signaturd", "signaturf", "s\n", "signatur\x00", "ſ", "\ue000", "😀", `"`, `\`, ""}))
	value := rapid.SampledFrom([]string{`1`, `"}"`, `"\","`, `[{"signature":"]"}]`, `{"a":{"b":[]},"z":"{"}`, `null`, `""`, `"\\"`})
	rapid.Check(t, func(t *rapid.T) {
		members := map[string]protocol.Raw{}
		for k, v := range rapid.MapOf(name, value).Draw(t, "members") {
			if k != "signature" {
				members[k] = protocol.Raw(v)
			}
		}
		jcs, err := strictjson.Marshal(members)
		if err != nil {
			t.Skip("not canonical")
		}
		sig := protocol.Signature{Algorithm: Algorithm, KeyID: "urn:k", CreatedAt: day1, Value: "AA"}
		got, err := splice(nil, jcs, sig)
		if err != nil {
			t.Fatal(err)
		}
		members["signature"] = marshal(sig)
		if want := marshal(members); !bytes.Equal(got, want) {
			t.Fatalf("%s\nwant\n%s", got, want)
		}
	})
}

func TestSignedBodies(t *testing.T) {
	ev := testEvidence(t)
	body := []byte(`{"keyId":"urn:test:key:new","n":1.0,"a":{"signature":"inner"}}`)
	signed, err := SignBody(body, documentTime, gate)
	if err != nil {
		t.Fatal(err)
	}
	v, failure := VerifyBody(parse(t, signed), gate.Principal, ev)
	if failure != nil {
		t.Fatal(failure)
	}
	if v.Kind != "" || v.Principal != gate.Principal || v.ProtectedText != documentTime {
		t.Errorf("verified %+v", v)
	}
	if again, err := SignBody(signed, documentTime, gate); err != nil || !bytes.Equal(again, signed) {
		t.Errorf("signing the signed body again: %v", err)
	}
	for name, c := range map[string]struct {
		bytes  []byte
		signer protocol.Actor
		stage  Stage
	}{
		"no time":                     {setMember(t, signed, "requestedAt", ""), gate.Principal, StageSchema},
		"a time that is none":         {setMember(t, signed, "requestedAt", `7`), gate.Principal, StageSchema},
		"no signature":                {setMember(t, signed, "signature", ""), gate.Principal, StageSchema},
		"another algorithm":           {setMember(t, signed, "signature.algorithm", `"none"`), gate.Principal, StageSchema},
		"a member in the envelope":    {setMember(t, signed, "signature.x", `1`), gate.Principal, StageSchema},
		"another time":                {setMember(t, signed, "requestedAt", quote(day3)), gate.Principal, StageEnvelope},
		"another Principal":           {signed, ann.Principal, StageKey},
		"any Principal of a type":     {signed, protocol.Actor{Type: protocol.ActorService}, StageKey},
		"an unknown key":              {setMember(t, signed, "signature.keyId", `"urn:test:key:x"`), gate.Principal, StageKey},
		"a changed member":            {setMember(t, signed, "n", "2"), gate.Principal, StageSignature},
		"a changed nested signature":  {setMember(t, signed, "a.signature", `"outer"`), gate.Principal, StageSignature},
		"a member added":              {setMember(t, signed, "m", "2"), gate.Principal, StageSignature},
		"a number outside the domain": {bytes.Replace(signed, []byte(`"n":1`), []byte(`"n":1e999`), 1), gate.Principal, StageCanonical},
		"an array":                    {[]byte("[]"), gate.Principal, StageSchema},
	} {
		if _, failure := VerifyBody(parse(t, c.bytes), c.signer, ev); failure == nil || failure.Stage != c.stage {
			t.Errorf("%s: %v, want %s", name, failure, c.stage)
		}
	}
	for name, bad := range map[string][]byte{"an array": []byte("[]"), "no JSON": []byte("{"), "a lone surrogate": []byte(`{"a":"\ud800"}`)} {
		if _, err := SignBody(bad, documentTime, gate); err == nil {
			t.Errorf("%s was signed", name)
		}
	}
	if _, err := SignBody(body, "2031-03-02T08:30:00+00:00", gate); !errors.Is(err, ErrTime) {
		t.Errorf("offset: %v", err)
	}
	if _, err := SignBody(body, documentTime, Signer{KeyID: gate.KeyID}); !errors.Is(err, ErrSignerKey) {
		t.Errorf("no key: %v", err)
	}
}

func TestSignerBinding(t *testing.T) {
	s, err := NewSigner(ben.KeyID, ben.Principal, ben.Private.Seed())
	if err != nil {
		t.Fatal(err)
	}
	if s.PublicKey() != b64(ben.Private.Public().(ed25519.PublicKey)) {
		t.Error("public key differs")
	}
	if (Signer{}).PublicKey() != "" {
		t.Error("a Signer without a key has a public key")
	}
}
