package scenario_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/scenario"
	"github.com/missionweave/server/internal/server"
)

// freePorts finds a base whose six ports are free.
func freePorts(t *testing.T) int {
	t.Helper()
	for range 100 {
		base := 20000 + rand.IntN(20000)
		var held []net.Listener
		for _, port := range []int{base, base + 1, base + 10, base + 11, base + 20, base + 21} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)) //nolint:noctx // returns at once
			if err != nil {
				break
			}
			held = append(held, l)
		}
		for _, l := range held {
			_ = l.Close()
		}
		if len(held) == 6 {
			return base
		}
	}
	t.Fatal("no six free ports")
	return 0
}

// serve runs a server of the test's own.
func serve(t *testing.T) *client.DevStack {
	t.Helper()
	settings := config.New()
	settings.DataDir = t.TempDir()
	dev, err := server.OpenDev(t.Context(), server.DevOptions{Settings: settings, PortBase: freePorts(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, stopped := make(chan struct{}), make(chan error, 1)
	go func() { stopped <- dev.Run(ctx, func() error { close(ready); return nil }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Errorf("the server did not stop cleanly: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-stopped:
		stopped <- nil
		t.Fatal(err)
	}
	stack, err := client.ReadDevStack(dev.Path)
	if err != nil {
		t.Fatal(err)
	}
	return stack
}

// play plays the scenario, which must hold.
func play(t *testing.T, stack *client.DevStack, seed uint64, columns int) (*scenario.Report, string) {
	t.Helper()
	var out bytes.Buffer
	report, err := scenario.TwoMissions(t.Context(), scenario.Options{
		Stack: stack, Seed: seed, Out: &out, Columns: columns, Limit: 4 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range report.Checks {
		if !k.OK {
			t.Errorf("%s: %s: %s", k.Scene, k.Name, k.Proof)
		}
	}
	if t.Failed() {
		t.Logf("\n%s", &out)
	}
	return report, out.String()
}

func names(r *scenario.Report) []string {
	out := make([]string, 0, len(r.Checks))
	for _, k := range r.Checks {
		out = append(out, k.Scene+": "+k.Name)
	}
	return out
}

// One server for three plays: a seed can be played again where it was played.
func TestASeedDeterminesTheCourseOfAPlay(t *testing.T) {
	stack := serve(t)
	first, plain := play(t, stack, 7, 0)
	second, wide := play(t, stack, 7, 160)
	other, _ := play(t, stack, 8, 0)
	if a, b := names(first), names(second); !slices.Equal(a, b) {
		t.Errorf("one seed, two lists of checks:\n%s\n\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	if !slices.Equal(first.Choices, second.Choices) {
		t.Errorf("one seed, two courses:\n%s\n\n%s", strings.Join(first.Choices, "\n"), strings.Join(second.Choices, "\n"))
	}
	if slices.Equal(first.Choices, other.Choices) || len(first.Choices) < 60 {
		t.Errorf("two seeds, one course of %d choices", len(first.Choices))
	}
	for _, k := range other.Promises {
		if k.Checks == 0 || k.Held != k.Checks {
			t.Errorf("%s: %d of %d checks hold", k.Promise, k.Held, k.Checks)
		}
	}
	if strings.Contains(plain, "│") || strings.Contains(plain, "\x1b") {
		t.Error("a pipe gets columns or colours")
	}
	for _, line := range strings.Split(wide, "\n") {
		if len([]rune(line)) > 160 {
			t.Errorf("wider than the terminal: %s", line)
		}
	}
	if !strings.Contains(wide, "│") {
		t.Error("no columns on a terminal")
	}
}
