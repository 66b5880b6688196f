package protocol_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// axis is one member in all the states that a conditional rule may ask for;
// the empty string leaves the member out.
type axis struct {
	pointer string
	values  []string
}

func absentOr(pointer string, values ...string) axis {
	return axis{pointer, append([]string{""}, values...)}
}

func quoted(words ...string) (out []string) {
	for _, word := range words {
		out = append(out, quote(word))
	}
	return out
}

// Every combination of the members that conditional rules look at has the
// schema's verdict.
func TestConditionalRulesAgreeWithSchemasInEveryCombination(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine, many documents: nothing for the race detector")
	}
	judge := newOracle(t, sharedRoot(t))
	const (
		instant = `"2031-05-04T08:00:00Z"`
		id      = `"urn:x:y"`
		hash    = `"sha256:0000000000000000000000000000000000000000000000000000000000000000"`
	)
	actors := axis{"", []string{`{"type":"agent","id":"urn:x:a"}`, `{"type":"human","id":"urn:x:h"}`, `{"type":"service","id":"urn:x:s"}`}}
	at := func(pointer string) axis { return axis{pointer, actors.values} }
	one := func(kind protocol.DocumentKind, name string) *tree {
		for _, v := range ownVectors(t) {
			if v.kind == kind && v.name == "document "+name {
				return v.doc
			}
		}
		t.Fatalf("no %s %s", kind, name)
		return nil
	}
	commandKinds := append(protocol.CoreCommandKinds(),
		protocol.CommandAgentCardRegister, protocol.CommandSessionOpen, "ext.loom.audit.note_add", "work.unknown")
	item := one(protocol.KindWorkItem, "submitted")
	part := func(name string) string { return item.kids[item.at(name)].String() }
	tests := []struct {
		kind protocol.DocumentKind
		doc  string
		axes []axis
	}{
		{protocol.KindCommand, "agent", []axis{
			{"/kind", quoted(commandKinds...)},
			at("/actor"), absentOr("/groupId", id),
			absentOr("/sessionEpoch", "1"), absentOr("/membershipEpoch", "1"), absentOr("/coordinatorEpoch", "1"),
		}},
		{protocol.KindEvent, "group", []axis{
			{"/kind", quoted("work.started", protocol.EventAgentCardRegistered, protocol.EventSessionOpened, "ext.a.b.c")},
			at("/actor"), absentOr("/groupId", id), absentOr("/sequence", "1"), absentOr("/aggregateRevision", "0"),
		}},
		{protocol.KindLease, "execution", []axis{
			{"/leaseType", quoted("coordinator", "ownership", "execution", "blocked")},
			{"/state", quoted("active", "expired", "revoked", "released")},
			{"/renewalCount", []string{"0", "1", "-0", "2.0"}},
			absentOr("/workItemId", id), absentOr("/coordinatorEpoch", "1"), absentOr("/ownershipEpoch", "1"),
			absentOr("/startBy", instant), absentOr("/graceExpiresAt", instant), absentOr("/lastRenewedAt", instant),
			absentOr("/closedAt", instant), absentOr("/closureReason", `"x"`),
		}},
		{protocol.KindMission, "root", []axis{
			at("/missionOwner"), absentOr("/parent", `{"missionId":"urn:x:m","workItemId":"urn:x:w","depth":1}`, "null"),
			{"/approvalPolicy/finalHumanApproval", []string{"true", "false"}},
			{"/state", quoted("active", "awaiting_approval", "approved", "failed", "cancelled")},
		}},
		{protocol.KindMission, "root", []axis{
			absentOr("/budget/currency", `"NOK"`), absentOr("/budget/financialLimit", "1"), absentOr("/budget/modelTokenLimit", "1"),
			absentOr("/budget/toolCallLimit", "1"), absentOr("/budget/computeSecondsLimit", "1"),
			absentOr("/budget/wallClockSecondsLimit", "1"), absentOr("/budget/externalSideEffectLimit", "1"),
		}},
		{protocol.KindMembership, "active", []axis{
			absentOr("/delegationGrants/0/budget/currency", `"NOK"`), absentOr("/delegationGrants/0/budget/financialLimit", "1"),
			absentOr("/delegationGrants/0/budget/modelTokenLimit", "1"), absentOr("/delegationGrants/0/budget/toolCallLimit", "1"),
			absentOr("/delegationGrants/0/budget/computeSecondsLimit", "1"), absentOr("/delegationGrants/0/budget/wallClockSecondsLimit", "1"),
			absentOr("/delegationGrants/0/budget/externalSideEffectLimit", "1"), at("/delegationGrants/0/grantedBy"),
		}},
		{protocol.KindGroup, "active", []axis{
			{"/state", quoted("active", "archived")}, absentOr("/archivedAt", instant), absentOr("/archiveSnapshotId", id),
		}},
		{protocol.KindMembership, "active", []axis{
			{"/state", quoted("provisional", "active", "ended")},
			absentOr("/provisionalExpiresAt", instant),
			absentOr("/contextPackageId", id), absentOr("/activatedAt", instant), absentOr("/endedAt", instant),
		}},
		{protocol.KindConversation, "work", []axis{
			{"/type", quoted("group", "work_item", "review", "restricted")},
			absentOr("/primaryWorkItemId", id),
			{"/access/mode", quoted("group", "restricted")},
			absentOr("/access/members", "[]", `[{"type":"agent","id":"urn:x:a"}]`),
		}},
		{protocol.KindMessage, "correction", []axis{
			{"/kind", quoted("message", "correction", "retraction", "redaction")},
			absentOr("/targetMessageId", id),
			absentOr("/reason", `"x"`),
			{"/authority", []string{"false", "true", "null", "0"}},
		}},
		{protocol.KindApproval, "final", []axis{
			{"/kind", quoted("mission_final", "child_mission", "work_execution")},
			{"/decision", quoted("approved", "changes_requested", "denied", "revoked")},
			at("/approver"),
			absentOr("/workItemId", id), absentOr("/revokesApprovalId", id),
			{"/artifactHashes", []string{"[]", "[" + hash + "]"}},
		}},
		{protocol.KindWorkItem, "submitted", []axis{
			{"/state", quoted("open", "offered", "queued", "active", "blocked", "submitted", "verified", "failed", "cancelled")},
			absentOr("/owner", part("owner")), absentOr("/selectionBasis", part("selectionBasis")), absentOr("/submission", part("submission")),
		}},
		{protocol.KindWebSocketFrame, "client_init", []axis{
			{"/frameType", quoted("HELLO", "SUBSCRIBE", "COMMAND", "EVENT", "ACK", "PING", "ERROR", "x")},
			absentOr("/phase", quoted("client_init", "server_challenge", "client_response", "server_accept", "x")...),
		}},
	}
	for _, tt := range tests {
		t.Run(string(tt.kind)+" "+tt.axes[0].pointer, func(t *testing.T) {
			base := one(tt.kind, tt.doc)
			total, valid := 1, 0
			for _, a := range tt.axes {
				total *= len(a.values)
			}
			for n := range total {
				doc := base.clone()
				for rest, i := n, 0; i < len(tt.axes); i++ {
					a := tt.axes[i]
					value := a.values[rest%len(a.values)]
					rest /= len(a.values)
					if value != "" {
						if err := doc.edit(a.pointer, parseTree(t, []byte(value))); err != nil {
							t.Fatal(err)
						}
					} else {
						_ = doc.edit(a.pointer, nil) // may be absent already
					}
				}
				if agree(t, judge, tt.kind, doc) {
					valid++
				}
			}
			t.Logf("%d combinations, %d valid", total, valid)
			if valid == 0 && tt.kind != protocol.KindWebSocketFrame {
				t.Error("no combination is valid: the test misses its aim")
			}
		})
	}
}

