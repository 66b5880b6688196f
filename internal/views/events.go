package views

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Log reads a Group's Events; *events.Store and *events.Hub do.
type Log interface {
	ReadEvents(ctx context.Context, groupID string, after int64, limit int) ([]events.StoredEvent, error)
}

// Visible keeps the Events that the reader may see (COMMANDS.md 3.7), in their
// order. What is kept shares memory with page.
//
// Redaction is judged by the projection as it stands now: an Event that was
// delivered before its redaction is not recalled, and one that is replayed
// after it is withheld.
func (v *Views) Visible(ctx context.Context, a *Access, page []events.StoredEvent) ([]events.StoredEvent, error) {
	hidden, err := v.redacted(ctx, a, page)
	if err != nil {
		return nil, err
	}
	return a.Shows(page, hidden), nil
}

// Shows keeps what the reader may see of a page of which the sequences in hidden
// were redacted. What it returns may be page itself and must not be changed.
func (a *Access) Shows(page []events.StoredEvent, hidden map[int64]bool) []events.StoredEvent {
	if len(page) > 0 && page[0].Sequence >= a.From && len(hidden) == 0 && !a.Provisional {
		return page
	}
	out := make([]events.StoredEvent, 0, len(page))
	for _, e := range page {
		if e.Sequence >= a.From && !hidden[e.Sequence] && (!a.Provisional || a.concerns(e)) {
			out = append(out, e)
		}
	}
	return out
}

// redacted finds the sequences of a page whose Message was redacted. Most pages
// cost no query: they hold no Message, or the reader sees everything.
func (v *Views) redacted(ctx context.Context, a *Access, page []events.StoredEvent) (map[int64]bool, error) {
	if a.Redacted {
		return nil, nil //nolint:nilnil // nothing is hidden
	}
	var sequences []int64
	for _, e := range page {
		if e.Kind == "message.posted" || e.Kind == "message.corrected" {
			sequences = append(sequences, e.Sequence)
		}
	}
	if len(sequences) == 0 {
		return nil, nil //nolint:nilnil // nothing is hidden
	}
	rows, err := v.pool.Query(ctx, `
		SELECT m.sequence FROM messages m
		LEFT JOIN messages t ON t.tree_id = m.tree_id AND t.group_id = m.group_id AND t.sequence = m.target_sequence
		WHERE m.tree_id = $1 AND m.group_id = $2 AND m.sequence = ANY($3) AND (m.redacted OR t.redacted)`,
		a.TreeID, a.GroupID, sequences)
	if err != nil {
		return nil, fmt.Errorf("views: redactions: %w", err)
	}
	hidden := map[int64]bool{}
	var sequence int64
	if _, err := pgx.ForEachRow(rows, []any{&sequence}, func() error {
		hidden[sequence] = true
		return nil
	}); err != nil {
		return nil, fmt.Errorf("views: redactions: %w", err)
	}
	return hidden, nil
}

// concerns tells whether a provisional member may see an Event: it is about the
// member itself, about a WorkItem offered to it or that WorkItem's
// Conversation, or it ends the Mission or the Group.
func (a *Access) concerns(e events.StoredEvent) bool {
	switch e.Kind {
	case "mission.cancelled", "mission.terminated", "group.archived":
		return true
	}
	doc, err := strictjson.Parse(e.Document)
	if err != nil {
		return false
	}
	if strings.HasPrefix(e.Kind, "membership.") {
		return memberOf(doc.Root()) == a.Reader
	}
	if id := doc.Root().Member("workItemId").Str(); id != "" {
		return a.offered[id] || offeredIn(doc.Root(), a.Reader.ID)
	}
	return a.own[doc.Root().Member("conversationId").Str()]
}

// offeredIn tells whether an Event carries an offer to an Agent: the Event that
// makes the first offer comes before Access can know of it.
func offeredIn(event strictjson.Value, agentID string) bool {
	for _, offer := range event.Member("payload").Member("offers").Items() {
		if offer.Member("agentId").Str() == agentID {
			return true
		}
	}
	return false
}

// memberOf is whom a membership.* Event is about.
func memberOf(event strictjson.Value) protocol.Actor {
	member := event.Member("payload").Member("membership").Member("member")
	return protocol.Actor{Type: member.Member("type").Str(), ID: member.Member("id").Str()}
}

// Ended tells whether an Event ends the reader's own Membership. It is the last
// Event a member sees, and is delivered although Enter refuses by then.
func Ended(e events.StoredEvent, reader protocol.Actor) bool {
	return e.Kind == "membership.ended" && aboutReader(e, reader)
}

// ChangesAccess tells whether an Event may change what the reader sees, so that
// it must Enter again before it is given anything later.
func ChangesAccess(e events.StoredEvent, a *Access) bool {
	if strings.HasPrefix(e.Kind, "membership.") || e.Kind == "ext.missionweave.authority.mission_owner_transferred" {
		return aboutReader(e, a.Reader) || e.Kind == "ext.missionweave.authority.mission_owner_transferred"
	}
	return a.Provisional && e.Kind == "work.offer.created"
}

func aboutReader(e events.StoredEvent, reader protocol.Actor) bool {
	doc, err := strictjson.Parse(e.Document)
	return err == nil && memberOf(doc.Root()) == reader
}
