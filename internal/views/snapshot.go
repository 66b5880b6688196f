package views

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
)

// Snapshot is the signed snapshot of an archived Group in its exact bytes, nil
// while the Group is not archived.
func (v *Views) Snapshot(ctx context.Context, a *Access) ([]byte, error) {
	if a.Provisional {
		return nil, nil
	}
	return v.one(ctx, `SELECT document FROM group_documents
		WHERE tree_id = $1 AND group_id = $2 AND type = 'group_snapshot'`, a.TreeID, a.GroupID)
}

// CursorTooOld answers a reader that asks for Events before the online log: it
// names the signed snapshot that stands for them (COMMANDS.md 8.11).
func (v *Views) CursorTooOld(ctx context.Context, a *Access) *protocol.Error {
	answer := protocol.NewError(protocol.CodeCursorTooOld, "").WithGroup(a.GroupID)
	var id, hash string
	var through int64
	// group.snapshot.created is the first Event that is never trimmed.
	err := v.pool.QueryRow(ctx, `SELECT d.id, d.status, (convert_from(d.document, 'UTF8')::jsonb ->> 'throughSequence')::bigint
		FROM group_documents d WHERE d.tree_id = $1 AND d.group_id = $2 AND d.type = 'group_snapshot'`,
		a.TreeID, a.GroupID).Scan(&id, &hash, &through)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return answer
	case err != nil:
		return protocol.Internal(fmt.Errorf("views: snapshot: %w", err))
	}
	return answer.WithSnapshot(hash).WithDetail("snapshotId", id).WithDetail("throughSequence", through).
		WithDetail("snapshotUri", httpkit.BaseURL(ctx)+"/v1/groups/"+url.PathEscape(a.GroupID)+"/snapshot")
}

// Trimmed is the last sequence that is no longer in the online log, whatever the
// reader may still see.
func (v *Views) Trimmed(ctx context.Context, a *Access) (sequence int64, err error) {
	err = v.pool.QueryRow(ctx, `SELECT trimmed_sequence FROM groups WHERE tree_id = $1 AND group_id = $2`,
		a.TreeID, a.GroupID).Scan(&sequence)
	if err != nil {
		return 0, fmt.Errorf("views: trimmed: %w", err)
	}
	return sequence, nil
}
