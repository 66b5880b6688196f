package groups

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// rowCommands are Commands on work:a that are right but for its state; epoch
// and lease are filled in. Commands that need more than a state (an offer, a
// request, an approval) get it from prepareRow.
var rowCommands = map[string]struct{ actor, payload string }{
	"work.offer":                          {"agent:cora", `{"candidateAgentIds": ["agent:rita"], "selectionBasis": "@basis"}`},
	"work.accept_offer":                   {"agent:wes", `{"offerId": "$offer0"}`},
	"ext.missionweave.work.offer_decline": {"agent:wes", `{"offerId": "$offer0", "declineReason": "other"}`},
	"work.start":                          {"agent:wes", `{"ownershipEpoch": EPOCH}`},
	"work.checkpoint":                     {"agent:wes", `{"ownershipEpoch": EPOCH, "executionLeaseId": "LEASE", "progress": "@progress"}`},
	"work.block":                          {"agent:wes", `{"ownershipEpoch": EPOCH, "executionLeaseId": "LEASE", "progress": "@progress", "reason": "stuck", "requiredResolution": "help"}`},
	"work.unblock":                        {"agent:cora", `{}`},
	"artifact.publish":                    {"agent:wes", `{"ownershipEpoch": EPOCH, "executionLeaseId": "LEASE", "artifact": {"@": "artifact", "artifactId": "artifact:row", "contentHash": "#5"}}`},
	"work.submit":                         {"agent:wes", `{"ownershipEpoch": EPOCH, "executionLeaseId": "LEASE", "artifactHashes": ["#4"], "evidence": [{"@": "evidence", "evidenceId": "evidence:row"}]}`},
	"work.accept_result":                  {"agent:cora", `{"evidence": ["@review"]}`},
	"work.fail":                           {"agent:cora", failing("agent:cora", `"evidenceId": "evidence:row"`)},
	causeOwnFailure:                       {"agent:wes", strings.Replace(failing("agent:wes", `"evidenceId": "evidence:row"`), "{", `{"ownershipEpoch": EPOCH, "executionLeaseId": "LEASE",`, 1)},
	"work.cancel":                         {"agent:cora", `{"reason": "no"}`},
	"ext.missionweave.budget.increase":    {"agent:cora", `{"budget": {"currency": "EUR", "financialLimit": 11, "modelTokenLimit": 1000, "toolCallLimit": 10}, "reason": "more"}`},
	"approval.grant_execution":            {"human:olga", `{"approval": {"@": "grant", "approvalId": "approval:row"}, "ownershipEpoch": EPOCH, "operations": ["write"], "resources": [], "expiresAt": "now+1h"}`},
	"ext.missionweave.approval.deny_execution":                 {"human:olga", `{"approval": {"@": "grant", "approvalId": "approval:row", "decision": "denied"}, "ownershipEpoch": EPOCH}`},
	"ext.missionweave.approval.request_execution":              {"agent:cora", `{"requestId": "request:row", "ownershipEpoch": EPOCH, "operations": ["write"], "resources": [], "expiresAt": "now+1h"}`},
	"ext.missionweave.approval.request_action":                 {"service:authorization", `{"requestId": "request:row", "actionId": "act:row", "actionType": "t", "agentId": "agent:wes", "ownershipEpoch": EPOCH, "operation": "write", "resources": [], "argumentsDigest": "#1", "argsEqualityVersion": "1", "manifestVersion": "1", "ruleId": "r", "reason": "w", "provenance": [], "sideEffectClass": "external", "expiresAt": "now+1h"}`},
	"ext.missionweave.work.ownership_lease_renew":              {"agent:wes", `{"ownershipEpoch": EPOCH, "leaseSeconds": 100000}`},
	"ext.missionweaveprotocol.core.work_dependency_add":        {"agent:cora", `{"dependencyWorkItemIds": ["work:dep"]}`},
	"ext.missionweaveprotocol.core.work_execution_lease_renew": {"agent:wes", `{"ownershipEpoch": EPOCH, "executionLeaseId": "LEASE", "leaseSeconds": 600}`},
	"ext.missionweaveprotocol.core.resource_usage_record":      {"agent:wes", `{"ownershipEpoch": EPOCH, "executionLeaseId": "LEASE", "usageDelta": {"modelTokens": 1}}`},
	"mission.create_child":                                     {"agent:cora", `{"missionId": "mission:row", "groupId": "group:row", "coordinatorAgentId": "agent:dora", "objective": "o", "definitionOfDone": ["@criterion"], "budget": {"modelTokenLimit": 1}, "deadline": "now+1h"}`},
}

