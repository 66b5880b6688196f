package matrix

import (
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
)

// Plays that bring objects into every state of section 4 and take the rows there.

// staged is a WorkItem in a state, with a past that every Command can refer to: an
// owner, an execution approval with its request, two asked actions of which one was
// approved, an Artifact.
type stagedItem struct {
	id, state         string
	request           any
	grant             *attempt
	asked             *attempt
	decided, decision *attempt
}

type stage struct{ items map[string]*stagedItem }

func (s *stage) of(id string) *stagedItem {
	for _, i := range s.items {
		if i.id == id {
			return i
		}
	}
	panic("matrix: " + id + " was not staged")
}

// workStates in the order of a WorkItem's life.
var workStates = []string{
	protocol.WorkOpen, protocol.WorkOffered, protocol.WorkQueued, protocol.WorkActive, protocol.WorkBlocked,
	protocol.WorkSubmitted, protocol.WorkVerified, protocol.WorkFailed, protocol.WorkCancelled,
}

// staged makes one WorkItem per state. early looks at each while it is queued.
func (p *play) staged(early func(item *stagedItem)) *stage {
	s := &stage{items: map[string]*stagedItem{}}
	for _, state := range workStates {
		id := p.queued(p.worker, gated)
		i := &stagedItem{id: id, state: state}
		s.items[state] = i
		ask := p.ask(p.worker, id)
		p.do(ask)
		i.request = ask.payload["requestId"]
		i.grant = p.grant(p.owner, id)
		p.do(i.grant)
		if early != nil {
			early(i)
		}
		p.do(p.startWork(p.worker, id))
		i.asked, i.decided = p.askAction(p.authorizer(), id), p.askAction(p.authorizer(), id)
		p.do(i.asked)
		p.do(i.decided)
		i.decision = p.decideOn(p.owner, id, i.decided.payload["requestId"], "approved")
		p.do(i.decision)
		p.do(p.publish(p.worker, id))
		switch state {
		case protocol.WorkOpen:
			p.do(p.block(p.worker, id).with("blockedLeaseSeconds", p.brief))
		case protocol.WorkOffered:
			p.do(p.checkpoint(p.worker, id).with("resumeWithinSeconds", p.brief))
		case protocol.WorkQueued:
			p.do(p.checkpoint(p.worker, id))
		case protocol.WorkBlocked:
			p.do(p.block(p.worker, id))
		case protocol.WorkSubmitted, protocol.WorkVerified:
			p.do(p.submit(p.worker, id))
			if state == protocol.WorkVerified {
				p.do(p.acceptResult(id))
			}
		case protocol.WorkFailed:
			p.do(p.failWork(id))
		case protocol.WorkCancelled:
			p.do(p.cancelWork(p.lead, id))
		}
	}
	p.wait(p.soon())
	p.do(p.as(p.lead, "work.unblock").in("workItemId", s.items[protocol.WorkOpen].id))
	p.do(p.offer(s.items[protocol.WorkOffered].id, p.other))
	for _, i := range s.items {
		if now := p.item(i.id).State; now != i.state {
			p.failed("stage", "a WorkItem staged as %s is %s", i.state, now)
		}
	}
	return s
}

// denial denies a WorkItem's start gate.
func (p *play) denial(item string) *attempt {
	return p.as(p.owner, "ext.missionweave.approval.deny_execution").in("workItemId", item).with(
		"approval", p.executionApproval(p.owner, item, "denied"), "ownershipEpoch", p.epoch(item))
}

// moreTokens widens a WorkItem's budget.
func (p *play) moreTokens(item string, tokens int64) *attempt {
	return p.as(p.lead, "ext.missionweave.budget.increase").in("workItemId", item).with(
		"budget", map[string]any{"currency": "EUR", "financialLimit": 10, "modelTokenLimit": tokens, "toolCallLimit": 10}, "reason", "More to do.")
}

