package strictjson

import (
	"math"
	"strconv"
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
func plainInt(s string) int64 {
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

// longNumber is the text length from which parseFloat normalises first. The
// standard conversion cuts an exponent after five digits, which is wrong when
// a mantissa of as many digits brings the value back into range.
const longNumber = 1000

// parseFloat converts the text of a JSON number, rounding correctly; it gives
// an infinity outside binary64.
func parseFloat(s string) float64 {
	if len(s) > longNumber {
		s = decimalOf(s).shorten()
	}
	// The grammar is checked, and a range error comes with the infinity.
	f, _ := strconv.ParseFloat(s, 64)
	return f
}

// decimal is the exact value of a number's text: ±0.d₁d₂…dₙ × 10^point. The
// digits are two pieces of the text, the first digit is not 0 and neither is
// the last. Zero has no digits.
type decimal struct {
	negative    bool
	left, right string
	point       int
}

func decimalOf(s string) decimal {
	var d decimal
	if s[0] == '-' {
		d.negative, s = true, s[1:]
	}
	dot, end := -1, len(s)
	exponent := 0
	for i := range len(s) {
		if s[i] == '.' {
			dot = i
		} else if s[i]|0x20 == 'e' {
			end, exponent = i, exponentOf(s[i+1:])
			break
		}
	}
	if dot < 0 {
		d.left = s[:end]
	} else {
		d.left, d.right = s[:dot], s[dot+1:end]
	}
	d.point = len(d.left) + exponent
	for d.left != "" && d.left[0] == '0' {
		d.left = d.left[1:]
		d.point--
	}
	if d.left == "" {
		for d.right != "" && d.right[0] == '0' {
			d.right = d.right[1:]
			d.point--
		}
	}
	for d.right != "" && d.right[len(d.right)-1] == '0' {
		d.right = d.right[:len(d.right)-1]
	}
	if d.right == "" {
		for d.left != "" && d.left[len(d.left)-1] == '0' {
			d.left = d.left[:len(d.left)-1]
		}
	}
	if d.digits() == 0 {
		return decimal{}
	}
	return d
}

// exponentOf reads an exponent. It stops at a magnitude that no mantissa of a
// parsable text can undo: such numbers are all zero or infinite as binary64.
func exponentOf(s string) int {
	const bound = 4 * math.MaxInt32
	negative := s[0] == '-'
	if negative || s[0] == '+' {
		s = s[1:]
	}
	n := 0
	for i := range len(s) {
		if n = n*10 + int(s[i]-'0'); n > bound {
			n = bound
			break
		}
	}
	if negative {
		return -n
	}
	return n
}

func (d decimal) digits() int { return len(d.left) + len(d.right) }

// at is digit i, or 0 behind the last.
func (d decimal) at(i int) byte {
	if i < len(d.left) {
		return d.left[i]
	}
	if i -= len(d.left); i < len(d.right) {
		return d.right[i]
	}
	return '0'
}

func (d decimal) sign() int {
	switch {
	case d.digits() == 0:
		return 0
	case d.negative:
		return -1
	}
	return 1
}

// compare is exact.
func (d decimal) compare(e decimal) int {
	s := d.sign()
	if t := e.sign(); s != t {
		if s < t {
			return -1
		}
		return 1
	}
	if d.point != e.point {
		if d.point < e.point {
			return -s
		}
		return s
	}
	for i := range max(d.digits(), e.digits()) {
		if a, b := d.at(i), e.at(i); a != b {
			if a < b {
				return -s
			}
			return s
		}
	}
	return 0
}

// int64 is the value when it is an integer within int64.
func (d decimal) int64() (int64, bool) {
	if d.digits() == 0 {
		return 0, true
	}
	if d.point > 19 || d.digits() > d.point {
		return 0, false
	}
	n := uint64(0) // 19 digits fit
	for i := range d.point {
		n = n*10 + uint64(d.at(i)-'0')
	}
	if d.negative {
		return -int64(n), n <= 1<<63
	}
	return int64(n), n < 1<<63
}

// shorten spells a value that rounds to the same double in at most 801 digits.
// No double and no midpoint of two doubles has more than 768, so digits behind
// the 800th matter only by being there: a final 1 stands for them.
func (d decimal) shorten() string {
	const keep = 800
	if d.digits() == 0 {
		return "0"
	}
	var buf [keep + 16]byte
	b := buf[:0]
	if d.negative {
		b = append(b, '-')
	}
	b = append(b, '0', '.')
	for i := range min(d.digits(), keep) {
		b = append(b, d.at(i))
	}
	if d.digits() > keep {
		b = append(b, '1')
	}
	b = append(b, 'e')
	// Beyond 9999 either way the value is zero or infinite.
	return string(strconv.AppendInt(b, int64(min(max(d.point, -9999), 9999)), 10))
}
