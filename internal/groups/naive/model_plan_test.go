package naive

import (
	"slices"
	"time"
)

// WorkItem planning (sections 4.2, 5.4).

func planRules() map[string]rule {
	return map[string]rule{
		"work.propose": {
			required: []string{"proposalId", "contract"}, optional: []string{"parentWorkItemId", "rationale"},
			who: [][2]string{{"member", "work.propose"}}, governed: []string{"proposal_rate", "duplicate_decomposition"}, do: doPropose,
		},
		"work.authorize": {
			optional: []string{
				"contract", "proposalId", "exclusive", "title", "parentWorkItemId", "replacesWorkItemId",
				"delegationGrantId", "emergencyOverride",
			},
			who:  [][2]string{{"delegate", "work.delegate"}, {"coordinator", "work.authorize"}, {"owner", "work.override"}},
			item: "new", signed: citing, shape: func(c *call) {
				if !has(c.p, "contract") && !has(c.p, "proposalId") {
					fail(svf, "")
				}
			}, governed: []string{"delegation_depth", "duplicate_decomposition"}, do: doAuthorize,
		},
		"work.offer": {
			required: []string{"candidateAgentIds", "selectionBasis"},
			optional: []string{"offerExpiresInSeconds", "mode", "contract", "contextPackage", "delegationGrantId", "emergencyOverride"},
			who:      [][2]string{{"delegate", "work.delegate"}, {"coordinator", "work.offer"}, {"owner", "work.override"}},
			item:     "needed", signed: citing, do: doOffer,
		},
		"work.accept_offer": {
			required: []string{"offerId"}, optional: []string{"ownershipLeaseSeconds", "startBy", "scheduleEstimate"},
			who: [][2]string{{"member", "work.accept_offer"}}, item: "needed",
			governed: []string{"queued_work_items", "active_work_items"}, do: doAccept,
		},
		"ext.missionweave.work.offer_decline": {
			required: []string{"offerId", "declineReason"}, optional: []string{"comments"},
			who: [][2]string{{"member", ""}}, item: "needed", do: doDecline,
		},
		"ext.missionweaveprotocol.core.work_dependency_add": {
			required: []string{"dependencyWorkItemIds"}, who: [][2]string{{"coordinator", "work.authorize"}, {"service", ""}},
			item: "needed", do: doDependency,
		},
	}
}

func doPropose(c *call) {
	g, id := c.g, text(c.p["proposalId"])
	contract, parent := c.p["contract"].(obj), text(c.p["parentWorkItemId"])
	if g.proposals[id] != nil {
		fail(ic, "identifier_in_use")
	}
	if parent != "" && g.items[parent] == nil {
		fail(ic, "unknown_reference")
	}
	c.contractDependencies(contract, "")
	c.revision(0)
	c.missionActive()
	c.contractValues(contract, 1, "")
	c.limit(g.duplicate(contract, parent, ""), "duplicate_decomposition")
	c.limit(recent(g.proposes[c.cmd.actor], c.m.now)+1 > c.m.limits.proposals, "proposal_rate")
	c.limitsDone()
	if !budgetOf(contract["budget"]).within(g.account.limit) {
		fail(be, "")
	}
	g.proposes[c.cmd.actor] = append(g.proposes[c.cmd.actor], c.m.now)
	g.proposals[id] = &proposal{id: id, state: "open", by: c.cmd.actor, contract: contract, parent: parent}
	doc := obj{
		"proposalId": id, "missionId": g.mission, "groupId": g.id, "proposedBy": c.cmd.actor.json(), "contract": contract,
		"status": "open", "createdAt": moment(c.m.now),
	}
	for _, name := range []string{"parentWorkItemId", "rationale"} {
		if has(c.p, name) {
			doc[name] = c.p[name]
		}
	}
	c.primary(c.emit(g, "work.proposed", "proposal "+id, obj{"proposal": doc}, ""))
}

