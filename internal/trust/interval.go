package trust

import "github.com/missionweave/server/internal/protocol/lexical"

// Interval is when a key may sign and documents signed by it may be admitted:
// ValidFrom <= t, t < ValidUntil and t < RevokedAt. A nil boundary is absent.
// The boundaries are the earliest ones of the whole retained history.
type Interval struct {
	ValidFrom  lexical.Instant
	ValidUntil *lexical.Instant
	RevokedAt  *lexical.Instant
}

// Contains reports whether t lies in the half-open interval.
func (iv Interval) Contains(t lexical.Instant) bool { return iv.fault(t) == "" }

// fault names the boundary that t violates; empty when it violates none.
func (iv Interval) fault(t lexical.Instant) string {
	switch {
	case t.Compare(iv.ValidFrom) < 0:
		return ReasonKeyNotYetValid
	case iv.RevokedAt != nil && t.Compare(*iv.RevokedAt) >= 0:
		return ReasonKeyRevoked
	case iv.ValidUntil != nil && t.Compare(*iv.ValidUntil) >= 0:
		return ReasonKeyExpired
	}
	return ""
}
