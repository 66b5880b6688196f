package groups

import (
	"slices"

	"github.com/missionweave/server/internal/protocol"
)

// Transition is one row of COMMANDS.md section 4. The rows are data: the state
// checks of P22, the documentation of the state machines and the conformance
// matrix are made from the same table.
type Transition struct {
	// From lists the states the row starts in; empty when the object does not
	// exist yet.
	From []string
	// Cause is a Command kind, or in words what happened.
	Cause string
	// Event is the kind that records it, "" when nothing does.
	Event string
	// To lists the states it can end in; empty when the state stays.
	To []string
	// When is a condition beyond the state, "" for none.
	When string
}

// Causes that are not a Command kind alone.
const (
	causeOwnFailure    = "work.fail by the owner"
	causeMeter         = "resource_usage_record by a service"
	causeTakeover      = "session takeover, agent revoked"
	causeChildApproved = "child Mission approved"
	causeChildEnded    = "child Mission failed or cancelled, work stays"
	causeChildFailed   = "child Mission failed, work fails with it"
	causeOwnerLeft     = "owner's Membership ended or lost work.execute"
	causeOffersGone    = "candidate's Membership ended or lost work.accept_offer"
	causeMissionFailed = "Mission failed"
	causeMissionEnded  = "Mission cancelled"
	causeLeaseExpiry   = "lease expiry"
	causeGateExpiry    = "execution approval or request expiry"
	causeMissionOver   = "Mission ended"
)

var (
	anyWork        = workStates
	unfinishedWork = workStates[:6]
	unsubmitted    = workStates[:5]
	offerable      = append(slices.Clone(unsubmitted), protocol.WorkFailed)

	inOpen      = []string{protocol.WorkOpen}
	inOffered   = []string{protocol.WorkOffered}
	inQueued    = []string{protocol.WorkQueued}
	inActive    = []string{protocol.WorkActive}
	inBlocked   = []string{protocol.WorkBlocked}
	inSubmitted = []string{protocol.WorkSubmitted}
	inVerified  = []string{protocol.WorkVerified}
	inFailed    = []string{protocol.WorkFailed}
	inCancelled = []string{protocol.WorkCancelled}
)

// WorkItemTransitions is COMMANDS.md 4.2.
var WorkItemTransitions = []Transition{
	{nil, "work.authorize", "work.authorized", inOpen, "Mission active"},
	{offerable, "work.offer", "work.offer.created", inOffered, "no live owner, no live child"},
	{offerable, "work.offer with a contract", "work.contract.revised", nil, "no live owner, no live child"},
	{inOffered, "work.accept_offer", "work.offer.accepted", inQueued, "own pending offer"},
	{inOffered, "ext.missionweave.work.offer_decline", "ext.missionweave.work.offer_declined", nil, "own pending offer"},
	{inOffered, causeOffersGone, "ext.missionweave.authority.offers_withdrawn", nil, ""},
	{[]string{protocol.WorkOpen, protocol.WorkOffered}, "ext.missionweaveprotocol.core.work_dependency_add", "work.contract.revised", nil, ""},
	{inQueued, "approval.grant_execution", "approval.execution.granted", nil, "ownership lease live"},
	{inQueued, "ext.missionweave.approval.request_execution", "ext.missionweave.approval.execution_requested", nil, ""},
	{append(slices.Clone(unfinishedWork), protocol.WorkFailed), "ext.missionweave.approval.deny_execution", "ext.missionweave.approval.execution_denied", nil, ""},
	{anyWork, "ext.missionweave.approval.revoke_execution", "ext.missionweave.approval.execution_revoked", nil, "approval in force"},
	{anyWork, causeGateExpiry, "ext.missionweave.approval.execution_expired", nil, ""},
	{[]string{protocol.WorkQueued, protocol.WorkActive}, "ext.missionweave.approval.request_action", "ext.missionweave.approval.action_requested", nil, ""},
	{anyWork, "ext.missionweave.approval.decide_action", "ext.missionweave.approval.action_decided", nil, "request pending"},
	{inActive, "ext.missionweave.approval.consume_action", "ext.missionweave.approval.action_consumed", nil, "granted, unused, execution lease live"},
	{unfinishedWork, "ext.missionweave.budget.increase", "ext.missionweave.budget.increased", nil, ""},
	{inQueued, "work.start", "work.started", inActive, "gates, dependencies, leases"},
	{inQueued, "ext.missionweave.work.ownership_lease_renew", "ext.missionweave.work.ownership_lease_renewed", nil, "ownership lease live"},
	{inActive, "ext.missionweaveprotocol.core.work_execution_lease_renew", "work.progressed", nil, "execution lease live"},
	{inActive, "artifact.publish", "artifact.published", nil, "execution lease live"},
	{inActive, "ext.missionweaveprotocol.core.resource_usage_record", eventUsageRecorded, nil, "execution lease live"},
	{anyWork, causeMeter, eventUsageRecorded, nil, ""},
	{inActive, "work.checkpoint", "work.checkpointed", inQueued, "execution lease live"},
	{inActive, "work.block", "work.blocked", inBlocked, "execution lease live"},
	{inActive, causeTakeover, "ext.missionweaveprotocol.core.work_execution_lease_revoked", inQueued, ""},
	{inBlocked, "work.unblock", "work.unblocked", []string{protocol.WorkQueued, protocol.WorkOpen}, "no live child; queued while both leases live"},
	{inActive, "work.submit", "work.submitted", inSubmitted, "execution lease live"},
	{inSubmitted, "work.accept_result", "work.result.accepted", inVerified, ""},
	{unfinishedWork, "work.fail", "work.failed", inFailed, ""},
	{inActive, causeOwnFailure, "work.failed", inFailed, "execution lease live"},
	{unfinishedWork, "work.cancel", "work.cancelled", inCancelled, ""},
	{unsubmitted, "mission.create_child", "mission.child.created", inBlocked, "no live child"},
	{inBlocked, causeChildApproved, "work.result.accepted", inVerified, "blocked on that child"},
	{inBlocked, causeChildEnded, "work.blocked", nil, "blocked on that child"},
	{inBlocked, causeChildFailed, "work.failed", inFailed, "by its failure policy"},
	{[]string{protocol.WorkQueued, protocol.WorkActive, protocol.WorkBlocked}, causeOwnerLeft, "ext.missionweave.authority.ownership_released", nil, ""},
	{[]string{protocol.WorkQueued, protocol.WorkActive, protocol.WorkBlocked, protocol.WorkSubmitted}, causeLeaseExpiry, eventLeaseExpired, nil, ""},
	{unfinishedWork, causeMissionFailed, "work.failed", inFailed, ""},
	{unfinishedWork, causeMissionEnded, "work.cancelled", inCancelled, ""},
}

