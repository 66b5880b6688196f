package bench

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of /proc/PID/stat on Linux.
const tick = 10 * time.Millisecond

// usage is the processor time that this process and each process of the
// database have used so far; nil when it cannot be told.
type usage map[int]time.Duration

// cpu reads the usage. On a machine that others use as well it says more than
// the clock does.
func (s *stand) cpu(ctx context.Context) usage {
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return nil
	}
	u := usage{0: time.Duration(self.Utime.Nano() + self.Stime.Nano())}
	rows, err := s.pool.Query(ctx, "SELECT pid FROM pg_stat_activity")
	if err != nil {
		return nil
	}
	defer rows.Close()
	for rows.Next() {
		var pid int
		if err := rows.Scan(&pid); err != nil {
			return nil
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return nil // another machine's, or gone
		}
		_, fields, ok := strings.Cut(string(stat), ") ")
		var user, system int64
		if f := strings.Fields(fields); ok && len(f) > 12 {
			if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err != nil {
				return nil
			}
		}
		u[pid] = time.Duration(user+system) * tick
	}
	if rows.Err() != nil {
		return nil
	}
	return u
}

// since is what was used after an earlier reading by processes that are there.
func (u usage) since(before usage) (total time.Duration) {
	if u == nil || before == nil {
		return 0
	}
	for pid, used := range u {
		total += used - before[pid]
	}
	return total
}

// selfCPU is the processor time of this process.
func selfCPU() time.Duration {
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return 0
	}
	return time.Duration(self.Utime.Nano() + self.Stime.Nano())
}
