package scenario

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/missionweave/server/client"
)

// killWorker kills a Worker of both Missions with SIGKILL in the middle of two
// WorkItems and with a queue in each Group, and compares what the next process
// makes of the log with what the dead one had, in order. Then it stops the same
// Worker as an operator would.
func killWorker(ctx context.Context, s *scene, t turn) {
	w := s.engage(ctx, "carrier", 2, nil)
	defer w.dismiss()
	missions := []*mission{t.mission, t.other}
	w.welcome(ctx, missions...)
	groupOf, missionOf := map[string]string{}, map[string]*mission{}
	give := func(m *mission, title, urgency string) string {
		id := w.give(ctx, m, title, task{Gate: "road"}, urgent(urgency))
		groupOf[id], missionOf[id] = m.group, m
		return id
	}
	// In each Mission one WorkItem runs and three wait, given in an order that is
	// not the order of their urgency: neither ids nor time of arrival explain the
	// queue.
	var running []string
	waiting := map[string][]string{}
	for i, m := range missions {
		running = append(running, give(m, "carried-"+m.name, "critical"))
		m.lead.await(ctx, s, running[i], "active")
	}
	rank := []string{"high", "normal", "routine"}
	for i, m := range missions {
		byRank := make([]string, len(rank))
		for _, r := range shuffled(t, i, 0, 1, 2) {
			byRank[r] = give(m, fmt.Sprintf("waits-%s-%s", m.name, rank[r]), rank[r])
			m.lead.await(ctx, s, byRank[r], "queued")
		}
		waiting[m.group] = byRank
	}
	full := func(x told) bool {
		return len(x.Running) == 2 && len(x.Queues[missions[0].group])+len(x.Queues[missions[1].group]) == 6
	}
	group := func(id string) string { return groupOf[id] }
	s.eventually(ctx, "both are in the middle", func() bool { return w.count("waits", func(told) bool { return true }) == 2 })
	before := w.state(ctx, "two run and six wait", full)
	ordered := true
	for i, m := range missions {
		ordered = ordered && slices.Equal(before.order(m.group, group), append([]string{running[i]}, waiting[m.group]...))
	}
	s.check("a Worker keeps a queue per Group, by urgency", ordered, "%s: %s; %s: %s", missions[0].name, s.named(before.order(missions[0].group, group)),
		missions[1].name, s.named(before.order(missions[1].group, group)))
	items := map[string]client.Work{}
	for id, m := range missionOf {
		items[id] = m.lead.item(id)
	}

	s.line.note("kill -9 of the Worker")
	ended := w.end(syscall.SIGKILL)
	inTheMiddle := true
	for i, m := range missions {
		now := m.lead.item(running[i])
		inTheMiddle = inTheMiddle && now.State == "active" && now.ExecutionLease != nil
	}
	s.check("the Worker's process is killed in the middle of its work", killed(ended, syscall.SIGKILL) && inTheMiddle,
		"%v; both WorkItems are active under their Execution Leases, nobody told the server", ended)
	s.must("start it again", w.start())
	after := w.state(ctx, "two run and six wait again", full)
	for _, m := range missions {
		a, b := before.order(m.group, group), after.order(m.group, group)
		s.check("the queue of "+m.name+" is rebuilt from the log, in order", slices.Equal(a, b) && len(a) == 4, "%s before; %s after", s.named(a), s.named(b))
	}
	s.check("a restarted Worker has a new Session Epoch", after.Session == before.Session+1, "Session Epoch %d after %d", after.Session, before.Session)
	for i, m := range missions {
		m.lead.awaitThat(ctx, s, "the takeover is told", func(*client.Board) bool {
			return s.countLocked(m, running[i], "ext.missionweaveprotocol.core.work_execution_lease_revoked") == 1
		})
	}
	s.check("the lease of the dead process is revoked as session_replaced", s.revokedFor(missions, running, "session_replaced"), "1 × work_execution_lease_revoked for each of the two")
	same, fresh := true, true
	for id, was := range items {
		now := missionOf[id].lead.item(id)
		same = same && now.OwnershipEpoch == was.OwnershipEpoch && now.Owner != nil && now.Owner.AgentID == w.id && s.count(missionOf[id], id, "work.offer.accepted") == 1
	}
	for i, m := range missions {
		lease := m.lead.item(running[i]).ExecutionLease
		fresh = fresh && (lease == nil || lease.LeaseID != items[running[i]].ExecutionLease.LeaseID)
	}
	s.check("the restarted Worker owns its work under the same Ownership Epochs", same, "8 WorkItems, each accepted once")
	s.check("the restarted Worker works under leases of its own", fresh, "no Execution Lease of the dead process is used again")

	s.line.note("the Worker is stopped as an operator does")
	s.eventually(ctx, "both are in the middle again", func() bool { return w.saidNow("waits") == 2 })
	inSlots := w.state(ctx, "two run", full).Running
	s.must("stop it", w.end(0))
	checkpointed := 0
	for _, id := range inSlots {
		missionOf[id].lead.await(ctx, s, id, "queued")
		checkpointed += s.count(missionOf[id], id, "work.checkpointed")
	}
	s.check("a Worker that is stopped leaves its work at checkpoints", checkpointed == 2, "%s: work.checkpointed, queued", s.named(inSlots))
	s.must("start it a third time", w.start())
	w.tell("lift road")
	once := true
	for id, m := range missionOf {
		s.verify(ctx, m, id)
		once = once && s.count(m, id, "work.submitted") == 1 && m.lead.item(id).OwnershipEpoch == items[id].OwnershipEpoch
	}
	saved := 0
	for _, id := range inSlots {
		saved += w.count("saved", func(x told) bool { return x.WorkItemID == id && x.Text == id+" is half done" })
	}
	s.check("work goes on from its checkpoint", saved == 2, "the third process was given the state that the second one saved, %d times", saved)
	s.check("everything that the dead Worker had is carried out once", once, "8 WorkItems verified, each submitted once, under the Ownership Epochs of before")
}

