package sessions

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// Bounds and defaults of lives (COMMANDS.md 8.1, 8.3; API.md).
const (
	ChallengeLife  = 30 * time.Second
	DefaultLife    = 900 * time.Second
	MaxAccessLife  = 900 * time.Second
	handshakeFrame = time.Minute
)

// Opener opens the next Session Epoch of an Agent: with the Command session_open
// in the Authority's log. It answers when the Event and all lease revocations
// are committed. CommandOpener is the one for service.
type Opener interface {
	Open(ctx context.Context, agentID, keyID string, expiresAt time.Time) (epoch int64, err *protocol.Error)
}

// Config is what a Service works with. Opener may be nil where no sessions are
// opened (registry, authorization).
type Config struct {
	Pool      *pgxpool.Pool
	Directory *registry.Directory
	// Signer is the identity service: it signs tokens and session_open.
	Signer trust.Signer
	// SignerNow, when set, says which of the identity service's keys signs at the
	// moment, in place of Signer's.
	SignerNow func(ctx context.Context, view *registry.View) (trust.Signer, error)
	Opener    Opener
	// AgentLock is the advisory lock of an Agent's sessions, the one that every
	// commit of the Agent holds shared: events.AgentLockKey.
	AgentLock func(agentID string) int64
	Mint      func() string
	Now       func() time.Time
	// Life is how long a session lives; AccessLife an access token, at most
	// MaxAccessLife.
	Life, AccessLife time.Duration
	// ChallengeLife is how long a challenge waits for its answer.
	ChallengeLife time.Duration
	// HellosPerMinute bounds completed handshakes of one Agent over all replicas;
	// 0 means no bound.
	HellosPerMinute int
	// Opened and Resumed are called before an accept is answered: whoever holds
	// older connections of the Agent closes them first (COMMANDS.md 8.3, 8.4).
	Opened, Resumed func(ctx context.Context, agentID string, epoch int64)
}

// Service issues and checks credentials. Its refusals are *protocol.Error; what
// fails inside is INTERNAL_ERROR with its cause.
type Service struct {
	cfg Config
	// decoy is verified against where there is no key, so that an unknown key
	// takes the same time.
	decoy trust.Signer
}

