package groups

import (
	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
)

// Payload profiles of the WorkItem kinds (COMMANDS.md 5.4 and 5.5). A payload
// may repeat the envelope's workItemId; DecodePayload compares it.

// itemShape is the profile of a kind whose envelope names a WorkItem.
func itemShape(members ...shape.Member) *shape.Shape {
	return shape.Object(append(members, shape.Opt("workItemId", protocol.ShapeID))...)
}

var (
	reqOwnershipEpoch   = shape.Req("ownershipEpoch", protocol.ShapePositiveInteger)
	reqExecutionLeaseID = shape.Req("executionLeaseId", protocol.ShapeID)
	optSchedule         = shape.Opt("scheduleEstimate", protocol.ShapeScheduleEstimate)
	someEvidence        = shapeEvidences.Min(1)
)

// workContracted is a payload with a Work Contract.
type workContracted struct {
	Contract *protocol.WorkContract `json:"contract"`
}

func (p *workContracted) missing() []string { return contractGaps("/payload/contract", p.Contract) }

// delegated are the members by which someone other than the Coordinator acts.
type delegated struct {
	DelegationGrantID string             `json:"delegationGrantId"`
	EmergencyOverride *EmergencyOverride `json:"emergencyOverride"`
}

type workAuthorize struct {
	workContracted
	delegated
	ProposalID         string `json:"proposalId"`
	Exclusive          *bool  `json:"exclusive"`
	Title              string `json:"title"`
	ParentWorkItemID   string `json:"parentWorkItemId"`
	ReplacesWorkItemID string `json:"replacesWorkItemId"`
}

var shapeWorkAuthorize = itemShape(
	shape.Opt("contract", shapeContract),
	shape.Opt("proposalId", protocol.ShapeID),
	shape.Opt("exclusive", shape.Bool),
	shape.Opt("title", shape.Text(500)),
	shape.Opt("parentWorkItemId", protocol.ShapeID),
	shape.Opt("replacesWorkItemId", protocol.ShapeID),
	shape.Opt("delegationGrantId", protocol.ShapeID),
	shape.Opt("emergencyOverride", shapeEmergencyOverride),
).Rules(shape.WhenAbsent("proposalId").Require("contract"))

type workOffer struct {
	workContracted
	delegated
	CandidateAgentIDs     []string                         `json:"candidateAgentIds"`
	SelectionBasis        protocol.SelectionBasis          `json:"selectionBasis"`
	OfferExpiresInSeconds *int64                           `json:"offerExpiresInSeconds"`
	Mode                  string                           `json:"mode"`
	ContextPackage        *Signed[protocol.ContextPackage] `json:"contextPackage"`
}

func (p *workOffer) documents() []documentRef { return contextRefs(p.ContextPackage) }

// Offer modes.
const (
	offerReplace = "replace"
	offerExtend  = "extend"
)

var shapeWorkOffer = itemShape(
	shape.Req("candidateAgentIds", shapeIDs.Min(1).Max(16)),
	shape.Req("selectionBasis", protocol.ShapeSelectionBasis),
	shape.Opt("offerExpiresInSeconds", secs(maxOwnershipSeconds)),
	shape.Opt("mode", shape.Enum(offerReplace, offerExtend)),
	shape.Opt("contract", shapeContract),
	shape.Opt("contextPackage", protocol.ShapeContextPackage),
	shape.Opt("delegationGrantId", protocol.ShapeID),
	shape.Opt("emergencyOverride", shapeEmergencyOverride),
)

type workAcceptOffer struct {
	OfferID               string                     `json:"offerId"`
	OwnershipLeaseSeconds *int64                     `json:"ownershipLeaseSeconds"`
	StartBy               string                     `json:"startBy"`
	ScheduleEstimate      *protocol.ScheduleEstimate `json:"scheduleEstimate"`
}

var shapeWorkAcceptOffer = itemShape(
	shape.Req("offerId", protocol.ShapeID),
	shape.Opt("ownershipLeaseSeconds", secs(maxOwnershipSeconds)),
	shape.Opt("startBy", protocol.ShapeTimestamp),
	optSchedule,
)

