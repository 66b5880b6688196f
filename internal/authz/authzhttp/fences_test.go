package authzhttp_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/testwait"
	"github.com/missionweave/server/internal/trust"
)

// Fences end tokens: for whoever asks online with the commit of what set it,
// for everybody else as soon as they hear of it over NATS or fetch the list.

// listen hears revocations.
func (s *stand) listen() (heard func(tokenID string) (reason string)) {
	s.t.Helper()
	conn, err := nats.Connect(s.Settings.NATSURL)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(conn.Close)
	messages := make(chan *nats.Msg, 10_000) // other tests share the server
	if _, err := conn.ChanSubscribe(authz.RevokedSubject, messages); err != nil {
		s.t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		s.t.Fatal(err)
	}
	return func(tokenID string) string {
		s.t.Helper()
		for timeout := time.After(testkit.Patience); ; {
			select {
			case m := <-messages:
				var r struct{ TokenID, Reason, RevokedAt, ExpiresAt string }
				if err := json.Unmarshal(m.Data, &r); err != nil {
					s.t.Fatalf("%v in %s", err, m.Data)
				}
				if r.TokenID == tokenID {
					if r.RevokedAt == "" || r.ExpiresAt == "" {
						s.t.Errorf("incomplete: %s", m.Data)
					}
					return r.Reason
				}
			case <-timeout:
				s.t.Fatal("nothing was heard")
			}
		}
	}
}

// signedBody posts a body that a Principal signed.
func (s *stand) signedBody(who *client.Client, path string, members map[string]any) testkit.Answer {
	s.t.Helper()
	plain, err := json.Marshal(members)
	if err != nil {
		s.t.Fatal(err)
	}
	id := who.Identity()
	body, err := trust.SignBody(plain, client.Timestamp(time.Now()), trust.Signer{KeyID: id.KeyID, Principal: id.Principal, Private: id.Key})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.Do(testkit.Request{Method: "POST", URL: s.AuthzURL + path, Token: s.Token(who), Body: body})
}

const anyManifest = `{"format":"worldmanifest/1","name":"any","version":"1","trust_channels":{"user":"trusted"},"capabilities":["read"],
	"capability_matrix":{"trusted":["read"]},"actions":{"look":{"requires":["read"]}}}`

// cancelled ends the Mission.
func cancelled(s *stand) {
	s.t.Helper()
	cmd := client.Command{Kind: "mission.cancel", GroupID: s.m.GroupID, MembershipEpoch: 1}
	s.accepted("cancel", s.Post(s.Sign(s.m.Owner, cmd, map[string]any{"reason": "x"})))
}

// either is a Membership Token or a Capability Token of the Worker.
func (s *stand) either(member bool) granted {
	s.t.Helper()
	if !member {
		return s.token(nil)
	}
	a := s.post("/v1/membership-tokens", s.k.Token, map[string]any{"groupId": s.m.GroupID})
	if a.Status != 200 {
		s.t.Fatalf("membership token: %d %s", a.Status, a.Body)
	}
	v := a.Value(s.t)
	return granted{v.Member("token").Str(), v.Member("tokenId").Str(), v.Member("expiresAt").Str()}
}

