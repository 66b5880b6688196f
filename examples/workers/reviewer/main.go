// Command reviewer is a Worker that judges what another Worker handed in. The
// Coordinator says in the contract's constraints what to review:
//
//	{"review": {"workItemId": "…", "criterionIds": ["…"], "artifactHashes": ["sha256:…"], "mustContain": "…"}}
//
// What it hands in is its signed verdict on that WorkItem, ready to be embedded
// in work.accept_result. It does not know who produced what it judges.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/missionweave/server/client"
)

func main() {
	devFile := flag.String("stack", ".data/dev.json", "dev.json of a running dev stack")
	name := flag.String("name", "reviewer", "name of the Agent")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *devFile, *name); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, devFile, name string) error {
	stack, err := client.ReadDevStack(devFile)
	if err != nil {
		return err
	}
	agent, err := stack.Hire(ctx, client.Hiring{
		Name: name, Capabilities: []string{"text.review@1.0.0"}, Dir: filepath.Join(filepath.Dir(devFile), "agents"),
	})
	if err != nil {
		return err
	}
	defer agent.Close()
	worker, err := client.NewWorker(client.WorkerOptions{Client: agent, Slots: 2, Do: review})
	if err != nil {
		return err
	}
	fmt.Println("working as", agent.Principal().ID)
	return worker.Run(ctx)
}

func review(ctx context.Context, job *client.Job) error {
	var asked struct {
		Review struct {
			WorkItemID     string   `json:"workItemId"`
			CriterionIDs   []string `json:"criterionIds"`
			ArtifactHashes []string `json:"artifactHashes"`
			MustContain    string   `json:"mustContain"`
		} `json:"review"`
	}
	if err := job.Constraints(&asked); err != nil {
		return job.Block(ctx, "The contract does not say what to review: "+err.Error(), "A contract with constraints.review.")
	}
	verdict, found := "passed", 0
	for _, hash := range asked.Review.ArtifactHashes {
		content, err := job.Read(ctx, hash) // checked against its hash
		if err != nil {
			return err
		}
		if bytes.Contains(content, []byte(asked.Review.MustContain)) {
			found++
		}
		if err := job.Reached(ctx, "read "+hash, nil); err != nil {
			return err
		}
	}
	if found == 0 {
		verdict = "failed"
	}
	signed, err := job.Assess(asked.Review.WorkItemID, asked.Review.CriterionIDs, verdict,
		fmt.Sprintf("Read %d Artifacts; %d contain %q.", len(asked.Review.ArtifactHashes), found, asked.Review.MustContain), asked.Review.ArtifactHashes...)
	if err != nil {
		return err
	}
	hash, err := job.Publish(ctx, "application/json", signed, asked.Review.ArtifactHashes...)
	if err != nil {
		return err
	}
	return job.Submit(ctx, "Read every Artifact and looked for the text; the verdict is signed and bound to the WorkItem.", []string{hash})
}
