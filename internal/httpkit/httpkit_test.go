package httpkit_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/sessions"
)

// oneToken accepts the credential "good" and calls "fenced" stale.
type oneToken struct{}

func (oneToken) Authenticate(_ context.Context, bearer string) (sessions.Identity, *protocol.Error) {
	switch bearer {
	case "good":
		return sessions.Identity{Principal: protocol.Actor{Type: protocol.ActorHuman, ID: "urn:x:human"}}, nil
	case "fenced":
		return sessions.Identity{}, protocol.NewError(protocol.CodeAuthStaleSession, "")
	}
	return sessions.Identity{}, protocol.NewError(protocol.CodeAuthRequired, "")
}

func newRouter(t *testing.T, opt httpkit.Options, routes ...httpkit.Route) *httptest.Server {
	t.Helper()
	opt.Service = "test"
	if opt.Auth == nil {
		opt.Auth = oneToken{}
	}
	rt := httpkit.NewRouter(opt)
	rt.Add(routes...)
	srv := httptest.NewServer(rt)
	t.Cleanup(srv.Close)
	return srv
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) code(t *testing.T) string {
	t.Helper()
	var e struct {
		Code, Message, OccurredAt string
		Retryable                 *bool
	}
	if err := json.Unmarshal(a.body, &e); err != nil {
		t.Fatalf("error body %q: %v", a.body, err)
	}
	if e.Message == "" || e.OccurredAt == "" || e.Retryable == nil {
		t.Errorf("error object lacks a required member: %s", a.body)
	}
	return e.Code
}

func do(t *testing.T, req *http.Request) answer {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Header.Get(httpkit.RequestIDHeader) == "" {
		t.Errorf("%s %s: no %s", req.Method, req.URL, httpkit.RequestIDHeader)
	}
	return answer{resp.StatusCode, resp.Header, body}
}

