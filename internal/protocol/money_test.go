package protocol_test

import (
	"errors"
	"math/big"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

func TestParseMoney(t *testing.T) {
	for text, want := range map[string]protocol.Money{
		"0": 0, "-0": 0, "0.0": 0, "0e5": 0, "1e-400": 0,
		"1": 1_000_000, "1.0": 1_000_000, "1e0": 1_000_000, "10e-1": 1_000_000,
		"0.000001": 1, "1e-6": 1, "0.0000010": 1, "1.25": 1_250_000, "12.345678": 12_345_678,
		"0.1000000000000000055": 100_000, "0.10000000000000000000000000000": 100_000,
		"9007199254.5": 9_007_199_254_500_000, "9007199254": 9_007_199_254_000_000,
		"8589934591.999999": 8_589_934_591_999_999,
	} {
		got, err := protocol.ParseMoney(text)
		if err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"-1", "-0.000001", "0.0000001", "1e-7", "1.0000001", "0.1234567", "9007199254.75", "9007199254.740991", "9007199255",
		"9007199254740991", "1e15", "1e22", "1e400", "99999999999999999999999", "123456789012345",
	} {
		if got, err := protocol.ParseMoney(text); !errors.Is(err, protocol.ErrMoney) {
			t.Errorf("%s: %d, %v; want ErrMoney", text, got, err)
		}
	}
}

// Below 2^33 units every micro-unit survives the wire; above, what was decoded
// once encodes to the same number for ever.
func TestMoneySurvivesTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := protocol.Money(rapid.Int64Range(0, int64(protocol.MaxMoney)).Draw(t, "m"))
		if rapid.Bool().Draw(t, "near a whole") {
			m = m / protocol.MicroUnits * protocol.MicroUnits
		}
		b, err := m.AppendJSON(nil)
		if err != nil {
			t.Fatal(err)
		}
		canonical, err := strictjson.AppendFloat(nil, float64(m)/protocol.MicroUnits)
		if err != nil || string(b) != string(canonical) {
			t.Fatalf("%d is written %s, canonical is %s", m, b, canonical)
		}
		back, err := protocol.ParseMoney(string(b))
		if err != nil {
			if m > 1<<33*protocol.MicroUnits {
				return
			}
			t.Fatalf("%s: %v", b, err)
		}
		if m < 1<<33*protocol.MicroUnits && back != m {
			t.Fatalf("%d came back as %d", m, back)
		}
		again, err := back.AppendJSON(nil)
		if err != nil || string(again) != string(b) {
			t.Fatalf("%s became %s", b, again)
		}
	})
}

// The fast path for short spellings gives what the general rule gives.
func TestMoneyFastPathAgreesWithTheRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`(0|[1-9][0-9]{0,11})(\.[0-9]{1,8})?`).Draw(t, "text")
		got, err := protocol.ParseMoney(text)
		want, wantErr := moneyByRule(text)
		if (err == nil) != wantErr || got != want {
			t.Fatalf("%s: %d, %v; want %d, %v", text, got, err, want, wantErr)
		}
	})
}

func moneyByRule(text string) (protocol.Money, bool) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, false
	}
	micro, ok := new(big.Rat).SetString(strconv.FormatFloat(f, 'f', -1, 64))
	if !ok {
		return 0, false
	}
	micro.Mul(micro, big.NewRat(protocol.MicroUnits, 1))
	if !micro.IsInt() || micro.Cmp(new(big.Rat).SetInt64(int64(protocol.MaxMoney))) > 0 {
		return 0, false
	}
	return protocol.Money(micro.Num().Int64()), true
}

func TestMoneyString(t *testing.T) {
	for m, want := range map[protocol.Money]string{
		0: "0", 1: "0.000001", 1_500_000: "1.5", 2_000_000: "2", -10: "-0.00001",
	} {
		if m.String() != want {
			t.Errorf("%d: %s, want %s", int64(m), m, want)
		}
	}
	if _, err := protocol.Money(-1).AppendJSON(nil); !errors.Is(err, protocol.ErrMoney) {
		t.Error("a negative amount was encoded")
	}
}
