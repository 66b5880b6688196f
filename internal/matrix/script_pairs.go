package matrix

import (
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
)

// absent sends a Command that has no row in a state; it must be refused.
func (p *play) absent(table int, state, kind string, a *attempt) {
	row := pair{table, state, kind}
	if _, ok := a.env["actionId"]; !ok {
		a.env["actionId"] = p.actionID
	}
	c := "pair " + row.name()
	if err := p.refusedOnce(row.name(), a); err != nil {
		p.run.fail(c, err.Error())
		return
	}
	p.run.pass(c)
}

// itemPairs sends every Command of the WorkItem table in every state that has no
// row for it.
func itemPairs(p *play) {
	p.newScene()
	s := p.staged(nil)
	sub, second := p.agent("child"), p.open()
	build := map[string]func(item string) *attempt{
		"work.offer": func(item string) *attempt { return p.offer(item, p.other) },
		"work.accept_offer": func(item string) *attempt {
			return p.as(p.worker, "work.accept_offer").in("workItemId", item).with("offerId", p.offerOf(item, p.worker))
		},
		"ext.missionweave.work.offer_decline": func(item string) *attempt {
			return p.as(p.worker, "ext.missionweave.work.offer_decline").in("workItemId", item).with("offerId", p.offerOf(item, p.worker), "declineReason", "other")
		},
		"ext.missionweaveprotocol.core.work_dependency_add": func(item string) *attempt {
			return p.as(p.lead, "ext.missionweaveprotocol.core.work_dependency_add").in("workItemId", item).with("dependencyWorkItemIds", []string{second})
		},
		"approval.grant_execution":                    func(item string) *attempt { return p.grant(p.owner, item) },
		"ext.missionweave.approval.request_execution": func(item string) *attempt { return p.ask(p.worker, item) },
		"ext.missionweave.approval.deny_execution":    p.denial,
		"ext.missionweave.approval.request_action":    func(item string) *attempt { return p.askAction(p.authorizer(), item) },
		"ext.missionweave.approval.consume_action": func(item string) *attempt {
			return p.consumption(item, s.of(item).decided, s.of(item).decision)
		},
		"ext.missionweave.budget.increase": func(item string) *attempt { return p.moreTokens(item, 3000) },
		"work.start":                       func(item string) *attempt { return p.startWork(p.worker, item) },
		"ext.missionweave.work.ownership_lease_renew": func(item string) *attempt {
			return p.as(p.worker, "ext.missionweave.work.ownership_lease_renew").in("workItemId", item).with("ownershipEpoch", p.epoch(item), "leaseSeconds", 3600)
		},
		"ext.missionweaveprotocol.core.work_execution_lease_renew": func(item string) *attempt { return p.renewLease(p.worker, item) },
		"artifact.publish": func(item string) *attempt { return p.publish(p.worker, item) },
		"ext.missionweaveprotocol.core.resource_usage_record": func(item string) *attempt { return p.usage(p.worker, item) },
		"work.checkpoint":    func(item string) *attempt { return p.checkpoint(p.worker, item) },
		"work.block":         func(item string) *attempt { return p.block(p.worker, item) },
		"work.unblock":       func(item string) *attempt { return p.as(p.lead, "work.unblock").in("workItemId", item) },
		"work.submit":        func(item string) *attempt { return p.submit(p.worker, item) },
		"work.accept_result": func(item string) *attempt { return p.acceptResult(item) },
		"work.fail":          p.failWork,
		ownFail: func(item string) *attempt {
			return p.working(p.worker, "work.fail", item).with("reason", "It broke.", "evidence", []any{p.proof(p.worker, item, "failure_report", "failed")})
		},
		"work.cancel":          func(item string) *attempt { return p.cancelWork(p.lead, item) },
		"mission.create_child": func(item string) *attempt { return p.child(item, sub) },
	}
	for _, row := range absentPairs() {
		if command := build[row.kind]; row.table == ofWorkItem && command != nil {
			p.absent(row.table, row.state, row.kind, command(s.items[row.state].id))
		}
	}
}

