package denials_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/denials"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

func TestRefusalsBecomeOneRowPerPeerReasonAndHour(t *testing.T) {
	t.Parallel()
	org := registrytest.NewEmpty(t)
	now := time.Date(2026, 7, 15, 8, 59, 0, 0, time.UTC)
	log := denials.New(org.Pool, func() time.Time { return now }, nil)
	failure := (&trust.Failure{Stage: trust.StageKey, Reason: trust.ReasonUnknownKey}).Error()
	for range 3 {
		log.Note("192.0.2.1", failure)
	}
	log.Note("192.0.2.2", protocol.NewError(protocol.CodeAuthForbidden, "policy"))
	now = now.Add(2 * time.Minute)
	log.Note("192.0.2.1", failure)
	for range 2 {
		if err := log.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	log.Note("192.0.2.1", failure)
	// Run writes what is left when it ends.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := log.Run(ctx); err != nil {
		t.Fatal(err)
	}
	type row struct {
		Hour                      int
		Peer, Code, Stage, Reason string
		Occurrences               int64
		First, Last               time.Time
	}
	rows, err := org.Pool.Query(t.Context(), `
		SELECT extract(hour FROM hour AT TIME ZONE 'UTC')::int, peer, code, stage, reason, occurrences, first_at, last_at
		FROM access_denials ORDER BY hour, peer`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		t.Fatal(err)
	}
	early, late := now.Add(-2*time.Minute), now
	want := []row{
		{8, "192.0.2.1", "AUTH_INVALID_SIGNATURE", "key-resolution", "unknown-key", 3, early, early},
		{8, "192.0.2.2", "AUTH_FORBIDDEN", "", "policy", 1, early, early},
		{9, "192.0.2.1", "AUTH_INVALID_SIGNATURE", "key-resolution", "unknown-key", 2, late, late},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAFloodOfPeersCostsBoundedMemory(t *testing.T) {
	t.Parallel()
	org := registrytest.NewEmpty(t)
	log := denials.New(org.Pool, nil, nil)
	refusal := protocol.NewError(protocol.CodeAuthRequired, "token")
	const peers = 5000
	for i := range peers {
		log.Note(fmt.Sprintf("peer-%d", i), refusal)
	}
	if err := log.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var rows, total, other int
	err := org.Pool.QueryRow(t.Context(), `
		SELECT count(*), sum(occurrences), coalesce(sum(occurrences) FILTER (WHERE peer = '*'), 0) FROM access_denials`).Scan(&rows, &total, &other)
	if err != nil || total != peers || rows > 4200 || other == 0 {
		t.Errorf("%d rows, %d refusals, %d of them without peer: %v", rows, total, other, err)
	}
}

func TestNothingIsLostWhenTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	org := registrytest.NewEmpty(t)
	log := denials.New(org.Pool, nil, nil)
	refusal := protocol.NewError(protocol.CodeAuthRequired, "token")
	log.Note("peer", refusal)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := log.Flush(gone); err == nil {
		t.Fatal("written without a database")
	}
	log.Note("peer", refusal)
	if err := log.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var total int
	if err := org.Pool.QueryRow(t.Context(), `SELECT sum(occurrences) FROM access_denials`).Scan(&total); err != nil || total != 2 {
		t.Errorf("%d written, want 2: %v", total, err)
	}
}
