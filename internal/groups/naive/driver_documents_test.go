package naive

import (
	"strings"
)

// What the driver's Commands are made of.

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
