package testkit_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/aeplog"
	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/trust"
)

// evidenceLog is a Log on the stack's database that signs as its evidence service.
func evidenceLog(s *testkit.Stack) *aeplog.Log {
	identity := s.As("evidence").Identity()
	return aeplog.New(func(context.Context, pgx.Tx, time.Time) (trust.Signer, error) {
		return trust.Signer{KeyID: identity.KeyID, Private: identity.Key}, nil
	})
}

func appendEvidence(t *testing.T, s *testkit.Stack, log *aeplog.Log, run aeplog.Run, a evidence.Action) (id string, err error) {
	t.Helper()
	now := time.Now().UTC()
	if a.TimestampMS == 0 {
		a.TimestampMS = now.UnixMilli()
	}
	err = pgx.BeginFunc(t.Context(), s.Pool, func(tx pgx.Tx) error {
		id, err = log.Append(t.Context(), tx, aeplog.Entry{Run: run, At: now, Action: a})
		return err
	})
	return id, err
}

func leased(id, lease string) evidence.Action {
	now := time.Now().UnixMilli()
	limit := int64(2)
	return evidence.Action{
		ActionID: id, ToolName: "send", SideEffectClass: "network-egress", ScopeLeaseID: lease, ApprovalGrant: "bounded-lease", ApprovalDecision: "allow",
		ArgumentDrift:      &evidence.ArgumentDrift{Result: "not-checked", ApprovalOrLeaseID: lease},
		Lease:              &evidence.LeaseEvidence{LeaseID: lease, GrantedAtMS: now - 1000, ExpiresAtMS: now + 60_000, StartedAtMS: now, Limit: &limit},
		CapabilityDecision: &evidence.CapabilityDecision{Capability: "mail", Subject: "urn:agent:w", Resource: "mailto:x", Decision: "allow"},
	}
}

func getEvidence(s *testkit.Stack, c *client.Client, path string) testkit.Answer {
	return s.Do(testkit.Request{Method: http.MethodGet, URL: s.AuthzURL + path, Token: s.Token(c)})
}

