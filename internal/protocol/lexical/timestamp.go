package lexical

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// ErrTimestamp says that a string is outside the timestamp profile.
var ErrTimestamp = errors.New("lexical: not a timestamp of the protocol profile")

// Instant is a point in time with as many fraction digits as were written. All
// of them take part in comparisons (PROTOCOL.md 2). The zero Instant is
// 1970-01-01T00:00:00Z. Two equal instants are also equal under ==.
type Instant struct {
	sec  int64  // seconds since 1970-01-01T00:00:00Z
	frac string // digits of the fraction, without trailing zeros
}

// ParseTimestamp reads an RFC 3339 date-time under the protocol's timestamp
// profile (PROTOCOL.md 2): years 0001 to 9999, a valid Gregorian date, seconds
// 00 to 59, an optional fraction of one or more digits, T and Z in either
// case, any numerical offset except -00:00. The error is ErrTimestamp.
func ParseTimestamp(s string) (Instant, error) {
	in, ok := parseTimestamp(s)
	if !ok {
		return Instant{}, ErrTimestamp
	}
	return in, nil
}

// ValidTimestamp tells whether s satisfies the timestamp profile.
func ValidTimestamp(s string) bool {
	_, ok := parseTimestamp(s)
	return ok
}

// IsUTCZ tells whether s is a timestamp spelled with the uppercase Z that
// protected times need (PROTOCOL.md 6.4).
func IsUTCZ(s string) bool {
	return len(s) > 0 && s[len(s)-1] == 'Z' && ValidTimestamp(s)
}

func parseTimestamp(s string) (Instant, bool) {
	// The shortest form is 2006-01-02T15:04:05Z.
	if len(s) < 20 || s[4] != '-' || s[7] != '-' || s[10]|0x20 != 't' || s[13] != ':' || s[16] != ':' {
		return Instant{}, false
	}
	century, ok1 := two(s, 0)
	year, ok2 := two(s, 2)
	month, ok3 := two(s, 5)
	day, ok4 := two(s, 8)
	hour, ok5 := two(s, 11)
	minute, ok6 := two(s, 14)
	second, ok7 := two(s, 17)
	if ok := ok1 && ok2 && ok3 && ok4 && ok5 && ok6 && ok7; !ok {
		return Instant{}, false
	}
	year += 100 * century
	if year < 1 || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) ||
		hour > 23 || minute > 59 || second > 59 {
		return Instant{}, false
	}
	sec := daysFromCivil(year, month, day)*86400 + int64(hour*3600+minute*60+second)

	frac, rest := "", s[19:]
	if rest[0] == '.' {
		n := 1
		for n < len(rest) && isDigit(rest[n]) {
			n++
		}
		if n == 1 {
			return Instant{}, false
		}
		frac, rest = strings.TrimRight(rest[1:n], "0"), rest[n:]
	}

	switch {
	case len(rest) == 1 && rest[0]|0x20 == 'z':
	case len(rest) == 6 && (rest[0] == '+' || rest[0] == '-') && rest[3] == ':':
		oh, okh := two(rest, 1)
		om, okm := two(rest, 4)
		if !okh || !okm || oh > 23 || om > 59 {
			return Instant{}, false
		}
		offset := int64(oh*3600 + om*60)
		if rest[0] == '-' {
			if offset == 0 {
				return Instant{}, false
			}
			offset = -offset
		}
		sec -= offset
	default:
		return Instant{}, false
	}
	return Instant{sec: sec, frac: frac}, true
}

func isDigit(c byte) bool { return c-'0' <= 9 }

