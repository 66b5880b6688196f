package scenario

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/missionweave/server/client"
)

// isolate shows that the Missions do not learn of each other through what they
// share, in both directions.
func isolate(ctx context.Context, s *scene) {
	a, b := s.mission(billing), s.mission(search)
	ways := [][2]*mission{{a, b}, {b, a}}
	for _, i := range s.choose.order("the direction in which leaks are looked for", 2) {
		s.strangers(ctx, ways[i][0], ways[i][1])
	}
	for _, way := range ways {
		s.marks(ctx, way[0], way[1])
	}
	for _, way := range ways {
		s.charges(ctx, way[0], way[1])
	}
	for _, way := range ways {
		s.leaseElsewhere(ctx, way[0], way[1])
	}
}

// target are the ids of a Mission that a stranger could have heard of.
type target struct{ mission, group, item, conversation, hash, lease string }

// probe is one question about a Mission.
type probe struct {
	what string
	ask  func(t target) error
	// code is the constant answer, GROUP_NOT_FOUND where it is not another one.
	code client.Code
}

// strangers has the Coordinator of one Mission ask for everything of the other,
// with ids that it could have heard, and with ids that nothing has. It must not be
// able to tell the difference.
func (s *scene) strangers(ctx context.Context, own, foreign *mission) {
	item := read(foreign.lead, func(b *client.Board) client.Work {
		for _, w := range b.Sorted() {
			if len(w.Submission) > 0 {
				return *w
			}
		}
		return client.Work{}
	})
	if item.ID == "" {
		s.must("find work in "+foreign.name, errNoAnswer)
	}
	real := target{foreign.id, foreign.group, item.ID, item.ConversationID, item.Submission[0], s.choose.id("a lease of nobody's")}
	none := target{
		s.choose.id("a Mission that is not"), s.choose.id("a Group that is not"), s.choose.id("a WorkItem that is not"),
		s.choose.id("a Conversation that is not"), client.Hash([]byte(s.choose.id("content that is not"))), s.choose.id("another lease of nobody's"),
	}
	for _, kind := range []struct {
		name   string
		probes []probe
	}{
		{"context", s.contextProbes(ctx, own)},
		{"credentials", s.credentialProbes(ctx, own)},
		{"budgets", s.budgetProbes(ctx, own)},
		{"Artifacts", s.artifactProbes(ctx, own)},
	} {
		answers := map[client.Code][]string{}
		told := ""
		for _, p := range kind.probes {
			code, got, want := cmp.Or(p.code, "GROUP_NOT_FOUND"), p.ask(real), p.ask(none)
			answers[code] = append(answers[code], p.what)
			if client.CodeOf(got) != code || spell(got) != spell(want) {
				told += fmt.Sprintf("; %s: %s, and %s of what does not exist", p.what, spell(got), spell(want))
			}
		}
		var parts []string
		for _, code := range slices.Sorted(maps.Keys(answers)) {
			parts = append(parts, fmt.Sprintf("%s for %s", code, strings.Join(answers[code], ", ")))
		}
		s.check(fmt.Sprintf("%s keeps its %s from %s", foreign.name, kind.name, own.name), told == "" && len(answers) > 0,
			"%s is told of Group …%s what it is told of one that is not: %s%s", own.lead.name, short(foreign.group), strings.Join(parts, "; "), told)
	}
	s.elsewhere(ctx, own, real, none)
}

// spell is all that a refusal tells its reader.
func spell(err error) string {
	e, ok := asError(err)
	if !ok {
		return fmt.Sprintf("no refusal (%v)", err)
	}
	return fmt.Sprintf("%s %d reason %q details %v revisions %v %v", e.Code, e.Status, e.Reason, e.Details, e.ExpectedRevision, e.CurrentRevision)
}

