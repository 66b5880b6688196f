// Package leases makes, renews and closes the four fenced leases: coordinator,
// ownership, execution and blocked.
//
// The hazard it guards against is a lease that outlives its fence: a document
// that says "active" although its time has passed, a renewal that shortens or
// resurrects it, or a closure written with the wrong time because a sweeper
// happened to be late. So validity is always a half-open comparison with the
// caller's clock, a lapsed lease closes as expired at its own expiry whoever
// writes it down, and every change of a lease's times is counted in its
// document (COMMANDS.md 4.5 and 7.3, PROTOCOL.md 11.3).
//
// Documents are values: each function returns the next document and leaves the
// given one as it was. Times in documents keep their lexical spelling; they are
// compared exactly.
package leases

import (
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// Lease states.
const (
	Active   = "active"
	Expired  = "expired"
	Revoked  = "revoked"
	Released = "released"
)

// Closure reasons (COMMANDS.md 3.5).
const (
	ReasonCheckpointed        = "checkpointed"
	ReasonBlocked             = "blocked"
	ReasonSubmitted           = "submitted"
	ReasonVerified            = "verified"
	ReasonFailed              = "failed"
	ReasonCancelled           = "cancelled"
	ReasonChildMission        = "child_mission"
	ReasonSessionReplaced     = "session_replaced"
	ReasonAgentRevoked        = "agent_revoked"
	ReasonMembershipEnded     = "membership_ended"
	ReasonOwnerLapsed         = "owner_lapsed"
	ReasonReassigned          = "reassigned"
	ReasonMissionEnded        = "mission_ended"
	ReasonCoordinatorReplaced = "coordinator_replaced"
	ReasonUnblocked           = "unblocked"
	ReasonExpired             = "expired"
)

// Terms are the facts a new lease records. WorkItemID and OwnershipEpoch
// belong to all types but coordinator, CoordinatorEpoch to that one only, and
// StartBy to ownership only. Grace is honoured for ownership and blocked.
type Terms struct {
	LeaseID          string
	MissionID        string
	GroupID          string
	WorkItemID       string
	HolderAgentID    string
	SessionEpoch     int64
	CoordinatorEpoch int64
	OwnershipEpoch   int64
	Now              time.Time
	ExpiresAt        string
	StartBy          string
	Grace            time.Duration
}

// Open makes an active lease of the given type. startsAt equals issuedAt.
func Open(leaseType string, t Terms) protocol.Lease {
	now := lexical.FormatMicros(t.Now)
	l := protocol.Lease{
		LeaseID: t.LeaseID, LeaseType: leaseType, MissionID: t.MissionID, GroupID: t.GroupID,
		HolderAgentID: t.HolderAgentID, SessionEpoch: t.SessionEpoch,
		IssuedAt: now, StartsAt: now, ExpiresAt: t.ExpiresAt, State: Active,
	}
	if leaseType == protocol.LeaseCoordinator {
		l.CoordinatorEpoch = t.CoordinatorEpoch
		return l
	}
	l.WorkItemID, l.OwnershipEpoch = t.WorkItemID, t.OwnershipEpoch
	if leaseType == protocol.LeaseOwnership {
		l.StartBy = t.StartBy
	}
	if t.Grace > 0 && leaseType != protocol.LeaseExecution {
		l.GraceExpiresAt = shifted(t.ExpiresAt, t.Grace)
	}
	return l
}

// In spells the instant d after now, as documents spell it.
func In(now time.Time, d time.Duration) string { return lexical.FormatMicros(now.Add(d)) }

// LiveAt reports whether the lease is active and now lies in the half-open
// interval [startsAt, expiresAt). A nil lease is not live.
func LiveAt(l *protocol.Lease, now time.Time) bool {
	return l != nil && l.State == Active && !Before(now, l.StartsAt) && Before(now, l.ExpiresAt)
}

// Lapsed reports whether a lease that nobody closed has passed its expiry.
func Lapsed(l *protocol.Lease, now time.Time) bool {
	return l != nil && l.State == Active && !Before(now, l.ExpiresAt)
}

// Renew gives the lease a new expiry. sessionEpoch is the holder's present one
// when the holder acts, else 0.
func Renew(l protocol.Lease, now time.Time, expiresAt string, sessionEpoch int64) protocol.Lease {
	return Set(l, now, expiresAt, "", sessionEpoch)
}

// Raise gives the lease a later expiry; an earlier or equal one changes
// nothing at all.
func Raise(l protocol.Lease, now time.Time, expiresAt string, sessionEpoch int64) protocol.Lease {
	if Compare(expiresAt, l.ExpiresAt) <= 0 {
		return l
	}
	return Set(l, now, expiresAt, "", sessionEpoch)
}

// Set gives the lease new times, later or earlier; an empty startBy leaves it.
// When neither instant changes the document stays as it is.
func Set(l protocol.Lease, now time.Time, expiresAt, startBy string, sessionEpoch int64) protocol.Lease {
	moved := Compare(expiresAt, l.ExpiresAt) != 0
	shift := startBy != "" && (l.StartBy == "" || Compare(startBy, l.StartBy) != 0)
	if !moved && !shift {
		return l
	}
	if moved {
		if l.GraceExpiresAt != "" {
			l.GraceExpiresAt = shifted(l.GraceExpiresAt, distance(l.ExpiresAt, expiresAt))
		}
		l.ExpiresAt = expiresAt
	}
	if shift {
		l.StartBy = startBy
	}
	l.RenewalCount++
	l.LastRenewedAt = lexical.FormatMicros(now)
	if sessionEpoch > 0 {
		l.SessionEpoch = sessionEpoch
	}
	return l
}

// Close ends an active lease in the given state for the given reason; one
// whose expiry has passed ends as expired at that expiry instead, so that the
// document does not depend on whether a timer wrote it first. A lease that is
// closed already is returned unchanged.
func Close(l protocol.Lease, now time.Time, state, reason string) protocol.Lease {
	if l.State != Active {
		return l
	}
	if !Before(now, l.ExpiresAt) {
		l.State, l.ClosedAt, l.ClosureReason = Expired, l.ExpiresAt, ReasonExpired
		return l
	}
	l.State, l.ClosedAt, l.ClosureReason = state, lexical.FormatMicros(now), reason
	return l
}

// Before reports now < at. An unreadable time counts as past, so that it can
// only take authority away; stored documents have readable times.
func Before(now time.Time, at string) bool {
	i, err := lexical.ParseTimestamp(at)
	return err == nil && lexical.InstantOf(now).Before(i)
}

// Compare orders two times exactly; an unreadable one is the earliest.
func Compare(a, b string) int {
	x, errA := lexical.ParseTimestamp(a)
	y, errB := lexical.ParseTimestamp(b)
	switch {
	case errA != nil && errB != nil:
		return 0
	case errA != nil:
		return -1
	case errB != nil:
		return 1
	}
	return x.Compare(y)
}

func shifted(at string, d time.Duration) string {
	i, err := lexical.ParseTimestamp(at)
	if err != nil {
		return at
	}
	return lexical.FormatMicros(i.Add(d).Time())
}

func distance(from, to string) time.Duration {
	a, errA := lexical.ParseTimestamp(from)
	b, errB := lexical.ParseTimestamp(to)
	if errA != nil || errB != nil {
		return 0
	}
	return b.Time().Sub(a.Time())
}
