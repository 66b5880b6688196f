package matrix

import (
	"net/http"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
)

func messagePost(p *play) {
	p.newScene()
	valid := func() *attempt { return p.message(p.worker, p.conversation) }
	p.sets(valid)
	p.refuse("without conversationId", valid().leaving("conversationId"))
	p.refuse("payload conversationId differs", valid().with("conversationId", client.NewID()))
	p.refuse("foreign Conversation", valid().in("conversationId", client.NewID()))
	_, _, _, visitor := p.outside(p.worker)
	p.refuse("provisional in the Group Conversation", p.message(visitor, p.conversation))
	p.refuse("authority true", valid().with("authority", true))
	p.refuse("empty content", valid().with("content", []any{}))
	p.accept("member", valid())
	p.refuse("id in use", valid().with("messageId", p.first.attempt.payload["messageId"]))
	p.accept("100000 characters", valid().with("content", []any{map[string]any{"type": "text", "text": strings.Repeat("x", 100_000)}}))
	item := p.offered(visitor)
	p.accept("provisional", p.message(visitor, p.item(item).ConversationID))
	p.ruin(valid)
	p.do(p.as(p.owner, "mission.cancel").with("reason", "Enough seen."))
	p.refuse("terminal Mission", valid())
}

func workPropose(p *play) {
	p.newScene()
	valid := func() *attempt { return p.proposal(p.worker) }
	p.sets(valid)
	p.accept("Worker", valid())
	if len(p.state.WorkItems) == 0 {
		p.passed("OK no WorkItem appears")
	}
	p.refuse("id in use", valid().with("proposalId", p.first.attempt.payload["proposalId"]))
	p.refuse("duplicate", valid().with("contract", p.first.attempt.payload["contract"]))
	p.admit(p.reviewer, "observer")
	p.accept("observer", p.proposal(p.reviewer))
	p.accept("human", p.proposal(p.owner))
	p.ruin(valid)
	p.do(p.as(p.owner, "mission.cancel").with("reason", "Enough seen."))
	p.refuse("Mission not active", valid())
}

func workAuthorize(p *play) {
	p.newScene()
	valid := func() *attempt { return p.authorize(client.NewID()) }
	p.sets(valid)
	contract := func(edit func(c map[string]any)) *attempt { return valid().change("contract", edit) }
	p.refuse("Worker", p.by(p.worker, valid()).leaving("coordinatorEpoch"))
	p.admit(p.other, "work_delegate")
	delegate := p.by(p.other, valid()).leaving("coordinatorEpoch")
	p.refuse("delegate without grant", delegate)
	p.refuse("owner without emergencyOverride", p.by(p.owner, valid()))
	p.refuse("unknown dependency", contract(func(c map[string]any) { c["dependencyWorkItemIds"] = []string{client.NewID()} }))
	p.refuse("contractVersion 2", contract(func(c map[string]any) { c["contractVersion"] = 2 }))
	p.refuse("exclusive false", valid().with("exclusive", false))
	p.refuse("sum of budgets", contract(func(c map[string]any) { c["budget"] = budgetOf(1001, 1000) }))
	p.accept("Coordinator", valid())
	p.refuse("id in use", valid().in("workItemId", p.first.attempt.env["workItemId"]))
	p.refuse("duplicate", valid().with("contract", p.first.attempt.payload["contract"]))
	proposal := p.proposal(p.worker)
	p.do(proposal)
	cite := func() *attempt { return valid().without("contract").with("proposalId", proposal.payload["proposalId"]) }
	p.accept("Proposal", cite())
	p.refuse("closed Proposal", cite())
	second := p.proposal(p.worker)
	p.do(second)
	p.refuse("too low", valid().without("contract").with("proposalId", second.payload["proposalId"]).in("expectedRevision", 0))
	p.accept("owner override", p.by(p.owner, valid()).with("emergencyOverride", map[string]any{"reason": "The Coordinator is away."}))
	p.ruin(valid)
}