// itemRows takes what a WorkItem takes in any state.
func itemRows(p *play) {
	p.newScene()
	meter, err := p.service("metering")
	p.must(err)
	s := p.staged(nil)
	for _, state := range workStates {
		i := s.items[state]
		p.do(p.usage(meter, i.id))
		p.do(p.decideOn(p.owner, i.id, i.asked.payload["requestId"], "denied"))
		if hasRow(ofWorkItem, state, "ext.missionweave.approval.deny_execution") {
			p.do(p.denial(i.id).with("requestId", i.request))
		}
		if hasRow(ofWorkItem, state, "ext.missionweave.budget.increase") {
			p.do(p.moreTokens(i.id, 2000))
		}
		p.do(p.revocation(i.id, i.grant))
	}
}

// expiryRows lets approvals and requests expire in every state. They can only be
// made while the WorkItem is queued, so they are given the time that staging takes.
func expiryRows(p *play) {
	// The time is enough when everything is staged before it is up.
	for span := time.Duration(8+2*p.brief) * time.Second; span < 5*time.Minute; span *= 2 {
		if p.expiring(span) {
			return
		}
	}
	p.failed("stage", "nothing could be staged in time")
}

func (p *play) expiring(span time.Duration) bool {
	p.newScene()
	until, late := time.Now().Add(span), false
	var ids []any
	p.staged(func(i *stagedItem) {
		if late = late || time.Until(until) < 2*time.Second; late {
			return
		}
		brief := p.grant(p.owner, i.id).with("expiresAt", client.Timestamp(until))
		p.do(brief)
		ask := p.ask(p.worker, i.id).with("expiresAt", client.Timestamp(until))
		p.do(ask)
		ids = append(ids, brief.doc("approval").fields["approvalId"], ask.payload["requestId"])
	})
	if late || time.Now().After(until) {
		return false
	}
	p.wait(until)
	p.await("the expiry of all approvals", func() bool {
		gone := 0
		for _, e := range p.events {
			for _, id := range ids {
				if e.Kind == "ext.missionweave.approval.execution_expired" && e.Cause.ID == id {
					gone++
				}
			}
		}
		return gone == len(ids)
	})
	return true
}

// leaseRows lets leases expire where they can, and offers the work again.
func leaseRows(p *play) {
	p.newScene()
	life := 3 + 2*p.brief
	brief := func() string {
		item := p.offered(p.worker)
		p.do(p.acceptOffer(p.worker, item).with("ownershipLeaseSeconds", life))
		return item
	}
	started := func() string {
		item := brief()
		p.do(p.startWork(p.worker, item).with("executionLeaseSeconds", life))
		return item
	}
	queued, active, blocked, submitted := brief(), started(), started(), started()
	p.do(p.publish(p.worker, submitted))
	p.do(p.submit(p.worker, submitted))
	p.do(p.block(p.worker, blocked).with("blockedLeaseSeconds", life))
	p.await("the expiry of four Ownership Leases", func() bool {
		for _, item := range []string{queued, active, blocked, submitted} {
			if p.item(item).Ownership != nil {
				return false
			}
		}
		return true
	})
	open, failed := p.open(), p.open()
	p.do(p.failWork(failed))
	for _, item := range []string{open, queued, active, blocked, failed} {
		revision := p.contract()
		revision["contractVersion"] = p.item(item).Contract.ContractVersion + 1
		p.do(p.offer(item, p.worker).with("contract", revision))
	}
	// An offer's expiry is written down by the next Event about the offers.
	late := p.open()
	p.do(p.offer(late, p.worker).with("offerExpiresInSeconds", p.brief))
	// A missed start fences an owner whose lease still lives.
	missed := p.offered2(gated)
	p.do(p.ask(p.worker, missed))
	candidate := p.agent("candidate")
	p.admit(candidate, "worker")
	left := p.offered(candidate)
	p.do(p.as(p.lead, "membership.end").with("member", candidate.Principal()))
	if s := p.item(left).Offers[0].Status; s != groups.OfferWithdrawn {
		p.failed("stage", "the offer of a former member is %s", s)
	}
	p.wait(p.soon())
	p.do(p.offer(late, p.other))
	p.do(p.offer(missed, p.worker))
	p.do(p.acceptOffer(p.worker, missed))
}

