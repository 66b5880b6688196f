package groups

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// child hands work:a to a child Mission group:c that dora coordinates; policy
// is its failure policy.
func (s *site) child(policy string) {
	s.t.Helper()
	s.authorize("work:a", "")
	s.makeChild("group:g", "cora", "work:a", "c", "dora", policy)
}

// makeChild hands a WorkItem of a Group to a new child Mission.
func (s *site) makeChild(group, parent, work, name, coordinator, policy string) {
	s.t.Helper()
	s.must("agent:"+parent+" mission.create_child", `{"missionId": "mission:`+name+`", "groupId": "group:`+name+`",
		"coordinatorAgentId": "agent:`+coordinator+`", "objective": "Part `+name+`", "definitionOfDone": ["@criterion"],
		"budget": {"currency": "EUR", "financialLimit": 5, "modelTokenLimit": 500, "toolCallLimit": 5}, "deadline": "now+240h", "failurePolicy": "`+policy+`",
		"permissions": [{"resource": "urn:repo:app", "operations": ["write"]}], "coordinatorLeaseSeconds": 86400}`, group, "work="+work)
}

// inChild gives the child a worker and work of its own that wes executes.
func (s *site) inChild() {
	s.t.Helper()
	s.must("agent:dora membership.change", `{"member": {"type": "agent", "id": "agent:wes"}, "role": "worker"}`, "group:c")
	s.must("agent:dora work.authorize", `{"contract": {"@": "contract", "goal": "Inner", "budget": {"currency": "EUR", "financialLimit": 2, "modelTokenLimit": 100, "toolCallLimit": 5}}}`, "group:c", "work=work:x")
	s.must("agent:dora work.offer", offering1(""), "group:c", "work=work:x")
	s.keep("offer0", "createdOfferIds.0")
	s.must("agent:wes work.accept_offer", `{"offerId": "$offer0", "ownershipLeaseSeconds": 86400}`, "group:c", "work=work:x")
	s.must("agent:wes work.start", `{"ownershipEpoch": 1, "executionLeaseSeconds": 3600}`, "group:c", "work=work:x")
	s.keep("lease", "executionLease.leaseId")
}

func (s *site) recordIn(group, delta string) string {
	return s.try("agent:wes "+recordUsage, usage(delta), group, "work=work:x")
}

// tail is the kinds of the last n Events of a Group.
func (s *site) tail(group string, n int) []string {
	log := s.logs[group]
	var out []string
	for _, b := range log[max(0, len(log)-n):] {
		out = append(out, decodeStored(s.t, b).Kind)
	}
	return out
}

func TestUsageRunsThroughThreeLevels(t *testing.T) {
	s := newSite(t)
	s.child(failBlocks)
	s.inChild()
	if got := s.recordIn("group:c", `"financial": 0.25, "currency": "EUR", "modelTokens": 30`); got != "" {
		t.Fatal(got)
	}
	last := decodeStored(t, s.logs["group:g"][s.g().Head-1])
	p := last.Payload.(*ResourceUsageRecorded)
	if last.WorkItemID != "work:a" || p.ChildMissionID != "mission:c" || p.ExecutionLeaseID != "" || last.Cause.Type != "event" ||
		p.CumulativeUsage.ModelTokens != 30 || p.SourceEventID != last.Cause.ID || last.Actor != s.org.Authority {
		t.Errorf("%+v\n%+v", last.Event, p)
	}
	for _, group := range []string{"group:c", "group:g"} {
		if got := s.group[group].Ledger.Root().Usage(); got[0] != 250_000 || got[1] != 30 {
			t.Errorf("%s used %v", group, got)
		}
	}
	// A refusal in any dimension charges nothing anywhere.
	head := s.g().Head
	if got := s.recordIn("group:c", `"modelTokens": 71`); got != budgetAtP24 || s.g().Head != head {
		t.Errorf("%q", got)
	}
	s.done()
}

func TestExhaustionAboveTheMissionPausesItsWork(t *testing.T) {
	s := newSite(t)
	s.authorize("work:a", `"budget": {"currency": "EUR", "financialLimit": 5, "modelTokenLimit": 500, "toolCallLimit": 5}`)
	s.makeChild("group:g", "cora", "work:a", "c", "dora", failBlocks)
	s.inChild()
	s.must("agent:dora work.authorize", `{"contract": {"@": "contract", "goal": "Rest", "budget": {"modelTokenLimit": 400}}}`, "group:c", "work=work:y")
	s.must("agent:dora work.offer", offering1(""), "group:c", "work=work:y")
	s.keep("offer0", "createdOfferIds.0")
	s.must("agent:wes work.accept_offer", `{"offerId": "$offer0", "ownershipLeaseSeconds": 86400}`, "group:c", "work=work:y")
	s.must("agent:wes work.start", `{"ownershipEpoch": 1, "executionLeaseSeconds": 3600}`, "group:c", "work=work:y")
	s.keep("lease2", "executionLease.leaseId")
	s.must("agent:wes "+recordUsage, strings.Replace(usage(`"modelTokens": 400`), "$lease", "$lease2", 1), "group:c", "work=work:y")
	if got := s.recordIn("group:c", `"modelTokens": 100`); got != "" {
		t.Fatal(got)
	}
	// The WorkItem, the child Mission, and the parent WorkItem are used up.
	want := []string{eventUsageRecorded, eventBudgetExhausted, eventBudgetExhausted}
	if diff := cmp.Diff(want, s.tail("group:c", 3)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{eventUsageRecorded, eventBudgetExhausted}, s.tail("group:g", 2)); diff != "" {
		t.Error(diff)
	}
	if got := s.recordIn("group:c", `"toolCalls": 1`); got != "BUDGET_EXCEEDED:paused at P24" {
		t.Errorf("%q", got)
	}
	s.done()
}

