package groups

import (
	"fmt"
	"strings"
	"testing"
)

const (
	stale    = "WORK_STALE_OWNERSHIP:stale_ownership at P19"
	notOwner = "AUTH_FORBIDDEN:not_owner at P19"
	wleExec  = "WORK_LEASE_EXPIRED:execution at P20"
	wleOwner = "WORK_LEASE_EXPIRED:ownership at P20"
)

// workerCommands are the kinds that a Worker sends under an Execution Lease,
// with a payload that is right for work:a, epoch 1 and $lease.
var workerCommands = map[string]string{
	"ext.missionweaveprotocol.core.work_execution_lease_renew": `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "leaseSeconds": 3600}`,
	"ext.missionweaveprotocol.core.resource_usage_record":      `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "usageDelta": {"modelTokens": 1}}`,
	"work.checkpoint":  `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "progress": "@progress"}`,
	"work.block":       `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "progress": "@progress", "reason": "stuck", "requiredResolution": "help"}`,
	"artifact.publish": `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "artifact": "@artifact"}`,
	"work.submit":      `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "artifactHashes": ["#1"], "evidence": ["@evidence"]}`,
	"work.fail":        `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "reason": "broken", "evidence": ["@failure"]}`,
}

// by lets another Agent than wes send a Worker's Command: documents that the
// actor must have signed are its own.
func by(agent, payload string) string {
	return strings.NewReplacer(
		`"@failure"`, `{"@": "failure", "generatedBy": {"type": "agent", "id": "`+agent+`"}}`,
		`"@artifact"`, `{"@": "artifact", "producer": {"agentId": "`+agent+`", "agentCardVersion": 1, "capabilities": [{"id": "code.write", "version": "1.0.0"}]}}`,
	).Replace(payload)
}

// working makes work:a active, with an Artifact that work.submit can name.
func working(s *site) {
	s.active("work:a", "")
	s.must("agent:wes artifact.publish", `{"artifact": {"@": "artifact", "artifactId": "artifact:0"}, "ownershipEpoch": 1, "executionLeaseId": "$lease"}`, "work=work:a")
	s.defined["artifact"].(map[string]any)["contentHash"] = hash("2")
}

// TestWorkerCommandsAreFenced is set W of COMMANDS.md 10.1.
func TestWorkerCommandsAreFenced(t *testing.T) {
	for kind, payload := range workerCommands {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			refuseAll(t, working, "work:a", []negative{
				{"never owner", notOwner, "agent:rita " + kind, by("agent:rita", payload), ""},
				{"old or future epoch", stale, "agent:wes " + kind, strings.Replace(payload, `"ownershipEpoch": 1`, `"ownershipEpoch": 2`, 1), ""},
				{"unknown lease", wleExec, "agent:wes " + kind, strings.Replace(payload, "$lease", "urn:lease:zzz", 1), ""},
				{"lease step before revision step", wleExec, "agent:wes " + kind, strings.Replace(payload, "$lease", "urn:lease:zzz", 1), "revision=99"},
				{"revision too high", "REVISION_CONFLICT at P21", "agent:wes " + kind, payload, "revision=99"},
				{
					"no epoch", map[bool]string{true: afRole, false: svf}[kind == "work.fail"], "agent:wes " + kind,
					strings.Replace(payload, `"ownershipEpoch": 1, `, "", 1), "",
				},
				{"no lease", svf, "agent:wes " + kind, strings.Replace(payload, `"executionLeaseId": "$lease", `, "", 1), ""},
				{"stale session", "AUTH_STALE_SESSION:stale_session at P13", "agent:wes " + kind, payload, "session=9"},
			})
			s := newSite(t)
			working(s)
			s.wait(300)
			s.refused(wleExec, "agent:wes "+kind, payload, "work=work:a")
			s.refused(stale, "agent:wes "+kind, strings.Replace(payload, `"ownershipEpoch": 1`, `"ownershipEpoch": 2`, 1), "work=work:a")

			s = newSite(t)
			working(s)
			s.must("agent:wes work.checkpoint", workerCommands["work.checkpoint"], "work=work:a")
			s.refused(wleExec, "agent:wes "+kind, payload, "work=work:a")
			s.known["old"] = s.known["lease"]
			s.start("work:a", 1)
			s.refused(wleExec, "agent:wes "+kind, strings.Replace(payload, "$lease", "$old", 1), "work=work:a")

			s = newSite(t)
			working(s)
			s.agent["agent:wes"].CurrentSessionEpoch = 2
			s.refused(wleExec, "agent:wes "+kind, payload, "work=work:a")

			s = newSite(t)
			working(s)
			s.must("agent:cora membership.end", `{"member": {"type": "agent", "id": "agent:rita"}}`)
			s.wait(299)
			s.must("agent:wes "+kind, payload, "work=work:a")
			s.done()
		})
	}
}

