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
	Account budget.Ref      `json:"account"`
	Parent  *budget.Ref     `json:"parent,omitempty"`
	Limit   protocol.Budget `json:"limit"`
	// Usage counts what was charged to the account and to those below it;
	// Remaining is what can still be charged or reserved.
	Usage     budget.Usage `json:"usage"`
	Remaining budget.Usage `json:"remaining"`
	// Exhausted names the used up dimensions; Paused tells that running work of the
	// account is paused by them, or by those of an account above it in the Group.
	Exhausted []string `json:"exhausted"`
	Paused    bool     `json:"paused"`
}

// Budget is the Group's accounts, the Mission's first: {accounts: [...]}. A
// provisional member sees none.
func (v *Views) Budget(ctx context.Context, a *Access) ([]byte, error) {
	out := struct {
		Accounts []BudgetAccount `json:"accounts"`
	}{[]BudgetAccount{}}
	if !a.Provisional {
		ledger, err := v.ledger(ctx, a)
		if err != nil {
			return nil, err
		}
		for _, account := range ledger.Accounts() {
			out.Accounts = append(out.Accounts, budgetAccount(ledger, account))
		}
	}
	return strictjson.Marshal(out)
}

func budgetAccount(ledger *budget.Ledger, account *budget.Account) BudgetAccount {
	out := BudgetAccount{
		Account: account.Ref, Limit: budget.ToBudget(account.Limit, account.Currency),
		Usage: budget.UsageOf(account.Usage(), account.Currency), Remaining: budget.UsageOf(account.Remaining(), account.Currency),
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
func (v *Views) ledger(ctx context.Context, a *Access) (*budget.Ledger, error) {
	rows, err := v.pool.Query(ctx, `SELECT document FROM budget_accounts WHERE tree_id = $1 AND group_id = $2
		ORDER BY account_type, account_id`, a.TreeID, a.GroupID)
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
