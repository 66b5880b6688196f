package testkit_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/wsapi"
)

func TestHandshakeRefusals(t *testing.T) {
	s := testkit.Start(t)
	agent, other := s.Agent("one"), s.Agent("two")
	dial := func() *testkit.Socket { return s.Dial(s.WebSocketURL, agent, "") }

	t.Run("a frame before login is AUTH_REQUIRED", func(t *testing.T) {
		k := dial()
		k.Send("PING", map[string]any{"nonce": testkit.Nonce(), "sentAt": client.Timestamp(time.Now())})
		k.ExpectEnd("AUTH_REQUIRED", 4401)
	})
	t.Run("a broken frame that is no HELLO is out of turn all the same", func(t *testing.T) {
		k := dial()
		k.Write(websocket.MessageText, []byte(`{"protocolVersion":"0.1","frameType":"COMMAND"}`))
		k.ExpectEnd("AUTH_REQUIRED", 4401)
	})
	t.Run("no common version is tested before the structure", func(t *testing.T) {
		k := dial()
		k.Write(websocket.MessageText, []byte(`{"protocolVersion":"0.1","frameType":"HELLO","phase":"client_init","supportedVersions":["0.2"],"x":1}`))
		k.ExpectEnd("UNSUPPORTED_VERSION", 4406)
	})
	t.Run("another fault of structure", func(t *testing.T) {
		k := dial()
		k.Send("HELLO", map[string]any{"phase": "client_init", "supportedVersions": []string{"0.1"}})
		k.ExpectEnd("SCHEMA_VALIDATION_FAILED", 4400)
	})
	t.Run("an unknown key is challenged and then refused neutrally", func(t *testing.T) {
		k := s.Dial(s.WebSocketURL, s.Stranger("nobody"), "")
		own := testkit.Nonce()
		k.Respond(own, k.Init(own))
		k.ExpectEnd("AUTH_INVALID_SIGNATURE", 4403)
	})
	t.Run("a response to another connection's challenge", func(t *testing.T) {
		first, second := dial(), dial()
		own := testkit.Nonce()
		challenge := first.Init(own)
		second.Init(own)
		second.Respond(own, challenge)
		second.ExpectEnd("AUTH_INVALID_SIGNATURE", 4403)
	})
	t.Run("a replayed response", func(t *testing.T) {
		k := dial()
		own := testkit.Nonce()
		challenge := k.Init(own)
		k.Respond(own, challenge)
		k.Accepted(k.Expect("HELLO"))
		k.Respond(own, challenge)
		if e := k.ExpectError("AUTH_INVALID_SIGNATURE", ""); e.Member("fatal").Bool() {
			t.Error("a failed renewal ended the session")
		}
		k.Barrier()
	})
	t.Run("a token of another Agent does not resume", func(t *testing.T) {
		k := s.Dial(s.WebSocketURL, agent, s.Login(other).Token)
		own := testkit.Nonce()
		k.Respond(own, k.Init(own))
		k.ExpectEnd("AUTH_INVALID_SIGNATURE", 4403)
	})
	t.Run("a binary message", func(t *testing.T) {
		k := dial()
		k.Write(websocket.MessageBinary, []byte(`{}`))
		k.ExpectClose(1003)
	})
	t.Run("not UTF-8", func(t *testing.T) {
		k := dial()
		k.Write(websocket.MessageText, []byte("\xff\xfe"))
		k.ExpectClose(1007)
	})
	t.Run("too big", func(t *testing.T) {
		k := dial()
		k.Write(websocket.MessageText, []byte(`"`+strings.Repeat("a", 1<<20)+`"`))
		k.ExpectClose(1009)
	})
}

