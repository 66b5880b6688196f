package naive

import (
	"slices"
	"strings"
	"time"
)

// Missions (sections 4.1, 5.1).

// source stands for "some Event of this decision in another Group".
const source = "\x00source"

func missionRules() map[string]rule {
	terms := []string{"missionId", "groupId", "coordinatorAgentId", "objective", "definitionOfDone", "budget", "deadline"}
	return map[string]rule{
		"mission.create": {
			required: append(slices.Clone(terms), "approvalPolicy"),
			optional: []string{"title", "permissions", "allowedCapabilities", "pinnedProfiles", "coordinatorLeaseSeconds"},
			who:      [][2]string{{"creator", ""}}, creates: true, do: doCreate,
		},
		"mission.create_child": {
			required: terms,
			optional: []string{
				"parentWorkItemId", "title", "permissions", "allowedCapabilities", "pinnedProfiles",
				"coordinatorLeaseSeconds", "approvalPolicy", "failurePolicy", "selectionBasis",
			},
			who: [][2]string{{"coordinator", "mission.coordinate"}}, item: "needed",
			governed: []string{"delegation_depth", "duplicate_decomposition"}, do: doCreateChild,
		},
		"mission.assign_coordinator": {
			required: []string{"coordinatorAgentId"}, optional: []string{"leaseSeconds", "reason", "contextPackage"},
			who: [][2]string{{"owner", "mission.replace_coordinator"}, {"service", ""}}, do: doAssign,
		},
		"mission.renew_coordinator": {
			optional: []string{"leaseSeconds"}, who: [][2]string{{"coordinator", ""}}, do: doRenewCoordinator,
		},
		"ext.missionweave.mission.extend_deadline": {
			required: []string{"deadline", "reason"}, who: [][2]string{{"owner", "mission.approve"}, {"service", ""}}, do: doExtend,
		},
		"mission.submit_for_approval": {
			required: []string{"artifactHashes"}, optional: []string{"acceptedFailures"},
			who: [][2]string{{"coordinator", "mission.coordinate"}}, do: doSubmitMission,
		},
		"mission.approve": {
			required: []string{"approval"}, optional: []string{"humanApproval"},
			who: [][2]string{{"owner", "mission.approve"}}, signed: approving, do: doApprove,
		},
		"mission.request_changes": {
			required: []string{"approval"}, who: [][2]string{{"owner", "mission.approve"}}, signed: approving, do: doRequestChanges,
		},
		"mission.cancel": {
			required: []string{"reason"}, who: [][2]string{{"owner", "mission.cancel"}, {"service", ""}}, do: doCancelMission,
		},
		"mission.terminate": {
			required: []string{"reason"}, optional: []string{"evidence"},
			who: [][2]string{{"coordinator", "mission.coordinate"}, {"service", ""}}, signed: vouching, do: doTerminate,
		},
	}
}

func (c *call) newIDs() {
	if c.m.missions[text(c.p["missionId"])] || c.m.groups[text(c.p["groupId"])] != nil {
		fail(ic, "identifier_in_use")
	}
}

// found makes a Group of the payload's terms.
func (c *call) found(boss, root actor, parent *account) *group {
	m := c.m
	g := &group{
		id: text(c.p["groupId"]), mission: text(c.p["missionId"]), state: "active", rev: map[string]int{}, owner: boss, root: root,
		coordinator: text(c.p["coordinatorAgentId"]), epoch: 1, deadline: when(c.p["deadline"]),
		permissions: list(c.p["permissions"]), ceiling: list(c.p["allowedCapabilities"]),
		members: map[actor]*member{}, convs: map[string]*item{}, messages: map[string]*message{}, proposals: map[string]*proposal{},
		items: map[string]*item{}, artifacts: map[string]*artifact{}, approvals: map[string]bool{}, evidence: map[string]obj{},
		grants: map[string]*grant{}, overrides: map[string]*override{}, posts: map[actor][]time.Time{}, proposes: map[actor][]time.Time{},
		objective: c.p["objective"], done: c.p["definitionOfDone"],
	}
	g.account = newAccount("mission", g.mission, c.p["budget"], parent)
	g.lease = c.open("coordinator", g.coordinator, g, nil, m.now.Add(m.secs(c.p, "coordinatorLeaseSeconds", 300)))
	g.main = m.mint("conversation")
	g.convs[g.main] = nil
	join := func(who actor, role string, scopes []string) {
		g.members[who] = &member{id: m.mint("membership"), state: "active", role: role, epoch: 1, scopes: scopes, start: 1}
		g.rev["member "+who.Type+" "+who.ID] = 1
	}
	join(boss, "mission_owner", roleScopes["mission_owner"])
	join(agentOf(g.coordinator), "coordinator", roleScopes["coordinator"])
	if root != boss {
		join(root, "observer", append(slices.Clone(roleScopes["observer"]), "mission.inspect", "approval.execution"))
	}
	g.rev["lease "+g.lease.id] = 1
	g.rev["group"] = 1
	g.rev["conv "+g.main] = 1
	m.groups[g.id], m.missions[g.mission] = g, true
	return g
}

