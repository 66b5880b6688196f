package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/missionweave/server/client"
)

// found has the MissionOwner create one of the Missions that have their ids from
// the start.
func (s *scene) found(ctx context.Context, name, lead string, column int) *mission {
	m := &mission{name: name, id: s.facts.ids[name][0], group: s.facts.ids[name][1], column: column}
	_, err := s.owner.c.Post(ctx, client.Command{Kind: "mission.create", GroupID: m.group}, map[string]any{
		"missionId": m.id, "groupId": m.group, "coordinatorAgentId": s.agentID(lead), "title": name,
		"objective": "Ship the next release of " + name + " (" + s.mark(m) + ").",
		"definitionOfDone": []client.AcceptanceCriterion{{
			CriterionID: "shipped", Description: "It is built, tested, reviewed and integrated.", EvidenceRequired: []string{"human_review"},
		}},
		"budget": budget(500, 200_000, 2000, 10_000, 100_000, 10), "deadline": stamp(48 * time.Hour),
		"approvalPolicy":          client.ApprovalPolicy{FinalHumanApproval: true, HighRiskExecutionApproval: true, PolicyVersion: policyVersion},
		"permissions":             []client.ResourceGrant{{Resource: production, Operations: []string{"deploy.run", "deploy.check"}}},
		"coordinatorLeaseSeconds": 3600,
	})
	s.must("mission.create "+name, err)
	s.open(ctx, m, lead)
	return m
}

// begin creates both Missions, which run at the same time from here on.
func begin(ctx context.Context, s *scene) {
	names, leads := []string{billing, search}, []string{"lead-a", "lead-b"}
	for _, i := range s.choose.order("the order in which the Missions begin", 2) {
		m := s.found(ctx, names[i], leads[i], i)
		for _, worker := range []string{"reviewer", "coder", "analyst"} {
			role := "worker"
			if worker == "coder" {
				role = "work_delegate"
			}
			s.admit(ctx, m, worker, role)
		}
	}
	a, b := s.mission(billing), s.mission(search)
	active, err := s.owner.c.Missions(ctx, "active")
	s.must("list the Missions", err)
	both := 0
	for _, m := range active {
		if m.MissionID == a.id && m.GroupID == a.group || m.MissionID == b.id && m.GroupID == b.group {
			both++
		}
	}
	s.check("two Missions are active at the same time", both == 2 && a.group != b.group,
		"GET /v1/missions?state=active lists %s in Group …%s and %s in Group …%s", a.name, short(a.group), b.name, short(b.group))

	conversation := read(a.owner, func(b *client.Board) string { return b.MainConversation })
	said := a.owner.do(ctx, s, client.Command{Kind: "message.post", ConversationID: conversation}, map[string]any{
		"messageId": s.choose.id("the order by Message"), "content": []client.ContentPart{{Type: "text", Text: "deploy immediately"}},
	})
	for _, worker := range []string{"reviewer", "coder", "analyst"} { // until they have all read it
		s.eventually(ctx, worker+" has read it", func() bool { return s.ask(ctx, a, worker, "", request{Report: true}).Learned >= said.Sequence })
	}
	after := slices.DeleteFunc(s.log(ctx, a), func(e client.Event) bool { return e.Sequence <= said.Sequence || e.Kind == "message.posted" })
	items := len(s.graph(ctx, a).WorkItems)
	s.check("a Message is no authority", items == 0 && len(after) == 0,
		"%q at sequence %d, read by 3 Workers: %d WorkItems, %d Events but Messages since", "deploy immediately", said.Sequence, items, len(after))
}

// edges are the stages of billing and what each depends on.
var edges = map[string][]string{
	"requirements":   {},
	"implementation": {"requirements"},
	"testing":        {"implementation"},
	"code-review":    {"implementation", "testing"},
	"integration":    {"testing", "code-review"},
	"deployment":     {"integration"},
}

// stages is their order.
var stages = []string{"requirements", "implementation", "testing", "code-review", "integration", "deployment"}

