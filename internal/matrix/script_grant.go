package matrix

import (
	"time"

	"github.com/missionweave/server/client"
)

// Plays about authority that is handed on: Delegation Grants (COMMANDS.md 7.5) and
// Cooperation Override Grants (7.6).

func init() {
	for kind, cases := range map[string][]func(*play){
		"work.authorize":                    {authorizeByDelegate, authorizeByOldDelegate, authorizeCycle},
		"work.offer":                        {offerByDelegate},
		"membership.end":                    {endDelegate},
		"mission.assign_coordinator":        {assignOverGrant},
		"membership.grant_delegation":       {grantToSelf},
		"policy.grant_cooperation_override": {overrideUse, overrideInChild},
	} {
		scripts[kind] = append(scripts[kind], cases...)
	}
}

// roomy is a contract budget that WorkItems can be delegated from.
func roomy(c map[string]any) {
	c["budget"] = map[string]any{
		"currency": "EUR", "financialLimit": 100, "modelTokenLimit": 10_000, "toolCallLimit": 100,
		"computeSecondsLimit": 100, "wallClockSecondsLimit": 100, "externalSideEffectLimit": 1,
	}
}

// delegation grants the use of a subtree to p.other, which must be a work_delegate.
func (p *play) delegation(target string) *attempt {
	return p.as(p.lead, "membership.grant_delegation").with(
		"grantId", client.NewID(), "granteeAgentId", p.other.Principal().ID, "targetWorkItemId", target,
		"allowedCapabilities", []any{capabilityRef(capability)}, "budget", budgetOf(50, 5000), "maxDescendantDepth", 1,
		"expiresAt", client.Timestamp(time.Now().Add(time.Hour)))
}

// delegated is a Command of p.other that cites a grant.
func (p *play) delegated(a *attempt, grant *attempt) *attempt {
	return p.by(p.other, a).leaving("coordinatorEpoch").with("delegationGrantId", grant.payload["grantId"])
}

// under authorizes a new WorkItem below parent as p.other.
func (p *play) under(parent string, grant *attempt) *attempt {
	return p.delegated(p.authorize(client.NewID()).with("parentWorkItemId", parent), grant)
}

// subtree stages a delegate with a grant over a WorkItem.
func (p *play) subtree() (target string, grant *attempt) {
	p.newScene()
	p.admit(p.other, "work_delegate")
	target = p.open(roomy)
	grant = p.delegation(target)
	p.do(grant)
	return target, grant
}

func authorizeByDelegate(p *play) {
	target, grant := p.subtree()
	elsewhere := p.open(roomy)
	p.refuse("other subtree", p.under(elsewhere, grant))
	other := p.delegation(target).with("allowedCapabilities", []any{capabilityRef(forbidden)})
	p.do(other)
	p.refuse("grant capability", p.under(target, other))
	p.refuse("grant ceiling", p.under(target, grant).change("contract", func(c map[string]any) {
		c["budget"] = map[string]any{"currency": "EUR", "financialLimit": 51, "modelTokenLimit": 10}
	}))
	first := p.under(target, grant)
	p.accept("Delegate", first)
	p.refuse("grant depth", p.under(first.env["workItemId"].(string), grant))
	brief := p.delegation(target).with("expiresAt", client.Timestamp(p.soon()))
	p.do(brief)
	p.wait(p.soon())
	p.refuse("grant expired", p.under(target, brief))
}

func authorizeByOldDelegate(p *play) {
	target, grant := p.subtree()
	p.admit(p.other, "work_delegate")
	p.refuse("old membership epoch", p.under(target, grant))
	again := p.delegation(target)
	p.do(again)
	p.do(p.as(p.owner, "mission.assign_coordinator").with("coordinatorAgentId", p.lead.Principal().ID, "leaseSeconds", 900))
	p.refuse("after a Coordinator change", p.under(target, again))
}

// authorizeCycle: the WorkItem to be replaced is needed by what the new one needs.
func authorizeCycle(p *play) {
	p.newScene()
	lost := p.open()
	needs := p.open(func(c map[string]any) { c["dependencyWorkItemIds"] = []string{lost} })
	p.do(p.failWork(lost))
	a := p.authorize(client.NewID()).with("replacesWorkItemId", lost)
	a.change("contract", func(c map[string]any) { c["dependencyWorkItemIds"] = []string{needs} })
	p.refuse("cycle", a)
}

