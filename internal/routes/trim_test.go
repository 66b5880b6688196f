package routes_test

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/testwait"
)

// archived makes an archived Group with some Messages and returns it with the
// sequence that its snapshot reaches.
func archived(t *testing.T, s *testkit.Stack) (*testkit.Mission, int64) {
	t.Helper()
	m := s.NewMission()
	for range 5 {
		m.Say("something")
	}
	cancel(t, s, m)
	archival := s.As("archival")
	a, signed := archive(t, s, archival, draft(t, s, archival, m.GroupID))
	if a.Status != 201 {
		t.Fatalf("archive: %d %s", a.Status, a.Body)
	}
	return m, number(t, parse(t, signed).Member("throughSequence"))
}

func trimmer(t *testing.T, s *testkit.Stack, hooks events.Hooks) *events.Store {
	t.Helper()
	store, err := events.Open(t.Context(), s.Settings.DatabaseURL, events.Options{OrganizationID: "x", TrimChunk: 2, Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

func queued(t *testing.T, s *testkit.Stack) (n int) {
	t.Helper()
	if err := s.Pool.QueryRow(t.Context(), "SELECT count(*) FROM trim_queue").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTrimmingThatIsInterruptedLosesNothing(t *testing.T) {
	s := testkit.Start(t)
	m, through := archived(t, s)
	path := client.Path("v1", "groups", m.GroupID, "events")
	token := s.Token(m.Owner)
	if queued(t, s) != 1 || trimmed(t, s, m.GroupID) != 0 {
		t.Fatal("the archived Group does not wait for trimming, or was trimmed without being asked for")
	}
	set := func(sql string, args ...any) {
		t.Helper()
		if _, err := s.Pool.Exec(t.Context(), sql, append(args, m.GroupID)...); err != nil {
			t.Fatal(err)
		}
	}

	// What was not published stays where publishers look for it.
	testwait.Until(t, "publication", func() bool {
		var published bool
		if err := s.Pool.QueryRow(t.Context(), "SELECT published_sequence = head_sequence FROM groups WHERE group_id = $1", m.GroupID).Scan(&published); err != nil {
			t.Fatal(err)
		}
		return published
	})
	s.Stop("authority") // nobody publishes meanwhile
	set("UPDATE groups SET published_sequence = $1 WHERE group_id = $2", through-1)
	if n, err := trimmer(t, s, events.Hooks{}).TrimArchived(t.Context()); n != 0 || err != nil || trimmed(t, s, m.GroupID) != 0 {
		t.Errorf("%d Groups trimmed before publication, %v", n, err)
	}
	set("UPDATE groups SET published_sequence = head_sequence WHERE $1 AND group_id = $2", true)

	crash := errors.New("the power is gone")
	store := trimmer(t, s, events.Hooks{AfterTrim: func(_ string, to int64) error {
		if to >= 4 {
			return crash
		}
		return nil
	}})
	if _, err := store.TrimArchived(t.Context()); !errors.Is(err, crash) {
		t.Fatalf("%v", err)
	}
	if at := trimmed(t, s, m.GroupID); at != 4 || queued(t, s) != 1 {
		t.Errorf("trimmed to %d", at)
	}
	sound(t, s)
	_, url := s.Replica("next")
	get := func(after string) testkit.Answer {
		return s.Do(testkit.Request{Method: "GET", URL: url + path + "?after=" + after, Token: token})
	}
	get("3").Refused(t, 410, "CURSOR_TOO_OLD")
	if a := get("4"); a.Status != 200 || number(t, listed(a.Value(t).Member("items"))[0].Member("sequence")) != 5 {
		t.Errorf("what is still there: %d %s", a.Status, a.Body)
	}

	// A stored state of another program: the archive makes it again.
	set("UPDATE snapshots SET format = $1 WHERE group_id = $2", 99)
	again := trimmer(t, s, events.Hooks{})
	if n, err := again.TrimArchived(t.Context()); n != 1 || err != nil {
		t.Fatalf("%d Groups, %v", n, err)
	}
	if at := trimmed(t, s, m.GroupID); at != through || queued(t, s) != 0 {
		t.Errorf("trimmed to %d, want %d", at, through)
	}
	sound(t, s)
	if n, err := again.TrimArchived(t.Context()); n != 0 || err != nil {
		t.Errorf("once more: %d Groups, %v", n, err)
	}
}

// One Group that cannot be trimmed holds up none behind it.
func TestAGroupInTroubleKeepsNoOtherFromBeingTrimmed(t *testing.T) {
	s := testkit.Start(t)
	through := map[string]int64{}
	for range 3 {
		m, at := archived(t, s)
		through[m.GroupID] = at
	}
	trouble := errors.New("a bad sector")
	first := slices.Min(slices.Collect(maps.Keys(through))) // they are taken in order of their ids
	store := trimmer(t, s, events.Hooks{AfterTrim: func(group string, _ int64) error {
		if group == first {
			return trouble
		}
		return nil
	}})
	testwait.Until(t, "the others are trimmed", func() bool {
		if _, err := store.TrimArchived(t.Context()); err != nil && !errors.Is(err, trouble) {
			t.Fatal(err)
		}
		return queued(t, s) == 1
	})
	for group, at := range through {
		if got := trimmed(t, s, group); group != first && got != at {
			t.Errorf("trimmed to %d, want %d", got, at)
		}
	}
}

func TestReplicasTrimTogether(t *testing.T) {
	s := testkit.Start(t)
	want := map[string]int64{}
	for range 3 {
		m, through := archived(t, s)
		want[m.GroupID] = through
	}
	testwait.Until(t, "trimming", func() bool {
		var together sync.WaitGroup
		for range 3 {
			store := trimmer(t, s, events.Hooks{})
			together.Go(func() {
				if _, err := store.TrimArchived(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		together.Wait()
		return queued(t, s) == 0
	})
	for id, through := range want {
		if at := trimmed(t, s, id); at != through {
			t.Errorf("trimmed to %d, want %d", at, through)
		}
	}
	sound(t, s)
}
