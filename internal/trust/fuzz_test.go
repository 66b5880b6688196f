package trust

import (
	"bytes"
	"crypto/ed25519"
	"testing"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// stageByTheBook runs the stages strictly one after another, each complete before
// the next begins. It is slow and obvious, and what VerifyBytes must agree with.
func stageByTheBook(kind protocol.DocumentKind, b []byte, ev *Evidence) Stage {
	doc, err := strictjson.Parse(b)
	if err != nil {
		return StageParse
	}
	v := doc.Root()
	if protocol.Validate(kind, v) != nil {
		return StageSchema
	}
	rule, sig := protocol.SignedKinds[kind], v.Member("signature")
	at := v.Member(rule.ProtectedTime).Str()
	raw, err := lexical.DecodeBase64URL(sig.Member("value").Str())
	if !lexical.IsUTCZ(at) || sig.Member("createdAt").Str() != at || err != nil || len(raw) != 64 ||
		CheckR(raw[:32]) != nil || CheckS(raw[32:]) != nil {
		return StageEnvelope
	}
	in, err := lexical.ParseTimestamp(at)
	if err != nil {
		return StageEnvelope
	}
	key, ok := ev.Key(sig.Member("keyId").Str())
	signer := rule.Signer(v)
	if !ok || key.Principal().Type != signer.Type || signer.ID != "" && key.Principal() != signer ||
		!key.Interval().Contains(in) || CheckPublicKey(key.PublicKey()) != nil {
		return StageKey
	}
	signing, err := SigningBytes(v)
	if err != nil {
		return StageCanonical
	}
	if !ed25519.Verify(key.PublicKey(), signing, raw) {
		return StageSignature
	}
	return 0
}

func FuzzVerify(f *testing.F) {
	ev := benFrom(f, day1, until(1, day1, day4))
	ev, err := ev.Extend(9, []Binding{gate.Binding(day1)})
	if err != nil {
		f.Fatal(err)
	}
	kinds := signedKinds()
	for i, kind := range kinds {
		signed := signedDocument(f, kind)
		f.Add(uint8(i), signed)
		f.Add(uint8(i), unsignedDocument(f, kind))
		f.Add(uint8(i), forge(f, signed, documentSigners[kind], torsion(f)))
		f.Add(uint8(i), withSignature(f, signed, make([]byte, 64)))
		f.Add(uint8(i), signed[:len(signed)/2])
	}
	f.Fuzz(func(t *testing.T, k uint8, b []byte) {
		kind := kinds[int(k)%len(kinds)]
		v, failure := VerifyBytes(kind, b, ev)
		var got Stage
		if failure != nil {
			got = failure.Stage
			_ = failure.String()
			_ = failure.Error().Error()
		}
		if (v == nil) != (failure != nil) {
			t.Fatal("neither or both of a verdict and a failure")
		}
		if want := stageByTheBook(kind, b, ev); got != want {
			t.Fatalf("stage %d, by the book %d", got, want)
		}
	})
}

// FuzzSign: what is signed verifies, is canonical, and stops verifying when one
// bit of it changes, unless the change leaves the canonical form alone.
func FuzzSign(f *testing.F) {
	ev := testEvidence(f)
	f.Add([]byte(`{"a":[1,2.5,"x",null,true,{"signature":"y"}]}`), uint(100), uint8(3))
	f.Add([]byte(`{"\u0000":"\ud83d\ude00","n":-1e-300}`), uint(700), uint8(5))
	f.Add([]byte(`{}`), uint(0), uint8(0))
	f.Fuzz(func(t *testing.T, payload []byte, position uint, bit uint8) {
		doc, err := strictjson.Parse(payload)
		if err != nil || doc.Root().Kind() != strictjson.Object {
			t.Skip()
		}
		canonical, err := doc.Root().JCS()
		if err != nil {
			t.Skip()
		}
		command := *typedDocument(t, protocol.KindCommand).(*protocol.Command)
		command.Payload = canonical
		signed, hash, err := SignDocument(protocol.KindCommand, command, ben)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := strictjson.Canonicalize(signed); err != nil {
			// A payload at the depth limit is one level deeper in its Command.
			t.Skip()
		} else if !bytes.Equal(again, signed) {
			t.Fatalf("not canonical: %s", signed)
		}
		v, failure := VerifyBytes(protocol.KindCommand, signed, ev)
		if failure != nil {
			t.Fatalf("%s: %s", failure, signed)
		}
		if v.SigningHash != hash {
			t.Fatalf("hash %s, signed %s", v.SigningHash, hash)
		}
		flipped := bytes.Clone(signed)
		flipped[position%uint(len(flipped))] ^= 1 << (bit % 8)
		checkFlip(t, protocol.KindCommand, signed, flipped, ev)
	})
}

func checkFlip(t *testing.T, kind protocol.DocumentKind, signed, flipped []byte, ev *Evidence) {
	t.Helper()
	if _, failure := VerifyBytes(kind, flipped, ev); failure != nil {
		return
	}
	if canonical, err := strictjson.Canonicalize(flipped); err != nil || !bytes.Equal(canonical, signed) {
		t.Fatalf("a changed document verifies:\n%s\nwas\n%s", flipped, signed)
	}
}

func TestAnyFlippedBitFails(t *testing.T) {
	ev := testEvidence(t)
	for _, kind := range signedKinds() {
		signed := signedDocument(t, kind)
		for i := range signed {
			flipped := bytes.Clone(signed)
			flipped[i] ^= 1 << (i * 5 % 8)
			checkFlip(t, kind, signed, flipped, ev)
		}
	}
}

func FuzzRecord(f *testing.F) {
	ev := testEvidence(f)
	command, event := verified(f, protocol.KindCommand, ev), verified(f, protocol.KindEvent, ev)
	for _, v := range []*Verified{command, event} {
		f.Add(marshal(candidateRecord(v, testOrg, Acceptance{recordID, day3, keeper})))
		f.Add(v.Value.Raw())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []*Verified{command, event} {
			rec, failure := ValidateRecordBytes(b, v, keeper)
			if failure != nil {
				if failure.Stage != StageAdmission {
					t.Fatalf("stage %s", failure.Stage)
				}
				continue
			}
			if typed := ValidateRecord(rec, v, keeper); typed != nil {
				t.Fatalf("text accepted, typed form refused: %s", typed)
			}
		}
	})
}

