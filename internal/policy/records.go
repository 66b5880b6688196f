package policy

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/protocol"
)

// Kinds of provenance records.
const (
	kindInput       = "input"
	kindMemoryWrite = "memory_write"
	kindMemoryRead  = "memory_read"
)

// memoryChannel is the channel of what comes out of memory.
const memoryChannel = "memory"

func manifestSession(agentID string, epoch int64) string {
	return agentID + "#" + strconv.FormatInt(epoch, 10)
}

// newRecord is a record that is about to be stored.
type newRecord struct {
	manifest.Record
	kind, groupID string
	by            protocol.Actor
	at            time.Time
}

func (r *newRecord) store(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `INSERT INTO provenance_records (record_id, group_id, kind, source, trust, tainted, transformations,
			parents, session_id, made_by_type, made_by_id, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
		r.ID, r.groupID, r.kind, r.Source, r.Trust, r.Tainted, r.Transformations, r.Parents, r.Sessions[0], r.by.Type, r.by.ID, r.at)
	return err
}

// ancestry reads the records of a Group that ids name, and theirs before them. An
// id of another Group is missing. One more than the engine follows is read, so
// that it sees what is too much.
func ancestry(ctx context.Context, q authz.Querier, groupID string, ids []string) (manifest.RecordMap, error) {
	rows, err := q.Query(ctx, `WITH RECURSIVE up AS (
			SELECT r.* FROM provenance_records r WHERE r.record_id = ANY($2) AND r.group_id = $1
			UNION
			SELECT r.* FROM up CROSS JOIN LATERAL unnest(up.parents) p (id)
			JOIN provenance_records r ON r.record_id = p.id AND r.group_id = $1
		)
		SELECT record_id, source, trust, tainted, transformations, parents, session_id, created_at FROM up LIMIT $3`,
		groupID, ids, manifest.MaxRecords+1)
	if err != nil {
		return nil, err
	}
	out := manifest.RecordMap{}
	var r manifest.Record
	var session string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&r.ID, &r.Source, &r.Trust, &r.Tainted, &r.Transformations, &r.Parents, &session, &at}, func() error {
		x := r
		x.Sessions, x.CreatedAt = []string{session}, at.UTC().Format(time.RFC3339Nano)
		out[x.ID] = &x
		r = manifest.Record{}
		return nil
	})
	return out, err
}

// Provenance is a record with its ancestry as callers see it.
type Provenance struct {
	RecordID        string   `json:"recordId"`
	Source          string   `json:"source"`
	TrustAtOrigin   string   `json:"trustAtOrigin"`
	Tainted         bool     `json:"tainted"`
	Transformations []string `json:"transformations"`
	ParentIDs       []string `json:"parentIds"`
	SessionID       string   `json:"sessionId"`
	CreatedAt       string   `json:"createdAt"`
	// SessionsCrossed are all sessions of the ancestry.
	SessionsCrossed []string `json:"sessionsCrossed,omitempty"`
}

func provenanceOf(r *manifest.Record) Provenance {
	return Provenance{
		RecordID: r.ID, Source: r.Source, TrustAtOrigin: r.Trust, Tainted: r.Tainted,
		Transformations: orEmpty(r.Transformations), ParentIDs: orEmpty(r.Parents), SessionID: r.Sessions[0], CreatedAt: r.CreatedAt,
	}
}

// chainOf lists a record's ancestry, nearest first, in a stable order.
func chainOf(records manifest.RecordMap, ids ...string) []Provenance {
	out := []Provenance{}
	seen := map[string]bool{}
	for queue := ids; len(queue) > 0; {
		id := queue[0]
		queue = queue[1:]
		r := records.Record(id)
		if r == nil || seen[id] {
			continue
		}
		seen[id] = true
		out = append(out, provenanceOf(r))
		queue = append(queue, r.Parents...)
	}
	return out
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