// countLocked is count for a caller that holds the Coordinator's seat.
func (s *scene) countLocked(m *mission, id, kind string) int {
	n := 0
	for _, d := range m.lead.log {
		if d.Event.Kind == kind && d.Event.WorkItemID == id {
			n++
		}
	}
	return n
}

func (s *scene) revokedFor(missions []*mission, ids []string, reason string) bool {
	n := 0
	for i, m := range missions {
		for _, e := range m.lead.events("ext.missionweaveprotocol.core.work_execution_lease_revoked") {
			var f struct {
				Reason string `json:"reason"`
			}
			s.must("read the revocation", client.Decode(e.Payload, &f))
			if e.WorkItemID == ids[i] && f.Reason == reason {
				n++
			}
		}
	}
	return n == len(ids)
}

// saidNow counts what the present process has said.
func (h *hand) saidNow(what string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, t := range h.said {
		if t.What == what {
			n++
		}
	}
	return n
}

// arriveFirst sends a WorkItem of a Mission that the Organization puts first to a
// Worker whose only slot is taken.
func arriveFirst(ctx context.Context, s *scene, t turn) {
	a, b := t.mission, t.other
	w := s.engage(ctx, "single", 1, nil)
	defer w.dismiss()
	w.welcome(ctx, a, b)
	slow := w.give(ctx, a, "slow-errand", task{Gate: "slow"}, urgent("critical"))
	s.eventually(ctx, "it is in the middle", func() bool { return w.saidNow("waits") == 1 })
	held := a.lead.item(slow)
	w.state(ctx, "it follows both Missions", func(x told) bool { return x.Heads[b.group] > 0 })
	w.tell("class %s 1", b.group)
	s.line.note("the Organization puts %s first", b.name)
	hot := w.give(ctx, b, "hot-errand", task{}, urgent("routine"))
	b.lead.await(ctx, s, hot, "submitted")
	a.lead.awaitThat(ctx, s, "the checkpoint is told", func(*client.Board) bool { return s.countLocked(a, slow, "work.checkpointed") > 0 })
	checkpoint, began := s.at(a, slow, "work.checkpointed"), s.at(b, hot, "work.started")
	s.check("a high-priority arrival takes the only slot, at a checkpoint", s.count(a, slow, "work.checkpointed") == 1 && !checkpoint.IsZero() && !checkpoint.After(began),
		"1 × work.checkpointed of slow-errand (critical) before work.started of hot-errand (routine, of the Mission put first)")
	w.tell("class %s 0", b.group)
	w.tell("lift slow")
	s.verify(ctx, b, hot)
	s.verify(ctx, a, slow)
	now := a.lead.item(slow)
	s.check("what made room goes on under the same Ownership Epoch, with its state", now.State == "verified" && now.OwnershipEpoch == held.OwnershipEpoch &&
		w.count("saved", func(x told) bool { return x.WorkItemID == slow }) == 1 && s.count(a, slow, "work.offer.accepted") == 1 && s.count(a, slow, "work.started") == 2,
		"Ownership Epoch %d, 2 × work.started, the second run had the saved state", now.OwnershipEpoch)
}

// at is when the first Event of a kind of a WorkItem happened, by the server's
// clock.
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

// requestChanges is a human who sends a submission back.
func requestChanges(ctx context.Context, s *scene, t turn) {
	m := t.mission
	hashes := s.results(m)
	m.lead.do(ctx, s, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": hashes})
	m.owner.awaitThat(ctx, s, m.name+" is submitted", func(b *client.Board) bool { return b.State == "awaiting_approval" })
	submitted := read(m.owner, func(b *client.Board) client.MissionSubmission { return b.Submitted })
	_, err := m.lead.try(ctx, client.Command{Kind: "work.authorize", WorkItemID: client.NewID()}, map[string]any{
		"title": "early", "contract": s.contract("Do more while a human decides.", "code.write", task{}),
	})
	s.refused("nothing is begun while a human decides", err, "INVALID_STATE_TRANSITION")
	s.decide(ctx, m, "changes_requested", submitted.Revision, nil, "The log is not enough.")
	m.lead.awaitThat(ctx, s, "the request for changes arrives", func(b *client.Board) bool { return b.State == "active" })
	state, err := s.owner.c.Mission(ctx, m.id)
	s.must("read the Mission", err)
	s.check("a human change request makes the Mission active again", state.State == "active", "read back: %s is %s", m.name, state.State)
	s.refused("an Approval of what was sent back is refused", s.tryDecide(ctx, m, "approved", submitted.Revision, hashes, "After all."), "INVALID_STATE_TRANSITION")
	fix := s.give(ctx, m, "asked-for", "analyst", s.contract("Do what the human asked for.", "requirements.write", task{Content: "as asked"}))
	s.verify(ctx, m, fix)
	now := s.results(m)
	s.check("corrective work changes what can be handed in", m.lead.item(fix).State == "verified" && len(now) == len(hashes)+1, "%d Artifacts, %d before the request", len(now), len(hashes))
}
