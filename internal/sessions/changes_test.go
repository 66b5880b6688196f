package sessions_test

import (
	"maps"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/sessions"
)

func look(t *testing.T, w *world, since sessions.Look) *sessions.Changes {
	t.Helper()
	c, err := w.service.Changed(t.Context(), since)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestALookNamesTheSessionsOpenedSinceTheOneBefore(t *testing.T) {
	w := newWorld(t)
	one, two := w.agent(t, "one"), w.agent(t, "two")
	_, old := mustHello(t, w.service, one)
	first := look(t, w, sessions.Look{})
	if !first.Complete || len(first.Epochs) != 0 {
		t.Errorf("the first look: complete %v, %v", first.Complete, first.Epochs)
	}
	nothing := look(t, w, first.Look)
	if nothing.Complete || len(nothing.Epochs) != 0 {
		t.Errorf("without a change: complete %v, %v", nothing.Complete, nothing.Epochs)
	}
	if _, refusal := nothing.Holds(old); refusal != nil {
		t.Errorf("the session holds no more: %v", refusal)
	}
	_, renewed := mustHello(t, w.service, one, live(old))
	if c := look(t, w, nothing.Look); len(c.Epochs) != 0 {
		t.Errorf("a renewal counts as a change: %v", c.Epochs)
	}
	mustHello(t, w.service, one)
	_, other := mustHello(t, w.service, two)
	changed := look(t, w, nothing.Look)
	want := map[string]int64{one.Principal.ID: 2, two.Principal.ID: 1}
	if !maps.Equal(changed.Epochs, want) {
		t.Errorf("changes %v, want %v", changed.Epochs, want)
	}
	_, refusal := changed.Holds(renewed)
	expect(t, "a replaced session", refusal, protocol.CodeAuthStaleSession)
	if _, refusal := changed.Holds(other); refusal != nil {
		t.Errorf("the new session: %v", refusal)
	}
}

// A session that commits after a look, in a transaction that began before it, is in
// the next look although later ones were seen already.
func TestALookMissesNoSessionThatCommitsLate(t *testing.T) {
	w := newWorld(t)
	one, two := w.agent(t, "one"), w.agent(t, "two")
	mustHello(t, w.service, one)
	mustHello(t, w.service, two)
	start := look(t, w, sessions.Look{})

	late, err := w.Pool.BeginTx(t.Context(), pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Rollback(t.Context()) }()
	_, err = late.Exec(t.Context(), `UPDATE agent_sessions SET session_epoch = 2 WHERE agent_id = $1`, one.Principal.ID)
	if err != nil {
		t.Fatal(err)
	}
	mustHello(t, w.service, two)
	between := look(t, w, start.Look)
	if want := map[string]int64{two.Principal.ID: 2}; !maps.Equal(between.Epochs, want) {
		t.Errorf("changes %v, want %v", between.Epochs, want)
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := look(t, w, between.Look); c.Epochs[one.Principal.ID] != 2 {
		t.Errorf("the late one is missing: %v", c.Epochs)
	}
}

func TestALookFindsKeysAndCardsThatEnded(t *testing.T) {
	w := newWorld(t)
	one := w.agent(t, "one")
	_, id := mustHello(t, w.service, one)
	before := look(t, w, sessions.Look{})
	w.revokeCard(t, one)
	after := look(t, w, before.Look)
	if after.Revision == before.Revision {
		t.Error("the Registry's revision did not move")
	}
	_, refusal := after.Holds(id)
	expect(t, "a revoked card", refusal, protocol.CodeAuthRequired)
}
