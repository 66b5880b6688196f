// Command coordinator leads one small Mission: it offers one WorkItem to a Worker,
// reads what is handed in, accepts it, and submits the Mission. It creates the
// Mission first and approves it at the end with the dev stack's MissionOwner,
// which a human does elsewhere. Copy it to start your own.
//
//	go run ./examples/coordinator --stack .data/dev.json --worker echo "Say hello."
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/missionweave/server/client"
)

func main() {
	devFile := flag.String("stack", ".data/dev.json", "dev.json of a running dev stack")
	worker := flag.String("worker", "echo", "name of the Agent to offer the work to")
	capability := flag.String("capability", "text.echo", "capability that the work needs")
	constraints := flag.String("constraints", "", "JSON object for the contract's constraints")
	shell := flag.Bool("shell", false, "allow shell.run on urn:example:shell")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	goal := cmp.Or(flag.Arg(0), "Say hello.")
	text, err := run(ctx, *devFile, *worker, contract(goal, *capability, *constraints, *shell))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(text)
}

func contract(goal, capability, constraints string, shell bool) client.WorkContract {
	c := client.WorkContract{
		ContractVersion: 1, Goal: goal,
		RequiredDeliverables: []client.Deliverable{{
			DeliverableID: "text", Description: "The text.", MediaType: "text/plain", Schema: "urn:example:text",
		}},
		AcceptanceCriteria: []client.AcceptanceCriterion{{
			CriterionID: "done", Description: "It is what the goal asks for.", EvidenceRequired: []string{"deterministic_test"},
		}},
		InputArtifacts: []string{}, DependencyWorkItemIDs: []string{},
		RequiredCapabilities: []client.CapabilityRef{{ID: capability, Version: "1.0.0"}},
		Deadline:             at(time.Hour), RequestedUrgency: "normal", BusinessImpact: "An example.",
		RetryPolicy: client.RetryPolicy{MaxAttempts: 1, Backoff: "none", MaxDelay: "PT1M", RetryableFailures: []string{}},
		Budget:      tokens(1000), SideEffectRisk: "none", ExecutionApproval: "not_required",
	}
	if constraints != "" {
		c.Constraints = client.Raw(constraints)
	}
	if shell {
		c.AllowedResources = []client.ResourceGrant{{Resource: "urn:example:shell", Operations: []string{"shell.run"}}}
	}
	return c
}

func run(ctx context.Context, devFile, worker string, work client.WorkContract) (string, error) {
	stack, err := client.ReadDevStack(devFile)
	if err != nil {
		return "", err
	}
	agents := filepath.Join(filepath.Dir(devFile), "agents")
	agent, err := stack.Hire(ctx, client.Hiring{Name: "coordinator", Capabilities: []string{"mission.coordinate@1.0.0"}, Dir: agents})
	if err != nil {
		return "", err
	}
	defer agent.Close()
	workerID, err := hired(agents, worker)
	if err != nil {
		return "", err
	}
	identity, err := stack.Identity("mission-owner")
	if err != nil {
		return "", err
	}
	owner, err := stack.Connect(identity)
	if err != nil {
		return "", err
	}
	defer owner.Close()
	missionID, groupID := client.NewID(), client.NewID()
	_, err = owner.Post(ctx, client.Command{Kind: "mission.create", GroupID: groupID}, map[string]any{
		"missionId": missionID, "groupId": groupID, "coordinatorAgentId": agent.Principal().ID,
		"title": "Example", "objective": work.Goal,
		"definitionOfDone": work.AcceptanceCriteria, "budget": tokens(10_000), "deadline": at(2 * time.Hour),
		"approvalPolicy": client.ApprovalPolicy{FinalHumanApproval: true, HighRiskExecutionApproval: true, PolicyVersion: "1.0.0"},
		"permissions":    []client.ResourceGrant{{Resource: "urn:example:*", Operations: []string{"shell.run"}}},
	})
	if err != nil {
		return "", fmt.Errorf("create the Mission: %w", err)
	}
	session, err := agent.OpenSession(ctx)
	if err != nil {
		return "", err
	}
	defer session.Close()
	lead, err := session.Join(ctx, groupID)
	if err != nil {
		return "", err
	}
	if err := lead.Until(ctx, "the Mission is active", func(b *client.Board) bool { return b.State == "active" }); err != nil {
		return "", err
	}
	hashes, err := coordinate(ctx, lead, workerID, work)
	if err != nil {
		return "", err
	}
	if err := approve(ctx, owner, lead); err != nil {
		return "", fmt.Errorf("approve: %w", err)
	}
	content, err := owner.GetArtifact(ctx, groupID, hashes[0])
	return string(content), err
}

