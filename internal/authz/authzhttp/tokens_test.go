package authzhttp_test

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/testwait"
)

func claims(t *testing.T, token string) map[string]any {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("not a compact JWS: %s", token)
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestACapabilityTokenSaysWhatItIsBoundTo(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	s.start(3600)
	before := time.Now()
	g := s.token(nil)
	c := claims(t, g.Token)
	want := map[string]any{
		"sub": s.worker.Principal().ID, "jti": g.TokenID, "groupId": s.m.GroupID, "missionId": s.m.MissionID,
		"workItemId": s.item, "ownershipEpoch": 1.0, "executionLeaseId": s.lease, "sessionEpoch": float64(s.k.Epoch),
		"membershipEpoch": 1.0,
	}
	for name, v := range want {
		if c[name] != v {
			t.Errorf("%s is %v, want %v", name, c[name], v)
		}
	}
	budget, _ := c["budget"].(map[string]any)
	if budget["modelTokenLimit"] != 1000.0 || budget["financialLimit"] != 1.0 || budget["currency"] != "EUR" || budget["toolCallLimit"] != 0.0 || len(budget) != 7 {
		t.Errorf("six dimensions, as the contract has them: %v", budget)
	}
	if cnf, _ := c["cnf"].(map[string]any); len(cnf["jkt"].(string)) != 43 {
		t.Errorf("no key thumbprint: %v", c["cnf"])
	}
	// 300 s are the default, and the session's end is no later than its own.
	if at := s.expires(g); at.Before(before.Add(299*time.Second)) || at.After(time.Now().Add(300*time.Second)) {
		t.Errorf("expires %s", at)
	}
	v := s.introspect(g.Token)
	if !v.Member("active").Bool() || v.Member("token_type").Str() != "mw-capability+jwt" || v.Member("jti").Str() != g.TokenID {
		t.Errorf("introspection: %s", v.Raw())
	}
	if got := s.decisions(g.TokenID); !slices.Equal(got, []string{"issued"}) {
		t.Errorf("Policy Log: %v", got)
	}
	var hits int
	if err := s.Pool.QueryRow(t.Context(), `SELECT count(*) FROM policy_decisions WHERE position($1::bytea in input) > 0
		OR position($1::bytea in result) > 0`, []byte(g.Token)).Scan(&hits); err != nil || hits != 0 {
		t.Errorf("the token stands in the Policy Log: %d %v", hits, err)
	}
}

func TestATokenEndsWithTheFirstOfItsBounds(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(c *client.WorkContract) { c.ExecutionApproval = "human_required" },
		testkit.Policy(func(p *config.Policy) { p.CapabilityTokenMaxSeconds = 120 }))
	approved := time.Now().Add(100 * time.Second)
	s.grant(client.NewID(), map[string]any{"expiresAt": client.Timestamp(approved)})
	s.start(60)
	lease := time.Now().Add(60 * time.Second)
	for _, c := range []struct {
		ttl  any
		most time.Time
	}{
		{1, time.Now().Add(2 * time.Second)},
		{nil, lease},
		{900, lease},
	} {
		if at := s.expires(s.token(map[string]any{"ttlSeconds": c.ttl})); at.After(c.most) {
			t.Errorf("ttl %v: expires %s, after %s", c.ttl, at, c.most)
		}
	}
	s.must(client.Command{Kind: "ext.missionweaveprotocol.core.work_execution_lease_renew"}, map[string]any{
		"ownershipEpoch": 1, "executionLeaseId": s.lease, "leaseSeconds": 3600,
	})
	if at := s.expires(s.token(map[string]any{"ttlSeconds": 900})); at.After(approved) || at.Before(approved.Add(-20*time.Second)) {
		t.Errorf("with a long lease the approval is the bound: %s, want %s", at, approved)
	}
	for _, ttl := range []any{0, 901, -1, 1.5, "60"} {
		s.request(map[string]any{"ttlSeconds": ttl}).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	}
}

func TestASettingBoundsALife(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil, testkit.Policy(func(p *config.Policy) { p.CapabilityTokenMaxSeconds = 5 }))
	s.start(3600)
	if at := s.expires(s.token(map[string]any{"ttlSeconds": 900})); at.After(time.Now().Add(5 * time.Second)) {
		t.Errorf("expires %s", at)
	}
}

