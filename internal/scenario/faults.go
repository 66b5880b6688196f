package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/missionweave/server/client"
)

// part is a scene of the failure suite.
type part struct {
	name string
	play func(context.Context, *scene)
}

// faults plays the failure suite. The seed decides the order in which things go
// wrong; what needs a server of its own is left out on somebody else's.
func (st *stage) faults(ctx context.Context) {
	parts := []part{
		{"Duplicate delivery", duplicateDelivery},
		{"Duplicate and colliding Commands", duplicateCommands},
		{"Worker restarted", restartWorker},
		{"Coordinator lost", loseCoordinator},
		{"Worker disconnected", disconnect},
		{"Lease expired", expireLease},
		{"Stale epochs", staleEpochs},
	}
	if st.opt.Machinery != nil {
		parts = append(parts,
			part{"Authority killed", killAuthority},
			part{"Database restarted", restartDatabase},
			part{"NATS lost", loseNATS},
		)
	}
	st.random.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	for _, p := range parts {
		st.run(ctx, "Fault: "+p.name, p.play)
	}
}

// duplicateDelivery has the server deliver everything once more, and lets it
// count once.
func duplicateDelivery(ctx context.Context, s *scene) {
	m := s.mission("search")
	m.lead.mu.Lock()
	seen := slices.Clone(m.lead.log)
	m.lead.mu.Unlock()
	again, err := s.owner.sit(ctx, m, nil)
	s.must("follow once more", err)
	defer again.leave()
	last := seen[len(seen)-1].Event.Sequence
	again.awaitThat(ctx, s, "everything comes again", func(b *client.Board) bool { return b.Head >= last })
	again.mu.Lock()
	equal := len(again.log) >= len(seen)
	for i := range seen {
		equal = equal && bytes.Equal(seen[i].Bytes, again.log[i].Bytes)
	}
	again.mu.Unlock()
	s.check("what is delivered again is the same, byte for byte", equal, "%d Events compared, over WebSocket and over SSE", len(seen))
	twice := client.NewBoard(m.lead.c.Principal(), m.group)
	for _, d := range seen {
		s.must("fold", twice.Learn(d.Event))
		s.must("fold again", twice.Learn(d.Event))
	}
	s.check("an Event that comes twice counts once", sameBoard(twice, seen, m), "%d Events folded twice each give the state of folding them once", len(seen))
}

