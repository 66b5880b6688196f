package naive

import (
	"slices"
	"time"
)

// The pipeline of section 2.2 as far as a Command kind does not add to it.

// call is one Command being judged.
type call struct {
	m        *model
	cmd      *command
	p        obj
	g        *group
	agent    *agent
	member   *member
	capacity string
	w        *item
	out      []*event
	// over is the limit that an override lets pass, and its grant.
	over *override
	// grant is the Delegation Grant the Command is given under.
	grant *grant
	// first is the id of the primary Event.
	first string
}

// rule is one Command kind: what its payload holds, who may issue it, and what
// it does.
type rule struct {
	required, optional []string
	// who lists capacities in the order of section 2.3 with their scope.
	who [][2]string
	// item says what the envelope's workItemId means: needed, new or nothing.
	item     string
	creates  bool
	org      bool
	archived bool
	governed []string
	// shape is what the payload must keep beyond names.
	shape func(c *call)
	// signed is what the kind adds to P17; it must not look at the WorkItem as
	// if it were there.
	signed func(c *call)
	do     func(c *call)
}

var roleScopes = map[string][]string{
	"mission_owner": {
		"mission.inspect", "mission.approve", "mission.cancel", "mission.replace_coordinator", "membership.manage",
		"approval.execution", "policy.override", "budget.increase", "work.override", "message.post", "message.redact", "work.propose",
	},
	"coordinator": {
		"mission.inspect", "mission.coordinate", "membership.manage", "message.post", "message.redact", "work.propose",
		"work.authorize", "work.offer", "work.verify", "work.accept_offer", "work.execute", "work.review",
	},
	"work_delegate": {"message.post", "work.propose", "work.accept_offer", "work.execute", "work.review", "work.delegate"},
	"worker":        {"message.post", "work.propose", "work.accept_offer", "work.execute", "work.review"},
	"reviewer":      {"message.post", "work.propose", "work.accept_offer", "work.execute", "work.review"},
	"observer":      {"message.read", "message.post", "work.propose"},
}

func defaultScopes(role, memberType string) []string {
	if role == "reviewer" && memberType == "human" {
		return []string{"message.post", "work.propose", "work.review"}
	}
	return roleScopes[role]
}

// decide answers a Command: the Events it causes, or a refusal. Nothing changes
// when it refuses.
func (m *model) decide(cmd *command) (events []*event, no *refusal) {
	c := &call{m: m, cmd: cmd, p: cmd.payload}
	defer func() {
		if r := recover(); r != nil {
			refused, ok := r.(refusal)
			if !ok {
				panic(r)
			}
			events, no = nil, &refused
		}
	}()
	r, known := rules[cmd.kind]
	if known {
		c.shape(r) // P10
	}
	c.session() // P13
	if !known || !r.creates && !r.org {
		c.membership() // P14
	}
	c.capacity = c.judge(r)
	c.coordinatorEpoch() // P15
	if !known {
		fail(uce, "")
	}
	c.authorized(r) // P17
	if r.signed != nil {
		r.signed(c)
	}
	c.named(r) // P18
	r.do(c)
	m.accepted[cmd.actor.Type+cmd.actor.ID+" "+cmd.id] = true
	return c.out, nil
}

func (c *call) shape(r rule) {
	allowed := slices.Concat(r.required, r.optional)
	if r.item != "" {
		allowed = append(allowed, "workItemId")
	}
	for _, name := range r.required {
		if !has(c.p, name) {
			fail(svf, "")
		}
	}
	for name, v := range c.p {
		if !slices.Contains(allowed, name) || v == nil {
			fail(svf, "")
		}
	}
	for _, name := range []string{"approval", "humanApproval"} {
		if a, ok := c.p[name].(obj); ok && text(a["kind"]) == "mission_final" && actorOf(a["approver"]).Type != "human" {
			fail(svf, "")
		}
	}
	if r.shape != nil {
		r.shape(c)
	}
	if has(c.p, "workItemId") && text(c.p["workItemId"]) != c.cmd.item {
		fail(ic, "envelope_mismatch")
	}
	if has(c.p, "conversationId") && text(c.p["conversationId"]) != c.cmd.conv {
		fail(ic, "envelope_mismatch")
	}
	if c.cmd.override != "" && len(r.governed) == 0 {
		fail(ic, "override_not_applicable")
	}
}

func (c *call) session() {
	if c.cmd.actor.Type != "agent" {
		return
	}
	a := c.m.agents[c.cmd.actor.ID]
	switch {
	case a == nil || a.session == 0:
		fail(ar, "")
	case c.cmd.session != a.session:
		fail(ass, "")
	case !c.m.now.Before(a.expires):
		fail(ar, "")
	case a.revoked:
		fail(af, "")
	}
	c.agent = a
}

