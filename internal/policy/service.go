package policy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/aeplog"
	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/trust"
	"github.com/missionweave/server/internal/views"
)

// TokenChecker checks a Capability Token online: that it is ours and whole, and
// that everything it was issued for still stands. It answers as authz.Service does.
type TokenChecker interface {
	CheckCapability(ctx context.Context, q authz.Querier, token string) (authz.Claims, *protocol.Error)
}

// Evidence writes the record of an action in the transaction of its decision.
type Evidence interface {
	Append(ctx context.Context, tx pgx.Tx, e aeplog.Entry) (recordID string, err error)
	// Lease is the lease evidence of an earlier record of the action; nil if it has
	// none.
	Lease(ctx context.Context, tx pgx.Tx, recordID, actionID string) (*evidence.LeaseEvidence, error)
	// NextInvocation is the number that the record of an action would have under its
	// lease; it stays free until tx ends.
	NextInvocation(ctx context.Context, tx pgx.Tx, r aeplog.Run, a *evidence.Action) (int64, error)
}

// Submit hands a signed Command to the Authority. INTERNAL_ERROR leaves open
// whether it was accepted: the same bytes may be sent again.
type Submit func(ctx context.Context, command []byte) (receipt []byte, replayed bool, err *protocol.Error)

// Config is what a Service works with. All fields but Log are required.
type Config struct {
	Pool      *pgxpool.Pool
	Store     *events.Store // reads Groups
	Directory *registry.Directory
	Views     *views.Views
	Tokens    TokenChecker
	Evidence  Evidence
	Submit    Submit
	// Signer is the key with which the Authorization Service signs Commands now.
	Signer func(ctx context.Context) (trust.Signer, error)
	Mint   func() string
	Log    *slog.Logger
	// AskFor is how long a human has to answer an ASK.
	AskFor time.Duration
}

// DefaultAskFor is the default of Config.AskFor.
const DefaultAskFor = time.Hour

// Service is safe for concurrent use.
type Service struct {
	cfg Config
	*Versions
}

// New returns a Service. versions may be shared with others that ask which
// manifest is in force.
func New(cfg Config, versions *Versions) *Service {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.AskFor <= 0 {
		cfg.AskFor = DefaultAskFor
	}
	return &Service{cfg: cfg, Versions: versions}
}

// Versions are the stored manifest versions and which of them is in force. A
// compiled version is kept: it never changes.
type Versions struct {
	mu       sync.Mutex
	compiled map[string]*manifest.Manifest
	order    []string
}

// keptVersions bounds the compiled versions in memory.
const keptVersions = 64

// NewVersions returns the versions of a database.
func NewVersions() *Versions { return &Versions{compiled: map[string]*manifest.Manifest{}} }

// InForce implements authz.Manifests: the version of the Group, else the
// Organization's, "" where there is none. A version that was withdrawn is in force
// nowhere, and none takes its place by itself.
func (*Versions) InForce(ctx context.Context, q authz.Querier, groupID string) (version string, err error) {
	var withdrawn bool
	err = q.QueryRow(ctx, `SELECT b.version, w.version IS NOT NULL FROM (
			(SELECT 1 AS rank, version FROM manifest_bindings WHERE group_id = $1 AND $1 <> '' ORDER BY entry DESC LIMIT 1)
			UNION ALL
			(SELECT 2, version FROM manifest_bindings WHERE group_id = '' ORDER BY entry DESC LIMIT 1)
		) b LEFT JOIN manifest_withdrawals w ON w.version = b.version
		ORDER BY b.rank LIMIT 1`, groupID).Scan(&version, &withdrawn)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && withdrawn {
		return "", nil
	}
	return version, err
}

