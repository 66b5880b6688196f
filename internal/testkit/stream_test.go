package testkit_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
)

// shortly is a context for what fails by being repeated until it ends.
func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// sse reads Server-Sent Events.
type sse struct {
	t      *testing.T
	Header http.Header
	lines  *bufio.Scanner
	body   io.Closer
}

type message struct{ id, event, data string }

func openStream(t *testing.T, s *testkit.Stack, token, path string, header map[string]string) *sse {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.AuthorityURL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	for name, value := range header {
		req.Header.Set(name, value)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body)
		t.Fatalf("stream: %d %s", res.StatusCode, b)
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 8<<20)
	return &sse{t: t, Header: res.Header, lines: lines, body: res.Body}
}

// next is the next message with an id or data; ok is false at the end.
func (s *sse) next() (m message, ok bool) {
	s.t.Helper()
	for s.lines.Scan() {
		name, value, _ := strings.Cut(s.lines.Text(), ": ")
		switch name {
		case "id":
			m.id = value
		case "event":
			m.event = value
		case "data":
			m.data = value
		case "":
			if m != (message{}) {
				return m, true
			}
		}
	}
	return message{}, false
}

func (s *sse) expect(kind string, sequence int64) {
	s.t.Helper()
	m, ok := s.next()
	if !ok || m.event != kind || m.id != strconv.FormatInt(sequence, 10) {
		s.t.Fatalf("message %+v, want %s %d", m, kind, sequence)
	}
	doc, err := strictjson.Parse([]byte(m.data))
	if err != nil {
		s.t.Fatal(err)
	}
	if fault := protocol.Validate(protocol.KindEvent, doc.Root()); fault != nil {
		s.t.Fatalf("not an Event: %v in %s", fault, m.data)
	}
}

// expectError reads the last message and the end.
func (s *sse) expectError(code string) {
	s.t.Helper()
	m, ok := s.next()
	doc, err := strictjson.Parse([]byte(m.data))
	if !ok || m.event != "error" || err != nil || doc.Root().Member("code").Str() != code {
		s.t.Fatalf("message %+v, want error %s", m, code)
	}
	if fault := protocol.Validate(protocol.KindError, doc.Root()); fault != nil {
		s.t.Fatalf("not an error object: %v in %s", fault, m.data)
	}
	if m, ok := s.next(); ok {
		s.t.Fatalf("after the error came %+v", m)
	}
}

func TestStreamGoesFromReplayToLive(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	m.Say("two")
	path := client.Path("v1", "groups", m.GroupID, "events", "stream")
	stream := openStream(t, s, s.Token(m.Owner), path, nil)
	if h := stream.Header; h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" || !strings.Contains(h.Get("Cache-Control"), "no-store") {
		t.Errorf("headers %v", h)
	}
	stream.expect("mission.created", 1)
	stream.expect("message.posted", 2)
	m.Say("three")
	stream.expect("message.posted", 3)

	resumed := openStream(t, s, s.Token(m.Owner), path, map[string]string{"Last-Event-ID": "2"})
	resumed.expect("message.posted", 3)
	after := openStream(t, s, s.Token(m.Owner), path+"?after=1", nil)
	after.expect("message.posted", 2)

	s.Do(testkit.Request{
		Method: "GET", URL: s.AuthorityURL + path, Token: s.Token(m.Owner), Header: map[string]string{"Last-Event-ID": "x"},
	}).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	s.Get(m.Owner, path+"?after=99").Refused(t, 400, "PROTOCOL_VIOLATION")

	s.Stop("authority")
	if m, ok := stream.next(); ok {
		t.Errorf("a draining server sent %+v", m)
	}
}

func TestStreamFilterMovesTheIDOverWhatItLeavesOut(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	path := client.Path("v1", "groups", m.GroupID, "events", "stream")
	stream := openStream(t, s, m.Lead.Token, path+"?eventKinds=membership.changed", nil)
	stream.expect("mission.created", 1)
	owner := s.Post(s.Sign(m.Owner, client.Command{
		Kind: "message.post", GroupID: m.GroupID, MembershipEpoch: 1, ConversationID: m.Conversation,
	}, testkit.Message("of the owner")))
	if owner.Status != 201 {
		t.Fatalf("%d %s", owner.Status, owner.Body)
	}
	if got, _ := stream.next(); got != (message{id: "2"}) {
		t.Errorf("message %+v, want only an id", got)
	}
	m.Admit(s.Agent("one"), "observer", 1)
	stream.expect("membership.changed", 3)
}

func TestStreamEndsWithItsReasons(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(func(p *config.Policy) { p.SessionLifeSeconds = 3 }))
	m := s.NewMission()
	path := client.Path("v1", "groups", m.GroupID, "events", "stream")
	expiring := openStream(t, s, s.Login(m.Coordinator).Token, path, nil)
	expiring.expect("mission.created", 1)
	expiring.expectError("AUTH_REQUIRED")

	m.Lead = s.Login(m.Coordinator)
	member := s.Human("member")
	m.Admit(member, "observer", 1)
	ended := openStream(t, s, s.Token(member), path+"?after=2", nil)
	m.Expel(member)
	ended.expect("membership.ended", 3)
	ended.expectError("MEMBERSHIP_REQUIRED")
}
