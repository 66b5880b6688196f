package events

import (
	"context"
	"fmt"
	"sort"
	"strings"

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
		err := tx.QueryRow(ctx, `SELECT tree_id, group_id, mission_id, root_mission_id, head_sequence FROM groups
			WHERE group_id = $1 FOR NO KEY UPDATE`, groupID).Scan(&g.TreeID, &g.GroupID, &g.MissionID, &g.RootMissionID, &g.HeadSequence)
		if err != nil {
			return err
		}
		g.State = groups.New()
		g.State.TreeID = g.RootMissionID
		b := &Batch{}
		for {
			rows, err := tx.Query(ctx, sqlPage, g.TreeID, g.GroupID, g.State.Head, MaxPage)
			if err != nil {
				return err
			}
			page, err := scanEvents(rows, g.GroupID)
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
		var q pgx.Batch
		for _, name := range append(tableNames(), "policy_log", "group_timers", "snapshots") {
			q.Queue("DELETE FROM "+name+" WHERE tree_id = $1 AND group_id = $2", g.TreeID, g.GroupID)
		}
		b.queuePolicy(&q)
		b.Rows.queue(&q)
		b.queueTimers(&q)
		return tx.SendBatch(ctx, &q).Close()
	})
}

func tableNames() []string {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.name
	}
	return names
}
