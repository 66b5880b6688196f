package naive

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// driver sends random Commands to both models. Only its seed and the number of
// steps come from rapid, whose integers favour the ends of their range.
type driver struct {
	rt     interface{ Fatalf(string, ...any) }
	seed   uint64
	m      *model
	k      *core
	match  matcher
	ids    int
	seq    map[string]int
	revs   map[string]int
	trail  []string
	calm   bool           // no Command is made wrong on purpose
	counts map[string]int // what was accepted and refused
}

var start = time.Date(2026, 7, 15, 8, 0, 0, 0, time.UTC)

var crew = []string{"agent:ann", "agent:ben", "agent:cy", "agent:dot", "agent:eve"}

var policyKinds = []string{
	"membership.change", "membership.end", "mission.assign_coordinator", "mission.cancel", "mission.terminate",
	"ext.missionweave.mission.extend_deadline", "policy.grant_cooperation_override", "ext.missionweave.budget.increase",
	"message.redact", "work.cancel", "ext.missionweaveprotocol.core.work_dependency_add", "approval.grant_execution",
	"ext.missionweave.approval.deny_execution", "ext.missionweave.approval.revoke_execution",
}

func newDriver(rt interface{ Fatalf(string, ...any) }, seed uint64) *driver {
	d := &driver{
		rt: rt, seed: seed, m: newModel(start), match: matcher{map[string]string{}, map[string]string{}},
		seq: map[string]int{}, revs: map[string]int{}, counts: map[string]int{},
	}
	d.m.limits = limits{messages: 4, proposals: 3, depth: 2, queued: 4, active: 3}
	policy := map[string]bool{}
	for _, k := range policyKinds {
		policy[k] = true
	}
	d.m.services = map[string]map[string]bool{
		"service:policy":        policy,
		"service:metering":      {"ext.missionweaveprotocol.core.resource_usage_record": true},
		"service:identity":      {"ext.missionweaveprotocol.identity.session_open": true},
		"service:authorization": {"ext.missionweave.approval.request_execution": true},
	}
	d.k = newCore(start, d.m.limits, d.m.services)
	d.k.load = d.m.load
	d.k.places = func(id string) []string {
		var out []string
		for _, groupID := range sortedKeys(d.m.groups) {
			for _, w := range d.m.groups[groupID].items {
				if w.state == "active" && w.owner != nil && w.owner.agent == id && !slices.Contains(out, groupID) {
					out = append(out, groupID)
				}
			}
		}
		return out
	}
	for i, id := range crew {
		a := &agent{id: id, session: 1, expires: start.AddDate(1, 0, 0), card: 1, most: 2 + i%2, can: map[string]string{"code.write": "1.2.0"}}
		if id == "agent:eve" {
			a.can = map[string]string{"code.write": "2.0.0"}
		}
		d.m.agents[id] = a
		d.k.addAgent(a)
	}
	for _, h := range []string{"human:olga", "human:paul"} {
		d.m.humans[h], d.k.humans[h] = true, true
	}
	d.m.ids = d.match.ids
	return d
}

// between draws an integer, both ends included (splitmix64).
func (d *driver) between(low, high int) int {
	d.seed += 0x9E3779B97F4A7C15
	z := d.seed
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return low + int((z^z>>31)%uint64(high-low+1))
}

func (d *driver) chance(percent int) bool { return d.between(1, 100) <= percent }

func one[T any](d *driver, from ...T) T { return from[d.between(0, len(from)-1)] }

func (d *driver) fresh(kind string) string {
	d.ids++
	return fmt.Sprintf("%s:%d", kind, d.ids)
}

func (d *driver) in(low, high int) string {
	return d.m.now.Add(time.Duration(d.between(low, high)) * time.Second).UTC().Format("2006-01-02T15:04:05.000000Z")
}

func (d *driver) groups() []*group {
	var out []*group
	for _, id := range sortedKeys(d.m.groups) {
		out = append(out, d.m.groups[id])
	}
	return out
}

func (d *driver) crew() actor { return agentOf(one(d, crew...)) }

