package groups

import (
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

// rate counts an actor's recent acts against a limit per minute; 0 switches
// the limit off.
func (x *Ctx) rate(policy string, recent []time.Time, limit int) {
	if limit == 0 {
		return
	}
	from := x.World.Now.Add(-rateWindow)
	n := 0
	for n < len(recent) && !recent[n].After(from) {
		n++
	}
	if recent = recent[n:]; len(recent) >= limit {
		// The act that must leave the window before the next one fits.
		free := recent[len(recent)-limit].Add(rateWindow)
		x.over(policy, int64(limit), free.Sub(x.World.Now))
	}
}

// remember adds an act to a rate's window and drops what has left it.
func remember(recent []time.Time, at time.Time) []time.Time {
	from := at.Add(-rateWindow)
	n := 0
	for n < len(recent) && !recent[n].After(from) {
		n++
	}
	// Nobody else holds the slice: appending in place keeps a busy Group, or one
	// without a rate limit, from copying its window with every Message.
	return append(recent[n:], at)
}
