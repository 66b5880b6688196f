package trust

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

var keeper = actor(protocol.ActorService, "keeper")

// memoryLog is a correct Admission Log in memory, and the model of what a
// durable one must do.
type memoryLog struct {
	mu      sync.Mutex
	service protocol.Actor
	records map[[2]string]protocol.FirstAdmissionRecord
	ids     map[string][2]string
	appends int
}

func newMemoryLog() *memoryLog {
	return &memoryLog{service: keeper, records: map[[2]string]protocol.FirstAdmissionRecord{}, ids: map[string][2]string{}}
}

func (l *memoryLog) Lookup(_ context.Context, organizationID, signingHash string) LookupResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	rec, ok := l.records[[2]string{organizationID, signingHash}]
	if !ok {
		return LookupResult{Status: LookupAbsent}
	}
	return LookupResult{Status: LookupFound, Record: marshal(rec), AuthenticatedService: l.service}
}

func (l *memoryLog) AppendOrReturn(_ context.Context, c protocol.FirstAdmissionRecord) AppendResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := [2]string{c.OrganizationID, c.SigningHash}
	if rec, ok := l.records[key]; ok {
		if rec.DocumentKind != c.DocumentKind || rec.KeyID != c.KeyID || rec.Principal != c.Principal {
			return AppendResult{Status: AppendConflict}
		}
		return AppendResult{Status: AppendExisting, Record: marshal(rec), AuthenticatedService: l.service}
	}
	if other, taken := l.ids[c.AdmissionRecordID]; taken && other != key {
		return AppendResult{Status: AppendConflict}
	}
	l.records[key], l.ids[c.AdmissionRecordID] = c, key
	l.appends++
	return AppendResult{Status: AppendCommitted, Record: marshal(c), AuthenticatedService: l.service}
}

func marshal(v any) []byte {
	b, err := strictjson.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func verified(t testing.TB, kind protocol.DocumentKind, ev *Evidence) *Verified {
	t.Helper()
	v, failure := VerifyBytes(kind, signedDocument(t, kind), ev)
	if failure != nil {
		t.Fatal(failure)
	}
	return v
}

func accepting(recordID, at string) func() (Acceptance, error) {
	return func() (Acceptance, error) { return Acceptance{RecordID: recordID, At: at, By: keeper}, nil }
}

func never(t testing.TB) func() (Acceptance, error) {
	return func() (Acceptance, error) {
		t.Error("a trusted context was asked for")
		return Acceptance{}, errors.New("none")
	}
}

const recordID = "urn:test:admission:1"

func TestFirstAdmissionOfEveryKindAndItsReplay(t *testing.T) {
	ctx := context.Background()
	for _, kind := range signedKinds() {
		t.Run(string(kind), func(t *testing.T) {
			log, v := newMemoryLog(), verified(t, kind, testEvidence(t))
			at := "2031-03-02T10:30:01.5+02:00"
			first, failure := Admit(ctx, v, log, accepting(recordID, at))
			if failure != nil {
				t.Fatal(failure)
			}
			want := protocol.FirstAdmissionRecord{
				ProtocolVersion: "0.1", AdmissionRecordID: recordID, OrganizationID: testOrg,
				DocumentKind: string(kind), SigningHash: v.SigningHash, KeyID: v.KeyID,
				Principal: v.Principal, TrustedAcceptedAt: at, AcceptedBy: keeper,
			}
			if diff := cmp.Diff(want, first.Record); diff != "" || !first.Appended {
				t.Errorf("appended %v, record (-want +got):\n%s", first.Appended, diff)
			}
			again, failure := Admit(ctx, v, log, never(t))
			if failure != nil {
				t.Fatal(failure)
			}
			replayed, failure := Replay(ctx, v, log)
			if failure != nil {
				t.Fatal(failure)
			}
			if again.Appended || replayed.Appended || log.appends != 1 {
				t.Errorf("%d appends", log.appends)
			}
			if !bytes.Equal(first.Bytes, again.Bytes) || !bytes.Equal(first.Bytes, replayed.Bytes) {
				t.Error("the record changed between first admission, retry and replay")
			}
		})
	}
}

func TestRacingAdmissionsShareOneRecord(t *testing.T) {
	log, v := newMemoryLog(), verified(t, protocol.KindCommand, testEvidence(t))
	const racers = 50
	got := make([]*Admission, racers)
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			id := "urn:test:admission:racer-" + string(rune('A'+i))
			if i >= 26 {
				id = "urn:test:admission:racer-" + string(rune('a'+i-26))
			}
			admission, failure := Admit(context.Background(), v, log, accepting(id, day3))
			if failure != nil {
				t.Errorf("racer %d: %s", i, failure)
				return
			}
			got[i] = admission
		})
	}
	wg.Wait()
	if log.appends != 1 {
		t.Fatalf("%d records", log.appends)
	}
	for i := range got {
		if got[i] != nil && !bytes.Equal(got[i].Bytes, got[0].Bytes) {
			t.Errorf("racer %d got another record", i)
		}
	}
}

