package evidence

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
)

// Placeholders that builds put where a signature will be.
var placeholders = []string{"UNSIGNED_PLACEHOLDER", "PLACEHOLDER"}

// tier3 checks canonical bytes and signature. Each step presupposes the ones
// before it: a record whose bytes are unsafe has no signature to speak of.
func (c *checker) tier3(opt Options) SignatureState {
	c.chain(opt.Previous)
	before := len(c.errors)
	c.safe(c.root, "", opt.Archive && !c.v3)
	if len(c.errors) > before {
		return SignatureInvalid
	}
	sig := c.root.Get(memberSignature)
	if !sig.Exists() {
		if !slices.ContainsFunc(c.errors, func(f Finding) bool { return f.Name == errSignatureMissing }) {
			c.fail("C-02", errSignatureMissing, "/signature", "there is no signature to verify")
		}
		return SignatureInvalid
	}
	if c.root.Get(memberVersion).Str() == "aep/v0.4" {
		return c.dsse(opt.Keys)
	}
	text := sig.Get("sig").Str()
	if slices.Contains(placeholders, text) {
		c.fail("C-03", "E_SIGNATURE_PLACEHOLDER", "/signature/sig", "this record was never signed")
		return SignatureInvalid
	}
	if sig.Get("alg").Str() != "ed25519" {
		if !slices.ContainsFunc(c.errors, func(f Finding) bool { return f.Name == errSignatureAlg }) {
			c.fail("C-04", errSignatureAlg, "/signature/alg", "only ed25519 verifies")
		}
		return SignatureInvalid
	}
	raw, ok := decodeBase64(text)
	if !ok || len(raw) != ed25519.SignatureSize {
		c.fail("C-05", "E_SIGNATURE_ENCODING", "/signature/sig", "not base64 of 64 bytes")
		return SignatureInvalid
	}
	key, ok := lookup(opt.Keys, sig.Get("key_id").Str())
	if !ok {
		c.fail("C-06", "E_KEY_UNKNOWN", "/signature/key_id", "no public key is known for this id")
		return SignatureInvalid
	}
	if ed25519.Verify(key, SigningBytes(c.root), raw) {
		return SignatureValid
	}
	if c.root.Get(memberTimestamp).Exists() && ed25519.Verify(key, Canonical(c.root, memberSignature, memberDSSE, memberTimestamp), raw) {
		c.warn("C-08", warnTimestamp, at("", memberTimestamp), "attached after signing: the signature does not cover it")
		return SignatureValid
	}
	c.fail("C-07", "E_SIGNATURE_INVALID", "/signature", "the signature is not over these members by this key")
	return SignatureInvalid
}

func lookup(keys KeyLookup, id string) (ed25519.PublicKey, bool) {
	if keys == nil {
		return nil, false
	}
	key, ok := keys(id)
	return key, ok && len(key) == ed25519.PublicKeySize
}

// chain checks the link to the record before, where that is at hand.
func (c *checker) chain(previous *Value) {
	link := c.root.Get("prev_record_hash")
	if previous == nil || link.Kind() != String {
		return
	}
	if link.Str() != RecordHash(previous) {
		c.fail("C-09", "E_CHAIN_BROKEN", "/prev_record_hash", "the record before has another hash")
	}
}

// safe reports what makes canonical bytes ambiguous.
func (c *checker) safe(v *Value, path string, archive bool) {
	unsafe := func(path, format string, args ...any) {
		if archive {
			c.warn("C-01", warnCanon, path, format, args...)
		} else {
			c.fail("C-01", "E_CANON_UNSAFE", path, format, args...)
		}
	}
	switch v.Kind() {
	case String:
		if v.lone {
			unsafe(path, "a lone surrogate")
		}
	case Number:
		if _, ok := v.Float(); !ok {
			unsafe(path, "a number beyond binary64")
		}
	case Array:
		for i, item := range v.items {
			c.safe(item, atIndex(path, i), archive)
		}
	case Object:
		seen := make(map[string]bool, len(v.members))
		for _, m := range v.members {
			p := at(path, m.Name)
			if m.Name == protoName {
				c.fail("C-01", "E_CANON_UNSAFE", p, "no signature covers a member of this name")
			}
			if m.NameLone {
				unsafe(path, "a lone surrogate in a member name")
			}
			if seen[m.Name] && c.v3 {
				c.fail("C-12", "E_DUPLICATE_KEY", p, "a second member of this name")
			}
			seen[m.Name] = true
			c.safe(m.Value, p, archive)
		}
	}
}

