package trust

import (
	"bytes"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"math/big"
	"slices"
	"testing"

	"filippo.io/edwards25519"
)

var (
	fieldPrime = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(19))
	orderL, _  = new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)
)

func littleEndian(n *big.Int) []byte {
	b := n.FillBytes(make([]byte, 32))
	for i, j := 0, 31; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return b
}

func withSign(b []byte) []byte {
	b = bytes.Clone(b)
	b[31] |= 0x80
	return b
}

// torsion returns a point of order eight: a point cleared of its prime-order
// component.
func torsion(t testing.TB) *edwards25519.Point {
	t.Helper()
	for y := uint64(2); y < 200; y++ {
		var b [32]byte
		binary.LittleEndian.PutUint64(b[:], y)
		p, err := new(edwards25519.Point).SetBytes(b[:])
		if err != nil {
			continue
		}
		q := new(edwards25519.Point).VarTimeDoubleScalarBaseMult(minusOne, p, edwards25519.NewScalar())
		q.Add(q, p)
		four := new(edwards25519.Point).Double(new(edwards25519.Point).Double(q))
		if four.Equal(edwards25519.NewIdentityPoint()) == 0 {
			return q
		}
	}
	t.Fatal("no point of order eight among the candidates")
	return nil
}

func multiples(p *edwards25519.Point, n int) []*edwards25519.Point {
	out := []*edwards25519.Point{edwards25519.NewIdentityPoint()}
	for len(out) < n {
		out = append(out, new(edwards25519.Point).Add(out[len(out)-1], p))
	}
	return out
}

func offCurve(t testing.TB) []byte {
	t.Helper()
	for y := uint64(2); y < 200; y++ {
		var b [32]byte
		binary.LittleEndian.PutUint64(b[:], y)
		if _, err := new(edwards25519.Point).SetBytes(b[:]); err != nil {
			return b[:]
		}
	}
	t.Fatal("every candidate is on the curve")
	return nil
}

func testKey(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

func TestPointRules(t *testing.T) {
	good := testKey(1).Public().(ed25519.PublicKey)
	a, err := new(edwards25519.Point).SetBytes(good)
	if err != nil {
		t.Fatal(err)
	}
	small := multiples(torsion(t), 8)
	one, minus1 := littleEndian(big.NewInt(1)), littleEndian(new(big.Int).Sub(fieldPrime, big.NewInt(1)))
	type rule struct {
		name  string
		bytes []byte
		key   error // verdict as public key
		r     error // verdict as R
	}
	rules := []rule{
		{"a public key is a point", good, nil, nil},
		{"the base point is a point", edwards25519.NewGeneratorPoint().Bytes(), nil, nil},
		{"the identity is refused as key and permitted as R", one, FaultIdentity, nil},
		{"31 bytes are no point", good[:31], FaultLength, FaultLength},
		{"33 bytes are no point", append(bytes.Clone(good), 0), FaultLength, FaultLength},
		{"no bytes are no point", nil, FaultLength, FaultLength},
		{"y = p is a second spelling of 0", littleEndian(fieldPrime), FaultNoncanonical, FaultNoncanonical},
		{"y = p with a sign is one too", withSign(littleEndian(fieldPrime)), FaultNoncanonical, FaultNoncanonical},
		{"y = p+1 is a second spelling of the identity", littleEndian(new(big.Int).Add(fieldPrime, big.NewInt(1))), FaultNoncanonical, FaultNoncanonical},
		{"all bits set", bytes.Repeat([]byte{0xff}, 32), FaultNoncanonical, FaultNoncanonical},
		{"a negative zero beside y = 1", withSign(one), FaultNegativeZero, FaultNegativeZero},
		{"a negative zero beside y = -1", withSign(minus1), FaultNegativeZero, FaultNegativeZero},
		{"y = -1 is the point of order two", minus1, FaultSmallOrder, FaultSmallOrder},
		{"y = 0 has order four", make([]byte, 32), FaultSmallOrder, FaultSmallOrder},
		{"an y without an x", offCurve(t), FaultOffCurve, FaultOffCurve},
		{"an y without an x, negative", withSign(offCurve(t)), FaultOffCurve, FaultOffCurve},
	}
	for _, p := range small[1:] {
		mixed := new(edwards25519.Point).Add(a, p).Bytes()
		rules = append(rules,
			rule{"a point of small order", p.Bytes(), FaultSmallOrder, FaultSmallOrder},
			rule{"a key plus a point of small order", mixed, FaultMixedOrder, FaultMixedOrder})
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			if got := CheckPublicKey(r.bytes); !errors.Is(got, r.key) {
				t.Errorf("CheckPublicKey(%x) = %v, want %v", r.bytes, got, r.key)
			}
			if got := CheckR(r.bytes); !errors.Is(got, r.r) {
				t.Errorf("CheckR(%x) = %v, want %v", r.bytes, got, r.r)
			}
			form := checkPointForm(r.bytes)
			wantForm := slices.Contains([]error{FaultLength, FaultNoncanonical, FaultNegativeZero}, r.r)
			if wantForm != (form != nil) {
				t.Errorf("checkPointForm(%x) = %v", r.bytes, form)
			}
		})
	}
}

