package authority

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// errNotCurrent is the Registry's, under the name this package tests for.
var errNotCurrent = registry.ErrNotCurrent

// round is one pass of a lane: look, decide, sign, commit.
type round struct {
	l     *lane
	s     *Service
	tasks []*task
	// cut bounds how many of the tasks this round decides; the rest comes in the
	// next one, because an earlier one changes what they would look at.
	cut int

	look   *events.View
	policy *policy
	now    time.Time
	world  *groups.World

	groups  map[string]*groupRound
	agents  map[string]*agentRound
	records map[string]record // Admission Records by signing hash
	written map[string]bool   // records of refused Commands in the batch
	entries []*entry
	byKey   map[events.ReceiptKey]*entry // accepted in this round
	unsure  []*signing                   // Events that wait for their signature
	// behind is the round whose commit is under way, nil when there is none: what
	// it decided counts as done here, and if it fails this round fails with it.
	behind *round

	batch   events.Batch
	attempt *events.Attempt
}

// groupRound is a Group in a round.
type groupRound struct {
	*events.Group
	start   int64 // head before the round
	end     int64 // head after it
	create  *events.NewGroup
	touched events.Touched
	events  []*signing
	policy  []events.PolicyEntry
	due     time.Time // next timer before the round
	foreign bool      // of another lane's tree: not kept
}

// signing is an Event on its way to its bytes.
type signing struct {
	draft    *groups.Draft
	folded   *groups.Event
	signer   trust.Signer
	at       time.Time
	document []byte
	hash     string
}

// entry is one decided task.
type entry struct {
	task    *task
	at      time.Time // the clock reading it was decided under
	refusal *protocol.Error
	// admitted says that the Command passed P12; its record then stays even if
	// the Command is refused.
	admitted bool
	stored   *events.StoredReceipt // replay of an earlier acceptance
	twin     *entry                // replay of an acceptance in this round
	events   []*signing
	receipt  []byte
	hidden   []int32
}

func newRound(l *lane) *round {
	return &round{
		l: l, s: l.s, cut: math.MaxInt, look: new(events.View),
		groups: map[string]*groupRound{}, agents: map[string]*agentRound{}, records: map[string]record{},
		written: map[string]bool{}, byKey: map[events.ReceiptKey]*entry{},
	}
}

// run decides the tasks and commits. On any error nothing is answered and the
// states that were touched are ahead of the log: drop them.
func (r *round) run(ctx context.Context, tasks []*task) error {
	if err := r.extend(ctx, tasks); err != nil {
		return err
	}
	if err := r.assemble(); err != nil {
		return err
	}
	if r.idle() {
		return nil
	}
	return r.commit(ctx)
}

// extend takes tasks into the round: looks, decides and signs.
func (r *round) extend(ctx context.Context, tasks []*task) error {
	first := len(r.tasks)
	r.tasks = append(r.tasks, tasks...)
	if err := r.prepare(ctx, tasks); err != nil {
		return err
	}
	for i := first; i < len(r.tasks) && i < r.cut; i++ {
		if err := r.decideSafely(ctx, i); err != nil {
			return err
		}
	}
	err := r.sign()
	r.unsure = nil
	return err
}

// taken is how many of the tasks the round decides.
func (r *round) taken() int { return min(r.cut, len(r.tasks)) }

// idle reports that the round only found replays.
func (r *round) idle() bool {
	return len(r.batch.Events) == 0 && len(r.batch.OrgEvents) == 0 && len(r.batch.Receipts) == 0 &&
		len(r.batch.Audits) == 0 && len(r.batch.Timers) == 0
}

// prepare reads everything that can be named before deciding.
func (r *round) prepare(ctx context.Context, tasks []*task) error {
	look := events.Look{}
	wants := wantSet{}
	for _, t := range tasks {
		if t.sweep != nil {
			wants.groups.add(t.sweep.groupID)
			continue
		}
		look.Receipts = append(look.Receipts, t.key())
		if t.held == nil {
			look.Hashes = append(look.Hashes, t.verified.SigningHash)
			for _, d := range t.docs {
				look.Hashes = append(look.Hashes, d.verified.SigningHash)
			}
			wants.of(t)
		}
	}
	look.Agents, look.Groups, look.Missions = wants.agents.list, wants.groups.list, wants.missions.list
	look.Loaded, look.ActiveWork = wants.loads.list, wants.active.list
	found, err := r.s.store.Look(ctx, look)
	if err != nil {
		return err
	}
	r.look.Merge(found)
	if err := r.follow(ctx, tasks); err != nil {
		return err
	}
	r.now = found.Now
	if r.now.Before(r.l.last) {
		r.now = r.l.last
	}
	r.l.last = r.now
	r.makeWorld()
	for _, id := range wants.agents.list {
		r.addAgent(id, found)
	}
	for _, id := range wants.missions.list {
		if _, known := r.world.Missions[id]; !known {
			r.world.Missions[id] = found.Missions[id]
		}
	}
	return r.loadGroups(ctx, wants.groups.list, found.Groups)
}

