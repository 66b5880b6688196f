package groups

import (
	"slices"

	"github.com/missionweave/server/internal/protocol"
)

// Roles of a Membership.
const (
	roleMissionOwner = "mission_owner"
	roleCoordinator  = "coordinator"
	roleWorkDelegate = "work_delegate"
	roleWorker       = "worker"
	roleReviewer     = "reviewer"
	roleObserver     = "observer"
)

// Scopes of a Membership.
const (
	ScopeMissionInspect            = "mission.inspect"
	ScopeMissionApprove            = "mission.approve"
	ScopeMissionCancel             = "mission.cancel"
	ScopeMissionReplaceCoordinator = "mission.replace_coordinator"
	ScopeMissionCoordinate         = "mission.coordinate"
	ScopeMembershipManage          = "membership.manage"
	ScopeApprovalExecution         = "approval.execution"
	ScopePolicyOverride            = "policy.override"
	ScopeBudgetIncrease            = "budget.increase"
	ScopeWorkOverride              = "work.override"
	ScopeMessageRead               = "message.read"
	ScopeMessagePost               = "message.post"
	ScopeMessageRedact             = "message.redact"
	ScopeWorkPropose               = "work.propose"
	ScopeWorkAuthorize             = "work.authorize"
	ScopeWorkOffer                 = "work.offer"
	ScopeWorkVerify                = "work.verify"
	ScopeWorkAcceptOffer           = "work.accept_offer"
	ScopeWorkExecute               = "work.execute"
	ScopeWorkReview                = "work.review"
	ScopeWorkDelegate              = "work.delegate"
)

// RoleRow is what a role means for one type of Principal (COMMANDS.md 3.6).
type RoleRow struct {
	Role, Member string
	// Default is what a Membership gets when none are named; Extra may be
	// granted but is never a default.
	Default, Extra []string
	// Recorded marks the roles that belong to the recorded MissionOwner or
	// Coordinator and to nobody else.
	Recorded bool
}

var workerScopes = []string{
	ScopeMessagePost, ScopeWorkPropose, ScopeWorkAcceptOffer, ScopeWorkExecute, ScopeWorkReview,
}

var ownerScopes = []string{
	ScopeMissionInspect, ScopeMissionApprove, ScopeMissionCancel, ScopeMissionReplaceCoordinator,
	ScopeMembershipManage, ScopeApprovalExecution, ScopePolicyOverride, ScopeBudgetIncrease,
	ScopeWorkOverride, ScopeMessagePost, ScopeMessageRedact, ScopeWorkPropose,
}

// Roles is the table of roles and scopes.
var Roles = []RoleRow{
	{roleMissionOwner, protocol.ActorHuman, ownerScopes, nil, true},
	{roleMissionOwner, protocol.ActorAgent, ownerScopes, nil, true},
	{roleCoordinator, protocol.ActorAgent, []string{
		ScopeMissionInspect, ScopeMissionCoordinate, ScopeMembershipManage, ScopeMessagePost,
		ScopeMessageRedact, ScopeWorkPropose, ScopeWorkAuthorize, ScopeWorkOffer, ScopeWorkVerify,
		ScopeWorkAcceptOffer, ScopeWorkExecute, ScopeWorkReview,
	}, nil, true},
	{roleWorkDelegate, protocol.ActorAgent, append(slices.Clone(workerScopes), ScopeWorkDelegate), nil, false},
	{roleWorker, protocol.ActorAgent, workerScopes, nil, false},
	{roleReviewer, protocol.ActorAgent, workerScopes, nil, false},
	{roleReviewer, protocol.ActorHuman, []string{ScopeMessagePost, ScopeWorkPropose, ScopeWorkReview}, nil, false},
	{roleObserver, protocol.ActorAgent, []string{ScopeMessageRead, ScopeMessagePost, ScopeWorkPropose}, nil, false},
	{
		roleObserver, protocol.ActorHuman,
		[]string{ScopeMessageRead, ScopeMessagePost, ScopeWorkPropose},
		[]string{ScopeMissionInspect, ScopeApprovalExecution},
		false,
	},
}

// roleFor finds the row of a role for a type of Principal.
func roleFor(role, memberType string) (RoleRow, bool) {
	for _, r := range Roles {
		if r.Role == role && r.Member == memberType {
			return r, true
		}
	}
	return RoleRow{}, false
}

// allows reports that the role can hold the scope.
func (r RoleRow) allows(scope string) bool {
	return slices.Contains(r.Default, scope) || slices.Contains(r.Extra, scope)
}