var openMission = []string{protocol.MissionActive, protocol.MissionAwaitingApproval}

// MissionTransitions is COMMANDS.md 4.1.
var MissionTransitions = []Transition{
	{nil, "mission.create", "mission.created", []string{protocol.MissionActive}, ""},
	{nil, "mission.create_follow_up", "mission.follow_up.created", []string{protocol.MissionActive}, "source approved"},
	{nil, "mission.create_child", "mission.created", []string{protocol.MissionActive}, ""},
	{[]string{protocol.MissionActive}, "mission.submit_for_approval", "mission.submitted_for_approval", []string{protocol.MissionAwaitingApproval}, "all work finished"},
	{[]string{protocol.MissionAwaitingApproval}, "mission.request_changes", "mission.changes_requested", []string{protocol.MissionActive}, ""},
	{[]string{protocol.MissionAwaitingApproval}, "mission.approve", "mission.approved", []string{protocol.MissionApproved}, ""},
	{openMission, "mission.cancel", "mission.cancelled", []string{protocol.MissionCancelled}, ""},
	{openMission, "parent Mission or parent WorkItem cancelled", "mission.cancelled", []string{protocol.MissionCancelled}, ""},
	{openMission, "mission.terminate", "mission.terminated", []string{protocol.MissionFailed}, ""},
	{openMission, "parent Mission or parent WorkItem failed, child failed with fail_parent_mission", "mission.terminated", []string{protocol.MissionFailed}, ""},
	{openMission, "mission.assign_coordinator", "mission.coordinator.assigned", nil, ""},
	{openMission, "mission.renew_coordinator", "mission.coordinator.renewed", nil, "lease live"},
	{openMission, "ext.missionweave.budget.increase", "ext.missionweave.budget.increased", nil, ""},
	{openMission, "ext.missionweave.mission.extend_deadline", "ext.missionweave.mission.deadline_extended", nil, ""},
	{openMission, "parent Coordinator replaced", "ext.missionweave.authority.mission_owner_transferred", nil, ""},
	{[]string{protocol.MissionApproved}, "mission.create_follow_up on it", "ext.missionweave.authority.follow_up_linked", nil, ""},
}

