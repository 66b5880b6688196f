package routes_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/trust"
	"github.com/missionweave/server/internal/verify"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// hand is an Agent that works in a Group: a member with a session.
type hand struct {
	t      *testing.T
	s      *testkit.Stack
	groups string
	agent  *client.Client
	socket *testkit.Socket
	epoch  int64
}

// employ makes a new Agent a worker of the Mission's Group.
func employ(t *testing.T, s *testkit.Stack, m *testkit.Mission, name string) *hand {
	t.Helper()
	h := &hand{t: t, s: s, groups: m.GroupID, agent: s.Agent(name), epoch: 1}
	m.Admit(h.agent, "worker", 1)
	h.socket = s.Login(h.agent)
	return h
}

// do posts a Command of the Agent.
func (h *hand) do(cmd client.Command, payload any) testkit.Answer {
	h.t.Helper()
	cmd.GroupID, cmd.SessionEpoch, cmd.MembershipEpoch = h.groups, h.socket.Epoch, h.epoch
	return h.s.Post(h.s.Sign(h.agent, cmd, payload))
}

func (h *hand) must(cmd client.Command, payload any) strictjson.Value {
	h.t.Helper()
	a := h.do(cmd, payload)
	if a.Status != 201 {
		h.t.Fatalf("%s: %d %s", cmd.Kind, a.Status, a.Body)
	}
	return a.Value(h.t)
}

// accept takes the Agent's open offer on a WorkItem; seconds is the Ownership
// Lease, 0 for the default.
func (h *hand) accept(workItemID string, seconds int64) {
	h.t.Helper()
	for _, o := range h.s.Get(h.agent, "/v1/offers").Value(h.t).Member("items").Items() {
		if o.Member("workItemId").Str() != workItemID {
			continue
		}
		payload := map[string]any{"offerId": o.Member("offerId").Str()}
		if seconds > 0 {
			payload["ownershipLeaseSeconds"] = seconds
		}
		h.must(client.Command{Kind: "work.accept_offer", WorkItemID: workItemID}, payload)
		return
	}
	h.t.Fatalf("no offer on %s", workItemID)
}

// start starts an owned WorkItem and returns what every later Command of the
// execution needs.
func (h *hand) start(workItemID string, seconds int64) map[string]any {
	h.t.Helper()
	h.must(client.Command{Kind: "work.start", WorkItemID: workItemID}, map[string]any{
		"ownershipEpoch": 1, "executionLeaseSeconds": seconds,
	})
	return map[string]any{"ownershipEpoch": 1, "executionLeaseId": h.lease(workItemID, "execution")}
}

func (h *hand) lease(workItemID, typ string) string {
	h.t.Helper()
	list := h.s.Get(h.agent, client.Path("v1", "groups", h.groups, "work-items", workItemID, "leases")).Value(h.t)
	for _, l := range list.Member("items").Items() {
		if l.Member("leaseType").Str() == typ && l.Member("state").Str() == "active" {
			return l.Member("leaseId").Str()
		}
	}
	h.t.Fatalf("no %s lease on %s", typ, workItemID)
	return ""
}

