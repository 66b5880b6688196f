package views

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// BudgetAccount is an account of the ledger (COMMANDS.md 7.1) as it stands, in
// the units of the protocol.
type BudgetAccount struct {
	Account budget.Ref `json:"account"`
	// GroupID is the Group whose ledger keeps the account. A child Mission that the
	// reader may not see stands in its parent's, without what is below it.
	GroupID string `json:"groupId"`
	// Parent is absent for the first account alone.
	Parent *budget.Ref     `json:"parent,omitempty"`
	Limit  protocol.Budget `json:"limit"`
	// Usage counts what was charged to the account and to those below it;
	// Remaining is what can still be charged or reserved. Claim is what the account
	// takes from the one above: its limit, or what is left of it after its end.
	Usage     budget.Usage `json:"usage"`
	Claim     budget.Usage `json:"claim"`
	Remaining budget.Usage `json:"remaining"`
	Finished  bool         `json:"finished"`
	// Exhausted names the used up dimensions; Paused tells that running work of the
	// account is paused by them, or by those of an account above it.
	Exhausted []string `json:"exhausted"`
	Paused    bool     `json:"paused"`
}

// Budget is the budget tree from the Group's Mission down, child Missions in
// Groups that the reader may see included: {accounts: [...]}, each account after
// its parent. A provisional member sees none.
func (v *Views) Budget(ctx context.Context, a *Access) ([]byte, error) {
	out := struct {
		Accounts []BudgetAccount `json:"accounts"`
	}{[]BudgetAccount{}}
	if a.Provisional {
		return strictjson.Marshal(out)
	}
	groups, err := v.budgetGroups(ctx, a)
	if err != nil {
		return nil, err
	}
	above, err := v.pausedAbove(ctx, a)
	if err != nil {
		return nil, err
	}
	// A child's own ledger says more of it than the account that its parent keeps.
	ledgers := map[budget.Ref]*budget.Ledger{}
	for i := range groups {
		g := &groups[i]
		if g.ledger, err = v.ledger(ctx, a.TreeID, g.groupID, budget.Upward{}); err != nil {
			return nil, err
		}
		ledgers[budget.MissionRef(g.missionID)] = g.ledger
	}
	paused := map[budget.Ref]bool{}
	for _, g := range groups {
		for _, account := range g.ledger.Accounts() {
			if own := ledgers[account.Ref]; own != nil && own != g.ledger {
				continue
			}
			row := budgetAccount(g.ledger, account)
			row.GroupID = g.groupID
			if account.Parent() == nil && g.parent != nil {
				row.Parent = g.parent
				row.Paused = row.Paused || paused[*g.parent]
			}
			if row.Parent != nil {
				row.Paused = row.Paused || paused[*row.Parent]
			}
			row.Paused = row.Paused || above
			paused[account.Ref] = row.Paused
			out.Accounts = append(out.Accounts, row)
		}
	}
	return strictjson.Marshal(out)
}

// budgetGroup is a Group whose ledger is part of a tree.
type budgetGroup struct {
	groupID, missionID string
	parent             *budget.Ref
	ledger             *budget.Ledger
}

