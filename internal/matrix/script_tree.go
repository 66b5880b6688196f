package matrix

import (
	"time"

	"github.com/missionweave/server/client"
)

func init() {
	scripts["mission.create_follow_up"] = []func(*play){followUp, followCancelled}
	scripts["mission.create_child"] = append(scripts["mission.create_child"], createChild)
	scripts["membership.change"] = append(scripts["membership.change"], childMembers)
	scripts["approval.grant_execution"] = append(scripts["approval.grant_execution"], grantInChild)
}

// child is a mission.create_child from a WorkItem.
func (p *play) child(item string, coordinator *actor) *attempt {
	return p.as(p.lead, "mission.create_child").in("workItemId", item).with(
		"missionId", client.NewID(), "groupId", client.NewID(), "coordinatorAgentId", coordinator.Principal().ID,
		"objective", "Do a part of it: "+item, "definitionOfDone", []any{map[string]any{"criterionId": "part", "description": "It is done.", "evidenceRequired": []string{"policy_check"}}},
		"budget", map[string]any{"currency": "EUR", "financialLimit": 1, "modelTokenLimit": 100},
		"deadline", client.Timestamp(p.deadline.Add(-2*time.Hour)))
}

// watched accepts or sends a mission.create_child and reads its Group from then on.
func (p *play) watched(a *attempt) *group {
	g := p.watch(a.payload["groupId"].(string), p.missionID, p.owner)
	_, err := g.sync(p.ctx)
	p.must(err)
	return g
}

func createChild(p *play) {
	p.newScene()
	sub := p.agent("child")
	item := p.open()
	valid := func() *attempt { return p.child(item, sub) }
	p.sets(valid)
	p.withoutAuthority(valid)
	p.refuse("child Coordinator is the actor", p.child(item, p.lead))
	p.refuse("deadline after the contract's", valid().with("deadline", client.Timestamp(p.deadline.Add(-time.Minute))))
	p.refuse("wider permissions", valid().with("permissions", []any{map[string]any{"resource": resource, "operations": []string{"read"}}}))
	p.refuse("weaker approval policy", valid().with("approvalPolicy", map[string]any{"finalHumanApproval": false, "highRiskExecutionApproval": false, "policyVersion": "1.0.0"}))
	p.refuse("budget over the WorkItem's", valid().change("budget", func(b map[string]any) { b["modelTokenLimit"] = 1001 }))
	p.refuse("human actor", p.by(p.owner, valid()).in("coordinatorEpoch", 1))
	submitted := p.submitted(p.worker)
	p.refuse("from submitted", p.child(submitted, sub))
	p.do(p.acceptResult(submitted))
	p.refuse("from verified", p.child(submitted, sub))
	lost, gone := p.open(), p.open()
	p.do(p.failWork(lost))
	p.refuse("from failed", p.child(lost, sub))
	p.do(p.cancelWork(p.lead, gone))
	p.refuse("from cancelled", p.child(gone, sub))

	p.exactAgain(valid)
	first := valid()
	p.accept("from open", first)
	child := p.watched(first)
	p.refuse("second child", valid())
	p.do(p.within(child, p.lead, "mission.cancel").with("reason", "Start again."))
	second := valid()
	p.accept("after cancelled child", second)
	child = p.watched(second)
	p.do(p.within(child, sub, "mission.terminate").with("reason", "It cannot be done."))
	third := valid()
	p.accept("after failed child", third)
	p.watched(third)
	for _, from := range []struct {
		name string
		item string
	}{{"from offered", p.offered(p.worker)}, {"from queued", p.queued(p.worker)}, {"from active", p.active(p.worker)}} {
		a := p.child(from.item, sub)
		p.accept(from.name, a)
		p.watched(a)
		if from.name == "from queued" {
			p.refuse("old owner then starts", p.startWork(p.worker, from.item).with("ownershipEpoch", 1))
		}
	}
	blocked := p.active(p.worker)
	p.do(p.block(p.worker, blocked))
	last := p.child(blocked, sub)
	p.accept("from blocked", last)
	p.watched(last)
	p.secondSession(func() *attempt { return p.child(item, sub) })
	p.end()
}

func followUp(p *play) {
	p.newScene()
	source := p.missionID
	mission, id := client.NewID(), client.NewID()
	valid := func() *attempt {
		a := p.creation(p.owner, id, mission, p.lead.Principal().ID)
		a.env["kind"] = "mission.create_follow_up"
		return a.with("followUpToMissionId", source)
	}
	p.refuse("source active", valid())
	observer, err := p.newHuman(p.ctx, "follower")
	p.must(err)
	p.admit(observer, "observer")
	p.awaiting()
	approve := p.decideMission(p.owner, "mission.approve", "approved")
	p.do(approve)
	p.documented = func() *attempt {
		d := p.approval(p.owner, "revoked")
		d.fields["revokesApprovalId"] = approve.doc("approval").fields["approvalId"]
		return valid().with("revocation", d)
	}
	p.sets(valid)
	p.refuse("unknown source", valid().with("followUpToMissionId", client.NewID()))
	p.refuse("without followUpToMissionId", valid().without("followUpToMissionId"))
	foreign := p.documented()
	foreign.doc("revocation").fields["revokesApprovalId"] = client.NewID()
	p.refuse("revokes a foreign Approval", foreign)
	first := valid()
	p.watch(id, mission, p.owner)
	p.accept("without revocation", first)
	mission, id = client.NewID(), client.NewID()
	second := p.documented()
	p.watch(id, mission, p.owner)
	p.accept("with revocation", second)
	mission, id = client.NewID(), client.NewID()
	again := p.documented()
	again.doc("revocation").fields["approvalId"] = second.doc("revocation").fields["approvalId"]
	p.refuse("document id reused", again)
	p.refuse("not the owner", p.by(observer, valid()).leaving("membershipEpoch"))
}

func followCancelled(p *play) {
	p.newScene()
	source := p.missionID
	p.end()
	a := p.creation(p.owner, client.NewID(), client.NewID(), p.lead.Principal().ID)
	a.env["kind"] = "mission.create_follow_up"
	p.refuse("source cancelled", a.with("followUpToMissionId", source))
}

// childMembers: the root's human watches every child Mission, and stays what it is.
func childMembers(p *play) {
	p.newScene()
	_, child, _ := p.begin(p.agent("child"))
	p.refuse("root MissionOwner in a child", p.within(child, p.lead, "membership.change").with(
		"member", p.owner.Principal(), "role", "observer", "scopes", []string{"message.read"}))
}

// grantInChild: the root's human opens the gates of child Missions too.
func grantInChild(p *play) {
	p.newScene()
	sub := p.agent("child")
	item := p.open(gated)
	a := p.child(item, sub).with("permissions", []any{map[string]any{"resource": resource, "operations": []string{"read"}}})
	p.do(a)
	p.inside(p.watched(a), a.payload["missionId"].(string), sub, func(*actor) {
		p.admit(p.worker, "worker")
		item := p.open(gated, func(c map[string]any) { c["budget"] = map[string]any{"currency": "EUR", "financialLimit": 1} })
		p.do(p.offer(item, p.worker))
		p.do(p.acceptOffer(p.worker, item))
		p.accept("human in a child", p.grant(p.owner, item))
		p.do(p.startWork(p.worker, item))
	})
}
