// Command docgen writes the documents that are made from the tables of the
// code: what is a table there is never written twice. Run it from the
// repository root: go run ./internal/docgen (or make generate).
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
)

func main() {
	for name, content := range documents() {
		if err := os.WriteFile(filepath.Join("docs", name), content, 0o644); err != nil { //nolint:gosec // documents are public
			fail(err)
		}
	}
	page, err := conformance(".")
	if err == nil {
		err = os.WriteFile(conformanceFile, page, 0o644) //nolint:gosec // documents are public
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "docgen:", err)
	os.Exit(1)
}

// documents returns every generated document by file name.
func documents() map[string][]byte {
	return map[string][]byte{
		"state-machines.md": stateMachines(),
		"commands.md":       commands(),
		"errors.md":         errorCodes(),
		"clauses.md":        clauses(),
		"evidence-rules.md": evidenceRules(),
	}
}

const head = "<!-- Made by internal/docgen from the tables of the code. Do not edit. -->\n\n"

func stateMachines() []byte {
	var b bytes.Buffer
	b.WriteString(head + "# State machines\n\nEvery state change of a Group's objects, from the transition tables in `internal/groups`. A Command in a state that has no row here is refused with INVALID_STATE_TRANSITION. \"=\" keeps the state.\n")
	for _, m := range []struct {
		name string
		rows []groups.Transition
	}{
		{"Mission", groups.MissionTransitions},
		{"WorkItem", groups.WorkItemTransitions},
		{"Membership", groups.MembershipTransitions},
		{"Proposal", groups.ProposalTransitions},
		{"Offer", groups.OfferTransitions},
		{"Approval request", groups.RequestTransitions},
		{"Execution approval", groups.ExecutionTransitions},
		{"Group", groups.GroupTransitions},
		{"Coordinator lease", groups.LeaseTransitions[protocol.LeaseCoordinator]},
		{"Ownership lease", groups.LeaseTransitions[protocol.LeaseOwnership]},
		{"Execution Lease", groups.LeaseTransitions[protocol.LeaseExecution]},
		{"Blocked lease", groups.LeaseTransitions[protocol.LeaseBlocked]},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n```mermaid\nstateDiagram-v2\n", m.name)
		for _, edge := range edges(m.rows) {
			fmt.Fprintf(&b, "  %s\n", edge)
		}
		b.WriteString("```\n\n| From | Command or cause | To | Event | Condition |\n| --- | --- | --- | --- | --- |\n")
		for _, r := range m.rows {
			to := "="
			if len(r.To) > 0 {
				to = states(r.To)
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", states(r.From), r.Cause, to, code(r.Event), r.When)
		}
	}
	return b.Bytes()
}

// edges draws the rows that change the state, one arrow for all the causes
// between two states.
func edges(rows []groups.Transition) []string {
	causes := map[[2]string][]string{}
	for _, r := range rows {
		from := r.From
		if len(from) == 0 {
			from = []string{""}
		}
		for _, f := range from {
			for _, to := range r.To {
				if f != to {
					key := [2]string{node(f), node(to)}
					causes[key] = append(causes[key], short(r.Cause))
				}
			}
		}
	}
	var out []string
	for key, list := range causes {
		out = append(out, fmt.Sprintf("%s --> %s: %s", key[0], key[1], strings.Join(slices.Compact(slices.Sorted(slices.Values(list))), ", ")))
	}
	slices.Sort(out)
	return out
}

func node(state string) string {
	if state == "" {
		return "[*]"
	}
	return state
}

func short(cause string) string {
	cause = strings.TrimPrefix(strings.TrimPrefix(cause, "ext.missionweaveprotocol."), "ext.missionweave.")
	return strings.ReplaceAll(cause, ":", " ")
}

func states(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	named := slices.Clone(list)
	for i := range named {
		if named[i] == "" {
			named[i] = "none"
		}
	}
	return strings.Join(named, ", ")
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

func commands() []byte {
	var b bytes.Buffer
	kinds := groups.Kinds()
	fmt.Fprintf(&b, head+"# Commands and Events\n\nThe %d Command kinds that the Group Authority executes: who may issue them (capacity, with the Membership scope it needs), what the envelope must carry, the aggregate that `expectedRevision` counts, and the Signed Documents in the payload.\n\n", len(kinds))
	b.WriteString("| Command | Capacities | Envelope | Revision of | Embedded documents |\n| --- | --- | --- | --- | --- |\n")
	for _, k := range kinds {
		var who, envelope, docs []string
		for _, c := range k.Capacities {
			s := fmt.Sprint(c.Capacity)
			if c.Scope != "" {
				s += " [" + c.Scope + "]"
			}
			who = append(who, s)
		}
		if k.WorkItem != groups.WorkItemUnused {
			envelope = append(envelope, "workItemId ("+string(k.WorkItem)+")")
		}
		if k.Conversation {
			envelope = append(envelope, "conversationId")
		}
		if k.Organization {
			envelope = append(envelope, "no groupId")
		}
		for _, d := range k.Documents {
			s := string(d.Kind)
			if d.Many {
				s += " (several)"
			}
			docs = append(docs, s)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %v | %s |\n", k.Kind, strings.Join(who, ", "), strings.Join(envelope, ", "), k.Aggregate, strings.Join(docs, ", "))
	}
	events := groups.EventKinds()
	fmt.Fprintf(&b, "\n## Events\n\nThe %d Event kinds, the aggregate each revises, and whether it always adds a Policy Log entry.\n\n| Event | Aggregate | Policy Log |\n| --- | --- | --- |\n", len(events))
	for _, e := range events {
		star := ""
		if e.Policy {
			star = "always"
		}
		fmt.Fprintf(&b, "| `%s` | %v | %s |\n", e.Kind, e.Aggregate, star)
	}
	return b.Bytes()
}

func errorCodes() []byte {
	var b bytes.Buffer
	b.WriteString(head + "# Error codes\n\nFrom `internal/protocol/errors.json`, the one registry of codes. What a code does not disclose never reaches the wire.\n\n| Code | HTTP | Retryable | Meaning |\n| --- | --- | --- | --- |\n")
	for _, c := range protocol.Codes() {
		info, _ := protocol.InfoOf(c)
		fmt.Fprintf(&b, "| %s | %d | %v | %s |\n", c, info.HTTP, info.Retryable, info.Message)
	}
	return b.Bytes()
}

func evidenceRules() []byte {
	var b bytes.Buffer
	b.WriteString(head + "# Evidence rules\n\nEvery rule by which `internal/evidence` judges an evidence record (aep/v0.1 to v0.4), from its table. All rules that a record breaks are reported, each with its id, its error name and a JSON Pointer. Tier 2 does not run on a record whose shape (tier 1) is wrong; tier 3 needs keys; tier 4 needs registries and skips what it has none for. Names that begin with W_ are warnings.\n")
	for tier, title := range []string{1: "Tier 1: shape", 2: "Tier 2: agreement between members", 3: "Tier 3: canonical bytes and signature", 4: "Tier 4: existence in registries"} {
		if title == "" {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n| Rule | Versions | What must hold | Reported |\n| --- | --- | --- | --- |\n", title)
		for _, r := range evidence.Rules {
			if r.Tier == tier {
				fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.ID, r.Gate, r.Condition, strings.Join(r.Errors, " "))
			}
		}
	}
	fmt.Fprintf(&b, "\n## Equality of arguments\n\nRegistered versions of `args_equality_version` ([args-equality.md](args-equality.md)): `%s`.\n", strings.Join(evidence.ArgsEqualityVersions(), "`, `"))
	return b.Bytes()
}
