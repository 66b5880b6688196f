package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/conformance"
)

const ownBundle = "../conformance/testdata/own"

func TestConformancePrintsOneLinePerBundle(t *testing.T) {
	t.Parallel()
	got := run(t, nil, "conformance", "--root", ownBundle)
	lines := regexp.MustCompile(`^structural (\d+)/(\d+)\ncryptography (\d+)/(\d+)\nadmission (\d+)/(\d+)\n$`).FindStringSubmatch(got.out)
	if got.code != ExitOK || lines == nil || got.err != "" {
		t.Fatalf("%+v", got)
	}
	for i := 1; i < len(lines); i += 2 {
		if lines[i] != lines[i+1] || lines[i] == "0" {
			t.Errorf("%s of %s", lines[i], lines[i+1])
		}
	}
	if env := run(t, []string{"MW_ROOT=" + ownBundle}, "conformance"); env.out != got.out || env.code != ExitOK {
		t.Errorf("with MW_ROOT: %+v", env)
	}
	asJSON := run(t, nil, "conformance", "--root", ownBundle, "--json")
	var report conformance.Report
	if err := json.Unmarshal([]byte(asJSON.out), &report); err != nil || !report.OK() {
		t.Errorf("--json: %v in %s", err, asJSON.out)
	}
}

func TestConformanceListsMissesAndFails(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS(ownBundle)); err != nil {
		t.Fatal(err)
	}
	vector := filepath.Join(root, "cryptography", "vectors", "valid", "command.json")
	if err := os.WriteFile(vector, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := run(t, nil, "conformance", "--root", root)
	if got.code != ExitFailure || !strings.Contains(got.out, "\nmiss cryptography cryptography/vectors/valid/command.json: ") || got.err != "" {
		t.Errorf("%+v", got)
	}
}

func TestConformanceNeedsACheckout(t *testing.T) {
	t.Parallel()
	if got := run(t, nil, "conformance"); got.code != ExitUsage {
		t.Errorf("without --root: %+v", got)
	}
	if got := run(t, nil, "conformance", "--root", filepath.Join(t.TempDir(), "absent")); got.code != ExitUsage {
		t.Errorf("without a directory: %+v", got)
	}
	if got := run(t, nil, "conformance", "--root", t.TempDir()); got.code != ExitFailure || !strings.HasPrefix(got.out, "structural 0/0\n") {
		t.Errorf("with an empty directory: %+v", got)
	}
}
