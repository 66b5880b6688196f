package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/devstack"
)

func TestKeysNewWritesASeedOnceAndShowsNone(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ada.seed")
	got := run(t, nil, "keys", "new", "--principal", "urn:test:ada", "--out", file, "--json")
	if got.code != ExitOK {
		t.Fatalf("%+v", got)
	}
	seed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if strings.Contains(got.out+got.err, strings.TrimSpace(string(seed))) {
		t.Error("the seed was printed")
	}
	var binding struct{ KeyID, PublicKey, Algorithm string }
	if err := json.Unmarshal([]byte(got.out), &binding); err != nil || binding.KeyID == "" || len(binding.PublicKey) != 43 || binding.Algorithm != "Ed25519" {
		t.Errorf("%+v %v", binding, err)
	}
	if again := run(t, nil, "keys", "new", "--principal", "urn:test:ada", "--out", file); again.code != ExitFailure {
		t.Errorf("a key was overwritten: %+v", again)
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != string(seed) {
		t.Error("the seed changed")
	}
}

func TestKeysRotate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := []string{"MW_DATABASE_URL=" + devstack.ForTest(t).NewDatabase(t), "MW_DATA_DIR=" + dir}
	if got := run(t, env, "init"); got.code != ExitOK {
		t.Fatalf("init: %+v", got)
	}
	states := func() map[string]int {
		t.Helper()
		got := run(t, env, "keys", "list", "--json")
		var set struct {
			Keys []struct{ Role, State string }
		}
		if err := json.Unmarshal([]byte(got.out), &set); err != nil {
			t.Fatalf("%+v: %v", got, err)
		}
		n := map[string]int{}
		for _, k := range set.Keys {
			n[k.Role+" "+k.State]++
		}
		return n
	}
	if n := states(); n["authorization active"] != 1 || n["identity active"] != 1 || len(n) != 2 {
		t.Errorf("at first: %v", n)
	}
	if got := run(t, env, "keys", "rotate", "--after", "1h", "--json"); got.code != ExitOK || !strings.Contains(got.out, `"signsFrom"`) {
		t.Fatalf("rotate: %+v", got)
	}
	if n := states(); n["authorization active"] != 1 || n["authorization passive"] != 1 {
		t.Errorf("on its way: %v", n)
	}
	if got := run(t, env, "keys", "rotate"); got.code != ExitFailure || !strings.Contains(got.err, "already") {
		t.Errorf("a second rotation while one is on its way: %+v", got)
	}
	if got := run(t, env, "keys", "rotate", "--role", "identity", "--after", "0s"); got.code != ExitOK {
		t.Fatalf("rotate identity: %+v", got)
	}
	if n := states(); n["identity active"] != 1 || n["identity retired"] != 1 {
		t.Errorf("after a rotation at once: %v", n)
	}
	for _, args := range [][]string{
		{"keys", "rotate", "--role", "registry"}, {"keys", "rotate", "--after", "-1s"}, {"keys", "new"}, {"keys", "register"}, {"keys", "revoke"},
	} {
		if got := run(t, env, args...); got.code != ExitUsage {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "keys")); err != nil || len(entries) != 13 {
		t.Errorf("%d files in the key folder, %v", len(entries), err)
	}
}