func TestStartRefuses(t *testing.T) {
	start := `{"ownershipEpoch": 1}`
	refuseAll(t, func(s *site) {
		s.queued("work:a", "")
		s.authorize("work:open", "")
		s.queued("work:late", `"deadline": "now+60s"`)
		s.queued("work:waits", `"dependencyWorkItemIds": ["work:open"]`)
		s.queued("work:risky", `"sideEffectRisk": "external"`)
		s.queued("work:policy", `"executionApproval": "policy_required"`)
		s.active("work:running", "")
	}, "work:a", []negative{
		{"a former or foreign owner", notOwner, "agent:rita work.start", start, ""},
		{"work nobody ever owned", notOwner, "agent:wes work.start", start, "work=work:open"},
		{"a future epoch", stale, "agent:wes work.start", `{"ownershipEpoch": 2}`, ""},
		{"a second start", "INVALID_STATE_TRANSITION:state at P22", "agent:wes work.start", start, "work=work:running"},
		{"an open dependency", "INVALID_STATE_TRANSITION:dependency at P22", "agent:wes work.start", start, "work=work:waits"},
		{"an external effect without approval", "APPROVAL_REQUIRED:execution at P23", "agent:wes work.start", start, "work=work:risky"},
		{"a policy gate without approval", "APPROVAL_REQUIRED:execution at P23", "agent:wes work.start", start, "work=work:policy"},
		{"a lease longer than an hour", svf, "agent:wes work.start", `{"ownershipEpoch": 1, "executionLeaseSeconds": 3601}`, ""},
		{"a human", afRole, "human:olga work.start", start, ""},
	})
	t.Run("after start-by", func(t *testing.T) {
		s := newSite(t)
		s.offered("work:a", "", "wes")
		s.must("agent:wes work.accept_offer", `{"offerId": "$offer0", "startBy": "now+60s"}`, "work=work:a")
		s.wait(60)
		s.refused(wleOwner, "agent:wes work.start", start, "work=work:a")
	})
	t.Run("after the ownership lease", func(t *testing.T) {
		s := newSite(t)
		s.offered("work:a", "", "wes")
		s.must("agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
		s.wait(900)
		s.refused(wleOwner, "agent:wes work.start", start, "work=work:a")
	})
	t.Run("after the contract deadline", func(t *testing.T) {
		s := newSite(t)
		s.queued("work:a", `"deadline": "now+60s"`)
		s.wait(60)
		s.refused(deadlineIC, "agent:wes work.start", start, "work=work:a")
	})
	t.Run("beyond the card's concurrency", func(t *testing.T) {
		s := newSite(t)
		s.agent["agent:wes"].Card.MaxConcurrency = 1
		s.active("work:a", "")
		s.queued("work:b", "")
		s.refused("RATE_LIMITED:active_work_items at P23", "agent:wes work.start", start, "work=work:b")
	})
	t.Run("with an incompatible card", func(t *testing.T) {
		s := newSite(t)
		s.queued("work:a", "")
		s.agent["agent:wes"].Card.Capabilities = nil
		s.refused("INVALID_STATE_TRANSITION:acceptance_required at P22", "agent:wes work.start", start, "work=work:a")
	})
	t.Run("outside policy bounds", func(t *testing.T) {
		s := newSite(t)
		s.org.Leases.Execution.Max = 100
		s.queued("work:a", "")
		s.refused("INVALID_COMMAND:lease_bounds at P23", "agent:wes work.start", `{"ownershipEpoch": 1, "executionLeaseSeconds": 101}`, "work=work:a")
		s.must("agent:wes work.start", start, "work=work:a")
		if got := s.item("work:a").Execution; got.ExpiresAt != s.json(`"now+100s"`) {
			t.Errorf("default is pressed into the bounds: %s", got.ExpiresAt)
		}
	})
}

func TestStartRaisesOwnershipToTheExecutionLease(t *testing.T) {
	s := newSite(t)
	s.offered("work:a", "", "wes")
	s.must("agent:wes work.accept_offer", `{"offerId": "$offer0", "ownershipLeaseSeconds": 60}`, "work=work:a")
	s.start("work:a", 1)
	w := s.item("work:a")
	if w.Ownership.ExpiresAt != w.Execution.ExpiresAt || w.Ownership.RenewalCount != 1 {
		t.Errorf("ownership %+v", w.Ownership)
	}
	s.done()
}

func TestDependencyIsMetByVerifiedOrSupersedingWork(t *testing.T) {
	s := newSite(t)
	s.authorize("work:dep", "")
	s.queued("work:b", `"dependencyWorkItemIds": ["work:dep"]`)
	s.must("agent:cora work.cancel", `{"reason": "wrong"}`, "work=work:dep")
	s.refused("INVALID_STATE_TRANSITION:dependency at P22", "agent:wes work.start", `{"ownershipEpoch": 1}`, "work=work:b")
	s.must("agent:cora work.authorize", `{"contract": {"@": "contract", "goal": "Instead"}, "replacesWorkItemId": "work:dep"}`, "work=work:a")
	s.offer("work:a", "", "wes")
	s.must("agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
	s.start("work:a", 1)
	s.must("agent:wes artifact.publish", `{"artifact": "@artifact", "ownershipEpoch": 1, "executionLeaseId": "$lease"}`, "work=work:a")
	s.must("agent:wes work.submit", workerCommands["work.submit"], "work=work:a")
	s.must("agent:cora work.accept_result", `{"evidence": ["@review"]}`, "work=work:a")
	s.start("work:b", 1)
	s.done()
}

func TestRenewExtendsTheSameLease(t *testing.T) {
	s := newSite(t)
	s.active("work:a", "")
	renew := "agent:wes ext.missionweaveprotocol.core.work_execution_lease_renew"
	s.refused("INVALID_COMMAND:lease_not_extended at P23", renew, `{"ownershipEpoch": 1, "executionLeaseId": "$lease"}`, "work=work:a")
	s.refused(unknownRef, renew, `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "progress": {"@": "progress", "evidenceIds": ["evidence:zzz"]}}`, "work=work:a")
	for i := range 2 {
		s.wait(299)
		s.must(renew, `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "progress": "@progress"}`, "work=work:a")
		if l := s.item("work:a").Execution; l.LeaseID != s.known["lease"] || l.RenewalCount != int64(i+1) {
			t.Errorf("lease %s renewed %d times", l.LeaseID, l.RenewalCount)
		}
	}
	s.wait(300)
	s.refused(wleExec, renew, `{"ownershipEpoch": 1, "executionLeaseId": "$lease"}`, "work=work:a")
	s.done()
}

func TestOwnershipLeaseRenewKeepsQueuedWork(t *testing.T) {
	kind := "agent:wes ext.missionweave.work.ownership_lease_renew"
	s := newSite(t)
	s.offered("work:a", `"deadline": "now+1h"`, "wes")
	s.must("agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
	s.refused("INVALID_COMMAND:lease_not_extended at P23", kind, `{"ownershipEpoch": 1, "leaseSeconds": 800}`, "work=work:a")
	s.refused(deadlineIC, kind, `{"ownershipEpoch": 1, "leaseSeconds": 3601}`, "work=work:a")
	s.refused(deadlineIC, kind, `{"ownershipEpoch": 1, "leaseSeconds": 1800, "startBy": "now+800s"}`, "work=work:a")
	s.refused(deadlineIC, kind, `{"ownershipEpoch": 1, "leaseSeconds": 1800, "startBy": "now+1801s"}`, "work=work:a")
	s.refused(notOwner, strings.Replace(kind, "wes", "rita", 1), `{"ownershipEpoch": 1}`, "work=work:a")
	s.refused(stale, kind, `{"ownershipEpoch": 3}`, "work=work:a")
	s.must(kind, `{"ownershipEpoch": 1, "leaseSeconds": 1800}`, "work=work:a", "revision=3")
	if l := s.item("work:a").Ownership; l.RenewalCount != 1 || l.StartBy != l.ExpiresAt {
		t.Errorf("%+v", l)
	}
	s.wait(1800)
	s.refused(wleOwner, kind, `{"ownershipEpoch": 1}`, "work=work:a")
	s = newSite(t)
	s.active("work:a", "")
	s.refused("INVALID_STATE_TRANSITION:state at P22", kind, `{"ownershipEpoch": 1}`, "work=work:a")
}

func TestCheckpointReleasesExecutionAndBoundsOwnership(t *testing.T) {
	s := newSite(t)
	s.active("work:a", "")
	kind := "agent:wes work.checkpoint"
	s.refused(svf, kind, `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "progress": {"currentPhase": "x"}}`, "work=work:a")
	s.refused(unknownRef, kind, `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "progress": {"@": "progress", "evidenceIds": ["evidence:zzz"]}}`, "work=work:a")
	s.refused(unknownRef, kind, `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "progress": "@progress", "stateArtifactHash": "#9"}`, "work=work:a")
	s.must("agent:wes artifact.publish", `{"artifact": "@artifact", "ownershipEpoch": 1, "executionLeaseId": "$lease"}`, "work=work:a")
	s.must(kind, `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "progress": "@progress", "stateArtifactHash": "#1", "resumeWithinSeconds": 120}`, "work=work:a")
	w := s.item("work:a")
	if w.State != "queued" || w.Execution != nil || len(w.Checkpoints) != 1 || w.Ownership.ExpiresAt != s.json(`"now+120s"`) {
		t.Errorf("%s %v %v", w.State, w.Execution, w.Ownership)
	}
	// A started owner is not bound by start-by any more.
	s.wait(119)
	s.start("work:a", 1)
	s.done()
}

func TestBlockAndUnblock(t *testing.T) {
	block := func(seconds int) string {
		return fmt.Sprintf(`{"ownershipEpoch": 1, "executionLeaseId": "$lease", "progress": "@progress", "reason": "stuck",
			"requiredResolution": "help", "blockedLeaseSeconds": %d}`, seconds)
	}
	s := newSite(t)
	s.active("work:a", "")
	s.refused(svf, "agent:wes work.block", strings.Replace(block(60), `"requiredResolution": "help",`, "", 1), "work=work:a")
	s.refused("INVALID_STATE_TRANSITION:state at P22", "agent:cora work.unblock", `{}`, "work=work:a")
	s.must("agent:wes work.block", block(60), "work=work:a")
	w := s.item("work:a")
	if w.State != "blocked" || w.Blocked.ExpiresAt != s.json(`"now+60s"`) || w.Ownership.ExpiresAt != w.Blocked.ExpiresAt || w.Execution != nil {
		t.Errorf("%s %+v", w.State, w.Blocked)
	}
	s.refused(afRole, "agent:wes work.unblock", `{}`, "work=work:a")
	s.must("agent:cora work.unblock", `{"resolution": "done"}`, "work=work:a")
	w = s.item("work:a")
	if w.State != "queued" || w.Ownership.ExpiresAt != s.json(`"now+900s"`) || w.Blocked != nil || w.Block != nil {
		t.Errorf("%s %+v", w.State, w.Ownership)
	}
	s.start("work:a", 1)
	// After the blocked lease the owner is fenced and the work is open.
	s.must("agent:wes work.block", block(60), "work=work:a")
	s.wait(60)
	s.must("agent:cora work.unblock", `{}`, "work=work:a")
	w = s.item("work:a")
	if w.State != "open" || w.Owner != nil || len(w.openLeases()) != 0 {
		t.Errorf("%s %v", w.State, w.Owner)
	}
	s.refused(stale, "agent:wes work.start", `{"ownershipEpoch": 1}`, "work=work:a")
	s.done()
}

func TestArtifactRefuses(t *testing.T) {
	pub := func(edits string) string {
		return `{"artifact": {"@": "artifact"` + comma(edits) + `}, "ownershipEpoch": 1, "executionLeaseId": "$lease"}`
	}
	wes := "agent:wes artifact.publish"
	refuseAll(t, func(s *site) {
		s.active("work:a", `"inputArtifacts": ["`+hash("7")+`"]`)
		s.must(wes, `{"artifact": {"@": "artifact", "classification": "confidential"}, "ownershipEpoch": 1, "executionLeaseId": "$lease"}`, "work=work:a")
		s.known["artifact"] = "artifact:2"
		s.defined["artifact"].(map[string]any)["artifactId"] = "artifact:2"
		s.defined["artifact"].(map[string]any)["contentHash"] = hash("2")
	}, "work:a", []negative{
		{"another producer", "AUTH_FORBIDDEN:signer at P17", wes, pub(`"producer": {"agentId": "agent:rita", "agentCardVersion": 1, "capabilities": [{"id": "code.write", "version": "1.0.0"}]}`), ""},
		{"another WorkItem", "INVALID_COMMAND:binding_mismatch at P18", wes, pub(`"workItemId": "work:b"`), ""},
		{"another Group", "INVALID_COMMAND:binding_mismatch at P18", wes, pub(`"groupId": "group:x"`), ""},
		{"an id in use", "INVALID_COMMAND:identifier_in_use at P18", wes, pub(`"artifactId": "artifact:1"`), ""},
		{"the same content twice", "INVALID_COMMAND:identifier_in_use at P18", wes, pub(`"contentHash": "#1"`), ""},
		{"an unknown source", unknownRef, wes, pub(`"sourceArtifactHashes": ["#9"]`), ""},
		{"another card version", "INVALID_COMMAND:binding_mismatch at P23", wes, pub(`"producer": {"agentId": "agent:wes", "agentCardVersion": 2, "capabilities": [{"id": "code.write", "version": "1.0.0"}]}`), ""},
		{"other capabilities", "INVALID_COMMAND:binding_mismatch at P23", wes, pub(`"producer": {"agentId": "agent:wes", "agentCardVersion": 1, "capabilities": [{"id": "code.review", "version": "1.0.0"}]}`), ""},
		{"itself as source", "INVALID_COMMAND:cycle at P23", wes, pub(`"sourceArtifactHashes": ["#2"]`), ""},
		{"a classification below its source", "AUTH_FORBIDDEN:classification at P23", wes, pub(`"sourceArtifactHashes": ["#1"]`), ""},
		{"a time from the future", "INVALID_COMMAND:timestamp at P23", wes, pub(`"createdAt": "now+31s"`), ""},
		{"inline content", svf, wes, pub(`"content": "x"`), ""},
	})
	s := newSite(t)
	s.active("work:a", `"inputArtifacts": ["`+hash("7")+`"]`)
	s.must(wes, pub(`"sourceArtifactHashes": ["#7"]`), "work=work:a")
	s.must(wes, pub(`"artifactId": "artifact:2", "contentHash": "#2", "sourceArtifactHashes": ["#1"]`), "work=work:a")
	if len(s.item("work:a").Artifacts) != 2 {
		t.Error("two Artifacts")
	}
	s.done()
}

func TestSubmitRefuses(t *testing.T) {
	submit := func(edits string) string {
		return `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "artifactHashes": ["#1"], "evidence": [{"@": "evidence"` + comma(edits) + `}]}`
	}
	wes := "agent:wes work.submit"
	refuseAll(t, func(s *site) {
		s.active("work:a", `"acceptanceCriteria": ["@criterion", {"@": "criterion", "criterionId": "docs"}]`)
		s.must("agent:wes artifact.publish", workerCommands["artifact.publish"], "work=work:a")
		both := s.defined["evidence"].(map[string]any)
		both["criterionIds"] = []any{"tests", "docs"}
		s.defined["docs"] = map[string]any{}
	}, "work:a", []negative{
		{"an outsider's Evidence", "AUTH_FORBIDDEN:signer at P17", wes, submit(`"generatedBy": {"type": "agent", "id": "agent:stranger"}`), ""},
		{"a human review by an Agent", "AUTH_FORBIDDEN:human_review at P17", wes, submit(`"type": "human_review"`), ""},
		{"Evidence of another Mission", "INVALID_COMMAND:binding_mismatch at P18", wes, submit(`"missionId": "mission:x"`), ""},
		{"Evidence about something else", "INVALID_COMMAND:binding_mismatch at P18", wes, submit(`"subject": {"type": "artifact", "id": "#9"}`), ""},
		{"a criterion the contract lacks", "INVALID_COMMAND:binding_mismatch at P18", wes, submit(`"criterionIds": ["speed"]`), ""},
		{"an Artifact never published", unknownRef, wes, strings.Replace(submit(""), "#1", "#9", 1), ""},
		{"a criterion uncovered", "INVALID_COMMAND:evidence_incomplete at P23", wes, submit(`"criterionIds": ["tests"]`), ""},
		{"failed Evidence only", "INVALID_COMMAND:evidence_incomplete at P23", wes, submit(`"result": "failed"`), ""},
		{"no Evidence", svf, wes, `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "artifactHashes": ["#1"], "evidence": []}`, ""},
		{"no Artifact", svf, wes, strings.Replace(submit(""), `["#1"]`, "[]", 1), ""},
		{
			"an Evidence id with two contents", "INVALID_COMMAND:identifier_in_use at P18", wes,
			strings.Replace(submit(""), `}]}`, `}, {"@": "evidence", "method": "other"}]}`, 1), "",
		},
	})
}

func TestSubmitNamesArtifactsOfTheCurrentEpochOnly(t *testing.T) {
	s := newSite(t)
	s.active("work:a", "")
	s.must("agent:wes artifact.publish", workerCommands["artifact.publish"], "work=work:a")
	s.wait(300)
	s.offer("work:a", "", "wes")
	s.must("agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
	s.start("work:a", 2)
	submit := strings.Replace(workerCommands["work.submit"], `"ownershipEpoch": 1`, `"ownershipEpoch": 2`, 1)
	s.refused(unknownRef, "agent:wes work.submit", submit, "work=work:a")
	// The same content may be published again under the new epoch.
	s.must("agent:wes artifact.publish", `{"ownershipEpoch": 2, "executionLeaseId": "$lease", "artifact": {"@": "artifact", "artifactId": "artifact:2"}}`, "work=work:a")
	s.must("agent:wes work.submit", submit, "work=work:a")
	s.refused(wleExec, "agent:wes work.submit", submit, "work=work:a")
	s.done()
}

func TestAcceptResultRefuses(t *testing.T) {
	cora := "agent:cora work.accept_result"
	prepare := func(s *site) {
		s.submitted("work:a", `"acceptanceCriteria": [{"@": "criterion", "evidenceRequired": ["deterministic_test", "reviewer_assessment"]}]`)
		s.active("work:b", "")
	}
	refuseAll(t, prepare, "work:a", []negative{
		{"a Worker", afRole, "agent:wes work.accept_result", `{"evidence": ["@review"]}`, "coordinator=1"},
		{"a human", "SCHEMA_VALIDATION_FAILED at P2", "human:olga work.accept_result", `{"evidence": ["@review"]}`, ""},
		{"work not submitted", "INVALID_STATE_TRANSITION:state at P22", cora, `{"evidence": [{"@": "review", "workItemId": "work:b", "subject": {"type": "work_item", "id": "work:b"}}]}`, "work=work:b"},
		{"a required type missing", "INVALID_COMMAND:evidence_incomplete at P23", cora, `{"evidence": [{"@": "review", "type": "business_rule"}]}`, ""},
		{"the owner's own assessment", "INVALID_COMMAND:evidence_incomplete at P23", cora, `{"evidence": [{"@": "review", "generatedBy": {"type": "agent", "id": "agent:wes"}}]}`, ""},
		{"a failed review", "INVALID_COMMAND:evidence_failed at P23", cora, `{"evidence": ["@review", {"@": "review", "evidenceId": "evidence:3", "result": "failed"}]}`, ""},
		{"a human review by an Agent", "AUTH_FORBIDDEN:human_review at P17", cora, `{"evidence": [{"@": "review", "type": "human_review"}]}`, ""},
		{"an Evidence id reused with other content", "INVALID_COMMAND:identifier_in_use at P18", cora, `{"evidence": [{"@": "review", "evidenceId": "evidence:1"}]}`, ""},
		{"no Evidence", svf, cora, `{"evidence": []}`, ""},
	})
	s := newSite(t)
	prepare(s)
	s.must("agent:wes ext.missionweaveprotocol.core.resource_usage_record", `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "usageDelta": {"modelTokens": 5}}`, "work=work:b")
	s.must(cora, `{"evidence": ["@review"]}`, "work=work:a")
	w := s.item("work:a")
	if w.State != "verified" || w.Owner == nil || w.Ownership != nil {
		t.Errorf("%s %v", w.State, w.Ownership)
	}
	if r := s.g().Ledger.Root().Remaining(); r[1] != 9000 {
		t.Errorf("remaining %v: what work:a did not use goes back", r)
	}
	s.done()
}

func TestCoordinatorIsNeverItsOwnSoleReviewer(t *testing.T) {
	s := newSite(t)
	s.offered("work:a", "", "cora")
	s.must("agent:cora work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
	s.must("agent:cora work.start", `{"ownershipEpoch": 1}`, "work=work:a")
	s.keep("lease", "executionLease.leaseId")
	own := `{"@": "evidence", "generatedBy": {"type": "agent", "id": "agent:cora"}}`
	s.must("agent:cora artifact.publish", by("agent:cora", workerCommands["artifact.publish"]), "work=work:a")
	s.must("agent:cora work.submit", strings.Replace(workerCommands["work.submit"], `"@evidence"`, own, 1), "work=work:a")
	review := func(by string) string {
		return `{"evidence": [{"@": "evidence", "evidenceId": "evidence:2", "generatedBy": {"type": "agent", "id": "` + by + `"}}]}`
	}
	s.refused("AUTH_FORBIDDEN:sole_reviewer at P23", "agent:cora work.accept_result", review("agent:cora"), "work=work:a")
	s.must("agent:cora work.accept_result", review("agent:rita"), "work=work:a")
	s.done()
}

func TestEmbeddingTheSameEvidenceAgainIsNoNewFact(t *testing.T) {
	s := newSite(t)
	s.submitted("work:a", "")
	s.must("agent:cora work.accept_result", `{"evidence": [{"@": "evidence", "workItemId": "work:a", "subject": {"type": "work_item", "id": "work:a"}}]}`, "work=work:a")
	if len(s.g().Evidence) != 1 {
		t.Errorf("%d Evidence documents", len(s.g().Evidence))
	}
	s.done()
}
