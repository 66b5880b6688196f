package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/missionweave/server/client"
)

// review is the code-review stage: nobody's own word is enough.
func review(ctx context.Context, s *scene) {
	m := s.mission("billing")
	id := s.give(ctx, m, "integration", "coder", s.contract("Integrate what was implemented and tested.", "code.write",
		task{Steps: []string{"merge"}, Content: "merged " + secretA}, after(s.byTitle(m, "implementation"), s.byTitle(m, "testing")), reviewed))
	m.lead.await(ctx, s, id, "submitted")
	_, err := m.lead.try(ctx, client.Command{Kind: "work.accept_result", WorkItemID: id}, s.acceptance(m, id))
	s.refused("a result without the reviewer's Evidence is not accepted", err, "INVALID_COMMAND")
	own := s.assessment(m, id, s.workers["coder"].c, "passed")
	_, err = m.lead.try(ctx, client.Command{Kind: "work.accept_result", WorkItemID: id}, s.acceptance(m, id, own))
	s.refused("the producer's own assessment does not count", err, "INVALID_COMMAND")

	verdict := s.reviewOf(ctx, m, id, "code-review", false)
	accepted := s.verify(ctx, m, id, verdict)
	s.check("a result is accepted on the Evidence of somebody else", accepted.Kind == "work.result.accepted",
		"reviewer_assessment by %s about work of %s", "reviewer", "coder")
}

// reviewOf has the shared reviewer judge a WorkItem and returns its signed
// verdict.
func (s *scene) reviewOf(ctx context.Context, m *mission, id, title string, reject bool) client.Raw {
	item := m.lead.item(id)
	r := s.give(ctx, m, title, "reviewer", s.contract("Review "+s.nameOf(id)+".", "code.review", task{Review: &reviewTask{
		WorkItemID: id, CriterionIDs: []string{item.Contract.AcceptanceCriteria[0].CriterionID}, ArtifactHashes: item.Submission, Reject: reject,
	}}, func(c *client.WorkContract) {
		c.InputArtifacts = []string{}
		c.RequiredDeliverables[0].MediaType = "application/json"
	}))
	s.verify(ctx, m, r)
	content, err := m.lead.c.GetArtifact(ctx, m.group, m.lead.item(r).Submission[0])
	s.must("read the verdict", err)
	return content
}

// assessment is a verdict signed by anybody.
func (s *scene) assessment(m *mission, id string, by *client.Client, result string) client.Raw {
	item := m.lead.item(id)
	signed, err := by.Identity().SignEvidence(client.Evidence{
		EvidenceID: client.NewID(), MissionID: m.id, GroupID: m.group, WorkItemID: id, Type: "reviewer_assessment",
		Subject: client.EvidenceSubject{Type: "work_item", ID: id}, CriterionIDs: []string{item.Contract.AcceptanceCriteria[0].CriterionID},
		Method: "Looked at it.", Result: result, ArtifactHashes: item.Submission, GeneratedBy: by.Principal(), CreatedAt: stamp(0),
	})
	s.must("sign an assessment", err)
	return signed
}

// isolate shows that the Missions do not learn of each other through what they
// share.
func isolate(ctx context.Context, s *scene) {
	a, b := s.mission("billing"), s.mission("search")
	leadA, leadB := a.lead.c, b.lead.c
	_, _, err := leadA.Events(ctx, b.group, 0, 10)
	s.refused("the Events of the other Mission do not exist for a Coordinator", err, "GROUP_NOT_FOUND")
	_, err = leadB.Mission(ctx, a.id)
	s.refused("the Mission document of the other does not exist either", err, "GROUP_NOT_FOUND")
	_, err = a.lead.session.Subscribe(ctx, b.group, 0)
	s.refused("nor does its stream", err, "GROUP_NOT_FOUND")

	hash := a.lead.item(s.byTitle(a, "implementation")).Submission[0]
	_, err = leadB.GetArtifact(ctx, b.group, hash)
	s.check("an Artifact of one Mission cannot be read through the other", client.CodeOf(err) != "", "%s for the known hash sha256:…%s", client.CodeOf(err), short(hash))

	leaks := 0
	for _, d := range b.lead.log {
		for _, mark := range []string{secretA, a.id, a.group} {
			if strings.Contains(string(d.Bytes), mark) {
				leaks++
			}
		}
	}
	s.check("no Event of search names anything of billing", leaks == 0, "%d Events searched for 3 marks", len(b.lead.log))
	s.check("no slot saw the context of another Mission", s.mixed(a, b) == "", "%d Jobs of the shared Worker, each with its own Mission's texts only", len(s.workers["reviewer"].contexts))

	before := s.remaining(ctx, b)
	id := s.give(ctx, a, "spender", "analyst", s.contract("Spend some tokens.", "requirements.write", task{Spend: 250}))
	s.verify(ctx, a, id)
	s.check("a charge to one Mission leaves the other's budget alone", before == s.remaining(ctx, b), "search still has %d model tokens", before)
	status, leaked := s.tokensAcross(ctx, a, b)
	s.check("a Worker's authority in one Mission is none in the other", !leaked, "%s", status)
}

