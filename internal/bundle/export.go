package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// Exporter writes bundles.
type Exporter struct {
	pool      *pgxpool.Pool
	directory *registry.Directory
	signer    func() (trust.Signer, error)
	now       func() time.Time
}

// NewExporter makes an Exporter; signer gives the Group Authority's key.
func NewExporter(pool *pgxpool.Pool, d *registry.Directory, signer func() (trust.Signer, error)) *Exporter {
	return &Exporter{pool: pool, directory: d, signer: signer, now: time.Now}
}

// Errors of Export before anything was written.
var (
	// ErrGroupUnknown says that there is no such Group.
	ErrGroupUnknown = errors.New("bundle: no such Group")
	// ErrLogNotKept says that the first Events of an archived Group are not kept any
	// more, so that nothing could be folded from them.
	ErrLogNotKept = errors.New("bundle: the beginning of the log is not kept")
)

// snapshot is what is read in one transaction. Everything else that a bundle
// holds never changes: Events and Commands up to the head, evidence records up to
// the length of their run, and key histories, to which later records may be added.
type snapshot struct {
	head   header
	tree   int64
	at     time.Time // of the transaction: what happened later is not in it
	policy []protocol.PolicyLogEntry
	state  []byte
	runs   []runLine
	view   *registry.View
	agents []string
}

// page is how many Events are read at once.
const page = 500

// Export writes the bundle of a Group as of now. With commands the Commands
// behind the Events are in it. Before the first byte is written, started is
// called. An error after that leaves a bundle without a seal, which does not
// verify. Errors before: ErrGroupUnknown, ErrLogNotKept.
func (e *Exporter) Export(ctx context.Context, w io.Writer, groupID string, commands bool, started func()) error {
	s, err := e.snapshot(ctx, groupID)
	if err != nil {
		return err
	}
	signer, err := e.signer()
	if err != nil {
		return fmt.Errorf("bundle: signing key: %w", err)
	}
	s.head.Commands = commands
	started()
	out := newWriter(w)
	x := &export{Exporter: e, w: out, s: s}
	for _, part := range []func(context.Context) error{x.registry, x.events, x.derived, x.decisions, x.evidence} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	if err := x.seal(signer); err != nil {
		return err
	}
	return out.w.Flush()
}

// snapshot reads the Group's head and state, and what else can change, at one
// moment.
func (e *Exporter) snapshot(ctx context.Context, groupID string) (*snapshot, error) {
	s := &snapshot{}
	err := pgx.BeginTxFunc(ctx, e.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		h := &s.head
		var dump []byte
		var first *int64
		err := tx.QueryRow(ctx, `SELECT now(), g.tree_id, g.mission_id, g.root_mission_id, g.head_sequence, n.state,
				(SELECT min(sequence) FROM event_log e WHERE e.tree_id = g.tree_id AND e.group_id = g.group_id)
			FROM groups g LEFT JOIN snapshots n ON n.tree_id = g.tree_id AND n.group_id = g.group_id AND n.format = $2
				AND n.sequence <= g.head_sequence
			WHERE g.group_id = $1`, groupID, events.SnapshotFormat).
			Scan(&s.at, &s.tree, &h.MissionID, &h.RootMissionID, &h.Head, &dump, &first)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrGroupUnknown
		}
		if err != nil {
			return err
		}
		if first == nil || *first != 1 {
			return ErrLogNotKept
		}
		h.Format, h.GroupID = Format, groupID
		state, err := s.fold(ctx, tx, dump)
		if err != nil && dump != nil {
			// A stored state only saves time: one that cannot be read, or that the Events
			// do not follow, is left alone.
			state, err = s.fold(ctx, tx, nil)
		}
		if err != nil {
			return err
		}
		s.policy = state.PolicyLog
		if s.state, err = state.Canonical(); err != nil {
			return err
		}
		for _, m := range state.SortedMemberships() {
			if m.Member.Type == protocol.ActorAgent {
				s.agents = append(s.agents, m.Member.ID)
			}
		}
		rows, err := tx.Query(ctx, `SELECT run_id, length, head FROM evidence_runs WHERE group_id = $1 AND length > 0 ORDER BY run_id`, groupID)
		if err != nil {
			return err
		}
		s.runs, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r runLine, err error) {
			err = row.Scan(&r.RunID, &r.Length, &r.Head)
			return r, err
		})
		h.Runs = int64(len(s.runs))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	// A later revision holds all of an earlier one, so reading it afterwards loses
	// nothing.
	if s.view, err = e.directory.Current(ctx); err != nil {
		return nil, fmt.Errorf("bundle: registry: %w", err)
	}
	s.head.OrganizationID, s.head.RegistryRevision = s.view.OrganizationID, s.view.Revision
	s.head.TakenAt = lexical.FormatMicros(e.now().UTC())
	for range s.view.Evidence.All() {
		s.head.Keys++
	}
	for _, role := range roles {
		s.head.Services += int64(len(s.view.Services(role)))
	}
	return s, nil
}

