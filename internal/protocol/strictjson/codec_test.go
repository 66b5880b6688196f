package strictjson_test

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// cents writes and reads itself.
type cents int64

func (c cents) AppendJSON(dst []byte) ([]byte, error) {
	return strictjson.AppendFloat(dst, float64(c)/100)
}

func (c *cents) DecodeJSON(v strictjson.Value) error {
	if v.Kind() != strictjson.Number {
		return errCents
	}
	*c = cents(math.Round(v.Float() * 100))
	return nil
}

var errCents = errors.New("not cents")

type stamp struct{ set bool }

func (s stamp) IsZero() bool                               { return !s.set }
func (s stamp) AppendJSON(dst []byte) ([]byte, error)      { return append(dst, `"set"`...), nil }
func (s *stamp) DecodeJSON(v strictjson.Value) error       { s.set = v.Str() == "set"; return nil }
func (s *pointerOnly) AppendJSON(d []byte) ([]byte, error) { return append(d, s.out...), nil }

type pointerOnly struct{ out string }

type base struct {
	ID   string `json:"id"`
	Kind string `json:"kind,omitempty"`
}

type everything struct {
	base
	Text     string            `json:"text"`
	Yes      bool              `json:"yes,omitempty"`
	Small    int8              `json:"small,omitempty"`
	Int      int64             `json:"int"`
	Uint     uint16            `json:"uint,omitempty"`
	Float    float64           `json:"float,omitempty"`
	Ptr      *int64            `json:"ptr,omitempty"`
	Nested   *everything       `json:"nested,omitempty"`
	List     []string          `json:"list"`
	Objects  []base            `json:"objects,omitempty"`
	Map      map[string]int    `json:"map,omitempty"`
	Lists    map[string][]bool `json:"lists,omitempty"`
	Pair     [2]int            `json:"pair"`
	Raw      strictjson.Raw    `json:"raw,omitempty"`
	Price    cents             `json:"price"`
	Prices   map[string]cents  `json:"prices,omitempty"`
	Discount *cents            `json:"discount,omitempty"`
	At       stamp             `json:"at,omitzero"`
	Sub      base              `json:"sub,omitzero"`
	Any      any               `json:"any,omitempty"`
	Named    word              `json:"named,omitempty"`
	Skipped  chan int          `json:"-"`
	hidden   int
	Emoji    int `json:"😀,omitempty"`
	Private  int `json:"\ue000,omitempty"`
}

type word string

func TestMarshalWritesCanonicalJSON(t *testing.T) {
	one, zero := int64(1), int64(0)
	price := cents(250)
	for _, row := range []struct {
		rule string
		in   any
		want string
	}{
		{"members are sorted, nil slices are [], nothing omitted needlessly", everything{}, `{"id":"","int":0,"list":[],"pair":[0,0],"price":0,"text":""}`},
		{"a pointer to zero is not empty", &everything{Ptr: &zero}, `{"id":"","int":0,"list":[],"pair":[0,0],"price":0,"ptr":0,"text":""}`},
		{"all of it", &everything{
			base: base{ID: "x", Kind: "k"}, Text: "a\"\n\u2028", Yes: true, Small: -5, Int: strictjson.MaxSafeInteger, Uint: 7, Float: 1e21,
			Ptr: &one, Nested: &everything{}, List: []string{"b", "a"}, Objects: []base{{ID: "o"}},
			Map: map[string]int{"\uE000": 1, "😀": 2, "a": 3}, Lists: map[string][]bool{"n": nil, "y": {true}}, Pair: [2]int{1, 2},
			Raw: strictjson.Raw(` { "b" : 1.0, "a" : [ ] } `), Price: 1999, Prices: map[string]cents{"p": 5}, Discount: &price, At: stamp{true},
			Sub: base{ID: "s"}, Any: map[string]any{"z": []any{nil, true, 1.5, "s"}, "a": price}, Named: "w", hidden: 1, Emoji: 1, Private: 2,
		}, `{"any":{"a":2.5,"z":[null,true,1.5,"s"]},"at":"set","discount":2.5,"float":1e+21,"id":"x","int":9007199254740991,"kind":"k",` +
			`"list":["b","a"],"lists":{"n":[],"y":[true]},"map":{"a":3,"😀":2,"` + "\uE000" + `":1},"named":"w",` +
			`"nested":{"id":"","int":0,"list":[],"pair":[0,0],"price":0,"text":""},"objects":[{"id":"o"}],"pair":[1,2],"price":19.99,` +
			`"prices":{"p":0.05},"ptr":1,"raw":{"a":[],"b":1},"small":-5,"sub":{"id":"s"},"text":"a\"\n` + "\u2028" + `","uint":7,"yes":true,"😀":1,"` + "\uE000" + `":2}`},
		{"nil", nil, "null"},
		{"a nil pointer", (*base)(nil), "null"},
		{"a nil map", map[string]int(nil), "{}"},
		{"a nil slice", []string(nil), "[]"},
		{"a scalar", 42, "42"},
		{"a Raw", strictjson.Raw("1.0"), "1"},
		{"a pointer method on a value", pointerOnly{"true"}, "true"},
		{"a pointer method in a slice of values", []pointerOnly{{"1"}, {"2"}}, "[1,2]"},
		{"a pointer method in a map", map[string]pointerOnly{"a": {"1"}}, `{"a":1}`},
		{"a pointer to a pointer method", []*pointerOnly{{"1"}, nil}, "[1,null]"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			got, err := strictjson.Marshal(row.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, string(got)); diff != "" {
				t.Error(diff)
			}
			if again, err := strictjson.Canonicalize(got); err != nil || string(again) != string(got) {
				t.Errorf("not canonical: %s (%v)", got, err)
			}
		})
	}
}

