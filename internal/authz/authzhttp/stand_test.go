package authzhttp_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// stand is a Mission with one WorkItem that one Worker owns.
type stand struct {
	*testkit.Stack
	t      testing.TB
	m      *testkit.Mission
	worker *client.Client
	k      *testkit.Socket // the Worker's session
	item   string
	lease  string
	epoch  int64 // Ownership Epoch
}

// newStand offers the WorkItem to the Worker, who accepts. change edits the Work
// Contract.
func newStand(t testing.TB, change func(*client.WorkContract), options ...testkit.Option) *stand {
	t.Helper()
	s := &stand{Stack: testkit.Start(t, options...), t: t}
	s.m = s.NewMissionWith(func(p map[string]any) {
		p["permissions"] = []client.ResourceGrant{{Resource: "urn:repo:*", Operations: []string{"read", "write"}}}
	})
	s.worker = s.Agent("worker")
	s.m.Admit(s.worker, "worker", 0)
	s.k = s.Login(s.worker)
	s.item = s.owned(change)
	s.epoch = 1
	return s
}

// owned makes a WorkItem that the Worker owns.
func (s *stand) owned(change func(*client.WorkContract)) string {
	s.t.Helper()
	item, contract := client.NewID(), s.m.Contract()
	contract.Goal = item
	contract.AllowedResources = []client.ResourceGrant{{Resource: "urn:repo:app", Operations: []string{"read", "write"}}}
	if change != nil {
		change(&contract)
	}
	s.m.Do(client.Command{Kind: "work.authorize", WorkItemID: item}, map[string]any{"title": "Text", "contract": contract})
	s.m.Offer(item, s.worker)
	page := s.Get(s.worker, "/v1/offers").Value(s.t)
	for _, o := range page.Member("items").Items() {
		if o.Member("workItemId").Str() == item {
			s.must(client.Command{Kind: "work.accept_offer", WorkItemID: item}, map[string]any{
				"offerId": o.Member("offerId").Str(), "ownershipLeaseSeconds": 86400,
			})
			return item
		}
	}
	s.t.Fatalf("no offer of %s: %s", item, page.Raw())
	return ""
}

// try posts a Command of the Worker.
func (s *stand) try(cmd client.Command, payload map[string]any) testkit.Answer {
	s.t.Helper()
	cmd.GroupID, cmd.SessionEpoch, cmd.MembershipEpoch = s.m.GroupID, s.k.Epoch, 1
	if cmd.WorkItemID == "" {
		cmd.WorkItemID = s.item
	}
	return s.Post(s.Sign(s.worker, cmd, payload))
}

func (s *stand) must(cmd client.Command, payload map[string]any) strictjson.Value {
	s.t.Helper()
	a := s.try(cmd, payload)
	if a.Status != 201 {
		s.t.Fatalf("%s: %d %s", cmd.Kind, a.Status, a.Body)
	}
	return a.Value(s.t)
}

// start starts the work and keeps the lease.
func (s *stand) start(seconds int) {
	s.t.Helper()
	s.must(client.Command{Kind: "work.start"}, map[string]any{"ownershipEpoch": s.epoch, "executionLeaseSeconds": seconds})
	s.readLease()
}

