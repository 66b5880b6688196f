package groups

import (
	"strings"
	"testing"
)

// rule is one sentence of COMMANDS.md 5.1 to 5.3: after the setup, the Command
// answers as wanted, a refusal or the kind of its primary Event.
type rule struct {
	name  string
	setup string
	// send is a line of a scenario script with its payload.
	send, body string
	want       string
}

func (r rule) check(t *testing.T) {
	t.Helper()
	s := newScript(t)
	s.play("include base.inc\n")
	if r.setup != "" {
		if got := s.play(r.setup); strings.Contains(got, "refused") {
			t.Fatalf("setup is refused:\n%s", got)
		}
	}
	got := s.run(strings.Fields("send "+r.send), r.body)
	if !strings.Contains(got, r.want) {
		t.Errorf("answered %swant %s", got, r.want)
	}
	s.refold()
}

// Setups.
const (
	authorized = `send agent:cora work.authorize group:g work=work:a
{"contract": "@contract"}
`
	offered = authorized + `
send agent:cora work.offer group:g work=work:a
{"candidateAgentIds": ["agent:wes"], "selectionBasis": "@basis"}

let offer createdOfferIds.0
`
	queued = offered + `
send agent:wes work.accept_offer group:g work=work:a
{"offerId": "$offer"}
`
	active = queued + `
send agent:wes work.start group:g work=work:a
{"ownershipEpoch": 1}

let lease executionLease.leaseId
`
	blocked = active + `
send agent:wes work.block group:g work=work:a
{"ownershipEpoch": 1, "executionLeaseId": "$lease", "progress": "@progress", "reason": "r", "requiredResolution": "q"}
`
	childTerms = `define child
{
  "missionId": "mission:c", "groupId": "group:c", "coordinatorAgentId": "agent:new",
  "objective": "A part", "definitionOfDone": ["@criterion"],
  "budget": {"currency": "EUR", "financialLimit": 10}, "deadline": "now+100h", "coordinatorLeaseSeconds": 86400
}
`
	cancelled = `send human:olga mission.cancel group:g
{"reason": "r"}
`
)

