package client

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/missionweave/server/internal/protocol/lexical"
)

// Board is what one member knows of a Group: a fold over the Events it was
// sent. Folding the same Events again gives the same Board, so whatever was lost
// with a process comes back by replay. A member that joined late has not seen
// everything; WorkItems it lacks the contract of are marked Unread and are to be
// read from the server once (Adopt).
//
// A Board is not safe for concurrent use.
type Board struct {
	Me               Actor
	GroupID          string
	MissionID        string
	Head             int64 // last sequence learned
	State            string
	Archived         bool
	MissionOwner     Actor
	CoordinatorID    string
	CoordinatorEpoch int64
	// LeadUntil is when the Coordinator lease ends.
	LeadUntil        time.Time
	MainConversation string
	Submitted        MissionSubmission
	Items            map[string]*Work
	Members          map[string]Membership // by Principal id
	Proposals        map[string]WorkProposal
	Grants           map[string]DelegationGrant
}

// MissionSubmission is what the Coordinator handed in for Approval.
type MissionSubmission struct {
	Revision int64
	Hashes   []string
}

// WorkProposal is a proposed WorkItem; Open until it was authorized.
type WorkProposal struct {
	ProposalID       string       `json:"proposalId"`
	ProposedBy       Actor        `json:"proposedBy"`
	Contract         WorkContract `json:"contract"`
	ParentWorkItemID string       `json:"parentWorkItemId"`
	Rationale        string       `json:"rationale"`
	Open             bool         `json:"-"`
}

// Work is what is known of a WorkItem.
type Work struct {
	ID             string
	GroupID        string
	ConversationID string
	Title          string
	State          string
	// Unread tells that its contract has not been seen.
	Unread             bool
	Contract           WorkContract
	ParentWorkItemID   string
	ReplacesWorkItemID string
	ChildMissionID     string
	Offers             []Offer
	Owner              *Owner
	OwnershipEpoch     int64
	OwnershipLease     *Lease
	ExecutionLease     *Lease
	Artifacts          []Artifact
	Submission         []string // hashes
	Evidence           []Evidence
	Progress           *Progress
	Checkpoints        []Checkpoint
	// Reason says why it is blocked, failed or cancelled, RequiredResolution what a
	// blocked one waits for.
	Reason, RequiredResolution string
	// QueuedAt is when it last came to be queued.
	QueuedAt time.Time
	// Sequence is that of its last Event.
	Sequence int64
}

// Checkpoint is durable progress; StateArtifactHash names the saved state.
type Checkpoint struct {
	CheckpointID      string
	Progress          Progress
	StateArtifactHash string
}

// NewBoard is an empty Board of a member.
func NewBoard(me Actor, groupID string) *Board {
	return &Board{
		Me: me, GroupID: groupID, Items: map[string]*Work{}, Members: map[string]Membership{},
		Proposals: map[string]WorkProposal{}, Grants: map[string]DelegationGrant{},
	}
}

// boardFacts are the payload members that change a Board.
type boardFacts struct {
	State              string           `json:"state"`
	Mission            *Mission         `json:"mission"`
	Conversation       *conversationRef `json:"conversation"`
	Memberships        []Membership     `json:"memberships"`
	Membership         *Membership      `json:"membership"`
	Coordinator        *coordinatorRef  `json:"coordinator"`
	CoordinatorLease   *Lease           `json:"coordinatorLease"`
	MissionOwner       *Actor           `json:"missionOwner"`
	WorkItem           *WorkItem        `json:"workItem"`
	ParentWorkItemID   string           `json:"parentWorkItemId"`
	ReplacesWorkItemID string           `json:"replacesWorkItemId"`
	ChildMissionID     string           `json:"childMissionId"`
	Contract           *WorkContract    `json:"contract"`
	Offers             []Offer          `json:"offers"`
	Owner              *Owner           `json:"owner"`
	OwnershipEpoch     int64            `json:"ownershipEpoch"`
	OwnershipReleased  bool             `json:"ownershipReleased"`
	OwnershipLease     *Lease           `json:"ownershipLease"`
	ExecutionLease     *Lease           `json:"executionLease"`
	Artifact           *Artifact        `json:"artifact"`
	Submission         *Submission      `json:"submission"`
	Evidence           []Evidence       `json:"evidence"`
	Progress           *Progress        `json:"progress"`
	CheckpointID       string           `json:"checkpointId"`
	StateArtifactHash  string           `json:"stateArtifactHash"`
	Reason             string           `json:"reason"`
	RequiredResolution string           `json:"requiredResolution"`
	MissionRevision    int64            `json:"missionRevision"`
	ArtifactHashes     []string         `json:"artifactHashes"`
	Proposal           *WorkProposal    `json:"proposal"`
	ProposalID         string           `json:"proposalId"`
	DelegationGrant    *DelegationGrant `json:"delegationGrant"`
}

