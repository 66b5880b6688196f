package matrix

import (
	"slices"
	"strings"

	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
)

// row is what COMMANDS.md 10.2 asks of one Command: its positive cases by name,
// the letters of the common sets, and its own refusals as "CODE name" or
// "CODE:reason name".
type row struct {
	kind      string
	sets      string
	positives []string
	negatives []string
}

// setCases are the cases of the common sets (COMMANDS.md 10.1). Cases that are
// positive have the code OK.
var setCases = map[byte][]string{
	'X': {
		"AIS byte changed", "AIS foreign key", "AIS createdAt differs", "PV duplicate member", "PV 1e400",
		"SVF unknown payload member", "SVF required member missing", "SVF null member", "SVF wrong type",
		"OK identical resend", "OK resend after session change", "AIC other content", "AIS too old", "AIS too early",
		"UCE unknown critical extension", "OK unknown noncritical extension",
	},
	'G': {
		"GNF absent Group", "GNF never a member", "MR ended", "MR lapsed provisional", "MS old epoch", "MS higher epoch",
		"AF provisional member", "IST archived Group", "AF scope removed",
	},
	'S': {"ASS old session", "ASS future session", "AR expired session", "AF revoked card", "AF foreign WebSocket"},
	'C': {
		"ASC old coordinatorEpoch", "MS old coordinatorEpoch and membershipEpoch", "ASC coordinatorEpoch missing", "ASC lapsed lease",
		"AF Worker without the epoch", "AF Worker with the current epoch",
	},
	'V': {"RC too low", "RC too high", "OK exact"},
	'W': {
		"AF never owner", "WSO former owner", "WSO old ownershipEpoch", "WSO future ownershipEpoch", "WLE unknown lease",
		"WLE previous lease", "WLE expired lease", "WSO stale ownership and expired lease", "WLE lease revoked by takeover",
	},
	'D': {
		"AIS document tampered", "AIS document under an unknown key", "SVF document shape", "AF document of another Principal",
		"IC document of another place", "IC document id reused", "AIS document key revoked",
	},
	'K': {
		"WCI contract member missing", "SVF contract member unknown", "SVF contract with both faults", "WCI high_risk without human_required",
		"SVF money of seven decimals", "BE contract budget over the parent", "IC contract deadline after the Mission's",
		"AF resource not permitted", "AF capability outside the ceiling",
	},
}

// schemaEpochKinds are kinds whose coordinatorEpoch the Command schema itself
// demands of an Agent: without it they are malformed, whoever sends them.
var schemaEpochKinds = map[string]bool{
	"mission.renew_coordinator": true, "mission.submit_for_approval": true, "mission.create_child": true,
	"membership.grant_delegation": true, "work.accept_result": true, "mission.terminate": true,
}

// cases lists the refusals that a row asks for, as "CODE name" with the common
// sets first.
func (r row) cases() []string {
	var out []string
	for i := range len(r.sets) {
		for _, c := range setCases[r.sets[i]] {
			if r.applies(r.sets[i], c) {
				out = append(out, r.coded(c))
			}
		}
	}
	out = append(out, r.negatives...)
	if r.ofAgents() {
		return append(out, "OK accepted over WebSocket", "SVF refused over WebSocket")
	}
	return append(out, "AF refused over WebSocket")
}

// coded is a case of a set with the code that the kind answers with.
func (r row) coded(c string) string {
	if c != "IST archived Group" {
		return c
	}
	switch {
	case leaseFirst[r.kind]:
		return "WLE archived Group"
	case !r.has(groups.CapacityMissionOwner, groups.CapacityApprover, groups.CapacityService, groups.CapacityMember), agentsOnly[r.kind]:
		return "MR archived Group" // archival has ended every Membership but the MissionOwner's
	}
	return c
}

// leaseFirst are kinds whose lease is looked at (P20) before the Group's state
// (P22): no lease of work outlives its Mission.
var leaseFirst = map[string]bool{
	"approval.grant_execution": true, "ext.missionweave.approval.consume_action": true,
}