func TestTokensAreRefused(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	stranger := s.Agent("stranger")
	strange := s.Login(stranger)
	never := s.Agent("never")
	s.m.Admit(never, "worker", 0)
	neverSession := s.Login(never)

	s.request(nil).Refused(t, 409, "WORK_LEASE_EXPIRED")
	s.start(3600)
	for _, c := range []struct {
		rule   string
		status int
		code   client.Code
		more   map[string]any
	}{
		{"unknown Group", 404, "GROUP_NOT_FOUND", map[string]any{"groupId": client.NewID()}},
		{"unknown work", 422, "INVALID_COMMAND", map[string]any{"workItemId": client.NewID()}},
		{"old Ownership Epoch", 409, "WORK_STALE_OWNERSHIP", map[string]any{"ownershipEpoch": 2}},
		{"another lease", 409, "WORK_LEASE_EXPIRED", map[string]any{"executionLeaseId": client.NewID()}},
		{"an operation beyond the contract", 403, "AUTH_FORBIDDEN", map[string]any{"operations": []string{"delete"}}},
		{"a resource beyond the contract", 403, "AUTH_FORBIDDEN", map[string]any{"resources": []string{"urn:repo:other"}}},
		{"a budget beyond the contract", 409, "BUDGET_EXCEEDED", map[string]any{"budget": map[string]any{"modelTokenLimit": 1001}}},
		{"another currency", 422, "INVALID_COMMAND", map[string]any{"budget": map[string]any{"currency": "USD", "financialLimit": 0.5}}},
		{"an unknown approval", 422, "INVALID_COMMAND", map[string]any{"approvalId": client.NewID()}},
		{"no operation", 400, "SCHEMA_VALIDATION_FAILED", map[string]any{"operations": []string{}}},
		{"an operation twice", 400, "SCHEMA_VALIDATION_FAILED", map[string]any{"operations": []string{"write", "write"}}},
		{"a missing member", 400, "SCHEMA_VALIDATION_FAILED", map[string]any{"resources": nil}},
		{"an unknown member", 400, "SCHEMA_VALIDATION_FAILED", map[string]any{"agentId": "urn:x:a"}},
		{"epoch 0", 400, "SCHEMA_VALIDATION_FAILED", map[string]any{"ownershipEpoch": 0}},
	} {
		t.Run(c.rule, func(t *testing.T) { s.request(c.more).Refused(t, c.status, c.code) })
	}
	path := "/v1/capability-tokens"
	s.post(path, "", s.ask(nil)).Refused(t, 401, "AUTH_REQUIRED")
	s.post(path, "nonsense", s.ask(nil)).Refused(t, 401, "AUTH_REQUIRED")
	s.post(path, s.Token(s.worker), s.ask(nil)).Refused(t, 403, "AUTH_FORBIDDEN")
	s.post(path, s.Token(s.m.Owner), s.ask(nil)).Refused(t, 403, "AUTH_FORBIDDEN")
	s.post(path, strange.Token, s.ask(nil)).Refused(t, 404, "GROUP_NOT_FOUND")
	s.post(path, neverSession.Token, s.ask(nil)).Refused(t, 403, "AUTH_FORBIDDEN")
	s.post(path, s.m.Lead.Token, s.ask(nil)).Refused(t, 403, "AUTH_FORBIDDEN") // the Coordinator gets no Worker's token

	if got := s.decisions(""); !slices.Contains(got, "refused GROUP_NOT_FOUND") || !slices.Contains(got, "refused BUDGET_EXCEEDED") {
		t.Errorf("refusals are decisions: %v", got)
	}
	if len(s.token(nil).Token) == 0 {
		t.Error("none after refusals")
	}
}

func TestAnEarlierSessionGetsNoToken(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	s.start(3600)
	old := s.k.Token
	g := s.token(nil)
	s.k = s.Login(s.worker)
	s.post("/v1/capability-tokens", old, s.ask(nil)).Refused(t, 409, "AUTH_STALE_SESSION")
	s.request(nil).Refused(t, 409, "WORK_LEASE_EXPIRED") // the takeover revoked it
	if s.active(g.Token) {
		t.Error("the token outlived its session")
	}
	testwait.Until(t, "revoked", func() bool { return s.revocations()[g.TokenID] })
}

