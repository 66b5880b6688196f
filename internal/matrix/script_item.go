package matrix

import (
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
)

func init() {
	for kind, cases := range map[string][]func(*play){
		"ext.missionweave.work.offer_decline":                 {offerDecline},
		"ext.missionweaveprotocol.core.work_dependency_add":   {dependencyAdd},
		"ext.missionweave.work.ownership_lease_renew":         {ownershipLeaseRenew},
		"ext.missionweaveprotocol.core.resource_usage_record": {usageRecord},
		"work.block":               {workBlock},
		"work.unblock":             {workUnblock},
		"work.fail":                {workFail},
		"work.cancel":              {workCancel},
		"approval.grant_execution": {grantExecution},
		"ext.missionweave.approval.request_execution": {requestExecution},
		"ext.missionweave.approval.revoke_execution":  {revokeExecution},
	} {
		scripts[kind] = append(scripts[kind], cases...)
	}
}

func offerDecline(p *play) {
	p.newScene()
	decline := func(who *actor, item string) *attempt {
		return p.as(who, "ext.missionweave.work.offer_decline").in("workItemId", item).with("offerId", p.offerOf(item, who), "declineReason", "other")
	}
	item := p.offered(p.worker, p.other)
	valid := func() *attempt { return decline(p.worker, item) }
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("unknown reason", valid().with("declineReason", "unheard_of"))
	p.refuse("other's offer", valid().with("offerId", p.offerOf(item, p.other)))
	p.accept("each reason", valid())
	p.refuse("twice", valid())
	for _, reason := range []string{"capacity", "deadline", "capability", "authorization", "dependency", "budget"} {
		p.accept("each reason", decline(p.worker, p.offered(p.worker)).with("declineReason", reason))
	}
	raced := p.offered(p.worker, p.other)
	p.do(p.acceptOffer(p.other, raced))
	p.refuse("after loss", decline(p.worker, raced))
	p.secondSession(valid)
}

func dependencyAdd(p *play) {
	p.newScene()
	first, second, third := p.open(), p.open(), p.open()
	add := func(item string, on ...string) *attempt {
		return p.as(p.lead, "ext.missionweaveprotocol.core.work_dependency_add").in("workItemId", item).with("dependencyWorkItemIds", on)
	}
	valid := func() *attempt { return add(first, second) }
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("self", add(first, first))
	p.refuse("Worker", p.by(p.worker, valid()).leaving("coordinatorEpoch"))
	p.refuse("unknown", add(first, client.NewID()))
	p.exactAgain(valid)
	p.accept("open", valid())
	p.refuse("cycle", add(second, first))
	p.refuse("present", valid())
	p.refuse("queued", add(p.queued(p.worker), second))
	p.do(p.offer(third, p.worker))
	p.accept("offered", add(third, second))
	p.secondSession(valid)
}

func ownershipLeaseRenew(p *play) {
	p.newScene()
	item := p.handedOver(p.other, p.worker)
	renew := func(who *actor, item string) *attempt {
		return p.as(who, "ext.missionweave.work.ownership_lease_renew").in("workItemId", item).with("ownershipEpoch", p.epoch(item), "leaseSeconds", 1800)
	}
	valid := func() *attempt { return renew(p.worker, item) }
	p.sets(valid)
	p.workerSet(item, renew)
	p.refuse("past contract deadline", valid().with("leaseSeconds", 24*3600))
	p.refuse("active", renew(p.worker, p.active(p.worker)))
	brief := p.offered(p.worker)
	p.do(p.acceptOffer(p.worker, brief).with("ownershipLeaseSeconds", p.brief))
	p.wait(p.soon())
	p.refuse("lapsed", renew(p.worker, brief))
	p.accept("queued", valid())
	p.do(valid().with("leaseSeconds", 2400))
	p.secondSession(valid)
}

func (p *play) usage(who *actor, item string) *attempt {
	return p.working(who, "ext.missionweaveprotocol.core.resource_usage_record", item).with("usageDelta", map[string]any{"modelTokens": 1})
}

func usageRecord(p *play) {
	p.newScene()
	item := p.handedOver(p.other, p.worker)
	p.do(p.startWork(p.worker, item))
	valid := func() *attempt { return p.usage(p.worker, item) }
	delta := func(d map[string]any) *attempt { return valid().with("usageDelta", d) }
	p.sets(valid)
	p.workerSet(item, p.usage)
	p.refuse("zero delta", delta(map[string]any{"modelTokens": 0}))
	p.refuse("one dimension over", delta(map[string]any{"toolCalls": 1, "modelTokens": 1001}))
	p.refuse("absent dimension", delta(map[string]any{"computeSeconds": 1}))
	p.refuse("seven decimals", delta(map[string]any{"currency": "EUR", "financial": 0.0000001}))
	p.refuse("currency", delta(map[string]any{"currency": "USD", "financial": 1}))
	p.refuse("financial without currency", delta(map[string]any{"financial": 1}))
	p.refuse("Coordinator", p.by(p.lead, valid()))
	p.exactAgain(valid)
	p.accept("Worker", valid())
	p.setV(valid)
	meter, err := p.service("metering")
	p.must(err)
	closed := p.lease(item)
	p.do(p.checkpoint(p.worker, item))
	byMeter := func() *attempt { return p.usage(meter, item).with("executionLeaseId", closed) }
	p.refuse("service with unknown lease", byMeter().with("executionLeaseId", client.NewID()))
	p.refuse("service without groupId", byMeter().leaving("groupId"))
	p.accept("service after closure", byMeter())
	p.do(p.startWork(p.worker, item))
	p.takenOver(item, p.usage)
}

