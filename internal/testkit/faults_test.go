package testkit_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/wsapi"
)

// scaled is the full measure of a test, or a tenth of it with -short.
func scaled(n int) int {
	if testing.Short() {
		return max(n/10, 3)
	}
	return n
}

// A reader that is cut off again and again, and resumes from what it has, misses
// nothing, and what it gets twice is the same both times.
func TestCutsDuringWritesLoseNothing(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(noLimits))
	m := s.NewMission()
	reader := s.Agent("reader")
	m.Admit(reader, "worker", 1)
	proxy := newBreaker(t, strings.TrimPrefix(s.AuthorityURL, "http://"))
	url := "ws://" + proxy.listen.Addr().String() + "/ws"
	cuts := scaled(100)

	stop, written := make(chan struct{}), make(chan int64, 1)
	go func() {
		n := int64(2)
		defer func() { written <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			m.Lead.Command(m.Sign(client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message(fmt.Sprint(n))))
			m.Lead.ExpectEvent("message.posted")
			n++
		}
	}()

	got := map[int64][]byte{}
	var highest, contiguous int64
	take := func(v strictjson.Value) {
		if v.Member("frameType").Str() != "EVENT" {
			return
		}
		e := v.Member("event")
		sequence, _ := e.Member("sequence").Int()
		if before, ok := got[sequence]; ok && !bytes.Equal(before, e.Raw()) {
			t.Fatalf("Event %d came with other bytes", sequence)
		}
		got[sequence] = bytes.Clone(e.Raw())
		highest = max(highest, sequence)
		for got[contiguous+1] != nil {
			contiguous++
		}
		if highest != contiguous {
			t.Fatalf("Event %d came and %d did not", highest, contiguous+1)
		}
	}
	token, epoch := "", int64(0)
	for cut := range cuts {
		k, err := s.TryDial(url, reader, token)
		if err == nil {
			err = k.TryHandshake()
		}
		if err == nil {
			if token, epoch = k.Token, max(epoch, k.Epoch); k.Epoch != epoch {
				t.Fatalf("epoch %d after %d", k.Epoch, epoch)
			}
			// From a little before what it has, so that repetitions are compared.
			err = k.TrySubscribe(m.GroupID, max(0, contiguous-int64(rand.IntN(5))))
		}
		wanted := rand.IntN(20)
		timer := time.AfterFunc(time.Duration(rand.IntN(40))*time.Millisecond, proxy.cut)
		for n := 0; err == nil; n++ {
			var v strictjson.Value
			if v, err = k.TryRead(); err == nil {
				take(v)
			}
			if n == wanted {
				proxy.cut()
			}
		}
		timer.Stop()
		if errors.Is(err, testkit.ErrRefused) {
			t.Fatalf("cut %d: %v", cut, err)
		}
		if k != nil {
			k.Drop()
		}
	}
	close(stop)
	head := <-written
	last := s.Dial(s.WebSocketURL, reader, token)
	last.Handshake()
	if last.Epoch != epoch {
		t.Errorf("epoch %d after %d: a cut cost the session", last.Epoch, epoch)
	}
	last.Subscribe(m.GroupID, contiguous, nil)
	for _, v := range last.Barrier() {
		take(v)
	}
	if contiguous != head {
		t.Errorf("%d Events came of %d", contiguous, head)
	}
}

// One that stops reading while much flows costs nobody anything: others get all at
// once, memory stays bounded, and it gets the rest itself when it reads on.
func TestOneSubscriberThatStopsReadingWhileMuchFlows(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(noLimits))
	m := s.NewMission()
	const size = 99_000
	messages := scaled(500) // 50 MB
	slow, quick := s.Agent("slow"), s.Agent("quick")
	for _, agent := range []*client.Client{slow, quick} {
		m.Admit(agent, "observer", 1)
	}
	stuck, reading := s.Login(slow), s.Login(quick)
	reading.Subscribe(m.GroupID, 0, nil)
	last := 2*int64(messages) + 3
	done := make(chan struct{})
	go func() {
		defer close(done)
		for want := int64(1); want <= last; {
			if v := reading.Next(); v.Member("frameType").Str() == "EVENT" {
				if got, _ := v.Member("event").Member("sequence").Int(); got != want {
					t.Errorf("the quick reader got %d, want %d", got, want)
					return
				}
				want++
			}
		}
	}()
	text := strings.Repeat("x", size)
	flow := func() (grown int64) {
		before := testkit.HeapInUse()
		for i := range messages {
			m.Do(client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message(fmt.Sprint(i, text)))
		}
		return testkit.HeapInUse() - before
	}
	// The process keeps more than queues, NATS and the Mission's state among it: so
	// the same flow is compared without and with a reader that does not read.
	without := flow()
	stuck.Subscribe(m.GroupID, 0, nil)
	with := flow()
	<-done
	if more := with - without; more > 20<<20 && !testing.Short() {
		t.Errorf("memory grew by %d MB more with a reader that does not read", more>>20)
	}
	for want := int64(1); want <= last; {
		v := stuck.Next()
		if v.Member("frameType").Str() != "EVENT" {
			continue
		}
		if got, _ := v.Member("event").Member("sequence").Int(); got != want {
			t.Fatalf("the slow reader got %d, want %d", got, want)
		}
		want++
	}
}

