package scenario

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/client/toolauth"
)

// external is the world outside: a system of its own behind HTTP, to which
// releases are deployed. It is no part of the server and trusts no caller. Before
// it does anything it checks the Capability Token offline (client/toolauth) with
// a proof of the Agent's key, and asks the Authorization Service whether the
// token is good this instant. It executes an idempotency key once, and it can
// lose the answer to what it has done, as networks do.
type external struct {
	url      string
	server   *http.Server
	verifier *toolauth.Verifier
	service  *client.Client // a service of the Organization, which may introspect
	served   chan struct{}

	mu        sync.Mutex
	loseFirst bool
	requests  int
	refused   map[string]int // by what was wrong
	keys      []string       // idempotency key of every request with a good token
	done      map[string]deployment
	tokens    map[string]string // token id -> token, as it was shown
}

// deployment is what the external system did, and its receipt.
type deployment struct {
	Number         int    `json:"number"`
	Release        string `json:"release"`
	IdempotencyKey string `json:"idempotencyKey"`
	TokenID        string `json:"tokenId"`
	Worker         string `json:"worker"`
	WorkItemID     string `json:"workItemId"`
	OwnershipEpoch int64  `json:"ownershipEpoch"`
}

// journal is what the external system says of itself, to anybody who asks. It has
// no token in it.
type journal struct {
	Requests    int            `json:"requests"`
	Refused     map[string]int `json:"refused"`
	Keys        []string       `json:"keys"`
	Deployments []deployment   `json:"deployments"`
}

// newExternal starts the external system on a port of its own.
func newExternal(ctx context.Context, stack *client.DevStack, service *client.Client) (*external, error) {
	roots, err := stack.RootCAs()
	if err != nil {
		return nil, err //nolint:wrapcheck // says what is missing
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if roots != nil {
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	verifier, err := toolauth.New(toolauth.Options{
		URL: stack.AuthzURL, Audience: stack.OrganizationID, Client: &http.Client{Timeout: 10 * time.Second, Transport: transport},
		RefreshAfter: time.Second,
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // says what is missing
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("scenario: the external system: %w", err)
	}
	x := &external{
		url: "http://" + listener.Addr().String(), verifier: verifier, service: service, served: make(chan struct{}), loseFirst: true,
		refused: map[string]int{}, done: map[string]deployment{}, tokens: map[string]string{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /deployments", x.deploy)
	mux.HandleFunc("GET /journal", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, x.journal()) })
	x.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(x.served)
		_ = x.server.Serve(listener) // ends when it is closed
	}()
	return x, nil
}

func (x *external) close() {
	_ = x.server.Close()
	<-x.served
	x.service.Close()
}

// maxRelease bounds what the external system reads of a request.
const maxRelease = 4 << 10

func (x *external) deploy(w http.ResponseWriter, r *http.Request) {
	x.mu.Lock()
	x.requests++
	x.mu.Unlock()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRelease))
	var asked struct {
		Release string `json:"release"`
	}
	key := r.Header.Get("Idempotency-Key")
	if err != nil || json.Unmarshal(body, &asked) != nil || asked.Release == "" || key == "" {
		x.refuse(w, http.StatusBadRequest, "malformed")
		return
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		x.refuse(w, http.StatusUnauthorized, "no token")
		return
	}
	claims, err := x.verifier.Verify(r.Context(), token, toolauth.Need{
		Operation: "deploy.run", Resource: production,
		Proof: &toolauth.Request{Proof: r.Header.Get("DPoP"), Method: http.MethodPost, URI: x.url + "/deployments"},
	})
	switch {
	case errors.Is(err, toolauth.ErrProof):
		x.refuse(w, http.StatusUnauthorized, "no proof of the key")
		return
	case errors.Is(err, toolauth.ErrOperation):
		x.refuse(w, http.StatusForbidden, "another operation")
		return
	case err != nil:
		x.refuse(w, http.StatusUnauthorized, "token not valid")
		return
	}
	if active, err := x.active(r.Context(), token); err != nil || !active {
		x.refuse(w, http.StatusForbidden, "token not in force")
		return
	}
	receipt, lose := x.execute(token, claims, asked.Release, key)
	if lose {
		panic(http.ErrAbortHandler) // executed, and nobody is told
	}
	answer(w, http.StatusOK, receipt)
}

// execute does what was asked unless it was done under that key before.
func (x *external) execute(token string, claims *toolauth.Claims, release, key string) (receipt deployment, lose bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.keys, x.tokens[claims.ID] = append(x.keys, key), token
	if receipt, ok := x.done[key]; ok {
		return receipt, false
	}
	x.done[key] = deployment{
		Number: len(x.done) + 1, Release: release, IdempotencyKey: key, TokenID: claims.ID,
		Worker: claims.Subject, WorkItemID: claims.WorkItemID, OwnershipEpoch: claims.OwnershipEpoch,
	}
	lose, x.loseFirst = x.loseFirst, false
	return x.done[key], lose
}

func (x *external) refuse(w http.ResponseWriter, status int, why string) {
	x.mu.Lock()
	x.refused[why]++
	x.mu.Unlock()
	answer(w, status, map[string]string{"error": why})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (x *external) journal() journal {
	x.mu.Lock()
	defer x.mu.Unlock()
	j := journal{Requests: x.requests, Refused: map[string]int{}, Keys: append([]string{}, x.keys...), Deployments: []deployment{}}
	for why, n := range x.refused {
		j.Refused[why] = n
	}
	for _, d := range x.done {
		j.Deployments = append(j.Deployments, d)
	}
	return j
}

// active asks the Authorization Service about a token, as a tool does.
func (x *external) active(ctx context.Context, token string) (bool, error) {
	var introspection struct {
		Active bool `json:"active"`
	}
	err := x.service.PostAuthz(ctx, "/v1/introspect", map[string]any{"token": token}, &introspection)
	return introspection.Active, err //nolint:wrapcheck // refused all the same
}

// shown tells how many tokens the external system was shown, how many of them are
// in force now, and how many occur in a text. The tokens stay where they are.
func (x *external) shown(ctx context.Context, texts ...[]byte) (tokens, inForce, found int, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, token := range x.tokens {
		active, err := x.active(ctx, token)
		if err != nil {
			return 0, 0, 0, err
		}
		if active {
			inForce++
		}
		for _, t := range texts {
			found += bytes.Count(t, []byte(token))
		}
	}
	return len(x.tokens), inForce, found, nil
}

// post sends something to the external system; header is a list of name, value.
func post(ctx context.Context, url string, body any, header ...string) (status int, content []byte, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return 0, nil, fmt.Errorf("encode the request: %w", err)
	}
	return send(ctx, http.MethodPost, url, b, header...)
}

func send(ctx context.Context, method, url string, body []byte, header ...string) (status int, content []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, fmt.Errorf("external system: %w", err)
	}
	// A request that must not be sent twice is not sent again by the transport either.
	req.GetBody = nil
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("external system: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	content, err = io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return 0, nil, fmt.Errorf("external system: %w", err)
	}
	return res.StatusCode, content, nil
}
