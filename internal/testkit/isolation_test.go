package testkit_test

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/testkit"
)

// noLimits switches off what would slow a test down on purpose.
func noLimits(p *config.Policy) {
	p.MessageRatePerMinute, p.CommandsPerSecondPerConnection, p.HellosPerMinute = 0, 0, 1_000_000
}

func TestReaderThatStopsReadingHoldsUpNobody(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(noLimits))
	m, other := s.NewMission(), s.NewMission()
	const messages = 400
	text := strings.Repeat("x", 50_000)

	slow, quick := s.Agent("slow"), s.Agent("quick")
	for _, agent := range []*client.Client{slow, quick} {
		m.Admit(agent, "observer", 1)
	}
	stuck, reading := s.Login(slow), s.Login(quick)
	stuck.Subscribe(m.GroupID, 0, nil)
	reading.Subscribe(m.GroupID, 0, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for want := int64(1); want <= messages+3; {
			v := reading.Next()
			if v.Member("frameType").Str() != "EVENT" {
				continue
			}
			if got, _ := v.Member("event").Member("sequence").Int(); got != want {
				t.Errorf("the quick reader got %d, want %d", got, want)
				return
			}
			want++
		}
	}()
	for i := range messages {
		m.Do(client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message(fmt.Sprint(i, text)))
	}
	<-done

	// The one that did not read gets everything when it does, and hears of the
	// pause; a Group beside the full one is not held up by it.
	paused := false
	for want := int64(1); want <= messages+3; {
		v := stuck.Next()
		if v.Member("frameType").Str() == "ERROR" {
			e := v.Member("error")
			if e.Member("code").Str() != "BACKPRESSURE" || e.Member("groupId").Str() != m.GroupID || e.Member("fatal").Bool() {
				t.Fatalf("error %s", e.Raw())
			}
			paused = true
			continue
		}
		if got, _ := v.Member("event").Member("sequence").Int(); got != want {
			t.Fatalf("the slow reader got %d, want %d", got, want)
		}
		want++
	}
	if !paused {
		t.Error("nobody told the slow reader that its Group was paused")
	}
	other.Lead.Subscribe(other.GroupID, 0, nil)
	expectSequences(t, other.Lead.Barrier(), []int64{1})
}

// breaker is a TCP proxy whose connections can be cut.
type breaker struct {
	t      *testing.T
	listen net.Listener
	target string

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func newBreaker(t *testing.T, target string) *breaker {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &breaker{t: t, listen: l, target: target, conns: map[net.Conn]struct{}{}}
	go b.accept()
	t.Cleanup(func() {
		_ = l.Close()
		b.cut()
	})
	return b
}

func (b *breaker) accept() {
	for {
		in, err := b.listen.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", b.target) //nolint:noctx // loopback
		if err != nil {
			_ = in.Close()
			continue
		}
		b.mu.Lock()
		b.conns[in], b.conns[out] = struct{}{}, struct{}{}
		b.mu.Unlock()
		go b.pipe(in, out)
		go b.pipe(out, in)
	}
}

func (b *breaker) pipe(from, to net.Conn) {
	buffer := make([]byte, 4096)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, werr := to.Write(buffer[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			_ = from.Close()
			_ = to.Close()
			return
		}
	}
}

// cut breaks every connection in the middle of whatever it carries.
func (b *breaker) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
		delete(b.conns, c)
	}
}

func TestClientResumesThroughBrokenConnections(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(noLimits))
	m := s.NewMission()
	reader := s.Agent("reader")
	m.Admit(reader, "worker", 1)
	proxy := newBreaker(t, strings.TrimPrefix(s.AuthorityURL, "http://"))
	c, err := client.New(client.Options{
		Endpoints: client.Endpoints{AuthorityURL: s.AuthorityURL, WebSocketURL: "ws://" + proxy.listen.Addr().String() + "/ws"},
		Identity:  reader.Identity(), Retry: client.Retry{First: time.Millisecond, Most: 20 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	session, err := c.OpenSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	epoch := session.Epoch()
	sub, err := session.Subscribe(t.Context(), m.GroupID, 0)
	if err != nil {
		t.Fatal(err)
	}
	const messages = 60
	sent := make(chan error, 1)
	go func() {
		for i := range messages {
			_, err := session.Command(t.Context(), client.Command{
				Kind: "message.post", GroupID: m.GroupID, MembershipEpoch: 1, ConversationID: m.Conversation,
			}, testkit.Message(fmt.Sprint(i)))
			if err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	ids := map[string]bool{}
	for want := int64(1); want <= messages+2; want++ {
		select {
		case d, ok := <-sub.Events():
			if !ok {
				t.Fatalf("the Subscription ended: %v", sub.Err())
			}
			if d.Event.Sequence != want || ids[d.Event.EventID] {
				t.Fatalf("Event %d, want %d", d.Event.Sequence, want)
			}
			ids[d.Event.EventID] = true
		case <-time.After(testkit.Patience):
			t.Fatalf("Event %d never came", want)
		}
		if want%3 == 0 {
			proxy.cut()
		}
	}
	if err := <-sent; err != nil {
		t.Errorf("a Command was lost: %v", err)
	}
	if session.Epoch() != epoch {
		t.Errorf("epoch %d, was %d: a break cost the session", session.Epoch(), epoch)
	}
}

func TestTakeoverFlapping(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(noLimits))
	agent := s.Agent("one")
	last := s.Login(agent)
	for i := range 20 {
		next := s.Login(agent)
		last.ExpectEnd("AUTH_STALE_SESSION", 4409)
		if next.Epoch != last.Epoch+1 {
			t.Fatalf("round %d: epoch %d after %d", i, next.Epoch, last.Epoch)
		}
		last = next
	}
	last.Barrier()
}
