package trust

import (
	"errors"
	"iter"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// ErrEvidenceUnavailable is why the zero or nil Evidence resolves no key.
var ErrEvidenceUnavailable = errors.New("registry evidence is unavailable")

// Evidence is the complete set of signing-key bindings of one Organization at
// one Registry revision, with every Organization-wide rule of PROTOCOL.md 6.4
// proven when it was built. It is immutable and safe for concurrent use; the
// cost of resolving a key does not depend on how many there are.
//
// Completeness and currency are the caller's assertion: pass every binding of
// the Organization, read in one snapshot, or an UnavailableEvidence.
type Evidence struct {
	organizationID string
	revision       int64
	fault          error
	keys           index[string]
	owners         index[[32]byte]
}

// NewEvidence validates the bindings of an Organization at a revision. An equal
// binding may be declared more than once; its histories are joined. The error is
// a *BindingFault for the first broken rule.
func NewEvidence(organizationID string, revision int64, bindings []Binding) (*Evidence, error) {
	return build(&Evidence{organizationID: organizationID}, revision, bindings, func([32]byte) bool { return false })
}

// UnavailableEvidence stands for evidence whose completeness or validity could
// not be established: every document verified against it fails stage 4, and why
// stays in the protected diagnostic.
func UnavailableEvidence(organizationID string, why error) *Evidence {
	if why == nil {
		why = ErrEvidenceUnavailable
	}
	return &Evidence{organizationID: organizationID, fault: why}
}

// Extend returns the evidence of a later revision in which the declared bindings
// were added, or had their history continued; a declaration of a known binding
// may leave out the statuses that are retained already. It checks what NewEvidence checks,
// at the cost of the declared bindings only, and is therefore also the test that
// the Registry applies before it accepts a binding or a status record. The error
// is a *BindingFault, or the fault of an unavailable evidence.
func (ev *Evidence) Extend(revision int64, declared []Binding) (*Evidence, error) {
	if err := ev.usable(); err != nil {
		return nil, err
	}
	if revision <= ev.revision {
		return nil, &BindingFault{Reason: FaultRevision}
	}
	return build(ev, revision, declared, ev.proven)
}

// Reload returns the evidence of a later complete read of the Registry. Beyond
// NewEvidence it refuses a read in which a known binding is missing, changed or
// has lost a status record, and it does not prove known points again.
func (ev *Evidence) Reload(revision int64, bindings []Binding) (*Evidence, error) {
	if err := ev.usable(); err != nil {
		return nil, err
	}
	if revision < ev.revision {
		return nil, &BindingFault{Reason: FaultRevision}
	}
	next, err := build(&Evidence{organizationID: ev.organizationID}, revision, bindings, ev.proven)
	if err != nil {
		return nil, err
	}
	for k := range ev.All() {
		now, ok := next.keys.get(k.ID())
		if !ok {
			return nil, &BindingFault{KeyID: k.ID(), Reason: FaultBindingMissing}
		}
		if len(now.history) < len(k.history) {
			return nil, &BindingFault{KeyID: k.ID(), Reason: FaultHistoryRewrite}
		}
		if _, fault := now.merge(k, k.binding.History); fault != nil {
			return nil, fault
		}
	}
	return next, nil
}

// build adds declared bindings to from. An existing key id may only be repeated
// or have its history continued.
func build(from *Evidence, revision int64, declared []Binding, proven func([32]byte) bool) (*Evidence, error) {
	if !lexical.ValidID(from.organizationID) {
		return nil, &BindingFault{Reason: FaultOrganizationID}
	}
	keys := make(map[string]*Key, len(declared))
	owners := make(map[[32]byte]*Key, len(declared))
	for _, b := range declared {
		k, fault := newKey(b, proven)
		if fault != nil {
			return nil, fault
		}
		known, ok := keys[k.ID()]
		if !ok {
			known, ok = from.keys.get(k.ID())
		}
		if ok {
			k, fault = known.merge(k, b.History)
		} else {
			k, fault = k.grow(b.History)
		}
		if fault != nil {
			return nil, fault
		}
		point := [32]byte(k.public)
		owner, ok := owners[point]
		if !ok {
			owner, ok = from.owners.get(point)
		}
		if ok && owner.ID() != k.ID() {
			if owner.Principal() == k.Principal() {
				return nil, &BindingFault{KeyID: k.ID(), Reason: FaultKeyIDAlias}
			}
			return nil, &BindingFault{KeyID: k.ID(), Reason: FaultPublicKeyReused}
		}
		keys[k.ID()], owners[point] = k, k
	}
	return &Evidence{
		organizationID: from.organizationID,
		revision:       revision,
		keys:           from.keys.with(keys),
		owners:         from.owners.with(owners),
	}, nil
}

func (ev *Evidence) usable() error {
	if ev == nil {
		return ErrEvidenceUnavailable
	}
	if ev.fault != nil {
		return ev.fault
	}
	if ev.organizationID == "" {
		return ErrEvidenceUnavailable
	}
	return nil
}

func (ev *Evidence) proven(point [32]byte) bool {
	_, ok := ev.owners.get(point)
	return ok
}

// OrganizationID is the scope of the evidence.
func (ev *Evidence) OrganizationID() string {
	if ev == nil {
		return ""
	}
	return ev.organizationID
}

// Revision is the Registry revision the evidence describes.
func (ev *Evidence) Revision() int64 {
	if ev == nil {
		return 0
	}
	return ev.revision
}

// Len is the number of keys.
func (ev *Evidence) Len() int {
	if ev == nil {
		return 0
	}
	return ev.keys.len()
}

// Key returns the key with this id. It says nothing about whom the key may sign
// for at what time; Verify does.
func (ev *Evidence) Key(keyID string) (*Key, bool) {
	if ev == nil {
		return nil, false
	}
	return ev.keys.get(keyID)
}

// Owner returns the key registered for these 32 bytes.
func (ev *Evidence) Owner(publicKey []byte) (*Key, bool) {
	if ev == nil || len(publicKey) != 32 {
		return nil, false
	}
	return ev.owners.get([32]byte(publicKey))
}

// All yields every key, in no particular order.
func (ev *Evidence) All() iter.Seq[*Key] {
	return func(yield func(*Key) bool) {
		if ev == nil {
			return
		}
		for _, k := range ev.keys.recent {
			if !yield(k) {
				return
			}
		}
		for id, k := range ev.keys.old {
			if _, newer := ev.keys.recent[id]; !newer && !yield(k) {
				return
			}
		}
	}
}

// resolve is stage 4 for one document: the key with this id, if it is bound to
// the expected signer and valid at the protected time. signer of type service
// without an id stands for any Organization service.
func (ev *Evidence) resolve(keyID string, signer protocol.Actor, at lexical.Instant) (*Key, string) {
	if err := ev.usable(); err != nil {
		var fault *BindingFault
		if errors.As(err, &fault) {
			return nil, ReasonEvidenceInvalid + ":" + fault.Reason
		}
		return nil, ReasonEvidenceUnavailable
	}
	k, ok := ev.keys.get(keyID)
	if !ok {
		return nil, ReasonUnknownKey
	}
	principal := k.Principal()
	if principal.Type != signer.Type || signer.ID != "" && principal.ID != signer.ID {
		return nil, ReasonWrongPrincipal
	}
	if reason := k.interval.fault(at); reason != "" {
		return nil, reason
	}
	return k, ""
}

// index is a persistent map in two layers, so that extending ten thousand keys
// by one copies only the small recent layer.
type index[K comparable] struct {
	old    map[K]*Key
	recent map[K]*Key
	added  int // keys of recent that old does not have
}

// recentLimit bounds the recent layer by the square root of the old one: copying
// recent on every extension and merging it now and then then cost the same.
const recentLimit = 64

func (ix index[K]) get(key K) (*Key, bool) {
	if k, ok := ix.recent[key]; ok {
		return k, true
	}
	k, ok := ix.old[key]
	return k, ok
}

func (ix index[K]) len() int { return len(ix.old) + ix.added }

// with returns the index with the changes laid over it; it may keep changes.
func (ix index[K]) with(changes map[K]*Key) index[K] {
	if len(changes) == 0 {
		return ix
	}
	if ix.len() == 0 {
		return index[K]{old: changes}
	}
	size := len(ix.recent) + len(changes)
	if size > recentLimit && size*size > len(ix.old) {
		merged := make(map[K]*Key, len(ix.old)+size)
		for _, layer := range []map[K]*Key{ix.old, ix.recent, changes} {
			for key, k := range layer {
				merged[key] = k
			}
		}
		return index[K]{old: merged}
	}
	next := index[K]{old: ix.old, recent: make(map[K]*Key, size)}
	for _, layer := range []map[K]*Key{ix.recent, changes} {
		for key, k := range layer {
			next.recent[key] = k
		}
	}
	for key := range next.recent {
		if _, ok := next.old[key]; !ok {
			next.added++
		}
	}
	return next
}
