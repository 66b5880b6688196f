package groups

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// snapshotState is what an archived Group's stateHash covers (COMMANDS.md
// 6.4): exactly these members, each array sorted by its id in byte order.
type snapshotState struct {
	Group              *protocol.Group                    `json:"group"`
	Mission            protocol.Mission                   `json:"mission"`
	CoordinatorLease   *protocol.Lease                    `json:"coordinatorLease"`
	Memberships        []*protocol.Membership             `json:"memberships"`
	Conversations      []*protocol.Conversation           `json:"conversations"`
	Messages           []protocol.Message                 `json:"messages"`
	Proposals          []*ProposalDoc                     `json:"proposals"`
	WorkItems          []protocol.WorkItem                `json:"workItems"`
	Leases             []protocol.Lease                   `json:"leases"`
	Artifacts          []*Signed[protocol.Artifact]       `json:"artifacts"`
	Evidence           []*Signed[protocol.Evidence]       `json:"evidence"`
	ContextPackages    []*Signed[protocol.ContextPackage] `json:"contextPackages"`
	Approvals          []*Signed[protocol.Approval]       `json:"approvals"`
	ExecutionApprovals []executionApprovalEntry           `json:"executionApprovals"`
	ApprovalRequests   []ApprovalRequest                  `json:"approvalRequests"`
	ActionApprovals    []actionApprovalEntry              `json:"actionApprovals"`
	DelegationGrants   []*protocol.DelegationGrant        `json:"delegationGrants"`
	Overrides          []*Override                        `json:"cooperationOverrideGrants"`
	BudgetAccounts     []accountEntry                     `json:"budgetAccounts"`
}

type executionApprovalEntry struct {
	ApprovalID     string           `json:"approvalId"`
	OwnershipEpoch int64            `json:"ownershipEpoch"`
	Operations     []string         `json:"operations"`
	Resources      []string         `json:"resources"`
	Budget         *protocol.Budget `json:"budget,omitempty"`
	ExpiresAt      string           `json:"expiresAt,omitempty"`
	Status         string           `json:"status"`
}

type actionApprovalEntry struct {
	Request            ActionRequest   `json:"request"`
	Decision           *ActionDecision `json:"decision,omitempty"`
	ConsumedByActionID string          `json:"consumedByActionId,omitempty"`
}

type accountEntry struct {
	Account budget.Ref      `json:"account"`
	Limit   protocol.Budget `json:"limit"`
	Usage   budget.Usage    `json:"usage"`
}

// StateHash is the stateHash of a Group Snapshot through the present head.
// messages are the documents of all Messages and amendments, in any order; the
// State itself does not keep their content.
func (s *State) StateHash(messages []protocol.Message) (string, error) {
	if len(messages) != len(s.Messages) {
		return "", fmt.Errorf("groups: %d Message documents for %d Messages", len(messages), len(s.Messages))
	}
	messages = slices.Clone(messages)
	slices.SortFunc(messages, func(a, b protocol.Message) int { return cmp.Compare(a.MessageID, b.MessageID) })
	for i := range messages {
		if s.Messages[messages[i].MessageID] == nil || i > 0 && messages[i].MessageID == messages[i-1].MessageID {
			return "", fmt.Errorf("groups: Message %s is not one of the Group's", messages[i].MessageID)
		}
	}
	mission, err := s.MissionDoc()
	if err != nil {
		return "", err
	}
	d := &snapshotState{
		Group: s.Group, Mission: mission, CoordinatorLease: s.CoordinatorLease,
		Memberships:      s.SortedMemberships(),
		Conversations:    sortedValues(s.Conversations),
		Artifacts:        []*Signed[protocol.Artifact]{},
		Evidence:         sortedValues(s.Evidence),
		ContextPackages:  sortedValues(s.ContextPackages),
		DelegationGrants: sortedValues(s.Grants),
		Overrides:        sortedValues(s.Overrides),
	}
	slices.SortFunc(d.Memberships, func(a, b *protocol.Membership) int {
		return cmp.Compare(a.MembershipID, b.MembershipID)
	})
	d.Messages = messages
	for _, p := range sortedValues(s.Proposals) {
		d.Proposals = append(d.Proposals, &p.ProposalDoc)
	}
	for _, a := range sortedValues(s.Approvals) {
		d.Approvals = append(d.Approvals, a.Signed)
	}
	for _, a := range sortedValues(s.artifactsByID) {
		d.Artifacts = append(d.Artifacts, a.Manifest)
	}
	for _, w := range sortedValues(s.WorkItems) {
		doc, err := w.Served(WorkItemClock{})
		if err != nil {
			return "", err
		}
		d.WorkItems = append(d.WorkItems, doc)
		for _, l := range w.openLeases() {
			d.Leases = append(d.Leases, *l)
		}
		d.Leases = append(d.Leases, w.ClosedLeases...)
		for _, e := range w.Executions {
			d.ExecutionApprovals = append(d.ExecutionApprovals, executionApprovalEntry{
				e.ApprovalID, e.OwnershipEpoch, e.Operations, e.Resources, e.Budget, e.ExpiresAt, e.Status,
			})
		}
		d.ApprovalRequests = append(d.ApprovalRequests, w.Requests...)
		for _, a := range w.ActionRequests {
			d.ActionApprovals = append(d.ActionApprovals, actionApprovalEntry{a.Request, a.Decision, a.ConsumedByActionID})
		}
	}
	slices.SortFunc(d.Leases, func(a, b protocol.Lease) int { return cmp.Compare(a.LeaseID, b.LeaseID) })
	slices.SortFunc(d.ExecutionApprovals, func(a, b executionApprovalEntry) int {
		return cmp.Compare(a.ApprovalID, b.ApprovalID)
	})
	slices.SortFunc(d.ApprovalRequests, func(a, b ApprovalRequest) int { return cmp.Compare(a.RequestID, b.RequestID) })
	slices.SortFunc(d.ActionApprovals, func(a, b actionApprovalEntry) int {
		return cmp.Compare(a.Request.RequestID, b.Request.RequestID)
	})
	for _, a := range s.Ledger.Accounts() {
		d.BudgetAccounts = append(d.BudgetAccounts, accountEntry{
			a.Ref, budget.ToBudget(a.Limit, a.Currency), budget.UsageOf(a.Usage(), a.Currency),
		})
	}
	b, err := strictjson.Marshal(d)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
