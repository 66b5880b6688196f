package scenario

import (
	"bytes"
	"os/exec"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func (c *Course) order() []string {
	var names []string
	for _, t := range c.Turns {
		names = append(names, t.Fault)
	}
	return names
}

func TestASeedDecidesOrderMissionsAndVictims(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		a, b := NewCourse(seed), NewCourse(seed)
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("seed %d plays %v and %v", seed, a, b)
		}
		want := map[string]bool{}
		for _, f := range faults() {
			want[f.name] = true
		}
		for _, turn := range a.Turns {
			if !want[turn.Fault] || len(turn.Draws) != drawn || turn.Mission != "billing" && turn.Mission != "search" {
				t.Fatalf("turn %+v", turn)
			}
			delete(want, turn.Fault)
		}
		if len(want) > 0 {
			t.Fatalf("not in the course: %v", want)
		}
	})
}

func TestSeedsDiffer(t *testing.T) {
	orders, missions, draws := map[string]bool{}, map[string]bool{}, map[int]bool{}
	for seed := range uint64(20) {
		c := NewCourse(seed)
		orders[c.Turns[0].Fault] = true
		for _, turn := range c.Turns {
			if turn.Fault == "Worker killed" {
				missions[turn.Mission], draws[turn.Draws[0]] = true, true
			}
		}
	}
	if len(orders) < 5 || len(missions) != 2 || len(draws) < 10 {
		t.Errorf("20 seeds begin with %d faults, hit %d Missions and draw %d victims", len(orders), len(missions), len(draws))
	}
}

// A seed that is written down somewhere must mean the same tomorrow.
func TestTheCourseOfSeedSevenStaysWhatItIs(t *testing.T) {
	want := []string{
		"Database restarted", "Duplicate and colliding Commands", "Worker killed", "Coordinator lost", "Lease expired", "High-priority arrival",
		"Authority killed", "Duplicates on the bus", "Worker disconnected", "Duplicate delivery", "Stale epochs", "NATS lost", "Change request",
	}
	if got := NewCourse(7).order(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestWhatIsMissingIsNotRunAndSaysWhy(t *testing.T) {
	program := func(...string) *exec.Cmd { return nil }
	for _, tc := range []struct {
		name   string
		opt    Options
		notRun []string
	}{
		{"a server of somebody else's", Options{Command: program}, []string{"Authority killed", "Database restarted", "Duplicates on the bus", "NATS lost"}},
		{"neither a server nor a program", Options{}, []string{
			"Authority killed", "Database restarted", "Duplicate delivery", "Duplicates on the bus", "High-priority arrival", "NATS lost", "Worker killed",
		}},
	} {
		st := &stage{opt: tc.opt}
		var got []string
		for _, f := range faults() {
			if st.why(f.needs) != "" {
				got = append(got, f.name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tc.notRun) {
			t.Errorf("%s: %q is not run, want %q", tc.name, got, tc.notRun)
		}
	}
}

func TestWhatWasNotRunIsPrintedAndIsNoCheck(t *testing.T) {
	var out bytes.Buffer
	line := newTimeline(&out, 0, false)
	st := &stage{choose: newChooser(1), suite: suite{notRun: []NotRun{{Fault: "NATS lost", Why: "there is none"}}, course: NewCourse(1)}}
	r := st.report(0)
	line.omitted(r)
	if r.Passed != 0 || r.Failed != 0 || len(r.Checks) != 0 || len(r.NotRun) != 1 {
		t.Errorf("%+v", r)
	}
	if want := "  not run NATS lost: there is none\nthe suite is incomplete: nothing is known about what was not run\n"; out.String() != want {
		t.Errorf("%q", &out)
	}
}
