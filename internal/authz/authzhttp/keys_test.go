package authzhttp_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/client/toolauth"
	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/server"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/testwait"
)

func kid(t *testing.T, token string) string {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[0])
	if err != nil {
		t.Fatal(err)
	}
	var h struct{ Kid string }
	if err := json.Unmarshal(b, &h); err != nil {
		t.Fatal(err)
	}
	return h.Kid
}

// states are the states of published keys by id.
func (s *stand) states() map[string]string {
	s.t.Helper()
	a := s.Do(testkit.Request{Method: "GET", URL: s.AuthzURL + "/.well-known/jwks.json"})
	out := map[string]string{}
	for _, k := range a.Value(s.t).Member("keys").Items() {
		out[k.Member("kid").Str()] = k.Member("state").Str()
	}
	return out
}

func TestKeysRotateWithoutDowntime(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	s.start(3600)
	verifier, err := toolauth.New(toolauth.Options{URL: s.AuthzURL, Audience: s.organization(), RefreshAfter: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	good := func(what, token string) {
		t.Helper()
		if !s.active(token) {
			t.Errorf("%s is not active", what)
		}
		if _, err := verifier.Verify(t.Context(), token, toolauth.Need{Operation: "write", Resource: "urn:repo:app"}); err != nil {
			t.Errorf("%s offline: %v", what, err)
		}
	}
	before := s.token(nil)
	old := kid(t, before.Token)
	done := s.Rotate(server.KeyRotation{Role: registry.RoleAuthorization, After: 4 * time.Second, Grace: time.Hour})
	if done.Replaces != old {
		t.Errorf("replaces %s, not %s", done.Replaces, old)
	}
	testwait.Until(t, "published", func() bool { return s.states()[done.KeyID] != "" })
	if st := s.states(); st[done.KeyID] != authz.KeyPassive || st[old] != authz.KeyActive {
		t.Errorf("before its time: %v", st)
	}
	if g := s.token(nil); kid(t, g.Token) != old {
		t.Error("the new key signs before its time")
	}
	// At no moment is there no token.
	var after granted
	testwait.Until(t, "the new key signs", func() bool {
		after = s.token(nil)
		good("a token of the rotation", after.Token)
		return kid(t, after.Token) == done.KeyID
	})
	if st := s.states(); st[done.KeyID] != authz.KeyActive || st[old] != authz.KeyRetired {
		t.Errorf("after: %v", st)
	}
	good("a token of the retired key", before.Token)
	good("a token of the new key", after.Token)
	s.Stop("authz")
	_, s.AuthzURL = s.AuthzReplica("next")
	if g := s.token(nil); kid(t, g.Token) != done.KeyID {
		t.Error("a restart fell back to the old key")
	}
}

func TestARetiredKeyEnds(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	s.start(3600)
	before := s.token(map[string]any{"ttlSeconds": 900})
	old := kid(t, before.Token)
	s.Rotate(server.KeyRotation{Role: registry.RoleAuthorization, Grace: 6 * time.Second})
	testwait.Until(t, "the old key is gone", func() bool { _, there := s.states()[old]; return !there })
	if s.active(before.Token) {
		t.Error("a token of a key that has ended is active")
	}
	if g := s.token(nil); kid(t, g.Token) == old || !s.active(g.Token) {
		t.Error("no token of the new key")
	}
}

func TestTheIdentityKeyRotatesToo(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	old := kid(t, s.k.Token)
	done := s.Rotate(server.KeyRotation{Role: registry.RoleIdentity, Grace: time.Hour})
	s.start(3600)
	s.token(nil) // the session goes on under the old key
	testwait.Until(t, "sessions under the new key", func() bool {
		return kid(t, s.Login(s.Agent("other")).Token) == done.KeyID
	})
	if kid(t, s.k.Token) != old {
		t.Fatal("the session changed")
	}
	s.token(nil)
}

func (s *stand) organization() string {
	s.t.Helper()
	var id string
	if err := s.Pool.QueryRow(s.t.Context(), `SELECT organization_id FROM organizations`).Scan(&id); err != nil {
		s.t.Fatal(err)
	}
	return id
}

func TestAToolHearsOfARevocationOverNATS(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	s.start(3600)
	conn, err := nats.Connect(s.Settings.NATSURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The list is not fetched again: what the tool learns it hears.
	verifier, err := toolauth.New(toolauth.Options{URL: s.AuthzURL, Audience: s.organization(), RefreshAfter: time.Hour, MaxAge: 2 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan []byte, 1000)
	sub, err := conn.Subscribe(authz.RevokedSubject, func(m *nats.Msg) { heard <- m.Data })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	g, need := s.token(nil), toolauth.Need{Operation: "write", Resource: "urn:repo:app"}
	if _, err := verifier.Verify(t.Context(), g.Token, need); err != nil {
		t.Fatal(err)
	}
	s.m.Expel(s.worker)
	timeout := time.After(testkit.Patience)
	for {
		select {
		case message := <-heard: // other tests share the server
			verifier.Heard(message)
			if strings.Contains(string(message), g.Token) {
				t.Error("a token on the bus")
			}
			if _, err := verifier.Verify(t.Context(), g.Token, need); errors.Is(err, toolauth.ErrRevoked) {
				return
			}
		case <-timeout:
			t.Fatal("nothing was heard")
		}
	}
}

func TestWithoutNATSRevocationsAreFoundAllTheSame(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil, testkit.WithoutNATS())
	s.start(3600)
	g := s.token(nil)
	s.m.Expel(s.worker)
	if s.active(g.Token) {
		t.Error("active")
	}
	testwait.Until(t, "revoked", func() bool { return s.revocations()[g.TokenID] })
}

// The record of Missions is the database. Where it cannot be asked nothing is
// issued, and nothing counts as good.
func TestWithoutTheDatabaseNothingIsIssuedOrGood(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	s.start(3600)
	g := s.token(nil)
	tool := s.Token(s.Registrar)
	name := s.Pool.Config().ConnConfig.Database
	admin, err := pgx.Connect(t.Context(), devstack.ForTest(t).SocketDatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`ALTER DATABASE ` + name + ` ALLOW_CONNECTIONS false`)
	exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`, name)
	for range 3 {
		s.request(nil).Refused(t, 500, "INTERNAL_ERROR")
		s.post("/v1/introspect", tool, map[string]any{"token": g.Token}).Refused(t, 500, "INTERNAL_ERROR")
	}
	exec(`ALTER DATABASE ` + name + ` ALLOW_CONNECTIONS true`)
	testwait.Until(t, "recovered", func() bool { return s.request(nil).Status == 200 })
	if !s.active(g.Token) {
		t.Error("the outage ended a token")
	}
}

// The Authorization Service decides on the log: an Authority that is down can
// close no lease and so changes nothing, and nothing it decided is missed.
func TestTheLogDecidesWhileTheAuthorityIsDown(t *testing.T) {
	t.Parallel()
	s := newStand(t, gated)
	s.grant(client.NewID(), nil)
	s.start(10)
	g := s.token(nil)
	s.Stop("authority")
	if !s.active(g.Token) {
		t.Error("not active")
	}
	testwait.Until(t, "the lease ends by the clock", func() bool { return !s.active(g.Token) })
	s.request(nil).Refused(t, 409, "WORK_LEASE_EXPIRED")
}
