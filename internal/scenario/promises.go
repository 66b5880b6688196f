package scenario

import "slices"

// promise is one thing that the scenario is there to show, with the checks that
// show it. docs/scenario.md has the same table for readers.
type promise struct {
	Name   string
	Checks []string
}

// Kept is a promise with how many of its checks hold.
type Kept struct {
	Promise string `json:"promise"`
	Checks  int    `json:"checks"`
	Held    int    `json:"held"`
}

// promises are what a play without faults shows.
var promises = []promise{
	{"Stages with dependencies", []string{
		"requirements, implementation, testing, code review, integration and deployment are separate WorkItems joined by dependencies",
		"a stage does not start before its predecessors are verified",
		"work that was accepted too early waits in its queue",
		"each stage began only when all its predecessors were verified",
		"code review is a WorkItem of another Worker than the producer",
		"the human Approval comes after every stage: an unfinished Mission is not submitted",
		"the human Approval waits for every stage",
	}},
	{"Two Missions at once", []string{"two Missions are active at the same time", "a Message is no authority"}},
	{"Distinct queues", []string{
		"the shared Worker runs WorkItems of two Missions in its two slots",
		"each Group has a queue of its own", "each Group has a Cursor of its own",
	}},
	{"Weighted-fair scheduling without starvation", []string{"slots are shared by weight and not by urgency", "neither Mission is starved"}},
	{"No leak between Missions: context", []string{
		"search keeps its context from billing", "billing keeps its context from search",
		"no context of search reached billing through the shared Workers", "no context of billing reached search through the shared Workers",
	}},
	{"No leak between Missions: credentials", []string{
		"search keeps its credentials from billing", "billing keeps its credentials from search",
		"a Worker's authority in billing is none in search", "a Worker's authority in search is none in billing",
	}},
	{"No leak between Missions: budgets", []string{
		"search keeps its budgets from billing", "billing keeps its budgets from search",
		"a charge to billing leaves the budget of search alone", "a charge to search leaves the budget of billing alone",
	}},
	{"No leak between Missions: Artifacts", []string{
		"search keeps its Artifacts from billing", "billing keeps its Artifacts from search",
		"a known hash opens no Artifact through billing", "a known hash opens no Artifact through search",
	}},
	{"Worker-proposed sub-work authorized by the Coordinator", []string{
		"a proposal creates no executable obligation", "sub-work that a Worker proposed is authorized by the Coordinator",
	}},
	{"Delegated sub-work under a Delegation Grant", []string{
		"the role alone conveys no authority to author work", "sub-work is delegated under a Delegation Grant",
		"a Grant reaches no further than its capabilities", "delegated sub-work is carried out by another Worker",
	}},
	{"Clarification in the WorkItem Conversation", []string{
		"an ambiguity is raised in the WorkItem's Conversation before acceptance", "a revised Work Contract is accepted anew",
	}},
	{"Block, checkpoint, release of capacity, resume", []string{
		"a blocked WorkItem names what is missing and what would resolve it", "blocking checkpoints the progress so far",
		"blocking releases the execution slot", "unblocked work resumes where it was",
	}},
	{"Checkpoint preemption by a high-priority arrival", []string{
		"a high-priority arrival preempts at a checkpoint", "preempted work keeps its owner and its saved state",
		"preempted work resumes and finishes", "the resumed run had the saved state",
	}},
	{"Evidence-based review by someone else than the producer", []string{
		"a result without the reviewer's Evidence is not accepted", "the producer's own assessment does not count",
		"a result is accepted on the Evidence of somebody else than its producer",
	}},
	{"Execution Approval before an external action", []string{
		"an external action does not start without a human's Approval", "no Capability Token is given out before the Approval",
		"the gate shows on the WorkItem and in the owner's list", "the MissionOwner grants the execution through the API",
		"the external action is executed exactly once", "an external call that is repeated has the same idempotency key",
	}},
	{"A Capability Token", []string{
		"the external system refuses whoever has no valid token", "the action ran under a Capability Token",
		"no token appears in any Event, Message or Artifact", "the token ended with its lease",
	}},
	{"A World Manifest decision", []string{
		"inputs are labelled by their channel and not by their words", "the World Manifest stops what tainted data asks for",
		"it allows what the Mission ordered",
	}},
	{"An evidence record", []string{
		"the action left an evidence record that verifies", "the evidence names the decisions, the action and what came of it",
	}},
	{"Request for changes and corrective work", []string{"a request for changes reopens the Mission for corrective work"}},
	{"A child Mission approved", []string{
		"a child Mission has its own Group, Coordinator and budget", "the parent WorkItem is blocked on its child",
		"the root MissionOwner can inspect the whole tree", "the child's Approval verifies the parent WorkItem",
	}},
	{"A child Mission that fails and is replaced", []string{
		"a failed child blocks its parent WorkItem and not the Mission", "a failed child is replaced by another",
	}},
	{"Budget exhaustion, pause and increase", []string{
		"exhausting a budget is a fact of its own", "exhaustion pauses the work at a checkpoint", "paused work does not start",
		"an increase lets the work go on",
	}},
	{"Final Approval of exact revision and Artifacts", []string{
		"an Approval of an older revision is none", "an Approval of other Artifacts is none",
		"a human approves the exact revision and Artifacts", "an approved Mission is not reopened",
	}},
	{"Follow-up Mission", []string{"a follow-up Mission is linked to the approved one"}},
	{"Archival", []string{"archival seals the Group with a signed snapshot", "an archived Group takes no Command"}},
	{"An audit bundle that verifies offline", []string{
		"the audit bundle verifies offline", "a bundle with one changed letter does not verify", "the bundle is not for everybody",
	}},
	{"One log, told once", []string{
		"the log of billing has no gap and folds to what was seen", "the log of search has no gap and folds to what was seen",
		"nobody was told an Event twice",
	}},
}

// keep makes a failed check of every check that was promised and did not run.
func (st *stage) keep() {
	ran := map[string]bool{}
	for _, k := range st.checks.all {
		ran[k.Name] = true
	}
	s := &scene{stage: st, name: "Not run"}
	for _, p := range promises {
		for _, name := range p.Checks {
			if !ran[name] {
				s.check(name, false, "it shows %q and did not run", p.Name)
			}
		}
	}
}

// kept counts for every promise the checks that hold.
func kept(all []Check) []Kept {
	out := make([]Kept, 0, len(promises))
	for _, p := range promises {
		k := Kept{Promise: p.Name}
		for _, c := range all {
			if slices.Contains(p.Checks, c.Name) {
				k.Checks++
				if c.OK {
					k.Held++
				}
			}
		}
		out = append(out, k)
	}
	return out
}
