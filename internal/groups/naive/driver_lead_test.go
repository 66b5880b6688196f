package naive

import (
	"fmt"
	"strings"
)

// Commands that are not about one WorkItem.

// lead sends a Command that is not about one WorkItem.
func (d *driver) lead(g *group) {
	boss, service := d.boss(g), actor{"service", "service:policy"}
	who := d.crew()
	send := func(kind string, by actor, p obj) bool {
		return d.send(&command{kind: kind, actor: by, group: g.id, payload: p})
	}
	what := d.between(0, 23)
	if g.state == "awaiting_approval" && d.chance(60) {
		what = d.between(9, 10)
	}
	if terminalMission(g.state) && d.chance(80) {
		what = 17
	}
	switch what {
	case 0, 1, 2:
		p := obj{"member": who.json(), "role": one(d, "worker", "worker", "work_delegate", "reviewer", "observer", "coordinator", "mission_owner")}
		if d.chance(10) {
			p["member"] = one(d, actor{"human", "human:paul"}, actor{"human", "human:nobody"}, actor{"service", "service:policy"}, agentOf("agent:none"), g.root).json()
		}
		switch d.between(1, 6) {
		case 1:
			p["state"], p["provisionalExpiresAt"] = "provisional", d.in(-2, 600)
		case 2:
			p["scopes"] = []any{one(d, "message.post", "work.execute", "work.accept_offer", "approval.execution", "mission.inspect")}
		case 3:
			p["state"] = "active"
		}
		if d.chance(70) {
			p["visibilityStartSequence"] = one(d, 1, 1, 1, 0, d.between(0, 40))
		}
		if x := g.members[actorOf(p["member"])]; x != nil && x.state == "provisional" && p["state"] == nil {
			p["state"] = "active"
		}
		send("membership.change", one(d, boss, boss, g.owner, service), p)
	case 3:
		by := boss
		if d.chance(30) {
			by = who
		}
		if d.chance(10) {
			by = one(d, g.owner, service)
		}
		if d.chance(10) {
			who = one(d, g.owner, g.root, agentOf(g.coordinator))
		}
		send("membership.end", by, obj{"member": who.json()})
	case 4, 5, 6, 7:
		d.authorize(g, boss)
	case 8:
		d.submitMission(g, boss)
	case 9:
		by := g.owner
		if d.chance(8) {
			by = one(d, actor{"human", "human:paul"}, agentOf(g.coordinator))
		}
		send("mission.approve", by, obj{"approval": d.approval(g, d.finalKind(g), one(d, "approved", "approved", "approved", "approved", "denied"), by, d.verdict(g))})
	case 10:
		send("mission.request_changes", g.owner, obj{"approval": d.approval(g, d.finalKind(g), "changes_requested", g.owner, d.verdict(g))})
	case 11:
		send("mission.renew_coordinator", boss, obj{"leaseSeconds": d.between(60, 9000)})
	case 12:
		if d.chance(40) {
			return
		}
		send("mission.assign_coordinator", one(d, g.owner, g.owner, service), obj{"coordinatorAgentId": one(d, who.ID, who.ID, g.coordinator, "agent:none"), "leaseSeconds": d.between(300, 9000)})
	case 13:
		by := one(d, who, who, who, g.owner, g.root, agentOf(g.coordinator))
		conv := one(d, sortedKeys(g.convs)...)
		if w := g.convs[conv]; w == nil && d.chance(50) {
			conv = g.main
		}
		id := d.fresh("message")
		if d.chance(5) && len(g.messages) > 0 {
			id = one(d, sortedKeys(g.messages)...)
		}
		real := d.m.real(conv)
		if d.chance(3) {
			real = "conversation:none"
		}
		p := obj{"messageId": id, "content": []any{obj{"type": "text", "text": "approve and deploy"}}}
		for range d.between(1, 4) { // enough to meet the rate
			d.send(&command{kind: "message.post", actor: by, group: g.id, conv: real, payload: p})
			p = merged(p, obj{"messageId": d.fresh("message")})
		}
	case 14:
		switch {
		case d.chance(10):
			send("mission.cancel", one(d, g.owner, service, boss), obj{"reason": "r"})
		case d.chance(10):
			send("mission.terminate", one(d, boss, service), obj{"reason": "r"})
		case d.chance(40) && len(d.m.groups) < 7:
			d.create(fmt.Sprintf("group:%d", len(d.m.groups)))
		default:
			d.increase(g, one(d, g.owner, service, boss))
		}
	case 15, 16:
		by := one(d, who, who, g.owner, agentOf(g.coordinator))
		id := d.fresh("proposal")
		if d.chance(10) && len(g.proposals) > 0 {
			id = one(d, sortedKeys(g.proposals)...)
		}
		p := obj{"proposalId": id, "contract": d.contract(g, one(d, 1, 1, 1, 1, 1, 1, 2))}
		if d.chance(20) && len(g.items) > 0 {
			p["parentWorkItemId"] = one(d, sortedKeys(g.items)...)
		}
		send("work.propose", by, p)
	case 17:
		if len(g.messages) == 0 {
			return
		}
		target := g.messages[one(d, sortedKeys(g.messages)...)]
		by := target.author
		if d.chance(15) {
			by = who
		}
		p := obj{"messageId": d.fresh("message"), "targetMessageId": target.id, "reason": "r"}
		kind := one(d, "message.correct", "message.retract", "message.redact")
		switch kind {
		case "message.correct":
			p["content"] = []any{obj{"type": "text", "text": "better"}}
		case "message.redact":
			by = one(d, boss, g.owner, service, by)
			if d.chance(50) {
				p["policyRule"] = "rule"
			}
		}
		send(kind, by, p)
	case 18:
		deadline := g.deadline.Add(-60e9).UTC().Format("2006-01-02T15:04:05Z")
		if d.chance(80) {
			deadline = g.deadline.Add(60e9).UTC().Format("2006-01-02T15:04:05Z")
		}
		send("ext.missionweave.mission.extend_deadline", one(d, g.owner, service, boss), obj{"deadline": deadline, "reason": "r"})
	case 19, 20:
		if len(g.items) == 0 {
			return
		}
		id := d.fresh("grant")
		if d.chance(5) && len(g.grants) > 0 {
			id = one(d, sortedKeys(g.grants)...)
		}
		grantee := who
		for _, a := range crew {
			if x := g.members[agentOf(a)]; x != nil && x.role == "work_delegate" && d.chance(80) {
				grantee = agentOf(a)
			}
		}
		b := obj{"currency": "EUR"}
		for _, name := range limitNames {
			b[name] = d.between(0, 400)
		}
		b["toolCallLimit"], b["externalSideEffectLimit"] = d.between(0, 40), d.between(0, 10)
		send("membership.grant_delegation", boss, obj{
			"grantId": id, "granteeAgentId": grantee.ID, "targetWorkItemId": one(d, sortedKeys(g.items)...),
			"allowedCapabilities": []any{obj{"id": "code.write", "version": "1.0.0"}}, "budget": b,
			"maxDescendantDepth": d.between(0, 3), "expiresAt": d.in(-10, 5000),
		})
	case 21, 22, 23:
		d.override(g, who, one(d, g.owner, g.owner, service, boss))
	}
}

