package bench

import (
	"syscall"
	"time"
)

// ownCPU is the processor time of this process; 0 when it cannot be told.
func ownCPU() time.Duration {
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return 0
	}
	return time.Duration(self.Utime.Nano() + self.Stime.Nano())
}
