package devstack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Patience with a cluster that an earlier program left running. A fast shutdown
// writes a checkpoint, which takes time on a slow disk.
const (
	previousFastShutdown = 20 * time.Second
	previousImmediate    = 5 * time.Second
	previousPoll         = 20 * time.Millisecond
)

// endPrevious makes dataDir free for a new postmaster. The caller holds the
// stack's lock, so nobody alive wants what is found here.
func endPrevious(ctx context.Context, dataDir string, log *slog.Logger) error {
	running, err := serving(dataDir)
	if err != nil {
		return fmt.Errorf("look for an earlier PostgreSQL on %s: %w", dataDir, err)
	}
	pid, err := postmasterPID(dataDir)
	if err != nil {
		return err
	}
	if pid != 0 && slices.Contains(running, pid) {
		log.Info("stopping a PostgreSQL that an earlier run left behind", "pid", pid)
		if running, err = endProcesses(ctx, dataDir, []int{pid}, syscall.SIGINT, previousFastShutdown); err != nil {
			return err
		}
		if slices.Contains(running, pid) {
			log.Warn("fast shutdown took too long, ending it at once", "pid", pid)
			if running, err = endProcesses(ctx, dataDir, []int{pid}, syscall.SIGQUIT, previousImmediate); err != nil {
				return err
			}
		}
	}
	// Backends notice the death of their postmaster by themselves, but a new one
	// may not touch the files before the last of them is gone.
	if len(running) > 0 {
		log.Info("ending orphaned PostgreSQL processes", "count", len(running))
		if running, err = endProcesses(ctx, dataDir, running, syscall.SIGQUIT, previousImmediate); err != nil {
			return err
		}
	}
	if len(running) > 0 {
		if running, err = endProcesses(ctx, dataDir, running, syscall.SIGKILL, previousImmediate); err != nil {
			return err
		}
	}
	if len(running) > 0 {
		return fmt.Errorf("processes %v still use %s and cannot be ended", running, dataDir)
	}
	return removeForeignPIDFile(dataDir, log)
}

// removeForeignPIDFile removes a postmaster.pid whose process id was given to
// another program since (or belongs to a dead process nobody waits for):
// PostgreSQL takes any live process of its account for its predecessor and
// would refuse to start for ever. With a dead id PostgreSQL clears it itself.
func removeForeignPIDFile(dataDir string, log *slog.Logger) error {
	pid, err := postmasterPID(dataDir)
	if err != nil || pid == 0 {
		return err
	}
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return nil
	}
	log.Info("removing a stale postmaster.pid", "pid", pid)
	return os.Remove(filepath.Join(dataDir, "postmaster.pid"))
}

// endProcesses sends sig and waits up to patience for those pids to go; it
// returns what then still serves dataDir.
func endProcesses(ctx context.Context, dataDir string, pids []int, sig syscall.Signal, patience time.Duration) ([]int, error) {
	for _, p := range pids {
		if err := syscall.Kill(p, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return nil, fmt.Errorf("signal process %d on %s: %w", p, dataDir, err)
		}
	}
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(previousPoll)
	defer tick.Stop()
	for {
		running, err := serving(dataDir)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(pids, func(p int) bool { return slices.Contains(running, p) }) {
			return running, nil
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return running, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// postmasterPID reads the first line of postmaster.pid; 0 when there is none. A
// file cut short by a crash counts as none, and is removed.
func postmasterPID(dataDir string) (int, error) {
	path := filepath.Join(dataDir, "postmaster.pid")
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	line, _ := bufio.NewReader(f).ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid <= 0 {
		return 0, os.Remove(path)
	}
	return pid, nil
}
