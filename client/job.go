package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Reasons for which a Job's context ends.
var (
	// ErrLeaseLost: the Execution Lease is gone (expired, revoked, reassigned).
	// Nothing the Job does counts any more.
	ErrLeaseLost = errors.New("client: the Execution Lease is lost")
	// ErrStopping: the Worker is being stopped; the Job may still reach a checkpoint.
	ErrStopping = errors.New("client: the Worker stops")
	// ErrPaused is returned by Reached after the Job gave its slot back at a
	// checkpoint. Do returns it, and is called again later.
	ErrPaused = errors.New("client: paused at a checkpoint")
)

// Room is where in a Group something belongs: the Group's main Conversation, or
// with a WorkItemID that WorkItem's.
type Room struct {
	GroupID, MissionID, WorkItemID, ConversationID string
	Title                                          string

	w *Worker
	r *room
}

// room is a Room of a Group; the caller holds mu or owns the Board.
func (w *Worker) room(r *room, workItemID string) Room {
	out := Room{
		GroupID: r.board.GroupID, MissionID: r.board.MissionID, ConversationID: r.board.MainConversation, w: w, r: r,
	}
	if item := r.board.Items[workItemID]; item != nil {
		out.WorkItemID, out.ConversationID, out.Title = item.ID, item.ConversationID, item.Title
	}
	return out
}

// Say posts a Message. It asks and tells; it never authorizes anything.
func (m Room) Say(ctx context.Context, text string, mentions ...Actor) error {
	payload := map[string]any{"messageId": NewID(), "content": []ContentPart{{Type: "text", Text: text}}}
	if len(mentions) > 0 {
		payload["mentions"] = mentions
	}
	_, err := m.w.command(ctx, m.r, Command{Kind: "message.post", ConversationID: m.ConversationID}, payload)
	return err
}

// Propose proposes sub-work. It becomes work when the Coordinator authorizes it.
func (m Room) Propose(ctx context.Context, contract WorkContract, rationale string) (proposalID string, err error) {
	proposalID = NewID()
	payload := map[string]any{"proposalId": proposalID, "contract": contract, "rationale": rationale}
	if m.WorkItemID != "" {
		payload["parentWorkItemId"] = m.WorkItemID
	}
	_, err = m.w.command(ctx, m.r, Command{Kind: "work.propose"}, payload)
	return proposalID, err
}

// Job is one WorkItem in one slot. It shares nothing with the Jobs of other
// slots: its Group, its lease, its saved state and its keys are its own.
type Job struct {
	Room
	Contract WorkContract
	// Slot is the number of the slot; Attempt counts from 1 as long as the Worker
	// lives.
	Slot, Attempt int
	// OwnershipEpoch fences the owner.
	OwnershipEpoch int64
	// Yield is closed when the slot is wanted for something that goes first, or when
	// the Worker stops: Reached then gives it back.
	Yield <-chan struct{}

	yielded func()
	cancel  context.CancelCauseFunc
	ctx     context.Context
	owner   Owner
	last    *Checkpoint

	mu         sync.Mutex
	held       *heldLease
	milestones []string
	ending     bool  // the Command that ends it is on its way, or was accepted
	settledAt  int64 // sequence of the Event that ended it
	again      bool  // ended at a checkpoint
	artifacts  []string
}

// heldLease is the Execution Lease of a Job and the sequence that opened it.
type heldLease struct {
	id       string
	sequence int64
}

func (w *Worker) newJob(r *room, item *Work, slot int) *Job {
	yield := make(chan struct{})
	w.attempts[item.ID]++
	j := &Job{
		Room: w.room(r, item.ID), Contract: item.Contract, Slot: slot, Attempt: w.attempts[item.ID],
		OwnershipEpoch: item.OwnershipEpoch, Yield: yield, yielded: sync.OnceFunc(func() { close(yield) }), owner: *item.Owner,
	}
	if n := len(item.Checkpoints); n > 0 {
		j.last = &item.Checkpoints[n-1]
		j.milestones = slices.Clone(j.last.Progress.CompletedMilestones)
	}
	for _, a := range item.Artifacts {
		j.artifacts = append(j.artifacts, a.ContentHash)
	}
	j.ctx, j.cancel = context.WithCancelCause(context.Background())
	return j
}

func (j *Job) yield() { j.yielded() }

func (j *Job) lease() *heldLease {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.held
}

