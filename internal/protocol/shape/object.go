package shape

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Member is a declared member of an object.
type Member struct {
	name     string
	shape    *Shape
	required bool
}

// Req declares a required member.
func Req(name string, s *Shape) Member { return Member{name, s, true} }

// Opt declares an optional member.
func Opt(name string, s *Shape) Member { return Member{name, s, false} }

// maxMembers is the width of the set in which an object notes what it saw.
const maxMembers = 64

// maxSlots bounds the members that the conditions of one object may look at;
// their values are kept on the stack while the object is walked.
const maxSlots = 8

// object is the compiled form of Object.
type object struct {
	members  []Member
	table    nameTable
	required uint64
	conds    []*Condition // as declared
	rules    []compiled
	custom   []func(strictjson.Value) *Fault
	anyOf    [][]string
	anySets  []uint64
	slotOf   []int8 // member index -> slot, or -1
}

// Object is an object with exactly the declared members: others are faults.
func Object(members ...Member) *Shape {
	return (&Shape{op: opObject}).withObject(&object{members: members})
}

// withObject returns a copy of s with o compiled.
func (s *Shape) withObject(o *object) *Shape {
	o.compile()
	c := s.copy()
	c.obj = o
	return c
}

// derive copies the declaration of an object shape, to be changed.
func (s *Shape) derive() *object {
	if s.op != opObject {
		panic("shape: not an object")
	}
	o := s.obj
	return &object{
		members: append([]Member(nil), o.members...),
		conds:   append([]*Condition(nil), o.conds...),
		custom:  append([]func(strictjson.Value) *Fault(nil), o.custom...),
		anyOf:   append([][]string(nil), o.anyOf...),
	}
}

// Open lets an object have members that are not declared.
func (s *Shape) Open() *Shape {
	c := s.withObject(s.derive())
	c.open = true
	return c
}

// Extend adds members to an object; a member of the same name is replaced.
func (s *Shape) Extend(members ...Member) *Shape {
	o := s.derive()
	for _, m := range members {
		replaced := false
		for i := range o.members {
			if o.members[i].name == m.name {
				o.members[i], replaced = m, true
			}
		}
		if !replaced {
			o.members = append(o.members, m)
		}
	}
	return s.withObject(o)
}

// Requiring makes declared members required.
func (s *Shape) Requiring(names ...string) *Shape {
	o := s.derive()
	for _, name := range names {
		o.members[o.index(name)].required = true
	}
	return s.withObject(o)
}

// Without removes members, which are then unknown. No rule may name them.
func (s *Shape) Without(names ...string) *Shape {
	o := s.derive()
	for _, name := range names {
		i := o.index(name)
		o.members = append(o.members[:i], o.members[i+1:]...)
	}
	return s.withObject(o)
}

// Rules adds conditional rules, checked in order after the members.
func (s *Shape) Rules(conds ...*Condition) *Shape {
	o := s.derive()
	o.conds = append(o.conds, conds...)
	return s.withObject(o)
}

// Rule adds a rule in code. It runs only when the members and the conditional
// rules have no fault, so it may rely on them; its fault's path is relative to
// the object (see FaultAt).
func (s *Shape) Rule(fn func(strictjson.Value) *Fault) *Shape {
	o := s.derive()
	o.custom = append(o.custom, fn)
	return s.withObject(o)
}

// RequireAny demands all members of at least one of the sets. Its fault counts
// as something missing.
func (s *Shape) RequireAny(sets ...[]string) *Shape {
	o := s.derive()
	o.anyOf = append(o.anyOf, sets...)
	return s.withObject(o)
}

// MemberShape gives the shape of a declared member, nil when there is none.
func (s *Shape) MemberShape(name string) *Shape {
	if s.op != opObject {
		return nil
	}
	if i := s.obj.table.find(name); i >= 0 {
		return s.obj.members[i].shape
	}
	return nil
}

// MemberNames lists the declared members in order; required tells which must
// be there.
func (s *Shape) MemberNames() (names []string, required []bool) {
	if s.op != opObject {
		return nil, nil
	}
	for _, m := range s.obj.members {
		names, required = append(names, m.name), append(required, m.required)
	}
	return names, required
}

func (o *object) index(name string) int {
	for i := range o.members {
		if o.members[i].name == name {
			return i
		}
	}
	panic(fmt.Sprintf("shape: no member %q", name))
}

func (o *object) set(names []string) (set uint64) {
	for _, name := range names {
		set |= 1 << o.index(name)
	}
	return set
}

// slot reserves a place for the value of a member that a condition looks at.
func (o *object) slot(name string) int8 {
	i := o.index(name)
	if o.slotOf[i] < 0 {
		next := int8(0)
		for _, at := range o.slotOf {
			next = max(next, at+1)
		}
		if next >= maxSlots {
			panic("shape: rules look at too many members")
		}
		o.slotOf[i] = next
	}
	return o.slotOf[i]
}

