package routes_test

import (
	"slices"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
)

// newChild hands a WorkItem to a child Mission.
func newChild(t *testing.T, s *testkit.Stack, m *testkit.Mission, workItemID string, tokens int64) *testkit.Mission {
	t.Helper()
	lead := s.Agent("child-coordinator")
	missionID, groupID := client.NewID(), client.NewID()
	a := s.Post(m.Sign(client.Command{Kind: "mission.create_child", WorkItemID: workItemID}, map[string]any{
		"missionId": missionID, "groupId": groupID, "coordinatorAgentId": lead.Principal().ID,
		"objective": "Do a part.", "deadline": client.Timestamp(time.Now().Add(55 * time.Minute)),
		"definitionOfDone": m.Creation()["definitionOfDone"], "budget": client.Budget{ModelTokenLimit: &tokens},
	}))
	if a.Status != 201 {
		t.Fatalf("mission.create_child: %d %s", a.Status, a.Body)
	}
	return s.Attach(missionID, groupID, m.Coordinator, lead)
}

func tokens(m *testkit.Mission, goal string, n int64, deadline time.Duration) client.WorkContract {
	c := differs(m.Contract(), goal)
	c.Deadline = client.Timestamp(time.Now().Add(deadline))
	c.Budget = client.Budget{ModelTokenLimit: &n}
	return c
}

func TestBudgetIsTheWholeTree(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	h := employ(t, s, m, "worker")
	c := m.Contract()
	item := authorize(m, c)
	child := newChild(t, s, m, item, 500)
	part := authorize(child, tokens(m, "A part.", 100, 50*time.Minute))
	below := employ(t, s, child, "child-worker")
	child.Offer(part, below.agent)
	below.accept(part, 3000)
	lease := below.start(part, 300)
	use := func(n int64) {
		t.Helper()
		below.must(client.Command{Kind: "ext.missionweaveprotocol.core.resource_usage_record", WorkItemID: part},
			with(lease, map[string]any{"usageDelta": map[string]any{"modelTokens": n}}))
	}
	use(40)

	accounts := func(reader *client.Client, groupID string) map[string]strictjson.Value {
		t.Helper()
		out := map[string]strictjson.Value{}
		a := s.Get(reader, client.Path("v1", "groups", groupID, "budget"))
		if a.Status != 200 {
			t.Fatalf("budget: %d %s", a.Status, a.Body)
		}
		for _, account := range listed(a.Value(t).Member("accounts")) {
			id := account.Member("account").Member("id").Str()
			if _, twice := out[id]; twice {
				t.Errorf("account %s stands twice", id)
			}
			if parent := account.Member("parent"); parent.Exists() {
				if _, known := out[parent.Member("id").Str()]; !known {
					t.Errorf("account %s stands before its parent", id)
				}
			} else if len(out) > 0 {
				t.Errorf("account %s has no parent", id)
			}
			out[id] = account
		}
		return out
	}
	modelTokens := func(account strictjson.Value, member string) int64 {
		t.Helper()
		return number(t, account.Member(member).Member("modelTokens"))
	}
	for _, reader := range []*client.Client{m.Owner, m.Coordinator, s.As("archival")} {
		tree := accounts(reader, m.GroupID)
		if len(tree) != 4 {
			t.Fatalf("%s sees %d accounts", reader.Principal().ID, len(tree))
		}
		for _, id := range []string{m.MissionID, item, child.MissionID, part} {
			if modelTokens(tree[id], "usage") != 40 {
				t.Errorf("usage %s", tree[id].Raw())
			}
		}
		if tree[part].Member("groupId").Str() != child.GroupID || tree[child.MissionID].Member("parent").Member("id").Str() != item ||
			modelTokens(tree[part], "remaining") != 60 || modelTokens(tree[child.MissionID], "remaining") != 400 {
			t.Errorf("accounts %v", tree)
		}
	}
	// A member of the parent alone sees the child as one account.
	if tree := accounts(h.agent, m.GroupID); len(tree) != 3 || modelTokens(tree[child.MissionID], "usage") != 40 {
		t.Errorf("a Worker of the parent sees %v", tree)
	}
	if tree := accounts(child.Coordinator, child.GroupID); len(tree) != 2 || tree[child.MissionID].Member("parent").Exists() {
		t.Errorf("the child's Coordinator sees %v", tree)
	}

	// Exhaustion above pauses what is below, and every account says so.
	use(60)
	tree := accounts(m.Owner, m.GroupID)
	if !tree[part].Member("paused").Bool() || tree[child.MissionID].Member("paused").Bool() ||
		!slices.Equal(texts(tree[part].Member("exhausted")), []string{"modelTokens"}) {
		t.Errorf("accounts %v", tree)
	}
	sound(t, s)
}