// owned is what a Worker's Command says about the authority it claims.
type owned struct {
	OwnershipEpoch   int64  `json:"ownershipEpoch"`
	ExecutionLeaseID string `json:"executionLeaseId"`
}

type workStart struct {
	owned
	ExecutionLeaseSeconds *int64 `json:"executionLeaseSeconds"`
}

var shapeWorkStart = itemShape(
	reqOwnershipEpoch, shape.Opt("executionLeaseSeconds", secs(maxExecutionSeconds)),
)

type executionLeaseRenew struct {
	owned
	LeaseSeconds     *int64                     `json:"leaseSeconds"`
	Progress         *protocol.Progress         `json:"progress"`
	ScheduleEstimate *protocol.ScheduleEstimate `json:"scheduleEstimate"`
}

var shapeExecutionLeaseRenew = itemShape(
	reqOwnershipEpoch, reqExecutionLeaseID,
	shape.Opt("leaseSeconds", secs(maxExecutionSeconds)),
	shape.Opt("progress", protocol.ShapeProgress), optSchedule,
)

type workCheckpoint struct {
	owned
	Progress            protocol.Progress          `json:"progress"`
	StateArtifactHash   string                     `json:"stateArtifactHash"`
	ResumeWithinSeconds *int64                     `json:"resumeWithinSeconds"`
	ScheduleEstimate    *protocol.ScheduleEstimate `json:"scheduleEstimate"`
}

var shapeWorkCheckpoint = itemShape(
	reqOwnershipEpoch, reqExecutionLeaseID,
	shape.Req("progress", protocol.ShapeProgress),
	shape.Opt("stateArtifactHash", protocol.ShapeSHA256),
	shape.Opt("resumeWithinSeconds", secs(maxOwnershipSeconds)), optSchedule,
)

type artifactPublish struct {
	owned
	Artifact Signed[protocol.Artifact] `json:"artifact"`
}

func (p *artifactPublish) documents() []documentRef {
	return []documentRef{{protocol.KindArtifact, p.Artifact.Doc.CreatedAt}}
}

var shapeArtifactPublish = itemShape(
	shape.Req("artifact", protocol.ShapeArtifact), reqOwnershipEpoch, reqExecutionLeaseID,
)

type workSubmit struct {
	owned
	ArtifactHashes []string                     `json:"artifactHashes"`
	Evidence       []*Signed[protocol.Evidence] `json:"evidence"`
}

func (p *workSubmit) documents() []documentRef { return evidenceRefs(p.Evidence) }

var shapeWorkSubmit = itemShape(
	reqOwnershipEpoch, reqExecutionLeaseID,
	shape.Req("artifactHashes", shapeHashes.Min(1)), shape.Req("evidence", someEvidence),
)

type workAcceptResult struct {
	Evidence []*Signed[protocol.Evidence] `json:"evidence"`
}

func (p *workAcceptResult) documents() []documentRef { return evidenceRefs(p.Evidence) }

var shapeWorkAcceptResult = itemShape(shape.Req("evidence", someEvidence))

func evidenceRefs(docs []*Signed[protocol.Evidence]) []documentRef {
	refs := make([]documentRef, len(docs))
	for i, e := range docs {
		refs[i] = documentRef{protocol.KindEvidence, e.Doc.CreatedAt}
	}
	return refs
}

func contextRefs(c *Signed[protocol.ContextPackage]) []documentRef {
	if c == nil {
		return nil
	}
	return []documentRef{{protocol.KindContextPackage, c.Doc.GeneratedAt}}
}

// contractGaps names what a structurally complete contract still lacks
// (COMMANDS.md 3.3); at is its JSON Pointer.
func contractGaps(at string, c *protocol.WorkContract) []string {
	if c == nil {
		return nil
	}
	var gaps []string
	if (c.SideEffectRisk == "high_risk" || c.SideEffectRisk == "destructive") && c.ExecutionApproval != gateHuman {
		gaps = append(gaps, at+"/executionApproval")
	}
	if repeated(c.RequiredDeliverables, func(d protocol.Deliverable) string { return d.DeliverableID }) {
		gaps = append(gaps, at+"/requiredDeliverables")
	}
	if repeated(c.AcceptanceCriteria, func(a protocol.AcceptanceCriterion) string { return a.CriterionID }) {
		gaps = append(gaps, at+"/acceptanceCriteria")
	}
	if c.RetryPolicy.MaxAttempts > 1 && len(c.RetryPolicy.RetryableFailures) == 0 {
		gaps = append(gaps, at+"/retryPolicy/retryableFailures")
	}
	return gaps
}

