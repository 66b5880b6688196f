package trust

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"testing"

	"filippo.io/edwards25519"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"pgregory.net/rapid"
)

const testOrg = "urn:test:organization:weavers"

func actor(kind, name string) protocol.Actor {
	return protocol.Actor{Type: kind, ID: "urn:test:" + kind + ":" + name}
}

// testSigner is a Principal with the key made from one seed byte.
func testSigner(kind, name string, seed byte) Signer {
	return Signer{KeyID: fmt.Sprintf("urn:test:key:%s-%d", name, seed), Principal: actor(kind, name), Private: testKey(seed)}
}

var (
	ann    = testSigner(protocol.ActorHuman, "ann", 1)
	ben    = testSigner(protocol.ActorAgent, "ben", 2)
	gate   = testSigner(protocol.ActorService, "gate", 3)
	annOld = testSigner(protocol.ActorHuman, "ann", 4)
)

const (
	day1 = "2031-03-01T00:00:00Z"
	day2 = "2031-03-02T00:00:00Z"
	day3 = "2031-03-03T00:00:00Z"
	day4 = "2031-03-04T00:00:00Z"
)

func history(v ...Validity) []Validity { return v }

func until(seq int64, recorded, at string) Validity {
	return Validity{Sequence: seq, RecordedAt: recorded, ValidUntil: at}
}

func revoked(seq int64, recorded, at string) Validity {
	return Validity{Sequence: seq, RecordedAt: recorded, RevokedAt: at}
}

func edit(b Binding, change func(*Binding)) Binding {
	b.History = slices.Clone(b.History)
	change(&b)
	return b
}

func b64(b []byte) string { return lexical.EncodeBase64URL(b) }

