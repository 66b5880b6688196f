package testkit_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/testwait"
)

// direct is a Worker's own connection to NATS.
type direct struct {
	*nats.Conn
	t      *testing.T
	events chan *nats.Msg
	// faults gets what the server objects to, gone a value when it has cut the
	// connection.
	faults chan error
	gone   chan struct{}
}

// credentials are what POST /v1/nats-credentials answers.
type credentials struct {
	url, token string
	expiresAt  string
	subjects   map[string]string // by Group
}

func natsCredentials(t *testing.T, s *testkit.Stack, token, body string) credentials {
	t.Helper()
	a := s.Do(testkit.Request{Method: "POST", URL: s.AuthorityURL + "/v1/nats-credentials", Token: token, Body: []byte(body)})
	if a.Status != 201 {
		t.Fatalf("credentials: %d %s", a.Status, a.Body)
	}
	v := a.Value(t)
	c := credentials{
		url: v.Member("url").Str(), token: v.Member("token").Str(), expiresAt: v.Member("expiresAt").Str(), subjects: map[string]string{},
	}
	for _, g := range v.Member("groups").Items() {
		c.subjects[g.Member("groupId").Str()] = g.Member("subject").Str()
	}
	return c
}

// startDirect skips where NATS is external: it is not set up to ask the tests.
func startDirect(t *testing.T, options ...testkit.Option) *testkit.Stack {
	t.Helper()
	s := testkit.Start(t, options...)
	if s.Settings.NATSIssuerSeed == "" {
		t.Skip("NATS is external (MW_NATS_URL): it does not ask this server whom to let in")
	}
	return s
}

func (c credentials) dial(t *testing.T) (*direct, error) {
	t.Helper()
	d := &direct{t: t, events: make(chan *nats.Msg, 1000), faults: make(chan error, 100), gone: make(chan struct{}, 1)}
	var err error
	d.Conn, err = nats.Connect(c.url, nats.Token(c.token), nats.NoReconnect(), nats.Timeout(10*time.Second),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { d.faults <- err }),
		nats.ClosedHandler(func(*nats.Conn) { d.gone <- struct{}{} }))
	if err == nil {
		t.Cleanup(d.Close)
	}
	return d, err //nolint:wrapcheck // looked at by the test
}

func (c credentials) connect(t *testing.T) *direct {
	t.Helper()
	d, err := c.dial(t)
	if err != nil {
		t.Fatalf("NATS refused credentials that were just issued: %v", err)
	}
	return d
}

func (d *direct) subscribe(subject string) {
	d.t.Helper()
	if _, err := d.ChanSubscribe(subject, d.events); err != nil {
		d.t.Fatal(err)
	}
	if err := d.Flush(); err != nil {
		d.t.Fatal(err)
	}
}

// expect returns the next Event, which must have a sequence.
func (d *direct) expect(sequence int64) *nats.Msg {
	d.t.Helper()
	select {
	case m := <-d.events:
		if got := m.Header.Get("Mw-Sequence"); got != strconv.FormatInt(sequence, 10) {
			d.t.Fatalf("Event %s, want %d", got, sequence)
		}
		return m
	case err := <-d.faults:
		d.t.Fatalf("Event %d did not come: %v", sequence, err)
	case <-time.After(testkit.Patience):
		d.t.Fatalf("Event %d did not come", sequence)
	}
	return nil
}

// expectFault waits for the server's objection.
func (d *direct) expectFault(what string) {
	d.t.Helper()
	_ = d.Flush()
	select {
	case err := <-d.faults:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			d.t.Errorf("%s: %v, want a permissions violation", what, err)
		}
	case <-time.After(testkit.Patience):
		d.t.Errorf("%s was not refused", what)
	}
}

func (d *direct) expectCut(why string) {
	d.t.Helper()
	select {
	case <-d.gone:
	case <-time.After(testkit.Patience):
		d.t.Fatalf("the connection was not cut after %s", why)
	}
}

// published waits until everything up to the head is published, because a member
// whose visibility begins later has to wait for it.
func published(t *testing.T, s *testkit.Stack, groupID string, sequence int64) {
	t.Helper()
	testwait.Until(t, fmt.Sprintf("published up to %d", sequence), func() bool {
		var n int64
		if err := s.Pool.QueryRow(t.Context(), "SELECT published_sequence FROM groups WHERE group_id = $1", groupID).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n >= sequence
	})
}

func TestWorkersSubscribeAtNATS(t *testing.T) { eachNATS(t, workersSubscribeAtNATS) }