// A Membership that ends in mid-stream ends delivery at once, for a reader that
// keeps up and for one that has stopped reading with Events on their way.
func TestMembershipEndedInMidStream(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(noLimits))
	m := s.NewMission()
	quick, slow := s.Agent("quick"), s.Agent("slow")
	m.Admit(quick, "observer", 1)
	m.Admit(slow, "observer", 1)
	reading, stuck := s.Login(quick), s.Login(slow)
	reading.Subscribe(m.GroupID, 0, nil)
	reading.Barrier()
	stuck.Subscribe(m.GroupID, 0, nil)
	text := strings.Repeat("x", 100_000)
	flow := scaled(300)
	for i := range flow {
		if i == flow/2 {
			m.Expel(quick)
		}
		m.Do(client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message(text))
	}
	m.Expel(slow)
	m.Say("among ourselves")

	// Whatever came, nothing came after the end.
	ended := func(k *testkit.Socket, who *client.Client) (events int) {
		t.Helper()
		last := int64(0)
		for {
			v := k.Next()
			if e := v.Member("error"); e.Exists() {
				if e.Member("code").Str() == "BACKPRESSURE" {
					continue
				}
				t.Fatalf("%s before the end", v.Raw())
			}
			e := v.Member("event")
			if !e.Exists() {
				continue
			}
			events++
			sequence, _ := e.Member("sequence").Int()
			if sequence <= last {
				t.Fatalf("Event %d after %d", sequence, last)
			}
			last = sequence
			if e.Member("kind").Str() == "membership.ended" &&
				e.Member("payload").Member("membership").Member("member").Member("id").Str() == who.Principal().ID {
				break
			}
		}
		k.ExpectError("MEMBERSHIP_REQUIRED", "")
		if frames := k.Barrier(); len(frames) != 0 {
			t.Fatalf("after the end came %.200s", frames[0].Raw())
		}
		return events
	}
	ended(reading, quick)
	if n := ended(stuck, slow); n >= flow && !testing.Short() {
		t.Errorf("a reader that had stopped still got %d Events after its Membership had ended", n)
	}
}

func TestTakeoverFlappingFiftyTimes(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(noLimits))
	m := s.NewMission()
	agent := s.Agent("one")
	m.Admit(agent, "worker", 1)
	last := s.Login(agent)
	last.Subscribe(m.GroupID, 0, nil)
	expectSequences(t, last.Barrier(), upTo(1, 2))
	for i := range scaled(50) {
		next := s.Login(agent)
		m.Say(fmt.Sprint(i))
		next.Subscribe(m.GroupID, 0, nil)
		last.ExpectEnd("AUTH_STALE_SESSION", 4409) // and no Event
		if next.Epoch != last.Epoch+1 {
			t.Fatalf("round %d: epoch %d after %d", i, next.Epoch, last.Epoch)
		}
		expectSequences(t, next.Barrier(), upTo(1, int64(i)+3))
		last = next
	}
}

