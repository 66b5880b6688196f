package testkit_test

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/server"
	"github.com/missionweave/server/internal/testkit"
)

// post sends one Message until it is accepted: the same bytes, so once.
func post(t *testing.T, s *testkit.Stack, m *testkit.Mission, text string) {
	t.Helper()
	command := m.Sign(client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message(text))
	deadline := time.Now().Add(testkit.Patience)
	for {
		a := s.Post(command)
		if a.Status == 201 || a.Status == 200 {
			return
		}
		if v := a.Value(t); !v.Member("retryable").Bool() {
			t.Errorf("refused for good: %d %s", a.Status, a.Body)
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("not accepted in %v: %d %s", testkit.Patience, a.Status, a.Body)
			return
		}
		<-time.After(50 * time.Millisecond) // as the answer asks
	}
}

// follow reads Events up to a sequence, each once and in order.
func follow(t *testing.T, k *testkit.Socket, from, to int64) {
	t.Helper()
	for want := from; want <= to; {
		v := k.Next()
		if v.Member("frameType").Str() != "EVENT" {
			continue
		}
		if got, _ := v.Member("event").Member("sequence").Int(); got != want {
			t.Fatalf("Event %d, want %d", got, want)
		}
		want++
	}
}

func TestTerminatedDatabaseConnectionsLoseNoEvent(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(noLimits))
	m := s.NewMission()
	reader := s.Agent("reader")
	m.Admit(reader, "observer", 1)
	k := s.Login(reader)
	k.Subscribe(m.GroupID, 0, nil)
	messages := scaled(100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range messages {
			if i%20 == 10 || i == 1 {
				_, err := s.Pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
					WHERE datname = current_database() AND pid <> pg_backend_pid()`)
				if err != nil {
					t.Error(err)
				}
			}
			post(t, s, m, fmt.Sprint(i))
		}
	}()
	follow(t, k, 1, int64(messages)+2)
	<-done
	expectSequences(t, k.Barrier(), nil)
}

// hole is a TCP proxy that can swallow everything without closing anything.
type hole struct {
	target string
	mu     sync.Mutex
	open   chan struct{} // closed while bytes pass
	conns  []net.Conn
}

func newHole(t *testing.T, target string) (h *hole, address string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h = &hole{target: target, open: make(chan struct{})}
	close(h.open)
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", h.target) //nolint:noctx // loopback
			if err != nil {
				_ = in.Close()
				continue
			}
			h.mu.Lock()
			h.conns = append(h.conns, in, out)
			h.mu.Unlock()
			go h.pipe(in, out)
			go h.pipe(out, in)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		h.swallow(false)
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, c := range h.conns {
			_ = c.Close()
		}
	})
	return h, l.Addr().String()
}

func (h *hole) pipe(from, to net.Conn) {
	defer func() {
		_ = from.Close()
		_ = to.Close()
	}()
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		h.mu.Lock()
		open := h.open
		h.mu.Unlock()
		<-open
		if n > 0 {
			if _, werr := to.Write(buffer[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			if err != io.EOF { //nolint:errorlint // net returns it as it is
				return
			}
			return
		}
	}
}

func (h *hole) swallow(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.open:
		if on {
			h.open = make(chan struct{})
		}
	default:
		if !on {
			close(h.open)
		}
	}
}

func TestADatabaseThatSwallowsEverythingHoldsNobodyForEver(t *testing.T) {
	shared := devstack.ForTest(t)
	tcp, err := url.Parse(shared.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	h, address := newHole(t, tcp.Host)
	s := testkit.Start(t, testkit.Policy(noLimits), func(o *server.Options) {
		own, err := url.Parse(o.Settings.DatabaseURL)
		if err != nil {
			t.Fatal(err)
		}
		through := *tcp
		through.Host, through.Path = address, own.Path
		o.Settings.DatabaseURL = through.String()
	})
	m := s.NewMission()
	reader := s.Agent("reader")
	m.Admit(reader, "observer", 1)
	k := s.Login(reader)
	k.Subscribe(m.GroupID, 0, nil)
	follow(t, k, 1, 2)
	h.swallow(true)
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		post(t, s, m, "while nothing answers")
	}()
	// Longer than anything that reads may wait for an answer.
	<-time.After(6 * time.Second)
	h.swallow(false)
	<-accepted
	post(t, s, m, "afterwards")
	follow(t, k, 3, 4)
	expectSequences(t, k.Barrier(), nil)
}
