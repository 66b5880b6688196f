package mcpbridge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/mcpbridge"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, func() error {
		return goleak.Find(goleak.IgnoreAnyFunction("github.com/missionweave/server/internal/devstack.startWatchdog"))
	})
}

// other is an agent on the other side of a bridge.
type other struct {
	t    *testing.T
	s    *mcp.ClientSession
	seen strings.Builder // everything that came over
}

func bridge(t *testing.T, agent *client.Client) *other {
	t.Helper()
	near, far := mcp.NewInMemoryTransports()
	b := mcpbridge.New(mcpbridge.Options{Client: agent, Discover: 50 * time.Millisecond})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx, near) }()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), far, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the bridge ended with %v", err)
		}
	})
	return &other{t: t, s: s}
}

// call calls a tool and decodes its result; the text of an error otherwise.
func (o *other) call(name string, in, out any) string {
	o.t.Helper()
	res, err := o.s.CallTool(o.t.Context(), &mcp.CallToolParams{Name: name, Arguments: in})
	if err != nil {
		o.t.Fatalf("%s: %v", name, err)
	}
	all, err := json.Marshal(res)
	if err != nil {
		o.t.Fatal(err)
	}
	o.seen.Write(all)
	if res.IsError {
		return res.Content[0].(*mcp.TextContent).Text
	}
	if out != nil {
		b, err := json.Marshal(res.StructuredContent)
		if err != nil {
			o.t.Fatal(err)
		}
		if err := json.Unmarshal(b, out); err != nil {
			o.t.Fatal(err)
		}
	}
	return ""
}

func (o *other) must(name string, in, out any) {
	o.t.Helper()
	if text := o.call(name, in, out); text != "" {
		o.t.Fatalf("%s: %s", name, text)
	}
}

func (o *other) read(uri string) (string, error) {
	o.t.Helper()
	res, err := o.s.ReadResource(o.t.Context(), &mcp.ReadResourceParams{URI: uri})
	if err != nil {
		return "", err
	}
	o.seen.WriteString(res.Contents[0].Text)
	return res.Contents[0].Text, nil
}

type works struct{ Work []mcpbridge.Work }

// offered waits for an offer.
func (o *other) offered(id string) mcpbridge.Work {
	o.t.Helper()
	deadline := time.Now().Add(testkit.Patience)
	for time.Now().Before(deadline) {
		var list works
		o.must("list_offers", nil, &list)
		if i := slices.IndexFunc(list.Work, func(w mcpbridge.Work) bool { return w.WorkItemID == id }); i >= 0 {
			return list.Work[i]
		}
		o.must("wait_for_changes", map[string]any{"seconds": 1}, nil)
	}
	o.t.Fatal("the offer never came")
	return mcpbridge.Work{}
}

