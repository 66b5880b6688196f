package httpkit

import (
	"context"
	"errors"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Check is one condition of readiness. A Degraded check is shown and does not
// take the process out of service (NATS: every Command still commits).
type Check struct {
	Name     string
	Degraded bool
	Probe    func(ctx context.Context) error
}

// Management is the listener of operators: liveness, readiness, start-up,
// metrics, profiles. It is bound to another address than the service and has no
// authentication of its own.
type Management struct {
	checks  []Check
	started atomic.Bool
	drain   atomic.Bool
	timeout time.Duration
	mux     *http.ServeMux
}

// NewManagement serves the checks and the metrics of gatherer.
func NewManagement(gatherer prometheus.Gatherer, checks ...Check) *Management {
	m := &Management{checks: slices.Clone(checks), timeout: 2 * time.Second, mux: http.NewServeMux()}
	m.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { report(w, nil, nil) })
	m.mux.HandleFunc("GET /startupz", func(w http.ResponseWriter, _ *http.Request) {
		if !m.started.Load() {
			report(w, []string{"starting"}, nil)
			return
		}
		report(w, nil, nil)
	})
	m.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		failed, degraded := m.Ready(r.Context())
		report(w, failed, degraded)
	})
	if gatherer != nil {
		m.mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	}
	m.mux.HandleFunc("/debug/pprof/", pprof.Index)
	m.mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	m.mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	m.mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	m.mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return m
}

// ServeHTTP implements http.Handler.
func (m *Management) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.mux.ServeHTTP(w, r) }

// Started says that start-up is over; /startupz and /readyz are 503 before.
func (m *Management) Started() { m.started.Store(true) }

// Draining makes /readyz 503 so that load balancers stop sending.
func (m *Management) Draining() { m.drain.Store(true) }

// Ready asks every check and names those that failed.
func (m *Management) Ready(ctx context.Context) (failed, degraded []string) {
	if !m.started.Load() {
		failed = append(failed, "starting")
	}
	if m.drain.Load() {
		failed = append(failed, "draining")
	}
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	for _, check := range m.checks {
		if err := check.Probe(ctx); err != nil {
			if check.Degraded {
				degraded = append(degraded, check.Name)
			} else {
				failed = append(failed, check.Name)
			}
		}
	}
	return failed, degraded
}

// report answers in plain words: names of checks, never their errors.
func report(w http.ResponseWriter, failed, degraded []string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	var b strings.Builder
	if len(failed) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		b.WriteString("failed: " + strings.Join(failed, ", ") + "\n")
	} else {
		b.WriteString("ok\n")
	}
	if len(degraded) > 0 {
		b.WriteString("degraded: " + strings.Join(degraded, ", ") + "\n")
	}
	_, _ = w.Write([]byte(b.String()))
}

// ErrNotReady is for Probe functions that have no better error.
var ErrNotReady = errors.New("not ready")