func (s *stand) readLease() {
	s.t.Helper()
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

// approval is a signed Approval of the owner.
func (s *stand) approval(who *client.Client, id, decision string, change func(*client.Approval)) client.Raw {
	s.t.Helper()
	revision, _ := s.Get(s.m.Owner, client.Path("v1", "missions", s.m.MissionID)).Value(s.t).Member("revision").Int()
	a := client.Approval{
		ApprovalID: id, Kind: "work_execution", Decision: decision, MissionID: s.m.MissionID, GroupID: s.m.GroupID,
		WorkItemID: s.item, MissionRevision: revision, ArtifactHashes: []string{}, AcceptancePolicyVersion: "1.0.0",
		Approver: who.Principal(), Conditions: []string{}, OccurredAt: client.Timestamp(time.Now()),
	}
	if change != nil {
		change(&a)
	}
	signed, err := who.Identity().SignApproval(a)
	if err != nil {
		s.t.Fatal(err)
	}
	return signed
}

// verdict posts a Command about the gate as somebody.
func (s *stand) verdict(who *client.Client, kind string, payload map[string]any) testkit.Answer {
	s.t.Helper()
	cmd := client.Command{Kind: kind, GroupID: s.m.GroupID, WorkItemID: s.item}
	if who.Principal().Type == client.Human {
		cmd.MembershipEpoch = 1
	}
	return s.Post(s.Sign(who, cmd, payload))
}

func (s *stand) grant(id string, more map[string]any) {
	s.t.Helper()
	payload := map[string]any{
		"approval": s.approval(s.m.Owner, id, "approved", nil), "ownershipEpoch": s.epoch,
		"operations": []string{"write"}, "resources": []string{"urn:repo:app"},
		"expiresAt": client.Timestamp(time.Now().Add(time.Hour)),
	}
	for name, v := range more {
		payload[name] = v
	}
	if a := s.verdict(s.m.Owner, "approval.grant_execution", payload); a.Status != 201 {
		s.t.Fatalf("grant: %d %s", a.Status, a.Body)
	}
}

// ask is the body of a request for a Capability Token.
func (s *stand) ask(more map[string]any) map[string]any {
	lease := s.lease
	if lease == "" {
		lease = "urn:test:lease:none"
	}
	body := map[string]any{
		"groupId": s.m.GroupID, "workItemId": s.item, "ownershipEpoch": s.epoch, "executionLeaseId": lease,
		"operations": []string{"write"}, "resources": []string{"urn:repo:app"},
	}
	for name, v := range more {
		if v == nil {
			delete(body, name)
			continue
		}
		body[name] = v
	}
	return body
}

func (s *stand) post(path, bearer string, body any) testkit.Answer {
	s.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.Do(testkit.Request{Method: "POST", URL: s.AuthzURL + path, Token: bearer, Body: b})
}

// request asks for a Capability Token in the Worker's session.
func (s *stand) request(more map[string]any) testkit.Answer {
	s.t.Helper()
	return s.post("/v1/capability-tokens", s.k.Token, s.ask(more))
}

// granted is a token that was given.
type granted struct{ Token, TokenID, ExpiresAt string }

func (s *stand) token(more map[string]any) granted {
	s.t.Helper()
	a := s.request(more)
	if a.Status != 200 {
		s.t.Fatalf("capability token: %d %s", a.Status, a.Body)
	}
	v := a.Value(s.t)
	return granted{v.Member("token").Str(), v.Member("tokenId").Str(), v.Member("expiresAt").Str()}
}

func (s *stand) expires(g granted) time.Time {
	s.t.Helper()
	at, err := time.Parse(time.RFC3339Nano, g.ExpiresAt)
	if err != nil {
		s.t.Fatal(err)
	}
	return at
}

// introspect asks as a service of the Organization.
func (s *stand) introspect(token string) strictjson.Value {
	s.t.Helper()
	a := s.post("/v1/introspect", s.Token(s.Registrar), map[string]any{"token": token})
	if a.Status != 200 {
		s.t.Fatalf("introspect: %d %s", a.Status, a.Body)
	}
	return a.Value(s.t)
}

func (s *stand) active(token string) bool {
	s.t.Helper()
	return s.introspect(token).Member("active").Bool()
}

func (s *stand) revocations() map[string]bool {
	s.t.Helper()
	a := s.Do(testkit.Request{Method: "GET", URL: s.AuthzURL + "/v1/revocations"})
	out := map[string]bool{}
	for _, r := range a.Value(s.t).Member("items").Items() {
		out[r.Member("tokenId").Str()] = true
	}
	return out
}

// decisions are the outcomes and codes of a category in the Policy Log, in order.
func (s *stand) decisions(subject string) []string {
	s.t.Helper()
	rows, err := s.Pool.Query(s.t.Context(), `SELECT outcome || coalesce(' ' || code, '') FROM policy_decisions
		WHERE category = 'token' AND ($1 = '' OR subject_id = $1) ORDER BY entry`, subject)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			s.t.Fatal(err)
		}
		out = append(out, line)
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
	return out
}
