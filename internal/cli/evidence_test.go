package cli

import (
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/evidence"
)

// signedRecord writes a signed record and gives its file and its public key.
func signedRecord(t *testing.T) (file, key string) {
	t.Helper()
	private := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	body := `{"schema_version":"aep/v0.3","run_id":"r","created_at_ms":1,"actions":[{"action_id":"a","tool_name":"t","state_changing":false,"timestamp_ms":1,"side_effect_class":"read","state_digest_kind":"git-tree","state_digest_coverage":{"tree_sha":"1","tree_root":"/"},"pre_state_digest":"x","post_state_digest":"y"}]`
	v, err := evidence.ParseValue([]byte(body + "}"))
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "record.json")
	text := body + `,"signature":{"alg":"ed25519","key_id":"k=1","sig":"` + evidence.Sign(v, private) + `"}}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, hex.EncodeToString(private.Public().(ed25519.PublicKey))
}

func TestEvidenceVerify(t *testing.T) {
	t.Parallel()
	file, key := signedRecord(t)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	twice := filepath.Join(t.TempDir(), "twice.json")
	if err := os.WriteFile(twice, []byte(strings.Replace(string(text), "{", `{"run_id":"another",`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"without a key it says what it did not check", []string{file}, ExitOK, "valid, signature not-checked"},
		{"a member twice, without a key", []string{twice}, ExitFailure, "E_DUPLICATE_KEY"},
		{"with the key", []string{"--key", key, file}, ExitOK, "valid, signature valid"},
		{"with the key of that id", []string{"--key", "k=1=" + key, file}, ExitOK, "valid, signature valid"},
		{"with the key of another id", []string{"--key", "k=" + key, file}, ExitFailure, "E_KEY_UNKNOWN"},
		{"after another record", []string{"--previous", file, file}, ExitFailure, "E_CHAIN_BROKEN"},
		{"with envelopes", []string{"--envelopes", file}, ExitOK, `"observed_result":"success"`},
		{"no key at all", []string{"--key", "short", file}, ExitUsage, ""},
		{"no file", []string{file + ".none"}, ExitUsage, ""},
	} {
		got := run(t, nil, append([]string{"evidence", "verify"}, tc.args...)...)
		if got.code != tc.code || !strings.Contains(got.out, tc.says) {
			t.Errorf("%s: %+v", tc.name, got)
		}
	}
	var report struct {
		Valid     bool
		Signature string
		Errors    []evidence.Finding
	}
	got := run(t, nil, "evidence", "verify", "--json", "--key", key, file)
	if err := json.Unmarshal([]byte(got.out), &report); err != nil || !report.Valid || report.Signature != "valid" {
		t.Errorf("%v %+v", err, got)
	}
}

func TestEvidenceCompare(t *testing.T) {
	t.Parallel()
	file, _ := signedRecord(t)
	bare := filepath.Join(t.TempDir(), "digest.json")
	if err := os.WriteFile(bare, []byte(`{"digest":"y"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		out  string
	}{
		{"after and after", []string{file, file}, ExitOK, "comparable\nthe digests are equal\n"},
		{"before and after", []string{"--side-a", "pre", file, file}, ExitOK, "comparable\nthe digests differ\n"},
		{"a digest alone", []string{file, bare}, ExitFailure, "not-comparable (no-coverage)\n"},
		{"an action that is not there", []string{"--action-a", "z", file, bare}, ExitUsage, ""},
	} {
		if got := run(t, nil, append([]string{"evidence", "compare"}, tc.args...)...); got.code != tc.code || got.out != tc.out {
			t.Errorf("%s: %+v", tc.name, got)
		}
	}
}

func TestEvidenceTestFailsOnAMiss(t *testing.T) {
	t.Parallel()
	got := run(t, nil, "evidence", "test", t.TempDir())
	if got.code != ExitFailure || !strings.HasPrefix(got.out, "rules 0/1 comparability 0/1 envelope 0/1 canonical 0/1 signatures 0/1\nmiss ") {
		t.Errorf("%+v", got)
	}
	if got := run(t, nil, "evidence", "test", "/nowhere/at/all"); got.code != ExitUsage {
		t.Errorf("%+v", got)
	}
}
