package client

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// run keeps the session connected until it ends for good.
func (s *Session) run(ctx context.Context, conn *websocket.Conn) {
	defer close(s.done)
	defer s.pumps.Wait()
	defer s.cancel()
	for attempt := 0; ; attempt++ {
		if conn != nil {
			attempt = 0
			err := s.serve(ctx, conn)
			_ = conn.Close(websocket.StatusNormalClosure, "")
			conn = nil
			if s.final(ctx, err) {
				return
			}
		}
		if sleep(ctx, s.c.opt.Retry.wait(attempt)) != nil {
			s.final(ctx, ctx.Err())
			return
		}
		fresh, err := s.dial(ctx)
		if err != nil {
			if s.final(ctx, err) {
				return
			}
			continue
		}
		conn = fresh
	}
}

// final records err and ends the session unless the connection may come back.
func (s *Session) final(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		s.end(nil)
		return true
	}
	if _, ok := again(err); ok || CodeOf(err) == "AUTH_REQUIRED" {
		return false
	}
	if CodeOf(err) == "AUTH_STALE_SESSION" {
		err = ErrReplaced
	}
	s.end(err)
	return true
}

func (s *Session) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	close(s.closing)
	if err == nil {
		err = errors.New("client: the session is closed")
	}
	for hash, w := range s.waiting {
		w.answer <- commandAnswer{err: err}
		delete(s.waiting, hash)
	}
}

// serve uses one connection until it breaks: it subscribes from the positions
// reached, sends unanswered Commands again, reads, and renews at half life.
func (s *Session) serve(ctx context.Context, conn *websocket.Conn) error {
	s.mu.Lock()
	s.conn = conn
	close(s.connected)
	pending := make([]*waiter, 0, len(s.waiting))
	for _, w := range s.waiting {
		pending = append(pending, w)
	}
	subs := slices.Collect(maps.Values(s.subs))
	s.renewal = make(chan helloFrame, 1)
	// Nothing of this connection counts before its own subscriptions do.
	for _, sub := range subs {
		sub.reset()
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.conn = nil
		s.connected = make(chan struct{})
		s.mu.Unlock()
	}()

	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error {
		for _, sub := range subs {
			if err := sub.send(ctx, conn); err != nil {
				return err
			}
		}
		for _, w := range pending {
			if err := s.sendCommand(ctx, conn, w.signed); err != nil {
				return err
			}
		}
		return s.renew(ctx, conn)
	})
	work.Go(func() error {
		for {
			frame, err := receive(ctx, conn)
			if err != nil {
				return err
			}
			if err := s.take(ctx, conn, frame); err != nil {
				return err
			}
		}
	})
	return work.Wait()
}

// renew repeats the handshake at half the session's life, on this connection
// and under the same Session Epoch (COMMANDS.md 8.4).
func (s *Session) renew(ctx context.Context, conn *websocket.Conn) error {
	for {
		s.mu.Lock()
		half := s.expires.Sub(s.c.opt.Now()) / 2
		answers := s.renewal
		s.mu.Unlock()
		if err := sleep(ctx, max(half, 100*time.Millisecond)); err != nil {
			return err
		}
		own := nonce()
		if err := s.sendInit(ctx, conn, own); err != nil {
			return err
		}
		challenge, err := awaitHello(ctx, answers)
		if err != nil {
			return err
		}
		if err := s.sendResponse(ctx, conn, own, challenge); err != nil {
			return err
		}
		accepted, err := awaitHello(ctx, answers)
		if err != nil {
			return err
		}
		if err := s.accept(accepted); err != nil {
			return err
		}
	}
}

func awaitHello(ctx context.Context, answers <-chan helloFrame) (helloFrame, error) {
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	select {
	case <-ctx.Done():
		return helloFrame{}, ctx.Err()
	case <-limit.C:
		return helloFrame{}, &unreachable{errors.New("the renewal was not answered")}
	case h := <-answers:
		return h, nil
	}
}

// take handles one frame from the server.
func (s *Session) take(ctx context.Context, conn *websocket.Conn, frame strictjson.Value) error {
	switch frame.Member("frameType").Str() {
	case "EVENT":
		d, err := delivery(frame.Member("event"))
		if err != nil {
			return err
		}
		s.takeEvent(d)
		return nil
	case "ERROR":
		return s.takeError(ctx, conn, frame)
	case "HELLO":
		var h helloFrame
		if err := strictjson.Decode(frame, &h); err != nil {
			return err
		}
		select {
		case s.renewal <- h:
		default:
		}
		return nil
	case "PING":
		if replyTo := frame.Member("replyToNonce"); replyTo.Exists() {
			for _, sub := range s.subscriptions() {
				sub.takePong(replyTo.Str())
			}
			return nil
		}
		return s.sendPing(ctx, conn, nonce(), frame.Member("nonce").Str())
	case "ACK":
		s.takeWatermark(frame)
		return nil
	default:
		return nil
	}
}

// takeEvent answers the Command that caused the Event, and passes the Event on
// to the Subscription of its Group.
func (s *Session) takeEvent(d Delivery) {
	e := d.Event
	s.received.Add(1)
	s.mu.Lock()
	if w, ok := s.waiting[e.CommandHash]; ok && e.Cause.ID == w.signed.ActionID {
		delete(s.waiting, e.CommandHash)
		w.answer <- commandAnswer{event: e}
	}
	sub := s.subs[e.GroupID]
	s.mu.Unlock()
	if sub != nil {
		sub.takeEvent(d)
	}
}

func (s *Session) takeError(ctx context.Context, conn *websocket.Conn, frame strictjson.Value) error {
	err := frameError(frame)
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	if e.Fatal {
		return err
	}
	if e.RelatedActionID != "" {
		s.mu.Lock()
		var refused *waiter
		for hash, w := range s.waiting {
			if w.signed.ActionID == e.RelatedActionID {
				refused = w
				if !e.Retryable {
					delete(s.waiting, hash)
				}
			}
		}
		s.mu.Unlock()
		if refused == nil {
			return nil
		}
		if !e.Retryable {
			refused.answer <- commandAnswer{err: e}
			return nil
		}
		pause, _ := again(e)
		go func() {
			if sleep(ctx, max(pause, s.c.opt.Retry.wait(1))) == nil {
				_ = s.sendCommand(ctx, conn, refused.signed)
			}
		}()
		return nil
	}
	if e.Code == "BACKPRESSURE" && e.GroupID != "" {
		return nil // the server goes on by itself when the buffer has drained
	}
	if sub := s.subscription(e.GroupID); sub != nil && sub.takeError(e) {
		if e.Retryable {
			// The server could not look just now. Subscribing again from the position
			// is harmless where the subscription still stands.
			go func() {
				pause, _ := again(e)
				if sleep(ctx, max(pause, s.c.opt.Retry.wait(3))) == nil {
					_ = sub.send(ctx, conn) // a failure breaks the connection
				}
			}()
		}
		return nil
	}
	s.c.opt.Log.WarnContext(ctx, "the server refused a frame", "error", e)
	return nil
}

func (s *Session) subscription(groupID string) *Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subs[groupID]
}

func (s *Session) subscriptions() []*Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.subs))
}

// takeWatermark passes over Events that were withheld on purpose.
func (s *Session) takeWatermark(frame strictjson.Value) {
	for _, a := range frame.Member("acknowledgements").Items() {
		sequence, ok := a.Member("sequence").Int()
		if sub := s.subscription(a.Member("groupId").Str()); ok && sub != nil {
			sub.takeWatermark(sequence)
		}
	}
}
