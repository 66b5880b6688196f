package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/missionweave/server/internal/demo"
)

// degraded reads mw_nats_degraded.
func (o *outage) degraded(t *testing.T) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, o.management+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^mw_nats_degraded (\S+)$`).FindSubmatch(b)
	if found == nil {
		t.Fatal("there is no mw_nats_degraded")
	}
	return string(found[1])
}

// NATS goes away in the middle of Missions, loses everything it stored, and comes
// back: nobody misses an Event, and the service stays ready.
func TestNATSStopsUnderLoadAndLosesItsStore(t *testing.T) {
	o := startOutage(t)
	if o.Stack().NATSStore() == "" {
		t.Skip("NATS is external (MW_NATS_URL) and cannot be stopped")
	}
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	var stopped atomic.Bool
	played := make(chan error, 1)
	go func() {
		for n := 0; n == 0 || !stopped.Load(); n++ {
			seen := newWatcher()
			if _, err := demo.Run(t.Context(), demo.Options{Stack: o.stack, File: mission(t), Out: seen, Limit: 2 * time.Minute}); err != nil {
				played <- fmt.Errorf("Mission %d: %w\n%s", n, err, seen)
				return
			}
		}
		played <- nil
	}()
	for range rounds {
		if err := o.Stack().StopNATS(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the metric shows that NATS is away", func() bool { return o.degraded(t) == "1" })
		if got := o.readiness(t); got != http.StatusOK {
			t.Errorf("readiness without NATS: %d", got)
		}
		if err := os.RemoveAll(o.Stack().NATSStore()); err != nil {
			t.Fatal(err)
		}
		if err := o.Stack().StartNATS(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the metric shows that NATS is back", func() bool { return o.degraded(t) == "0" })
	}
	stopped.Store(true)
	if err := <-played; err != nil {
		t.Fatal(err)
	}
	verified(t, o.File.DatabaseURL)
}
