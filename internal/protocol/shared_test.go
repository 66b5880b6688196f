package protocol_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// sharedRoot finds a protocol checkout (schemas and conformance bundles):
// MW_SHARED, else ../shared beside the module. Tests that need it skip without.
func sharedRoot(t testing.TB) string {
	t.Helper()
	root := os.Getenv("MW_SHARED")
	if root == "" {
		dir, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
				break
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				t.Skip("no module root")
			}
			dir = parent
		}
		root = filepath.Join(dir, "..", "shared")
	}
	root = filepath.Join(root, "protocol")
	if _, err := os.Stat(filepath.Join(root, "schemas")); err != nil {
		t.Skipf("no protocol checkout at %s", root)
	}
	return root
}

// vector is one entry of the structural conformance manifest.
type vector struct {
	Name     string `json:"name"`
	Schema   string `json:"schema"`
	Instance string `json:"instance"`
	Valid    bool   `json:"valid"`
}

func readVectors(t testing.TB, root string) []vector {
	t.Helper()
	var list []vector
	b, err := os.ReadFile(filepath.Join(root, "conformance", "manifest.json"))
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	return list
}
