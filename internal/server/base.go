// Package server wires the three services: it makes the parts, hands each what
// it needs, and runs them until they are told to stop. It decides nothing.
//
// The hazard is a half-started or half-stopped process: one that answers before
// its database is there, or that drops requests on the way out. So every
// service starts in one order (database, Registry view, parts, listeners), is
// ready only when its checks pass, and stops in the reverse one: not ready,
// drain the listeners, then the parts, then the pool.
package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/denials"
	"github.com/missionweave/server/internal/devorg"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/migrate"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registryhttp"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/trust"
	"github.com/missionweave/server/internal/wsapi"
)

// Options is what every service is started with.
type Options struct {
	Settings *config.Settings
	// Keys are the Organization's Principals whose keys this process may use.
	Keys *devorg.Organization
	// TLS serves HTTPS; nil serves plain HTTP, which is for loopback only.
	TLS *tls.Config
	// Listener and Management are the two bound listeners; Run takes them over.
	Listener, Management net.Listener
	// Submit hands Commands of the Authorization Service to the Authority; nil takes
	// the one at the settings' AuthorityURL.
	Submit registryhttp.Authority
	// Timing changes the times of the WebSocket binding; the zero value keeps
	// them.
	Timing wsapi.Timing
	Log    *slog.Logger
}

// base is what the three services have in common.
type base struct {
	Options
	name      string
	metrics   *prometheus.Registry
	pool      *pgxpool.Pool
	directory *registry.Directory
	denials   *denials.Log
	parts     []part
}

// part is something that runs until its context ends.
type part struct {
	name string
	run  func(context.Context) error
}

// open connects to the database, waiting for it until ctx ends, and refuses a
// schema that is not this program's.
func open(ctx context.Context, name string, o Options) (*base, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Log = o.Log.With("service", name)
	b := &base{Options: o, name: name, metrics: prometheus.NewRegistry()}
	b.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	cfg, err := pgxpool.ParseConfig(o.Settings.DatabaseURL)
	if err != nil {
		return nil, errors.New("server: the database URL cannot be read") // the error would show the password
	}
	cfg.MaxConns = int32(max(4, min(o.Settings.DatabaseMaxConns, 10_000))) //nolint:gosec // bounded
	if b.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, fmt.Errorf("server: database: %w", err)
	}
	if err := b.awaitDatabase(ctx); err != nil {
		b.pool.Close()
		return nil, err
	}
	b.directory = registry.NewDirectory(b.pool, registry.DirectoryOptions{Log: o.Log})
	b.denials = denials.New(b.pool, nil, o.Log)
	b.add("registry view", b.directory.Run)
	b.add("denials", b.denials.Run)
	return b, nil
}

// awaitDatabase waits until the database answers with the schema of this
// program. Another schema is a fault that waiting does not mend.
func (b *base) awaitDatabase(ctx context.Context) error {
	for {
		err := migrate.Check(ctx, b.Settings.DatabaseURL)
		if err == nil || errors.Is(err, migrate.ErrPending) || errors.Is(err, migrate.ErrNewerSchema) || refusedLogin(err) {
			return err //nolint:wrapcheck // says what to do
		}
		b.Log.WarnContext(ctx, "waiting for the database", "err", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("server: database: %w", err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// refusedLogin tells a wrong password, account or database name: waiting does
// not mend it.
func refusedLogin(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(pg.Code, "28") || pg.Code == "3D000")
}

func (b *base) add(name string, run func(context.Context) error) {
	b.parts = append(b.parts, part{name, run})
}

// signer is the key of the Principal with a role.
func (b *base) signer(role registry.Role) (trust.Signer, error) {
	return b.Keys.Signer(string(role)) //nolint:wrapcheck // says which role
}

// router is a Router with the limits of the settings.
func (b *base) router(auth httpkit.Authenticator) *httpkit.Router {
	var limiter *httpkit.PeerLimiter
	if perSecond := b.Settings.RequestsPerSecondPerPeer; perSecond > 0 {
		limiter = httpkit.NewPeerLimiter("requests_per_peer", float64(perSecond)*60, int(min(2*perSecond, 1<<30)), nil)
	}
	return httpkit.NewRouter(httpkit.Options{
		Limiter: limiter,
		Service: b.name, Log: b.Log, Metrics: b.metrics, Auth: auth,
		MaxBodyBytes: b.Settings.Policy.MaxBodyBytes, Denied: b.denials.Note,
	})
}

// identities is the session service for checking credentials; it opens no
// sessions.
func (b *base) identities() (sessions.Config, error) {
	signer, err := b.signer(registry.RoleIdentity)
	if err != nil {
		return sessions.Config{}, err
	}
	p := b.Settings.Policy
	ring := authz.NewKeyring(registry.RoleIdentity, signer, b.Keys)
	return sessions.Config{
		Pool: b.pool, Directory: b.directory, Signer: signer, Mint: mint,
		SignerNow: func(ctx context.Context, view *registry.View) (trust.Signer, error) {
			return ring.Signer(ctx, b.pool, view, time.Now())
		},
		Life: p.SessionLife(), HellosPerMinute: int(p.HellosPerMinute),
	}, nil
}

// serve runs the parts and both listeners until ctx ends or one of them fails.
// drain ends what the HTTP server does not wait for; it is called more than
// once, also at the same time, and returns when it is done.
func (b *base) serve(ctx context.Context, router *httpkit.Router, drain func(), checks ...httpkit.Check) error {
	defer b.pool.Close()
	management := httpkit.NewManagement(b.metrics, append([]httpkit.Check{
		{Name: "database", Probe: func(ctx context.Context) error {
			_, err := b.pool.Exec(ctx, `SELECT FROM groups LIMIT 1`)
			return err //nolint:wrapcheck // shown as it is
		}},
		{Name: "registry", Probe: func(ctx context.Context) error {
			_, err := b.directory.View(ctx)
			return err //nolint:wrapcheck // shown as it is
		}},
	}, checks...)...)
	// The parts outlive the listeners: requests that are being drained need them.
	parts, stopParts := context.WithCancel(context.WithoutCancel(ctx))
	defer stopParts()
	running, failed := errgroup.WithContext(parts)
	for _, p := range b.parts {
		running.Go(func() error {
			if err := p.run(failed); err != nil && failed.Err() == nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			return nil
		})
	}
	listening, stopListening := context.WithCancel(failed)
	defer stopListening()
	defer context.AfterFunc(ctx, func() {
		management.Draining()
		stopListening()
	})()
	grace := b.Settings.ShutdownPatience()
	front := httpkit.NewServer(router, b.TLS, grace, b.Log)
	if drain != nil {
		front.OnDrain(drain)
	}
	back := httpkit.NewServer(management, nil, grace, b.Log)
	listeners, _ := errgroup.WithContext(listening)
	listeners.Go(func() error { return front.Serve(listening, b.Listener) })
	listeners.Go(func() error { return back.Serve(listening, b.Management) })
	management.Started()
	b.Log.InfoContext(ctx, "serving", "address", b.Listener.Addr().String(), "management", b.Management.Addr().String())
	err := listeners.Wait()
	if drain != nil {
		drain() // what was hijacked is not waited for by the listener
	}
	stopParts()
	if err := errors.Join(err, running.Wait()); err != nil {
		return fmt.Errorf("%s: %w", b.name, err)
	}
	return nil
}

func mint() string {
	var random [10]byte
	_, _ = rand.Read(random[:])
	return lexical.UUIDv7(time.Now(), random)
}

// shortly bounds a look-up that answers from memory as a rule.
func shortly() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 2*time.Second)
}
