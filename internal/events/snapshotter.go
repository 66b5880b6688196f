package events

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Snapshotter keeps snapshots near the heads of growing Groups. It folds a state
// of its own from the database, so that nobody who decides Commands waits for a
// dump, and it does so less often the longer the log is: the work stays
// proportional to the Events.
type Snapshotter struct {
	store *Store
	log   *slog.Logger

	mu    sync.Mutex
	heads map[string]progress
	wake  chan struct{}
}

type progress struct{ head, snapshot int64 }

// NewSnapshotter makes a Snapshotter; Run does the work.
func NewSnapshotter(store *Store, log *slog.Logger) *Snapshotter {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Snapshotter{store: store, log: log, heads: map[string]progress{}, wake: make(chan struct{}, 1)}
}

// due reports that the tail behind the snapshot has grown long.
func (s *Store) due(head, snapshot int64) bool {
	return head-snapshot >= max(s.options.SnapshotEvery, snapshot/4)
}

// Grown notes a Group's head. It never blocks.
func (n *Snapshotter) Grown(groupID string, head, snapshot int64) {
	if !n.store.due(head, snapshot) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if known, ok := n.heads[groupID]; ok && !n.store.due(head, known.snapshot) {
		return
	}
	n.heads[groupID] = progress{head, snapshot}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run writes snapshots until the context ends.
func (n *Snapshotter) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		}
		for {
			groupID, ok := n.next()
			if !ok || ctx.Err() != nil {
				break
			}
			if err := n.take(ctx, groupID); err != nil && !errors.Is(err, context.Canceled) {
				n.log.Warn("no snapshot", "group", groupID, "err", err)
				// The next commit on the Group tries again.
				n.mu.Lock()
				delete(n.heads, groupID)
				n.mu.Unlock()
			}
		}
	}
}

// next picks a Group whose snapshot is due.
func (n *Snapshotter) next() (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, p := range n.heads {
		if n.store.due(p.head, p.snapshot) {
			return id, true
		}
		if len(n.heads) > 10_000 {
			delete(n.heads, id)
		}
	}
	return "", false
}

func (n *Snapshotter) take(ctx context.Context, groupID string) error {
	g, err := n.store.LoadGroup(ctx, groupID)
	if err != nil {
		return err
	}
	if n.store.due(g.State.Head, g.SnapshotAt) {
		snap, err := g.Dump(time.Now().UTC())
		if err != nil {
			return err
		}
		if _, err := n.store.readers.Exec(ctx, sqlSnapshots, snap.TreeID, snap.GroupID, snap.Sequence, snap.Format, snap.State,
			snap.CreatedAt); err != nil {
			return read(err)
		}
		g.SnapshotAt = g.State.Head
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.heads[groupID]
	n.heads[groupID] = progress{max(p.head, g.State.Head), g.SnapshotAt}
	return nil
}
