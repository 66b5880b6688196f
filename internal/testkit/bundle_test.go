package testkit_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/examples"
	"github.com/missionweave/server/internal/aeplog"
	"github.com/missionweave/server/internal/bundle"
	"github.com/missionweave/server/internal/demo"
	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/missionfile"
	"github.com/missionweave/server/internal/testkit"
)

// devStack describes the stack as dev.json does, with keys in files.
func devStack(t *testing.T, s *testkit.Stack) *client.DevStack {
	t.Helper()
	dir := t.TempDir()
	d := &client.DevStack{
		AuthorityURL: s.AuthorityURL, RegistryURL: s.RegistryURL, AuthzURL: s.AuthzURL, WSURL: s.WebSocketURL,
	}
	if err := s.Pool.QueryRow(t.Context(), `SELECT organization_id FROM organizations`).Scan(&d.OrganizationID); err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"registry", "identity", "group-authority", "authorization", "archival", "policy", "metering", "evidence", "context-generator", "mission-owner"} {
		identity := s.As(role).Identity()
		file := filepath.Join(dir, role)
		if err := os.WriteFile(file, []byte(base64.RawURLEncoding.EncodeToString(identity.Key.Seed())), 0o600); err != nil {
			t.Fatal(err)
		}
		d.Principals = append(d.Principals, client.DevPrincipal{Role: role, Principal: identity.Principal, KeyID: identity.KeyID, SeedFile: file})
	}
	return d
}

