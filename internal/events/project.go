package events

import (
	"fmt"
	"strings"
	"time"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// The projections. What an Event changes is written with it; the same functions
// applied to everything make the rows that verify compares and rebuild writes.

var (
	tableMissions = newTable("missions", 2,
		column{"mission_id", typeText}, column{"revision", typeInt}, column{"state", typeText}, column{"group_state", typeText},
		column{"owner_type", typeText}, column{"owner_id", typeText}, column{"coordinator_id", typeText},
		column{"coordinator_epoch", typeInt}, column{"coordinator_expires", typeTime}, column{"deadline", typeTime},
		column{"parent_mission_id", typeMaybe}, column{"parent_work_item_id", typeMaybe}, column{"follow_up_to", typeMaybe},
		column{"created_at", typeTime}, column{"document", typeBytes}, column{"group_document", typeBytes},
		column{"coordinator_lease", typeBytes})
	tableMemberships = newTable("memberships", 4,
		column{"member_type", typeText}, column{"member_id", typeText}, column{"membership_id", typeText}, column{"role", typeText},
		column{"state", typeText}, column{"epoch", typeInt}, column{"visibility_start", typeInt},
		column{"provisional_expires", typeMaybeZ}, column{"document", typeBytes})
	tableConversations = newTable("conversations", 3,
		column{"conversation_id", typeText}, column{"type", typeText}, column{"work_item_id", typeMaybe}, column{"revision", typeInt},
		column{"document", typeBytes})
	tableMessages = newTable("messages", 3,
		column{"sequence", typeInt}, column{"message_id", typeText}, column{"conversation_id", typeText}, column{"kind", typeText},
		column{"target_sequence", typeInt}, column{"retracted", typeBool}, column{"redacted", typeBool})
	tableWorkItems = newTable("work_items", 3,
		column{"work_item_id", typeText}, column{"conversation_id", typeText}, column{"revision", typeInt}, column{"state", typeText},
		column{"owner_id", typeMaybe}, column{"ownership_epoch", typeInt}, column{"owner_live", typeBool}, column{"custody", typeBool},
		column{"execution_expires", typeMaybeZ}, column{"ownership_expires", typeMaybeZ}, column{"parent_work_item_id", typeMaybe},
		column{"deadline", typeTime}, column{"updated_at", typeTime}, column{"document", typeBytes})
	tableOffers = newTable("offers", 3,
		column{"offer_id", typeText}, column{"work_item_id", typeText}, column{"agent_id", typeText}, column{"status", typeText},
		column{"expires_at", typeTime}, column{"document", typeBytes})
	tableLeases = newTable("leases", 3,
		column{"lease_id", typeText}, column{"type", typeText}, column{"work_item_id", typeText}, column{"holder_id", typeText},
		column{"state", typeText}, column{"expires_at", typeTime}, column{"document", typeBytes})
	tableArtifacts = newTable("artifacts", 3,
		column{"artifact_id", typeText}, column{"content_hash", typeText}, column{"work_item_id", typeText},
		column{"ownership_epoch", typeInt}, column{"document", typeBytes})
	tableApprovals = newTable("approvals", 3,
		column{"approval_id", typeText}, column{"kind", typeText}, column{"decision", typeText}, column{"work_item_id", typeMaybe},
		column{"revoked_by", typeMaybe}, column{"document", typeBytes})
	tableAccounts = newTable("budget_accounts", 4,
		column{"account_type", typeText}, column{"account_id", typeText}, column{"exhausted", typeBool}, column{"document", typeBytes})
	tableDocuments = newTable("group_documents", 4,
		column{"type", typeText}, column{"id", typeText}, column{"work_item_id", typeMaybe}, column{"status", typeText},
		column{"expires_at", typeMaybeZ}, column{"document", typeBytes})

	// tables are all projections, in the order verify and rebuild take them.
	tables = []*table{
		tableMissions, tableMemberships, tableConversations, tableMessages, tableWorkItems, tableOffers,
		tableLeases, tableArtifacts, tableApprovals, tableAccounts, tableDocuments,
	}
)

// Types of group_documents.
const (
	documentProposal   = "proposal"
	documentEvidence   = "evidence"
	documentContext    = "context_package"
	documentDelegation = "delegation_grant"
	documentOverride   = "override_grant"
	documentExecution  = "execution_approval"
	documentRequest    = "approval_request"
	documentAction     = "action_approval"
	documentSnapshot   = "group_snapshot"
)

// Touched collects what the Events of one Group changed since the last write.
type Touched struct {
	all           bool
	mission       bool
	proposals     bool
	memberships   map[protocol.Actor]bool
	conversations map[string]bool
	posted        map[string]bool // new Messages
	messages      map[string]bool // Messages that were amended
	proposal      map[string]bool
	workItems     map[string]bool
	actions       map[string]bool // WorkItems whose ASKs changed
	leases        map[string]protocol.Lease
	artifacts     map[string]bool
	approvals     map[string]bool
	accounts      map[budget.Ref]bool
	evidence      map[string]bool
	contexts      map[string]bool
	grants        map[string]bool
	overrides     map[string]bool
	snapshot      bool
}

func mark[K comparable](m *map[K]bool, k K) {
	if *m == nil {
		*m = map[K]bool{}
	}
	(*m)[k] = true
}

// Event notes what an Event changes. It must see every Event that is applied
// between two calls of Write.
func (t *Touched) Event(ev *groups.Event) {
	switch {
	case strings.HasPrefix(ev.Kind, "mission."), strings.HasPrefix(ev.Kind, "ext.missionweave.mission."),
		strings.HasPrefix(ev.Kind, "group."):
		t.mission = true
	}
	if ev.WorkItemID != "" && !strings.HasPrefix(ev.Kind, "message.") {
		mark(&t.workItems, ev.WorkItemID)
		mark(&t.accounts, budget.WorkItemRef(ev.WorkItemID))
		if strings.HasPrefix(ev.Kind, "ext.missionweave.approval.") {
			mark(&t.actions, ev.WorkItemID)
		}
	}
	switch p := ev.Payload.(type) {
	case *groups.MissionCreated:
		t.all = true
	case *groups.MissionApproved:
		t.proposals = true
		t.approval(p.Approval)
		t.approval(p.HumanApproval)
		mark(&t.accounts, budget.MissionRef(p.MissionID))
	case *groups.MissionCancelled:
		t.proposals = true
		mark(&t.accounts, budget.MissionRef(p.MissionID))
	case *groups.MissionTerminated:
		t.proposals = true
		t.evidences(p.Evidence)
		mark(&t.accounts, budget.MissionRef(p.MissionID))
	case *groups.MissionChangesRequested:
		t.approval(p.Approval)
	case *groups.MissionCoordinatorAssigned:
		t.context(p.ContextPackage)
	case *groups.MissionOwnerTransferred, *groups.SoftLimitReached:
		t.mission = true
	case *groups.FollowUpLinked:
		t.mission = true
		t.approval(p.Revocation)
	case *groups.MissionChildCreated:
		mark(&t.accounts, budget.MissionRef(p.ChildMissionID))
		t.closed(p.ClosedLeases)
	case *groups.GroupSnapshotCreated:
		t.snapshot = true
	case *groups.MembershipChanged:
		mark(&t.memberships, p.Membership.Member)
		t.context(p.ContextPackage)
	case *groups.MembershipEnded:
		mark(&t.memberships, p.Membership.Member)
	case *groups.DelegationGranted:
		mark(&t.grants, p.DelegationGrant.GrantID)
	case *groups.CooperationOverrideGranted:
		mark(&t.overrides, p.CooperationOverrideGrant.GrantID)
	case *groups.CooperationOverrideConsumed:
		mark(&t.overrides, p.GrantID)
	case *groups.MessagePosted:
		mark(&t.posted, p.MessageID)
		mark(&t.conversations, p.Message.ConversationID)
	case *groups.MessageAmended:
		mark(&t.posted, p.MessageID)
		mark(&t.messages, p.TargetMessageID)
		mark(&t.conversations, p.Message.ConversationID)
	case *groups.WorkProposed:
		mark(&t.proposal, p.Proposal.ProposalID)
	case *groups.WorkAuthorized:
		mark(&t.conversations, p.Conversation.ConversationID)
		if p.ProposalID != "" {
			mark(&t.proposal, p.ProposalID)
		}
	case *groups.WorkOfferCreated:
		t.closed(p.ClosedLeases)
		t.context(p.ContextPackage)
	case *groups.WorkCheckpointed:
		t.closed(p.ClosedLeases)
	case *groups.WorkBlocked:
		t.closed(p.ClosedLeases)
		t.evidences(p.Evidence)
		t.child(p.ChildMissionID)
	case *groups.WorkUnblocked:
		t.closed(p.ClosedLeases)
	case *groups.WorkSubmitted:
		t.closed(p.ClosedLeases)
		t.evidences(p.Evidence)
	case *groups.WorkResultAccepted:
		t.closed(p.ClosedLeases)
		t.evidences(p.Evidence)
		t.child(p.ChildMissionID)
	case *groups.WorkFailed:
		t.closed(p.ClosedLeases)
		t.evidences(p.Evidence)
		t.child(p.ChildMissionID)
	case *groups.WorkCancelled:
		t.closed(p.ClosedLeases)
	case *groups.ArtifactPublished:
		mark(&t.artifacts, p.Artifact.Doc.ArtifactID)
	case *groups.ExecutionGranted:
		t.approval(p.Approval)
	case *groups.ExecutionDenied:
		t.approval(p.Approval)
	case *groups.ExecutionRevoked:
		t.approval(p.Approval)
		mark(&t.approvals, p.RevokedApprovalID)
	case *groups.ActionDecided:
		t.approval(p.Approval)
	case *groups.LeaseRevoked:
		t.closed(p.ClosedLeases)
	case *groups.LeaseExpired:
		t.closed([]protocol.Lease{p.Lease})
		t.mission = t.mission || p.WorkItemID == ""
	case *groups.OwnershipReleased:
		t.closed(p.ClosedLeases)
	case *groups.ResourceUsageRecorded:
		mark(&t.accounts, budget.WorkItemRef(p.WorkItemID))
		t.child(p.ChildMissionID)
	case *groups.BudgetIncreased:
		t.mission = true
		mark(&t.accounts, p.Account)
	case *groups.BudgetExhausted:
		mark(&t.accounts, p.Account)
	case *groups.ChildBudgetReserved:
		mark(&t.accounts, budget.WorkItemRef(p.WorkItemID))
		t.child(p.ChildMissionID)
	}
}

func (t *Touched) child(missionID string) {
	if missionID != "" {
		mark(&t.accounts, budget.MissionRef(missionID))
	}
}

func (t *Touched) approval(a *groups.Signed[protocol.Approval]) {
	if a == nil {
		return
	}
	mark(&t.approvals, a.Doc.ApprovalID)
	if a.Doc.RevokesApprovalID != "" {
		mark(&t.approvals, a.Doc.RevokesApprovalID)
	}
}

func (t *Touched) context(c *groups.Signed[protocol.ContextPackage]) {
	if c != nil {
		mark(&t.contexts, c.Doc.ContextPackageID)
	}
}

func (t *Touched) evidences(docs []*groups.Signed[protocol.Evidence]) {
	for _, e := range docs {
		mark(&t.evidence, e.Doc.EvidenceID)
	}
}

func (t *Touched) closed(closed []protocol.Lease) {
	for _, l := range closed {
		if l.WorkItemID == "" {
			continue // a Coordinator lease stands in the Mission's row
		}
		if t.leases == nil {
			t.leases = map[string]protocol.Lease{}
		}
		t.leases[l.LeaseID] = l
	}
}

// projector writes rows of one Group.
type projector struct {
	rows *Rows
	tree int64
	s    *groups.State
	err  error
}

// Write adds the rows of what was touched, as the state has it now.
func (t *Touched) Write(rows *Rows, tree int64, s *groups.State) error {
	p := &projector{rows: rows, tree: tree, s: s}
	if t.all {
		p.everything()
		return p.err
	}
	if t.mission {
		p.mission()
	}
	each(t.memberships, s.Memberships, p.membership)
	each(t.conversations, s.Conversations, p.conversation)
	each(t.posted, s.Messages, func(m *groups.Message) {
		delete(t.messages, m.MessageID) // new and amended at once
		rows.addFresh(tableMessages, append([]any{tree, s.GroupID}, p.messageRow(m)...)...)
	})
	each(t.messages, s.Messages, p.message)
	if t.proposals {
		for _, x := range s.Proposals {
			p.proposal(x)
		}
	} else {
		each(t.proposal, s.Proposals, p.proposal)
	}
	each(t.workItems, s.WorkItems, func(w *groups.WorkItem) {
		p.workItem(w, t.actions[w.WorkItemID])
		if c := w.Child(); c != nil {
			t.child(c.MissionID) // its claim ends with the WorkItem, and not every such Event names it
		}
	})
	for _, l := range t.leases {
		p.lease(&l)
	}
	for id := range t.artifacts {
		if a, ok := s.ArtifactByID(id); ok {
			p.artifact(a)
		}
	}
	each(t.approvals, s.Approvals, p.approval)
	for ref := range t.accounts {
		for a, _ := s.Ledger.Account(ref); a != nil; a = a.Parent() {
			p.account(a)
		}
	}
	each(t.evidence, s.Evidence, p.evidence)
	each(t.contexts, s.ContextPackages, p.context)
	each(t.grants, s.Grants, p.grant)
	each(t.overrides, s.Overrides, p.override)
	if t.snapshot {
		p.snapshot()
	}
	return p.err
}

func each[K comparable, V any](ids map[K]bool, all map[K]V, write func(V)) {
	for id := range ids {
		if v, ok := all[id]; ok {
			write(v)
		}
	}
}

// everything writes all rows of the Group.
func (p *projector) everything() {
	p.mission()
	for _, m := range p.s.Memberships {
		p.membership(m)
	}
	for _, c := range p.s.Conversations {
		p.conversation(c)
	}
	for _, m := range p.s.Messages {
		p.message(m)
	}
	for _, x := range p.s.Proposals {
		p.proposal(x)
	}
	for _, w := range p.s.WorkItems {
		p.workItem(w, true)
		for i := range w.ClosedLeases {
			p.lease(&w.ClosedLeases[i])
		}
		for _, a := range w.Artifacts {
			p.artifact(a)
		}
	}
	for _, a := range p.s.Approvals {
		p.approval(a)
	}
	for _, a := range p.s.Ledger.Accounts() {
		p.account(a)
	}
	for _, e := range p.s.Evidence {
		p.evidence(e)
	}
	for _, c := range p.s.ContextPackages {
		p.context(c)
	}
	for _, g := range p.s.Grants {
		p.grant(g)
	}
	for _, o := range p.s.Overrides {
		p.override(o)
	}
	p.snapshot()
}

// bytes encodes a document; the first failure is kept.
func (p *projector) bytes(v any) []byte {
	b, err := strictjson.Marshal(v)
	p.fail(err)
	return b
}

func (p *projector) fail(err error) {
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("events: projection of Group %s: %w", p.s.GroupID, err)
	}
}

