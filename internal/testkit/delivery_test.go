package testkit_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
)

// sequences are the sequences of the EVENT frames among frames.
func sequences(frames []strictjson.Value) []int64 {
	out := []int64{}
	for _, f := range frames {
		if f.Member("frameType").Str() == "EVENT" {
			n, _ := f.Member("event").Member("sequence").Int()
			out = append(out, n)
		}
	}
	return out
}

func upTo(from, to int64) []int64 {
	out := []int64{}
	for n := from; n <= to; n++ {
		out = append(out, n)
	}
	return out
}

func expectSequences(t *testing.T, frames []strictjson.Value, want []int64) {
	t.Helper()
	if got := sequences(frames); !slices.Equal(got, want) {
		t.Fatalf("Events %v, want %v", got, want)
	}
}

func TestCommandsOverWebSocket(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	say := func(text string) []byte {
		return m.Sign(client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message(text))
	}

	t.Run("a sender without subscription gets its Events once", func(t *testing.T) {
		m.Lead.Command(say("one"))
		e := m.Lead.ExpectEvent("message.posted")
		if got, _ := e.Member("sequence").Int(); got != 2 {
			t.Errorf("sequence %d", got)
		}
		expectSequences(t, m.Lead.Barrier(), nil)
	})
	t.Run("a replay sends the same Event again", func(t *testing.T) {
		command := say("two")
		m.Lead.Command(command)
		first := m.Lead.ExpectEvent("message.posted")
		m.Lead.Command(command)
		if again := m.Lead.ExpectEvent("message.posted"); string(again.Raw()) != string(first.Raw()) {
			t.Errorf("replayed %s\nfirst %s", again.Raw(), first.Raw())
		}
	})
	t.Run("with subscription the Event comes once and in order", func(t *testing.T) {
		m.Lead.Subscribe(m.GroupID, 0, nil)
		m.Lead.Command(say("three"))
		expectSequences(t, m.Lead.Barrier(), upTo(1, 4))
		for i := range 20 {
			m.Lead.Command(say(fmt.Sprint("more ", i)))
		}
		expectSequences(t, m.Lead.Barrier(), upTo(5, 24))
	})
	t.Run("a replay with subscription sends the Event again", func(t *testing.T) {
		command := say("four")
		m.Lead.Command(command)
		expectSequences(t, m.Lead.Barrier(), []int64{25})
		m.Lead.Command(command)
		expectSequences(t, m.Lead.Barrier(), []int64{25})
	})
	t.Run("a refusal names frame, Command and Group and keeps the connection", func(t *testing.T) {
		refused := m.Sign(client.Command{Kind: "message.post", ConversationID: client.NewID()}, testkit.Message("nowhere"))
		doc, _ := strictjson.Parse(refused)
		e := m.Lead.ExpectError("INVALID_COMMAND", m.Lead.Command(refused))
		if e.Member("relatedActionId").Str() != doc.Root().Member("actionId").Str() || e.Member("fatal").Bool() {
			t.Errorf("error %s", e.Raw())
		}
		m.Lead.Barrier()
	})
	t.Run("an Agent sends only its own Commands", func(t *testing.T) {
		foreign := s.Sign(m.Owner, client.Command{
			Kind: "message.post", GroupID: m.GroupID, MembershipEpoch: 1, ConversationID: m.Conversation,
		}, testkit.Message("of the owner"))
		e := m.Lead.ExpectError("AUTH_FORBIDDEN", m.Lead.Command(foreign))
		if e.Member("details").Member("reason").Str() != "connection" {
			t.Errorf("error %s", e.Raw())
		}
	})
	t.Run("bytes inside the frame stay as they are", func(t *testing.T) {
		// White space is not part of the canonical form, so the signature holds.
		spaced := append([]byte(" \n"), say("spaced")...)
		m.Lead.Command(append(spaced, ' '))
		expectSequences(t, m.Lead.Barrier(), []int64{26})
	})
}

