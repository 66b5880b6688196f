package groups

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// TestRandomHistories drives random Commands, most of them half right, through
// a world of a few Groups, with time, sweeps and takeovers in between, and
// holds after every step that a refusal changed nothing, that no Event breaks
// the ledger or the fences, and at the end that every log folds to the live
// state and every dump reads back.
func TestRandomHistories(t *testing.T) {
	seen, refusals := map[string]int{}, map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		w := newWild(rt, rapid.Uint64().Draw(rt, "seed"))
		for range rapid.IntRange(10, 150).Draw(rt, "steps") {
			w.step()
		}
		w.refold()
		for kind, n := range w.events {
			seen[kind] += n
		}
		for code, n := range w.refused {
			refusals[code] += n
		}
	})
	if testing.Verbose() {
		for _, kind := range slices.Sorted(maps.Keys(seen)) {
			t.Logf("%6d %s", seen[kind], kind)
		}
		for _, code := range slices.Sorted(maps.Keys(refusals)) {
			t.Logf("%6d refused %s", refusals[code], code)
		}
	}
}

// wild is a lab driven by random choices. Only the seed and the number of
// steps come from rapid: its integers favour the ends of their range, which
// would make every rare thing common.
type wild struct {
	*lab
	rt      *rapid.T
	seed    uint64
	events  map[string]int
	refused map[string]int
	ids     int
}

type rapidTB struct {
	testing.TB
	rt *rapid.T
}

func (tb rapidTB) Helper()                      {}
func (tb rapidTB) Fatalf(f string, args ...any) { tb.rt.Fatalf(f, args...) }
func (tb rapidTB) Fatal(args ...any)            { tb.rt.Fatal(args...) }

var wildAgents = []string{"agent:ann", "agent:ben", "agent:cy", "agent:dot"}

func newWild(rt *rapid.T, seed uint64) *wild {
	w := &wild{lab: newLab(rapidTB{rt: rt}), rt: rt, seed: seed, events: map[string]int{}, refused: map[string]int{}}
	for _, a := range wildAgents {
		w.addAgent(a, "code.write")
	}
	w.create("group:0", nil)
	return w
}

// between draws an integer, both ends included (splitmix64).
func (w *wild) between(low, high int) int {
	w.seed += 0x9E3779B97F4A7C15
	z := w.seed
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return low + int((z^z>>31)%uint64(high-low+1))
}

func (w *wild) chance(percent int) bool { return w.between(1, 100) <= percent }

func pick[T any](w *wild, from []T) T { return from[w.between(0, len(from)-1)] }

func (w *wild) fresh(kind string) string {
	w.ids++
	return fmt.Sprintf("%s:%d", kind, w.ids)
}

func (w *wild) in(low, high int) string {
	return lexical.FormatMicros(w.now.Add(time.Duration(w.between(low, high)) * time.Second))
}

func (w *wild) groups() []string { return slices.Sorted(maps.Keys(w.group)) }

func (w *wild) budget(most int) map[string]any {
	return map[string]any{
		"currency": "EUR", "financialLimit": w.between(0, most),
		"modelTokenLimit": w.between(0, most),
	}
}

var wildCriterion = map[string]any{
	"criterionId": "done", "description": "It is done", "evidenceRequired": []string{"deterministic_test"},
}

func (w *wild) terms(groupID string) map[string]any {
	return map[string]any{
		"missionId": strings.Replace(groupID, "group", "mission", 1), "groupId": groupID,
		"coordinatorAgentId": pick(w, wildAgents), "objective": w.fresh("urn:objective"),
		"definitionOfDone": []any{wildCriterion}, "budget": w.budget(1000), "deadline": w.in(8000, 100000),
		"coordinatorLeaseSeconds": w.between(300, 30000),
		"permissions":             []any{map[string]any{"resource": "urn:r:*", "operations": []string{"write"}}},
	}
}

func (w *wild) create(groupID string, extra map[string]any) {
	terms := w.terms(groupID)
	terms["approvalPolicy"] = map[string]any{"finalHumanApproval": true, "highRiskExecutionApproval": w.chance(50)}
	maps.Copy(terms, extra)
	w.issue(humanActor("human:olga"), "mission.create", groupID, terms, nil)
	w.staff(groupID)
}

