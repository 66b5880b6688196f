package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/text/unicode/norm"

	"github.com/missionweave/server/client"
)

const (
	maxStdin  = 64 << 10
	maxOutput = 1 << 20
)

// programs is where programs are looked for. The Worker's own PATH would let
// whoever starts it decide what "sort" is.
var programs = []string{"/usr/bin", "/bin"}

// invocation is everything that decides what runs.
type invocation struct {
	Argv        []string
	Executable  string
	Directory   string
	Environment []string
	Stdin       []byte
}

// prepare resolves a command. The directory is made when it is executed.
func prepare(argv []string, stdin, directory string) (invocation, error) {
	i := invocation{Argv: argv, Directory: directory, Environment: []string{"PATH=" + strings.Join(programs, ":")}, Stdin: []byte(stdin)}
	if len(argv) == 0 {
		return i, errors.New("there is no command")
	}
	if len(stdin) > maxStdin {
		return i, fmt.Errorf("standard input is longer than %d bytes", maxStdin)
	}
	for _, a := range argv {
		// Digests of arguments compare normalized text; programs compare bytes.
		if !norm.NFC.IsNormalString(a) || strings.ContainsRune(a, 0) {
			return i, fmt.Errorf("argument %q is not plain text in NFC", a)
		}
	}
	if strings.Contains(argv[0], "/") {
		return i, errors.New("the program is named by a path")
	}
	for _, folder := range programs {
		path := filepath.Join(folder, argv[0])
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			i.Executable = path
			return i, nil
		}
	}
	return i, fmt.Errorf("there is no program %q", argv[0])
}

// parameters are the Proposed Action's: what is decided on, approved and recorded.
func (i invocation) parameters() map[string]any {
	return map[string]any{
		"argv": i.Argv, "executable": i.Executable, "directory": i.Directory, "environment": i.Environment,
		"stdinDigest": client.Hash(i.Stdin),
	}
}

// result is what came of an execution. Observed are the parameters as they were
// handed to the system, nil when nobody knows.
type result struct {
	Observed map[string]any `json:"observed,omitempty"`
	Output   []byte         `json:"output,omitempty"`
	Failure  string         `json:"failure,omitempty"`
}

// execute runs the command with all its descendants for at most limit, and keeps
// at most maxOutput bytes of what it prints.
func (i invocation) execute(ctx context.Context, limit time.Duration) result {
	if err := os.MkdirAll(i.Directory, 0o700); err != nil {
		return result{Failure: err.Error()}
	}
	defer func() { _ = os.RemoveAll(i.Directory) }()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it ran longer than %s", limit))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	cmd := exec.CommandContext(ctx, i.Executable) //nolint:gosec // a World Manifest lists what may run
	cmd.Args, cmd.Dir, cmd.Env, cmd.Stdin = i.Argv, i.Directory, i.Environment, bytes.NewReader(i.Stdin)
	output := &limited{full: func() { stop(fmt.Errorf("it printed more than %d bytes", maxOutput)) }}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		_ = cmd.Cancel() // what it left behind still holds the output
	}
	r := result{
		Observed: invocation{Argv: cmd.Args, Executable: cmd.Path, Directory: cmd.Dir, Environment: cmd.Env, Stdin: i.Stdin}.parameters(),
		Output:   output.kept.Bytes(),
	}
	switch {
	case context.Cause(ctx) != nil:
		r.Failure = context.Cause(ctx).Error()
	case err != nil:
		r.Failure = err.Error()
	}
	return r
}

// limited refuses to grow past maxOutput. The buffer is a member, not embedded:
// its ReadFrom would take the output without asking Write.
type limited struct {
	kept bytes.Buffer
	full func()
}

func (l *limited) Write(b []byte) (int, error) {
	if l.kept.Len()+len(b) > maxOutput {
		l.full()
		return 0, errors.New("too much output")
	}
	return l.kept.Write(b)
}