func TestReplayIsCompleteAndMeetsLiveWithoutAGap(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(func(p *config.Policy) {
		p.MessageRatePerMinute, p.CommandsPerSecondPerConnection = 0, 0
	}))
	m := s.NewMission()
	const before, during = 400, 200
	lines := []byte{}
	for i := range before {
		lines = append(append(lines, m.Sign(client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message(fmt.Sprint(i)))...), '\n')
	}
	a := s.Do(testkit.Request{
		Method: "POST", URL: s.AuthorityURL + "/v1/commands:batch", Body: lines,
		Header: map[string]string{"Content-Type": "application/x-ndjson"},
	})
	if a.Status != 200 {
		t.Fatalf("batch: %d %s", a.Status, a.Body)
	}
	reader := s.Agent("reader")
	m.Admit(reader, "observer", 1)
	k := s.Login(reader)
	k.Subscribe(m.GroupID, 0, nil)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for i := range during {
			m.Lead.Command(m.Sign(client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message(fmt.Sprint("live ", i))))
		}
		m.Lead.Barrier()
	}()
	const all = 1 + before + 1 + during
	for want := int64(1); want <= all; want++ {
		v := k.Next()
		for v.Member("frameType").Str() == "ERROR" { // paused: the reader was slower
			if code := v.Member("error").Member("code").Str(); code != "BACKPRESSURE" {
				t.Fatalf("error %s", v.Raw())
			}
			v = k.Next()
		}
		if got, _ := v.Member("event").Member("sequence").Int(); got != want {
			t.Fatalf("Event %d, want %d: %.200s", got, want, v.Raw())
		}
	}
	<-written
	expectSequences(t, k.Barrier(), nil)
}

func TestSubscribeRules(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	k := m.Lead

	t.Run("Groups are independent", func(t *testing.T) {
		unknown := client.NewID()
		frame := k.Send("SUBSCRIBE", map[string]any{"subscriptionId": client.NewID(), "groups": []any{
			map[string]any{"groupId": unknown, "afterSequence": 0}, map[string]any{"groupId": m.GroupID, "afterSequence": 0},
		}})
		if e := k.ExpectError("GROUP_NOT_FOUND", frame); e.Member("groupId").Str() != unknown {
			t.Errorf("error %s", e.Raw())
		}
		expectSequences(t, k.Barrier(), []int64{1})
	})
	t.Run("a Group of others looks like none", func(t *testing.T) {
		stranger := s.Login(s.Agent("stranger"))
		e := stranger.ExpectError("GROUP_NOT_FOUND", stranger.Subscribe(m.GroupID, 0, nil))
		none := stranger.ExpectError("GROUP_NOT_FOUND", stranger.Subscribe(client.NewID(), 0, nil))
		if e.Member("message").Str() != none.Member("message").Str() {
			t.Errorf("%s differs from %s", e.Raw(), none.Raw())
		}
	})
	t.Run("a position past the head", func(t *testing.T) {
		k.ExpectError("PROTOCOL_VIOLATION", k.Subscribe(m.GroupID, 99, nil))
	})
	t.Run("the last subscription counts, also when it goes back", func(t *testing.T) {
		m.Say("two")
		m.Say("three")
		k.Subscribe(m.GroupID, 2, nil)
		expectSequences(t, k.Barrier(), []int64{3})
		k.Subscribe(m.GroupID, 0, nil)
		expectSequences(t, k.Barrier(), upTo(1, 3))
	})
	t.Run("too many Groups in a frame", func(t *testing.T) {
		groups := make([]any, 257)
		for i := range groups {
			groups[i] = map[string]any{"groupId": client.NewID(), "afterSequence": 0}
		}
		k.ExpectError("SCHEMA_VALIDATION_FAILED", k.Send("SUBSCRIBE", map[string]any{"subscriptionId": client.NewID(), "groups": groups}))
	})
	t.Run("visibility begins where the Membership says", func(t *testing.T) {
		late := s.Agent("late")
		m.Admit(late, "observer", 3)
		l := s.Login(late)
		l.Subscribe(m.GroupID, 0, nil)
		expectSequences(t, l.Barrier(), upTo(3, 4))
	})
}

