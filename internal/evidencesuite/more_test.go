package evidencesuite_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/evidencesuite"
)

// TestPublishedFixturesJudgedAsTheFinalRulesSay reads records of other projects.
func TestPublishedFixturesJudgedAsTheFinalRulesSay(t *testing.T) {
	dir := filepath.Join(sharedEvidence(t), "fixtures")
	raw, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		t.Skip(err)
	}
	var list []struct {
		File       string          `json:"file"`
		FinalRules json.RawMessage `json:"final_rules"`
		Warnings   []string        `json:"warnings"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		rec, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(f.File)))
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		if string(f.FinalRules) != `"valid"` {
			if err := json.Unmarshal(f.FinalRules, &want); err != nil {
				t.Fatal(err)
			}
		}
		_, rep := evidence.Check(rec, evidence.Options{})
		if !slices.Equal(rep.Names(), append([]string{}, want...)) || !slices.Equal(rep.WarningNames(), append([]string{}, f.Warnings...)) {
			t.Errorf("%s: got %v %v, want %v %v", f.File, rep.Names(), rep.WarningNames(), want, f.Warnings)
		}
	}
}

// TestAFolderThatIsWrongHasMisses holds that a run never passes by not looking.
func TestAFolderThatIsWrongHasMisses(t *testing.T) {
	good := map[string]string{
		"cases.json":          `[{"name":"a","rule_id":"S-03","tier":2,"record":{"schema_version":"aep/v0.2","created_at_ms":1},"expect":"E_REQUIRED_MISSING"}]`,
		"comparability.json":  `[{"name":"b","a":{"digest":"x"},"b":{"digest":"x"},"expect":{"state":"not-comparable","assumptions":[],"reason":"no-coverage"}}]`,
		"envelope.json":       `[{"name":"c","record":{"schema_version":"aep/v0.2","run_id":"r","created_at_ms":1,"actions":[{"action_id":"a","tool_name":"t","state_changing":true,"timestamp_ms":1}]},"action_id":"a","expect":{"action_class":"unknown","target_boundary":null,"principal_id":null,"run_id":"r","policy_id":null,"policy_version":null,"approval_or_lease_id":null,"payload_digest":null,"expiry_ms":null,"observed_result":"success"}}]`,
		"canon.json":          `[{"name":"d","input_text":"{ }","upstream_b64":"e30=","upstream_sha256":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","rfc8785":"same"}]`,
		"signed/vectors.json": `[]`,
		"signed/chain.json":   `[{"name":"e","records":[{"run_id":"r"}],"expect":{"status":"not-present"}}]`,
	}
	write := func(t *testing.T, change map[string]string) string {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "signed"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range good {
			if c, ok := change[name]; ok {
				text = c
			}
			if text == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	run := func(t *testing.T, change map[string]string) *evidencesuite.Report {
		r, err := evidencesuite.Run(write(t, change))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := run(t, nil); !r.OK() || len(r.Notes) != 0 {
		t.Errorf("%+v", r)
	}
	for _, tc := range []struct{ name, file, text, part string }{
		{"a file is missing", "canon.json", "", "canonical"},
		{"a file is no list", "cases.json", "{}", "rules"},
		{"no cases", "envelope.json", "[]", "envelope"},
		{"nothing expected", "cases.json", `[{"name":"a","tier":2,"record":{}}]`, "rules"},
		{"another error", "cases.json", strings.Replace(good["cases.json"], "E_REQUIRED_MISSING", "E_TYPE", 1), "rules"},
		{"a warning that does not come", "cases.json", `[{"name":"a","tier":2,"record":{"schema_version":"aep/v0.2","run_id":"r","created_at_ms":1},"expect":"valid","warnings":["W_DELTA_REF_UNUSED"]}]`, "rules"},
		{"another reason", "comparability.json", strings.Replace(good["comparability.json"], "no-coverage", "no-digest", 1), "comparability"},
		{"another member", "envelope.json", strings.Replace(good["envelope.json"], `"expiry_ms":null`, `"expiry_ms":0`, 1), "envelope"},
		{"other bytes", "canon.json", strings.Replace(good["canon.json"], "e30=", "e319", 1), "canonical"},
		{"a vector without file", "signed/vectors.json", `[{"name":"x","file":"x.json"}]`, "signatures"},
		{"another status", "signed/chain.json", strings.Replace(good["signed/chain.json"], "not-present", "intact", 1), "signatures"},
	} {
		r := run(t, map[string]string{tc.file: tc.text})
		if len(r.Misses) != 1 || r.Misses[0].Part != tc.part {
			t.Errorf("%s: %+v", tc.name, r)
		}
	}
	if _, err := evidencesuite.Run(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("ran a folder that is not there")
	}
}
