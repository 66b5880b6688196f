package toolauth_test

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/missionweave/server/client/toolauth"
	"github.com/missionweave/server/internal/authz/tokens"
)

const (
	org    = "urn:test:org"
	issuer = "urn:test:authz"
)

func key(name string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(name))
	return ed25519.NewKeyFromSeed(seed[:])
}

func public(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

// service is what a tool sees of the Authorization Service.
type service struct {
	*httptest.Server
	mu      sync.Mutex
	keys    []map[string]string
	revoked []string
	down    bool
	asked   atomic.Int64
	now     time.Time
}

func newService(t *testing.T) *service {
	t.Helper()
	s := &service{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	s.publish("key:1", issuer, "authorization", key("one"))
	s.publish("key:identity", "urn:test:identity", "identity", key("identity"))
	s.publish("key:other", "urn:test:other", "authorization", key("other"))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked.Add(1)
		switch {
		case s.down:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/.well-known/jwks.json":
			_ = json.NewEncoder(w).Encode(map[string]any{"keys": s.keys})
		case r.URL.Path == "/v1/revocations":
			// One item a page, so that pages are followed.
			items, next := []map[string]string{}, ""
			for i, id := range s.revoked {
				if r.URL.Query().Get("after") == fmt.Sprint(i) || i == 0 && r.URL.Query().Get("after") == "" {
					items = append(items, map[string]string{"tokenId": id, "expiresAt": "2026-01-02T04:00:00Z"})
					if i+1 < len(s.revoked) {
						next = fmt.Sprint(i + 1)
					}
				}
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"items": items, "next": next})
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *service) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *service) publish(kid, iss, role string, k ed25519.PrivateKey) {
	s.keys = append(s.keys, map[string]string{
		"kty": "OKP", "crv": "Ed25519", "x": base64.RawURLEncoding.EncodeToString(public(k)), "kid": kid, "use": "sig", "alg": "EdDSA",
		"iss": iss, "role": role, "state": "active",
	})
}

func (s *service) verifier(t *testing.T) *toolauth.Verifier {
	t.Helper()
	v, err := toolauth.New(toolauth.Options{URL: s.URL, Audience: org, Client: s.Client(), Now: func() time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.now
	}})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// claims are those of a good token.
func (s *service) claims(change func(*toolauth.Claims)) *toolauth.Claims {
	c := &toolauth.Claims{
		Issuer: issuer, Audience: org, Subject: "urn:test:agent", ID: "urn:test:jti",
		IssuedAt: tokens.NumericDate(s.now), ExpiresAt: tokens.NumericDate(s.now.Add(5 * time.Minute)),
		Confirmation: tokens.Confirmation{JKT: tokens.Thumbprint(public(key("agent")))},
		MissionID:    "urn:test:m", GroupID: "urn:test:g", SessionEpoch: 1, MembershipEpoch: 1, WorkItemID: "urn:test:w",
		OwnershipEpoch: 1, ExecutionLeaseID: "urn:test:l", Operations: []string{"read", "write"},
		Access: []toolauth.Access{
			{Resource: "urn:site:shop", Operations: []string{"write"}}, {Resource: "urn:docs:*", Operations: []string{"read"}},
		},
		Budget: &tokens.Limits{FinancialLimit: "0"}, Typ: tokens.TypCapability, KeyID: "key:1",
	}
	if change != nil {
		change(c)
	}
	return c
}

func (s *service) token(t *testing.T, signer string, change func(*toolauth.Claims)) string {
	t.Helper()
	token, err := tokens.Sign(s.claims(change), key(signer))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

var write = toolauth.Need{Operation: "write", Resource: "urn:site:shop"}

func TestEveryMismatchIsRefused(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.revoked = []string{"urn:test:gone:0", "urn:test:gone:1", "urn:test:gone:2"}
	signed := func(change func(*toolauth.Claims)) string { return s.token(t, "one", change) }
	good := signed(nil)
	part := strings.Split(good, ".")
	forged := func(header map[string]any, signature func(string) []byte) string {
		h, _ := json.Marshal(header)
		unsigned := base64.RawURLEncoding.EncodeToString(h) + "." + part[1]
		return unsigned + "." + base64.RawURLEncoding.EncodeToString(signature(unsigned))
	}
	header := func(change func(map[string]any)) map[string]any {
		h := map[string]any{"alg": "EdDSA", "typ": tokens.TypCapability, "kid": "key:1"}
		change(h)
		return h
	}
	ed := func(unsigned string) []byte { return ed25519.Sign(key("one"), []byte(unsigned)) }
	digest := "sha256:" + strings.Repeat("a", 64)
	for _, c := range []struct {
		rule, token string
		need        toolauth.Need
		want        error
	}{
		{"a good token", good, write, nil},
		{"a pattern covers", good, toolauth.Need{Operation: "read", Resource: "urn:docs:a"}, nil},
		{"another operation", good, toolauth.Need{Operation: "delete", Resource: "urn:site:shop"}, toolauth.ErrOperation},
		{"another resource", good, toolauth.Need{Operation: "write", Resource: "urn:site:other"}, toolauth.ErrOperation},
		{"an operation of another resource", good, toolauth.Need{Operation: "read", Resource: "urn:site:shop"}, toolauth.ErrOperation},
		{"no resource where there are some", good, toolauth.Need{Operation: "write"}, toolauth.ErrOperation},
		{"no operation", good, toolauth.Need{Resource: "urn:site:shop"}, toolauth.ErrOperation},
		{"the instant of expiry", signed(func(c *toolauth.Claims) { c.ExpiresAt = tokens.NumericDate(s.now) }), write, toolauth.ErrExpired},
		{"a microsecond before it", signed(func(c *toolauth.Claims) { c.ExpiresAt = tokens.NumericDate(s.now.Add(time.Microsecond)) }), write, nil},
		{"another audience", signed(func(c *toolauth.Claims) { c.Audience = "urn:test:elsewhere" }), write, toolauth.ErrAudience},
		{"no audience", signed(func(c *toolauth.Claims) { c.Audience = "" }), write, toolauth.ErrAudience},
		{"another issuer than the key's", signed(func(c *toolauth.Claims) { c.Issuer = "urn:test:other" }), write, toolauth.ErrKey},
		{"another service's key", s.token(t, "other", func(c *toolauth.Claims) { c.KeyID = "key:other" }), write, toolauth.ErrKey},
		{"the identity service's key", s.token(t, "identity", func(c *toolauth.Claims) { c.KeyID, c.Issuer = "key:identity", "urn:test:identity" }), write, toolauth.ErrKey},
		{"an unknown key", signed(func(c *toolauth.Claims) { c.KeyID = "key:2" }), write, toolauth.ErrKey},
		{"a key under another's id", s.token(t, "other", nil), write, toolauth.ErrSignature},
		{"a Membership Token", signed(func(c *toolauth.Claims) { c.Typ = tokens.TypMembership }), write, toolauth.ErrTyp},
		{"a session token's typ", signed(func(c *toolauth.Claims) { c.Typ = "mw-session+jwt" }), write, toolauth.ErrTyp},
		{"no jti", signed(func(c *toolauth.Claims) { c.ID = "" }), write, toolauth.ErrClaims},
		{"no subject", signed(func(c *toolauth.Claims) { c.Subject = "" }), write, toolauth.ErrClaims},
		{"no key thumbprint", signed(func(c *toolauth.Claims) { c.Confirmation.JKT = "" }), write, toolauth.ErrClaims},
		{"no lease", signed(func(c *toolauth.Claims) { c.ExecutionLeaseID = "" }), write, toolauth.ErrClaims},
		{"no session", signed(func(c *toolauth.Claims) { c.SessionEpoch = 0 }), write, toolauth.ErrClaims},
		{"no budget", signed(func(c *toolauth.Claims) { c.Budget = nil }), write, toolauth.ErrClaims},
		{"no expiry", signed(func(c *toolauth.Claims) { c.ExpiresAt = tokens.NumericDate(time.Time{}) }), write, toolauth.ErrClaims},
		{"revoked, on the last page", signed(func(c *toolauth.Claims) { c.ID = "urn:test:gone:2" }), write, toolauth.ErrRevoked},
		{"other arguments", signed(func(c *toolauth.Claims) { c.ArgumentsDigest = digest }), write, toolauth.ErrArguments},
		{"its arguments", signed(func(c *toolauth.Claims) { c.ArgumentsDigest = digest }), toolauth.Need{Operation: "write", Resource: "urn:site:shop", ArgumentsDigest: digest}, nil},
		{"alg none", forged(header(func(h map[string]any) { h["alg"] = "none" }), func(string) []byte { return nil }), write, toolauth.ErrSignature},
		{"alg HS256 keyed with the public key", forged(header(func(h map[string]any) { h["alg"] = "HS256" }), func(u string) []byte {
			m := hmac.New(sha256.New, public(key("one")))
			m.Write([]byte(u))
			return m.Sum(nil)
		}), write, toolauth.ErrSignature},
		{"a critical header", forged(header(func(h map[string]any) { h["crit"] = []string{"x"} }), ed), write, toolauth.ErrMalformed},
		{"a changed claim", part[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"`+issuer+`"}`)) + "." + part[2], write, toolauth.ErrSignature},
		{"a signature cut off", part[0] + "." + part[1] + ".", write, toolauth.ErrSignature},
		{"two parts", part[0] + "." + part[1], write, toolauth.ErrMalformed},
		{"nothing", "", write, toolauth.ErrMalformed},
		{"very long", strings.Repeat("a", 1<<20), write, toolauth.ErrMalformed},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			claims, err := s.verifier(t).Verify(t.Context(), c.token, c.need)
			if !errors.Is(err, c.want) || c.want == nil && err != nil || (err == nil) != (claims != nil) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestProofOfTheKey(t *testing.T) {
	t.Parallel()
	s := newService(t)
	v := s.verifier(t)
	token := s.token(t, "one", nil)
	const method, uri = "POST", "https://tool.test/publish"
	prove := func(k ed25519.PrivateKey, token, method, uri, id string, at time.Time) string {
		t.Helper()
		p, err := toolauth.Prove(k, token, method, uri, id, at)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	check := func(rule, proof string, want error) {
		t.Helper()
		need := write
		need.Proof = &toolauth.Request{Proof: proof, Method: method, URI: uri}
		if _, err := v.Verify(t.Context(), token, need); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%s: got %v, want %v", rule, err, want)
		}
	}
	agent := key("agent")
	first := prove(agent, token, method, uri, "1", s.now)
	check("a good one", first, nil)
	check("the same again", first, toolauth.ErrReplayed)
	check("a fresh one", prove(agent, token, method, uri, "2", s.now), nil)
	check("of another key", prove(key("thief"), token, method, uri, "3", s.now), toolauth.ErrProof)
	check("for another token", prove(agent, token+"x", method, uri, "4", s.now), toolauth.ErrProof)
	check("for another method", prove(agent, token, "GET", uri, "5", s.now), toolauth.ErrProof)
	check("for another address", prove(agent, token, method, uri+"/x", "6", s.now), toolauth.ErrProof)
	check("too old", prove(agent, token, method, uri, "7", s.now.Add(-61*time.Second)), toolauth.ErrProof)
	check("from the future", prove(agent, token, method, uri, "8", s.now.Add(61*time.Second)), toolauth.ErrProof)
	check("without id", prove(agent, token, method, uri, "", s.now), toolauth.ErrProof)
	check("the token itself", token, toolauth.ErrProof)
	check("nothing", "", toolauth.ErrProof)
}

func TestATokenForOneUse(t *testing.T) {
	t.Parallel()
	s := newService(t)
	v := s.verifier(t)
	token := s.token(t, "one", func(c *toolauth.Claims) { c.OneShot, c.ApprovalID = true, "urn:test:a" })
	var won atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			_, err := v.Verify(context.Background(), token, write)
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, toolauth.ErrUsed):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("used %d times", won.Load())
	}
}

func TestWhatIsOutOfDateIsRefused(t *testing.T) {
	t.Parallel()
	s := newService(t)
	v := s.verifier(t)
	token := s.token(t, "one", nil)
	ctx := t.Context()
	s.set(func() { s.down = true })
	if _, err := v.Verify(ctx, token, write); !errors.Is(err, toolauth.ErrOutOfDate) {
		t.Errorf("before the first fetch: %v", err)
	}
	s.set(func() { s.down = false; s.now = s.now.Add(2 * time.Second) })
	if _, err := v.Verify(ctx, token, write); err != nil {
		t.Errorf("after it came up: %v", err)
	}
	asked := s.asked.Load()
	for range 10 {
		if _, err := v.Verify(ctx, token, write); err != nil {
			t.Fatal(err)
		}
	}
	if s.asked.Load() != asked {
		t.Error("asked for every token")
	}
	// Away for less than MaxAge: what is known still serves. For longer: nothing does.
	s.set(func() { s.down = true; s.now = s.now.Add(59 * time.Second) })
	if _, err := v.Verify(ctx, token, write); err != nil {
		t.Errorf("59 s: %v", err)
	}
	s.set(func() { s.now = s.now.Add(time.Second) })
	if _, err := v.Verify(ctx, token, write); !errors.Is(err, toolauth.ErrOutOfDate) {
		t.Errorf("60 s: %v", err)
	}
	// A clock that goes back makes nothing young.
	s.set(func() { s.now = s.now.Add(-time.Hour) })
	if _, err := v.Verify(ctx, token, write); !errors.Is(err, toolauth.ErrOutOfDate) {
		t.Errorf("clock back: %v", err)
	}
}

func TestRevocationsAndKeysArriveWhileItRuns(t *testing.T) {
	t.Parallel()
	s := newService(t)
	v := s.verifier(t)
	ctx := t.Context()
	one, two := s.token(t, "one", nil), s.token(t, "one", func(c *toolauth.Claims) { c.ID = "urn:test:two" })
	for _, token := range []string{one, two} {
		if _, err := v.Verify(ctx, token, write); err != nil {
			t.Fatal(err)
		}
	}
	v.Heard([]byte(`{"tokenId":"urn:test:two","expiresAt":"2026-01-02T04:00:00Z"}`))
	v.Heard([]byte(`nonsense`))
	if _, err := v.Verify(ctx, two, write); !errors.Is(err, toolauth.ErrRevoked) {
		t.Errorf("heard over NATS: %v", err)
	}
	s.set(func() { s.revoked = []string{"urn:test:jti"}; s.now = s.now.Add(10 * time.Second) })
	if _, err := v.Verify(ctx, one, write); !errors.Is(err, toolauth.ErrRevoked) {
		t.Errorf("on the list: %v", err)
	}
	if _, err := v.Verify(ctx, two, write); !errors.Is(err, toolauth.ErrRevoked) {
		t.Errorf("what was heard is not forgotten by a fetch: %v", err)
	}
	// A rotation: the new key is fetched when its first token comes, the old one goes
	// on until it is no longer published.
	rotated := func() string {
		return s.token(t, "next", func(c *toolauth.Claims) { c.KeyID, c.ID = "key:next", "urn:test:three" })
	}
	if _, err := v.Verify(ctx, rotated(), write); !errors.Is(err, toolauth.ErrKey) {
		t.Errorf("before it is published: %v", err)
	}
	s.set(func() { s.publish("key:next", issuer, "authorization", key("next")); s.now = s.now.Add(time.Second) })
	if _, err := v.Verify(ctx, rotated(), write); err != nil {
		t.Errorf("after: %v", err)
	}
	s.set(func() { s.keys = s.keys[len(s.keys)-1:]; s.now = s.now.Add(10 * time.Second) })
	if _, err := v.Verify(ctx, s.token(t, "one", func(c *toolauth.Claims) { c.ID = "urn:test:four" }), write); !errors.Is(err, toolauth.ErrKey) {
		t.Errorf("a key that has ended: %v", err)
	}
}

func TestAVerifierNeedsItsOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []toolauth.Options{{}, {URL: "http://x"}, {Audience: org}} {
		if _, err := toolauth.New(o); err == nil {
			t.Errorf("%+v: made", o)
		}
	}
}
