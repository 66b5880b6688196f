// Package testwait waits in tests for what happens in the background and can only
// be looked at from outside. A test that sleeps a fixed time instead is either slow
// or, on a busy machine, wrong; so this is the one place of tests that polls, and
// it always ends.
package testwait

import (
	"testing"
	"time"
)

// Patience is how long a condition may take on a machine that others keep busy.
const Patience = 60 * time.Second

// interval is short beside what is waited for, and long beside a look at it.
const interval = 10 * time.Millisecond

// Until is Within Patience.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	Within(t, Patience, what, holds)
}

// Within returns once holds is true, and fails the test when that takes longer
// than d. what completes the sentence "not within d: ...".
func Within(t testing.TB, d time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(d)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !holds() {
		select {
		case <-t.Context().Done():
			t.Fatalf("the test ended before: %s", what)
		case <-deadline:
			t.Fatalf("not within %s: %s", d, what)
		case <-tick.C:
		}
	}
}
