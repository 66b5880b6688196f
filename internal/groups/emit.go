package groups

import (
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Draft is an Event that was decided and waits for its signature.
type Draft struct {
	// GroupID is empty for a fact of the Organization.
	GroupID string
	// TreeID places a Group that this Event creates; empty otherwise.
	TreeID string
	// Event is complete but for payload and signature.
	Event protocol.Event
	// Payload is the typed payload, a pointer to the kind's payload type.
	Payload any
	// Primary marks the Event that answers the Command (①).
	Primary bool
}

// Encode fills Event.Payload with the canonical payload. Documents named by
// Decision.Sign must be sealed before.
func (d *Draft) Encode() error {
	raw, err := strictjson.Marshal(d.Payload)
	if err != nil {
		return err
	}
	d.Event.Payload = raw
	return nil
}

// Folded is the Draft as Apply takes it.
func (d *Draft) Folded() *Event { return &Event{Event: d.Event, Payload: d.Payload} }

// emission says what the envelope of one Event differs in.
type emission struct {
	WorkItem     *WorkItem
	WorkItemID   string
	Conversation string
	Primary      bool
	// Source is the Event that caused this one, for propagation to another
	// Group.
	Source string
	// Timer is the id of the expired object behind a timer Event.
	Timer string
	// TreeID places a Group that the Event creates.
	TreeID string
	// Accepted is the service that accepts a fact of the Organization.
	Accepted protocol.Actor
}

// emitter numbers and wraps the Events of one decision.
type emitter struct {
	mint      func() string
	now       string
	authority protocol.Actor
	cmd       *Command

	drafts    []Draft
	sign      []SignRequest
	heads     map[string]int64
	revisions map[string]map[Aggregate]int64
	// consume is the Override Grant that the primary Event uses up.
	consume *Override
	// soft are the thresholds that the Command reached, told after the primary
	// Event and the consumption.
	soft []*SoftLimitReached
}

func (e *emitter) init(x *Ctx) {
	*e = emitter{mint: x.World.Mint, now: x.Now, authority: x.World.Org.Authority, cmd: x.Command}
}

// sequence is the number the Group's next Event will get; g is nil for a Group
// that this decision creates.
func (e *emitter) sequence(groupID string, g *State) int64 {
	if n, ok := e.heads[groupID]; ok {
		return n + 1
	}
	if g == nil {
		return 1
	}
	return g.Head + 1
}

// revision is the number the aggregate's next Event will get.
func (e *emitter) revision(groupID string, g *State, a Aggregate) int64 {
	if n, ok := e.revisions[groupID][a]; ok {
		return n + 1
	}
	if g == nil {
		return 1
	}
	return g.revisions[a] + 1
}

// emit appends an Event to Group groupID; g is its state before the decision,
// nil for a new Group. It returns the Event's id.
func (e *emitter) emit(groupID string, g *State, kind string, payload any, m emission) string {
	row := eventKinds[kind]
	ev := protocol.Event{
		ProtocolVersion: "0.1",
		EventID:         e.mint(),
		GroupID:         groupID,
		Kind:            kind,
		Actor:           e.authority,
		OccurredAt:      e.now,
		AcceptedBy:      e.authority,
		ConversationID:  m.Conversation,
		WorkItemID:      m.WorkItemID,
	}
	if m.WorkItem != nil {
		ev.WorkItemID, ev.ConversationID = m.WorkItem.WorkItemID, m.WorkItem.ConversationID
	}
	switch {
	case m.Timer != "":
		ev.Cause, ev.CorrelationID = protocol.Cause{Type: "timer", ID: m.Timer}, m.Timer
	case m.Source != "":
		ev.Cause = protocol.Cause{Type: "event", ID: m.Source}
	default:
		ev.Cause = protocol.Cause{Type: "command", ID: e.cmd.Envelope.ActionID}
		ev.Actor = e.cmd.Envelope.Actor
	}
	if e.cmd != nil {
		env := &e.cmd.Envelope
		ev.CorrelationID, ev.CommandHash = env.CorrelationID, e.cmd.SigningHash
		if m.Source == "" && groupID == env.GroupID {
			if ev.WorkItemID == "" {
				ev.WorkItemID = env.WorkItemID
			}
			if ev.ConversationID == "" {
				ev.ConversationID = env.ConversationID
			}
		}
		if m.Primary {
			ev.Extensions = env.Extensions
		}
	}
	if row.Aggregate == AggregateNone {
		ev.AcceptedBy = m.Accepted
	} else {
		ev.Sequence = e.sequence(groupID, g)
		if e.heads == nil {
			e.heads, e.revisions = map[string]int64{}, map[string]map[Aggregate]int64{}
		}
		e.heads[groupID] = ev.Sequence
		a := row.aggregate(&Event{Event: ev, Payload: payload})
		rev := e.revision(groupID, g, a)
		if e.revisions[groupID] == nil {
			e.revisions[groupID] = map[Aggregate]int64{}
		}
		e.revisions[groupID][a] = rev
		ev.AggregateRevision = &rev
	}
	e.drafts = append(e.drafts, Draft{GroupID: groupID, TreeID: m.TreeID, Event: ev, Payload: payload, Primary: m.Primary})
	if m.Primary && e.consume != nil {
		grant := e.consume
		e.consume = nil
		e.emit(groupID, g, "ext.missionweave.authority.cooperation_override_consumed", &CooperationOverrideConsumed{
			GrantID: grant.GrantID, PolicyName: grant.PolicyName,
			TargetCommandKind: grant.TargetCommandKind, TargetActionID: grant.TargetActionID,
			ConsumedByEventID: ev.EventID, PolicyLogEntryID: e.mint(),
		}, emission{})
	}
	if m.Primary {
		soft := e.soft
		e.soft = nil
		for _, reached := range soft {
			e.emit(groupID, g, "ext.missionweave.authority.soft_limit_reached", reached, emission{})
		}
	}
	return ev.EventID
}

func (e *emitter) decision(x *Ctx) (Decision, error) {
	return Decision{Drafts: e.drafts, Capacity: x.Capacity, Sign: e.sign}, nil
}

// Mint returns a fresh id.
func (x *Ctx) Mint() string { return x.World.Mint() }

// emit appends an Event of the envelope's Group to the decision.
func (x *Ctx) emit(kind string, payload any, m emission) string {
	return x.out.emit(x.Command.Envelope.GroupID, x.Group, kind, payload, m)
}

// emitTo appends an Event of another Group; m.Source names its cause.
func (x *Ctx) emitTo(g *State, kind string, payload any, m emission) string {
	return x.out.emit(g.GroupID, g, kind, payload, m)
}

// nextRevision is the revision the next Event of an aggregate will have; the
// documents in its payload carry it too.
func (x *Ctx) nextRevision(g *State, a Aggregate) int64 { return x.out.revision(g.GroupID, g, a) }

// nextSequence is the sequence of the Group's next Event.
func (x *Ctx) nextSequence(g *State) int64 { return x.out.sequence(g.GroupID, g) }
