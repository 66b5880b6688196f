package testkit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/bundle"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/testkit"
)

// tokenBundle is the bundle of a Group in which tokens were given out, refused and
// revoked.
func tokenBundle(t *testing.T, s *testkit.Stack) []byte {
	t.Helper()
	m := s.NewMissionWith(func(p map[string]any) {
		p["permissions"] = []client.ResourceGrant{{Resource: "urn:repo:*", Operations: []string{"read", "write"}}}
	})
	worker := s.Agent("worker")
	m.Admit(worker, "worker", 0)
	k := s.Login(worker)
	contract := m.Contract()
	contract.AllowedResources = []client.ResourceGrant{{Resource: "urn:repo:app", Operations: []string{"read", "write"}}}
	item := client.NewID()
	m.Do(client.Command{Kind: "work.authorize", WorkItemID: item}, map[string]any{"title": "Text", "contract": contract})
	m.Offer(item, worker)
	must := func(kind string, payload map[string]any) {
		t.Helper()
		cmd := client.Command{Kind: kind, GroupID: m.GroupID, SessionEpoch: k.Epoch, MembershipEpoch: 1, WorkItemID: item}
		if a := s.Post(s.Sign(worker, cmd, payload)); a.Status != http.StatusCreated {
			t.Fatalf("%s: %d %s", kind, a.Status, a.Body)
		}
	}
	for _, o := range s.Get(worker, "/v1/offers").Value(t).Member("items").Items() {
		must("work.accept_offer", map[string]any{"offerId": o.Member("offerId").Str(), "ownershipLeaseSeconds": 86400})
	}
	must("work.start", map[string]any{"ownershipEpoch": 1, "executionLeaseSeconds": 600})
	lease := ""
	for _, l := range s.Get(worker, client.Path("v1", "groups", m.GroupID, "work-items", item, "leases")).Value(t).Member("items").Items() {
		if l.Member("leaseType").Str() == "execution" {
			lease = l.Member("leaseId").Str()
		}
	}
	ask := func(operation string) testkit.Answer {
		body, err := json.Marshal(map[string]any{
			"groupId": m.GroupID, "workItemId": item, "ownershipEpoch": 1, "executionLeaseId": lease,
			"operations": []string{operation}, "resources": []string{"urn:repo:app"},
		})
		if err != nil {
			t.Fatal(err)
		}
		return s.Do(testkit.Request{Method: http.MethodPost, URL: s.AuthzURL + "/v1/capability-tokens", Token: k.Token, Body: body})
	}
	ask("write")
	second := ask("read").Value(t).Member("token").Str()
	if a := ask("destroy"); a.Status < 400 {
		t.Fatalf("an operation that is not permitted: %d", a.Status)
	}
	form := url.Values{"token": {second}}.Encode()
	revoke := testkit.Request{
		Method: http.MethodPost, URL: s.AuthzURL + "/v1/revoke", Token: k.Token, Body: []byte(form),
		Header: map[string]string{"Content-Type": "application/x-www-form-urlencoded"},
	}
	if a := s.Do(revoke); a.Status != http.StatusOK {
		t.Fatalf("revoke: %d %s", a.Status, a.Body)
	}
	answer := s.Get(m.Owner, client.Path("v1", "groups", m.GroupID)+"/export")
	if answer.Status != http.StatusOK {
		t.Fatalf("%d %s", answer.Status, answer.Body)
	}
	return answer.Body
}

// change replaces one text in the value of the first line of a kind that has it, and
// gives the number of the line.
func change(t *testing.T, lines [][]byte, kind, old, now string) (changed [][]byte, at int) {
	t.Helper()
	for i, l := range lines {
		if k, value := lineOf(t, l); k == kind && bytes.Contains(value, []byte(old)) {
			changed = slices.Clone(lines)
			changed[i] = bytes.Replace(l, []byte(old), []byte(now), 1)
			return changed, i + 1
		}
	}
	t.Fatalf("no %s has %s", kind, old)
	return nil, 0
}

// said is the problem that names a line and has a text.
func said(r *bundle.Report, line int, text string) bool {
	return slices.ContainsFunc(r.Problems, func(p bundle.Problem) bool {
		return p.Line == int64(line) && strings.Contains(p.String(), text)
	})
}

// member is `"name":"value"` of the first line of a kind that has the member.
func member(t *testing.T, lines [][]byte, kind, name string) string {
	t.Helper()
	for _, l := range lines {
		k, value := lineOf(t, l)
		if i := bytes.Index(value, []byte(`"`+name+`":"`)); k == kind && i >= 0 {
			end := bytes.IndexByte(value[i+len(name)+4:], '"')
			return string(value[i : i+len(name)+4+end+1])
		}
	}
	t.Fatalf("no %s has %s", kind, name)
	return ""
}

