package events

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"testing"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/trust"
)

// One hundred admissions of one document race: one record, and everybody gets it.
func TestRacingAdmissionsOfOneDocumentGiveOneRecord(t *testing.T) {
	for _, kind := range []protocol.DocumentKind{protocol.KindEvidence, protocol.KindCommand} {
		t.Run(string(kind), func(t *testing.T) {
			s := openStore(t, Options{Writers: 12})
			hash := hashOfText("one document")
			actor := protocol.Actor{Type: protocol.ActorAgent, ID: "urn:agent:one"}
			log := s.AdmissionLog(testAuthority)
			if kind == protocol.KindCommand {
				log = log.ForCommand(ReceiptKey{actor, "urn:action:one"})
			}
			const racers = 100
			results := make([]trust.AppendResult, racers)
			var wg sync.WaitGroup
			start := make(chan struct{})
			for i := range racers {
				wg.Go(func() {
					<-start
					at := time.Now().Add(time.Duration(i) * time.Millisecond).UTC().Truncate(time.Microsecond)
					results[i] = log.AppendOrReturn(t.Context(), recordFor(hash, string(kind), actor, at))
				})
			}
			close(start)
			wg.Wait()
			committed := 0
			for i, r := range results {
				switch r.Status {
				case trust.AppendCommitted:
					committed++
				case trust.AppendExisting:
				default:
					t.Fatalf("racer %d: status %d", i, r.Status)
				}
				if string(r.Record) != string(results[0].Record) {
					t.Fatalf("racer %d got another record:\n%s\n%s", i, r.Record, results[0].Record)
				}
			}
			if committed != 1 {
				t.Errorf("%d racers say they committed", committed)
			}
			found := log.Lookup(t.Context(), testOrg, hash)
			if found.Status != trust.LookupFound || string(found.Record) != string(results[0].Record) || found.AuthenticatedService != testAuthority {
				t.Errorf("lookup %+v", found)
			}
			var n int
			if err := s.readers.QueryRow(t.Context(), "SELECT count(*) FROM admissions").Scan(&n); err != nil || n != 1 {
				t.Errorf("%d records, %v", n, err)
			}
			if err := s.readers.QueryRow(t.Context(), "SELECT count(*) FROM receipts").Scan(&n); err != nil || n != 0 {
				t.Errorf("%d probes were left, %v", n, err)
			}
		})
	}
}

func TestAdmissionLogOutcomes(t *testing.T) {
	s := openStore(t, Options{})
	ctx := t.Context()
	actor := protocol.Actor{Type: protocol.ActorAgent, ID: "urn:agent:one"}
	log := s.AdmissionLog(testAuthority)
	at := time.Now().UTC().Truncate(time.Microsecond)
	first := recordFor(hashOfText("doc"), "approval", actor, at)
	if r := log.AppendOrReturn(ctx, first); r.Status != trust.AppendCommitted {
		t.Fatalf("first: %d", r.Status)
	}
	change := func(f func(*protocol.FirstAdmissionRecord)) protocol.FirstAdmissionRecord {
		rec := first
		f(&rec)
		return rec
	}
	stranger := protocol.Actor{Type: protocol.ActorService, ID: "urn:service:stranger"}
	for name, tc := range map[string]struct {
		rec  protocol.FirstAdmissionRecord
		want trust.AppendStatus
	}{
		"again, later": {change(func(r *protocol.FirstAdmissionRecord) {
			r.AdmissionRecordID = RecordID(testOrg, r.SigningHash, at.Add(time.Second))
		}), trust.AppendExisting},
		"another key id":      {change(func(r *protocol.FirstAdmissionRecord) { r.KeyID = "urn:key:two" }), trust.AppendConflict},
		"another Principal":   {change(func(r *protocol.FirstAdmissionRecord) { r.Principal = stranger }), trust.AppendConflict},
		"another kind":        {change(func(r *protocol.FirstAdmissionRecord) { r.DocumentKind = "evidence" }), trust.AppendConflict},
		"one id for two keys": {change(func(r *protocol.FirstAdmissionRecord) { r.SigningHash = hashOfText("other") }), trust.AppendConflict},
		"another service":     {change(func(r *protocol.FirstAdmissionRecord) { r.AcceptedBy = stranger }), trust.AppendUnauthenticated},
		"another Organization": {change(func(r *protocol.FirstAdmissionRecord) {
			r.OrganizationID = "urn:organization:other"
		}), trust.AppendUnauthenticated},
		"an Event":                  {change(func(r *protocol.FirstAdmissionRecord) { r.DocumentKind = "event" }), trust.AppendIntegrityFailed},
		"a Command outside its log": {change(func(r *protocol.FirstAdmissionRecord) { r.DocumentKind = "command" }), trust.AppendIntegrityFailed},
	} {
		if r := log.AppendOrReturn(ctx, tc.rec); r.Status != tc.want {
			t.Errorf("%s: status %d, want %d", name, r.Status, tc.want)
		}
	}
	for hash, want := range map[string]trust.LookupStatus{
		first.SigningHash: trust.LookupFound, hashOfText("nothing"): trust.LookupAbsent, "sha256:zz": trust.LookupIndeterminate,
	} {
		if r := log.Lookup(ctx, testOrg, hash); r.Status != want {
			t.Errorf("lookup of %s: %d, want %d", hash, r.Status, want)
		}
	}
	if r := log.Lookup(ctx, "urn:organization:other", first.SigningHash); r.Status != trust.LookupUnauthenticated {
		t.Errorf("foreign lookup: %d", r.Status)
	}
}