// TestEvidenceRules: each row takes a sound registry and adds one more binding;
// the Organization-wide rules must hold over every binding, so one bad record
// fails all of them.
func TestEvidenceRules(t *testing.T) {
	a, err := new(edwards25519.Point).SetBytes(ann.Private.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	small := torsion(t)
	mixed := new(edwards25519.Point).Add(a, small)
	fresh := annOld.Binding(day1)
	for _, c := range []struct {
		name  string
		extra Binding
		want  string
	}{
		{"a new key of a known Principal", fresh, ""},
		{"the identical binding declared twice is one binding", ann.Binding(day1), ""},
		{"the identical binding with its start spelled at another offset", ann.Binding("2031-03-01T02:00:00+02:00"), ""},
		{"an offset and many fraction digits in validity times", edit(fresh, func(b *Binding) {
			b.ValidFrom = "2031-03-01T00:00:00.0000000000000000000001+23:59"
			b.History = history(until(1, "2031-03-01t00:00:00z", day3))
		}), ""},
		{"key id reused for another key", edit(annOld.Binding(day1), func(b *Binding) { b.KeyID = ann.KeyID }), FaultKeyIDReused},
		{"key id reused for another Principal", edit(ann.Binding(day1), func(b *Binding) { b.Principal = ben.Principal }), FaultKeyIDReused},
		{"key id repeated with another start", ann.Binding(day2), FaultKeyIDReused},
		{"public key under another Principal", edit(annOld.Binding(day1), func(b *Binding) { b.PublicKey = ben.PublicKey() }), FaultPublicKeyReused},
		{"public key under another type of the same id", edit(annOld.Binding(day1), func(b *Binding) {
			b.PublicKey, b.Principal = ann.PublicKey(), protocol.Actor{Type: protocol.ActorAgent, ID: ann.Principal.ID}
		}), FaultPublicKeyReused},
		{"key-id alias of the same Principal and key", edit(ann.Binding(day1), func(b *Binding) { b.KeyID += "-alias" }), FaultKeyIDAlias},
		{"empty key id", edit(fresh, func(b *Binding) { b.KeyID = "" }), FaultKeyID},
		{"key id with a trailing line feed", edit(fresh, func(b *Binding) { b.KeyID += "\n" }), FaultKeyID},
		{"relative key id", edit(fresh, func(b *Binding) { b.KeyID = "key/1" }), FaultKeyID},
		{"IRI-only Principal id", edit(fresh, func(b *Binding) { b.Principal.ID = "urn:test:human:änn" }), FaultPrincipal},
		{"Principal id with a malformed percent escape", edit(fresh, func(b *Binding) { b.Principal.ID = "urn:test:human:a%2" }), FaultPrincipal},
		{"unknown Principal type", edit(fresh, func(b *Binding) { b.Principal.Type = "group" }), FaultPrincipal},
		{"another algorithm", edit(fresh, func(b *Binding) { b.Algorithm = "Ed448" }), FaultAlgorithm},
		{"algorithm in another case", edit(fresh, func(b *Binding) { b.Algorithm = "ed25519" }), FaultAlgorithm},
		{"padded public key", edit(fresh, func(b *Binding) { b.PublicKey += "=" }), FaultPublicKey},
		{"public key with nonzero pad bits", edit(fresh, func(b *Binding) {
			b.PublicKey = b.PublicKey[:42] + string(nextLetter(b.PublicKey[42]))
		}), FaultPublicKey},
		{"public key in the other alphabet", edit(fresh, func(b *Binding) { b.PublicKey = "+" + b.PublicKey[1:] }), FaultPublicKey},
		{"short public key", edit(fresh, func(b *Binding) { b.PublicKey = b64(make([]byte, 31)) }), FaultPublicKey},
		{"long public key", edit(fresh, func(b *Binding) { b.PublicKey = b64(make([]byte, 33)) }), FaultPublicKey},
		{"identity as public key", edit(fresh, func(b *Binding) { b.PublicKey = b64(edwards25519.NewIdentityPoint().Bytes()) }), FaultPublicKey},
		{"small-order public key", edit(fresh, func(b *Binding) { b.PublicKey = b64(small.Bytes()) }), FaultPublicKey},
		{"mixed-order public key", edit(fresh, func(b *Binding) { b.PublicKey = b64(mixed.Bytes()) }), FaultPublicKey},
		{"off-curve public key", edit(fresh, func(b *Binding) { b.PublicKey = b64(offCurve(t)) }), FaultPublicKey},
		{"noncanonical public key", edit(fresh, func(b *Binding) { b.PublicKey = b64(littleEndian(fieldPrime)) }), FaultPublicKey},
		{"negative-zero public key", edit(fresh, func(b *Binding) { b.PublicKey = b64(withSign(littleEndian(big.NewInt(1)))) }), FaultPublicKey},
		{"no start", edit(fresh, func(b *Binding) { b.ValidFrom = "" }), FaultValidityTime},
		{"leap second in the start", edit(fresh, func(b *Binding) { b.ValidFrom = "2031-06-30T23:59:60Z" }), FaultValidityTime},
		{"unknown local offset in the start", edit(fresh, func(b *Binding) { b.ValidFrom = "2031-03-01T00:00:00-00:00" }), FaultValidityTime},
		{"malformed boundary", edit(fresh, func(b *Binding) { b.History = history(until(1, day1, "soon")) }), FaultValidityTime},
		{"malformed record time", edit(fresh, func(b *Binding) { b.History = history(until(1, "", day3)) }), FaultValidityTime},
		{"history that does not begin at 1", edit(fresh, func(b *Binding) { b.History = history(until(2, day1, day3)) }), FaultHistoryGap},
		{"history with a gap", edit(fresh, func(b *Binding) { b.History = history(until(1, day1, day3), until(3, day2, day3)) }), FaultHistoryGap},
		{"history with sequence 0", edit(fresh, func(b *Binding) { b.History = history(until(0, day1, day3)) }), FaultHistoryGap},
		{"history recorded backwards", edit(fresh, func(b *Binding) { b.History = history(until(1, day2, day3), revoked(2, day1, day3)) }), FaultHistoryOrder},
		{"two statuses of one sequence that agree", edit(fresh, func(b *Binding) { b.History = history(until(1, day1, day3), until(1, day1, day3)) }), ""},
		{"two statuses of one sequence that differ", edit(fresh, func(b *Binding) { b.History = history(until(1, day1, day3), until(1, day1, day2)) }), FaultHistoryRewrite},
		{"history given out of order", edit(fresh, func(b *Binding) { b.History = history(until(2, day2, day2), until(1, day1, day3)) }), ""},
		{"validUntil moved earlier", edit(fresh, func(b *Binding) { b.History = history(until(1, day1, day4), until(2, day2, day3)) }), ""},
		{"validUntil said again", edit(fresh, func(b *Binding) { b.History = history(until(1, day1, day4), until(2, day2, day4)) }), ""},
		{"validUntil moved later", edit(fresh, func(b *Binding) { b.History = history(until(1, day1, day3), until(2, day2, day4)) }), FaultBoundaryLater},
		{"validUntil moved later by less than a nanosecond", edit(fresh, func(b *Binding) {
			b.History = history(until(1, day1, day3), until(2, day2, "2031-03-03T00:00:00.00000000001Z"))
		}), FaultBoundaryLater},
		{"revokedAt moved later after a status without it", edit(fresh, func(b *Binding) {
			b.History = history(revoked(1, day1, day3), until(2, day2, day4), revoked(3, day3, day4))
		}), FaultBoundaryLater},
	} {
		t.Run(c.name, func(t *testing.T) {
			sound := []Binding{ann.Binding(day1), ben.Binding(day1), gate.Binding(day1)}
			base, err := NewEvidence(testOrg, 7, sound)
			if err != nil {
				t.Fatal(err)
			}
			_, whole := NewEvidence(testOrg, 8, append(sound, c.extra))
			_, extended := base.Extend(8, []Binding{c.extra})
			_, reloaded := base.Reload(8, append(sound, c.extra))
			for way, err := range map[string]error{"NewEvidence": whole, "Extend": extended, "Reload": reloaded} {
				if got := faultReason(err); got != c.want {
					t.Errorf("%s: %q (%v), want %q", way, got, err, c.want)
				}
			}
		})
	}
}

// nextLetter is a base64url letter that differs in the lowest bit only.
func nextLetter(c byte) byte {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	for i := range alphabet {
		if alphabet[i] == c {
			return alphabet[i^1]
		}
	}
	panic("not a base64url letter")
}

func faultReason(err error) string {
	if err == nil {
		return ""
	}
	var fault *BindingFault
	if !errors.As(err, &fault) {
		return "not a BindingFault: " + err.Error()
	}
	return fault.Reason
}

func TestMalformedPublicKeySaysWhy(t *testing.T) {
	b := edit(ann.Binding(day1), func(b *Binding) { b.PublicKey = b64(torsion(t).Bytes()) })
	_, err := NewEvidence(testOrg, 1, []Binding{b})
	if !errors.Is(err, FaultSmallOrder) {
		t.Errorf("error %v does not carry the point's fault", err)
	}
}

func TestEvidenceScope(t *testing.T) {
	if _, err := NewEvidence("acme", 1, nil); faultReason(err) != FaultOrganizationID {
		t.Errorf("relative Organization id: %v", err)
	}
	empty, err := NewEvidence(testOrg, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, reason := empty.resolve(ann.KeyID, ann.Principal, lexical.Instant{}); reason != ReasonUnknownKey {
		t.Errorf("an empty complete registry says %q", reason)
	}
	for name, ev := range map[string]*Evidence{
		"nil":         nil,
		"zero":        {},
		"unavailable": UnavailableEvidence(testOrg, errors.New("database is down")),
	} {
		if _, reason := ev.resolve(ann.KeyID, ann.Principal, lexical.Instant{}); reason != ReasonEvidenceUnavailable {
			t.Errorf("%s evidence says %q", name, reason)
		}
		if _, err := ev.Extend(2, nil); err == nil {
			t.Errorf("%s evidence can be extended", name)
		}
		if _, err := ev.Reload(2, nil); err == nil {
			t.Errorf("%s evidence can be reloaded", name)
		}
	}
}

func TestEvidenceRevisionsOnlyRise(t *testing.T) {
	ev := mustEvidence(t, ann.Binding(day1))
	if _, err := ev.Extend(ev.Revision(), []Binding{ben.Binding(day1)}); faultReason(err) != FaultRevision {
		t.Errorf("extended to the same revision: %v", err)
	}
	if _, err := ev.Reload(ev.Revision()-1, []Binding{ann.Binding(day1)}); faultReason(err) != FaultRevision {
		t.Errorf("reloaded a superseded revision: %v", err)
	}
	if _, err := ev.Reload(ev.Revision(), []Binding{ann.Binding(day1)}); err != nil {
		t.Errorf("reloading the same revision: %v", err)
	}
}

func mustEvidence(t testing.TB, bindings ...Binding) *Evidence {
	t.Helper()
	ev, err := NewEvidence(testOrg, 5, bindings)
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

func TestReloadRefusesRewrittenHistory(t *testing.T) {
	narrowed := edit(ann.Binding(day1), func(b *Binding) { b.History = history(until(1, day1, day4), until(2, day2, day3)) })
	ev := mustEvidence(t, narrowed, ben.Binding(day1))
	for _, c := range []struct {
		name string
		now  []Binding
		want string
	}{
		{"unchanged", []Binding{narrowed, ben.Binding(day1)}, ""},
		{"continued", []Binding{edit(narrowed, func(b *Binding) { b.History = append(b.History, revoked(3, day3, day2)) }), ben.Binding(day1)}, ""},
		{"a binding was discarded", []Binding{narrowed}, FaultBindingMissing},
		{"the history was discarded", []Binding{ann.Binding(day1), ben.Binding(day1)}, FaultHistoryRewrite},
		{"the last status was discarded", []Binding{edit(narrowed, func(b *Binding) { b.History = b.History[:1] }), ben.Binding(day1)}, FaultHistoryRewrite},
		{"a status was rewritten", []Binding{edit(narrowed, func(b *Binding) { b.History[0].ValidUntil = day3 }), ben.Binding(day1)}, FaultHistoryRewrite},
		{"the key was replaced", []Binding{narrowed, edit(ben.Binding(day1), func(b *Binding) { b.PublicKey = gate.PublicKey() })}, FaultKeyIDReused},
		{"the start was moved", []Binding{narrowed, ben.Binding(day2)}, FaultKeyIDReused},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ev.Reload(6, c.now)
			if got := faultReason(err); got != c.want {
				t.Errorf("%q (%v), want %q", got, err, c.want)
			}
		})
	}
}

// An Evidence handed out stays as it was, whatever is built from it or from the
// caller's slices later.
func TestEvidenceIsImmutable(t *testing.T) {
	given := []Binding{edit(ann.Binding(day1), func(b *Binding) { b.History = history(until(1, day1, day4)) })}
	ev := mustEvidence(t, given...)
	given[0].History[0].ValidUntil = day2
	given[0].KeyID = "urn:test:key:other"
	narrower, err := ev.Extend(6, []Binding{edit(ann.Binding(day1), func(b *Binding) { b.History = history(until(2, day2, day2)) })})
	if err != nil {
		t.Fatal(err)
	}
	other, err := ev.Extend(6, []Binding{edit(ann.Binding(day1), func(b *Binding) { b.History = history(revoked(2, day2, day3)) })})
	if err != nil {
		t.Fatal(err)
	}
	at := func(text string) lexical.Instant { return instant(t, text) }
	for _, c := range []struct {
		name string
		ev   *Evidence
		at   string
		want string
	}{
		{"the first revision", ev, day3, ""},
		{"the narrowed revision", narrower, day2, ReasonKeyExpired},
		{"its sibling", other, day2, ""},
		{"its sibling after the revocation", other, day3, ReasonKeyRevoked},
	} {
		if _, reason := c.ev.resolve(ann.KeyID, ann.Principal, at(c.at)); reason != c.want {
			t.Errorf("%s at %s: %q, want %q", c.name, c.at, reason, c.want)
		}
	}
	if k, _ := ev.Key(ann.KeyID); len(k.Binding().History) != 1 || k.Binding().History[0].ValidUntil != day4 {
		t.Errorf("retained record changed: %+v", k.Binding())
	}
}

func instant(t testing.TB, text string) lexical.Instant {
	t.Helper()
	in, err := lexical.ParseTimestamp(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return in
}

func TestKeyIntervalIsHalfOpenAndExact(t *testing.T) {
	ev := mustEvidence(t, edit(ann.Binding("2031-03-01T00:00:00.00000000000000000002Z"), func(b *Binding) {
		b.History = history(until(1, day1, day4), revoked(2, day2, "2031-03-03T00:00:00.5+00:00"))
	}))
	for text, want := range map[string]string{
		"2031-03-01T00:00:00Z":                         ReasonKeyNotYetValid,
		"2031-03-01T00:00:00.00000000000000000001999Z": ReasonKeyNotYetValid,
		"2031-03-01T00:00:00.00000000000000000002Z":    "",
		"2031-03-01T01:00:00+01:00":                    ReasonKeyNotYetValid,
		"2031-03-03T00:00:00.499999999999999999999Z":   "",
		"2031-03-03T00:00:00.500Z":                     ReasonKeyRevoked,
		"2031-03-05T00:00:00Z":                         ReasonKeyRevoked,
	} {
		if _, reason := ev.resolve(ann.KeyID, ann.Principal, instant(t, text)); reason != want {
			t.Errorf("at %s: %q, want %q", text, reason, want)
		}
	}
}

// A chain of extensions must equal one evidence built from everything.
func TestExtendEqualsBuildingWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var declared []Binding
		ev, err := NewEvidence(testOrg, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			var batch []Binding
			for range rapid.IntRange(1, 20).Draw(t, "batch") {
				n := rapid.IntRange(0, 40).Draw(t, "key")
				s := testSigner(protocol.ActorAgent, fmt.Sprint("a", n), byte(n))
				b := s.Binding(day1)
				if rapid.Bool().Draw(t, "narrow") {
					b.History = history(until(1, day1, day4))
				}
				batch = append(batch, b)
			}
			declared = append(declared, batch...)
			if ev, err = ev.Extend(int64(step+2), batch); err != nil {
				t.Fatal(err)
			}
		}
		whole, err := NewEvidence(testOrg, ev.Revision(), declared)
		if err != nil {
			t.Fatal(err)
		}
		if ev.Len() != whole.Len() {
			t.Fatalf("%d keys, want %d", ev.Len(), whole.Len())
		}
		seen := 0
		for k := range ev.All() {
			seen++
			other, ok := whole.Key(k.ID())
			if !ok || other.Principal() != k.Principal() || len(other.history) != len(k.history) {
				t.Fatalf("key %s differs", k.ID())
			}
			if owner, ok := ev.Owner(k.PublicKey()); !ok || owner != k {
				t.Fatalf("key %s is not the owner of its point", k.ID())
			}
		}
		if seen != ev.Len() {
			t.Fatalf("All yields %d of %d", seen, ev.Len())
		}
	})
}
