// Package authz is the Authorization Service. It publishes the public keys with
// which tools check tokens offline; access tokens come from sessionshttp.
//
// The hazard it guards against is a key set that says more or less than the
// Registry: a key that has ended and is still offered, or one of another duty. So
// the set is made from a current view of the Registry for every request, and is
// refused when there is none.
package authz

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// keySetMaxAge is how long a client may keep the key set: a revoked key is
// trusted offline for at most this long.
const keySetMaxAge = time.Minute

// JWK is a public key of RFC 8037 (OKP, Ed25519).
type JWK struct {
	KeyType   string `json:"kty"`
	Curve     string `json:"crv"`
	X         string `json:"x"`
	KeyID     string `json:"kid"`
	Use       string `json:"use"`
	Algorithm string `json:"alg"`
}

// KeySet is a JWK Set of RFC 7517.
type KeySet struct {
	Keys []JWK `json:"keys"`
}

// Keys are the signing keys of the identity and the authorization services that
// have not ended: those valid now and those valid later, ordered by key id.
func Keys(view *registry.View, now time.Time) KeySet {
	set := KeySet{Keys: []JWK{}}
	for key := range view.Evidence.All() {
		if !view.HasRole(key.Principal(), registry.RoleIdentity) && !view.HasRole(key.Principal(), registry.RoleAuthorization) {
			continue
		}
		if end, ok := registry.KeyEnd(key); ok && !now.Before(end) {
			continue
		}
		set.Keys = append(set.Keys, jwk(key))
	}
	slices.SortFunc(set.Keys, func(a, b JWK) int { return strings.Compare(a.KeyID, b.KeyID) })
	return set
}

func jwk(key *trust.Key) JWK {
	return JWK{
		KeyType: "OKP", Curve: trust.Algorithm, X: lexical.EncodeBase64URL(key.PublicKey()),
		KeyID: key.ID(), Use: "sig", Algorithm: "EdDSA",
	}
}

// Routes are the service's own routes; the caller adds those of sessionshttp.
func Routes(d *registry.Directory, now func() time.Time) []httpkit.Route {
	return []httpkit.Route{{
		Method: http.MethodGet, Pattern: "/.well-known/jwks.json", Auth: httpkit.Public,
		Handler: func(c *httpkit.Call) error {
			view, err := d.View(c.R.Context())
			if err != nil {
				return err
			}
			c.W.Header().Set("Cache-Control", "public, max-age="+seconds(keySetMaxAge))
			return c.SendValue(http.StatusOK, Keys(view, now()))
		},
	}}
}

func seconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }
