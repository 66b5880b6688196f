package events

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// Look names what a round of decisions wants to know in one round trip.
type Look struct {
	Receipts   []ReceiptKey
	Hashes     []string // signing hashes whose Admission Records are wanted
	Agents     []string
	Groups     []string
	Missions   []string
	Loaded     []string // Agents whose loads are wanted, counted at the clock reading
	ActiveWork []string // Agents whose Groups with active WorkItems are wanted
}

// View is the answer, as the database stood at one moment for each part; the
// commit compares the parts it depends on again.
type View struct {
	Now      time.Time
	Registry int64
	Receipts map[ReceiptKey]*StoredReceipt
	// Admissions holds records of documents that have a row of their own;
	// accepted Commands have theirs in the receipt.
	Admissions map[string]protocol.FirstAdmissionRecord
	Sessions   map[string]Session
	Groups     map[string]GroupRow
	Missions   map[string]string // mission id -> group id
	Loads      map[string]Load
	ActiveWork map[string][]string
}

// Merge adds what a later look found.
func (v *View) Merge(o *View) {
	v.Now, v.Registry = o.Now, max(v.Registry, o.Registry)
	merge(&v.Receipts, o.Receipts)
	merge(&v.Admissions, o.Admissions)
	merge(&v.Sessions, o.Sessions)
	merge(&v.Groups, o.Groups)
	merge(&v.Missions, o.Missions)
	merge(&v.Loads, o.Loads)
	merge(&v.ActiveWork, o.ActiveWork)
}

func merge[K comparable, V any](into *map[K]V, from map[K]V) {
	if *into == nil {
		*into = from
		return
	}
	maps.Copy(*into, from)
}

// StoredReceipt is an accepted Command as stored.
type StoredReceipt struct {
	SigningHash string
	GroupID     string
	Response    []byte
	Hidden      []int32
}

// Session is an Agent's current session; Epoch is 0 when there never was one.
type Session struct {
	Epoch     int64
	ExpiresAt time.Time
}

// GroupRow is where a Group is placed and how far its log goes.
type GroupRow struct {
	TreeID            int64
	GroupID           string
	MissionID         string
	RootMissionID     string
	HeadSequence      int64
	PublishedSequence int64
	TrimmedSequence   int64
}

const (
	sqlClock = `SELECT clock_timestamp(), coalesce((SELECT revision FROM registry_head), 0)`

	sqlFindReceipts = `SELECT r.actor_type, r.actor_id, r.action_id, r.signing_hash, coalesce(r.group_id, ''), r.response, r.hidden
FROM unnest($1::text[], $2::text[], $3::text[]) AS c(actor_type, actor_id, action_id)
JOIN receipts r ON r.actor_type = c.actor_type AND r.actor_id = c.actor_id AND r.action_id = c.action_id`

	sqlFindAdmissions = `SELECT a.signing_hash, a.record_id, a.document_kind, a.key_id, a.principal_type, a.principal_id,
	a.trusted_accepted_at, a.accepted_by
FROM unnest($2::bytea[]) AS c(signing_hash)
JOIN admissions a ON a.signing_hash = c.signing_hash AND a.organization_id = $1`

	sqlFindSessions = `SELECT s.agent_id, s.session_epoch, s.expires_at
FROM unnest($1::text[]) AS c(agent_id) JOIN agent_sessions s ON s.agent_id = c.agent_id`

	sqlFindGroups = `SELECT g.tree_id, g.group_id, g.mission_id, g.root_mission_id, g.head_sequence, g.published_sequence, g.trimmed_sequence
FROM unnest($1::text[]) AS c(group_id) JOIN groups g ON g.group_id = c.group_id`

	sqlFindMissions = `SELECT g.mission_id, g.group_id
FROM unnest($1::text[]) AS c(mission_id) JOIN groups g ON g.mission_id = c.mission_id`

	sqlFindLoads = `SELECT c.agent_id, l.queued, l.active FROM unnest($1::text[]) AS c(agent_id)
CROSS JOIN LATERAL (
	SELECT count(*) FILTER (WHERE w.state = 'queued') AS queued,
		count(*) FILTER (WHERE w.state = 'active' AND w.execution_expires > clock_timestamp()) AS active
	FROM work_items w WHERE w.owner_id = c.agent_id AND w.state IN ('queued', 'active')) l`

	sqlFindActive = `SELECT c.agent_id, ARRAY(SELECT DISTINCT w.group_id FROM work_items w
	WHERE w.owner_id = c.agent_id AND w.state = 'active' ORDER BY 1)
FROM unnest($1::text[]) AS c(agent_id)`
)

// Look reads what a round needs, in one round trip. It and the loading of Groups
// use the connections of the writers: readers must not keep lanes waiting.
func (s *Store) Look(ctx context.Context, l Look) (*View, error) { return s.look(ctx, s.writers, l) }

func (s *Store) look(ctx context.Context, pool *pgxpool.Pool, l Look) (*View, error) {
	v := &View{
		Receipts: map[ReceiptKey]*StoredReceipt{}, Admissions: map[string]protocol.FirstAdmissionRecord{},
		Sessions: map[string]Session{}, Groups: map[string]GroupRow{}, Missions: map[string]string{},
		Loads: map[string]Load{}, ActiveWork: map[string][]string{},
	}
	var q pgx.Batch
	q.Queue(sqlClock).QueryRow(func(row pgx.Row) error { return row.Scan(&v.Now, &v.Registry) })
	if len(l.Receipts) > 0 {
		types, ids, actions := keyColumns(l.Receipts)
		q.Queue(sqlFindReceipts, types, ids, actions).Query(func(rows pgx.Rows) error { return v.scanReceipts(rows) })
	}
	if len(l.Hashes) > 0 {
		hashes := make([][]byte, len(l.Hashes))
		for i, h := range l.Hashes {
			var err error
			if hashes[i], err = hashBytes(h); err != nil {
				return nil, err
			}
		}
		q.Queue(sqlFindAdmissions, s.options.OrganizationID, hashes).Query(func(rows pgx.Rows) error {
			return s.scanAdmissions(rows, v.Admissions)
		})
	}
	if len(l.Agents) > 0 {
		q.Queue(sqlFindSessions, l.Agents).Query(func(rows pgx.Rows) error { return v.scanSessions(rows) })
	}
	if len(l.Groups) > 0 {
		q.Queue(sqlFindGroups, l.Groups).Query(func(rows pgx.Rows) error { return v.scanGroups(rows) })
	}
	if len(l.Missions) > 0 {
		q.Queue(sqlFindMissions, l.Missions).Query(func(rows pgx.Rows) error { return scanPairs(rows, v.Missions) })
	}
	if len(l.Loaded) > 0 {
		q.Queue(sqlFindLoads, l.Loaded).Query(func(rows pgx.Rows) error {
			var id string
			var load Load
			_, err := pgx.ForEachRow(rows, []any{&id, &load.Queued, &load.Active}, func() error {
				v.Loads[id] = load
				return nil
			})
			return err
		})
	}
	if len(l.ActiveWork) > 0 {
		q.Queue(sqlFindActive, l.ActiveWork).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var id string
				var groups []string
				if err := rows.Scan(&id, &groups); err != nil {
					return err
				}
				v.ActiveWork[id] = groups
			}
			return rows.Err()
		})
	}
	if err := pool.SendBatch(ctx, &q).Close(); err != nil {
		return nil, read(err)
	}
	v.Now = v.Now.UTC()
	for _, g := range v.Groups {
		s.trees.put(g.GroupID, g.TreeID)
	}
	return v, nil
}

func (v *View) scanReceipts(rows pgx.Rows) error {
	for rows.Next() {
		var k ReceiptKey
		var hash []byte
		r := new(StoredReceipt)
		if err := rows.Scan(&k.Actor.Type, &k.Actor.ID, &k.ActionID, &hash, &r.GroupID, &r.Response, &r.Hidden); err != nil {
			return err
		}
		r.SigningHash = hashText(hash)
		v.Receipts[k] = r
	}
	return rows.Err()
}

func (s *Store) scanAdmissions(rows pgx.Rows, into map[string]protocol.FirstAdmissionRecord) error {
	for rows.Next() {
		var hash []byte
		var id [16]byte
		var at time.Time
		r := protocol.FirstAdmissionRecord{ProtocolVersion: "0.1", OrganizationID: s.options.OrganizationID}
		r.AcceptedBy.Type = protocol.ActorService
		if err := rows.Scan(&hash, &id, &r.DocumentKind, &r.KeyID, &r.Principal.Type, &r.Principal.ID, &at, &r.AcceptedBy.ID); err != nil {
			return err
		}
		r.SigningHash, r.AdmissionRecordID, r.TrustedAcceptedAt = hashText(hash), uuidURN(id), lexical.FormatMicros(at)
		into[r.SigningHash] = r
	}
	return rows.Err()
}

func (v *View) scanSessions(rows pgx.Rows) error {
	for rows.Next() {
		var id string
		var s Session
		if err := rows.Scan(&id, &s.Epoch, &s.ExpiresAt); err != nil {
			return err
		}
		s.ExpiresAt = s.ExpiresAt.UTC()
		v.Sessions[id] = s
	}
	return rows.Err()
}

func (v *View) scanGroups(rows pgx.Rows) error {
	for rows.Next() {
		var g GroupRow
		if err := rows.Scan(&g.TreeID, &g.GroupID, &g.MissionID, &g.RootMissionID, &g.HeadSequence, &g.PublishedSequence,
			&g.TrimmedSequence); err != nil {
			return err
		}
		v.Groups[g.GroupID] = g
	}
	return rows.Err()
}

func scanPairs(rows pgx.Rows, into map[string]string) error {
	for rows.Next() {
		var k, value string
		if err := rows.Scan(&k, &value); err != nil {
			return err
		}
		into[k] = value
	}
	return rows.Err()
}

// GroupRows looks Groups up; a Group that does not exist is missing.
func (s *Store) GroupRows(ctx context.Context, groupIDs ...string) (map[string]GroupRow, error) {
	v, err := s.look(ctx, s.readers, Look{Groups: groupIDs})
	if err != nil {
		return nil, err
	}
	return v.Groups, nil
}

// Tree returns the placement key of a Group, which never changes. Error:
// ErrGroupUnknown.
func (s *Store) Tree(ctx context.Context, groupID string) (int64, error) {
	if tree, ok := s.trees.get(groupID); ok {
		return tree, nil
	}
	rows, err := s.GroupRows(ctx, groupID)
	if err != nil {
		return 0, err
	}
	row, ok := rows[groupID]
	if !ok {
		return 0, ErrGroupUnknown
	}
	return row.TreeID, nil
}

// treeCache remembers where Groups are placed. When it is full it forgets
// everything: a miss costs one lookup.
type treeCache struct {
	mu    sync.RWMutex
	most  int
	trees map[string]int64
}

func newTreeCache(most int) *treeCache { return &treeCache{most: most, trees: map[string]int64{}} }

func (c *treeCache) get(groupID string) (int64, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	tree, ok := c.trees[groupID]
	return tree, ok
}

func (c *treeCache) put(groupID string, tree int64) {
	c.mu.RLock()
	known, ok := c.trees[groupID]
	c.mu.RUnlock()
	if ok && known == tree {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.trees) >= c.most {
		clear(c.trees)
	}
	c.trees[groupID] = tree
}
