package groups

import (
	"slices"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// How Events of offers, blocking, ends, children, usage and timers fold.

func workTurnEvents() []EventKind {
	return []EventKind{
		foldItem("ext.missionweave.work.offer_declined", false,
			func(p *WorkOfferDeclined) (string, string) { return p.WorkItemID, p.State },
			func(s *State, _ *Event, w *WorkItem, p *WorkOfferDeclined) error {
				s.setOffers(w, p.Offers)
				return nil
			}),
		foldItem("ext.missionweave.work.ownership_lease_renewed", false,
			func(p *OwnershipLeaseRenewed) (string, string) { return p.WorkItemID, p.State },
			func(s *State, _ *Event, w *WorkItem, p *OwnershipLeaseRenewed) error {
				s.setLease(w, p.OwnershipLease)
				w.ScheduleEstimate = latest(w.ScheduleEstimate, p.ScheduleEstimate)
				return nil
			}),
		foldItem("work.blocked", false,
			func(p *WorkBlocked) (string, string) { return p.WorkItemID, p.State }, foldBlocked),
		foldItem("work.unblocked", false,
			func(p *WorkUnblocked) (string, string) { return p.WorkItemID, p.State },
			func(s *State, _ *Event, w *WorkItem, p *WorkUnblocked) error {
				w.Block = nil
				s.closeLeases(w, p.ClosedLeases)
				if p.OwnershipLease != nil {
					s.setLease(w, *p.OwnershipLease)
				}
				if p.OwnershipReleased {
					s.setOwner(w, nil)
				}
				return nil
			}),
		foldItem("work.failed", false,
			func(p *WorkFailed) (string, string) { return p.WorkItemID, p.State },
			func(s *State, ev *Event, w *WorkItem, p *WorkFailed) error {
				s.storeEvidence(p.Evidence)
				return s.endItem(ev, w, p.ClosedLeases, p.WithdrawnOfferIDs, ChildFailed)
			}),
		foldItem("work.cancelled", false,
			func(p *WorkCancelled) (string, string) { return p.WorkItemID, p.State },
			func(s *State, ev *Event, w *WorkItem, p *WorkCancelled) error {
				return s.endItem(ev, w, p.ClosedLeases, p.WithdrawnOfferIDs, ChildCancelled)
			}),
		foldItem("mission.child.created", false,
			func(p *MissionChildCreated) (string, string) { return p.WorkItemID, p.State }, foldChildCreated),
		leaseExpiredEvent(),
	}
}

func foldBlocked(s *State, ev *Event, w *WorkItem, p *WorkBlocked) error {
	s.closeLeases(w, p.ClosedLeases)
	s.storeEvidence(p.Evidence)
	if p.ChildMissionID != "" {
		return s.endChild(ev, w, p.ChildMissionID, p.ChildOutcome, nil)
	}
	if p.Progress == nil || p.OwnershipLease == nil || p.BlockedLease == nil {
		return integrity(ev, "neither a Worker's nor a child's form")
	}
	s.setLease(w, *p.OwnershipLease)
	s.setLease(w, *p.BlockedLease)
	w.Block = &BlockNote{Reason: p.Reason, RequiredResolution: p.RequiredResolution}
	w.ScheduleEstimate = latest(w.ScheduleEstimate, p.ScheduleEstimate)
	w.checkpoint(ev, p.CheckpointID, p.OwnershipEpoch, p.Progress, p.StateArtifactHash)
	return nil
}

// endItem folds the end of a WorkItem: the owner goes, a living child counts as
// ended with it, and what was not used goes back to the parent account.
func (s *State) endItem(ev *Event, w *WorkItem, closed []protocol.Lease, withdrawn []string, childState string) error {
	s.closeLeases(w, closed)
	s.setOffers(w, withdraw(w.Offers, withdrawn))
	w.Block = nil
	if w.ChildIsLive() {
		if err := s.endChild(ev, w, w.Child().MissionID, childState, nil); err != nil {
			return err
		}
	}
	s.setOwner(w, nil)
	return s.releaseAccount(ev, w)
}

func foldChildCreated(s *State, ev *Event, w *WorkItem, p *MissionChildCreated) error {
	s.closeLeases(w, p.ClosedLeases)
	s.setOffers(w, withdraw(w.Offers, p.WithdrawnOfferIDs))
	w.Block = nil
	s.setCustody(w, &p.Owner)
	s.setLease(w, p.CustodyLease)
	basis := p.SelectionBasis
	w.SelectionBasis = &basis
	w.Children = append(w.Children[:len(w.Children):len(w.Children)], ChildLink{
		MissionID: p.ChildMissionID, GroupID: p.ChildGroupID, CoordinatorAgentID: p.ChildCoordinatorAgentID,
		FailurePolicy: p.FailurePolicy, Budget: p.ChildBudget, State: ChildLive,
	})
	s.childGroups = append(s.childGroups, p.ChildGroupID)
	if err := s.Ledger.Reserve(w.Account(), budget.MissionRef(p.ChildMissionID),
		budget.FromBudget(p.ChildBudget), p.ChildBudget.Currency, true); err != nil {
		return integrity(ev, "%v", err)
	}
	return nil
}

// setCustody records the Parent Coordinator as holder for a child Mission. It
// takes the next Ownership Epoch and does not count as having owned the work.
func (s *State) setCustody(w *WorkItem, holder *protocol.Owner) {
	was, known := w.Owners[holder.AgentID]
	s.setOwner(w, holder)
	unindex(s.owned, holder.AgentID, w.WorkItemID)
	if known {
		w.Owners[holder.AgentID] = was
	} else {
		delete(w.Owners, holder.AgentID)
	}
	w.Custody = true
}

// leaseExpiredEvent revises a WorkItem or the Coordinator lease, whichever the
// lease belongs to.
func leaseExpiredEvent() EventKind {
	row := eventKind("ext.missionweave.authority.lease_expired", AggregateWorkItem, false,
		func(p *LeaseExpired) string { return p.WorkItemID },
		func(s *State, ev *Event, p *LeaseExpired) error {
			if p.Lease.State != leases.Expired {
				return integrity(ev, "lease %s is %s", p.Lease.LeaseID, p.Lease.State)
			}
			if p.WorkItemID == "" {
				if s.CoordinatorLease.LeaseID != p.Lease.LeaseID {
					return integrity(ev, "lease %s is not the Coordinator's", p.Lease.LeaseID)
				}
				l := p.Lease
				s.CoordinatorLease = &l
				return nil
			}
			w, err := s.workItem(ev, p.WorkItemID, p.State)
			if err != nil {
				return err
			}
			s.closeLeases(w, []protocol.Lease{p.Lease})
			return nil
		})
	ofItem := row.aggregate
	row.aggregate = func(ev *Event) Aggregate {
		if p, ok := ev.Payload.(*LeaseExpired); ok && p.WorkItemID == "" {
			return leaseAggregate(p.Lease.LeaseID)
		}
		return ofItem(ev)
	}
	return row
}

func usageEvents() []EventKind {
	return []EventKind{
		eventKind(eventUsageRecorded, AggregateAccount, false,
			func(p *ResourceUsageRecorded) string { return accountAggregate(budget.WorkItemRef(p.WorkItemID)).ID },
			func(s *State, ev *Event, p *ResourceUsageRecorded) error {
				ref := budget.WorkItemRef(p.WorkItemID)
				if p.ChildMissionID != "" {
					ref = budget.MissionRef(p.ChildMissionID)
				}
				if err := s.Ledger.Charge(ref, p.UsageDelta.Vector()); err != nil {
					return integrity(ev, "%v", err)
				}
				return nil
			}),
		eventKind(eventBudgetExhausted, AggregateAccount, true,
			func(p *BudgetExhausted) string { return accountAggregate(p.Account).ID },
			func(*State, *Event, *BudgetExhausted) error { return nil }),
		eventKind("ext.missionweave.authority.child_budget_reserved", AggregateAccount, false,
			func(p *ChildBudgetReserved) string { return accountAggregate(budget.WorkItemRef(p.WorkItemID)).ID },
			func(s *State, ev *Event, p *ChildBudgetReserved) error {
				if err := s.Ledger.SetLimit(budget.MissionRef(p.ChildMissionID),
					budget.FromBudget(p.Budget), p.Budget.Currency); err != nil {
					return integrity(ev, "%v", err)
				}
				if w := s.WorkItems[p.WorkItemID]; w != nil {
					w.Children = slices.Clone(w.Children)
					for i := range w.Children {
						if w.Children[i].MissionID == p.ChildMissionID {
							w.Children[i].Budget = p.Budget
						}
					}
				}
				return nil
			}),
	}
}

func approvalEvents() []EventKind {
	return []EventKind{
		foldItem("approval.execution.granted", true,
			func(p *ExecutionGranted) (string, string) { return p.WorkItemID, p.State },
			func(s *State, ev *Event, w *WorkItem, p *ExecutionGranted) error {
				s.storeApproval(p.Approval)
				limits := p.Budget
				w.addExecution(ExecutionApproval{
					ApprovalID: p.Approval.Doc.ApprovalID, OwnershipEpoch: p.OwnershipEpoch,
					Operations: p.Operations, Resources: p.Resources, Budget: &limits,
					ArgumentsDigest: p.ArgumentsDigest, ExpiresAt: p.ExpiresAt, Status: executionApproved,
					Approver: p.Approval.Doc.Approver, RequestID: p.RequestID, Sequence: ev.Sequence,
				})
				w.setRequest(p.RequestID, requestGranted)
				return nil
			}),
		foldItem("ext.missionweave.approval.execution_requested", false,
			func(p *ExecutionRequested) (string, string) { return p.WorkItemID, p.State },
			func(s *State, _ *Event, w *WorkItem, p *ExecutionRequested) error {
				w.Requests = append(w.Requests[:len(w.Requests):len(w.Requests)],
					ApprovalRequest{ExecutionRequest: p.Request, Status: requestPending})
				s.requests[p.Request.RequestID] = w.WorkItemID
				return nil
			}),
		foldItem("ext.missionweave.approval.execution_denied", true,
			func(p *ExecutionDenied) (string, string) { return p.WorkItemID, p.State },
			func(s *State, ev *Event, w *WorkItem, p *ExecutionDenied) error {
				s.storeApproval(p.Approval)
				w.addExecution(ExecutionApproval{
					ApprovalID: p.Approval.Doc.ApprovalID, OwnershipEpoch: p.OwnershipEpoch,
					Operations: []string{}, Resources: []string{}, Status: executionDenied,
					Approver: p.Approval.Doc.Approver, RequestID: p.RequestID, Sequence: ev.Sequence,
				})
				w.setRequest(p.RequestID, requestDenied)
				return nil
			}),
		foldItem("ext.missionweave.approval.execution_revoked", true,
			func(p *ExecutionRevoked) (string, string) { return p.WorkItemID, p.State },
			func(s *State, _ *Event, w *WorkItem, p *ExecutionRevoked) error {
				s.storeApproval(p.Approval)
				s.revoke(p.Approval)
				w.setExecution(p.RevokedApprovalID, executionRevoked)
				return nil
			}),
		foldItem("ext.missionweave.approval.execution_expired", false,
			func(p *ExecutionExpired) (string, string) { return p.WorkItemID, p.State },
			func(_ *State, _ *Event, w *WorkItem, p *ExecutionExpired) error {
				w.setExecution(p.ApprovalID, executionExpired)
				w.setRequest(p.RequestID, requestExpired)
				return nil
			}),
		foldItem("ext.missionweave.approval.action_requested", false,
			func(p *ActionRequested) (string, string) { return p.WorkItemID, p.State },
			func(s *State, _ *Event, w *WorkItem, p *ActionRequested) error {
				w.ActionRequests = append(w.ActionRequests[:len(w.ActionRequests):len(w.ActionRequests)],
					ActionApproval{Request: p.Request})
				s.requests[p.Request.RequestID] = w.WorkItemID
				s.actions[p.Request.ActionID] = w.WorkItemID
				return nil
			}),
		foldItem("ext.missionweave.approval.action_decided", true,
			func(p *ActionDecided) (string, string) { return p.WorkItemID, p.State },
			func(s *State, ev *Event, w *WorkItem, p *ActionDecided) error {
				s.storeApproval(p.Approval)
				return w.answer(ev, p.RequestID, func(a *ActionApproval) {
					a.Decision = &ActionDecision{
						RequestID: p.RequestID, Approval: p.Approval, Scope: p.Scope,
						ArgumentsDigest: p.ArgumentsDigest, ManifestVersion: p.ManifestVersion,
						ExpiresAt: p.ExpiresAt, Late: p.Late,
					}
				})
			}),
		foldItem("ext.missionweave.approval.action_consumed", true,
			func(p *ActionConsumed) (string, string) { return p.WorkItemID, p.State },
			func(_ *State, ev *Event, w *WorkItem, p *ActionConsumed) error {
				return w.answer(ev, p.RequestID, func(a *ActionApproval) { a.ConsumedByActionID = p.ActionID })
			}),
	}
}

func (w *WorkItem) addExecution(e ExecutionApproval) {
	w.Executions = append(w.Executions[:len(w.Executions):len(w.Executions)], e)
}

func (w *WorkItem) setExecution(approvalID, status string) {
	if approvalID == "" {
		return
	}
	w.Executions = slices.Clone(w.Executions)
	for i := range w.Executions {
		if w.Executions[i].ApprovalID == approvalID {
			w.Executions[i].Status = status
		}
	}
}

func (w *WorkItem) setRequest(requestID, status string) {
	if requestID == "" {
		return
	}
	w.Requests = slices.Clone(w.Requests)
	for i := range w.Requests {
		if w.Requests[i].RequestID == requestID {
			w.Requests[i].Status = status
		}
	}
}

func (w *WorkItem) answer(ev *Event, requestID string, fn func(*ActionApproval)) error {
	w.ActionRequests = slices.Clone(w.ActionRequests)
	for i := range w.ActionRequests {
		if w.ActionRequests[i].Request.RequestID == requestID {
			fn(&w.ActionRequests[i])
			return nil
		}
	}
	return integrity(ev, "answers unknown request %s", requestID)
}