// endRows ends Missions with WorkItems in every unfinished state.
func endRows(p *play) {
	for _, kind := range []string{"mission.cancel", "mission.terminate"} {
		p.newScene()
		p.open()
		p.offered(p.worker)
		p.queued(p.worker)
		p.active(p.worker)
		p.do(p.block(p.worker, p.active(p.worker)))
		p.submitted(p.worker)
		p.do(p.proposal(p.worker))
		p.do(p.as(map[string]*actor{"mission.cancel": p.owner, "mission.terminate": p.lead}[kind], kind).with("reason", "Enough seen."))
	}
}

// leaseEnds ends leases in the ways that no other play does.
func leaseEnds(p *play) {
	p.newScene()
	blocked := func() string {
		item := p.active(p.worker)
		p.do(p.block(p.worker, item))
		return item
	}
	p.do(p.failWork(blocked()))
	p.do(p.cancelWork(p.lead, blocked()))
	p.do(p.failWork(p.active(p.worker)))
	p.do(p.cancelWork(p.lead, p.active(p.worker)))
	sub := p.agent("child")
	for _, item := range []string{blocked(), p.active(p.worker)} {
		p.do(p.child(item, sub))
	}
	brief := p.queued(p.worker)
	p.do(p.startWork(p.worker, brief))
	p.do(p.renewLease(p.worker, brief))
	p.newSession(p.worker)
}

// memberRows takes the Membership rows of invited members and of Coordinators that
// come from anywhere.
func memberRows(p *play) {
	p.newScene()
	hour := func() string { return client.Timestamp(time.Now().Add(time.Hour)) }
	invite := func(g *group, by, who *actor) *attempt {
		return p.within(g, by, "membership.change").with("member", who.Principal(), "role", "worker", "state", "provisional", "provisionalExpiresAt", hour())
	}
	assign := func(to *actor) *attempt {
		return p.as(p.owner, "mission.assign_coordinator").with("coordinatorAgentId", to.Principal().ID, "leaseSeconds", 900)
	}
	guest, fresh, former := p.agent("guest"), p.agent("fresh"), p.agent("former")
	p.do(invite(p.group, p.lead, guest))
	p.do(invite(p.group, p.lead, guest))
	p.do(p.as(p.lead, "membership.end").with("member", guest.Principal()))
	p.do(invite(p.group, p.lead, guest))
	p.admit(former, "worker")
	p.do(p.as(p.lead, "membership.end").with("member", former.Principal()))

	// The child's Memberships, before the parent's Coordinator is replaced.
	sub := p.agent("child")
	_, child, _ := p.begin(sub)
	in := func(kind string, who *actor) *attempt {
		return p.within(child, sub, kind).with("member", who.Principal())
	}
	p.do(invite(child, sub, guest))
	p.do(in("membership.change", p.other).with("role", "worker"))
	p.do(in("membership.change", former).with("role", "worker"))
	p.do(in("membership.end", former))
	for _, next := range []*actor{fresh, guest, former, p.other} {
		p.do(assign(next))
		p.lead = next
	}
}

// waitingRows takes the rows of a Mission that awaits approval.
func waitingRows(p *play) {
	end := func(kind string) *attempt {
		by := p.owner
		if kind == "mission.terminate" {
			by = p.lead
		}
		return p.as(by, kind).with("reason", "Enough seen.")
	}
	for _, kind := range []string{"mission.cancel", "mission.terminate"} {
		p.newScene()
		p.awaiting()
		p.do(p.as(p.owner, "ext.missionweave.budget.increase").with("budget", budgetOf(2000, 2_000_000), "reason", "More to do."))
		p.do(p.as(p.owner, "ext.missionweave.mission.extend_deadline").with("deadline", client.Timestamp(p.deadline.Add(time.Hour)), "reason", "More to do."))
		p.do(p.as(p.lead, "mission.renew_coordinator").with("leaseSeconds", 1200))
		p.do(p.as(p.owner, "mission.assign_coordinator").with("coordinatorAgentId", p.lead.Principal().ID))
		p.do(end(kind))

		p.newScene()
		sub := p.agent("child")
		_, child, mission := p.begin(sub)
		p.inside(child, mission, sub, func(*actor) {
			p.admit(p.worker, "worker")
			p.do(p.submitMission(p.verified(p.worker)))
		})
		p.do(p.as(p.owner, "mission.assign_coordinator").with("coordinatorAgentId", p.other.Principal().ID))
		p.lead = p.other
		p.do(end(kind))
	}
}
