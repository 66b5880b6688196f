package sessionshttp_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/transcript"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/sessions/sessionshttp"
	"github.com/missionweave/server/internal/trust"
)

// epochs opens sessions without an Authority.
type epochs struct{ org *registrytest.Org }

func (e epochs) Open(ctx context.Context, agentID, keyID string, expiresAt time.Time) (epoch int64, perr *protocol.Error) {
	err := e.org.Pool.QueryRow(ctx, `
		INSERT INTO agent_sessions (agent_id, session_epoch, key_id, opened_at, expires_at) VALUES ($1, 1, $2, now(), $3)
		ON CONFLICT (agent_id) DO UPDATE SET session_epoch = agent_sessions.session_epoch + 1,
			opened_at = excluded.opened_at, expires_at = excluded.expires_at
		RETURNING session_epoch`, agentID, keyID, expiresAt).Scan(&epoch)
	if err != nil {
		return 0, protocol.Internal(err)
	}
	return epoch, nil
}

type server struct {
	*registrytest.Org
	url string
}

func newServer(t *testing.T, limiter *httpkit.PeerLimiter) *server {
	t.Helper()
	org := registrytest.New(t)
	service := sessions.New(sessions.Config{
		Pool: org.Pool, Directory: org.Directory, Signer: registrytest.Service(registry.RoleIdentity), Mint: registrytest.Mint,
		Opener: epochs{org}, AgentLock: func(string) int64 { return 1 },
	})
	router := httpkit.NewRouter(httpkit.Options{Service: "test", Auth: service})
	router.Add(sessionshttp.SessionRoutes(service, limiter)...)
	router.Add(sessionshttp.AccessRoutes(service, limiter)...)
	router.Add(httpkit.Route{Method: "GET", Pattern: "/me", Handler: func(c *httpkit.Call) error {
		return c.SendValue(200, map[string]any{"id": c.Caller.Principal.ID, "epoch": c.Caller.SessionEpoch})
	}})
	srv := httptest.NewServer(router)
	t.Cleanup(srv.Close)
	return &server{org, srv.URL}
}

func (s *server) post(t *testing.T, method, path, token string, body []byte) (int, http.Header, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, b
}