func workOffer(p *play) {
	p.newScene()
	item := p.open()
	valid := func() *attempt { return p.offer(item, p.worker) }
	p.sets(func() *attempt {
		revision := p.contract()
		revision["contractVersion"] = p.item(item).Contract.ContractVersion + 1
		return valid().with("contract", revision)
	})
	p.exact = nil
	p.setV(valid)
	p.refuse("candidate without Membership", p.offer(item, p.outsider))
	p.refuse("basis not eligible", valid().change("selectionBasis", func(b map[string]any) { b["authorizationEligible"] = false }))
	wrong := p.contract()
	wrong["contractVersion"] = p.item(item).Contract.ContractVersion + 2
	p.refuse("revision not +1", valid().with("contract", wrong))
	next := p.contract()
	next["contractVersion"] = p.item(item).Contract.ContractVersion + 1
	p.refuse("extend with contract", valid().with("contract", next, "mode", "extend"))
	p.accept("from open", valid())
	old := p.pending(item, p.worker)
	p.accept("extend", valid().with("mode", "extend", "offerExpiresInSeconds", 900))
	p.accept("replace", valid())
	p.refuse("old offer after replace", p.acceptOffer(p.worker, item).with("offerId", old))
	p.accept("from offered", p.offer(item, p.worker, p.other))
	p.accept("revision", valid().with("contract", next))
	soon := p.soon()
	p.do(p.acceptOffer(p.worker, item).with("startBy", client.Timestamp(soon)))
	p.refuse("live owner", p.offer(item, p.other))
	p.wait(soon)
	p.accept("from queued", p.offer(item, p.worker))
	p.do(p.acceptOffer(p.worker, item))
	p.do(p.startWork(p.worker, item).with("executionLeaseSeconds", p.brief))
	lapse := p.soon()
	blocked := p.active(p.worker)
	p.do(p.block(p.worker, blocked).with("blockedLeaseSeconds", p.brief))
	blockLapse := p.soon()
	handed := p.submitted(p.worker)
	p.refuse("submitted", p.offer(handed, p.other))
	p.do(p.acceptResult(handed))
	p.refuse("verified", p.offer(handed, p.other))
	gone := p.open()
	p.do(p.cancelWork(p.lead, gone))
	p.refuse("cancelled", p.offer(gone, p.other))
	lost := p.open()
	p.do(p.failWork(lost))
	p.accept("from failed", p.offer(lost, p.other))
	p.wait(lapse)
	p.accept("from active", p.offer(item, p.other))
	p.wait(blockLapse)
	p.accept("from blocked", p.offer(blocked, p.other))
	p.do(p.acceptOffer(p.other, item).with("ownershipLeaseSeconds", p.brief))
	p.wait(p.soon())
	p.accept("after lapse", p.offer(item, p.worker))
	p.ruin(valid)
}

// racers lets two candidates accept at the same moment, each through a door of its
// own: one owns the WorkItem, the other learns so.
func (p *play) racers() {
	item := p.offered(p.worker, p.other)
	var answers [2]answer
	var race errgroup.Group
	for i, who := range []*actor{p.worker, p.other} {
		a := p.acceptOffer(who, item).in("actionId", client.NewID())
		b, err := a.sign()
		p.must(err)
		p.sent(a.env["actionId"].(string), "work.accept_offer")
		race.Go(func() (err error) {
			if i == 0 {
				answers[i], err = p.overSocket(p.ctx, who.session, b)
			} else {
				answers[i], err = p.post(p.ctx, b)
			}
			return err
		})
	}
	p.must(race.Wait())
	_, err := p.sync(p.ctx)
	p.must(err)
	for i, winner := range []*actor{p.worker, p.other} {
		if answers[i].status != http.StatusCreated {
			continue
		}
		if _, err := checkRefusal(answers[1-i], protocol.CodeWorkAlreadyOwned, ""); err != nil {
			p.failed("positive one of two racers", "the loser: %v", err)
			return
		}
		if owner := p.item(item).Owner; owner == nil || owner.AgentID != winner.Principal().ID {
			p.failed("positive one of two racers", "the winner does not own the WorkItem")
			return
		}
		p.passed("positive one of two racers")
		return
	}
	p.failed("positive one of two racers", "nobody won: %s %s", answers[0].body, answers[1].body)
}