// time reads a timestamp of a document; "" is the zero time.
func (p *projector) time(s string) time.Time {
	if s == "" {
		return time.Time{}
	}
	at, err := timestamp(s)
	p.fail(err)
	return at
}

func (p *projector) add(t *table, values ...any) {
	p.rows.add(t, append([]any{p.tree, p.s.GroupID}, values...)...)
}

func (p *projector) mission() {
	m, l := p.s.Mission, p.s.CoordinatorLease
	served, err := p.s.MissionDoc()
	p.fail(err)
	var parent, item string
	if m.Parent != nil {
		parent, item = m.Parent.MissionID, m.Parent.WorkItemID
	}
	p.add(tableMissions, m.MissionID, m.Revision, m.State, p.s.Group.State, m.MissionOwner.Type, m.MissionOwner.ID,
		m.Coordinator.AgentID, m.Coordinator.CoordinatorEpoch, p.time(l.ExpiresAt), p.time(m.Deadline), parent, item,
		m.FollowUpToMissionID, p.time(m.CreatedAt), p.bytes(&served), p.bytes(p.s.Group), p.bytes(l))
}

func (p *projector) membership(m *protocol.Membership) {
	p.add(tableMemberships, m.Member.Type, m.Member.ID, m.MembershipID, m.Role, m.State, m.MembershipEpoch,
		m.VisibilityStartSequence, p.time(m.ProvisionalExpiresAt), p.bytes(m))
}

