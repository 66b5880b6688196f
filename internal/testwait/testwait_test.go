package testwait_test

import (
	"testing"
	"time"

	"github.com/missionweave/server/internal/testwait"
)

// failing is a test that may fail without failing this one.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(string, ...any) {
	f.failed = true
	panic(f)
}

func TestItEndsEitherWay(t *testing.T) {
	looks := 0
	testwait.Until(t, "the third look", func() bool { looks++; return looks == 3 })
	if looks != 3 {
		t.Errorf("%d looks", looks)
	}
	f := &failing{TB: t}
	func() {
		defer func() { _ = recover() }()
		testwait.Within(f, time.Millisecond, "what never happens", func() bool { return false })
	}()
	if !f.failed {
		t.Error("a condition that never holds passed")
	}
}
