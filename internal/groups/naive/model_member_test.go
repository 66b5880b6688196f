package naive

import (
	"slices"
	"time"
)

// Memberships, grants, messages (sections 4.3, 5.2, 5.3).

func memberRules() map[string]rule {
	return map[string]rule{
		"membership.change": {
			required: []string{"member", "role"},
			optional: []string{"state", "scopes", "visibilityStartSequence", "membershipId", "provisionalExpiresAt", "contextPackage"},
			who:      [][2]string{{"coordinator", "membership.manage"}, {"owner", "membership.manage"}, {"service", ""}}, signed: func(c *call) {
				if slices.Contains(texts(c.p["scopes"]), "approval.execution") && actorOf(c.p["member"]) != c.g.root && c.cmd.actor.Type == "agent" {
					fail(af, "scope")
				}
			}, do: doMember,
			shape: func(c *call) {
				if text(c.p["state"]) == "provisional" != has(c.p, "provisionalExpiresAt") {
					fail(svf, "")
				}
			},
		},
		"membership.end": {
			required: []string{"member"}, optional: []string{"reason"},
			who: [][2]string{{"self", ""}, {"coordinator", "membership.manage"}, {"owner", "membership.manage"}, {"service", ""}}, do: doMemberEnd,
		},
		"membership.grant_delegation": {
			required: []string{"grantId", "granteeAgentId", "targetWorkItemId", "allowedCapabilities", "budget", "maxDescendantDepth", "expiresAt"},
			who:      [][2]string{{"coordinator", "mission.coordinate"}}, governed: []string{"delegation_depth"}, do: doGrant,
		},
		"policy.grant_cooperation_override": {
			required: []string{"grantId", "policyName", "beneficiary", "targetCommandKind", "targetActionId", "reason", "expiresAt"},
			who:      [][2]string{{"owner", "policy.override"}, {"service", ""}}, do: doOverride,
		},
		"ext.missionweave.budget.increase": {
			required: []string{"budget", "reason"}, item: "maybe",
			who: [][2]string{{"coordinator", "work.authorize"}, {"owner", "budget.increase"}, {"service", ""}}, do: doIncrease,
		},
		"message.post": {
			required: []string{"messageId", "content"},
			optional: []string{"conversationId", "mentions", "references", "authority", "extensions"},
			who:      [][2]string{{"member", "message.post"}}, governed: []string{"message_rate"}, do: doPost,
			shape: func(c *call) {
				if has(c.p, "authority") && c.p["authority"] != false {
					fail(svf, "")
				}
			},
		},
		"message.correct": {
			required: []string{"messageId", "targetMessageId", "reason", "content"}, optional: []string{"mentions", "references"},
			who: [][2]string{{"member", ""}}, do: doAmend,
		},
		"message.retract": {
			required: []string{"messageId", "targetMessageId", "reason"}, who: [][2]string{{"member", ""}}, do: doAmend,
		},
		"message.redact": {
			required: []string{"messageId", "targetMessageId", "reason"}, optional: []string{"policyRule"},
			who:      [][2]string{{"coordinator", "message.redact"}, {"owner", "message.redact"}, {"service", ""}},
			archived: true, do: doAmend,
		},
	}
}

func memberJSON(g *group, who actor, x *member) any {
	o := part{
		"membershipId": x.id, "groupId": g.id, "member": who.json(), "state": x.state, "role": x.role,
		"membershipEpoch": x.epoch, "visibilityStartSequence": x.start, "capabilities": maybe{anything{}}, "scopes": maybe{anything{}},
	}
	if x.state == "provisional" {
		o["provisionalExpiresAt"] = moment(x.expires)
	}
	return o
}

func memberKey(who actor) string { return "member " + who.Type + " " + who.ID }

// changed emits membership.changed for a member already brought up to date.
func (c *call) changed(g *group, who actor, x *member, before int, reason any, from string, pkg bool) *event {
	payload := obj{"membership": memberJSON(g, who, x), "reason": reason, "closedDelegationGrantIds": maybe{anything{}}}
	if before > 0 {
		payload["previousEpoch"] = before
	}
	if pkg {
		payload["contextPackage"] = anything{}
	}
	return c.emit(g, "membership.changed", memberKey(who), payload, from)
}

