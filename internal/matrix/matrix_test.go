package matrix

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/server"
)

// TestMatrix plays everything that has a case against a dev stack. Rows without a
// case are for mw conformance matrix to complain about.
func TestMatrix(t *testing.T) {
	settings := config.New()
	settings.DataDir = t.TempDir()
	Tune(&settings.Policy)
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
	if testing.Verbose() {
		if _, err := report.WriteTo(os.Stdout); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s", time.Since(began))
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