// staff makes some Agents Workers of a new Group, else most Commands would be
// refused at the door.
func (w *wild) staff(groupID string) {
	g := w.group[groupID]
	if g == nil {
		return
	}
	for _, a := range wildAgents {
		if _, member := g.Member(agentActor(a)); !member && w.chance(80) {
			w.issue(g.CoordinatorActor(), "membership.change", groupID, map[string]any{
				"member": agentActor(a), "role": roleWorker, "visibilityStartSequence": 1,
			}, nil)
		}
	}
}

func (w *wild) contract(g *State, version int64) map[string]any {
	gate := "not_required"
	if w.chance(15) {
		gate = "human_required"
	}
	var deps []string
	for _, id := range sortedIDs(keySet(g.WorkItems)) {
		if w.chance(15) {
			deps = append(deps, id)
		}
	}
	if deps == nil {
		deps = []string{}
	}
	return map[string]any{
		"contractVersion": version, "goal": w.fresh("urn:goal"),
		"requiredDeliverables": []any{map[string]any{"deliverableId": "d", "description": "d", "mediaType": "text/plain", "schema": "urn:s"}},
		"acceptanceCriteria":   []any{wildCriterion}, "inputArtifacts": []string{}, "dependencyWorkItemIds": deps,
		"allowedResources":     []any{map[string]any{"resource": "urn:r:1", "operations": []string{"write"}}},
		"requiredCapabilities": []any{map[string]any{"id": "code.write", "version": "1.0.0"}},
		"deadline":             w.in(1500, 8500), "requestedUrgency": "normal", "businessImpact": "b",
		"retryPolicy": map[string]any{"maxAttempts": 1, "backoff": "none", "maxDelay": "PT1S", "retryableFailures": []string{}},
		"budget":      w.budget(200), "sideEffectRisk": "none", "executionApproval": gate,
	}
}

func (w *wild) basis() map[string]any {
	capability := []any{map[string]any{"id": "code.write", "version": "1.0.0"}}
	return map[string]any{
		"requiredCapabilities": capability, "verifiedMatches": capability, "authorizationEligible": true,
		"availabilityEstimate": w.in(0, 0), "expectedCost": 1, "reliabilityEvidence": []string{},
		"policyRulesApplied": []string{"any"},
	}
}

func (w *wild) progress() map[string]any {
	return map[string]any{
		"currentPhase": "p", "completedMilestones": []string{}, "nextCheckpoint": "n", "blockers": []string{},
		"updatedCompletionEstimate": w.in(1, 2), "evidenceIds": []string{},
	}
}

func (w *wild) evidence(g *State, item *WorkItem, kind, result string, by protocol.Actor) map[string]any {
	return map[string]any{
		"evidenceId": w.fresh("evidence"), "missionId": g.Mission.MissionID, "groupId": g.GroupID,
		"workItemId": item.WorkItemID, "type": kind, "subject": map[string]any{"type": "work_item", "id": item.WorkItemID},
		"criterionIds": []string{"done"}, "method": "m", "result": result, "artifactHashes": []string{}, "generatedBy": by,
	}
}

func (w *wild) approval(g *State, kind, decision string, by protocol.Actor, extra map[string]any) map[string]any {
	a := map[string]any{
		"approvalId": w.fresh("approval"), "kind": kind, "decision": decision, "missionId": g.Mission.MissionID,
		"groupId": g.GroupID, "missionRevision": g.Mission.Revision, "artifactHashes": []string{},
		"acceptancePolicyVersion": "1.0.0", "approver": by, "comments": "c", "conditions": []string{},
	}
	maps.Copy(a, extra)
	return a
}

