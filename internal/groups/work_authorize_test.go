package groups

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

const (
	afRole      = "AUTH_FORBIDDEN:role at P17"
	deadlineIC  = "INVALID_COMMAND:deadline at P23"
	unknownRef  = "INVALID_COMMAND:unknown_reference at P18"
	svf         = "SCHEMA_VALIDATION_FAILED at P10"
	budgetAtP24 = "BUDGET_EXCEEDED at P24"
)

func authorizing1(edits string) string {
	return `{"contract": {"@": "contract", "goal": "New"` + comma(edits) + `}}`
}

func TestAuthorizeRefuses(t *testing.T) {
	cora := "agent:cora work.authorize"
	refuseAll(t, func(s *site) {
		s.authorize("work:a", "")
		s.authorize("work:b", `"dependencyWorkItemIds": ["work:a"]`)
		s.must("agent:rita work.propose", `{"proposalId": "proposal:1", "contract": {"@": "contract", "goal": "Idea"}}`)
		s.must("agent:cora work.authorize", `{"proposalId": "proposal:1"}`, "work=work:idea")
	}, "work:new", []negative{
		{"a Worker without a grant", afRole, "agent:wes work.authorize", authorizing1(""), ""},
		{"a delegate without a grant", afRole, "agent:dora work.authorize", authorizing1(""), ""},
		{"an observer", afRole, "agent:otto work.authorize", authorizing1(""), ""},
		{"the Coordinator without its epoch", "AUTH_STALE_COORDINATOR:stale_coordinator at P15", cora, authorizing1(""), "coordinator=2"},
		{"the owner without emergency override", "AUTH_FORBIDDEN:override_required at P17", "human:olga work.authorize", authorizing1(""), ""},
		{"an emergency override by the Coordinator", "AUTH_FORBIDDEN:override_not_applicable at P17", cora, `{"contract": {"@": "contract", "goal": "New"}, "emergencyOverride": {"reason": "now"}}`, ""},
		{"a grant cited by the Coordinator", "AUTH_FORBIDDEN:grant_not_needed at P17", cora, `{"contract": {"@": "contract", "goal": "New"}, "delegationGrantId": "grant:1"}`, ""},
		{"an unknown grant", "AUTH_FORBIDDEN:grant at P17", "agent:dora work.authorize", `{"contract": {"@": "contract", "goal": "New"}, "delegationGrantId": "grant:1"}`, ""},
		{"an id in use", "INVALID_COMMAND:identifier_in_use at P18", cora, authorizing1(""), "work=work:a"},
		{"an unknown Proposal", unknownRef, cora, `{"proposalId": "proposal:9"}`, ""},
		{"a Proposal authorized before", "INVALID_STATE_TRANSITION:proposal_not_open at P22", cora, `{"proposalId": "proposal:1"}`, ""},
		{"an unknown dependency", unknownRef, cora, authorizing1(`"dependencyWorkItemIds": ["work:zzz"]`), ""},
		{"an unknown parent", unknownRef, cora, `{"contract": "@contract", "parentWorkItemId": "work:zzz"}`, ""},
		{"an unknown replaced WorkItem", unknownRef, cora, `{"contract": "@contract", "replacesWorkItemId": "work:zzz"}`, ""},
		{"replacing unfinished work", "INVALID_STATE_TRANSITION:state at P22", cora, `{"contract": {"@": "contract", "goal": "New"}, "replacesWorkItemId": "work:a"}`, ""},
		{"expectedRevision other than 0", "REVISION_CONFLICT at P21", cora, authorizing1(""), "revision=1"},
		{"a dependency on itself", "INVALID_COMMAND:cycle at P23", cora, authorizing1(`"dependencyWorkItemIds": ["work:new"]`), ""},
		{"contractVersion 2", "INVALID_COMMAND:contract_version at P23", cora, authorizing1(`"contractVersion": 2`), ""},
		{"exclusive false", "INVALID_COMMAND:not_supported at P23", cora, `{"contract": {"@": "contract", "goal": "New"}, "exclusive": false}`, ""},
		{"a deadline after the Mission's", deadlineIC, cora, authorizing1(`"deadline": "now+721h"`), ""},
		{"a deadline in the past", deadlineIC, cora, authorizing1(`"deadline": "now"`), ""},
		{"a resource the Mission does not permit", "AUTH_FORBIDDEN:permission at P23", cora, authorizing1(`"allowedResources": [{"resource": "urn:prod:db", "operations": ["read"]}]`), ""},
		{"an operation the Mission does not permit", "AUTH_FORBIDDEN:permission at P23", cora, authorizing1(`"allowedResources": [{"resource": "urn:repo:app", "operations": ["delete"]}]`), ""},
		{"a capability outside the ceiling", "AUTH_FORBIDDEN:capability at P23", cora, authorizing1(`"requiredCapabilities": [{"id": "ops.deploy", "version": "1.0.0"}]`), ""},
		{"a capability above the ceiling", "AUTH_FORBIDDEN:capability at P23", cora, authorizing1(`"requiredCapabilities": [{"id": "code.write", "version": "1.6.0"}]`), ""},
		{"another currency", "INVALID_COMMAND:currency_mismatch at P23", cora, authorizing1(`"budget": {"currency": "USD", "financialLimit": 1}`), ""},
		{"an equal contract", "RATE_LIMITED:duplicate_decomposition at P23", cora, `{"contract": {"@": "contract", "goal": "work:a"}}`, ""},
		{"more budget than the Mission has left", budgetAtP24, cora, authorizing1(`"budget": {"modelTokenLimit": 9000}`), ""},
		{"no contract and no Proposal", svf, cora, `{}`, ""},
		{"an unknown member", svf, cora, `{"contract": "@contract", "budget": 1}`, ""},
		{"a null member", svf, cora, `{"contract": "@contract", "title": null}`, ""},
		{"an incomplete contract", "WORK_CONTRACT_INCOMPLETE at P10", cora, authorizing1(`"goal": "absent"`), ""},
		{"an incomplete and faulty contract", svf, cora, authorizing1(`"goal": "absent", "mood": "good"`), ""},
		{"high risk without a human", "WORK_CONTRACT_INCOMPLETE at P10", cora, authorizing1(`"sideEffectRisk": "high_risk"`), ""},
		{"a criterion named twice", "WORK_CONTRACT_INCOMPLETE at P10", cora, authorizing1(`"acceptanceCriteria": ["@criterion", "@criterion"]`), ""},
		{"retries without retryable failures", "WORK_CONTRACT_INCOMPLETE at P10", cora, authorizing1(`"retryPolicy": {"maxAttempts": 2, "backoff": "none", "maxDelay": "PT1S", "retryableFailures": []}`), ""},
		{"money with seven decimals", "SCHEMA_VALIDATION_FAILED:money at P10", cora, authorizing1(`"budget": {"currency": "EUR", "financialLimit": 0.0000001}`), ""},
	})
}