// missionPairs leads Missions through their states.
func missionPairs(p *play) {
	// The source of a follow-up is looked up like anything that is referred to.
	at := func() {
		state := p.state.Mission.State
		build := map[string]func() *attempt{
			"mission.submit_for_approval": func() *attempt { return p.submitMission(p.finished()...) },
			"mission.request_changes":     func() *attempt { return p.decideMission(p.owner, "mission.request_changes", "changes_requested") },
			"mission.approve":             func() *attempt { return p.decideMission(p.owner, "mission.approve", "approved") },
			"mission.cancel":              func() *attempt { return p.as(p.owner, "mission.cancel").with("reason", "Too late.") },
			"mission.terminate":           func() *attempt { return p.as(p.lead, "mission.terminate").with("reason", "Too late.") },
			"mission.assign_coordinator": func() *attempt {
				return p.as(p.owner, "mission.assign_coordinator").with("coordinatorAgentId", p.lead.Principal().ID)
			},
			"mission.renew_coordinator": func() *attempt { return p.as(p.lead, "mission.renew_coordinator").with("leaseSeconds", 2000) },
			"ext.missionweave.budget.increase": func() *attempt {
				return p.as(p.owner, "ext.missionweave.budget.increase").with("budget", budgetOf(2000, 2_000_000), "reason", "Too late.")
			},
			"ext.missionweave.mission.extend_deadline": func() *attempt {
				return p.as(p.owner, "ext.missionweave.mission.extend_deadline").with("deadline", client.Timestamp(p.deadline.Add(time.Hour)), "reason", "Too late.")
			},
			"mission.create_follow_up": func() *attempt {
				id := client.NewID()
				a := p.creation(p.owner, id, client.NewID(), p.lead.Principal().ID).with("followUpToMissionId", p.missionID)
				a.env["kind"] = "mission.create_follow_up"
				return a
			},
		}
		for _, row := range absentPairs() {
			if row.table == ofMission && row.state == state && build[row.kind] != nil {
				p.absent(row.table, row.state, row.kind, build[row.kind]())
			}
		}
	}
	p.newScene()
	at()
	p.awaiting()
	at()
	p.do(p.decideMission(p.owner, "mission.approve", "approved"))
	at()
	for _, end := range []func() *attempt{
		func() *attempt { return p.as(p.owner, "mission.cancel").with("reason", "Enough seen.") },
		func() *attempt { return p.as(p.lead, "mission.terminate").with("reason", "Enough seen.") },
	} {
		p.newScene()
		p.verified(p.worker)
		p.do(end())
		at()
	}
}

// finished are the verified WorkItems.
func (p *play) finished() []string {
	var out []string
	for _, id := range sortedKeys(p.state.WorkItems) {
		if p.state.WorkItems[id].State == protocol.WorkVerified {
			out = append(out, id)
		}
	}
	return out
}

// objectPairs are those of offers, requests, approvals, Proposals and Memberships.
func objectPairs(p *play) {
	p.newScene()
	p.offerPairs()
	p.requestPairs()
	p.membershipPairs()
	proposal := p.proposal(p.worker)
	p.do(proposal)
	left := p.proposal(p.worker)
	p.do(left)
	cite := func(a *attempt) *attempt {
		return p.authorize(client.NewID()).without("contract").with("proposalId", a.payload["proposalId"])
	}
	p.do(cite(proposal))
	p.absent(ofProposal, groups.ProposalAuthorized, "work.authorize", cite(proposal))
	p.end()
	p.absent(ofProposal, groups.ProposalClosed, "work.authorize", cite(left))
	p.do(p.archive())
	p.absent(ofGroup, "archived", kindArchive, p.archive())
}

