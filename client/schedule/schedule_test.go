package schedule_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/missionweave/server/client/schedule"
)

var start = time.Date(2026, 7, 1, 8, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

func item(group, id string, urgency schedule.Urgency, since int) schedule.Item {
	return schedule.Item{ID: id, Group: group, Urgency: urgency, Since: at(since)}
}

func ids(runs []schedule.Run) string {
	out := ""
	for _, r := range runs {
		out += r.ID + " "
	}
	return out
}

func TestWithinAGroupUrgencyThenDeadlineThenArrivalDecides(t *testing.T) {
	s := schedule.New(schedule.Policy{Slots: 1})
	s.Put(item("g", "normal", schedule.Normal, 0), at(0))
	s.Put(item("g", "critical", schedule.Critical, 1), at(1))
	soon := item("g", "soon", schedule.High, 2)
	soon.Deadline = at(500)
	later := item("g", "later", schedule.High, 1)
	later.Deadline = at(900)
	s.Put(later, at(2))
	s.Put(soon, at(2))
	s.Put(item("g", "whenever", schedule.High, 0), at(2))
	got := ""
	for _, i := range s.Waiting("g") {
		got += i.ID + " "
	}
	if want := "critical soon later whenever normal "; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
}

func TestUrgencyOfOneGroupDoesNotPushAnotherAside(t *testing.T) {
	s := schedule.New(schedule.Policy{Slots: 2})
	for i := range 3 {
		s.Put(item("loud", fmt.Sprint("loud", i), schedule.Critical, 0), at(0))
		s.Put(item("quiet", fmt.Sprint("quiet", i), schedule.Routine, 0), at(0))
	}
	if got := ids(s.Start(at(0))); got != "loud0 quiet0 " {
		t.Errorf("started %q, want one of each", got)
	}
}

func TestAQuotaLeavesSlotsToOthers(t *testing.T) {
	s := schedule.New(schedule.Policy{Slots: 3})
	s.SetShare("big", schedule.Share{Weight: 100, Quota: 2}, at(0))
	for i := range 5 {
		s.Put(item("big", fmt.Sprint("b", i), schedule.Normal, 0), at(0))
	}
	if got := ids(s.Start(at(0))); got != "b0 b1 " {
		t.Errorf("started %q, want two", got)
	}
}

func TestAGroupThatWasIdleHasSavedUpNothing(t *testing.T) {
	s := schedule.New(schedule.Policy{Slots: 1})
	now := 0
	run := func(n int) (counts map[string]int) {
		counts = map[string]int{}
		for range n {
			for _, r := range s.Start(at(now)) {
				counts[r.Group]++
				now += 10
				s.Release(r.ID, false, at(now))
			}
		}
		return counts
	}
	for i := range 100 {
		s.Put(item("busy", fmt.Sprint("a", i), schedule.Normal, 0), at(0))
	}
	run(50)
	for i := range 100 {
		s.Put(item("late", fmt.Sprint("l", i), schedule.Normal, now), at(now))
	}
	if counts := run(20); counts["busy"] < 9 || counts["late"] < 9 {
		t.Errorf("after the arrival %v, want halves", counts)
	}
}

func TestAHigherClassGoesFirstAndPreemptsAtACheckpoint(t *testing.T) {
	s := schedule.New(schedule.Policy{Slots: 2})
	s.Put(item("a", "a1", schedule.Critical, 0), at(0))
	s.Put(item("b", "b1", schedule.Normal, 0), at(0))
	s.Start(at(0))
	s.Put(item("b", "b2", schedule.Routine, 1), at(1))
	if got := s.Preempt(at(1)); len(got) != 0 {
		t.Fatalf("an equal arrival preempts %s", ids(got))
	}
	s.SetShare("c", schedule.Share{Class: 1}, at(2))
	s.Put(item("c", "c1", schedule.Routine, 2), at(2))
	got := s.Preempt(at(2))
	if ids(got) != "b1 " {
		t.Fatalf("preempted %q, want the less urgent b1", ids(got))
	}
	if again := s.Preempt(at(3)); len(again) != 0 {
		t.Errorf("asked twice: %s", ids(again))
	}
	s.Release("b1", true, at(4))
	if got := ids(s.Start(at(4))); got != "c1 " {
		t.Errorf("the slot went to %q", got)
	}
	s.Release("c1", false, at(5))
	if got := ids(s.Start(at(5))); got != "b1 " {
		t.Errorf("resumed %q, want b1, which has waited longest", got)
	}
}

func TestWithinAGroupTheMoreUrgentPreempts(t *testing.T) {
	s := schedule.New(schedule.Policy{Slots: 1})
	s.Put(item("a", "slow", schedule.Normal, 0), at(0))
	s.Start(at(0))
	s.Put(item("a", "hot", schedule.Critical, 1), at(1))
	if got := ids(s.Preempt(at(1))); got != "slow " {
		t.Errorf("preempted %q", got)
	}
}

func TestAWorkItemIsPreemptedABoundedNumberOfTimes(t *testing.T) {
	s := schedule.New(schedule.Policy{Slots: 1, Preemptions: 2})
	s.Put(item("a", "victim", schedule.Routine, 0), at(0))
	s.SetShare("b", schedule.Share{Class: 5}, at(0))
	asked, now := 0, 0
	for i := range 10 {
		s.Start(at(now))
		s.Put(item("b", fmt.Sprint("b", i), schedule.Normal, now), at(now))
		if r := s.Preempt(at(now)); len(r) == 1 {
			asked++
			s.Release(r[0].ID, true, at(now))
			for _, r := range s.Start(at(now)) {
				s.Release(r.ID, false, at(now+1))
			}
		}
		now += 2
	}
	if asked != 2 {
		t.Errorf("preempted %d times, want 2", asked)
	}
}

// world drives a Scheduler with random arrivals. Every WorkItem takes between 1
// and 10 seconds and stops at a checkpoint every second.
type world struct {
	t       *rapid.T
	s       *schedule.Scheduler
	slots   int
	now     int
	ends    map[string]int
	since   map[string]int
	started map[string]int
	groups  map[string]string
	served  map[string]int
	longest int
	next    int
}

func newWorld(t *rapid.T, p schedule.Policy) *world {
	return &world{
		t: t, s: schedule.New(p), slots: p.Slots, ends: map[string]int{}, since: map[string]int{}, started: map[string]int{},
		groups: map[string]string{}, served: map[string]int{},
	}
}

func (w *world) arrive(group string, urgency schedule.Urgency) string {
	w.next++
	id := fmt.Sprintf("%s/%d", group, w.next)
	w.since[id], w.groups[id] = w.now, group
	w.s.Put(item(group, id, urgency, w.now), at(w.now))
	return id
}

// tick lets a second pass.
func (w *world) tick(duration func(id string) int) {
	for _, r := range w.s.Running() {
		w.served[r.Group]++
		if w.now >= w.ends[r.ID] {
			w.s.Release(r.ID, false, at(w.now))
		}
	}
	for _, r := range w.s.Preempt(at(w.now)) {
		if w.s.Free() != 0 {
			w.t.Fatalf("preemption with %d free slots", w.s.Free())
		}
		w.ends[r.ID] -= w.now // what is left
		w.s.Release(r.ID, true, at(w.now))
	}
	for _, r := range w.s.Start(at(w.now)) {
		if _, again := w.started[r.ID]; again {
			w.ends[r.ID] += w.now
		} else {
			w.started[r.ID] = w.now
			w.longest = max(w.longest, w.now-w.since[r.ID])
			w.ends[r.ID] = w.now + duration(r.ID)
		}
	}
	seen := map[int]bool{}
	for _, r := range w.s.Running() {
		if r.Slot < 0 || r.Slot >= w.slots || seen[r.Slot] {
			w.t.Fatalf("slot %d is taken twice or does not exist", r.Slot)
		}
		seen[r.Slot] = true
	}
	w.now++
}

func TestNothingStarvesWhateverKeepsArriving(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 3).Draw(t, "slots")
		step := rapid.IntRange(5, 30).Draw(t, "age step")
		w := newWorld(t, schedule.Policy{Slots: slots, AgeStep: time.Duration(step) * time.Second})
		groups := rapid.IntRange(2, 4).Draw(t, "groups")
		total, least := 0.0, math.Inf(1)
		classes := 0
		for g := range groups {
			weight := float64(rapid.IntRange(1, 5).Draw(t, "weight"))
			class := rapid.IntRange(0, 3).Draw(t, "class")
			w.s.SetShare(fmt.Sprint(g), schedule.Share{Weight: weight, Class: class}, at(0))
			total, least, classes = total+weight, min(least, weight), max(classes, class)
		}
		duration := func(string) int { return rapid.IntRange(1, 10).Draw(t, "duration") }
		// Everything else is more urgent, and keeps every slot busy for good.
		noise := func() {
			for g := range groups {
				if len(w.s.Waiting(fmt.Sprint(g))) < 3 {
					w.arrive(fmt.Sprint(g), schedule.Critical)
				}
			}
		}
		for range 60 {
			noise()
			w.tick(duration)
		}
		victim := w.arrive("0", schedule.Routine)
		// Until its Group is in the top class and it leads its Group's queue; then
		// every Group takes its turn by weight, after what is left of its head start.
		head := (classes + 4) * step
		turns := float64(3+4*slots) * 10 * total / least
		bound := head*int(2+total/least) + int(turns) + 60*int(1+total/least)
		for range bound {
			noise()
			w.tick(duration)
			if _, ok := w.started[victim]; ok {
				return
			}
		}
		t.Fatalf("waited %d s and longer", bound)
	})
}