// execute runs a Job from its start to its end.
func (w *Worker) execute(ctx context.Context, r *room, j *Job) {
	again := false
	defer func() {
		j.cancel(nil)
		w.caughtUp(ctx, r, j.settledAt)
		now := w.c.opt.Now()
		w.mu.Lock()
		delete(w.jobs, j.WorkItemID)
		w.sched.Release(j.WorkItemID, again, now)
		w.mu.Unlock()
		if ctx.Err() == nil {
			w.react(ctx, r)
		}
	}()
	if err := w.begin(ctx, r, j); err != nil {
		w.hold(j, err)
		return
	}
	renewing := make(chan struct{})
	go func() { defer close(renewing); w.renew(j) }()
	err := w.opt.Do(j.ctx, j)
	cause := context.Cause(j.ctx)
	if !j.ended() && !errors.Is(cause, ErrLeaseLost) {
		err = j.conclude(err)
	}
	j.cancel(nil)
	<-renewing
	switch paused := err == nil || errors.Is(err, ErrPaused); {
	case errors.Is(cause, ErrLeaseLost):
	case paused:
		again = j.again && !j.stopping(cause) && ctx.Err() == nil
	default:
		w.hold(j, err) // the next attempt comes later
	}
}

func (j *Job) stopping(cause error) bool { return errors.Is(cause, ErrStopping) }

// hold keeps a WorkItem from being started again at once after a refusal.
func (w *Worker) hold(j *Job, err error) {
	w.mu.Lock()
	w.held[j.WorkItemID] = w.c.opt.Now().Add(2 * time.Second)
	w.mu.Unlock()
	w.c.opt.Log.InfoContext(j.ctx, "a WorkItem waits", "workItem", j.WorkItemID, "because", err)
}

// begin opens the Execution Lease.
func (w *Worker) begin(ctx context.Context, r *room, j *Job) error {
	e, err := w.command(ctx, r, Command{Kind: "work.start", WorkItemID: j.WorkItemID}, map[string]any{
		"ownershipEpoch": j.OwnershipEpoch, "executionLeaseSeconds": w.opt.LeaseSeconds,
	})
	if err != nil {
		return err
	}
	var started struct {
		ExecutionLease Lease `json:"executionLease"`
	}
	if err := Decode(e.Payload, &started); err != nil {
		return err
	}
	j.mu.Lock()
	j.held = &heldLease{id: started.ExecutionLease.LeaseID, sequence: e.Sequence}
	j.mu.Unlock()
	return nil
}

// renew keeps the lease until the Job ends. What cannot be renewed is lost; work
// that is paused for its budget is asked to stop at a checkpoint.
func (w *Worker) renew(j *Job) {
	every := time.NewTicker(max(time.Duration(w.opt.LeaseSeconds)*time.Second/3, 200*time.Millisecond))
	defer every.Stop()
	for {
		select {
		case <-j.ctx.Done():
			return
		case <-every.C:
		}
		_, err := j.send(j.ctx, "ext.missionweaveprotocol.core.work_execution_lease_renew", map[string]any{"leaseSeconds": w.opt.LeaseSeconds})
		switch code := CodeOf(err); {
		case err == nil, longEnough(err): // or a progress report was as long
		case code == "BUDGET_EXCEEDED", code == "APPROVAL_REQUIRED":
			j.yield()
		default:
			if !j.finishing() {
				j.cancel(ErrLeaseLost)
			}
		}
	}
}

// send sends a Worker Command under the Job's lease.
func (j *Job) send(ctx context.Context, kind string, payload map[string]any) (*Event, error) {
	lease := j.lease()
	if lease == nil {
		return nil, ErrLeaseLost
	}
	payload["ownershipEpoch"], payload["executionLeaseId"] = j.OwnershipEpoch, lease.id
	return j.w.command(ctx, j.r, Command{Kind: kind, WorkItemID: j.WorkItemID}, payload)
}

// finish sends the Command that ends the Job.
func (j *Job) finish(ctx context.Context, kind string, payload map[string]any) error {
	if j.ended() {
		return fmt.Errorf("client: %s after the Job's end", kind)
	}
	j.mu.Lock()
	j.ending = true
	j.mu.Unlock()
	e, err := j.send(ctx, kind, payload)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.ending = false
		return err
	}
	j.settledAt, j.again = e.Sequence, kind == "work.checkpoint"
	return nil
}

func (j *Job) finishing() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ending
}

func (j *Job) ended() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.settledAt > 0
}

// conclude ends a Job that Do left open: a stop and a retryable error at a
// checkpoint, everything else as a failure.
func (j *Job) conclude(err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(j.ctx), 10*time.Second)
	defer cancel()
	if err == nil {
		err = errors.New("the Worker did nothing")
	}
	if j.stopping(context.Cause(j.ctx)) || errors.Is(err, ErrPaused) || int64(j.Attempt) < j.Contract.RetryPolicy.MaxAttempts {
		return cmp.Or(j.pause(ctx, nil), err)
	}
	return cmp.Or(j.Fail(ctx, err.Error()), err)
}

