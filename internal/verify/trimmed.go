package verify

import (
	"bytes"
	"context"
	"fmt"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// Trimmed logs (PROTOCOL.md 7.4). While the archived Events are in the database
// they are verified and folded like any others. Where an Organization's policy
// has ended their retention, the fold begins at the stored state, and that state
// is held against the signed Group Snapshot: its Event ids, its Policy Log and
// its sequence. The stateHash cannot be made again then, because a state does not
// keep what Messages say.

// trimmed prepares the state that the fold begins with: an empty one, unless
// archived Events are gone.
func (v *verifier) trimmed(ctx context.Context, id string, g *groupRow, state *groups.State,
	policy map[int64]events.PolicyEntry, documents map[string]*trust.Verified,
) error {
	if g.trimmed == 0 {
		return nil
	}
	var kept int64
	err := v.tx.QueryRow(ctx, "SELECT count(*) FROM archived_events WHERE tree_id = $1 AND group_id = $2 AND sequence <= $3",
		g.tree, id, g.trimmed).Scan(&kept)
	if err != nil || kept == g.trimmed {
		return err
	}
	if kept > 0 {
		v.differ(id, g.trimmed, "archived_events", "%d of %d Events are there; all or none must be", kept, g.trimmed)
		return errStop
	}
	if g.snapshot == nil {
		v.differ(id, g.trimmed, "snapshots", "the log is trimmed and has no stored state")
		return errStop
	}
	restored, err := groups.ParseState(g.snapshot)
	if err != nil || restored.Head < g.trimmed {
		v.differ(id, g.trimmed, "snapshots", "the stored state does not reach the trimmed sequence (%v)", err)
		return errStop
	}
	if !v.restores(ctx, id, g, restored) {
		return errStop
	}
	restored.TreeID = state.TreeID
	*state = *restored
	v.report.Trimmed += g.trimmed
	return v.onlineBefore(ctx, id, g, state, policy, documents)
}

// restores holds a stored state against the signed snapshot that the online log
// begins with.
func (v *verifier) restores(ctx context.Context, id string, g *groupRow, state *groups.State) bool {
	page, err := v.eventRows(ctx, id, g.tree, g.trimmed, 1)
	if err != nil || len(page) != 1 || page[0].kind != "group.snapshot.created" || page[0].sequence != g.trimmed+1 {
		v.differ(id, g.trimmed+1, "events", "a trimmed log does not go on with its signed snapshot (%v)", err)
		return false
	}
	event := v.event(id, &page[0])
	if event == nil {
		return false
	}
	verified, failure := trust.Verify(protocol.KindGroupSnapshot, event.Value.Member("payload").Member("snapshot"), v.view.Evidence)
	if failure != nil {
		v.differ(id, g.trimmed+1, "events", "%s", failure)
		return false
	}
	var doc protocol.GroupSnapshot
	if err := strictjson.Decode(verified.Value, &doc); err != nil {
		v.differ(id, g.trimmed+1, "events", "the signed snapshot does not read: %v", err)
		return false
	}
	same := doc.GroupID == id && doc.ThroughSequence == g.trimmed && int64(len(doc.EventIDs)) == g.trimmed
	for i := 0; same && i < len(doc.EventIDs); i++ {
		at, _ := state.EventAt(int64(i) + 1)
		same = at == doc.EventIDs[i]
	}
	if !same {
		v.differ(id, g.trimmed, "snapshots", "the stored state has other Events than the signed snapshot")
		return false
	}
	signed, err := strictjson.Marshal(doc.PolicyLog)
	if err != nil {
		return false
	}
	// The Policy Log of the state may be longer: archival itself adds to it.
	folded, err := strictjson.Marshal(state.PolicyLog[:min(len(state.PolicyLog), len(doc.PolicyLog))])
	if err != nil || !bytes.Equal(signed, folded) {
		v.differ(id, g.trimmed, "snapshots", "the stored state has another Policy Log than the signed snapshot (%v)", err)
		return false
	}
	v.gone[id] = doc.EventIDs
	return true
}

// isGone tells whether an Event was trimmed and is not kept any more.
func (v *verifier) isGone(group string, sequence int64, eventID string) bool {
	ids := v.gone[group]
	return sequence >= 1 && sequence <= int64(len(ids)) && ids[sequence-1] == eventID
}

// archived checks how far a log is trimmed against what the fold says.
func (v *verifier) archived(id string, g *groupRow, state *groups.State) {
	if g.trimmed == 0 {
		return
	}
	if !state.Archived() || state.Snapshot == nil || g.trimmed > state.Snapshot.Doc.ThroughSequence {
		v.differ(id, g.trimmed, "groups", "trimmed_sequence is past what a signed snapshot stands for")
	}
	if g.snapshotAt == nil || *g.snapshotAt < g.trimmed {
		v.differ(id, g.trimmed, "snapshots", "no stored state covers what was trimmed")
	}
}

// onlineBefore verifies the online Events that a stored state already holds, and
// takes over the Policy Log that it brings along.
func (v *verifier) onlineBefore(ctx context.Context, id string, g *groupRow, state *groups.State,
	policy map[int64]events.PolicyEntry, documents map[string]*trust.Verified,
) error {
	for at := g.trimmed; at < state.Head; {
		page, err := v.eventRows(ctx, id, g.tree, at, 500)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			v.differ(id, at+1, "events", "the log ends before the stored state")
			return errStop
		}
		for i := range page {
			r := &page[i]
			if r.sequence > state.Head {
				break
			}
			v.report.Events++
			if want, _ := state.EventAt(r.sequence); r.sequence != at+1 || want != urn(r.id) {
				v.differ(id, r.sequence, "events", "is not the Event that the stored state has there")
				return errStop
			}
			if verified := v.event(id, r); verified != nil {
				v.collect(id, r.sequence, verified.Value.Member("payload"), documents)
			}
			at = r.sequence
		}
	}
	for i := range state.PolicyLog {
		details, err := state.PolicyLog[i].Details.Value()
		if err != nil {
			return fmt.Errorf("policy log of the stored state: %w", err)
		}
		sequence, _ := details.Member("sequence").Int()
		if policy[sequence], err = events.NewPolicyEntry(g.tree, id, sequence, &state.PolicyLog[i]); err != nil {
			return err
		}
	}
	return nil
}