// Every spelling of y from p to 2^255-1 is noncanonical, and none below is.
func TestEveryNoncanonicalYIsRefused(t *testing.T) {
	for d := int64(-40); d <= 18; d++ {
		b := littleEndian(new(big.Int).Add(fieldPrime, big.NewInt(d)))
		for _, enc := range [][]byte{b, withSign(b)} {
			if got, want := errors.Is(checkPointForm(enc), FaultNoncanonical), d >= 0; got != want {
				t.Errorf("y = p%+d: noncanonical %v, want %v", d, got, want)
			}
		}
	}
}

func TestScalarRange(t *testing.T) {
	minus := func(n int64) []byte { return littleEndian(new(big.Int).Sub(orderL, big.NewInt(n))) }
	for _, c := range []struct {
		name  string
		bytes []byte
		want  error
	}{
		{"zero", make([]byte, 32), nil},
		{"L-1", minus(1), nil},
		{"L", minus(0), FaultOutOfRange},
		{"L+1", minus(-1), FaultOutOfRange},
		{"2L", littleEndian(new(big.Int).Lsh(orderL, 1)), FaultOutOfRange},
		{"2^252", littleEndian(new(big.Int).Lsh(big.NewInt(1), 252)), nil},
		{"2^253", littleEndian(new(big.Int).Lsh(big.NewInt(1), 253)), FaultOutOfRange},
		{"2^256-1", bytes.Repeat([]byte{0xff}, 32), FaultOutOfRange},
		{"31 bytes", make([]byte, 31), FaultLength},
		{"33 bytes", make([]byte, 33), FaultLength},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := CheckS(c.bytes); !errors.Is(got, c.want) {
				t.Errorf("CheckS = %v, want %v", got, c.want)
			}
			if len(c.bytes) == 32 {
				_, err := edwards25519.NewScalar().SetCanonicalBytes(c.bytes)
				if (err == nil) != (c.want == nil) {
					t.Errorf("the curve library says %v", err)
				}
			}
		})
	}
}

// FuzzPoint compares the form check with the definition: the library decodes
// every spelling, so one is canonical iff encoding the point gives it back.
func FuzzPoint(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0xff}, 32))
	f.Add(littleEndian(fieldPrime))
	f.Add(withSign(littleEndian(big.NewInt(1))))
	f.Add([]byte(testKey(1).Public().(ed25519.PublicKey)))
	for _, p := range multiples(torsion(f), 8) {
		f.Add(p.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		keyErr, rErr := CheckPublicKey(b), CheckR(b)
		if keyErr == nil && rErr != nil {
			t.Fatalf("%x is a key but no R: %v", b, rErr)
		}
		if keyErr != nil && rErr == nil && !errors.Is(keyErr, FaultIdentity) {
			t.Fatalf("%x is an R but no key: %v", b, keyErr)
		}
		p, err := new(edwards25519.Point).SetBytes(b)
		if err != nil {
			if rErr == nil {
				t.Fatalf("%x is not on the curve", b)
			}
			return
		}
		canonical := bytes.Equal(p.Bytes(), b)
		if form := checkPointForm(b); (form == nil) != canonical {
			t.Fatalf("%x: canonical %v, form check %v", b, canonical, form)
		}
		if rErr == nil {
			// Clearing the cofactor and undoing it is the identity map exactly on
			// the prime-order subgroup.
			eight, _ := edwards25519.NewScalar().SetCanonicalBytes(append([]byte{8}, make([]byte, 31)...))
			back := new(edwards25519.Point).ScalarMult(eight.Invert(eight), new(edwards25519.Point).MultByCofactor(p))
			if back.Equal(p) != 1 {
				t.Fatalf("%x accepted outside the prime-order subgroup", b)
			}
		}
	})
}
