package views

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
)

// List is one page: the stored documents, and the cursor of the next page, ""
// on the last one.
type List struct {
	Items [][]byte
	Next  string
}

// query builds one page query over a projection. Its order is total: the key is
// unique within what is read.
type query struct {
	columns string // document expression
	from    string
	where   []string
	args    []any
	key     []string // ordering columns, all text or all of one comparable type
}

func (q *query) arg(v any) string {
	q.args = append(q.args, v)
	return "$" + strconv.Itoa(len(q.args))
}

func (q *query) and(condition string, args ...any) *query {
	for _, a := range args {
		condition = strings.Replace(condition, "?", q.arg(a), 1)
	}
	q.where = append(q.where, condition)
	return q
}

// page runs the query for one page.
func (v *Views) page(ctx context.Context, q *query, p httpkit.Page) (List, error) {
	keys := "(" + strings.Join(q.key, ", ") + ")"
	if p.After != nil {
		marks := make([]string, len(p.After))
		for i, part := range p.After {
			marks[i] = q.arg(part)
		}
		q.where = append(q.where, keys+" > ("+strings.Join(marks, ", ")+")")
	}
	if len(q.where) == 0 {
		q.where = []string{"true"}
	}
	cursor := make([]string, len(q.key))
	for i, k := range q.key {
		cursor[i] = k + "::text"
	}
	sql := "SELECT " + q.columns + ", ARRAY[" + strings.Join(cursor, ", ") + "] FROM " + q.from +
		" WHERE " + strings.Join(q.where, " AND ") + " ORDER BY " + strings.Join(q.key, ", ") + " LIMIT " + q.arg(p.Limit+1)
	rows, err := v.pool.Query(ctx, sql, q.args...)
	if err != nil {
		return List{}, fmt.Errorf("views: %w", err)
	}
	var out List
	var document []byte
	var key, last []string
	_, err = pgx.ForEachRow(rows, []any{&document, &key}, func() error {
		if len(out.Items) == p.Limit {
			out.Next = httpkit.Cursor(last...)
			return nil
		}
		out.Items, last = append(out.Items, document), key
		document, key = nil, nil
		return nil
	})
	if err != nil {
		return List{}, fmt.Errorf("views: %w", err)
	}
	return out, nil
}

// one reads a single document; nil stands for none.
func (v *Views) one(ctx context.Context, sql string, args ...any) ([]byte, error) {
	var document []byte
	err := v.pool.QueryRow(ctx, sql, args...).Scan(&document)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("views: %w", err)
	}
	return document, nil
}

func (a *Access) scope(q *query) *query {
	return q.and("tree_id = ?", a.TreeID).and("group_id = ?", a.GroupID)
}

// Group is the normative Group document.
func (v *Views) Group(ctx context.Context, a *Access) ([]byte, error) {
	return v.one(ctx, `SELECT group_document FROM missions WHERE tree_id = $1 AND group_id = $2`, a.TreeID, a.GroupID)
}

// Mission is the Group's normative Mission document.
func (v *Views) Mission(ctx context.Context, a *Access) ([]byte, error) {
	return v.one(ctx, `SELECT document FROM missions WHERE tree_id = $1 AND group_id = $2`, a.TreeID, a.GroupID)
}

// GroupOf is the Group of a Mission, "" when there is no such Mission.
func (v *Views) GroupOf(ctx context.Context, missionID string) (string, error) {
	var groupID string
	err := v.pool.QueryRow(ctx, `SELECT group_id FROM groups WHERE mission_id = $1`, missionID).Scan(&groupID)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("views: %w", err)
	}
	return groupID, nil
}

// MissionFilter narrows Missions; empty members do not.
type MissionFilter struct{ State, Owner, Coordinator string }

