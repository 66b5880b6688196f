package authority_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/authority/authoritytest"
	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
	"github.com/missionweave/server/internal/verify"
)

func TestMain(m *testing.M) {
	code := m.Run()
	_ = devstack.StopShared(context.Background())
	os.Exit(code)
}

// mission is a rig with one running Mission.
func mission(t *testing.T, options authoritytest.Options) (*authoritytest.Rig, *authoritytest.Mission) {
	t.Helper()
	r := authoritytest.Start(t, options)
	owner := registrytest.Human("mission-owner")
	return r, r.NewMission(owner, r.AddAgent("coordinator"))
}

// verified holds the database against its logs.
func verified(t *testing.T, r *authoritytest.Rig) {
	t.Helper()
	report, err := verify.Database(t.Context(), r.Org.Pool, verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var words strings.Builder
	if _, err := report.WriteTo(&words); err != nil || !report.OK() {
		t.Errorf("verify: %v\n%s", err, words.String())
	}
}

func wantCode(t *testing.T, what string, err *protocol.Error, code protocol.Code) {
	t.Helper()
	if err == nil || err.Code != code {
		t.Errorf("%s: got %v, want %s", what, err, code)
	}
}

func head(t *testing.T, r *authoritytest.Rig, group string) int64 {
	t.Helper()
	n, err := r.Store.Head(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func count(t *testing.T, r *authoritytest.Rig, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := r.Store.Reader().QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAcceptedCommandAnswersAReceiptAndReplaysItByteForByte(t *testing.T) {
	r, m := mission(t, authoritytest.Options{})
	body := r.Sign(m.Coordinator, m.By(m.Coordinator, m.Post("hello")))
	first, err := r.Submit(body)
	if err != nil {
		t.Fatal(err, err.Details)
	}
	if first.Replayed || len(first.Events) != 1 {
		t.Errorf("replayed %v, %d Events", first.Replayed, len(first.Events))
	}
	if _, failure := trust.VerifyBytes(protocol.KindEvent, first.Events[0], r.Directory.Evidence(t.Context())); failure != nil {
		t.Errorf("Event does not verify: %v", failure)
	}
	again, err := r.Submit(body)
	if err != nil || !again.Replayed || !bytes.Equal(again.Receipt, first.Receipt) {
		t.Errorf("replay %v %v\n%s\n%s", again, err, again.Receipt, first.Receipt)
	}
	if head(t, r, m.GroupID) != 2 {
		t.Errorf("head %d", head(t, r, m.GroupID))
	}
	// A replay is answered whatever the session is by then.
	r.OpenSession(m.Coordinator)
	if again, err = r.Submit(body); err != nil || !bytes.Equal(again.Receipt, first.Receipt) {
		t.Errorf("replay after takeover: %v", err)
	}
	ws, err := r.Service.Submit(t.Context(), authority.Submission{Body: body, ConnAgent: m.Coordinator.Principal.ID})
	if err != nil || len(ws.Events) != 1 || !bytes.Equal(ws.Events[0], first.Events[0]) {
		t.Errorf("replay over a connection: %v", err)
	}
}

func TestRefusalsOfThePipeline(t *testing.T) {
	r, m := mission(t, authoritytest.Options{})
	accepted := r.Sign(m.Coordinator, m.By(m.Coordinator, m.Post("accepted")))
	if _, err := r.Submit(accepted); err != nil {
		t.Fatal(err)
	}
	stranger := r.AddAgent("stranger")
	veteran := registrytest.Human("veteran")
	if _, _, err := r.Org.Service.RegisterKey(t.Context(), registry.Author{Principal: registrytest.Service(registry.RoleRegistry).Principal},
		veteran.Binding(registrytest.At(-30*time.Minute))); err != nil {
		t.Fatal(err)
	}
	before := head(t, r, m.GroupID)
	post := func(change func(*protocol.Command)) []byte {
		c := m.By(m.Coordinator, m.Post("x"))
		change(&c)
		return r.Sign(m.Coordinator, c)
	}
	var action string
	if doc, err := trust.VerifyBytes(protocol.KindCommand, accepted, r.Directory.Evidence(t.Context())); err == nil {
		action = doc.Value.Member("actionId").Str()
	}
	old := func(payload protocol.Raw) []byte {
		c := m.By(veteran, m.Post("x"))
		c.IssuedAt, c.Payload = registrytest.At(-301*time.Second), payload
		return r.Sign(veteran, c)
	}
	tampered := func(b []byte) []byte { return bytes.Replace(b, []byte(`"text":"x"`), []byte(`"text":"y"`), 1) }
	for _, tc := range []struct {
		name string
		body []byte
		conn string
		code protocol.Code
		step string
	}{
		{"no JSON", []byte("{"), "", protocol.CodeProtocolViolation, "P1"},
		{"duplicate member", []byte(`{"kind":1,"kind":2}`), "", protocol.CodeProtocolViolation, "P1"},
		{"not the schema", []byte(`{}`), "", protocol.CodeSchemaValidationFailed, "P2"},
		{"conversation missing", post(func(c *protocol.Command) { c.ConversationID = "" }), "", protocol.CodeSchemaValidationFailed, "P2"},
		{"tampered", tampered(post(func(*protocol.Command) {})), "", protocol.CodeAuthInvalidSignature, "P6"},
		{"unknown key", unknownKey(r, m), "", protocol.CodeAuthInvalidSignature, "P4"},
		{"number out of range", bytes.Replace(post(func(*protocol.Command) {}), []byte(`"type":"text"`), []byte(`"n":1e400,"type":"text"`), 1), "", protocol.CodeProtocolViolation, "P5"},
		{"another Agent's connection", post(func(*protocol.Command) {}), stranger.Principal.ID, protocol.CodeAuthForbidden, "P7"},
		{"actionId of an accepted Command", post(func(c *protocol.Command) { c.ActionID = action }), "", protocol.CodeActionIDCollision, "P8"},
		{"too old", old(protocol.Raw(`{"content":[{"text":"x","type":"text"}],"messageId":"urn:test:message"}`)), "", protocol.CodeAuthInvalidSignature, "P9"},
		{"too new", post(func(c *protocol.Command) { c.IssuedAt = registrytest.At(45 * time.Second) }), "", protocol.CodeAuthInvalidSignature, "P9"},
		{"too old before the payload", old(protocol.Raw(`{}`)), "", protocol.CodeAuthInvalidSignature, "P9"},
		{"payload", post(func(c *protocol.Command) { c.Payload = protocol.Raw(`{}`) }), "", protocol.CodeSchemaValidationFailed, "P10"},
		{"session", post(func(c *protocol.Command) { c.SessionEpoch = 7 }), "", protocol.CodeAuthStaleSession, "P13"},
		{"no such Group", post(func(c *protocol.Command) { c.GroupID = registrytest.Mint() }), "", protocol.CodeGroupNotFound, "P14"},
		{"never a member", r.Sign(stranger, m.By(stranger, m.Post("x"))), "", protocol.CodeGroupNotFound, "P14"},
		{"membership epoch", post(func(c *protocol.Command) { c.MembershipEpoch = 2 }), "", protocol.CodeMembershipStale, "P14"},
		{"coordinator epoch", post(func(c *protocol.Command) { c.CoordinatorEpoch = 2 }), "", protocol.CodeAuthStaleCoordinator, "P15"},
		{"unknown Conversation", post(func(c *protocol.Command) { c.ConversationID = registrytest.Mint() }), "", protocol.CodeInvalidCommand, "P18"},
		{"revision", post(func(c *protocol.Command) { n := int64(9); c.ExpectedRevision = &n }), "", protocol.CodeRevisionConflict, "P21"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			audits := count(t, r, "SELECT count(*) FROM audit_records WHERE step = $1", tc.step)
			_, err := r.Service.Submit(t.Context(), authority.Submission{Body: tc.body, Peer: "peer", ConnAgent: tc.conn})
			wantCode(t, tc.name, err, tc.code)
			if err != nil && err.Step != tc.step {
				t.Errorf("refused at %s, want %s (%v)", err.Step, tc.step, err)
			}
			if got := count(t, r, "SELECT count(*) FROM audit_records WHERE step = $1", tc.step); got != audits+1 {
				t.Errorf("%d audit records at %s, want one more than %d", got, tc.step, audits)
			}
		})
	}
	if now := head(t, r, m.GroupID); now != before {
		t.Errorf("head moved from %d to %d", before, now)
	}
	if n := count(t, r, "SELECT count(*) FROM receipts WHERE kind = ''"); n != 0 {
		t.Errorf("%d probes left", n)
	}
	verified(t, r)
}

// unknownKey signs with a key that nobody registered.
func unknownKey(r *authoritytest.Rig, m *authoritytest.Mission) []byte {
	s := registrytest.Signer(protocol.ActorAgent, "coordinator", 2)
	return r.Sign(s, m.By(s, m.Post("x")))
}

// A refused Command leaves its Admission Record, and a later acceptance of the
// same bytes takes it over.
func TestRefusedThenAcceptedKeepsOneAdmissionRecord(t *testing.T) {
	r, m := mission(t, authoritytest.Options{})
	worker := r.AddAgent("worker")
	body := r.Sign(worker, m.By(worker, m.Post("early")))
	_, err := r.Submit(body)
	wantCode(t, "before joining", err, protocol.CodeGroupNotFound)
	var record string
	if err := r.Store.Reader().QueryRow(t.Context(), "SELECT record_id FROM admissions WHERE document_kind = 'command'").Scan(&record); err != nil {
		t.Fatal(err)
	}
	m.Join(worker, "worker")
	res, err := r.Submit(body)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(res.Receipt), record) {
		t.Errorf("receipt %s does not name record %s", res.Receipt, record)
	}
	if n := count(t, r, "SELECT count(*) FROM receipts WHERE admission_id = $1", record); n != 1 {
		t.Errorf("%d receipts with the record", n)
	}
	if n := count(t, r, "SELECT count(*) FROM admissions WHERE document_kind = 'command'"); n != 1 {
		t.Errorf("%d records", n)
	}
	verified(t, r)
}

func TestSessionTakeoverFencesAndRevokes(t *testing.T) {
	r, m := mission(t, authoritytest.Options{})
	worker := r.AddAgent("worker")
	m.Join(worker, "worker")
	item := m.Authorize()
	offers := m.OfferTo(item, worker)
	m.Must(worker, m.Accept(item, offers[worker.Principal.ID]))
	m.Must(worker, m.Start(item, 1, 300))
	old := r.Sign(worker, m.By(worker, m.Post("old session")))
	if epoch := r.OpenSession(worker); epoch != 2 {
		t.Errorf("epoch %d", epoch)
	}
	_, err := r.Submit(old)
	wantCode(t, "old session", err, protocol.CodeAuthStaleSession)
	g, lerr := r.Store.LoadGroup(t.Context(), m.GroupID)
	if lerr != nil {
		t.Fatal(lerr)
	}
	if w := g.State.WorkItems[item]; w.State != protocol.WorkQueued || w.Execution != nil {
		t.Errorf("WorkItem is %s", w.State)
	}
	if n := count(t, r, "SELECT count(*) FROM events WHERE kind = 'ext.missionweaveprotocol.core.work_execution_lease_revoked'"); n != 1 {
		t.Errorf("%d revocations", n)
	}
	m.Must(worker, m.Start(item, 1, 300))
	posted := protocol.Command{
		Kind:    protocol.CommandSessionOpen,
		Payload: authoritytest.Payload(t, map[string]any{"agentId": worker.Principal.ID}),
	}
	_, err = r.Send(registrytest.Service("identity"), posted)
	wantCode(t, "session_open from outside", err, protocol.CodeAuthForbidden)
	verified(t, r)
}

func TestReceiptShape(t *testing.T) {
	_, m := mission(t, authoritytest.Options{})
	res := m.Must(m.Coordinator, m.Post("shape"))
	for _, member := range []string{
		`"protocolVersion":"0.1"`, `"actionId":"urn:uuid:`, `"signingHash":"sha256:`, `"groupId":"` + m.GroupID + `"`,
		`"events":[{"eventId":"urn:uuid:`, `"kind":"message.posted","sequence":2}]`, `"acceptedAt":"`, `"admissionRecordId":"urn:uuid:`,
	} {
		if !strings.Contains(string(res.Receipt), member) {
			t.Errorf("receipt %s lacks %s", res.Receipt, member)
		}
	}
	if !lexical.IsUTCZ(lexical.FormatMicros(time.Now())) {
		t.Error("times are not UTC")
	}
}

func TestTimersAreRecordedOnce(t *testing.T) {
	r, m := mission(t, authoritytest.Options{})
	worker := r.AddAgent("worker")
	m.Join(worker, "worker")
	item := m.Authorize()
	offers := m.OfferTo(item, worker)
	m.Must(worker, m.Accept(item, offers[worker.Principal.ID]))
	m.Must(worker, m.Start(item, 1, 1))
	other := r.AddReplica(authoritytest.Options{})
	expired := func() int {
		return count(t, r, "SELECT count(*) FROM events WHERE kind = 'ext.missionweave.authority.lease_expired'")
	}
	deadline := time.Now().Add(20 * time.Second)
	for expired() == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the lease was never recorded as expired")
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := other.Service.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		if _, err := r.Service.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		<-done
	}
	if _, err := r.Service.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if n := expired(); n != 1 {
		t.Errorf("%d expiries of one lease", n)
	}
	_, err := m.Send(worker, protocol.Command{Kind: "work.checkpoint", WorkItemID: item, Payload: authoritytest.Payload(t, map[string]any{
		"ownershipEpoch": 1, "executionLeaseId": registrytest.Mint(), "progress": map[string]any{
			"currentPhase": "one", "completedMilestones": []any{}, "nextCheckpoint": registrytest.At(time.Hour), "blockers": []any{},
			"updatedCompletionEstimate": registrytest.At(time.Hour), "evidenceIds": []any{},
		},
	})})
	wantCode(t, "after the expiry", err, protocol.CodeWorkLeaseExpired)
	verified(t, r)
}