// matches folds the ids that the core minted into the model.
func (d *driver) fail(format string, args ...any) {
	from := max(0, len(d.trail)-25)
	d.rt.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(d.trail[from:], "\n"))
}

// send completes a Command, gives it to both models and compares the answers.
func (d *driver) send(c *command) bool {
	if c.id == "" {
		c.id = d.fresh("action")
	}
	d.epochs(c)
	d.spoil(c)
	for _, name := range sortedKeys(c.payload) {
		d.sign(c.payload[name])
	}
	env := obj{
		"protocolVersion": "0.1", "actionId": c.id, "actor": c.actor.json(), "kind": c.kind, "correlationId": "correlation:test",
		"issuedAt": d.m.now.UTC().Format(time.RFC3339Nano), "payload": c.payload,
		"signature": obj{"algorithm": "Ed25519", "keyId": "key:test", "createdAt": d.m.now.UTC().Format(time.RFC3339Nano), "value": "c2lnbmF0dXJl"},
	}
	for name, v := range map[string]string{"groupId": c.group, "workItemId": c.item, "conversationId": c.conv, "cooperationOverrideGrantId": c.override} {
		if v != "" {
			env[name] = v
		}
	}
	for name, v := range map[string]int{"sessionEpoch": c.session, "membershipEpoch": c.membership, "coordinatorEpoch": c.coordinator} {
		if v != 0 {
			env[name] = v
		}
	}
	if c.expected != nil {
		env["expectedRevision"] = *c.expected
	}
	raw, err := json.Marshal(env)
	if err != nil {
		panic(err)
	}
	c.payload = decode(raw)["payload"].(obj)
	line := fmt.Sprintf("%s %s %s %s item=%s conv=%s %s", d.m.now.Format("15:04:05"), c.actor.ID, c.kind, c.group, c.item, c.conv, mustJSON(c.payload))
	d.trail = append(d.trail, line)

	before := map[string]int{}
	for id, g := range d.k.groups {
		before[id] = int(g.Head)
	}
	events, no := d.k.submit(raw, c.internal)
	if no != nil && no.Step == "P2" {
		d.counts["refused by the envelope's schema"]++
		d.trail[len(d.trail)-1] += " => P2"
		return false
	}
	want, refused := d.m.decide(c)
	switch {
	case no != nil && refused != nil:
		if string(no.Code) != refused.code || refused.reason != "" && no.Reason != refused.reason && refused.code != rl {
			d.fail("%s\nmodel refuses %v, core %s:%s at %s", line, refused, no.Code, no.Reason, no.Step)
		}
		d.counts[c.kind+" refused "+refused.String()]++
		d.trail[len(d.trail)-1] += " => " + refused.String()
		for id, g := range d.k.groups {
			if int(g.Head) != before[id] {
				d.fail("%s\na refused Command moved %s", line, id)
			}
		}
		return false
	case no != nil:
		d.fail("%s\nmodel accepts, core refuses %s:%s at %s %v", line, no.Code, no.Reason, no.Step, no.Details)
	case refused != nil:
		d.fail("%s\nmodel refuses %v, core accepts", line, refused)
	}
	d.trail[len(d.trail)-1] += " => ok"
	d.counts[c.kind+" accepted"]++
	d.compare(line, want, events, false)
	return true
}

