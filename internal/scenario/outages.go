package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/scenario/wire"
)

// Machinery breaks and mends the server under the Missions. A server of somebody
// else's has none, and the scenes that need it are listed as not run.
type Machinery interface {
	// KillAuthority ends the services with SIGKILL; StartAuthority starts them again
	// on the same data and returns when they answer.
	KillAuthority(ctx context.Context) error
	StartAuthority(ctx context.Context) error
	// StopDatabase stops PostgreSQL under the running services.
	StopDatabase(ctx context.Context) error
	StartDatabase(ctx context.Context) error
	StopNATS(ctx context.Context) error
	StartNATS(ctx context.Context) error
	// Hold keeps every commit to a Group waiting inside the server until release.
	// waiting counts the transactions that do.
	Hold(ctx context.Context, groupID string) (waiting func(context.Context) (int, error), release func(), err error)
	// RepeatOnBus publishes an Event at NATS again, once with its message id and once
	// with another. It tells whether the stream knew the first and kept the second.
	RepeatOnBus(ctx context.Context, groupID string, sequence int64) (sameID, otherID bool, err error)
	// Published is how far a Group's Events are published, and its head.
	Published(ctx context.Context, groupID string) (published, head int64, err error)
}

// How many Commands have been answered before something breaks, and are under way
// when it does, over REST and over WebSocket.
const (
	answeredBefore = 5
	underWayREST   = 8
	underWayWS     = 4
)

// underway is work and Commands in the middle of which something breaks.
type underway struct {
	s    *scene
	m    *mission
	what string
	line *wire.Wire
	// w carries id out, under a lease.
	w       *hand
	id      string
	item    client.Work
	session int64
	courier *actor
	owner   *client.Client
	before  map[string]int64        // Message id -> sequence, answered
	sent    []string                // Action ids
	signed  []*client.SignedCommand // those over REST
	results chan fate
	waiting func(context.Context) (int, error)
	release func()
}

// fate is what became of a Command in the end.
type fate struct {
	actionID string
	attempts int
	err      error
}

// middle gets a WorkItem to its middle and Commands into the server, where they
// wait: nothing can answer them before release.
func (s *scene) middle(ctx context.Context, m *mission, what string) *underway {
	u := &underway{s: s, m: m, what: what, line: s.wire(ctx), results: make(chan fate, underWayREST+underWayWS), release: func() {}}
	done := false
	defer func() {
		if !done {
			u.close()
		}
	}()
	u.w = s.engage(ctx, "worker-"+what, 1, nil)
	u.w.welcome(ctx, m)
	u.id = u.w.give(ctx, m, "through-"+what, task{Gate: "through"})
	s.eventually(ctx, "work is in its middle", func() bool { return u.w.saidNow("waits") == 1 })
	u.item = m.lead.item(u.id)
	u.session = u.w.state(ctx, "it tells its session", func(x told) bool { return x.Session > 0 }).Session
	seat := s.temp(ctx, m, "courier-"+what)
	epoch := read(seat, (*client.Board).Epoch)
	seat.leave()
	seat.session.Close()
	c := s.behind(u.line, seat.actor)
	u.courier = &actor{name: seat.name, c: c}
	var err error
	u.courier.session, err = c.OpenSession(ctx)
	s.must("a session through the wire", err)
	u.owner = s.behind(u.line, s.owner)
	u.before = s.says(ctx, m, "a", "b", "c", "d", "e")
	u.waiting, u.release, err = s.opt.Machinery.Hold(ctx, m.group)
	s.must("hold the Group", err)
	u.send(ctx, epoch)
	s.eventually(ctx, "Commands are under way", func() bool {
		sent, answered := u.passed()
		n, err := u.waiting(ctx)
		return err == nil && n > 0 && sent == len(u.sent) && answered == 0
	})
	done = true
	return u
}

// send lets Commands go out from goroutines of their own.
func (u *underway) send(ctx context.Context, epoch int64) {
	conversation := read(u.m.owner, func(b *client.Board) string { return b.MainConversation })
	say := func() map[string]any {
		return map[string]any{"messageId": client.NewID(), "content": []client.ContentPart{{Type: "text", Text: "still here"}}}
	}
	for range underWayREST {
		signed, err := u.owner.Sign(client.Command{
			Kind: "message.post", GroupID: u.m.group, ConversationID: conversation, MembershipEpoch: read(u.m.owner, (*client.Board).Epoch),
		}, say())
		u.s.must("sign", err)
		u.sent, u.signed = append(u.sent, signed.ActionID), append(u.signed, signed)
		go func() { u.results <- insist(ctx, u.owner, signed) }()
	}
	for range underWayWS {
		id := client.NewID()
		u.sent = append(u.sent, id)
		go func() {
			_, err := u.courier.session.Command(ctx, client.Command{
				Kind: "message.post", GroupID: u.m.group, ActionID: id, ConversationID: conversation, MembershipEpoch: epoch,
			}, say())
			u.results <- fate{actionID: id, attempts: u.line.Command(id).Sent, err: err}
		}()
	}
}