func TestBudgetIsWhatRemains(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	s.start(3600)
	s.must(client.Command{Kind: "ext.missionweaveprotocol.core.resource_usage_record"}, map[string]any{
		"ownershipEpoch": 1, "executionLeaseId": s.lease, "usageDelta": map[string]any{"modelTokens": 400},
	})
	g := s.token(nil)
	if b := claims(t, g.Token)["budget"].(map[string]any); b["modelTokenLimit"] != 600.0 {
		t.Errorf("%v", b)
	}
	s.request(map[string]any{"budget": map[string]any{"modelTokenLimit": 601}}).Refused(t, 409, "BUDGET_EXCEEDED")
	narrow := s.token(map[string]any{"budget": map[string]any{"modelTokenLimit": 5}})
	if b := claims(t, narrow.Token)["budget"].(map[string]any); b["modelTokenLimit"] != 5.0 || b["financialLimit"] != 0.0 {
		t.Errorf("an absent dimension is zero: %v", b)
	}
	s.must(client.Command{Kind: "ext.missionweaveprotocol.core.resource_usage_record"}, map[string]any{
		"ownershipEpoch": 1, "executionLeaseId": s.lease, "usageDelta": map[string]any{"modelTokens": 600},
	})
	s.request(nil).Refused(t, 409, "BUDGET_EXCEEDED")
	if s.active(g.Token) {
		t.Error("a token of an exhausted budget is active")
	}
	testwait.Until(t, "revoked", func() bool { return s.revocations()[g.TokenID] && s.revocations()[narrow.TokenID] })
	if got := s.decisions(g.TokenID); !slices.Equal(got, []string{"issued", "revoked BUDGET_EXCEEDED"}) {
		t.Errorf("Policy Log: %v", got)
	}
}

func TestMembershipTokens(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	path := "/v1/membership-tokens"
	body := map[string]any{"groupId": s.m.GroupID}
	a := s.post(path, s.k.Token, body)
	if a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	token, id := a.Value(t).Member("token").Str(), a.Value(t).Member("tokenId").Str()
	c := claims(t, token)
	scopes, _ := c["scopes"].([]any)
	if c["role"] != "worker" || c["membershipEpoch"] != 1.0 || c["sessionEpoch"] != float64(s.k.Epoch) || !slices.Contains(scopes, any("work.execute")) || c["workItemId"] != nil {
		t.Errorf("%v", c)
	}
	if !s.active(token) {
		t.Error("not active")
	}
	s.post(path, s.k.Token, map[string]any{"groupId": client.NewID()}).Refused(t, 404, "GROUP_NOT_FOUND")
	s.post(path, s.Login(s.Agent("stranger")).Token, body).Refused(t, 404, "GROUP_NOT_FOUND")
	s.post(path, s.Token(s.worker), body).Refused(t, 403, "AUTH_FORBIDDEN")
	s.m.Expel(s.worker)
	s.post(path, s.k.Token, body).Refused(t, 403, "MEMBERSHIP_REQUIRED")
	if s.active(token) {
		t.Error("active after the Membership ended")
	}
	testwait.Until(t, "revoked", func() bool { return s.revocations()[id] })
}

func TestALapsedLeaseEndsItsToken(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	s.start(1)
	g := s.token(nil)
	if at := s.expires(g); at.After(time.Now().Add(time.Second)) {
		t.Errorf("expires %s", at)
	}
	testwait.Until(t, "expired", func() bool { return !s.active(g.Token) })
	s.request(nil).Refused(t, 409, "WORK_LEASE_EXPIRED")
}

