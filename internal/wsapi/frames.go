package wsapi

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/gobwas/ws"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/delivery"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

const (
	maxSubscribeGroups = 256
	maxPresence        = 300 * time.Second
)

// handle handles one frame of a connection that is logged in; false ends it.
func (c *conn) handle(b []byte) bool {
	frame, refusal := protocol.ParseFrame(b)
	if refusal != nil {
		return c.malformedFrame(refusal)
	}
	switch f := frame.(type) {
	case *protocol.HelloClientInit:
		return c.renewInit(f)
	case *protocol.HelloClientResponse:
		return c.renewResponse(f)
	case *protocol.CommandFrame:
		return c.command(f)
	case *protocol.Subscribe:
		return c.subscribe(f)
	case *protocol.Ack:
		return c.acknowledge(f)
	case *protocol.Ping:
		return c.pinged(f)
	}
	return c.malformedFrame(protocol.NewError(protocol.CodeProtocolViolation, "frame_of_a_server").WithRelated(frame.ID(), ""))
}

// malformedFrame counts a frame that is at fault itself.
func (c *conn) malformedFrame(refusal *protocol.Error) bool {
	if c.malformed++; c.malformed > maxMalformed {
		c.end(protocol.NewError(protocol.CodeProtocolViolation, "malformed_frames").
			WithRelated(refusal.RelatedFrameID, "").AsFatal(4400))
		return false
	}
	return c.refuse(refusal)
}

// command hands a Command to the Authority in its exact bytes. A refusal never
// ends the connection (COMMANDS.md 8.5).
func (c *conn) command(f *protocol.CommandFrame) bool {
	actionID := ""
	if c.filtered || c.commands != nil {
		if doc, err := strictjson.Parse(f.Command); err == nil {
			if id, ok := doc.Root().Get("actionId"); ok && protocol.ShapeID.Accepts(id) {
				actionID = id.Str()
			}
		}
	}
	if c.commands != nil {
		now := c.server.Now()
		taken := c.commands.ReserveN(now, 1)
		if wait := taken.DelayFrom(now); wait > 0 {
			taken.CancelAt(now)
			return c.refuse(protocol.NewError(protocol.CodeBackpressure, "").
				WithRelated(f.FrameID, actionID).WithRetryAfter(max(wait.Milliseconds(), 1)))
		}
	}
	c.own.add(actionID)
	result, refusal := c.server.Authority.Submit(c.ctx, authority.Submission{
		Body: f.Command, Peer: c.peer, ConnAgent: c.identity().Principal.ID,
	})
	if refusal != nil {
		answer := *refusal
		return c.refuse(answer.WithRelated(f.FrameID, refusal.RelatedActionID))
	}
	for _, document := range result.Events {
		if !c.answerEvent(document, result.Replayed) {
			return false
		}
	}
	return true
}

// answerEvent sends an Event that a Command of this connection caused. In a
// subscribed Group it comes with the subscription, once and in order.
func (c *conn) answerEvent(document []byte, replayed bool) bool {
	doc, err := strictjson.Parse(document)
	if err != nil {
		c.server.Log.Error("stored Event is not JSON", "err", err)
		return true
	}
	e := events.StoredEvent{
		GroupID: doc.Root().Member("groupId").Str(), EventID: doc.Root().Member("eventId").Str(), Document: document,
	}
	e.Sequence, _ = doc.Root().Member("sequence").Int()
	if sub := c.alive(e.GroupID); sub != nil {
		// What is still queued must not be overtaken: readers go by the sequence.
		if _, sent, _ := c.out.place(sub.lane); e.Sequence > sub.start && (!replayed || e.Sequence > sent) {
			sub.owed = max(sub.owed, e.Sequence)
			return true
		}
	}
	return c.out.answer(c.ctx, reply{frame: eventFrame(&e), event: true}) == nil
}

// subscribe begins or replaces the subscriptions of a frame, each Group on its
// own (COMMANDS.md 8.6).
func (c *conn) subscribe(f *protocol.Subscribe) bool {
	if len(f.Groups) > maxSubscribeGroups {
		return c.refuse(protocol.NewError(protocol.CodeSchemaValidationFailed, "").
			WithDetail("path", "/groups").WithDetail("keyword", "maxItems").WithRelated(f.FrameID, ""))
	}
	for _, g := range f.Groups {
		if old := c.subs[g.GroupID]; old != nil {
			c.unsubscribe(old)
			delete(c.subs, g.GroupID)
		}
		if g.Attention != nil {
			c.filtered = true
		}
		ctx, cancel := context.WithTimeout(c.ctx, answerWithin)
		feed, refusal := delivery.Open(ctx, c.server.source, delivery.Request{
			Reader: c.identity().Principal, GroupID: g.GroupID, After: g.AfterSequence,
			Attention: g.Attention, OwnAction: c.own.has,
		})
		cancel()
		if refusal != nil {
			if !c.refuse(refusal.WithRelated(f.FrameID, "")) {
				return false
			}
			continue
		}
		c.subs[g.GroupID] = c.follow(g.GroupID, feed)
	}
	return true
}

// acknowledge moves durable Cursors.
func (c *conn) acknowledge(f *protocol.Ack) bool {
	reader := c.identity().Principal
	for _, a := range f.Acknowledgements {
		if refusal := c.acknowledgeOne(reader, a); refusal != nil {
			if !c.refuse(refusal.WithGroup(a.GroupID).WithRelated(f.FrameID, "")) {
				return false
			}
		}
	}
	return true
}

