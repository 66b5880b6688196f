package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// RotatedRoles are the roles whose keys can be rotated while everything runs:
// those that sign tokens.
var RotatedRoles = []registry.Role{registry.RoleAuthorization, registry.RoleIdentity}

// maxTokenLife is the longest life of any token that such a key signs.
const maxTokenLife = time.Hour

// KeyRotation says how a key is followed by the next.
type KeyRotation struct {
	Role registry.Role
	// After is how long the new key is published before it signs. Whoever keeps the
	// key set for its whole life knows it by then.
	After time.Duration
	// Grace is how long the old key stays valid after that: no shorter than the
	// tokens it signed.
	Grace time.Duration
}

// DefaultRotation waits as long as a key set may be kept and the longest token may
// live.
func DefaultRotation(role registry.Role) KeyRotation {
	return KeyRotation{Role: role, After: authz.KeySetMaxAge, Grace: maxTokenLife}
}

// RotatedKey is what RotateKey did.
type RotatedKey struct {
	Role       registry.Role `json:"role"`
	KeyID      string        `json:"keyId"`
	SignsFrom  string        `json:"signsFrom"`
	Replaces   string        `json:"replaces"`
	ValidUntil string        `json:"replacedValidUntil"`
}

// RotateKey makes the next key of a role, registers it, schedules it, and ends the
// one before it. Services that have the same key folder take it over when its time
// comes, without a restart. A rotation that is already on its way is refused.
//
// The steps are in an order in which a crash between two of them leaves no key
// signing that cannot be verified: seed, Registry, schedule, end of the old one.
func RotateKey(ctx context.Context, o Options, r KeyRotation) (*RotatedKey, error) {
	if !slices.Contains(RotatedRoles, r.Role) {
		return nil, fmt.Errorf("server: keys of the role %q are not rotated this way", r.Role)
	}
	if r.After < 0 || r.Grace < 0 {
		return nil, errors.New("server: a rotation cannot lie in the past")
	}
	b, err := open(ctx, "keys", o)
	if err != nil {
		return nil, err
	}
	defer b.pool.Close()
	service, err := b.registryService(nil)
	if err != nil {
		return nil, err
	}
	view, err := b.directory.Current(ctx)
	if err != nil {
		return nil, fmt.Errorf("server: registry: %w", err)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	rotations, err := authz.ReadRotations(ctx, b.pool, r.Role)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	first, err := b.signer(r.Role)
	if err != nil {
		return nil, err
	}
	old := first.KeyID
	if n := len(rotations); n > 0 {
		if old = rotations[n-1].KeyID; rotations[n-1].SignsFrom.After(now) {
			return nil, fmt.Errorf("server: key %s follows at %s already", old, lexical.FormatMicros(rotations[n-1].SignsFrom))
		}
	}
	from := now.Add(r.After)
	keyID := mint()
	signer, err := b.Keys.NewKey(string(r.Role), keyID)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	registrar, err := b.signer(registry.RoleRegistry)
	if err != nil {
		return nil, err
	}
	by := registry.Author{Principal: registrar.Principal}
	binding := trust.Binding{
		KeyID: keyID, Principal: signer.Principal, Algorithm: trust.Algorithm, PublicKey: signer.PublicKey(), ValidFrom: lexical.FormatMicros(from),
	}
	if _, _, err := service.RegisterKey(ctx, by, binding); err != nil {
		return nil, fmt.Errorf("server: register the key: %w", err)
	}
	if _, err := b.pool.Exec(ctx, `INSERT INTO signing_keys (key_id, role, signs_from) VALUES ($1, $2, $3)`, keyID, string(r.Role), from); err != nil {
		return nil, fmt.Errorf("server: schedule the key: %w", err)
	}
	until := lexical.FormatMicros(from.Add(r.Grace))
	if key, ok := view.Evidence.Key(old); ok {
		if end, ok := registry.KeyEnd(key); ok && !end.After(from.Add(r.Grace)) {
			until = lexical.FormatMicros(end) // it ends earlier anyway
		} else if _, _, err := service.AppendValidity(ctx, by, old, until, ""); err != nil {
			return nil, fmt.Errorf("server: end the key before it: %w", err)
		}
	}
	return &RotatedKey{Role: r.Role, KeyID: keyID, SignsFrom: lexical.FormatMicros(from), Replaces: old, ValidUntil: until}, nil
}

// SigningKeys lists the keys that sign tokens and have not ended, with their state.
func SigningKeys(ctx context.Context, o Options) (authz.KeySet, error) {
	b, err := open(ctx, "keys", o)
	if err != nil {
		return authz.KeySet{}, err
	}
	defer b.pool.Close()
	view, err := b.directory.Current(ctx)
	if err != nil {
		return authz.KeySet{}, fmt.Errorf("server: registry: %w", err)
	}
	rotations, err := authz.ReadRotations(ctx, b.pool, "")
	if err != nil {
		return authz.KeySet{}, fmt.Errorf("server: %w", err)
	}
	return authz.Keys(view, rotations, time.Now()), nil
}
