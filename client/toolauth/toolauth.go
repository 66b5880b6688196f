// Package toolauth checks Capability Tokens for a tool: whoever does something in
// the world for an Agent and must not do it without one.
//
// A Verifier works offline. It keeps the key set and the revocation list of the
// Authorization Service, fetches them again in time, and refuses everything once
// they are older than it was told to bear: a tool that cannot hear of revocations
// does not act. What it cannot know is whether the lease behind a token still
// stands this instant; a tool for which seconds matter asks POST /v1/introspect.
//
//	v, err := toolauth.New(toolauth.Options{URL: authzURL, Audience: organizationID})
//	claims, err := v.Verify(ctx, token, toolauth.Need{Operation: "site.publish", Resource: "urn:site:shop"})
//
// A token is made for one Agent's key. Without a Proof of that key, whoever found
// the token could use it: tools outside of a channel that names its peer ask for
// one (Need.Proof), and Agents make it with Prove.
package toolauth

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/missionweave/server/internal/authz/tokens"
)

// Claims are what a token says.
type Claims = tokens.Claims

// Access is one resource with what may be done to it.
type Access = tokens.Access

// Faults of a token. What is not listed is a failure of fetching.
var (
	ErrMalformed = tokens.ErrMalformed
	ErrKey       = tokens.ErrKey
	ErrSignature = tokens.ErrSignature
	ErrTyp       = tokens.ErrTyp
	ErrIssuer    = tokens.ErrIssuer
	ErrAudience  = tokens.ErrAudience
	ErrExpired   = tokens.ErrExpired
	ErrClaims    = tokens.ErrClaims
	ErrProof     = tokens.ErrProof

	ErrRevoked    = errors.New("toolauth: token was revoked")
	ErrOperation  = errors.New("toolauth: the token does not permit the operation on the resource")
	ErrArguments  = errors.New("toolauth: the token is for other arguments")
	ErrReplayed   = errors.New("toolauth: the proof was used before")
	ErrUsed       = errors.New("toolauth: the token was for one use")
	ErrOutOfDate  = errors.New("toolauth: keys or revocations are out of date")
	errTooMany    = errors.New("toolauth: the answer is too long")
	errIncomplete = errors.New("toolauth: URL and Audience are required")
)

// Options configure a Verifier. URL and Audience are required.
type Options struct {
	// URL is the Authorization Service's, without a path.
	URL string
	// Audience is the Organization's id.
	Audience string
	// Issuer, when set, is the only issuer whose tokens are taken.
	Issuer string
	// Client fetches; its timeouts bound the first Verify.
	Client *http.Client
	// RefreshAfter is the age at which keys and revocations are fetched again,
	// default 10 s; MaxAge is the age at which they are no longer good enough,
	// default 60 s.
	RefreshAfter, MaxAge time.Duration
	Now                  func() time.Time
}

// Need is what a tool is about to do.
type Need struct {
	Operation string
	// Resource is what it is done to, "" for an operation about none.
	Resource string
	// ArgumentsDigest is that of the arguments: a token for exact arguments is
	// refused without it, or with another one.
	ArgumentsDigest string
	// Proof, when set, has to be a proof of the token's key for this request.
	Proof *Request
}

// Request is the request that a proof is for.
type Request struct{ Proof, Method, URI string }

// Verifier checks tokens. It is safe for concurrent use.
type Verifier struct {
	o Options

	mu          sync.Mutex
	keys        map[string]signingKey
	revoked     map[string]time.Time // until their expiry
	fetched     time.Time
	tried       time.Time
	proofs      map[string]time.Time // ids seen, until they are forgotten
	used        map[string]time.Time // one-shot tokens spent here
	fetching    chan struct{}        // closed when the fetch that runs now has ended
	lastFailure error
}

type signingKey struct {
	issuer string
	public ed25519.PublicKey
}