// New returns a Service. It panics when sessions are to be opened without the
// lock that fences them.
func New(cfg Config) *Service {
	if cfg.Opener != nil && cfg.AgentLock == nil {
		panic("sessions: Opener without AgentLock")
	}
	if o, ok := cfg.Opener.(*CommandOpener); ok && o.SignerNow == nil && cfg.SignerNow != nil {
		// Tokens and Commands of the identity service change keys together.
		o.SignerNow = func(ctx context.Context) (trust.Signer, error) {
			view, err := cfg.Directory.View(ctx)
			if err != nil {
				return trust.Signer{}, err
			}
			return cfg.SignerNow(ctx, view)
		}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Life == 0 {
		cfg.Life = DefaultLife
	}
	if cfg.AccessLife == 0 || cfg.AccessLife > MaxAccessLife {
		cfg.AccessLife = MaxAccessLife
	}
	if cfg.ChallengeLife == 0 {
		cfg.ChallengeLife = ChallengeLife
	}
	ignore := func(context.Context, string, int64) {}
	if cfg.Opened == nil {
		cfg.Opened = ignore
	}
	if cfg.Resumed == nil {
		cfg.Resumed = ignore
	}
	seed := sha256.Sum256([]byte("decoy"))
	decoy, err := trust.NewSigner("urn:missionweave:key:decoy", protocol.Actor{}, seed[:])
	if err != nil {
		panic(err)
	}
	return &Service{cfg: cfg, decoy: decoy}
}

// Authenticate says whom a bearer credential stands for, now. AUTH_REQUIRED: it
// is malformed, not ours, expired, or its key or the Agent's card has ended.
// AUTH_STALE_SESSION: its session was replaced.
func (s *Service) Authenticate(ctx context.Context, bearer string) (Identity, *protocol.Error) {
	view, err := s.cfg.Directory.View(ctx)
	if err != nil {
		return Identity{}, protocol.Internal(err)
	}
	id, err := read(view, bearer, s.cfg.Now())
	if err != nil {
		// A key that was registered a moment ago may be missing in a view that is
		// only current within its bound.
		if view, err = s.cfg.Directory.Current(ctx); err != nil {
			return Identity{}, protocol.Internal(err)
		}
		if id, err = read(view, bearer, s.cfg.Now()); err != nil {
			return Identity{}, protocol.NewError(protocol.CodeAuthRequired, "token").WithCause(err)
		}
	}
	return id, s.Check(ctx, id)
}

// Check asks again whether an Identity still holds: nil, AUTH_REQUIRED or
// AUTH_STALE_SESSION. Streams and connections that live on a credential call it.
func (s *Service) Check(ctx context.Context, id Identity) *protocol.Error {
	if !s.cfg.Now().Before(id.ExpiresAt) {
		return protocol.NewError(protocol.CodeAuthRequired, "expired")
	}
	var revision, epoch int64
	err := s.cfg.Pool.QueryRow(ctx, `
		SELECT (SELECT revision FROM registry_head),
			coalesce((SELECT session_epoch FROM agent_sessions WHERE agent_id = $1), 0)`,
		id.Principal.ID).Scan(&revision, &epoch)
	if err != nil {
		return protocol.Internal(err)
	}
	view, err := s.cfg.Directory.AtLeast(ctx, revision)
	if err != nil {
		return protocol.Internal(err)
	}
	if id.Kind == SessionToken && id.SessionEpoch < epoch {
		return stale(id.SessionEpoch)
	}
	if id.Kind == SessionToken && id.SessionEpoch > epoch {
		return protocol.NewError(protocol.CodeAuthRequired, "unknown_epoch")
	}
	if _, reason := s.holder(view, id.Principal, id.KeyID); reason != "" {
		return protocol.NewError(protocol.CodeAuthRequired, reason)
	}
	return nil
}

func stale(received int64) *protocol.Error {
	return protocol.NewError(protocol.CodeAuthStaleSession, "").WithDetail("receivedSessionEpoch", received)
}

// holder looks at what any credential needs: a key that is bound to the
// Principal and valid now, and for an Agent a card that is alive. ends is when
// the first of them ends.
func (s *Service) holder(view *registry.View, principal protocol.Actor, keyID string) (ends []optionalTime, reason string) {
	now := s.cfg.Now()
	key, ok := view.Evidence.Key(keyID)
	if !ok || key.Principal() != principal {
		return nil, "unknown_key"
	}
	if !key.Interval().Contains(lexical.InstantOf(now)) {
		return nil, "key_not_valid"
	}
	ends = append(ends, optional(registry.KeyEnd(key)))
	if principal.Type == protocol.ActorAgent {
		card, ok := view.Agent(principal.ID)
		if !ok || !card.Alive(now) {
			return nil, "card_not_valid"
		}
		ends = append(ends, optional(card.ValidUntil()))
	}
	return ends, ""
}

// signing is the key that signs tokens now, and when it ends: no token outlives
// the key that makes it good.
func (s *Service) signing(ctx context.Context, view *registry.View) (signer trust.Signer, end optionalTime, err error) {
	signer = s.cfg.Signer
	if s.cfg.SignerNow != nil {
		if signer, err = s.cfg.SignerNow(ctx, view); err != nil {
			return signer, end, err
		}
	}
	if key, ok := view.Evidence.Key(signer.KeyID); ok {
		end = optional(registry.KeyEnd(key))
	}
	return signer, end, nil
}

// Session is an Agent's current session.
type Session struct {
	Epoch     int64
	KeyID     string
	OpenedAt  time.Time
	ExpiresAt time.Time
}

// Current returns an Agent's current session, alive or not; ok is false when
// none was ever opened.
func (s *Service) Current(ctx context.Context, agentID string) (session Session, ok bool, err error) {
	err = s.cfg.Pool.QueryRow(ctx, `
		SELECT session_epoch, coalesce(key_id, ''), opened_at, expires_at FROM agent_sessions WHERE agent_id = $1`,
		agentID).Scan(&session.Epoch, &session.KeyID, &session.OpenedAt, &session.ExpiresAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return Session{}, false, nil
	}
	return session, err == nil, err
}

func random[T interface{ [32]byte | [18]byte }]() (b T) {
	switch p := any(&b).(type) {
	case *[32]byte:
		_, _ = rand.Read(p[:])
	case *[18]byte:
		_, _ = rand.Read(p[:])
	}
	return b
}