// MembershipTransitions is COMMANDS.md 4.3.
var MembershipTransitions = []Transition{
	{nil, "Mission created", "mission.created", []string{membershipStateActive}, "owner, Coordinator, root human in a child"},
	{[]string{"", membershipStateEnded}, "membership.change", "membership.changed", []string{membershipStateActive, membershipStateProvisional}, ""},
	{[]string{membershipStateProvisional}, "work.accept_offer", "membership.changed", []string{membershipStateActive}, ""},
	{[]string{membershipStateProvisional}, "membership.change", "membership.changed", []string{membershipStateActive, membershipStateProvisional}, ""},
	{[]string{membershipStateProvisional}, "expiry", "membership.ended", []string{membershipStateEnded}, ""},
	{[]string{membershipStateActive}, "membership.change", "membership.changed", []string{membershipStateActive}, ""},
	{[]string{"", membershipStateProvisional, membershipStateActive, membershipStateEnded}, "mission.assign_coordinator", "membership.changed", []string{membershipStateActive}, "new and previous Coordinator"},
	{[]string{"", membershipStateProvisional, membershipStateActive, membershipStateEnded}, "parent Coordinator replaced", "membership.changed", []string{membershipStateActive}, "new owner of a child"},
	{[]string{membershipStateActive}, "parent Coordinator replaced", "membership.ended", []string{membershipStateEnded}, "old owner of a child"},
	{[]string{membershipStateProvisional, membershipStateActive}, "membership.end", "membership.ended", []string{membershipStateEnded}, ""},
	{[]string{membershipStateProvisional, membershipStateActive}, "Group archival", "membership.ended", []string{membershipStateEnded}, "all but the MissionOwner"},
}

// ProposalTransitions is the first row of COMMANDS.md 4.4.
var ProposalTransitions = []Transition{
	{nil, "work.propose", "work.proposed", []string{ProposalOpen}, "Mission active"},
	{[]string{ProposalOpen}, "work.authorize", "work.authorized", []string{ProposalAuthorized}, "cites the Proposal"},
	{[]string{ProposalOpen}, causeMissionOver, "", []string{ProposalClosed}, "fold only"},
}

// OfferTransitions, RequestTransitions and ExecutionTransitions are COMMANDS.md
// 4.4. Expiry by the clock alone has no Event.
var (
	OfferTransitions = []Transition{
		{nil, "work.offer", "work.offer.created", []string{OfferPending}, ""},
		{[]string{OfferPending}, "work.offer", "work.offer.created", []string{OfferPending}, "mode extend"},
		{[]string{OfferPending}, "work.accept_offer", "work.offer.accepted", []string{OfferAccepted, OfferLostRace}, ""},
		{[]string{OfferPending}, "ext.missionweave.work.offer_decline", "ext.missionweave.work.offer_declined", []string{OfferDeclined}, ""},
		{[]string{OfferPending}, "replace, revision, end of work or Membership, child Mission", "", []string{OfferWithdrawn}, ""},
		{[]string{OfferPending}, "clock", "", []string{OfferExpired}, "written by the next Event that rewrites offers"},
	}
	RequestTransitions = []Transition{
		{nil, "ext.missionweave.approval.request_execution", "ext.missionweave.approval.execution_requested", []string{requestPending}, ""},
		{[]string{requestPending}, "approval.grant_execution", "approval.execution.granted", []string{requestGranted}, ""},
		{[]string{requestPending, requestExpired}, "ext.missionweave.approval.deny_execution", "ext.missionweave.approval.execution_denied", []string{requestDenied}, ""},
		{[]string{requestPending}, "clock", "ext.missionweave.approval.execution_expired", []string{requestExpired}, ""},
		{[]string{requestPending}, "new Ownership Epoch", "", []string{requestSuperseded}, ""},
	}
	ExecutionTransitions = []Transition{
		{nil, "approval.grant_execution", "approval.execution.granted", []string{executionApproved}, ""},
		{nil, "ext.missionweave.approval.deny_execution", "ext.missionweave.approval.execution_denied", []string{executionDenied}, ""},
		{[]string{executionApproved}, "ext.missionweave.approval.revoke_execution", "ext.missionweave.approval.execution_revoked", []string{executionRevoked}, ""},
		{[]string{executionApproved}, "clock", "ext.missionweave.approval.execution_expired", []string{executionExpired}, ""},
	}
	// GroupTransitions is COMMANDS.md 4.6.
	GroupTransitions = []Transition{
		{nil, "Mission created", "mission.created", []string{groupActive}, ""},
		{[]string{groupActive}, "ext.missionweaveprotocol.core.group_archive", "group.archived", []string{groupArchived}, "Mission terminal"},
	}
)

// workItemSources says in which states a cause finds a row.
var workItemSources = func() map[string][]string {
	m := map[string][]string{}
	for _, t := range WorkItemTransitions {
		m[t.Cause] = t.From
	}
	return m
}()

// itemRow is the state row of P22 for the envelope's WorkItem: the table has a
// row for this Command in the WorkItem's state.
func (x *Ctx) itemRow() error { return x.itemRowOf(x.Command.Envelope.Kind) }

func (x *Ctx) itemRowOf(cause string) error { return inState(x.Item, workItemSources[cause]...) }
