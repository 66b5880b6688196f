package groups

import (
	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/protocol"
)

// Event payloads of WorkItems, budgets, Artifacts and approvals (COMMANDS.md
// 6.1, 6.2). Every Event of the WorkItem aggregate names the WorkItem and the
// state it is in afterwards.

// EmergencyOverride is a human MissionOwner's audited reason.
type EmergencyOverride struct {
	Reason string `json:"reason"`
}

// WorkAuthorized is work.authorized.
type WorkAuthorized struct {
	WorkItemID         string                `json:"workItemId"`
	State              string                `json:"state"`
	WorkItem           protocol.WorkItem     `json:"workItem"`
	Conversation       protocol.Conversation `json:"conversation"`
	ProposalID         string                `json:"proposalId,omitempty"`
	ParentWorkItemID   string                `json:"parentWorkItemId,omitempty"`
	ReplacesWorkItemID string                `json:"replacesWorkItemId,omitempty"`
	DelegationGrantID  string                `json:"delegationGrantId,omitempty"`
	DelegationDepth    int64                 `json:"delegationDepth"`
	EmergencyOverride  *EmergencyOverride    `json:"emergencyOverride,omitempty"`
	PolicyLogEntryID   string                `json:"policyLogEntryId,omitempty"`
}

// WorkOfferCreated is work.offer.created.
type WorkOfferCreated struct {
	WorkItemID        string                           `json:"workItemId"`
	State             string                           `json:"state"`
	Offers            []protocol.Offer                 `json:"offers"`
	CreatedOfferIDs   []string                         `json:"createdOfferIds"`
	ExtendedOfferIDs  []string                         `json:"extendedOfferIds"`
	WithdrawnOfferIDs []string                         `json:"withdrawnOfferIds"`
	SelectionBasis    protocol.SelectionBasis          `json:"selectionBasis"`
	ContractVersion   int64                            `json:"contractVersion"`
	PreviousOwner     *protocol.Owner                  `json:"previousOwner,omitempty"`
	ClosedLeases      []protocol.Lease                 `json:"closedLeases"`
	ContextPackage    *Signed[protocol.ContextPackage] `json:"contextPackage,omitempty"`
	DelegationGrantID string                           `json:"delegationGrantId,omitempty"`
	EmergencyOverride *EmergencyOverride               `json:"emergencyOverride,omitempty"`
	PolicyLogEntryID  string                           `json:"policyLogEntryId,omitempty"`
}

// WorkOfferAccepted is work.offer.accepted.
type WorkOfferAccepted struct {
	WorkItemID       string                     `json:"workItemId"`
	State            string                     `json:"state"`
	OfferID          string                     `json:"offerId"`
	Offers           []protocol.Offer           `json:"offers"`
	Owner            protocol.Owner             `json:"owner"`
	OwnershipEpoch   int64                      `json:"ownershipEpoch"`
	OwnershipLease   protocol.Lease             `json:"ownershipLease"`
	AgentCardVersion int64                      `json:"agentCardVersion"`
	CapabilityPins   []protocol.CapabilityRef   `json:"capabilityPins"`
	ScheduleEstimate *protocol.ScheduleEstimate `json:"scheduleEstimate,omitempty"`
}

// WorkContractRevised is work.contract.revised; cause is offer or
// dependency_added.
type WorkContractRevised struct {
	WorkItemID                 string                `json:"workItemId"`
	State                      string                `json:"state"`
	Contract                   protocol.WorkContract `json:"contract"`
	ContractVersion            int64                 `json:"contractVersion"`
	Cause                      string                `json:"cause"`
	AddedDependencyWorkItemIDs []string              `json:"addedDependencyWorkItemIds,omitempty"`
	WithdrawnOfferIDs          []string              `json:"withdrawnOfferIds"`
}

// WorkStarted is work.started.
type WorkStarted struct {
	WorkItemID              string         `json:"workItemId"`
	State                   string         `json:"state"`
	OwnershipEpoch          int64          `json:"ownershipEpoch"`
	ExecutionLease          protocol.Lease `json:"executionLease"`
	ExecutionLeaseExpiresAt string         `json:"executionLeaseExpiresAt"`
	OwnershipLease          protocol.Lease `json:"ownershipLease"`
	ApprovalID              string         `json:"approvalId,omitempty"`
}

