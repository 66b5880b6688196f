package naive

import (
	"fmt"
	"slices"
	"strings"
)

// What the driver sends.

func (d *driver) budget(most int) obj {
	b := obj{"currency": "EUR", "financialLimit": d.between(0, most), "modelTokenLimit": d.between(0, most), "toolCallLimit": d.between(0, 20)}
	if d.chance(30) {
		b["computeSecondsLimit"], b["wallClockSecondsLimit"], b["externalSideEffectLimit"] = d.between(0, most), d.between(0, most), d.between(0, 5)
	}
	if d.chance(3) {
		b["currency"] = "USD"
	}
	return b
}

func (d *driver) rootBudget() obj {
	return obj{
		"currency": "EUR", "financialLimit": 1000, "modelTokenLimit": 1000, "toolCallLimit": 60, "computeSecondsLimit": 1000,
		"wallClockSecondsLimit": 1000, "externalSideEffectLimit": 20,
	}
}

var criterion = obj{"criterionId": "done", "description": "It is done", "evidenceRequired": []any{"deterministic_test"}}

func (d *driver) terms(id string) obj {
	p := obj{
		"missionId": strings.Replace(id, "group", "mission", 1), "groupId": id, "coordinatorAgentId": one(d, crew[:4]...),
		"objective": one(d, "Build it", "Test it", d.fresh("Do it")), "definitionOfDone": []any{criterion}, "budget": d.rootBudget(),
		"deadline": d.in(8000, 100000), "coordinatorLeaseSeconds": d.between(600, 30000),
		"permissions": []any{obj{"resource": "urn:r:*", "operations": []any{"write", "read"}}},
	}
	if d.chance(30) {
		p["allowedCapabilities"] = []any{obj{"id": "code.write", "version": one(d, "1.0.0", "1.2.0")}}
	}
	return p
}

func (d *driver) create(id string) {
	p := d.terms(id)
	p["approvalPolicy"] = obj{"finalHumanApproval": true, "highRiskExecutionApproval": d.chance(50), "policyVersion": "1.0.0"}
	if d.chance(5) {
		p["deadline"] = d.in(-5, 0)
	}
	if d.chance(5) {
		p["coordinatorAgentId"] = "agent:none"
	}
	d.send(&command{kind: "mission.create", actor: actor{"human", "human:olga"}, group: id, payload: p})
	d.staff(id)
}

// staff makes some Agents Workers of a new Group, else most Commands would be
// refused at the door.
func (d *driver) staff(id string) {
	g := d.m.groups[id]
	if g == nil {
		return
	}
	for _, a := range crew {
		if g.members[agentOf(a)] == nil && d.chance(80) {
			d.send(&command{kind: "membership.change", actor: agentOf(g.coordinator), group: id, payload: obj{
				"member": agentOf(a).json(), "role": one(d, "worker", "worker", "work_delegate"), "visibilityStartSequence": 1,
			}})
		}
	}
}

func (d *driver) contract(g *group, version int) obj {
	deps := []any{}
	for _, id := range sortedKeys(g.items) {
		if d.chance(12) {
			deps = append(deps, id)
		}
	}
	resource := "urn:r:1"
	if d.chance(3) {
		resource = "urn:other"
	}
	return obj{
		"contractVersion": version, "goal": one(d, "Write", "Read", d.fresh("Think")),
		"requiredDeliverables": []any{obj{"deliverableId": "d", "description": "d", "mediaType": "text/plain", "schema": "urn:s"}},
		"acceptanceCriteria":   []any{criterion}, "inputArtifacts": []any{}, "dependencyWorkItemIds": deps,
		"allowedResources":     []any{obj{"resource": resource, "operations": []any{"write"}}},
		"requiredCapabilities": []any{obj{"id": "code.write", "version": one(d, "1.0.0", "1.0.0", "1.1.0")}},
		"deadline":             d.in(one(d, -10, 300, 2000), 9000), "requestedUrgency": "normal", "businessImpact": "b",
		"retryPolicy": obj{"maxAttempts": 1, "backoff": "none", "maxDelay": "PT1S", "retryableFailures": []any{}},
		"budget":      d.budget(150), "sideEffectRisk": one(d, "none", "none", "none", "external"),
		"executionApproval": one(d, "not_required", "not_required", "not_required", "human_required", "policy_required"),
	}
}