func TestAuthorizeOnlyWhileTheMissionIsActive(t *testing.T) {
	s := newSite(t)
	s.submitted("work:a", "")
	s.must("agent:cora work.accept_result", `{"evidence": ["@review"]}`, "work=work:a")
	s.must("agent:cora mission.submit_for_approval", `{"artifactHashes": ["#1"]}`)
	s.refused("INVALID_STATE_TRANSITION:mission_not_active at P22", "agent:cora work.authorize", authorizing1(""), "work=work:new")
}

func TestAuthorizeFromAProposalIsNoDuplicateOfIt(t *testing.T) {
	s := newSite(t)
	s.must("agent:rita work.propose", `{"proposalId": "proposal:1", "contract": "@contract"}`)
	s.must("agent:cora work.authorize", `{"proposalId": "proposal:1"}`, "work=work:a", "revision=1")
	w := s.item("work:a")
	if w.CreatedBy.ID != "agent:rita" || w.AuthorizedBy.ID != "agent:cora" {
		t.Errorf("createdBy %s authorizedBy %s", w.CreatedBy.ID, w.AuthorizedBy.ID)
	}
	if p := s.g().Proposals["proposal:1"]; p.Status != ProposalAuthorized || s.g().Revision(proposalAggregate("proposal:1")) != 2 {
		t.Errorf("proposal %s at revision %d", p.Status, s.g().Revision(proposalAggregate("proposal:1")))
	}
	s.done()
}

