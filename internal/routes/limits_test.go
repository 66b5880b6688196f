package routes_test

import (
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
)

// over checks a refusal by a cooperation limit (COMMANDS.md 7.6).
func over(t *testing.T, a testkit.Answer, policy string, limit int64, rate bool) {
	t.Helper()
	e := a.Refused(t, 429, "RATE_LIMITED")
	d := e.Member("details")
	if d.Member("policyName").Str() != policy || number(t, d.Member("limit")) != limit {
		t.Errorf("details %s", d.Raw())
	}
	after, retry := e.Get("retryAfterMs")
	if retry != rate || e.Member("retryable").Bool() != rate {
		t.Errorf("error %s", e.Raw())
	}
	if n, _ := after.Int(); rate && (n < 1 || n > 60_000) {
		t.Errorf("retryAfterMs %d", n)
	}
	if rate && a.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// override lets a Command through one limit, once.
func override(t *testing.T, s *testkit.Stack, m *testkit.Mission, policy string, who *client.Client, kind, actionID string) string {
	t.Helper()
	id := client.NewID()
	a := s.Post(s.Sign(m.Owner, client.Command{
		Kind: "policy.grant_cooperation_override", GroupID: m.GroupID, MembershipEpoch: 1,
	}, map[string]any{
		"grantId": id, "policyName": policy, "beneficiary": who.Principal(), "targetCommandKind": kind, "targetActionId": actionID,
		"reason": "test", "expiresAt": client.Timestamp(time.Now().Add(time.Hour)),
	}))
	if a.Status != 201 {
		t.Fatalf("override: %d %s", a.Status, a.Body)
	}
	return id
}

func TestLimitsOfThePolicy(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(func(p *config.Policy) {
		p.MessageRatePerMinute, p.ProposalRatePerMinute = 3, 2
		p.QueuedWorkItems, p.ActiveWorkItems, p.DelegationDepth = 2, 1, 1
	}))
	m := s.NewMission()
	h := employ(t, s, m, "worker")

	t.Run("message_rate", func(t *testing.T) {
		say := func(grant, actionID string) testkit.Answer {
			return h.do(client.Command{
				Kind: "message.post", ConversationID: m.Conversation, ActionID: actionID, CooperationOverrideGrantID: grant,
			}, testkit.Message("hello"))
		}
		for range 3 {
			if a := say("", ""); a.Status != 201 {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
		}
		over(t, say("", ""), "message_rate", 3, true)
		action := client.NewID()
		if a := say(override(t, s, m, "message_rate", h.agent, "message.post", action), action); a.Status != 201 {
			t.Errorf("with a grant: %d %s", a.Status, a.Body)
		}
		over(t, say("", ""), "message_rate", 3, true)
		// Others have a rate of their own.
		m.Say("not held up")
	})
	t.Run("proposal_rate", func(t *testing.T) {
		propose := func(goal string) testkit.Answer {
			return h.do(client.Command{Kind: "work.propose"}, map[string]any{
				"proposalId": client.NewID(), "contract": differs(m.Contract(), goal),
			})
		}
		for _, goal := range []string{"One.", "Two."} {
			if a := propose(goal); a.Status != 201 {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
		}
		over(t, propose("Three."), "proposal_rate", 2, true)
	})
	t.Run("queued_work_items and active_work_items", func(t *testing.T) {
		take := func(goal string) (id string, a testkit.Answer) {
			id = authorize(m, differs(m.Contract(), goal))
			m.Offer(id, h.agent)
			offers := s.Get(h.agent, "/v1/offers").Value(t).Member("items")
			mine := find(listed(offers), "workItemId", id)
			return id, h.do(client.Command{Kind: "work.accept_offer", WorkItemID: id}, map[string]any{"offerId": mine[0].Member("offerId").Str()})
		}
		first, a := take("Take one.")
		if a.Status != 201 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		second, a := take("Take two.")
		if a.Status != 201 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		_, a = take("Take three.")
		over(t, a, "queued_work_items", 2, false)
		h.start(first, 300)
		over(t, h.do(client.Command{Kind: "work.start", WorkItemID: second}, map[string]any{"ownershipEpoch": 1}), "active_work_items", 1, false)
		// The limit holds over all Groups, and tells nothing of them.
		other := s.NewMission()
		other.Admit(h.agent, "worker", 1)
		there := other.Authorize()
		other.Offer(there, h.agent)
		offer := find(listed(s.Get(h.agent, "/v1/offers").Value(t).Member("items")), "workItemId", there)[0]
		a = s.Post(s.Sign(h.agent, client.Command{
			Kind: "work.accept_offer", GroupID: other.GroupID, WorkItemID: there, SessionEpoch: h.socket.Epoch, MembershipEpoch: 1,
		}, map[string]any{"offerId": offer.Member("offerId").Str()}))
		if a.Status != 201 { // accepting is refused above the limit, starting at it
			t.Errorf("%d %s", a.Status, a.Body)
		}
		over(t, s.Post(s.Sign(h.agent, client.Command{
			Kind: "work.start", GroupID: other.GroupID, WorkItemID: there, SessionEpoch: h.socket.Epoch, MembershipEpoch: 1,
		}, map[string]any{"ownershipEpoch": 1})), "active_work_items", 1, false)
	})
	t.Run("delegation_depth", func(t *testing.T) {
		lead := s.Agent("child-coordinator")
		item := authorize(m, differs(m.Contract(), "Hand down."))
		child := func(m *testkit.Mission, group, workItemID string, coordinator *client.Client) testkit.Answer {
			money, tokens := client.Money(1000), int64(10)
			return s.Post(m.Sign(client.Command{Kind: "mission.create_child", WorkItemID: workItemID}, map[string]any{
				"missionId": client.NewID(), "groupId": group, "coordinatorAgentId": coordinator.Principal().ID,
				"objective": "Do a part.", "deadline": client.Timestamp(time.Now().Add(time.Hour)),
				"definitionOfDone": m.Creation()["definitionOfDone"],
				"budget":           client.Budget{Currency: "EUR", FinancialLimit: &money, ModelTokenLimit: &tokens},
			}))
		}
		group := client.NewID()
		if a := child(m, group, item, lead); a.Status != 201 {
			t.Fatalf("child: %d %s", a.Status, a.Body)
		}
		below := s.Attach("", group, m.Coordinator, lead)
		c := differs(m.Contract(), "Hand further down.")
		c.Deadline = client.Timestamp(time.Now().Add(30 * time.Minute))
		few := int64(5)
		c.Budget = client.Budget{ModelTokenLimit: &few}
		grandchild := authorize(below, c)
		a := s.Post(below.Sign(client.Command{Kind: "mission.create_child", WorkItemID: grandchild}, map[string]any{
			"missionId": client.NewID(), "groupId": client.NewID(), "coordinatorAgentId": s.Agent("deep").Principal().ID,
			"objective": "Do less.", "deadline": client.Timestamp(time.Now().Add(20 * time.Minute)),
			"definitionOfDone": m.Creation()["definitionOfDone"], "budget": client.Budget{ModelTokenLimit: &few},
		}))
		over(t, a, "delegation_depth", 1, false)
	})
	t.Run("duplicate_decomposition", func(t *testing.T) {
		c := differs(m.Contract(), "Once.")
		authorize(m, c)
		a := s.Post(m.Sign(client.Command{Kind: "work.authorize", WorkItemID: client.NewID()}, map[string]any{"contract": c}))
		e := a.Refused(t, 429, "RATE_LIMITED")
		if e.Member("details").Member("policyName").Str() != "duplicate_decomposition" {
			t.Errorf("error %s", e.Raw())
		}
	})
	sound(t, s)
}

func TestZeroSwitchesRatesOff(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(func(p *config.Policy) { p.MessageRatePerMinute, p.ProposalRatePerMinute = 0, 0 }))
	m := s.NewMission()
	lines := []byte{}
	for range 130 {
		lines = append(append(lines, m.Sign(client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message("x"))...), '\n')
	}
	a := s.Do(testkit.Request{Method: "POST", URL: s.AuthorityURL + "/v1/commands:batch", Body: lines, Header: map[string]string{"Content-Type": "application/x-ndjson"}})
	if a.Status != 200 {
		t.Fatal(a.Status)
	}
	for i, line := range split(a.Body) {
		if number(t, parse(t, line).Member("status")) != 201 {
			t.Fatalf("Message %d: %s", i, line)
		}
	}
}

func TestMostGraceOfOfflineWork(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(func(p *config.Policy) { p.MaxGraceSeconds = 60 }))
	m := s.NewMission()
	h := employ(t, s, m, "worker")
	id := m.Authorize()
	m.Offer(id, h.agent)
	h.accept(id, 3600)
	lease := h.start(id, 300)
	var doc strictjson.Value
	for _, l := range items(t, s, h.agent, client.Path("v1", "groups", m.GroupID, "work-items", id, "leases")) {
		if l.Member("leaseType").Str() == "execution" {
			doc = l
		}
	}
	now := time.Now()
	conversation := s.Get(h.agent, client.Path("v1", "groups", m.GroupID, "work-items", id)).Value(t).Member("conversationId").Str()
	buffered := func(grace time.Duration) testkit.Answer {
		binding := map[string]any{
			"agentId": h.agent.Principal().ID, "groupId": m.GroupID, "workItemId": id, "sessionEpoch": h.socket.Epoch,
			"ownershipEpoch": 1, "executionLeaseId": lease["executionLeaseId"], "disconnectedAt": client.Timestamp(now),
			"bufferedAt": client.Timestamp(now.Add(time.Millisecond)), "graceDeadline": client.Timestamp(now.Add(grace)),
			"executionLeaseExpiresAt": doc.Member("expiresAt").Str(), "resourceUsageDelta": map[string]any{},
		}
		extensions, err := strictjson.Marshal(map[string]any{
			"urn:missionweaveprotocol:extension:bounded-offline-execution": map[string]any{"version": "0.1.0", "critical": true, "data": binding},
		})
		if err != nil {
			t.Fatal(err)
		}
		return h.do(client.Command{Kind: "message.post", ConversationID: conversation, Extensions: extensions}, testkit.Message("buffered"))
	}
	buffered(61*time.Second).Refused(t, 409, "WORK_LEASE_EXPIRED")
	if a := buffered(59 * time.Second); a.Status != 201 {
		t.Errorf("within the grace: %d %s", a.Status, a.Body)
	}
}
