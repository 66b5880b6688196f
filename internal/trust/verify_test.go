package trust

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha512"
	"errors"
	"math/big"
	"strings"
	"testing"

	"filippo.io/edwards25519"
	"github.com/google/go-cmp/cmp"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

func TestEveryKindVerifies(t *testing.T) {
	ev := testEvidence(t)
	for _, kind := range signedKinds() {
		t.Run(string(kind), func(t *testing.T) {
			signer := documentSigners[kind]
			signed := signedDocument(t, kind)
			v, failure := VerifyBytes(kind, signed, ev)
			if failure != nil {
				t.Fatal(failure)
			}
			hash, err := SigningHash(parse(t, unsignedDocument(t, kind)))
			if err != nil {
				t.Fatal(err)
			}
			got := Verified{
				Kind: v.Kind, OrganizationID: v.OrganizationID, Revision: v.Revision, SigningHash: v.SigningHash,
				KeyID: v.KeyID, Principal: v.Principal, ProtectedText: v.ProtectedText,
			}
			want := Verified{
				Kind: kind, OrganizationID: testOrg, Revision: ev.Revision(), SigningHash: hash,
				KeyID: signer.KeyID, Principal: signer.Principal, ProtectedText: documentTime,
			}
			if got != want {
				t.Errorf("verified %+v, want %+v", got, want)
			}
			if !v.ProtectedTime.Equal(instant(t, documentTime)) || !v.ValidFrom.Equal(instant(t, day1)) {
				t.Errorf("times %v from %v", v.ProtectedTime, v.ValidFrom)
			}
			if diff := cmp.Diff(signer.Binding(day1), v.Binding()); diff != "" {
				t.Errorf("binding (-want +got):\n%s", diff)
			}
			canonical, err := strictjson.Canonicalize(signed)
			if err != nil || !bytes.Equal(canonical, signed) {
				t.Errorf("a signed document is not its own canonical form (%v)", err)
			}
		})
	}
}

// A document is verified under the rule of the kind that was asked for.
func TestKindsAreNotInterchangeable(t *testing.T) {
	ev := testEvidence(t)
	for _, kind := range signedKinds() {
		signed := signedDocument(t, kind)
		for _, other := range signedKinds() {
			_, failure := VerifyBytes(other, signed, ev)
			if (failure == nil) != (kind == other) {
				t.Errorf("%s as %s: %v", kind, other, failure)
			}
		}
		for _, other := range []protocol.DocumentKind{protocol.KindMessage, protocol.KindFirstAdmissionRecord, "signed-anything", ""} {
			if _, failure := VerifySigned(other, parse(t, signed), ev); failure == nil || failure.Stage != StageEnvelope {
				t.Errorf("%s as %q: %v", kind, other, failure)
			}
		}
	}
}

// input is one verification of the table below.
type input struct {
	kind  protocol.DocumentKind
	bytes []byte
	ev    *Evidence
}

