package naive

import (
	"slices"
	"time"
)

// Execution approvals, sessions and what time does (sections 5.6, 5.7, 7.8).

func approvalRules() map[string]rule {
	approver := [][2]string{{"approver", "approval.execution"}, {"service", ""}}
	return map[string]rule{
		"approval.grant_execution": {
			required: []string{"approval", "ownershipEpoch", "operations", "resources", "expiresAt"},
			optional: []string{"budget", "argumentsDigest", "requestId"}, who: approver, item: "needed", signed: judging, do: doGrantExecution,
		},
		"ext.missionweave.approval.request_execution": {
			required: []string{"requestId", "ownershipEpoch", "operations", "resources", "expiresAt"},
			optional: []string{"budget", "argumentsDigest", "reason"},
			who:      [][2]string{{"coordinator", ""}, {"worker", ""}, {"service", ""}}, item: "needed", do: doRequest,
		},
		"ext.missionweave.approval.deny_execution": {
			required: []string{"approval", "ownershipEpoch"}, optional: []string{"requestId"}, who: approver, item: "needed", signed: judging, do: doDeny,
		},
		"ext.missionweave.approval.revoke_execution": {
			required: []string{"approval"}, who: approver, item: "needed", signed: judging, do: doRevoke,
		},
		"ext.missionweaveprotocol.identity.session_open": {
			required: []string{"agentId"}, optional: []string{"keyId", "sessionExpiresAt"}, who: [][2]string{{"service", ""}}, org: true, do: doSession,
		},
	}
}

// executionApproval is P17 and P18 of the embedded Approval.
func (c *call) executionApproval(decision string) obj {
	a := c.p["approval"].(obj)
	if text(a["kind"]) != "work_execution" || text(a["decision"]) != decision || text(a["missionId"]) != c.g.mission ||
		text(a["groupId"]) != c.g.id || text(a["workItemId"]) != c.w.id {
		fail(ic, "binding_mismatch")
	}
	if c.g.approvals[text(a["approvalId"])] {
		fail(ic, "identifier_in_use")
	}
	return a
}

// judging is P17 of a verdict on the gate: a service has one only where policy
// asks for no human.
func judging(c *call) {
	approving(c)
	if w := c.g.items[c.cmd.item]; w != nil && c.capacity == "service" && c.gated(w) != "policy" {
		fail(af, "")
	}
}

func (w *item) request(id string) *request {
	for _, r := range w.requests {
		if r.id == id {
			return r
		}
	}
	return nil
}

func (c *call) cited() *request {
	if !has(c.p, "requestId") {
		return nil
	}
	r := c.w.request(text(c.p["requestId"]))
	if r == nil {
		fail(ic, "unknown_reference")
	}
	return r
}

// requestState adds the clock and the owner to a request's stored status.
func (c *call) requestState(r *request) string {
	if r.status != "pending" {
		return r.status
	}
	if c.w.epoch != r.epoch {
		return "superseded"
	}
	if !c.m.now.Before(r.expires) {
		return "expired"
	}
	return "pending"
}

// currentEpoch: this is the last Ownership Epoch given out. A denial may come
// after its owner has gone (state failed is among the states it is for).
func (c *call) currentEpoch() {
	if c.w.epoch != number(c.p["ownershipEpoch"]) {
		fail(wso, "")
	}
}

func (c *call) approvable() {
	allowed := list(c.w.contract["allowedResources"])
	for _, r := range texts(c.p["resources"]) {
		for _, op := range texts(c.p["operations"]) {
			if !granted(allowed, []any{obj{"resource": r, "operations": []any{op}}}) {
				fail(af, "permission")
			}
		}
	}
	expires := when(c.p["expiresAt"])
	if !expires.After(c.m.now) || expires.After(c.m.now.Add(86400*time.Second)) {
		fail(ic, "deadline")
	}
}

