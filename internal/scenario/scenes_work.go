package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/client/schedule"
)

// secretA and secretB mark everything that belongs to one Mission only.
const (
	secretA = "amber-lighthouse"
	secretB = "blue-windmill"
)

func secretOf(m *mission) string {
	if m.column == 0 {
		return secretA
	}
	return secretB
}

// begin creates both Missions, which run at the same time from here on.
func begin(ctx context.Context, s *scene) {
	for i, name := range []string{"billing", "search"} {
		m := &mission{name: name, id: client.NewID(), group: client.NewID(), column: i}
		lead := []string{"lead-a", "lead-b"}[i]
		_, err := s.owner.c.Post(ctx, client.Command{Kind: "mission.create", GroupID: m.group}, map[string]any{
			"missionId": m.id, "groupId": m.group, "coordinatorAgentId": s.agentID(lead), "title": name,
			"objective": "Ship the next release of " + name + " (" + secretOf(m) + ").",
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
		for _, worker := range []string{"reviewer", "coder", "analyst"} {
			role := "worker"
			if worker == "coder" {
				role = "work_delegate"
			}
			s.admit(ctx, m, worker, role)
		}
	}
	a, b := s.mission("billing"), s.mission("search")
	s.check("two Missions are active at the same time", a.owner.board.State == "active" && b.owner.board.State == "active",
		"Groups %s and %s, each with its own log from sequence 1", short(a.group), short(b.group))
	s.check("a Message is no authority", s.orderByMessage(ctx, a), "the text \"deploy immediately\" left %d WorkItems", 0)
}

// short is the part of an id that tells it from others.
func short(id string) string { return id[max(0, len(id)-8):] }

func (s *scene) orderByMessage(ctx context.Context, m *mission) bool {
	before := read(m.lead, func(b *client.Board) int { return len(b.Items) })
	m.owner.do(ctx, s, client.Command{Kind: "message.post", ConversationID: read(m.owner, func(b *client.Board) string { return b.MainConversation })}, map[string]any{
		"messageId": client.NewID(), "content": []client.ContentPart{{Type: "text", Text: "deploy immediately"}},
	})
	return before == read(m.lead, func(b *client.Board) int { return len(b.Items) })
}

// clarify lets a Worker ask before it accepts; the Coordinator answers with a
// revised contract. It is the requirements stage of billing.
func clarify(ctx context.Context, s *scene) {
	m := s.mission("billing")
	id := s.give(ctx, m, "requirements", "analyst", s.contract("Write down the requirements of the release.", "requirements.write",
		task{Ask: "For which countries?"}))
	conversation := m.lead.item(id).ConversationID
	m.lead.awaitThat(ctx, s, "the question arrives", func(*client.Board) bool {
		return slices.ContainsFunc(m.lead.log, func(d client.Delivery) bool {
			return d.Event.Kind == "message.posted" && d.Event.ConversationID == conversation
		})
	})
	s.check("an ambiguity is raised in the WorkItem's Conversation before acceptance", m.lead.item(id).State == "offered",
		"message.posted in %s while the WorkItem is %s", short(conversation), m.lead.item(id).State)
	revised := s.contract("Write down the requirements of the release for all EU countries.", "requirements.write",
		task{Steps: []string{"read", "write"}, Content: "Requirements: invoices per tenant. " + secretA})
	revised.ContractVersion, revised.Deadline = 2, m.lead.item(id).Contract.Deadline
	s.offerTo(ctx, m, id, "analyst", map[string]any{"contract": revised})
	s.verify(ctx, m, id)
	s.check("a revised Work Contract is accepted anew", m.lead.item(id).Contract.ContractVersion == 2,
		"work.contract.revised to version %d, then work.offer.accepted", m.lead.item(id).Contract.ContractVersion)
}

// subWork shows work that others than the Coordinator begin: proposed by a Worker
// and authorized, or delegated under a Grant.
func subWork(ctx context.Context, s *scene) {
	m := s.mission("billing")
	requirements := s.byTitle(m, "requirements")
	id := s.give(ctx, m, "implementation", "coder", s.contract("Implement the release.", "code.write",
		task{Propose: "Write a migration for old invoices.", Steps: []string{"design", "code"}, Content: "func bill() {} // " + secretA}, after(requirements)))
	var proposal client.WorkProposal
	m.lead.awaitThat(ctx, s, "the proposal arrives", func(b *client.Board) bool {
		for _, p := range b.Proposals {
			proposal = p
		}
		return len(b.Proposals) > 0
	})
	s.check("a proposal creates no executable obligation", read(m.lead, func(b *client.Board) bool { return len(b.Items) == 2 }),
		"work.proposed left %d WorkItems", read(m.lead, func(b *client.Board) int { return len(b.Items) }))
	child := client.NewID()
	s.call(child, "migration")
	m.lead.do(ctx, s, client.Command{Kind: "work.authorize", WorkItemID: child}, map[string]any{
		"proposalId": proposal.ProposalID, "title": "migration", "parentWorkItemId": id,
	})
	s.offerTo(ctx, m, child, "coder")
	s.check("sub-work that a Worker proposed is authorized by the Coordinator", m.lead.item(child).ParentWorkItemID == id,
		"work.authorized by %s from proposal %s of %s", m.lead.name, short(proposal.ProposalID), s.nameOf(proposal.ProposedBy.ID))
	s.verify(ctx, m, child)
	s.delegate(ctx, m, id)
	s.verify(ctx, m, id)
}

// delegate lets the coder author sub-work of its own under a Delegation Grant.
func (s *scene) delegate(ctx context.Context, m *mission, target string) {
	coder := s.side(ctx, "coder", m)
	defer coder.leave()
	c := s.contract("Write tests for the migration.", "code.test", task{Content: "ok 12 tests"}, func(c *client.WorkContract) {
		c.Budget = budget(0, 100, 1, 1, 1)
	})
	parent := map[string]any{"contract": c, "title": "migration tests", "parentWorkItemId": target}
	_, err := coder.try(ctx, client.Command{Kind: "work.authorize", WorkItemID: client.NewID()}, parent)
	s.refused("the role alone conveys no authority to author work", err, "AUTH_FORBIDDEN")
	grant := client.NewID()
	m.lead.do(ctx, s, client.Command{Kind: "membership.grant_delegation"}, map[string]any{
		"grantId": grant, "granteeAgentId": s.agentID("coder"), "targetWorkItemId": target,
		"allowedCapabilities": []client.CapabilityRef{{ID: "code.test", Version: "1.0.0"}},
		"budget":              budget(0, 500, 5, 5, 5, 5), "maxDescendantDepth": 1, "expiresAt": stamp(time.Hour),
	})
	parent["delegationGrantId"] = grant
	id := client.NewID()
	s.call(id, "migration-tests")
	authorized := coder.do(ctx, s, client.Command{Kind: "work.authorize", WorkItemID: id}, parent)
	coder.do(ctx, s, client.Command{Kind: "work.offer", WorkItemID: id}, s.offer(c, "analyst", map[string]any{"delegationGrantId": grant}))
	s.check("sub-work is delegated under a Delegation Grant", authorized.Actor.ID == s.agentID("coder"),
		"work.authorized by %s under Grant %s", s.nameOf(authorized.Actor.ID), short(grant))
	wrong := s.contract("Rewrite everything.", "code.write", task{})
	_, err = coder.try(ctx, client.Command{Kind: "work.authorize", WorkItemID: client.NewID()}, map[string]any{
		"contract": wrong, "title": "rewrite", "parentWorkItemId": target, "delegationGrantId": grant,
	})
	s.refused("a Grant reaches no further than its capabilities", err, "AUTH_FORBIDDEN")
	s.verify(ctx, m, id)
}

// side is a second seat of a Worker of the cast, over REST: its own runtime keeps
// the session. It acts under the session that the Worker has.
func (s *scene) side(ctx context.Context, name string, m *mission) *seat {
	w := s.workers[name]
	seat, err := (&actor{name: name, c: w.c}).sit(ctx, m, nil)
	s.must(name+" follows "+m.name, err)
	seat.sessionEpoch = func() int64 { return w.present().Session().Epoch() }
	seat.awaitThat(ctx, s, "the Group shows itself to "+name, func(b *client.Board) bool { return b.Epoch() > 0 })
	return seat
}

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
// and goes on when it is there.
func blockAndResume(ctx context.Context, s *scene) {
	m := s.mission("billing")
	id := s.give(ctx, m, "testing", "coder", s.contract("Test the release.", "code.test",
		task{Block: "The test database is missing.", Steps: []string{"unit", "acceptance"}, Content: "412 passed. " + secretA}, after(s.byTitle(m, "implementation"))))
	m.lead.await(ctx, s, id, "blocked")
	s.check("a blocked WorkItem names what would resolve it", m.lead.item(id).RequiredResolution != "",
		"work.blocked: %s %s", m.lead.item(id).Reason, m.lead.item(id).RequiredResolution)
	lease := m.lead.item(id).ExecutionLease
	s.eventually(ctx, "the slot is free", func() bool { return len(s.workers["coder"].present().Running()) == 0 })
	s.check("blocking releases the execution slot", lease == nil && len(s.workers["coder"].present().Running()) == 0,
		"no Execution Lease, %d of %d slots taken", len(s.workers["coder"].present().Running()), 2)
	m.lead.do(ctx, s, client.Command{Kind: "work.unblock", WorkItemID: id}, map[string]any{"resolution": "The database is db-7."})
	s.verify(ctx, m, id)
	started := s.count(m, id, "work.started")
	s.check("unblocked work resumes from its queue", started == 2, "%d × work.started, each under a lease of its own", started)
}

func (s *scene) count(m *mission, id string, kinds ...string) int {
	n := 0
	for _, e := range m.lead.events(kinds...) {
		if e.WorkItemID == id {
			n++
		}
	}
	return n
}

// shareWorker shows what one Worker owes two Missions: a queue for each, a fair
// share of its slots, and a slot for what the Organization puts first.
func shareWorker(ctx context.Context, s *scene) {
	a, b := s.mission("billing"), s.mission("search")
	reviewer := s.workers["reviewer"]
	hold := []string{
		s.give(ctx, a, "long-a", "reviewer", s.contract("Read the whole of billing.", "code.review", task{Steps: []string{"half"}, Gate: "long"}, urgent("critical"))),
		s.give(ctx, b, "long-b", "reviewer", s.contract("Read the whole of search.", "code.review", task{Steps: []string{"half"}, Gate: "long"}, urgent("critical"))),
	}
	a.lead.await(ctx, s, hold[0], "active")
	b.lead.await(ctx, s, hold[1], "active")
	s.check("the shared Worker runs two WorkItems in two slots", len(reviewer.present().Running()) == 2,
		"slots 0 and 1 hold WorkItems of %s and %s", s.nameOf(reviewer.present().Running()[0].Group), s.nameOf(reviewer.present().Running()[1].Group))

	var flood, few []string
	for i := range 5 {
		flood = append(flood, s.give(ctx, a, fmt.Sprintf("flood-%d", i), "reviewer",
			s.contract(fmt.Sprintf("Review part %d.", i), "code.review", task{Content: secretA}, urgent("critical"))))
	}
	for i := range 2 {
		few = append(few, s.give(ctx, b, fmt.Sprintf("few-%d", i), "reviewer",
			s.contract(fmt.Sprintf("Review chapter %d.", i), "code.review", task{Content: secretB}, urgent("routine"))))
	}
	for _, id := range flood {
		a.lead.await(ctx, s, id, "queued")
	}
	for _, id := range few {
		b.lead.await(ctx, s, id, "queued")
	}
	s.eventually(ctx, "both queues are filled", func() bool {
		return len(reviewer.present().Queue(a.group)) == len(flood) && len(reviewer.present().Queue(b.group)) == len(few)
	})
	queueA, queueB := reviewer.present().Queue(a.group), reviewer.present().Queue(b.group)
	s.check("each Group has a queue of its own", disjoint(queueA, queueB) && len(queueA) == 5 && len(queueB) == 2,
		"%d WorkItems queued for billing, %d for search, none in both", len(queueA), len(queueB))
	cursors := reviewer.present().Cursors()
	s.check("each Group has a Cursor of its own", cursors[a.group] > 0 && cursors[b.group] > 0,
		"billing at %d, search at %d", cursors[a.group], cursors[b.group])
	s.gates.lift("long")
	for _, id := range append(flood[:len(flood):len(flood)], hold[0]) {
		s.verify(ctx, a, id)
	}
	for _, id := range append(few[:len(few):len(few)], hold[1]) {
		s.verify(ctx, b, id)
	}
	order := s.starts(a, b, append(flood, few...))
	// Of the two Groups with equal shares neither is served twice before the other
	// once while both wait: the last of the few starts before the fifth of all.
	last := slices.Index(order, few[1])
	s.check("urgent work of one Mission does not starve the other", last >= 0 && last <= 4,
		"started in the order %s", s.named(order))
	s.check("slots are shared by weight and not by urgency", slices.Index(order, few[0]) <= 2,
		"the first of search (routine) is start number %d among five critical ones of billing", slices.Index(order, few[0])+1)
}

// preempt raises a Mission: its arrival takes the slot of running work at that
// work's next checkpoint.
func preempt(ctx context.Context, s *scene) {
	a, b := s.mission("billing"), s.mission("search")
	reviewer := s.workers["reviewer"].present()
	var slow []string
	for i := range 2 {
		slow = append(slow, s.give(ctx, a, fmt.Sprintf("slow-%d", i), "reviewer",
			s.contract(fmt.Sprintf("Read volume %d of billing.", i), "code.review", task{Steps: []string{"half", "rest"}, Gate: "slow"})))
	}
	for _, id := range slow {
		a.lead.await(ctx, s, id, "active")
	}
	s.line.note("the Organization puts search first")
	reviewer.SetShare(b.group, schedule.Share{Class: 1})
	hot := s.give(ctx, b, "hot", "reviewer", s.contract("Review the hot fix.", "code.review", task{Content: "fine"}))
	b.lead.await(ctx, s, hot, "submitted")
	s.eventually(ctx, "the checkpoint is told", func() bool {
		return s.count(a, slow[0], "work.checkpointed")+s.count(a, slow[1], "work.checkpointed") > 0
	})
	victim := slow[0]
	if s.count(a, victim, "work.checkpointed") == 0 {
		victim = slow[1]
	}
	checkpoint, began := s.at(a, victim, "work.checkpointed"), s.at(b, hot, "work.started")
	s.check("a high-priority arrival preempts at a checkpoint", !checkpoint.IsZero() && !checkpoint.After(began),
		"work.checkpointed of %s %s before work.started of hot", s.nameOf(victim), began.Sub(checkpoint).Round(time.Millisecond))
	s.check("only one WorkItem makes room", s.count(a, slow[0], "work.checkpointed")+s.count(a, slow[1], "work.checkpointed") == 1, "1 × work.checkpointed")
	item := a.lead.item(victim)
	s.check("preempted work keeps its owner and its saved state", item.Owner != nil && len(item.Checkpoints) == 1 && item.Checkpoints[0].StateArtifactHash != "",
		"Ownership Epoch %d, state sha256:…%s", item.OwnershipEpoch, short(item.Checkpoints[0].StateArtifactHash))
	reviewer.SetShare(b.group, schedule.Share{})
	s.gates.lift("slow")
	s.verify(ctx, b, hot)
	for _, id := range slow {
		s.verify(ctx, a, id)
	}
	epoch := a.lead.item(victim).OwnershipEpoch
	s.check("preempted work resumes and finishes", s.count(a, victim, "work.started") == 2 && epoch == item.OwnershipEpoch,
		"2 × work.started under the same Ownership Epoch %d", epoch)
	s.check("the resumed run had the saved state", slices.Contains(s.workers["reviewer"].seen(victim), "saved: "+victim+" after half"),
		"read back from the checkpoint's Artifact")
}

// at is when the first Event of a kind of a WorkItem happened.
func (s *scene) at(m *mission, id, kind string) time.Time {
	for _, e := range m.lead.events(kind) {
		if e.WorkItemID == id {
			t, err := time.Parse(time.RFC3339Nano, e.OccurredAt)
			s.must("read a time", err)
			return t
		}
	}
	return time.Time{}
}

// starts is the order in which WorkItems of two Groups began, by the server's
// clock.
func (s *scene) starts(a, b *mission, ids []string) []string {
	out := slices.Clone(ids)
	when := map[string]time.Time{}
	for _, id := range ids {
		when[id] = s.at(a, id, "work.started")
		if when[id].IsZero() {
			when[id] = s.at(b, id, "work.started")
		}
	}
	slices.SortStableFunc(out, func(x, y string) int { return when[x].Compare(when[y]) })
	return out
}

func (s *scene) named(ids []string) string {
	var names []string
	for _, id := range ids {
		names = append(names, s.nameOf(id))
	}
	return strings.Join(names, " ")
}

func disjoint(a, b []string) bool {
	return !slices.ContainsFunc(a, func(x string) bool { return slices.Contains(b, x) })
}

// eventually waits for something that only a Worker of the cast knows.
func (s *scene) eventually(ctx context.Context, what string, f func() bool) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-ctx.Done():
			s.must(what, context.Cause(ctx))
		case <-tick.C:
		}
	}
}
