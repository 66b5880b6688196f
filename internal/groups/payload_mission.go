package groups

import "github.com/missionweave/server/internal/protocol"

// Event payloads of Missions (COMMANDS.md 6.1, 6.2). A member is exactly what
// the catalogue lists; a doc is the document after the Event.

// MissionCreated is mission.created and mission.follow_up.created.
type MissionCreated struct {
	Mission             protocol.Mission         `json:"mission"`
	Group               protocol.Group           `json:"group"`
	Conversation        protocol.Conversation    `json:"conversation"`
	Memberships         []protocol.Membership    `json:"memberships"`
	CoordinatorLease    protocol.Lease           `json:"coordinatorLease"`
	Permissions         []protocol.ResourceGrant `json:"permissions"`
	AllowedCapabilities []protocol.CapabilityRef `json:"allowedCapabilities,omitempty"`

	// Child Missions only.
	ParentGroupID    string `json:"parentGroupId,omitempty"`
	ParentWorkItemID string `json:"parentWorkItemId,omitempty"`
	SourceEventID    string `json:"sourceEventId,omitempty"`
	FailurePolicy    string `json:"failurePolicy,omitempty"`

	// Follow-ups only.
	FollowUpToMissionID string                     `json:"followUpToMissionId,omitempty"`
	Revocation          *Signed[protocol.Approval] `json:"revocation,omitempty"`

	PolicyLogEntryID string `json:"policyLogEntryId"`
}

// MissionChildCreated is mission.child.created, in the parent's Group.
type MissionChildCreated struct {
	WorkItemID              string                  `json:"workItemId"`
	State                   string                  `json:"state"`
	ChildMissionID          string                  `json:"childMissionId"`
	ChildGroupID            string                  `json:"childGroupId"`
	ChildCoordinatorAgentID string                  `json:"childCoordinatorAgentId"`
	ChildBudget             protocol.Budget         `json:"childBudget"`
	ChildDeadline           string                  `json:"childDeadline"`
	FailurePolicy           string                  `json:"failurePolicy"`
	Owner                   protocol.Owner          `json:"owner"`
	SelectionBasis          protocol.SelectionBasis `json:"selectionBasis"`
	CustodyLease            protocol.Lease          `json:"custodyLease"`
	ClosedLeases            []protocol.Lease        `json:"closedLeases"`
	WithdrawnOfferIDs       []string                `json:"withdrawnOfferIds"`
	PreviousOwner           *protocol.Owner         `json:"previousOwner,omitempty"`
}

// FormerCoordinator names who was replaced.
type FormerCoordinator struct {
	AgentID          string `json:"agentId"`
	CoordinatorEpoch int64  `json:"coordinatorEpoch"`
}

// MissionCoordinatorAssigned is mission.coordinator.assigned.
type MissionCoordinatorAssigned struct {
	PreviousCoordinator FormerCoordinator                `json:"previousCoordinator"`
	Coordinator         protocol.Coordinator             `json:"coordinator"`
	CoordinatorLease    protocol.Lease                   `json:"coordinatorLease"`
	ClosedLease         *protocol.Lease                  `json:"closedLease,omitempty"`
	Reason              string                           `json:"reason,omitempty"`
	ContextPackage      *Signed[protocol.ContextPackage] `json:"contextPackage,omitempty"`
	PolicyLogEntryID    string                           `json:"policyLogEntryId"`
}

// MissionCoordinatorRenewed is mission.coordinator.renewed.
type MissionCoordinatorRenewed struct {
	CoordinatorEpoch int64          `json:"coordinatorEpoch"`
	CoordinatorLease protocol.Lease `json:"coordinatorLease"`
}

// MissionSubmittedForApproval is mission.submitted_for_approval.
type MissionSubmittedForApproval struct {
	MissionID        string            `json:"missionId"`
	MissionRevision  int64             `json:"missionRevision"`
	ArtifactHashes   []string          `json:"artifactHashes"`
	AcceptedFailures []AcceptedFailure `json:"acceptedFailures,omitempty"`
}

