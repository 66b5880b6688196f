// Command shell is a Worker that executes a real command. The Coordinator puts it
// into the contract's constraints:
//
//	{"run": {"command": ["sha256sum"], "stdin": "text"}}
//
// and allows the operation shell.run on urn:example:shell. Nothing is executed
// before the Authorization Service has given a Capability Token for it and the
// World Manifest in force has said ALLOW to exactly this program, these arguments,
// this standard input, environment and folder; afterwards an evidence record says
// what was executed.
//
// A command is executed at most once. The Action's id is the same for every
// attempt under one ownership, and a journal in the folder of -work says how far
// an earlier attempt came: what may have begun is never begun again, its WorkItem
// fails instead and the Coordinator decides (journal.go).
package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/missionweave/server/client"
)

//go:embed manifest.yaml
var manifest string

const (
	resource  = "urn:example:shell"
	operation = "shell.run"
)

func main() {
	devFile := flag.String("stack", ".data/dev.json", "dev.json of a running dev stack")
	name := flag.String("name", "shell", "name of the Agent")
	work := flag.String("work", "", "folder of the journal, by default shell-work beside dev.json")
	limit := flag.Duration("timeout", time.Minute, "how long a command may run")
	install := flag.Bool("install-manifest", false, "put manifest.yaml in force for the Organization first")
	flag.Parse()
	if *work == "" {
		*work = filepath.Join(filepath.Dir(*devFile), "shell-work")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *devFile, *name, *work, *limit, *install); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, devFile, name, work string, limit time.Duration, install bool) error {
	work, err := filepath.Abs(work)
	if err != nil {
		return err
	}
	stack, err := client.ReadDevStack(devFile)
	if err != nil {
		return err
	}
	if install {
		if err := installManifest(ctx, stack); err != nil {
			return err
		}
	}
	agent, err := stack.Hire(ctx, client.Hiring{
		Name: name, Capabilities: []string{"shell.run@1.0.0"}, Dir: filepath.Join(filepath.Dir(devFile), "agents"),
	})
	if err != nil {
		return err
	}
	defer agent.Close()
	s := &shell{work: work, limit: limit}
	worker, err := client.NewWorker(client.WorkerOptions{Client: agent, Slots: 2, Do: s.do})
	if err != nil {
		return err
	}
	fmt.Println("working as", agent.Principal().ID)
	return worker.Run(ctx)
}

// installManifest is the work of the Organization's policy service.
func installManifest(ctx context.Context, stack *client.DevStack) error {
	identity, err := stack.Identity("policy")
	if err != nil {
		return err
	}
	policy, err := stack.Connect(identity)
	if err != nil {
		return err
	}
	defer policy.Close()
	version, err := policy.InstallManifest(ctx, "shell", manifest, "")
	if err == nil {
		fmt.Println("World Manifest", version, "is in force")
	}
	return err
}

type shell struct {
	work  string // folder of the journals
	limit time.Duration
}

func (s *shell) do(ctx context.Context, job *client.Job) error {
	var asked struct {
		Run struct {
			Command []string `json:"command"`
			Stdin   string   `json:"stdin"`
		} `json:"run"`
	}
	if err := job.Constraints(&asked); err != nil {
		return job.Block(ctx, "The contract does not say what to run: "+err.Error(), "A contract with constraints.run.command.")
	}
	book := journal{filepath.Join(s.work, job.Key("run"))}
	call, err := prepare(asked.Run.Command, asked.Run.Stdin, book.folder())
	if err != nil {
		return job.Block(ctx, "This cannot be run: "+err.Error(), "A contract with another constraints.run.")
	}
	actionID := job.ActionID("run")
	if known, err := job.Proposed(ctx, actionID); err != nil {
		return err
	} else if known != nil && !book.has(proposed) {
		return job.Fail(ctx, "The command was decided on before, and the journal of that attempt is not here: it may have run and is not run again.")
	}
	if err := book.mark(proposed); err != nil {
		return err
	}
	token, err := job.Capability(ctx, client.CapabilityRequest{Operations: []string{operation}, Resources: []string{resource}})
	if err != nil {
		return err
	}
	decision, err := job.Act(ctx, token, client.Action{
		ID: actionID, Type: "run_command", Parameters: call.parameters(), Operation: operation, Resource: resource, Reason: job.Contract.Goal,
	})
	if err != nil {
		return err
	}
	if decision.Decision != "ALLOW" {
		return job.Fail(ctx, fmt.Sprintf("Not executed: the World Manifest says %s (%s).", decision.Decision, decision.RuleID))
	}
	result, err := book.once(func() result { return call.execute(ctx, s.limit) })
	if err != nil {
		return err
	}
	outcome := client.Outcome{Result: "success"}
	if result.Failure != "" {
		outcome.Result = "failure"
	}
	if result.Observed != nil { // nil: nobody knows what ran, and the record says so
		outcome.ObservedParameters, outcome.ResultDigest = result.Observed, client.Hash(result.Output)
	}
	recorded, err := job.Outcome(ctx, actionID, outcome)
	if err != nil {
		return err
	}
	if result.Failure != "" {
		return job.Fail(ctx, result.Failure+"; evidence record "+recorded.EvidenceRecordID+".")
	}
	hash, err := job.Publish(ctx, "text/plain", result.Output)
	if err != nil {
		return err
	}
	return job.Submit(ctx, "Executed "+strings.Join(call.Argv, " ")+"; evidence record "+recorded.EvidenceRecordID+".", []string{hash})
}
