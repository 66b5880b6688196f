package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	t.Parallel()
	const (
		pass = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA/sub"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
`
		fail = `{"Action":"output","Package":"q","Test":"TestB","Output":"    q_test.go:3: wrong\n"}
{"Action":"fail","Package":"q","Test":"TestB"}
{"Action":"fail","Package":"q"}
`
		skip = `{"Action":"output","Package":"r","Test":"TestC","Output":"    r_test.go:3: no vectors\n"}
{"Action":"output","Package":"r","Test":"TestC","Output":"--- SKIP: TestC (0.00s)\n"}
{"Action":"skip","Package":"r","Test":"TestC"}
{"Action":"skip","Package":"r"}
`
		build = `{"ImportPath":"s","Action":"build-output","Output":"s.go:1: no such thing\n"}
{"Action":"fail","Package":"s","FailedBuild":"s"}
`
		died = `{"Action":"output","Package":"u","Test":"TestD","Output":"panic: here\n"}
{"Action":"fail","Package":"u"}
`
	)
	cases := map[string]struct {
		in   string
		ok   bool
		says []string
		not  string
	}{
		"a passing run":                     {in: pass, ok: true, says: []string{"ok  \tp", "1 passed, 0 failed, 0 skipped"}, not: "chatter"},
		"a failing test shows its output":   {in: pass + fail, says: []string{"q_test.go:3: wrong", "1 passed, 1 failed"}},
		"a skip says why":                   {in: pass + skip, ok: true, says: []string{"skipped 1: no vectors", "1 passed, 0 failed, 1 skipped"}},
		"only skips is no test":             {in: skip, says: []string{"no test was executed", "0 passed"}},
		"nothing is no test":                {in: "", says: []string{"no test was executed"}},
		"a package that does not build":     {in: pass + build, says: []string{"no such thing", "1 passed, 1 failed"}},
		"a process that died in a test":     {in: pass + died, says: []string{"panic: here", "1 passed, 1 failed"}},
		"words of the go command are shown": {in: "go: no such module\n" + pass, ok: true, says: []string{"go: no such module"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			got, err := report(strings.NewReader(c.in), &out)
			if err != nil || got.ok() != c.ok {
				t.Errorf("ok = %v, error %v; want ok %v", got.ok(), err, c.ok)
			}
			for _, part := range c.says {
				if !strings.Contains(out.String(), part) {
					t.Errorf("output %q does not say %q", out.String(), part)
				}
			}
			if c.not != "" && strings.Contains(out.String(), c.not) {
				t.Errorf("output %q says %q", out.String(), c.not)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if last := lines[len(lines)-1]; !strings.Contains(last, " passed, ") {
				t.Errorf("last line %q is not the count", last)
			}
		})
	}
}
