package wsapi

import (
	"context"
	"slices"
	"sync"
)

// Bounds of what waits for a client (COMMANDS.md 8.10).
const (
	laneEvents   = 256
	laneBytes    = 1 << 20
	outboxBytes  = 8 << 20
	controlItems = 64
	controlBytes = 1 << 20
)

// Bounds of what is written at once. One system call for all ready-made frames
// that wait is what makes delivery fast; the bounds keep the time that one write
// may take, and what is out of the queues' bounds, small.
const (
	batchFrames = 256
	batchBytes  = 256 << 10
)

// item is one thing to write to a client, in its order within a Group.
type item struct {
	// frame is a ready-made WebSocket frame, shared with other connections; nil
	// only moves the place that has been reached.
	frame []byte
	// through is the last sequence dealt with once the item is written.
	through int64
	// event tells that the frame is an EVENT frame.
	event bool
}

// lane is the queue of one Group of one connection.
type lane struct {
	// items[head:] wait.
	items []item
	head  int
	bytes int
	// queued, taken and sent are the last sequences that were put in, are being
	// written, and were written.
	queued, taken, sent int64
	// moved, when somebody waits for it, is closed once the lane was written from.
	moved chan struct{}
	gone  bool
	// inBatch tells that the batch that is being written has something of it.
	inBatch bool
}

func (l *lane) waiting() int { return len(l.items) - l.head }

// reply is a frame that belongs to no Group's order.
type reply struct {
	frame []byte
	// event tells that it carries an Event: a fenced session must not get it.
	event bool
}

// final is the last thing of a connection.
type final struct {
	// frame is an ERROR frame to send before the close frame, nil for none.
	frame  []byte
	code   int
	reason string
	// echo answers a close frame of the client's that had no code.
	echo bool
}

// outbox holds what waits for the writer: answers first, then the Groups in
// turn, one Event each, so that a noisy Group starves no other.
type outbox struct {
	mu           sync.Mutex
	control      []reply
	controlBytes int
	controlMoved chan struct{} // made when somebody waits
	pong, ping   []byte
	lanes        []*lane
	ready        []*lane
	bytes        int
	final        *final
	// flush lets what is queued out before the final.
	flush bool
	wake  chan struct{}
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

func newLane(start int64) *lane {
	return &lane{queued: start, taken: start, sent: start}
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
func (o *outbox) answer(ctx context.Context, r reply) error {
	for {
		o.mu.Lock()
		if len(o.control) == 0 || len(o.control) < controlItems && o.controlBytes+len(r.frame) <= controlBytes {
			o.control = append(o.control, r)
			o.controlBytes += len(r.frame)
			o.mu.Unlock()
			o.signal()
			return nil
		}
		if o.controlMoved == nil {
			o.controlMoved = make(chan struct{})
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
	o.control = append(o.control, reply{frame: frame})
	o.controlBytes += len(frame)
	o.mu.Unlock()
	o.signal()
}

// ponged queues the answer to a ping of the WebSocket layer. Only the latest
// waits: a client that pings and does not read must not fill memory.
func (o *outbox) ponged(frame []byte) {
	o.mu.Lock()
	o.pong = frame
	o.mu.Unlock()
	o.signal()
}

// beat queues a PING of the server's. Like answers to pings, only the latest
// waits.
func (o *outbox) beat(frame []byte) {
	o.mu.Lock()
	o.ping = frame
	o.mu.Unlock()
	o.signal()
}

// offer puts items into a lane as far as they fit, and tells how many did. When
// not all did, moved says when to try again. An item always fits an empty lane;
// a lane that was dropped swallows everything.
func (o *outbox) offer(l *lane, items []item) (n int, moved <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if l.gone {
		return len(items), nil
	}
	if l.waiting() == 0 && len(items) > 0 {
		o.ready = append(o.ready, l)
	}
	for _, i := range items {
		size := len(i.frame)
		if l.waiting() > 0 && (l.waiting() >= laneEvents || l.bytes+size > laneBytes || o.bytes+size > outboxBytes) {
			moved = l.whenMoved()
			break
		}
		if l.head > 0 && len(l.items) == cap(l.items) {
			kept := copy(l.items, l.items[l.head:])
			clear(l.items[kept:])
			l.items, l.head = l.items[:kept], 0
		}
		l.items = append(l.items, i)
		l.bytes += size
		o.bytes += size
		l.queued = max(l.queued, i.through)
		n++
	}
	if n > 0 {
		o.signal()
	}
	return n, moved
}

// add makes a lane one of the outbox's, until it is dropped.
func (o *outbox) add(l *lane) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lanes = append(o.lanes, l)
}

// rest gives back the memory of queues in which nothing waits.
func (o *outbox) rest() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.lanes {
		if l.waiting() == 0 {
			l.items, l.head = nil, 0
		}
	}
}

// drop removes a lane and what is in it.
func (o *outbox) drop(l *lane) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clear(l)
	l.gone = true
	o.lanes = slices.DeleteFunc(o.lanes, func(other *lane) bool { return other == l })
	l.wakeWaiting()
}

// forget removes what waits in a lane, which goes on after it.
func (o *outbox) forget(l *lane) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clear(l)
}