func (d *driver) increase(g *group, by actor) {
	b := obj{"currency": one(d, "EUR", "EUR", "EUR", "USD")}
	for i, name := range limitNames {
		b[name] = g.account.limit[i]
		if i < 2 || d.chance(20) {
			b[name] = g.account.limit[i] + d.between(0, 6)/3
		}
	}
	if d.chance(10) {
		b["financialLimit"] = 1
	}
	d.send(&command{kind: "ext.missionweave.budget.increase", actor: by, group: g.id, payload: obj{"budget": b, "reason": "r"}})
}

// override grants one and often uses it at once.
func (d *driver) override(g *group, who, by actor) {
	policy := one(d, "message_rate", "proposal_rate", "delegation_depth", "duplicate_decomposition", "active_work_items", "queued_work_items")
	kind := one(d, governs[policy]...)
	if d.chance(10) {
		kind = "work.fail"
	}
	id, action := d.fresh("override"), d.fresh("action")
	d.send(&command{kind: "policy.grant_cooperation_override", actor: by, group: g.id, payload: obj{
		"grantId": id, "policyName": policy, "beneficiary": who.json(), "targetCommandKind": kind, "targetActionId": action,
		"reason": "r", "expiresAt": d.in(-5, 900),
	}})
	for range d.between(1, 2) {
		switch kind {
		case "message.post":
			for range 5 {
				d.send(&command{kind: kind, actor: who, group: g.id, conv: d.m.real(g.main), payload: obj{
					"messageId": d.fresh("message"), "content": []any{obj{"type": "text", "text": "t"}},
				}})
			}
			d.send(&command{kind: kind, id: action, actor: who, group: g.id, conv: d.m.real(g.main), override: id, payload: obj{
				"messageId": d.fresh("message"), "content": []any{obj{"type": "text", "text": "t"}},
			}})
		case "work.propose":
			contract := d.contract(g, 1)
			d.send(&command{kind: kind, actor: who, group: g.id, payload: obj{"proposalId": d.fresh("proposal"), "contract": contract}})
			d.send(&command{kind: kind, id: action, actor: who, group: g.id, override: id, payload: obj{"proposalId": d.fresh("proposal"), "contract": contract}})
		case "work.authorize":
			contract := d.contract(g, 1)
			d.send(&command{kind: kind, actor: who, group: g.id, item: d.fresh("work"), payload: obj{"contract": contract}})
			d.send(&command{kind: kind, id: action, actor: who, group: g.id, item: d.fresh("work"), override: id, payload: obj{"contract": contract}})
		}
		action = d.fresh("action") // the same action twice is a replay, which neither model decides
	}
}

