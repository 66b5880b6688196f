package events

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/missionweave/server/internal/testwait"
)

// Readers that are behind the tail all go to the database: with one that does not
// answer, no more than a bounded number do at a time, and the others end with
// their context.
func TestReadersDoNotStormADatabaseThatDoesNotAnswer(t *testing.T) {
	h := NewHub(nil, HubOptions{})
	var running, most atomic.Int64
	asked, answer := make(chan struct{}, 1000), make(chan struct{})
	h.readEvents = func(ctx context.Context, _ string, _ int64, _ int) ([]StoredEvent, error) {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		asked <- struct{}{}
		select {
		case <-answer:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers sync.WaitGroup
	var ended atomic.Int64
	for range 500 {
		readers.Go(func() {
			if _, err := h.Read(ctx, "urn:g", 1, 10); errors.Is(err, context.Canceled) {
				ended.Add(1)
			}
		})
	}
	for range databaseReads {
		<-asked
	}
	cancel()
	readers.Wait()
	if n := most.Load(); n != databaseReads {
		t.Errorf("%d reads at the same time, want %d", n, databaseReads)
	}
	if ended.Load() != 500 {
		t.Errorf("%d of 500 readers ended with their context", ended.Load())
	}
	close(answer)
	if _, err := h.Read(t.Context(), "urn:g", 1, 10); err != nil {
		t.Errorf("after the outage: %v", err)
	}
}

func TestAReadThatPanicsIsAnErrorOfItsReader(t *testing.T) {
	h := NewHub(nil, HubOptions{})
	h.readEvents = func(context.Context, string, int64, int) ([]StoredEvent, error) { panic("broken") }
	for range databaseReads + 1 { // each gives its place back
		if _, err := h.Read(t.Context(), "urn:g", 1, 10); !errors.Is(err, errReadPanicked) {
			t.Fatalf("got %v", err)
		}
	}
	testwait.Until(t, "the panics are counted", func() bool { return h.Stats().Panics == databaseReads+1 })
}
