package policyhttp_test

import (
	"bytes"
	"net/http"
	"net/url"
	"slices"
	"testing"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/bundle"
	"github.com/missionweave/server/internal/evidence"
)

// recorded are the actions in the evidence of the stand's WorkItem, in order. Every
// record has to be valid by all four tiers, asked over HTTP, and the chain whole.
func (s *stand) recorded() []*evidence.Value {
	s.t.Helper()
	a := s.fetch(s.Token(s.m.Owner), "/v1/evidence?limit=1000&groupId="+url.QueryEscape(s.m.GroupID))
	if a.Status != http.StatusOK {
		s.t.Fatalf("evidence: %d %s", a.Status, a.Body)
	}
	var actions, chain []*evidence.Value
	for _, item := range a.Value(s.t).Member("items").Items() {
		verdict := s.Do(testkitRequest("POST", s.AuthzURL+"/v1/evidence:verify", s.Token(s.m.Owner), item.Raw()))
		if verdict.Status != http.StatusOK || !verdict.Value(s.t).Member("valid").Bool() {
			s.t.Errorf("not valid: %s\n%s", verdict.Body, item.Raw())
		}
		v, err := evidence.ParseValue(item.Raw())
		if err != nil {
			s.t.Fatal(err)
		}
		chain = append(chain, v)
		actions = append(actions, v.Get("actions").Items()...)
	}
	if status, at := evidence.Chain(chain); len(chain) > 1 && status != evidence.ChainIntact {
		s.t.Errorf("chain is %s at %d", status, at)
	}
	return actions
}

// last is the newest record of an action.
func (s *stand) last(actionID any) *evidence.Value {
	s.t.Helper()
	for _, a := range slices.Backward(s.recorded()) {
		if a.Get("action_id").Str() == actionID {
			return a
		}
	}
	s.t.Fatalf("no evidence of %v", actionID)
	return nil
}

// expectRecord compares members of an action, by slash path.
func expectRecord(t *testing.T, a *evidence.Value, want map[string]string) {
	t.Helper()
	for path, text := range want {
		v := a
		for _, name := range bytes.Split([]byte(path), []byte("/")) {
			v = v.Get(string(name))
		}
		got := v.Str()
		if v.Kind() == evidence.Number {
			got = string(evidence.Canonical(v))
		}
		if got != text {
			t.Errorf("%s is %q, want %q in %s", path, got, text, evidence.Canonical(a))
		}
	}
}

func TestDriftFromApprovalToReapproval(t *testing.T) {
	s := newStand(t)
	s.install(assistant)
	user := s.input("user", "fly")
	interactive := func(parameters map[string]any, request string) map[string]any {
		more := map[string]any{"mode": "interactive"}
		if request != "" {
			more["approvalRequestId"] = request
		}
		return s.action("fly", parameters, []string{user}, more)
	}
	first := interactive(map[string]any{"to": "here"}, "")
	asked := s.decided(first, "ASK", "Uncovered")
	s.approve(asked, "one_shot")
	request := asked.Member("approvalRequest").Member("requestId").Str()
	expectRecord(t, s.last(first["actionId"]), map[string]string{"capability_decision/decision": "ask_user", "approval_grant": "none"})

	// Other arguments than the approved ones: denied, recorded, never silent.
	other := interactive(map[string]any{"to": "there"}, request)
	s.decided(other, "DENY", "Uncovered")
	drifted := s.last(other["actionId"])
	expectRecord(t, drifted, map[string]string{
		"approval_grant": "one-shot-payload", "approval_decision": "drift-requires-reapproval", "argument_drift/result": "drifted",
		"argument_drift/approved_arg_digest": asked.Member("argumentsDigest").Str(), "argument_drift/args_equality_version": evidence.ArgsJCSNFC,
		"capability_decision/decision": "deny", "capability_decision/deny_reason_class": "argument",
		"parent_action_id": first["actionId"].(string),
	})

	// Asked about again and approved, it is a new action whose parent is the denied one.
	again := interactive(map[string]any{"to": "there"}, "")
	asked = s.decided(again, "ASK", "Uncovered")
	s.approve(asked, "one_shot")
	again["approvalRequestId"] = asked.Member("approvalRequest").Member("requestId").Str()
	s.decided(again, "ALLOW", "OneShotApproval")
	allowed := s.last(again["actionId"])
	expectRecord(t, allowed, map[string]string{
		"approval_grant": "one-shot-payload", "approval_decision": "allow", "argument_drift/result": "matched",
		"parent_action_id": other["actionId"].(string),
	})
	if allowed.Get("approval_context_hash").Str() == drifted.Get("approval_context_hash").Str() {
		t.Error("the re-approved action stands on the old approval")
	}
	if got := evidence.Assess(allowed); got.Authority != "inside" {
		t.Errorf("authority %+v", got)
	}

	// What was allowed and done otherwise drifts too.
	a := s.send("POST", client.Path("v1", "actions", again["actionId"].(string), "outcome"), s.k.Token,
		map[string]any{"observedParameters": map[string]any{"to": "nowhere"}, "result": "success"})
	if a.Value(t).Member("argumentDrift").Str() != "drifted" {
		t.Errorf("outcome: %d %s", a.Status, a.Body)
	}
	expectRecord(t, s.last(again["actionId"]), map[string]string{
		"approval_decision": "drift-requires-reapproval", "argument_drift/result": "drifted", "capability_decision/decision": "deny",
	})

	// The bundle of the Group holds all of it and verifies without the server.
	raw := s.Get(s.m.Owner, client.Path("v1", "groups", s.m.GroupID)+"/export")
	report, err := bundle.Verify(t.Context(), bytes.NewReader(raw.Body), bundle.Options{})
	if err != nil || !report.OK() || report.Records < 5 || report.Documents < 2 {
		t.Errorf("bundle: %v %+v", err, report)
	}
}

