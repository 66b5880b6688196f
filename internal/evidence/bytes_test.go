package evidence_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

func parse(t testing.TB, text string) *evidence.Value {
	t.Helper()
	v, err := evidence.ParseValue([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func TestCanonicalForm(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"array indices first and numeric", `{"b":1,"10":2,"9":3,"01":4,"-1":5,"":6}`, `{"9":3,"10":2,"":6,"-1":5,"01":4,"b":1}`},
		{"the last index is 2^32-2", `{"4294967295":1,"4294967294":2}`, `{"4294967294":2,"4294967295":1}`},
		{"also in the depth", `[{"x":{"2":1,"1":2}}]`, `[{"x":{"1":2,"2":1}}]`},
		{"__proto__ is not covered", `{"__proto__":{"a":1},"b":{"__proto__":2}}`, `{"b":{}}`},
		{"the last duplicate wins", `{"a":1,"a":{"b":1,"b":2}}`, `{"a":{"b":2}}`},
		{"numbers as ECMAScript writes them", `[1.0,-0,1e21,1e-7,1e400,-1e400,9007199254740993,0.1e1]`, `[1,0,1e+21,1e-7,null,null,9007199254740992,1]`},
		{"lone surrogates as escapes, in names too", `{"\ud800":"\uDFFFx"}`, `{"\ud800":"\udfffx"}`},
		{"pairs are characters", `"\ud83d\ude00\u007f\u2028</"`, "\"\U0001F600\x7f\u2028</\""},
		{"control characters", `"\u0000\b\t\n\f\r\u001f\"\\\/"`, `"\u0000\b\t\n\f\r\u001f\"\\/"`},
		{"names by UTF-16, so astral before U+E000", `{"\ue000":1,"\ud800\udc00":2,"\ud7ff":3}`, "{\"\ud7ff\":3,\"\U00010000\":2,\"\ue000\":1}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := string(evidence.Canonical(parse(t, tc.in))); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// anyJSON draws JSON values without what is unsafe and without index names.
func anyJSON(depth int) *rapid.Generator[any] {
	leaf := rapid.OneOf(
		rapid.Just[any](nil), rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Map(rapid.Float64(), func(f float64) any { return f }), rapid.Map(rapid.String(), func(s string) any { return s }))
	if depth == 0 {
		return leaf
	}
	return rapid.OneOf(leaf,
		rapid.Map(rapid.SliceOfN(anyJSON(depth-1), 0, 4), func(l []any) any { return l }),
		rapid.Map(rapid.MapOfN(rapid.Map(rapid.String(), func(s string) string { return "n" + s }), anyJSON(depth-1), 0, 4), func(m map[string]any) any { return m }))
}

func TestCanonicalIsRFC8785WhereNothingIsOdd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw, err := json.Marshal(anyJSON(3).Draw(t, "value"))
		if err != nil {
			t.Skip(err)
		}
		want, err := strictjson.Canonicalize(raw)
		if err != nil {
			t.Skip(err)
		}
		v, err := evidence.ParseValue(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got := evidence.Canonical(v); !bytes.Equal(got, want) {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
}

func keyPair(seed byte) (ed25519.PrivateKey, evidence.KeyLookup) {
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
	return key, func(id string) (ed25519.PublicKey, bool) {
		return key.Public().(ed25519.PublicKey), id == "k"
	}
}

func signed(t testing.TB, rec map[string]any, key ed25519.PrivateKey) map[string]any {
	t.Helper()
	delete(rec, "signature")
	v := parse(t, string(encode(t, rec)))
	rec["signature"] = map[string]any{"alg": "ed25519", "key_id": "k", "sig": evidence.Sign(v, key)}
	return rec
}

func TestSignatureRules(t *testing.T) {
	key, keys := keyPair(7)
	other, _ := keyPair(8)
	base := func() map[string]any { return signed(t, record(t, leaseAction, approvedAction), key) }
	text := func(m map[string]any) string { return string(encode(t, m)) }
	sigOf := func(m map[string]any) string { return m["signature"].(map[string]any)["sig"].(string) }
	for _, tc := range []struct {
		name string
		raw  func() string
		want []string
		warn []string
	}{
		{"signed", func() string { return text(base()) }, nil, nil},
		{"unknown members are covered", func() string {
			m := record(t, plainAction)
			m["vendor"] = map[string]any{"2": 1, "10": 2}
			return strings.Replace(text(signed(t, m, key)), `"vendor":{"10":2`, `"vendor":{"10":3`, 1)
		}, []string{"C-07 E_SIGNATURE_INVALID"}, nil},
		{"another spelling of the same value", func() string {
			return strings.Replace(text(base()), `"created_at_ms":1700000001000`, ` "created_at_ms" : 17000000010.00e2`, 1)
		}, nil, nil},
		{"another key", func() string { return text(signed(t, record(t), other)) }, []string{"C-07 E_SIGNATURE_INVALID"}, nil},
		{"key id unknown", func() string { return strings.Replace(text(base()), `"key_id":"k"`, `"key_id":"q"`, 1) }, []string{"C-06 E_KEY_UNKNOWN"}, nil},
		{"URL alphabet without padding", func() string {
			m := base()
			s := sigOf(m)
			return strings.Replace(text(m), s, strings.NewReplacer("+", "-", "/", "_", "=", "").Replace(s), 1)
		}, nil, nil},
		{"white space in the signature", func() string { m := base(); s := sigOf(m); return strings.Replace(text(m), s, s[:10]+` `+s[10:], 1) }, []string{"C-05 E_SIGNATURE_ENCODING"}, nil},
		{"a line break in the signature", func() string { m := base(); s := sigOf(m); return strings.Replace(text(m), s, s[:10]+`\n`+s[10:], 1) }, []string{"C-05 E_SIGNATURE_ENCODING"}, nil},
		{"half of the padding", func() string { m := base(); s := sigOf(m); return strings.Replace(text(m), s, s[:len(s)-1], 1) }, []string{"C-05 E_SIGNATURE_ENCODING"}, nil},
		{"placeholder", func() string { return text(record(t)) }, []string{"C-03 E_SIGNATURE_PLACEHOLDER"}, nil},
		{"old record without signature", func() string {
			return `{"schema_version":"aep/v0.2","run_id":"r","created_at_ms":1}`
		}, []string{"C-02 E_SIGNATURE_MISSING"}, nil},
		{"old record of another algorithm", func() string {
			return `{"schema_version":"aep/v0.1","run_id":"r","created_at_ms":1,"signature":{"alg":"hmac-sha256","key_id":"k","sig":"AAAA"}}`
		}, []string{"C-04 E_SIGNATURE_ALG"}, nil},
		{"a member that no signature covers", func() string { return strings.Replace(text(base()), "{", `{"__proto__":1,`, 1) }, []string{"C-01 E_CANON_UNSAFE"}, nil},
		{"a member twice", func() string { return strings.Replace(text(base()), "{", `{"run_id":"urn:uuid:w#1",`, 1) }, []string{"C-12 E_DUPLICATE_KEY"}, nil},
		{"a number beyond binary64 in an unknown member", func() string { return strings.Replace(text(base()), "{", `{"x":[1e999],`, 1) }, []string{"C-01 E_CANON_UNSAFE"}, nil},
		{"a timestamp proof after signing", func() string {
			return strings.Replace(text(base()), "{", `{"timestamp_proof":{"timestamp":"t","authority":"a","proof":"p"},`, 1)
		}, nil, []string{"C-08 W_TIMESTAMP_PROOF_UNSIGNED"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, rep := evidence.Check([]byte(tc.raw()), evidence.Options{Signature: true, Keys: keys})
			if diff := cmp.Diff(append([]string{}, tc.want...), found(rep.Errors)); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(append([]string{}, tc.warn...), found(rep.Warnings)); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if (rep.Signature == evidence.SignatureValid) != (len(tc.want) == 0) {
				t.Errorf("signature %s", rep.Signature)
			}
		})
	}
}

func TestArchiveVerifiesOldBytesAndWarns(t *testing.T) {
	key, keys := keyPair(7)
	raw := `{"schema_version":"aep/v0.2","run_id":"\ud800","created_at_ms":1,"x":1e400}`
	sig := evidence.Sign(parse(t, raw), key)
	raw = strings.TrimSuffix(raw, "}") + `,"signature":{"alg":"ed25519","key_id":"k","sig":"` + sig + `"}}`
	if _, rep := evidence.Check([]byte(raw), evidence.Options{Signature: true, Keys: keys}); rep.Signature != evidence.SignatureInvalid {
		t.Error("verified strictly")
	}
	_, rep := evidence.Check([]byte(raw), evidence.Options{Signature: true, Keys: keys, Archive: true})
	if rep.Signature != evidence.SignatureValid || !slices.Equal(found(rep.Warnings), []string{"C-01 W_CANON_UNSAFE"}) {
		t.Errorf("signature %s, warnings %v, errors %v", rep.Signature, rep.Warnings, rep.Errors)
	}
}

// envelopeRecord makes a record of v0.4 as its first emitters did.
func envelopeRecord(t testing.TB, key ed25519.PrivateKey, change func(statement, outer map[string]any), decoded bool) []byte {
	t.Helper()
	predicate := record(t, plainAction)
	delete(predicate, "signature")
	outer := record(t, plainAction)
	outer["schema_version"] = "aep/v0.4"
	digest := evidence.RecordHash(parse(t, string(encode(t, predicate))))
	statement := map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://wasmagent.dev/attestations/aep/v0.4", "predicate": predicate,
		"subject": []any{map[string]any{"name": "urn:wasmagent:run:urn:uuid:w#1", "digest": map[string]any{"sha256": digest}}},
	}
	change(statement, outer)
	body := encode(t, statement)
	payload := base64.StdEncoding.EncodeToString(body)
	under := []byte(payload)
	if decoded {
		under = body
	}
	typ := "application/vnd.in-toto+json"
	msg := append(fmt.Appendf(nil, "DSSEv1 %d %s %d ", len(typ), typ, len(under)), under...)
	sig := base64.StdEncoding.EncodeToString(ed25519.Sign(key, msg))
	outer["dsse_envelope"] = map[string]any{"payloadType": typ, "payload": payload, "signatures": []any{map[string]any{"keyid": "k", "sig": sig}}}
	outer["signature"] = map[string]any{"alg": "ed25519", "key_id": "k", "sig": sig}
	return encode(t, outer)
}

func TestEnvelopesVerifyAndBind(t *testing.T) {
	key, keys := keyPair(7)
	for _, tc := range []struct {
		name    string
		change  func(statement, outer map[string]any)
		decoded bool
		want    []string
	}{
		{"as emitted", func(_, _ map[string]any) {}, false, nil},
		{"signed over the decoded payload", func(_, _ map[string]any) {}, true, nil},
		{"a proof attached later", func(_, o map[string]any) {
			o["timestamp_proof"] = map[string]any{"timestamp": "t", "authority": "a", "proof": "p"}
		}, false, nil},
		{"outer run changed", func(_, o map[string]any) { o["run_id"] = "another" }, false, []string{"C-10 E_DSSE_BINDING"}},
		{"outer member added", func(_, o map[string]any) { o["user_id"] = "u" }, false, []string{"C-10 E_DSSE_BINDING"}},
		{"another predicate type", func(s, _ map[string]any) { s["predicateType"] = "x" }, false, []string{"C-10 E_DSSE_BINDING"}},
		{"another digest", func(s, _ map[string]any) {
			s["subject"].([]any)[0].(map[string]any)["digest"] = map[string]any{"sha256": "00"}
		}, false, []string{"C-10 E_DSSE_BINDING"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, rep := evidence.Check(envelopeRecord(t, key, tc.change, tc.decoded), evidence.Options{Signature: true, Keys: keys})
			if diff := cmp.Diff(append([]string{}, tc.want...), found(rep.Errors)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	raw := bytes.Replace(envelopeRecord(t, key, func(_, _ map[string]any) {}, false), []byte(`"payload":"`), []byte(`"payload":"AAAA`), 1)
	if _, rep := evidence.Check(raw, evidence.Options{Signature: true, Keys: keys}); !slices.Equal(found(rep.Errors), []string{"C-10 E_DSSE_INVALID"}) {
		t.Errorf("changed payload: %v", rep.Errors)
	}
}

func TestChainStatus(t *testing.T) {
	link := func(run string, prev *evidence.Value) *evidence.Value {
		text := `{"schema_version":"aep/v0.3","run_id":"` + run + `","created_at_ms":1`
		if prev != nil {
			text += `,"prev_record_hash":"` + evidence.RecordHash(prev) + `"`
		}
		return parse(t, text+`,"signature":{"sig":"`+run+`"}}`)
	}
	a := link("a", nil)
	b := link("b", a)
	c := link("c", b)
	free := link("free", nil)
	for _, tc := range []struct {
		name string
		list []*evidence.Value
		want evidence.ChainStatus
		at   int
	}{
		{"none", nil, evidence.ChainNotPresent, -1},
		{"first only", []*evidence.Value{a}, evidence.ChainNotPresent, -1},
		{"all linked", []*evidence.Value{a, b, c}, evidence.ChainIntact, -1},
		{"one missing in between", []*evidence.Value{a, c}, evidence.ChainBroken, 1},
		{"a tail", []*evidence.Value{b, c}, evidence.ChainOrphaned, -1},
		{"out of order", []*evidence.Value{b, a}, evidence.ChainOrphaned, -1},
		{"one without link", []*evidence.Value{a, b, free}, evidence.ChainPartial, -1},
	} {
		if got, broken := evidence.Chain(tc.list); got != tc.want || broken != tc.at {
			t.Errorf("%s: %s at %d", tc.name, got, broken)
		}
	}
	key, keys := keyPair(7)
	rec := record(t)
	rec["prev_record_hash"] = strings.Repeat("0", 64)
	if _, rep := evidence.Check(encode(t, signed(t, rec, key)), evidence.Options{Signature: true, Keys: keys, Previous: a}); !slices.Equal(found(rep.Errors), []string{"C-09 E_CHAIN_BROKEN"}) {
		t.Errorf("%v", rep.Errors)
	}
}

func FuzzParseValue(f *testing.F) {
	for _, s := range []string{`{"a":[1,"\ud800\u0041",{}],"a":null}`, `-0.1e-5`, `"\n\u0301"`, `[[[[]]]]`, "\xed\xa0\x80", `{"__proto__":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := evidence.ParseValue(b)
		if (err == nil) != json.Valid(b) && !bytes.ContainsAny(b, "[{") && bytes.Equal(bytes.ToValidUTF8(b, nil), b) {
			t.Fatalf("%q: %v", b, err)
		}
		if err != nil {
			return
		}
		once := evidence.Canonical(v)
		again, err := evidence.ParseValue(once)
		if err != nil {
			t.Fatalf("%s: %v", once, err)
		}
		if twice := evidence.Canonical(again); !bytes.Equal(once, twice) {
			t.Fatalf("%s and %s", once, twice)
		}
	})
}

func FuzzCheck(f *testing.F) {
	f.Add(encode(f, record(f, plainAction, leaseAction, approvedAction)))
	key, keys := keyPair(7)
	f.Add(envelopeRecord(f, key, func(_, _ map[string]any) {}, false))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, rep := evidence.Check(b, evidence.Options{Signature: true, Keys: keys, Registry: &evidence.Registry{Leases: map[string][]evidence.LeaseWindow{}}})
		if rep.OK() && rep.Signature != evidence.SignatureValid {
			t.Fatal("no error and no signature")
		}
		for _, a := range v.Get("actions").Items() {
			if slices.Contains(rep.Tiers, 2) {
				evidence.EnvelopeOf(v, a)
				evidence.Assess(a)
			}
		}
		for _, finding := range slices.Concat(rep.Errors, rep.Warnings) {
			if !inTable(finding) {
				t.Fatalf("%v is not in the table", finding)
			}
		}
	})
}