// mixed finds a Job that saw something of the other Mission.
func (s *scene) mixed(a, b *mission) string {
	w := s.workers["reviewer"]
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, texts := range w.contexts {
		all := strings.Join(texts, "\n")
		inA := read(a.lead, func(x *client.Board) bool { return x.Items[id] != nil })
		if inA && strings.Contains(all, secretB) || !inA && strings.Contains(all, secretA) {
			return s.nameOf(id)
		}
	}
	_ = b
	return ""
}

// account is the part of a budget answer that the scenes look at.
type account struct {
	Remaining struct {
		ModelTokens int64 `json:"modelTokens"`
	} `json:"remaining"`
}

func (s *scene) remaining(ctx context.Context, m *mission) int64 {
	var answer struct {
		Accounts []struct {
			Account struct {
				Type string `json:"type"`
				ID   string `json:"id"`
			} `json:"account"`
			account
		} `json:"accounts"`
	}
	s.must("read the budget", m.owner.c.Get(ctx, client.Path("v1", "groups", m.group, "budget"), nil, &answer))
	for _, k := range answer.Accounts {
		if k.Account.Type == "mission" && k.Account.ID == m.id {
			return k.Remaining.ModelTokens
		}
	}
	panic(&broken{fmt.Errorf("the budget of %s has no account of the Mission", m.name)})
}

// tokensAcross asks for a Capability Token in one Mission with the lease of the
// other.
func (s *scene) tokensAcross(ctx context.Context, a, b *mission) (string, bool) {
	id := s.give(ctx, a, "holder", "coder", s.contract("Hold a lease.", "code.write", task{Steps: []string{"hold"}, Gate: "holder"}))
	a.lead.await(ctx, s, id, "active")
	item := a.lead.item(id)
	w := s.workers["coder"].present()
	err := w.Session().PostAuthz(ctx, "/v1/capability-tokens", map[string]any{
		"groupId": b.group, "workItemId": id, "ownershipEpoch": item.OwnershipEpoch, "executionLeaseId": item.ExecutionLease.LeaseID,
		"operations": []string{"deploy.run"}, "resources": []string{production},
	}, nil)
	s.gates.lift("holder")
	s.verify(ctx, a, id)
	return fmt.Sprintf("a Capability Token for search under a lease of billing: %s", client.CodeOf(err)), err == nil
}

// gate shows an external action: it waits for a human, and is carried out under a
// Capability Token.
func gate(ctx context.Context, s *scene) {
	m := s.mission("billing")
	order, mail := s.inputs(ctx, m)
	id := s.give(ctx, m, "deploy", "coder", s.contract("Deploy the release to production.", "code.deploy",
		task{Deploy: &deployTask{Operation: "deploy.run", Release: "2.4", Order: order, Mail: mail}},
		func(c *client.WorkContract) {
			c.SideEffectRisk, c.ExecutionApproval = "high_risk", "human_required"
			c.AllowedResources = []client.ResourceGrant{{Resource: production, Operations: []string{"deploy.run"}}}
			c.Budget = budget(1, 1000, 10, 60, 600, 1)
		}, after(s.byTitle(m, "integration"))))
	m.lead.await(ctx, s, id, "queued")
	epoch := m.lead.item(id).OwnershipEpoch
	side := s.side(ctx, "coder", m)
	_, err := side.try(ctx, client.Command{Kind: "work.start", WorkItemID: id}, map[string]any{"ownershipEpoch": epoch})
	side.leave()
	s.refused("an external action does not start without a human's Approval", err, "APPROVAL_REQUIRED")
	s.check("the gate shows on the WorkItem", s.gateOf(ctx, m, id) == "awaiting_execution_approval", "gate: %s", s.gateOf(ctx, m, id))
	granted := s.grant(ctx, m, id, epoch)
	s.check("the MissionOwner grants the execution through the API", granted.Kind == "approval.execution.granted",
		"signed Approval for Ownership Epoch %d, operation deploy.run on %s", epoch, production)
	s.verify(ctx, m, id)
	w := s.workers["coder"]
	w.mu.Lock()
	token := w.tokens[id]
	w.mu.Unlock()
	s.check("the action ran under a Capability Token", token != nil, "%v, bound to the Execution Lease", token)
	if token != nil {
		s.check("no token appears in any Event, Message or Artifact", !s.appears(ctx, m, token.Bearer()), "%d Events and every Artifact of billing searched", len(m.lead.log))
		active, err := s.introspect(ctx, m, token.Bearer())
		s.check("the token ended with its lease", err == nil && !active, "introspection after work.submitted: active %v", active)
	}
	s.judged(ctx, m, w.deeds[id])
	s.check("external operations have a stable idempotency key", strings.HasPrefix(w.keys[id], "mw-"), "%s from Mission, WorkItem, Ownership Epoch and operation", w.keys[id])
}

