package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

const (
	stopPatience      = 30 * time.Second // for a fast shutdown when the caller set no deadline
	immediatePatience = 5 * time.Second
	logTailBytes      = 4 << 10
)

// supervise starts the postmaster again whenever it ends unasked, on the same
// port, because programs hold its URL.
func (c *cluster) supervise(ctx context.Context, proc *process, stopped chan struct{}) {
	defer close(stopped)
	for {
		select {
		case <-ctx.Done():
			return
		case <-proc.exited:
		}
		c.log.Warn("PostgreSQL ended unasked", "how", exitOf(proc))
		for delay := restartMinDelay; ; delay = min(2*delay, restartMaxDelay) {
			timer := time.NewTimer(delay)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			next, err := c.relaunch(ctx)
			if err == nil {
				c.log.Info("PostgreSQL runs again")
				proc = next
				break
			}
			if ctx.Err() != nil {
				return
			}
			c.log.Error("PostgreSQL does not start", "error", err)
		}
	}
}

func (c *cluster) relaunch(ctx context.Context) (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	proc, err := c.launch(ctx, c.port, true)
	if err == nil {
		c.proc = proc
	}
	return proc, err
}

// halt ends the supervisor and shuts the postmaster down: fast (clients are
// disconnected, a checkpoint is written), and when the context ends first,
// immediately (the next start recovers from the write-ahead log).
func (c *cluster) halt(ctx context.Context) error {
	c.life.Lock()
	defer c.life.Unlock()
	if c.cancel == nil { // changed only with life held
		return nil
	}
	c.cancel()
	<-c.stopped
	c.mu.Lock()
	proc := c.proc
	c.proc, c.cancel, c.stopped = nil, nil, nil
	c.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	if sendSignal(proc, syscall.SIGINT) {
		select {
		case <-proc.exited:
		case <-ctx.Done():
			endNow(proc)
			return fmt.Errorf("PostgreSQL did not stop in time and was ended at once: %w", ctx.Err())
		}
	}
	return nil
}

// kill ends the postmaster without warning, as a crash would. The supervisor
// starts it again.
func (c *cluster) kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc == nil {
		return errors.New("PostgreSQL does not run")
	}
	if err := c.proc.handle.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-c.proc.exited
	return nil
}

// errCleanExit stands for the end of a postmaster that found nothing wrong.
var errCleanExit = errors.New("it exited by itself")

// exitOf says how an ended postmaster ended.
func exitOf(proc *process) error {
	if proc.err == nil {
		return errCleanExit
	}
	return proc.err
}

// sendSignal reports whether the process was still there to get it.
func sendSignal(proc *process, sig syscall.Signal) bool {
	select {
	case <-proc.exited:
		return false
	default:
		return proc.handle.Signal(sig) == nil
	}
}

// endNow ends a postmaster that is of no use any more and waits for it.
func endNow(proc *process) {
	if !sendSignal(proc, syscall.SIGQUIT) {
		return
	}
	timer := time.NewTimer(immediatePatience)
	defer timer.Stop()
	select {
	case <-proc.exited:
	case <-timer.C:
		sendSignal(proc, syscall.SIGKILL)
		<-proc.exited
	}
}

// openLog opens the log for appending and keeps one older file. The file is
// opened here and inherited, so it need not belong to the database account.
func (c *cluster) openLog() (*os.File, error) {
	path := c.layout.postgresLog()
	if info, err := os.Stat(path); err == nil && info.Size() > logRotateBytes {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// logTail is the end of what this run wrote to the log.
func (c *cluster) logTail(proc *process) string {
	f, err := os.Open(c.layout.postgresLog())
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.NewSectionReader(f, proc.logFrom, 1<<20))
	if err != nil {
		return ""
	}
	if len(raw) > logTailBytes {
		raw = raw[len(raw)-logTailBytes:]
	}
	return lastLines(string(raw), 5)
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, " | ")
}

// freePort asks the kernel for a loopback port. It can be taken by another
// before its use, so callers try again.
func freePort() (int, error) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := ln.Addr().(*net.TCPAddr).Port
	return port, ln.Close()
}

func portIsFree(port int) bool {
	ln, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	return ln.Close() == nil
}