func sameBoard(twice *client.Board, log []client.Delivery, m *mission) bool {
	once := client.NewBoard(twice.Me, m.group)
	for _, d := range log {
		if once.Learn(d.Event) != nil {
			return false
		}
	}
	a, errA := json.Marshal(once)
	b, errB := json.Marshal(twice)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// duplicateCommands sends a Command again, and another one under its name.
func duplicateCommands(ctx context.Context, s *scene) {
	m := s.mission("search")
	body := func(text string) map[string]any {
		return map[string]any{"messageId": client.NewID(), "content": []client.ContentPart{{Type: "text", Text: text}}}
	}
	cmd := client.Command{
		Kind: "message.post", GroupID: m.group, ActionID: client.NewID(), MembershipEpoch: read(m.owner, (*client.Board).Epoch),
		ConversationID: read(m.owner, func(b *client.Board) string { return b.MainConversation }),
	}
	signed, err := s.owner.c.Sign(cmd, body("Once."))
	s.must("sign", err)
	first, err := s.owner.c.PostSigned(ctx, signed)
	s.must("post", err)
	second, err := s.owner.c.PostSigned(ctx, signed)
	s.must("post again", err)
	s.check("a Command that is sent again gets its first receipt", second.Replayed && second.Events[0] == first.Events[0] && second.AcceptedAt == first.AcceptedAt,
		"the receipt of sequence %d again, marked as a replay", first.Events[0].Sequence)
	other, err := s.owner.c.Sign(cmd, body("Twice."))
	s.must("sign another", err)
	_, err = s.owner.c.PostSigned(ctx, other)
	s.refused("another Command under the same Action ID is refused", err, "ACTION_ID_COLLISION")
	m.owner.awaitThat(ctx, s, "the Message arrives", func(b *client.Board) bool { return b.Head >= first.Events[0].Sequence })
	n := 0
	for _, e := range m.owner.events("message.posted") {
		if e.Cause.ID == cmd.ActionID {
			n++
		}
	}
	s.check("it left one Event", n == 1, "%d × message.posted with that cause", n)
}

// restartWorker ends the shared Worker in the middle of its work.
func restartWorker(ctx context.Context, s *scene) {
	m := s.mission("search")
	w := s.workers["reviewer"]
	var ids []string
	for i := range 4 {
		ids = append(ids, s.give(ctx, m, fmt.Sprintf("again-%d", i), "reviewer",
			s.contract(fmt.Sprintf("Review page %d again.", i), "code.review", task{Steps: []string{"half", "rest"}, Gate: "restart"})))
	}
	for _, id := range ids[:2] {
		m.lead.await(ctx, s, id, "active")
	}
	for _, id := range ids[2:] {
		m.lead.await(ctx, s, id, "queued")
	}
	s.eventually(ctx, "the queue is filled", func() bool { return len(w.present().Queue(m.group)) == 2 })
	before, epoch := w.present().Queue(m.group), w.present().Session().Epoch()
	w.stop()
	for _, id := range ids[:2] {
		m.lead.await(ctx, s, id, "queued")
	}
	s.check("a Worker that stops leaves its work at checkpoints", m.lead.item(ids[0]).State == "queued" && m.lead.item(ids[1]).State == "queued",
		"both WorkItems in slots were checkpointed and wait")
	w.start()
	s.goOn(ctx, m, ids...)
	for _, id := range ids {
		s.verify(ctx, m, id)
	}
	s.check("the queue is rebuilt from the log", len(before) == 2 && s.count(m, ids[2], "work.started") == 1 && s.count(m, ids[3], "work.started") == 1,
		"%s were queued before; all of it was carried out after", s.named(before))
	s.check("a restarted Worker has a new Session Epoch", w.present().Session().Epoch() > epoch, "%d after %d", w.present().Session().Epoch(), epoch)
	s.check("work goes on from its checkpoint", strings.Contains(s.handedIn(ctx, m, ids[0]), "saved: "+ids[0]+" after half"), "the second run of %s had the state of the first", s.nameOf(ids[0]))
}

// loseCoordinator replaces a Coordinator that is gone.
func loseCoordinator(ctx context.Context, s *scene) {
	m := s.mission("search")
	old := m.lead
	epoch := read(old, func(b *client.Board) int64 { return b.CoordinatorEpoch })
	s.line.note("%s is gone", old.name)
	old.leave()
	old.session.Close()
	successor := "lead-stand-in"
	if old.name == successor {
		successor = "lead-b"
	}
	m.owner.do(ctx, s, client.Command{Kind: "mission.assign_coordinator"}, map[string]any{
		"coordinatorAgentId": s.agentID(successor), "leaseSeconds": 3600, "reason": "The Coordinator does not answer.",
	})
	// Both Memberships change with the appointment.
	appointed := read(m.owner, func(b *client.Board) int64 { return b.Head })
	var err error
	m.lead, err = s.agents[successor].sit(ctx, m, nil)
	s.must(successor+" joins", err)
	m.lead.awaitThat(ctx, s, "the successor leads", func(b *client.Board) bool { return b.CoordinatorEpoch == epoch+1 && b.Head >= appointed })
	var assigned struct {
		ContextPackage *client.ContextPackage `json:"contextPackage"`
	}
	events := m.owner.events("mission.coordinator.assigned")
	s.must("read the appointment", client.Decode(events[len(events)-1].Payload, &assigned))
	s.check("a replacement gets a higher Coordinator Epoch", read(m.lead, func(b *client.Board) int64 { return b.CoordinatorEpoch }) == epoch+1, "epoch %d after %d", epoch+1, epoch)
	s.check("it is handed a signed Context Package", assigned.ContextPackage != nil && assigned.ContextPackage.Signature.Value != "",
		"range %d..%d, generated by the Organization", assigned.ContextPackage.SourceEventRange.FromSequence, assigned.ContextPackage.SourceEventRange.ToSequence)
	s.check("it sees the whole history", read(m.lead, func(b *client.Board) int { return len(b.Items) }) == read(m.owner, func(b *client.Board) int { return len(b.Items) }),
		"%d WorkItems reconciled before the first assignment", read(m.lead, func(b *client.Board) int { return len(b.Items) }))

	// The old one comes back and does not know.
	if old.session, err = old.c.OpenSession(ctx); err != nil {
		s.must("a new session of the old Coordinator", err)
	}
	former, err := old.actor.sit(ctx, m, nil)
	s.must("the old Coordinator looks", err)
	defer former.leave()
	former.awaitThat(ctx, s, "it catches up", func(b *client.Board) bool { return b.CoordinatorEpoch == epoch+1 && b.Head >= appointed })
	_, err = former.try(ctx, client.Command{Kind: "work.authorize", WorkItemID: client.NewID(), CoordinatorEpoch: epoch}, map[string]any{
		"title": "late", "contract": s.contract("Decide something.", "code.write", task{}),
	})
	s.refused("the old Coordinator's epoch is fenced", err, "AUTH_STALE_COORDINATOR")
	id := s.give(ctx, m, "after-the-change", "analyst", s.contract("Go on under the new Coordinator.", "requirements.write", task{}))
	s.verify(ctx, m, id)
	s.check("the Mission goes on under the replacement", m.lead.item(id).State == "verified", "a WorkItem from authorization to verification")
}

// temp is an Agent that a scene drives itself, step by step.
func (s *scene) temp(ctx context.Context, m *mission, name string) *seat {
	s.must("hire "+name, s.hire(ctx, name, []string{"field.work@1.0.0"}, 0))
	s.admit(ctx, m, name, "worker")
	seat, err := s.agents[name].sit(ctx, m, nil)
	s.must(name+" joins", err)
	seat.awaitThat(ctx, s, "it is a member", func(b *client.Board) bool { return b.Epoch() > 0 })
	return seat
}

// takeOn has a temp accept and start a WorkItem.
func (s *scene) takeOn(ctx context.Context, m *mission, who *seat, title string, leaseSeconds int) string {
	id := s.give(ctx, m, title, who.name, s.contract("Work in the field: "+title+".", "field.work", task{}))
	who.await(ctx, s, id, "offered")
	offer := who.item(id).Offers[0]
	who.do(ctx, s, client.Command{Kind: "work.accept_offer", WorkItemID: id}, map[string]any{"offerId": offer.OfferID})
	s.begin(ctx, who, id, leaseSeconds)
	return id
}

func (s *scene) begin(ctx context.Context, who *seat, id string, leaseSeconds int) {
	who.do(ctx, s, client.Command{Kind: "work.start", WorkItemID: id}, map[string]any{
		"ownershipEpoch": who.item(id).OwnershipEpoch, "executionLeaseSeconds": leaseSeconds,
	})
}

func fieldProgress(done ...string) client.Progress {
	return client.Progress{
		CurrentPhase: "field", CompletedMilestones: done, NextCheckpoint: "home", Blockers: []string{},
		UpdatedCompletionEstimate: stamp(time.Minute), EvidenceIDs: []string{},
	}
}

// disconnect takes the line away from a Worker that goes on reversibly, and
// reconciles what it did.
func disconnect(ctx context.Context, s *scene) {
	m := s.mission("search")
	who := s.temp(ctx, m, "field-worker")
	defer func() { who.leave() }()
	id := s.takeOn(ctx, m, who, "offline-report", 300)
	old, epoch := *who.item(id).ExecutionLease, who.session.Epoch()
	s.line.note("field-worker loses the line and goes on")
	disconnected := time.Now()
	who.session.Close()
	who.leave()
	buffered := time.Now()

	var err error
	who.actor.session, err = who.c.OpenSession(ctx)
	s.must("a new session", err)
	again, err := who.actor.sit(ctx, m, nil)
	s.must("come back", err)
	who = again
	who.await(ctx, s, id, "queued")
	s.check("a new session revokes the old one's lease and queues its work", who.item(id).ExecutionLease == nil && who.session.Epoch() == epoch+1,
		"work_execution_lease_revoked; Session Epoch %d after %d", who.session.Epoch(), epoch)
	s.begin(ctx, who, id, 300)
	before := s.remaining(ctx, m)
	binding := func(tokens int64, grace time.Duration) client.Raw {
		b, err := json.Marshal(map[string]any{"urn:missionweaveprotocol:extension:bounded-offline-execution": map[string]any{
			"version": "0.1.0", "critical": true, "data": map[string]any{
				"agentId": who.c.Principal().ID, "groupId": m.group, "workItemId": id, "sessionEpoch": old.SessionEpoch,
				"ownershipEpoch": old.OwnershipEpoch, "executionLeaseId": old.LeaseID, "disconnectedAt": client.Timestamp(disconnected),
				"bufferedAt": client.Timestamp(buffered), "graceDeadline": client.Timestamp(disconnected.Add(grace)),
				"executionLeaseExpiresAt": old.ExpiresAt, "resourceUsageDelta": map[string]any{"modelTokens": tokens},
			},
		}})
		s.must("encode the binding", err)
		return b
	}
	report := func(extensions client.Raw) (*client.Event, error) {
		return who.try(ctx, client.Command{Kind: "work.checkpoint", WorkItemID: id, Extensions: extensions}, map[string]any{
			"ownershipEpoch": old.OwnershipEpoch, "executionLeaseId": who.item(id).ExecutionLease.LeaseID, "progress": fieldProgress("measured"),
		})
	}
	_, err = report(binding(5000, time.Minute))
	s.refused("offline usage beyond the budget refuses charge and progress alike", err, "BUDGET_EXCEEDED")
	s.check("nothing was charged by the refusal", before == s.remaining(ctx, m), "search still has %d model tokens", before)
	_, err = report(binding(40, time.Hour))
	s.refused("progress outside the grace is not taken", err, "WORK_LEASE_EXPIRED")
	e, err := report(binding(40, time.Minute))
	s.must("reconcile", err)
	for _, side := range []*seat{m.lead, who} {
		side.awaitThat(ctx, s, "the checkpoint arrives", func(b *client.Board) bool { return len(b.Items[id].Checkpoints) == 1 })
	}
	usage := m.lead.events("ext.missionweaveprotocol.core.resource_usage_recorded")
	charged := usage[len(usage)-1]
	var f struct {
		OfflineReconciliation *struct {
			ExecutionSessionEpoch      int64 `json:"executionSessionEpoch"`
			ReconciliationSessionEpoch int64 `json:"reconciliationSessionEpoch"`
		} `json:"offlineReconciliation"`
	}
	s.must("read the charge", client.Decode(charged.Payload, &f))
	s.check("offline progress is reconciled with its charge, in one step", e.Kind == charged.Kind && f.OfflineReconciliation != nil,
		"resource_usage_recorded at %d, then work.checkpointed; sessions %d and %d", charged.Sequence, f.OfflineReconciliation.ExecutionSessionEpoch, f.OfflineReconciliation.ReconciliationSessionEpoch)
	s.finishField(ctx, m, who, id)
}

// finishField starts a WorkItem if need be, hands something in and has it
// verified.
func (s *scene) finishField(ctx context.Context, m *mission, who *seat, id string) {
	if who.item(id).ExecutionLease == nil {
		s.begin(ctx, who, id, 300)
	}
	s.must("hand in", s.handIn(ctx, m, who, id, who.item(id).OwnershipEpoch, who.item(id).ExecutionLease.LeaseID))
	s.verify(ctx, m, id)
}

func (s *scene) handIn(ctx context.Context, m *mission, who *seat, id string, epoch int64, leaseID string) error {
	content := []byte("from the field: " + id + "\n")
	hash, err := who.c.PutArtifact(ctx, m.group, content)
	if err != nil {
		return err //nolint:wrapcheck // judged by its code
	}
	item := who.item(id)
	manifest, err := who.c.Identity().SignArtifact(client.Artifact{
		ArtifactID: client.NewID(), ContentHash: hash, URI: "urn:missionweave:blob:" + hash, SizeBytes: int64(len(content)),
		MediaType: "text/plain", SchemaURI: "urn:missionweave:demo:text",
		Producer:  client.Producer{AgentID: who.c.Principal().ID, AgentCardVersion: 1, Capabilities: item.Contract.RequiredCapabilities},
		MissionID: m.id, GroupID: m.group, WorkItemID: id, SourceArtifactHashes: []string{}, ToolVersions: []client.ToolVersion{},
		ModelVersions: []client.ModelVersion{}, Classification: "internal", CreatedAt: stamp(0),
	})
	if err != nil {
		return err //nolint:wrapcheck // says what it is about
	}
	lease := map[string]any{"ownershipEpoch": epoch, "executionLeaseId": leaseID}
	if _, err := who.try(ctx, client.Command{Kind: "artifact.publish", WorkItemID: id}, with(lease, "artifact", manifest)); err != nil {
		return err
	}
	evidence, err := who.c.Identity().SignEvidence(client.Evidence{
		EvidenceID: client.NewID(), MissionID: m.id, GroupID: m.group, WorkItemID: id, Type: "deterministic_test",
		Subject: client.EvidenceSubject{Type: "work_item", ID: id}, CriterionIDs: []string{item.Contract.AcceptanceCriteria[0].CriterionID},
		Method: "Measured.", Result: "passed", ArtifactHashes: []string{hash}, GeneratedBy: who.c.Principal(), CreatedAt: stamp(0),
	})
	if err != nil {
		return err //nolint:wrapcheck // says what it is about
	}
	_, err = who.try(ctx, client.Command{Kind: "work.submit", WorkItemID: id},
		with(with(lease, "artifactHashes", []string{hash}), "evidence", []client.Raw{evidence}))
	return err
}

func with(members map[string]any, name string, value any) map[string]any {
	out := map[string]any{name: value}
	for k, v := range members {
		out[k] = v
	}
	return out
}

// expireLease lets a Worker fall silent; the work goes to another one.
func expireLease(ctx context.Context, s *scene) {
	m := s.mission("search")
	who := s.temp(ctx, m, "silent-worker")
	defer who.leave()
	rescue := s.temp(ctx, m, "rescue-worker")
	defer rescue.leave()
	id := s.takeOn(ctx, m, who, "abandoned", 3)
	lease := *who.item(id).ExecutionLease
	offer := s.offer(m.lead.item(id).Contract, "rescue-worker")
	_, err := m.lead.try(ctx, client.Command{Kind: "work.offer", WorkItemID: id}, offer)
	s.refused("work with a live owner is not offered away", err, "INVALID_STATE_TRANSITION")
	s.line.note("silent-worker falls silent")
	s.pause(ctx, 3100*time.Millisecond)
	_, err = who.try(ctx, client.Command{Kind: "ext.missionweaveprotocol.core.work_execution_lease_renew", WorkItemID: id}, map[string]any{
		"ownershipEpoch": lease.OwnershipEpoch, "executionLeaseId": lease.LeaseID,
	})
	s.refused("an expired lease is not renewed", err, "WORK_LEASE_EXPIRED")
	m.lead.do(ctx, s, client.Command{Kind: "work.offer", WorkItemID: id}, offer)
	rescue.await(ctx, s, id, "offered")
	for _, o := range rescue.item(id).Offers {
		if o.AgentID == rescue.c.Principal().ID && o.Status == "pending" {
			rescue.do(ctx, s, client.Command{Kind: "work.accept_offer", WorkItemID: id}, map[string]any{"offerId": o.OfferID})
		}
	}
	epoch := rescue.item(id).OwnershipEpoch
	s.check("expired work is reassigned under a higher Ownership Epoch", epoch == lease.OwnershipEpoch+1, "Ownership Epoch %d after %d, %s after %s", epoch, lease.OwnershipEpoch, rescue.name, who.name)
	s.refused("the late result of the old owner is refused", s.handIn(ctx, m, who, id, lease.OwnershipEpoch, lease.LeaseID), "WORK_STALE_OWNERSHIP")
	s.finishField(ctx, m, rescue, id)
	s.check("the work is finished by the new owner", m.lead.item(id).State == "verified", "work.result.accepted for %s", rescue.name)
}

// pause lets time pass that is the point of a scene: a lease that lapses.
func (s *scene) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		s.must("wait", context.Cause(ctx))
	case <-t.C:
	}
}

