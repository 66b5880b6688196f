package authority

import (
	"strconv"
	"strings"
	"time"

	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry"
)

// Policy is what an Organization sets beside what its Registry says.
type Policy struct {
	Limits groups.Limits
	// GroupLimits take the place of Limits in single Groups.
	GroupLimits     map[string]groups.Limits
	Leases          leases.Policy
	MissionCeiling  *protocol.Budget
	OfflineGrace    time.Duration
	FreshnessFuture time.Duration
	// ExecutionRule names the rule of the Organization that asks for an approval
	// before work under a contract starts, "" for none. nil asks for none.
	ExecutionRule func(*protocol.WorkContract) string
}

// DefaultPolicy has the values of COMMANDS.md section 7.
func DefaultPolicy() Policy {
	return Policy{
		Limits: groups.DefaultLimits(), Leases: leases.DefaultPolicy(),
		OfflineGrace: 15 * time.Minute, FreshnessFuture: DefaultFreshnessFuture,
	}
}

// duties are the Command kinds that a role may issue.
var duties = map[registry.Role][]string{
	registry.RoleIdentity: {protocol.CommandSessionOpen},
	registry.RoleRegistry: {protocol.CommandAgentCardRegister},
	registry.RolePolicy: {
		"membership.change", "membership.end", "mission.assign_coordinator", "mission.cancel", "mission.terminate",
		"ext.missionweave.mission.extend_deadline", "policy.grant_cooperation_override",
		"ext.missionweave.budget.increase", "message.redact", "work.cancel",
		"ext.missionweaveprotocol.core.work_dependency_add", "approval.grant_execution",
		"ext.missionweave.approval.deny_execution", "ext.missionweave.approval.revoke_execution",
	},
	registry.RoleMetering: {"ext.missionweaveprotocol.core.resource_usage_record"},
	registry.RoleArchival: {"ext.missionweaveprotocol.core.group_archive", "message.redact"},
	registry.RoleAuthorization: {
		"ext.missionweave.approval.request_execution", "ext.missionweave.approval.request_action",
		"ext.missionweave.approval.consume_action",
	},
}

// Organization is the policy at a revision of the Registry: who serves as what
// comes from there, the numbers from p. A role that several services hold is
// acted in by the first of them; all of them may issue its kinds.
func (p Policy) Organization(view *registry.View) *groups.Organization {
	first := func(role registry.Role) protocol.Actor {
		if holders := view.Services(role); len(holders) > 0 {
			return holders[0]
		}
		return protocol.Actor{}
	}
	org := &groups.Organization{
		ID:        view.OrganizationID,
		Authority: first(registry.RoleGroupAuthority), Identity: first(registry.RoleIdentity), Registry: first(registry.RoleRegistry),
		ContextGenerator:  first(registry.RoleContextGenerator),
		ContextGenerators: map[string]bool{}, EvidenceServices: map[string]bool{},
		Services: map[string]groups.ServiceGrants{}, Limits: p.Limits, GroupLimits: p.GroupLimits, Leases: p.Leases, MissionCeiling: p.MissionCeiling,
		Profiles: map[string]map[int64]bool{}, OfflineGrace: p.OfflineGrace, FreshnessFuture: p.FreshnessFuture,
		ExecutionPolicyRule: p.ExecutionRule,
	}
	for _, generator := range view.Services(registry.RoleContextGenerator) {
		org.ContextGenerators[generator.ID] = true
	}
	for _, service := range view.Services(registry.RoleEvidence) {
		org.EvidenceServices[service.ID] = true
	}
	for role, kinds := range duties {
		for _, service := range view.Services(role) {
			grants, ok := org.Services[service.ID]
			if !ok {
				grants = groups.GrantKinds()
				org.Services[service.ID] = grants
			}
			for _, kind := range kinds {
				grants.Kinds[kind] = true
			}
		}
	}
	for _, profile := range view.Profiles() {
		major, _, _ := strings.Cut(profile.Profile.Version, ".")
		n, err := strconv.ParseInt(major, 10, 64)
		if err != nil {
			continue // the profile's structure forbids it
		}
		uri := profile.Profile.ProfileURI
		if org.Profiles[uri] == nil {
			org.Profiles[uri] = map[int64]bool{}
		}
		org.Profiles[uri][n] = true
	}
	return org
}