// A backdated document is not admitted because its own time lies in the key's
// interval: the trusted time must too, with the same half-open bounds.
func TestTrustedTimeInterval(t *testing.T) {
	ev := benFrom(t, day2, until(1, day1, day4), revoked(2, day2, "2031-03-03T12:00:00.000000000001Z"))
	for _, c := range []struct{ at, want string }{
		{"2031-03-01T23:59:59.99999999999999999999Z", ReasonTrustedTime},
		{day2, ""},
		{"2031-03-02T01:00:00+01:00", ""},
		{"2031-03-03T12:00:00.0000000000009999Z", ""},
		{"2031-03-03T12:00:00.000000000001Z", ReasonTrustedTime},
		{"2031-03-03T13:00:00.000000000001+01:00", ReasonTrustedTime},
		{day4, ReasonTrustedTime},
		{"2031-03-05T00:00:00Z", ReasonTrustedTime},
		{"2031-03-02t09:00:00z", ""},
		{"", ReasonTrustedTimeForm},
		{"yesterday", ReasonTrustedTimeForm},
		{"2031-06-30T23:59:60Z", ReasonTrustedTimeForm},
		{"2031-03-02T09:00:00-00:00", ReasonTrustedTimeForm},
	} {
		log, v := newMemoryLog(), verified(t, protocol.KindCommand, ev)
		_, failure := Admit(context.Background(), v, log, accepting(recordID, c.at))
		if got := admissionReason(t, failure); got != c.want {
			t.Errorf("accepted at %q: %q, want %q", c.at, got, c.want)
		}
		if want := map[bool]int{true: 1}[c.want == ""]; log.appends != want {
			t.Errorf("accepted at %q: %d appends, want %d", c.at, log.appends, want)
		}
	}
}

func admissionReason(t testing.TB, f *Failure) string {
	t.Helper()
	if f == nil {
		return ""
	}
	if f.Stage != StageAdmission {
		t.Errorf("failure at stage %s", f.Stage)
	}
	return f.Reason
}