func doGrantExecution(c *call) {
	g, w := c.g, c.w
	a := c.executionApproval("approved")
	r := c.cited()
	c.currentEpoch()
	if w.own == nil || !c.m.now.Before(w.own.expires) {
		fail(wle, "")
	}
	c.itemRevision()
	c.missionActive()
	c.itemIn("queued")
	if r != nil && c.requestState(r) != "pending" {
		fail(ist, "")
	}
	if number(a["missionRevision"]) != g.rev["mission"] {
		fail(rc, "")
	}
	c.approvable()
	if r != nil && (!sameSet(r.operations, list(c.p["operations"])) || r.digest != text(c.p["argumentsDigest"])) {
		fail(ic, "binding_mismatch")
	}
	if has(c.p, "budget") && (!budgetOf(c.p["budget"]).within(w.account.limit) || !budgetOf(c.p["budget"]).within(w.account.remaining())) {
		fail(be, "")
	}
	g.approvals[text(a["approvalId"])] = true
	e := &execution{
		id: text(a["approvalId"]), status: "approved", epoch: w.epoch, by: c.cmd.actor, expires: when(c.p["expiresAt"]),
		request: text(c.p["requestId"]),
	}
	w.approvals = append(w.approvals, e)
	payload := obj{
		"approval": a, "ownershipEpoch": w.epoch, "operations": unordered(list(c.p["operations"])), "resources": unordered(list(c.p["resources"])),
		"budget": anything{}, "expiresAt": moment(e.expires), "policyLogEntryId": anything{},
	}
	for _, name := range []string{"argumentsDigest", "requestId"} {
		if has(c.p, name) {
			payload[name] = c.p[name]
		}
	}
	if r != nil {
		r.status = "granted"
	}
	c.primary(c.emitItem(w, "approval.execution.granted", payload, ""))
}

func doRequest(c *call) {
	g, w := c.g, c.w
	id := text(c.p["requestId"])
	for _, other := range g.items {
		if other.request(id) != nil {
			fail(ic, "identifier_in_use")
		}
	}
	if c.capacity == "worker" {
		c.owning()
	} else {
		c.currentEpoch()
	}
	c.itemRevision()
	c.missionActive()
	c.itemIn("queued")
	c.approvable()
	if has(c.p, "budget") && (!budgetOf(c.p["budget"]).within(w.account.limit) || !budgetOf(c.p["budget"]).within(w.account.remaining())) {
		fail(be, "")
	}
	r := &request{
		id: id, status: "pending", epoch: w.epoch, expires: when(c.p["expiresAt"]),
		operations: list(c.p["operations"]), resources: list(c.p["resources"]), digest: text(c.p["argumentsDigest"]),
	}
	w.requests = append(w.requests, r)
	doc := obj{
		"requestId": id, "requestedBy": c.cmd.actor.json(), "ownershipEpoch": w.epoch, "operations": unordered(r.operations),
		"resources": unordered(r.resources), "expiresAt": moment(r.expires),
	}
	for _, name := range []string{"budget", "argumentsDigest", "reason"} {
		if has(c.p, name) {
			doc[name] = c.p[name]
		}
	}
	c.primary(c.emitItem(w, "ext.missionweave.approval.execution_requested", obj{"request": doc}, ""))
}

func doDeny(c *call) {
	g, w := c.g, c.w
	a := c.executionApproval("denied")
	r := c.cited()
	c.currentEpoch()
	c.itemRevision()
	if !unfinished(w.state) && w.state != "failed" {
		fail(ist, "")
	}
	late := false
	if r != nil {
		switch c.requestState(r) {
		case "pending":
		case "expired":
			late = true
		default:
			fail(ist, "")
		}
	}
	g.approvals[text(a["approvalId"])] = true
	w.approvals = append(w.approvals, &execution{
		id: text(a["approvalId"]), status: "denied", epoch: w.epoch, by: c.cmd.actor, gate: r == nil,
	})
	payload := obj{"approval": a, "ownershipEpoch": w.epoch, "late": late, "policyLogEntryId": anything{}}
	if r != nil {
		r.status = "denied"
		payload["requestId"] = r.id
	}
	c.primary(c.emitItem(w, "ext.missionweave.approval.execution_denied", payload, ""))
}