func TestEvidenceIsAChainThatMembersRead(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	log := evidenceLog(s)
	run := aeplog.Run{GroupID: m.GroupID, WorkItemID: client.NewID(), OwnershipEpoch: 1}
	lease := client.NewID()
	var ids []string
	for _, action := range []string{"urn:a:1", "urn:a:1", "urn:a:2"} { // a decision, its outcome, another decision
		id, err := appendEvidence(t, s, log, run, leased(action, lease))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if _, err := appendEvidence(t, s, log, run, leased("urn:a:3", lease)); !errors.Is(err, evidence.ErrDraft) {
		t.Errorf("a third invocation of two: %v", err)
	}
	late := s.Agent("late")
	m.Admit(late, "observer", 1)
	if _, err := appendEvidence(t, s, log, run, leased("urn:a:2", lease)); err != nil {
		t.Fatal(err)
	}

	path := "/v1/evidence?groupId=" + url.QueryEscape(m.GroupID)
	page := getEvidence(s, m.Owner, path).Value(t)
	var records []*evidence.Value
	var ordinals []int64
	for _, item := range page.Member("items").Items() {
		v, rep := evidence.Check(item.Raw(), evidence.Options{Signature: true, Keys: func(string) (ed25519.PublicKey, bool) {
			return s.As("evidence").Identity().Key.Public().(ed25519.PublicKey), true
		}})
		if !rep.OK() {
			t.Fatalf("%v", rep.Errors)
		}
		records = append(records, v)
		n, _ := v.Get("actions").Items()[0].Get("bounded_lease_evidence").Get("invocation_ordinal").Int()
		ordinals = append(ordinals, n)
	}
	if status, _ := evidence.Chain(records); status != evidence.ChainIntact || !slices.Equal(ordinals, []int64{1, 1, 2, 2}) {
		t.Errorf("chain %s, ordinals %v", status, ordinals)
	}
	if got := getEvidence(s, m.Owner, path+"&limit=3").Value(t); got.Member("items").Len() != 3 || got.Member("next").Str() == "" {
		t.Error("first page")
	} else if rest := getEvidence(s, m.Owner, path+"&limit=3&after="+url.QueryEscape(got.Member("next").Str())).Value(t); rest.Member("items").Len() != 1 {
		t.Error("second page")
	}
	if got := getEvidence(s, m.Owner, "/v1/evidence?runId="+url.QueryEscape(run.ID())).Value(t); got.Member("items").Len() != 4 {
		t.Error("of the run")
	}
	one := getEvidence(s, m.Owner, client.Path("v1", "evidence", ids[1]))
	if one.Status != http.StatusOK || "sha256:"+evidence.RecordHash(mustParse(t, one.Body)) != ids[1] {
		t.Errorf("%d %s", one.Status, one.Body)
	}
	// A member sees what was recorded since its visibility began, others nothing.
	stranger := s.Human("outsider")
	for _, tc := range []struct {
		who  *client.Client
		path string
		want int
	}{
		{stranger, path, http.StatusNotFound},
		{stranger, "/v1/evidence?runId=" + url.QueryEscape(run.ID()), http.StatusNotFound},
		{stranger, "/v1/evidence?runId=none", http.StatusNotFound},
		{stranger, client.Path("v1", "evidence", ids[0]), http.StatusNotFound},
		{m.Owner, client.Path("v1", "evidence", "sha256:00"), http.StatusNotFound},
		{m.Owner, "/v1/evidence", http.StatusBadRequest},
	} {
		if got := getEvidence(s, tc.who, tc.path); got.Status != tc.want {
			t.Errorf("%s: %d %s", tc.path, got.Status, got.Body)
		}
	}
	hidden, absent := getEvidence(s, stranger, client.Path("v1", "evidence", ids[0])), getEvidence(s, stranger, client.Path("v1", "evidence", "sha256:00"))
	if hidden.Value(t).Member("code").Str() != absent.Value(t).Member("code").Str() {
		t.Error("undisclosed and absent differ")
	}
}

func mustParse(t *testing.T, raw []byte) *evidence.Value {
	t.Helper()
	v, err := evidence.ParseValue(raw)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestEvidenceChainsDoNotForkUnderRivals(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	log := evidenceLog(s)
	run := aeplog.Run{GroupID: m.GroupID, WorkItemID: client.NewID(), OwnershipEpoch: 3}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := appendEvidence(t, s, log, run, evidence.Action{ActionID: client.NewID(), ToolName: "t", SideEffectClass: "read"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	rows, err := s.Pool.Query(t.Context(), `SELECT document FROM evidence_records WHERE run_id = $1 ORDER BY ordinal`, run.ID())
	if err != nil {
		t.Fatal(err)
	}
	documents, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		t.Fatal(err)
	}
	var records []*evidence.Value
	for _, d := range documents {
		records = append(records, mustParse(t, d))
	}
	if status, at := evidence.Chain(records); len(records) != 8 || status != evidence.ChainIntact {
		t.Errorf("%d records, %s at %d", len(records), status, at)
	}
	if _, err := s.Pool.Exec(t.Context(), `UPDATE evidence_records SET document = ''`); err == nil {
		t.Error("a record was changed")
	}
}

func TestEvidenceOfAReapprovalNeedsAnotherApproval(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	log := evidenceLog(s)
	run := aeplog.Run{GroupID: m.GroupID, WorkItemID: client.NewID(), OwnershipEpoch: 1}
	drifted := evidence.Action{
		ActionID: "urn:a:1", ToolName: "pay", SideEffectClass: "mutate-external", ApprovalContextHash: "sha256:11", ApprovalGrant: "one-shot-payload",
		ApprovalDecision: "drift-requires-reapproval",
		ArgumentDrift: &evidence.ArgumentDrift{
			Result: "drifted", ApprovalOrLeaseID: "sha256:11", ApprovedArgDigest: "sha256:22", ObservedArgDigest: "sha256:23",
			ArgsEqualityVersion: evidence.ArgsJCSNFC, DriftReason: "the arguments differ",
		},
		CapabilityDecision: &evidence.CapabilityDecision{Capability: "pay", Subject: "urn:agent:w", Resource: "urn:x", Decision: "deny", DenyReasonClass: "argument"},
	}
	if _, err := appendEvidence(t, s, log, run, drifted); err != nil {
		t.Fatal(err)
	}
	again := drifted
	again.ActionID, again.ParentActionID, again.ApprovalDecision = "urn:a:2", "urn:a:1", "allow"
	again.ArgumentDrift = &evidence.ArgumentDrift{
		Result: "matched", ApprovalOrLeaseID: "sha256:11", ApprovedArgDigest: "sha256:23", ObservedArgDigest: "sha256:23", ArgsEqualityVersion: evidence.ArgsJCSNFC,
	}
	again.CapabilityDecision = &evidence.CapabilityDecision{Capability: "pay", Subject: "urn:agent:w", Resource: "urn:x", Decision: "allow"}
	if _, err := appendEvidence(t, s, log, run, again); !errors.Is(err, aeplog.ErrReusedApproval) {
		t.Errorf("with the old approval: %v", err)
	}
	again.ApprovalContextHash, again.ArgumentDrift.ApprovalOrLeaseID = "sha256:12", "sha256:12"
	if _, err := appendEvidence(t, s, log, run, again); err != nil {
		t.Errorf("with its own approval: %v", err)
	}
}

func TestEvidenceVerifyAsksWhatTheCallerMayKnow(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	log := evidenceLog(s)
	run := aeplog.Run{GroupID: m.GroupID, WorkItemID: client.NewID(), OwnershipEpoch: 1}
	id, err := appendEvidence(t, s, log, run, evidence.Action{ActionID: "urn:a:1", ToolName: "t", SideEffectClass: "read"})
	if err != nil {
		t.Fatal(err)
	}
	record := getEvidence(s, m.Owner, client.Path("v1", "evidence", id)).Body
	verifyAs := func(reader *client.Client, body []byte) []string {
		t.Helper()
		answer := s.Do(testkit.Request{Method: http.MethodPost, URL: s.AuthzURL + "/v1/evidence:verify", Token: s.Token(reader), Body: body})
		if answer.Status != http.StatusOK {
			t.Fatalf("%d %s", answer.Status, answer.Body)
		}
		names := []string{}
		for _, f := range answer.Value(t).Member("errors").Items() {
			names = append(names, f.Member("name").Str())
		}
		return names
	}
	verify := func(body []byte) []string { return verifyAs(m.Owner, body) }
	if got := verify(record); len(got) != 0 {
		t.Errorf("%v", got)
	}
	if got := verify(bytes.Replace(record, []byte(`"run_id":"`), []byte(`"run_id":"x`), 1)); !slices.Equal(got, []string{"E_SIGNATURE_INVALID"}) {
		t.Errorf("%v", got)
	}
	if got := verify([]byte(`[]`)); !slices.Equal(got, []string{"E_NOT_JSON_OBJECT"}) {
		t.Errorf("%v", got)
	}
	if _, err := appendEvidence(t, s, log, run, leased("urn:a:2", client.NewID())); err != nil {
		t.Fatal(err)
	}
	list := getEvidence(s, m.Owner, "/v1/evidence?runId="+url.QueryEscape(run.ID())).Value(t).Member("items")
	for i, item := range list.Items() {
		if i == 1 {
			if got := verify(item.Raw()); !slices.Equal(got, []string{"E_LEASE_UNKNOWN"}) {
				t.Errorf("a lease that nobody granted: %v", got)
			}
		}
	}
	// Who sees the log from later on learns nothing of what was before.
	late := s.Agent("late")
	published(t, s, m.GroupID, m.Head)
	m.Admit(late, "observer", m.Head+1)
	child := evidence.Action{ActionID: "urn:a:3", ToolName: "t", SideEffectClass: "read", ParentActionID: "urn:a:1"}
	if id, err = appendEvidence(t, s, log, run, child); err != nil {
		t.Fatal(err)
	}
	body := getEvidence(s, m.Owner, client.Path("v1", "evidence", id)).Body
	for _, tc := range []struct {
		reader *client.Client
		want   []string
	}{{m.Owner, []string{}}, {late, []string{"E_PARENT_UNRESOLVED"}}} {
		if got := verifyAs(tc.reader, body); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.reader.Principal().ID, got, tc.want)
		}
	}
	answer := s.Do(testkit.Request{
		Method: http.MethodPost, URL: s.AuthzURL + "/v1/evidence:compare", Token: s.Token(m.Owner),
		Body: []byte(`{"a":{"digest":"x"},"b":{"digest":"x"}}`),
	})
	if answer.Value(t).Member("reason").Str() != "no-coverage" {
		t.Errorf("%d %s", answer.Status, answer.Body)
	}
}
