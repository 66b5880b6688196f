package testkit

import (
	"time"

	"github.com/missionweave/server/client"
)

// Mission is a Mission with its MissionOwner and a Coordinator that is logged
// in.
type Mission struct {
	MissionID, GroupID string
	// Conversation is the Group's main Conversation.
	Conversation string
	Owner        *client.Client
	Coordinator  *client.Client
	// Lead is the Coordinator's connection.
	Lead *Socket
	// Head is the Group's head as far as the Mission's own methods moved it.
	Head int64

	stack *Stack
}

// NewMission creates a Mission of the Owner with a new Coordinator.
func (s *Stack) NewMission() *Mission {
	s.t.Helper()
	return s.NewMissionWith(func(map[string]any) {})
}

// NewMissionWith is NewMission with a changed payload of mission.create.
func (s *Stack) NewMissionWith(change func(payload map[string]any)) *Mission {
	s.t.Helper()
	m := &Mission{stack: s, Owner: s.Owner, Coordinator: s.Agent("coordinator"), MissionID: client.NewID(), GroupID: client.NewID()}
	payload := m.Creation()
	change(payload)
	answer := s.Post(s.Sign(m.Owner, client.Command{Kind: "mission.create", GroupID: m.GroupID}, payload))
	if answer.Status != 201 {
		s.t.Fatalf("mission.create: %d %s", answer.Status, answer.Body)
	}
	group := s.Get(m.Owner, client.Path("v1", "groups", m.GroupID))
	m.Conversation = group.Value(s.t).Member("mainConversationId").Str()
	m.Lead = s.Login(m.Coordinator)
	m.Head = 1
	return m
}

// Creation is the payload of mission.create.
func (m *Mission) Creation() map[string]any {
	money := client.Money(100_000_000)
	tokens := int64(1_000_000)
	return map[string]any{
		"missionId": m.MissionID, "groupId": m.GroupID, "coordinatorAgentId": m.Coordinator.Principal().ID,
		"title": "Test", "objective": "Show that it works.",
		"definitionOfDone": []client.AcceptanceCriterion{{
			CriterionID: "works", Description: "It works.", EvidenceRequired: []string{"human_review"},
		}},
		"budget":   client.Budget{Currency: "EUR", FinancialLimit: &money, ModelTokenLimit: &tokens},
		"deadline": client.Timestamp(time.Now().Add(24 * time.Hour)),
		"approvalPolicy": client.ApprovalPolicy{
			FinalHumanApproval: true, HighRiskExecutionApproval: true, PolicyVersion: "1.0.0",
		},
	}
}

// Sign signs a Command of the Coordinator.
func (m *Mission) Sign(cmd client.Command, payload any) []byte {
	m.stack.t.Helper()
	cmd.GroupID, cmd.SessionEpoch = m.GroupID, m.Lead.Epoch
	cmd.MembershipEpoch, cmd.CoordinatorEpoch = 1, 1
	return m.stack.Sign(m.Coordinator, cmd, payload)
}

// Do posts a Command of the Coordinator over REST.
func (m *Mission) Do(cmd client.Command, payload any) Answer {
	m.stack.t.Helper()
	answer := m.stack.Post(m.Sign(cmd, payload))
	if answer.Status != 201 {
		m.stack.t.Fatalf("%s: %d %s", cmd.Kind, answer.Status, answer.Body)
	}
	m.Head += int64(answer.Value(m.stack.t).Member("events").Len())
	return answer
}

// Admit makes a Principal a member; visibility starts at a sequence, 0 for all.
func (m *Mission) Admit(who *client.Client, role string, from int64) {
	m.stack.t.Helper()
	payload := map[string]any{"member": who.Principal(), "role": role, "visibilityStartSequence": max(from, 1)}
	m.Do(client.Command{Kind: "membership.change"}, payload)
}

// Expel ends a Membership.
func (m *Mission) Expel(who *client.Client) {
	m.stack.t.Helper()
	m.Do(client.Command{Kind: "membership.end"}, map[string]any{"member": who.Principal(), "reason": "test"})
}

// Message is the payload of message.post.
func Message(text string) map[string]any {
	return map[string]any{
		"messageId": client.NewID(), "content": []client.ContentPart{{Type: "text", Text: text}},
	}
}

// Say posts a Message of the Coordinator into the main Conversation, and returns
// the messageId.
func (m *Mission) Say(text string) string {
	m.stack.t.Helper()
	payload := Message(text)
	m.Do(client.Command{Kind: "message.post", ConversationID: m.Conversation}, payload)
	return payload["messageId"].(string)
}

// Contract is a Work Contract that an Agent of the kit can fulfil.
func (m *Mission) Contract() client.WorkContract {
	money, tokens := client.Money(1_000_000), int64(1000)
	capability := []client.CapabilityRef{{ID: "text.write", Version: "1.0.0"}}
	return client.WorkContract{
		ContractVersion: 1, Goal: "Write something.",
		RequiredDeliverables: []client.Deliverable{{
			DeliverableID: "text", Description: "The text.", MediaType: "text/plain", Schema: "urn:test:text",
		}},
		AcceptanceCriteria: []client.AcceptanceCriterion{{
			CriterionID: "written", Description: "It is written.", EvidenceRequired: []string{"human_review"},
		}},
		InputArtifacts: []string{}, DependencyWorkItemIDs: []string{}, RequiredCapabilities: capability,
		Deadline: client.Timestamp(time.Now().Add(12 * time.Hour)), RequestedUrgency: "normal", BusinessImpact: "None.",
		RetryPolicy:    client.RetryPolicy{MaxAttempts: 1, Backoff: "none", MaxDelay: "PT1M", RetryableFailures: []string{}},
		Budget:         client.Budget{Currency: "EUR", FinancialLimit: &money, ModelTokenLimit: &tokens},
		SideEffectRisk: "none", ExecutionApproval: "not_required",
	}
}

// Authorize makes a WorkItem and returns its id.
func (m *Mission) Authorize() (workItemID string) {
	m.stack.t.Helper()
	workItemID = client.NewID()
	m.Do(client.Command{Kind: "work.authorize", WorkItemID: workItemID}, map[string]any{
		"title": "Text", "contract": m.Contract(),
	})
	return workItemID
}

// Offer offers a WorkItem to Agents.
func (m *Mission) Offer(workItemID string, to ...*client.Client) {
	m.stack.t.Helper()
	var ids []string
	for _, agent := range to {
		ids = append(ids, agent.Principal().ID)
	}
	capability := []client.CapabilityRef{{ID: "text.write", Version: "1.0.0"}}
	m.Do(client.Command{Kind: "work.offer", WorkItemID: workItemID}, map[string]any{
		"candidateAgentIds": ids, "offerExpiresInSeconds": 3600,
		"selectionBasis": client.SelectionBasis{
			RequiredCapabilities: capability, VerifiedMatches: capability, AuthorizationEligible: true,
			AvailabilityEstimate: client.Timestamp(time.Now()), ReliabilityEvidence: []string{},
			PolicyRulesApplied: []string{"urn:test:rule"},
		},
	})
}

// Attach is a Mission that was created in another way, a child for example. Its
// Coordinator logs in.
func (s *Stack) Attach(missionID, groupID string, owner, coordinator *client.Client) *Mission {
	s.t.Helper()
	return &Mission{
		MissionID: missionID, GroupID: groupID, Owner: owner, Coordinator: coordinator, Lead: s.Login(coordinator), stack: s,
	}
}
