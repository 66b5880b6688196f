package evidencesuite_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/missionweave/server/internal/evidencesuite"
)

// sharedEvidence finds a folder of published cases: MW_SHARED, else ../shared
// beside the module. Tests that need it skip without.
func sharedEvidence(t *testing.T) string {
	t.Helper()
	root := os.Getenv("MW_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	dir := filepath.Join(root, "evidence")
	if _, err := os.Stat(filepath.Join(dir, "cases.json")); err != nil {
		t.Skipf("no evidence cases at %s", dir)
	}
	return dir
}

func TestPublishedCasesPass(t *testing.T) {
	report, err := evidencesuite.Run(sharedEvidence(t))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := report.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	t.Log(b.String())
	if !report.OK() || len(report.Notes) > 0 {
		t.Error("some cases are missed")
	}
}
