package conformance

import (
	"strings"

	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
)

// Forms of the manifests and fixtures, after the schemas that lie beside them in
// the checkout. Counts are left to the manifests: the digest pins them.

var (
	formPath   = shape.String().Max(512).Match(repositoryPath)
	formVector = shape.String().Min(1).Max(160).Match(vectorID)
	formDigest = shape.String().Match(lexical.ValidSHA256)
	formID     = shape.String().Format(lexical.ValidID)

	// formCandidate is an identifier that the stages, not the fixture's form, judge.
	formCandidate = text(512)

	formPrincipal = shape.Object(
		shape.Req("type", shape.Enum("agent", "human", "service")),
		shape.Req("id", formID),
	)
	formService = shape.Object(
		shape.Req("type", shape.Const("service")),
		shape.Req("id", formID),
	)
	formProfile = shape.Enum("agent-card", "approval", "artifact", "command", "context-package",
		"event", "evidence", "extension-profile", "group-snapshot")

	formArtifacts = shape.Array(shape.Object(
		shape.Req("path", formPath),
		shape.Req("byteLength", shape.Int(0, maxSafe)),
		shape.Req("sha256", formDigest),
	)).Min(1)

	formWireCode = shape.Nullable(shape.Enum("PROTOCOL_VIOLATION", "SCHEMA_VALIDATION_FAILED", "AUTH_INVALID_SIGNATURE"))
)

const maxSafe = 1<<53 - 1

func text(maxLen int) *shape.Shape { return shape.String().Min(1).Max(maxLen) }

var formStructural = shape.Array(shape.Object(
	shape.Req("name", text(512)),
	shape.Req("schema", formPath),
	shape.Req("instance", formPath),
	shape.Req("valid", shape.Bool),
)).Min(1)

var formCryptography = shape.Object(
	shape.Req("$schema", shape.Const("https://missionweaveprotocol.dev/cryptography/0.1/manifest.schema.json")),
	shape.Req("manifestVersion", shape.Int(1, 1)),
	shape.Req("protocolVersion", shape.Const("0.1")),
	shape.Req("profileId", shape.Const("missionweaveprotocol.signed-document-verification.v0.1")),
	shape.Req("semanticStages", shape.Array(formVector)),
	shape.Req("fixtureSchemas", shape.Object(
		shape.Req("registry", shape.Const("cryptography/registry-fixture.schema.json")),
		shape.Req("signingKey", shape.Const("cryptography/signing-key-fixture.schema.json")),
	)),
	shape.Req("artifactDigest", formDigest),
	shape.Req("profiles", shape.Array(shape.Object(
		shape.Req("profileId", formProfile),
		shape.Req("schema", formPath),
		shape.Req("protectedTimePointer", text(128)),
		shape.Req("expectedSigner", shape.Union("rule", map[string]*shape.Shape{
			"principal-object":  shape.Object(shape.Req("rule", shape.String()), shape.Req("pointer", text(256))),
			"agent-id":          shape.Object(shape.Req("rule", shape.String()), shape.Req("idPointer", text(256))),
			"service-principal": shape.Object(shape.Req("rule", shape.String())),
		})),
	)).Min(1)),
	shape.Req("artifacts", formArtifacts),
	shape.Req("cases", shape.Array(shape.Object(
		shape.Req("id", formVector),
		shape.Req("kind", shape.Enum("single", "profile-matrix", "failure-matrix", "canonicalization")),
		shape.Req("evaluations", shape.Array(shape.AnyOf(
			shape.Object(
				shape.Req("profileId", formProfile),
				shape.Req("document", formPath),
				shape.Req("registry", formPath),
				shape.Req("signingKey", formPath),
				shape.Req("fault", shape.Null),
				shape.Req("expect", shape.Object(
					shape.Req("stage", shape.Const("complete")),
					shape.Req("wireCode", shape.Null),
					shape.Req("verified", shape.Object(
						shape.Req("keyId", formID),
						shape.Req("principal", formPrincipal),
						shape.Req("protectedTime", shape.String().Format(lexical.ValidTimestamp)),
						shape.Req("signingBytes", formPath),
						shape.Req("signingHash", formDigest),
						shape.Req("signature", shape.String().Match(lexical.ValidBase64URL)),
						shape.Req("signedDocumentHash", formDigest),
					)),
				)),
			),
			shape.Object(
				shape.Req("profileId", formProfile),
				shape.Req("document", formPath),
				shape.Req("registry", formPath),
				shape.Req("fault", shape.Object(
					shape.Req("id", formVector),
					shape.Req("basis", shape.Object(
						shape.Req("caseId", formVector),
						shape.Req("profileId", formProfile),
					)),
				)),
				shape.Req("expect", shape.Object(
					shape.Req("stage", shape.Enum("parse", "schema", "signature-envelope", "key-resolution", "canonicalization", "signature")),
					shape.Req("wireCode", formWireCode),
				)),
			),
			shape.Object(
				shape.Req("input", formPath),
				shape.Req("expectedJcs", formPath),
				shape.Req("sha256", formDigest),
			),
		)).Min(1)),
	)).Min(1)),
)

