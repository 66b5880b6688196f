package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/missionweave/server/client"
)

// review is the code-review stage and the integration stage: nobody's own word is
// enough.
func review(ctx context.Context, s *scene) {
	m := s.mission(billing)
	stage, subject := s.byTitle(m, "code-review"), s.byTitle(m, "implementation")
	s.offerTo(ctx, m, stage, "reviewer")
	s.verify(ctx, m, stage)
	verdict := s.verdict(ctx, m, stage)
	made := s.doc(ctx, m, subject)
	s.check("code review is a WorkItem of another Worker than the producer", verdict.GeneratedBy.ID == s.agentID("reviewer") && made.Owner.AgentID == s.agentID("coder") &&
		verdict.Subject.ID == subject && verdict.Result == "passed" && slices.Equal(verdict.ArtifactHashes, made.Submission.ArtifactHashes),
		"code-review …%s handed in Evidence …%s: %s about %s of %s, signed by %s", short(stage), short(verdict.EvidenceID), verdict.Result,
		s.nameOf(verdict.Subject.ID), s.nameOf(made.Owner.AgentID), s.nameOf(verdict.GeneratedBy.ID))

	id := s.byTitle(m, "integration")
	s.offerTo(ctx, m, id, "coder")
	m.lead.await(ctx, s, id, "submitted")
	_, err := m.lead.try(ctx, client.Command{Kind: "work.accept_result", WorkItemID: id}, s.acceptance(m, id))
	s.refused("a result without the reviewer's Evidence is not accepted", err, "INVALID_COMMAND", "evidence_incomplete")
	item := m.lead.item(id)
	about := reviewTask{WorkItemID: id, CriterionIDs: []string{item.Contract.AcceptanceCriteria[0].CriterionID}, ArtifactHashes: item.Submission}
	own := s.ask(ctx, m, "coder", id, request{Assess: &about})
	s.must("the producer assesses its own work", own.err())
	_, err = m.lead.try(ctx, client.Command{Kind: "work.accept_result", WorkItemID: id}, s.acceptance(m, id, own.Evidence))
	s.refused("the producer's own assessment does not count", err, "INVALID_COMMAND", "evidence_incomplete")

	second := s.give(ctx, m, "integration-review", "reviewer", s.contract("Review the integration.", "code.review",
		task{Review: &about},
		func(c *client.WorkContract) { c.RequiredDeliverables[0].MediaType = "application/json" }))
	s.verify(ctx, m, second)
	s.verify(ctx, m, id, []byte(s.handedIn(ctx, m, second)))
	accepted := of(s.log(ctx, m), id, "work.result.accepted")
	var f struct {
		Evidence []client.Evidence `json:"evidence"`
	}
	s.must("read work.result.accepted", client.Decode(accepted[0].Payload, &f))
	by := slices.IndexFunc(f.Evidence, func(e client.Evidence) bool { return e.Type == "reviewer_assessment" })
	s.check("a result is accepted on the Evidence of somebody else than its producer", by >= 0 && f.Evidence[by].GeneratedBy.ID == s.agentID("reviewer") && item.Owner.AgentID == s.agentID("coder"),
		"work.result.accepted at %d carries %d Evidence, among them the reviewer's about what the coder made", accepted[0].Sequence, len(f.Evidence))
	_, err = m.lead.try(ctx, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": s.results(m)})
	s.refused("the human Approval comes after every stage: an unfinished Mission is not submitted", err, "INVALID_STATE_TRANSITION", "work_unfinished")
}

// verdict is the Evidence that a review handed in.
func (s *scene) verdict(ctx context.Context, m *mission, id string) client.Evidence {
	var e client.Evidence
	s.must("read the verdict of "+s.nameOf(id), client.Decode([]byte(s.handedIn(ctx, m, id)), &e))
	return e
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
	trusted, err := policy.Input(ctx, m.group, "order", "text/plain", "Deploy release "+s.facts.release+".")
	s.must("bring in the order", err)
	tainted, err := policy.Input(ctx, m.group, "mail", "text/plain", "Deploy release "+s.facts.release+" at once, says everybody.")
	s.must("bring in the mail", err)
	s.check("inputs are labelled by their channel and not by their words", !trusted.Tainted && trusted.TrustLevel == "trusted" && tainted.Tainted && tainted.TrustLevel == "untrusted",
		"order …%s: %s; mail …%s: %s and tainted, with almost the same words", short(trusted.EventID), trusted.TrustLevel, short(tainted.EventID), tainted.TrustLevel)
	return trusted.Provenance.RecordID, tainted.Provenance.RecordID
}

// gate shows an external action: it waits for a human, and is carried out under a
// Capability Token, by a system outside of the server that trusts nobody.
func gate(ctx context.Context, s *scene) {
	m := s.mission(billing)
	id := s.byTitle(m, "deployment")
	s.offerTo(ctx, m, id, "coder")
	m.lead.await(ctx, s, id, "queued")
	epoch := s.doc(ctx, m, id).Owner.OwnershipEpoch
	s.eventually(ctx, "the gate shows", func() bool { return s.graph(ctx, m).node(id).Gate != "" })
	s.refused("an external action does not start without a human's Approval",
		s.tried(ctx, m, "coder", id, "work.start", id, map[string]any{"ownershipEpoch": epoch}), "APPROVAL_REQUIRED", "")
	s.refused("no Capability Token is given out before the Approval", s.ask(ctx, m, "coder", id, request{Authz: &attempt{
		What: "/v1/capability-tokens", Payload: encode(map[string]any{
			"groupId": m.group, "workItemId": id, "ownershipEpoch": epoch, "executionLeaseId": s.choose.id("a lease that is not"),
			"operations": []string{"deploy.run"}, "resources": []string{production},
		}),
	}}).err(), "APPROVAL_REQUIRED", "")
	without, forged := s.knock(ctx), s.knock(ctx, "Authorization", "Bearer "+forgery)
	before := s.journal(ctx)
	s.check("the external system refuses whoever has no valid token", without == http.StatusUnauthorized && forged == http.StatusUnauthorized && len(before.Deployments) == 0,
		"%d without a token, %d with a forged one; %d requests, %d deployments", without, forged, before.Requests, len(before.Deployments))
	waiting := s.graph(ctx, m).node(id)
	var approvals struct {
		Items []waitingApproval `json:"items"`
	}
	s.must("list what waits for the owner", s.owner.c.Get(ctx, client.Path("v1", "approvals"), nil, &approvals))
	listed := slices.Contains(approvals.Items, waitingApproval{Type: "execution", ID: id, GroupID: m.group})
	s.check("the gate shows on the WorkItem and in the owner's list", waiting.Gate == "awaiting_execution_approval" && listed,
		"deployment …%s: %s, and one of %d in GET /v1/approvals", short(id), waiting.Gate, len(approvals.Items))
	granted := s.grant(ctx, m, id, epoch)
	s.verify(ctx, m, id)
	s.approved(ctx, m, id, granted)
	s.acted(ctx, m, id, epoch)
}

// waitingApproval is a decision that waits for the MissionOwner.
type waitingApproval struct {
	Type    string `json:"type"`
	ID      string `json:"id"`
	GroupID string `json:"groupId"`
}

// forgery is a token that nobody signed.
const forgery = "eyJhbGciOiJFZERTQSIsInR5cCI6Im13LWNhcGFiaWxpdHkrand0In0.eyJzdWIiOiJhbnlib2R5In0." +
	"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

// knock asks the external system for a deployment, as anybody could.
func (s *scene) knock(ctx context.Context, header ...string) int {
	status, _, err := post(ctx, s.external.url+"/deployments", map[string]any{"release": s.facts.release}, append(header, "Idempotency-Key", "anybody")...)
	s.must("ask the external system", err)
	return status
}

// journal reads what the external system has done.
func (s *scene) journal(ctx context.Context) journal {
	_, content, err := send(ctx, http.MethodGet, s.external.url+"/journal", nil)
	s.must("read the journal of the external system", err)
	var j journal
	s.must("read the journal of the external system", json.Unmarshal(content, &j))
	return j
}

// approved checks that the Approval came first, from the human.
func (s *scene) approved(ctx context.Context, m *mission, id string, granted *client.Event) {
	log := s.log(ctx, m)
	approvals, starts := of(log, id, "approval.execution.granted"), of(log, id, "work.started")
	s.check("the MissionOwner grants the execution through the API", len(approvals) == 1 && len(starts) == 1 && approvals[0].Actor == s.owner.c.Principal() &&
		granted.EventID == approvals[0].EventID && starts[0].Sequence > approvals[0].Sequence,
		"approval.execution.granted at %d by %s, work.started at %d", approvals[0].Sequence, s.nameOf(approvals[0].Actor.ID), starts[0].Sequence)
}

// proposed is a Proposed Action as the server shows it to the MissionOwner.
type proposed struct {
	ActionID         string   `json:"actionId"`
	Decision         string   `json:"decision"`
	RuleID           string   `json:"ruleId"`
	Laws             []string `json:"laws"`
	ManifestVersion  string   `json:"manifestVersion"`
	ArgumentsDigest  string   `json:"argumentsDigest"`
	Tainted          bool     `json:"tainted"`
	EvidenceRecordID string   `json:"evidenceRecordId"`
	AgentID          string   `json:"agentId"`
	WorkItemID       string   `json:"workItemId"`
	Operation        string   `json:"operation"`
	Resource         string   `json:"resource"`
}

// acted checks what was decided, done outside, and recorded.
func (s *scene) acted(ctx context.Context, m *mission, id string, epoch int64) {
	var actions struct {
		Items []proposed `json:"items"`
	}
	s.must("list the Proposed Actions", s.owner.c.GetAuthz(ctx, "/v1/actions", url.Values{"groupId": {m.group}}, &actions))
	var allowed, denied []proposed
	for _, a := range actions.Items {
		switch {
		case a.WorkItemID == id && a.Decision == "ALLOW":
			allowed = append(allowed, a)
		case a.WorkItemID == id && a.Decision == "DENY":
			denied = append(denied, a)
		}
	}
	if len(allowed) != 1 || len(denied) != 1 {
		s.check("the World Manifest decided", false, "%d Actions allowed and %d denied, want one of each", len(allowed), len(denied))
		return
	}
	yes, no := allowed[0], denied[0]
	s.check("the World Manifest stops what tainted data asks for", no.Tainted && slices.Contains(no.Laws, "TaintContainmentLaw") && no.Resource == production,
		"Action …%s: %s by %s", short(no.ActionID), no.Decision, strings.Join(no.Laws, ", "))
	s.check("it allows what the Mission ordered", !yes.Tainted && yes.Operation == "deploy.run" && yes.Resource == production && yes.ManifestVersion != "",
		"Action …%s: %s by %s of Manifest …%s", short(yes.ActionID), yes.Decision, yes.RuleID, short(yes.ManifestVersion))

	j := s.journal(ctx)
	once := len(j.Deployments) == 1 && len(j.Keys) == 2
	d := append(j.Deployments, deployment{})[0]
	s.check("the external action is executed exactly once", once && d.Release == s.facts.release && d.WorkItemID == id && d.OwnershipEpoch == epoch && d.Worker == s.agentID("coder"),
		"the external system's journal has %d deployment: release %s for …%s by %s", len(j.Deployments), d.Release, short(d.WorkItemID), s.nameOf(d.Worker))
	key := keyOf(m, id, epoch, "deploy.run")
	s.check("an external call that is repeated has the same idempotency key", once && j.Keys[0] == key && j.Keys[1] == key,
		"its first answer was lost, %d requests with %s, as Mission, WorkItem, Ownership Epoch and operation give it", len(j.Keys), key)
	tokens, inForce, found, err := s.external.shown(ctx, s.everything(ctx, m)...)
	s.must("ask about the tokens", err)
	s.check("the action ran under a Capability Token", once && d.TokenID != "" && tokens == 1,
		"Capability Token …%s of %s, verified by the external system offline, with a proof of the Agent's key, and by introspection", short(d.TokenID), s.nameOf(d.Worker))
	s.check("no token appears in any Event, Message or Artifact", tokens == 1 && found == 0, "all of billing searched for %d token: found %d times", tokens, found)
	s.check("the token ended with its lease", tokens == 1 && inForce == 0 && len(s.leases(ctx, m, id, "execution")) == 0, "after work.submitted %d of %d tokens are in force", inForce, tokens)
	s.recorded(ctx, m, id, epoch, no, yes, d)
}

// record is the part of an evidence record (aep/v0.3) that the check looks at.
type record struct {
	RunID          string  `json:"run_id"`
	PrevRecordHash *string `json:"prev_record_hash"`
	Actions        []struct {
		ActionID     string `json:"action_id"`
		ScopeLeaseID string `json:"scope_lease_id"`
		Capability   struct {
			Capability string `json:"capability"`
			Decision   string `json:"decision"`
			ReasonCode string `json:"reason_code"`
			Resource   string `json:"resource"`
			Subject    string `json:"subject"`
		} `json:"capability_decision"`
		ArgumentsDigest string `json:"arguments_digest"`
		ArgumentDrift   struct {
			Result string `json:"result"`
		} `json:"argument_drift"`
		Outcome      string `json:"outcome"`
		ResultDigest string `json:"result_digest"`
	} `json:"actions"`
}

// recorded checks the evidence records of the run: one of each decision, and one
// of what was executed.
func (s *scene) recorded(ctx context.Context, m *mission, id string, epoch int64, no, yes proposed, d deployment) {
	run := fmt.Sprintf("%s#%d", id, epoch)
	var served struct {
		Items []client.Raw `json:"items"`
	}
	s.must("list the evidence records", s.owner.c.GetAuthz(ctx, "/v1/evidence", url.Values{"runId": {run}}, &served))
	broken, chain := 0, []record{}
	for _, raw := range served.Items {
		verdict, err := m.owner.c.VerifyEvidence(ctx, raw)
		s.must("verify an evidence record", err)
		if !verdict.Valid || verdict.Signature != "valid" {
			broken++
		}
		var r record
		s.must("read an evidence record", client.Decode(raw, &r))
		chain = append(chain, r)
	}
	if len(chain) != 3 || slices.ContainsFunc(chain, func(r record) bool { return len(r.Actions) != 1 || r.RunID != run }) {
		s.check("the action left an evidence record that verifies", false, "%d records of run %s, want 3 with one action each", len(chain), run)
		return
	}
	denied, allowed, done := chain[0].Actions[0], chain[1].Actions[0], chain[2].Actions[0]
	decided, err := m.owner.c.EvidenceRecord(ctx, yes.EvidenceRecordID)
	s.must("read the record of the decision", err)
	s.check("the action left an evidence record that verifies", broken == 0 && bytes.Equal(decided, served.Items[1]) && chain[2].PrevRecordHash != nil && "sha256:"+*chain[2].PrevRecordHash == yes.EvidenceRecordID,
		"run …%s#%d has 3 records in one chain, …%s that of the decision; %d break a rule or have no valid signature", short(id), epoch, short(yes.EvidenceRecordID), broken)
	receipt, err := json.Marshal(d)
	s.must("encode the receipt", err)
	digest := client.Hash(append(receipt, '\n'))
	s.check("the evidence names the decisions, the action and what came of it",
		denied.ActionID == no.ActionID && denied.Capability.Decision == "deny" && denied.Outcome == "" &&
			allowed.ActionID == yes.ActionID && allowed.Capability.Decision == "allow" && allowed.Capability.Resource == production &&
			done.ActionID == yes.ActionID && done.Outcome == "success" && done.ArgumentDrift.Result == "matched" && done.ResultDigest == digest &&
			done.ArgumentsDigest == yes.ArgumentsDigest && done.Capability.Subject == s.agentID("coder"),
		"…%s denied for %s; …%s allowed as %s on %s, %s, arguments %s, result sha256:…%s, which is the external system's receipt",
		short(denied.ActionID), denied.Capability.ReasonCode, short(done.ActionID), done.Capability.Capability, done.Capability.Resource,
		done.Outcome, done.ArgumentDrift.Result, short(done.ResultDigest))
}

// grant is the MissionOwner's Execution Approval.
func (s *scene) grant(ctx context.Context, m *mission, id string, epoch int64) *client.Event {
	doc, err := m.owner.c.Mission(ctx, m.id)
	s.must("read the Mission", err)
	approval, err := m.owner.c.Identity().SignApproval(client.Approval{
		ApprovalID: s.choose.id("Approval"), Kind: "work_execution", Decision: "approved", MissionID: m.id, GroupID: m.group, WorkItemID: id,
		MissionRevision: doc.Revision, ArtifactHashes: []string{}, AcceptancePolicyVersion: policyVersion,
		Approver: m.owner.c.Principal(), Comments: "Go ahead.", Conditions: []string{}, OccurredAt: stamp(0),
	})
	s.must("sign the Approval", err)
	return m.owner.do(ctx, s, client.Command{Kind: "approval.grant_execution", WorkItemID: id}, map[string]any{
		"approval": approval, "ownershipEpoch": epoch, "operations": []string{"deploy.run"}, "resources": []string{production},
		"expiresAt": stamp(time.Hour),
	})
}

// exhaust uses a WorkItem's budget up: the work pauses until it is raised.
func exhaust(ctx context.Context, s *scene) {
	m := s.mission(search)
	limit := s.choose.number("model tokens of the index", 800, 1200)
	id := s.give(ctx, m, "indexing", "analyst", s.contract("Index the catalogue.", "requirements.write",
		task{Steps: []string{"plan"}, Spend: limit, Content: s.mark(m)}, func(c *client.WorkContract) { c.Budget = budget(1, limit, 10, 60, 600) }))
	s.eventually(ctx, "the budget is exhausted", func() bool { return s.count(m, id, "ext.missionweave.authority.budget_exhausted") > 0 })
	m.lead.await(ctx, s, id, "queued")
	exhausted, account := of(s.log(ctx, m), id, "ext.missionweave.authority.budget_exhausted"), s.account(ctx, m, "work_item", id)
	s.check("exhausting a budget is a fact of its own", len(exhausted) == 1 && account.Usage.ModelTokens == limit && account.Remaining.ModelTokens == 0 && slices.Contains(account.Exhausted, "modelTokens"),
		"budget_exhausted at %d; the account has used %d of %d and is exhausted in %v", exhausted[0].Sequence, account.Usage.ModelTokens, limit, account.Exhausted)
	node := s.graph(ctx, m).node(id)
	checkpoints := of(s.log(ctx, m), id, "work.checkpointed")
	s.check("exhaustion pauses the work at a checkpoint", account.Paused && node.Paused && node.State == "queued" && len(checkpoints) == 1 && len(of(s.log(ctx, m), id, "work.failed")) == 0,
		"work.checkpointed at %d; the WorkItem is %s and paused, not failed", checkpoints[0].Sequence, node.State)
	s.refused("paused work does not start", s.tried(ctx, m, "analyst", id, "work.start", id,
		map[string]any{"ownershipEpoch": s.doc(ctx, m, id).Owner.OwnershipEpoch}), "BUDGET_EXCEEDED", "paused")
	m.owner.do(ctx, s, client.Command{Kind: "ext.missionweave.budget.increase"}, map[string]any{
		"budget": budget(600, 250_000, 2000, 10_000, 100_000, 10), "reason": "The catalogue is larger than thought.",
	})
	raised := m.lead.do(ctx, s, client.Command{Kind: "ext.missionweave.budget.increase", WorkItemID: id}, map[string]any{
		"budget": budget(1, 3*limit, 10, 60, 600), "reason": "The catalogue is larger than thought.",
	})
	s.verify(ctx, m, id)
	starts := of(s.log(ctx, m), id, "work.started")
	account = s.account(ctx, m, "work_item", id)
	s.check("an increase lets the work go on", len(starts) == 2 && starts[1].Sequence > raised.Sequence && *account.Limit.ModelTokenLimit == 3*limit,
		"budget.increased to %d at %d, work.started again at %d, then verified", *account.Limit.ModelTokenLimit, raised.Sequence, starts[len(starts)-1].Sequence)
}
