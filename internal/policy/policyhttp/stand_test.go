package policyhttp_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/trust"
)

// assistant is the world of the tests: mail may be remembered when a human says
// so, and never causes anything outside.
const assistant = `format: worldmanifest/1
name: assistant
version: "1"
trust_channels: {user: trusted, email: untrusted, memory: derived}
capabilities: [read, memory_write, external_side_effects]
capability_matrix:
  trusted: [read, memory_write, external_side_effects]
  untrusted: [read, memory_write]
actions:
  read_email: {requires: [read]}
  write_memory: {requires: [memory_write]}
  send_email:
    requires: [external_side_effects]
    schema: {type: object, required: [to], properties: {to: {type: string}, subject: {type: string}}}
escalations:
  - {id: ask-memory, condition: {action: write_memory, taint: tainted}, reason: tainted data would stay in memory}
`

const resource = "urn:repo:app"

// stand is a Mission in which one Worker executes one WorkItem.
type stand struct {
	*testkit.Stack
	t      testing.TB
	m      *testkit.Mission
	worker *client.Client
	k      *testkit.Socket
	keeper *client.Client
	item   string
	lease  string
	// toolCalls is the limit of the next WorkItem's contract, if it shall have one.
	toolCalls int64
}

func newStand(t testing.TB, options ...testkit.Option) *stand {
	t.Helper()
	s := &stand{Stack: testkit.Start(t, options...), t: t}
	s.keeper = s.As("policy")
	s.m = s.NewMissionWith(func(p map[string]any) {
		p["permissions"] = []client.ResourceGrant{{Resource: "urn:repo:*", Operations: []string{"read", "write"}}}
		budget, calls := p["budget"].(client.Budget), int64(100)
		budget.ToolCallLimit = &calls
		p["budget"] = budget
	})
	s.worker = s.Agent("worker")
	s.m.Admit(s.worker, "worker", 0)
	s.k = s.Login(s.worker)
	s.own()
	return s
}

// own gives the Worker a WorkItem and starts it.
func (s *stand) own() {
	s.t.Helper()
	contract := s.m.Contract()
	contract.AllowedResources = []client.ResourceGrant{{Resource: resource, Operations: []string{"read", "write"}}}
	if s.toolCalls > 0 {
		contract.Budget.ToolCallLimit = &s.toolCalls
	}
	s.item = client.NewID()
	s.m.Do(client.Command{Kind: "work.authorize", WorkItemID: s.item}, map[string]any{"title": "Text", "contract": contract})
	s.m.Offer(s.item, s.worker)
	for _, o := range s.Get(s.worker, "/v1/offers").Value(s.t).Member("items").Items() {
		s.must(client.Command{Kind: "work.accept_offer"}, map[string]any{"offerId": o.Member("offerId").Str(), "ownershipLeaseSeconds": 86400})
	}
	s.must(client.Command{Kind: "work.start"}, map[string]any{"ownershipEpoch": 1, "executionLeaseSeconds": 900})
	s.readLease()
}

func (s *stand) readLease() {
	s.t.Helper()
	s.lease = ""
	list := s.Get(s.worker, client.Path("v1", "groups", s.m.GroupID, "work-items", s.item, "leases")).Value(s.t)
	for _, l := range list.Member("items").Items() {
		if l.Member("leaseType").Str() == "execution" && l.Member("state").Str() == "active" {
			s.lease = l.Member("leaseId").Str()
		}
	}
	if s.lease == "" {
		s.t.Fatalf("no execution lease: %s", list.Raw())
	}
}

func (s *stand) must(cmd client.Command, payload map[string]any) {
	s.t.Helper()
	cmd.GroupID, cmd.SessionEpoch, cmd.MembershipEpoch, cmd.WorkItemID = s.m.GroupID, s.k.Epoch, 1, s.item
	if a := s.Post(s.Sign(s.worker, cmd, payload)); a.Status != 201 {
		s.t.Fatalf("%s: %d %s", cmd.Kind, a.Status, a.Body)
	}
}

// again opens the Worker's next session; its lease ends with the one before, so
// work is started again.
func (s *stand) again() {
	s.t.Helper()
	s.k = s.Login(s.worker)
	s.must(client.Command{Kind: "work.start"}, map[string]any{"ownershipEpoch": 1, "executionLeaseSeconds": 900})
	s.readLease()
}

func (s *stand) send(method, path, token string, body any) testkit.Answer {
	s.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.Do(testkit.Request{Method: method, URL: s.AuthzURL + path, Token: token, Body: b})
}

func (s *stand) fetch(who, path string) testkit.Answer {
	s.t.Helper()
	return s.Do(testkit.Request{Method: "GET", URL: s.AuthzURL + path, Token: who})
}

