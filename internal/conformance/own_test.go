package conformance

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/edwards25519"
	"github.com/gowebpki/jcs"
	"github.com/missionweave/server/internal/protocol"
)

// The bundle in testdata/own has the form of the protocol's bundles, with keys,
// documents and records of our own: one vector per rule. It is made by
// `go test ./internal/conformance -run TestOwnBundle -update` from the tables
// below with the standard library's Ed25519 and another implementation of JCS, so
// it does not repeat what the code under test believes.

const ownRoot = "testdata/own"

type object = map[string]any

func principal(kind, name string) object {
	return object{"type": kind, "id": "urn:test:" + kind + ":" + name}
}

type ownKey struct {
	name    string
	seed    byte
	signer  object
	private ed25519.PrivateKey
}

func newOwnKey(name, kind, owner string, seed byte) ownKey {
	return ownKey{name, seed, principal(kind, owner), ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32))}
}

func (k ownKey) id() string { return "urn:test:key:" + k.name }

func (k ownKey) public() string { return encode(k.private[32:]) }

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func (k ownKey) binding() object {
	return object{
		"keyId": k.id(), "principal": k.signer, "algorithm": "Ed25519", "publicKey": k.public(),
		"validFrom": "2031-03-01T01:00:00+01:00", "validityHistory": []any{},
	}
}

var (
	keyAnn  = newOwnKey("ann", "human", "ann", 101)
	keyBen  = newOwnKey("ben", "agent", "ben", 102)
	keyGate = newOwnKey("gate", "service", "gate", 103)
	keyEve  = newOwnKey("eve", "agent", "eve", 104)
	ownKeys = []ownKey{keyAnn, keyBen, keyGate}

	ownProfiles = []struct {
		kind, time string
		signer     object
		key        ownKey
	}{
		{"agent-card", "issuedAt", object{"rule": "service-principal"}, keyGate},
		{"approval", "occurredAt", object{"rule": "principal-object", "pointer": "/approver"}, keyAnn},
		{"artifact", "createdAt", object{"rule": "agent-id", "idPointer": "/producer/agentId"}, keyBen},
		{"command", "issuedAt", object{"rule": "principal-object", "pointer": "/actor"}, keyBen},
		{"context-package", "generatedAt", object{"rule": "principal-object", "pointer": "/generatedBy"}, keyBen},
		{"event", "occurredAt", object{"rule": "principal-object", "pointer": "/acceptedBy"}, keyGate},
		{"evidence", "createdAt", object{"rule": "principal-object", "pointer": "/generatedBy"}, keyBen},
		{"extension-profile", "approvedAt", object{"rule": "principal-object", "pointer": "/approvedBy"}, keyAnn},
		{"group-snapshot", "createdAt", object{"rule": "principal-object", "pointer": "/createdBy"}, keyGate},
	}
)

func timeMember(kind string) string {
	for _, p := range ownProfiles {
		if p.kind == kind {
			return p.time
		}
	}
	panic("no profile " + kind)
}

func keyFor(kind string) ownKey {
	for _, p := range ownProfiles {
		if p.kind == kind {
			return p.key
		}
	}
	panic("no profile " + kind)
}

func ownDocument(t testing.TB, kind string) object {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "trust", "testdata", "documents", kind+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return parseObject(t, b)
}

func parseObject(t testing.TB, b []byte) object {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.UseNumber()
	var o object
	if err := decoder.Decode(&o); err != nil {
		t.Fatal(err)
	}
	return o
}

