package groups

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/protocol"
)

func granting(edits string) string {
	return `{"approval": {"@": "grant", "approvalId": "$approval"}, "ownershipEpoch": 1, "operations": ["write"], "resources": ["urn:repo:app"], "expiresAt": "now+1h"` + comma(edits) + `}`
}

const grantKindName = "approval.grant_execution"

func gated(s *site) {
	s.known["approval"] = "approval:1"
	s.queued("work:a", `"executionApproval": "human_required", "sideEffectRisk": "high_risk"`)
	s.queued("work:policy", `"executionApproval": "policy_required"`)
	s.active("work:busy", "")
}

func TestGrantExecutionRefuses(t *testing.T) {
	olga := "human:olga " + grantKindName
	refuseAll(t, gated, "work:a", []negative{
		{"an Agent", afRole, "agent:wes " + grantKindName, granting(`"approval": {"@": "grant", "approver": {"type": "agent", "id": "agent:wes"}}`), ""},
		{"the Coordinator", afRole, "agent:cora " + grantKindName, granting(""), ""},
		{"a service where a human is needed", "AUTH_FORBIDDEN:human_required at P17", "service:policy " + grantKindName, granting(`"approval": {"@": "grant", "approver": {"type": "service", "id": "service:policy"}}`), ""},
		{"another approver than the actor", "AUTH_FORBIDDEN:signer at P17", olga, granting(`"approval": {"@": "grant", "approver": {"type": "human", "id": "human:paul"}}`), ""},
		{"an Approval of another WorkItem", "INVALID_COMMAND:binding_mismatch at P18", olga, granting(`"approval": {"@": "grant", "workItemId": "work:policy"}`), ""},
		{"a denial", "INVALID_COMMAND:binding_mismatch at P18", olga, granting(`"approval": {"@": "grant", "decision": "denied"}`), ""},
		{"an unknown request", unknownRef, olga, granting(`"requestId": "request:zzz"`), ""},
		{"an old epoch", stale, olga, granting(`"ownershipEpoch": 2`), ""},
		{"work that is not queued", "INVALID_STATE_TRANSITION:state at P22", olga, granting(`"approval": {"@": "grant", "workItemId": "work:busy"}`), "work=work:busy"},
		{"an old Mission revision", "REVISION_CONFLICT at P23", olga, granting(`"approval": {"@": "grant", "missionRevision": 0}`), ""},
		{"an operation beyond the contract", "AUTH_FORBIDDEN:permission at P23", olga, granting(`"operations": ["write", "read"]`), ""},
		{"a resource beyond the contract", "AUTH_FORBIDDEN:permission at P23", olga, granting(`"resources": ["urn:repo:other"]`), ""},
		{"a past expiry", deadlineIC, olga, granting(`"expiresAt": "now"`), ""},
		{"an expiry after a day", deadlineIC, olga, granting(`"expiresAt": "now+86401s"`), ""},
		{"a budget beyond what remains", budgetAtP24, olga, granting(`"budget": {"modelTokenLimit": 1001}`), ""},
		{"another currency", "INVALID_COMMAND:currency_mismatch at P23", olga, granting(`"budget": {"currency": "USD", "financialLimit": 1}`), ""},
	})
	t.Run("a lapsed owner", func(t *testing.T) {
		s := newSite(t)
		s.known["approval"] = "approval:1"
		s.offered("work:a", `"executionApproval": "human_required"`, "wes")
		s.must("agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
		s.wait(900)
		s.refused(wleOwner, olga, granting(""), "work=work:a")
	})
}

func TestGateOpensClosesAndBelongsToOneEpoch(t *testing.T) {
	s := newSite(t)
	gated(s)
	start := `{"ownershipEpoch": 1}`
	closed := "APPROVAL_REQUIRED:execution at P23"
	olga := "human:olga "
	s.refused(closed, "agent:wes work.start", start, "work=work:a")
	s.must(olga+grantKindName, granting(""), "work=work:a", "revision=3")
	if s.value("budget.modelTokenLimit") != "1000" {
		t.Errorf("an absent budget is what remains: %s", s.value("budget"))
	}
	s.refused("INVALID_COMMAND:identifier_in_use at P18", olga+grantKindName, granting(""), "work=work:a")
	s.must("agent:wes work.start", start, "work=work:a")
	if s.value("approvalId") != "approval:1" {
		t.Error("work.started names the approval")
	}
	s.keep("lease", "executionLease.leaseId")
	revoke := func(id, of string) string {
		return `{"approval": {"@": "grant", "approvalId": "` + id + `", "decision": "revoked", "revokesApprovalId": "` + of + `"}}`
	}
	kind := olga + "ext.missionweave.approval.revoke_execution"
	s.refused(unknownRef, kind, revoke("approval:2", "approval:zzz"), "work=work:a")
	s.must(kind, revoke("approval:2", "approval:1"), "work=work:a")
	s.refused("INVALID_STATE_TRANSITION:approval_not_in_force at P22", kind, revoke("approval:3", "approval:1"), "work=work:a")
	// Active work goes on, and cannot be renewed.
	s.refused(closed, "agent:wes ext.missionweaveprotocol.core.work_execution_lease_renew", `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "leaseSeconds": 600}`, "work=work:a")
	s.must("agent:wes work.checkpoint", workerCommands["work.checkpoint"], "work=work:a")
	s.refused(closed, "agent:wes work.start", start, "work=work:a")
	// A denial of the gate counts until a later grant.
	s.known["approval"] = "approval:4"
	s.must(olga+grantKindName, granting(""), "work=work:a")
	deny := `{"approval": {"@": "grant", "approvalId": "approval:5", "decision": "denied"}, "ownershipEpoch": 1}`
	s.must(olga+"ext.missionweave.approval.deny_execution", deny, "work=work:a")
	s.refused(closed, "agent:wes work.start", start, "work=work:a")
	s.known["approval"] = "approval:6"
	s.must(olga+grantKindName, granting(`"expiresAt": "now+60s"`), "work=work:a")
	s.wait(60)
	s.refused(closed, "agent:wes work.start", start, "work=work:a")
	s.known["approval"] = "approval:7"
	s.must(olga+grantKindName, granting(""), "work=work:a")
	s.must("agent:wes work.start", start, "work=work:a")
	// A new epoch needs a new approval.
	s.wait(300)
	s.offer("work:a", "", "wes")
	s.must("agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
	s.refused(closed, "agent:wes work.start", `{"ownershipEpoch": 2}`, "work=work:a")
	s.done()
}

func TestServiceOpensAPolicyGateOnly(t *testing.T) {
	s := newSite(t)
	gated(s)
	s.must("service:policy "+grantKindName, granting(`"approval": {"@": "grant", "workItemId": "work:policy", "approver": {"type": "service", "id": "service:policy"}}`), "work=work:policy")
	s.must("agent:wes work.start", `{"ownershipEpoch": 1}`, "work=work:policy")
	s.done()
}

func TestGateKinds(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct{ risk, approval, rule, want string }{
		{"none", "not_required", "", "not_required"},
		{"reversible", "not_required", "", "not_required"},
		{"external", "not_required", "", "human_required"},
		{"high_risk", "human_required", "", "human_required"},
		{"none", "policy_required", "", "policy_required"},
		{"none", "human_required", "", "human_required"},
		{"none", "not_required", "rule:1", "policy_required"},
		{"destructive", "human_required", "rule:1", "human_required"},
	} {
		org := *s.org
		org.ExecutionPolicyRule = func(*protocol.WorkContract) string { return c.rule }
		g := s.g().GateOf(&protocol.WorkContract{SideEffectRisk: c.risk, ExecutionApproval: c.approval}, &org)
		if g.Kind != c.want || g.RuleID != c.rule {
			t.Errorf("%s, %s, %q: %+v", c.risk, c.approval, c.rule, g)
		}
	}
}

func TestRequestGrantAndLateDenial(t *testing.T) {
	s := newSite(t)
	gated(s)
	request := func(id string) string {
		return `{"requestId": "` + id + `", "ownershipEpoch": 1, "operations": ["write"], "resources": ["urn:repo:app"], "expiresAt": "now+60s"}`
	}
	ask := "ext.missionweave.approval.request_execution"
	deny := func(id, request string) string {
		return `{"approval": {"@": "grant", "approvalId": "` + id + `", "decision": "denied"}, "ownershipEpoch": 1, "requestId": "` + request + `"}`
	}
	denyKind := "human:olga ext.missionweave.approval.deny_execution"
	s.refused(notOwner, "agent:rita "+ask, request("request:1"), "work=work:a")
	s.must("agent:wes "+ask, request("request:1"), "work=work:a")
	s.refused("INVALID_COMMAND:identifier_in_use at P18", "agent:cora "+ask, request("request:1"), "work=work:a")
	s.refused("INVALID_COMMAND:binding_mismatch at P23", "human:olga "+grantKindName, granting(`"requestId": "request:1", "argumentsDigest": "#1"`), "work=work:a")
	s.must("human:olga "+grantKindName, granting(`"requestId": "request:1"`), "work=work:a")
	s.refused("INVALID_STATE_TRANSITION:request_not_pending at P22", denyKind, deny("approval:2", "request:1"), "work=work:a")
	s.refused(afRole, "agent:wes ext.missionweave.approval.deny_execution", deny("approval:2", "request:1"), "work=work:a")

	s.must("agent:cora "+ask, request("request:2"), "work=work:a")
	s.wait(60)
	s.known["approval"] = "approval:3"
	s.refused("INVALID_STATE_TRANSITION:request_not_pending at P22", "human:olga "+grantKindName, granting(`"requestId": "request:2"`), "work=work:a")
	s.sweep("group:g")
	s.refused("INVALID_COMMAND:binding_mismatch at P18", denyKind, strings.Replace(deny("approval:3", "request:2"), "denied", "approved", 1), "work=work:a")
	s.must(denyKind, deny("approval:3", "request:2"), "work=work:a")
	if s.value("late") != "true" {
		t.Error("the denial is late, and still the human's")
	}
	// A denied request does not close the gate that another approval opened.
	s.must("agent:wes work.start", `{"ownershipEpoch": 1}`, "work=work:a")
	s.done()
}

func asking(edits string) string {
	return `{"requestId": "request:1", "actionId": "act:1", "actionType": "http.post", "agentId": "agent:wes", "ownershipEpoch": 1,
		"operation": "write", "resources": ["urn:repo:app"], "argumentsDigest": "#1", "argsEqualityVersion": "1", "manifestVersion": "3",
		"ruleId": "rule:1", "reason": "why", "provenance": [], "sideEffectClass": "external", "expiresAt": "now+60s"` + comma(edits) + `}`
}

func answering(decision, edits string) string {
	expires := `, "expiresAt": "now+60s"`
	if decision == "denied" {
		expires = ""
	}
	return `{"requestId": "request:1", "scope": "one_shot", "argumentsDigest": "#1"` + expires + `,
		"approval": {"@": "grant", "approvalId": "approval:9", "decision": "` + decision + `", "conditions": ["argumentsDigest:` + hash("1") + `"]}` + comma(edits) + `}`
}

const (
	askKind     = "ext.missionweave.approval.request_action"
	answerKind  = "ext.missionweave.approval.decide_action"
	consumeKind = "ext.missionweave.approval.consume_action"
	consuming   = `{"requestId": "request:1", "approvalId": "approval:9", "actionId": "act:1", "executionLeaseId": "$lease", "capabilityTokenId": "jti:1"}`
)

func TestActionApprovalRefuses(t *testing.T) {
	authz := "service:authorization "
	refuseAll(t, func(s *site) {
		s.active("work:a", "")
		s.submitted("work:done", "")
		s.must("agent:wes artifact.publish", `{"ownershipEpoch": 1, "executionLeaseId": "`+s.lease("work:a")+`", "artifact": {"@": "artifact", "artifactId": "artifact:9", "contentHash": "#9"}}`, "work=work:a")
		s.must(authz+askKind, asking(`"requestId": "request:0", "actionId": "act:0"`), "work=work:a")
	}, "work:a", []negative{
		{"a Worker", afRole, "agent:wes " + askKind, asking(""), ""},
		{"the Coordinator", afRole, "agent:cora " + askKind, asking(""), ""},
		{"a request id in use", "INVALID_COMMAND:identifier_in_use at P18", authz + askKind, asking(`"requestId": "request:0"`), ""},
		{"an action id in use", "INVALID_COMMAND:identifier_in_use at P18", authz + askKind, asking(`"actionId": "act:0"`), ""},
		{"an Agent that is not the owner", "INVALID_COMMAND:binding_mismatch at P18", authz + askKind, asking(`"agentId": "agent:rita"`), ""},
		{"an old epoch", stale, authz + askKind, asking(`"ownershipEpoch": 2`), ""},
		{"work handed in", "INVALID_STATE_TRANSITION:state at P22", authz + askKind, asking(""), "work=work:done"},
		{"a past expiry", deadlineIC, authz + askKind, asking(`"expiresAt": "now"`), ""},
		{"an Agent decides", afRole, "agent:cora " + answerKind, answering("approved", ""), ""},
		{"an unknown request", unknownRef, "human:olga " + answerKind, answering("approved", ""), ""},
		{"an approval without expiry", svf, "human:olga " + answerKind, answering("approved", `"expiresAt": "absent"`), ""},
		{"a denial with expiry", svf, "human:olga " + answerKind, answering("denied", `"expiresAt": "now+60s"`), ""},
	})
}

func TestActionApprovalIsUsedOnce(t *testing.T) {
	s := newSite(t)
	s.active("work:a", "")
	authz, olga := "service:authorization ", "human:olga "
	s.must(authz+askKind, asking(""), "work=work:a")
	s.refused("INVALID_STATE_TRANSITION:approval_not_in_force at P22", authz+consumeKind, consuming, "work=work:a")
	s.refused("INVALID_COMMAND:binding_mismatch at P18", olga+answerKind, answering("approved", `"argumentsDigest": "#2"`), "work=work:a")
	s.refused("INVALID_COMMAND:binding_mismatch at P23", olga+answerKind, strings.ReplaceAll(answering("approved", `"argumentsDigest": "#2"`), hash("1"), hash("2")), "work=work:a")
	s.must(olga+answerKind, answering("approved", ""), "work=work:a")
	s.refused("INVALID_STATE_TRANSITION:request_not_pending at P22", olga+answerKind, strings.Replace(answering("denied", ""), "approval:9", "approval:10", 1), "work=work:a")
	s.refused("INVALID_COMMAND:binding_mismatch at P18", authz+consumeKind, strings.Replace(consuming, "act:1", "act:2", 1), "work=work:a")
	s.refused(wleExec, authz+consumeKind, strings.Replace(consuming, "$lease", "urn:lease:0", 1), "work=work:a")
	s.must(authz+consumeKind, consuming, "work=work:a")
	s.refused("INVALID_STATE_TRANSITION:approval_not_in_force at P22", authz+consumeKind, consuming, "work=work:a")
	log := s.g().PolicyLog
	if diff := cmp.Diff("ext.missionweave.approval.action_consumed", log[len(log)-1].Decision); diff != "" {
		t.Error(diff)
	}
	s.done()
}

func TestLateDenialOfAnActionStaysTheHumans(t *testing.T) {
	s := newSite(t)
	s.active("work:a", "")
	s.must("service:authorization "+askKind, asking(""), "work=work:a")
	s.wait(60)
	s.refused("INVALID_STATE_TRANSITION:request_not_pending at P22", "human:olga "+answerKind, answering("approved", ""), "work=work:a")
	s.must("human:olga "+answerKind, answering("denied", ""), "work=work:a")
	if s.value("late") != "true" {
		t.Error("late")
	}
	s.refused("INVALID_STATE_TRANSITION:approval_not_in_force at P22", "service:authorization "+consumeKind, consuming, "work=work:a")
	s.wait(240)
	s.refused(wleExec, "service:authorization "+consumeKind, consuming, "work=work:a")
	s.done()
}

func TestActionApprovalDoesNotOpenTheStartGate(t *testing.T) {
	s := newSite(t)
	gated(s)
	s.must("service:authorization "+askKind, asking(""), "work=work:a")
	s.must("human:olga "+answerKind, answering("approved", ""), "work=work:a")
	s.refused("APPROVAL_REQUIRED:execution at P23", "agent:wes work.start", `{"ownershipEpoch": 1}`, "work=work:a")
}

func TestServedWorkSaysWhatItWaitsFor(t *testing.T) {
	s := newSite(t)
	gated(s)
	clock := func(id string) WorkItemClock {
		c, err := s.g().ClockOf(s.item(id), s.org, s.now, func(id string) (*State, error) { return s.group[id], nil })
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if got := clock("work:a"); got != (WorkItemClock{Gate: "awaiting_execution_approval"}) {
		t.Errorf("%+v", got)
	}
	s.must("human:olga "+grantKindName, granting(`"expiresAt": "now+60s"`), "work=work:a")
	if got := clock("work:a"); got != (WorkItemClock{}) {
		t.Errorf("%+v", got)
	}
	s.wait(60)
	if got := clock("work:a"); got.Gate == "" {
		t.Errorf("%+v", got)
	}
	s.must("agent:wes "+recordUsage, usage(`"modelTokens": 1000`), "work=work:busy")
	if got := clock("work:busy"); got != (WorkItemClock{Paused: true}) {
		t.Errorf("%+v", got)
	}
}
