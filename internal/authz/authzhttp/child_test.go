package authzhttp_test

import (
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/testwait"
)

// A token in a child Mission rests on accounts of the Group above: what is used up
// there ends it here, though nothing happens in its own log.
func TestTheWholeAncestryBoundsATokenOfAChild(t *testing.T) {
	t.Parallel()
	s := newStand(t, nil)
	lead := s.Agent("lead")
	s.m.Admit(lead, "worker", 0)
	leadSession := s.Login(lead)
	parent := client.NewID()
	contract := s.m.Contract()
	contract.Goal = "A part of its own."
	contract.AllowedResources = []client.ResourceGrant{{Resource: "urn:repo:app", Operations: []string{"write"}}}
	s.m.Do(client.Command{Kind: "work.authorize", WorkItemID: parent}, map[string]any{"title": "Part", "contract": contract})
	mission, group := client.NewID(), client.NewID()
	money, tokens := client.Money(1_000_000), int64(1000)
	s.m.Do(client.Command{Kind: "mission.create_child", WorkItemID: parent}, map[string]any{
		"missionId": mission, "groupId": group, "coordinatorAgentId": lead.Principal().ID, "objective": "The part.",
		"definitionOfDone": contract.AcceptanceCriteria, "failurePolicy": "block_parent_work_item",
		"budget":   client.Budget{Currency: "EUR", FinancialLimit: &money, ModelTokenLimit: &tokens},
		"deadline": client.Timestamp(time.Now().Add(6 * time.Hour)), "permissions": contract.AllowedResources,
	})
	as := func(who *client.Client, k *testkit.Socket, cmd client.Command, payload map[string]any) testkit.Answer {
		t.Helper()
		cmd.GroupID, cmd.SessionEpoch, cmd.MembershipEpoch = group, k.Epoch, 1
		if who == lead {
			cmd.CoordinatorEpoch = 1
		}
		a := s.Post(s.Sign(who, cmd, payload))
		if a.Status != 201 {
			t.Fatalf("%s: %d %s", cmd.Kind, a.Status, a.Body)
		}
		return a
	}
	as(lead, leadSession, client.Command{Kind: "membership.change"}, map[string]any{"member": s.worker.Principal(), "role": "worker", "visibilityStartSequence": 1})
	work := func(budget int64) (item, lease string) {
		t.Helper()
		item = client.NewID()
		c := s.m.Contract()
		c.Goal, c.AllowedResources = item, contract.AllowedResources
		c.Deadline = client.Timestamp(time.Now().Add(5 * time.Hour))
		c.Budget = client.Budget{ModelTokenLimit: &budget}
		as(lead, leadSession, client.Command{Kind: "work.authorize", WorkItemID: item}, map[string]any{"title": "x", "contract": c})
		capability := []client.CapabilityRef{{ID: "text.write", Version: "1.0.0"}}
		as(lead, leadSession, client.Command{Kind: "work.offer", WorkItemID: item}, map[string]any{
			"candidateAgentIds": []string{s.worker.Principal().ID},
			"selectionBasis": client.SelectionBasis{
				RequiredCapabilities: capability, VerifiedMatches: capability, AuthorizationEligible: true,
				AvailabilityEstimate: client.Timestamp(time.Now()), ReliabilityEvidence: []string{}, PolicyRulesApplied: []string{"urn:test:rule"},
			},
		})
		for _, o := range s.Get(s.worker, "/v1/offers").Value(t).Member("items").Items() {
			if o.Member("workItemId").Str() == item {
				as(s.worker, s.k, client.Command{Kind: "work.accept_offer", WorkItemID: item}, map[string]any{"offerId": o.Member("offerId").Str()})
			}
		}
		as(s.worker, s.k, client.Command{Kind: "work.start", WorkItemID: item}, map[string]any{"ownershipEpoch": 1, "executionLeaseSeconds": 3600})
		for _, l := range s.Get(s.worker, client.Path("v1", "groups", group, "work-items", item, "leases")).Value(t).Member("items").Items() {
			if l.Member("leaseType").Str() == "execution" {
				lease = l.Member("leaseId").Str()
			}
		}
		return item, lease
	}
	use := func(item, lease string, n int64) {
		t.Helper()
		as(s.worker, s.k, client.Command{Kind: "ext.missionweaveprotocol.core.resource_usage_record", WorkItemID: item}, map[string]any{
			"ownershipEpoch": 1, "executionLeaseId": lease, "usageDelta": map[string]any{"modelTokens": n},
		})
	}
	one, oneLease := work(400)
	two, twoLease := work(600)
	ask := map[string]any{"groupId": group, "workItemId": one, "executionLeaseId": oneLease}
	g := s.token(ask)
	if b := claims(t, g.Token)["budget"].(map[string]any); b["modelTokenLimit"] != 400.0 {
		t.Errorf("%v", b)
	}
	use(two, twoLease, 600)
	use(one, oneLease, 399)
	again := s.token(ask)
	if b := claims(t, again.Token)["budget"].(map[string]any); b["modelTokenLimit"] != 1.0 || !s.active(g.Token) {
		t.Errorf("%v", b)
	}
	// The rest of the child's budget is gone, and with it the whole tree's token.
	use(one, oneLease, 1)
	s.request(ask).Refused(t, 409, "BUDGET_EXCEEDED")
	if s.active(g.Token) || s.active(again.Token) {
		t.Error("active with an exhausted budget")
	}
	testwait.Until(t, "revoked", func() bool { return s.revocations()[g.TokenID] })
	// The parent's end takes the child's tokens along.
	s.m.Do(client.Command{Kind: "work.cancel", WorkItemID: parent}, map[string]any{"reason": "x"})
	if v := s.request(ask); v.Status == 200 {
		t.Errorf("a token in a cancelled child: %s", v.Body)
	}
}