func frame(t *testing.T, f protocol.Frame) []byte {
	t.Helper()
	b, err := protocol.AppendFrame(nil, f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (s *server) hello(t *testing.T, who trust.Signer, bearer string) (int, []byte) {
	t.Helper()
	nonce := lexical.EncodeBase64URL([]byte("0123456789abcdef"))
	status, _, b := s.post(t, "POST", "/v1/sessions", "", frame(t, &protocol.HelloClientInit{
		FrameID: registrytest.Mint(), AgentID: who.Principal.ID, KeyID: who.KeyID, ClientNonce: nonce, SupportedVersions: []string{"0.1"},
	}))
	f, perr := protocol.ParseFrame(b)
	challenge, ok := f.(*protocol.HelloServerChallenge)
	if status != 200 || perr != nil || !ok {
		t.Fatalf("client_init: %d %s", status, b)
	}
	signing, err := transcript.Check(transcript.Session, challenge.Challenge, who.Principal, who.KeyID, nonce)
	if err != nil {
		t.Fatal(err)
	}
	status, _, b = s.post(t, "POST", "/v1/sessions/response", bearer, frame(t, &protocol.HelloClientResponse{
		FrameID: registrytest.Mint(), AgentID: who.Principal.ID, KeyID: who.KeyID, ClientNonce: nonce, ServerNonce: challenge.ServerNonce,
		ChallengeSignature: lexical.EncodeBase64URL(ed25519.Sign(who.Private, signing)),
	}))
	return status, b
}

func (s *server) mustHello(t *testing.T, who trust.Signer, bearer string) *protocol.HelloServerAccept {
	t.Helper()
	status, b := s.hello(t, who, bearer)
	f, perr := protocol.ParseFrame(b)
	accept, ok := f.(*protocol.HelloServerAccept)
	if status != 200 || perr != nil || !ok {
		t.Fatalf("client_response: %d %s", status, b)
	}
	return accept
}

func code(b []byte) string {
	var e struct{ Code string }
	_ = json.Unmarshal(b, &e)
	return e.Code
}

func TestHelloOverREST(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	agent := registrytest.Agent("worker")
	s.AddAgent(t, agent)
	first := s.mustHello(t, agent, "")
	if status, _, b := s.post(t, "GET", "/me", first.SessionToken, nil); status != 200 || string(b) != `{"epoch":1,"id":"urn:test:agent:worker"}` {
		t.Errorf("session token: %d %s", status, b)
	}
	renewed := s.mustHello(t, agent, first.SessionToken)
	if renewed.SessionEpoch != 1 {
		t.Errorf("with the token: epoch %d", renewed.SessionEpoch)
	}
	second := s.mustHello(t, agent, "")
	if second.SessionEpoch != 2 {
		t.Errorf("without the token: epoch %d", second.SessionEpoch)
	}
	if status, _, b := s.post(t, "GET", "/me", first.SessionToken, nil); status != 409 || code(b) != "AUTH_STALE_SESSION" ||
		!strings.Contains(string(b), `"receivedSessionEpoch":1`) {
		t.Errorf("fenced token: %d %s", status, b)
	}
	if status, b := s.hello(t, agent, first.SessionToken); status != 409 || code(b) != "AUTH_STALE_SESSION" {
		t.Errorf("renewal of the fenced session: %d %s", status, b)
	}
	if status, b := s.hello(t, agent, "garbage"); status != 401 || code(b) != "AUTH_INVALID_SIGNATURE" {
		t.Errorf("renewal with garbage: %d %s", status, b)
	}
	if status, b := s.hello(t, registrytest.Agent("stranger"), ""); status != 401 || code(b) != "AUTH_INVALID_SIGNATURE" {
		t.Errorf("stranger: %d %s", status, b)
	}
}

func TestFramesOutOfTurnAndMalformed(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	init := &protocol.HelloClientInit{
		FrameID: "urn:x:frame", AgentID: "urn:x:a", KeyID: "urn:x:k", ClientNonce: "AAAA", SupportedVersions: []string{"0.1"},
	}
	good := string(frame(t, init))
	response := string(frame(t, &protocol.HelloClientResponse{
		FrameID: "urn:x:frame", AgentID: "urn:x:a", KeyID: "urn:x:k", ClientNonce: "AAAA", ServerNonce: "AAAA", ChallengeSignature: "AAAA",
	}))
	for _, tc := range []struct {
		name, path, body string
		status           int
		code             string
	}{
		{"response first", "/v1/sessions", response, 401, "AUTH_REQUIRED"},
		{"init as response", "/v1/sessions/response", good, 401, "AUTH_REQUIRED"},
		{"another frame", "/v1/sessions", `{"protocolVersion":"0.1","frameId":"urn:x:f","frameType":"PING","nonce":"AAAA","sentAt":"2026-01-01T00:00:00Z"}`, 401, "AUTH_REQUIRED"},
		{"other version", "/v1/sessions", strings.Replace(good, `["0.1"]`, `["0.2"]`, 1), 400, "UNSUPPORTED_VERSION"},
		{"other version in an otherwise broken frame", "/v1/sessions", `{"frameType":"HELLO","protocolVersion":"9"}`, 400, "UNSUPPORTED_VERSION"},
		{"unknown member", "/v1/sessions", strings.Replace(good, `{`, `{"x":1,`, 1), 400, "SCHEMA_VALIDATION_FAILED"},
		{"no JSON", "/v1/sessions", `{`, 400, "PROTOCOL_VIOLATION"},
		{"no challenge", "/v1/sessions/response", response, 401, "AUTH_INVALID_SIGNATURE"},
	} {
		status, _, b := s.post(t, "POST", tc.path, "", []byte(tc.body))
		if status != tc.status || code(b) != tc.code {
			t.Errorf("%s: %d %s", tc.name, status, b)
		}
		if _, err := protocol.ValidateBytes(protocol.KindError, b); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if status, _, b := s.post(t, "POST", "/v1/sessions/response", "", []byte(response)); !strings.Contains(string(b), `"relatedFrameId":"urn:x:frame"`) {
		t.Errorf("refusal does not name its frame: %d %s", status, b)
	}
}

func TestStrangersAreBoundedPerPeer(t *testing.T) {
	t.Parallel()
	s := newServer(t, httpkit.NewPeerLimiter("challenges_per_peer", 1, 2, nil))
	init := frame(t, &protocol.HelloClientInit{
		FrameID: "urn:x:frame", AgentID: "urn:x:a", KeyID: "urn:x:k", ClientNonce: "AAAA", SupportedVersions: []string{"0.1"},
	})
	for range 2 {
		if status, _, b := s.post(t, "POST", "/v1/sessions", "", init); status != 200 {
			t.Fatalf("%d %s", status, b)
		}
	}
	status, header, b := s.post(t, "POST", "/v1/access/challenge", "", []byte(`{}`))
	if status != 429 || code(b) != "RATE_LIMITED" || header.Get("Retry-After") == "" {
		t.Errorf("third: %d %s", status, b)
	}
}