func repeated[T any](items []T, id func(T) string) bool {
	seen := make(map[string]bool, len(items))
	for _, item := range items {
		if seen[id(item)] {
			return true
		}
		seen[id(item)] = true
	}
	return false
}

type offerDecline struct {
	OfferID       string `json:"offerId"`
	DeclineReason string `json:"declineReason"`
	Comments      string `json:"comments"`
}

var shapeOfferDecline = itemShape(
	shape.Req("offerId", protocol.ShapeID), shape.Req("declineReason", protocol.ShapeDeclineReason),
	shape.Opt("comments", shape.Text(2000)),
)

type dependencyAdd struct {
	DependencyWorkItemIDs []string `json:"dependencyWorkItemIds"`
}

var shapeDependencyAdd = itemShape(shape.Req("dependencyWorkItemIds", shapeIDs.Min(1)))

type ownershipLeaseRenew struct {
	owned
	LeaseSeconds     *int64                     `json:"leaseSeconds"`
	StartBy          string                     `json:"startBy"`
	ScheduleEstimate *protocol.ScheduleEstimate `json:"scheduleEstimate"`
}

var shapeOwnershipLeaseRenew = itemShape(
	reqOwnershipEpoch, shape.Opt("leaseSeconds", secs(maxOwnershipSeconds)),
	shape.Opt("startBy", protocol.ShapeTimestamp), optSchedule,
)

type usageRecord struct {
	owned
	UsageDelta budget.Usage `json:"usageDelta"`
}

var shapeUsageRecord = itemShape(reqOwnershipEpoch, reqExecutionLeaseID, shape.Req("usageDelta", shapeUsage))

type workBlock struct {
	owned
	Progress            protocol.Progress            `json:"progress"`
	StateArtifactHash   string                       `json:"stateArtifactHash"`
	Reason              string                       `json:"reason"`
	RequiredResolution  string                       `json:"requiredResolution"`
	Evidence            []*Signed[protocol.Evidence] `json:"evidence"`
	BlockedLeaseSeconds *int64                       `json:"blockedLeaseSeconds"`
	ScheduleEstimate    *protocol.ScheduleEstimate   `json:"scheduleEstimate"`
}

func (p *workBlock) documents() []documentRef { return evidenceRefs(p.Evidence) }

var shapeWorkBlock = itemShape(
	reqOwnershipEpoch, reqExecutionLeaseID,
	shape.Req("progress", protocol.ShapeProgress),
	shape.Opt("stateArtifactHash", protocol.ShapeSHA256),
	shape.Req("reason", shape.Text(4000)),
	shape.Req("requiredResolution", shape.Text(4000)),
	shape.Opt("evidence", shapeEvidences),
	shape.Opt("blockedLeaseSeconds", secs(maxOwnershipSeconds)), optSchedule,
)

type workUnblock struct {
	Resolution string `json:"resolution"`
}

var shapeWorkUnblock = itemShape(shape.Opt("resolution", shape.Text(4000)))

type workFail struct {
	owned
	Reason      string                       `json:"reason"`
	Evidence    []*Signed[protocol.Evidence] `json:"evidence"`
	FailureCode string                       `json:"failureCode"`
}

func (p *workFail) documents() []documentRef { return evidenceRefs(p.Evidence) }

var shapeWorkFail = itemShape(
	shape.Req("reason", shape.Text(4000)),
	shape.Req("evidence", someEvidence),
	shape.Opt("ownershipEpoch", protocol.ShapePositiveInteger),
	shape.Opt("executionLeaseId", protocol.ShapeID),
	shape.Opt("failureCode", shape.String().Match(lexical.ValidFailureCode)),
).Rules(shape.When("ownershipEpoch", protocol.ShapePositiveInteger).Require("executionLeaseId"))

type workCancel struct {
	Reason string `json:"reason"`
}

var shapeWorkCancel = itemShape(shape.Req("reason", shape.Text(4000)))