// Frames that break the WebSocket layer end their connection with its code, and
// nobody else's.
func TestBrokenWebSocketFrames(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(noLimits))
	m := s.NewMission()
	for _, tc := range []struct {
		name  string
		bytes []byte
		code  int
	}{
		{"unmasked", []byte{0x81, 0x02, '{', '}'}, 1002},
		{"reserved bits", []byte{0xf1, 0x80, 0, 0, 0, 0}, 1002},
		{"reserved opcode", []byte{0x83, 0x80, 0, 0, 0, 0}, 1002},
		{"continuation of nothing", []byte{0x80, 0x80, 0, 0, 0, 0}, 1002},
		{"new message within a message", []byte{0x01, 0x80, 0, 0, 0, 0, 0x81, 0x80, 0, 0, 0, 0}, 1002},
		{"ping in fragments", []byte{0x09, 0x80, 0, 0, 0, 0}, 1002},
		{"ping too long", []byte{0x89, 0xfe, 0x01, 0x00, 0, 0, 0, 0}, 1002},
		{"close code nobody may send", []byte{0x88, 0x82, 0, 0, 0, 0, 0x03, 0xed}, 1002},
		{"close frame of one byte", []byte{0x88, 0x81, 0, 0, 0, 0, 0x03}, 1002},
		{"length beyond 63 bits", []byte{0x81, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 1002},
		{"length beyond the limit", []byte{0x81, 0xff, 0, 0, 0, 0, 0x7f, 0, 0, 0, 0, 0, 0, 0}, 1009},
		{"binary", []byte{0x82, 0x80, 0, 0, 0, 0}, 1003},
		{"not UTF-8, in fragments", []byte{0x01, 0x81, 0, 0, 0, 0, 0xc3, 0x80, 0x81, 0, 0, 0, 0, 'x'}, 1007},
		{"a close is answered with its code", []byte{0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8}, 1000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := s.Upgrade(s.WebSocketURL)
			defer func() { _ = k.Close() }()
			if _, err := k.Write(tc.bytes); err != nil {
				t.Fatal(err)
			}
			if got := k.CloseCode(t); got != tc.code {
				t.Errorf("closed with %d, want %d", got, tc.code)
			}
		})
	}
	t.Run("a ping is answered, also between fragments, and an empty close with an empty one", func(t *testing.T) {
		k := s.Upgrade(s.WebSocketURL)
		defer func() { _ = k.Close() }()
		if _, err := k.Write([]byte{0x01, 0x81, 0, 0, 0, 0, '{', 0x89, 0x82, 0, 0, 0, 0, 'h', 'i'}); err != nil {
			t.Fatal(err)
		}
		if got := k.Read(t, 4); !bytes.Equal(got, []byte{0x8a, 2, 'h', 'i'}) {
			t.Errorf("answer % x", got)
		}
		if _, err := k.Write([]byte{0x88, 0x80, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		if got := k.Read(t, 2); !bytes.Equal(got, []byte{0x88, 0}) {
			t.Errorf("answer % x", got)
		}
	})
	m.Lead.Barrier()
}

// A filter that matches nothing costs a watermark now and then, and the Events
// are there for the asking.
func TestFilterThatMatchesNothing(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(noLimits))
	m := s.NewMission()
	member := s.Agent("member")
	m.Admit(member, "observer", 1)
	k := s.Login(member)
	k.Subscribe(m.GroupID, 2, map[string]any{"eventKinds": []string{}, "conversationIds": []string{}, "workItemIds": []string{}})
	k.Barrier()
	for i := range 200 {
		m.Do(client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message(fmt.Sprint(i)))
	}
	marks, through := 0, int64(2)
	for through < m.Head {
		v := k.Expect("ACK")
		marks++
		for _, a := range v.Member("acknowledgements").Items() {
			next, _ := a.Member("sequence").Int()
			if next <= through {
				t.Errorf("watermark %d after %d", next, through)
			}
			through = next
		}
	}
	if marks > 100 {
		t.Errorf("%d watermarks for 200 Events", marks)
	}
	k.Subscribe(m.GroupID, 2, nil)
	expectSequences(t, k.Barrier(), upTo(3, m.Head))
}

// Positions beyond the head are refused one by one and move nothing.
func TestPositionsBeyondTheHead(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	k := m.Lead
	for _, position := range []int64{2, 1 << 40, 1<<53 - 1} {
		if e := k.ExpectError("PROTOCOL_VIOLATION", k.Subscribe(m.GroupID, position, nil)); e.Member("groupId").Str() != m.GroupID || e.Member("fatal").Bool() {
			t.Errorf("subscribing at %d: %s", position, e.Raw())
		}
		k.ExpectError("PROTOCOL_VIOLATION", k.Send("ACK", map[string]any{
			"acknowledgements": []any{map[string]any{"groupId": m.GroupID, "sequence": position}}, "sentAt": client.Timestamp(time.Now()),
		}))
	}
	m.Say("two")
	expectSequences(t, k.Barrier(), nil) // nothing was subscribed
	if a := s.Get(m.Coordinator, client.Path("v1", "groups", m.GroupID, "cursor")); string(a.Body) != `{"head":2,"sequence":0}` {
		t.Errorf("cursor %s", a.Body)
	}
}