// delegated is 7.5, rows 1 to 4.
func (c *call) delegated() *grant {
	if c.capacity != "delegate" {
		return nil
	}
	d := c.g.grants[text(c.p["delegationGrantId"])]
	switch {
	case d == nil || agentOf(d.grantee) != c.cmd.actor:
		fail(af, "grant")
	case c.member.state != "active" || c.member.role != "work_delegate" || c.member.epoch != d.memberEpoch:
		fail(af, "grant")
	case d.epoch != c.g.epoch || d.by != c.g.coordinator:
		fail(asc, "")
	case !c.m.now.Before(d.expires) || !unfinished(c.g.items[d.target].state):
		fail(af, "grant")
	}
	return d
}

// relative is how far below the target a WorkItem is; -1 when it is not.
func (g *group) relative(id, target string) int {
	for n := 0; id != ""; n++ {
		if id == target {
			return n
		}
		w := g.items[id]
		if w == nil {
			return -1
		}
		id = w.parent
	}
	return -1
}

// scope is 7.5, rows 5 to 8.
func (c *call) scope(d *grant, depth int, contract obj, attributed string) {
	if d == nil {
		return
	}
	if depth < 0 {
		fail(af, "grant_scope")
	}
	if depth > d.depth {
		fail(af, "grant_depth")
	}
	for _, r := range list(contract["requiredCapabilities"]) {
		ok := false
		for _, a := range d.caps {
			have, want := a.(obj), r.(obj)
			if text(have["id"]) == text(want["id"]) && !lower(text(want["version"]), text(have["version"])) {
				ok = true
			}
		}
		if !ok {
			fail(af, "grant_capability")
		}
	}
	if attributed != "" && attributed != d.id {
		fail(af, "grant_scope")
	}
}

func lower(a, b string) bool {
	return !satisfies(a, b) && a != b
}

// ceiling is 7.5, row 9.
func (c *call) ceiling(d *grant, contract obj, except string) {
	if d == nil {
		return
	}
	sum := budgetOf(contract["budget"])
	for _, w := range c.g.items {
		if w.grantID == d.id && w.id != except {
			sum = sum.plus(budgetOf(w.contract["budget"]))
		}
	}
	if !sum.within(d.limit) {
		fail(be, "")
	}
}

func (c *call) overridden() {
	if c.capacity == "owner" && (c.cmd.actor.Type != "human" || !has(c.p, "emergencyOverride")) {
		fail(af, "")
	}
	if c.capacity != "owner" && has(c.p, "emergencyOverride") {
		fail(af, "")
	}
}

// citing is P17 of authority that is cited: an override or a grant.
func citing(c *call) {
	c.overridden()
	c.grant = c.delegated()
}

