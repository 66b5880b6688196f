package verify

import (
	"context"
	"fmt"

	"github.com/missionweave/server/internal/events"
)

// Rebuild makes everything that is derived from the logs again, Group by Group:
// projections, Policy Logs and timers; snapshots are dropped and come back by
// themselves. Commands may go on meanwhile. progress may be nil.
func Rebuild(ctx context.Context, store *events.Store, progress func(groupID string)) error {
	after := ""
	for {
		rows, err := store.Reader().Query(ctx, "SELECT group_id FROM groups WHERE group_id > $1 ORDER BY group_id LIMIT 500", after)
		if err != nil {
			return err
		}
		n := 0
		var ids []string
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				rows.Close()
				return err
			}
			ids = append(ids, id)
			n++
		}
		if err := rows.Err(); err != nil {
			return err
		}
		for _, id := range ids {
			if err := store.RebuildGroup(ctx, id); err != nil {
				return fmt.Errorf("rebuild Group %s: %w", id, err)
			}
			if progress != nil {
				progress(id)
			}
			after = id
		}
		if n == 0 {
			return nil
		}
	}
}
