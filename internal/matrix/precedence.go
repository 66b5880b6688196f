package matrix

import (
	"fmt"
	"slices"
	"time"

	"github.com/missionweave/server/client"
)

// pair sends a Command with two faults: the one that stands first in the pair's
// name must answer.
func (p *play) pair(name string, a *attempt) {
	if !slices.Contains(pairs, name) {
		panic("matrix: no pair " + name)
	}
	if err := p.refusedOnce(name, a); err != nil {
		p.failed(name, "%v", err)
		return
	}
	p.passed(name)
}

// critical is an extension that nobody knows and that must be known.
func critical(a *attempt) *attempt {
	return a.in("extensions", map[string]any{
		"urn:missionweave:matrix:critical": map[string]any{"version": "1.0.0", "critical": true, "data": map[string]any{}},
	})
}

// precedence plays COMMANDS.md 10.3 in one Mission.
func precedence(p *play) {
	p.newScene()
	item := p.handedOver(p.other, p.worker)
	p.do(p.startWork(p.worker, item))
	valid := func() *attempt { return p.checkpoint(p.worker, item) }
	_, former, _, visitor := p.outside(p.worker)
	session := p.worker.sessionEpoch() + 1
	past, _ := p.policy("freshnessPastSeconds")

	shapeless := valid()
	shapeless.bytes = func(b []byte) []byte {
		m := members(b)
		delete(m, "kind")
		return encode(m)
	}
	p.pair("SVF before AIS", shapeless)
	p.pair("AIS of freshness before SVF of the payload", p.dated(valid().with("unheardOf", 1), time.Now().Add(-time.Duration(past+1)*time.Second)))
	p.pair("SVF before ASS", valid().with("unheardOf", 1).in("sessionEpoch", session))
	tampered := p.publish(p.worker, item).in("sessionEpoch", session)
	tampered.doc("artifact").by.KeyID = client.NewID()
	p.pair("AIS of a document before ASS", tampered)
	p.pair("ASS before GNF", valid().in("sessionEpoch", session).in("groupId", client.NewID()))
	p.pair("GNF before ASC", valid().in("coordinatorEpoch", 9).in("groupId", client.NewID()))
	p.pair("MR before ASC", p.by(former, valid()).in("coordinatorEpoch", 9))
	p.pair("MS before ASC", valid().in("coordinatorEpoch", 9).in("membershipEpoch", 99))
	p.pair("ASC before UCE", critical(valid().in("coordinatorEpoch", 9)))
	p.pair("UCE before AF", critical(p.by(visitor, valid())))
	p.pair("AF before WSO", p.by(visitor, valid()).with("ownershipEpoch", 9))
	p.pair("WSO before WLE", valid().with("ownershipEpoch", 9, "executionLeaseId", client.NewID()))
	p.pair("WLE before RC", valid().with("executionLeaseId", client.NewID()).in("expectedRevision", int64(1)<<40))
	p.pair("RC before IST", p.startWork(p.worker, item).in("expectedRevision", int64(1)<<40))
	p.pair("IST before IC of the values", p.offer(item, p.outsider))

	raced := p.offered(p.worker, p.other)
	loser := p.acceptOffer(p.other, raced).in("expectedRevision", 1)
	p.do(p.acceptOffer(p.worker, raced))
	p.pair("WAO before RC", loser)

	// An Agent with room for one WorkItem meets every limit at once.
	narrow := p.agent("narrow", func(c *client.AgentCard) { c.MaxConcurrency = 1 })
	p.admit(narrow, "worker")
	spent := p.active(narrow)
	p.do(p.working(narrow, "ext.missionweaveprotocol.core.resource_usage_record", spent).with("usageDelta", map[string]any{"modelTokens": 1000}))
	p.do(p.checkpoint(narrow, spent))
	gate := func(c map[string]any) { c["executionApproval"] = "human_required" }
	gated := p.queued(narrow, gate)
	soon := p.soon().Add(time.Second)
	due := p.queued(p.worker, gate, func(c map[string]any) { c["deadline"] = client.Timestamp(soon) })
	running := p.queued(narrow)
	p.do(p.startWork(narrow, running))
	p.pair("APR before RL", p.startWork(narrow, gated))
	p.pair("RL before BE", p.startWork(narrow, spent))
	p.wait(soon)
	p.pair("IC before APR", p.startWork(p.worker, due))

	aged := p.dated(valid(), p.soon().Add(-time.Duration(past)*time.Second)).in("actionId", client.NewID())
	b, got := p.send(aged)
	receipt, err := got.value()
	if err != nil || got.status != 201 {
		p.failed("receipt before AIS of freshness", "%d %s", got.status, got.body)
		return
	}
	p.accepted(aged, receipt)
	again := *aged
	again.bytes = func(b []byte) []byte {
		m := members(b)
		m["correlationId"] = encode(client.NewID())
		return encode(m)
	}
	p.pair("AIS before AIC", &again)
	p.wait(p.soon())
	if err := p.sameReceipt(b, got.body); err != nil {
		p.failed("receipt before AIS of freshness", "%v", fmt.Errorf("after the window: %w", err))
		return
	}
	p.passed("receipt before AIS of freshness")
}
