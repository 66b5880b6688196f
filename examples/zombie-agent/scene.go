package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/missionweave/server/client"
)

// resource is what the WorkItem's contract lets the Worker act on.
const resource = "urn:example:mailbox"

// scene is a Mission in which one assistant executes one WorkItem.
type scene struct {
	out                 io.Writer
	policy, owner       *client.Client
	lead, agent         *client.Client
	coordinator, worker *client.Session
	missionID, groupID  string
	workItemID, leaseID string
}

// prepare puts the manifest in force for a new Mission and gives the assistant its
// work.
func prepare(ctx context.Context, stack *client.DevStack) (_ *scene, err error) {
	s := &scene{missionID: client.NewID(), groupID: client.NewID(), workItemID: client.NewID()}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for role, to := range map[string]**client.Client{"policy": &s.policy, "mission-owner": &s.owner} {
		identity, err := stack.Identity(role)
		if err != nil {
			return nil, err
		}
		if *to, err = stack.Connect(identity); err != nil {
			return nil, err
		}
	}
	if s.lead, err = stack.Hire(ctx, client.Hiring{Name: "lead", Capabilities: []string{"mail.assist@1.0.0"}}); err != nil {
		return nil, err
	}
	if s.agent, err = stack.Hire(ctx, client.Hiring{Name: "assistant", Capabilities: []string{"mail.assist@1.0.0"}}); err != nil {
		return nil, err
	}
	if err := s.mission(ctx); err != nil {
		return nil, err
	}
	if _, err := s.policy.InstallManifest(ctx, "zombie-agent", world, s.groupID); err != nil {
		return nil, err
	}
	if s.coordinator, err = s.lead.OpenSession(ctx); err != nil {
		return nil, err
	}
	if err := s.hireAssistant(ctx); err != nil {
		return nil, err
	}
	return s, s.newSession(ctx)
}

func (s *scene) mission(ctx context.Context) error {
	money, tokens := client.Money(1_000_000), int64(1000)
	_, err := s.owner.Post(ctx, client.Command{Kind: "mission.create", GroupID: s.groupID}, map[string]any{
		"missionId": s.missionID, "groupId": s.groupID, "coordinatorAgentId": s.lead.Principal().ID,
		"title": "Mail", "objective": "Look after the mail.",
		"definitionOfDone": []client.AcceptanceCriterion{{CriterionID: "done", Description: "It is done.", EvidenceRequired: []string{"human_review"}}},
		"budget":           client.Budget{Currency: "EUR", FinancialLimit: &money, ModelTokenLimit: &tokens},
		"deadline":         client.Timestamp(time.Now().Add(24 * time.Hour)),
		"approvalPolicy":   client.ApprovalPolicy{FinalHumanApproval: true, PolicyVersion: "1.0.0"},
		"permissions":      []client.ResourceGrant{{Resource: resource, Operations: []string{"write"}}},
	})
	return err
}

// direct posts a Command of the Coordinator.
func (s *scene) direct(ctx context.Context, kind, workItemID string, payload map[string]any) error {
	_, err := s.lead.Post(ctx, client.Command{
		Kind: kind, GroupID: s.groupID, WorkItemID: workItemID, SessionEpoch: s.coordinator.Epoch(), MembershipEpoch: 1, CoordinatorEpoch: 1,
	}, payload)
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return nil
}

