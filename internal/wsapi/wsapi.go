// Package wsapi is the WebSocket binding of the protocol (COMMANDS.md section 8).
//
// A connection has three goroutines and one more per subscribed Group:
//
//	reader      ── frames, in order ──▶ processor ── answers ──▶ ┐
//	feed of a Group ── its Events, in order ────────────────────▶ outbox ──▶ writer
//
// Hazards, and what answers them. Client frames are handled strictly in order,
// so the processor finishes one before it takes the next, and a PING is answered
// only when what earlier frames caused has been written. A client that does not
// read must hold up nobody and cost a bounded amount: every queue of the outbox
// is bounded, a full one stops only what feeds it, and Events that do not fit
// stay in the log. A fenced session must get nothing more: closing drops what is
// queued and tells why. Nobody but the writer writes.
package wsapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/delivery"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/views"
)

// Authority runs Commands; *authority.Service is one.
type Authority interface {
	Submit(ctx context.Context, sub authority.Submission) (*authority.Result, *protocol.Error)
}

// Deps is what a Server works with. Policy gives the Command rate and the frame
// size.
type Deps struct {
	Sessions    *sessions.Service
	Connections *Connections
	Authority   Authority
	Views       *views.Views
	Store       *events.Store
	Hub         *events.Hub
	Policy      config.Policy
	Log         *slog.Logger
	Metrics     prometheus.Registerer
	Timing      Timing
	// UnauthenticatedPerPeer bounds the connections of one address that have not
	// finished their handshake, default 8 (COMMANDS.md 8.12).
	UnauthenticatedPerPeer int
	// Hellos bounds the HELLOs of one peer address; nil for no bound.
	Hellos *httpkit.PeerLimiter
	// Denied, when set, hears of every handshake that was refused.
	Denied func(peer string, err *protocol.Error)
	Now    func() time.Time
}

// Timing are the times of COMMANDS.md section 8; zero members get its values.
type Timing struct {
	// Handshake is how long the four steps may take, 30 s.
	Handshake time.Duration
	// Ping is the pause between server PINGs, 20 s; Idle is how long a client may
	// be silent, 60 s.
	Ping, Idle time.Duration
	// Watermark is the least pause between two watermarks of a Group, 1 s.
	Watermark time.Duration
	// Recheck is how often the database is asked which sessions changed: by default
	// every 5 s, and every second without NATS.
	Recheck time.Duration
	// Pause is how long a Group's buffer stays full before the client is told,
	// 250 ms: a buffer that a replay fills drains at once as a rule.
	Pause time.Duration
	// Write bounds one write to a client, 60 s.
	Write time.Duration
	// Flush bounds what a draining server still sends to a connection, 2 s.
	Flush time.Duration
}

func (t *Timing) defaults() {
	for _, d := range []struct {
		member *time.Duration
		value  time.Duration
	}{
		{&t.Handshake, 30 * time.Second},
		{&t.Ping, 20 * time.Second},
		{&t.Idle, 60 * time.Second},
		{&t.Watermark, time.Second},
		{&t.Pause, 250 * time.Millisecond},
		{&t.Write, 60 * time.Second},
		{&t.Flush, 2 * time.Second},
	} {
		if *d.member == 0 {
			*d.member = d.value
		}
	}
}

// Server answers GET /ws.
type Server struct {
	Deps
	source   delivery.Source
	metrics  *metrics
	draining chan struct{}
	running  sync.WaitGroup

	mu        sync.Mutex
	strangers map[string]int // unauthenticated connections by peer

	wheel wheel
	// extended tells that a connection goes on with the expiry of a token that this
	// process did not see: its key may end earlier.
	extended atomic.Bool

	followersMu sync.Mutex
	followers   map[*subscription]struct{}
}

