package scenario

import (
	"context"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/scenario/wire"
)

// wire puts a misbehaving network between a client and the server.
func (s *scene) wire(ctx context.Context) *wire.Wire {
	roots, err := s.stack.RootCAs()
	s.must("read the certificate", err)
	w, err := wire.Open(ctx, wire.Options{AuthorityURL: s.stack.AuthorityURL, WebSocketURL: s.stack.WSURL, RootCAs: roots})
	s.must("open a wire", err)
	return w
}

// behind is an actor's Principal at the far end of a wire.
func (s *scene) behind(w *wire.Wire, a *actor) *client.Client {
	stack := *s.stack
	stack.AuthorityURL, stack.WSURL, stack.CAFile = w.AuthorityURL(), w.WebSocketURL(), ""
	c, err := stack.Connect(a.c.Identity())
	s.must("connect through the wire", err)
	return c
}

// says posts Messages by the owner and returns their ids.
func (s *scene) says(ctx context.Context, m *mission, texts ...string) map[string]int64 {
	ids := map[string]int64{}
	for _, text := range texts {
		id := client.NewID()
		e := m.owner.do(ctx, s, client.Command{Kind: "message.post", ConversationID: read(m.owner, func(b *client.Board) string { return b.MainConversation })},
			map[string]any{"messageId": id, "content": []client.ContentPart{{Type: "text", Text: text}}})
		ids[id] = e.Sequence
	}
	return ids
}

// caused counts the Events of a kind that a Worker's Commands left on a WorkItem.
func (s *scene) caused(m *mission, id, agentID string, kinds ...string) int {
	n := 0
	for _, e := range m.lead.events(kinds...) {
		if e.WorkItemID == id && e.Actor.ID == agentID {
			n++
		}
	}
	return n
}

// duplicateDelivery gives a Worker every Event twice, across a broken connection
// too, and sends each of its Commands twice. The Worker is a process of its own;
// that it was told twice is counted on the wire, that it did not notice by itself.
func duplicateDelivery(ctx context.Context, s *scene, t turn) {
	m := t.mission
	line := s.wire(ctx)
	defer line.Close()
	line.Misbehave(wire.Manners{Events: true, Commands: true})
	w := s.engage(ctx, "twice-told", 1, line)
	defer w.dismiss()
	w.welcome(ctx, m)
	first := w.give(ctx, m, "told-twice", task{Gate: "told"})
	s.eventually(ctx, "it is in the middle of its work", func() bool {
		return w.count("waits", func(x told) bool { return x.WorkItemID == first }) == 1
	})
	messages := s.says(ctx, m, "one", "two", "three")
	heard := func() int {
		return w.count("hears", func(x told) bool { return messages[x.MessageID] > 0 })
	}
	s.eventually(ctx, "it hears three Messages", func() bool { return heard() >= 3 })
	epoch := w.state(ctx, "it tells its state", func(x told) bool { return x.Session > 0 }).Session

	back := int64(2 + t.draw(0, 5))
	line.Misbehave(wire.Manners{Events: true, Commands: true, Rewind: back})
	s.line.note("the connection breaks; the resume asks for %d Events again", back)
	before := line.Counts()
	line.Cut()
	s.eventually(ctx, "it comes back", func() bool {
		now := line.Counts()
		return now.Connections > before.Connections && now.Resent >= int(back)
	})
	for id, sequence := range s.says(ctx, m, "four", "five") {
		messages[id] = sequence
	}
	s.eventually(ctx, "it hears five Messages", func() bool { return heard() >= 5 })
	w.tell("lift told")
	s.verify(ctx, m, first)
	second := w.give(ctx, m, "told-again", task{})
	s.verify(ctx, m, second)

	// It is behind the wire by what is on its way; then the counts agree.
	var counts wire.Counts
	state := w.state(ctx, "it has read what the wire has handed on", func(x told) bool {
		counts = line.Counts()
		return x.Received == int64(counts.ToClient) && x.Heads[m.group] == int64(counts.Distinct)
	})
	s.check("a Worker is sent every Event twice, and some again after a resume", counts.ToClient == 2*counts.FromServer && counts.Resent == int(back) && counts.Connections == 2,
		"%d EVENT frames for %d Events over %d connections; %d Events again after the resume", counts.ToClient, counts.Distinct, counts.Connections, counts.Resent)
	s.check("what the server sends again is the same, byte for byte", counts.Altered == 0, "%d Events came again, %d of them with other bytes", counts.FromServer-counts.Distinct, counts.Altered)
	s.check("the client library drops every repeated Event", state.Received-state.Repeated == int64(counts.Distinct) && state.Repeated == int64(counts.ToClient-counts.Distinct),
		"by the Worker's own counts: %d received, %d dropped, %d handed over, up to sequence %d", state.Received, state.Repeated, state.Received-state.Repeated, state.Heads[m.group])
	s.check("a Worker hears a repeated Message once", heard() == len(messages), "%d Messages, heard %d times in all", len(messages), heard())
	s.check("a resume keeps the Session Epoch", state.Session == epoch, "Session Epoch %d before and after", epoch)
	for _, id := range []string{first, second} {
		runs := w.count("begins", func(x told) bool { return x.WorkItemID == id })
		s.check("work that is told twice is done once: "+s.nameOf(id), runs == 1 && s.caused(m, id, w.id, "work.offer.accepted") == 1 && s.caused(m, id, w.id, "work.started") == 1 &&
			s.caused(m, id, w.id, "artifact.published") == 1 && s.caused(m, id, w.id, "work.submitted") == 1,
			"begun %d time by the Worker's own count; 1 × accepted, started, published, submitted in the log", runs)
	}
	sent, causes := 0, map[string]int{}
	for _, e := range m.lead.events("work.offer.accepted", "work.started", "artifact.published", "work.submitted", "ext.missionweaveprotocol.core.work_execution_lease_renewed") {
		if e.Actor.ID == w.id {
			causes[e.Cause.ID]++
		}
	}
	once := true
	for id, n := range causes {
		p := line.Command(id)
		once = once && n == 1 && p.Forms == 1
		if p.Sent >= 2 {
			sent++
		}
	}
	s.check("a Command that arrives twice over WebSocket acts once", once && sent == len(causes) && sent >= 8, "%d of the Worker's Commands were sent twice, each left one Event", sent)
}

