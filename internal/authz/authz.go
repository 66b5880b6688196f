// Package authz is the Authorization Service (PROTOCOL.md 12). It decides whether
// an Agent gets a token for work that it does, says whether a token is still good,
// ends tokens, and publishes the keys with which tools check them offline.
//
// The hazards it guards against:
//
//   - A token for what nobody allowed. Lease, budget and approval are checked by
//     the rules of package groups on the state that the Group's log makes, in a
//     transaction that keeps Authority and session openings out until the token
//     is stored; a request narrows and never widens.
//   - Two tokens from an approval of one action: a unique index, not a check, is
//     what prevents it, so it holds over replicas and restarts.
//   - A token that outlives its ground. Online checks ask the state itself; for
//     everybody else the sweeper writes what ended on the revocation list, and
//     lives are short.
//   - A key set that says more or less than the Registry: it is made from a current
//     view for every request, and refused when there is none.
//
// Whatever cannot be asked is refused. Every decision is in the Policy Log.
package authz

import (
	"slices"
	"strings"
	"time"

	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// KeySetMaxAge is how long a client may keep the key set: a revoked key is
// trusted offline for at most this long, and a new one signs no earlier than this
// after it was published.
const KeySetMaxAge = time.Minute

// JWK is a public key of RFC 8037 (OKP, Ed25519).
type JWK struct {
	KeyType   string `json:"kty"`
	Curve     string `json:"crv"`
	X         string `json:"x"`
	KeyID     string `json:"kid"`
	Use       string `json:"use"`
	Algorithm string `json:"alg"`
	// Issuer is the iss of the tokens that the key signs, Role the duty that decides
	// which kinds of tokens those are, State its place in the rotation. They are
	// members of our own (RFC 7517 section 4).
	Issuer string `json:"iss"`
	Role   string `json:"role"`
	State  string `json:"state"`
}

// KeySet is a JWK Set of RFC 7517.
type KeySet struct {
	Keys []JWK `json:"keys"`
}

// Keys are the signing keys of the identity and the authorization services that
// have not ended: the active ones, those that will sign later, and those that
// signed what is still good, ordered by key id.
func Keys(view *registry.View, rotations []Rotation, now time.Time) KeySet {
	set := KeySet{Keys: []JWK{}}
	for key := range view.Evidence.All() {
		var role registry.Role
		switch {
		case view.HasRole(key.Principal(), registry.RoleAuthorization):
			role = registry.RoleAuthorization
		case view.HasRole(key.Principal(), registry.RoleIdentity):
			role = registry.RoleIdentity
		default:
			continue
		}
		if end, ok := registry.KeyEnd(key); ok && !now.Before(end) {
			continue
		}
		state := StateOf(rotations, role, key.ID(), now)
		if !key.Interval().Contains(lexical.InstantOf(now)) {
			state = KeyPassive
		}
		set.Keys = append(set.Keys, jwk(key, role, state))
	}
	slices.SortFunc(set.Keys, func(a, b JWK) int { return strings.Compare(a.KeyID, b.KeyID) })
	return set
}

func jwk(key *trust.Key, role registry.Role, state string) JWK {
	return JWK{
		KeyType: "OKP", Curve: trust.Algorithm, X: lexical.EncodeBase64URL(key.PublicKey()),
		KeyID: key.ID(), Use: "sig", Algorithm: "EdDSA", Issuer: key.Principal().ID, Role: string(role), State: state,
	}
}
