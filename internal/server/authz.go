package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/missionweave/server/internal/aeplog"
	"github.com/missionweave/server/internal/aeplog/aeploghttp"
	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/authz/authzhttp"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/httpkit"
	policyruntime "github.com/missionweave/server/internal/policy"
	"github.com/missionweave/server/internal/policy/policyhttp"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/sessions/sessionshttp"
	"github.com/missionweave/server/internal/trust"
	"github.com/missionweave/server/internal/views"
)

// Authz is the Authorization Service.
type Authz struct {
	*base
	router *httpkit.Router
	tokens *authz.Service
	store  *events.Store
	conn   *nats.Conn
	// evidence is where decisions about Proposed Actions leave their records.
	evidence *aeplog.Log
	ring     *authz.Keyring
	versions *policyruntime.Versions
}

// OpenAuthz makes the Authorization Service.
func OpenAuthz(ctx context.Context, o Options) (_ *Authz, err error) {
	b, err := open(ctx, "authz", o)
	if err != nil {
		return nil, err
	}
	z := &Authz{base: b}
	defer func() {
		if err != nil {
			z.close()
		}
	}()
	cfg, err := b.identities()
	if err != nil {
		return nil, err
	}
	identities := sessions.New(cfg)
	z.router = b.router(identities)
	if err := z.openTokens(ctx); err != nil {
		return nil, err
	}
	z.router.Add(authzhttp.Routes(authzhttp.Options{
		Service: z.tokens, Directory: b.directory, Database: b.pool, Now: time.Now,
	})...)
	z.router.Add(sessionshttp.AccessRoutes(identities, sessionshttp.NewLimiter())...)
	if err := z.openEvidence(); err != nil {
		return nil, err
	}
	if err := z.openPolicy(); err != nil {
		return nil, err
	}
	addContract(z.router)
	return z, nil
}

// openTokens makes the token service. It reads Groups from the log and needs no
// Authority to be up.
func (z *Authz) openTokens(ctx context.Context) error {
	view, err := z.directory.Current(ctx)
	if err != nil {
		return fmt.Errorf("server: registry: %w", err)
	}
	z.store, err = events.Open(ctx, z.Settings.DatabaseURL, events.Options{
		OrganizationID: view.OrganizationID, Writers: 4,
		Readers: int32(max(4, min(z.Settings.DatabaseMaxConns, 10_000))), //nolint:gosec // bounded
	})
	if err != nil {
		return fmt.Errorf("server: event log: %w", err)
	}
	if z.Settings.NATSURL != "" {
		// With NATS away revocations are found by looking, and on the list only.
		if z.conn, err = events.Connect(z.Settings.NATSURL, nats.Name("missionweave-authz")); err != nil {
			return errors.New("server: the NATS URL cannot be used") // the error could show a password
		}
	}
	signer, err := z.signer(registry.RoleAuthorization)
	if err != nil {
		return err
	}
	p := z.Settings.Policy
	z.ring = authz.NewKeyring(registry.RoleAuthorization, signer, z.Keys)
	z.versions = policyruntime.NewVersions()
	z.tokens = authz.New(authz.Config{
		Store: z.store, Directory: z.directory, NATS: z.conn, Log: z.Log,
		Keys: z.ring, Manifests: z.versions,
		Organization: policy(p).Organization,
		MaxLife:      p.CapabilityTokenMax(), Mint: mint, Now: time.Now,
	})
	z.add("tokens", z.tokens.Run)
	return nil
}

// openEvidence makes the log of evidence records and its routes.
func (z *Authz) openEvidence() error {
	signer, err := z.signer(registry.RoleEvidence)
	if err != nil {
		return err
	}
	ring := authz.NewKeyring(registry.RoleEvidence, signer, z.Keys)
	z.evidence = aeplog.New(func(ctx context.Context, q pgx.Tx, now time.Time) (trust.Signer, error) {
		view, err := z.directory.View(ctx)
		if err != nil {
			return trust.Signer{}, err
		}
		return ring.Signer(ctx, q, view, now)
	})
	read := views.New(z.pool, readers{z.directory, z.Settings.Policy.ExecutionApprovalFrom})
	z.router.Add(aeploghttp.Routes(aeploghttp.Options{
		Reader:   aeplog.NewReader(z.pool, read),
		Verifier: aeplog.NewVerifier(z.pool, read, z.directory, z.versions),
	})...)
	return nil
}

// openPolicy makes the runtime of World Manifests and its routes.
func (z *Authz) openPolicy() error {
	authority := z.Submit
	if authority == nil {
		var err error
		if authority, err = remoteAuthority(z.Settings); err != nil {
			return err
		}
	}
	p := z.Settings.Policy
	service := policyruntime.New(policyruntime.Config{
		Pool: z.pool, Store: z.store, Directory: z.directory, Views: views.New(z.pool, readers{z.directory, z.Settings.Policy.ExecutionApprovalFrom}),
		Tokens: z.tokens, Evidence: z.evidence, Mint: mint, Log: z.Log,
		Submit: func(ctx context.Context, command []byte) ([]byte, bool, *protocol.Error) {
			return authority.Submit(ctx, command, "authz")
		},
		Signer: func(ctx context.Context) (trust.Signer, error) {
			view, err := z.directory.View(ctx)
			if err != nil {
				return trust.Signer{}, err
			}
			return z.ring.Signer(ctx, z.pool, view, time.Now())
		},
	}, z.versions)
	z.add("actions", service.Run)
	z.router.Add(policyhttp.Routes(policyhttp.Options{
		Service: service, Directory: z.directory, FreshPast: p.FreshnessPast(), FreshFuture: p.FreshnessFuture(), Now: time.Now,
	})...)
	return nil
}

// Run serves until ctx ends, then drains.
func (z *Authz) Run(ctx context.Context) error {
	defer z.close()
	return z.serve(ctx, z.router, nil)
}

func (z *Authz) close() {
	if z.conn != nil {
		z.conn.Close()
	}
	if z.store != nil {
		z.store.Close()
	}
	z.pool.Close()
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}
