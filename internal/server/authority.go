package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/blobs"
	"github.com/missionweave/server/internal/bundle"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/httpapi"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/natsauth"
	"github.com/missionweave/server/internal/presence"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/sessions/sessionshttp"
	"github.com/missionweave/server/internal/trust"
	"github.com/missionweave/server/internal/views"
	"github.com/missionweave/server/internal/wsapi"
)

// trimEvery is the pause between two looks for archived Groups.
const trimEvery = time.Second

// maxBlob is the largest Artifact content in bytes.
const maxBlob = 1 << 30

// Authority is the Group Authority: Commands, Event logs, reads, delivery.
type Authority struct {
	*base
	service *authority.Service
	store   *events.Store
	conn    *nats.Conn
	// system and direct are nil where Workers may not subscribe at NATS.
	system *nats.Conn
	direct *natsauth.Service
	router *httpkit.Router
	api    *httpapi.API
	ws     *wsapi.Server
}

// OpenAuthority makes the Group Authority. Run serves it.
func OpenAuthority(ctx context.Context, o Options) (_ *Authority, err error) {
	b, err := open(ctx, "authority", o)
	if err != nil {
		return nil, err
	}
	a := &Authority{base: b}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	view, err := b.directory.Current(ctx)
	if err != nil {
		return nil, fmt.Errorf("server: registry: %w", err)
	}
	a.store, err = events.Open(ctx, o.Settings.DatabaseURL, events.Options{
		OrganizationID: view.OrganizationID,
		Readers:        int32(max(4, min(o.Settings.DatabaseMaxConns, 10_000))), //nolint:gosec // bounded
	})
	if err != nil {
		return nil, fmt.Errorf("server: event log: %w", err)
	}
	hub := events.NewHub(a.store, events.HubOptions{Verify: a.verifyEvent, AccessChanged: a.accessChanged})
	publisher, err := a.connectNATS(hub)
	if err != nil {
		return nil, err
	}
	snapshots := events.NewSnapshotter(a.store, b.Log)
	if err := a.openDirect(); err != nil {
		return nil, err
	}
	if err := a.openService(hub, publisher, snapshots); err != nil {
		return nil, err
	}
	if err := a.openTransports(hub); err != nil {
		return nil, err
	}
	b.add("lanes", a.service.Run)
	b.add("publisher", publisher.Run)
	b.add("hub", hub.Run)
	b.add("snapshots", snapshots.Run)
	if every := o.Settings.Policy.SweepInterval(); every > 0 {
		b.add("timers", func(ctx context.Context) error { return a.service.RunSweeper(ctx, every) })
	}
	if o.Settings.Policy.ArchiveTrim {
		b.add("trimmer", func(ctx context.Context) error { return a.store.RunTrimmer(ctx, trimEvery, b.Log) })
	}
	b.metrics.MustRegister(newAuthorityMetrics(a.service, publisher, hub, a.connected))
	return a, nil
}

// connectNATS connects without waiting: with NATS away everything works, only
// slower to notice.
func (a *Authority) connectNATS(hub *events.Hub) (*events.Publisher, error) {
	if a.Settings.NATSURL != "" {
		conn, err := events.Connect(a.Settings.NATSURL, nats.Name("missionweave-authority"))
		if err != nil {
			return nil, errors.New("server: the NATS URL cannot be used") // the error could show a password
		}
		a.conn = conn
		hub.UseNATS(conn)
	}
	publisher, err := events.NewPublisher(a.store, a.conn, events.PublisherOptions{Logger: a.Log})
	if err != nil {
		return nil, fmt.Errorf("server: publisher: %w", err)
	}
	return publisher, nil
}

// verifyEvent reads an Event that another replica published. It fails closed: the
// Event is then read from the database.
func (a *Authority) verifyEvent(document []byte) (events.StoredEvent, bool) {
	ctx, cancel := shortly()
	defer cancel()
	view, err := a.directory.View(ctx)
	if err != nil {
		return events.StoredEvent{}, false
	}
	verified, failure := trust.VerifyBytes(protocol.KindEvent, document, view.Evidence)
	if failure != nil || !view.HasRole(verified.Principal, registry.RoleGroupAuthority) {
		return events.StoredEvent{}, false
	}
	return events.StoredFrom(verified.Value, document)
}

func (a *Authority) connected() bool { return a.conn != nil && a.conn.IsConnected() }

