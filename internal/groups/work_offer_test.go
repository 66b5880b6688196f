package groups

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func offering1(edits string) string {
	return `{"candidateAgentIds": ["agent:wes"], "selectionBasis": "@basis"` + comma(edits) + `}`
}

func TestOfferRefuses(t *testing.T) {
	cora := "agent:cora work.offer"
	refuseAll(t, func(s *site) {
		s.authorize("work:a", "")
		s.queued("work:owned", "")
		s.submitted("work:handed", "")
		s.authorize("work:gone", "")
		s.must("agent:cora work.cancel", `{"reason": "no"}`, "work=work:gone")
	}, "work:a", []negative{
		{"a Worker", afRole, "agent:wes work.offer", offering1(""), ""},
		{"the owner without emergency override", "AUTH_FORBIDDEN:override_required at P17", "human:olga work.offer", offering1(""), ""},
		{"an unregistered candidate", unknownRef, cora, `{"candidateAgentIds": ["agent:zzz"], "selectionBasis": "@basis"}`, ""},
		{"an unknown WorkItem", unknownRef, cora, offering1(""), "work=work:zzz"},
		{"a live owner", "INVALID_STATE_TRANSITION:owner_live at P22", cora, offering1(""), "work=work:owned"},
		{"submitted work", "INVALID_STATE_TRANSITION:state at P22", cora, offering1(""), "work=work:handed"},
		{"cancelled work", "INVALID_STATE_TRANSITION:state at P22", cora, offering1(""), "work=work:gone"},
		{"a revision too low", "REVISION_CONFLICT at P21", cora, offering1(""), "revision=0"},
		{"a candidate without Membership", "INVALID_COMMAND:candidate at P23", cora, `{"candidateAgentIds": ["agent:stranger"], "selectionBasis": "@basis"}`, ""},
		{"a candidate without work.accept_offer", "INVALID_COMMAND:candidate at P23", cora, `{"candidateAgentIds": ["agent:otto"], "selectionBasis": "@basis"}`, ""},
		{
			"a candidate without the capability", "INVALID_COMMAND:capability_mismatch at P23", cora,
			offering1(`"contract": {"@": "contract", "contractVersion": 2, "requiredCapabilities": [{"id": "code.write", "version": "1.1.0"}]}`), "",
		},
		{"a basis that is not eligible", "INVALID_COMMAND:selection_basis at P23", cora, offering1(`"selectionBasis": {"@": "basis", "authorizationEligible": false}`), ""},
		{"a basis for other capabilities", "INVALID_COMMAND:selection_basis at P23", cora, offering1(`"selectionBasis": {"@": "basis", "requiredCapabilities": [{"id": "code.write", "version": "1.1.0"}]}`), ""},
		{"a verified match no candidate holds", "INVALID_COMMAND:selection_basis at P23", cora, offering1(`"selectionBasis": {"@": "basis", "verifiedMatches": [{"id": "code.write", "version": "9.0.0"}]}`), ""},
		{"a revision that is not the next", "INVALID_COMMAND:contract_version at P23", cora, offering1(`"contract": {"@": "contract", "contractVersion": 3}`), ""},
		{"a revision in mode extend", "INVALID_COMMAND:mode at P23", cora, offering1(`"mode": "extend", "contract": {"@": "contract", "contractVersion": 2}`), ""},
		{"a revision that depends on itself", "INVALID_COMMAND:cycle at P23", cora, offering1(`"contract": {"@": "contract", "contractVersion": 2, "dependencyWorkItemIds": ["work:a"]}`), ""},
		{"a revision over the budget", budgetAtP24, cora, offering1(`"contract": {"@": "contract", "contractVersion": 2, "budget": {"modelTokenLimit": 9000}}`), ""},
		{"seventeen candidates", svf, cora, `{"candidateAgentIds": ["a:1","a:2","a:3","a:4","a:5","a:6","a:7","a:8","a:9","a:10","a:11","a:12","a:13","a:14","a:15","a:16","a:17"], "selectionBasis": "@basis"}`, ""},
		{"a package by an outsider", "AUTH_FORBIDDEN:signer at P17", cora, offering1(`"contextPackage": {"contextPackageId": "context:1", "version": 1,
			"missionId": "mission:m", "groupId": "group:g", "sourceEventRange": {"fromSequence": 1, "toSequence": 2, "eventIds": ["urn:x:1"]},
			"artifactHashes": [], "summary": "s", "decisions": [], "constraints": [], "unresolvedQuestions": [],
			"generatedBy": {"type": "agent", "id": "agent:stranger"}}`), ""},
	})
}

func TestOfferAfterTheContractDeadlineIsRefused(t *testing.T) {
	s := newSite(t)
	s.authorize("work:a", `"deadline": "now+1h"`)
	s.wait(3600)
	s.refused(deadlineIC, "agent:cora work.offer", offering1(""), "work=work:a")
	s.must("agent:cora work.offer", offering1(`"contract": {"@": "contract", "goal": "work:a", "contractVersion": 2}`), "work=work:a")
}