// Reached reports a milestone at a safe point, with the state to go on from. If
// the slot is wanted it gives it back and returns ErrPaused, which Do returns;
// Do is then called again later and finds the state in Saved.
func (j *Job) Reached(ctx context.Context, milestone string, state []byte) error {
	j.mu.Lock()
	if !slices.Contains(j.milestones, milestone) {
		j.milestones = append(j.milestones, milestone)
	}
	j.mu.Unlock()
	select {
	case <-j.Yield:
		// The Job may be stopping; a checkpoint is what stopping waits for.
		if err := j.pause(context.WithoutCancel(ctx), state); err != nil {
			return err
		}
		return ErrPaused
	default:
	}
	_, err := j.send(ctx, "ext.missionweaveprotocol.core.work_execution_lease_renew", map[string]any{
		"leaseSeconds": j.w.opt.LeaseSeconds + 1, "progress": j.progress(),
	})
	if longEnough(err) {
		return nil // the report can wait
	}
	return err
}

// longEnough tells that a renewal was refused because the lease lasts as long
// already.
func longEnough(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == "INVALID_COMMAND" && e.Reason == "lease_not_extended"
}

// Pause gives the slot back at a checkpoint, whoever wants it; Do returns the
// ErrPaused it gives.
func (j *Job) Pause(ctx context.Context, milestone string, state []byte) error {
	j.yield()
	return j.Reached(ctx, milestone, state)
}

func (j *Job) pause(ctx context.Context, state []byte) error {
	payload := map[string]any{"progress": j.progress(), "resumeWithinSeconds": j.w.opt.OwnershipSeconds}
	if state != nil {
		hash, err := j.Publish(ctx, "application/octet-stream", state)
		if err != nil {
			return err
		}
		payload["stateArtifactHash"] = hash
	}
	return j.finish(ctx, "work.checkpoint", payload)
}

// Done tells whether a milestone was reached in this run or an earlier one.
func (j *Job) Done(milestone string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Contains(j.milestones, milestone)
}

// Saved is the state of the last checkpoint, nil without one. It is the same
// whichever Worker made it.
func (j *Job) Saved(ctx context.Context) ([]byte, error) {
	if j.last == nil || j.last.StateArtifactHash == "" {
		return nil, nil
	}
	return j.w.c.GetArtifact(ctx, j.GroupID, j.last.StateArtifactHash)
}

func (j *Job) progress() Progress {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := Progress{
		CurrentPhase: "work", CompletedMilestones: slices.Clone(j.milestones), NextCheckpoint: "next milestone",
		Blockers: []string{}, EvidenceIDs: []string{}, UpdatedCompletionEstimate: Timestamp(j.w.c.opt.Now().Add(time.Minute)),
	}
	if n := len(p.CompletedMilestones); n > 0 {
		p.CurrentPhase = "after " + p.CompletedMilestones[n-1]
	}
	return p
}

// Input is an Artifact that the WorkItem's dependencies handed in.
type Input struct {
	WorkItemID string
	Hash       string
	Content    []byte
}

// Inputs reads what the dependencies handed in, in the order of the contract.
func (j *Job) Inputs(ctx context.Context) ([]Input, error) {
	j.w.mu.Lock()
	var wanted []Input
	for _, id := range j.Contract.DependencyWorkItemIDs {
		if item := j.r.board.Items[id]; item != nil {
			for _, hash := range item.Submission {
				wanted = append(wanted, Input{WorkItemID: id, Hash: hash})
			}
		}
	}
	j.w.mu.Unlock()
	for _, hash := range j.Contract.InputArtifacts {
		wanted = append(wanted, Input{Hash: hash})
	}
	for i := range wanted {
		var err error
		if wanted[i].Content, err = j.w.c.GetArtifact(ctx, j.GroupID, wanted[i].Hash); err != nil {
			return nil, err
		}
	}
	return wanted, nil
}

// Publish stores content and publishes it as an Artifact of this WorkItem. The
// hashes of what it was made from become its sources.
func (j *Job) Publish(ctx context.Context, mediaType string, content []byte, sources ...string) (hash string, err error) {
	hash = Hash(content)
	j.mu.Lock()
	known := slices.Contains(j.artifacts, hash)
	j.mu.Unlock()
	if known {
		return hash, nil // by an earlier run under the same ownership
	}
	manifest, hash, err := j.w.c.StoreProduct(ctx, j.ref(), &j.owner, &j.Contract, Product{MediaType: mediaType, Content: content, Sources: sources})
	if err != nil {
		return "", err
	}
	if _, err := j.send(ctx, "artifact.publish", map[string]any{"artifact": manifest}); err != nil {
		return "", err
	}
	j.mu.Lock()
	j.artifacts = append(j.artifacts, hash)
	j.mu.Unlock()
	return hash, nil
}

