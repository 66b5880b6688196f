package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/client"
)

func prepared(t *testing.T, stdin string, argv ...string) invocation {
	t.Helper()
	i, err := prepare(argv, stdin, filepath.Join(t.TempDir(), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestOnlyAPlainProgramOfTheSystemIsPrepared(t *testing.T) {
	for name, argv := range map[string][]string{
		"no command":             nil,
		"a path":                 {"/bin/echo"},
		"a path upwards":         {"../bin/echo"},
		"no such program":        {"no-such-program-anywhere"},
		"the folder itself":      {"."},
		"a NUL":                  {"echo", "a\x00b"},
		"text that is not NFC":   {"echo", "e\u0301"},
		"a program that is none": {""},
	} {
		if i, err := prepare(argv, "", "/tmp/x"); err == nil {
			t.Errorf("%s: prepared %+v", name, i)
		}
	}
	if _, err := prepare([]string{"sort"}, strings.Repeat("x", maxStdin+1), "/tmp/x"); err == nil {
		t.Error("too long a standard input is prepared")
	}
	t.Setenv("PATH", t.TempDir())
	if i := prepared(t, "", "sort"); !slices.Contains([]string{"/usr/bin/sort", "/bin/sort"}, i.Executable) {
		t.Errorf("sort is %s", i.Executable)
	}
}

func TestWhatRunsIsWhatWasDecidedOn(t *testing.T) {
	i := prepared(t, "in", "sh", "-c", "cat; pwd; env | sort | grep -v '^_='; ls -A")
	r := i.execute(t.Context(), time.Minute)
	if want := "in" + i.Directory + "\nPATH=/usr/bin:/bin\nPWD=" + i.Directory + "\n"; r.Failure != "" || string(r.Output) != want {
		t.Errorf("%q, %s, want %q", r.Output, r.Failure, want)
	}
	for name, v := range i.parameters() {
		if got := r.Observed[name]; len(r.Observed) != 5 || !equal(got, v) {
			t.Errorf("%s was %v, decided on %v", name, got, v)
		}
	}
	if _, err := os.Stat(i.Directory); !os.IsNotExist(err) {
		t.Errorf("the folder is left: %v", err)
	}
}

func equal(a, b any) bool {
	x, ok := a.([]string)
	if !ok {
		return a == b
	}
	return slices.Equal(x, b.([]string))
}

func TestTimeAndOutputAreLimited(t *testing.T) {
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(client.ErrLeaseLost)
	for _, c := range []struct {
		rule, script, want string
		ctx                context.Context
		limit              time.Duration
	}{
		{"too long", "sleep 600", "longer than 300ms", t.Context(), 300 * time.Millisecond},
		{"too long in a child that ignores signals", "trap '' TERM; sh -c \"trap '' TERM; sleep 600\"", "longer than 300ms", t.Context(), 300 * time.Millisecond},
		{"too much output", "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done", "more than 1048576 bytes", t.Context(), time.Minute},
		{"a failure", "echo why; exit 3", "exit status 3", t.Context(), time.Minute},
		{"a child that stays and holds the output", "sleep 600 & echo started", "WaitDelay", t.Context(), time.Minute},
		{"the lease is lost", "echo no", "Lease", ended, time.Minute},
	} {
		begun := time.Now()
		r := prepared(t, "", "sh", "-c", c.script).execute(c.ctx, c.limit)
		if !strings.Contains(r.Failure, c.want) || len(r.Output) > maxOutput || time.Since(begun) > 30*time.Second {
			t.Errorf("%s: %q, %d bytes, %s", c.rule, r.Failure, len(r.Output), time.Since(begun))
		}
	}
}

func TestNothingIsExecutedTwiceWhateverAnEarlierRunLeft(t *testing.T) {
	runs := 0
	execute := func() result {
		runs++
		return result{Output: []byte("done"), Observed: map[string]any{"argv": []string{"x"}}}
	}
	book := journal{filepath.Join(t.TempDir(), "book")}
	if book.has(proposed) {
		t.Error("a mark before the first")
	}
	for range 2 { // proposed, ended, proposed again
		if err := book.mark(proposed); err != nil || !book.has(proposed) {
			t.Fatal(err)
		}
	}
	for range 3 {
		r, err := book.once(execute)
		if err != nil || runs != 1 || string(r.Output) != "done" || r.Failure != "" {
			t.Errorf("%d runs: %+v, %v", runs, r, err)
		}
	}
	interrupted := journal{t.TempDir()}
	if err := interrupted.mark(started); err != nil {
		t.Fatal(err)
	}
	if r, err := interrupted.once(execute); err != nil || runs != 1 || r.Observed != nil || !strings.Contains(r.Failure, "interrupted") {
		t.Errorf("%d runs after an interrupted one: %+v, %v", runs, r, err)
	}
	// Without a journal nothing is executed.
	if _, err := (journal{filepath.Join(t.TempDir(), "gone")}).once(execute); err == nil || runs != 1 {
		t.Errorf("%d runs without a journal, %v", runs, err)
	}
}
