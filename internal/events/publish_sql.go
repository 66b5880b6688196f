package events

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// relaxed runs an update that may be lost in a crash and returns text, bigint
// pairs.
func (s *Store) relaxed(ctx context.Context, sql string, into map[string]int64, args ...any) error {
	var q pgx.Batch
	q.Queue("begin")
	q.Queue("set local synchronous_commit = off")
	q.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var id string
			var n int64
			if err := rows.Scan(&id, &n); err != nil {
				return err
			}
			into[id] = n
		}
		return rows.Err()
	})
	q.Queue("commit")
	conn, err := s.readers.Acquire(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer conn.Release()
	if err := conn.SendBatch(ctx, &q).Close(); err != nil {
		if !conn.Conn().IsClosed() {
			_, _ = conn.Exec(ctx, "rollback")
		}
		return read(err)
	}
	return nil
}

// unpublished pages through the Groups whose log is ahead of what was published.
func (s *Store) unpublished(ctx context.Context, tree int64, group string, limit int) ([]GroupRow, error) {
	rows, err := s.readers.Query(ctx, `SELECT tree_id, group_id, mission_id, root_mission_id, head_sequence,
		published_sequence, trimmed_sequence FROM groups
		WHERE (tree_id, group_id) > ($1, $2) AND published_sequence < head_sequence
		ORDER BY tree_id, group_id LIMIT $3`, tree, group, limit)
	if err != nil {
		return nil, read(err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g GroupRow, err error) {
		err = row.Scan(&g.TreeID, &g.GroupID, &g.MissionID, &g.RootMissionID, &g.HeadSequence, &g.PublishedSequence, &g.TrimmedSequence)
		return g, err
	})
	return out, read(err)
}

// withhold takes the bodies out of Events that were redacted.
func (s *Store) withhold(ctx context.Context, tree int64, group string, events []StoredEvent) error {
	at := map[int64]*StoredEvent{}
	var sequences []int64
	for i := range events {
		if events[i].Kind == "message.posted" || events[i].Kind == "message.corrected" {
			at[events[i].Sequence] = &events[i]
			sequences = append(sequences, events[i].Sequence)
		}
	}
	if len(sequences) == 0 {
		return nil
	}
	rows, err := s.readers.Query(ctx, `SELECT m.sequence FROM messages m
		LEFT JOIN messages t ON t.tree_id = m.tree_id AND t.group_id = m.group_id AND t.sequence = m.target_sequence
		WHERE m.tree_id = $1 AND m.group_id = $2 AND m.sequence = ANY($3) AND (m.redacted OR t.redacted)`, tree, group, sequences)
	if err != nil {
		return read(err)
	}
	var sequence int64
	_, err = pgx.ForEachRow(rows, []any{&sequence}, func() error {
		at[sequence].Document = nil
		return nil
	})
	return read(err)
}