func TestAuthorizeReservesFromTheParentWorkItem(t *testing.T) {
	s := newSite(t)
	s.authorize("work:a", "")
	sub := `{"contract": {"@": "contract", "goal": "Part", "budget": {"modelTokenLimit": 600}}, "parentWorkItemId": "work:a"}`
	s.must("agent:cora work.authorize", sub, "work=work:a1")
	s.refused(budgetAtP24, "agent:cora work.authorize", strings.Replace(sub, "Part", "Other part", 1), "work=work:a2")
	s.refused("RATE_LIMITED:duplicate_decomposition at P23", "agent:cora work.authorize", sub, "work=work:a2")
	// The same contract under another parent is another decomposition.
	s.must("agent:cora work.authorize", strings.Replace(sub, `, "parentWorkItemId": "work:a"`, "", 1), "work=work:a2")
	s.done()
}

func TestAuthorizeBoundsDelegationDepth(t *testing.T) {
	s := newSite(t)
	s.authorize("work:0", "")
	part := func(n string) string {
		return `{"contract": {"@": "contract", "goal": "Part ` + n + `", "budget": {"toolCallLimit": 1}}, "parentWorkItemId": "work:` + string(n[0]-1) + `"}`
	}
	for _, n := range []string{"1", "2", "3"} {
		s.must("agent:cora work.authorize", part(n), "work=work:"+n)
	}
	s.refused("RATE_LIMITED:delegation_depth at P23", "agent:cora work.authorize", part("4"), "work=work:4")
	if _, ok := KindOf("policy.grant_cooperation_override"); !ok {
		t.Skip("policy.grant_cooperation_override is not there yet")
	}
	s.must("human:olga policy.grant_cooperation_override", `{"grantId": "override:1", "policyName": "delegation_depth",
		"beneficiary": {"type": "agent", "id": "agent:cora"}, "targetCommandKind": "work.authorize",
		"targetActionId": "action:deep", "reason": "needed", "expiresAt": "now+1h"}`)
	s.refused("AUTH_FORBIDDEN:override at P23", "agent:cora work.authorize", part("4"), "work=work:4", "override=override:1")
	s.refused("INVALID_COMMAND:override_not_needed at P23", "agent:cora work.authorize", authorizing1(""), "work=work:5", "override=override:1", "action=action:deep")
	s.must("agent:cora work.authorize", part("4"), "work=work:4", "override=override:1", "action=action:deep")
	s.refused("AUTH_FORBIDDEN:override at P23", "agent:cora work.authorize", part("5"), "work=work:5", "override=override:1", "action=action:deep")
	s.done()
}

func TestEmergencyOverrideIsAudited(t *testing.T) {
	s := newSite(t)
	s.must("human:olga work.authorize", `{"contract": "@contract", "emergencyOverride": {"reason": "Cora is away"}}`, "work=work:a")
	s.must("human:olga work.offer", `{"candidateAgentIds": ["agent:wes"], "selectionBasis": "@basis", "emergencyOverride": {"reason": "Cora is away"}}`, "work=work:a")
	log := s.g().PolicyLog
	got := []string{log[len(log)-2].Decision, log[len(log)-1].Decision}
	if diff := cmp.Diff([]string{"work.authorized", "work.offer.created"}, got); diff != "" {
		t.Error(diff)
	}
	s.done()
}

func TestReplacementSupersedesForDependents(t *testing.T) {
	s := newSite(t)
	s.authorize("work:a", "")
	s.must("agent:cora work.cancel", `{"reason": "wrong"}`, "work=work:a")
	s.refused("INVALID_COMMAND:cycle at P23", "agent:cora work.authorize",
		`{"contract": {"@": "contract", "goal": "Again", "dependencyWorkItemIds": ["work:a"]}, "replacesWorkItemId": "work:a"}`, "work=work:b")
	s.must("agent:cora work.authorize", `{"contract": "@contract", "replacesWorkItemId": "work:a"}`, "work=work:b")
	if s.g().satisfied("work:a") {
		t.Error("satisfied before the replacement is verified")
	}
	s.done()
}

