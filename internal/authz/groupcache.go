package authz

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
)

// groupCache keeps Groups folded, so that a decision reads only what is new in
// their logs. It is a cache: what it lacks or has wrong is folded again from the
// log, and a decision never rests on a state older than its own read.
//
// No lock of it is held while the database is asked. A caller may hold a lock of
// the database meanwhile, and two kinds of locks that wait for each other are
// seen by neither side.
type groupCache struct {
	store *events.Store
	most  int

	mu   sync.Mutex
	all  map[string]*cached
	tick int64
}

// cached is one Group. head, tree and up may be read at any time; the state only
// under mu.
type cached struct {
	id   string
	tree int64
	up   string // the Group above, "" for none

	mu   sync.Mutex
	g    *events.Group
	used int64
}

func newGroupCache(store *events.Store, most int) *groupCache {
	return &groupCache{store: store, most: most, all: map[string]*cached{}}
}

// chain returns a Group and the Groups above it, the lowest first, loading those
// that are not there. GROUP_NOT_FOUND for a Group that does not exist.
func (c *groupCache) chain(ctx context.Context, groupID string) ([]*cached, error) {
	var out []*cached
	for id := groupID; id != ""; {
		entry, err := c.entry(ctx, id)
		if err != nil {
			return nil, err
		}
		out = append(out, entry)
		id = entry.up
	}
	return out, nil
}

func (c *groupCache) entry(ctx context.Context, groupID string) (*cached, error) {
	c.mu.Lock()
	c.tick++
	entry, ok := c.all[groupID]
	if ok {
		entry.used = c.tick
	}
	c.mu.Unlock()
	if ok {
		return entry, nil
	}
	g, err := c.store.LoadGroup(ctx, groupID)
	if errors.Is(err, events.ErrGroupUnknown) {
		return nil, protocol.NewError(protocol.CodeGroupNotFound, "")
	}
	if err != nil {
		return nil, err
	}
	entry = &cached{id: groupID, tree: g.TreeID, g: g}
	if up, ok := g.State.Ledger.Up(); ok {
		entry.up = up.GroupID
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if other, ok := c.all[groupID]; ok {
		return other, nil
	}
	c.evict()
	entry.used = c.tick
	c.all[groupID] = entry
	return entry, nil
}

// evict makes room for one more.
func (c *groupCache) evict() {
	for len(c.all) >= c.most {
		oldest, at := "", int64(0)
		for id, e := range c.all {
			if oldest == "" || e.used < at {
				oldest, at = id, e.used
			}
		}
		delete(c.all, oldest)
	}
}

func (c *groupCache) drop(entries []*cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		if c.all[e.id] == e {
			delete(c.all, e.id)
		}
	}
}

// tails are the new Events of a chain.
type tails struct {
	chain []*cached
	pages [][]events.StoredEvent
}

// queue adds the reads of what is new in a chain to a batch.
func queueTails(b *pgx.Batch, chain []*cached) *tails {
	t := &tails{chain: chain, pages: make([][]events.StoredEvent, len(chain))}
	for i, e := range chain {
		e.mu.Lock()
		head := e.g.State.Head
		e.mu.Unlock()
		events.QueueTail(b, e.tree, e.id, head, &t.pages[i])
	}
	return t
}

// decide brings the chain up to what was read and runs f on the lowest Group; f
// may look the Groups above up. q is asked again only where there was more to
// read than one page, before any lock is taken.
func (c *groupCache) decide(ctx context.Context, q Querier, t *tails, f func(s *groups.State, above func(id string) (*groups.State, error)) error) error {
	for i := range t.pages {
		for full := t.pages[i]; len(full) == events.MaxPage; {
			var b pgx.Batch
			var next []events.StoredEvent
			events.QueueTail(&b, t.chain[i].tree, t.chain[i].id, full[len(full)-1].Sequence, &next)
			if err := q.SendBatch(ctx, &b).Close(); err != nil {
				return err
			}
			t.pages[i], full = append(t.pages[i], next...), next
		}
	}
	byID := make(map[string]*groups.State, len(t.chain))
	for i, e := range t.chain {
		e.mu.Lock()
		defer e.mu.Unlock()
		err := e.g.Extend(t.pages[i])
		if e.g.Spoiled || err != nil {
			c.drop(t.chain)
			if err == nil {
				err = events.ErrGap
			}
			return err
		}
		byID[e.id] = e.g.State
	}
	return f(t.chain[0].g.State, func(id string) (*groups.State, error) { return byID[id], nil })
}
