package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// patience is never waited for when a test passes.
const patience = 30 * time.Second

// fakeGroup is the Group that the fake server has.
const fakeGroup = "urn:x:group"

// fake is a server that does with a subscription what a test says, over real
// connections. Its REST log is complete.
type fake struct {
	t     *testing.T
	url   string
	log   []string // Events by sequence, from 1
	serve func(conn *fakeConn, after int64)

	mu    sync.Mutex
	reads int // pages read over REST
	after []int64
}

type fakeConn struct {
	*websocket.Conn
	f   *fake
	ctx context.Context
}

func startFake(t *testing.T, events int, serve func(conn *fakeConn, after int64)) *fake {
	f := &fake{t: t, serve: serve}
	for i := range events {
		f.log = append(f.log, fakeEvent(int64(i+1), "a"))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/access/challenge", f.challenge)
	mux.HandleFunc("/v1/access/token", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"accessToken":"t","expiresAt":%q}`, Timestamp(time.Now().Add(time.Hour)))
	})
	mux.HandleFunc("/v1/groups/", f.events)
	mux.HandleFunc("/ws", f.socket)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	f.url = s.URL
	return f
}

func fakeEvent(sequence int64, variant string) string {
	return fmt.Sprintf(`{"eventId":"urn:x:event:%d%s","groupId":%q,"sequence":%d,"kind":"message.posted","payload":{}}`,
		sequence, variant, fakeGroup, sequence)
}

// transcriptOf is a challenge over what the client said.
func transcriptOf(members map[string]any) string {
	members["challengeId"], members["serverNonce"] = "AAAA", "BBBB"
	members["expiresAt"], members["protocolVersion"] = "2036-07-15T08:00:36+00:00", "0.1"
	b, err := strictjson.Marshal(members)
	if err != nil {
		panic(err)
	}
	return lexical.EncodeBase64URL(b)
}

func (f *fake) challenge(w http.ResponseWriter, r *http.Request) {
	body := make([]byte, r.ContentLength)
	_, _ = r.Body.Read(body)
	doc, err := strictjson.Parse(body)
	if err != nil {
		f.t.Error(err)
		return
	}
	v := doc.Root()
	fmt.Fprintf(w, `{"challenge":%q}`, transcriptOf(map[string]any{
		"principalId": v.Member("principal").Member("id").Str(), "principalType": v.Member("principal").Member("type").Str(),
		"keyId": v.Member("keyId").Str(), "clientNonce": v.Member("clientNonce").Str(),
	}))
}

func (f *fake) events(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.reads++
	f.mu.Unlock()
	query, _ := url.ParseQuery(r.URL.RawQuery)
	after, _ := strconv.Atoi(query.Get("after"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	page := f.log[min(after, len(f.log)):min(after+limit, len(f.log))]
	fmt.Fprintf(w, `{"items":[%s],"next":%d}`, strings.Join(page, ","), after+len(page))
}

func (f *fake) socket(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	c := &fakeConn{Conn: conn, f: f, ctx: r.Context()}
	defer func() { _ = conn.CloseNow() }()
	var agent, key, own string
	for {
		_, b, err := conn.Read(c.ctx)
		if err != nil {
			return
		}
		doc, err := strictjson.Parse(b)
		if err != nil {
			f.t.Error(err)
			return
		}
		v := doc.Root()
		switch v.Member("frameType").Str() {
		case "HELLO":
			if v.Member("phase").Str() == "client_init" {
				agent, key, own = v.Member("agentId").Str(), v.Member("keyId").Str(), v.Member("clientNonce").Str()
				c.send(`{"frameType":"HELLO","phase":"server_challenge","clientNonce":%q,"serverNonce":"BBBB","challenge":%q}`, own,
					transcriptOf(map[string]any{"agentId": agent, "keyId": key, "clientNonce": own}))
				continue
			}
			c.send(`{"frameType":"HELLO","phase":"server_accept","sessionToken":"s","sessionEpoch":1,"expiresAt":%q}`, Timestamp(time.Now().Add(time.Hour)))
		case "PING":
			if !v.Member("replyToNonce").Exists() {
				c.send(`{"frameType":"PING","nonce":"n","replyToNonce":%q}`, v.Member("nonce").Str())
			}
		case "SUBSCRIBE":
			var group strictjson.Value
			for _, group = range v.Member("groups").Items() {
				break
			}
			after, _ := group.Member("afterSequence").Int()
			f.mu.Lock()
			f.after = append(f.after, after)
			f.mu.Unlock()
			if group.Member("attention").Exists() {
				continue
			}
			if group.Member("groupId").Str() != fakeGroup {
				c.send(`{"frameType":"ERROR","error":{"code":"GROUP_NOT_FOUND","message":"m","retryable":false,"fatal":false,"groupId":%q,"relatedFrameId":%q}}`,
					group.Member("groupId").Str(), v.Member("frameId").Str())
				continue
			}
			f.serve(c, after)
		}
	}
}

func (c *fakeConn) send(format string, args ...any) {
	_ = c.Write(c.ctx, websocket.MessageText, fmt.Appendf(nil, format, args...))
}

func (c *fakeConn) event(e string) { c.send(`{"frameType":"EVENT","event":%s}`, e) }

// events sends Events of the log by sequence.
func (c *fakeConn) events(sequences ...int64) {
	for _, n := range sequences {
		c.event(c.f.log[n-1])
	}
}

func (f *fake) session() *Session {
	f.t.Helper()
	identity, err := NewIdentity(Actor{Type: Agent, ID: "urn:x:agent"})
	if err != nil {
		f.t.Fatal(err)
	}
	c, err := New(Options{
		Endpoints: Endpoints{AuthorityURL: f.url, WebSocketURL: "ws" + strings.TrimPrefix(f.url, "http") + "/ws"},
		Identity:  identity, Retry: Retry{First: time.Millisecond, Most: 10 * time.Millisecond},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close)
	s, err := c.OpenSession(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(s.Close)
	return s
}

// readAll expects the Events from..through, each once and in order.
func readAll(t *testing.T, sub *Subscription, from, through int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for want := from; want <= through; want++ {
		d, err := sub.Next(ctx)
		if err != nil {
			t.Fatalf("Event %d: %v", want, err)
		}
		if d.Event.Sequence != want {
			t.Fatalf("Event %d came, want %d", d.Event.Sequence, want)
		}
	}
}

func TestASubscriptionDropsRepeatsAndReadsHolesFromTheLog(t *testing.T) {
	f := startFake(t, 9, func(c *fakeConn, _ int64) {
		c.events(1, 2, 2, 1, 3, 7, 6, 8, 8, 9)
	})
	sub, err := f.session().Subscribe(t.Context(), fakeGroup, 0)
	if err != nil {
		t.Fatal(err)
	}
	readAll(t, sub, 1, 9)
	<-sub.CaughtUp()
	if sub.Position() != 9 || f.reads == 0 {
		t.Errorf("position %d after %d reads of the log", sub.Position(), f.reads)
	}
	// 6 is among them: it was read from the log before it came.
	if events, repeated := sub.s.Received(); events != 10 || repeated != 4 {
		t.Errorf("%d received and %d of them repeated, want 10 and 4", events, repeated)
	}
}

func TestAHoleThatAWatermarkExplainsIsPassedOver(t *testing.T) {
	f := startFake(t, 9, func(c *fakeConn, _ int64) {
		c.events(1)
		c.send(`{"frameType":"ACK","acknowledgements":[{"groupId":%q,"sequence":6}]}`, fakeGroup)
		c.events(7)
	})
	sub, err := f.session().Subscribe(t.Context(), fakeGroup, 0)
	if err != nil {
		t.Fatal(err)
	}
	readAll(t, sub, 1, 1)
	readAll(t, sub, 7, 7)
	if f.reads != 0 {
		t.Errorf("the log was read %d times", f.reads)
	}
}

func TestASlowUserOfOneGroupLosesNothing(t *testing.T) {
	const events = 5 * inboxEvents
	sent := make(chan struct{})
	f := startFake(t, events, func(c *fakeConn, _ int64) {
		for n := int64(1); n <= events; n++ {
			c.events(n)
		}
		close(sent)
	})
	s := f.session()
	sub, err := s.Subscribe(t.Context(), fakeGroup, 0)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-sent: // although nobody has read a single one
	case <-time.After(patience):
		t.Fatal("the connection waited for the user of one Group")
	}
	readAll(t, sub, 1, events)
	select {
	case <-sub.CaughtUp():
	case <-time.After(patience):
		t.Error("the end of the replay was not told")
	}
}

func TestARefusedSubscriptionIsTheCallersError(t *testing.T) {
	f := startFake(t, 1, func(c *fakeConn, _ int64) { c.events(1) })
	s := f.session()
	if _, err := s.Subscribe(t.Context(), "urn:x:other", 0); CodeOf(err) != "GROUP_NOT_FOUND" {
		t.Errorf("Subscribe: %v", err)
	}
	sub, err := s.Subscribe(t.Context(), fakeGroup, 0)
	if err != nil {
		t.Fatal(err)
	}
	readAll(t, sub, 1, 1)
}

func TestTheEndOfAMembershipEndsTheSubscriptionAfterItsLastEvent(t *testing.T) {
	f := startFake(t, 2, func(c *fakeConn, _ int64) {
		c.events(1, 2)
		c.send(`{"frameType":"ERROR","error":{"code":"MEMBERSHIP_REQUIRED","message":"m","retryable":false,"fatal":false,"groupId":%q}}`, fakeGroup)
	})
	sub, err := f.session().Subscribe(t.Context(), fakeGroup, 0)
	if err != nil {
		t.Fatal(err)
	}
	readAll(t, sub, 1, 2)
	if _, err := sub.Next(t.Context()); CodeOf(err) != "MEMBERSHIP_REQUIRED" {
		t.Errorf("after the last Event: %v", err)
	}
}

func TestTwoEventsAtOnePositionEndTheSubscription(t *testing.T) {
	f := startFake(t, 2, func(c *fakeConn, _ int64) {
		c.events(1)
		c.event(fakeEvent(1, "b"))
	})
	sub, err := f.session().Subscribe(t.Context(), fakeGroup, 0)
	if err != nil {
		t.Fatal(err)
	}
	readAll(t, sub, 1, 1)
	if _, err := sub.Next(t.Context()); !errors.Is(err, ErrForked) {
		t.Errorf("err %v, want ErrForked", err)
	}
}

func TestABrokenConnectionResumesAfterWhatWasHandedOver(t *testing.T) {
	f := startFake(t, 6, func(c *fakeConn, after int64) {
		if after == 0 {
			c.events(1, 2, 3)
			_ = c.CloseNow()
			return
		}
		for n := after + 1; n <= 6; n++ {
			c.events(n)
		}
	})
	sub, err := f.session().Subscribe(t.Context(), fakeGroup, 0)
	if err != nil {
		t.Fatal(err)
	}
	readAll(t, sub, 1, 6)
}