// Withdrawn implements authz.Manifests.
func (*Versions) Withdrawn(ctx context.Context, q authz.Querier, version string) (withdrawn bool, err error) {
	err = q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM manifest_withdrawals WHERE version = $1)`, version).Scan(&withdrawn)
	return withdrawn, err
}

// Withdrawals implements authz.CountedManifests.
func (*Versions) Withdrawals(ctx context.Context, q authz.Querier) (n int64, err error) {
	err = q.QueryRow(ctx, `SELECT count(*) FROM manifest_withdrawals`).Scan(&n)
	return n, err
}

// errNoVersion is a version that is not stored.
var errNoVersion = errors.New("policy: no such manifest version")

// load returns a compiled version. errNoVersion for one that is not stored.
func (v *Versions) load(ctx context.Context, q authz.Querier, version string) (*manifest.Manifest, error) {
	v.mu.Lock()
	m := v.compiled[version]
	v.mu.Unlock()
	if m != nil {
		return m, nil
	}
	var canonical []byte
	err := q.QueryRow(ctx, `SELECT canonical FROM manifests WHERE version = $1`, version).Scan(&canonical)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, errNoVersion
	}
	if err != nil {
		return nil, err
	}
	m, err = manifest.Stored(canonical)
	if err != nil {
		return nil, err
	}
	if m.Version() != version {
		return nil, errors.New("policy: a stored manifest is not the one that its version names")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.compiled[version] == nil {
		if len(v.order) >= keptVersions {
			delete(v.compiled, v.order[0])
			v.order = v.order[1:]
		}
		v.compiled[version] = m
		v.order = append(v.order, version)
	}
	return m, nil
}

// inForce is the compiled version of a Group, nil where there is none.
func (v *Versions) inForce(ctx context.Context, q authz.Querier, groupID string) (*manifest.Manifest, error) {
	version, err := v.InForce(ctx, q, groupID)
	if err != nil || version == "" {
		return nil, err
	}
	return v.load(ctx, q, version)
}

// sessionID names an Agent's session; other Principals have none and their own id
// stands for it.
func sessionID(who sessions.Identity) string {
	if who.Kind == sessions.SessionToken {
		return manifestSession(who.Principal.ID, who.SessionEpoch)
	}
	return who.Principal.ID
}

// now is the database's clock.
func (s *Service) now(ctx context.Context, q authz.Querier) (t time.Time, err error) {
	err = q.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&t)
	return t.UTC(), err
}

// enter lets a Principal into a Group as an active member, or a service of the
// Organization. GROUP_NOT_FOUND for what may not be known.
func (s *Service) enter(ctx context.Context, who protocol.Actor, groupID string) (*views.Access, error) {
	if who.Type == protocol.ActorService {
		view, err := s.cfg.Directory.View(ctx)
		if err != nil {
			return nil, err
		}
		var there bool
		if err := s.cfg.Pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM groups WHERE group_id = $1)`, groupID).Scan(&there); err != nil {
			return nil, err
		}
		if !there || !view.IsService(who) {
			return nil, protocol.NewError(protocol.CodeGroupNotFound, "")
		}
		return &views.Access{GroupID: groupID, Reader: who}, nil
	}
	access, perr := s.cfg.Views.Enter(ctx, who, groupID)
	if perr != nil {
		return nil, perr
	}
	if access.Provisional {
		return nil, protocol.NewError(protocol.CodeAuthForbidden, "provisional")
	}
	return access, nil
}

// holds tells whether a human holds a scope in a Group now.
func (s *Service) holds(ctx context.Context, who protocol.Actor, groupID, scope string, now time.Time) (bool, error) {
	if who.Type != protocol.ActorHuman {
		return false, nil
	}
	g, err := s.cfg.Store.LoadGroup(ctx, groupID)
	if errors.Is(err, events.ErrGroupUnknown) {
		return false, protocol.NewError(protocol.CodeGroupNotFound, "")
	}
	if err != nil {
		return false, err
	}
	m, err := g.State.MemberFor(who, 0, now)
	if err != nil {
		return false, err
	}
	return m.State == "active" && slices.Contains(m.Scopes, scope), nil
}

// approver refuses whoever may not answer ASKs of a Group.
func (s *Service) approver(ctx context.Context, who protocol.Actor, groupID string, now time.Time) error {
	ok, err := s.holds(ctx, who, groupID, groups.ScopeApprovalExecution, now)
	if err == nil && !ok {
		err = protocol.NewError(protocol.CodeAuthForbidden, "scope")
	}
	return err
}

// keeper tells whether a service may install manifests.
func (s *Service) keeper(ctx context.Context, who protocol.Actor) (bool, error) {
	view, err := s.cfg.Directory.View(ctx)
	if err != nil {
		return false, err
	}
	return view.HasRole(who, registry.RolePolicy), nil
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// marshal is strictjson.Marshal for values of our own, which have a JSON form.
func marshal(v any) []byte {
	b, err := strictjson.Marshal(v)
	if err != nil {
		panic("policy: a value of our own has no JSON form: " + err.Error())
	}
	return b
}

func forbidden(reason string) *protocol.Error {
	return protocol.NewError(protocol.CodeAuthForbidden, reason)
}

func invalid(reason string) *protocol.Error {
	return protocol.NewError(protocol.CodeInvalidCommand, reason)
}
