package client

import (
	"context"
	"sync"

	"github.com/coder/websocket"
)

// Attention narrows the live Events of a Subscription, never its replay
// (COMMANDS.md 8.6). An empty list matches nothing, a nil one everything.
type Attention struct {
	EventKinds      []string `json:"eventKinds,omitzero"`
	ConversationIDs []string `json:"conversationIds,omitzero"`
	WorkItemIDs     []string `json:"workItemIds,omitzero"`
	MentionsOnly    bool     `json:"mentionsOnly,omitempty"`
	Announcements   bool     `json:"announcements,omitempty"`
}

// Subscription is one Group of a Session. Its Events come in the order of the
// Group, each once: repeated ones are dropped, and a hole is read over REST
// before anything after it is handed over. Every Group has an inbox of its own,
// so that one whose user is slow delays no other.
type Subscription struct {
	s         *Session
	groupID   string
	attention *Attention
	inbox     *inbox
	events    chan Delivery
	caughtUp  chan struct{}
	confirmed chan struct{}
	done      chan struct{}
	stop      context.CancelFunc

	mu       sync.Mutex
	position int64 // last sequence handed over or passed on purpose
	err      error
	// The last SUBSCRIBE: what arrives before its barrier was answered may still
	// answer an earlier frame; what arrives before its echo is replay.
	frameID, barrier, echo string
	settled                bool // confirmed is closed, or never will be
}

// Subscribe asks for a Group's Events after a sequence and waits for the
// server's word: an *Error when the server refuses (GROUP_NOT_FOUND,
// MEMBERSHIP_REQUIRED, CURSOR_TOO_OLD, or PROTOCOL_VIOLATION past the head).
// Subscribing to a Group again replaces the earlier Subscription, which ends.
func (s *Session) Subscribe(ctx context.Context, groupID string, after int64) (*Subscription, error) {
	return s.SubscribeTo(ctx, groupID, after, nil)
}

// SubscribeTo is Subscribe with an attention filter. Holes between live Events
// are then what was asked for, and are not looked into.
func (s *Session) SubscribeTo(ctx context.Context, groupID string, after int64, attention *Attention) (*Subscription, error) {
	life, stop := context.WithCancel(s.life)
	sub := &Subscription{
		s: s, groupID: groupID, attention: attention, inbox: newInbox(), position: after, barrier: "unsent",
		events: make(chan Delivery), caughtUp: make(chan struct{}), confirmed: make(chan struct{}), done: make(chan struct{}), stop: stop,
	}
	s.mu.Lock()
	if s.ended() {
		s.mu.Unlock()
		stop()
		return nil, s.closedError()
	}
	earlier := s.subs[groupID]
	s.subs[groupID] = sub
	s.pumps.Go(func() { sub.pump(life) })
	conn := s.conn
	s.mu.Unlock()
	if earlier != nil {
		earlier.stop()
	}
	if conn != nil {
		// A failure here breaks the connection; the next one subscribes.
		_ = sub.send(ctx, conn)
	}
	select {
	case <-ctx.Done():
		sub.Close()
		return nil, ctx.Err()
	case <-sub.confirmed:
		return sub, nil
	case <-sub.done:
		select {
		case <-sub.confirmed: // and ended since
			return sub, nil
		default:
			return nil, sub.endedError()
		}
	}
}

// GroupID is the Group that the Subscription reads.
func (u *Subscription) GroupID() string { return u.groupID }

// Events is where the Events arrive. It is closed when the Subscription ends;
// Err then says why.
func (u *Subscription) Events() <-chan Delivery { return u.events }

// CaughtUp is closed when every Event that was in the log at the time of the
// Subscription has been handed over.
func (u *Subscription) CaughtUp() <-chan struct{} { return u.caughtUp }

// Done is closed when the Subscription has ended.
func (u *Subscription) Done() <-chan struct{} { return u.done }

// Err is why the Subscription ended: an *Error when the server closed the Group
// (the end of the Membership is MEMBERSHIP_REQUIRED), the Session's error when
// that ended, nil after Close.
func (u *Subscription) Err() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// Position is the highest sequence up to which everything was handed over that
// the Agent may and wants to see: what its durable Cursor may say once it has
// been dealt with.
func (u *Subscription) Position() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.position
}

// Close ends the Subscription. The server is asked to send no more of the Group.
func (u *Subscription) Close() {
	u.stop()
	<-u.done
}

// Next waits for the next Event. The error is ctx's, or Err, or context.Canceled
// after Close.
func (u *Subscription) Next(ctx context.Context) (Delivery, error) {
	select {
	case <-ctx.Done():
		return Delivery{}, ctx.Err()
	case d, ok := <-u.events:
		if !ok {
			return Delivery{}, u.endedError()
		}
		return d, nil
	}
}

func (u *Subscription) endedError() error {
	if err := u.Err(); err != nil {
		return err
	}
	return context.Canceled
}

// send sends SUBSCRIBE between two PINGs. The server answers a Command of a
// Group that is not subscribed with its Event at once, ahead of the Events before
// it; up to the first PING's answer such an Event may arrive, and must not be
// taken for the Subscription's next one. The second is answered after the replay.
func (u *Subscription) send(ctx context.Context, conn *websocket.Conn) error {
	u.s.sending.Lock()
	defer u.s.sending.Unlock()
	u.mu.Lock()
	u.frameID, u.barrier, u.echo = NewID(), nonce(), nonce()
	group := map[string]any{"groupId": u.groupID, "afterSequence": u.position}
	frameID, barrier, echo := u.frameID, u.barrier, u.echo
	u.mu.Unlock()
	if u.attention != nil {
		group["attention"] = u.attention
	}
	if err := u.s.sendPing(ctx, conn, barrier, ""); err != nil {
		return err
	}
	err := send(ctx, conn, map[string]any{
		"protocolVersion": "0.1", "frameId": frameID, "frameType": "SUBSCRIBE", "subscriptionId": NewID(),
		"groups": []map[string]any{group},
	})
	if err != nil {
		return err
	}
	return u.s.sendPing(ctx, conn, echo, "")
}

