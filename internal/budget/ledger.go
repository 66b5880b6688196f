package budget

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Account types.
const (
	Mission  = "mission"
	WorkItem = "work_item"
)

// Ref names an account; it is also the account member of Events and errors.
type Ref struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// MissionRef names a Mission's account.
func MissionRef(missionID string) Ref { return Ref{Type: Mission, ID: missionID} }

// WorkItemRef names a WorkItem's account.
func WorkItemRef(workItemID string) Ref { return Ref{Type: WorkItem, ID: workItemID} }

// ErrExceeded is what every *Exceeded is, for errors.Is.
var ErrExceeded = errors.New("budget exceeded")

// ErrUnknown and ErrDuplicate report a ledger call that contradicts the log;
// in a fold they are integrity errors.
var (
	ErrUnknown   = errors.New("budget: unknown account")
	ErrDuplicate = errors.New("budget: account exists")
)

// Exceeded names the account that is short and the dimensions it is short in.
type Exceeded struct {
	Account    Ref
	Dimensions Dimensions
}

// Error implements error; it names no amounts.
func (e *Exceeded) Error() string {
	return fmt.Sprintf("budget of %s %s exceeded in %s",
		e.Account.Type, e.Account.ID, strings.Join(e.Dimensions.Names(), ", "))
}

// Is matches ErrExceeded.
func (e *Exceeded) Is(target error) bool { return target == ErrExceeded }

// Upward names the account above a Group's root account: the parent WorkItem
// of a child Mission, in the parent's Group.
type Upward struct {
	GroupID string
	Account Ref
}

// Account is one node of the tree. The exported fields are for reading; only
// the Ledger changes them.
type Account struct {
	Ref
	// Limit is the Mission's budget or the WorkItem's contract budget.
	Limit Vector
	// Currency is the currency of that budget, empty when it names none.
	Currency string
	// Direct is what was charged to this account itself; for a linked account
	// it is everything the child's Group reported.
	Direct Vector
	// Finished says that the claim has shrunk to what is really used.
	Finished bool
	// Linked says that the account stands for a child Mission kept elsewhere.
	Linked bool

	parent   *Account
	children []*Account
	// claims and usage are the sums over the children, kept up to date so that
	// no operation depends on how many children there are.
	claims, usage Vector
}

// Parent returns the account above within the same Ledger; nil at the root.
func (a *Account) Parent() *Account { return a.parent }

// Usage is direct charges plus the usage of all accounts below.
func (a *Account) Usage() Vector { return a.Direct.Plus(a.usage) }

// Claim is what the account holds of its parent's limit: its own limit while
// unfinished, afterwards what it and the claims below it still need.
func (a *Account) Claim() Vector {
	if a.Finished {
		return a.Direct.Plus(a.claims)
	}
	return a.Limit
}

// Remaining is what may still be charged to the account or reserved below it.
func (a *Account) Remaining() Vector { return a.Limit.Minus(a.Direct).Minus(a.claims) }

// Exhausted returns the dimensions with a limit above zero that are used up.
func (a *Account) Exhausted() Dimensions {
	var d Dimensions
	used := a.Usage()
	for i, limit := range a.Limit {
		if limit > 0 && used[i] >= limit {
			d |= 1 << i
		}
	}
	return d
}

// Children yields the accounts directly below, in the order of reservation.
func (a *Account) Children() iter.Seq[*Account] { return slices.Values(a.children) }

// Descend yields every account below a, each before the ones below it.
func (a *Account) Descend() iter.Seq[*Account] {
	return func(yield func(*Account) bool) { descend(a, yield) }
}

func descend(a *Account, yield func(*Account) bool) bool {
	for _, c := range a.children {
		if !yield(c) || !descend(c, yield) {
			return false
		}
	}
	return true
}

// Ledger holds the accounts of one Group. It is not safe for concurrent use.
type Ledger struct {
	accounts map[Ref]*Account
	root     *Account
	up       Upward
}

// New returns an empty Ledger.
func New() *Ledger { return &Ledger{accounts: map[Ref]*Account{}} }

