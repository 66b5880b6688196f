package naive

// Section 7.1 and 7.2, recomputed from nothing at every question: one tree of
// accounts over all Groups of a Mission tree.

// dimensions in the order of section 3.2, and which of them pause work.
var dimensions = [6]string{"financial", "modelTokens", "toolCalls", "computeSeconds", "wallClockSeconds", "externalSideEffects"}

var limitNames = [6]string{"financialLimit", "modelTokenLimit", "toolCallLimit", "computeSecondsLimit", "wallClockSecondsLimit", "externalSideEffectLimit"}

var pausing = [6]bool{true, true, false, true, true, false}

type vector [6]int

func budgetOf(v any) vector {
	var out vector
	o, _ := v.(obj)
	for i, name := range limitNames {
		out[i] = number(o[name])
	}
	return out
}

func usageOf(v any) vector {
	var out vector
	o, _ := v.(obj)
	for i, name := range dimensions {
		out[i] = number(o[name])
	}
	return out
}

func (v vector) plus(w vector) vector {
	for i := range v {
		v[i] += w[i]
	}
	return v
}

func (v vector) minus(w vector) vector {
	for i := range v {
		v[i] -= w[i]
	}
	return v
}

func (v vector) within(w vector) bool {
	for i := range v {
		if v[i] > w[i] {
			return false
		}
	}
	return true
}

func (v vector) usage(currency string) obj {
	out := obj{}
	for i, name := range dimensions {
		out[name] = v[i]
	}
	if currency != "" {
		out["currency"] = currency
	}
	return out
}

func (v vector) budget(currency string) obj {
	out := obj{}
	for i, name := range limitNames {
		out[name] = v[i]
	}
	if currency != "" {
		out["currency"] = currency
	}
	return out
}

type account struct {
	kind, id string
	currency string
	limit    vector
	direct   vector
	finished bool
	parent   *account
	children []*account
}

func (a *account) ref() obj { return obj{"type": a.kind, "id": a.id} }

func (a *account) key() string { return "account " + a.kind + " " + a.id }

func newAccount(kind, id string, b any, parent *account) *account {
	a := &account{kind: kind, id: id, limit: budgetOf(b), currency: text(b.(obj)["currency"]), parent: parent}
	if parent != nil {
		parent.children = append(parent.children, a)
	}
	return a
}

func (a *account) usage() vector {
	v := a.direct
	for _, c := range a.children {
		v = v.plus(c.usage())
	}
	return v
}

func (a *account) claim() vector {
	if !a.finished {
		return a.limit
	}
	v := a.direct
	for _, c := range a.children {
		v = v.plus(c.claim())
	}
	return v
}

func (a *account) remaining() vector {
	v := a.limit.minus(a.direct)
	for _, c := range a.children {
		v = v.minus(c.claim())
	}
	return v
}

// sound reports that nothing is promised twice from here up.
func (a *account) sound() bool {
	for ; a != nil; a = a.parent {
		for _, n := range a.remaining() {
			if n < 0 {
				return false
			}
		}
	}
	return true
}

// fits tries a change and undoes it: whether everything would stay sound.
func (a *account) fits(do, undo func()) bool {
	do()
	ok := a.sound()
	undo()
	return ok
}

func (a *account) canReserve(limit vector) bool {
	trial := &account{limit: limit}
	return a.fits(func() { a.children = append(a.children, trial) }, func() { a.children = a.children[:len(a.children)-1] })
}

func (a *account) canResize(limit vector) bool {
	old := a.limit
	return a.fits(func() { a.limit = limit }, func() { a.limit = old })
}

func (a *account) canReopen(limit vector) bool {
	old := a.limit
	return a.fits(func() { a.limit, a.finished = limit, false }, func() { a.limit, a.finished = old, true })
}

func (a *account) canCharge(delta vector) bool {
	old := a.direct
	return a.fits(func() { a.direct = a.direct.plus(delta) }, func() { a.direct = old })
}

// exhausted lists the dimensions whose limit is used up.
func (a *account) exhausted() []string {
	var out []string
	usage := a.usage()
	for i, name := range dimensions {
		if a.limit[i] > 0 && usage[i] == a.limit[i] {
			out = append(out, name)
		}
	}
	return out
}

// paused reports that the account or one above it is exhausted in a dimension
// that running work consumes.
func (a *account) paused() bool {
	for ; a != nil; a = a.parent {
		usage := a.usage()
		for i := range dimensions {
			if pausing[i] && a.limit[i] > 0 && usage[i] >= a.limit[i] {
				return true
			}
		}
	}
	return false
}

// treeCurrency is the one currency of a Mission tree.
func (a *account) treeCurrency() string {
	for a.parent != nil {
		a = a.parent
	}
	return a.anyCurrency()
}

func (a *account) anyCurrency() string {
	if a.currency != "" {
		return a.currency
	}
	for _, c := range a.children {
		if s := c.anyCurrency(); s != "" {
			return s
		}
	}
	return ""
}

// foreign reports money in another currency than the tree's.
func (a *account) foreign(b any) bool {
	o, _ := b.(obj)
	amount := number(o["financialLimit"]) + number(o["financial"])
	return amount > 0 && text(o["currency"]) != a.treeCurrency()
}
