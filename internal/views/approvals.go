package views

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// What waits for somebody's decision, with what the decision needs: what is
// asked for, why, what it rests on, what it may cost and until when. The hazard
// is an item that its reader cannot decide, or one that is missing: so who may
// decide follows the same Memberships and scopes that the Authority asks for,
// and the gate is the core's.

// Types of a waiting approval.
const (
	// ApprovalMission waits for the MissionOwner: mission.approve or
	// mission.request_changes.
	ApprovalMission = "mission"
	// ApprovalMissionHuman is the root MissionOwner's part of a child's approval.
	ApprovalMissionHuman = "mission_human"
	// ApprovalExecution is a WorkItem that may not start yet:
	// approval.grant_execution or deny_execution.
	ApprovalExecution = "execution"
	// ApprovalAction is an ASK about one Proposed Action: decide_action.
	ApprovalAction = "action"
)

// Waiting is one item of Approvals.
type Waiting struct {
	Type            string `json:"type"`
	ID              string `json:"id"`
	MissionID       string `json:"missionId"`
	GroupID         string `json:"groupId"`
	MissionRevision int64  `json:"missionRevision"`
	PolicyVersion   string `json:"policyVersion,omitempty"`
	Objective       string `json:"objective"`
	WorkItem        *Item  `json:"workItem,omitempty"`
	What            What   `json:"what"`
	Why             Why    `json:"why"`
	// Basis is what it rests on: content, WorkItems, provenance records.
	Basis Basis `json:"basis"`
	// Cost is what may be spent: Requested where an amount was named, and what the
	// account has left.
	Cost  Cost   `json:"cost"`
	Until string `json:"until"`
	// Requests are the open requests about a start gate, as they were made.
	Requests []groups.ExecutionRequest `json:"requests,omitempty"`
	// Request is the ASK as it was made.
	Request *groups.ActionRequest `json:"request,omitempty"`
}

// Item is the WorkItem that a decision is about.
type Item struct {
	WorkItemID     string `json:"workItemId"`
	Revision       int64  `json:"revision"`
	Goal           string `json:"goal"`
	OwnerAgentID   string `json:"ownerAgentId,omitempty"`
	OwnershipEpoch int64  `json:"ownershipEpoch,omitempty"`
	SideEffectRisk string `json:"sideEffectRisk"`
	BusinessImpact string `json:"businessImpact"`
}

// What is asked for.
type What struct {
	// ArtifactHashes and AcceptedFailures are a Mission's submission,
	// DefinitionOfDone what it is held against.
	ArtifactHashes   []string                       `json:"artifactHashes,omitempty"`
	AcceptedFailures []groups.AcceptedFailure       `json:"acceptedFailures,omitempty"`
	DefinitionOfDone []protocol.AcceptanceCriterion `json:"definitionOfDone,omitempty"`
	// Operations and Resources would be allowed.
	Operations []string `json:"operations,omitempty"`
	Resources  []string `json:"resources,omitempty"`
	// ActionType and ArgumentsDigest name the one Proposed Action.
	ActionType      string `json:"actionType,omitempty"`
	ArgumentsDigest string `json:"argumentsDigest,omitempty"`
	SideEffectClass string `json:"sideEffectClass,omitempty"`
}

// Why it is asked.
type Why struct {
	// Gate is human_required or policy_required.
	Gate            string          `json:"gate,omitempty"`
	RuleID          string          `json:"ruleId,omitempty"`
	ManifestVersion string          `json:"manifestVersion,omitempty"`
	Reason          string          `json:"reason,omitempty"`
	RequestedBy     *protocol.Actor `json:"requestedBy,omitempty"`
}

// Basis names where the data came from.
type Basis struct {
	Artifacts           []BasisArtifact `json:"artifacts,omitempty"`
	InputArtifacts      []string        `json:"inputArtifacts,omitempty"`
	DependencyWorkItems []string        `json:"dependencyWorkItemIds,omitempty"`
	Provenance          []string        `json:"provenance,omitempty"`
}

// BasisArtifact is a submitted Artifact.
type BasisArtifact struct {
	ContentHash          string   `json:"contentHash"`
	ArtifactID           string   `json:"artifactId"`
	GroupID              string   `json:"groupId"`
	WorkItemID           string   `json:"workItemId"`
	ProducerAgentID      string   `json:"producerAgentId"`
	Classification       string   `json:"classification"`
	SourceArtifactHashes []string `json:"sourceArtifactHashes"`
}

// Cost is what a decision may cost.
type Cost struct {
	Requested *protocol.Budget `json:"requested,omitempty"`
	Limit     protocol.Budget  `json:"limit"`
	Used      budget.Usage     `json:"used"`
	Remaining budget.Usage     `json:"remaining"`
}