// decodeBase64 takes either alphabet with or without padding, and nothing else:
// no white space, no junk, no bits that are left over.
func decodeBase64(s string) ([]byte, bool) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, false
	}
	s = strings.NewReplacer("-", "+", "_", "/").Replace(s)
	if bare := strings.TrimRight(s, "="); len(bare) != len(s) {
		if len(s)%4 != 0 || len(s)-len(bare) > 2 {
			return nil, false
		}
		s = bare
	}
	b, err := base64.RawStdEncoding.Strict().DecodeString(s)
	return b, err == nil
}

// ChainStatus is what a sequence of records says about its links.
type ChainStatus string

// The statuses, from the best to the worst. Intact: every record after the
// first names the one before it. Partial: some do not, and no link is wrong.
// NotPresent: there are no links. Orphaned: the first record names a
// predecessor that is not here. Broken: a link is wrong.
const (
	ChainIntact     ChainStatus = "intact"
	ChainPartial    ChainStatus = "partial"
	ChainNotPresent ChainStatus = "not-present"
	ChainOrphaned   ChainStatus = "orphaned"
	ChainBroken     ChainStatus = "broken"
)

// Chain judges the links of records in order. brokenAt is the index of the first
// record whose link is wrong, -1 if none is.
func Chain(records []*Value) (status ChainStatus, brokenAt int) {
	linked, open := 0, 0
	for i, r := range records {
		link := r.Get("prev_record_hash")
		if i == 0 {
			continue
		}
		switch {
		case link.Kind() != String:
			open++
		case link.Str() != RecordHash(records[i-1]):
			return ChainBroken, i
		default:
			linked++
		}
	}
	switch {
	case len(records) > 0 && records[0].Get("prev_record_hash").Kind() == String:
		return ChainOrphaned, -1
	case linked == 0:
		return ChainNotPresent, -1
	case open > 0:
		return ChainPartial, -1
	}
	return ChainIntact, -1
}

// The in-toto statement of a v0.4 envelope.
const (
	statementType  = "https://in-toto.io/Statement/v1"
	predicateType  = "https://wasmagent.dev/attestations/aep/v0.4"
	subjectPrefix  = "urn:wasmagent:run:"
	dssePayload    = "application/vnd.in-toto+json"
	bodyOfEnvelope = "aep/v0.3" // what the predicate of a v0.4 record calls itself
)

// dsse verifies a v0.4 envelope. Its first emitters signed the pre-authentication
// encoding of the base64 text, the DSSE specification says of the decoded bytes:
// both are accepted, since both bind the same payload. What their verifier left
// out, the binding of the envelope to the record around it, is checked here.
func (c *checker) dsse(keys KeyLookup) SignatureState {
	before := len(c.errors)
	env := c.root.Get(memberDSSE)
	statement := c.envelope(env, keys)
	if len(c.errors) > before {
		return SignatureInvalid
	}
	bind := func(ok bool, what string) {
		if !ok {
			c.fail("C-10", "E_DSSE_BINDING", at("", memberDSSE), "%s", what)
		}
	}
	bind(env.Get("payloadType").Str() == dssePayload, "the payload is of another type")
	bind(statement.Get("_type").Str() == statementType, "the payload is no in-toto statement")
	bind(statement.Get("predicateType").Str() == predicateType, "the predicate is of another type")
	predicate := statement.Get("predicate")
	bind(predicate.Kind() == Object, "there is no predicate")
	sum := sha256.Sum256(SigningBytes(predicate))
	subjects := statement.Get("subject").Items()
	bind(len(subjects) == 1 && subjects[0].Get("name").Str() == subjectPrefix+c.root.Get("run_id").Str(), "the subject is another run")
	bind(len(subjects) == 1 && subjects[0].Get("digest").Get("sha256").Str() == hex.EncodeToString(sum[:]), "the subject has another digest")
	bind(bytes.Equal(bodyForBinding(c.root), bodyForBinding(predicate)), "the envelope holds another record")
	if dup := duplicateIn(statement); dup {
		bind(false, "the payload has two members of one name")
	}
	if len(c.errors) > before {
		return SignatureInvalid
	}
	return SignatureValid
}

