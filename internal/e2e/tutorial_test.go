package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// block is a fenced part of the tutorial: commands, or what the last of the
// commands before it print.
type block struct {
	language, text string
}

var (
	fence  = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")
	inline = regexp.MustCompile("`([^`\n]+)`")
	// program begins a text between single quotes that is meant to be typed.
	program = regexp.MustCompile(`^(bin/\S+|mw|make|go|git|cd|cp|mkdir|sed|kill|export|curl|sudo|apt-get|bash|sh|scripts/\S+)\s`)
)

// tutorial reads the page: its fenced parts, and the commands that stand in its
// text. A fence of another language than sh and text would not be run by anybody.
func tutorial(t *testing.T, root string) (blocks []block, mentioned []string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "docs", "tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		blocks = append(blocks, block{m[1], m[2]})
	}
	if fences := strings.Count("\n"+page, "\n```"); fences != 2*len(blocks) || len(blocks) == 0 {
		t.Fatalf("%d fences and %d blocks of sh and text: what stands in the others is not run", fences, len(blocks))
	}
	for _, m := range inline.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		if program.MatchString(m[1]) {
			mentioned = append(mentioned, m[1])
		}
	}
	return blocks, mentioned
}

// commands are the commands of a block: its lines, of which one that ends in a
// backslash goes on in the next.
func (b block) commands() (out []string) {
	if b.language != "sh" {
		return nil
	}
	for line := range strings.Lines(strings.ReplaceAll(b.text, "\\\n", " ")) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}

// workTree copies the project as it stands now, without what is built or kept.
func workTree(t *testing.T, root string) string {
	t.Helper()
	dir := t.TempDir()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // somebody else's temporary file
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && slices.Contains([]string{".git", ".data", ".tools", ".cache", "bin"}, name):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(dir, name), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name), content, info.Mode().Perm())
	})
	if err != nil {
		t.Fatal(err)
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
	blocks, mentioned := tutorial(t, root)
	dir := workTree(t, root)
	var script strings.Builder
	script.WriteString("set -euo pipefail\n")
	var commands []string
	for i, b := range blocks {
		fmt.Fprintf(&script, "echo '== block %d'\n", i)
		for _, c := range b.commands() {
			fmt.Fprintf(&script, "%s\necho '== done %d'\n", c, len(commands))
			commands = append(commands, c)
		}
	}
	for _, m := range mentioned {
		if !slices.ContainsFunc(commands, func(c string) bool { return strings.Contains(c, m) }) {
			t.Errorf("the text says %q, which no block does", m)
		}
	}
	const port = "--port-base 8420" // other tests use the default ports
	if strings.Count(script.String(), port) != 1 {
		t.Fatalf("%q is not there once", port)
	}
	text := strings.ReplaceAll(script.String(), port, fmt.Sprintf("--port-base %d", freePorts(t)))
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", text)
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
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		log, _ := os.ReadFile(filepath.Join(dir, ".data", "tutorial.log"))
		t.Fatalf("%v\n%s\nserver:\n%s", err, &out, log)
	}
	// Counted by what was printed behind each, not by what was meant to be run.
	for i, c := range commands {
		if !strings.Contains(out.String(), fmt.Sprintf("== done %d\n", i)) {
			t.Errorf("not run to its end: %s", c)
		}
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