func (d *driver) basis(contract obj) obj {
	return obj{
		"requiredCapabilities": contract["requiredCapabilities"], "verifiedMatches": contract["requiredCapabilities"],
		"authorizationEligible": !d.chance(3), "availabilityEstimate": d.in(0, 0), "expectedCost": 1, "reliabilityEvidence": []any{},
		"policyRulesApplied": []any{"any"},
	}
}

func (d *driver) progress() obj {
	ids := []any{}
	if d.chance(4) {
		ids = append(ids, "evidence:none")
	}
	return obj{
		"currentPhase": "p", "completedMilestones": []any{}, "nextCheckpoint": "n", "blockers": []any{},
		"updatedCompletionEstimate": d.in(1, 2), "evidenceIds": ids,
	}
}

func (d *driver) evidence(g *group, w *item, kind, result string, by actor) obj {
	e := obj{
		"evidenceId": d.fresh("evidence"), "missionId": g.mission, "groupId": g.id, "workItemId": w.id, "type": kind,
		"subject": obj{"type": "work_item", "id": w.id}, "criterionIds": []any{"done"}, "method": "m", "result": result,
		"artifactHashes": []any{}, "generatedBy": by.json(), "\x00signed": "createdAt",
	}
	if d.calm {
		return e
	}
	switch d.between(1, 40) {
	case 1:
		e["criterionIds"] = []any{"other"}
	case 2:
		e["missionId"] = "mission:other"
	case 3:
		e["generatedBy"] = actor{"agent", "agent:stranger"}.json()
	}
	return e
}

func (d *driver) approval(g *group, kind, decision string, by actor, more obj) obj {
	a := merged(obj{
		"approvalId": d.fresh("approval"), "kind": kind, "decision": decision, "missionId": g.mission, "groupId": g.id,
		"missionRevision": g.rev["mission"], "artifactHashes": []any{}, "acceptancePolicyVersion": "1.0.0", "approver": by.json(),
		"comments": "c", "conditions": []any{}, "\x00signed": "occurredAt",
	}, more)
	if d.calm {
		return a
	}
	switch d.between(1, 40) {
	case 1:
		a["approver"] = actor{"human", "human:paul"}.json()
	case 2:
		a["missionRevision"] = g.rev["mission"] + 1
	case 3:
		a["acceptancePolicyVersion"] = "2.0.0"
	case 4:
		a["missionId"] = "mission:other"
	case 5:
		for id := range g.approvals {
			a["approvalId"] = id
			break
		}
	}
	if decision == "changes_requested" && d.chance(10) {
		a["comments"] = ""
	}
	return a
}

// boss is the Coordinator, mostly.
func (d *driver) boss(g *group) actor {
	if d.chance(8) {
		return d.crew()
	}
	return agentOf(g.coordinator)
}

func hashesOf(set map[string]bool) []any {
	out := []any{}
	for _, h := range sortedKeys(set) {
		out = append(out, h)
	}
	return out
}

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

// rush takes a WorkItem some steps towards its end, each as it ought to be
// sent, because chance alone rarely gets that far.
func (d *driver) rush(g *group, w *item) {
	d.calm = true
	defer func() { d.calm = false }()
	boss := agentOf(g.coordinator)
	send := func(kind string, by actor, p obj) bool {
		return d.send(&command{kind: kind, actor: by, group: g.id, item: w.id, payload: p})
	}
	for range d.between(2, 8) {
		switch w.state {
		case "open", "failed":
			var members []any
			for _, a := range crew[:4] {
				if x := g.members[agentOf(a)]; d.m.live(x) && slices.Contains(x.scopes, "work.accept_offer") {
					members = append(members, a)
				}
			}
			if members == nil {
				return
			}
			send("work.offer", boss, obj{"candidateAgentIds": []any{one(d, members...)}, "selectionBasis": d.basis(w.contract), "offerExpiresInSeconds": 900})
		case "offered":
			for _, o := range w.offers {
				if o.status == "pending" && w.state == "offered" {
					send("work.accept_offer", agentOf(o.agent), obj{"offerId": d.m.real(o.id), "ownershipLeaseSeconds": 5000})
				}
			}
			if w.state == "offered" {
				return
			}
		case "queued":
			if w.owner == nil {
				return
			}
			if len(w.approvals) == 0 {
				send("approval.grant_execution", g.root, obj{
					"approval": d.approval(g, "work_execution", "approved", g.root, obj{"workItemId": w.id}), "ownershipEpoch": w.epoch,
					"operations": []any{"write"}, "resources": []any{"urn:r:1"}, "expiresAt": d.in(600, 900),
				})
			}
			send("work.start", agentOf(w.owner.agent), obj{"ownershipEpoch": w.epoch, "executionLeaseSeconds": 900})
			if w.state == "queued" {
				return
			}
		case "active":
			if w.owner == nil || w.run == nil {
				return
			}
			held := obj{"ownershipEpoch": w.epoch, "executionLeaseId": d.m.real(w.run.id)}
			worker := agentOf(w.owner.agent)
			switch d.between(1, 6) {
			case 1:
				send("ext.missionweaveprotocol.core.work_execution_lease_renew", worker, merged(held, obj{"leaseSeconds": d.between(900, 3000)}))
			case 2:
				send("work.checkpoint", worker, merged(held, obj{"progress": d.progress()}))
			case 3:
				send("work.block", worker, merged(held, obj{"progress": d.progress(), "reason": "r", "requiredResolution": "q"}))
			default:
				d.deliver(g, w, worker, func(more obj) obj { return merged(held, more) })
			}
		case "submitted":
			send("work.accept_result", boss, obj{"evidence": []any{d.evidence(g, w, "deterministic_test", "passed", g.root)}})
			return
		case "blocked":
			if w.childState == "live" {
				d.rushChild(w.child)
				return
			}
			send("work.unblock", boss, obj{})
		default:
			return
		}
	}
}

