package matrix

import (
	"slices"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Plays about archival (COMMANDS.md 5.7): the snapshot is made here, from the fold
// of the Events as they were read, so that the server's answer is held against a
// second reading of the log.

const kindArchive = "ext.missionweaveprotocol.core.group_archive"

func init() {
	scripts[kindArchive] = append(scripts[kindArchive], archiveApproved, archiveFailed, archiveCancelled)
}

func (p *play) archivist() *actor {
	s, err := p.service("archival")
	p.must(err)
	return s
}

// draft is the snapshot of the play's Group at its head.
func (p *play) draft() *document {
	_, err := p.sync(p.ctx)
	p.must(err)
	by := p.archivist()
	d, err := p.state.DraftSnapshot(client.NewID(), by.Principal(), client.Timestamp(time.Now()), p.messages)
	p.must(err)
	b, err := strictjson.Marshal(&d)
	p.must(err)
	doc, err := strictjson.Parse(b)
	p.must(err)
	var fields map[string]any
	p.must(strictjson.Decode(doc.Root(), &fields))
	delete(fields, "signature")
	return &document{kind: protocol.KindGroupSnapshot, by: by.Identity(), fields: fields}
}

func (p *play) archive() *attempt {
	return p.as(p.archivist(), kindArchive).with("snapshot", p.draft())
}

func archiveApproved(p *play) {
	p.newScene()
	_, _, _, visitor := p.outside(p.worker) // a provisional member that archival ends
	valid := p.archive
	p.refuse("active Mission", valid())
	posted := p.posted(p.worker)
	p.do(p.amendment(p.worker, "message.correct", posted))
	p.do(p.amendment(p.lead, "message.redact", posted))
	p.awaiting()
	p.do(p.decideMission(p.owner, "mission.approve", "approved"))
	p.sets(valid)
	set := func(edit func(map[string]any)) *attempt {
		a := valid()
		edit(a.doc("snapshot").fields)
		return a
	}
	p.refuse("wrong throughSequence", set(func(f map[string]any) { f["throughSequence"] = p.state.Head - 1 }))
	p.refuse("Event missing", set(func(f map[string]any) {
		ids := slices.Clone(f["eventIds"].([]any))
		ids[1], ids[2] = ids[2], ids[1]
		f["eventIds"] = ids
	}), set(func(f map[string]any) {
		ids := f["eventIds"].([]any)
		f["eventIds"] = append(slices.Clone(ids[:1]), ids[2:]...)
	}))
	p.refuse("wrong stateHash", set(func(f map[string]any) { f["stateHash"] = client.Hash([]byte("another state")) }))
	p.refuse("altered policy log", set(func(f map[string]any) { f["policyLog"] = slices.Clone(f["policyLog"].([]any))[1:] }))
	p.refuse("human", p.by(p.owner, valid()))
	p.exactAgain(valid)
	p.accept("approved", valid())
	if m, _ := p.state.Member(visitor.Principal()); m == nil || m.State != "ended" || !p.state.Archived() {
		p.failed("positive approved", "the Group is %s", p.state.Group.State)
	}
	again := p.archive()
	p.refuse("twice", again)
	reused := p.archive()
	reused.doc("snapshot").fields["snapshotId"] = p.first.attempt.doc("snapshot").fields["snapshotId"]
	p.refuse("document id reused", reused)
}

func archiveFailed(p *play) {
	p.newScene()
	p.do(p.as(p.lead, "mission.terminate").with("reason", "It cannot be done."))
	p.accept("failed", p.archive())
}

func archiveCancelled(p *play) {
	p.newScene()
	p.end()
	p.accept("cancelled", p.archive())
}

// archived is a Group in which every Command of the owner and of services would
// find what it names, and which takes none of them any more.
type archived struct {
	*play
	item, gatedItem  string
	grant            *attempt
	request, decided *attempt
	decision         *attempt
	message          string
}

// archivedGroup plays "archived Group" of every row at once: one Group is archived,
// then every kind is sent there.
func archivedGroup(p *play) {
	p.newScene()
	a := &archived{play: p}
	a.message = p.posted(p.owner)
	a.gatedItem = p.queued(p.worker, gated)
	a.grant = p.grant(p.owner, a.gatedItem)
	p.do(a.grant)
	p.do(p.startWork(p.worker, a.gatedItem))
	a.request = p.askAction(p.authorizer(), a.gatedItem)
	p.do(a.request)
	a.decided = p.askAction(p.authorizer(), a.gatedItem)
	p.do(a.decided)
	a.decision = p.decideOn(p.owner, a.gatedItem, a.decided.payload["requestId"], "approved")
	p.do(a.decision)
	p.do(p.publish(p.worker, a.gatedItem))
	p.do(p.submit(p.worker, a.gatedItem))
	p.do(p.acceptResult(a.gatedItem))
	a.item = p.submitted(p.worker)
	p.do(p.acceptResult(a.item))
	everything := a.commands()
	p.do(p.submitMission(a.gatedItem, a.item))
	p.do(p.decideMission(p.owner, "mission.approve", "approved"))
	p.do(p.archive())
	for i := range rows {
		r := &rows[i]
		c := slices.IndexFunc(r.cases(), func(c string) bool { return caseName(c) == "archived Group" })
		if c < 0 {
			continue
		}
		build, ok := everything[r.kind]
		if !ok {
			continue // listed as missing
		}
		name := r.cases()[c]
		if err := p.refusedOnce(name, build()); err != nil {
			p.run.fail(r.kind+": "+name, err.Error())
			continue
		}
		p.run.pass(r.kind + ": " + name)
	}
}

// commands builds one Command of every Group kind, by whoever may still send it.
func (a *archived) commands() map[string]func() *attempt {
	p := a.play
	override := func(c *attempt) *attempt {
		return p.by(p.owner, c).with("emergencyOverride", map[string]any{"reason": "Too late."})
	}
	sub := p.reviewer
	m := map[string]func() *attempt{
		"mission.create_child": func() *attempt { return p.child(a.item, sub) },
		"mission.assign_coordinator": func() *attempt {
			return p.as(p.owner, "mission.assign_coordinator").with("coordinatorAgentId", p.lead.Principal().ID)
		},
		"mission.renew_coordinator":   func() *attempt { return p.as(p.lead, "mission.renew_coordinator") },
		"mission.submit_for_approval": func() *attempt { return p.submitMission(a.item) },
		"mission.approve":             func() *attempt { return p.decideMission(p.owner, "mission.approve", "approved") },
		"mission.request_changes":     func() *attempt { return p.decideMission(p.owner, "mission.request_changes", "changes_requested") },
		"mission.cancel":              func() *attempt { return p.as(p.owner, "mission.cancel").with("reason", "Too late.") },
		"mission.terminate":           func() *attempt { return p.as(p.policyService(), "mission.terminate").with("reason", "Too late.") },
		"ext.missionweave.mission.extend_deadline": func() *attempt {
			return p.as(p.owner, "ext.missionweave.mission.extend_deadline").with("deadline", client.Timestamp(p.deadline.Add(time.Hour)), "reason", "Too late.")
		},
		"membership.change": func() *attempt {
			return p.as(p.owner, "membership.change").with("member", p.reviewer.Principal(), "role", "worker")
		},
		"membership.end":              func() *attempt { return p.as(p.owner, "membership.end").with("member", p.owner.Principal()) },
		"membership.grant_delegation": func() *attempt { return p.delegation(a.item) },
		"policy.grant_cooperation_override": func() *attempt {
			return p.override(p.group, p.owner, "message_rate", "message.post", client.NewID(), p.owner)
		},
		"ext.missionweave.budget.increase": func() *attempt {
			return p.as(p.owner, "ext.missionweave.budget.increase").with("budget", budgetOf(2000, 2_000_000), "reason", "Too late.")
		},
		"message.post":    func() *attempt { return p.message(p.owner, p.conversation) },
		"message.correct": func() *attempt { return p.amendment(p.owner, "message.correct", a.message) },
		"message.retract": func() *attempt { return p.amendment(p.owner, "message.retract", a.message) },
		"message.redact":  func() *attempt { return p.amendment(p.owner, "message.redact", a.message) },
		"work.propose":    func() *attempt { return p.proposal(p.owner) },
		"work.authorize":  func() *attempt { return override(p.authorize(client.NewID())) },
		"work.offer":      func() *attempt { return override(p.offer(a.item, p.worker)) },
		"work.accept_offer": func() *attempt {
			return p.as(p.worker, "work.accept_offer").in("workItemId", a.item).with("offerId", p.offerOf(a.item, p.worker))
		},
		"ext.missionweave.work.offer_decline": func() *attempt {
			return p.as(p.worker, "ext.missionweave.work.offer_decline").in("workItemId", a.item).with("offerId", p.offerOf(a.item, p.worker), "declineReason", "other")
		},
		"ext.missionweaveprotocol.core.work_dependency_add": func() *attempt {
			return p.as(p.policyService(), "ext.missionweaveprotocol.core.work_dependency_add").in("workItemId", a.item).with("dependencyWorkItemIds", []string{a.gatedItem})
		},
		"work.start":         func() *attempt { return p.startWork(p.worker, a.item) },
		"work.checkpoint":    func() *attempt { return p.checkpoint(p.worker, a.item) },
		"work.block":         func() *attempt { return p.block(p.worker, a.item) },
		"artifact.publish":   func() *attempt { return p.publish(p.worker, a.item) },
		"work.submit":        func() *attempt { return p.submit(p.worker, a.item) },
		"work.accept_result": func() *attempt { return p.acceptResult(a.item) },
		"work.fail":          func() *attempt { return p.failWork(a.item) },
		"work.unblock":       func() *attempt { return p.as(p.lead, "work.unblock").in("workItemId", a.item) },
		"work.cancel":        func() *attempt { return p.cancelWork(p.owner, a.item) },
		"ext.missionweaveprotocol.core.work_execution_lease_renew": func() *attempt { return p.renewLease(p.worker, a.item) },
		"ext.missionweave.work.ownership_lease_renew": func() *attempt {
			return p.as(p.worker, "ext.missionweave.work.ownership_lease_renew").in("workItemId", a.item).with("ownershipEpoch", p.epoch(a.item))
		},
		"ext.missionweaveprotocol.core.resource_usage_record": func() *attempt {
			meter, err := p.service("metering")
			p.must(err)
			return p.usage(meter, a.item)
		},
		"approval.grant_execution":                    func() *attempt { return p.grant(p.owner, a.gatedItem) },
		"ext.missionweave.approval.request_execution": func() *attempt { return p.ask(p.authorizer(), a.gatedItem) },
		"ext.missionweave.approval.deny_execution": func() *attempt {
			return p.as(p.owner, "ext.missionweave.approval.deny_execution").in("workItemId", a.gatedItem).with(
				"approval", p.executionApproval(p.owner, a.gatedItem, "denied"), "ownershipEpoch", p.epoch(a.gatedItem))
		},
		"ext.missionweave.approval.revoke_execution": func() *attempt { return p.revocation(a.gatedItem, a.grant) },
		"ext.missionweave.approval.request_action":   func() *attempt { return p.askAction(p.authorizer(), a.gatedItem) },
		"ext.missionweave.approval.decide_action": func() *attempt {
			return p.decideOn(p.owner, a.gatedItem, a.request.payload["requestId"], "approved")
		},
		"ext.missionweave.approval.consume_action": func() *attempt { return p.consumption(a.gatedItem, a.decided, a.decision) },
	}
	return m
}
