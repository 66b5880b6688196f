package demo

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/missionfile"
)

// coordinator plans the work: it admits the Workers, authorizes and offers
// WorkItems, reviews results and submits the Mission.
type coordinator struct {
	member
}

// leaseSeconds is the Coordinator lease asked for at each renewal; it is
// renewed after a third of it.
const leaseSeconds = 300

func (c *coordinator) work(ctx context.Context) error {
	if err := c.join(ctx); err != nil {
		return err
	}
	defer c.session.Close()
	if err := c.follow(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.each(ctx, func(e client.Event) error { return c.react(ctx, e) }) })
	g.Go(func() error { return c.holdLease(ctx) })
	return g.Wait()
}

// holdLease renews the Coordinator lease. The first renewal comes at once: it
// shows that the Coordinator is there.
func (c *coordinator) holdLease(ctx context.Context) error {
	every := time.NewTicker(leaseSeconds / 3 * time.Second)
	defer every.Stop()
	for {
		// The server measures from its own clock: the extra second makes the first
		// renewal later than the lease that mission.create opened.
		_, err := c.session.Command(ctx, client.Command{
			Kind: "mission.renew_coordinator", GroupID: c.plan.group, MembershipEpoch: 1, CoordinatorEpoch: 1,
		}, map[string]any{"leaseSeconds": leaseSeconds + 1})
		if err != nil {
			if ctx.Err() != nil || refusedWith(err, "INVALID_STATE_TRANSITION") {
				return nil
			}
			return expect("mission.renew_coordinator to be accepted", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
	}
}

func (c *coordinator) command(ctx context.Context, cmd client.Command, payload any) error {
	cmd.CoordinatorEpoch = c.board.coordinatorEpoch
	return c.member.command(ctx, cmd, payload)
}

func (c *coordinator) react(ctx context.Context, e client.Event) error {
	switch e.Kind {
	case "mission.created":
		return c.start(ctx)
	case "mission.changes_requested":
		return c.correct(ctx)
	case "work.proposed":
		return c.adopt(ctx, e)
	case "work.authorized":
		return c.offer(ctx, c.board.items[e.WorkItemID])
	case "work.submitted":
		return c.review(ctx, c.board.items[e.WorkItemID])
	case "work.result.accepted":
		return c.submitWhenDone(ctx)
	}
	return nil
}

// start admits the Workers and authorizes the planned WorkItems.
func (c *coordinator) start(ctx context.Context) error {
	for _, w := range c.plan.cast.workers {
		err := c.command(ctx, client.Command{Kind: "membership.change"}, map[string]any{
			"member": w.client.Principal(), "role": "worker", "visibilityStartSequence": 1,
		})
		if err != nil {
			return err
		}
	}
	if err := c.say(ctx, c.board.mainConversation, "Welcome. "+c.plan.file.Mission.Objective); err != nil {
		return err
	}
	for _, w := range c.plan.file.WorkItems {
		if err := c.authorize(ctx, w, nil); err != nil {
			return err
		}
	}
	return nil
}

// correct asks for the corrective WorkItems. The first candidate of each
// proposes it; a proposal is not yet work.
func (c *coordinator) correct(ctx context.Context) error {
	return c.say(ctx, c.board.mainConversation, "The MissionOwner asks for changes: "+c.plan.file.ChangeRound.Comments)
}

// adopt authorizes a proposed WorkItem under the id that the plan has for it.
func (c *coordinator) adopt(ctx context.Context, e client.Event) error {
	var proposed struct {
		Proposal struct {
			ProposalID string              `json:"proposalId"`
			Contract   client.WorkContract `json:"contract"`
		} `json:"proposal"`
	}
	if err := client.Decode(e.Payload, &proposed); err != nil {
		return expect("a readable proposal", err)
	}
	for _, w := range c.plan.file.ChangeRound.WorkItems {
		if w.Goal == proposed.Proposal.Contract.Goal {
			return c.authorize(ctx, w, map[string]any{"proposalId": proposed.Proposal.ProposalID})
		}
	}
	return nil
}

func (c *coordinator) authorize(ctx context.Context, w missionfile.WorkItem, proposal map[string]any) error {
	payload := proposal
	if payload == nil {
		payload = map[string]any{"contract": c.plan.contract(w)}
	}
	payload["title"] = w.ID
	return c.command(ctx, client.Command{Kind: "work.authorize", WorkItemID: c.plan.ids[w.ID]}, payload)
}

func (c *coordinator) offer(ctx context.Context, i *item) error {
	w, ok := c.plan.item(i.id)
	if !ok {
		return nil
	}
	return c.command(ctx, client.Command{Kind: "work.offer", WorkItemID: i.id}, map[string]any{
		"candidateAgentIds": c.plan.candidates(w), "selectionBasis": c.plan.selection(w),
		"offerExpiresInSeconds": 3600,
	})
}

// review reads what was handed in, compares it with its hash, and accepts the
// result with one Evidence for each required type of each criterion.
func (c *coordinator) review(ctx context.Context, i *item) error {
	for _, hash := range i.submission {
		if _, err := c.client.GetArtifact(ctx, c.plan.group, hash); err != nil {
			return expect("the Coordinator to read Artifact "+hash, err)
		}
	}
	var evidence []client.Raw
	for _, k := range i.contract.AcceptanceCriteria {
		for _, kind := range k.EvidenceRequired {
			signer := c.client
			if kind == "human_review" {
				signer = c.plan.cast.owner // the human's own key; only the signed document travels
			}
			signed, err := signer.Identity().SignEvidence(client.Evidence{
				EvidenceID: client.NewID(), MissionID: c.plan.mission, GroupID: c.plan.group, WorkItemID: i.id,
				Type: kind, Subject: client.EvidenceSubject{Type: "work_item", ID: i.id},
				CriterionIDs: []string{k.CriterionID}, Method: "Read the Artifact and compared it with the criterion.",
				Result: "passed", ArtifactHashes: i.submission, GeneratedBy: signer.Principal(), CreatedAt: now(),
			})
			if err != nil {
				return err
			}
			evidence = append(evidence, signed)
		}
	}
	return c.command(ctx, client.Command{Kind: "work.accept_result", WorkItemID: i.id}, map[string]any{"evidence": evidence})
}

// submitWhenDone submits the Mission once every WorkItem is verified: after
// the planned ones, and again after the corrective ones.
func (c *coordinator) submitWhenDone(ctx context.Context) error {
	if c.board.state != "active" {
		return nil
	}
	verified := 0
	var hashes []string
	for _, i := range c.board.items {
		if i.state != "verified" {
			return nil
		}
		verified++
		hashes = append(hashes, i.submission...)
	}
	if verified != len(c.plan.file.WorkItems) && verified != len(c.plan.file.All()) {
		return nil
	}
	return c.command(ctx, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": hashes})
}