// Errors that were owed before a fatal end still come.
func TestAFatalEndKeepsTheErrorsBeforeIt(t *testing.T) {
	s := testkit.Start(t)
	k := s.Login(s.Agent("one"))
	for range 6 {
		k.Write(websocket.MessageText, []byte(`{`))
	}
	for range 5 {
		if e := k.ExpectError("PROTOCOL_VIOLATION", ""); e.Member("fatal").Bool() {
			t.Fatalf("fatal too early: %s", e.Raw())
		}
	}
	k.ExpectEnd("PROTOCOL_VIOLATION", 4400)
}

// A member that was let go and let in again reads through its own end.
func TestReadmittedMemberReplaysThroughItsEarlierEnd(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	member := s.Agent("member")
	m.Admit(member, "observer", 1)
	m.Expel(member)
	m.Admit(member, "observer", 1)
	m.Say("five")
	k := s.Login(member)
	k.Subscribe(m.GroupID, 0, nil)
	expectSequences(t, k.Barrier(), upTo(1, m.Head))
	m.Expel(member)
	k.ExpectEvent("membership.ended")
	k.ExpectError("MEMBERSHIP_REQUIRED", "")
}

// A client that reads nothing at all is let go when a write has taken too long.
func TestWriteDeadlineEndsAConnectionThatReadsNothing(t *testing.T) {
	const within = 300 * time.Millisecond
	s := testkit.Start(t, testkit.Policy(noLimits), testkit.Timing(wsapi.Timing{Write: within}))
	m := s.NewMission()
	member := s.Agent("member")
	m.Admit(member, "observer", 1)
	k := s.Login(member)
	k.Subscribe(m.GroupID, 0, nil)
	k.Barrier()
	text := strings.Repeat("x", 99_000)
	const messages = 200 // more than the kernel's buffers hold
	for range messages {
		m.Do(client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message(text))
	}
	<-time.After(4 * within) // it is time itself that ends the connection
	events := 0
	for {
		v, err := k.TryRead()
		if err != nil {
			break
		}
		if v.Member("frameType").Str() == "EVENT" {
			if events++; events == messages {
				t.Fatal("the connection lived on")
			}
		}
	}
	m.Lead.Barrier()
}

// Requests that never become connections are bounded per peer as well.
func TestUpgradesOfOnePeerAreLimited(t *testing.T) {
	s := testkit.Start(t, testkit.Setting(func(c *config.Settings) { c.RequestsPerSecondPerPeer = 3 }))
	limited := false
	for range 200 {
		a := s.Do(testkit.Request{Method: "GET", URL: s.AuthorityURL + "/ws"})
		if a.Status == 429 {
			a.Refused(t, 429, "RATE_LIMITED")
			if a.Header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			limited = true
			break
		}
	}
	if !limited {
		t.Error("200 requests at once and none was refused")
	}
}

// HELLO over WebSocket draws on the share of the peer that REST draws on, and the
// hint when to come back differs from client to client.
func TestHellosOfOnePeerAreLimitedWithSpreadHints(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(func(p *config.Policy) { p.HellosPerMinute = 1 }))
	agent := s.Agent("one")
	hints := map[int64]bool{}
	for range 2000 {
		k, err := s.TryDial(s.WebSocketURL, agent, "")
		if err != nil {
			t.Fatal(err)
		}
		k.Send("HELLO", map[string]any{
			"phase": "client_init", "agentId": agent.Principal().ID, "keyId": agent.Identity().KeyID,
			"clientNonce": testkit.Nonce(), "supportedVersions": []string{"0.1"},
		})
		v := k.Next()
		if e := v.Member("error"); e.Exists() {
			if e.Member("code").Str() != "RATE_LIMITED" || !e.Member("fatal").Bool() {
				t.Fatalf("error %s", e.Raw())
			}
			ms, _ := e.Member("retryAfterMs").Int()
			hints[ms] = true
			k.ExpectClose(4429)
			if len(hints) == 3 {
				return
			}
		}
		k.Drop()
	}
	t.Errorf("hints %v", hints)
}
