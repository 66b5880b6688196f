package naive

import (
	"fmt"
	"slices"
	"strings"
)

// Commands about one WorkItem.

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
