package registryhttp_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/protocol/transcript"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registryhttp"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/sessions/sessionshttp"
	"github.com/missionweave/server/internal/trust"
)

// server is a Registry as a client sees it.
type server struct {
	*registrytest.Org
	url    string
	routes []httpkit.Route

	mu     sync.Mutex
	tokens map[string]string
}

func newServer(t *testing.T, authority registryhttp.Authority) *server {
	t.Helper()
	return serve(t, registrytest.New(t), authority)
}

func serve(t *testing.T, org *registrytest.Org, authority registryhttp.Authority) *server {
	t.Helper()
	credentials := sessions.New(sessions.Config{
		Pool: org.Pool, Directory: org.Directory, Signer: registrytest.Service(registry.RoleIdentity), Mint: registrytest.Mint,
	})
	router := httpkit.NewRouter(httpkit.Options{Service: "registry", Auth: credentials})
	router.Add(registryhttp.Routes(registryhttp.Options{
		Service: org.Service, Directory: org.Directory, Authority: authority,
		FreshPast: 5 * time.Minute, FreshFuture: 30 * time.Second, Now: time.Now,
	})...)
	router.Add(sessionshttp.AccessRoutes(credentials, nil)...)
	srv := httptest.NewServer(router)
	t.Cleanup(srv.Close)
	return &server{Org: org, url: srv.URL, routes: router.Routes(), tokens: map[string]string{}}
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) code() string {
	var e struct{ Code string }
	_ = json.Unmarshal(a.body, &e)
	return e.Code
}

func (a answer) decode(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal(a.body, v); err != nil {
		t.Fatalf("%s: %v", a.body, err)
	}
}

func (s *server) call(t *testing.T, method, path, token string, body []byte) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
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
	if resp.Header.Get("X-Request-Id") == "" {
		t.Errorf("%s %s without X-Request-Id", method, path)
	}
	if resp.StatusCode >= 400 {
		if _, err := protocol.ValidateBytes(protocol.KindError, b); err != nil {
			t.Errorf("%s %s answers %d with no error object: %v: %s", method, path, resp.StatusCode, err, b)
		}
	}
	return answer{resp.StatusCode, resp.Header, b}
}

// token is an access token of a Principal, by challenge and signature.
func (s *server) token(t *testing.T, who trust.Signer) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if token, ok := s.tokens[who.KeyID]; ok {
		return token
	}
	nonce := lexical.EncodeBase64URL([]byte("nonce-of-" + who.KeyID))
	request, err := strictjson.Marshal(sessions.AccessRequest{Principal: who.Principal, KeyID: who.KeyID, ClientNonce: nonce})
	if err != nil {
		t.Fatal(err)
	}
	var challenge sessions.AccessChallenge
	got := s.call(t, "POST", "/v1/access/challenge", "", request)
	got.decode(t, &challenge)
	b, err := transcript.Check(transcript.Access, challenge.Challenge, who.Principal, who.KeyID, nonce)
	if err != nil {
		t.Fatalf("%d %s: %v", got.status, got.body, err)
	}
	proof, err := strictjson.Marshal(sessions.AccessProof{
		Challenge: challenge.Challenge, KeyID: who.KeyID,
		ChallengeSignature: lexical.EncodeBase64URL(ed25519.Sign(who.Private, b)),
	})
	if err != nil {
		t.Fatal(err)
	}
	var grant sessions.AccessGrant
	got = s.call(t, "POST", "/v1/access/token", "", proof)
	got.decode(t, &grant)
	if got.status != 200 || grant.AccessToken == "" {
		t.Fatalf("access token: %d %s", got.status, got.body)
	}
	s.tokens[who.KeyID] = grant.AccessToken
	return grant.AccessToken
}

