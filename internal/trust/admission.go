package trust

import (
	"bytes"
	"context"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// protocolVersion is the constant of First-Admission Records.
const protocolVersion = "0.1"

// LookupStatus is the typed outcome of an Admission Log lookup. The zero value
// is no outcome and fails closed.
type LookupStatus int

// Outcomes of a lookup. Only LookupAbsent permits a first admission.
const (
	LookupIndeterminate LookupStatus = iota
	LookupFound
	LookupAbsent // authoritative absence
	LookupUnauthenticated
	LookupIntegrityFailed
	LookupUnavailable
)

// AppendStatus is the typed outcome of append-or-return-existing. The zero value
// is no outcome and fails closed.
type AppendStatus int

// Outcomes of an append. Both AppendCommitted and AppendExisting carry the
// authoritative record.
const (
	AppendIndeterminate AppendStatus = iota
	AppendCommitted
	AppendExisting
	AppendConflict
	AppendUnauthenticated
	AppendIntegrityFailed
	AppendUnavailable
	AppendCommitFailed
)

// LookupResult is what a lookup of one logical key establishes. Record and
// AuthenticatedService are set with LookupFound only.
type LookupResult struct {
	Status               LookupStatus
	Record               []byte // the record's JSON text as retained
	AuthenticatedService protocol.Actor
}

// AppendResult is what append-or-return-existing establishes. Record and
// AuthenticatedService are set with AppendCommitted and AppendExisting only.
type AppendResult struct {
	Status               AppendStatus
	Record               []byte
	AuthenticatedService protocol.Actor
}

// AdmissionLog is one Organization's Admission Log; its logical key is
// (organizationID, signingHash). An implementation authenticates the accepting
// service, lets only authorised services write, keeps records append-only and at
// most one per key, never lets one admissionRecordId stand under two keys, and
// never answers LookupAbsent unless it is certain.
type AdmissionLog interface {
	// Lookup finds the record of the key.
	Lookup(ctx context.Context, organizationID, signingHash string) LookupResult
	// AppendOrReturn atomically appends the candidate, or returns the record that
	// is already there. A record there with another document kind, key id or
	// Principal is AppendConflict; a candidate whose admissionRecordId is taken
	// by another key is AppendConflict too.
	AppendOrReturn(ctx context.Context, candidate protocol.FirstAdmissionRecord) AppendResult
}

// Acceptance is trusted acceptance context: a fresh record id, the
// Organization's trusted instant in its own spelling, and the accepting service.
type Acceptance struct {
	RecordID string
	At       string
	By       protocol.Actor
}

// Admission is a document with the authenticated record that anchors it.
type Admission struct {
	Document *Verified
	Record   protocol.FirstAdmissionRecord
	Bytes    []byte // the record's JSON text as the log returned it
	Appended bool   // this call committed the record
}

// Admit performs first admission of a document verified against current
// evidence: lookup, and on authoritative absence a candidate from accept and
// append-or-return-existing. The record that the log returns is validated, never
// only the candidate. Admission is not authorisation.
func Admit(ctx context.Context, v *Verified, log AdmissionLog, accept func() (Acceptance, error)) (*Admission, *Failure) {
	found := log.Lookup(ctx, v.OrganizationID, v.SigningHash)
	switch found.Status {
	case LookupFound:
		return admitted(found.Record, v, found.AuthenticatedService, false)
	case LookupAbsent:
	default:
		return nil, admissionFailure(lookupReason(found.Status))
	}
	acceptance, err := accept()
	if err != nil {
		return nil, &Failure{Stage: StageAdmission, Reason: ReasonContextUnavailable, Cause: err}
	}
	candidate := candidateRecord(v, v.OrganizationID, acceptance)
	if failure := checkCandidate(candidate, v); failure != nil {
		return nil, failure
	}
	result := log.AppendOrReturn(ctx, candidate)
	switch result.Status {
	case AppendCommitted, AppendExisting:
		return admitted(result.Record, v, result.AuthenticatedService, result.Status == AppendCommitted)
	}
	return nil, admissionFailure(appendReason(result.Status))
}

// Replay validates the anchor of a document verified against historical
// evidence. It never appends and never takes a new acceptance.
func Replay(ctx context.Context, v *Verified, log AdmissionLog) (*Admission, *Failure) {
	found := log.Lookup(ctx, v.OrganizationID, v.SigningHash)
	switch found.Status {
	case LookupFound:
		return admitted(found.Record, v, found.AuthenticatedService, false)
	case LookupAbsent:
		return nil, admissionFailure(ReasonRecordMissing)
	}
	return nil, admissionFailure(lookupReason(found.Status))
}

func admitted(record []byte, v *Verified, service protocol.Actor, appended bool) (*Admission, *Failure) {
	rec, failure := ValidateRecordBytes(record, v, service)
	if failure != nil {
		return nil, failure
	}
	return &Admission{Document: v, Record: rec, Bytes: record, Appended: appended}, nil
}

// PrepareRecord makes the candidate First-Admission Record of a verified
// document, accepted at a time that is cut to microseconds. A candidate admits
// nothing: pass it to ValidateRecord before it is written, and validate what the
// log returns.
func PrepareRecord(v *Verified, organizationID, recordID string, at time.Time, acceptedBy protocol.Actor) protocol.FirstAdmissionRecord {
	return candidateRecord(v, organizationID, Acceptance{RecordID: recordID, At: lexical.FormatMicros(at), By: acceptedBy})
}

func candidateRecord(v *Verified, organizationID string, a Acceptance) protocol.FirstAdmissionRecord {
	return protocol.FirstAdmissionRecord{
		ProtocolVersion:   protocolVersion,
		AdmissionRecordID: a.RecordID,
		OrganizationID:    organizationID,
		DocumentKind:      string(v.Kind),
		SigningHash:       v.SigningHash,
		KeyID:             v.KeyID,
		Principal:         v.Principal,
		TrustedAcceptedAt: a.At,
		AcceptedBy:        a.By,
	}
}

// checkCandidate is ValidateRecord before there is an authenticated service; a
// bad trusted time is the acceptance context's fault and has a reason of its own.
func checkCandidate(rec protocol.FirstAdmissionRecord, v *Verified) *Failure {
	if _, err := lexical.ParseTimestamp(rec.TrustedAcceptedAt); err != nil {
		return &Failure{Stage: StageAdmission, Reason: ReasonTrustedTimeForm, Cause: err}
	}
	return ValidateRecord(rec, v, rec.AcceptedBy)
}

// ValidateRecordBytes validates a retained or returned record: strict parse,
// structure, bindings to the six-stage evidence, the authenticated service, and
// the key's interval at the trusted instant.
func ValidateRecordBytes(record []byte, v *Verified, authenticatedService protocol.Actor) (protocol.FirstAdmissionRecord, *Failure) {
	var rec protocol.FirstAdmissionRecord
	doc, err := strictjson.Parse(record)
	if selfAnchoring(v, record, doc) {
		return rec, admissionFailure(ReasonSelfAnchoring)
	}
	if err != nil {
		return rec, &Failure{Stage: StageAdmission, Reason: ReasonRecordSchema, Cause: err}
	}
	if fault := protocol.Validate(protocol.KindFirstAdmissionRecord, doc.Root()); fault != nil {
		return rec, admissionFailure(ReasonRecordSchema)
	}
	if err := strictjson.Decode(doc.Root(), &rec); err != nil {
		return rec, &Failure{Stage: StageAdmission, Reason: ReasonRecordSchema, Cause: err}
	}
	return rec, validate(rec, v, authenticatedService)
}

// ValidateRecord is ValidateRecordBytes for a record that is kept as columns and
// not as text. It checks the structure of the fields as well.
func ValidateRecord(rec protocol.FirstAdmissionRecord, v *Verified, authenticatedService protocol.Actor) *Failure {
	wellFormed := rec.ProtocolVersion == protocolVersion &&
		lexical.ValidID(rec.AdmissionRecordID) &&
		lexical.ValidID(rec.OrganizationID) &&
		signedKind(rec.DocumentKind) &&
		lexical.ValidSHA256(rec.SigningHash) &&
		lexical.ValidID(rec.KeyID) &&
		validActor(rec.Principal) &&
		validActor(rec.AcceptedBy) && rec.AcceptedBy.Type == protocol.ActorService
	if !wellFormed {
		return admissionFailure(ReasonRecordSchema)
	}
	return validate(rec, v, authenticatedService)
}

// validate is what remains once the record has its structure.
func validate(rec protocol.FirstAdmissionRecord, v *Verified, authenticatedService protocol.Actor) *Failure {
	bound := rec.OrganizationID == v.OrganizationID &&
		rec.DocumentKind == string(v.Kind) &&
		rec.SigningHash == v.SigningHash &&
		rec.KeyID == v.KeyID &&
		rec.Principal == v.Principal
	if !bound {
		return admissionFailure(ReasonRecordBinding)
	}
	if rec.AcceptedBy != authenticatedService {
		return admissionFailure(ReasonLogAuthentication)
	}
	at, err := lexical.ParseTimestamp(rec.TrustedAcceptedAt)
	if err != nil {
		return &Failure{Stage: StageAdmission, Reason: ReasonRecordSchema, Cause: err}
	}
	if !v.Contains(at) {
		return admissionFailure(ReasonTrustedTime)
	}
	return nil
}

// selfAnchoring reports whether the text offered as the record of a Signed Event
// is that Event, in its own bytes or written or signed differently.
func selfAnchoring(v *Verified, record []byte, doc *strictjson.Document) bool {
	if v.Kind != protocol.KindEvent {
		return false
	}
	if bytes.Equal(record, v.Value.Raw()) {
		return true
	}
	if doc == nil {
		return false
	}
	hash, err := SigningHash(doc.Root())
	return err == nil && hash == v.SigningHash
}

func signedKind(kind string) bool {
	_, ok := protocol.SignedKinds[protocol.DocumentKind(kind)]
	return ok
}

func admissionFailure(reason string) *Failure {
	return &Failure{Stage: StageAdmission, Reason: reason}
}

func lookupReason(s LookupStatus) string {
	switch s {
	case LookupUnauthenticated, LookupIntegrityFailed:
		return ReasonLogAuthentication
	case LookupUnavailable:
		return ReasonLogUnavailable
	}
	return ReasonLogIndeterminate
}

func appendReason(s AppendStatus) string {
	switch s {
	case AppendConflict:
		return ReasonRecordConflict
	case AppendUnauthenticated:
		return ReasonLogAuthentication
	case AppendIntegrityFailed:
		return ReasonAppendIntegrity
	case AppendUnavailable:
		return ReasonLogUnavailable
	case AppendCommitFailed:
		return ReasonCommitFailed
	}
	return ReasonLogIndeterminate
}
