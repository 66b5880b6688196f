package naive

import (
	"fmt"
	"time"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
)

// compareGroup holds the folded state of one Group against the model's; it
// returns "" or the first difference.
func (m *model) compareGroup(g *group, s *groups.State) string {
	var diff string
	eq := func(what string, want, got any) {
		if diff == "" && fmt.Sprint(want) != fmt.Sprint(got) {
			diff = fmt.Sprintf("%s: %s: model %v, core %v", g.id, what, want, got)
		}
	}
	eq("head", g.head, s.Head)
	eq("state", g.state, s.Mission.State)
	eq("coordinator", g.coordinator, s.Mission.Coordinator.AgentID)
	eq("coordinator epoch", g.epoch, s.Mission.Coordinator.CoordinatorEpoch)
	eq("owner", g.owner.ID, s.Mission.MissionOwner.ID)
	eq("mission revision", g.rev["mission"], s.Mission.Revision)
	eq("deadline", g.deadline.UTC(), parsed(s.Mission.Deadline))
	m.compareLease(eq, "coordinator lease", g.lease, s.CoordinatorLease)
	eq("members", len(g.members), len(s.Memberships))
	for who, x := range g.members {
		y := s.Memberships[protocol.Actor{Type: who.Type, ID: who.ID}]
		if y == nil {
			return fmt.Sprintf("%s: %v is no member in the core", g.id, who)
		}
		eq("member "+who.ID+" state", x.state, y.State)
		eq("member "+who.ID+" role", x.role, y.Role)
		eq("member "+who.ID+" epoch", x.epoch, y.MembershipEpoch)
		eq("member "+who.ID+" start", max(x.start, 1), max(y.VisibilityStartSequence, 1))
	}
	eq("messages", len(g.messages), len(s.Messages))
	for id, x := range g.messages {
		if y := s.Messages[id]; y != nil {
			eq("message "+id+" redacted", x.redacted, y.Redacted)
		} else {
			return g.id + ": message " + id + " is missing"
		}
	}
	eq("proposals", len(g.proposals), len(s.Proposals))
	for id, x := range g.proposals {
		eq("proposal "+id, x.state, s.Proposals[id].Status)
	}
	eq("grants", len(g.grants), len(s.Grants))
	eq("overrides", len(g.overrides), len(s.Overrides))
	for id, x := range g.overrides {
		eq("override "+id+" used", x.used, s.Overrides[id].ConsumedByEventID != "")
	}
	eq("WorkItems", len(g.items), len(s.WorkItems))
	for _, w := range sortedItems(g) {
		m.compareItem(eq, g, w, s)
	}
	compareAccount(eq, "mission account", g.account, s.Ledger.Root())
	return diff
}

func parsed(s string) time.Time {
	if s == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return t.UTC()
}

func (m *model) compareLease(eq func(string, any, any), what string, l *lease, got *protocol.Lease) {
	eq(what+" there", l != nil, got != nil)
	if l == nil || got == nil {
		return
	}
	eq(what+" id", m.real(l.id), got.LeaseID)
	eq(what+" holder", l.holder, got.HolderAgentID)
	eq(what+" state", l.state, got.State)
	eq(what+" expiry", l.expires.UTC(), parsed(got.ExpiresAt))
	eq(what+" session", l.session, got.SessionEpoch)
	eq(what+" renewals", l.renewals, got.RenewalCount)
	eq(what+" ownership epoch", l.ownershipEpoch, got.OwnershipEpoch)
}