func workersSubscribeAtNATS(t *testing.T, options ...testkit.Option) {
	s := startDirect(t, options...)
	m, foreign := s.NewMission(), s.NewMission()
	worker := s.Agent("worker")
	m.Admit(worker, "worker", 1)
	k := s.Login(worker)
	c := natsCredentials(t, s, k.Token, `{}`)
	if len(c.subjects) != 1 || strings.Contains(c.subjects[m.GroupID], strings.TrimPrefix(m.GroupID, "urn:uuid:")) {
		t.Fatalf("subjects %v", c.subjects)
	}
	if strings.Contains(c.url, "@") {
		t.Errorf("the URL %q has an account in it", c.url)
	}
	d := c.connect(t)

	t.Run("it gets the live Events of its Group, in the bytes that were signed", func(t *testing.T) {
		published(t, s, m.GroupID, 2)
		d.subscribe(c.subjects[m.GroupID])
		m.Say("three")
		m.Say("four")
		got := d.expect(3)
		d.expect(4)
		events := s.Get(worker, client.Path("v1", "groups", m.GroupID, "events")+"?after=2&limit=1").Value(t)
		for _, e := range events.Member("items").Items() {
			if string(e.Raw()) != string(got.Data) || got.Header.Get(nats.MsgIdHdr) != e.Member("eventId").Str() {
				t.Errorf("NATS has %s, REST %s", got.Data, e.Raw())
			}
		}
	})
	t.Run("it can publish nothing", func(t *testing.T) {
		for _, subject := range []string{c.subjects[m.GroupID], "missionweave.sessions", "$JS.API.STREAM.INFO.MISSIONWEAVE_EVENTS", "$SYS.REQ.USER.AUTH", "x"} {
			if err := d.Publish(subject, []byte("{}")); err != nil {
				t.Fatal(err)
			}
			d.expectFault("publishing to " + subject)
		}
	})
	t.Run("it can subscribe to nothing else", func(t *testing.T) {
		other := natsCredentials(t, s, foreign.Lead.Token, `{}`).subjects[foreign.GroupID]
		for _, subject := range []string{other, ">", "missionweave.events.*", "missionweave.>", "missionweave.sessions", "_INBOX.>", "$SYS.>", "$JS.>"} {
			if _, err := d.SubscribeSync(subject); err != nil {
				t.Fatal(err)
			}
			d.expectFault("subscribing to " + subject)
		}
		foreign.Say("not for it")
		m.Say("five")
		d.expect(5)
	})
	t.Run("the end of the Membership cuts it off", func(t *testing.T) {
		m.Expel(worker)
		d.expectCut("the end of the Membership")
		if _, err := c.dial(t); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("the credentials still work: %v", err)
		}
		s.Do(testkit.Request{Method: "POST", URL: s.AuthorityURL + "/v1/nats-credentials", Token: k.Token, Body: []byte(`{}`)}).
			Refused(t, 403, "MEMBERSHIP_REQUIRED")
	})
}

func TestANewSessionCutsSubscribersOfTheOldOneAtNATS(t *testing.T) {
	eachNATS(t, aNewSessionCutsSubscribersOfTheOldOneAtNATS)
}

func aNewSessionCutsSubscribersOfTheOldOneAtNATS(t *testing.T, options ...testkit.Option) {
	s := startDirect(t, options...)
	m := s.NewMission()
	worker := s.Agent("worker")
	m.Admit(worker, "worker", 1)
	first := s.Login(worker)
	c := natsCredentials(t, s, first.Token, fmt.Sprintf(`{"groupIds":[%q]}`, m.GroupID))
	d := c.connect(t)
	published(t, s, m.GroupID, 2) // what is published late would be heard too
	d.subscribe(c.subjects[m.GroupID])

	// A session that goes on keeps its subscribers.
	second := s.Dial(s.WebSocketURL, worker, first.Token)
	second.Handshake()
	m.Say("three")
	d.expect(3)

	third := s.Login(worker)
	select {
	case <-d.gone: // before the takeover was answered, give or take the client's own goroutine
	case <-time.After(testkit.Patience):
		t.Fatal("a takeover left the subscriber of the old session")
	}
	if _, err := c.dial(t); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("credentials of the old session: %v", err)
	}
	fresh := natsCredentials(t, s, third.Token, `{}`)
	d = fresh.connect(t)
	published(t, s, m.GroupID, 3)
	d.subscribe(fresh.subjects[m.GroupID])
	m.Say("four")
	d.expect(4)
}

func TestCredentialsForNATSAreForActiveMembersOnly(t *testing.T) {
	eachNATS(t, credentialsForNATSAreForActiveMembersOnly)
}

