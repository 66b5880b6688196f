package events

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// QueueTail adds the read of the Events after a sequence to a batch, for readers
// who keep a Group folded and ask for what is new along with other things. It
// reads at most MaxPage; a full page means that there may be more.
func QueueTail(b *pgx.Batch, tree int64, groupID string, after int64, to *[]StoredEvent) {
	b.Queue(sqlPage, tree, groupID, after, MaxPage).Query(func(rows pgx.Rows) (err error) {
		*to, err = scanEvents(rows, groupID)
		return err
	})
}

// ErrGap says that Events are missing between a folded state and what was read:
// the Group has to be loaded again.
var ErrGap = errors.New("events: the Events read do not follow the state")

// Extend applies Events that were read after the state's head or before it; those
// it has already are passed over. An error spoils the Group.
func (g *Group) Extend(page []StoredEvent) error {
	for i := range page {
		if page[i].Sequence <= g.State.Head {
			continue
		}
		if page[i].Sequence != g.State.Head+1 {
			return ErrGap
		}
		ev, err := Decode(page[i].Document)
		if err == nil {
			err = g.State.Apply(ev)
		}
		if err != nil {
			g.Spoiled = true
			return fmt.Errorf("events: Group %s, sequence %d: %w", g.GroupID, page[i].Sequence, err)
		}
	}
	g.HeadSequence = max(g.HeadSequence, g.State.Head)
	g.State.ClearChanged()
	return nil
}

// ExtendFrom is CatchUp over a connection of the caller, who may hold the lock of
// the Group's row there.
func (g *Group) ExtendFrom(ctx context.Context, q Querier) error {
	for {
		page, err := readEvents(ctx, q, g.TreeID, g.GroupID, g.State.Head, MaxPage)
		if err != nil {
			return err
		}
		if err := g.Extend(page); err != nil {
			return err
		}
		if len(page) < MaxPage {
			return nil
		}
	}
}
