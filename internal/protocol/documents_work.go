package protocol

// Work: leases, contracts and WorkItems. See documents.go for conventions.

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
