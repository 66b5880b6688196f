package client

import (
	"context"
	"fmt"
)

// Member is a Principal in one Group who decides from what it is told: its
// Events, the Board they add up to, and Commands under its present epochs. A
// Coordinator is written with it.
type Member struct {
	*Board
	Session *Session
	sub     *Subscription
}

// Join subscribes to a Group from its beginning, or from where the Membership
// lets the Agent see. The error is that of Subscribe.
func (s *Session) Join(ctx context.Context, groupID string) (*Member, error) {
	sub, err := s.Subscribe(ctx, groupID, 0)
	if err != nil {
		return nil, err
	}
	return &Member{Board: NewBoard(s.c.Principal(), groupID), Session: s, sub: sub}, nil
}

// Next waits for the next Event, learns it and stores the Cursor behind it.
func (m *Member) Next(ctx context.Context) (Event, error) {
	d, err := m.sub.Next(ctx)
	if err != nil {
		return Event{}, err
	}
	if err := m.Learn(d.Event); err != nil {
		return Event{}, err
	}
	return d.Event, m.Session.Acknowledge(ctx, m.GroupID, d.Event.Sequence)
}

// Until learns Events until the Board says so.
func (m *Member) Until(ctx context.Context, what string, f func(*Board) bool) error {
	for !f(m.Board) {
		if _, err := m.Next(ctx); err != nil {
			return fmt.Errorf("client: waiting until %s: %w", what, err)
		}
	}
	return nil
}

// Command sends a Command of the Group under the member's present epochs; that
// of the Coordinator lease is added while the member holds it. The Board learns
// of it only from Next.
func (m *Member) Command(ctx context.Context, cmd Command, payload any) (*Event, error) {
	cmd.GroupID, cmd.MembershipEpoch = m.GroupID, m.Epoch()
	if m.CoordinatorID == m.Me.ID {
		cmd.CoordinatorEpoch = m.CoordinatorEpoch
	}
	return m.Session.CommandAs(ctx, cmd, payload)
}

// Say posts a Message; an empty Conversation is the Group's main one.
func (m *Member) Say(ctx context.Context, conversationID, text string, mentions ...Actor) error {
	if conversationID == "" {
		conversationID = m.MainConversation
	}
	payload := map[string]any{"messageId": NewID(), "content": []ContentPart{{Type: "text", Text: text}}}
	if len(mentions) > 0 {
		payload["mentions"] = mentions
	}
	_, err := m.Command(ctx, Command{Kind: "message.post", ConversationID: conversationID}, payload)
	return err
}

// Close ends the Member's Subscription; the Session stays.
func (m *Member) Close() { m.sub.Close() }
