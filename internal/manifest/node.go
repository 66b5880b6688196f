package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Limits of a source text. Aliases are counted by what they stand for, so that a
// small text cannot unfold into a large manifest.
const (
	MaxSourceBytes = 4 << 20
	maxNodes       = 1 << 20
	maxAliasNodes  = 10_000
	maxDepth       = 48 // less than a canonical form may have
)

type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindNumber
	kindString
	kindList
	kindMap
)

var kindNames = [...]string{"nothing", "a boolean", "a number", "a text", "a list", "a map"}

func (k kind) String() string { return kindNames[k] }

// node is one value of the source text, YAML or JSON, with its line.
type node struct {
	kind    kind
	line    int
	text    string // scalars: the text, for numbers and booleans in JSON spelling
	items   []*node
	members []member // in the order of the text
}

type member struct {
	name  string
	line  int
	value *node
}

func (n *node) get(name string) *node {
	for i := range n.members {
		if n.members[i].name == name {
			return n.members[i].value
		}
	}
	return nil
}

// parseSource reads YAML or JSON. A text whose first character is { is read as
// strict JSON.
func parseSource(file string, source []byte) (*node, error) {
	fault := func(line int, format string, args ...any) error {
		return &Invalid{Faults: []Fault{{File: file, Line: line, Reason: fmt.Sprintf(format, args...)}}}
	}
	switch {
	case len(source) > MaxSourceBytes:
		return nil, fault(1, "is larger than %d bytes", MaxSourceBytes)
	case !utf8.Valid(source):
		return nil, fault(1, "is not UTF-8")
	}
	if trimmed := bytes.TrimLeft(source, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' {
		if doc, err := strictjson.Parse(source); err == nil {
			if _, err := doc.Root().JCS(); err != nil {
				return nil, fault(1, "has a text or a number that no canonical form can hold")
			}
			return fromJSON(doc), nil
		} else if jsonLike(trimmed) {
			line := 1
			var syntax *strictjson.SyntaxError
			if errors.As(err, &syntax) {
				line += bytes.Count(source[:min(syntax.Offset, len(source))], []byte("\n"))
			}
			return nil, fault(line, "is not strict JSON: %s", strings.TrimPrefix(err.Error(), "strictjson: "))
		}
	}
	if line, reason := screen(source); reason != "" {
		return nil, fault(line, "%s", reason)
	}
	tree, err := parseYAML(source)
	if err != nil {
		line := 1
		var y yaml.Error
		reason := firstLine(err.Error())
		if errors.As(err, &y) {
			reason = firstLine(y.GetMessage())
			if t := y.GetToken(); t != nil && t.Position != nil {
				line = t.Position.Line
			}
		}
		return nil, fault(line, "%s", reason)
	}
	var body ast.Node
	for _, d := range tree.Docs {
		if d.Body == nil {
			continue
		}
		if body != nil {
			return nil, fault(lineOfNode(d.Body), "must hold one YAML document, not several")
		}
		body = d.Body
	}
	if body == nil {
		return nil, fault(1, "is empty")
	}
	c := converter{anchors: map[string]ast.Node{}}
	root := c.convert(body, 0)
	if c.reason != "" {
		return nil, fault(c.line, "%s", c.reason)
	}
	return root, nil
}

// jsonLike tells a JSON object from a YAML flow map.
func jsonLike(trimmed []byte) bool {
	rest := bytes.TrimLeft(trimmed[1:], " \t\r\n")
	return len(rest) > 0 && (rest[0] == '"' || rest[0] == '}')
}

// parseYAML guards against the library: a text from outside must not end the
// process, whatever it finds in it.
func parseYAML(source []byte) (tree *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			tree, err = nil, errors.New("cannot be read as YAML")
		}
	}()
	return parser.ParseBytes(source, 0)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

func lineOfNode(n ast.Node) int { return lineOfToken(n.GetToken()) }

func lineOfToken(t *token.Token) int {
	if t == nil || t.Position == nil {
		return 1
	}
	return t.Position.Line
}

// converter turns the YAML tree into nodes; it keeps the first fault.
type converter struct {
	anchors map[string]ast.Node
	open    []string // anchors being defined or expanded
	nodes   int
	aliased int // nodes made below an alias
	inAlias int
	line    int
	reason  string
}

func (c *converter) fail(n ast.Node, format string, args ...any) *node {
	if c.reason == "" {
		c.line, c.reason = 1, fmt.Sprintf(format, args...)
		if n != nil {
			c.line = lineOfNode(n)
		}
	}
	return &node{line: c.line}
}