func TestGroupsThatAlwaysHaveWorkShareSlotsByWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 4).Draw(t, "slots")
		w := newWorld(t, schedule.Policy{Slots: slots})
		groups := rapid.IntRange(2, 4).Draw(t, "groups")
		weights := make([]float64, groups)
		for g := range groups {
			weights[g] = float64(rapid.IntRange(1, 4).Draw(t, "weight"))
			w.s.SetShare(fmt.Sprint(g), schedule.Share{Weight: weights[g]}, at(0))
		}
		const seconds = 1500
		for range seconds {
			for g := range groups {
				for len(w.s.Waiting(fmt.Sprint(g))) < slots {
					w.arrive(fmt.Sprint(g), schedule.Urgency(rapid.IntRange(0, 3).Draw(t, "urgency")))
				}
			}
			w.tick(func(string) int { return rapid.IntRange(1, 10).Draw(t, "duration") })
		}
		for a := range groups {
			for b := range groups {
				ratio := float64(w.served[fmt.Sprint(a)]) / weights[a]
				other := float64(w.served[fmt.Sprint(b)]) / weights[b]
				// The known bound of fair queueing, once for every slot.
				if gap := math.Abs(ratio - other); gap > float64(slots)*12*(1/weights[a]+1/weights[b]) {
					t.Fatalf("Groups %d and %d are %.1f s per weight apart after %d s (weights %v, served %v)", a, b, gap, seconds, weights, w.served)
				}
			}
		}
	})
}

func TestTheSameHistoryGivesTheSameDecisions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := schedule.New(schedule.Policy{Slots: 2})
		b := schedule.New(schedule.Policy{Slots: 2})
		for n := range rapid.IntRange(1, 60).Draw(t, "steps") {
			group := fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "group"))
			urgency := schedule.Urgency(rapid.IntRange(0, 3).Draw(t, "urgency"))
			release := rapid.Bool().Draw(t, "release")
			var got [2]string
			for k, s := range []*schedule.Scheduler{a, b} {
				s.Put(item(group, fmt.Sprint(n), urgency, n), at(n))
				got[k] = ids(s.Start(at(n))) + "/" + ids(s.Preempt(at(n)))
				if running := s.Running(); release && len(running) > 0 {
					s.Release(running[0].ID, n%2 == 0, at(n))
				}
			}
			if got[0] != got[1] {
				t.Fatalf("step %d: %q and %q", n, got[0], got[1])
			}
		}
	})
}
