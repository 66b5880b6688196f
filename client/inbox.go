package client

import (
	"errors"
	"sync"
)

// inboxEvents and inboxBytes bound what waits in memory for the user of one
// Subscription. Past them Events are dropped and read again over REST when the
// user has caught up, so that a Group whose user is slow delays no other Group
// of the connection and costs no more memory.
const (
	inboxEvents = 1024
	inboxBytes  = 4 << 20
)

// entry is what comes to a Subscription: an Event, a watermark, the mark after
// the replay, or its end.
type entry struct {
	delivery  Delivery
	watermark int64
	caughtUp  bool
	end       error
}

// inbox is the queue between a connection, which must never wait for a user,
// and the pump of a Subscription.
type inbox struct {
	mu      sync.Mutex
	entries []entry
	bytes   int
	// dropped is the highest sequence that found no room; 0 when nothing was lost
	// since the last take.
	dropped int64
	ended   bool
	wake    chan struct{} // capacity 1
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

// put adds an entry unless the inbox is full. Ends and marks always fit: there
// is at most one of each in a connection's life.
func (b *inbox) put(e entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	sequence := max(e.delivery.Event.Sequence, e.watermark)
	full := len(b.entries) >= inboxEvents || b.bytes+len(e.delivery.Bytes) > inboxBytes && len(b.entries) > 0
	switch {
	case e.end == nil && !e.caughtUp && (full || b.dropped > 0):
		// Once something was dropped everything after it is, so that what is in
		// the inbox never has a hole of its own making.
		b.dropped = max(b.dropped, sequence)
	default:
		b.entries = append(b.entries, e)
		b.bytes += len(e.delivery.Bytes)
		b.ended = e.end != nil
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns the next entry. When there is none, dropped tells how far the
// log has to be read instead, 0 for not at all; from here on new entries are
// kept again.
func (b *inbox) take() (e entry, ok bool, dropped int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A mark that waits behind a hole must wait for it to be filled.
	if len(b.entries) == 0 || b.dropped > 0 && b.entries[0].delivery.Event.Sequence == 0 && b.entries[0].watermark == 0 {
		dropped, b.dropped = b.dropped, 0
		if dropped > 0 || len(b.entries) == 0 {
			return entry{}, false, dropped
		}
	}
	e = b.entries[0]
	b.entries[0] = entry{}
	b.entries = b.entries[1:]
	b.bytes -= len(e.delivery.Bytes)
	return e, true, 0
}

// ErrForked ends a Subscription whose server sent two different Events for one
// position of a Group: it is not one Group Authority.
var ErrForked = errors.New("client: two different Events have the same position")

// recent remembers which Event stood at the last positions, to tell a repeated
// Event from another one.
type recent struct {
	ids   map[int64]string
	order []int64
}

const recentEvents = 512

func newRecent() *recent { return &recent{ids: map[int64]string{}} }

func (r *recent) add(sequence int64, eventID string) {
	r.ids[sequence] = eventID
	r.order = append(r.order, sequence)
	if len(r.order) > recentEvents {
		delete(r.ids, r.order[0])
		r.order = r.order[1:]
	}
}

// repeated returns ErrForked when another Event stood at this position.
func (r *recent) repeated(sequence int64, eventID string) error {
	if id, known := r.ids[sequence]; known && id != eventID {
		return ErrForked
	}
	return nil
}
