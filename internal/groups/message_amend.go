package groups

import (
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

// messageAmend is the payload of message.correct, message.retract and
// message.redact.
type messageAmend struct {
	MessageID       string                 `json:"messageId"`
	TargetMessageID string                 `json:"targetMessageId"`
	Reason          string                 `json:"reason"`
	Content         []protocol.ContentPart `json:"content"`
	Mentions        []protocol.Actor       `json:"mentions"`
	References      []string               `json:"references"`
	PolicyRule      string                 `json:"policyRule"`
}

// amendment is what its steps hand on.
type amendment struct {
	target *Message
}

// Kinds of a Message document.
const (
	messageOriginal   = "message"
	messageCorrection = "correction"
	messageRetraction = "retraction"
	messageRedaction  = "redaction"
)

func amendKinds() []Kind {
	base := shape.Object(
		shape.Req("messageId", protocol.ShapeID),
		shape.Req("targetMessageId", protocol.ShapeID),
		shape.Req("reason", shape.Text(4000)),
	)
	author := []CapacityRow{{CapacityMember, ""}}
	return []Kind{
		amendKind("message.correct", "message.corrected", messageCorrection, author, base.Extend(
			shape.Req("content", shapeContent),
			shape.Opt("mentions", shape.Array(protocol.ShapeActor).Max(100).Unique()),
			shape.Opt("references", shapeIDs.Max(100)),
		).Rule(contentRule)),
		amendKind("message.retract", "message.retracted", messageRetraction, author, base),
		amendKind("message.redact", "message.redacted", messageRedaction, []CapacityRow{
			{CapacityMissionOwner, ScopeMessageRedact}, {CapacityCoordinator, ScopeMessageRedact}, {CapacityService, ""},
		}, base.Extend(shape.Opt("policyRule", shape.Text(200)))),
	}
}

func amendKind(name, event, form string, who []CapacityRow, profile *shape.Shape) Kind {
	redacts := form == messageRedaction
	return kind(Kind{
		Kind: name, Capacities: who, Aggregate: AggregateConversation, Shape: profile, Archived: redacts,
	}, plan[messageAmend, amendment]{
		References: func(x *Ctx, p *messageAmend, s *amendment) error {
			target, ok := x.Group.Messages[p.TargetMessageID]
			if !ok || !x.seesMessage(target) {
				return invalid("unknown_reference")
			}
			if target.Kind != messageOriginal {
				return invalid("binding_mismatch")
			}
			if _, used := x.Group.Messages[p.MessageID]; used {
				return invalid("identifier_in_use")
			}
			if x.Conversation != nil && x.Conversation.ConversationID != target.ConversationID {
				return invalid("envelope_mismatch")
			}
			x.Conversation, s.target = x.Group.Conversations[target.ConversationID], target
			return x.knownArtifacts(p.Content)
		},
		Relation: func(x *Ctx, _ *messageAmend, s *amendment) error {
			if !redacts && s.target.Author != x.Actor() {
				return forbid("not_author")
			}
			return nil
		},
		Revision: conversationRevision[messageAmend, amendment],
		State: func(x *Ctx, _ *messageAmend, s *amendment) error {
			if !redacts {
				if err := missionOpen(x); err != nil {
					return err
				}
			}
			if s.target.Redacted {
				return wrongState("redacted", "")
			}
			return nil
		},
		Emit: func(x *Ctx, p *messageAmend, s *amendment) error {
			amended := &MessageAmended{
				MessageID: p.MessageID, TargetMessageID: p.TargetMessageID, PolicyRule: p.PolicyRule,
				Message: protocol.Message{
					MessageID: p.MessageID, MissionID: x.Group.Mission.MissionID, GroupID: x.Group.GroupID,
					ConversationID: s.target.ConversationID, Author: x.Actor(), Kind: form,
					TargetMessageID: p.TargetMessageID, Content: p.Content,
					Mentions: p.Mentions, References: p.References, Reason: p.Reason, CommittedAt: x.Now,
				},
			}
			switch form {
			case messageRetraction:
				amended.Message.Content = []protocol.ContentPart{{Type: "text", Text: "[retracted]"}}
			case messageRedaction:
				amended.Message.Content = []protocol.ContentPart{{Type: "text", Text: "[redacted]"}}
				amended.PolicyLogEntryID = x.Mint()
			}
			x.emit(event, amended, x.inConversation(true))
			return nil
		},
	})
}

// seesMessage reports that the actor may see a Message or wrote it. That it was
// redacted meanwhile is said by the state, not by its absence.
func (x *Ctx) seesMessage(m *Message) bool {
	return x.Membership == nil || m.Author == x.Actor() || m.Sequence >= x.Membership.VisibilityStartSequence
}

func amendEvents() []EventKind {
	amended := func(kind string, policy bool) EventKind {
		return eventKind(kind, AggregateConversation, policy,
			func(p *MessageAmended) string { return p.Message.ConversationID }, foldAmended)
	}
	return []EventKind{
		amended("message.corrected", false), amended("message.retracted", false), amended("message.redacted", true),
	}
}

func foldAmended(s *State, ev *Event, p *MessageAmended) error {
	old, ok := s.Messages[p.TargetMessageID]
	if !ok || old.Kind != messageOriginal || old.ConversationID != p.Message.ConversationID ||
		p.Message.TargetMessageID != p.TargetMessageID {
		return integrity(ev, "amends Message %s", p.TargetMessageID)
	}
	if err := s.storeMessage(ev, p.Message); err != nil {
		return err
	}
	target := *old
	s.Messages[p.TargetMessageID] = &target
	s.amend(&target, s.Messages[p.MessageID])
	return nil
}

// amend records on a Message what an amendment makes of it.
func (s *State) amend(target, by *Message) {
	switch by.Kind {
	case messageRetraction:
		target.Retracted = true
	case messageRedaction:
		target.Redacted = true
		s.redacted[target.Sequence] = true
		for _, id := range target.Amendments {
			if m := s.Messages[id]; m.Kind == messageCorrection {
				s.redacted[m.Sequence] = true
			}
		}
	}
	target.Amendments = append(target.Amendments[:len(target.Amendments):len(target.Amendments)], by.MessageID)
}
