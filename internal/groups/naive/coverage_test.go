package naive

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/groups"
)

// unmodelled lists the Command kinds the second model does not judge, and what
// holds them instead.
var unmodelled = map[string]string{
	"mission.create_follow_up":                              "scripts of internal/groups/testdata; adds to mission.create a link to an approved source and a revocation",
	"ext.missionweave.approval.request_action":              "scripts of internal/groups; the ASK of one Proposed Action does not touch what is modelled",
	"ext.missionweave.approval.decide_action":               "as request_action",
	"ext.missionweave.approval.consume_action":              "as request_action",
	"ext.missionweaveprotocol.registry.agent_card_register": "a Registry fact; keys and card versions are held by internal/registry",
	"ext.missionweaveprotocol.core.group_archive":           "the snapshot's hash is a property of the core's own dump; internal/groups and internal/verify recompute it",
}

func TestEveryKindIsModelled(t *testing.T) {
	known := map[string]bool{}
	for _, k := range groups.Kinds() {
		known[k.Kind] = true
		_, modelled := rules[k.Kind]
		reason, listed := unmodelled[k.Kind]
		switch {
		case modelled && listed:
			t.Errorf("%s is modelled and listed as not", k.Kind)
		case !modelled && reason == "":
			t.Errorf("%s is neither modelled nor listed with a reason", k.Kind)
		}
	}
	for kind := range rules {
		if !known[kind] {
			t.Errorf("the model knows %s, the core does not", kind)
		}
	}
	for kind := range unmodelled {
		if !known[kind] {
			t.Errorf("%s is listed, the core does not know it", kind)
		}
	}
}

// The model must not learn its rules from what it is to judge.
func TestModelImportsNothingOfOurs(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	beside := []string{"core_test.go", "state_test.go", "coverage_test.go"} // the seam to the core
	checked := 0
	for _, name := range files {
		if slices.Contains(beside, name) {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if path, _ := strconv.Unquote(i.Path.Value); strings.HasPrefix(path, "github.com/missionweave/") {
				t.Errorf("%s imports %s", name, path)
			}
		}
		checked++
	}
	if checked < 8 {
		t.Errorf("only %d files of the model were looked at", checked)
	}
}
