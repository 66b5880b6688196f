package bench

import (
	"bytes"
	"strings"
	"testing"
)

// It measures, so that the figures of the documentation can be taken again.
func TestGrowthIsMeasured(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole stand")
	}
	report, err := RunGrowth(t.Context(), GrowthOptions{Events: 1000, WorkItems: 100}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Growth) != 3 || report.Loading.Events < 2000 || report.Loading.MedianMs <= 0 || report.Loading.SnapshotBytes == 0 {
		t.Errorf("%+v", report)
	}
	for _, g := range report.Growth {
		if g.Ratio <= 0 || g.SmallRate <= 0 || g.LargeRate <= 0 {
			t.Errorf("%+v", g)
		}
	}
	var out bytes.Buffer
	if _, err := report.WriteTo(&out); err != nil || strings.Count(out.String(), "\n") != 5 {
		t.Errorf("%v\n%s", err, &out)
	}
}