func workAcceptOffer(p *play) {
	p.newScene()
	item := p.offered(p.worker, p.other)
	valid := func() *attempt {
		return p.as(p.worker, "work.accept_offer").in("workItemId", item).with("offerId", p.offerOf(item, p.worker), "ownershipLeaseSeconds", 900)
	}
	p.sets(valid)
	p.admit(p.reviewer, "worker")
	p.refuse("no offer", p.by(p.reviewer, valid()))
	p.refuse("other's offer", valid().with("offerId", p.offerOf(item, p.other)))
	p.refuse("wrong offerId", valid().with("offerId", client.NewID()))
	p.refuse("human actor", p.by(p.owner, valid()))
	loser := p.acceptOffer(p.other, item)
	p.accept("active", valid())
	p.racers()
	loser.env = clone(loser.env)
	p.refuse("loser", loser)
	stale := p.as(p.other, "work.accept_offer").in("workItemId", item).with("offerId", loser.payload["offerId"]).in("expectedRevision", 1)
	p.refuse("loser with expectedRevision", stale)
	late := p.open()
	p.do(p.offer(late, p.other).with("offerExpiresInSeconds", p.brief))
	expired, over := p.acceptOffer(p.other, late), p.soon()
	twice := p.offered(p.other)
	replaced := p.acceptOffer(p.other, twice)
	p.do(p.offer(twice, p.other))
	p.refuse("replaced", replaced)
	declined := p.acceptOffer(p.other, twice)
	p.do(p.as(p.other, "ext.missionweave.work.offer_decline").in("workItemId", twice).with("offerId", declined.payload["offerId"], "declineReason", "capacity"))
	p.refuse("declined", declined)
	_, _, _, visitor := p.outside(p.worker)
	guest := p.offered(visitor)
	p.accept("provisional", p.acceptOffer(visitor, guest))
	p.wait(over)
	p.refuse("expired", expired)
	p.ruin(valid)
}

// offerOf is the last offer of an Agent, whatever became of it.
func (p *play) offerOf(item string, who *actor) string {
	id := ""
	for _, o := range p.item(item).Offers {
		if o.AgentID == who.Principal().ID {
			id = o.OfferID
		}
	}
	return id
}

// workerSet is set W for a Command of the owner of item, which other owned before
// and nobody else ever did.
func (p *play) workerSet(item string, build func(who *actor, item string) *attempt) {
	p.admit(p.reviewer, "worker")
	p.refuse("never owner", build(p.reviewer, item))
	p.refuse("former owner", build(p.other, item))
	epoch := p.epoch(item)
	p.refuse("old ownershipEpoch", build(p.worker, item).with("ownershipEpoch", epoch-1))
	p.refuse("future ownershipEpoch", build(p.worker, item).with("ownershipEpoch", epoch+1))
	if !p.asks("unknown lease") {
		return
	}
	p.refuse("unknown lease", build(p.worker, item).with("executionLeaseId", client.NewID()))
	current := p.lease(item)
	p.do(p.checkpoint(p.worker, item))
	p.do(p.startWork(p.worker, item))
	p.refuse("previous lease", build(p.worker, item).with("executionLeaseId", current))
	brief := p.queued(p.worker)
	p.do(p.startWork(p.worker, brief).with("executionLeaseSeconds", p.brief))
	if p.row.kind == "work.submit" {
		p.do(p.publish(p.worker, brief))
	}
	p.wait(p.soon())
	p.refuse("expired lease", build(p.worker, brief))
	p.refuse("stale ownership and expired lease", build(p.worker, brief).with("ownershipEpoch", p.epoch(brief)+1))
}

// takenOver ends a play: the Worker's new session has taken the lease of item.
func (p *play) takenOver(item string, build func(who *actor, item string) *attempt) {
	valid := func() *attempt { return build(p.worker, item) }
	p.reuse(valid)
	p.secondSession(valid)
	if p.asks("lease revoked by takeover") {
		p.refuse("lease revoked by takeover", valid())
	}
	p.withoutAuthority(valid)
}

// takeover lets the Worker's new session revoke the lease of item.
func (p *play) takeover(item string, build func(who *actor, item string) *attempt) {
	p.newSession(p.worker)
	p.refuse("lease revoked by takeover", build(p.worker, item))
}