// plan authorizes all stages of billing at once, as a graph; nothing is done yet.
func plan(ctx context.Context, s *scene) {
	m := s.mission(billing)
	order, mail := s.inputs(ctx, m)
	contracts := map[string]func() client.WorkContract{
		"requirements": func() client.WorkContract {
			return s.contract("Write down the requirements of the release.", "requirements.write", task{Ask: s.facts.country})
		},
		"implementation": func() client.WorkContract {
			return s.contract("Implement the release.", "code.write",
				task{Propose: "Write a migration for old invoices.", Steps: []string{"design", "code"}, Content: "func bill() {} // " + s.mark(m)})
		},
		"testing": func() client.WorkContract {
			return s.contract("Test the release.", "code.test",
				task{Block: s.facts.missing, Steps: []string{"unit", "acceptance"}, Content: "412 passed. " + s.mark(m)})
		},
		"code-review": func() client.WorkContract {
			return s.contract("Review the code of the release.", "code.review",
				task{Review: &reviewTask{WorkItemID: s.byTitle(m, "implementation"), CriterionIDs: []string{"done"}}},
				func(c *client.WorkContract) { c.RequiredDeliverables[0].MediaType = "application/json" })
		},
		"integration": func() client.WorkContract {
			return s.contract("Integrate what was implemented, tested and reviewed.", "code.write",
				task{Steps: []string{"merge"}, Content: "merged " + s.mark(m)}, reviewed)
		},
		"deployment": func() client.WorkContract {
			return s.contract("Deploy the release to production.", "code.deploy",
				task{Deploy: &deployTask{Operation: "deploy.run", Release: s.facts.release, Order: order, Mail: mail}},
				func(c *client.WorkContract) {
					c.SideEffectRisk, c.ExecutionApproval = "high_risk", "human_required"
					c.AllowedResources = []client.ResourceGrant{{Resource: production, Operations: []string{"deploy.run"}}}
					c.Budget = budget(1, 1000, 10, 60, 600, 1)
				})
		},
	}
	for _, stage := range stages {
		contract := contracts[stage]()
		contract.DependencyWorkItemIDs = []string{}
		for _, before := range edges[stage] {
			contract.DependencyWorkItemIDs = append(contract.DependencyWorkItemIDs, s.byTitle(m, before))
		}
		s.authorize(ctx, m, stage, contract)
	}
	testing := s.byTitle(m, "testing")
	s.offerTo(ctx, m, testing, "coder")
	m.lead.await(ctx, s, testing, "queued")

	g := s.graph(ctx, m)
	wrong, shown := s.misdrawn(m, g)
	s.check("requirements, implementation, testing, code review, integration and deployment are separate WorkItems joined by dependencies",
		wrong == "" && len(g.WorkItems) == len(stages), "GET /v1/missions/…%s/progress: %s%s", short(m.id), shown, wrong)
	waiting := g.node(testing)
	err := s.tried(ctx, m, "coder", testing, "work.start", testing, map[string]any{"ownershipEpoch": s.doc(ctx, m, testing).Owner.OwnershipEpoch})
	s.refused("a stage does not start before its predecessors are verified", err, "INVALID_STATE_TRANSITION", "dependency")
	s.check("work that was accepted too early waits in its queue", waiting.State == "queued" && same(waiting.Waiting, []string{s.byTitle(m, "implementation")}),
		"testing …%s is %s and waits for %s", short(testing), waiting.State, s.named(waiting.Waiting))
}

// misdrawn compares the graph that the server shows with the edges; it returns
// what is wrong and how the graph reads.
func (s *scene) misdrawn(m *mission, g graph) (wrong, shown string) {
	var parts []string
	for _, stage := range stages {
		n := g.node(s.byTitle(m, stage))
		var want []string
		for _, before := range edges[stage] {
			want = append(want, s.byTitle(m, before))
		}
		if n.WorkItemID == "" || !same(n.DependsOn, want) {
			wrong += fmt.Sprintf("; %s depends on %s", stage, s.named(n.DependsOn))
		}
		if len(n.DependsOn) > 0 {
			parts = append(parts, fmt.Sprintf("%s→%s", strings.ReplaceAll(s.named(n.DependsOn), " ", "+"), stage))
		}
	}
	return wrong, strings.Join(parts, ", ")
}