func (c *call) membership() {
	g := c.m.groups[c.cmd.group]
	if g == nil {
		fail(gnf, "")
	}
	if c.cmd.actor.Type != "service" {
		x := g.members[c.cmd.actor]
		switch {
		case x == nil:
			fail(gnf, "")
		case !c.m.live(x):
			fail(mr, "")
		case x.epoch != c.cmd.membership:
			fail(ms, "")
		}
		c.member = x
	}
	c.g = g
}

// judge is section 2.3.
func (c *call) judge(r rule) string {
	offers := func(capacity string) bool {
		return slices.ContainsFunc(r.who, func(w [2]string) bool { return w[0] == capacity })
	}
	who := c.cmd.actor
	if who.Type == "service" {
		if offers("service") && c.m.services[who.ID][c.cmd.kind] {
			return "service"
		}
		return ""
	}
	if r.creates {
		if who.Type == "human" {
			return "creator"
		}
		return ""
	}
	if c.g == nil {
		return ""
	}
	coordinator := who == agentOf(c.g.coordinator)
	switch {
	case offers("member"):
		return "member"
	case offers("self") && actorOf(c.p["member"]) == who:
		return "self"
	case c.cmd.kind == "work.fail" && has(c.p, "ownershipEpoch") && who.Type == "agent":
		return "worker"
	case has(c.p, "delegationGrantId") && offers("delegate") && !coordinator:
		return "delegate"
	case coordinator && offers("coordinator") && (c.cmd.kind != "ext.missionweave.budget.increase" || c.cmd.item != ""):
		return "coordinator"
	case who == c.g.owner && offers("owner"):
		return "owner"
	case offers("approver") && who.Type == "human":
		return "approver"
	case who.Type == "agent" && offers("worker") && c.cmd.kind != "work.fail":
		return "worker"
	}
	return ""
}

func lapsed(l *lease, now time.Time) bool {
	return l.state != "released" && (l.state != "active" || !now.Before(l.expires))
}

func (c *call) coordinatorEpoch() {
	if c.g == nil || c.cmd.actor.Type != "agent" {
		return
	}
	if c.cmd.coordinator != 0 && c.cmd.coordinator != c.g.epoch {
		fail(asc, "")
	}
	switch c.capacity {
	case "coordinator":
		if c.cmd.coordinator == 0 || lapsed(c.g.lease, c.m.now) {
			fail(asc, "")
		}
	case "owner":
		p := c.g.parent
		if p == nil || agentOf(p.coordinator) != c.cmd.actor || lapsed(p.lease, c.m.now) {
			fail(asc, "")
		}
	}
}

func (c *call) authorized(r rule) {
	if c.member != nil && c.member.state == "provisional" {
		c.provisional()
	}
	if c.capacity == "" {
		fail(af, "")
	}
	if has(c.p, "delegationGrantId") && c.capacity == "coordinator" {
		fail(af, "") // grant_not_needed, unless the scope was narrowed as well
	}
	for _, w := range r.who {
		if w[0] == c.capacity && w[1] != "" && c.member != nil && !slices.Contains(c.member.scopes, w[1]) {
			fail(af, "scope")
		}
	}
}

func (c *call) provisional() {
	switch c.cmd.kind {
	case "work.accept_offer", "ext.missionweave.work.offer_decline":
		return
	case "membership.end":
		if actorOf(c.p["member"]) == c.cmd.actor {
			return
		}
	case "message.post":
		if w := c.g.convOf(c.m, c.cmd.conv); w != nil && w.offeredTo(c.cmd.actor.ID) {
			return
		}
	}
	fail(af, "provisional")
}

// convOf returns the WorkItem of a Conversation, nil for the Group's own and
// for unknown ones.
func (g *group) convOf(m *model, conv string) *item {
	for id, w := range g.convs {
		if m.same(id, conv) {
			return w
		}
	}
	return nil
}

func (g *group) hasConv(m *model, conv string) bool {
	for id := range g.convs {
		if m.same(id, conv) {
			return true
		}
	}
	return false
}

func (w *item) offeredTo(agent string) bool {
	return slices.ContainsFunc(w.offers, func(o *offer) bool { return o.agent == agent })
}

