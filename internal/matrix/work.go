package matrix

import (
	"fmt"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
)

// Builders for WorkItems: each makes a Command that is right, or brings a WorkItem
// into a state.

// contract is the first version of a Work Contract. Goals differ, because the same
// contract twice is a duplicate.
func (p *play) contract() map[string]any {
	return map[string]any{
		"contractVersion": int64(1), "goal": "Write " + client.NewID(),
		"requiredDeliverables": []any{map[string]any{
			"deliverableId": "text", "description": "A text.", "mediaType": "text/plain", "schema": "urn:missionweave:matrix:text",
		}},
		"acceptanceCriteria": []any{map[string]any{"criterionId": "reads", "description": "It reads well.", "evidenceRequired": []string{"reviewer_assessment"}}},
		"inputArtifacts":     []string{}, "dependencyWorkItemIds": []string{}, "allowedResources": []any{},
		"requiredCapabilities": []any{capabilityRef(capability)}, "deadline": client.Timestamp(p.deadline.Add(-time.Hour)),
		"requestedUrgency": "normal", "businessImpact": "Shows something.",
		"retryPolicy":    map[string]any{"maxAttempts": int64(1), "backoff": "none", "maxDelay": "PT1M", "retryableFailures": []string{}},
		"budget":         map[string]any{"currency": "EUR", "financialLimit": 10, "modelTokenLimit": 1000, "toolCallLimit": 10},
		"sideEffectRisk": "none", "executionApproval": "not_required",
	}
}

func (p *play) authorize(item string) *attempt {
	return p.as(p.lead, "work.authorize").in("workItemId", item).with("contract", p.contract())
}

// open makes an open WorkItem.
func (p *play) open(edit ...func(contract map[string]any)) string {
	item := client.NewID()
	a := p.authorize(item)
	for _, e := range edit {
		a.change("contract", e)
	}
	p.do(a)
	return item
}

func basis() map[string]any {
	return map[string]any{
		"requiredCapabilities": []any{capabilityRef(capability)}, "verifiedMatches": []any{capabilityRef(capability)},
		"authorizationEligible": true, "availabilityEstimate": client.Timestamp(time.Now()), "expectedCost": 1,
		"reliabilityEvidence": []string{}, "policyRulesApplied": []string{"matrix:listed"},
	}
}

func (p *play) offer(item string, candidates ...*actor) *attempt {
	ids := []string{}
	for _, c := range candidates {
		ids = append(ids, c.Principal().ID)
	}
	return p.as(p.lead, "work.offer").in("workItemId", item).with(
		"candidateAgentIds", ids, "selectionBasis", basis(), "offerExpiresInSeconds", 600)
}

// item is a WorkItem as the log tells it.
func (p *play) item(id string) *groups.WorkItem { return p.state.WorkItems[id] }

// pending is the pending offer of an Agent.
func (p *play) pending(item string, who *actor) string {
	for _, o := range p.item(item).Offers {
		if o.AgentID == who.Principal().ID && o.Status == groups.OfferPending {
			return o.OfferID
		}
	}
	panic(abort{fmt.Errorf("no pending offer of %s", who.Principal().ID)})
}

func (p *play) acceptOffer(who *actor, item string) *attempt {
	return p.as(who, "work.accept_offer").in("workItemId", item).with("offerId", p.pending(item, who), "ownershipLeaseSeconds", 900)
}

// offered makes a WorkItem that is offered.
func (p *play) offered(candidates ...*actor) string {
	item := p.open()
	p.do(p.offer(item, candidates...))
	return item
}

// queued makes a WorkItem that who owns.
func (p *play) queued(who *actor, edit ...func(contract map[string]any)) string {
	item := p.open(edit...)
	p.do(p.offer(item, who))
	p.do(p.acceptOffer(who, item))
	return item
}

