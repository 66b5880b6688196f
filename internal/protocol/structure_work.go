package protocol

import (
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
)

// ShapeDeliverable is one required output of a Work Contract.
var ShapeDeliverable = shape.Object(
	shape.Req("deliverableId", ShapeCriterionID),
	shape.Req("description", lengthText(4000)),
	shape.Req("mediaType", ShapeMediaType),
	shape.Req("schema", ShapeURI),
)

// ShapeRetryPolicy is the retryPolicy of a Work Contract.
var ShapeRetryPolicy = shape.Object(
	shape.Req("maxAttempts", ShapePositiveInteger),
	shape.Req("backoff", shape.Enum("none", "fixed", "exponential")),
	shape.Req("maxDelay", ShapeDuration),
	shape.Req("retryableFailures", shape.Array(shape.String().Match(lexical.ValidFailureCode)).Unique()),
)

// ShapeWorkContract is work-contract.schema.
var ShapeWorkContract = shape.Object(
	shape.Req("contractVersion", ShapePositiveInteger),
	shape.Req("goal", lengthText(10000)),
	shape.Req("requiredDeliverables", shape.Array(ShapeDeliverable).Min(1)),
	shape.Req("acceptanceCriteria", shape.Array(ShapeAcceptanceCriterion).Min(1)),
	shape.Req("inputArtifacts", hashes()),
	shape.Req("dependencyWorkItemIds", ids()),
	shape.Req("allowedResources", shape.Array(ShapeResourceGrant)),
	shape.Req("requiredCapabilities", shape.Array(ShapeCapabilityRef).Min(1)),
	shape.Req("deadline", ShapeTimestamp),
	shape.Req("requestedUrgency", shape.Enum("routine", "normal", "high", "critical")),
	shape.Req("businessImpact", lengthText(4000)),
	shape.Req("retryPolicy", ShapeRetryPolicy),
	shape.Req("budget", ShapeBudget),
	shape.Req("sideEffectRisk", shape.Enum("none", "reversible", "external", "high_risk", "destructive")),
	shape.Req("executionApproval", shape.Enum("not_required", "policy_required", "human_required")),
	shape.Opt("constraints", shape.AnyObject),
	shape.Opt("extensions", ShapeExtensions),
)

// Parts of a WorkItem.
var (
	ShapeOffer = shape.Object(
		shape.Req("offerId", ShapeID),
		shape.Req("agentId", ShapeID),
		shape.Req("agentCardVersion", ShapePositiveInteger),
		shape.Req("expiresAt", ShapeTimestamp),
		shape.Req("status", shape.Enum("pending", "accepted", "declined", "withdrawn", "expired", "lost_race")),
		shape.Opt("declineReason", ShapeDeclineReason),
	)
	ShapeDeclineReason = shape.Enum(
		"capacity", "deadline", "capability", "authorization", "dependency", "budget", "other",
	)
	ShapeOwner = shape.Object(
		shape.Req("agentId", ShapeID),
		shape.Req("agentCardVersion", ShapePositiveInteger),
		shape.Req("capabilityPins", shape.Array(ShapeCapabilityRef).Min(1)),
		shape.Req("ownershipEpoch", ShapePositiveInteger),
		shape.Req("ownershipLeaseId", ShapeID),
		shape.Req("acceptedAt", ShapeTimestamp),
	)
	ShapeSelectionBasis = shape.Object(
		shape.Req("requiredCapabilities", shape.Array(ShapeCapabilityRef).Min(1)),
		shape.Req("verifiedMatches", shape.Array(ShapeCapabilityRef).Min(1)),
		shape.Req("authorizationEligible", shape.Bool),
		shape.Req("availabilityEstimate", ShapeTimestamp),
		shape.Req("expectedCost", shape.AtLeast(0)),
		shape.Req("reliabilityEvidence", shape.Array(ShapeID)),
		shape.Req("policyRulesApplied", shape.Array(lengthText(200)).Min(1)),
	)
	ShapeScheduleEstimate = shape.Object(
		shape.Req("estimatedStart", ShapeTimestamp),
		shape.Req("estimatedCompletion", ShapeTimestamp),
		shape.Req("confidence", shape.Number(0, 1)),
		shape.Req("capacityStatus", shape.Enum("available", "queued", "constrained", "blocked")),
		shape.Req("lastCalculatedAt", ShapeTimestamp),
	)
	ShapeProgress = shape.Object(
		shape.Req("currentPhase", lengthText(500)),
		shape.Req("completedMilestones", shape.Array(lengthText(500))),
		shape.Req("nextCheckpoint", lengthText(500)),
		shape.Req("blockers", shape.Array(lengthText(2000))),
		shape.Req("updatedCompletionEstimate", ShapeTimestamp),
		shape.Req("evidenceIds", ids()),
	)
	ShapeSubmission = shape.Object(
		shape.Req("artifactHashes", hashes().Min(1)),
		shape.Req("evidenceIds", ids().Min(1)),
		shape.Req("submittedAt", ShapeTimestamp),
	)
)

