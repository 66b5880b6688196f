package protocol

// Go shapes of the protocol's documents (schemas/0.1). Member names, order of
// meaning and optionality follow the normative schemas; the structural rules
// live in structure*.go, never in these types.
//
// Conventions: ids and timestamps keep their lexical spelling (string); an
// optional integer whose zero is a legal value is a pointer; Raw holds JSON
// that is carried, not interpreted. Encoding goes through strictjson.Marshal,
// which writes JCS bytes: a nil slice without omitempty becomes [].

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

// Lease is the normative Fenced Lease document.
type Lease struct {
	LeaseID          string `json:"leaseId"`
	LeaseType        string `json:"leaseType"`
	MissionID        string `json:"missionId"`
	GroupID          string `json:"groupId"`
	WorkItemID       string `json:"workItemId,omitempty"`
	HolderAgentID    string `json:"holderAgentId"`
	SessionEpoch     int64  `json:"sessionEpoch"`
	CoordinatorEpoch int64  `json:"coordinatorEpoch,omitempty"`
	OwnershipEpoch   int64  `json:"ownershipEpoch,omitempty"`
	StartBy          string `json:"startBy,omitempty"`
	IssuedAt         string `json:"issuedAt"`
	StartsAt         string `json:"startsAt"`
	ExpiresAt        string `json:"expiresAt"`
	GraceExpiresAt   string `json:"graceExpiresAt,omitempty"`
	State            string `json:"state"`
	RenewalCount     int64  `json:"renewalCount"`
	LastRenewedAt    string `json:"lastRenewedAt,omitempty"`
	ClosedAt         string `json:"closedAt,omitempty"`
	ClosureReason    string `json:"closureReason,omitempty"`
}

// Lease types.
const (
	LeaseCoordinator = "coordinator"
	LeaseOwnership   = "ownership"
	LeaseExecution   = "execution"
	LeaseBlocked     = "blocked"
)

// WorkContract is the normative Work Contract document.
type WorkContract struct {
	ContractVersion       int64                 `json:"contractVersion"`
	Goal                  string                `json:"goal"`
	RequiredDeliverables  []Deliverable         `json:"requiredDeliverables"`
	AcceptanceCriteria    []AcceptanceCriterion `json:"acceptanceCriteria"`
	InputArtifacts        []string              `json:"inputArtifacts"`
	DependencyWorkItemIDs []string              `json:"dependencyWorkItemIds"`
	AllowedResources      []ResourceGrant       `json:"allowedResources"`
	RequiredCapabilities  []CapabilityRef       `json:"requiredCapabilities"`
	Deadline              string                `json:"deadline"`
	RequestedUrgency      string                `json:"requestedUrgency"`
	BusinessImpact        string                `json:"businessImpact"`
	RetryPolicy           RetryPolicy           `json:"retryPolicy"`
	Budget                Budget                `json:"budget"`
	SideEffectRisk        string                `json:"sideEffectRisk"`
	ExecutionApproval     string                `json:"executionApproval"`
	Constraints           Raw                   `json:"constraints,omitempty"`
	Extensions            Raw                   `json:"extensions,omitempty"`
}

// Deliverable is one required output of a Work Contract.
type Deliverable struct {
	DeliverableID string `json:"deliverableId"`
	Description   string `json:"description"`
	MediaType     string `json:"mediaType"`
	Schema        string `json:"schema"`
}

// RetryPolicy is Worker-side advice; MaxDelay is an ISO 8601 duration.
type RetryPolicy struct {
	MaxAttempts       int64    `json:"maxAttempts"`
	Backoff           string   `json:"backoff"`
	MaxDelay          string   `json:"maxDelay"`
	RetryableFailures []string `json:"retryableFailures"`
}

// WorkItem is the normative WorkItem document.
type WorkItem struct {
	WorkItemID       string            `json:"workItemId"`
	MissionID        string            `json:"missionId"`
	GroupID          string            `json:"groupId"`
	ConversationID   string            `json:"conversationId"`
	Revision         int64             `json:"revision"`
	State            string            `json:"state"`
	Exclusive        bool              `json:"exclusive"`
	Contract         WorkContract      `json:"contract"`
	Offers           []Offer           `json:"offers,omitempty"`
	Owner            *Owner            `json:"owner,omitempty"`
	SelectionBasis   *SelectionBasis   `json:"selectionBasis,omitempty"`
	ScheduleEstimate *ScheduleEstimate `json:"scheduleEstimate,omitempty"`
	Progress         *Progress         `json:"progress,omitempty"`
	Submission       *Submission       `json:"submission,omitempty"`
	CreatedBy        Actor             `json:"createdBy"`
	AuthorizedBy     *Actor            `json:"authorizedBy,omitempty"`
	CreatedAt        string            `json:"createdAt"`
	UpdatedAt        string            `json:"updatedAt,omitempty"`
	Extensions       Raw               `json:"extensions,omitempty"`
}