// handedOver makes a WorkItem that former owned for a moment and owner owns now,
// under the second Ownership Epoch.
func (p *play) handedOver(former, owner *actor) string {
	item := p.open()
	p.do(p.offer(item, former))
	soon := p.soon()
	p.do(p.acceptOffer(former, item).with("startBy", client.Timestamp(soon)))
	p.wait(soon)
	p.do(p.offer(item, owner))
	p.do(p.acceptOffer(owner, item))
	return item
}

func (p *play) startWork(who *actor, item string) *attempt {
	return p.as(who, "work.start").in("workItemId", item).with("ownershipEpoch", p.epoch(item), "executionLeaseSeconds", 600)
}

func (p *play) epoch(item string) int64 { return p.item(item).OwnershipEpoch }

// lease is the WorkItem's last Execution Lease, the current one if there is one.
func (p *play) lease(item string) string {
	w := p.item(item)
	if w.Execution != nil {
		return w.Execution.LeaseID
	}
	for i := len(w.ClosedLeases) - 1; i >= 0; i-- {
		if w.ClosedLeases[i].LeaseType == protocol.LeaseExecution {
			return w.ClosedLeases[i].LeaseID
		}
	}
	return client.NewID()
}

// working is a Command under the WorkItem's Execution Lease.
func (p *play) working(who *actor, kind, item string) *attempt {
	return p.as(who, kind).in("workItemId", item).with("ownershipEpoch", p.epoch(item), "executionLeaseId", p.lease(item))
}

func (p *play) active(who *actor, edit ...func(contract map[string]any)) string {
	item := p.queued(who, edit...)
	p.do(p.startWork(who, item))
	return item
}

func progress() map[string]any {
	return map[string]any{
		"currentPhase": "writing", "completedMilestones": []string{"outline"}, "nextCheckpoint": "draft", "blockers": []string{},
		"updatedCompletionEstimate": client.Timestamp(time.Now().Add(time.Hour)), "evidenceIds": []string{},
	}
}

func (p *play) checkpoint(who *actor, item string) *attempt {
	return p.working(who, "work.checkpoint", item).with("progress", progress())
}

func (p *play) block(who *actor, item string) *attempt {
	return p.working(who, "work.block", item).with("progress", progress(), "reason", "A question.", "requiredResolution", "An answer.")
}

func (p *play) renewLease(who *actor, item string) *attempt {
	return p.working(who, "ext.missionweaveprotocol.core.work_execution_lease_renew", item).with("leaseSeconds", 1200)
}

// manifest is an Artifact manifest of a Worker.
func (p *play) manifest(who *actor, item string) *document {
	content := client.NewID()
	pins := []any{capabilityRef(capability)}
	return &document{kind: protocol.KindArtifact, by: who.Identity(), fields: map[string]any{
		"artifactId": client.NewID(), "contentHash": client.Hash([]byte(content)), "uri": "urn:missionweave:blob:" + content,
		"sizeBytes": int64(len(content)), "mediaType": "text/plain", "schemaUri": "urn:missionweave:matrix:text",
		"producer":  map[string]any{"agentId": who.Principal().ID, "agentCardVersion": int64(1), "capabilities": pins},
		"missionId": p.missionID, "groupId": p.id, "workItemId": item, "sourceArtifactHashes": []string{},
		"toolVersions": []any{map[string]any{"name": "matrix", "version": "1"}}, "modelVersions": []any{},
		"classification": "internal", "createdAt": client.Timestamp(time.Now()),
	}}
}

func (p *play) publish(who *actor, item string) *attempt {
	return p.working(who, "artifact.publish", item).with("artifact", p.manifest(who, item))
}

// proof is Evidence about a WorkItem for its one criterion.
func (p *play) proof(by *actor, item, kind, result string) *document {
	return &document{kind: protocol.KindEvidence, by: by.Identity(), fields: map[string]any{
		"evidenceId": client.NewID(), "missionId": p.missionID, "groupId": p.id, "workItemId": item, "type": kind,
		"subject": map[string]any{"type": "work_item", "id": item}, "criterionIds": []string{"reads"}, "method": "Read it.",
		"result": result, "artifactHashes": []string{}, "generatedBy": by.Principal(), "createdAt": client.Timestamp(time.Now()),
	}}
}

