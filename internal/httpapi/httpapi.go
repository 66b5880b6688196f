// Package httpapi serves the Authority over HTTP (API.md, Authority).
//
// It only translates: Commands go to the pipeline as the bytes they came in,
// reads go to views, and every read of a Group begins with views.Enter. The
// hazard it guards against is an answer that tells more than its reader may
// know; so a handler never looks anything up by an id of the path before the
// Group was entered, and what is absent and what is undisclosed get one answer.
package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/blobs"
	"github.com/missionweave/server/internal/bundle"
	"github.com/missionweave/server/internal/delivery"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/sessions/sessionshttp"
	"github.com/missionweave/server/internal/views"
)

// Authority runs Commands; *authority.Service is one.
type Authority interface {
	Submit(ctx context.Context, sub authority.Submission) (*authority.Result, *protocol.Error)
}

// Deps is what the API works with. WebSocket may be nil; then there is no /ws.
type Deps struct {
	Authority Authority
	Sessions  *sessions.Service
	Views     *views.Views
	Store     *events.Store
	Hub       *events.Hub
	Blobs     *blobs.Store
	Bundles   *bundle.Exporter
	WebSocket http.Handler
	// Hellos bounds challenges and proofs of a peer; nil for no bound.
	Hellos *httpkit.PeerLimiter
	// Presence and Near may be nil; then nobody is known to be present.
	Presence Presence
	Near     Near
	Log      *slog.Logger
	Now      func() time.Time
	// Heartbeat is the pause between comments in a quiet stream, default 15 s.
	Heartbeat time.Duration
	// Recheck is how often a stream asks whether its credential still holds,
	// default 5 s.
	Recheck time.Duration
}

// API is the mounted API.
type API struct {
	Deps
	source   delivery.Source
	draining chan struct{}
	drain    sync.Once
}

// Mount adds the Authority's routes to a Router.
func Mount(router *httpkit.Router, d Deps) *API {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Heartbeat == 0 {
		d.Heartbeat = 15 * time.Second
	}
	if d.Recheck == 0 {
		d.Recheck = 5 * time.Second
	}
	a := &API{Deps: d, source: delivery.Source{Log: d.Hub, Views: d.Views}, draining: make(chan struct{})}
	router.Add(a.routes()...)
	router.Add(sessionshttp.AccessRoutes(d.Sessions, d.Hellos)...)
	router.Add(sessionshttp.SessionRoutes(d.Sessions, d.Hellos)...)
	if d.WebSocket != nil {
		router.AddRaw(http.MethodGet, "/ws", d.WebSocket)
	}
	return a
}

// Drain ends the streams; their clients come back with Last-Event-ID. Other
// requests finish by themselves.
func (a *API) Drain() { a.drain.Do(func() { close(a.draining) }) }

func (a *API) routes() []httpkit.Route {
	get := func(pattern string, h httpkit.Handler, query ...string) httpkit.Route {
		return httpkit.Route{Method: http.MethodGet, Pattern: pattern, Handler: h, Query: query}
	}
	list := func(pattern string, h httpkit.Handler, query ...string) httpkit.Route {
		return get(pattern, h, append(query, "limit", "after")...)
	}
	return []httpkit.Route{
		{Method: http.MethodPost, Pattern: "/v1/commands", Handler: a.postCommand, Auth: httpkit.Public},
		{
			Method: http.MethodPost, Pattern: "/v1/commands:batch", Handler: a.postBatch, Auth: httpkit.Public,
			ContentType: ndjson,
		},

		list("/v1/groups/{groupId}/events", a.listEvents),
		{
			Method: http.MethodGet, Pattern: "/v1/groups/{groupId}/events/stream", Handler: a.stream, Stream: true,
			Query: append([]string{"after"}, attentionQuery...),
		},
		get("/v1/groups/{groupId}/cursor", a.getCursor),
		{Method: http.MethodPut, Pattern: "/v1/groups/{groupId}/cursor", Handler: a.putCursor},

		get("/v1/groups/{groupId}", a.document((*views.Views).Group)),
		list("/v1/groups/{groupId}/memberships", a.list(2, (*views.Views).Memberships)),
		list("/v1/groups/{groupId}/conversations", a.list(1, (*views.Views).Conversations)),
		list("/v1/groups/{groupId}/conversations/{conversationId}/messages", a.listMessages),
		list("/v1/groups/{groupId}/artifacts", a.list(1, (*views.Views).Artifacts)),
		get("/v1/groups/{groupId}/snapshot", a.getSnapshot),
		get("/v1/groups/{groupId}/presence", a.getPresence),
		{Method: http.MethodGet, Pattern: "/v1/groups/{groupId}/export", Handler: a.export, Stream: true},
		get("/v1/groups/{groupId}/budget", a.document((*views.Views).Budget)),
		list("/v1/groups/{groupId}/policy-log", a.list(1, (*views.Views).PolicyLog)),
		list("/v1/groups/{groupId}/work-items", a.listWorkItems, "state", "owner"),
		get("/v1/groups/{groupId}/work-items/{workItemId}", a.getWorkItem),
		list("/v1/groups/{groupId}/work-items/{workItemId}/leases", a.listWorkItemLeases),
		list("/v1/groups/{groupId}/leases", a.listLeases),

		list("/v1/missions", a.listMissions, "state", "owner", "coordinator"),
		get("/v1/missions/{missionId}", a.missionDocument((*views.Views).Mission)),
		get("/v1/missions/{missionId}/tree", a.missionDocument((*views.Views).Tree)),
		get("/v1/missions/{missionId}/progress", a.missionDocument((*views.Views).Progress)),
		list("/v1/offers", a.listOffers),
		list("/v1/approvals", a.listApprovals, "state"),
		list("/v1/attention", a.listAttention),

		{
			Method: http.MethodPut, Pattern: "/v1/artifacts/{sha256}", Handler: a.putArtifact, Query: []string{"groupId"},
			ContentType: "*", MaxBodyBytes: -1, Stream: true,
		},
		{
			Method: http.MethodGet, Pattern: "/v1/artifacts/{sha256}", Handler: a.getArtifact, Query: []string{"groupId"},
			Stream: true,
		},
	}
}
