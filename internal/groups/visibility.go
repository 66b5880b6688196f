package groups

import (
	"time"

	"github.com/missionweave/server/internal/protocol"
)

// Visible reports that a Principal may see an Event (COMMANDS.md 3.7). A
// service sees what Organization policy grants it, which is not decided here.
// now only decides whether a provisional Membership has lapsed.
func Visible(s *State, p protocol.Actor, ev *Event, now time.Time) bool {
	m, ok := s.Member(p)
	if !ok {
		return false
	}
	if end, ok := ev.Payload.(*MembershipEnded); ok && end.Membership.Member == p && m.State == membershipStateEnded {
		// The last Event a member sees is the one that ends its Membership.
		return end.Membership.MembershipEpoch == m.MembershipEpoch
	}
	return s.visible(m, ev.Sequence, subjectOf(ev), now)
}

func (s *State) visible(m *protocol.Membership, sequence int64, sub subject, now time.Time) bool {
	if membershipEnded(m, now) || sequence < max(m.VisibilityStartSequence, 1) {
		return false
	}
	if s.redacted[sequence] && m.Role != roleMissionOwner && m.Role != roleCoordinator {
		return false
	}
	if m.State != membershipStateProvisional {
		return true
	}
	switch {
	case sub.Member != "":
		return sub.Member == membershipAggregate(m.Member).ID
	case sub.Kind != "":
		return true
	case sub.WorkItemID != "":
		return s.holdsOffer(m.Member.ID, sub.WorkItemID)
	case sub.ConversationID != "":
		c, ok := s.Conversations[sub.ConversationID]
		return ok && c.PrimaryWorkItemID != "" && s.holdsOffer(m.Member.ID, c.PrimaryWorkItemID)
	}
	return false
}
