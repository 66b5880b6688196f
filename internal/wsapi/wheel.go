package wsapi

import (
	"math/rand/v2"
	"sync"
	"time"
)

// wheel looks after what time alone makes due on connections that are logged in:
// PINGs, silence, and the end of sessions. One goroutine and a few wake-ups a
// second serve all of them: a timer for each would wake the process as often as
// there are connections, which costs more than what the timers are for.
type wheel struct {
	server *Server
	// grain is how far apart two rounds are at least: what is due is late by that
	// much at most.
	grain time.Duration

	mu sync.Mutex
	// slots hold the connections by when they are due, in grains.
	slots   map[int64]map[*conn]struct{}
	running bool
	sooner  chan struct{}
}

// pingBursts is in how many groups the connections are pinged between two PINGs.
const pingBursts = 20

// beat is what the wheel keeps with a connection.
type beat struct {
	slot int64
	ping time.Time
}

func (w *wheel) init(s *Server) {
	w.server, w.slots, w.sooner = s, map[int64]map[*conn]struct{}{}, make(chan struct{}, 1)
	w.grain = min(max(min(s.Timing.Ping, s.Timing.Idle)/80, time.Millisecond), 250*time.Millisecond)
}

// add begins with a connection. Its first PING comes early by up to half of the
// pause, so that those that connected together do not stay together.
func (w *wheel) add(c *conn) {
	ping := w.server.Timing.Ping
	now := w.server.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	// PINGs go out in bursts rather than one by one: that wakes the process less.
	c.beat.ping = now.Add(ping/2 + rand.N(ping/2+1)).Truncate(max(ping/pingBursts, 1)) //nolint:gosec // spreads load
	w.put(c, now)
	if !w.running {
		w.running = true
		w.server.running.Go(w.run)
	}
	select {
	case w.sooner <- struct{}{}:
	default:
	}
}

func (w *wheel) remove(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.take(c)
	if len(w.slots) == 0 {
		select {
		case w.sooner <- struct{}{}:
		default:
		}
	}
}

// put files a connection under the time at which something is due, which is not
// before the next round.
func (w *wheel) put(c *conn, now time.Time) {
	due := c.beat.ping
	for _, other := range []time.Time{c.identity().ExpiresAt, c.heard().Add(w.server.Timing.Idle)} {
		if other.Before(due) {
			due = other
		}
	}
	c.beat.slot = max(due.UnixNano()/int64(w.grain), now.UnixNano()/int64(w.grain)) + 1
	if w.slots[c.beat.slot] == nil {
		w.slots[c.beat.slot] = map[*conn]struct{}{}
	}
	w.slots[c.beat.slot][c] = struct{}{}
}

func (w *wheel) take(c *conn) {
	delete(w.slots[c.beat.slot], c)
	if len(w.slots[c.beat.slot]) == 0 {
		delete(w.slots, c.beat.slot)
	}
}

// run goes round until no connection is left or the server drains.
func (w *wheel) run() {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-w.server.draining:
			return
		case <-w.sooner:
		case <-t.C:
		}
		wait, more := w.round()
		if !more {
			return
		}
		t.Reset(wait)
	}
}

// round deals with what is due and tells when to come again.
func (w *wheel) round() (wait time.Duration, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.server.Now()
	current := now.UnixNano() / int64(w.grain)
	var due []*conn
	for slot, conns := range w.slots {
		if slot <= current {
			for c := range conns {
				due = append(due, c)
			}
			delete(w.slots, slot)
		}
	}
	var frame []byte // one for all
	for _, c := range due {
		if !now.Before(c.beat.ping) {
			if frame == nil {
				frame = w.server.ping("")
			}
			c.out.rest()
			c.out.beat(frame)
			c.beat.ping = c.beat.ping.Add(w.server.Timing.Ping)
			if c.beat.ping.Before(now) {
				c.beat.ping = now.Add(w.server.Timing.Ping) // the machine slept
			}
		}
		if c.expired(now) || c.silent(now) {
			c.out.signal() // the writer ends it
		}
		w.put(c, now)
	}
	if len(w.slots) == 0 {
		w.running = false
		return 0, false
	}
	first := int64(1<<63 - 1)
	for slot := range w.slots {
		first = min(first, slot)
	}
	return time.Unix(0, first*int64(w.grain)).Sub(now), true
}