func request(t *testing.T, method, url, body string, header ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

func TestPathIDsAreRoutedEscapedAndUnescapedOnce(t *testing.T) {
	srv := newRouter(t, httpkit.Options{},
		httpkit.Route{Method: "GET", Pattern: "/v1/keys/{keyId}", Auth: httpkit.Public, Handler: func(c *httpkit.Call) error {
			id, err := c.ParamID("keyId")
			if err != nil {
				return err
			}
			return c.SendValue(200, map[string]string{"id": id})
		}},
		httpkit.Route{Method: "GET", Pattern: "/v1/keys/{keyId}/parts/{part}", Auth: httpkit.Public, Handler: func(c *httpkit.Call) error {
			id, _ := c.ParamID("keyId")
			part, _ := c.Param("part")
			return c.SendValue(200, map[string]string{"id": id, "part": part})
		}})
	for _, tc := range []struct{ path, want string }{
		{"/v1/keys/urn%3Auuid%3A1", `{"id":"urn:uuid:1"}`},
		{"/v1/keys/urn:uuid:1", `{"id":"urn:uuid:1"}`},
		{"/v1/keys/https%3A%2F%2Fa.example%2Fk%2F1", `{"id":"https://a.example/k/1"}`},
		{"/v1/keys/https%3A%2F%2Fa.example%2Fk/parts/x", `{"id":"https://a.example/k","part":"x"}`},
		{"/v1/keys/https%3A%2F%2Fa.example%2F%252F", `{"id":"https://a.example/%2F"}`},
		{"/v1/keys/urn:x:%2541", `{"id":"urn:x:%41"}`},
	} {
		if got := do(t, request(t, "GET", srv.URL+tc.path, "")); got.status != 200 || string(got.body) != tc.want {
			t.Errorf("%s: %d %s, want %s", tc.path, got.status, got.body, tc.want)
		}
	}
	for _, path := range []string{"/v1/keys/no-scheme", "/v1/keys/urn%3A%C3%A4", "/v1/keys/urn%3Ax%0A"} {
		got := do(t, request(t, "GET", srv.URL+path, ""))
		if got.status != 400 || got.code(t) != "SCHEMA_VALIDATION_FAILED" {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

func TestUnknownRouteAndMethodAreProtocolViolations(t *testing.T) {
	srv := newRouter(t, httpkit.Options{}, httpkit.Route{
		Method: "POST", Pattern: "/v1/things", Auth: httpkit.Public,
		Handler: func(c *httpkit.Call) error { return c.Send(200, []byte("{}")) },
	})
	got := do(t, request(t, "GET", srv.URL+"/v1/other", ""))
	if got.status != 404 || got.code(t) != "PROTOCOL_VIOLATION" {
		t.Errorf("unknown route: %d %s", got.status, got.body)
	}
	got = do(t, request(t, "GET", srv.URL+"/v1/things", ""))
	if got.status != 405 || got.code(t) != "PROTOCOL_VIOLATION" || got.header.Get("Allow") != "POST" {
		t.Errorf("method: %d %q %s", got.status, got.header.Get("Allow"), got.body)
	}
}

func TestBearerIsRequiredUnlessTheRouteIsPublic(t *testing.T) {
	var denied []string
	srv := newRouter(t, httpkit.Options{Denied: func(_ string, e *protocol.Error) { denied = append(denied, string(e.Code)) }},
		httpkit.Route{Method: "GET", Pattern: "/v1/me", Query: []string{"x"}, Handler: func(c *httpkit.Call) error {
			return c.SendValue(200, map[string]string{"id": c.Caller.Principal.ID})
		}})
	for _, tc := range []struct {
		name, authorization string
		status              int
		code                string
	}{
		{"none", "", 401, "AUTH_REQUIRED"},
		{"other scheme", "Basic Z29vZA==", 401, "AUTH_REQUIRED"},
		{"empty", "Bearer ", 401, "AUTH_REQUIRED"},
		{"two words", "Bearer good good", 401, "AUTH_REQUIRED"},
		{"unknown", "Bearer bad", 401, "AUTH_REQUIRED"},
		{"fenced session", "Bearer fenced", 409, "AUTH_STALE_SESSION"},
	} {
		req := request(t, "GET", srv.URL+"/v1/me?nonsense=1", "")
		if tc.authorization != "" {
			req.Header.Set("Authorization", tc.authorization)
		}
		if got := do(t, req); got.status != tc.status || got.code(t) != tc.code {
			t.Errorf("%s: %d %s", tc.name, got.status, got.body)
		}
	}
	got := do(t, request(t, "GET", srv.URL+"/v1/me", "", "Authorization", "bearer good"))
	if got.status != 200 || string(got.body) != `{"id":"urn:x:human"}` {
		t.Errorf("good credential: %d %s", got.status, got.body)
	}
	if want := []string{"AUTH_REQUIRED", "AUTH_REQUIRED", "AUTH_REQUIRED", "AUTH_REQUIRED", "AUTH_REQUIRED"}; !cmp.Equal(denied, want) {
		t.Errorf("denials heard of: %v", denied)
	}
}

func TestAnOptionalCredentialOnlyEverAdds(t *testing.T) {
	srv := newRouter(t, httpkit.Options{MaxBodyBytes: 4}, httpkit.Route{
		Method: "POST", Pattern: "/v1/commands", Auth: httpkit.Optional, Handler: func(c *httpkit.Call) error {
			if c.Caller.Principal.ID != "" {
				c.AllowBody(8)
			}
			body, err := c.Body()
			if err != nil {
				return err
			}
			return c.Send(200, body)
		},
	})
	for _, tc := range []struct {
		authorization, body string
		status              int
	}{
		{"", "1234", 200},
		{"", "12345", 413},
		{"Bearer bad", "1234", 200},
		{"Bearer fenced", "12345", 413},
		{"Bearer good", "12345678", 200},
		{"Bearer good", "123456789", 413},
	} {
		req := request(t, "POST", srv.URL+"/v1/commands", tc.body)
		if tc.authorization != "" {
			req.Header.Set("Authorization", tc.authorization)
		}
		if got := do(t, req); got.status != tc.status {
			t.Errorf("%q with %d bytes: %d", tc.authorization, len(tc.body), got.status)
		}
	}
}

func TestQueryParametersAreStrict(t *testing.T) {
	srv := newRouter(t, httpkit.Options{}, httpkit.Route{
		Method: "GET", Pattern: "/v1/list", Auth: httpkit.Public, Query: []string{"limit", "after", "state"},
		Handler: func(c *httpkit.Call) error {
			page, err := c.Query.Page(2)
			if err != nil {
				return err
			}
			if _, _, err := c.Query.OneOf("state", "open", "closed"); err != nil {
				return err
			}
			return c.SendValue(200, map[string]any{"limit": int64(page.Limit), "after": page.After})
		},
	})
	cursor := httpkit.Cursor("a:b", "")
	for _, tc := range []struct {
		query, want string
	}{
		{"", `{"after":[],"limit":100}`},
		{"?limit=1000", `{"after":[],"limit":1000}`},
		{"?state=open", `{"after":[],"limit":100}`},
		{"?after=" + cursor, `{"after":["a:b",""],"limit":100}`},
	} {
		if got := do(t, request(t, "GET", srv.URL+"/v1/list"+tc.query, "")); got.status != 200 || string(got.body) != tc.want {
			t.Errorf("%q: %d %s", tc.query, got.status, got.body)
		}
	}
	for _, query := range []string{
		"?limit=0", "?limit=1001", "?limit=-1", "?limit=+1", "?limit=01", "?limit=", "?limit=1.0", "?limit=99999999999999999999",
		"?unknown=1", "?limit=1&limit=1", "?state=other", "?state=", "?after=", "?after=%21", "?after=" + httpkit.Cursor("one"),
		"?after=" + cursor + "A", "?after=" + httpkit.Cursor("a", "\x00"), "?after=" + httpkit.Cursor("\xff", "b"), "?a;b", "?limit=%zz", "?Limit=1",
	} {
		if got := do(t, request(t, "GET", srv.URL+"/v1/list"+query, "")); got.status != 400 || got.code(t) != "SCHEMA_VALIDATION_FAILED" {
			t.Errorf("%q: %d %s", query, got.status, got.body)
		}
	}
}

func TestBodiesAreBoundedTypedAndStrict(t *testing.T) {
	thing := shape.Object(shape.Req("name", shape.Text(5)))
	srv := newRouter(t, httpkit.Options{MaxBodyBytes: 64}, httpkit.Route{
		Method: "POST", Pattern: "/v1/things", Auth: httpkit.Public,
		Handler: func(c *httpkit.Call) error {
			doc, err := c.JSON(thing)
			if err != nil {
				return err
			}
			return c.Send(201, doc.Bytes())
		},
	})
	url := srv.URL + "/v1/things"
	for _, tc := range []struct {
		name string
		req  *http.Request
		want int
		code string
	}{
		{"not JSON", request(t, "POST", url, `{"name":`), 400, "PROTOCOL_VIOLATION"},
		{"duplicate member", request(t, "POST", url, `{"name":"a","name":"b"}`), 400, "PROTOCOL_VIOLATION"},
		{"lone surrogate", request(t, "POST", url, `{"name":"\ud800"}`), 400, "PROTOCOL_VIOLATION"},
		{"unknown member", request(t, "POST", url, `{"name":"a","x":1}`), 400, "SCHEMA_VALIDATION_FAILED"},
		{"missing member", request(t, "POST", url, `{}`), 400, "SCHEMA_VALIDATION_FAILED"},
		{"too large", request(t, "POST", url, `{"name":"`+strings.Repeat("a", 80)+`"}`), 413, "PROTOCOL_VIOLATION"},
		{"no media type", request(t, "POST", url, `{"name":"a"}`, "Content-Type", ""), 415, "PROTOCOL_VIOLATION"},
		{"other media type", request(t, "POST", url, `{"name":"a"}`, "Content-Type", "text/plain"), 415, "PROTOCOL_VIOLATION"},
		{"other charset", request(t, "POST", url, `{"name":"a"}`, "Content-Type", "application/json; charset=latin1"), 415, "PROTOCOL_VIOLATION"},
		{"compressed", request(t, "POST", url, `{"name":"a"}`, "Content-Encoding", "gzip"), 415, "PROTOCOL_VIOLATION"},
	} {
		if got := do(t, tc.req); got.status != tc.want || got.code(t) != tc.code {
			t.Errorf("%s: %d %s", tc.name, got.status, got.body)
		}
	}
	// Without a length the limit has to bite while reading.
	req := request(t, "POST", url, "x")
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(bytes.Repeat([]byte(" "), 1000))), -1
	if got := do(t, req); got.status != 413 {
		t.Errorf("chunked: %d %s", got.status, got.body)
	}
	got := do(t, request(t, "POST", url, `{"name":"a"}`, "Content-Type", "application/json; charset=Utf-8"))
	if got.status != 201 || string(got.body) != `{"name":"a"}` {
		t.Errorf("good body: %d %s", got.status, got.body)
	}
}

// A database refuses NUL and what is not UTF-8, as a fault of ours.
func TestParametersAreText(t *testing.T) {
	srv := newRouter(t, httpkit.Options{}, httpkit.Route{
		Method: "GET", Pattern: "/things/{name}", Auth: httpkit.Public, Query: []string{"kind"},
		Handler: func(c *httpkit.Call) error {
			name, err := c.Param("name")
			if err != nil {
				return err
			}
			return c.SendValue(200, name)
		},
	})
	for path, want := range map[string]int{
		"/things/k": 200, "/things/%E2%82%AC?kind=%E2%82%AC": 200,
		"/things/k%00": 400, "/things/k%ff": 400, "/things/k?kind=%00": 400, "/things/k?kind=%ff": 400,
	} {
		got := do(t, request(t, "GET", srv.URL+path, ""))
		if got.status != want || want == 400 && got.code(t) != "SCHEMA_VALIDATION_FAILED" {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

// A refusal comes before the body is read, and net/http then waits for the body
// that was announced: a stranger must not hold a connection that way.
func TestAnnouncedBodiesThatNeverComeHoldNoConnection(t *testing.T) {
	stream := httpkit.Route{Method: "PUT", Pattern: "/stream", Stream: true, ContentType: "*", Handler: func(*httpkit.Call) error {
		return httpkit.NotFound()
	}}
	srv := newRouter(t, httpkit.Options{RequestTimeout: 200 * time.Millisecond}, stream,
		httpkit.Route{Method: "GET", Pattern: "/closed", Handler: func(c *httpkit.Call) error { return c.SendValue(200, 1) }})
	for _, tc := range []struct{ request, want string }{
		{"POST /nothing HTTP/1.1\r\n", "404"},
		{"DELETE /closed HTTP/1.1\r\n", "405"},
		{"GET /closed HTTP/1.1\r\n", "401"},
		{"PUT /stream HTTP/1.1\r\n", "401"},
		{"PUT /stream HTTP/1.1\r\nAuthorization: Bearer good\r\n", "404"},
	} {
		t.Run(tc.want+" "+tc.request[:8], func(t *testing.T) {
			t.Parallel()
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if _, err := io.WriteString(conn, tc.request+"Host: x\r\nContent-Length: 100\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			got, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 "+tc.want) {
				t.Errorf("%q: %v", got, err)
			}
		})
	}
}

// A refusal that comes before a large body is read must arrive, and not as a
// reset of the connection that the client still writes to.
func TestRefusalsOfLargeBodiesArrive(t *testing.T) {
	srv := newRouter(t, httpkit.Options{}, httpkit.Route{
		Method: "POST", Pattern: "/small", Auth: httpkit.Public, MaxBodyBytes: 1 << 10, ContentType: "*",
		Handler: func(c *httpkit.Call) error {
			_, err := c.Body()
			return err
		},
	})
	const size = 6 << 20 // more than sockets buffer
	for _, tc := range []struct{ name, head, want string }{
		{"too large", "POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 6291456\r\n\r\n", "413"},
		{"unknown route", "POST /other HTTP/1.1\r\nHost: x\r\nContent-Length: 6291456\r\n\r\n", "404"},
		{"chunked", "POST /small HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n600000\r\n", "413"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			// A client that writes everything before it reads.
			if _, err := conn.Write(append([]byte(tc.head), make([]byte, size)...)); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(tc.head, "chunked") {
				if _, err := io.WriteString(conn, "\r\n0\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
			}
			got := make([]byte, len("HTTP/1.1 413"))
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != "HTTP/1.1 "+tc.want {
				t.Errorf("%q: %v", got, err)
			}
		})
	}
}

// A client that never reads its answers is cut off.
func TestAnswersThatNobodyReadsHoldNoConnection(t *testing.T) {
	const size = 32 << 20 // more than sockets buffer
	ended := make(chan struct{})
	srv := newRouter(t, httpkit.Options{RequestTimeout: 100 * time.Millisecond}, httpkit.Route{
		Method: "GET", Pattern: "/large", Auth: httpkit.Public,
		Handler: func(c *httpkit.Call) error {
			defer close(ended)
			return c.SendAs(200, "text/plain", make([]byte, size))
		},
	})
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the handler still waits for its client")
	}
}

func TestNothingInternalReachesTheWire(t *testing.T) {
	srv := newRouter(t, httpkit.Options{},
		httpkit.Route{Method: "GET", Pattern: "/err", Auth: httpkit.Public, Handler: func(*httpkit.Call) error {
			return errors.New("secret dsn")
		}},
		httpkit.Route{Method: "GET", Pattern: "/panic", Auth: httpkit.Public, Handler: func(*httpkit.Call) error {
			panic("secret dsn")
		}},
		httpkit.Route{Method: "GET", Pattern: "/refusal", Auth: httpkit.Public, Handler: func(*httpkit.Call) error {
			return protocol.NewError(protocol.CodeAuthInvalidSignature, "unknown_key").WithCause(errors.New("secret dsn"))
		}})
	for path, want := range map[string]string{"/err": "INTERNAL_ERROR", "/panic": "INTERNAL_ERROR", "/refusal": "AUTH_INVALID_SIGNATURE"} {
		got := do(t, request(t, "GET", srv.URL+path, ""))
		if got.code(t) != want || bytes.Contains(got.body, []byte("secret")) || bytes.Contains(got.body, []byte("unknown_key")) {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

func TestRateLimitIsPerPeerAndSaysWhenToComeBack(t *testing.T) {
	now := time.Unix(1000, 0)
	limiter := httpkit.NewPeerLimiter("peer_requests", 60, 2, func() time.Time { return now })
	for range 2 {
		if err := limiter.Check("a"); err != nil {
			t.Fatal(err)
		}
	}
	err := limiter.Check("a")
	var perr *protocol.Error
	if !errors.As(err, &perr) || perr.Code != protocol.CodeRateLimited || *perr.RetryAfterMs != 1000 || !perr.Retryable {
		t.Fatalf("third call: %v", err)
	}
	if err := limiter.Check("b"); err != nil {
		t.Errorf("another peer is held up: %v", err)
	}
	now = now.Add(time.Second)
	if err := limiter.Check("a"); err != nil {
		t.Errorf("after the wait: %v", err)
	}
	if httpkit.NewPeerLimiter("off", 0, 1, nil).Check("a") != nil {
		t.Error("a limit of 0 limits")
	}

	srv := newRouter(t, httpkit.Options{Limiter: httpkit.NewPeerLimiter("peer_requests", 6, 1, nil)}, httpkit.Route{
		Method: "GET", Pattern: "/x", Auth: httpkit.Public, Handler: func(c *httpkit.Call) error { return c.Send(200, []byte("{}")) },
	})
	do(t, request(t, "GET", srv.URL+"/x", ""))
	got := do(t, request(t, "GET", srv.URL+"/x", ""))
	seconds, _ := strconv.Atoi(got.header.Get("Retry-After"))
	if !strings.Contains(string(got.body), `"limit":`) || !strings.Contains(string(got.body), `"policyName":`) {
		t.Errorf("the limit is not named: %s", got.body)
	}
	if got.status != 429 || got.code(t) != "RATE_LIMITED" || seconds < 9 || seconds > 10 {
		t.Errorf("limited: %d Retry-After %q %s", got.status, got.header.Get("Retry-After"), got.body)
	}
}

func TestPeerLimiterForgetsTheQuietestPeer(t *testing.T) {
	now := time.Unix(1000, 0)
	limiter := httpkit.NewPeerLimiter("peer_requests", 1, 1, func() time.Time { return now })
	for i := range httpkit.MaxPeers + 10 {
		if err := limiter.Check("peer-" + strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := limiter.Check("peer-0"); err != nil {
		t.Errorf("the first peer is still remembered: %v", err)
	}
	if err := limiter.Check("peer-" + strconv.Itoa(httpkit.MaxPeers+9)); err == nil {
		t.Error("the last peer is forgotten")
	}
}

func TestForwardedHeaderIsBelievedFromTrustedProxiesOnly(t *testing.T) {
	resolver := httpkit.PeerResolver{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	for _, tc := range []struct{ remote, forwarded, want string }{
		{"192.0.2.1:1", "", "192.0.2.1"},
		{"192.0.2.1:1", "198.51.100.7", "192.0.2.1"},
		{"10.1.1.1:1", "198.51.100.7", "198.51.100.7"},
		{"10.1.1.1:1", "203.0.113.9, 198.51.100.7", "198.51.100.7"},
		{"10.1.1.1:1", "198.51.100.7, 10.2.2.2", "198.51.100.7"},
		{"10.1.1.1:1", "nonsense", "10.1.1.1"},
		{"[2001:db8:1:2:3::4]:1", "", "2001:db8:1:2::/64"},
		{"[::ffff:192.0.2.1]:1", "", "192.0.2.1"},
		{"@", "", "local"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = tc.remote
		if tc.forwarded != "" {
			r.Header.Set("X-Forwarded-For", tc.forwarded)
		}
		if got := resolver.Peer(r); got != tc.want {
			t.Errorf("%s via %q: %q, want %q", tc.remote, tc.forwarded, got, tc.want)
		}
	}
}

func TestListsAreItemsAsStoredAndNext(t *testing.T) {
	srv := newRouter(t, httpkit.Options{}, httpkit.Route{
		Method: "GET", Pattern: "/l", Auth: httpkit.Public,
		Handler: func(c *httpkit.Call) error {
			return c.SendList([][]byte{[]byte(`{"b" :1}`), []byte(`2`)}, "abc")
		},
	}, httpkit.Route{
		Method: "GET", Pattern: "/e", Auth: httpkit.Public,
		Handler: func(c *httpkit.Call) error { return c.SendList(nil, "") },
	})
	if got := do(t, request(t, "GET", srv.URL+"/l", "")); string(got.body) != `{"items":[{"b" :1},2],"next":"abc"}` {
		t.Errorf("list: %s", got.body)
	}
	if got := do(t, request(t, "GET", srv.URL+"/e", "")); string(got.body) != `{"items":[]}` {
		t.Errorf("empty list: %s", got.body)
	}
}

func TestReadinessNamesWhatFailedAndToleratesDegraded(t *testing.T) {
	var database, nats error
	m := httpkit.NewManagement(prometheus.NewRegistry(),
		httpkit.Check{Name: "database", Probe: func(context.Context) error { return database }},
		httpkit.Check{Name: "nats", Degraded: true, Probe: func(context.Context) error { return nats }})
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		m.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	expect := func(path string, status int, body string) {
		t.Helper()
		if gotStatus, gotBody := get(path); gotStatus != status || gotBody != body {
			t.Errorf("%s: %d %q, want %d %q", path, gotStatus, gotBody, status, body)
		}
	}
	expect("/livez", 200, "ok\n")
	expect("/startupz", 503, "failed: starting\n")
	expect("/readyz", 503, "failed: starting\n")
	m.Started()
	expect("/startupz", 200, "ok\n")
	expect("/readyz", 200, "ok\n")
	nats = errors.New("no route to 10.0.0.1")
	expect("/readyz", 200, "ok\ndegraded: nats\n")
	database = errors.New("password wrong")
	expect("/readyz", 503, "failed: database\ndegraded: nats\n")
	database, nats = nil, nil
	m.Draining()
	expect("/readyz", 503, "failed: draining\n")
	if status, _ := get("/metrics"); status != 200 {
		t.Errorf("/metrics: %d", status)
	}
	if status, _ := get("/debug/pprof/"); status != 200 {
		t.Errorf("/debug/pprof/: %d", status)
	}
}

func TestServerFinishesRequestsBeforeItEnds(t *testing.T) {
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	inside, release := make(chan struct{}), make(chan struct{})
	drained := make(chan struct{})
	srv := httpkit.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(inside)
		<-release
		_, _ = io.WriteString(w, "done")
	}), nil, 10*time.Second, nil)
	srv.OnDrain(func() { close(drained) })
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	answered := make(chan string, 1)
	go func() {
		resp, err := http.DefaultClient.Do(request(t, "GET", "http://"+ln.Addr().String(), ""))
		if err != nil {
			answered <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		answered <- string(b)
	}()
	<-inside
	cancel()
	<-drained
	close(release)
	if got := <-answered; got != "done" {
		t.Errorf("request in flight at the end: %q", got)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}

	config := &tls.Config{MinVersion: tls.VersionTLS12}
	httpkit.NewServer(http.NotFoundHandler(), config, time.Second, nil)
	if config.MinVersion != tls.VersionTLS12 {
		t.Error("the caller's TLS configuration was changed")
	}
}
