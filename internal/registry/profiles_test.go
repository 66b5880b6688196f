package registry_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

func TestProfilesAreRegisteredOnce(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	policy := registrytest.Service(registry.RolePolicy)
	profile := protocol.ExtensionProfile{
		ProfileURI: "urn:test:profile:one", Name: "One", Version: "1.0.0", SchemaURI: "urn:test:schema:one",
		SchemaHash:           "sha256:0000000000000000000000000000000000000000000000000000000000000001",
		RequiredCapabilities: []protocol.CapabilityRef{}, CommandKinds: []string{"ext.test.one.do"}, EventKinds: []string{"ext.test.one.done"},
		ApprovedBy: policy.Principal, ApprovedAt: registrytest.Now(),
	}
	register := func(change func(*protocol.ExtensionProfile), by trust.Signer) (bool, error) {
		p := profile
		p.ApprovedBy = by.Principal
		change(&p)
		document, _, err := trust.SignDocument(protocol.KindExtensionProfile, &p, by)
		if err != nil {
			t.Fatal(err)
		}
		return org.Service.RegisterProfile(t.Context(), registrar, document)
	}
	if created, err := register(func(*protocol.ExtensionProfile) {}, policy); err != nil || !created {
		t.Fatalf("first: %v", err)
	}
	if created, err := register(func(*protocol.ExtensionProfile) {}, policy); err != nil || created {
		t.Errorf("identical again: %v created=%v", err, created)
	}
	for _, tc := range []struct {
		rule   string
		change func(*protocol.ExtensionProfile)
		by     trust.Signer
		code   protocol.Code
	}{
		{"same version, other content", func(p *protocol.ExtensionProfile) { p.Name = "Two" }, policy, protocol.CodeInvalidCommand},
		{"kind of another profile", func(p *protocol.ExtensionProfile) { p.ProfileURI = "urn:test:profile:two" }, policy, protocol.CodeInvalidCommand},
		{"kind of the server", func(p *protocol.ExtensionProfile) {
			p.ProfileURI, p.CommandKinds = "urn:test:profile:two", []string{"ext.missionweave.budget.increase"}
			p.EventKinds = nil
		}, policy, protocol.CodeInvalidCommand},
		{"approver without duty", func(p *protocol.ExtensionProfile) { p.Version = "1.1.0" }, registrytest.Service(registry.RoleMetering), protocol.CodeAuthForbidden},
		{"approver a human", func(p *protocol.ExtensionProfile) { p.Version = "1.1.0" }, registrytest.Human("mission-owner"), protocol.CodeAuthForbidden},
		{"approved in the future", func(p *protocol.ExtensionProfile) { p.Version, p.ApprovedAt = "1.1.0", registrytest.At(time.Minute) }, policy, protocol.CodeInvalidCommand},
	} {
		if _, err := register(tc.change, tc.by); codeOf(err) != tc.code {
			t.Errorf("%s: %v", tc.rule, err)
		}
	}
	if created, err := register(func(p *protocol.ExtensionProfile) { p.Version = "2.0.0" }, policy); err != nil || !created {
		t.Errorf("next version with the same kinds: %v", err)
	}
}

// The kinds of the own profile are those of the command profile.
func TestOwnProfileListsEveryKindOfTheCommandProfile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(sharedDir(t), "protocol", "COMMANDS.md"))
	if err != nil {
		t.Skipf("command profile not here: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## 6. Event catalogue")
	rest, _, _ = strings.Cut(rest, "\n### 6.3")
	events := kindsIn(rest)
	var commands []string
	before, _, _ := strings.Cut(string(text), "\n## 6. Event catalogue")
	for _, line := range strings.Split(before, "\n") {
		if strings.HasPrefix(line, "#### ") {
			commands = append(commands, kindsIn(line)...)
		}
	}
	commands = append(commands, "ext.missionweave.approval.decide_action", "ext.missionweave.approval.consume_action")
	profile, err := registry.OwnProfile(protocol.Actor{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []struct {
		name      string
		want, got []string
	}{{"Command kinds", commands, profile.CommandKinds}, {"Event kinds", events, profile.EventKinds}} {
		slices.Sort(list.want)
		if diff := cmp.Diff(slices.Compact(list.want), list.got); diff != "" {
			t.Errorf("%s (-profile text +schema file): %s", list.name, diff)
		}
	}
}

func kindsIn(text string) []string {
	return regexp.MustCompile(`ext\.missionweave(?:\.[a-z_]+){2,}`).FindAllString(text, -1)
}

func sharedDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("MW_SHARED"); dir != "" {
		return dir
	}
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, serr := os.Stat(filepath.Join(dir, "go.mod")); serr == nil {
			return filepath.Join(dir, "..", "shared")
		}
		dir = filepath.Dir(dir)
	}
	t.Skip("no go.mod above the working directory")
	return ""
}
