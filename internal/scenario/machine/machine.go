// Package machine runs a server that can be broken: the services in a process of
// their own, which can be killed without warning, on a PostgreSQL and a NATS that
// can be taken away from under it.
package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/missionweave/server/internal/devstack"
)

// Options says where the server lives and how to run mw.
type Options struct {
	Dir string
	// Command makes a command that runs mw with arguments.
	Command func(args ...string) *exec.Cmd
	// Log takes what the services print; nil discards it.
	Log io.Writer
}

// Server is a server that can be broken. Its methods are not for concurrent use.
type Server struct {
	// DevFile is its dev.json, DatabaseURL its database.
	DevFile, DatabaseURL string

	opt   Options
	base  int
	stack *devstack.Stack
	cmd   *exec.Cmd
	lines sync.WaitGroup
}

// Start starts everything. The caller must call Stop.
func Start(ctx context.Context, opt Options) (*Server, error) {
	if opt.Log == nil {
		opt.Log = io.Discard
	}
	base, err := freePorts(ctx)
	if err != nil {
		return nil, err
	}
	stack, err := devstack.Start(ctx, devstack.Options{
		DataDir: filepath.Join(opt.Dir, "stack"), Logger: slog.New(slog.NewTextHandler(opt.Log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, fmt.Errorf("machine: %w", err)
	}
	s := &Server{opt: opt, base: base, stack: stack, DatabaseURL: stack.DatabaseURL, DevFile: filepath.Join(opt.Dir, "services", "dev.json")}
	if err := s.serve(ctx); err != nil {
		return nil, errors.Join(err, stack.Stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// serve starts the services and returns when they answer.
func (s *Server) serve(ctx context.Context) error {
	cmd := s.opt.Command("dev", "--data", filepath.Dir(s.DevFile), "--port-base", strconv.Itoa(s.base), "--log-level", "warn")
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	// The URLs hold passwords: other users could read arguments.
	cmd.Env = append(cmd.Env, "MW_DATABASE_URL="+s.stack.DatabaseURL, "MW_NATS_URL="+s.stack.NATSURL)
	cmd.Stderr = s.opt.Log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("machine: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("machine: start the services: %w", err)
	}
	s.cmd = cmd
	ready := make(chan bool, 1)
	s.lines.Go(func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if lines.Text() == "ready "+s.DevFile {
				ready <- true
			}
		}
		close(ready)
	})
	select {
	case ok := <-ready:
		if ok {
			return nil
		}
		return errors.Join(errors.New("machine: the services ended before they were ready"), s.end(syscall.SIGKILL))
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), s.end(syscall.SIGKILL))
	}
}

// end ends the services with a signal and waits for them.
func (s *Server) end(signal syscall.Signal) error {
	if s.cmd == nil {
		return nil
	}
	cmd := s.cmd
	s.cmd = nil
	if err := cmd.Process.Signal(signal); err != nil {
		return fmt.Errorf("machine: %w", err)
	}
	s.lines.Wait()
	err := cmd.Wait()
	if signal == syscall.SIGKILL {
		return nil // it could not end well
	}
	if err != nil {
		return fmt.Errorf("machine: the services did not end well: %w", err)
	}
	return nil
}

// KillAuthority ends the services without warning.
func (s *Server) KillAuthority(context.Context) error { return s.end(syscall.SIGKILL) }

// StartAuthority starts the services again on the same data.
func (s *Server) StartAuthority(ctx context.Context) error { return s.serve(ctx) }

// StopDatabase stops PostgreSQL under the running services.
func (s *Server) StopDatabase(ctx context.Context) error { return s.stack.StopPostgres(ctx) } //nolint:wrapcheck // says what it is

// StartDatabase starts PostgreSQL again.
func (s *Server) StartDatabase(ctx context.Context) error { return s.stack.StartPostgres(ctx) } //nolint:wrapcheck // says what it is

// StopNATS takes the bus away.
func (s *Server) StopNATS(context.Context) error { return s.stack.StopNATS() } //nolint:wrapcheck // says what it is

// StartNATS gives the bus back.
func (s *Server) StartNATS(context.Context) error { return s.stack.StartNATS() } //nolint:wrapcheck // says what it is

// StopServices ends the services as an operator does; the database stays.
func (s *Server) StopServices() error { return s.end(syscall.SIGTERM) }

// Stop ends everything.
func (s *Server) Stop(ctx context.Context) error {
	return errors.Join(s.end(syscall.SIGTERM), s.stack.Stop(ctx))
}

// freePorts finds a base whose ports are free. Others may take them in between;
// then the start fails and says so.
func freePorts(ctx context.Context) (int, error) {
	for range 100 {
		base := 20000 + rand.IntN(20000) //nolint:gosec // a port, not a secret
		if free(ctx, base, base+1, base+10, base+11, base+20, base+21) {
			return base, nil
		}
	}
	return 0, errors.New("machine: no free ports")
}

func free(ctx context.Context, ports ...int) bool {
	for _, port := range ports {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}
