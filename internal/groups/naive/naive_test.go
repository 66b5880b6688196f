package naive

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestCoreAnswersLikeTheSecondModel plays random histories against both.
func TestCoreAnswersLikeTheSecondModel(t *testing.T) {
	counts := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		d := newDriver(rt, rapid.Uint64().Draw(rt, "seed"))
		d.run(rapid.IntRange(20, 220).Draw(rt, "steps"))
		for what, n := range d.counts {
			counts[what] += n
		}
	})
	if testing.Verbose() {
		for _, what := range slices.Sorted(maps.Keys(counts)) {
			t.Logf("%7d %s", counts[what], what)
		}
	}
}