func workBlock(p *play) {
	p.newScene()
	item := p.handedOver(p.other, p.worker)
	p.do(p.startWork(p.worker, item))
	valid := func() *attempt { return p.block(p.worker, item) }
	p.sets(valid)
	p.workerSet(item, p.block)
	p.refuse("requiredResolution missing", valid().without("requiredResolution"))
	p.refuse("queued", p.block(p.worker, p.queued(p.worker)))
	p.exactAgain(valid)
	p.accept("with resolution", valid())
	p.takenOver(p.active(p.worker), p.block)
}

func workUnblock(p *play) {
	p.newScene()
	item := p.active(p.worker)
	p.do(p.block(p.worker, item))
	unblock := func(item string) *attempt {
		return p.as(p.lead, "work.unblock").in("workItemId", item).with("resolution", "Answered.")
	}
	valid := func() *attempt { return unblock(item) }
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("owner", p.by(p.worker, valid()).leaving("coordinatorEpoch"))
	p.refuse("not blocked", unblock(p.open()))
	p.exactAgain(valid)
	p.accept("to queued", valid())
	brief := p.active(p.worker)
	p.do(p.block(p.worker, brief).with("blockedLeaseSeconds", p.brief))
	p.wait(p.soon())
	p.accept("to open", unblock(brief))
	p.secondSession(valid)
}

func workFail(p *play) {
	p.newScene()
	item := p.active(p.worker)
	valid := func() *attempt { return p.failWork(item) }
	p.sets(valid)
	p.withoutAuthority(valid)
	passed := valid()
	passed.doc("evidence").fields["result"] = "passed"
	p.refuse("no Evidence", valid().with("evidence", []any{}))
	p.refuse("passed only", passed)
	p.admit(p.reviewer, "observer")
	p.refuse("observer", p.by(p.reviewer, valid()).leaving("coordinatorEpoch"))
	own := func(item string) *attempt {
		return p.working(p.worker, "work.fail", item).with("reason", "It broke.", "evidence", []any{p.proof(p.worker, item, "failure_report", "failed")})
	}
	queued := p.queued(p.worker)
	p.refuse("Worker from queued", own(queued))
	done := p.verified(p.worker)
	p.refuse("verified", p.failWork(done))
	gone := p.open()
	p.do(p.cancelWork(p.lead, gone))
	p.refuse("cancelled", p.failWork(gone))
	p.exactAgain(valid)
	p.accept("from active", valid())
	p.refuse("failed", valid())
	p.do(p.offer(item, p.worker))
	p.passed("positive then re-offered")
	p.accept("from offered", p.failWork(item))
	p.accept("from queued", p.failWork(queued))
	p.accept("from open", p.failWork(p.open()))
	p.accept("from submitted", p.failWork(p.submitted(p.worker)))
	blocked := p.active(p.worker)
	p.do(p.block(p.worker, blocked))
	p.accept("from blocked", p.failWork(blocked))
	p.accept("Worker", own(p.active(p.worker)))
	handed := p.handedOver(p.other, p.worker)
	p.do(p.startWork(p.worker, handed))
	ownOf := func(who *actor, item string) *attempt {
		return p.working(who, "work.fail", item).with("reason", "It broke.", "evidence", []any{p.proof(who, item, "failure_report", "failed")})
	}
	p.workerSet(handed, ownOf)
	p.takeover(handed, ownOf)
	p.reuse(func() *attempt { return p.failWork(p.open()) })
	p.secondSession(valid)
}

func workCancel(p *play) {
	p.newScene()
	item := p.active(p.worker)
	valid := func() *attempt { return p.cancelWork(p.lead, item) }
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("Worker", p.by(p.worker, valid()).leaving("coordinatorEpoch"))
	failed := p.open()
	p.do(p.failWork(failed))
	p.refuse("failed", p.cancelWork(p.lead, failed))
	p.refuse("verified", p.cancelWork(p.lead, p.verified(p.worker)))
	p.exactAgain(valid)
	p.accept("Coordinator", valid())
	p.accept("owner", p.cancelWork(p.owner, p.queued(p.worker)))
	p.accept("service", p.cancelWork(p.policyService(), p.offered(p.worker)))
	p.do(p.cancelWork(p.lead, p.submitted(p.worker)))
	blocked := p.active(p.worker)
	p.do(p.block(p.worker, blocked))
	p.do(p.cancelWork(p.lead, blocked))
	p.secondSession(valid)
}