// ShapeWorkItem is work-item.schema.
var ShapeWorkItem = shape.Object(
	shape.Req("workItemId", ShapeID),
	shape.Req("missionId", ShapeID),
	shape.Req("groupId", ShapeID),
	shape.Req("conversationId", ShapeID),
	shape.Req("revision", ShapeSafeInteger),
	shape.Req("state", shape.Enum(
		WorkOpen, WorkOffered, WorkQueued, WorkActive, WorkBlocked,
		WorkSubmitted, WorkVerified, WorkFailed, WorkCancelled,
	)),
	shape.Req("exclusive", shape.Bool),
	shape.Req("contract", ShapeWorkContract),
	shape.Opt("offers", shape.Array(ShapeOffer)),
	shape.Opt("owner", ShapeOwner),
	shape.Opt("selectionBasis", ShapeSelectionBasis),
	shape.Opt("scheduleEstimate", ShapeScheduleEstimate),
	shape.Opt("progress", ShapeProgress),
	shape.Opt("submission", ShapeSubmission),
	shape.Req("createdBy", ShapeActor),
	shape.Opt("authorizedBy", ShapeActor),
	shape.Req("createdAt", ShapeTimestamp),
	shape.Opt("updatedAt", ShapeTimestamp),
	shape.Opt("extensions", ShapeExtensions),
).Rules(
	shape.When("state", shape.Enum(WorkQueued, WorkActive, WorkBlocked, WorkSubmitted, WorkVerified)).
		Require("owner", "selectionBasis"),
	shape.When("state", shape.Enum(WorkSubmitted, WorkVerified)).
		Require("submission"),
)

// ShapeLease is lease.schema.
var ShapeLease = shape.Object(
	shape.Req("leaseId", ShapeID),
	shape.Req("leaseType", shape.Enum(LeaseCoordinator, LeaseOwnership, LeaseExecution, LeaseBlocked)),
	shape.Req("missionId", ShapeID),
	shape.Req("groupId", ShapeID),
	shape.Opt("workItemId", ShapeID),
	shape.Req("holderAgentId", ShapeID),
	shape.Req("sessionEpoch", ShapePositiveInteger),
	shape.Opt("coordinatorEpoch", ShapePositiveInteger),
	shape.Opt("ownershipEpoch", ShapePositiveInteger),
	shape.Opt("startBy", ShapeTimestamp),
	shape.Req("issuedAt", ShapeTimestamp),
	shape.Req("startsAt", ShapeTimestamp),
	shape.Req("expiresAt", ShapeTimestamp),
	shape.Opt("graceExpiresAt", ShapeTimestamp),
	shape.Req("state", shape.Enum("active", "expired", "revoked", "released")),
	shape.Req("renewalCount", ShapeSafeInteger),
	shape.Opt("lastRenewedAt", ShapeTimestamp),
	shape.Opt("closedAt", ShapeTimestamp),
	shape.Opt("closureReason", shape.String().Max(512).Match(lexical.NotBlank)),
).Rules(
	shape.When("leaseType", shape.Const(LeaseCoordinator)).
		Require("coordinatorEpoch"),
	shape.When("leaseType", shape.Enum(LeaseOwnership, LeaseExecution, LeaseBlocked)).
		Require("workItemId", "ownershipEpoch"),
	shape.When("leaseType", shape.Const(LeaseOwnership)).
		Require("startBy"),
	shape.When("leaseType", shape.Const(LeaseExecution)).
		Forbid("coordinatorEpoch", "startBy", "graceExpiresAt"),
	shape.When("renewalCount", shape.AtLeast(1)).
		Require("lastRenewedAt"),
	shape.When("renewalCount", shape.Int(0, 0)).
		Forbid("lastRenewedAt"),
	shape.When("state", shape.Const("active")).
		Forbid("closedAt", "closureReason").
		Otherwise().Require("closedAt", "closureReason"),
)
