package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/sessions/sessionshttp"
)

// Authz is the Authorization Service.
type Authz struct {
	*base
	router *httpkit.Router
}

// OpenAuthz makes the Authorization Service.
func OpenAuthz(ctx context.Context, o Options) (*Authz, error) {
	b, err := open(ctx, "authz", o)
	if err != nil {
		return nil, err
	}
	cfg, err := b.identities()
	if err != nil {
		b.pool.Close()
		return nil, err
	}
	identities := sessions.New(cfg)
	z := &Authz{base: b, router: b.router(identities)}
	z.router.Add(authz.Routes(b.directory, time.Now)...)
	z.router.Add(sessionshttp.AccessRoutes(identities, sessionshttp.NewLimiter())...)
	addContract(z.router)
	return z, nil
}

// Run serves until ctx ends, then drains.
func (z *Authz) Run(ctx context.Context) error { return z.serve(ctx, z.router, nil) }

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}
