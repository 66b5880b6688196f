package matrix

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/server"
)

// TestMatrix plays the matrix against a dev stack. It must be complete, and have
// the results that docs/conformance.md was made from.
func TestMatrix(t *testing.T) {
	settings := config.New()
	settings.DataDir = t.TempDir()
	Tune(settings)
	dev, err := server.OpenDev(t.Context(), server.DevOptions{Settings: settings, Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	serving, end := context.WithCancel(context.Background())
	ready, stopped := make(chan struct{}), make(chan error, 1)
	go func() { stopped <- dev.Run(serving, func() error { close(ready); return nil }) }()
	t.Cleanup(func() {
		end()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	select {
	case err := <-stopped:
		stopped <- nil
		t.Fatal(err)
	case <-ready:
	}
	stack, err := client.ReadDevStack(dev.Path)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	report, err := Run(t.Context(), Options{Stack: stack, Kinds: strings.Fields(os.Getenv("MW_MATRIX_KINDS")), Plays: 8})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Failed {
		t.Error(f)
	}
	for _, m := range report.Missing {
		if os.Getenv("MW_MATRIX_KINDS") == "" {
			t.Errorf("missing %s", m)
		}
	}
	committed, err := os.ReadFile("results.json")
	if err != nil {
		t.Fatal(err)
	}
	if live, err := report.Results(); err != nil || os.Getenv("MW_MATRIX_KINDS") == "" && !bytes.Equal(live, committed) {
		t.Errorf("the results are not those of results.json (%v): run make matrix and make generate\n%s", err, report.Line())
	}
	if testing.Verbose() {
		if _, err := report.WriteTo(os.Stdout); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s", time.Since(began))
}

// TestUnreachableRowsExist: the list may only name rows of the tables.
func TestUnreachableRowsExist(t *testing.T) {
	report := (&run{}).report(func(string) bool { return true })
	named := map[string]bool{}
	for _, u := range report.Unreachable {
		named[u.Row] = true
	}
	for row, reason := range unreachable {
		if !named[row] {
			t.Errorf("%q is no row", row)
		}
		if len(reason) < 40 {
			t.Errorf("%q has no reason", row)
		}
	}
}

func TestEveryCommandKindHasARow(t *testing.T) {
	listed := map[string]bool{}
	for _, r := range rows {
		if listed[r.kind] {
			t.Errorf("%s has two rows", r.kind)
		}
		listed[r.kind] = true
		if _, ok := groups.KindOf(r.kind); !ok {
			t.Errorf("%s is not a kind of this server", r.kind)
		}
		for _, c := range r.cases() {
			if code, _ := expectation(c); code == "" && !strings.HasPrefix(c, "OK ") {
				t.Errorf("%s: %q has no code", r.kind, c)
			}
		}
	}
	for _, k := range groups.Kinds() {
		if !listed[k.Kind] {
			t.Errorf("%s has no row", k.Kind)
		}
	}
}

// TestClausesNameRowsThatExist: docs/clauses.md refers to rows of the matrix.
func TestClausesNameRowsThatExist(t *testing.T) {
	known := map[string]bool{}
	for _, r := range rows {
		for _, c := range r.cases() {
			known[r.kind+": "+c] = true
		}
		for _, name := range r.positives {
			known[r.kind+": positive "+name] = true
		}
	}
	for _, row := range transitionRows() {
		known["transition "+row] = true
	}
	for _, p := range absentPairs() {
		known["pair "+p.name()] = true
	}
	b, err := os.ReadFile(filepath.Join("..", "docgen", "clauses.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var sections []struct {
		Clauses []struct{ Proof []string }
	}
	if err := yaml.Unmarshal(b, &sections); err != nil {
		t.Fatal(err)
	}
	for _, s := range sections {
		for _, c := range s.Clauses {
			for _, proof := range c.Proof {
				if row, ok := strings.CutPrefix(proof, "matrix "); ok && !known[row] {
					t.Errorf("no row %q", row)
				}
			}
		}
	}
}
