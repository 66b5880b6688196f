package trust

import (
	"encoding/binary"

	"filippo.io/edwards25519"
)

// PointFault is the reason why 32 bytes are not an acceptable point or scalar.
// It is an error value: compare with errors.Is.
type PointFault string

// Faults of points and scalars (PROTOCOL.md 6.4, stages 3 and 4).
const (
	FaultLength       PointFault = "wrong-length"
	FaultNoncanonical PointFault = "noncanonical"
	FaultNegativeZero PointFault = "negative-zero"
	FaultOffCurve     PointFault = "off-curve"
	FaultIdentity     PointFault = "identity"
	FaultSmallOrder   PointFault = "small-order"
	FaultMixedOrder   PointFault = "mixed-order"
	FaultOutOfRange   PointFault = "out-of-range"
)

func (f PointFault) Error() string { return "ed25519 encoding: " + string(f) }

// groupOrder is L = 2^252 + 27742317777372353535851937790883648493, the order of
// the base point, as four little-endian words.
var groupOrder = [4]uint64{0x5812631a5cf5d3ed, 0x14def9dea2f79cd6, 0, 0x1000000000000000}

// minusOne is L-1. Multiplying by it and comparing with the negated point tests
// [L]P = identity: a Scalar is reduced modulo L, so L itself cannot be written.
var minusOne = func() *edwards25519.Scalar {
	one, err := edwards25519.NewScalar().SetCanonicalBytes(append([]byte{1}, make([]byte, 31)...))
	if err != nil {
		panic(err)
	}
	return edwards25519.NewScalar().Negate(one)
}()

// CheckPublicKey reports whether b is the canonical encoding of a point of the
// prime-order subgroup other than the identity; else it returns a PointFault.
// One call costs about one signature verification, so a registered key is
// checked once, when its binding enters an Evidence.
func CheckPublicKey(b []byte) error {
	return checkPoint(b, false)
}

// CheckR is CheckPublicKey for the first half of a signature, where the
// identity is permitted.
func CheckR(b []byte) error {
	return checkPoint(b, true)
}

func checkPoint(b []byte, identityAllowed bool) error {
	if err := checkPointForm(b); err != nil {
		return err
	}
	p, err := new(edwards25519.Point).SetBytes(b)
	if err != nil {
		return FaultOffCurve
	}
	identity := edwards25519.NewIdentityPoint()
	if p.Equal(identity) == 1 {
		if identityAllowed {
			return nil
		}
		return FaultIdentity
	}
	multiple := new(edwards25519.Point).VarTimeDoubleScalarBaseMult(minusOne, p, edwards25519.NewScalar())
	if multiple.Equal(new(edwards25519.Point).Negate(p)) == 1 {
		return nil
	}
	if new(edwards25519.Point).MultByCofactor(p).Equal(identity) == 1 {
		return FaultSmallOrder
	}
	return FaultMixedOrder
}

// checkPointForm is the part of the point check that needs no field arithmetic:
// length, y < p, and no sign bit on the two points whose x is zero. SetBytes
// accepts what this refuses, which is the hazard.
func checkPointForm(b []byte) error {
	if len(b) != 32 {
		return FaultLength
	}
	w0 := binary.LittleEndian.Uint64(b)
	w1 := binary.LittleEndian.Uint64(b[8:])
	w2 := binary.LittleEndian.Uint64(b[16:])
	w3 := binary.LittleEndian.Uint64(b[24:])
	negative := w3>>63 == 1
	w3 &^= 1 << 63
	const ones, top = ^uint64(0), ^uint64(0) >> 1
	high := w3 == top && w2 == ones && w1 == ones
	if high && w0 >= ones-18 { // p = 2^255 - 19
		return FaultNoncanonical
	}
	isOne := w0 == 1 && w1 == 0 && w2 == 0 && w3 == 0
	isMinusOne := high && w0 == ones-19
	if negative && (isOne || isMinusOne) {
		return FaultNegativeZero
	}
	return nil
}

// CheckS reports whether b is a 32-byte little-endian integer below the group
// order; else it returns a PointFault. Nothing is ever reduced modulo L.
func CheckS(b []byte) error {
	if len(b) != 32 {
		return FaultLength
	}
	for i := 3; i >= 0; i-- {
		w := binary.LittleEndian.Uint64(b[8*i:])
		if w < groupOrder[i] {
			return nil
		}
		if w > groupOrder[i] {
			return FaultOutOfRange
		}
	}
	return FaultOutOfRange
}