// delegation gives dora a grant on work:a that allows code.write, one level
// down, 600 tokens.
func delegation(s *site) {
	s.authorize("work:a", "")
	s.authorize("work:other", "")
	if _, ok := KindOf("membership.grant_delegation"); ok {
		s.must("agent:cora membership.grant_delegation", `{"grantId": "grant:1", "granteeAgentId": "agent:dora", "targetWorkItemId": "work:a",
			"allowedCapabilities": [{"id": "code.write", "version": "1.0.0"}],
			"budget": {"currency": "EUR", "financialLimit": 5, "modelTokenLimit": 600, "toolCallLimit": 10, "computeSecondsLimit": 0, "wallClockSecondsLimit": 0, "externalSideEffectLimit": 0},
			"maxDescendantDepth": 1, "expiresAt": "now+1h"}`)
		return
	}
	m, _ := s.g().Member(agentActor("agent:dora"))
	s.g().Grants["grant:1"] = &protocol.DelegationGrant{
		GrantID: "grant:1", GranteeAgentID: "agent:dora", TargetWorkItemID: "work:a",
		AllowedCapabilities: []protocol.CapabilityRef{{ID: "code.write", Version: "1.0.0"}},
		Budget:              budget.ToBudget(budget.Vector{5_000_000, 600, 10}, "EUR"),
		MaxDescendantDepth:  1, GranteeMembershipEpoch: m.MembershipEpoch, CoordinatorEpoch: 1,
		GrantedBy: agentActor("agent:cora"), ExpiresAt: leases.In(s.now, time.Hour),
	}
}

func delegated1(edits, parent string) string {
	return `{"contract": {"@": "contract", "goal": "Part", "budget": {"modelTokenLimit": 400}` + comma(edits) +
		`}, "parentWorkItemId": "` + parent + `", "delegationGrantId": "grant:1"}`
}

func TestDelegationGrantBoundsItsUse(t *testing.T) {
	dora := "agent:dora work.authorize"
	refuseAll(t, func(s *site) {
		delegation(s)
		s.must(dora, delegated1("", "work:a"), "work=work:a1")
	}, "work:new", []negative{
		{"without a parent", "AUTH_FORBIDDEN:grant_scope at P23", dora, `{"contract": {"@": "contract", "goal": "Part"}, "delegationGrantId": "grant:1"}`, ""},
		{"in another subtree", "AUTH_FORBIDDEN:grant_scope at P23", dora, delegated1("", "work:other"), ""},
		{"deeper than the grant", "AUTH_FORBIDDEN:grant_depth at P23", dora, delegated1("", "work:a1"), ""},
		{"a capability the grant lacks", "AUTH_FORBIDDEN:grant_capability at P23", dora, delegated1(`"requiredCapabilities": [{"id": "code.review", "version": "1.0.0"}]`, "work:a"), ""},
		{"above the ceilings together", "BUDGET_EXCEEDED:grant at P24", dora, delegated1(`"goal": "More", "budget": {"modelTokenLimit": 300}`, "work:a"), ""},
		{"somebody else's grant", "AUTH_FORBIDDEN:scope at P17", "agent:wes work.authorize", delegated1("", "work:a"), ""},
	})
	t.Run("lapses with time", func(t *testing.T) {
		s := newSite(t)
		delegation(s)
		s.wait(3600)
		s.refused("AUTH_FORBIDDEN:grant at P17", dora, delegated1("", "work:a"), "work=work:new")
	})
	t.Run("dies with the Membership it was given to", func(t *testing.T) {
		s := newSite(t)
		delegation(s)
		s.must("agent:cora membership.change", `{"member": {"type": "agent", "id": "agent:dora"}, "role": "work_delegate"}`)
		s.refused("AUTH_FORBIDDEN:grant at P17", dora, delegated1("", "work:a"), "work=work:new")
	})
	t.Run("dies with its target", func(t *testing.T) {
		s := newSite(t)
		delegation(s)
		s.must("agent:cora work.cancel", `{"reason": "no"}`, "work=work:a")
		s.refused("AUTH_FORBIDDEN:grant at P17", dora, delegated1("", "work:a"), "work=work:new")
	})
	t.Run("offers its own subtree only", func(t *testing.T) {
		s := newSite(t)
		delegation(s)
		s.must(dora, delegated1("", "work:a"), "work=work:a1")
		offer := `{"candidateAgentIds": ["agent:wes"], "selectionBasis": "@basis", "delegationGrantId": "grant:1"}`
		s.must("agent:dora work.offer", offer, "work=work:a1")
		s.refused("AUTH_FORBIDDEN:grant_scope at P23", "agent:dora work.offer", offer, "work=work:other")
	})
}
