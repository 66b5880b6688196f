package policyhttp_test

import (
	"net/http"
	"net/url"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/testwait"
)

// texts are the strings of an array.
func texts(v *evidence.Value) (out []string) {
	for _, item := range v.Items() {
		out = append(out, item.Str())
	}
	return out
}

// runRecords are the records of a run as they are served.
func (s *stand) runRecords(id string) (records []*evidence.Value) {
	s.t.Helper()
	a := s.fetch(s.Token(s.m.Owner), "/v1/evidence?limit=1000&runId="+url.QueryEscape(id))
	if a.Status != http.StatusOK {
		s.t.Fatalf("run %s: %d %s", id, a.Status, a.Body)
	}
	for _, item := range a.Value(s.t).Member("items").Items() {
		v, err := evidence.ParseValue(item.Raw())
		if err != nil {
			s.t.Fatal(err)
		}
		records = append(records, v)
	}
	return records
}

func TestARecordNamesMemoryEventsTaintBudgetAndPredecessor(t *testing.T) {
	s := newStand(t)
	s.install(assistant)
	mail := s.input("email", "remember this")
	value := map[string]any{"key": "note", "value": "from a mail"}
	body := s.action("write_memory", value, []string{mail}, map[string]any{"mode": "interactive"})
	asked := s.decided(body, "ASK", "ask-memory")
	s.approve(asked, "one_shot")
	body["approvalRequestId"] = asked.Member("approvalRequest").Member("requestId").Str()
	s.decided(body, "ALLOW", "OneShotApproval")
	if got := texts(s.last(body["actionId"]).Get("memory_write_refs")); !slices.Equal(got, []string{"note"}) {
		t.Errorf("allowed to write %v", got)
	}
	write := map[string]any{"groupId": s.m.GroupID, "key": "note", "value": "from a mail", "provenance": []string{mail}}
	if a := s.send("POST", "/v1/memory", s.k.Token, write); a.Status != http.StatusCreated && a.Status != http.StatusOK {
		t.Fatalf("memory: %d %s", a.Status, a.Body)
	}
	written := s.last(body["actionId"])
	expectRecord(t, written, map[string]string{"outcome": "success", "argument_drift/result": "matched", "side_effect_class": "mutate-local"})
	if got := texts(written.Get("memory_write_refs")); !slices.Equal(got, []string{"note"}) {
		t.Errorf("wrote %v", got)
	}
	read := s.fetch(s.k.Token, client.Path("v1", "memory", "note")+"?groupId="+url.QueryEscape(s.m.GroupID)).Value(t).Member("recordId").Str()
	head := s.Get(s.m.Owner, client.Path("v1", "groups", s.m.GroupID, "events")+"?after=0&limit=1000").Value(t)
	use := s.action("read_email", map[string]any{}, []string{read}, nil)
	s.decided(use, "ALLOW", "Covered")
	got := s.last(use["actionId"])
	if refs := texts(got.Get("memory_read_refs")); !slices.Equal(refs, []string{"note"}) {
		t.Errorf("read %v", refs)
	}
	for _, side := range []string{"input_taint_labels", "output_taint_labels"} {
		if labels := texts(got.Get(side)); !slices.Equal(labels, []string{"untrusted"}) {
			t.Errorf("%s: %v", side, labels)
		}
	}
	var events []string
	for _, e := range head.Member("items").Items() {
		events = append(events, e.Member("eventId").Str())
	}
	refs := texts(got.Get("evidence_refs"))
	entry := s.one(`SELECT count(*) FROM policy_decisions WHERE decision_id = ANY ($1) AND subject_id = $2`, refs, use["actionId"])
	if entry != 1 || !slices.ContainsFunc(refs, func(id string) bool { return slices.Contains(events, id) }) {
		t.Errorf("%v name no Event of the Group and its Policy Log entry: %v", refs, events)
	}
	records := s.runRecords(s.item + "#1")
	last := records[len(records)-1]
	before := records[len(records)-2]
	if last.Get("prev_record_hash").Str() != evidence.RecordHash(before) || !last.Get("budget_ledger").Get("token_budget").Get("limit").Exists() ||
		last.Get("signature").Get("alg").Str() != "ed25519" || last.Get("run_side_effect_class_max").Str() == "" {
		t.Errorf("%s", evidence.Canonical(last))
	}
}

