package budget

import (
	"fmt"
)

// Entry is one account of a dumped Ledger. Parents come before their children
// and children in the order of reservation, so a dump read back is the same
// Ledger in every respect.
type Entry struct {
	Account  Ref          `json:"account"`
	Parent   *Ref         `json:"parent,omitempty"`
	Limit    Vector       `json:"limit"`
	Currency string       `json:"currency,omitempty"`
	Direct   Vector       `json:"direct"`
	Finished bool         `json:"finished,omitempty"`
	Linked   bool         `json:"linked,omitempty"`
	Up       *UpwardEntry `json:"up,omitempty"`
}

// UpwardEntry is the account above the root, in another Group.
type UpwardEntry struct {
	GroupID string `json:"groupId"`
	Account Ref    `json:"account"`
}

// Dump lists the accounts.
func (l *Ledger) Dump() []Entry {
	if l.root == nil {
		return nil
	}
	entry := func(a *Account) Entry {
		e := Entry{
			Account: a.Ref, Limit: a.Limit, Currency: a.Currency, Direct: a.Direct,
			Finished: a.Finished, Linked: a.Linked,
		}
		if a.parent != nil {
			parent := a.parent.Ref
			e.Parent = &parent
		}
		return e
	}
	root := entry(l.root)
	if l.up.GroupID != "" {
		root.Up = &UpwardEntry{l.up.GroupID, l.up.Account}
	}
	out := append(make([]Entry, 0, len(l.accounts)), root)
	for a := range l.root.Descend() {
		out = append(out, entry(a))
	}
	return out
}

// Load makes the Ledger that was dumped. Sums are computed anew; the dump's
// claims are not checked against limits, because they were when they arose.
func Load(entries []Entry) (*Ledger, error) {
	l := New()
	for i := range entries {
		e := &entries[i]
		if _, twice := l.accounts[e.Account]; twice {
			return nil, fmt.Errorf("%w: %s %s", ErrDuplicate, e.Account.Type, e.Account.ID)
		}
		a := &Account{
			Ref: e.Account, Limit: e.Limit, Currency: e.Currency, Direct: e.Direct,
			Finished: e.Finished, Linked: e.Linked,
		}
		if e.Parent == nil {
			if l.root != nil {
				return nil, fmt.Errorf("%w: root %s", ErrDuplicate, e.Account.ID)
			}
			l.root = a
			if e.Up != nil {
				l.up = Upward{e.Up.GroupID, e.Up.Account}
			}
		} else {
			parent, ok := l.accounts[*e.Parent]
			if !ok {
				return nil, fmt.Errorf("%w: %s %s", ErrUnknown, e.Parent.Type, e.Parent.ID)
			}
			a.parent = parent
			parent.children = append(parent.children, a)
		}
		l.accounts[a.Ref] = a
	}
	// Children stand behind their parents: from the end every account's own
	// sums are complete before they are added above.
	for i := len(entries) - 1; i >= 0; i-- {
		a := l.accounts[entries[i].Account]
		if p := a.parent; p != nil {
			p.claims = p.claims.Plus(a.Claim())
			p.usage = p.usage.Plus(a.Usage())
		}
	}
	return l, nil
}
