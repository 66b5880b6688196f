package budget_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/protocol"
)

func TestAbsentDimensionsAreZeroOnBothSides(t *testing.T) {
	tokens := int64(5)
	a := budget.FromBudget(protocol.Budget{ModelTokenLimit: &tokens})
	if a != (budget.Vector{budget.ModelTokens: 5}) {
		t.Fatalf("got %v", a)
	}
	b := budget.Vector{budget.ModelTokens: 5, budget.ToolCalls: 1}
	if !a.Within(b) || b.Within(a) {
		t.Fatal("subset is decided per dimension")
	}
	if diff := cmp.Diff([]string{"toolCalls"}, b.Exceeding(a).Names()); diff != "" {
		t.Fatal(diff)
	}
}

func TestBudgetAndVectorConvertBothWays(t *testing.T) {
	want := budget.Vector{1_500_000, 2, 3, 4, 5, budget.Max}
	b := budget.ToBudget(want, "USD")
	if got := budget.FromBudget(b); got != want || b.Currency != "USD" {
		t.Fatalf("got %v %s", got, b.Currency)
	}
	u := budget.UsageOf(want, "USD")
	if u.Vector() != want || u.Currency != "USD" {
		t.Fatalf("got %+v", u)
	}
}

func TestAdditionSaturatesInsteadOfWrapping(t *testing.T) {
	big := budget.Vector{math.MaxInt64 - 1}
	if got := big.Plus(budget.Vector{budget.Max}); got[0] != math.MaxInt64 {
		t.Fatalf("got %d", got[0])
	}
	low := budget.Vector{math.MinInt64 + 1}
	if got := low.Plus(budget.Vector{-budget.Max}); got[0] != math.MinInt64 {
		t.Fatalf("got %d", got[0])
	}
}

func TestCurrencyIsComparedOnlyWhereAnAmountIsNamed(t *testing.T) {
	for _, c := range []struct {
		name           string
		amount         int64
		currency, tree string
		want           bool
	}{
		{"no amount, other currency", 0, "USD", "EUR", false},
		{"amount in the tree's currency", 1, "EUR", "EUR", false},
		{"amount in another currency", 1, "USD", "EUR", true},
		{"amount in a tree without money", 1, "USD", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := budget.CurrencyMismatch(c.amount, c.currency, c.tree); got != c.want {
				t.Fatalf("got %v", got)
			}
		})
	}
}