// rushChild gives a child Mission work, or brings it to its Approval.
func (d *driver) rushChild(child *group) {
	if d.chance(30) {
		d.increase(child, child.owner)
	}
	if len(child.items) == 0 {
		d.authorize(child, agentOf(child.coordinator))
		return
	}
	d.rush(child, one(d, sortedItems(child)...))
	d.wrapUp(child)
}

// work sends a Command about one WorkItem, mostly by whom its state calls for.
func (d *driver) work(g *group, w *item) {
	can := map[string][]int{
		"open": {0, 0, 0, 13, 14, 16}, "offered": {0, 1, 1, 1, 1, 12}, "queued": {2, 2, 2, 2, 11, 13, 17, 18, 19, 20},
		"active": {3, 4, 5, 6, 6, 6, 7, 7, 7, 9, 10, 19, 20}, "blocked": {8, 8, 9, 13, 0}, "submitted": {15, 15, 15, 9},
		"failed": {0, 0, 16}, "verified": {0, 6}, "cancelled": {0},
	}[w.state]
	choice := one(d, can...)
	if d.chance(15) {
		choice = d.between(0, 20)
	}
	d.workCommand(g, w, choice)
}

func (d *driver) workCommand(g *group, w *item, choice int) {
	boss, service := d.boss(g), actor{"service", "service:policy"}
	worker := d.crew()
	if w.owner != nil && d.chance(88) {
		worker = agentOf(w.owner.agent)
	}
	send := func(kind string, by actor, p obj) bool {
		return d.send(&command{kind: kind, actor: by, group: g.id, item: w.id, payload: p})
	}
	lease := "lease:none"
	if w.run != nil && d.chance(97) {
		lease = d.m.real(w.run.id)
	}
	epoch := max(w.epoch, 1)
	if d.chance(4) {
		epoch += d.between(0, 1)
	}
	held := func(more obj) obj {
		return merged(obj{"ownershipEpoch": epoch, "executionLeaseId": lease}, more)
	}
	var o *offer
	for _, x := range w.offers {
		if o == nil || x.status == "pending" || d.chance(10) {
			o = x
		}
	}
	switch choice {
	case 0:
		candidates := []any{one(d, crew...)}
		if d.chance(40) {
			for _, a := range crew[:4] {
				if a != candidates[0] && d.chance(40) {
					candidates = append(candidates, a)
				}
			}
		}
		p := obj{"candidateAgentIds": candidates, "offerExpiresInSeconds": d.between(1, 900)}
		contract := w.contract
		if d.chance(20) {
			p["mode"] = "extend"
		}
		if d.chance(15) {
			contract = d.contract(g, number(w.contract["contractVersion"])+one(d, 1, 1, 1, 1, 2))
			p["contract"] = contract
		}
		p["selectionBasis"] = d.basis(contract)
		by := boss
		if d.chance(25) && len(g.grants) > 0 {
			grant := g.grants[one(d, sortedKeys(g.grants)...)]
			p["delegationGrantId"], by = grant.id, agentOf(grant.grantee)
		} else if d.chance(5) {
			by = g.owner
			p["emergencyOverride"] = obj{"reason": "r"}
		}
		send("work.offer", by, p)
	case 1:
		if o == nil {
			return
		}
		by := agentOf(o.agent)
		if o.status == "pending" && o.agent != g.coordinator && d.chance(12) { // the candidate goes before it can answer
			d.send(&command{kind: "membership.end", actor: boss, group: g.id, payload: obj{"member": by.json()}})
			return
		}
		if d.chance(8) {
			by = worker
		}
		p := obj{"offerId": d.m.real(o.id)}
		if d.chance(80) {
			p["ownershipLeaseSeconds"] = d.between(1, 3000)
		}
		if d.chance(20) {
			p["startBy"] = d.in(0, 600)
		}
		if d.chance(3) {
			p["offerId"] = "offer:none"
		}
		send("work.accept_offer", by, p)
	case 2:
		send("work.start", worker, obj{"ownershipEpoch": epoch, "executionLeaseSeconds": d.between(1, 900)})
	case 3:
		send("ext.missionweaveprotocol.core.work_execution_lease_renew", worker, held(obj{"leaseSeconds": d.between(1, 900)}))
	case 4:
		p := held(obj{"progress": d.progress()})
		if d.chance(50) {
			p["resumeWithinSeconds"] = d.between(1, 3000)
		}
		send("work.checkpoint", worker, p)
	case 5:
		send("work.block", worker, held(obj{"progress": d.progress(), "reason": "r", "requiredResolution": "q", "blockedLeaseSeconds": d.between(1, 2000)}))
	case 6:
		usage := obj{}
		if d.chance(70) {
			usage["financial"], usage["currency"] = d.between(1, 60), one(d, "EUR", "EUR", "EUR", "EUR", "USD")
		}
		if d.chance(50) || len(usage) == 0 {
			usage[one(d, "modelTokens", "toolCalls", "computeSeconds")] = d.between(1, 30)
		}
		if d.chance(30) { // exactly what is left
			if left := w.account.remaining()[0]; left > 0 {
				usage = obj{"financial": left, "currency": "EUR"}
			}
		}
		by := worker
		p := held(obj{"usageDelta": usage})
		if d.chance(25) {
			by = actor{"service", "service:metering"}
			for _, l := range w.closed {
				if l.kind == "execution" {
					p["executionLeaseId"], p["ownershipEpoch"] = d.m.real(l.id), l.ownershipEpoch
				}
			}
		}
		send("ext.missionweaveprotocol.core.resource_usage_record", by, p)
	case 7:
		d.deliver(g, w, worker, held)
	case 8:
		send("work.unblock", boss, obj{"resolution": "r"})
	case 9:
		p := obj{"reason": "r"}
		by := boss
		if d.chance(30) {
			by = worker
			p = held(p)
		}
		p["evidence"] = []any{d.evidence(g, w, "failure_report", one(d, "failed", "failed", "failed", "passed"), by)}
		if d.chance(50) {
			send("work.fail", by, p)
		}
	case 10:
		if d.chance(30) {
			send("work.cancel", one(d, boss, g.owner, service), obj{"reason": "r"})
		}
	case 11:
		by := one(d, g.root, g.root, g.owner, service, worker)
		p := obj{
			"approval":       d.approval(g, "work_execution", "approved", by, obj{"workItemId": w.id}),
			"ownershipEpoch": epoch, "operations": []any{one(d, "write", "write", "write", "erase")}, "resources": []any{"urn:r:1"}, "expiresAt": d.in(-2, 900),
		}
		if len(w.requests) > 0 && d.chance(60) {
			p["requestId"] = w.requests[len(w.requests)-1].id
		}
		if d.chance(20) {
			p["budget"] = obj{"currency": "EUR", "financialLimit": d.between(0, 200)}
		}
		send("approval.grant_execution", by, p)
	case 12:
		if o == nil {
			return
		}
		send("ext.missionweave.work.offer_decline", agentOf(o.agent), obj{"offerId": d.m.real(o.id), "declineReason": "capacity"})
	case 13:
		if len(d.m.groups) > 6 {
			return
		}
		child := fmt.Sprintf("group:%d", len(d.m.groups))
		p := d.terms(child)
		p["budget"], p["deadline"] = d.budget(40), d.in(-5, 8000)
		p["permissions"] = []any{}
		if d.chance(30) {
			p["permissions"] = []any{obj{"resource": "urn:r:1", "operations": []any{"write"}}}
		}
		p["failurePolicy"] = one(d, "block_parent_work_item", "fail_parent_work_item", "fail_parent_mission")
		if d.chance(20) {
			p["approvalPolicy"] = obj{"finalHumanApproval": d.chance(20), "highRiskExecutionApproval": d.chance(70)}
		}
		send("mission.create_child", boss, p)
		d.staff(child)
	case 14:
		send("ext.missionweaveprotocol.core.work_dependency_add", one(d, boss, boss, service), obj{"dependencyWorkItemIds": []any{one(d, sortedKeys(g.items)...)}})
	case 15:
		by := d.crew()
		send("work.accept_result", boss, obj{"evidence": []any{d.evidence(g, w, one(d, "deterministic_test", "deterministic_test", "reviewer_assessment"), one(d, "passed", "passed", "passed", "failed"), by)}})
	case 16:
		b := obj{"currency": "EUR"}
		for i, name := range limitNames {
			b[name] = w.account.limit[i] + d.between(0, 30)
		}
		send("ext.missionweave.budget.increase", one(d, boss, boss, g.owner, worker), obj{"budget": b, "reason": "r"})
	case 17:
		send("ext.missionweave.work.ownership_lease_renew", worker, obj{"ownershipEpoch": epoch, "leaseSeconds": d.between(1, 4000)})
	case 18:
		id := d.fresh("request")
		if d.chance(5) && len(w.requests) > 0 {
			id = w.requests[0].id
		}
		send("ext.missionweave.approval.request_execution", one(d, worker, worker, boss, actor{"service", "service:authorization"}), obj{
			"requestId": id, "ownershipEpoch": epoch, "operations": []any{"write"}, "resources": []any{"urn:r:1"}, "expiresAt": d.in(-2, 600),
		})
	case 19:
		by := one(d, g.root, g.root, g.owner, service)
		p := obj{"approval": d.approval(g, "work_execution", "denied", by, obj{"workItemId": w.id}), "ownershipEpoch": epoch}
		if len(w.requests) > 0 && d.chance(70) {
			p["requestId"] = w.requests[len(w.requests)-1].id
		}
		send("ext.missionweave.approval.deny_execution", by, p)
	case 20:
		by := one(d, g.root, g.root, service)
		id := "approval:none"
		if len(w.approvals) > 0 {
			id = w.approvals[d.between(0, len(w.approvals)-1)].id
		}
		send("ext.missionweave.approval.revoke_execution", by, obj{
			"approval": d.approval(g, "work_execution", "revoked", by, obj{"workItemId": w.id, "revokesApprovalId": id}),
		})
	}
}

