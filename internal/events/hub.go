package events

import (
	"context"
	"errors"
	"strings"
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
	// Verify tells whether an Event that came over NATS carries the Authority's
	// signature; such Events are handed on without asking the database. Nil lets
	// messages wake only.
	Verify func(document []byte) (StoredEvent, bool)
	// AccessChanged, when set, hears of every Event of this process that may change
	// what somebody sees of a Group. It must not wait.
	AccessChanged func()
}

// Hub wakes the local readers of a Group when its log has grown, and gives them
// the recent Events from memory, one copy for all.
//
// A wake-up is a hint and may be missing or superfluous: it comes from a commit
// of this process, from a NATS message of another one, or from polling. What is
// read comes from PostgreSQL, was committed by this process, or came over NATS
// with the Authority's signature and follows what is known without a gap.
type Hub struct {
	store   *Store
	options HubOptions
	conn    atomic.Pointer[nats.Conn]

	mu     sync.Mutex
	groups map[string]*watched

	// readEvents is the Store's; reads bounds how often it runs at the same time.
	readEvents func(ctx context.Context, groupID string, after int64, limit int) ([]StoredEvent, error)
	reads      chan struct{}

	poll   chan struct{}
	panics atomic.Int64
	wakes  atomic.Int64
	misses atomic.Int64
	heard  atomic.Int64
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
	// redaction and access are the last sequences of the tail, now or earlier, at
	// which a Message was redacted and at which somebody's access may have changed.
	redaction, access int64
	// end is where the database had nothing more, for a Group without a tail.
	end int64
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
	h := &Hub{
		store: store, options: options, groups: map[string]*watched{}, poll: make(chan struct{}, 1),
		reads: make(chan struct{}, databaseReads),
	}
	if store != nil {
		h.readEvents = store.ReadEvents
	}
	return h
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
		sequence := sequenceOf(m)
		if h.options.Verify != nil && h.follows(groupID, sequence) {
			if e, ok := h.options.Verify(m.Data); ok && e.GroupID == groupID && e.Sequence == sequence {
				h.heard.Add(1)
				h.Committed(groupID, []StoredEvent{e})
				return
			}
		}
		h.Heard(groupID, sequence)
	})
}