func offerByDelegate(p *play) {
	target, grant := p.subtree()
	part := p.under(target, grant)
	p.do(part)
	p.do(p.delegated(p.offer(part.env["workItemId"].(string), p.worker), grant))
	plain := p.agent("plain", func(c *client.AgentCard) { c.Capabilities = c.Capabilities[1:] })
	p.admit(plain, "worker")
	p.refuse("without capability", p.offer(p.open(), plain).change("selectionBasis", func(b map[string]any) {
		b["verifiedMatches"] = []any{capabilityRef(forbidden)}
	}))
	soon := p.soon()
	due := p.open(func(c map[string]any) { c["deadline"] = client.Timestamp(soon) })
	p.wait(soon)
	p.refuse("past contract deadline", p.offer(due, p.worker))
	broke := p.open()
	p.do(p.failWork(broke))
	p.open(func(c map[string]any) {
		c["budget"] = map[string]any{"currency": "EUR", "financialLimit": 875, "modelTokenLimit": 1}
	})
	p.refuse("failed re-offer without funds", p.offer(broke, p.worker))
}

// endDelegate: who comes back comes back without its grant.
func endDelegate(p *play) {
	target, grant := p.subtree()
	p.do(p.as(p.lead, "membership.end").with("member", p.other.Principal()))
	p.admit(p.other, "work_delegate")
	p.refuse("its grant", p.under(target, grant))
}

func assignOverGrant(p *play) {
	target, grant := p.subtree()
	assign := p.as(p.owner, "mission.assign_coordinator").with("coordinatorAgentId", p.worker.Principal().ID)
	p.accept("other Agent without package", assign)
	p.refuse("grant of the old epoch", p.under(target, grant))
}

func grantToSelf(p *play) {
	target, _ := p.subtree()
	p.refuse("self", p.delegation(target).with("granteeAgentId", p.lead.Principal().ID))
}

// override grants one work.propose that repeats a Proposal.
func (p *play) override(g *group, by *actor, policy, kind, target string, beneficiary *actor) *attempt {
	return p.within(g, by, "policy.grant_cooperation_override").with(
		"grantId", client.NewID(), "policyName", policy, "beneficiary", beneficiary.Principal(),
		"targetCommandKind", kind, "targetActionId", target, "reason", "Once, on purpose.",
		"expiresAt", client.Timestamp(time.Now().Add(time.Hour)))
}

func overrideUse(p *play) {
	p.newScene()
	first := p.proposal(p.worker)
	p.do(first)
	cite := func(grant *attempt) *attempt {
		return p.proposal(p.worker).with("contract", first.payload["contract"]).
			in("cooperationOverrideGrantId", grant.payload["grantId"]).in("actionId", grant.payload["targetActionId"])
	}
	brief := p.override(p.group, p.owner, "duplicate_decomposition", "work.propose", client.NewID(), p.worker).
		with("expiresAt", client.Timestamp(p.soon()))
	p.do(brief)
	lasting := p.override(p.group, p.owner, "duplicate_decomposition", "work.propose", client.NewID(), p.worker)
	p.do(lasting)
	err := p.refusedOnce("IC:identifier_in_use ", cite(lasting).with("proposalId", first.payload["proposalId"]))
	p.do(cite(lasting))
	p.settle("refused target leaves it usable", err)
	p.wait(p.soon())
	p.refuse("expired", cite(brief))
}

// overrideInChild: a child's MissionOwner is an Agent.
func overrideInChild(p *play) {
	p.newScene()
	sub := p.agent("child")
	_, child, mission := p.begin(sub)
	p.refuse("Agent owner for itself", p.override(child, p.lead, "message_rate", "message.post", client.NewID(), p.lead))
	p.do(p.override(child, p.lead, "message_rate", "message.post", client.NewID(), sub))
	p.inside(child, mission, sub, func(owner *actor) {
		p.framed(func() *attempt {
			return p.override(child, owner, "message_rate", "message.post", client.NewID(), sub)
		})
	})
}