// insist sends the same bytes until they are accepted or refused for good.
func insist(ctx context.Context, c *client.Client, signed *client.SignedCommand) fate {
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for attempt := 1; ; attempt++ {
		_, err := c.PostOnce(ctx, signed)
		e, refused := errors.AsType[*client.Error](err)
		if err == nil || refused && !e.Retryable {
			return fate{signed.ActionID, attempt, err}
		}
		select {
		case <-ctx.Done():
			return fate{signed.ActionID, attempt, err}
		case <-pause.C:
		}
	}
}

// passed counts the Commands that were written to the server's connections, and
// those that it answered.
func (u *underway) passed() (sent, answered int) {
	for _, id := range u.sent {
		p := u.line.Command(id)
		if p.Sent > 0 {
			sent++
		}
		if p.Answered {
			answered++
		}
	}
	return sent, answered
}

// inFlight checks that nothing was answered when it broke. It is called between
// the break and the mending.
func (u *underway) inFlight(waited int, sentBefore, answeredThen int) {
	now := u.m.lead.item(u.id)
	u.s.check("work and Commands are under way when "+u.what+" begins", sentBefore == len(u.sent) && answeredThen == 0 && waited > 0 && now.State == "active" && now.ExecutionLease != nil,
		"%d Commands written to the server and none answered, %d transaction waiting in the database; %s is active", sentBefore, waited, u.s.nameOf(u.id))
}

// moment is what is under way right now.
func (u *underway) moment(ctx context.Context) (waited, sent, answered int) {
	waited, err := u.waiting(ctx)
	u.s.must("look at the database", err)
	sent, answered = u.passed()
	return waited, sent, answered
}

// recovered checks what must hold after every outage.
func (u *underway) recovered(ctx context.Context, resent bool) {
	s, m := u.s, u.m
	accepted, again, most := 0, 0, 0
	for range u.sent {
		select {
		case r := <-u.results:
			if r.err == nil {
				accepted++
			} else {
				s.line.note("%v", r.err)
			}
			if p := u.line.Command(r.actionID); p.Sent > 1 && p.Forms == 1 {
				again++
			}
			most = max(most, r.attempts)
		case <-ctx.Done():
			s.must("Commands are answered", context.Cause(ctx))
		}
	}
	proof := fmt.Sprintf("%d of %d accepted; %d were sent more than once, at most %d times, always in the same bytes", accepted, len(u.sent), again, most)
	s.check("every Command under way is accepted in the end through "+u.what, accepted == len(u.sent) && (!resent || again == len(u.sent)), "%s", proof)
	replays := 0
	for _, signed := range u.signed {
		receipt, err := s.owner.c.PostSigned(ctx, signed)
		s.must("send it again", err)
		if receipt.Replayed && len(receipt.Events) == 1 {
			replays++
		}
	}
	s.check("every Command sent again in the same bytes after "+u.what+" is a replay", replays == len(u.signed), "%d of %d answered with their first receipt", replays, len(u.signed))
	log := s.log(ctx, m)
	effects, gapless, kept := map[string]int{}, true, 0
	for i, e := range log {
		gapless = gapless && e.Sequence == int64(i)+1
		effects[e.Cause.ID]++
		for _, sequence := range u.before {
			if e.Sequence == sequence && e.Kind == "message.posted" {
				kept++
			}
		}
	}
	one := 0
	for _, id := range u.sent {
		if effects[id] == 1 {
			one++
		}
	}
	s.check("every Command under way has exactly one effect through "+u.what, one == len(u.sent), "%d Commands, %d with one Event each in the log", len(u.sent), one)
	s.check("what was answered before "+u.what+" is still there", kept == answeredBefore, "%d of %d Messages in the log at the sequences of their receipts", kept, answeredBefore)
	u.w.tell("lift through")
	s.verify(ctx, m, u.id)
	now := m.lead.item(u.id)
	session := u.w.state(ctx, "it tells its session", func(x told) bool { return x.Session > 0 }).Session
	s.check("work goes on after "+u.what+" under its lease, owner and session", now.State == "verified" && now.OwnershipEpoch == u.item.OwnershipEpoch && session == u.session &&
		s.count(m, u.id, "work.started") == 1 && u.w.count("begins", func(told) bool { return true }) == 1,
		"%s: Ownership Epoch %d, Session Epoch %d as before, 1 × work.started, begun once by the Worker's own count", s.nameOf(u.id), now.OwnershipEpoch, session)
	head := int64(len(log))
	for _, seat := range []*seat{m.owner, m.lead} {
		seat.awaitThat(ctx, s, "the streams go on", func(b *client.Board) bool { return b.Head >= head })
	}
	s.check("no sequence is missing or repeated through "+u.what, gapless && s.once() && s.gapless(m), "sequences 1..%d of the log read again, and of the streams over SSE and WebSocket", head)
}

