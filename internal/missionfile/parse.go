package missionfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxFileSize bounds what is read into memory; a Mission file is prose.
const maxFileSize = 1 << 20

// Error says where a Mission file is wrong.
type Error struct {
	Name   string // the file's name as given
	Line   int    // 1-based; 0 when the whole file is meant
	Field  string // path such as workItems[1].goal; empty when unknown
	Reason string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Name)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	b.WriteString(": ")
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Reason)
	return b.String()
}

// Parse reads and checks source; name is used in errors.
func Parse(name string, source []byte) (*File, error) {
	if len(source) > maxFileSize {
		return nil, &Error{Name: name, Reason: fmt.Sprintf("is larger than %d bytes", maxFileSize)}
	}
	tree, err := parser.ParseBytes(source, 0)
	if err != nil {
		return nil, fromYAML(name, source, err)
	}
	if len(tree.Docs) != 1 || tree.Docs[0].Body == nil {
		return nil, &Error{Name: name, Line: 1, Reason: "must hold exactly one YAML document"}
	}
	var f File
	decoder := yaml.NewDecoder(bytes.NewReader(source), yaml.Strict())
	if err := decoder.Decode(&f); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, &Error{Name: name, Line: 1, Reason: "is empty"}
		}
		return nil, fromYAML(name, source, err)
	}
	c := checker{name: name, tree: tree}
	c.file(&f)
	if c.first != nil {
		return nil, c.first
	}
	return &f, nil
}

var (
	quotedField = regexp.MustCompile(`field "([^"]+)"`)
	keyOfLine   = regexp.MustCompile(`([A-Za-z]+)\s*:`)
)

// fromYAML turns an error of the YAML library into one with line and field.
// The library says where a value stands, not which field it belongs to: that
// is the last key before it on its line.
func fromYAML(name string, source []byte, err error) error {
	out := &Error{Name: name, Reason: firstLine(err.Error())}
	var y yaml.Error
	if errors.As(err, &y) {
		out.Reason = firstLine(y.GetMessage())
		if token := y.GetToken(); token != nil && token.Position != nil {
			out.Line = token.Position.Line
			out.Field = fieldAt(source, token.Position.Line, token.Position.Column)
		}
	}
	if m := quotedField.FindStringSubmatch(out.Reason); m != nil {
		out.Field = m[1]
	}
	return out
}

func fieldAt(source []byte, line, column int) string {
	lines := bytes.Split(source, []byte("\n"))
	if line < 1 || line > len(lines) {
		return ""
	}
	text := lines[line-1]
	keys := keyOfLine.FindAllSubmatch(text[:min(max(column-1, 0), len(text))], -1)
	if len(keys) == 0 {
		return ""
	}
	return string(keys[len(keys)-1][1])
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// lineOf finds the line of the value at a path like workItems[1].goal; where
// the value is absent it is the line of the nearest parent that exists.
func lineOf(tree *ast.File, field string) int {
	for field != "" {
		if path, err := yaml.PathString("$." + field); err == nil {
			if node, err := path.FilterFile(tree); err == nil && node != nil && node.GetToken() != nil {
				return node.GetToken().Position.Line
			}
		}
		cut := strings.LastIndexAny(field, ".[")
		if cut < 0 {
			break
		}
		field = field[:cut]
	}
	return 1
}
