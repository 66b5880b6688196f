package strictjson_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/gowebpki/jcs"
	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

func TestCanonicalForm(t *testing.T) {
	for _, row := range []struct{ rule, text, want string }{
		{"white space goes", " { \"a\" : [ 1 , 2 ] } ", `{"a":[1,2]}`},
		{"members are sorted at every depth", `{"b":{"d":1,"c":2},"a":[{"z":1,"y":2}]}`, `{"a":[{"y":2,"z":1}],"b":{"c":2,"d":1}}`},
		{"array order stays", `[3,1,2]`, `[3,1,2]`},
		{"shorter names first", `{"ab":1,"a":2,"":3}`, `{"":3,"a":2,"ab":1}`},
		{"digits before letters", `{"a":1,"10":2,"9":3,"A":4}`, `{"10":2,"9":3,"A":4,"a":1}`},
		{"UTF-16 order, not code point order", "{\"\uE000\":1,\"\U0001F600\":2,\"\uFFFD\":3,\"\u20ac\":4}", "{\"\u20ac\":4,\"\U0001F600\":2,\"\uE000\":1,\"\uFFFD\":3}"},
		{"UTF-16 order of written escapes", `{"\ue000":1,"\ud83d\ude00":2}`, "{\"\U0001F600\":2,\"\uE000\":1}"},
		{"UTF-16 order behind a long prefix", "{\"prefix-prefix\uE000\":1,\"prefix-prefix\U0001F600\":2}", "{\"prefix-prefix\U0001F600\":2,\"prefix-prefix\uE000\":1}"},
		{"UTF-16 order across the eighth byte", "{\"123456\uFF21\":1,\"123456\U0001F600\":2}", "{\"123456\U0001F600\":2,\"123456\uFF21\":1}"},
		{
			"RFC 8785 sorting sample", "{\"\\u20ac\":\"Euro Sign\",\"\\r\":\"Carriage Return\",\"\\ufb33\":\"Hebrew Letter Dalet With Dagesh\",\"1\":\"One\",\"\\ud83d\\ude00\":\"Emoji: Grinning Face\",\"\\u0080\":\"Control\",\"\\u00f6\":\"Latin Small Letter O With Diaeresis\"}",
			"{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"\u00f6\":\"Latin Small Letter O With Diaeresis\",\"\u20ac\":\"Euro Sign\",\"\U0001F600\":\"Emoji: Grinning Face\",\"\uFB33\":\"Hebrew Letter Dalet With Dagesh\"}",
		},
		{"short escapes", `"\b\t\n\f\r\"\\\u0008\u0009\u000a\u000c\u000d\u0022\u005c"`, `"\b\t\n\f\r\"\\\b\t\n\f\r\"\\"`},
		{"other control characters, lower-case", `"\u0000\u001F\u000B"`, `"\u0000\u001f\u000b"`},
		{"everything else is literal", `"\u007f\u0080\u2028\u2029\/\u003c\u00e9\ud83d\ude80"`, "\"\u007f\u0080\u2028\u2029/<\u00e9\U0001F680\""},
		{"noncharacters stay", `"\ufffe\uffff\ufdd0"`, "\"\ufffe\uffff\ufdd0\""},
		{"numbers are doubles", `[-0,-0.0,1.0,1e2,100e-2,9007199254740993,0.1e-6,1e21,1E-400]`, `[0,0,1,100,1,9007199254740992,1e-7,1e+21,0]`},
		{"literals", ` [true ,false, null]`, `[true,false,null]`},
		{"empty containers", `[{},[ ],""]`, `[{},[],""]`},
	} {
		t.Run(row.rule, func(t *testing.T) {
			got, err := strictjson.Canonicalize([]byte(row.text))
			if err != nil || string(got) != row.want {
				t.Errorf("got  %s (%v)\nwant %s", got, err, row.want)
			}
			library, err := jcs.Transform([]byte(row.text))
			if scalar := row.text[0] == '"'; !scalar && (err != nil || string(library) != row.want) {
				t.Errorf("the library gives %s (%v)\nwant %s", library, err, row.want)
			}
		})
	}
}

func TestOutsideTheDataModelIsStageFive(t *testing.T) {
	for _, row := range []struct{ text, reason string }{
		{`"\ud800"`, strictjson.ReasonSurrogate},
		{`"\udfff"`, strictjson.ReasonSurrogate},
		{`"\ud800x"`, strictjson.ReasonSurrogate},
		{`"\ud800\ud800\udc00"`, strictjson.ReasonSurrogate},
		{`"\udc00\ud800"`, strictjson.ReasonSurrogate},
		{`"\ud800\u0041"`, strictjson.ReasonSurrogate},
		{`"\ud83d\n\ude00"`, strictjson.ReasonSurrogate},
		{`{"\ud800":1}`, strictjson.ReasonSurrogate},
		{`{"a":[{"b":"\ud800"}]}`, strictjson.ReasonSurrogate},
		{`[1e309]`, strictjson.ReasonNonFinite},
		{`{"a":-1e999999}`, strictjson.ReasonNonFinite},
	} {
		v := parse(t, row.text)
		prefix := []byte("kept")
		got, err := v.AppendJCS(prefix)
		wantCanonicalError(t, err, row.reason)
		if string(got) != "kept" {
			t.Errorf("%s: dst came back as %q", row.text, got)
		}
		got, err = strictjson.AppendCanonical(prefix, []byte(row.text))
		wantCanonicalError(t, err, row.reason)
		if string(got) != "kept" {
			t.Errorf("%s: dst came back as %q", row.text, got)
		}
	}
	_, err := strictjson.Value{}.AppendJCS(nil)
	wantCanonicalError(t, err, strictjson.ReasonMissing)
}