// reassignMember gives a Principal a role by itself, as Coordinator changes do.
func (c *call) reassignMember(g *group, who actor, role, reason, from string) {
	x := g.members[who]
	before := 0
	if x == nil {
		x = &member{id: c.m.mint("membership"), start: 1}
		g.members[who] = x
	} else {
		before = x.epoch
	}
	x.state, x.role, x.scopes, x.epoch = "active", role, roleScopes[role], x.epoch+1
	if role != "worker" {
		x.start = 1
	}
	c.changed(g, who, x, before, reason, from, false)
	c.deprive(g, who, x, "role_changed", from)
}

// deprive takes from a member what its scopes no longer allow.
func (c *call) deprive(g *group, who actor, x *member, reason, from string) {
	if who.Type != "agent" {
		return
	}
	if x.state == "ended" || !slices.Contains(x.scopes, "work.execute") {
		for _, w := range sortedItems(g) {
			if w.owner == nil || w.owner.agent != who.ID || w.owner.custody || w.owner.dead || !slices.Contains([]string{"queued", "active", "blocked"}, w.state) {
				continue
			}
			w.owner.dead = true
			c.emitItem(w, "ext.missionweave.authority.ownership_released", obj{
				"owner": w.owner.json(), "reason": reason, "closedLeases": c.endAll(w, "revoked", anyReason),
			}, from)
		}
	}
	if x.state == "ended" || !slices.Contains(x.scopes, "work.accept_offer") {
		c.takeOffers(g, who, anything{}, from)
	}
}

func (c *call) takeOffers(g *group, who actor, reason any, from string) {
	for _, w := range sortedItems(g) {
		ids := unordered{}
		for _, o := range w.offers {
			if o.agent == who.ID && o.status == "pending" && c.m.now.Before(o.expires) {
				ids = append(ids, o.id)
			}
		}
		if len(ids) == 0 {
			continue
		}
		c.rewrite(w)
		for _, o := range w.offers {
			if o.agent == who.ID && o.status == "pending" {
				o.status = "withdrawn"
			}
		}
		c.emitItem(w, "ext.missionweave.authority.offers_withdrawn", obj{
			"offerIds": ids, "reason": reason, "offers": w.offersJSON(),
		}, from)
	}
}

func (c *call) endMember(g *group, who actor, reason, from string) *event {
	x := g.members[who]
	x.state = "ended"
	x.epoch++
	e := c.emit(g, "membership.ended", memberKey(who), obj{
		"membership": memberJSON(g, who, x), "member": who.json(), "reason": reason, "closedDelegationGrantIds": maybe{anything{}},
	}, from)
	c.deprive(g, who, x, "membership_ended", from)
	return e
}