func (p *projector) conversation(c *protocol.Conversation) {
	p.add(tableConversations, c.ConversationID, c.Type, c.PrimaryWorkItemID, c.Revision, p.bytes(c))
}

func (p *projector) message(m *groups.Message) { p.add(tableMessages, p.messageRow(m)...) }

func (p *projector) messageRow(m *groups.Message) []any {
	target := int64(0)
	if t, ok := p.s.Messages[m.TargetMessageID]; ok {
		target = t.Sequence
	}
	return []any{m.Sequence, m.MessageID, m.ConversationID, m.Kind, target, m.Retracted, m.Redacted}
}

func (p *projector) workItem(w *groups.WorkItem, actions bool) {
	owner := ""
	if w.Owner != nil {
		owner = w.Owner.AgentID
	}
	expires := func(l *protocol.Lease) time.Time {
		if l == nil {
			return time.Time{}
		}
		return p.time(l.ExpiresAt)
	}
	// What depends on the clock is added by whoever serves the document.
	served, err := w.Served(groups.WorkItemClock{})
	p.fail(err)
	updated := w.UpdatedAt
	if updated == "" {
		updated = w.CreatedAt
	}
	p.add(tableWorkItems, w.WorkItemID, w.ConversationID, w.Revision, w.State, owner, w.OwnershipEpoch,
		w.Owner != nil && !w.OwnerFenced && !w.Custody, w.Custody, expires(w.Execution), expires(w.Ownership), w.ParentWorkItemID,
		p.time(w.Contract.Deadline), p.time(updated), p.bytes(&served))
	for i := range w.Offers {
		o := &w.Offers[i]
		p.add(tableOffers, o.OfferID, w.WorkItemID, o.AgentID, o.Status, p.time(o.ExpiresAt), p.bytes(o))
	}
	for _, l := range []*protocol.Lease{w.Ownership, w.Execution, w.Blocked} {
		if l != nil {
			p.lease(l)
		}
	}
	for i := range w.Executions {
		e := &w.Executions[i]
		p.document(documentExecution, e.ApprovalID, w.WorkItemID, e.Status, p.time(e.ExpiresAt), e)
	}
	for i := range w.Requests {
		r := &w.Requests[i]
		p.document(documentRequest, r.RequestID, w.WorkItemID, r.Status, p.time(r.ExpiresAt), r)
	}
	if !actions {
		return
	}
	for i := range w.ActionRequests {
		a := &w.ActionRequests[i]
		p.document(documentAction, a.Request.RequestID, w.WorkItemID, actionStatus(a), p.time(a.Request.ExpiresAt), a)
	}
}