// waitingRow is a candidate as the query finds it.
type waitingRow struct {
	group, typ, id string
	tree           int64
	mission, item  []byte
	subject        []byte   // an ASK
	requests       [][]byte // open requests about a gate
	expires        *string  // of the Ownership Lease
}

// sqlWaiting finds candidates for the reader $1 $2, who is a service that opens gates
// if $7: of every Group, where the contract or the risks $8 ask for no human. A
// WorkItem may still turn out to have its approval: the gate is looked at afterwards.
const sqlWaiting = `
WITH deciding AS (
	SELECT b.tree_id, b.group_id, m.document AS mission, false AS service
	FROM memberships b JOIN missions m ON m.tree_id = b.tree_id AND m.group_id = b.group_id
	WHERE b.member_type = $1 AND b.member_id = $2 AND b.state = 'active' AND $1 = 'human' AND m.state = 'active'
		AND jsonb_exists(convert_from(b.document, 'UTF8')::jsonb -> 'scopes', 'approval.execution')
UNION ALL
	SELECT m.tree_id, m.group_id, m.document, true FROM missions m WHERE $7 AND m.state = 'active'
), waiting AS (
	SELECT m.group_id, 'mission' AS type, m.mission_id AS id, m.tree_id, m.document AS mission,
		NULL::bytea AS item, NULL::bytea AS subject, NULL::bytea[] AS requests, NULL::text AS expires
	FROM missions m WHERE m.state = 'awaiting_approval' AND m.owner_type = $1 AND m.owner_id = $2
UNION ALL
	SELECT c.group_id, 'mission_human', c.mission_id, c.tree_id, c.document, NULL, NULL, NULL, NULL
	FROM missions r JOIN groups g ON g.root_mission_id = r.mission_id
	JOIN missions c ON c.tree_id = g.tree_id AND c.group_id = g.group_id
	WHERE r.owner_type = $1 AND r.owner_id = $2 AND $1 = 'human' AND c.mission_id <> r.mission_id AND c.state = 'awaiting_approval'
		AND (convert_from(c.document, 'UTF8')::jsonb #>> '{approvalPolicy,finalHumanApproval}')::boolean
UNION ALL
	SELECT w.group_id, 'execution', w.work_item_id, w.tree_id, d.mission, w.document, NULL,
		ARRAY(SELECT r.document FROM group_documents r WHERE r.tree_id = w.tree_id AND r.group_id = w.group_id
			AND r.type = 'approval_request' AND r.work_item_id = w.work_item_id AND r.status = 'pending'
			AND r.expires_at > clock_timestamp() ORDER BY r.id),
		(SELECT convert_from(l.document, 'UTF8')::jsonb ->> 'expiresAt' FROM leases l WHERE l.tree_id = w.tree_id
			AND l.group_id = w.group_id AND l.work_item_id = w.work_item_id AND l.type = 'ownership' AND l.state = 'active')
	FROM deciding d JOIN work_items w ON w.tree_id = d.tree_id AND w.group_id = d.group_id
	WHERE w.state = 'queued' AND (NOT d.service
		OR convert_from(w.document, 'UTF8')::jsonb #>> '{contract,executionApproval}' = 'policy_required'
		OR convert_from(w.document, 'UTF8')::jsonb #>> '{contract,sideEffectRisk}' = ANY($8))
UNION ALL
	SELECT a.group_id, 'action', a.id, a.tree_id, d.mission, w.document, a.document, NULL, NULL
	FROM deciding d JOIN group_documents a ON a.tree_id = d.tree_id AND a.group_id = d.group_id AND a.type = 'action_approval'
	JOIN work_items w ON w.tree_id = a.tree_id AND w.group_id = a.group_id AND w.work_item_id = a.work_item_id
	WHERE NOT d.service AND a.status = 'pending' AND a.expires_at > clock_timestamp()
)
SELECT group_id, type, id, tree_id, mission, item, subject, requests, expires FROM waiting
WHERE (group_id, type, id) > ($3 COLLATE "C", $4 COLLATE "C", $5 COLLATE "C")
ORDER BY group_id COLLATE "C", type COLLATE "C", id COLLATE "C" LIMIT $6`

