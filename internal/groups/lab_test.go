package groups

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// lab is a world for tests: it plays the caller of Decide with honest
// bookkeeping and dishonest ease (no signatures), and holds every accepted
// Event against the properties that must hold of all of them.
type lab struct {
	t     testing.TB
	now   time.Time
	org   *Organization
	agent map[string]*Agent
	human map[string]bool
	group map[string]*State
	// mission maps Mission ids to Group ids.
	mission map[string]string
	// logs keeps every Event of a Group as stored bytes.
	logs   map[string][][]byte
	minted int
	// accepted are the Actions that went through.
	accepted map[ActionRef]bool
	action   int
	// unchecked skips the state comparison after each Event (benchmarks).
	unchecked bool
}

var labStart = time.Date(2026, 7, 15, 8, 0, 0, 0, time.UTC)

const testSignature = `{"algorithm":"Ed25519","keyId":"key:test","createdAt":"2026-07-15T08:00:00Z","value":"c2lnbmF0dXJl"}`

func service(name string) protocol.Actor {
	return protocol.Actor{Type: protocol.ActorService, ID: "service:" + name}
}

func agentActor(id string) protocol.Actor { return protocol.Actor{Type: protocol.ActorAgent, ID: id} }

func humanActor(id string) protocol.Actor { return protocol.Actor{Type: protocol.ActorHuman, ID: id} }

func newLab(t testing.TB) *lab {
	l := &lab{
		t: t, now: labStart,
		agent: map[string]*Agent{}, human: map[string]bool{"human:olga": true, "human:paul": true},
		group: map[string]*State{}, mission: map[string]string{}, logs: map[string][][]byte{},
		accepted: map[ActionRef]bool{},
	}
	l.org = &Organization{
		ID: "org:test", Authority: service("authority"), Identity: service("identity"), Registry: service("registry"),
		ContextGenerator: agentActor("agent:context"), EvidenceServices: map[string]bool{"service:evidence": true},
		Services: map[string]ServiceGrants{
			"service:policy": GrantKinds(
				"membership.change", "membership.end", "mission.assign_coordinator", "mission.cancel",
				"mission.terminate", "ext.missionweave.mission.extend_deadline",
				"policy.grant_cooperation_override", "ext.missionweave.budget.increase", "message.redact",
				"work.cancel", "ext.missionweaveprotocol.core.work_dependency_add",
				"approval.grant_execution", "ext.missionweave.approval.deny_execution",
				"ext.missionweave.approval.revoke_execution",
			),
			"service:metering": GrantKinds("ext.missionweaveprotocol.core.resource_usage_record"),
			"service:identity": GrantKinds(protocol.CommandSessionOpen),
			"service:registry": GrantKinds(protocol.CommandAgentCardRegister),
			"service:archival": GrantKinds("ext.missionweaveprotocol.core.group_archive", "message.redact"),
			"service:authorization": GrantKinds(
				"ext.missionweave.approval.request_execution", "ext.missionweave.approval.request_action",
				"ext.missionweave.approval.consume_action",
			),
		},
		Limits: DefaultLimits(), Leases: leases.DefaultPolicy(),
		OfflineGrace: 15 * time.Minute, FreshnessFuture: 30 * time.Second,
		Profiles: map[string]map[int64]bool{OwnProfileURI: {OwnProfileMajor: true}},
	}
	return l
}

// addAgent registers an Agent with an open session.
func (l *lab) addAgent(id string, capabilities ...string) *Agent {
	card := &protocol.AgentCard{
		AgentID: id, OrganizationID: l.org.ID, CardVersion: 1, Status: "active", MaxConcurrency: 4,
	}
	for _, c := range capabilities {
		card.Capabilities = append(card.Capabilities, protocol.Capability{ID: c, Version: "1.0.0"})
	}
	a := &Agent{ID: id, CurrentSessionEpoch: 1, SessionExpiresAt: labStart.AddDate(1, 0, 0), Card: card}
	l.agent[id] = a
	return a
}

func (l *lab) mint() string {
	l.minted++
	return fmt.Sprintf("urn:uuid:00000000-0000-7000-8000-%012x", l.minted)
}