func TestEndOfMembershipEndsDelivery(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	member := s.Agent("member")
	m.Admit(member, "observer", 1)
	k := s.Login(member)
	k.Subscribe(m.GroupID, 0, nil)
	expectSequences(t, k.Barrier(), upTo(1, 2))
	m.Expel(member)
	k.ExpectEvent("membership.ended")
	if e := k.ExpectError("MEMBERSHIP_REQUIRED", ""); e.Member("groupId").Str() != m.GroupID || e.Member("fatal").Bool() {
		t.Errorf("error %s", e.Raw())
	}
	m.Say("among ourselves")
	if frames := k.Barrier(); len(frames) != 0 {
		t.Fatalf("after the end came %s", frames[0].Raw())
	}
	k.ExpectError("MEMBERSHIP_REQUIRED", k.Subscribe(m.GroupID, 0, nil))
	s.Get(member, client.Path("v1", "groups", m.GroupID)).Refused(t, 403, "MEMBERSHIP_REQUIRED")
}

func TestAttentionNarrowsLiveDeliveryOnly(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	member := s.Agent("member")
	m.Admit(member, "observer", 1)
	m.Say("before")
	k := s.Login(member)
	k.Subscribe(m.GroupID, 0, map[string]any{"eventKinds": []string{}})
	expectSequences(t, k.Barrier(), upTo(1, 3))

	m.Say("withheld")
	mark := k.Expect("ACK").Member("acknowledgements")
	for _, a := range mark.Items() {
		if n, _ := a.Member("sequence").Int(); a.Member("groupId").Str() != m.GroupID || n != 4 {
			t.Errorf("watermark %s", mark.Raw())
		}
	}
	payload := testkit.Message("you")
	payload["mentions"] = []client.Actor{member.Principal()}
	m.Do(client.Command{Kind: "message.post", ConversationID: m.Conversation}, payload)
	k.ExpectEvent("message.posted")

	// An Event that the Agent caused is personal.
	k.Command(s.Sign(member, client.Command{
		Kind: "message.post", GroupID: m.GroupID, SessionEpoch: k.Epoch, MembershipEpoch: 1, ConversationID: m.Conversation,
	}, testkit.Message("mine")))
	k.ExpectEvent("message.posted")

	// Announcements are Messages of MissionOwner and Coordinator in the Group
	// Conversation.
	k.Subscribe(m.GroupID, 6, map[string]any{"eventKinds": []string{}, "announcements": true})
	k.Barrier()
	m.Say("hear")
	k.ExpectEvent("message.posted")

	// The wanted kinds come, others do not.
	k.Subscribe(m.GroupID, 7, map[string]any{"eventKinds": []string{"membership.changed"}})
	k.Barrier()
	m.Say("not wanted")
	m.Admit(s.Agent("another"), "observer", 1)
	e := k.Next()
	for e.Member("frameType").Str() == "ACK" {
		e = k.Next()
	}
	if e.Member("event").Member("kind").Str() != "membership.changed" {
		t.Errorf("frame %s", e.Raw())
	}
}

