package matrix

import (
	"time"

	"github.com/missionweave/server/client"
)

// scripts are the cases of each row, each entry in a Mission of its own.
var scripts = map[string][]func(*play){
	"mission.create":              {missionCreate},
	"mission.renew_coordinator":   {renewCoordinator},
	"mission.submit_for_approval": {submitForApproval},
	"mission.approve":             {missionApprove},
	"mission.request_changes":     {requestChanges},
	"membership.change":           {membershipChange},
	"message.post":                {messagePost},
	"work.propose":                {workPropose},
	"work.authorize":              {workAuthorize},
	"work.offer":                  {workOffer},
	"work.accept_offer":           {workAcceptOffer},
	"work.start":                  {workStart},
	"ext.missionweaveprotocol.core.work_execution_lease_renew": {executionLeaseRenew},
	"work.checkpoint":    {workCheckpoint},
	"artifact.publish":   {artifactPublish},
	"work.submit":        {workSubmit},
	"work.accept_result": {workAcceptResult},
}

func missionCreate(p *play) {
	coordinator, group, mission := p.reviewer.Principal().ID, client.NewID(), client.NewID()
	valid := func() *attempt { return p.creation(p.owner, group, mission, coordinator) }
	p.sets(valid)
	service, err := p.service("policy")
	p.must(err)
	asService := valid()
	asService.who, asService.env["actor"] = service, service.Principal()
	asAgent := valid()
	asAgent.who = p.reviewer
	asAgent.in("actor", p.reviewer.Principal()).in("sessionEpoch", p.reviewer.sessionEpoch()).in("membershipEpoch", 1)
	p.refuse("Agent actor", asAgent)
	p.refuse("service actor", asService)
	p.refuse("membershipEpoch present", valid().in("membershipEpoch", 1))
	p.refuse("sessionEpoch present", valid().in("sessionEpoch", 1))
	p.refuse("payload groupId differs", valid().with("groupId", client.NewID()))
	p.refuse("unregistered Coordinator", valid().with("coordinatorAgentId", client.NewID()))
	p.refuse("past deadline", valid().with("deadline", client.Timestamp(time.Now().Add(-time.Second))))
	p.refuse("finalHumanApproval false", valid().change("approvalPolicy", func(m map[string]any) { m["finalHumanApproval"] = false }))
	p.refuse("followUpToMissionId", valid().with("followUpToMissionId", client.NewID()))
	p.refuse("financialLimit without currency", valid().change("budget", func(m map[string]any) { delete(m, "currency") }))
	p.refuse("empty definitionOfDone", valid().with("definitionOfDone", []any{}))
	p.refuse("unknown pinned profile", valid().with("pinnedProfiles", []any{map[string]any{
		"profileUri": "urn:missionweave:matrix:profile", "majorVersion": 1,
	}}))
	p.refuse("expectedRevision 3", valid().in("expectedRevision", 3))
	p.scene = &scene{missionID: mission, lead: p.reviewer, outsiders: map[string]bool{}, deadline: time.Now().Add(24 * time.Hour)}
	p.scene.group = p.watch(group, mission, p.owner)
	p.accept("human creates", valid())
	if p.state.Head != 1 || p.state.Mission == nil {
		p.failed("positive human creates", "the Group's head is %d", p.state.Head)
		return
	}
	p.refuse("missionId in use", func() *attempt {
		other := client.NewID()
		return valid().in("groupId", other).with("groupId", other)
	}())
	p.refuse("groupId in use", valid().with("missionId", client.NewID()))
	p.do(p.as(p.reviewer, "mission.renew_coordinator").with("leaseSeconds", 1200))
}

func renewCoordinator(p *play) {
	p.newScene()
	valid := func() *attempt { return p.as(p.lead, "mission.renew_coordinator").with("leaseSeconds", 1000) }
	p.sets(valid)
	p.refuse("shorter", valid().with("leaseSeconds", 1))
	p.accept("before expiry", valid())
	p.ruin(valid)
	p.do(p.as(p.owner, "mission.assign_coordinator").with("coordinatorAgentId", p.lead.Principal().ID, "leaseSeconds", p.brief))
	p.wait(p.soon())
	p.refuse("after expiry", valid())
	p.do(p.as(p.owner, "mission.assign_coordinator").with("coordinatorAgentId", p.lead.Principal().ID))
	p.do(p.as(p.owner, "mission.cancel").with("reason", "Enough seen."))
	p.refuse("terminal Mission", valid())
}

func submitForApproval(p *play) {
	p.newScene()
	first := p.submitted(p.worker)
	valid := func() *attempt { return p.submitMission(first) }
	p.do(p.acceptResult(first))
	p.sets(valid)
	p.refuse("unknown hash", valid().with("artifactHashes", []string{client.Hash([]byte("unknown"))}))
	p.refuse("empty hashes", valid().with("artifactHashes", []string{}))
	second := p.open()
	p.refuse("unfinished WorkItem", valid())
	p.do(p.failWork(second))
	p.refuse("failed not accepted", valid())
	p.accept("accepted failure", valid().with("acceptedFailures", []any{map[string]any{"workItemId": second, "reason": "Not needed."}}))
	p.refuse("twice", valid().with("acceptedFailures", []any{map[string]any{"workItemId": second, "reason": "Not needed."}}))
	back := func() {
		changes := p.approval(p.owner, "changes_requested")
		p.do(p.as(p.owner, "mission.request_changes").with("approval", changes))
	}
	back()
	third := client.NewID()
	p.do(p.authorize(third).with("replacesWorkItemId", second))
	p.do(p.offer(third, p.worker))
	p.do(p.acceptOffer(p.worker, third))
	p.do(p.startWork(p.worker, third))
	p.do(p.publish(p.worker, third))
	p.do(p.submit(p.worker, third))
	p.do(p.acceptResult(third))
	p.accept("superseded failure", p.submitMission(first, third))
	back()
	p.do(p.offer(second, p.worker))
	p.do(p.cancelWork(p.lead, second))
	p.accept("all verified", p.submitMission(first, third))
	back()
	p.ruin(valid)
}

