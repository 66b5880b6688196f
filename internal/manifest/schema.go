package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
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

// schemaReason makes one line of the library's error.
func schemaReason(err error) string {
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	lines = slices.DeleteFunc(lines, func(s string) bool { return strings.TrimSpace(s) == "" })
	return strings.TrimSpace(lines[len(lines)-1])
}
