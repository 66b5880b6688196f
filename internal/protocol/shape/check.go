package shape

import (
	"slices"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// run collects faults until there are max of them; with max 0 it only makes
// the checks stop at the first.
type run struct {
	faults      []Fault
	max         int
	skipMissing bool // keep no fault that is MissingOnly
}

func (r *run) full() bool { return len(r.faults) >= r.max }

// fail records a fault of the value itself and is false, for return.
func (r *run) fail(s *Shape, keyword string) bool {
	return r.add(Fault{Keyword: keyword, Reason: s.reason})
}

func (r *run) add(f Fault) bool {
	if !r.full() && !(f.MissingOnly && r.skipMissing) {
		r.faults = append(r.faults, f)
	}
	return false
}

// below moves the faults from index n on under one more pointer token.
func (r *run) below(n int, token string) {
	for i := n; i < len(r.faults); i++ {
		r.faults[i].Path = "/" + token + r.faults[i].Path
	}
}

// check reports whether v has no fault. Loops stop at a fault when r is full.
func (s *Shape) check(v strictjson.Value, r *run) bool {
	kind := v.Kind()
	if s.nullable && kind == strictjson.Null {
		return true
	}
	if !s.checkKind(v, kind, r) {
		return false
	}
	for i := range s.where {
		if w := &s.where[i]; !w.holds(v) {
			return r.add(Fault{Keyword: KeywordRule, Reason: w.reason})
		}
	}
	return true
}

func (s *Shape) checkKind(v strictjson.Value, kind strictjson.Kind, r *run) bool {
	switch s.op {
	case opString:
		return s.checkString(v, kind, r)
	case opEnum:
		if kind == strictjson.String {
			if slices.Contains(s.values, v.Str()) {
				return true
			}
		}
		if s.single {
			return r.fail(s, KeywordConst)
		}
		return r.fail(s, KeywordEnum)
	case opObject:
		return s.checkObject(v, kind, r)
	case opInt:
		return s.checkInt(v, kind, r)
	case opNumber:
		return s.checkNumber(v, kind, r)
	case opArray:
		return s.checkArray(v, kind, r)
	case opMap:
		return s.checkMap(v, kind, r)
	case opUnion:
		return s.checkUnion(v, kind, r)
	case opAny:
		return kind != strictjson.Missing || r.fail(s, KeywordType)
	case opNull:
		return kind == strictjson.Null || r.fail(s, KeywordType)
	case opBool:
		return kind == strictjson.Bool || r.fail(s, KeywordType)
	case opConstBool:
		return kind == strictjson.Bool && v.Bool() == s.truth || r.fail(s, KeywordConst)
	case opAnyOf:
		for _, alt := range s.alts {
			if alt.Accepts(v) {
				return true
			}
		}
		return r.fail(s, KeywordAnyOf)
	case opRef:
		return s.ref().check(v, r)
	case opNot:
		return !s.elem.Accepts(v) || r.fail(s, KeywordNot)
	}
	panic("shape: zero Shape")
}

func (s *Shape) checkString(v strictjson.Value, kind strictjson.Kind, r *run) bool {
	if kind != strictjson.String {
		return r.fail(s, KeywordType)
	}
	text := v.Str()
	// Code points are never more than bytes, so short texts need no counting.
	if s.max >= 0 && len(text) > s.max && v.StrLen() > s.max {
		return r.fail(s, KeywordMaxLength)
	}
	if s.min > 0 && (len(text) < s.min || s.min > 1 && v.StrLen() < s.min) {
		return r.fail(s, KeywordMinLength)
	}
	for i := range s.matchers {
		if m := &s.matchers[i]; !m.match(text) {
			return r.fail(s, m.keyword)
		}
	}
	return true
}

func (s *Shape) checkInt(v strictjson.Value, kind strictjson.Kind, r *run) bool {
	if kind != strictjson.Number {
		return r.fail(s, KeywordType)
	}
	n, ok := v.Int()
	if !ok {
		// An integer that int64 cannot hold is out of range, not of type.
		switch {
		case !v.IsInteger():
			return r.fail(s, KeywordType)
		case v.Sign() > 0:
			return r.fail(s, KeywordMaximum)
		}
		return r.fail(s, KeywordMinimum)
	}
	if n < s.lo {
		return r.fail(s, KeywordMinimum)
	}
	if n > s.hi {
		return r.fail(s, KeywordMaximum)
	}
	return true
}

func (s *Shape) checkNumber(v strictjson.Value, kind strictjson.Kind, r *run) bool {
	if kind != strictjson.Number {
		return r.fail(s, KeywordType)
	}
	if s.num.lo.below(v, s.num.openLo) {
		return r.fail(s, KeywordMinimum)
	}
	if s.num.hi.above(v) {
		return r.fail(s, KeywordMaximum)
	}
	return true
}

func (s *Shape) checkArray(v strictjson.Value, kind strictjson.Kind, r *run) bool {
	if kind != strictjson.Array {
		return r.fail(s, KeywordType)
	}
	n := v.Len()
	if s.max >= 0 && n > s.max {
		// Nothing is said about the items: there may be very many.
		return r.fail(s, KeywordMaxItems)
	}
	ok := true
	if n < s.min {
		ok = r.add(Fault{Keyword: KeywordMinItems, Reason: s.reason, MissingOnly: !s.optional})
		if r.full() {
			return false
		}
	}
	for i, item := range v.Items() {
		before := len(r.faults)
		if !s.elem.check(item, r) {
			ok = false
			r.below(before, itoa(i))
			if r.full() {
				return false
			}
		}
	}
	if ok && s.unique && n > 1 {
		if i := duplicate(v); i >= 0 {
			before := len(r.faults)
			r.fail(s, KeywordUnique)
			r.below(before, itoa(i))
			return false
		}
	}
	return ok
}

func (s *Shape) checkMap(v strictjson.Value, kind strictjson.Kind, r *run) bool {
	if kind != strictjson.Object {
		return r.fail(s, KeywordType)
	}
	n := v.Len()
	if s.max >= 0 && n > s.max {
		return r.fail(s, KeywordMaxMembers)
	}
	if n < s.min {
		return r.fail(s, KeywordMinMembers)
	}
	ok := true
	for name, member := range v.Members() {
		before := len(r.faults)
		switch {
		case !s.key.checkName(name):
			r.fail(s, KeywordNames)
			if echoable(name) {
				r.below(before, Token(name))
			}
		case !s.elem.check(member, r):
			r.below(before, Token(name))
		default:
			continue
		}
		ok = false
		if r.full() {
			return false
		}
	}
	return ok
}

// checkName applies a string shape to a member name.
func (s *Shape) checkName(name string) bool {
	switch s.op {
	case opAny:
		return true
	case opEnum:
		return slices.Contains(s.values, name)
	case opString:
		n := codePoints(name)
		if n < s.min || s.max >= 0 && n > s.max {
			return false
		}
		for i := range s.matchers {
			if !s.matchers[i].match(name) {
				return false
			}
		}
		return true
	}
	panic("shape: Map key is not a string shape")
}

func (s *Shape) checkUnion(v strictjson.Value, kind strictjson.Kind, r *run) bool {
	if kind != strictjson.Object {
		return r.fail(s, KeywordType)
	}
	tag, ok := v.Get(s.tag)
	if !ok {
		return r.add(Fault{Path: "/" + s.tag, Keyword: KeywordRequired, Reason: s.reason, MissingOnly: true})
	}
	if tag.Kind() == strictjson.String {
		if alt := s.tags[tag.Str()]; alt != nil {
			return alt.check(v, r)
		}
	}
	return r.add(Fault{Path: "/" + s.tag, Keyword: KeywordEnum, Reason: s.reason})
}