func actionStatus(a *groups.ActionApproval) string {
	switch {
	case a.ConsumedByActionID != "":
		return "consumed"
	case a.Decision != nil && a.Decision.Approval != nil:
		return a.Decision.Approval.Doc.Decision
	case a.Expired:
		return "expired"
	}
	return "pending"
}

func (p *projector) lease(l *protocol.Lease) {
	p.add(tableLeases, l.LeaseID, l.LeaseType, l.WorkItemID, l.HolderAgentID, l.State, p.time(l.ExpiresAt), p.bytes(l))
}

func (p *projector) artifact(a *groups.Artifact) {
	d := &a.Manifest.Doc
	p.add(tableArtifacts, d.ArtifactID, d.ContentHash, d.WorkItemID, a.OwnershipEpoch, p.bytes(a.Manifest))
}

func (p *projector) approval(a *groups.Approval) {
	d := &a.Signed.Doc
	p.add(tableApprovals, d.ApprovalID, d.Kind, d.Decision, d.WorkItemID, a.RevokedBy, p.bytes(a.Signed))
}

func (p *projector) account(a *budget.Account) {
	row := budget.Entry{
		Account: a.Ref, Limit: a.Limit, Currency: a.Currency, Direct: a.Direct, Finished: a.Finished, Linked: a.Linked,
	}
	if parent := a.Parent(); parent != nil {
		ref := parent.Ref
		row.Parent = &ref
	}
	p.add(tableAccounts, a.Type, a.ID, a.Exhausted() != 0, p.bytes(&row))
}