// ready gives work:a what a row's condition asks for beyond its state: the
// owner is not live for an offer, there is an Artifact to submit.
func (s *site) ready(cause string) {
	switch w := s.item("work:a"); cause {
	case "work.offer":
		s.wait(86399)
		s.agent["agent:wes"].Card.Capabilities = nil
	case "work.submit":
		if w.State == "active" {
			s.must("agent:wes artifact.publish", `{"artifact": {"@": "artifact", "artifactId": "artifact:4", "contentHash": "#4"}, "ownershipEpoch": 1, "executionLeaseId": "$lease"}`, "work=work:a")
		}
	}
}

// TestEveryPairOfStateAndCommand sends every Command on a WorkItem in every
// state: where the table has a row it is taken and ends where the row says,
// where it has none the Command is refused and changes nothing.
func TestEveryPairOfStateAndCommand(t *testing.T) {
	for cause, c := range rowCommands {
		var row Transition
		for _, r := range WorkItemTransitions {
			if r.Cause == cause {
				row = r
			}
		}
		if row.Cause == "" {
			t.Fatalf("no row for %s", cause)
		}
		for _, state := range allWorkStates {
			t.Run(cause+" in "+state, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				s.unchecked = true
				s.authorize("work:dep", "")
				s.reach(state)
				s.ready(cause)
				s.unchecked = false
				w := s.item("work:a")
				lease := "urn:lease:none"
				if w.Execution != nil {
					lease = w.Execution.LeaseID
				}
				if s.known["offer0"] == "" {
					s.known["offer0"] = "offer:none"
				}
				payload := strings.NewReplacer("EPOCH", fmt.Sprint(max(w.OwnershipEpoch, 1)), "LEASE", lease).Replace(c.payload)
				kind, _, _ := strings.Cut(cause, " ")
				got := s.try(c.actor+" "+kind, payload, "work=work:a")
				if !slices.Contains(row.From, state) {
					if got == "" {
						t.Errorf("%s → %s by a row that does not exist", state, s.item("work:a").State)
					}
					return
				}
				if got != "" {
					// A denial needs an epoch that was given out.
					if cause != "ext.missionweave.approval.deny_execution" || w.OwnershipEpoch != 0 {
						t.Errorf("refused: %s", got)
					}
					return
				}
				to := s.item("work:a").State
				if row.To == nil && to != state || row.To != nil && !slices.Contains(row.To, to) {
					t.Errorf("%s → %s, want %v", state, to, row.To)
				}
				s.done()
			})
		}
	}
}

// TestEveryWorkItemEventHasARow holds the table against the catalogue of
// Events.
func TestEveryWorkItemEventHasARow(t *testing.T) {
	recorded := map[string]bool{}
	for _, row := range WorkItemTransitions {
		recorded[row.Event] = true
		if _, ok := eventKinds[row.Event]; !ok {
			t.Errorf("%s records unknown %s", row.Cause, row.Event)
		}
	}
	for _, k := range EventKinds() {
		if k.Aggregate == AggregateWorkItem && !recorded[k.Kind] {
			t.Errorf("%s has no row", k.Kind)
		}
	}
	for _, k := range kinds {
		if k.WorkItem != WorkItemRequired && k.WorkItem != WorkItemNew {
			continue
		}
		if !slices.ContainsFunc(WorkItemTransitions, func(r Transition) bool { return r.Cause == k.Kind }) {
			t.Errorf("Command %s has no row", k.Kind)
		}
	}
}
