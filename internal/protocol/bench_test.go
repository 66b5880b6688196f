package protocol_test

import (
	"testing"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// benchCommand is a signed Command of about 1.2 KB, as a Coordinator sends one.
func benchCommand(tb testing.TB) []byte {
	tb.Helper()
	for _, v := range ownVectors(tb) {
		if v.kind == protocol.KindCommand && v.name == "document agent" {
			b, err := strictjson.Canonicalize(v.doc.append(nil))
			if err != nil {
				tb.Fatal(err)
			}
			return b
		}
	}
	tb.Fatal("no Command")
	return nil
}

// BenchmarkValidateCommand compares structural validation of one Command with
// the schema interpreter on the same, already parsed, document.
func BenchmarkValidateCommand(b *testing.B) {
	command := benchCommand(b)
	doc, err := strictjson.Parse(command)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if f := protocol.Validate(protocol.KindCommand, doc.Root()); f != nil {
				b.Fatal(f)
			}
		}
	})
	b.Run("interpreter", func(b *testing.B) {
		judge := newOracle(b, sharedRoot(b))
		value := oracleValue(doc.Root())
		schema := judge.schemas[protocol.KindCommand]
		b.ReportAllocs()
		for b.Loop() {
			if err := schema.Validate(value); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkParseFrame(b *testing.B) {
	frame, err := protocol.AppendFrame(nil, &protocol.CommandFrame{FrameID: "urn:x:f", Command: benchCommand(b)})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(frame)))
	for b.Loop() {
		if _, refusal := protocol.ParseFrame(frame); refusal != nil {
			b.Fatal(refusal)
		}
	}
}

// Structure must be invisible in a profile: no allocation, and at least twenty
// times faster than the interpreter. The least of many samples is compared, so
// that a busy machine does not decide.
func TestValidationIsFastAndDoesNotAllocate(t *testing.T) {
	doc, err := strictjson.Parse(benchCommand(t))
	if err != nil {
		t.Fatal(err)
	}
	ours := func() {
		if f := protocol.Validate(protocol.KindCommand, doc.Root()); f != nil {
			t.Fatal(f)
		}
	}
	if n := testing.AllocsPerRun(100, ours); n != 0 {
		t.Errorf("%v allocations for a valid Command", n)
	}
	judge := newOracle(t, sharedRoot(t))
	value := oracleValue(doc.Root())
	interpreter := func() {
		if err := judge.schemas[protocol.KindCommand].Validate(value); err != nil {
			t.Fatal(err)
		}
	}
	if raceEnabled {
		t.Skip("timing means nothing under the race detector")
	}
	a, b := least(ours, 100), least(interpreter, 5)
	t.Logf("ours %v, interpreter %v: %.0f times", a, b, float64(b)/float64(a))
	if b < 20*a {
		t.Errorf("only %.1f times faster than the interpreter", float64(b)/float64(a))
	}
}

// least is the shortest time per call over samples of n calls.
func least(f func(), n int) time.Duration {
	best := time.Duration(1<<63 - 1)
	for range 40 {
		start := time.Now()
		for range n {
			f()
		}
		best = min(best, time.Since(start)/time.Duration(n))
	}
	return best
}