// WorkProgressed is work.progressed.
type WorkProgressed struct {
	WorkItemID              string                     `json:"workItemId"`
	State                   string                     `json:"state"`
	OwnershipEpoch          int64                      `json:"ownershipEpoch"`
	ExecutionLease          protocol.Lease             `json:"executionLease"`
	ExecutionLeaseExpiresAt string                     `json:"executionLeaseExpiresAt"`
	OwnershipLease          protocol.Lease             `json:"ownershipLease"`
	Progress                *protocol.Progress         `json:"progress,omitempty"`
	ScheduleEstimate        *protocol.ScheduleEstimate `json:"scheduleEstimate,omitempty"`
}

// WorkCheckpointed is work.checkpointed.
type WorkCheckpointed struct {
	WorkItemID        string                     `json:"workItemId"`
	State             string                     `json:"state"`
	OwnershipEpoch    int64                      `json:"ownershipEpoch"`
	CheckpointID      string                     `json:"checkpointId"`
	Progress          protocol.Progress          `json:"progress"`
	StateArtifactHash string                     `json:"stateArtifactHash,omitempty"`
	ClosedLeases      []protocol.Lease           `json:"closedLeases"`
	OwnershipLease    protocol.Lease             `json:"ownershipLease"`
	ScheduleEstimate  *protocol.ScheduleEstimate `json:"scheduleEstimate,omitempty"`
}

// WorkBlocked is work.blocked: the Worker's form with a checkpoint, or the
// child's form with childMissionId and childOutcome.
type WorkBlocked struct {
	WorkItemID         string                       `json:"workItemId"`
	State              string                       `json:"state"`
	Reason             string                       `json:"reason"`
	RequiredResolution string                       `json:"requiredResolution"`
	Evidence           []*Signed[protocol.Evidence] `json:"evidence,omitempty"`
	ClosedLeases       []protocol.Lease             `json:"closedLeases"`

	OwnershipEpoch    int64                      `json:"ownershipEpoch,omitempty"`
	CheckpointID      string                     `json:"checkpointId,omitempty"`
	Progress          *protocol.Progress         `json:"progress,omitempty"`
	StateArtifactHash string                     `json:"stateArtifactHash,omitempty"`
	OwnershipLease    *protocol.Lease            `json:"ownershipLease,omitempty"`
	BlockedLease      *protocol.Lease            `json:"blockedLease,omitempty"`
	ScheduleEstimate  *protocol.ScheduleEstimate `json:"scheduleEstimate,omitempty"`

	ChildMissionID   string `json:"childMissionId,omitempty"`
	ChildOutcome     string `json:"childOutcome,omitempty"`
	SourceEventID    string `json:"sourceEventId,omitempty"`
	PolicyLogEntryID string `json:"policyLogEntryId,omitempty"`
}

// WorkUnblocked is work.unblocked.
type WorkUnblocked struct {
	WorkItemID        string           `json:"workItemId"`
	State             string           `json:"state"`
	Resolution        string           `json:"resolution,omitempty"`
	OwnershipLease    *protocol.Lease  `json:"ownershipLease,omitempty"`
	ClosedLeases      []protocol.Lease `json:"closedLeases"`
	OwnershipReleased bool             `json:"ownershipReleased"`
}

// WorkSubmitted is work.submitted.
type WorkSubmitted struct {
	WorkItemID     string                       `json:"workItemId"`
	State          string                       `json:"state"`
	OwnershipEpoch int64                        `json:"ownershipEpoch"`
	Submission     protocol.Submission          `json:"submission"`
	Evidence       []*Signed[protocol.Evidence] `json:"evidence"`
	ClosedLeases   []protocol.Lease             `json:"closedLeases"`
}

// WorkResultAccepted is work.result.accepted: the review form, or the child
// form with childMissionId.
type WorkResultAccepted struct {
	WorkItemID     string                       `json:"workItemId"`
	State          string                       `json:"state"`
	OwnershipEpoch int64                        `json:"ownershipEpoch,omitempty"`
	Evidence       []*Signed[protocol.Evidence] `json:"evidence"`
	ClosedLeases   []protocol.Lease             `json:"closedLeases"`

	ChildMissionID   string               `json:"childMissionId,omitempty"`
	ApprovalID       string               `json:"approvalId,omitempty"`
	Submission       *protocol.Submission `json:"submission,omitempty"`
	SourceEventID    string               `json:"sourceEventId,omitempty"`
	PolicyLogEntryID string               `json:"policyLogEntryId,omitempty"`
}

