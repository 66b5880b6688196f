package events

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// MaxPage bounds a page of Events.
const MaxPage = 1000

// StoredEvent is a Group Event as stored: Document is the exact signed bytes.
type StoredEvent struct {
	GroupID    string
	Sequence   int64
	EventID    string
	Kind       string
	OccurredAt time.Time
	Document   []byte
	// shared is set where many readers get the same copy of the Event.
	shared *encoding
}

// encoding is what a transport makes of an Event's bytes.
type encoding struct {
	once  sync.Once
	bytes []byte
}

// Encoded returns what encode makes of the Event: made once for all readers of
// an Event that a Hub keeps, so every caller must pass the same encode. The
// result must not be changed.
func (e *StoredEvent) Encoded(encode func(*StoredEvent) []byte) []byte {
	if e.shared == nil {
		return encode(e)
	}
	e.shared.once.Do(func() { e.shared.bytes = encode(e) })
	return e.shared.bytes
}

// StoredFrom is the StoredEvent of a Group Event document that was verified; false
// when it is not one.
func StoredFrom(v strictjson.Value, document []byte) (StoredEvent, bool) {
	e := StoredEvent{
		GroupID: v.Member("groupId").Str(), EventID: v.Member("eventId").Str(), Kind: v.Member("kind").Str(), Document: document,
	}
	var whole bool
	e.Sequence, whole = v.Member("sequence").Int()
	at, err := lexical.ParseTimestamp(v.Member("occurredAt").Str())
	if err != nil || !whole || e.Sequence < 1 || e.GroupID == "" {
		return StoredEvent{}, false
	}
	e.OccurredAt = at.Time().UTC()
	return e, true
}

const sqlPage = `SELECT sequence, event_id, kind, occurred_at, document FROM events
WHERE tree_id = $1 AND group_id = $2 AND sequence > $3 ORDER BY sequence LIMIT $4`

// sqlWholePage also reads what was trimmed from the online log.
const sqlWholePage = `SELECT sequence, event_id, kind, occurred_at, document FROM event_log
WHERE tree_id = $1 AND group_id = $2 AND sequence > $3 ORDER BY sequence LIMIT $4`

// ReadEvents returns up to limit (1..MaxPage) Events after a sequence, in order
// and without gaps. Errors: ErrGroupUnknown, ErrTrimmed, ErrUnavailable.
func (s *Store) ReadEvents(ctx context.Context, groupID string, after int64, limit int) ([]StoredEvent, error) {
	tree, err := s.Tree(ctx, groupID)
	if err != nil {
		return nil, err
	}
	return readEvents(ctx, s.readers, tree, groupID, after, limit)
}

func readEvents(ctx context.Context, q Querier, tree int64, groupID string, after int64, limit int) ([]StoredEvent, error) {
	return readPage(ctx, q, sqlPage, tree, groupID, after, limit)
}

func readPage(ctx context.Context, q Querier, sql string, tree int64, groupID string, after int64, limit int) ([]StoredEvent, error) {
	limit = min(max(limit, 1), MaxPage)
	rows, err := q.Query(ctx, sql, tree, groupID, after, limit)
	if err != nil {
		return nil, read(err)
	}
	out, err := scanEvents(rows, groupID)
	if err != nil {
		return nil, read(err)
	}
	if len(out) > 0 && out[0].Sequence != max(after, 0)+1 {
		return nil, ErrTrimmed
	}
	return out, nil
}

func scanEvents(rows pgx.Rows, groupID string) ([]StoredEvent, error) {
	defer rows.Close()
	out := make([]StoredEvent, 0, 64)
	for rows.Next() {
		ev := StoredEvent{GroupID: groupID}
		var id [16]byte
		if err := rows.Scan(&ev.Sequence, &id, &ev.Kind, &ev.OccurredAt, &ev.Document); err != nil {
			return nil, err
		}
		ev.EventID, ev.OccurredAt = uuidURN(id), ev.OccurredAt.UTC()
		out = append(out, ev)
	}
	return out, rows.Err()
}

// EventAt names one Event of a Group.
type EventAt struct {
	GroupID  string
	Sequence int64
}

// EventsAt returns single Events by place, in the order asked for; one that does
// not exist is left out.
func (s *Store) EventsAt(ctx context.Context, at []EventAt) ([]StoredEvent, error) {
	var q pgx.Batch
	var out []StoredEvent
	for _, a := range at {
		tree, err := s.Tree(ctx, a.GroupID)
		if err != nil {
			return nil, err
		}
		q.Queue(sqlWholePage, tree, a.GroupID, a.Sequence-1, 1).Query(func(rows pgx.Rows) error {
			found, err := scanEvents(rows, a.GroupID)
			if err == nil && len(found) == 1 && found[0].Sequence == a.Sequence {
				out = append(out, found[0])
			}
			return err
		})
	}
	if len(at) == 0 {
		return nil, nil
	}
	return out, read(s.readers.SendBatch(ctx, &q).Close())
}