func (p *play) offerPairs() {
	both := func(state, item, offer string, who *actor) {
		for _, kind := range []string{"work.accept_offer", "ext.missionweave.work.offer_decline"} {
			a := p.as(who, kind).in("workItemId", item).with("offerId", offer)
			if kind != "work.accept_offer" {
				a.with("declineReason", "other")
			}
			p.absent(ofOffer, state, kind, a)
		}
	}
	raced := p.offered(p.worker, p.other)
	won, lost := p.pending(raced, p.worker), p.pending(raced, p.other)
	p.do(p.acceptOffer(p.worker, raced))
	both(groups.OfferAccepted, raced, won, p.worker)
	both(groups.OfferLostRace, raced, lost, p.other)
	item := p.offered(p.other)
	first := p.pending(item, p.other)
	p.do(p.offer(item, p.other))
	both(groups.OfferWithdrawn, item, first, p.other)
	second := p.pending(item, p.other)
	p.do(p.as(p.other, "ext.missionweave.work.offer_decline").in("workItemId", item).with("offerId", second, "declineReason", "other"))
	both(groups.OfferDeclined, item, second, p.other)
	brief := p.open()
	p.do(p.offer(brief, p.other).with("offerExpiresInSeconds", p.brief))
	over := p.pending(brief, p.other)
	p.wait(p.soon())
	p.do(p.offer(brief, p.worker)) // writes the expiry down
	both(groups.OfferExpired, brief, over, p.other)
}

func (p *play) requestPairs() {
	soon := func() string { return client.Timestamp(p.soon()) }
	ask := func(item, expires string) any {
		a := p.ask(p.worker, item)
		if expires != "" {
			a.with("expiresAt", expires)
		}
		p.do(a)
		return a.payload["requestId"]
	}
	item := p.queued(p.worker, gated)
	granted, denied, expired := ask(item, ""), ask(item, ""), ask(item, soon())
	allowed := p.grant(p.owner, item).with("requestId", granted)
	p.do(allowed)
	no := p.denial(item).with("requestId", denied)
	p.do(no)
	brief := p.grant(p.owner, item).with("expiresAt", soon())
	p.do(brief)

	handed := p.offered2(gated)
	superseded := ask(handed, "")
	p.await("the end of an approval", func() bool {
		for _, e := range p.item(item).Executions {
			if e.Status == "expired" {
				return true
			}
		}
		return false
	})
	p.wait(p.soon())
	p.do(p.offer(handed, p.worker))
	p.do(p.acceptOffer(p.worker, handed))

	for state, id := range map[string]any{"granted": granted, "denied": denied, "expired": expired} {
		p.absent(ofRequest, state, "approval.grant_execution", p.grant(p.owner, item).with("requestId", id))
		if state != "expired" { // a late denial is the human's
			p.absent(ofRequest, state, "ext.missionweave.approval.deny_execution", p.denial(item).with("requestId", id))
		}
	}
	p.absent(ofRequest, "superseded", "approval.grant_execution", p.grant(p.owner, handed).with("requestId", superseded))
	p.absent(ofRequest, "superseded", "ext.missionweave.approval.deny_execution", p.denial(handed).with("requestId", superseded))

	p.absent(ofExecution, "denied", "ext.missionweave.approval.revoke_execution", p.revocation(item, no))
	p.absent(ofExecution, "expired", "ext.missionweave.approval.revoke_execution", p.revocation(item, brief))
	p.do(p.revocation(item, allowed))
	p.absent(ofExecution, "revoked", "ext.missionweave.approval.revoke_execution", p.revocation(item, allowed))
}

func (p *play) membershipPairs() {
	change := func(who *actor, pairs ...any) *attempt {
		return p.as(p.lead, "membership.change").with("member", who.Principal(), "role", "worker").with(pairs...)
	}
	end := func(who *actor) *attempt { return p.as(p.lead, "membership.end").with("member", who.Principal()) }
	gone := p.agent("gone")
	p.admit(gone, "worker")
	item := p.offered(gone)
	accept := p.acceptOffer(gone, item)
	p.do(end(gone))
	p.absent(ofMembership, "active", "membership.change to provisional", change(p.other, "state", "provisional",
		"provisionalExpiresAt", client.Timestamp(time.Now().Add(time.Hour))))
	p.absent(ofMembership, "none", "membership.end", end(p.outsider))
	p.absent(ofMembership, "ended", "membership.end", end(gone))
	p.absent(ofMembership, "ended", "work.accept_offer", accept)
	p.absent(ofMembership, "none", "work.accept_offer", p.by(p.outsider, p.as(p.worker, "work.accept_offer").in("workItemId", item).with(
		"offerId", p.offerOf(item, gone))))
}