func (l *lab) world() *World {
	for id, a := range l.agent {
		a.Load, a.ActiveGroups = Load{}, nil
		for _, groupID := range slices.Sorted(maps.Keys(l.group)) {
			active := false
			for item := range l.group[groupID].owned[id] {
				switch w := l.group[groupID].WorkItems[item]; w.State {
				case protocol.WorkQueued:
					a.Load.Queued++
				case protocol.WorkActive:
					active = true
					if leases.LiveAt(w.Execution, l.now) {
						a.Load.Active++
					}
				}
			}
			if active {
				a.ActiveGroups = append(a.ActiveGroups, groupID)
			}
		}
	}
	return &World{
		Now: l.now, Mint: l.mint, Org: l.org,
		Agents: map[string]*Agent{}, Groups: map[string]*State{}, Missions: map[string]string{},
		MessageDocs: map[string][]protocol.Message{}, Accepted: map[ActionRef]bool{},
		KeyBound:  func(p protocol.Actor) bool { return l.human[p.ID] },
		KeyLive:   func(string, protocol.Actor) bool { return true },
		CheckCard: func(*protocol.AgentCard) error { return nil },
	}
}

// command is a Command in the making; zero epochs are filled in.
type command struct {
	protocol.Command
	internal  bool
	principal protocol.Actor
}

// envelope completes a Command as an honest client would.
func (l *lab) envelope(c *command) {
	env := &c.Command
	l.action++
	if env.ActionID == "" {
		env.ActionID = fmt.Sprintf("action:%d", l.action)
	}
	if env.CorrelationID == "" {
		env.CorrelationID = "correlation:test"
	}
	env.ProtocolVersion, env.IssuedAt = "0.1", l.now.Format(time.RFC3339)
	if a := l.agent[env.Actor.ID]; a != nil && env.Actor.Type == protocol.ActorAgent && env.SessionEpoch == 0 {
		env.SessionEpoch = max(a.CurrentSessionEpoch, 1)
	}
	g := l.group[env.GroupID]
	if g == nil || env.Actor.Type == protocol.ActorService {
		return
	}
	if m, ok := g.Member(env.Actor); ok && env.MembershipEpoch == 0 {
		env.MembershipEpoch = m.MembershipEpoch
	}
	if env.CoordinatorEpoch == 0 && env.Actor == g.CoordinatorActor() {
		env.CoordinatorEpoch = g.Mission.Coordinator.CoordinatorEpoch
	}
}

// send runs a Command through P2, P10 and Decide and applies what it causes.
func (l *lab) send(c command) (Decision, error) {
	l.t.Helper()
	l.envelope(&c)
	env := c.Command
	env.Signature = protocol.Signature{Algorithm: "Ed25519", KeyID: "key:test", CreatedAt: env.IssuedAt, Value: "c2lnbmF0dXJl"}
	raw, err := strictjson.Marshal(&env)
	if err != nil {
		l.t.Fatalf("command: %v", err)
	}
	doc, err := strictjson.Parse(raw)
	if err != nil {
		l.t.Fatalf("command: %v", err)
	}
	if f := protocol.Validate(protocol.KindCommand, doc.Root()); f != nil {
		return Decision{}, protocol.NewError(protocol.CodeSchemaValidationFailed, f.Reason).
			WithDetail("path", f.Path).WithStep("P2").WithCause(f)
	}
	if e := CheckEnvelope(&env); e != nil {
		return Decision{}, e
	}
	payload, _ := doc.Root().Get("payload")
	typed, embedded, refusal := DecodePayload(&env, payload)
	if refusal != nil {
		return Decision{}, refusal
	}
	cmd := &Command{Envelope: env, SigningHash: hashOf(raw), Payload: typed, Internal: c.internal}
	for _, d := range embedded {
		principal := c.principal
		if signed, ok := protocol.SignedKinds[d.Kind]; ok && principal.ID == "" {
			principal = signed.Signer(d.Value)
		}
		cmd.Docs = append(cmd.Docs, Document{Kind: d.Kind, SigningHash: hashOf(d.Value.Raw()), Principal: principal})
	}
	before, minted := l.canonical(), l.minted
	d, err := l.decide(cmd)
	if !l.unchecked {
		l.sameAgain(cmd, minted, d)
	}
	if got := l.canonical(); !l.unchecked && !maps.EqualFunc(before, got, bytes.Equal) {
		l.t.Fatalf("deciding %s changed state", env.Kind)
	}
	if err != nil {
		return d, err
	}
	l.accept(d)
	l.accepted[ActionRef{env.Actor, env.ActionID}] = true
	return d, nil
}