// agree compares the verdicts on one document and returns whether it is valid.
func agree(t *testing.T, judge *oracle, kind protocol.DocumentKind, doc *tree) bool {
	t.Helper()
	b := doc.append(nil)
	parsed, err := strictjson.Parse(b)
	if err != nil {
		return false
	}
	fault := protocol.Validate(kind, parsed.Root())
	want, why := judge.accepts(kind, parsed.Root())
	if (fault == nil) != want {
		t.Errorf("%s: ours %v, schema %v\n%.3000s", kind, fault, why, b)
	}
	return want
}

// Every member of every document, changed in every plain way, one at a time.
func TestEachMemberAgreesWithSchemas(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine, many documents: nothing for the race detector")
	}
	judge := newOracle(t, sharedRoot(t))
	changes := 0
	for _, v := range ownVectors(t) {
		if !strings.HasPrefix(v.name, "document ") {
			continue
		}
		root := &tree{kind: strictjson.Array, kids: []*tree{v.doc.clone()}}
		places := (&mutator{}).places(root, "", nil)
		for _, p := range places {
			original := p.node()
			try := func(changed *tree) {
				p.replace(changed)
				agree(t, judge, v.kind, root.kids[0])
				p.replace(original)
				changes++
			}
			for _, text := range retypes {
				try(scalar(text))
			}
			for _, word := range judge.words[p.name] {
				try(scalar(quote(word)))
			}
			for _, bound := range judge.bounds[p.name] {
				for n := bound - 1; n <= bound+1; n++ {
					for _, changed := range atLength(original, n) {
						try(changed)
					}
				}
			}
			switch original.kind {
			case strictjson.Object:
				wider := original.clone()
				wider.names, wider.kids = append(wider.names, `"unknownMember"`), append(wider.kids, scalar("1"))
				try(wider)
				for i := range original.kids {
					narrower := original.clone()
					if err := narrower.edit("/"+strings.ReplaceAll(strings.ReplaceAll(strings.Trim(original.names[i], `"`), "~", "~0"), "/", "~1"), nil); err != nil {
						t.Fatal(err)
					}
					try(narrower)
				}
			case strictjson.Array:
				if len(original.kids) > 0 {
					twice := original.clone()
					twice.kids = append(twice.kids, twice.kids[0].clone())
					try(twice)
				}
			}
		}
	}
	t.Logf("%d changes", changes)
}

// atLength brings a value to n in ways that keep its form: a string grown at
// its end, a number of that value, an array cut.
func atLength(t *tree, n int) (out []*tree) {
	if n < 0 || n > 1<<17 && t.kind == strictjson.String {
		return nil
	}
	switch t.kind {
	case strictjson.Number:
		return []*tree{scalar(strconv.Itoa(n)), scalar(strconv.Itoa(n) + ".0"), scalar(strconv.Itoa(n) + ".5")}
	case strictjson.Array:
		if n < len(t.kids) {
			c := t.clone()
			c.kids = c.kids[:n]
			return []*tree{c}
		}
	case strictjson.String:
		runes := []rune(t.text[1 : len(t.text)-1])
		if n <= len(runes) {
			return []*tree{scalar(`"` + string(runes[:n]) + `"`)}
		}
		for _, tail := range []string{"a", "-a", ".a", "0"} {
			unit := tail[len(tail)-1:]
			need := n - len(runes) - len(tail)
			if need < 0 {
				continue
			}
			out = append(out, scalar(`"`+string(runes)+tail+strings.Repeat(unit, need)+`"`))
		}
		if need := n - len(runes); need > 0 {
			out = append(out, scalar(`"`+string(runes)+strings.Repeat("\U0001F9F6", need)+`"`))
		}
	}
	return out
}
