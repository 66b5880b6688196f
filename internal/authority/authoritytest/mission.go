package authoritytest

import (
	"time"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

// Mission is a Mission with its Principals, for tests that need one that runs.
type Mission struct {
	r            *Rig
	ID           string
	GroupID      string
	Conversation string
	Owner        trust.Signer
	Coordinator  trust.Signer

	epochs map[protocol.Actor]int64
}

// NewMission creates a Mission of an owner with a Coordinator.
func (r *Rig) NewMission(owner, coordinator trust.Signer) *Mission {
	r.T.Helper()
	m := &Mission{
		r: r, ID: registrytest.Mint(), GroupID: registrytest.Mint(), Owner: owner, Coordinator: coordinator,
		epochs: map[protocol.Actor]int64{owner.Principal: 1, coordinator.Principal: 1},
	}
	r.Must(owner, m.Creation(r))
	g, err := r.Store.LoadGroup(r.T.Context(), m.GroupID)
	if err != nil {
		r.T.Fatal(err)
	}
	m.Conversation = g.State.Group.MainConversationID
	return m
}

// Creation is the Command that creates the Mission.
func (m *Mission) Creation(r *Rig) protocol.Command {
	return protocol.Command{
		Kind: "mission.create", GroupID: m.GroupID,
		Payload: Payload(r.T, map[string]any{
			"missionId": m.ID, "groupId": m.GroupID, "coordinatorAgentId": m.Coordinator.Principal.ID,
			"objective":        "Write the release notes",
			"definitionOfDone": []any{criterion()},
			"budget":           Budget(1_000_000),
			"deadline":         registrytest.At(24 * time.Hour),
			"approvalPolicy":   map[string]any{"finalHumanApproval": true, "highRiskExecutionApproval": true, "policyVersion": "1.0.0"},
			"permissions":      []any{map[string]any{"resource": "urn:test:resource:*", "operations": []any{"file.read"}}},
		}),
	}
}

func criterion() map[string]any {
	return map[string]any{"criterionId": "complete", "description": "The notes are complete", "evidenceRequired": []any{"human_review"}}
}

// Budget has n in every dimension but money.
func Budget(n int64) map[string]any {
	return map[string]any{
		"modelTokenLimit": n, "toolCallLimit": n, "computeSecondsLimit": n, "wallClockSecondsLimit": n, "externalSideEffectLimit": n,
	}
}

// Contract is a Work Contract of the Mission.
func (m *Mission) Contract() map[string]any {
	return map[string]any{
		"contractVersion": 1, "goal": "Write a section " + registrytest.Mint(),
		"requiredDeliverables": []any{map[string]any{
			"deliverableId": "section", "description": "A section", "mediaType": "text/markdown", "schema": "urn:test:schema:section",
		}},
		"acceptanceCriteria": []any{criterion()}, "inputArtifacts": []any{}, "dependencyWorkItemIds": []any{},
		"allowedResources":     []any{},
		"requiredCapabilities": []any{map[string]any{"id": "text.write", "version": "1.0.0"}},
		"deadline":             registrytest.At(12 * time.Hour), "requestedUrgency": "normal", "businessImpact": "low",
		"retryPolicy": map[string]any{"maxAttempts": 1, "backoff": "none", "maxDelay": "PT0S", "retryableFailures": []any{}},
		"budget":      Budget(1000), "sideEffectRisk": "none", "executionApproval": "not_required",
	}
}

// By completes a Command of a member: Group and Membership Epoch, and the
// Coordinator Epoch of the Coordinator.
func (m *Mission) By(s trust.Signer, c protocol.Command) protocol.Command {
	c.GroupID = m.GroupID
	if c.MembershipEpoch == 0 && s.Principal.Type != protocol.ActorService {
		c.MembershipEpoch = max(1, m.epochs[s.Principal])
	}
	if s.Principal == m.Coordinator.Principal && c.CoordinatorEpoch == 0 {
		c.CoordinatorEpoch = 1
	}
	return c
}

// Must sends a Command of a member that has to be accepted.
func (m *Mission) Must(s trust.Signer, c protocol.Command) *authority.Result {
	m.r.T.Helper()
	return m.r.Must(s, m.By(s, c))
}

// Send sends a Command of a member.
func (m *Mission) Send(s trust.Signer, c protocol.Command) (*authority.Result, *protocol.Error) {
	m.r.T.Helper()
	return m.r.Send(s, m.By(s, c))
}

// Join makes a Principal a member.
func (m *Mission) Join(s trust.Signer, role string) {
	m.r.T.Helper()
	m.Must(m.Coordinator, protocol.Command{Kind: "membership.change", Payload: Payload(m.r.T, map[string]any{
		"member": s.Principal, "role": role,
	})})
	m.epochs[s.Principal]++
}

// Post is a message.post into the Group Conversation.
func (m *Mission) Post(text string) protocol.Command {
	return protocol.Command{Kind: "message.post", ConversationID: m.Conversation, Payload: Payload(m.r.T, map[string]any{
		"messageId": registrytest.Mint(), "content": []any{map[string]any{"type": "text", "text": text}},
	})}
}

// Authorize makes a WorkItem and returns its id.
func (m *Mission) Authorize() string {
	m.r.T.Helper()
	id := registrytest.Mint()
	m.Must(m.Coordinator, protocol.Command{Kind: "work.authorize", WorkItemID: id, Payload: Payload(m.r.T, map[string]any{
		"contract": m.Contract(),
	})})
	return id
}

// Offer offers a WorkItem to Agents.
func (m *Mission) Offer(workItemID string, agents ...trust.Signer) protocol.Command {
	ids := make([]any, len(agents))
	for i, a := range agents {
		ids[i] = a.Principal.ID
	}
	capability := []any{map[string]any{"id": "text.write", "version": "1.0.0"}}
	return protocol.Command{Kind: "work.offer", WorkItemID: workItemID, Payload: Payload(m.r.T, map[string]any{
		"candidateAgentIds": ids,
		"selectionBasis": map[string]any{
			"requiredCapabilities": capability, "verifiedMatches": capability, "authorizationEligible": true,
			"availabilityEstimate": registrytest.At(0), "expectedCost": 0, "reliabilityEvidence": []any{}, "policyRulesApplied": []any{"test:any"},
		},
	})}
}

// OfferTo offers a WorkItem and returns the offer ids by Agent id.
func (m *Mission) OfferTo(workItemID string, agents ...trust.Signer) map[string]string {
	m.r.T.Helper()
	m.Must(m.Coordinator, m.Offer(workItemID, agents...))
	g, err := m.r.Store.LoadGroup(m.r.T.Context(), m.GroupID)
	if err != nil {
		m.r.T.Fatal(err)
	}
	out := map[string]string{}
	for _, o := range g.State.WorkItems[workItemID].Offers {
		if o.Status == "pending" {
			out[o.AgentID] = o.OfferID
		}
	}
	return out
}

// Accept is a work.accept_offer.
func (m *Mission) Accept(workItemID, offerID string) protocol.Command {
	return protocol.Command{Kind: "work.accept_offer", WorkItemID: workItemID, Payload: Payload(m.r.T, map[string]any{"offerId": offerID})}
}

// Start is a work.start.
func (m *Mission) Start(workItemID string, epoch, leaseSeconds int64) protocol.Command {
	return protocol.Command{Kind: "work.start", WorkItemID: workItemID, Payload: Payload(m.r.T, map[string]any{
		"ownershipEpoch": epoch, "executionLeaseSeconds": leaseSeconds,
	})}
}
