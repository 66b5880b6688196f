package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/missionweave/server/client"
)

// missionOwner is the human: creates the Mission, asks for changes once if the
// file says so, and approves.
type missionOwner struct {
	client *client.Client
	plan   *plan
	line   *timeline
	board  *board
}

func (o *missionOwner) create(ctx context.Context) error {
	_, err := o.client.Post(ctx, client.Command{Kind: "mission.create", GroupID: o.plan.group}, o.plan.creation())
	return expect("mission.create to be accepted", err)
}

// decide follows the Group, prints it, and answers each submission. It returns
// nil when the Approval has been seen in the Group's Events.
func (o *missionOwner) decide(ctx context.Context) error {
	o.board = newBoard()
	asked := o.plan.file.ChangeRound == nil
	err := o.client.Follow(ctx, o.plan.group, 0, func(d client.Delivery) error {
		if err := o.board.learn(d.Event); err != nil {
			return expect("the Event log", err)
		}
		o.line.event(d.Event, o.plan)
		switch d.Event.Kind {
		case "mission.submitted_for_approval":
			if !asked {
				asked = true
				return o.requestChanges(ctx)
			}
			return o.approve(ctx)
		case "mission.approved":
			return client.ErrStop
		}
		return nil
	})
	if err == client.ErrStop { //nolint:errorlint // Follow returns the handler's error as it is
		return nil
	}
	return err
}

func (o *missionOwner) requestChanges(ctx context.Context) error {
	approval := o.approval("changes_requested", o.plan.file.ChangeRound.Comments)
	approval.ArtifactHashes = []string{}
	return o.post(ctx, "mission.request_changes", approval)
}

func (o *missionOwner) approve(ctx context.Context) error {
	for _, hash := range o.board.submitted.hashes {
		if _, err := o.client.GetArtifact(ctx, o.plan.group, hash); err != nil {
			return expect("the MissionOwner to read Artifact "+hash, err)
		}
	}
	return o.post(ctx, "mission.approve", o.approval("approved", "Checked against the definition of done."))
}

func (o *missionOwner) approval(decision, comments string) client.Approval {
	return client.Approval{
		ApprovalID: client.NewID(), Kind: "mission_final", Decision: decision,
		MissionID: o.plan.mission, GroupID: o.plan.group, MissionRevision: o.board.submitted.revision,
		ArtifactHashes: o.board.submitted.hashes, AcceptancePolicyVersion: policyVersion,
		Approver: o.client.Principal(), Comments: comments, Conditions: []string{},
		OccurredAt: client.Timestamp(time.Now()),
	}
}

func (o *missionOwner) post(ctx context.Context, kind string, approval client.Approval) error {
	signed, err := o.client.Identity().SignApproval(approval)
	if err != nil {
		return err
	}
	_, err = o.client.Post(ctx, client.Command{
		Kind: kind, GroupID: o.plan.group, MembershipEpoch: o.board.membershipEpoch[o.client.Principal().ID],
	}, map[string]any{"approval": signed})
	return expect(fmt.Sprintf("%s of revision %d to be accepted", kind, approval.MissionRevision), err)
}
