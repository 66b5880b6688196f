package protocol_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// oracle is a Draft 2020-12 interpreter running the normative schemas, formats
// asserted by our own strict checkers: the independent judge of structure.
type oracle struct {
	schemas map[protocol.DocumentKind]*jsonschema.Schema
	sources map[string]any // schema documents by file name
	// words are the strings that the schemas name (enum, const) by member.
	words map[string][]string
	// bounds are the lengths and limits that the schemas name by member.
	bounds map[string][]int
	// objects are the member names of each object that the schemas describe.
	objects [][]string
}

func newOracle(t testing.TB, root string) *oracle {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	c.RegisterFormat(&jsonschema.Format{Name: "uri", Validate: onStrings(lexical.ValidURI)})
	c.RegisterFormat(&jsonschema.Format{Name: "date-time", Validate: onStrings(lexical.ValidTimestamp)})
	c.UseRegexpEngine(ecmaRegexp)
	o := &oracle{
		schemas: map[protocol.DocumentKind]*jsonschema.Schema{},
		sources: map[string]any{},
		words:   map[string][]string{},
		bounds:  map[string][]int{},
	}
	var urls []string
	for _, kind := range protocol.DocumentKinds() {
		file := string(kind) + ".schema.json"
		f, err := os.Open(filepath.Join(root, "schemas", file))
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		url := doc.(map[string]any)["$id"].(string)
		if err := c.AddResource(url, doc); err != nil {
			t.Fatal(err)
		}
		urls = append(urls, url)
		o.sources[file] = doc
	}
	for i, kind := range protocol.DocumentKinds() {
		s, err := c.Compile(urls[i])
		if err != nil {
			t.Fatal(err)
		}
		o.schemas[kind] = s
		file := string(kind) + ".schema.json"
		o.collect(file, o.sources[file], "", 0)
	}
	tidy(o.words)
	tidy(o.bounds)
	slices.SortFunc(o.objects, slices.Compare)
	o.objects = slices.CompactFunc(o.objects, slices.Equal)
	return o
}

func tidy[T cmp.Ordered](m map[string][]T) {
	for name, list := range m {
		slices.Sort(list)
		m[name] = slices.Compact(list)
	}
}

func onStrings(valid func(string) bool) func(any) error {
	return func(v any) error {
		if s, ok := v.(string); ok && !valid(s) {
			return errors.New("not of the format")
		}
		return nil
	}
}

// collect gathers the vocabulary of a schema of a file, references followed;
// member is the property that the schema is for.
func (o *oracle) collect(file string, schema any, member string, depth int) {
	if depth > 12 {
		return
	}
	switch s := schema.(type) {
	case []any:
		for _, sub := range s {
			o.collect(file, sub, member, depth+1)
		}
	case map[string]any:
		for key, sub := range s {
			switch key {
			case "properties":
				var names []string
				for name, property := range sub.(map[string]any) {
					names = append(names, name)
					o.collect(file, property, name, depth+1)
				}
				slices.Sort(names)
				o.objects = append(o.objects, names)
			case "enum":
				o.collectWords(sub.([]any), member)
			case "const":
				o.collectWords([]any{sub}, member)
			case "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum":
				if n, err := sub.(json.Number).Int64(); err == nil {
					o.bounds[member] = append(o.bounds[member], int(n))
				}
			case "$ref":
				target, pointer, _ := strings.Cut(sub.(string), "#")
				if target == "" {
					target = file
				}
				at := o.sources[target]
				for _, token := range strings.Split(strings.TrimPrefix(pointer, "/"), "/") {
					if token != "" {
						at = at.(map[string]any)[token]
					}
				}
				o.collect(target, at, member, depth+1)
			default:
				o.collect(file, sub, member, depth+1)
			}
		}
	}
}

func (o *oracle) collectWords(words []any, member string) {
	for _, word := range words {
		if text, ok := word.(string); ok {
			o.words[member] = append(o.words[member], text)
		}
	}
}

// accepts is the oracle's verdict on a parsed document.
func (o *oracle) accepts(kind protocol.DocumentKind, v strictjson.Value) (bool, error) {
	err := o.schemas[kind].Validate(oracleValue(v))
	return err == nil, err
}

// oracleValue converts a value to what the interpreter takes. Numbers stay
// text, so that it compares them exactly. An
// unpaired surrogate, which Go cannot hold in a string, becomes one code point
// of a private plane, so that it counts as one and differs from all others.
func oracleValue(v strictjson.Value) any {
	switch v.Kind() {
	case strictjson.Object:
		m := make(map[string]any, v.Len())
		for name, member := range v.Members() {
			m[oracleText(name)] = oracleValue(member)
		}
		return m
	case strictjson.Array:
		list := make([]any, 0, v.Len())
		for _, item := range v.Items() {
			list = append(list, oracleValue(item))
		}
		return list
	case strictjson.String:
		return oracleText(v.Str())
	case strictjson.Number:
		return json.Number(v.NumberText())
	case strictjson.Bool:
		return v.Bool()
	}
	return nil
}

func oracleText(s string) string {
	if !strings.Contains(s, "\xED") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == 0xED && i+2 < len(s) && s[i+1] >= 0xA0 {
			b.WriteRune(0x100000 + 0xD000 + rune(s[i+1]&0x3F)<<6 + rune(s[i+2]&0x3F))
			i += 2
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// ecmaRegexp runs the schemas' ECMA-262 patterns on Go's engine: \S knows all
// Unicode white space, and the look-aheads of the duration pattern, which Go
// lacks, are written out.
func ecmaRegexp(pattern string) (jsonschema.Regexp, error) {
	source := strings.ReplaceAll(pattern, `\S`,
		`[^\t\n\v\f\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}]`)
	var also func(string) bool
	if strings.Contains(pattern, "(?!$)") && strings.Contains(pattern, "(?=[0-9])") {
		source = strings.ReplaceAll(strings.ReplaceAll(source, "(?!$)", ""), "(?=[0-9])", "")
		after := regexp.MustCompile(`T[0-9]`)
		also = func(s string) bool {
			return s != "P" && (!strings.Contains(s, "T") || after.MatchString(s))
		}
	}
	re, err := regexp.Compile(source)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pattern, err)
	}
	return &ecmaPattern{re, pattern, also}, nil
}

type ecmaPattern struct {
	re      *regexp.Regexp
	pattern string
	also    func(string) bool
}

func (p *ecmaPattern) MatchString(s string) bool {
	return p.re.MatchString(s) && (p.also == nil || p.also(s))
}

func (p *ecmaPattern) String() string { return p.pattern }
