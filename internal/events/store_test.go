package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

const testOrg = "urn:missionweave:organization:test"

var testAuthority = protocol.Actor{Type: protocol.ActorService, ID: "urn:missionweave:service:group-authority"}

func TestMain(m *testing.M) {
	code := m.Run()
	_ = devstack.StopShared(context.Background())
	os.Exit(code)
}

func openStore(t testing.TB, options Options) *Store {
	t.Helper()
	options.OrganizationID = testOrg
	s, err := Open(t.Context(), devstack.ForTest(t).NewDatabase(t), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// bothWays runs a test with batches that go through one pipeline and with
// batches that are copied.
func bothWays(t *testing.T, test func(t *testing.T, bulk int)) {
	t.Helper()
	t.Run("pipelined", func(t *testing.T) { test(t, math.MaxInt) })
	t.Run("copied", func(t *testing.T) { test(t, 1) })
}

// sequenceOf ids for tests: distinct, and in the spelling that is minted.
var testIDs struct {
	sync.Mutex
	n uint64
}

func mintID() string {
	testIDs.Lock()
	defer testIDs.Unlock()
	testIDs.n++
	var r [10]byte
	for i := range 8 {
		r[9-i] = byte(testIDs.n >> (8 * i))
	}
	return lexical.UUIDv7(time.Now(), r)
}

func hashOfText(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func newBatch() *Batch {
	return &Batch{OrganizationID: testOrg, Authority: testAuthority, AuthorityKeyID: "urn:missionweave:key:authority", Now: time.Now().UTC()}
}

// appendTo makes a batch of n Events on a Group whose head is expected.
func appendTo(group string, expected int64, n int) *Batch {
	b := newBatch()
	at := b.Now.Truncate(time.Microsecond)
	h := HeadCondition{TreeID: TreeKey(group), GroupID: group, Expected: expected, Head: expected + int64(n)}
	if expected == 0 {
		h.Create = &NewGroup{MissionID: group + ":mission", RootMissionID: group + ":mission", CreatedAt: at}
	}
	b.Heads = []HeadCondition{h}
	for i := range n {
		id := mintID()
		b.Events = append(b.Events, Event{
			TreeID: h.TreeID, GroupID: group, Sequence: expected + int64(i) + 1, EventID: id, Kind: "message.posted",
			OccurredAt: at, CommandHash: hashOfText("command " + id), SigningHash: hashOfText(id), Document: []byte(`{"eventId":"` + id + `"}`),
		})
	}
	return b
}

func receiptFor(action, hash string, at time.Time) Receipt {
	at = at.Truncate(time.Microsecond)
	actor := protocol.Actor{Type: protocol.ActorAgent, ID: "urn:agent:one"}
	return Receipt{
		ReceiptKey: ReceiptKey{Actor: actor, ActionID: action}, SigningHash: hash, Kind: "message.post", AcceptedAt: at,
		Admission: recordFor(hash, "command", actor, at), AdmittedAt: at,
		Response: []byte(`{"actionId":"` + action + `"}`), Command: []byte("{}"),
	}
}

func recordFor(hash, kind string, principal protocol.Actor, at time.Time) protocol.FirstAdmissionRecord {
	return protocol.FirstAdmissionRecord{
		ProtocolVersion: "0.1", AdmissionRecordID: RecordID(testOrg, hash, at), OrganizationID: testOrg, DocumentKind: kind,
		SigningHash: hash, KeyID: "urn:key:one", Principal: principal, TrustedAcceptedAt: lexical.FormatMicros(at), AcceptedBy: testAuthority,
	}
}

func mustCommit(t *testing.T, s *Store, b *Batch) {
	t.Helper()
	if _, err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

func TestCommitAppendsOnlyAtTheExpectedHead(t *testing.T) {
	bothWays(t, testCommitAppendsOnlyAtTheExpectedHead)
}

func testCommitAppendsOnlyAtTheExpectedHead(t *testing.T, bulk int) {
	s := openStore(t, Options{BulkRows: bulk})
	group := "urn:group:cas"
	mustCommit(t, s, appendTo(group, 0, 2))
	mustCommit(t, s, appendTo(group, 2, 3))
	for name, b := range map[string]*Batch{
		"head below": appendTo(group, 2, 1), "head above": appendTo(group, 9, 1), "made again": appendTo(group, 0, 1),
	} {
		if _, err := s.Commit(t.Context(), b); !errors.Is(err, ErrHeadMoved) {
			t.Errorf("%s: %v", name, err)
		}
	}
	got, err := s.ReadEvents(t.Context(), group, 0, 100)
	if err != nil || len(got) != 5 {
		t.Fatalf("%d Events, %v", len(got), err)
	}
	for i, ev := range got {
		if ev.Sequence != int64(i)+1 {
			t.Errorf("position %d has sequence %d", i, ev.Sequence)
		}
	}
	if head, err := s.Head(t.Context(), group); err != nil || head != 5 {
		t.Errorf("head %d, %v", head, err)
	}
}

func TestHeadMovedNamesTheGroups(t *testing.T) { bothWays(t, testHeadMovedNamesTheGroups) }

func testHeadMovedNamesTheGroups(t *testing.T, bulk int) {
	s := openStore(t, Options{BulkRows: bulk})
	mustCommit(t, s, appendTo("urn:group:a", 0, 1))
	mustCommit(t, s, appendTo("urn:group:b", 0, 1))
	b := appendTo("urn:group:b", 7, 1)
	a := appendTo("urn:group:a", 1, 1)
	b.Heads, b.Events = append(b.Heads, a.Heads...), append(b.Events, a.Events...)
	_, err := s.Commit(t.Context(), b)
	var moved *HeadMoved
	if !errors.As(err, &moved) || len(moved.GroupIDs) != 1 || moved.GroupIDs[0] != "urn:group:b" {
		t.Fatalf("got %v", err)
	}
	if head, _ := s.Head(t.Context(), "urn:group:a"); head != 1 {
		t.Errorf("the other Group moved to %d", head)
	}
}

func TestReadConditionHoldsWithoutWriting(t *testing.T) {
	s := openStore(t, Options{})
	mustCommit(t, s, appendTo("urn:group:r", 0, 3))
	refusal := func(head int64) *Batch {
		b := newBatch()
		b.Heads = []HeadCondition{{TreeID: TreeKey("urn:group:r"), GroupID: "urn:group:r", Expected: head, Head: head}}
		b.Audits = []Audit{{ID: mintID(), At: b.Now, Step: "P22", Code: "INVALID_STATE_TRANSITION", Peer: "p\x00eer", BodyHash: []byte{1}}}
		return b
	}
	mustCommit(t, s, refusal(3))
	if _, err := s.Commit(t.Context(), refusal(2)); !errors.Is(err, ErrHeadMoved) {
		t.Errorf("refusal on an outdated state: %v", err)
	}
	var n int
	if err := s.readers.QueryRow(t.Context(), "SELECT count(*) FROM audit_records").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d audit records, %v", n, err)
	}
}

func TestReceiptKeyIsUniqueOverAllGroups(t *testing.T) {
	bothWays(t, testReceiptKeyIsUniqueOverAllGroups)
}

func testReceiptKeyIsUniqueOverAllGroups(t *testing.T, bulk int) {
	s := openStore(t, Options{BulkRows: bulk})
	b := appendTo("urn:group:1", 0, 1)
	b.Receipts = []Receipt{receiptFor("urn:action:1", hashOfText("one"), b.Now)}
	mustCommit(t, s, b)
	c := appendTo("urn:group:2", 0, 1)
	c.Receipts = []Receipt{receiptFor("urn:action:1", hashOfText("two"), c.Now)}
	if _, err := s.Commit(t.Context(), c); !errors.Is(err, ErrReceiptExists) {
		t.Fatalf("got %v", err)
	}
	if _, err := s.Head(t.Context(), "urn:group:2"); !errors.Is(err, ErrGroupUnknown) {
		t.Errorf("a Group came from a refused batch: %v", err)
	}
	r, ok, err := s.FindReceipt(t.Context(), b.Receipts[0].ReceiptKey)
	if err != nil || !ok || string(r.Response) != `{"actionId":"urn:action:1"}` || r.SigningHash != hashOfText("one") {
		t.Errorf("receipt %+v %v %v", r, ok, err)
	}
}

func TestSessionEpochIsComparedInsideTheCommit(t *testing.T) {
	bothWays(t, testSessionEpochIsComparedInsideTheCommit)
}

func testSessionEpochIsComparedInsideTheCommit(t *testing.T, bulk int) {
	s := openStore(t, Options{BulkRows: bulk})
	agent := "urn:agent:one"
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	open := newBatch()
	open.Agents = []AgentCondition{{AgentID: agent, Exclusive: true}}
	open.Sessions = []SessionOpened{{AgentID: agent, Epoch: 1, OpenedAt: open.Now, ExpiresAt: expires}}
	mustCommit(t, s, open)

	for name, tc := range map[string]struct {
		cond AgentCondition
		ok   bool
	}{
		"current epoch": {AgentCondition{AgentID: agent, Epoch: 1, ExpiresAt: expires}, true},
		"older epoch":   {AgentCondition{AgentID: agent, Epoch: 0}, false},
		"later epoch":   {AgentCondition{AgentID: agent, Epoch: 2, ExpiresAt: expires}, false},
		"other expiry":  {AgentCondition{AgentID: agent, Epoch: 1, ExpiresAt: expires.Add(1)}, true}, // microseconds only
		"renewed":       {AgentCondition{AgentID: agent, Epoch: 1, ExpiresAt: expires.Add(time.Second)}, false},
		"never opened":  {AgentCondition{AgentID: "urn:agent:other"}, true},
		"load":          {AgentCondition{AgentID: agent, Epoch: 1, ExpiresAt: expires, Exclusive: true, Load: &Load{}}, true},
		"other load":    {AgentCondition{AgentID: agent, Epoch: 1, ExpiresAt: expires, Exclusive: true, Load: &Load{Queued: 1}}, false},
		"no work":       {AgentCondition{AgentID: agent, Epoch: 1, ExpiresAt: expires, Exclusive: true, CheckActiveGroups: true}, true},
		"other work": {AgentCondition{
			AgentID: agent, Epoch: 1, ExpiresAt: expires, Exclusive: true, CheckActiveGroups: true,
			ActiveGroups: []string{"urn:group:x"},
		}, false},
	} {
		b := appendTo("urn:group:"+name, 0, 1)
		b.Agents = []AgentCondition{tc.cond}
		_, err := s.Commit(t.Context(), b)
		if tc.ok && err != nil || !tc.ok && !errors.Is(err, ErrSessionMoved) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A commit that holds the Agent's shared lock delays the opening of the next
// session, and one that comes after it finds the epoch moved.
func TestSessionOpeningWaitsForCommitsOfTheOldEpoch(t *testing.T) {
	s := openStore(t, Options{})
	ctx := t.Context()
	tx, err := s.readers.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock_shared($1)", AgentLockKey("urn:agent:one")); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		b := newBatch()
		b.Agents = []AgentCondition{{AgentID: "urn:agent:one", Exclusive: true}}
		b.Sessions = []SessionOpened{{AgentID: "urn:agent:one", Epoch: 1, OpenedAt: b.Now, ExpiresAt: b.Now.Add(time.Hour)}}
		_, err := s.Commit(ctx, b)
		done <- err
	}()
	waitForLock(t, s)
	select {
	case err := <-done:
		t.Fatalf("the session was opened beside a running commit: %v", err)
	default:
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// waitForLock returns once some server process waits for an advisory lock.
func waitForLock(t *testing.T, s *Store) {
	t.Helper()
	for range 2000 {
		var waiting bool
		if err := s.readers.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks
			WHERE locktype = 'advisory' AND NOT granted)`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		if waiting {
			return
		}
	}
	t.Fatal("nobody waits for a lock")
}

func TestRegistryRevisionIsCompared(t *testing.T) { bothWays(t, testRegistryRevisionIsCompared) }

func testRegistryRevisionIsCompared(t *testing.T, bulk int) {
	s := openStore(t, Options{BulkRows: bulk})
	ctx := t.Context()
	if _, err := s.readers.Exec(ctx, "INSERT INTO organizations VALUES ($1, now())", testOrg); err != nil {
		t.Fatal(err)
	}
	if _, err := s.readers.Exec(ctx, "INSERT INTO registry_head VALUES ($1, 7)", testOrg); err != nil {
		t.Fatal(err)
	}
	b := appendTo("urn:group:reg", 0, 1)
	b.Registry = 6
	if _, err := s.Commit(ctx, b); !errors.Is(err, ErrRegistryMoved) {
		t.Fatalf("got %v", err)
	}
	b.Registry = 7
	mustCommit(t, s, b)
}

func TestAdmissionOfRefusedThenAcceptedCommandIsOneRecord(t *testing.T) {
	bothWays(t, testAdmissionOfRefusedThenAcceptedCommandIsOneRecord)
}

func testAdmissionOfRefusedThenAcceptedCommandIsOneRecord(t *testing.T, bulk int) {
	s := openStore(t, Options{BulkRows: bulk})
	hash := hashOfText("a Command")
	accepted := func(rec protocol.FirstAdmissionRecord, group string) *Batch {
		b := appendTo(group, 0, 1)
		r := receiptFor("urn:action:x", hash, b.Now)
		if rec.AdmissionRecordID != "" {
			r.Admission = rec
		}
		b.Receipts = []Receipt{r}
		return b
	}
	refused := newBatch()
	r := receiptFor("urn:action:x", hash, refused.Now.Add(-time.Second))
	refused.Admissions = []Admission{{Record: r.Admission, At: r.AdmittedAt, Probe: &r.ReceiptKey}}
	mustCommit(t, s, refused)

	if _, err := s.Commit(t.Context(), accepted(protocol.FirstAdmissionRecord{}, "urn:group:x1")); !errors.Is(err, ErrAdmissionExists) {
		t.Fatalf("a second record: %v", err)
	}
	mustCommit(t, s, accepted(r.Admission, "urn:group:x2"))

	again := newBatch()
	r = receiptFor("urn:action:x", hash, again.Now)
	again.Admissions = []Admission{{Record: r.Admission, At: r.AdmittedAt, Probe: &r.ReceiptKey}}
	if _, err := s.Commit(t.Context(), again); !errors.Is(err, ErrReceiptExists) {
		t.Fatalf("a refusal after the acceptance: %v", err)
	}
}

func TestFailedConditionLeavesTheConnectionUsable(t *testing.T) {
	bothWays(t, testFailedConditionLeavesTheConnectionUsable)
}

func testFailedConditionLeavesTheConnectionUsable(t *testing.T, bulk int) {
	s := openStore(t, Options{BulkRows: bulk, Writers: 1})
	mustCommit(t, s, appendTo("urn:group:c", 0, 1))
	for range 5 {
		if _, err := s.Commit(t.Context(), appendTo("urn:group:c", 0, 1)); !errors.Is(err, ErrHeadMoved) {
			t.Fatal(err)
		}
	}
	if n := s.writers.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
	mustCommit(t, s, appendTo("urn:group:c", 1, 1))
}

func TestWithinIsPartOfTheTransaction(t *testing.T) {
	s := openStore(t, Options{})
	boom := errors.New("boom")
	b := appendTo("urn:group:w", 0, 1)
	b.Within = func(ctx context.Context, tx pgx.Tx) error { return boom }
	if _, err := s.Commit(t.Context(), b); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if _, err := s.Head(t.Context(), "urn:group:w"); !errors.Is(err, ErrGroupUnknown) {
		t.Fatal(err)
	}
	b = appendTo("urn:group:w", 0, 1)
	b.Within = func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO organizations VALUES ($1, now())", testOrg)
		return err
	}
	mustCommit(t, s, b)
	b = appendTo("urn:group:w", 0, 1)
	b.Within = func(context.Context, pgx.Tx) error { return nil }
	if _, err := s.Commit(t.Context(), b); !errors.Is(err, ErrHeadMoved) {
		t.Fatal(err)
	}
}

func TestSettleAfterLostAnswer(t *testing.T) { bothWays(t, testSettleAfterLostAnswer) }

func testSettleAfterLostAnswer(t *testing.T, bulk int) {
	lost := fmt.Errorf("%w: lost", ErrIndeterminate)
	t.Run("committed", func(t *testing.T) {
		s := openStore(t, Options{BulkRows: bulk, Hooks: Hooks{AfterCommit: func(*Batch) error { return lost }}})
		a, err := s.Commit(t.Context(), appendTo("urn:group:s", 0, 1))
		if !errors.Is(err, ErrIndeterminate) {
			t.Fatal(err)
		}
		if done, err := s.Settle(t.Context(), a); err != nil || !done {
			t.Errorf("settled as %v, %v", done, err)
		}
	})
	t.Run("a process that still waits is ended", func(t *testing.T) {
		s := openStore(t, Options{BulkRows: bulk, CommitTimeout: 200 * time.Millisecond})
		mustCommit(t, s, appendTo("urn:group:s", 0, 1))
		ctx := t.Context()
		tx, err := s.readers.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		if _, err := tx.Exec(ctx, "SELECT FROM groups WHERE group_id = 'urn:group:s' FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		a, err := s.Commit(ctx, appendTo("urn:group:s", 1, 1))
		// The conditions of a copied batch go ahead of its commit, so that it is
		// certain that nothing happened.
		if want := map[bool]error{true: ErrUnavailable, false: ErrIndeterminate}[bulk == 1]; !errors.Is(err, want) {
			t.Fatal(err)
		}
		done, err := s.Settle(ctx, a)
		if err != nil || done {
			t.Fatalf("settled as %v, %v", done, err)
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if head, err := s.Head(ctx, "urn:group:s"); err != nil || head != 1 {
			t.Errorf("head %d, %v: the lost commit came back", head, err)
		}
	})
}

func TestCursorIsMonotonicAndNeverPastTheHead(t *testing.T) {
	s := openStore(t, Options{})
	ctx, group := t.Context(), "urn:group:cursor"
	actor := protocol.Actor{Type: protocol.ActorAgent, ID: "urn:agent:one"}
	if _, err := s.SetCursor(ctx, group, actor, 1); !errors.Is(err, ErrGroupUnknown) {
		t.Fatal(err)
	}
	mustCommit(t, s, appendTo(group, 0, 5))
	for _, step := range []struct {
		set, want int64
		err       error
	}{{0, 0, nil}, {3, 3, nil}, {2, 3, nil}, {6, 0, ErrPastHead}, {-1, 0, ErrPastHead}, {5, 5, nil}} {
		if got, err := s.SetCursor(ctx, group, actor, step.set); got != step.want || !errors.Is(err, step.err) {
			t.Errorf("set %d: %d, %v", step.set, got, err)
		}
	}
	if seq, head, err := s.Cursor(ctx, group, actor); seq != 5 || head != 5 || err != nil {
		t.Errorf("cursor %d of %d, %v", seq, head, err)
	}
}

// Writers that race for one head lose and try again; what remains is one line.
func TestRacingWritersMakeOneGaplessLog(t *testing.T) {
	bothWays(t, testRacingWritersMakeOneGaplessLog)
}

func testRacingWritersMakeOneGaplessLog(t *testing.T, bulk int) {
	s := openStore(t, Options{BulkRows: bulk, Writers: 16})
	group := "urn:group:race"
	mustCommit(t, s, appendTo(group, 0, 1))
	var wg sync.WaitGroup
	const writers, each = 16, 10
	for range writers {
		wg.Go(func() {
			for done := 0; done < each; {
				head, err := s.Head(context.Background(), group)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = s.Commit(context.Background(), appendTo(group, head, 1))
				switch {
				case err == nil:
					done++
				case !errors.Is(err, ErrHeadMoved):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	got, err := s.ReadEvents(t.Context(), group, 0, MaxPage)
	if err != nil || len(got) != writers*each+1 {
		t.Fatalf("%d Events, %v", len(got), err)
	}
	for i, ev := range got {
		if ev.Sequence != int64(i)+1 {
			t.Fatalf("position %d has sequence %d", i, ev.Sequence)
		}
	}
}