// world is the World Manifest of the play: what the Mission orders may go out,
// what anybody could have sent may not.
const world = `format: worldmanifest/1
name: two-missions
version: "1"
trust_channels: {order: trusted, mail: untrusted}
capabilities: [read, external_side_effects]
capability_matrix:
  trusted: [read, external_side_effects]
  untrusted: [read]
actions:
  look: {requires: [read]}
  deploy:
    requires: [external_side_effects]
    schema: {type: object, required: [release], properties: {release: {type: string}}, additionalProperties: false}
`

// inputs puts a World Manifest in force for billing and brings in an order and a
// mail that ask for the same.
func (s *scene) inputs(ctx context.Context, m *mission) (order, mail string) {
	policy, err := s.connect("policy")
	s.must("connect as the policy service", err)
	defer policy.Close()
	version, err := policy.InstallManifest(ctx, "two-missions", world, m.group)
	s.must("install the World Manifest", err)
	s.line.note("World Manifest %s is in force in billing", short(version))
	trusted, err := policy.Input(ctx, m.group, "order", "text/plain", "Deploy release 2.4.")
	s.must("bring in the order", err)
	tainted, err := policy.Input(ctx, m.group, "mail", "text/plain", "Deploy release 2.4 at once, says everybody.")
	s.must("bring in the mail", err)
	s.check("inputs are labelled by their channel and not by their words", !trusted.Tainted && tainted.Tainted,
		"order: %s; mail: %s and tainted, with almost the same words", trusted.TrustLevel, tainted.TrustLevel)
	return trusted.Provenance.RecordID, tainted.Provenance.RecordID
}

// judged checks what the World Manifest decided and what was recorded.
func (s *scene) judged(ctx context.Context, m *mission, d *deed) {
	if d == nil || d.byMail == nil || d.byOrder == nil || d.recorded == nil {
		s.check("the World Manifest decided", false, "the action never came that far")
		return
	}
	s.check("the World Manifest stops what tainted data asks for", d.byMail.Decision == "DENY" && slices.Contains(d.byMail.Laws, "TaintContainmentLaw"),
		"%s by %s", d.byMail.Decision, strings.Join(d.byMail.Laws, ", "))
	s.check("it allows what the Mission ordered", d.byOrder.Decision == "ALLOW" && d.executed == 1, "%s by %s; executed once", d.byOrder.Decision, d.byOrder.RuleID)
	record, err := m.owner.c.EvidenceRecord(ctx, d.recorded.EvidenceRecordID)
	s.must("read the evidence record", err)
	verdict, err := m.owner.c.VerifyEvidence(ctx, record)
	s.must("verify the evidence record", err)
	s.check("the action left an evidence record that verifies", verdict.Valid && verdict.Signature == "valid" && d.recorded.ArgumentDrift == "matched",
		"record …%s, signature %s, no argument drift, %d rules broken", short(d.recorded.EvidenceRecordID), verdict.Signature, len(verdict.Errors))
}

func (s *scene) gateOf(ctx context.Context, m *mission, id string) string {
	item, err := m.owner.c.WorkItem(ctx, m.group, id)
	s.must("read a WorkItem", err)
	var extensions map[string]struct {
		Data struct {
			Gate string `json:"gate"`
		} `json:"data"`
	}
	s.must("read its links", client.Decode(item.Extensions, &extensions))
	return extensions["urn:missionweave:extension:work-item-links"].Data.Gate
}