// clarify lets a Worker ask before it accepts; the Coordinator answers with a
// revised contract. It is the requirements stage of billing.
func clarify(ctx context.Context, s *scene) {
	m := s.mission(billing)
	id := s.byTitle(m, "requirements")
	s.offerTo(ctx, m, id, "analyst")
	conversation := m.lead.item(id).ConversationID
	m.lead.awaitThat(ctx, s, "the question arrives", func(*client.Board) bool {
		return slices.ContainsFunc(m.lead.log, func(d client.Delivery) bool {
			return d.Event.Kind == "message.posted" && d.Event.ConversationID == conversation
		})
	})
	messages, err := s.owner.c.Messages(ctx, m.group, conversation)
	s.must("read the Conversation", err)
	state := s.doc(ctx, m, id).State
	s.check("an ambiguity is raised in the WorkItem's Conversation before acceptance",
		len(messages) == 1 && messages[0].Author.ID == s.agentID("analyst") && messages[0].Content[0].Text == s.facts.country && state == "offered",
		"%q by %s in Conversation …%s; the WorkItem is %s", s.facts.country, s.nameOf(messages[0].Author.ID), short(conversation), state)
	revised := s.contract("Write down the requirements of the release for everybody concerned.", "requirements.write",
		task{Steps: []string{"read", "write"}, Content: "Requirements: invoices per tenant. " + s.mark(m)})
	revised.ContractVersion, revised.Deadline = 2, m.lead.item(id).Contract.Deadline
	s.offerTo(ctx, m, id, "analyst", map[string]any{"contract": revised})
	s.verify(ctx, m, id)
	log := s.log(ctx, m)
	accepted, version := of(log, id, "work.offer.accepted"), s.doc(ctx, m, id).Contract.ContractVersion
	changed := of(log, id, "work.contract.revised")
	s.check("a revised Work Contract is accepted anew", version == 2 && len(changed) == 1 && len(accepted) == 1 && accepted[0].Sequence > changed[0].Sequence,
		"contract version %d; work.contract.revised at %d, work.offer.accepted at %d", version, changed[0].Sequence, accepted[0].Sequence)
}

// subWork shows work that others than the Coordinator begin: proposed by a Worker
// and authorized, or delegated under a Grant. It is the implementation stage.
func subWork(ctx context.Context, s *scene) {
	m := s.mission(billing)
	id := s.byTitle(m, "implementation")
	s.offerTo(ctx, m, id, "coder")
	var proposal client.WorkProposal
	m.lead.awaitThat(ctx, s, "the proposal arrives", func(b *client.Board) bool {
		for _, p := range b.Proposals {
			proposal = p
		}
		return len(b.Proposals) > 0
	})
	before := len(s.graph(ctx, m).WorkItems)
	s.check("a proposal creates no executable obligation", before == len(stages),
		"after work.proposed …%s the Mission has the %d WorkItems it had", short(proposal.ProposalID), before)
	child := s.choose.id("WorkItem migration")
	s.call(child, "migration")
	m.lead.do(ctx, s, client.Command{Kind: "work.authorize", WorkItemID: child}, map[string]any{
		"proposalId": proposal.ProposalID, "title": "migration", "parentWorkItemId": id,
	})
	s.offerTo(ctx, m, child, "coder")
	authorized := of(s.log(ctx, m), child, "work.authorized")
	var facts struct {
		ProposalID string `json:"proposalId"`
	}
	s.must("read work.authorized", client.Decode(authorized[0].Payload, &facts))
	parent := s.graph(ctx, m).node(child).ParentWorkItemID
	s.check("sub-work that a Worker proposed is authorized by the Coordinator",
		authorized[0].Actor.ID == s.agentID("lead-a") && facts.ProposalID == proposal.ProposalID && proposal.ProposedBy.ID == s.agentID("coder") && parent == id,
		"work.authorized at %d by %s from proposal …%s of %s, below %s", authorized[0].Sequence, s.nameOf(authorized[0].Actor.ID),
		short(facts.ProposalID), s.nameOf(proposal.ProposedBy.ID), s.nameOf(parent))
	s.verify(ctx, m, child)
	s.delegate(ctx, m, id)
	s.verify(ctx, m, id)
}

