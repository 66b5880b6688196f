package naive

import (
	"slices"
	"time"
)

// Execution of WorkItems (section 5.5).

func workRules() map[string]rule {
	worker := [][2]string{{"worker", ""}}
	executes := [][2]string{{"worker", "work.execute"}}
	held := []string{"ownershipEpoch", "executionLeaseId"}
	with := func(more ...string) []string { return append(slices.Clone(held), more...) }
	return map[string]rule{
		"work.start": {required: []string{"ownershipEpoch"}, optional: []string{"executionLeaseSeconds"}, who: executes, item: "needed", governed: []string{"active_work_items"}, do: doStart},
		"ext.missionweaveprotocol.core.work_execution_lease_renew": {
			required: held, optional: []string{"leaseSeconds", "progress", "scheduleEstimate"}, who: worker, item: "needed", do: doRenew,
		},
		"ext.missionweave.work.ownership_lease_renew": {
			required: []string{"ownershipEpoch"}, optional: []string{"leaseSeconds", "startBy", "scheduleEstimate"}, who: worker, item: "needed", do: doRenewOwnership,
		},
		"ext.missionweaveprotocol.core.resource_usage_record": {
			required: with("usageDelta"), who: [][2]string{{"worker", ""}, {"service", ""}}, item: "needed", do: doUsage,
		},
		"work.checkpoint": {
			required: with("progress"), optional: []string{"stateArtifactHash", "resumeWithinSeconds", "scheduleEstimate"}, who: worker, item: "needed", do: doCheckpoint,
		},
		"work.block": {
			required: with("progress", "reason", "requiredResolution"),
			optional: []string{"stateArtifactHash", "evidence", "blockedLeaseSeconds", "scheduleEstimate"}, who: worker, item: "needed", signed: vouching, do: doBlock,
		},
		"work.unblock":       {optional: []string{"resolution"}, who: [][2]string{{"coordinator", "work.authorize"}}, item: "needed", do: doUnblock},
		"artifact.publish":   {required: with("artifact"), who: executes, item: "needed", signed: producing, do: doPublish},
		"work.submit":        {required: with("artifactHashes", "evidence"), who: worker, item: "needed", signed: vouching, do: doSubmit},
		"work.accept_result": {required: []string{"evidence"}, who: [][2]string{{"coordinator", "work.verify"}}, item: "needed", signed: vouching, do: doAcceptResult},
		"work.fail": {
			required: []string{"reason", "evidence"}, optional: []string{"ownershipEpoch", "executionLeaseId", "failureCode"},
			who: [][2]string{{"coordinator", "work.verify"}, {"worker", ""}}, item: "needed", signed: vouching, do: doFail,
			shape: func(c *call) {
				if has(c.p, "ownershipEpoch") != has(c.p, "executionLeaseId") {
					fail(svf, "")
				}
			},
		},
		"work.cancel": {
			required: []string{"reason"}, who: [][2]string{{"coordinator", "work.authorize"}, {"owner", "mission.cancel"}, {"service", ""}}, item: "needed", do: doCancel,
		},
	}
}

// owning is P19.
func (c *call) owning() {
	w := c.w
	if !w.owned[c.cmd.actor.ID] {
		fail(af, "")
	}
	if w.owner == nil || w.owner.dead || w.owner.custody || w.owner.agent != c.cmd.actor.ID || w.owner.epoch != number(c.p["ownershipEpoch"]) {
		fail(wso, "")
	}
}

// holding is P20 for the Execution Lease.
func (c *call) holding() {
	l := c.w.run
	if l == nil || !c.m.same(l.id, text(c.p["executionLeaseId"])) || l.session != c.cmd.session || !c.m.now.Before(l.expires) {
		fail(wle, "")
	}
}

// owned is P20 for the Ownership Lease.
func (c *call) ownershipHeld() {
	w := c.w
	if w.own == nil || !c.m.now.Before(w.own.expires) || !w.owner.started && !c.m.now.Before(w.own.startBy) {
		fail(wle, "")
	}
}

func (c *call) estimate(payload obj) obj {
	if has(c.p, "scheduleEstimate") {
		payload["scheduleEstimate"] = c.p["scheduleEstimate"]
	}
	return payload
}

