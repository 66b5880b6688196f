package strictjson

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is the processor time of the calling thread, which other load on the
// machine does not stretch.
func cpuTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}