func TestMissionRules(t *testing.T) {
	for _, r := range []rule{
		{
			"create: only a human may", "",
			"agent:cora mission.create group:x membership=1", `{"@": "mission", "missionId": "mission:x", "groupId": "group:x"}`,
			"refused SCHEMA_VALIDATION_FAILED at P2",
		},
		{
			"create: no Membership Epoch", "",
			"human:olga mission.create group:x membership=1", `{"@": "mission", "missionId": "mission:x", "groupId": "group:x"}`,
			"refused SCHEMA_VALIDATION_FAILED at P2",
		},
		{
			"create: the human's final Approval cannot be waived", "",
			"human:olga mission.create group:x",
			`{"@": "mission", "missionId": "mission:x", "groupId": "group:x", "approvalPolicy": {"finalHumanApproval": false, "highRiskExecutionApproval": true}}`,
			"refused SCHEMA_VALIDATION_FAILED at P10",
		},
		{
			"create: a Mission has a definition of done", "",
			"human:olga mission.create group:x", `{"@": "mission", "missionId": "mission:x", "groupId": "group:x", "definitionOfDone": []}`,
			"refused SCHEMA_VALIDATION_FAILED at P10",
		},
		{
			"create: criteria are told apart", "",
			"human:olga mission.create group:x", `{"@": "mission", "missionId": "mission:x", "groupId": "group:x", "definitionOfDone": ["@criterion", "@criterion"]}`,
			"refused SCHEMA_VALIDATION_FAILED at P10 keyword=uniqueItems",
		},
		{
			"create: money has at most six decimals", "",
			"human:olga mission.create group:x", `{"@": "mission", "missionId": "mission:x", "groupId": "group:x", "budget": {"currency": "EUR", "financialLimit": 0.1234567}}`,
			"refused SCHEMA_VALIDATION_FAILED:money at P10",
		},
		{
			"create: money has a currency", "",
			"human:olga mission.create group:x", `{"@": "mission", "missionId": "mission:x", "groupId": "group:x", "budget": {"modelTokenLimit": 1, "financialLimit": 2}}`,
			"refused SCHEMA_VALIDATION_FAILED:currency at P10",
		},
		{
			"create: a null member is not an absent one", "",
			"human:olga mission.create group:x", `{"@": "mission", "missionId": "mission:x", "groupId": "group:x", "title": null}`,
			"refused SCHEMA_VALIDATION_FAILED at P10",
		},
		{
			"create: a pinned profile must be registered", "",
			"human:olga mission.create group:x",
			`{"@": "mission", "missionId": "mission:x", "groupId": "group:x", "pinnedProfiles": [{"profileUri": "urn:unknown", "majorVersion": 1}]}`,
			"refused UNKNOWN_CRITICAL_EXTENSION at P16",
		},
		{
			"create: the Mission id must be free in the Organization", "",
			"human:olga mission.create group:x", `{"@": "mission", "groupId": "group:x"}`,
			"refused INVALID_COMMAND:identifier_in_use at P18",
		},
		{
			"create: nothing existing can be named in a new Group", "",
			"human:olga mission.create group:x conversation=$planning", `{"@": "mission", "missionId": "mission:x", "groupId": "group:x"}`,
			"refused INVALID_COMMAND:unknown_reference at P18",
		},
		{
			"follow-up: names its source", "",
			"human:olga mission.create_follow_up group:x", `{"@": "mission", "missionId": "mission:x", "groupId": "group:x"}`,
			"refused SCHEMA_VALIDATION_FAILED at P10 keyword=required path=/payload/followUpToMissionId",
		},
		{
			"follow-up: of an active Mission there is none", "",
			"human:olga mission.create_follow_up group:x", `{"@": "mission", "missionId": "mission:x", "groupId": "group:x", "followUpToMissionId": "mission:m"}`,
			"refused INVALID_STATE_TRANSITION:mission_not_approved at P22",
		},
		{
			"follow-up: of a cancelled Mission neither", cancelled,
			"human:olga mission.create_follow_up group:x", `{"@": "mission", "missionId": "mission:x", "groupId": "group:x", "followUpToMissionId": "mission:m"}`,
			"refused INVALID_STATE_TRANSITION:mission_not_approved at P22",
		},
		{
			"follow-up: an unknown source and a foreign one look the same", "",
			"human:paul mission.create_follow_up group:x", `{"@": "mission", "missionId": "mission:x", "groupId": "group:x", "followUpToMissionId": "mission:m"}`,
			"refused INVALID_COMMAND:unknown_reference at P18",
		},
		{
			"assign: the Coordinator cannot replace itself", "",
			"agent:cora mission.assign_coordinator group:g", `{"coordinatorAgentId": "agent:new"}`,
			"refused AUTH_FORBIDDEN:role at P17",
		},
		{
			"assign: a package for the same Agent is not applicable", "",
			"human:olga mission.assign_coordinator group:g",
			`{"coordinatorAgentId": "agent:cora", "contextPackage": {"contextPackageId": "package:1", "version": 1, "missionId": "mission:m", "groupId": "group:g",
			  "sourceEventRange": {"fromSequence": 1, "toSequence": 1, "eventIds": ["urn:uuid:00000000-0000-7000-8000-000000000006"]}, "artifactHashes": [], "summary": "s", "decisions": [],
			  "constraints": [], "unresolvedQuestions": [], "generatedBy": {"type": "agent", "id": "agent:cora"}}}`,
			"refused INVALID_COMMAND:context_not_applicable at P23",
		},
		{
			"assign: only a member who saw it all may tell it", "",
			"human:olga mission.assign_coordinator group:g",
			`{"coordinatorAgentId": "agent:new", "contextPackage": {"contextPackageId": "package:1", "version": 1, "missionId": "mission:m", "groupId": "group:g",
			  "sourceEventRange": {"fromSequence": 1, "toSequence": 1, "eventIds": ["urn:x"]}, "artifactHashes": [], "summary": "s", "decisions": [],
			  "constraints": [], "unresolvedQuestions": [], "generatedBy": {"type": "agent", "id": "agent:new"}}}`,
			"refused AUTH_FORBIDDEN:signer at P17",
		},
		{
			"assign: the package's Events belong to the Group and range", "",
			"human:olga mission.assign_coordinator group:g",
			`{"coordinatorAgentId": "agent:new", "contextPackage": {"contextPackageId": "package:1", "version": 1, "missionId": "mission:m", "groupId": "group:g",
			  "sourceEventRange": {"fromSequence": 2, "toSequence": 3, "eventIds": ["urn:uuid:00000000-0000-7000-8000-000000000006"]}, "artifactHashes": [], "summary": "s", "decisions": [],
			  "constraints": [], "unresolvedQuestions": [], "generatedBy": {"type": "agent", "id": "agent:cora"}}}`,
			"refused INVALID_COMMAND:binding_mismatch at P18",
		},
		{
			"assign: the same Agent gets a new epoch and lease after a lapse", "clock +25h\n",
			"human:olga mission.assign_coordinator group:g", `{"coordinatorAgentId": "agent:cora"}`,
			"mission.coordinator.assigned",
		},
		{
			"assign: an ended Mission needs no Coordinator", cancelled,
			"human:olga mission.assign_coordinator group:g", `{"coordinatorAgentId": "agent:new"}`,
			"refused INVALID_STATE_TRANSITION:mission_terminal at P22",
		},
		{
			"renew: a lapsed lease is not renewable", "clock +24h\n",
			"agent:cora mission.renew_coordinator group:g", `{}`,
			"refused AUTH_STALE_COORDINATOR:lease_lapsed at P15",
		},
		{
			"renew: a Worker has nothing to renew", "",
			"agent:wes mission.renew_coordinator group:g coordinator=1", `{}`,
			"refused AUTH_FORBIDDEN:role at P17",
		},
		{
			"submit: without a verified WorkItem there is nothing to approve", "",
			"agent:cora mission.submit_for_approval group:g", `{"artifactHashes": []}`,
			"refused SCHEMA_VALIDATION_FAILED at P10 keyword=minItems",
		},
		{
			"cancel: the Coordinator may not", "",
			"agent:cora mission.cancel group:g", `{"reason": "r"}`,
			"refused AUTH_FORBIDDEN:role at P17",
		},
		{
			"cancel: an Organization service may", "",
			"service:policy mission.cancel group:g", `{"reason": "r"}`,
			"mission.cancelled",
		},
		{
			"cancel: twice is once too often", cancelled,
			"human:olga mission.cancel group:g", `{"reason": "r"}`,
			"refused INVALID_STATE_TRANSITION:mission_terminal at P22",
		},
		{
			"cancel: a former owner's work is stale", active + "\n" + cancelled,
			"agent:wes work.checkpoint group:g work=work:a", `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "progress": "@progress"}`,
			"refused WORK_STALE_OWNERSHIP",
		},
		{
			"cancel: offers are withdrawn", offered + "\n" + cancelled,
			"agent:wes work.accept_offer group:g work=work:a", `{"offerId": "$offer"}`,
			"refused WORK_OFFER_EXPIRED",
		},
		{
			"terminate: no human, not even the owner", "",
			"human:olga mission.terminate group:g", `{"reason": "r"}`,
			"refused SCHEMA_VALIDATION_FAILED at P2",
		},
		{
			"terminate: a Worker may not", "",
			"agent:wes mission.terminate group:g coordinator=1", `{"reason": "r"}`,
			"refused AUTH_FORBIDDEN:role at P17",
		},
		{
			"terminate: an Organization service may", "",
			"service:policy mission.terminate group:g", `{"reason": "r"}`,
			"mission.terminated",
		},
		{
			"child: from open", childTerms + "\n" + authorized,
			"agent:cora mission.create_child group:g work=work:a", `"@child"`, "mission.child.created",
		},
		{
			"child: from offered, offers withdrawn", childTerms + "\n" + offered,
			"agent:cora mission.create_child group:g work=work:a", `"@child"`, "withdrawnOfferIds: [#",
		},
		{
			"child: from queued, owner fenced", childTerms + "\n" + queued,
			"agent:cora mission.create_child group:g work=work:a", `"@child"`, "previousOwner: {agentId=agent:wes",
		},
		{
			"child: from active, all leases revoked", childTerms + "\n" + active,
			"agent:cora mission.create_child group:g work=work:a", `"@child"`, "leaseType=execution state=revoked",
		},
		{
			"child: from blocked", childTerms + "\n" + blocked,
			"agent:cora mission.create_child group:g work=work:a", `"@child"`, "leaseType=blocked state=revoked",
		},
		{
			"child: a cancelled WorkItem has none", childTerms + "\n" + authorized + `
send agent:cora work.cancel group:g work=work:a
{"reason": "r"}
`,
			"agent:cora mission.create_child group:g work=work:a", `"@child"`, "refused INVALID_STATE_TRANSITION",
		},
		{
			"child: the old owner is fenced", childTerms + "\n" + queued + `
send agent:cora mission.create_child group:g work=work:a
"@child"
`,
			"agent:wes work.start group:g work=work:a", `{"ownershipEpoch": 1}`, "refused WORK_STALE_OWNERSHIP",
		},
		{
			"child: deeper than the limit", childTerms + "\n" + authorized + "\nset limits here depth=0\n",
			"agent:cora mission.create_child group:g work=work:a", `"@child"`, "refused RATE_LIMITED:delegation_depth at P23",
		},
		{
			"child: deeper than the limit with an override", childTerms + "\n" + authorized + `
set limits here depth=0

send human:olga policy.grant_cooperation_override group:g
{"grantId": "override:1", "policyName": "delegation_depth", "beneficiary": {"type": "agent", "id": "agent:cora"},
 "targetCommandKind": "mission.create_child", "targetActionId": "action:deep", "reason": "it matters", "expiresAt": "now+1h"}
`,
			"agent:cora mission.create_child group:g work=work:a action=action:deep override=override:1", `"@child"`,
			"cooperation_override_consumed",
		},
		{
			"child: cancelled with its parent's WorkItem", childTerms + "\n" + authorized + `
send agent:cora mission.create_child group:g work=work:a
"@child"
`,
			"agent:cora work.cancel group:g work=work:a", `{"reason": "r"}`, "group:c 2 mission.cancelled",
		},
		{
			"child: cancelled by its owner leaves the WorkItem blocked", childTerms + "\n" + authorized + `
send agent:cora mission.create_child group:g work=work:a
"@child"
`,
			"agent:cora mission.cancel group:c", `{"reason": "r"}`, "childOutcome: cancelled",
		},
		{
			"child: its owner's authority is the parent's Coordinator lease", childTerms + "\n" + authorized + `
send agent:cora mission.create_child group:g work=work:a
"@child"

clock +24h
`,
			"agent:cora mission.cancel group:c", `{"reason": "r"}`, "refused AUTH_STALE_COORDINATOR:parent_lease_lapsed at P15",
		},
		{
			"child: a MissionOwner Agent does not terminate", childTerms + "\n" + authorized + `
send agent:cora mission.create_child group:g work=work:a
"@child"
`,
			"agent:cora mission.terminate group:c coordinator=1", `{"reason": "r"}`, "refused AUTH_FORBIDDEN:role at P17",
		},
		{
			"deadline: a child's stays within the parent's contract", childTerms + "\n" + authorized + `
send agent:cora mission.create_child group:g work=work:a
"@child"
`,
			"agent:cora ext.missionweave.mission.extend_deadline group:c", `{"deadline": "now+500h", "reason": "r"}`,
			"refused INVALID_COMMAND:deadline at P23",
		},
		{
			"deadline: a child's may move within it", childTerms + "\n" + authorized + `
send agent:cora mission.create_child group:g work=work:a
"@child"
`,
			"agent:cora ext.missionweave.mission.extend_deadline group:c", `{"deadline": "now+200h", "reason": "r"}`,
			"deadline_extended",
		},
		{
			"budget: a child's limit is claimed from the parent WorkItem", childTerms + "\n" + authorized + `
send agent:cora mission.create_child group:g work=work:a
"@child"
`,
			"agent:cora ext.missionweave.budget.increase group:c", `{"budget": {"currency": "EUR", "financialLimit": 20}, "reason": "r"}`,
			"child_budget_reserved",
		},
		{
			"budget: and must fit it", childTerms + "\n" + authorized + `
send agent:cora mission.create_child group:g work=work:a
"@child"
`,
			"agent:cora ext.missionweave.budget.increase group:c", `{"budget": {"currency": "EUR", "financialLimit": 21}, "reason": "r"}`,
			"refused BUDGET_EXCEEDED at P24\n",
		},
	} {
		t.Run(r.name, r.check)
	}
}