func TestMarshalRefuses(t *testing.T) {
	type loop struct {
		Next *loop `json:"next"`
	}
	cycle := &loop{}
	cycle.Next = cycle
	var itself any
	itself = []any{&itself}
	for _, row := range []struct {
		rule, reason string
		in           any
	}{
		{"text that is not UTF-8", strictjson.ReasonText, "\xff"},
		{"a surrogate in text", strictjson.ReasonText, []string{"\xED\xA0\x80"}},
		{"a name that is not UTF-8", strictjson.ReasonText, map[string]int{"\xff": 1}},
		{"infinity", strictjson.ReasonNonFinite, math.Inf(1)},
		{"NaN", strictjson.ReasonNonFinite, math.NaN()},
		{"an integer that a double may not hold", strictjson.ReasonUnsafe, int64(1 << 53)},
		{"an unsafe negative integer", strictjson.ReasonUnsafe, int64(-1 << 53)},
		{"an unsafe unsigned integer", strictjson.ReasonUnsafe, uint64(math.MaxUint64)},
		{"a Raw that holds nothing", strictjson.ReasonMissing, struct{ R strictjson.Raw }{}},
		{"a Raw with an unpaired surrogate", strictjson.ReasonSurrogate, strictjson.Raw(`"\ud800"`)},
		{"a cycle", strictjson.ReasonDepth, cycle},
		{"a cycle of interfaces", strictjson.ReasonDepth, itself},
	} {
		got, err := strictjson.AppendMarshal([]byte("kept"), row.in)
		if string(got) != "kept" {
			t.Errorf("%s: dst came back as %q", row.rule, got)
		}
		wantCanonicalError(t, err, row.reason)
	}
	var syntax *strictjson.SyntaxError
	if _, err := strictjson.Marshal(strictjson.Raw(`{"a":1,"a":2}`)); !errors.As(err, &syntax) {
		t.Errorf("a Raw with a duplicate: %v", err)
	}
}

func TestTypesWithoutOneJSONForm(t *testing.T) {
	twice := reflect.New(reflect.StructOf([]reflect.StructField{
		{Name: "A", Type: reflect.TypeFor[int](), Tag: `json:"x"`},
		{Name: "B", Type: reflect.TypeFor[int](), Tag: `json:"x"`},
	})).Interface()
	type shadow struct {
		base
		ID string `json:"id"`
	}
	type embedsPointer struct{ *base }
	type quoted struct {
		A int `json:"a,string"`
	}
	type inner struct {
		C chan int `json:"c"`
	}
	for rule, in := range map[string]any{
		"bytes": []byte("x"), "a channel": make(chan int), "a function": func() {}, "a complex number": 1i,
		"integer names": map[int]string{}, "two fields of one name": twice, "a shadowed field": shadow{}, "an embedded pointer": embedsPointer{},
		"an unknown option": quoted{}, "a field without a form": inner{}, "an interface with methods": []error{},
		"deep inside": map[string][]*inner{},
	} {
		var fault *strictjson.TypeError
		if _, err := strictjson.Marshal(in); !errors.As(err, &fault) {
			t.Errorf("%s: %v", rule, err)
		}
		// The verdict is remembered and stays the same.
		if _, err := strictjson.Marshal(in); !errors.As(err, &fault) {
			t.Errorf("%s, again: %v", rule, err)
		}
	}
	var n int
	var fault *strictjson.TypeError
	for rule, dst := range map[string]any{"a value": n, "a nil pointer": (*int)(nil), "nil": nil, "bytes": new([]byte)} {
		if err := strictjson.Decode(parse(t, "1"), dst); !errors.As(err, &fault) {
			t.Errorf("decoding into %s: %v", rule, err)
		}
	}
}

