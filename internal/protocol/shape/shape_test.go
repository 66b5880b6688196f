package shape_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

func parse(t testing.TB, text string) strictjson.Value {
	t.Helper()
	doc, err := strictjson.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return doc.Root()
}

// verdict is "" for a value of the shape, else path, keyword and reason.
func verdict(f *shape.Fault) string {
	if f == nil {
		return ""
	}
	return strings.TrimSpace(f.Path + " " + f.Keyword + " " + f.Reason)
}

var letters = func(s string) bool { return strings.Trim(s, "abc") == "" }

func TestShapes(t *testing.T) {
	tests := []struct {
		rule  string
		shape *shape.Shape
		cases map[string]string
	}{
		{"any value, null included", shape.Any, map[string]string{`null`: "", `[]`: "", `1`: ""}},
		{"null", shape.Null, map[string]string{`null`: "", `0`: "type"}},
		{"booleans", shape.Bool, map[string]string{`true`: "", `false`: "", `0`: "type", `"true"`: "type"}},
		{"one boolean", shape.False, map[string]string{`false`: "", `true`: "const", `0`: "const", `null`: "const"}},
		{"one string", shape.Const("a"), map[string]string{`"a"`: "", `"\u0061"`: "", `"b"`: "const", `1`: "const"}},
		{"some strings", shape.Enum("a", "b"), map[string]string{`"b"`: "", `"c"`: "enum", `null`: "enum"}},
		{"null only where allowed", shape.Nullable(shape.Bool), map[string]string{`null`: "", `true`: "", `1`: "type"}},
		{"lengths count code points", shape.String().Min(2).Max(3), map[string]string{
			`"a"`: "minLength", `"ab"`: "", `"abc"`: "", `"abcd"`: "maxLength",
			`"é"`: "minLength", `"ééé"`: "", `"🧶🧶🧶"`: "", `"🧶🧶🧶🧶"`: "maxLength",
			`"🧶"`: "minLength", `"\ud83e\uddf6"`: "minLength",
			`"\ud83e\ud83e\ud83e"`: "", `"\ud83e"`: "minLength", `"\ud83e\ud83e\ud83e\ud83e"`: "maxLength",
			`["a","b"]`: "type",
		}},
		{"patterns and formats", shape.String().Format(letters).Match(func(s string) bool { return len(s) < 3 }), map[string]string{
			`"ab"`: "", `"xy"`: "format", `"abc"`: "pattern",
		}},
		{"texts are not blank", shape.Text(4), map[string]string{
			`" a "`: "", `""`: "minLength", `" \t\n"`: "pattern", `"\u00a0\ufeff"`: "pattern", `"\u200b"`: "", `"abcde"`: "maxLength",
		}},
		{"integers by value", shape.Int(-1, 1000), map[string]string{
			`0`: "", `-0`: "", `1.0`: "", `1e0`: "", `1E+2`: "", `10000e-2`: "", `0.1e1`: "", `1.5`: "type", `1e-1`: "type",
			`-2`: "minimum", `1001`: "maximum", `1e3`: "", `1e4`: "maximum", `1e400`: "maximum", `-1e400`: "minimum",
			`123456789012345678901234567890`: "maximum", `1.00000000000000000000000001`: "type", `"1"`: "type",
		}},
		{"numbers exactly", shape.Number(0, 1), map[string]string{
			`0`: "", `-0.0`: "", `1`: "", `1.0`: "", `0.5`: "", `1.00000000000000000001`: "maximum", `0.99999999999999999999`: "",
			`-1e-400`: "minimum", `1e-400`: "", `1e400`: "maximum", `true`: "type",
		}},
		{"numbers without an upper bound", shape.AtLeast(0), map[string]string{`1e400`: "", `-1e400`: "minimum"}},
		{"numbers above a bound", shape.MoreThan(0), map[string]string{`0`: "minimum", `-0`: "minimum", `1e-400`: "", `0.1`: ""}},
		{"arrays", shape.Array(shape.Int(0, 9)).Min(1).Max(3), map[string]string{
			`[]`: "minItems", `[1]`: "", `[1,2,3]`: "", `[1,2,3,4]`: "maxItems", `[1,"2"]`: "/1 type", `{}`: "type",
		}},
		{"distinct items", shape.Array(shape.Any).Unique(), map[string]string{
			`[1,2]`: "", `[1,1.0]`: "/1 uniqueItems", `[0,-0]`: "/1 uniqueItems", `[1,"1"]`: "", `[0,false]`: "", `[null,null]`: "/1 uniqueItems",
			`["a","\u0061"]`: "/1 uniqueItems", `[{"a":1,"b":2},{"b":2.0,"a":1}]`: "/1 uniqueItems", `[{"a":1},{"a":2}]`: "",
			`[[1,2],[2,1]]`: "", `[[],{}]`: "", `["\ud800","\ud801"]`: "", `["\ud800","\ud800"]`: "/1 uniqueItems",
			`[1e400,1e401]`: "", `[1,2,3,1,2]`: "/3 uniqueItems",
		}},
		{"dictionaries", shape.Map(shape.String().Max(2).Match(letters), shape.Bool).Min(1).Max(2), map[string]string{
			`{"a":true}`: "", `{}`: "minProperties", `{"a":true,"b":true,"c":true}`: "maxProperties",
			`{"x":true}`: "/x propertyNames", `{"a":1}`: "/a type", `[]`: "type", `{"abc":true}`: "/abc propertyNames",
		}},
		{"dictionary of named keys", shape.Map(shape.Enum("k"), shape.Any), map[string]string{`{"k":1}`: "", `{"l":1}`: "/l propertyNames"}},
		{"any of", shape.AnyOf(shape.Int(0, 1), shape.Const("x")), map[string]string{`1`: "", `"x"`: "", `2`: "anyOf"}},
		{"a tag decides", shape.Union("t", map[string]*shape.Shape{
			"n": shape.Object(shape.Req("t", shape.Const("n")), shape.Req("v", shape.Int(0, 1))),
			"s": shape.Object(shape.Req("t", shape.Const("s"))),
		}), map[string]string{
			`{"t":"n","v":1}`: "", `{"t":"s"}`: "", `{"t":"s","v":1}`: "/v additionalProperties", `{"t":"n"}`: "/v required",
			`{"v":1}`: "/t required", `{"t":"z"}`: "/t enum", `{"t":1}`: "/t enum", `"n"`: "type",
		}},
		{"a reason of the shape's own", shape.Int(0, 1).Because("range"), map[string]string{`2`: "maximum range", `"2"`: "type range"}},
		{"a test in code", shape.Int(0, 9).Where("odd", func(v strictjson.Value) bool { n, _ := v.Int(); return n%2 == 1 }), map[string]string{
			`3`: "", `2`: "rule odd", `10`: "maximum",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.rule, func(t *testing.T) {
			for text, want := range tt.cases {
				v := parse(t, text)
				if got := verdict(tt.shape.Check(v)); got != want {
					t.Errorf("%s: got %q, want %q", text, got, want)
				}
				if tt.shape.Accepts(v) != (want == "") {
					t.Errorf("%s: Accepts disagrees with Check", text)
				}
			}
		})
	}
}

func TestObjects(t *testing.T) {
	point := shape.Object(
		shape.Req("x", shape.Int(0, 9)),
		shape.Req("y", shape.Int(0, 9)),
		shape.Opt("label", shape.Text(5)),
	)
	tests := []struct {
		rule  string
		shape *shape.Shape
		cases map[string]string
	}{
		{"closed", point, map[string]string{
			`{"x":1,"y":2}`: "", `{"x":1,"y":2,"label":"a"}`: "", `{"x":1}`: "/y required", `{}`: "/x required", `[]`: "type",
			`{"x":1,"y":2,"z":3}`: "/z additionalProperties", `{"x":1,"y":2,"label":null}`: "/label type",
			`{"y":10,"x":-1}`: "/y maximum", `{"x":1,"y":2,"":0}`: "/ additionalProperties",
			`{"x":1,"y":2,"a/b~c":0}`: "/a~1b~0c additionalProperties", `{"x":1,"y":2,"xy":0}`: "/xy additionalProperties",
		}},
		{"names unfit to repeat are not", point, map[string]string{
			`{"x":1,"y":2,"\u0007":0}`: "additionalProperties", `{"x":1,"y":2,"\ud800":0}`: "additionalProperties",
			`{"x":1,"y":2,"\u202e":0}`:                           "additionalProperties",
			`{"x":1,"y":2,"` + strings.Repeat("n", 600) + `":0}`: "additionalProperties",
		}},
		{"open", point.Open(), map[string]string{`{"x":1,"y":2,"z":3}`: "", `{"z":3}`: "/x required", `{"x":"1"}`: "/x type"}},
		{"every object", shape.AnyObject, map[string]string{`{"x":[]}`: "", `[]`: "type"}},
		{"extended", point.Extend(shape.Req("z", shape.Bool), shape.Opt("y", shape.Bool)), map[string]string{
			`{"x":1,"z":true}`: "", `{"x":1,"y":1,"z":true}`: "/y type", `{"x":1}`: "/z required",
		}},
		{"requiring more", point.Requiring("label"), map[string]string{`{"x":1,"y":2}`: "/label required"}},
		{"with less", point.Without("y"), map[string]string{`{"x":1}`: "", `{"x":1,"y":1}`: "/y additionalProperties"}},
		{"any of several sets", shape.Object(
			shape.Opt("x", shape.Any), shape.Opt("y", shape.Any), shape.Opt("label", shape.Any),
		).RequireAny([]string{"x", "label"}, []string{"y"}), map[string]string{
			`{"y":1}`: "", `{"x":1,"label":"a"}`: "", `{"x":1}`: "anyOf", `{}`: "anyOf",
		}},
		{"rules in code run last", point.Rule(func(o strictjson.Value) *shape.Fault {
			if !o.Member("x").Equal(o.Member("y")) {
				return shape.FaultAt("/y", "square")
			}
			return nil
		}), map[string]string{`{"x":1,"y":1}`: "", `{"x":1,"y":2}`: "/y rule square", `{"x":1,"y":2,"z":0}`: "/z additionalProperties"}},
	}
	for _, tt := range tests {
		t.Run(tt.rule, func(t *testing.T) {
			for text, want := range tt.cases {
				if got := verdict(tt.shape.Check(parse(t, text))); got != want {
					t.Errorf("%.100s: got %q, want %q", text, got, want)
				}
			}
		})
	}
}

func TestConditions(t *testing.T) {
	str := shape.String()
	object := func(conds ...*shape.Condition) *shape.Shape {
		return shape.Object(
			shape.Opt("state", str), shape.Opt("a", shape.Any), shape.Opt("b", shape.Any),
			shape.Opt("who", shape.AnyObject),
		).Rules(conds...)
	}
	tests := []struct {
		rule  string
		shape *shape.Shape
		cases map[string]string
	}{
		{"require", object(shape.When("state", shape.Enum("on", "up")).Require("a", "b")), map[string]string{
			`{}`: "", `{"state":"off"}`: "", `{"state":"on"}`: "/a required", `{"state":"up","a":1}`: "/b required", `{"state":"on","a":1,"b":1}`: "",
		}},
		{"forbid", object(shape.When("state", shape.Const("on")).Forbid("a", "b")), map[string]string{
			`{"state":"on","b":1}`: "/b not", `{"state":"on"}`: "", `{"a":1}`: "",
		}},
		{"otherwise", object(shape.When("state", shape.Const("on")).Require("a").Otherwise().Require("b")), map[string]string{
			`{"state":"on","a":1}`: "", `{"state":"on","b":1}`: "/a required", `{"state":"off","a":1}`: "/b required", `{}`: "/b required", `{"b":1}`: "",
		}},
		{"absent", object(shape.WhenAbsent("a").Require("b").Otherwise().Forbid("b")), map[string]string{
			`{}`: "/b required", `{"a":null,"b":1}`: "/b not", `{"a":1}`: "", `{"b":1}`: "",
		}},
		{"and, and not", object(shape.When("state", shape.Const("on")).AndNot("a", shape.Int(0, 0)).Require("b")), map[string]string{
			`{"state":"on"}`: "", `{"state":"on","a":0}`: "", `{"state":"on","a":1}`: "/b required", `{"state":"off","a":1}`: "",
		}},
		{"members of members", object(shape.When("who.type", shape.Const("x")).Narrow("who.id", shape.Int(1, 1)).Require("a")), map[string]string{
			`{"who":{}}`: "", `{"who":{"type":"y","id":9}}`: "", `{"who":{"type":"x"}}`: "/a required", `{"who":{"type":"x","id":2},"a":1}`: "/who/id maximum",
			`{"who":{"type":"x","id":1},"a":1}`: "",
		}},
		{"narrow", object(shape.When("state", shape.Const("on")).Narrow("a", shape.Array(shape.Any).Min(1))), map[string]string{
			`{"state":"on"}`: "", `{"state":"on","a":[]}`: "/a minItems", `{"a":[]}`: "", `{"state":"on","a":[1]}`: "",
		}},
		{"reason", object(shape.When("state", shape.Const("on")).Require("a").Because("gate")), map[string]string{
			`{"state":"on"}`: "/a required gate",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.rule, func(t *testing.T) {
			for text, want := range tt.cases {
				if got := verdict(tt.shape.Check(parse(t, text))); got != want {
					t.Errorf("%s: got %q, want %q", text, got, want)
				}
			}
		})
	}
}

func TestCheckAllListsFaultsInDocumentOrder(t *testing.T) {
	s := shape.Object(
		shape.Req("a", shape.Array(shape.Object(shape.Req("id", shape.Int(0, 9)))).Min(2)),
		shape.Req("b", shape.Bool),
		shape.Opt("c", shape.Array(shape.Any).Min(1)),
	)
	v := parse(t, `{"z":1,"c":[],"a":[{"id":10,"x":1}]}`)
	got := s.CheckAll(v, 100)
	want := []shape.Fault{
		{Path: "/z", Keyword: "additionalProperties"},
		{Path: "/c", Keyword: "minItems"},
		{Path: "/a", Keyword: "minItems", MissingOnly: true},
		{Path: "/a/0/id", Keyword: "maximum"},
		{Path: "/a/0/x", Keyword: "additionalProperties"},
		{Path: "/b", Keyword: "required", MissingOnly: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for n := range want {
		if diff := cmp.Diff(want[:n], s.CheckAll(v, n), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("limit %d: %s", n, diff)
		}
	}
	if f := s.Check(v); verdict(f) != "/z additionalProperties" {
		t.Errorf("Check: %v", f)
	}
}

func TestMissingIsToldFromWrong(t *testing.T) {
	s := shape.Object(
		shape.Req("a", shape.Array(shape.Any).Min(1)),
		shape.Req("b", shape.Bool),
		shape.Opt("c", shape.Array(shape.Any).Min(1)),
		shape.Opt("d", shape.Object(shape.Req("e", shape.Bool))),
		shape.Opt("f", shape.Any),
	).Rules(
		shape.When("f", shape.Int(1, 1)).Require("c"),
		shape.When("f", shape.Int(2, 2)).Require("c").Because("gate"),
	)
	tests := map[string]struct {
		present string
		missing []string
		only    bool
	}{
		`{"a":[1],"b":true}`:                  {"", nil, false},
		`{}`:                                  {"", []string{"/a", "/b"}, true},
		`{"a":[],"b":true}`:                   {"", []string{"/a"}, true},
		`{"a":[],"b":true,"d":{}}`:            {"", []string{"/a", "/d/e"}, true},
		`{"a":[],"b":true,"c":[]}`:            {"/c minItems", []string{"/a"}, false},
		`{"a":[],"b":1}`:                      {"/b type", []string{"/a"}, false},
		`{"a":[1],"b":true,"f":1}`:            {"", []string{"/c"}, true},
		`{"a":[1],"b":true,"f":2}`:            {"/c required gate", nil, false},
		`{"b":true,"f":2}`:                    {"/c required gate", []string{"/a"}, false},
		`{"b":true,"zz":2}`:                   {"/zz additionalProperties", []string{"/a"}, false},
		`{"b":true,"a":[],"d":{"e":1},"f":1}`: {"/d/e type", []string{"/a", "/c"}, false},
	}
	for text, tt := range tests {
		v := parse(t, text)
		if got := verdict(s.CheckPresent(v)); got != tt.present {
			t.Errorf("%s: CheckPresent %q, want %q", text, got, tt.present)
		}
		missing, only := shape.Missing(s.CheckAll(v, 100))
		if diff := cmp.Diff(tt.missing, missing); diff != "" || only != tt.only {
			t.Errorf("%s: only %v %s", text, only, diff)
		}
	}
}

func TestRefMakesRecursiveShapes(t *testing.T) {
	var node *shape.Shape
	node = shape.Object(
		shape.Req("v", shape.Int(0, 9)),
		shape.Opt("next", shape.Ref(func() *shape.Shape { return node })),
	)
	if got := verdict(node.Check(parse(t, `{"v":1,"next":{"v":2,"next":{"v":10}}}`))); got != "/next/next/v maximum" {
		t.Error(got)
	}
}

func TestModifiersLeaveTheOriginalAlone(t *testing.T) {
	base := shape.String().Max(3)
	_ = base.Min(2).Match(letters).Because("x")
	if f := base.Check(parse(t, `"z"`)); f != nil {
		t.Error(f)
	}
	object := shape.Object(shape.Opt("a", shape.Any))
	_ = object.Requiring("a")
	_ = object.Extend(shape.Req("b", shape.Any))
	_ = object.Rules(shape.WhenAbsent("a").Require("a"))
	if f := object.Check(parse(t, `{}`)); f != nil {
		t.Error(f)
	}
}

func TestDeclarationMistakesPanic(t *testing.T) {
	for name, declare := range map[string]func(){
		"member twice":          func() { shape.Object(shape.Req("a", shape.Any), shape.Opt("a", shape.Any)) },
		"member without shape":  func() { shape.Object(shape.Req("a", nil)) },
		"empty name":            func() { shape.Object(shape.Req("", shape.Any)) },
		"rule on no member":     func() { shape.Object().Rules(shape.WhenAbsent("a").Require("a")) },
		"required is no member": func() { shape.Object().Requiring("a") },
		"length of a number":    func() { shape.Int(0, 1).Min(1) },
		"unique string":         func() { shape.String().Unique() },
		"pattern of an array":   func() { shape.Array(shape.Any).Match(letters) },
		"empty enum":            func() { shape.Enum() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			declare()
		}()
	}
}

// Large and hostile values take time in proportion to their size.
func TestUniqueItemsIsNotQuadratic(t *testing.T) {
	s := shape.Array(shape.Any).Unique()
	build := func(n int, last string) string {
		var b strings.Builder
		b.WriteByte('[')
		for i := range n {
			b.WriteString(`{"a":"\ud800`)
			b.WriteString(strings.Repeat("x", i%7))
			b.WriteString(`","i":`)
			b.WriteString(strings.Repeat("1", 1+i%300))
			b.WriteString(`,"k":[`)
			for bit := range 17 {
				if bit > 0 {
					b.WriteByte(',')
				}
				b.WriteByte("01"[i>>bit&1])
			}
			b.WriteString("]},")
		}
		return b.String() + last + "]"
	}
	const n = 5000
	if f := s.Check(parse(t, build(n, "null"))); f != nil {
		t.Error(f)
	}
	if got := verdict(s.Check(parse(t, build(n, `{"i":1.0,"k":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"a":"\ud800"}`)))); got != "/5000 uniqueItems" {
		t.Error(got)
	}
}

func TestFaultsNameNoValue(t *testing.T) {
	f := shape.Object(shape.Req("a", shape.Const("x"))).Check(parse(t, `{"a":"secret"}`))
	if strings.Contains(f.Error(), "secret") || f.Error() != "shape: /a: const" {
		t.Error(f)
	}
	if got := f.Under("/documents/0"); got.Path != "/documents/0/a" || f.Path != "/a" {
		t.Error(got)
	}
}
