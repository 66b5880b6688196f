// Package client is the Go client of a MissionWeave server: it signs and posts
// Commands, follows the Events of a Group from a Cursor, opens Agent sessions
// over WebSocket, registers Agents and keys, and moves Artifact content.
//
// The hazards it takes off its user are those of a network in front of an
// event-sourced server: a Command whose answer was lost is sent again as the
// identical bytes (so it cannot act twice), a broken connection resumes at the
// last Event that was handed over (so none is lost or repeated), and a
// challenge is checked before it is signed (so that a false server cannot
// obtain a signature over something else).
//
// A Client speaks for one Principal. Everything that takes a context ends when
// that context does.
package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Endpoints are the base URLs of the services, without a trailing slash.
// WebSocketURL is the full URL of the WebSocket binding.
type Endpoints struct {
	AuthorityURL string
	RegistryURL  string
	AuthzURL     string
	WebSocketURL string
}

// Options configures a Client. Only Endpoints and Identity are required.
type Options struct {
	Endpoints
	Identity Identity
	// RootCAs verifies the services' certificates; nil uses the system's.
	RootCAs *x509.CertPool
	// Retry bounds how one request is repeated; the zero value is DefaultRetry.
	Retry Retry
	Log   *slog.Logger
	// Now is the clock of signed times; nil is time.Now.
	Now func() time.Time
}

// Retry is exponential backoff with full jitter.
type Retry struct {
	First time.Duration
	Most  time.Duration
}

// DefaultRetry starts at 100 ms and never waits longer than 5 s.
var DefaultRetry = Retry{First: 100 * time.Millisecond, Most: 5 * time.Second}

// wait is the pause before attempt n (0-based): a random part of the doubled
// first pause, so that clients that failed together do not return together.
func (r Retry) wait(attempt int) time.Duration {
	ceiling := r.Most
	if attempt < 20 {
		ceiling = min(r.Most, r.First<<attempt)
	}
	return time.Duration(rand.Int64N(int64(ceiling) + 1))
}

// Client speaks to one server for one Principal. It is safe for concurrent use.
type Client struct {
	opt  Options
	http *http.Client
	tls  *tls.Config

	mu     sync.Mutex
	access accessToken
}

// New makes a Client. It does not connect.
func New(opt Options) (*Client, error) {
	if opt.AuthorityURL == "" {
		return nil, errors.New("client: no authority URL")
	}
	if err := opt.Identity.check(); err != nil {
		return nil, err
	}
	if opt.Retry == (Retry{}) {
		opt.Retry = DefaultRetry
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: opt.RootCAs}
	transport := &http.Transport{
		TLSClientConfig:       config,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   16,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 60 * time.Second,
	}
	return &Client{opt: opt, http: &http.Client{Transport: transport}, tls: config}, nil
}

// Principal is whom the Client speaks for.
func (c *Client) Principal() Actor { return c.opt.Identity.Principal }

// Identity is the Principal with its signing key.
func (c *Client) Identity() Identity { return c.opt.Identity }

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Probe asks once whether the Authority answers at all.
func (c *Client) Probe(ctx context.Context) error {
	_, err := c.do(ctx, call{method: http.MethodGet, url: c.opt.AuthorityURL + "/openapi.yaml"})
	return err
}

// maxAnswer bounds how much of an answer is read into memory.
const maxAnswer = 64 << 20

// answer is a complete HTTP answer.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// call is one request that may be repeated: body is kept as bytes.
type call struct {
	method, url, contentType, bearer string
	body                             []byte
}

// do sends a request once. An error status becomes *Error.
func (c *Client) do(ctx context.Context, r call) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, r.url, strings.NewReader(string(r.body)))
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if r.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+r.bearer)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, &unreachable{err}
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return nil, &unreachable{err}
	}
	if len(body) > maxAnswer {
		return nil, errors.New("client: the answer is too large")
	}
	if res.StatusCode >= 400 {
		return nil, refusal(res, body)
	}
	return &answer{status: res.StatusCode, header: res.Header, body: body}, nil
}

// again reports whether the identical request may be sent once more, and how
// long the server asked to wait.
func again(err error) (time.Duration, bool) {
	if _, ok := errors.AsType[*unreachable](err); ok {
		return 0, true
	}
	e, ok := errors.AsType[*Error](err)
	if !ok || !e.Retryable {
		return 0, false
	}
	if e.RetryAfterMs != nil {
		return time.Duration(*e.RetryAfterMs) * time.Millisecond, true
	}
	return 0, true
}

// repeat calls once until it succeeds, fails for good, or ctx ends; the last
// error is then returned beside the context's.
func (c *Client) repeat(ctx context.Context, once func() (*answer, error)) (*answer, error) {
	for attempt := 0; ; attempt++ {
		a, err := once()
		if err == nil {
			return a, nil
		}
		asked, ok := again(err)
		if !ok {
			return nil, err
		}
		if sleepErr := sleep(ctx, max(asked, c.opt.Retry.wait(attempt))); sleepErr != nil {
			return nil, errors.Join(sleepErr, err)
		}
		c.opt.Log.DebugContext(ctx, "sending again", "attempt", attempt+1, "after", err)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// unreachable is a request whose fate is unknown: it may have been executed.
type unreachable struct{ err error }

func (u *unreachable) Error() string { return "client: no answer: " + u.err.Error() }
func (u *unreachable) Unwrap() error { return u.err }

// refusal reads the protocol error object of an answer.
func refusal(res *http.Response, body []byte) error {
	e, err := readError(body)
	if err != nil {
		if res.StatusCode >= 500 {
			return &unreachable{fmt.Errorf("status %d without an error object", res.StatusCode)}
		}
		return fmt.Errorf("client: status %d without an error object", res.StatusCode)
	}
	e.Status = res.StatusCode
	return e
}

// readError reads a protocol error object.
func readError(b []byte) (*Error, error) {
	doc, err := strictjson.Parse(b)
	if err != nil {
		return nil, err
	}
	e := new(Error)
	if err := e.DecodeJSON(doc.Root()); err != nil {
		return nil, err
	}
	if e.Code == "" {
		return nil, errors.New("no error code")
	}
	return e, nil
}