func (c *converter) convert(n ast.Node, depth int) *node {
	if c.reason != "" {
		return &node{}
	}
	if n == nil {
		return &node{line: 1}
	}
	c.nodes++
	if c.inAlias > 0 {
		c.aliased++
	}
	switch {
	case depth > maxDepth:
		return c.fail(n, "is nested deeper than %d", maxDepth)
	case c.aliased > maxAliasNodes:
		return c.fail(n, "its aliases unfold to more than %d values", maxAliasNodes)
	case c.nodes > maxNodes:
		return c.fail(n, "has more than %d values", maxNodes)
	}
	line := lineOfNode(n)
	switch n := n.(type) {
	case *ast.NullNode:
		return &node{kind: kindNull, line: line}
	case *ast.BoolNode:
		return &node{kind: kindBool, line: line, text: strconv.FormatBool(n.Value)}
	case *ast.IntegerNode:
		return &node{kind: kindNumber, line: line, text: fmt.Sprint(n.Value)}
	case *ast.FloatNode:
		text, err := strictjson.AppendFloat(nil, n.Value)
		if err != nil {
			return c.fail(n, "is a number outside JSON")
		}
		return &node{kind: kindNumber, line: line, text: string(text)}
	case *ast.StringNode:
		return &node{kind: kindString, line: line, text: n.Value}
	case *ast.LiteralNode:
		return &node{kind: kindString, line: line, text: n.Value.Value}
	case *ast.SequenceNode:
		out := &node{kind: kindList, line: line, items: make([]*node, 0, len(n.Values))}
		for _, item := range n.Values {
			out.items = append(out.items, c.convert(item, depth+1))
		}
		return out
	case *ast.MappingNode:
		return c.mapping(line, n.Values, depth)
	case *ast.MappingValueNode:
		return c.mapping(line, []*ast.MappingValueNode{n}, depth)
	case *ast.AnchorNode:
		return c.anchor(n, depth)
	case *ast.AliasNode:
		return c.alias(n, depth)
	case *ast.InfinityNode, *ast.NanNode:
		return c.fail(n, "is a number outside JSON")
	case *ast.TagNode:
		return c.fail(n, "has a YAML tag; a manifest has none")
	default:
		return c.fail(n, "is not a value of a manifest")
	}
}

func (c *converter) mapping(line int, values []*ast.MappingValueNode, depth int) *node {
	out := &node{kind: kindMap, line: line, members: make([]member, 0, len(values))}
	seen := make(map[string]bool, len(values))
	for _, v := range values {
		name, ok := keyText(v.Key)
		if !ok {
			c.fail(v.Key, "has a key that is not a name")
			break
		}
		if seen[name] {
			c.fail(v.Key, "has the key %s twice", strconv.Quote(name))
			break
		}
		seen[name] = true
		out.members = append(out.members, member{name, lineOfNode(v.Key), c.convert(v.Value, depth+1)})
	}
	return out
}

// keyText is the name that a key spells; merges and aliases as keys are refused.
func keyText(k ast.MapKeyNode) (string, bool) {
	switch k := k.(type) {
	case *ast.StringNode:
		return k.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode:
		return k.GetToken().Value, true
	case *ast.MappingKeyNode:
		inner, ok := k.Value.(ast.MapKeyNode)
		if !ok {
			return "", false
		}
		if _, again := inner.(*ast.MappingKeyNode); again {
			return "", false
		}
		return keyText(inner)
	}
	return "", false
}

func (c *converter) anchor(n *ast.AnchorNode, depth int) *node {
	name := n.Name.GetToken().Value
	c.anchors[name] = n.Value
	c.open = append(c.open, name)
	out := c.convert(n.Value, depth)
	c.open = c.open[:len(c.open)-1]
	return out
}

func (c *converter) alias(n *ast.AliasNode, depth int) *node {
	name := n.Value.GetToken().Value
	target, ok := c.anchors[name]
	if !ok {
		return c.fail(n, "has the alias %s of nothing", strconv.Quote(name))
	}
	for _, o := range c.open {
		if o == name {
			return c.fail(n, "has the alias %s inside of itself", strconv.Quote(name))
		}
	}
	c.open = append(c.open, name)
	c.inAlias++
	out := c.convert(target, depth+1)
	c.inAlias--
	c.open = c.open[:len(c.open)-1]
	return out
}

// fromJSON makes the same tree of a JSON text.
func fromJSON(doc *strictjson.Document) *node {
	var breaks []int
	for i, b := range doc.Bytes() {
		if b == '\n' {
			breaks = append(breaks, i)
		}
	}
	return jsonNode(doc.Root(), breaks)
}

func jsonNode(v strictjson.Value, breaks []int) *node {
	n := &node{line: 1 + sort.SearchInts(breaks, v.Offset())}
	switch v.Kind() {
	case strictjson.Bool:
		n.kind, n.text = kindBool, v.Text()
	case strictjson.Number:
		n.kind, n.text = kindNumber, v.Text()
	case strictjson.String:
		n.kind, n.text = kindString, v.Str()
	case strictjson.Array:
		n.kind = kindList
		for _, item := range v.Items() {
			n.items = append(n.items, jsonNode(item, breaks))
		}
	case strictjson.Object:
		n.kind = kindMap
		for name, value := range v.Members() {
			m := jsonNode(value, breaks)
			n.members = append(n.members, member{name, m.line, m})
		}
	}
	return n
}

// appendJSON writes the value as JSON, members in the order of the text. It does
// not fail: texts are UTF-8 and numbers are spelled as JSON spells them.
func (n *node) appendJSON(dst []byte) []byte {
	switch n.kind {
	case kindNull:
		return append(dst, "null"...)
	case kindBool, kindNumber:
		return append(dst, n.text...)
	case kindString:
		return appendText(dst, n.text)
	case kindList:
		dst = append(dst, '[')
		for i, item := range n.items {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = item.appendJSON(dst)
		}
		return append(dst, ']')
	default:
		dst = append(dst, '{')
		for i := range n.members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendText(dst, n.members[i].name), ':')
			dst = n.members[i].value.appendJSON(dst)
		}
		return append(dst, '}')
	}
}

func appendText(dst []byte, s string) []byte {
	out, err := strictjson.AppendString(dst, strings.ToValidUTF8(s, "\uFFFD"))
	if err != nil {
		return append(dst, `""`...)
	}
	return out
}