func canonical(t testing.TB, v any) []byte {
	t.Helper()
	plain, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	out, err := jcs.Transform(plain)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func signingBytes(t testing.TB, doc object) []byte {
	t.Helper()
	unsigned := object{}
	for name, v := range doc {
		if name != "signature" {
			unsigned[name] = v
		}
	}
	return canonical(t, unsigned)
}

func signOwn(t testing.TB, kind string, doc object, k ownKey) object {
	t.Helper()
	doc["signature"] = object{
		"algorithm": "Ed25519", "keyId": k.id(), "createdAt": doc[timeMember(kind)],
		"value": encode(ed25519.Sign(k.private, signingBytes(t, doc))),
	}
	return doc
}

func pretty(t testing.TB, v any) []byte {
	t.Helper()
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(v); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// at returns the object at a dotted path and the last step.
func at(o object, path string) (object, string) {
	steps := strings.Split(path, ".")
	for _, step := range steps[:len(steps)-1] {
		o = o[step].(object)
	}
	return o, steps[len(steps)-1]
}

func set(path string, value any) func(testing.TB, object) {
	return func(_ testing.TB, doc object) {
		o, last := at(doc, path)
		o[last] = value
	}
}

func both(edits ...func(testing.TB, object)) func(testing.TB, object) {
	return func(t testing.TB, doc object) {
		for _, edit := range edits {
			edit(t, doc)
		}
	}
}

func sign(kind string, k ownKey) func(testing.TB, object) {
	return func(t testing.TB, doc object) { signOwn(t, kind, doc, k) }
}

// half replaces R (bytes 0 to 32) or S (32 to 64) of the signature.
func half(from int, value []byte) func(testing.TB, object) {
	return func(t testing.TB, doc object) {
		o, last := at(doc, "signature.value")
		raw, err := base64.RawURLEncoding.DecodeString(o[last].(string))
		if err != nil {
			t.Fatal(err)
		}
		copy(raw[from:], value)
		o[last] = encode(raw)
	}
}

func swap(old, replacement string) func([]byte) []byte {
	return func(b []byte) []byte {
		if !bytes.Contains(b, []byte(old)) {
			panic("no " + old + " in the document")
		}
		return bytes.Replace(b, []byte(old), []byte(replacement), 1)
	}
}

// padBits changes the unused bits of the last base64url letter.
func padBits(s string) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	i := strings.IndexByte(letters, s[len(s)-1])
	return s[:len(s)-1] + letters[i^1:i^1+1]
}

func little(n *big.Int) []byte {
	b := n.FillBytes(make([]byte, 32))
	for i := range 16 {
		b[i], b[31-i] = b[31-i], b[i]
	}
	return b
}

func negative(b []byte) []byte {
	b = bytes.Clone(b)
	b[31] |= 0x80
	return b
}

var (
	primeP    = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(19))
	groupL, _ = new(big.Int).SetString("27742317777372353535851937790883648493", 10)
	orderL    = new(big.Int).Add(groupL, new(big.Int).Lsh(big.NewInt(1), 252))

	pointIdentity     = little(big.NewInt(1))
	pointOrderTwo     = little(new(big.Int).Sub(primeP, big.NewInt(1)))
	pointEqualsP      = little(primeP)
	pointNoncanonical = little(new(big.Int).Add(primeP, big.NewInt(1)))
	pointNegativeZero = negative(pointIdentity)
	pointMixed        = plus(keyBen.private[32:], pointOrderTwo)
	pointOffCurve     = offCurve()
)

func plus(a, b []byte) []byte {
	p, err := new(edwards25519.Point).SetBytes(a)
	if err != nil {
		panic(err)
	}
	q, err := new(edwards25519.Point).SetBytes(b)
	if err != nil {
		panic(err)
	}
	return p.Add(p, q).Bytes()
}

func offCurve() []byte {
	for y := int64(2); ; y++ {
		b := little(big.NewInt(y))
		if _, err := new(edwards25519.Point).SetBytes(b); err != nil {
			return b
		}
	}
}

// ownFault is one vector that must fail. Document and registry start sound.
type ownFault struct {
	stage, id string
	kind      string // command if empty
	edit      func(testing.TB, object)
	text      func([]byte) []byte
	registry  func(object)
}

// ben is the binding of the Command's signer in a registry fixture.
func ben(change func(object)) func(object) {
	return func(registry object) { change(registry["bindings"].([]any)[1].(object)) }
}

func benHas(member string, value any) func(object) {
	return ben(func(b object) { b[member] = value })
}

// extra adds a binding that has nothing to do with the document.
func extra(change func(object)) func(object) {
	return func(registry object) {
		b := keyEve.binding()
		change(b)
		registry["bindings"] = append(registry["bindings"].([]any), b)
	}
}

func status(sequence int, recordedAt, member, value string) object {
	return object{"sequence": sequence, "recordedAt": recordedAt, member: value}
}

const ownTime = "2031-03-02T08:30:00.250000Z"

