package wsapi

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/coder/websocket"

	"github.com/missionweave/server/internal/events"
)

func eventItem(l *lane, sequence int64, size int) item {
	return item{lane: l, through: sequence, event: &events.StoredEvent{Sequence: sequence, Document: bytes.Repeat([]byte("x"), size)}}
}

func TestGroupsTakeTurns(t *testing.T) {
	o := newOutbox()
	noisy, quiet := newLane(0), newLane(0)
	for n := range int64(100) {
		if _, ok := o.offer(eventItem(noisy, n+1, 10)); !ok {
			t.Fatal("does not fit")
		}
	}
	o.offer(eventItem(quiet, 1, 10))
	var turns []bool
	for range 3 {
		_, it, _, _ := o.take()
		turns = append(turns, it.lane == quiet)
	}
	if !slices.Equal(turns, []bool{false, true, false}) {
		t.Errorf("quiet Group was served at %v", turns)
	}
}

func TestAnswersGoBeforeEvents(t *testing.T) {
	o := newOutbox()
	o.offer(eventItem(newLane(0), 1, 10))
	if err := o.answer(t.Context(), []byte("a")); err != nil {
		t.Fatal(err)
	}
	if frame, _, _, _ := o.take(); string(frame) != "a" {
		t.Errorf("first came %q", frame)
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
				if moved, ok = o.offer(eventItem(l, int64(fitted+1), tc.size)); !ok {
					break
				}
			}
			if fitted != tc.fits {
				t.Errorf("%d Events fit, want %d", fitted, tc.fits)
			}
			_, it, _, _ := o.take()
			select {
			case <-moved:
				t.Error("woken before the Event was written")
			default:
			}
			o.written(it)
			<-moved
		})
	}
}

func TestConnectionIsBoundedAndEachGroupKeepsItsPlace(t *testing.T) {
	o := newOutbox()
	for range outboxBytes / laneBytes {
		l := newLane(0)
		for o.bytes < outboxBytes {
			if _, ok := o.offer(eventItem(l, 1, laneBytes/8)); !ok {
				break
			}
		}
	}
	if o.bytes > outboxBytes {
		t.Errorf("%d bytes wait", o.bytes)
	}
	l := newLane(0)
	if _, ok := o.offer(eventItem(l, 1, 100)); !ok {
		t.Error("an empty Group got no place")
	}
	if _, ok := o.offer(eventItem(l, 2, 100)); ok {
		t.Error("the connection's bound does not hold")
	}
}

func TestAnswersAreBounded(t *testing.T) {
	o := newOutbox()
	for range controlItems {
		if err := o.answer(t.Context(), []byte("a")); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() { waited <- o.answer(ctx, []byte("b")) }()
	cancel()
	if err := <-waited; err == nil {
		t.Error("one answer too many was queued")
	}
	go func() { waited <- o.answer(t.Context(), []byte("c")) }()
	o.take()
	if err := <-waited; err != nil {
		t.Error(err)
	}
}

func TestFinalDropsOrFlushesWhatIsQueued(t *testing.T) {
	for _, flush := range []bool{false, true} {
		o := newOutbox()
		o.offer(eventItem(newLane(0), 1, 10))
		o.notice([]byte("n"))
		if !o.finish(&final{code: websocket.StatusGoingAway}, flush) || o.finish(&final{}, true) {
			t.Fatal("not exactly the first final counts")
		}
		before := 0
		for {
			_, _, last, ok := o.take()
			if !ok {
				t.Fatal("no final")
			}
			if last != nil {
				break
			}
			before++
		}
		if want := map[bool]int{false: 0, true: 2}[flush]; before != want {
			t.Errorf("flush %t: %d things before the final, want %d", flush, before, want)
		}
	}
}

func TestDroppedGroupWakesAndForgets(t *testing.T) {
	o, l := newOutbox(), newLane(0)
	for n := range int64(laneEvents) {
		o.offer(eventItem(l, n+1, 10))
	}
	moved, ok := o.offer(eventItem(l, laneEvents+1, 10))
	if ok {
		t.Fatal("fits")
	}
	o.drop(l)
	<-moved
	if _, _, _, ok := o.take(); ok || o.bytes != 0 {
		t.Errorf("something is left, %d bytes", o.bytes)
	}
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
