package authzhttp_test

import (
	"slices"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/testwait"
)

// The Execution Approval gate from end to end: what the log, the list of waiting
// approvals and the token say about one and the same WorkItem.

func gated(c *client.WorkContract) {
	c.ExecutionApproval, c.SideEffectRisk = "human_required", "high_risk"
}

const (
	requestKind = "ext.missionweave.approval.request_execution"
	denyKind    = "ext.missionweave.approval.deny_execution"
	revokeKind  = "ext.missionweave.approval.revoke_execution"
)

// waiting is the item of the WorkItem in the owner's list.
func (s *stand) waiting() (strictjson.Value, bool) {
	s.t.Helper()
	list := s.Get(s.m.Owner, "/v1/approvals?state=pending").Value(s.t)
	for _, w := range list.Member("items").Items() {
		if w.Member("workItem").Member("workItemId").Str() == s.item {
			return w, true
		}
	}
	return strictjson.Value{}, false
}

func (s *stand) wait(want bool) {
	s.t.Helper()
	if w, ok := s.waiting(); ok != want {
		s.t.Errorf("waits for the owner: %t, want %t: %s", ok, want, w.Raw())
	}
}

func (s *stand) askApproval(id string, until time.Duration, more map[string]any) {
	s.t.Helper()
	payload := map[string]any{
		"requestId": id, "ownershipEpoch": s.epoch, "operations": []string{"write"}, "resources": []string{"urn:repo:app"},
		"budget":    map[string]any{"modelTokenLimit": 100},
		"expiresAt": client.Timestamp(time.Now().Add(until)), "reason": "The release needs it.",
	}
	for name, v := range more {
		payload[name] = v
	}
	s.must(client.Command{Kind: requestKind}, payload)
}

func (s *stand) deny(who *client.Client, request string) testkit.Answer {
	s.t.Helper()
	payload := map[string]any{"approval": s.approval(who, client.NewID(), "denied", nil), "ownershipEpoch": s.epoch}
	if request != "" {
		payload["requestId"] = request
	}
	return s.verdict(who, denyKind, payload)
}

func (s *stand) revoke(who *client.Client, approval string) testkit.Answer {
	s.t.Helper()
	return s.verdict(who, revokeKind, map[string]any{"approval": s.approval(who, client.NewID(), "revoked", func(a *client.Approval) {
		a.RevokesApprovalID = approval
	})})
}

func (s *stand) accepted(what string, a testkit.Answer) {
	s.t.Helper()
	if a.Status != 201 {
		s.t.Fatalf("%s: %d %s", what, a.Status, a.Body)
	}
}

// events are the Events of a kind in the Group.
func (s *stand) events(kind string) (out []strictjson.Value) {
	s.t.Helper()
	page := s.Get(s.m.Owner, client.Path("v1", "groups", s.m.GroupID, "events")+"?limit=1000").Value(s.t)
	for _, e := range page.Member("items").Items() {
		if e.Member("kind").Str() == kind {
			out = append(out, e)
		}
	}
	return out
}

func TestGateRequestedGrantedUsedAndRevoked(t *testing.T) {
	t.Parallel()
	s := newStand(t, gated)
	start := client.Command{Kind: "work.start"}
	begin := map[string]any{"ownershipEpoch": 1, "executionLeaseSeconds": 3600}
	s.try(start, begin).Refused(t, 403, "APPROVAL_REQUIRED")
	v := s.request(nil).Refused(t, 403, "APPROVAL_REQUIRED")
	if v.Member("details").Member("gate").Str() != "human_required" {
		t.Errorf("the refusal does not name the gate: %s", v.Raw())
	}
	s.wait(true)

	request, approval := client.NewID(), client.NewID()
	s.askApproval(request, time.Hour, nil)
	w, _ := s.waiting()
	if w.Member("why").Member("reason").Str() != "The release needs it." || w.Member("cost").Member("requested").Member("modelTokenLimit").Raw() == nil {
		t.Errorf("the owner does not see what and why: %s", w.Raw())
	}
	s.request(nil).Refused(t, 403, "APPROVAL_REQUIRED")

	// The signed grant opens it, for what it names and no more.
	s.grant(approval, map[string]any{"requestId": request, "budget": map[string]any{"modelTokenLimit": 50}})
	s.wait(false)
	s.start(3600)
	g := s.token(nil)
	c := claims(t, g.Token)
	if b := c["budget"].(map[string]any); c["approvalId"] != approval || b["modelTokenLimit"] != 50.0 || b["financialLimit"] != 0.0 {
		t.Errorf("%v", c)
	}
	s.request(map[string]any{"operations": []string{"read"}}).Refused(t, 403, "APPROVAL_REQUIRED")
	s.request(map[string]any{"budget": map[string]any{"modelTokenLimit": 51}}).Refused(t, 409, "BUDGET_EXCEEDED")
	if !s.active(g.Token) {
		t.Fatal("not active")
	}

	// Revoked: its tokens die, the lease lives on and is not renewed.
	s.accepted("revoke", s.revoke(s.m.Owner, approval))
	if s.active(g.Token) {
		t.Error("active after the revocation")
	}
	testwait.Until(t, "revoked", func() bool { return s.revocations()[g.TokenID] })
	s.request(nil).Refused(t, 403, "APPROVAL_REQUIRED")
	s.request(map[string]any{"approvalId": approval}).Refused(t, 403, "APPROVAL_REQUIRED")
	s.try(client.Command{Kind: "ext.missionweaveprotocol.core.work_execution_lease_renew"}, map[string]any{
		"ownershipEpoch": 1, "executionLeaseId": s.lease, "leaseSeconds": 3600,
	}).Refused(t, 403, "APPROVAL_REQUIRED")
	s.revoke(s.m.Owner, approval).Refused(t, 409, "INVALID_STATE_TRANSITION")
}

