package testkit_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/missionweave/server/internal/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(natsProgram) != "" {
		runNATS()
	}
	testkit.Main(m, func() error {
		return goleak.Find(
			// The watchdog of the test servers ends with the process.
			goleak.IgnoreAnyFunction("github.com/missionweave/server/internal/devstack.startWatchdog"),
		)
	})
}
