package scenario

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/bundle"
)

// children promotes WorkItems to Missions of their own: one is approved, one fails
// and is replaced.
func children(ctx context.Context, s *scene) {
	parent := s.mission("search")
	id := s.authorize(ctx, parent, "security-review", s.contract("Review the security of search.", "security.review", task{}, func(c *client.WorkContract) {
		c.Budget, c.Deadline = budget(20, 20_000, 100, 600, 6000), stamp(12*time.Hour)
	}))
	first := s.child(ctx, parent, id, "security-1")
	s.check("a child Mission has its own Group, Coordinator and budget", first.group != parent.group && read(first.lead, func(b *client.Board) string { return b.CoordinatorID }) == s.agentID("lead-security"),
		"Group %s under %s, Coordinator %s", short(first.group), short(parent.group), s.nameOf(s.agentID("lead-security")))
	s.check("the parent WorkItem is blocked on its child", parent.lead.item(id).State == "blocked", "mission.child.created; the WorkItem is %s", parent.lead.item(id).State)
	s.check("the root MissionOwner can inspect the whole tree", s.tree(ctx, parent) == 2, "the tree of search has %d Missions", s.tree(ctx, parent))
	first.lead.do(ctx, s, client.Command{Kind: "mission.terminate"}, map[string]any{"reason": "The scanner cannot read the new format."})
	parent.lead.awaitThat(ctx, s, "the failure reaches the parent", func(b *client.Board) bool { return b.Items[id].Reason != "" })
	s.check("a failed child blocks its parent WorkItem and not the Mission", parent.lead.item(id).State == "blocked" && read(parent.lead, func(b *client.Board) string { return b.State }) == "active",
		"work.blocked with the Authority's failure report; search is %s", read(parent.lead, func(b *client.Board) string { return b.State }))

	second := s.child(ctx, parent, id, "security-2")
	s.admit(ctx, second, "reviewer", "worker")
	work := s.give(ctx, second, "threat-model", "reviewer", s.contract("Write the threat model.", "security.review", task{Content: "no open threat"}, func(c *client.WorkContract) {
		c.Budget = budget(1, 1000, 10, 60, 600)
	}))
	s.verify(ctx, second, work)
	second.lead.do(ctx, s, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": second.lead.item(work).Submission})
	s.approveChild(ctx, parent, second)
	parent.lead.await(ctx, s, id, "verified")
	s.check("a failed child is replaced by another", s.count(parent, id, "mission.child.created") == 2, "2 × mission.child.created on the same WorkItem")
	s.check("the child's Approval verifies the parent WorkItem", parent.lead.item(id).State == "verified" && slices.Equal(parent.lead.item(id).Submission, second.lead.item(work).Submission),
		"work.result.accepted with the child's %d Artifacts as Evidence", len(parent.lead.item(id).Submission))
}

// child promotes a WorkItem; the parent's Coordinator owns the child Mission.
func (s *scene) child(ctx context.Context, parent *mission, id, name string) *mission {
	m := &mission{name: name, id: client.NewID(), group: client.NewID(), column: parent.column + 2}
	parent.lead.do(ctx, s, client.Command{Kind: "mission.create_child", WorkItemID: id}, map[string]any{
		"missionId": m.id, "groupId": m.group, "coordinatorAgentId": s.agentID("lead-security"), "title": name,
		"objective":        "Review the security of search, " + name + ".",
		"definitionOfDone": []client.AcceptanceCriterion{{CriterionID: "secure", Description: "No open threat.", EvidenceRequired: []string{"reviewer_assessment"}}},
		"budget":           budget(5, 5000, 50, 300, 3000), "deadline": stamp(10 * time.Hour), "coordinatorLeaseSeconds": 3600,
	})
	s.open(ctx, m, "lead-security")
	return m
}

func (s *scene) tree(ctx context.Context, m *mission) int {
	var answer struct {
		Missions []client.Raw `json:"missions"`
	}
	s.must("read the tree", m.owner.c.Get(ctx, client.Path("v1", "missions", m.id, "tree"), nil, &answer))
	return len(answer.Missions)
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
		ApprovalID: client.NewID(), Kind: "child_mission", Decision: "approved", MissionID: child.id, GroupID: child.group,
		MissionRevision: submitted.Revision, ArtifactHashes: submitted.Hashes, AcceptancePolicyVersion: policyVersion,
		Approver: owner.c.Principal(), Comments: "Taken.", Conditions: []string{}, OccurredAt: stamp(0),
	})
	s.must("sign the Approval", err)
	owner.do(ctx, s, client.Command{Kind: "mission.approve"}, map[string]any{"approval": approval})
}

