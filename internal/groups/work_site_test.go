package groups

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// site is a running Mission for tests about work: olga owns it, cora
// coordinates, wes and rita work, otto observes.
type site struct{ *script }

const siteSetup = `{
  "criterion": {"criterionId": "tests", "description": "All tests pass", "evidenceRequired": ["deterministic_test"]},
  "contract": {
    "contractVersion": 1, "goal": "Build it",
    "requiredDeliverables": [{"deliverableId": "bin", "description": "binary", "mediaType": "application/octet-stream", "schema": "urn:schema:bin"}],
    "acceptanceCriteria": ["@criterion"], "inputArtifacts": [], "dependencyWorkItemIds": [],
    "allowedResources": [{"resource": "urn:repo:app", "operations": ["write"]}],
    "requiredCapabilities": [{"id": "code.write", "version": "1.0.0"}],
    "deadline": "now+240h", "requestedUrgency": "normal", "businessImpact": "It ships",
    "retryPolicy": {"maxAttempts": 1, "backoff": "none", "maxDelay": "PT1S", "retryableFailures": []},
    "budget": {"currency": "EUR", "financialLimit": 10, "modelTokenLimit": 1000, "toolCallLimit": 10},
    "sideEffectRisk": "none", "executionApproval": "not_required"
  },
  "mission": {
    "missionId": "mission:m", "groupId": "group:g", "coordinatorAgentId": "agent:cora",
    "objective": "Release 1.0", "definitionOfDone": ["@criterion"],
    "budget": {"currency": "EUR", "financialLimit": 100, "modelTokenLimit": 10000, "toolCallLimit": 100, "externalSideEffectLimit": 5},
    "deadline": "now+720h", "coordinatorLeaseSeconds": 86400,
    "approvalPolicy": {"finalHumanApproval": true, "highRiskExecutionApproval": true, "policyVersion": "1.0.0"},
    "permissions": [{"resource": "urn:repo:*", "operations": ["read", "write"]}],
    "allowedCapabilities": [{"id": "code.write", "version": "1.5.0"}, {"id": "code.review", "version": "1.0.0"}]
  },
  "basis": {
    "requiredCapabilities": [{"id": "code.write", "version": "1.0.0"}],
    "verifiedMatches": [{"id": "code.write", "version": "1.0.0"}],
    "authorizationEligible": true, "availabilityEstimate": "now", "expectedCost": 10,
    "reliabilityEvidence": [], "policyRulesApplied": ["cheapest"]
  },
  "progress": {
    "currentPhase": "coding", "completedMilestones": [], "nextCheckpoint": "tests", "blockers": [],
    "updatedCompletionEstimate": "now+1h", "evidenceIds": []
  },
  "artifact": {
    "artifactId": "artifact:1", "contentHash": "#1", "uri": "urn:blob:1", "sizeBytes": 10,
    "mediaType": "application/octet-stream", "schemaUri": "urn:schema:bin",
    "producer": {"agentId": "agent:wes", "agentCardVersion": 1, "capabilities": [{"id": "code.write", "version": "1.0.0"}]},
    "missionId": "mission:m", "groupId": "group:g", "workItemId": "work:a",
    "sourceArtifactHashes": [], "toolVersions": [], "modelVersions": [], "classification": "internal"
  },
  "evidence": {
    "evidenceId": "evidence:1", "missionId": "mission:m", "groupId": "group:g", "workItemId": "work:a",
    "type": "deterministic_test", "subject": {"type": "work_item", "id": "work:a"}, "criterionIds": ["tests"],
    "method": "go test", "result": "passed", "artifactHashes": [], "generatedBy": {"type": "agent", "id": "agent:wes"}
  },
  "failure": {
    "@": "evidence", "evidenceId": "evidence:failure", "type": "failure_report", "result": "failed"
  },
  "review": {
    "@": "evidence", "evidenceId": "evidence:review", "type": "reviewer_assessment",
    "generatedBy": {"type": "agent", "id": "agent:rita"}
  },
  "grant": {
    "approvalId": "approval:1", "kind": "work_execution", "decision": "approved", "missionId": "mission:m",
    "groupId": "group:g", "workItemId": "work:a", "missionRevision": 1, "artifactHashes": [],
    "acceptancePolicyVersion": "1.0.0", "approver": {"type": "human", "id": "human:olga"},
    "comments": "", "conditions": []
  }
}`

// hash spells a content hash out of "#1" in a payload.
func hash(n string) string { return "sha256:" + strings.Repeat("0", 64-len(n)) + n }

func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{script: newScript(t)}
	for _, id := range []string{"agent:cora", "agent:wes", "agent:rita", "agent:otto", "agent:dora", "agent:stranger"} {
		s.addAgent(id, "code.write", "code.review")
	}
	s.reset()
	s.unchecked = true // what comes before the test proper is checked elsewhere
	s.must("human:olga mission.create", `"@mission"`)
	for id, role := range map[string]string{"wes": "worker", "rita": "reviewer", "otto": "observer", "dora": "work_delegate"} {
		s.must("agent:cora membership.change", `{"member": {"type": "agent", "id": "agent:`+id+`"}, "role": "`+role+`"}`)
	}
	s.unchecked = false
	return s
}

// reset defines the templates anew; times in them are relative to now.
func (s *site) reset() {
	doc, err := strictjson.Parse([]byte(strings.NewReplacer(`"#1"`, `"`+hash("1")+`"`).Replace(siteSetup)))
	if err != nil {
		s.t.Fatal(err)
	}
	for name, v := range doc.Root().Members() {
		s.defined[name] = s.json(string(v.Raw()))
	}
}

