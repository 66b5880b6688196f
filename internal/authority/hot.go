package authority

import (
	"container/list"

	"github.com/missionweave/server/internal/events"
)

// hotStates keeps the states a lane used last, bounded by their number and by
// the Events they were folded from. A state in it equals the log up to its head.
type hotStates struct {
	mostGroups int
	mostEvents int64
	events     int64
	order      *list.List // of *hotState, most recently used first
	byID       map[string]*list.Element
}

type hotState struct {
	group  *events.Group
	weight int64
}

func newHotStates(groups int, events int64) *hotStates {
	return &hotStates{mostGroups: groups, mostEvents: events, order: list.New(), byID: map[string]*list.Element{}}
}

func (h *hotStates) get(groupID string) (*events.Group, bool) {
	e, ok := h.byID[groupID]
	if !ok {
		return nil, false
	}
	h.order.MoveToFront(e)
	return e.Value.(*hotState).group, true
}

// put keeps a state and returns how many others had to go for it.
func (h *hotStates) put(g *events.Group) (evicted int) {
	if e, ok := h.byID[g.GroupID]; ok {
		h.order.MoveToFront(e)
		s := e.Value.(*hotState)
		s.group = g
		h.weigh(s)
	} else {
		s := &hotState{group: g}
		h.byID[g.GroupID] = h.order.PushFront(s)
		h.weigh(s)
	}
	for (len(h.byID) > h.mostGroups || h.events > h.mostEvents) && len(h.byID) > 1 {
		h.remove(h.order.Back().Value.(*hotState).group.GroupID)
		evicted++
	}
	return evicted
}

func (h *hotStates) weigh(s *hotState) {
	h.events += s.group.State.Head - s.weight
	s.weight = s.group.State.Head
}

func (h *hotStates) remove(groupID string) {
	e, ok := h.byID[groupID]
	if !ok {
		return
	}
	h.events -= e.Value.(*hotState).weight
	h.order.Remove(e)
	delete(h.byID, groupID)
}
