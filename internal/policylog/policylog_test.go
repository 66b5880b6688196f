package policylog_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/policylog"
	"github.com/missionweave/server/internal/protocol"
)

func open(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), devstack.ForTest(t).NewDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

var at = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

func decision(id string, change func(*policylog.Decision)) policylog.Decision {
	d := policylog.Decision{
		ID: id, At: at, Category: policylog.Action, Outcome: "deny",
		Principal: protocol.Actor{Type: protocol.ActorAgent, ID: "urn:x:a"}, Input: []byte(`{}`),
	}
	if change != nil {
		change(&d)
	}
	return d
}

func TestEntriesComeBackAsTheyWereAppended(t *testing.T) {
	t.Parallel()
	pool := open(t)
	full := decision("urn:uuid:1", func(d *policylog.Decision) {
		d.Code, d.Reason, d.RuleIDs, d.ManifestVersion = protocol.CodeAuthForbidden, "law", []string{"a", "b"}, "sha256:0"
		d.GroupID, d.WorkItemID, d.SubjectID, d.Result = "urn:x:g", "urn:x:w", "urn:x:s", []byte(`{"a":1}`)
	})
	bare := decision("urn:uuid:2", func(d *policylog.Decision) { d.RuleIDs = []string{} })
	if err := policylog.Append(t.Context(), pool, full); err != nil {
		t.Fatal(err)
	}
	var b pgx.Batch
	if err := policylog.Queue(&b, bare); err != nil {
		t.Fatal(err)
	}
	if err := pool.SendBatch(t.Context(), &b).Close(); err != nil {
		t.Fatal(err)
	}
	got, err := policylog.Read(t.Context(), pool, policylog.Filter{Limit: 10})
	if err != nil || len(got) != 2 {
		t.Fatalf("%d entries, %v", len(got), err)
	}
	for i, want := range []policylog.Decision{full, bare} {
		if diff := cmp.Diff(want, got[i].Decision); diff != "" {
			t.Error(diff)
		}
	}
	for _, f := range []policylog.Filter{
		{GroupID: "urn:x:g", Limit: 5}, {SubjectID: "urn:x:s", Limit: 5}, {Limit: 1}, {Category: policylog.Action, Limit: 1},
	} {
		if got, err := policylog.Read(t.Context(), pool, f); err != nil || len(got) != 1 || got[0].ID != full.ID {
			t.Errorf("%+v: %d entries, %v", f, len(got), err)
		}
	}
	if got, err := policylog.Read(t.Context(), pool, policylog.Filter{After: got[0].Entry, Limit: 5}); err != nil || len(got) != 1 || got[0].ID != bare.ID {
		t.Errorf("after the first: %d entries, %v", len(got), err)
	}
}

func TestNothingInTheLogCanBeChanged(t *testing.T) {
	t.Parallel()
	pool := open(t)
	if err := policylog.Append(t.Context(), pool, decision("urn:uuid:1", nil)); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`UPDATE policy_decisions SET outcome = 'allow'`, `DELETE FROM policy_decisions`, `TRUNCATE policy_decisions`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if err := policylog.Append(t.Context(), pool, decision("urn:uuid:1", nil)); err == nil {
		t.Error("two entries of one id")
	}
}

func TestAnIncompleteDecisionIsRefusedBeforeItReachesTheDatabase(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*policylog.Decision){
		"no id":        func(d *policylog.Decision) { d.ID = "" },
		"no time":      func(d *policylog.Decision) { d.At = time.Time{} },
		"no category":  func(d *policylog.Decision) { d.Category = "" },
		"no outcome":   func(d *policylog.Decision) { d.Outcome = "" },
		"no principal": func(d *policylog.Decision) { d.Principal = protocol.Actor{} },
		"no input":     func(d *policylog.Decision) { d.Input = nil },
	} {
		d := decision("urn:uuid:1", change)
		if policylog.Append(t.Context(), nil, d) == nil || policylog.Queue(&pgx.Batch{}, d) == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
