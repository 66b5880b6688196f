package sessions_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/transcript"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/trust"
)

// clock is real time, moved by the test.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

func (c *clock) move(d time.Duration) { c.offset.Add(int64(d)) }

// pipeline stands for the pipeline behind session_open: it raises the epoch
// under the Agent's lock, as the Authority does.
type pipeline struct {
	pool   *pgxpool.Pool
	now    func() time.Time
	mu     sync.Mutex
	opened []string
	fail   *protocol.Error
}

func agentLock(agentID string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(agentID))
	return int64(h.Sum64())
}

func (a *pipeline) Open(ctx context.Context, agentID, keyID string, expiresAt time.Time) (epoch int64, perr *protocol.Error) {
	a.mu.Lock()
	a.opened = append(a.opened, agentID)
	a.mu.Unlock()
	if a.fail != nil {
		return 0, a.fail
	}
	err := pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, agentLock(agentID)); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			INSERT INTO agent_sessions (agent_id, session_epoch, key_id, opened_at, expires_at) VALUES ($1, 1, $2, $3, $4)
			ON CONFLICT (agent_id) DO UPDATE SET session_epoch = agent_sessions.session_epoch + 1,
				key_id = excluded.key_id, opened_at = excluded.opened_at, expires_at = excluded.expires_at
			RETURNING session_epoch`, agentID, keyID, a.now(), expiresAt).Scan(&epoch)
	})
	if err != nil {
		return 0, protocol.Internal(err)
	}
	return epoch, nil
}

func (a *pipeline) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.opened)
}

// world is an Organization with one or more replicas of the session service.
type world struct {
	*registrytest.Org
	clock     clock
	authority *pipeline
	service   *sessions.Service
	mu        sync.Mutex
	hooks     []string
}

func newWorld(t *testing.T, change ...func(*sessions.Config)) *world {
	t.Helper()
	w := &world{Org: registrytest.New(t)}
	w.authority = &pipeline{pool: w.Pool, now: w.clock.now}
	w.service = w.replica(w.Pool, w.Directory, change...)
	return w
}

func (w *world) replica(pool *pgxpool.Pool, d *registry.Directory, change ...func(*sessions.Config)) *sessions.Service {
	hook := func(name string) func(context.Context, string, int64) {
		return func(context.Context, string, int64) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.hooks = append(w.hooks, name)
		}
	}
	cfg := sessions.Config{
		Pool: pool, Directory: d, Signer: registrytest.Service(registry.RoleIdentity), Opener: w.authority,
		AgentLock: agentLock, Mint: registrytest.Mint, Now: w.clock.now,
		Opened: hook("opened"), Resumed: hook("resumed"),
	}
	for _, f := range change {
		f(&cfg)
	}
	return sessions.New(cfg)
}

func (w *world) takeHooks() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	hooks := w.hooks
	w.hooks = nil
	return hooks
}

// agent registers an Agent and returns its signer.
func (w *world) agent(t *testing.T, name string) trust.Signer {
	t.Helper()
	s := registrytest.Agent(name)
	w.AddAgent(t, s)
	return s
}

var clientNonce = lexical.EncodeBase64URL([]byte("client-nonce"))

// challenge runs steps 1 and 2 and signs as a careful client does.
func challenge(t *testing.T, service *sessions.Service, s trust.Signer) (*protocol.HelloServerChallenge, *protocol.HelloClientResponse) {
	t.Helper()
	c, perr := service.Challenge(t.Context(), &protocol.HelloClientInit{
		FrameID: registrytest.Mint(), AgentID: s.Principal.ID, KeyID: s.KeyID, ClientNonce: clientNonce,
		SupportedVersions: []string{protocol.Version},
	})
	if perr != nil {
		t.Fatal(perr)
	}
	b, err := transcript.Check(transcript.Session, c.Challenge, s.Principal, s.KeyID, clientNonce)
	if err != nil {
		t.Fatal(err)
	}
	return c, &protocol.HelloClientResponse{
		FrameID: registrytest.Mint(), AgentID: s.Principal.ID, KeyID: s.KeyID, ClientNonce: clientNonce,
		ServerNonce: c.ServerNonce, ChallengeSignature: sign(s, b),
	}
}

func sign(s trust.Signer, b []byte) string {
	return lexical.EncodeBase64URL(ed25519.Sign(s.Private, b))
}

// hello runs all four steps.
func hello(t *testing.T, service *sessions.Service, s trust.Signer, more ...func(*sessions.Answer)) (*protocol.HelloServerAccept, sessions.Identity, *protocol.Error) {
	t.Helper()
	c, r := challenge(t, service, s)
	a := sessions.Answer{Response: r, Challenge: c}
	for _, f := range more {
		f(&a)
	}
	return service.Accept(t.Context(), a)
}

func mustHello(t *testing.T, service *sessions.Service, s trust.Signer, more ...func(*sessions.Answer)) (*protocol.HelloServerAccept, sessions.Identity) {
	t.Helper()
	accept, id, perr := hello(t, service, s, more...)
	if perr != nil {
		t.Fatal(perr)
	}
	return accept, id
}

func withBearer(token string) func(*sessions.Answer) {
	return func(a *sessions.Answer) { a.Bearer, a.HasBearer = token, true }
}

func live(id sessions.Identity) func(*sessions.Answer) {
	return func(a *sessions.Answer) { a.Live = &id }
}

// access runs both steps of an access token.
func access(t *testing.T, service *sessions.Service, s trust.Signer) (sessions.AccessGrant, *protocol.Error) {
	t.Helper()
	c, perr := service.ChallengeAccess(t.Context(), sessions.AccessRequest{Principal: s.Principal, KeyID: s.KeyID, ClientNonce: clientNonce})
	if perr != nil {
		t.Fatal(perr)
	}
	b, err := transcript.Check(transcript.Access, c.Challenge, s.Principal, s.KeyID, clientNonce)
	if err != nil {
		t.Fatal(err)
	}
	return service.GrantAccess(t.Context(), sessions.AccessProof{Challenge: c.Challenge, ChallengeSignature: sign(s, b), KeyID: s.KeyID})
}

func expect(t *testing.T, what string, perr *protocol.Error, code protocol.Code) {
	t.Helper()
	switch {
	case perr == nil && code != "":
		t.Errorf("%s: accepted, want %s", what, code)
	case perr != nil && perr.Code != code:
		t.Errorf("%s: %v, want %q", what, perr, code)
	}
}

// revokeCard registers the next card of an Agent with status revoked.
func (w *world) revokeCard(t *testing.T, s trust.Signer) {
	t.Helper()
	w.nextCard(t, s, func(c *protocol.AgentCard) { c.Status = registry.CardRevoked })
}

func (w *world) nextCard(t *testing.T, s trust.Signer, change func(*protocol.AgentCard)) {
	t.Helper()
	view, err := w.Directory.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	present, ok := view.Agent(s.Principal.ID)
	if !ok {
		t.Fatal(errors.New("no card"))
	}
	card := present.Card
	card.CardVersion++
	card.IssuedAt = registrytest.Now()
	card.PublicKeys = slices.Clone(card.PublicKeys)
	change(&card)
	w.AddCard(t, card)
}
