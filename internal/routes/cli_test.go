package routes_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/cli"
	"github.com/missionweave/server/internal/testkit"
)

// mw runs a command line against a stack.
type mw struct {
	t    *testing.T
	file string
}

func (m mw) run(args ...string) (out, errs string, code int) {
	m.t.Helper()
	var o, e bytes.Buffer
	app := cli.NewApp()
	app.In, app.Out, app.Err, app.Environ = strings.NewReader(""), &o, &e, []string{"MW_STACK=" + m.file}
	code = app.Run(m.t.Context(), args)
	return o.String(), e.String(), code
}

func (m mw) must(args ...string) string {
	m.t.Helper()
	out, errs, code := m.run(args...)
	if code != cli.ExitOK {
		m.t.Fatalf("mw %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

func (m mw) fails(code int, want string, args ...string) {
	m.t.Helper()
	out, errs, got := m.run(args...)
	if got != code || !strings.Contains(errs, want) {
		m.t.Errorf("mw %s: exit %d, want %d with %q\n%s%s", strings.Join(args, " "), got, code, want, out, errs)
	}
}

func TestOperatorDecidesFromTheCommandLine(t *testing.T) {
	s := testkit.Start(t)
	c := mw{t, s.DevFile()}
	coordinator := s.Agent("coordinator")

	var created struct{ MissionID, GroupID string }
	payload := filepath.Join(t.TempDir(), "mission.json")
	permissions := `{"permissions":[{"resource":"urn:test:*","operations":["site.publish","site.read"]}]}`
	if err := os.WriteFile(payload, []byte(permissions), 0o600); err != nil {
		t.Fatal(err)
	}
	out := c.must("mission", "create", "--json", "--file", payload, "--coordinator", coordinator.Principal().ID, "--objective", "Write it.",
		"--criterion", "complete=Everything is written.", "--model-tokens", "100000", "--money", "100")
	if err := json.Unmarshal([]byte(out), &created); err != nil || created.MissionID == "" {
		t.Fatalf("%v in %s", err, out)
	}
	c.fails(cli.ExitUsage, "--criterion", "mission", "create", "--coordinator", "urn:x:y", "--objective", "x")
	c.fails(cli.ExitUsage, "ID=DESCRIPTION", "mission", "create", "--coordinator", "urn:x:y", "--objective", "x", "--criterion", "x")
	if out := c.must("mission", "list", "--state", "active"); !strings.Contains(out, created.MissionID) {
		t.Errorf("list: %s", out)
	}
	if out := c.must("mission", "list", "--state", "approved"); strings.Contains(out, created.MissionID) {
		t.Errorf("list of others: %s", out)
	}
	m := s.Attach(created.MissionID, created.GroupID, s.Owner, coordinator)
	h := employ(t, s, m, "worker")
	first, second := authorize(m, gated(m)), m.Authorize()
	for _, id := range []string{first, second} {
		m.Offer(id, h.agent)
		h.accept(id, 3600)
	}
	if out := c.must("approvals", "list"); !strings.Contains(out, first) || !strings.Contains(out, "human_required") || strings.Contains(out, second) {
		t.Errorf("approvals: %s", out)
	}
	c.fails(cli.ExitFailure, "nothing about", "approvals", "grant", second)
	if out := c.must("approvals", "grant", first, "--for", "10m", "--comments", "Go ahead."); !strings.Contains(out, "approval.execution.granted") {
		t.Errorf("grant: %s", out)
	}
	c.fails(cli.ExitFailure, "nothing about", "approvals", "deny", first)
	h.start(first, 300)

	ask := client.NewID()
	if a := s.Post(s.Sign(s.As("authorization"), client.Command{
		Kind: "ext.missionweave.approval.request_action", GroupID: m.GroupID, WorkItemID: first,
	}, map[string]any{
		"requestId": ask, "actionId": client.NewID(), "actionType": "site.publish", "agentId": h.agent.Principal().ID,
		"ownershipEpoch": 1, "operation": "site.publish", "resources": []string{"urn:test:site"},
		"argumentsDigest": sha([]byte("{}")), "argsEqualityVersion": "1", "manifestVersion": "1.0.0", "ruleId": "urn:test:rule",
		"reason": "External publication.", "provenance": []string{}, "sideEffectClass": "external",
		"expiresAt": client.Timestamp(time.Now().Add(time.Hour)),
	})); a.Status != 201 {
		t.Fatalf("request_action: %d %s", a.Status, a.Body)
	}
	if out := c.must("approvals", "grant", ask); !strings.Contains(out, "action_decided") {
		t.Errorf("decide: %s", out)
	}

	hash := h.submit(m, second, h.start(second, 300), "the text")
	verifyResult(t, m, second, hash)
	m.Do(client.Command{Kind: "work.cancel", WorkItemID: first}, map[string]any{"reason": "test"})
	m.Do(client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": []string{hash}})
	c.fails(cli.ExitUsage, "--comments", "mission", "request-changes", m.MissionID)
	c.must("mission", "request-changes", m.MissionID, "--comments", "Once more.")
	c.fails(cli.ExitFailure, "nothing about", "mission", "approve", m.MissionID)
	m.Do(client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": []string{hash}})
	if out := c.must("mission", "show", m.MissionID); !strings.Contains(out, "awaiting_approval") || !strings.Contains(out, "verified     1") {
		t.Errorf("show: %s", out)
	}
	c.must("mission", "approve", m.MissionID)
	if out := c.must("mission", "tree", m.MissionID); !strings.Contains(out, m.MissionID+" approved") {
		t.Errorf("tree: %s", out)
	}
	c.fails(cli.ExitFailure, "INVALID_STATE_TRANSITION", "mission", "cancel", m.MissionID, "--reason", "too late")
	c.fails(cli.ExitUsage, "--reason", "mission", "cancel", m.MissionID)
	c.fails(cli.ExitFailure, "GROUP_NOT_FOUND", "mission", "show", client.NewID())

	watched := c.must("watch", m.GroupID, "--count", "3", "--json")
	lines := strings.Split(strings.TrimSpace(watched), "\n")
	if len(lines) != 3 || parse(t, []byte(lines[0])).Member("kind").Str() != "mission.created" {
		t.Errorf("watch: %s", watched)
	}
	if out := c.must("watch", m.GroupID, "--after", "1", "--count", "1"); !strings.Contains(out, "membership.changed") {
		t.Errorf("watch: %s", out)
	}
	if out := c.must("replay", m.GroupID); !strings.Contains(out, "approved") || !strings.Contains(out, second+" verified") {
		t.Errorf("replay: %s", out)
	}
	early := parse(t, []byte(c.must("replay", m.GroupID, "--to", "2", "--json")))
	if number(t, early.Member("sequence")) != 2 || early.Member("mission").Member("state").Str() != "active" || early.Member("workItems").Len() != 0 {
		t.Errorf("replay to 2: %s", early.Raw())
	}
	c.fails(cli.ExitFailure, "ends at sequence", "replay", m.GroupID, "--to", "100000")
	c.fails(cli.ExitUnavailable, "mw dev", "mission", "list", "--stack", filepath.Join(t.TempDir(), "dev.json"))
	sound(t, s)
}

func TestSignMakesCommandsThatAreTaken(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	id := m.Owner.Identity()
	seed := filepath.Join(t.TempDir(), "owner.seed")
	if err := os.WriteFile(seed, []byte(base64.RawURLEncoding.EncodeToString(id.Key.Seed())), 0o600); err != nil {
		t.Fatal(err)
	}
	sign := func(args []string, document string) (string, string, int) {
		t.Helper()
		var out, errs bytes.Buffer
		app := cli.NewApp()
		app.In, app.Out, app.Err, app.Environ = strings.NewReader(document), &out, &errs, nil
		code := app.Run(t.Context(), append([]string{"sign", "--principal", id.Principal.ID, "--key-id", id.KeyID, "--seed", seed}, args...))
		return out.String(), errs.String(), code
	}
	out, errs, code := sign(nil, `{"kind":"message.post","groupId":"`+m.GroupID+`","membershipEpoch":1,"conversationId":"`+m.Conversation+
		`","payload":{"messageId":"`+client.NewID()+`","content":[{"type":"text","text":"by hand"}]}}`)
	if code != cli.ExitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	if a := s.Post([]byte(strings.TrimSpace(out))); a.Status != 201 {
		t.Errorf("the signed Command: %d %s", a.Status, a.Body)
	}
	for _, tc := range []struct {
		name, document string
		args           []string
		code           int
	}{
		{"no JSON", `{`, nil, cli.ExitUsage},
		{"a member twice", `{"kind":"a","kind":"b"}`, nil, cli.ExitUsage},
		{"no Command", `{"kind":"message.post"}`, nil, cli.ExitFailure},
		{"no such kind", `{}`, []string{"--kind", "letter"}, cli.ExitUsage},
		{"no Approval", `{"approvalId":"urn:x:1"}`, []string{"--kind", "approval"}, cli.ExitFailure},
	} {
		if out, errs, code := sign(tc.args, tc.document); code != tc.code || out != "" {
			t.Errorf("%s: exit %d, want %d: %s%s", tc.name, code, tc.code, out, errs)
		}
	}
	if text, err := os.ReadFile(seed); err != nil || strings.Contains(out+errs, string(text)) {
		t.Error("the seed was printed")
	}
}
