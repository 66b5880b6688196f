package lexical_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/protocol/lexical"
)

// pattern is one string rule of the normative schemas: the function under test
// and the schema's own words.
type pattern struct {
	name     string
	valid    func(string) bool
	schema   func(string) bool
	accepted []string
	refused  []string
}

// full compiles a schema pattern for the complete string.
func full(expr string, maxLength int) func(string) bool {
	re := regexp.MustCompile(`\A(?:` + expr + `)\z`)
	return func(s string) bool {
		return re.MatchString(s) && (maxLength == 0 || utf8.RuneCountInString(s) <= maxLength)
	}
}

// duration stands in for the look-aheads of the schema's pattern.
func duration(s string) bool {
	return full(`P(?:[0-9]+D)?(?:T(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+(?:\.[0-9]+)?S)?)?`, 64)(s) && s != "P" && !strings.HasSuffix(s, "T")
}

var patterns = []pattern{
	{
		"kind", lexical.ValidKind, full(`[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+`, 160),
		[]string{"work.submit", "a.b", "a1_.b2_.c", "a." + strings.Repeat("b", 158)},
		[]string{"", "work", "work.", ".work", "Work.submit", "work.Submit", "work..x", "1a.b", "a.1b", "a._b", "a-b.c", "work.submit\n", "a." + strings.Repeat("b", 159), "a.é"},
	},
	{
		"extension kind", lexical.ValidExtensionKind, full(`ext\.[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9][a-z0-9_-]*){2,}`, 160),
		[]string{"ext.missionweave.work.offer_decline", "ext.a.b.c", "ext.1-_.2.3.4"},
		[]string{"", "ext", "ext.", "ext.a.b", "ext.a.b.", "ext..a.b", "ext.a.-b.c", "ext.A.b.c", "Ext.a.b.c", "ext.a.b.c\n", "ext.a.b." + strings.Repeat("c", 153), "extra.a.b.c"},
	},
	{
		"semver", lexical.ValidSemver, full(`(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?`, 128),
		[]string{"0.0.0", "1.2.3", "10.20.30", "1.0.0-alpha.1", "1.0.0+build", "1.0.0-rc-1+b.1-2", "1.0.0--", "1.0.0-..", "1.0.0-01", strings.Repeat("9", 124) + ".0.0"},
		[]string{"", "1", "1.2", "1.2.3.4", "01.0.0", "1.00.0", "1.0.0-", "1.0.0+", "1.0.0-+x", "1.0.0-a+", "1.0.0+a+b", "v1.0.0", "1.0.0 ", "1.0.0\n", "1.0.0-é", "1.0.0_a", "-1.0.0", strings.Repeat("9", 125) + ".0.0"},
	},
	{
		"base64url", lexical.ValidBase64URL, func(s string) bool { return len(s) >= 2 && len(s) <= 4096 && full(`[A-Za-z0-9_-]+`, 0)(s) },
		[]string{"AA", "_-", "AAA", "AAAAA", strings.Repeat("A", 4096)},
		[]string{"", "A", "AA=", "AA==", "A+", "A/", "A A", "AA\n", strings.Repeat("A", 4097), "Aé"},
	},
	{
		"sha256", lexical.ValidSHA256, full(`sha256:[0-9a-f]{64}`, 0),
		[]string{"sha256:" + strings.Repeat("0a", 32), "sha256:" + strings.Repeat("f9", 32)},
		[]string{"", "sha256:", "sha256:" + strings.Repeat("0A", 32), "SHA256:" + strings.Repeat("0a", 32), "sha256:" + strings.Repeat("0a", 31), "sha256:" + strings.Repeat("0a", 32) + "\n", strings.Repeat("0a", 36)[:71], "sha256:" + strings.Repeat("0g", 32)},
	},
	{
		"duration", lexical.ValidDuration, duration,
		[]string{"P1D", "PT1H", "PT1M", "PT1S", "PT1.5S", "P0DT0H0M0.000S", "P10DT5M", "PT1H1S"},
		[]string{"", "P", "PT", "P1DT", "P1H", "PT1D", "P1", "PT1", "PT1.5M", "PT.5S", "PT1.S", "PT1S1M", "PT1M1M", "P1W", "P1Y", "P-1D", "p1d", "P1D\n", "P" + strings.Repeat("1", 63) + "D"},
	},
	{
		"capability id", lexical.ValidCapabilityID, full(`[a-z0-9]+(?:[.-][a-z0-9]+)+`, 200),
		[]string{"a.b", "code-review", "a1.b2-c3"},
		[]string{"", "a", "a.", ".a", "a..b", "a.-b", "-a.b", "A.b", "a_b.c", "a.b\n", "a." + strings.Repeat("b", 199)},
	},
	{
		"criterion id", lexical.ValidCriterionID, full(`[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}`, 0),
		[]string{"a", "1", "A._-z", strings.Repeat("a", 128)},
		[]string{"", ".", "_a", "-a", "a b", "a:b", "a\n", strings.Repeat("a", 129), "é"},
	},
	{
		"operation and scope", lexical.ValidOperation, full(`[a-z][a-z0-9._:-]*`, 128),
		[]string{"a", "read", "mission.inspect", "s3:get-object_v2", strings.Repeat("a", 128)},
		[]string{"", "A", "1a", ".a", "a/b", "a\n", strings.Repeat("a", 129)},
	},
	{
		"failure code", lexical.ValidFailureCode, full(`[A-Z][A-Z0-9_]{1,127}`, 0),
		[]string{"AB", "TIMEOUT_1", strings.Repeat("A", 128)},
		[]string{"", "A", "aB", "_A", "1A", "A-B", "AB\n", strings.Repeat("A", 129)},
	},
	{
		"currency", lexical.ValidCurrency, full(`[A-Z]{3}`, 0),
		[]string{"EUR", "AAA", "ZZZ"},
		[]string{"", "EU", "EURO", "eur", "EU1", "EUR\n", "ÉU"},
	},
	{
		"media type", lexical.ValidMediaType, full(`[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+`, 0),
		[]string{"text/plain", "application/vnd.a+json", "A1!#$&^_.+-/A1!#$&^_.+-"},
		[]string{"", "/", "text", "text/", "/plain", "a/b/c", "text/plain; charset=utf-8", "text/plain\n", "é/a"},
	},
	{
		"not blank", lexical.NotBlank, regexp.MustCompile("[^\\t\\n\\v\\f\\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]").MatchString,
		[]string{"a", " a ", "\u200b", "\x00", "\x1f", "\u0085", "é"},
		[]string{"", " ", "\t\n\v\f\r", "\u00a0", "\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"},
	},
}