func doStart(c *call) {
	g, w := c.g, c.w
	c.owning()
	c.ownershipHeld()
	c.itemRevision()
	c.missionActive()
	c.itemIn("queued")
	for _, id := range texts(w.contract["dependencyWorkItemIds"]) {
		if d := g.items[id]; d.state != "verified" && !g.superseded(id) {
			fail(ist, "dependency")
		}
	}
	if !c.m.pinsHold(w) {
		fail(ist, "acceptance_required")
	}
	if !when(w.contract["deadline"]).After(c.m.now) {
		fail(ic, "deadline")
	}
	var approval *execution
	if c.gated(w) != "" {
		if approval = c.opened(w); approval == nil {
			fail(apr, "")
		}
	}
	_, active := c.m.load(c.cmd.actor.ID)
	c.limit(active+1 > min(c.m.limits.active, c.agent.most), "active_work_items")
	c.limitsDone()
	if w.account.paused() {
		fail(be, "paused")
	}
	w.state = "active"
	w.owner.started = true
	w.run = c.open("execution", c.cmd.actor.ID, g, w, c.m.now.Add(c.m.secs(c.p, "executionLeaseSeconds", 300)))
	c.raise(w.own, w.run.expires, true)
	payload := obj{
		"ownershipEpoch": w.epoch, "executionLease": w.run.json(), "executionLeaseExpiresAt": moment(w.run.expires), "ownershipLease": w.own.json(),
	}
	if approval != nil {
		payload["approvalId"] = approval.id
	}
	c.primary(c.emitItem(w, "work.started", payload, ""))
}

func doRenew(c *call) {
	w := c.w
	c.evidenceKnown(c.p["progress"])
	c.owning()
	c.holding()
	c.itemRevision()
	c.missionActive()
	c.itemIn("active")
	if !c.m.pinsHold(w) {
		fail(ist, "acceptance_required")
	}
	expires := c.m.now.Add(c.m.secs(c.p, "leaseSeconds", 300))
	if !expires.After(w.run.expires) {
		fail(ic, "lease_not_extended")
	}
	if c.gated(w) != "" && c.opened(w) == nil {
		fail(apr, "")
	}
	if w.account.paused() {
		fail(be, "paused")
	}
	c.set(w.run, expires, time.Time{}, true)
	c.raise(w.own, expires, true)
	payload := obj{
		"ownershipEpoch": w.epoch, "executionLease": w.run.json(), "executionLeaseExpiresAt": moment(expires), "ownershipLease": w.own.json(),
	}
	if has(c.p, "progress") {
		payload["progress"] = c.p["progress"]
	}
	c.primary(c.emitItem(w, "work.progressed", c.estimate(payload), ""))
}

func doRenewOwnership(c *call) {
	w := c.w
	c.owning()
	c.ownershipHeld()
	c.itemRevision()
	c.missionActive()
	c.itemIn("queued")
	expires := c.m.now.Add(c.m.secs(c.p, "leaseSeconds", 900))
	startBy := expires
	if has(c.p, "startBy") {
		startBy = when(c.p["startBy"])
	}
	switch {
	case !expires.After(w.own.expires):
		fail(ic, "lease_not_extended")
	case expires.After(when(w.contract["deadline"])), has(c.p, "startBy") && (startBy.Before(w.own.startBy) || startBy.After(expires)):
		fail(ic, "deadline")
	}
	c.set(w.own, expires, startBy, true)
	c.primary(c.emitItem(w, "ext.missionweave.work.ownership_lease_renewed", c.estimate(obj{
		"ownershipEpoch": w.epoch, "ownershipLease": w.own.json(),
	}), ""))
}