func (p *projector) document(typ, id, workItemID, status string, expires time.Time, doc any) {
	p.add(tableDocuments, typ, id, workItemID, status, expires, p.bytes(doc))
}

func (p *projector) proposal(x *groups.Proposal) {
	p.document(documentProposal, x.ProposalID, "", x.Status, time.Time{}, &x.ProposalDoc)
}

func (p *projector) evidence(e *groups.Signed[protocol.Evidence]) {
	p.document(documentEvidence, e.Doc.EvidenceID, e.Doc.WorkItemID, e.Doc.Result, time.Time{}, e)
}

func (p *projector) context(c *groups.Signed[protocol.ContextPackage]) {
	p.document(documentContext, c.Doc.ContextPackageID, c.Doc.WorkItemID, "stored", time.Time{}, c)
}

func (p *projector) grant(g *protocol.DelegationGrant) {
	p.document(documentDelegation, g.GrantID, g.TargetWorkItemID, "granted", p.time(g.ExpiresAt), g)
}

func (p *projector) override(o *groups.Override) {
	status := "granted"
	if o.ConsumedByEventID != "" {
		status = "consumed"
	}
	p.document(documentOverride, o.GrantID, "", status, p.time(o.ExpiresAt), &o.CooperationOverrideGrant)
}

func (p *projector) snapshot() {
	if s := p.s.Snapshot; s != nil {
		p.document(documentSnapshot, s.Doc.SnapshotID, "", p.s.SnapshotHash, time.Time{}, s)
	}
}

// ProjectAll returns every projection row of a Group.
func ProjectAll(tree int64, s *groups.State) (Rows, error) {
	var rows Rows
	p := &projector{rows: &rows, tree: tree, s: s}
	p.everything()
	return rows, p.err
}

// NextDue is when the Group's timers are to be looked at, as the column holds it;
// zero for never.
func NextDue(s *groups.State) time.Time {
	at, ok := s.NextTimer()
	if !ok {
		return time.Time{}
	}
	return at.UTC().Truncate(time.Microsecond)
}

// NewPolicyEntry makes the row of a Policy Log entry.
func NewPolicyEntry(tree int64, groupID string, sequence int64, p *protocol.PolicyLogEntry) (PolicyEntry, error) {
	document, err := strictjson.Marshal(p)
	if err != nil {
		return PolicyEntry{}, err
	}
	at, err := timestamp(p.OccurredAt)
	return PolicyEntry{
		TreeID: tree, GroupID: groupID, Sequence: sequence, EntryID: p.EntryID, Decision: p.Decision,
		Actor: p.Actor, OccurredAt: at, Document: document,
	}, err
}