// follows tells whether an Event is the one after what is known of a Group: only
// then are its bytes of use.
func (h *Hub) follows(groupID string, sequence int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	w, ok := h.groups[groupID]
	if !ok {
		return false
	}
	n := len(w.tail)
	return n > 0 && w.tail[n-1].Sequence == sequence-1 || n == 0 && sequence > w.head
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
	if h.options.AccessChanged != nil {
		for i := range events {
			if mayChangeAccess(events[i].Kind) {
				h.options.AccessChanged()
				break
			}
		}
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

// extend appends Events that follow the tail. Those past a gap are left to be
// read from the database by whoever comes to the gap, once for all.
func (w *watched) extend(events []StoredEvent, options HubOptions) {
	if n := len(w.tail); n > 0 {
		last := w.tail[n-1].Sequence
		for len(events) > 0 && events[0].Sequence <= last {
			events = events[1:]
		}
		if len(events) == 0 || events[0].Sequence != last+1 {
			return
		}
	}
	// Readers may hold slices of the old array, so it is only appended to.
	n := len(w.tail)
	w.tail = append(w.tail, events...)
	share(w.tail[n:])
	for i := n; i < len(w.tail); i++ {
		e := &w.tail[i]
		w.bytes += len(e.Document)
		switch {
		case e.Kind == "message.redacted":
			w.redaction = e.Sequence
		case mayChangeAccess(e.Kind):
			w.access = e.Sequence
		}
	}
	drop := 0
	for len(w.tail)-drop > options.TailEvents || w.bytes > options.TailBytes && len(w.tail)-drop > 1 {
		w.bytes -= len(w.tail[drop].Document)
		drop++
	}
	w.tail = w.tail[drop:]
}

// share lets all readers of these copies use one encoding of each.
func share(events []StoredEvent) {
	made := make([]encoding, len(events))
	for i := range events {
		if events[i].shared == nil {
			events[i].shared = &made[i]
		}
	}
}

// mayChangeAccess tells whether an Event of a kind may change what somebody sees
// of the Group (COMMANDS.md 3.7).
func mayChangeAccess(kind string) bool {
	return strings.HasPrefix(kind, "membership.") || kind == "work.offer.created" ||
		kind == "ext.missionweave.authority.mission_owner_transferred"
}

// covers tells whether the tail is all there is after a sequence.
func (w *watched) covers(after int64) bool {
	n := len(w.tail)
	return n > 0 && w.tail[0].Sequence <= after+1 && w.tail[n-1].Sequence >= w.head
}

// AccessUnchanged tells that nobody's access to a Group has changed after a
// sequence, as far as this process has heard. It is false where it does not know.
func (h *Hub) AccessUnchanged(groupID string, after int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	w, ok := h.groups[groupID]
	return ok && (w.head <= after || w.access <= after && w.covers(after))
}

// Unredacted tells that no Event with a sequence of at least from was redacted,
// as far as this process has heard. It is false where it does not know.
func (h *Hub) Unredacted(groupID string, from int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	w, ok := h.groups[groupID]
	return ok && w.redaction <= from && w.covers(from-1)
}

// Head is the highest sequence of a Group that this process has heard of, 0 for
// one without readers.
func (h *Hub) Head(groupID string) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w, ok := h.groups[groupID]; ok {
		return w.head
	}
	return 0
}

// HubStats are counters since the start.
type HubStats struct {
	// Wakes counts wake-ups of readers, Misses reads that went to the database,
	// Heard Events that were taken over from NATS, Panics reads that panicked.
	Wakes, Misses, Heard, Panics int64
}

// Stats returns the counters.
func (h *Hub) Stats() HubStats {
	return HubStats{Wakes: h.wakes.Load(), Misses: h.misses.Load(), Heard: h.heard.Load(), Panics: h.panics.Load()}
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
			return h.fromDatabase(ctx, groupID, after, limit)
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
		if len(w.tail) == 0 && after == w.end && w.head <= after && after > 0 {
			h.mu.Unlock()
			return nil, nil
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
		out, err := h.fromDatabase(ctx, groupID, after, limit)
		if done != nil {
			h.mu.Lock()
			if w.loading == done {
				w.loading = nil
			}
			if err == nil && len(out) > 0 {
				if n := len(w.tail); n > 0 && out[0].Sequence > w.tail[n-1].Sequence+1 {
					w.tail, w.bytes = nil, 0 // nobody is at the old one any more
				}
				share(out)
				w.extend(out, h.options)
				w.head = max(w.head, out[len(out)-1].Sequence)
			}
			if err == nil && len(out) == 0 {
				// The hint was wrong; believing it would mean reading for ever.
				w.head = min(w.head, after)
				w.end = after
			}
			h.mu.Unlock()
			close(done)
		}
		return out, err
	}
}

// answerWithin is how long the database may take: many readers wait for one of
// them, which must not wait for ever on a connection that nobody answers on.
const answerWithin = 5 * time.Second

// databaseReads bounds the pages that are read at the same time. Thousands of
// readers that are behind must not each hold a goroutine and a place in the line
// for a connection while the database does not answer.
const databaseReads = 32

func (h *Hub) fromDatabase(ctx context.Context, groupID string, after int64, limit int) ([]StoredEvent, error) {
	select {
	case h.reads <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	h.misses.Add(1)
	type page struct {
		events []StoredEvent
		err    error
	}
	// A query needs a deep stack, which the goroutine of each of thousands of
	// readers would keep.
	read := make(chan page, 1)
	go func() {
		defer func() { <-h.reads }()
		p := page{err: errReadPanicked}
		defer func() {
			if fault := recover(); fault != nil {
				h.panics.Add(1)
			}
			read <- p
		}()
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		p.events, p.err = h.readEvents(ctx, groupID, after, limit)
	}()
	p := <-read
	return p.events, p.err
}

// errReadPanicked is what a reader gets when its read panicked: the goroutine that
// read is not the reader's, so nobody above it could have caught that.
var errReadPanicked = errors.New("events: reading from the database panicked")

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
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
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
