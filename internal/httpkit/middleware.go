package httpkit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// RequestIDHeader is set on every answer.
const RequestIDHeader = "X-Request-Id"

type callKey struct{}

// ServeHTTP gives every request its Call, then routes it.
func (rt *Router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	started := time.Now()
	rec := &recorder{ResponseWriter: w}
	c := &Call{W: rec, RequestID: newRequestID(), Peer: rt.opt.Peers.Peer(r), base: baseOf(r), router: rt}
	rec.Header().Set(RequestIDHeader, c.RequestID)
	rec.Header().Set("X-Content-Type-Options", "nosniff")
	// chi matches RawPath only where net/url set it, which it does not for a path
	// whose escaping is the default one. Set always, it is the one routed form.
	url := *r.URL
	url.RawPath = url.EscapedPath()
	ctx := context.WithValue(r.Context(), callKey{}, c)
	r = r.WithContext(ctx)
	r.URL = &url
	c.R = r
	rt.bound(rec, started)

	defer func() {
		if p := recover(); p != nil {
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(p)
			}
			rt.opt.Log.ErrorContext(ctx, "handler panicked", "requestId", c.RequestID,
				"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			if rec.status == 0 {
				rt.fail(c, fmt.Errorf("panic: %v", p))
			}
		}
		rt.done(ctx, c, rec, time.Since(started))
	}()
	rt.mux.ServeHTTP(rec, r)
}

// bound cuts off a client that is slow to send its body or to read the answer. It
// holds from the first moment: net/http waits for an announced body also where a
// request is refused before any handler runs.
func (rt *Router) bound(w http.ResponseWriter, now time.Time) {
	// Not every ResponseWriter has deadlines (tests).
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(now.Add(rt.opt.RequestTimeout))
	_ = control.SetWriteDeadline(now.Add(4 * rt.opt.RequestTimeout))
}

// unbound lifts that for a handler that bounds itself.
func unbound(w http.ResponseWriter) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
}

// CallFrom returns the Call of a request that a Router serves: for handlers
// that were added with AddRaw.
func CallFrom(r *http.Request) (*Call, bool) {
	c, ok := r.Context().Value(callKey{}).(*Call)
	return c, ok
}

// BaseURL is the URL under which the client of a request reached this service, ""
// outside one. It says nothing that the client did not send.
func BaseURL(ctx context.Context) string {
	if c, ok := ctx.Value(callKey{}).(*Call); ok {
		return c.base
	}
	base, _ := ctx.Value(baseKey{}).(string)
	return base
}

type baseKey struct{}

// WithBaseURL is for work that outlives the request it began with.
func WithBaseURL(ctx context.Context, base string) context.Context {
	return context.WithValue(ctx, baseKey{}, base)
}

func baseOf(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

func callOf(r *http.Request, w http.ResponseWriter) *Call {
	c, ok := CallFrom(r)
	if !ok {
		panic("httpkit: request did not come through a Router")
	}
	c.W, c.R = w, r
	return c
}

func (rt *Router) done(ctx context.Context, c *Call, rec *recorder, took time.Duration) {
	pattern := c.pattern
	if pattern == "" {
		pattern = "unmatched"
	}
	status := rec.status
	if status == 0 {
		status = http.StatusOK
	}
	rt.metrics.observe(c.R.Method, pattern, status, took)
	level := slog.LevelDebug
	if status >= http.StatusInternalServerError {
		level = slog.LevelWarn
	}
	rt.opt.Log.LogAttrs(ctx, level, "request",
		slog.String("requestId", c.RequestID),
		slog.String("method", c.R.Method), slog.String("route", pattern), slog.Int("status", status),
		slog.Int64("bytes", rec.bytes), slog.Duration("took", took), slog.String("peer", c.Peer),
		slog.String("principal", c.Caller.Principal.ID))
}

// newRequestID is 16 random bytes in hex. A request id that the client sends is
// not taken over: it would let a stranger write into our logs.
func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// recorder remembers status and size. It passes Flush, Hijack and deadlines
// through Unwrap, which http.ResponseController follows.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 || r.status < http.StatusOK {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// Flush lets code that asserts http.Flusher work through the recorder.
func (r *recorder) Flush() { _ = http.NewResponseController(r.ResponseWriter).Flush() }

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// requestMetrics counts requests by route pattern, never by path: a path holds
// ids and would grow the set of series without bound.
type requestMetrics struct {
	seconds *prometheus.HistogramVec
	service string
}

func newRequestMetrics(reg prometheus.Registerer, service string) *requestMetrics {
	if reg == nil {
		return &requestMetrics{}
	}
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "mw_http_request_seconds",
		Help:    "Time to answer HTTP requests by service, route pattern, method and status.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	}, []string{"service", "route", "method", "status"})
	if err := reg.Register(vec); err != nil {
		// Two listeners of one process share one histogram.
		var already prometheus.AlreadyRegisteredError
		if !errors.As(err, &already) {
			panic(err)
		}
		vec = already.ExistingCollector.(*prometheus.HistogramVec)
	}
	return &requestMetrics{seconds: vec, service: service}
}

func (m *requestMetrics) observe(method, route string, status int, took time.Duration) {
	if m.seconds == nil {
		return
	}
	m.seconds.WithLabelValues(m.service, route, knownMethod(method), strconv.Itoa(status)).Observe(took.Seconds())
}

// knownMethod keeps invented methods out of the labels.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead, http.MethodPatch, http.MethodOptions:
		return method
	}
	return "other"
}