// New makes a Server. Run compares its sessions with the database.
func New(d Deps) *Server {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Connections == nil {
		d.Connections = NewConnections()
	}
	if d.UnauthenticatedPerPeer == 0 {
		d.UnauthenticatedPerPeer = 8
	}
	if d.Policy.MaxBodyBytes == 0 {
		d.Policy.MaxBodyBytes = httpkit.DefaultMaxBodyBytes
	}
	d.Timing.defaults()
	s := &Server{
		Deps: d, source: delivery.Source{Log: d.Hub, Views: d.Views}, draining: make(chan struct{}),
		strangers: map[string]int{}, followers: map[*subscription]struct{}{},
	}
	s.wheel.init(s)
	s.metrics = newMetrics(d.Metrics, s)
	return s
}

// ServeHTTP upgrades a request. The connection then runs on its own: what the
// HTTP server kept for the request is given back.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.begin() {
		refuse(w, r, protocol.NewError(protocol.CodeBackpressure, "draining").WithRetryAfter(jittered(time.Second)))
		return
	}
	if r.URL.RawQuery != "" {
		s.running.Done()
		refuse(w, r, httpkit.SchemaError("", "additionalProperties"))
		return
	}
	bearer, hasBearer := httpkit.OptionalBearer(r)
	netConn, early, refusal := accept(w, r)
	if refusal != nil {
		s.running.Done()
		refuse(w, r, refusal)
		return
	}
	c := newConn(s, newWire(netConn, early, s.Policy.MaxBodyBytes), peerOf(r), httpkit.BaseURL(r.Context()))
	c.bearer, c.hasBearer = bearer, hasBearer
	s.metrics.connections.Inc()
	go func() {
		defer s.running.Done()
		defer s.metrics.connections.Dec()
		c.serve()
	}()
}

// refuse answers with the error object of all routes.
func refuse(w http.ResponseWriter, r *http.Request, refusal error) {
	if call, ok := httpkit.CallFrom(r); ok {
		call.Fail(refusal)
		return
	}
	status := http.StatusInternalServerError
	if e, ok := errors.AsType[*protocol.Error](refusal); ok {
		status = e.HTTPStatus()
	}
	http.Error(w, http.StatusText(status), status)
}

func peerOf(r *http.Request) string {
	if call, ok := httpkit.CallFrom(r); ok {
		return call.Peer
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// admit counts a connection that has not logged in; false means one too many.
func (s *Server) admit(peer string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.strangers[peer]++
	return s.strangers[peer] <= s.UnauthenticatedPerPeer
}

func (s *Server) known(peer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.strangers[peer]--; s.strangers[peer] <= 0 {
		delete(s.strangers, peer)
	}
}

// Drain ends all connections with 1001 after the frame each of them is at, and
// waits until they are gone.
func (s *Server) Drain() {
	s.mu.Lock()
	select {
	case <-s.draining:
	default:
		close(s.draining)
	}
	s.mu.Unlock()
	s.running.Wait()
}

// begin counts a connection, unless the server drains: Drain waits for those
// that were counted before it.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.draining:
		return false
	default:
		s.running.Add(1)
		return true
	}
}

type metrics struct {
	connections prometheus.Gauge
	delivered   prometheus.Counter
	paused      prometheus.Counter
	turnedAway  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, s *Server) *metrics {
	m := &metrics{
		connections: prometheus.NewGauge(prometheus.GaugeOpts{Name: "mw_ws_connections", Help: "Open WebSocket connections."}),
		delivered:   prometheus.NewCounter(prometheus.CounterOpts{Name: "mw_ws_events_sent_total", Help: "EVENT frames written to WebSocket connections."}),
		paused:      prometheus.NewCounter(prometheus.CounterOpts{Name: "mw_ws_groups_paused_total", Help: "Times a Group of a connection was paused because its buffer stayed full."}),
		turnedAway:  prometheus.NewCounter(prometheus.CounterOpts{Name: "mw_ws_turned_away_total", Help: "Handshakes refused because of a rate or a number of connections."}),
	}
	if reg != nil {
		for _, c := range []prometheus.Collector{m.connections, m.delivered, m.paused, m.turnedAway, newLag(s)} {
			if err := reg.Register(c); err != nil {
				panic(err)
			}
		}
	}
	return m
}
