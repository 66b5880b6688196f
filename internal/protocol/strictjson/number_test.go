package strictjson_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

func format(t testing.TB, f float64) string {
	t.Helper()
	b, err := strictjson.AppendFloat(nil, f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The published samples of RFC 8785 appendix B, by their bits.
func TestNumbersOfRFC8785AppendixB(t *testing.T) {
	for _, row := range []struct {
		bits uint64
		want string
	}{
		{0x0000000000000000, "0"},
		{0x8000000000000000, "0"},
		{0x0000000000000001, "5e-324"},
		{0x8000000000000001, "-5e-324"},
		{0x7fefffffffffffff, "1.7976931348623157e+308"},
		{0xffefffffffffffff, "-1.7976931348623157e+308"},
		{0x4340000000000000, "9007199254740992"},
		{0xc340000000000000, "-9007199254740992"},
		{0x4430000000000000, "295147905179352830000"},
		{0x44b52d02c7e14af5, "9.999999999999997e+22"},
		{0x44b52d02c7e14af6, "1e+23"},
		{0x44b52d02c7e14af7, "1.0000000000000001e+23"},
		{0x444b1ae4d6e2ef4e, "999999999999999700000"},
		{0x444b1ae4d6e2ef4f, "999999999999999900000"},
		{0x444b1ae4d6e2ef50, "1e+21"},
		{0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
		{0x3eb0c6f7a0b5ed8d, "0.000001"},
		{0x41b3de4355555553, "333333333.3333332"},
		{0x41b3de4355555554, "333333333.33333325"},
		{0x41b3de4355555555, "333333333.3333333"},
		{0x41b3de4355555556, "333333333.3333334"},
		{0x41b3de4355555557, "333333333.33333343"},
		{0xbecbf647612f3696, "-0.0000033333333333333333"},
		{0x43143ff3c1cb0959, "1424953923781206.2"},
	} {
		f := math.Float64frombits(row.bits)
		if got := format(t, f); got != row.want {
			t.Errorf("%016x: got %s, want %s", row.bits, got, row.want)
		}
		if got := oracleNumber(f); got != row.want {
			t.Errorf("%016x: the oracle itself gives %s, want %s", row.bits, got, row.want)
		}
	}
	for _, bits := range []uint64{0x7fffffffffffffff, 0x7ff0000000000000, 0xfff0000000000000} {
		if _, err := strictjson.AppendFloat(nil, math.Float64frombits(bits)); err == nil {
			t.Errorf("%016x: accepted", bits)
		}
	}
}

// drawDouble gives finite doubles of the kinds that separate algorithms.
func drawDouble(r *rand.Rand) float64 {
	for {
		var f float64
		switch r.IntN(8) {
		case 0: // neighbours of powers of two, where the interval is lopsided
			f = math.Float64frombits(r.Uint64N(2047)<<52 + r.Uint64N(5) - 2)
		case 1: // few digits
			f = float64(r.Int64N(1_000_000)) * math.Pow10(r.IntN(40)-20)
		case 2: // integers around the safe range
			f = float64(r.Int64N(1 << 58))
		case 3: // subnormals
			f = math.Float64frombits(r.Uint64() >> (12 + r.UintN(50)))
		case 4: // neighbours of powers of ten, among them the notation changes
			f = math.Float64frombits(math.Float64bits(math.Pow10(r.IntN(617)-308)) + r.Uint64N(9) - 4)
		default:
			f = math.Float64frombits(r.Uint64())
		}
		if !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f
		}
	}
}

// TestNumbersAgainstExactArithmetic compares the canonical spelling with a
// second algorithm. MW_LONG=1 takes ten million doubles.
func TestNumbersAgainstExactArithmetic(t *testing.T) {
	count := 200_000
	if os.Getenv("MW_LONG") != "" {
		count = 10_000_000
	}
	if testing.Short() {
		count = 20_000
	}
	workers := runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(8785, uint64(w)))
			var buf []byte
			for range count / workers {
				f := drawDouble(r)
				buf, _ = strictjson.AppendFloat(buf[:0], f)
				if want := oracleNumber(f); string(buf) != want {
					t.Errorf("%016x: got %s, want %s", math.Float64bits(f), buf, want)
					return
				}
				if back, err := strconv.ParseFloat(string(buf), 64); err != nil || back != f {
					t.Errorf("%016x: %s reads back as another double", math.Float64bits(f), buf)
					return
				}
			}
		})
	}
	wg.Wait()
}

// rational is the exact value of a number's text when its exponent is small
// enough to write out.
func rational(text string) (*big.Rat, bool) {
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		if e, err := strconv.Atoi(text[i+1:]); err != nil || e > 3000 || e < -3000 {
			return nil, false
		}
	}
	return new(big.Rat).SetString(text)
}

// checkNumber compares every view of a number with exact rationals.
func checkNumber(t *testing.T, text string) {
	t.Helper()
	v := parse(t, text)
	exact, ok := rational(text)
	if !ok {
		return
	}
	want, _ := exact.Float64()
	if got := v.Float(); got != want {
		t.Errorf("%.60s: Float %v, want %v", text, got, want)
	}
	if got := v.Sign(); got != exact.Sign() {
		t.Errorf("%.60s: Sign %d, want %d", text, got, exact.Sign())
	}
	if got := v.IsInteger(); got != exact.IsInt() {
		t.Errorf("%.60s: IsInteger %v", text, got)
	}
	n, ok := v.Int()
	if wantOK := exact.IsInt() && exact.Num().IsInt64(); ok != wantOK || ok && n != exact.Num().Int64() {
		t.Errorf("%.60s: Int %d, %v; want %v, %v", text, n, ok, exact.Num(), wantOK)
	}
	canonical, err := v.AppendJCS(nil)
	if math.IsInf(want, 0) {
		if err == nil {
			t.Errorf("%.60s: canonical form of a number outside binary64", text)
		}
	} else if err != nil || string(canonical) != oracleNumber(want) {
		t.Errorf("%.60s: canonical %s (%v), want %s", text, canonical, err, oracleNumber(want))
	}
}