// A later expiry or revocation does not take an anchored signature back, but a
// boundary before the trusted time does.
func TestHistoricalReplayAfterLaterBoundaries(t *testing.T) {
	ctx, log := context.Background(), newMemoryLog()
	if _, failure := Admit(ctx, verified(t, protocol.KindCommand, benFrom(t, day1)), log, accepting(recordID, "2031-03-02T08:31:00Z")); failure != nil {
		t.Fatal(failure)
	}
	for _, c := range []struct {
		name string
		h    []Validity
		want string
	}{
		{"no boundary", nil, ""},
		{"expired after acceptance", history(until(1, day4, "2031-03-02T08:31:00.0001Z")), ""},
		{"revoked after acceptance", history(revoked(1, day4, "2031-03-02T09:00:00Z")), ""},
		{"revoked between signature and acceptance", history(revoked(1, day4, "2031-03-02T08:30:30Z")), ReasonTrustedTime},
		{"expired at the instant of acceptance", history(until(1, day4, "2031-03-02T08:31:00Z")), ReasonTrustedTime},
	} {
		v := verified(t, protocol.KindCommand, benFrom(t, day1, c.h...))
		_, failure := Replay(ctx, v, log)
		if got := admissionReason(t, failure); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if _, failure := Replay(ctx, verified(t, protocol.KindEvidence, benFrom(t, day1)), log); admissionReason(t, failure) != ReasonRecordMissing {
		t.Errorf("replay without a record: %v", failure)
	}
	if log.appends != 1 {
		t.Errorf("%d appends: a replay appended", log.appends)
	}
}

// fixedLog answers every call alike.
type fixedLog struct {
	lookup LookupResult
	append AppendResult
	called bool
}

func (l *fixedLog) Lookup(context.Context, string, string) LookupResult { return l.lookup }

func (l *fixedLog) AppendOrReturn(context.Context, protocol.FirstAdmissionRecord) AppendResult {
	l.called = true
	return l.append
}

func TestEveryUncertainLogOutcomeFailsClosed(t *testing.T) {
	ctx, v := context.Background(), verified(t, protocol.KindCommand, testEvidence(t))
	for status, want := range map[LookupStatus]string{
		LookupUnauthenticated: ReasonLogAuthentication,
		LookupIntegrityFailed: ReasonLogAuthentication,
		LookupUnavailable:     ReasonLogUnavailable,
		LookupIndeterminate:   ReasonLogIndeterminate,
		99:                    ReasonLogIndeterminate,
	} {
		log := &fixedLog{lookup: LookupResult{Status: status}}
		_, failure := Admit(ctx, v, log, never(t))
		if got := admissionReason(t, failure); got != want {
			t.Errorf("lookup %d: %q, want %q", status, got, want)
		}
		_, failure = Replay(ctx, v, log)
		if got := admissionReason(t, failure); got != want || log.called {
			t.Errorf("lookup %d in replay: %q, want %q (append called: %v)", status, got, want, log.called)
		}
	}
	for status, want := range map[AppendStatus]string{
		AppendConflict:        ReasonRecordConflict,
		AppendUnauthenticated: ReasonLogAuthentication,
		AppendIntegrityFailed: ReasonAppendIntegrity,
		AppendUnavailable:     ReasonLogUnavailable,
		AppendIndeterminate:   ReasonLogIndeterminate,
		AppendCommitFailed:    ReasonCommitFailed,
		99:                    ReasonLogIndeterminate,
		AppendCommitted:       ReasonRecordSchema, // and no record
		AppendExisting:        ReasonRecordSchema,
	} {
		log := &fixedLog{lookup: LookupResult{Status: LookupAbsent}, append: AppendResult{Status: status}}
		_, failure := Admit(ctx, v, log, accepting(recordID, day3))
		if got := admissionReason(t, failure); got != want {
			t.Errorf("append %d: %q, want %q", status, got, want)
		}
		checkDisclosure(t, failure)
	}
	_, failure := Admit(ctx, v, &fixedLog{lookup: LookupResult{Status: LookupAbsent}}, func() (Acceptance, error) {
		return Acceptance{}, errors.New("no clock")
	})
	if got := admissionReason(t, failure); got != ReasonContextUnavailable {
		t.Errorf("no trusted context: %q", got)
	}
	if _, failure := Admit(ctx, v, &fixedLog{}, never(t)); admissionReason(t, failure) != ReasonLogIndeterminate {
		t.Errorf("a log without an outcome: %v", failure)
	}
}

// TestRecordRules: each row changes the record that the log returns; both the
// text and the typed form must be judged alike, in lookup and after append.
func TestRecordRules(t *testing.T) {
	ctx, v := context.Background(), verified(t, protocol.KindCommand, testEvidence(t))
	sound := PrepareRecord(v, testOrg, recordID, time.Date(2031, 3, 2, 8, 30, 1, 999, time.UTC), keeper)
	if sound.TrustedAcceptedAt != "2031-03-02T08:30:01.000000Z" {
		t.Errorf("trusted time %q", sound.TrustedAcceptedAt)
	}
	for _, c := range []struct {
		name    string
		change  func(*protocol.FirstAdmissionRecord)
		service protocol.Actor
		want    string
	}{
		{"sound", func(*protocol.FirstAdmissionRecord) {}, keeper, ""},
		{"another record id is a concurrent winner's", func(r *protocol.FirstAdmissionRecord) { r.AdmissionRecordID += "-winner" }, keeper, ""},
		{"another trusted time is a concurrent winner's", func(r *protocol.FirstAdmissionRecord) { r.TrustedAcceptedAt = day3 }, keeper, ""},
		{"another Organization", func(r *protocol.FirstAdmissionRecord) { r.OrganizationID += "x" }, keeper, ReasonRecordBinding},
		{"another kind", func(r *protocol.FirstAdmissionRecord) { r.DocumentKind = "event" }, keeper, ReasonRecordBinding},
		{"another hash", func(r *protocol.FirstAdmissionRecord) {
			r.SigningHash = "sha256:" + string(bytes.Repeat([]byte("0"), 64))
		}, keeper, ReasonRecordBinding},
		{"another key", func(r *protocol.FirstAdmissionRecord) { r.KeyID = ann.KeyID }, keeper, ReasonRecordBinding},
		{"another Principal", func(r *protocol.FirstAdmissionRecord) { r.Principal = ann.Principal }, keeper, ReasonRecordBinding},
		{"the same id under another type", func(r *protocol.FirstAdmissionRecord) { r.Principal.Type = protocol.ActorHuman }, keeper, ReasonRecordBinding},
		{"accepted by another than the authenticated service", func(*protocol.FirstAdmissionRecord) {}, gate.Principal, ReasonLogAuthentication},
		{"no authenticated service", func(*protocol.FirstAdmissionRecord) {}, protocol.Actor{}, ReasonLogAuthentication},
		{"accepted by a human", func(r *protocol.FirstAdmissionRecord) { r.AcceptedBy = ann.Principal }, ann.Principal, ReasonRecordSchema},
		{"another protocol version", func(r *protocol.FirstAdmissionRecord) { r.ProtocolVersion = "0.2" }, keeper, ReasonRecordSchema},
		{"relative record id", func(r *protocol.FirstAdmissionRecord) { r.AdmissionRecordID = "record-1" }, keeper, ReasonRecordSchema},
		{"empty record id", func(r *protocol.FirstAdmissionRecord) { r.AdmissionRecordID = "" }, keeper, ReasonRecordSchema},
		{"upper-case hash", func(r *protocol.FirstAdmissionRecord) { r.SigningHash = "SHA256" + r.SigningHash[6:] }, keeper, ReasonRecordSchema},
		{"a kind that is never signed", func(r *protocol.FirstAdmissionRecord) { r.DocumentKind = "message" }, keeper, ReasonRecordSchema},
		{"a malformed Principal id", func(r *protocol.FirstAdmissionRecord) { r.Principal.ID = "ben" }, keeper, ReasonRecordSchema},
		{"an unknown Principal type", func(r *protocol.FirstAdmissionRecord) { r.Principal.Type = "robot" }, keeper, ReasonRecordSchema},
		{"malformed trusted time", func(r *protocol.FirstAdmissionRecord) { r.TrustedAcceptedAt = "2031-03-02" }, keeper, ReasonRecordSchema},
		{"trusted time before the key", func(r *protocol.FirstAdmissionRecord) { r.TrustedAcceptedAt = "2031-02-28T23:59:59.9Z" }, keeper, ReasonTrustedTime},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := sound
			c.change(&rec)
			if got := admissionReason(t, ValidateRecord(rec, v, c.service)); got != c.want {
				t.Errorf("typed: %q, want %q", got, c.want)
			}
			text := marshal(rec)
			_, failure := ValidateRecordBytes(text, v, c.service)
			if got := admissionReason(t, failure); got != c.want {
				t.Errorf("text: %q, want %q", got, c.want)
			}
			_, failure = Replay(ctx, v, &fixedLog{lookup: LookupResult{LookupFound, text, c.service}})
			if got := admissionReason(t, failure); got != c.want {
				t.Errorf("replay: %q, want %q", got, c.want)
			}
			_, failure = Admit(ctx, v, &fixedLog{lookup: LookupResult{Status: LookupAbsent}, append: AppendResult{AppendExisting, text, c.service}}, accepting(recordID, day3))
			if got := admissionReason(t, failure); got != c.want {
				t.Errorf("after append: %q, want %q", got, c.want)
			}
		})
	}
}

