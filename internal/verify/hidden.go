package verify

import (
	"bytes"
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// Which Events a Command's actor could not see. The row of a receipt keeps their
// positions, and a replay over WebSocket leaves them out: a wrong one would show
// an Event to somebody who may not see it. Visibility is judged as it was when
// the Command was decided: by the Group's state after all its Events.

// acted is a Command whose Events in one Group are being folded.
type acted struct {
	hash   []byte
	actor  protocol.Actor
	events []*groups.Event
}

// follow notes the Event that is folded next; it settles the Command before it
// when another begins.
// actors names who issued the Commands of Events that were propagated here.
func (a *acted) follow(v *verifier, state *groups.State, command []byte, ev *groups.Event, actors map[string]protocol.Actor) {
	if !bytes.Equal(command, a.hash) {
		a.settle(v, state)
		*a = acted{hash: command}
	}
	if command == nil {
		return
	}
	if ev.Cause.Type == "command" {
		a.actor = ev.Actor
	} else if actor, ok := actors[string(command)]; ok {
		a.actor = actor
	}
	a.events = append(a.events, ev)
}

// settle judges the Events of a Command that is folded.
func (a *acted) settle(v *verifier, state *groups.State) {
	if len(a.events) == 0 || a.actor.Type == protocol.ActorService || a.actor.ID == "" {
		return
	}
	for _, ev := range a.events {
		at, err := lexical.ParseTimestamp(ev.OccurredAt)
		if err != nil {
			continue // the Event does not verify, and that was said
		}
		if !groups.Visible(state, a.actor, ev, at.Time()) {
			v.hidden[ev.EventID] = true
		}
	}
}

// actorsOf finds who issued Commands, by signing hash.
func (v *verifier) actorsOf(ctx context.Context, hashes [][]byte) (map[string]protocol.Actor, error) {
	out := map[string]protocol.Actor{}
	if len(hashes) == 0 {
		return out, nil
	}
	rows, err := v.tx.Query(ctx, `SELECT signing_hash, actor_type, actor_id FROM receipts WHERE signing_hash = ANY ($1)`, hashes)
	if err != nil {
		return nil, err
	}
	var hash []byte
	var actor protocol.Actor
	_, err = pgx.ForEachRow(rows, []any{&hash, &actor.Type, &actor.ID}, func() error {
		out[string(hash)] = actor
		return nil
	})
	return out, err
}

// checkHidden compares the hidden positions of a receipt with what its actor
// could see.
func (v *verifier) checkHidden(group, name string, r *receiptRow, answer *receiptJSON) {
	stored := map[int32]bool{}
	for _, i := range r.hidden {
		stored[i] = true
	}
	for i, ev := range answer.Events {
		if v.isGone(ev.GroupID, ev.Sequence, ev.EventID) { // what its actor could see cannot be told any more
			delete(stored, int32(i)) //nolint:gosec // at most 10,000
			continue
		}
		if want := v.hidden[ev.EventID]; stored[int32(i)] != want { //nolint:gosec // at most 10,000
			v.differ(group, ev.Sequence, name, "hidden is %v for Event %s, the fold says %v", stored[int32(i)], ev.EventID, want) //nolint:gosec // as above
		}
		delete(stored, int32(i)) //nolint:gosec // as above
	}
	if len(stored) > 0 {
		v.differ(group, 0, name, "hidden names positions that the receipt does not have")
	}
}