func (c *call) foundPayload(g *group) obj {
	members := unordered{}
	for who, x := range g.members {
		members = append(members, memberJSON(g, who, x))
	}
	p := obj{
		"mission": part{
			"missionId": g.mission, "groupId": g.id, "revision": 1, "state": "active", "missionOwner": g.owner.json(),
			"objective": g.objective, "definitionOfDone": g.done, "budget": c.p["budget"], "deadline": moment(g.deadline),
			"coordinator": obj{
				"agentId": g.coordinator, "agentCardVersion": c.m.agents[g.coordinator].card, "coordinatorEpoch": 1, "leaseId": g.lease.id,
			},
			"approvalPolicy": part{"finalHumanApproval": g.finalHuman, "highRiskExecutionApproval": g.highRisk},
		},
		"group":        part{"groupId": g.id, "missionId": g.mission, "state": "active", "mainConversationId": g.main},
		"conversation": part{"conversationId": g.main}, "memberships": members, "coordinatorLease": g.lease.json(),
		"permissions": orEmpty(g.permissions), "policyLogEntryId": anything{},
	}
	if g.ceiling != nil {
		p["allowedCapabilities"] = g.ceiling
	}
	return p
}

func orEmpty(l []any) []any {
	if l == nil {
		return []any{}
	}
	return l
}

func doCreate(c *call) {
	c.newIDs()
	c.registered(text(c.p["coordinatorAgentId"]))
	c.revision(0)
	if !when(c.p["deadline"]).After(c.m.now) {
		fail(ic, "deadline")
	}
	g := c.found(c.cmd.actor, c.cmd.actor, nil)
	policy := c.p["approvalPolicy"].(obj)
	g.finalHuman, g.highRisk, g.policy = true, policy["highRiskExecutionApproval"] == true, text(policy["policyVersion"])
	c.primary(c.emit(g, "mission.created", "mission", c.foundPayload(g), ""))
}