// try sends a Command: "ACTOR KIND", the WorkItem and envelope members in the
// script's form. It answers "" or "CODE:reason at STEP".
func (s *site) try(line, payload string, envelope ...string) string {
	s.t.Helper()
	f := append(strings.Fields(line), "group:g")
	answer := s.sendLine(append(f, envelope...), s.refer(payload))
	refusal, refused := strings.CutPrefix(answer, "refused ")
	if !refused {
		return ""
	}
	code, rest, _ := strings.Cut(strings.TrimSpace(refusal), " at ")
	step, _, _ := strings.Cut(rest, " ")
	return code + " at " + step
}

// refer replaces "#n" by a content hash.
func (s *site) refer(payload string) string {
	for n := range 10 {
		payload = strings.ReplaceAll(payload, fmt.Sprintf(`"#%d"`, n), `"`+hash(fmt.Sprint(n))+`"`)
	}
	return payload
}

func (s *site) must(line, payload string, envelope ...string) {
	s.t.Helper()
	if got := s.try(line, payload, envelope...); got != "" {
		s.t.Fatalf("%s: %s", line, got)
	}
}

func (s *site) refused(want, line, payload string, envelope ...string) {
	s.t.Helper()
	if got := s.try(line, payload, envelope...); got != want {
		s.t.Errorf("%s %s\n got %q\nwant %q", line, payload, got, want)
	}
}

func (s *site) wait(seconds int) { s.now = s.now.Add(time.Duration(seconds) * time.Second) }

func (s *site) g() *State                { return s.group["group:g"] }
func (s *site) item(id string) *WorkItem { return s.g().WorkItems[id] }
func (s *site) value(path string) string { v, _ := s.lookup(path); return v }
func (s *site) keep(name, path string)   { s.known[name] = s.value(path) }
func (s *site) lease(id string) string   { return s.item(id).Execution.LeaseID }
func (s *site) kinds(d Decision) (k []string) {
	for i := range d.Drafts {
		k = append(k, d.Drafts[i].Event.Kind)
	}
	return k
}

func (s *site) stateIs(id, want string) {
	s.t.Helper()
	if got := s.item(id).State; got != want {
		s.t.Errorf("%s is %s, want %s", id, got, want)
	}
}

// authorize makes a WorkItem; edits are members of the contract. The goal is
// the id, so that contracts differ.
func (s *site) authorize(id, edits string) {
	s.t.Helper()
	s.must("agent:cora work.authorize", `{"contract": {"@": "contract", "goal": "`+id+`"`+comma(edits)+`}}`, "work="+id)
}

func comma(edits string) string {
	if edits == "" {
		return ""
	}
	return ", " + edits
}

// offered authorizes and offers a WorkItem to agents; their offers are known as
// $offer0, $offer1, …
func (s *site) offered(id, edits string, agents ...string) {
	s.t.Helper()
	s.authorize(id, edits)
	s.offer(id, "", agents...)
}

func (s *site) offer(id, more string, agents ...string) {
	s.t.Helper()
	s.must("agent:cora work.offer", `{"candidateAgentIds": ["agent:`+strings.Join(agents, `", "agent:`)+
		`"], "selectionBasis": "@basis"`+comma(more)+`}`, "work="+id)
	for i := range agents {
		s.keep(fmt.Sprintf("offer%d", i), fmt.Sprintf("createdOfferIds.%d", i))
	}
}

// queued makes a WorkItem that wes owns under epoch 1.
func (s *site) queued(id, edits string) {
	s.t.Helper()
	s.offered(id, edits, "wes")
	s.must("agent:wes work.accept_offer", `{"offerId": "$offer0", "ownershipLeaseSeconds": 86400}`, "work="+id)
}

// active makes a WorkItem that wes executes under $lease.
func (s *site) active(id, edits string) {
	s.t.Helper()
	s.queued(id, edits)
	s.start(id, 1)
}

func (s *site) start(id string, epoch int) {
	s.t.Helper()
	s.must("agent:wes work.start", fmt.Sprintf(`{"ownershipEpoch": %d}`, epoch), "work="+id)
	s.keep("lease", "executionLease.leaseId")
}

// submitted makes a WorkItem whose Artifact #1 wes handed in.
func (s *site) submitted(id, edits string) {
	s.t.Helper()
	s.active(id, edits)
	s.must("agent:wes artifact.publish", `{"artifact": {"@": "artifact", "workItemId": "`+id+`"}, "ownershipEpoch": 1, "executionLeaseId": "$lease"}`, "work="+id)
	s.must("agent:wes work.submit", `{"artifactHashes": ["#1"], "ownershipEpoch": 1, "executionLeaseId": "$lease",
		"evidence": [{"@": "evidence", "workItemId": "`+id+`", "subject": {"type": "work_item", "id": "`+id+`"}}]}`, "work="+id)
}

// done checks that folding everything again gives the same state.
func (s *site) done() { s.refold() }

// negative is a Command that must be refused, and nothing must come of it.
type negative struct {
	rule, want, line, payload string
	envelope                  string
}

// refuseAll plays negatives against a fresh site each.
func refuseAll(t *testing.T, prepare func(*site), work string, cases []negative) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.unchecked = true
			prepare(s)
			s.unchecked = false
			head := s.g().Head
			s.refused(c.want, c.line, c.payload, append([]string{"work=" + work}, strings.Fields(c.envelope)...)...)
			if s.g().Head != head {
				t.Error("the Group moved")
			}
		})
	}
}