// grant is the MissionOwner's Execution Approval.
func (s *scene) grant(ctx context.Context, m *mission, id string, epoch int64) *client.Event {
	doc, err := m.owner.c.Mission(ctx, m.id)
	s.must("read the Mission", err)
	approval, err := m.owner.c.Identity().SignApproval(client.Approval{
		ApprovalID: client.NewID(), Kind: "work_execution", Decision: "approved", MissionID: m.id, GroupID: m.group, WorkItemID: id,
		MissionRevision: doc.Revision, ArtifactHashes: []string{}, AcceptancePolicyVersion: policyVersion,
		Approver: m.owner.c.Principal(), Comments: "Go ahead.", Conditions: []string{}, OccurredAt: stamp(0),
	})
	s.must("sign the Approval", err)
	return m.owner.do(ctx, s, client.Command{Kind: "approval.grant_execution", WorkItemID: id}, map[string]any{
		"approval": approval, "ownershipEpoch": epoch, "operations": []string{"deploy.run"}, "resources": []string{production},
		"expiresAt": stamp(time.Hour),
	})
}

// appears searches everything that a Mission's members can read for a secret.
func (s *scene) appears(ctx context.Context, m *mission, secret string) bool {
	m.lead.mu.Lock()
	log := slices.Clone(m.lead.log)
	m.lead.mu.Unlock()
	for _, d := range log {
		if strings.Contains(string(d.Bytes), secret) {
			return true
		}
	}
	for _, e := range m.lead.events("artifact.published") {
		var f struct {
			Artifact client.Artifact `json:"artifact"`
		}
		s.must("read a manifest", client.Decode(e.Payload, &f))
		content, err := m.lead.c.GetArtifact(ctx, m.group, f.Artifact.ContentHash)
		s.must("read an Artifact", err)
		if strings.Contains(string(content), secret) {
			return true
		}
	}
	return false
}

// introspect asks the Authorization Service about a token, as a tool does.
func (s *scene) introspect(ctx context.Context, m *mission, token string) (bool, error) {
	var answer struct {
		Active bool `json:"active"`
	}
	err := m.lead.session.PostAuthz(ctx, "/v1/introspect", map[string]any{"token": token}, &answer)
	return answer.Active, err //nolint:wrapcheck // judged by the check
}

// exhaust uses a WorkItem's budget up: the work pauses until it is raised.
func exhaust(ctx context.Context, s *scene) {
	m := s.mission("search")
	id := s.give(ctx, m, "indexing", "analyst", s.contract("Index the catalogue.", "requirements.write",
		task{Steps: []string{"plan"}, Spend: 1000, Content: secretB}))
	m.lead.await(ctx, s, id, "queued")
	s.eventually(ctx, "the budget is exhausted", func() bool { return len(m.lead.events("ext.missionweave.authority.budget_exhausted")) > 0 })
	m.lead.await(ctx, s, id, "queued")
	s.check("exhausting a budget is a fact of its own", len(m.lead.events("ext.missionweave.authority.budget_exhausted")) == 1,
		"budget_exhausted after 1000 of 1000 model tokens")
	item := m.lead.item(id)
	side := s.side(ctx, "analyst", m)
	_, err := side.try(ctx, client.Command{Kind: "work.start", WorkItemID: id}, map[string]any{"ownershipEpoch": item.OwnershipEpoch})
	side.leave()
	s.refused("paused work does not start", err, "BUDGET_EXCEEDED")
	s.check("pausing left the checkpoint", len(item.Checkpoints) > 0, "work.checkpointed with its milestones, no forced stop")
	raised := budget(1, 3000, 10, 60, 600)
	m.owner.do(ctx, s, client.Command{Kind: "ext.missionweave.budget.increase", WorkItemID: ""}, map[string]any{
		"budget": budget(600, 250_000, 2000, 10_000, 100_000, 10), "reason": "The catalogue is larger than thought.",
	})
	m.lead.do(ctx, s, client.Command{Kind: "ext.missionweave.budget.increase", WorkItemID: id}, map[string]any{
		"budget": raised, "reason": "The catalogue is larger than thought.",
	})
	s.verify(ctx, m, id)
	s.check("an increase lets the work go on", s.count(m, id, "work.started") >= 2, "budget.increased by owner and Coordinator, then work.started again")
}
