package matrix

import (
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
)

// Plays in a tree of two Missions. They add to the plays of the same rows in one
// Mission.

func init() {
	for kind, cases := range map[string]func(*play){
		"mission.approve":         approveChild,
		"mission.request_changes": requestChangesOfChild,
		"mission.cancel":          cancelTree,
		"work.cancel":             cancelParentWork,
		"work.unblock":            unblockAfterChild,
		"ext.missionweave.mission.extend_deadline": extendChildDeadline,
		"ext.missionweave.budget.increase":         increaseChildBudget,
		"mission.submit_for_approval":              submitWithChild,
		"work.offer":                               offerWithChild,
		"mission.assign_coordinator":               assignWithChild,
		"mission.terminate":                        terminateTree,
	} {
		scripts[kind] = append(scripts[kind], cases)
	}
	scripts["ext.missionweave.approval.deny_execution"] = []func(*play){denyExecution}
	scripts["ext.missionweave.approval.request_action"] = []func(*play){requestAction}
	scripts["ext.missionweave.approval.decide_action"] = []func(*play){decideAction}
	scripts["ext.missionweave.approval.consume_action"] = []func(*play){consumeAction}
}

// begin starts a child Mission on a new WorkItem.
func (p *play) begin(sub *actor, pairs ...any) (item string, child *group, missionID string) {
	item = p.open()
	a := p.child(item, sub).with(append([]any{
		"budget", map[string]any{"currency": "EUR", "financialLimit": 10, "modelTokenLimit": 1000, "toolCallLimit": 10},
	}, pairs...)...)
	p.do(a)
	return item, p.watched(a), a.payload["missionId"].(string)
}

// inside plays in a child Mission, whose Coordinator then leads.
func (p *play) inside(child *group, missionID string, sub *actor, f func(owner *actor)) {
	outer, all := *p.scene, p.groups
	p.group, p.missionID, p.lead, p.deadline = child, missionID, sub, p.deadline.Add(-2*time.Hour)
	f(outer.lead)
	*p.scene = outer
	p.groups = all
}

// childApproval is the Parent Coordinator's decision about a child Mission.
func (p *play) childApproval(owner *actor, kind, decision string) *attempt {
	d := p.approval(owner, decision)
	d.fields["kind"] = "child_mission"
	return p.as(owner, kind).with("approval", d)
}

func approveChild(p *play) {
	p.newScene()
	sub := p.agent("child")
	item, child, mission := p.begin(sub)
	finish := func() {
		p.admit(p.worker, "worker")
		p.do(p.submitMission(p.verified(p.worker)))
	}
	p.inside(child, mission, sub, func(owner *actor) {
		finish()
		p.framed(func() *attempt { return p.childApproval(owner, "mission.approve", "approved") })
		p.accept("child", p.childApproval(owner, "mission.approve", "approved"))
	})
	if p.item(item).State != protocol.WorkVerified {
		p.failed("positive child", "the parent WorkItem is %s", p.item(item).State)
	}
	_, child, mission = p.begin(sub, "approvalPolicy", map[string]any{"finalHumanApproval": true, "highRiskExecutionApproval": true, "policyVersion": "1.0.0"})
	p.inside(child, mission, sub, func(owner *actor) {
		finish()
		p.refuse("co-approval missing", p.childApproval(owner, "mission.approve", "approved"))
		p.accept("child with co-approval", p.childApproval(owner, "mission.approve", "approved").with("humanApproval", p.approval(p.owner, "approved")))
	})
}

func requestChangesOfChild(p *play) {
	p.newScene()
	sub := p.agent("child")
	_, child, mission := p.begin(sub)
	p.inside(child, mission, sub, func(owner *actor) {
		p.admit(p.worker, "worker")
		done := p.verified(p.worker)
		changes := func() *attempt { return p.childApproval(owner, "mission.request_changes", "changes_requested") }
		p.do(p.submitMission(done))
		p.framed(changes)
		p.accept("child", changes())
		p.do(p.submitMission(done))
		p.do(changes())
	})
}

func cancelTree(p *play) {
	p.newScene()
	sub := p.agent("child")
	_, other, _ := p.begin(sub)
	cancel := func() *attempt { return p.within(other, p.lead, "mission.cancel").with("reason", "Not needed.") }
	p.framed(cancel)
	p.do(cancel())
	_, child, mission := p.begin(sub)
	late := p.within(child, sub, "work.authorize").in("workItemId", client.NewID()).with("contract", p.contract())
	p.accept("cascade", p.as(p.owner, "mission.cancel").with("reason", "Not needed."))
	p.inside(child, mission, sub, func(*actor) {
		if p.state.Mission.State != protocol.MissionCancelled {
			p.failed("positive cascade", "the child Mission is %s", p.state.Mission.State)
		}
	})
	p.refuse("child Group afterwards", late)
}

func cancelParentWork(p *play) {
	p.newScene()
	sub := p.agent("child")
	item, child, _ := p.begin(sub)
	p.accept("child cancelled too", p.cancelWork(p.lead, item))
	if s := child.state.Mission.State; s != protocol.MissionCancelled {
		p.failed("positive child cancelled too", "the child Mission is %s", s)
	}
}