// sameAgain decides a Command once more: with the same ids minted the answer
// must be the same, or the order of a map has leaked into the log.
func (l *lab) sameAgain(cmd *Command, minted int, d Decision) {
	l.t.Helper()
	after := l.minted
	l.minted = minted
	again, _ := l.decide(cmd)
	l.minted = after
	if len(again.Drafts) != len(d.Drafts) {
		l.t.Fatalf("%s: %d Events, then %d", cmd.Envelope.Kind, len(d.Drafts), len(again.Drafts))
	}
	for i := range d.Drafts {
		for _, draft := range []*Draft{&d.Drafts[i], &again.Drafts[i]} {
			draft.Event.Signature = protocol.Signature{Algorithm: "Ed25519", KeyID: "key:a", CreatedAt: "t", Value: "v"}
			if err := draft.Encode(); err != nil {
				l.t.Fatalf("encode %s: %v", draft.Event.Kind, err)
			}
		}
		a, errA := strictjson.Marshal(&d.Drafts[i].Event)
		b, errB := strictjson.Marshal(&again.Drafts[i].Event)
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			l.t.Fatalf("%s decided twice:\n%s", cmd.Envelope.Kind, cmp.Diff(pretty(a), pretty(b)))
		}
	}
}

// decide answers Needs, one thing at a time, until Decide is satisfied.
func (l *lab) decide(cmd *Command) (Decision, error) {
	w := l.world()
	for range 100 {
		d, err := Decide(w, cmd)
		var need *Need
		if !errors.As(err, &need) {
			return d, err
		}
		for _, id := range need.Agents {
			w.Agents[id] = l.agent[id]
		}
		for _, id := range need.Groups {
			w.Groups[id] = l.group[id]
		}
		for _, a := range need.Actions {
			w.Accepted[a] = l.accepted[a]
		}
		for _, id := range need.MessageDocs {
			w.MessageDocs[id] = l.messageDocs(id)
		}
		for _, id := range need.Missions {
			w.Missions[id] = l.mission[id]
		}
	}
	l.t.Fatalf("Decide never stops asking")
	return Decision{}, nil
}

// accept signs, encodes and applies Drafts, checking what holds of all Events.
func (l *lab) accept(d Decision) {
	l.t.Helper()
	for _, r := range d.Sign {
		b, err := strictjson.Marshal(r.Doc)
		if err != nil {
			l.t.Fatalf("sign %s: %v", r.Kind, err)
		}
		b = withTestSignature(l.t, b)
		doc, err := strictjson.Parse(b)
		if err != nil {
			l.t.Fatalf("sign %s: %v", r.Kind, err)
		}
		if f := protocol.Validate(r.Kind, doc.Root()); f != nil {
			l.t.Fatalf("document to sign: %v\n%s", f, b)
		}
		if err := r.Seal(b); err != nil {
			l.t.Fatalf("seal: %v", err)
		}
	}
	for i := range d.Drafts {
		draft := &d.Drafts[i]
		if err := draft.Encode(); err != nil {
			l.t.Fatalf("encode %s: %v", draft.Event.Kind, err)
		}
		stored := draft.Event
		stored.Signature = protocol.Signature{Algorithm: "Ed25519", KeyID: "key:authority", CreatedAt: stored.OccurredAt, Value: "c2lnbmF0dXJl"}
		b, err := strictjson.Marshal(&stored)
		if err != nil {
			l.t.Fatalf("event: %v", err)
		}
		doc, err := strictjson.Parse(b)
		if err != nil {
			l.t.Fatalf("event: %v", err)
		}
		if f := protocol.Validate(protocol.KindEvent, doc.Root()); f != nil {
			l.t.Fatalf("event %s: %v\n%s", stored.Kind, f, b)
		}
		checkEmbedded(l.t, stored.Kind, doc.Root())
		if draft.GroupID == "" {
			l.organization(draft)
			continue
		}
		g := l.group[draft.GroupID]
		if g == nil {
			g = New()
			g.TreeID = draft.TreeID
			l.group[draft.GroupID] = g
		}
		before := l.states(g, draft)
		if err := g.Apply(draft.Folded()); err != nil {
			l.t.Fatalf("apply: %v", err)
		}
		l.checkTransition(draft, before, l.states(g, draft))
		if draft.TreeID != "" {
			l.mission[g.Mission.MissionID] = draft.GroupID
		}
		l.logs[draft.GroupID] = append(l.logs[draft.GroupID], b)
	}
}

// states returns the states of the Mission and of the Draft's WorkItem.
func (l *lab) states(g *State, draft *Draft) [2]string {
	var s [2]string
	if g.Mission != nil {
		s[0] = g.Mission.State
	}
	if w := g.WorkItems[draft.Event.WorkItemID]; w != nil {
		s[1] = w.State
	}
	return s
}

