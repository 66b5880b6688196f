package views

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

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
	c, err := v.clock(ctx, a)
	if err != nil {
		return nil, err
	}
	rows, err := v.pool.Query(ctx, `SELECT document, deadline < $4 FROM work_items
		WHERE tree_id = $1 AND group_id = $2 AND ($3::text[] IS NULL OR work_item_id = ANY($3)) ORDER BY work_item_id`,
		a.TreeID, a.GroupID, a.items(), c.now)
	if err != nil {
		return nil, fmt.Errorf("views: progress: %w", err)
	}
	type row struct {
		doc  protocol.WorkItem
		late bool
	}
	items, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (out row, err error) {
		var document []byte
		if err = r.Scan(&document, &out.late); err == nil {
			err = decode(document, &out.doc)
		}
		return out, err
	})
	if err != nil {
		return nil, fmt.Errorf("views: progress: %w", err)
	}
	p := Progress{
		MissionID: m.MissionID, State: m.State, Deadline: m.Deadline, Counts: map[string]int64{},
		WorkItems: []ProgressItem{}, Overdue: []string{},
	}
	for i := range items {
		w := &items[i].doc
		item, err := progressItem(w)
		if err != nil {
			return nil, err
		}
		now, err := c.of(ctx, w)
		if err != nil {
			return nil, err
		}
		item.Gate, item.Paused = now.Gate, now.Paused
		p.Counts[w.State]++
		p.WorkItems = append(p.WorkItems, item)
		if items[i].late && !ended(w.State) {
			p.Overdue = append(p.Overdue, w.WorkItemID)
		}
	}
	p.derive()
	return strictjson.Marshal(p)
}

func progressItem(w *protocol.WorkItem) (ProgressItem, error) {
	item := ProgressItem{
		WorkItemID: w.WorkItemID, State: w.State, DependsOn: w.Contract.DependencyWorkItemIDs,
		Waiting: []string{}, Blockers: []string{}, Deadline: w.Contract.Deadline,
	}
	if w.Progress != nil && !ended(w.State) {
		item.Blockers = w.Progress.Blockers
	}
	if w.Owner != nil {
		item.OwnerAgentID = w.Owner.AgentID
	}
	extensions, err := w.Extensions.Value()
	if err != nil {
		return item, errors.Join(errStored, err)
	}
	links := extensions.Member(groups.WorkItemLinksExtension).Member("data")
	item.ReplacesWorkItemID = links.Member("replacesWorkItemId").Str()
	item.ParentWorkItemID = links.Member("parentWorkItemId").Str()
	item.ChildMissionID = links.Member("childMissionId").Str()
	return item, nil
}

// done is work that a submission does not wait for; ended is work that nobody
// does any more.
func done(state string) bool {
	return state == protocol.WorkVerified || state == protocol.WorkCancelled
}
func ended(state string) bool { return done(state) || state == protocol.WorkFailed }

// derive fills what follows from the graph.
func (p *Progress) derive() {
	byID := map[string]*ProgressItem{}
	replaced := map[string][]*ProgressItem{}
	for i := range p.WorkItems {
		item := &p.WorkItems[i]
		byID[item.WorkItemID] = item
		if r := item.ReplacesWorkItemID; r != "" {
			replaced[r] = append(replaced[r], item)
		}
	}
	// met is the core's rule: verified, or stood in for by work for which the same
	// holds. The Authority makes no cycles; a damaged projection must not hang.
	var met func(id string, depth int) bool
	met = func(id string, depth int) bool {
		item := byID[id]
		if item == nil || depth > len(p.WorkItems) {
			return false
		}
		if item.State == protocol.WorkVerified {
			return true
		}
		for _, r := range replaced[id] {
			if met(r.WorkItemID, depth+1) {
				return true
			}
		}
		return false
	}
	p.Blocked, p.Required = []string{}, []string{}
	for i := range p.WorkItems {
		item := &p.WorkItems[i]
		lost := false
		for _, d := range item.DependsOn {
			if met(d, 0) {
				continue
			}
			item.Waiting = append(item.Waiting, d)
			other := byID[d]
			lost = lost || other != nil && len(replaced[d]) == 0 &&
				(other.State == protocol.WorkFailed || other.State == protocol.WorkCancelled)
		}
		if !done(item.State) && !met(item.WorkItemID, 0) {
			p.Required = append(p.Required, item.WorkItemID)
		}
		if !ended(item.State) && (item.State == protocol.WorkBlocked || len(item.Blockers) > 0 || item.Gate != "" || item.Paused || lost) {
			p.Blocked = append(p.Blocked, item.WorkItemID)
		}
	}
	p.CriticalPath = p.longest(byID)
}

// longest is the longest chain of unfinished WorkItems, each after those it
// depends on; of chains of one length the one that ends first by id.
func (p *Progress) longest(byID map[string]*ProgressItem) []string {
	type link struct {
		length int
		before string
	}
	const underWay = -1
	chains := map[string]link{}
	var follow func(id string) int
	follow = func(id string) int {
		item := byID[id]
		if item == nil || ended(item.State) {
			return 0
		}
		if known, ok := chains[id]; ok {
			return max(known.length, 0) // underWay only in a damaged projection
		}
		chains[id] = link{length: underWay}
		var best link
		for _, d := range item.DependsOn {
			if n := follow(d); n > best.length {
				best = link{n, d}
			}
		}
		best.length++
		chains[id] = best
		return best.length
	}
	end, most := "", 0
	for i := range p.WorkItems {
		if n := follow(p.WorkItems[i].WorkItemID); n > most {
			end, most = p.WorkItems[i].WorkItemID, n
		}
	}
	path := make([]string, most)
	for i := most - 1; i >= 0; i-- {
		path[i] = end
		end = chains[end].before
	}
	return path
}