// awaiting brings the Mission of the play before its MissionOwner.
func (p *play) awaiting() {
	p.do(p.submitMission(p.verified(p.worker), p.verified(p.worker)))
}

func missionApprove(p *play) {
	p.newScene()
	valid := func() *attempt { return p.decideMission(p.owner, "mission.approve", "approved") }
	p.refuse("active Mission", valid())
	p.awaiting()
	p.sets(valid)
	doc := func(edit func(d *document)) *attempt {
		a := valid()
		edit(a.doc("approval"))
		return a
	}
	set := func(name string, value any) *attempt { return doc(func(d *document) { d.fields[name] = value }) }
	lead := p.as(p.lead, "mission.approve").with("approval", p.approval(p.owner, "approved"))
	p.refuse("Coordinator", lead)
	human, err := p.newHuman(p.ctx, "other")
	p.must(err)
	p.admit(human, "observer")
	p.refuse("other human", p.decideMission(human, "mission.approve", "approved"))
	p.refuse("wrong missionRevision", set("missionRevision", p.state.Mission.Submission.MissionRevision+1))
	p.refuse("hash extra", set("artifactHashes", append([]string{client.Hash([]byte("more"))}, p.state.Mission.Submission.ArtifactHashes...)))
	p.refuse("hash missing", set("artifactHashes", p.state.Mission.Submission.ArtifactHashes[:1]))
	p.refuse("decision denied", set("decision", "denied"))
	p.refuse("kind child_mission", set("kind", "child_mission"))
	p.refuse("policy version differs", set("acceptancePolicyVersion", "2.0.0"))
	p.withoutAuthority(valid)
	p.accept("root", valid())
	p.reuse(valid)
}

func requestChanges(p *play) {
	p.newScene()
	valid := func() *attempt { return p.decideMission(p.owner, "mission.request_changes", "changes_requested") }
	p.refuse("active Mission", valid())
	p.awaiting()
	p.sets(valid)
	set := func(name string, value any) *attempt {
		a := valid()
		a.doc("approval").fields[name] = value
		return a
	}
	p.refuse("empty comments", set("comments", ""))
	p.refuse("decision approved", set("decision", "approved"))
	p.refuse("old revision", set("missionRevision", p.state.Mission.Submission.MissionRevision-1))
	p.accept("root", valid())
	p.ruin(valid)
}

func membershipChange(p *play) {
	p.newScene()
	valid := func() *attempt {
		return p.as(p.lead, "membership.change").with("member", p.other.Principal(), "role", "work_delegate", "visibilityStartSequence", 1)
	}
	provisional := func(who *actor) *attempt {
		return p.as(p.lead, "membership.change").with("member", who.Principal(), "role", "worker", "state", "provisional",
			"provisionalExpiresAt", client.Timestamp(time.Now().Add(time.Hour)), "contextPackage", p.contextPackage(p.lead))
	}
	p.documented = func() *attempt { return provisional(p.reviewer) }
	p.sets(valid)
	lead := func(pairs ...any) *attempt { return p.as(p.lead, "membership.change").with(pairs...) }
	owner := func(pairs ...any) *attempt { return p.as(p.owner, "membership.change").with(pairs...) }
	p.refuse("Worker", p.by(p.worker, valid()).leaving("coordinatorEpoch"))
	p.refuse("role coordinator for another", owner("member", p.other.Principal(), "role", "coordinator"))
	p.refuse("MissionOwner's role", lead("member", p.owner.Principal(), "role", "observer"))
	p.refuse("human as worker", lead("member", p.outsiderHuman.Principal(), "role", "worker"))
	service, err := p.service("policy")
	p.must(err)
	p.refuse("service", lead("member", service.Principal(), "role", "observer"))
	p.refuse("provisional without expiry", lead("member", p.outsider.Principal(), "role", "worker", "state", "provisional"))
	p.refuse("active to provisional", lead("member", p.other.Principal(), "role", "worker", "state", "provisional",
		"provisionalExpiresAt", client.Timestamp(time.Now().Add(time.Hour))))
	p.refuse("start raised", lead("member", p.other.Principal(), "role", "worker", "visibilityStartSequence", 2))
	p.refuse("Coordinator start 5", owner("member", p.lead.Principal(), "role", "coordinator", "visibilityStartSequence", 5))
	p.refuse("foreign scope", lead("member", p.other.Principal(), "role", "worker", "scopes", []string{"mission.approve"}))
	p.refuse("unknown Agent", lead("member", map[string]any{"type": "agent", "id": client.NewID()}, "role", "worker"))
	human, err := p.newHuman(p.ctx, "approver")
	p.must(err)
	p.refuse("Coordinator grants approval.execution", lead("member", human.Principal(), "role", "observer", "scopes", []string{"message.read", "approval.execution"}))
	p.accept("worker active", valid())
	packaged := p.documented()
	p.accept("provisional with package", packaged)
	again := p.documented()
	again.doc("contextPackage").fields["contextPackageId"] = packaged.doc("contextPackage").fields["contextPackageId"]
	p.refuse("document id reused", again)
	p.accept("scopes narrowed", lead("member", p.other.Principal(), "role", "work_delegate", "scopes", []string{"message.post", "work.propose"}))
	p.do(p.as(p.lead, "membership.end").with("member", p.other.Principal()))
	p.accept("re-join", lead("member", p.other.Principal(), "role", "worker", "visibilityStartSequence", 1))
	p.ruin(valid)
}