// issue sends one Command and counts what came of it.
func (w *wild) issue(actor protocol.Actor, kind, groupID string, payload map[string]any, edit func(*command)) {
	row, known := KindOf(kind)
	if known {
		for _, d := range row.Documents {
			list, many := payload[d.Member].([]any)
			if one, ok := payload[d.Member].(map[string]any); ok && !many {
				list = []any{one}
			}
			for _, item := range list {
				doc := item.(map[string]any)
				doc[protocol.SignedKinds[d.Kind].ProtectedTime] = w.now.Format(time.RFC3339)
				doc["signature"] = json.RawMessage(testSignature)
			}
		}
	}
	raw, err := json.Marshal(payload)
	if err != nil {
		w.rt.Fatal(err)
	}
	c := command{}
	c.Actor, c.Kind, c.GroupID, c.Payload = actor, kind, groupID, raw
	if edit != nil {
		edit(&c)
	}
	if w.group[groupID] != nil && w.chance(4) {
		c.MembershipEpoch = 7
	}
	if w.group[groupID] != nil && w.chance(4) {
		n := int64(w.between(0, 5))
		c.ExpectedRevision = &n
	}
	// Dumping everything twice is what costs; a tenth of the steps will do.
	w.unchecked = !w.chance(10)
	d, err := w.send(c)
	if err != nil {
		var refusal *protocol.Error
		if !errors.As(err, &refusal) || refusal.Code == protocol.CodeInternalError {
			w.rt.Fatalf("%s by %s: %v\n%s", kind, actor.ID, err, raw)
		}
		w.refused[kind+" "+string(refusal.Code)+":"+refusal.Reason]++
		return
	}
	w.count(d)
}

func (w *wild) count(d Decision) {
	for i := range d.Drafts {
		w.events[d.Drafts[i].Event.Kind]++
	}
	for id, g := range w.group {
		for _, a := range g.Ledger.Accounts() {
			for i, v := range a.Remaining() {
				if v < 0 {
					w.rt.Fatalf("%s: account %s %s is short of dimension %d by %d", id, a.Type, a.ID, i, -v)
				}
			}
		}
		for _, item := range g.WorkItems {
			pending := map[string]bool{}
			for _, o := range item.Offers {
				if o.Status != OfferPending {
					continue
				}
				if pending[o.AgentID] {
					w.rt.Fatalf("%s: %s has two pending offers on %s", id, o.AgentID, item.WorkItemID)
				}
				pending[o.AgentID] = true
			}
			if leases.LiveAt(item.Execution, w.now) && !leases.LiveAt(item.Ownership, w.now) {
				w.rt.Fatalf("%s: WorkItem %s is executed without being owned", id, item.WorkItemID)
			}
			if item.ChildIsLive() != (item.State == protocol.WorkBlocked && item.Custody && !item.OwnerFenced) {
				w.rt.Fatalf("%s: WorkItem %s in state %s and its child disagree", id, item.WorkItemID, item.State)
			}
		}
	}
}

// step does one random thing.
func (w *wild) step() {
	switch n := w.between(1, 100); {
	case n <= 6:
		w.now = w.now.Add(time.Duration(w.between(1, 400)) * time.Second)
		return
	case n <= 9:
		w.sweepAll()
		return
	case n <= 11:
		w.issue(service("identity"), protocol.CommandSessionOpen, "",
			map[string]any{"agentId": pick(w, wildAgents)}, func(c *command) { c.internal = true })
		return
	}
	g := w.group[pick(w, w.groups())]
	if w.chance(2) {
		w.finish(g)
		return
	}
	coordinator := g.CoordinatorActor()
	if w.chance(10) {
		coordinator = agentActor(pick(w, wildAgents))
	}
	if len(g.WorkItems) > 0 && w.chance(70) {
		w.work(g, coordinator)
		return
	}
	w.lead(g, coordinator)
}

func (w *wild) sweepAll() {
	for _, id := range w.groups() {
		d := Sweep(w.world(), w.group[id])
		w.accept(d)
		w.count(d)
		if again := Sweep(w.world(), w.group[id]); len(again.Drafts) > 0 {
			w.rt.Fatalf("sweeping twice writes %s again", again.Drafts[0].Event.Kind)
		}
	}
}

