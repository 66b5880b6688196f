package protocol

// Go shapes of the protocol's documents (schemas/0.1). Member names, order of
// meaning and optionality follow the normative schemas; the structural rules
// live in structure*.go, never in these types.
//
// Conventions: ids and timestamps keep their lexical spelling (string); an
// optional integer whose zero is a legal value is a pointer; Raw holds JSON
// that is carried, not interpreted. Encoding goes through strictjson.Marshal,
// which writes JCS bytes: a nil slice without omitempty becomes [].
//
// An optional member that is there but empty ("" or []) is not told from an
// absent one. A signed document must therefore never be decoded and encoded
// again: its bytes are the document.

// Actor is a Principal: type is agent, human or service.
type Actor struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// Actor types.
const (
	ActorAgent   = "agent"
	ActorHuman   = "human"
	ActorService = "service"
)

// Signature is the envelope of a Signed Document (PROTOCOL.md 6.4).
type Signature struct {
	Algorithm string `json:"algorithm"`
	KeyID     string `json:"keyId"`
	CreatedAt string `json:"createdAt"`
	Value     string `json:"value"`
}

// PublicKey is a key declaration inside an Agent Card.
type PublicKey struct {
	KeyID      string `json:"keyId"`
	Algorithm  string `json:"algorithm"`
	PublicKey  string `json:"publicKey"`
	ValidFrom  string `json:"validFrom"`
	ValidUntil string `json:"validUntil,omitempty"`
	RevokedAt  string `json:"revokedAt,omitempty"`
}

// CapabilityRef names a capability and a version of it.
type CapabilityRef struct {
	ID      string `json:"id"`
	Version string `json:"version"`
}

// Budget holds the six limits; an absent dimension is zero (COMMANDS.md 3.2).
// FinancialLimit is in integer micro-units of Currency.
type Budget struct {
	Currency                string `json:"currency,omitempty"`
	FinancialLimit          *Money `json:"financialLimit,omitempty"`
	ModelTokenLimit         *int64 `json:"modelTokenLimit,omitempty"`
	ToolCallLimit           *int64 `json:"toolCallLimit,omitempty"`
	ComputeSecondsLimit     *int64 `json:"computeSecondsLimit,omitempty"`
	WallClockSecondsLimit   *int64 `json:"wallClockSecondsLimit,omitempty"`
	ExternalSideEffectLimit *int64 `json:"externalSideEffectLimit,omitempty"`
}

// AcceptanceCriterion is one testable condition of a Mission or Work Contract.
type AcceptanceCriterion struct {
	CriterionID      string   `json:"criterionId"`
	Description      string   `json:"description"`
	EvidenceRequired []string `json:"evidenceRequired"`
}

// ResourceGrant allows operations on one resource.
type ResourceGrant struct {
	Resource    string   `json:"resource"`
	Operations  []string `json:"operations"`
	Constraints Raw      `json:"constraints,omitempty"`
}

// Command is the signed envelope of a state-changing request. Payload is the
// exact JSON value as sent; its typed form belongs to the kind's profile.
type Command struct {
	ProtocolVersion            string    `json:"protocolVersion"`
	ActionID                   string    `json:"actionId"`
	Actor                      Actor     `json:"actor"`
	SessionEpoch               int64     `json:"sessionEpoch,omitempty"`
	MembershipEpoch            int64     `json:"membershipEpoch,omitempty"`
	CoordinatorEpoch           int64     `json:"coordinatorEpoch,omitempty"`
	GroupID                    string    `json:"groupId,omitempty"`
	ConversationID             string    `json:"conversationId,omitempty"`
	WorkItemID                 string    `json:"workItemId,omitempty"`
	CooperationOverrideGrantID string    `json:"cooperationOverrideGrantId,omitempty"`
	Kind                       string    `json:"kind"`
	ExpectedRevision           *int64    `json:"expectedRevision,omitempty"`
	CorrelationID              string    `json:"correlationId"`
	CausedByEventID            string    `json:"causedByEventId,omitempty"`
	IssuedAt                   string    `json:"issuedAt"`
	Payload                    Raw       `json:"payload"`
	Extensions                 Raw       `json:"extensions,omitempty"`
	Signature                  Signature `json:"signature,omitzero"`
}

