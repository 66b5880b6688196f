package budget_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/budget"
)

var mission = budget.MissionRef("urn:m")

func wi(name string) budget.Ref { return budget.WorkItemRef("urn:w:" + name) }

// v fills financial, tokens and tool calls; the other dimensions stay zero.
func v(financial, tokens, calls int64) budget.Vector {
	return budget.Vector{budget.Financial: financial, budget.ModelTokens: tokens, budget.ToolCalls: calls}
}

func ledger(t *testing.T, limit budget.Vector) *budget.Ledger {
	t.Helper()
	l := budget.New()
	if err := l.OpenRoot(mission, limit, "EUR", budget.Upward{}); err != nil {
		t.Fatal(err)
	}
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func short(t *testing.T, err error, account budget.Ref, dims ...string) {
	t.Helper()
	var e *budget.Exceeded
	if !errors.As(err, &e) || !errors.Is(err, budget.ErrExceeded) {
		t.Fatalf("got %v, want budget exceeded", err)
	}
	if diff := cmp.Diff(append([]string{}, dims...), e.Dimensions.Names()); diff != "" || e.Account != account {
		t.Fatalf("account %v dimensions (-want +got):\n%s", e.Account, diff)
	}
}

func remaining(t *testing.T, l *budget.Ledger, ref budget.Ref, want budget.Vector) {
	t.Helper()
	a, ok := l.Account(ref)
	if !ok {
		t.Fatalf("no account %v", ref)
	}
	if got := a.Remaining(); got != want {
		t.Fatalf("remaining(%s) = %v, want %v", ref.ID, got, want)
	}
}

func TestReserveClaimsTheWholeLimitOfTheParent(t *testing.T) {
	l := ledger(t, v(10, 100, 5))
	must(t, l.Reserve(mission, wi("a"), v(6, 60, 5), "EUR", false))
	remaining(t, l, mission, v(4, 40, 0))
	short(t, l.Reserve(mission, wi("b"), v(5, 1, 1), "EUR", false), mission, "financial", "toolCalls")
	if _, ok := l.Account(wi("b")); ok {
		t.Fatal("a refused reservation left an account")
	}
	remaining(t, l, mission, v(4, 40, 0))
}

func TestChargeOfUnfinishedWorkLeavesTheParentsRemainder(t *testing.T) {
	l := ledger(t, v(10, 100, 5))
	must(t, l.Reserve(mission, wi("a"), v(6, 60, 5), "EUR", false))
	must(t, l.Charge(wi("a"), v(6, 10, 0)))
	remaining(t, l, mission, v(4, 40, 0))
	remaining(t, l, wi("a"), v(0, 50, 5))
	short(t, l.Charge(wi("a"), v(1, 1, 1)), wi("a"), "financial")
	remaining(t, l, wi("a"), v(0, 50, 5))
	if got := l.Root().Usage(); got != v(6, 10, 0) {
		t.Fatalf("mission usage %v", got)
	}
}

func TestReleaseGivesBackWhatIsNotUsed(t *testing.T) {
	l := ledger(t, v(10, 100, 5))
	must(t, l.Reserve(mission, wi("a"), v(6, 60, 5), "EUR", false))
	must(t, l.Charge(wi("a"), v(2, 10, 0)))
	must(t, l.Release(wi("a")))
	remaining(t, l, mission, v(8, 90, 5))
	must(t, l.Release(wi("a")))
	remaining(t, l, mission, v(8, 90, 5))
}

func TestReleasedParentStillHoldsTheClaimsOfOpenSubWork(t *testing.T) {
	l := ledger(t, v(10, 0, 0))
	must(t, l.Reserve(mission, wi("a"), v(8, 0, 0), "EUR", false))
	must(t, l.Reserve(wi("a"), wi("a1"), v(5, 0, 0), "EUR", false))
	must(t, l.Charge(wi("a"), v(1, 0, 0)))
	must(t, l.Release(wi("a")))
	remaining(t, l, mission, v(4, 0, 0))
	must(t, l.Release(wi("a1")))
	remaining(t, l, mission, v(9, 0, 0))
}

func TestReopenOfFailedWorkIsRefusedWhenTheFundsAreGone(t *testing.T) {
	l := ledger(t, v(10, 0, 0))
	must(t, l.Reserve(mission, wi("a"), v(6, 0, 0), "EUR", false))
	must(t, l.Charge(wi("a"), v(1, 0, 0)))
	must(t, l.Release(wi("a")))
	must(t, l.Reserve(mission, wi("b"), v(5, 0, 0), "EUR", false))
	short(t, l.CheckReopen(wi("a"), v(6, 0, 0)), mission, "financial")
	must(t, l.CheckReopen(wi("a"), v(5, 0, 0)))
	short(t, l.CheckReopen(wi("a"), v(0, 0, 0)), wi("a"), "financial")
	must(t, l.SetLimit(wi("a"), v(5, 0, 0), "EUR"))
	must(t, l.Reopen(wi("a")))
	remaining(t, l, mission, v(0, 0, 0))
}

func TestChargeAfterClosureIsCheckedInTheFirstUnfinishedAncestor(t *testing.T) {
	l := ledger(t, v(10, 0, 0))
	must(t, l.Reserve(mission, wi("a"), v(6, 0, 0), "EUR", false))
	must(t, l.Charge(wi("a"), v(2, 0, 0)))
	must(t, l.Release(wi("a")))
	must(t, l.Reserve(mission, wi("b"), v(7, 0, 0), "EUR", false))
	short(t, l.Charge(wi("a"), v(2, 0, 0)), mission, "financial")
	must(t, l.Charge(wi("a"), v(1, 0, 0)))
	remaining(t, l, mission, v(0, 0, 0))
}

func TestLimitNeverFallsBelowWhatIsHeld(t *testing.T) {
	l := ledger(t, v(10, 0, 0))
	must(t, l.Reserve(mission, wi("a"), v(6, 0, 0), "EUR", false))
	must(t, l.Reserve(wi("a"), wi("a1"), v(3, 0, 0), "EUR", false))
	must(t, l.Charge(wi("a"), v(2, 0, 0)))
	short(t, l.SetLimit(wi("a"), v(4, 0, 0), "EUR"), wi("a"), "financial")
	short(t, l.SetLimit(wi("a"), v(11, 0, 0), "EUR"), mission, "financial")
	must(t, l.SetLimit(wi("a"), v(5, 0, 0), "EUR"))
	remaining(t, l, mission, v(5, 0, 0))
}

func TestOnlyDimensionsThatRunningWorkConsumesPause(t *testing.T) {
	l := ledger(t, v(10, 10, 10))
	must(t, l.Reserve(mission, wi("a"), v(10, 10, 10), "EUR", false))
	must(t, l.Reserve(wi("a"), wi("a1"), v(0, 5, 10), "EUR", false))
	must(t, l.Charge(wi("a1"), v(0, 0, 10)))
	if a, _ := l.Account(wi("a1")); a.Exhausted().Names()[0] != "toolCalls" {
		t.Fatal("tool calls are used up")
	}
	if a, d := l.Paused(wi("a1")); a != nil {
		t.Fatalf("paused by %v", d.Names())
	}
	must(t, l.Charge(wi("a"), v(0, 5, 0)))
	must(t, l.Charge(wi("a1"), v(0, 5, 0)))
	a, d := l.Paused(wi("a1"))
	if a == nil || a.Ref != wi("a1") || d.Names()[0] != "modelTokens" {
		t.Fatalf("got %v %v, want a1 paused in modelTokens", a, d.Names())
	}
	must(t, l.Release(wi("a1")))
	if a, _ := l.Paused(wi("a")); a == nil || a.Ref != wi("a") {
		t.Fatal("usage of sub-work exhausts the ancestor too")
	}
}

func TestLinkedAccountMirrorsAChildMissionOfAnotherGroup(t *testing.T) {
	parent := ledger(t, v(10, 0, 0))
	must(t, parent.Reserve(mission, wi("w"), v(8, 0, 0), "EUR", false))
	child := budget.MissionRef("urn:child")
	must(t, parent.Reserve(wi("w"), child, v(6, 0, 0), "EUR", true))

	own := budget.New()
	must(t, own.OpenRoot(child, v(6, 0, 0), "EUR", budget.Upward{GroupID: "urn:g", Account: wi("w")}))
	must(t, own.Reserve(child, wi("c"), v(4, 0, 0), "EUR", false))
	must(t, own.Charge(wi("c"), v(3, 0, 0)))
	must(t, parent.Charge(child, v(3, 0, 0)))

	if up, ok := own.Up(); !ok || up.Account != wi("w") {
		t.Fatalf("up = %v", up)
	}
	a, _ := parent.Account(child)
	if a.Usage() != own.Root().Usage() || a.Limit != own.Root().Limit {
		t.Fatal("the linked account differs from the child's root")
	}
	remaining(t, parent, wi("w"), v(2, 0, 0))
	must(t, parent.Release(child))
	remaining(t, parent, wi("w"), v(5, 0, 0))
}

// node is the naive model: everything is recomputed from the definitions of
// COMMANDS.md 7.1.
type node struct {
	parent        string
	limit, direct budget.Vector
	finished      bool
}

type model map[string]*node

func (m model) sum(id string, f func(string) budget.Vector) budget.Vector {
	var s budget.Vector
	for c, n := range m {
		if n.parent == id {
			s = s.Plus(f(c))
		}
	}
	return s
}

func (m model) usage(id string) budget.Vector { return m[id].direct.Plus(m.sum(id, m.usage)) }

func (m model) claim(id string) budget.Vector {
	if m[id].finished {
		return m[id].direct.Plus(m.sum(id, m.claim))
	}
	return m[id].limit
}

func (m model) remaining(id string) budget.Vector {
	return m[id].limit.Minus(m[id].direct).Minus(m.sum(id, m.claim))
}

func (m model) sound() bool {
	for id := range m {
		r := m.remaining(id)
		for i := range r {
			if r[i] < 0 {
				return false
			}
		}
	}
	return true
}

// try applies f to a copy and keeps it only when the invariant still holds.
func (m model) try(f func(model)) (model, bool) {
	c := model{}
	for k, n := range m {
		x := *n
		c[k] = &x
	}
	f(c)
	if !c.sound() {
		return m, false
	}
	return c, true
}

func TestLedgerEqualsTheDefinitionsOverRandomHistories(t *testing.T) {
	ref := func(id string) budget.Ref {
		if id == "m" {
			return budget.MissionRef(id)
		}
		return budget.WorkItemRef(id)
	}
	rapid.Check(t, func(rt *rapid.T) {
		amount := rapid.Custom(func(t *rapid.T) budget.Vector {
			var x budget.Vector
			for i := range x {
				x[i] = rapid.Int64Range(0, 12).Draw(t, "amount")
			}
			return x
		})
		l, m := budget.New(), model{}
		limit := budget.Vector{40, 40, 40, 40, 40, 40}
		if err := l.OpenRoot(ref("m"), limit, "EUR", budget.Upward{}); err != nil {
			rt.Fatal(err)
		}
		m["m"] = &node{limit: limit}
		ids := []string{"m"}
		pick := func(rt *rapid.T) string { return rapid.SampledFrom(ids).Draw(rt, "id") }
		check := func(rt *rapid.T, err error, ok bool) {
			if (err == nil) != ok {
				rt.Fatalf("ledger says %v, the definitions say %v", err, ok)
			}
			if err != nil && !errors.Is(err, budget.ErrExceeded) {
				rt.Fatal(err)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"reserve": func(rt *rapid.T) {
				p, id, x := pick(rt), fmt.Sprint("w", len(ids)), amount.Draw(rt, "limit")
				var ok bool
				m, ok = m.try(func(c model) { c[id] = &node{parent: p, limit: x} })
				check(rt, l.Reserve(ref(p), ref(id), x, "EUR", false), ok)
				if ok {
					ids = append(ids, id)
				}
			},
			"charge": func(rt *rapid.T) {
				id, x := pick(rt), amount.Draw(rt, "delta")
				var ok bool
				m, ok = m.try(func(c model) { c[id].direct = c[id].direct.Plus(x) })
				check(rt, l.Charge(ref(id), x), ok)
			},
			"limit": func(rt *rapid.T) {
				id, x := pick(rt), amount.Draw(rt, "limit").Plus(amount.Draw(rt, "more"))
				var ok bool
				m, ok = m.try(func(c model) { c[id].limit = x })
				check(rt, l.SetLimit(ref(id), x, "EUR"), ok)
			},
			"release": func(rt *rapid.T) {
				id := pick(rt)
				var ok bool
				m, ok = m.try(func(c model) { c[id].finished = true })
				check(rt, l.Release(ref(id)), ok)
			},
			"reopen": func(rt *rapid.T) {
				id := pick(rt)
				var ok bool
				m, ok = m.try(func(c model) { c[id].finished = false })
				check(rt, l.Reopen(ref(id)), ok)
			},
			"": func(rt *rapid.T) {
				for id := range m {
					a, ok := l.Account(ref(id))
					if !ok {
						rt.Fatalf("no account %s", id)
					}
					if a.Usage() != m.usage(id) || a.Claim() != m.claim(id) || a.Remaining() != m.remaining(id) {
						rt.Fatalf("%s: usage %v claim %v remaining %v; want %v %v %v", id,
							a.Usage(), a.Claim(), a.Remaining(), m.usage(id), m.claim(id), m.remaining(id))
					}
				}
			},
		})
	})
}