// delegate lets the coder author sub-work of its own under a Delegation Grant.
func (s *scene) delegate(ctx context.Context, m *mission, target string) {
	contract := func(goal, capability string) client.WorkContract {
		return s.contract(goal, capability, task{Content: "ok 12 tests"}, func(c *client.WorkContract) { c.Budget = budget(0, 100, 1, 1, 1) })
	}
	c := contract("Write tests for the migration.", "code.test")
	id := s.choose.id("WorkItem migration-tests")
	s.call(id, "migration-tests")
	authorize := map[string]any{"contract": c, "title": "migration tests", "parentWorkItemId": target}
	s.refused("the role alone conveys no authority to author work",
		s.tried(ctx, m, "coder", target, "work.authorize", id, authorize), "AUTH_FORBIDDEN", "role")
	grant := s.choose.id("Delegation Grant")
	m.lead.do(ctx, s, client.Command{Kind: "membership.grant_delegation"}, map[string]any{
		"grantId": grant, "granteeAgentId": s.agentID("coder"), "targetWorkItemId": target,
		"allowedCapabilities": []client.CapabilityRef{{ID: "code.test", Version: "1.0.0"}},
		"budget":              budget(0, 500, 5, 5, 5, 5), "maxDescendantDepth": 1, "expiresAt": stamp(time.Hour),
	})
	authorize["delegationGrantId"] = grant
	s.must("the coder authorizes under its Grant", s.tried(ctx, m, "coder", target, "work.authorize", id, authorize))
	s.must("the coder offers under its Grant",
		s.tried(ctx, m, "coder", target, "work.offer", id, s.offer(c, "analyst", map[string]any{"delegationGrantId": grant})))
	authorized := of(s.log(ctx, m), id, "work.authorized")
	var facts struct {
		DelegationGrantID string `json:"delegationGrantId"`
	}
	s.must("read work.authorized", client.Decode(authorized[0].Payload, &facts))
	s.check("sub-work is delegated under a Delegation Grant", authorized[0].Actor.ID == s.agentID("coder") && facts.DelegationGrantID == grant,
		"work.authorized at %d by %s under Grant …%s", authorized[0].Sequence, s.nameOf(authorized[0].Actor.ID), short(facts.DelegationGrantID))
	wrong := map[string]any{"contract": contract("Rewrite everything.", "code.write"), "title": "rewrite", "parentWorkItemId": target, "delegationGrantId": grant}
	s.refused("a Grant reaches no further than its capabilities",
		s.tried(ctx, m, "coder", target, "work.authorize", s.choose.id("WorkItem rewrite"), wrong), "AUTH_FORBIDDEN", "grant_capability")
	s.verify(ctx, m, id)
	s.check("delegated sub-work is carried out by another Worker", s.doc(ctx, m, id).Owner.AgentID == s.agentID("analyst") && s.doc(ctx, m, id).State == "verified",
		"migration-tests …%s is %s, owned by %s", short(id), s.doc(ctx, m, id).State, s.nameOf(s.doc(ctx, m, id).Owner.AgentID))
}

// byTitle finds a WorkItem by the name it was authorized under.
func (s *scene) byTitle(m *mission, title string) string {
	return read(m.lead, func(b *client.Board) string {
		for _, w := range b.Sorted() {
			if s.nameOf(w.ID) == title {
				return w.ID
			}
		}
		panic(&broken{fmt.Errorf("there is no WorkItem %s", title)})
	})
}

