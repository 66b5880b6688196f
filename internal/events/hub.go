package events

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// HubOptions bound a Hub; the zero value of each means its default.
type HubOptions struct {
	// TailEvents and TailBytes bound the recent Events kept per watched Group,
	// default 512 and 1 MiB.
	TailEvents, TailBytes int
	// PollEvery is how often watched Groups are compared with the database while
	// NATS is connected, default 2 s; PollAlone is the same without NATS,
	// default 100 ms.
	PollEvery, PollAlone time.Duration
}

// Hub wakes the local readers of a Group when its log has grown, and gives them
// the recent Events from memory, one copy for all.
//
// A wake-up is a hint and may be missing or superfluous: it comes from a commit
// of this process, from a NATS message of another one, or from polling. What is
// read comes from PostgreSQL or was committed by this process.
type Hub struct {
	store   *Store
	options HubOptions
	conn    atomic.Pointer[nats.Conn]

	mu     sync.Mutex
	groups map[string]*watched

	poll   chan struct{}
	wakes  atomic.Int64
	misses atomic.Int64
}

// watched is a Group with at least one reader.
type watched struct {
	waiters map[chan struct{}]struct{}
	sub     *nats.Subscription
	// head is the highest sequence heard of; it never exceeds the real one by
	// more than a hint from NATS could lie.
	head int64
	// tail are consecutive Events, the last of them at most head.
	tail  []StoredEvent
	bytes int
	// loading is closed when the read that runs now has ended.
	loading chan struct{}
}

// NewHub makes a Hub. Run polls for it.
func NewHub(store *Store, options HubOptions) *Hub {
	if options.TailEvents <= 0 {
		options.TailEvents = 512
	}
	if options.TailBytes <= 0 {
		options.TailBytes = 1 << 20
	}
	if options.PollEvery <= 0 {
		options.PollEvery = 2 * time.Second
	}
	if options.PollAlone <= 0 {
		options.PollAlone = 100 * time.Millisecond
	}
	return &Hub{store: store, options: options, groups: map[string]*watched{}, poll: make(chan struct{}, 1)}
}

// UseNATS lets messages of other processes wake readers.
func (h *Hub) UseNATS(conn *nats.Conn) {
	h.conn.Store(conn)
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, w := range h.groups {
		h.subscribe(id, w)
	}
}

func (h *Hub) subscribe(groupID string, w *watched) {
	conn := h.conn.Load()
	if conn == nil || w.sub != nil {
		return
	}
	// A failed subscription leaves the Group to polling.
	w.sub, _ = conn.Subscribe(Subject(groupID), func(m *nats.Msg) {
		h.Heard(groupID, sequenceOf(m))
	})
}

// Watch returns a channel that gets a value after the Group's log has grown; a
// value may stand for any number of Events. cancel ends it and must be called.
// The reader looks at the log once before it waits, because growth before Watch
// wakes nobody.
func (h *Hub) Watch(groupID string) (wake <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	h.mu.Lock()
	w, ok := h.groups[groupID]
	if !ok {
		w = &watched{waiters: map[chan struct{}]struct{}{}}
		h.groups[groupID] = w
		h.subscribe(groupID, w)
	}
	w.waiters[c] = struct{}{}
	h.mu.Unlock()
	var once sync.Once
	return c, func() {
		once.Do(func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			delete(w.waiters, c)
			if len(w.waiters) > 0 || h.groups[groupID] != w {
				return
			}
			delete(h.groups, groupID)
			if w.sub != nil {
				_ = w.sub.Unsubscribe()
			}
		})
	}
}

// Committed tells the Hub what this process has just committed to a Group, in
// order.
func (h *Hub) Committed(groupID string, events []StoredEvent) {
	if len(events) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	w, ok := h.groups[groupID]
	if !ok {
		return
	}
	w.extend(events, h.options)
	w.raise(events[len(events)-1].Sequence)
	h.wakes.Add(int64(len(w.waiters)))
}

// Heard tells the Hub that a Group's log reaches at least sequence.
func (h *Hub) Heard(groupID string, sequence int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w, ok := h.groups[groupID]; ok && sequence > w.head {
		w.raise(sequence)
		h.wakes.Add(int64(len(w.waiters)))
	}
}