func TestOfferExpiryIsBoundByTheContractDeadline(t *testing.T) {
	s := newSite(t)
	s.authorize("work:a", `"deadline": "now+60s"`)
	s.must("agent:cora work.offer", offering1(`"offerExpiresInSeconds": 600`), "work=work:a")
	if got := s.item("work:a"); got.Offers[0].ExpiresAt != got.Contract.Deadline {
		t.Errorf("offer until %s, deadline %s", got.Offers[0].ExpiresAt, got.Contract.Deadline)
	}
}

func statuses(w *WorkItem) []string {
	var out []string
	for _, o := range w.Offers {
		out = append(out, o.AgentID+" "+o.Status)
	}
	return out
}

func TestOfferModes(t *testing.T) {
	s := newSite(t)
	s.offered("work:a", "", "wes", "rita")
	s.known["first"] = s.known["offer0"]
	s.wait(10)
	// Extend keeps the id and gives a new expiry; others stay pending.
	s.must("agent:cora work.offer", offering1(`"mode": "extend"`), "work=work:a")
	if s.value("extendedOfferIds.0") != s.known["first"] || len(s.item("work:a").Offers) != 2 {
		t.Errorf("extended %s", s.value("extendedOfferIds.0"))
	}
	// A candidate whose offer has lapsed gets a new one.
	s.wait(295)
	s.must("agent:cora work.offer", `{"candidateAgentIds": ["agent:wes", "agent:rita"], "selectionBasis": "@basis", "mode": "extend"}`, "work=work:a")
	if diff := cmp.Diff([]string{"agent:wes pending", "agent:rita expired", "agent:rita pending"}, statuses(s.item("work:a"))); diff != "" {
		t.Error(diff)
	}
	// Replace withdraws everything and mints anew.
	s.must("agent:cora work.offer", offering1(""), "work=work:a")
	if diff := cmp.Diff([]string{"agent:wes withdrawn", "agent:rita expired", "agent:rita withdrawn", "agent:wes pending"}, statuses(s.item("work:a"))); diff != "" {
		t.Error(diff)
	}
	s.refused("WORK_OFFER_EXPIRED:withdrawn at P20", "agent:wes work.accept_offer", `{"offerId": "$first"}`, "work=work:a")
	s.done()
}

func TestOfferWithRevisionWithdrawsAndRenewsTheContract(t *testing.T) {
	s := newSite(t)
	s.offered("work:a", "", "wes")
	s.must("agent:cora work.offer", offering1(`"contract": {"@": "contract", "goal": "Better", "contractVersion": 2, "budget": {"modelTokenLimit": 500}}`), "work=work:a")
	w := s.item("work:a")
	if w.Contract.Goal != "Better" || w.Contract.ContractVersion != 2 || w.Revision != 4 {
		t.Errorf("goal %q version %d revision %d", w.Contract.Goal, w.Contract.ContractVersion, w.Revision)
	}
	a, _ := s.g().Ledger.Account(w.Account())
	if a.Limit[1] != 500 || s.g().Ledger.Root().Remaining()[1] != 9500 {
		t.Errorf("limit %v", a.Limit)
	}
	s.done()
}

