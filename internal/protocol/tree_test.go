package protocol_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// tree is a JSON value that can be changed and written back with every
// spelling kept: scalars and member names are source text.
type tree struct {
	kind  strictjson.Kind
	text  string   // scalars
	names []string // objects: member names as JSON strings
	kids  []*tree
}

func treeOf(v strictjson.Value) *tree {
	t := &tree{kind: v.Kind()}
	switch v.Kind() {
	case strictjson.Object:
		for name, member := range v.Members() {
			t.names = append(t.names, quote(name))
			t.kids = append(t.kids, treeOf(member))
		}
	case strictjson.Array:
		for _, item := range v.Items() {
			t.kids = append(t.kids, treeOf(item))
		}
	default:
		t.text = string(v.Raw())
	}
	return t
}

func parseTree(t testing.TB, b []byte) *tree {
	t.Helper()
	doc, err := strictjson.Parse(b)
	if err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return treeOf(doc.Root())
}

func (t *tree) clone() *tree {
	c := &tree{kind: t.kind, text: t.text, names: slices.Clone(t.names)}
	for _, kid := range t.kids {
		c.kids = append(c.kids, kid.clone())
	}
	return c
}

func (t *tree) append(dst []byte) []byte {
	switch t.kind {
	case strictjson.Object:
		dst = append(dst, '{')
		for i, kid := range t.kids {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = kid.append(append(append(dst, t.names[i]...), ':'))
		}
		return append(dst, '}')
	case strictjson.Array:
		dst = append(dst, '[')
		for i, kid := range t.kids {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = kid.append(dst)
		}
		return append(dst, ']')
	}
	return append(dst, t.text...)
}

func (t *tree) String() string { return string(t.append(nil)) }

func (t *tree) at(token string) int {
	if t.kind == strictjson.Object {
		return slices.Index(t.names, quote(token))
	}
	i, err := strconv.Atoi(token)
	if err != nil || i >= len(t.kids) {
		return -1
	}
	return i
}

// edit sets the value at a JSON Pointer, or removes it when value is nil.
func (t *tree) edit(pointer string, value *tree) error {
	tokens := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, token := range tokens {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		at := t.at(token)
		if i < len(tokens)-1 {
			if at < 0 {
				return fmt.Errorf("nothing at %s", pointer)
			}
			t = t.kids[at]
			continue
		}
		switch {
		case value == nil && at < 0:
			return fmt.Errorf("nothing to drop at %s", pointer)
		case value == nil:
			t.kids = slices.Delete(t.kids, at, at+1)
			if t.kind == strictjson.Object {
				t.names = slices.Delete(t.names, at, at+1)
			}
		case at >= 0:
			t.kids[at] = value
		default:
			t.kids = append(t.kids, value)
			if t.kind == strictjson.Object {
				t.names = append(t.names, quote(token))
			}
		}
	}
	return nil
}

// quote writes a decoded member name or text as JSON; an unpaired surrogate
// goes back to its escape.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < 0x20:
			fmt.Fprintf(&b, `\u%04x`, c)
		case c == 0xED && i+2 < len(s) && s[i+1] >= 0xA0:
			fmt.Fprintf(&b, `\u%04x`, 0xD000|int(s[i+1]&0x3F)<<6|int(s[i+2]&0x3F))
			i += 2
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// ownVector is a document of testdata/structure, changed or not.
type ownVector struct {
	name    string
	kind    protocol.DocumentKind
	doc     *tree
	valid   bool
	path    string
	keyword string
}

func ownVectors(t testing.TB) []ownVector {
	t.Helper()
	files, err := filepath.Glob("testdata/structure/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no own vectors: %v", err)
	}
	var out []ownVector
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var content struct {
			Documents map[string]json.RawMessage
			Valid     []change
			Invalid   []change
		}
		if err := json.Unmarshal(b, &content); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		kind, ok := protocol.KindOf(strings.TrimSuffix(filepath.Base(file), ".json"))
		if !ok {
			t.Fatalf("%s: no such kind", file)
		}
		for name, doc := range content.Documents {
			out = append(out, ownVector{name: "document " + name, kind: kind, doc: parseTree(t, doc), valid: true})
		}
		for _, c := range content.Valid {
			out = append(out, ownVector{name: c.Name, kind: kind, doc: c.apply(t, content.Documents), valid: true})
		}
		for _, c := range content.Invalid {
			out = append(out, ownVector{c.Name, kind, c.apply(t, content.Documents), false, c.Path, c.Keyword})
		}
	}
	slices.SortFunc(out, func(a, b ownVector) int {
		return strings.Compare(string(a.kind)+"/"+a.name, string(b.kind)+"/"+b.name)
	})
	return out
}

// change is a document made from another one: set and drop map JSON Pointers.
type change struct {
	Name, Of, Path, Keyword string
	Set                     map[string]json.RawMessage
	Drop                    []string
}

func (c change) apply(t testing.TB, docs map[string]json.RawMessage) *tree {
	t.Helper()
	base, ok := docs[c.Of]
	if !ok {
		t.Fatalf("%s: no document %q", c.Name, c.Of)
	}
	doc := parseTree(t, base)
	pointers := make([]string, 0, len(c.Set))
	for pointer := range c.Set {
		pointers = append(pointers, pointer)
	}
	slices.Sort(pointers)
	for _, pointer := range pointers {
		if err := doc.edit(pointer, parseTree(t, c.Set[pointer])); err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
	}
	for _, pointer := range c.Drop {
		if err := doc.edit(pointer, nil); err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
	}
	return doc
}
