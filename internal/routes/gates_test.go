package routes_test

import (
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/testwait"
)

// owned authorizes work under a contract and lets the Worker accept it.
func owned(m *testkit.Mission, h *hand, goal string, change func(*client.WorkContract)) string {
	c := differs(m.Contract(), goal)
	c.AllowedResources = []client.ResourceGrant{{Resource: "urn:test:site", Operations: []string{"site.publish", "site.read"}}}
	change(&c)
	id := authorize(m, c)
	m.Offer(id, h.agent)
	h.accept(id, 3600)
	return id
}

// open is a service's signed agreement to a start.
func open(s *testkit.Stack, who *client.Client, m *testkit.Mission, item string) testkit.Answer {
	approval, err := who.Identity().SignApproval(client.Approval{
		ApprovalID: client.NewID(), Kind: "work_execution", Decision: "approved", MissionID: m.MissionID, GroupID: m.GroupID,
		WorkItemID: item, MissionRevision: 1, ArtifactHashes: []string{}, AcceptancePolicyVersion: "1.0.0",
		Approver: who.Principal(), Conditions: []string{}, OccurredAt: client.Timestamp(time.Now()),
	})
	if err != nil {
		return testkit.Answer{Body: []byte(err.Error())}
	}
	return s.Post(s.Sign(who, client.Command{Kind: "approval.grant_execution", GroupID: m.GroupID, WorkItemID: item}, map[string]any{
		"approval": approval, "ownershipEpoch": 1, "operations": []string{"site.publish"}, "resources": []string{"urn:test:site"},
		"expiresAt": client.Timestamp(time.Now().Add(time.Hour)),
	}))
}

// A policy service is shown the gates that it may open, in every Group, and no other.
func TestPolicyGatesWaitForThePolicyService(t *testing.T) {
	s := testkit.Start(t)
	policy := s.As("policy")
	var gates []string
	var missions []*testkit.Mission
	for range 2 {
		m := permitted(s)
		h := employ(t, s, m, "worker")
		gates = append(gates, owned(m, h, "By policy.", func(c *client.WorkContract) { c.ExecutionApproval = "policy_required" }))
		owned(m, h, "By a human.", func(c *client.WorkContract) { c.ExecutionApproval = "human_required" })
		owned(m, h, "By nobody.", func(*client.WorkContract) {})
		missions = append(missions, m)
	}
	shown := func() map[string]strictjson.Value {
		t.Helper()
		out := map[string]strictjson.Value{}
		for _, w := range approvals(t, s, policy) {
			out[w.Member("id").Str()] = w
		}
		return out
	}
	got := shown()
	for _, id := range gates {
		w := got[id]
		if w.Member("type").Str() != "execution" || w.Member("why").Member("gate").Str() != "policy_required" || !w.Member("cost").Exists() || !w.Member("until").Exists() {
			t.Errorf("gate of %s: %s", id, w.Raw())
		}
	}
	if len(got) != len(gates) {
		t.Errorf("%d items, want %d", len(got), len(gates))
	}
	for _, role := range []string{"archival", "registry", "metering"} {
		if n := len(approvals(t, s, s.As(role))); n != 0 {
			t.Errorf("the %s service is shown %d", role, n)
		}
	}
	if a := open(s, policy, missions[0], gates[0]); a.Status != 201 {
		t.Fatalf("grant: %d %s", a.Status, a.Body)
	}
	if got = shown(); len(got) != 1 || !got[gates[1]].Exists() {
		t.Errorf("%d items after the grant", len(got))
	}
	cancel(t, s, missions[1])
	if got = shown(); len(got) != 0 {
		t.Errorf("%d items of Missions that have ended", len(got))
	}
}

// The Organization itself may ask for an approval where the contract asks for none.
func TestTheOrganizationGatesRisksByItsSetting(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(func(p *config.Policy) { p.ExecutionApprovalFrom = "reversible" }))
	m := permitted(s)
	h := employ(t, s, m, "worker")
	risky := owned(m, h, "Outside.", func(c *client.WorkContract) { c.SideEffectRisk = "reversible" })
	mild := owned(m, h, "Inside.", func(c *client.WorkContract) { c.SideEffectRisk = "none" })
	begin := func(id string) testkit.Answer {
		return h.do(client.Command{Kind: "work.start", WorkItemID: id}, map[string]any{"ownershipEpoch": 1, "executionLeaseSeconds": 300})
	}
	const rule = "urn:missionweave:policy:execution-approval-from:reversible"
	v := begin(risky).Refused(t, 403, "APPROVAL_REQUIRED")
	if v.Member("details").Member("ruleId").Str() != rule {
		t.Errorf("the rule is not named: %s", v.Raw())
	}
	if a := begin(mild); a.Status != 201 {
		t.Errorf("work of a lesser risk: %d %s", a.Status, a.Body)
	}
	for _, reader := range []*client.Client{m.Owner, s.As("policy")} {
		got := approvals(t, s, reader)
		if len(got) != 1 || got[0].Member("id").Str() != risky || got[0].Member("why").Member("ruleId").Str() != rule {
			t.Errorf("%s is shown %d items: %v", reader.Principal().ID, len(got), got)
		}
	}
	if a := open(s, s.As("policy"), m, risky); a.Status != 201 {
		t.Fatalf("grant: %d %s", a.Status, a.Body)
	}
	if a := begin(risky); a.Status != 201 {
		t.Errorf("after the grant: %d %s", a.Status, a.Body)
	}
	sound(t, s)
}

// Work that its owner had to start by now is stuck, though its lease goes on.
func TestAttentionTellsOfAMissedStart(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	h := employ(t, s, m, "worker")
	take := func(goal string) string {
		t.Helper()
		id := authorize(m, differs(m.Contract(), goal))
		m.Offer(id, h.agent)
		for _, o := range s.Get(h.agent, "/v1/offers").Value(t).Member("items").Items() {
			h.must(client.Command{Kind: "work.accept_offer", WorkItemID: id}, map[string]any{
				"offerId": o.Member("offerId").Str(), "ownershipLeaseSeconds": 3600, "startBy": client.Timestamp(time.Now().Add(2 * time.Second)),
			})
		}
		return id
	}
	started := take("Start.")
	h.start(started, 300)
	missed := take("Miss.")
	var found []strictjson.Value
	testwait.Until(t, "the missed start", func() bool {
		found = find(now(t, s, m.Owner, "/v1/attention"), "workItemId", missed)
		return len(found) > 0
	})
	if w := found[0]; w.Member("type").Str() != "lease_expired" || w.Member("reason").Str() != "start_by" ||
		w.Member("subject").Str() != h.agent.Principal().ID || !w.Member("since").Exists() {
		t.Errorf("%s", w.Raw())
	}
	for _, reader := range []*client.Client{m.Coordinator, h.agent} {
		if got := find(now(t, s, reader, "/v1/attention"), "reason", "start_by"); len(got) != 1 {
			t.Errorf("%s is shown %d", reader.Principal().ID, len(got))
		}
	}
	// What was started stays started when it is queued again.
	s.Login(h.agent) // a new session ends the lease and queues the work
	if got := find(now(t, s, m.Owner, "/v1/attention"), "workItemId", started, "reason", "start_by"); len(got) != 0 {
		t.Errorf("work that was started: %s", got[0].Raw())
	}
}
