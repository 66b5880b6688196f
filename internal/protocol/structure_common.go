package protocol

import (
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Version is the wire version.
const Version = "0.1"

// Scalars of the common definitions.
var (
	ShapeVersion         = shape.Const(Version)
	ShapeID              = shape.String().Max(lexical.MaxID).Format(lexical.ValidURI)
	ShapeURI             = shape.String().Format(lexical.ValidURI)
	ShapeTimestamp       = shape.String().Format(lexical.ValidTimestamp)
	ShapeSafeInteger     = shape.Int(0, strictjson.MaxSafeInteger)
	ShapePositiveInteger = shape.Int(1, strictjson.MaxSafeInteger)
	ShapeSemver          = shape.String().Max(128).Match(lexical.ValidSemver)
	// ShapeBase64URL is the alphabet and length only; whether the spelling is
	// canonical is decided where the bytes are used (stage 3).
	ShapeBase64URL      = shape.String().Min(2).Max(4096).Match(lexical.ValidBase64URL)
	ShapeSHA256         = shape.String().Match(lexical.ValidSHA256)
	ShapeDuration       = shape.String().Max(64).Match(lexical.ValidDuration)
	ShapeKind           = shape.String().Max(160).Match(lexical.ValidKind)
	ShapeExtensionKind  = shape.String().Max(160).Match(lexical.ValidExtensionKind)
	ShapeCriterionID    = shape.String().Match(lexical.ValidCriterionID)
	ShapeMediaType      = shape.String().Match(lexical.ValidMediaType)
	ShapeOperation      = shape.String().Max(128).Match(lexical.ValidOperation)
	ShapeScope          = shape.String().Max(160).Match(validScope)
	ShapeClassification = shape.Enum("public", "internal", "confidential", "restricted")
)

// Principals.
var (
	ShapeActor        = actorOf(shape.Enum(ActorAgent, ActorHuman, ActorService))
	ShapeAgentActor   = actorOf(shape.Const(ActorAgent))
	ShapeHumanActor   = actorOf(shape.Const(ActorHuman))
	ShapeServiceActor = actorOf(shape.Const(ActorService))
)

func actorOf(actorType *shape.Shape) *shape.Shape {
	return shape.Object(shape.Req("type", actorType), shape.Req("id", ShapeID))
}

// Composite common definitions.
var (
	ShapeSignature = shape.Object(
		shape.Req("algorithm", shape.Const("Ed25519")),
		shape.Req("keyId", ShapeID),
		shape.Req("createdAt", ShapeTimestamp),
		shape.Req("value", ShapeBase64URL),
	)
	ShapePublicKey = shape.Object(
		shape.Req("keyId", ShapeID),
		shape.Req("algorithm", shape.Const("Ed25519")),
		shape.Req("publicKey", ShapeBase64URL),
		shape.Req("validFrom", ShapeTimestamp),
		shape.Opt("validUntil", ShapeTimestamp),
		shape.Opt("revokedAt", ShapeTimestamp),
	)
	ShapeCapabilityRef = shape.Object(
		shape.Req("id", shape.String().Max(200).Match(lexical.ValidCapabilityID)),
		shape.Req("version", ShapeSemver),
	)
	// ShapeBudget is common.schema budget. Command payloads use the narrower
	// ShapeBudgetLimits.
	ShapeBudget = budgetOf(shape.AtLeast(0))

	ShapeAcceptanceCriterion = shape.Object(
		shape.Req("criterionId", ShapeCriterionID),
		shape.Req("description", lengthText(4000)),
		shape.Req("evidenceRequired", shape.Array(shape.Enum(criterionEvidence...)).Min(1).Unique()),
	)
	ShapeResourceGrant = shape.Object(
		shape.Req("resource", ShapeID),
		shape.Req("operations", shape.Array(ShapeOperation).Min(1).Unique()),
		shape.Opt("constraints", shape.AnyObject),
	)
	ShapeExtensions = shape.Map(ShapeID, shape.Object(
		shape.Req("version", ShapeSemver),
		shape.Req("critical", shape.Bool),
		shape.Req("data", shape.Any),
	))
)

// criterionEvidence are the evidence types that a criterion may demand.
var criterionEvidence = []string{
	"artifact_integrity", "schema_validation", "deterministic_test",
	"business_rule", "reviewer_assessment", "human_review", "policy_check",
}

// budgetDimensions are the six limits of a budget.
var budgetDimensions = []string{
	"financialLimit", "modelTokenLimit", "toolCallLimit",
	"computeSecondsLimit", "wallClockSecondsLimit", "externalSideEffectLimit",
}

func budgetOf(financial *shape.Shape) *shape.Shape {
	return shape.Object(
		shape.Opt("currency", shape.String().Match(lexical.ValidCurrency)),
		shape.Opt("financialLimit", financial),
		shape.Opt("modelTokenLimit", ShapeSafeInteger),
		shape.Opt("toolCallLimit", ShapeSafeInteger),
		shape.Opt("computeSecondsLimit", ShapeSafeInteger),
		shape.Opt("wallClockSecondsLimit", ShapeSafeInteger),
		shape.Opt("externalSideEffectLimit", ShapeSafeInteger),
	).RequireAny(
		[]string{"financialLimit", "currency"},
		[]string{"modelTokenLimit"},
		[]string{"toolCallLimit"},
		[]string{"computeSecondsLimit"},
		[]string{"wallClockSecondsLimit"},
		[]string{"externalSideEffectLimit"},
	)
}

// lengthText is a string of 1 to n code points, blank or not: the schemas
// bound lengths only. Payloads use shape.Text, which refuses blanks.
func lengthText(n int) *shape.Shape { return shape.String().Min(1).Max(n) }

// ids is an array of distinct ids.
func ids() *shape.Shape { return shape.Array(ShapeID).Unique() }

// hashes is an array of distinct content hashes.
func hashes() *shape.Shape { return shape.Array(ShapeSHA256).Unique() }

// validScope is the pattern of membership scopes: a lower-case letter, then
// [a-z0-9._:-].
func validScope(s string) bool {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '.', c == '_', c == ':', c == '-':
		default:
			return false
		}
	}
	return true
}