func doAuthorize(c *call) {
	g, id := c.g, c.cmd.item
	d := c.grant
	contract, _ := c.p["contract"].(obj)
	parent, replaces := text(c.p["parentWorkItemId"]), text(c.p["replacesWorkItemId"])
	var cited *proposal
	if has(c.p, "proposalId") {
		if cited = g.proposals[text(c.p["proposalId"])]; cited == nil {
			fail(ic, "unknown_reference")
		}
		if contract == nil {
			contract = cited.contract
		}
	}
	for _, ref := range []string{parent, replaces} {
		if ref != "" && g.items[ref] == nil {
			fail(ic, "unknown_reference")
		}
	}
	c.contractDependencies(contract, id)
	if cited != nil {
		c.revision(g.rev["proposal "+cited.id])
	} else {
		c.revision(0)
	}
	c.missionActive()
	if cited != nil && cited.state != "open" {
		fail(ist, "")
	}
	if replaces != "" && !slices.Contains([]string{"failed", "cancelled"}, g.items[replaces].state) {
		fail(ist, "")
	}
	if parent != "" && slices.Contains([]string{"verified", "cancelled"}, g.items[parent].state) {
		fail(ist, "")
	}
	// A contract that waits for itself, or for what waits for what it replaces.
	if id != "" && slices.Contains(texts(contract["dependencyWorkItemIds"]), id) {
		c.contractValues(contract, 1, id)
	}
	if replaces != "" && g.dependsOn(texts(contract["dependencyWorkItemIds"]), replaces, map[string]bool{}) {
		c.contractValues(contract, 1, replaces)
	}
	c.contractValues(contract, 1, "")
	depth, relative := 0, -1
	if d != nil && parent != "" {
		if relative = g.relative(parent, d.target); relative >= 0 {
			relative++
		}
	}
	if parent != "" {
		depth = g.items[parent].depth + 1
	}
	c.scope(d, relative, contract, "")
	citedID := ""
	if cited != nil {
		citedID = cited.id
	}
	c.limit(g.duplicate(contract, parent, citedID), "duplicate_decomposition")
	c.limit(depth > c.m.limits.depth, "delegation_depth")
	c.limitsDone()
	above := g.account
	if parent != "" {
		above = g.items[parent].account
	}
	c.ceiling(d, contract, "")
	if !above.canReserve(budgetOf(contract["budget"])) {
		fail(be, "")
	}

	w := &item{
		id: id, conv: c.m.mint("conversation"), state: "open", g: g, contract: contract, owned: map[string]bool{},
		parent: parent, replaces: replaces, depth: depth, account: newAccount("work_item", id, contract["budget"], above),
	}
	g.items[id] = w
	g.convs[w.conv] = w
	g.rev["conv "+w.conv] = 1
	by := c.cmd.actor
	if cited != nil {
		cited.state = "authorized"
		g.rev["proposal "+cited.id]++
		by = cited.by
	}
	payload := obj{
		"workItem": part{
			"workItemId": id, "missionId": g.mission, "groupId": g.id, "revision": 1, "state": "open", "contract": contract,
			"exclusive": true, "createdBy": by.json(), "authorizedBy": c.cmd.actor.json(), "conversationId": w.conv,
		},
		"conversation": part{"conversationId": w.conv}, "delegationDepth": depth,
	}
	for _, name := range []string{"proposalId", "parentWorkItemId", "replacesWorkItemId", "delegationGrantId", "emergencyOverride"} {
		if has(c.p, name) {
			payload[name] = c.p[name]
		}
	}
	if parent != "" {
		payload["parentWorkItemId"] = parent
	}
	if has(c.p, "emergencyOverride") {
		payload["policyLogEntryId"] = anything{}
	}
	if d != nil {
		w.grantID = d.id
	}
	c.primary(c.emitItem(w, "work.authorized", payload, ""))
}

