package strictjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

func wantSyntaxError(t testing.TB, err error, reason string, offset int) {
	t.Helper()
	var syntax *strictjson.SyntaxError
	if !errors.As(err, &syntax) {
		t.Errorf("got %v, want a SyntaxError for %s", err, reason)
		return
	}
	if syntax.Reason != reason || syntax.Offset != offset {
		t.Errorf("got %q at %d, want %q at %d", syntax.Reason, syntax.Offset, reason, offset)
	}
}

func wantCanonicalError(t testing.TB, err error, reason string) {
	t.Helper()
	var canonical *strictjson.CanonicalError
	if !errors.As(err, &canonical) || canonical.Reason != reason {
		t.Errorf("got %v, want a CanonicalError for %s", err, reason)
	}
}

func TestParseRefuses(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, row := range []struct {
		rule, text, reason string
		offset             int
	}{
		{"nothing", "", strictjson.ReasonEmpty, 0},
		{"white space only", " \t\r\n", strictjson.ReasonEmpty, 4},
		{"a byte-order mark", "\xEF\xBB\xBF{}", strictjson.ReasonBOM, 0},
		{"a byte-order mark alone", "\xEF\xBB\xBF", strictjson.ReasonBOM, 0},
		{"a second byte-order mark position", " \xEF\xBB\xBF{}", strictjson.ReasonUnexpected, 1},
		{"UTF-16", "\xFE\xFF\x00{", strictjson.ReasonUnexpected, 0},
		{"a second value", "{} {}", strictjson.ReasonTrailing, 3},
		{"a trailing comma after the value", "1,", strictjson.ReasonTrailing, 1},
		{"a trailing NUL", "{}\x00", strictjson.ReasonTrailing, 2},
		{"a trailing form feed", "{}\f", strictjson.ReasonTrailing, 2},
		{"a trailing no-break space", "{}\u00a0", strictjson.ReasonTrailing, 2},
		{"a leading NUL", "\x00{}", strictjson.ReasonUnexpected, 0},
		{"a NUL between tokens", "[1,\x00 2]", strictjson.ReasonUnexpected, 3},
		{"a NUL in a string", "\"a\x00b\"", strictjson.ReasonControl, 2},
		{"a raw line feed in a string", "\"a\nb\"", strictjson.ReasonControl, 2},
		{"a raw tab in a long string", "\"0123456789abcdef\tx\"", strictjson.ReasonControl, 17},
		{"a raw control character after an escape", "\"\\n\x1f\"", strictjson.ReasonControl, 3},
		{"overlong UTF-8, two bytes", "\"\xC0\xAF\"", strictjson.ReasonUTF8, 1},
		{"overlong UTF-8, three bytes", "\"\xE0\x80\xAF\"", strictjson.ReasonUTF8, 1},
		{"overlong UTF-8, four bytes", "\"\xF0\x80\x80\xAF\"", strictjson.ReasonUTF8, 1},
		{"an overlong quote", "\"\xC0\xA2\"", strictjson.ReasonUTF8, 1},
		{"a surrogate in UTF-8", "\"\xED\xA0\x80\"", strictjson.ReasonUTF8, 1},
		{"a code point above U+10FFFF", "\"\xF4\x90\x80\x80\"", strictjson.ReasonUTF8, 1},
		{"a stray continuation byte", "\"abcdefgh\x80\"", strictjson.ReasonUTF8, 9},
		{"UTF-8 cut by the quote", "\"\xE2\x82\"", strictjson.ReasonUTF8, 1},
		{"UTF-8 cut after an escape", "\"\\t\xE2\x82\"", strictjson.ReasonUTF8, 3},
		{"invalid UTF-8 in a name", "{\"\xFF\":1}", strictjson.ReasonUTF8, 2},
		{"invalid UTF-8 between tokens", "[1\xFF]", strictjson.ReasonUnexpected, 2},
		{"an unknown escape", `"\x41"`, strictjson.ReasonEscape, 2},
		{"an escaped apostrophe", `"\'"`, strictjson.ReasonEscape, 2},
		{"an upper-case \\U", `"\U0041"`, strictjson.ReasonEscape, 2},
		{"an escaped NUL byte", "\"\\\x00\"", strictjson.ReasonEscape, 2},
		{"three hexadecimal digits", `"\u004"`, strictjson.ReasonEscape, 6},
		{"a bad hexadecimal digit", `"\u00g0"`, strictjson.ReasonEscape, 5},
		{"a bad escape behind a high surrogate", `"\ud800\u12"`, strictjson.ReasonEscape, 11},
		{"a plus sign", "+1", strictjson.ReasonUnexpected, 0},
		{"a leading zero", "01", strictjson.ReasonTrailing, 1},
		{"a leading zero, negative", "-01", strictjson.ReasonTrailing, 2},
		{"a leading point", ".5", strictjson.ReasonUnexpected, 0},
		{"a sign without digits", "[-]", strictjson.ReasonNumber, 2},
		{"a point without digits", "[1.]", strictjson.ReasonNumber, 3},
		{"an exponent without digits", "[1e]", strictjson.ReasonNumber, 3},
		{"an exponent sign without digits", "[1e+]", strictjson.ReasonNumber, 4},
		{"a hexadecimal number", "0x10", strictjson.ReasonTrailing, 1},
		{"a digit separator", "1_0", strictjson.ReasonTrailing, 1},
		{"NaN", "NaN", strictjson.ReasonUnexpected, 0},
		{"Infinity", "-Infinity", strictjson.ReasonNumber, 1},
		{"a misspelt literal", "[nul]", strictjson.ReasonLiteral, 4},
		{"an upper-case literal", "True", strictjson.ReasonUnexpected, 0},
		{"a literal that goes on", "nulll", strictjson.ReasonTrailing, 4},
		{"single quotes", "{'a':1}", strictjson.ReasonUnexpected, 1},
		{"a comment", "/**/1", strictjson.ReasonUnexpected, 0},
		{"a bare name", "{a:1}", strictjson.ReasonUnexpected, 1},
		{"a missing colon", `{"a" 1}`, strictjson.ReasonUnexpected, 5},
		{"a missing comma", `[1 2]`, strictjson.ReasonUnexpected, 3},
		{"a comma before ]", "[1,]", strictjson.ReasonUnexpected, 3},
		{"a comma before }", `{"a":1,}`, strictjson.ReasonUnexpected, 7},
		{"a leading comma", "[,1]", strictjson.ReasonUnexpected, 1},
		{"mismatched brackets", "[1}", strictjson.ReasonUnexpected, 2},
		{"a closing bracket alone", "]", strictjson.ReasonUnexpected, 0},
		{"a duplicate name", `{"a":1,"a":2}`, strictjson.ReasonDuplicate, 7},
		{"a duplicate name, equal values", `{"a":1,"b":0,"a":1}`, strictjson.ReasonDuplicate, 13},
		{"a duplicate decoded name", `{"a":1,"\u0061":2}`, strictjson.ReasonDuplicate, 7},
		{"a duplicate of two spellings of a surrogate pair", `{"😀":1,"\ud83d\uDE00":2}`, strictjson.ReasonDuplicate, 10},
		{"a duplicate of an escaped solidus", `{"/":1,"\/":2}`, strictjson.ReasonDuplicate, 7},
		{"a duplicate unpaired surrogate", `{"\ud800":1,"\uD800":2}`, strictjson.ReasonDuplicate, 12},
		{"a duplicate empty name", `{"":1,"":2}`, strictjson.ReasonDuplicate, 6},
		{"a duplicate name that shares a long prefix", `{"abcdefgh1":1,"abcdefgh2":1,"abcdefgh1":2}`, strictjson.ReasonDuplicate, 29},
		{"a duplicate in the depth", `[{"x":[0,{"y":{"a":1,"a":2}}]}]`, strictjson.ReasonDuplicate, 21},
		{"nesting of 65 arrays", deep(65), strictjson.ReasonDepth, 64},
		{"nesting of 65 objects", strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65), strictjson.ReasonDepth, 64 * 5},
		{"a million open brackets", strings.Repeat("[", 1_000_000), strictjson.ReasonDepth, 64},
	} {
		t.Run(row.rule, func(t *testing.T) {
			_, err := strictjson.Parse([]byte(row.text))
			wantSyntaxError(t, err, row.reason, row.offset)
			_, err = strictjson.Canonicalize([]byte(row.text))
			wantSyntaxError(t, err, row.reason, row.offset)
		})
	}
}