// deliver publishes an Artifact and often submits it.
func (d *driver) deliver(g *group, w *item, worker actor, held func(obj) obj) {
	hash := fmt.Sprintf("sha256:%064x", d.between(1, 1<<20))
	sources := []any{}
	for _, id := range sortedKeys(g.artifacts) {
		if d.chance(10) && !slices.Contains(sources, any(g.artifacts[id].hash)) {
			sources = append(sources, g.artifacts[id].hash)
		}
	}
	if d.chance(3) {
		sources = append(sources, "sha256:"+strings.Repeat("e", 64))
	}
	id := d.fresh("artifact")
	if d.chance(3) && len(g.artifacts) > 0 {
		id = one(d, sortedKeys(g.artifacts)...)
	}
	card := 1
	if d.chance(3) {
		card = 2
	}
	d.send(&command{kind: "artifact.publish", actor: worker, group: g.id, item: w.id, payload: held(obj{"artifact": obj{
		"artifactId": id, "contentHash": hash, "uri": "urn:u", "sizeBytes": 1, "mediaType": "text/plain", "schemaUri": "urn:s",
		"missionId": g.mission, "groupId": g.id, "workItemId": w.id, "sourceArtifactHashes": sources, "toolVersions": []any{},
		"modelVersions": []any{}, "classification": one(d, "internal", "internal", "confidential", "public"), "\x00signed": "createdAt",
		"producer": obj{"agentId": worker.ID, "agentCardVersion": card, "capabilities": []any{obj{"id": "code.write", "version": "1.2.0"}}},
	}})})
	if d.chance(20) {
		return
	}
	result := one(d, "passed", "passed", "passed", "failed", "inconclusive")
	d.send(&command{kind: "work.submit", actor: worker, group: g.id, item: w.id, payload: held(obj{
		"artifactHashes": []any{hash}, "evidence": []any{d.evidence(g, w, "deterministic_test", result, worker)},
	})})
}