func doCreateChild(c *call) {
	g, w := c.g, c.w
	if text(c.p["groupId"]) == c.cmd.group || has(c.p, "parentWorkItemId") && text(c.p["parentWorkItemId"]) != c.cmd.item {
		fail(ic, "envelope_mismatch")
	}
	c.newIDs()
	c.registered(text(c.p["coordinatorAgentId"]))
	c.itemRevision()
	c.missionActive()
	c.itemIn("open", "offered", "queued", "active", "blocked")
	if w.childState == "live" {
		fail(ist, "child_live")
	}
	deadline, contractDeadline := when(c.p["deadline"]), when(w.contract["deadline"])
	policy, _ := c.p["approvalPolicy"].(obj)
	switch {
	case text(c.p["coordinatorAgentId"]) == c.cmd.actor.ID:
		fail(ic, "same_agent")
	case !deadline.After(c.m.now) || deadline.After(g.deadline) || deadline.After(contractDeadline):
		fail(ic, "deadline")
	case w.account.foreign(c.p["budget"]):
		fail(ic, "currency_mismatch")
	case !granted(list(w.contract["allowedResources"]), list(c.p["permissions"])):
		fail(af, "permission")
	case has(c.p, "allowedCapabilities") && !underCeiling(g.ceiling, list(c.p["allowedCapabilities"])):
		fail(af, "capability")
	case policy != nil && g.highRisk && policy["highRiskExecutionApproval"] != true:
		fail(af, "approval_policy")
	}
	twin := false
	for _, other := range g.items {
		if other.childState == "live" && canonical(other.child.objective) == canonical(c.p["objective"]) &&
			canonical(other.child.done) == canonical(c.p["definitionOfDone"]) {
			twin = true
		}
	}
	c.limit(twin, "duplicate_decomposition")
	c.limit(g.depth+1 > c.m.limits.depth, "delegation_depth")
	c.limitsDone()
	if !w.account.canReserve(budgetOf(c.p["budget"])) {
		fail(be, "")
	}

	previous := w.owner
	closed, withdrawn := c.endAll(w, "revoked", "child_mission"), c.withdraw(w)
	w.epoch++
	w.blk = c.open("blocked", c.cmd.actor.ID, g, w, deadline)
	w.owner = &owner{
		agent: c.cmd.actor.ID, card: c.agent.card, pins: list(w.contract["requiredCapabilities"]), epoch: w.epoch,
		lease: w.blk.id, accepted: c.m.now, custody: true,
	}
	w.state, w.childState = "blocked", "live"
	failure := "block_parent_work_item"
	if has(c.p, "failurePolicy") {
		failure = text(c.p["failurePolicy"])
	}
	payload := obj{
		"childMissionId": c.p["missionId"], "childGroupId": c.p["groupId"], "childCoordinatorAgentId": c.p["coordinatorAgentId"],
		"childBudget": c.p["budget"], "childDeadline": moment(deadline), "failurePolicy": failure, "owner": w.owner.json(),
		"selectionBasis": anything{}, "custodyLease": w.blk.json(), "closedLeases": closed, "withdrawnOfferIds": withdrawn,
	}
	if previous != nil {
		payload["previousOwner"] = previous.json()
	}
	first := c.primary(c.emitItem(w, "mission.child.created", payload, ""))
	child := c.found(c.cmd.actor, g.root, w.account)
	child.parent, child.parentItem, child.failure, child.depth = g, w, failure, g.depth+1
	child.highRisk, child.policy = g.highRisk, g.policy
	if policy != nil {
		child.finalHuman, child.policy = policy["finalHumanApproval"] == true, text(policy["policyVersion"])
		child.highRisk = policy["highRiskExecutionApproval"] == true
	}
	if !has(c.p, "allowedCapabilities") {
		child.ceiling = g.ceiling
	}
	w.child = child
	p := c.foundPayload(child)
	p["parentGroupId"], p["parentWorkItemId"], p["sourceEventId"], p["failurePolicy"] = g.id, w.id, first.id, failure
	c.emit(child, "mission.created", "mission", p, first.id)
}

