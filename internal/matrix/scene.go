package matrix

import (
	"context"
	"fmt"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// group is a Group as its Events tell it: read over the wire, verified and folded.
type group struct {
	id     string
	reader *actor
	state  *groups.State
	events map[string]client.Event
	// messages are the Message documents of the log, amendments included.
	messages []protocol.Message
	play     *play
}

func (p *play) watch(id, treeID string, reader *actor) *group {
	g := &group{id: id, reader: reader, state: groups.New(), events: map[string]client.Event{}, play: p}
	g.state.TreeID = treeID
	p.groups = append(p.groups, g)
	return g
}

// sync reads what is new in the log, holds every Event against the Event schema,
// the Authority's signature and the fold, and returns it.
func (g *group) sync(ctx context.Context) ([]client.Event, error) {
	var added []client.Event
	for {
		page, _, err := g.reader.Events(ctx, g.id, g.state.Head, 1000)
		if err != nil {
			return nil, fmt.Errorf("read the log: %w", err)
		}
		for _, d := range page {
			if err := g.take(d); err != nil {
				return nil, fmt.Errorf("sequence %d (%s): %w", d.Event.Sequence, d.Event.Kind, err)
			}
			added = append(added, d.Event)
		}
		if len(page) < 1000 {
			return added, nil
		}
	}
}

func (g *group) take(d client.Delivery) error {
	doc, err := strictjson.Parse(d.Bytes)
	if err != nil {
		return err
	}
	ev, err := verifiedEvent(doc, g.play.evidence)
	if err != nil {
		return err
	}
	before := observe(g.state, ev)
	if err := g.state.Apply(ev); err != nil {
		return fmt.Errorf("fold: %w", err)
	}
	g.events[d.Event.EventID] = d.Event
	if m := ev.MessageDoc(); m != nil {
		g.messages = append(g.messages, *m)
	}
	g.play.run.event(ev.Kind)
	g.play.run.moved(g.play.stand, ev, before, observe(g.state, ev))
	return nil
}

// verifiedEvent holds an Event against the Event schema, its signature and the
// payload profile of its kind.
func verifiedEvent(doc *strictjson.Document, evidence *trust.Evidence) (*groups.Event, error) {
	if fault := protocol.Validate(protocol.KindEvent, doc.Root()); fault != nil {
		return nil, fault
	}
	if _, failure := trust.Verify(protocol.KindEvent, doc.Root(), evidence); failure != nil {
		return nil, fmt.Errorf("signature: stage %d, %s", failure.Stage, failure.Reason)
	}
	return groups.DecodeEvent(doc.Root())
}

// scene is one Mission and who takes part in it.
type scene struct {
	*group
	groups                  []*group
	missionID, conversation string
	lead, worker, other     *actor
	// outsiders says that the members of set G have been admitted.
	outsiders map[string]bool
	deadline  time.Time
}

// newScene creates a Mission whose owner, Coordinator and two Workers have epochs
// above 1, so that every epoch has an older one.
func (p *play) newScene() {
	p.scene = &scene{missionID: client.NewID(), outsiders: map[string]bool{}, deadline: time.Now().Add(24 * time.Hour)}
	for _, a := range []struct {
		dst  **actor
		name string
	}{{&p.lead, "coordinator"}, {&p.worker, "worker"}, {&p.other, "other"}} {
		*a.dst = p.agent(a.name)
	}
	id := client.NewID()
	p.do(p.creation(p.owner, id, p.missionID, p.lead.Principal().ID))
	p.group = p.watch(id, p.missionID, p.owner)
	_, err := p.sync(p.ctx)
	p.must(err)
	p.conversation = p.state.Group.MainConversationID
	p.do(p.as(p.owner, "mission.assign_coordinator").with("coordinatorAgentId", p.lead.Principal().ID, "leaseSeconds", 900))
	p.do(p.as(p.owner, "membership.change").with("member", p.lead.Principal(), "role", "coordinator"))
	p.do(p.as(p.lead, "membership.change").with("member", p.owner.Principal(), "role", "mission_owner"))
	for _, w := range []*actor{p.worker, p.other} {
		p.admit(w, "worker")
		p.admit(w, "worker")
	}
}

// agent is a new Agent of this play alone.
func (p *play) agent(name string, edit ...func(*client.AgentCard)) *actor {
	a, err := p.newAgent(p.ctx, name, edit...)
	p.must(err)
	p.made = append(p.made, a)
	return a
}

// admit makes a Principal an active member, or changes it.
func (p *play) admit(who *actor, role string) {
	p.do(p.as(p.lead, "membership.change").with("member", who.Principal(), "role", role, "visibilityStartSequence", p.visibleFrom(who)))
}

// visibleFrom keeps a member's visibility, and gives a new one all of it.
func (p *play) visibleFrom(who *actor) int64 {
	if m, ok := p.state.Member(who.Principal()); ok {
		return max(m.VisibilityStartSequence, 1)
	}
	return 1
}

// creation is a mission.create.
func (p *play) creation(who *actor, groupID, missionID, coordinator string) *attempt {
	a := p.blank(who, "mission.create")
	a.env["groupId"] = groupID
	return a.with(
		"missionId", missionID, "groupId", groupID, "coordinatorAgentId", coordinator,
		"title", "Matrix", "objective", "Show how it answers.",
		"definitionOfDone", []any{map[string]any{"criterionId": "works", "description": "It works.", "evidenceRequired": []string{"human_review"}}},
		"budget", budgetOf(1000, 1_000_000),
		"deadline", client.Timestamp(time.Now().Add(24*time.Hour)),
		"approvalPolicy", map[string]any{"finalHumanApproval": true, "highRiskExecutionApproval": true, "policyVersion": "1.0.0"},
		"permissions", []any{map[string]any{"resource": resource, "operations": []string{"read"}}},
		"allowedCapabilities", []any{capabilityRef(capability)},
		"coordinatorLeaseSeconds", 900,
	)
}

const resource = "urn:missionweave:matrix:resource"

func capabilityRef(id string) map[string]any { return map[string]any{"id": id, "version": "1.0.0"} }

// budgetOf has limits in every dimension.
func budgetOf(money, tokens int64) map[string]any {
	return map[string]any{
		"currency": "EUR", "financialLimit": money, "modelTokenLimit": tokens, "toolCallLimit": 1000,
		"computeSecondsLimit": 10_000, "wallClockSecondsLimit": 10_000, "externalSideEffectLimit": 10,
	}
}

// blank is a Command outside any Group.
func (p *play) blank(who *actor, kind string) *attempt {
	a := &attempt{who: who, env: map[string]any{
		"protocolVersion": "0.1", "actor": who.Principal(), "kind": kind, "correlationId": client.NewID(),
	}, payload: map[string]any{}}
	if who.agent() {
		a.env["sessionEpoch"] = who.sessionEpoch()
	}
	return a
}

// as is a Command of a Principal in the Group under its present epochs.
func (p *play) as(who *actor, kind string) *attempt { return p.within(p.group, who, kind) }

func (p *play) within(g *group, who *actor, kind string) *attempt {
	a := p.blank(who, kind)
	a.env["groupId"] = g.id
	p.epochs(g, a, who)
	return a
}

func (p *play) epochs(g *group, a *attempt, who *actor) {
	delete(a.env, "membershipEpoch")
	delete(a.env, "coordinatorEpoch")
	if who.Principal().Type == client.Service {
		return
	}
	a.env["membershipEpoch"] = int64(1)
	if m, ok := g.state.Member(who.Principal()); ok {
		a.env["membershipEpoch"] = m.MembershipEpoch
	}
	if g.state.CoordinatorActor() == who.Principal() {
		a.env["coordinatorEpoch"] = g.state.Mission.Coordinator.CoordinatorEpoch
	}
}

// by gives a Command to somebody else, under that one's epochs.
func (p *play) by(who *actor, a *attempt) *attempt {
	a.who = who
	a.env["actor"] = who.Principal()
	delete(a.env, "sessionEpoch")
	if who.agent() {
		a.env["sessionEpoch"] = who.sessionEpoch()
	}
	epoch, had := a.env["coordinatorEpoch"]
	p.epochs(p.group, a, who)
	if _, has := a.env["coordinatorEpoch"]; had && !has && who.agent() {
		a.env["coordinatorEpoch"] = epoch
	}
	return a
}