// OpenRoot opens the Mission's own account; up is the zero value for a root
// Mission.
func (l *Ledger) OpenRoot(ref Ref, limit Vector, currency string, up Upward) error {
	if l.root != nil {
		return fmt.Errorf("%w: root %s", ErrDuplicate, ref.ID)
	}
	l.root = &Account{Ref: ref, Limit: limit, Currency: currency}
	l.accounts[ref], l.up = l.root, up
	return nil
}

// Root returns the Mission's own account, nil before OpenRoot.
func (l *Ledger) Root() *Account { return l.root }

// Up returns the account above the root, if the Mission is a child.
func (l *Ledger) Up() (Upward, bool) { return l.up, l.up.GroupID != "" }

// Currency is the tree's currency as this Group knows it.
func (l *Ledger) Currency() string {
	if l.root == nil {
		return ""
	}
	return l.root.Currency
}

// Account looks an account up.
func (l *Ledger) Account(ref Ref) (*Account, bool) {
	a, ok := l.accounts[ref]
	return a, ok
}

// Accounts lists all accounts by type and id in byte order.
func (l *Ledger) Accounts() []*Account {
	out := make([]*Account, 0, len(l.accounts))
	for _, a := range l.accounts {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *Account) int {
		if c := strings.Compare(a.ID, b.ID); c != 0 {
			return c
		}
		return strings.Compare(a.Type, b.Type)
	})
	return out
}

func (l *Ledger) find(ref Ref) (*Account, error) {
	if a, ok := l.accounts[ref]; ok {
		return a, nil
	}
	return nil, fmt.Errorf("%w: %s %s", ErrUnknown, ref.Type, ref.ID)
}

// lower checks that the remainders from a upward bear a claim below a that
// rises by delta. Above an unfinished account nothing changes, because its
// claim is its limit.
func lower(a *Account, delta Vector) error {
	for ; a != nil; a = a.parent {
		if short := delta.Exceeding(a.Remaining()); short != 0 {
			// A dimension that falls or stays never refuses.
			var risen Dimensions
			for i := range delta {
				if short.Has(i) && delta[i] > 0 {
					risen |= 1 << i
				}
			}
			if risen != 0 {
				return &Exceeded{Account: a.Ref, Dimensions: risen}
			}
		}
		if !a.Finished {
			return nil
		}
	}
	return nil
}

// shift records that a claim directly below a changed by delta.
func shift(a *Account, delta Vector) {
	for ; a != nil; a = a.parent {
		a.claims = a.claims.Plus(delta)
		if !a.Finished {
			return
		}
	}
}

// CheckReserve tells whether a new account with limit fits below parent.
func (l *Ledger) CheckReserve(parent Ref, limit Vector) error {
	p, err := l.find(parent)
	if err != nil {
		return err
	}
	return lower(p, limit)
}

// Reserve opens an account below parent, claiming its whole limit. linked is
// true for a child Mission whose own accounts live in another Group.
func (l *Ledger) Reserve(parent, child Ref, limit Vector, currency string, linked bool) error {
	if _, ok := l.accounts[child]; ok {
		return fmt.Errorf("%w: %s %s", ErrDuplicate, child.Type, child.ID)
	}
	if err := l.CheckReserve(parent, limit); err != nil {
		return err
	}
	p := l.accounts[parent]
	c := &Account{Ref: child, Limit: limit, Currency: currency, Linked: linked, parent: p}
	p.children = append(p.children, c)
	l.accounts[child] = c
	shift(p, limit)
	return nil
}

// CheckCharge tells whether delta may be charged to the account.
func (l *Ledger) CheckCharge(ref Ref, delta Vector) error {
	a, err := l.find(ref)
	if err != nil {
		return err
	}
	if short := delta.Exceeding(a.Remaining()); short != 0 {
		return &Exceeded{Account: ref, Dimensions: short}
	}
	if a.Finished {
		return lower(a.parent, delta)
	}
	return nil
}

// Charge adds delta (no dimension negative) to the account and to the usage of
// every ancestor.
func (l *Ledger) Charge(ref Ref, delta Vector) error {
	if err := l.CheckCharge(ref, delta); err != nil {
		return err
	}
	a := l.accounts[ref]
	a.Direct = a.Direct.Plus(delta)
	if a.Finished {
		shift(a.parent, delta)
	}
	for p := a.parent; p != nil; p = p.parent {
		p.usage = p.usage.Plus(delta)
	}
	return nil
}

