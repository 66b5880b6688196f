package shape

import (
	"math/bits"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// compiled is a Condition bound to the member sets and slots of its object.
type compiled struct {
	tests     []compiledTest
	then, els compiledEffect
	reason    string
}

type compiledTest struct {
	slot   int8
	absent uint64 // not 0: the test is that this member is absent
	inner  string
	shape  *Shape
}

type compiledEffect struct {
	require, forbid uint64
	narrow          []compiledNarrowing
}

type compiledNarrowing struct {
	slot  int8
	name  string
	inner string
	shape *Shape
}

func (c *Condition) compile(o *object) compiled {
	out := compiled{then: c.then.compile(o), els: c.els.compile(o), reason: c.reason}
	for _, t := range c.tests {
		ct := compiledTest{inner: t.inner, shape: t.shape}
		if t.absent {
			ct.absent = o.set([]string{t.name})
		} else {
			ct.slot = o.slot(t.name)
		}
		out.tests = append(out.tests, ct)
	}
	return out
}

func (e *effect) compile(o *object) compiledEffect {
	out := compiledEffect{require: o.set(e.require), forbid: o.set(e.forbid)}
	for _, n := range e.narrow {
		out.narrow = append(out.narrow, compiledNarrowing{o.slot(n.name), n.name, n.inner, n.shape})
	}
	return out
}

func (c *compiled) check(o *object, seen uint64, slots *[maxSlots]strictjson.Value, reason string, r *run) bool {
	e := &c.then
	for i := range c.tests {
		if !c.tests[i].holds(seen, slots) {
			e = &c.els
			break
		}
	}
	ok := true
	if c.reason != "" {
		reason = c.reason
	}
	if missing := e.require &^ seen; missing != 0 {
		before := len(r.faults)
		skip := r.skipMissing
		r.skipMissing = skip && c.reason == ""
		ok = o.missing(missing, reason, r)
		r.skipMissing = skip
		for i := before; i < len(r.faults); i++ {
			r.faults[i].MissingOnly = c.reason == ""
		}
	}
	for bad := e.forbid & seen; bad != 0; bad &= bad - 1 {
		name := o.members[bits.TrailingZeros64(bad)].name
		ok = r.add(Fault{Path: "/" + Token(name), Keyword: KeywordNot, Reason: reason})
	}
	for i := range e.narrow {
		n := &e.narrow[i]
		v := slots[n.slot]
		if n.inner != "" {
			v, _ = v.Get(n.inner)
		}
		if v.Kind() == strictjson.Missing {
			continue
		}
		before := len(r.faults)
		if !n.shape.check(v, r) {
			ok = false
			if n.inner != "" {
				r.below(before, Token(n.inner))
			}
			r.below(before, Token(n.name))
		}
	}
	return ok
}

func (t *compiledTest) holds(seen uint64, slots *[maxSlots]strictjson.Value) bool {
	if t.absent != 0 {
		return seen&t.absent == 0
	}
	v := slots[t.slot]
	if t.inner != "" {
		v, _ = v.Get(t.inner)
	}
	return v.Kind() != strictjson.Missing && t.shape.Accepts(v)
}