func doUsage(c *call) {
	w := c.w
	delta := usageOf(c.p["usageDelta"])
	if c.capacity == "service" {
		known := false
		for _, l := range append(slices.Clone(w.closed), w.run) {
			if l != nil && l.kind == "execution" && c.m.same(l.id, text(c.p["executionLeaseId"])) && l.ownershipEpoch == number(c.p["ownershipEpoch"]) {
				known = true
			}
		}
		if !known {
			fail(ic, "unknown_reference")
		}
	} else {
		c.owning()
		c.holding()
	}
	c.revision(c.g.rev[w.account.key()])
	if c.capacity != "service" {
		c.notTerminal()
		c.itemIn("active")
	}
	if w.account.foreign(c.p["usageDelta"]) {
		fail(ic, "currency_mismatch")
	}
	if c.capacity != "service" && w.account.paused() {
		fail(be, "paused")
	}
	if !w.account.canCharge(delta) {
		fail(be, "")
	}
	before := map[*account][]string{}
	for a := w.account; a != nil; a = a.parent {
		before[a] = a.exhausted()
	}
	w.account.direct = w.account.direct.plus(delta)
	// One Event in each Group on the way up, and one for each account that this
	// charge used up.
	from := ""
	for g, at := c.g, w; ; {
		payload := obj{
			"workItemId": at.id, "usageDelta": usageJSON(delta, at.account), "cumulativeUsage": usageJSON(at.account.usage(), at.account),
			"remainingBudget":        budgetJSON(at.account.remaining(), at.account),
			"missionCumulativeUsage": usageJSON(g.account.usage(), g.account), "missionRemainingBudget": budgetJSON(g.account.remaining(), g.account),
		}
		if from == "" {
			payload["executionLeaseId"], payload["ownershipEpoch"] = c.p["executionLeaseId"], c.p["ownershipEpoch"]
		} else {
			payload["childMissionId"], payload["sourceEventId"] = at.child.mission, anything{}
		}
		e := c.emit(g, "ext.missionweaveprotocol.core.resource_usage_recorded", at.account.key(), payload, from)
		e.item, e.conv = at.id, at.conv
		if from == "" {
			c.primary(e)
		}
		for a := at.account; a != nil; a = a.parent {
			var newly []any
			for _, d := range a.exhausted() {
				if !slices.Contains(before[a], d) {
					newly = append(newly, d)
				}
			}
			if newly != nil {
				e := c.emit(g, "ext.missionweave.authority.budget_exhausted", a.key(), obj{
					"account": a.ref(), "dimensions": unordered(newly), "affectedWorkItemIds": anything{}, "policyLogEntryId": anything{},
				}, from)
				e.item, e.conv = "\x00skip", "\x00skip"
			}
			if a == g.account {
				break
			}
		}
		if g.parent == nil {
			return
		}
		from = source
		g, at = g.parent, g.parentItem
	}
}

func usageJSON(v vector, a *account) any {
	o := part(v.usage(""))
	o["currency"] = maybe{a.treeCurrency()}
	return o
}

func budgetJSON(v vector, a *account) any {
	o := part(v.budget(""))
	o["currency"] = maybe{a.treeCurrency()}
	return o
}

// evidenceKnown: a progress report names Evidence of the Group.
func (c *call) evidenceKnown(progress any) {
	o, _ := progress.(obj)
	for _, id := range texts(o["evidenceIds"]) {
		if c.g.evidence[id] == nil {
			fail(ic, "unknown_reference")
		}
	}
}

func doCheckpoint(c *call) {
	w := c.w
	c.evidenceKnown(c.p["progress"])
	c.owning()
	c.holding()
	c.itemRevision()
	c.missionActive()
	c.itemIn("active")
	w.state = "queued"
	closed := c.endOne(w, &w.run, "released", "checkpointed")
	c.set(w.own, c.m.now.Add(c.m.secs(c.p, "resumeWithinSeconds", 900)), time.Time{}, true)
	c.primary(c.emitItem(w, "work.checkpointed", c.estimate(obj{
		"ownershipEpoch": w.epoch, "checkpointId": anything{}, "progress": c.p["progress"], "closedLeases": closed, "ownershipLease": w.own.json(),
	}), ""))
}

