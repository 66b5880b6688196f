package wsapi

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/missionweave/server/internal/delivery"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// endOfLog is past every sequence: nothing is owed after it.
const endOfLog = 1<<53 - 1

// subscription is one Group of a connection.
type subscription struct {
	groupID string
	out     *outbox
	lane    *lane
	start   int64
	// owed is the sequence that has to be written before a PING is answered; it
	// belongs to the processor.
	owed int64
	// stuck is since when the lane has been too full, zero while it is not; told
	// says that the client knows. They belong to the feed's goroutine.
	stuck time.Time
	told  bool
	// acknowledged is the highest sequence that the client acknowledged on this
	// connection, at first where it began.
	acknowledged atomic.Int64

	cancel context.CancelFunc
	done   chan struct{}
}

// follow starts the goroutine that brings a Group's Events into the outbox.
func (c *conn) follow(groupID string, feed *delivery.Feed) *subscription {
	ctx, cancel := context.WithCancel(c.ctx)
	sub := &subscription{
		groupID: groupID, out: c.out, lane: newLane(feed.Start()), start: feed.Start(), owed: feed.LiveAfter(),
		cancel: cancel, done: make(chan struct{}),
	}
	c.out.add(sub.lane)
	sub.acknowledged.Store(feed.Start())
	c.server.followed(sub)
	c.feeds.Go(func() {
		defer close(sub.done)
		defer c.server.unfollowed(sub)
		defer cancel()
		defer feed.Close()
		c.feed(ctx, sub, feed)
	})
	return sub
}

// alive returns the subscription of a Group unless it has ended.
func (c *conn) alive(groupID string) *subscription {
	sub := c.subs[groupID]
	if sub == nil {
		return nil
	}
	select {
	case <-sub.done:
		return nil
	default:
		return sub
	}
}

// unsubscribe ends a subscription and what is queued of it.
func (c *conn) unsubscribe(sub *subscription) {
	sub.cancel()
	<-sub.done
	c.out.drop(sub.lane)
}

// feed moves a Group's Events into the outbox until ctx ends or the Group is
// closed to the reader.
func (c *conn) feed(ctx context.Context, sub *subscription, feed *delivery.Feed) {
	defer c.guard("feed")
	var (
		withheld bool // since the last watermark
		through  int64
		lastMark time.Time
	)
	for {
		page, err := c.nextPage(ctx, feed, withheld, lastMark)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, context.DeadlineExceeded):
			// A watermark is due and nothing else is.
		case err != nil:
			return
		default:
			if page.Cut {
				c.out.forget(sub.lane)
			}
			switch c.queuePage(ctx, sub, feed, page) {
			case queueEnded:
				return
			case queueStale:
				continue
			}
			withheld, through = withheld || page.Withheld, page.Through
		}
		if now := c.server.Now(); withheld && now.Sub(lastMark) >= c.server.Timing.Watermark {
			if c.queue(ctx, sub, nil, []item{{frame: c.watermark(sub.groupID, through, now), through: through}}) != queued {
				return
			}
			withheld, lastMark = false, now
		}
		if page.End != nil {
			c.queue(ctx, sub, nil, []item{{frame: c.errorFrame(page.End), through: endOfLog}})
			return
		}
	}
}

// nextPage waits for Events, or until the watermark that is held back is due.
func (c *conn) nextPage(ctx context.Context, feed *delivery.Feed, withheld bool, lastMark time.Time) (delivery.Page, error) {
	if withheld {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(c.server.Timing.Watermark-c.server.Now().Sub(lastMark), time.Millisecond))
		defer cancel()
	}
	return feed.Next(ctx) //nolint:wrapcheck // the context's
}

// How queueing went: all is in, nothing more is wanted, or the reader's access
// may have changed before all was in and must be looked at again.
const (
	queued = iota
	queueEnded
	queueStale
)

// runs holds the items of a page while they are queued.
var runs = sync.Pool{New: func() any { return new([]item) }}

func (c *conn) queuePage(ctx context.Context, sub *subscription, feed *delivery.Feed, page delivery.Page) int {
	run := runs.Get().(*[]item) //nolint:forcetypeassert // the pool has nothing else
	defer func() {
		clear(*run)
		*run = (*run)[:0]
		runs.Put(run)
	}()
	for i := range page.Events {
		e := &page.Events[i]
		*run = append(*run, item{frame: e.Encoded(eventFrame), through: e.Sequence, event: true})
	}
	if n := len(page.Events); n == 0 || page.Events[n-1].Sequence < page.Through {
		*run = append(*run, item{through: page.Through})
	}
	if page.End != nil {
		feed = nil // these are the last words
	}
	return c.queue(ctx, sub, feed, *run)
}

// queue puts items into the lane, waiting while it is full. A lane that stays
// full pauses its Group, and the client is told once. While it waits for room,
// the reader's access is looked after through feed, which may be nil.
func (c *conn) queue(ctx context.Context, sub *subscription, feed *delivery.Feed, items []item) int {
	n, moved := c.out.offer(sub.lane, items)
	if items = items[n:]; len(items) == 0 {
		sub.stuck, sub.told = time.Time{}, false
		return queued
	}
	var grown <-chan struct{}
	if feed != nil {
		grown = feed.Grown()
	}
	// A new look at the reader's access comes back here: the clock goes on.
	if sub.stuck.IsZero() {
		sub.stuck = c.server.Now()
	}
	var due <-chan time.Time
	if !sub.told {
		pause := time.NewTimer(c.server.Timing.Pause - c.server.Now().Sub(sub.stuck))
		defer pause.Stop()
		due = pause.C
	}
	for {
		select {
		case <-ctx.Done():
			return queueEnded
		case <-due:
			sub.told = true
			c.server.metrics.paused.Inc()
			c.out.notice(c.errorFrame(protocol.NewError(protocol.CodeBackpressure, "").
				WithGroup(sub.groupID).WithRetryAfter(jittered(time.Second))))
			continue
		case <-grown:
			if feed.Outdated() {
				// What waits was allowed when it was read. It is read again from what has
				// been queued, after a new look.
				through, _, _ := c.out.place(sub.lane)
				feed.Rewind(through)
				return queueStale
			}
			continue
		case <-moved:
		}
		n, moved = c.out.offer(sub.lane, items)
		if items = items[n:]; len(items) == 0 {
			sub.stuck, sub.told = time.Time{}, false
			return queued
		}
	}
}

// watermark says that everything up to a sequence has been sent or left out on
// purpose (COMMANDS.md 8.7).
func (c *conn) watermark(groupID string, through int64, now time.Time) []byte {
	b, err := protocol.AppendFrame(nil, &protocol.Ack{
		FrameID: mint(now), SentAt: lexical.FormatMicros(now),
		Acknowledgements: []protocol.Cursor{{GroupID: groupID, Sequence: through}},
	})
	if err != nil {
		c.server.Log.Error("ACK frame not encodable", "err", err)
	}
	return text(b)
}