// budgetGroups are the Group and those below it that the reader may see, parents
// first.
func (v *Views) budgetGroups(ctx context.Context, a *Access) ([]budgetGroup, error) {
	rows, err := v.pool.Query(ctx, `
		WITH RECURSIVE down AS (
			SELECT m.group_id, m.mission_id, NULL::text COLLATE "C" AS item, 0 AS depth FROM missions m WHERE m.tree_id = $1 AND m.group_id = $2
		UNION ALL
			SELECT c.group_id, c.mission_id, c.parent_work_item_id, down.depth + 1
			FROM down JOIN missions c ON c.parent_mission_id = down.mission_id
			JOIN groups g ON g.tree_id = c.tree_id AND g.group_id = c.group_id
			JOIN missions root ON root.mission_id = g.root_mission_id
			WHERE $5 OR root.owner_type = $3 AND root.owner_id = $4 OR EXISTS (SELECT FROM memberships b
				WHERE b.tree_id = c.tree_id AND b.group_id = c.group_id AND b.member_type = $3 AND b.member_id = $4 AND b.state = 'active')
		) SELECT group_id, mission_id, item FROM down ORDER BY depth, group_id`,
		a.TreeID, a.GroupID, a.Reader.Type, a.Reader.ID, a.Reader.Type == protocol.ActorService)
	if err != nil {
		return nil, fmt.Errorf("views: budget: %w", err)
	}
	var out []budgetGroup
	var g budgetGroup
	var item *string
	_, err = pgx.ForEachRow(rows, []any{&g.groupID, &g.missionID, &item}, func() error {
		g.parent = nil
		if item != nil {
			ref := budget.WorkItemRef(*item)
			g.parent = &ref
		}
		out = append(out, g)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("views: budget: %w", err)
	}
	return out, nil
}

// pausedAbove tells whether an account of a Mission above pauses everything here.
func (v *Views) pausedAbove(ctx context.Context, a *Access) (bool, error) {
	c, err := v.clock(ctx, a)
	if err != nil || !c.exhausted {
		return false, err
	}
	s, err := c.state(ctx, a.GroupID)
	for err == nil && s != nil {
		up, ok := s.Ledger.Up()
		if !ok {
			return false, nil
		}
		if s, err = c.state(ctx, up.GroupID); err == nil && s != nil {
			if account, _ := s.Ledger.Paused(up.Account); account != nil {
				return true, nil
			}
		}
	}
	return false, err
}

func budgetAccount(ledger *budget.Ledger, account *budget.Account) BudgetAccount {
	out := BudgetAccount{
		Account: account.Ref, Limit: budget.ToBudget(account.Limit, account.Currency),
		Usage: budget.UsageOf(account.Usage(), account.Currency), Remaining: budget.UsageOf(account.Remaining(), account.Currency),
		Claim: budget.UsageOf(account.Claim(), account.Currency), Finished: account.Finished,
		Exhausted: account.Exhausted().Names(),
	}
	if out.Exhausted == nil {
		out.Exhausted = []string{}
	}
	if parent := account.Parent(); parent != nil {
		out.Parent = &parent.Ref
	}
	paused, _ := ledger.Paused(account.Ref)
	out.Paused = paused != nil
	return out
}

// ledger makes the Group's ledger from its rows, which have no order of their
// own: an account is opened once its parent is.
func (v *Views) ledger(ctx context.Context, tree int64, groupID string, up budget.Upward) (*budget.Ledger, error) {
	rows, err := v.pool.Query(ctx, `SELECT document FROM budget_accounts WHERE tree_id = $1 AND group_id = $2
		ORDER BY account_type, account_id`, tree, groupID)
	if err != nil {
		return nil, fmt.Errorf("views: budget: %w", err)
	}
	stored, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return nil, fmt.Errorf("views: budget: %w", err)
	}
	children := map[budget.Ref][]budget.Entry{}
	var ordered []budget.Entry
	for _, document := range stored {
		var e budget.Entry
		if err := decode(document, &e); err != nil {
			return nil, err
		}
		if e.Parent == nil {
			if up.GroupID != "" {
				e.Up = &budget.UpwardEntry{GroupID: up.GroupID, Account: up.Account}
			}
			ordered = append(ordered, e)
		} else {
			children[*e.Parent] = append(children[*e.Parent], e)
		}
	}
	for i := 0; i < len(ordered); i++ {
		ordered = append(ordered, children[ordered[i].Account]...)
	}
	ledger, err := budget.Load(ordered)
	if err != nil || len(ordered) != len(stored) {
		return nil, errors.Join(errStored, err)
	}
	return ledger, nil
}
