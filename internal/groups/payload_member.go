package groups

import "github.com/missionweave/server/internal/protocol"

// Event payloads of Memberships, grants, Messages, Proposals and of the
// Organization (COMMANDS.md 6.1, 6.2).

// MembershipChanged is membership.changed.
type MembershipChanged struct {
	Membership    protocol.Membership `json:"membership"`
	PreviousEpoch *int64              `json:"previousEpoch,omitempty"`
	// Reason is granted, changed, activated, coordinator_assigned,
	// coordinator_replaced or owner_transferred.
	Reason                   string                           `json:"reason"`
	ContextPackage           *Signed[protocol.ContextPackage] `json:"contextPackage,omitempty"`
	ClosedDelegationGrantIDs []string                         `json:"closedDelegationGrantIds,omitempty"`
}

// MembershipEnded is membership.ended.
type MembershipEnded struct {
	Membership protocol.Membership `json:"membership"`
	Member     protocol.Actor      `json:"member"`
	// Reason is ended, provisional_expired, archived or owner_transferred.
	Reason                   string   `json:"reason"`
	ClosedDelegationGrantIDs []string `json:"closedDelegationGrantIds,omitempty"`
}

// DelegationGranted is membership.delegation.granted.
type DelegationGranted struct {
	DelegationGrant  protocol.DelegationGrant `json:"delegationGrant"`
	PolicyLogEntryID string                   `json:"policyLogEntryId"`
}

// CooperationOverrideGrant lets one Command pass one cooperation limit once.
type CooperationOverrideGrant struct {
	GrantID           string         `json:"grantId"`
	MissionID         string         `json:"missionId"`
	GroupID           string         `json:"groupId"`
	PolicyName        string         `json:"policyName"`
	Beneficiary       protocol.Actor `json:"beneficiary"`
	TargetCommandKind string         `json:"targetCommandKind"`
	TargetActionID    string         `json:"targetActionId"`
	Reason            string         `json:"reason"`
	Approver          protocol.Actor `json:"approver"`
	GrantedAt         string         `json:"grantedAt"`
	ExpiresAt         string         `json:"expiresAt"`
}

// CooperationOverrideGranted is policy.cooperation_override.granted.
type CooperationOverrideGranted struct {
	CooperationOverrideGrant CooperationOverrideGrant `json:"cooperationOverrideGrant"`
	PolicyLogEntryID         string                   `json:"policyLogEntryId"`
}

// CooperationOverrideConsumed is ext.missionweave.authority.cooperation_override_consumed.
type CooperationOverrideConsumed struct {
	GrantID           string `json:"grantId"`
	PolicyName        string `json:"policyName"`
	TargetCommandKind string `json:"targetCommandKind"`
	TargetActionID    string `json:"targetActionId"`
	ConsumedByEventID string `json:"consumedByEventId"`
	PolicyLogEntryID  string `json:"policyLogEntryId"`
}

// MessagePosted is message.posted.
type MessagePosted struct {
	MessageID string           `json:"messageId"`
	Authority bool             `json:"authority"`
	Message   protocol.Message `json:"message"`
}

// MessageAmended is message.corrected, message.retracted and message.redacted;
// the Policy Log entry belongs to a redaction.
type MessageAmended struct {
	MessageID        string           `json:"messageId"`
	TargetMessageID  string           `json:"targetMessageId"`
	Authority        bool             `json:"authority"`
	Message          protocol.Message `json:"message"`
	PolicyRule       string           `json:"policyRule,omitempty"`
	PolicyLogEntryID string           `json:"policyLogEntryId,omitempty"`
}

// ProposalDoc is a proposal as Events carry it.
type ProposalDoc struct {
	ProposalID       string                `json:"proposalId"`
	MissionID        string                `json:"missionId"`
	GroupID          string                `json:"groupId"`
	ProposedBy       protocol.Actor        `json:"proposedBy"`
	Contract         protocol.WorkContract `json:"contract"`
	ParentWorkItemID string                `json:"parentWorkItemId,omitempty"`
	Rationale        string                `json:"rationale,omitempty"`
	Status           string                `json:"status"`
	CreatedAt        string                `json:"createdAt"`
}

// Proposal statuses.
const (
	ProposalOpen       = "open"
	ProposalAuthorized = "authorized"
	ProposalClosed     = "closed"
)

// WorkProposed is work.proposed.
type WorkProposed struct {
	Proposal ProposalDoc `json:"proposal"`
}

// AgentCardRegistered is ext.missionweaveprotocol.registry.agent_card_registered.
type AgentCardRegistered struct {
	AgentID     string                      `json:"agentId"`
	CardVersion int64                       `json:"cardVersion"`
	AgentCard   *Signed[protocol.AgentCard] `json:"agentCard"`
}

// SessionOpened is ext.missionweaveprotocol.identity.session_opened.
type SessionOpened struct {
	AgentID          string `json:"agentId"`
	SessionEpoch     int64  `json:"sessionEpoch"`
	KeyID            string `json:"keyId,omitempty"`
	SessionExpiresAt string `json:"sessionExpiresAt,omitempty"`
}
