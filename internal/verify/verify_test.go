package verify_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/internal/authority/authoritytest"
	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/verify"
)

func TestMain(m *testing.M) {
	code := m.Run()
	_ = devstack.StopShared(context.Background())
	os.Exit(code)
}

// history is a database with a finished Mission and one that runs.
func history(t *testing.T) (*authoritytest.Rig, *authoritytest.Mission, *authoritytest.Mission) {
	t.Helper()
	r := authoritytest.Start(t, authoritytest.Options{Events: events.Options{SnapshotEvery: 5, SnapshotQuiet: time.Millisecond}})
	owner, coordinator, worker := registrytest.Human("mission-owner"), r.AddAgent("coordinator"), r.AddAgent("worker")
	done := r.NewMission(owner, coordinator)
	done.Join(worker, "worker")
	done.Must(worker, done.Post("hello"))
	done.Complete(worker)
	running := r.NewMission(owner, coordinator)
	running.Join(worker, "worker")
	running.Must(worker, running.Post("hello"))
	running.Work(worker)
	if _, err := running.Send(worker, running.Start(registrytest.Mint(), 1, 1)); err == nil {
		t.Fatal("start of an unknown WorkItem")
	}
	// A member that leaves does not see what its leaving causes.
	leaver := r.AddAgent("leaver")
	running.Join(leaver, "worker")
	running.Work(leaver)
	running.Must(leaver, protocol.Command{
		Kind: "membership.end", Payload: authoritytest.Payload(t, map[string]any{"member": leaver.Principal}),
	})
	if _, err := r.Store.SetCursor(t.Context(), running.GroupID, worker.Principal, 2); err != nil {
		t.Fatal(err)
	}
	for snapshots := 0; snapshots < 2; {
		if err := r.Org.Pool.QueryRow(t.Context(), "SELECT count(*) FROM snapshots").Scan(&snapshots); err != nil {
			t.Fatal(err)
		}
	}
	return r, done, running
}

