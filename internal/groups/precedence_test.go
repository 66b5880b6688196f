package groups

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/missionweave/server/internal/protocol"
)

// stage is a Group in which every rule can be broken: a Mission with one
// WorkItem that wes executes, and knobs to break things with.
type stage struct {
	*lab
	lease string
}

func newStage(t *testing.T) *stage {
	s := newScript(t)
	s.play("include base.inc\n" + `
send agent:cora work.authorize group:g work=work:a
{"contract": "@contract"}

send agent:cora work.offer group:g work=work:a
{"candidateAgentIds": ["agent:wes"], "selectionBasis": "@basis"}

let offer createdOfferIds.0

send agent:wes work.accept_offer group:g work=work:a
{"offerId": "$offer"}

send agent:wes work.start group:g work=work:a
{"ownershipEpoch": 1}

let lease executionLease.leaseId
`)
	return &stage{lab: s.lab, lease: s.known["lease"]}
}

// checkpoint is a Command that is right; breakers make it wrong.
func (s *stage) checkpoint() (command, map[string]any) {
	c := command{}
	c.Actor, c.Kind, c.GroupID, c.WorkItemID = agentActor("agent:wes"), "work.checkpoint", "group:g", "work:a"
	return c, map[string]any{
		"ownershipEpoch": 1, "executionLeaseId": s.lease,
		"progress": map[string]any{
			"currentPhase": "p", "completedMilestones": []string{}, "nextCheckpoint": "n", "blockers": []string{},
			"updatedCompletionEstimate": "2026-07-15T09:00:00Z", "evidenceIds": []string{},
		},
	}
}

// breaker breaks one rule of a checkpoint.
type breaker struct {
	code  protocol.Code
	apply func(s *stage, c *command, payload map[string]any)
}

// breakers are in the order of the pipeline; each on its own refuses with its
// code.
var breakers = []breaker{
	{protocol.CodeSchemaValidationFailed, func(_ *stage, _ *command, p map[string]any) { p["unknown"] = 1 }},
	{protocol.CodeAuthStaleSession, func(_ *stage, c *command, _ map[string]any) { c.SessionEpoch = 9 }},
	{protocol.CodeMembershipStale, func(_ *stage, c *command, _ map[string]any) { c.MembershipEpoch = 9 }},
	{protocol.CodeAuthStaleCoordinator, func(_ *stage, c *command, _ map[string]any) { c.CoordinatorEpoch = 9 }},
	{protocol.CodeUnknownCriticalExtension, func(_ *stage, c *command, _ map[string]any) {
		c.Extensions = []byte(`{"urn:example:x":{"version":"1.0.0","critical":true,"data":{}}}`)
	}},
	{protocol.CodeAuthForbidden, func(s *stage, _ *command, _ map[string]any) {
		m := *s.group["group:g"].Memberships[agentActor("agent:wes")]
		m.State, m.ProvisionalExpiresAt = membershipStateProvisional, "2026-07-16T00:00:00Z"
		s.group["group:g"].Memberships[m.Member] = &m
	}},
	{protocol.CodeInvalidCommand, func(_ *stage, c *command, _ map[string]any) { c.CausedByEventID = "urn:uuid:none" }},
	{protocol.CodeWorkStaleOwnership, func(_ *stage, _ *command, p map[string]any) { p["ownershipEpoch"] = 2 }},
	{protocol.CodeWorkLeaseExpired, func(_ *stage, _ *command, p map[string]any) { p["executionLeaseId"] = "lease:none" }},
	{protocol.CodeRevisionConflict, func(_ *stage, c *command, _ map[string]any) {
		n := int64(99)
		c.ExpectedRevision = &n
	}},
	{protocol.CodeInvalidStateTransition, func(s *stage, _ *command, _ map[string]any) {
		s.group["group:g"].Mission.State = protocol.MissionAwaitingApproval
	}},
}

// TestFirstFailingStepDecidesTheCode breaks every pair of rules at once: the
// earlier one always answers (COMMANDS.md 2.2, 10.3).
func TestFirstFailingStepDecidesTheCode(t *testing.T) {
	for i, first := range breakers {
		for _, second := range append([]breaker{{first.code, func(*stage, *command, map[string]any) {}}}, breakers[i+1:]...) {
			t.Run(string(first.code)+" before "+string(second.code), func(t *testing.T) {
				s := newStage(t)
				c, payload := s.checkpoint()
				second.apply(s, &c, payload)
				first.apply(s, &c, payload)
				refuses(t, s.lab, c, payload, first.code, "")
			})
		}
	}
}

// refuses sends a Command that must be refused.
func refuses(t *testing.T, l *lab, c command, payload map[string]any, code protocol.Code, reason string) {
	t.Helper()
	raw, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	c.Payload = raw
	_, err = l.send(c)
	var refusal *protocol.Error
	if !errors.As(err, &refusal) {
		t.Fatalf("accepted, want %s", code)
	}
	if refusal.Code != code || reason != "" && refusal.Reason != reason {
		t.Errorf("refused with %v, want %s:%s", refusal, code, reason)
	}
}