func TestGateDenied(t *testing.T) {
	t.Parallel()
	s := newStand(t, gated)
	request := client.NewID()
	s.askApproval(request, time.Hour, nil)
	s.verdict(s.worker, denyKind, map[string]any{
		"approval": s.approval(s.worker, client.NewID(), "denied", nil), "ownershipEpoch": 1, "requestId": request,
	})
	s.accepted("deny", s.deny(s.m.Owner, request))
	s.deny(s.m.Owner, request).Refused(t, 409, "INVALID_STATE_TRANSITION")
	s.request(nil).Refused(t, 403, "APPROVAL_REQUIRED")
	s.try(client.Command{Kind: "work.start"}, map[string]any{"ownershipEpoch": 1}).Refused(t, 403, "APPROVAL_REQUIRED")
	// A later grant of its own id opens the gate again.
	s.grant(client.NewID(), nil)
	s.start(3600)
	g := s.token(nil)
	// A denial of the gate itself counts against everything before it.
	s.accepted("deny the gate", s.deny(s.m.Owner, ""))
	if s.active(g.Token) {
		t.Error("active after the gate was denied")
	}
	s.request(nil).Refused(t, 403, "APPROVAL_REQUIRED")
	if denied := s.events("ext.missionweave.approval.execution_denied"); len(denied) != 2 || denied[0].Member("actor").Member("type").Str() != "human" {
		t.Errorf("%d denials in the log", len(denied))
	}
}

func TestGateExpiresAndALateDenialStaysTheHumans(t *testing.T) {
	t.Parallel()
	s := newStand(t, gated)
	request := client.NewID()
	s.askApproval(request, time.Second, nil)
	testwait.Until(t, "expiry recorded", func() bool { return len(s.events("ext.missionweave.approval.execution_expired")) == 1 })
	e := s.events("ext.missionweave.approval.execution_expired")[0]
	if e.Member("actor").Member("type").Str() != "service" {
		t.Errorf("a machine's expiry looks like a human's denial: %s", e.Raw())
	}
	a := s.verdict(s.m.Owner, "approval.grant_execution", map[string]any{
		"approval": s.approval(s.m.Owner, client.NewID(), "approved", nil), "ownershipEpoch": 1, "requestId": request,
		"operations": []string{"write"}, "resources": []string{"urn:repo:app"}, "expiresAt": client.Timestamp(time.Now().Add(time.Hour)),
		"budget": map[string]any{"modelTokenLimit": 100},
	})
	a.Refused(t, 409, "INVALID_STATE_TRANSITION")
	s.accepted("late denial", s.deny(s.m.Owner, request))
	denied := s.events("ext.missionweave.approval.execution_denied")[0]
	if denied.Member("actor").Member("type").Str() != "human" || !denied.Member("payload").Member("late").Bool() {
		t.Errorf("%s", denied.Raw())
	}

	// An approval that expires closes the gate for tokens at that instant.
	s.grant(client.NewID(), map[string]any{"expiresAt": client.Timestamp(time.Now().Add(2 * time.Second))})
	s.start(3600)
	g := s.token(map[string]any{"ttlSeconds": 900})
	if at := s.expires(g); at.After(time.Now().Add(2 * time.Second)) {
		t.Errorf("the token outlives its approval: %s", at)
	}
	testwait.Until(t, "gate closed", func() bool { return s.request(nil).Status != 200 })
	s.request(nil).Refused(t, 403, "APPROVAL_REQUIRED")
	if s.active(g.Token) {
		t.Error("active after the approval expired")
	}
}

