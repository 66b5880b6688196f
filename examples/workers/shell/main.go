// Command shell is a Worker that executes a real command. The Coordinator puts it
// into the contract's constraints:
//
//	{"run": {"command": ["sha256sum"], "stdin": "text"}}
//
// and allows the operation shell.run on urn:example:shell. Nothing is executed
// before the Authorization Service has given a Capability Token for it and the
// World Manifest in force has said ALLOW; afterwards an evidence record says what
// was executed. The command gets no environment and an empty folder of its own.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
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
	install := flag.Bool("install-manifest", false, "put manifest.yaml in force for the Organization first")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *devFile, *name, *install); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, devFile, name string, install bool) error {
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
	worker, err := client.NewWorker(client.WorkerOptions{Client: agent, Slots: 2, Do: shell})
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

func shell(ctx context.Context, job *client.Job) error {
	var asked struct {
		Run struct {
			Command []string `json:"command"`
			Stdin   string   `json:"stdin"`
		} `json:"run"`
	}
	if err := job.Constraints(&asked); err != nil || len(asked.Run.Command) == 0 {
		return job.Block(ctx, "The contract does not say what to run.", "A contract with constraints.run.command.")
	}
	token, err := job.Capability(ctx, client.CapabilityRequest{Operations: []string{operation}, Resources: []string{resource}})
	if err != nil {
		return err
	}
	parameters := map[string]any{"command": asked.Run.Command}
	decision, err := job.Act(ctx, token, client.Action{
		ID: client.NewID(), Type: "run_command", Parameters: parameters, Operation: operation, Resource: resource, Reason: job.Contract.Goal,
	})
	if err != nil {
		return err
	}
	if decision.Decision != "ALLOW" {
		return job.Fail(ctx, fmt.Sprintf("The World Manifest says %s (%s).", decision.Decision, decision.RuleID))
	}
	output, failed := execute(ctx, asked.Run.Command, asked.Run.Stdin)
	result := "success"
	if failed != nil {
		result = "failure"
	}
	recorded, err := job.Outcome(ctx, decision.ActionID, client.Outcome{
		ObservedParameters: parameters, Result: result, ResultDigest: client.Hash(output),
	})
	if err != nil {
		return err
	}
	if failed != nil {
		return job.Fail(ctx, fmt.Sprintf("%v; evidence record %s", failed, recorded.EvidenceRecordID))
	}
	hash, err := job.Publish(ctx, "text/plain", output)
	if err != nil {
		return err
	}
	return job.Submit(ctx, "Executed "+strings.Join(asked.Run.Command, " ")+"; evidence record "+recorded.EvidenceRecordID+".", []string{hash})
}

// execute runs a command for at most a minute and keeps at most 1 MiB of its
// output.
func execute(ctx context.Context, command []string, stdin string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "shell-worker-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // a World Manifest lists what may run
	cmd.Dir, cmd.Env, cmd.Stdin = dir, []string{"PATH=/usr/bin:/bin"}, strings.NewReader(stdin)
	output := &limited{}
	cmd.Stdout, cmd.Stderr = output, output
	err = cmd.Run()
	return output.Bytes(), err
}

// limited is a buffer that refuses to grow past 1 MiB.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	if l.Len()+len(b) > 1<<20 {
		return 0, errors.New("the output is longer than 1 MiB")
	}
	return l.Buffer.Write(b)
}