func doMember(c *call) {
	g, who := c.g, actorOf(c.p["member"])
	role, state := text(c.p["role"]), text(c.p["state"])
	scopes := texts(c.p["scopes"])
	x := g.members[who]
	switch who.Type {
	case "agent":
		c.registered(who.ID)
	case "human":
		if !c.m.humans[who.ID] {
			fail(ic, "unknown_reference")
		}
	}
	if has(c.p, "membershipId") && x != nil && !c.m.same(x.id, text(c.p["membershipId"])) {
		fail(ic, "binding_mismatch")
	}
	current := 0
	if x != nil {
		current = x.epoch
	}
	c.revision(current)
	c.notTerminal()
	fresh := !c.m.live(x)
	if !fresh && x.state == "active" && state == "provisional" {
		fail(ist, "")
	}
	owner, coordinator := who == g.owner, who == agentOf(g.coordinator)
	switch {
	case role == "mission_owner" != owner, role == "coordinator" != coordinator, g.parent != nil && who == g.root:
		fail(ic, "role")
	case who.Type == "service":
		fail(ic, "member_type")
	case who.Type == "human" && role != "reviewer" && role != "observer" && role != "mission_owner":
		fail(ic, "member_type")
	}
	for _, s := range scopes {
		ok := slices.Contains(defaultScopes(role, who.Type), s)
		if role == "observer" && who.Type == "human" && (s == "mission.inspect" || s == "approval.execution") {
			ok = true
		}
		if !ok {
			fail(ic, "scope")
		}
	}
	start := g.head + 1
	if !fresh {
		start = x.start
	}
	if has(c.p, "visibilityStartSequence") {
		want := number(c.p["visibilityStartSequence"])
		if !fresh && max(want, 1) > max(x.start, 1) || want > g.head+1 {
			fail(ic, "visibility")
		}
		start = want
	}
	if (owner || coordinator) && max(start, 1) != 1 {
		fail(ic, "visibility")
	}
	if state == "provisional" {
		expires := when(c.p["provisionalExpiresAt"])
		if !expires.After(c.m.now) || expires.After(g.deadline) {
			fail(ic, "deadline")
		}
	}
	var reason any = "changed"
	if x == nil {
		x = &member{id: c.m.mint("membership")}
		if has(c.p, "membershipId") {
			x.id = text(c.p["membershipId"])
		}
		g.members[who] = x
	}
	if fresh {
		reason = "granted"
	} else if x.state == "provisional" && state != "provisional" {
		reason = either{"changed", "activated"}
	}
	if scopes == nil {
		scopes = x.scopes
		if fresh || x.role != role {
			scopes = defaultScopes(role, who.Type)
		}
	}
	if state == "" {
		state = "active"
		if !fresh {
			state = x.state
		}
	}
	x.state, x.role, x.scopes, x.start, x.epoch = state, role, scopes, start, x.epoch+1
	x.expires = time.Time{}
	if state == "provisional" {
		x.expires = when(c.p["provisionalExpiresAt"])
	}
	c.primary(c.changed(g, who, x, current, reason, "", has(c.p, "contextPackage") || state == "provisional"))
	c.deprive(g, who, x, "role_changed", "")
}

func doMemberEnd(c *call) {
	g, who := c.g, actorOf(c.p["member"])
	x := g.members[who]
	if !c.m.live(x) {
		fail(ic, "unknown_reference")
	}
	c.revision(x.epoch)
	c.notTerminal()
	if who == g.owner || who == agentOf(g.coordinator) || g.parent != nil && who == g.root {
		fail(ic, "role")
	}
	first := len(c.out)
	c.endMember(g, who, "ended", "")
	c.primary(c.out[first])
}

func doGrant(c *call) {
	g, id := c.g, text(c.p["grantId"])
	who := agentOf(text(c.p["granteeAgentId"]))
	x, w := g.members[who], g.items[text(c.p["targetWorkItemId"])]
	if g.grants[id] != nil {
		fail(ic, "identifier_in_use")
	}
	if x == nil || w == nil {
		fail(ic, "unknown_reference")
	}
	c.revision(g.rev["item "+w.id])
	c.missionActive()
	if !unfinished(w.state) {
		fail(ist, "")
	}
	expires := when(c.p["expiresAt"])
	switch {
	case who == c.cmd.actor:
		fail(ic, "") // same_agent or role: a Coordinator has no work.delegate
	case !c.m.live(x) || x.state != "active" || x.role != "work_delegate" || !slices.Contains(x.scopes, "work.delegate"):
		fail(ic, "role")
	case !expires.After(c.m.now) || expires.After(g.deadline):
		fail(ic, "deadline")
	case g.account.foreign(c.p["budget"]):
		fail(ic, "currency_mismatch")
	}
	depth := number(c.p["maxDescendantDepth"])
	c.limit(depth > c.m.limits.depth, "delegation_depth")
	c.limitsDone()
	limit := budgetOf(c.p["budget"])
	if !limit.within(g.account.limit) {
		fail(be, "")
	}
	g.grants[id] = &grant{
		id: id, grantee: who.ID, target: w.id, caps: list(c.p["allowedCapabilities"]), limit: limit, depth: depth,
		expires: expires, memberEpoch: x.epoch, epoch: g.epoch, by: c.cmd.actor.ID,
	}
	c.primary(c.emit(g, "membership.delegation.granted", "grant "+id, obj{
		"delegationGrant": part{
			"grantId": id, "granteeAgentId": who.ID, "targetWorkItemId": w.id, "maxDescendantDepth": depth,
			"granteeMembershipEpoch": x.epoch, "coordinatorEpoch": g.epoch,
		}, "policyLogEntryId": anything{},
	}, ""))
}

