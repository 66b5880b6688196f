package trust

import (
	"errors"
	"strconv"
	"strings"

	"github.com/missionweave/server/internal/protocol"
)

// Stage is a semantic stage of PROTOCOL.md 6.4: the six of cryptographic
// verification, and admission, which is a layer after them and not a seventh.
type Stage int

// Stages in their normative order.
const (
	StageParse Stage = iota + 1
	StageSchema
	StageEnvelope
	StageKey
	StageCanonical
	StageSignature
	StageAdmission
)

var stageNames = [...]string{
	StageParse:     "parse",
	StageSchema:    "schema",
	StageEnvelope:  "signature-envelope",
	StageKey:       "key-resolution",
	StageCanonical: "canonicalization",
	StageSignature: "signature",
	StageAdmission: "admission",
}

// String is the stage's name in the conformance manifests and audit records.
func (s Stage) String() string {
	if s < StageParse || s > StageAdmission {
		return "unknown"
	}
	return stageNames[s]
}

// Failure is the first failing stage of a verification or an admission. Stage
// and Reason belong into the protected audit record and never onto the wire.
// Path and Keyword are set at StageSchema only: a JSON Pointer and the broken
// structural keyword.
type Failure struct {
	Stage   Stage
	Reason  string
	Path    string
	Keyword string
	Cause   error
}

// Reasons of stages 3, 4 and 6. A public key or signature half that is no
// acceptable point carries the PointFault after the prefix.
const (
	ReasonUnknownKind         = "unsigned-document-kind"
	ReasonTimeNotUTC          = "protected-time-not-utc-z"
	ReasonTimeMismatch        = "created-at-mismatch"
	ReasonSignatureEncoding   = "signature-not-base64url"
	ReasonSignatureLength     = "signature-wrong-length"
	reasonRPrefix             = "signature-r-"
	reasonSPrefix             = "signature-s-"
	ReasonEvidenceUnavailable = "registry-evidence-unavailable"
	ReasonEvidenceInvalid     = "registry-evidence-invalid"
	ReasonUnknownKey          = "unknown-key"
	ReasonWrongPrincipal      = "key-bound-to-another-principal"
	ReasonKeyNotYetValid      = "key-not-yet-valid"
	ReasonKeyExpired          = "key-expired"
	ReasonKeyRevoked          = "key-revoked"
	ReasonEquation            = "equation-mismatch"
)

// Reasons at StageAdmission; the first twelve are the protocol's own.
const (
	ReasonRecordMissing      = "record-missing"
	ReasonRecordBinding      = "record-binding-mismatch"
	ReasonTrustedTime        = "trusted-time-outside-key-interval"
	ReasonTrustedTimeForm    = "malformed-trusted-time"
	ReasonRecordConflict     = "record-conflict"
	ReasonRecordSchema       = "record-schema-invalid"
	ReasonLogAuthentication  = "log-authentication-failed"
	ReasonAppendIntegrity    = "append-integrity-not-established"
	ReasonLogUnavailable     = "log-unavailable"
	ReasonLogIndeterminate   = "log-indeterminate"
	ReasonCommitFailed       = "commit-failed"
	ReasonSelfAnchoring      = "event-self-anchoring"
	ReasonContextUnavailable = "trusted-context-unavailable"
)

// String is the protected diagnostic: stage, reason and, for structure, where.
func (f *Failure) String() string {
	var b strings.Builder
	b.WriteString(f.Stage.String())
	b.WriteString(": ")
	b.WriteString(f.Reason)
	if f.Stage == StageSchema {
		b.WriteString(" at ")
		b.WriteString(f.Path)
	}
	return b.String()
}

// Code is the only classification that an untrusted caller may see.
func (f *Failure) Code() protocol.Code {
	switch f.Stage {
	case StageParse, StageCanonical:
		return protocol.CodeProtocolViolation
	case StageSchema:
		return protocol.CodeSchemaValidationFailed
	}
	return protocol.CodeAuthInvalidSignature
}

// Error is the wire error: neutral, equal for every failure of stages 3, 4, 6
// and admission. The diagnostic travels as Cause, which is never encoded.
func (f *Failure) Error() *protocol.Error {
	e := protocol.NewError(f.Code(), "").WithStep(f.step()).WithStage(f.stageToken()).WithCause(f.Diagnostic())
	if f.Stage == StageSchema {
		return e.WithDetail("path", f.Path).WithDetail("keyword", f.Keyword)
	}
	return e
}

// stageToken is the stage as protocol.Error spells it.
func (f *Failure) stageToken() string {
	if f.Stage == StageAdmission {
		return "admission"
	}
	return strconv.Itoa(int(f.Stage))
}

// step is the row of COMMANDS.md 2.2 that a failure of the Command itself stops
// at; the caller overrides it for embedded documents.
func (f *Failure) step() string {
	switch f.Stage {
	case StageAdmission:
		return "P12"
	case StageParse, StageSchema, StageEnvelope, StageKey, StageCanonical, StageSignature:
		return "P" + strconv.Itoa(int(f.Stage))
	}
	return ""
}

// Diagnostic returns the failure as an error for logs and the audit record.
func (f *Failure) Diagnostic() error { return &diagnostic{f} }

// FailureOf finds the Failure inside an error made by Error or Diagnostic.
func FailureOf(err error) (*Failure, bool) {
	var d *diagnostic
	if errors.As(err, &d) {
		return d.failure, true
	}
	var e *protocol.Error
	if errors.As(err, &e) && errors.As(e.Cause, &d) {
		return d.failure, true
	}
	return nil, false
}

type diagnostic struct{ failure *Failure }

func (d *diagnostic) Error() string { return d.failure.String() }

func (d *diagnostic) Unwrap() error { return d.failure.Cause }