func doBlock(c *call) {
	w := c.w
	evidence := list(c.p["evidence"])
	c.evidenceKnown(c.p["progress"])
	for _, e := range evidence {
		c.evidenceBound(c.g, w, e.(obj))
	}
	c.owning()
	c.holding()
	c.itemRevision()
	c.missionActive()
	c.itemIn("active")
	expires := c.m.now.Add(c.m.secs(c.p, "blockedLeaseSeconds", 900))
	w.state = "blocked"
	closed := c.endOne(w, &w.run, "released", "blocked")
	c.set(w.own, expires, time.Time{}, true)
	w.blk = c.open("blocked", c.cmd.actor.ID, c.g, w, expires)
	payload := obj{
		"ownershipEpoch": w.epoch, "checkpointId": anything{}, "progress": c.p["progress"], "closedLeases": closed, "ownershipLease": w.own.json(),
		"blockedLease": w.blk.json(), "reason": c.p["reason"], "requiredResolution": c.p["requiredResolution"],
	}
	if has(c.p, "evidence") {
		payload["evidence"] = evidence
	}
	c.keep(evidence)
	c.primary(c.emitItem(w, "work.blocked", c.estimate(payload), ""))
}

func doUnblock(c *call) {
	w := c.w
	c.itemRevision()
	c.missionActive()
	c.itemIn("blocked")
	if w.childState == "live" {
		fail(ist, "child_live")
	}
	payload := obj{}
	if has(c.p, "resolution") {
		payload["resolution"] = c.p["resolution"]
	}
	if c.m.liveOwner(w) {
		w.state = "queued"
		payload["closedLeases"] = c.endOne(w, &w.blk, "released", "unblocked")
		c.raise(w.own, c.m.now.Add(900*time.Second), false)
		payload["ownershipLease"], payload["ownershipReleased"] = w.own.json(), false
	} else {
		w.state = "open"
		w.owner = nil
		payload["closedLeases"], payload["ownershipReleased"] = c.endAll(w, "revoked", anyReason), true
	}
	c.primary(c.emitItem(w, "work.unblocked", payload, ""))
}

// vouching is P17 of embedded Evidence: who may vouch.
func vouching(c *call) {
	for _, e := range list(c.p["evidence"]) {
		o := e.(obj)
		by := actorOf(o["generatedBy"])
		ok := by == c.cmd.actor || c.m.live(c.g.members[by]) || by == actor{"service", "service:evidence"}
		if c.cmd.kind == "work.fail" && c.capacity == "worker" {
			ok = by == c.cmd.actor
		}
		if text(o["type"]) == "human_review" && by.Type != "human" {
			ok = false
		}
		if !ok {
			fail(af, "")
		}
	}
}

// evidenceBound is P18: what it is about.
func (c *call) evidenceBound(g *group, w *item, o obj) {
	if text(o["missionId"]) != g.mission || text(o["groupId"]) != g.id || text(o["workItemId"]) != w.id {
		fail(ic, "")
	}
	criteria := map[string]bool{}
	for _, k := range list(w.contract["acceptanceCriteria"]) {
		criteria[text(k.(obj)["criterionId"])] = true
	}
	for _, id := range texts(o["criterionIds"]) {
		if !criteria[id] {
			fail(ic, "")
		}
	}
	if old := g.evidence[text(o["evidenceId"])]; old != nil && canonical(old) != canonical(o) {
		fail(ic, "identifier_in_use")
	}
}

func (c *call) keep(evidence []any) {
	for _, e := range evidence {
		c.g.evidence[text(e.(obj)["evidenceId"])] = e.(obj)
	}
}

func doSubmit(c *call) {
	w := c.w
	evidence := list(c.p["evidence"])
	for _, h := range texts(c.p["artifactHashes"]) {
		if !slices.ContainsFunc(w.artifacts, func(a *artifact) bool { return a.hash == h && a.epoch == number(c.p["ownershipEpoch"]) }) {
			fail(ic, "")
		}
	}
	for _, e := range evidence {
		c.evidenceBound(c.g, w, e.(obj))
	}
	c.owning()
	c.holding()
	c.itemRevision()
	c.missionActive()
	c.itemIn("active")
	for _, k := range list(w.contract["acceptanceCriteria"]) {
		id := text(k.(obj)["criterionId"])
		if !slices.ContainsFunc(evidence, func(e any) bool {
			o := e.(obj)
			return slices.Contains(texts(o["criterionIds"]), id) && text(o["result"]) != "failed"
		}) {
			fail(ic, "evidence_incomplete")
		}
	}
	w.state = "submitted"
	var ids []any
	for _, e := range evidence {
		ids = append(ids, e.(obj)["evidenceId"])
	}
	w.submission = obj{"artifactHashes": c.p["artifactHashes"], "evidence": evidence}
	c.keep(evidence)
	c.primary(c.emitItem(w, "work.submitted", obj{
		"ownershipEpoch": w.epoch, "evidence": evidence, "closedLeases": c.endOne(w, &w.run, "released", "submitted"),
		"submission": obj{
			"artifactHashes": unordered(list(c.p["artifactHashes"])), "evidenceIds": unordered(ids), "submittedAt": moment(c.m.now),
		},
	}, ""))
}

