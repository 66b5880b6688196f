package leases

import (
	"errors"
	"time"

	"github.com/missionweave/server/internal/protocol"
)

// ErrBounds says that a requested duration lies outside Organization policy
// (IC:lease_bounds).
var ErrBounds = errors.New("leases: duration outside policy")

// Bounds are the seconds one kind of lease may last. They lie inside the
// protocol's own bounds, which the payload profile checks.
type Bounds struct {
	Default, Min, Max int64
}

// Policy is an Organization's lease policy; Grace is the reassignment grace of
// ownership and blocked leases, zero for none.
type Policy struct {
	Coordinator, Ownership, Execution, Blocked, Offer Bounds
	Grace                                             time.Duration
}

// DefaultPolicy returns the durations of COMMANDS.md 7.3.
func DefaultPolicy() Policy {
	const month = 2592000
	return Policy{
		Coordinator: Bounds{Default: 300, Min: 1, Max: 86400},
		Ownership:   Bounds{Default: 900, Min: 1, Max: month},
		Execution:   Bounds{Default: 300, Min: 1, Max: 3600},
		Blocked:     Bounds{Default: 900, Min: 1, Max: month},
		Offer:       Bounds{Default: 300, Min: 1, Max: month},
	}
}

// Of returns the bounds of a lease type.
func (p Policy) Of(leaseType string) Bounds {
	switch leaseType {
	case protocol.LeaseCoordinator:
		return p.Coordinator
	case protocol.LeaseOwnership:
		return p.Ownership
	case protocol.LeaseExecution:
		return p.Execution
	default:
		return p.Blocked
	}
}

// Duration turns requested seconds (nil: the default, pressed into the bounds)
// into a duration; ErrBounds when policy does not allow it.
func (b Bounds) Duration(seconds *int64) (time.Duration, error) {
	s := min(max(b.Default, b.Min), b.Max)
	if seconds != nil {
		if s = *seconds; s < b.Min || s > b.Max {
			return 0, ErrBounds
		}
	}
	return time.Duration(s) * time.Second, nil
}