// CheckLimit tells whether the account's limit may become limit: enough for
// what it already holds, and borne by the accounts above.
func (l *Ledger) CheckLimit(ref Ref, limit Vector) error {
	a, err := l.find(ref)
	if err != nil {
		return err
	}
	if short := a.Direct.Plus(a.claims).Exceeding(limit); short != 0 {
		return &Exceeded{Account: ref, Dimensions: short}
	}
	if a.Finished {
		return nil
	}
	return lower(a.parent, limit.Minus(a.Limit))
}

// SetLimit replaces the account's limit (budget increase, contract revision,
// a child Mission's new budget).
func (l *Ledger) SetLimit(ref Ref, limit Vector, currency string) error {
	if err := l.CheckLimit(ref, limit); err != nil {
		return err
	}
	a := l.accounts[ref]
	before := a.Claim()
	a.Limit, a.Currency = limit, currency
	shift(a.parent, a.Claim().Minus(before))
	return nil
}

// Release marks the account finished and gives back what it does not use.
// Releasing twice changes nothing.
func (l *Ledger) Release(ref Ref) error {
	a, err := l.find(ref)
	if err != nil || a.Finished {
		return err
	}
	before := a.Claim()
	a.Finished = true
	shift(a.parent, a.Claim().Minus(before))
	return nil
}

// CheckReopen tells whether a finished account can claim limit again.
func (l *Ledger) CheckReopen(ref Ref, limit Vector) error {
	a, err := l.find(ref)
	if err != nil {
		return err
	}
	if short := a.Direct.Plus(a.claims).Exceeding(limit); short != 0 {
		return &Exceeded{Account: ref, Dimensions: short}
	}
	return lower(a.parent, limit.Minus(a.Claim()))
}

// Reopen makes a finished account unfinished again; it claims its limit.
func (l *Ledger) Reopen(ref Ref) error {
	a, err := l.find(ref)
	if err != nil || !a.Finished {
		return err
	}
	if err := l.CheckReopen(ref, a.Limit); err != nil {
		return err
	}
	before := a.Claim()
	a.Finished = false
	shift(a.parent, a.Claim().Minus(before))
	return nil
}

// Paused returns the first account from ref upward that is exhausted in a
// dimension running work consumes, with those dimensions; nil when none is.
// The ancestry of a child Mission continues in the Ledger that Up names.
func (l *Ledger) Paused(ref Ref) (*Account, Dimensions) {
	for a := l.accounts[ref]; a != nil; a = a.parent {
		if d := a.Exhausted() & Pausing; d != 0 {
			return a, d
		}
	}
	return nil, 0
}

// Amounts are usage and remainder of one account.
type Amounts struct{ Usage, Remaining Vector }

// Exhaustion is an account that a charge used up, and the dimensions in which
// it had something left before.
type Exhaustion struct {
	Ref
	Dimensions Dimensions
}

// Charged is what a charge would leave behind.
type Charged struct {
	amounts map[Ref]Amounts
	// Exhausted lists the accounts it uses up, from the charged one upward.
	Exhausted []Exhaustion
}

// Of returns the amounts of the charged account or of one above it.
func (c Charged) Of(ref Ref) Amounts { return c.amounts[ref] }

// Preview computes a charge without making it.
func (l *Ledger) Preview(ref Ref, delta Vector) (Charged, error) {
	if err := l.CheckCharge(ref, delta); err != nil {
		return Charged{}, err
	}
	c := Charged{amounts: map[Ref]Amounts{}}
	falls := true
	for a := l.accounts[ref]; a != nil; a = a.parent {
		after := Amounts{Usage: a.Usage().Plus(delta), Remaining: a.Remaining()}
		if falls {
			after.Remaining = after.Remaining.Minus(delta)
		}
		c.amounts[a.Ref] = after
		var used Dimensions
		for i, limit := range a.Limit {
			if limit > 0 && after.Usage[i] >= limit {
				used |= 1 << i
			}
		}
		if fresh := used &^ a.Exhausted(); fresh != 0 && !a.Linked {
			c.Exhausted = append(c.Exhausted, Exhaustion{a.Ref, fresh})
		}
		falls = falls && a.Finished
	}
	return c, nil
}