var governs = map[string][]string{
	"message_rate": {"message.post"}, "proposal_rate": {"work.propose"},
	"delegation_depth":        {"mission.create_child", "work.authorize", "membership.grant_delegation"},
	"queued_work_items":       {"work.accept_offer"},
	"active_work_items":       {"work.accept_offer", "work.start"},
	"duplicate_decomposition": {"work.propose", "work.authorize", "mission.create_child"},
}

func doOverride(c *call) {
	g, id, who := c.g, text(c.p["grantId"]), actorOf(c.p["beneficiary"])
	if c.cmd.actor.Type == "agent" && who == c.cmd.actor {
		fail(af, "self_grant")
	}
	if g.overrides[id] != nil {
		fail(ic, "identifier_in_use")
	}
	if !c.m.live(g.members[who]) {
		fail(ic, "unknown_reference")
	}
	c.revision(0)
	c.notTerminal()
	expires := when(c.p["expiresAt"])
	kind, action := text(c.p["targetCommandKind"]), text(c.p["targetActionId"])
	switch {
	case !slices.Contains(governs[text(c.p["policyName"])], kind):
		fail(ic, "override_not_applicable")
	case !expires.After(c.m.now) || expires.After(g.deadline):
		fail(ic, "deadline")
	case c.m.accepted[who.Type+who.ID+" "+action]:
		fail(ic, "target_accepted")
	}
	g.overrides[id] = &override{id: id, policy: text(c.p["policyName"]), kind: kind, action: action, who: who, expires: expires}
	c.primary(c.emit(g, "policy.cooperation_override.granted", "override "+id, obj{
		"cooperationOverrideGrant": obj{
			"grantId": id, "missionId": g.mission, "groupId": g.id, "policyName": c.p["policyName"], "beneficiary": who.json(),
			"targetCommandKind": kind, "targetActionId": action, "reason": c.p["reason"], "approver": c.cmd.actor.json(),
			"grantedAt": moment(c.m.now), "expiresAt": moment(expires),
		}, "policyLogEntryId": anything{},
	}, ""))
}

func doIncrease(c *call) {
	g, w := c.g, c.w
	a := g.account
	if w != nil {
		a = w.account
		c.itemRevision()
	} else {
		c.missionRevision()
	}
	c.notTerminal()
	if w != nil && !unfinished(w.state) {
		fail(ist, "")
	}
	limit := budgetOf(c.p["budget"])
	currency := text(c.p["budget"].(obj)["currency"])
	if a.foreign(c.p["budget"]) {
		fail(ic, "") // not an increase of this currency, or currency_mismatch
	}
	if !a.limit.within(limit) || limit == a.limit {
		fail(ic, "not_an_increase")
	}
	if !a.canResize(limit) {
		fail(be, "")
	}
	old := part(a.limit.json())
	a.limit, a.currency = limit, currency
	payload := obj{
		"account": a.ref(), "previousBudget": old, "budget": part(limit.json()), "reason": c.p["reason"], "policyLogEntryId": anything{},
	}
	if w != nil {
		w.contract = clone(w.contract)
		w.contract["budget"] = c.p["budget"]
		w.contract["contractVersion"] = number(w.contract["contractVersion"]) + 1
		payload["contractVersion"] = w.contract["contractVersion"]
		c.primary(c.emitItem(w, "ext.missionweave.budget.increased", payload, ""))
		return
	}
	first := c.primary(c.emit(g, "ext.missionweave.budget.increased", "mission", payload, ""))
	if g.parent != nil {
		e := c.emit(g.parent, "ext.missionweave.authority.child_budget_reserved", g.parentItem.account.key(), obj{
			"workItemId": g.parentItem.id, "childMissionId": g.mission, "budget": part(limit.json()), "sourceEventId": first.id,
		}, first.id)
		e.item, e.conv = g.parentItem.id, g.parentItem.conv
	}
}

