package views

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// Progress is derived from the WorkItem graph (PROTOCOL.md 7.3); there is no
// percentage that anybody states.
type Progress struct {
	MissionID string           `json:"missionId"`
	State     string           `json:"state"`
	Deadline  string           `json:"deadline"`
	Counts    map[string]int64 `json:"counts"`
	WorkItems []ProgressItem   `json:"workItems"`
	// CriticalPath is the longest chain of unfinished WorkItems by dependency.
	CriticalPath []string `json:"criticalPath"`
	// Blocked are unfinished WorkItems that cannot go on: blocked ones, those with
	// blockers or a closed gate, paused ones, and those that need one that failed.
	Blocked []string `json:"blocked"`
	// Overdue are unfinished WorkItems past their contract's deadline.
	Overdue []string `json:"overdue"`
	// Required tells for a submission what is still open: the WorkItems that are
	// neither verified nor cancelled nor stood in for.
	Required []string `json:"required"`
}

// ProgressItem is a WorkItem as a node of the graph.
type ProgressItem struct {
	WorkItemID string   `json:"workItemId"`
	State      string   `json:"state"`
	DependsOn  []string `json:"dependsOn"`
	// Waiting lists the dependencies that are not verified yet, nor stood in for by
	// verified work.
	Waiting  []string `json:"waiting"`
	Blockers []string `json:"blockers"`
	Deadline string   `json:"deadline"`
	// Gate and Paused say why work that could start or go on does not.
	Gate   string `json:"gate,omitempty"`
	Paused bool   `json:"paused,omitempty"`
	// ReplacesWorkItemID is the WorkItem that this one stands in for.
	ReplacesWorkItemID string `json:"replacesWorkItemId,omitempty"`
	ParentWorkItemID   string `json:"parentWorkItemId,omitempty"`
	ChildMissionID     string `json:"childMissionId,omitempty"`
	OwnerAgentID       string `json:"ownerAgentId,omitempty"`
}

// Progress derives the Mission's progress as it stands now.
func (v *Views) Progress(ctx context.Context, a *Access) ([]byte, error) {
	stored, err := v.Mission(ctx, a)
	if err != nil {
		return nil, err
	}
	var m protocol.Mission
	if err := decode(stored, &m); err != nil {
		return nil, err
	}
	rows, err := v.pool.Query(ctx, `SELECT document, deadline < clock_timestamp() FROM work_items
		WHERE tree_id = $1 AND group_id = $2 AND ($3::text[] IS NULL OR work_item_id = ANY($3)) ORDER BY work_item_id`,
		a.TreeID, a.GroupID, a.items())
	if err != nil {
		return nil, fmt.Errorf("views: progress: %w", err)
	}
	p := Progress{
		MissionID: m.MissionID, State: m.State, Deadline: m.Deadline, Counts: map[string]int64{},
		WorkItems: []ProgressItem{}, Overdue: []string{},
	}
	var document []byte
	var late bool
	_, err = pgx.ForEachRow(rows, []any{&document, &late}, func() error {
		var w protocol.WorkItem
		if err := decode(document, &w); err != nil {
			return err
		}
		item := ProgressItem{
			WorkItemID: w.WorkItemID, State: w.State, DependsOn: w.Contract.DependencyWorkItemIDs,
			Waiting: []string{}, Blockers: []string{}, Deadline: w.Contract.Deadline,
		}
		if w.Progress != nil {
			item.Blockers = w.Progress.Blockers
		}
		p.Counts[w.State]++
		p.WorkItems = append(p.WorkItems, item)
		if late && !finished(w.State) {
			p.Overdue = append(p.Overdue, w.WorkItemID)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("views: progress: %w", err)
	}
	p.derive()
	return strictjson.Marshal(p)
}

func finished(state string) bool { return state == "verified" || state == "cancelled" }

// derive fills what follows from the graph. Dependencies are acyclic (the
// Authority refuses cycles); the depth bound only keeps a damaged projection
// from recursing for ever.
func (p *Progress) derive() {
	byID := map[string]*ProgressItem{}
	for i := range p.WorkItems {
		byID[p.WorkItems[i].WorkItemID] = &p.WorkItems[i]
	}
	for i := range p.WorkItems {
		for _, d := range p.WorkItems[i].DependsOn {
			if other := byID[d]; other == nil || other.State != "verified" {
				p.WorkItems[i].Waiting = append(p.WorkItems[i].Waiting, d)
			}
		}
	}
	chains := map[string][]string{}
	var chain func(id string, depth int) []string
	chain = func(id string, depth int) []string {
		if known, ok := chains[id]; ok {
			return known
		}
		item := byID[id]
		if item == nil || finished(item.State) || depth > len(p.WorkItems) {
			return nil
		}
		var longest []string
		for _, d := range item.DependsOn {
			if c := chain(d, depth+1); len(c) > len(longest) {
				longest = c
			}
		}
		chains[id] = append(slices.Clone(longest), id)
		return chains[id]
	}
	p.CriticalPath = []string{}
	for _, item := range p.WorkItems {
		if c := chain(item.WorkItemID, 0); len(c) > len(p.CriticalPath) {
			p.CriticalPath = c
		}
	}
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