func credentialsForNATSAreForActiveMembersOnly(t *testing.T, options ...testkit.Option) {
	s := startDirect(t, options...)
	m := s.NewMission()
	request := func(token, body string) testkit.Answer {
		return s.Do(testkit.Request{Method: "POST", URL: s.AuthorityURL + "/v1/nats-credentials", Token: token, Body: []byte(body)})
	}
	worker := s.Agent("worker")
	k := s.Login(worker)
	t.Run("an access token is not enough", func(t *testing.T) {
		request(s.Token(m.Owner), `{}`).Refused(t, 403, "AUTH_FORBIDDEN")
		request(s.Token(m.Coordinator), `{}`).Refused(t, 403, "AUTH_FORBIDDEN")
	})
	t.Run("a Group of others looks like none", func(t *testing.T) {
		request(k.Token, fmt.Sprintf(`{"groupIds":[%q]}`, m.GroupID)).Refused(t, 404, "GROUP_NOT_FOUND")
		request(k.Token, fmt.Sprintf(`{"groupIds":[%q]}`, client.NewID())).Refused(t, 404, "GROUP_NOT_FOUND")
	})
	t.Run("bad bodies", func(t *testing.T) {
		for _, body := range []string{``, `[]`, `{"groupIds":[]}`, `{"groupIds":"x"}`, `{"x":1}`, `{"groupIds":["urn:a:b","urn:a:b"]}`} {
			if a := request(k.Token, body); a.Status != 400 {
				t.Errorf("%s: %d %s", body, a.Status, a.Body)
			}
		}
	})
	t.Run("a provisional member sees only its offer and gets no subject", func(t *testing.T) {
		m.Do(client.Command{Kind: "membership.change"}, map[string]any{
			"member": worker.Principal(), "role": "worker", "state": "provisional",
			"provisionalExpiresAt": client.Timestamp(time.Now().Add(time.Hour)),
		})
		request(k.Token, `{}`).Refused(t, 403, "MEMBERSHIP_REQUIRED")
	})
	t.Run("visibility that begins in the future waits for what is before it", func(t *testing.T) {
		late := s.Agent("late")
		from := m.Head + 1
		m.Admit(late, "observer", from)
		published(t, s, m.GroupID, m.Head)
		l := s.Login(late)
		c := natsCredentials(t, s, l.Token, `{}`)
		if c.subjects[m.GroupID] == "" {
			t.Errorf("no subject though everything before %d is published", from)
		}
	})
	t.Run("an Agent has no more than 32 credentials alive", func(t *testing.T) {
		many := s.Agent("many")
		m.Admit(many, "observer", 1)
		published(t, s, m.GroupID, m.Head)
		k := s.Login(many)
		for range 32 {
			natsCredentials(t, s, k.Token, `{}`)
		}
		a := request(k.Token, `{}`)
		a.Refused(t, 429, "RATE_LIMITED")
		if ms, ok := a.Value(t).Member("retryAfterMs").Int(); !ok || ms <= 0 {
			t.Errorf("no time to wait in %s", a.Body)
		}
		natsCredentials(t, s, m.Lead.Token, `{}`) // others have their own
	})
	t.Run("made up credentials", func(t *testing.T) {
		c := natsCredentials(t, s, m.Lead.Token, `{}`)
		for _, token := range []string{"", "x", c.token + "x", c.token[:len(c.token)-2] + "AA"} {
			if _, err := (credentials{url: c.url, token: token}).dial(t); !errors.Is(err, nats.ErrAuthorization) {
				t.Errorf("token %.8q…: %v", token, err)
			}
		}
	})
}

func TestSubscribersAtNATSEndWithTheSession(t *testing.T) {
	eachNATS(t, subscribersAtNATSEndWithTheSession)
}

func subscribersAtNATSEndWithTheSession(t *testing.T, options ...testkit.Option) {
	s := startDirect(t, append(options, testkit.Policy(func(p *config.Policy) { p.SessionLifeSeconds = 3 }))...)
	m := s.NewMission()
	c := natsCredentials(t, s, m.Lead.Token, `{}`)
	d := c.connect(t)
	d.subscribe(c.subjects[m.GroupID])
	d.expectCut("the session's expiry")
	if _, err := c.dial(t); err == nil {
		t.Error("expired credentials are let in")
	}
}

// A replica that did not let the connection in has it cut as well.
func TestAnyReplicaCutsSubscribersAtNATS(t *testing.T) { eachNATS(t, anyReplicaCutsSubscribersAtNATS) }

func anyReplicaCutsSubscribersAtNATS(t *testing.T, options ...testkit.Option) {
	s := startDirect(t, options...)
	m := s.NewMission()
	worker := s.Agent("worker")
	m.Admit(worker, "worker", 1)
	c := natsCredentials(t, s, s.Login(worker).Token, `{}`)
	d := c.connect(t)
	d.subscribe(c.subjects[m.GroupID])
	_, url := s.Replica("second")
	s.Stop("authority")
	s.AuthorityURL = url
	m.Expel(worker)
	d.expectCut("the end of the Membership")
}