// TestReceiptsAndTokensAreHeldAgainstTheLog lets the forger make every hash right
// again: what a receipt, a token or a decision says must still fit the signed log.
func TestReceiptsAndTokensAreHeldAgainstTheLog(t *testing.T) {
	s := testkit.Start(t)
	raw := tokenBundle(t, s)
	report := verifyBundle(t, raw)
	if !report.OK() || report.Tokens != 2 || report.Decisions != 4 || report.Receipts == 0 || report.Receipts != report.Commands {
		t.Fatalf("%+v", report)
	}
	lines := bytes.SplitAfter(raw, []byte("\n"))
	lines = lines[:len(lines)-1]
	lease := member(t, lines, "decision", "executionLeaseId")
	issued := slices.IndexFunc(lines, func(l []byte) bool { return bytes.Contains(l, []byte(`"outcome":"issued"`)) })
	for _, tc := range []struct{ name, kind, old, now, want string }{
		{"the time of a receipt", "command", `"receipt":{"acceptedAt":"2`, `"receipt":{"acceptedAt":"3`, "receipt: acceptedAt"},
		{"the hash in an Admission Record", "command", `"protocolVersion":"0.1","signingHash":"sha256:`, `"protocolVersion":"0.1","signingHash":"sha256:0`, "admission:"},
		{"an Event of a receipt", "command", `"events":[{"eventId":"urn:uuid:`, `"events":[{"eventId":"urn:uuid:0`, "receipt: names other Events"},
		{"the sequence in a receipt", "command", `"sequence":1}`, `"sequence":2}`, "receipt: names other Events"},
		{"an Event more in a receipt", "command", `"events":[`, `"events":[{"eventId":"urn:x:y","groupId":"urn:x:g","kind":""},`, "receipt:"},
		{"the end of a token", "decision", lease + `,"expiresAt":"20`, lease + `,"expiresAt":"21`, "outlives its lease"},
		{"the end that was answered", "decision", `"result":{"expiresAt":"20`, `"result":{"expiresAt":"21`, "end is"},
		{"the lease of a token", "decision", lease + `,"expiresAt"`, lease[:len(lease)-1] + `0","expiresAt"`, "no Execution Lease of its holder"},
		{"the holder of a token", "decision", `"token":{"agentId":"`, `"token":{"agentId":"x`, "holder is"},
		{"the key of a token", "decision", `"signingKeyId":"`, `"signingKeyId":"x`, "no key of an authorization service"},
		{"the beginning of a token", "decision", `"issuedAt":"`, `"issuedAt":"x`, "runs from"},
		{"the holder's key", "decision", `","kind":"capability"`, `x","kind":"capability"`, "no key of its holder"},
		{"the head of a decision", "decision", `"groupHead":`, `"groupHead":9`, "a head that the Group did not have"},
		{"an approval that nobody gave", "decision", lease + `,"expiresAt"`, `"approvalId":"urn:x:y",` + lease + `,"expiresAt"`, "which nobody gave"},
		{"what a refusal gives out", "decision", `"outcome":"refused"`, `"outcome":"issued"`, "a token of which nothing is said"},
		{"what was given out", "decision", `"outcome":"issued"`, `"outcome":"refused"`, "gives out none"},
		{"what was revoked", "decision", `"outcome":"revoked"`, `"outcome":"expired"`, ""},
	} {
		forged, at := change(t, lines, tc.kind, tc.old, tc.now)
		got := verifyBundle(t, rehashed(t, forged))
		if tc.want == "" {
			at, tc.want = slices.IndexFunc(lines, func(l []byte) bool { return bytes.Contains(l, []byte(`"revokedAt"`)) })+1, "no decision says so"
		}
		if !said(got, at, tc.want) {
			t.Errorf("%s: line %d is not told %q: %v", tc.name, at, tc.want, got.Problems)
		}
	}
	first := slices.IndexFunc(lines, func(l []byte) bool { k, _ := lineOf(t, l); return k == "command" })
	for name, tc := range map[string]struct {
		lines [][]byte
		at    int
		want  string
	}{
		"a token given out twice":   {slices.Concat(lines[:issued+1], lines[issued:]), issued + 2, "second"},
		"a Command told twice":      {slices.Concat(lines[:first+1], lines[first:]), first + 2, "second Command with this action id"},
		"a token that is not there": {slices.Concat(lines[:issued+1], lines[issued+2:]), len(lines) - 2, "revokes a token that was not given out"},
	} {
		if got := verifyBundle(t, rehashed(t, tc.lines)); !said(got, tc.at, tc.want) {
			t.Errorf("%s: line %d is not told %q: %v", name, tc.at, tc.want, got.Problems)
		}
	}
}

func TestAnUnreadableSnapshotDoesNotKeepAGroupFromItsExport(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	m.Say("hello")
	for name, state := range map[string]string{"no dump": "x", "a dump of nothing": `{"format":2,"events":{"ids":"","about":"","subjects":[]}}`} {
		if _, err := s.Pool.Exec(t.Context(), `INSERT INTO snapshots (tree_id, group_id, sequence, format, state, created_at)
			SELECT tree_id, group_id, 1, $2, $3, now() FROM groups WHERE group_id = $1
			ON CONFLICT (tree_id, group_id) DO UPDATE SET state = excluded.state, sequence = 1`, m.GroupID, events.SnapshotFormat, []byte(state)); err != nil {
			t.Fatal(err)
		}
		answer := s.Get(m.Owner, client.Path("v1", "groups", m.GroupID)+"/export")
		if answer.Status != http.StatusOK {
			t.Fatalf("%s: %d %s", name, answer.Status, answer.Body)
		}
		if report := verifyBundle(t, answer.Body); !report.OK() {
			t.Errorf("%s: %v", name, report.Problems)
		}
	}
}

func TestAnotherFileIsNoBundle(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"nothing": "", "a word": "hello", "a record": `{"schema_version":"aep/v0.3"}`, "lines": strings.Repeat("{}\n", 5000),
		"a binary": "\x7fELF\x00\x01",
	} {
		if report, err := bundle.Verify(t.Context(), strings.NewReader(raw), bundle.Options{}); !errors.Is(err, bundle.ErrNotBundle) {
			t.Errorf("%s: %v %+v", name, err, report)
		}
	}
}
