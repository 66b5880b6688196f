package naive

// How Missions end, with all that lives by them (sections 5.1, D15).

func doCancelMission(c *call) {
	c.missionRevision()
	c.notTerminal()
	c.finish(c.g, "cancelled", "", obj{"reason": c.p["reason"]})
	c.tellParent(c.g)
}

func doTerminate(c *call) {
	g := c.g
	payload := obj{"reason": c.p["reason"]}
	if evidence := list(c.p["evidence"]); len(evidence) > 0 {
		payload["evidence"] = evidence
		on := g
		var target *item
		if g.parent != nil {
			on, target = g.parent, g.parentItem
		}
		for _, e := range evidence {
			o := e.(obj)
			w := on.items[text(o["workItemId"])]
			if target != nil && w != target || w == nil {
				fail(ic, "")
			}
			c.evidenceBound(on, w, o)
		}
	}
	c.missionRevision()
	c.notTerminal()
	for _, e := range list(c.p["evidence"]) {
		g.evidence[text(e.(obj)["evidenceId"])] = e.(obj)
	}
	c.finish(g, "failed", "", payload)
	c.tellParent(g)
}

// finish ends a Mission in cancelled or failed, with everything below it.
func (c *call) finish(g *group, state, from string, payload obj) *event {
	g.state = state
	payload["missionId"], payload["policyLogEntryId"] = g.mission, anything{}
	if from != "" {
		payload["reason"] = anything{}
		payload["sourceEventId"], payload["sourceGroupId"] = anything{}, anything{}
	}
	if g.lease.state == "active" {
		c.end(g.lease, "released", anyReason)
		payload["closedLease"] = g.lease.json()
	}
	closeProposals(g)
	kind, itemKind, itemState := "mission.cancelled", "work.cancelled", "cancelled"
	if state == "failed" {
		kind, itemKind, itemState = "mission.terminated", "work.failed", "failed"
	}
	e := c.emit(g, kind, "mission", payload, from)
	if from == "" && g == c.g {
		c.primary(e)
	}
	var children []*group
	for _, w := range sortedItems(g) {
		if !unfinished(w.state) {
			continue
		}
		if w.childState == "live" {
			children = append(children, w.child)
		}
		c.finishItem(w, itemKind, itemState, from, obj{"reason": anything{}, "sourceEventId": maybe{anything{}}})
	}
	g.account.finished = true
	for _, child := range children {
		c.finish(child, state, source, obj{})
	}
	return e
}

// finishItem ends a WorkItem as failed or cancelled.
func (c *call) finishItem(w *item, kind, state, from string, payload obj) *event {
	was := w.owner
	w.state = state
	payload["withdrawnOfferIds"] = c.withdraw(w)
	payload["closedLeases"] = c.endAll(w, "revoked", anyReason)
	if was != nil {
		payload["previousOwner"] = was.json()
		if kind == "work.failed" {
			payload["ownershipEpoch"] = maybe{anything{}}
		}
		w.owner = nil
	}
	if kind == "work.failed" {
		if !has(payload, "evidence") {
			payload["evidence"] = maybe{anything{}}
		}
		payload["childMissionId"] = maybe{anything{}}
		payload["policyLogEntryId"] = maybe{anything{}}
	}
	if w.childState == "live" {
		w.childState = state
	}
	w.account.finished = true
	return c.emitItem(w, kind, payload, from)
}

// tellParent carries the end of a child Mission to its parent WorkItem.
func (c *call) tellParent(g *group) {
	w := g.parentItem
	if w == nil || w.childState != "live" || w.child != g || terminalMission(g.parent.state) {
		return
	}
	if g.state == "cancelled" || g.failure == "block_parent_work_item" {
		w.childState = g.state
		w.owner.dead = true
		payload := obj{
			"reason": anything{}, "requiredResolution": anything{}, "childMissionId": g.mission, "childOutcome": g.state,
			"closedLeases": c.endAll(w, "released", anyReason), "sourceEventId": anything{}, "policyLogEntryId": anything{},
		}
		if g.state == "failed" {
			payload["evidence"] = anything{}
		}
		c.emitItem(w, "work.blocked", payload, source)
		return
	}
	c.finishItem(w, "work.failed", "failed", source, obj{"reason": anything{}, "sourceEventId": anything{}})
	if g.failure == "fail_parent_mission" {
		c.finish(g.parent, "failed", source, obj{"evidence": maybe{anything{}}})
		c.tellParent(g.parent)
	}
}