// blockAndResume is the testing stage: it misses something, gives its slot back,
// and goes on where it was when that is there.
func blockAndResume(ctx context.Context, s *scene) {
	m := s.mission(billing)
	id := s.byTitle(m, "testing")
	m.lead.await(ctx, s, id, "blocked")
	item := s.doc(ctx, m, id)
	blocked := of(s.log(ctx, m), id, "work.blocked")
	var why struct {
		Reason             string `json:"reason"`
		RequiredResolution string `json:"requiredResolution"`
	}
	s.must("read work.blocked", client.Decode(blocked[0].Payload, &why))
	s.check("a blocked WorkItem names what is missing and what would resolve it", why.Reason == s.facts.missing && why.RequiredResolution != "",
		"work.blocked at %d: %s %s", blocked[0].Sequence, why.Reason, why.RequiredResolution)
	s.check("blocking checkpoints the progress so far", item.Progress != nil && slices.Contains(item.Progress.CompletedMilestones, "unit"),
		"the WorkItem keeps its milestones: %s", strings.Join(item.Progress.CompletedMilestones, ", "))

	// Both of the coder's slots are free if it can fill both while testing waits.
	other := s.mission(search)
	var fillers []string
	for i := range 2 {
		fillers = append(fillers, s.give(ctx, other, fmt.Sprintf("filler-%d", i), "coder",
			s.contract(fmt.Sprintf("Tidy up, part %d.", i), "code.write", task{Steps: []string{"tidy"}, Gate: "until testing was seen to wait"})))
	}
	for _, f := range fillers {
		other.lead.await(ctx, s, f, "active")
	}
	leases, state := s.leases(ctx, m, id, "execution"), s.doc(ctx, m, id).State
	running := s.ownedIn(ctx, other, "coder", "active")
	s.check("blocking releases the execution slot", len(leases) == 0 && state == "blocked" && same(running, fillers),
		"testing is %s with %d Execution Leases while both slots of the coder hold %s", state, len(leases), s.named(running))
	s.goOn(ctx, other, fillers...)
	for _, f := range fillers {
		s.verify(ctx, other, f)
	}

	m.lead.do(ctx, s, client.Command{Kind: "work.unblock", WorkItemID: id}, map[string]any{"resolution": "It is there now."})
	s.verify(ctx, m, id)
	var at []int64
	leasesUsed := map[string]bool{}
	for _, e := range of(s.log(ctx, m), id, "work.started") {
		var f struct {
			ExecutionLease client.Lease `json:"executionLease"`
		}
		s.must("read work.started", client.Decode(e.Payload, &f))
		at, leasesUsed[f.ExecutionLease.LeaseID] = append(at, e.Sequence), true
	}
	account := s.handedIn(ctx, m, id)
	s.check("unblocked work resumes where it was", len(at) == 2 && len(leasesUsed) == 2 && strings.Contains(account, "did: acceptance") && !strings.Contains(account, "did: unit"),
		"work.started at %v under %d leases; the second run did acceptance and not unit again", at, len(leasesUsed))
}

// shareWorker shows what one Worker owes two Missions: a queue for each, and a
// share of its slots by weight, whatever their Coordinators call urgent.
func shareWorker(ctx context.Context, s *scene) {
	light, heavy := s.mission(s.facts.light), s.mission(s.facts.heavy)
	gated := func(m *mission) string {
		return s.give(ctx, m, "long-"+m.name, "reviewer", s.contract("Read the whole of "+m.name+".", "code.review",
			task{Steps: []string{"half"}, Gate: "until both queues are filled"}, urgent("critical")))
	}
	held := map[*mission]string{}
	for _, m := range []*mission{light, heavy} {
		held[m] = gated(m)
		m.lead.await(ctx, s, held[m], "active")
	}
	one, other := s.ask(ctx, light, "reviewer", "", request{Report: true}), s.ask(ctx, heavy, "reviewer", "", request{Report: true})
	s.check("the shared Worker runs WorkItems of two Missions in its two slots",
		same(s.ownedIn(ctx, light, "reviewer", "active"), []string{held[light]}) && same(s.ownedIn(ctx, heavy, "reviewer", "active"), []string{held[heavy]}) &&
			same(one.Slots, []string{held[light]}) && same(other.Slots, []string{held[heavy]}),
		"…%s of %s and …%s of %s are active; the Worker says so to each of them, and to none about the other", short(held[light]), light.name, short(held[heavy]), heavy.name)

	waiting := s.fill(ctx, light, heavy)
	s.eventually(ctx, "both queues are filled", func() bool {
		one, other = s.ask(ctx, light, "reviewer", "", request{Report: true}), s.ask(ctx, heavy, "reviewer", "", request{Report: true})
		return len(one.Queue) >= len(waiting[light]) && len(other.Queue) >= len(waiting[heavy])
	})
	servedLight, servedHeavy := s.ownedIn(ctx, light, "reviewer", "queued"), s.ownedIn(ctx, heavy, "reviewer", "queued")
	s.check("each Group has a queue of its own",
		same(one.Queue, waiting[light]) && same(other.Queue, waiting[heavy]) && same(servedLight, waiting[light]) && same(servedHeavy, waiting[heavy]),
		"%d WorkItems in the queue for %s and %d in that for %s, in the Worker's words and by GET …/work-items?state=queued", len(one.Queue), light.name, len(other.Queue), heavy.name)
	s.check("each Group has a Cursor of its own", one.Learned > 0 && other.Learned > 0 && one.Learned <= s.head(light) && other.Learned <= s.head(heavy),
		"the Worker has dealt with %s up to sequence %d and with %s up to %d", light.name, one.Learned, heavy.name, other.Learned)

	// One slot is enough to see an order: the other one stays with light's long work.
	s.goOn(ctx, heavy, held[heavy])
	s.verify(ctx, heavy, held[heavy])
	for _, m := range []*mission{light, heavy} {
		for _, id := range waiting[m] {
			s.verify(ctx, m, id)
		}
	}
	s.goOn(ctx, light, held[light])
	s.verify(ctx, light, held[light])
	s.fair(ctx, light, heavy, waiting)
}