// coordinate is what a Coordinator does: admit, authorize, offer, review, submit.
func coordinate(ctx context.Context, lead *client.Member, workerID string, work client.WorkContract) ([]string, error) {
	_, err := lead.Command(ctx, client.Command{Kind: "membership.change"}, map[string]any{
		"member": client.Actor{Type: client.Agent, ID: workerID}, "role": "worker", "visibilityStartSequence": 1,
	})
	if err != nil {
		return nil, fmt.Errorf("admit the Worker: %w", err)
	}
	id := client.NewID()
	_, err = lead.Command(ctx, client.Command{Kind: "work.authorize", WorkItemID: id}, map[string]any{"title": "Work", "contract": work})
	if err != nil {
		return nil, fmt.Errorf("authorize: %w", err)
	}
	_, err = lead.Command(ctx, client.Command{Kind: "work.offer", WorkItemID: id}, map[string]any{
		"candidateAgentIds": []string{workerID}, "offerExpiresInSeconds": 600,
		"selectionBasis": client.SelectionBasis{
			RequiredCapabilities: work.RequiredCapabilities, VerifiedMatches: work.RequiredCapabilities, AuthorizationEligible: true,
			AvailabilityEstimate: at(0), ReliabilityEvidence: []string{}, PolicyRulesApplied: []string{"example:named"},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("offer: %w", err)
	}
	if err := lead.Until(ctx, "the result is there", func(b *client.Board) bool {
		w := b.Items[id]
		return w != nil && (w.State == "submitted" || w.State == "failed" || w.State == "blocked")
	}); err != nil {
		return nil, err
	}
	item := lead.Items[id]
	if item.State != "submitted" {
		return nil, errors.New("the Worker did not hand anything in: " + item.State + " " + item.Reason)
	}
	me := lead.Session.Client()
	checked, err := me.Identity().SignEvidence(client.Evidence{
		EvidenceID: client.NewID(), MissionID: lead.MissionID, GroupID: lead.GroupID, WorkItemID: id, Type: "business_rule",
		Subject: client.EvidenceSubject{Type: "work_item", ID: id}, CriterionIDs: []string{"done"}, Method: "Read it.", Result: "passed",
		ArtifactHashes: item.Submission, GeneratedBy: lead.Me, CreatedAt: at(0),
	})
	if err != nil {
		return nil, err
	}
	_, err = lead.Command(ctx, client.Command{Kind: "work.accept_result", WorkItemID: id}, map[string]any{"evidence": []client.Raw{checked}})
	if err != nil {
		return nil, fmt.Errorf("accept the result: %w", err)
	}
	_, err = lead.Command(ctx, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": item.Submission})
	return item.Submission, err
}

// approve is the human's decision about exactly what was submitted.
func approve(ctx context.Context, owner *client.Client, lead *client.Member) error {
	if err := lead.Until(ctx, "the Mission is submitted", func(b *client.Board) bool { return b.Submitted.Revision > 0 }); err != nil {
		return err
	}
	approval, err := owner.Identity().SignApproval(client.Approval{
		ApprovalID: client.NewID(), Kind: "mission_final", Decision: "approved", MissionID: lead.MissionID, GroupID: lead.GroupID,
		MissionRevision: lead.Submitted.Revision, ArtifactHashes: lead.Submitted.Hashes, AcceptancePolicyVersion: "1.0.0",
		Approver: owner.Principal(), Comments: "Good.", Conditions: []string{}, OccurredAt: at(0),
	})
	if err != nil {
		return err
	}
	_, err = owner.Post(ctx, client.Command{Kind: "mission.approve", GroupID: lead.GroupID, MembershipEpoch: 1}, map[string]any{"approval": approval})
	return err
}

func at(d time.Duration) string { return client.Timestamp(time.Now().Add(d)) }

func tokens(n int64) client.Budget { return client.Budget{Currency: "EUR", ModelTokenLimit: &n} }

// hired finds the id of an Agent that was hired on this stack.
func hired(dir, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, name+".json")) //nolint:gosec // a name given on the command line
	if err != nil {
		return "", fmt.Errorf("start the Worker %q first: %w", name, err)
	}
	var stored struct {
		Principal client.Actor `json:"principal"`
	}
	err = json.Unmarshal(b, &stored)
	return stored.Principal.ID, err
}
