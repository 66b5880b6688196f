package authz

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/missionweave/server/internal/authz/tokens"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
)

// DefaultLife is how long a token lives that asks for nothing (COMMANDS.md 7.3).
const DefaultLife = 300 * time.Second

// Claims are what a verified token says.
type Claims = tokens.Claims

// Querier is a connection, a pool or a transaction.
type Querier interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Manifests says which World Manifest is in force. A Service without it binds its
// tokens to none.
type Manifests interface {
	// InForce is the version for a Group, "" when it has none.
	InForce(ctx context.Context, q Querier, groupID string) (version string, err error)
	// Withdrawn tells whether a version is no longer to be acted under.
	Withdrawn(ctx context.Context, q Querier, version string) (bool, error)
}

// CountedManifests is what Manifests may offer besides, so that a sweep looks at the
// tokens of every Group only when something was withdrawn.
type CountedManifests interface {
	// Withdrawals is how many versions were ever withdrawn.
	Withdrawals(ctx context.Context, q Querier) (int64, error)
}

// BatchedManifests is what Manifests may offer besides, so that the issue of a
// token reads everything in one round trip: InForce as part of a batch.
type BatchedManifests interface {
	QueueInForce(b *pgx.Batch, groupID string, version *string)
}

// Config is what a Service works with. NATS, Manifests and Log may be nil.
type Config struct {
	Store     *events.Store
	Directory *registry.Directory
	Keys      *Keyring
	// Organization builds the policy that the Authority decides under: its gates
	// are the gates here.
	Organization func(*registry.View) *groups.Organization
	// MaxLife bounds the life of every token.
	MaxLife   time.Duration
	Mint      func() string
	Now       func() time.Time
	NATS      *nats.Conn
	Manifests Manifests
	Log       *slog.Logger
	// SweepEvery is the pause between two looks at the tokens given out, when
	// nothing wakes the service earlier; default 1 s.
	SweepEvery time.Duration
}

// Service issues, checks and revokes tokens. It is safe for concurrent use.
type Service struct {
	cfg    Config
	groups *groupCache
	swept  map[string]int64 // head at the last sweep by Group; the sweeper's own
	sweptR int64            // Registry revision of the last sweep
	sweptW int64            // withdrawals of manifests at the last sweep
	wake   chan struct{}
	policy atomic.Pointer[policyAt]
}

// policyAt is the Organization policy at a revision of the Registry.
type policyAt struct {
	revision int64
	org      *groups.Organization
}

// New returns a Service. Run watches what it gave out.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.SweepEvery <= 0 {
		cfg.SweepEvery = time.Second
	}
	if cfg.MaxLife <= 0 {
		cfg.MaxLife = DefaultLife
	}
	return &Service{
		cfg: cfg, groups: newGroupCache(cfg.Store, 1000), swept: map[string]int64{}, wake: make(chan struct{}, 1),
	}
}

// facts are what a decision needs beside the Group, read with it.
type facts struct {
	now            time.Time
	revision       int64
	sessionEpoch   int64
	sessionExpires time.Time
}

const sqlFacts = `SELECT clock_timestamp(), coalesce((SELECT revision FROM registry_head), 0),
	coalesce(s.session_epoch, 0), s.expires_at
FROM (SELECT 1) one LEFT JOIN agent_sessions s ON s.agent_id = $1`

func queueFacts(b *pgx.Batch, agentID string, f *facts) {
	b.Queue(sqlFacts, agentID).QueryRow(func(row pgx.Row) error {
		var expires *time.Time // none without a session
		err := row.Scan(&f.now, &f.revision, &f.sessionEpoch, &expires)
		f.now, f.sessionExpires = f.now.UTC(), time.Time{}
		if expires != nil {
			f.sessionExpires = expires.UTC()
		}
		return err
	})
}

// organization is the policy of a view, made once per revision.
func (s *Service) organization(view *registry.View) *groups.Organization {
	if p := s.policy.Load(); p != nil && p.revision == view.Revision {
		return p.org
	}
	p := &policyAt{view.Revision, s.cfg.Organization(view)}
	s.policy.Store(p)
	return p.org
}

// agentStands checks session, key and card of an Agent as of now: nil,
// AUTH_STALE_SESSION or AUTH_REQUIRED.
func agentStands(view *registry.View, f *facts, agentID, keyID string, epoch int64) *protocol.Error {
	switch {
	case epoch < f.sessionEpoch:
		return protocol.NewError(protocol.CodeAuthStaleSession, "").WithDetail("receivedSessionEpoch", epoch)
	case epoch > f.sessionEpoch:
		return protocol.NewError(protocol.CodeAuthRequired, "unknown_epoch")
	case !f.now.Before(f.sessionExpires):
		return protocol.NewError(protocol.CodeAuthRequired, "session_expired")
	}
	key, ok := view.Evidence.Key(keyID)
	agent := protocol.Actor{Type: protocol.ActorAgent, ID: agentID}
	if !ok || key.Principal() != agent || !key.Interval().Contains(lexical.InstantOf(f.now)) {
		return protocol.NewError(protocol.CodeAuthRequired, "key_not_valid")
	}
	if card, ok := view.Agent(agentID); !ok || !card.Alive(f.now) {
		return protocol.NewError(protocol.CodeAuthRequired, "card_not_valid")
	}
	return nil
}

// refusal turns any error into what the caller is told.
func refusal(err error) *protocol.Error {
	if err == nil {
		return nil
	}
	var perr *protocol.Error
	if errors.As(err, &perr) {
		return perr
	}
	return protocol.Internal(err)
}