func TestRefusedUpgradesAreErrorObjects(t *testing.T) {
	s := testkit.Start(t)
	upgrade := map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAECAwQFBgcICQoLDA0ODw==",
	}
	foreign := maps.Clone(upgrade)
	foreign["Origin"] = "https://elsewhere.test"
	old := maps.Clone(upgrade)
	old["Sec-WebSocket-Version"] = "8"
	for name, tc := range map[string]struct {
		query  string
		header map[string]string
		status int
		code   client.Code
	}{
		"no upgrade":     {"", nil, 426, "PROTOCOL_VIOLATION"},
		"old version":    {"", old, 400, "PROTOCOL_VIOLATION"},
		"foreign origin": {"", foreign, 403, "PROTOCOL_VIOLATION"},
		"query":          {"?x=1", upgrade, 400, "SCHEMA_VALIDATION_FAILED"},
	} {
		t.Run(name, func(t *testing.T) {
			s.Do(testkit.Request{Method: "GET", URL: s.AuthorityURL + "/ws" + tc.query, Header: tc.header}).Refused(t, tc.status, tc.code)
		})
	}
}

func TestTooManyConnectionsWithoutLogin(t *testing.T) {
	s := testkit.Start(t)
	agent := s.Agent("one")
	open := make([]*testkit.Socket, 8)
	for i := range open {
		open[i] = s.Dial(s.WebSocketURL, agent, "")
		open[i].Init(testkit.Nonce()) // so that it is counted
	}
	k := s.Dial(s.WebSocketURL, agent, "")
	e := k.ExpectError("RATE_LIMITED", "")
	if ms, _ := e.Member("retryAfterMs").Int(); ms <= 0 {
		t.Errorf("no retryAfterMs: %s", e.Raw())
	}
	k.ExpectClose(4429)
}

func TestHandshakeHasALimit(t *testing.T) {
	s := testkit.Start(t, testkit.Timing(wsapi.Timing{Handshake: 100 * time.Millisecond}))
	k := s.Dial(s.WebSocketURL, s.Agent("one"), "")
	k.ExpectEnd("AUTH_REQUIRED", 4408)
}

func TestTooManyHandshakesOfAnAgent(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(func(p *config.Policy) { p.HellosPerMinute = 2 }))
	agent := s.Agent("one")
	s.Login(agent)
	s.Login(agent)
	k := s.Dial(s.WebSocketURL, agent, "")
	own := testkit.Nonce()
	k.Respond(own, k.Init(own))
	k.ExpectEnd("RATE_LIMITED", 4429)
}

func TestRenewalKeepsTheEpochAndTakeoverRaisesIt(t *testing.T) {
	s := testkit.Start(t)
	agent := s.Agent("one")
	first := s.Login(agent)
	epoch, token := first.Epoch, first.Token

	first.Handshake()
	if first.Epoch != epoch || first.Token == token {
		t.Fatalf("renewal: epoch %d after %d, fresh token %t", first.Epoch, epoch, first.Token != token)
	}
	// The older token of the session still resumes, and closes the connection.
	second := s.Dial(s.WebSocketURL, agent, token)
	second.Handshake()
	if second.Epoch != epoch {
		t.Fatalf("resumed under epoch %d, not %d", second.Epoch, epoch)
	}
	first.ExpectEnd("AUTH_STALE_SESSION", 4409)

	third := s.Login(agent)
	if third.Epoch != epoch+1 {
		t.Fatalf("takeover has epoch %d after %d", third.Epoch, epoch)
	}
	second.ExpectEnd("AUTH_STALE_SESSION", 4409)

	// A fenced runtime cannot take the identity back by accident.
	fenced := s.Dial(s.WebSocketURL, agent, token)
	own := testkit.Nonce()
	fenced.Respond(own, fenced.Init(own))
	fenced.ExpectEnd("AUTH_STALE_SESSION", 4409)
	third.Barrier()
}

func TestRenewalForAnotherAgentIsAViolation(t *testing.T) {
	s := testkit.Start(t)
	agent, other := s.Agent("one"), s.Agent("two")
	k := s.Login(agent)
	id := other.Identity()
	frame := k.Send("HELLO", map[string]any{
		"phase": "client_init", "agentId": id.Principal.ID, "keyId": id.KeyID, "clientNonce": testkit.Nonce(),
		"supportedVersions": []string{"0.1"},
	})
	k.ExpectError("PROTOCOL_VIOLATION", frame)
	k.Barrier()
}

