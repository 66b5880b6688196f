package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// GrowthOptions say how large the large Groups are.
type GrowthOptions struct {
	Options
	Events, WorkItems int
}

// Sizes of the small Groups.
const (
	smallEvents    = 100
	smallWorkItems = 10
	growthClients  = 64
	growthTurns    = 6
	growthPerTurn  = 1500
)

// Growth compares a Command's cost in a small and in a large Group.
type Growth struct {
	What         string  `json:"what"`
	Small, Large int     `json:"-"`
	SmallCPU     float64 `json:"smallCpuMicros"` // per Command, database included; 0 when unknown
	LargeCPU     float64 `json:"largeCpuMicros"`
	SmallRate    float64 `json:"smallPerSecond"`
	LargeRate    float64 `json:"largePerSecond"`
	// Ratio is large to small, of processor time where it is known.
	Ratio float64 `json:"ratio"`
}

// Loading is what it takes to bring an evicted Group back.
type Loading struct {
	Events        int     `json:"events"`
	SnapshotBytes int     `json:"snapshotBytes"`
	MedianMs      float64 `json:"medianMs"`
	MinMs         float64 `json:"minMs"`
	// FoldMs is the same without a snapshot.
	FoldMs float64 `json:"foldMs"`
}

// GrowthReport is both.
type GrowthReport struct {
	Growth  []Growth `json:"growth"`
	Loading Loading  `json:"loading"`
}

// WriteTo prints the tables.
func (r *GrowthReport) WriteTo(w io.Writer) (int64, error) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "in the Group\tfrom\tto\tCPU µs\tCPU µs\tcommands/s\tcommands/s\tratio\t")
	for _, g := range r.Growth {
		fmt.Fprintf(t, "%s\t%d\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t\n", g.What, g.Small, g.Large, g.SmallCPU, g.LargeCPU, g.SmallRate, g.LargeRate, g.Ratio)
	}
	if err := t.Flush(); err != nil {
		return 0, err
	}
	_, err := fmt.Fprintf(w, "loading %d Events: median %.0f ms, best %.0f ms from a snapshot of %.1f MB; %.0f ms without\n",
		r.Loading.Events, r.Loading.MedianMs, r.Loading.MinMs, float64(r.Loading.SnapshotBytes)/1e6, r.Loading.FoldMs)
	return 0, err
}

// RunGrowth measures Commands in Groups of two sizes that take turns, and the
// loading of the larger one. progress may be nil.
func RunGrowth(ctx context.Context, options GrowthOptions, progress func(string)) (*GrowthReport, error) {
	if progress == nil {
		progress = func(string) {}
	}
	remove, err := options.ensureDir()
	if err != nil {
		return nil, err
	}
	defer remove()
	s, err := newStand(ctx, options.Options)
	if err != nil {
		return nil, err
	}
	defer s.close()
	report := &GrowthReport{}

	progress(fmt.Sprintf("making a Group of %d Events", options.Events))
	long, err := s.missions(ctx, 1)
	if err != nil {
		return nil, err
	}
	if _, err := s.load(ctx, long, 256, time.Hour, options.Events); err != nil {
		return nil, err
	}
	g, err := s.growth(ctx, "Events", smallEvents, options.Events, long, func(t *target, n int) error {
		_, err := s.load(ctx, []*target{t}, 32, time.Hour, n)
		return err
	})
	if err != nil {
		return nil, err
	}
	report.Growth = append(report.Growth, g)

	progress(fmt.Sprintf("loading a Group of %d Events", options.Events))
	if report.Loading, err = s.loading(ctx, long); err != nil {
		return nil, err
	}

	progress(fmt.Sprintf("making a Group of %d WorkItems", options.WorkItems))
	wide, err := s.missions(ctx, 1)
	if err != nil {
		return nil, err
	}
	wide[0].work = true
	if _, err := s.load(ctx, wide, 256, time.Hour, options.WorkItems); err != nil {
		return nil, err
	}
	for _, what := range []struct {
		name string
		work bool
	}{{"WorkItems, work.authorize", true}, {"WorkItems, message.post", false}} {
		wide[0].work = what.work
		g, err := s.growth(ctx, what.name, smallWorkItems, options.WorkItems, wide, func(t *target, n int) error {
			t.work = true
			defer func() { t.work = what.work }()
			_, err := s.load(ctx, []*target{t}, 8, time.Hour, n)
			return err
		})
		if err != nil {
			return nil, err
		}
		report.Growth = append(report.Growth, g)
	}
	return report, nil
}

