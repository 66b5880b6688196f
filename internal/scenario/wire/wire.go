// Package wire is a place between one client and the server where the network
// misbehaves: Events and Commands are delivered twice, connections break, a
// resume asks for Events that were there before; and what passes is counted.
//
// Its hazard is to prove something about itself. It therefore changes no byte of
// an Event or a Command (only SUBSCRIBE frames, which nobody signs), compares
// what the server sends again with what it sent the first time, and reports what
// it did, not what it was told to do.
package wire

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// maxFrame bounds one WebSocket message and one Command body.
const maxFrame = 8 << 20

// Options say where the server is.
type Options struct {
	// AuthorityURL and WebSocketURL are the server's, without a trailing slash.
	AuthorityURL, WebSocketURL string
	// RootCAs verifies its certificate; nil uses the system's.
	RootCAs *x509.CertPool
}

// Manners say how the wire misbehaves. The zero value passes everything on once.
type Manners struct {
	// Events and Commands hand every EVENT frame and every COMMAND frame on twice.
	Events, Commands bool
	// Rewind makes every SUBSCRIBE of a later connection ask for so many Events
	// again that the client has already.
	Rewind int64
}

// Counts are what has passed. An Event is known by its Group and sequence.
type Counts struct {
	// Connections is how many WebSocket connections there have been.
	Connections int
	// FromServer counts EVENT frames that came, Distinct their Events, Resent those
	// that had come over an earlier connection, Altered those that came again with
	// other bytes. A Command that is sent twice may be answered twice.
	FromServer, Distinct, Resent, Altered int
	// ToClient counts the EVENT frames that were handed on.
	ToClient int
}

// Passage is what became of one Command, known by its Action ID.
type Passage struct {
	// Sent is how often its bytes were written to the server's connection.
	Sent int
	// Answered tells that the server answered: a status, its Event, or a refusal.
	Answered bool
	// Forms is how many different byte strings were sent under this Action ID.
	Forms int
}

// Wire listens on loopback until Close.
type Wire struct {
	opt    Options
	base   string
	listen net.Listener
	server *http.Server
	client *http.Client
	life   context.Context
	end    context.CancelFunc
	served sync.WaitGroup

	mu       sync.Mutex
	manners  Manners
	counts   Counts
	events   map[place]*seen
	streamed map[place]int
	commands map[string]*command
	sockets  map[int]func()
}

type place struct {
	group    string
	sequence int64
}

type seen struct {
	times      int
	connection int // the first it came over
	hash       [sha256.Size]byte
}

type command struct {
	Passage
	hashes map[[sha256.Size]byte]bool
}

// Open begins to listen.
func Open(ctx context.Context, opt Options) (*Wire, error) {
	target, err := url.Parse(opt.AuthorityURL)
	if err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: opt.RootCAs},
		MaxIdleConnsPerHost: 16,
	}
	w := &Wire{
		opt: opt, base: l.Addr().String(), listen: l, client: &http.Client{Transport: transport},
		events: map[place]*seen{}, streamed: map[place]int{}, commands: map[string]*command{}, sockets: map[int]func(){},
	}
	w.life, w.end = context.WithCancel(context.WithoutCancel(ctx))
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out = r.Out.WithContext(w.trace(r.Out.Context()))
		},
		Transport: transport, FlushInterval: -1, ModifyResponse: w.answered,
		// A client whose server is gone sees what it would see without a wire: no
		// answer.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/ws", w.socket)
	mux.HandleFunc("POST /v1/commands", func(rw http.ResponseWriter, r *http.Request) { w.post(rw, r, proxy) })
	mux.Handle("/", proxy)
	w.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	w.served.Go(func() { _ = w.server.Serve(l) })
	return w, nil
}

// AuthorityURL is what a client calls instead of the server's.
func (w *Wire) AuthorityURL() string { return "http://" + w.base }

// WebSocketURL is what a client dials instead of the server's.
func (w *Wire) WebSocketURL() string { return "ws://" + w.base + "/ws" }

// Misbehave changes the manners from now on.
func (w *Wire) Misbehave(m Manners) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.manners = m
}

// Counts are what has passed so far.
func (w *Wire) Counts() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts
}

// FromServer is how often the server has sent an Event over WebSocket, and
// Streamed how often over SSE.
func (w *Wire) FromServer(groupID string, sequence int64) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.events[place{groupID, sequence}]; e != nil {
		return e.times
	}
	return 0
}