func doOffer(c *call) {
	g, w := c.g, c.w
	d := c.grant
	candidates := texts(c.p["candidateAgentIds"])
	for _, id := range candidates {
		c.registered(id)
	}
	revised, _ := c.p["contract"].(obj)
	if revised != nil {
		c.contractDependencies(revised, w.id)
	}
	c.itemRevision()
	c.missionActive()
	c.itemIn("open", "offered", "queued", "active", "blocked", "failed")
	if w.childState == "live" {
		fail(ist, "child_live")
	}
	if c.m.liveOwner(w) {
		fail(ist, "owner_live")
	}
	extend := text(c.p["mode"]) == "extend"
	if revised != nil && extend {
		fail(ic, "mode")
	}
	contract := w.contract
	if revised != nil {
		contract = revised
	}
	for _, id := range candidates {
		x := g.members[agentOf(id)]
		if !c.m.live(x) || !slices.Contains(x.scopes, "work.accept_offer") {
			fail(ic, "candidate")
		}
	}
	for _, id := range candidates {
		if !c.m.agents[id].has(list(contract["requiredCapabilities"])) {
			fail(ic, "capability_mismatch")
		}
	}
	basis := c.p["selectionBasis"].(obj)
	if basis["authorizationEligible"] != true || canonical(basis["requiredCapabilities"]) != canonical(contract["requiredCapabilities"]) {
		fail(ic, "selection_basis")
	}
	for _, id := range candidates {
		if !c.m.agents[id].has(list(basis["verifiedMatches"])) {
			fail(ic, "selection_basis")
		}
	}
	if !when(contract["deadline"]).After(c.m.now) {
		fail(ic, "deadline")
	}
	if revised != nil {
		c.contractValues(revised, number(w.contract["contractVersion"])+1, w.id)
	}
	relative := -1
	if d != nil {
		relative = g.relative(w.id, d.target)
	}
	c.scope(d, relative, contract, w.grantID)
	c.limitsDone()
	c.ceiling(d, contract, w.id)
	limit := budgetOf(contract["budget"])
	if w.state == "failed" && !w.account.canReopen(limit) || w.state != "failed" && !w.account.canResize(limit) {
		fail(be, "")
	}

	if revised != nil {
		w.contract = revised
		withdrawn := c.withdraw(w)
		c.emitItem(w, "work.contract.revised", obj{
			"contract": revised, "contractVersion": revised["contractVersion"], "cause": "offer", "withdrawnOfferIds": withdrawn,
		}, "")
		w.account.limit, w.account.currency = limit, text(revised["budget"].(obj)["currency"])
	}
	w.account.finished = false
	was := w.owner
	w.owner = nil
	closed := c.endAll(w, "revoked", anyReason)
	created, extended, withdrawn := unordered{}, unordered{}, unordered{}
	c.rewrite(w)
	if !extend {
		withdrawn = c.withdraw(w)
	}
	deadline := when(contract["deadline"])
	expires := c.m.now.Add(c.m.secs(c.p, "offerExpiresInSeconds", 300))
	if expires.After(deadline) {
		expires = deadline
	}
	for _, id := range candidates {
		var kept *offer
		for _, o := range w.offers {
			if o.agent == id && o.status == "pending" {
				kept = o
			}
		}
		if kept != nil {
			kept.expires = expires
			kept.card = c.m.agents[id].card
			extended = append(extended, kept.id)
			continue
		}
		o := &offer{id: c.m.mint("offer"), agent: id, card: c.m.agents[id].card, expires: expires, status: "pending", made: c.m.now}
		w.offers = append(w.offers, o)
		created = append(created, o.id)
	}
	w.state = "offered"
	if d != nil {
		w.grantID = d.id
	}
	payload := obj{
		"offers": w.offersJSON(), "createdOfferIds": created, "extendedOfferIds": extended, "withdrawnOfferIds": withdrawn,
		"selectionBasis": c.p["selectionBasis"], "contractVersion": w.contract["contractVersion"], "closedLeases": closed,
		"contextPackage": maybe{anything{}},
	}
	if was != nil {
		payload["previousOwner"] = was.json()
	}
	for _, name := range []string{"delegationGrantId", "emergencyOverride"} {
		if has(c.p, name) {
			payload[name] = c.p[name]
		}
	}
	if has(c.p, "emergencyOverride") {
		payload["policyLogEntryId"] = anything{}
	}
	c.primary(c.emitItem(w, "work.offer.created", payload, ""))
}

// offerNamed is P18 and P18b of an offer.
func (c *call) offerNamed() *offer {
	for _, o := range c.w.offers {
		if !c.m.same(o.id, text(c.p["offerId"])) {
			continue
		}
		if agentOf(o.agent) != c.cmd.actor {
			fail(af, "")
		}
		return o
	}
	fail(ic, "unknown_reference")
	return nil
}

// load counts what an Agent has queued and runs, over all Groups.
func (m *model) load(id string) (queued, active int) {
	for _, g := range m.groups {
		for _, w := range g.items {
			if w.owner == nil || w.owner.agent != id || w.owner.custody || w.owner.dead {
				continue
			}
			if w.state == "queued" {
				queued++
			}
			if w.state == "active" && w.run != nil && m.now.Before(w.run.expires) {
				active++
			}
		}
	}
	return queued, active
}