// gated asks for a human's Approval before the start.
func gated(c map[string]any) {
	c["executionApproval"] = "human_required"
	c["allowedResources"] = []any{map[string]any{"resource": resource, "operations": []string{"read"}}}
}

// executionApproval is an Approval of a WorkItem's execution.
func (p *play) executionApproval(by *actor, item, decision string) *document {
	return &document{kind: protocol.KindApproval, by: by.Identity(), fields: map[string]any{
		"approvalId": client.NewID(), "kind": "work_execution", "decision": decision, "missionId": p.missionID, "groupId": p.id,
		"workItemId": item, "missionRevision": p.state.Mission.Revision, "artifactHashes": []string{}, "acceptancePolicyVersion": "1.0.0",
		"approver": by.Principal(), "comments": "Looked at it.", "conditions": []string{}, "occurredAt": client.Timestamp(time.Now()),
	}}
}

func (p *play) grant(by *actor, item string) *attempt {
	return p.as(by, "approval.grant_execution").in("workItemId", item).with(
		"approval", p.executionApproval(by, item, "approved"), "ownershipEpoch", p.epoch(item), "operations", []string{"read"},
		"resources", []string{resource}, "expiresAt", client.Timestamp(time.Now().Add(time.Hour)))
}

func grantExecution(p *play) {
	p.newScene()
	item := p.queued(p.worker, gated)
	valid := func() *attempt { return p.grant(p.owner, item) }
	p.sets(valid)
	p.withoutAuthority(valid)
	set := func(name string, value any) *attempt {
		a := valid()
		a.doc("approval").fields[name] = value
		return a
	}
	p.refuse("Agent", p.by(p.lead, valid()))
	p.refuse("another ownership epoch", valid().with("ownershipEpoch", p.epoch(item)+1))
	p.refuse("operation beyond the contract", valid().with("operations", []string{"write"}))
	p.refuse("budget beyond remaining", valid().with("budget", budgetOf(10_000, 10)))
	p.refuse("past expiry", valid().with("expiresAt", client.Timestamp(time.Now().Add(-time.Second))))
	p.refuse("missionRevision old", set("missionRevision", p.state.Mission.Revision-1))
	other := valid()
	other.payload["approval"] = p.executionApproval(p.outsiderHuman, item, "approved")
	p.refuse("approver differs", other)
	p.refuse("service on human_required", func() *attempt {
		return p.grant(p.policyService(), item)
	}())
	p.accept("root human", valid())
	p.refuse("id in use", func() *attempt {
		a := valid()
		a.doc("approval").fields["approvalId"] = p.first.attempt.doc("approval").fields["approvalId"]
		return a
	}())
	p.reuse(valid)
	p.do(p.startWork(p.worker, item))
	p.refuse("not queued", valid())
	policy := p.queued(p.worker, gated, func(c map[string]any) { c["executionApproval"] = "policy_required" })
	p.accept("service on policy_required", p.grant(p.policyService(), policy))
}

func (p *play) ask(who *actor, item string) *attempt {
	return p.as(who, "ext.missionweave.approval.request_execution").in("workItemId", item).with(
		"requestId", client.NewID(), "ownershipEpoch", p.epoch(item), "operations", []string{"read"}, "resources", []string{resource},
		"expiresAt", client.Timestamp(time.Now().Add(time.Hour)))
}

func requestExecution(p *play) {
	p.newScene()
	item := p.queued(p.worker, gated)
	valid := func() *attempt { return p.ask(p.worker, item) }
	p.sets(valid)
	p.refuse("another ownership epoch", valid().with("ownershipEpoch", p.epoch(item)+1))
	p.refuse("not queued", p.ask(p.worker, p.active(p.worker)))
	asked := valid()
	p.accept("then granted", asked)
	p.do(p.grant(p.owner, item).with("requestId", asked.payload["requestId"]))
	p.secondSession(valid)
}

// revocation revokes an execution approval.
func (p *play) revocation(item string, grant *attempt) *attempt {
	d := p.executionApproval(p.owner, item, "revoked")
	d.fields["revokesApprovalId"] = grant.doc("approval").fields["approvalId"]
	return p.as(p.owner, "ext.missionweave.approval.revoke_execution").in("workItemId", item).with("approval", d)
}

func revokeExecution(p *play) {
	p.newScene()
	item := p.queued(p.worker, gated)
	grant := p.grant(p.owner, item)
	p.do(grant)
	valid := func() *attempt { return p.revocation(item, grant) }
	p.sets(valid)
	p.withoutAuthority(valid)
	unknown := valid()
	unknown.doc("approval").fields["revokesApprovalId"] = client.NewID()
	p.refuse("unknown", unknown)
	p.accept("start then needs Approval", valid())
	if err := p.refusedOnce("APR start", p.startWork(p.worker, item)); err != nil {
		p.failed("positive start then needs Approval", "%v", err)
	}
	p.refuse("twice", valid())
	p.reuse(valid)
}
