package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

const (
	admissionManifest = "admission/manifest.json"

	modeFirst  = "first-admission"
	modeReplay = "historical-replay"
)

type admission struct {
	Cryptography struct {
		ArtifactDigest string `json:"artifactDigest"`
	} `json:"cryptography"`
	FixtureSchemas map[string]string `json:"fixtureSchemas"`
	ArtifactDigest string            `json:"artifactDigest"`
	Artifacts      []artifact        `json:"artifacts"`
	Cases          []struct {
		ID          string                `json:"id"`
		Evaluations []admissionEvaluation `json:"evaluations"`
	} `json:"cases"`
}

type admissionEvaluation struct {
	ID             string            `json:"id"`
	ProfileID      string            `json:"profileId"`
	Mode           string            `json:"mode"`
	Document       string            `json:"document"`
	Registry       string            `json:"registry"`
	TrustedContext *trustedContext   `json:"trustedContext"`
	Lookup         admissionOutcome  `json:"lookup"`
	Append         *admissionOutcome `json:"append"`
	Expect         struct {
		Stage    string  `json:"stage"`
		WireCode *string `json:"wireCode"`
		Record   string  `json:"record"`
		Reason   string  `json:"reason"`
	} `json:"expect"`
}

type trustedContext struct {
	AdmissionRecordID string         `json:"admissionRecordId"`
	TrustedAcceptedAt string         `json:"trustedAcceptedAt"`
	AcceptedBy        protocol.Actor `json:"acceptedBy"`
}

type admissionOutcome struct {
	Status               string         `json:"status"`
	Record               string         `json:"record"`
	AuthenticatedService protocol.Actor `json:"authenticatedService"`
}

func runAdmission(c *checkout) Bundle {
	b := Bundle{Name: Admission}
	var m admission
	manifest, err := c.decode(admissionManifest, formAdmission, &m)
	if err != nil {
		b.miss(admissionManifest, "%v", err)
		return b
	}
	checkDigest(&b, admissionManifest, manifest, m.ArtifactDigest)
	files := pinned{}
	c.pin(&b, m.Artifacts, files)
	pinCryptography(&b, c, m.Cryptography.ArtifactDigest, files)
	for _, name := range m.FixtureSchemas {
		for _, fault := range files.usable(name) {
			b.miss(admissionManifest, "fixture schema %s", fault)
		}
	}
	seen := map[string]bool{}
	for _, k := range m.Cases {
		for _, e := range k.Evaluations {
			faults := e.faults(c, files)
			if seen[e.ID] {
				faults = append(faults, "evaluation id is not unique")
			}
			seen[e.ID] = true
			b.judge(e.ID+" ("+k.ID+")", faults)
		}
	}
	return b
}

// pinCryptography checks that the cryptography bundle is the one the admission
// bundle was made for, and adds its files.
func pinCryptography(b *Bundle, c *checkout, declared string, files pinned) {
	var m cryptography
	manifest, err := c.decode(cryptographyManifest, formCryptography, &m)
	if err != nil {
		b.miss(cryptographyManifest, "%v", err)
		return
	}
	if got := checkDigest(b, cryptographyManifest, manifest, m.ArtifactDigest); got != "" && got != declared {
		b.miss(admissionManifest, "pins the cryptography bundle %s, found is %s", declared, got)
	}
	c.pin(b, m.Artifacts, files)
}

func (e admissionEvaluation) faults(c *checkout, files pinned) []string {
	faults := slices.Concat(files.usable(e.Document), files.usable(e.Registry))
	records := []string{e.Lookup.Record, e.Expect.Record}
	if e.Append != nil {
		records = append(records, e.Append.Record)
	}
	for _, name := range records {
		if name != "" {
			faults = append(faults, files.usable(name)...)
		}
	}
	if len(faults) > 0 {
		return slices.Compact(faults)
	}
	content, err := c.read(e.Document)
	if err != nil {
		return []string{err.Error()}
	}
	ev, err := readRegistry(c, e.Registry)
	if err != nil {
		return []string{err.Error()}
	}
	verified, failure := trust.VerifyBytes(protocol.DocumentKind(e.ProfileID), content, ev)
	if failure != nil {
		return []string{"the six stages fail at " + failure.String()}
	}
	log := &scriptedLog{files: c, evaluation: e, verified: verified}
	admitted, failure := e.run(log)
	faults = append(log.faults, log.uncalled()...)
	if failure != nil {
		faults = append(faults, outcomeFaults(failure, e.Expect.Stage, e.Expect.WireCode)...)
		if e.Expect.Stage != stageComplete && failure.Reason != e.Expect.Reason {
			faults = append(faults, fmt.Sprintf("reason %s, want %s", failure.Reason, e.Expect.Reason))
		}
		return faults
	}
	if e.Expect.Stage != stageComplete {
		return append(faults, fmt.Sprintf("is admitted, want %s", e.Expect.Reason))
	}
	expected, err := c.read(e.Expect.Record)
	switch {
	case err != nil:
		faults = append(faults, err.Error())
	case !bytes.Equal(admitted.Bytes, expected):
		faults = append(faults, "admitted under another record than "+e.Expect.Record)
	}
	return faults
}

