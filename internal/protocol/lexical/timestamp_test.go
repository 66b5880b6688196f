package lexical_test

import (
	"errors"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/protocol/lexical"
)

func instant(t testing.TB, s string) lexical.Instant {
	t.Helper()
	in, err := lexical.ParseTimestamp(s)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return in
}

func TestTimestampProfileAccepts(t *testing.T) {
	forty := strings.Repeat("1234567890", 4)
	for _, row := range []struct {
		rule, text string
		unix       int64
		nanos      int
	}{
		{"the epoch", "1970-01-01T00:00:00Z", 0, 0},
		{"lower-case t and z", "1970-01-01t00:00:00z", 0, 0},
		{"mixed case", "1970-01-01T00:00:00z", 0, 0},
		{"the first year", "0001-01-01T00:00:00Z", -62135596800, 0},
		{"the last second", "9999-12-31T23:59:59Z", 253402300799, 0},
		{"an offset that leaves the first year", "0001-01-01T00:00:00+23:59", -62135596800 - 86340, 0},
		{"an offset that leaves the last year", "9999-12-31T23:59:59-23:59", 253402300799 + 86340, 0},
		{"zero offset with plus", "1970-01-01T00:00:00+00:00", 0, 0},
		{"the greatest offsets", "1970-01-01T23:59:00+23:59", 0, 0},
		{"the smallest negative offset", "1969-12-31T23:59:00-00:01", 0, 0},
		{"half an hour", "1970-01-01T05:30:00+05:30", 0, 0},
		{"a leap day", "2024-02-29T00:00:00Z", 1709164800, 0},
		{"a leap day of a 400th year", "2000-02-29T00:00:00Z", 951782400, 0},
		{"one fraction digit", "1970-01-01T00:00:00.5Z", 0, 500000000},
		{"a fraction of zeros", "1970-01-01T00:00:00.000000000000Z", 0, 0},
		{"a fraction before the epoch", "1969-12-31T23:59:59.25Z", -1, 250000000},
		{"forty fraction digits", "1970-01-01T00:00:00." + forty + "Z", 0, 123456789},
		{"a fraction and an offset", "1970-01-01T01:00:00.000000001+01:00", 0, 1},
	} {
		t.Run(row.rule, func(t *testing.T) {
			got := instant(t, row.text).Time()
			if want := time.Unix(row.unix, int64(row.nanos)); !got.Equal(want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if !lexical.ValidTimestamp(row.text) {
				t.Error("ValidTimestamp disagrees")
			}
		})
	}
}

func TestTimestampProfileRefuses(t *testing.T) {
	for rule, text := range map[string]string{
		"nothing":                        "",
		"year zero":                      "0000-01-01T00:00:00Z",
		"a leap second":                  "2026-06-30T23:59:60Z",
		"a leap second with offset":      "2016-12-31T18:59:60-05:00",
		"second 61":                      "2026-06-30T23:59:61Z",
		"unknown local offset":           "2026-07-15T00:00:00-00:00",
		"month 0":                        "2026-00-15T00:00:00Z",
		"month 13":                       "2026-13-15T00:00:00Z",
		"day 0":                          "2026-07-00T00:00:00Z",
		"31 June":                        "2026-06-31T00:00:00Z",
		"29 February of a common year":   "2026-02-29T00:00:00Z",
		"29 February 1900":               "1900-02-29T00:00:00Z",
		"30 February":                    "2024-02-30T00:00:00Z",
		"hour 24":                        "2026-07-15T24:00:00Z",
		"minute 60":                      "2026-07-15T00:60:00Z",
		"offset hour 24":                 "2026-07-15T00:00:00+24:00",
		"offset minute 60":               "2026-07-15T00:00:00+00:60",
		"an offset without a colon":      "2026-07-15T00:00:00+0000",
		"an offset of hours only":        "2026-07-15T00:00:00+00",
		"an offset with seconds":         "2026-07-15T00:00:00+00:00:00",
		"no offset":                      "2026-07-15T00:00:00",
		"no offset, padded":              "2026-07-15T00:00:00 ",
		"a named zone":                   "2026-07-15T00:00:00UTC",
		"two designators":                "2026-07-15T00:00:00ZZ",
		"Z and an offset":                "2026-07-15T00:00:00Z+00:00",
		"a blank for T":                  "2026-07-15 00:00:00Z",
		"an underscore for T":            "2026-07-15_00:00:00Z",
		"a date only":                    "2026-07-15",
		"a time only":                    "T00:00:00Z",
		"no seconds":                     "2026-07-15T00:00Z",
		"a point without digits":         "2026-07-15T00:00:00.Z",
		"a comma fraction":               "2026-07-15T00:00:00,5Z",
		"two fractions":                  "2026-07-15T00:00:00.5.5Z",
		"a fraction with a sign":         "2026-07-15T00:00:00.+5Z",
		"a five-digit year":              "12026-07-15T00:00:00Z",
		"a signed year":                  "+2026-07-15T00:00:00Z",
		"a two-digit year":               "26-07-15T00:00:00Z",
		"a one-digit month":              "2026-7-15T00:00:00Z",
		"a leading blank":                " 2026-07-15T00:00:00Z",
		"a trailing blank":               "2026-07-15T00:00:00Z ",
		"a trailing line feed":           "2026-07-15T00:00:00Z\n",
		"a trailing NUL":                 "2026-07-15T00:00:00Z\x00",
		"fullwidth digits":               "２026-07-15T00:00:00Z",
		"a minus sign that is not ASCII": "2026-07-15T00:00:00−01:00",
		"a letter among digits":          "2026-07-15T0a:00:00Z",
		"a basic format":                 "20260715T000000Z",
		"a week date":                    "2026-W29-3T00:00:00Z",
	} {
		t.Run(rule, func(t *testing.T) {
			if got, err := lexical.ParseTimestamp(text); !errors.Is(err, lexical.ErrTimestamp) {
				t.Errorf("%q: got %v, %v", text, got, err)
			}
			if lexical.ValidTimestamp(text) || lexical.IsUTCZ(text) {
				t.Errorf("%q: valid", text)
			}
		})
	}
}

func TestProtectedTimesEndInUpperCaseZ(t *testing.T) {
	for text, want := range map[string]bool{
		"2026-07-15T00:00:00Z": true, "2026-07-15t00:00:00Z": true, "2026-07-15T00:00:00.50Z": true,
		"2026-07-15T00:00:00z": false, "2026-07-15T00:00:00+00:00": false, "2026-07-15T02:00:00+02:00": false,
		"Z": false, "2026-06-30T23:59:60Z": false,
	} {
		if got := lexical.IsUTCZ(text); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestInstantsCompareByEveryDigit(t *testing.T) {
	ordered := []string{
		"2026-07-14T23:59:59.9999999999999999999999999999999999999999Z",
		"2026-07-15T00:00:00Z",
		"2026-07-15T00:00:00.0000000000000000000000000000000000000001Z",
		"2026-07-15T00:00:00.1Z",
		"2026-07-15T00:00:00.1234560000000000001Z",
		"2026-07-15T00:00:00.1234560000000000002Z",
		"2026-07-15T00:00:00.12345600000000000020000000000000000001Z",
		"2026-07-15T00:00:00.2Z",
		"2026-07-15T00:00:01Z",
	}
	for i, a := range ordered {
		for j, b := range ordered {
			x, y := instant(t, a), instant(t, b)
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := x.Compare(y); got != want || x.Before(y) != (want < 0) || x.After(y) != (want > 0) || x.Equal(y) != (want == 0) {
				t.Errorf("%s and %s: %d", a, b, got)
			}
		}
	}
}

func TestEqualInstantsOfDifferentSpelling(t *testing.T) {
	same := []string{
		"2026-07-15T00:00:00Z", "2026-07-15t00:00:00z", "2026-07-15T00:00:00.000Z", "2026-07-15T08:00:00+08:00",
		"2026-07-14T00:01:00-23:59", "2026-07-15T23:59:00+23:59", "2026-07-15T00:00:00.0+00:00",
	}
	for _, a := range same {
		if instant(t, a) != instant(t, same[0]) {
			t.Errorf("%s differs", a)
		}
	}
}

func TestFormatMicrosIsTheFormOfEventTimes(t *testing.T) {
	zone := time.FixedZone("", -5*3600)
	for _, row := range []struct {
		in            time.Time
		micros, short string
	}{
		{time.Unix(0, 0), "1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:00Z"},
		{time.Date(2026, 7, 15, 8, 30, 0, 125_000_999, time.UTC), "2026-07-15T08:30:00.125000Z", "2026-07-15T08:30:00.125000999Z"},
		{time.Date(2026, 7, 15, 20, 30, 0, 120_000_000, zone), "2026-07-16T01:30:00.120000Z", "2026-07-16T01:30:00.12Z"},
		{time.Date(1, 1, 1, 0, 0, 0, 999_999_999, time.UTC), "0001-01-01T00:00:00.999999Z", "0001-01-01T00:00:00.999999999Z"},
		{time.Date(9999, 12, 31, 23, 59, 59, 100, time.UTC), "9999-12-31T23:59:59.000000Z", "9999-12-31T23:59:59.0000001Z"},
	} {
		if got := lexical.FormatMicros(row.in); got != row.micros {
			t.Errorf("FormatMicros: got %s, want %s", got, row.micros)
		}
		if got := lexical.FormatTime(row.in); got != row.short {
			t.Errorf("FormatTime: got %s, want %s", got, row.short)
		}
		if !lexical.IsUTCZ(row.micros) || !instant(t, row.short).Equal(lexical.InstantOf(row.in)) {
			t.Errorf("%s does not read back", row.short)
		}
	}
}

// exact is the instant as seconds since the epoch, computed from a spelling by
// a second route: a pattern, the standard calendar, and rational arithmetic.
func exact(s string) (*big.Rat, bool) {
	m := profile.FindStringSubmatch(s)
	if m == nil {
		return nil, false
	}
	var n [7]int
	for i := 1; i <= 6; i++ {
		n[i], _ = strconv.Atoi(m[i])
	}
	day := time.Date(n[1], time.Month(n[2]), n[3], n[4], n[5], n[6], 0, time.UTC)
	if n[1] == 0 || day.Format("2006-01-02T15:04:05") != s[:10]+"T"+s[11:19] || m[8] == "-00:00" {
		return nil, false
	}
	r := new(big.Rat).SetInt64(day.Unix())
	if m[7] != "" {
		f, _ := new(big.Rat).SetString("0" + m[7])
		r.Add(r, f)
	}
	if z := m[8]; len(z) == 6 {
		h, _ := strconv.Atoi(z[1:3])
		min, _ := strconv.Atoi(z[4:])
		if h > 23 || min > 59 {
			return nil, false
		}
		offset := int64(h*3600 + min*60)
		if z[0] == '+' {
			offset = -offset
		}
		r.Add(r, new(big.Rat).SetInt64(offset))
	}
	return r, true
}

var profile = regexp.MustCompile(`\A([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})\z`)

// ratOf is the value of an Instant, by way of its String.
func ratOf(t rapid.TB, in lexical.Instant) *big.Rat {
	t.Helper()
	r := new(big.Rat).SetInt64(in.Time().Unix())
	if _, frac, ok := strings.Cut(strings.TrimSuffix(in.String(), "Z"), "."); ok {
		f, ok := new(big.Rat).SetString("0." + frac)
		if !ok {
			t.Fatalf("fraction %q", frac)
		}
		r.Add(r, f)
	}
	return r
}

// Every day of the years around the ends and of four centuries, and every 13th
// day of all others.
func TestDaysOfTheCalendar(t *testing.T) {
	end := time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	for day := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC); day.Before(end); {
		step := 13
		if y := day.Year(); y < 10 || y > 9990 || 1750 < y && y < 2150 {
			step = 1
		}
		text := lexical.FormatTime(day)
		if got := instant(t, text); got.Time() != day {
			t.Fatalf("%s: got %v", text, got.Time())
		}
		day = day.AddDate(0, 0, step)
	}
	for year := 1; year <= 9999; year += 7 {
		for month := 1; month <= 12; month++ {
			last := time.Date(year, time.Month(month)+1, 0, 0, 0, 0, 0, time.UTC).Day()
			for day := last; day <= 31; day++ {
				text := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).Format("2006") + "-" + two(month) + "-" + two(day) + "T00:00:00Z"
				if got := lexical.ValidTimestamp(text); got != (day == last) {
					t.Fatalf("%s: valid %v", text, got)
				}
			}
		}
	}
}

func two(n int) string { return strconv.Itoa(100 + n)[1:] }

func TestAddIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frac := rapid.StringMatching(`(\.[0-9]{1,25})?`).Draw(t, "fraction")
		in, err := lexical.ParseTimestamp("2026-07-15T08:30:00" + frac + "Z")
		if err != nil {
			t.Fatal(err)
		}
		d := time.Duration(rapid.Int64Range(-1<<61, 1<<61).Draw(t, "d"))
		if rapid.Bool().Draw(t, "small") {
			d %= 3 * time.Second
		}
		want := ratOf(t, in)
		want.Add(want, new(big.Rat).SetFrac64(int64(d), int64(time.Second)))
		got := in.Add(d)
		if ratOf(t, got).Cmp(want) != 0 {
			t.Fatalf("%v + %v = %v, want %v", in, d, got, want)
		}
		if back := got.Add(-d); back != in {
			t.Fatalf("%v + %v - %v = %v", in, d, d, back)
		}
	})
}

