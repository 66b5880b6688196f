package delivery

import (
	"context"
	"slices"
	"strings"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// attend keeps the Events that the reader's attention filter wants (COMMANDS.md
// 8.6). Replayed Events are all wanted.
func (f *Feed) attend(ctx context.Context, visible []events.StoredEvent) ([]events.StoredEvent, error) {
	if f.request.Attention == nil {
		return visible, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	out := make([]events.StoredEvent, 0, len(visible)) // visible is shared with other readers
	for _, e := range visible {
		wanted := e.Sequence <= f.liveAfter
		if !wanted {
			var err error
			if wanted, err = f.wants(ctx, e); err != nil {
				return nil, err
			}
		}
		if wanted {
			out = append(out, e)
		}
	}
	return out, nil
}

// personalKinds are the prefixes of the kinds that may be personal: about a
// Membership, an offer, a lease, a decline, a revocation or an approval.
var personalKinds = []string{
	"membership.", "work.offer.", "work.started", "work.progressed", "approval.",
	"ext.missionweave.approval.", "ext.missionweave.work.", "ext.missionweave.authority.lease_expired",
	"ext.missionweave.authority.ownership_released", "ext.missionweave.authority.offers_withdrawn",
	"ext.missionweaveprotocol.core.work_execution_lease_revoked", "mission.coordinator.",
}

func (f *Feed) wants(ctx context.Context, e events.StoredEvent) (bool, error) {
	doc, err := strictjson.Parse(e.Document)
	if err != nil {
		return true, nil //nolint:nilerr // a filter that cannot read an Event does not judge it
	}
	event := doc.Root()
	if f.causedByReader(event) || f.mentioned(event) {
		return true, nil
	}
	filter := f.request.Attention
	if matches(filter, e.Kind, event) {
		return true, nil
	}
	if filter.Announcements {
		if announced, err := f.announcement(ctx, e.Kind, event); err != nil || announced {
			return announced, err
		}
	}
	return f.personal(ctx, e.Kind, event)
}

func (f *Feed) causedByReader(event strictjson.Value) bool {
	cause := event.Member("cause")
	if cause.Member("type").Str() != "command" {
		return false
	}
	return actorOf(event.Member("actor")) == f.request.Reader ||
		f.request.OwnAction != nil && f.request.OwnAction(cause.Member("id").Str())
}

func (f *Feed) mentioned(event strictjson.Value) bool {
	for _, m := range event.Member("payload").Member("message").Member("mentions").Items() {
		if actorOf(m) == f.request.Reader {
			return true
		}
	}
	return false
}

// matches tells whether every given member of a filter holds. mentionsOnly
// narrows Messages, and a Message that mentions the reader was let through
// before this.
func matches(a *protocol.Attention, kind string, event strictjson.Value) bool {
	holds := func(wanted []string, got string) bool { return wanted == nil || slices.Contains(wanted, got) }
	return holds(a.EventKinds, kind) &&
		holds(a.ConversationIDs, event.Member("conversationId").Str()) &&
		holds(a.WorkItemIDs, event.Member("workItemId").Str()) &&
		(!a.MentionsOnly || !strings.HasPrefix(kind, "message."))
}

func (f *Feed) announcement(ctx context.Context, kind string, event strictjson.Value) (bool, error) {
	if strings.HasPrefix(kind, "mission.") || strings.HasPrefix(kind, "group.") {
		return true, nil
	}
	if kind != "message.posted" {
		return false, nil
	}
	lead, err := f.source.Views.Lead(ctx, f.access)
	if err != nil {
		return false, err //nolint:wrapcheck // only retried
	}
	author := actorOf(event.Member("actor"))
	return event.Member("conversationId").Str() == lead.MainConversationID && (author == lead.Owner || author == lead.Coordinator), nil
}

// personal tells whether an Event of a personal kind names the reader, or is
// about a WorkItem that it owns.
func (f *Feed) personal(ctx context.Context, kind string, event strictjson.Value) (bool, error) {
	if !slices.ContainsFunc(personalKinds, func(prefix string) bool { return strings.HasPrefix(kind, prefix) }) {
		return false, nil
	}
	if names(event.Member("payload"), f.request.Reader.ID) {
		return true, nil
	}
	item := event.Member("workItemId").Str()
	if item == "" || strings.HasPrefix(kind, "membership.") {
		return false, nil
	}
	return f.owns(ctx, item)
}

func (f *Feed) owns(ctx context.Context, workItemID string) (bool, error) {
	return f.source.Views.Owns(ctx, f.access, workItemID) //nolint:wrapcheck // only retried
}

// names tells whether a string of a JSON value is the id.
func names(v strictjson.Value, id string) bool {
	switch v.Kind() {
	case strictjson.String:
		return v.Str() == id
	case strictjson.Array:
		for _, item := range v.Items() {
			if names(item, id) {
				return true
			}
		}
	case strictjson.Object:
		for _, member := range v.Members() {
			if names(member, id) {
				return true
			}
		}
	}
	return false
}

func actorOf(v strictjson.Value) protocol.Actor {
	return protocol.Actor{Type: v.Member("type").Str(), ID: v.Member("id").Str()}
}
