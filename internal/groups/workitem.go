package groups

import (
	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/protocol"
)

// WorkItem is the WorkItem document with the authority around it.
type WorkItem struct {
	protocol.WorkItem

	// OwnershipEpoch is the last epoch given out; fencing an owner does not
	// raise it, acceptance and custody do (COMMANDS.md E10).
	OwnershipEpoch int64 `json:"ownershipEpoch,omitempty"`
	// Owners maps every Agent that ever owned the WorkItem to its last epoch.
	Owners map[string]int64 `json:"owners,omitempty"`
	// OwnerFenced says that the owner record stays but is never live again
	// (ended Membership, custody whose child ended).
	OwnerFenced bool `json:"ownerFenced,omitempty"`
	// Custody says that the owner record is the Parent Coordinator's, made by
	// mission.create_child; it carries no execution right.
	Custody bool `json:"custody,omitempty"`
	// StartedEpoch is the last Ownership Epoch under which work was started.
	StartedEpoch int64 `json:"startedEpoch,omitempty"`

	// Ownership, Execution and Blocked name the current leases; nil when none
	// is open. A lease past its expiry stays here until an Event closes it.
	Ownership *protocol.Lease `json:"ownershipLease,omitempty"`
	Execution *protocol.Lease `json:"executionLease,omitempty"`
	Blocked   *protocol.Lease `json:"blockedLease,omitempty"`
	// ClosedLeases are all former ones, in the order of closing.
	ClosedLeases []protocol.Lease `json:"closedLeases,omitempty"`

	ParentWorkItemID   string `json:"parentWorkItemId,omitempty"`
	ReplacesWorkItemID string `json:"replacesWorkItemId,omitempty"`
	// ReplacedBy lists the WorkItems that stand in for this one.
	ReplacedBy        []string `json:"replacedBy,omitempty"`
	DelegationGrantID string   `json:"delegationGrantId,omitempty"`
	DelegationDepth   int64    `json:"delegationDepth,omitempty"`
	// Children links the child Missions in order; only the last can be live.
	Children []ChildLink `json:"children,omitempty"`

	// Block says why a Worker blocked the WorkItem and what it needs; nil while
	// it is not blocked by a Worker.
	Block *BlockNote `json:"block,omitempty"`

	Artifacts   []*Artifact  `json:"artifacts,omitempty"`
	Checkpoints []Checkpoint `json:"checkpoints,omitempty"`

	Executions     []ExecutionApproval `json:"executions,omitempty"`
	Requests       []ApprovalRequest   `json:"requests,omitempty"`
	ActionRequests []ActionApproval    `json:"actionRequests,omitempty"`

	// key is what duplicate_decomposition compares; zero when finished.
	key contractKey
}

// Child states as this Group's own Events tell.
const (
	ChildLive      = "live"
	ChildApproved  = "approved"
	ChildFailed    = "failed"
	ChildCancelled = "cancelled"
)

// ChildLink is a child Mission of a WorkItem.
type ChildLink struct {
	MissionID          string          `json:"missionId"`
	GroupID            string          `json:"groupId"`
	CoordinatorAgentID string          `json:"coordinatorAgentId"`
	FailurePolicy      string          `json:"failurePolicy"`
	Budget             protocol.Budget `json:"budget"`
	State              string          `json:"state"`
	// ApprovedHashes are the child's approved Artifact hashes.
	ApprovedHashes []string `json:"approvedHashes,omitempty"`
}

// BlockNote is a Worker's reason for a blocked WorkItem.
type BlockNote struct {
	Reason             string `json:"reason"`
	RequiredResolution string `json:"requiredResolution"`
}

// Artifact is an Artifact manifest and the authority it was published under.
type Artifact struct {
	Manifest         *Signed[protocol.Artifact] `json:"artifact"`
	OwnershipEpoch   int64                      `json:"ownershipEpoch"`
	ExecutionLeaseID string                     `json:"executionLeaseId"`
}

// Checkpoint is durable progress of a Worker.
type Checkpoint struct {
	CheckpointID      string            `json:"checkpointId"`
	OwnershipEpoch    int64             `json:"ownershipEpoch"`
	Progress          protocol.Progress `json:"progress"`
	StateArtifactHash string            `json:"stateArtifactHash,omitempty"`
	OccurredAt        string            `json:"occurredAt"`
}

// ExecutionApproval is a human's or service's word on the start gate.
type ExecutionApproval struct {
	ApprovalID      string           `json:"approvalId"`
	OwnershipEpoch  int64            `json:"ownershipEpoch"`
	Operations      []string         `json:"operations"`
	Resources       []string         `json:"resources"`
	Budget          *protocol.Budget `json:"budget,omitempty"`
	ArgumentsDigest string           `json:"argumentsDigest,omitempty"`
	ExpiresAt       string           `json:"expiresAt,omitempty"`
	// Status is approved, denied, revoked or expired.
	Status    string         `json:"status"`
	Approver  protocol.Actor `json:"approver"`
	RequestID string         `json:"requestId,omitempty"`
	// Sequence orders it among grants and denials.
	Sequence int64 `json:"sequence"`
}

// ApprovalRequest asks for an execution approval.
type ApprovalRequest struct {
	ExecutionRequest
	// Status is pending, granted, denied, expired or superseded.
	Status string `json:"status"`
}

// ActionApproval is one ASK about one Proposed Action (COMMANDS.md E12).
type ActionApproval struct {
	Request ActionRequest `json:"request"`
	// Decision is set once decided.
	Decision *ActionDecision `json:"decision,omitempty"`
	// ConsumedByActionID is set once used.
	ConsumedByActionID string `json:"consumedByActionId,omitempty"`
	// Expired is set when the timer recorded the expiry.
	Expired bool `json:"expired,omitempty"`
}

// Proposal is a proposed WorkItem.
type Proposal struct {
	ProposalDoc
	key contractKey
}

// contractKey identifies a decomposition under a parent.
type contractKey struct {
	parent string
	digest [32]byte
}

// Child returns the last child link, nil when there was none.
func (w *WorkItem) Child() *ChildLink {
	if len(w.Children) == 0 {
		return nil
	}
	return &w.Children[len(w.Children)-1]
}

// ChildIsLive reports that the WorkItem is handed to a living child Mission.
func (w *WorkItem) ChildIsLive() bool {
	c := w.Child()
	return c != nil && c.State == ChildLive
}

// Unfinished reports a state from open to submitted.
func (w *WorkItem) Unfinished() bool {
	switch w.State {
	case protocol.WorkVerified, protocol.WorkFailed, protocol.WorkCancelled:
		return false
	}
	return true
}

// Account is the WorkItem's budget account.
func (w *WorkItem) Account() budget.Ref { return budget.WorkItemRef(w.WorkItemID) }