// hashes are the Artifacts published for a WorkItem.
func (p *play) hashes(item string) []string {
	out := []string{}
	for _, a := range p.item(item).Artifacts {
		out = append(out, a.Manifest.Doc.ContentHash)
	}
	return out
}

func (p *play) submit(who *actor, item string) *attempt {
	return p.working(who, "work.submit", item).with("artifactHashes", p.hashes(item), "evidence", []any{p.proof(who, item, "artifact_integrity", "passed")})
}

func (p *play) submitted(who *actor) string {
	item := p.active(who)
	p.do(p.publish(who, item))
	p.do(p.submit(who, item))
	return item
}

func (p *play) acceptResult(item string) *attempt {
	return p.as(p.lead, "work.accept_result").in("workItemId", item).with("evidence", []any{p.proof(p.lead, item, "reviewer_assessment", "passed")})
}

func (p *play) verified(who *actor) string {
	item := p.submitted(who)
	p.do(p.acceptResult(item))
	return item
}

func (p *play) failWork(item string) *attempt {
	return p.as(p.lead, "work.fail").in("workItemId", item).with("reason", "It cannot be done.", "evidence", []any{p.proof(p.lead, item, "failure_report", "failed")})
}

func (p *play) cancelWork(who *actor, item string) *attempt {
	return p.as(who, "work.cancel").in("workItemId", item).with("reason", "Not needed.")
}

func (p *play) submitMission(items ...string) *attempt {
	hashes := []string{}
	for _, i := range items {
		hashes = append(hashes, p.hashes(i)...)
	}
	return p.as(p.lead, "mission.submit_for_approval").with("artifactHashes", hashes)
}

// approval is a final Approval of the submission that waits.
func (p *play) approval(by *actor, decision string) *document {
	hashes, revision := []string{client.Hash([]byte("nothing"))}, int64(1)
	if s := p.state.Mission.Submission; s != nil {
		hashes, revision = s.ArtifactHashes, s.MissionRevision
	}
	return &document{kind: protocol.KindApproval, by: by.Identity(), fields: map[string]any{
		"approvalId": client.NewID(), "kind": "mission_final", "decision": decision, "missionId": p.missionID, "groupId": p.id,
		"missionRevision": revision, "artifactHashes": hashes, "acceptancePolicyVersion": "1.0.0", "approver": by.Principal(),
		"comments": "Looked at it.", "conditions": []string{}, "occurredAt": client.Timestamp(time.Now()),
	}}
}

func (p *play) decideMission(who *actor, kind, decision string) *attempt {
	return p.as(who, kind).with("approval", p.approval(who, decision))
}

func (p *play) message(who *actor, conversation string) *attempt {
	return p.as(who, "message.post").in("conversationId", conversation).with(
		"messageId", client.NewID(), "content", []any{map[string]any{"type": "text", "text": "Hello."}})
}

func (p *play) proposal(who *actor) *attempt {
	return p.as(who, "work.propose").with("proposalId", client.NewID(), "contract", p.contract())
}

// contextPackage is a Context Package of the Coordinator over the whole log.
func (p *play) contextPackage(by *actor) *document {
	first := ""
	for id, e := range p.events {
		if e.Sequence == 1 {
			first = id
		}
	}
	return &document{kind: protocol.KindContextPackage, by: by.Identity(), fields: map[string]any{
		"contextPackageId": client.NewID(), "version": 1, "missionId": p.missionID, "groupId": p.id,
		"sourceEventRange": map[string]any{"fromSequence": 1, "toSequence": 1, "eventIds": []string{first}},
		"artifactHashes":   []string{}, "summary": "The Mission has begun.", "decisions": []any{}, "constraints": []string{},
		"unresolvedQuestions": []string{}, "generatedBy": by.Principal(), "generatedAt": client.Timestamp(time.Now()),
	}}
}
