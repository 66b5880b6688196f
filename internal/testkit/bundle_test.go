package testkit_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/aeplog"
	"github.com/missionweave/server/internal/bundle"
	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/testkit"
)

// exported is the bundle of a Group in which something of every kind happened.
func exported(t *testing.T, s *testkit.Stack) (m *testkit.Mission, raw []byte) {
	t.Helper()
	m = s.NewMission()
	worker := s.Agent("worker")
	m.Admit(worker, "worker", 1)
	item := m.Authorize()
	m.Offer(item, worker)
	m.Say("hello")
	log := evidenceLog(s)
	run := aeplog.Run{GroupID: m.GroupID, WorkItemID: item, OwnershipEpoch: 1}
	for range 3 {
		if _, err := appendEvidence(t, s, log, run, evidence.Action{ActionID: client.NewID(), ToolName: "t", SideEffectClass: "read"}); err != nil {
			t.Fatal(err)
		}
	}
	answer := s.Get(m.Owner, client.Path("v1", "groups", m.GroupID)+"/export")
	if answer.Status != http.StatusOK {
		t.Fatalf("%d %s", answer.Status, answer.Body)
	}
	return m, answer.Body
}

func verifyBundle(t *testing.T, raw []byte) *bundle.Report {
	t.Helper()
	report, err := bundle.Verify(t.Context(), bytes.NewReader(raw), bundle.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestAnExportVerifiesAndIsForThoseWhoReadAll(t *testing.T) {
	s := testkit.Start(t)
	m, raw := exported(t, s)
	report := verifyBundle(t, raw)
	if !report.OK() || report.Events != report.Head || report.Commands == 0 || report.Records != 3 || report.Keys == 0 {
		var b strings.Builder
		_, _ = report.WriteTo(&b)
		t.Fatalf("%s", b.String())
	}
	path := client.Path("v1", "groups", m.GroupID) + "/export"
	for _, tc := range []struct {
		who  *client.Client
		want int
	}{
		{s.As("archival"), http.StatusOK},
		{m.Coordinator, http.StatusForbidden},
		{s.Human("outsider"), http.StatusNotFound},
		{s.As("metering"), http.StatusNotFound},
	} {
		if got := s.Get(tc.who, path); got.Status != tc.want {
			t.Errorf("%s: %d", tc.who.Principal().ID, got.Status)
		}
	}
}