type conversationRef struct {
	ConversationID string `json:"conversationId"`
	Title          string `json:"title"`
}

type coordinatorRef struct {
	AgentID          string `json:"agentId"`
	CoordinatorEpoch int64  `json:"coordinatorEpoch"`
}

// Learn takes the next Event of the Group. An Event that was learned before
// changes nothing.
func (b *Board) Learn(e Event) error {
	if e.GroupID != b.GroupID {
		return fmt.Errorf("client: an Event of Group %s for the Board of %s", e.GroupID, b.GroupID)
	}
	if e.Sequence <= b.Head {
		return nil
	}
	var f boardFacts
	if err := Decode(e.Payload, &f); err != nil {
		return fmt.Errorf("client: the payload of %s at %d: %w", e.Kind, e.Sequence, err)
	}
	b.Head = e.Sequence
	b.learnMission(e, &f)
	for _, m := range f.Memberships {
		b.Members[m.Member.ID] = m
	}
	if f.Membership != nil {
		b.Members[f.Membership.Member.ID] = *f.Membership
	}
	switch e.Kind {
	case "work.proposed":
		f.Proposal.Open = true
		b.Proposals[f.Proposal.ProposalID] = *f.Proposal
	case "work.authorized":
		if p, ok := b.Proposals[f.ProposalID]; ok {
			p.Open = false
			b.Proposals[f.ProposalID] = p
		}
	case "membership.delegation.granted":
		b.Grants[f.DelegationGrant.GrantID] = *f.DelegationGrant
	}
	if e.WorkItemID != "" && f.State != "" { // a WorkItem Event
		w := b.Items[e.WorkItemID]
		if w == nil {
			w = &Work{ID: e.WorkItemID, GroupID: b.GroupID, Unread: true}
			b.Items[w.ID] = w
		}
		w.learn(e, &f)
	}
	return nil
}

func (b *Board) learnMission(e Event, f *boardFacts) {
	if m := f.Mission; m != nil {
		b.MissionID, b.State, b.MissionOwner = m.MissionID, m.State, m.MissionOwner
		b.CoordinatorID, b.CoordinatorEpoch = m.Coordinator.AgentID, m.Coordinator.CoordinatorEpoch
	}
	if l := f.CoordinatorLease; l != nil {
		b.LeadUntil, b.MissionID = parseTime(l.ExpiresAt), l.MissionID
		b.CoordinatorID, b.CoordinatorEpoch = l.HolderAgentID, l.CoordinatorEpoch
	}
	switch e.Kind {
	case "mission.created", "mission.follow_up.created":
		b.MainConversation = f.Conversation.ConversationID
	case "ext.missionweave.authority.mission_owner_transferred":
		b.MissionOwner = *f.MissionOwner
	case "mission.submitted_for_approval":
		b.State, b.Submitted = "awaiting_approval", MissionSubmission{Revision: f.MissionRevision, Hashes: f.ArtifactHashes}
	case "mission.changes_requested":
		b.State, b.Submitted = "active", MissionSubmission{}
	case "mission.approved":
		b.State = "approved"
	case "mission.cancelled":
		b.State = "cancelled"
	case "mission.terminated":
		b.State = "failed"
	case "group.archived":
		b.Archived = true
	}
}

func (w *Work) learn(e Event, f *boardFacts) {
	w.State, w.Sequence = f.State, e.Sequence
	if e.ConversationID != "" {
		w.ConversationID = e.ConversationID
	}
	if f.OwnershipEpoch > 0 {
		w.OwnershipEpoch = f.OwnershipEpoch
	}
	if f.Offers != nil {
		w.Offers = f.Offers
	}
	if f.OwnershipLease != nil {
		w.OwnershipLease = f.OwnershipLease
	}
	if f.ExecutionLease != nil {
		w.ExecutionLease = f.ExecutionLease
	}
	if f.Progress != nil {
		w.Progress = f.Progress
	}
	w.Evidence = append(w.Evidence, f.Evidence...)
	switch e.Kind {
	case "work.authorized":
		w.adopt(f.WorkItem)
		w.ParentWorkItemID, w.ReplacesWorkItemID = f.ParentWorkItemID, f.ReplacesWorkItemID
		if f.Conversation != nil {
			w.Title = f.Conversation.Title
		}
	case "work.contract.revised":
		if f.Contract != nil {
			w.Contract, w.Unread = *f.Contract, false
		}
		w.withdraw()
	case "work.offer.created":
		w.Owner, w.ExecutionLease, w.OwnershipLease, w.Submission = nil, nil, nil, nil
	case "work.offer.accepted":
		w.Owner, w.QueuedAt = f.Owner, parseTime(e.OccurredAt)
		w.Artifacts = nil // what an earlier owner published is not this one's to submit
	case "work.checkpointed":
		w.ExecutionLease, w.QueuedAt = nil, parseTime(e.OccurredAt)
		w.checkpoint(f)
	case "work.blocked":
		w.ExecutionLease = nil
		w.Reason, w.RequiredResolution = f.Reason, f.RequiredResolution
		w.checkpoint(f)
	case "work.unblocked":
		w.Reason, w.RequiredResolution, w.QueuedAt = "", "", parseTime(e.OccurredAt)
		if f.OwnershipReleased {
			w.Owner = nil
		}
	case "ext.missionweaveprotocol.core.work_execution_lease_revoked":
		w.ExecutionLease, w.QueuedAt = nil, parseTime(e.OccurredAt)
	case "mission.child.created":
		w.ChildMissionID, w.Owner, w.ExecutionLease = f.ChildMissionID, f.Owner, nil
		w.withdraw()
	case "artifact.published":
		w.Artifacts = append(w.Artifacts, *f.Artifact)
	case "work.submitted":
		w.ExecutionLease, w.Submission = nil, f.Submission.ArtifactHashes
	case "work.result.accepted":
		if f.Submission != nil {
			w.Submission = f.Submission.ArtifactHashes
		}
	case "work.failed", "work.cancelled":
		w.Owner, w.ExecutionLease, w.Reason = nil, nil, f.Reason
		w.withdraw()
	case "ext.missionweave.authority.ownership_released":
		w.Owner, w.ExecutionLease = nil, nil
	}
}