func TestDecodeFillsEveryKind(t *testing.T) {
	const text = `{"\u0069d":"x","kind":"k","text":"\u00e9\n","yes":true,"small":-128,"int":1e3,"uint":65535,"float":2.5,"ptr":0,
		"nested":{"id":"in","list":["\ud83d\ude00"]},"list":[],"objects":[{"id":"a"},{"id":"b"}],"map":{"k":1},"lists":{"l":[true,false]},
		"pair":[3,4],"raw":{ "z":1.0, "a":[null] },"price":19.99,"prices":{"p":0.5},"discount":1,"at":"set","sub":{"id":"s"},
		"any":{"a":[1,"x",null,{"b":false}]},"named":"w","😀":5,"unknown":{"ignored":[1,2]},"Text":"other case","hidden":9,"Skipped":1}`
	zero, hundred := int64(0), cents(100)
	want := everything{
		base: base{ID: "x", Kind: "k"}, Text: "é\n", Yes: true, Small: -128, Int: 1000, Uint: 65535, Float: 2.5, Ptr: &zero,
		Nested: &everything{base: base{ID: "in"}, List: []string{"😀"}}, List: []string{}, Objects: []base{{ID: "a"}, {ID: "b"}},
		Map: map[string]int{"k": 1}, Lists: map[string][]bool{"l": {true, false}}, Pair: [2]int{3, 4}, Raw: strictjson.Raw(`{"a":[null],"z":1}`),
		Price: 1999, Prices: map[string]cents{"p": 50}, Discount: &hundred, At: stamp{true}, Sub: base{ID: "s"},
		Any: map[string]any{"a": []any{1.0, "x", nil, map[string]any{"b": false}}}, Named: "w", Emoji: 5,
	}
	var got everything
	if err := strictjson.Decode(parse(t, text), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(everything{}, stamp{}), cmp.AllowUnexported(base{})); diff != "" {
		t.Error(diff)
	}
	// Absent members leave their fields alone.
	got = everything{Text: "before"}
	if err := strictjson.Decode(parse(t, `{"id":"only"}`), &got); err != nil || got.Text != "before" || got.ID != "only" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, row := range []struct{ rule, text, path string }{
		{"a number for text", `{"text":1}`, "/text"},
		{"null for text", `{"text":null}`, "/text"},
		{"null for a number", `{"int":null}`, "/int"},
		{"null for a slice", `{"list":null}`, "/list"},
		{"text for a number", `{"int":"1"}`, "/int"},
		{"a fraction for an integer", `{"int":1.5}`, "/int"},
		{"nearly an integer", `{"int":1.00000000000000000001}`, "/int"},
		{"an integer beyond int64", `{"int":9223372036854775808}`, "/int"},
		{"an integer beyond the field", `{"small":128}`, "/small"},
		{"a negative unsigned integer", `{"uint":-1}`, "/uint"},
		{"a number outside binary64", `{"float":1e400}`, "/float"},
		{"a number outside binary64 in a Raw", `{"raw":[1e400]}`, "/raw"},
		{"a number outside binary64 in an any", `{"any":{"x":[1e400]}}`, "/any/*/0"},
		{"an unpaired surrogate", `{"text":"\ud800"}`, "/text"},
		{"an unpaired surrogate in a list", `{"list":["a","\ud800"]}`, "/list/1"},
		{"an unpaired surrogate in a map name", `{"map":{"\ud800":1}}`, "/map/*"},
		{"an unpaired surrogate in a Raw", `{"raw":"\ud800"}`, "/raw"},
		{"a boolean for a list", `{"list":true}`, "/list"},
		{"an object for a list", `{"list":{}}`, "/list"},
		{"a list for an object", `{"sub":[]}`, "/sub"},
		{"a list for a map", `{"map":[]}`, "/map"},
		{"a wrong length", `{"pair":[1]}`, "/pair"},
		{"text for a boolean", `{"yes":"true"}`, "/yes"},
		{"a fault in the depth", `{"nested":{"objects":[{"id":"a"},{"id":false}]}}`, "/nested/objects/1/id"},
	} {
		var into everything
		var fault *strictjson.DecodeError
		if err := strictjson.Decode(parse(t, row.text), &into); !errors.As(err, &fault) || fault.Path != row.path {
			t.Errorf("%s: got %v, want a fault at %s", row.rule, err, row.path)
		}
	}
	var into everything
	var fault *strictjson.DecodeError
	err := strictjson.Decode(parse(t, `{"prices":{"p":true}}`), &into)
	if !errors.Is(err, errCents) || !errors.As(err, &fault) || fault.Path != "/prices/*" {
		t.Errorf("a type's own error: %v", err)
	}
	if err := strictjson.Decode(strictjson.Value{}, &into); !errors.As(err, &fault) {
		t.Errorf("nothing to decode: %v", err)
	}
}