func TestPolicyGateIsOpenedByAServiceAndAHumanGateIsNot(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(c *client.WorkContract) { c.ExecutionApproval = "policy_required" })
	policy := s.As("policy")
	v := s.request(nil).Refused(t, 403, "APPROVAL_REQUIRED")
	if v.Member("details").Member("gate").Str() != "policy_required" {
		t.Errorf("%s", v.Raw())
	}
	grant := func() testkit.Answer {
		return s.verdict(policy, "approval.grant_execution", map[string]any{
			"approval": s.approval(policy, client.NewID(), "approved", nil), "ownershipEpoch": 1,
			"operations": []string{"write"}, "resources": []string{"urn:repo:app"}, "expiresAt": client.Timestamp(time.Now().Add(time.Hour)),
		})
	}
	s.accepted("grant by policy", grant())
	s.start(3600)
	if !s.active(s.token(nil).Token) {
		t.Error("not active")
	}
	s.item, s.lease = s.owned(gated), ""
	grant().Refused(t, 403, "AUTH_FORBIDDEN")
	s.request(nil).Refused(t, 403, "APPROVAL_REQUIRED")
}

func TestAnApprovalOfTheEarlierOwnershipOpensNothing(t *testing.T) {
	t.Parallel()
	s := newStand(t, gated)
	approval := client.NewID()
	s.grant(approval, nil)
	s.start(1)
	g := s.token(nil)
	testwait.Until(t, "lease over", func() bool { return s.request(nil).Status == 409 })
	s.m.Offer(s.item, s.worker)
	list := s.Get(s.worker, "/v1/offers").Value(t)
	for _, o := range list.Member("items").Items() {
		if o.Member("workItemId").Str() == s.item {
			s.must(client.Command{Kind: "work.accept_offer"}, map[string]any{"offerId": o.Member("offerId").Str(), "ownershipLeaseSeconds": 86400})
		}
	}
	s.epoch = 2
	s.request(nil).Refused(t, 403, "APPROVAL_REQUIRED")
	s.request(map[string]any{"ownershipEpoch": 1}).Refused(t, 409, "WORK_STALE_OWNERSHIP")
	if s.active(g.Token) {
		t.Error("a token of the earlier ownership is active")
	}
	s.grant(client.NewID(), nil)
	s.start(3600)
	s.request(map[string]any{"approvalId": approval}).Refused(t, 403, "APPROVAL_REQUIRED")
	s.token(nil)
}

func TestTheServiceMayRestartBetweenApprovalAndUse(t *testing.T) {
	t.Parallel()
	s := newStand(t, gated)
	s.grant(client.NewID(), nil)
	s.start(3600)
	before := s.token(nil)
	s.Stop("authz")
	_, s.AuthzURL = s.AuthzReplica("next")
	after := s.token(nil)
	for _, g := range []granted{before, after} {
		if !s.active(g.Token) {
			t.Error("not active after the restart")
		}
	}
	s.Stop("next")
	// What happens while no service is up is found when the next one starts.
	s.m.Expel(s.worker)
	_, s.AuthzURL = s.AuthzReplica("last")
	if s.active(before.Token) || s.active(after.Token) {
		t.Error("a fence was missed")
	}
	testwait.Until(t, "revoked", func() bool { r := s.revocations(); return r[before.TokenID] && r[after.TokenID] })
}

func TestGateDecisionsAreInTheGroupsPolicyLog(t *testing.T) {
	t.Parallel()
	s := newStand(t, gated)
	request, approval := client.NewID(), client.NewID()
	s.askApproval(request, time.Hour, nil)
	s.grant(approval, map[string]any{"requestId": request, "budget": map[string]any{"modelTokenLimit": 100}})
	s.accepted("revoke", s.revoke(s.m.Owner, approval))
	list := s.Get(s.m.Owner, client.Path("v1", "groups", s.m.GroupID, "policy-log")).Value(t)
	var kinds []string
	for _, e := range list.Member("items").Items() {
		kinds = append(kinds, e.Member("decision").Str())
	}
	for _, want := range []string{"approval.execution.granted", "ext.missionweave.approval.execution_revoked"} {
		if !slices.Contains(kinds, want) {
			t.Errorf("%s is not in the Policy Log: %v", want, kinds)
		}
	}
}