// checkTransition holds what an Event did to a state against the tables of
// COMMANDS.md section 4.
func (l *lab) checkTransition(draft *Draft, before, after [2]string) {
	l.t.Helper()
	kind := draft.Event.Kind
	if kind == "ext.missionweave.authority.soft_limit_reached" {
		return // it tells and changes nothing: no row of section 4
	}
	revised := eventKinds[kind].aggregate(draft.Folded()).Type
	for i, table := range [][]Transition{MissionTransitions, WorkItemTransitions} {
		if before[i] == after[i] && revised != [...]AggregateType{AggregateMission, AggregateWorkItem}[i] {
			continue
		}
		if !slices.ContainsFunc(table, func(t Transition) bool {
			from := before[i] == "" && len(t.From) == 0 || slices.Contains(t.From, before[i])
			to := before[i] == after[i] && len(t.To) == 0 || slices.Contains(t.To, after[i])
			return t.Event == kind && from && to
		}) {
			l.t.Fatalf("%s: no row from %q to %q", kind, before[i], after[i])
		}
	}
}

// organization plays the Registry and the session service.
func (l *lab) organization(draft *Draft) {
	switch p := draft.Payload.(type) {
	case *SessionOpened:
		l.agent[p.AgentID].CurrentSessionEpoch = p.SessionEpoch
	case *AgentCardRegistered:
		a := l.agent[p.AgentID]
		if a == nil {
			a = &Agent{ID: p.AgentID}
			l.agent[p.AgentID] = a
		}
		card := p.AgentCard.Doc
		a.Card = &card
	}
}

func (l *lab) canonical() map[string][]byte {
	out := map[string][]byte{}
	if l.unchecked {
		return out
	}
	for id, g := range l.group {
		b, err := g.Canonical()
		if err != nil {
			l.t.Fatalf("canonical: %v", err)
		}
		out[id] = b
	}
	return out
}

// refold folds every log from nothing and holds it against the live state; it
// also reads the dump back, and delivers the whole log twice.
func (l *lab) refold() {
	l.t.Helper()
	for id, log := range l.logs {
		again := New()
		for range 2 {
			for _, b := range log {
				if err := again.Apply(decodeStored(l.t, b)); err != nil {
					l.t.Fatalf("fold: %v", err)
				}
			}
		}
		want, err := l.group[id].Canonical()
		if err != nil {
			l.t.Fatal(err)
		}
		got, err := again.Canonical()
		if err != nil {
			l.t.Fatal(err)
		}
		if !bytes.Equal(want, got) {
			l.t.Fatalf("fold of %s differs (-live +fold):\n%s", id, cmp.Diff(pretty(want), pretty(got)))
		}
		read, err := ParseState(want)
		if err != nil {
			l.t.Fatalf("parse dump: %v", err)
		}
		got, err = read.Canonical()
		if err != nil {
			l.t.Fatal(err)
		}
		if !bytes.Equal(want, got) {
			l.t.Fatalf("dump of %s read back differs:\n%s", id, cmp.Diff(pretty(want), pretty(got)))
		}
		opts := cmp.AllowUnexported(State{}, contractKey{}, eventIndex{})
		for _, part := range []struct{ a, b any }{
			{again.owned, read.owned},
			{again.offered, read.offered},
			{again.contracts, read.contracts},
			{again.leaseOwners, read.leaseOwners},
			{again.attributed, read.attributed},
			{again.revisions, read.revisions},
			{again.events, read.events},
			{again.Messages, read.Messages},
			{again.redacted, read.redacted},
		} {
			if diff := cmp.Diff(part.a, part.b, opts); diff != "" {
				l.t.Fatalf("index of %s read back differs:\n%s", id, diff)
			}
		}
		messages := l.messageDocs(id)
		if _, err := read.StateHash(messages); err != nil {
			l.t.Fatalf("state hash: %v", err)
		}
		checkServed(l.t, read, messages)
	}
}

// messageDocs reads the Message documents of a Group's log.
func (l *lab) messageDocs(groupID string) []protocol.Message {
	var docs []protocol.Message
	for _, b := range l.logs[groupID] {
		if m := decodeStored(l.t, b).MessageDoc(); m != nil {
			docs = append(docs, *m)
		}
	}
	return docs
}