// Cause says what an Event descends from: command, event, timer or policy.
type Cause struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// Event is the signed envelope of one accepted fact. GroupID, Sequence and
// AggregateRevision are absent on Organization-scoped kinds only.
type Event struct {
	ProtocolVersion   string    `json:"protocolVersion"`
	EventID           string    `json:"eventId"`
	GroupID           string    `json:"groupId,omitempty"`
	Sequence          int64     `json:"sequence,omitempty"`
	AggregateRevision *int64    `json:"aggregateRevision,omitempty"`
	Kind              string    `json:"kind"`
	Actor             Actor     `json:"actor"`
	Cause             Cause     `json:"cause"`
	CorrelationID     string    `json:"correlationId"`
	ConversationID    string    `json:"conversationId,omitempty"`
	WorkItemID        string    `json:"workItemId,omitempty"`
	OccurredAt        string    `json:"occurredAt"`
	Payload           Raw       `json:"payload"`
	AcceptedBy        Actor     `json:"acceptedBy"`
	CommandHash       string    `json:"commandHash,omitempty"`
	Extensions        Raw       `json:"extensions,omitempty"`
	Signature         Signature `json:"signature,omitzero"`
}

// Mission is the normative Mission document.
type Mission struct {
	MissionID           string                `json:"missionId"`
	GroupID             string                `json:"groupId"`
	Revision            int64                 `json:"revision"`
	Objective           string                `json:"objective"`
	DefinitionOfDone    []AcceptanceCriterion `json:"definitionOfDone"`
	MissionOwner        Actor                 `json:"missionOwner"`
	Coordinator         Coordinator           `json:"coordinator"`
	State               string                `json:"state"`
	Budget              Budget                `json:"budget"`
	Deadline            string                `json:"deadline"`
	ApprovalPolicy      ApprovalPolicy        `json:"approvalPolicy"`
	Parent              *MissionParent        `json:"parent,omitempty"`
	FollowUpToMissionID string                `json:"followUpToMissionId,omitempty"`
	PinnedProfiles      []PinnedProfile       `json:"pinnedProfiles,omitempty"`
	CreatedAt           string                `json:"createdAt"`
	Extensions          Raw                   `json:"extensions,omitempty"`
}

// Mission states.
const (
	MissionActive           = "active"
	MissionAwaitingApproval = "awaiting_approval"
	MissionApproved         = "approved"
	MissionFailed           = "failed"
	MissionCancelled        = "cancelled"
)

// Coordinator is the Agent that holds a Mission's Coordinator lease.
type Coordinator struct {
	AgentID          string `json:"agentId"`
	AgentCardVersion int64  `json:"agentCardVersion"`
	CoordinatorEpoch int64  `json:"coordinatorEpoch"`
	LeaseID          string `json:"leaseId"`
}

// ApprovalPolicy is a Mission's risk and approval policy.
type ApprovalPolicy struct {
	FinalHumanApproval        bool   `json:"finalHumanApproval"`
	HighRiskExecutionApproval bool   `json:"highRiskExecutionApproval"`
	PolicyVersion             string `json:"policyVersion,omitempty"`
}

// MissionParent links a child Mission to its parent WorkItem.
type MissionParent struct {
	MissionID  string `json:"missionId"`
	WorkItemID string `json:"workItemId"`
	Depth      int64  `json:"depth"`
}

// PinnedProfile pins an Extension Profile by major version.
type PinnedProfile struct {
	ProfileURI   string `json:"profileUri"`
	MajorVersion int64  `json:"majorVersion"`
}

// Group is the normative Mission Group document.
type Group struct {
	GroupID            string `json:"groupId"`
	MissionID          string `json:"missionId"`
	State              string `json:"state"`
	MainConversationID string `json:"mainConversationId"`
	CreatedAt          string `json:"createdAt"`
	ArchivedAt         string `json:"archivedAt,omitempty"`
	ArchiveSnapshotID  string `json:"archiveSnapshotId,omitempty"`
	Extensions         Raw    `json:"extensions,omitempty"`
}

