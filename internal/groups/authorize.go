package groups

import (
	"slices"

	"github.com/missionweave/server/internal/protocol"
)

// authorize is the common part of P17: what a provisional member may do at
// all, the capacity, Organization policy, and the scope.
func authorize(x *Ctx) error {
	k, env := x.Kind, &x.Command.Envelope
	if x.Membership != nil && x.Membership.State == membershipStateProvisional && !x.provisionalMay() {
		return forbid("provisional")
	}
	if x.Capacity == CapacityNone {
		return forbid("role")
	}
	org := x.World.Org
	switch x.Capacity {
	case CapacityService:
		if !org.allows(env.Actor.ID, env.Kind) {
			return forbid("policy")
		}
		return nil
	case CapacityCreator:
		if org.Creators != nil && !org.Creators[env.Actor.ID] {
			return forbid("policy")
		}
		return nil
	}
	if x.Capacity == CapacityDelegate && env.Actor == x.Group.CoordinatorActor() {
		return forbid("grant_not_needed")
	}
	row, _ := k.capacity(x.Capacity)
	if row.Scope != "" && !x.holds(row.Scope) {
		return forbid("scope")
	}
	return nil
}

func (x *Ctx) holds(scope string) bool { return holdsScope(x.Membership, scope) }

func holdsScope(m *protocol.Membership, scope string) bool {
	return m != nil && slices.Contains(m.Scopes, scope)
}

// provisionalMay is the last sentence of COMMANDS.md 3.6.
func (x *Ctx) provisionalMay() bool {
	env := &x.Command.Envelope
	switch {
	case x.Kind == nil || !x.Kind.Provisional:
		return false
	case env.Kind == "membership.end":
		return x.Capacity == CapacitySelf
	case env.Kind == "message.post":
		w, ok := x.Group.WorkItemOf(env.ConversationID)
		return ok && x.Group.holdsOffer(env.Actor.ID, w.WorkItemID)
	}
	return true
}

// checkReferences is the common part of P18: what the envelope names.
func checkReferences(x *Ctx) error {
	env, g := &x.Command.Envelope, x.Group
	if env.CausedByEventID != "" {
		if g == nil || !x.sees(env.CausedByEventID) {
			return invalid("unknown_reference")
		}
	}
	if x.Kind.WorkItem != WorkItemNew && env.WorkItemID != "" {
		if g == nil {
			return invalid("unknown_reference")
		}
		w, ok := g.WorkItems[env.WorkItemID]
		if !ok || !x.seesWorkItem(w) {
			return invalid("unknown_reference")
		}
		x.Item = w
	}
	if env.ConversationID != "" {
		if g == nil {
			return invalid("unknown_reference")
		}
		c, ok := g.Conversations[env.ConversationID]
		if !ok || !x.seesConversation(c) {
			return invalid("unknown_reference")
		}
		if x.Kind.WorkItem == WorkItemRequired && x.Item.ConversationID != c.ConversationID {
			return invalid("envelope_mismatch")
		}
		x.Conversation = c
	}
	return nil
}

// sees reports that the actor may see an Event of the Group.
func (x *Ctx) sees(eventID string) bool {
	seq, sub, ok := x.Group.events.find(eventID)
	if !ok {
		return false
	}
	return x.Membership == nil || x.Group.visible(x.Membership, seq, sub, x.World.Now)
}

// seesWorkItem reports that the actor may know of a WorkItem: every member
// does, a provisional one only of those it was offered.
func (x *Ctx) seesWorkItem(w *WorkItem) bool {
	return x.Membership == nil || x.Membership.State != membershipStateProvisional ||
		x.Group.holdsOffer(x.Membership.Member.ID, w.WorkItemID)
}

func (x *Ctx) seesConversation(c *protocol.Conversation) bool {
	if x.Membership == nil || x.Membership.State != membershipStateProvisional {
		return true
	}
	return c.PrimaryWorkItemID != "" && x.Group.holdsOffer(x.Membership.Member.ID, c.PrimaryWorkItemID)
}

// checkRevision is P21.
func checkRevision(x *Ctx) error {
	want := x.Command.Envelope.ExpectedRevision
	if want == nil || x.Kind.handler.revision == nil {
		return nil
	}
	if current := x.Kind.handler.revision(x); *want != current {
		return protocol.NewError(protocol.CodeRevisionConflict, "").WithRevision(*want, current)
	}
	return nil
}

// checkState is the common part of P22.
func checkState(x *Ctx) error {
	if x.Group != nil && x.Group.Archived() && !(x.Kind.Archived && x.Capacity == CapacityService) {
		return wrongState("group_archived", x.Group.Mission.State)
	}
	return nil
}

// missionSources says in which Mission states a Command finds a row.
var missionSources = func() map[string][]string {
	m := map[string][]string{}
	for _, t := range MissionTransitions {
		m[t.Cause] = t.From
	}
	return m
}()

// missionRow is the state row of P22 for Commands on the Mission itself: the
// table has a row for this Command in the Mission's state.
func (x *Ctx) missionRow() error {
	state := x.Group.Mission.State
	switch {
	case slices.Contains(missionSources[x.Command.Envelope.Kind], state):
		return nil
	case x.Group.Terminal():
		return wrongState("mission_terminal", state)
	case state == protocol.MissionActive:
		return wrongState("mission_not_submitted", state)
	}
	return wrongState("mission_not_active", state)
}

// missionActive and missionOpen are the two state rows most kinds share.
func missionActive(x *Ctx) error {
	if x.Group.Mission.State != protocol.MissionActive {
		return wrongState("mission_not_active", x.Group.Mission.State)
	}
	return nil
}

func missionOpen(x *Ctx) error {
	if x.Group.Terminal() {
		return wrongState("mission_terminal", x.Group.Mission.State)
	}
	return nil
}
