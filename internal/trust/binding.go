package trust

import (
	"cmp"
	"crypto/ed25519"
	"fmt"
	"slices"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// Algorithm is the only signature algorithm of protocol 0.1.
const Algorithm = "Ed25519"

// Binding is one signing-key record of the Agent Registry as it is retained:
// texts exactly as registered, PublicKey as unpadded base64url of 32 bytes.
// KeyID, Principal, Algorithm, PublicKey and ValidFrom never change; History
// only grows.
type Binding struct {
	KeyID     string
	Principal protocol.Actor
	Algorithm string
	PublicKey string
	ValidFrom string
	History   []Validity
}

// Validity is one append-only status record of a key. Sequence counts from 1
// without gaps; an empty ValidUntil or RevokedAt leaves that boundary as it was.
type Validity struct {
	Sequence   int64
	RecordedAt string
	ValidUntil string
	RevokedAt  string
}

// BindingFault says which Organization-wide rule a binding breaks. KeyID is
// empty when the fault is not about one binding.
type BindingFault struct {
	KeyID  string
	Reason string
	Err    error
}

// Reasons of a BindingFault.
const (
	FaultOrganizationID  = "malformed-organization-id"
	FaultKeyID           = "malformed-key-id"
	FaultPrincipal       = "malformed-principal"
	FaultAlgorithm       = "unsupported-algorithm"
	FaultPublicKey       = "malformed-public-key"
	FaultValidityTime    = "malformed-validity-time"
	FaultKeyIDReused     = "key-id-reused"
	FaultPublicKeyReused = "public-key-reused"
	FaultKeyIDAlias      = "key-id-alias"
	FaultHistoryGap      = "history-gap"
	FaultHistoryOrder    = "history-order"
	FaultHistoryRewrite  = "history-rewritten"
	FaultBoundaryLater   = "boundary-moved-later"
	FaultBindingMissing  = "binding-missing"
	FaultRevision        = "revision-not-newer"
)

func (f *BindingFault) Error() string {
	text := "registry evidence: " + f.Reason
	if f.KeyID != "" {
		text += fmt.Sprintf(" (key %q)", f.KeyID)
	}
	if f.Err != nil {
		text += ": " + f.Err.Error()
	}
	return text
}

func (f *BindingFault) Unwrap() error { return f.Err }

// Key is a binding that took part in a valid Evidence: its point is proven and
// its effective interval computed. It is immutable and shared.
type Key struct {
	binding  Binding
	public   ed25519.PublicKey
	interval Interval
	history  []status
}

// ID is the key id.
func (k *Key) ID() string { return k.binding.KeyID }

// Principal is the only Principal the key may sign for.
func (k *Key) Principal() protocol.Actor { return k.binding.Principal }

// PublicKey is the proven 32-byte point; it must not be changed.
func (k *Key) PublicKey() ed25519.PublicKey { return k.public }

// Interval is the effective validity.
func (k *Key) Interval() Interval { return k.interval }

// Binding is the retained record; its History must not be changed.
func (k *Key) Binding() Binding { return k.binding }

// Verifies reports whether signature (64 bytes) is the key's over message, under
// the strict rules of stages 3 and 6. It is for transcripts, whose time and
// replay protection are their own: interval and expiry are not looked at.
func (k *Key) Verifies(message, signature []byte) bool {
	return len(signature) == ed25519.SignatureSize && ed25519.Verify(k.public, message, signature)
}

// status is a Validity with its instants read once.
type status struct {
	recordedAt lexical.Instant
	validUntil *lexical.Instant
	revokedAt  *lexical.Instant
}

func (s status) equal(o status) bool {
	return s.recordedAt.Compare(o.recordedAt) == 0 &&
		sameInstant(s.validUntil, o.validUntil) && sameInstant(s.revokedAt, o.revokedAt)
}

func sameInstant(a, b *lexical.Instant) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Compare(*b) == 0
}