// WorkFailed is work.failed.
type WorkFailed struct {
	WorkItemID        string                       `json:"workItemId"`
	State             string                       `json:"state"`
	Reason            string                       `json:"reason"`
	FailureCode       string                       `json:"failureCode,omitempty"`
	Evidence          []*Signed[protocol.Evidence] `json:"evidence,omitempty"`
	OwnershipEpoch    int64                        `json:"ownershipEpoch,omitempty"`
	ClosedLeases      []protocol.Lease             `json:"closedLeases"`
	WithdrawnOfferIDs []string                     `json:"withdrawnOfferIds"`
	PreviousOwner     *protocol.Owner              `json:"previousOwner,omitempty"`
	ChildMissionID    string                       `json:"childMissionId,omitempty"`
	SourceEventID     string                       `json:"sourceEventId,omitempty"`
	PolicyLogEntryID  string                       `json:"policyLogEntryId,omitempty"`
}

// WorkCancelled is work.cancelled.
type WorkCancelled struct {
	WorkItemID        string           `json:"workItemId"`
	State             string           `json:"state"`
	Reason            string           `json:"reason"`
	ClosedLeases      []protocol.Lease `json:"closedLeases"`
	WithdrawnOfferIDs []string         `json:"withdrawnOfferIds"`
	PreviousOwner     *protocol.Owner  `json:"previousOwner,omitempty"`
	SourceEventID     string           `json:"sourceEventId,omitempty"`
}

// ArtifactPublished is artifact.published.
type ArtifactPublished struct {
	WorkItemID       string                     `json:"workItemId"`
	State            string                     `json:"state"`
	Artifact         *Signed[protocol.Artifact] `json:"artifact"`
	OwnershipEpoch   int64                      `json:"ownershipEpoch"`
	ExecutionLeaseID string                     `json:"executionLeaseId"`
}

// ExecutionGranted is approval.execution.granted.
type ExecutionGranted struct {
	WorkItemID       string                     `json:"workItemId"`
	State            string                     `json:"state"`
	Approval         *Signed[protocol.Approval] `json:"approval"`
	OwnershipEpoch   int64                      `json:"ownershipEpoch"`
	Operations       []string                   `json:"operations"`
	Resources        []string                   `json:"resources"`
	Budget           protocol.Budget            `json:"budget"`
	ExpiresAt        string                     `json:"expiresAt"`
	ArgumentsDigest  string                     `json:"argumentsDigest,omitempty"`
	RequestID        string                     `json:"requestId,omitempty"`
	PolicyLogEntryID string                     `json:"policyLogEntryId"`
}

// ExecutionRequest is a request for an execution approval.
type ExecutionRequest struct {
	RequestID       string           `json:"requestId"`
	RequestedBy     protocol.Actor   `json:"requestedBy"`
	OwnershipEpoch  int64            `json:"ownershipEpoch"`
	Operations      []string         `json:"operations"`
	Resources       []string         `json:"resources"`
	Budget          *protocol.Budget `json:"budget,omitempty"`
	ArgumentsDigest string           `json:"argumentsDigest,omitempty"`
	Reason          string           `json:"reason,omitempty"`
	ExpiresAt       string           `json:"expiresAt"`
}

// ExecutionRequested is ext.missionweave.approval.execution_requested.
type ExecutionRequested struct {
	WorkItemID string           `json:"workItemId"`
	State      string           `json:"state"`
	Request    ExecutionRequest `json:"request"`
}

// ExecutionDenied is ext.missionweave.approval.execution_denied.
type ExecutionDenied struct {
	WorkItemID       string                     `json:"workItemId"`
	State            string                     `json:"state"`
	Approval         *Signed[protocol.Approval] `json:"approval"`
	OwnershipEpoch   int64                      `json:"ownershipEpoch"`
	RequestID        string                     `json:"requestId,omitempty"`
	Late             bool                       `json:"late"`
	PolicyLogEntryID string                     `json:"policyLogEntryId"`
}

// ExecutionRevoked is ext.missionweave.approval.execution_revoked.
type ExecutionRevoked struct {
	WorkItemID        string                     `json:"workItemId"`
	State             string                     `json:"state"`
	Approval          *Signed[protocol.Approval] `json:"approval"`
	RevokedApprovalID string                     `json:"revokedApprovalId"`
	PolicyLogEntryID  string                     `json:"policyLogEntryId"`
}

