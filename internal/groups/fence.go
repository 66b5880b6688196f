package groups

import (
	"time"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// The fencing gate: P13 to P15. Nothing a kind says can go before it.

// fenceSession is P13: an Agent acts in its current, living session and under
// a living Agent Card.
func fenceSession(x *Ctx) error {
	env := &x.Command.Envelope
	if env.Actor.Type != protocol.ActorAgent {
		return nil
	}
	a, err := x.World.agent(env.Actor.ID)
	if err != nil {
		return err
	}
	switch {
	case a == nil || a.CurrentSessionEpoch == 0:
		return refuse(protocol.CodeAuthRequired, "no_session")
	case env.SessionEpoch != a.CurrentSessionEpoch:
		return protocol.NewError(protocol.CodeAuthStaleSession, "stale_session").
			WithDetail("receivedSessionEpoch", env.SessionEpoch)
	case !x.World.Now.Before(a.SessionExpiresAt):
		return refuse(protocol.CodeAuthRequired, "session_expired")
	}
	if reason := a.Unusable(x.World.Now); reason != "" {
		return forbid(reason)
	}
	x.Agent = a
	return nil
}

// Unusable returns why the Agent's card gives it no authority at now, "" when
// it does; a deprecated card still works.
func (a *Agent) Unusable(now time.Time) string {
	switch {
	case a.Card == nil:
		return "card_missing"
	case a.Card.Status == "revoked":
		return "card_revoked"
	case a.Card.ValidUntil != "" && !leases.Before(now, a.Card.ValidUntil):
		return "card_expired"
	}
	return ""
}

// fenceGroup is P14. A Group the actor never belonged to answers exactly as
// one that does not exist (COMMANDS.md E2).
func fenceGroup(x *Ctx) error {
	env := &x.Command.Envelope
	if x.Kind != nil && (x.Kind.Creates || x.Kind.Organization) {
		x.Capacity = judge(x)
		return nil
	}
	g, err := x.World.group(env.GroupID)
	if err != nil {
		return err
	}
	if g == nil {
		return refuse(protocol.CodeGroupNotFound, "")
	}
	if env.Actor.Type != protocol.ActorService {
		m, ok := g.Member(env.Actor)
		if !ok {
			return refuse(protocol.CodeGroupNotFound, "")
		}
		if membershipEnded(m, x.World.Now) {
			return protocol.NewError(protocol.CodeMembershipRequired, "ended").WithGroup(env.GroupID)
		}
		if m.MembershipEpoch != env.MembershipEpoch {
			return protocol.NewError(protocol.CodeMembershipStale, "stale_membership").
				WithGroup(env.GroupID).
				WithDetail("expectedMembershipEpoch", m.MembershipEpoch).
				WithDetail("receivedMembershipEpoch", env.MembershipEpoch)
		}
		x.Membership = m
	}
	x.Group = g
	x.Capacity = judge(x)
	return nil
}

// fenceCoordinator is P15.
func fenceCoordinator(x *Ctx) error {
	if x.Group == nil {
		return nil
	}
	env := &x.Command.Envelope
	current := x.Group.Mission.Coordinator.CoordinatorEpoch
	stale := func(reason string) error {
		return protocol.NewError(protocol.CodeAuthStaleCoordinator, reason).
			WithDetail("expectedCoordinatorEpoch", current).
			WithDetail("receivedCoordinatorEpoch", env.CoordinatorEpoch)
	}
	if env.CoordinatorEpoch != 0 && env.CoordinatorEpoch != current {
		return stale("stale_coordinator")
	}
	switch {
	case x.Capacity == CapacityCoordinator:
		if env.CoordinatorEpoch == 0 {
			return stale("epoch_missing")
		}
		if x.Group.coordinatorLapsed(x.World.Now) {
			return stale("lease_lapsed")
		}
	case x.Capacity == CapacityMissionOwner && env.Actor.Type == protocol.ActorAgent:
		// A child's owner has its authority from the parent's Coordinator lease.
		parent, err := x.World.group(x.Group.Mission.ParentGroupID)
		if err != nil {
			return err
		}
		if parent == nil || parent.CoordinatorActor() != env.Actor || parent.coordinatorLapsed(x.World.Now) {
			return stale("parent_lease_lapsed")
		}
	}
	return nil
}

// coordinatorLapsed reports a lease that ran out. The lease of a Mission that
// has ended was released, not lost: what its holder still sends fails on the
// Mission's state.
func (s *State) coordinatorLapsed(now time.Time) bool {
	return s.CoordinatorLease.State != leases.Released && !s.CoordinatorLive(now)
}