func two(s string, i int) (int, bool) {
	a, b := s[i]-'0', s[i+1]-'0'
	return int(a)*10 + int(b), a <= 9 && b <= 9
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// daysFromCivil counts days from 1970-01-01 in the proleptic Gregorian
// calendar. The year is taken to begin in March, which puts the leap day last.
func daysFromCivil(year, month, day int) int64 {
	if month <= 2 {
		year--
		month += 12
	}
	// The divisions see no negative number: year is at least 0.
	days := 365*year + year/4 - year/100 + year/400 + (153*(month-3)+2)/5 + day - 1
	return int64(days) - 719468
}

// InstantOf is the instant of t, to the nanosecond.
func InstantOf(t time.Time) Instant {
	ns := t.Nanosecond()
	if ns == 0 {
		return Instant{sec: t.Unix()}
	}
	return Instant{sec: t.Unix(), frac: strings.TrimRight(nineDigits(ns), "0")}
}

func nineDigits(ns int) string {
	return strconv.Itoa(1_000_000_000 + ns)[1:]
}

// Time is the instant as a time.Time in UTC; digits below the nanosecond are
// cut off, so the result is never later than the instant.
func (in Instant) Time() time.Time { return time.Unix(in.sec, int64(in.nanos())).UTC() }

func (in Instant) nanos() int {
	ns := 0
	for i := range 9 {
		ns *= 10
		if i < len(in.frac) {
			ns += int(in.frac[i] - '0')
		}
	}
	return ns
}

// Compare is -1, 0 or 1 as in is before, equal to or after other.
func (in Instant) Compare(other Instant) int {
	switch {
	case in.sec < other.sec:
		return -1
	case in.sec > other.sec:
		return 1
	}
	// Without trailing zeros, digit strings order as the fractions they spell.
	return strings.Compare(in.frac, other.frac)
}

// Before tells whether in is earlier than other.
func (in Instant) Before(other Instant) bool { return in.Compare(other) < 0 }

// After tells whether in is later than other.
func (in Instant) After(other Instant) bool { return in.Compare(other) > 0 }

// Equal tells whether both are the same instant.
func (in Instant) Equal(other Instant) bool { return in == other }

// Add is the instant d later. Digits below the nanosecond are kept.
func (in Instant) Add(d time.Duration) Instant {
	in.sec += int64(d / time.Second)
	ns := int(d % time.Second)
	if ns == 0 {
		return in
	}
	ns += in.nanos()
	if ns < 0 {
		in.sec--
		ns += 1_000_000_000
	} else if ns >= 1_000_000_000 {
		in.sec++
		ns -= 1_000_000_000
	}
	below := ""
	if len(in.frac) > 9 {
		below = in.frac[9:]
	}
	in.frac = strings.TrimRight(nineDigits(ns)+below, "0")
	return in
}

// String is a spelling of the instant in UTC with all its fraction digits, for
// diagnostics. Documents keep the spelling they came with.
func (in Instant) String() string {
	s := time.Unix(in.sec, 0).UTC().Format("2006-01-02T15:04:05")
	if in.frac != "" {
		s += "." + in.frac
	}
	return s + "Z"
}

// FormatMicros spells t in UTC with Z and exactly six fraction digits, the
// form of Event times (COMMANDS.md 2.5); what lies below is cut off.
func FormatMicros(t time.Time) string {
	var b [27]byte
	return string(appendTime(b[:0], t, 6))
}

// FormatTime spells t in UTC with Z and as many fraction digits, up to nine, as
// it needs.
func FormatTime(t time.Time) string {
	var b [30]byte
	digits := 9
	for ns := t.Nanosecond(); digits > 0 && ns%10 == 0; ns /= 10 {
		digits--
	}
	return string(appendTime(b[:0], t, digits))
}

// appendTime writes t with the given number of fraction digits.
func appendTime(dst []byte, t time.Time, digits int) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	dst = pad(dst, year, 4)
	dst = pad(append(dst, '-'), int(month), 2)
	dst = pad(append(dst, '-'), day, 2)
	dst = pad(append(dst, 'T'), hour, 2)
	dst = pad(append(dst, ':'), minute, 2)
	dst = pad(append(dst, ':'), second, 2)
	if digits > 0 {
		ns := t.Nanosecond()
		for range 9 - digits {
			ns /= 10
		}
		dst = pad(append(dst, '.'), ns, digits)
	}
	return append(dst, 'Z')
}

func pad(dst []byte, n, width int) []byte {
	at := len(dst)
	for range width {
		dst = append(dst, '0')
	}
	for i := at + width - 1; i >= at && n > 0; i-- {
		dst[i] = byte('0' + n%10)
		n /= 10
	}
	return dst
}
