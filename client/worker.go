package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/missionweave/server/client/schedule"
)

// WorkerOptions configures a Worker. Client and Do are required.
type WorkerOptions struct {
	Client *Client
	// Do carries one WorkItem out. It ends by submitting, blocking or failing
	// through its Job; an error without any of these fails the WorkItem, or runs it
	// again where its contract allows attempts.
	Do func(ctx context.Context, job *Job) error
	// Consider judges an offer before it is accepted; nil accepts while the queue
	// has room.
	Consider func(ctx context.Context, offer Prospect) Answer
	// Hear is told the Messages of the Worker's Groups, as they come in; may be nil.
	Hear func(ctx context.Context, room Room, m Message)
	// Slots is how many WorkItems run at once, default 1. The Agent Card's
	// maxConcurrency is the server's bound.
	Slots int
	// MaxQueued is how many owned WorkItems may wait, default 16; offers past it are
	// declined for capacity.
	MaxQueued int
	// Share is a Group's part of the slots; nil shares equally.
	Share func(groupID string) schedule.Share
	// Policy bounds the Scheduler; its Slots are the ones above.
	Policy schedule.Policy
	// LeaseSeconds is the Execution Lease asked for, default 60; it is renewed after
	// a third. OwnershipSeconds likewise for queued WorkItems, default 900.
	LeaseSeconds, OwnershipSeconds int
	// Discover is the pause between two looks for new Missions, default 1 s.
	Discover time.Duration
}

// Prospect is an offer with what is offered.
type Prospect struct {
	Room
	Offer    Offer
	Contract WorkContract
	// Queued is how many WorkItems the Worker owns and has not begun.
	Queued int
}

// Answer is a Worker's answer to an offer: accept it, decline it for a reason of
// work-item.schema, or ask in the WorkItem's Conversation first and wait for a
// revised offer.
type Answer struct {
	Accept  bool
	Decline string
	Ask     string
}

// Worker keeps one Agent at work in all its Missions. It follows every Group it
// is a member of, keeps a Work queue per Group (rebuilt from the log at every
// start), answers offers, and runs WorkItems in isolated slots as its Scheduler
// decides. Leases are renewed while Do runs; a lost one ends Do's context.
type Worker struct {
	opt     WorkerOptions
	c       *Client
	session *Session

	mu       sync.Mutex
	groups   map[string]*room
	sched    *schedule.Scheduler
	jobs     map[string]*Job
	held     map[string]time.Time // WorkItem id -> not to be started before
	attempts map[string]int
	running  sync.WaitGroup
	failed   chan error // capacity 1
}

// room is one Group of a Worker: its inbox is the Subscription, its Cursor the
// position, its queue what the Board says.
type room struct {
	board    *Board
	sub      *Subscription
	live     bool
	learned  chan struct{}   // closed and replaced at every Event
	answered map[string]bool // offer ids
	unread   map[string]bool // asked for and refused
	acked    int64
}

// NewWorker makes a Worker; Run starts it.
func NewWorker(opt WorkerOptions) (*Worker, error) {
	if opt.Client == nil || opt.Do == nil {
		return nil, errors.New("client: a Worker needs a Client and something to do")
	}
	opt.Slots, opt.MaxQueued = max(opt.Slots, 1), cmp.Or(opt.MaxQueued, 16)
	opt.LeaseSeconds, opt.OwnershipSeconds = cmp.Or(opt.LeaseSeconds, 60), cmp.Or(opt.OwnershipSeconds, 900)
	opt.Discover = cmp.Or(opt.Discover, time.Second)
	opt.Policy.Slots = opt.Slots
	return &Worker{
		opt: opt, c: opt.Client, groups: map[string]*room{}, sched: schedule.New(opt.Policy), jobs: map[string]*Job{},
		held: map[string]time.Time{}, attempts: map[string]int{}, failed: make(chan error, 1),
	}, nil
}

