package matrix

import (
	"slices"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Plays of the Organization's own Commands (COMMANDS.md 5.7).

func init() {
	scripts[protocol.CommandAgentCardRegister] = append(scripts[protocol.CommandAgentCardRegister], cardRegister, cardRevoke)
	scripts[protocol.CommandSessionOpen] = append(scripts[protocol.CommandSessionOpen], sessionOpen, sessionTakeover)
}

// cardDocument is an Agent Card that the registry service signs.
func (p *play) cardDocument(card client.AgentCard) *document {
	b, err := strictjson.Marshal(&card)
	p.must(err)
	doc, err := strictjson.Parse(b)
	p.must(err)
	var fields map[string]any
	p.must(strictjson.Decode(doc.Root(), &fields))
	delete(fields, "signature")
	return &document{kind: protocol.KindAgentCard, by: p.registrar.Identity(), fields: fields}
}

func (p *play) registration(card client.AgentCard) *attempt {
	return p.blank(p.registrar, protocol.CommandAgentCardRegister).with("agentCard", p.cardDocument(card))
}

// sender puts another actor on a Command without a Group.
func (p *play) sender(who *actor, a *attempt) *attempt {
	a.who = who
	a.env["actor"] = who.Principal()
	if who.agent() {
		a.env["sessionEpoch"] = who.sessionEpoch()
	}
	return a
}

// smallOrder is the point of order one: whoever may choose it can sign anything.
var smallOrder = lexical.EncodeBase64URL(append([]byte{1}, make([]byte, 31)...))

func cardRegister(p *play) {
	identity, err := freshIdentity(client.Agent, "registered")
	p.must(err)
	card := p.card(identity, 1)
	// Every one is another document: the first admission binds content to one key.
	valid := func() *attempt {
		c := card
		c.DisplayName = client.NewID()
		return p.registration(c)
	}
	p.sets(valid)
	p.refuse("Agent actor", p.sender(p.reviewer, valid()))
	p.refuse("human actor", p.sender(p.owner, valid()))
	p.refuse("groupId present", valid().in("groupId", client.NewID()))
	p.refuse("foreign organization", func() *attempt {
		a := valid()
		a.doc("agentCard").fields["organizationId"] = client.NewID()
		return a
	}())
	key := func(edit func(k *client.PublicKey)) *attempt {
		other := card
		other.PublicKeys = slices.Clone(card.PublicKeys)
		edit(&other.PublicKeys[0])
		return p.registration(other)
	}
	p.refuse("key of another Principal",
		key(func(k *client.PublicKey) { k.KeyID = p.reviewer.Identity().KeyID }),
		key(func(k *client.PublicKey) { k.PublicKey = p.reviewer.Identity().PublicKey() }))
	p.refuse("small-order key", key(func(k *client.PublicKey) { k.PublicKey = smallOrder }))
	p.accept("new", valid())
	again := card
	again.DisplayName = "Another"
	p.refuse("same version", p.registration(again))
	again.CardVersion = 2
	p.accept("update", p.registration(again))
	known, err := p.registrar.AgentCard(p.ctx, identity.Principal.ID)
	p.must(err)
	if known.CardVersion != 2 || known.DisplayName != "Another" {
		p.failed("positive update", "the Registry has version %d", known.CardVersion)
	}
}

// cardRevoke: a revoked card takes the Agent's leases at once.
func cardRevoke(p *play) {
	p.newScene()
	item := p.active(p.worker)
	card, err := p.worker.AgentCard(p.ctx, p.worker.Principal().ID)
	p.must(err)
	card.CardVersion++
	card.Status = "revoked"
	p.worker.session.Close()
	p.worker.epoch, p.worker.session = p.worker.session.Epoch(), nil
	p.accept("revoke", p.registration(*card))
	if w := p.item(item); w.State != protocol.WorkQueued || w.Execution != nil {
		p.failed("positive revoke", "the WorkItem is %s", w.State)
	}
}

func sessionOpen(p *play) {
	identity, err := p.service("identity")
	p.must(err)
	valid := func() *attempt {
		return p.blank(identity, protocol.CommandSessionOpen).with("agentId", p.reviewer.Principal().ID)
	}
	p.sets(valid)
	p.refuse("epochs present", valid().in("sessionEpoch", 1), valid().in("membershipEpoch", 1), valid().in("coordinatorEpoch", 1))
	p.refuse("non-identity service", p.sender(p.policyService(), valid()))
	p.refuse("from outside", valid())
	agent := p.agent("first")
	if e := agent.sessionEpoch(); e != 1 {
		p.failed("positive first", "the first Session Epoch is %d", e)
	}
	p.passed("positive first")
}

// sessionTakeover: one new session fences the work of an Agent in two Groups.
func sessionTakeover(p *play) {
	p.newScene()
	first, there := p.active(p.worker), p.group
	down := p.another()
	down.newScene()
	down.admit(p.worker, "worker")
	second := down.active(p.worker)
	epoch := p.worker.sessionEpoch()
	p.newSession(p.worker)
	_, err := down.sync(p.ctx)
	p.must(err)
	for _, w := range []struct{ state string }{{there.state.WorkItems[first].State}, {down.item(second).State}} {
		if w.state != protocol.WorkQueued {
			p.failed("positive takeover in two Groups", "a WorkItem is %s", w.state)
		}
	}
	if now := p.worker.sessionEpoch(); now != epoch+1 {
		p.failed("positive takeover in two Groups", "Session Epoch %d after %d", now, epoch)
	}
	p.made = append(p.made, down.made...)
	p.passed("positive takeover in two Groups")
}

// another is a second play of the same row, for a second Mission.
func (p *play) another() *play {
	return &play{stand: p.stand, ctx: p.ctx, run: p.run, row: p.row, actionID: client.NewID()}
}