// takeEvent takes an Event of the Group from the connection.
func (u *Subscription) takeEvent(d Delivery) {
	if u.open() {
		u.inbox.put(entry{delivery: d})
	}
}

// takeWatermark passes over Events that were withheld on purpose.
func (u *Subscription) takeWatermark(sequence int64) {
	if u.open() {
		u.inbox.put(entry{watermark: sequence})
	}
}

// open reports whether what arrives belongs to the present SUBSCRIBE; the first
// such thing is the server's word that it accepted it.
func (u *Subscription) open() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.barrier != "" {
		return false
	}
	u.settle()
	return true
}

func (u *Subscription) settle() {
	if !u.settled {
		u.settled = true
		close(u.confirmed)
	}
}

// takePong takes the answer to a PING, which may be one of the Subscription's.
func (u *Subscription) takePong(replyTo string) {
	u.mu.Lock()
	replayed := u.barrier == "" && u.echo != "" && u.echo == replyTo
	switch {
	case replayed:
		u.echo = ""
		u.settle()
	case u.barrier == replyTo:
		u.barrier = ""
	}
	u.mu.Unlock()
	if replayed {
		u.inbox.put(entry{caughtUp: true})
	}
}

// takeError takes a refusal that names the Group and reports whether it was the
// Subscription's.
func (u *Subscription) takeError(e *Error) bool {
	u.mu.Lock()
	mine := e.RelatedFrameID == "" || e.RelatedFrameID == u.frameID
	ends := mine && !e.Retryable
	if ends {
		u.settled = true // what comes after a refusal confirms nothing
	}
	u.mu.Unlock()
	if ends {
		u.inbox.put(entry{end: e})
	}
	return mine
}

// reset forgets the connection that the last SUBSCRIBE went out on.
func (u *Subscription) reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.barrier, u.echo, u.frameID = "unsent", "", ""
}

// pump hands over what is in the inbox until the Subscription ends.
func (u *Subscription) pump(ctx context.Context) {
	defer close(u.done)
	defer close(u.events)
	defer u.stop()
	defer u.s.forget(u)
	err := u.deliver(ctx)
	if ctx.Err() != nil {
		err = nil
		if u.s.ended() {
			err = u.s.Err()
		}
	}
	u.mu.Lock()
	u.err = err
	u.mu.Unlock()
}

func (u *Subscription) deliver(ctx context.Context) error {
	seen := newRecent()
	replayed := false
	for {
		e, ok, dropped := u.inbox.take()
		switch {
		case dropped > 0:
			if err := u.fill(ctx, dropped+1, seen); err != nil {
				return err
			}
		case !ok:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-u.inbox.wake:
			}
		case e.end != nil:
			return e.end
		case e.caughtUp:
			if !replayed {
				replayed = true
				close(u.caughtUp)
			}
		case e.watermark > 0:
			u.move(e.watermark)
		default:
			if err := u.arrive(ctx, e.delivery, seen); err != nil {
				return err
			}
		}
	}
}

// arrive takes an Event of the connection: a repeated one is dropped, and one
// after a hole waits until the hole has been read.
func (u *Subscription) arrive(ctx context.Context, d Delivery, seen *recent) error {
	position := u.Position()
	if d.Event.Sequence <= position {
		u.s.repeated.Add(1)
		return seen.repeated(d.Event.Sequence, d.Event.EventID)
	}
	if d.Event.Sequence > position+1 && u.attention == nil {
		if err := u.fill(ctx, d.Event.Sequence, seen); err != nil {
			return err
		}
	}
	return u.hand(ctx, d, seen)
}

// fill reads the Events before a sequence from the log. What the log does not
// show is not for this Agent.
func (u *Subscription) fill(ctx context.Context, before int64, seen *recent) error {
	for position := u.Position(); position+1 < before; {
		page, next, err := u.s.c.Events(ctx, u.groupID, position, int(min(before-position-1, 500)))
		if err != nil {
			return err
		}
		for _, d := range page {
			if d.Event.Sequence >= before {
				break
			}
			if err := u.hand(ctx, d, seen); err != nil {
				return err
			}
		}
		if len(page) == 0 || next <= position {
			break
		}
		position = next
	}
	u.move(before - 1)
	return nil
}

func (u *Subscription) hand(ctx context.Context, d Delivery, seen *recent) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case u.events <- d:
	}
	seen.add(d.Event.Sequence, d.Event.EventID)
	u.move(d.Event.Sequence)
	return nil
}

func (u *Subscription) move(sequence int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.position = max(u.position, sequence)
}

// forget ends what the Session knows of a Subscription, and asks the server to
// send nothing more of the Group. There is no frame for that; a filter that
// matches nothing comes closest.
func (s *Session) forget(u *Subscription) {
	s.mu.Lock()
	mine := s.subs[u.groupID] == u
	if mine {
		delete(s.subs, u.groupID)
	}
	conn := s.conn
	s.mu.Unlock()
	if !mine || conn == nil || s.life.Err() != nil || CodeOf(u.Err()) != "" {
		return
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	_ = send(s.life, conn, map[string]any{
		"protocolVersion": "0.1", "frameId": NewID(), "frameType": "SUBSCRIBE", "subscriptionId": NewID(),
		"groups": []map[string]any{{
			"groupId": u.groupID, "afterSequence": u.Position(), "attention": Attention{EventKinds: []string{}},
		}},
	})
}