// json names only what is above zero: an absent limit is zero.
func (v vector) json() obj {
	o := obj{}
	for i, name := range limitNames {
		if v[i] > 0 {
			o[name] = v[i]
		} else {
			o[name] = maybe{0}
		}
	}
	return o
}

func clone(o obj) obj {
	out := obj{}
	for k, v := range o {
		out[k] = v
	}
	return out
}

func recent(times []time.Time, now time.Time) int {
	n := 0
	for _, t := range times {
		if now.Sub(t) < time.Minute {
			n++
		}
	}
	return n
}

func doPost(c *call) {
	g, id := c.g, text(c.p["messageId"])
	if g.messages[id] != nil {
		fail(ic, "identifier_in_use")
	}
	c.revision(g.convRevision(c.m, c.cmd.conv))
	c.notTerminal()
	c.limit(recent(g.posts[c.cmd.actor], c.m.now)+1 > c.m.limits.messages, "message_rate")
	c.limitsDone()
	g.posts[c.cmd.actor] = append(g.posts[c.cmd.actor], c.m.now)
	g.messages[id] = &message{id: id, seq: g.head + 1, conv: c.cmd.conv, kind: "message", author: c.cmd.actor}
	c.primary(c.emitMessage("message.posted", id, c.cmd.conv, obj{
		"messageId": id, "authority": false,
		"message": part{"messageId": id, "author": c.cmd.actor.json(), "content": c.p["content"], "authority": false},
	}))
}

func (g *group) convKey(m *model, conv string) string {
	for id := range g.convs {
		if m.same(id, conv) {
			return "conv " + id
		}
	}
	return ""
}

func (g *group) convRevision(m *model, conv string) int { return g.rev[g.convKey(m, conv)] }

func (c *call) emitMessage(kind, _, conv string, payload obj) *event {
	e := c.emit(c.g, kind, c.g.convKey(c.m, conv), payload, "")
	e.conv = conv
	if w := c.g.convOf(c.m, conv); w != nil {
		e.item = w.id
	}
	return e
}

// sees is section 3.7 for a Message: authors know their own, and that another's
// was redacted is told by the redaction itself.
func (c *call) sees(t *message) bool {
	return c.member == nil || t.author == c.cmd.actor || t.seq >= c.member.start
}

func doAmend(c *call) {
	g, id := c.g, text(c.p["messageId"])
	target := g.messages[text(c.p["targetMessageId"])]
	switch {
	case target == nil || !c.sees(target):
		fail(ic, "unknown_reference")
	case target.kind != "message":
		fail(ic, "binding_mismatch")
	case g.messages[id] != nil:
		fail(ic, "identifier_in_use")
	}
	redact := c.cmd.kind == "message.redact"
	if !redact && target.author != c.cmd.actor {
		fail(af, "")
	}
	c.revision(g.convRevision(c.m, target.conv))
	if !redact {
		c.notTerminal()
	}
	if target.redacted {
		fail(ist, "")
	}
	kinds := map[string][2]string{
		"message.correct": {"message.corrected", "correction"}, "message.retract": {"message.retracted", "retraction"},
		"message.redact": {"message.redacted", "redaction"},
	}
	k := kinds[c.cmd.kind]
	g.messages[id] = &message{id: id, seq: g.head + 1, conv: target.conv, kind: k[1], author: c.cmd.actor}
	payload := obj{
		"messageId": id, "targetMessageId": target.id, "authority": false,
		"message": part{"messageId": id, "kind": k[1], "targetMessageId": maybe{target.id}},
	}
	if redact {
		target.redacted = true
		payload["policyLogEntryId"] = anything{}
		if has(c.p, "policyRule") {
			payload["policyRule"] = c.p["policyRule"]
		}
	}
	c.primary(c.emitMessage(k[0], id, target.conv, payload))
}
