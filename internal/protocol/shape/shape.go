package shape

import (
	"fmt"
	"math"
	"sync"

	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

type op uint8

const (
	opAny op = iota
	opNull
	opBool
	opConstBool
	opString
	opEnum
	opInt
	opNumber
	opArray
	opObject
	opMap
	opUnion
	opAnyOf
	opRef
	opNot // conditions only
)

// Shape is a set of JSON values. Make one with the constructors of this
// package; the zero Shape is not usable.
type Shape struct {
	op       op
	nullable bool
	unique   bool
	open     bool // object: unknown members allowed
	optional bool // array that may be left out: too short is wrong, not missing
	truth    bool // opConstBool
	min, max int  // lengths; max < 0 is unbounded
	lo, hi   int64
	num      *span
	reason   string
	matchers []matcher
	where    []predicate
	values   []string // opEnum
	single   bool     // opEnum made by Const
	elem     *Shape   // array item, map value
	key      *Shape   // map key
	obj      *object
	alts     []*Shape
	tag      string
	tags     map[string]*Shape
	ref      func() *Shape
}

type matcher struct {
	keyword string
	match   func(string) bool
}

type predicate struct {
	reason string
	holds  func(strictjson.Value) bool
}

// Any is every JSON value, null included.
var Any = &Shape{op: opAny}

// Null is the literal null.
var Null = &Shape{op: opNull}

// Bool is true or false.
var Bool = &Shape{op: opBool}

// True and False are the literals.
var (
	True  = &Shape{op: opConstBool, truth: true}
	False = &Shape{op: opConstBool}
)

// AnyObject is every object.
var AnyObject = Object().Open()

// String is a string; bound it with Min, Max, Format, Match.
func String() *Shape { return &Shape{op: opString, max: -1} }

// Text is a string of 1 to max code points that is not only white space
// (COMMANDS.md 3.1, text(n)).
func Text(maxLen int) *Shape {
	return String().Min(1).Max(maxLen).Match(lexical.NotBlank)
}

// Enum is one of the given strings.
func Enum(values ...string) *Shape {
	if len(values) == 0 {
		panic("shape: Enum of nothing")
	}
	return &Shape{op: opEnum, values: values}
}

// Const is exactly one string.
func Const(value string) *Shape {
	return &Shape{op: opEnum, values: []string{value}, single: true}
}

// Int is an integer from lo to hi inclusive; 1.0 and 1e0 are integers.
func Int(lo, hi int64) *Shape { return &Shape{op: opInt, lo: lo, hi: hi} }

// Number is a number from lo to hi inclusive.
func Number(lo, hi float64) *Shape {
	return &Shape{op: opNumber, num: &span{lo: boundOf(lo), hi: boundOf(hi)}}
}

// AtLeast is a number not below lo. A number beyond binary64 is one too: it
// fails at stage 5, not here.
func AtLeast(lo float64) *Shape { return Number(lo, math.Inf(1)) }

// MoreThan is a number above lo.
func MoreThan(lo float64) *Shape {
	s := AtLeast(lo)
	s.num.openLo = true
	return s
}

// Array is an array whose items have one shape; bound it with Min, Max, Unique.
func Array(item *Shape) *Shape { return &Shape{op: opArray, elem: item, max: -1} }

// Map is an object used as a dictionary: every name is of shape key (a
// string shape) and every value of shape value. Min and Max bound the count.
func Map(key, value *Shape) *Shape { return &Shape{op: opMap, key: key, elem: value, max: -1} }

// Union is an object whose member tag, a string, decides its shape. Each
// alternative must itself declare the tag (as Const).
func Union(tag string, alternatives map[string]*Shape) *Shape {
	return &Shape{op: opUnion, tag: tag, tags: alternatives}
}

// AnyOf is a value of at least one of the shapes. A fault names the whole, as
// no alternative is the intended one; prefer Union where a tag decides.
func AnyOf(alternatives ...*Shape) *Shape { return &Shape{op: opAnyOf, alts: alternatives} }

// Ref is a shape that is resolved at its first use, for recursive structures.
func Ref(resolve func() *Shape) *Shape { return &Shape{op: opRef, ref: sync.OnceValue(resolve)} }

// Nullable is the shape or null.
func Nullable(s *Shape) *Shape {
	c := s.copy()
	c.nullable = true
	return c
}

func (s *Shape) copy() *Shape {
	c := *s
	return &c
}

func (s *Shape) sized() *Shape {
	switch s.op {
	case opString, opArray, opMap:
		return s.copy()
	}
	panic(fmt.Sprintf("shape: Min or Max on op %d", s.op))
}

// Min is the least length: code points of a string, items of an array,
// members of a Map.
func (s *Shape) Min(n int) *Shape {
	c := s.sized()
	c.min = n
	return c
}

// Max is the greatest length, counted as for Min.
func (s *Shape) Max(n int) *Shape {
	c := s.sized()
	c.max = n
	return c
}

// Unique requires the items of an array to differ pairwise as JSON values.
func (s *Shape) Unique() *Shape {
	if s.op != opArray {
		panic("shape: Unique on what is not an array")
	}
	c := s.copy()
	c.unique = true
	return c
}

// Match requires fn of the whole string; a failure has the keyword pattern.
func (s *Shape) Match(fn func(string) bool) *Shape { return s.matching(KeywordPattern, fn) }

// Format requires fn of the whole string; a failure has the keyword format.
func (s *Shape) Format(fn func(string) bool) *Shape { return s.matching(KeywordFormat, fn) }

func (s *Shape) matching(keyword string, fn func(string) bool) *Shape {
	if s.op != opString {
		panic("shape: Match or Format on what is not a string")
	}
	c := s.copy()
	c.matchers = append(append([]matcher(nil), s.matchers...), matcher{keyword, fn})
	return c
}

// Because gives faults of this shape itself, not of its parts, a reason token.
func (s *Shape) Because(reason string) *Shape {
	c := s.copy()
	c.reason = reason
	return c
}

// Where adds a test in code that values of the shape must also pass. Its fault
// has the keyword rule and the reason.
func (s *Shape) Where(reason string, holds func(strictjson.Value) bool) *Shape {
	c := s.copy()
	c.where = append(append([]predicate(nil), s.where...), predicate{reason, holds})
	return c
}

// Check returns the first fault of v, or nil. Members are checked in the order
// of the document, then what is missing, then the rules in their order.
func (s *Shape) Check(v strictjson.Value) *Fault { return s.first(v, false) }

// CheckPresent is Check that overlooks what is merely missing: it returns the
// first fault that is not MissingOnly, or nil.
func (s *Shape) CheckPresent(v strictjson.Value) *Fault { return s.first(v, true) }

func (s *Shape) first(v strictjson.Value, skipMissing bool) *Fault {
	r := run{max: 1, skipMissing: skipMissing}
	if s.check(v, &r) || len(r.faults) == 0 {
		return nil
	}
	return &r.faults[0]
}

// CheckAll returns up to limit faults of v in the order of Check.
func (s *Shape) CheckAll(v strictjson.Value, limit int) []Fault {
	r := run{max: limit}
	s.check(v, &r)
	return r.faults
}

// Accepts tells whether v is of the shape. It never allocates for the answer.
func (s *Shape) Accepts(v strictjson.Value) bool {
	var r run
	return s.check(v, &r)
}