func (w *watched) raise(head int64) {
	w.head = max(w.head, head)
	for c := range w.waiters {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// extend appends Events that follow the tail, or starts it anew.
func (w *watched) extend(events []StoredEvent, options HubOptions) {
	if n := len(w.tail); n > 0 {
		last := w.tail[n-1].Sequence
		for len(events) > 0 && events[0].Sequence <= last {
			events = events[1:]
		}
		if len(events) == 0 {
			return
		}
		if events[0].Sequence != last+1 {
			w.tail, w.bytes = nil, 0
		}
	}
	for i := range events {
		w.bytes += len(events[i].Document)
	}
	// Readers may hold slices of the old array, so it is only appended to.
	w.tail = append(w.tail, events...)
	drop := 0
	for len(w.tail)-drop > options.TailEvents || w.bytes > options.TailBytes && len(w.tail)-drop > 1 {
		w.bytes -= len(w.tail[drop].Document)
		drop++
	}
	w.tail = w.tail[drop:]
}

// Read returns up to limit Events of a Group after a sequence, in order and
// without gaps; fewer only at the end of what is known. The Events are shared
// and must not be changed. A watched Group is read from memory where possible,
// and readers of one place share one query. Errors as Store.ReadEvents.
func (h *Hub) Read(ctx context.Context, groupID string, after int64, limit int) ([]StoredEvent, error) {
	limit = min(max(limit, 1), MaxPage)
	for {
		h.mu.Lock()
		w, ok := h.groups[groupID]
		if !ok {
			h.mu.Unlock()
			return h.store.ReadEvents(ctx, groupID, after, limit)
		}
		if n := len(w.tail); n > 0 && after >= w.tail[0].Sequence-1 {
			last := w.tail[n-1].Sequence
			if after < last {
				from := int(after - w.tail[0].Sequence + 1)
				out := w.tail[from:min(from+limit, n):min(from+limit, n)]
				h.mu.Unlock()
				return out, nil
			}
			if after == last && w.head <= last {
				h.mu.Unlock()
				return nil, nil
			}
		}
		atTail := len(w.tail) == 0 || after >= w.tail[0].Sequence-1
		if running := w.loading; running != nil && atTail {
			h.mu.Unlock()
			select {
			case <-running:
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		var done chan struct{}
		if atTail {
			done = make(chan struct{})
			w.loading = done
		}
		h.mu.Unlock()
		h.misses.Add(1)
		out, err := h.store.ReadEvents(ctx, groupID, after, limit)
		if done != nil {
			h.mu.Lock()
			if w.loading == done {
				w.loading = nil
			}
			if err == nil && len(out) > 0 && (len(w.tail) == 0 || out[0].Sequence == w.tail[len(w.tail)-1].Sequence+1) {
				w.extend(out, h.options)
				w.head = max(w.head, out[len(out)-1].Sequence)
			}
			if err == nil && len(out) == 0 {
				// The hint was wrong; believing it would mean reading for ever.
				w.head = min(w.head, after)
			}
			h.mu.Unlock()
			close(done)
		}
		return out, err
	}
}

// Watched counts the Groups with readers and the readers.
func (h *Hub) Watched() (groups, readers int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.groups {
		readers += len(w.waiters)
	}
	return len(h.groups), readers
}

// Run compares the watched Groups with the database until the context ends.
func (h *Hub) Run(ctx context.Context) error {
	for {
		wait := h.options.PollAlone
		if conn := h.conn.Load(); conn != nil && conn.IsConnected() {
			wait = h.options.PollEvery
		}
		select {
		case <-ctx.Done():
			h.stop()
			return nil
		case <-h.poll:
		case <-time.After(wait):
		}
		h.compare(ctx)
	}
}

func (h *Hub) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.groups {
		if w.sub != nil {
			_ = w.sub.Unsubscribe()
			w.sub = nil
		}
	}
}

// compare wakes the readers of Groups whose head is above what is known. A
// database that does not answer is tried again at the next turn.
func (h *Hub) compare(ctx context.Context) {
	h.mu.Lock()
	ids := make([]string, 0, len(h.groups))
	for id := range h.groups {
		ids = append(ids, id)
	}
	h.mu.Unlock()
	for len(ids) > 0 {
		page := ids[:min(len(ids), 1000)]
		ids = ids[len(page):]
		rows, err := h.store.GroupRows(ctx, page...)
		if err != nil {
			return
		}
		for id, row := range rows {
			h.Heard(id, row.HeadSequence)
		}
	}
}