// Conversation is the normative Conversation document.
type Conversation struct {
	ConversationID    string             `json:"conversationId"`
	MissionID         string             `json:"missionId"`
	GroupID           string             `json:"groupId"`
	Type              string             `json:"type"`
	PrimaryWorkItemID string             `json:"primaryWorkItemId,omitempty"`
	Title             string             `json:"title"`
	Access            ConversationAccess `json:"access"`
	CreatedBy         Actor              `json:"createdBy"`
	CreatedAt         string             `json:"createdAt"`
	State             string             `json:"state"`
	Revision          int64              `json:"revision"`
	Extensions        Raw                `json:"extensions,omitempty"`
}

// ConversationAccess says who may read a Conversation.
type ConversationAccess struct {
	Mode    string  `json:"mode"`
	Members []Actor `json:"members,omitempty"`
}

// Membership is the normative Group Membership document.
type Membership struct {
	MembershipID            string            `json:"membershipId"`
	MissionID               string            `json:"missionId"`
	GroupID                 string            `json:"groupId"`
	Member                  Actor             `json:"member"`
	Role                    string            `json:"role"`
	State                   string            `json:"state"`
	MembershipEpoch         int64             `json:"membershipEpoch"`
	Scopes                  []string          `json:"scopes"`
	DelegationGrants        []DelegationGrant `json:"delegationGrants,omitempty"`
	VisibilityStartSequence int64             `json:"visibilityStartSequence"`
	ContextPackageID        string            `json:"contextPackageId,omitempty"`
	ProvisionalExpiresAt    string            `json:"provisionalExpiresAt,omitempty"`
	GrantedAt               string            `json:"grantedAt"`
	ActivatedAt             string            `json:"activatedAt,omitempty"`
	EndedAt                 string            `json:"endedAt,omitempty"`
	Extensions              Raw               `json:"extensions,omitempty"`
}

// DelegationGrant lets a work_delegate authorize sub-work (PROTOCOL.md 9.1).
type DelegationGrant struct {
	GrantID                string          `json:"grantId"`
	GranteeAgentID         string          `json:"granteeAgentId"`
	MissionID              string          `json:"missionId"`
	GroupID                string          `json:"groupId"`
	TargetWorkItemID       string          `json:"targetWorkItemId"`
	AllowedCapabilities    []CapabilityRef `json:"allowedCapabilities"`
	Budget                 Budget          `json:"budget"`
	MaxDescendantDepth     int64           `json:"maxDescendantDepth"`
	GranteeMembershipEpoch int64           `json:"granteeMembershipEpoch"`
	CoordinatorEpoch       int64           `json:"coordinatorEpoch"`
	GrantedBy              Actor           `json:"grantedBy"`
	GrantedAt              string          `json:"grantedAt"`
	ExpiresAt              string          `json:"expiresAt"`
}

// Message is the normative Committed Message document.
type Message struct {
	MessageID       string        `json:"messageId"`
	MissionID       string        `json:"missionId"`
	GroupID         string        `json:"groupId"`
	ConversationID  string        `json:"conversationId"`
	Author          Actor         `json:"author"`
	Kind            string        `json:"kind"`
	Authority       bool          `json:"authority"`
	TargetMessageID string        `json:"targetMessageId,omitempty"`
	Content         []ContentPart `json:"content"`
	Mentions        []Actor       `json:"mentions,omitempty"`
	References      []string      `json:"references,omitempty"`
	Reason          string        `json:"reason,omitempty"`
	CommittedAt     string        `json:"committedAt"`
	Extensions      Raw           `json:"extensions,omitempty"`
}

// ContentPart is text, artifact_ref or data_ref; the other members are absent.
type ContentPart struct {
	Type         string `json:"type"`
	Text         string `json:"text,omitempty"`
	ArtifactHash string `json:"artifactHash,omitempty"`
	Schema       string `json:"schema,omitempty"`
	Data         Raw    `json:"data,omitempty"`
}
