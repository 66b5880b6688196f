package evidence

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Kind is the type of a JSON value.
type Kind uint8

// The JSON types. Missing is the zero value of an absent member.
const (
	Missing Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

func (k Kind) String() string {
	return [...]string{"nothing", "null", "a boolean", "a number", "a string", "an array", "an object"}[k]
}

// MaxDepth is how deeply arrays and objects may nest.
const MaxDepth = 128

// ErrSyntax is matched by every error of [ParseValue].
var ErrSyntax = errors.New("evidence: not JSON")

// SyntaxError says where bytes stop being one JSON value.
type SyntaxError struct {
	Offset int
	Reason string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("evidence: not JSON at byte %d: %s", e.Offset, e.Reason)
}

// Is makes errors.Is(err, ErrSyntax) true.
func (e *SyntaxError) Is(target error) bool { return target == ErrSyntax }

// Value is one JSON value as it stood on the wire. Strings are WTF-8: UTF-8 in
// which a lone surrogate escape is kept as its three generalised bytes, because
// old signatures cover it. Numbers keep their text. Objects keep every member,
// also duplicates, in wire order. A nil *Value is a missing one.
type Value struct {
	kind    Kind
	lone    bool // a string that holds a lone surrogate
	truth   bool
	text    string
	items   []*Value
	members []Member
}

// Member is one member of an object.
type Member struct {
	Name     string // WTF-8
	NameLone bool   // the name holds a lone surrogate
	Value    *Value
}

// Kind tells the type; Missing for nil.
func (v *Value) Kind() Kind {
	if v == nil {
		return Missing
	}
	return v.kind
}

// Exists tells whether the value is there at all; null is.
func (v *Value) Exists() bool { return v != nil }

// Str is the text of a string, and empty for everything else.
func (v *Value) Str() string {
	if v.Kind() != String {
		return ""
	}
	return v.text
}

// IsTrue tells whether v is true.
func (v *Value) IsTrue() bool { return v.Kind() == Bool && v.truth }

// Items are the elements of an array.
func (v *Value) Items() []*Value {
	if v.Kind() != Array {
		return nil
	}
	return v.items
}

// Members are the members of an object in wire order, duplicates included.
func (v *Value) Members() []Member {
	if v.Kind() != Object {
		return nil
	}
	return v.members
}

// Get is the member of that name, the last one if there are several: what the
// emitters' own parser saw.
func (v *Value) Get(name string) *Value {
	if v.Kind() != Object {
		return nil
	}
	for i := len(v.members) - 1; i >= 0; i-- {
		if v.members[i].Name == name {
			return v.members[i].Value
		}
	}
	return nil
}

// Float is the nearest binary64 of a number; false if it is no number or
// overflows.
func (v *Value) Float() (float64, bool) {
	if v.Kind() != Number {
		return 0, false
	}
	f, err := strconv.ParseFloat(v.text, 64)
	if err != nil { // only out of range is left after parsing
		return f, false
	}
	return f, true
}

const maxSafeInteger = 1<<53 - 1

// Int is the value of a number that is integral and at most 2^53-1 in size.
// 1.0 and 1e3 are integral: the type is a property of the value, not its text.
func (v *Value) Int() (int64, bool) {
	f, ok := v.Float()
	if !ok || f > maxSafeInteger || f < -maxSafeInteger || f != math.Trunc(f) {
		return 0, false
	}
	return int64(f), true
}

// ParseValue reads exactly one JSON value (RFC 8259). Duplicate members and lone
// surrogate escapes are kept for the rules to judge; invalid UTF-8, a byte order
// mark, trailing data and nesting beyond [MaxDepth] are a *SyntaxError.
func ParseValue(raw []byte) (*Value, error) {
	p := parser{src: raw}
	if i := invalidUTF8(raw); i >= 0 {
		return nil, &SyntaxError{i, "invalid UTF-8"}
	}
	p.space()
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	p.space()
	if p.at < len(raw) {
		return nil, p.fail("data after the value")
	}
	return v, nil
}

func invalidUTF8(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

type parser struct {
	src []byte
	at  int
}

func (p *parser) fail(reason string) error { return &SyntaxError{p.at, reason} }

func (p *parser) space() {
	for p.at < len(p.src) {
		switch p.src[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

func (p *parser) peek() byte {
	if p.at < len(p.src) {
		return p.src[p.at]
	}
	return 0
}

func (p *parser) value(depth int) (*Value, error) {
	if depth > MaxDepth {
		return nil, p.fail("nested too deeply")
	}
	switch c := p.peek(); {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		s, lone, err := p.str()
		if err != nil {
			return nil, err
		}
		return &Value{kind: String, text: s, lone: lone}, nil
	case c == '-' || (c >= '0' && c <= '9'):
		return p.number()
	case c == 't':
		return p.word("true", &Value{kind: Bool, truth: true})
	case c == 'f':
		return p.word("false", &Value{kind: Bool})
	case c == 'n':
		return p.word("null", &Value{kind: Null})
	}
	return nil, p.fail("a value expected")
}

func (p *parser) word(w string, v *Value) (*Value, error) {
	if !strings.HasPrefix(string(p.src[p.at:min(p.at+len(w), len(p.src))]), w) {
		return nil, p.fail("a value expected")
	}
	p.at += len(w)
	return v, nil
}

func (p *parser) object(depth int) (*Value, error) {
	v := &Value{kind: Object}
	p.at++
	p.space()
	if p.peek() == '}' {
		p.at++
		return v, nil
	}
	for {
		if p.peek() != '"' {
			return nil, p.fail("a member name expected")
		}
		name, lone, err := p.str()
		if err != nil {
			return nil, err
		}
		p.space()
		if p.peek() != ':' {
			return nil, p.fail("a colon expected")
		}
		p.at++
		p.space()
		m, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		v.members = append(v.members, Member{Name: name, NameLone: lone, Value: m})
		p.space()
		switch p.peek() {
		case ',':
			p.at++
			p.space()
		case '}':
			p.at++
			return v, nil
		default:
			return nil, p.fail("a comma or a closing brace expected")
		}
	}
}

func (p *parser) array(depth int) (*Value, error) {
	v := &Value{kind: Array}
	p.at++
	p.space()
	if p.peek() == ']' {
		p.at++
		return v, nil
	}
	for {
		item, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		v.items = append(v.items, item)
		p.space()
		switch p.peek() {
		case ',':
			p.at++
			p.space()
		case ']':
			p.at++
			return v, nil
		default:
			return nil, p.fail("a comma or a closing bracket expected")
		}
	}
}

func (p *parser) number() (*Value, error) {
	start := p.at
	if p.peek() == '-' {
		p.at++
	}
	switch {
	case p.peek() == '0':
		p.at++
	case !p.digits():
		return nil, p.fail("a digit expected")
	}
	if p.peek() == '.' {
		p.at++
		if !p.digits() {
			return nil, p.fail("a digit expected")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		if !p.digits() {
			return nil, p.fail("a digit expected")
		}
	}
	return &Value{kind: Number, text: string(p.src[start:p.at])}, nil
}

func (p *parser) digits() bool {
	start := p.at
	for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
		p.at++
	}
	return p.at > start
}

// str reads a string into WTF-8 and tells whether a lone surrogate is in it.
func (p *parser) str() (s string, lone bool, err error) {
	p.at++
	start := p.at
	var b []byte // set once an escape was met
	for p.at < len(p.src) {
		switch c := p.src[p.at]; {
		case c == '"':
			if b == nil {
				s = string(p.src[start:p.at])
			} else {
				s = string(append(b, p.src[start:p.at]...))
			}
			p.at++
			return s, lone, nil
		case c < 0x20:
			return "", false, p.fail("a control character in a string")
		case c == '\\':
			b = append(b, p.src[start:p.at]...)
			var l bool
			if b, l, err = p.escape(b); err != nil {
				return "", false, err
			}
			lone = lone || l
			start = p.at
		default:
			p.at++
		}
	}
	return "", false, p.fail("the string does not end")
}

func (p *parser) escape(b []byte) ([]byte, bool, error) {
	p.at++
	c := p.peek()
	if i := strings.IndexByte(`"\/bfnrt`, c); c != 0 && i >= 0 {
		p.at++
		return append(b, "\"\\/\b\f\n\r\t"[i]), false, nil
	}
	if c != 'u' {
		return nil, false, p.fail("an unknown escape")
	}
	u, ok := p.hex4(p.at + 1)
	if !ok {
		return nil, false, p.fail("four hexadecimal digits expected")
	}
	p.at += 5
	switch {
	case u < 0xd800 || u > 0xdfff:
		return utf8.AppendRune(b, u), false, nil
	case u < 0xdc00 && p.peek() == '\\' && p.at+1 < len(p.src) && p.src[p.at+1] == 'u':
		if low, ok := p.hex4(p.at + 2); ok && low >= 0xdc00 && low <= 0xdfff {
			p.at += 6
			return utf8.AppendRune(b, 0x10000+(u-0xd800)<<10+(low-0xdc00)), false, nil
		}
	}
	return append(b, 0xe0|byte(u>>12), 0x80|byte(u>>6)&0x3f, 0x80|byte(u)&0x3f), true, nil
}

func (p *parser) hex4(at int) (rune, bool) {
	if at+4 > len(p.src) {
		return 0, false
	}
	var u rune
	for _, c := range p.src[at : at+4] {
		switch {
		case c >= '0' && c <= '9':
			u = u<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			u = u<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			u = u<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return u, true
}
