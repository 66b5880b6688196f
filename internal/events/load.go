package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// SnapshotFormat is raised when the dump of a state changes its meaning; other
// formats are ignored and the state is folded from the log.
const SnapshotFormat = 1

// Group is a Group as loaded: its folded state and where it stands. It belongs
// to one goroutine.
type Group struct {
	GroupRow
	State *groups.State
	// SnapshotAt is the sequence of the stored snapshot, 0 for none.
	SnapshotAt int64
	// Spoiled marks a state that was applied Events which did not commit: it must
	// not be used again.
	Spoiled bool
}

// LoadGroup folds a Group from its snapshot and the Events after it. Errors:
// ErrGroupUnknown, ErrTrimmed (the snapshot is gone and so are the Events it
// stood for), *groups.IntegrityError for a log that cannot be folded.
func (s *Store) LoadGroup(ctx context.Context, groupID string) (*Group, error) {
	g := &Group{}
	var dump []byte
	var format *int32
	var at *int64
	err := s.writers.QueryRow(ctx, `SELECT g.tree_id, g.group_id, g.mission_id, g.root_mission_id, g.head_sequence,
			g.published_sequence, g.trimmed_sequence, n.sequence, n.format, n.state
		FROM groups g
		LEFT JOIN snapshots n ON n.tree_id = g.tree_id AND n.group_id = g.group_id
		WHERE g.group_id = $1`, groupID).Scan(&g.TreeID, &g.GroupID, &g.MissionID, &g.RootMissionID, &g.HeadSequence,
		&g.PublishedSequence, &g.TrimmedSequence, &at, &format, &dump)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrGroupUnknown
	}
	if err != nil {
		return nil, read(err)
	}
	s.trees.put(groupID, g.TreeID)
	if format != nil && *format == SnapshotFormat {
		// A snapshot that does not read is one of another program: the log decides.
		if g.State, err = groups.ParseState(dump); err == nil && g.State.Head == *at {
			g.SnapshotAt = *at
		} else {
			g.State = nil
		}
	}
	if g.State == nil {
		g.State = groups.New()
	}
	g.State.TreeID = g.RootMissionID
	if err := s.CatchUp(ctx, g); err != nil {
		return nil, err
	}
	return g, nil
}

// CatchUp applies what was appended after the state's head. A state whose
// snapshot does not reach the online log is folded from the archived Events.
func (s *Store) CatchUp(ctx context.Context, g *Group) error {
	sql := sqlPage
	for {
		page, err := readPage(ctx, s.writers, sql, g.TreeID, g.GroupID, g.State.Head, MaxPage)
		if errors.Is(err, ErrTrimmed) && sql == sqlPage {
			sql = sqlWholePage
			continue
		}
		if err != nil {
			return err
		}
		for i := range page {
			ev, err := Decode(page[i].Document)
			if err == nil {
				err = g.State.Apply(ev)
			}
			if err != nil {
				return fmt.Errorf("events: Group %s, sequence %d: %w", g.GroupID, page[i].Sequence, err)
			}
		}
		g.HeadSequence = max(g.HeadSequence, g.State.Head)
		if len(page) < MaxPage {
			g.State.ClearChanged()
			return nil
		}
	}
}

// Decode reads stored Event bytes.
func Decode(document []byte) (*groups.Event, error) {
	doc, err := strictjson.Parse(document)
	if err != nil {
		return nil, err
	}
	return groups.DecodeEvent(doc.Root())
}

// Dump makes the snapshot row of a state.
func (g *Group) Dump(at time.Time) (Snapshot, error) {
	state, err := g.State.Canonical()
	return Snapshot{
		TreeID: g.TreeID, GroupID: g.GroupID, Sequence: g.State.Head, Format: SnapshotFormat, State: state, CreatedAt: at,
	}, err
}
