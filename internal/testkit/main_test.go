package testkit_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/missionweave/server/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, func() error {
		return goleak.Find(
			// The watchdog of the test servers ends with the process.
			goleak.IgnoreAnyFunction("github.com/missionweave/server/internal/devstack.startWatchdog"),
		)
	})
}
