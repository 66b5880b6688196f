// Package schedule decides which WorkItem of which Group a Worker carries out
// next, in which of its execution slots, and which running one should stop at
// its next checkpoint (spec section 11.1 and 11.3).
//
// The hazard it guards against is one Mission crowding out the others. Hence:
//
//   - Between Groups, time in slots is shared by weight: the next slot goes to
//     the Group that has had least for its weight. A Group that was idle has
//     saved up nothing.
//   - What a Coordinator may say (urgency and deadline) orders its own Group
//     only. The Organization's priority class of a Group goes first between
//     Groups, but waiting raises a Group to the highest class step by step, so a
//     class is a head start and never a claim on every slot.
//   - Inside a Group waiting raises urgency step by step without end, so only
//     WorkItems that came soon after one can ever overtake it.
//   - Preemption is a request. It goes to a running WorkItem only for the one
//     that would get the slot, only over a lower class or, in the same Group, a
//     lower urgency, and to one WorkItem a bounded number of times.
//
// The Scheduler is a value with a clock as argument: no goroutine, no I/O. It is
// not safe for concurrent use.
package schedule

import (
	"cmp"
	"slices"
	"time"
)

// Urgency is what a Coordinator asks for in a Work Contract.
type Urgency int

// The urgencies of work-contract.schema.
const (
	Routine Urgency = iota
	Normal
	High
	Critical
)

// ParseUrgency reads a contract's requestedUrgency; what it does not know is
// Normal.
func ParseUrgency(s string) Urgency {
	switch s {
	case "routine":
		return Routine
	case "high":
		return High
	case "critical":
		return Critical
	default:
		return Normal
	}
}

// Item is a WorkItem that could start now: owned, its dependencies verified, its
// gates open.
type Item struct {
	ID, Group string
	Urgency   Urgency
	// Deadline orders WorkItems of one Group and equal urgency; zero comes last.
	Deadline time.Time
	// Since is when it could first have started. A WorkItem that was preempted
	// keeps it.
	Since time.Time
}

// Share is a Group's part of a Worker, set by the Worker's own policy. The zero
// value is weight 1, class 0, no quota.
type Share struct {
	Weight float64
	Class  int
	// Quota bounds the Group's slots; 0 does not.
	Quota int
}

// Policy configures a Scheduler.
type Policy struct {
	// Slots is how many WorkItems run at once, at least 1.
	Slots int
	// AgeStep is how long a WorkItem waits to rise by one, default 1 minute.
	AgeStep time.Duration
	// Quantum is the least time charged for a start, default 1 second.
	Quantum time.Duration
	// Preemptions is how often one WorkItem is asked to make room, default 2; a
	// negative value means never.
	Preemptions int
}

// Run is a WorkItem in a slot.
type Run struct {
	Item
	// Slot is 0..Slots-1. What runs in a slot shares nothing with the others.
	Slot    int
	Started time.Time

	paid      time.Time // charged up to here
	preempted bool      // asked to stop
}

// Scheduler is a Worker's queue over all its Groups.
type Scheduler struct {
	policy  Policy
	groups  map[string]*group
	runs    map[string]*Run // by WorkItem id
	slots   []bool          // taken
	virtual float64         // how far the Group with least service is
	asked   map[string]int  // preemptions by WorkItem id
	now     time.Time
}

// group is the queue of one Group. served is time in slots divided by weight, in
// seconds.
type group struct {
	id      string
	share   Share
	waiting map[string]Item
	running int
	served  float64
}

// New makes a Scheduler.
func New(p Policy) *Scheduler {
	p.Slots = max(p.Slots, 1)
	if p.AgeStep <= 0 {
		p.AgeStep = time.Minute
	}
	if p.Quantum <= 0 {
		p.Quantum = time.Second
	}
	if p.Preemptions == 0 {
		p.Preemptions = 2
	}
	return &Scheduler{
		policy: p, groups: map[string]*group{}, runs: map[string]*Run{}, slots: make([]bool, p.Slots), asked: map[string]int{},
	}
}