func TestNullFitsPointersRawAndAny(t *testing.T) {
	one := int64(1)
	into := everything{Ptr: &one, Any: 1, Nested: &everything{}}
	if err := strictjson.Decode(parse(t, `{"ptr":null,"nested":null,"any":null,"raw":null}`), &into); err != nil {
		t.Fatal(err)
	}
	if into.Ptr != nil || into.Nested != nil || into.Any != nil || string(into.Raw) != "null" {
		t.Errorf("%+v", into)
	}
}

func TestRawIsCanonicalAndItsOwn(t *testing.T) {
	text := []byte(`{"payload": { "b":1, "a":2 }}`)
	d, err := strictjson.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var into struct {
		Payload strictjson.Raw `json:"payload"`
	}
	if err := strictjson.Decode(d.Root(), &into); err != nil {
		t.Fatal(err)
	}
	for i := range text {
		text[i] = 'x'
	}
	if string(into.Payload) != `{"a":2,"b":1}` {
		t.Errorf("got %s", into.Payload)
	}
	var m map[string]int
	if err := into.Payload.Decode(&m); err != nil || m["b"] != 1 {
		t.Errorf("%v, %v", m, err)
	}
}

func TestGoValuesBecomeValues(t *testing.T) {
	v, err := strictjson.ValueOf(map[string]any{"b": []int{1}, "a": nil})
	if err != nil || v.Text() != `{"a":null,"b":[1]}` || !v.Member("a").IsNull() || v.Member("b").Offset() != 14 {
		t.Errorf("%s, %v", v.Text(), err)
	}
	if raw, err := v.Member("b").JCS(); err != nil || string(raw) != "[1]" {
		t.Errorf("%s, %v", raw, err)
	}
	if _, err := v.Member("none").JCS(); err == nil {
		t.Error("a canonical form of nothing")
	}
	if _, err := strictjson.ValueOf(make(chan int)); err == nil {
		t.Error("a value of a channel")
	}
	var n int
	var syntax *strictjson.SyntaxError
	if err := strictjson.Raw("[1").Decode(&n); !errors.As(err, &syntax) {
		t.Errorf("decoding broken text: %v", err)
	}
	for name := range parse(t, `{"a":1,"b":2}`).SortedMembers() {
		if name != "a" {
			t.Error("walks on after the end")
		}
		break
	}
	if got := strictjson.Object.String() + " " + strictjson.Missing.String() + " " + strictjson.Kind(99).String(); got != "object missing invalid" {
		t.Error(got)
	}
}

func TestValuesOfTheWrongKindAnswerZero(t *testing.T) {
	for _, v := range []strictjson.Value{{}, parse(t, "null"), parse(t, "true"), parse(t, "1"), parse(t, `"s"`), parse(t, "[1]"), parse(t, `{"a":1}`)} {
		k := v.Kind()
		for range v.Members() {
			if k != strictjson.Object {
				t.Errorf("%v has members", k)
			}
		}
		for range v.Items() {
			if k != strictjson.Array {
				t.Errorf("%v has items", k)
			}
		}
		if _, ok := v.Get("a"); ok != (k == strictjson.Object) {
			t.Errorf("%v: Get", k)
		}
		if (v.Len() > 0) != (k >= strictjson.Array) || (v.Str() != "") != (k == strictjson.String) ||
			(v.StrLen() > 0) != (k == strictjson.String) || v.Bool() != (k == strictjson.Bool) || (v.NumberText() != "") != (k == strictjson.Number) ||
			(v.Float() != 0) != (k == strictjson.Number) || (v.Sign() != 0) != (k == strictjson.Number) || v.Exists() != (k != strictjson.Missing) {
			t.Errorf("%v answers for another kind", k)
		}
		if _, ok := v.Int(); ok != (k == strictjson.Number) {
			t.Errorf("%v: Int", k)
		}
	}
}