func doAccept(c *call) {
	g, w := c.g, c.w
	o := c.offerNamed()
	switch {
	case o.status == "lost_race", o.status == "accepted":
		fail(wao, "")
	case w.owner != nil && !w.owner.custody && w.owner.agent != c.cmd.actor.ID:
		fail(wao, "")
	case o.status != "pending", !c.m.now.Before(o.expires):
		fail(woe, "")
	}
	c.itemRevision()
	c.missionActive()
	c.itemIn("offered")
	expires := c.m.now.Add(c.m.secs(c.p, "ownershipLeaseSeconds", 900))
	startBy := expires
	if has(c.p, "startBy") {
		startBy = when(c.p["startBy"])
	}
	switch {
	case !c.agent.has(list(w.contract["requiredCapabilities"])):
		fail(af, "capability")
	case !when(w.contract["deadline"]).After(c.m.now), !startBy.After(c.m.now) || startBy.After(expires):
		fail(ic, "deadline")
	}
	queued, active := c.m.load(c.cmd.actor.ID)
	c.limit(queued+1 > c.m.limits.queued, "queued_work_items")
	c.limit(active > min(c.m.limits.active, c.agent.most), "active_work_items")
	c.limitsDone()
	if w.account.paused() {
		fail(be, "paused")
	}
	c.rewrite(w)
	for _, other := range w.offers {
		if other.status == "pending" {
			other.status = "lost_race"
		}
	}
	o.status = "accepted"
	w.epoch++
	w.state = "queued"
	w.own = c.open("ownership", c.cmd.actor.ID, g, w, expires)
	w.own.startBy = startBy
	pins := []any{}
	for _, r := range list(w.contract["requiredCapabilities"]) {
		id := text(r.(obj)["id"])
		pins = append(pins, obj{"id": id, "version": c.agent.can[id]})
	}
	w.owner = &owner{agent: c.cmd.actor.ID, card: c.agent.card, pins: pins, epoch: w.epoch, lease: w.own.id, accepted: c.m.now}
	w.owned[c.cmd.actor.ID] = true
	payload := obj{
		"offerId": o.id, "offers": w.offersJSON(), "owner": w.owner.json(), "ownershipEpoch": w.epoch,
		"ownershipLease": w.own.json(), "agentCardVersion": c.agent.card, "capabilityPins": unordered(pins),
	}
	if has(c.p, "scheduleEstimate") {
		payload["scheduleEstimate"] = c.p["scheduleEstimate"]
	}
	c.primary(c.emitItem(w, "work.offer.accepted", payload, ""))
	if x := c.member; x.state == "provisional" {
		before := x.epoch
		x.state, x.expires, x.epoch = "active", time.Time{}, x.epoch+1
		c.changed(g, c.cmd.actor, x, before, "activated", "", false)
	}
}

func doDecline(c *call) {
	w := c.w
	o := c.offerNamed()
	switch {
	case o.status == "lost_race":
		fail(wao, "")
	case o.status != "pending", !c.m.now.Before(o.expires):
		fail(woe, "")
	}
	c.itemRevision()
	c.missionActive()
	c.rewrite(w)
	o.status, o.reason = "declined", text(c.p["declineReason"])
	payload := obj{"offerId": o.id, "agentId": o.agent, "declineReason": c.p["declineReason"], "offers": w.offersJSON()}
	if has(c.p, "comments") {
		payload["comments"] = c.p["comments"]
	}
	c.primary(c.emitItem(w, "ext.missionweave.work.offer_declined", payload, ""))
}

func doDependency(c *call) {
	g, w := c.g, c.w
	added := texts(c.p["dependencyWorkItemIds"])
	for _, id := range added {
		if g.items[id] == nil {
			fail(ic, "unknown_reference")
		}
	}
	c.itemRevision()
	c.missionActive()
	c.itemIn("open", "offered")
	have := texts(w.contract["dependencyWorkItemIds"])
	for _, id := range added {
		if id == w.id || g.dependsOn([]string{id}, w.id, map[string]bool{}) {
			fail(ic, "") // cycle or duplicate, whichever is met first
		}
		if slices.Contains(have, id) {
			fail(ic, "")
		}
	}
	w.contract = clone(w.contract)
	var all []any
	for _, id := range append(have, added...) {
		all = append(all, id)
	}
	w.contract["dependencyWorkItemIds"] = unordered(all)
	w.contract["contractVersion"] = number(w.contract["contractVersion"]) + 1
	payload := obj{
		"contract": clone(w.contract), "contractVersion": w.contract["contractVersion"], "cause": "dependency_added",
		"addedDependencyWorkItemIds": c.p["dependencyWorkItemIds"], "withdrawnOfferIds": c.withdraw(w),
	}
	w.contract["dependencyWorkItemIds"] = all
	c.primary(c.emitItem(w, "work.contract.revised", payload, ""))
}