// named is P18 for the envelope.
func (c *call) named(r rule) {
	if c.g == nil {
		return
	}
	if c.cmd.item != "" {
		w := c.g.items[c.cmd.item]
		switch {
		case r.item == "new" && w != nil:
			fail(ic, "identifier_in_use")
		case r.item != "new" && (w == nil || c.hidden(w)):
			fail(ic, "unknown_reference")
		}
		c.w = w
	}
	if c.cmd.conv != "" && !c.g.hasConv(c.m, c.cmd.conv) {
		fail(ic, "unknown_reference")
	}
}

// hidden: a provisional member knows of the WorkItems it was offered only (3.7).
func (c *call) hidden(w *item) bool {
	return c.member != nil && c.member.state == "provisional" && !w.offeredTo(c.cmd.actor.ID)
}

// revision is P21.
func (c *call) revision(current int) {
	if c.cmd.expected != nil && *c.cmd.expected != current {
		fail(rc, "")
	}
}

func (c *call) itemRevision() { c.revision(c.g.rev["item "+c.w.id]) }

func (c *call) missionRevision() { c.revision(c.g.rev["mission"]) }

func (c *call) notTerminal() {
	if terminalMission(c.g.state) {
		fail(ist, "")
	}
}

func (c *call) missionActive() {
	if c.g.state != "active" {
		fail(ist, "")
	}
}

func (c *call) itemIn(states ...string) {
	if !slices.Contains(states, c.w.state) {
		fail(ist, "")
	}
}

func (c *call) registered(id string) *agent {
	a := c.m.agents[id]
	if a == nil || a.revoked {
		fail(ic, "unknown_reference")
	}
	return a
}

// limit is one cooperation limit (7.6): exceeded ones are refused unless a
// fitting override is cited.
func (c *call) limit(exceeded bool, policy string) {
	if !exceeded {
		return
	}
	if c.cmd.override == "" {
		fail(rl, policy)
	}
	o := c.g.overrides[c.cmd.override]
	if o == nil || o.who != c.cmd.actor || o.used || !c.m.now.Before(o.expires) || o.kind != c.cmd.kind || o.action != c.cmd.id {
		fail(af, "override")
	}
	if c.over != nil || o.policy != policy {
		fail(rl, policy)
	}
	c.over = o
}

// limitsDone refuses an override that nothing needed.
func (c *call) limitsDone() {
	if c.cmd.override == "" || c.over != nil {
		return
	}
	o := c.g.overrides[c.cmd.override]
	if o == nil || o.who != c.cmd.actor || o.used || !c.m.now.Before(o.expires) || o.kind != c.cmd.kind || o.action != c.cmd.id {
		fail(af, "override")
	}
	fail(ic, "override_not_needed")
}

// emit appends an Event of Group g. source is the Event that caused it in
// another Group, "" for the Command's own.
func (c *call) emit(g *group, kind, aggregate string, payload obj, source string) *event {
	g.head++
	g.rev[aggregate]++
	e := &event{
		id: c.m.mint("event"), group: g.id, kind: kind, seq: g.head, rev: g.rev[aggregate], aggregate: aggregate,
		actor: c.cmd.actor, cause: "command", causeID: c.cmd.id, payload: payload,
	}
	if source != "" {
		e.actor, e.cause, e.causeID = authority, "event", source
	}
	c.out = append(c.out, e)
	return e
}

var authority = actor{"service", "service:authority"}

// emitItem appends an Event of a WorkItem, whose state is already the new one.
func (c *call) emitItem(w *item, kind string, payload obj, source string) *event {
	payload["workItemId"], payload["state"] = w.id, w.state
	e := c.emit(w.g, kind, "item "+w.id, payload, source)
	e.item, e.conv = w.id, w.conv
	return e
}

// primary marks the Event that answers the Command, and lets an override used
// by it be recorded right behind.
func (c *call) primary(e *event) *event {
	e.primary = true
	c.first = e.id
	if c.over != nil {
		c.over.used = true
		c.emit(c.g, "ext.missionweave.authority.cooperation_override_consumed", "override "+c.over.id, obj{
			"grantId": c.over.id, "policyName": c.over.policy, "targetCommandKind": c.over.kind,
			"targetActionId": c.over.action, "consumedByEventId": e.id, "policyLogEntryId": anything{},
		}, "")
	}
	return e
}

// Leases (4.5).

func (c *call) open(kind, holder string, g *group, w *item, expires time.Time) *lease {
	l := &lease{
		id: c.m.mint("lease"), kind: kind, holder: holder, group: g.id, mission: g.mission,
		issued: c.m.now, expires: expires, state: "active", session: 1,
	}
	if a := c.m.agents[holder]; a != nil && a.session > 0 {
		l.session = a.session
	}
	if kind == "coordinator" {
		l.coordinatorEpoch = g.epoch
	} else {
		l.item, l.ownershipEpoch = w.id, w.epoch
	}
	return l
}

