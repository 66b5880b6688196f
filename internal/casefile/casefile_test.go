package casefile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/missionweave/server/internal/casefile"
)

// shared is the folder of the published samples, which stand beside the checkout.
func shared(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("MW_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared")
	}
	dir = filepath.Join(dir, "manifest")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("the sample cases are not here: %v", err)
	}
	return dir
}

func TestPublishedSamplesPass(t *testing.T) {
	dir := shared(t)
	source, err := os.ReadFile(filepath.Join(dir, "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	report, err := casefile.Run(source, func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, name)) })
	if err != nil {
		t.Fatal(err)
	}
	for _, miss := range report.Misses {
		t.Errorf("%s %s: want %s, got %s (%s) %v", miss.ID, miss.Name, miss.Expected, miss.Got, miss.Reason, miss.Notes)
	}
	for _, n := range report.Notes {
		t.Errorf("not understood: %s", n)
	}
	if !report.OK() {
		t.Errorf("%d of %d passed", report.Passed, report.Total)
	}
}
