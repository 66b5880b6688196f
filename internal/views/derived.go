package views

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// errStored says that stored bytes are not what was stored.
var errStored = errors.New("views: a stored document cannot be read")

// messageOf takes the Message document out of the Event that committed it.
func messageOf(event []byte) ([]byte, error) {
	doc, err := strictjson.Parse(event)
	if err != nil {
		return nil, errors.Join(errStored, err)
	}
	message, ok := doc.Root().Member("payload").Get("message")
	if !ok {
		return nil, errStored
	}
	return message.Raw(), nil
}

// presentState shows leases as the database's clock says now: an active one
// whose expiry has passed is expired, although no Event says so yet.
func (v *Views) presentState(ctx context.Context, leases [][]byte) error {
	if len(leases) == 0 {
		return nil
	}
	var now time.Time
	if err := v.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return fmt.Errorf("views: clock: %w", err)
	}
	for i, stored := range leases {
		var l protocol.Lease
		if err := decode(stored, &l); err != nil {
			return err
		}
		end, err := lexical.ParseTimestamp(l.ExpiresAt)
		if err != nil {
			return errors.Join(errStored, err)
		}
		if l.State != "active" || lexical.InstantOf(now).Before(end) {
			continue
		}
		l.State, l.ClosedAt, l.ClosureReason = "expired", l.ExpiresAt, "expired"
		if leases[i], err = strictjson.Marshal(l); err != nil {
			return err //nolint:wrapcheck // cannot happen for a document of ours
		}
	}
	return nil
}

func decode(b []byte, dst any) error {
	doc, err := strictjson.Parse(b)
	if err != nil {
		return errors.Join(errStored, err)
	}
	if err := strictjson.Decode(doc.Root(), dst); err != nil {
		return errors.Join(errStored, err)
	}
	return nil
}

// TreeNode is one Mission of a tree.
type TreeNode struct {
	MissionID        string `json:"missionId"`
	GroupID          string `json:"groupId"`
	State            string `json:"state"`
	ParentMissionID  string `json:"parentMissionId,omitempty"`
	ParentWorkItemID string `json:"parentWorkItemId,omitempty"`
}

// Tree is the Missions of the reader's Mission tree that it may see, the root
// first: {missions: [...]}.
func (v *Views) Tree(ctx context.Context, a *Access) ([]byte, error) {
	rows, err := v.pool.Query(ctx, `
		SELECT o.mission_id, o.group_id, o.state, coalesce(o.parent_mission_id, ''), coalesce(o.parent_work_item_id, '')
		FROM groups g JOIN groups r ON r.tree_id = g.tree_id AND r.root_mission_id = g.root_mission_id
		JOIN missions o ON o.tree_id = r.tree_id AND o.group_id = r.group_id
		JOIN missions root ON root.mission_id = g.root_mission_id
		LEFT JOIN memberships m ON m.tree_id = o.tree_id AND m.group_id = o.group_id AND m.member_type = $2 AND m.member_id = $3
		WHERE g.group_id = $1 AND ($4 OR m.state = 'active' OR root.owner_type = $2 AND root.owner_id = $3 OR o.group_id = $1)
		ORDER BY o.created_at, o.mission_id`,
		a.GroupID, a.Reader.Type, a.Reader.ID, a.Reader.Type == protocol.ActorService)
	if err != nil {
		return nil, fmt.Errorf("views: tree: %w", err)
	}
	nodes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[TreeNode])
	if err != nil {
		return nil, fmt.Errorf("views: tree: %w", err)
	}
	return strictjson.Marshal(struct {
		Missions []TreeNode `json:"missions"`
	}{nodes})
}

// canonical rewrites documents that the database made into canonical JSON.
func canonical(documents [][]byte) error {
	for i, b := range documents {
		doc, err := strictjson.Parse(b)
		if err != nil {
			return errors.Join(errStored, err)
		}
		if documents[i], err = doc.Root().AppendJCS(nil); err != nil {
			return errors.Join(errStored, err)
		}
	}
	return nil
}
