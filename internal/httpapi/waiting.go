package httpapi

import (
	"context"
	"net/http"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
)

// Presence is who knows what Agents last said of themselves.
type Presence interface {
	Of(ctx context.Context, agentIDs []string) (map[string]protocol.PresenceRecord, error)
}

// Near knows it of the Agents that are connected to this process, and before
// anybody else does.
type Near interface {
	Presence(agentID string) (protocol.PresenceRecord, bool)
}

// listApprovals lists what waits for the caller. What is decided already stands
// in the log.
func (a *API) listApprovals(c *httpkit.Call) error {
	page, err := pageOf(c, 3)
	if err != nil {
		return err
	}
	if _, _, err := c.Query.OneOf("state", "pending"); err != nil {
		return err //nolint:wrapcheck // a refusal
	}
	return send(c)(a.Views.Approvals(c.R.Context(), c.Caller.Principal, page))
}

func (a *API) listAttention(c *httpkit.Call) error {
	page, err := pageOf(c, 3)
	if err != nil {
		return err
	}
	return send(c)(a.Views.Attention(c.R.Context(), c.Caller.Principal, page))
}

// memberPresence is one Agent of a Group; Presence is absent when it said nothing
// that still holds.
type memberPresence struct {
	AgentID  string                   `json:"agentId"`
	Role     string                   `json:"role"`
	State    string                   `json:"state"`
	Presence *protocol.PresenceRecord `json:"presence,omitempty"`
}

// getPresence answers the Coordinator and the MissionOwner of a Group (COMMANDS.md
// 8.9); what another Group's work occupies an Agent with is not in a record.
func (a *API) getPresence(c *httpkit.Call) error {
	access, err := a.enter(c)
	if err != nil {
		return err
	}
	if !access.Manages {
		return protocol.NewError(protocol.CodeAuthForbidden, "role")
	}
	members, err := a.Views.Agents(c.R.Context(), access)
	if err != nil {
		return internal(err)
	}
	ids := make([]string, len(members))
	for i, m := range members {
		ids[i] = m.AgentID
	}
	known := map[string]protocol.PresenceRecord{}
	if a.Presence != nil {
		if known, err = a.Presence.Of(c.R.Context(), ids); err != nil {
			return internal(err)
		}
	}
	out := struct {
		GroupID string           `json:"groupId"`
		Members []memberPresence `json:"members"`
	}{access.GroupID, make([]memberPresence, len(members))}
	for i, m := range members {
		out.Members[i] = memberPresence{AgentID: m.AgentID, Role: m.Role, State: m.State}
		record, ok := known[m.AgentID]
		if a.Near != nil {
			if near, here := a.Near.Presence(m.AgentID); here {
				record, ok = near, true
			}
		}
		if ok {
			out.Members[i].Presence = &record
		}
	}
	return c.SendValue(http.StatusOK, out)
}

// getSnapshot answers with the signed snapshot of an archived Group, and a
// service that may archive with the draft of one that is not. To everybody else
// such a Group has none.
func (a *API) getSnapshot(c *httpkit.Call) error {
	access, err := a.enter(c)
	if err != nil {
		return err
	}
	document, err := a.Views.Snapshot(c.R.Context(), access)
	if err != nil {
		return internal(err)
	}
	if document != nil {
		return c.Send(http.StatusOK, document)
	}
	if c.Caller.Principal.Type != protocol.ActorService || !a.Views.MayReadGroups(c.Caller.Principal) {
		return httpkit.NotFound()
	}
	draft, err := a.Store.DraftSnapshot(c.R.Context(), access.GroupID, c.Caller.Principal)
	if err != nil {
		return internal(err)
	}
	return c.SendValue(http.StatusOK, draft)
}
