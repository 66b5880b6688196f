package protocol

import (
	"errors"
	"strconv"
	"strings"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Money is an amount in integer micro-units of a currency: 1.25 is 1250000.
// On the wire it is a JSON number with at most six decimals (COMMANDS.md 3.2).
//
// The wire number is a binary64, as every JSON number of the protocol. Below
// 2^33 whole units each micro-unit has a binary64 of its own, so encoding and
// decoding are exact inverses. From there to MaxMoney two neighbouring
// micro-units may share one number; what is decoded is then the shortest
// decimal, and encoding it again yields the same number. MaxMoney itself rounds
// up, so no number decodes to it.
type Money int64

// MaxMoney is the largest amount the profile accepts, 2^53-1 micro-units.
const MaxMoney Money = 1<<53 - 1

// MicroUnits is the number of micro-units in one whole unit.
const MicroUnits = 1_000_000

// ErrMoney says that a number is not an amount: negative, not finite, finer
// than a micro-unit, or above MaxMoney.
var ErrMoney = errors.New("protocol: not a money amount")

// ParseMoney reads the text of a JSON number. The amount is that of the
// shortest decimal of the number's binary64 value, so 0.1 and
// 0.1000000000000000055 are the same 100000 micro-units.
func ParseMoney(text string) (Money, error) {
	if m, ok := parsePlainMoney(text); ok {
		return m, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f < 0 || f > float64(MaxMoney)/MicroUnits {
		return 0, ErrMoney
	}
	if f == 0 {
		return 0, nil
	}
	whole, frac, _ := strings.Cut(strconv.FormatFloat(f, 'f', -1, 64), ".")
	if len(frac) > 6 {
		return 0, ErrMoney
	}
	n, err := strconv.ParseInt(whole+frac+strings.Repeat("0", 6-len(frac)), 10, 64)
	if err != nil || Money(n) > MaxMoney {
		return 0, ErrMoney
	}
	return Money(n), nil
}

// parsePlainMoney handles spellings whose digits are few enough (15) to be
// their own shortest decimal, which is every amount met in practice.
func parsePlainMoney(text string) (Money, bool) {
	if text == "" || len(text) > 16 {
		return 0, false
	}
	n, digits, frac := int64(0), 0, -1
	for i := range len(text) {
		c := text[i]
		switch {
		case c >= '0' && c <= '9':
			n = n*10 + int64(c-'0')
			digits++
			if frac >= 0 {
				frac++
			}
		case c == '.' && frac < 0 && digits > 0:
			frac = 0
		default:
			return 0, false
		}
	}
	if frac < 0 {
		frac = 0
	}
	if digits > 15 || frac > 6 {
		return 0, false
	}
	for range 6 - frac {
		if n > int64(MaxMoney)/10 {
			return 0, false
		}
		n *= 10
	}
	if Money(n) > MaxMoney {
		return 0, false
	}
	return Money(n), true
}

// DecodeJSON reads an amount from a JSON number; ErrMoney when it is not one.
func (m *Money) DecodeJSON(v strictjson.Value) error {
	if v.Kind() != strictjson.Number {
		return ErrMoney
	}
	n, err := ParseMoney(v.NumberText())
	if err != nil {
		return err
	}
	*m = n
	return nil
}

// AppendJSON writes the amount as a JCS number: the shortest decimal of its
// binary64 value. ErrMoney for a negative amount or one above MaxMoney.
func (m Money) AppendJSON(dst []byte) ([]byte, error) {
	if m < 0 || m > MaxMoney {
		return dst, ErrMoney
	}
	if whole := m / MicroUnits; whole < 1<<33 {
		dst = strconv.AppendInt(dst, int64(whole), 10)
		frac := int64(m % MicroUnits)
		if frac == 0 {
			return dst, nil
		}
		dst = append(dst, '.')
		for unit := int64(MicroUnits / 10); frac > 0; unit /= 10 {
			dst = append(dst, byte('0'+frac/unit))
			frac %= unit
		}
		return dst, nil
	}
	return strconv.AppendFloat(dst, float64(m)/MicroUnits, 'f', -1, 64), nil
}

// String is the decimal text, for people and logs; a negative amount, which
// never travels, has a minus sign.
func (m Money) String() string {
	if m < 0 {
		return "-" + (-m).String()
	}
	b := strconv.AppendInt(nil, int64(m/MicroUnits), 10)
	if frac := int64(m % MicroUnits); frac != 0 {
		s := strconv.FormatInt(MicroUnits+frac, 10)[1:]
		b = append(append(b, '.'), strings.TrimRight(s, "0")...)
	}
	return string(b)
}