func TestRecordTextIsStrict(t *testing.T) {
	v := verified(t, protocol.KindCommand, testEvidence(t))
	sound := marshal(PrepareRecord(v, testOrg, recordID, time.Date(2031, 3, 2, 8, 30, 1, 0, time.UTC), keeper))
	for name, text := range map[string][]byte{
		"nothing":              nil,
		"no JSON":              []byte("record"),
		"trailing data":        append(bytes.Clone(sound), ' ', '1'),
		"a byte-order mark":    append([]byte("\xef\xbb\xbf"), sound...),
		"a duplicate member":   bytes.Replace(sound, []byte(`{`), []byte(`{"keyId":"urn:test:key:x",`), 1),
		"an unknown member":    setMember(t, sound, "integrity", "true"),
		"a signature":          setMember(t, sound, "signature", `{"algorithm":"Ed25519"}`),
		"a missing member":     setMember(t, sound, "acceptedBy", ""),
		"null for a member":    setMember(t, sound, "keyId", "null"),
		"an unpaired surrgate": setMember(t, sound, "admissionRecordId", `"urn:test:\ud800"`),
	} {
		if _, failure := ValidateRecordBytes(text, v, keeper); admissionReason(t, failure) != ReasonRecordSchema {
			t.Errorf("%s: %v", name, failure)
		}
	}
	if _, failure := ValidateRecordBytes(spaced(t, sound), v, keeper); failure != nil {
		t.Errorf("white space: %s", failure)
	}
}

