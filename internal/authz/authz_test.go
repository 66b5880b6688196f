package authz_test

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/authz/authzhttp"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
)

func TestKeySetHasTheKeysOfTokenServicesThatHaveNotEnded(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	identity, authorization := registrytest.Service(registry.RoleIdentity), registrytest.Service(registry.RoleAuthorization)
	next := registrytest.Signer(protocol.ActorService, string(registry.RoleIdentity), 2)
	b := next.Binding(registrytest.At(time.Hour))
	if _, _, err := org.Service.RegisterKey(t.Context(), registry.Author{Principal: registrytest.Service(registry.RoleRegistry).Principal}, b); err != nil {
		t.Fatal(err)
	}
	router := httpkit.NewRouter(httpkit.Options{Service: "authz"})
	router.Add(authzhttp.JWKS(org.Directory, org.Pool, time.Now))
	srv := httptest.NewServer(router)
	defer srv.Close()

	get := func() (keys map[string]authz.JWK) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/.well-known/jwks.json", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Cache-Control") != "public, max-age=60" {
			t.Fatalf("%d %v %s", resp.StatusCode, resp.Header, body)
		}
		var set struct {
			Keys []struct{ Kty, Crv, X, Kid, Use, Alg, Iss, Role, State string }
		}
		if err := json.Unmarshal(body, &set); err != nil {
			t.Fatal(err)
		}
		keys = map[string]authz.JWK{}
		for _, k := range set.Keys {
			keys[k.Kid] = authz.JWK{KeyType: k.Kty, Curve: k.Crv, X: k.X, KeyID: k.Kid, Use: k.Use, Algorithm: k.Alg, Issuer: k.Iss, Role: k.Role, State: k.State}
		}
		return keys
	}
	keys := get()
	if len(keys) != 3 {
		t.Errorf("%d keys: %v", len(keys), keys)
	}
	want := authz.JWK{KeyType: "OKP", Curve: "Ed25519", X: identity.PublicKey(), KeyID: identity.KeyID, Use: "sig", Algorithm: "EdDSA", Issuer: identity.Principal.ID, Role: "identity", State: "active"}
	if keys[identity.KeyID] != want {
		t.Errorf("identity key %+v, want %+v", keys[identity.KeyID], want)
	}
	if x, err := base64.RawURLEncoding.DecodeString(keys[authorization.KeyID].X); err != nil || len(x) != 32 {
		t.Errorf("authorization key: %v", err)
	}
	if keys[next.KeyID].State != authz.KeyPassive {
		t.Error("the key that is valid later is missing: tools could not have it before it signs")
	}
	org.EndKey(t, authorization.KeyID, "", registrytest.Now())
	if _, ok := get()[authorization.KeyID]; ok {
		t.Error("a revoked key is still offered")
	}
}

func TestNoKeySetWithoutARegistry(t *testing.T) {
	t.Parallel()
	org := registrytest.NewEmpty(t)
	router := httpkit.NewRouter(httpkit.Options{Service: "authz"})
	router.Add(authzhttp.JWKS(org.Directory, org.Pool, time.Now))
	w := httptest.NewRecorder()
	router.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/.well-known/jwks.json", nil))
	if w.Code != 500 || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}