func (o *outbox) clear(l *lane) {
	o.bytes -= l.bytes
	l.items, l.head, l.bytes = nil, 0, 0
	for i, r := range o.ready {
		if r == l {
			o.ready = append(o.ready[:i:i], o.ready[i+1:]...)
			break
		}
	}
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

// batch is what the writer takes at once.
type batch struct {
	frames [][]byte
	lanes  []*lane
	bytes  int
	events int
	// final, when set, comes after frames and is the last thing.
	final *final
}

func (b *batch) reset() {
	clear(b.frames)
	clear(b.lanes)
	*b = batch{frames: b.frames[:0], lanes: b.lanes[:0]}
}

func (b *batch) add(frame []byte) {
	b.frames = append(b.frames, frame)
	b.bytes += len(frame)
}

func (b *batch) full() bool { return len(b.frames) >= batchFrames || b.bytes >= batchBytes }

// take fills an empty batch with what is to be written next; false when nothing
// is. Whoever writes it calls written.
func (o *outbox) take(b *batch) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range []*[]byte{&o.pong, &o.ping} {
		if *f != nil {
			b.add(*f)
			*f = nil
		}
	}
	cut := o.final != nil && !o.flush
	n := 0
	for _, r := range o.control {
		// What a fatal end cuts off are Events; an ERROR that was owed before it is
		// still sent.
		if !cut || !r.event {
			if b.full() && !cut {
				break
			}
			b.add(r.frame)
			if r.event {
				b.events++
			}
		}
		o.controlBytes -= len(r.frame)
		n++
	}
	if n > 0 {
		clear(o.control[:n])
		if o.control = o.control[n:]; len(o.control) == 0 {
			o.control = nil
		}
		if o.controlMoved != nil {
			close(o.controlMoved)
			o.controlMoved = nil
		}
	}
	if cut {
		b.final = o.final
		return true
	}
	moved := false
	for len(o.ready) > 0 && !b.full() {
		l := o.ready[0]
		if len(o.ready) == 1 {
			// Nobody to take turns with.
			for l.waiting() > 0 && !b.full() {
				o.takeFrom(l, b)
			}
			if l.waiting() == 0 {
				o.ready = o.ready[:0]
			}
			moved = true
			continue
		}
		copy(o.ready, o.ready[1:])
		o.ready = o.ready[:len(o.ready)-1]
		o.takeFrom(l, b)
		if l.waiting() > 0 {
			o.ready = append(o.ready, l)
		}
		moved = true
	}
	if o.final != nil && len(o.control) == 0 && len(o.ready) == 0 {
		b.final = o.final
	}
	return moved || len(b.frames) > 0 || b.final != nil
}

func (o *outbox) takeFrom(l *lane, b *batch) {
	i := l.items[l.head]
	l.items[l.head] = item{}
	if l.head++; l.head == len(l.items) {
		l.items, l.head = l.items[:0], 0
	}
	size := len(i.frame)
	l.bytes -= size
	o.bytes -= size
	l.taken = max(l.taken, i.through)
	if !l.inBatch {
		l.inBatch = true
		b.lanes = append(b.lanes, l)
	}
	if i.frame != nil {
		b.add(i.frame)
	}
	if i.event {
		b.events++
	}
}

// written records that a batch is out.
func (o *outbox) written(b *batch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range b.lanes {
		l.inBatch = false
		l.sent = l.taken
		l.wakeWaiting()
	}
}

// place returns what a lane has reached, and what is closed when that changes.
func (o *outbox) place(l *lane) (queued, sent int64, moved <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return l.queued, l.sent, l.whenMoved()
}

// reached is the last sequence that was written of a lane.
func (o *outbox) reached(l *lane) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return l.sent
}