func (a *Authority) openService(hub *events.Hub, publisher *events.Publisher, snapshots *events.Snapshotter) error {
	var signers []trust.Signer
	for _, role := range []registry.Role{
		registry.RoleGroupAuthority, registry.RoleIdentity, registry.RoleRegistry, registry.RoleContextGenerator,
	} {
		signer, err := a.signer(role)
		if err != nil {
			return err
		}
		signers = append(signers, signer)
	}
	p := a.Settings.Policy
	rules := policy(p)
	rules.Limits.SoftPercent = int(a.Settings.SoftLimitPercent)
	var err error
	if rules.GroupLimits, err = groupLimits(a.Settings.GroupLimitsFile, rules.Limits); err != nil {
		return err
	}
	service, err := authority.New(authority.Options{
		Store: a.store, Directory: a.directory,
		Organization:    rules.Organization,
		Signers:         signers,
		FreshnessPast:   p.FreshnessPast(),
		FreshnessFuture: p.FreshnessFuture(),
		SessionLife:     p.SessionLife(),
		Publisher:       publisher, Hub: hub, Snapshots: snapshots,
		Logger: a.Log,
	})
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	a.service = service
	return nil
}

func (a *Authority) openTransports(hub *events.Hub) error {
	cfg, err := a.identities()
	if err != nil {
		return err
	}
	cfg.AgentLock = events.AgentLockKey
	cfg.Opener = &sessions.CommandOpener{
		Signer: cfg.Signer, Mint: mint, Now: time.Now,
		Submit: a.service.OpenSession,
	}
	hellos := sessionshttp.NewHelloLimiter(a.Settings.Policy.HellosPerMinute)
	connections := wsapi.NewConnections()
	cfg.Opened, cfg.Resumed = a.opened(connections.Opened), connections.Resumed
	if a.conn != nil {
		if err := connections.UseNATS(a.conn); err != nil {
			return fmt.Errorf("server: takeovers over NATS: %w", err)
		}
	}
	identities := sessions.New(cfg)
	if a.direct != nil {
		a.direct.SetSessions(identities)
	}
	store, err := blobs.Open(filepath.Join(a.Settings.DataDir, "blobs"), a.pool, maxBlob)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	read := views.New(a.pool, readers{a.directory, a.Settings.Policy.ExecutionApprovalFrom})
	present := presence.New(a.pool, a.Log)
	connections.SharePresence(present)
	a.add("presence", present.Run)
	a.ws = wsapi.New(wsapi.Deps{
		Sessions: identities, Connections: connections, Authority: a.service, Views: read, Store: a.store, Hub: hub,
		Policy: a.Settings.Policy, Log: a.Log, Metrics: a.metrics, Timing: a.Timing, Hellos: hellos,
		Denied: a.denials.Note,
	})
	a.add("sessions", a.ws.Run)
	a.router = a.base.router(identities)
	a.api = httpapi.Mount(a.router, httpapi.Deps{
		Sessions: identities, Authority: a.service, Views: read, Store: a.store, Hub: hub, Blobs: store,
		Bundles:   bundle.NewExporter(a.pool, a.directory, func() (trust.Signer, error) { return a.signer(registry.RoleGroupAuthority) }),
		WebSocket: a.ws, Presence: present, Near: connections, Hellos: hellos, Log: a.Log,
	})
	a.router.Add(natsauth.Route(a.direct, read))
	addContract(a.router)
	return nil
}

// Run serves until ctx ends, then drains.
func (a *Authority) Run(ctx context.Context) error {
	defer a.close()
	drain := func() {
		a.api.Drain()
		a.ws.Drain()
	}
	return a.serve(ctx, a.router, drain, httpkit.Check{Name: "nats", Degraded: true, Probe: func(context.Context) error {
		if !a.connected() {
			return errors.New("away")
		}
		return nil
	}})
}

func (a *Authority) close() {
	for _, conn := range []*nats.Conn{a.conn, a.system} {
		if conn != nil {
			conn.Close()
		}
	}
	if a.store != nil {
		a.store.Close()
	}
	a.pool.Close()
}

// Submit runs a Command that another service of this process forwards.
func (a *Authority) Submit(ctx context.Context, command []byte, peer string) ([]byte, bool, *protocol.Error) {
	result, err := a.service.Submit(ctx, authority.Submission{Body: command, Peer: peer})
	if err != nil {
		return nil, false, err
	}
	return result.Receipt, result.Replayed, nil
}
