package testkit_test

import (
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/trust"
)

func encode(t *testing.T, v any) []byte {
	t.Helper()
	b, err := strictjson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// hello does the four steps over REST; token renews, "" opens.
func hello(t *testing.T, s *testkit.Stack, agent *client.Client, token string) testkit.Answer {
	t.Helper()
	id, own := agent.Identity(), testkit.Nonce()
	head := func(members map[string]any) []byte {
		members["protocolVersion"], members["frameId"], members["frameType"] = "0.1", client.NewID(), "HELLO"
		members["agentId"], members["keyId"], members["clientNonce"] = id.Principal.ID, id.KeyID, own
		return encode(t, members)
	}
	challenge := s.Do(testkit.Request{
		Method: "POST", URL: s.AuthorityURL + "/v1/sessions",
		Body: head(map[string]any{"phase": "client_init", "supportedVersions": []string{"0.1"}}),
	})
	if challenge.Status != 200 {
		t.Fatalf("challenge: %d %s", challenge.Status, challenge.Body)
	}
	v := challenge.Value(t)
	return s.Do(testkit.Request{
		Method: "POST", URL: s.AuthorityURL + "/v1/sessions/response", Token: token,
		Body: head(map[string]any{
			"phase": "client_response", "serverNonce": v.Member("serverNonce").Str(),
			"challengeSignature": testkit.SignChallenge(t, agent, v.Member("challenge").Str()),
		}),
	})
}

func TestSessionsOverREST(t *testing.T) {
	s := testkit.Start(t)
	agent, other := s.Agent("one"), s.Agent("two")
	epoch := func(a testkit.Answer) int64 {
		t.Helper()
		if a.Status != 200 {
			t.Fatalf("response: %d %s", a.Status, a.Body)
		}
		n, _ := a.Value(t).Member("sessionEpoch").Int()
		return n
	}
	k := s.Login(agent)
	if n := epoch(hello(t, s, agent, k.Token)); n != k.Epoch {
		t.Errorf("renewal has epoch %d, not %d", n, k.Epoch)
	}
	k.Barrier() // a renewal over REST ends no connection
	old := k.Token
	if n := epoch(hello(t, s, agent, "")); n != k.Epoch+1 {
		t.Errorf("a new session has epoch %d after %d", n, k.Epoch)
	}
	k.ExpectEnd("AUTH_STALE_SESSION", 4409)
	hello(t, s, agent, old).Refused(t, 409, "AUTH_STALE_SESSION")
	hello(t, s, agent, s.Login(other).Token).Refused(t, 401, "AUTH_INVALID_SIGNATURE")
	hello(t, s, s.Stranger("nobody"), "").Refused(t, 401, "AUTH_INVALID_SIGNATURE")
}

func TestAccessTokensOfOneServiceAreGoodAtAll(t *testing.T) {
	s := testkit.Start(t)
	id := s.Owner.Identity()
	for _, base := range []string{s.AuthorityURL, s.RegistryURL, s.AuthzURL} {
		post := func(path string, body any) testkit.Answer {
			return s.Do(testkit.Request{Method: "POST", URL: base + path, Body: encode(t, body)})
		}
		ask := map[string]any{"principal": id.Principal, "keyId": id.KeyID, "clientNonce": testkit.Nonce()}
		challenge := post("/v1/access/challenge", ask).Value(t).Member("challenge").Str()
		proof := map[string]any{
			"challenge": challenge, "keyId": id.KeyID, "challengeSignature": testkit.SignChallenge(t, s.Owner, challenge),
		}
		grant := post("/v1/access/token", proof)
		if grant.Status != 200 {
			t.Fatalf("%s: %d %s", base, grant.Status, grant.Body)
		}
		post("/v1/access/token", proof).Refused(t, 401, "AUTH_INVALID_SIGNATURE") // once
		token := grant.Value(t).Member("accessToken").Str()
		for _, url := range []string{s.AuthorityURL + "/v1/missions", s.RegistryURL + "/v1/agent-cards"} {
			if a := s.Do(testkit.Request{Method: "GET", URL: url, Token: token}); a.Status != 200 {
				t.Errorf("%s with a token of %s: %d %s", url, base, a.Status, a.Body)
			}
		}
		post("/v1/access/challenge", map[string]any{}).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	}
}

func TestRegistryWrites(t *testing.T) {
	s := testkit.Start(t)
	registrar := s.Registrar.Identity()
	signer := trust.Signer{KeyID: registrar.KeyID, Principal: registrar.Principal, Private: registrar.Key}
	write := func(path string, body any) testkit.Answer {
		t.Helper()
		signed, err := trust.SignBody(encode(t, body), lexical.FormatMicros(time.Now()), signer)
		if err != nil {
			t.Fatal(err)
		}
		return s.Do(testkit.Request{Method: "POST", URL: s.RegistryURL + path, Token: s.Token(s.Registrar), Body: signed})
	}
	human, err := client.NewIdentity(client.Actor{Type: client.Human, ID: "urn:test:human:written"})
	if err != nil {
		t.Fatal(err)
	}
	binding := client.KeyBinding{
		KeyID: human.KeyID, Principal: human.Principal, Algorithm: "Ed25519", PublicKey: human.PublicKey(),
		ValidFrom: client.Timestamp(time.Now()),
	}
	if a := write("/v1/keys", binding); a.Status != 201 {
		t.Errorf("key: %d %s", a.Status, a.Body)
	}
	end := map[string]any{"validUntil": client.Timestamp(time.Now().Add(time.Hour))}
	if a := write("/v1/keys/"+client.Path(human.KeyID)[1:]+"/validity", end); a.Status != 201 {
		t.Errorf("validity: %d %s", a.Status, a.Body)
	}
	agent, err := client.NewIdentity(client.Actor{Type: client.Agent, ID: "urn:test:agent:written"})
	if err != nil {
		t.Fatal(err)
	}
	if a := write("/v1/agent-cards", map[string]any{"card": s.Card(agent)}); a.Status != 201 {
		t.Errorf("card: %d %s", a.Status, a.Body)
	}
	evidence := s.Do(testkit.Request{Method: "GET", URL: s.RegistryURL + "/v1/registry/evidence", Token: s.Token(s.Registrar)})
	if evidence.Status != 200 {
		t.Errorf("evidence: %d %s", evidence.Status, evidence.Body)
	}
	if a := s.Do(testkit.Request{Method: "GET", URL: s.AuthzURL + "/.well-known/jwks.json"}); a.Status != 200 || a.Value(t).Member("keys").Len() == 0 {
		t.Errorf("key set: %d %s", a.Status, a.Body)
	}
}
