package matrix

import (
	"slices"

	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
)

// pair is a state of a table of section 4 and a Command that has no row there: the
// Command must be refused.
type pair struct {
	table       int
	state, kind string
}

// name is the pair's row with the code that answers.
func (p pair) name() string {
	return p.code() + " " + tables[p.table].name + " " + p.state + ": " + p.kind
}

// ownFailure is work.fail in its Worker form, which has a row of its own.
const ownFail = "work.fail by the owner"

// absentPairs crosses, table by table, every state with every Command that has a
// row from some state.
func absentPairs() []pair {
	var out []pair
	for _, i := range []int{ofMission, ofWorkItem, ofOffer, ofRequest, ofExecution, ofProposal, ofGroup} {
		for _, kind := range kindsOf(i) {
			for _, state := range statesOf(i) {
				if !hasRow(i, state, kind) {
					out = append(out, pair{i, state, kind})
				}
			}
		}
	}
	return append(out, membershipPairs...)
}

// membershipPairs are those of the Membership table. It cannot be crossed: most
// Commands concern a Membership without having a row for it.
var membershipPairs = []pair{
	{ofMembership, "active", "membership.change to provisional"},
	{ofMembership, "none", "membership.end"},
	{ofMembership, "ended", "membership.end"},
	{ofMembership, "none", "work.accept_offer"},
	{ofMembership, "ended", "work.accept_offer"},
}

// kindsOf are the Commands of a table that start in some state and in no other
// make a new object: that one does not depend on the old.
func kindsOf(table int) []string {
	var out []string
	for _, t := range tables[table].rows {
		kind := t.Cause
		if kind == "mission.create_follow_up on it" {
			kind = "mission.create_follow_up"
		}
		if _, ok := groups.KindOf(kind); !ok && kind != ownFail {
			continue
		}
		makes := slices.ContainsFunc(tables[table].rows, func(o groups.Transition) bool { return o.Cause == kind && len(o.From) == 0 })
		if len(t.From) > 0 && !makes && !slices.Contains(out, kind) {
			out = append(out, kind)
		}
	}
	return out
}

// statesOf are the states of a table's objects.
func statesOf(table int) []string {
	var out []string
	for _, t := range tables[table].rows {
		for _, s := range slices.Concat(t.From, t.To) {
			if s != "" && !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
	}
	return out
}

func hasRow(table int, state, kind string) bool {
	return slices.ContainsFunc(tables[table].rows, func(t groups.Transition) bool {
		return (t.Cause == kind || t.Cause == kind+" on it") && slices.Contains(t.From, state)
	})
}

// code is what answers: the state, unless an earlier step of the pipeline has to.
func (p pair) code() string {
	switch p.table {
	case ofWorkItem:
		return itemCode(p.kind, p.state)
	case ofOffer:
		// The fate of an offer is told in the lease step (COMMANDS.md E3).
		// Who takes up what was taken has lost; who declines it comes too late.
		if p.state == groups.OfferLostRace || p.state == groups.OfferAccepted && p.kind == "work.accept_offer" {
			return "WAO"
		}
		return "WOE"
	case ofMembership:
		switch {
		case p.kind == "membership.end":
			return "IC"
		case p.kind == "work.accept_offer" && p.state == "none":
			return "GNF"
		case p.kind == "work.accept_offer":
			return "MR"
		}
	}
	return "IST"
}

// itemCode is the code of a Command on a WorkItem that once had an owner, by that
// owner where the kind is the Worker's. The owner record stays from queued up to
// verified and is cleared otherwise; an Execution Lease lives in active only, an
// Ownership Lease from queued to submitted.
func itemCode(kind, state string) string {
	owned := slices.Contains([]string{
		protocol.WorkQueued, protocol.WorkActive, protocol.WorkBlocked, protocol.WorkSubmitted, protocol.WorkVerified,
	}, state)
	byState := func(without, with string) string {
		if owned {
			return with
		}
		return without
	}
	switch kind {
	case "work.checkpoint", "work.block", "artifact.publish", "work.submit", ownFail,
		"ext.missionweaveprotocol.core.work_execution_lease_renew", "ext.missionweaveprotocol.core.resource_usage_record",
		"ext.missionweave.approval.consume_action":
		return byState("WSO", "WLE")
	case "work.start", "ext.missionweave.work.ownership_lease_renew":
		if state == protocol.WorkVerified {
			return "WLE"
		}
		return byState("WSO", "IST")
	case "ext.missionweave.approval.request_execution":
		return byState("WSO", "IST")
	case "approval.grant_execution":
		if state == protocol.WorkVerified {
			return "WLE"
		}
		return byState("WLE", "IST")
	case "ext.missionweave.approval.request_action":
		return byState("IC", "IST")
	case "work.accept_offer":
		return "WAO" // the former owner's offer was accepted
	case "ext.missionweave.work.offer_decline":
		return "WOE"
	}
	return "IST"
}