// ExecutionExpired is ext.missionweave.approval.execution_expired.
type ExecutionExpired struct {
	WorkItemID string `json:"workItemId"`
	State      string `json:"state"`
	ApprovalID string `json:"approvalId,omitempty"`
	RequestID  string `json:"requestId,omitempty"`
	ExpiredAt  string `json:"expiredAt"`
}

// ActionRequest is one ASK about one Proposed Action.
type ActionRequest struct {
	RequestID           string         `json:"requestId"`
	ActionID            string         `json:"actionId"`
	ActionType          string         `json:"actionType"`
	RequestedBy         protocol.Actor `json:"requestedBy"`
	AgentID             string         `json:"agentId"`
	OwnershipEpoch      int64          `json:"ownershipEpoch"`
	ExecutionLeaseID    string         `json:"executionLeaseId,omitempty"`
	Operation           string         `json:"operation"`
	Resources           []string       `json:"resources"`
	ArgumentsDigest     string         `json:"argumentsDigest"`
	ArgsEqualityVersion string         `json:"argsEqualityVersion"`
	ManifestVersion     string         `json:"manifestVersion"`
	RuleID              string         `json:"ruleId"`
	Reason              string         `json:"reason"`
	Provenance          []string       `json:"provenance"`
	SideEffectClass     string         `json:"sideEffectClass"`
	ExpiresAt           string         `json:"expiresAt"`
}

// ActionRequested is ext.missionweave.approval.action_requested.
type ActionRequested struct {
	WorkItemID string        `json:"workItemId"`
	State      string        `json:"state"`
	Request    ActionRequest `json:"request"`
}

// ActionDecision is a human's answer to an ASK.
type ActionDecision struct {
	RequestID       string                     `json:"requestId"`
	Approval        *Signed[protocol.Approval] `json:"approval"`
	Scope           string                     `json:"scope"`
	ArgumentsDigest string                     `json:"argumentsDigest"`
	ManifestVersion string                     `json:"manifestVersion"`
	ExpiresAt       string                     `json:"expiresAt,omitempty"`
	Late            bool                       `json:"late"`
}

// ActionDecided is ext.missionweave.approval.action_decided.
type ActionDecided struct {
	WorkItemID       string                     `json:"workItemId"`
	State            string                     `json:"state"`
	RequestID        string                     `json:"requestId"`
	Approval         *Signed[protocol.Approval] `json:"approval"`
	Scope            string                     `json:"scope"`
	ArgumentsDigest  string                     `json:"argumentsDigest"`
	ManifestVersion  string                     `json:"manifestVersion"`
	ExpiresAt        string                     `json:"expiresAt,omitempty"`
	Late             bool                       `json:"late"`
	PolicyLogEntryID string                     `json:"policyLogEntryId"`
}

// ActionConsumed is ext.missionweave.approval.action_consumed.
type ActionConsumed struct {
	WorkItemID        string `json:"workItemId"`
	State             string `json:"state"`
	RequestID         string `json:"requestId"`
	ApprovalID        string `json:"approvalId"`
	ActionID          string `json:"actionId"`
	ExecutionLeaseID  string `json:"executionLeaseId"`
	CapabilityTokenID string `json:"capabilityTokenId"`
	PolicyLogEntryID  string `json:"policyLogEntryId"`
}

// LeaseRevoked is ext.missionweaveprotocol.core.work_execution_lease_revoked;
// reason is session_replaced or agent_revoked.
type LeaseRevoked struct {
	WorkItemID       string           `json:"workItemId"`
	State            string           `json:"state"`
	ExecutionLeaseID string           `json:"executionLeaseId"`
	OwnershipEpoch   int64            `json:"ownershipEpoch"`
	Reason           string           `json:"reason"`
	SessionEpoch     int64            `json:"sessionEpoch"`
	ClosedLeases     []protocol.Lease `json:"closedLeases"`
}

// OfflineReconciliation says when buffered usage really arose.
type OfflineReconciliation struct {
	DisconnectedAt             string `json:"disconnectedAt"`
	BufferedAt                 string `json:"bufferedAt"`
	GraceDeadline              string `json:"graceDeadline"`
	ExecutionSessionEpoch      int64  `json:"executionSessionEpoch"`
	ReconciliationSessionEpoch int64  `json:"reconciliationSessionEpoch"`
	ReconciledAt               string `json:"reconciledAt"`
	ProgressActionID           string `json:"progressActionId"`
}