// follow takes the Registry's view of the revision that was just read, and
// repeats the verifications of the tasks that were made under another one. What
// the round decided under an earlier revision must hold under this one as well.
func (r *round) follow(ctx context.Context, tasks []*task) error {
	view, err := r.s.opt.Directory.AtLeast(ctx, r.look.Registry)
	if err != nil {
		return err
	}
	if r.policy != nil && r.policy.view.Revision != view.Revision {
		same, err := r.sameRegistry(ctx, view.Revision)
		if err != nil {
			return err
		}
		if !same {
			return events.ErrRegistryMoved
		}
		view = r.policy.view
	}
	r.policy = r.s.policy.at(view)
	for _, t := range tasks {
		if t.sweep != nil || t.verified.Revision == view.Revision {
			continue
		}
		if refusal := t.reverify(view); refusal != nil {
			// The key ended meanwhile: the Command is refused like one that comes now.
			t.held = refusal
		}
	}
	return nil
}

// loadGroups brings states to the head that was just read: from memory, by
// catching up, or from the database. A Group that does not exist becomes nil in
// the world.
func (r *round) loadGroups(ctx context.Context, ids []string, rows map[string]events.GroupRow) error {
	var cold []*groupRound
	for _, id := range ids {
		if _, done := r.world.Groups[id]; done {
			continue
		}
		row, exists := rows[id]
		if !exists {
			r.world.Groups[id] = nil
			continue
		}
		gr := &groupRound{foreign: r.s.laneOf(row.TreeID) != r.l}
		r.groups[id] = gr
		if r.behind != nil && r.behind.moves(id) {
			// The state is where the commit that is under way will leave the log.
			if gr.Group = r.behind.groups[id].Group; gr.Spoiled {
				return &events.HeadMoved{GroupIDs: []string{id}}
			}
			continue
		}
		if !gr.foreign {
			if hot, ok := r.l.hot.get(id); ok && hot.State.Head <= row.HeadSequence {
				gr.Group = hot
			}
		}
		if gr.Group == nil {
			gr.Group = &events.Group{GroupRow: row}
		}
		if gr.State == nil || gr.State.Head < row.HeadSequence {
			cold = append(cold, gr)
		}
	}
	err := parallel(len(cold), 4, func(i int) error { return r.warm(ctx, cold[i]) })
	if err != nil {
		return err
	}
	for _, id := range ids {
		if gr, ok := r.groups[id]; ok && r.world.Groups[id] == nil {
			gr.start, gr.due = gr.State.Head, events.NextDue(gr.State)
			r.world.Groups[id] = gr.State
			if !gr.foreign {
				r.s.stats.evictions.Add(int64(r.l.hot.put(gr.Group)))
			}
		}
	}
	return nil
}

// moves reports that the round appends to a Group.
func (r *round) moves(groupID string) bool {
	gr, ok := r.groups[groupID]
	return ok && len(gr.events) > 0
}

// warm loads a state or brings one up to date.
func (r *round) warm(ctx context.Context, gr *groupRound) error {
	if gr.State != nil {
		r.s.stats.catchUps.Add(1)
		return r.s.store.CatchUp(ctx, gr.Group)
	}
	r.s.stats.loads.Add(1)
	g, err := r.s.store.LoadGroup(ctx, gr.GroupID)
	if err != nil {
		return err
	}
	gr.Group = g
	return nil
}

// decideSafely keeps a defect in the core from taking the lane down.
func (r *round) decideSafely(ctx context.Context, i int) (err error) {
	t := r.tasks[i]
	defer func() {
		if p := recover(); p != nil {
			stack := make([]byte, 16<<10)
			stack = stack[:runtime.Stack(stack, false)]
			r.s.log.Error("panic while deciding", "panic", p, "stack", string(stack))
			err = &poison{t, fmt.Errorf("panic: %v", p)}
		}
	}()
	if t.sweep != nil {
		return r.sweep(t)
	}
	e, err := r.decide(ctx, t)
	if err != nil {
		return err
	}
	r.entries = append(r.entries, e)
	if e.refusal == nil && e.receipt != nil && t.env.Kind == protocol.CommandAgentCardRegister {
		// What follows must see the card, which is in no view before the commit.
		r.cut = i + 1
	}
	return nil
}

// sign signs the round's Events on all cores.
func (r *round) sign() error {
	return parallel(len(r.unsure), runtime.GOMAXPROCS(0), func(i int) error {
		x := r.unsure[i]
		var err error
		x.document, x.hash, err = trust.SignDocument(protocol.KindEvent, &x.draft.Event, x.signer)
		return err
	})
}

