package strictjson

import (
	"math"
	"strconv"
	"strings"
)

// MaxSafeInteger is 2^53 - 1, the largest integer that binary64 holds together
// with all smaller ones.
const MaxSafeInteger = 1<<53 - 1

// appendNumber writes a finite number by the ECMAScript rules that RFC 8785
// requires: the shortest digits that read back as the same double, decimal
// notation from 1e-6 up to but not including 1e21, else exponent notation with
// a sign and no leading zeros; both zeros are 0.
func appendNumber(dst []byte, f float64) []byte {
	if f == 0 {
		return append(dst, '0')
	}
	if a := math.Abs(f); a >= 1e-6 && a < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	// strconv pads exponents to two digits, ECMAScript does not.
	if n := len(dst); dst[n-2] == '0' && (dst[n-3] == '-' || dst[n-3] == '+') {
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

func finite(f float64) bool { return !math.IsInf(f, 0) && !math.IsNaN(f) }

// plainInt reads at most 15 digits with an optional minus sign.
func plainInt[T []byte | string](s T) int64 {
	i, negative := 0, s[0] == '-'
	if negative {
		i = 1
	}
	n := int64(0)
	for ; i < len(s); i++ {
		n = n*10 + int64(s[i]-'0')
	}
	if negative {
		return -n
	}
	return n
}

func floatInt(f float64) (int64, bool) {
	if f != math.Trunc(f) || f < -(1<<63) || f >= 1<<63 {
		return 0, false
	}
	return int64(f), true
}

// longNumber is the text length from which parseFloat normalises first. The
// standard conversion cuts an exponent after five digits, which is wrong when
// a mantissa of many digits brings the value back into range; a shorter text
// cannot do that.
const longNumber = 1000

// parseFloat converts the text of a JSON number, rounding correctly; it gives
// an infinity outside binary64.
func parseFloat(s string) float64 {
	if len(s) > longNumber {
		s = shorten(s)
	}
	// The grammar is checked and a range error comes with the infinity.
	f, _ := strconv.ParseFloat(s, 64)
	return f
}

// shorten rewrites a long number as d.ddde±n with at most 800 digits. No
// double and no halfway point between two doubles has more than 768, so what
// is cut off can matter only by being there: a final 1 stands for it.
func shorten(s string) string {
	const keep = 800
	sign := ""
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	exponent := 0
	if e := strings.IndexAny(s, "eE"); e >= 0 {
		exponent = clampedInt(s[e+1:])
		s = s[:e]
	}
	whole, fraction, _ := strings.Cut(s, ".")
	// point is the decimal exponent of the first digit, were it 0.ddd.
	point := len(whole)
	digits := whole + fraction
	trimmed := strings.TrimLeft(digits, "0")
	point -= len(digits) - len(trimmed)
	if trimmed == "" {
		return sign + "0"
	}
	if len(trimmed) > keep {
		rest := strings.TrimRight(trimmed[keep:], "0")
		trimmed = trimmed[:keep]
		if rest != "" {
			trimmed += "1"
		}
	}
	// Both terms are far below the range of int; beyond 9999 either way the
	// value is zero or infinite.
	exponent = min(max(exponent+point, -9999), 9999)
	return sign + "0." + trimmed + "e" + strconv.Itoa(exponent)
}

// clampedInt reads an exponent, stopping at a magnitude no text can undo.
func clampedInt(s string) int {
	const bound = math.MaxInt32 * 4
	negative := s[0] == '-'
	n := 0
	for _, c := range strings.TrimLeft(s, "+-") {
		if n = n*10 + int(c-'0'); n > bound {
			n = bound
			break
		}
	}
	if negative {
		return -n
	}
	return n
}
