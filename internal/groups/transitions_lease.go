package groups

import (
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// Causes of lease rows that are not a Command kind.
const (
	causeFence        = "work.offer fences the owner"
	causeChildBegun   = "mission.create_child"
	causeChildOver    = "child Mission ended, work stays or is verified"
	causeCreated      = "Mission created"
	causeWorkOver     = "work ends with its Mission or child Mission"
	causeAgentRevoked = "agent revoked"
	causeSessionTaken = "session takeover"
)

var (
	openLease     = []string{leases.Active}
	leaseReleased = []string{leases.Released}
	leaseRevoked  = []string{leases.Revoked}
	leaseExpired  = []string{leases.Expired}
)

const eventLeaseExpired = "ext.missionweave.authority.lease_expired"

// LeaseTransitions is COMMANDS.md 4.5 by lease type. A row from active to active
// changes expiry or start-by time of the document, which counts as renewal. An
// Event that closes a lease past its expiry closes it as expired, whatever the row
// says; no timer Event follows then.
var LeaseTransitions = map[string][]Transition{
	protocol.LeaseCoordinator: {
		{nil, causeCreated, "mission.created", openLease, "root, child or follow-up Mission"},
		{nil, "mission.assign_coordinator", "mission.coordinator.assigned", openLease, ""},
		{openLease, "mission.renew_coordinator", "mission.coordinator.renewed", openLease, "before the expiry"},
		{openLease, causeMissionOver, "", leaseReleased, ""},
		{openLease, "mission.assign_coordinator", "mission.coordinator.assigned", leaseRevoked, "before the expiry"},
		{openLease, causeLeaseExpiry, eventLeaseExpired, leaseExpired, ""},
	},
	protocol.LeaseOwnership: {
		{nil, "work.accept_offer", "work.offer.accepted", openLease, ""},
		{openLease, "work.start", "work.started", openLease, "raise only"},
		{openLease, "ext.missionweaveprotocol.core.work_execution_lease_renew", "work.progressed", openLease, "raise only"},
		{openLease, "work.checkpoint", "work.checkpointed", openLease, ""},
		{openLease, "ext.missionweave.work.ownership_lease_renew", "ext.missionweave.work.ownership_lease_renewed", openLease, "raise only"},
		{openLease, "work.block", "work.blocked", openLease, "to the blocked lease's expiry"},
		{openLease, "work.unblock", "work.unblocked", openLease, "to queued, raise only"},
		{openLease, "work.accept_result", "work.result.accepted", leaseReleased, ""},
		{openLease, "work.fail", "work.failed", leaseRevoked, ""},
		{openLease, "work.cancel", "work.cancelled", leaseRevoked, ""},
		{openLease, causeFence, "work.offer.created", leaseRevoked, "start-by missed, or the Execution or blocked lease expired first"},
		{openLease, causeOwnerLeft, "ext.missionweave.authority.ownership_released", leaseRevoked, ""},
		{openLease, causeChildBegun, "mission.child.created", leaseRevoked, ""},
		{openLease, causeWorkOver, "", leaseRevoked, ""},
		{openLease, causeLeaseExpiry, eventLeaseExpired, leaseExpired, ""},
	},
	protocol.LeaseExecution: {
		{nil, "work.start", "work.started", openLease, ""},
		{openLease, "ext.missionweaveprotocol.core.work_execution_lease_renew", "work.progressed", openLease, "before the expiry"},
		{openLease, "work.checkpoint", "work.checkpointed", leaseReleased, ""},
		{openLease, "work.block", "work.blocked", leaseReleased, ""},
		{openLease, "work.submit", "work.submitted", leaseReleased, ""},
		{openLease, causeSessionTaken, "ext.missionweaveprotocol.core.work_execution_lease_revoked", leaseRevoked, ""},
		{openLease, causeAgentRevoked, "ext.missionweaveprotocol.core.work_execution_lease_revoked", leaseRevoked, ""},
		{openLease, "work.fail", "work.failed", leaseRevoked, ""},
		{openLease, "work.cancel", "work.cancelled", leaseRevoked, ""},
		{openLease, causeChildBegun, "mission.child.created", leaseRevoked, ""},
		{openLease, causeOwnerLeft, "ext.missionweave.authority.ownership_released", leaseRevoked, ""},
		{openLease, causeWorkOver, "", leaseRevoked, ""},
		{openLease, causeLeaseExpiry, eventLeaseExpired, leaseExpired, ""},
	},
	protocol.LeaseBlocked: {
		{nil, "work.block", "work.blocked", openLease, ""},
		{nil, causeChildBegun, "mission.child.created", openLease, "custody, to the child's deadline"},
		{openLease, "work.unblock", "work.unblocked", leaseReleased, ""},
		{openLease, causeChildOver, "", leaseReleased, ""},
		{openLease, "work.fail", "work.failed", leaseRevoked, ""},
		{openLease, "work.cancel", "work.cancelled", leaseRevoked, ""},
		{openLease, causeOwnerLeft, "ext.missionweave.authority.ownership_released", leaseRevoked, ""},
		{openLease, causeChildBegun, "mission.child.created", leaseRevoked, "a Worker's blocked lease"},
		{openLease, causeWorkOver, "", leaseRevoked, ""},
		{openLease, causeLeaseExpiry, eventLeaseExpired, leaseExpired, ""},
	},
}
