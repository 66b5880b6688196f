package httpkit

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/sessions"
)

// Defaults of the limits that Options leaves at zero.
const (
	DefaultMaxBodyBytes   = 1 << 20
	DefaultRequestTimeout = 30 * time.Second
)

// Authenticator turns a bearer credential into the Principal it stands for.
// *sessions.Service implements it.
type Authenticator interface {
	Authenticate(ctx context.Context, bearer string) (sessions.Identity, *protocol.Error)
}

// Auth says who may call a Route.
type Auth int

const (
	// Bearer is the zero value, so that a forgotten declaration is a closed route.
	Bearer Auth = iota
	// Public routes look at no credential (challenges, key sets).
	Public
	// Optional routes need none (Commands carry their own signature); a valid one
	// sets Caller, anything else counts as none.
	Optional
)

// Handler answers one call. A returned error becomes the error object of
// API.md: a *protocol.Error as it is, anything else is logged and answered with
// INTERNAL_ERROR.
type Handler func(c *Call) error

// Route is one method and path pattern (chi syntax) with what it accepts.
type Route struct {
	Method  string
	Pattern string
	Handler Handler
	Auth    Auth
	// Query lists the query parameters the route knows; all others are refused.
	Query []string
	// ContentType is the media type of the request body; empty means
	// application/json for a method with a body. "*" accepts any.
	ContentType string
	// MaxBodyBytes overrides Options.MaxBodyBytes; negative means no limit here
	// (the handler streams and limits itself).
	MaxBodyBytes int64
	// Stream switches the request timeout off: the handler ends with its client,
	// its credential or the server.
	Stream bool
	// Limiter, when set, is asked in addition to the router's own.
	Limiter *PeerLimiter
}

// Options configures a Router. Only Service is required.
type Options struct {
	// Service is the label in metrics: authority, registry, authz. Log carries its
	// own.
	Service        string
	Log            *slog.Logger
	Metrics        prometheus.Registerer
	Auth           Authenticator
	Peers          PeerResolver
	Limiter        *PeerLimiter
	MaxBodyBytes   int64
	RequestTimeout time.Duration
	// Now is the clock of occurredAt in error bodies.
	Now func() time.Time
	// Denied, when set, hears of every answer 401, 403 and 429: the audit trail
	// aggregates them per peer (API.md, Registry).
	Denied func(peer string, err *protocol.Error)
}

// Router serves Routes. Routes are added before the first request.
type Router struct {
	mux     *chi.Mux
	opt     Options
	routes  []Route
	metrics *requestMetrics
}

// NewRouter returns a Router without routes.
func NewRouter(opt Options) *Router {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.MaxBodyBytes == 0 {
		opt.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if opt.RequestTimeout == 0 {
		opt.RequestTimeout = DefaultRequestTimeout
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	rt := &Router{mux: chi.NewMux(), opt: opt, metrics: newRequestMetrics(opt.Metrics, opt.Service)}
	rt.mux.NotFound(func(w http.ResponseWriter, r *http.Request) {
		rt.fail(callOf(r, w), Problem(http.StatusNotFound, "unknown_route"))
	})
	rt.mux.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", strings.Join(rt.methodsFor(r), ", "))
		rt.fail(callOf(r, w), Problem(http.StatusMethodNotAllowed, "method"))
	})
	return rt
}

// Add registers routes. It panics on a Route without handler, method or
// pattern, because a service must not start half wired.
func (rt *Router) Add(routes ...Route) {
	for _, route := range routes {
		if route.Handler == nil || route.Method == "" || !strings.HasPrefix(route.Pattern, "/") {
			panic("httpkit: incomplete route " + route.Method + " " + route.Pattern)
		}
		if route.Auth != Public && rt.opt.Auth == nil {
			panic("httpkit: route " + route.Pattern + " needs a bearer and the router has no authenticator")
		}
		rt.routes = append(rt.routes, route)
		rt.mux.MethodFunc(route.Method, route.Pattern, func(w http.ResponseWriter, r *http.Request) {
			c := callOf(r, w)
			c.pattern = route.Pattern
			rt.serve(c, route)
		})
	}
}

// AddRaw mounts a handler that does its own HTTP (a WebSocket upgrade, static
// files). Request ids, logs, metrics, panics and the limit per peer are still the
// router's.
func (rt *Router) AddRaw(method, pattern string, h http.Handler) {
	rt.mux.MethodFunc(method, pattern, func(w http.ResponseWriter, r *http.Request) {
		c := callOf(r, w)
		c.pattern = pattern
		if err := rt.opt.Limiter.Check(c.Peer); err != nil {
			rt.fail(c, err)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// Routes returns what Add registered, in order.
func (rt *Router) Routes() []Route { return slices.Clone(rt.routes) }

func (rt *Router) serve(c *Call, route Route) {
	if err := rt.prepare(c, route); err != nil {
		rt.fail(c, err)
		return
	}
	if route.Stream {
		unbound(c.W)
	} else {
		// A slow sender is cut off at the same moment its request times out.
		ctx, cancel := context.WithTimeout(c.R.Context(), rt.opt.RequestTimeout)
		defer cancel()
		c.R = c.R.WithContext(ctx)
	}
	if err := route.Handler(c); err != nil {
		if route.Stream {
			rt.bound(c.W, time.Now())
		}
		rt.fail(c, err)
	}
}

// prepare does everything that precedes a handler: limits, credential, query.
func (rt *Router) prepare(c *Call, route Route) error {
	for _, limiter := range []*PeerLimiter{rt.opt.Limiter, route.Limiter} {
		if err := limiter.Check(c.Peer); err != nil {
			return err
		}
	}
	switch route.Auth {
	case Public:
	case Bearer:
		token, err := BearerToken(c.R)
		if err != nil {
			return err
		}
		caller, perr := rt.opt.Auth.Authenticate(c.R.Context(), token)
		if perr != nil {
			return perr
		}
		c.Caller = caller
	case Optional:
		if token, sent := OptionalBearer(c.R); sent {
			if caller, perr := rt.opt.Auth.Authenticate(c.R.Context(), token); perr == nil {
				c.Caller = caller
			}
		}
	}
	query, err := parseQuery(c.R.URL.RawQuery, route.Query)
	if err != nil {
		return err
	}
	c.Query = query
	c.maxBody = route.MaxBodyBytes
	if c.maxBody == 0 {
		c.maxBody = rt.opt.MaxBodyBytes
	}
	c.contentType = route.ContentType
	if c.contentType == "" {
		c.contentType = "application/json"
	}
	return nil
}

// methodsFor lists the methods that the request's path does have.
func (rt *Router) methodsFor(r *http.Request) []string {
	var allowed []string
	for _, method := range []string{
		http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodPatch, http.MethodPost, http.MethodPut,
	} {
		if rt.mux.Match(chi.NewRouteContext(), method, r.URL.EscapedPath()) {
			allowed = append(allowed, method)
		}
	}
	return allowed
}
