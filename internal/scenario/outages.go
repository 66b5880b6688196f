package scenario

import (
	"context"
	"time"

	"github.com/missionweave/server/client"
)

// Machinery breaks and mends the server under the Missions. A server of somebody
// else's has none, and the scenes that need it are listed as not run.
type Machinery interface {
	// KillAuthority ends the services without any warning and starts them again on
	// the same data; it returns when they answer.
	KillAuthority(ctx context.Context) error
	// RestartDatabase stops the database under the running services and starts it.
	RestartDatabase(ctx context.Context) error
	StopNATS(ctx context.Context) error
	StartNATS(ctx context.Context) error
}

// underway has a WorkItem running before something breaks, and commands going out
// while it does; it returns what must have come of it in the end.
type underway struct {
	id      string
	answers chan error
	epoch   int64
	head    int64
}

// duringOutage is how many Commands go out while something breaks, and before is
// how many of them are accepted first.
const (
	duringOutage = 30
	beforeOutage = 5
)

// begin gets work and Commands going.
func (s *scene) during(ctx context.Context, m *mission, title string) *underway {
	u := &underway{answers: make(chan error, duringOutage), epoch: s.workers["coder"].present().Session().Epoch()}
	u.id = s.give(ctx, m, title, "coder", s.contract("Go on through "+title+".", "code.write", task{Steps: []string{"half", "rest"}, Gate: title}))
	m.lead.await(ctx, s, u.id, "active")
	u.head = read(m.owner, func(b *client.Board) int64 { return b.Head })
	return u
}

// post sends Commands one after another, over REST, until all are answered.
func (s *scene) post(ctx context.Context, m *mission, u *underway) {
	conversation := read(m.owner, func(b *client.Board) string { return b.MainConversation })
	epoch := read(m.owner, (*client.Board).Epoch)
	go func() {
		for range duringOutage {
			_, err := s.owner.c.Post(ctx, client.Command{
				Kind: "message.post", GroupID: m.group, ConversationID: conversation, MembershipEpoch: epoch,
			}, map[string]any{"messageId": client.NewID(), "content": []client.ContentPart{{Type: "text", Text: "still here"}}})
			u.answers <- err
		}
	}()
}

// recovered checks what must hold after every outage.
func (s *scene) recovered(ctx context.Context, m *mission, u *underway, what string) {
	accepted := 0
	for range duringOutage {
		select {
		case err := <-u.answers:
			if err == nil {
				accepted++
			} else {
				s.line.note("%v", err)
			}
		case <-ctx.Done():
			s.must("Commands are answered", context.Cause(ctx))
		}
	}
	s.check("every Command sent through "+what+" is accepted once", accepted == duringOutage && s.messages(ctx, m, u) == duringOutage,
		"%d accepted, %d Messages in the log", accepted, s.messages(ctx, m, u))
	s.goOn(ctx, m, u.id)
	s.verify(ctx, m, u.id)
	s.check("work goes on after "+what, m.lead.item(u.id).State == "verified", "%s, Session Epoch %d as before: %v", s.nameOf(u.id), u.epoch, s.workers["coder"].present().Session().Epoch() == u.epoch)
	s.check("nobody lost or repeated an Event through "+what, s.once() && s.gapless(m), "the owner's and the Coordinator's streams have every sequence once")
}

// messages counts the Messages of the scene, when the owner has been told all.
func (s *scene) messages(ctx context.Context, m *mission, u *underway) int {
	s.told(ctx, m, u, duringOutage)
	return m.said(u.head)
}

// told waits until the owner has been told so many Messages of the scene.
func (s *scene) told(ctx context.Context, m *mission, u *underway, n int) {
	s.eventually(ctx, "the Messages arrive", func() bool { return m.said(u.head) >= n })
}

// said counts the owner's Messages after a sequence, as the owner was told.
func (m *mission) said(after int64) int {
	n := 0
	for _, e := range m.owner.events("message.posted") {
		if e.Sequence > after && e.Actor == m.owner.c.Principal() {
			n++
		}
	}
	return n
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

// killAuthority ends the server without warning, under load.
func killAuthority(ctx context.Context, s *scene) {
	m := s.mission("search")
	u := s.during(ctx, m, "kill")
	s.post(ctx, m, u)
	s.told(ctx, m, u, beforeOutage)
	s.line.note("kill -9")
	s.must("kill and start the services", s.opt.Machinery.KillAuthority(ctx))
	s.recovered(ctx, m, u, "kill -9")
	s.check("sessions survive the server", s.workers["coder"].present().Session().Epoch() == u.epoch, "Session Epoch %d before and after", u.epoch)
}

// restartDatabase takes the database away and gives it back.
func restartDatabase(ctx context.Context, s *scene) {
	m := s.mission("search")
	u := s.during(ctx, m, "database")
	s.post(ctx, m, u)
	s.told(ctx, m, u, beforeOutage)
	s.line.note("the database restarts")
	s.must("restart the database", s.opt.Machinery.RestartDatabase(ctx))
	s.recovered(ctx, m, u, "the restart")
}

// loseNATS takes the bus away: everything is slower to notice, and nothing stops.
func loseNATS(ctx context.Context, s *scene) {
	m := s.mission("search")
	u := s.during(ctx, m, "nats")
	s.line.note("NATS is gone")
	s.must("stop NATS", s.opt.Machinery.StopNATS(ctx))
	started := false
	defer func() {
		if !started { // a scene that breaks off leaves the others their bus
			s.check("NATS starts again", s.opt.Machinery.StartNATS(context.WithoutCancel(ctx)) == nil, "after a scene that broke off")
		}
	}()
	s.post(ctx, m, u)
	began := time.Now()
	s.recovered(ctx, m, u, "the loss of NATS")
	took := time.Since(began)
	s.check("without NATS the log is still followed", took < sceneLimit/2, "everything arrived within %s of the loss", took.Round(time.Millisecond))
	started = true
	s.must("start NATS", s.opt.Machinery.StartNATS(ctx))
}
