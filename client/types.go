package client

import (
	"github.com/missionweave/server/internal/protocol"
)

// The protocol's documents and its error, under the names of the protocol.
type (
	Actor               = protocol.Actor
	Command             = protocol.Command
	Event               = protocol.Event
	Error               = protocol.Error
	Code                = protocol.Code
	Raw                 = protocol.Raw
	Money               = protocol.Money
	Mission             = protocol.Mission
	Group               = protocol.Group
	Membership          = protocol.Membership
	WorkItem            = protocol.WorkItem
	WorkContract        = protocol.WorkContract
	Deliverable         = protocol.Deliverable
	RetryPolicy         = protocol.RetryPolicy
	AcceptanceCriterion = protocol.AcceptanceCriterion
	ApprovalPolicy      = protocol.ApprovalPolicy
	Budget              = protocol.Budget
	CapabilityRef       = protocol.CapabilityRef
	SelectionBasis      = protocol.SelectionBasis
	ScheduleEstimate    = protocol.ScheduleEstimate
	Submission          = protocol.Submission
	ResourceGrant       = protocol.ResourceGrant
	DelegationGrant     = protocol.DelegationGrant
	Conversation        = protocol.Conversation
	PolicyLogEntry      = protocol.PolicyLogEntry
	GroupSnapshot       = protocol.GroupSnapshot
	Offer               = protocol.Offer
	Owner               = protocol.Owner
	Progress            = protocol.Progress
	Lease               = protocol.Lease
	Message             = protocol.Message
	ContentPart         = protocol.ContentPart
	AgentCard           = protocol.AgentCard
	Capability          = protocol.Capability
	Endpoint            = protocol.Endpoint
	PublicKey           = protocol.PublicKey
	Approval            = protocol.Approval
	Artifact            = protocol.Artifact
	Producer            = protocol.Producer
	ToolVersion         = protocol.ToolVersion
	ModelVersion        = protocol.ModelVersion
	Evidence            = protocol.Evidence
	EvidenceSubject     = protocol.EvidenceSubject
	ContextPackage      = protocol.ContextPackage
)

// Actor types.
const (
	Agent   = protocol.ActorAgent
	Human   = protocol.ActorHuman
	Service = protocol.ActorService
)

// EventRef names one Event in a Receipt. GroupID and Sequence are absent for
// Organization facts.
type EventRef struct {
	EventID  string `json:"eventId"`
	GroupID  string `json:"groupId,omitempty"`
	Sequence int64  `json:"sequence,omitempty"`
	Kind     string `json:"kind"`
}

// Receipt is the server's answer to an accepted Command (COMMANDS.md 2.6).
type Receipt struct {
	ProtocolVersion   string     `json:"protocolVersion"`
	ActionID          string     `json:"actionId"`
	SigningHash       string     `json:"signingHash"`
	GroupID           string     `json:"groupId,omitempty"`
	Events            []EventRef `json:"events"`
	AcceptedAt        string     `json:"acceptedAt"`
	AdmissionRecordID string     `json:"admissionRecordId"`
	// Replayed tells that the server had accepted the same bytes before. It is
	// not part of the receipt's bytes.
	Replayed bool `json:"-"`
}