func TestInvocationsAreLimitedByTheContractAndTheNextIsRefused(t *testing.T) {
	s := newStand(t)
	s.install(assistant)
	s.toolCalls = 2
	s.own()
	user := s.input("user", "go")
	for i := range 2 {
		body := s.action("send_email", map[string]any{"to": "a@example.org"}, []string{user}, nil)
		s.decided(body, "ALLOW", "Covered")
		expectRecord(t, s.last(body["actionId"]), map[string]string{
			"bounded_lease_evidence/invocation_ordinal": []string{"1", "2"}[i], "bounded_lease_evidence/invocation_limit": "2",
			"bounded_lease_evidence/invocations_remaining": []string{"2", "1"}[i], "approval_decision": "allow",
		})
	}
	third := s.action("send_email", map[string]any{"to": "a@example.org"}, []string{user}, nil)
	s.propose(third).Refused(t, http.StatusConflict, "BUDGET_EXCEEDED")
	expectRecord(t, s.last(third["actionId"]), map[string]string{
		"approval_grant": "bounded-lease", "approval_decision": "expired", "bounded_lease_evidence/invocation_ordinal": "3",
		"bounded_lease_evidence/invocations_remaining": "0", "capability_decision/decision": "deny",
		"capability_decision/deny_reason_class": "other", "capability_decision/reason_code": "BUDGET_EXCEEDED",
		"side_effect_class": "mutate-external",
	})
	if n := s.one(`SELECT count(*) FROM proposed_actions WHERE action_id = $1`, third["actionId"]); n != 0 {
		t.Error("what was refused is stored as decided")
	}
}

func TestARefusalOfAStrangerToTheWorkIsEvidence(t *testing.T) {
	s := newStand(t)
	s.install(assistant)
	other := s.Agent("other")
	s.m.Admit(other, "worker", 0)
	k := s.Login(other)
	mail := s.input("email", "psst")
	stolen := s.action("send_email", map[string]any{"to": "a@example.org"}, []string{mail}, nil)
	s.send("POST", "/v1/actions", k.Token, stolen).Refused(t, http.StatusForbidden, "AUTH_FORBIDDEN")
	expectRecord(t, s.last(stolen["actionId"]), map[string]string{
		"capability_decision/subject": other.Principal().ID, "capability_decision/decision": "deny", "approval_grant": "none",
		"argument_drift/result": "not-checked", "side_effect_class": "mutate-external",
	})
	if labels := texts(s.last(stolen["actionId"]).Get("input_taint_labels")); !slices.Equal(labels, []string{"untrusted"}) {
		t.Errorf("labels %v", labels)
	}
	nowhere := s.action("send_email", map[string]any{"to": "a@example.org"}, []string{mail}, map[string]any{"workItemId": client.NewID()})
	s.send("POST", "/v1/actions", k.Token, nowhere).Refused(t, http.StatusForbidden, "AUTH_FORBIDDEN")
	records := s.runRecords(s.m.GroupID + "#0")
	if len(records) != 1 {
		t.Fatalf("%d records about no WorkItem", len(records))
	}
	expectRecord(t, records[0].Get("actions").Items()[0], map[string]string{"capability_decision/decision": "deny", "action_id": nowhere["actionId"].(string)})
}

// TestAKillBetweenDecisionAndEvidenceLosesNone stops the service where the decision is
// written and its record is not, and kills it there.
func TestAKillBetweenDecisionAndEvidenceLosesNone(t *testing.T) {
	t.Parallel()
	a := newApart(t)
	a.install(assistant)
	user := a.input("user", "go")
	first := a.action("send_email", map[string]any{"to": "a@example.org"}, []string{user}, nil)
	a.decided(first, "ALLOW", "Covered")
	body := a.action("send_email", map[string]any{"to": "b@example.org"}, []string{user}, nil)

	tx, err := a.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM evidence_runs WHERE run_id = $1 FOR UPDATE`, a.item+"#1"); err != nil {
		t.Fatal(err)
	}
	status := a.try(body)
	testwait.Until(t, "the record waits for its run", func() bool {
		return a.one(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%evidence_runs%'`) > 0
	})
	a.kill()
	if got := <-status; got != 0 {
		t.Errorf("answered %d before the evidence was written", got)
	}
	if err := tx.Rollback(t.Context()); err != nil && err != pgx.ErrTxClosed { //nolint:errorlint // as it is returned
		t.Fatal(err)
	}
	a.run()
	testwait.Until(t, "the dead service's transaction is over", func() bool {
		return a.one(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 0
	})
	stored := a.one(`SELECT count(*) FROM proposed_actions WHERE action_id = $1`, body["actionId"])
	if records := a.one(`SELECT count(*) FROM evidence_records WHERE action_id = $1`, body["actionId"]); stored != records {
		t.Errorf("%d decisions and %d records", stored, records)
	}
	body["capabilityToken"] = a.token()
	a.decided(body, "ALLOW", "Covered")
	expectRecord(t, a.last(body["actionId"]), map[string]string{"bounded_lease_evidence/invocation_ordinal": "2", "approval_decision": "allow"})
	if n := a.one(`SELECT count(*) FROM evidence_records WHERE action_id = $1`, body["actionId"]); n != 1 {
		t.Errorf("%d records of one decision", n)
	}
}