// MissionApproved is mission.approved.
type MissionApproved struct {
	MissionID        string                     `json:"missionId"`
	Approval         *Signed[protocol.Approval] `json:"approval"`
	HumanApproval    *Signed[protocol.Approval] `json:"humanApproval,omitempty"`
	ClosedLease      protocol.Lease             `json:"closedLease"`
	PolicyLogEntryID string                     `json:"policyLogEntryId"`
}

// MissionChangesRequested is mission.changes_requested.
type MissionChangesRequested struct {
	MissionID        string                     `json:"missionId"`
	Approval         *Signed[protocol.Approval] `json:"approval"`
	PolicyLogEntryID string                     `json:"policyLogEntryId"`
}

// MissionCancelled is mission.cancelled.
type MissionCancelled struct {
	MissionID        string          `json:"missionId"`
	Reason           string          `json:"reason"`
	ClosedLease      *protocol.Lease `json:"closedLease,omitempty"`
	SourceEventID    string          `json:"sourceEventId,omitempty"`
	SourceGroupID    string          `json:"sourceGroupId,omitempty"`
	PolicyLogEntryID string          `json:"policyLogEntryId"`
}

// MissionTerminated is mission.terminated.
type MissionTerminated struct {
	MissionID        string                       `json:"missionId"`
	Reason           string                       `json:"reason"`
	Evidence         []*Signed[protocol.Evidence] `json:"evidence,omitempty"`
	ClosedLease      *protocol.Lease              `json:"closedLease,omitempty"`
	SourceEventID    string                       `json:"sourceEventId,omitempty"`
	SourceGroupID    string                       `json:"sourceGroupId,omitempty"`
	PolicyLogEntryID string                       `json:"policyLogEntryId"`
}

// MissionDeadlineExtended is ext.missionweave.mission.deadline_extended.
type MissionDeadlineExtended struct {
	MissionID        string `json:"missionId"`
	PreviousDeadline string `json:"previousDeadline"`
	Deadline         string `json:"deadline"`
	Reason           string `json:"reason"`
	PolicyLogEntryID string `json:"policyLogEntryId"`
}

// MissionOwnerTransferred is ext.missionweave.authority.mission_owner_transferred.
type MissionOwnerTransferred struct {
	MissionID            string         `json:"missionId"`
	PreviousMissionOwner protocol.Actor `json:"previousMissionOwner"`
	MissionOwner         protocol.Actor `json:"missionOwner"`
	SourceEventID        string         `json:"sourceEventId"`
	PolicyLogEntryID     string         `json:"policyLogEntryId"`
}

// FollowUpLinked is ext.missionweave.authority.follow_up_linked.
type FollowUpLinked struct {
	FollowUpMissionID string                     `json:"followUpMissionId"`
	FollowUpGroupID   string                     `json:"followUpGroupId"`
	Revocation        *Signed[protocol.Approval] `json:"revocation,omitempty"`
	PolicyLogEntryID  string                     `json:"policyLogEntryId"`
}

// SoftLimitReached is ext.missionweave.authority.soft_limit_reached.
type SoftLimitReached struct {
	PolicyName string         `json:"policyName"`
	Subject    protocol.Actor `json:"subject"`
	Current    int64          `json:"current"`
	Limit      int64          `json:"limit"`
}

// GroupSnapshotCreated is group.snapshot.created.
type GroupSnapshotCreated struct {
	Snapshot         *Signed[protocol.GroupSnapshot] `json:"snapshot"`
	SnapshotHash     string                          `json:"snapshotHash"`
	PolicyLogEntryID string                          `json:"policyLogEntryId"`
}

// GroupArchived is group.archived.
type GroupArchived struct {
	Group      protocol.Group `json:"group"`
	SnapshotID string         `json:"snapshotId"`
	ArchivedAt string         `json:"archivedAt"`
}
