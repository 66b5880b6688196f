package events

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/missionweave/server/internal/groups"
)

// Querier is what reading takes: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// CompareProjections holds the stored projection rows of a Group against those
// that its folded state makes, and says in words where they differ.
func CompareProjections(ctx context.Context, q Querier, tree int64, s *groups.State) ([]string, error) {
	want, err := ProjectAll(tree, s)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, t := range tables {
		missing := map[string]Row{}
		for _, row := range want.rows[t] {
			missing[row.key()] = row
		}
		rows, err := q.Query(ctx, t.selectGroup, tree, s.GroupID)
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			have, err := t.scan(rows)
			if err != nil {
				rows.Close()
				return nil, err
			}
			row, ok := missing[have.key()]
			if !ok {
				out = append(out, fmt.Sprintf("%s %s is not in the fold", t.name, have.name()))
				continue
			}
			delete(missing, have.key())
			if columns := row.differences(have); len(columns) > 0 {
				out = append(out, fmt.Sprintf("%s %s differs from the fold in %s", t.name, have.name(), strings.Join(columns, ", ")))
			}
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
		for _, row := range missing {
			out = append(out, fmt.Sprintf("%s %s is missing", t.name, row.name()))
		}
	}
	sort.Strings(out)
	return out, nil
}

// name is the row's key without the Group.
func (r Row) name() string {
	parts := make([]string, 0, r.table.keys)
	for _, v := range r.values[2:r.table.keys] {
		parts = append(parts, fmt.Sprint(v))
	}
	if len(parts) == 0 {
		return "row"
	}
	return strings.Join(parts, " ")
}

// RebuildGroup replaces everything that is derived from a Group's log:
// projections, Policy Log, timer and snapshot. It holds the Group's row, so that
// no commit comes between the fold and the writing.
func (s *Store) RebuildGroup(ctx context.Context, groupID string) error {
	return pgx.BeginFunc(ctx, s.writers, func(tx pgx.Tx) error {
		g := &Group{}
		err := tx.QueryRow(ctx, `SELECT tree_id, group_id, mission_id, root_mission_id, head_sequence, trimmed_sequence FROM groups
			WHERE group_id = $1 FOR NO KEY UPDATE`, groupID).Scan(&g.TreeID, &g.GroupID, &g.MissionID, &g.RootMissionID,
			&g.HeadSequence, &g.TrimmedSequence)
		if err != nil {
			return err
		}
		g.State = groups.New()
		g.State.TreeID = g.RootMissionID
		b := &Batch{}
		// from is where the fold begins: only a Group whose archived Events are gone
		// begins at its stored state.
		from := int64(0)
		for {
			page, err := readPage(ctx, tx, sqlWholePage, g.TreeID, g.GroupID, g.State.Head, MaxPage)
			if errors.Is(err, ErrTrimmed) && from == 0 {
				if from, err = restore(ctx, tx, g); err != nil {
					return err
				}
				continue
			}
			if err != nil {
				return err
			}
			for i := range page {
				ev, err := Decode(page[i].Document)
				if err != nil {
					return err
				}
				before := len(g.State.PolicyLog)
				if err := g.State.Apply(ev); err != nil {
					return err
				}
				for j := range g.State.PolicyLog[before:] {
					entry, err := NewPolicyEntry(g.TreeID, g.GroupID, ev.Sequence, &g.State.PolicyLog[before+j])
					if err != nil {
						return err
					}
					b.Policy = append(b.Policy, entry)
				}
			}
			if len(page) < MaxPage {
				break
			}
		}
		if b.Rows, err = ProjectAll(g.TreeID, g.State); err != nil {
			return err
		}
		b.Timers = []Timer{{TreeID: g.TreeID, GroupID: g.GroupID, DueAt: NextDue(g.State)}}
		if g.TrimmedSequence > 0 {
			// The stored state of a trimmed Group must not be missing for a moment.
			snap, err := g.Dump(time.Now().UTC())
			if err != nil {
				return err
			}
			b.Snapshots = []Snapshot{snap}
		}
		var q pgx.Batch
		for _, name := range append(tableNames(), "group_timers", "snapshots") {
			q.Queue("DELETE FROM "+name+" WHERE tree_id = $1 AND group_id = $2", g.TreeID, g.GroupID)
		}
		q.Queue("DELETE FROM policy_log WHERE tree_id = $1 AND group_id = $2 AND sequence > $3", g.TreeID, g.GroupID, from)
		b.queuePolicy(&q)
		b.Rows.queue(&q)
		b.queueTimers(&q)
		b.queueSnapshots(&q)
		return tx.SendBatch(ctx, &q).Close()
	})
}

// restore begins a fold at the stored state.
func restore(ctx context.Context, q Querier, g *Group) (at int64, err error) {
	var dump []byte
	err = q.QueryRow(ctx, "SELECT state FROM snapshots WHERE tree_id = $1 AND group_id = $2 AND format = $3",
		g.TreeID, g.GroupID, SnapshotFormat).Scan(&dump)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, ErrTrimmed
	}
	if err != nil {
		return 0, err
	}
	if g.State, err = groups.ParseState(dump); err != nil {
		return 0, err
	}
	g.State.TreeID = g.RootMissionID
	return g.State.Head, nil
}

func tableNames() []string {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.name
	}
	return names
}
