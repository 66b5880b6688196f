package strictjson

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"sync"
	"unicode/utf8"
)

// MaxDepth is the default bound on container nesting: 64 nested arrays or
// objects are accepted, 65 are not.
const MaxDepth = 64

const (
	flagEscaped  = 1 << iota // string: decoded text is in Document.dec
	flagLone                 // string: contains an unpaired surrogate
	flagNonASCII             // string: decoded text has a byte above 0x7f
	flagPlain                // number: an integer of at most 15 digits, not -0: its text is canonical
	flagTrue                 // bool
)

// node is one value or member name, in document order. start and end bound
// its source text (a string with its quotes).
//
//	container  a: index of the first node after it, b: number of elements or
//	           members, c: (object) where its names begin in Document.order
//	string     a, b: start and length in Document.dec when flagEscaped
type node struct {
	start, end uint32
	a, b, c    uint32
	kind       Kind
	flags      uint8
}

// tree is a parsed text: the parser's result over its scratch bytes, and a
// Document's content over strings that nobody can change.
type tree[T []byte | string] struct {
	src   T
	dec   T // decoded text of strings written with escapes
	nodes []node
	order []uint32 // per object: its name nodes in UTF-16 order
}

// text is the decoded text of string node n.
func (t *tree[T]) text(n *node) T {
	if n.flags&flagEscaped != 0 {
		return t.dec[n.a : n.a+n.b]
	}
	return t.src[n.start+1 : n.end-1]
}

// name is the decoded text of string node i.
func (t *tree[T]) name(i uint32) T { return t.text(&t.nodes[i]) }

// Document is one parsed JSON text. It is immutable, whatever becomes of the
// bytes it was parsed from, and safe for concurrent use.
type Document struct {
	tree[string]
	given []byte
}

// Parse reads b as exactly one strict JSON value (stage 1). The error is a
// *SyntaxError.
func Parse(b []byte) (*Document, error) { return ParseDepth(b, MaxDepth) }

// ParseDepth is Parse with another bound on nesting. A maxDepth of 0 accepts
// scalars only.
func ParseDepth(b []byte, maxDepth int) (*Document, error) {
	p := borrowParser(maxDepth)
	defer p.giveBack()
	if err := p.parse(b); err != nil {
		return nil, err
	}
	// The scratch goes back to the pool; the Document gets copies of exact size.
	d := &Document{given: b}
	d.src, d.dec = string(b), string(p.dec)
	if spare, ok := spares.Get().(*Document); ok && cap(spare.nodes) >= len(p.nodes) && cap(spare.order) >= len(p.order) {
		d.nodes, d.order = append(spare.nodes[:0], p.nodes...), append(spare.order[:0], p.order...)
		return d, nil
	}
	d.nodes, d.order = slices.Clone(p.nodes), slices.Clone(p.order)
	return d, nil
}

// spares are Documents that nobody looks at any more, for their memory.
var spares sync.Pool

// Recycle gives the memory of v's Document to one that will be parsed. Whoever calls
// it holds the only Values of the Document: every use of one panics from now on.
// Texts that were taken from it stay as they are. It is for readers of very many
// documents, for whom collecting them would cost more than reading them.
func Recycle(v Value) {
	if v.d == nil || v.d.nodes == nil || cap(v.d.nodes) > maxPooled {
		return
	}
	spare := &Document{tree: tree[string]{nodes: v.d.nodes, order: v.d.order}}
	v.d.nodes, v.d.order = nil, nil
	spares.Put(spare)
}

// Root is the document's value.
func (d *Document) Root() Value { return Value{d: d} }

// Bytes is the slice that was given to Parse.
func (d *Document) Bytes() []byte { return d.given }

// parser is a recursive-descent reader; max bounds the recursion. Its slices
// are scratch that outlives a parse in the pool.
type parser struct {
	tree[[]byte]
	i    int
	keys []sortKey
	max  int
	err  *SyntaxError

	compared int // bytes of names looked at beyond their prefixes, for the growth test
}

var parsers = sync.Pool{New: func() any { return new(parser) }}

// maxPooled bounds, in elements, what one huge text leaves behind in the pool.
const maxPooled = 1 << 14

func borrowParser(maxDepth int) *parser {
	p := parsers.Get().(*parser)
	p.nodes, p.order, p.dec = p.nodes[:0], p.order[:0], p.dec[:0]
	p.max, p.compared = maxDepth, 0
	return p
}

func (p *parser) giveBack() {
	p.src, p.err = nil, nil
	if cap(p.nodes) <= maxPooled && cap(p.keys) <= maxPooled && cap(p.dec) <= maxPooled {
		parsers.Put(p)
	}
}

func (p *parser) parse(b []byte) error {
	p.src, p.i, p.err = b, 0, nil
	if len(b) > math.MaxInt32 {
		return &SyntaxError{Offset: 0, Reason: ReasonTooLarge}
	}
	if len(b) >= 3 && b[0] == 0xEF && b[1] == 0xBB && b[2] == 0xBF {
		return &SyntaxError{Offset: 0, Reason: ReasonBOM}
	}
	p.space()
	if p.i == len(b) {
		return &SyntaxError{Offset: p.i, Reason: ReasonEmpty}
	}
	if !p.value(0) {
		return p.err
	}
	p.space()
	if p.i != len(b) {
		return &SyntaxError{Offset: p.i, Reason: ReasonTrailing}
	}
	return nil
}

func (p *parser) fail(at int, reason string) bool {
	if at >= len(p.src) {
		at, reason = len(p.src), ReasonTruncated
	}
	p.err = &SyntaxError{Offset: at, Reason: reason}
	return false
}