func (s *scene) contextProbes(ctx context.Context, own *mission) []probe {
	c := own.lead.c
	get := func(what string, path func(t target) string) probe {
		return probe{what: what, ask: func(t target) error {
			var any client.Raw
			return c.Get(ctx, path(t), nil, &any) //nolint:wrapcheck // judged by its code
		}}
	}
	group := func(tail ...string) func(t target) string {
		return func(t target) string { return client.Path(append([]string{"v1", "groups", t.group}, tail...)...) }
	}
	return []probe{
		{what: "Events", ask: func(t target) error { _, _, err := c.Events(ctx, t.group, 0, 10); return err }}, //nolint:wrapcheck // judged by its code
		{what: "the stream", ask: func(t target) error { _, err := own.lead.session.Subscribe(ctx, t.group, 0); return err }},
		get("the Group", group()),
		get("Memberships", group("memberships")),
		get("Conversations", group("conversations")),
		get("Messages", func(t target) string {
			return client.Path("v1", "groups", t.group, "conversations", t.conversation, "messages")
		}),
		get("WorkItems", group("work-items")),
		get("a WorkItem", func(t target) string { return client.Path("v1", "groups", t.group, "work-items", t.item) }),
		get("the Policy Log", group("policy-log")),
		get("leases", group("leases")),
		get("presence", group("presence")),
		get("the export", group("export")),
		get("the Mission", func(t target) string { return client.Path("v1", "missions", t.mission) }),
		get("its tree", func(t target) string { return client.Path("v1", "missions", t.mission, "tree") }),
		get("its progress", func(t target) string { return client.Path("v1", "missions", t.mission, "progress") }),
		{what: "a Message into it", ask: func(t target) error {
			_, err := own.lead.session.Command(ctx, client.Command{Kind: "message.post", GroupID: t.group, ConversationID: t.conversation, MembershipEpoch: 1},
				map[string]any{"messageId": client.NewID(), "content": []client.ContentPart{{Type: "text", Text: "hello"}}})
			return err //nolint:wrapcheck // judged by its code
		}},
	}
}

func (s *scene) credentialProbes(ctx context.Context, own *mission) []probe {
	session := own.lead.session
	return []probe{
		{what: "a Capability Token", ask: func(t target) error {
			return session.PostAuthz(ctx, "/v1/capability-tokens", map[string]any{ //nolint:wrapcheck // judged by its code
				"groupId": t.group, "workItemId": t.item, "ownershipEpoch": 1, "executionLeaseId": t.lease,
				"operations": []string{"deploy.run"}, "resources": []string{production},
			}, nil)
		}},
		{what: "a Membership Token", ask: func(t target) error {
			return session.PostAuthz(ctx, "/v1/membership-tokens", map[string]any{"groupId": t.group}, nil) //nolint:wrapcheck // judged by its code
		}},
		{what: "evidence records", ask: func(t target) error {
			var any client.Raw
			return own.lead.c.GetAuthz(ctx, "/v1/evidence", map[string][]string{"groupId": {t.group}}, &any) //nolint:wrapcheck // judged by its code
		}},
		{what: "Proposed Actions", ask: func(t target) error {
			var any client.Raw
			return own.lead.c.GetAuthz(ctx, "/v1/actions", map[string][]string{"groupId": {t.group}}, &any) //nolint:wrapcheck // judged by its code
		}, code: "PROTOCOL_VIOLATION"}, // 404: nothing is there to list
	}
}

func (s *scene) budgetProbes(ctx context.Context, own *mission) []probe {
	return []probe{
		{what: "the ledger", ask: func(t target) error {
			var any client.Raw
			return own.lead.c.Get(ctx, client.Path("v1", "groups", t.group, "budget"), nil, &any) //nolint:wrapcheck // judged by its code
		}},
		{what: "an increase", ask: func(t target) error {
			_, err := own.lead.session.Command(ctx, client.Command{Kind: "ext.missionweave.budget.increase", GroupID: t.group, WorkItemID: t.item, MembershipEpoch: 1},
				map[string]any{"budget": budget(1, 2000, 20, 60, 600), "reason": "For us."})
			return err //nolint:wrapcheck // judged by its code
		}},
	}
}

func (s *scene) artifactProbes(ctx context.Context, own *mission) []probe {
	return []probe{
		{what: "content by its hash", ask: func(t target) error {
			_, err := own.lead.c.GetArtifact(ctx, t.group, t.hash)
			return err //nolint:wrapcheck // judged by its code
		}},
		{what: "the list of manifests", ask: func(t target) error {
			var any client.Raw
			return own.lead.c.Get(ctx, client.Path("v1", "groups", t.group, "artifacts"), nil, &any) //nolint:wrapcheck // judged by its code
		}},
		{what: "a place for content", ask: func(t target) error {
			_, err := own.lead.c.PutArtifact(ctx, t.group, []byte("of somebody else's"))
			return err //nolint:wrapcheck // judged by its code
		}},
	}
}

