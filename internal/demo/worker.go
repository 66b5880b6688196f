package demo

import (
	"context"
	"time"

	"github.com/missionweave/server/client"
)

// worker takes offers, does the work in phases with one checkpoint, publishes
// its Artifact and hands the result in.
type worker struct {
	member
	name string
}

// executionSeconds is the Execution Lease asked for.
const executionSeconds = 300

func (w *worker) work(ctx context.Context) error {
	if err := w.join(ctx); err != nil {
		return err
	}
	defer w.session.Close()
	if err := w.admitted(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	return w.each(ctx, func(e client.Event) error { return w.react(ctx, e) })
}

// admitted waits until the Worker is a member, then subscribes. To those it
// has not admitted the Group looks like one that does not exist.
func (w *worker) admitted(ctx context.Context) error {
	for {
		_, _, err := w.client.Events(ctx, w.plan.group, 0, 1)
		switch {
		case err == nil:
			return w.follow(ctx)
		case ctx.Err() != nil:
			return nil
		case !refusedWith(err, "GROUP_NOT_FOUND"):
			return expect("the Group to show itself to its member "+w.name, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (w *worker) react(ctx context.Context, e client.Event) error {
	if e.Kind == "mission.changes_requested" {
		return w.propose(ctx)
	}
	// A verified dependency may free any WorkItem in the queue.
	if e.Kind == "work.result.accepted" {
		for _, i := range w.board.items {
			if err := w.start(ctx, i); err != nil {
				return err
			}
		}
		return nil
	}
	i := w.board.items[e.WorkItemID]
	if i == nil {
		return nil
	}
	switch e.Kind {
	case "work.offer.created":
		return w.accept(ctx, i)
	case "work.offer.accepted", "work.checkpointed", "ext.missionweaveprotocol.core.work_execution_lease_revoked":
		return w.start(ctx, i)
	case "work.started":
		if w.owns(i) {
			return w.execute(ctx, i, e)
		}
	}
	return nil
}

func (w *worker) owns(i *item) bool { return i.owner != nil && i.owner.AgentID == w.me() }

// propose suggests the corrective WorkItems for which this Worker stands first.
func (w *worker) propose(ctx context.Context) error {
	for _, k := range w.plan.file.ChangeRound.WorkItems {
		if k.Candidates[0] != w.name {
			continue
		}
		err := w.command(ctx, client.Command{Kind: "work.propose"}, map[string]any{
			"proposalId": client.NewID(), "contract": w.plan.contract(k),
			"rationale": "Answers the MissionOwner's request for changes.",
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// accept takes the Worker's own pending offer. Where several are asked, one
// wins and the others are told so.
func (w *worker) accept(ctx context.Context, i *item) error {
	for _, o := range i.offers {
		if o.AgentID != w.me() || o.Status != "pending" {
			continue
		}
		err := w.command(ctx, client.Command{Kind: "work.accept_offer", WorkItemID: i.id}, map[string]any{"offerId": o.OfferID})
		if refusedWith(err, "WORK_ALREADY_OWNED") && len(i.offers) > 1 {
			w.line.note("%s lost the race for %s", w.name, w.plan.names[i.id])
			return nil
		}
		return err
	}
	return nil
}

// start begins or resumes a queued WorkItem whose dependencies are verified.
func (w *worker) start(ctx context.Context, i *item) error {
	if !w.owns(i) || i.state != "queued" || !w.board.ready(i) {
		return nil
	}
	err := w.command(ctx, client.Command{Kind: "work.start", WorkItemID: i.id}, map[string]any{
		"ownershipEpoch": i.owner.OwnershipEpoch, "executionLeaseSeconds": executionSeconds,
	})
	if err == nil {
		// Events from before the start may still be on their way here, and must not
		// start it again.
		i.state = "active"
	}
	return err
}

// execute does the work under the lease that the Event opened. The first time
// it stops at a checkpoint after the first phase; the second time it goes on
// from there to the end.
func (w *worker) execute(ctx context.Context, i *item, started client.Event) error {
	file, ok := w.plan.item(i.id)
	if !ok {
		return nil
	}
	lease := map[string]any{"ownershipEpoch": i.owner.OwnershipEpoch, "executionLeaseId": i.executionLease}
	with := func(members map[string]any) map[string]any {
		for k, v := range lease {
			members[k] = v
		}
		return members
	}
	send := func(kind string, members map[string]any) error {
		return w.command(ctx, client.Command{Kind: kind, WorkItemID: i.id, CausedByEventID: started.EventID}, with(members))
	}
	if i.checkpoints == 0 && len(file.Phases) > 1 {
		return send("work.checkpoint", map[string]any{"progress": w.progress(file.Phases, 1)})
	}
	err := send("ext.missionweaveprotocol.core.work_execution_lease_renew", map[string]any{
		"leaseSeconds": 2 * executionSeconds, "progress": w.progress(file.Phases, len(file.Phases)),
	})
	if err != nil {
		return err
	}
	content := []byte(file.Artifact.Content)
	hash, err := w.client.PutArtifact(ctx, w.plan.group, content)
	if err != nil {
		return expect("the Artifact store to take the content of "+file.ID, err)
	}
	manifest, err := w.manifest(i, file.Artifact.MediaType, hash, len(content))
	if err != nil {
		return err
	}
	if err := send("artifact.publish", map[string]any{"artifact": manifest}); err != nil {
		return err
	}
	evidence, err := w.evidence(i, hash)
	if err != nil {
		return err
	}
	return send("work.submit", map[string]any{"artifactHashes": []string{hash}, "evidence": evidence})
}

func (w *worker) progress(phases []string, done int) client.Progress {
	p := client.Progress{
		CurrentPhase: "Wrap up", CompletedMilestones: phases[:done], NextCheckpoint: "Hand in", Blockers: []string{},
		UpdatedCompletionEstimate: client.Timestamp(time.Now().Add(time.Minute)), EvidenceIDs: []string{},
	}
	if done < len(phases) {
		p.CurrentPhase, p.NextCheckpoint = phases[done], phases[done]
	}
	return p
}

func (w *worker) manifest(i *item, mediaType, hash string, size int) (client.Raw, error) {
	sources := []string{}
	for _, d := range i.contract.DependencyWorkItemIDs {
		sources = append(sources, w.board.items[d].submission...)
	}
	return w.client.Identity().SignArtifact(client.Artifact{
		ArtifactID: client.NewID(), ContentHash: hash, URI: "urn:missionweave:blob:" + hash, SizeBytes: int64(size),
		MediaType: mediaType, SchemaURI: "urn:missionweave:demo:deliverable",
		Producer: client.Producer{
			AgentID: w.me(), AgentCardVersion: i.owner.AgentCardVersion, Capabilities: i.owner.CapabilityPins,
		},
		MissionID: w.plan.mission, GroupID: w.plan.group, WorkItemID: i.id, SourceArtifactHashes: sources,
		ToolVersions: []client.ToolVersion{{Name: "mw demo", Version: "1"}}, ModelVersions: []client.ModelVersion{},
		Classification: "internal", CreatedAt: now(),
	})
}

// evidence covers every criterion of the contract with one deterministic check
// of the Worker's own; the review adds what the contract requires.
func (w *worker) evidence(i *item, hash string) ([]client.Raw, error) {
	var ids []string
	for _, k := range i.contract.AcceptanceCriteria {
		ids = append(ids, k.CriterionID)
	}
	signed, err := w.client.Identity().SignEvidence(client.Evidence{
		EvidenceID: client.NewID(), MissionID: w.plan.mission, GroupID: w.plan.group, WorkItemID: i.id,
		Type: "artifact_integrity", Subject: client.EvidenceSubject{Type: "artifact", ID: hash},
		CriterionIDs: ids, Method: "Hashed the stored content again.", Result: "passed",
		ArtifactHashes: []string{hash}, GeneratedBy: w.client.Principal(), CreatedAt: now(),
	})
	return []client.Raw{signed}, err
}