func TestEvidenceOfALeaseCountsItsInvocations(t *testing.T) {
	s := newStand(t)
	s.install(assistant)
	user := s.input("user", "go")
	for i := range 2 {
		body := s.action("send_email", map[string]any{"to": "a@example.org"}, []string{user}, nil)
		s.decided(body, "ALLOW", "Covered")
		s.send("POST", client.Path("v1", "actions", body["actionId"].(string), "outcome"), s.k.Token,
			map[string]any{"observedParameters": map[string]any{"to": "a@example.org"}, "result": "failure"})
		expectRecord(t, s.last(body["actionId"]), map[string]string{
			"approval_grant": "bounded-lease", "approval_decision": "allow", "scope_lease_id": s.lease, "outcome": "failure",
			"bounded_lease_evidence/lease_id": s.lease, "bounded_lease_evidence/invocation_ordinal": []string{"1", "2"}[i],
			"argument_drift/result": "matched", "side_effect_class": "mutate-external",
		})
	}
	// A state that is said in the wrong words is a fault of the request.
	body := s.action("send_email", map[string]any{"to": "a@example.org"}, []string{user}, nil)
	s.decided(body, "ALLOW", "Covered")
	s.send("POST", client.Path("v1", "actions", body["actionId"].(string), "outcome"), s.k.Token,
		map[string]any{"result": "success", "postStateDigest": "sha256:ab"}).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
}

func TestARefusedTokenLeavesEvidenceOfTheEndedLease(t *testing.T) {
	s := newStand(t)
	s.install(assistant)
	user := s.input("user", "go")
	revoked := s.action("send_email", map[string]any{"to": "a@example.org"}, []string{user}, nil)
	before := s.lease
	s.k = s.Login(s.worker) // the new session ends the lease of the old one
	if a := s.propose(revoked); a.Status < 400 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	got := s.last(revoked["actionId"])
	expectRecord(t, got, map[string]string{
		"approval_grant": "bounded-lease", "approval_decision": "revoked", "scope_lease_id": before, "capability_decision/decision": "deny",
		"capability_decision/deny_reason_class": "missing-delegation", "argument_drift/result": "not-checked",
	})
	if got.Get("bounded_lease_evidence").Get("revocation_event_id").Str() == "" {
		t.Error("nothing says what revoked the lease")
	}
}

func TestARefusedTokenLeavesEvidenceOfTheExpiredLease(t *testing.T) {
	s := newStand(t)
	s.install(assistant)
	user := s.input("user", "go")
	s.k = s.Login(s.worker)
	s.must(client.Command{Kind: "work.start"}, map[string]any{"ownershipEpoch": 1, "executionLeaseSeconds": 2})
	s.readLease()
	late := s.action("send_email", map[string]any{"to": "a@example.org"}, []string{user}, nil)
	leases := client.Path("v1", "groups", s.m.GroupID, "work-items", s.item, "leases")
	for live := true; live; { // as the clock says now
		live = false
		for _, l := range s.Get(s.worker, leases).Value(t).Member("items").Items() {
			live = live || l.Member("leaseId").Str() == s.lease && l.Member("state").Str() == "active"
		}
	}
	if a := s.propose(late); a.Status < 400 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	expectRecord(t, s.last(late["actionId"]), map[string]string{
		"approval_grant": "bounded-lease", "approval_decision": "expired", "scope_lease_id": s.lease, "capability_decision/decision": "deny",
	})
}
