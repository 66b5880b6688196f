package policyhttp_test

import (
	"bytes"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/cli"
	"github.com/missionweave/server/internal/policylog"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// logged pages through the Policy Log as a reader, two entries at a time.
func (s *stand) logged(token string, query url.Values) (all []strictjson.Value) {
	s.t.Helper()
	query.Set("limit", "2")
	for {
		a := s.fetch(token, "/v1/policy-decisions?"+query.Encode())
		if a.Status != 200 {
			s.t.Fatalf("policy decisions: %d %s", a.Status, a.Body)
		}
		page := a.Value(s.t)
		for _, e := range page.Member("items").Items() {
			all = append(all, e)
		}
		next := page.Member("next").Str()
		if next == "" {
			return all
		}
		query.Set("after", next)
	}
}

func (s *stand) group() url.Values { return url.Values{"groupId": {s.m.GroupID}} }

// TestDecisionsOfEveryKindAreRead: what was decided about one piece of work is read
// back whole, in order and page by page.
func TestDecisionsOfEveryKindAreRead(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	version := s.install(assistant)
	user := s.input("user", "go")
	sent := s.action("send_email", map[string]any{"to": "a@example.org"}, []string{user}, nil)
	s.decided(sent, "ALLOW", "Covered")
	s.propose(s.action("send_email", map[string]any{"to": "a@example.org"}, []string{user}, map[string]any{"operation": "read"})).Refused(t, 403, "AUTH_FORBIDDEN")
	s.send("POST", "/v1/memory", s.k.Token, map[string]any{"groupId": s.m.GroupID, "key": "k", "value": 1, "provenance": []string{user}})
	s.send("POST", "/v1/action-modes", s.Token(s.m.Owner), map[string]any{"groupId": s.m.GroupID, "mode": "interactive"})
	s.send("POST", "/v1/capability-tokens", s.k.Token, map[string]any{
		"groupId": s.m.GroupID, "workItemId": s.item, "ownershipEpoch": 1, "executionLeaseId": s.lease,
		"operations": []string{"write"}, "resources": []string{resource}, "budget": map[string]any{"modelTokenLimit": 1 << 50},
	}).Refused(t, 409, "BUDGET_EXCEEDED")
	all := s.logged(s.Token(s.m.Owner), s.group())
	var seen []string
	last := int64(0)
	for _, e := range all {
		seen = append(seen, e.Member("category").Str()+" "+e.Member("outcome").Str())
		place, _ := e.Member("entry").Int()
		if place <= last || e.Member("groupId").Str() != s.m.GroupID || e.Member("input").Raw() == nil || e.Member("ruleIds").Len() == 0 {
			t.Errorf("out of order, of another Group, or incomplete: %s", e.Raw())
		}
		last = place
	}
	for _, want := range []string{"input clean", "token issued", "action allow", "gate refused", "memory written", "escalation mode", "token refused"} {
		if !slices.Contains(seen, want) {
			t.Errorf("%q is not in %q", want, seen)
		}
	}
	if want := s.one(`SELECT count(*) FROM policy_decisions WHERE group_id = $1`, s.m.GroupID); len(all) != want {
		t.Errorf("%d of %d entries", len(all), want)
	}
	for _, category := range policylog.Categories {
		query := s.group()
		query.Set("category", category)
		for _, e := range s.logged(s.Token(s.m.Owner), query) {
			if e.Member("category").Str() != category {
				t.Errorf("asked for %s: %s", category, e.Raw())
			}
		}
	}
	query := s.group()
	query.Set("subjectId", sent["actionId"].(string))
	about := s.logged(s.Token(s.m.Owner), query)
	if len(about) != 1 || about[0].Member("manifestVersion").Str() != version || about[0].Member("result").Member("ruleId").Str() != "Covered" {
		t.Errorf("about one action: %d entries", len(about))
	}
	for _, bad := range []string{"category=none", "groupId=x", "after=x", "after=MTphdg", "limit=0"} {
		s.fetch(s.Token(s.m.Owner), "/v1/policy-decisions?"+bad).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	}
}

// TestWhoReadsThePolicyLog: who looks after a Group reads all of it, a member what
// it asked for itself, everybody else nothing.
func TestWhoReadsThePolicyLog(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.install(assistant)
	user := s.input("user", "go")
	s.decided(s.action("send_email", map[string]any{"to": "a@example.org"}, []string{user}, nil), "ALLOW", "Covered")
	other := s.Agent("other")
	s.m.Admit(other, "worker", 0)
	colleague := s.Login(other)
	s.send("POST", "/v1/membership-tokens", colleague.Token, map[string]any{"groupId": s.m.GroupID})
	observer := s.Human("observer")
	s.m.Admit(observer, "observer", 0)

	of := func(token string) map[string]int {
		count := map[string]int{}
		for _, e := range s.logged(token, s.group()) {
			count[e.Member("principal").Member("id").Str()]++
		}
		return count
	}
	total := s.one(`SELECT count(*) FROM policy_decisions WHERE group_id = $1`, s.m.GroupID)
	for name, token := range map[string]string{
		"MissionOwner": s.Token(s.m.Owner), "Coordinator": s.m.Lead.Token, "policy service": s.Token(s.keeper), "archival service": s.Token(s.As("archival")),
	} {
		n := 0
		for _, k := range of(token) {
			n += k
		}
		if n != total {
			t.Errorf("%s reads %d of %d entries", name, n, total)
		}
	}
	if got := of(s.k.Token); len(got) != 1 || got[s.worker.Principal().ID] == 0 {
		t.Errorf("a Worker reads entries of %v", got)
	}
	if got := of(colleague.Token); len(got) != 1 || got[other.Principal().ID] != 1 {
		t.Errorf("another Worker reads entries of %v", got)
	}
	if got := of(s.Token(observer)); len(got) != 0 {
		t.Errorf("an observer reads entries of %v", got)
	}
	path := "/v1/policy-decisions?" + s.group().Encode()
	s.fetch(s.Token(s.Registrar), path).Refused(t, 404, "GROUP_NOT_FOUND")
	s.fetch(s.Token(s.Human("stranger")), path).Refused(t, 404, "GROUP_NOT_FOUND")
	s.m.Expel(s.worker)
	s.fetch(s.k.Token, path).Refused(t, 403, "MEMBERSHIP_REQUIRED")
	// What concerns no Group is for the services that look after policy.
	s.fetch(s.Token(s.m.Owner), "/v1/policy-decisions").Refused(t, 403, "AUTH_FORBIDDEN")
	s.fetch(colleague.Token, "/v1/policy-decisions").Refused(t, 403, "AUTH_FORBIDDEN")
	org := s.logged(s.Token(s.keeper), url.Values{})
	if len(org) != 1 || org[0].Member("category").Str() != "manifest" || org[0].Member("groupId").Exists() {
		t.Errorf("%d entries of the Organization", len(org))
	}
}

// A Membership that sees the Group from a later Event on sees no decision of before.
func TestDecisionsBeforeTheFirstVisibleEventStayHidden(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.install(assistant)
	user := s.input("user", "go")
	s.decided(s.action("send_email", map[string]any{"to": "a@example.org"}, []string{user}, nil), "ALLOW", "Covered")
	late := s.Human("late")
	a := s.Post(s.Sign(s.m.Owner, client.Command{Kind: "membership.change", GroupID: s.m.GroupID, MembershipEpoch: 1}, map[string]any{
		"member": late.Principal(), "role": "observer", "scopes": []string{"mission.inspect", "approval.execution"},
		"visibilityStartSequence": s.one(`SELECT head_sequence FROM groups WHERE group_id = $1`, s.m.GroupID) + 1,
	}))
	if a.Status != 201 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	before := len(s.logged(s.Token(late), s.group()))
	s.decided(s.action("send_email", map[string]any{"to": "b@example.org"}, []string{user}, nil), "ALLOW", "Covered")
	after := s.logged(s.Token(late), s.group())
	if before != 0 || len(after) == 0 {
		t.Errorf("%d entries of before, %d of after", before, len(after))
	}
}

// A version is tried on what was really decided: exported, changed, decided again.
func TestATraceFromTheServerIsDecidedAgainUnderAnotherManifest(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.install(assistant)
	user, mail := s.input("user", "go"), s.input("email", "go")
	var stranger map[string]any
	for _, to := range []string{"a@example.org", "b@example.org", "c@elsewhere.test"} {
		stranger = s.action("send_email", map[string]any{"to": to}, []string{user}, nil)
		s.decided(stranger, "ALLOW", "Covered")
	}
	s.send("POST", client.Path("v1", "actions", stranger["actionId"].(string), "outcome"), s.k.Token, map[string]any{"result": "success"})
	s.decided(s.action("send_email", map[string]any{"to": "a@example.org"}, []string{mail}, nil), "DENY", "TaintContainmentLaw")

	dir := t.TempDir()
	trace, same, changed := filepath.Join(dir, "trace.jsonl"), filepath.Join(dir, "same.yaml"), filepath.Join(dir, "changed.yaml")
	stricter := strings.Replace(assistant, "escalations:",
		"rules:\n  - {id: no-strangers, effect: deny, condition: {action: send_email, parameters: '!parameters.to.endsWith(\"@example.org\")'}}\nescalations:", 1)
	for name, text := range map[string]string{same: assistant, changed: stricter} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(want int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		app := cli.NewApp()
		app.Out, app.Err = &out, &errs
		if code := app.Run(t.Context(), append([]string{"manifest"}, args...)); code != want {
			t.Fatalf("%v: exit %d, want %d: %s%s", args, code, want, out.String(), errs.String())
		}
		return out.String()
	}
	run(0, "trace", "--stack", s.DevFile(), "--out", trace, s.m.GroupID)
	if out := run(0, "simulate", same, trace); !strings.HasPrefix(out, "4 decided, 4 the same, 0 otherwise, 0 skipped") {
		t.Errorf("under the same version: %s", out)
	}
	out := run(1, "simulate", changed, trace)
	if !strings.HasPrefix(out, "4 decided, 3 the same, 1 otherwise, 0 skipped") || !strings.Contains(out, stranger["actionId"].(string)) ||
		!strings.Contains(out, "ALLOW by Covered -> DENY by no-strangers") {
		t.Errorf("under the stricter one: %s", out)
	}
	if out := run(0, "coverage", changed, trace); !strings.Contains(out, "escalation") && !strings.Contains(out, "rule ask-memory: never") {
		t.Errorf("coverage: %s", out)
	}
	// The trace is whole however small the pages of the server are, and a Group that
	// the reader may not know leaves no file behind.
	if n := s.one(`SELECT count(*) FROM policy_decisions WHERE group_id = $1 AND category = 'action' AND outcome <> 'reported'`, s.m.GroupID); n != 4 {
		t.Errorf("%d decisions recorded", n)
	}
	none := filepath.Join(dir, "none.jsonl")
	app := cli.NewApp()
	app.Out, app.Err = &bytes.Buffer{}, &bytes.Buffer{}
	if code := app.Run(t.Context(), []string{"manifest", "trace", "--stack", s.DevFile(), "--out", none, client.NewID()}); code == 0 {
		t.Error("a Group that is not there gave a trace")
	}
	if _, err := os.Stat(none); !os.IsNotExist(err) {
		t.Errorf("half a trace was left: %v", err)
	}

	// The server's own simulation says the same, and says where it stopped.
	version := s.install(stricter)
	var decided, other int64
	pages := 0
	body := map[string]any{"version": version, "groupId": s.m.GroupID, "limit": 2}
	for {
		a := s.send("POST", "/v1/manifests:simulate", s.Token(s.m.Owner), body)
		if a.Status != 200 {
			t.Fatalf("simulate: %d %s", a.Status, a.Body)
		}
		v := a.Value(t)
		n, _ := v.Member("decided").Int()
		decided, other, pages = decided+n, other+int64(v.Member("differences").Len()), pages+1
		if !v.Member("next").Exists() {
			break
		}
		body["after"] = v.Member("next").Str()
	}
	if decided != 4 || other != 1 || pages < 2 {
		t.Errorf("%d decided, %d otherwise on %d pages", decided, other, pages)
	}
	for _, bad := range []map[string]any{{"limit": 0}, {"limit": 10_001}, {"after": "x"}} {
		bad["version"], bad["groupId"] = version, s.m.GroupID
		s.send("POST", "/v1/manifests:simulate", s.Token(s.m.Owner), bad).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	}
}