func run(t *testing.T, r *authoritytest.Rig) *verify.Report {
	t.Helper()
	report, err := verify.Database(t.Context(), r.Org.Pool, verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func words(r *verify.Report) string {
	var b strings.Builder
	_, _ = r.WriteTo(&b)
	return b.String()
}

func TestHonestDatabaseHasNoDifference(t *testing.T) {
	r, done, _ := history(t)
	report := run(t, r)
	if !report.OK() {
		t.Errorf("%s", words(report))
	}
	if report.Groups != 2 || report.Events < 20 || report.Receipts < 20 || report.Documents < 5 {
		t.Errorf("looked at too little: %s", words(report))
	}
	if state := done.State().Mission.State; state != protocol.MissionApproved {
		t.Errorf("Mission is %s", state)
	}
	// What is derived can be made again.
	for _, table := range []string{"missions", "work_items", "leases", "policy_log", "group_timers", "messages"} {
		if _, err := r.Org.Pool.Exec(t.Context(), "DELETE FROM "+table); err != nil {
			t.Fatal(err)
		}
	}
	if run(t, r).OK() {
		t.Error("nothing differs without projections")
	}
	if err := verify.Rebuild(t.Context(), r.Store, nil); err != nil {
		t.Fatal(err)
	}
	if report := run(t, r); !report.OK() {
		t.Errorf("after the rebuild: %s", words(report))
	}
}

// Every kind of tampering is found, and named with its Group.
func TestTamperingIsFound(t *testing.T) {
	r, done, running := history(t)
	ctx := t.Context()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := r.Org.Pool.Exec(ctx, sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	stateOf := func(table string) string { return "bak_" + table }
	for _, tc := range []struct {
		name, table, sql, want string
	}{
		{"an Event's bytes", "events", `UPDATE events SET document = overlay(document placing '\x39' from 200 for 1) WHERE sequence = 4`, "#4: events: "},
		{"an Event is gone", "events", `DELETE FROM events WHERE sequence = 5`, "#6: events: follows sequence 4"},
		{"the last Event is gone", "events", `DELETE FROM events e USING groups g WHERE e.group_id = g.group_id AND e.sequence = g.head_sequence`, "the log ends at"},
		{"two Events change places", "events", `UPDATE events a SET document = b.document, signing_hash = b.signing_hash FROM events b
			WHERE a.group_id = b.group_id AND a.sequence IN (2, 3) AND b.sequence = 5 - a.sequence`, "the Event says sequence 3"},
		{"an Event's kind", "events", `UPDATE events SET kind = 'message.redacted' WHERE kind = 'message.posted'`, `kind is "message.posted" in the Event`},
		{"an Event's time", "events", `UPDATE events SET occurred_at = occurred_at + interval '1 microsecond' WHERE sequence = 3`, "occurredAt is"},
		{"an Event's hash", "events", `UPDATE events SET signing_hash = sha256('x') WHERE sequence = 3`, "signing hash is"},
		{"an Event's command", "events", `UPDATE events SET command_hash = sha256('x') WHERE sequence = 3`, "names a Command that has no receipt"},
		{"an Event's admission time", "events", `UPDATE events SET admission_at = admission_at - interval '10 years' WHERE sequence = 3`, "trusted-time-outside-key-interval"},
		{"an Event's admission key", "events", `UPDATE events SET admission_key_id = 'urn:other' WHERE sequence = 3`, "record-binding-mismatch"},
		{"an Event's admission service", "events", `UPDATE events SET admission_by = 'urn:other' WHERE sequence = 3`, "no service of the Organization"},
		{"a head", "groups", `UPDATE groups SET head_sequence = head_sequence + 1`, "head_sequence is"},
		{"a publication past the head", "groups", `UPDATE groups SET published_sequence = head_sequence + 1`, "published_sequence"},
		{"a Group's Mission", "groups", `UPDATE groups SET mission_id = 'urn:other' WHERE group_id = '` + running.GroupID + `'`, "mission_id is urn:other"},
		{"a Command's bytes", "receipts", `UPDATE receipts SET command = overlay(command placing '\x39' from 100 for 1) WHERE kind = 'message.post'`, "Command: "},
		{"a receipt's bytes", "receipts", `UPDATE receipts SET response = convert_to(replace(convert_from(response, 'UTF8'), '"sequence":3', '"sequence":4'), 'UTF8')`, "does not exist"},
		{"a receipt's actor", "receipts", `UPDATE receipts SET actor_id = 'urn:other' WHERE kind = 'message.post' AND group_id = '` + done.GroupID + `'`, "actor id"},
		{"a receipt is gone", "receipts", `DELETE FROM receipts WHERE kind = 'message.post'`, "names a Command that has no receipt"},
		{"a receipt's admission", "receipts", `UPDATE receipts SET admission_id = gen_random_uuid() WHERE kind = 'work.start'`, "admissionRecordId"},
		{"an admission record", "admissions", `UPDATE admissions SET key_id = 'urn:other' WHERE document_kind = 'evidence'`, "admission"},
		{"an admission record is gone", "admissions", `DELETE FROM admissions WHERE document_kind = 'artifact'`, "has no Admission Record"},
		{"an Organization Event", "org_events", `UPDATE org_events SET subject_id = 'urn:other'`, "subject is"},
		{"a session", "agent_sessions", `UPDATE agent_sessions SET session_epoch = session_epoch + 1`, "epoch 2 after 1 openings"},
		{"a receipt that hides what its actor saw", "receipts", `UPDATE receipts SET hidden = '{0}' WHERE kind = 'message.post'`, "hidden is true for Event"},
		{"a receipt that shows what its actor did not see", "receipts", `UPDATE receipts SET hidden = NULL WHERE kind = 'membership.end'`, "the fold says true"},
		{"a hidden position that is none", "receipts", `UPDATE receipts SET hidden = '{99}' WHERE kind = 'message.post'`, "positions that the receipt does not have"},
		{"a receipt's tree", "receipts", `UPDATE receipts SET tree_id = tree_id + 1 WHERE kind = 'message.post'`, "tree_id is not that of its Group"},
		{"an Agent's status", "agents", `UPDATE agents SET status = 'revoked'`, "differs from the latest card"},
		{"an Agent's capabilities", "agents", `UPDATE agents SET capabilities = '{other.thing}'`, "differs from the latest card"},
		{"an Agent's row is gone", "agents", `DELETE FROM agents`, "the row is missing"},
		{"a card's bytes", "agent_cards", `UPDATE agent_cards SET document = convert_to(replace(convert_from(document, 'UTF8'), '"maxConcurrency"', '"maxConcurrencz"'), 'UTF8')`, "agent_cards "},
		{"a card's column", "agent_cards", `UPDATE agent_cards SET status = 'deprecated'`, "columns are not those of the card"},
		{"a card is gone", "agent_cards", `DELETE FROM agent_cards`, "was registered and is missing"},
		{"a card without its Event", "org_events", `DELETE FROM org_events WHERE kind = 'ext.missionweaveprotocol.registry.agent_card_registered'`, "has no Event"},
		{"a profile's bytes", "extension_profiles", `UPDATE extension_profiles SET document = overlay(document placing '\x39' from 100 for 1)`, "extension_profiles "},
		{"a profile's column", "extension_profiles", `UPDATE extension_profiles SET critical = NOT critical`, "columns are not those of the profile"},
		{"content for no Group", "blobs", `INSERT INTO blobs VALUES (1, 'urn:none', 'sha256:x', 1, 'agent', 'urn:x')`, "blobs: belongs to no Group"},
		{"a Policy Log entry", "policy_log", `UPDATE policy_log SET decision = 'other'`, "policy_log: differs from the fold"},
		{"a Policy Log entry is gone", "policy_log", `DELETE FROM policy_log`, "policy_log: the entry is missing"},
		{"a timer", "group_timers", `UPDATE group_timers SET due_at = due_at + interval '1 hour'`, "due_at is"},
		{"a timer is gone", "group_timers", `DELETE FROM group_timers`, "due_at is"},
		{"a projection's column", "work_items", `UPDATE work_items SET state = 'open' WHERE state = 'active'`, "differs from the fold in state"},
		{"a projection's document", "memberships", `UPDATE memberships SET document = '{}' WHERE role = 'worker'`, "differs from the fold in document"},
		{"a projection's row is gone", "leases", `DELETE FROM leases`, "is missing"},
		{"a projection's row too many", "offers", `INSERT INTO offers SELECT tree_id, group_id, 'urn:extra', work_item_id, agent_id, status, expires_at, document FROM offers LIMIT 1`, "is not in the fold"},
		{"a projection without Group", "conversations", `INSERT INTO conversations SELECT tree_id, 'urn:none', conversation_id, type, work_item_id, revision, document FROM conversations LIMIT 1`, "belongs to no Group"},
		{"a snapshot", "snapshots", `UPDATE snapshots SET state = convert_to(replace(convert_from(state, 'UTF8'), 'worker', 'wooker'), 'UTF8')`, "snapshots: differs from the fold"},
		{"a Cursor past the head", "cursors", `UPDATE cursors SET sequence = 1000`, "cursors: is past the head"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			exec("SET session_replication_role = DEFAULT")
			exec("DROP TABLE IF EXISTS " + stateOf(tc.table))
			exec("CREATE TABLE " + stateOf(tc.table) + " AS SELECT * FROM " + tc.table)
			defer func() {
				// Append-only triggers guard against mistakes, not against this.
				overriding := ""
				if tc.table == "org_events" {
					overriding = " OVERRIDING SYSTEM VALUE"
				}
				exec(fmt.Sprintf(`DO $$ BEGIN SET LOCAL session_replication_role = replica; DELETE FROM %s;
					INSERT INTO %s%s SELECT * FROM %s; END $$`, tc.table, tc.table, overriding, stateOf(tc.table)))
			}()
			exec("DO $mw$ BEGIN SET LOCAL session_replication_role = replica; " + tc.sql + "; END $mw$")
			report := run(t, r)
			if report.OK() || !strings.Contains(words(report), tc.want) {
				t.Errorf("not found as %q:\n%s", tc.want, words(report))
			}
		})
	}
	if report := run(t, r); !report.OK() {
		t.Errorf("after everything was put back: %s", words(report))
	}
}

func TestOneGroupAlone(t *testing.T) {
	r, done, _ := history(t)
	report, err := verify.Database(t.Context(), r.Org.Pool, verify.Options{Group: done.GroupID})
	if err != nil || !report.OK() || report.Groups != 1 || report.Receipts != 0 {
		t.Errorf("%v %+v", err, report)
	}
}