// Streamed is how often the server has sent an Event over SSE.
func (w *Wire) Streamed(groupID string, sequence int64) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.streamed[place{groupID, sequence}]
}

// Command is what became of a Command.
func (w *Wire) Command(actionID string) Passage {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.commands[actionID]; c != nil {
		return c.Passage
	}
	return Passage{}
}

// Cut breaks every WebSocket connection without a word.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, cut := range w.sockets {
		cut()
	}
}

// Close ends everything.
func (w *Wire) Close() {
	w.end()
	w.Cut()
	_ = w.server.Close()
	w.served.Wait()
	w.client.CloseIdleConnections()
}

// actionID reads the Action ID of a signed Command.
func actionID(signed []byte) string {
	var c struct {
		ActionID string `json:"actionId"`
	}
	_ = json.Unmarshal(signed, &c)
	return c.ActionID
}

// command finds or makes what is known of a Command. The caller holds mu.
func (w *Wire) command(id string) *command {
	c := w.commands[id]
	if c == nil {
		c = &command{hashes: map[[sha256.Size]byte]bool{}}
		w.commands[id] = c
	}
	return c
}

// sent notes a Command that was written to the server's connection.
func (w *Wire) sent(signed []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.command(actionID(signed))
	c.Sent++
	c.hashes[sha256.Sum256(signed)] = true
	c.Forms = len(c.hashes)
}

// settled notes an answer, which may be there before it is known that the Command
// was written.
func (w *Wire) settled(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.command(id).Answered = true
}

// bodyKey carries a Command's bytes to where it is known that they were written.
type bodyKey struct{}

func (w *Wire) post(rw http.ResponseWriter, r *http.Request, next http.Handler) {
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxFrame))
	if err != nil {
		http.Error(rw, "the body cannot be read", http.StatusBadRequest)
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	next.ServeHTTP(rw, r)
}

func (w *Wire) trace(ctx context.Context) context.Context {
	body, ok := ctx.Value(bodyKey{}).([]byte)
	if !ok {
		return ctx
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) {
		if info.Err == nil {
			w.sent(body)
		}
	}})
}

func (w *Wire) answered(res *http.Response) error {
	if body, ok := res.Request.Context().Value(bodyKey{}).([]byte); ok {
		w.settled(actionID(body))
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		if parts := strings.Split(res.Request.URL.EscapedPath(), "/"); len(parts) > 3 {
			if group, err := url.PathUnescape(parts[3]); err == nil {
				res.Body = &stream{ReadCloser: res.Body, wire: w, group: group}
			}
		}
	}
	return nil
}

// stream counts the Events of a stream of Server-Sent Events as they pass.
type stream struct {
	io.ReadCloser
	wire  *Wire
	group string
	line  []byte
	id    int64
	data  bool
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	for _, b := range p[:n] {
		if b != '\n' {
			s.line = append(s.line, b)
			continue
		}
		s.take(string(s.line))
		s.line = s.line[:0]
	}
	return n, err //nolint:wrapcheck // passed on as it is
}

func (s *stream) take(line string) {
	switch {
	case strings.HasPrefix(line, "id:"):
		_, _ = fmt.Sscan(strings.TrimPrefix(line, "id:"), &s.id)
	case strings.HasPrefix(line, "data:"):
		s.data = true
	case line == "":
		if s.data && s.id > 0 {
			s.wire.mu.Lock()
			s.wire.streamed[place{s.group, s.id}]++
			s.wire.mu.Unlock()
		}
		s.id, s.data = 0, false
	}
}

// socket joins a client's connection with one of its own.
func (w *Wire) socket(rw http.ResponseWriter, r *http.Request) {
	header := http.Header{}
	if token := r.Header.Get("Authorization"); token != "" {
		header.Set("Authorization", token)
	}
	up, res, err := websocket.Dial(r.Context(), w.opt.WebSocketURL, &websocket.DialOptions{ //nolint:bodyclose // the library says never to close it
		HTTPClient: w.client, HTTPHeader: header,
	})
	if err != nil {
		status := http.StatusBadGateway
		if res != nil && res.StatusCode >= 400 {
			status = res.StatusCode
		}
		http.Error(rw, "the server was not reached", status)
		return
	}
	down, err := websocket.Accept(rw, r, nil)
	if err != nil {
		_ = up.CloseNow()
		return
	}
	up.SetReadLimit(maxFrame)
	down.SetReadLimit(maxFrame)
	ctx, cancel := context.WithCancel(w.life)
	defer cancel()
	w.mu.Lock()
	w.counts.Connections++
	n := w.counts.Connections
	w.sockets[n] = func() {
		_ = up.CloseNow()
		_ = down.CloseNow()
		cancel()
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.sockets, n)
		w.mu.Unlock()
	}()
	var sides sync.WaitGroup
	sides.Go(func() { pump(ctx, up, down, func(b []byte) ([][]byte, func()) { return w.fromServer(b, n) }) })
	sides.Go(func() { pump(ctx, down, up, func(b []byte) ([][]byte, func()) { return w.fromClient(b, n > 1) }) })
	sides.Wait()
}