func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// compare holds Events against the expected ones: all of one Group in order
// (in any order after a sweep), the primary one first of all but its own.
func (d *driver) compare(line string, want []*event, got []written, sweep bool) {
	if s := gapless(got, d.seq); s != "" {
		d.fail("%s\n%s", line, s)
	}
	perGroup := map[string][]written{}
	for _, e := range got {
		perGroup[e.group] = append(perGroup[e.group], e)
	}
	expected := map[string][]*event{}
	for _, e := range want {
		expected[e.group] = append(expected[e.group], e)
	}
	for _, id := range sortedKeys(expected) {
		var kinds, have []string
		for _, e := range expected[id] {
			kinds = append(kinds, e.kind)
		}
		for _, e := range perGroup[id] {
			have = append(have, e.kind)
		}
		if sweep {
			slices.Sort(kinds)
			slices.Sort(have)
		}
		if !slices.Equal(kinds, have) {
			d.fail("%s\n%s: model expects %v, core wrote %v", line, id, kinds, have)
		}
	}
	if len(perGroup) != len(expected) {
		var all []string
		for _, e := range got {
			all = append(all, e.group+" "+e.kind+" "+mustJSON(e.body["payload"]))
		}
		d.fail("%s\nEvents in %v, expected in %v: %s", line, sortedKeys(perGroup), sortedKeys(expected), strings.Join(all, " "))
	}
	for _, id := range sortedKeys(expected) {
		left := slices.Clone(perGroup[id])
		for i, e := range expected[id] {
			at := 0
			if sweep {
				at = slices.IndexFunc(left, func(w written) bool {
					try := d.match.clone()
					return w.kind == e.kind && d.event(&try, e, w, sweep) == ""
				})
				at = max(at, 0)
			}
			if why := d.event(&d.match, e, left[at], sweep); why != "" {
				d.fail("%s\n%s Event %d %s: %s\n%s", line, id, i, e.kind, why, mustJSON(left[at].body))
			}
			d.m.ids = d.match.ids
			left = slices.Delete(left, at, at+1)
		}
	}
	for _, e := range got {
		d.counts["event "+e.kind]++
	}
	for id, g := range d.m.groups {
		if s := d.m.compareGroup(g, d.k.groups[id]); s != "" {
			d.fail("%s\nstate differs: %s", line, s)
		}
	}
	if s := d.m.unsound(); s != "" {
		d.fail("%s\n%s", line, s)
	}
}

// event compares one Event with what was expected of it.
func (d *driver) event(m *matcher, e *event, w written, sweep bool) string {
	if why := m.match("payload", e.payload, w.body["payload"]); why != "" {
		return why
	}
	envelope := obj{
		"protocolVersion": "0.1", "eventId": e.id, "kind": e.kind, "actor": e.actor.json(), "occurredAt": moment(d.m.now),
		"acceptedBy": anything{}, "cause": obj{"type": e.cause, "id": e.causeID}, "correlationId": anything{}, "payload": anything{},
		"signature": anything{}, "commandHash": maybe{anything{}}, "conversationId": maybe{anything{}}, "workItemId": maybe{anything{}},
	}
	if e.causeID == source {
		envelope["cause"] = part{"type": "event"}
	}
	if e.group != "" {
		envelope["groupId"], envelope["sequence"], envelope["aggregateRevision"] = e.group, e.seq, e.rev
		if sweep {
			envelope["sequence"], envelope["aggregateRevision"] = anything{}, anything{}
		}
	}
	if e.item != "" && e.item != "\x00skip" {
		envelope["workItemId"], envelope["conversationId"] = e.item, e.conv
	}
	return m.match("event", envelope, w.body)
}

// epochs fills in what an honest client would.
func (d *driver) epochs(c *command) {
	if a := d.m.agents[c.actor.ID]; a != nil {
		c.session = a.session
	}
	g := d.m.groups[c.group]
	if g == nil || c.actor.Type == "service" || rules[c.kind].creates {
		if c.actor.Type == "agent" {
			c.membership = max(c.membership, 1)
		}
		return
	}
	c.membership = 1
	if x := g.members[c.actor]; x != nil {
		c.membership = x.epoch
	}
	if c.actor == agentOf(g.coordinator) || d.forced(c.kind) && c.actor.Type == "agent" {
		c.coordinator = g.epoch
	}
}

// forced kinds cannot be sent without a coordinatorEpoch.
func (d *driver) forced(kind string) bool {
	switch kind {
	case "mission.renew_coordinator", "mission.submit_for_approval", "mission.create_child", "membership.grant_delegation",
		"work.accept_result", "mission.terminate":
		return true
	}
	return false
}