func workStart(p *play) {
	p.newScene()
	item := p.handedOver(p.other, p.worker)
	valid := func() *attempt { return p.startWork(p.worker, item) }
	p.sets(valid)
	p.workerSet(item, p.startWork)
	unowned := p.open()
	p.refuse("open and never owned", p.startWork(p.worker, unowned).with("ownershipEpoch", 1))
	waiting := p.queued(p.worker, func(c map[string]any) { c["dependencyWorkItemIds"] = []string{unowned} })
	p.refuse("dependency open", p.startWork(p.worker, waiting))
	gated := p.queued(p.worker, func(c map[string]any) { c["executionApproval"] = "human_required" })
	p.refuse("gate open", p.startWork(p.worker, gated))
	p.accept("after accept", valid())
	p.refuse("second start", valid())
	p.do(p.checkpoint(p.worker, item))
	p.accept("after checkpoint", valid())
	p.do(p.block(p.worker, item))
	p.do(p.as(p.lead, "work.unblock").in("workItemId", item).with("resolution", "Answered."))
	p.accept("after unblock", valid())
	late := p.offered(p.worker)
	soon := p.soon()
	p.do(p.acceptOffer(p.worker, late).with("startBy", client.Timestamp(soon)))
	p.wait(soon)
	p.refuse("after startBy", p.startWork(p.worker, late))
	p.do(p.offer(late, p.worker))
	p.do(p.acceptOffer(p.worker, late).with("ownershipLeaseSeconds", p.brief))
	fenced := p.active(p.worker)
	p.do(p.block(p.worker, fenced).with("blockedLeaseSeconds", p.brief))
	p.wait(p.soon())
	p.refuse("ownership lapsed", p.startWork(p.worker, late))
	p.do(p.as(p.lead, "work.unblock").in("workItemId", fenced))
	p.refuse("open after fence", p.startWork(p.worker, fenced))
	p.secondSession(valid)
	p.accept("after takeover", valid())
	p.withoutAuthority(valid)
}

func executionLeaseRenew(p *play) {
	p.newScene()
	item := p.handedOver(p.other, p.worker)
	p.do(p.startWork(p.worker, item))
	valid := func() *attempt { return p.renewLease(p.worker, item) }
	p.sets(valid)
	p.workerSet(item, p.renewLease)
	p.refuse("not later", valid().with("leaseSeconds", 1))
	idle := p.queued(p.worker)
	p.refuse("queued", p.renewLease(p.worker, idle))
	p.exactAgain(valid)
	p.accept("twice", valid())
	p.do(valid().with("leaseSeconds", 1800))
	if l := p.item(item).Execution; l == nil || l.RenewalCount != 2 || l.LeaseID != p.first.attempt.payload["executionLeaseId"] {
		p.failed("positive twice", "the lease after two renewals is %+v", l)
	}
	p.takenOver(item, p.renewLease)
}

// exactAgain finds the present revision once more, after the stage has moved on.
func (p *play) exactAgain(valid maker) {
	if p.exact != nil {
		p.setV(valid)
	}
}

func workCheckpoint(p *play) {
	p.newScene()
	item := p.handedOver(p.other, p.worker)
	p.do(p.startWork(p.worker, item))
	valid := func() *attempt { return p.checkpoint(p.worker, item) }
	p.sets(valid)
	p.workerSet(item, p.checkpoint)
	p.refuse("progress member missing", valid().change("progress", func(m map[string]any) { delete(m, "nextCheckpoint") }))
	p.refuse("unknown evidence", valid().change("progress", func(m map[string]any) { m["evidenceIds"] = []string{client.NewID()} }))
	p.exactAgain(valid)
	p.accept("then restart", valid())
	p.refuse("second with the same lease", valid())
	p.do(p.startWork(p.worker, item))
	p.takenOver(item, p.checkpoint)
}

func artifactPublish(p *play) {
	p.newScene()
	item := p.handedOver(p.other, p.worker)
	p.do(p.startWork(p.worker, item))
	valid := func() *attempt { return p.publish(p.worker, item) }
	p.sets(valid)
	p.workerSet(item, p.publish)
	doc := func(edit func(d *document)) *attempt {
		a := valid()
		edit(a.doc("artifact"))
		return a
	}
	p.refuse("producer other", doc(func(d *document) {
		d.by = p.other.Identity()
		d.fields["producer"].(map[string]any)["agentId"] = p.other.Principal().ID
	}))
	p.refuse("card version differs", doc(func(d *document) { d.fields["producer"].(map[string]any)["agentCardVersion"] = 2 }))
	p.refuse("unknown source", doc(func(d *document) { d.fields["sourceArtifactHashes"] = []string{client.Hash([]byte("unknown"))} }))
	p.refuse("inline content", doc(func(d *document) { d.fields["content"] = "text" }))
	idle := p.queued(p.worker)
	p.refuse("queued", p.publish(p.worker, idle))
	source := p.publish(p.worker, item)
	source.doc("artifact").fields["classification"] = "confidential"
	p.do(source)
	from := func(classification string) *attempt {
		return doc(func(d *document) {
			d.fields["sourceArtifactHashes"] = []string{source.doc("artifact").fields["contentHash"].(string)}
			d.fields["classification"] = classification
		})
	}
	p.refuse("lower classification", from("public"))
	p.exactAgain(valid)
	p.accept("with provenance", from("confidential"))
	p.refuse("same hash twice", doc(func(d *document) {
		d.fields["contentHash"] = p.first.attempt.doc("artifact").fields["contentHash"]
	}))
	p.takenOver(item, p.publish)
}

