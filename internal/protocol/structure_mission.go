package protocol

import "github.com/missionweave/server/internal/protocol/shape"

// Parts of a Mission.
var (
	ShapeCoordinator = shape.Object(
		shape.Req("agentId", ShapeID),
		shape.Req("agentCardVersion", ShapePositiveInteger),
		shape.Req("coordinatorEpoch", ShapePositiveInteger),
		shape.Req("leaseId", ShapeID),
	)
	ShapeApprovalPolicy = shape.Object(
		shape.Req("finalHumanApproval", shape.Bool),
		shape.Req("highRiskExecutionApproval", shape.Bool),
		shape.Opt("policyVersion", ShapeSemver),
	)
	ShapeMissionParent = shape.Object(
		shape.Req("missionId", ShapeID),
		shape.Req("workItemId", ShapeID),
		shape.Req("depth", ShapePositiveInteger),
	)
	ShapePinnedProfiles = shape.Array(shape.Object(
		shape.Req("profileUri", ShapeID),
		shape.Req("majorVersion", ShapeSafeInteger),
	)).Unique()
)

// ShapeMission is mission.schema: a root Mission is owned by a human and ends
// in a human approval, a child Mission by an Agent.
var ShapeMission = shape.Object(
	shape.Req("missionId", ShapeID),
	shape.Req("groupId", ShapeID),
	shape.Req("revision", ShapeSafeInteger),
	shape.Req("objective", lengthText(10000)),
	shape.Req("definitionOfDone", shape.Array(ShapeAcceptanceCriterion).Min(1)),
	shape.Req("missionOwner", ShapeActor),
	shape.Req("coordinator", ShapeCoordinator),
	shape.Req("state", shape.Enum(
		MissionActive, MissionAwaitingApproval, MissionApproved, MissionFailed, MissionCancelled,
	)),
	shape.Req("budget", ShapeBudget),
	shape.Req("deadline", ShapeTimestamp),
	shape.Req("approvalPolicy", ShapeApprovalPolicy),
	shape.Opt("parent", ShapeMissionParent),
	shape.Opt("followUpToMissionId", ShapeID),
	shape.Opt("pinnedProfiles", ShapePinnedProfiles),
	shape.Req("createdAt", ShapeTimestamp),
	shape.Opt("extensions", ShapeExtensions),
).Rules(
	shape.WhenAbsent("parent").
		Narrow("missionOwner.type", isHuman).
		Narrow("approvalPolicy.finalHumanApproval", shape.True).
		Otherwise().Narrow("missionOwner.type", isAgent),
)

// ShapeGroup is group.schema.
var ShapeGroup = shape.Object(
	shape.Req("groupId", ShapeID),
	shape.Req("missionId", ShapeID),
	shape.Req("state", shape.Enum("active", "archived")),
	shape.Req("mainConversationId", ShapeID),
	shape.Req("createdAt", ShapeTimestamp),
	shape.Opt("archivedAt", ShapeTimestamp),
	shape.Opt("archiveSnapshotId", ShapeID),
	shape.Opt("extensions", ShapeExtensions),
).Rules(
	shape.When("state", shape.Const("archived")).Require("archivedAt", "archiveSnapshotId"),
	shape.When("state", shape.Const("active")).Forbid("archivedAt", "archiveSnapshotId"),
)

// ShapeRole is the role of a Membership.
var ShapeRole = shape.Enum(
	"mission_owner", "coordinator", "worker", "reviewer", "observer", "work_delegate",
)

// ShapeScopes are the scopes of a Membership.
var ShapeScopes = shape.Array(ShapeScope).Min(1).Unique()

// ShapeDelegationGrant is a Delegation Grant; its budget names every limit.
var ShapeDelegationGrant = shape.Object(
	shape.Req("grantId", ShapeID),
	shape.Req("granteeAgentId", ShapeID),
	shape.Req("missionId", ShapeID),
	shape.Req("groupId", ShapeID),
	shape.Req("targetWorkItemId", ShapeID),
	shape.Req("allowedCapabilities", shape.Array(ShapeCapabilityRef).Min(1).Unique()),
	shape.Req("budget", ShapeBudget.Requiring("currency").Requiring(budgetDimensions...)),
	shape.Req("maxDescendantDepth", ShapeSafeInteger),
	shape.Req("granteeMembershipEpoch", ShapePositiveInteger),
	shape.Req("coordinatorEpoch", ShapePositiveInteger),
	shape.Req("grantedBy", ShapeAgentActor),
	shape.Req("grantedAt", ShapeTimestamp),
	shape.Req("expiresAt", ShapeTimestamp),
)

