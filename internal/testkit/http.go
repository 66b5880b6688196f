package testkit

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Answer is an HTTP answer that was read whole.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Value is the body as JSON.
func (a Answer) Value(t testing.TB) strictjson.Value {
	t.Helper()
	doc, err := strictjson.Parse(a.Body)
	if err != nil {
		t.Fatalf("the body is not strict JSON (%v): %s", err, a.Body)
	}
	return doc.Root()
}

// Refused checks that the answer is the error object of a code, complete as
// error.schema wants it.
func (a Answer) Refused(t testing.TB, status int, code client.Code) strictjson.Value {
	t.Helper()
	if a.Status != status {
		t.Errorf("status %d, want %d: %s", a.Status, status, a.Body)
	}
	v := a.Value(t)
	if fault := protocol.Validate(protocol.KindError, v); fault != nil {
		t.Errorf("not an error object: %v in %s", fault, a.Body)
	}
	if got := v.Member("code").Str(); got != string(code) {
		t.Errorf("code %s, want %s: %s", got, code, a.Body)
	}
	if got := a.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q of an error", got)
	}
	if a.Header.Get("X-Request-Id") == "" {
		t.Error("no X-Request-Id")
	}
	return v
}

// Request is one HTTP request. Token is a bearer credential, "" for none.
type Request struct {
	Method, URL, Token string
	Body               []byte
	Header             map[string]string
}

// Do sends a request and holds the answer against the contract. A body without a
// Content-Type header is JSON.
func (s *Stack) Do(r Request) Answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), r.Method, r.URL, bytes.NewReader(r.Body))
	if err != nil {
		s.t.Fatal(err)
	}
	if r.Body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.Token != "" {
		req.Header.Set("Authorization", "Bearer "+r.Token)
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	res, err := plain.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	answer := Answer{res.StatusCode, res.Header, body}
	contract, err := ReadContract()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := contract.Check(r.Method, req.URL.EscapedPath(), answer); err != nil {
		s.t.Error(err)
	}
	return answer
}

// plain keeps no connections, so that none of them looks like a leak.
var plain = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// Get reads a path of the Authority with a reader's access token.
func (s *Stack) Get(reader *client.Client, path string) Answer {
	s.t.Helper()
	return s.Do(Request{Method: http.MethodGet, URL: s.AuthorityURL + path, Token: s.Token(reader)})
}

// Token is an access token of a Principal.
func (s *Stack) Token(c *client.Client) string {
	s.t.Helper()
	token, err := c.AccessToken(s.t.Context())
	if err != nil {
		s.t.Fatalf("access token of %s: %v", c.Principal().ID, err)
	}
	return token
}

// Post sends a Command's bytes.
func (s *Stack) Post(command []byte) Answer {
	s.t.Helper()
	return s.Do(Request{Method: http.MethodPost, URL: s.AuthorityURL + "/v1/commands", Body: command})
}

// Sign signs a Command.
func (s *Stack) Sign(c *client.Client, cmd client.Command, payload any) []byte {
	s.t.Helper()
	signed, err := c.Sign(cmd, payload)
	if err != nil {
		s.t.Fatal(err)
	}
	return signed.Bytes
}