func TestMemberRules(t *testing.T) {
	const joined = `send agent:cora membership.change group:g
{"member": {"type": "agent", "id": "agent:new"}, "role": "worker", "state": "provisional", "provisionalExpiresAt": "now+1h"}
`
	for _, r := range []rule{
		{
			"change: an unregistered Agent is unknown", "",
			"agent:cora membership.change group:g", `{"member": {"type": "agent", "id": "agent:nobody"}, "role": "worker"}`,
			"refused INVALID_COMMAND:unknown_reference at P18",
		},
		{
			"change: a human without a key is unknown", "",
			"agent:cora membership.change group:g", `{"member": {"type": "human", "id": "human:nobody"}, "role": "observer"}`,
			"refused INVALID_COMMAND:unknown_reference at P18",
		},
		{
			"change: a member keeps its membershipId", "",
			"agent:cora membership.change group:g", `{"member": {"type": "agent", "id": "agent:wes"}, "role": "worker", "membershipId": "membership:mine"}`,
			"refused INVALID_COMMAND:binding_mismatch at P18",
		},
		{
			"change: the Coordinator may name approval.execution among the root MissionOwner's own scopes", "",
			"agent:cora membership.change group:g", `{"member": {"type": "human", "id": "human:olga"}, "role": "mission_owner", "scopes": ["mission.approve", "approval.execution"]}`,
			"membership.changed",
		},
		{
			"change: the Coordinator gives approval.execution to nobody else", "",
			"agent:cora membership.change group:g", `{"member": {"type": "human", "id": "human:paul"}, "role": "observer", "scopes": ["approval.execution"]}`,
			"AUTH_FORBIDDEN",
		},
		{
			"change: the Coordinator sees from 1", "",
			"human:olga membership.change group:g", `{"member": {"type": "agent", "id": "agent:cora"}, "role": "coordinator", "visibilityStartSequence": 5}`,
			"refused INVALID_COMMAND:visibility at P23",
		},
		{
			"change: nobody sees from the future", "",
			"agent:cora membership.change group:g", `{"member": {"type": "agent", "id": "agent:new"}, "role": "worker", "visibilityStartSequence": 99}`,
			"refused INVALID_COMMAND:visibility at P23",
		},
		{
			"change: provisional ends within the Mission", "",
			"agent:cora membership.change group:g",
			`{"member": {"type": "agent", "id": "agent:new"}, "role": "worker", "state": "provisional", "provisionalExpiresAt": "now+721h"}`,
			"refused INVALID_COMMAND:deadline at P23",
		},
		{
			"change: a provisional member becomes active", joined,
			"agent:cora membership.change group:g", `{"member": {"type": "agent", "id": "agent:new"}, "role": "worker", "state": "active"}`,
			"reason: activated",
		},
		{
			"change: without a state a provisional member stays provisional", joined,
			"agent:cora membership.change group:g", `{"member": {"type": "agent", "id": "agent:new"}, "role": "worker", "scopes": ["work.accept_offer"]}`,
			"state=provisional membershipEpoch=2 scopes=[work.accept_offer]",
		},
		{
			"change: a lapsed provisional member joins anew", joined + "\nclock +1h\n",
			"agent:cora membership.change group:g", `{"member": {"type": "agent", "id": "agent:new"}, "role": "worker"}`,
			"reason: granted",
		},
		{
			"change: the recorded owner keeps its role", "",
			"service:policy membership.change group:g", `{"member": {"type": "human", "id": "human:olga"}, "role": "observer"}`,
			"refused INVALID_COMMAND:role at P23",
		},
		{
			"change: the root human of a child is untouchable", childTerms + "\n" + authorized + `
send agent:cora mission.create_child group:g work=work:a
"@child"
`,
			"agent:new membership.change group:c", `{"member": {"type": "human", "id": "human:olga"}, "role": "observer", "scopes": ["message.read"]}`,
			"refused INVALID_COMMAND:role at P23",
		},
		{
			"change: after a Mission has ended nobody joins", cancelled,
			"human:olga membership.change group:g", `{"member": {"type": "agent", "id": "agent:new"}, "role": "worker"}`,
			"refused INVALID_STATE_TRANSITION:mission_terminal at P22",
		},
		{
			"end: a provisional member may leave by itself", joined,
			"agent:new membership.end group:g", `{"member": {"type": "agent", "id": "agent:new"}}`,
			"membership.ended",
		},
		{
			"end: but not end others", joined,
			"agent:new membership.end group:g", `{"member": {"type": "agent", "id": "agent:wes"}}`,
			"refused AUTH_FORBIDDEN:provisional at P17",
		},
		{
			"end: twice is unknown", `send agent:cora membership.end group:g
{"member": {"type": "agent", "id": "agent:wes"}}
`,
			"agent:cora membership.end group:g", `{"member": {"type": "agent", "id": "agent:wes"}}`,
			"refused INVALID_COMMAND:unknown_reference at P18",
		},
		{
			"end: a submitted WorkItem stays submitted, a lapsed lease ends expired", active + "\nclock +301s\n",
			"agent:cora membership.end group:g", `{"member": {"type": "agent", "id": "agent:wes"}}`,
			"leaseType=execution state=expired",
		},
		{
			"scope: taken away, its kind is forbidden", `send agent:cora membership.change group:g
{"member": {"type": "agent", "id": "agent:wes"}, "role": "worker", "scopes": ["work.propose"]}
`,
			"agent:wes message.post group:g conversation=$planning",
			`{"messageId": "message:1", "content": [{"type": "text", "text": "hi"}]}`,
			"refused AUTH_FORBIDDEN:scope at P17",
		},
		{
			"delegation: a Coordinator needs no grant", authorized,
			"agent:cora work.offer group:g work=work:a",
			`{"candidateAgentIds": ["agent:wes"], "selectionBasis": "@basis", "delegationGrantId": "grant:1"}`,
			"refused AUTH_FORBIDDEN:grant_not_needed at P17",
		},
		{
			"delegation: a new Coordinator's epoch kills old grants", authorized + `
send agent:cora membership.grant_delegation group:g
{"grantId": "grant:1", "granteeAgentId": "agent:dora", "targetWorkItemId": "work:a",
 "allowedCapabilities": [{"id": "code.write", "version": "1.0.0"}],
 "budget": {"currency": "EUR", "financialLimit": 20, "modelTokenLimit": 1000, "toolCallLimit": 0, "computeSecondsLimit": 0, "wallClockSecondsLimit": 0, "externalSideEffectLimit": 0},
 "maxDescendantDepth": 1, "expiresAt": "now+100h"}

send human:olga mission.assign_coordinator group:g
{"coordinatorAgentId": "agent:cora"}
`,
			"agent:dora work.offer group:g work=work:a",
			`{"candidateAgentIds": ["agent:wes"], "selectionBasis": "@basis", "delegationGrantId": "grant:1"}`,
			"refused AUTH_STALE_COORDINATOR:grant at P17",
		},
		{
			"override: not for what was accepted already", `send agent:wes message.post group:g conversation=$planning action=action:done
{"messageId": "message:1", "content": [{"type": "text", "text": "hi"}]}
`,
			"human:olga policy.grant_cooperation_override group:g",
			`{"grantId": "override:1", "policyName": "message_rate", "beneficiary": {"type": "agent", "id": "agent:wes"},
			  "targetCommandKind": "message.post", "targetActionId": "action:done", "reason": "r", "expiresAt": "now+1h"}`,
			"refused INVALID_COMMAND:target_accepted at P23",
		},
		{
			"override: an Agent owner grants itself nothing", childTerms + "\n" + authorized + `
send agent:cora mission.create_child group:g work=work:a
"@child"
`,
			"agent:cora policy.grant_cooperation_override group:c",
			`{"grantId": "override:1", "policyName": "message_rate", "beneficiary": {"type": "agent", "id": "agent:cora"},
			  "targetCommandKind": "message.post", "targetActionId": "action:x", "reason": "r", "expiresAt": "now+1h"}`,
			"refused AUTH_FORBIDDEN:self_grant at P17",
		},
		{
			"proposal: permissions narrow", "",
			"agent:wes work.propose group:g",
			`{"proposalId": "proposal:1", "contract": {"@": "contract", "allowedResources": [{"resource": "urn:elsewhere", "operations": ["write"]}]}}`,
			"refused AUTH_FORBIDDEN:permission at P23",
		},
		{
			"proposal: starts at contract version 1", "",
			"agent:wes work.propose group:g", `{"proposalId": "proposal:1", "contract": {"@": "contract", "contractVersion": 2}}`,
			"refused INVALID_COMMAND:contract_version at P23",
		},
		{
			"proposal: a contract that only lacks something is incomplete", "",
			"agent:wes work.propose group:g", `{"proposalId": "proposal:1", "contract": {"@": "contract", "acceptanceCriteria": []}}`,
			"refused WORK_CONTRACT_INCOMPLETE at P10 missing=[/payload/contract/acceptanceCriteria]",
		},
		{
			"proposal: one that is also wrong is wrong", "",
			"agent:wes work.propose group:g", `{"proposalId": "proposal:1", "contract": {"@": "contract", "acceptanceCriteria": [], "unknown": 1}}`,
			"refused SCHEMA_VALIDATION_FAILED at P10",
		},
		{
			"proposal: high risk demands a human", "",
			"agent:wes work.propose group:g", `{"proposalId": "proposal:1", "contract": {"@": "contract", "sideEffectRisk": "destructive"}}`,
			"refused WORK_CONTRACT_INCOMPLETE at P10",
		},
		{
			"proposal: within the Mission's budget", "",
			"agent:wes work.propose group:g", `{"proposalId": "proposal:1", "contract": {"@": "contract", "budget": {"currency": "EUR", "financialLimit": 101}}}`,
			"refused BUDGET_EXCEEDED at P24",
		},
		{
			"proposal: too many a minute wait", "set limits here proposals=1\n" + `
send agent:wes work.propose group:g
{"proposalId": "proposal:0", "contract": {"@": "contract", "goal": "Something else"}}
`,
			"agent:wes work.propose group:g", `{"proposalId": "proposal:1", "contract": "@contract"}`,
			"refused RATE_LIMITED:proposal_rate at P23",
		},
		{
			"proposal: after a minute there is room again", "set limits here proposals=1\n" + `
send agent:wes work.propose group:g
{"proposalId": "proposal:0", "contract": {"@": "contract", "goal": "Something else"}}

clock +60s
`,
			"agent:wes work.propose group:g", `{"proposalId": "proposal:1", "contract": "@contract"}`,
			"work.proposed",
		},
	} {
		t.Run(r.name, r.check)
	}
}