// Missions lists the Missions that a reader may see: those of Groups in which
// it has a Membership that has not ended, and for a human all Missions of trees
// whose root it owns.
func (v *Views) Missions(ctx context.Context, reader protocol.Actor, f MissionFilter, p httpkit.Page) (List, error) {
	q := &query{columns: "m.document", from: "missions m", key: []string{"m.mission_id"}}
	if reader.Type != protocol.ActorService || !v.policy.MayReadGroups(reader) {
		q.and(`(EXISTS (SELECT FROM memberships b WHERE b.tree_id = m.tree_id AND b.group_id = m.group_id
		          AND b.member_type = ? AND b.member_id = ? AND (b.state = 'active'
		               OR b.state = 'provisional' AND b.provisional_expires > clock_timestamp()))
		     OR EXISTS (SELECT FROM groups g JOIN missions r ON r.mission_id = g.root_mission_id
		          WHERE g.mission_id = m.mission_id AND r.mission_id <> m.mission_id AND r.owner_type = ? AND r.owner_id = ?))`,
			reader.Type, reader.ID, reader.Type, reader.ID)
	}
	if f.State != "" {
		q.and("m.state = ?", f.State)
	}
	if f.Owner != "" {
		q.and("m.owner_id = ?", f.Owner)
	}
	if f.Coordinator != "" {
		q.and("m.coordinator_id = ?", f.Coordinator)
	}
	return v.page(ctx, q, p)
}

// Memberships lists the Group's Memberships; a provisional member sees its own.
func (v *Views) Memberships(ctx context.Context, a *Access, p httpkit.Page) (List, error) {
	q := a.scope(&query{columns: "document", from: "memberships", key: []string{"member_type", "member_id"}})
	if a.Provisional {
		q.and("member_type = ?", a.Reader.Type).and("member_id = ?", a.Reader.ID)
	}
	return v.page(ctx, q, p)
}

// Conversations lists the Group's Conversations.
func (v *Views) Conversations(ctx context.Context, a *Access, p httpkit.Page) (List, error) {
	q := a.scope(&query{columns: "document", from: "conversations", key: []string{"conversation_id"}})
	if ids := a.conversations(); ids != nil {
		q.and("conversation_id = ANY(?)", ids)
	}
	return v.page(ctx, q, p)
}

// Conversation tells whether a Conversation exists for the reader.
func (v *Views) Conversation(ctx context.Context, a *Access, conversationID string) (bool, error) {
	if a.Provisional && !a.own[conversationID] {
		return false, nil
	}
	doc, err := v.one(ctx, `SELECT document FROM conversations WHERE tree_id = $1 AND group_id = $2 AND conversation_id = $3`,
		a.TreeID, a.GroupID, conversationID)
	return doc != nil, err
}

// Messages lists the Messages of a Conversation in the order they were
// committed, as documents inside their Events; those the reader may not see are
// left out.
func (v *Views) Messages(ctx context.Context, a *Access, conversationID string, p httpkit.Page) (List, error) {
	q := &query{columns: "e.document", key: []string{"m.sequence"}, from: `messages m
		JOIN event_log e ON e.tree_id = m.tree_id AND e.group_id = m.group_id AND e.sequence = m.sequence
		LEFT JOIN messages t ON t.tree_id = m.tree_id AND t.group_id = m.group_id AND t.sequence = m.target_sequence`}
	q.and("m.tree_id = ?", a.TreeID).and("m.group_id = ?", a.GroupID).and("m.conversation_id = ?", conversationID).
		and("m.sequence >= ?", a.From)
	if !a.Redacted {
		q.and("NOT (m.kind IN ('message', 'correction') AND (m.redacted OR coalesce(t.redacted, false)))")
	}
	if p.After != nil {
		sequence, err := strconv.ParseInt(p.After[0], 10, 64)
		if err != nil {
			return List{}, httpkit.SchemaError("/after", "format")
		}
		p.After = nil
		q.and("m.sequence > ?", sequence)
	}
	list, err := v.page(ctx, q, p)
	if err != nil {
		return List{}, err
	}
	for i, event := range list.Items {
		if list.Items[i], err = messageOf(event); err != nil {
			return List{}, err
		}
	}
	return list, nil
}

// Artifacts lists the manifests published in the Group.
func (v *Views) Artifacts(ctx context.Context, a *Access, p httpkit.Page) (List, error) {
	q := a.scope(&query{columns: "document", from: "artifacts", key: []string{"artifact_id"}})
	if ids := a.items(); ids != nil {
		q.and("work_item_id = ANY(?)", ids)
	}
	return v.page(ctx, q, p)
}

