package strictjson

import (
	"iter"
	"sort"
	"unicode/utf8"
)

// Kind is the JSON type of a Value.
type Kind uint8

// Kinds. Missing is the kind of the zero Value. Containers come last.
const (
	Missing Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

var kindNames = [...]string{"missing", "null", "boolean", "number", "string", "array", "object"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "invalid"
}

// Value is a cursor on one value of a Document. It is small, copied freely,
// and valid as long as it is held. The zero Value is Missing; every method may
// be called on a Value of any kind and then answers with its zero.
type Value struct {
	d *Document
	i uint32
}

func (v Value) node() *node { return &v.d.nodes[v.i] }

// Kind is the type of the value.
func (v Value) Kind() Kind {
	if v.d == nil {
		return Missing
	}
	return v.node().kind
}

// Exists tells whether there is a value at all.
func (v Value) Exists() bool { return v.d != nil }

// Len is the number of elements or members.
func (v Value) Len() int {
	if v.Kind() < Array {
		return 0
	}
	return int(v.node().b)
}

// Get finds a member of an object by its decoded name. It takes logarithmic
// time in the number of members.
func (v Value) Get(name string) (Value, bool) {
	if v.Kind() != Object {
		return Value{}, false
	}
	n := v.node()
	names := v.d.order[n.c : n.c+n.b]
	if len(names) <= 8 {
		for _, k := range names {
			if v.d.name(k) == name {
				return Value{v.d, k + 1}, true
			}
		}
		return Value{}, false
	}
	at := sort.Search(len(names), func(i int) bool { return compareUTF16(v.d.name(names[i]), name) >= 0 })
	if at < len(names) && v.d.name(names[at]) == name {
		return Value{v.d, names[at] + 1}, true
	}
	return Value{}, false
}

// Member is Get without the second result: a Missing Value when there is none.
func (v Value) Member(name string) Value {
	m, _ := v.Get(name)
	return m
}

// Members walks an object's members in document order; names are decoded.
func (v Value) Members() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		if v.Kind() != Object {
			return
		}
		end := v.node().a
		for k := v.i + 1; k < end; k = after(v.d.nodes, k+1) {
			if !yield(v.d.name(k), Value{v.d, k + 1}) {
				return
			}
		}
	}
}

// SortedMembers walks an object's members in UTF-16 order of their names.
func (v Value) SortedMembers() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		if v.Kind() != Object {
			return
		}
		n := v.node()
		for _, k := range v.d.order[n.c : n.c+n.b] {
			if !yield(v.d.name(k), Value{v.d, k + 1}) {
				return
			}
		}
	}
}

// Items walks an array's elements.
func (v Value) Items() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		if v.Kind() != Array {
			return
		}
		end, n := v.node().a, 0
		for k := v.i + 1; k < end; k = after(v.d.nodes, k) {
			if !yield(n, Value{v.d, k}) {
				return
			}
			n++
		}
	}
}

// Str is the decoded text of a string. An unpaired surrogate appears as the
// three bytes that UTF-8 would use for it (see Unicode); a document that has
// one is refused at stage 5.
func (v Value) Str() string {
	if v.Kind() != String {
		return ""
	}
	return v.d.text(v.node())
}

// Unicode tells whether a string is free of unpaired surrogates.
func (v Value) Unicode() bool { return v.Kind() == String && v.node().flags&flagLone == 0 }

// StrLen is the length of a string in code points, as JSON Schema counts it:
// an unpaired surrogate is one.
func (v Value) StrLen() int {
	if v.Kind() != String {
		return 0
	}
	s, flags := v.d.text(v.node()), v.node().flags
	switch {
	case flags&flagNonASCII == 0:
		return len(s)
	case flags&flagLone == 0:
		return utf8.RuneCountInString(s)
	}
	count := 0
	for i := range len(s) {
		if s[i]&0xC0 != 0x80 {
			count++
		}
	}
	return count
}

// Bool is true for the literal true.
func (v Value) Bool() bool { return v.Kind() == Bool && v.node().flags&flagTrue != 0 }

// IsNull tells whether the value is the literal null.
func (v Value) IsNull() bool { return v.Kind() == Null }

// Raw is a copy of the exact source text of the value.
func (v Value) Raw() []byte {
	if v.d == nil {
		return nil
	}
	return []byte(v.Text())
}

// Text is the exact source text of the value.
func (v Value) Text() string {
	if v.d == nil {
		return ""
	}
	n := v.node()
	return v.d.src[n.start:n.end]
}

// Offset is where the value begins in the source.
func (v Value) Offset() int {
	if v.d == nil {
		return 0
	}
	return int(v.node().start)
}

// NumberText is a number as it was written.
func (v Value) NumberText() string {
	if v.Kind() != Number {
		return ""
	}
	return v.Text()
}

// Float is a number as binary64, correctly rounded; it is infinite for a
// number outside binary64 and 0 for any other kind.
func (v Value) Float() float64 {
	if v.Kind() != Number {
		return 0
	}
	return parseFloat(v.Text())
}

// Int is a number that is exactly an integer within int64, however it is
// written: 1.0 and 1e2 are, 1.5 and 1.00000000000000000001 are not, although
// the latter would round to an integer double.
func (v Value) Int() (int64, bool) {
	if v.Kind() != Number {
		return 0, false
	}
	if v.node().flags&flagPlain != 0 {
		return plainInt(v.Text()), true
	}
	return decimalOf(v.Text()).int64()
}

// Sign is -1, 0 or 1 as a number is exactly below, at or above zero. It tells
// -1e-400 from zero, which Float cannot.
func (v Value) Sign() int {
	if v.Kind() != Number {
		return 0
	}
	return decimalOf(v.Text()).sign()
}

// IsInteger tells whether a number is exactly an integer of any size.
func (v Value) IsInteger() bool {
	if v.Kind() != Number {
		return false
	}
	d := decimalOf(v.Text())
	return d.digits() <= max(d.point, 0)
}