func decodeStored(t testing.TB, b []byte) *Event {
	t.Helper()
	doc, err := strictjson.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	ev, err := DecodeEvent(doc.Root())
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

// checkServed holds every served document against its normative structure.
func checkServed(t testing.TB, s *State, messages []protocol.Message) {
	t.Helper()
	check := func(kind protocol.DocumentKind, v any) {
		t.Helper()
		b, err := strictjson.Marshal(v)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if _, err := protocol.ValidateBytes(kind, b); err != nil {
			t.Fatalf("served %s: %v\n%s", kind, err, b)
		}
	}
	mission, err := s.MissionDoc()
	if err != nil {
		t.Fatal(err)
	}
	check(protocol.KindMission, &mission)
	check(protocol.KindGroup, s.Group)
	check(protocol.KindLease, s.CoordinatorLease)
	for _, m := range s.Memberships {
		check(protocol.KindMembership, m)
	}
	for _, c := range s.Conversations {
		check(protocol.KindConversation, c)
	}
	for i := range messages {
		check(protocol.KindMessage, &messages[i])
	}
	for _, w := range s.WorkItems {
		doc, err := w.Served(WorkItemClock{})
		if err != nil {
			t.Fatal(err)
		}
		check(protocol.KindWorkItem, &doc)
		for _, l := range append(w.openLeases(), leasePointers(w.ClosedLeases)...) {
			check(protocol.KindLease, l)
		}
	}
}

func leasePointers(list []protocol.Lease) []*protocol.Lease {
	var out []*protocol.Lease
	for i := range list {
		out = append(out, &list[i])
	}
	return out
}

// embeddedDocs names the payload members that are normative documents.
var embeddedDocs = map[string]protocol.DocumentKind{
	"mission": protocol.KindMission, "group": protocol.KindGroup, "conversation": protocol.KindConversation,
	"coordinatorLease": protocol.KindLease, "closedLease": protocol.KindLease, "custodyLease": protocol.KindLease,
	"executionLease": protocol.KindLease, "ownershipLease": protocol.KindLease, "blockedLease": protocol.KindLease,
	"lease": protocol.KindLease, "membership": protocol.KindMembership, "message": protocol.KindMessage,
	"workItem": protocol.KindWorkItem, "contract": protocol.KindWorkContract, "approval": protocol.KindApproval,
	"humanApproval": protocol.KindApproval, "revocation": protocol.KindApproval, "artifact": protocol.KindArtifact,
	"contextPackage": protocol.KindContextPackage, "agentCard": protocol.KindAgentCard,
	"snapshot": protocol.KindGroupSnapshot,
}

// checkEmbedded holds the documents in an Event's payload against their
// normative structure.
func checkEmbedded(t testing.TB, kind string, ev strictjson.Value) {
	t.Helper()
	payload, _ := ev.Get("payload")
	for name, v := range payload.Members() {
		doc, ok := embeddedDocs[name]
		if !ok || name == "owner" {
			continue
		}
		if f := protocol.Validate(doc, v); f != nil {
			t.Fatalf("%s: %s: %v\n%s", kind, name, f, v.Raw())
		}
	}
	for name, doc := range map[string]protocol.DocumentKind{
		"memberships": protocol.KindMembership, "closedLeases": protocol.KindLease, "evidence": protocol.KindEvidence,
	} {
		list, _ := payload.Get(name)
		if list.Kind() != strictjson.Array {
			continue
		}
		for _, v := range list.Items() {
			if f := protocol.Validate(doc, v); f != nil {
				t.Fatalf("%s: %s: %v\n%s", kind, name, f, v.Raw())
			}
		}
	}
}

func withTestSignature(t testing.TB, b []byte) []byte {
	t.Helper()
	v, err := protocol.Raw(b).Value()
	if err != nil {
		t.Fatal(err)
	}
	out, err := v.AppendJCSWithout(nil, "signature")
	if err != nil {
		t.Fatal(err)
	}
	out = append(out[:len(out)-1], `,"signature":`+testSignature+`}`...)
	canonical, err := strictjson.Canonicalize(out)
	if err != nil {
		t.Fatal(err)
	}
	return canonical
}

func hashOf(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

func pretty(b []byte) any {
	v, err := protocol.Raw(b).Value()
	if err != nil {
		return string(b)
	}
	return plain(v)
}

func plain(v strictjson.Value) any {
	switch v.Kind() {
	case strictjson.Object:
		m := map[string]any{}
		for name, item := range v.Members() {
			m[name] = plain(item)
		}
		return m
	case strictjson.Array:
		var out []any
		for _, item := range v.Items() {
			out = append(out, plain(item))
		}
		return out
	}
	return string(v.Raw())
}