// ResourceUsageRecorded is ext.missionweaveprotocol.core.resource_usage_recorded.
type ResourceUsageRecorded struct {
	WorkItemID             string                 `json:"workItemId"`
	ExecutionLeaseID       string                 `json:"executionLeaseId,omitempty"`
	OwnershipEpoch         int64                  `json:"ownershipEpoch,omitempty"`
	UsageDelta             budget.Usage           `json:"usageDelta"`
	CumulativeUsage        budget.Usage           `json:"cumulativeUsage"`
	RemainingBudget        protocol.Budget        `json:"remainingBudget"`
	MissionCumulativeUsage budget.Usage           `json:"missionCumulativeUsage"`
	MissionRemainingBudget protocol.Budget        `json:"missionRemainingBudget"`
	ChildMissionID         string                 `json:"childMissionId,omitempty"`
	SourceEventID          string                 `json:"sourceEventId,omitempty"`
	OfflineReconciliation  *OfflineReconciliation `json:"offlineReconciliation,omitempty"`
}

// WorkOfferDeclined is ext.missionweave.work.offer_declined.
type WorkOfferDeclined struct {
	WorkItemID    string           `json:"workItemId"`
	State         string           `json:"state"`
	OfferID       string           `json:"offerId"`
	AgentID       string           `json:"agentId"`
	DeclineReason string           `json:"declineReason"`
	Comments      string           `json:"comments,omitempty"`
	Offers        []protocol.Offer `json:"offers"`
}

// OwnershipLeaseRenewed is ext.missionweave.work.ownership_lease_renewed.
type OwnershipLeaseRenewed struct {
	WorkItemID       string                     `json:"workItemId"`
	State            string                     `json:"state"`
	OwnershipEpoch   int64                      `json:"ownershipEpoch"`
	OwnershipLease   protocol.Lease             `json:"ownershipLease"`
	ScheduleEstimate *protocol.ScheduleEstimate `json:"scheduleEstimate,omitempty"`
}

// BudgetIncreased is ext.missionweave.budget.increased. WorkItemID and State
// are set when the account is a WorkItem's.
type BudgetIncreased struct {
	WorkItemID       string          `json:"workItemId,omitempty"`
	State            string          `json:"state,omitempty"`
	Account          budget.Ref      `json:"account"`
	PreviousBudget   protocol.Budget `json:"previousBudget"`
	Budget           protocol.Budget `json:"budget"`
	Reason           string          `json:"reason"`
	ContractVersion  int64           `json:"contractVersion,omitempty"`
	PolicyLogEntryID string          `json:"policyLogEntryId"`
}

// BudgetExhausted is ext.missionweave.authority.budget_exhausted.
type BudgetExhausted struct {
	Account             budget.Ref `json:"account"`
	Dimensions          []string   `json:"dimensions"`
	AffectedWorkItemIDs []string   `json:"affectedWorkItemIds"`
	PolicyLogEntryID    string     `json:"policyLogEntryId"`
}

// ChildBudgetReserved is ext.missionweave.authority.child_budget_reserved.
type ChildBudgetReserved struct {
	WorkItemID     string          `json:"workItemId"`
	ChildMissionID string          `json:"childMissionId"`
	Budget         protocol.Budget `json:"budget"`
	SourceEventID  string          `json:"sourceEventId"`
}

// LeaseExpired is ext.missionweave.authority.lease_expired; WorkItemID and
// State are absent for a Coordinator lease.
type LeaseExpired struct {
	WorkItemID string         `json:"workItemId,omitempty"`
	State      string         `json:"state,omitempty"`
	Lease      protocol.Lease `json:"lease"`
}

// OwnershipReleased is ext.missionweave.authority.ownership_released; reason
// is membership_ended or role_changed.
type OwnershipReleased struct {
	WorkItemID   string           `json:"workItemId"`
	State        string           `json:"state"`
	Owner        protocol.Owner   `json:"owner"`
	Reason       string           `json:"reason"`
	ClosedLeases []protocol.Lease `json:"closedLeases"`
}

// OffersWithdrawn is ext.missionweave.authority.offers_withdrawn.
type OffersWithdrawn struct {
	WorkItemID string           `json:"workItemId"`
	State      string           `json:"state"`
	OfferIDs   []string         `json:"offerIds"`
	Reason     string           `json:"reason"`
	Offers     []protocol.Offer `json:"offers"`
}
