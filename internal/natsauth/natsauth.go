// Package natsauth lets Workers subscribe to their Groups' Events at NATS
// itself: it hands out short-lived credentials, answers NATS when one is
// presented (auth callout), and has connections cut whose ground has gone.
//
// The protocol it keeps is COMMANDS.md 3.7 and 8.3: a Worker gets live Events of
// Groups that it is an active member of, under its current session, and nothing
// after either has ended. It can publish nothing.
//
// Hazards. A credential that outlives its ground: it grants nothing by itself;
// what its bearer may hear is read from the database when NATS asks, and every
// connection is on record before it is let in, so that a change of Membership or
// session finds it. A subject that carries more than its reader may see: NATS
// does not filter, so a provisional member gets no subject at all, and a member
// whose visibility begins later gets one only when everything before that is
// published. A permission list that is empty means "everything" to NATS: a
// bearer without Groups is refused.
package natsauth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/sessions"
)

const (
	// CredentialLife bounds a credential and every connection made with it.
	CredentialLife = 5 * time.Minute
	// MaxGroups is how many Groups one connection may follow, as many as one
	// SUBSCRIBE frame may name (COMMANDS.md 8.12).
	MaxGroups = 256
	// tokenKind begins every credential; a name of the Organization follows.
	tokenKind = "mwn."
	// maxCredentials bounds the living credentials of one Agent.
	maxCredentials = 32
)

// Sessions checks credentials again; *sessions.Service does.
type Sessions interface {
	Check(ctx context.Context, id sessions.Identity) *protocol.Error
	Recheck(ctx context.Context, ids []sessions.Identity) ([]*protocol.Error, error)
}

// Options is what a Service works with. All of Pool, Conn, System, Issuer and
// OrganizationID are required.
type Options struct {
	Pool *pgxpool.Pool
	// Conn is the connection of a user that NATS lets in without asking; System
	// one of NATS's system account, which may cut others.
	Conn, System *nats.Conn
	// Issuer is the seed of the account key that NATS believes (SA…).
	Issuer string
	// Account is where Group Events are published, "" for NATS's global one.
	Account        string
	OrganizationID string
	// URL is where Workers reach NATS.
	URL string
	// Every is the pause between two looks at all connections, default 2 s.
	Every time.Duration
	Log   *slog.Logger
}

// Service is the authority over direct subscriptions.
type Service struct {
	options  Options
	issuer   nkeys.KeyPair
	public   string
	prefix   string
	sessions Sessions

	changed chan struct{}
	busy    chan struct{}
	running sync.WaitGroup

	granted, admitted, refused, cut atomic.Int64
}

