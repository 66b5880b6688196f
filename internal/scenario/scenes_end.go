package scenario

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/bundle"
)

// children promotes WorkItems to Missions of their own: one is approved, one fails
// and is replaced.
func children(ctx context.Context, s *scene) {
	parent := s.mission(search)
	id := s.authorize(ctx, parent, "security-review", s.contract("Review the security of search.", "security.review", task{}, func(c *client.WorkContract) {
		c.Budget, c.Deadline = budget(20, 20_000, 100, 600, 6000), stamp(12*time.Hour)
	}))
	first := s.child(ctx, parent, id, "security-1")
	doc, err := s.owner.c.Mission(ctx, first.id)
	s.must("read the child Mission", err)
	account := s.account(ctx, first, "mission", first.id)
	s.check("a child Mission has its own Group, Coordinator and budget", doc.GroupID == first.group && first.group != parent.group && doc.Coordinator.AgentID == s.agentID("lead-security") &&
		account.Limit.ModelTokenLimit != nil && *account.Limit.ModelTokenLimit == 5000,
		"Mission …%s in Group …%s under …%s, Coordinator %s, %d model tokens", short(first.id), short(doc.GroupID), short(parent.group), s.nameOf(doc.Coordinator.AgentID), *account.Limit.ModelTokenLimit)
	node := s.graph(ctx, parent).node(id)
	s.check("the parent WorkItem is blocked on its child", node.State == "blocked" && node.ChildMissionID == first.id,
		"security-review …%s is %s, its child is Mission …%s", short(id), node.State, short(node.ChildMissionID))
	tree := s.tree(ctx, parent)
	s.check("the root MissionOwner can inspect the whole tree", same(tree, []string{parent.id, first.id}), "the tree of search has Missions …%s and …%s", short(tree[0]), short(tree[len(tree)-1]))
	first.lead.do(ctx, s, client.Command{Kind: "mission.terminate"}, map[string]any{"reason": "The scanner cannot read the new format."})
	parent.lead.awaitThat(ctx, s, "the failure reaches the parent", func(b *client.Board) bool { return b.Items[id].Reason != "" })
	failed, err := s.owner.c.Mission(ctx, first.id)
	s.must("read the failed child", err)
	g := s.graph(ctx, parent)
	s.check("a failed child blocks its parent WorkItem and not the Mission", failed.State == "failed" && g.node(id).State == "blocked" && g.State == "active",
		"Mission …%s is %s, security-review is %s, search is %s", short(first.id), failed.State, g.node(id).State, g.State)

	second := s.child(ctx, parent, id, "security-2")
	s.admit(ctx, second, "reviewer", "worker")
	work := s.give(ctx, second, "threat-model", "reviewer", s.contract("Write the threat model.", "security.review", task{Content: "no open threat"}, func(c *client.WorkContract) {
		c.Budget = budget(1, 1000, 10, 60, 600)
	}))
	s.verify(ctx, second, work)
	second.lead.do(ctx, s, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": second.lead.item(work).Submission})
	s.approveChild(ctx, parent, second)
	parent.lead.await(ctx, s, id, "verified")
	created := of(s.log(ctx, parent), id, "mission.child.created")
	s.check("a failed child is replaced by another", len(created) == 2 && s.graph(ctx, parent).node(id).ChildMissionID == second.id,
		"mission.child.created at %d and %d on one WorkItem, whose child is Mission …%s now", created[0].Sequence, created[len(created)-1].Sequence, short(second.id))
	approved, err := s.owner.c.Mission(ctx, second.id)
	s.must("read the approved child", err)
	item, made := s.doc(ctx, parent, id), s.doc(ctx, second, work)
	s.check("the child's Approval verifies the parent WorkItem", approved.State == "approved" && item.State == "verified" && item.Submission != nil &&
		slices.Equal(item.Submission.ArtifactHashes, made.Submission.ArtifactHashes),
		"Mission …%s is %s; security-review is %s with the child's %d Artifacts", short(second.id), approved.State, item.State, len(made.Submission.ArtifactHashes))
}

// child promotes a WorkItem; the parent's Coordinator owns the child Mission.
func (s *scene) child(ctx context.Context, parent *mission, id, name string) *mission {
	m := &mission{name: name, id: s.choose.id("Mission " + name), group: s.choose.id("Group " + name), column: parent.column + 2}
	parent.lead.do(ctx, s, client.Command{Kind: "mission.create_child", WorkItemID: id}, map[string]any{
		"missionId": m.id, "groupId": m.group, "coordinatorAgentId": s.agentID("lead-security"), "title": name,
		"objective":        "Review the security of search, " + name + ".",
		"definitionOfDone": []client.AcceptanceCriterion{{CriterionID: "secure", Description: "No open threat.", EvidenceRequired: []string{"reviewer_assessment"}}},
		"budget":           budget(5, 5000, 50, 300, 3000), "deadline": stamp(10 * time.Hour), "coordinatorLeaseSeconds": 3600,
	})
	s.open(ctx, m, "lead-security")
	return m
}

// tree lists the Missions of a tree that its MissionOwner may see.
func (s *scene) tree(ctx context.Context, m *mission) []string {
	var served struct {
		Missions []struct {
			MissionID string `json:"missionId"`
		} `json:"missions"`
	}
	s.must("read the tree", m.owner.c.Get(ctx, client.Path("v1", "missions", m.id, "tree"), nil, &served))
	ids := []string{}
	for _, x := range served.Missions {
		ids = append(ids, x.MissionID)
	}
	return ids
}

// approveChild is the decision of the child's MissionOwner, the parent's
// Coordinator.
func (s *scene) approveChild(ctx context.Context, parent, child *mission) {
	owner, err := parent.lead.sit(ctx, child, nil)
	s.must("the parent's Coordinator sees the child", err)
	defer owner.leave()
	owner.awaitThat(ctx, s, "the child is submitted", func(b *client.Board) bool { return b.Submitted.Revision > 0 })
	submitted := read(owner, func(b *client.Board) client.MissionSubmission { return b.Submitted })
	approval, err := owner.c.Identity().SignApproval(client.Approval{
		ApprovalID: s.choose.id("Approval"), Kind: "child_mission", Decision: "approved", MissionID: child.id, GroupID: child.group,
		MissionRevision: submitted.Revision, ArtifactHashes: submitted.Hashes, AcceptancePolicyVersion: policyVersion,
		Approver: owner.c.Principal(), Comments: "Taken.", Conditions: []string{}, OccurredAt: stamp(0),
	})
	s.must("sign the Approval", err)
	owner.do(ctx, s, client.Command{Kind: "mission.approve"}, map[string]any{"approval": approval})
}

// staged checks the stages of billing against the graph and the log, as the server
// serves them now that all is done.
func (s *scene) staged(ctx context.Context, m *mission) {
	g, log := s.graph(ctx, m), s.log(ctx, m)
	wrong, _ := s.misdrawn(m, g)
	var order []string
	for _, stage := range stages {
		id := s.byTitle(m, stage)
		starts, accepted := of(log, id, "work.started"), of(log, id, "work.result.accepted")
		if g.node(id).State != "verified" || len(starts) == 0 || len(accepted) != 1 {
			wrong += "; " + stage + " is " + g.node(id).State
			continue
		}
		for _, before := range edges[stage] {
			done := of(log, s.byTitle(m, before), "work.result.accepted")
			if len(done) != 1 || starts[0].Sequence <= done[0].Sequence {
				wrong += "; " + stage + " began before " + before + " was done"
			}
		}
		order = append(order, fmt.Sprintf("%s %d–%d", stage, starts[0].Sequence, accepted[0].Sequence))
	}
	s.check("each stage began only when all its predecessors were verified", wrong == "" && len(order) == len(stages),
		"work.started – work.result.accepted: %s%s", strings.Join(order, ", "), wrong)
}

// approve hands billing in, has it sent back once, and approves exactly what was
// handed in.
func approve(ctx context.Context, s *scene) {
	m := s.mission(billing)
	s.staged(ctx, m)
	hashes := s.results(m)
	required := s.graph(ctx, m).Required
	m.lead.do(ctx, s, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": hashes})
	m.owner.awaitThat(ctx, s, "billing is submitted", func(b *client.Board) bool { return b.State == "awaiting_approval" })
	first := read(m.owner, func(b *client.Board) client.MissionSubmission { return b.Submitted })
	s.check("the human Approval waits for every stage", len(required) == 0 && same(first.Hashes, hashes),
		"0 WorkItems are open; mission.submitted_for_approval with %d Artifacts at revision %d", len(first.Hashes), first.Revision)
	s.decide(ctx, m, "changes_requested", first.Revision, nil, s.facts.needless)
	m.lead.awaitThat(ctx, s, "the request for changes arrives", func(b *client.Board) bool { return b.State == "active" })
	reopened, err := s.owner.c.Mission(ctx, m.id)
	s.must("read billing", err)
	fix := s.give(ctx, m, "correction", "analyst", s.contract("Mend it: "+s.facts.needless, "requirements.write", task{Content: "Mended: " + s.mark(m)}))
	s.verify(ctx, m, fix)
	m.lead.do(ctx, s, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": s.results(m)})
	m.owner.awaitThat(ctx, s, "billing is submitted again", func(b *client.Board) bool { return b.Submitted.Revision > first.Revision })
	second := read(m.owner, func(b *client.Board) client.MissionSubmission { return b.Submitted })
	log := s.log(ctx, m)
	asked, corrected := of(log, "", "mission.changes_requested"), of(log, fix, "work.authorized")
	s.check("a request for changes reopens the Mission for corrective work", reopened.State == "active" && len(asked) == 1 && asked[0].Actor == s.owner.c.Principal() &&
		corrected[0].Sequence > asked[0].Sequence && len(second.Hashes) == len(hashes)+1 && slices.Contains(second.Hashes, s.doc(ctx, m, fix).Submission.ArtifactHashes[0]),
		"mission.changes_requested at %d, correction …%s authorized at %d; %d Artifacts at revision %d, %d at revision %d",
		asked[0].Sequence, short(fix), corrected[0].Sequence, len(hashes), first.Revision, len(second.Hashes), second.Revision)
	err = s.tryDecide(ctx, m, "approved", first.Revision, second.Hashes, "Late.")
	s.refused("an Approval of an older revision is none", err, "REVISION_CONFLICT", "")
	err = s.tryDecide(ctx, m, "approved", second.Revision, second.Hashes[:1], "Only this.")
	s.refused("an Approval of other Artifacts is none", err, "INVALID_COMMAND", "artifact_set")
	s.must("approve", s.tryDecide(ctx, m, "approved", second.Revision, second.Hashes, "Checked against the definition of done."))
	m.lead.awaitThat(ctx, s, "billing is approved", func(b *client.Board) bool { return b.State == "approved" })
	s.exactly(ctx, m, second)
	_, err = m.lead.try(ctx, client.Command{Kind: "work.authorize", WorkItemID: s.choose.id("WorkItem late")}, map[string]any{
		"title": "late", "contract": s.contract("Add one more thing.", "code.write", task{}),
	})
	s.refused("an approved Mission is not reopened", err, "INVALID_STATE_TRANSITION", "mission_not_active")
	b := s.mission(search)
	b.lead.do(ctx, s, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": s.results(b)})
	b.owner.awaitThat(ctx, s, "search is submitted", func(x *client.Board) bool { return x.State == "awaiting_approval" })
	handed := read(b.owner, func(x *client.Board) client.MissionSubmission { return x.Submitted })
	s.must("approve search", s.tryDecide(ctx, b, "approved", handed.Revision, handed.Hashes, "Good."))
}

// exactly checks that the Approval in the log is the human's, for the revision and
// the Artifacts that were handed in.
func (s *scene) exactly(ctx context.Context, m *mission, handed client.MissionSubmission) {
	approved := of(s.log(ctx, m), "", "mission.approved")
	var f struct {
		Approval client.Approval `json:"approval"`
	}
	s.must("read mission.approved", client.Decode(approved[0].Payload, &f))
	doc, err := s.owner.c.Mission(ctx, m.id)
	s.must("read billing", err)
	stored, _ := s.artifacts(ctx, m)
	all := !slices.ContainsFunc(f.Approval.ArtifactHashes, func(h string) bool { return !slices.Contains(stored, h) })
	s.check("a human approves the exact revision and Artifacts", doc.State == "approved" && f.Approval.Approver == s.owner.c.Principal() && f.Approval.Approver.Type == client.Human &&
		f.Approval.MissionRevision == handed.Revision && same(f.Approval.ArtifactHashes, handed.Hashes) && all,
		"mission.approved at %d: Approval …%s by %s of revision %d and %d Artifacts, all of which can be read", approved[0].Sequence,
		short(f.Approval.ApprovalID), s.nameOf(f.Approval.Approver.ID), f.Approval.MissionRevision, len(f.Approval.ArtifactHashes))
}

// results are the Artifacts of everything that is verified, each once.
func (s *scene) results(m *mission) []string {
	return read(m.lead, func(b *client.Board) []string {
		var hashes []string
		for _, w := range b.Sorted() {
			if w.State != "verified" {
				continue
			}
			for _, h := range w.Submission {
				if !slices.Contains(hashes, h) {
					hashes = append(hashes, h)
				}
			}
		}
		return hashes
	})
}

func (s *scene) decide(ctx context.Context, m *mission, decision string, revision int64, hashes []string, comments string) {
	s.must(decision, s.tryDecide(ctx, m, decision, revision, hashes, comments))
}

// tryDecide is a decision of the human MissionOwner about a submission.
func (s *scene) tryDecide(ctx context.Context, m *mission, decision string, revision int64, hashes []string, comments string) error {
	if hashes == nil {
		hashes = []string{}
	}
	approval, err := m.owner.c.Identity().SignApproval(client.Approval{
		ApprovalID: s.choose.id("Approval"), Kind: "mission_final", Decision: decision, MissionID: m.id, GroupID: m.group,
		MissionRevision: revision, ArtifactHashes: hashes, AcceptancePolicyVersion: policyVersion,
		Approver: m.owner.c.Principal(), Comments: comments, Conditions: []string{}, OccurredAt: stamp(0),
	})
	s.must("sign the decision", err)
	kind := "mission.approve"
	if decision == "changes_requested" {
		kind = "mission.request_changes"
	}
	_, err = m.owner.try(ctx, client.Command{Kind: kind}, map[string]any{"approval": approval})
	return err
}

// conclude begins what comes after an approved Mission, and archives it.
func conclude(ctx context.Context, s *scene) {
	m := s.mission(billing)
	next := &mission{name: "billing-next", id: s.choose.id("Mission billing-next"), group: s.choose.id("Group billing-next"), column: 2}
	_, err := s.owner.c.Post(ctx, client.Command{Kind: "mission.create_follow_up", GroupID: next.group}, map[string]any{
		"missionId": next.id, "groupId": next.group, "coordinatorAgentId": s.agentID("lead-a"), "title": next.name,
		"objective":        "What billing left open.",
		"definitionOfDone": []client.AcceptanceCriterion{{CriterionID: "done", Description: "It is closed.", EvidenceRequired: []string{"human_review"}}},
		"budget":           budget(10, 1000), "deadline": stamp(24 * time.Hour),
		"approvalPolicy":      client.ApprovalPolicy{FinalHumanApproval: true, HighRiskExecutionApproval: true, PolicyVersion: policyVersion},
		"followUpToMissionId": m.id,
	})
	s.must("mission.create_follow_up", err)
	s.open(ctx, next, "lead-a")
	m.owner.awaitThat(ctx, s, "the follow-up is linked", func(*client.Board) bool {
		return slices.ContainsFunc(m.owner.log, func(d client.Delivery) bool { return d.Event.Kind == "ext.missionweave.authority.follow_up_linked" })
	})
	doc, err := s.owner.c.Mission(ctx, next.id)
	s.must("read the follow-up", err)
	before, err := s.owner.c.Mission(ctx, m.id)
	s.must("read billing", err)
	linked := of(s.log(ctx, m), "", "ext.missionweave.authority.follow_up_linked")
	s.check("a follow-up Mission is linked to the approved one", doc.FollowUpToMissionID == m.id && doc.State == "active" && before.State == "approved" && len(linked) == 1,
		"Mission …%s (%s) follows up …%s, which stays %s; follow_up_linked at %d", short(doc.MissionID), doc.State, short(doc.FollowUpToMissionID), before.State, linked[0].Sequence)
	next.owner.do(ctx, s, client.Command{Kind: "mission.cancel"}, map[string]any{"reason": "Only to show the link."})

	archivist, err := s.connect("archival")
	s.must("connect as the archival service", err)
	defer archivist.Close()
	s.must("archive billing", s.archive(ctx, archivist, m))
	m.owner.awaitThat(ctx, s, "billing is archived", func(b *client.Board) bool { return b.Archived })
	log := s.log(ctx, m)
	created, archived := of(log, "", "group.snapshot.created"), of(log, "", "group.archived")
	var snapshot client.GroupSnapshot
	s.must("read the snapshot", s.owner.c.Get(ctx, client.Path("v1", "groups", m.group, "snapshot"), nil, &snapshot))
	s.check("archival seals the Group with a signed snapshot", len(created) == 1 && len(archived) == 1 && archived[0].Sequence == int64(len(log)) &&
		snapshot.CreatedBy == archivist.Principal() && snapshot.Signature.Value != "",
		"snapshot …%s signed by the archival service; group.snapshot.created at %d, group.archived at %d, the last", short(snapshot.SnapshotID), created[0].Sequence, archived[0].Sequence)
	_, err = m.owner.try(ctx, client.Command{Kind: "message.post", ConversationID: read(m.owner, func(b *client.Board) string { return b.MainConversation })}, map[string]any{
		"messageId": s.choose.id("a late Message"), "content": []client.ContentPart{{Type: "text", Text: "Anybody here?"}},
	})
	s.refused("an archived Group takes no Command", err, "INVALID_STATE_TRANSITION", "group_archived")
}

// audit takes the bundle of an archived Group and checks it without the server.
func audit(ctx context.Context, s *scene) {
	m := s.mission(billing)
	sealed, err := m.owner.c.Export(ctx, m.group)
	s.must("export the audit bundle", err)
	report, err := bundle.Verify(ctx, bytes.NewReader(sealed), bundle.Options{})
	s.must("verify the bundle", err)
	s.check("the audit bundle verifies offline", report.OK() && report.Events == int64(len(s.log(ctx, m))),
		"%d lines, all %d Events of billing, %d signatures checked, %d problems", report.Lines, report.Events, report.Signatures, report.Total)
	mark := []byte(s.mark(m))
	forged := bytes.Replace(sealed, mark, append(bytes.Clone(mark[:len(mark)-1]), 'q'), 1)
	report, err = bundle.Verify(ctx, bytes.NewReader(forged), bundle.Options{})
	s.must("verify a forged bundle", err)
	s.check("a bundle with one changed letter does not verify", !bytes.Equal(forged, sealed) && !report.OK(), "%d problems found", report.Total)
	_, err = s.agents["lead-b"].c.Export(ctx, m.group)
	s.refused("the bundle is not for everybody", err, "GROUP_NOT_FOUND", "")
}

func (st *stage) connect(role string) (*client.Client, error) {
	identity, err := st.stack.Identity(role)
	if err != nil {
		return nil, err //nolint:wrapcheck // says what is missing
	}
	return st.stack.Connect(identity) //nolint:wrapcheck // says what is missing
}

// archive signs the server's draft. Between the draft and the Command the sweeper
// may add an Event; then the draft is made anew.
func (s *scene) archive(ctx context.Context, archivist *client.Client, m *mission) error {
	for attempt := 0; ; attempt++ {
		var draft client.GroupSnapshot
		if err := archivist.Get(ctx, client.Path("v1", "groups", m.group, "snapshot"), nil, &draft); err != nil {
			return err //nolint:wrapcheck // the server's words
		}
		draft.CreatedBy, draft.CreatedAt = archivist.Principal(), stamp(0)
		if draft.SnapshotID == "" {
			draft.SnapshotID = s.choose.id("snapshot")
		}
		signed, err := archivist.Identity().SignSnapshot(draft)
		if err != nil {
			return err //nolint:wrapcheck // says what it is about
		}
		_, err = archivist.Post(ctx, client.Command{Kind: "ext.missionweaveprotocol.core.group_archive", GroupID: m.group}, map[string]any{"snapshot": signed})
		if client.CodeOf(err) == "REVISION_CONFLICT" && attempt < 5 {
			continue
		}
		return err //nolint:wrapcheck // the server's words
	}
}

// inspect reads every log again from its first Event.
func inspect(ctx context.Context, s *scene) {
	total := 0
	for _, m := range s.missions {
		board := client.NewBoard(s.owner.c.Principal(), m.group)
		gapless := true
		for after := int64(0); ; {
			page, next, err := s.owner.c.Events(ctx, m.group, after, 200)
			s.must("read the log of "+m.name, err)
			if len(page) == 0 {
				break
			}
			for _, d := range page {
				gapless = gapless && d.Event.Sequence == board.Head+1
				s.must("fold the log", board.Learn(d.Event))
				total++
			}
			after = next
		}
		s.check("the log of "+m.name+" has no gap and folds to what was seen", gapless && s.folds(m, board), "%d Events, Mission %s", board.Head, board.State)
	}
	s.check("nobody was told an Event twice", s.once(), "%d Events in %d Groups", total, len(s.missions))
}

// folds compares the fold of the log with what the owner was told as it happened.
func (s *scene) folds(m *mission, fresh *client.Board) bool {
	return read(m.owner, func(b *client.Board) bool {
		if b.State != fresh.State || len(b.Items) != len(fresh.Items) {
			return false
		}
		for id, w := range b.Items {
			if fresh.Items[id] == nil || fresh.Items[id].State != w.State {
				return false
			}
		}
		return true
	})
}

func (s *scene) once() bool {
	for _, m := range s.missions {
		seen := map[string]bool{}
		m.owner.mu.Lock()
		for _, d := range m.owner.log {
			if seen[d.Event.EventID] {
				m.owner.mu.Unlock()
				return false
			}
			seen[d.Event.EventID] = true
		}
		m.owner.mu.Unlock()
	}
	return true
}