// signatureOf decodes the signature of a signed document.
func signatureOf(t testing.TB, b []byte) []byte {
	t.Helper()
	raw, err := lexical.DecodeBase64URL(parse(t, b).Member("signature").Member("value").Str())
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func withSignature(t testing.TB, b, raw []byte) []byte {
	t.Helper()
	return setMember(t, b, "signature.value", quote(b64(raw)))
}

// forge signs with a chosen R that need not be in the prime-order subgroup, so
// that the equation without cofactor holds up to that component.
func forge(t testing.TB, b []byte, s Signer, extra *edwards25519.Point) []byte {
	t.Helper()
	signing, err := SigningBytes(parse(t, b))
	if err != nil {
		t.Fatal(err)
	}
	digest := sha512.Sum512(s.Private.Seed())
	secret, err := edwards25519.NewScalar().SetBytesWithClamping(digest[:32])
	if err != nil {
		t.Fatal(err)
	}
	nonce, err := edwards25519.NewScalar().SetUniformBytes(bytes.Repeat([]byte{0x5a}, 64))
	if err != nil {
		t.Fatal(err)
	}
	r := new(edwards25519.Point).ScalarBaseMult(nonce)
	r.Add(r, extra)
	kHash := sha512.New()
	kHash.Write(r.Bytes())
	kHash.Write(s.Private[32:])
	kHash.Write(signing)
	k, err := edwards25519.NewScalar().SetUniformBytes(kHash.Sum(nil))
	if err != nil {
		t.Fatal(err)
	}
	return withSignature(t, b, append(r.Bytes(), edwards25519.NewScalar().MultiplyAdd(k, secret, nonce).Bytes()...))
}

// TestFirstFailingStage: one row per rule of the six stages. The document is the
// Command of testdata unless the row says otherwise.
func TestFirstFailingStage(t *testing.T) {
	command := signedDocument(t, protocol.KindCommand)
	unsigned := unsignedDocument(t, protocol.KindCommand)
	ev := testEvidence(t)
	small := torsion(t)
	good := signatureOf(t, command)
	replaceR := func(r []byte) []byte { return withSignature(t, command, append(bytes.Clone(r), good[32:]...)) }
	replaceS := func(s []byte) []byte { return withSignature(t, command, append(bytes.Clone(good[:32]), s...)) }
	set := func(path, value string) []byte { return setMember(t, command, path, value) }
	signedAt := func(text string) []byte {
		return resign(t, protocol.KindCommand, setMember(t, unsigned, "issuedAt", quote(text)), ben)
	}
	identity := edwards25519.NewIdentityPoint().Bytes()
	rows := []struct {
		rule   string
		in     input
		stage  Stage
		reason string // empty: any
	}{
		{"a sound document passes", input{bytes: command}, 0, ""},
		{"white space and member order are not signed", input{bytes: spaced(t, command)}, 0, ""},
		{"escapes of the same characters are not signed", input{bytes: bytes.ReplaceAll(command, []byte("harbour"), []byte(`h\u0061rbour`))}, 0, ""},

		// Stage 1.
		{"nothing", input{bytes: nil}, StageParse, ""},
		{"invalid UTF-8", input{bytes: bytes.Replace(command, []byte("Lens"), []byte("L\xffns"), 1)}, StageParse, strictjson.ReasonUTF8},
		{"an overlong UTF-8 spelling", input{bytes: bytes.Replace(command, []byte("Lens"), []byte("L\xc0\xaens"), 1)}, StageParse, strictjson.ReasonUTF8},
		{"a byte-order mark", input{bytes: append([]byte("\xef\xbb\xbf"), command...)}, StageParse, strictjson.ReasonBOM},
		{"trailing data", input{bytes: append(bytes.Clone(command), "{}"...)}, StageParse, strictjson.ReasonTrailing},
		{"truncation", input{bytes: command[:len(command)-1]}, StageParse, strictjson.ReasonTruncated},
		{"a duplicate member spelled with an escape", input{bytes: bytes.Replace(command, []byte(`"kind":`), []byte(`"\u006bind":"work.block","kind":`), 1)}, StageParse, strictjson.ReasonDuplicate},
		{"a duplicate deep inside", input{bytes: bytes.Replace(command, []byte(`"high":true`), []byte(`"high":true,"high":true`), 1)}, StageParse, strictjson.ReasonDuplicate},

		// Stage 2.
		{"an unknown member", input{bytes: set("priority", "1")}, StageSchema, ""},
		{"no signature", input{bytes: set("signature", "")}, StageSchema, ""},
		{"no key id", input{bytes: set("signature.keyId", "")}, StageSchema, ""},
		{"a member too many in the envelope", input{bytes: set("signature.hash", `"x"`)}, StageSchema, ""},
		{"another algorithm", input{bytes: set("signature.algorithm", `"Ed25519ph"`)}, StageSchema, ""},
		{"a padded signature", input{bytes: set("signature.value", quote(b64(good)+"=="))}, StageSchema, ""},
		{"a leap second", input{bytes: set("issuedAt", `"2031-06-30T23:59:60Z"`)}, StageSchema, ""},
		{"the year 0", input{bytes: set("issuedAt", `"0000-03-02T08:30:00Z"`)}, StageSchema, ""},
		{"an unknown local offset", input{bytes: set("issuedAt", `"2031-03-02T08:30:00-00:00"`)}, StageSchema, ""},
		{"a day that does not exist", input{bytes: set("issuedAt", `"2031-02-29T08:30:00Z"`)}, StageSchema, ""},
		{"an Agent without a Session Epoch", input{bytes: set("sessionEpoch", "")}, StageSchema, ""},

		// Stage 3.
		{"an offset other than Z", input{bytes: set("issuedAt", `"2031-03-02T09:30:00.250000+01:00"`)}, StageEnvelope, ReasonTimeNotUTC},
		{"an offset in both times", input{bytes: setMember(t, set("issuedAt", `"2031-03-02T08:30:00+00:00"`), "signature.createdAt", `"2031-03-02T08:30:00+00:00"`)}, StageEnvelope, ReasonTimeNotUTC},
		{"a lower-case z", input{bytes: setMember(t, set("issuedAt", `"2031-03-02T08:30:00z"`), "signature.createdAt", `"2031-03-02T08:30:00z"`)}, StageEnvelope, ReasonTimeNotUTC},
		{"createdAt not in Z form", input{bytes: set("signature.createdAt", `"2031-03-02T09:30:00.250000+01:00"`)}, StageEnvelope, ReasonTimeNotUTC},
		{"createdAt of the same instant in other digits", input{bytes: set("signature.createdAt", `"2031-03-02T08:30:00.25Z"`)}, StageEnvelope, ReasonTimeMismatch},
		{"createdAt of another instant", input{bytes: set("signature.createdAt", `"2031-03-02T08:30:01.250000Z"`)}, StageEnvelope, ReasonTimeMismatch},
		{"a lower-case t in both times is signed as it stands", input{bytes: signedAt("2031-03-02t08:30:00Z")}, 0, ""},
		{"forty fraction digits are signed as they stand", input{bytes: signedAt("2031-03-02T08:30:00." + strings.Repeat("1", 40) + "Z")}, 0, ""},
		{"nonzero pad bits", input{bytes: set("signature.value", quote(paddingBits(b64(good))))}, StageEnvelope, ReasonSignatureEncoding},
		{"63 bytes", input{bytes: withSignature(t, command, good[:63])}, StageEnvelope, ReasonSignatureLength},
		{"65 bytes", input{bytes: withSignature(t, command, append(bytes.Clone(good), 0))}, StageEnvelope, ReasonSignatureLength},
		{"S = L", input{bytes: replaceS(littleEndian(orderL))}, StageEnvelope, "signature-s-out-of-range"},
		{"S + L", input{bytes: replaceS(plusOrder(good[32:]))}, StageEnvelope, "signature-s-out-of-range"},
		{"noncanonical R", input{bytes: replaceR(littleEndian(new(big.Int).Add(fieldPrime, big.NewInt(1))))}, StageEnvelope, "signature-r-noncanonical"},
		{"R with y = p", input{bytes: replaceR(littleEndian(fieldPrime))}, StageEnvelope, "signature-r-noncanonical"},
		{"negative-zero R", input{bytes: replaceR(withSign(identity))}, StageEnvelope, "signature-r-negative-zero"},
		{"R off the curve", input{bytes: replaceR(offCurve(t))}, StageEnvelope, "signature-r-off-curve"},
		{"small-order R", input{bytes: replaceR(small.Bytes())}, StageEnvelope, "signature-r-small-order"},
		{"mixed-order R", input{bytes: forge(t, command, ben, small)}, StageEnvelope, "signature-r-mixed-order"},
		{"R with a component of order two", input{bytes: forge(t, command, ben, multiples(small, 8)[4])}, StageEnvelope, "signature-r-mixed-order"},
		{"the same forgery without the component is a signature", input{bytes: forge(t, command, ben, edwards25519.NewIdentityPoint())}, 0, ""},

		// Stage 3 goes before 4, 5 and 6 even where its costly half is made last.
		{"R off the curve before an unknown key", input{bytes: setMember(t, replaceR(offCurve(t)), "signature.keyId", `"urn:test:key:nobody"`)}, StageEnvelope, "signature-r-off-curve"},
		{"small-order R before unavailable evidence", input{bytes: replaceR(small.Bytes()), ev: &Evidence{}}, StageEnvelope, "signature-r-small-order"},
		{"mixed-order R before a lone surrogate", input{bytes: bytes.Replace(forge(t, command, ben, small), []byte("Lens"), []byte(`L\ud800ns`), 1)}, StageEnvelope, "signature-r-mixed-order"},
		{"mixed-order R before a wrong payload", input{bytes: bytes.Replace(forge(t, command, ben, small), []byte("Lens"), []byte("lens"), 1)}, StageEnvelope, "signature-r-mixed-order"},

		// Stage 4.
		{"no evidence", input{bytes: command, ev: &Evidence{}}, StageKey, ReasonEvidenceUnavailable},
		{"evidence with an unrelated malformed binding", input{bytes: command, ev: brokenEvidence(t)}, StageKey, ReasonEvidenceInvalid + ":" + FaultPrincipal},
		{"an unknown key", input{bytes: set("signature.keyId", `"urn:test:key:nobody"`)}, StageKey, ReasonUnknownKey},
		{"a key of another Principal", input{bytes: set("signature.keyId", quote(ann.KeyID))}, StageKey, ReasonWrongPrincipal},
		{"another Principal with its own key", input{bytes: setMember(t, set("actor.id", `"urn:test:agent:eve"`), "signature.keyId", quote(ben.KeyID))}, StageKey, ReasonWrongPrincipal},
		{"the same id under another type", input{kind: protocol.KindApproval, bytes: setMember(t, setMember(t, signedDocument(t, protocol.KindApproval), "approver.type", `"service"`), "kind", `"child_mission"`)}, StageKey, ReasonWrongPrincipal},
		{"an Agent Card signed by a human", input{kind: protocol.KindAgentCard, bytes: signedAs(t, protocol.KindAgentCard, ann)}, StageKey, ReasonWrongPrincipal},
		{"an Artifact signed by another than its producer", input{kind: protocol.KindArtifact, bytes: signedAs(t, protocol.KindArtifact, gate)}, StageKey, ReasonWrongPrincipal},
		{"a key not yet valid", input{bytes: command, ev: benFrom(t, "2031-03-02T08:30:00.250000000000001Z")}, StageKey, ReasonKeyNotYetValid},
		{"a key valid from this very instant", input{bytes: command, ev: benFrom(t, "2031-03-02T09:30:00.25+01:00")}, 0, ""},
		{"a key that expired at this very instant", input{bytes: command, ev: benFrom(t, day1, until(1, day1, "2031-03-02T08:30:00.25Z"))}, StageKey, ReasonKeyExpired},
		{"a key that expires a moment later", input{bytes: command, ev: benFrom(t, day1, until(1, day1, "2031-03-02T08:30:00.25000000000000000000001Z"))}, 0, ""},
		{"a key revoked at this very instant", input{bytes: command, ev: benFrom(t, day1, revoked(1, day4, "2031-03-02T08:30:00.25Z"))}, StageKey, ReasonKeyRevoked},
		{"a key revoked a moment later", input{bytes: command, ev: benFrom(t, day1, revoked(1, day4, "2031-03-02T08:30:00.250001Z"))}, 0, ""},
		{"the earliest of several boundaries counts", input{bytes: command, ev: benFrom(t, day1, until(1, day1, day4), until(2, day2, day2))}, StageKey, ReasonKeyExpired},

		// Stage 5: JSON that has no place in the canonical data model.
		{"a number beyond binary64", input{bytes: bytes.Replace(command, []byte("1e+21"), []byte("1e400"), 1)}, StageCanonical, strictjson.ReasonNonFinite},
		{"an unpaired surrogate in a value", input{bytes: bytes.Replace(command, []byte("Lens"), []byte(`L\udc00ns`), 1)}, StageCanonical, strictjson.ReasonSurrogate},
		{"an unpaired surrogate in a name", input{bytes: bytes.Replace(command, []byte(`"high"`), []byte(`"hi\ud83dgh"`), 1)}, StageCanonical, strictjson.ReasonSurrogate},
		{"an unknown key before a number beyond binary64", input{bytes: setMember(t, bytes.Replace(command, []byte("1e+21"), []byte("1e400"), 1), "signature.keyId", `"urn:test:key:nobody"`)}, StageKey, ReasonUnknownKey},

		// Stage 6.
		{"identity R permitted, equation not satisfied", input{bytes: replaceR(identity)}, StageSignature, ReasonEquation},
		{"S = 0 in range, equation not satisfied", input{bytes: replaceS(make([]byte, 32))}, StageSignature, ReasonEquation},
		{"a changed payload", input{bytes: set("payload.ownershipEpoch", "2")}, StageSignature, ReasonEquation},
		{"a changed nested signature in the payload", input{bytes: set("payload.signature", `"another"`)}, StageSignature, ReasonEquation},
		{"a changed nested signature in an extension", input{bytes: bytes.Replace(command, []byte("covered as well"), []byte("covered as hell"), 1)}, StageSignature, ReasonEquation},
		{"a signature of another document", input{bytes: withSignature(t, command, signatureOf(t, signedDocument(t, protocol.KindEvidence)))}, StageSignature, ReasonEquation},
		{"another key of the same Principal", input{bytes: set("signature.keyId", quote(benNew.KeyID)), ev: mustEvidence(t, ben.Binding(day1), benNew.Binding(day1))}, StageSignature, ReasonEquation},
		{"integers of one double are one number", input{bytes: bytes.Replace(command, []byte("9007199254740991"), []byte("9007199254740991.0"), 1)}, 0, ""},
		{"neighbouring doubles are two", input{bytes: bytes.Replace(command, []byte("9007199254740991"), []byte("9007199254740990"), 1)}, StageSignature, ReasonEquation},
		{"negative zero is zero", input{bytes: bytes.Replace(command, []byte(`,0,9007`), []byte(`,-0.0e9,9007`), 1)}, 0, ""},
	}
	for _, row := range rows {
		t.Run(row.rule, func(t *testing.T) {
			in := row.in
			if in.kind == "" {
				in.kind = protocol.KindCommand
			}
			if in.ev == nil {
				in.ev = ev
			}
			v, failure := VerifyBytes(in.kind, in.bytes, in.ev)
			if row.stage == 0 {
				if failure != nil {
					t.Fatalf("fails at %s (%v)", failure, failure.Cause)
				}
				return
			}
			if failure == nil {
				t.Fatalf("verified as %s, want failure at %s", v.SigningHash, row.stage)
			}
			if failure.Stage != row.stage || row.reason != "" && failure.Reason != row.reason {
				t.Fatalf("fails at %s (%v), want %s: %s", failure, failure.Cause, row.stage, row.reason)
			}
			checkDisclosure(t, failure)
		})
	}
}

var benNew = testSigner(protocol.ActorAgent, "ben", 5)

func benFrom(t testing.TB, from string, h ...Validity) *Evidence {
	t.Helper()
	return mustEvidence(t, ann.Binding(day1), edit(ben.Binding(from), func(b *Binding) { b.History = h }))
}

func brokenEvidence(t testing.TB) *Evidence {
	t.Helper()
	_, err := NewEvidence(testOrg, 1, []Binding{
		ben.Binding(day1),
		edit(ann.Binding(day1), func(b *Binding) { b.Principal.ID = "urn:test:human:a%zz" }),
	})
	if err == nil {
		t.Fatal("a malformed binding was accepted")
	}
	return UnavailableEvidence(testOrg, err)
}

// signedAs signs a document with a key of a Principal that its rule does not
// allow, by lending the key to the allowed one while signing.
func signedAs(t testing.TB, kind protocol.DocumentKind, s Signer) []byte {
	t.Helper()
	s.Principal = documentSigners[kind].Principal
	return resign(t, kind, unsignedDocument(t, kind), s)
}

func paddingBits(text string) string {
	return text[:len(text)-1] + string(nextLetter(text[len(text)-1]))
}

func plusOrder(s []byte) []byte {
	big1 := new(big.Int)
	for i := len(s) - 1; i >= 0; i-- {
		big1.Lsh(big1, 8).Add(big1, big.NewInt(int64(s[i])))
	}
	return littleEndian(big1.Add(big1, orderL))
}

func spaced(t testing.TB, b []byte) []byte {
	t.Helper()
	b = bytes.ReplaceAll(b, []byte(`,"`), []byte("\r\n\t , \""))
	return append(append([]byte(" \n"), b...), '\n')
}

// checkDisclosure: what may be shown does not tell which check of stages 3, 4
// and 6 failed; the diagnostic stays behind it.
func checkDisclosure(t *testing.T, f *Failure) {
	t.Helper()
	wire := f.Error()
	want := map[Stage]protocol.Code{
		StageParse:     protocol.CodeProtocolViolation,
		StageSchema:    protocol.CodeSchemaValidationFailed,
		StageEnvelope:  protocol.CodeAuthInvalidSignature,
		StageKey:       protocol.CodeAuthInvalidSignature,
		StageCanonical: protocol.CodeProtocolViolation,
		StageSignature: protocol.CodeAuthInvalidSignature,
		StageAdmission: protocol.CodeAuthInvalidSignature,
	}[f.Stage]
	if wire.Code != want {
		t.Errorf("wire code %s, want %s", wire.Code, want)
	}
	wire.OccurredAt = day1
	shown, err := wire.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	plain := protocol.NewError(want, "")
	plain.OccurredAt = day1
	neutral, err := plain.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if f.Stage != StageSchema && !bytes.Equal(shown, neutral) {
		t.Errorf("the wire shows %s", shown)
	}
	if f.Stage == StageSchema && wire.Details["path"] != f.Path {
		t.Errorf("details %v do not name %s", wire.Details, f.Path)
	}
	if found, ok := FailureOf(wire); !ok || found != f {
		t.Errorf("the diagnostic is lost behind %v", wire)
	}
	if f.Cause != nil && !errors.Is(wire, f.Cause) {
		t.Errorf("the cause %v is lost behind %v", f.Cause, wire)
	}
}

// The identity as public key verifies everything in the standard library; here it
// never becomes a key.
func TestIdentityKeyForgesNothing(t *testing.T) {
	identity := edwards25519.NewIdentityPoint().Bytes()
	signature := append(bytes.Clone(identity), make([]byte, 32)...)
	if !ed25519.Verify(identity, []byte("anything"), signature) {
		t.Fatal("the premise of this test is gone")
	}
	_, err := NewEvidence(testOrg, 1, []Binding{edit(ben.Binding(day1), func(b *Binding) { b.PublicKey = b64(identity) })})
	if !errors.Is(err, FaultIdentity) {
		t.Fatalf("error %v", err)
	}
	forged := withSignature(t, signedDocument(t, protocol.KindCommand), signature)
	if _, failure := VerifyBytes(protocol.KindCommand, forged, UnavailableEvidence(testOrg, err)); failure == nil || failure.Stage != StageKey {
		t.Errorf("forgery: %v", failure)
	}
}

func TestTranscriptSignatures(t *testing.T) {
	ev := testEvidence(t)
	key, ok := ev.Key(ben.KeyID)
	if !ok {
		t.Fatal("no key")
	}
	message := []byte("a transcript")
	signature := ed25519.Sign(ben.Private, message)
	if !key.Verifies(message, signature) {
		t.Error("own signature refused")
	}
	if key.Verifies(message, ed25519.Sign(ann.Private, message)) || key.Verifies(message[1:], signature) ||
		key.Verifies(message, signature[:63]) || key.Verifies(message, nil) {
		t.Error("foreign, moved or short signature accepted")
	}
}
