package groups

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/protocol"
)

// entitle asks as wes would, with an edit; it answers "" or "CODE:reason".
func (s *site) entitle(work string, edit func(*Standing, *Wish)) (*Entitlement, string) {
	s.t.Helper()
	return s.entitleIn("group:g", work, edit)
}

func (s *site) entitleIn(group, work string, edit func(*Standing, *Wish)) (*Entitlement, string) {
	s.t.Helper()
	st := s.group[group]
	ask := Standing{AgentID: "agent:wes", SessionEpoch: 1, WorkItemID: work, OwnershipEpoch: 1, ExecutionLeaseID: "urn:lease:none"}
	if w := st.WorkItems[work]; w != nil && w.Execution != nil {
		ask.ExecutionLeaseID = w.Execution.LeaseID
	}
	wish := Wish{Operations: []string{"write"}, Resources: []string{"urn:repo:app"}}
	if edit != nil {
		edit(&ask, &wish)
	}
	e, err := st.Entitle(ask, wish, s.org, s.now, func(id string) (*State, error) { return s.group[id], nil })
	return e, short(s.t, err)
}

// upholds asks about a token that was given out as an Entitlement says.
func (s *site) upholds(work, approval string) string {
	s.t.Helper()
	w := s.item(work)
	lease := "urn:lease:none"
	if w.Execution != nil {
		lease = w.Execution.LeaseID
	}
	return short(s.t, s.g().Upholds(Standing{
		AgentID: "agent:wes", SessionEpoch: 1, MembershipEpoch: 1, WorkItemID: work, OwnershipEpoch: 1,
		ExecutionLeaseID: lease, ApprovalID: approval,
	}, s.org, s.now, func(id string) (*State, error) { return s.group[id], nil }))
}

func short(t testing.TB, err error) string {
	t.Helper()
	var perr *protocol.Error
	switch {
	case err == nil:
		return ""
	case !errors.As(err, &perr):
		t.Fatalf("not a refusal: %v", err)
	}
	return strings.TrimSuffix(string(perr.Code)+":"+perr.Reason, ":")
}

const (
	closedGate  = "APPROVAL_REQUIRED:execution"
	leaseOver   = "WORK_LEASE_EXPIRED:execution"
	outOfBudget = "BUDGET_EXCEEDED:token"
)