// EventDocument returns the exact bytes of one Event, by its place or, for a fact
// of the Organization (groupID ""), by its id.
func (s *Store) EventDocument(ctx context.Context, groupID string, sequence int64, eventID string) ([]byte, error) {
	id, err := uuidBytes(eventID)
	if err != nil {
		return nil, err
	}
	var document []byte
	if groupID == "" {
		err = s.readers.QueryRow(ctx, "SELECT document FROM org_events WHERE event_id = $1", id).Scan(&document)
		return document, read(err)
	}
	tree, err := s.Tree(ctx, groupID)
	if err != nil {
		return nil, err
	}
	err = s.readers.QueryRow(ctx, `SELECT document FROM event_log
		WHERE tree_id = $1 AND group_id = $2 AND sequence = $3 AND event_id = $4`, tree, groupID, sequence, id).Scan(&document)
	return document, read(err)
}

// DueGroup is a Group whose timers are due.
type DueGroup struct {
	DueAt   time.Time
	TreeID  int64
	GroupID string
}

// DueGroups pages through the Groups whose timers are due by the database's
// clock, in the order of their time.
func (s *Store) DueGroups(ctx context.Context, after DueGroup, limit int) ([]DueGroup, error) {
	rows, err := s.readers.Query(ctx, `SELECT due_at, tree_id, group_id FROM group_timers
		WHERE due_at <= clock_timestamp() AND (due_at, tree_id, group_id) > ($1, $2, $3)
		ORDER BY due_at, tree_id, group_id LIMIT $4`, after.DueAt, after.TreeID, after.GroupID, limit)
	if err != nil {
		return nil, read(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[DueGroup])
	return out, read(err)
}

// Head returns the sequence of a Group's last Event. Error: ErrGroupUnknown.
func (s *Store) Head(ctx context.Context, groupID string) (int64, error) {
	rows, err := s.GroupRows(ctx, groupID)
	if err != nil {
		return 0, err
	}
	row, ok := rows[groupID]
	if !ok {
		return 0, ErrGroupUnknown
	}
	return row.HeadSequence, nil
}

// FindReceipt returns the stored receipt of a Command; ok is false when the
// Command was not accepted.
func (s *Store) FindReceipt(ctx context.Context, key ReceiptKey) (r *StoredReceipt, ok bool, err error) {
	v, err := s.look(ctx, s.readers, Look{Receipts: []ReceiptKey{key}})
	if err != nil {
		return nil, false, err
	}
	r, ok = v.Receipts[key]
	return r, ok, nil
}

// MessageDocs reads the Message documents of a Group's log up to a sequence, in
// order, amendments included.
func (s *Store) MessageDocs(ctx context.Context, tree int64, groupID string, through int64) ([]protocol.Message, error) {
	var out []protocol.Message
	for after := int64(0); ; {
		rows, err := s.readers.Query(ctx, `SELECT sequence, event_id, kind, occurred_at, document FROM event_log
			WHERE tree_id = $1 AND group_id = $2 AND sequence > $3 AND sequence <= $4 AND kind LIKE 'message.%'
			ORDER BY sequence LIMIT $5`, tree, groupID, after, through, MaxPage)
		if err != nil {
			return nil, read(err)
		}
		page, err := scanEvents(rows, groupID)
		if err != nil {
			return nil, read(err)
		}
		for i := range page {
			ev, err := Decode(page[i].Document)
			if err != nil {
				return nil, err
			}
			if m := ev.MessageDoc(); m != nil {
				out = append(out, *m)
			}
			after = page[i].Sequence
		}
		if len(page) < MaxPage {
			return out, nil
		}
	}
}

// Cursor is a Principal's durable place in a Group, 0 when it never set one, and
// the Group's head. Error: ErrGroupUnknown.
func (s *Store) Cursor(ctx context.Context, groupID string, actor protocol.Actor) (sequence, head int64, err error) {
	err = s.readers.QueryRow(ctx, `SELECT coalesce(c.sequence, 0), g.head_sequence FROM groups g
		LEFT JOIN cursors c ON c.tree_id = g.tree_id AND c.group_id = g.group_id AND c.actor_type = $2 AND c.actor_id = $3
		WHERE g.group_id = $1`, groupID, actor.Type, actor.ID).Scan(&sequence, &head)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, 0, ErrGroupUnknown
	}
	return sequence, head, read(err)
}

// SetCursor moves a Cursor forward and returns where it stands; a lower value
// changes nothing (COMMANDS.md 8.8). Errors: ErrGroupUnknown; ErrPastHead, and
// the Cursor stays.
func (s *Store) SetCursor(ctx context.Context, groupID string, actor protocol.Actor, sequence int64) (int64, error) {
	if sequence < 0 {
		return 0, ErrPastHead
	}
	var head int64
	var now *int64
	err := s.readers.QueryRow(ctx, `WITH g AS (SELECT tree_id, group_id, head_sequence FROM groups WHERE group_id = $1),
		w AS (INSERT INTO cursors AS c (tree_id, group_id, actor_type, actor_id, sequence, updated_at)
			SELECT tree_id, group_id, $2, $3, $4, clock_timestamp() FROM g WHERE $4 <= head_sequence
			ON CONFLICT (tree_id, group_id, actor_type, actor_id) DO UPDATE
				SET sequence = greatest(c.sequence, excluded.sequence), updated_at = excluded.updated_at
			RETURNING c.sequence)
		SELECT g.head_sequence, w.sequence FROM g LEFT JOIN w ON true`, groupID, actor.Type, actor.ID, sequence).Scan(&head, &now)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, ErrGroupUnknown
	case err != nil:
		return 0, read(err)
	case now == nil:
		return 0, ErrPastHead
	}
	return *now, nil
}