func (m *model) compareItem(eq func(string, any, any), g *group, w *item, s *groups.State) {
	y := s.WorkItems[w.id]
	eq("WorkItem "+w.id+" there", true, y != nil)
	if y == nil {
		return
	}
	on := func(what string, want, got any) { eq("WorkItem "+w.id+" "+what, want, got) }
	on("state", w.state, y.State)
	on("revision", g.rev["item "+w.id], y.Revision)
	on("contract version", number(w.contract["contractVersion"]), y.Contract.ContractVersion)
	on("ownership epoch", w.epoch, y.OwnershipEpoch)
	on("owner there", w.owner != nil, y.Owner != nil)
	if w.owner != nil && y.Owner != nil {
		on("owner", w.owner.agent, y.Owner.AgentID)
		on("owner's epoch", w.owner.epoch, y.Owner.OwnershipEpoch)
		on("custody", w.owner.custody, y.Custody)
		on("owner dead", w.owner.dead, y.OwnerFenced)
	}
	m.compareLease(func(what string, a, b any) { on(what, a, b) }, "ownership lease", w.own, y.Ownership)
	m.compareLease(func(what string, a, b any) { on(what, a, b) }, "execution lease", w.run, y.Execution)
	m.compareLease(func(what string, a, b any) { on(what, a, b) }, "blocked lease", w.blk, y.Blocked)
	on("closed leases", len(w.closed), len(y.ClosedLeases))
	on("live child", w.childState == "live", y.ChildIsLive())
	on("artifacts", len(w.artifacts), len(y.Artifacts))
	offers := map[string]string{}
	for _, o := range w.offers {
		offers[m.real(o.id)] = o.status
	}
	got := map[string]string{}
	for _, o := range y.Offers {
		got[o.OfferID] = o.Status
	}
	on("offers", fmt.Sprint(offers), fmt.Sprint(got))
	gate := []string{}
	for _, e := range w.approvals {
		gate = append(gate, e.id+" "+e.status)
	}
	had := []string{}
	for _, e := range y.Executions {
		had = append(had, e.ApprovalID+" "+e.Status)
	}
	on("execution approvals", gate, had)
	theirs, _ := s.Ledger.Account(budget.WorkItemRef(w.id))
	compareAccount(on, "account", w.account, theirs)
}

func compareAccount(eq func(string, any, any), what string, a *account, b *budget.Account) {
	eq(what+" there", true, b != nil)
	if b == nil {
		return
	}
	whole := func(v budget.Vector) vector {
		var out vector
		for i := range out {
			out[i] = int(v[i])
		}
		out[0] /= 1000000
		return out
	}
	eq(what+" limit", a.limit, whole(b.Limit))
	eq(what+" usage", a.usage(), whole(b.Usage()))
	eq(what+" remaining", a.remaining(), whole(b.Remaining()))
	if a.kind == "work_item" {
		eq(what+" finished", a.finished, b.Finished)
	}
}

// unsound looks for a broken invariant in the model's world, which by then is
// the core's as well; it returns "" when there is none.
func (m *model) unsound() string {
	for _, g := range m.groups {
		if !g.account.sound() {
			return g.id + ": the Mission's account is overdrawn"
		}
		for _, w := range g.items {
			if !w.account.sound() {
				return g.id + ": the account of " + w.id + " is overdrawn"
			}
			live := map[string]bool{}
			for _, o := range w.offers {
				if o.status == "pending" && m.now.Before(o.expires) && live[o.agent] {
					return w.id + ": two pending offers of " + o.agent
				}
				live[o.agent] = live[o.agent] || o.status == "pending" && m.now.Before(o.expires)
			}
			if w.own != nil && (w.owner == nil || w.own.ownershipEpoch != w.owner.epoch) {
				return w.id + ": an Ownership Lease without its owner"
			}
			if w.run != nil && (w.state != "active" || w.owner == nil || w.run.ownershipEpoch != w.owner.epoch) {
				return w.id + ": an Execution Lease on work that is not active under that epoch"
			}
			if !unfinished(w.state) && (w.own != nil || w.run != nil || w.blk != nil) {
				return w.id + ": finished with an open lease"
			}
		}
	}
	return ""
}

// gapless holds the sequences and aggregate revisions of a log against what
// they must be; it is asked of the bytes, not of either model.
func gapless(log []written, next map[string]int) string {
	for _, e := range log {
		if e.group == "" {
			continue
		}
		next[e.group]++
		if number(e.body["sequence"]) != next[e.group] {
			return fmt.Sprintf("%s: sequence %v after %d", e.group, e.body["sequence"], next[e.group]-1)
		}
	}
	return ""
}