func TestPatternsOfTheSchemas(t *testing.T) {
	for _, p := range patterns {
		t.Run(p.name, func(t *testing.T) {
			for _, s := range p.accepted {
				if !p.valid(s) || !p.schema(s) {
					t.Errorf("%q: valid %v, the schema says %v, want both true", s, p.valid(s), p.schema(s))
				}
			}
			for _, s := range p.refused {
				if p.valid(s) || p.schema(s) {
					t.Errorf("%q: valid %v, the schema says %v, want both false", s, p.valid(s), p.schema(s))
				}
			}
			// Recombining the samples finds the borders between them.
			samples := append(append([]string{"", ".", "-", "+", "T", "D", "S", "0", "1", "a", "Z", "\n"}, p.accepted...), p.refused...)
			rapid.Check(t, func(t *rapid.T) {
				a, b := rapid.SampledFrom(samples).Draw(t, "a"), rapid.SampledFrom(samples).Draw(t, "b")
				s := a[:rapid.IntRange(0, len(a)).Draw(t, "i")] + b[rapid.IntRange(0, len(b)).Draw(t, "j"):]
				if utf8.ValidString(s) && p.valid(s) != p.schema(s) {
					t.Fatalf("%q: valid %v, the schema says %v", s, p.valid(s), p.schema(s))
				}
			})
		})
	}
}

func FuzzPatterns(f *testing.F) {
	for _, p := range patterns {
		for _, s := range append(p.accepted, p.refused...) {
			f.Add(s)
		}
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			return // parsed text is valid, and patterns are defined on characters
		}
		for _, p := range patterns {
			if p.valid(s) != p.schema(s) {
				t.Fatalf("%s %q: valid %v, the schema says %v", p.name, s, p.valid(s), p.schema(s))
			}
		}
	})
}
