package groups

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// Work Contract rules against state (COMMANDS.md 3.3, 5.4): what a Mission
// lets a contract promise.

// contractValues are the P23 rows that every new or revised contract must
// pass, in order; version is the only contractVersion it may have, and cycle
// looks for a dependency cycle.
func (x *Ctx) contractValues(c *protocol.WorkContract, version int64, cycle func() error) error {
	m := x.Group.Mission
	switch {
	case c.ContractVersion != version:
		return invalid("contract_version")
	case !leases.Before(x.World.Now, c.Deadline), leases.Compare(c.Deadline, m.Deadline) > 0:
		return invalid("deadline")
	}
	if err := cycle(); err != nil {
		return err
	}
	switch {
	case !permitted(m.Permissions, c.AllowedResources):
		return forbid("permission")
	case !underCeiling(m.AllowedCapabilities, c.RequiredCapabilities):
		return forbid("capability")
	}
	return x.foreignBudget(c.Budget)
}

// foreignMoney is the currency row of P23: money in another currency than the
// Mission tree's. A child Mission without money has no currency of its own,
// whatever its budget names, so the nearest Mission above it with money says
// what the tree counts in; else two currencies could meet in one account.
func (x *Ctx) foreignMoney(amount int64, currency string) error {
	g := x.Group
	for g.IsChild() && g.Ledger.Root().Limit[budget.Financial] == 0 {
		parent, err := x.parent(g)
		if err != nil {
			return err
		}
		g = parent
	}
	if budget.CurrencyMismatch(amount, currency, g.Ledger.Currency()) {
		return invalid("currency_mismatch")
	}
	return nil
}

// foreignBudget is foreignMoney of a budget; nothing is looked up for one
// without money.
func (x *Ctx) foreignBudget(b protocol.Budget) error {
	amount := budget.FromBudget(b)[budget.Financial]
	if amount == 0 {
		return nil
	}
	return x.foreignMoney(amount, b.Currency)
}

// budgetCurrency reports that a budget names money in another currency than
// tree.
func budgetCurrency(b protocol.Budget, tree string) bool {
	return budget.CurrencyMismatch(budget.FromBudget(b)[budget.Financial], b.Currency, tree)
}

// permitted reports that every operation wanted is allowed by a grant on its
// resource. A grant's resource may end in * and then matches a prefix; a grant
// with constraints covers only what keeps them.
func permitted(grants, wanted []protocol.ResourceGrant) bool {
	for _, w := range wanted {
		for _, op := range w.Operations {
			if !slices.ContainsFunc(grants, func(g protocol.ResourceGrant) bool {
				return covers(g.Resource, w.Resource) && slices.Contains(g.Operations, op) &&
					(len(g.Constraints) == 0 || keeps(w.Constraints, g.Constraints))
			}) {
				return false
			}
		}
	}
	return true
}

func covers(pattern, resource string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(resource, prefix)
	}
	return pattern == resource
}

// keeps reports that constraints repeat every member of the ones above them.
func keeps(constraints, above protocol.Raw) bool {
	want, err := above.Value()
	if err != nil {
		return false
	}
	if want.Len() == 0 {
		return true
	}
	if len(constraints) == 0 {
		return false
	}
	have, err := constraints.Value()
	if err != nil {
		return false
	}
	for name, v := range want.Members() {
		got, ok := have.Get(name)
		if !ok || !bytes.Equal(got.Raw(), v.Raw()) {
			return false
		}
	}
	return true
}

// underCeiling reports that no required capability goes beyond the ceiling;
// without a ceiling nothing does.
func underCeiling(ceiling, required []protocol.CapabilityRef) bool {
	if ceiling == nil {
		return true
	}
	for _, r := range required {
		if !slices.ContainsFunc(ceiling, func(c protocol.CapabilityRef) bool { return leases.Satisfies(c, r) }) {
			return false
		}
	}
	return true
}

// knownDependencies is P18: every dependency is a WorkItem of the Group. A
// contract that names its own WorkItem is left to the cycle check.
func (x *Ctx) knownDependencies(c *protocol.WorkContract, self string) error {
	for _, id := range c.DependencyWorkItemIDs {
		if id != self && x.Group.WorkItems[id] == nil {
			return invalid("unknown_reference")
		}
	}
	return nil
}

// reaches reports that from depends, directly or not, on the WorkItem to. What
// replaces a WorkItem counts as something it depends on, because it can
// satisfy a dependency in its place.
func (s *State) reaches(from []string, to string) bool {
	seen := map[string]bool{}
	stack := slices.Clone(from)
	for len(stack) > 0 {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if id == to {
			return true
		}
		w := s.WorkItems[id]
		if w == nil || seen[id] {
			continue
		}
		seen[id] = true
		stack = append(stack, w.Contract.DependencyWorkItemIDs...)
		stack = append(stack, w.ReplacedBy...)
	}
	return false
}

// satisfied reports that a dependency is verified, or superseded by verified
// work.
func (s *State) satisfied(workItemID string) bool {
	w := s.WorkItems[workItemID]
	return w != nil && (w.State == protocol.WorkVerified || s.superseded(w))
}

// dependenciesMet reports that all dependencies of a contract are satisfied.
func (s *State) dependenciesMet(c *protocol.WorkContract) bool {
	for _, id := range c.DependencyWorkItemIDs {
		if !s.satisfied(id) {
			return false
		}
	}
	return true
}

// overBudget turns a Ledger's refusal into BUDGET_EXCEEDED; any other error is
// a defect and passes through.
func overBudget(reason string, err error) error {
	var short *budget.Exceeded
	if errors.As(err, &short) {
		return exceededBudget(reason, short)
	}
	return err
}

// undetailed takes the details from a refusal that is about another Group.
func undetailed(err error) error {
	var refusal *protocol.Error
	if errors.As(err, &refusal) {
		refusal.Details = nil
	}
	return err
}

// paused refuses what COMMANDS.md 7.2 forbids while the WorkItem's account or
// an account above it, in whatever Group, is exhausted. Accounts of other
// Groups are not named.
func (x *Ctx) paused(w *WorkItem) error {
	a, dims, own, err := pausedBy(x.Group, w, x.World.group)
	if a == nil || err != nil {
		return err
	}
	refusal := protocol.NewError(protocol.CodeBudgetExceeded, "paused")
	if own {
		refusal = refusal.WithDetail("account", a.Ref).WithDetail("dimensions", dims.Names())
	}
	return refusal
}

// pausedBy finds the first account from the WorkItem upward, over all Groups of
// the tree, that is exhausted in a dimension running work consumes; nil when
// none is. own says that it is of the WorkItem's own Group.
func pausedBy(s *State, w *WorkItem, group func(id string) (*State, error)) (a *budget.Account, dims budget.Dimensions, own bool, err error) {
	for g, ref := s, w.Account(); ; {
		if a, dims = g.Ledger.Paused(ref); a != nil {
			return a, dims, g == s, nil
		}
		up, ok := g.Ledger.Up()
		if !ok {
			return nil, 0, false, nil
		}
		parent, err := group(up.GroupID)
		if err != nil {
			return nil, 0, false, err
		}
		if parent == nil {
			return nil, 0, false, &IntegrityError{Problem: "parent Group " + up.GroupID + " is gone"}
		}
		g, ref = parent, up.Account
	}
}