// Approvals lists what waits for the reader's decision, over all Groups.
func (v *Views) Approvals(ctx context.Context, reader protocol.Actor, p httpkit.Page) (List, error) {
	after := []string{"", "", ""}
	if p.After != nil {
		after = p.After
	}
	out := List{}
	w := &waitingReader{v: v, access: map[string]*clock{}, ledgers: map[string]*budget.Ledger{}}
	for {
		rows, err := v.waitingRows(ctx, reader, after, p.Limit+1)
		if err != nil {
			return List{}, err
		}
		for i := range rows {
			r := &rows[i]
			item, err := w.item(ctx, reader, r)
			if err != nil {
				return List{}, err
			}
			if item == nil {
				after = []string{r.group, r.typ, r.id}
				continue
			}
			if len(out.Items) == p.Limit {
				out.Next = httpkit.Cursor(after...)
				return out, nil
			}
			b, err := strictjson.Marshal(item)
			if err != nil {
				return List{}, err //nolint:wrapcheck // cannot happen for a value of ours
			}
			out.Items = append(out.Items, b)
			after = []string{r.group, r.typ, r.id}
		}
		if len(rows) <= p.Limit {
			return out, nil
		}
	}
}

func (v *Views) waitingRows(ctx context.Context, reader protocol.Actor, after []string, limit int) ([]waitingRow, error) {
	opens := reader.Type == protocol.ActorService && v.policy.MayOpenGates(reader)
	rows, err := v.pool.Query(ctx, sqlWaiting, reader.Type, reader.ID, after[0], after[1], after[2], limit, opens, v.policy.GatedRisks())
	if err != nil {
		return nil, fmt.Errorf("views: approvals: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r waitingRow, err error) {
		err = row.Scan(&r.group, &r.typ, &r.id, &r.tree, &r.mission, &r.item, &r.subject, &r.requests, &r.expires)
		return r, err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("views: approvals: %w", err)
	}
	return out, nil
}

// waitingReader keeps what the items of one answer share.
type waitingReader struct {
	v       *Views
	access  map[string]*clock
	ledgers map[string]*budget.Ledger
}

// item makes the item of a candidate; nil when nothing waits there.
func (w *waitingReader) item(ctx context.Context, reader protocol.Actor, r *waitingRow) (*Waiting, error) {
	var m protocol.Mission
	if err := decode(r.mission, &m); err != nil {
		return nil, err
	}
	out := &Waiting{
		Type: r.typ, ID: r.id, MissionID: m.MissionID, GroupID: m.GroupID, MissionRevision: m.Revision,
		PolicyVersion: m.ApprovalPolicy.PolicyVersion, Objective: m.Objective, Until: m.Deadline,
	}
	account := budget.MissionRef(m.MissionID)
	switch r.typ {
	case ApprovalMission, ApprovalMissionHuman:
		if err := w.submission(ctx, r, &m, out); err != nil {
			return nil, err
		}
	case ApprovalExecution, ApprovalAction:
		var doc protocol.WorkItem
		if err := decode(r.item, &doc); err != nil {
			return nil, err
		}
		out.WorkItem = itemOf(&doc)
		account = budget.WorkItemRef(doc.WorkItemID)
		waits, err := w.work(ctx, reader, r, &doc, out)
		if err != nil || !waits {
			return nil, err
		}
	}
	return out, w.cost(ctx, r, account, out)
}

func itemOf(doc *protocol.WorkItem) *Item {
	out := &Item{
		WorkItemID: doc.WorkItemID, Revision: doc.Revision, Goal: doc.Contract.Goal,
		SideEffectRisk: doc.Contract.SideEffectRisk, BusinessImpact: doc.Contract.BusinessImpact,
	}
	if doc.Owner != nil {
		out.OwnerAgentID, out.OwnershipEpoch = doc.Owner.AgentID, doc.Owner.OwnershipEpoch
	}
	return out
}

// submission fills in what a Mission was submitted with.
func (w *waitingReader) submission(ctx context.Context, r *waitingRow, m *protocol.Mission, out *Waiting) error {
	extensions, err := m.Extensions.Value()
	if err != nil {
		return fmt.Errorf("%w: %w", errStored, err)
	}
	var s groups.MissionSubmission
	if submitted := extensions.Member(groups.MissionFactsExtension).Member("data").Member("submission"); submitted.Exists() {
		if err := strictjson.Decode(submitted, &s); err != nil {
			return fmt.Errorf("%w: %w", errStored, err)
		}
	}
	out.MissionRevision = s.MissionRevision // an Approval names the submitted revision
	out.What = What{ArtifactHashes: s.ArtifactHashes, AcceptedFailures: s.AcceptedFailures, DefinitionOfDone: m.DefinitionOfDone}
	rows, err := w.v.pool.Query(ctx, `SELECT document FROM artifacts WHERE tree_id = $1 AND content_hash = ANY($2)
		ORDER BY content_hash, group_id, artifact_id`, r.tree, s.ArtifactHashes)
	if err != nil {
		return fmt.Errorf("views: approvals: %w", err)
	}
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&document}, func() error {
		var a protocol.Artifact
		if err := decode(document, &a); err != nil {
			return err
		}
		out.Basis.Artifacts = append(out.Basis.Artifacts, BasisArtifact{
			ContentHash: a.ContentHash, ArtifactID: a.ArtifactID, GroupID: a.GroupID, WorkItemID: a.WorkItemID,
			ProducerAgentID: a.Producer.AgentID, Classification: a.Classification, SourceArtifactHashes: a.SourceArtifactHashes,
		})
		return nil
	})
	if err != nil {
		return fmt.Errorf("views: approvals: %w", err)
	}
	return nil
}