var numberTexts = []string{
	"0", "-0", "-0.0", "0e5", "0.000e-99999999999999999999", "1", "-1", "10", "1.0", "1e2", "1E+2", "100e-2", "1.5", "-1.50",
	"999999999999999", "-999999999999999", "1000000000000000", "9007199254740991", "9007199254740992", "9007199254740993",
	"9007199254740991.4", "1.00000000000000000001", "0.99999999999999999999", "9223372036854775807", "9223372036854775808",
	"-9223372036854775808", "-9223372036854775809", "18446744073709551616", "922337203685477580.7e1", "99999999999999999999",
	"1e21", "1e20", "123456789012345678901", "1e-6", "1e-7", "0.0000001", "4.35", "0.1", "333333333.33333329", "1e30", "1e+023",
	"5e-324", "2.4703282292062327e-324", "2.4703282292062328e-324", "1.7976931348623157e308", "1.7976931348623158e308",
	"1.7976931348623159e308", "1e308", "1e309", "-1e309", "1e-400", "-1e-400", "2.2250738585072011e-308",
	"9007199254740993.0", "9007199254740992.99999999999999999999",
}

func TestNumberViewsAgreeWithExactRationals(t *testing.T) {
	for _, text := range numberTexts {
		checkNumber(t, text)
	}
	zeros, nines := strings.Repeat("0", 1500), strings.Repeat("9", 1500)
	for _, text := range []string{
		"1" + zeros + "e-1500", "0." + zeros + "1e1501", "-1" + zeros, "0." + zeros + "1", nines, nines + "e-1490",
		"0." + nines, nines + "." + nines + "e-1500", "1" + zeros + ".0e-1500", "9007199254740993." + zeros + "1",
		"9007199254740993." + zeros, "9007199254740992." + nines, "0." + zeros + "e5", "-0." + zeros,
	} {
		checkNumber(t, text)
	}
	// The midpoint of the two smallest doubles has 751 significant digits;
	// the result must turn on the digit that makes it more than a midpoint.
	midpoint := new(big.Rat).SetFrac(big.NewInt(3), new(big.Int).Lsh(big.NewInt(1), 1075)).FloatString(1100)
	midpoint = strings.TrimRight(midpoint, "0")
	checkNumber(t, midpoint)
	checkNumber(t, midpoint+strings.Repeat("0", 500)+"1")
	checkNumber(t, midpoint[:len(midpoint)-1]+"4"+strings.Repeat("9", 500))
}

// A mantissa can undo an exponent of any length that fits in the input; the
// standard conversion gives up on exponents of more than five digits.
func TestLongMantissaUndoesLongExponent(t *testing.T) {
	zeros := strings.Repeat("0", 250_000)
	for text, want := range map[string]string{
		"0." + zeros + "15e250001":                "1.5",
		"15" + zeros + "e-250000":                 "15",
		"-25" + zeros + ".0e-250001":              "-2.5",
		"1e999999999999999999999999":              "",
		"0." + zeros + "1e9999999999999999999999": "",
		"1e-99999999999999999999999":              "0",
		"1" + zeros + "e-99999999999999999999":    "0",
		"0e9999999999999999999999":                "0",
	} {
		got, err := parse(t, text).AppendJCS(nil)
		if want == "" {
			if err == nil {
				t.Errorf("%.20s…: finite", text)
			}
		} else if err != nil || string(got) != want {
			t.Errorf("%.20s…: got %.40s (%v), want %s", text, got, err, want)
		}
	}
}

func TestNumbersOutsideBinary64AreNumbersUntilCanonicalisation(t *testing.T) {
	for _, text := range []string{"1e400", "-1e400", "1e309", strings.Repeat("9", 400)} {
		v := parse(t, text)
		if v.Kind() != strictjson.Number || v.NumberText() != text || !math.IsInf(v.Float(), 0) {
			t.Errorf("%s: kind %v", text, v.Kind())
		}
		_, err := v.AppendJCS(nil)
		wantCanonicalError(t, err, strictjson.ReasonNonFinite)
	}
}

func FuzzNumber(f *testing.F) {
	f.Add(math.Float64bits(0.1))
	f.Add(uint64(1))
	f.Add(uint64(0x7fefffffffffffff))
	f.Add(uint64(0x4430000000000000))
	f.Fuzz(func(t *testing.T, bits uint64) {
		x := math.Float64frombits(bits)
		got, err := strictjson.AppendFloat(nil, x)
		if math.IsNaN(x) || math.IsInf(x, 0) {
			if err == nil {
				t.Fatalf("%016x: accepted", bits)
			}
			return
		}
		if want := oracleNumber(x); err != nil || string(got) != want {
			t.Fatalf("%016x: got %s (%v), want %s", bits, got, err, want)
		}
		checkNumber(t, string(got))
	})
}

func FuzzNumberText(f *testing.F) {
	for _, text := range numberTexts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := strictjson.Parse([]byte(text))
		if err != nil || d.Root().Kind() != strictjson.Number || len(d.Root().NumberText()) != len(text) {
			return
		}
		checkNumber(t, text)
	})
}