// Evidence signs a passed check of this Worker over all criteria of the contract.
// kind is the Evidence type, which says what was done: see Finding.
func (j *Job) Evidence(kind, method string, artifacts ...string) (Raw, error) {
	return j.evidence(kind, "passed", method, artifacts)
}

func (j *Job) ref() WorkRef { return WorkRef{j.MissionID, j.GroupID, j.WorkItemID} }

func (j *Job) evidence(kind, result, method string, artifacts []string) (Raw, error) {
	return j.w.c.SignFinding(j.ref(), Finding{
		Type: kind, Criteria: CriteriaOf(&j.Contract), Result: result, Method: method, Artifacts: artifacts,
	})
}

// Assess signs this Worker's verdict on somebody else's WorkItem, which the
// Coordinator embeds when it accepts or refuses that result. verdict is passed,
// failed or inconclusive.
func (j *Job) Assess(workItemID string, criteria []string, verdict, method string, artifacts ...string) (Raw, error) {
	return j.w.c.SignFinding(WorkRef{j.MissionID, j.GroupID, workItemID}, Finding{
		Type: "reviewer_assessment", Criteria: criteria, Result: verdict, Method: method, Artifacts: artifacts,
	})
}

// Constraints reads the contract's constraints, where a Coordinator puts what a
// kind of work needs beside its goal, strictly into a struct.
func (j *Job) Constraints(dst any) error {
	if len(j.Contract.Constraints) == 0 {
		return errors.New("client: the contract has no constraints")
	}
	return Decode(j.Contract.Constraints, dst)
}

// Read reads an Artifact's content through the Job's Group.
func (j *Job) Read(ctx context.Context, hash string) ([]byte, error) {
	return j.w.c.GetArtifact(ctx, j.GroupID, hash)
}

// Submit hands the Artifacts in. Evidence covers every criterion of the contract.
// Without any, the Worker signs one deterministic_test that passed: method then
// says which check its own code has just made, the same for the same input.
func (j *Job) Submit(ctx context.Context, method string, artifacts []string, evidence ...Raw) error {
	if len(evidence) == 0 {
		signed, err := j.Evidence("deterministic_test", method, artifacts...)
		if err != nil {
			return err
		}
		evidence = []Raw{signed}
	}
	return j.finish(ctx, "work.submit", map[string]any{"artifactHashes": artifacts, "evidence": evidence})
}

// Block gives the slot back until the Coordinator has resolved what is missing.
func (j *Job) Block(ctx context.Context, reason, resolution string) error {
	return j.finish(ctx, "work.block", map[string]any{
		"progress": j.progress(), "reason": reason, "requiredResolution": resolution, "blockedLeaseSeconds": j.w.opt.OwnershipSeconds,
	})
}

// Fail ends the WorkItem with a failure report.
func (j *Job) Fail(ctx context.Context, reason string) error {
	report, err := j.evidence("failure_report", "failed", truncate(reason, 1000), nil)
	if err != nil {
		return err
	}
	return j.finish(ctx, "work.fail", map[string]any{"reason": truncate(reason, 4000), "evidence": []Raw{report}})
}

func truncate(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n])
	}
	return s
}

// Usage is what carrying out work consumed; zero members are left out.
type Usage struct {
	Financial           Money  `json:"financial,omitempty"`
	Currency            string `json:"currency,omitempty"`
	ModelTokens         int64  `json:"modelTokens,omitempty"`
	ToolCalls           int64  `json:"toolCalls,omitempty"`
	ComputeSeconds      int64  `json:"computeSeconds,omitempty"`
	WallClockSeconds    int64  `json:"wallClockSeconds,omitempty"`
	ExternalSideEffects int64  `json:"externalSideEffects,omitempty"`
}

// Charge records usage against the WorkItem and all budgets above it. A refusal
// with BUDGET_EXCEEDED charges nothing; the work should then stop at a checkpoint.
func (j *Job) Charge(ctx context.Context, u Usage) error {
	_, err := j.send(ctx, "ext.missionweaveprotocol.core.resource_usage_record", map[string]any{"usageDelta": u})
	return err
}

// Key derives the idempotency key of an external operation (spec section 16): the
// same for every attempt under the same ownership.
func (j *Job) Key(operation string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%d\n%s", j.MissionID, j.WorkItemID, j.OwnershipEpoch, operation))
	return "mw-" + hex.EncodeToString(sum[:16])
}

// ActionID derives the id of the Proposed Action of one step from its Key: a
// Worker that was restarted proposes the same Action, not a second one.
func (j *Job) ActionID(step string) string { return "urn:missionweave:action:" + j.Key(step) }

// LeaseID is the present Execution Lease, "" once the Job has lost it.
func (j *Job) LeaseID() string {
	if lease := j.lease(); lease != nil {
		return lease.id
	}
	return ""
}