func unblockAfterChild(p *play) {
	p.newScene()
	sub := p.agent("child")
	item, child, _ := p.begin(sub)
	unblock := p.as(p.lead, "work.unblock").in("workItemId", item)
	p.refuse("live child", unblock)
	p.do(p.within(child, sub, "mission.terminate").with("reason", "It cannot be done."))
	p.accept("after failed child", p.as(p.lead, "work.unblock").in("workItemId", item))
}

func extendChildDeadline(p *play) {
	p.newScene()
	_, child, _ := p.begin(p.agent("child"))
	extend := func(d time.Duration) *attempt {
		return p.within(child, p.lead, "ext.missionweave.mission.extend_deadline").with("deadline", client.Timestamp(p.deadline.Add(d)), "reason", "More to do.")
	}
	p.refuse("beyond the parent's", extend(time.Hour))
	p.framed(func() *attempt { return extend(-90 * time.Minute) })
	p.accept("child within the parent's", extend(-90*time.Minute))
	p.do(extend(-80 * time.Minute))
}

func increaseChildBudget(p *play) {
	p.newScene()
	limit := func(tokens int64) map[string]any {
		return map[string]any{"currency": "EUR", "financialLimit": 1, "modelTokenLimit": tokens}
	}
	_, child, _ := p.begin(p.agent("child"), "budget", limit(100))
	increase := func(tokens int64) *attempt {
		return p.within(child, p.lead, "ext.missionweave.budget.increase").with("budget", limit(tokens), "reason", "More to do.")
	}
	p.framed(func() *attempt { return increase(200) })
	p.accept("child Mission", increase(200))
	p.do(increase(300))
	p.secondSession(func() *attempt { return increase(400) })
}

func submitWithChild(p *play) {
	p.newScene()
	done := p.verified(p.worker)
	p.begin(p.agent("child"))
	p.refuse("live child", p.submitMission(done))
}

func offerWithChild(p *play) {
	p.newScene()
	item, _, _ := p.begin(p.agent("child"))
	p.refuse("live child", p.offer(item, p.worker))
}

func assignWithChild(p *play) {
	p.newScene()
	sub := p.agent("child")
	p.begin(sub)
	assign := func(to *actor) *attempt {
		return p.as(p.owner, "mission.assign_coordinator").with("coordinatorAgentId", to.Principal().ID)
	}
	p.refuse("Coordinator of a live child", assign(sub))
	_, child, _ := p.begin(p.agent("child"))
	inChild := func(to *actor) *attempt {
		return p.within(child, p.lead, "mission.assign_coordinator").with("coordinatorAgentId", to.Principal().ID)
	}
	p.framed(func() *attempt { return inChild(p.worker) })
	p.do(inChild(p.worker))
	p.do(assign(p.other))
}

func terminateTree(p *play) {
	p.newScene()
	sub := p.agent("child")
	end := func(child *group) *attempt {
		return p.within(child, sub, "mission.terminate").with("reason", "It cannot be done.")
	}
	for _, policy := range []struct{ name, state string }{
		{"block_parent_work_item", protocol.WorkBlocked}, {"fail_parent_work_item", protocol.WorkFailed},
	} {
		item, child, _ := p.begin(sub, "failurePolicy", policy.name)
		p.accept(policy.name, end(child))
		if s := p.item(item).State; s != policy.state {
			p.failed("positive "+policy.name, "the parent WorkItem is %s", s)
		}
	}
	_, child, _ := p.begin(sub, "failurePolicy", "fail_parent_mission")
	p.refuse("MissionOwner Agent", p.within(child, p.lead, "mission.terminate").with("reason", "No.").in("coordinatorEpoch", 1))
	p.accept("fail_parent_mission", end(child))
	if s := p.state.Mission.State; s != protocol.MissionFailed {
		p.failed("positive fail_parent_mission", "the parent Mission is %s", s)
	}
	down := p.another()
	down.newScene()
	p.made = append(p.made, down.made...)
	_, child, _ = down.begin(sub)
	down.accept("cascade", down.as(down.lead, "mission.terminate").with("reason", "It cannot be done."))
	if s := child.state.Mission.State; s != protocol.MissionFailed {
		p.failed("positive cascade", "the child Mission is %s", s)
	}
}

func denyExecution(p *play) {
	p.newScene()
	item := p.queued(p.worker, gated)
	asked := p.ask(p.worker, item).with("expiresAt", client.Timestamp(p.soon()))
	p.do(asked)
	deny := func(by *actor, decision string) *attempt {
		return p.as(by, "ext.missionweave.approval.deny_execution").in("workItemId", item).with(
			"approval", p.executionApproval(by, item, decision), "ownershipEpoch", p.epoch(item), "requestId", asked.payload["requestId"])
	}
	valid := func() *attempt { return deny(p.owner, "denied") }
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("Worker", p.by(p.worker, valid()))
	p.refuse("decision approved", deny(p.owner, "approved"))
	p.await("the end of the request", func() bool {
		for _, e := range p.events {
			if e.Kind == "ext.missionweave.approval.execution_expired" && e.Cause.ID == asked.payload["requestId"] {
				if e.Actor.Type != client.Service || e.Cause.Type != "timer" {
					p.failed(p.find("expiry Event by the timer"), "actor %s, cause %s", e.Actor.Type, e.Cause.Type)
				}
				return true
			}
		}
		return false
	})
	p.passed(p.find("expiry Event by the timer"))
	p.exactAgain(valid)
	p.accept("late denial", valid())
	p.reuse(valid)
	second := p.ask(p.worker, item)
	p.do(second)
	p.do(p.grant(p.owner, item).with("requestId", second.payload["requestId"]))
	p.refuse("granted request", valid().with("requestId", second.payload["requestId"]))
}

