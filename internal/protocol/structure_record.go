package protocol

import (
	"strings"

	"github.com/missionweave/server/internal/protocol/shape"
)

// ShapeCapability is a capability declared on an Agent Card.
var ShapeCapability = ShapeCapabilityRef.Extend(
	shape.Req("inputSchema", ShapeURI),
	shape.Req("inputSchemaHash", ShapeSHA256),
	shape.Req("outputSchema", ShapeURI),
	shape.Req("outputSchemaHash", ShapeSHA256),
	shape.Req("constraints", shape.AnyObject),
	shape.Req("verifiedEvidence", ids().Min(1)),
)

// ShapeAgentCard is agent-card.schema.
var ShapeAgentCard = shape.Object(
	shape.Req("agentId", ShapeID),
	shape.Req("organizationId", ShapeID),
	shape.Req("cardVersion", ShapePositiveInteger),
	shape.Req("displayName", lengthText(200)),
	shape.Opt("description", shape.String().Max(4000)),
	shape.Req("owner", ShapeActor),
	shape.Req("status", shape.Enum("active", "deprecated", "revoked")),
	shape.Req("protocolVersions", shape.Array(ShapeVersion).Min(1).Unique()),
	shape.Req("endpoints", shape.Array(shape.Object(
		shape.Req("transport", shape.Const("wss")),
		shape.Req("uri", ShapeURI.Match(func(s string) bool { return strings.HasPrefix(s, "wss://") })),
	)).Min(1)),
	shape.Req("publicKeys", shape.Array(ShapePublicKey).Min(1)),
	shape.Req("capabilities", shape.Array(ShapeCapability).Min(1)),
	shape.Req("maxConcurrency", ShapePositiveInteger),
	shape.Req("issuedAt", ShapeTimestamp),
	shape.Opt("validUntil", ShapeTimestamp),
	shape.Opt("extensions", ShapeExtensions),
	shape.Req("signature", ShapeSignature),
)

// ShapeArtifact is artifact.schema, the Artifact manifest.
var ShapeArtifact = shape.Object(
	shape.Req("artifactId", ShapeID),
	shape.Req("contentHash", ShapeSHA256),
	shape.Req("uri", ShapeURI),
	shape.Req("sizeBytes", ShapeSafeInteger),
	shape.Req("mediaType", ShapeMediaType),
	shape.Req("schemaUri", ShapeURI),
	shape.Req("producer", shape.Object(
		shape.Req("agentId", ShapeID),
		shape.Req("agentCardVersion", ShapePositiveInteger),
		shape.Req("capabilities", shape.Array(ShapeCapabilityRef).Min(1)),
	)),
	shape.Req("missionId", ShapeID),
	shape.Req("groupId", ShapeID),
	shape.Req("workItemId", ShapeID),
	shape.Req("sourceArtifactHashes", hashes()),
	shape.Req("toolVersions", shape.Array(shape.Object(
		shape.Req("name", lengthText(200)),
		shape.Req("version", lengthText(200)),
	))),
	shape.Req("modelVersions", shape.Array(shape.Object(
		shape.Req("provider", lengthText(200)),
		shape.Req("model", lengthText(200)),
		shape.Req("version", lengthText(200)),
	))),
	shape.Req("classification", ShapeClassification),
	shape.Req("createdAt", ShapeTimestamp),
	shape.Opt("extensions", ShapeExtensions),
	shape.Req("signature", ShapeSignature),
)

// ShapeEvidence is evidence.schema.
var ShapeEvidence = shape.Object(
	shape.Req("evidenceId", ShapeID),
	shape.Req("missionId", ShapeID),
	shape.Req("groupId", ShapeID),
	shape.Req("workItemId", ShapeID),
	shape.Req("type", shape.Enum(append([]string{"failure_report"}, criterionEvidence...)...)),
	shape.Req("subject", shape.Object(
		shape.Req("type", shape.Enum("work_item", "artifact", "mission")),
		shape.Req("id", shape.AnyOf(ShapeID, ShapeSHA256)),
	)),
	shape.Req("criterionIds", shape.Array(ShapeCriterionID).Min(1).Unique()),
	shape.Req("method", lengthText(4000)),
	shape.Req("result", shape.Enum("passed", "failed", "inconclusive")),
	shape.Opt("details", shape.AnyObject),
	shape.Req("artifactHashes", hashes()),
	shape.Req("generatedBy", ShapeActor),
	shape.Opt("toolVersion", shape.String().Max(500)),
	shape.Opt("modelVersion", shape.String().Max(500)),
	shape.Req("createdAt", ShapeTimestamp),
	shape.Req("signature", ShapeSignature),
)