func TestCursors(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	m.Say("two")
	m.Say("three")
	k := m.Lead
	ack := func(groupID string, sequence int64) string {
		return k.Send("ACK", map[string]any{
			"acknowledgements": []any{map[string]any{"groupId": groupID, "sequence": sequence}}, "sentAt": client.Timestamp(time.Now()),
		})
	}
	path := client.Path("v1", "groups", m.GroupID, "cursor")
	expect := func(want string) {
		t.Helper()
		if a := s.Get(m.Coordinator, path); a.Status != 200 || string(a.Body) != want {
			t.Errorf("cursor %d %s, want %s", a.Status, a.Body, want)
		}
	}
	put := func(body string) testkit.Answer {
		return s.Do(testkit.Request{Method: "PUT", URL: s.AuthorityURL + path, Token: k.Token, Body: []byte(body)})
	}
	expect(`{"head":3,"sequence":0}`)
	ack(m.GroupID, 2)
	k.Barrier()
	expect(`{"head":3,"sequence":2}`)
	ack(m.GroupID, 1)
	k.Barrier()
	expect(`{"head":3,"sequence":2}`)
	if e := k.ExpectError("PROTOCOL_VIOLATION", ack(m.GroupID, 4)); e.Member("groupId").Str() != m.GroupID {
		t.Errorf("error %s", e.Raw())
	}
	expect(`{"head":3,"sequence":2}`)
	k.ExpectError("GROUP_NOT_FOUND", ack(client.NewID(), 1))

	if a := put(`{"sequence":1}`); a.Status != 200 || string(a.Body) != `{"head":3,"sequence":2}` {
		t.Errorf("PUT of a lower value: %d %s", a.Status, a.Body)
	}
	if a := put(`{"sequence":3}`); a.Status != 200 || string(a.Body) != `{"head":3,"sequence":3}` {
		t.Errorf("PUT: %d %s", a.Status, a.Body)
	}
	put(`{"sequence":4}`).Refused(t, 400, "PROTOCOL_VIOLATION")
	put(`{"sequence":-1}`).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	put(`{}`).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	expect(`{"head":3,"sequence":3}`)

	// A subscription below the Cursor goes back.
	k.Subscribe(m.GroupID, 0, nil)
	expectSequences(t, k.Barrier(), upTo(1, 3))
}

func TestCommandRateIsPushedBack(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(func(p *config.Policy) { p.CommandsPerSecondPerConnection = 2 }))
	m := s.NewMission()
	var refused strictjson.Value
	for range 5 {
		m.Lead.Command(m.Sign(client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message("x")))
		if v := m.Lead.Next(); v.Member("frameType").Str() == "ERROR" {
			refused = v.Member("error")
			break
		}
	}
	if refused.Member("code").Str() != "BACKPRESSURE" || !refused.Member("retryable").Bool() ||
		!refused.Member("retryAfterMs").Exists() || !refused.Member("relatedActionId").Exists() {
		t.Errorf("error %s", refused.Raw())
	}
}

func TestPresence(t *testing.T) {
	s := testkit.Start(t)
	agent := s.Agent("one")
	k := s.Login(agent)
	ping := func(agentID string, epoch int64, expires time.Duration) string {
		now := time.Now()
		return k.Send("PING", map[string]any{"nonce": testkit.Nonce(), "sentAt": client.Timestamp(now), "presence": map[string]any{
			"agentId": agentID, "sessionEpoch": epoch, "status": "online",
			"capacity":               map[string]any{"maxSlots": 1, "activeSlots": 0, "availableSlots": 1, "queuedItems": 0},
			"capabilityAvailability": []any{}, "lastHeartbeat": client.Timestamp(now), "expiresAt": client.Timestamp(now.Add(expires)),
		}})
	}
	id := agent.Principal().ID
	k.ExpectError("AUTH_FORBIDDEN", ping("urn:test:agent:other", k.Epoch, time.Minute))
	k.ExpectError("AUTH_STALE_SESSION", ping(id, k.Epoch+1, time.Minute))
	k.ExpectError("SCHEMA_VALIDATION_FAILED", ping(id, k.Epoch, 6*time.Minute))
	ping(id, k.Epoch, time.Minute)
	if v := k.Expect("PING"); !v.Member("replyToNonce").Exists() {
		t.Errorf("frame %s", v.Raw())
	}
}
