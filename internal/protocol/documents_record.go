package protocol

// Records of work and trust: cards, approvals, Artifacts, Evidence, packages,
// profiles, snapshots, presence. See documents.go for conventions.

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