func TestFencesEndTokensAtOnce(t *testing.T) {
	t.Parallel()
	var manifest string // installed by one of the cases, in a database of its own
	for rule, tc := range map[string]struct {
		contract func(*client.WorkContract)
		member   bool           // a Membership Token
		before   func(s *stand) // before the work starts
		fence    func(s *stand)
		reason   string
	}{
		"lease closed": {fence: func(s *stand) {
			s.must(client.Command{Kind: "work.checkpoint"}, map[string]any{
				"ownershipEpoch": 1, "executionLeaseId": s.lease, "progress": map[string]any{
					"currentPhase": "x", "completedMilestones": []string{}, "nextCheckpoint": "y", "blockers": []string{},
					"updatedCompletionEstimate": client.Timestamp(time.Now().Add(time.Hour)), "evidenceIds": []string{},
				},
			})
		}, reason: "WORK_LEASE_EXPIRED"},
		"session replaced":   {fence: func(s *stand) { s.k = s.Login(s.worker) }, reason: "AUTH_STALE_SESSION"},
		"Membership changed": {fence: func(s *stand) { s.m.Admit(s.worker, "reviewer", 0) }, reason: "MEMBERSHIP_STALE"},
		"Membership ended":   {fence: func(s *stand) { s.m.Expel(s.worker) }, reason: "MEMBERSHIP_REQUIRED"},
		"approval revoked": {contract: gated, before: func(s *stand) { s.grant("urn:test:approval", nil) }, fence: func(s *stand) {
			s.accepted("revoke", s.revoke(s.m.Owner, "urn:test:approval"))
		}, reason: "APPROVAL_REQUIRED"},
		"Mission ended":               {fence: cancelled, member: true, reason: "INVALID_STATE_TRANSITION"},
		"Mission ended with its work": {fence: cancelled, reason: "WORK_STALE_OWNERSHIP"},
		"work cancelled": {fence: func(s *stand) {
			s.m.Do(client.Command{Kind: "work.cancel", WorkItemID: s.item}, map[string]any{"reason": "x"})
		}, reason: "WORK_STALE_OWNERSHIP"},
		"budget exhausted": {fence: func(s *stand) {
			s.must(client.Command{Kind: "ext.missionweaveprotocol.core.resource_usage_record"}, map[string]any{
				"ownershipEpoch": 1, "executionLeaseId": s.lease, "usageDelta": map[string]any{"modelTokens": 1000},
			})
		}, reason: "BUDGET_EXCEEDED"},
		"manifest withdrawn": {before: func(s *stand) {
			a := s.signedBody(s.As("policy"), "/v1/manifests", map[string]any{"name": "any", "format": "json", "manifest": anyManifest})
			s.accepted("install", a)
			manifest = a.Value(s.t).Member("version").Str()
		}, fence: func(s *stand) {
			if a := s.signedBody(s.As("policy"), client.Path("v1", "manifests", manifest)+":withdraw", map[string]any{"reason": "x"}); a.Status != 200 {
				s.t.Fatalf("withdraw: %d %s", a.Status, a.Body)
			}
		}, reason: "manifest_withdrawn"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, tc.contract)
			if tc.before != nil {
				tc.before(s)
			}
			s.start(3600)
			heard := s.listen()
			g := s.either(tc.member)
			if !s.active(g.Token) {
				t.Fatal("not active before")
			}
			tc.fence(s)
			if s.active(g.Token) {
				t.Error("active after the fence")
			}
			if reason := heard(g.TokenID); reason != tc.reason {
				t.Errorf("ended by %s, want %s", reason, tc.reason)
			}
			testwait.Until(t, "on the revocation list", func() bool { return s.revocations()[g.TokenID] })
			if got := s.decisions(g.TokenID); len(got) != 2 || !strings.HasPrefix(got[1], "revoked ") {
				t.Errorf("Policy Log: %v", got)
			}
		})
	}
}

// Rows of tokens go a day after the token, and nobody notices.
func TestATokenAndItsRevocationAreForgottenADayAfterTheEnd(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	s.start(3600)
	plain, revoked := s.token(nil), s.token(nil)
	if a := s.post("/v1/revoke", s.k.Token, map[string]any{"token": revoked.Token}); a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	rows := func() (n int) {
		t.Helper()
		err := s.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM issued_tokens) + (SELECT count(*) FROM token_revocations)`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := rows(); n != 3 {
		t.Fatalf("%d rows", n)
	}
	exec := func(sql string) error {
		_, err := s.Pool.Exec(t.Context(), sql)
		return err
	}
	for _, sql := range []string{`DELETE FROM issued_tokens`, `DELETE FROM token_revocations`, `UPDATE issued_tokens SET kind = kind`} {
		if exec(sql) == nil {
			t.Errorf("%s was not refused", sql)
		}
	}
	store, err := events.Open(t.Context(), s.Settings.DatabaseURL, events.Options{OrganizationID: s.organization()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	service := authz.New(authz.Config{Store: store, Now: time.Now, Mint: client.NewID})
	forget := func(want int64) {
		t.Helper()
		if n, err := service.Forget(t.Context()); err != nil || n != want {
			t.Errorf("forgot %d rows, want %d: %v", n, want, err)
		}
	}
	forget(0)
	// Two days later, as far as the rows say: the triggers keep everybody else from
	// dating them back.
	for _, table := range []string{"issued_tokens", "token_revocations"} {
		for _, sql := range []string{
			`ALTER TABLE ` + table + ` DISABLE TRIGGER ` + table + `_kept`,
			`UPDATE ` + table + ` SET expires_at = expires_at - interval '2 days'`,
			`ALTER TABLE ` + table + ` ENABLE TRIGGER ` + table + `_kept`,
		} {
			if err := exec(sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := exec(`INSERT INTO issued_tokens SELECT 'urn:test:one-shot', kind, group_id, agent_id, key_id, session_epoch, membership_epoch, work_item_id,
		ownership_epoch, execution_lease_id, 'urn:test:approval', true, manifest_version, signing_key_id, issued_at, expires_at FROM issued_tokens LIMIT 1`); err != nil {
		t.Fatal(err)
	}
	forget(3)
	forget(0)
	if n := rows(); n != 1 {
		t.Errorf("%d rows are left, want that of the approval for one use", n)
	}
	if exec(`DELETE FROM issued_tokens`) == nil {
		t.Error("the row of an approval for one use was deleted")
	}
	// Nothing changed for whoever holds a token; the Policy Log remembers.
	for _, g := range []granted{plain, revoked} {
		if s.active(g.Token) {
			t.Error("active without a row")
		}
		if len(s.decisions(g.TokenID)) == 0 {
			t.Error("the log forgot a token")
		}
	}
	s.token(nil)
}
