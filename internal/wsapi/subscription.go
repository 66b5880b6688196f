package wsapi

import (
	"context"
	"errors"
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
	lane    *lane
	start   int64
	// owed is the sequence that has to be written before a PING is answered; it
	// belongs to the processor.
	owed   int64
	cancel context.CancelFunc
	done   chan struct{}
}

// follow starts the goroutine that brings a Group's Events into the outbox.
func (c *conn) follow(groupID string, feed *delivery.Feed) *subscription {
	ctx, cancel := context.WithCancel(c.ctx)
	sub := &subscription{
		groupID: groupID, lane: newLane(feed.Start()), start: feed.Start(), owed: feed.LiveAfter(),
		cancel: cancel, done: make(chan struct{}),
	}
	c.feeds.Go(func() {
		defer close(sub.done)
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
			if !c.queuePage(ctx, sub, page) {
				return
			}
			withheld, through = withheld || page.Withheld, page.Through
		}
		if now := c.server.Now(); withheld && now.Sub(lastMark) >= c.server.Timing.Watermark {
			if !c.queue(ctx, item{frame: c.watermark(sub.groupID, through, now), through: through, lane: sub.lane}) {
				return
			}
			withheld, lastMark = false, now
		}
		if page.End != nil {
			c.queue(ctx, item{frame: c.errorFrame(page.End), through: endOfLog, lane: sub.lane})
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

func (c *conn) queuePage(ctx context.Context, sub *subscription, page delivery.Page) bool {
	for i := range page.Events {
		e := &page.Events[i]
		if !c.queue(ctx, item{event: e, through: e.Sequence, lane: sub.lane}) {
			return false
		}
	}
	if n := len(page.Events); n == 0 || page.Events[n-1].Sequence < page.Through {
		return c.queue(ctx, item{through: page.Through, lane: sub.lane})
	}
	return true
}

// queue puts an item into its lane, waiting while the lane is full. A lane that
// stays full pauses its Group, and the client is told once.
func (c *conn) queue(ctx context.Context, i item) bool {
	moved, ok := c.out.offer(i)
	if ok {
		return true
	}
	pause := time.NewTimer(c.server.Timing.Pause)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-pause.C:
			c.server.metrics.paused.Inc()
			c.out.notice(c.errorFrame(protocol.NewError(protocol.CodeBackpressure, "").
				WithGroup(c.groupOf(i)).WithRetryAfter(jittered(time.Second))))
		case <-moved:
		}
		if moved, ok = c.out.offer(i); ok {
			return true
		}
	}
}

func (c *conn) groupOf(i item) string {
	if i.event != nil {
		return i.event.GroupID
	}
	return ""
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
	return b
}