// FuzzEvidence: however bindings are declared, evidence that comes into being
// keeps the Organization-wide rules.
func FuzzEvidence(f *testing.F) {
	f.Add("urn:k:1", "urn:p:1", ann.PublicKey(), day1, day2, day3, int64(1))
	f.Add("urn:k:1", "urn:p:1", ben.PublicKey(), "2031-03-01T00:00:00.1+01:00", "", day3, int64(2))
	f.Fuzz(func(t *testing.T, keyID, principal, public, from, untilAt, revokedAt string, seq int64) {
		b := Binding{
			KeyID: keyID, Principal: protocol.Actor{Type: protocol.ActorHuman, ID: principal},
			Algorithm: Algorithm, PublicKey: public, ValidFrom: from,
			History: history(Validity{Sequence: seq, RecordedAt: day1, ValidUntil: untilAt, RevokedAt: revokedAt}),
		}
		ev, err := NewEvidence(testOrg, 1, []Binding{ann.Binding(day1), b})
		if err != nil {
			if faultReason(err) == "" {
				t.Fatalf("no reason: %v", err)
			}
			return
		}
		owners := map[string]string{}
		for k := range ev.All() {
			if CheckPublicKey(k.PublicKey()) != nil || !lexical.ValidID(k.ID()) {
				t.Fatalf("malformed key %+v", k.Binding())
			}
			if other, taken := owners[string(k.PublicKey())]; taken {
				t.Fatalf("%s and %s share a point", other, k.ID())
			}
			owners[string(k.PublicKey())] = k.ID()
		}
	})
}