func doRevoke(c *call) {
	w := c.w
	a := c.executionApproval("revoked")
	var target *execution
	for _, e := range w.approvals {
		if e.id == text(a["revokesApprovalId"]) {
			target = e
		}
	}
	if target == nil {
		fail(ic, "")
	}
	c.itemRevision()
	if target.status != "approved" || !c.m.now.Before(target.expires) {
		fail(ist, "")
	}
	c.g.approvals[text(a["approvalId"])] = true
	target.status = "revoked"
	c.primary(c.emitItem(w, "ext.missionweave.approval.execution_revoked", obj{
		"approval": a, "revokedApprovalId": target.id, "policyLogEntryId": anything{},
	}, ""))
}

func doSession(c *call) {
	id := text(c.p["agentId"])
	if !c.cmd.internal || c.capacity == "" {
		fail(af, "")
	}
	a := c.registered(id)
	c.revision(a.session)
	a.session++
	payload := obj{"agentId": id, "sessionEpoch": a.session}
	for _, name := range []string{"keyId", "sessionExpiresAt"} {
		if has(c.p, name) {
			payload[name] = c.p[name]
		}
	}
	first := &event{
		id: c.m.mint("event"), kind: "ext.missionweaveprotocol.identity.session_opened", actor: c.cmd.actor, cause: "command",
		causeID: c.cmd.id, payload: payload, primary: true,
	}
	c.out = append(c.out, first)
	for _, groupID := range sortedKeys(c.m.groups) {
		for _, w := range sortedItems(c.m.groups[groupID]) {
			if w.state != "active" || w.owner == nil || w.owner.agent != id || w.owner.dead {
				continue
			}
			w.state = "queued"
			run := w.run
			for _, l := range w.closed { // written down as expired before
				if w.run == nil && l.kind == "execution" {
					run = l
				}
			}
			c.emitItem(w, "ext.missionweaveprotocol.core.work_execution_lease_revoked", obj{
				"executionLeaseId": run.id, "ownershipEpoch": w.epoch, "reason": "session_replaced", "sessionEpoch": a.session,
				"closedLeases": c.endOne(w, &w.run, "revoked", "session_replaced"),
			}, source)
		}
	}
}

// sweep lets time be written down in one Group (7.8). The order of the Events
// is the Authority's choice.
func (m *model) sweep(g *group) []*event {
	c := &call{m: m, g: g, cmd: &command{}}
	timer := func(e *event, id string) {
		e.actor, e.cause, e.causeID = authority, "timer", id
	}
	if l := g.lease; l.state == "active" && !m.now.Before(l.expires) {
		l.end(m.now, "", "")
		timer(c.emit(g, "ext.missionweave.authority.lease_expired", "lease "+l.id, obj{"lease": l.json()}, ""), l.id)
	}
	for _, w := range sortedItems(g) {
		for _, slot := range []**lease{&w.own, &w.run, &w.blk} {
			if l := *slot; l != nil && !m.now.Before(l.expires) {
				c.endOne(w, slot, "", "")
				timer(c.emitItem(w, "ext.missionweave.authority.lease_expired", obj{"lease": l.json()}, ""), l.id)
			}
		}
		for _, e := range w.approvals {
			if e.status == "approved" && !m.now.Before(e.expires) {
				e.status = "expired"
				timer(c.emitItem(w, "ext.missionweave.approval.execution_expired", obj{"approvalId": e.id, "expiredAt": moment(e.expires)}, ""), e.id)
			}
		}
		for _, r := range w.requests {
			c.w = w
			if c.requestState(r) == "expired" && r.status == "pending" {
				r.status = "expired"
				timer(c.emitItem(w, "ext.missionweave.approval.execution_expired", obj{"requestId": r.id, "expiredAt": moment(r.expires)}, ""), r.id)
			}
		}
	}
	members := make([]actor, 0, len(g.members))
	for who := range g.members {
		members = append(members, who)
	}
	slices.SortFunc(members, func(a, b actor) int { return slices.Compare([]string{a.Type, a.ID}, []string{b.Type, b.ID}) })
	for _, who := range members {
		x := g.members[who]
		if x.state == "provisional" && !m.now.Before(x.expires) {
			n := len(c.out)
			c.endMember(g, who, "provisional_expired", "")
			for _, e := range c.out[n:] {
				timer(e, x.id)
			}
		}
	}
	return c.out
}