func workSubmit(p *play) {
	p.newScene()
	item := p.handedOver(p.other, p.worker)
	p.do(p.startWork(p.worker, item))
	p.do(p.publish(p.worker, item))
	valid := func() *attempt { return p.submit(p.worker, item) }
	p.sets(valid)
	p.workerSet(item, p.submit)
	doc := func(name string, value any) *attempt {
		a := valid()
		a.doc("evidence").fields[name] = value
		return a
	}
	elsewhere := p.active(p.worker)
	p.do(p.publish(p.worker, elsewhere))
	p.refuse("Artifact of another WorkItem", valid().with("artifactHashes", p.hashes(elsewhere)))
	p.refuse("only failed Evidence", doc("result", "failed"))
	p.refuse("no Evidence", valid().with("evidence", []any{}))
	two := p.active(p.worker, func(c map[string]any) {
		c["acceptanceCriteria"] = append(c["acceptanceCriteria"].([]any), map[string]any{
			"criterionId": "spells", "description": "No misspelling.", "evidenceRequired": []string{"reviewer_assessment"},
		})
	})
	p.do(p.publish(p.worker, two))
	p.refuse("criterion uncovered", p.submit(p.worker, two))
	brief := p.queued(p.worker)
	p.do(p.startWork(p.worker, brief).with("executionLeaseSeconds", p.brief))
	p.do(p.publish(p.worker, brief))
	before := p.hashes(brief)
	p.wait(p.soon())
	p.do(p.offer(brief, p.worker))
	p.do(p.acceptOffer(p.worker, brief))
	p.do(p.startWork(p.worker, brief))
	p.refuse("Artifact of an old epoch", p.submit(p.worker, brief).with("artifactHashes", before))
	p.exactAgain(valid)
	p.accept("all criteria", valid())
	p.refuse("twice", valid())
	again := p.active(p.worker)
	p.do(p.publish(p.worker, again))
	p.takenOver(again, p.submit)
}

func workAcceptResult(p *play) {
	p.newScene()
	item := p.submitted(p.worker)
	valid := func() *attempt {
		return p.as(p.lead, "work.accept_result").in("workItemId", item).with("evidence", []any{p.proof(p.reviewer, item, "reviewer_assessment", "passed")})
	}
	p.admit(p.reviewer, "reviewer")
	p.sets(valid)
	doc := func(name string, value any) *attempt {
		a := valid()
		a.doc("evidence").fields[name] = value
		return a
	}
	running := p.active(p.worker)
	p.refuse("not submitted", p.acceptResult(running))
	p.refuse("required type missing", doc("type", "policy_check"))
	p.refuse("human_review by an Agent", doc("type", "human_review"))
	both := valid()
	both.with("evidence", append(both.payload["evidence"].([]any), p.proof(p.lead, item, "policy_check", "failed")))
	p.refuse("failed review", both)
	p.refuse("human", p.by(p.owner, valid()))
	service, err := p.service("policy")
	p.must(err)
	p.refuse("service", p.by(service, valid()))
	own := p.active(p.lead, func(c map[string]any) {
		c["acceptanceCriteria"] = []any{map[string]any{"criterionId": "reads", "description": "It reads well.", "evidenceRequired": []string{"policy_check"}}}
	})
	p.do(p.publish(p.lead, own))
	p.do(p.submit(p.lead, own))
	p.refuse("own work, own Evidence", p.as(p.lead, "work.accept_result").in("workItemId", own).with(
		"evidence", []any{p.proof(p.lead, own, "policy_check", "passed")}))
	p.accept("by a reviewer", valid())
	p.ruin(valid)
}