var ownFaults = []ownFault{
	{stage: "parse", id: "byte-order-mark", text: func(b []byte) []byte { return append([]byte("\xef\xbb\xbf"), b...) }},
	{stage: "parse", id: "trailing-data", text: func(b []byte) []byte { return append(b, "{}"...) }},
	{stage: "parse", id: "invalid-utf8", text: swap("Lens", "L\xc3ns")},
	{stage: "parse", id: "surrogate-in-utf8", text: swap("Lens", "L\xed\xa0\x80ns")},
	{stage: "parse", id: "duplicate-escaped-member", text: swap(`"kind":`, `"k\u0069nd": "work.start", "kind":`)},
	{stage: "parse", id: "truncated", text: func(b []byte) []byte { return b[:len(b)-3] }},

	{stage: "schema", id: "unknown-member", edit: set("priority", 1)},
	{stage: "schema", id: "missing-signature", edit: func(_ testing.TB, doc object) { delete(doc, "signature") }},
	{stage: "schema", id: "unsupported-algorithm", edit: set("signature.algorithm", "Ed25519ph")},
	{stage: "schema", id: "padded-signature", edit: func(t testing.TB, doc object) {
		o, last := at(doc, "signature.value")
		o[last] = o[last].(string) + "=="
	}},
	{stage: "schema", id: "leap-second", edit: set("issuedAt", "2031-06-30T23:59:60Z")},
	{stage: "schema", id: "year-zero", edit: set("issuedAt", "0000-03-02T08:30:00Z")},
	{stage: "schema", id: "unknown-local-offset", edit: set("issuedAt", "2031-03-02T08:30:00-00:00")},
	{stage: "schema", id: "iri-only-action-id", edit: set("actionId", "urn:test:äction")},

	{stage: "signature-envelope", id: "protected-time-with-offset", edit: set("issuedAt", "2031-03-02T09:30:00.250000+01:00")},
	{stage: "signature-envelope", id: "lower-case-z", edit: both(set("issuedAt", "2031-03-02T08:30:00z"), set("signature.createdAt", "2031-03-02T08:30:00z"))},
	{stage: "signature-envelope", id: "created-at-same-instant", edit: set("signature.createdAt", "2031-03-02T08:30:00.25Z")},
	{stage: "signature-envelope", id: "nonzero-pad-bits", edit: func(t testing.TB, doc object) {
		o, last := at(doc, "signature.value")
		o[last] = padBits(o[last].(string))
	}},
	{stage: "signature-envelope", id: "short-signature", edit: set("signature.value", encode(make([]byte, 63)))},
	{stage: "signature-envelope", id: "s-equals-order", edit: half(32, little(orderL))},
	{stage: "signature-envelope", id: "r-noncanonical", edit: half(0, pointNoncanonical)},
	{stage: "signature-envelope", id: "r-y-equals-p", edit: half(0, pointEqualsP)},
	{stage: "signature-envelope", id: "r-negative-zero", edit: half(0, pointNegativeZero)},
	{stage: "signature-envelope", id: "r-off-curve", edit: half(0, pointOffCurve)},
	{stage: "signature-envelope", id: "r-small-order", edit: half(0, pointOrderTwo)},
	{stage: "signature-envelope", id: "r-mixed-order", edit: half(0, pointMixed)},
	{stage: "signature-envelope", id: "r-before-unknown-key", edit: both(half(0, pointMixed), set("signature.keyId", "urn:test:key:nobody"))},
	{stage: "signature-envelope", id: "r-before-broken-registry", edit: half(0, pointOffCurve), registry: benHas("publicKey", encode(pointIdentity))},

	{stage: "key-resolution", id: "unknown-key", edit: set("signature.keyId", "urn:test:key:nobody")},
	{stage: "key-resolution", id: "key-of-another-principal", edit: set("signature.keyId", keyAnn.id())},
	{stage: "key-resolution", id: "bound-to-another-principal", registry: benHas("principal", principal("agent", "benno"))},
	{stage: "key-resolution", id: "agent-card-signer-not-service", kind: "agent-card", edit: sign("agent-card", keyAnn)},
	{stage: "key-resolution", id: "artifact-signer-not-producer", kind: "artifact", edit: sign("artifact", keyGate)},
	{stage: "key-resolution", id: "key-not-yet-valid", registry: benHas("validFrom", "2031-03-02T08:30:00.2500000000000001Z")},
	{stage: "key-resolution", id: "valid-until-equality", registry: benHas("validityHistory", []any{status(1, ownTime, "validUntil", "2031-03-02T09:30:00.25+01:00")})},
	{stage: "key-resolution", id: "revoked-at-equality", registry: benHas("validityHistory", []any{status(1, ownTime, "revokedAt", "2031-03-02T08:30:00.25Z")})},
	{stage: "key-resolution", id: "earliest-boundary", registry: benHas("validityHistory", []any{status(1, ownTime, "validUntil", "2031-04-01T00:00:00Z"), status(2, ownTime, "validUntil", "2031-03-02T00:00:00Z")})},
	{stage: "key-resolution", id: "boundary-moved-later", registry: benHas("validityHistory", []any{status(1, ownTime, "validUntil", "2031-04-01T00:00:00Z"), status(2, ownTime, "validUntil", "2031-04-01T00:00:00.000000000001Z")})},
	{stage: "key-resolution", id: "history-gap", registry: benHas("validityHistory", []any{status(2, ownTime, "validUntil", "2031-04-01T00:00:00Z")})},
	{stage: "key-resolution", id: "history-rewritten", registry: benHas("validityHistory", []any{status(1, ownTime, "validUntil", "2031-04-01T00:00:00Z"), status(1, ownTime, "validUntil", "2031-03-31T00:00:00Z")})},
	{stage: "key-resolution", id: "malformed-valid-from", registry: benHas("validFrom", "2031-03-01T00:00:00-00:00")},
	{stage: "key-resolution", id: "unsupported-key-algorithm", registry: benHas("algorithm", "Ed448")},
	{stage: "key-resolution", id: "public-key-padded", registry: benHas("publicKey", keyBen.public()+"=")},
	{stage: "key-resolution", id: "public-key-pad-bits", registry: benHas("publicKey", padBits(keyBen.public()))},
	{stage: "key-resolution", id: "public-key-short", registry: benHas("publicKey", encode(keyBen.private[33:]))},
	{stage: "key-resolution", id: "public-key-identity", registry: benHas("publicKey", encode(pointIdentity))},
	{stage: "key-resolution", id: "public-key-small-order", registry: benHas("publicKey", encode(pointOrderTwo))},
	{stage: "key-resolution", id: "public-key-mixed-order", registry: benHas("publicKey", encode(pointMixed))},
	{stage: "key-resolution", id: "public-key-off-curve", registry: benHas("publicKey", encode(pointOffCurve))},
	{stage: "key-resolution", id: "public-key-noncanonical", registry: benHas("publicKey", encode(pointNoncanonical))},
	{stage: "key-resolution", id: "public-key-negative-zero", registry: benHas("publicKey", encode(pointNegativeZero))},
	{stage: "key-resolution", id: "unrelated-key-id-reused", registry: extra(func(b object) { b["keyId"] = keyAnn.id() })},
	{stage: "key-resolution", id: "unrelated-public-key-reused", registry: extra(func(b object) { b["publicKey"] = keyAnn.public() })},
	{stage: "key-resolution", id: "unrelated-key-id-alias", registry: extra(func(b object) { b["publicKey"], b["principal"] = keyAnn.public(), keyAnn.signer })},
	{stage: "key-resolution", id: "unrelated-small-order-key", registry: extra(func(b object) { b["publicKey"] = encode(pointOrderTwo) })},
	{stage: "key-resolution", id: "unrelated-malformed-key-id", registry: extra(func(b object) { b["keyId"] = "urn:test:key:eve\n" })},
	{stage: "key-resolution", id: "unrelated-malformed-principal", registry: extra(func(b object) { b["principal"] = principal("agent", "e%ve") })},
	{stage: "key-resolution", id: "unrelated-malformed-history", registry: extra(func(b object) { b["validityHistory"] = []any{status(1, "later", "validUntil", ownTime)} })},
	{stage: "key-resolution", id: "malformed-organization-id", registry: func(r object) { r["organizationId"] = "weavers" }},

	{stage: "canonicalization", id: "number-outside-binary64", text: swap("1e+21", "1e400")},
	{stage: "canonicalization", id: "unpaired-surrogate", text: swap("Lens", `L\udfffns`)},
	{stage: "canonicalization", id: "unpaired-surrogate-in-name", text: swap(`"high"`, `"h\ud800igh"`)},

	{stage: "signature", id: "identity-r", edit: half(0, pointIdentity)},
	{stage: "signature", id: "s-zero", edit: half(32, make([]byte, 32))},
	{stage: "signature", id: "payload-changed", edit: set("payload.ownershipEpoch", 2)},
	{stage: "signature", id: "nested-signature-changed", edit: set("payload.signature", "another")},
	{stage: "signature", id: "extension-changed", text: swap("covered as well", "covered as hell")},
	{stage: "signature", id: "signature-of-another-key", edit: func(t testing.TB, doc object) {
		signOwn(t, "command", doc, keyEve)
		doc["signature"].(object)["keyId"] = keyBen.id()
	}},
}

// ownInvalid is the structural half: per kind, one change that must be refused.
var ownInvalid = []struct {
	kind, name string
	edit       func(testing.TB, object)
}{
	{"agent-card", "an Agent Card that grants permissions", set("permissions", []any{"all"})},
	{"approval", "a final Approval by an Agent", set("approver", principal("agent", "ben"))},
	{"artifact", "an Artifact with content", set("content", "lamp")},
	{"command", "an Agent Command without Session Epoch", func(_ testing.TB, o object) { delete(o, "sessionEpoch") }},
	{"context-package", "a Context Package without source Events", set("sourceEventRange.eventIds", []any{})},
	{"event", "a Group Event with sequence 0", set("sequence", 0)},
	{"evidence", "Evidence without criteria", set("criterionIds", []any{})},
	{"extension-profile", "an Extension Profile over the core", set("overridesCoreInvariants", true)},
	{"group-snapshot", "a Group Snapshot by an Agent", set("createdBy", principal("agent", "ben"))},
}

func schemaOf(kind protocol.DocumentKind) string { return "schemas/" + string(kind) + ".schema.json" }