// fill puts WorkItems of both Missions into the reviewer's queues, in an order that
// the seed decides. All of the lighter Mission are critical, all of the heavier
// are routine.
func (s *scene) fill(ctx context.Context, light, heavy *mission) map[*mission][]string {
	n := map[*mission]int{light: int(s.choose.number("WorkItems of the lighter Mission", 4, 5)), heavy: int(s.choose.number("WorkItems of the heavier Mission", 7, 8))}
	waiting := map[*mission][]string{}
	for _, i := range s.choose.order("the order in which the queues are filled", n[light]+n[heavy]) {
		m, urgency := heavy, "routine"
		if i < n[light] {
			m, urgency = light, "critical"
		}
		title := fmt.Sprintf("%s-%d", m.name, len(waiting[m]))
		waiting[m] = append(waiting[m], s.give(ctx, m, title, "reviewer",
			s.contract("Review part "+title+".", "code.review", task{Content: s.mark(m)}, urgent(urgency))))
	}
	for m, ids := range waiting {
		for _, id := range ids {
			m.lead.await(ctx, s, id, "queued")
		}
	}
	return waiting
}

// fair judges the order in which the server saw the WorkItems begin. As long as
// both Missions have work waiting, the one with three times the weight gets three
// starts for one of the other; who is served first on a tie may shift that by one
// start of each.
func (s *scene) fair(ctx context.Context, light, heavy *mission, waiting map[*mission][]string) {
	type start struct {
		m  *mission
		id string
		at time.Time
	}
	var order []start
	for m, ids := range waiting {
		for _, e := range of(s.log(ctx, m), "", "work.started") {
			if slices.Contains(ids, e.WorkItemID) {
				order = append(order, start{m, e.WorkItemID, s.when(e)})
			}
		}
	}
	slices.SortFunc(order, func(x, y start) int { return x.at.Compare(y.at) })
	var names []string
	left := map[*mission]int{light: len(waiting[light]), heavy: len(waiting[heavy])}
	contested, got, longest, run := 0, map[*mission]int{}, 0, 0
	for _, x := range order {
		names = append(names, x.m.name)
		if left[light] > 0 && left[heavy] > 0 {
			contested++
			got[x.m]++
			if run++; x.m == light {
				run = 0
			}
			longest = max(longest, run)
		}
		left[x.m]--
	}
	s.check("slots are shared by weight and not by urgency", contested >= 2*(heavyWeight+1) && max(got[heavy]-heavyWeight*got[light], heavyWeight*got[light]-got[heavy]) <= heavyWeight+1,
		"weights %d and 1: of %d starts while both waited %d were of %s (routine) and %d of %s (critical)",
		heavyWeight, contested, got[heavy], heavy.name, got[light], light.name)
	s.check("neither Mission is starved", len(order) == len(waiting[light])+len(waiting[heavy]) && longest <= heavyWeight+1 && slices.Contains(names[:2], heavy.name),
		"work.started in the order %s; %s never waited for more than %d others", strings.Join(names, " "), light.name, longest)
}

