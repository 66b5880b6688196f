package wsapi

import (
	"context"
	"sync"

	"github.com/coder/websocket"

	"github.com/missionweave/server/internal/events"
)

// Bounds of what waits for a client (COMMANDS.md 8.10).
const (
	laneEvents   = 256
	laneBytes    = 1 << 20
	outboxBytes  = 8 << 20
	controlItems = 64
	controlBytes = 1 << 20
)

// item is one thing to write to a client, in its order within a Group.
type item struct {
	// event is written as an EVENT frame around its signed bytes; frame is written
	// as it is. An item with neither only moves the place that has been reached.
	event *events.StoredEvent
	frame []byte
	// through is the last sequence dealt with once the item is written.
	through int64
	lane    *lane
}

func (i *item) size() int {
	if i.event != nil {
		return len(i.event.Document)
	}
	return len(i.frame)
}

// lane is the queue of one Group of one connection.
type lane struct {
	items []item
	bytes int
	// queued and sent are the last sequences that were put in and written.
	queued, sent int64
	// moved, when somebody waits for it, is closed once the lane was written from.
	moved chan struct{}
	gone  bool
}

// final is the last thing of a connection.
type final struct {
	frame  []byte
	code   websocket.StatusCode
	reason string
}

// outbox holds what waits for the writer: answers first, then the Groups in
// turn, one Event each, so that a noisy Group starves no other.
type outbox struct {
	mu           sync.Mutex
	control      [][]byte
	controlBytes int
	controlMoved chan struct{}
	ready        []*lane
	bytes        int
	final        *final
	// flush lets what is queued out before the final.
	flush bool
	wake  chan struct{}
}

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), controlMoved: make(chan struct{})}
}

func newLane(start int64) *lane {
	return &lane{queued: start, sent: start}
}

func (l *lane) whenMoved() <-chan struct{} {
	if l.moved == nil {
		l.moved = make(chan struct{})
	}
	return l.moved
}

func (l *lane) wakeWaiting() {
	if l.moved != nil {
		close(l.moved)
		l.moved = nil
	}
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// answer queues a frame that belongs to no Group's order. It waits while too
// many are queued, and returns an error when ctx ends first.
func (o *outbox) answer(ctx context.Context, frame []byte) error {
	for {
		o.mu.Lock()
		if len(o.control) == 0 || len(o.control) < controlItems && o.controlBytes+len(frame) <= controlBytes {
			o.control = append(o.control, frame)
			o.controlBytes += len(frame)
			o.mu.Unlock()
			o.signal()
			return nil
		}
		moved := o.controlMoved
		o.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err() //nolint:wrapcheck // the context's
		}
	}
}

// notice queues a frame without waiting. Whoever calls it bounds how often.
func (o *outbox) notice(frame []byte) {
	o.mu.Lock()
	o.control = append(o.control, frame)
	o.controlBytes += len(frame)
	o.mu.Unlock()
	o.signal()
}

// offer puts an item into a lane if it fits. When it does not, moved says when to
// try again. An item always fits an empty lane.
func (o *outbox) offer(i item) (moved <-chan struct{}, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := i.lane
	size := i.size()
	fits := len(l.items) < laneEvents && l.bytes+size <= laneBytes && o.bytes+size <= outboxBytes
	if l.gone {
		return nil, true // dropped
	}
	if !fits && len(l.items) > 0 {
		return l.whenMoved(), false
	}
	if len(l.items) == 0 {
		o.ready = append(o.ready, l)
	}
	l.items = append(l.items, i)
	l.bytes += size
	o.bytes += size
	l.queued = max(l.queued, i.through)
	o.signal()
	return nil, true
}

// drop removes a lane and what is in it.
func (o *outbox) drop(l *lane) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bytes -= l.bytes
	l.items, l.bytes, l.gone = nil, 0, true
	for i, r := range o.ready {
		if r == l {
			o.ready = append(o.ready[:i:i], o.ready[i+1:]...)
			break
		}
	}
	l.wakeWaiting()
}

// finish makes f the last thing. Only the first call counts.
func (o *outbox) finish(f *final, flush bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.final != nil {
		return false
	}
	o.final, o.flush = f, flush
	o.signal()
	return true
}

// take returns what is to be written next: a frame, an item, or the final one.
// ok is false when nothing is.
func (o *outbox) take() (frame []byte, it item, last *final, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.final != nil && !o.flush {
		return nil, item{}, o.final, true
	}
	if len(o.control) > 0 {
		frame = o.control[0]
		o.control[0] = nil
		if o.control = o.control[1:]; len(o.control) == 0 {
			o.control = nil
		}
		o.controlBytes -= len(frame)
		close(o.controlMoved)
		o.controlMoved = make(chan struct{})
		return frame, item{}, nil, true
	}
	if len(o.ready) > 0 {
		l := o.ready[0]
		o.ready = append(o.ready[:0], o.ready[1:]...)
		it = l.items[0]
		l.items[0] = item{}
		if l.items = l.items[1:]; len(l.items) == 0 {
			l.items = nil
		} else {
			o.ready = append(o.ready, l)
		}
		l.bytes -= it.size()
		o.bytes -= it.size()
		return nil, it, nil, true
	}
	if o.final != nil {
		return nil, item{}, o.final, true
	}
	return nil, item{}, nil, false
}

// written records that an item is out.
func (o *outbox) written(it item) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := it.lane
	l.sent = max(l.sent, it.through)
	l.wakeWaiting()
}

// place returns what a lane has reached, and what is closed when that changes.
func (o *outbox) place(l *lane) (queued, sent int64, moved <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return l.queued, l.sent, l.whenMoved()
}
