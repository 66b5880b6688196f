package trust

import (
	"crypto/ed25519"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Costs are stated as multiples of the bare standard-library operation over the
// same bytes, measured alternately in one run: absolute times say more about the
// machine than about the code.

// benchCommand is a signed Command of about 1.2 KB.
func benchCommand(t testing.TB) []byte {
	t.Helper()
	b := unsignedDocument(t, protocol.KindCommand)
	b = setMember(t, b, "extensions", `{"urn:test:extension:tide":{"version":"1.2.0","critical":false,"data":{"metres":[0.1,1.5,2.25]}}}`)
	b = setMember(t, b, "payload.note", `"größer als früher"`)
	return resign(t, protocol.KindCommand, b, ben)
}

// benchEvent is an Event of about 1.2 KB when signed.
func benchEvent(t testing.TB) *protocol.Event {
	t.Helper()
	return typedDocument(t, protocol.KindEvent).(*protocol.Event)
}

// manyKeys is evidence with n keys, one of them ben's.
func manyKeys(t testing.TB, n int) *Evidence {
	t.Helper()
	bindings := make([]Binding, 0, n)
	for i := range n - 1 {
		var seed [ed25519.SeedSize]byte
		binary.BigEndian.PutUint64(seed[:], uint64(i))
		seed[31] = 0xff
		s, err := NewSigner(fmt.Sprintf("urn:test:key:crowd-%d", i), actor(protocol.ActorAgent, fmt.Sprint("crowd-", i)), seed[:])
		if err != nil {
			t.Fatal(err)
		}
		bindings = append(bindings, s.Binding(day1))
	}
	ev, err := NewEvidence(testOrg, 1, append(bindings, ben.Binding(day1)))
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

// cost is what measure found: median times of one call, and the median of the
// ratios of neighbouring rounds, which a busy machine disturbs least.
type cost struct {
	subject, bare time.Duration
	ratio         float64
}

// measure times subject and bare alternately, a few calls at a time.
func measure(rounds int, subject, bare func()) cost {
	const calls = 5
	subjects, bares, ratios := make([]time.Duration, rounds), make([]time.Duration, rounds), make([]float64, rounds)
	timed := func(run func()) time.Duration {
		start := time.Now()
		for range calls {
			run()
		}
		return time.Since(start) / calls
	}
	runtime.GC()
	for range 20 {
		timed(subject)
		timed(bare)
	}
	for i := range rounds {
		subjects[i], bares[i] = timed(subject), timed(bare)
		ratios[i] = float64(subjects[i]) / float64(bares[i])
	}
	slices.Sort(subjects)
	slices.Sort(bares)
	slices.Sort(ratios)
	return cost{subjects[rounds/2], bares[rounds/2], ratios[rounds/2]}
}

func verifyWork(t testing.TB, keys int) (subject, bare func()) {
	command, ev := benchCommand(t), manyKeys(t, keys)
	signing, err := SigningBytes(parse(t, command))
	if err != nil {
		t.Fatal(err)
	}
	public, signature := ben.Private.Public().(ed25519.PublicKey), signatureOf(t, command)
	subject = func() {
		if _, failure := VerifyBytes(protocol.KindCommand, command, ev); failure != nil {
			t.Fatal(failure)
		}
	}
	bare = func() {
		if !ed25519.Verify(public, signing, signature) {
			t.Fatal("bare verification failed")
		}
	}
	return subject, bare
}

func signWork(t testing.TB) (subject, bare func()) {
	event := benchEvent(t)
	signed, _, err := SignDocument(protocol.KindEvent, event, gate)
	if err != nil {
		t.Fatal(err)
	}
	signing, err := SigningBytes(parse(t, signed))
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 0, 2*len(signed))
	subject = func() {
		if _, _, err := AppendSigned(buf, protocol.KindEvent, event, gate); err != nil {
			t.Fatal(err)
		}
	}
	bare = func() { ed25519.Sign(gate.Private, signing) }
	return subject, bare
}

func benchRatio(b *testing.B, subject, bare func()) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		subject()
	}
	b.StopTimer()
	b.ReportMetric(measure(101, subject, bare).ratio, "x-bare")
}

func BenchmarkVerifyCommand(b *testing.B) {
	for _, keys := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			subject, bare := verifyWork(b, keys)
			benchRatio(b, subject, bare)
		})
	}
}

