package groups

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/budget"
)

func failing(by, edits string) string {
	return `{"reason": "broken", "evidence": [{"@": "failure", "generatedBy": {"type": "agent", "id": "` + by + `"}` + comma(edits) + `}]}`
}

func TestFailRefuses(t *testing.T) {
	cora := "agent:cora work.fail"
	refuseAll(t, func(s *site) {
		s.queued("work:a", "")
		s.authorize("work:gone", "")
		s.must("agent:cora work.cancel", `{"reason": "no"}`, "work=work:gone")
	}, "work:a", []negative{
		{"an observer", afRole, "agent:otto work.fail", failing("agent:otto", ""), ""},
		{"a human", afRole, "human:olga work.fail", failing("agent:cora", ""), ""},
		{"no Evidence", svf, cora, `{"reason": "broken", "evidence": []}`, ""},
		{"Evidence that passed only", "INVALID_COMMAND:evidence_incomplete at P23", cora, failing("agent:cora", `"result": "passed"`), ""},
		{"Evidence of another type", "INVALID_COMMAND:binding_mismatch at P18", cora, failing("agent:cora", `"type": "business_rule"`), ""},
		{
			"an owner that does not execute", wleExec, "agent:wes work.fail",
			strings.Replace(failing("agent:wes", ""), "{", `{"ownershipEpoch": 1, "executionLeaseId": "urn:lease:0",`, 1), "",
		},
		{"a Worker's epoch without its lease", svf, "agent:wes work.fail", strings.Replace(failing("agent:wes", ""), "{", `{"ownershipEpoch": 1,`, 1), ""},
		{
			"Evidence by another in Worker capacity", "AUTH_FORBIDDEN:signer at P17", "agent:wes work.fail",
			strings.Replace(failing("agent:rita", ""), "{", `{"ownershipEpoch": 1, "executionLeaseId": "urn:lease:0",`, 1), "",
		},
		{"a failure code in lower case", svf, cora, strings.Replace(failing("agent:cora", ""), "{", `{"failureCode": "oops",`, 1), ""},
		{
			"finished work", "INVALID_STATE_TRANSITION:state at P22", cora,
			failing("agent:cora", `"workItemId": "work:gone", "subject": {"type": "work_item", "id": "work:gone"}`), "work=work:gone",
		},
	})
}

// reach brings work:a into a state.
func (s *site) reach(state string) {
	s.t.Helper()
	switch state {
	case "open":
		s.authorize("work:a", "")
	case "offered":
		s.offered("work:a", "", "wes")
	case "queued":
		s.queued("work:a", "")
	case "active":
		s.active("work:a", "")
	case "blocked":
		s.active("work:a", "")
		s.must("agent:wes work.block", workerCommands["work.block"], "work=work:a")
	case "submitted":
		s.submitted("work:a", "")
	case "verified":
		s.submitted("work:a", "")
		s.must("agent:cora work.accept_result", `{"evidence": ["@review"]}`, "work=work:a")
	case "failed":
		s.authorize("work:a", "")
		s.must("agent:cora work.fail", failing("agent:cora", ""), "work=work:a")
	case "cancelled":
		s.authorize("work:a", "")
		s.must("agent:cora work.cancel", `{"reason": "no"}`, "work=work:a")
	}
	s.stateIs("work:a", state)
}

var allWorkStates = []string{"open", "offered", "queued", "active", "blocked", "submitted", "verified", "failed", "cancelled"}

// TestEndsFromEachState walks the rows "open … submitted → failed, cancelled"
// and the pairs that have no row.
func TestEndsFromEachState(t *testing.T) {
	for _, state := range allWorkStates {
		for _, c := range []struct{ line, payload, to string }{
			{"agent:cora work.fail", failing("agent:cora", ""), "failed"},
			{"agent:cora work.cancel", `{"reason": "no"}`, "cancelled"},
			{"human:olga work.cancel", `{"reason": "no"}`, "cancelled"},
			{"service:policy work.cancel", `{"reason": "no"}`, "cancelled"},
		} {
			t.Run(state+" "+c.line, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				s.unchecked = true
				s.reach(state)
				s.unchecked = false
				if state == "verified" || state == "failed" || state == "cancelled" {
					s.refused("INVALID_STATE_TRANSITION:state at P22", c.line, c.payload, "work=work:a")
					return
				}
				s.must(c.line, c.payload, "work=work:a")
				w := s.item("work:a")
				if w.State != c.to || w.Owner != nil || len(w.openLeases()) != 0 || len(pendingOffers(w.Offers)) != 0 {
					t.Errorf("%s owner %v leases %d offers %v", w.State, w.Owner, len(w.openLeases()), statuses(w))
				}
				if r := s.g().Ledger.Root().Remaining(); r[1] != 10000 {
					t.Errorf("remaining %v", r)
				}
				s.done()
			})
		}
	}
	s := newSite(t)
	s.queued("work:a", "")
	s.refused(afRole, "agent:wes work.cancel", `{"reason": "no"}`, "work=work:a")
}

