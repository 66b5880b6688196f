package matrix

import (
	"bytes"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

func init() {
	for kind, cases := range map[string][]func(*play){
		"mission.assign_coordinator":               {assignCoordinator},
		"ext.missionweave.mission.extend_deadline": {extendDeadline},
		"mission.cancel":                           {missionCancel, missionCancelByService},
		"mission.terminate":                        {missionTerminate, missionTerminateByService},
		"membership.end":                           {membershipEnd},
		"membership.grant_delegation":              {grantDelegation},
		"policy.grant_cooperation_override":        {grantOverride},
		"ext.missionweave.budget.increase":         {budgetIncrease},
		"message.correct":                          {messageCorrect},
		"message.retract":                          {messageRetract},
		"message.redact":                           {messageRedact},
	} {
		scripts[kind] = append(scripts[kind], cases...)
	}
}

// policyService is the service that Organization policy lets act on Missions.
func (p *play) policyService() *actor {
	s, err := p.service("policy")
	p.must(err)
	return s
}

// end cancels the Mission, so that a terminal one can be shown.
func (p *play) end() { p.do(p.as(p.owner, "mission.cancel").with("reason", "Enough seen.")) }

func assignCoordinator(p *play) {
	p.newScene()
	assign := func(by, to *actor) *attempt {
		return p.as(by, "mission.assign_coordinator").with("coordinatorAgentId", to.Principal().ID, "leaseSeconds", 900)
	}
	valid := func() *attempt { return assign(p.owner, p.lead) }
	p.documented = func() *attempt { return assign(p.owner, p.other).with("contextPackage", p.contextPackage(p.lead)) }
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("Coordinator itself", assign(p.lead, p.lead))
	p.refuse("package for the same Agent", valid().with("contextPackage", p.contextPackage(p.lead)))
	p.refuse("package by an outsider", assign(p.owner, p.other).with("contextPackage", p.contextPackage(p.outsider)))
	p.refuse("unregistered Agent", valid().with("coordinatorAgentId", client.NewID()))
	p.exactAgain(valid)
	p.accept("owner", valid())
	p.accept("service", assign(p.policyService(), p.lead).with("leaseSeconds", p.brief))
	p.wait(p.soon())
	p.accept("same Agent after lapse", valid())
	old := p.as(p.lead, "mission.renew_coordinator").with("leaseSeconds", 1000)
	packaged := p.documented()
	p.accept("other Agent with package", packaged)
	old.env["membershipEpoch"] = p.as(p.lead, "message.post").env["membershipEpoch"]
	p.refuse("old Coordinator afterwards", old)
	again := assign(p.owner, p.worker).with("contextPackage", p.contextPackage(p.other))
	again.doc("contextPackage").fields["contextPackageId"] = packaged.doc("contextPackage").fields["contextPackageId"]
	p.refuse("document id reused", again)
	receipt := p.accept("other Agent without package", assign(p.owner, p.worker))
	p.generated(receipt.Member("events").Raw())
	p.end()
	p.refuse("terminal Mission", valid())
}

// generated verifies the Context Package that the Authority made for a Coordinator
// who was sent none.
func (p *play) generated(events []byte) {
	for id, e := range p.events {
		if e.Kind != "mission.coordinator.assigned" || !bytes.Contains(events, []byte(id)) {
			continue
		}
		payload, err := strictjson.Parse(e.Payload)
		p.must(err)
		made := payload.Root().Member("contextPackage")
		if fault := protocol.Validate(protocol.KindContextPackage, made); fault != nil {
			p.failed("positive other Agent without package", "%v", fault)
		} else if _, failure := trust.Verify(protocol.KindContextPackage, made, p.evidence); failure != nil {
			p.failed("positive other Agent without package", "signature: stage %d, %s", failure.Stage, failure.Reason)
		}
		return
	}
	p.failed("positive other Agent without package", "no Event brings a package")
}

func extendDeadline(p *play) {
	p.newScene()
	valid := func() *attempt {
		return p.as(p.owner, "ext.missionweave.mission.extend_deadline").with("deadline", client.Timestamp(p.deadline.Add(time.Hour)), "reason", "More to do.")
	}
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("earlier", valid().with("deadline", client.Timestamp(time.Now().Add(time.Hour))))
	p.refuse("Coordinator", p.by(p.lead, valid()))
	p.accept("root", valid())
	p.end()
	p.refuse("terminal Mission", valid().with("deadline", client.Timestamp(p.deadline.Add(2*time.Hour))))
}

func missionCancel(p *play) {
	p.newScene()
	item := p.active(p.worker)
	offered := p.offered(p.other)
	accept := p.acceptOffer(p.other, offered)
	valid := func() *attempt { return p.as(p.owner, "mission.cancel").with("reason", "Not needed any more.") }
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("Coordinator", p.by(p.lead, valid()))
	p.refuse("Worker", p.by(p.worker, valid()))
	checkpoint := p.checkpoint(p.worker, item)
	p.accept("owner", valid())
	p.refuse("twice", valid())
	p.refuse("Worker afterwards", checkpoint)
	p.refuse("offer afterwards", accept)
}

func missionCancelByService(p *play) {
	p.newScene()
	p.accept("service", p.as(p.policyService(), "mission.cancel").with("reason", "By policy."))
}

func missionTerminate(p *play) {
	p.newScene()
	item := p.open()
	valid := func() *attempt {
		return p.as(p.lead, "mission.terminate").with("reason", "It cannot be done.", "evidence", []any{p.proof(p.lead, item, "failure_report", "failed")})
	}
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("human", p.by(p.owner, valid()))
	p.refuse("Worker", p.by(p.worker, valid()))
	wrong := valid()
	wrong.doc("evidence").fields["type"] = "policy_check"
	p.refuse("evidence of another type", wrong)
	p.exactAgain(valid)
	p.accept("Coordinator", valid())
	p.refuse("terminal", valid())
	p.reuse(valid)
	p.secondSession(valid)
}

func missionTerminateByService(p *play) {
	p.newScene()
	p.accept("service", p.as(p.policyService(), "mission.terminate").with("reason", "By policy."))
}

func membershipEnd(p *play) {
	p.newScene()
	end := func(who *actor) *attempt { return p.as(p.lead, "membership.end").with("member", who.Principal()) }
	queued := p.queued(p.worker)
	valid := func() *attempt { return end(p.worker) }
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("MissionOwner", end(p.owner))
	p.refuse("Coordinator", p.as(p.owner, "membership.end").with("member", p.lead.Principal()))
	p.refuse("stranger", end(p.outsider))
	start := p.startWork(p.worker, queued)
	p.exactAgain(valid)
	p.accept("queued work", valid())
	p.refuse("twice", valid())
	p.refuse("its Commands", start)
	busy, stuck := p.agent("busy"), p.agent("stuck")
	p.admit(busy, "worker")
	p.admit(stuck, "worker")
	p.active(busy)
	p.do(p.block(stuck, p.active(stuck)))
	p.accept("active work", end(busy))
	p.accept("blocked work", end(stuck))
	p.accept("self", p.as(p.other, "membership.end").with("member", p.other.Principal()))
	p.secondSession(valid)
}

func grantDelegation(p *play) {
	p.newScene()
	p.admit(p.other, "work_delegate")
	target := p.open(func(c map[string]any) {
		c["budget"] = map[string]any{"currency": "EUR", "financialLimit": 100, "modelTokenLimit": 10_000, "toolCallLimit": 100}
	})
	valid := func() *attempt {
		return p.as(p.lead, "membership.grant_delegation").with(
			"grantId", client.NewID(), "granteeAgentId", p.other.Principal().ID, "targetWorkItemId", target,
			"allowedCapabilities", []any{capabilityRef(capability)}, "budget", budgetOf(50, 5000), "maxDescendantDepth", 1,
			"expiresAt", client.Timestamp(time.Now().Add(time.Hour)))
	}
	p.sets(valid)
	p.refuse("human actor", p.by(p.owner, valid()))
	p.refuse("service actor", p.by(p.policyService(), valid()))
	p.refuse("grantee worker", valid().with("granteeAgentId", p.worker.Principal().ID))
	p.refuse("budget dimension missing", valid().change("budget", func(b map[string]any) { delete(b, "toolCallLimit") }))
	p.refuse("budget over the Mission's", valid().with("budget", budgetOf(50, 10_000_000)))
	p.refuse("past expiry", valid().with("expiresAt", client.Timestamp(time.Now().Add(-time.Second))))
	p.refuse("depth", valid().with("maxDescendantDepth", 99))
	done := p.verified(p.worker)
	p.refuse("target verified", valid().with("targetWorkItemId", done))
	grant := valid()
	p.accept("used", grant)
	child := client.NewID()
	sub := p.authorize(child)
	sub = p.by(p.other, sub).leaving("coordinatorEpoch").with("parentWorkItemId", target, "delegationGrantId", grant.payload["grantId"])
	p.do(sub)
	offer := p.by(p.other, p.offer(child, p.worker)).leaving("coordinatorEpoch").with("delegationGrantId", grant.payload["grantId"])
	p.do(offer)
	p.ruin(valid)
}

func grantOverride(p *play) {
	p.newScene()
	target := client.NewID()
	valid := func() *attempt {
		return p.as(p.owner, "policy.grant_cooperation_override").with(
			"grantId", client.NewID(), "policyName", "duplicate_decomposition", "beneficiary", p.worker.Principal(),
			"targetCommandKind", "work.propose", "targetActionId", target, "reason", "Twice on purpose.",
			"expiresAt", client.Timestamp(time.Now().Add(time.Hour)))
	}
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("Coordinator", p.by(p.lead, valid()))
	p.refuse("kind not governed", valid().with("targetCommandKind", "work.start"))
	p.refuse("past expiry", valid().with("expiresAt", client.Timestamp(time.Now().Add(-time.Second))))
	grant := valid()
	p.accept("owner", grant)
	id := grant.payload["grantId"]
	p.refuse("grant id in use", valid().with("grantId", id))
	first := p.proposal(p.worker)
	p.do(first)
	cite := func(who *actor) *attempt {
		return p.proposal(who).with("contract", first.payload["contract"]).in("cooperationOverrideGrantId", id).in("actionId", target)
	}
	p.refuse("other actor", cite(p.other))
	p.refuse("other kind", p.message(p.worker, p.conversation).in("cooperationOverrideGrantId", id).in("actionId", target))
	p.refuse("not needed", p.proposal(p.worker).in("cooperationOverrideGrantId", id).in("actionId", target))
	p.do(cite(p.worker))
	p.passed("positive consumed once")
	p.refuse("second use", cite(p.worker).in("actionId", client.NewID()))
	p.accept("service", p.by(p.policyService(), valid().with("targetActionId", client.NewID())))
}

func budgetIncrease(p *play) {
	p.newScene()
	item := p.open()
	valid := func() *attempt {
		return p.as(p.owner, "ext.missionweave.budget.increase").with("budget", budgetOf(2000, 2_000_000), "reason", "More to do.")
	}
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("decrease", valid().with("budget", budgetOf(10, 2_000_000)))
	p.refuse("equal", valid().with("budget", budgetOf(1000, 1_000_000)))
	p.refuse("other currency", valid().change("budget", func(b map[string]any) { b["currency"] = "USD" }))
	p.refuse("Worker", p.by(p.worker, valid()))
	p.accept("Mission", valid())
	more := func(tokens int64) map[string]any {
		return map[string]any{"currency": "EUR", "financialLimit": 10, "modelTokenLimit": tokens, "toolCallLimit": 10}
	}
	onItem := func(item string, tokens int64) *attempt {
		return p.as(p.lead, "ext.missionweave.budget.increase").in("workItemId", item).with("budget", more(tokens), "reason", "More to do.")
	}
	p.refuse("over the parent", onItem(item, 1<<40))
	p.accept("WorkItem by Coordinator", onItem(item, 2000))
	paused := p.active(p.worker)
	p.do(p.working(p.worker, "ext.missionweaveprotocol.core.resource_usage_record", paused).with("usageDelta", map[string]any{"modelTokens": 1000}))
	p.accept("un-pauses", onItem(paused, 2000))
	p.do(p.renewLease(p.worker, paused))
	p.end()
	p.refuse("terminal Mission", valid().with("budget", budgetOf(3000, 3_000_000)))
}

// posted posts a Message and returns its id.
func (p *play) posted(who *actor) string {
	a := p.message(who, p.conversation)
	p.do(a)
	return a.payload["messageId"].(string)
}

// amendment is message.correct, message.retract or message.redact.
func (p *play) amendment(who *actor, kind, target string) *attempt {
	a := p.as(who, kind).with("messageId", client.NewID(), "targetMessageId", target, "reason", "A mistake.")
	if kind == "message.correct" {
		a.with("content", []any{map[string]any{"type": "text", "text": "Good day."}})
	}
	return a
}

func (p *play) amend(who *actor, positive string) {
	kind := p.row.kind
	target, later := p.posted(p.worker), p.posted(p.worker)
	valid := func() *attempt { return p.amendment(who, kind, target) }
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("unknown target", valid().with("targetMessageId", client.NewID()))
	p.refuse("reason missing", valid().without("reason"))
	if p.asks("other's Message") {
		p.refuse("other's Message", p.amendment(p.other, kind, target))
	}
	p.exactAgain(valid)
	p.accept(positive, valid())
	p.refuse("amendment as target", p.amendment(who, kind, later).with("targetMessageId", p.first.attempt.payload["messageId"]))
	if p.asks("twice") {
		p.refuse("twice", valid())
	}
	p.do(p.amendment(who, kind, later))
}

func messageCorrect(p *play) {
	p.newScene()
	p.amend(p.worker, "author")
	p.secondSession(func() *attempt { return p.amendment(p.worker, p.row.kind, p.posted(p.worker)) })
}

func messageRetract(p *play) {
	p.newScene()
	p.refuse("content", p.amendment(p.worker, "message.retract", p.posted(p.worker)).with("content", []any{map[string]any{"type": "text", "text": "x"}}))
	p.amend(p.worker, "author")
	p.secondSession(func() *attempt { return p.amendment(p.worker, p.row.kind, p.posted(p.worker)) })
}

// hidden replays the log as a Worker: neither a redacted Message nor its
// correction is there any more, and the redaction is.
func (p *play) hidden() {
	c := p.find("hidden from a Worker")
	original := p.posted(p.worker)
	correction := p.amendment(p.worker, "message.correct", original)
	p.do(correction)
	p.do(p.amendment(p.lead, "message.redact", original))
	page, _, err := p.other.Events(p.ctx, p.id, 0, 1000)
	p.must(err)
	seen := map[string]bool{}
	for _, d := range page {
		for _, id := range []string{original, correction.payload["messageId"].(string)} {
			if bytes.Contains(d.Bytes, []byte(`"messageId":"`+id+`"`)) {
				p.failed(c, "%s is still delivered", d.Event.Kind)
				return
			}
		}
		seen[d.Event.Kind] = true
	}
	if !seen["message.redacted"] {
		p.failed(c, "the redaction is not delivered")
		return
	}
	p.passed(c)
}

func messageRedact(p *play) {
	p.newScene()
	p.refuse("Worker", p.amendment(p.worker, "message.redact", p.posted(p.other)))
	p.amend(p.lead, "Coordinator")
	p.hidden()
	p.accept("owner", p.amendment(p.owner, "message.redact", p.posted(p.worker)))
	p.secondSession(func() *attempt { return p.amendment(p.lead, p.row.kind, p.posted(p.worker)) })
}