func doAcceptResult(c *call) {
	w := c.w
	review := list(c.p["evidence"])
	for _, e := range review {
		c.evidenceBound(c.g, w, e.(obj))
	}
	c.itemRevision()
	c.missionActive()
	c.itemIn("submitted")
	var owner actor
	if w.owner != nil {
		owner = agentOf(w.owner.agent)
	}
	all := append(slices.Clone(list(w.submission["evidence"])), review...)
	passed := func(criterion, kind string) bool {
		return slices.ContainsFunc(all, func(e any) bool {
			o := e.(obj)
			return text(o["type"]) == kind && text(o["result"]) == "passed" && slices.Contains(texts(o["criterionIds"]), criterion) &&
				!(kind == "reviewer_assessment" && actorOf(o["generatedBy"]) == owner)
		})
	}
	for _, k := range list(w.contract["acceptanceCriteria"]) {
		for _, kind := range texts(k.(obj)["evidenceRequired"]) {
			if !passed(text(k.(obj)["criterionId"]), kind) {
				fail(ic, "evidence_incomplete")
			}
		}
	}
	for _, e := range review {
		if text(e.(obj)["result"]) == "failed" {
			fail(ic, "evidence_failed")
		}
	}
	if owner == agentOf(c.g.coordinator) && !slices.ContainsFunc(all, func(e any) bool {
		o := e.(obj)
		return text(o["result"]) == "passed" && actorOf(o["generatedBy"]) != owner
	}) {
		fail(af, "sole_reviewer")
	}
	w.state = "verified"
	w.account.finished = true
	c.keep(review)
	c.primary(c.emitItem(w, "work.result.accepted", obj{
		"ownershipEpoch": w.epoch, "evidence": review, "closedLeases": c.endAll(w, "released", "verified"),
	}, ""))
}

func doFail(c *call) {
	g, w := c.g, c.w
	evidence := list(c.p["evidence"])
	asWorker := c.capacity == "worker"
	for _, e := range evidence {
		c.evidenceBound(g, w, e.(obj))
	}
	if asWorker {
		c.owning()
		c.holding()
	}
	c.itemRevision()
	c.notTerminal()
	if asWorker {
		c.itemIn("active")
	} else {
		c.itemIn("open", "offered", "queued", "active", "blocked", "submitted")
	}
	if !slices.ContainsFunc(evidence, func(e any) bool { return text(e.(obj)["result"]) == "failed" }) {
		fail(ic, "evidence_incomplete")
	}
	c.keep(evidence)
	child := w.child
	live := w.childState == "live"
	payload := obj{"reason": c.p["reason"], "evidence": evidence}
	if has(c.p, "failureCode") {
		payload["failureCode"] = c.p["failureCode"]
	}
	c.primary(c.finishItem(w, "work.failed", "failed", "", payload))
	if live {
		c.finish(child, "failed", source, obj{"evidence": maybe{anything{}}})
	}
}

func doCancel(c *call) {
	w := c.w
	c.itemRevision()
	c.notTerminal()
	c.itemIn("open", "offered", "queued", "active", "blocked", "submitted")
	child, live := w.child, w.childState == "live"
	c.primary(c.finishItem(w, "work.cancelled", "cancelled", "", obj{"reason": c.p["reason"]}))
	if live {
		c.finish(child, "cancelled", source, obj{})
	}
}