// exported is the bundle of a Group in which something of every kind happened: a
// whole Mission with Artifacts and approvals, and evidence.
func exported(t *testing.T, s *testkit.Stack) (groupID string, raw []byte) {
	t.Helper()
	file, err := missionfile.Parse(examples.ReleaseName, examples.Release)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := demo.Run(t.Context(), demo.Options{Stack: devStack(t, s), File: file, Out: io.Discard, Limit: 3 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	var item string
	if err := s.Pool.QueryRow(t.Context(), `SELECT group_id, work_item_id FROM work_items WHERE ownership_epoch > 0 LIMIT 1`).Scan(&groupID, &item); err != nil {
		t.Fatal(err)
	}
	log := evidenceLog(s)
	run := aeplog.Run{GroupID: groupID, WorkItemID: item, OwnershipEpoch: 1}
	for range 3 {
		if _, err := appendEvidence(t, s, log, run, evidence.Action{ActionID: client.NewID(), ToolName: "t", SideEffectClass: "read"}); err != nil {
			t.Fatal(err)
		}
	}
	answer := s.Get(s.Owner, client.Path("v1", "groups", groupID)+"/export")
	if answer.Status != http.StatusOK {
		t.Fatalf("%d %s", answer.Status, answer.Body)
	}
	return groupID, answer.Body
}

func verifyBundle(t *testing.T, raw []byte) *bundle.Report {
	t.Helper()
	report, err := bundle.Verify(t.Context(), bytes.NewReader(raw), bundle.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestAnExportVerifiesAndIsForThoseWhoReadAll(t *testing.T) {
	s := testkit.Start(t)
	groupID, raw := exported(t, s)
	report := verifyBundle(t, raw)
	if !report.OK() || report.Events != report.Head || report.Commands == 0 || report.Records != 3 || report.Keys == 0 || report.Documents == 0 {
		var b strings.Builder
		_, _ = report.WriteTo(&b)
		t.Fatalf("%s", b.String())
	}
	m := s.NewMission()
	if got := s.Get(m.Coordinator, client.Path("v1", "groups", m.GroupID)+"/export"); got.Status != http.StatusForbidden {
		t.Errorf("a Coordinator: %d", got.Status)
	}
	path := client.Path("v1", "groups", groupID) + "/export"
	for _, tc := range []struct {
		who  *client.Client
		want int
	}{
		{s.As("archival"), http.StatusOK},
		{s.Human("outsider"), http.StatusNotFound},
		{s.As("metering"), http.StatusNotFound},
	} {
		if got := s.Get(tc.who, path); got.Status != tc.want {
			t.Errorf("%s: %d", tc.who.Principal().ID, got.Status)
		}
	}
}

// lineOf takes a line of a bundle apart, by the layout of docs/audit-bundle.md.
func lineOf(t *testing.T, raw []byte) (kind string, value []byte) {
	t.Helper()
	var l struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(raw, &l); err != nil {
		t.Fatal(err)
	}
	_, value, _ = bytes.Cut(raw, []byte(`,"value":`))
	return l.Kind, bytes.TrimSuffix(value, []byte("}\n"))
}

// rehashed is what somebody makes of changed lines who knows the layout and has no
// key: every number and hash is right again.
func rehashed(t *testing.T, lines [][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	before := sha256.Sum256([]byte(bundle.Format))
	for i, raw := range lines {
		kind, value := lineOf(t, raw)
		before = sha256.Sum256(slices.Concat(before[:], []byte(kind), []byte{0}, value))
		fmt.Fprintf(&out, `{"hash":"%x","kind":"%s","n":%d,"value":%s}`+"\n", before, kind, i+1, value)
	}
	return out.Bytes()
}

// near tells whether a report blames a line or one beside it.
func near(report *bundle.Report, line int, distance int64) bool {
	return slices.ContainsFunc(report.Problems, func(p bundle.Problem) bool {
		return p.Line >= int64(line)-distance && p.Line <= int64(line)+distance
	})
}

func TestEveryKindOfTamperingIsFoundWhereItIs(t *testing.T) {
	s := testkit.Start(t)
	_, raw := exported(t, s)
	kinds := map[string]int{}
	tamper(t, raw, kinds, func(string) bool { return true })
	tamper(t, tokenBundle(t, s), kinds, func(kind string) bool { return kind == "decision" })
	for _, kind := range []string{"header", "key", "service", "card", "command", "event", "admission", "policy", "state", "decision", "run", "evidence", "seal"} {
		if kinds[kind] == 0 {
			t.Errorf("no bundle has a %s, so nothing was tried on one", kind)
		}
	}
}

// tamper tries everything on the lines of the kinds that are wanted, and counts
// them.
func tamper(t *testing.T, raw []byte, kinds map[string]int, wanted func(kind string) bool) {
	t.Helper()
	lines := bytes.SplitAfter(raw, []byte("\n"))
	lines = lines[:len(lines)-1]
	if !bytes.Equal(rehashed(t, lines), raw) {
		t.Fatal("the layout is not the documented one")
	}
	for i, l := range lines {
		kind, _ := lineOf(t, l)
		if !wanted(kind) {
			continue
		}
		kinds[kind]++
		if kinds[kind] > 3 && kind != "seal" {
			continue
		}
		// One byte changed, everywhere in the frame and in many places of the value.
		at := []int{0, 5, 9, 40, 72, 75, 82, len(l) - 2, len(l) - 1}
		for p := 90; p < len(l)-2; p += 1 + len(l)/25 {
			at = append(at, p)
		}
		for _, p := range at {
			changed := slices.Clone(lines)
			changed[i] = bytes.Clone(l)
			changed[i][p] ^= 1
			if report := verifyBundle(t, bytes.Join(changed, nil)); !near(report, i+1, 0) {
				t.Errorf("%s line %d byte %d: %v", kind, i+1, p, report.Problems)
			}
		}
		for name, changed := range map[string][][]byte{
			"a byte more":  slices.Concat(lines[:i], [][]byte{slices.Concat(l[:len(l)-2], []byte(" "), l[len(l)-2:])}, lines[i+1:]),
			"a byte less":  slices.Concat(lines[:i], [][]byte{slices.Concat(l[:100], l[101:])}, lines[i+1:]),
			"removed":      slices.Concat(lines[:i], lines[i+1:]),
			"twice":        slices.Concat(lines[:i+1], lines[i:]),
			"empty before": slices.Concat(lines[:i], [][]byte{[]byte("\n")}, lines[i:]),
			"with the one before it": func() [][]byte {
				c := slices.Clone(lines)
				if i > 0 {
					c[i-1], c[i] = c[i], c[i-1]
				} else {
					c[0], c[1] = c[1], c[0]
				}
				return c
			}(),
			"cut off here": slices.Concat(lines[:i], [][]byte{l[:len(l)/2]}),
		} {
			if report := verifyBundle(t, bytes.Join(changed, nil)); !near(report, i+1, 1) {
				t.Errorf("%s line %d %s: %v", kind, i+1, name, report.Problems)
			}
		}
	}
}

// TestTamperingIsFoundWithoutTheHashes lets the forger make all hashes right
// again: signatures, the fold and the seal find it.
func TestTamperingIsFoundWithoutTheHashes(t *testing.T) {
	s := testkit.Start(t)
	_, raw := exported(t, s)
	lines := bytes.SplitAfter(raw, []byte("\n"))
	lines = lines[:len(lines)-1]
	seen := map[string]int{}
	for i, l := range lines {
		kind, value := lineOf(t, l)
		if seen[kind]++; seen[kind] > 2 {
			continue
		}
		letter := bytes.IndexByte(value, ':') + 2 // in the first member's value
		for name, forged := range map[string][][]byte{
			"changed": func() [][]byte {
				c := slices.Clone(lines)
				c[i] = bytes.Replace(l, value, slices.Concat(value[:letter], []byte{value[letter] ^ 1}, value[letter+1:]), 1)
				return c
			}(),
			"removed": slices.Concat(lines[:i], lines[i+1:]),
			"twice":   slices.Concat(lines[:i+1], lines[i:]),
		} {
			if !json.Valid(bytes.TrimSpace(forged[min(i, len(forged)-1)])) {
				continue
			}
			if report := verifyBundle(t, rehashed(t, forged)); report.OK() {
				t.Errorf("%s line %d %s: nothing was found", kind, i+1, name)
			}
		}
	}
	// The end of the log alone, with everything behind it as it was.
	last := 0
	for i, l := range lines {
		if kind, _ := lineOf(t, l); kind == "event" {
			last = i
		}
	}
	if report := verifyBundle(t, rehashed(t, slices.Concat(lines[:last], lines[last+1:]))); report.OK() {
		t.Error("the last Event is gone and nobody misses it")
	}
}
