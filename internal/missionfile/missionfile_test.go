package missionfile

import (
	"errors"
	"os"
	"strings"
	"testing"
)

const example = "../../examples/missions/release.yaml"

func TestShippedExamplesAreValid(t *testing.T) {
	for _, path := range []string{example, "../../examples/missions/incident-review.yaml"} {
		if _, err := Load(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A fault is made by replacing one text of the shipped example; the error must
// name the line where the replacement stands and the field.
func TestABadFileIsRefusedWithLineAndField(t *testing.T) {
	source, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ old, new, field, reason string }{
		"unknown field":             {"  deadline: 48h", "  deadlin: 48h", "deadlin", "unknown field"},
		"wrong type":                {"maxConcurrency: 2", "maxConcurrency: many", "maxConcurrency", ""},
		"missing objective":         {"  objective: Ship release 2.4 of", "  objective: ''\n#", "mission.objective", "is required"},
		"bad span":                  {"    deadline: 24h", "    deadline: tomorrow", "", "not a positive span"},
		"unknown Evidence type":     {"evidence: [deterministic_test]", "evidence: [gut_feeling]", "mission.definitionOfDone[1].evidence[0]", "is not one of"},
		"unknown dependency":        {"dependsOn: [build]", "dependsOn: [bild]", "workItems[1].dependsOn[0]", "not a WorkItem listed before"},
		"unknown candidate":         {"candidates: [builder]", "candidates: [bilder]", "workItems[0].candidates[0]", "not a Worker"},
		"candidate lacks a version": {"capabilities: [{id: code.build, version: 1.2.0}]", "capabilities: [{id: code.build, version: 9.2.0}]", "workItems[0].candidates[0]", "lacks capability"},
		"work asks for too much":    {"    toolCalls: 600", "    toolCalls: 60", "mission.budget.toolCalls", "is less than"},
		"seven decimals":            {"    financial: 120", "    financial: 120.0000001", "mission.budget.financial", "six decimals"},
		"money without currency":    {"    currency: EUR\n    financial: 120", "    financial: 120", "mission.budget.currency", "is required with"},
		"deadline after Mission's":  {"    deadline: 36h", "    deadline: 360h", "workItems[1].deadline", "at most the Mission's"},
		"duplicate WorkItem":        {"  - id: test\n", "  - id: build\n", "workItems[1].id", "used twice"},
		"duplicate mapping key":     {"  deadline: 48h", "  deadline: 48h\n  deadline: 47h", "", "already defined"},
		"not YAML":                  {"mission:", "mission: [", "", ""},
		"negative budget":           {"    toolCalls: 600", "    toolCalls: -1", "mission.budget.toolCalls", "negative"},
		"empty Artifact":            {"content: |\n        412 acceptance tests, 412 passed, 0 failed, 0 skipped", "content: ''", "workItems[1].artifact.content", "is required"},
		"change round without work": {"  workItems:\n    - id: rollback-plan", "  workItems: []\n  more:\n    - id: rollback-plan", "", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(string(source), c.old) {
				t.Fatalf("the example no longer contains %q", c.old)
			}
			_, err := Parse("release.yaml", []byte(strings.Replace(string(source), c.old, c.new, 1)))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an *Error", err)
			}
			if e.Line == 0 {
				t.Errorf("no line in %q", e)
			}
			if c.field != "" && e.Field != c.field {
				t.Errorf("field %q, want %q (%v)", e.Field, c.field, e)
			}
			if !strings.Contains(e.Reason, c.reason) {
				t.Errorf("reason %q, want %q", e.Reason, c.reason)
			}
		})
	}
}

func TestAnEmptyOrHugeFileIsRefused(t *testing.T) {
	for name, source := range map[string][]byte{"empty": nil, "only a comment": []byte("# nothing\n"), "huge": make([]byte, maxFileSize+1)} {
		if _, err := Parse(name, source); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	source, err := os.ReadFile(example)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(source)
	f.Add([]byte("mission: {objective: x}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if file, err := Parse("fuzz", b); err == nil && len(file.WorkItems) == 0 {
			t.Error("accepted a file without WorkItems")
		}
	})
}