func TestStringLengthCountsCodePoints(t *testing.T) {
	for text, want := range map[string]int{
		`""`: 0, `"abc"`: 3, `"é€😀"`: 3, `"\u00e9\u20ac\ud83d\ude00"`: 3, `"\ud800"`: 1, `"\ud800é\udc00\u0000"`: 4, "\"e\u0301\"": 2,
	} {
		v := parse(t, text)
		if got := v.StrLen(); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
		if lone := strings.Contains(text, `\ud800`); v.Unicode() == lone {
			t.Errorf("%s: Unicode %v", text, !lone)
		}
	}
}

func TestEqualIsJSONEquality(t *testing.T) {
	classes := [][]string{
		{"null"},
		{"true"},
		{"false"},
		{"0", "-0", "0.0", "0e9"},
		{"1", "1.0", "10e-1", "1000e-3"},
		{"-1", "-1.0"},
		{"1.00000000000000000001"},
		{"9007199254740993", "9007199254740993.0"},
		{"9007199254740992"},
		{"1e400", "10e399"},
		{"1e401"},
		{"-1e400"},
		{`""`},
		{`"a"`, `"\u0061"`},
		{`"1"`},
		{`"\ud800"`, `"\uD800"`},
		{"[]", "[ ]"},
		{"[1,2]", "[1.0,2]"},
		{"[2,1]"},
		{"[[]]"},
		{"{}"},
		{`{"a":1,"b":[2]}`, `{"b":[2.0],"\u0061":1}`},
		{`{"a":1,"b":[3]}`},
		{`{"a":1,"c":[2]}`},
		{`{"a":1}`},
	}
	for i, class := range classes {
		for j, other := range classes {
			for _, a := range class {
				for _, b := range other {
					v, w := parse(t, a), parse(t, b)
					if v.Equal(w) != (i == j) {
						t.Errorf("%s and %s: Equal %v", a, b, v.Equal(w))
					}
					if c, d := strictjson.Compare(v, w), strictjson.Compare(w, v); (c > 0) != (d < 0) || (c == 0) != (d == 0) {
						t.Errorf("%s and %s: Compare %d and %d", a, b, c, d)
					}
				}
			}
		}
	}
}

// What Marshal writes, Decode reads back, and it is what the standard library
// plus canonicalisation would have written.
func TestMarshalAndDecodeAreInverse(t *testing.T) {
	type leaf struct {
		ID    string            `json:"id"`
		N     int64             `json:"n,omitempty"`
		F     float64           `json:"f"`
		Tags  []string          `json:"tags,omitempty"`
		Attrs map[string]string `json:"attrs,omitempty"`
		Next  *leaf             `json:"next,omitempty"`
	}
	var draw func(depth int) *rapid.Generator[leaf]
	draw = func(depth int) *rapid.Generator[leaf] {
		return rapid.Custom(func(t *rapid.T) leaf {
			l := leaf{
				ID:    rapid.String().Draw(t, "id"),
				N:     rapid.Int64Range(-strictjson.MaxSafeInteger, strictjson.MaxSafeInteger).Draw(t, "n"),
				F:     rapid.Float64().Draw(t, "f"),
				Tags:  rapid.SliceOf(rapid.String()).Draw(t, "tags"),
				Attrs: rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "attrs"),
			}
			if len(l.Tags) == 0 {
				l.Tags = nil
			}
			if len(l.Attrs) == 0 {
				l.Attrs = nil
			}
			if l.F == 0 {
				l.F = 0 // the canonical form has one zero
			}
			if depth > 0 && rapid.Bool().Draw(t, "more") {
				next := draw(depth-1).Draw(t, "next")
				l.Next = &next
			}
			return l
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		in := draw(3).Draw(t, "in")
		text, err := strictjson.Marshal(&in)
		if err != nil {
			t.Fatal(err)
		}
		library, err := json.Marshal(&in)
		if err != nil {
			t.Fatal(err)
		}
		if want, err := strictjson.Canonicalize(library); err != nil || string(want) != string(text) {
			t.Fatalf("got %s\nwant %s (%v)", text, want, err)
		}
		var out leaf
		if err := strictjson.Raw(text).Decode(&out); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(in, out); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestPlansAreSafeForConcurrentFirstUse(t *testing.T) {
	type fresh struct {
		A []map[string]*fresh `json:"a"`
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			v := fresh{A: []map[string]*fresh{{"x": nil, "y": {}}}}
			if got, err := strictjson.Marshal(&v); err != nil || string(got) != `{"a":[{"x":null,"y":{"a":[]}}]}` {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
	wg.Wait()
}
