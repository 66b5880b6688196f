package groups

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sweep plays the background sweeper once and returns the kinds of its Events.
func (s *site) sweep(groupID string) []string {
	s.t.Helper()
	before := s.canonical()
	d := Sweep(s.world(), s.group[groupID])
	if !s.unchecked && !cmp.Equal(before, s.canonical()) {
		s.t.Fatal("sweeping changed state")
	}
	s.accept(d)
	return s.kinds(d)
}

func TestSweepRecordsEachExpiryOnce(t *testing.T) {
	s := newSite(t)
	s.must("agent:cora membership.change", `{"member": {"type": "agent", "id": "agent:stranger"}, "role": "worker", "state": "provisional", "provisionalExpiresAt": "now+200s"}`)
	s.active("work:a", "")
	s.offered("work:b", "", "stranger")
	s.known["approval"] = "approval:1"
	s.queued("work:c", `"executionApproval": "human_required"`)
	s.must("human:olga "+grantKindName, granting(`"approval": {"@": "grant", "workItemId": "work:c"}, "expiresAt": "now+400s"`), "work=work:c")
	if at, ok := s.g().NextTimer(); !ok || at.Sub(s.now).Seconds() != 200 {
		t.Fatalf("next timer %v", at)
	}
	if got := s.sweep("group:g"); got != nil {
		t.Fatalf("too early: %v", got)
	}
	s.wait(200)
	want := []string{"membership.ended", "ext.missionweave.authority.offers_withdrawn"}
	if diff := cmp.Diff(want, s.sweep("group:g")); diff != "" {
		t.Fatal(diff)
	}
	s.wait(800) // 1000 s: the Execution Lease lapsed at 300, the approval at 400
	want = []string{"ext.missionweave.authority.lease_expired", "ext.missionweave.approval.execution_expired"}
	if diff := cmp.Diff(want, s.sweep("group:g")); diff != "" {
		t.Fatal(diff)
	}
	w := s.item("work:a")
	if l := w.ClosedLeases[0]; w.State != "active" || w.Execution != nil || l.State != "expired" || l.ClosedAt != l.ExpiresAt {
		t.Errorf("%s %+v", w.State, l)
	}
	if got := s.sweep("group:g"); got != nil {
		t.Fatalf("twice: %v", got)
	}
	last := decodeStored(t, s.logs["group:g"][s.g().Head-1])
	if last.Actor != s.org.Authority || last.Cause.Type != "timer" || last.Cause.ID != "approval:1" {
		t.Errorf("actor %v cause %v", last.Actor, last.Cause)
	}
	// A renewed coordinator lease and ownership lease are what is left.
	s.wait(86400)
	want = []string{
		"ext.missionweave.authority.lease_expired", "ext.missionweave.authority.lease_expired",
		"ext.missionweave.authority.lease_expired",
	}
	if diff := cmp.Diff(want, s.sweep("group:g")); diff != "" {
		t.Fatal(diff)
	}
	if s.g().CoordinatorLease.State != "expired" {
		t.Error("coordinator lease")
	}
	if _, ok := s.g().NextTimer(); ok {
		t.Error("nothing is left to expire")
	}
	s.done()
}

func TestSweepFollowsRenewals(t *testing.T) {
	s := newSite(t)
	s.active("work:a", "")
	s.wait(200)
	s.must("agent:wes ext.missionweaveprotocol.core.work_execution_lease_renew", `{"ownershipEpoch": 1, "executionLeaseId": "$lease"}`, "work=work:a")
	s.wait(150)
	if got := s.sweep("group:g"); got != nil {
		t.Fatalf("the old expiry no longer stands: %v", got)
	}
	s.must("agent:wes work.checkpoint", workerCommands["work.checkpoint"], "work=work:a")
	s.wait(500)
	if got := s.sweep("group:g"); got != nil {
		t.Fatalf("a closed lease does not expire: %v", got)
	}
	s.done()
}

// TestOutcomesDoNotDependOnTheSweeper plays the same recovery with and without
// a sweep in between.
func TestOutcomesDoNotDependOnTheSweeper(t *testing.T) {
	for _, swept := range []bool{false, true} {
		s := newSite(t)
		s.active("work:a", "")
		s.wait(300)
		if swept {
			s.sweep("group:g")
		}
		s.refused(wleExec, "agent:wes work.checkpoint", workerCommands["work.checkpoint"], "work=work:a")
		s.refused("INVALID_STATE_TRANSITION:state at P22", "agent:wes work.start", `{"ownershipEpoch": 1}`, "work=work:a")
		s.offer("work:a", "", "rita")
		w := s.item("work:a")
		if len(w.ClosedLeases) != 2 || w.State != "offered" || w.Owner != nil {
			t.Errorf("swept %v: %s %v", swept, w.State, w.Owner)
		}
		for _, l := range w.ClosedLeases {
			if l.LeaseType == "execution" && (l.State != "expired" || l.ClosedAt != l.ExpiresAt || l.ClosureReason != "expired") {
				t.Errorf("swept %v: %+v", swept, l)
			}
		}
		s.done()
	}
}
