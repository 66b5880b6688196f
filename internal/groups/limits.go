package groups

import (
	"slices"
	"time"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// Cooperation limits (COMMANDS.md 7.6).
const (
	LimitMessageRate  = "message_rate"
	LimitProposalRate = "proposal_rate"
	LimitDepth        = "delegation_depth"
	LimitQueued       = "queued_work_items"
	LimitActive       = "active_work_items"
	LimitDuplicate    = "duplicate_decomposition"
	rateWindow        = time.Minute
)

// LimitedKinds says which Command kinds a limit governs; an Override Grant
// must name one of them.
var LimitedKinds = map[string][]string{
	LimitMessageRate:  {"message.post"},
	LimitProposalRate: {"work.propose"},
	LimitDepth:        {"mission.create_child", "work.authorize", "membership.grant_delegation"},
	LimitQueued:       {"work.accept_offer"},
	LimitActive:       {"work.accept_offer", "work.start"},
	LimitDuplicate:    {"work.propose", "work.authorize", "mission.create_child"},
}

// exceeded is one limit a Command would go over.
type exceeded struct {
	policy string
	limit  int64
	// retry is set for rates.
	retry time.Duration
}

// over records that the Command exceeds a limit; whether that refuses it is
// decided when all limits have been looked at.
func (x *Ctx) over(policy string, limit int64, retry time.Duration) {
	x.exceeded = append(x.exceeded, exceeded{policy, limit, retry})
}

// soften records that the Command brings a count to its soft threshold: the
// limit still holds, and the Group is told before it does (PROTOCOL.md 20). Only
// the act that reaches the threshold tells; those after it do not repeat it.
func (x *Ctx) soften(policy string, current, limit int64) {
	percent := int64(x.limits().SoftPercent)
	if percent <= 0 || limit <= 0 || current > limit || current != (limit*percent+99)/100 {
		return
	}
	x.out.soft = append(x.out.soft, &SoftLimitReached{PolicyName: policy, Subject: x.Actor(), Current: current, Limit: limit})
}

// limits are the limits of the Command's Group.
func (x *Ctx) limits() Limits { return x.World.Org.limits(x.Command.Envelope.GroupID) }

// settleLimits refuses what is over a limit, unless the cited Override Grant
// is for exactly this.
func settleLimits(x *Ctx) error {
	env := &x.Command.Envelope
	cited := env.CooperationOverrideGrantID
	if cited == "" {
		if len(x.exceeded) == 0 {
			return nil
		}
		return x.exceeded[0].refusal()
	}
	var grant *Override
	if x.Group != nil {
		grant = x.Group.Overrides[cited]
	}
	if grant == nil || grant.ConsumedByEventID != "" || grant.Beneficiary != env.Actor ||
		grant.TargetCommandKind != env.Kind || grant.TargetActionID != env.ActionID ||
		!x.Kind.governedBy(grant.PolicyName) || !leases.Before(x.World.Now, grant.ExpiresAt) {
		return forbid("override")
	}
	used := false
	for _, e := range x.exceeded {
		if e.policy != grant.PolicyName {
			return e.refusal()
		}
		used = true
	}
	if !used {
		return invalid("override_not_needed")
	}
	x.out.consume = grant
	return nil
}

func (e exceeded) refusal() error {
	err := protocol.NewError(protocol.CodeRateLimited, e.policy).
		WithDetail("policyName", e.policy).WithDetail("limit", e.limit)
	if e.retry > 0 {
		err = err.WithRetryAfter(max(1, e.retry.Milliseconds()))
	}
	return err
}

// window holds when an actor acted lately, oldest first, in microseconds since
// 1970. It keeps the last rateWindow before its newest entry, and no more than
// maxRate entries, so that a hot Group without a limit does not grow one.
type window struct {
	at []int64
	// from is the first entry that counts; those before it wait to be dropped
	// together.
	from int
}

// maxRate is the largest limit per minute that is told from none.
const maxRate = 10_000

// live are the entries that count.
func (w *window) live() []int64 {
	if w == nil {
		return nil
	}
	return w.at[w.from:]
}

// remember adds an act. Clocks of two replicas may differ a little; the entries
// stay in order all the same.
func (w *window) remember(at time.Time) {
	now := at.UnixMicro()
	if n := len(w.at); n > w.from {
		now = max(now, w.at[n-1])
	}
	for w.from < len(w.at) && (w.at[w.from] <= now-rateWindow.Microseconds() || len(w.at)-w.from >= maxRate) {
		w.from++
	}
	if w.from > 64 && w.from > len(w.at)/2 {
		w.at = append(w.at[:0], w.at[w.from:]...)
		w.from = 0
	}
	w.at = append(w.at, now)
}

// rate counts an actor's recent acts against a limit per minute; 0 switches
// the limit off.
func (x *Ctx) rate(policy string, recent *window, limit int) {
	if limit == 0 || limit > maxRate {
		return
	}
	acts, from := recent.live(), x.World.Now.Add(-rateWindow).UnixMicro()
	n, _ := slices.BinarySearch(acts, from+1)
	acts = acts[n:]
	x.soften(policy, int64(len(acts))+1, int64(limit))
	if len(acts) >= limit {
		// The act that must leave the window before the next one fits.
		free := time.UnixMicro(acts[len(acts)-limit]).Add(rateWindow)
		x.over(policy, int64(limit), free.Sub(x.World.Now))
	}
}

// record remembers an actor's act in its window.
func record(windows map[protocol.Actor]*window, actor protocol.Actor, at time.Time) {
	w := windows[actor]
	if w == nil {
		w = &window{}
		windows[actor] = w
	}
	w.remember(at)
}