func TestEndOfAWorkItemEndsItsChildMission(t *testing.T) {
	for _, c := range []struct{ line, payload, item, mission, event string }{
		{"agent:cora work.fail", failing("agent:cora", ""), "failed", "failed", "mission.terminated"},
		{"agent:cora work.cancel", `{"reason": "no"}`, "cancelled", "cancelled", "mission.cancelled"},
	} {
		t.Run(c.line, func(t *testing.T) {
			s := newSite(t)
			s.child(failBlocks)
			s.inChild()
			s.must(c.line, c.payload, "work=work:a")
			inner := s.group["group:c"]
			if inner.Mission.State != c.mission || inner.WorkItems["work:x"].State != c.item || s.item("work:a").Child().State != c.mission {
				t.Errorf("mission %s item %s link %s", inner.Mission.State, inner.WorkItems["work:x"].State, s.item("work:a").Child().State)
			}
			if diff := cmp.Diff([]string{c.event, "work." + c.item}, s.tail("group:c", 2)); diff != "" {
				t.Error(diff)
			}
			if r := s.g().Ledger.Root().Remaining(); r[1] != 10000 {
				t.Errorf("remaining %v", r)
			}
			s.refused("INVALID_STATE_TRANSITION:mission_not_active at P22", "agent:dora work.authorize", authorizing1(""), "group:c", "work=work:z")
			s.done()
		})
	}
}

func TestFailurePolicyOfAChildMission(t *testing.T) {
	for _, c := range []struct {
		policy, item, mission string
		events                []string
	}{
		{failBlocks, "blocked", "active", []string{"work.blocked"}},
		{failItem, "failed", "active", []string{"work.failed"}},
		{failMission, "failed", "failed", []string{"work.failed", "mission.terminated", "work.failed"}},
	} {
		t.Run(c.policy, func(t *testing.T) {
			s := newSite(t)
			s.authorize("work:other", "")
			s.child(c.policy)
			s.inChild()
			s.must("agent:dora mission.terminate", `{"reason": "cannot"}`, "group:c")
			w := s.item("work:a")
			if w.State != c.item || s.g().Mission.State != c.mission || w.Child().State != "failed" {
				t.Errorf("item %s mission %s link %s", w.State, s.g().Mission.State, w.Child().State)
			}
			if diff := cmp.Diff(c.events, s.tail("group:g", len(c.events))); diff != "" {
				t.Error(diff)
			}
			s.done()
		})
	}
}