func TestATokenIsRefused(t *testing.T) {
	for _, c := range []struct {
		rule, want string
		prepare    func(*site)
		edit       func(*Standing, *Wish)
	}{
		{"to one who was never a member", "GROUP_NOT_FOUND", nil, func(a *Standing, _ *Wish) { a.AgentID = "agent:stranger" }},
		{"to one whose Membership has ended", "MEMBERSHIP_REQUIRED", func(s *site) {
			s.must("agent:cora membership.end", `{"member": {"type": "agent", "id": "agent:wes"}, "reason": "x"}`)
		}, nil},
		{"under another Membership Epoch", "MEMBERSHIP_STALE", nil, func(a *Standing, _ *Wish) { a.MembershipEpoch = 2 }},
		{"to one who may not execute", "AUTH_FORBIDDEN:scope", nil, func(a *Standing, _ *Wish) { a.AgentID = "agent:otto" }},
		{"for unknown work", "INVALID_COMMAND:unknown_reference", nil, func(a *Standing, _ *Wish) { a.WorkItemID = "work:zzz" }},
		{"under an approval that is not the work's", "INVALID_COMMAND:unknown_reference", nil, func(a *Standing, _ *Wish) { a.ApprovalID = "approval:zzz" }},
		{"to one who never owned the work", "AUTH_FORBIDDEN:not_owner", nil, func(a *Standing, _ *Wish) { a.AgentID = "agent:rita" }},
		{"under another Ownership Epoch", "WORK_STALE_OWNERSHIP:stale_ownership", nil, func(a *Standing, _ *Wish) { a.OwnershipEpoch = 2 }},
		{"under another lease", leaseOver, nil, func(a *Standing, _ *Wish) { a.ExecutionLeaseID = "urn:lease:other" }},
		{"in another session than the lease's", leaseOver, nil, func(a *Standing, _ *Wish) { a.SessionEpoch = 2 }},
		{"at the instant the lease expires", leaseOver, func(s *site) { s.wait(300) }, nil},
		{"after a checkpoint", leaseOver, func(s *site) { s.must("agent:wes work.checkpoint", workerCommands["work.checkpoint"], "work=work:a") }, nil},
		{"for an operation beyond the contract", "AUTH_FORBIDDEN:permission", nil, func(_ *Standing, w *Wish) { w.Operations = []string{"write", "read"} }},
		{"for a resource beyond the contract", "AUTH_FORBIDDEN:permission", nil, func(_ *Standing, w *Wish) { w.Resources = []string{"urn:repo:app", "urn:repo:other"} }},
		{"for a pattern beyond the contract", "AUTH_FORBIDDEN:permission", nil, func(_ *Standing, w *Wish) { w.Resources = []string{"urn:repo:*"} }},
		{"for more than the contract's budget", outOfBudget, nil, func(_ *Standing, w *Wish) { w.Budget = tokensOf(1001) }},
		{"for a dimension the contract has none of", outOfBudget, nil, func(_ *Standing, w *Wish) {
			n := int64(1)
			w.Budget = &protocol.Budget{ComputeSecondsLimit: &n}
		}},
		{"for money in another currency", "INVALID_COMMAND:currency_mismatch", nil, func(_ *Standing, w *Wish) {
			money := protocol.Money(1)
			w.Budget = &protocol.Budget{Currency: "USD", FinancialLimit: &money}
		}},
		{"for more than is left", outOfBudget, func(s *site) {
			s.must("agent:wes "+recordUsage, usage(`"modelTokens": 600`), "work=work:a")
		}, func(_ *Standing, w *Wish) { w.Budget = tokensOf(401) }},
		{"while the budget is exhausted", "BUDGET_EXCEEDED:paused", func(s *site) {
			s.must("agent:wes "+recordUsage, usage(`"modelTokens": 1000`), "work=work:a")
		}, nil},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.unchecked = true
			s.active("work:a", "")
			if c.prepare != nil {
				c.prepare(s)
			}
			if _, got := s.entitle("work:a", c.edit); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func tokensOf(n int64) *protocol.Budget { return &protocol.Budget{ModelTokenLimit: &n} }

func TestATokenGrantsWhatWasAskedAndNoMore(t *testing.T) {
	s := newSite(t)
	s.active("work:a", `"allowedResources": [
		{"resource": "urn:repo:app", "operations": ["read", "write"]},
		{"resource": "urn:repo:docs/*", "operations": ["read"]}]`)
	e, refused := s.entitle("work:a", func(_ *Standing, w *Wish) {
		w.Operations, w.Resources = []string{"read"}, []string{"urn:repo:docs/a", "urn:repo:app"}
	})
	if refused != "" {
		t.Fatal(refused)
	}
	want := []protocol.ResourceGrant{
		{Resource: "urn:repo:docs/a", Operations: []string{"read"}}, {Resource: "urn:repo:app", Operations: []string{"read"}},
	}
	if diff := cmp.Diff(want, e.Access); diff != "" {
		t.Error(diff)
	}
	// An operation is granted where the contract permits it, not wherever another
	// one is.
	e, refused = s.entitle("work:a", func(_ *Standing, w *Wish) {
		w.Operations, w.Resources = []string{"read", "write"}, []string{"urn:repo:docs/a", "urn:repo:app"}
	})
	if refused != "" {
		t.Fatal(refused)
	}
	want[1].Operations = []string{"read", "write"}
	if diff := cmp.Diff(want, e.Access); diff != "" {
		t.Error(diff)
	}
	if e.MembershipEpoch != 1 || e.MissionID != "mission:m" || e.ApprovalID != "" || e.OneShot || len(e.Ends) != 1 || e.Ends[0] != s.item("work:a").Execution.ExpiresAt {
		t.Errorf("%+v", e)
	}
	if v := budget.FromBudget(e.Budget); v != budget.FromBudget(s.item("work:a").Contract.Budget) {
		t.Errorf("an absent budget is all there is: %v", v)
	}
	s.must("agent:wes "+recordUsage, usage(`"modelTokens": 400, "toolCalls": 10`), "work=work:a")
	e, refused = s.entitle("work:a", nil)
	if v := budget.FromBudget(e.Budget); refused != "" || v[budget.ModelTokens] != 600 || v[budget.ToolCalls] != 0 {
		t.Errorf("after usage: %v %s", v, refused)
	}
}

func TestATokenNeedsTheGate(t *testing.T) {
	s := newSite(t)
	gated(s)
	olga, item := "human:olga ", "work=work:a"
	if _, got := s.entitle("work:a", nil); got != closedGate {
		t.Errorf("queued work that waits for its approval: %q", got)
	}
	s.must(olga+grantKindName, granting(`"budget": {"modelTokenLimit": 50}, "expiresAt": "now+100s"`), item)
	if _, got := s.entitle("work:a", nil); got != leaseOver {
		t.Errorf("approved and not started: %q", got)
	}
	s.start("work:a", 1)
	e, refused := s.entitle("work:a", nil)
	if refused != "" || e.ApprovalID != "approval:1" || e.OneShot || len(e.Ends) != 2 {
		t.Fatalf("%q %+v", refused, e)
	}
	if v := budget.FromBudget(e.Budget); v != (budget.Vector{budget.ModelTokens: 50}) {
		t.Errorf("the approval's budget caps: %v", v)
	}
	if _, got := s.entitle("work:a", func(_ *Standing, w *Wish) { w.Budget = tokensOf(51) }); got != outOfBudget {
		t.Errorf("beyond the approval's budget: %q", got)
	}
	if got := s.upholds("work:a", "approval:1"); got != "" {
		t.Errorf("in force: %q", got)
	}
	s.wait(100)
	for name, got := range map[string]string{"old": s.upholds("work:a", "approval:1"), "new": second(s.entitle("work:a", nil))} {
		if got != closedGate {
			t.Errorf("%s token at the approval's expiry: %q", name, got)
		}
	}
}

func second(_ *Entitlement, refused string) string { return refused }

func TestRevokingOrDenyingTheGateEndsItsTokens(t *testing.T) {
	for name, c := range map[string]struct{ kind, payload string }{
		"revoked": {"ext.missionweave.approval.revoke_execution", `{"approval": {"@": "grant", "approvalId": "approval:2", "decision": "revoked", "revokesApprovalId": "approval:1"}}`},
		"denied":  {"ext.missionweave.approval.deny_execution", `{"approval": {"@": "grant", "approvalId": "approval:2", "decision": "denied"}, "ownershipEpoch": 1}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			gated(s)
			s.must("human:olga "+grantKindName, granting(""), "work=work:a")
			s.start("work:a", 1)
			if got := s.upholds("work:a", "approval:1"); got != "" {
				t.Fatal(got)
			}
			s.must("human:olga "+c.kind, c.payload, "work=work:a")
			if got := s.upholds("work:a", "approval:1"); got != closedGate {
				t.Errorf("old token: %q", got)
			}
			if _, got := s.entitle("work:a", nil); got != closedGate {
				t.Errorf("new token: %q", got)
			}
			if _, got := s.entitle("work:a", func(a *Standing, _ *Wish) { a.ApprovalID = "approval:1" }); got != closedGate {
				t.Errorf("new token that names the approval: %q", got)
			}
		})
	}
}

func TestWhatTheApprovalDoesNotCoverIsNotApproved(t *testing.T) {
	s := newSite(t)
	s.known["approval"] = "approval:1"
	s.queued("work:a", `"executionApproval": "human_required", "sideEffectRisk": "high_risk", "allowedResources": [
		{"resource": "urn:repo:app", "operations": ["read", "write"]}, {"resource": "urn:repo:docs", "operations": ["write"]}]`)
	s.must("human:olga "+grantKindName, granting(`"argumentsDigest": "#1"`), "work=work:a")
	s.start("work:a", 1)
	if _, got := s.entitle("work:a", func(_ *Standing, w *Wish) { w.Operations = []string{"read"} }); got != closedGate {
		t.Errorf("another operation: %q", got)
	}
	if _, got := s.entitle("work:a", func(_ *Standing, w *Wish) { w.Resources = []string{"urn:repo:docs"} }); got != closedGate {
		t.Errorf("another resource: %q", got)
	}
	e, refused := s.entitle("work:a", nil)
	if refused != "" || !e.OneShot || e.ArgumentsDigest != hash("1") {
		t.Errorf("an approval of exact arguments is one of a single action: %q %+v", refused, e)
	}
}

func TestATokenUnderAnActionApprovalCoversThatActionOnly(t *testing.T) {
	s := newSite(t)
	s.active("work:a", `"allowedResources": [{"resource": "urn:repo:app", "operations": ["read", "write"]}]`)
	named := func(a *Standing, _ *Wish) { a.ApprovalID = "approval:9" }
	s.must("service:authorization "+askKind, asking(""), "work=work:a")
	if _, got := s.entitle("work:a", named); got != "INVALID_COMMAND:unknown_reference" {
		t.Errorf("before the answer: %q", got)
	}
	s.must("human:olga "+answerKind, answering("approved", ""), "work=work:a")
	e, refused := s.entitle("work:a", named)
	if refused != "" || !e.OneShot || e.ApprovalID != "approval:9" || e.ArgumentsDigest != hash("1") {
		t.Fatalf("%q %+v", refused, e)
	}
	if _, got := s.entitle("work:a", func(a *Standing, w *Wish) { named(a, w); w.Operations = []string{"read"} }); got != closedGate {
		t.Errorf("another operation: %q", got)
	}
	if got := s.upholds("work:a", "approval:9"); got != "" {
		t.Errorf("before its use: %q", got)
	}
	s.must("service:authorization "+consumeKind, consuming, "work=work:a")
	if got := s.upholds("work:a", "approval:9"); got != closedGate {
		t.Errorf("after its use: %q", got)
	}
}

func TestFencesEndATokenAtOnce(t *testing.T) {
	for _, c := range []struct {
		rule, want string
		fence      func(*site)
	}{
		{"nothing happened", "", func(*site) {}},
		{"a renewed lease keeps it", "", func(s *site) {
			s.must("agent:wes ext.missionweaveprotocol.core.work_execution_lease_renew", `{"ownershipEpoch": 1, "executionLeaseId": "$lease", "leaseSeconds": 600}`, "work=work:a")
		}},
		{"lease closed", leaseOver, func(s *site) { s.must("agent:wes work.checkpoint", workerCommands["work.checkpoint"], "work=work:a") }},
		{"lease over", leaseOver, func(s *site) { s.wait(300) }},
		{"Membership changed", "MEMBERSHIP_STALE", func(s *site) {
			s.must("agent:cora membership.change", `{"member": {"type": "agent", "id": "agent:wes"}, "role": "reviewer"}`)
		}},
		{"Membership ended", "MEMBERSHIP_REQUIRED", func(s *site) {
			s.must("agent:cora membership.end", `{"member": {"type": "agent", "id": "agent:wes"}, "reason": "x"}`)
		}},
		{"budget exhausted", "BUDGET_EXCEEDED:paused", func(s *site) {
			s.must("agent:wes "+recordUsage, usage(`"modelTokens": 1000`), "work=work:a")
		}},
		{"work cancelled", leaseOver, func(s *site) { s.must("agent:cora work.cancel", `{"reason": "x"}`, "work=work:a") }},
		{"Mission cancelled", leaseOver, func(s *site) { s.must("human:olga mission.cancel", `{"reason": "x"}`) }},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.active("work:a", "")
			lease := s.lease("work:a")
			c.fence(s)
			got := short(t, s.g().Upholds(Standing{
				AgentID: "agent:wes", SessionEpoch: 1, MembershipEpoch: 1, WorkItemID: "work:a", OwnershipEpoch: 1, ExecutionLeaseID: lease,
			}, s.org, s.now, nil))
			if got != c.want && (c.want != leaseOver || !strings.HasPrefix(got, "WORK_STALE_OWNERSHIP") && !strings.HasPrefix(got, "WORK_LEASE")) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestAncestryCapsAndPausesATokenOfAChild(t *testing.T) {
	s := newSite(t)
	s.child(failBlocks)
	s.inChild()
	e, refused := s.entitleIn("group:c", "work:x", nil)
	if refused != "" {
		t.Fatal(refused)
	}
	if v := budget.FromBudget(e.Budget); v[budget.ModelTokens] != 100 || v[budget.Financial] != 2_000_000 {
		t.Errorf("%v", v)
	}
	// What is used up elsewhere in the tree pauses here.
	if got := s.recordIn("group:c", `"modelTokens": 100`); got != "" {
		t.Fatal(got)
	}
	if _, got := s.entitleIn("group:c", "work:x", nil); got != "BUDGET_EXCEEDED:paused" {
		t.Errorf("exhausted: %q", got)
	}
}

// A request that widens what it asks for never gets what the narrower one was
// refused, and a granted budget never exceeds any cap.
func TestAWishNarrowsAndNeverWidens(t *testing.T) {
	s := newSite(t)
	s.unchecked = true
	s.active("work:a", `"allowedResources": [
		{"resource": "urn:repo:app", "operations": ["write"]}, {"resource": "urn:repo:docs/*", "operations": ["read", "write"]}]`)
	s.must("agent:wes "+recordUsage, usage(`"modelTokens": 300`), "work=work:a")
	grants := s.item("work:a").Contract.AllowedResources
	operations := []string{"read", "write", "delete"}
	resources := []string{"urn:repo:app", "urn:repo:docs/a", "urn:repo:docs/*", "urn:repo:*", "urn:repo:other"}
	rapid.Check(t, func(rt *rapid.T) {
		wish := Wish{
			Operations: rapid.SliceOfNDistinct(rapid.SampledFrom(operations), 1, 3, rapid.ID[string]).Draw(rt, "operations"),
			Resources:  rapid.SliceOfNDistinct(rapid.SampledFrom(resources), 0, 5, rapid.ID[string]).Draw(rt, "resources"),
		}
		n := rapid.Int64Range(0, 1200).Draw(rt, "tokens")
		wish.Budget = tokensOf(n)
		e, refused := s.entitle("work:a", func(_ *Standing, w *Wish) { *w = wish })
		if refused != "" {
			return
		}
		if n > 700 {
			rt.Fatalf("%d of 700 were granted", n)
		}
		for _, a := range e.Access {
			for _, op := range a.Operations {
				if !contains(wish.Operations, op) || !contains(wish.Resources, a.Resource) {
					rt.Fatalf("%s on %s was not asked for", op, a.Resource)
				}
				allowed := false
				for _, g := range grants {
					allowed = allowed || covers(g.Resource, a.Resource) && contains(g.Operations, op)
				}
				if !allowed {
					rt.Fatalf("%s on %s is not in the contract", op, a.Resource)
				}
			}
		}
	})
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}