func TestAnAgentThatSpeaksMCPIsAWorker(t *testing.T) {
	s := testkit.Start(t)
	agent := s.Agent("model")
	m := s.NewMission()
	m.Admit(agent, "worker", 0)
	o := bridge(t, agent)
	id := m.Authorize()
	m.Offer(id, agent)

	offer := o.offered(id)
	if offer.Goal != "Write something." || offer.OfferID == "" || len(offer.AcceptanceCriteria) != 1 {
		t.Errorf("offer %+v", offer)
	}
	if text := o.call("start_work", map[string]any{"workItemId": id}, nil); text == "" {
		t.Error("work that was not accepted was started")
	}
	o.must("post_message", map[string]any{"workItemId": id, "text": "How long should it be?"}, nil)
	var conversation struct {
		Note     string
		Messages []mcpbridge.Message
	}
	o.must("read_conversation", map[string]any{"workItemId": id}, &conversation)
	if len(conversation.Messages) != 1 || conversation.Messages[0].Text != "How long should it be?" || conversation.Note == "" {
		t.Errorf("conversation %+v", conversation)
	}
	var work mcpbridge.Work
	o.must("accept_offer", map[string]any{"workItemId": id}, &work)
	if !work.Mine || work.State != "queued" {
		t.Errorf("accepted: %+v", work)
	}
	o.must("start_work", map[string]any{"workItemId": id}, &work)
	if work.LeaseExpiresAt == "" {
		t.Errorf("started: %+v", work)
	}
	var leases struct{ Leases []mcpbridge.Lease }
	o.must("list_leases", nil, &leases)
	if len(leases.Leases) != 2 {
		t.Errorf("leases %+v", leases)
	}
	work = mcpbridge.Work{}
	o.must("checkpoint_work", map[string]any{"workItemId": id, "done": []string{"outline"}, "next": "text", "state": "an outline"}, &work)
	if work.State != "queued" || work.SavedState == "" || work.LeaseExpiresAt != "" {
		t.Errorf("paused: %+v", work)
	}
	var saved struct{ Text string }
	o.must("read_artifact", map[string]any{"groupId": m.GroupID, "hash": work.SavedState}, &saved)
	if saved.Text != "an outline" {
		t.Errorf("saved state %q", saved.Text)
	}
	o.must("start_work", map[string]any{"workItemId": id}, &work)
	o.must("report_progress", map[string]any{"workItemId": id, "done": []string{"outline"}, "next": "text"}, nil)
	var published struct{ Hash string }
	o.must("publish_artifact", map[string]any{"workItemId": id, "mediaType": "text/plain", "text": "Something."}, &published)
	o.must("submit_work", map[string]any{"workItemId": id, "artifacts": []string{published.Hash}, "method": "Read it again."}, &work)
	if work.State != "submitted" {
		t.Errorf("submitted: %+v", work)
	}
	item, err := m.Owner.WorkItem(t.Context(), m.GroupID, id)
	if err != nil || item.State != "submitted" {
		t.Errorf("the server says %v, %v", item, err)
	}
	// What only the model says is no test that passed.
	signed := map[string]client.Evidence{}
	for _, e := range submittedEvidence(t, m) {
		signed[e.Type+" "+e.Result] = e
	}
	claim, intact := signed["reviewer_assessment inconclusive"], signed["artifact_integrity passed"]
	if len(signed) != 2 || !strings.HasSuffix(claim.Method, "Read it again.") || !strings.Contains(string(claim.Details), "self-report") ||
		!slices.Equal(intact.ArtifactHashes, []string{published.Hash}) || !slices.Equal(claim.CriterionIDs, []string{"written"}) {
		t.Errorf("evidence %+v", signed)
	}

	for uri, want := range map[string]string{
		"offers": "[]", "work": id, "leases": "ownership", "submissions": published.Hash, "missions": m.MissionID,
		"conversations": offer.ConversationID, "artifacts": published.Hash,
		"work/" + url.PathEscape(id): "Write something.",
		"conversations/" + url.PathEscape(m.GroupID) + "/" + url.PathEscape(offer.ConversationID): "How long",
		"artifacts/" + url.PathEscape(m.GroupID) + "/" + url.PathEscape(published.Hash):           "Something.",
	} {
		if text, err := o.read("missionweave://" + uri); err != nil || !strings.Contains(text, want) {
			t.Errorf("%s: %v, %q", uri, err, text)
		}
	}
	for _, uri := range []string{
		"work/" + url.PathEscape(client.NewID()), "work/", "artifacts/x", "conversations/" + url.PathEscape(client.NewID()) + "/" + url.PathEscape(client.NewID()),
		"artifacts/" + url.PathEscape(client.NewID()) + "/" + url.PathEscape(published.Hash),
	} {
		if _, err := o.read("missionweave://" + uri); err == nil || !strings.Contains(err.Error(), "not found") {
			t.Errorf("%s: %v, want not found", uri, err)
		}
	}
	token, err := agent.AccessToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for what, secret := range map[string]string{
		"key": lexical.EncodeBase64URL(agent.Identity().Key.Seed()), "access token": token, "a bearer": "Bearer", "a session token": "sessionToken",
	} {
		if strings.Contains(o.seen.String(), secret) {
			t.Errorf("the other side was shown the %s", what)
		}
	}
}

