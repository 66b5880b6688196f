package lexical_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/internal/protocol/lexical"
)

func TestBase64URLHasOneSpelling(t *testing.T) {
	for _, row := range []struct {
		text string
		want []byte
	}{
		{"", []byte{}}, {"AA", []byte{0}}, {"_w", []byte{255}}, {"-_8", []byte{0xFB, 0xFF}}, {"AAAA", []byte{0, 0, 0}}, {"aGk", []byte("hi")},
	} {
		got, err := lexical.DecodeBase64URL(row.text)
		if err != nil || !bytes.Equal(got, row.want) {
			t.Errorf("%q: got %x, %v", row.text, got, err)
		}
		if back := lexical.EncodeBase64URL(row.want); back != row.text {
			t.Errorf("%x is spelled %q", row.want, back)
		}
	}
	for rule, text := range map[string]string{
		"padding": "AA==", "unused bits after one byte": "AB", "unused bits after two bytes": "AAB", "a lone character": "A", "a lone character at the end": "AAAAA",
		"the standard alphabet": "+/", "a line feed": "AA\nAA", "a trailing line feed": "AA\n", "a blank": "A A", "raw Unicode": "é",
		"a carriage return": "\rAA", "a NUL": "AA\x00A",
	} {
		dst := []byte("kept")
		got, err := lexical.AppendBase64URL(dst, text)
		if !errors.Is(err, lexical.ErrBase64URL) || string(got) != "kept" {
			t.Errorf("%s: %q, %v", rule, got, err)
		}
	}
}

func FuzzBase64URL(f *testing.F) {
	f.Add("iG90p5POJKZravPJOZVJQ18TQbltZY9ulWxWrq6hHcYSG1d9gH-npB5Jft-opLu4RyLhCcZ73CzpyM-pjy2qCw")
	f.Add("AB")
	f.Add("AA\n")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := lexical.DecodeBase64URL(s)
		want, libraryErr := base64.RawURLEncoding.Strict().DecodeString(s)
		canonical := libraryErr == nil && base64.RawURLEncoding.EncodeToString(want) == s
		if (err == nil) != canonical || err == nil && !bytes.Equal(got, want) {
			t.Fatalf("%q: %x, %v; the library %x, %v", s, got, err, want, libraryErr)
		}
	})
}

func TestSemverPrecedence(t *testing.T) {
	ordered := []string{
		"0.0.0-0", "0.0.0", "0.0.1", "0.1.0", "1.0.0-1", "1.0.0-2", "1.0.0-10", "1.0.0-99999999999999999999", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2",
		"1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0", "10.0.0", "99999999999999999999.0.0", "100000000000000000000.0.0",
	}
	for i, a := range ordered {
		for j, b := range ordered {
			v, errA := lexical.ParseSemver(a)
			w, errB := lexical.ParseSemver(b)
			if errA != nil || errB != nil {
				t.Fatal(a, b, errA, errB)
			}
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := v.Compare(w); got != want {
				t.Errorf("%s and %s: %d, want %d", a, b, got, want)
			}
		}
	}
	a, _ := lexical.ParseSemver("1.2.3-rc.1+build.5")
	b, _ := lexical.ParseSemver("1.2.3-rc.1+other")
	if a.Compare(b) != 0 || a.Major() != "1" || a.Minor() != "2" || a.Patch() != "3" || a.Prerelease() != "rc.1" {
		t.Errorf("%+v", a)
	}
	if _, err := lexical.ParseSemver("1.2"); !errors.Is(err, lexical.ErrSemver) {
		t.Error(err)
	}
}

func TestCapabilityVersionsMatchWithinOneMajor(t *testing.T) {
	for _, row := range []struct {
		have, required string
		want           bool
	}{
		{"1.0.0", "1.0.0", true},
		{"1.4.2", "1.4.1", true},
		{"1.5.0", "1.4.9", true},
		{"1.4.0", "1.4.1", false},
		{"2.0.0", "1.0.0", false},
		{"1.0.0", "2.0.0", false},
		{"0.2.5", "0.2.4", true},
		{"0.3.0", "0.2.4", false},
		{"0.2.3", "0.2.4", false},
		{"1.0.0-rc.1", "1.0.0", false},
		{"1.0.0", "1.0.0-rc.1", true},
		{"1.0.0+a", "1.0.0+b", true},
	} {
		have, _ := lexical.ParseSemver(row.have)
		required, _ := lexical.ParseSemver(row.required)
		if got := have.Satisfies(required); got != row.want {
			t.Errorf("%s for %s: %v", row.have, row.required, got)
		}
	}
}

func TestUUIDv7(t *testing.T) {
	at := time.UnixMilli(0x018f2f5e7c1a)
	got := lexical.UUIDv7(at, [10]byte{0xFF, 0xC3, 0xFF, 0xC4, 0xDC, 0x0C, 0x0C, 0x07, 0x39, 0x8F})
	if want := "urn:uuid:018f2f5e-7c1a-7fc3-bfc4-dc0c0c07398f"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !lexical.ValidID(got) {
		t.Error("not an identifier")
	}
	zero := lexical.UUIDv7(at, [10]byte{})
	if want := "urn:uuid:018f2f5e-7c1a-7000-8000-000000000000"; zero != want {
		t.Errorf("got %s, want %s", zero, want)
	}
	later := lexical.UUIDv7(at.Add(time.Millisecond), [10]byte{})
	if strings.Compare(got, later) >= 0 {
		t.Error("identifiers do not order by time")
	}
}

func TestLexicalChecksDoNotAllocate(t *testing.T) {
	at := time.Date(2026, 7, 15, 8, 30, 0, 125_000_000, time.UTC)
	for name, row := range map[string]struct {
		limit float64
		call  func()
	}{
		"ValidID":        {0, func() { lexical.ValidID("https://user@[::ffff:1.2.3.4]:80/a?b#c%41") }},
		"ParseTimestamp": {0, func() { _, _ = lexical.ParseTimestamp("2026-07-15T08:30:00.1234567890123+02:00") }},
		"ParseSemver":    {0, func() { _, _ = lexical.ParseSemver("1.2.3-a.b+c") }},
		"FormatMicros":   {1, func() { _ = lexical.FormatMicros(at) }},
		"UUIDv7":         {1, func() { _ = lexical.UUIDv7(at, [10]byte{}) }},
		"base64url":      {1, func() { _, _ = lexical.DecodeBase64URL("AAAA") }},
	} {
		if got := testing.AllocsPerRun(100, row.call); got > row.limit {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}