// pump hands messages on until a side ends, and then ends the other one in the
// same way.
func pump(ctx context.Context, from, to *websocket.Conn, pass func([]byte) (out [][]byte, done func())) {
	for {
		kind, b, err := from.Read(ctx)
		if err != nil {
			if closed, ok := errors.AsType[websocket.CloseError](err); ok {
				_ = to.Close(closed.Code, closed.Reason)
			}
			_ = to.CloseNow()
			return
		}
		out, done := pass(b)
		for _, message := range out {
			if err := to.Write(ctx, kind, message); err != nil {
				_ = from.CloseNow()
				return
			}
			done()
		}
	}
}

func (w *Wire) fromServer(b []byte, connection int) (out [][]byte, done func()) {
	var f struct {
		FrameType string          `json:"frameType"`
		Event     json.RawMessage `json:"event"`
		Error     struct {
			RelatedActionID string `json:"relatedActionId"`
			Retryable       bool   `json:"retryable"`
		} `json:"error"`
	}
	if json.Unmarshal(b, &f) != nil {
		return [][]byte{b}, func() {}
	}
	if f.FrameType == "ERROR" && f.Error.RelatedActionID != "" && !f.Error.Retryable {
		w.settled(f.Error.RelatedActionID)
	}
	if f.FrameType != "EVENT" {
		return [][]byte{b}, func() {}
	}
	var e struct {
		GroupID  string `json:"groupId"`
		Sequence int64  `json:"sequence"`
		Cause    struct {
			ID string `json:"id"`
		} `json:"cause"`
	}
	_ = json.Unmarshal(f.Event, &e)
	w.settled(e.Cause.ID)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts.FromServer++
	hash := sha256.Sum256(f.Event)
	known := w.events[place{e.GroupID, e.Sequence}]
	switch {
	case known == nil:
		known = &seen{hash: hash, connection: connection}
		w.events[place{e.GroupID, e.Sequence}] = known
		w.counts.Distinct++
	case known.hash != hash:
		w.counts.Altered++
	}
	known.times++
	if known.connection < connection {
		w.counts.Resent++
	}
	out = [][]byte{b}
	if w.manners.Events {
		out = append(out, b)
	}
	return out, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.counts.ToClient++
	}
}

func (w *Wire) fromClient(b []byte, resumed bool) (out [][]byte, done func()) {
	var f map[string]json.RawMessage
	var kind string
	if json.Unmarshal(b, &f) != nil || json.Unmarshal(f["frameType"], &kind) != nil {
		return [][]byte{b}, func() {}
	}
	w.mu.Lock()
	m := w.manners
	w.mu.Unlock()
	switch {
	case kind == "COMMAND":
		out = [][]byte{b}
		if m.Commands {
			out = append(out, b)
		}
		return out, func() { w.sent(f["command"]) }
	case kind == "SUBSCRIBE" && m.Rewind > 0 && resumed:
		return [][]byte{rewound(f, b, m.Rewind)}, func() {}
	default:
		return [][]byte{b}, func() {}
	}
}

// rewound is a SUBSCRIBE frame that asks for earlier Events; one that cannot be
// read stays what it is.
func rewound(f map[string]json.RawMessage, b []byte, by int64) []byte {
	var groups []map[string]json.RawMessage
	if json.Unmarshal(f["groups"], &groups) != nil {
		return b
	}
	for _, g := range groups {
		var after int64
		if json.Unmarshal(g["afterSequence"], &after) != nil {
			return b
		}
		g["afterSequence"] = fmt.Appendf(nil, "%d", max(0, after-by))
	}
	var err error
	if f["groups"], err = json.Marshal(groups); err != nil {
		return b
	}
	changed, err := json.Marshal(f)
	if err != nil {
		return b
	}
	return changed
}