// approve hands billing in, has it sent back once, and approves exactly what was
// handed in.
func approve(ctx context.Context, s *scene) {
	m := s.mission("billing")
	s.check("requirements, implementation, testing, review, integration and deployment are separate stages", s.stages(m) == 6,
		"%d WorkItems joined by dependencies, all verified", s.stages(m))
	hashes := s.results(m)
	m.lead.do(ctx, s, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": hashes})
	m.owner.awaitThat(ctx, s, "billing is submitted", func(b *client.Board) bool { return b.State == "awaiting_approval" })
	first := read(m.owner, func(b *client.Board) client.MissionSubmission { return b.Submitted })
	s.decide(ctx, m, "changes_requested", first.Revision, nil, "Operators do not learn how to go back.")
	m.lead.awaitThat(ctx, s, "the request for changes arrives", func(b *client.Board) bool { return b.State == "active" })
	fix := s.give(ctx, m, "rollback-plan", "analyst", s.contract("Write the rollback plan.", "requirements.write", task{Content: "Back to 2.3: " + secretA}))
	s.verify(ctx, m, fix)
	m.lead.do(ctx, s, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": s.results(m)})
	m.owner.awaitThat(ctx, s, "billing is submitted again", func(b *client.Board) bool { return b.Submitted.Revision > first.Revision })
	second := read(m.owner, func(b *client.Board) client.MissionSubmission { return b.Submitted })
	s.check("a request for changes reopens the Mission for corrective work", len(second.Hashes) == len(hashes)+1,
		"%d Artifacts at revision %d, %d at revision %d", len(hashes), first.Revision, len(second.Hashes), second.Revision)
	err := s.tryDecide(ctx, m, "approved", first.Revision, second.Hashes, "Late.")
	s.refused("an Approval of an older revision is none", err, "REVISION_CONFLICT")
	err = s.tryDecide(ctx, m, "approved", second.Revision, second.Hashes[:1], "Only this.")
	s.refused("an Approval of other Artifacts is none", err, "INVALID_COMMAND")
	s.must("approve", s.tryDecide(ctx, m, "approved", second.Revision, second.Hashes, "Checked against the definition of done."))
	m.lead.awaitThat(ctx, s, "billing is approved", func(b *client.Board) bool { return b.State == "approved" })
	s.check("a human approves the exact revision and Artifacts", read(m.lead, func(b *client.Board) string { return b.State }) == "approved",
		"mission.approved at revision %d with %d Artifacts", second.Revision, len(second.Hashes))
	_, err = m.lead.try(ctx, client.Command{Kind: "work.authorize", WorkItemID: client.NewID()}, map[string]any{
		"title": "late", "contract": s.contract("Add one more thing.", "code.write", task{}),
	})
	s.refused("an approved Mission is not reopened", err, "INVALID_STATE_TRANSITION")
	b := s.mission("search")
	b.lead.do(ctx, s, client.Command{Kind: "mission.submit_for_approval"}, map[string]any{"artifactHashes": s.results(b)})
	b.owner.awaitThat(ctx, s, "search is submitted", func(x *client.Board) bool { return x.State == "awaiting_approval" })
	handed := read(b.owner, func(x *client.Board) client.MissionSubmission { return x.Submitted })
	s.must("approve search", s.tryDecide(ctx, b, "approved", handed.Revision, handed.Hashes, "Good."))
}

// stages counts the verified stages that depend on each other.
func (s *scene) stages(m *mission) int {
	n := 0
	for _, title := range []string{"requirements", "implementation", "testing", "code-review", "integration", "deploy"} {
		if m.lead.item(s.byTitle(m, title)).State == "verified" {
			n++
		}
	}
	return n
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
		ApprovalID: client.NewID(), Kind: "mission_final", Decision: decision, MissionID: m.id, GroupID: m.group,
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
	m := s.mission("billing")
	next := &mission{name: "billing-next", id: client.NewID(), group: client.NewID(), column: 0}
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
	s.check("a follow-up Mission is linked to the approved one", len(next.owner.events("mission.follow_up.created")) == 1, "mission.follow_up.created, and follow_up_linked in billing")
	next.owner.do(ctx, s, client.Command{Kind: "mission.cancel"}, map[string]any{"reason": "Only to show the link."})

	archivist, err := s.connect("archival")
	s.must("connect as the archival service", err)
	defer archivist.Close()
	s.must("archive billing", s.archive(ctx, archivist, m))
	m.owner.awaitThat(ctx, s, "billing is archived", func(b *client.Board) bool { return b.Archived })
	s.check("archival seals the Group with a signed snapshot", len(m.owner.events("group.snapshot.created")) == 1, "group.snapshot.created and group.archived at sequence %d", read(m.owner, func(b *client.Board) int64 { return b.Head }))
	_, err = m.owner.try(ctx, client.Command{Kind: "message.post", ConversationID: read(m.owner, func(b *client.Board) string { return b.MainConversation })}, map[string]any{
		"messageId": client.NewID(), "content": []client.ContentPart{{Type: "text", Text: "Anybody here?"}},
	})
	s.refused("an archived Group takes no Command", err, "INVALID_STATE_TRANSITION")
}

// audit takes the bundle of an archived Group and checks it without the server.
func audit(ctx context.Context, s *scene) {
	m := s.mission("billing")
	sealed, err := m.owner.c.Export(ctx, m.group)
	s.must("export the audit bundle", err)
	report, err := bundle.Verify(ctx, bytes.NewReader(sealed), bundle.Options{})
	s.must("verify the bundle", err)
	s.check("the audit bundle verifies offline", report.OK() && report.Events == read(m.owner, func(b *client.Board) int64 { return b.Head }),
		"%d lines, %d Events, %d signatures checked, %d problems", report.Lines, report.Events, report.Signatures, report.Total)
	forged := bytes.Replace(sealed, []byte(secretA), []byte("amber-lighthousf"), 1)
	report, err = bundle.Verify(ctx, bytes.NewReader(forged), bundle.Options{})
	s.must("verify a forged bundle", err)
	s.check("a bundle with one changed letter does not verify", !bytes.Equal(forged, sealed) && !report.OK(), "%d problems found", report.Total)
	_, err = s.agents["lead-b"].c.Export(ctx, m.group)
	s.check("the bundle is not for everybody", client.CodeOf(err) != "", "the other Mission's Coordinator gets %s", client.CodeOf(err))
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
			draft.SnapshotID = client.NewID()
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
		s.check("the log of "+m.name+" has no gap and folds to what was seen", gapless && s.same(m, board), "%d Events, Mission %s", board.Head, board.State)
	}
	s.check("nobody was told an Event twice", s.once(), "%d Events in %d Groups", total, len(s.missions))
}

// same compares the fold of the log with what the owner was told as it happened.
func (s *scene) same(m *mission, fresh *client.Board) bool {
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