// Run works until ctx ends, and then lets what runs reach its end or a
// checkpoint for a few seconds. It fails with ErrReplaced when another runtime
// of the Agent took over, or with the refusal that ended the session.
func (w *Worker) Run(ctx context.Context) error {
	session, err := w.c.OpenSession(ctx)
	if err != nil {
		return err
	}
	defer session.Close()
	w.mu.Lock()
	w.session = session
	w.mu.Unlock()
	work, stop := context.WithCancel(ctx)
	defer stop()
	var readers sync.WaitGroup
	defer readers.Wait()
	defer stop()
	discover, maintain := time.NewTicker(w.opt.Discover), time.NewTicker(500*time.Millisecond)
	defer discover.Stop()
	defer maintain.Stop()
	look := func() error { return w.discover(work, &readers) }
	if err := look(); err != nil && ctx.Err() == nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			w.drain()
			return ctx.Err()
		case <-session.Done():
			stop()
			w.cut()
			return session.closedError()
		case err := <-w.failed:
			stop()
			w.drain()
			return err
		case <-discover.C:
			if err := look(); err != nil && ctx.Err() == nil {
				w.c.opt.Log.WarnContext(ctx, "looking for Missions", "error", err)
			}
		case <-maintain.C:
			w.maintain(work)
		}
	}
}

// drainGrace is how long running Jobs may take to reach a checkpoint when the
// Worker stops.
const drainGrace = 5 * time.Second

// drain asks everything that runs to stop at a checkpoint, and after a while to
// stop anyhow.
func (w *Worker) drain() {
	each := func(f func(*Job)) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, j := range w.jobs {
			f(j)
		}
	}
	each((*Job).yield)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.running.Wait()
	}()
	grace := time.NewTimer(drainGrace)
	defer grace.Stop()
	select {
	case <-ended:
		return
	case <-grace.C:
	}
	each(func(j *Job) { j.cancel(ErrStopping) })
	<-ended
}

// cut ends everything that runs at once: the session that it ran under is over.
func (w *Worker) cut() {
	w.mu.Lock()
	for _, j := range w.jobs {
		j.cancel(ErrLeaseLost)
	}
	w.mu.Unlock()
	w.running.Wait()
}

// discover subscribes to the Groups of Missions that the Agent has become a
// member of. There is no other way to hear of them.
func (w *Worker) discover(ctx context.Context, readers *sync.WaitGroup) error {
	missions, err := w.c.Missions(ctx, "active")
	if err != nil {
		return err
	}
	for _, m := range missions {
		w.mu.Lock()
		_, known := w.groups[m.GroupID]
		w.mu.Unlock()
		if known {
			continue
		}
		sub, err := w.session.Subscribe(ctx, m.GroupID, 0)
		if CodeOf(err) != "" {
			continue // the Membership ended in between
		}
		if err != nil {
			return err
		}
		r := &room{board: NewBoard(w.c.Principal(), m.GroupID), sub: sub, learned: make(chan struct{}), answered: map[string]bool{}, unread: map[string]bool{}}
		r.board.MissionID, r.board.State, r.board.MissionOwner = m.MissionID, m.State, m.MissionOwner
		w.mu.Lock()
		w.groups[m.GroupID] = r
		if w.opt.Share != nil {
			w.sched.SetShare(m.GroupID, w.opt.Share(m.GroupID), w.c.opt.Now())
		}
		w.mu.Unlock()
		readers.Go(func() { w.follow(ctx, r) })
	}
	return nil
}

// SetShare changes a Group's part of the slots.
func (w *Worker) SetShare(groupID string, share schedule.Share) {
	w.mu.Lock()
	w.sched.SetShare(groupID, share, w.c.opt.Now())
	w.mu.Unlock()
}

// Queue lists the WorkItems of one Group that could start, in the order of that
// Group. Every Group has a queue of its own; none shows another's.
func (w *Worker) Queue(groupID string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := []string{}
	for _, i := range w.sched.Waiting(groupID) {
		ids = append(ids, i.ID)
	}
	return ids
}

// Session is the Worker's present session, nil before Run has opened it.
func (w *Worker) Session() *Session {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.session
}

// Running lists the WorkItems in slots, by slot.
func (w *Worker) Running() []schedule.Run {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sched.Running()
}