// parallel runs n jobs on up to workers goroutines and returns the first error.
func parallel(n, workers int, job func(int) error) error {
	if workers = min(workers, n); workers <= 1 || n < 4 {
		for i := range n {
			if err := job(i); err != nil {
				return err
			}
		}
		return nil
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || errs[w] != nil {
					return
				}
				errs[w] = job(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// assemble makes the batch.
func (r *round) assemble() error {
	b := &r.batch
	b.OrganizationID, b.Authority, b.AuthorityKeyID = r.policy.org.ID, r.policy.org.Authority, r.s.self.KeyID
	b.Now, b.Registry = r.now, r.policy.view.Revision
	for _, a := range r.agents {
		b.Agents = append(b.Agents, a.condition())
	}
	for _, gr := range r.groups {
		gr.end = gr.State.Head
		b.Heads = append(b.Heads, events.HeadCondition{
			TreeID: gr.TreeID, GroupID: gr.GroupID, Expected: gr.start, Head: gr.end, Create: gr.create,
		})
		for _, x := range gr.events {
			b.Events = append(b.Events, events.Event{
				TreeID: gr.TreeID, GroupID: gr.GroupID, Sequence: x.draft.Event.Sequence, EventID: x.draft.Event.EventID,
				Kind: x.draft.Event.Kind, OccurredAt: x.at, CommandHash: x.draft.Event.CommandHash,
				SigningHash: x.hash, Document: x.document,
			})
		}
		b.Policy = append(b.Policy, gr.policy...)
		if err := gr.touched.Write(&b.Rows, gr.TreeID, gr.State); err != nil {
			return err
		}
		if due := events.NextDue(gr.State); !due.Equal(gr.due) {
			b.Timers = append(b.Timers, events.Timer{TreeID: gr.TreeID, GroupID: gr.GroupID, DueAt: due})
		}
	}
	for _, e := range r.entries {
		if err := r.enter(e); err != nil {
			return err
		}
	}
	return nil
}

// enter adds what an entry leaves behind.
func (r *round) enter(e *entry) error {
	b, t := &r.batch, e.task
	switch {
	case e.stored != nil || e.twin != nil:
		return nil
	case e.refusal != nil:
		b.Audits = append(b.Audits, t.audit(e.refusal, e.at))
		rec := r.records[t.verified.SigningHash]
		if e.admitted && rec.fresh && !r.written[t.verified.SigningHash] {
			r.written[t.verified.SigningHash] = true
			key := t.key()
			b.Admissions = append(b.Admissions, events.Admission{Record: rec.FirstAdmissionRecord, At: rec.at, Probe: &key})
		}
		return nil
	}
	rec := r.records[t.verified.SigningHash]
	receipt := events.Receipt{
		ReceiptKey: t.key(), SigningHash: t.verified.SigningHash, GroupID: t.env.GroupID, Kind: t.env.Kind, AcceptedAt: e.at,
		Admission: rec.FirstAdmissionRecord, AdmittedAt: rec.at, Response: e.receipt, Hidden: e.hidden, Command: t.sub.Body,
	}
	if gr, ok := r.groups[t.env.GroupID]; ok {
		receipt.TreeID = gr.TreeID
	}
	b.Receipts = append(b.Receipts, receipt)
	return r.enterFacts(e)
}

// finish answers everybody after the commit.
func (r *round) finish() {
	for _, gr := range r.groups {
		if len(gr.events) == 0 {
			continue
		}
		gr.HeadSequence = gr.end
		gr.State.ClearChanged()
		if !gr.foreign && !gr.Spoiled {
			r.s.stats.evictions.Add(int64(r.l.hot.put(gr.Group)))
		}
		r.announce(gr)
	}
	for _, e := range r.entries {
		e.task.done <- e.outcome()
	}
	for _, t := range r.tasks[:r.taken()] {
		if t.sweep != nil {
			t.done <- outcome{}
		}
	}
}

// announce tells readers and publisher what was committed.
func (r *round) announce(gr *groupRound) {
	stored := make([]events.StoredEvent, len(gr.events))
	for i, x := range gr.events {
		stored[i] = events.StoredEvent{
			GroupID: gr.GroupID, Sequence: x.draft.Event.Sequence, EventID: x.draft.Event.EventID, Kind: x.draft.Event.Kind,
			OccurredAt: x.at, Document: x.document,
		}
	}
	if h := r.s.opt.Hub; h != nil {
		h.Committed(gr.GroupID, stored)
	}
	if p := r.s.opt.Publisher; p != nil {
		p.Committed(gr.TreeID, gr.GroupID, stored)
	}
	if n := r.s.opt.Snapshots; n != nil {
		n.Grown(gr.GroupID, gr.end, gr.SnapshotAt)
	}
}

// drop forgets the states that are ahead of the log. Another round may still
// hold one, whose commit is under way: it must not put it back.
func (r *round) drop() {
	for id, gr := range r.groups {
		switch {
		case gr.State == nil: // not loaded
			r.l.hot.remove(id)
		case gr.State.Head != gr.start || gr.create != nil:
			gr.Spoiled = true
			r.l.hot.remove(id)
		}
	}
}

func (e *entry) outcome() outcome {
	switch {
	case e.refusal != nil:
		return outcome{err: e.refusal}
	case e.stored != nil:
		return outcome{receipt: e.stored.Response, hidden: e.stored.Hidden, replayed: true}
	case e.twin != nil:
		return outcome{receipt: e.twin.receipt, hidden: e.twin.hidden, replayed: true}
	}
	o := outcome{receipt: e.receipt}
	for i, x := range e.events {
		if !slices.Contains(e.hidden, int32(i)) { //nolint:gosec // at most 10,000
			o.events = append(o.events, x.document)
		}
	}
	return o
}