var errNoContext = errors.New("the evaluation issues no trusted context")

func (e admissionEvaluation) run(log *scriptedLog) (*trust.Admission, *trust.Failure) {
	if e.Mode == modeReplay {
		return trust.Replay(context.Background(), log.verified, log)
	}
	return trust.Admit(context.Background(), log.verified, log, func() (trust.Acceptance, error) {
		if e.TrustedContext == nil {
			log.fault("a trusted context is asked for")
			return trust.Acceptance{}, errNoContext
		}
		return trust.Acceptance{
			RecordID: e.TrustedContext.AdmissionRecordID,
			At:       e.TrustedContext.TrustedAcceptedAt,
			By:       e.TrustedContext.AcceptedBy,
		}, nil
	})
}

// scriptedLog is an Admission Log that answers as the evaluation declares, and
// notes every call that the evaluation does not foresee.
type scriptedLog struct {
	files      *checkout
	evaluation admissionEvaluation
	verified   *trust.Verified
	looked     bool
	appended   bool
	faults     []string
}

func (l *scriptedLog) fault(format string, args ...any) {
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

func (l *scriptedLog) uncalled() []string {
	var faults []string
	if !l.looked {
		faults = append(faults, "the log is not looked up")
	}
	if l.evaluation.Append != nil && !l.appended {
		faults = append(faults, "nothing is appended")
	}
	return faults
}

func (l *scriptedLog) record(name string) []byte {
	content, err := l.files.read(name)
	if err != nil {
		l.fault("%v", err)
	}
	return content
}

var lookupStatus = map[string]trust.LookupStatus{
	"found":                 trust.LookupFound,
	"authoritative-absence": trust.LookupAbsent,
	"unauthenticated":       trust.LookupUnauthenticated,
	"integrity-failed":      trust.LookupIntegrityFailed,
	"unavailable":           trust.LookupUnavailable,
	"indeterminate":         trust.LookupIndeterminate,
}

// Lookup implements trust.AdmissionLog.
func (l *scriptedLog) Lookup(_ context.Context, organizationID, signingHash string) trust.LookupResult {
	if l.looked {
		l.fault("the log is looked up twice")
	}
	l.looked = true
	if organizationID != l.verified.OrganizationID || signingHash != l.verified.SigningHash {
		l.fault("the log is looked up under (%s, %s)", organizationID, signingHash)
	}
	script := l.evaluation.Lookup
	result := trust.LookupResult{Status: lookupStatus[script.Status]}
	if script.Record != "" {
		result.Record, result.AuthenticatedService = l.record(script.Record), script.AuthenticatedService
	}
	return result
}

var appendStatus = map[string]trust.AppendStatus{
	"committed":        trust.AppendCommitted,
	"existing":         trust.AppendExisting,
	"conflict":         trust.AppendConflict,
	"unauthenticated":  trust.AppendUnauthenticated,
	"integrity-failed": trust.AppendIntegrityFailed,
	"unavailable":      trust.AppendUnavailable,
	"indeterminate":    trust.AppendIndeterminate,
}

// AppendOrReturn implements trust.AdmissionLog. What it says was committed must
// be what it was given.
func (l *scriptedLog) AppendOrReturn(_ context.Context, candidate protocol.FirstAdmissionRecord) trust.AppendResult {
	script := l.evaluation.Append
	if script == nil {
		l.fault("a record is appended")
		return trust.AppendResult{Status: trust.AppendUnavailable}
	}
	if l.appended {
		l.fault("a record is appended twice")
	}
	l.appended = true
	result := trust.AppendResult{Status: appendStatus[script.Status]}
	if script.Record == "" {
		return result
	}
	result.Record, result.AuthenticatedService = l.record(script.Record), script.AuthenticatedService
	if result.Status == trust.AppendCommitted {
		given, err := strictjson.Marshal(candidate)
		committed, err2 := strictjson.Canonicalize(result.Record)
		if err != nil || err2 != nil || !bytes.Equal(given, committed) {
			l.fault("the candidate %s is not the committed record", given)
		}
	}
	return result
}