// TestFence covers P13 to P15 by the sentence each rule has in COMMANDS.md.
func TestFence(t *testing.T) {
	type setup func(s *stage, c *command)
	for _, tc := range []struct {
		rule   string
		set    setup
		code   protocol.Code
		reason string
	}{
		{"P13: an Agent that never opened a session must authenticate", func(s *stage, c *command) {
			s.agent["agent:wes"].CurrentSessionEpoch = 0
		}, protocol.CodeAuthRequired, "no_session"},
		{"P13: a lower Session Epoch is fenced", func(s *stage, c *command) {
			s.agent["agent:wes"].CurrentSessionEpoch, c.SessionEpoch = 5, 4
		}, protocol.CodeAuthStaleSession, ""},
		{"P13: a future Session Epoch is no better", func(s *stage, c *command) {
			c.SessionEpoch = 2
		}, protocol.CodeAuthStaleSession, ""},
		{"P13: a session ends at its expiry, half open", func(s *stage, c *command) {
			s.agent["agent:wes"].SessionExpiresAt = s.now
		}, protocol.CodeAuthRequired, "session_expired"},
		{"P13: a revoked card ends authority", func(s *stage, c *command) {
			s.agent["agent:wes"].Card.Status = "revoked"
		}, protocol.CodeAuthForbidden, "card_revoked"},
		{"P13: a card past its validUntil ends authority", func(s *stage, c *command) {
			s.agent["agent:wes"].Card.ValidUntil = s.now.Format(time.RFC3339)
		}, protocol.CodeAuthForbidden, "card_expired"},
		{"P14: an absent Group does not exist", func(s *stage, c *command) {
			c.GroupID, c.MembershipEpoch = "group:none", 1
		}, protocol.CodeGroupNotFound, ""},
		{"P14: a Group one never belonged to does not exist either", func(s *stage, c *command) {
			c.Actor, c.MembershipEpoch = agentActor("agent:new"), 1
		}, protocol.CodeGroupNotFound, ""},
		{"P14: an old Membership Epoch is stale", func(s *stage, c *command) {
			m := *s.group["group:g"].Memberships[agentActor("agent:wes")]
			m.MembershipEpoch = 3
			s.group["group:g"].Memberships[m.Member] = &m
			c.MembershipEpoch = 2
		}, protocol.CodeMembershipStale, ""},
		{"P14: an ended Membership is required again", func(s *stage, c *command) {
			m := *s.group["group:g"].Memberships[agentActor("agent:wes")]
			m.State = membershipStateEnded
			s.group["group:g"].Memberships[m.Member] = &m
		}, protocol.CodeMembershipRequired, ""},
		{"P14: a lapsed provisional Membership counts as ended", func(s *stage, c *command) {
			m := *s.group["group:g"].Memberships[agentActor("agent:wes")]
			m.State, m.ProvisionalExpiresAt = membershipStateProvisional, s.now.Format(time.RFC3339)
			s.group["group:g"].Memberships[m.Member] = &m
		}, protocol.CodeMembershipRequired, ""},
		{"P15: any Agent that names a Coordinator Epoch names the current one", func(s *stage, c *command) {
			c.CoordinatorEpoch = 2
		}, protocol.CodeAuthStaleCoordinator, ""},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			s := newStage(t)
			c, payload := s.checkpoint()
			tc.set(s, &c)
			refuses(t, s.lab, c, payload, tc.code, tc.reason)
		})
	}
}

// TestDeprecatedCardStillWorks: only revoked and expired cards end authority.
func TestDeprecatedCardStillWorks(t *testing.T) {
	s := newStage(t)
	s.agent["agent:wes"].Card.Status = "deprecated"
	c, payload := s.checkpoint()
	raw, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	c.Payload = raw
	if _, err := s.send(c); err != nil {
		t.Fatalf("refused: %v", err)
	}
}

// TestEveryKindIsImplemented: nothing of the catalogue answers not_implemented.
func TestEveryKindIsImplemented(t *testing.T) {
	for kind := range coreKinds {
		if _, ok := KindOf(kind); !ok {
			t.Errorf("%s is missing", kind)
		}
	}
	for _, kind := range []string{
		"ext.missionweaveprotocol.core.work_dependency_add",
		"ext.missionweaveprotocol.core.work_execution_lease_renew",
		"ext.missionweaveprotocol.core.resource_usage_record",
		"ext.missionweaveprotocol.core.group_archive",
		protocol.CommandAgentCardRegister, protocol.CommandSessionOpen,
		"ext.missionweave.mission.extend_deadline", "ext.missionweave.budget.increase",
		"ext.missionweave.work.offer_decline", "ext.missionweave.work.ownership_lease_renew",
		"ext.missionweave.approval.request_execution", "ext.missionweave.approval.deny_execution",
		"ext.missionweave.approval.revoke_execution", "ext.missionweave.approval.request_action",
		"ext.missionweave.approval.decide_action", "ext.missionweave.approval.consume_action",
	} {
		if _, ok := KindOf(kind); !ok {
			t.Errorf("%s is missing", kind)
		}
	}
}

// TestUnverifiedDocumentsNeverCount: Decide fails closed when its caller passes
// a payload whose embedded documents were not verified.
func TestUnverifiedDocumentsNeverCount(t *testing.T) {
	s := newStage(t)
	for name, docs := range map[string][]Document{
		"none":       nil,
		"wrong kind": {{Kind: protocol.KindEvidence, SigningHash: hashOf(nil)}},
		"no hash":    {{Kind: protocol.KindApproval}},
	} {
		cmd := &Command{Payload: &missionVerdict{Approval: &Signed[protocol.Approval]{}}, Docs: docs}
		cmd.Envelope.Kind, cmd.Envelope.Actor = "mission.approve", humanActor("human:olga")
		_, err := Decide(s.world(), cmd)
		if !errors.Is(err, protocol.CodeInternalError) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