// staleEpochs sends what was right a moment ago.
func staleEpochs(ctx context.Context, s *scene) {
	m := s.mission("search")
	who := s.temp(ctx, m, "double")
	defer func() { who.leave() }()
	say := map[string]any{"messageId": client.NewID(), "content": []client.ContentPart{{Type: "text", Text: "hello"}}}
	conversation := read(who, func(b *client.Board) string { return b.MainConversation })
	first := who.session.Epoch()
	other, err := who.c.OpenSession(ctx)
	s.must("a second runtime", err)
	s.check("a second runtime of an Agent takes the session over", other.Epoch() == first+1, "Session Epoch %d after %d", other.Epoch(), first)
	select {
	case <-who.session.Done():
	case <-ctx.Done():
		s.must("the first runtime is told", context.Cause(ctx))
	}
	s.check("the first runtime is told that it was replaced", who.session.Err() != nil, "%v", who.session.Err())
	_, err = who.c.Post(ctx, client.Command{
		Kind: "message.post", GroupID: m.group, ConversationID: conversation, SessionEpoch: first, MembershipEpoch: read(who, (*client.Board).Epoch),
	}, say)
	s.refused("a Command of a replaced session is refused", err, "AUTH_STALE_SESSION")
	who.leave()
	who.actor.session = other
	if who, err = who.actor.sit(ctx, m, nil); err != nil {
		s.must("join again", err)
	}
	who.awaitThat(ctx, s, "it is a member", func(b *client.Board) bool { return b.Epoch() > 0 })
	epoch := read(who, (*client.Board).Epoch)
	m.lead.do(ctx, s, client.Command{Kind: "membership.change"}, map[string]any{
		"member": who.c.Principal(), "role": "worker", "scopes": []string{"message.post", "work.accept_offer", "work.execute"},
	})
	who.awaitThat(ctx, s, "its Membership changed", func(b *client.Board) bool { return b.Epoch() == epoch+1 })
	_, err = who.try(ctx, client.Command{Kind: "message.post", ConversationID: conversation, MembershipEpoch: epoch}, say)
	s.refused("a Command under an old Membership is refused", err, "MEMBERSHIP_STALE")
	id := s.takeOn(ctx, m, who, "stale", 300)
	_, err = who.try(ctx, client.Command{Kind: "work.checkpoint", WorkItemID: id}, map[string]any{
		"ownershipEpoch": who.item(id).OwnershipEpoch + 1, "executionLeaseId": who.item(id).ExecutionLease.LeaseID, "progress": fieldProgress(),
	})
	s.refused("a Command under another Ownership Epoch is refused", err, "WORK_STALE_OWNERSHIP")
	_, err = who.try(ctx, client.Command{Kind: "work.checkpoint", WorkItemID: id, ExpectedRevision: new(int64(1))}, map[string]any{
		"ownershipEpoch": who.item(id).OwnershipEpoch, "executionLeaseId": who.item(id).ExecutionLease.LeaseID, "progress": fieldProgress(),
	})
	s.refused("a Command against an old revision is refused", err, "REVISION_CONFLICT")
	s.finishField(ctx, m, who, id)
}
