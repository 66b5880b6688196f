package authoritytest

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

// State is the Group as the database has it.
func (m *Mission) State() *groups.State {
	m.r.T.Helper()
	g, err := m.r.Store.LoadGroup(m.r.T.Context(), m.GroupID)
	if err != nil {
		m.r.T.Fatal(err)
	}
	return g.State
}

// signed signs an embedded document.
func (m *Mission) signed(s trust.Signer, kind protocol.DocumentKind, doc any) protocol.Raw {
	m.r.T.Helper()
	b, _, err := trust.SignDocument(kind, doc, s)
	if err != nil {
		m.r.T.Fatalf("sign %s: %v", kind, err)
	}
	return b
}

// Work brings a WorkItem to state active under a Worker.
func (m *Mission) Work(worker trust.Signer) (workItemID string) {
	m.r.T.Helper()
	id := m.Authorize()
	offers := m.OfferTo(id, worker)
	m.Must(worker, m.Accept(id, offers[worker.Principal.ID]))
	m.Must(worker, m.Start(id, 1, 300))
	return id
}

// Evidence is signed Evidence about a WorkItem.
func (m *Mission) Evidence(s trust.Signer, workItemID, typ string) protocol.Raw {
	return m.signed(s, protocol.KindEvidence, &protocol.Evidence{
		EvidenceID: registrytest.Mint(), MissionID: m.ID, GroupID: m.GroupID, WorkItemID: workItemID, Type: typ,
		Subject:      protocol.EvidenceSubject{Type: "work_item", ID: workItemID},
		CriterionIDs: []string{"complete"}, Method: "read it", Result: "passed", ArtifactHashes: []string{},
		GeneratedBy: s.Principal, CreatedAt: registrytest.Now(),
	})
}

// Publish publishes an Artifact and returns its content hash.
func (m *Mission) Publish(worker trust.Signer, workItemID string) string {
	m.r.T.Helper()
	id := registrytest.Mint()
	sum := sha256.Sum256([]byte(id))
	hash := "sha256:" + hex.EncodeToString(sum[:])
	w := m.State().WorkItems[workItemID]
	artifact := m.signed(worker, protocol.KindArtifact, &protocol.Artifact{
		ArtifactID: id, ContentHash: hash, URI: "urn:test:blob:" + id, SizeBytes: 10, MediaType: "text/markdown",
		SchemaURI: "urn:test:schema:section",
		Producer: protocol.Producer{
			AgentID: worker.Principal.ID, AgentCardVersion: w.Owner.AgentCardVersion, Capabilities: w.Owner.CapabilityPins,
		},
		MissionID: m.ID, GroupID: m.GroupID, WorkItemID: workItemID, SourceArtifactHashes: []string{},
		ToolVersions: []protocol.ToolVersion{}, ModelVersions: []protocol.ModelVersion{}, Classification: "internal",
		CreatedAt: registrytest.Now(),
	})
	m.Must(worker, protocol.Command{Kind: "artifact.publish", WorkItemID: workItemID, Payload: Payload(m.r.T, map[string]any{
		"artifact": artifact, "ownershipEpoch": w.OwnershipEpoch, "executionLeaseId": w.Execution.LeaseID,
	})})
	return hash
}

// Finish publishes, submits and has the result accepted; it returns the Artifact's
// hash. The Contract asks for a human_review.
func (m *Mission) Finish(worker trust.Signer, workItemID string) string {
	m.r.T.Helper()
	hash := m.Publish(worker, workItemID)
	w := m.State().WorkItems[workItemID]
	m.Must(worker, protocol.Command{Kind: "work.submit", WorkItemID: workItemID, Payload: Payload(m.r.T, map[string]any{
		"ownershipEpoch": w.OwnershipEpoch, "executionLeaseId": w.Execution.LeaseID, "artifactHashes": []any{hash},
		"evidence": []any{m.Evidence(worker, workItemID, "policy_check")},
	})})
	m.Must(m.Coordinator, protocol.Command{Kind: "work.accept_result", WorkItemID: workItemID, Payload: Payload(m.r.T, map[string]any{
		"evidence": []any{m.Evidence(m.Owner, workItemID, "human_review")},
	})})
	return hash
}

// SubmitForApproval submits the Mission with its Artifacts.
func (m *Mission) SubmitForApproval(hashes ...string) {
	m.r.T.Helper()
	m.Must(m.Coordinator, protocol.Command{Kind: "mission.submit_for_approval", Payload: Payload(m.r.T, map[string]any{
		"artifactHashes": hashes,
	})})
}

// Decide is a mission.approve or mission.request_changes of what was submitted.
func (m *Mission) Decide(kind, decision string, hashes ...string) protocol.Command {
	m.r.T.Helper()
	comments := "Looks right"
	approval := m.signed(m.Owner, protocol.KindApproval, &protocol.Approval{
		ApprovalID: registrytest.Mint(), Kind: "mission_final", Decision: decision, MissionID: m.ID, GroupID: m.GroupID,
		MissionRevision: m.State().Mission.Submission.MissionRevision, ArtifactHashes: hashes, AcceptancePolicyVersion: "1.0.0",
		Approver: m.Owner.Principal, Comments: comments, Conditions: []string{},
		OccurredAt: registrytest.At(-time.Millisecond),
	})
	return protocol.Command{Kind: kind, Payload: Payload(m.r.T, map[string]any{"approval": approval})}
}

// Complete runs the Mission from where it is to its Approval with one WorkItem.
func (m *Mission) Complete(worker trust.Signer) {
	m.r.T.Helper()
	hash := m.Finish(worker, m.Work(worker))
	m.SubmitForApproval(hash)
	m.Must(m.Owner, m.Decide("mission.request_changes", "changes_requested", hash))
	m.SubmitForApproval(hash)
	m.Must(m.Owner, m.Decide("mission.approve", "approved", hash))
}
