//go:build !linux

package strictjson

import "time"

var processStart = time.Now()

// cpuTime falls back to the clock on the wall.
func cpuTime() time.Duration { return time.Since(processStart) }