// Cursors are the positions up to which each Group's Events were dealt with.
func (w *Worker) Cursors() map[string]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]int64{}
	for id, r := range w.groups {
		out[id] = r.board.Head
	}
	return out
}

// follow learns the Events of one Group. What they ask for is done when the
// replay is over: until then they are the past.
func (w *Worker) follow(ctx context.Context, r *room) {
	caughtUp := r.sub.CaughtUp()
	for {
		select {
		case <-ctx.Done():
			return
		case <-caughtUp:
			caughtUp = nil
			w.mu.Lock()
			r.live = true
			w.mu.Unlock()
			w.react(ctx, r)
		case d, ok := <-r.sub.Events():
			if !ok {
				w.leave(r)
				return
			}
			w.mu.Lock()
			err := r.board.Learn(d.Event)
			close(r.learned)
			r.learned = make(chan struct{})
			live := r.live
			w.mu.Unlock()
			if err != nil {
				w.fail(err)
				return
			}
			if d.Event.Kind == "message.posted" && w.opt.Hear != nil && live {
				w.hear(ctx, r, d.Event)
			}
			w.release(d.Event)
			if live {
				w.react(ctx, r)
			}
		}
	}
}

func (w *Worker) fail(err error) {
	select {
	case w.failed <- err:
	default:
	}
}

func (w *Worker) hear(ctx context.Context, r *room, e Event) {
	var posted struct {
		Message Message `json:"message"`
	}
	if Decode(e.Payload, &posted) != nil || posted.Message.Author == w.c.Principal() {
		return
	}
	w.mu.Lock()
	where := w.room(r, e.WorkItemID)
	w.mu.Unlock()
	where.ConversationID = e.ConversationID
	w.opt.Hear(ctx, where, posted.Message)
}

// release lifts what held a WorkItem back when something happened that may have
// changed the reason.
func (w *Worker) release(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.WorkItemID != "" && e.Actor != w.c.Principal():
		delete(w.held, e.WorkItemID)
	case e.Kind == "ext.missionweave.budget.increased" || e.Kind == "mission.changes_requested":
		clear(w.held)
	}
}

// caughtUp waits until the Worker has learned an Event of its own: what the
// Board says before is the past.
func (w *Worker) caughtUp(ctx context.Context, r *room, sequence int64) {
	for {
		w.mu.Lock()
		head, learned := r.board.Head, r.learned
		w.mu.Unlock()
		if head >= sequence {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-r.sub.Done():
			return
		case <-learned:
		}
	}
}

// leave forgets a Group that the Worker is no longer a member of.
func (w *Worker) leave(r *room) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.groups, r.board.GroupID)
	for _, i := range w.sched.Waiting(r.board.GroupID) {
		w.sched.Remove(i.Group, i.ID)
	}
	for _, j := range w.jobs {
		if j.GroupID == r.board.GroupID {
			j.cancel(ErrLeaseLost)
		}
	}
}

// react does what the state of a Group asks for: read what is unknown, answer
// offers, end Jobs whose lease is gone, queue what is ready, and start.
func (w *Worker) react(ctx context.Context, r *room) {
	w.read(ctx, r)
	now := w.c.opt.Now()
	w.mu.Lock()
	var offers []Prospect
	for _, item := range r.board.Sorted() {
		if o, ok := r.board.PendingOffer(item, now); ok && !item.Unread && !r.answered[o.OfferID] && r.board.State == "active" {
			r.answered[o.OfferID] = true
			offers = append(offers, Prospect{Room: w.room(r, item.ID), Offer: o, Contract: item.Contract})
		}
		w.place(r, item, now)
	}
	w.dispatch(ctx)
	w.mu.Unlock()
	for _, p := range offers {
		w.answer(ctx, r, p)
	}
}

