package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// keywords of JSON Schema 2020-12 and what their value is made of: s a schema, l a
// list of schemas, m a map of schemas, v a value without schemas. A word that is
// not here is a typing error as a rule, and one that would open the schema. $ref
// stays inside of the schema; what is fetched or remembered elsewhere is left out.
var keywords = map[string]byte{
	"$schema": 'v', "$comment": 'v', "$defs": 'm', "$ref": 'v', "$anchor": 'v',
	"title": 'v', "description": 'v', "default": 'v', "examples": 'v', "deprecated": 'v', "readOnly": 'v', "writeOnly": 'v',
	"type": 'v', "enum": 'v', "const": 'v', "format": 'v',
	"multipleOf": 'v', "maximum": 'v', "exclusiveMaximum": 'v', "minimum": 'v', "exclusiveMinimum": 'v',
	"maxLength": 'v', "minLength": 'v', "pattern": 'v',
	"maxItems": 'v', "minItems": 'v', "uniqueItems": 'v', "maxContains": 'v', "minContains": 'v',
	"maxProperties": 'v', "minProperties": 'v', "required": 'v', "dependentRequired": 'v',
	"allOf": 'l', "anyOf": 'l', "oneOf": 'l', "prefixItems": 'l',
	"not": 's', "if": 's', "then": 's', "else": 's', "items": 's', "contains": 's',
	"additionalProperties": 's', "propertyNames": 's', "unevaluatedItems": 's', "unevaluatedProperties": 's',
	"properties": 'm', "patternProperties": 'm', "dependentSchemas": 'm',
}

// checkKeywords finds words that are none.
func (f *faults) checkKeywords(n *node, path string) {
	if n.kind != kindMap {
		if n.kind != kindBool {
			f.add(path, "must be a schema: a map, true or false")
		}
		return
	}
	for i := range n.members {
		m := &n.members[i]
		at := join(path, m.name)
		what, ok := keywords[m.name]
		switch {
		case !ok:
			f.at(m.line, at, "is not a keyword of JSON Schema that is known here")
		case m.name == "$ref" && !strings.HasPrefix(m.value.text, "#"):
			f.at(m.line, at, "may only refer to its own schema")
		case what == 's':
			f.checkKeywords(m.value, at)
		case what == 'l':
			for j, item := range m.value.items {
				f.checkKeywords(item, fmt.Sprintf("%s[%d]", at, j))
			}
		case what == 'm':
			for j := range m.value.members {
				f.checkKeywords(m.value.members[j].value, join(at, m.value.members[j].name))
			}
		}
	}
}

type noLoader struct{}

func (noLoader) Load(string) (any, error) {
	return nil, errors.New("schemas are not fetched")
}

// compileSchema compiles a parameter schema on its own.
func compileSchema(schema []byte) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	c.UseLoader(noLoader{})
	const at = "urn:parameters"
	if err := c.AddResource(at, doc); err != nil {
		return nil, err
	}
	return c.Compile(at)
}

// schemaLoop finds a schema that comes back to itself about the same value: through
// $ref, allOf and their like, and not through a member or an item. Validation would
// give up on it every time. at is its place, as a JSON Pointer.
func schemaLoop(root *jsonschema.Schema) (at string, found bool) {
	const entered, left = 1, 2
	state := map[*jsonschema.Schema]int{}
	var below []*jsonschema.Schema
	var visit func(s *jsonschema.Schema) bool
	visit = func(s *jsonschema.Schema) bool {
		switch {
		case s == nil || state[s] == left:
			return false
		case state[s] == entered:
			_, at, _ = strings.Cut(s.Location, "#")
			return true
		}
		state[s] = entered
		same := slices.Concat([]*jsonschema.Schema{s.Ref, s.Not, s.If, s.Then, s.Else}, s.AllOf, s.AnyOf, s.OneOf)
		for _, name := range slices.Sorted(maps.Keys(s.DependentSchemas)) {
			same = append(same, s.DependentSchemas[name])
		}
		for _, x := range same {
			if visit(x) {
				return true
			}
		}
		state[s] = left
		below = append(below, parts(s)...)
		return false
	}
	for queue := []*jsonschema.Schema{root}; len(queue) > 0; queue = queue[1:] {
		if visit(queue[0]) {
			return at, true
		}
		queue, below = append(queue, below...), nil
	}
	return "", false
}

// parts are the schemas of a value's parts.
func parts(s *jsonschema.Schema) (out []*jsonschema.Schema) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		out = append(out, s.Properties[name])
	}
	for _, x := range s.PatternProperties {
		out = append(out, x)
	}
	out = append(out, s.PrefixItems...)
	out = append(out, s.PropertyNames, s.UnevaluatedProperties, s.Contains, s.Items2020, s.UnevaluatedItems)
	for _, x := range []any{s.AdditionalProperties, s.AdditionalItems, s.Items} {
		if one, ok := x.(*jsonschema.Schema); ok {
			out = append(out, one)
		}
	}
	return out
}

// pathSteps are the steps of a JSON Pointer in the spelling of fault paths.
func pathSteps(pointer string) (steps []string) {
	for _, part := range strings.Split(pointer, "/")[1:] {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		if _, err := strconv.Atoi(part); err == nil {
			steps = append(steps, "["+part+"]")
			continue
		}
		steps = append(steps, "."+part)
	}
	return steps
}

// schemaReason makes one line of the library's error.
func schemaReason(err error) string {
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	lines = slices.DeleteFunc(lines, func(s string) bool { return strings.TrimSpace(s) == "" })
	return strings.TrimSpace(lines[len(lines)-1])
}