func (o *object) compile() {
	if len(o.members) > maxMembers {
		panic("shape: too many members")
	}
	names := make([]string, len(o.members))
	o.slotOf = make([]int8, len(o.members))
	for i, m := range o.members {
		if m.shape == nil {
			panic(fmt.Sprintf("shape: member %q has no shape (initialisation order?)", m.name))
		}
		if m.shape.op == opArray && m.shape.optional == m.required {
			s := m.shape.copy()
			s.optional = !m.required
			o.members[i].shape = s
		}
		names[i] = m.name
		o.slotOf[i] = -1
		if m.required {
			o.required |= 1 << i
		}
	}
	o.table = newNameTable(names)
	for _, c := range o.conds {
		o.rules = append(o.rules, c.compile(o))
	}
	for _, names := range o.anyOf {
		o.anySets = append(o.anySets, o.set(names))
	}
}

func (s *Shape) checkObject(v strictjson.Value, kind strictjson.Kind, r *run) bool {
	if kind != strictjson.Object {
		return r.fail(s, KeywordType)
	}
	o := s.obj
	if s.open && len(o.members) == 0 {
		return true
	}
	var (
		seen  uint64
		slots [maxSlots]strictjson.Value
		ok    = true
	)
	for name, member := range v.Members() {
		i := o.table.find(name)
		if i < 0 {
			if s.open {
				continue
			}
			f := Fault{Keyword: KeywordAdditional, Reason: s.reason}
			if echoable(name) {
				f.Path = "/" + Token(name)
			}
			ok = r.add(f)
			if r.full() {
				return false
			}
			continue
		}
		seen |= 1 << i
		m := &o.members[i]
		if at := o.slotOf[i]; at >= 0 {
			slots[at] = member
		}
		before := len(r.faults)
		if !m.shape.check(member, r) {
			ok = false
			r.below(before, Token(name))
			if r.full() {
				return false
			}
		}
	}
	if missing := o.required &^ seen; missing != 0 {
		ok = o.missing(missing, s.reason, r)
	}
	for i := range o.rules {
		if !o.rules[i].check(o, seen, &slots, s.reason, r) {
			ok = false
		}
	}
	if len(o.anySets) > 0 && !o.satisfiesAny(seen) {
		ok = r.add(Fault{Keyword: KeywordAnyOf, Reason: s.reason, MissingOnly: true})
	}
	if ok {
		for _, rule := range o.custom {
			if f := rule(v); f != nil {
				return r.add(*f)
			}
		}
	}
	return ok
}

func (o *object) missing(set uint64, reason string, r *run) bool {
	for ; set != 0; set &= set - 1 {
		name := o.members[bits.TrailingZeros64(set)].name
		r.add(Fault{Path: "/" + Token(name), Keyword: KeywordRequired, Reason: reason, MissingOnly: true})
	}
	return false
}

func (o *object) satisfiesAny(seen uint64) bool {
	for _, set := range o.anySets {
		if set&^seen == 0 {
			return true
		}
	}
	return false
}

// Condition is a rule that holds only for some objects: When a member has a
// value, other members are required, forbidden or narrowed.
type Condition struct {
	tests     []test
	then, els effect
	inElse    bool
	reason    string
}

// test looks at one member, or one member of it.
type test struct {
	name, inner string
	shape       *Shape
	absent      bool
}

type effect struct {
	require, forbid []string
	narrow          []narrowing
}

type narrowing struct {
	name, inner string
	shape       *Shape
}

// When holds if the member at path is there and of the shape. A path is a
// member name or, with one dot, a member of a member: "actor.type".
func When(path string, s *Shape) *Condition { return (&Condition{}).And(path, s) }

// WhenAbsent holds if the object has no member of that name.
func WhenAbsent(name string) *Condition {
	return &Condition{tests: []test{{name: name, absent: true}}}
}

// And adds a test; all tests must hold.
func (c *Condition) And(path string, s *Shape) *Condition {
	name, inner, _ := strings.Cut(path, ".")
	c.tests = append(c.tests, test{name: name, inner: inner, shape: s})
	return c
}

// AndNot adds a test that holds if the member is there and not of the shape.
func (c *Condition) AndNot(path string, s *Shape) *Condition {
	return c.And(path, not(s))
}

// Require demands members.
func (c *Condition) Require(names ...string) *Condition {
	e := c.effect()
	e.require = append(e.require, names...)
	return c
}

// Forbid refuses members.
func (c *Condition) Forbid(names ...string) *Condition {
	e := c.effect()
	e.forbid = append(e.forbid, names...)
	return c
}

// Narrow demands that the member at path, if there, is also of the shape.
func (c *Condition) Narrow(path string, s *Shape) *Condition {
	e := c.effect()
	name, inner, _ := strings.Cut(path, ".")
	e.narrow = append(e.narrow, narrowing{name, inner, s})
	return c
}

// Otherwise turns to the case that the condition does not hold: the demands
// that follow apply then.
func (c *Condition) Otherwise() *Condition {
	c.inElse = true
	return c
}

// Because gives the faults of the rule a reason token. A member demanded for a
// reason counts as wrong, not as merely missing.
func (c *Condition) Because(reason string) *Condition {
	c.reason = reason
	return c
}

func (c *Condition) effect() *effect {
	if c.inElse {
		return &c.els
	}
	return &c.then
}

// not is the complement of a shape; it exists for conditions only, because a
// fault could not say what is wrong.
func not(s *Shape) *Shape { return &Shape{op: opNot, elem: s} }