// ShapeContextPackage is context-package.schema.
var ShapeContextPackage = shape.Object(
	shape.Req("contextPackageId", ShapeID),
	shape.Req("version", ShapePositiveInteger),
	shape.Opt("previousContextPackageId", ShapeID),
	shape.Req("missionId", ShapeID),
	shape.Req("groupId", ShapeID),
	shape.Opt("workItemId", ShapeID),
	shape.Req("sourceEventRange", shape.Object(
		shape.Req("fromSequence", ShapePositiveInteger),
		shape.Req("toSequence", ShapePositiveInteger),
		shape.Req("eventIds", ids().Min(1)),
	)),
	shape.Req("artifactHashes", hashes()),
	shape.Req("summary", lengthText(50000)),
	shape.Req("decisions", shape.Array(shape.Object(
		shape.Req("description", lengthText(4000)),
		shape.Req("sourceEventIds", ids().Min(1)),
	))),
	shape.Req("constraints", shape.Array(lengthText(4000))),
	shape.Req("unresolvedQuestions", shape.Array(lengthText(4000))),
	shape.Req("generatedBy", ShapeAgentActor),
	shape.Req("generatedAt", ShapeTimestamp),
	shape.Opt("extensions", ShapeExtensions),
	shape.Req("signature", ShapeSignature),
)

// ShapeExtensionProfile is extension-profile.schema.
var ShapeExtensionProfile = shape.Object(
	shape.Req("profileUri", ShapeID),
	shape.Req("name", lengthText(200)),
	shape.Req("version", ShapeSemver),
	shape.Req("schemaUri", ShapeURI),
	shape.Req("schemaHash", ShapeSHA256),
	shape.Req("requiredCapabilities", shape.Array(ShapeCapabilityRef)),
	shape.Req("critical", shape.Bool),
	shape.Req("commandKinds", shape.Array(ShapeExtensionKind).Unique()),
	shape.Req("eventKinds", shape.Array(ShapeExtensionKind).Unique()),
	shape.Req("overridesCoreInvariants", shape.False),
	shape.Req("approvedBy", ShapeActor),
	shape.Req("approvedAt", ShapeTimestamp),
	shape.Req("signature", ShapeSignature),
)

// ShapeFirstAdmissionRecord is first-admission-record.schema.
var ShapeFirstAdmissionRecord = shape.Object(
	shape.Req("protocolVersion", ShapeVersion),
	shape.Req("admissionRecordId", ShapeID),
	shape.Req("organizationId", ShapeID),
	shape.Req("documentKind", shape.Enum(signedKindNames()...)),
	shape.Req("signingHash", ShapeSHA256),
	shape.Req("keyId", ShapeID),
	shape.Req("principal", ShapeActor),
	shape.Req("trustedAcceptedAt", ShapeTimestamp),
	shape.Req("acceptedBy", ShapeServiceActor),
)

// ShapePolicyLogEntry is one entry of a Policy Log.
var ShapePolicyLogEntry = shape.Object(
	shape.Req("entryId", ShapeID),
	shape.Req("decision", lengthText(4000)),
	shape.Req("actor", ShapeActor),
	shape.Req("occurredAt", ShapeTimestamp),
	shape.Req("details", shape.AnyObject),
)

// ShapeGroupSnapshot is group-snapshot.schema.
var ShapeGroupSnapshot = shape.Object(
	shape.Req("snapshotId", ShapeID),
	shape.Req("groupId", ShapeID),
	shape.Req("throughSequence", ShapePositiveInteger),
	shape.Req("eventIds", ids().Min(1)),
	shape.Req("stateHash", ShapeSHA256),
	shape.Req("policyLog", shape.Array(ShapePolicyLogEntry).Min(1)),
	shape.Req("createdBy", ShapeServiceActor),
	shape.Req("createdAt", ShapeTimestamp),
	shape.Req("signature", ShapeSignature),
)

// ShapePresenceRecord is presence-record.schema.
var ShapePresenceRecord = shape.Object(
	shape.Req("agentId", ShapeID),
	shape.Req("sessionEpoch", ShapePositiveInteger),
	shape.Req("status", shape.Enum("online", "busy", "away", "draining", "offline")),
	shape.Req("capacity", shape.Object(
		shape.Req("maxSlots", ShapePositiveInteger),
		shape.Req("activeSlots", ShapeSafeInteger),
		shape.Req("availableSlots", ShapeSafeInteger),
		shape.Req("queuedItems", ShapeSafeInteger),
	)),
	shape.Req("capabilityAvailability", shape.Array(shape.Object(
		shape.Req("capability", ShapeCapabilityRef),
		shape.Req("status", shape.Enum("available", "degraded", "unavailable")),
	))),
	shape.Opt("estimatedResponseMs", ShapeSafeInteger),
	shape.Req("lastHeartbeat", ShapeTimestamp),
	shape.Req("expiresAt", ShapeTimestamp),
)