func TestPauseComesFromAboveToo(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	item := authorize(m, tokens(m, "Hand down.", 100, time.Hour))
	child := newChild(t, s, m, item, 100)
	spent := authorize(child, tokens(m, "Spend.", 100, 50*time.Minute))
	below := employ(t, s, child, "child-worker")
	child.Offer(spent, below.agent)
	below.accept(spent, 3000)
	lease := below.start(spent, 300)
	free := differs(m.Contract(), "Costs nothing.")
	free.Deadline, free.Budget = client.Timestamp(time.Now().Add(50*time.Minute)), client.Budget{ToolCallLimit: new(int64)}
	idle := authorize(child, free)
	below.must(client.Command{Kind: "ext.missionweaveprotocol.core.resource_usage_record", WorkItemID: spent},
		with(lease, map[string]any{"usageDelta": map[string]any{"modelTokens": 100}}))
	paused := func(id string) bool {
		doc := s.Get(child.Coordinator, client.Path("v1", "groups", child.GroupID, "work-items", id)).Value(t)
		return doc.Member("extensions").Member("urn:missionweave:extension:work-item-links").Member("data").Member("paused").Bool()
	}
	if !paused(spent) || !paused(idle) {
		t.Errorf("paused: %t %t", paused(spent), paused(idle))
	}
	for _, account := range listed(s.Get(child.Coordinator, client.Path("v1", "groups", child.GroupID, "budget")).Value(t).Member("accounts")) {
		if !account.Member("paused").Bool() {
			t.Errorf("account %s", account.Raw())
		}
	}
	progress := s.Get(child.Coordinator, client.Path("v1", "missions", child.MissionID, "progress")).Value(t)
	if progress.Member("blocked").Len() != 2 {
		t.Errorf("progress %s", progress.Raw())
	}
}

func TestProgressFollowsTheGraph(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	h := employ(t, s, m, "worker")
	link := func(goal string, needs ...string) string {
		c := differs(m.Contract(), goal)
		c.DependencyWorkItemIDs = append([]string{}, needs...)
		return authorize(m, c)
	}
	a := link("A.")
	b, short := link("B.", a), link("Short.", a)
	last := link("Last.", b, short)
	path := client.Path("v1", "missions", m.MissionID, "progress")
	read := func() strictjson.Value { return s.Get(h.agent, path).Value(t) }
	item := func(id string) strictjson.Value { return find(listed(read().Member("workItems")), "workItemId", id)[0] }

	if got := texts(read().Member("criticalPath")); len(got) != 3 || got[0] != a || got[2] != last {
		t.Errorf("critical path %v", got)
	}
	if got := texts(item(last).Member("waiting")); !slices.Equal(got, []string{b, short}) {
		t.Errorf("waiting for %v", got)
	}
	if read().Member("required").Len() != 4 {
		t.Errorf("required %s", read().Member("required").Raw())
	}

	// A failed dependency blocks until something stands in for it.
	m.Do(client.Command{Kind: "work.cancel", WorkItemID: a}, map[string]any{"reason": "test"})
	if got := texts(read().Member("blocked")); len(got) != 2 {
		t.Errorf("blocked %v", got)
	}
	instead := client.NewID()
	m.Do(client.Command{Kind: "work.authorize", WorkItemID: instead}, map[string]any{
		"contract": differs(m.Contract(), "Instead."), "replacesWorkItemId": a,
	})
	if got := read(); got.Member("blocked").Len() != 0 || item(instead).Member("replacesWorkItemId").Str() != a {
		t.Errorf("progress %s", got.Raw())
	}
	m.Offer(instead, h.agent)
	h.accept(instead, 3600)
	lease := h.start(instead, 300)
	h.must(client.Command{Kind: "ext.missionweaveprotocol.core.work_execution_lease_renew", WorkItemID: instead},
		with(lease, map[string]any{"leaseSeconds": 600, "progress": client.Progress{
			CurrentPhase: "Work", CompletedMilestones: []string{}, NextCheckpoint: "End", Blockers: []string{"No paper."},
			UpdatedCompletionEstimate: client.Timestamp(time.Now()), EvidenceIDs: []string{},
		}}))
	if got := read(); !slices.Equal(texts(got.Member("blocked")), []string{instead}) || item(instead).Member("ownerAgentId").Str() != h.agent.Principal().ID {
		t.Errorf("progress %s", got.Raw())
	}
	hash := h.submit(m, instead, lease, "the text")
	verifyResult(t, m, instead, hash)
	for _, id := range []string{b, short} {
		if got := item(id).Member("waiting").Len(); got != 0 {
			t.Errorf("%s waits for %d", id, got)
		}
	}
	if got := texts(read().Member("criticalPath")); len(got) != 2 || got[1] != last {
		t.Errorf("critical path %v", got)
	}
	if got := texts(read().Member("required")); len(got) != 3 || slices.Contains(got, a) {
		t.Errorf("required %v", got)
	}
}