// New makes a Verifier. It fetches when it is first needed.
func New(o Options) (*Verifier, error) {
	if o.URL == "" || o.Audience == "" {
		return nil, errIncomplete
	}
	if o.Client == nil {
		o.Client = &http.Client{Timeout: 10 * time.Second}
	}
	if o.RefreshAfter <= 0 {
		o.RefreshAfter = 10 * time.Second
	}
	if o.MaxAge <= 0 {
		o.MaxAge = time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Verifier{
		o: o, keys: map[string]signingKey{}, revoked: map[string]time.Time{},
		proofs: map[string]time.Time{}, used: map[string]time.Time{},
	}, nil
}

// Verify checks that a token permits what is needed, now. The error is one of the
// faults above, or says why keys and revocations could not be fetched (it is then
// ErrOutOfDate as well).
func (v *Verifier) Verify(ctx context.Context, token string, need Need) (*Claims, error) {
	if err := v.current(ctx, false); err != nil {
		return nil, err
	}
	c, err := v.read(token)
	if errors.Is(err, ErrKey) {
		// A key that was published since.
		if fetchErr := v.current(ctx, true); fetchErr != nil {
			return nil, fetchErr
		}
		c, err = v.read(token)
	}
	if err != nil {
		return nil, err
	}
	if err := v.permits(c, need); err != nil {
		return nil, err
	}
	return c, v.spend(token, c, need)
}

func (v *Verifier) read(token string) (*Claims, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c, err := tokens.Read(token, tokens.Expect{
		Typ: []string{tokens.TypCapability}, Audience: v.o.Audience, Issuer: v.o.Issuer, Now: v.o.Now(),
		Key: func(kid, issuer string, _ time.Time) (ed25519.PublicKey, bool) {
			k, ok := v.keys[kid]
			return k.public, ok && k.issuer == issuer
		},
	})
	if err != nil {
		return nil, err
	}
	if _, ok := v.revoked[c.ID]; ok {
		return nil, ErrRevoked
	}
	return c, nil
}

func (v *Verifier) permits(c *Claims, need Need) error {
	if !c.Allows(need.Operation, need.Resource) {
		return ErrOperation
	}
	if c.ArgumentsDigest != "" && c.ArgumentsDigest != need.ArgumentsDigest {
		return ErrArguments
	}
	return nil
}

// spend checks the proof and takes the one use of a one-shot token. Another tool
// does not hear of it: an action that must happen once goes through
// POST /v1/actions.
func (v *Verifier) spend(token string, c *Claims, need Need) error {
	now := v.o.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	forget(v.proofs, now)
	forget(v.used, now)
	if p := need.Proof; p != nil {
		id, err := tokens.ReadProof(p.Proof, token, c, p.Method, p.URI, now)
		if err != nil {
			return err
		}
		id = c.Confirmation.JKT + " " + id
		if _, seen := v.proofs[id]; seen {
			return ErrReplayed
		}
		v.proofs[id] = now.Add(2 * tokens.ProofWindow)
	}
	if c.OneShot {
		if _, spent := v.used[c.ID]; spent {
			return ErrUsed
		}
		v.used[c.ID] = time.Time(c.ExpiresAt)
	}
	return nil
}

func forget(m map[string]time.Time, now time.Time) {
	for id, until := range m {
		if !now.Before(until) {
			delete(m, id)
		}
	}
}

// Heard takes a message of the NATS subject missionweave.tokens.revoked: it makes a
// revocation known before the list is fetched again. What it cannot read it
// ignores.
func (v *Verifier) Heard(message []byte) {
	var m struct{ TokenID, ExpiresAt string }
	if json.Unmarshal(message, &m) != nil || m.TokenID == "" {
		return
	}
	until, err := time.Parse(time.RFC3339Nano, m.ExpiresAt)
	if err != nil {
		until = v.o.Now().Add(time.Hour)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.revoked[m.TokenID] = until
}

// Prove makes a proof of a token's key for one request. id must be fresh.
func Prove(key ed25519.PrivateKey, token, method, uri, id string, now time.Time) (string, error) {
	return tokens.Prove(key, token, method, uri, id, now)
}

// current makes sure that keys and revocations are good enough, fetching them when
// they are old; missing asks for keys that are not there, at most once a second.
func (v *Verifier) current(ctx context.Context, missing bool) error {
	v.mu.Lock()
	now := v.o.Now()
	age, since := now.Sub(v.fetched), now.Sub(v.tried)
	due := v.fetched.IsZero() || age < 0 || age >= v.o.RefreshAfter || missing && age >= time.Second
	// A service that is away is not asked for every token.
	if !due || v.fetching == nil && !v.tried.IsZero() && since >= 0 && since < time.Second && v.lastFailure != nil {
		err := v.outOfDate(now)
		v.mu.Unlock()
		return err
	}
	if wait := v.fetching; wait != nil {
		v.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrOutOfDate, ctx.Err())
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.outOfDate(v.o.Now())
	}
	done := make(chan struct{})
	v.fetching, v.tried = done, now
	v.mu.Unlock()

	keys, revoked, err := v.fetch(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.fetching, v.lastFailure = nil, err
	close(done)
	if err == nil {
		// What was heard meanwhile stays until it has expired.
		forget(v.revoked, v.o.Now())
		for id, until := range revoked {
			v.revoked[id] = until
		}
		v.keys, v.fetched = keys, now // as old as the question
	}
	return v.outOfDate(v.o.Now())
}

// outOfDate is the error of knowing too little; v.mu is held.
func (v *Verifier) outOfDate(now time.Time) error {
	if age := now.Sub(v.fetched); !v.fetched.IsZero() && age >= 0 && age < v.o.MaxAge {
		return nil
	}
	if v.lastFailure != nil {
		return fmt.Errorf("%w: %w", ErrOutOfDate, v.lastFailure)
	}
	return ErrOutOfDate
}

func (v *Verifier) fetch(ctx context.Context) (map[string]signingKey, map[string]time.Time, error) {
	// Revocations first: a key that ends while they are read is missed at most once.
	revoked, err := v.fetchRevoked(ctx)
	if err != nil {
		return nil, nil, err
	}
	var set struct {
		Keys []struct{ Kty, Crv, X, Kid, Alg, Iss, Role string }
	}
	if err := v.get(ctx, "/.well-known/jwks.json", &set); err != nil {
		return nil, nil, err
	}
	keys := map[string]signingKey{}
	for _, k := range set.Keys {
		x, err := base64.RawURLEncoding.Strict().DecodeString(k.X)
		// Keys of other duties sign other tokens.
		if err != nil || len(x) != ed25519.PublicKeySize || k.Kty != "OKP" || k.Crv != "Ed25519" || k.Alg != "EdDSA" || k.Role != "authorization" {
			continue
		}
		keys[k.Kid] = signingKey{issuer: k.Iss, public: x}
	}
	return keys, revoked, nil
}

func (v *Verifier) fetchRevoked(ctx context.Context) (map[string]time.Time, error) {
	revoked := map[string]time.Time{}
	for after := ""; ; {
		var page struct {
			Items []struct{ TokenID, ExpiresAt string }
			Next  string
		}
		path := "/v1/revocations?limit=1000"
		if after != "" {
			path += "&after=" + url.QueryEscape(after)
		}
		if err := v.get(ctx, path, &page); err != nil {
			return nil, err
		}
		for _, r := range page.Items {
			until, err := time.Parse(time.RFC3339Nano, r.ExpiresAt)
			if err != nil {
				return nil, fmt.Errorf("toolauth: revocation list: %w", err)
			}
			revoked[r.TokenID] = until
		}
		if page.Next == "" {
			return revoked, nil
		}
		if page.Next == after {
			return nil, errors.New("toolauth: the revocation list does not end")
		}
		after = page.Next
	}
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 4 << 20

func (v *Verifier) get(ctx context.Context, path string, dst any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(v.o.URL, "/")+path, nil)
	if err != nil {
		return fmt.Errorf("toolauth: %w", err)
	}
	res, err := v.o.Client.Do(req)
	if err != nil {
		return fmt.Errorf("toolauth: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("toolauth: %s: %w", path, err)
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("toolauth: %s: status %d", path, res.StatusCode)
	case len(body) > maxAnswer:
		return errTooMany
	}
	if err := json.Unmarshal(body, dst); err != nil {
		return fmt.Errorf("toolauth: %s: %w", path, err)
	}
	return nil
}
