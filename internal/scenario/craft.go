package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/client/schedule"
)

// task is what a Worker reads in a contract's constraints: how to go about it.
type task struct {
	// Steps are milestones; after each the Worker is at a safe point.
	Steps []string `json:"steps,omitempty"`
	// Gate holds the Worker back at its first step until the play opens it, or the
	// slot is wanted: what takes long in earnest.
	Gate string `json:"gate,omitempty"`
	// Content is handed in as text/plain.
	Content string `json:"content,omitempty"`
	// Ask is raised before the offer is accepted.
	Ask string `json:"ask,omitempty"`
	// Propose is the goal of sub-work to propose.
	Propose string `json:"propose,omitempty"`
	// Block is what is missing on the first attempt.
	Block string `json:"block,omitempty"`
	// Spend charges model tokens.
	Spend int64 `json:"spend,omitempty"`
	// Deploy is an action on production.
	Deploy *deployTask `json:"deploy,omitempty"`
	// Review judges what another Worker handed in.
	Review *reviewTask `json:"review,omitempty"`
}

type reviewTask struct {
	WorkItemID     string   `json:"workItemId"`
	CriterionIDs   []string `json:"criterionIds"`
	ArtifactHashes []string `json:"artifactHashes"`
	// Reject finds a fault.
	Reject bool `json:"reject,omitempty"`
}

// deployTask is an external action: it needs a Capability Token, a decision of
// the World Manifest, and leaves a record.
type deployTask struct {
	Operation string `json:"operation"`
	Release   string `json:"release"`
	// Order and Mail are the records of two inputs that ask for it: one through a
	// trusted channel, one that anybody could have sent.
	Order string `json:"order,omitempty"`
	Mail  string `json:"mail,omitempty"`
}

func (t task) encode() client.Raw {
	b, err := json.Marshal(t)
	if err != nil {
		panic(err) // strings and numbers
	}
	return b
}

// gates hold Workers back until the play goes on.
type gates struct {
	mu   sync.Mutex
	open map[string]chan struct{}
}

func newGates() *gates { return &gates{open: map[string]chan struct{}{}} }

func (g *gates) of(name string) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, ok := g.open[name]
	if !ok {
		c = make(chan struct{})
		g.open[name] = c
	}
	return c
}

// liftAll opens every gate that there is.
func (g *gates) liftAll() {
	g.mu.Lock()
	names := slices.Collect(maps.Keys(g.open))
	g.mu.Unlock()
	for _, name := range names {
		g.lift(name)
	}
}

// lift opens a gate for good.
func (g *gates) lift(name string) {
	c := g.of(name)
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-c:
	default:
		close(c)
	}
}

// employee is a Worker of the cast with the client it works through, and what the
// play may know of it: its slots, its queues, and what its tools were given.
type employee struct {
	name  string
	c     *client.Client
	slots int
	stage *stage

	mu     sync.Mutex
	worker *client.Worker
	cancel context.CancelFunc
	ended  chan error
	// contexts are what each Job could see: WorkItem id -> everything it read.
	contexts map[string][]string
	tokens   map[string]*client.CapabilityToken // WorkItem id -> its token
	keys     map[string]string                  // WorkItem id -> idempotency key of its deployment
	deeds    map[string]*deed                   // WorkItem id -> what the World Manifest said
}

func (st *stage) employ(c *client.Client, name string, slots int) *employee {
	e := &employee{
		name: name, c: c, slots: slots, stage: st,
		contexts: map[string][]string{}, tokens: map[string]*client.CapabilityToken{}, keys: map[string]string{}, deeds: map[string]*deed{},
	}
	e.start()
	return e
}

// start begins to work. All that is known comes from the server.
func (e *employee) start() {
	w, err := client.NewWorker(client.WorkerOptions{
		Client: e.c, Slots: e.slots, Do: e.do, Consider: e.consider, Discover: 100 * time.Millisecond, LeaseSeconds: 60,
		Policy: schedule.Policy{AgeStep: time.Hour}, // nothing ages within a play; that is tested where time is an argument
	})
	if err != nil {
		panic(err) // wrong options
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	e.mu.Lock()
	e.worker, e.cancel, e.ended = w, cancel, ended
	e.mu.Unlock()
	go func() { ended <- w.Run(ctx) }()
}

// stop ends the Worker's process, as it were: nothing but its key is left.
func (e *employee) stop() {
	e.mu.Lock()
	cancel, ended := e.cancel, e.ended
	e.cancel = nil
	e.mu.Unlock()
	if cancel == nil {
		return
	}
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		e.stage.line.note("%s ended: %v", e.name, err)
	}
}

func (e *employee) present() *client.Worker {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.worker
}

func (e *employee) saw(job *client.Job, what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.contexts[job.WorkItemID] = append(e.contexts[job.WorkItemID], what)
}

// seen is what the Jobs of a WorkItem could read.
func (e *employee) seen(id string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.contexts[id])
}

func (e *employee) consider(_ context.Context, p client.Prospect) client.Answer {
	var t task
	if err := client.Decode(p.Contract.Constraints, &t); err != nil {
		return client.Answer{Decline: "other"}
	}
	if t.Ask != "" {
		return client.Answer{Ask: t.Ask}
	}
	return client.Answer{Accept: true}
}