// SetShare changes a Group's part. It takes effect with the next decision.
func (s *Scheduler) SetShare(groupID string, share Share, now time.Time) {
	s.charge(now)
	s.group(groupID).share = share
}

// Put adds a WorkItem to its Group's queue, or changes the urgency and deadline
// of one that waits there. One that runs is left alone.
func (s *Scheduler) Put(item Item, now time.Time) {
	s.charge(now)
	if _, running := s.runs[item.ID]; running {
		return
	}
	g := s.group(item.Group)
	if waiting, ok := g.waiting[item.ID]; ok {
		item.Since = waiting.Since
	} else if len(g.waiting) == 0 && g.running == 0 {
		g.served = max(g.served, s.virtual) // idleness saves nothing up
	}
	g.waiting[item.ID] = item
}

// Remove takes a WorkItem out of the queue; one that runs is not touched.
func (s *Scheduler) Remove(groupID, id string) {
	delete(s.group(groupID).waiting, id)
}

// Start gives free slots to waiting WorkItems and returns what begins now.
func (s *Scheduler) Start(now time.Time) []Run {
	s.charge(now)
	var begun []Run
	for {
		slot := slices.Index(s.slots, false)
		if slot < 0 {
			return begun
		}
		item, ok := s.next()
		if !ok {
			return begun
		}
		g := s.groups[item.Group]
		delete(g.waiting, item.ID)
		g.running++
		g.served += s.policy.Quantum.Seconds() / g.weight()
		s.slots[slot] = true
		run := &Run{Item: item, Slot: slot, Started: s.now, paid: s.now.Add(s.policy.Quantum)}
		s.runs[item.ID] = run
		begun = append(begun, *run)
	}
}

// Preempt returns the running WorkItems that should make room at their next
// checkpoint. Each is named once per run.
func (s *Scheduler) Preempt(now time.Time) []Run {
	s.charge(now)
	if slices.Contains(s.slots, false) {
		return nil
	}
	for _, r := range s.runs {
		if r.preempted {
			return nil // one at a time: who gets that slot is decided when it is free
		}
	}
	item, ok := s.next()
	if !ok {
		return nil
	}
	var victim *Run
	for _, r := range s.runs {
		if s.outranks(item, r) && (victim == nil || s.yields(r, victim)) {
			victim = r
		}
	}
	if victim == nil {
		return nil
	}
	victim.preempted = true
	s.asked[victim.ID]++
	return []Run{*victim}
}

// Release frees the slot of a WorkItem. With again it goes back to its Group's
// queue with the time it has waited since it first could have started.
func (s *Scheduler) Release(id string, again bool, now time.Time) {
	s.charge(now)
	run, ok := s.runs[id]
	if !ok {
		return
	}
	delete(s.runs, id)
	s.slots[run.Slot] = false
	g := s.groups[run.Group]
	g.running--
	if again {
		g.waiting[id] = run.Item
	} else {
		delete(s.asked, id)
	}
}

// Running lists what runs, by slot.
func (s *Scheduler) Running() []Run {
	out := make([]Run, 0, len(s.runs))
	for _, r := range s.runs {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b Run) int { return a.Slot - b.Slot })
	return out
}

// Waiting lists a Group's queue in its own order.
func (s *Scheduler) Waiting(groupID string) []Item {
	out := []Item{}
	for _, i := range s.group(groupID).waiting {
		out = append(out, i)
	}
	slices.SortFunc(out, s.compareInGroup)
	return out
}

// Free is how many slots are free.
func (s *Scheduler) Free() int { return s.policy.Slots - len(s.runs) }

// Served is the time a Group has had in slots for its weight, in seconds.
func (s *Scheduler) Served(groupID string) float64 { return s.group(groupID).served }

func (s *Scheduler) group(id string) *group {
	g, ok := s.groups[id]
	if !ok {
		g = &group{id: id, waiting: map[string]Item{}, served: s.virtual}
		s.groups[id] = g
	}
	return g
}