func (w *Work) withdraw() {
	for i := range w.Offers {
		if w.Offers[i].Status == "pending" {
			w.Offers[i].Status = "withdrawn"
		}
	}
}

func (w *Work) checkpoint(f *boardFacts) {
	if f.CheckpointID != "" && f.Progress != nil {
		w.Checkpoints = append(w.Checkpoints, Checkpoint{
			CheckpointID: f.CheckpointID, Progress: *f.Progress, StateArtifactHash: f.StateArtifactHash,
		})
	}
}

// Adopt takes over from a document read from the server what Events before the
// member's time said. The state stays what the Events say, if they say any.
func (b *Board) Adopt(doc *WorkItem) *Work {
	w := b.Items[doc.WorkItemID]
	if w == nil {
		w = &Work{ID: doc.WorkItemID, GroupID: b.GroupID, State: doc.State}
		b.Items[w.ID] = w
		if doc.Submission != nil {
			w.Submission = doc.Submission.ArtifactHashes
		}
	}
	w.adopt(doc)
	return w
}

func (w *Work) adopt(doc *WorkItem) {
	w.Contract, w.Unread, w.ConversationID = doc.Contract, false, doc.ConversationID
}

// Epoch is the member's present Membership Epoch, 0 without a Membership.
func (b *Board) Epoch() int64 {
	if m, ok := b.Members[b.Me.ID]; ok && m.State != "ended" {
		return m.MembershipEpoch
	}
	return 0
}

// Owns tells whether this member owns a WorkItem.
func (b *Board) Owns(w *Work) bool { return w.Owner != nil && w.Owner.AgentID == b.Me.ID }

// PendingOffer is this member's pending offer on a WorkItem.
func (b *Board) PendingOffer(w *Work, now time.Time) (Offer, bool) {
	for _, o := range w.Offers {
		if o.AgentID == b.Me.ID && o.Status == "pending" && now.Before(parseTime(o.ExpiresAt)) {
			return o, true
		}
	}
	return Offer{}, false
}

// Verified tells whether a WorkItem is verified, or another one that stands in
// for it.
func (b *Board) Verified(workItemID string) bool {
	if w := b.Items[workItemID]; w != nil && w.State == "verified" {
		return true
	}
	for _, w := range b.Items {
		if w.ReplacesWorkItemID == workItemID && w.ID != workItemID && b.Verified(w.ID) {
			return true
		}
	}
	return false
}

// Ready tells whether all dependencies of a WorkItem are verified.
func (b *Board) Ready(w *Work) bool {
	return !w.Unread && !slices.ContainsFunc(w.Contract.DependencyWorkItemIDs, func(id string) bool { return !b.Verified(id) })
}

// Unknown are WorkItems that have to be read from the server: those whose
// contract was not seen, and dependencies that never came up.
func (b *Board) Unknown() []string {
	ids := map[string]bool{}
	for id, w := range b.Items {
		if w.Unread {
			ids[id] = true
			continue
		}
		for _, d := range w.Contract.DependencyWorkItemIDs {
			if b.Items[d] == nil {
				ids[d] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// Sorted are the WorkItems in the order of their ids.
func (b *Board) Sorted() []*Work {
	out := make([]*Work, 0, len(b.Items))
	for _, id := range slices.Sorted(maps.Keys(b.Items)) {
		out = append(out, b.Items[id])
	}
	return out
}

func parseTime(s string) time.Time {
	t, err := lexical.ParseTimestamp(s)
	if err != nil {
		return time.Time{}
	}
	return t.Time()
}
