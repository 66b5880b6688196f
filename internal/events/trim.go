package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// Trimming takes the Events that a Group's signed snapshot stands for out of the
// online log (COMMANDS.md 8.11, PROTOCOL.md 7.4). The hazard is to take out what
// somebody still needs, so the Events move to archived_events in the transaction
// that raises trimmed_sequence, never before a folded state that covers them is
// stored, and never before they were published.

// trimPage bounds how many Groups are read from the queue at once.
const trimPage = 200

// errNotYet says that a Group cannot be trimmed now and may be later.
var errNotYet = errors.New("events: not to be trimmed yet")

// TrimArchived trims every archived Group that waits for it and tells how many
// it finished. A Group that is not ready stays in the queue.
func (s *Store) TrimArchived(ctx context.Context) (done int, err error) {
	after := ""
	var failed error // one Group's trouble keeps no other from being trimmed
	for {
		rows, err := s.readers.Query(ctx, `SELECT q.group_id FROM trim_queue q
			JOIN groups g ON g.group_id = q.group_id AND g.published_sequence >= g.head_sequence
			WHERE q.group_id > $1 ORDER BY q.group_id LIMIT $2`, after, trimPage)
		if err != nil {
			return done, read(err)
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return done, read(err)
		}
		for _, id := range ids {
			err := s.TrimGroup(ctx, id)
			if errors.Is(err, errNotYet) {
				continue
			}
			if err != nil {
				if failed = errors.Join(failed, fmt.Errorf("events: trim Group %s: %w", id, err)); ctx.Err() != nil {
					return done, failed
				}
				continue
			}
			done++
		}
		if len(ids) < trimPage {
			return done, failed
		}
		after = ids[len(ids)-1]
	}
}

// TrimGroup trims one archived Group through its signed snapshot. What was
// interrupted goes on where it stopped.
func (s *Store) TrimGroup(ctx context.Context, groupID string) error {
	g, err := s.LoadGroup(ctx, groupID)
	if err != nil {
		return err
	}
	if g.State.Group == nil || !g.State.Archived() || g.State.Snapshot == nil {
		return errNotYet
	}
	through := g.State.Snapshot.Doc.ThroughSequence
	if g.PublishedSequence < through {
		return errNotYet
	}
	if g.SnapshotAt < through {
		snap, err := g.Dump(time.Now().UTC())
		if err != nil {
			return err
		}
		if err := s.putSnapshot(ctx, snap); err != nil {
			return err
		}
	}
	for at := g.TrimmedSequence; at < through; {
		if at, err = s.trimChunk(ctx, g.TreeID, groupID, through); err != nil {
			return err
		}
		if hook := s.hooks.AfterTrim; hook != nil {
			if err := hook(groupID, at); err != nil {
				return err
			}
		}
	}
	_, err = s.writers.Exec(ctx, "DELETE FROM trim_queue WHERE group_id = $1", groupID)
	return read(err)
}

func (s *Store) putSnapshot(ctx context.Context, snap Snapshot) error {
	_, err := s.writers.Exec(ctx, sqlSnapshots, snap.TreeID, snap.GroupID, snap.Sequence, snap.Format, snap.State, snap.CreatedAt)
	return read(err)
}

// trimChunk moves the next Events and returns the sequence it came to.
func (s *Store) trimChunk(ctx context.Context, tree int64, groupID string, through int64) (to int64, err error) {
	err = pgx.BeginFunc(ctx, s.writers, func(tx pgx.Tx) error {
		var from, covered int64
		// The row is held as commits hold it, and the stored state is looked at under
		// it: nobody may drop it in between.
		if err := tx.QueryRow(ctx, "SELECT trimmed_sequence FROM groups WHERE tree_id = $1 AND group_id = $2 FOR NO KEY UPDATE",
			tree, groupID).Scan(&from); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, "SELECT sequence FROM snapshots WHERE tree_id = $1 AND group_id = $2 AND format = $3 FOR SHARE",
			tree, groupID, SnapshotFormat).Scan(&covered)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && covered < through {
			return errNotYet
		}
		if err != nil {
			return err
		}
		if to = min(from+s.options.TrimChunk, through); to <= from {
			to = from
			return nil
		}
		moved, err := tx.Exec(ctx, `WITH moved AS (
				DELETE FROM events WHERE tree_id = $1 AND group_id = $2 AND sequence > $3 AND sequence <= $4 RETURNING *
			) INSERT INTO archived_events SELECT * FROM moved`, tree, groupID, from, to)
		if err != nil {
			return err
		}
		if moved.RowsAffected() != to-from {
			return fmt.Errorf("%d Events from %d to %d", moved.RowsAffected(), from+1, to)
		}
		_, err = tx.Exec(ctx, "UPDATE groups SET trimmed_sequence = $3 WHERE tree_id = $1 AND group_id = $2", tree, groupID, to)
		return err
	})
	return to, err
}

// RunTrimmer trims every interval until the context ends.
func (s *Store) RunTrimmer(ctx context.Context, interval time.Duration, log *slog.Logger) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, err := s.TrimArchived(ctx); err != nil && ctx.Err() == nil {
				log.WarnContext(ctx, "archived Groups not trimmed", "err", err)
			}
		}
	}
}
