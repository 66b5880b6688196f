// Package budget keeps the six-dimension ledger of a Mission tree.
//
// The hazard it guards against is money or effort that is promised twice: a
// WorkItem's limit is a claim on its parent account from the moment it is
// authorized, long before anything is spent, and a claim that is checked
// against the parent only (or against usage instead of claims) lets two
// branches of the tree spend the same unit. Every operation therefore checks
// the account and every ancestor whose remainder it lowers before it changes
// anything, in all six dimensions at once, and one short dimension refuses the
// whole operation (PROTOCOL.md 12, COMMANDS.md 7.1).
//
// All amounts are integers: money is counted in micro-units, the rest in the
// units of the protocol. Values never exceed 2^53-1, so sums of two are exact
// in int64; sums of many go through checked addition.
//
// A Mission tree is spread over several Groups, one Ledger each. The parent
// Group holds a linked account for a child Mission, whose limit is the child's
// budget and whose direct charges are all that the child's Group reports; the
// child Group's root account names the Group and account above it. An
// operation that crosses Groups is one local operation per Ledger, and all of
// them are checked before the first one is applied.
package budget

import (
	"math/bits"

	"github.com/missionweave/server/internal/protocol"
)

// Dimension numbers, in the order the protocol lists the limits.
const (
	Financial = iota
	ModelTokens
	ToolCalls
	ComputeSeconds
	WallClockSeconds
	ExternalSideEffects

	count
)

// Max is the largest amount of any dimension: 2^53-1 (micro-units for money).
const Max = int64(1)<<53 - 1

// Vector is one amount per dimension; Financial is in micro-units.
type Vector [count]int64

// Dimensions is a set of dimension numbers.
type Dimensions uint8

// names are the usage member names of COMMANDS.md 3.2.
var names = [count]string{
	"financial", "modelTokens", "toolCalls", "computeSeconds", "wallClockSeconds", "externalSideEffects",
}

// Pausing are the dimensions that running work consumes as long as it runs;
// only their exhaustion pauses work (COMMANDS.md 7.2).
const Pausing = Dimensions(1<<Financial | 1<<ModelTokens | 1<<ComputeSeconds | 1<<WallClockSeconds)

// Names lists the usage member names of the set in protocol order.
func (d Dimensions) Names() []string {
	out := make([]string, 0, bits.OnesCount8(uint8(d)))
	for i := range count {
		if d.Has(i) {
			out = append(out, names[i])
		}
	}
	return out
}

// Has reports whether dimension i is in the set.
func (d Dimensions) Has(i int) bool { return d&(1<<i) != 0 }

// Exceeding returns the dimensions in which a is greater than b: a is a subset
// of b (COMMANDS.md 3.2) exactly when the result is empty.
func (a Vector) Exceeding(b Vector) Dimensions {
	var d Dimensions
	for i := range a {
		if a[i] > b[i] {
			d |= 1 << i
		}
	}
	return d
}

// Within reports a ⊆ b.
func (a Vector) Within(b Vector) bool { return a.Exceeding(b) == 0 }

// IsZero reports whether every dimension is zero.
func (a Vector) IsZero() bool { return a == Vector{} }

// Plus adds two vectors. Sums beyond the int64 range saturate, so an overflow
// can only make a following limit check fail, never pass.
func (a Vector) Plus(b Vector) Vector {
	for i := range a {
		s := a[i] + b[i]
		switch {
		case a[i] > 0 && b[i] > 0 && s < 0:
			s = 1<<63 - 1
		case a[i] < 0 && b[i] < 0 && s >= 0:
			s = -1 << 63
		}
		a[i] = s
	}
	return a
}

// Minus subtracts b. Operands are amounts or differences of amounts, far
// inside the int64 range.
func (a Vector) Minus(b Vector) Vector {
	for i := range a {
		a[i] -= b[i]
	}
	return a
}

// FromBudget reads the six limits; an absent dimension is zero.
func FromBudget(b protocol.Budget) Vector {
	var v Vector
	if b.FinancialLimit != nil {
		v[Financial] = int64(*b.FinancialLimit)
	}
	for i, p := range [...]*int64{
		ModelTokens: b.ModelTokenLimit, ToolCalls: b.ToolCallLimit, ComputeSeconds: b.ComputeSecondsLimit,
		WallClockSeconds: b.WallClockSecondsLimit, ExternalSideEffects: b.ExternalSideEffectLimit,
	} {
		if p != nil {
			v[i] = *p
		}
	}
	return v
}

// ToBudget writes all six limits; currency may be empty, and is then left out.
func ToBudget(v Vector, currency string) protocol.Budget {
	money := protocol.Money(v[Financial])
	return protocol.Budget{
		Currency:                currency,
		FinancialLimit:          &money,
		ModelTokenLimit:         &v[ModelTokens],
		ToolCallLimit:           &v[ToolCalls],
		ComputeSecondsLimit:     &v[ComputeSeconds],
		WallClockSecondsLimit:   &v[WallClockSeconds],
		ExternalSideEffectLimit: &v[ExternalSideEffects],
	}
}

// Usage is an amount consumed (COMMANDS.md 3.2): absent members of a payload
// decode as zero, and Events carry all six.
type Usage struct {
	Financial           protocol.Money `json:"financial"`
	Currency            string         `json:"currency,omitempty"`
	ModelTokens         int64          `json:"modelTokens"`
	ToolCalls           int64          `json:"toolCalls"`
	ComputeSeconds      int64          `json:"computeSeconds"`
	WallClockSeconds    int64          `json:"wallClockSeconds"`
	ExternalSideEffects int64          `json:"externalSideEffects"`
}

// Vector returns the amounts of the usage.
func (u Usage) Vector() Vector {
	return Vector{
		int64(u.Financial), u.ModelTokens, u.ToolCalls, u.ComputeSeconds, u.WallClockSeconds, u.ExternalSideEffects,
	}
}

// UsageOf is the usage of Events: six amounts, and the account's currency when
// it has one.
func UsageOf(v Vector, currency string) Usage {
	return Usage{
		Financial: protocol.Money(v[Financial]), Currency: currency, ModelTokens: v[ModelTokens],
		ToolCalls: v[ToolCalls], ComputeSeconds: v[ComputeSeconds], WallClockSeconds: v[WallClockSeconds],
		ExternalSideEffects: v[ExternalSideEffects],
	}
}

// CurrencyMismatch reports whether an amount of money is named in another
// currency than the tree's. Without an amount nothing is compared, and a tree
// without a currency has no money to compare with, so there the limit itself
// (zero) refuses the amount (COMMANDS.md 3.2).
func CurrencyMismatch(amount int64, currency, tree string) bool {
	return amount > 0 && tree != "" && currency != tree
}