func TestParseAccepts(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for rule, text := range map[string]string{
		"a scalar":                            "1",
		"white space of all four kinds":       " \t\r\n{ \"a\" : [ 1 , 2 ] } \n",
		"64 nested arrays":                    deep(64),
		"siblings beyond the limit":           "[" + strings.Repeat(deep(63)+",", 99) + "1]",
		"names that differ by case":           `{"a":1,"A":2}`,
		"names that differ by normal form":    "{\"\u00e9\":1,\"e\u0301\":2}",
		"names that differ by a trailing NUL": `{"a":1,"a\u0000":2}`,
		"an unpaired surrogate and U+FFFD":    `{"\ud800":1,"\ufffd":2}`,
		"two unpaired surrogates":             `{"\ud800":1,"\ud801":2,"\udc00":3}`,
		"surrogates in the wrong order":       `"\udc00\ud800"`,
		"equal names in sibling objects":      `[{"a":1},{"a":1}]`,
		"equal names in nested objects":       `{"a":{"a":{"a":1}}}`,
		"a byte-order mark inside a string":   "\"\ufeff\"",
		"DEL in a string":                     "\"\x7f\"",
		"noncharacters":                       "\"\ufffe\U0010ffff\"",
		"an escaped NUL":                      `"\u0000"`,
		"a number outside binary64":           `[1e400,-1E+400,1e-400]`,
	} {
		t.Run(rule, func(t *testing.T) {
			d, err := strictjson.Parse([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if got := string(d.Bytes()); got != text {
				t.Errorf("Bytes %q", got)
			}
		})
	}
}

func TestDepthLimitIsAnArgument(t *testing.T) {
	for _, row := range []struct {
		text  string
		limit int
		ok    bool
	}{
		{"1", 0, true},
		{"[]", 0, false},
		{"{}", 1, true},
		{"[[]]", 1, false},
		{`{"a":[{}]}`, 3, true},
		{`{"a":[{}]}`, 2, false},
		{strings.Repeat("[", 1000) + strings.Repeat("]", 1000), 1000, true},
	} {
		if _, err := strictjson.ParseDepth([]byte(row.text), row.limit); (err == nil) != row.ok {
			t.Errorf("%.20s with limit %d: %v", row.text, row.limit, err)
		}
	}
}

// Whoever reuses the buffer after Parse cannot change what was verified.
func TestDocumentOutlivesItsBuffer(t *testing.T) {
	buffer := []byte(`{"b":"\u0078y","a":[1.50,"z"]}`)
	d, err := strictjson.Parse(buffer)
	if err != nil {
		t.Fatal(err)
	}
	for i := range buffer {
		buffer[i] = '!'
	}
	got, err := d.Root().AppendJCS(nil)
	if want := `{"a":[1.5,"z"],"b":"xy"}`; err != nil || string(got) != want {
		t.Errorf("got %s (%v)", got, err)
	}
	if raw := string(d.Root().Member("a").Raw()); raw != `[1.50,"z"]` {
		t.Errorf("Raw %s", raw)
	}
}

func TestEveryTruncationIsRefused(t *testing.T) {
	texts := []string{command, `{"a\u00e9\ud83d\ude00":[1.5e-3,true,null,"x"],"b":{}}`, "[\"\u20ac\U0001F680\",-12]"}
	for _, text := range texts {
		for n := range len(text) {
			if _, err := strictjson.Parse([]byte(text[:n])); err == nil {
				t.Errorf("accepted %q", text[:n])
			} else {
				wantTruncated(t, text[:n], err)
			}
		}
	}
}

// wantTruncated: cutting a text is reported at the cut, unless it cut a
// multi-byte character.
func wantTruncated(t *testing.T, text string, err error) {
	t.Helper()
	var syntax *strictjson.SyntaxError
	if !errors.As(err, &syntax) {
		t.Fatal(err)
	}
	switch {
	case text == "" && syntax.Reason == strictjson.ReasonEmpty:
	case syntax.Reason == strictjson.ReasonUTF8 && !utf8.ValidString(text):
	case syntax.Reason != strictjson.ReasonTruncated || syntax.Offset != len(text):
		t.Errorf("%q: %v", text, err)
	}
}

func TestErrorsNeverRepeatInput(t *testing.T) {
	const secret = "topsecret"
	for _, text := range []string{
		`{"topsecret":1,"topsecret":2}`, `"topsecret` + "\x01", `{"a":topsecret}`, `{"topsecret":"\ud800"}`, `[1]topsecret`,
	} {
		if _, err := strictjson.Canonicalize([]byte(text)); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", text, err)
		}
	}
	var into struct {
		M map[string]int  `json:"m"`
		S map[string]bool `json:"s"`
		N int             `json:"n"`
	}
	for _, text := range []string{`{"m":{"topsecret":"topsecret"}}`, `{"s":{"topsecret":"topsecret"}}`, `{"n":"topsecret"}`} {
		if err := strictjson.Decode(parse(t, text), &into); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestStageOneVectors(t *testing.T) {
	dir := filepath.Join(sharedDir(t), "cryptography", "vectors", "signed-documents")
	refused := map[string]string{
		"command-duplicate-decoded-member.json": strictjson.ReasonDuplicate,
		"command-invalid-utf8.bin":              strictjson.ReasonUTF8,
		"command-trailing-data.json":            strictjson.ReasonTrailing,
		"command-utf8-bom.json":                 strictjson.ReasonBOM,
	}
	for _, class := range []string{"valid", "invalid"} {
		files, err := filepath.Glob(filepath.Join(dir, class, "*"))
		if err != nil || len(files) == 0 {
			t.Fatal("no vectors", err)
		}
		for _, file := range files {
			d, err := strictjson.Parse(read(t, file))
			if want := refused[filepath.Base(file)]; want != "" {
				var syntax *strictjson.SyntaxError
				if !errors.As(err, &syntax) || syntax.Reason != want {
					t.Errorf("%s: got %v, want %s", filepath.Base(file), err, want)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", filepath.Base(file), err)
				continue
			}
			_, err = d.Root().AppendJCSWithout(nil, "signature")
			switch filepath.Base(file) {
			case "command-number-1e400.json":
				wantCanonicalError(t, err, strictjson.ReasonNonFinite)
			case "command-unpaired-surrogate.json":
				wantCanonicalError(t, err, strictjson.ReasonSurrogate)
			default:
				if err != nil {
					t.Errorf("%s: %v", filepath.Base(file), err)
				}
			}
		}
	}
}

// hasDuplicate is the obvious reader: one set of names per open object.
func hasDuplicate(text []byte) bool {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var walk func() bool
	walk = func() bool {
		tok, err := dec.Token()
		if err != nil {
			return false
		}
		switch tok {
		case json.Delim('['):
			for dec.More() {
				if walk() {
					return true
				}
			}
		case json.Delim('{'):
			seen := map[string]bool{}
			for dec.More() {
				name, err := dec.Token()
				if err != nil {
					return false
				}
				if seen[name.(string)] {
					return true
				}
				seen[name.(string)] = true
				if walk() {
					return true
				}
			}
		default:
			return false
		}
		_, _ = dec.Token()
		return false
	}
	return walk()
}

func nesting(text []byte) int {
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
			deepest = max(deepest, depth)
		case c == ']' || c == '}':
			depth--
		}
	}
	return deepest
}

// FuzzParse compares the verdict with the standard library plus the three
// rules that it does not have, and checks what must hold of every accepted
// text.
func FuzzParse(f *testing.F) {
	f.Add([]byte(command))
	f.Add([]byte(`{"a":[1,2.50,-0,1e400,"\ud800\u0000\/é"],"\u0061b":{},"":null}`))
	f.Add([]byte(" [true,false,null]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := strictjson.Parse(text)
		lone := bytes.Contains(bytes.ToLower(text), []byte(`\ud`))
		syntaxOK := json.Valid(text) && utf8.Valid(text)
		if err == nil && (!syntaxOK || nesting(text) > strictjson.MaxDepth || !lone && hasDuplicate(text)) {
			t.Fatalf("accepted %q", text)
		}
		if err != nil {
			var syntax *strictjson.SyntaxError
			if !errors.As(err, &syntax) || syntax.Offset < 0 || syntax.Offset > len(text) {
				t.Fatalf("%q: %v", text, err)
			}
			if !syntaxOK || nesting(text) > strictjson.MaxDepth {
				return
			}
			if syntax.Reason != strictjson.ReasonDuplicate || !lone && !hasDuplicate(text) {
				t.Fatalf("refused %q: %v", text, err)
			}
			return
		}
		checkTree(t, d.Root())
		canonical, err := d.Root().AppendJCS(nil)
		if err != nil {
			var reason *strictjson.CanonicalError
			if !errors.As(err, &reason) || len(canonical) != 0 {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		again, err := strictjson.Canonicalize(canonical)
		if err != nil || !bytes.Equal(again, canonical) {
			t.Fatalf("not a fixed point: %q then %q (%v)", canonical, again, err)
		}
		direct, err := strictjson.Canonicalize(text)
		if err != nil || !bytes.Equal(direct, canonical) {
			t.Fatalf("two paths: %q and %q (%v)", canonical, direct, err)
		}
		var x any
		if err := strictjson.Decode(d.Root(), &x); err != nil {
			t.Fatal(err)
		}
		if back, err := strictjson.Marshal(x); err != nil || !bytes.Equal(back, canonical) {
			t.Fatalf("through any: %q (%v), want %q", back, err, canonical)
		}
	})
}

// checkTree walks a value in all the ways there are and compares them.
func checkTree(t *testing.T, v strictjson.Value) {
	t.Helper()
	if !json.Valid(v.Raw()) {
		t.Fatalf("Raw is not JSON: %q", v.Raw())
	}
	if !v.Equal(v) {
		t.Fatalf("not equal to itself: %q", v.Raw())
	}
	n := 0
	for i, item := range v.Items() {
		if i != n {
			t.Fatal("index")
		}
		n++
		checkTree(t, item)
	}
	for name, member := range v.Members() {
		n++
		got, ok := v.Get(name)
		if !ok || got != member {
			t.Fatalf("Get(%q) finds another value", name)
		}
		checkTree(t, member)
	}
	if n != v.Len() {
		t.Fatalf("walked %d of %d", n, v.Len())
	}
	if v.Kind() == strictjson.Number {
		if _, ok := v.Int(); ok && !v.IsInteger() {
			t.Fatalf("Int and IsInteger disagree on %s", v.NumberText())
		}
	}
}

func TestARecycledDocumentIsUsedNoMoreAndItsTextsStay(t *testing.T) {
	for range 100 { // the pool may or may not keep what it is given
		first, err := strictjson.Parse([]byte(`{"a":"one","b":["two","\u0041"]}`))
		if err != nil {
			t.Fatal(err)
		}
		root := first.Root()
		text, escaped := root.Member("a").Str(), ""
		for _, item := range root.Member("b").Items() {
			escaped = item.Str()
		}
		strictjson.Recycle(root)
		strictjson.Recycle(root)
		second, err := strictjson.Parse([]byte(`{"x":1}`))
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := second.Root().Member("x").Int(); text != "one" || escaped != "A" || !ok || n != 1 {
			t.Fatalf("%q %q %d", text, escaped, n)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Fatal("a recycled Document can still be read")
				}
			}()
			root.Member("a")
		}()
	}
}