// elsewhere asks for the other Mission's content by its hash through the asker's
// own Group: knowing a hash opens nothing.
func (s *scene) elsewhere(ctx context.Context, own *mission, real, none target) {
	_, err := own.lead.c.GetArtifact(ctx, own.group, real.hash)
	_, missing := own.lead.c.GetArtifact(ctx, own.group, none.hash)
	e, ok := asError(err)
	s.check("a known hash opens no Artifact through "+own.name, ok && e.Status == 404 && spell(err) == spell(missing),
		"sha256:…%s through Group …%s: 404 %s, as for content that nobody has", short(real.hash), short(own.group), client.CodeOf(err))
}

// marks searches everything that members of one Mission can read for what belongs
// to the other one. It is what the slots of the shared Workers had at hand, too:
// each run hands in an account of all it could read.
func (s *scene) marks(ctx context.Context, own, foreign *mission) {
	texts := s.everything(ctx, own)
	found, ours := 0, 0
	for _, t := range texts {
		for _, mark := range []string{s.mark(foreign), foreign.id, foreign.group} {
			found += bytes.Count(t, []byte(mark))
		}
		ours += bytes.Count(t, []byte(s.mark(own)))
	}
	shared := 0
	for _, n := range s.graph(ctx, own).WorkItems {
		if n.OwnerAgentID == s.agentID("reviewer") {
			shared++
		}
	}
	s.check("no context of "+foreign.name+" reached "+own.name+" through the shared Workers", found == 0 && ours > 0 && shared > 0,
		"%d Events and Artifacts, those of %d WorkItems of the reviewer among them, say %q %d times and nothing of %s", len(texts), shared, s.mark(own), ours, foreign.name)
}

// charges spends in one Mission and compares the ledger of the other.
func (s *scene) charges(ctx context.Context, own, other *mission) {
	before, spent := s.ledger(ctx, other), s.choose.number("tokens spent in "+own.name, 150, 400)
	had := s.remaining(ctx, own)
	id := s.give(ctx, own, "spender", "analyst", s.contract("Spend some tokens.", "requirements.write", task{Spend: spent}))
	s.verify(ctx, own, id)
	account := s.account(ctx, own, "work_item", id)
	s.check("a charge to "+own.name+" leaves the budget of "+other.name+" alone", before == s.ledger(ctx, other) && account.Usage.ModelTokens == spent,
		"spender …%s was charged %d tokens, %s has %d after %d; the ledger of %s is the same, byte for byte", short(id), account.Usage.ModelTokens, own.name, s.remaining(ctx, own), had, other.name)
}

// leaseElsewhere has the coder, who works for both Missions, ask for authority in
// one of them with the lease that it has in the other.
func (s *scene) leaseElsewhere(ctx context.Context, own, other *mission) {
	id := s.give(ctx, own, "holder", "coder", s.contract("Hold a lease.", "code.write", task{Steps: []string{"hold"}, Gate: "until its lease was tried elsewhere"}))
	own.lead.await(ctx, s, id, "active")
	lease := s.leases(ctx, own, id, "execution")
	if len(lease) != 1 {
		s.must("read the lease", errNoAnswer)
	}
	err := s.ask(ctx, own, "coder", id, request{Authz: &attempt{What: "/v1/capability-tokens", Payload: encode(map[string]any{
		"groupId": other.group, "workItemId": id, "ownershipEpoch": lease[0].OwnershipEpoch, "executionLeaseId": lease[0].LeaseID,
		"operations": []string{"deploy.run"}, "resources": []string{production},
	})}}).err()
	s.refused("a Worker's authority in "+own.name+" is none in "+other.name, err, "INVALID_COMMAND", "unknown_reference")
	s.goOn(ctx, own, id)
	s.verify(ctx, own, id)
}

// keyOf derives the idempotency key of an external operation as spec section 16
// asks, from what the server says about the WorkItem.
func keyOf(m *mission, workItemID string, epoch int64, operation string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{m.id, workItemID, fmt.Sprint(epoch), operation}, "\n")))
	return "mw-" + hex.EncodeToString(sum[:16])
}