func (p *parser) space() {
	for p.i < len(p.src) {
		switch p.src[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

// peek is the current byte, or 0 at the end (0 is never valid here either).
func (p *parser) peek() byte {
	if p.i < len(p.src) {
		return p.src[p.i]
	}
	return 0
}

func (p *parser) value(depth int) bool {
	switch c := p.peek(); c {
	case '"':
		return p.str()
	case '{':
		return p.object(depth)
	case '[':
		return p.array(depth)
	case 't':
		return p.literal("true", Bool, flagTrue)
	case 'f':
		return p.literal("false", Bool, 0)
	case 'n':
		return p.literal("null", Null, 0)
	default:
		if c == '-' || '0' <= c && c <= '9' {
			return p.number()
		}
		return p.fail(p.i, ReasonUnexpected)
	}
}

func (p *parser) literal(word string, kind Kind, flags uint8) bool {
	start := p.i
	for j := range len(word) {
		if p.peek() != word[j] {
			return p.fail(p.i, ReasonLiteral)
		}
		p.i++
	}
	p.nodes = append(p.nodes, node{start: uint32(start), end: uint32(p.i), kind: kind, flags: flags})
	return true
}

func (p *parser) array(depth int) bool {
	if depth >= p.max {
		return p.fail(p.i, ReasonDepth)
	}
	self, start, count := len(p.nodes), p.i, 0
	p.nodes = append(p.nodes, node{})
	p.i++
	p.space()
	if p.peek() != ']' {
		for {
			if !p.value(depth + 1) {
				return false
			}
			count++
			p.space()
			if c := p.peek(); c == ',' {
				p.i++
				p.space()
				continue
			} else if c != ']' {
				return p.fail(p.i, ReasonUnexpected)
			}
			break
		}
	}
	p.i++
	p.nodes[self] = node{
		start: uint32(start), end: uint32(p.i), kind: Array,
		a: uint32(len(p.nodes)), b: uint32(count),
	}
	return true
}

func (p *parser) object(depth int) bool {
	if depth >= p.max {
		return p.fail(p.i, ReasonDepth)
	}
	self, start, count := len(p.nodes), p.i, 0
	p.nodes = append(p.nodes, node{})
	p.i++
	p.space()
	if p.peek() != '}' {
		for {
			if p.peek() != '"' {
				return p.fail(p.i, ReasonUnexpected)
			}
			if !p.str() {
				return false
			}
			p.space()
			if p.peek() != ':' {
				return p.fail(p.i, ReasonUnexpected)
			}
			p.i++
			p.space()
			if !p.value(depth + 1) {
				return false
			}
			count++
			p.space()
			if c := p.peek(); c == ',' {
				p.i++
				p.space()
				continue
			} else if c != '}' {
				return p.fail(p.i, ReasonUnexpected)
			}
			break
		}
	}
	p.i++
	p.nodes[self] = node{
		start: uint32(start), end: uint32(p.i), kind: Object,
		a: uint32(len(p.nodes)), b: uint32(count), c: uint32(len(p.order)),
	}
	return p.sortMembers(self, count)
}

// after is the index of the node that follows value i and all it contains.
func after(nodes []node, i uint32) uint32 {
	if n := &nodes[i]; n.kind >= Array {
		return n.a
	}
	return i + 1
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// str reads a string with p.i at the opening quote.
func (p *parser) str() bool {
	start := p.i
	src := p.src
	i := start + 1
	flags := uint8(0)
	for {
		// Eight bytes at a time while none is a quote, a backslash, a control
		// character or outside ASCII. A borrow can only spoil bytes above a
		// true hit, and only the lowest hit is used.
		for i+8 <= len(src) {
			w := binary.LittleEndian.Uint64(src[i:])
			hit := (w - 0x20*ones) | ((w ^ '"'*ones) - ones) | ((w ^ '\\'*ones) - ones) | w
			if hit &= highs; hit != 0 {
				i += bits.TrailingZeros64(hit) >> 3
				break
			}
			i += 8
		}
		if i >= len(src) {
			return p.fail(i, ReasonTruncated)
		}
		switch c := src[i]; {
		case c == '"':
			i++
			p.i = i
			p.nodes = append(p.nodes, node{start: uint32(start), end: uint32(i), kind: String, flags: flags})
			return true
		case c == '\\':
			return p.escaped(start, i, flags)
		case c < 0x20:
			return p.fail(i, ReasonControl)
		case c < utf8.RuneSelf:
			i++
		default:
			_, size := utf8.DecodeRune(src[i:])
			if size == 1 {
				return p.fail(i, ReasonUTF8)
			}
			flags |= flagNonASCII
			i += size
		}
	}
}

// number reads a number with p.i at its first byte.
func (p *parser) number() bool {
	start := p.i
	if p.peek() == '-' {
		p.i++
	}
	first := p.i
	switch c := p.peek(); {
	case c == '0':
		p.i++
	case '1' <= c && c <= '9':
		p.digits()
	default:
		return p.fail(p.i, ReasonNumber)
	}
	flags := uint8(0)
	if p.i-first <= 15 && (p.src[first] != '0' || first == start) {
		flags = flagPlain
	}
	if p.peek() == '.' {
		flags = 0
		p.i++
		if p.digits() == 0 {
			return p.fail(p.i, ReasonNumber)
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		flags = 0
		p.i++
		if c := p.peek(); c == '+' || c == '-' {
			p.i++
		}
		if p.digits() == 0 {
			return p.fail(p.i, ReasonNumber)
		}
	}
	p.nodes = append(p.nodes, node{start: uint32(start), end: uint32(p.i), kind: Number, flags: flags})
	return true
}

func (p *parser) digits() int {
	from := p.i
	for p.i < len(p.src) && p.src[p.i]-'0' <= 9 {
		p.i++
	}
	return p.i - from
}