func (s *scene) hireAssistant(ctx context.Context) error {
	money, tokens := client.Money(1000), int64(100)
	skill := []client.CapabilityRef{{ID: "mail.assist", Version: "1.0.0"}}
	if err := s.direct(ctx, "membership.change", "", map[string]any{
		"member": s.agent.Principal(), "role": "worker", "visibilityStartSequence": 1,
	}); err != nil {
		return err
	}
	if err := s.direct(ctx, "work.authorize", s.workItemID, map[string]any{"title": "Mail", "contract": client.WorkContract{
		ContractVersion: 1, Goal: "Read the mail and act on it.",
		RequiredDeliverables: []client.Deliverable{{DeliverableID: "report", Description: "A report.", MediaType: "text/plain", Schema: "urn:example:text"}},
		AcceptanceCriteria:   []client.AcceptanceCriterion{{CriterionID: "done", Description: "It is done.", EvidenceRequired: []string{"human_review"}}},
		InputArtifacts:       []string{}, DependencyWorkItemIDs: []string{}, RequiredCapabilities: skill,
		AllowedResources: []client.ResourceGrant{{Resource: resource, Operations: []string{"write"}}},
		Deadline:         client.Timestamp(time.Now().Add(12 * time.Hour)), RequestedUrgency: "normal", BusinessImpact: "None.",
		RetryPolicy:    client.RetryPolicy{MaxAttempts: 1, Backoff: "none", MaxDelay: "PT1M", RetryableFailures: []string{}},
		Budget:         client.Budget{Currency: "EUR", FinancialLimit: &money, ModelTokenLimit: &tokens},
		SideEffectRisk: "none", ExecutionApproval: "not_required",
	}}); err != nil {
		return err
	}
	return s.direct(ctx, "work.offer", s.workItemID, map[string]any{
		"candidateAgentIds": []string{s.agent.Principal().ID}, "offerExpiresInSeconds": 3600,
		"selectionBasis": client.SelectionBasis{
			RequiredCapabilities: skill, VerifiedMatches: skill, AuthorizationEligible: true,
			AvailabilityEstimate: client.Timestamp(time.Now()), ReliabilityEvidence: []string{}, PolicyRulesApplied: []string{"urn:example:rule"},
		},
	})
}

// newSession opens the assistant's next session: its Execution Lease ended with the
// one before, so it starts the work again.
func (s *scene) newSession(ctx context.Context) (err error) {
	if s.worker != nil {
		s.worker.Close()
	}
	if s.worker, err = s.agent.OpenSession(ctx); err != nil {
		return err
	}
	var offers struct {
		Items []struct {
			OfferID string `json:"offerId"`
		} `json:"items"`
	}
	if err := s.agent.Get(ctx, "/v1/offers", nil, &offers); err != nil {
		return err
	}
	for _, o := range offers.Items {
		if err := s.do(ctx, "work.accept_offer", map[string]any{"offerId": o.OfferID, "ownershipLeaseSeconds": 3600}); err != nil {
			return err
		}
	}
	if err := s.do(ctx, "work.start", map[string]any{"ownershipEpoch": 1, "executionLeaseSeconds": 900}); err != nil {
		return err
	}
	var leases struct {
		Items []struct {
			LeaseID   string `json:"leaseId"`
			LeaseType string `json:"leaseType"`
			State     string `json:"state"`
		} `json:"items"`
	}
	if err := s.agent.Get(ctx, client.Path("v1", "groups", s.groupID, "work-items", s.workItemID, "leases"), nil, &leases); err != nil {
		return err
	}
	for _, l := range leases.Items {
		if l.LeaseType == "execution" && l.State == "active" {
			s.leaseID = l.LeaseID
			return nil
		}
	}
	return errors.New("the work has no Execution Lease")
}

// do posts a Command of the assistant.
func (s *scene) do(ctx context.Context, kind string, payload map[string]any) error {
	_, err := s.agent.Post(ctx, client.Command{
		Kind: kind, GroupID: s.groupID, WorkItemID: s.workItemID, SessionEpoch: s.worker.Epoch(), MembershipEpoch: 1,
	}, payload)
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return nil
}

// token is a fresh Capability Token for the mailbox.
func (s *scene) token(ctx context.Context) (string, error) {
	var granted struct {
		Token string `json:"token"`
	}
	err := s.worker.PostAuthz(ctx, "/v1/capability-tokens", map[string]any{
		"groupId": s.groupID, "workItemId": s.workItemID, "ownershipEpoch": 1, "executionLeaseId": s.leaseID,
		"operations": []string{"write"}, "resources": []string{resource},
	}, &granted)
	return granted.Token, err
}

func (s *scene) close() {
	for _, session := range []*client.Session{s.coordinator, s.worker} {
		if session != nil {
			session.Close()
		}
	}
	for _, c := range []*client.Client{s.policy, s.owner, s.lead, s.agent} {
		if c != nil {
			c.Close()
		}
	}
}