// WorkItem states.
const (
	WorkOpen      = "open"
	WorkOffered   = "offered"
	WorkQueued    = "queued"
	WorkActive    = "active"
	WorkBlocked   = "blocked"
	WorkSubmitted = "submitted"
	WorkVerified  = "verified"
	WorkFailed    = "failed"
	WorkCancelled = "cancelled"
)

// Offer is one candidate's offer on a WorkItem.
type Offer struct {
	OfferID          string `json:"offerId"`
	AgentID          string `json:"agentId"`
	AgentCardVersion int64  `json:"agentCardVersion"`
	ExpiresAt        string `json:"expiresAt"`
	Status           string `json:"status"`
	DeclineReason    string `json:"declineReason,omitempty"`
}

// Owner records who owns a WorkItem and under which pins and epoch.
type Owner struct {
	AgentID          string          `json:"agentId"`
	AgentCardVersion int64           `json:"agentCardVersion"`
	CapabilityPins   []CapabilityRef `json:"capabilityPins"`
	OwnershipEpoch   int64           `json:"ownershipEpoch"`
	OwnershipLeaseID string          `json:"ownershipLeaseId"`
	AcceptedAt       string          `json:"acceptedAt"`
}

// SelectionBasis says why candidates were chosen.
type SelectionBasis struct {
	RequiredCapabilities  []CapabilityRef `json:"requiredCapabilities"`
	VerifiedMatches       []CapabilityRef `json:"verifiedMatches"`
	AuthorizationEligible bool            `json:"authorizationEligible"`
	AvailabilityEstimate  string          `json:"availabilityEstimate"`
	ExpectedCost          float64         `json:"expectedCost"`
	ReliabilityEvidence   []string        `json:"reliabilityEvidence"`
	PolicyRulesApplied    []string        `json:"policyRulesApplied"`
}

// ScheduleEstimate is a Worker's forecast.
type ScheduleEstimate struct {
	EstimatedStart      string  `json:"estimatedStart"`
	EstimatedCompletion string  `json:"estimatedCompletion"`
	Confidence          float64 `json:"confidence"`
	CapacityStatus      string  `json:"capacityStatus"`
	LastCalculatedAt    string  `json:"lastCalculatedAt"`
}

// Progress is a Worker's structured progress report.
type Progress struct {
	CurrentPhase              string   `json:"currentPhase"`
	CompletedMilestones       []string `json:"completedMilestones"`
	NextCheckpoint            string   `json:"nextCheckpoint"`
	Blockers                  []string `json:"blockers"`
	UpdatedCompletionEstimate string   `json:"updatedCompletionEstimate"`
	EvidenceIDs               []string `json:"evidenceIds"`
}