// work fills in what a WorkItem waits for, and tells whether it does.
func (w *waitingReader) work(ctx context.Context, reader protocol.Actor, r *waitingRow, doc *protocol.WorkItem, out *Waiting) (bool, error) {
	out.Basis = Basis{InputArtifacts: doc.Contract.InputArtifacts, DependencyWorkItems: doc.Contract.DependencyWorkItemIDs}
	if r.typ == ApprovalAction {
		var a groups.ActionApproval
		if err := decode(r.subject, &a); err != nil {
			return false, err
		}
		q := &a.Request
		out.Request, out.Until = q, q.ExpiresAt
		out.What = What{
			Operations: []string{q.Operation}, Resources: q.Resources, ActionType: q.ActionType,
			ArgumentsDigest: q.ArgumentsDigest, SideEffectClass: q.SideEffectClass,
		}
		out.Why = Why{RuleID: q.RuleID, ManifestVersion: q.ManifestVersion, Reason: q.Reason, RequestedBy: &q.RequestedBy}
		out.Basis.Provenance = q.Provenance
		return true, nil
	}
	c, ok := w.access[r.group]
	if !ok {
		var err error
		if c, err = w.v.clock(ctx, &Access{TreeID: r.tree, GroupID: r.group, Reader: reader}); err != nil {
			return false, err
		}
		w.access[r.group] = c
	}
	now, err := c.of(ctx, doc)
	if err != nil {
		return false, err
	}
	if now.Gate == "" && len(r.requests) == 0 {
		return false, nil
	}
	s, err := c.state(ctx, r.group)
	if err != nil {
		return false, err
	}
	gate := s.GateOf(&doc.Contract, c.org)
	if reader.Type == protocol.ActorService && !gate.OpensByService() {
		return false, nil
	}
	out.Why = Why{RuleID: gate.RuleID}
	if gate.Required() {
		out.Why.Gate = gate.Kind
	}
	out.What.Operations, out.What.Resources = allowed(doc.Contract.AllowedResources)
	if r.expires != nil {
		out.Until = *r.expires
	}
	for _, stored := range r.requests {
		var q groups.ApprovalRequest
		if err := decode(stored, &q); err != nil {
			return false, err
		}
		out.Requests = append(out.Requests, q.ExecutionRequest)
	}
	if len(out.Requests) > 0 {
		out.asked()
	}
	return true, nil
}

// asked lets the request that ends first speak for the item.
func (out *Waiting) asked() {
	first := &out.Requests[0]
	for i := range out.Requests {
		if a, err := lexical.ParseTimestamp(out.Requests[i].ExpiresAt); err == nil {
			if b, err := lexical.ParseTimestamp(first.ExpiresAt); err == nil && a.Before(b) {
				first = &out.Requests[i]
			}
		}
	}
	out.What.Operations, out.What.Resources, out.What.ArgumentsDigest = first.Operations, first.Resources, first.ArgumentsDigest
	out.Why.Reason, out.Why.RequestedBy = first.Reason, &first.RequestedBy
	out.Cost.Requested, out.Until = first.Budget, first.ExpiresAt
}

// allowed is everything that a contract allows, for a gate about which nobody
// asked for less.
func allowed(grants []protocol.ResourceGrant) (operations, resources []string) {
	seen := map[string]bool{}
	for _, g := range grants {
		resources = append(resources, g.Resource)
		for _, op := range g.Operations {
			if !seen[op] {
				seen[op] = true
				operations = append(operations, op)
			}
		}
	}
	return operations, resources
}

// cost fills in the account's numbers.
func (w *waitingReader) cost(ctx context.Context, r *waitingRow, ref budget.Ref, out *Waiting) error {
	ledger, ok := w.ledgers[r.group]
	if !ok {
		var err error
		if ledger, err = w.v.ledger(ctx, r.tree, r.group, budget.Upward{}); err != nil {
			return err
		}
		w.ledgers[r.group] = ledger
	}
	account, ok := ledger.Account(ref)
	if !ok {
		return errStored
	}
	out.Cost.Limit = budget.ToBudget(account.Limit, account.Currency)
	out.Cost.Used = budget.UsageOf(account.Usage(), account.Currency)
	out.Cost.Remaining = budget.UsageOf(account.Remaining(), account.Currency)
	return nil
}