// TestOfferFencesALapsedOwner covers the rule "an expired owner is fenced
// first" in each state it can arise in.
func TestOfferFencesALapsedOwner(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(*site)
		reasons []string
	}{
		{"queued, ownership lapsed", func(s *site) {
			s.offered("work:a", "", "wes")
			s.must("agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
			s.wait(900)
		}, []string{"expired"}},
		{"queued, start-by missed", func(s *site) {
			s.offered("work:a", "", "wes")
			s.must("agent:wes work.accept_offer", `{"offerId": "$offer0", "startBy": "now+60s"}`, "work=work:a")
			s.wait(60)
		}, []string{"owner_lapsed"}},
		{"queued, card lost the capability", func(s *site) {
			s.queued("work:a", "")
			s.agent["agent:wes"].Card.Capabilities = s.agent["agent:wes"].Card.Capabilities[1:]
		}, []string{"owner_lapsed"}},
		{"active, execution lapsed", func(s *site) { s.active("work:a", ""); s.wait(300) }, []string{"owner_lapsed", "expired"}},
		{"blocked, blocked lease lapsed", func(s *site) {
			s.active("work:a", "")
			s.must("agent:wes work.block", `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "progress": "@progress",
				"reason": "stuck", "requiredResolution": "help", "blockedLeaseSeconds": 60}`, "work=work:a")
			s.wait(60)
		}, []string{"blocked", "expired", "expired"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			c.prepare(s)
			s.must("agent:cora work.offer", `{"candidateAgentIds": ["agent:rita"], "selectionBasis": "@basis"}`, "work=work:a")
			w := s.item("work:a")
			if w.Owner != nil || w.OwnershipEpoch != 1 || len(w.openLeases()) != 0 || w.State != "offered" {
				t.Errorf("owner %v epoch %d state %s", w.Owner, w.OwnershipEpoch, w.State)
			}
			var reasons []string
			for _, l := range w.ClosedLeases {
				reasons = append(reasons, l.ClosureReason)
			}
			if diff := cmp.Diff(c.reasons, reasons); diff != "" {
				t.Error(diff)
			}
			s.refused("WORK_STALE_OWNERSHIP:stale_ownership at P19", "agent:wes work.start", `{"ownershipEpoch": 1}`, "work=work:a")
			s.keep("offer0", "createdOfferIds.0")
			s.must("agent:rita work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
			if w = s.item("work:a"); w.Owner.OwnershipEpoch != 2 {
				t.Errorf("epoch %d", w.Owner.OwnershipEpoch)
			}
			s.refused("WORK_STALE_OWNERSHIP:stale_ownership at P19", "agent:wes work.start", `{"ownershipEpoch": 2}`, "work=work:a")
			s.done()
		})
	}
}

func TestFailedWorkIsOfferedAgainOnlyWithFunds(t *testing.T) {
	s := newSite(t)
	s.authorize("work:a", "")
	s.must("agent:cora work.fail", `{"reason": "no", "evidence": [{"@": "failure", "generatedBy": {"type": "agent", "id": "agent:cora"}}]}`, "work=work:a")
	s.authorize("work:b", `"budget": {"modelTokenLimit": 9500}`)
	s.refused(budgetAtP24, "agent:cora work.offer", offering1(""), "work=work:a")
	s.must("agent:cora work.offer", offering1(`"contract": {"@": "contract", "goal": "Smaller", "contractVersion": 2, "budget": {"modelTokenLimit": 500}}`), "work=work:a")
	if r := s.g().Ledger.Root().Remaining(); r[1] != 0 {
		t.Errorf("remaining %v", r)
	}
	s.done()
}

func TestAcceptRefuses(t *testing.T) {
	refuseAll(t, func(s *site) {
		s.offered("work:a", "", "wes", "rita")
		s.offered("work:b", "", "wes")
		s.known["other"] = s.known["offer0"]
		s.offer("work:a", "", "wes", "rita")
	}, "work:a", []negative{
		{"an unknown offer", unknownRef, "agent:wes work.accept_offer", `{"offerId": "offer:zzz"}`, ""},
		{"an offer of another WorkItem", unknownRef, "agent:wes work.accept_offer", `{"offerId": "$other"}`, ""},
		{"another's offer", "AUTH_FORBIDDEN:not_candidate at P18b", "agent:rita work.accept_offer", `{"offerId": "$offer0"}`, ""},
		{"somebody without an offer", "AUTH_FORBIDDEN:not_candidate at P18b", "agent:dora work.accept_offer", `{"offerId": "$offer0"}`, ""},
		{"an observer", "AUTH_FORBIDDEN:scope at P17", "agent:otto work.accept_offer", `{"offerId": "$offer0"}`, ""},
		{"a human", "AUTH_FORBIDDEN:scope at P17", "human:olga work.accept_offer", `{"offerId": "$offer0"}`, ""},
		{"a start-by after the lease", deadlineIC, "agent:wes work.accept_offer", `{"offerId": "$offer0", "startBy": "now+901s"}`, ""},
		{"a start-by in the past", deadlineIC, "agent:wes work.accept_offer", `{"offerId": "$offer0", "startBy": "now"}`, ""},
		{"a revision too high", "REVISION_CONFLICT at P21", "agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "revision=99"},
		{"no offer named", svf, "agent:wes work.accept_offer", `{}`, ""},
	})
}

func TestExactlyOneCandidateWins(t *testing.T) {
	s := newSite(t)
	s.offered("work:a", "", "wes", "rita")
	s.must("agent:rita work.accept_offer", `{"offerId": "$offer1"}`, "work=work:a", "revision=2")
	if diff := cmp.Diff([]string{"agent:wes lost_race", "agent:rita accepted"}, statuses(s.item("work:a"))); diff != "" {
		t.Error(diff)
	}
	// The loser learns that it lost, whatever revision it expected.
	s.refused("WORK_ALREADY_OWNED:lost_race at P20", "agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
	s.refused("WORK_ALREADY_OWNED:lost_race at P20", "agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a", "revision=2")
	s.refused("WORK_ALREADY_OWNED:lost_race at P20", "agent:wes ext.missionweave.work.offer_decline", `{"offerId": "$offer0", "declineReason": "other"}`, "work=work:a")
	s.refused("WORK_ALREADY_OWNED:accepted at P20", "agent:rita work.accept_offer", `{"offerId": "$offer1"}`, "work=work:a")
	s.done()
}

func TestAcceptedOfferIsNoLongerThereToDecline(t *testing.T) {
	s := newSite(t)
	s.offered("work:a", "", "wes")
	s.must("agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
	s.refused("WORK_OFFER_EXPIRED:accepted at P20", "agent:wes ext.missionweave.work.offer_decline", `{"offerId": "$offer0", "declineReason": "other"}`, "work=work:a")
	s.stateIs("work:a", "queued")
}

func TestOfferIsOpenInAHalfOpenInterval(t *testing.T) {
	s := newSite(t)
	s.offered("work:a", "", "wes")
	s.wait(300)
	s.refused("WORK_OFFER_EXPIRED:expired at P20", "agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
	s.refused("WORK_OFFER_EXPIRED:expired at P20", "agent:wes ext.missionweave.work.offer_decline", `{"offerId": "$offer0", "declineReason": "other"}`, "work=work:a")
}

func TestAcceptNeedsTheCapabilityStill(t *testing.T) {
	s := newSite(t)
	s.offered("work:a", "", "wes")
	s.agent["agent:wes"].Card.Capabilities = nil
	s.refused("AUTH_FORBIDDEN:capability at P23", "agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
}

func TestQueueLimitCountsAcrossWork(t *testing.T) {
	s := newSite(t)
	s.org.Limits.QueuedWorkItems = 1
	s.queued("work:a", "")
	s.offered("work:b", "", "wes")
	s.refused("RATE_LIMITED:queued_work_items at P23", "agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:b")
}

func TestDeclineGivesAReason(t *testing.T) {
	for _, reason := range []string{"capacity", "deadline", "capability", "authorization", "dependency", "budget", "other"} {
		s := newSite(t)
		s.offered("work:a", "", "wes")
		decline := `{"offerId": "$offer0", "declineReason": "` + reason + `"}`
		s.refused("AUTH_FORBIDDEN:not_candidate at P18b", "agent:rita ext.missionweave.work.offer_decline", decline, "work=work:a")
		s.must("agent:wes ext.missionweave.work.offer_decline", decline, "work=work:a")
		if o := s.item("work:a").Offers[0]; o.Status != "declined" || o.DeclineReason != reason {
			t.Errorf("%s: %+v", reason, o)
		}
		s.refused("WORK_OFFER_EXPIRED:declined at P20", "agent:wes ext.missionweave.work.offer_decline", decline, "work=work:a")
		s.refused("WORK_OFFER_EXPIRED:declined at P20", "agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
		s.stateIs("work:a", "offered")
		s.done()
	}
	s := newSite(t)
	s.offered("work:a", "", "wes")
	s.refused(svf, "agent:wes ext.missionweave.work.offer_decline", `{"offerId": "$offer0", "declineReason": "mood"}`, "work=work:a")
}

func TestDependencyAdd(t *testing.T) {
	add := func(ids string) string { return `{"dependencyWorkItemIds": [` + ids + `]}` }
	cora := "agent:cora ext.missionweaveprotocol.core.work_dependency_add"
	refuseAll(t, func(s *site) {
		s.authorize("work:a", "")
		s.authorize("work:b", `"dependencyWorkItemIds": ["work:a"]`)
		s.authorize("work:c", `"dependencyWorkItemIds": ["work:b"]`)
		s.queued("work:owned", "")
	}, "work:a", []negative{
		{"on itself", "INVALID_COMMAND:cycle at P23", cora, add(`"work:a"`), ""},
		{"on what depends on it", "INVALID_COMMAND:cycle at P23", cora, add(`"work:c"`), ""},
		{"twice", "INVALID_COMMAND:duplicate at P23", cora, add(`"work:a"`), "work=work:b"},
		{"on unknown work", unknownRef, cora, add(`"work:zzz"`), ""},
		{"on owned work", "INVALID_STATE_TRANSITION:acceptance_required at P22", cora, add(`"work:a"`), "work=work:owned"},
		{"by a Worker", afRole, "agent:wes ext.missionweaveprotocol.core.work_dependency_add", add(`"work:b"`), ""},
		{"of nothing", svf, cora, add(""), ""},
	})
	s := newSite(t)
	s.authorize("work:a", "")
	s.offered("work:b", "", "wes")
	s.must("service:policy ext.missionweaveprotocol.core.work_dependency_add", add(`"work:a"`), "work=work:b")
	w := s.item("work:b")
	if w.Contract.ContractVersion != 2 || w.State != "offered" || w.Offers[0].Status != "withdrawn" {
		t.Errorf("version %d state %s offers %v", w.Contract.ContractVersion, w.State, statuses(w))
	}
	s.done()
}