// place puts a WorkItem into the Scheduler's queue or takes it out, and ends a
// Job that has lost its lease. The caller holds mu.
func (w *Worker) place(r *room, item *Work, now time.Time) {
	mine := r.board.Owns(item)
	if j := w.jobs[item.ID]; j != nil {
		if lease := j.lease(); lease != nil && !j.finishing() && item.Sequence > lease.sequence && (!mine || item.ExecutionLease == nil || item.ExecutionLease.LeaseID != lease.id) {
			j.cancel(ErrLeaseLost)
		}
		return
	}
	ready := mine && item.State == "queued" && r.board.State == "active" && r.board.Ready(item) && !now.Before(w.held[item.ID])
	if !ready {
		w.sched.Remove(r.board.GroupID, item.ID)
		return
	}
	w.sched.Put(schedule.Item{
		ID: item.ID, Group: r.board.GroupID, Urgency: schedule.ParseUrgency(item.Contract.RequestedUrgency),
		Deadline: parseTime(item.Contract.Deadline), Since: item.QueuedAt,
	}, now)
}

// dispatch starts what the Scheduler chooses and asks those to stop that it
// wants out. The caller holds mu.
func (w *Worker) dispatch(ctx context.Context) {
	now := w.c.opt.Now()
	if ctx.Err() != nil {
		return
	}
	for _, run := range w.sched.Start(now) {
		r := w.groups[run.Group]
		if r == nil {
			w.sched.Release(run.ID, false, now)
			continue
		}
		j := w.newJob(r, r.board.Items[run.ID], run.Slot)
		w.jobs[run.ID] = j
		w.running.Go(func() { w.execute(ctx, r, j) })
	}
	for _, run := range w.sched.Preempt(now) {
		if j := w.jobs[run.ID]; j != nil {
			j.yield()
		}
	}
}

// read asks the server for WorkItems that the Events did not tell about.
func (w *Worker) read(ctx context.Context, r *room) {
	for range 8 { // dependencies of dependencies come up as they are read
		w.mu.Lock()
		unknown := slices.DeleteFunc(r.board.Unknown(), func(id string) bool { return r.unread[id] })
		w.mu.Unlock()
		if len(unknown) == 0 {
			return
		}
		for _, id := range unknown {
			doc, err := w.c.WorkItem(ctx, r.board.GroupID, id)
			w.mu.Lock()
			if err != nil {
				r.unread[id] = CodeOf(err) != ""
			} else {
				r.board.Adopt(doc)
			}
			w.mu.Unlock()
			if err != nil && CodeOf(err) == "" {
				return
			}
		}
	}
}

// answer accepts, declines or asks back.
func (w *Worker) answer(ctx context.Context, r *room, p Prospect) {
	w.mu.Lock()
	for _, other := range w.groups {
		for _, item := range other.board.Items {
			if other.board.Owns(item) && item.State == "queued" {
				p.Queued++
			}
		}
	}
	w.mu.Unlock()
	decision := Answer{Accept: p.Queued < w.opt.MaxQueued, Decline: "capacity"}
	if decision.Accept && w.opt.Consider != nil {
		decision = w.opt.Consider(ctx, p)
	}
	var err error
	switch {
	case decision.Accept:
		_, err = w.command(ctx, r, Command{Kind: "work.accept_offer", WorkItemID: p.WorkItemID}, map[string]any{
			"offerId": p.Offer.OfferID, "ownershipLeaseSeconds": w.opt.OwnershipSeconds, "scheduleEstimate": w.estimate(p.Queued),
		})
	case decision.Ask != "":
		err = p.Say(ctx, decision.Ask)
	default:
		_, err = w.command(ctx, r, Command{Kind: "ext.missionweave.work.offer_decline", WorkItemID: p.WorkItemID}, map[string]any{
			"offerId": p.Offer.OfferID, "declineReason": cmp.Or(decision.Decline, "other"),
		})
	}
	switch code := CodeOf(err); {
	case err == nil || ctx.Err() != nil:
	case code == "WORK_ALREADY_OWNED" || code == "WORK_OFFER_EXPIRED":
		w.c.opt.Log.DebugContext(ctx, "an offer went to somebody else", "workItem", p.WorkItemID)
	default:
		w.c.opt.Log.WarnContext(ctx, "answering an offer", "workItem", p.WorkItemID, "error", err)
	}
}