func TestOnlyTheTopLevelMemberIsOmitted(t *testing.T) {
	for _, row := range []struct{ text, want string }{
		{`{"signature":{"x":1},"payload":{"signature":"kept"},"a":[{"signature":1}]}`, `{"a":[{"signature":1}],"payload":{"signature":"kept"}}`},
		{`{"\u0073ignature":1,"signature2":2}`, `{"signature2":2}`},
		{`{"signature":1}`, `{}`},
		{`{"a":1,"signature":"\ud800"}`, `{"a":1}`},
		{`{"Signature":1}`, `{"Signature":1}`},
		{`{}`, `{}`},
		{`["signature"]`, `["signature"]`},
	} {
		got, err := parse(t, row.text).AppendJCSWithout(nil, "signature")
		if err != nil || string(got) != row.want {
			t.Errorf("%s: got %s (%v), want %s", row.text, got, err, row.want)
		}
	}
}

func TestCanonicalizationVectors(t *testing.T) {
	dir := filepath.Join(sharedDir(t), "cryptography", "vectors")
	got, err := strictjson.Canonicalize(read(t, filepath.Join(dir, "canonicalization", "rfc8785-section-3.2.2-input.json")))
	if want := read(t, filepath.Join(dir, "canonicalization", "rfc8785-section-3.2.2.jcs")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("RFC 8785 section 3.2.2: got %s (%v)\nwant %s", got, err, want)
	}
	documents, _ := filepath.Glob(filepath.Join(dir, "signed-documents", "valid", "*.json"))
	if len(documents) == 0 {
		t.Fatal("no vectors")
	}
	for _, document := range documents {
		name := strings.TrimSuffix(filepath.Base(document), ".json")
		if name == "command-alternate-json-serialization" {
			name = "command-lowercase-t-alternate-serialization"
		}
		want := read(t, filepath.Join(dir, "canonicalization", name+".signing.jcs"))
		got, err := parse(t, string(read(t, document))).AppendJCSWithout(nil, "signature")
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: got %s (%v)\nwant %s", name, got, err, want)
		}
	}
}

// utf16Less is the definition of RFC 8785 section 3.2.3.
func utf16Compare(a, b string) int {
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}

func TestMembersAreSortedByCodeUnits(t *testing.T) {
	// Characters at both ends of every length class, and near the surrogates.
	alphabet := []rune("\x00aAz{\u007f\u0080\u07ff\u0800\ud7ff\ue000\ufeff\uffff\U00010000\U0001F600\U0010FFFF")
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) string {
			stem := rapid.SampledFrom([]string{"", "1234567", "12345678", "common-prefix-"}).Draw(t, "stem")
			return stem + rapid.StringOfN(rapid.SampledFrom(alphabet), 0, 6, -1).Draw(t, "tail")
		}), 0, 60, rapid.ID[string]).Draw(t, "names")
		var text strings.Builder
		for i, name := range names {
			quoted, err := strictjson.AppendString(nil, name)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&text, "%c%s:%d", ",{"[btoi(i == 0)], quoted, i)
		}
		if len(names) == 0 {
			text.WriteByte('{')
		}
		text.WriteByte('}')
		d, err := strictjson.Parse([]byte(text.String()))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for name, v := range d.Root().SortedMembers() {
			got = append(got, name)
			if n, _ := v.Int(); names[n] != name {
				t.Fatalf("%q carries the value of %q", name, names[n])
			}
		}
		want := slices.SortedFunc(slices.Values(names), utf16Compare)
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		got = got[:0]
		for name := range d.Root().Members() {
			got = append(got, name)
		}
		if !slices.Equal(got, names) {
			t.Fatalf("document order %q, want %q", got, names)
		}
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// FuzzJCS compares with an independent library wherever both accept.
func FuzzJCS(f *testing.F) {
	f.Add([]byte(command))
	f.Add([]byte(`{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],"literals":[null,true,false]}`))
	f.Add([]byte("{\"\ufb33\":1,\"\\ud83d\\ude00\":2,\"\\u20ac\":\"\\u000f\\n\"}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := strictjson.Canonicalize(text)
		if err != nil {
			return
		}
		if !utf8.Valid(got) {
			t.Fatalf("%q: canonical form is not UTF-8", text)
		}
		if text = bytes.TrimSpace(text); text[0] != '{' && text[0] != '[' {
			return // the library takes containers only
		}
		want, err := jcs.Transform(text)
		if err != nil {
			t.Fatalf("the library refuses %q: %v", text, err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%q: got %q, the library %q", text, got, want)
		}
	})
}