var formRegistry = shape.Object(
	shape.Req("organizationId", formCandidate),
	shape.Req("bindings", shape.Array(shape.Object(
		shape.Req("keyId", formCandidate),
		shape.Req("principal", shape.Object(
			shape.Req("type", shape.Enum("agent", "human", "service")),
			shape.Req("id", formCandidate),
		)),
		shape.Req("algorithm", text(64)),
		shape.Req("publicKey", text(4096)),
		shape.Req("validFrom", text(128)),
		shape.Req("validityHistory", shape.Array(shape.Object(
			shape.Req("sequence", shape.Int(1, maxSafe)),
			shape.Req("recordedAt", text(128)),
			shape.Opt("validUntil", text(128)),
			shape.Opt("revokedAt", text(128)),
		)).Max(64)),
	)).Min(1).Max(64)),
)

var formSigningKey = shape.Object(
	shape.Req("testOnly", shape.True),
	shape.Req("keyId", formID),
	shape.Req("algorithm", shape.Const("Ed25519")),
	shape.Req("seed", shape.String().Match(lexical.ValidBase64URL).Min(43).Max(43)),
	shape.Req("publicKey", shape.String().Match(lexical.ValidBase64URL).Min(43).Max(43)),
)

var formAdmission = shape.Object(
	shape.Req("$schema", shape.Const("https://missionweaveprotocol.dev/admission/0.1/manifest.schema.json")),
	shape.Req("manifestVersion", shape.Int(1, 1)),
	shape.Req("protocolVersion", shape.Const("0.1")),
	shape.Req("profileId", shape.Const("missionweaveprotocol.first-admission-historical-trust.v0.1")),
	shape.Req("semanticStage", shape.Const("admission")),
	shape.Req("wireCode", shape.Const("AUTH_INVALID_SIGNATURE")),
	shape.Req("cryptography", shape.Object(
		shape.Req("manifest", shape.Const(cryptographyManifest)),
		shape.Req("artifactDigest", formDigest),
	)),
	shape.Req("fixtureSchemas", shape.Object(
		shape.Req("record", shape.Const("schemas/first-admission-record.schema.json")),
		shape.Req("registry", shape.Const("cryptography/registry-fixture.schema.json")),
	)),
	shape.Req("artifactDigest", formDigest),
	shape.Req("artifacts", formArtifacts),
	shape.Req("cases", shape.Array(shape.Object(
		shape.Req("id", formVector),
		shape.Req("evaluations", shape.Array(formAdmissionEvaluation).Min(1)),
	)).Min(1)),
)

var formAdmissionEvaluation = shape.Object(
	shape.Req("id", formVector),
	shape.Req("profileId", formProfile),
	shape.Req("mode", shape.Enum(modeFirst, modeReplay)),
	shape.Req("document", formPath),
	shape.Req("registry", formPath),
	shape.Req("trustedContext", shape.Nullable(shape.Object(
		shape.Req("admissionRecordId", formID),
		shape.Req("trustedAcceptedAt", text(128)),
		shape.Req("acceptedBy", formService),
	))),
	shape.Req("lookup", outcomeForm([]string{"found"},
		"authoritative-absence", "unauthenticated", "integrity-failed", "unavailable", "indeterminate")),
	shape.Req("append", shape.Nullable(outcomeForm([]string{"committed", "existing"},
		"conflict", "unauthenticated", "integrity-failed", "unavailable", "indeterminate"))),
	shape.Req("expect", shape.AnyOf(
		shape.Object(
			shape.Req("stage", shape.Const("complete")),
			shape.Req("wireCode", shape.Null),
			shape.Req("record", formPath),
		),
		shape.Object(
			shape.Req("stage", shape.Const("admission")),
			shape.Req("wireCode", shape.Const("AUTH_INVALID_SIGNATURE")),
			shape.Req("reason", formVector),
		),
	)),
).Rules(
	shape.When("mode", shape.Const(modeReplay)).
		Narrow("trustedContext", shape.Null).
		Narrow("append", shape.Null),
)

// outcomeForm is an adapter outcome: some statuses carry an authenticated record,
// the others nothing.
func outcomeForm(carrying []string, bare ...string) *shape.Shape {
	tags := map[string]*shape.Shape{}
	for _, status := range carrying {
		tags[status] = shape.Object(
			shape.Req("status", shape.String()),
			shape.Req("record", formPath),
			shape.Req("authenticatedService", formPrincipal),
		)
	}
	for _, status := range bare {
		tags[status] = shape.Object(shape.Req("status", shape.String()))
	}
	return shape.Union("status", tags)
}

// repositoryPath is a path of the manifests: lower-case segments, none of which
// begins with a dot.
func repositoryPath(s string) bool {
	for segment := range strings.SplitSeq(s, "/") {
		if segment == "" {
			return false
		}
		for i, c := range []byte(segment) {
			alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
			if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
				return false
			}
		}
	}
	return true
}

// vectorID is alphanumeric words joined by single dots and hyphens.
func vectorID(s string) bool {
	word := false
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
			word = true
		case (c == '.' || c == '-') && word:
			word = false
		default:
			return false
		}
	}
	return word
}
