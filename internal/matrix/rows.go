package matrix

// rows is COMMANDS.md 10.2 as data, in the order of the Command catalogue.
var rows = []row{
	{kind: "mission.create", sets: "X", positives: []string{"human creates"}, negatives: []string{
		"SVF Agent actor", "SVF service actor", "SVF membershipEpoch present", "SVF sessionEpoch present",
		"IC:envelope_mismatch payload groupId differs", "IC:identifier_in_use missionId in use", "IC:identifier_in_use groupId in use",
		"IC:unknown_reference unregistered Coordinator", "IC:deadline past deadline", "SVF finalHumanApproval false",
		"SVF followUpToMissionId", "SVF financialLimit without currency", "SVF empty definitionOfDone", "UCE unknown pinned profile",
		"RC expectedRevision 3",
	}},
	{kind: "mission.create_follow_up", sets: "XD", positives: []string{"without revocation", "with revocation"}, negatives: []string{
		"IST source active", "IST source cancelled", "AF not the owner", "IC:unknown_reference unknown source",
		"SVF without followUpToMissionId", "IC:binding_mismatch revokes a foreign Approval",
	}},
	{kind: "mission.create_child", sets: "XGSCV", positives: []string{
		"from open", "from offered", "from queued", "from active", "from blocked", "after failed child", "after cancelled child",
	}, negatives: []string{
		"IST from submitted", "IST from verified", "IST from failed", "IST from cancelled", "IST:child_live second child",
		"IC:same_agent child Coordinator is the actor", "IC:deadline deadline after the contract's", "AF:permission wider permissions",
		"AF:approval_policy weaker approval policy", "BE budget over the WorkItem's", "RL depth over the limit", "OK depth with an override", "SVF human actor",
		"WSO old owner then starts",
	}},
	{kind: "mission.assign_coordinator", sets: "XGVD", positives: []string{
		"owner", "service", "same Agent after lapse", "other Agent with package", "other Agent without package",
	}, negatives: []string{
		"AF Coordinator itself", "IC:context_not_applicable package for the same Agent", "AF package by an outsider", "IST terminal Mission",
		"IC:unknown_reference unregistered Agent", "IC:same_agent Coordinator of a live child", "ASC old Coordinator afterwards",
		"ASC grant of the old epoch",
	}},
	{kind: "mission.renew_coordinator", sets: "XGSCV", positives: []string{"before expiry"}, negatives: []string{
		"ASC after expiry", "IC:lease_not_extended shorter", "IST terminal Mission",
	}},
	{kind: "ext.missionweave.mission.extend_deadline", sets: "XGV", positives: []string{"root", "child within the parent's"}, negatives: []string{
		"IC:deadline earlier", "IC:deadline beyond the parent's", "AF Coordinator", "IST terminal Mission",
	}},
	{kind: "mission.submit_for_approval", sets: "XGSCV", positives: []string{"all verified", "accepted failure", "superseded failure"}, negatives: []string{
		"IST:work_unfinished unfinished WorkItem", "IST no WorkItem", "IST:work_unfinished failed not accepted", "IST:child_live live child",
		"IC:unknown_reference unknown hash", "SVF empty hashes", "IST twice",
	}},
	{kind: "mission.approve", sets: "XGVD", positives: []string{"root", "child", "child with co-approval"}, negatives: []string{
		"IST active Mission", "AF Coordinator", "AF other human", "RC wrong missionRevision", "IC:artifact_set hash extra",
		"IC:artifact_set hash missing", "IC decision denied", "IC kind child_mission", "IC:policy_version policy version differs",
		"APR co-approval missing",
	}},
	{kind: "mission.request_changes", sets: "XGVD", positives: []string{"root", "child"}, negatives: []string{
		"IST active Mission", "IC:comments empty comments", "IC decision approved", "RC old revision",
	}},
	{kind: "mission.cancel", sets: "XGV", positives: []string{"owner", "service", "cascade"}, negatives: []string{
		"AF Coordinator", "AF Worker", "IST twice", "WSO Worker afterwards", "WOE offer afterwards", "IST child Group afterwards",
	}},
	{kind: "mission.terminate", sets: "XGSCVD", positives: []string{
		"Coordinator", "service", "block_parent_work_item", "fail_parent_work_item", "fail_parent_mission", "cascade",
	}, negatives: []string{
		"SVF human", "AF Worker", "AF MissionOwner Agent", "IST terminal", "IC evidence of another type",
	}},
	{kind: "membership.change", sets: "XGCVD", positives: []string{"worker active", "provisional with package", "re-join", "scopes narrowed"}, negatives: []string{
		"AF Worker", "IC:role role coordinator for another", "IC:role MissionOwner's role", "IC:member_type human as worker",
		"IC:member_type service", "SVF provisional without expiry", "IST active to provisional", "IC:visibility start raised",
		"IC:visibility Coordinator start 5", "IC:scope foreign scope", "IC:unknown_reference unknown Agent",
		"AF:scope Coordinator grants approval.execution", "IC:role root MissionOwner in a child",
	}},
	{kind: "membership.end", sets: "XGCV", positives: []string{"queued work", "active work", "blocked work", "self"}, negatives: []string{
		"IC:role MissionOwner", "IC:role Coordinator", "IC:unknown_reference stranger", "IC:unknown_reference twice",
		"MR its Commands", "AF its grant",
	}},
	{kind: "membership.grant_delegation", sets: "XGSCV", positives: []string{"used"}, negatives: []string{
		"SVF human actor", "SVF service actor", "IC:role grantee worker", "IC self", "SVF budget dimension missing",
		"BE budget over the Mission's", "IC:deadline past expiry", "IST target verified", "RL depth",
	}},
	{kind: "policy.grant_cooperation_override", sets: "XGV", positives: []string{"owner", "service", "consumed once"}, negatives: []string{
		"AF Coordinator", "AF:self_grant Agent owner for itself", "IC:override_not_applicable kind not governed", "IC:deadline past expiry",
		"IC:identifier_in_use grant id in use", "AF:override expired", "AF:override second use", "AF:override other kind",
		"AF:override other actor", "IC:override_not_needed not needed", "OK refused target leaves it usable",
	}},
	{kind: "ext.missionweave.budget.increase", sets: "XGV", positives: []string{"Mission", "child Mission", "WorkItem by Coordinator", "un-pauses"}, negatives: []string{
		"IC:not_an_increase decrease", "IC:not_an_increase equal", "IC:currency_mismatch other currency", "BE over the parent", "AF Worker",
		"IST terminal Mission",
	}},
	{kind: "message.post", sets: "XGSV", positives: []string{"member", "provisional", "100000 characters"}, negatives: []string{
		"SVF without conversationId", "IC:envelope_mismatch payload conversationId differs", "IC:unknown_reference foreign Conversation",
		"AF:provisional provisional in the Group Conversation", "SVF authority true", "SVF empty content", "IC:identifier_in_use id in use",
		"IST terminal Mission", "RL rate", "OK words change nothing",
	}},
	{kind: "message.correct", sets: "XGSV", positives: []string{"author"}, negatives: []string{
		"AF other's Message", "IC:unknown_reference unknown target", "IC:binding_mismatch amendment as target", "SVF reason missing",
	}},
	{kind: "message.retract", sets: "XGSV", positives: []string{"author"}, negatives: []string{
		"AF other's Message", "IC:unknown_reference unknown target", "IC:binding_mismatch amendment as target", "SVF reason missing",
		"SVF content",
	}},
	{kind: "message.redact", sets: "XGSV", positives: []string{"owner", "Coordinator"}, negatives: []string{
		"IC:unknown_reference unknown target", "IC:binding_mismatch amendment as target", "SVF reason missing", "IST twice", "AF Worker",
		"OK hidden from a Worker",
	}},
	{kind: "work.propose", sets: "XGSK", positives: []string{"Worker", "observer", "human"}, negatives: []string{
		"IC:identifier_in_use id in use", "IST Mission not active", "RL duplicate", "RL rate", "OK no WorkItem appears",
	}},
	{kind: "work.authorize", sets: "XGSCVK", positives: []string{"Coordinator", "Proposal", "Delegate", "owner override"}, negatives: []string{
		"AF Worker", "AF delegate without grant", "AF:override_required owner without emergencyOverride", "IC:identifier_in_use id in use",
		"IST closed Proposal", "IC:unknown_reference unknown dependency", "IC:cycle cycle", "IC:contract_version contractVersion 2",
		"IC:not_supported exclusive false", "RL duplicate", "BE sum of budgets", "AF:grant grant expired", "AF:grant_scope other subtree",
		"AF:grant_depth grant depth", "AF:grant_capability grant capability", "BE grant ceiling", "AF:grant old membership epoch",
		"ASC after a Coordinator change",
	}},
	{kind: "work.offer", sets: "XGSCVK", positives: []string{
		"from open", "from offered", "from queued", "from active", "from blocked", "from failed", "extend", "replace", "revision", "after lapse",
	}, negatives: []string{
		"IST:owner_live live owner", "IST:child_live live child", "IST submitted", "IST verified", "IST cancelled",
		"IC:candidate candidate without Membership", "IC:capability_mismatch without capability", "IC:selection_basis basis not eligible",
		"IC:contract_version revision not +1", "IC:mode extend with contract", "IC:deadline past contract deadline",
		"WOE old offer after replace", "BE failed re-offer without funds",
	}},
	{kind: "work.accept_offer", sets: "XGSV", positives: []string{"active", "provisional", "one of two racers"}, negatives: []string{
		"AF no offer", "AF other's offer", "WOE expired", "WOE replaced", "WOE declined", "WAO loser", "WAO loser with expectedRevision",
		"IC:unknown_reference wrong offerId", "IST Mission awaiting_approval", "RL queued limit", "AF:capability card lost the capability",
		"AF human actor",
	}},
	{kind: "ext.missionweave.work.offer_decline", sets: "XGSV", positives: []string{"each reason"}, negatives: []string{
		"SVF unknown reason", "WOE twice", "WAO after loss", "AF other's offer",
	}},
	{kind: "ext.missionweaveprotocol.core.work_dependency_add", sets: "XGCV", positives: []string{"open", "offered"}, negatives: []string{
		"IC:cycle cycle", "IC:cycle self", "IC:duplicate present", "IST:acceptance_required queued", "AF Worker", "IC:unknown_reference unknown",
	}},
	{kind: "work.start", sets: "XGSVW", positives: []string{"after accept", "after checkpoint", "after unblock", "after takeover"}, negatives: []string{
		"AF open and never owned", "WSO open after fence", "IST second start", "WLE after startBy", "WLE ownership lapsed",
		"IST:dependency dependency open", "APR gate open", "APR approval of an older epoch", "APR approval expired", "RL active limit",
		"BE:paused paused", "IST:acceptance_required incompatible card", "IST Mission awaiting_approval",
	}},
	{kind: "ext.missionweaveprotocol.core.work_execution_lease_renew", sets: "XGSVW", positives: []string{"twice"}, negatives: []string{
		"WLE at expiry", "IC:lease_not_extended not later", "BE:paused paused", "APR gate revoked", "WLE queued",
	}},
	{kind: "ext.missionweave.work.ownership_lease_renew", sets: "XGSVW", positives: []string{"queued"}, negatives: []string{
		"IST active", "WLE lapsed", "IC:deadline past contract deadline",
	}},
	{kind: "ext.missionweaveprotocol.core.resource_usage_record", sets: "XGSVW", positives: []string{"Worker", "service after closure", "three levels"}, negatives: []string{
		"SVF zero delta", "BE one dimension over", "BE absent dimension", "SVF seven decimals", "IC:currency_mismatch currency",
		"SVF financial without currency", "IC:unknown_reference service with unknown lease", "AF Coordinator", "SVF service without groupId",
	}},
	{kind: "work.checkpoint", sets: "XGSVW", positives: []string{"then restart", "paused"}, negatives: []string{
		"SVF progress member missing", "IC:unknown_reference unknown evidence", "WLE second with the same lease",
	}},
	{kind: "work.block", sets: "XGSVW", positives: []string{"with resolution"}, negatives: []string{
		"SVF requiredResolution missing", "WLE queued",
	}},
	{kind: "work.unblock", sets: "XGSCV", positives: []string{"to queued", "to open", "after failed child"}, negatives: []string{
		"IST:child_live live child", "IST not blocked", "AF owner",
	}},
	{kind: "artifact.publish", sets: "XGSVWD", positives: []string{"with provenance"}, negatives: []string{
		"AF producer other", "IC:binding_mismatch card version differs", "IC:unknown_reference unknown source", "AF:classification lower classification",
		"IC same hash twice", "WLE queued", "SVF inline content",
	}},
	{kind: "work.submit", sets: "XGSVWD", positives: []string{"all criteria"}, negatives: []string{
		"IC:evidence_incomplete criterion uncovered", "IC:unknown_reference Artifact of an old epoch", "IC:unknown_reference Artifact of another WorkItem",
		"IC:evidence_incomplete only failed Evidence", "SVF no Evidence", "WLE twice",
	}},
	{kind: "work.accept_result", sets: "XGSCVD", positives: []string{"by a reviewer"}, negatives: []string{
		"IST not submitted", "IC:evidence_incomplete required type missing", "AF human_review by an Agent", "IC:evidence_failed failed review",
		"AF:sole_reviewer own work, own Evidence", "SVF human", "SVF service",
	}},
	{kind: "work.fail", sets: "XGSCVWD", positives: []string{
		"from open", "from offered", "from queued", "from active", "from blocked", "from submitted", "Worker", "then re-offered",
	}, negatives: []string{
		"SVF no Evidence", "IC:evidence_incomplete passed only", "WLE Worker from queued", "IST verified", "IST cancelled", "IST failed", "AF observer",
	}},
	{kind: "work.cancel", sets: "XGCV", positives: []string{"Coordinator", "owner", "service", "child cancelled too"}, negatives: []string{
		"IST failed", "IST verified", "AF Worker",
	}},
	{kind: "approval.grant_execution", sets: "XGVD", positives: []string{"root human", "human in a child", "service on policy_required"}, negatives: []string{
		"AF Agent", "AF service on human_required", "IST not queued", "WSO another ownership epoch", "AF:permission operation beyond the contract",
		"BE budget beyond remaining", "IC:deadline past expiry", "AF approver differs", "RC missionRevision old", "IC:identifier_in_use id in use",
	}},
	{kind: "ext.missionweave.approval.request_execution", sets: "XGSV", positives: []string{"then granted"}, negatives: []string{"WSO another ownership epoch", "IST not queued"}},
	{kind: "ext.missionweave.approval.deny_execution", sets: "XGVD", positives: []string{"late denial"}, negatives: []string{
		"IST granted request", "IC decision approved", "AF Worker", "OK expiry Event by the timer",
	}},
	{kind: "ext.missionweave.approval.revoke_execution", sets: "XGVD", positives: []string{"start then needs Approval"}, negatives: []string{
		"IC:unknown_reference unknown", "IST twice",
	}},
	{kind: "ext.missionweave.approval.request_action", sets: "XGV", positives: []string{"asked"}, negatives: []string{
		"AF Worker", "AF Coordinator", "APR does not open the start gate",
	}},
	{kind: "ext.missionweave.approval.decide_action", sets: "XGVD", positives: []string{"one_shot", "denied", "late denial"}, negatives: []string{
		"AF Agent", "IC:binding_mismatch other digest", "IST approve after expiry",
	}},
	{kind: "ext.missionweave.approval.consume_action", sets: "XGV", positives: []string{"used"}, negatives: []string{
		"IST twice", "WLE after the lease", "IST after denial",
	}},
	{kind: "ext.missionweaveprotocol.registry.agent_card_register", sets: "XD", positives: []string{"new", "update", "revoke"}, negatives: []string{
		"SVF Agent actor", "SVF human actor", "SVF groupId present", "RC same version", "AF foreign organization", "AIS key of another Principal",
		"AIS small-order key",
	}},
	{kind: "ext.missionweaveprotocol.identity.session_open", sets: "X", positives: []string{"first", "takeover in two Groups"}, negatives: []string{
		"SVF epochs present", "IC unknown Agent", "IC revoked card", "AF non-identity service", "AF from outside",
	}},
	{kind: "ext.missionweaveprotocol.core.group_archive", sets: "XVD", positives: []string{"approved", "failed", "cancelled"}, negatives: []string{
		"IST active Mission", "RC wrong throughSequence", "IC:snapshot_events Event missing", "IC:snapshot_state wrong stateHash",
		"IC:snapshot_policy_log altered policy log", "AF human", "IST twice",
	}},
}

// pairs is COMMANDS.md 10.3: the first named code answers.
var pairs = []string{
	"SVF before AIS", "AIS before AIC", "receipt before AIS of freshness", "AIS of freshness before SVF of the payload", "SVF before ASS",
	"AIS of a document before ASS", "ASS before GNF", "GNF before ASC", "MR before ASC", "MS before ASC", "ASC before UCE", "UCE before AF",
	"AF before WSO", "WSO before WLE", "WLE before RC", "WAO before RC", "RC before IST", "IST before IC of the values", "IC before APR",
	"APR before RL", "RL before BE",
}