// growth lets a large Group and a fresh small one take turns.
func (s *stand) growth(ctx context.Context, what string, small, large int, big []*target, fill func(*target, int) error) (Growth, error) {
	perTurn := min(growthPerTurn, max(100, large/10))
	g := Growth{What: what, Small: small, Large: large}
	var atSmall, atLarge load
	for i := range growthTurns {
		fresh, err := s.missions(ctx, 1)
		if err != nil {
			return g, err
		}
		if err := fill(fresh[0], small); err != nil {
			return g, err
		}
		fresh[0].work = big[0].work
		run := func(t []*target, into *load) error {
			got, err := s.load(ctx, t, growthClients, time.Hour, perTurn)
			if err == nil {
				got.pairs = nil
				into.add(got)
			}
			return err
		}
		first, second := func() error { return run(fresh, &atSmall) }, func() error { return run(big, &atLarge) }
		if i%2 == 1 { // neither always comes after the other
			first, second = second, first
		}
		if err := first(); err != nil {
			return g, err
		}
		if err := second(); err != nil {
			return g, err
		}
	}
	g.SmallRate, g.LargeRate = atSmall.perSecond, atLarge.perSecond
	g.SmallCPU, g.LargeCPU = atSmall.perUnit(), atLarge.perUnit()
	if g.Ratio = g.SmallRate / g.LargeRate; g.SmallCPU > 0 {
		g.Ratio = g.LargeCPU / g.SmallCPU
	}
	return g, nil
}

// loading reads a Group into an empty process's memory.
func (s *stand) loading(ctx context.Context, long []*target) (Loading, error) {
	l, groupID := Loading{}, long[0].group
	began := time.Now()
	if _, err := s.pool.Exec(ctx, "DELETE FROM snapshots WHERE group_id = $1", groupID); err != nil {
		return l, err
	}
	g, err := s.store.LoadGroup(ctx, groupID)
	if err != nil {
		return l, err
	}
	l.FoldMs = millis(time.Since(began))
	snap, err := g.Dump(time.Now())
	if err != nil {
		return l, err
	}
	if _, err := s.pool.Exec(ctx, `INSERT INTO snapshots (tree_id, group_id, sequence, format, state, created_at)
		VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tree_id, group_id) DO UPDATE SET sequence = excluded.sequence, state = excluded.state`,
		snap.TreeID, snap.GroupID, snap.Sequence, snap.Format, snap.State, snap.CreatedAt); err != nil {
		return l, err
	}
	// A snapshot of a quiet Group lags by up to twice as many.
	if _, err := s.load(ctx, long, 64, time.Hour, 1000); err != nil {
		return l, err
	}
	l.Events, l.SnapshotBytes = int(g.State.Head)+1000, len(snap.State)
	var took []float64
	for range 9 {
		began := time.Now()
		if _, err := s.store.LoadGroup(ctx, groupID); err != nil {
			return l, err
		}
		took = append(took, millis(time.Since(began)))
	}
	slices.Sort(took)
	l.MinMs, l.MedianMs = took[0], took[len(took)/2]
	return l, nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// authorize signs a work.authorize of a new WorkItem.
func (t *target) authorize(i int) ([]byte, error) {
	at := lexical.FormatMicros(time.Now().Add(12 * time.Hour))
	payload, err := strictjson.Marshal(map[string]any{"contract": map[string]any{
		"contractVersion": 1, "goal": fmt.Sprintf("Step %d", i),
		"requiredDeliverables": []any{map[string]any{"deliverableId": "text", "description": "A text", "mediaType": "text/plain", "schema": "urn:bench:text"}},
		"acceptanceCriteria":   []any{map[string]any{"criterionId": "done", "description": "Done", "evidenceRequired": []any{"policy_check"}}},
		"inputArtifacts":       []any{}, "dependencyWorkItemIds": []any{}, "allowedResources": []any{},
		"requiredCapabilities": []any{map[string]any{"id": "text.write", "version": "1.0.0"}},
		"deadline":             at, "requestedUrgency": "normal", "businessImpact": "None",
		"retryPolicy": map[string]any{"maxAttempts": 1, "backoff": "none", "maxDelay": "PT1S", "retryableFailures": []any{}},
		"budget":      map[string]any{"modelTokenLimit": 1}, "sideEffectRisk": "none", "executionApproval": "not_required",
	}})
	if err != nil {
		return nil, err
	}
	return t.s.sign(t.s.coordinator, protocol.Command{
		Kind: "work.authorize", GroupID: t.group, WorkItemID: mint(), SessionEpoch: t.s.epoch, MembershipEpoch: 1,
		CoordinatorEpoch: 1, Payload: payload,
	})
}
