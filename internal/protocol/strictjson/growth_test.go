package strictjson

import (
	"bytes"
	"fmt"
	"math/bits"
	"runtime"
	"strings"
	"testing"
	"time"
)

// hostile are families of texts that grow with n and aim at one part of the
// kernel each.
var hostile = []struct {
	name string
	text func(n int) string
}{
	{"names that share a long prefix, in reverse", func(n int) string {
		var b strings.Builder
		for i := n; i > 0; i-- {
			fmt.Fprintf(&b, ",\"%s%08d\":0", strings.Repeat("p", 100), i)
		}
		return "{" + b.String()[1:] + "}"
	}},
	{"names that zigzag", func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, ",\"%08d\":0", (i%2)*n*2+i*(1-2*(i%2))+n)
		}
		return "{" + b.String()[1:] + "}"
	}},
	{"names of zeros of growing length", func(n int) string {
		var b strings.Builder
		for i := range 40 {
			fmt.Fprintf(&b, ",\"%s\":0", strings.Repeat("0", n/8+i))
		}
		return "{" + b.String()[1:] + "}"
	}},
	{"names in escapes", func(n int) string {
		var b strings.Builder
		for i := n; i > 0; i-- {
			for _, c := range fmt.Sprintf("%08d", i) {
				fmt.Fprintf(&b, "\\u%04x", c)
			}
			b.WriteString("\":0,\"")
		}
		return `{"` + b.String() + `":0}`
	}},
	{"a duplicate at the very end", func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, ",\"%d\":0", i)
		}
		return "{" + b.String()[1:] + ",\"0\":0}"
	}},
	{"many small objects", func(n int) string { return "[" + strings.Repeat(`{"b":{"c":1},"a":2},`, n) + "0]" }},
	{"nesting to the limit, over and over", func(n int) string {
		return "[" + strings.Repeat(strings.Repeat("[", 60)+strings.Repeat("]", 60)+",", n/10) + "0]"
	}},
	{"open brackets", func(n int) string { return strings.Repeat("[", n*10) }},
	{"open objects", func(n int) string { return strings.Repeat(`{"":`, n*10) }},
	{"unpaired surrogates", func(n int) string { return `"` + strings.Repeat(`\ud800`, n*4) + `"` }},
	{"surrogate pairs, almost", func(n int) string { return `"` + strings.Repeat(`\ud800\ud800\udc00`, n*4) + `\ud800\u12"` }},
	{"escapes in a string that does not end", func(n int) string { return `"` + strings.Repeat(`\n`, n*10) }},
	{"digits", func(n int) string { return "[" + strings.Repeat("7", n*20) + ",0." + strings.Repeat("0", n*20) + "1]" }},
	{"digits and a huge exponent", func(n int) string {
		return strings.Repeat("9", n*20) + "e-" + strings.Repeat("9", n*20)
	}},
	{"numbers", func(n int) string { return "[" + strings.Repeat("1.7976931348623157e308,", n) + "0]" }},
	{"white space", func(n int) string { return "[" + strings.Repeat(" \n", n*10) + "]" }},
	{"multi-byte characters", func(n int) string { return `"` + strings.Repeat("\U0001F600€", n*4) + "\xF0\x9F" }},
}

// work is everything that is done to a text before anybody trusts it.
func work(text []byte) {
	d, err := Parse(text)
	if err != nil {
		return
	}
	_, _ = d.Root().AppendJCSWithout(nil, "signature")
	if v := d.Root(); v.Kind() == Object {
		for name := range v.Members() {
			v.Get(name)
		}
	}
	Compare(d.Root(), d.Root())
}

// TestHostileTextsTakeNoQuadraticTime counts what can be counted: the bytes of
// names that sorting looks at grow with the text and the logarithm of the
// number of names, and memory grows with the text. Time is checked too, so
// coarsely that only a quadratic term can fail it.
func TestHostileTextsTakeNoQuadraticTime(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector changes what memory and time mean")
	}
	const small, growth = 500, 64
	for _, family := range hostile {
		t.Run(family.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var took [2]time.Duration
			for i, n := range []int{small, small * growth} {
				text := []byte(family.text(n))
				p := borrowParser(MaxDepth)
				_ = p.parse(text)
				if limit := 4 * len(text) * bits.Len(uint(n)); p.compared > limit {
					t.Errorf("n=%d: sorting read %d bytes of names in a text of %d", n, p.compared, len(text))
				}
				p.giveBack()

				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				work(text)
				runtime.ReadMemStats(&after)
				if used := after.TotalAlloc - before.TotalAlloc; used > uint64(80*len(text)+1<<16) {
					t.Errorf("n=%d: %d bytes of memory for a text of %d", n, used, len(text))
				}

				took[i] = time.Hour
				for range 5 {
					runtime.GC() // fresh memory costs page faults
					start := cpuTime()
					work(text)
					took[i] = min(took[i], cpuTime()-start)
				}
			}
			// A linear family grows 64 times, a quadratic one 4096 times; the
			// bound lies between, far from both. Times under a few
			// microseconds are all overhead.
			if base := max(took[0], 20*time.Microsecond); took[1] > base*growth*16 {
				t.Errorf("%d times the text took %v after %v", growth, took[1], took[0])
			}
		})
	}
}

func TestMegabytesOfDepthAreRefusedAtTheLimit(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector drops pooled scratch")
	}
	for _, open := range []string{"[", `{"a":`, `[{"a":[`} {
		text := bytes.Repeat([]byte(open), 4<<20/len(open))
		allocs := testing.AllocsPerRun(5, func() {
			if _, err := Parse(text); err == nil {
				t.Fatal("accepted")
			}
		})
		if allocs > 8 {
			t.Errorf("%s…: %v allocations", open, allocs)
		}
	}
}

// A Command of 1.2 KB is parsed in at most five allocations and canonicalised
// in none.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector drops pooled scratch")
	}
	text := []byte(`{"protocolVersion":"0.1","actor":{"type":"agent","id":"urn:x:y"},"kind":"work.submit","payload":{"n":[1,2.5,true,null],` +
		`"s":"` + strings.Repeat("text ", 200) + `"},"signature":{"value":"AA"}}`)
	var doc *Document
	if got := testing.AllocsPerRun(100, func() { doc, _ = Parse(text) }); got > 5 {
		t.Errorf("Parse: %v allocations", got)
	}
	escaped := []byte(strings.Replace(string(text), "text ", `text\n`, 1))
	if got := testing.AllocsPerRun(100, func() { _, _ = Parse(escaped) }); got > 6 {
		t.Errorf("Parse with escapes: %v allocations", got)
	}
	dst := make([]byte, 0, 4096)
	if got := testing.AllocsPerRun(100, func() { dst, _ = doc.Root().AppendJCSWithout(dst[:0], "signature") }); got != 0 {
		t.Errorf("AppendJCSWithout: %v allocations", got)
	}
	if got := testing.AllocsPerRun(100, func() { dst, _ = AppendCanonical(dst[:0], escaped) }); got > 0.1 {
		t.Errorf("AppendCanonical: %v allocations", got)
	}
	if got := testing.AllocsPerRun(100, func() {
		v, _ := doc.Root().Get("payload")
		for _, m := range v.Members() {
			for range m.Items() {
			}
			_ = m.Str()
		}
	}); got != 0 {
		t.Errorf("walking: %v allocations", got)
	}
}