func (c *conn) acknowledgeOne(reader protocol.Actor, a protocol.Cursor) *protocol.Error {
	ctx, cancel := context.WithTimeout(c.ctx, answerWithin)
	defer cancel()
	if _, refusal := c.server.Views.Enter(ctx, reader, a.GroupID); refusal != nil {
		return refusal
	}
	_, err := c.server.Store.SetCursor(ctx, a.GroupID, reader, a.Sequence)
	if sub := c.subs[a.GroupID]; sub != nil && err == nil {
		sub.acknowledged.Store(max(sub.acknowledged.Load(), a.Sequence))
	}
	switch {
	case errors.Is(err, events.ErrPastHead):
		return protocol.NewError(protocol.CodeProtocolViolation, "past_the_head")
	case errors.Is(err, events.ErrGroupUnknown):
		return protocol.NewError(protocol.CodeGroupNotFound, "")
	case err != nil:
		return protocol.Internal(err)
	}
	return nil
}

// pinged answers a PING after everything that earlier frames caused.
func (c *conn) pinged(f *protocol.Ping) bool {
	if f.Presence != nil {
		if refusal := c.present(f.Presence); refusal != nil {
			return c.refuse(refusal.WithRelated(f.FrameID, ""))
		}
	}
	if f.ReplyToNonce != "" {
		return true
	}
	c.settle(c.ctx)
	return c.out.answer(c.ctx, reply{frame: c.server.ping(f.Nonce)}) == nil
}

// present keeps what the Agent says of itself; it renews nothing.
func (c *conn) present(record *protocol.PresenceRecord) *protocol.Error {
	id := c.identity()
	if record.AgentID != id.Principal.ID {
		return protocol.NewError(protocol.CodeAuthForbidden, "presence_of_another")
	}
	if record.SessionEpoch != id.SessionEpoch {
		return protocol.NewError(protocol.CodeAuthStaleSession, "").WithDetail("receivedSessionEpoch", record.SessionEpoch)
	}
	end, err := lexical.ParseTimestamp(record.ExpiresAt)
	if err != nil || end.After(lexical.InstantOf(c.server.Now().Add(maxPresence))) {
		return protocol.NewError(protocol.CodeSchemaValidationFailed, "").
			WithDetail("path", "/presence/expiresAt").WithDetail("keyword", "maximum")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.presence, c.presenceTo = record, end.Time()
	c.server.Connections.said(c, record, c.presenceTo)
	return nil
}

// settle waits until what earlier frames caused has been written: replays, and
// the Events of Commands.
func (c *conn) settle(ctx context.Context) {
	for _, sub := range c.subs {
		for c.owes(ctx, sub) {
		}
	}
}

// owes waits for the next step of a subscription that still owes something.
func (c *conn) owes(ctx context.Context, sub *subscription) bool {
	queued, sent, moved := c.out.place(sub.lane)
	if sent >= sub.owed {
		return false
	}
	done := sub.done
	select {
	case <-sub.done:
		if sent >= queued {
			return false
		}
		done = nil
	default:
	}
	select {
	case <-moved:
		return true
	case <-done:
		return true
	case <-c.told:
	case <-ctx.Done():
	}
	return false
}

// eventFrame is a ready-made EVENT frame around the signed bytes. It is named for
// its Event: the same for every reader, and on every repetition, so that one
// serves all.
func eventFrame(e *events.StoredEvent) []byte {
	const head = ws.MaxHeaderSize
	b := make([]byte, head, head+len(e.Document)+len(e.EventID)+96)
	b, _ = protocol.AppendEventFrame(b, e.EventID, e.Document) // an Event id has no lone surrogates
	h := ws.Header{Fin: true, OpCode: ws.OpText, Length: int64(len(b) - head)}
	start := head - ws.HeaderSize(h)
	_ = ws.WriteHeader(bytes.NewBuffer(b[start:start:head]), h)
	return b[start:]
}

// recentActions remembers the Action IDs of the latest Commands, so that the
// Events they caused are known as the client's own.
type recentActions struct {
	mu   sync.Mutex
	ids  map[string]struct{}
	ring []string
	next int
}

const rememberedActions = 1024

func newRecentActions() *recentActions { return &recentActions{} }

func (r *recentActions) add(id string) {
	if id == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ids == nil {
		r.ids = map[string]struct{}{}
	}
	if _, ok := r.ids[id]; ok {
		return
	}
	if len(r.ring) < rememberedActions {
		r.ring = append(r.ring, id)
	} else {
		delete(r.ids, r.ring[r.next])
		r.ring[r.next] = id
		r.next = (r.next + 1) % rememberedActions
	}
	r.ids[id] = struct{}{}
}

func (r *recentActions) has(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.ids[id]
	return ok
}

// mint is the id of a frame.
func mint(now time.Time) string {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], mathrand.Uint64())
	binary.LittleEndian.PutUint64(b[8:], mathrand.Uint64())
	return lexical.UUIDv7(now, [10]byte(b[:10]))
}

// nonce is 18 random bytes (COMMANDS.md 8.9). It pairs a PING with its answer and
// guards nothing, so it need not come from the system.
func nonce() string {
	var b [24]byte
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], mathrand.Uint64())
	}
	return lexical.EncodeBase64URL(b[:18])
}

// jittered is a delay in milliseconds between one and two times d, so that
// clients that were turned away together do not return together.
func jittered(d time.Duration) int64 {
	return d.Milliseconds() + mathrand.Int64N(d.Milliseconds()+1)
}
