package client

import (
	"context"
	"fmt"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// WorkRef is the WorkItem that a signed document is about.
type WorkRef struct{ MissionID, GroupID, WorkItemID string }

// Finding is what somebody found out about a WorkItem, before it is signed as
// Evidence. Type says what was done, so it must be true of whoever signs:
// deterministic_test only for a check that ran, reviewer_assessment for a
// judgement (an owner's judgement of its own work counts for nothing when its
// result is accepted), failure_report for a failure.
type Finding struct {
	Type string
	// Criteria are ids of the contract's acceptance criteria, at least one.
	Criteria []string
	// Result is passed, failed or inconclusive.
	Result string
	// Method is how it was found out, at most 4000 characters.
	Method    string
	Artifacts []string // hashes
	Details   map[string]any
	// ModelVersion and ToolVersion name what was used, if anything.
	ModelVersion, ToolVersion string
}

// SignFinding signs Evidence of the Client's Principal about a WorkItem.
func (c *Client) SignFinding(about WorkRef, f Finding) (Raw, error) {
	e := Evidence{
		EvidenceID: NewID(), MissionID: about.MissionID, GroupID: about.GroupID, WorkItemID: about.WorkItemID,
		Type: f.Type, Subject: EvidenceSubject{Type: "work_item", ID: about.WorkItemID}, CriterionIDs: f.Criteria,
		Method: truncate(f.Method, 4000), Result: f.Result, ArtifactHashes: append([]string{}, f.Artifacts...),
		ToolVersion: f.ToolVersion, ModelVersion: f.ModelVersion,
		GeneratedBy: c.Principal(), CreatedAt: Timestamp(c.opt.Now()),
	}
	if len(f.Details) > 0 {
		details, err := strictjson.Marshal(f.Details)
		if err != nil {
			return nil, fmt.Errorf("client: details of the Evidence: %w", err)
		}
		e.Details = details
	}
	return c.opt.Identity.SignEvidence(e)
}

// CriteriaOf are the ids of all acceptance criteria of a contract.
func CriteriaOf(contract *WorkContract) []string {
	ids := make([]string, 0, len(contract.AcceptanceCriteria))
	for _, k := range contract.AcceptanceCriteria {
		ids = append(ids, k.CriterionID)
	}
	return ids
}

// Product is content that becomes an Artifact of a WorkItem.
type Product struct {
	MediaType string
	Content   []byte
	Sources   []string // hashes of the Artifacts it was made from
}

// StoreProduct stores content and signs its Artifact manifest as the WorkItem's
// owner. The Artifact exists when artifact.publish with that manifest was
// accepted. Its schema is that of the contract's deliverable with the same media
// type.
func (c *Client) StoreProduct(ctx context.Context, about WorkRef, owner *Owner, contract *WorkContract, p Product) (manifest Raw, hash string, err error) {
	if hash, err = c.PutArtifact(ctx, about.GroupID, p.Content); err != nil {
		return nil, "", err
	}
	schema := "urn:missionweave:untyped"
	for _, d := range contract.RequiredDeliverables {
		if d.MediaType == p.MediaType {
			schema = d.Schema
			break
		}
	}
	manifest, err = c.opt.Identity.SignArtifact(Artifact{
		ArtifactID: NewID(), ContentHash: hash, URI: "urn:missionweave:blob:" + hash, SizeBytes: int64(len(p.Content)),
		MediaType: p.MediaType, SchemaURI: schema,
		Producer:  Producer{AgentID: owner.AgentID, AgentCardVersion: owner.AgentCardVersion, Capabilities: owner.CapabilityPins},
		MissionID: about.MissionID, GroupID: about.GroupID, WorkItemID: about.WorkItemID,
		SourceArtifactHashes: append([]string{}, p.Sources...), ToolVersions: []ToolVersion{}, ModelVersions: []ModelVersion{},
		Classification: "internal", CreatedAt: Timestamp(c.opt.Now()),
	})
	return manifest, hash, err
}
