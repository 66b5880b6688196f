package matrix

import (
	"slices"
	"strings"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
)

// table is one transition table of COMMANDS.md section 4 under the name of its
// objects.
type table struct {
	name string
	rows []groups.Transition
}

// The tables by their place in an observation.
const (
	ofMission = iota
	ofWorkItem
	ofMembership
	ofOffer
	ofRequest
	ofExecution
	ofGroup
	ofProposal
	ofCoordinatorLease
	ofOwnershipLease
	ofExecutionLease
	ofBlockedLease
	tableCount
)

var tables = [tableCount]table{
	ofMission:          {"Mission", groups.MissionTransitions},
	ofWorkItem:         {"WorkItem", groups.WorkItemTransitions},
	ofMembership:       {"Membership", groups.MembershipTransitions},
	ofOffer:            {"Offer", groups.OfferTransitions},
	ofRequest:          {"approval request", groups.RequestTransitions},
	ofExecution:        {"execution Approval", groups.ExecutionTransitions},
	ofGroup:            {"Group", groups.GroupTransitions},
	ofProposal:         {"Proposal", groups.ProposalTransitions},
	ofCoordinatorLease: {"Coordinator lease", groups.LeaseTransitions[protocol.LeaseCoordinator]},
	ofOwnershipLease:   {"Ownership lease", groups.LeaseTransitions[protocol.LeaseOwnership]},
	ofExecutionLease:   {"Execution Lease", groups.LeaseTransitions[protocol.LeaseExecution]},
	ofBlockedLease:     {"blocked lease", groups.LeaseTransitions[protocol.LeaseBlocked]},
}

var leaseTables = map[string]int{
	protocol.LeaseCoordinator: ofCoordinatorLease, protocol.LeaseOwnership: ofOwnershipLease,
	protocol.LeaseExecution: ofExecutionLease, protocol.LeaseBlocked: ofBlockedLease,
}

// transitionRows lists every row once per state it starts in.
func transitionRows() []string {
	var out []string
	for _, table := range tables {
		for _, t := range table.rows {
			for _, from := range sources(t) {
				out = append(out, rowName(table.name, t, from))
			}
		}
	}
	return out
}

// sources are the states a row starts in; "" is none yet.
func sources(t groups.Transition) []string {
	if len(t.From) == 0 {
		return []string{""}
	}
	return t.From
}

func rowName(table string, t groups.Transition, from string) string {
	if from == "" {
		from = "none"
	}
	to := "="
	if len(t.To) > 0 {
		to = strings.Join(t.To, " or ")
	}
	return table + " " + from + " → " + to + ": " + t.Cause
}

// seen is the state of one object, with a mark that changes when it does.
type seen struct{ state, mark string }

// observation is the state of the objects that an Event may move, by table.
type observation [tableCount]map[string]seen

func (o *observation) lease(l *protocol.Lease) {
	if l != nil {
		o[leaseTables[l.LeaseType]][l.LeaseID] = seen{l.State, l.ExpiresAt + l.StartBy}
	}
}

// observe looks at what an Event is about.
func observe(s *groups.State, ev *groups.Event) observation {
	var o observation
	for i := range o {
		o[i] = map[string]seen{}
	}
	if s.Mission == nil {
		return o
	}
	if ev.WorkItemID == "" {
		o[ofMission][""] = seen{state: s.Mission.State}
	}
	if w := s.WorkItems[ev.WorkItemID]; w != nil {
		o[ofWorkItem][ev.WorkItemID] = seen{state: w.State}
		for _, offer := range w.Offers {
			o[ofOffer][offer.OfferID] = seen{offer.Status, offer.ExpiresAt}
		}
		for _, r := range w.Requests {
			o[ofRequest][r.RequestID] = seen{state: r.Status}
		}
		for _, e := range w.Executions {
			o[ofExecution][e.ApprovalID] = seen{state: e.Status}
		}
		for i := range w.ClosedLeases {
			o.lease(&w.ClosedLeases[i])
		}
		for _, l := range []*protocol.Lease{w.Ownership, w.Execution, w.Blocked} {
			o.lease(l)
		}
	}
	for actor, m := range s.Memberships {
		o[ofMembership][actor.ID] = seen{m.State, string(rune(m.MembershipEpoch))}
	}
	o[ofGroup][""] = seen{state: s.Group.State}
	for id, p := range s.Proposals {
		o[ofProposal][id] = seen{state: p.Status}
	}
	o.lease(s.CoordinatorLease)
	return o
}