// ShapeMembership is membership.schema.
var ShapeMembership = shape.Object(
	shape.Req("membershipId", ShapeID),
	shape.Req("missionId", ShapeID),
	shape.Req("groupId", ShapeID),
	shape.Req("member", ShapeActor),
	shape.Req("role", ShapeRole),
	shape.Req("state", shape.Enum("provisional", "active", "ended")),
	shape.Req("membershipEpoch", ShapePositiveInteger),
	shape.Req("scopes", ShapeScopes),
	shape.Opt("delegationGrants", shape.Array(ShapeDelegationGrant).Unique()),
	shape.Req("visibilityStartSequence", ShapeSafeInteger),
	shape.Opt("contextPackageId", ShapeID),
	shape.Opt("provisionalExpiresAt", ShapeTimestamp),
	shape.Req("grantedAt", ShapeTimestamp),
	shape.Opt("activatedAt", ShapeTimestamp),
	shape.Opt("endedAt", ShapeTimestamp),
	shape.Opt("extensions", ShapeExtensions),
).Rules(
	shape.When("state", shape.Const("provisional")).Require("provisionalExpiresAt", "contextPackageId"),
	shape.When("state", shape.Const("active")).Require("activatedAt"),
	shape.When("state", shape.Const("ended")).Require("endedAt"),
)

// ShapeConversation is conversation.schema.
var ShapeConversation = shape.Object(
	shape.Req("conversationId", ShapeID),
	shape.Req("missionId", ShapeID),
	shape.Req("groupId", ShapeID),
	shape.Req("type", shape.Enum("group", "work_item", "review", "restricted")),
	shape.Opt("primaryWorkItemId", ShapeID),
	shape.Req("title", lengthText(500)),
	shape.Req("access", shape.Object(
		shape.Req("mode", shape.Enum("group", "restricted")),
		shape.Opt("members", shape.Array(ShapeActor).Min(1)),
	).Rules(
		shape.When("mode", shape.Const("restricted")).Require("members"),
	)),
	shape.Req("createdBy", ShapeActor),
	shape.Req("createdAt", ShapeTimestamp),
	shape.Req("state", shape.Enum("active", "closed")),
	shape.Req("revision", ShapeSafeInteger),
	shape.Opt("extensions", ShapeExtensions),
).Rules(
	shape.When("type", shape.Const("work_item")).Require("primaryWorkItemId"),
	shape.When("type", shape.Const("restricted")).Narrow("access.mode", shape.Const("restricted")),
)

// ShapeContentPart is one part of a Message's content.
var ShapeContentPart = shape.Union("type", map[string]*shape.Shape{
	"text": shape.Object(
		shape.Req("type", shape.Const("text")),
		shape.Req("text", lengthText(100000)),
	),
	"artifact_ref": shape.Object(
		shape.Req("type", shape.Const("artifact_ref")),
		shape.Req("artifactHash", ShapeSHA256),
	),
	"data_ref": shape.Object(
		shape.Req("type", shape.Const("data_ref")),
		shape.Req("schema", ShapeURI),
		shape.Req("data", shape.Any),
	),
})

// ShapeMessage is message.schema. A Message never carries authority.
var ShapeMessage = shape.Object(
	shape.Req("messageId", ShapeID),
	shape.Req("missionId", ShapeID),
	shape.Req("groupId", ShapeID),
	shape.Req("conversationId", ShapeID),
	shape.Req("author", ShapeActor),
	shape.Req("kind", shape.Enum("message", "correction", "retraction", "redaction")),
	shape.Req("authority", shape.False),
	shape.Opt("targetMessageId", ShapeID),
	shape.Req("content", shape.Array(ShapeContentPart).Min(1)),
	shape.Opt("mentions", shape.Array(ShapeActor).Unique()),
	shape.Opt("references", ids()),
	shape.Opt("reason", lengthText(4000)),
	shape.Req("committedAt", ShapeTimestamp),
	shape.Opt("extensions", ShapeExtensions),
).Rules(
	shape.When("kind", shape.Enum("correction", "retraction", "redaction")).
		Require("targetMessageId", "reason"),
)

// ShapeApproval is approval.schema.
var ShapeApproval = shape.Object(
	shape.Req("approvalId", ShapeID),
	shape.Req("kind", shape.Enum("mission_final", "child_mission", "work_execution")),
	shape.Req("decision", shape.Enum("approved", "changes_requested", "denied", "revoked")),
	shape.Req("missionId", ShapeID),
	shape.Req("groupId", ShapeID),
	shape.Opt("workItemId", ShapeID),
	shape.Req("missionRevision", ShapeSafeInteger),
	shape.Req("artifactHashes", hashes()),
	shape.Req("acceptancePolicyVersion", ShapeSemver),
	shape.Req("approver", ShapeActor),
	shape.Req("comments", shape.String().Max(10000)),
	shape.Req("conditions", shape.Array(lengthText(2000))),
	shape.Opt("revokesApprovalId", ShapeID),
	shape.Req("occurredAt", ShapeTimestamp),
	shape.Req("signature", ShapeSignature),
).Rules(
	shape.When("kind", shape.Enum("mission_final", "child_mission")).
		And("decision", shape.Const("approved")).
		Narrow("artifactHashes", shape.Array(shape.Any).Min(1)),
	shape.When("kind", shape.Const("mission_final")).Narrow("approver.type", isHuman),
	shape.When("kind", shape.Const("work_execution")).Require("workItemId"),
	shape.When("decision", shape.Const("revoked")).Require("revokesApprovalId"),
)