// estimate is a coarse forecast that says nothing of other Groups.
func (w *Worker) estimate(queued int) ScheduleEstimate {
	now := w.c.opt.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	status, wait := "available", 0
	if w.sched.Free() == 0 {
		status, wait = "queued", 1+queued/w.opt.Slots
	}
	begin := now.Add(time.Duration(wait) * time.Minute)
	return ScheduleEstimate{
		EstimatedStart: Timestamp(begin), EstimatedCompletion: Timestamp(begin.Add(time.Minute)),
		Confidence: 0.5, CapacityStatus: status, LastCalculatedAt: Timestamp(now),
	}
}

// maintain renews ownership of what waits, acknowledges what was dealt with, and
// starts what was held back.
func (w *Worker) maintain(ctx context.Context) {
	w.mu.Lock()
	rooms := slices.Collect(maps.Values(w.groups))
	w.mu.Unlock()
	now := w.c.opt.Now()
	for _, r := range rooms {
		w.mu.Lock()
		var renew []*Work
		head, live := r.board.Head, r.live
		for _, item := range r.board.Sorted() {
			if !live || !r.board.Owns(item) || item.State != "queued" || item.OwnershipLease == nil {
				continue
			}
			half := time.Duration(w.opt.OwnershipSeconds) * time.Second / 2
			if left := parseTime(item.OwnershipLease.ExpiresAt).Sub(now); left > 0 && left < half && w.jobs[item.ID] == nil {
				renew = append(renew, &Work{ID: item.ID, OwnershipEpoch: item.OwnershipEpoch})
			}
			w.place(r, item, now)
		}
		w.dispatch(ctx)
		acked := r.acked
		w.mu.Unlock()
		for _, item := range renew {
			_, err := w.command(ctx, r, Command{Kind: "ext.missionweave.work.ownership_lease_renew", WorkItemID: item.ID}, map[string]any{
				"ownershipEpoch": item.OwnershipEpoch, "leaseSeconds": w.opt.OwnershipSeconds,
			})
			if err != nil && ctx.Err() == nil {
				w.c.opt.Log.WarnContext(ctx, "renewing ownership", "workItem", item.ID, "error", err)
			}
		}
		if head > acked && w.session.Acknowledge(ctx, r.board.GroupID, head) == nil {
			w.mu.Lock()
			r.acked = head
			w.mu.Unlock()
		}
	}
}

// command sends a Command under the member's present epochs. A Command that
// crossed with a change of its own Membership or session is signed anew.
func (w *Worker) command(ctx context.Context, r *room, cmd Command, payload any) (*Event, error) {
	w.mu.Lock()
	epoch := r.board.Epoch()
	w.mu.Unlock()
	cmd.GroupID, cmd.MembershipEpoch = r.board.GroupID, epoch
	return w.session.CommandAs(ctx, cmd, payload)
}

// CommandAs is Command for Workers that run for long: a refusal for a Membership
// or Session Epoch that has just changed is answered with a new Command under
// the present one, as often as it changed.
func (s *Session) CommandAs(ctx context.Context, cmd Command, payload any) (*Event, error) {
	for range 4 {
		epoch := s.Epoch()
		event, err := s.Command(ctx, cmd, payload)
		e, ok := errors.AsType[*Error](err)
		switch {
		case !ok:
			return event, err
		case e.Code == "MEMBERSHIP_STALE":
			expected := expectedEpoch(e)
			if expected <= cmd.MembershipEpoch {
				return nil, err
			}
			cmd.MembershipEpoch = expected
		case e.Code == "AUTH_STALE_SESSION" && s.Epoch() != epoch:
		default:
			return nil, err
		}
		cmd.ActionID, cmd.IssuedAt = "", ""
	}
	return nil, fmt.Errorf("client: %s: the epochs keep changing", cmd.Kind)
}

func expectedEpoch(e *Error) int64 {
	epoch, _ := e.Details["expectedMembershipEpoch"].(float64)
	return int64(epoch)
}