var roles = []registry.Role{
	registry.RoleRegistry, registry.RoleIdentity, registry.RoleGroupAuthority, registry.RoleAuthorization, registry.RoleArchival,
	registry.RolePolicy, registry.RoleMetering, registry.RoleEvidence, registry.RoleContextGenerator,
}

// fold makes the state at the head from a stored one and the Events after it.
func (s *snapshot) fold(ctx context.Context, tx pgx.Tx, dump []byte) (*groups.State, error) {
	state := groups.New()
	if dump != nil {
		var err error
		if state, err = groups.ParseState(dump); err != nil {
			return nil, err
		}
	}
	state.TreeID = s.head.RootMissionID
	for state.Head < s.head.Head {
		rows, err := tx.Query(ctx, `SELECT document FROM event_log WHERE tree_id = $1 AND group_id = $2 AND sequence > $3 AND sequence <= $4
			ORDER BY sequence LIMIT $5`, s.tree, s.head.GroupID, state.Head, s.head.Head, page)
		if err != nil {
			return nil, err
		}
		before := state.Head
		var document []byte
		_, err = pgx.ForEachRow(rows, []any{&document}, func() error {
			ev, err := events.Decode(document)
			if err == nil {
				err = state.Apply(ev)
			}
			document = nil
			return err
		})
		if err != nil {
			return nil, err
		}
		if state.Head == before {
			return nil, fmt.Errorf("the log ends at %d before its head %d", state.Head, s.head.Head)
		}
	}
	return state, nil
}

// export is one bundle being written.
type export struct {
	*Exporter
	w *writer
	s *snapshot
	// buf is room for one line.
	buf []byte
}

func (x *export) value(kind string, v any) error {
	b, err := strictjson.Marshal(v)
	if err != nil {
		return err
	}
	return x.w.line(kind, b)
}

// registry writes the header, every key with its history, the duties and the
// cards of the Group's Agents.
func (x *export) registry(ctx context.Context) error {
	if err := x.value(kindHeader, x.s.head); err != nil {
		return err
	}
	for key := range x.s.view.Evidence.All() {
		if err := x.value(kindKey, keyLineOf(key.Binding())); err != nil {
			return err
		}
	}
	for _, role := range roles {
		for _, p := range x.s.view.Services(role) {
			if err := x.value(kindService, serviceLine{string(role), p.Type, p.ID}); err != nil {
				return err
			}
		}
	}
	rows, err := x.pool.Query(ctx, `SELECT document FROM agent_cards WHERE agent_id = ANY ($1) AND revision <= $2
		ORDER BY agent_id, card_version`, x.s.agents, x.s.view.Revision)
	if err != nil {
		return err
	}
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&document}, func() error { return x.w.line(kindCard, document) })
	return err
}

func keyLineOf(b trust.Binding) keyLine {
	l := keyLine{
		KeyID: b.KeyID, PrincipalType: b.Principal.Type, PrincipalID: b.Principal.ID, Algorithm: b.Algorithm, PublicKey: b.PublicKey,
		ValidFrom: b.ValidFrom, History: []statusLine{},
	}
	for _, v := range b.History {
		l.History = append(l.History, statusLine(v))
	}
	return l
}

// row is an Event as stored.
type row struct {
	record               [16]byte
	keyID, by            string
	at                   time.Time
	command, signingHash []byte
	document             []byte
}

func (x *export) events(ctx context.Context) error {
	var last []byte // Signing Hash of the Command that was written last
	for after := int64(0); after < x.s.head.Head; after += page {
		to := min(after+page, x.s.head.Head)
		rows, err := x.pool.Query(ctx, `SELECT admission_id, admission_key_id, admission_at, admission_by, command_hash, signing_hash, document
			FROM event_log WHERE tree_id = $1 AND group_id = $2 AND sequence > $3 AND sequence <= $4 ORDER BY sequence`,
			x.s.tree, x.s.head.GroupID, after, to)
		if err != nil {
			return err
		}
		list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (e row, err error) {
			err = r.Scan(&e.record, &e.keyID, &e.at, &e.by, &e.command, &e.signingHash, &e.document)
			return e, err
		})
		if err != nil {
			return err
		}
		if int64(len(list)) != to-after {
			return fmt.Errorf("bundle: %d Events from %d to %d", len(list), after+1, to)
		}
		if last, err = x.page(ctx, list, last); err != nil {
			return err
		}
	}
	return nil
}