func BenchmarkSignEvent(b *testing.B) {
	subject, bare := signWork(b)
	benchRatio(b, subject, bare)
}

// BenchmarkRefuse shows what a forged Command costs: the price of classifying a
// failure is one more curve operation and is paid only then.
func BenchmarkRefuse(b *testing.B) {
	command, ev := benchCommand(b), testEvidence(b)
	for name, bad := range map[string][]byte{
		"equation":   setMember(b, command, "payload.note", `"forged"`),
		"unknownKey": setMember(b, command, "signature.keyId", `"urn:test:key:nobody"`),
		"schema":     setMember(b, command, "priority", "1"),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, failure := VerifyBytes(protocol.KindCommand, bad, ev); failure == nil {
					b.Fatal("accepted")
				}
			}
		})
	}
}

func BenchmarkEvidence(b *testing.B) {
	ev := manyKeys(b, 10_000)
	var all []Binding
	for k := range ev.All() {
		all = append(all, k.Binding())
	}
	newcomer := []Binding{gate.Binding(day1)}
	b.Run("extend-10000-by-1", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ev.Extend(2, newcomer); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("reload-10000", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ev.Reload(2, all); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("prove-one-key", func(b *testing.B) {
		for b.Loop() {
			if err := CheckPublicKey(ben.Private[32:]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func TestCommandAllocations(t *testing.T) {
	subject, _ := verifyWork(t, 10)
	if n := testing.AllocsPerRun(200, subject); n > 40 {
		t.Errorf("%v allocations per Command, want at most 40", n)
	}
}

var kernelTable = flag.Bool("kernel-table", false, "print the kernel's cost table")

// TestKernelTable prints the table of docs/performance.md; `make bench-kernel`
// runs it with -kernel-table.
func TestKernelTable(t *testing.T) {
	if !*kernelTable {
		t.Skip("without -kernel-table nothing is measured")
	}
	command, event := benchCommand(t), benchEvent(t)
	signed, _, err := SignDocument(protocol.KindEvent, event, gate)
	if err != nil {
		t.Fatal(err)
	}
	doc, ev := parse(t, command), testEvidence(t)
	forged := setMember(t, command, "payload.note", `"forged"`)
	verify10, bareVerify := verifyWork(t, 10)
	verify10k, _ := verifyWork(t, 10_000)
	sign, bareSign := signWork(t)
	scratch := make([]byte, 0, 8192)
	rows := []struct {
		name          string
		subject, bare func()
		limit         float64
	}{
		{fmt.Sprintf("Command of %d B: parse, validate, canonicalize, hash, verify; 10 keys", len(command)), verify10, bareVerify, 1.5},
		{"the same with 10,000 keys", verify10k, bareVerify, 1.5},
		{fmt.Sprintf("Event of %d B: build and sign", len(signed)), sign, bareSign, 1.5},
		{"of a Command: strict parse", func() { _, _ = strictjson.Parse(command) }, bareVerify, 0},
		{"of a Command: structural validation", func() { _ = protocol.Validate(protocol.KindCommand, doc) }, bareVerify, 0},
		{"of a Command: canonical form", func() { _, _ = doc.AppendJCSWithout(scratch[:0], "signature") }, bareVerify, 0},
		{"a forged Command refused at stage 6", func() { _, _ = VerifyBytes(protocol.KindCommand, forged, ev) }, bareVerify, 0},
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	fmt.Fprintln(w, "| Work\t| Time\t| Bare Ed25519\t| Ratio\t| Limit\t| Allocations\t|")
	fmt.Fprintln(w, "| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t|")
	for _, r := range rows {
		c, limit := measure(401, r.subject, r.bare), "—"
		if r.limit > 0 {
			limit = fmt.Sprintf("%.1f", r.limit)
			if c.ratio > r.limit {
				t.Errorf("%s: %.2f times the bare operation, limit %.1f", r.name, c.ratio, r.limit)
			}
		}
		fmt.Fprintf(w, "| %s\t| %.1f µs\t| %.1f µs\t| %.2f\t| %s\t| %.0f\t|\n", r.name,
			float64(c.subject.Nanoseconds())/1e3, float64(c.bare.Nanoseconds())/1e3, c.ratio, limit, testing.AllocsPerRun(100, r.subject))
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
}
