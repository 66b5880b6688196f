package views

import (
	"context"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
)

// Attention lists what is stuck, over all Groups of Missions that have not
// ended, as the clock says now, whether or not a timer has recorded it:
//
//	lease_expired     a Coordinator lease that lapsed, owned work whose lease did, or
//	                  work that its owner had to start by now and has not (start_by)
//	deadline_missed   a Mission or an unfinished WorkItem past its deadline
//	budget_exhausted  an account with a used up dimension
//	work_stuck        owned work without a live owner, offered work without an open
//	                  offer, work that depends on work that failed or was cancelled
//	                  and that nothing stands in for
//
// A MissionOwner and a Coordinator see all of their Group, a root MissionOwner
// also of the Groups below; others see what is about WorkItems they own.
func (v *Views) Attention(ctx context.Context, reader protocol.Actor, p httpkit.Page) (List, error) {
	q := &query{columns: "convert_to(item::text, 'UTF8')", from: "(" + sqlAttention + ") stuck", key: []string{"group_id", "type", "id"}}
	q.args = []any{reader.Type, reader.ID}
	list, err := v.page(ctx, q, p)
	if err != nil {
		return List{}, err
	}
	return list, canonical(list.Items)
}

// sqlAttention finds the items for the reader $1 $2. Each id is unique within
// its type and Group.
const sqlAttention = `
WITH seen AS (
	SELECT m.tree_id, m.group_id, m.mission_id, bool_or(all_of) AS all_of FROM (
		SELECT b.tree_id, b.group_id, b.role IN ('mission_owner', 'coordinator') AS all_of FROM memberships b
		WHERE b.member_type = $1 AND b.member_id = $2 AND b.state = 'active'
	UNION ALL
		SELECT g.tree_id, g.group_id, true FROM missions r JOIN groups g ON g.root_mission_id = r.mission_id
		WHERE r.owner_type = $1 AND r.owner_id = $2) s
	JOIN missions m ON m.tree_id = s.tree_id AND m.group_id = s.group_id AND m.state IN ('active', 'awaiting_approval')
	GROUP BY m.tree_id, m.group_id, m.mission_id
), items AS (
	SELECT w.*, s.mission_id FROM seen s JOIN work_items w ON w.tree_id = s.tree_id AND w.group_id = s.group_id
	WHERE (s.all_of OR $1 = 'agent' AND w.owner_id = $2)
		AND w.state IN ('open', 'offered', 'queued', 'active', 'blocked', 'submitted')
), blocked AS (
	SELECT l.tree_id, l.group_id, l.work_item_id, max(l.expires_at) AS expires_at FROM items i
	JOIN leases l ON l.tree_id = i.tree_id AND l.group_id = i.group_id AND l.work_item_id = i.work_item_id AND l.type = 'blocked'
	WHERE i.state = 'blocked' AND NOT i.custody GROUP BY 1, 2, 3
), held AS (
	SELECT i.*, CASE i.state WHEN 'queued' THEN 'ownership' WHEN 'active' THEN 'execution' ELSE 'blocked' END AS lease_type,
		coalesce(CASE i.state WHEN 'queued' THEN i.ownership_expires WHEN 'active' THEN i.execution_expires ELSE b.expires_at END,
			i.updated_at) AS lapsed_at
	FROM items i LEFT JOIN blocked b USING (tree_id, group_id, work_item_id)
	WHERE i.state IN ('queued', 'active', 'blocked') AND NOT i.custody
)
SELECT group_id, type, id, jsonb_strip_nulls(jsonb_build_object('type', type, 'id', id, 'groupId', group_id, 'missionId', mission_id,
	'workItemId', work_item_id, 'state', state, 'reason', reason, 'subject', subject,
	'since', to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))) AS item
FROM (
	SELECT s.group_id, 'lease_expired' AS type, s.mission_id AS id, s.mission_id, NULL::text AS work_item_id, NULL::text AS state,
		'coordinator' AS reason, m.coordinator_id AS subject, m.coordinator_expires AS since
	FROM seen s JOIN missions m ON m.tree_id = s.tree_id AND m.group_id = s.group_id
	WHERE s.all_of AND m.coordinator_expires <= clock_timestamp()
UNION ALL
	SELECT group_id, 'lease_expired', work_item_id, mission_id, work_item_id, state, lease_type, owner_id, lapsed_at
	FROM held WHERE owner_live AND lapsed_at <= clock_timestamp()
UNION ALL
	SELECT h.group_id, 'lease_expired', h.work_item_id, h.mission_id, h.work_item_id, h.state, 'start_by', h.owner_id, o.start_by
	FROM held h CROSS JOIN LATERAL (SELECT (convert_from(l.document, 'UTF8')::jsonb ->> 'startBy')::timestamptz AS start_by FROM leases l
		WHERE l.tree_id = h.tree_id AND l.group_id = h.group_id AND l.work_item_id = h.work_item_id AND l.type = 'ownership' AND l.state = 'active') o
	WHERE h.state = 'queued' AND h.owner_live AND h.lapsed_at > clock_timestamp() AND o.start_by <= clock_timestamp()
		AND NOT EXISTS (SELECT FROM leases e WHERE e.tree_id = h.tree_id AND e.group_id = h.group_id AND e.work_item_id = h.work_item_id
			AND e.type = 'execution' AND (convert_from(e.document, 'UTF8')::jsonb ->> 'ownershipEpoch')::bigint = h.ownership_epoch)
UNION ALL
	SELECT group_id, 'work_stuck', work_item_id, mission_id, work_item_id, state, 'owner_gone', owner_id, updated_at
	FROM held WHERE NOT owner_live
UNION ALL
	SELECT s.group_id, 'deadline_missed', s.mission_id, s.mission_id, NULL, m.state, 'mission', NULL, m.deadline
	FROM seen s JOIN missions m ON m.tree_id = s.tree_id AND m.group_id = s.group_id
	WHERE s.all_of AND m.deadline <= clock_timestamp()
UNION ALL
	SELECT group_id, 'deadline_missed', work_item_id, mission_id, work_item_id, state, 'work_item', owner_id, deadline
	FROM items WHERE deadline <= clock_timestamp()
UNION ALL
	SELECT s.group_id, 'budget_exhausted', b.account_type || ' ' || b.account_id, s.mission_id,
		CASE b.account_type WHEN 'work_item' THEN b.account_id END, NULL, b.account_type, b.account_id, NULL
	FROM seen s JOIN budget_accounts b ON b.tree_id = s.tree_id AND b.group_id = s.group_id AND b.exhausted
	LEFT JOIN work_items w ON w.tree_id = b.tree_id AND w.group_id = b.group_id AND b.account_type = 'work_item' AND w.work_item_id = b.account_id
	WHERE (s.all_of OR $1 = 'agent' AND w.owner_id = $2) AND (w.state IS NULL OR w.state NOT IN ('verified', 'failed', 'cancelled'))
UNION ALL
	SELECT i.group_id, 'work_stuck', i.work_item_id, i.mission_id, i.work_item_id, i.state, 'no_open_offer', NULL, i.updated_at
	FROM items i WHERE i.state = 'offered' AND NOT EXISTS (SELECT FROM offers o WHERE o.tree_id = i.tree_id AND o.group_id = i.group_id
		AND o.work_item_id = i.work_item_id AND o.status = 'pending' AND o.expires_at > clock_timestamp())
UNION ALL
	SELECT i.group_id, 'work_stuck', i.work_item_id || ' ' || d.work_item_id, i.mission_id, i.work_item_id, i.state,
		'dependency_' || d.state, d.work_item_id, d.updated_at
	FROM items i
	CROSS JOIN LATERAL jsonb_array_elements_text(convert_from(i.document, 'UTF8')::jsonb #> '{contract,dependencyWorkItemIds}') AS needed(id)
	JOIN work_items d ON d.tree_id = i.tree_id AND d.group_id = i.group_id AND d.work_item_id = needed.id COLLATE "C"
	WHERE i.state IN ('open', 'offered', 'queued') AND d.state IN ('failed', 'cancelled')
		AND NOT EXISTS (SELECT FROM work_items r WHERE r.tree_id = d.tree_id AND r.group_id = d.group_id
			AND convert_from(r.document, 'UTF8')::jsonb #>> '{extensions,urn:missionweave:extension:work-item-links,data,replacesWorkItemId}'
				= d.work_item_id)
) found`