func TestWhatAnAgentMayNotDoIsAnErrorOfTheTool(t *testing.T) {
	s := testkit.Start(t)
	agent, rival := s.Agent("model"), s.Agent("rival")
	m := s.NewMission()
	m.Admit(agent, "worker", 0)
	m.Admit(rival, "worker", 0)
	o := bridge(t, agent)
	mine, theirs := m.Authorize(), m.Authorize()
	m.Offer(theirs, rival)
	m.Offer(mine, agent)
	o.offered(mine)
	for i, c := range []struct {
		tool string
		in   map[string]any
		code string
	}{
		{"accept_offer", map[string]any{"workItemId": theirs}, "WORK_OFFER_EXPIRED"},
		{"start_work", map[string]any{"workItemId": mine}, "AUTH_FORBIDDEN"},
		{"start_work", map[string]any{"workItemId": 1}, "SCHEMA_VALIDATION_FAILED"},
		{"start_work", map[string]any{}, "SCHEMA_VALIDATION_FAILED"},
		{"submit_work", map[string]any{"workItemId": mine, "artifacts": []string{}, "method": "none"}, "WORK_LEASE_EXPIRED"},
		{"publish_artifact", map[string]any{"workItemId": mine, "mediaType": "text/plain", "text": "x"}, "WORK_LEASE_EXPIRED"},
		{"get_work", map[string]any{"workItemId": client.NewID()}, "INVALID_COMMAND"},
		{"read_artifact", map[string]any{"groupId": m.GroupID, "hash": client.Hash([]byte("nothing"))}, "PROTOCOL_VIOLATION"},
		{"read_conversation", map[string]any{"groupId": client.NewID()}, "GROUP_NOT_FOUND"},
		{"decline_offer", map[string]any{"workItemId": mine, "reason": "no reason of the protocol"}, "SCHEMA_VALIDATION_FAILED"},
	} {
		if text := o.call(c.tool, c.in, nil); !strings.HasPrefix(text, c.code) || !strings.Contains(text, "\nHint: ") {
			t.Errorf("%d: %s says %q, want %s and a hint", i, c.tool, text, c.code)
		}
	}
	o.must("decline_offer", map[string]any{"workItemId": mine, "reason": "capability", "comments": "I cannot write."}, nil)
	item, err := m.Owner.WorkItem(t.Context(), m.GroupID, mine)
	if err != nil || fmt.Sprint(item.Offers[0].Status, item.Offers[0].DeclineReason) != "declinedcapability" {
		t.Errorf("offers %+v, %v", item, err)
	}
}

// submittedEvidence is the Evidence of every submission in a Mission's log.
func submittedEvidence(t *testing.T, m *testkit.Mission) []client.Evidence {
	t.Helper()
	page, _, err := m.Owner.Events(t.Context(), m.GroupID, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var out []client.Evidence
	for _, d := range page {
		var payload struct {
			Evidence []client.Evidence `json:"evidence"`
		}
		if d.Event.Kind != "work.submitted" {
			continue
		}
		if err := client.Decode(d.Event.Payload, &payload); err != nil {
			t.Fatal(err)
		}
		out = append(out, payload.Evidence...)
	}
	return out
}

func TestEveryKindOfThingIsThereAsToolAndAsResource(t *testing.T) {
	s := testkit.Start(t)
	o := bridge(t, s.Agent("model"))
	tools, err := o.s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resources, err := o.s.ListResources(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*mcp.Tool{}
	for _, tool := range tools.Tools {
		byName[tool.Name] = tool
		if len(tool.Description) < 30 {
			t.Errorf("%s: too short a description: %q", tool.Name, tool.Description)
		}
		schema, err := json.Marshal(tool.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		var in struct {
			Properties map[string]struct{ Description string }
		}
		if err := json.Unmarshal(schema, &in); err != nil {
			t.Fatal(err)
		}
		for name, p := range in.Properties {
			if p.Description == "" {
				t.Errorf("%s: argument %s is not described", tool.Name, name)
			}
		}
	}
	for _, name := range []string{"missions", "offers", "work", "conversations", "leases", "artifacts", "submissions"} {
		tool := byName["list_"+name]
		if tool == nil || !tool.Annotations.ReadOnlyHint {
			t.Errorf("no tool that lists %s and changes nothing", name)
		}
		if !slices.ContainsFunc(resources.Resources, func(r *mcp.Resource) bool { return r.URI == "missionweave://"+name }) {
			t.Errorf("no resource of %s", name)
		}
		o.must("list_"+name, nil, nil)
		if _, err := o.read("missionweave://" + name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
