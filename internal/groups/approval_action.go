package groups

import (
	"slices"
	"time"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

// Action approvals (COMMANDS.md E12): one ASK of the World Manifest about one
// Proposed Action becomes a request in the log, a human's signed answer is
// bound to the exact arguments, and a one-shot answer is used exactly once. The
// start gate is another matter and is not touched.

type requestAction struct {
	RequestID           string   `json:"requestId"`
	ActionID            string   `json:"actionId"`
	ActionType          string   `json:"actionType"`
	AgentID             string   `json:"agentId"`
	OwnershipEpoch      int64    `json:"ownershipEpoch"`
	ExecutionLeaseID    string   `json:"executionLeaseId"`
	Operation           string   `json:"operation"`
	Resources           []string `json:"resources"`
	ArgumentsDigest     string   `json:"argumentsDigest"`
	ArgsEqualityVersion string   `json:"argsEqualityVersion"`
	ManifestVersion     string   `json:"manifestVersion"`
	RuleID              string   `json:"ruleId"`
	Reason              string   `json:"reason"`
	Provenance          []string `json:"provenance"`
	SideEffectClass     string   `json:"sideEffectClass"`
	ExpiresAt           string   `json:"expiresAt"`
}

var shapeRequestAction = itemShape(
	shape.Req("requestId", protocol.ShapeID),
	shape.Req("actionId", protocol.ShapeID),
	shape.Req("actionType", shape.Text(200)),
	shape.Req("agentId", protocol.ShapeID),
	reqOwnershipEpoch,
	shape.Opt("executionLeaseId", protocol.ShapeID),
	shape.Req("operation", protocol.ShapeOperation),
	shape.Req("resources", shapeIDs),
	shape.Req("argumentsDigest", protocol.ShapeSHA256),
	shape.Req("argsEqualityVersion", shape.Text(200)),
	shape.Req("manifestVersion", shape.Text(200)),
	shape.Req("ruleId", shape.Text(512)),
	shape.Req("reason", shape.Text(4000)),
	shape.Req("provenance", shapeIDs),
	shape.Req("sideEffectClass", shape.Text(200)),
	shape.Req("expiresAt", protocol.ShapeTimestamp),
)

type decideAction struct {
	RequestID       string                     `json:"requestId"`
	Approval        *Signed[protocol.Approval] `json:"approval"`
	Scope           string                     `json:"scope"`
	ArgumentsDigest string                     `json:"argumentsDigest"`
	ExpiresAt       string                     `json:"expiresAt"`
}

func (p *decideAction) documents() []documentRef { return approvalRefs(p.Approval) }

// Scopes of an answer: extension records the wish that the manifest be
// extended, which only a reviewed manifest version does.
const (
	scopeOneShot   = "one_shot"
	scopeExtension = "extension"
)

var shapeDecideAction = itemShape(
	shape.Req("requestId", protocol.ShapeID),
	reqApproval,
	shape.Req("scope", shape.Enum(scopeOneShot, scopeExtension)),
	shape.Req("argumentsDigest", protocol.ShapeSHA256),
	shape.Opt("expiresAt", protocol.ShapeTimestamp),
).Rules(
	shape.When("approval.decision", shape.Const(decisionApproved)).Require("expiresAt"),
	shape.When("approval.decision", shape.Const(decisionDenied)).Forbid("expiresAt"),
)

type consumeAction struct {
	RequestID         string `json:"requestId"`
	ApprovalID        string `json:"approvalId"`
	ActionID          string `json:"actionId"`
	ExecutionLeaseID  string `json:"executionLeaseId"`
	CapabilityTokenID string `json:"capabilityTokenId"`
}

var shapeConsumeAction = itemShape(
	shape.Req("requestId", protocol.ShapeID),
	shape.Req("approvalId", protocol.ShapeID),
	shape.Req("actionId", protocol.ShapeID),
	reqExecutionLeaseID,
	shape.Req("capabilityTokenId", shape.Text(512)),
)

// asked is what the steps about an ASK hand on.
type asked struct{ ask *ActionApproval }

// ask is P18 of a cited action request.
func (w *WorkItem) ask(id string) (*ActionApproval, error) {
	for i := range w.ActionRequests {
		if w.ActionRequests[i].Request.RequestID == id {
			return &w.ActionRequests[i], nil
		}
	}
	return nil, invalid("unknown_reference")
}

// lapsed reports that nobody answered in time.
func (a *ActionApproval) lapsed(now time.Time) bool {
	return a.Decision == nil && !leases.Before(now, a.Request.ExpiresAt)
}

// Granted reports an answer that may still be used at now: approved for one
// use, not used, not expired.
func (a *ActionApproval) Granted(now time.Time) bool {
	d := a.Decision
	return d != nil && d.Approval.Doc.Decision == decisionApproved && d.Scope == scopeOneShot &&
		a.ConsumedByActionID == "" && leases.Before(now, d.ExpiresAt)
}

func requestActionKind() Kind {
	return kind(Kind{
		Kind: "ext.missionweave.approval.request_action", WorkItem: WorkItemRequired,
		Aggregate: AggregateWorkItem, Shape: shapeRequestAction,
		Capacities: []CapacityRow{{CapacityService, ""}},
	}, plan[requestAction, noScratch]{
		References: func(x *Ctx, p *requestAction, _ *noScratch) error {
			if err := x.unusedRequest(p.RequestID); err != nil {
				return err
			}
			if _, used := x.Group.actions[p.ActionID]; used {
				return invalid("identifier_in_use")
			}
			if w := x.Item; w.Owner == nil || w.OwnerFenced || w.Custody || w.Owner.AgentID != p.AgentID {
				return invalid("binding_mismatch")
			}
			return nil
		},
		Ownership: func(x *Ctx, p *requestAction, _ *noScratch) error {
			return x.Item.epochCurrent(p.OwnershipEpoch)
		},
		Revision: itemRevision[requestAction, noScratch],
		State: func(x *Ctx, _ *requestAction, _ *noScratch) error {
			if err := missionActive(x); err != nil {
				return err
			}
			return x.itemRow()
		},
		Values: func(x *Ctx, p *requestAction, _ *noScratch) error { return x.approvalExpiry(p.ExpiresAt) },
		Emit: func(x *Ctx, p *requestAction, _ *noScratch) error {
			x.emit("ext.missionweave.approval.action_requested", &ActionRequested{
				WorkItemID: x.Item.WorkItemID, State: x.Item.State,
				Request: ActionRequest{
					RequestID: p.RequestID, ActionID: p.ActionID, ActionType: p.ActionType,
					RequestedBy: x.Actor(), AgentID: p.AgentID, OwnershipEpoch: p.OwnershipEpoch,
					ExecutionLeaseID: p.ExecutionLeaseID, Operation: p.Operation, Resources: p.Resources,
					ArgumentsDigest: p.ArgumentsDigest, ArgsEqualityVersion: p.ArgsEqualityVersion,
					ManifestVersion: p.ManifestVersion, RuleID: p.RuleID, Reason: p.Reason,
					Provenance: p.Provenance, SideEffectClass: p.SideEffectClass, ExpiresAt: p.ExpiresAt,
				},
			}, emission{WorkItem: x.Item, Primary: true})
			return nil
		},
	})
}

func decideActionKind() Kind {
	return kind(Kind{
		Kind: "ext.missionweave.approval.decide_action", WorkItem: WorkItemRequired,
		Aggregate: AggregateWorkItem, Shape: shapeDecideAction, Documents: approvalDocument,
		Capacities: []CapacityRow{{CapacityApprover, ScopeApprovalExecution}},
	}, plan[decideAction, asked]{
		Authority: func(x *Ctx, p *decideAction, _ *asked) error {
			if p.Approval.Doc.Approver != x.Actor() {
				return forbid("signer")
			}
			return nil
		},
		References: func(x *Ctx, p *decideAction, s *asked) (err error) {
			if s.ask, err = x.Item.ask(p.RequestID); err != nil {
				return err
			}
			if err := x.verdictBindings(p.Approval, decisionApproved, decisionDenied); err != nil {
				return err
			}
			if !slices.Contains(p.Approval.Doc.Conditions, "argumentsDigest:"+p.ArgumentsDigest) {
				return invalid("binding_mismatch")
			}
			return nil
		},
		Revision: itemRevision[decideAction, asked],
		State: func(x *Ctx, p *decideAction, s *asked) error {
			if s.ask.Decision != nil ||
				s.ask.lapsed(x.World.Now) && p.Approval.Doc.Decision == decisionApproved {
				return wrongState("request_not_pending", x.Item.State)
			}
			return nil
		},
		Values: func(x *Ctx, p *decideAction, s *asked) error {
			if p.ArgumentsDigest != s.ask.Request.ArgumentsDigest {
				return invalid("binding_mismatch")
			}
			if p.Approval.Doc.Decision == decisionApproved {
				return x.approvalExpiry(p.ExpiresAt)
			}
			return nil
		},
		Emit: func(x *Ctx, p *decideAction, s *asked) error {
			x.emit("ext.missionweave.approval.action_decided", &ActionDecided{
				WorkItemID: x.Item.WorkItemID, State: x.Item.State, RequestID: p.RequestID,
				Approval: p.Approval, Scope: p.Scope, ArgumentsDigest: p.ArgumentsDigest,
				ManifestVersion: s.ask.Request.ManifestVersion, ExpiresAt: p.ExpiresAt,
				Late: s.ask.lapsed(x.World.Now), PolicyLogEntryID: x.Mint(),
			}, emission{WorkItem: x.Item, Primary: true})
			return nil
		},
	})
}

func consumeActionKind() Kind {
	return kind(Kind{
		Kind: "ext.missionweave.approval.consume_action", WorkItem: WorkItemRequired,
		Aggregate: AggregateWorkItem, Shape: shapeConsumeAction,
		Capacities: []CapacityRow{{CapacityService, ""}},
	}, plan[consumeAction, asked]{
		References: func(x *Ctx, p *consumeAction, s *asked) (err error) {
			if s.ask, err = x.Item.ask(p.RequestID); err != nil {
				return err
			}
			if s.ask.Request.ActionID != p.ActionID ||
				s.ask.Decision != nil && s.ask.Decision.Approval.Doc.ApprovalID != p.ApprovalID {
				return invalid("binding_mismatch")
			}
			return nil
		},
		Ownership: func(x *Ctx, _ *consumeAction, s *asked) error {
			return x.Item.currentOwner(s.ask.Request.AgentID, s.ask.Request.OwnershipEpoch)
		},
		Leases: func(x *Ctx, p *consumeAction, _ *asked) error {
			if l := x.Item.Execution; l == nil || l.LeaseID != p.ExecutionLeaseID || !leases.LiveAt(l, x.World.Now) {
				return leaseExpiredError(protocol.LeaseExecution)
			}
			return nil
		},
		Revision: itemRevision[consumeAction, asked],
		State: func(x *Ctx, _ *consumeAction, s *asked) error {
			if !s.ask.Granted(x.World.Now) {
				return wrongState("approval_not_in_force", x.Item.State)
			}
			return nil
		},
		Emit: func(x *Ctx, p *consumeAction, _ *asked) error {
			x.emit("ext.missionweave.approval.action_consumed", &ActionConsumed{
				WorkItemID: x.Item.WorkItemID, State: x.Item.State, RequestID: p.RequestID,
				ApprovalID: p.ApprovalID, ActionID: p.ActionID, ExecutionLeaseID: p.ExecutionLeaseID,
				CapabilityTokenID: p.CapabilityTokenID, PolicyLogEntryID: x.Mint(),
			}, emission{WorkItem: x.Item, Primary: true})
			return nil
		},
	})
}
