package policyhttp_test

import (
	"strings"
	"testing"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testwait"
)

// What a crash of the Authorization Service, or an Authority out of reach, leaves of
// an approval for one use.

// one is a number that the database knows.
func (s *stand) one(sql string, args ...any) (n int) {
	s.t.Helper()
	if err := s.Pool.QueryRow(s.t.Context(), sql, args...).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *stand) consumed(want int) {
	s.t.Helper()
	if n := s.one(`SELECT count(*) FROM events WHERE kind = 'ext.missionweave.approval.action_consumed'`); n != want {
		s.t.Errorf("consumed %d times, want %d", n, want)
	}
}

// traces are what a decision about an action leaves: Policy Log entries and evidence
// records with an ALLOW.
func (s *stand) allowed(body map[string]any, want int) {
	s.t.Helper()
	logged := s.one(`SELECT count(*) FROM policy_decisions WHERE subject_id = $1 AND category = 'action' AND outcome = 'allow'`, body["actionId"])
	states := s.one(`SELECT count(*) FROM proposed_actions WHERE action_id = $1 AND state = 'allowed' AND evidence_record_id IS NOT NULL`, body["actionId"])
	if logged != want || states != want {
		s.t.Errorf("%d ALLOWs in the Policy Log and %d rows, want %d", logged, states, want)
	}
}

func (s *stand) state(body map[string]any) (state string) {
	s.t.Helper()
	err := s.Pool.QueryRow(s.t.Context(), `SELECT coalesce((SELECT state FROM proposed_actions WHERE action_id = $1), '')`, body["actionId"]).Scan(&state)
	if err != nil {
		s.t.Fatal(err)
	}
	return state
}

// flight is an action that a human has allowed once.
func (s *stand) flight() (body map[string]any) {
	s.t.Helper()
	s.install(assistant)
	body = s.action("fly", map[string]any{"far": true}, []string{s.input("user", "fly")}, map[string]any{"mode": "interactive"})
	asked := s.decided(body, "ASK", "Uncovered")
	s.approve(asked, "one_shot")
	body["approvalRequestId"] = asked.Member("approvalRequest").Member("requestId").Str()
	return body
}

// second is another action that would use the same answer.
func (s *stand) second(first map[string]any) map[string]any {
	s.t.Helper()
	return s.action("fly", map[string]any{"far": true}, first["provenance"].([]string), map[string]any{
		"mode": "interactive", "approvalRequestId": first["approvalRequestId"],
	})
}

func TestAKillAfterTheApprovalLeavesItToBeUsedOnce(t *testing.T) {
	t.Parallel()
	a := newApart(t)
	body := a.flight()
	a.kill()
	a.run()
	a.consumed(0)
	a.decided(body, "ALLOW", "OneShotApproval")
	a.decided(body, "ALLOW", "OneShotApproval") // the same answer again
	a.decided(a.second(body), "DENY", "Uncovered")
	a.consumed(1)
	a.allowed(body, 1)
}

func TestAKillBetweenDecisionAndConsumptionLeavesTheApprovalToBeUsedOnce(t *testing.T) {
	t.Parallel()
	a := newApart(t)
	body := a.flight()
	a.valve.set(true, false)
	status := a.try(body)
	a.valve.wait()
	a.kill()
	if got := <-status; got != 0 {
		t.Errorf("answered %d before the use was in the log", got)
	}
	if got := a.state(body); got != "consuming" {
		t.Fatalf("state %q", got)
	}
	a.allowed(body, 0)
	a.consumed(0)
	a.valve.set(false, false)
	a.run()
	body["capabilityToken"] = a.token()
	a.decided(body, "ALLOW", "OneShotApproval")
	a.decided(a.second(body), "DENY", "Uncovered")
	a.consumed(1)
	a.allowed(body, 1)
}

func TestAKillAfterTheConsumptionIsRecordedByItself(t *testing.T) {
	t.Parallel()
	a := newApart(t)
	body := a.flight()
	a.valve.set(false, true)
	a.try(body)
	a.valve.wait()
	a.kill()
	a.consumed(1)
	a.allowed(body, 0)
	a.valve.close() // the log is enough
	a.run()
	testwait.Until(t, "the use is recorded", func() bool { return a.state(body) == "allowed" })
	a.allowed(body, 1)
	a.decided(body, "ALLOW", "OneShotApproval")
	a.decided(a.second(body), "DENY", "Uncovered")
	a.consumed(1)
}

// interrupted kills the service while a use is on its way to the log, which does
// not get it, and starts it again.
func (a *apart) interrupted() (body map[string]any) {
	a.t.Helper()
	body = a.flight()
	a.valve.set(true, false)
	a.try(body)
	a.valve.wait()
	a.kill()
	a.valve.set(false, false)
	a.run()
	return body
}