func TestCancelledChildLeavesItsParentBlockedAndReplaceable(t *testing.T) {
	s := newSite(t)
	s.child(failMission)
	s.refused("INVALID_STATE_TRANSITION:child_live at P22", "agent:cora work.offer", offering1(""), "work=work:a")
	s.refused("INVALID_STATE_TRANSITION:child_live at P22", "agent:cora work.unblock", `{}`, "work=work:a")
	s.refused(notOwner, "agent:cora work.start", `{"ownershipEpoch": 1}`, "work=work:a")
	s.must("agent:cora mission.cancel", `{"reason": "no"}`, "group:c")
	w := s.item("work:a")
	if w.State != "blocked" || !w.OwnerFenced || w.Child().State != "cancelled" {
		t.Errorf("%s fenced %v", w.State, w.OwnerFenced)
	}
	if live, _ := (&Ctx{World: s.world(), Group: s.g()}).ownerLive(w); live {
		t.Error("custody of an ended child is live")
	}
	s.makeChild("group:g", "cora", "work:a", "d", "rita", failBlocks)
	s.must("agent:cora mission.cancel", `{"reason": "no"}`, "group:d")
	s.must("agent:cora work.unblock", `{}`, "work=work:a")
	s.stateIs("work:a", "open")
	s.offer("work:a", "", "wes")
	s.must("agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
	if s.item("work:a").Owner.OwnershipEpoch != 3 {
		t.Error("each custody took an epoch")
	}
	s.done()
}

func TestFailureClimbsThroughTwoLevels(t *testing.T) {
	s := newSite(t)
	s.child(failMission)
	s.must("agent:dora work.authorize", `{"contract": {"@": "contract", "goal": "Inner", "budget": {"modelTokenLimit": 500}}}`, "group:c", "work=work:x")
	s.must("agent:dora mission.create_child", `{"missionId": "mission:d", "groupId": "group:d", "coordinatorAgentId": "agent:rita",
		"objective": "Deep", "definitionOfDone": ["@criterion"], "budget": {"modelTokenLimit": 100}, "deadline": "now+100h",
		"failurePolicy": "fail_parent_mission"}`, "group:c", "work=work:x")
	s.must("agent:rita mission.terminate", `{"reason": "cannot"}`, "group:d")
	var states []string
	for _, id := range []string{"group:g", "group:c", "group:d"} {
		states = append(states, s.group[id].Mission.State)
	}
	if !slices.Equal(states, []string{"failed", "failed", "failed"}) {
		t.Errorf("%v", states)
	}
	s.done()
}

func TestApprovedChildVerifiesItsParentWorkItem(t *testing.T) {
	s := newSite(t)
	s.child(failBlocks)
	s.inChild()
	inC := `"missionId": "mission:c", "groupId": "group:c", "workItemId": "work:x"`
	s.must("agent:wes artifact.publish", `{"artifact": {"@": "artifact", `+inC+`}, "ownershipEpoch": 1, "executionLeaseId": "$lease"}`, "group:c", "work=work:x")
	evidence := `{"@": "evidence", ` + inC + `, "subject": {"type": "work_item", "id": "work:x"}}`
	s.must("agent:wes work.submit", `{"artifactHashes": ["#1"], "ownershipEpoch": 1, "executionLeaseId": "$lease", "evidence": [`+evidence+`]}`, "group:c", "work=work:x")
	s.must("agent:dora work.accept_result", `{"evidence": [`+evidence+`]}`, "group:c", "work=work:x")
	s.must("agent:dora mission.submit_for_approval", `{"artifactHashes": ["#1"]}`, "group:c")
	s.must("agent:cora mission.approve", `{"approval": {"approvalId": "approval:c", "kind": "child_mission", "decision": "approved",
		"missionId": "mission:c", "groupId": "group:c", "missionRevision": 2, "artifactHashes": ["#1"], "acceptancePolicyVersion": "1.0.0",
		"approver": {"type": "agent", "id": "agent:cora"}, "comments": "", "conditions": []}}`, "group:c")
	w := s.item("work:a")
	if w.State != "verified" || w.Child().State != "approved" || w.Submission == nil || len(w.openLeases()) != 0 {
		t.Errorf("%s %v", w.State, w.Child())
	}
	// The child's content is known to the whole tree.
	s.active("work:b", "")
	s.must("agent:wes artifact.publish", `{"artifact": {"@": "artifact", "artifactId": "artifact:b", "contentHash": "#2", "workItemId": "work:b", "sourceArtifactHashes": ["#1"]}, "ownershipEpoch": 1, "executionLeaseId": "$lease"}`, "work=work:b")
	s.refused("INVALID_STATE_TRANSITION:work_unfinished at P22", "agent:cora mission.submit_for_approval", `{"artifactHashes": ["#1"]}`)
	s.done()
}

func TestRootHumanOpensTheGateInAChildMission(t *testing.T) {
	s := newSite(t)
	s.child(failBlocks)
	s.must("agent:dora membership.change", `{"member": {"type": "agent", "id": "agent:wes"}, "role": "worker"}`, "group:c")
	s.must("agent:dora work.authorize", `{"contract": {"@": "contract", "goal": "Inner", "executionApproval": "human_required", "budget": {"modelTokenLimit": 100}}}`, "group:c", "work=work:x")
	s.must("agent:dora work.offer", offering1(""), "group:c", "work=work:x")
	s.keep("offer0", "createdOfferIds.0")
	s.must("agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "group:c", "work=work:x")
	s.refused("APPROVAL_REQUIRED:execution at P23", "agent:wes work.start", `{"ownershipEpoch": 1}`, "group:c", "work=work:x")
	inC := `{"@": "grant", "missionId": "mission:c", "groupId": "group:c", "workItemId": "work:x", "approver": {"type": "agent", "id": "agent:cora"}}`
	s.refused(afRole, "agent:cora "+grantKindName, granting(`"approval": `+inC), "group:c", "work=work:x")
	s.known["approval"] = "approval:1"
	s.must("human:olga "+grantKindName, granting(`"approval": `+strings.Replace(inC, `{"type": "agent", "id": "agent:cora"}`, `{"type": "human", "id": "human:olga"}`, 1)), "group:c", "work=work:x")
	s.must("agent:wes work.start", `{"ownershipEpoch": 1}`, "group:c", "work=work:x")
	s.done()
}
