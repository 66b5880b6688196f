package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/client/schedule"
	"github.com/missionweave/server/client/toolauth"
)

// task is what a Worker reads in a contract's constraints: how to go about it.
type task struct {
	// Steps are milestones; after each the Worker is at a safe point.
	Steps []string `json:"steps,omitempty"`
	// Gate has the Worker wait before its first step until a Message in the
	// WorkItem's Conversation says to go on, or the slot is wanted: what takes long
	// in earnest. Its value says what it is waiting for.
	Gate string `json:"gate,omitempty"`
	// Content is handed in as text/plain.
	Content string `json:"content,omitempty"`
	// Ask is raised before the offer is accepted.
	Ask string `json:"ask,omitempty"`
	// Propose is the goal of sub-work to propose.
	Propose string `json:"propose,omitempty"`
	// Block is what turns out to be missing after the first step.
	Block string `json:"block,omitempty"`
	// Spend charges model tokens.
	Spend int64 `json:"spend,omitempty"`
	// Deploy is an action on production.
	Deploy *deployTask `json:"deploy,omitempty"`
	// Review judges what another Worker handed in.
	Review *reviewTask `json:"review,omitempty"`
}

// reviewTask names the WorkItem to judge. Without ArtifactHashes it is a
// dependency, and what it handed in is judged.
type reviewTask struct {
	WorkItemID     string   `json:"workItemId"`
	CriterionIDs   []string `json:"criterionIds"`
	ArtifactHashes []string `json:"artifactHashes,omitempty"`
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

// setup is what a Worker of the cast is told when it is started, as by a file of
// its own; everything else it learns from the server.
type setup struct {
	slots int
	// shares are its Organization's ranks and weights of Groups.
	shares map[string]schedule.Share
	// tools are the external systems it may call, by resource.
	tools map[string]string
}

// employee is a Worker of the cast: a client with its own key and what its
// process needs. Scenes start and stop it, and talk with it in Conversations.
type employee struct {
	name  string
	c     *client.Client
	setup setup
	note  func(format string, args ...any)

	talking sync.WaitGroup
	mu      sync.Mutex
	worker  *client.Worker
	cancel  context.CancelFunc
	ended   chan error
	passes  map[string]chan struct{} // WorkItem id -> closed when it may go on
}

func (st *stage) employ(c *client.Client, name string, slots int) *employee {
	e := &employee{name: name, c: c, setup: setup{slots: slots}, note: st.line.note, passes: map[string]chan struct{}{}}
	switch name {
	case "reviewer":
		e.setup.shares = st.shares
	case "coder":
		e.setup.tools = map[string]string{production: st.external.url}
	}
	e.start()
	return e
}

// reviewCosts is the least that a start costs a Group at the shared Worker. No
// review takes that long, so that shares are counted in starts.
const reviewCosts = 2 * sceneLimit

// start begins to work. All that is known comes from the server.
func (e *employee) start() {
	w, err := client.NewWorker(client.WorkerOptions{
		Client: e.c, Slots: e.setup.slots, Do: e.do, Consider: e.consider, Hear: e.hear, Discover: 100 * time.Millisecond, LeaseSeconds: 60,
		Share: func(groupID string) schedule.Share { return e.setup.shares[groupID] },
		// Nothing ages within a play; that is tested where time is an argument.
		Policy: schedule.Policy{AgeStep: time.Hour, Quantum: reviewCosts},
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
		e.note("%s ended: %v", e.name, err)
	}
	e.talking.Wait()
	e.mu.Lock()
	clear(e.passes)
	e.mu.Unlock()
}

func (e *employee) present() *client.Worker {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.worker
}

// pass opens the gate of a WorkItem.
func (e *employee) pass(workItemID string) {
	c := e.gate(workItemID)
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-c:
	default:
		close(c)
	}
}

func (e *employee) gate(workItemID string) chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, ok := e.passes[workItemID]
	if !ok {
		c = make(chan struct{})
		e.passes[workItemID] = c
	}
	return c
}