// agentsOnly are kinds of any member that only an Agent can mean.
var agentsOnly = map[string]bool{"work.accept_offer": true, "ext.missionweave.work.offer_decline": true}

// ofAgents reports that an Agent can issue the kind in some capacity. What only
// humans and services issue is refused on every connection, for a connection is
// one Agent's.
func (r row) ofAgents() bool {
	return r.has(groups.CapacityCoordinator, groups.CapacityDelegate, groups.CapacityWorker, groups.CapacityMember,
		groups.CapacitySelf, groups.CapacityMissionOwner)
}

// has reports that the kind lists one of the capacities.
func (r row) has(capacities ...groups.Capacity) bool {
	k, _ := groups.KindOf(r.kind)
	return slices.ContainsFunc(k.Capacities, func(c groups.CapacityRow) bool { return slices.Contains(capacities, c.Capacity) })
}

// applies drops the cases of a set that a kind cannot have by its row in the
// Command catalogue: the scope of a kind without one, an Execution Lease of a kind
// that names none.
func (r row) applies(set byte, c string) bool {
	k, ok := groups.KindOf(r.kind)
	if !ok {
		return true
	}
	agents := r.has(groups.CapacityCoordinator, groups.CapacityDelegate, groups.CapacityWorker, groups.CapacityMember)
	switch name := caseName(c); {
	case name == "resend after session change":
		return agents
	case name == "scope removed":
		for _, row := range k.Capacities {
			if row.Scope != "" {
				return true
			}
		}
		return false
	case name == "provisional member":
		return !k.Provisional
	case name == "required member missing", name == "null member", name == "wrong type":
		return k.Shape != nil
	case set == 'D' && r.kind == protocol.CommandAgentCardRegister:
		// A card's place is its Organization and its id goes with a version: own
		// cases of the row.
		return name != "document of another place" && name != "document id reused"
	case set == 'V' && name == "too low":
		return !zeroOnly[r.kind]
	case set == 'W' && strings.Contains(name, "lease"):
		return k.Shape != nil && k.Shape.MemberShape("executionLeaseId") != nil
	}
	return true
}

// zeroOnly are the kinds whose expectedRevision can only be 0: nothing is lower.
var zeroOnly = map[string]bool{"work.propose": true, "policy.grant_cooperation_override": true}

// codes are the abbreviations of the Command profile.
var codes = map[string]protocol.Code{
	"AF": protocol.CodeAuthForbidden, "AIC": protocol.CodeActionIDCollision, "AIS": protocol.CodeAuthInvalidSignature,
	"APR": protocol.CodeApprovalRequired, "AR": protocol.CodeAuthRequired, "ASC": protocol.CodeAuthStaleCoordinator,
	"ASS": protocol.CodeAuthStaleSession, "BE": protocol.CodeBudgetExceeded, "GNF": protocol.CodeGroupNotFound,
	"IC": protocol.CodeInvalidCommand, "IST": protocol.CodeInvalidStateTransition, "MR": protocol.CodeMembershipRequired,
	"MS": protocol.CodeMembershipStale, "PV": protocol.CodeProtocolViolation, "RC": protocol.CodeRevisionConflict,
	"RL": protocol.CodeRateLimited, "SVF": protocol.CodeSchemaValidationFailed, "UCE": protocol.CodeUnknownCriticalExtension,
	"WAO": protocol.CodeWorkAlreadyOwned, "WCI": protocol.CodeWorkContractIncomplete, "WLE": protocol.CodeWorkLeaseExpired,
	"WOE": protocol.CodeWorkOfferExpired, "WSO": protocol.CodeWorkStaleOwnership,
}

// caseName is what stands behind the code of a case.
func caseName(c string) string {
	_, name, _ := strings.Cut(c, " ")
	return name
}

// expectation reads the code, and the reason if the case names one.
func expectation(c string) (code protocol.Code, reason string) {
	short, _, _ := strings.Cut(c, " ")
	short, reason, _ = strings.Cut(short, ":")
	return codes[short], reason
}