// PolicyLog lists the Group's Policy Log in order.
func (v *Views) PolicyLog(ctx context.Context, a *Access, p httpkit.Page) (List, error) {
	q := a.scope(&query{columns: "document", from: "policy_log", key: []string{"sequence"}}).and("sequence >= ?", a.From)
	if a.Provisional {
		q.and("false")
	}
	if p.After != nil {
		sequence, err := strconv.ParseInt(p.After[0], 10, 64)
		if err != nil {
			return List{}, httpkit.SchemaError("/after", "format")
		}
		p.After = nil
		q.and("sequence > ?", sequence)
	}
	return v.page(ctx, q, p)
}

// WorkItems lists the Group's WorkItems.
func (v *Views) WorkItems(ctx context.Context, a *Access, state, owner string, p httpkit.Page) (List, error) {
	q := a.scope(&query{columns: "document", from: "work_items", key: []string{"work_item_id"}})
	if ids := a.items(); ids != nil {
		q.and("work_item_id = ANY(?)", ids)
	}
	if state != "" {
		q.and("state = ?", state)
	}
	if owner != "" {
		q.and("owner_id = ?", owner)
	}
	list, err := v.page(ctx, q, p)
	if err != nil {
		return List{}, err
	}
	return list, v.serve(ctx, a, list.Items)
}

// WorkItem is one WorkItem, nil when it does not exist for the reader.
func (v *Views) WorkItem(ctx context.Context, a *Access, workItemID string) ([]byte, error) {
	if a.Provisional && !a.offered[workItemID] {
		return nil, nil
	}
	document, err := v.one(ctx, `SELECT document FROM work_items WHERE tree_id = $1 AND group_id = $2 AND work_item_id = $3`,
		a.TreeID, a.GroupID, workItemID)
	if err != nil || document == nil {
		return nil, err
	}
	one := [][]byte{document}
	err = v.serve(ctx, a, one)
	return one[0], err
}

// Leases lists the Group's leases, the Coordinator's present one included, or
// those of one WorkItem.
func (v *Views) Leases(ctx context.Context, a *Access, workItemID string, p httpkit.Page) (List, error) {
	q := &query{columns: "document", key: []string{"lease_id"}}
	from := `SELECT lease_id, work_item_id, document FROM leases WHERE tree_id = $1 AND group_id = $2`
	q.args = []any{a.TreeID, a.GroupID}
	if workItemID == "" {
		from += ` UNION ALL SELECT (convert_from(coordinator_lease, 'UTF8')::jsonb ->> 'leaseId') COLLATE "C", NULL,
			coordinator_lease FROM missions WHERE tree_id = $1 AND group_id = $2`
	}
	q.from = "(" + from + ") l"
	if ids := a.items(); ids != nil {
		q.and("work_item_id = ANY(?)", ids)
	}
	if workItemID != "" {
		q.and("work_item_id = ?", workItemID)
	}
	list, err := v.page(ctx, q, p)
	if err != nil {
		return List{}, err
	}
	return list, v.presentState(ctx, list.Items)
}

// Offers lists an Agent's open offers over all Groups: each as it stands in its
// WorkItem, with the Mission, Group and WorkItem it is about and the version of
// the contract that it binds.
func (v *Views) Offers(ctx context.Context, reader protocol.Actor, p httpkit.Page) (List, error) {
	q := &query{
		columns: `convert_to((convert_from(o.document, 'UTF8')::jsonb || jsonb_build_object('groupId', o.group_id,
		'missionId', m.mission_id, 'workItemId', o.work_item_id,
		'contractVersion', convert_from(w.document, 'UTF8')::jsonb #> '{contract,contractVersion}'))::text, 'UTF8')`,
		from: `offers o JOIN memberships b ON b.tree_id = o.tree_id AND b.group_id = o.group_id
		AND b.member_type = 'agent' AND b.member_id = o.agent_id
		JOIN missions m ON m.tree_id = o.tree_id AND m.group_id = o.group_id
		JOIN work_items w ON w.tree_id = o.tree_id AND w.group_id = o.group_id AND w.work_item_id = o.work_item_id`,
		key: []string{"o.group_id", "o.offer_id"},
	}
	q.and("o.agent_id = ?", reader.ID).and("o.status = 'pending'").and("o.expires_at > clock_timestamp()").
		and("(b.state = 'active' OR b.state = 'provisional' AND b.provisional_expires > clock_timestamp())")
	if reader.Type != protocol.ActorAgent {
		q.and("false")
	}
	list, err := v.page(ctx, q, p)
	if err != nil {
		return List{}, err
	}
	return list, canonical(list.Items)
}