func (l *lease) json() obj {
	o := obj{
		"leaseId": l.id, "leaseType": l.kind, "missionId": l.mission, "groupId": l.group, "holderAgentId": l.holder,
		"sessionEpoch": l.session, "issuedAt": moment(l.issued), "startsAt": moment(l.issued),
		"expiresAt": moment(l.expires), "state": l.state, "renewalCount": l.renewals,
	}
	if l.item != "" {
		o["workItemId"] = l.item
	}
	if l.coordinatorEpoch > 0 {
		o["coordinatorEpoch"] = l.coordinatorEpoch
	}
	if l.ownershipEpoch > 0 {
		o["ownershipEpoch"] = l.ownershipEpoch
	}
	if l.kind == "ownership" {
		o["startBy"] = moment(l.startBy)
	}
	if !l.renewed.IsZero() {
		o["lastRenewedAt"] = moment(l.renewed)
	}
	if !l.closed.IsZero() {
		o["closedAt"], o["closureReason"] = moment(l.closed), l.reason
		if l.reason == anyReason {
			o["closureReason"] = anything{}
		}
	}
	return o
}

// anyReason is a closure reason that the profile leaves to the Authority.
const anyReason = "?"

// end closes a lease; one that had run out ends as expired at its expiry.
func (c *call) end(l *lease, state, reason string) { l.end(c.m.now, state, reason) }

func (l *lease) end(now time.Time, state, reason string) {
	if l.state != "active" {
		return
	}
	if !now.Before(l.expires) {
		l.state, l.closed, l.reason = "expired", l.expires, "expired"
		return
	}
	l.state, l.closed, l.reason = state, now, reason
}

// set moves a lease's expiry and, unless zero, its startBy.
func (c *call) set(l *lease, expires, startBy time.Time, byHolder bool) {
	if expires.Equal(l.expires) && (startBy.IsZero() || startBy.Equal(l.startBy)) {
		return
	}
	l.expires = expires
	if !startBy.IsZero() {
		l.startBy = startBy
	}
	l.renewals++
	l.renewed = c.m.now
	if byHolder {
		l.session = c.m.agents[l.holder].session
	}
}

func (c *call) raise(l *lease, expires time.Time, byHolder bool) {
	if expires.After(l.expires) {
		c.set(l, expires, time.Time{}, byHolder)
	}
}

// endAll closes the open leases of a WorkItem and returns their documents.
func (c *call) endAll(w *item, state, reason string) unordered {
	out := unordered{}
	for _, l := range []*lease{w.own, w.run, w.blk} {
		if l == nil {
			continue
		}
		c.end(l, state, reason)
		w.closed = append(w.closed, l)
		out = append(out, l.json())
	}
	w.own, w.run, w.blk = nil, nil, nil
	return out
}

func (c *call) endOne(w *item, l **lease, state, reason string) unordered {
	if *l == nil {
		return unordered{}
	}
	c.end(*l, state, reason)
	w.closed = append(w.closed, *l)
	out := unordered{(*l).json()}
	*l = nil
	return out
}

func (o *owner) json() obj {
	return obj{
		"agentId": o.agent, "agentCardVersion": o.card, "capabilityPins": unordered(o.pins),
		"ownershipEpoch": o.epoch, "ownershipLeaseId": o.lease, "acceptedAt": moment(o.accepted),
	}
}

func (w *item) offersJSON() unordered {
	out := unordered{}
	for _, o := range w.offers {
		j := obj{
			"offerId": o.id, "agentId": o.agent, "agentCardVersion": o.card, "expiresAt": moment(o.expires), "status": o.status,
		}
		if o.reason != "" {
			j["declineReason"] = o.reason
		}
		out = append(out, j)
	}
	return out
}

// rewrite writes down which pending offers have run out.
func (c *call) rewrite(w *item) {
	for _, o := range w.offers {
		if o.status == "pending" && !c.m.now.Before(o.expires) {
			o.status = "expired"
		}
	}
}

// withdraw withdraws the pending offers and returns their ids. One that has run
// out stays as it is: only an Event with the offers in it says so.
func (c *call) withdraw(w *item) unordered {
	out := unordered{}
	for _, o := range w.offers {
		if o.status == "pending" && c.m.now.Before(o.expires) {
			o.status = "withdrawn"
			out = append(out, o.id)
		}
	}
	return out
}
