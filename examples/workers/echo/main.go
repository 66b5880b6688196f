// Command echo is the smallest Worker: it hands in the goal of its Work Contract
// as a text. Copy it to start your own.
//
//	go run ./examples/workers/echo --stack .data/dev.json
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/missionweave/server/client"
)

func main() {
	devFile := flag.String("stack", ".data/dev.json", "dev.json of a running dev stack")
	name := flag.String("name", "echo", "name of the Agent")
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
		Name: name, Capabilities: []string{"text.echo@1.0.0"}, Dir: filepath.Join(filepath.Dir(devFile), "agents"),
	})
	if err != nil {
		return err
	}
	defer agent.Close()
	worker, err := client.NewWorker(client.WorkerOptions{Client: agent, Slots: 2, Do: echo})
	if err != nil {
		return err
	}
	fmt.Println("working as", agent.Principal().ID)
	return worker.Run(ctx)
}

// echo is the Worker's own part: it gets a Job and hands something in.
func echo(ctx context.Context, job *client.Job) error {
	text := strings.TrimSpace(job.Contract.Goal)
	if text == "" {
		return job.Fail(ctx, "There is nothing to echo.")
	}
	hash, err := job.Publish(ctx, "text/plain", []byte(text+"\n"))
	if err != nil {
		return err
	}
	return job.Submit(ctx, "Checked that there is a text, and that it is the goal.", []string{hash})
}
