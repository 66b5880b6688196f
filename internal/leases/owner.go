package leases

import (
	"time"

	"github.com/missionweave/server/internal/protocol"
)

// Ownership is what decides whether an owner is live. Leases are the current
// ones of the owner's Ownership Epoch, nil when there is none.
type Ownership struct {
	// State of the WorkItem.
	State                         string
	Ownership, Execution, Blocked *protocol.Lease
	// Started says that work was started under this Ownership Epoch; from then
	// on the start-by time has no effect.
	Started bool
	// PinsHeld says that the owner's present Agent Card satisfies the pins.
	PinsHeld bool
	// Custody says that the owner record only holds the WorkItem for a child
	// Mission, ChildLive that this child is not terminal.
	Custody, ChildLive bool
}

// OwnerLive decides COMMANDS.md 4.2.1. Custody has no Ownership Lease: it is
// live exactly as long as its child.
func OwnerLive(o Ownership, now time.Time) bool {
	if o.Custody {
		return o.ChildLive
	}
	if !LiveAt(o.Ownership, now) {
		return false
	}
	switch o.State {
	case protocol.WorkQueued:
		return o.PinsHeld && (o.Started || Before(now, o.Ownership.StartBy))
	case protocol.WorkActive:
		return LiveAt(o.Execution, now)
	case protocol.WorkBlocked:
		return LiveAt(o.Blocked, now)
	default:
		return true
	}
}