// New makes a Service. SetSessions must be called before Run. Error: a seed that
// is not an account's.
func New(o Options) (*Service, error) {
	issuer, err := nkeys.FromSeed([]byte(o.Issuer))
	if err != nil {
		return nil, errors.New("natsauth: the issuer's seed cannot be read") // the error could show it
	}
	public, err := issuer.PublicKey()
	if err != nil || !nkeys.IsValidPublicAccountKey(public) {
		return nil, errors.New("natsauth: the issuer's seed is not that of an account (SA…)")
	}
	if o.Account == "" {
		o.Account = "$G"
	}
	if o.Every == 0 {
		o.Every = 2 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	sum := sha256.Sum256([]byte("nats\x00" + o.OrganizationID))
	return &Service{
		options: o, issuer: issuer, public: public, prefix: tokenKind + hex.EncodeToString(sum[:8]) + ".",
		changed: make(chan struct{}, 1), busy: make(chan struct{}, 16),
	}, nil
}

// SetSessions gives the Service what checks sessions; the session service in turn
// tells this one of takeovers, so neither can be made with the other.
func (s *Service) SetSessions(check Sessions) { s.sessions = check }

// Follow is a Group with the subject that carries its Events.
type Follow struct {
	GroupID string `json:"groupId"`
	Subject string `json:"subject"`
}

// Credentials let an Agent connect to NATS until they expire.
type Credentials struct {
	URL       string   `json:"url"`
	Token     string   `json:"token"`
	ExpiresAt string   `json:"expiresAt"`
	Groups    []Follow `json:"groups"`
}

// Grant issues credentials for the Groups among groupIDs, or all when it is nil,
// that the Agent is an active member of. Refusals: AUTH_FORBIDDEN for a
// credential that is no session token; MEMBERSHIP_REQUIRED when there is no such
// Group; RATE_LIMITED while too many are alive.
func (s *Service) Grant(ctx context.Context, id sessions.Identity, groupIDs []string) (*Credentials, *protocol.Error) {
	if id.Kind != sessions.SessionToken || id.Principal.Type != protocol.ActorAgent {
		return nil, protocol.NewError(protocol.CodeAuthForbidden, "session_token")
	}
	may, err := s.mayFollow(ctx, id.Principal.ID, groupIDs)
	if err != nil {
		return nil, protocol.Internal(err)
	}
	if len(may.ids) == 0 {
		return nil, protocol.NewError(protocol.CodeMembershipRequired, "")
	}
	var secret [32]byte
	_, _ = rand.Read(secret[:])
	c := &Credentials{URL: s.options.URL, Token: s.prefix + lexical.EncodeBase64URL(secret[:])}
	expires := time.Now().Add(CredentialLife)
	if id.ExpiresAt.Before(expires) {
		expires = id.ExpiresAt
	}
	c.ExpiresAt = lexical.FormatMicros(expires)
	// The limit and the row are one statement; two at the same moment may both pass
	// the last place, which costs a row.
	tag, err := s.options.Pool.Exec(ctx, `
		WITH gone AS (DELETE FROM nats_credentials WHERE expires_at < clock_timestamp())
		INSERT INTO nats_credentials (token_hash, agent_id, key_id, session_epoch, group_ids, expires_at)
		SELECT $1, $2, $3, $4, $5, $6
		WHERE (SELECT count(*) FROM nats_credentials WHERE agent_id = $2 AND expires_at >= clock_timestamp()) < $7`,
		hashOf(c.Token), id.Principal.ID, id.KeyID, id.SessionEpoch, may.ids, expires, maxCredentials)
	if err != nil {
		return nil, protocol.Internal(fmt.Errorf("natsauth: grant: %w", err))
	}
	if tag.RowsAffected() == 0 {
		return nil, protocol.NewError(protocol.CodeRateLimited, "nats_credentials").
			WithDetail("policyName", "natsCredentials").WithDetail("limit", int64(maxCredentials)).
			WithRetryAfter(CredentialLife.Milliseconds() / maxCredentials)
	}
	for _, groupID := range may.ids {
		c.Groups = append(c.Groups, Follow{groupID, events.Subject(groupID)})
	}
	s.granted.Add(1)
	return c, nil
}

func hashOf(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

// follows is a set of Groups with the Membership Epochs that let them be heard.
type follows struct {
	ids    []string
	epochs []int64
}

// common keeps what is in both, epochs included.
func (f follows) common(other follows) (out follows) {
	epochs := map[string]int64{}
	for i, id := range other.ids {
		epochs[id] = other.epochs[i]
	}
	for i, id := range f.ids {
		if epochs[id] == f.epochs[i] {
			out.ids, out.epochs = append(out.ids, id), append(out.epochs, f.epochs[i])
		}
	}
	return out
}

// mayFollow finds the Groups whose live Events the Agent may see without any
// exception. An Event that is still to be published must not lie before the
// beginning of the Agent's visibility.
func (s *Service) mayFollow(ctx context.Context, agentID string, among []string) (follows, error) {
	rows, err := s.options.Pool.Query(ctx, `
		SELECT m.group_id, m.epoch FROM memberships m
		JOIN groups g ON g.tree_id = m.tree_id AND g.group_id = m.group_id
		WHERE m.member_type = 'agent' AND m.member_id = $1 AND m.state = 'active'
		  AND m.visibility_start <= g.published_sequence + 1
		  AND ($2::text[] IS NULL OR m.group_id = ANY($2))
		ORDER BY m.group_id LIMIT $3`, agentID, among, MaxGroups)
	if err != nil {
		return follows{}, fmt.Errorf("natsauth: memberships: %w", err)
	}
	var f follows
	var id string
	var epoch int64
	_, err = pgx.ForEachRow(rows, []any{&id, &epoch}, func() error {
		f.ids, f.epochs = append(f.ids, id), append(f.epochs, epoch)
		return nil
	})
	if err != nil {
		return follows{}, fmt.Errorf("natsauth: memberships: %w", err)
	}
	return f, nil
}

// Stats are counters since the start: credentials handed out, connections let in
// and refused, connections that were cut.
type Stats struct{ Granted, Admitted, Refused, Cut int64 }

// Stats returns the counters.
func (s *Service) Stats() Stats {
	return Stats{s.granted.Load(), s.admitted.Load(), s.refused.Load(), s.cut.Load()}
}

// PublicURL is a NATS URL, or a list of them, without the account in it.
func PublicURL(natsURL string) string {
	parts := strings.Split(natsURL, ",")
	for i, part := range parts {
		if u, err := url.Parse(strings.TrimSpace(part)); err == nil && u.Host != "" {
			u.User = nil
			parts[i] = u.String()
		} else {
			parts[i] = ""
		}
	}
	return strings.Join(parts, ",")
}