func TestAdmissionOfEventsAndCommandsIsFoundAtTheirPlace(t *testing.T) {
	s := openStore(t, Options{})
	b := appendTo("urn:group:adm", 0, 1)
	b.Receipts = []Receipt{receiptFor("urn:action:adm", hashOfText("command"), b.Now)}
	mustCommit(t, s, b)
	log := s.AdmissionLog(testAuthority)
	if r := log.ForEvent("urn:group:adm", 1).Lookup(t.Context(), testOrg, b.Events[0].SigningHash); r.Status != trust.LookupFound {
		t.Errorf("Event: %d", r.Status)
	}
	if r := log.ForEvent("urn:group:adm", 2).Lookup(t.Context(), testOrg, b.Events[0].SigningHash); r.Status != trust.LookupAbsent {
		t.Errorf("Event at another place: %d", r.Status)
	}
	if r := log.ForCommand(b.Receipts[0].ReceiptKey).Lookup(t.Context(), testOrg, hashOfText("command")); r.Status != trust.LookupFound {
		t.Errorf("Command: %d", r.Status)
	}
}

func TestUnavailableLogFailsClosed(t *testing.T) {
	s, err := Open(t.Context(), "postgres://nobody@127.0.0.1:1/none?connect_timeout=1", Options{OrganizationID: testOrg})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	actor := protocol.Actor{Type: protocol.ActorAgent, ID: "urn:agent:one"}
	log := s.AdmissionLog(testAuthority)
	if r := log.Lookup(t.Context(), testOrg, hashOfText("x")); r.Status != trust.LookupUnavailable {
		t.Errorf("lookup: %d", r.Status)
	}
	if r := log.AppendOrReturn(t.Context(), recordFor(hashOfText("x"), "evidence", actor, time.Now().UTC().Truncate(time.Microsecond))); r.Status != trust.AppendUnavailable {
		t.Errorf("append: %d", r.Status)
	}
}

func TestRecordIDDependsOnTheKeyAndTheTime(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123)
	a := RecordID("urn:o", hashOfText("a"), at)
	if a != RecordID("urn:o", hashOfText("a"), at) || a == RecordID("urn:o", hashOfText("b"), at) ||
		a == RecordID("urn:p", hashOfText("a"), at) || a == RecordID("urn:o", hashOfText("a"), at.Add(time.Millisecond)) {
		t.Error("RecordID is not a function of exactly organization, hash and millisecond")
	}
	raw, err := uuidBytes(a)
	if err != nil || uuidURN(raw) != a {
		t.Errorf("%s: %v", a, err)
	}
	sum := sha256.Sum256([]byte("x"))
	if h, err := hashBytes(hashText(sum[:])); err != nil || hex.EncodeToString(h) != hex.EncodeToString(sum[:]) {
		t.Error("hash does not survive the column")
	}
}
