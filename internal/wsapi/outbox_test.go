package wsapi

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func eventItem(sequence int64, size int) []item {
	return []item{{frame: bytes.Repeat([]byte("x"), size), through: sequence, event: true}}
}

// offered tells whether one Event fits.
func offered(o *outbox, l *lane, sequence int64, size int) (moved <-chan struct{}, ok bool) {
	n, moved := o.offer(l, eventItem(sequence, size))
	return moved, n == 1
}

func taken(o *outbox) (*batch, bool) {
	b := &batch{}
	return b, o.take(b)
}

func TestGroupsTakeTurns(t *testing.T) {
	o := newOutbox()
	noisy, quiet := newLane(0), newLane(0)
	for n := range int64(100) {
		if _, ok := offered(o, noisy, n+1, 10); !ok {
			t.Fatal("does not fit")
		}
	}
	offered(o, quiet, 1, 11)
	offered(o, quiet, 2, 11)
	b, _ := taken(o)
	var turns []int
	for _, frame := range b.frames[:5] {
		turns = append(turns, len(frame))
	}
	if !slices.Equal(turns, []int{10, 11, 10, 11, 10}) {
		t.Errorf("frames of sizes %v came first", turns)
	}
}

func TestAnswersGoBeforeEvents(t *testing.T) {
	o := newOutbox()
	offered(o, newLane(0), 1, 10)
	if err := o.answer(t.Context(), reply{frame: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	if b, _ := taken(o); string(b.frames[0]) != "a" || len(b.frames) != 2 {
		t.Errorf("got %q", b.frames)
	}
}

func TestLaneIsBoundedByNumberAndBytes(t *testing.T) {
	for _, tc := range []struct {
		name       string
		size, fits int
	}{
		{"by number", 10, laneEvents}, {"by bytes", laneBytes / 4, 4}, {"a single Event always fits", 2 * outboxBytes, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, l := newOutbox(), newLane(0)
			fitted := 0
			var moved <-chan struct{}
			for ; fitted < 1000; fitted++ {
				var ok bool
				if moved, ok = offered(o, l, int64(fitted+1), tc.size); !ok {
					break
				}
			}
			if fitted != tc.fits {
				t.Errorf("%d Events fit, want %d", fitted, tc.fits)
			}
			b, _ := taken(o)
			select {
			case <-moved:
				t.Error("woken before the Event was written")
			default:
			}
			o.written(b)
			<-moved
		})
	}
}

func TestConnectionIsBoundedAndEachGroupKeepsItsPlace(t *testing.T) {
	o := newOutbox()
	for range outboxBytes / laneBytes {
		l := newLane(0)
		for o.bytes < outboxBytes {
			if _, ok := offered(o, l, 1, laneBytes/8); !ok {
				break
			}
		}
	}
	if o.bytes > outboxBytes {
		t.Errorf("%d bytes wait", o.bytes)
	}
	l := newLane(0)
	if _, ok := offered(o, l, 1, 100); !ok {
		t.Error("an empty Group got no place")
	}
	if _, ok := offered(o, l, 2, 100); ok {
		t.Error("the connection's bound does not hold")
	}
}

func TestAnswersAreBounded(t *testing.T) {
	o := newOutbox()
	for range controlItems {
		if err := o.answer(t.Context(), reply{frame: []byte("a")}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() { waited <- o.answer(ctx, reply{frame: []byte("b")}) }()
	cancel()
	if err := <-waited; err == nil {
		t.Error("one answer too many was queued")
	}
	go func() { waited <- o.answer(t.Context(), reply{frame: []byte("c")}) }()
	taken(o)
	if err := <-waited; err != nil {
		t.Error(err)
	}
}

func TestOnlyTheLatestPongWaits(t *testing.T) {
	o := newOutbox()
	for range 1000 {
		o.ponged([]byte("p"))
	}
	if b, ok := taken(o); !ok || len(b.frames) != 1 {
		t.Errorf("%d frames wait", len(b.frames))
	}
}

// A fatal end keeps what was owed, but no Event: its session may be fenced.
func TestFinalDropsEventsAndKeepsErrorsOrFlushesAll(t *testing.T) {
	for _, flush := range []bool{false, true} {
		o := newOutbox()
		offered(o, newLane(0), 1, 10)
		o.notice([]byte("error"))
		if err := o.answer(t.Context(), reply{frame: []byte("event"), event: true}); err != nil {
			t.Fatal(err)
		}
		if !o.finish(&final{code: closeGoingAway}, flush) || o.finish(&final{}, true) {
			t.Fatal("not exactly the first final counts")
		}
		b, ok := taken(o)
		if !ok || b.final == nil {
			t.Fatal("no final")
		}
		if want := map[bool]int{false: 1, true: 3}[flush]; len(b.frames) != want || string(b.frames[0]) != "error" {
			t.Errorf("flush %t: %q before the final", flush, b.frames)
		}
	}
}

func TestDroppedGroupWakesAndForgets(t *testing.T) {
	o, l := newOutbox(), newLane(0)
	for n := range int64(laneEvents) {
		offered(o, l, n+1, 10)
	}
	moved, ok := offered(o, l, laneEvents+1, 10)
	if ok {
		t.Fatal("fits")
	}
	o.drop(l)
	<-moved
	if _, ok := taken(o); ok || o.bytes != 0 {
		t.Errorf("something is left, %d bytes", o.bytes)
	}
	if _, ok := offered(o, l, laneEvents+1, 10); !ok || o.bytes != 0 {
		t.Error("a dropped Group still holds up its feed")
	}
}

func TestForgottenGroupGoesOn(t *testing.T) {
	o, l := newOutbox(), newLane(0)
	offered(o, l, 1, 10)
	o.forget(l)
	offered(o, l, 2, 11)
	if b, ok := taken(o); !ok || len(b.frames) != 1 || len(b.frames[0]) != 11 || o.bytes != 0 {
		t.Errorf("got %q, %d bytes left", b.frames, o.bytes)
	}
}

// What goes into a lane comes out once, in order, whatever the batches are.
func TestLaneKeepsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, l := newOutbox(), newLane(0)
		var in, out []int
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "put") {
				var run []item
				for range rapid.IntRange(1, 200).Draw(t, "run") {
					run = append(run, item{frame: make([]byte, 1+len(in)+len(run)), through: int64(1 + len(in) + len(run)), event: true})
				}
				n, _ := o.offer(l, run)
				for _, i := range run[:n] {
					in = append(in, len(i.frame))
				}
				continue
			}
			b := &batch{}
			if o.take(b) {
				for _, frame := range b.frames {
					out = append(out, len(frame))
				}
				o.written(b)
				if sent := o.reached(l); sent != int64(out[len(out)-1]) {
					t.Fatalf("reached %d after frame %d", sent, out[len(out)-1])
				}
			}
		}
		if !slices.Equal(out, in[:len(out)]) || o.bytes < 0 {
			t.Fatalf("put in %v, came out %v", in, out)
		}
	})
}

func TestRecentActionsForgetTheOldest(t *testing.T) {
	r := newRecentActions()
	for i := range rememberedActions + 1 {
		r.add(string(rune('a'+i%26)) + string(rune(0x4e00+i)))
	}
	if r.has("a" + string(rune(0x4e00))) {
		t.Error("the oldest is remembered")
	}
	if len(r.ids) != rememberedActions {
		t.Errorf("%d are remembered", len(r.ids))
	}
}
