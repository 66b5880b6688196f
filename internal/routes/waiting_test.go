package routes_test

import (
	"slices"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/testwait"
)

// gated is a contract whose start waits for a human.
func gated(m *testkit.Mission) client.WorkContract {
	c := m.Contract()
	c.Goal = "Publish something."
	c.SideEffectRisk, c.ExecutionApproval = "high_risk", "human_required"
	c.AllowedResources = []client.ResourceGrant{{Resource: "urn:test:site", Operations: []string{"site.publish", "site.read"}}}
	return c
}

func authorize(m *testkit.Mission, c client.WorkContract) string {
	id := client.NewID()
	m.Do(client.Command{Kind: "work.authorize", WorkItemID: id}, map[string]any{"contract": c})
	return id
}

// permit is the MissionOwner's permission that contracts may grant.
func permitted(s *testkit.Stack) *testkit.Mission {
	return s.NewMissionWith(func(creation map[string]any) {
		creation["permissions"] = []client.ResourceGrant{{Resource: "urn:test:*", Operations: []string{"site.publish", "site.read"}}}
	})
}

func approvals(t *testing.T, s *testkit.Stack, reader *client.Client) []strictjson.Value {
	t.Helper()
	return items(t, s, reader, "/v1/approvals")
}

func TestApprovalsWaitForThoseWhoDecide(t *testing.T) {
	s := testkit.Start(t)
	m := permitted(s)
	h := employ(t, s, m, "worker")
	observer := s.Human("observer")
	m.Admit(observer, "observer", 1)
	first, second := authorize(m, gated(m)), m.Authorize()
	m.Offer(first, h.agent)
	m.Offer(second, h.agent)
	h.accept(first, 3600)
	h.accept(second, 3600)
	item := client.Path("v1", "groups", m.GroupID, "work-items", first)

	waiting := approvals(t, s, m.Owner)
	if len(waiting) != 1 {
		t.Fatalf("%d items wait", len(waiting))
	}
	w := waiting[0]
	if w.Member("type").Str() != "execution" || w.Member("id").Str() != first || w.Member("groupId").Str() != m.GroupID ||
		w.Member("workItem").Member("ownerAgentId").Str() != h.agent.Principal().ID || number(t, w.Member("missionRevision")) != 1 ||
		w.Member("why").Member("gate").Str() != "human_required" ||
		!slices.Equal(texts(w.Member("what").Member("operations")), []string{"site.publish", "site.read"}) ||
		!w.Member("until").Exists() || number(t, w.Member("cost").Member("remaining").Member("modelTokens")) != 1000 {
		t.Errorf("item %s", w.Raw())
	}
	for _, reader := range []*client.Client{observer, h.agent, m.Coordinator, s.Human("stranger"), s.As("archival")} {
		if got := approvals(t, s, reader); len(got) != 0 {
			t.Errorf("%s is shown %s", reader.Principal().ID, got[0].Raw())
		}
	}
	gate := func() string {
		t.Helper()
		doc := s.Get(m.Owner, item).Value(t)
		return doc.Member("extensions").Member("urn:missionweave:extension:work-item-links").Member("data").Member("gate").Str()
	}
	if gate() != "awaiting_execution_approval" {
		t.Errorf("gate %q", gate())
	}
	progress := s.Get(m.Owner, client.Path("v1", "missions", m.MissionID, "progress")).Value(t)
	if !slices.Equal(texts(progress.Member("blocked")), []string{first}) {
		t.Errorf("progress %s", progress.Raw())
	}

	// A request says more exactly what is needed.
	request := client.NewID()
	h.must(client.Command{Kind: "ext.missionweave.approval.request_execution", WorkItemID: first}, map[string]any{
		"requestId": request, "ownershipEpoch": 1, "operations": []string{"site.publish"}, "resources": []string{"urn:test:site"},
		"expiresAt": client.Timestamp(time.Now().Add(time.Hour)), "reason": "Everything is written.",
	})
	w = approvals(t, s, m.Owner)[0]
	if w.Member("why").Member("reason").Str() != "Everything is written." || len(listed(w.Member("requests"))) != 1 ||
		!slices.Equal(texts(w.Member("what").Member("operations")), []string{"site.publish"}) ||
		w.Member("why").Member("requestedBy").Member("id").Str() != h.agent.Principal().ID {
		t.Errorf("item %s", w.Raw())
	}
	approval, err := m.Owner.Identity().SignApproval(client.Approval{
		ApprovalID: client.NewID(), Kind: "work_execution", Decision: "approved", MissionID: m.MissionID, GroupID: m.GroupID,
		WorkItemID: first, MissionRevision: 1, ArtifactHashes: []string{}, AcceptancePolicyVersion: "1.0.0",
		Approver: m.Owner.Principal(), Comments: "", Conditions: []string{}, OccurredAt: client.Timestamp(time.Now()),
	})
	if err != nil {
		t.Fatal(err)
	}
	a := s.Post(s.Sign(m.Owner, client.Command{
		Kind: "approval.grant_execution", GroupID: m.GroupID, MembershipEpoch: 1, WorkItemID: first,
	}, map[string]any{
		"approval": approval, "ownershipEpoch": 1, "operations": []string{"site.publish"}, "resources": []string{"urn:test:site"},
		"expiresAt": client.Timestamp(time.Now().Add(time.Hour)), "requestId": request,
	}))
	if a.Status != 201 {
		t.Fatalf("grant: %d %s", a.Status, a.Body)
	}
	if got := approvals(t, s, m.Owner); len(got) != 0 || gate() != "" {
		t.Errorf("%d items after the grant, gate %q", len(got), gate())
	}

	// An ASK.
	authz := s.As("authorization")
	ask := client.NewID()
	asked := map[string]any{
		"requestId": ask, "actionId": client.NewID(), "actionType": "site.publish", "agentId": h.agent.Principal().ID,
		"ownershipEpoch": 1, "operation": "site.publish", "resources": []string{"urn:test:site"},
		"argumentsDigest": sha([]byte("{}")), "argsEqualityVersion": "1", "manifestVersion": "1.0.0", "ruleId": "urn:test:rule",
		"reason": "External publication.", "provenance": []string{"urn:test:record:1"}, "sideEffectClass": "external",
		"expiresAt": client.Timestamp(time.Now().Add(time.Hour)),
	}
	if a := s.Post(s.Sign(authz, client.Command{
		Kind: "ext.missionweave.approval.request_action", GroupID: m.GroupID, WorkItemID: first,
	}, asked)); a.Status != 201 {
		t.Fatalf("request_action: %d %s", a.Status, a.Body)
	}
	waiting = find(approvals(t, s, m.Owner), "type", "action")
	if len(waiting) != 1 || waiting[0].Member("id").Str() != ask || waiting[0].Member("what").Member("argumentsDigest").Str() != sha([]byte("{}")) ||
		!slices.Equal(texts(waiting[0].Member("basis").Member("provenance")), []string{"urn:test:record:1"}) ||
		waiting[0].Member("why").Member("ruleId").Str() != "urn:test:rule" {
		t.Fatalf("asks %v", waiting)
	}

	// The whole Mission.
	lease := h.start(second, 300)
	hash := h.submit(m, second, lease, "the text")
	verifyResult(t, m, second, hash)
	m.Do(client.Command{Kind: "work.cancel", WorkItemID: first}, map[string]any{"reason": "test"})
	m.Do(client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": []string{hash}})
	waiting = approvals(t, s, m.Owner)
	if len(waiting) != 1 {
		t.Fatalf("%d items wait", len(waiting))
	}
	w = waiting[0]
	if w.Member("type").Str() != "mission" || number(t, w.Member("missionRevision")) != 2 ||
		!slices.Equal(texts(w.Member("what").Member("artifactHashes")), []string{hash}) ||
		listed(w.Member("basis").Member("artifacts"))[0].Member("producerAgentId").Str() != h.agent.Principal().ID {
		t.Errorf("item %s", w.Raw())
	}
	if got := approvals(t, s, m.Coordinator); len(got) != 0 {
		t.Errorf("the Coordinator is shown %s", got[0].Raw())
	}
	s.Get(m.Owner, "/v1/approvals?state=decided").Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	sound(t, s)
}

func TestAttentionTellsWhatIsStuck(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMissionWith(func(creation map[string]any) { creation["coordinatorLeaseSeconds"] = 86400 })
	h, idle := employ(t, s, m, "worker"), employ(t, s, m, "idle")
	stuck := func(reader *client.Client, members ...string) []strictjson.Value {
		t.Helper()
		return find(now(t, s, reader, "/v1/attention"), members...)
	}
	if got := stuck(m.Owner); len(got) != 0 {
		t.Errorf("a healthy Mission: %s", got[0].Raw())
	}

	lapsing, spending, late := m.Authorize(), authorize(m, differs(m.Contract(), "Spend.")), authorize(m, soon(m.Contract()))
	for _, id := range []string{lapsing, spending} {
		m.Offer(id, h.agent)
		h.accept(id, 3600)
	}
	h.start(lapsing, 1)
	lease := h.start(spending, 300)
	h.must(client.Command{Kind: "ext.missionweaveprotocol.core.resource_usage_record", WorkItemID: spending},
		with(lease, map[string]any{"usageDelta": map[string]any{"modelTokens": 1000}}))
	offered := authorize(m, differs(m.Contract(), "Offer."))
	m.Offer(offered, idle.agent)
	offer := s.Get(idle.agent, "/v1/offers").Value(t).Member("items")
	idle.must(client.Command{Kind: "ext.missionweave.work.offer_decline", WorkItemID: offered}, map[string]any{
		"offerId": listed(offer)[0].Member("offerId").Str(), "declineReason": "capacity",
	})
	needed := authorize(m, differs(m.Contract(), "Fail."))
	c := differs(m.Contract(), "Need it.")
	c.DependencyWorkItemIDs = []string{needed}
	needing := authorize(m, c)
	m.Do(client.Command{Kind: "work.cancel", WorkItemID: needed}, map[string]any{"reason": "test"})

	testwait.Until(t, "the Execution Lease's end", func() bool {
		return len(stuck(m.Owner, "type", "lease_expired", "workItemId", lapsing, "reason", "execution")) == 1
	})
	testwait.Until(t, "the missed deadline", func() bool { return len(stuck(m.Owner, "type", "deadline_missed", "workItemId", late)) == 1 })
	for _, want := range [][]string{
		{"type", "budget_exhausted", "workItemId", spending, "reason", "work_item"},
		{"type", "work_stuck", "workItemId", offered, "reason", "no_open_offer"},
		{"type", "work_stuck", "workItemId", needing, "reason", "dependency_cancelled", "subject", needed},
	} {
		for _, reader := range []*client.Client{m.Owner, m.Coordinator} {
			if got := stuck(reader, want...); len(got) != 1 {
				t.Errorf("%v: %d items", want, len(got))
			}
		}
	}
	for _, v := range stuck(h.agent) {
		if id := v.Member("workItemId").Str(); id != lapsing && id != spending {
			t.Errorf("a Worker is shown %s", v.Raw())
		}
	}
	if len(stuck(h.agent)) != 2 || len(stuck(idle.agent)) != 0 || len(stuck(s.Human("stranger"))) != 0 || len(stuck(s.As("archival"))) != 0 {
		t.Error("attention shows others what is not theirs")
	}
	// A WorkItem whose account is used up is paused, and says so.
	doc := s.Get(m.Owner, client.Path("v1", "groups", m.GroupID, "work-items", spending)).Value(t)
	if !doc.Member("extensions").Member("urn:missionweave:extension:work-item-links").Member("data").Member("paused").Bool() {
		t.Errorf("WorkItem %s", doc.Raw())
	}
	// Leases say what the clock says, whether or not a timer has recorded it.
	leases := find(items(t, s, m.Owner, client.Path("v1", "groups", m.GroupID, "work-items", lapsing, "leases")), "leaseType", "execution")
	if len(leases) != 1 || leases[0].Member("state").Str() != "expired" {
		t.Errorf("leases %v", leases)
	}
	if got := find(items(t, s, m.Owner, client.Path("v1", "groups", m.GroupID, "leases")), "leaseType", "coordinator"); len(got) != 1 {
		t.Errorf("%d Coordinator leases", len(got))
	}
	items(t, s, m.Owner, "/v1/attention") // nothing more will lapse: the pages must agree
	// Work that lost its owner.
	m.Expel(h.agent)
	if got := stuck(m.Owner, "type", "work_stuck", "reason", "owner_gone"); len(got) != 2 {
		t.Errorf("%d WorkItems without owner", len(got))
	}
	cancel(t, s, m)
	if got := stuck(m.Owner); len(got) != 0 {
		t.Errorf("a Mission that has ended: %s", got[0].Raw())
	}
	sound(t, s)
}

func TestAttentionTellsOfAMissionWithoutCoordinator(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMissionWith(func(creation map[string]any) {
		creation["coordinatorLeaseSeconds"] = 1
		creation["deadline"] = client.Timestamp(time.Now().Add(1500 * time.Millisecond))
	})
	testwait.Until(t, "both", func() bool {
		got := now(t, s, m.Owner, "/v1/attention")
		return len(find(got, "type", "lease_expired", "reason", "coordinator", "subject", m.Coordinator.Principal().ID)) == 1 &&
			len(find(got, "type", "deadline_missed", "reason", "mission")) == 1
	})
}

func differs(c client.WorkContract, goal string) client.WorkContract { c.Goal = goal; return c }

func soon(c client.WorkContract) client.WorkContract {
	c.Goal, c.Deadline = "Be late.", client.Timestamp(time.Now().Add(2*time.Second))
	return c
}

// present is a presence record of a socket's Agent.
func present(h *hand, status string, life time.Duration) map[string]any {
	return map[string]any{
		"agentId": h.agent.Principal().ID, "sessionEpoch": h.socket.Epoch, "status": status,
		"capacity":               map[string]any{"maxSlots": 4, "activeSlots": 1, "availableSlots": 3, "queuedItems": 0},
		"capabilityAvailability": []any{}, "lastHeartbeat": client.Timestamp(time.Now()),
		"expiresAt": client.Timestamp(time.Now().Add(life)),
	}
}

func TestPresenceIsKnownAtEveryReplica(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	h, quiet := employ(t, s, m, "worker"), employ(t, s, m, "quiet")
	_, other := s.Replica("second")
	path := client.Path("v1", "groups", m.GroupID, "presence")
	status := func(base string, reader *client.Client) map[string]string {
		t.Helper()
		a := s.Do(testkit.Request{Method: "GET", URL: base + path, Token: s.Token(reader)})
		if a.Status != 200 {
			t.Fatalf("presence: %d %s", a.Status, a.Body)
		}
		out := map[string]string{}
		for _, member := range listed(a.Value(t).Member("members")) {
			out[member.Member("agentId").Str()] = member.Member("presence").Member("status").Str()
		}
		return out
	}
	say := func(socket *testkit.Socket, record map[string]any) {
		t.Helper()
		socket.Send("PING", map[string]any{"nonce": testkit.Nonce(), "sentAt": client.Timestamp(time.Now()), "presence": record})
		socket.Expect("PING")
	}
	id := h.agent.Principal().ID
	if got := status(s.AuthorityURL, m.Owner); len(got) != 3 || got[id] != "" {
		t.Errorf("nobody said anything: %v", got)
	}
	say(h.socket, present(h, "online", time.Minute))
	for _, reader := range []*client.Client{m.Owner, m.Coordinator} {
		if got := status(s.AuthorityURL, reader); got[id] != "online" || got[quiet.agent.Principal().ID] != "" {
			t.Errorf("at the same replica: %v", got)
		}
		testwait.Until(t, "presence at the other replica", func() bool { return status(other, reader)[id] == "online" })
	}
	say(h.socket, present(h, "busy", time.Minute))
	if got := status(s.AuthorityURL, m.Owner); got[id] != "busy" {
		t.Errorf("the latest word: %v", got)
	}
	testwait.Until(t, "the latest word at the other replica", func() bool { return status(other, m.Owner)[id] == "busy" })

	for _, base := range []string{s.AuthorityURL, other} {
		get := func(reader *client.Client) testkit.Answer {
			return s.Do(testkit.Request{Method: "GET", URL: base + path, Token: s.Token(reader)})
		}
		get(h.agent).Refused(t, 403, "AUTH_FORBIDDEN")
		get(s.Human("stranger")).Refused(t, 404, "GROUP_NOT_FOUND")
		get(s.As("archival")).Refused(t, 403, "AUTH_FORBIDDEN")
	}
	other2 := s.NewMission()
	if got := s.Get(other2.Owner, client.Path("v1", "groups", other2.GroupID, "presence")).Value(t); find(listed(got.Member("members")), "agentId", id) != nil {
		t.Errorf("presence in a Group that is not shared: %s", got.Raw())
	}

	// A presence ends with its time, with its session and with its connection.
	say(quiet.socket, present(quiet, "away", 300*time.Millisecond))
	testwait.Until(t, "its end", func() bool {
		return status(other, m.Owner)[quiet.agent.Principal().ID] == "" && status(s.AuthorityURL, m.Owner)[quiet.agent.Principal().ID] == ""
	})
	h.socket.Close()
	testwait.Until(t, "the end of the connection", func() bool { return status(other, m.Owner)[id] == "" && status(s.AuthorityURL, m.Owner)[id] == "" })
	h.socket = s.Login(h.agent)
	say(h.socket, present(h, "online", time.Minute))
	testwait.Until(t, "the new session", func() bool { return status(other, m.Owner)[id] == "online" })
	s.LoginAt(other, h.agent)
	testwait.Until(t, "the takeover", func() bool { return status(other, m.Owner)[id] == "" && status(s.AuthorityURL, m.Owner)[id] == "" })
}
