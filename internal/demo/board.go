package demo

import (
	"fmt"

	"github.com/missionweave/server/client"
)

// board is what one actor knows, made from the Events it was sent.
type board struct {
	head             int64
	coordinatorEpoch int64
	membershipEpoch  map[string]int64 // Principal id -> epoch
	mainConversation string
	items            map[string]*item
	state            string // of the Mission
	submitted        submission
}

// submission is what the Coordinator handed in for Approval.
type submission struct {
	revision int64
	hashes   []string
}

// item is what is known of a WorkItem.
type item struct {
	id, state      string
	conversation   string
	contract       client.WorkContract
	offers         []client.Offer
	owner          *client.Owner
	executionLease string
	artifacts      []client.Artifact
	submission     []string // hashes
	checkpoints    int      // work.checkpointed Events
}

func newBoard() *board {
	return &board{membershipEpoch: map[string]int64{}, items: map[string]*item{}}
}

// facts are the payload members that the actors act upon.
type facts struct {
	State            string              `json:"state"`
	Mission          *client.Mission     `json:"mission"`
	Conversation     *conversationRef    `json:"conversation"`
	Memberships      []client.Membership `json:"memberships"`
	Membership       *client.Membership  `json:"membership"`
	CoordinatorEpoch int64               `json:"coordinatorEpoch"`
	WorkItem         *client.WorkItem    `json:"workItem"`
	Offers           []client.Offer      `json:"offers"`
	Owner            *client.Owner       `json:"owner"`
	ExecutionLease   *client.Lease       `json:"executionLease"`
	Artifact         *client.Artifact    `json:"artifact"`
	Submission       *struct {
		ArtifactHashes []string `json:"artifactHashes"`
	} `json:"submission"`
	MissionRevision int64    `json:"missionRevision"`
	ArtifactHashes  []string `json:"artifactHashes"`
}

type conversationRef struct {
	ConversationID string `json:"conversationId"`
}

// learn takes the next Event of the Group.
func (b *board) learn(e client.Event) error {
	if e.Sequence <= b.head {
		return fmt.Errorf("sequence %d to come once and in order, after %d", e.Sequence, b.head)
	}
	b.head = e.Sequence
	var f facts
	if err := client.Decode(e.Payload, &f); err != nil {
		return fmt.Errorf("a readable payload of %s: %w", e.Kind, err)
	}
	if f.Mission != nil {
		b.coordinatorEpoch, b.state = f.Mission.Coordinator.CoordinatorEpoch, f.Mission.State
	}
	for _, m := range append(f.Memberships, deref(f.Membership)...) {
		b.membershipEpoch[m.Member.ID] = m.MembershipEpoch
	}
	switch e.Kind {
	case "mission.created":
		b.mainConversation = f.Conversation.ConversationID
	case "mission.submitted_for_approval":
		b.state, b.submitted = "awaiting_approval", submission{revision: f.MissionRevision, hashes: f.ArtifactHashes}
	case "mission.changes_requested":
		b.state = "active"
	case "mission.approved":
		b.state = "approved"
	case "work.authorized":
		b.items[f.WorkItem.WorkItemID] = &item{
			id: f.WorkItem.WorkItemID, conversation: f.WorkItem.ConversationID, contract: f.WorkItem.Contract,
		}
	}
	if i := b.items[e.WorkItemID]; i != nil {
		i.learn(e, f)
	}
	return nil
}

func (i *item) learn(e client.Event, f facts) {
	if f.State != "" {
		i.state = f.State
	}
	if f.Offers != nil {
		i.offers = f.Offers
	}
	if f.Owner != nil {
		i.owner = f.Owner
	}
	if f.ExecutionLease != nil {
		i.executionLease = f.ExecutionLease.LeaseID
	}
	if f.Artifact != nil {
		i.artifacts = append(i.artifacts, *f.Artifact)
	}
	switch e.Kind {
	case "work.checkpointed":
		i.executionLease = ""
		i.checkpoints++
	case "ext.missionweaveprotocol.core.work_execution_lease_revoked":
		i.executionLease = ""
	case "work.submitted":
		i.submission = f.Submission.ArtifactHashes
	}
}

// ready reports whether all dependencies of a WorkItem are verified.
func (b *board) ready(i *item) bool {
	for _, d := range i.contract.DependencyWorkItemIDs {
		if other := b.items[d]; other == nil || other.state != "verified" {
			return false
		}
	}
	return true
}

func deref[T any](p *T) []T {
	if p == nil {
		return nil
	}
	return []T{*p}
}