func TestTakeoverClosesConnectionsOfOtherReplicas(t *testing.T) {
	for _, tc := range []struct {
		name  string
		start []testkit.Option
	}{
		{"told by NATS", []testkit.Option{testkit.Timing(wsapi.Timing{Recheck: time.Hour})}},
		{"found in the database", []testkit.Option{testkit.WithoutNATS(), testkit.Timing(wsapi.Timing{Recheck: 50 * time.Millisecond})}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := testkit.Start(t, tc.start...)
			agent := s.Agent("one")
			_, url := s.Replica("second")
			here := s.Login(agent)
			there := s.Dial(testkit.WebSocketURL(url), agent, "")
			there.Handshake()
			here.ExpectEnd("AUTH_STALE_SESSION", 4409)
			back := s.Dial(s.WebSocketURL, agent, there.Token)
			back.Handshake()
			if back.Epoch != there.Epoch {
				t.Errorf("resumed under epoch %d, not %d", back.Epoch, there.Epoch)
			}
			if tc.name == "told by NATS" { // polling cannot see which connection is the newer one
				there.ExpectEnd("AUTH_STALE_SESSION", 4409)
			}
		})
	}
}

func TestSessionEndsWithItsLatestToken(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(func(p *config.Policy) { p.SessionLifeSeconds = 2 }))
	k := s.Login(s.Agent("one"))
	k.Handshake() // renewed: the first expiry passes
	k.ExpectEnd("AUTH_REQUIRED", 4401)
	if early := time.Until(k.ExpiresAt); early > 0 {
		t.Errorf("closed %v before the session's end", early)
	}
}

func TestSilentClientIsClosed(t *testing.T) {
	s := testkit.Start(t, testkit.Timing(wsapi.Timing{Ping: 50 * time.Millisecond, Idle: 300 * time.Millisecond}))
	k := s.Login(s.Agent("one"))
	pings := 0
	for {
		v, closed := k.Read()
		if closed == 4408 {
			break
		}
		if closed != 0 {
			t.Fatalf("closed with %d", closed)
		}
		if v.Member("frameType").Str() == "PING" {
			pings++
		} else if v.Member("error").Member("code").Str() != "AUTH_REQUIRED" {
			t.Fatalf("frame %s", v.Raw())
		}
	}
	if pings == 0 {
		t.Error("the server never asked")
	}
}

func TestDrainingServerClosesWith1001(t *testing.T) {
	s := testkit.Start(t)
	k := s.Login(s.Agent("one"))
	s.Stop("authority")
	k.ExpectClose(1001)
}

func TestMalformedFramesAreCounted(t *testing.T) {
	s := testkit.Start(t)
	k := s.Login(s.Agent("one"))
	for i, bad := range []string{
		`{`, `{"protocolVersion":"0.1","frameType":"PING"}`, `[]`,
		`{"protocolVersion":"0.1","frameId":"urn:x:1","frameType":"EVENT","event":{}}`,
		`{"protocolVersion":"0.1","frameId":"urn:x:2","frameType":"HELLO","phase":"server_accept"}`,
	} {
		k.Write(websocket.MessageText, []byte(bad))
		if e := k.Expect("ERROR").Member("error"); e.Member("fatal").Bool() {
			t.Fatalf("frame %d ended the connection: %s", i+1, e.Raw())
		}
	}
	// A fault inside a nested Command is the Command's.
	id := k.Send("COMMAND", map[string]any{"command": map[string]any{"x": 1}})
	k.ExpectError("SCHEMA_VALIDATION_FAILED", id)
	k.Write(websocket.MessageText, []byte(`{`))
	k.ExpectEnd("PROTOCOL_VIOLATION", 4400)
}