// moved notes which rows an Event took.
func (r *run) moved(s *stand, ev *groups.Event, before, after observation) {
	kind := ""
	if ev.Cause.Type == "command" {
		kind = s.kindOf(ev.Cause.ID)
	}
	if p, ok := ev.Payload.(*groups.MissionCoordinatorAssigned); ok {
		after.lease(p.ClosedLease) // the state keeps only the present lease
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, table := range tables {
		for id, now := range after[i] {
			was := before[i][id]
			if i != ofMission && i != ofWorkItem && was == now {
				continue // the Event is about another object of the kind
			}
			for _, t := range table.rows {
				if t.Event != ev.Kind && t.Event != "" || !slices.Contains(sources(t), was.state) {
					continue
				}
				if len(t.To) == 0 && was.state != now.state || len(t.To) > 0 && !slices.Contains(t.To, now.state) {
					continue
				}
				if causedBy(table.rows, t, ev, kind) {
					r.transitions[rowName(table.name, t, was.state)] = true
				}
			}
		}
	}
}

// causedBy reports whether an Event descends from the cause of a row. A cause in
// words holds when no row of the same Event names the Command, and what it says of
// the Event is so.
func causedBy(table []groups.Transition, t groups.Transition, ev *groups.Event, kind string) bool {
	if says, ok := phrases[t.Cause]; ok {
		return says(ev, kind)
	}
	if _, command := groups.KindOf(t.Cause); command {
		if kind == "" && ev.Kind == "mission.created" {
			return ev.Cause.Type == "event" && t.Cause == "mission.create_child"
		}
		if t.Cause != kind {
			return false
		}
		// Two rows of one Command differ in who sent it.
		names := func(cause string) bool {
			return slices.ContainsFunc(table, func(o groups.Transition) bool { return o.Cause == cause })
		}
		switch {
		case kind == "work.fail" && names("work.fail by the owner"):
			return !ownFailure(ev, kind)
		case strings.HasSuffix(kind, "resource_usage_record"):
			return ev.Actor.Type == client.Agent
		}
		return true
	}
	return !slices.ContainsFunc(table, func(o groups.Transition) bool { return o.Event == t.Event && o.Cause == kind })
}

func ownFailure(ev *groups.Event, kind string) bool {
	p, ok := ev.Payload.(*groups.WorkFailed)
	return ok && kind == "work.fail" && p.OwnershipEpoch > 0 && ev.Actor.Type == client.Agent && p.PreviousOwner != nil && p.PreviousOwner.AgentID == ev.Actor.ID
}

func ended(reason string) func(*groups.Event, string) bool {
	return func(ev *groups.Event, _ string) bool {
		p, ok := ev.Payload.(*groups.MembershipEnded)
		return ok && p.Reason == reason
	}
}

// phrases are the causes in words that need a look at the Event.
var phrases = map[string]func(ev *groups.Event, kind string) bool{
	"work.offer with a contract":     func(_ *groups.Event, kind string) bool { return kind == "work.offer" },
	"work.fail by the owner":         ownFailure,
	"mission.create_follow_up on it": func(*groups.Event, string) bool { return true },
	"resource_usage_record by a service": func(ev *groups.Event, _ string) bool {
		return ev.Actor.Type == client.Service && ev.Cause.Type == "command"
	},
	"child Mission failed, work fails with it": func(ev *groups.Event, _ string) bool { return childFailed(ev) },
	"Mission failed":              func(ev *groups.Event, kind string) bool { return kind != "work.fail" && !childFailed(ev) },
	"clock":                       func(ev *groups.Event, _ string) bool { return true },
	"expiry":                      ended("provisional_expired"),
	"Group archival":              ended("archived"),
	"parent Coordinator replaced": func(ev *groups.Event, kind string) bool { return kind == "" && ev.Cause.Type == "event" },
	"replace, revision, end of work or Membership, child Mission": func(*groups.Event, string) bool { return true },
	"new Ownership Epoch": func(*groups.Event, string) bool { return true },
	"Mission ended": func(ev *groups.Event, _ string) bool {
		return slices.Contains([]string{"mission.approved", "mission.cancelled", "mission.terminated"}, ev.Kind)
	},
	"child Mission ended, work stays or is verified": func(ev *groups.Event, _ string) bool {
		return ev.Cause.Type == "event" && (ev.Kind == "work.blocked" || ev.Kind == "work.result.accepted")
	},
	"work ends with its Mission or child Mission": func(ev *groups.Event, kind string) bool {
		return (ev.Kind == "work.failed" || ev.Kind == "work.cancelled") && kind != "work.fail" && kind != "work.cancel"
	},
	"session takeover": revokedFor("session_replaced"),
	"agent revoked":    revokedFor("agent_revoked"),
}

func revokedFor(reason string) func(*groups.Event, string) bool {
	return func(ev *groups.Event, _ string) bool {
		p, ok := ev.Payload.(*groups.LeaseRevoked)
		return ok && p.Reason == reason
	}
}

func childFailed(ev *groups.Event) bool {
	p, ok := ev.Payload.(*groups.WorkFailed)
	return ok && p.ChildMissionID != ""
}
