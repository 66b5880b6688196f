package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// block is a fenced part of the tutorial: commands, or what they print.
type block struct {
	language, text string
}

var fence = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")

func tutorial(t *testing.T, root string) []block {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []block
	for _, m := range fence.FindAllStringSubmatch(string(page), -1) {
		blocks = append(blocks, block{m[1], m[2]})
	}
	return blocks
}

// workTree copies what git knows of the project, as it stands now.
func workTree(t *testing.T, root string) string {
	t.Helper()
	list, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z").Output()
	if err != nil {
		t.Skipf("no list of the project's files: %v", err)
	}
	dir := t.TempDir()
	for _, name := range strings.Split(strings.TrimRight(string(list), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue // deleted, or a folder of its own
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestEveryCommandOfTheTutorialDoesWhatItSays(t *testing.T) {
	if testing.Short() {
		t.Skip("builds every example anew")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := workTree(t, root)
	blocks := tutorial(t, root)
	var script strings.Builder
	script.WriteString("set -euo pipefail\n")
	for i, b := range blocks {
		if b.language == "sh" {
			fmt.Fprintf(&script, "echo '== block %d'\n%s", i, b.text)
		}
	}
	// Other tests use the default ports.
	commands := strings.ReplaceAll(script.String(), "--port-base 8420", fmt.Sprintf("--port-base %d", freePorts(t)))
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", commands)
	cmd.Dir = dir
	// Without paths in them what was built for an earlier copy is good for this one.
	cmd.Env = append(os.Environ(), "GOFLAGS=-trimpath -buildvcs=false")
	// What the script leaves in the background ends with its process group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // programs in the background hold the pipe
	err = cmd.Run()
	if stop := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM); stop == nil {
		awaitGroup(t, cmd.Process.Pid)
	}
	if err != nil && !strings.Contains(err.Error(), exec.ErrWaitDelay.Error()) {
		t.Fatalf("%v\n%s", err, &out)
	}
	for i, b := range blocks {
		if b.language != "text" {
			continue
		}
		_, printed, _ := strings.Cut(out.String(), fmt.Sprintf("== block %d\n", i-1))
		printed, _, _ = strings.Cut(printed, "== block")
		if !strings.Contains(printed, strings.TrimSpace(b.text)) {
			t.Errorf("block %d prints\n%s\nand not\n%s", i-1, printed, b.text)
		}
	}
}

// awaitGroup waits until a process group has ended, so that its database is no
// longer in a folder that goes away.
func awaitGroup(t *testing.T, group int) {
	t.Helper()
	eventually(t, "the tutorial's programs end", func() bool { return syscall.Kill(-group, 0) != nil })
}