func doAssign(c *call) {
	g, id := c.g, text(c.p["coordinatorAgentId"])
	next := c.registered(id)
	c.missionRevision()
	c.notTerminal()
	if has(c.p, "contextPackage") && id == g.coordinator {
		fail(ic, "context_not_applicable")
	}
	var children []*group
	for _, w := range sortedItems(g) {
		if w.childState == "live" {
			children = append(children, w.child)
			if w.child.coordinator == id {
				fail(ic, "same_agent")
			}
		}
	}
	if g.owner == agentOf(id) {
		fail(ic, "same_agent")
	}
	was, wasEpoch := g.coordinator, g.epoch
	payload := obj{
		"previousCoordinator": obj{"agentId": was, "coordinatorEpoch": wasEpoch}, "policyLogEntryId": anything{},
	}
	if g.lease.state == "active" {
		c.end(g.lease, "revoked", "coordinator_replaced")
		payload["closedLease"] = g.lease.json()
	}
	g.epoch++
	g.coordinator = id
	g.lease = c.open("coordinator", id, g, nil, c.m.now.Add(c.m.secs(c.p, "leaseSeconds", 300)))
	g.rev["lease "+g.lease.id] = 1
	payload["coordinator"] = obj{"agentId": id, "agentCardVersion": next.card, "coordinatorEpoch": g.epoch, "leaseId": g.lease.id}
	payload["coordinatorLease"] = g.lease.json()
	if has(c.p, "reason") {
		payload["reason"] = c.p["reason"]
	}
	if was != id {
		payload["contextPackage"] = anything{}
	}
	first := c.primary(c.emit(g, "mission.coordinator.assigned", "mission", payload, ""))
	if was == id {
		return
	}
	c.reassignMember(g, agentOf(id), "coordinator", "coordinator_assigned", "")
	c.reassignMember(g, agentOf(was), "worker", "coordinator_replaced", "")
	for _, child := range children {
		old := child.owner
		child.owner = agentOf(id)
		c.emit(child, "ext.missionweave.authority.mission_owner_transferred", "mission", obj{
			"missionId": child.mission, "previousMissionOwner": old.json(), "missionOwner": child.owner.json(),
			"sourceEventId": first.id, "policyLogEntryId": anything{},
		}, first.id)
		c.reassignMember(child, child.owner, "mission_owner", "owner_transferred", source)
		c.endMember(child, old, "owner_transferred", source)
	}
}

func doRenewCoordinator(c *call) {
	g := c.g
	c.revision(g.rev["lease "+g.lease.id])
	c.notTerminal()
	expires := c.m.now.Add(c.m.secs(c.p, "leaseSeconds", 300))
	if !expires.After(g.lease.expires) {
		fail(ic, "lease_not_extended")
	}
	c.set(g.lease, expires, time.Time{}, true)
	c.primary(c.emit(g, "mission.coordinator.renewed", "lease "+g.lease.id, obj{
		"coordinatorEpoch": g.epoch, "coordinatorLease": g.lease.json(),
	}, ""))
}

func doExtend(c *call) {
	g := c.g
	c.missionRevision()
	c.notTerminal()
	deadline := when(c.p["deadline"])
	if !deadline.After(g.deadline) {
		fail(ic, "deadline")
	}
	if g.parent != nil && (deadline.After(g.parent.deadline) || deadline.After(when(g.parentItem.contract["deadline"]))) {
		fail(ic, "deadline")
	}
	old := g.deadline
	g.deadline = deadline
	c.primary(c.emit(g, "ext.missionweave.mission.deadline_extended", "mission", obj{
		"missionId": g.mission, "previousDeadline": moment(old), "deadline": moment(deadline), "reason": c.p["reason"],
		"policyLogEntryId": anything{},
	}, ""))
}

// superseded: a WorkItem that stands in for it is verified or itself superseded.
func (g *group) superseded(id string) bool {
	for _, w := range g.items {
		if w.replaces == id && (w.state == "verified" || g.superseded(w.id)) {
			return true
		}
	}
	return false
}

// approvable are the Artifact hashes of verified WorkItems.
func (g *group) approvable() map[string]bool {
	out := map[string]bool{}
	for _, w := range g.items {
		if w.state != "verified" {
			continue
		}
		for _, a := range w.artifacts {
			out[a.hash] = true
		}
		for _, h := range w.childGave {
			out[h] = true
		}
	}
	return out
}

func doSubmitMission(c *call) {
	g := c.g
	hashes := texts(c.p["artifactHashes"])
	known := g.approvable()
	for _, h := range hashes {
		if !known[h] {
			fail(ic, "unknown_reference")
		}
	}
	accepted := map[string]bool{}
	for _, f := range list(c.p["acceptedFailures"]) {
		id := text(f.(obj)["workItemId"])
		if w := g.items[id]; w == nil {
			fail(ic, "")
		} else if w.state != "failed" {
			fail(ic, "binding_mismatch")
		}
		accepted[id] = true
	}
	c.missionRevision()
	c.missionActive()
	verified := false
	for _, w := range sortedItems(g) {
		switch w.state {
		case "verified":
			verified = true
		case "cancelled":
		case "failed":
			if !accepted[w.id] && !g.superseded(w.id) {
				fail(ist, "")
			}
		default:
			fail(ist, "")
		}
	}
	if !verified {
		fail(ist, "")
	}
	g.state = "awaiting_approval"
	g.submitted = sortedText(hashes)
	e := c.emit(g, "mission.submitted_for_approval", "mission", nil, "")
	g.submittedRev = e.rev
	e.payload = obj{"missionId": g.mission, "missionRevision": e.rev, "artifactHashes": g.submitted}
	if has(c.p, "acceptedFailures") {
		e.payload["acceptedFailures"] = c.p["acceptedFailures"]
	}
	c.primary(e)
}

