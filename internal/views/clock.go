package views

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Gate and pause depend on the clock and on accounts of other Groups, so no
// projection has them. The core decides both (groups.State.ClockOf); what is here
// gives it as much of a State as it looks at, and asks for nothing where the
// answer is plain.

// clock answers for the WorkItems of one Group at one moment.
type clock struct {
	v   *Views
	a   *Access
	now time.Time
	org *groups.Organization
	// exhausted tells that some account of the Group or above it is used up;
	// without one nothing is paused.
	exhausted bool
	states    map[string]*groups.State
	// approvals are the Group's execution approvals by WorkItem, nil before they
	// were asked for.
	approvals map[string][]groups.ExecutionApproval
}

func (v *Views) clock(ctx context.Context, a *Access) (*clock, error) {
	c := &clock{v: v, a: a, org: &groups.Organization{ExecutionPolicyRule: v.policy.ExecutionRule}, states: map[string]*groups.State{}}
	err := v.pool.QueryRow(ctx, `SELECT clock_timestamp(), EXISTS (SELECT FROM budget_accounts b
			WHERE b.tree_id = $1 AND b.exhausted AND b.group_id IN (`+sqlLineage+`))`, a.TreeID, a.GroupID).Scan(&c.now, &c.exhausted)
	if err != nil {
		return nil, fmt.Errorf("views: clock: %w", err)
	}
	return c, nil
}

// sqlLineage is the Group $2 of tree $1 and the Groups of the Missions above it.
const sqlLineage = `WITH RECURSIVE up AS (
		SELECT m.group_id, m.parent_mission_id FROM missions m WHERE m.tree_id = $1 AND m.group_id = $2
		UNION SELECT p.group_id, p.parent_mission_id FROM up JOIN missions p ON p.mission_id = up.parent_mission_id
	) SELECT group_id FROM up`

// state is as much of a Group as gates and pauses look at.
func (c *clock) state(ctx context.Context, groupID string) (*groups.State, error) {
	if s, ok := c.states[groupID]; ok {
		return s, nil
	}
	var mission []byte
	var parent *string
	err := c.v.pool.QueryRow(ctx, `SELECT m.document, p.group_id FROM missions m
		LEFT JOIN groups p ON p.mission_id = m.parent_mission_id
		WHERE m.tree_id = $1 AND m.group_id = $2`, c.a.TreeID, groupID).Scan(&mission, &parent)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // the core says what is missing
	}
	if err != nil {
		return nil, fmt.Errorf("views: clock: %w", err)
	}
	s := &groups.State{GroupID: groupID, Mission: &groups.Mission{}, Ledger: budget.New()}
	if err := decode(mission, &s.Mission.Mission); err != nil {
		return nil, err
	}
	if c.exhausted {
		var up budget.Upward
		if parent != nil && s.Mission.Parent != nil {
			up = budget.Upward{GroupID: *parent, Account: budget.WorkItemRef(s.Mission.Parent.WorkItemID)}
		}
		if s.Ledger, err = c.v.ledger(ctx, c.a.TreeID, groupID, up); err != nil {
			return nil, err
		}
	}
	c.states[groupID] = s
	return s, nil
}

// of tells gate and pause of a WorkItem document.
func (c *clock) of(ctx context.Context, doc *protocol.WorkItem) (groups.WorkItemClock, error) {
	queued := doc.State == protocol.WorkQueued
	if !queued && !c.exhausted {
		return groups.WorkItemClock{}, nil
	}
	s, err := c.state(ctx, c.a.GroupID)
	if err != nil || s == nil {
		return groups.WorkItemClock{}, err
	}
	w := &groups.WorkItem{WorkItem: *doc}
	if queued && s.GateOf(&doc.Contract, c.org).Required() {
		if w.Executions, err = c.executions(ctx, doc.WorkItemID); err != nil {
			return groups.WorkItemClock{}, err
		}
	}
	return s.ClockOf(w, c.org, c.now, func(id string) (*groups.State, error) { return c.state(ctx, id) })
}

// executions are a WorkItem's execution approvals in the order they came.
func (c *clock) executions(ctx context.Context, workItemID string) ([]groups.ExecutionApproval, error) {
	if c.approvals != nil {
		return c.approvals[workItemID], nil
	}
	c.approvals = map[string][]groups.ExecutionApproval{}
	rows, err := c.v.pool.Query(ctx, `SELECT work_item_id, document FROM group_documents
		WHERE tree_id = $1 AND group_id = $2 AND type = 'execution_approval'`, c.a.TreeID, c.a.GroupID)
	if err != nil {
		return nil, fmt.Errorf("views: execution approvals: %w", err)
	}
	var id string
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &document}, func() error {
		var e groups.ExecutionApproval
		if err := decode(document, &e); err != nil {
			return err
		}
		c.approvals[id] = append(c.approvals[id], e)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("views: execution approvals: %w", err)
	}
	for _, list := range c.approvals {
		slices.SortFunc(list, func(x, y groups.ExecutionApproval) int { return cmp.Compare(x.Sequence, y.Sequence) })
	}
	return c.approvals[workItemID], nil
}

// serve brings WorkItem documents up to the clock, in place.
func (v *Views) serve(ctx context.Context, a *Access, documents [][]byte) error {
	if len(documents) == 0 {
		return nil
	}
	c, err := v.clock(ctx, a)
	if err != nil {
		return err
	}
	for i, stored := range documents {
		var doc protocol.WorkItem
		if err := decode(stored, &doc); err != nil {
			return err
		}
		now, err := c.of(ctx, &doc)
		if err != nil {
			return fmt.Errorf("views: WorkItem %s: %w", doc.WorkItemID, err)
		}
		if now == (groups.WorkItemClock{}) {
			continue
		}
		if doc, err = groups.WithClock(doc, now); err != nil {
			return errors.Join(errStored, err)
		}
		if documents[i], err = strictjson.Marshal(doc); err != nil {
			return err //nolint:wrapcheck // cannot happen for a document of ours
		}
	}
	return nil
}
