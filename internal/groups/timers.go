package groups

import (
	"cmp"
	"container/heap"
	"time"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// What expires, and when (COMMANDS.md 7.8). The hazard here is a timer that
// acts on something it was not set for: a lease renewed since, an approval
// already revoked. So a timer is only a hint where to look, and whether it
// stands is decided by the object's present state. Outcomes never depend on a
// timer having run.

// timer is a moment at which an object may have to be recorded as expired.
type timer struct {
	due lexical.Instant
	timerKey
}

// timerKey names the object: a lease slot, a Membership, an approval or a
// request.
type timerKey struct {
	kind timerKind
	id   string // WorkItem, or Agent of a Membership
	sub  string // approval or request
}

type timerKind string

const (
	timerOwnership   timerKind = "ownership"
	timerExecution   timerKind = "execution"
	timerBlocked     timerKind = "blocked"
	timerCoordinator timerKind = "coordinator"
	timerMembership  timerKind = "membership"
	timerApproval    timerKind = "approval"
	timerRequest     timerKind = "request"
)

// timers is a queue of what is due, earliest first; set says which entry of an
// object stands, and entries that no longer do are dropped when met.
type timers struct {
	queue timerQueue
	set   map[timerKey]lexical.Instant
}

type timerQueue []timer

func (q timerQueue) Len() int { return len(q) }
func (q timerQueue) Less(i, j int) bool {
	a, b := &q[i], &q[j]
	return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.id, b.id), cmp.Compare(a.kind, b.kind), cmp.Compare(a.sub, b.sub)) < 0
}
func (q timerQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *timerQueue) Push(x any)   { *q = append(*q, x.(timer)) }
func (q *timerQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

// at sets an object's timer to the moment text names, or clears it for "".
func (t *timers) at(key timerKey, text string) {
	due, err := lexical.ParseTimestamp(text)
	if text == "" || err != nil {
		delete(t.set, key)
		return
	}
	if old, ok := t.set[key]; ok && old.Equal(due) {
		return
	}
	if t.set == nil {
		t.set = map[timerKey]lexical.Instant{}
	}
	t.set[key] = due
	heap.Push(&t.queue, timer{due, key})
}

func (t *timers) stands(e timer) bool {
	due, ok := t.set[e.timerKey]
	return ok && due.Equal(e.due)
}

// next drops what no longer stands and returns the earliest timer.
func (t *timers) next() (timer, bool) {
	for len(t.queue) > 0 {
		if t.stands(t.queue[0]) {
			return t.queue[0], true
		}
		heap.Pop(&t.queue)
	}
	return timer{}, false
}

// maxSweep bounds the expiries one Sweep records, so that a Group that slept for
// a long time does not become one enormous transaction; NextTimer still says
// that more is due.
const maxSweep = 2000

// until returns what is due at now, in order, and leaves it in the queue: only
// the Event that records an expiry takes it out.
func (t *timers) until(now lexical.Instant) []timer {
	var out []timer
	for len(out) < maxSweep {
		e, ok := t.next()
		if !ok || now.Before(e.due) {
			break
		}
		heap.Pop(&t.queue)
		if len(out) == 0 || out[len(out)-1] != e {
			out = append(out, e)
		}
	}
	for _, e := range out {
		heap.Push(&t.queue, e)
	}
	return out
}

// schedule sets the timers of an aggregate that an Event revised.
func (s *State) schedule(a Aggregate) {
	switch a.Type {
	case AggregateWorkItem:
		if w := s.WorkItems[a.ID]; w != nil {
			s.scheduleItem(w)
		}
	case AggregateMission, AggregateCoordinatorLease:
		s.scheduleCoordinator()
	}
}

func (s *State) scheduleCoordinator() {
	s.timers.at(timerKey{kind: timerCoordinator}, openUntil(s.CoordinatorLease))
}

// scheduleMember sets the timer of a provisional Membership.
func (s *State) scheduleMember(m *protocol.Membership) {
	due := ""
	if m.State == membershipStateProvisional {
		due = m.ProvisionalExpiresAt
	}
	s.timers.at(timerKey{kind: timerMembership, id: m.Member.ID, sub: m.Member.Type}, due)
}

func (s *State) scheduleItem(w *WorkItem) {
	id := w.WorkItemID
	s.timers.at(timerKey{kind: timerOwnership, id: id}, openUntil(w.Ownership))
	s.timers.at(timerKey{kind: timerExecution, id: id}, openUntil(w.Execution))
	s.timers.at(timerKey{kind: timerBlocked, id: id}, openUntil(w.Blocked))
	for i := range w.Executions {
		e, due := &w.Executions[i], ""
		if e.Status == executionApproved {
			due = e.ExpiresAt
		}
		s.timers.at(timerKey{timerApproval, id, e.ApprovalID}, due)
	}
	for i := range w.Requests {
		r, due := &w.Requests[i], ""
		if r.Status == requestPending {
			due = r.ExpiresAt
		}
		s.timers.at(timerKey{timerRequest, id, r.RequestID}, due)
	}
}

func openUntil(l *protocol.Lease) string {
	if l == nil || l.State != leases.Active {
		return ""
	}
	return l.ExpiresAt
}

// NextTimer is when something of the Group expires next; ok is false when
// nothing will. An archived Group has no timers.
func (s *State) NextTimer() (at time.Time, ok bool) {
	if s.Group == nil || s.Archived() {
		return time.Time{}, false
	}
	e, ok := s.timers.next()
	if !ok {
		return time.Time{}, false
	}
	return e.due.Time(), true
}

// Sweep returns the Events that record what has expired by now and has no Event
// yet (COMMANDS.md 7.8); an empty Decision when there is nothing. It may run
// late or never. The caller appends the Drafts like those of Decide, under the
// same locks, so that another Event that closed an object first is already in
// the state.
func Sweep(w *World, s *State) Decision {
	w = w.whole()
	x := &Ctx{World: w, Group: s, Now: lexical.FormatMicros(w.Now)}
	x.out.init(x)
	if s.Group == nil || s.Archived() {
		return Decision{}
	}
	for _, e := range s.timers.until(lexical.InstantOf(w.Now)) {
		x.expire(e)
	}
	return Decision{Drafts: x.out.drafts, Sign: x.out.sign}
}

func (x *Ctx) expire(e timer) {
	s := x.Group
	switch item := s.WorkItems[e.id]; e.kind {
	case timerCoordinator:
		x.expireLease(nil, s.CoordinatorLease)
	case timerMembership:
		x.expireMembership(protocol.Actor{Type: e.sub, ID: e.id})
	case timerOwnership:
		x.expireLease(item, item.Ownership)
	case timerExecution:
		x.expireLease(item, item.Execution)
	case timerBlocked:
		x.expireLease(item, item.Blocked)
	case timerApproval:
		for i := range item.Executions {
			if a := &item.Executions[i]; a.ApprovalID == e.sub {
				x.expireApproval(item, &ExecutionExpired{ApprovalID: a.ApprovalID, ExpiredAt: a.ExpiresAt}, e.sub)
			}
		}
	case timerRequest:
		for i := range item.Requests {
			if r := &item.Requests[i]; r.RequestID == e.sub {
				x.expireApproval(item, &ExecutionExpired{RequestID: r.RequestID, ExpiredAt: r.ExpiresAt}, e.sub)
			}
		}
	}
}

func (x *Ctx) expireLease(w *WorkItem, l *protocol.Lease) {
	payload := &LeaseExpired{Lease: leases.Close(*l, x.World.Now, leases.Expired, leases.ReasonExpired)}
	if w != nil {
		payload.WorkItemID, payload.State = w.WorkItemID, w.State
	}
	x.emitTo(x.Group, "ext.missionweave.authority.lease_expired", payload, emission{WorkItem: w, Timer: l.LeaseID})
}

func (x *Ctx) expireMembership(member protocol.Actor) {
	m := x.Group.Memberships[member]
	timer := emission{Timer: m.MembershipID}
	x.emitTo(x.Group, "membership.ended", x.endMembership(x.Group, m, "provisional_expired"), timer)
	x.releaseMember(x.Group, member, releaseEnded, false, true, timer)
}

func (x *Ctx) expireApproval(w *WorkItem, p *ExecutionExpired, id string) {
	p.WorkItemID, p.State = w.WorkItemID, w.State
	x.emitTo(x.Group, "ext.missionweave.approval.execution_expired", p, emission{WorkItem: w, Timer: id})
}
