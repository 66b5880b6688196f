package views

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol"
)

// Lead is who speaks for a Mission, and where.
type Lead struct {
	Owner, Coordinator protocol.Actor
	MainConversationID string
}

// Lead reads the Mission's MissionOwner and Coordinator and the Group's main
// Conversation.
func (v *Views) Lead(ctx context.Context, a *Access) (Lead, error) {
	lead := Lead{Coordinator: protocol.Actor{Type: protocol.ActorAgent}}
	var group []byte
	err := v.pool.QueryRow(ctx, `SELECT owner_type, owner_id, coordinator_id, group_document
		FROM missions WHERE tree_id = $1 AND group_id = $2`, a.TreeID, a.GroupID).
		Scan(&lead.Owner.Type, &lead.Owner.ID, &lead.Coordinator.ID, &group)
	if err != nil {
		return Lead{}, fmt.Errorf("views: lead: %w", err)
	}
	var doc protocol.Group
	if err := decode(group, &doc); err != nil {
		return Lead{}, err
	}
	lead.MainConversationID = doc.MainConversationID
	return lead, nil
}

// Owns tells whether the reader owns a WorkItem now.
func (v *Views) Owns(ctx context.Context, a *Access, workItemID string) (bool, error) {
	var owns bool
	err := v.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM work_items
		WHERE tree_id = $1 AND group_id = $2 AND work_item_id = $3 AND owner_id = $4)`,
		a.TreeID, a.GroupID, workItemID, a.Reader.ID).Scan(&owns)
	if err != nil {
		return false, fmt.Errorf("views: owner: %w", err)
	}
	return owns, nil
}

// ShowsContent tells whether the reader may read content of a hash through the
// Group. Only a provisional member is held back: to what was published for the
// WorkItems it was offered.
func (v *Views) ShowsContent(ctx context.Context, a *Access, contentHash string) (bool, error) {
	if !a.Provisional {
		return true, nil
	}
	var shows bool
	err := v.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM artifacts
		WHERE tree_id = $1 AND group_id = $2 AND content_hash = $3 AND work_item_id = ANY($4))`,
		a.TreeID, a.GroupID, contentHash, a.items()).Scan(&shows)
	if err != nil {
		return false, fmt.Errorf("views: content: %w", err)
	}
	return shows, nil
}

// AgentMember is an Agent with a Membership that has not ended.
type AgentMember struct{ AgentID, Role, State string }

// Agents lists the Group's Agents by id.
func (v *Views) Agents(ctx context.Context, a *Access) ([]AgentMember, error) {
	rows, err := v.pool.Query(ctx, `SELECT member_id, role, state FROM memberships
		WHERE tree_id = $1 AND group_id = $2 AND member_type = 'agent' AND state <> 'ended'
			AND (provisional_expires IS NULL OR state <> 'provisional' OR provisional_expires > clock_timestamp())
		ORDER BY member_id`, a.TreeID, a.GroupID)
	if err != nil {
		return nil, fmt.Errorf("views: agents: %w", err)
	}
	members, err := pgx.CollectRows(rows, pgx.RowToStructByPos[AgentMember])
	if err != nil {
		return nil, fmt.Errorf("views: agents: %w", err)
	}
	return members, nil
}