// digest is the argument digest of the Proposed Action of the plays.
var digest = client.Hash([]byte("arguments"))

// askAction is the Authorization Service's question about one Proposed Action.
func (p *play) askAction(who *actor, item string) *attempt {
	return p.as(who, "ext.missionweave.approval.request_action").in("workItemId", item).with(
		"requestId", client.NewID(), "actionId", client.NewID(), "actionType", "mail.send", "agentId", p.worker.Principal().ID,
		"ownershipEpoch", p.epoch(item), "operation", "read", "resources", []string{resource}, "argumentsDigest", digest,
		"argsEqualityVersion", "1", "manifestVersion", "1.0.0", "ruleId", "ask-first", "reason", "It leaves the house.",
		"provenance", []string{}, "sideEffectClass", "external", "expiresAt", client.Timestamp(time.Now().Add(time.Hour)))
}

func (p *play) authorizer() *actor {
	s, err := p.service("authorization")
	p.must(err)
	return s
}

func requestAction(p *play) {
	p.newScene()
	item := p.queued(p.worker, gated)
	valid := func() *attempt { return p.askAction(p.authorizer(), item) }
	p.sets(valid)
	p.refuse("Worker", p.by(p.worker, valid()))
	p.refuse("Coordinator", p.by(p.lead, valid()))
	p.accept("asked", valid())
	p.refuse("does not open the start gate", p.startWork(p.worker, item))
}

func (p *play) decideOn(by *actor, item string, request any, decision string) *attempt {
	d := p.executionApproval(by, item, decision)
	d.fields["conditions"] = []string{"argumentsDigest:" + digest}
	a := p.as(by, "ext.missionweave.approval.decide_action").in("workItemId", item).with(
		"requestId", request, "approval", d, "scope", "one_shot", "argumentsDigest", digest)
	if decision == "approved" {
		a.with("expiresAt", client.Timestamp(time.Now().Add(time.Hour)))
	}
	return a
}

func decideAction(p *play) {
	p.newScene()
	item := p.active(p.worker)
	ask := func(life time.Duration) any {
		a := p.askAction(p.authorizer(), item).with("expiresAt", client.Timestamp(time.Now().Add(life)))
		p.do(a)
		return a.payload["requestId"]
	}
	request, brief, until := ask(time.Hour), ask(time.Duration(p.brief)*time.Second), p.soon()
	valid := func() *attempt { return p.decideOn(p.owner, item, request, "approved") }
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("Agent", p.by(p.lead, valid()))
	p.refuse("other digest", valid().with("argumentsDigest", client.Hash([]byte("other"))))
	p.exactAgain(valid)
	p.accept("one_shot", valid())
	p.accept("denied", p.decideOn(p.owner, item, ask(time.Hour), "denied"))
	p.wait(until)
	p.refuse("approve after expiry", p.decideOn(p.owner, item, brief, "approved"))
	p.accept("late denial", p.decideOn(p.owner, item, brief, "denied"))
	p.reuse(func() *attempt { return p.decideOn(p.owner, item, ask(time.Hour), "approved") })
}

// consumption is the use of what was asked and decided.
func (p *play) consumption(item string, asked, decision *attempt) *attempt {
	return p.as(p.authorizer(), "ext.missionweave.approval.consume_action").in("workItemId", item).with(
		"requestId", asked.payload["requestId"], "approvalId", decision.doc("approval").fields["approvalId"],
		"actionId", asked.payload["actionId"], "executionLeaseId", p.lease(item), "capabilityTokenId", client.NewID())
}

func consumeAction(p *play) {
	p.newScene()
	item := p.active(p.worker)
	decided := func(item, decision string) (asked, decision2 *attempt) {
		a := p.askAction(p.authorizer(), item)
		p.do(a)
		d := p.decideOn(p.owner, item, a.payload["requestId"], decision)
		p.do(d)
		return a, d
	}
	use := p.consumption
	asked, decision := decided(item, "approved")
	valid := func() *attempt { return use(item, asked, decision) }
	p.sets(valid)
	denied, no := decided(item, "denied")
	p.refuse("after denial", use(item, denied, no))
	p.exactAgain(valid)
	p.accept("used", valid())
	p.refuse("twice", valid())
	later, yes := decided(item, "approved")
	p.do(p.checkpoint(p.worker, item))
	p.refuse("after the lease", use(item, later, yes))
}