// newKey reads one binding without its history. proven tells that the point of these 32
// bytes was checked before.
func newKey(b Binding, proven func([32]byte) bool) (*Key, *BindingFault) {
	fault := func(reason string, err error) (*Key, *BindingFault) {
		return nil, &BindingFault{KeyID: b.KeyID, Reason: reason, Err: err}
	}
	if !lexical.ValidID(b.KeyID) {
		return fault(FaultKeyID, nil)
	}
	if !validActor(b.Principal) {
		return fault(FaultPrincipal, nil)
	}
	if b.Algorithm != Algorithm {
		return fault(FaultAlgorithm, nil)
	}
	public, err := lexical.DecodeBase64URL(b.PublicKey)
	if err != nil {
		return fault(FaultPublicKey, err)
	}
	if len(public) != ed25519.PublicKeySize {
		return fault(FaultPublicKey, FaultLength)
	}
	if !proven([32]byte(public)) {
		if err := CheckPublicKey(public); err != nil {
			return fault(FaultPublicKey, err)
		}
	}
	from, err := lexical.ParseTimestamp(b.ValidFrom)
	if err != nil {
		return fault(FaultValidityTime, err)
	}
	k := &Key{binding: b, public: public, interval: Interval{ValidFrom: from}}
	k.binding.History = nil
	return k, nil
}

// grow returns the key with the statuses of declared added. declared may repeat
// retained statuses, but must not contradict them, and must not leave a gap.
func (k *Key) grow(declared []Validity) (*Key, *BindingFault) {
	fault := func(reason string, err error) (*Key, *BindingFault) {
		return nil, &BindingFault{KeyID: k.binding.KeyID, Reason: reason, Err: err}
	}
	grown := *k
	grown.history = k.history[:len(k.history):len(k.history)]
	grown.binding.History = k.binding.History[:len(k.binding.History):len(k.binding.History)]
	bySequence := func(a, b Validity) int { return cmp.Compare(a.Sequence, b.Sequence) }
	if !slices.IsSortedFunc(declared, bySequence) {
		declared = slices.Clone(declared)
		slices.SortStableFunc(declared, bySequence)
	}
	for _, v := range declared {
		s, err := readStatus(v)
		if err != nil {
			return fault(FaultValidityTime, err)
		}
		next := int64(len(grown.history)) + 1
		switch {
		case v.Sequence < 1 || v.Sequence > next:
			return fault(FaultHistoryGap, nil)
		case v.Sequence < next:
			if !grown.history[v.Sequence-1].equal(s) {
				return fault(FaultHistoryRewrite, nil)
			}
			continue
		}
		if n := len(grown.history); n > 0 && s.recordedAt.Compare(grown.history[n-1].recordedAt) < 0 {
			return fault(FaultHistoryOrder, nil)
		}
		if !narrow(&grown.interval.ValidUntil, s.validUntil) || !narrow(&grown.interval.RevokedAt, s.revokedAt) {
			return fault(FaultBoundaryLater, nil)
		}
		grown.history = append(grown.history, s)
		grown.binding.History = append(grown.binding.History, v)
	}
	return &grown, nil
}

// narrow sets boundary to at unless that would move it later.
func narrow(boundary **lexical.Instant, at *lexical.Instant) bool {
	if at == nil {
		return true
	}
	if *boundary != nil && at.Compare(**boundary) > 0 {
		return false
	}
	*boundary = at
	return true
}

func readStatus(v Validity) (status, error) {
	recorded, err := lexical.ParseTimestamp(v.RecordedAt)
	if err != nil {
		return status{}, err
	}
	s := status{recordedAt: recorded}
	for _, bound := range []struct {
		text string
		at   **lexical.Instant
	}{{v.ValidUntil, &s.validUntil}, {v.RevokedAt, &s.revokedAt}} {
		if bound.text == "" {
			continue
		}
		at, err := lexical.ParseTimestamp(bound.text)
		if err != nil {
			return status{}, err
		}
		*bound.at = &at
	}
	return s, nil
}

// merge joins another declaration of the same key id, with the statuses it
// brings, into k. Anything but the identical immutable binding is reuse of the
// id.
func (k *Key) merge(other *Key, history []Validity) (*Key, *BindingFault) {
	same := k.binding.Principal == other.binding.Principal &&
		k.binding.Algorithm == other.binding.Algorithm &&
		k.public.Equal(other.public) &&
		k.interval.ValidFrom.Compare(other.interval.ValidFrom) == 0
	if !same {
		return nil, &BindingFault{KeyID: k.binding.KeyID, Reason: FaultKeyIDReused}
	}
	return k.grow(history)
}

func validActor(a protocol.Actor) bool {
	switch a.Type {
	case protocol.ActorAgent, protocol.ActorHuman, protocol.ActorService:
		return lexical.ValidID(a.ID)
	}
	return false
}