// An Event never anchors itself, in whatever spelling and by whatever way it is
// offered as its record.
func TestEventSelfAnchoring(t *testing.T) {
	ctx := context.Background()
	signed := signedDocument(t, protocol.KindEvent)
	v := verified(t, protocol.KindEvent, testEvidence(t))
	otherKey := gate
	otherKey.KeyID, otherKey.Private = "urn:test:key:gate-9", testKey(9)
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"its own bytes":          {signed, ReasonSelfAnchoring},
		"its bytes, spaced":      {spaced(t, signed), ReasonSelfAnchoring},
		"signed by another key":  {resign(t, protocol.KindEvent, signed, otherKey), ReasonSelfAnchoring},
		"without its signature":  {unsignedDocument(t, protocol.KindEvent), ReasonSelfAnchoring},
		"another Event":          {resign(t, protocol.KindEvent, setMember(t, signed, "sequence", "42"), gate), ReasonRecordSchema},
		"the Event inside a box": {append(append([]byte(`{"event":`), signed...), '}'), ReasonRecordSchema},
	} {
		_, failure := Replay(ctx, v, &fixedLog{lookup: LookupResult{LookupFound, c.text, keeper}})
		if got := admissionReason(t, failure); got != c.want {
			t.Errorf("%s, found: %q, want %q", name, got, c.want)
		}
		_, failure = Admit(ctx, v, &fixedLog{lookup: LookupResult{Status: LookupAbsent}, append: AppendResult{AppendExisting, c.text, keeper}}, accepting(recordID, day3))
		if got := admissionReason(t, failure); got != c.want {
			t.Errorf("%s, returned by append: %q, want %q", name, got, c.want)
		}
	}
}
