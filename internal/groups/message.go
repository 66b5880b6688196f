package groups

import (
	"strings"
	"unicode/utf8"
	"unique"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// messagePost is the payload of message.post.
type messagePost struct {
	MessageID  string                 `json:"messageId"`
	Content    []protocol.ContentPart `json:"content"`
	Mentions   []protocol.Actor       `json:"mentions"`
	References []string               `json:"references"`
	Extensions protocol.Raw           `json:"extensions"`
}

// maxMessageText bounds the text of all parts of a Message together.
const maxMessageText = 100_000

// contentRule holds the text of all parts of a Message against its bound.
func contentRule(v strictjson.Value) *shape.Fault {
	content, _ := v.Get("content")
	total := 0
	for _, part := range content.Items() {
		if text, ok := part.Get("text"); ok {
			total += utf8.RuneCountInString(text.Str())
		}
	}
	if total > maxMessageText {
		return &shape.Fault{Path: "/content", Keyword: shape.KeywordMaxLength}
	}
	return nil
}

func messageKinds() []Kind {
	return append(amendKinds(),
		kind(Kind{
			Kind: "message.post", Capacities: []CapacityRow{{CapacityMember, ScopeMessagePost}},
			Conversation: true, Provisional: true, Limits: []string{LimitMessageRate},
			Aggregate: AggregateConversation,
			Shape: shape.Object(
				shape.Req("messageId", protocol.ShapeID),
				shape.Req("content", shapeContent),
				shape.Opt("conversationId", protocol.ShapeID),
				shape.Opt("mentions", shape.Array(protocol.ShapeActor).Max(100).Unique()),
				shape.Opt("references", shapeIDs.Max(100)),
				shape.Opt("authority", shape.False),
				shape.Opt("extensions", protocol.ShapeExtensions),
			).Rule(contentRule),
		}, plan[messagePost, noScratch]{
			Extensions: func(x *Ctx, p *messagePost, _ *noScratch) error { return x.extensionsIn(p.Extensions) },
			Authority:  func(x *Ctx, _ *messagePost, _ *noScratch) error { return x.offlineAuthority() },
			References: func(x *Ctx, p *messagePost, _ *noScratch) error {
				if _, used := x.Group.Messages[p.MessageID]; used {
					return invalid("identifier_in_use")
				}
				if err := x.knownArtifacts(p.Content); err != nil {
					return err
				}
				return x.offlineReferences()
			},
			Ownership: func(x *Ctx, _ *messagePost, _ *noScratch) error { return x.offlineOwnership() },
			Leases:    func(x *Ctx, _ *messagePost, _ *noScratch) error { return x.offlineLease() },
			Revision:  conversationRevision[messagePost, noScratch],
			State:     func(x *Ctx, _ *messagePost, _ *noScratch) error { return missionOpen(x) },
			Values:    func(x *Ctx, _ *messagePost, _ *noScratch) error { return x.offlineValues() },
			Limits: func(x *Ctx, _ *messagePost, _ *noScratch) error {
				x.rate(LimitMessageRate, x.Group.recentMessages[x.Actor()], x.limits().MessagesPerMinute)
				return nil
			},
			Budget: func(x *Ctx, _ *messagePost, _ *noScratch) error { return x.offlineBudget() },
			Emit: func(x *Ctx, p *messagePost, _ *noScratch) error {
				if err := x.offlineCharge(); err != nil {
					return err
				}
				x.emit("message.posted", &MessagePosted{
					MessageID: p.MessageID,
					Message: protocol.Message{
						MessageID: p.MessageID, MissionID: x.Group.Mission.MissionID, GroupID: x.Group.GroupID,
						ConversationID: x.Conversation.ConversationID, Author: x.Actor(), Kind: messageOriginal,
						Content: p.Content, Mentions: p.Mentions, References: p.References,
						CommittedAt: x.Now, Extensions: p.Extensions,
					},
				}, x.inConversation(true))
				return nil
			},
		}),
	)
}

// conversationRevision is what Messages revise.
func conversationRevision[P, S any](x *Ctx, _ *P, _ *S) int64 {
	return x.Group.Revision(conversationAggregate(x.Conversation.ConversationID))
}

// inConversation names the Conversation, and its WorkItem when it has one, in
// the Event's envelope.
func (x *Ctx) inConversation(primary bool) emission {
	return emission{
		Conversation: x.Conversation.ConversationID, WorkItemID: x.Conversation.PrimaryWorkItemID, Primary: primary,
	}
}

// knownArtifacts is P18 for Artifact references in a Message.
func (x *Ctx) knownArtifacts(content []protocol.ContentPart) error {
	for _, part := range content {
		if part.Type != "artifact_ref" {
			continue
		}
		known, _, err := x.artifactInTree(part.ArtifactHash)
		if err != nil {
			return err
		}
		if !known {
			return invalid("unknown_reference")
		}
	}
	return nil
}

func messageEvents() []EventKind {
	return append(amendEvents(),
		eventKind("message.posted", AggregateConversation, false,
			func(p *MessagePosted) string { return p.Message.ConversationID },
			func(s *State, ev *Event, p *MessagePosted) error {
				at, err := eventTime(ev)
				if err != nil {
					return err
				}
				record(s.recentMessages, p.Message.Author, at)
				return s.storeMessage(ev, p.Message)
			}),
	)
}

// storeMessage keeps a Message and revises its Conversation.
func (s *State) storeMessage(ev *Event, m protocol.Message) error {
	c, ok := s.Conversations[m.ConversationID]
	if !ok {
		return integrity(ev, "posts into unknown Conversation %s", m.ConversationID)
	}
	if _, twice := s.Messages[m.MessageID]; twice || m.Authority {
		return integrity(ev, "Message %s is known or claims authority", m.MessageID)
	}
	if _, ok := messageForms[m.Kind]; !ok {
		return integrity(ev, "Message %s is a %s", m.MessageID, m.Kind)
	}
	revised := *c
	revised.Revision = *ev.AggregateRevision
	s.Conversations[m.ConversationID] = &revised
	// Strings that are kept are copied: those of a decoded Event hold all of its
	// bytes, and a Group has many Messages.
	kept := &Message{
		MessageID: strings.Clone(m.MessageID), ConversationID: c.ConversationID, Author: unique.Make(m.Author).Value(),
		Kind: unique.Make(m.Kind).Value(), TargetMessageID: strings.Clone(m.TargetMessageID), Sequence: ev.Sequence,
	}
	s.Messages[kept.MessageID] = kept
	return nil
}