func TestAnInterruptedUseIsDecidedAgain(t *testing.T) {
	t.Parallel()
	for rule, tc := range map[string]struct {
		change        func(a *apart)
		decision, why string
	}{
		"a rule that was added": {func(a *apart) {
			a.install(strings.Replace(assistant, "escalations:", "rules:\n  - {id: grounded, effect: deny, condition: {action: read_email}}\nescalations:", 1))
		}, "DENY", "Uncovered"}, // the answer was given under another version
		"the manifest withdrawn": {func(a *apart) {
			version := a.install(assistant)
			if w := a.signed(a.keeper, client.Path("v1", "manifests", version)+":withdraw", map[string]any{"reason": "a mistake"}); w.Status != 200 {
				a.t.Fatalf("%d %s", w.Status, w.Body)
			}
		}, "DENY", "ManifestInvalid"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			a := newApart(t)
			body := a.interrupted()
			tc.change(a)
			body["capabilityToken"] = a.token()
			a.decided(body, tc.decision, tc.why)
			a.consumed(0)
			a.allowed(body, 0)
		})
	}
}

func TestAnInterruptedUseThatNobodyAsksForEndsDenied(t *testing.T) {
	t.Parallel()
	a := newApart(t)
	body := a.interrupted()
	a.k = a.Login(a.worker) // the new session ends the lease
	testwait.Until(t, "denied", func() bool { return a.state(body) == "denied" })
	a.consumed(0)
}

func TestWithTheAuthorityAwayNothingIsAskedAndTheASKIsSentByItself(t *testing.T) {
	t.Parallel()
	a := newApart(t)
	a.install(assistant)
	body := a.action("fly", map[string]any{}, []string{a.input("user", "fly")}, map[string]any{"mode": "interactive"})
	a.valve.close()
	for range 2 {
		if v := a.propose(body).Refused(t, 500, "INTERNAL_ERROR"); !v.Member("retryable").Bool() {
			t.Errorf("not retryable: %s", v.Raw())
		}
	}
	if got := a.state(body); got != "asking" {
		t.Errorf("state %q", got)
	}
	if n := a.one(`SELECT count(*) FROM events WHERE kind = 'ext.missionweave.approval.action_requested'`); n != 0 {
		t.Errorf("%d requests in the log", n)
	}
	// Row, log entry and evidence record of the ASK are one: there are all three.
	if n := a.one(`SELECT count(*) FROM policy_decisions d JOIN proposed_actions p ON p.action_id = d.subject_id
		WHERE p.action_id = $1 AND d.category = 'action' AND d.outcome = 'ask' AND p.evidence_record_id IS NOT NULL`, body["actionId"]); n != 1 {
		t.Errorf("%d records of the ASK", n)
	}
	a.allowed(body, 0)
	// An action that needs nobody's answer rests on the log alone, and the log can be
	// read.
	user := body["provenance"].([]string)
	a.decided(a.action("send_email", map[string]any{"to": "a@example.org"}, user, nil), "ALLOW", "Covered")

	a.valve.open()
	var asked strictjson.Value
	testwait.Until(t, "the ASK waits for the owner", func() bool {
		for _, w := range a.Get(a.m.Owner, "/v1/approvals?state=pending").Value(t).Member("items").Items() {
			if asked = w.Member("request"); asked.Member("actionId").Str() == body["actionId"] {
				return true
			}
		}
		return false
	})
	v := a.decided(body, "ASK", "Uncovered")
	if v.Member("approvalRequest").Member("requestId").Str() != asked.Member("requestId").Str() {
		t.Errorf("another request: %s", v.Raw())
	}
	a.approve(v, "one_shot")
	body["approvalRequestId"] = asked.Member("requestId").Str()
	a.decided(body, "ALLOW", "OneShotApproval")
	a.consumed(1)
}

func TestWithTheAuthorityAwayNoApprovalIsUsed(t *testing.T) {
	t.Parallel()
	a := newApart(t)
	body := a.flight()
	a.valve.close()
	for range 2 {
		if v := a.propose(body).Refused(t, 500, "INTERNAL_ERROR"); !v.Member("retryable").Bool() {
			t.Errorf("not retryable: %s", v.Raw())
		}
	}
	a.allowed(body, 0)
	a.send("POST", client.Path("v1", "actions", body["actionId"].(string), "outcome"), a.k.Token, map[string]any{"result": "success"}).
		Refused(t, 409, "INVALID_STATE_TRANSITION")
	// Nor after a restart of the service in the meantime.
	a.kill()
	a.run()
	a.propose(body).Refused(t, 500, "INTERNAL_ERROR")
	a.valve.open()
	a.decided(body, "ALLOW", "OneShotApproval")
	a.decided(a.second(body), "DENY", "Uncovered")
	a.consumed(1)
	a.allowed(body, 1)
}