func TestRevocationAndIntrospectionByForm(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	s.start(3600)
	form := func(path, bearer, body string) testkit.Answer {
		return s.Do(testkit.Request{
			Method: "POST", URL: s.AuthzURL + path, Token: bearer, Body: []byte(body),
			Header: map[string]string{"Content-Type": "application/x-www-form-urlencoded"},
		})
	}
	mine, other := s.token(nil), s.token(nil)
	if mine.TokenID == other.TokenID {
		t.Error("two tokens of one id")
	}
	tool := s.Token(s.Registrar)
	if a := form("/v1/introspect", tool, "token="+mine.Token+"&token_type_hint=access_token"); a.Status != 200 || !a.Value(t).Member("active").Bool() {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	// Others learn nothing, and cannot end what is not theirs.
	if a := form("/v1/introspect", s.Token(s.m.Owner), "token="+mine.Token); a.Status != 200 || string(a.Body) != `{"active":false}` {
		t.Errorf("to a human: %d %s", a.Status, a.Body)
	}
	// A human of the same id is another Principal.
	twin := s.Twin(s.worker)
	if a := form("/v1/introspect", s.Token(twin), "token="+mine.Token); a.Status != 200 || string(a.Body) != `{"active":false}` {
		t.Errorf("to a human who bears the Agent's id: %d %s", a.Status, a.Body)
	}
	form("/v1/revoke", s.Token(twin), "token="+mine.Token).Refused(t, 403, "AUTH_FORBIDDEN")
	if a := form("/v1/introspect", s.k.Token, "token="+mine.Token); !a.Value(t).Member("active").Bool() {
		t.Errorf("to its holder: %d %s", a.Status, a.Body)
	}
	form("/v1/introspect", "", "token="+mine.Token).Refused(t, 401, "AUTH_REQUIRED")
	form("/v1/introspect", tool, "").Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	form("/v1/introspect", tool, "token=a&token=b").Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	form("/v1/revoke", s.m.Lead.Token, "token="+mine.Token).Refused(t, 403, "AUTH_FORBIDDEN")
	if !s.active(mine.Token) {
		t.Error("ended by somebody else")
	}
	for range 2 { // twice is once
		if a := form("/v1/revoke", s.k.Token, "token="+mine.Token); a.Status != 200 {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
	if s.active(mine.Token) || !s.active(other.Token) {
		t.Error("revocation hit the wrong token")
	}
	if !s.revocations()[mine.TokenID] || s.revocations()[other.TokenID] {
		t.Errorf("%v", s.revocations())
	}
	if got := s.decisions(mine.TokenID); !slices.Equal(got, []string{"issued", "revoked"}) {
		t.Errorf("Policy Log: %v", got)
	}
	for _, bad := range []string{"garbage", "a.b.c", strings.Repeat("x", 20<<10), mine.Token + "x", s.k.Token, s.Token(s.worker)} {
		if a := form("/v1/revoke", tool, "token="+bad); a.Status != 200 {
			t.Errorf("revoke %.20s: %d %s", bad, a.Status, a.Body)
		}
		if a := form("/v1/introspect", tool, "token="+bad); a.Status != 200 || string(a.Body) != `{"active":false}` {
			t.Errorf("introspect %.20s: %d %s", bad, a.Status, a.Body)
		}
	}
	s.Do(testkit.Request{
		Method: "POST", URL: s.AuthzURL + "/v1/introspect", Token: tool, Body: []byte("<token/>"),
		Header: map[string]string{"Content-Type": "application/xml"},
	}).Refused(t, 415, "PROTOCOL_VIOLATION")
}

func TestATokenOpensNothingElse(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	s.start(3600)
	g := s.token(nil)
	s.post("/v1/capability-tokens", g.Token, s.ask(nil)).Refused(t, 401, "AUTH_REQUIRED")
	s.Do(testkit.Request{Method: "GET", URL: s.AuthorityURL + client.Path("v1", "groups", s.m.GroupID), Token: g.Token}).Refused(t, 401, "AUTH_REQUIRED")
	page := s.Get(s.m.Owner, client.Path("v1", "groups", s.m.GroupID, "events")+"?limit=1000")
	if strings.Contains(string(page.Body), g.Token) || strings.Contains(string(page.Body), g.TokenID) {
		t.Error("a token stands in the log")
	}
}

func TestAnApprovalOfOneActionGivesOneToken(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(c *client.WorkContract) { c.ExecutionApproval = "human_required" })
	approval := client.NewID()
	s.grant(approval, map[string]any{"argumentsDigest": "sha256:" + strings.Repeat("a", 64)})
	s.start(3600)
	_, url := s.AuthzReplica("second")
	const racers = 12
	answers := make([]testkit.Answer, racers)
	body, err := json.Marshal(s.ask(nil))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range racers {
		base := []string{s.AuthzURL, url}[i%2]
		wg.Go(func() {
			answers[i] = s.Do(testkit.Request{Method: "POST", URL: base + "/v1/capability-tokens", Token: s.k.Token, Body: body})
		})
	}
	wg.Wait()
	var won []string
	for _, a := range answers {
		if a.Status == 200 {
			won = append(won, a.Value(t).Member("token").Str())
			continue
		}
		a.Refused(t, 403, "APPROVAL_REQUIRED")
	}
	if len(won) != 1 {
		t.Fatalf("%d tokens from one approval", len(won))
	}
	c := claims(t, won[0])
	if c["approvalId"] != approval || c["oneShot"] != true || c["argumentsDigest"] != "sha256:"+strings.Repeat("a", 64) {
		t.Errorf("%v", c)
	}
	// Neither a restart nor a revocation gives a second one.
	s.Stop("authz")
	_, s.AuthzURL = s.AuthzReplica("restarted")
	s.request(nil).Refused(t, 403, "APPROVAL_REQUIRED")
	s.request(map[string]any{"approvalId": approval}).Refused(t, 403, "APPROVAL_REQUIRED")
	if !s.active(won[0]) {
		t.Error("the one token died with the process that made it")
	}
}
