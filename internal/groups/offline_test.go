package groups

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/protocol"
)

// cutOff makes work:a one that wes executed for 100 s before the line broke,
// went on with for 50 s, and restarted in a new session at 400 s; the binding
// of what it buffered is known as offline.
func cutOff(s *site) {
	s.active("work:a", "")
	s.known["old"] = s.known["lease"]
	s.defined["binding"] = s.json(`{
		"agentId": "agent:wes", "groupId": "group:g", "workItemId": "work:a", "sessionEpoch": 1, "ownershipEpoch": 1,
		"executionLeaseId": "$old", "disconnectedAt": "now+100s", "bufferedAt": "now+150s", "graceDeadline": "now+250s",
		"executionLeaseExpiresAt": "now+300s", "resourceUsageDelta": {"modelTokens": 40}}`)
	s.wait(200)
	c := command{internal: true}
	c.Actor, c.Kind = service("identity"), protocol.CommandSessionOpen
	c.Payload = []byte(`{"agentId":"agent:wes"}`)
	if _, err := s.send(c); err != nil {
		s.t.Fatal(err)
	}
	s.wait(200)
	s.must("agent:wes work.start", `{"ownershipEpoch": 1}`, "work=work:a")
	s.keep("lease", "executionLease.leaseId")
	s.bind("")
}

// bind defines the envelope extension offline with edits to the binding.
func (s *site) bind(edits string) {
	s.defined["offline"] = s.json(`{"` + OfflineExtension + `": {"version": "0.1.0", "critical": true, "data": {"@": "binding"` + comma(edits) + `}}}`)
}

func TestOfflineCheckpointChargesBeforeItIsRecorded(t *testing.T) {
	s := newSite(t)
	cutOff(s)
	s.must("agent:wes work.checkpoint", workerCommands["work.checkpoint"], "work=work:a", "extensions=offline")
	if diff := cmp.Diff([]string{eventUsageRecorded, "work.checkpointed"}, s.logged(2)); diff != "" {
		t.Error(diff)
	}
	p := decodeStored(t, s.logs["group:g"][s.g().Head-2]).Payload.(*ResourceUsageRecorded)
	if p.ExecutionLeaseID != s.known["old"] || p.OfflineReconciliation.ExecutionSessionEpoch != 1 ||
		p.OfflineReconciliation.ReconciliationSessionEpoch != 2 {
		t.Errorf("%+v", p)
	}
	s.done()
}

func TestOfflineMessageInTheConversationOfTheWork(t *testing.T) {
	s := newSite(t)
	cutOff(s)
	post := `{"messageId": "message:1", "content": [{"type": "text", "text": "was away"}]}`
	s.refused("INVALID_COMMAND:binding_mismatch at P18", "agent:wes message.post", post, "extensions=offline",
		"conversation="+s.g().Group.MainConversationID)
	s.must("agent:wes message.post", post, "extensions=offline", "conversation="+s.item("work:a").ConversationID)
	if diff := cmp.Diff([]string{eventUsageRecorded, "message.posted"}, s.logged(2)); diff != "" {
		t.Error(diff)
	}
	// Nothing used, nothing charged.
	s.bind(`"resourceUsageDelta": {}`)
	s.must("agent:wes message.post", strings.Replace(post, "message:1", "message:2", 1), "extensions=offline",
		"conversation="+s.item("work:a").ConversationID)
	if s.logged(2)[0] == eventUsageRecorded {
		t.Error("an empty delta was charged")
	}
	s.done()
}

func TestOfflineBindingRefuses(t *testing.T) {
	for _, c := range []struct{ rule, edits, want string }{
		{"another Agent's", `"agentId": "agent:rita"`, "AUTH_FORBIDDEN:offline_binding at P17"},
		{"another Group's", `"groupId": "group:x"`, "AUTH_FORBIDDEN:offline_binding at P17"},
		{"another WorkItem's", `"workItemId": "work:b"`, "AUTH_FORBIDDEN:offline_binding at P17"},
		{"an unknown lease", `"executionLeaseId": "urn:lease:0"`, unknownRef},
		{"a lease of another epoch", `"ownershipEpoch": 2`, unknownRef},
		{"a lease of another session", `"sessionEpoch": 2`, wleExec},
		{"another expiry than the lease's", `"executionLeaseExpiresAt": "now"`, wleExec},
		{"disconnected before the lease", `"disconnectedAt": "now-401s"`, wleExec},
		{"disconnected after the lease", `"disconnectedAt": "now-100s", "bufferedAt": "now-90s"`, wleExec},
		{"buffered before the break", `"bufferedAt": "now-310s"`, wleExec},
		{"buffered after the grace", `"bufferedAt": "now-150s"`, wleExec},
		{"grace beyond the lease", `"graceDeadline": "now-99s"`, wleExec},
		{"buffered after the lease was closed", `"bufferedAt": "now-199s", "graceDeadline": "now-100s"`, wleExec},
		{"an external effect", `"resourceUsageDelta": {"externalSideEffects": 1}`, "INVALID_COMMAND:offline_side_effect at P23"},
		{"more than remains", `"resourceUsageDelta": {"modelTokens": 1001}`, budgetAtP24},
		{"another currency", `"resourceUsageDelta": {"financial": 1, "currency": "USD"}`, "INVALID_COMMAND:currency_mismatch at P23"},
		{"a malformed binding", `"resourceUsageDelta": 5`, "SCHEMA_VALIDATION_FAILED at P16"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.unchecked = true
			cutOff(s)
			s.unchecked = false
			s.bind(c.edits)
			s.refused(c.want, "agent:wes work.checkpoint", workerCommands["work.checkpoint"], "work=work:a", "extensions=offline")
		})
	}
	t.Run("longer than policy allows", func(t *testing.T) {
		s := newSite(t)
		cutOff(s)
		s.org.OfflineGrace = 149e9
		s.refused(wleExec, "agent:wes work.checkpoint", workerCommands["work.checkpoint"], "work=work:a", "extensions=offline")
	})
	t.Run("on another kind", func(t *testing.T) {
		s := newSite(t)
		cutOff(s)
		s.refused("INVALID_COMMAND:extension_kind at P16", "agent:wes work.block", workerCommands["work.block"], "work=work:a", "extensions=offline")
	})
	t.Run("under a changed owner", func(t *testing.T) {
		s := newSite(t)
		cutOff(s)
		s.wait(300)
		s.offer("work:a", "", "wes")
		s.must("agent:wes work.accept_offer", `{"offerId": "$offer0"}`, "work=work:a")
		s.refused(stale, "agent:wes message.post", `{"messageId": "message:1", "content": [{"type": "text", "text": "late"}]}`,
			"extensions=offline", "conversation="+s.item("work:a").ConversationID)
	})
}