// approving is P17 of an embedded Approval.
func approving(c *call) {
	if actorOf(c.p["approval"].(obj)["approver"]) != c.cmd.actor {
		fail(af, "")
	}
}

// approval checks what every embedded Approval must say (3.4).
func (c *call) approval(name, kind, decision string) obj {
	a := c.p[name].(obj)
	if text(a["kind"]) != kind || text(a["decision"]) != decision ||
		text(a["missionId"]) != c.g.mission || text(a["groupId"]) != c.g.id {
		fail(ic, "binding_mismatch")
	}
	if c.g.approvals[text(a["approvalId"])] {
		fail(ic, "identifier_in_use")
	}
	return a
}

func (g *group) finalKind() string {
	if g.parent != nil {
		return "child_mission"
	}
	return "mission_final"
}

func (c *call) verdict(a obj, emptyToo bool) {
	g := c.g
	if number(a["missionRevision"]) != g.submittedRev {
		fail(rc, "")
	}
	hashes := sortedText(texts(a["artifactHashes"]))
	if !slices.Equal(hashes, g.submitted) && !(emptyToo && len(hashes) == 0) {
		fail(ic, "artifact_set")
	}
	if g.policy != "" && text(a["acceptancePolicyVersion"]) != g.policy {
		fail(ic, "policy_version")
	}
}

func doApprove(c *call) {
	g := c.g
	a := c.approval("approval", g.finalKind(), "approved")
	c.missionRevision()
	if g.state != "awaiting_approval" {
		fail(ist, "")
	}
	c.verdict(a, false)
	if g.parent != nil && g.finalHuman {
		fail(apr, "")
	}
	g.approvals[text(a["approvalId"])] = true
	g.state = "approved"
	payload := obj{"missionId": g.mission, "approval": a, "policyLogEntryId": anything{}}
	c.end(g.lease, "released", anyReason)
	payload["closedLease"] = g.lease.json()
	g.account.finished = true
	closeProposals(g)
	first := c.primary(c.emit(g, "mission.approved", "mission", payload, ""))
	w := g.parentItem
	if w == nil || w.state != "blocked" || w.child != g || w.childState != "live" {
		return
	}
	w.state, w.childState = "verified", "approved"
	w.childGave = g.submitted
	closed := c.endAll(w, "released", anyReason)
	w.account.finished = true
	w.submission = obj{"artifactHashes": g.submitted}
	c.emitItem(w, "work.result.accepted", obj{
		"childMissionId": g.mission, "approvalId": a["approvalId"], "evidence": anything{},
		"submission": part{"artifactHashes": g.submitted}, "closedLeases": closed, "sourceEventId": first.id, "policyLogEntryId": anything{},
	}, first.id)
}

func closeProposals(g *group) {
	for _, p := range g.proposals {
		if p.state == "open" {
			p.state = "closed"
		}
	}
}

func doRequestChanges(c *call) {
	g := c.g
	a := c.approval("approval", g.finalKind(), "changes_requested")
	c.missionRevision()
	if g.state != "awaiting_approval" {
		fail(ist, "")
	}
	c.verdict(a, true)
	if strings.TrimSpace(text(a["comments"])) == "" {
		fail(ic, "comments")
	}
	g.approvals[text(a["approvalId"])] = true
	g.state, g.submitted, g.submittedRev = "active", nil, 0
	c.primary(c.emit(g, "mission.changes_requested", "mission", obj{
		"missionId": g.mission, "approval": a, "policyLogEntryId": anything{},
	}, ""))
}