func (g *group) weight() float64 {
	if g.share.Weight > 0 {
		return g.share.Weight
	}
	return 1
}

// charge books the time in slots up to now. A clock that goes back stands still.
func (s *Scheduler) charge(now time.Time) {
	if now.After(s.now) {
		s.now = now
	}
	for _, r := range s.runs {
		if s.now.After(r.paid) {
			g := s.groups[r.Group]
			g.served += s.now.Sub(r.paid).Seconds() / g.weight()
			r.paid = s.now
		}
	}
	least, any := 0.0, false
	for _, g := range s.groups {
		if len(g.waiting) > 0 || g.running > 0 {
			if !any || g.served < least {
				least, any = g.served, true
			}
		}
	}
	if any {
		s.virtual = max(s.virtual, least)
	}
}

// next is the WorkItem that gets the next free slot.
func (s *Scheduler) next() (Item, bool) {
	top := 0
	var candidates []*group
	for _, g := range s.groups {
		if len(g.waiting) == 0 || g.share.Quota > 0 && g.running >= g.share.Quota {
			continue
		}
		if len(candidates) == 0 || g.share.Class > top {
			top = g.share.Class
		}
		candidates = append(candidates, g)
	}
	if len(candidates) == 0 {
		return Item{}, false
	}
	best := slices.MinFunc(candidates, func(a, b *group) int {
		return cmp.Or(
			cmp.Compare(s.class(b, top), s.class(a, top)),
			cmp.Compare(a.served, b.served),
			s.oldest(a).Compare(s.oldest(b)),
			cmp.Compare(a.id, b.id),
		)
	})
	return s.first(best), true
}

// class is a Group's class with what waiting has added, up to the top one: among
// those that reached it, service by weight decides.
func (s *Scheduler) class(g *group, top int) int {
	return min(top, g.share.Class+s.steps(s.oldest(g)))
}

func (s *Scheduler) oldest(g *group) time.Time {
	var oldest time.Time
	for _, i := range g.waiting {
		if oldest.IsZero() || i.Since.Before(oldest) {
			oldest = i.Since
		}
	}
	return oldest
}

func (s *Scheduler) steps(since time.Time) int {
	return int(max(0, s.now.Sub(since)) / s.policy.AgeStep)
}

func (s *Scheduler) first(g *group) Item {
	var first Item
	for _, i := range g.waiting {
		if first.ID == "" || s.compareInGroup(i, first) < 0 {
			first = i
		}
	}
	return first
}

// compareInGroup orders the queue of one Group.
func (s *Scheduler) compareInGroup(a, b Item) int {
	return cmp.Or(
		cmp.Compare(int(b.Urgency)+s.steps(b.Since), int(a.Urgency)+s.steps(a.Since)),
		compareDeadlines(a.Deadline, b.Deadline),
		a.Since.Compare(b.Since),
		cmp.Compare(a.ID, b.ID),
	)
}

func compareDeadlines(a, b time.Time) int {
	switch {
	case a.IsZero() && b.IsZero():
		return 0
	case a.IsZero():
		return 1
	case b.IsZero():
		return -1
	}
	return a.Compare(b)
}

// outranks tells whether a waiting WorkItem may ask a running one to make room.
// Waiting does not count: it orders, and never interrupts.
func (s *Scheduler) outranks(item Item, r *Run) bool {
	if s.asked[r.ID] >= s.policy.Preemptions {
		return false
	}
	if item.Group == r.Group {
		return item.Urgency > r.Urgency
	}
	return s.groups[item.Group].share.Class > s.groups[r.Group].share.Class
}

// yields tells which of two running WorkItems makes room first: the lower class,
// the lower urgency, the one that began last.
func (s *Scheduler) yields(a, b *Run) bool {
	return cmp.Or(
		cmp.Compare(s.groups[a.Group].share.Class, s.groups[b.Group].share.Class),
		cmp.Compare(a.Urgency, b.Urgency),
		b.Started.Compare(a.Started),
		cmp.Compare(a.ID, b.ID),
	) < 0
}
