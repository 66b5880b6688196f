package groups

import (
	"slices"
	"time"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

// Execution approvals (COMMANDS.md 5.6): the start gate is asked for, opened,
// denied and closed again. A machine's expiry must never look like a human's
// denial, so each has an Event of its own.

// maxApproval bounds how long an approval may hold.
const maxApproval = 86400 * time.Second

// Approval words of approval.schema that only these kinds use.
const (
	approvalWorkExecution = "work_execution"
	decisionDenied        = "denied"
)

// approvalTerms are what an execution approval covers.
type approvalTerms struct {
	Operations      []string         `json:"operations"`
	Resources       []string         `json:"resources"`
	Budget          *protocol.Budget `json:"budget"`
	ExpiresAt       string           `json:"expiresAt"`
	ArgumentsDigest string           `json:"argumentsDigest"`
}

type executionVerdict struct {
	Approval       *Signed[protocol.Approval] `json:"approval"`
	OwnershipEpoch int64                      `json:"ownershipEpoch"`
	RequestID      string                     `json:"requestId"`
}

func (p *executionVerdict) documents() []documentRef { return approvalRefs(p.Approval) }

type grantExecution struct {
	executionVerdict
	approvalTerms
}

type requestExecution struct {
	approvalTerms
	RequestID      string `json:"requestId"`
	OwnershipEpoch int64  `json:"ownershipEpoch"`
	Reason         string `json:"reason"`
}

// verdictOn is what the steps of a verdict hand on.
type verdictOn struct {
	request *ApprovalRequest
	revoked *ExecutionApproval
	budget  protocol.Budget
}

var (
	reqApproval  = shape.Req("approval", protocol.ShapeApproval)
	optRequestID = shape.Opt("requestId", protocol.ShapeID)
	termMembers  = []shape.Member{
		shape.Req("operations", shapeOperations),
		shape.Req("resources", shapeIDs),
		shape.Opt("budget", shapeBudget),
		shape.Req("expiresAt", protocol.ShapeTimestamp),
		shape.Opt("argumentsDigest", protocol.ShapeSHA256),
	}
	approvalDocument = []DocumentRow{{"approval", protocol.KindApproval, false}}
	approverRows     = []CapacityRow{{CapacityApprover, ScopeApprovalExecution}, {CapacityService, ""}}

	shapeGrantExecution   = itemShape(reqApproval, reqOwnershipEpoch, optRequestID).Extend(termMembers...)
	shapeDenyExecution    = itemShape(reqApproval, reqOwnershipEpoch, optRequestID)
	shapeRevokeExecution  = itemShape(reqApproval)
	shapeRequestExecution = itemShape(
		shape.Req("requestId", protocol.ShapeID), reqOwnershipEpoch, shape.Opt("reason", shape.Text(4000)),
	).Extend(termMembers...)
)

// verdictSigner is P17 of a verdict on the gate: the approver is the actor, and
// a service judges only what no human must.
func (x *Ctx) verdictSigner(a *Signed[protocol.Approval]) error {
	if a.Doc.Approver != x.Actor() {
		return forbid("signer")
	}
	if x.Capacity != CapacityService {
		return nil
	}
	// The WorkItem is looked at before P18 has checked the reference; an
	// unknown one is refused there.
	w := x.Group.WorkItems[x.Command.Envelope.WorkItemID]
	if w != nil && x.Group.GateOf(&w.Contract, x.World.Org).Kind != gatePolicy {
		return forbid("human_required")
	}
	return nil
}

// verdictBindings is P18 of an Approval about a WorkItem's execution.
func (x *Ctx) verdictBindings(a *Signed[protocol.Approval], decisions ...string) error {
	d, w := &a.Doc, x.Item
	if d.Kind != approvalWorkExecution || !slices.Contains(decisions, d.Decision) ||
		d.MissionID != w.MissionID || d.GroupID != w.GroupID || d.WorkItemID != w.WorkItemID {
		return invalid("binding_mismatch")
	}
	if _, used := x.Group.Approvals[d.ApprovalID]; used {
		return invalid("identifier_in_use")
	}
	return nil
}

// request is P18 of a cited approval request; nil when none is cited.
func (w *WorkItem) request(id string) (*ApprovalRequest, error) {
	if id == "" {
		return nil, nil
	}
	for i := range w.Requests {
		if w.Requests[i].RequestID == id {
			return &w.Requests[i], nil
		}
	}
	return nil, invalid("unknown_reference")
}

// expired reports a request that nobody answered in time, whether or not a
// timer has recorded it.
func (r *ApprovalRequest) expired(now time.Time) bool {
	return r.Status == requestExpired || r.Status == requestPending && !leases.Before(now, r.ExpiresAt)
}

// termsValues is P23 of what an approval would cover.
func (x *Ctx) termsValues(t *approvalTerms) error {
	if t.Budget != nil {
		if err := x.foreignBudget(*t.Budget); err != nil {
			return err
		}
	}
	if !coverable(x.Item.Contract.AllowedResources, t.Operations, t.Resources) {
		return forbid("permission")
	}
	return x.approvalExpiry(t.ExpiresAt)
}

// approvalExpiry holds an expiry against (now, now + 86400 s].
func (x *Ctx) approvalExpiry(expiresAt string) error {
	if !leases.Before(x.World.Now, expiresAt) ||
		leases.Compare(expiresAt, leases.In(x.World.Now, maxApproval)) > 0 {
		return invalid("deadline")
	}
	return nil
}

// coverable reports that a contract allows every resource, and every operation
// on at least one of them. Which operation goes with which resource stays the
// contract's word: an approval only narrows it.
func coverable(grants []protocol.ResourceGrant, operations, resources []string) bool {
	for _, r := range resources {
		if !slices.ContainsFunc(grants, func(g protocol.ResourceGrant) bool { return covers(g.Resource, r) }) {
			return false
		}
	}
	for _, op := range operations {
		if !slices.ContainsFunc(grants, func(g protocol.ResourceGrant) bool {
			return slices.Contains(g.Operations, op) && (len(resources) == 0 ||
				slices.ContainsFunc(resources, func(r string) bool { return covers(g.Resource, r) }))
		}) {
			return false
		}
	}
	return true
}

func grantExecutionKind() Kind {
	return kind(Kind{
		Kind: "approval.grant_execution", WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem,
		Shape: shapeGrantExecution, Capacities: approverRows, Documents: approvalDocument,
	}, plan[grantExecution, verdictOn]{
		Authority: func(x *Ctx, p *grantExecution, _ *verdictOn) error { return x.verdictSigner(p.Approval) },
		References: func(x *Ctx, p *grantExecution, s *verdictOn) (err error) {
			if err := x.verdictBindings(p.Approval, decisionApproved); err != nil {
				return err
			}
			s.request, err = x.Item.request(p.RequestID)
			return err
		},
		Ownership: func(x *Ctx, p *grantExecution, _ *verdictOn) error {
			return x.Item.epochCurrent(p.OwnershipEpoch)
		},
		Leases: func(x *Ctx, _ *grantExecution, _ *verdictOn) error {
			if !leases.LiveAt(x.Item.Ownership, x.World.Now) {
				return leaseExpiredError(protocol.LeaseOwnership)
			}
			return nil
		},
		Revision: itemRevision[grantExecution, verdictOn],
		State: func(x *Ctx, _ *grantExecution, s *verdictOn) error {
			if err := queuedWork(x); err != nil {
				return err
			}
			if s.request != nil && (s.request.Status != requestPending || s.request.expired(x.World.Now)) {
				return wrongState("request_not_pending", x.Item.State)
			}
			return nil
		},
		Values: func(x *Ctx, p *grantExecution, s *verdictOn) error {
			if revision := x.Group.Mission.Revision; p.Approval.Doc.MissionRevision != revision {
				return protocol.NewError(protocol.CodeRevisionConflict, "").
					WithRevision(p.Approval.Doc.MissionRevision, revision)
			}
			if err := x.termsValues(&p.approvalTerms); err != nil {
				return err
			}
			if r := s.request; r != nil && (r.ArgumentsDigest != p.ArgumentsDigest ||
				!sameSet(r.Operations, p.Operations)) {
				return invalid("binding_mismatch")
			}
			return nil
		},
		Budget: func(x *Ctx, p *grantExecution, s *verdictOn) error {
			account, ok := x.Group.Ledger.Account(x.Item.Account())
			if !ok {
				return budget.ErrUnknown
			}
			if p.Budget == nil {
				s.budget = budget.ToBudget(account.Remaining(), account.Currency)
				return nil
			}
			s.budget = *p.Budget
			wanted := budget.FromBudget(*p.Budget)
			if over := wanted.Exceeding(account.Limit) | wanted.Exceeding(account.Remaining()); over != 0 {
				return exceededBudget("", &budget.Exceeded{Account: account.Ref, Dimensions: over})
			}
			return nil
		},
		Emit: func(x *Ctx, p *grantExecution, s *verdictOn) error {
			x.emit("approval.execution.granted", &ExecutionGranted{
				WorkItemID: x.Item.WorkItemID, State: x.Item.State, Approval: p.Approval,
				OwnershipEpoch: p.OwnershipEpoch, Operations: p.Operations, Resources: p.Resources,
				Budget: s.budget, ExpiresAt: p.ExpiresAt, ArgumentsDigest: p.ArgumentsDigest,
				RequestID: p.RequestID, PolicyLogEntryID: x.Mint(),
			}, emission{WorkItem: x.Item, Primary: true})
			return nil
		},
	})
}

// queuedWork is the P22 row of what concerns work that waits to start.
func queuedWork(x *Ctx) error {
	if err := missionActive(x); err != nil {
		return err
	}
	return x.itemRow()
}

func requestExecutionKind() Kind {
	return kind(Kind{
		Kind: "ext.missionweave.approval.request_execution", WorkItem: WorkItemRequired,
		Aggregate: AggregateWorkItem, Shape: shapeRequestExecution,
		Capacities: []CapacityRow{{CapacityCoordinator, ""}, {CapacityWorker, ""}, {CapacityService, ""}},
	}, plan[requestExecution, noScratch]{
		References: func(x *Ctx, p *requestExecution, _ *noScratch) error { return x.unusedRequest(p.RequestID) },
		Ownership: func(x *Ctx, p *requestExecution, _ *noScratch) error {
			if x.Capacity == CapacityWorker {
				return x.ownedBy(x.Item, p.OwnershipEpoch)
			}
			return x.Item.epochCurrent(p.OwnershipEpoch)
		},
		Revision: itemRevision[requestExecution, noScratch],
		State:    func(x *Ctx, _ *requestExecution, _ *noScratch) error { return queuedWork(x) },
		Values: func(x *Ctx, p *requestExecution, _ *noScratch) error {
			return x.termsValues(&p.approvalTerms)
		},
		Emit: func(x *Ctx, p *requestExecution, _ *noScratch) error {
			x.emit("ext.missionweave.approval.execution_requested", &ExecutionRequested{
				WorkItemID: x.Item.WorkItemID, State: x.Item.State,
				Request: ExecutionRequest{
					RequestID: p.RequestID, RequestedBy: x.Actor(), OwnershipEpoch: p.OwnershipEpoch,
					Operations: p.Operations, Resources: p.Resources, Budget: p.Budget,
					ArgumentsDigest: p.ArgumentsDigest, Reason: p.Reason, ExpiresAt: p.ExpiresAt,
				},
			}, emission{WorkItem: x.Item, Primary: true})
			return nil
		},
	})
}

// unusedRequest is P18 of a new approval request, for execution or action.
func (x *Ctx) unusedRequest(id string) error {
	if _, used := x.Group.requests[id]; used {
		return invalid("identifier_in_use")
	}
	return nil
}

func denyExecutionKind() Kind {
	return kind(Kind{
		Kind: "ext.missionweave.approval.deny_execution", WorkItem: WorkItemRequired,
		Aggregate: AggregateWorkItem, Shape: shapeDenyExecution, Capacities: approverRows, Documents: approvalDocument,
	}, plan[executionVerdict, verdictOn]{
		Authority: func(x *Ctx, p *executionVerdict, _ *verdictOn) error { return x.verdictSigner(p.Approval) },
		References: func(x *Ctx, p *executionVerdict, s *verdictOn) (err error) {
			if err := x.verdictBindings(p.Approval, decisionDenied); err != nil {
				return err
			}
			s.request, err = x.Item.request(p.RequestID)
			return err
		},
		Ownership: func(x *Ctx, p *executionVerdict, _ *verdictOn) error {
			return x.Item.epochCurrent(p.OwnershipEpoch)
		},
		Revision: itemRevision[executionVerdict, verdictOn],
		State: func(x *Ctx, _ *executionVerdict, s *verdictOn) error {
			if err := x.itemRow(); err != nil {
				return err
			}
			if s.request != nil && s.request.Status != requestPending && s.request.Status != requestExpired {
				return wrongState("request_not_pending", x.Item.State)
			}
			return nil
		},
		Emit: func(x *Ctx, p *executionVerdict, s *verdictOn) error {
			x.emit("ext.missionweave.approval.execution_denied", &ExecutionDenied{
				WorkItemID: x.Item.WorkItemID, State: x.Item.State, Approval: p.Approval,
				OwnershipEpoch: p.OwnershipEpoch, RequestID: p.RequestID,
				Late: s.request != nil && s.request.expired(x.World.Now), PolicyLogEntryID: x.Mint(),
			}, emission{WorkItem: x.Item, Primary: true})
			return nil
		},
	})
}

func revokeExecutionKind() Kind {
	return kind(Kind{
		Kind: "ext.missionweave.approval.revoke_execution", WorkItem: WorkItemRequired,
		Aggregate: AggregateWorkItem, Shape: shapeRevokeExecution, Capacities: approverRows, Documents: approvalDocument,
	}, plan[executionVerdict, verdictOn]{
		Authority: func(x *Ctx, p *executionVerdict, _ *verdictOn) error { return x.verdictSigner(p.Approval) },
		References: func(x *Ctx, p *executionVerdict, s *verdictOn) error {
			if err := x.verdictBindings(p.Approval, decisionRevoked); err != nil {
				return err
			}
			for i := range x.Item.Executions {
				if e := &x.Item.Executions[i]; e.ApprovalID == p.Approval.Doc.RevokesApprovalID {
					s.revoked = e
				}
			}
			if s.revoked == nil {
				return invalid("unknown_reference")
			}
			return nil
		},
		Revision: itemRevision[executionVerdict, verdictOn],
		State: func(x *Ctx, _ *executionVerdict, s *verdictOn) error {
			if s.revoked.Status != executionApproved || !leases.Before(x.World.Now, s.revoked.ExpiresAt) {
				return wrongState("approval_not_in_force", x.Item.State)
			}
			return nil
		},
		Emit: func(x *Ctx, p *executionVerdict, s *verdictOn) error {
			x.emit("ext.missionweave.approval.execution_revoked", &ExecutionRevoked{
				WorkItemID: x.Item.WorkItemID, State: x.Item.State, Approval: p.Approval,
				RevokedApprovalID: s.revoked.ApprovalID, PolicyLogEntryID: x.Mint(),
			}, emission{WorkItem: x.Item, Primary: true})
			return nil
		},
	})
}
