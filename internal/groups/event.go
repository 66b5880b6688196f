package groups

import (
	"fmt"
	"maps"
	"slices"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Event is an Event with its typed payload: a pointer to the kind's payload
// type, or nil for a kind this server does not know (it changes nothing).
// Payload hides the envelope's raw payload, which is Event.Event.Payload.
type Event struct {
	protocol.Event
	Payload any
}

// EventKind is the row of one Event kind: what it carries, which aggregate it
// revises and how it folds.
type EventKind struct {
	Kind      string
	Aggregate AggregateType
	// Policy says that the kind always adds a Policy Log entry (★); kinds that
	// do so in one form only leave it false and decide by their payload.
	Policy bool

	new       func() any
	aggregate func(*Event) Aggregate
	// fold changes the state. It never fails for an Event that this package
	// made; an error is an integrity error.
	fold func(*State, *Event) error
}

// eventKind builds a row from typed functions; key is the aggregate's id and
// not needed for Mission and Group.
func eventKind[P any](kind string, t AggregateType, policy bool,
	key func(*P) string, fold func(*State, *Event, *P) error,
) EventKind {
	return EventKind{
		Kind: kind, Aggregate: t, Policy: policy,
		new: func() any { return new(P) },
		aggregate: func(ev *Event) Aggregate {
			switch t {
			case AggregateNone:
				return Aggregate{}
			case AggregateMission, AggregateGroup:
				// A Group has one Mission: both are known by the envelope.
				return Aggregate{t, ev.GroupID}
			}
			p, ok := ev.Payload.(*P)
			if !ok {
				return Aggregate{t, ""}
			}
			return Aggregate{t, key(p)}
		},
		fold: func(s *State, ev *Event) error {
			p, ok := ev.Payload.(*P)
			if !ok {
				return integrity(ev, "payload is %T", ev.Payload)
			}
			return fold(s, ev, p)
		},
	}
}

// eventKinds is the Event catalogue (COMMANDS.md section 6), by kind.
var eventKinds = indexEvents(
	missionEvents(), memberEvents(), messageEvents(), proposalEvents(), workEvents(), organizationEvents(),
)

func indexEvents(groups ...[]EventKind) map[string]*EventKind {
	m := map[string]*EventKind{}
	for _, g := range groups {
		for i := range g {
			if _, twice := m[g[i].Kind]; twice {
				panic("groups: Event kind " + g[i].Kind + " is listed twice")
			}
			m[g[i].Kind] = &g[i]
		}
	}
	return m
}

// EventKinds lists the known Event kinds in byte order.
func EventKinds() []EventKind {
	out := make([]EventKind, 0, len(eventKinds))
	for _, k := range slices.Sorted(maps.Keys(eventKinds)) {
		out = append(out, *eventKinds[k])
	}
	return out
}

// DecodeEvent turns a stored Event into its typed form. The value must have
// passed the Event shape. An unknown kind keeps only its raw payload.
func DecodeEvent(v strictjson.Value) (*Event, error) {
	ev := new(Event)
	if err := strictjson.Decode(v, &ev.Event); err != nil {
		return nil, err
	}
	row, ok := eventKinds[ev.Kind]
	if !ok {
		return ev, nil
	}
	payload, _ := v.Get("payload")
	ev.Payload = row.new()
	if err := strictjson.Decode(payload, ev.Payload); err != nil {
		return nil, fmt.Errorf("groups: payload of %s: %w", ev.Kind, err)
	}
	return ev, nil
}

// IntegrityError says that an Event cannot be the next one of this log.
type IntegrityError struct {
	EventID string
	Kind    string
	Problem string
}

func (e *IntegrityError) Error() string {
	return "groups: Event " + e.EventID + " (" + e.Kind + "): " + e.Problem
}

func integrity(ev *Event, format string, args ...any) error {
	return &IntegrityError{EventID: ev.EventID, Kind: ev.Kind, Problem: fmt.Sprintf(format, args...)}
}