// signed posts a signed body of a Principal.
func (s *stand) signed(who *client.Client, path string, members map[string]any) testkit.Answer {
	s.t.Helper()
	plain, err := json.Marshal(members)
	if err != nil {
		s.t.Fatal(err)
	}
	id := who.Identity()
	signer := trust.Signer{KeyID: id.KeyID, Principal: id.Principal, Private: id.Key}
	body, err := trust.SignBody(plain, client.Timestamp(time.Now()), signer)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.Do(testkit.Request{Method: "POST", URL: s.AuthzURL + path, Token: s.Token(who), Body: body})
}

// install puts a manifest in force and returns its version.
func (s *stand) install(text string) string {
	s.t.Helper()
	a := s.signed(s.keeper, "/v1/manifests", map[string]any{"name": "assistant", "format": "yaml", "manifest": text})
	if a.Status != 201 {
		s.t.Fatalf("install: %d %s", a.Status, a.Body)
	}
	return a.Value(s.t).Member("version").Str()
}

// token is a fresh Capability Token of the Worker.
func (s *stand) token() string {
	s.t.Helper()
	a := s.send("POST", "/v1/capability-tokens", s.k.Token, map[string]any{
		"groupId": s.m.GroupID, "workItemId": s.item, "ownershipEpoch": 1, "executionLeaseId": s.lease,
		"operations": []string{"write"}, "resources": []string{resource},
	})
	if a.Status != 200 {
		s.t.Fatalf("capability token: %d %s", a.Status, a.Body)
	}
	return a.Value(s.t).Member("token").Str()
}

// input brings something in through a channel, as an Organization's service.
func (s *stand) input(source, payload string) string {
	s.t.Helper()
	a := s.send("POST", "/v1/inputs", s.Token(s.keeper), map[string]any{
		"groupId": s.m.GroupID, "source": source, "mediaType": "text/plain", "payload": payload,
	})
	if a.Status != 201 {
		s.t.Fatalf("input: %d %s", a.Status, a.Body)
	}
	return a.Value(s.t).Member("provenance").Member("recordId").Str()
}

// action is the body of a Proposed Action.
func (s *stand) action(kind string, parameters map[string]any, records []string, more map[string]any) map[string]any {
	s.t.Helper()
	body := map[string]any{
		"actionId": client.NewID(), "groupId": s.m.GroupID, "workItemId": s.item, "capabilityToken": s.token(), "actionType": kind,
		"parameters": parameters, "provenance": records, "operation": "write", "resource": resource,
	}
	for name, v := range more {
		body[name] = v
	}
	return body
}

func (s *stand) propose(body map[string]any) testkit.Answer {
	s.t.Helper()
	return s.send("POST", "/v1/actions", s.k.Token, body)
}

// decided proposes and compares decision and rule.
func (s *stand) decided(body map[string]any, decision, rule string) strictjson.Value {
	s.t.Helper()
	a := s.propose(body)
	if a.Status != 200 {
		s.t.Fatalf("action: %d %s", a.Status, a.Body)
	}
	v := a.Value(s.t)
	if got := v.Member("decision").Str() + " " + v.Member("ruleId").Str(); got != decision+" "+rule {
		s.t.Fatalf("got %s, want %s %s: %s", got, decision, rule, a.Body)
	}
	return v
}

// answer is a human's answer to an ASK.
func (s *stand) answer(v strictjson.Value, decision, scope string) testkit.Answer {
	s.t.Helper()
	revision, _ := s.Get(s.m.Owner, client.Path("v1", "missions", s.m.MissionID)).Value(s.t).Member("revision").Int()
	digest := v.Member("argumentsDigest").Str()
	approval, err := s.m.Owner.Identity().SignApproval(client.Approval{
		ApprovalID: client.NewID(), Kind: "work_execution", Decision: decision, MissionID: s.m.MissionID, GroupID: s.m.GroupID,
		WorkItemID: s.item, MissionRevision: revision, ArtifactHashes: []string{}, AcceptancePolicyVersion: "1.0.0",
		Approver: s.m.Owner.Principal(), Conditions: []string{"argumentsDigest:" + digest}, OccurredAt: client.Timestamp(time.Now()),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	payload := map[string]any{
		"requestId": v.Member("approvalRequest").Member("requestId").Str(), "approval": approval, "scope": scope, "argumentsDigest": digest,
	}
	if decision == "approved" {
		payload["expiresAt"] = client.Timestamp(time.Now().Add(10 * time.Minute))
	}
	cmd := client.Command{Kind: "ext.missionweave.approval.decide_action", GroupID: s.m.GroupID, WorkItemID: s.item, MembershipEpoch: 1}
	return s.Post(s.Sign(s.m.Owner, cmd, payload))
}

func (s *stand) approve(v strictjson.Value, scope string) {
	s.t.Helper()
	if a := s.answer(v, "approved", scope); a.Status != 201 {
		s.t.Fatalf("approve: %d %s", a.Status, a.Body)
	}
}

func testkitRequest(method, url, token string, body []byte) testkit.Request {
	return testkit.Request{Method: method, URL: url, Token: token, Body: body}
}