// duplicateOnBus publishes Events again at NATS, under their message ids and under
// others, and looks at what the server sends to its readers.
func duplicateOnBus(ctx context.Context, s *scene, t turn) {
	m := t.mission
	line := s.wire(ctx)
	defer line.Close()
	who := s.temp(ctx, m, "listener")
	who.leave()
	c := s.behind(line, who.actor)
	defer c.Close()
	who.actor.session.Close()
	var err error
	who.actor.session, err = c.OpenSession(ctx)
	s.must("a session through the wire", err)
	socket, err := who.actor.sit(ctx, m, nil)
	s.must("listen over WebSocket", err)
	defer socket.leave()
	owner := s.behind(line, s.owner)
	defer owner.Close()
	stream, err := (&actor{name: "owner", c: owner}).sit(ctx, m, nil)
	s.must("listen over SSE", err)
	defer stream.leave()

	var fresh []int64
	for _, sequence := range s.says(ctx, m, "to be repeated", "so is this", "and this") {
		fresh = append(fresh, sequence)
	}
	victims := append(shuffled(t, 0, fresh...)[:2], int64(1+t.draw(1, int(min(fresh[0], fresh[1], fresh[2])-1))))
	head := func(b *client.Board) bool { return b.Head >= max(fresh[0], fresh[1], fresh[2]) }
	socket.awaitThat(ctx, s, "the Messages arrive over WebSocket", head)
	stream.awaitThat(ctx, s, "the Messages arrive over SSE", head)
	same, other := 0, 0
	for _, sequence := range victims {
		knew, kept, err := s.opt.Machinery.RepeatOnBus(ctx, m.group, sequence)
		s.must("publish again", err)
		if knew {
			same++
		}
		if kept {
			other++
		}
	}
	var last int64
	for _, sequence := range s.says(ctx, m, "after the duplicates") {
		last = sequence
	}
	end := func(b *client.Board) bool { return b.Head >= last }
	socket.awaitThat(ctx, s, "what comes after arrives over WebSocket", end)
	stream.awaitThat(ctx, s, "what comes after arrives over SSE", end)
	mostSocket, mostStream, all := 0, 0, true
	for sequence := int64(1); sequence <= last; sequence++ {
		a, b := line.FromServer(m.group, sequence), line.Streamed(m.group, sequence)
		mostSocket, mostStream, all = max(mostSocket, a), max(mostStream, b), all && a > 0 && b > 0
	}
	s.check("Events are published again at NATS, with the same message id and with another", same >= 2 && other == len(victims),
		"sequences %v; %d under ids that the stream knew, %d under new ones, which it stored", victims, same, other)
	s.check("the gateway passes no repeated Event on over WebSocket", all && mostSocket == 1, "frames of the server counted on the wire: each of %d Events once", last)
	s.check("the gateway passes no repeated Event on over SSE", all && mostStream == 1, "ids of the stream counted on the wire: each of %d Events once", last)
}
