package groups

import (
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// policyPayload is a payload that may add a Policy Log entry.
type policyPayload interface {
	// policyEntry returns the entry's id, "" for none, and the ids that the
	// entry repeats, as name, value pairs; empty ones are left out.
	policyEntry() (id string, ids []string)
}

// logPolicy adds the Policy Log entry of a ★ Event (COMMANDS.md 6.3).
func (s *State) logPolicy(ev *Event) {
	p, ok := ev.Payload.(policyPayload)
	if !ok {
		return
	}
	id, ids := p.policyEntry()
	if id == "" {
		return
	}
	details := map[string]any{"eventId": ev.EventID, "sequence": ev.Sequence}
	for i := 0; i+1 < len(ids); i += 2 {
		if ids[i+1] != "" {
			details[ids[i]] = ids[i+1]
		}
	}
	// A map of strings and one integer has a canonical form.
	raw, err := strictjson.Marshal(details)
	if err != nil {
		panic(err)
	}
	s.PolicyLog = append(s.PolicyLog, protocol.PolicyLogEntry{
		EntryID: id, Decision: ev.Kind, Actor: ev.Actor, OccurredAt: ev.OccurredAt, Details: raw,
	})
	s.changed.PolicyLog = true
}

// The ids that each ★ kind puts into its Policy Log entry: what the payload is
// about, so that an auditor can follow the entry without reading the Event.

func (p *MissionCreated) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"missionId", p.Mission.MissionID, "groupId", p.Group.GroupID,
		"parentGroupId", p.ParentGroupID, "parentWorkItemId", p.ParentWorkItemID,
		"sourceEventId", p.SourceEventID, "followUpToMissionId", p.FollowUpToMissionID,
		"approvalId", approvalID(p.Revocation),
	}
}

func (p *MissionApproved) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"missionId", p.MissionID, "approvalId", approvalID(p.Approval), "humanApprovalId", approvalID(p.HumanApproval),
	}
}

func (p *MissionChangesRequested) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{"missionId", p.MissionID, "approvalId", approvalID(p.Approval)}
}

func (p *FollowUpLinked) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"followUpMissionId", p.FollowUpMissionID, "followUpGroupId", p.FollowUpGroupID,
		"approvalId", approvalID(p.Revocation),
	}
}

func approvalID(a *Signed[protocol.Approval]) string {
	if a == nil {
		return ""
	}
	return a.Doc.ApprovalID
}

func (p *MissionCoordinatorAssigned) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"leaseId", p.CoordinatorLease.LeaseID,
		"coordinatorAgentId", p.Coordinator.AgentID,
		"previousCoordinatorAgentId", p.PreviousCoordinator.AgentID,
	}
}

func (p *MissionCancelled) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{"missionId", p.MissionID, "sourceEventId", p.SourceEventID, "sourceGroupId", p.SourceGroupID}
}

func (p *MissionTerminated) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{"missionId", p.MissionID, "sourceEventId", p.SourceEventID, "sourceGroupId", p.SourceGroupID}
}

func (p *MissionDeadlineExtended) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{"missionId", p.MissionID}
}

func (p *MissionOwnerTransferred) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"missionId", p.MissionID,
		"previousMissionOwnerId", p.PreviousMissionOwner.ID,
		"missionOwnerId", p.MissionOwner.ID,
		"sourceEventId", p.SourceEventID,
	}
}

func (p *GroupSnapshotCreated) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{"snapshotId", p.Snapshot.Doc.SnapshotID}
}

func (p *DelegationGranted) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"grantId", p.DelegationGrant.GrantID,
		"granteeAgentId", p.DelegationGrant.GranteeAgentID,
		"targetWorkItemId", p.DelegationGrant.TargetWorkItemID,
	}
}

func (p *CooperationOverrideGranted) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"grantId", p.CooperationOverrideGrant.GrantID,
		"beneficiaryId", p.CooperationOverrideGrant.Beneficiary.ID,
		"targetActionId", p.CooperationOverrideGrant.TargetActionID,
	}
}

func (p *CooperationOverrideConsumed) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"grantId", p.GrantID,
		"targetActionId", p.TargetActionID,
		"consumedByEventId", p.ConsumedByEventID,
	}
}

func (p *MessageAmended) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{"messageId", p.MessageID, "targetMessageId", p.TargetMessageID}
}

func (p *WorkAuthorized) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"workItemId", p.WorkItemID,
		"proposalId", p.ProposalID,
		"parentWorkItemId", p.ParentWorkItemID,
		"replacesWorkItemId", p.ReplacesWorkItemID,
	}
}

func (p *WorkOfferCreated) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{"workItemId", p.WorkItemID, "delegationGrantId", p.DelegationGrantID}
}

func (p *WorkBlocked) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"workItemId", p.WorkItemID,
		"childMissionId", p.ChildMissionID,
		"sourceEventId", p.SourceEventID,
	}
}

func (p *WorkResultAccepted) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"workItemId", p.WorkItemID,
		"childMissionId", p.ChildMissionID,
		"approvalId", p.ApprovalID,
		"sourceEventId", p.SourceEventID,
	}
}

func (p *WorkFailed) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"workItemId", p.WorkItemID,
		"childMissionId", p.ChildMissionID,
		"sourceEventId", p.SourceEventID,
	}
}

func (p *ExecutionGranted) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{"workItemId", p.WorkItemID, "approvalId", approvalID(p.Approval), "requestId", p.RequestID}
}

func (p *ExecutionDenied) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{"workItemId", p.WorkItemID, "approvalId", approvalID(p.Approval), "requestId", p.RequestID}
}

func (p *ExecutionRevoked) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"workItemId", p.WorkItemID,
		"approvalId", approvalID(p.Approval),
		"revokedApprovalId", p.RevokedApprovalID,
	}
}

func (p *ActionDecided) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{"workItemId", p.WorkItemID, "requestId", p.RequestID, "approvalId", approvalID(p.Approval)}
}

func (p *ActionConsumed) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{
		"workItemId", p.WorkItemID,
		"requestId", p.RequestID,
		"approvalId", p.ApprovalID,
		"actionId", p.ActionID,
		"executionLeaseId", p.ExecutionLeaseID,
		"capabilityTokenId", p.CapabilityTokenID,
	}
}

func (p *BudgetIncreased) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{"accountId", p.Account.ID}
}

func (p *BudgetExhausted) policyEntry() (string, []string) {
	return p.PolicyLogEntryID, []string{"accountId", p.Account.ID}
}