func (d *driver) finalKind(g *group) string {
	if d.chance(4) {
		return one(d, "mission_final", "child_mission")
	}
	return g.finalKind()
}

func (d *driver) verdict(g *group) obj {
	v := obj{"missionRevision": max(g.submittedRev, 1), "artifactHashes": []any{}}
	hashes := []any{}
	for _, h := range g.submitted {
		hashes = append(hashes, h)
	}
	v["artifactHashes"] = hashes
	if d.chance(5) || len(hashes) == 0 { // the schema wants one to approve
		v["artifactHashes"] = append(hashes, "sha256:"+strings.Repeat("0", 64))
	}
	return v
}

func (d *driver) authorize(g *group, by actor) {
	p := obj{"contract": d.contract(g, one(d, 1, 1, 1, 1, 1, 1, 1, 2))}
	item := d.fresh("work")
	if d.chance(4) && len(g.items) > 0 {
		item = one(d, sortedKeys(g.items)...)
	}
	if d.chance(20) && len(g.proposals) > 0 {
		p["proposalId"] = one(d, sortedKeys(g.proposals)...)
		if d.chance(70) {
			delete(p, "contract")
		}
	}
	if d.chance(25) && len(g.items) > 0 {
		p["parentWorkItemId"] = one(d, sortedKeys(g.items)...)
	}
	if d.chance(15) && len(g.items) > 0 {
		p["replacesWorkItemId"] = one(d, sortedKeys(g.items)...)
	}
	if d.chance(35) && len(g.grants) > 0 {
		grant := g.grants[one(d, sortedKeys(g.grants)...)]
		p["delegationGrantId"] = grant.id
		p["parentWorkItemId"] = one(d, grant.target, grant.target, one(d, sortedKeys(g.items)...))
		by = agentOf(grant.grantee)
		if c, ok := p["contract"].(obj); ok {
			c["budget"] = d.budget(20)
		}
	} else if d.chance(6) {
		by = g.owner
		if d.chance(70) {
			p["emergencyOverride"] = obj{"reason": "r"}
		}
	}
	d.send(&command{kind: "work.authorize", actor: by, group: g.id, item: item, payload: p})
}

func (d *driver) submitMission(g *group, by actor) {
	hashes := hashesOf(g.approvable())
	if len(hashes) == 0 || d.chance(3) {
		hashes = append(hashes, "sha256:"+strings.Repeat("f", 64))
	}
	p := obj{"artifactHashes": hashes}
	var failures []any
	for _, w := range sortedItems(g) {
		if w.state == "failed" && d.chance(90) || d.chance(3) {
			failures = append(failures, obj{"workItemId": w.id, "reason": "r"})
		}
	}
	if failures != nil {
		p["acceptedFailures"] = failures
	}
	d.send(&command{kind: "mission.submit_for_approval", actor: by, group: g.id, payload: p})
}

// wrapUp brings a Mission with verified work to its end, which random steps
// rarely do.
func (d *driver) wrapUp(g *group) {
	if len(g.approvable()) == 0 || g.state != "active" {
		return
	}
	for _, w := range sortedItems(g) {
		if unfinished(w.state) && w.childState != "live" {
			d.send(&command{kind: "work.cancel", actor: agentOf(g.coordinator), group: g.id, item: w.id, payload: obj{"reason": "r"}})
		}
	}
	d.submitMission(g, agentOf(g.coordinator))
	if g.state == "awaiting_approval" {
		d.send(&command{kind: "mission.approve", actor: g.owner, group: g.id, payload: obj{
			"approval": d.approval(g, g.finalKind(), "approved", g.owner, d.verdict(g)),
		}})
	}
}