// preempt lets a Mission arrive that the Organization puts first at the shared
// Worker: it takes the slot of running work at that work's next checkpoint.
func preempt(ctx context.Context, s *scene) {
	a := s.mission(billing)
	var slow []string
	for i := range 2 {
		slow = append(slow, s.give(ctx, a, fmt.Sprintf("slow-%d", i), "reviewer",
			s.contract(fmt.Sprintf("Read volume %d of billing.", i), "code.review", task{Steps: []string{"half", "rest"}, Gate: "until the hot fix was reviewed"})))
	}
	for _, id := range slow {
		a.lead.await(ctx, s, id, "active")
	}
	s.line.note("hotfix arrives, which the reviewer's own setup ranks above the others")
	h := s.found(ctx, hotfix, "lead-stand-in", 3)
	s.admit(ctx, h, "reviewer", "worker")
	hot := s.give(ctx, h, "hot", "reviewer", s.contract("Review the hot fix.", "code.review", task{Content: "fine"}))
	h.lead.await(ctx, s, hot, "submitted")
	a.lead.awaitThat(ctx, s, "a checkpoint is told", func(b *client.Board) bool {
		return len(b.Items[slow[0]].Checkpoints)+len(b.Items[slow[1]].Checkpoints) > 0
	})
	log := s.log(ctx, a)
	checkpoints := append(of(log, slow[0], "work.checkpointed"), of(log, slow[1], "work.checkpointed")...)
	began := of(s.log(ctx, h), hot, "work.started")
	victim := checkpoints[0].WorkItemID
	s.check("a high-priority arrival preempts at a checkpoint", len(checkpoints) == 1 && len(began) == 1 && !s.when(checkpoints[0]).After(s.when(began[0])),
		"work.checkpointed of %s at %d of billing, %s before work.started of hot in hotfix; %d checkpoint",
		s.nameOf(victim), checkpoints[0].Sequence, s.when(began[0]).Sub(s.when(checkpoints[0])).Round(time.Millisecond), len(checkpoints))
	var saved struct {
		StateArtifactHash string `json:"stateArtifactHash"`
	}
	s.must("read work.checkpointed", client.Decode(checkpoints[0].Payload, &saved))
	state, err := s.owner.c.GetArtifact(ctx, a.group, saved.StateArtifactHash)
	s.must("read the saved state", err)
	owner := s.doc(ctx, a, victim).Owner
	s.check("preempted work keeps its owner and its saved state", owner != nil && string(state) == victim+" after half",
		"Ownership Epoch %d of %s, state sha256:…%s", owner.OwnershipEpoch, s.nameOf(owner.AgentID), short(saved.StateArtifactHash))
	s.goOn(ctx, a, slow...)
	s.verify(ctx, h, hot)
	for _, id := range slow {
		s.verify(ctx, a, id)
	}
	starts := of(s.log(ctx, a), victim, "work.started")
	after := s.doc(ctx, a, victim).Owner
	s.check("preempted work resumes and finishes", len(starts) == 2 && after != nil && after.OwnershipEpoch == owner.OwnershipEpoch && s.doc(ctx, a, victim).State == "verified",
		"work.started at %d and at %d under Ownership Epoch %d", starts[0].Sequence, starts[len(starts)-1].Sequence, owner.OwnershipEpoch)
	s.check("the resumed run had the saved state", strings.Contains(s.handedIn(ctx, a, victim), "saved: "+victim+" after half"),
		"what %s handed in quotes the state of its checkpoint", s.nameOf(victim))
	h.lead.do(ctx, s, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": s.results(h)})
	h.owner.awaitThat(ctx, s, "hotfix is submitted", func(b *client.Board) bool { return b.State == "awaiting_approval" })
	submitted := read(h.owner, func(b *client.Board) client.MissionSubmission { return b.Submitted })
	s.must("approve hotfix", s.tryDecide(ctx, h, "approved", submitted.Revision, submitted.Hashes, "Fixed."))
}