// envelope verifies that some signature of the envelope is over its payload, and
// parses that.
func (c *checker) envelope(env *Value, keys KeyLookup) (statement *Value) {
	invalid := func(why string) *Value {
		c.fail("C-10", "E_DSSE_INVALID", at("", memberDSSE), "%s", why)
		return nil
	}
	if env.Kind() != Object || env.Get("payloadType").Kind() != String || env.Get("payload").Kind() != String || env.Get("signatures").Kind() != Array {
		return invalid("a record of v0.4 has an envelope with payloadType, payload and signatures")
	}
	text := env.Get("payload").Str()
	payload, ok := decodeBase64(text)
	if !ok {
		return invalid("the payload is not base64")
	}
	known := false
	for _, s := range env.Get("signatures").Items() {
		raw, ok := decodeBase64(s.Get("sig").Str())
		key, found := lookup(keys, s.Get("keyid").Str())
		known = known || found
		if !ok || !found || len(raw) != ed25519.SignatureSize {
			continue
		}
		typ := env.Get("payloadType").Str()
		if ed25519.Verify(key, pae(typ, []byte(text)), raw) || ed25519.Verify(key, pae(typ, payload), raw) {
			statement, err := ParseValue(payload)
			if err != nil || statement.Kind() != Object {
				return invalid("the payload is not a JSON object")
			}
			return statement
		}
	}
	if !known {
		c.fail("C-06", "E_KEY_UNKNOWN", at("", memberDSSE)+"/signatures", "no public key is known for any signature")
		return nil
	}
	return invalid("no signature is over this payload")
}

// pae is DSSE's pre-authentication encoding.
func pae(typ string, body []byte) []byte {
	b := []byte("DSSEv1 " + strconv.Itoa(len(typ)) + " " + typ + " " + strconv.Itoa(len(body)) + " ")
	return append(b, body...)
}

// bodyForBinding is the form in which the record of v0.4 and the v0.3 predicate of its
// envelope are the same.
func bodyForBinding(v *Value) []byte {
	out := Value{kind: Object}
	for _, m := range v.Members() {
		if m.Name == memberVersion {
			if s := m.Value.Str(); s == "aep/v0.4" || s == bodyOfEnvelope {
				m.Value = &Value{kind: String, text: bodyOfEnvelope}
			}
		}
		out.members = append(out.members, m)
	}
	return Canonical(&out, memberSignature, memberDSSE, memberTimestamp)
}

// duplicateIn tells whether any object in v has two members of one name.
func duplicateIn(v *Value) bool {
	seen := map[string]bool{}
	for _, m := range v.Members() {
		if seen[m.Name] || duplicateIn(m.Value) {
			return true
		}
		seen[m.Name] = true
	}
	return slices.ContainsFunc(v.Items(), duplicateIn)
}

// Sign gives the signature member of a record: Ed25519 over its canonical
// bytes, in padded standard base64.
func Sign(record *Value, key ed25519.PrivateKey) string {
	return base64.StdEncoding.EncodeToString(ed25519.Sign(key, SigningBytes(record)))
}