func (e *employee) do(ctx context.Context, job *client.Job) error {
	var t task
	if err := job.Constraints(&t); err != nil {
		return err
	}
	e.saw(job, job.GroupID+" "+job.Contract.Goal)
	if saved, err := job.Saved(ctx); err != nil {
		return err
	} else if saved != nil {
		e.saw(job, "saved: "+string(saved))
	}
	if t.Block != "" && job.Attempt == 1 {
		return job.Block(ctx, t.Block, "Send what is missing.")
	}
	if t.Propose != "" && !job.Done("proposed") {
		c := job.Contract
		c.Goal, c.Constraints = t.Propose, task{Content: t.Propose}.encode()
		c.Budget, c.DependencyWorkItemIDs = budget(0, 100), []string{}
		if _, err := job.Propose(ctx, c, "Came up while working on "+job.Title+"."); err != nil {
			return err
		}
		if err := job.Reached(ctx, "proposed", nil); err != nil {
			return err
		}
	}
	if err := e.steps(ctx, job, t); err != nil {
		return err
	}
	if t.Spend > 0 && !job.Done("charged") {
		err := job.Charge(ctx, client.Usage{ModelTokens: t.Spend})
		if client.CodeOf(err) == "BUDGET_EXCEEDED" {
			return job.Pause(ctx, "stopped for want of budget", []byte("as far as the budget went"))
		}
		if err != nil {
			return err
		}
		if err := job.Pause(ctx, "charged", nil); err != nil {
			return err
		}
	}
	return e.deliver(ctx, job, t)
}

// steps goes from milestone to milestone; each leaves a state to go on from.
func (e *employee) steps(ctx context.Context, job *client.Job, t task) error {
	for i, step := range t.Steps {
		if job.Done(step) {
			continue
		}
		if t.Gate != "" && i == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err() //nolint:wrapcheck // the Job's
			case <-job.Yield:
			case <-e.stage.gates.of(t.Gate):
			}
		}
		if err := job.Reached(ctx, step, fmt.Appendf(nil, "%s after %s", job.WorkItemID, step)); err != nil {
			return err //nolint:wrapcheck // ErrPaused among them
		}
	}
	return nil
}

// deliver hands in.
func (e *employee) deliver(ctx context.Context, job *client.Job, t task) error {
	inputs, err := job.Inputs(ctx)
	if err != nil {
		return err //nolint:wrapcheck // the server's words
	}
	var sources []string
	for _, in := range inputs {
		e.saw(job, "input: "+string(in.Content))
		sources = append(sources, in.Hash)
	}
	content, mediaType := []byte(t.Content+"\n"), "text/plain"
	if t.Content == "" {
		content = []byte("Done: " + job.Contract.Goal + "\n")
	}
	switch {
	case t.Review != nil:
		if content, err = e.judge(ctx, job, t.Review); err != nil {
			return err
		}
		mediaType, sources = "application/json", t.Review.ArtifactHashes
	case t.Deploy != nil:
		if content, err = e.deploy(ctx, job, *t.Deploy); err != nil {
			return err
		}
	}
	hash, err := job.Publish(ctx, mediaType, content, sources...)
	if err != nil {
		return err //nolint:wrapcheck // the server's words
	}
	return job.Submit(ctx, "Compared what was made with the goal.", []string{hash})
}

// judge reads what another Worker handed in and signs a verdict about it.
func (e *employee) judge(ctx context.Context, job *client.Job, r *reviewTask) ([]byte, error) {
	for _, hash := range r.ArtifactHashes {
		content, err := job.Read(ctx, hash)
		if err != nil {
			return nil, err //nolint:wrapcheck // the server's words
		}
		e.saw(job, "reviewed: "+string(content))
	}
	verdict := "passed"
	if r.Reject {
		verdict = "failed"
	}
	return job.Assess(r.WorkItemID, r.CriterionIDs, verdict, "Read it against the criterion.", r.ArtifactHashes...)
}

// errNoToken is a tool that was called without authority.
var errNoToken = errors.New("the tool was given no Capability Token")

// deed is what became of an external action.
type deed struct {
	byMail, byOrder *client.Decision
	recorded        *client.Recorded
	executed        int
}

// deploy is an external action. What the mail asks for is proposed too, as a model
// that was talked into it would; it is executed only where the decision is ALLOW.
func (e *employee) deploy(ctx context.Context, job *client.Job, t deployTask) ([]byte, error) {
	token, err := job.Capability(ctx, client.CapabilityRequest{
		Operations: []string{t.Operation}, Resources: []string{production}, TTLSeconds: 60,
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // the server's words
	}
	if token.Bearer() == "" {
		return nil, errNoToken
	}
	d := new(deed)
	e.mu.Lock()
	e.tokens[job.WorkItemID], e.keys[job.WorkItemID], e.deeds[job.WorkItemID] = token, job.Key(t.Operation), d
	e.mu.Unlock()
	parameters := map[string]any{"release": t.Release}
	propose := func(record string) (*client.Decision, error) {
		return job.Act(ctx, token, client.Action{
			ID: client.NewID(), Type: "deploy", Parameters: parameters, Provenance: []string{record},
			Operation: t.Operation, Resource: production, Reason: job.Contract.Goal,
		})
	}
	if d.byMail, err = propose(t.Mail); err != nil {
		return nil, err
	}
	if d.byOrder, err = propose(t.Order); err != nil {
		return nil, err
	}
	if d.byOrder.Decision != "ALLOW" {
		return nil, fmt.Errorf("the World Manifest says %s (%s)", d.byOrder.Decision, d.byOrder.RuleID)
	}
	d.executed++ // here the tool would be called with token.Bearer() and the idempotency key
	output := fmt.Appendf(nil, "%s of %s on %s under %s\n", t.Operation, t.Release, production, token.TokenID)
	d.recorded, err = job.Outcome(ctx, d.byOrder.ActionID, client.Outcome{
		ObservedParameters: parameters, Result: "success", ResultDigest: client.Hash(output),
	})
	return output, err
}