// signed is a signed body of a writer, requested at a time.
func signed(t *testing.T, who trust.Signer, at string, members map[string]any) []byte {
	t.Helper()
	body, err := strictjson.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	out, err := trust.SignBody(body, at, who)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// write posts a body that the registry service signed, with its token.
func (s *server) write(t *testing.T, path string, members map[string]any) answer {
	t.Helper()
	writer := registrytest.Service(registry.RoleRegistry)
	return s.call(t, "POST", path, s.token(t, writer), signed(t, writer, registrytest.Now(), members))
}

func keyMembers(s trust.Signer) map[string]any {
	return map[string]any{
		"keyId": s.KeyID, "principal": s.Principal, "algorithm": "Ed25519", "publicKey": s.PublicKey(), "validFrom": registrytest.Now(),
	}
}

func raw(t *testing.T, v any) protocol.Raw {
	t.Helper()
	b, err := strictjson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestKeysAreBoundReadAndEnded(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	human := registrytest.Human("alice")
	members := keyMembers(human)
	got := s.write(t, "/v1/keys", members)
	if got.status != 201 {
		t.Fatalf("bind: %d %s", got.status, got.body)
	}
	path := "/v1/keys/" + url.PathEscape(human.KeyID)
	reader := s.token(t, registrytest.Human("mission-owner"))
	if read := s.call(t, "GET", path, reader, nil); read.status != 200 || !bytes.Equal(read.body, got.body) {
		t.Errorf("read: %d %s", read.status, read.body)
	}
	if got := s.write(t, "/v1/keys", members); got.status != 200 {
		t.Errorf("identical binding in a new body: %d %s", got.status, got.body)
	}
	end := registrytest.At(time.Hour)
	if got := s.write(t, path+"/validity", map[string]any{"validUntil": end, "keyId": human.KeyID}); got.status != 201 {
		t.Errorf("end: %d %s", got.status, got.body)
	}
	if got := s.write(t, path+"/validity", map[string]any{"validUntil": registrytest.At(2 * time.Hour)}); got.status != 422 || got.code() != "INVALID_COMMAND" {
		t.Errorf("later end: %d %s", got.status, got.body)
	}
	if got := s.write(t, path+"/validity", map[string]any{"validUntil": end}); got.status != 200 {
		t.Errorf("the end that is there: %d %s", got.status, got.body)
	}
	if got := s.write(t, path+"/validity", map[string]any{"validUntil": end, "keyId": "urn:x:other"}); got.status != 422 {
		t.Errorf("body signed for another key: %d %s", got.status, got.body)
	}
	if got := s.write(t, path+"/validity", map[string]any{}); got.status != 400 || got.code() != "SCHEMA_VALIDATION_FAILED" {
		t.Errorf("no boundary: %d %s", got.status, got.body)
	}
	if got := s.write(t, "/v1/keys/urn%3Ax%3Anone/validity", map[string]any{"revokedAt": end}); got.status != 404 {
		t.Errorf("unknown key: %d %s", got.status, got.body)
	}
	var record registry.KeyRecord
	s.call(t, "GET", path, reader, nil).decode(t, &record)
	if record.ValidUntil != end || len(record.History) != 1 || record.History[0].ChangedBy != registrytest.Service(registry.RoleRegistry).Principal {
		t.Errorf("record: %+v", record)
	}
	if got := s.call(t, "GET", "/v1/keys/urn%3Ax%3Anone", reader, nil); got.status != 404 || got.code() != "PROTOCOL_VIOLATION" {
		t.Errorf("unknown key: %d %s", got.status, got.body)
	}
	if got := s.call(t, "GET", "/v1/keys/none", reader, nil); got.status != 400 {
		t.Errorf("malformed id: %d %s", got.status, got.body)
	}

	for rule, change := range map[string]func(map[string]any){
		"reused key id":     func(m map[string]any) { m["keyId"] = human.KeyID },
		"reused public key": func(m map[string]any) { m["publicKey"] = human.PublicKey() },
		"small order":       func(m map[string]any) { m["publicKey"] = "7P______________________________________38" },
	} {
		m := keyMembers(registrytest.Human("bob"))
		change(m)
		if got := s.write(t, "/v1/keys", m); got.status != 401 || got.code() != "AUTH_INVALID_SIGNATURE" {
			t.Errorf("%s: %d %s", rule, got.status, got.body)
		}
	}
	m := keyMembers(registrytest.Human("bob"))
	m["validFrom"] = registrytest.At(-2 * time.Hour)
	if got := s.write(t, "/v1/keys", m); got.status != 422 {
		t.Errorf("backdated: %d %s", got.status, got.body)
	}
	m["algorithm"] = "RSA"
	if got := s.write(t, "/v1/keys", m); got.status != 400 || got.code() != "SCHEMA_VALIDATION_FAILED" {
		t.Errorf("other algorithm: %d %s", got.status, got.body)
	}
}

func TestIDsWithSlashesAreOneSegment(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	human := registrytest.Human("slash")
	human.KeyID = "https://keys.example/a/b?c=d%2Fe"
	if got := s.write(t, "/v1/keys", keyMembers(human)); got.status != 201 {
		t.Fatalf("bind: %d %s", got.status, got.body)
	}
	path := "/v1/keys/" + url.PathEscape(human.KeyID)
	if got := s.call(t, "GET", path, s.token(t, human), nil); got.status != 200 {
		t.Errorf("%s: %d %s", path, got.status, got.body)
	}
	if got := s.write(t, path+"/validity", map[string]any{"revokedAt": registrytest.Now()}); got.status != 201 {
		t.Errorf("end: %d %s", got.status, got.body)
	}
}

func TestWritesNeedDutyTokenAndAFreshSignedBodyOnce(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	writer, other := registrytest.Service(registry.RoleRegistry), registrytest.Service(registry.RolePolicy)
	human := registrytest.Human("mission-owner")
	agent := registrytest.Agent("worker")
	s.AddAgent(t, agent)
	var before int64
	if err := s.Pool.QueryRow(t.Context(), `SELECT revision FROM registry_head`).Scan(&before); err != nil {
		t.Fatal(err)
	}
	body := func(who trust.Signer, at string) []byte {
		return signed(t, who, at, keyMembers(registrytest.Human("new")))
	}
	now := registrytest.Now
	tampered := bytes.Replace(body(writer, now()), []byte("urn:test:human:new"), []byte("urn:test:human:old"), 1)
	createdAt := bytes.Replace(body(writer, "2026-01-01T00:00:00Z"), []byte(`"createdAt":"2026-01-01T00:00:00Z"`), []byte(`"createdAt":"2026-01-01T00:00:01Z"`), 1)
	for _, tc := range []struct {
		rule   string
		token  string
		body   []byte
		status int
		code   string
	}{
		{"no token", "", body(writer, now()), 401, "AUTH_REQUIRED"},
		{"garbage token", "garbage", body(writer, now()), 401, "AUTH_REQUIRED"},
		{"body that is no JSON", s.token(t, writer), []byte(`{`), 400, "PROTOCOL_VIOLATION"},
		{"unsigned body", s.token(t, writer), []byte(`{"keyId":"urn:x:y"}`), 400, "SCHEMA_VALIDATION_FAILED"},
		{"tampered body", s.token(t, writer), tampered, 401, "AUTH_INVALID_SIGNATURE"},
		{"createdAt is not requestedAt", s.token(t, writer), createdAt, 401, "AUTH_INVALID_SIGNATURE"},
		{"body of another Principal", s.token(t, writer), body(other, now()), 401, "AUTH_INVALID_SIGNATURE"},
		{"requested six minutes ago", s.token(t, writer), body(writer, registrytest.At(-6*time.Minute)), 401, "AUTH_INVALID_SIGNATURE"},
		{"requested in a minute", s.token(t, writer), body(writer, registrytest.At(time.Minute)), 401, "AUTH_INVALID_SIGNATURE"},
		{"service without the duty", s.token(t, other), body(other, now()), 403, "AUTH_FORBIDDEN"},
		{"human", s.token(t, human), body(human, now()), 403, "AUTH_FORBIDDEN"},
		{"Agent", s.token(t, agent), body(agent, now()), 403, "AUTH_FORBIDDEN"},
	} {
		if got := s.call(t, "POST", "/v1/keys", tc.token, tc.body); got.status != tc.status || got.code() != tc.code {
			t.Errorf("%s: %d %s", tc.rule, got.status, got.body)
		}
	}
	var after int64
	if err := s.Pool.QueryRow(t.Context(), `SELECT revision FROM registry_head`).Scan(&after); err != nil || after != before {
		t.Errorf("refusals moved the revision from %d to %d", before, after)
	}
	good := body(writer, now())
	if got := s.call(t, "POST", "/v1/keys", s.token(t, writer), good); got.status != 201 {
		t.Fatalf("good body: %d %s", got.status, got.body)
	}
	if got := s.call(t, "POST", "/v1/keys", s.token(t, writer), good); got.status != 401 || got.code() != "AUTH_INVALID_SIGNATURE" {
		t.Errorf("the same body again: %d %s", got.status, got.body)
	}

	// Many at once: one of them is taken.
	once := signed(t, writer, now(), keyMembers(registrytest.Human("once")))
	statuses := make([]int, 8)
	var wg sync.WaitGroup
	for i := range statuses {
		wg.Go(func() { statuses[i] = s.call(t, "POST", "/v1/keys", s.token(t, writer), once).status })
	}
	wg.Wait()
	slices.Sort(statuses)
	if statuses[0] != 201 || statuses[1] != 401 {
		t.Errorf("one body sent eight times: %v", statuses)
	}
	var kept []byte
	err := s.Pool.QueryRow(t.Context(), `SELECT body FROM signed_writes WHERE body = $1`, once).Scan(&kept)
	if err != nil {
		t.Errorf("the body is not kept: %v", err)
	}
}

func TestUnsignedCardsComeBackSigned(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	agent := registrytest.Agent("worker")
	card := registrytest.Card(agent)
	got := s.write(t, "/v1/agent-cards", map[string]any{"card": raw(t, card)})
	if got.status != 201 {
		t.Fatalf("register: %d %s", got.status, got.body)
	}
	view, err := s.Directory.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, failure := trust.VerifyBytes(protocol.KindAgentCard, got.body, view.Evidence); failure != nil {
		t.Errorf("the answer does not verify: %v", failure)
	}
	reader := s.token(t, agent)
	path := "/v1/agent-cards/" + url.PathEscape(agent.Principal.ID)
	for _, p := range []string{path, path + "?version=1"} {
		if read := s.call(t, "GET", p, reader, nil); read.status != 200 || !bytes.Equal(read.body, got.body) {
			t.Errorf("%s: %d %s", p, read.status, read.body)
		}
	}
	for p, status := range map[string]int{
		path + "?version=2": 404, path + "?version=0": 400, path + "?version=x": 400, path + "?x=1": 400,
		"/v1/agent-cards/urn%3Ax%3Anone": 404, "/v1/agent-cards/none": 400,
	} {
		if read := s.call(t, "GET", p, reader, nil); read.status != status {
			t.Errorf("%s: %d %s", p, read.status, read.body)
		}
	}
	if got := s.write(t, "/v1/agent-cards", map[string]any{"card": raw(t, card)}); got.status != 409 || got.code() != "REVISION_CONFLICT" {
		t.Errorf("same version: %d %s", got.status, got.body)
	}
	next := card
	next.CardVersion, next.OrganizationID = 2, "urn:test:elsewhere"
	if got := s.write(t, "/v1/agent-cards", map[string]any{"card": raw(t, next)}); got.status != 403 {
		t.Errorf("foreign Organization: %d %s", got.status, got.body)
	}
	if got := s.write(t, "/v1/agent-cards", map[string]any{"card": protocol.Raw(`{}`)}); got.status != 400 {
		t.Errorf("empty card: %d %s", got.status, got.body)
	}
	withSignature := card
	withSignature.CardVersion = 2
	withSignature.Signature = protocol.Signature{Algorithm: "Ed25519", KeyID: "urn:x:k", CreatedAt: registrytest.Now(), Value: "AAAA"}
	if got := s.write(t, "/v1/agent-cards", map[string]any{"card": raw(t, withSignature)}); got.status != 400 {
		t.Errorf("card that is signed already: %d %s", got.status, got.body)
	}

	var list struct {
		Items []json.RawMessage
		Next  string
	}
	s.call(t, "GET", "/v1/agent-cards?status=active&limit=1", reader, nil).decode(t, &list)
	if len(list.Items) != 1 || list.Next == "" {
		t.Fatalf("first page: %d items, next %q", len(list.Items), list.Next)
	}
	first := list.Items[0]
	list.Next = ""
	s.call(t, "GET", "/v1/agent-cards?status=active&limit=1&after="+cursorOf(t, s, reader), reader, nil).decode(t, &list)
	if len(list.Items) != 1 || list.Next != "" || bytes.Equal(list.Items[0], first) || !bytes.Equal(list.Items[0], got.body) {
		t.Errorf("second page: %s next %q", list.Items, list.Next)
	}
	s.call(t, "GET", "/v1/agent-cards?capability=no.such", reader, nil).decode(t, &list)
	if len(list.Items) != 0 {
		t.Errorf("capability nobody has: %s", list.Items)
	}
	for _, p := range []string{"?status=other", "?capability=", "?capability=X", "?limit=0", "?after=x", "?foo=1"} {
		if got := s.call(t, "GET", "/v1/agent-cards"+p, reader, nil); got.status != 400 || got.code() != "SCHEMA_VALIDATION_FAILED" {
			t.Errorf("%s: %d %s", p, got.status, got.body)
		}
	}
}

// A card body whose answer was lost may be sent again, and registers once; one
// that was answered is used up.
func TestALostAnswerOfTheAuthorityDoesNotUseTheBodyUp(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	var commands [][]byte
	alone := org.Service
	_, org.Service = org.Replica(t, func(ctx context.Context, command []byte) ([]byte, bool, *protocol.Error) {
		commands = append(commands, command)
		if len(commands) > 1 {
			return []byte(`{}`), true, nil
		}
		doc, err := strictjson.Parse(command)
		if err != nil {
			return nil, false, protocol.Internal(err)
		}
		author := registry.Author{Principal: registrytest.Service(registry.RoleRegistry).Principal}
		if err := alone.RegisterSignedCard(ctx, author, doc.Root().Member("payload").Member("agentCard").Raw()); err != nil {
			t.Error(err)
		}
		return nil, false, protocol.NewError(protocol.CodeInternalError, "") // registered, and the answer lost
	})
	s := serve(t, org, nil)
	writer := registrytest.Service(registry.RoleRegistry)
	body := signed(t, writer, registrytest.Now(), map[string]any{"card": raw(t, registrytest.Card(registrytest.Agent("worker")))})
	post := func() answer { return s.call(t, "POST", "/v1/agent-cards", s.token(t, writer), body) }
	if got := post(); got.status != 500 || got.code() != "INTERNAL_ERROR" {
		t.Fatalf("answer lost: %d %s", got.status, got.body)
	}
	if got := post(); got.status != 201 {
		t.Fatalf("the same body again: %d %s", got.status, got.body)
	}
	if len(commands) != 2 || !bytes.Equal(commands[0], commands[1]) {
		t.Errorf("one body made two Commands:\n%s", bytes.Join(commands, []byte("\n")))
	}
	if got := post(); got.status != 401 || got.code() != "AUTH_INVALID_SIGNATURE" || len(commands) != 2 {
		t.Errorf("a body that was answered: %d %s", got.status, got.body)
	}
}

func cursorOf(t *testing.T, s *server, reader string) string {
	t.Helper()
	var list struct{ Next string }
	s.call(t, "GET", "/v1/agent-cards?status=active&limit=1", reader, nil).decode(t, &list)
	return list.Next
}

func TestEvidenceIsForServices(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	authority := s.token(t, registrytest.Service(registry.RoleGroupAuthority))
	got := s.call(t, "GET", "/v1/registry/evidence?organizationId="+url.QueryEscape(registrytest.OrganizationID), authority, nil)
	var document registry.EvidenceDocument
	got.decode(t, &document)
	if got.status != 200 || document.Revision < 1 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	ev, err := trust.NewEvidence(document.OrganizationID, document.Revision, document.TrustBindings())
	if err != nil || ev.Len() != len(s.Founding.Principals) {
		t.Errorf("evidence of %d keys: %v", ev.Len(), err)
	}
	for path, status := range map[string]int{
		"?revision=1": 200, "?revision=999": 404, "?revision=0": 400, "?organizationId=urn%3Ax%3Aother": 404, "?organizationId=": 400, "?x=1": 400,
	} {
		if got := s.call(t, "GET", "/v1/registry/evidence"+path, authority, nil); got.status != status {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	for _, who := range []trust.Signer{registrytest.Human("mission-owner"), registrytest.Agent("context-generator")} {
		if got := s.call(t, "GET", "/v1/registry/evidence", s.token(t, who), nil); got.status != 403 || got.code() != "AUTH_FORBIDDEN" {
			t.Errorf("%s: %d %s", who.KeyID, got.status, got.body)
		}
	}
}

func TestProfilesAreServedAsSigned(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	policy := registrytest.Service(registry.RolePolicy)
	document, _, err := trust.SignDocument(protocol.KindExtensionProfile, &protocol.ExtensionProfile{
		ProfileURI: "urn:test:profile:one", Name: "One", Version: "1.0.0", SchemaURI: "urn:test:schema:one",
		SchemaHash:           "sha256:0000000000000000000000000000000000000000000000000000000000000001",
		RequiredCapabilities: []protocol.CapabilityRef{}, CommandKinds: []string{"ext.test.one.do"}, EventKinds: []string{},
		ApprovedBy: policy.Principal, ApprovedAt: registrytest.Now(),
	}, policy)
	if err != nil {
		t.Fatal(err)
	}
	got := s.write(t, "/v1/extension-profiles", map[string]any{"profile": protocol.Raw(document)})
	if got.status != 201 || !bytes.Equal(got.body, document) {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if got := s.write(t, "/v1/extension-profiles", map[string]any{"profile": protocol.Raw(document)}); got.status != 200 {
		t.Errorf("identical again: %d %s", got.status, got.body)
	}
	forged := bytes.Replace(document, []byte(`"name":"One"`), []byte(`"name":"Two"`), 1)
	if got := s.write(t, "/v1/extension-profiles", map[string]any{"profile": protocol.Raw(forged)}); got.status != 401 {
		t.Errorf("forged: %d %s", got.status, got.body)
	}
	var list struct {
		Items []json.RawMessage
		Next  string
	}
	reader := s.token(t, registrytest.Human("mission-owner"))
	s.call(t, "GET", "/v1/extension-profiles?limit=1", reader, nil).decode(t, &list)
	if len(list.Items) != 1 || !strings.Contains(string(list.Items[0]), registry.OwnProfileURI) || list.Next == "" {
		t.Fatalf("first page: %s next %q", list.Items, list.Next)
	}
	next := list.Next
	list.Next = ""
	s.call(t, "GET", "/v1/extension-profiles?limit=1&after="+next, reader, nil).decode(t, &list)
	if len(list.Items) != 1 || !bytes.Equal(list.Items[0], document) || list.Next != "" {
		t.Errorf("second page: %s next %q", list.Items, list.Next)
	}
}

// authority answers as told and keeps what it got.
type authority struct {
	got      []byte
	receipt  []byte
	replayed bool
	refusal  *protocol.Error
}

func (a *authority) Submit(_ context.Context, command []byte, _ string) ([]byte, bool, *protocol.Error) {
	a.got = command
	return a.receipt, a.replayed, a.refusal
}

func TestSignedCardsAreForwardedToTheAuthority(t *testing.T) {
	t.Parallel()
	a := &authority{receipt: []byte(`{"actionId":"urn:x:1"}`)}
	s := newServer(t, a)
	command := []byte(`{ "kind" : "ext.missionweaveprotocol.registry.agent_card_register" }`)
	if got := s.call(t, "POST", "/v1/commands", "", command); got.status != 201 || !bytes.Equal(got.body, a.receipt) || !bytes.Equal(a.got, command) {
		t.Errorf("accepted: %d %s, forwarded %s", got.status, got.body, a.got)
	}
	a.replayed = true
	if got := s.call(t, "POST", "/v1/commands", "", command); got.status != 200 || got.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("replayed: %d %v", got.status, got.header)
	}
	a.refusal = protocol.NewError(protocol.CodeRevisionConflict, "").WithRevision(3, 1)
	got := s.call(t, "POST", "/v1/commands", "", command)
	if got.status != 409 || !strings.Contains(string(got.body), `"currentRevision":1`) {
		t.Errorf("refused: %d %s", got.status, got.body)
	}
	a.got = nil
	if got := s.call(t, "POST", "/v1/commands", "", []byte(`{"kind":"mission.create"}`)); got.status != 422 || a.got != nil {
		t.Errorf("another kind: %d %s", got.status, got.body)
	}
	if got := s.call(t, "POST", "/v1/commands", "", []byte(`{"kind":`)); got.status != 400 || got.code() != "PROTOCOL_VIOLATION" || a.got != nil {
		t.Errorf("no JSON: %d %s", got.status, got.body)
	}
	s.call(t, "POST", "/v1/commands", "", []byte(`{}`))
	if a.got == nil {
		t.Error("a body that is no Command is not left to the Authority's answer")
	}
}

func TestARemoteAuthorityIsRelayedFaithfully(t *testing.T) {
	t.Parallel()
	var status int
	var body string
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/commands" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("called %s with %q", r.URL.Path, r.Header.Get("Content-Type"))
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	a := &registryhttp.RemoteAuthority{BaseURL: remote.URL + "/", Client: remote.Client()}
	const refusal = `{"code":"REVISION_CONFLICT","currentRevision":1,"expectedRevision":3,"message":"x","occurredAt":"2026-01-01T00:00:00Z","retryable":false}`
	for _, tc := range []struct {
		status   int
		body     string
		replayed bool
		code     protocol.Code
		answered int
	}{
		{201, `{"a":1}`, false, "", 0},
		{200, `{"a":1}`, true, "", 0},
		{409, refusal, false, protocol.CodeRevisionConflict, 409},
		{413, strings.Replace(refusal, "REVISION_CONFLICT", "PROTOCOL_VIOLATION", 1), false, protocol.CodeProtocolViolation, 413},
		{502, `<html>`, false, protocol.CodeInternalError, 500},
		{201, strings.Repeat("x", 1<<20+1), false, protocol.CodeInternalError, 500},
	} {
		status, body = tc.status, tc.body
		receipt, replayed, perr := a.Submit(t.Context(), []byte(`{}`), "peer")
		if perr == nil {
			if tc.code != "" || string(receipt) != tc.body || replayed != tc.replayed {
				t.Errorf("%d %.40s: receipt %.40s replayed %v", tc.status, tc.body, receipt, replayed)
			}
			continue
		}
		if perr.Code != tc.code || perr.HTTPStatus() != tc.answered {
			t.Errorf("%d %.40s: %v, status %d", tc.status, tc.body, perr, perr.HTTPStatus())
		}
	}
	remote.Close()
	if _, _, perr := a.Submit(t.Context(), []byte(`{}`), "peer"); perr == nil || perr.Code != protocol.CodeInternalError || !perr.Retryable {
		t.Errorf("Authority down: %v", perr)
	}
}

// Every route that a credential protects refuses a stranger, whatever else the
// request says.
func TestNoRouteAnswersAStranger(t *testing.T) {
	t.Parallel()
	s := newServer(t, &authority{})
	public := []string{"/v1/access/challenge", "/v1/access/token", "/v1/commands"}
	for _, route := range s.routes {
		if slices.Contains(public, route.Pattern) {
			continue
		}
		path := strings.NewReplacer("{agentId}", "urn:x:a", "{keyId}", "urn:x:k").Replace(route.Pattern)
		if strings.Contains(path, "{") {
			t.Fatalf("unknown parameter in %s", route.Pattern)
		}
		for _, token := range []string{"", "garbage"} {
			if got := s.call(t, route.Method, path+"?nonsense=1", token, []byte(`{}`)); got.status != 401 || got.code() != "AUTH_REQUIRED" {
				t.Errorf("%s %s with token %q: %d %s", route.Method, route.Pattern, token, got.status, got.body)
			}
		}
	}
}

func TestAccessBodiesAreChecked(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	for path, bodies := range map[string][]string{
		"/v1/access/challenge": {
			`{}`, `{"principal":{"type":"robot","id":"urn:x:y"},"keyId":"urn:x:k","clientNonce":"AAAA"}`,
			`{"principal":{"type":"human","id":"urn:x:y"},"keyId":"urn:x:k","clientNonce":"+"}`,
			`{"principal":{"type":"human","id":"urn:x:y"},"keyId":"urn:x:k","clientNonce":"AAAA","x":1}`,
		},
		"/v1/access/token": {`{}`, `{"challenge":"AAAA","challengeSignature":"AAAA","keyId":"k"}`, `[]`},
	} {
		for _, body := range bodies {
			if got := s.call(t, "POST", path, "", []byte(body)); got.status != 400 || got.code() != "SCHEMA_VALIDATION_FAILED" {
				t.Errorf("%s %s: %d %s", path, body, got.status, got.body)
			}
		}
	}
	got := s.call(t, "POST", "/v1/access/token", "", []byte(`{"challenge":"AAAA","challengeSignature":"AAAA","keyId":"urn:x:k"}`))
	if got.status != 401 || got.code() != "AUTH_INVALID_SIGNATURE" {
		t.Errorf("no challenge: %d %s", got.status, got.body)
	}
	if got := s.call(t, "POST", "/v1/access/challenge", "", bytes.Repeat([]byte(" "), 40<<10)); got.status != 413 {
		t.Errorf("large body: %d", got.status)
	}
}