// close lets everything go.
func (u *underway) close() {
	u.release()
	if u.w != nil {
		u.w.dismiss()
	}
	if u.courier != nil {
		if u.courier.session != nil {
			u.courier.session.Close()
		}
		u.courier.c.Close()
	}
	if u.owner != nil {
		u.owner.Close()
	}
	u.line.Close()
}

// gapless tells whether both streams have every sequence once and in order.
func (s *scene) gapless(m *mission) bool {
	for _, seat := range []*seat{m.owner, m.lead} {
		seat.mu.Lock()
		for i, d := range seat.log {
			if d.Event.Sequence != int64(i)+1 {
				seat.mu.Unlock()
				return false
			}
		}
		seat.mu.Unlock()
	}
	return true
}

// killAuthority ends the server without warning, with Commands in it.
func killAuthority(ctx context.Context, s *scene, t turn) {
	u := s.middle(ctx, t.mission, "kill-9")
	defer u.close()
	waited, sent, _ := u.moment(ctx)
	s.line.note("kill -9 of the services")
	s.must("kill the services", s.opt.Machinery.KillAuthority(ctx))
	_, answered := u.passed()
	u.inFlight(waited, sent, answered)
	u.release()
	s.must("start the services", s.opt.Machinery.StartAuthority(ctx))
	u.recovered(ctx, true)
}

// restartDatabase takes the database away and gives it back.
func restartDatabase(ctx context.Context, s *scene, t turn) {
	u := s.middle(ctx, t.mission, "database")
	defer u.close()
	waited, sent, answered := u.moment(ctx)
	s.line.note("the database is stopped")
	s.must("stop the database", s.opt.Machinery.StopDatabase(ctx))
	u.inFlight(waited, sent, answered)
	refused, err := u.refusedNow(ctx)
	s.must("ask without a database", err)
	s.check("without the database a Command is refused retryably", refused != nil && refused.Code == "INTERNAL_ERROR" && refused.Retryable, "%v", refused)
	u.release()
	s.must("start the database", s.opt.Machinery.StartDatabase(ctx))
	u.recovered(ctx, false)
}

// refusedNow sends a Command once and returns its refusal.
func (u *underway) refusedNow(ctx context.Context) (*client.Error, error) {
	signed, err := u.s.owner.c.Sign(client.Command{Kind: "mission.create", GroupID: client.NewID()}, map[string]any{})
	if err != nil {
		return nil, err //nolint:wrapcheck // says what it is about
	}
	_, err = u.s.owner.c.PostOnce(ctx, signed)
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e, nil
	}
	return nil, err //nolint:wrapcheck // says what it is about
}

// loseNATS takes the bus away: everything is slower to notice, and nothing stops.
func loseNATS(ctx context.Context, s *scene, t turn) {
	u := s.middle(ctx, t.mission, "NATS")
	defer u.close()
	waited, sent, _ := u.moment(ctx)
	s.line.note("NATS is gone")
	s.must("stop NATS", s.opt.Machinery.StopNATS(ctx))
	started := false
	defer func() {
		if !started { // a scene that breaks off leaves the others their bus
			s.check("NATS starts again", s.opt.Machinery.StartNATS(context.WithoutCancel(ctx)) == nil, "after a scene that broke off")
		}
	}()
	_, answered := u.passed()
	u.inFlight(waited, sent, answered)
	began := time.Now()
	u.release()
	u.recovered(ctx, false)
	took := time.Since(began)
	published, head, err := s.opt.Machinery.Published(ctx, t.mission.group)
	s.must("read how far is published", err)
	s.check("without NATS the log is written and followed", took < sceneLimit/2 && published < head, "everything arrived within %s of the loss; %d of %d Events published", took.Round(time.Millisecond), published, head)
	started = true
	s.must("start NATS", s.opt.Machinery.StartNATS(ctx))
	s.eventually(ctx, "what was committed without NATS is published", func() bool {
		published, head, err = s.opt.Machinery.Published(ctx, t.mission.group)
		return err == nil && published == head
	})
	s.check("what was committed without NATS is published when it is back", published == head, "%d of %d Events of %s", published, head, t.mission.name)
}
