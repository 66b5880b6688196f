package events

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Snapshotter keeps snapshots near the heads of Groups. It folds a state of its
// own from the database, so that nobody who decides Commands waits for a dump.
// Reading and dumping a state costs in proportion to the whole log, so a busy
// Group gets a snapshot each time its log has about doubled, and not before a long
// tail: reading the Events again and folding them takes a tenth of the processor
// time of the Commands that made them. It gets a fresh one when it has become
// quiet. A hundred thousand Events without one fold in about two seconds.
type Snapshotter struct {
	store *Store
	log   *slog.Logger

	mu    sync.Mutex
	heads map[string]growth
}

// growth is how far a Group has come since its snapshot.
type growth struct {
	head, snapshot int64
	at             time.Time
}

// mostGrowing bounds the Groups that are remembered.
const mostGrowing = 10_000

// NewSnapshotter makes a Snapshotter; Run does the work.
func NewSnapshotter(store *Store, log *slog.Logger) *Snapshotter {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Snapshotter{store: store, log: log, heads: map[string]growth{}}
}

// due reports that a Group wants a snapshot now.
func (n *Snapshotter) due(g growth, now time.Time) bool {
	tail, every := g.head-g.snapshot, n.store.options.SnapshotEvery
	return tail >= every && (now.Sub(g.at) >= n.store.options.SnapshotQuiet || tail >= max(50*every, g.snapshot))
}

// Grown notes a Group's head; snapshot is the sequence of the snapshot its state
// was loaded from. It never blocks.
func (n *Snapshotter) Grown(groupID string, head, snapshot int64) {
	if head-snapshot < n.store.options.SnapshotEvery {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	g, known := n.heads[groupID]
	if !known && len(n.heads) >= mostGrowing {
		for id := range n.heads { // any: it comes back with its next commit
			delete(n.heads, id)
			break
		}
	}
	n.heads[groupID] = growth{max(g.head, head), max(g.snapshot, snapshot), time.Now()}
}

// Run writes snapshots until the context ends.
func (n *Snapshotter) Run(ctx context.Context) error {
	tick := time.NewTicker(min(n.store.options.SnapshotQuiet, 500*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, groupID := range n.ripe() {
			if ctx.Err() != nil {
				return nil
			}
			if err := n.take(ctx, groupID); err != nil && !errors.Is(err, context.Canceled) {
				n.log.Warn("no snapshot", "group", groupID, "err", err)
				n.forget(groupID) // the next commit on the Group tries again
			}
		}
	}
}

func (n *Snapshotter) ripe() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	var ids []string
	for id, g := range n.heads {
		if n.due(g, now) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (n *Snapshotter) forget(groupID string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.heads, groupID)
}

func (n *Snapshotter) take(ctx context.Context, groupID string) error {
	g, err := n.store.LoadGroup(ctx, groupID)
	if err != nil {
		return err
	}
	if g.State.Head-g.SnapshotAt >= n.store.options.SnapshotEvery { // another process may have been here
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
	known := n.heads[groupID]
	n.heads[groupID] = growth{max(known.head, g.State.Head), g.SnapshotAt, known.at}
	return nil
}
