package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/missionweave/server/client"
)

// member is an Agent in the Group: its session, and what it knows.
type member struct {
	client  *client.Client
	session *client.Session
	group   *client.Subscription
	plan    *plan
	line    *timeline
	board   *board
}

// join opens the session. Nothing is known of the Group yet.
func (m *member) join(ctx context.Context) error {
	session, err := m.client.OpenSession(ctx)
	if err != nil {
		return expect("a session for "+m.name(), err)
	}
	m.session, m.board = session, newBoard()
	return nil
}

// follow subscribes from the beginning; a member sees what its Membership lets
// it see.
func (m *member) follow(ctx context.Context) error {
	group, err := m.session.Subscribe(ctx, m.plan.group, 0)
	m.group = group
	if ctx.Err() != nil {
		return nil
	}
	return expect("the subscription of "+m.name(), err)
}

// each hands over one Event after another until ctx ends.
func (m *member) each(ctx context.Context, handle func(client.Event) error) error {
	if m.group == nil { // the run ended before it began
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, ok := <-m.group.Events():
			if !ok {
				return expect("the subscription of "+m.name()+" to stay", m.group.Err())
			}
			if err := m.board.learn(d.Event); err != nil {
				return expect("the Event log of "+m.name(), err)
			}
			if err := handle(d.Event); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			if err := m.session.Acknowledge(ctx, m.plan.group, d.Event.Sequence); err != nil && ctx.Err() == nil {
				return expect("the Cursor of "+m.name(), err)
			}
		}
	}
}

// command sends a Command in the Group under the member's present epochs.
func (m *member) command(ctx context.Context, cmd client.Command, payload any) error {
	cmd.GroupID = m.plan.group
	cmd.MembershipEpoch = m.board.membershipEpoch[m.client.Principal().ID]
	_, err := m.session.Command(ctx, cmd, payload)
	if err != nil {
		what := cmd.Kind
		if name := m.plan.names[cmd.WorkItemID]; name != "" {
			what += " of " + name
		}
		return expect(fmt.Sprintf("%s by %s to be accepted", what, m.name()), err)
	}
	return nil
}

func (m *member) say(ctx context.Context, conversation, text string) error {
	return m.command(ctx, client.Command{Kind: "message.post", ConversationID: conversation}, map[string]any{
		"messageId": client.NewID(),
		"content":   []client.ContentPart{{Type: "text", Text: text}},
	})
}

func (m *member) name() string { return m.plan.cast.names[m.client.Principal().ID] }

func (m *member) me() string { return m.client.Principal().ID }

// refusedWith reports whether err is a refusal with one of the codes.
func refusedWith(err error, codes ...client.Code) bool {
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		return false
	}
	for _, code := range codes {
		if e.Code == code {
			return true
		}
	}
	return false
}

func now() string { return client.Timestamp(time.Now()) }
