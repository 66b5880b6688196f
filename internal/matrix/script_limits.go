package matrix

import (
	"slices"
	"strings"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Plays that go to a limit: cooperation limits (COMMANDS.md 7.6), the pause of
// exhausted accounts (7.2), cards that lost what work was accepted with.

func init() {
	for kind, cases := range map[string][]func(*play){
		"message.post":         {messageRate, wordsChangeNothing},
		"work.propose":         {proposalRate},
		"work.accept_offer":    {acceptAtLimits},
		"work.start":           {startAtLimits},
		"work.checkpoint":      {checkpointPaused},
		"mission.create_child": {childDepth},
		"ext.missionweaveprotocol.core.work_execution_lease_renew": {renewAtLimits},
		"ext.missionweaveprotocol.core.resource_usage_record":      {usageThreeLevels},
	} {
		scripts[kind] = append(scripts[kind], cases...)
	}
}

// reachable is a limit of the stack that a play can go up to; 0 when it is too far
// away, and the row then stays without its case.
func (p *play) reachable(name string) int64 {
	n, ok := p.policy(name)
	if !ok || n > 100 {
		return 0
	}
	return n
}

func messageRate(p *play) {
	n := p.reachable("messageRatePerMinute")
	if n == 0 {
		return
	}
	p.newScene()
	for range n {
		p.do(p.message(p.other, p.conversation))
	}
	p.refuse("rate", p.message(p.other, p.conversation))
}

func proposalRate(p *play) {
	n := p.reachable("proposalRatePerMinute")
	if n == 0 {
		return
	}
	p.newScene()
	for range n {
		p.do(p.proposal(p.other))
	}
	p.refuse("rate", p.proposal(p.other))
}

// wordsChangeNothing: what a Message says is nobody's Command.
func wordsChangeNothing(p *play) {
	p.newScene()
	p.do(p.submitMission(p.verified(p.worker)))
	item := p.marks()
	p.do(p.message(p.owner, p.conversation).with("content", []any{map[string]any{"type": "text", "text": "Approve and deploy. work.start. I accept the offer."}}))
	if changed := p.marks(); changed != item {
		p.failed(p.find("words change nothing"), "before %s, after %s", item, changed)
		return
	}
	p.passed(p.find("words change nothing"))
}

// marks is the Mission and its WorkItems as documents, as the fold tells.
func (p *play) marks() string {
	mission, err := p.state.MissionDoc()
	p.must(err)
	parts := []any{mission}
	for _, id := range sortedKeys(p.state.WorkItems) {
		parts = append(parts, p.state.WorkItems[id].WorkItem)
	}
	b, err := strictjson.Marshal(parts)
	p.must(err)
	return string(b)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// forget takes the matrix's capability from an Agent's card.
func (p *play) forget(who *actor) {
	p.must(p.recard(p.ctx, who, func(c *client.AgentCard) {
		c.Capabilities = slices.DeleteFunc(slices.Clone(c.Capabilities), func(c client.Capability) bool { return c.ID == capability })
	}))
}

func acceptAtLimits(p *play) {
	p.newScene()
	if n := p.reachable("queuedWorkItems"); n > 0 {
		full := p.agent("full")
		p.admit(full, "worker")
		for range n {
			p.queued(full)
		}
		p.refuse("queued limit", p.acceptOffer(full, p.offered(full)))
	}
	item := p.offered(p.other)
	p.forget(p.other)
	p.refuse("card lost the capability", p.acceptOffer(p.other, item))
}

// spend uses up the model tokens of a WorkItem, which pauses it.
func (p *play) spend(who *actor, item string) {
	p.do(p.usage(who, item).with("usageDelta", map[string]any{"modelTokens": 1000}))
}

func startAtLimits(p *play) {
	p.newScene()
	paused := p.active(p.worker)
	p.spend(p.worker, paused)
	p.do(p.checkpoint(p.worker, paused))
	p.refuse("paused", p.startWork(p.worker, paused))

	brief := p.queued(p.worker, gated)
	p.do(p.grant(p.owner, brief).with("expiresAt", client.Timestamp(p.soon())))
	handed := p.offered2(gated)
	p.do(p.grant(p.owner, handed))
	p.wait(p.soon())
	p.refuse("approval expired", p.startWork(p.worker, brief))
	// The approved owner has missed its start, and the WorkItem gets another epoch.
	p.do(p.offer(handed, p.worker))
	p.do(p.acceptOffer(p.worker, handed))
	p.refuse("approval of an older epoch", p.startWork(p.worker, handed))

	narrow := p.agent("narrow", func(c *client.AgentCard) { c.MaxConcurrency = 1 })
	p.admit(narrow, "worker")
	waiting := p.queued(narrow)
	p.active(narrow)
	p.refuse("active limit", p.startWork(narrow, waiting))

	stale := p.queued(p.other)
	p.forget(p.other)
	p.refuse("incompatible card", p.startWork(p.other, stale))
}

// offered2 makes a WorkItem whose owner has to start within a moment.
func (p *play) offered2(edit func(c map[string]any)) string {
	item := p.open(edit)
	p.do(p.offer(item, p.worker))
	p.do(p.acceptOffer(p.worker, item).with("startBy", client.Timestamp(p.soon())))
	return item
}

func renewAtLimits(p *play) {
	p.newScene()
	paused := p.active(p.worker)
	p.spend(p.worker, paused)
	p.refuse("paused", p.renewLease(p.worker, paused))

	revoked := p.queued(p.worker, gated)
	grant := p.grant(p.owner, revoked)
	p.do(grant)
	p.do(p.startWork(p.worker, revoked))
	p.do(p.revocation(revoked, grant))
	p.refuse("gate revoked", p.renewLease(p.worker, revoked))

	brief := p.queued(p.worker)
	p.do(p.startWork(p.worker, brief).with("executionLeaseSeconds", p.brief))
	renew := p.renewLease(p.worker, brief)
	ends, err := time.Parse(time.RFC3339Nano, p.item(brief).Execution.ExpiresAt)
	p.must(err)
	p.waitExactly(ends)
	p.refuse("at expiry", renew)
}

func checkpointPaused(p *play) {
	p.newScene()
	item := p.active(p.worker)
	p.spend(p.worker, item)
	p.accept("paused", p.checkpoint(p.worker, item))
}

// descend starts a child of a child and so on; each level's Coordinator leads the
// next, whose MissionOwner it is.
func (p *play) descend(levels int64, at func(level int64, owner *actor)) {
	var down func(level int64)
	down = func(level int64) {
		if level > levels {
			return
		}
		sub := p.agent("level")
		item := p.open(func(c map[string]any) { c["deadline"] = client.Timestamp(p.deadline.Add(-time.Minute)) })
		a := p.child(item, sub).with("budget", map[string]any{"currency": "EUR", "financialLimit": 10, "modelTokenLimit": 1000, "toolCallLimit": 10},
			"allowedCapabilities", []any{capabilityRef(capability)}, "deadline", client.Timestamp(p.deadline.Add(-2*time.Minute)))
		p.do(a)
		outer := *p.scene
		p.group = p.watched(a)
		p.missionID, p.lead, p.deadline = a.payload["missionId"].(string), sub, p.deadline.Add(-2*time.Minute)
		if at != nil {
			at(level, outer.lead)
		}
		down(level + 1)
		all := p.groups
		*p.scene = outer
		p.groups = all
	}
	down(1)
}

func childDepth(p *play) {
	n := p.reachable("delegationDepth")
	if n == 0 || n > 5 {
		return
	}
	p.newScene()
	p.descend(n, func(level int64, owner *actor) {
		if level == n {
			item := p.open(func(c map[string]any) { c["deadline"] = client.Timestamp(p.deadline.Add(-time.Minute)) })
			a := p.child(item, p.agent("below")).with("deadline", client.Timestamp(p.deadline.Add(-2*time.Minute)))
			p.refuse("depth over the limit", a)
			// The depth is a guardrail: with a grant for exactly this Command it goes on.
			target := client.NewID()
			grant := p.override(p.group, owner, "delegation_depth", "mission.create_child", target, p.lead)
			p.do(grant)
			b := p.child(item, p.agent("below")).with("deadline", a.payload["deadline"]).
				in("actionId", target).in("cooperationOverrideGrantId", grant.payload["grantId"])
			p.do(b)
			p.watched(b)
			p.passed(p.find("depth with an override"))
		}
	})
}

// usageThreeLevels: what is charged at the bottom leaves an Event in every Group
// above it, and uses up the root Mission's account too.
func usageThreeLevels(p *play) {
	p.newScene()
	p.descend(2, func(level int64, _ *actor) {
		if level != 2 {
			return
		}
		p.admit(p.worker, "worker")
		item := p.open(func(c map[string]any) { c["deadline"] = client.Timestamp(p.deadline.Add(-time.Minute)) })
		p.do(p.offer(item, p.worker))
		p.do(p.acceptOffer(p.worker, item))
		p.do(p.startWork(p.worker, item))
		receipt := p.accept("three levels", p.usage(p.worker, item).with("usageDelta", map[string]any{"modelTokens": 7}))
		if n := receipt.Member("events").Len(); n < 1 {
			p.failed("positive three levels", "%d Events", n)
		}
	})
	found := 0
	for _, g := range p.groups {
		for _, e := range g.events {
			if strings.HasSuffix(e.Kind, "resource_usage_recorded") {
				found++
			}
		}
	}
	if found != 3 {
		p.failed("positive three levels", "%d usage Events in three Groups", found)
	}
}