// lead sends a Command that is not about one WorkItem.
func (w *wild) lead(g *State, coordinator protocol.Actor) {
	id, owner := g.GroupID, g.Mission.MissionOwner
	agent := pick(w, wildAgents)
	hashes := w.verifiedHashes(g)
	final := approvalMissionFinal
	if g.IsChild() {
		final = approvalChildMission
	}
	verdict := map[string]any{"artifactHashes": hashes}
	if g.Mission.Submission != nil {
		verdict["missionRevision"] = g.Mission.Submission.MissionRevision
		verdict["artifactHashes"] = g.Mission.Submission.ArtifactHashes
	}
	what := w.between(0, 14)
	if g.Mission.Submission != nil && w.chance(60) {
		what = w.between(9, 10)
	}
	switch what {
	case 0, 1, 2:
		role := pick(w, []string{roleWorker, roleWorker, roleWorkDelegate, roleReviewer, roleObserver})
		payload := map[string]any{"member": agentActor(agent), "role": role}
		if w.chance(30) {
			payload["state"], payload["provisionalExpiresAt"] = "provisional", w.in(0, 600)
		}
		w.issue(coordinator, "membership.change", id, payload, nil)
	case 3:
		member := agentActor(agent)
		by := coordinator
		if w.chance(30) {
			by = member
		}
		w.issue(by, "membership.end", id, map[string]any{"member": member}, nil)
	case 4, 5, 6:
		w.issue(coordinator, "work.authorize", id, map[string]any{"contract": w.contract(g, 1)},
			func(c *command) { c.WorkItemID = w.fresh("work") })
	case 7:
		w.issue(agentActor(agent), "work.propose", id,
			map[string]any{"proposalId": w.fresh("proposal"), "contract": w.contract(g, 1)}, nil)
	case 8:
		var failures []any
		for _, item := range sortedValues(g.WorkItems) {
			if item.State == protocol.WorkFailed {
				failures = append(failures, map[string]any{"workItemId": item.WorkItemID, "reason": "r"})
			}
		}
		if len(hashes) == 0 {
			return
		}
		payload := map[string]any{"artifactHashes": hashes}
		if failures != nil {
			payload["acceptedFailures"] = failures
		}
		w.issue(coordinator, "mission.submit_for_approval", id, payload, nil)
	case 9:
		if g.Mission.Submission == nil {
			return
		}
		w.issue(owner, "mission.approve", id, map[string]any{"approval": w.approval(g, final, decisionApproved, owner, verdict)}, nil)
	case 10:
		w.issue(owner, "mission.request_changes", id,
			map[string]any{"approval": w.approval(g, final, decisionChangesRequested, owner, verdict)}, nil)
	case 11:
		w.issue(coordinator, "mission.renew_coordinator", id,
			map[string]any{"leaseSeconds": w.between(60, 4000)}, nil)
	case 12:
		if w.chance(50) {
			return
		}
		w.issue(owner, "mission.assign_coordinator", id, map[string]any{"coordinatorAgentId": agent}, nil)
	case 13:
		c := pick(w, sortedValues(g.Conversations))
		w.issue(agentActor(agent), "message.post", id, map[string]any{
			"messageId": w.fresh("message"), "content": []any{map[string]any{"type": "text", "text": "t"}},
		}, func(cmd *command) { cmd.ConversationID = c.ConversationID })
	case 14:
		switch {
		case w.chance(6):
			w.issue(owner, "mission.cancel", id, map[string]any{"reason": "r"}, nil)
		case w.chance(6):
			w.issue(coordinator, "mission.terminate", id, map[string]any{"reason": "r"}, nil)
		case w.chance(50):
			w.create(fmt.Sprintf("group:%d", len(w.group)), nil)
		default:
			limits := g.Mission.Budget
			w.issue(owner, "ext.missionweave.budget.increase", id, map[string]any{
				"budget": map[string]any{
					"currency": "EUR", "financialLimit": int64(*limits.FinancialLimit)/1000000 + 5,
					"modelTokenLimit": *limits.ModelTokenLimit,
				}, "reason": "r",
			}, nil)
		}
	}
}

func (w *wild) verifiedHashes(g *State) []string {
	set := map[string]bool{}
	for hash := range g.artifactsByHash {
		if g.verifiedArtifact(hash) {
			set[hash] = true
		}
	}
	maps.Copy(set, g.childArtifacts())
	return sortedIDs(set)
}

