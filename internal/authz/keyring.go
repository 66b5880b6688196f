package authz

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// States of a signing key.
const (
	KeyPassive = "passive" // published, signs later
	KeyActive  = "active"  // signs
	KeyRetired = "retired" // signs no more; what it signed is good until it ends
)

// ringFresh is how old what a process knows of the rotation may be. A new key is
// published for longer than that before it signs.
const ringFresh = 5 * time.Second

// Seeds finds the private half of a key that was rotated in; ok is false where
// this process does not have it.
type Seeds interface {
	SignerOf(role, keyID string) (signer trust.Signer, ok bool, err error)
}

// Rotation is one row of signing_keys: from when on a key signs for its role.
type Rotation struct {
	KeyID     string
	Role      registry.Role
	SignsFrom time.Time
}

// Keyring is the signing keys of one role. Which of them signs is a fact of the
// database and the clock, so that replicas change over together; whether a key is
// valid is a fact of the Registry.
type Keyring struct {
	role  registry.Role
	first trust.Signer
	seeds Seeds

	mu        sync.Mutex
	rotations []Rotation
	readAt    time.Time
	signers   map[string]trust.Signer
}

// NewKeyring makes the ring of a role, whose first key is the one that the
// Organization was founded with. seeds may be nil: then nothing else can sign.
func NewKeyring(role registry.Role, first trust.Signer, seeds Seeds) *Keyring {
	return &Keyring{role: role, first: first, seeds: seeds, signers: map[string]trust.Signer{first.KeyID: first}}
}

// ErrNoSigner says that no key of the role can sign now.
var ErrNoSigner = errors.New("authz: no valid key to sign with")

// Signer is the key that signs at now. A key that has begun and is not at this
// process's disposal is passed over for the one before it, as long as that one is
// valid: a replica that was not given the new key yet goes on. ErrNoSigner when
// none is left. q is the caller's connection: the caller may hold the last one of
// the pool.
func (k *Keyring) Signer(ctx context.Context, q Querier, view *registry.View, now time.Time) (trust.Signer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refresh(ctx, q, now); err != nil {
		return trust.Signer{}, err
	}
	for i := len(k.rotations) - 1; i >= -1; i-- {
		keyID := k.first.KeyID
		if i >= 0 {
			if k.rotations[i].SignsFrom.After(now) {
				continue
			}
			keyID = k.rotations[i].KeyID
		}
		key, ok := view.Evidence.Key(keyID)
		if !ok || !view.HasRole(key.Principal(), k.role) || !key.Interval().Contains(lexical.InstantOf(now)) {
			continue
		}
		signer, err := k.signer(keyID)
		if err != nil {
			return trust.Signer{}, err
		}
		if signer.KeyID != "" {
			return signer, nil
		}
	}
	return trust.Signer{}, ErrNoSigner
}

func (k *Keyring) signer(keyID string) (trust.Signer, error) {
	if s, ok := k.signers[keyID]; ok || k.seeds == nil {
		return s, nil
	}
	s, ok, err := k.seeds.SignerOf(string(k.role), keyID)
	if err != nil {
		return trust.Signer{}, fmt.Errorf("authz: signing key: %w", err)
	}
	if !ok {
		return trust.Signer{}, nil
	}
	k.signers[keyID] = s
	return s, nil
}

// refresh reads the rotations again when what is known is old. With the database
// away a known ring is not used any longer than it is fresh: fail closed.
func (k *Keyring) refresh(ctx context.Context, q Querier, now time.Time) error {
	age := now.Sub(k.readAt)
	if !k.readAt.IsZero() && age >= 0 && age < ringFresh {
		return nil
	}
	rotations, err := ReadRotations(ctx, q, k.role)
	if err != nil {
		return err
	}
	k.rotations, k.readAt = rotations, now
	return nil
}

// ReadRotations lists the rotations of a role in the order in which they begin;
// role "" lists those of every role.
func ReadRotations(ctx context.Context, q Querier, role registry.Role) ([]Rotation, error) {
	rows, err := q.Query(ctx, `SELECT key_id, role, signs_from FROM signing_keys
		WHERE $1 = '' OR role = $1 ORDER BY role, signs_from`, string(role))
	if err != nil {
		return nil, fmt.Errorf("authz: rotations: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Rotation, err error) {
		err = row.Scan(&r.KeyID, &r.Role, &r.SignsFrom)
		r.SignsFrom = r.SignsFrom.UTC()
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("authz: rotations: %w", err)
	}
	return out, nil
}

// StateOf says what a key of a role is at now, given the rotations of that role. A
// key that no rotation names is the one the Organization was founded with.
func StateOf(rotations []Rotation, role registry.Role, keyID string, now time.Time) string {
	active, begins := "", time.Time{}
	for _, r := range rotations {
		if r.Role != role {
			continue
		}
		if r.KeyID == keyID {
			begins = r.SignsFrom
		}
		if !r.SignsFrom.After(now) {
			active = r.KeyID
		}
	}
	switch {
	case begins.After(now):
		return KeyPassive
	case active == keyID || active == "" && begins.IsZero():
		return KeyActive
	}
	return KeyRetired
}