// wait holds a Job at its gate. What was said before this process began to listen
// is read from the Conversation.
func (e *employee) wait(ctx context.Context, job *client.Job) error {
	open := e.gate(job.WorkItemID)
	said, err := e.c.Messages(ctx, job.GroupID, job.ConversationID)
	if err != nil {
		return err //nolint:wrapcheck // the server's words
	}
	for _, m := range said {
		var q request
		if parse(m, &q) && q.GoOn && slices.Contains(m.Mentions, e.c.Principal()) {
			return nil
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // the Job's
	case <-job.Yield:
	case <-open:
	}
	return nil
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

// run is one run of a Job. It keeps an account of what it could read and what it
// did; the account is handed in with the result, so that others can see it.
type run struct {
	e    *employee
	job  *client.Job
	task task
	seen []string
}

func (r *run) saw(format string, args ...any) {
	r.seen = append(r.seen, fmt.Sprintf(format, args...))
}

func (e *employee) do(ctx context.Context, job *client.Job) error {
	r := &run{e: e, job: job}
	if err := job.Constraints(&r.task); err != nil {
		return err
	}
	r.saw("goal: %s", job.Contract.Goal)
	if saved, err := job.Saved(ctx); err != nil {
		return err
	} else if saved != nil {
		r.saw("saved: %s", saved)
	}
	if r.task.Propose != "" && !job.Done("proposed") {
		c := job.Contract
		c.Goal, c.Constraints = r.task.Propose, task{Content: r.task.Propose}.encode()
		c.Budget, c.DependencyWorkItemIDs = budget(0, 100), []string{}
		if _, err := job.Propose(ctx, c, "Came up while working on "+job.Title+"."); err != nil {
			return err
		}
		if err := job.Reached(ctx, "proposed", nil); err != nil {
			return err
		}
	}
	if err := r.steps(ctx); err != nil {
		return err
	}
	if r.task.Spend > 0 && !job.Done("charged") {
		err := job.Charge(ctx, client.Usage{ModelTokens: r.task.Spend})
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
	return r.deliver(ctx)
}

// steps goes from milestone to milestone; each leaves a state to go on from.
func (r *run) steps(ctx context.Context) error {
	for i, step := range r.task.Steps {
		if !r.job.Done(step) {
			if r.task.Gate != "" && i == 0 {
				if err := r.e.wait(ctx, r.job); err != nil {
					return err
				}
			}
			r.saw("did: %s", step)
			if err := r.job.Reached(ctx, step, fmt.Appendf(nil, "%s after %s", r.job.WorkItemID, step)); err != nil {
				return err //nolint:wrapcheck // ErrPaused among them
			}
		}
		if r.task.Block != "" && i == 0 && !r.job.Done("looked around") {
			if err := r.job.Reached(ctx, "looked around", nil); err != nil {
				return err //nolint:wrapcheck // ErrPaused among them
			}
			return r.job.Block(ctx, r.task.Block, "Send what is missing.") //nolint:wrapcheck // the server's words
		}
	}
	return nil
}

// deliver hands in.
func (r *run) deliver(ctx context.Context) error {
	inputs, err := r.job.Inputs(ctx)
	if err != nil {
		return err //nolint:wrapcheck // the server's words
	}
	var sources []string
	for _, in := range inputs {
		r.saw("input: %s", in.Content)
		sources = append(sources, in.Hash)
	}
	content, mediaType := r.task.Content, "text/plain"
	if content == "" {
		content = "Done: " + r.job.Contract.Goal
	}
	switch {
	case r.task.Review != nil:
		verdict, hashes, err := r.judge(ctx, *r.task.Review, inputs)
		if err != nil {
			return err
		}
		return r.submit(ctx, "application/json", verdict, hashes)
	case r.task.Deploy != nil:
		receipt, err := r.deploy(ctx, *r.task.Deploy)
		if err != nil {
			return err
		}
		content = string(receipt)
	}
	account := content + "\n\nWhat this run had:\n" + strings.Join(r.seen, "\n") + "\n"
	return r.submit(ctx, mediaType, []byte(account), sources)
}

func (r *run) submit(ctx context.Context, mediaType string, content []byte, sources []string) error {
	hash, err := r.job.Publish(ctx, mediaType, content, sources...)
	if err != nil {
		return err //nolint:wrapcheck // the server's words
	}
	return r.job.Submit(ctx, "Compared what was made with the goal.", []string{hash}) //nolint:wrapcheck // the server's words
}

// judge reads what another Worker handed in and signs a verdict about it.
func (r *run) judge(ctx context.Context, t reviewTask, inputs []client.Input) (verdict []byte, hashes []string, err error) {
	hashes = t.ArtifactHashes
	for _, in := range inputs {
		if in.WorkItemID == t.WorkItemID && len(t.ArtifactHashes) == 0 {
			hashes = append(hashes, in.Hash)
		}
	}
	for _, hash := range hashes {
		if _, err := r.job.Read(ctx, hash); err != nil {
			return nil, nil, err //nolint:wrapcheck // the server's words
		}
	}
	verdict, err = r.job.Assess(t.WorkItemID, t.CriterionIDs, "passed", "Read it against the criterion.", hashes...)
	return verdict, hashes, err //nolint:wrapcheck // says what it is about
}

// deploy is an external action. What the mail asks for is proposed too, as a model
// that was talked into it would; it is executed only where the decision is ALLOW.
func (r *run) deploy(ctx context.Context, t deployTask) ([]byte, error) {
	token, err := r.job.Capability(ctx, client.CapabilityRequest{
		Operations: []string{t.Operation}, Resources: []string{production}, TTLSeconds: 60,
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // the server's words
	}
	parameters := map[string]any{"release": t.Release}
	var order *client.Decision
	for _, record := range []string{t.Mail, t.Order} {
		decision, err := r.job.Act(ctx, token, client.Action{
			ID: client.NewID(), Type: "deploy", Parameters: parameters, Provenance: []string{record},
			Operation: t.Operation, Resource: production, Reason: r.job.Contract.Goal,
		})
		if err != nil {
			return nil, err //nolint:wrapcheck // the server's words
		}
		if decision.Decision == "ALLOW" {
			order = decision
		}
	}
	if order == nil {
		return nil, errNotAllowed
	}
	receipt, err := r.call(ctx, token, t, parameters)
	if err != nil {
		return nil, err
	}
	_, err = r.job.Outcome(ctx, order.ActionID, client.Outcome{
		ObservedParameters: parameters, Result: "success", ResultDigest: client.Hash(receipt),
	})
	return receipt, err //nolint:wrapcheck // the server's words
}

// call calls the external system that this Worker was told about when it was
// started. An answer that got lost is asked for once more, under the same key.
func (r *run) call(ctx context.Context, token *client.CapabilityToken, t deployTask, parameters map[string]any) (receipt []byte, err error) {
	uri := r.e.setup.tools[production] + "/deployments"
	for range 2 {
		proof, err := toolauth.Prove(r.e.c.Identity().Key, token.Bearer(), http.MethodPost, uri, client.NewID(), time.Now())
		if err != nil {
			return nil, err //nolint:wrapcheck // says what it is about
		}
		status, content, err := post(ctx, uri, parameters,
			"Authorization", "Bearer "+token.Bearer(), "DPoP", proof, "Idempotency-Key", r.job.Key(t.Operation))
		switch {
		case err != nil:
			r.saw("no answer from %s", production)
			continue
		case status != http.StatusOK:
			return nil, fmt.Errorf("%s refuses with %d: %s", production, status, content)
		}
		return content, nil
	}
	return nil, errNoAnswer
}

var (
	errNotAllowed = errors.New("the World Manifest allows none of what was proposed")
	errNoAnswer   = errors.New("there was no answer")
	errNoOwner    = errors.New("nobody owns it")
)

func asError(err error) (*client.Error, bool) { return errors.AsType[*client.Error](err) }