func TestWorkerReportsFailureAndTheCoordinatorOffersAgain(t *testing.T) {
	s := newSite(t)
	s.active("work:a", "")
	s.must("agent:wes work.fail", workerCommands["work.fail"], "work=work:a")
	if s.value("ownershipEpoch") != "1" {
		t.Error("the Event names the epoch")
	}
	s.refused(stale, "agent:wes work.checkpoint", workerCommands["work.checkpoint"], "work=work:a")
	s.offer("work:a", "", "wes")
	s.must("agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
	if s.item("work:a").Owner.OwnershipEpoch != 2 {
		t.Error("a new Ownership Epoch")
	}
	s.done()
}

const recordUsage = "ext.missionweaveprotocol.core.resource_usage_record"

func usage(delta string) string {
	return `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "usageDelta": {` + delta + `}}`
}

func TestUsageRefuses(t *testing.T) {
	wes := "agent:wes " + recordUsage
	refuseAll(t, func(s *site) { s.active("work:a", "") }, "work:a", []negative{
		{"a zero delta", "SCHEMA_VALIDATION_FAILED:usage_zero at P10", wes, usage(`"modelTokens": 0`), ""},
		{"one dimension over", budgetAtP24, wes, usage(`"modelTokens": 1, "toolCalls": 11`), ""},
		{"a dimension the budget lacks", budgetAtP24, wes, usage(`"computeSeconds": 1`), ""},
		{"money with seven decimals", "SCHEMA_VALIDATION_FAILED:money at P10", wes, usage(`"financial": 0.0000001, "currency": "EUR"`), ""},
		{"another currency", "INVALID_COMMAND:currency_mismatch at P23", wes, usage(`"financial": 1, "currency": "USD"`), ""},
		{"money without currency", "SCHEMA_VALIDATION_FAILED:currency at P10", wes, usage(`"financial": 1`), ""},
		{"the Coordinator", notOwner, "agent:cora " + recordUsage, usage(`"modelTokens": 1`), ""},
		{"a human", afRole, "human:olga " + recordUsage, usage(`"modelTokens": 1`), ""},
		{"a meter with an unknown lease", unknownRef, "service:metering " + recordUsage, strings.Replace(usage(`"modelTokens": 1`), "$lease", "urn:lease:0", 1), ""},
		{"a meter with another epoch", unknownRef, "service:metering " + recordUsage, strings.Replace(usage(`"modelTokens": 1`), ": 1,", ": 2,", 1), ""},
		{"a service without the grant", "AUTH_FORBIDDEN:policy at P17", "service:policy " + recordUsage, usage(`"modelTokens": 1`), ""},
		{"an account revision that is not current", "REVISION_CONFLICT at P21", wes, usage(`"modelTokens": 1`), "revision=1"},
	})
}

func TestUsageChargesTheAncestryAndPauses(t *testing.T) {
	s := newSite(t)
	s.authorize("work:top", "")
	s.must("agent:cora work.authorize", `{"contract": {"@": "contract", "goal": "work:a", "budget": {"currency": "EUR", "financialLimit": 2, "modelTokenLimit": 100, "toolCallLimit": 5}}, "parentWorkItemId": "work:top"}`, "work=work:a")
	s.offer("work:a", "", "wes")
	s.must("agent:wes work.accept_offer", `{"offerId": "$offer0", "ownershipLeaseSeconds": 86400}`, "work=work:a")
	s.start("work:a", 1)
	s.must("agent:wes "+recordUsage, usage(`"financial": 0.5, "currency": "EUR", "modelTokens": 40, "toolCalls": 5`), "work=work:a", "revision=0")
	if s.value("cumulativeUsage.financial") != "0.5" || s.value("remainingBudget.modelTokenLimit") != "60" || s.value("missionCumulativeUsage.modelTokens") != "40" {
		t.Errorf("%s", s.last.Event.Payload)
	}
	// toolCalls are used up: recorded, and nothing pauses.
	if got := s.logged(2); !cmp.Equal(got, []string{eventUsageRecorded, eventBudgetExhausted}) {
		t.Errorf("%v", got)
	}
	s.must("agent:wes ext.missionweaveprotocol.core.work_execution_lease_renew", `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "leaseSeconds": 600}`, "work=work:a")
	s.must("agent:wes "+recordUsage, usage(`"modelTokens": 60`), "work=work:a", "revision=2")
	for line, payload := range map[string]string{
		"agent:wes ext.missionweaveprotocol.core.work_execution_lease_renew": `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "leaseSeconds": 900}`,
		"agent:wes " + recordUsage: usage(`"financial": 0.1, "currency": "EUR"`),
	} {
		s.refused("BUDGET_EXCEEDED:paused at P24", line, payload, "work=work:a")
	}
	// A meter may still charge what is left; the Worker may hand in.
	s.must("service:metering "+recordUsage, usage(`"financial": 0.1, "currency": "EUR"`), "work=work:a")
	s.must("agent:wes artifact.publish", workerCommands["artifact.publish"], "work=work:a")
	s.must("agent:wes work.checkpoint", workerCommands["work.checkpoint"], "work=work:a")
	s.refused("BUDGET_EXCEEDED:paused at P24", "agent:wes work.start", `{"ownershipEpoch": 1}`, "work=work:a")
	top, _ := s.g().Ledger.Account(budget.WorkItemRef("work:top"))
	if top.Usage() != (budget.Vector{600_000, 100, 5}) {
		t.Errorf("usage of the parent %v", top.Usage())
	}
	s.done()
}

// logged is the kinds of the last n Events.
func (s *site) logged(n int) []string {
	log := s.logs["group:g"]
	var out []string
	for _, b := range log[len(log)-n:] {
		out = append(out, decodeStored(s.t, b).Kind)
	}
	return out
}

func TestMeterChargesClosedWorkWithinWhatIsLeft(t *testing.T) {
	s := newSite(t)
	s.active("work:a", "")
	s.must("agent:cora work.cancel", `{"reason": "no"}`, "work=work:a")
	s.authorize("work:b", `"budget": {"modelTokenLimit": 9990}`)
	s.refused(budgetAtP24, "service:metering "+recordUsage, usage(`"modelTokens": 11`), "work=work:a")
	s.must("service:metering "+recordUsage, usage(`"modelTokens": 10`), "work=work:a")
	if r := s.g().Ledger.Root().Remaining(); r[1] != 0 {
		t.Errorf("remaining %v", r)
	}
	s.done()
}

func TestOwnerWhoseMembershipEndedIsNeverLive(t *testing.T) {
	s := newSite(t)
	s.active("work:a", "")
	s.must("agent:cora membership.end", `{"member": {"type": "agent", "id": "agent:wes"}}`)
	w := s.item("work:a")
	if w.State != "active" || w.Owner == nil || !w.OwnerFenced || len(w.openLeases()) != 0 {
		t.Errorf("%s %v", w.State, w.Owner)
	}
	s.must("agent:cora membership.change", `{"member": {"type": "agent", "id": "agent:wes"}, "role": "worker"}`)
	s.refused(stale, "agent:wes work.checkpoint", workerCommands["work.checkpoint"], "work=work:a")
	s.offer("work:a", "", "rita")
	if s.item("work:a").Owner != nil {
		t.Error("the offer fences the owner")
	}
	s.done()
}

func TestTakeoverReturnsActiveWorkToTheQueue(t *testing.T) {
	s := newSite(t)
	s.active("work:a", "")
	c := command{internal: true}
	c.Actor, c.Kind = service("identity"), "ext.missionweaveprotocol.identity.session_open"
	c.Payload = []byte(`{"agentId":"agent:wes"}`)
	if _, err := s.send(c); err != nil {
		t.Fatal(err)
	}
	s.stateIs("work:a", "queued")
	s.refused(wleExec, "agent:wes work.checkpoint", workerCommands["work.checkpoint"], "work=work:a")
	s.start("work:a", 1)
	if l := s.item("work:a").Execution; l.SessionEpoch != 2 {
		t.Errorf("session %d", l.SessionEpoch)
	}
	s.done()
}