// Submission names what a Worker handed in.
type Submission struct {
	ArtifactHashes []string `json:"artifactHashes"`
	EvidenceIDs    []string `json:"evidenceIds"`
	SubmittedAt    string   `json:"submittedAt"`
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

// AgentCard is the normative Agent Card document.
type AgentCard struct {
	AgentID          string       `json:"agentId"`
	OrganizationID   string       `json:"organizationId"`
	CardVersion      int64        `json:"cardVersion"`
	DisplayName      string       `json:"displayName"`
	Description      string       `json:"description,omitempty"`
	Owner            Actor        `json:"owner"`
	Status           string       `json:"status"`
	ProtocolVersions []string     `json:"protocolVersions"`
	Endpoints        []Endpoint   `json:"endpoints"`
	PublicKeys       []PublicKey  `json:"publicKeys"`
	Capabilities     []Capability `json:"capabilities"`
	MaxConcurrency   int64        `json:"maxConcurrency"`
	IssuedAt         string       `json:"issuedAt"`
	ValidUntil       string       `json:"validUntil,omitempty"`
	Extensions       Raw          `json:"extensions,omitempty"`
	Signature        Signature    `json:"signature,omitzero"`
}

// Endpoint is where an Agent can be reached; transport is wss.
type Endpoint struct {
	Transport string `json:"transport"`
	URI       string `json:"uri"`
}

// Capability is a verified ability declared on an Agent Card.
type Capability struct {
	ID               string   `json:"id"`
	Version          string   `json:"version"`
	InputSchema      string   `json:"inputSchema"`
	InputSchemaHash  string   `json:"inputSchemaHash"`
	OutputSchema     string   `json:"outputSchema"`
	OutputSchemaHash string   `json:"outputSchemaHash"`
	Constraints      Raw      `json:"constraints"`
	VerifiedEvidence []string `json:"verifiedEvidence"`
}

// Approval is the normative Approval Decision document.
type Approval struct {
	ApprovalID              string    `json:"approvalId"`
	Kind                    string    `json:"kind"`
	Decision                string    `json:"decision"`
	MissionID               string    `json:"missionId"`
	GroupID                 string    `json:"groupId"`
	WorkItemID              string    `json:"workItemId,omitempty"`
	MissionRevision         int64     `json:"missionRevision"`
	ArtifactHashes          []string  `json:"artifactHashes"`
	AcceptancePolicyVersion string    `json:"acceptancePolicyVersion"`
	Approver                Actor     `json:"approver"`
	Comments                string    `json:"comments"`
	Conditions              []string  `json:"conditions"`
	RevokesApprovalID       string    `json:"revokesApprovalId,omitempty"`
	OccurredAt              string    `json:"occurredAt"`
	Signature               Signature `json:"signature,omitzero"`
}

// Artifact is the normative Artifact Manifest document; content lives elsewhere.
type Artifact struct {
	ArtifactID           string         `json:"artifactId"`
	ContentHash          string         `json:"contentHash"`
	URI                  string         `json:"uri"`
	SizeBytes            int64          `json:"sizeBytes"`
	MediaType            string         `json:"mediaType"`
	SchemaURI            string         `json:"schemaUri"`
	Producer             Producer       `json:"producer"`
	MissionID            string         `json:"missionId"`
	GroupID              string         `json:"groupId"`
	WorkItemID           string         `json:"workItemId"`
	SourceArtifactHashes []string       `json:"sourceArtifactHashes"`
	ToolVersions         []ToolVersion  `json:"toolVersions"`
	ModelVersions        []ModelVersion `json:"modelVersions"`
	Classification       string         `json:"classification"`
	CreatedAt            string         `json:"createdAt"`
	Extensions           Raw            `json:"extensions,omitempty"`
	Signature            Signature      `json:"signature,omitzero"`
}

// Producer is the Agent, card and capabilities behind an Artifact.
type Producer struct {
	AgentID          string          `json:"agentId"`
	AgentCardVersion int64           `json:"agentCardVersion"`
	Capabilities     []CapabilityRef `json:"capabilities"`
}

// ToolVersion names a tool used for an Artifact.
type ToolVersion struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// ModelVersion names a model used for an Artifact.
type ModelVersion struct {
	Provider string `json:"provider"`
	Model    string `json:"model"`
	Version  string `json:"version"`
}

// Evidence is the normative Evidence document.
type Evidence struct {
	EvidenceID     string          `json:"evidenceId"`
	MissionID      string          `json:"missionId"`
	GroupID        string          `json:"groupId"`
	WorkItemID     string          `json:"workItemId"`
	Type           string          `json:"type"`
	Subject        EvidenceSubject `json:"subject"`
	CriterionIDs   []string        `json:"criterionIds"`
	Method         string          `json:"method"`
	Result         string          `json:"result"`
	Details        Raw             `json:"details,omitempty"`
	ArtifactHashes []string        `json:"artifactHashes"`
	GeneratedBy    Actor           `json:"generatedBy"`
	ToolVersion    string          `json:"toolVersion,omitempty"`
	ModelVersion   string          `json:"modelVersion,omitempty"`
	CreatedAt      string          `json:"createdAt"`
	Signature      Signature       `json:"signature,omitzero"`
}

// EvidenceSubject is a WorkItem, an Artifact (by hash or id) or a Mission.
type EvidenceSubject struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// ContextPackage is the normative Context Package document.
type ContextPackage struct {
	ContextPackageID         string            `json:"contextPackageId"`
	Version                  int64             `json:"version"`
	PreviousContextPackageID string            `json:"previousContextPackageId,omitempty"`
	MissionID                string            `json:"missionId"`
	GroupID                  string            `json:"groupId"`
	WorkItemID               string            `json:"workItemId,omitempty"`
	SourceEventRange         EventRange        `json:"sourceEventRange"`
	ArtifactHashes           []string          `json:"artifactHashes"`
	Summary                  string            `json:"summary"`
	Decisions                []ContextDecision `json:"decisions"`
	Constraints              []string          `json:"constraints"`
	UnresolvedQuestions      []string          `json:"unresolvedQuestions"`
	GeneratedBy              Actor             `json:"generatedBy"`
	GeneratedAt              string            `json:"generatedAt"`
	Extensions               Raw               `json:"extensions,omitempty"`
	Signature                Signature         `json:"signature,omitzero"`
}

// EventRange names the Events a Context Package was made from.
type EventRange struct {
	FromSequence int64    `json:"fromSequence"`
	ToSequence   int64    `json:"toSequence"`
	EventIDs     []string `json:"eventIds"`
}

// ContextDecision is one decision with the Events that made it.
type ContextDecision struct {
	Description    string   `json:"description"`
	SourceEventIDs []string `json:"sourceEventIds"`
}

// ExtensionProfile is the normative Extension Profile document.
type ExtensionProfile struct {
	ProfileURI              string          `json:"profileUri"`
	Name                    string          `json:"name"`
	Version                 string          `json:"version"`
	SchemaURI               string          `json:"schemaUri"`
	SchemaHash              string          `json:"schemaHash"`
	RequiredCapabilities    []CapabilityRef `json:"requiredCapabilities"`
	Critical                bool            `json:"critical"`
	CommandKinds            []string        `json:"commandKinds"`
	EventKinds              []string        `json:"eventKinds"`
	OverridesCoreInvariants bool            `json:"overridesCoreInvariants"`
	ApprovedBy              Actor           `json:"approvedBy"`
	ApprovedAt              string          `json:"approvedAt"`
	Signature               Signature       `json:"signature,omitzero"`
}

// FirstAdmissionRecord is append metadata of the Admission Log; never signed.
type FirstAdmissionRecord struct {
	ProtocolVersion   string `json:"protocolVersion"`
	AdmissionRecordID string `json:"admissionRecordId"`
	OrganizationID    string `json:"organizationId"`
	DocumentKind      string `json:"documentKind"`
	SigningHash       string `json:"signingHash"`
	KeyID             string `json:"keyId"`
	Principal         Actor  `json:"principal"`
	TrustedAcceptedAt string `json:"trustedAcceptedAt"`
	AcceptedBy        Actor  `json:"acceptedBy"`
}

// PolicyLogEntry is one entry of a Group's Policy Log (COMMANDS.md 6.3).
type PolicyLogEntry struct {
	EntryID    string `json:"entryId"`
	Decision   string `json:"decision"`
	Actor      Actor  `json:"actor"`
	OccurredAt string `json:"occurredAt"`
	Details    Raw    `json:"details"`
}

// GroupSnapshot is the normative Signed Group Snapshot document.
type GroupSnapshot struct {
	SnapshotID      string           `json:"snapshotId"`
	GroupID         string           `json:"groupId"`
	ThroughSequence int64            `json:"throughSequence"`
	EventIDs        []string         `json:"eventIds"`
	StateHash       string           `json:"stateHash"`
	PolicyLog       []PolicyLogEntry `json:"policyLog"`
	CreatedBy       Actor            `json:"createdBy"`
	CreatedAt       string           `json:"createdAt"`
	Signature       Signature        `json:"signature,omitzero"`
}

// PresenceRecord is ephemeral and carried in PING frames.
type PresenceRecord struct {
	AgentID                string                   `json:"agentId"`
	SessionEpoch           int64                    `json:"sessionEpoch"`
	Status                 string                   `json:"status"`
	Capacity               PresenceCapacity         `json:"capacity"`
	CapabilityAvailability []CapabilityAvailability `json:"capabilityAvailability"`
	EstimatedResponseMs    *int64                   `json:"estimatedResponseMs,omitempty"`
	LastHeartbeat          string                   `json:"lastHeartbeat"`
	ExpiresAt              string                   `json:"expiresAt"`
}

// PresenceCapacity counts execution slots.
type PresenceCapacity struct {
	MaxSlots       int64 `json:"maxSlots"`
	ActiveSlots    int64 `json:"activeSlots"`
	AvailableSlots int64 `json:"availableSlots"`
	QueuedItems    int64 `json:"queuedItems"`
}

// CapabilityAvailability is the present state of one capability.
type CapabilityAvailability struct {
	Capability CapabilityRef `json:"capability"`
	Status     string        `json:"status"`
}