// finish brings a Mission with verified work to its end, which random steps
// rarely do.
func (w *wild) finish(g *State) {
	hashes := w.verifiedHashes(g)
	if len(hashes) == 0 || g.Mission.State != protocol.MissionActive {
		return
	}
	coordinator, owner := g.CoordinatorActor(), g.Mission.MissionOwner
	var failures []any
	for _, item := range sortedValues(g.WorkItems) {
		if item.Unfinished() {
			w.issue(coordinator, "work.cancel", g.GroupID, map[string]any{"reason": "r"},
				func(c *command) { c.WorkItemID = item.WorkItemID })
		}
		if item.State == protocol.WorkFailed {
			failures = append(failures, map[string]any{"workItemId": item.WorkItemID, "reason": "r"})
		}
	}
	payload := map[string]any{"artifactHashes": hashes}
	if failures != nil {
		payload["acceptedFailures"] = failures
	}
	w.issue(coordinator, "mission.submit_for_approval", g.GroupID, payload, nil)
	if g.Mission.Submission == nil {
		return
	}
	final := approvalMissionFinal
	if g.IsChild() {
		final = approvalChildMission
	}
	w.issue(owner, "mission.approve", g.GroupID, map[string]any{
		"approval": w.approval(g, final, decisionApproved, owner, map[string]any{
			"missionRevision": g.Mission.Submission.MissionRevision, "artifactHashes": hashes,
		}),
	}, nil)
}