func TestInstantOfTimeIsExactToTheNanosecond(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(-62135596800, 253402300799).Draw(t, "sec"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		in := lexical.InstantOf(at)
		if !in.Time().Equal(at) {
			t.Fatalf("%v became %v", at, in.Time())
		}
		if got, err := lexical.ParseTimestamp(lexical.FormatTime(at)); err != nil || got != in {
			t.Fatalf("%v: %v, %v", at, got, err)
		}
		micros, err := lexical.ParseTimestamp(lexical.FormatMicros(at))
		if err != nil || !micros.Time().Equal(at.Truncate(time.Microsecond)) && at.Unix() >= 0 {
			t.Fatalf("%v: %v, %v", at, micros, err)
		}
	})
}

func FuzzTimestamp(f *testing.F) {
	f.Add("2026-07-15T00:00:00.1234560000000000002Z", "2026-07-15t08:00:00.123456+08:00")
	f.Add("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59")
	f.Add("2026-06-30T23:59:60Z", "2026-07-15T00:00:00-00:00")
	f.Fuzz(func(t *testing.T, a, b string) {
		var values []*big.Rat
		var instants []lexical.Instant
		for _, s := range []string{a, b} {
			in, err := lexical.ParseTimestamp(s)
			want, ok := exact(s)
			if (err == nil) != ok {
				t.Fatalf("%q: %v, want valid %v", s, err, ok)
			}
			if ok {
				if ratOf(t, in).Cmp(want) != 0 {
					t.Fatalf("%q: read as %v", s, in)
				}
				values, instants = append(values, want), append(instants, in)
			}
		}
		if len(values) == 2 && instants[0].Compare(instants[1]) != values[0].Cmp(values[1]) {
			t.Fatalf("%q and %q compare as %d", a, b, instants[0].Compare(instants[1]))
		}
	})
}

func BenchmarkParseTimestamp(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if !lexical.ValidTimestamp("2026-07-15T08:30:00.125000Z") {
			b.Fatal("refused")
		}
	}
}

func BenchmarkFormatMicros(b *testing.B) {
	at := time.Date(2026, 7, 15, 8, 30, 0, 125_000_000, time.UTC)
	b.ReportAllocs()
	for b.Loop() {
		_ = lexical.FormatMicros(at)
	}
}

func TestSortingInstantsSortsTime(t *testing.T) {
	texts := []string{"2026-07-15T10:00:00+02:00", "2026-07-15T07:59:59.999Z", "2026-07-15T08:00:00.1Z", "2026-07-15T04:00:00.05-04:00"}
	slices.SortFunc(texts, func(a, b string) int { return instant(t, a).Compare(instant(t, b)) })
	want := []string{"2026-07-15T07:59:59.999Z", "2026-07-15T10:00:00+02:00", "2026-07-15T04:00:00.05-04:00", "2026-07-15T08:00:00.1Z"}
	if !slices.Equal(texts, want) {
		t.Errorf("got %q", texts)
	}
}
