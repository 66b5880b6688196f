// Package views answers reads from the projections in Postgres.
//
// The hazard it guards against is disclosure: a reader learns of a Group, and
// of an Event in it, exactly what COMMANDS.md 3.7 lets it learn. Every read of
// a Group begins with Enter, which alone decides whether the reader may know
// the Group at all; whoever may not gets the answer of a Group that does not
// exist. What is inside is then filtered by the Access that Enter returned, so
// a read cannot forget to ask.
package views

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/protocol"
)

// Policy is what the Organization says about readers: services have no Memberships.
type Policy interface {
	MayReadGroups(service protocol.Actor) bool
	// MayOpenGates tells whether a service may agree to starts for which nobody has
	// to be human.
	MayOpenGates(service protocol.Actor) bool
	// ExecutionRule names the Organization's rule that asks for an approval before
	// work under a contract starts, "" for none. It asks for none where the risk is
	// none of GatedRisks and the contract leaves it to the Organization.
	ExecutionRule(c *protocol.WorkContract) string
	GatedRisks() []string
}

// Views reads projections.
type Views struct {
	pool   *pgxpool.Pool
	policy Policy
}

// New makes Views over a pool of readers.
func New(pool *pgxpool.Pool, policy Policy) *Views { return &Views{pool: pool, policy: policy} }

// MayReadGroups tells whether a service may read every Group, as those that
// archive them do.
func (v *Views) MayReadGroups(service protocol.Actor) bool { return v.policy.MayReadGroups(service) }

// Access is what a reader may see of a Group at the moment of Enter. It goes
// stale with every change of the reader's Membership.
type Access struct {
	TreeID    int64
	GroupID   string
	MissionID string
	Head      int64
	Trimmed   int64
	Reader    protocol.Actor
	// Role is "" for a service and for a root MissionOwner in a descendant Group.
	Role string
	// Epoch is the reader's Membership Epoch, 0 without a Membership.
	Epoch int64
	// From is the first sequence that the reader may see, at least 1.
	From int64
	// Redacted tells that the reader sees redacted Messages too.
	Redacted bool
	// Manages tells that the reader is the Group's MissionOwner or Coordinator.
	Manages bool
	// Provisional restricts the reader to its offers and what belongs to them.
	Provisional bool
	// Until is when a provisional Membership lapses.
	Until time.Time

	offered map[string]bool // WorkItems offered to a provisional member
	own     map[string]bool // their Conversations
}

const (
	roleMissionOwner = "mission_owner"
	roleCoordinator  = "coordinator"
	stateEnded       = "ended"
	stateProvisional = "provisional"
)

// Enter decides whether reader may see a Group. GROUP_NOT_FOUND stands for an
// absent Group and for an undisclosed one alike; MEMBERSHIP_REQUIRED answers a
// member of the past.
func (v *Views) Enter(ctx context.Context, reader protocol.Actor, groupID string) (*Access, *protocol.Error) {
	a := &Access{GroupID: groupID, Reader: reader, From: 1}
	var (
		state, role        *string
		epoch, start       *int64
		expires            *time.Time
		now                time.Time
		ownerType, ownerID *string
		rootMissionID      string
	)
	err := v.pool.QueryRow(ctx, `
		SELECT g.tree_id, g.mission_id, g.root_mission_id, g.head_sequence, g.trimmed_sequence, clock_timestamp(),
		       m.state, m.role, m.epoch, m.visibility_start, m.provisional_expires,
		       root.owner_type, root.owner_id
		FROM groups g
		LEFT JOIN memberships m ON m.tree_id = g.tree_id AND m.group_id = g.group_id
		                       AND m.member_type = $2 AND m.member_id = $3
		LEFT JOIN missions root ON root.mission_id = g.root_mission_id
		WHERE g.group_id = $1`, groupID, reader.Type, reader.ID).Scan(
		&a.TreeID, &a.MissionID, &rootMissionID, &a.Head, &a.Trimmed, &now,
		&state, &role, &epoch, &start, &expires, &ownerType, &ownerID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, protocol.NewError(protocol.CodeGroupNotFound, "")
	}
	if err != nil {
		return nil, protocol.Internal(fmt.Errorf("views: enter: %w", err))
	}
	switch {
	case reader.Type == protocol.ActorService:
		if !v.policy.MayReadGroups(reader) {
			return nil, protocol.NewError(protocol.CodeGroupNotFound, "")
		}
		a.Redacted = true
		return a, nil
	case ownerID != nil && *ownerID == reader.ID && *ownerType == reader.Type && rootMissionID != a.MissionID:
		// The root MissionOwner may read every descendant Group in full, whatever
		// its Membership there lets it see.
		a.Redacted = true
		return a, nil
	case state == nil:
		return nil, protocol.NewError(protocol.CodeGroupNotFound, "")
	}
	lapsed := *state == stateProvisional && expires != nil && !now.Before(*expires)
	if *state == stateEnded || lapsed {
		return nil, protocol.NewError(protocol.CodeMembershipRequired, "").WithGroup(groupID)
	}
	a.Role, a.Epoch, a.From = *role, *epoch, max(*start, 1)
	a.Manages = a.Role == roleMissionOwner || a.Role == roleCoordinator
	a.Redacted = a.Manages
	if *state == stateProvisional {
		a.Provisional = true
		if expires != nil {
			a.Until = expires.UTC()
		}
		if err := v.offeredTo(ctx, a); err != nil {
			return nil, protocol.Internal(err)
		}
	}
	return a, nil
}

// ReadsAll tells that the reader may see every Event of the Group, the redacted
// ones too: its MissionOwner, the root MissionOwner, or a service that archives.
func (a *Access) ReadsAll() bool {
	return a.Redacted && a.From <= 1 && !a.Provisional && (a.Role == "" || a.Role == roleMissionOwner)
}

// offeredTo finds what a provisional member may see besides itself.
func (v *Views) offeredTo(ctx context.Context, a *Access) error {
	a.offered, a.own = map[string]bool{}, map[string]bool{}
	rows, err := v.pool.Query(ctx, `
		SELECT DISTINCT w.work_item_id, w.conversation_id FROM offers o
		JOIN work_items w ON w.tree_id = o.tree_id AND w.group_id = o.group_id AND w.work_item_id = o.work_item_id
		WHERE o.tree_id = $1 AND o.group_id = $2 AND o.agent_id = $3`, a.TreeID, a.GroupID, a.Reader.ID)
	if err != nil {
		return fmt.Errorf("views: offers: %w", err)
	}
	var item, conversation string
	_, err = pgx.ForEachRow(rows, []any{&item, &conversation}, func() error {
		a.offered[item], a.own[conversation] = true, true
		return nil
	})
	if err != nil {
		return fmt.Errorf("views: offers: %w", err)
	}
	return nil
}

// items and conversations are the ids that a provisional member is restricted
// to; nil lets everything through.
func (a *Access) items() []string         { return restricted(a.Provisional, a.offered) }
func (a *Access) conversations() []string { return restricted(a.Provisional, a.own) }

func restricted(on bool, ids map[string]bool) []string {
	if !on {
		return nil
	}
	out := make([]string, 0, len(ids))
	for id := range ids {
		out = append(out, id)
	}
	return out
}