func TestMissionsAreFilteredAndPaged(t *testing.T) {
	s := testkit.Start(t)
	first, second, third := s.NewMission(), s.NewMission(), s.NewMission()
	item := first.Authorize()
	child := newChild(t, s, first, item, 10)
	cancel(t, s, third)
	count := func(reader *client.Client, query string, want ...string) {
		t.Helper()
		var got []string
		for _, v := range now(t, s, reader, "/v1/missions"+query) {
			got = append(got, v.Member("missionId").Str())
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	owner := "owner=" + esc(s.Owner.Principal().ID)
	count(s.Owner, "", first.MissionID, second.MissionID, third.MissionID, child.MissionID)
	count(s.Owner, "?state=cancelled", third.MissionID)
	count(s.Owner, "?"+owner, first.MissionID, second.MissionID, third.MissionID)
	count(s.Owner, "?"+owner+"&state=active", first.MissionID, second.MissionID)
	count(s.Owner, "?owner="+esc(first.Coordinator.Principal().ID), child.MissionID)
	count(s.Owner, "?coordinator="+esc(child.Coordinator.Principal().ID), child.MissionID)
	count(child.Coordinator, "", child.MissionID)
	count(second.Coordinator, "?"+owner, second.MissionID)
	count(s.Human("stranger"), "")
	items(t, s, s.Owner, "/v1/missions")

	tree := func(reader *client.Client, m *testkit.Mission, want ...string) {
		t.Helper()
		var got []string
		for _, v := range listed(s.Get(reader, client.Path("v1", "missions", m.MissionID, "tree")).Value(t).Member("missions")) {
			got = append(got, v.Member("missionId").Str())
		}
		if !slices.Equal(got, want) {
			t.Errorf("tree %v, want %v", got, want)
		}
	}
	tree(s.Owner, first, first.MissionID, child.MissionID)
	tree(s.Owner, child, first.MissionID, child.MissionID)
	tree(child.Coordinator, child, child.MissionID)
	s.Get(child.Coordinator, client.Path("v1", "missions", first.MissionID)).Refused(t, 404, "GROUP_NOT_FOUND")

	// WorkItems by state and owner, in pages.
	h := employ(t, s, second, "worker")
	var all []string
	for _, goal := range []string{"1.", "2.", "3.", "4.", "5."} {
		all = append(all, authorize(second, differs(second.Contract(), goal)))
	}
	second.Offer(all[0], h.agent)
	second.Offer(all[1], h.agent)
	h.accept(all[0], 3600)
	group := client.Path("v1", "groups", second.GroupID, "work-items")
	for query, want := range map[string][]string{
		"":                                      all,
		"?state=open":                           all[2:],
		"?state=offered":                        all[1:2],
		"?state=queued":                         all[:1],
		"?state=verified":                       nil,
		"?owner=" + esc(h.agent.Principal().ID): all[:1],
		"?state=open&owner=" + esc(h.agent.Principal().ID): nil,
		"?owner=" + esc(second.Coordinator.Principal().ID): nil,
	} {
		var got []string
		for _, v := range now(t, s, h.agent, group+query) {
			got = append(got, v.Member("workItemId").Str())
		}
		want = slices.Sorted(slices.Values(want))
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	items(t, s, h.agent, group)
}