// work sends a Command about one WorkItem, mostly by whom its state calls for.
func (w *wild) work(g *State, coordinator protocol.Actor) {
	item := pick(w, sortedValues(g.WorkItems))
	id := g.GroupID
	on := func(c *command) { c.WorkItemID = item.WorkItemID }
	owner := agentActor(pick(w, wildAgents))
	if item.Owner != nil && w.chance(85) {
		owner = agentActor(item.Owner.AgentID)
	}
	lease := "lease:none"
	if item.Execution != nil {
		lease = item.Execution.LeaseID
	}
	owned := func(extra map[string]any) map[string]any {
		p := map[string]any{"ownershipEpoch": max(item.OwnershipEpoch, 1), "executionLeaseId": lease}
		if w.chance(5) {
			p["ownershipEpoch"] = item.OwnershipEpoch + 1
		}
		maps.Copy(p, extra)
		return p
	}
	started := func() map[string]any {
		return map[string]any{"ownershipEpoch": max(item.OwnershipEpoch, 1)}
	}
	hash := fmt.Sprintf("sha256:%064x", w.ids)
	var offer *protocol.Offer
	for i := range item.Offers {
		if item.Offers[i].Status == OfferPending || offer == nil {
			offer = &item.Offers[i]
		}
	}
	can := map[string][]int{
		protocol.WorkOpen: {0, 0, 0, 13, 14}, protocol.WorkOffered: {0, 1, 1, 1, 1, 12},
		protocol.WorkQueued: {2, 2, 2, 2, 11, 13}, protocol.WorkActive: {3, 4, 5, 6, 7, 7, 7, 9, 10},
		protocol.WorkBlocked: {8, 8, 9, 13}, protocol.WorkSubmitted: {15, 15, 15, 9},
		protocol.WorkFailed: {0, 0}, protocol.WorkVerified: {0}, protocol.WorkCancelled: {0},
	}[item.State]
	choice := pick(w, can)
	if w.chance(15) {
		choice = w.between(0, 16)
	}
	switch choice {
	case 0:
		p := map[string]any{
			"candidateAgentIds": []string{pick(w, wildAgents)}, "selectionBasis": w.basis(),
			"offerExpiresInSeconds": w.between(1, 900),
		}
		if w.chance(20) {
			p["mode"] = "extend"
		} else if w.chance(15) {
			p["contract"] = w.contract(g, item.Contract.ContractVersion+1)
		}
		w.issue(coordinator, "work.offer", id, p, on)
	case 1:
		if offer == nil {
			return
		}
		w.issue(agentActor(offer.AgentID), "work.accept_offer", id, map[string]any{
			"offerId": offer.OfferID, "ownershipLeaseSeconds": w.between(1, 2000),
		}, on)
	case 2:
		p := started()
		p["executionLeaseSeconds"] = w.between(1, 900)
		w.issue(owner, "work.start", id, p, on)
	case 3:
		w.issue(owner, "ext.missionweaveprotocol.core.work_execution_lease_renew", id,
			owned(map[string]any{"leaseSeconds": w.between(1, 900)}), on)
	case 4:
		w.issue(owner, "work.checkpoint", id, owned(map[string]any{"progress": w.progress()}), on)
	case 5:
		w.issue(owner, "work.block", id, owned(map[string]any{
			"progress": w.progress(), "reason": "r", "requiredResolution": "q",
		}), on)
	case 6:
		w.issue(owner, "ext.missionweaveprotocol.core.resource_usage_record", id, owned(map[string]any{
			"usageDelta": map[string]any{"financial": w.between(1, 60), "currency": "EUR"},
		}), on)
	case 7:
		w.ids++
		w.issue(owner, "artifact.publish", id, owned(map[string]any{"artifact": map[string]any{
			"artifactId": w.fresh("artifact"), "contentHash": hash, "uri": "urn:u", "sizeBytes": 1,
			"mediaType": "text/plain", "schemaUri": "urn:s", "missionId": g.Mission.MissionID, "groupId": id,
			"workItemId": item.WorkItemID, "sourceArtifactHashes": []string{}, "toolVersions": []any{},
			"modelVersions": []any{}, "classification": "internal",
			"producer": map[string]any{
				"agentId": owner.ID, "agentCardVersion": 1,
				"capabilities": []any{map[string]any{"id": "code.write", "version": "1.0.0"}},
			},
		}}), on)
		w.issue(owner, "work.submit", id, owned(map[string]any{
			"artifactHashes": []string{hash},
			"evidence":       []any{w.evidence(g, item, "deterministic_test", resultPassed, owner)},
		}), on)
	case 8:
		w.issue(coordinator, "work.unblock", id, map[string]any{}, on)
	case 9:
		if w.chance(50) {
			w.issue(coordinator, "work.fail", id, map[string]any{
				"reason": "r", "evidence": []any{w.evidence(g, item, evidenceFailure, resultFailed, coordinator)},
			}, on)
		}
	case 10:
		if w.chance(30) {
			w.issue(coordinator, "work.cancel", id, map[string]any{"reason": "r"}, on)
		}
	case 11:
		human := g.RootOwner()
		w.issue(human, "approval.grant_execution", id, map[string]any{
			"approval":       w.approval(g, "work_execution", decisionApproved, human, map[string]any{"workItemId": item.WorkItemID}),
			"ownershipEpoch": max(item.OwnershipEpoch, 1), "operations": []string{"write"}, "resources": []string{"urn:r:1"},
			"expiresAt": w.in(1, 900),
		}, on)
	case 12:
		if offer == nil {
			return
		}
		w.issue(agentActor(offer.AgentID), "ext.missionweave.work.offer_decline", id,
			map[string]any{"offerId": offer.OfferID, "declineReason": "capacity"}, on)
	case 13:
		child := fmt.Sprintf("group:%d", len(w.group))
		terms := w.terms(child)
		terms["budget"], terms["deadline"] = w.budget(50), w.in(100, 8000)
		terms["permissions"] = []any{}
		terms["failurePolicy"] = pick(w, []string{failBlocks, failItem, failMission})
		w.issue(coordinator, "mission.create_child", id, terms, on)
		w.staff(child)
	case 14:
		w.issue(coordinator, "ext.missionweaveprotocol.core.work_dependency_add", id,
			map[string]any{"dependencyWorkItemIds": []string{pick(w, sortedIDs(keySet(g.WorkItems)))}}, on)
	case 15:
		by := agentActor(pick(w, wildAgents))
		w.issue(coordinator, "work.accept_result", id, map[string]any{
			"evidence": []any{w.evidence(g, item, "deterministic_test", resultPassed, by)},
		}, on)
	case 16:
		w.issue(coordinator, "ext.missionweave.budget.increase", id,
			map[string]any{"budget": w.budget(300), "reason": "r"}, on)
	}
}