// spoil makes some Commands wrong in one way.
func (d *driver) spoil(c *command) {
	if d.calm || d.chance(78) {
		return
	}
	switch d.between(1, 14) {
	case 1:
		if c.membership > 0 {
			c.membership += d.between(0, 2)
		}
	case 2:
		if c.session > 0 {
			c.session += d.between(0, 1)
		}
	case 3:
		if c.coordinator > 0 {
			c.coordinator += d.between(0, 1)
		}
	case 4:
		if !d.forced(c.kind) {
			c.coordinator = 0
		}
	case 5, 6:
		n := d.between(0, 6)
		if g := d.m.groups[c.group]; g != nil && d.chance(60) {
			n = g.rev[one(d, "mission", "item "+c.item, "lease "+g.lease.id, memberKey(actorOf(c.payload["member"])))]
		}
		c.expected = &n
	case 7:
		c.payload["surplus"] = 1
	case 8:
		if names := sortedKeys(c.payload); len(names) > 0 {
			name := one(d, names...)
			if name != "executionLeaseId" && name != "ownershipEpoch" || c.kind != "work.fail" {
				delete(c.payload, name)
			}
		}
	case 9:
		if names := sortedKeys(c.payload); len(names) > 0 {
			c.payload[one(d, names...)] = nil
		}
	case 10:
		if c.group != "" && !rules[c.kind].creates {
			c.group = "group:none"
		}
	case 11:
		if c.item != "" && rules[c.kind].item != "new" {
			c.item = "work:none"
		}
	case 12:
		c.override = "override:none"
	case 13:
		if c.actor.Type == "agent" && c.group != "" {
			c.actor = d.crew()
			c.session, c.membership, c.coordinator = 0, 0, 0
			d.epochs(c)
		}
	case 14:
		if rules[c.kind].item == "needed" {
			c.payload["workItemId"] = one(d, c.item, "work:other")
		}
	}
}

// sign dates the embedded documents of a payload.
func (d *driver) sign(v any) {
	switch v := v.(type) {
	case obj:
		if name, ok := v["\x00signed"].(string); ok {
			delete(v, "\x00signed")
			v[name] = d.m.now.UTC().Format(time.RFC3339Nano)
			v["signature"] = json.RawMessage(signature)
		}
	case []any:
		for _, e := range v {
			d.sign(e)
		}
	}
}

// step does one random thing.
func (d *driver) step() {
	switch n := d.between(1, 100); {
	case n <= 7:
		by := time.Duration(d.between(1, 400)) * time.Second
		d.m.now, d.k.now = d.m.now.Add(by), d.k.now.Add(by)
		d.trail = append(d.trail, "clock +"+by.String())
		return
	case n <= 10:
		for _, g := range d.groups() {
			line := "sweep " + g.id
			d.trail = append(d.trail, line)
			d.compare(line, d.m.sweep(g), d.k.sweep(g.id), true)
			if again := d.k.sweep(g.id); len(again) > 0 {
				d.fail("%s\nsweeping twice writes %s again", line, again[0].kind)
			}
		}
		return
	case n <= 12:
		id := one(d, crew...)
		d.send(&command{kind: "ext.missionweaveprotocol.identity.session_open", actor: actor{"service", "service:identity"}, payload: obj{"agentId": id}, internal: d.chance(90)})
		return
	}
	g := one(d, d.groups()...)
	switch {
	case d.chance(3):
		d.wrapUp(g)
	case len(g.items) > 0 && d.chance(7):
		d.rush(g, one(d, sortedItems(g)...))
	case len(g.items) > 0 && d.chance(70):
		d.work(g, one(d, sortedItems(g)...))
	default:
		d.lead(g)
	}
}

// run plays one history.
func (d *driver) run(steps int) {
	for len(d.m.groups) == 0 {
		d.create("group:0")
	}
	for range steps {
		d.step()
	}
	for _, id := range sortedKeys(d.k.groups) {
		if err := d.k.refolds(id); err != nil {
			d.fail("%v", err)
		}
	}
}

func merged(a, b obj) obj {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}