// submit publishes an Artifact and submits it, and returns its hash.
func (h *hand) submit(m *testkit.Mission, workItemID string, lease map[string]any, content string) string {
	h.t.Helper()
	hash := client.Hash([]byte(content))
	manifest, err := h.agent.Identity().SignArtifact(client.Artifact{
		ArtifactID: client.NewID(), ContentHash: hash, URI: "urn:missionweave:blob:" + hash, SizeBytes: int64(len(content)),
		MediaType: "text/plain", SchemaURI: "urn:test:text",
		Producer: client.Producer{
			AgentID: h.agent.Principal().ID, AgentCardVersion: 1,
			Capabilities: []client.CapabilityRef{{ID: "text.write", Version: "1.0.0"}},
		},
		MissionID: m.MissionID, GroupID: m.GroupID, WorkItemID: workItemID, SourceArtifactHashes: []string{},
		ToolVersions: []client.ToolVersion{}, ModelVersions: []client.ModelVersion{}, Classification: "internal",
		CreatedAt: client.Timestamp(time.Now()),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.must(client.Command{Kind: "artifact.publish", WorkItemID: workItemID}, with(lease, map[string]any{"artifact": manifest}))
	evidence := evidence(h.t, h.agent, m, workItemID, "artifact_integrity", hash)
	h.must(client.Command{Kind: "work.submit", WorkItemID: workItemID}, with(lease, map[string]any{
		"artifactHashes": []string{hash}, "evidence": []client.Raw{evidence},
	}))
	return hash
}

func with(a, b map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range a {
		out[k] = v
	}
	for k, v := range b {
		out[k] = v
	}
	return out
}

// evidence is passed Evidence about the Contract's one criterion.
func evidence(t *testing.T, by *client.Client, m *testkit.Mission, workItemID, typ, hash string) client.Raw {
	t.Helper()
	signed, err := by.Identity().SignEvidence(client.Evidence{
		EvidenceID: client.NewID(), MissionID: m.MissionID, GroupID: m.GroupID, WorkItemID: workItemID,
		Type: typ, Subject: client.EvidenceSubject{Type: "artifact", ID: hash}, CriterionIDs: []string{"written"},
		Method: "Looked at it.", Result: "passed", ArtifactHashes: []string{hash}, GeneratedBy: by.Principal(),
		CreatedAt: client.Timestamp(time.Now()),
	})
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// verifyResult accepts submitted work; the MissionOwner reviewed it.
func verifyResult(t *testing.T, m *testkit.Mission, workItemID, hash string) {
	t.Helper()
	m.Do(client.Command{Kind: "work.accept_result", WorkItemID: workItemID}, map[string]any{
		"evidence": []client.Raw{evidence(t, m.Owner, m, workItemID, "human_review", hash)},
	})
}

// cancel ends a Mission as its MissionOwner.
func cancel(t *testing.T, s *testkit.Stack, m *testkit.Mission) {
	t.Helper()
	a := s.Post(s.Sign(m.Owner, client.Command{Kind: "mission.cancel", GroupID: m.GroupID, MembershipEpoch: 1}, map[string]any{"reason": "test"}))
	if a.Status != 201 {
		t.Fatalf("mission.cancel: %d %s", a.Status, a.Body)
	}
}

func sha(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// draft reads the unsigned snapshot of a Group.
func draft(t *testing.T, s *testkit.Stack, archival *client.Client, groupID string) protocol.GroupSnapshot {
	t.Helper()
	a := s.Get(archival, client.Path("v1", "groups", groupID, "snapshot"))
	if a.Status != 200 {
		t.Fatalf("draft: %d %s", a.Status, a.Body)
	}
	var d protocol.GroupSnapshot
	if err := client.Decode(a.Body, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// archive signs a snapshot and posts it; the bytes are those that were signed.
func archive(t *testing.T, s *testkit.Stack, archival *client.Client, d protocol.GroupSnapshot) (testkit.Answer, []byte) {
	t.Helper()
	id := archival.Identity()
	signed, _, err := trust.SignDocument(protocol.KindGroupSnapshot, &d, trust.Signer{KeyID: id.KeyID, Principal: id.Principal, Private: id.Key})
	if err != nil {
		t.Fatal(err)
	}
	command := s.Sign(archival, client.Command{Kind: "ext.missionweaveprotocol.core.group_archive", GroupID: d.GroupID},
		map[string]any{"snapshot": client.Raw(signed)})
	return s.Post(command), signed
}

// sound runs mw verify --database.
func sound(t *testing.T, s *testkit.Stack) *verify.Report {
	t.Helper()
	report, err := verify.Database(t.Context(), s.Pool, verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range report.Differences {
		t.Error(d)
	}
	return report
}

// items reads all pages of a list, two items at a time, and checks that they are
// what one page says.
func items(t *testing.T, s *testkit.Stack, reader *client.Client, path string) []strictjson.Value {
	t.Helper()
	whole := s.Get(reader, path)
	if whole.Status != 200 {
		t.Fatalf("%s: %d %s", path, whole.Status, whole.Body)
	}
	all := listed(whole.Value(t).Member("items"))
	var paged []string
	for query := "?limit=2"; ; {
		v := s.Get(reader, path+query).Value(t)
		for _, item := range v.Member("items").Items() {
			paged = append(paged, string(item.Raw()))
		}
		next, more := v.Get("next")
		if !more {
			break
		}
		query = "?limit=2&after=" + next.Str()
	}
	if len(paged) != len(all) {
		t.Fatalf("%s: %d items at once, %d in pages", path, len(all), len(paged))
	}
	for i, item := range all {
		if string(item.Raw()) != paged[i] {
			t.Errorf("%s: item %d differs between pages", path, i)
		}
	}
	return all
}

// now reads the first page of a list that changes with the clock.
func now(t *testing.T, s *testkit.Stack, reader *client.Client, path string) []strictjson.Value {
	t.Helper()
	a := s.Get(reader, path)
	if a.Status != 200 {
		t.Fatalf("%s: %d %s", path, a.Status, a.Body)
	}
	return listed(a.Value(t).Member("items"))
}

// find returns the items in which members have values.
func find(list []strictjson.Value, members ...string) []strictjson.Value {
	var out []strictjson.Value
	for _, v := range list {
		match := true
		for i := 0; i < len(members); i += 2 {
			match = match && v.Member(members[i]).Str() == members[i+1]
		}
		if match {
			out = append(out, v)
		}
	}
	return out
}

// listed are the items of an array.
func listed(v strictjson.Value) []strictjson.Value {
	var out []strictjson.Value
	for _, item := range v.Items() {
		out = append(out, item)
	}
	return out
}

func number(t *testing.T, v strictjson.Value) int64 {
	t.Helper()
	n, ok := v.Int()
	if !ok {
		t.Fatalf("%s is no integer", v.Raw())
	}
	return n
}

func texts(v strictjson.Value) []string {
	out := []string{}
	for _, item := range v.Items() {
		out = append(out, item.Str())
	}
	return out
}

func appendInt(n int64) []byte { return strconv.AppendInt(nil, n, 10) }

func split(lines []byte) [][]byte { return bytes.Split(bytes.TrimSpace(lines), []byte("\n")) }
