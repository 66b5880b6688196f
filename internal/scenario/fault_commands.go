package scenario

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"slices"

	"github.com/missionweave/server/client"
)

// posted is an answer to a Command as it came.
type posted struct {
	status   int
	replayed bool
	body     []byte
}

// postRaw posts signed bytes once, past the client library: what it would make of
// the answer is not the point.
func (s *scene) postRaw(ctx context.Context, signed []byte) (posted, error) {
	roots, err := s.stack.RootCAs()
	if err != nil {
		return posted{}, err //nolint:wrapcheck // says what it is about
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.stack.AuthorityURL+"/v1/commands", bytes.NewReader(signed))
	if err != nil {
		return posted{}, err //nolint:wrapcheck // says what it is about
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return posted{}, err //nolint:wrapcheck // says what it is about
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return posted{res.StatusCode, res.Header.Get("Idempotency-Replayed") == "true", body}, err //nolint:wrapcheck // says what it is about
}

// code is that of a refusal, "" for anything else.
func (r posted) code() client.Code {
	var e struct {
		Code client.Code `json:"code"`
	}
	_ = json.Unmarshal(r.body, &e)
	return e.Code
}

// copies is how many times one Command is sent at once.
const copies = 6

// duplicateCommands sends a Command again, at once and later, and other Commands
// under its name.
func duplicateCommands(ctx context.Context, s *scene, t turn) {
	m := t.mission
	conversation := read(m.owner, func(b *client.Board) string { return b.MainConversation })
	say := func(text string) map[string]any {
		return map[string]any{"messageId": client.NewID(), "content": []client.ContentPart{{Type: "text", Text: text}}}
	}
	cmd := client.Command{
		Kind: "message.post", GroupID: m.group, ActionID: client.NewID(), ConversationID: conversation,
		MembershipEpoch: read(m.owner, (*client.Board).Epoch),
	}
	signed, err := s.owner.c.Sign(cmd, say("Once."))
	s.must("sign", err)
	answers := make(chan posted, copies)
	failures := make(chan error, copies)
	for range copies {
		go func() {
			r, err := s.postRaw(ctx, signed.Bytes)
			answers <- r
			failures <- err
		}()
	}
	var all []posted
	for range copies {
		s.must("post", <-failures)
		all = append(all, <-answers)
	}
	later, err := s.postRaw(ctx, signed.Bytes)
	s.must("post again", err)
	created, equal, replayed := 0, true, 0
	for _, r := range append(all, later) {
		if r.status == http.StatusCreated && !r.replayed {
			created++
		}
		if r.status == http.StatusOK && r.replayed {
			replayed++
		}
		equal = equal && bytes.Equal(r.body, later.body)
	}
	s.check("of identical Commands that arrive at once one is accepted, and the others are its replays", created == 1 && replayed == copies,
		"%d × 201, %d × 200 with Idempotency-Replayed", created, replayed)
	s.check("a Command that is sent again gets its first receipt, byte for byte", equal && len(later.body) > 0, "%d receipts of %d bytes, all equal", copies+1, len(later.body))

	other, err := s.owner.c.Sign(cmd, say("Twice."))
	s.must("sign another", err)
	collision, err := s.postRaw(ctx, other.Bytes)
	s.must("post another", err)
	s.check("another Command under the same Action ID is refused", collision.status == http.StatusConflict && collision.code() == "ACTION_ID_COLLISION",
		"status %d, %s", collision.status, collision.code())
	kind, err := s.owner.c.Sign(client.Command{Kind: "mission.cancel", GroupID: m.group, ActionID: cmd.ActionID, MembershipEpoch: cmd.MembershipEpoch},
		map[string]any{"reason": "Under a name that is taken."})
	s.must("sign one of another kind", err)
	collision, err = s.postRaw(ctx, kind.Bytes)
	s.must("post one of another kind", err)
	s.check("so is one of another kind, which would end the Mission", collision.status == http.StatusConflict && collision.code() == "ACTION_ID_COLLISION",
		"status %d, %s", collision.status, collision.code())
	after, err := s.postRaw(ctx, signed.Bytes)
	s.must("post the first once more", err)
	s.check("a collision leaves the first receipt as it was", bytes.Equal(after.body, later.body) && after.replayed, "the same %d bytes after both collisions", len(after.body))

	// The same over WebSocket: the Coordinator's session.
	name := client.NewID()
	over := func(text string) (*client.Event, error) {
		return m.lead.session.Command(ctx, client.Command{
			Kind: "message.post", GroupID: m.group, ActionID: name, ConversationID: conversation, IssuedAt: stamp(0),
			MembershipEpoch: read(m.lead, (*client.Board).Epoch), CoordinatorEpoch: read(m.lead, func(b *client.Board) int64 { return b.CoordinatorEpoch }),
		}, say(text))
	}
	e, err := over("Once over WebSocket.")
	s.must("post over WebSocket", err)
	_, err = over("Twice over WebSocket.")
	s.refused("a collision over WebSocket is refused alike", err, "ACTION_ID_COLLISION")

	m.owner.awaitThat(ctx, s, "the Messages arrive", func(b *client.Board) bool { return b.Head >= e.Sequence })
	n := map[string]int{}
	for _, x := range m.owner.events("message.posted", "mission.cancelled") {
		n[x.Cause.ID]++
	}
	messages, err := s.owner.c.Messages(ctx, m.group, conversation)
	s.must("read the Messages", err)
	texts := map[string]int{}
	for _, x := range messages {
		for _, p := range x.Content {
			texts[p.Text]++
		}
	}
	state, err := s.owner.c.Mission(ctx, m.id)
	s.must("read the Mission", err)
	s.check("duplicates and collisions leave one Event and one Message for each Action ID", n[cmd.ActionID] == 1 && n[name] == 1 &&
		texts["Once."] == 1 && texts["Twice."] == 0 && texts["Once over WebSocket."] == 1 && texts["Twice over WebSocket."] == 0 && state.State == "active",
		"read back: 1 and 1 Event, the first texts only; %s is %s", m.name, state.State)
}

// present tells whether a Group has a WorkItem, as the server says.
func (s *scene) present(ctx context.Context, m *mission, id string) bool {
	items, err := s.owner.c.WorkItems(ctx, m.group)
	s.must("read the WorkItems", err)
	return slices.ContainsFunc(items, func(w client.WorkItem) bool { return w.WorkItemID == id })
}
