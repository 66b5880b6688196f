// Command coordinator leads one small Mission: it offers one WorkItem to a Worker,
// has what is handed in judged, by another Worker when one is named, accepts it,
// and submits the Mission. It creates the Mission first and approves it at the end
// with the dev stack's MissionOwner, which a human does elsewhere. Copy it to start
// your own.
//
//	go run ./examples/coordinator --stack .data/dev.json --worker echo "Say hello."
package main

import (
	"cmp"
	"context"
	"encoding/json"
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
	reviewer := flag.String("reviewer", "", "name of the Agent that judges the result (examples/workers/reviewer)")
	mention := flag.String("mention", "", "what the reviewer looks for in the result")
	capability := flag.String("capability", "text.echo", "capability that the work needs")
	constraints := flag.String("constraints", "", "JSON object for the contract's constraints")
	shell := flag.Bool("shell", false, "allow shell.run on urn:example:shell")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	goal := cmp.Or(flag.Arg(0), "Say hello.")
	team := team{worker: *worker, reviewer: *reviewer, mention: *mention}
	text, err := run(ctx, *devFile, team, contract(goal, *capability, *constraints, *shell))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(text)
}

// team is who does the work; Agents by name.
type team struct{ worker, reviewer, mention string }

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

func run(ctx context.Context, devFile string, team team, work client.WorkContract) (string, error) {
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
	if team.worker, err = hired(ctx, agents, team.worker); err != nil {
		return "", err
	}
	if team.reviewer != "" {
		if team.reviewer, err = hired(ctx, agents, team.reviewer); err != nil {
			return "", err
		}
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
	hashes, err := coordinate(ctx, lead, team, work)
	if err != nil {
		return "", err
	}
	if err := approve(ctx, owner, lead); err != nil {
		return "", fmt.Errorf("approve: %w", err)
	}
	content, err := owner.GetArtifact(ctx, groupID, hashes[0])
	return string(content), err
}

// coordinate is what a Coordinator does: have the work done, have it judged, accept
// it, and submit the Mission.
func coordinate(ctx context.Context, lead *client.Member, team team, work client.WorkContract) ([]string, error) {
	done, err := assign(ctx, lead, team.worker, "Work", work)
	if err != nil {
		return nil, err
	}
	checked, err := judge(ctx, lead, team, done)
	if err != nil {
		return nil, err
	}
	if err := accept(ctx, lead, done, checked); err != nil {
		return nil, err
	}
	_, err = lead.Command(ctx, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": done.Submission})
	return done.Submission, err
}

// assign admits a Worker, authorizes a WorkItem, offers it to the Worker and waits
// until it is handed in.
func assign(ctx context.Context, lead *client.Member, workerID, title string, work client.WorkContract) (*client.Work, error) {
	_, err := lead.Command(ctx, client.Command{Kind: "membership.change"}, map[string]any{
		"member": client.Actor{Type: client.Agent, ID: workerID}, "role": "worker", "visibilityStartSequence": 1,
	})
	if err != nil {
		return nil, fmt.Errorf("admit the Worker: %w", err)
	}
	id := client.NewID()
	_, err = lead.Command(ctx, client.Command{Kind: "work.authorize", WorkItemID: id}, map[string]any{"title": title, "contract": work})
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
		return nil, fmt.Errorf("the Worker did not hand anything in: %s: %s", item.State, item.Reason)
	}
	return item, nil
}

// judge returns signed Evidence about a result: the verdict of the reviewer, who is
// not the producer, or without one that of the Coordinator.
func judge(ctx context.Context, lead *client.Member, team team, done *client.Work) (client.Raw, error) {
	if team.reviewer == "" {
		for _, hash := range done.Submission {
			if _, err := lead.Session.Client().GetArtifact(ctx, lead.GroupID, hash); err != nil {
				return nil, err
			}
		}
		return sign(lead, done, "business_rule", "Read it.")
	}
	asked, err := json.Marshal(map[string]any{"review": map[string]any{
		"workItemId": done.ID, "criterionIds": client.CriteriaOf(&done.Contract), "artifactHashes": done.Submission, "mustContain": team.mention,
	}})
	if err != nil {
		return nil, err
	}
	work := contract("Judge the result.", "text.review", string(asked), false)
	work.RequiredDeliverables[0].MediaType = "application/json"
	review, err := assign(ctx, lead, team.reviewer, "Review", work)
	if err != nil {
		return nil, err
	}
	verdict, err := lead.Session.Client().GetArtifact(ctx, lead.GroupID, review.Submission[0])
	if err != nil {
		return nil, err
	}
	var said client.Evidence
	if err := json.Unmarshal(verdict, &said); err != nil {
		return nil, fmt.Errorf("the verdict: %w", err)
	}
	if said.GeneratedBy.ID != team.reviewer || said.WorkItemID != done.ID || said.Result != "passed" {
		return nil, fmt.Errorf("the reviewer does not accept it: %s: %s", said.Result, said.Method)
	}
	signed, err := sign(lead, review, "business_rule", "It is a verdict on the WorkItem that was asked about.")
	if err != nil {
		return nil, err
	}
	return verdict, accept(ctx, lead, review, signed)
}

func sign(lead *client.Member, item *client.Work, kind, method string) (client.Raw, error) {
	return lead.Session.Client().SignFinding(client.WorkRef{MissionID: lead.MissionID, GroupID: lead.GroupID, WorkItemID: item.ID}, client.Finding{
		Type: kind, Criteria: client.CriteriaOf(&item.Contract), Result: "passed", Method: method, Artifacts: item.Submission,
	})
}

func accept(ctx context.Context, lead *client.Member, item *client.Work, evidence client.Raw) error {
	_, err := lead.Command(ctx, client.Command{Kind: "work.accept_result", WorkItemID: item.ID}, map[string]any{"evidence": []client.Raw{evidence}})
	if err != nil {
		return fmt.Errorf("accept the result: %w", err)
	}
	return nil
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

// hired finds the id of an Agent that was hired on this stack, and waits a little
// for one that is just being started.
func hired(ctx context.Context, dir, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		b, err := os.ReadFile(filepath.Join(dir, name+".json")) //nolint:gosec // a name given on the command line
		var stored struct {
			Principal client.Actor `json:"principal"`
		}
		if err == nil {
			err = json.Unmarshal(b, &stored)
		}
		if err == nil {
			return stored.Principal.ID, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("start the Worker %q first: %w", name, err)
		case <-again.C:
		}
	}
}
