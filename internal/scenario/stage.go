package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/client/schedule"
)

// stage is everybody and everything.
type stage struct {
	opt    Options
	stack  *client.DevStack
	checks checks
	line   *timeline
	random *rand.Rand
	choose *chooser
	facts  facts
	shares map[string]schedule.Share // of Groups, at the shared Worker
	// external is the system that external actions change.
	external *external
	suite    suite

	owner    *actor
	agents   map[string]*actor
	workers  map[string]*employee
	missions []*mission

	mu    sync.Mutex
	names map[string]string // id -> name shown
}

// mission is one Mission with the seats that the scenes use.
type mission struct {
	name, id, group string
	column          int
	owner, lead     *seat
}

func (m *mission) events() int {
	if m.owner == nil {
		return 0
	}
	m.owner.mu.Lock()
	defer m.owner.mu.Unlock()
	return len(m.owner.log)
}

// facts are what the seed has decided about the Missions.
type facts struct {
	// marks are in every text that belongs to one Mission only.
	marks map[string]string
	ids   map[string][2]string // Mission -> its own id and its Group's
	// heavy has three times the share of light at the shared Worker.
	heavy, light string
	release      string
	country      string
	missing      string // what the testing stage lacks at first
	needless     string // what the first review by the human finds wanting
}

// The names of the Missions. hotfix comes later and goes first.
const (
	billing = "billing"
	search  = "search"
	hotfix  = "hotfix"
)

// heavyWeight is the share of the heavier Mission, where the other has 1.
const heavyWeight = 3

func (st *stage) decide() {
	c := st.choose
	st.facts = facts{marks: map[string]string{}, ids: map[string][2]string{}}
	for _, name := range []string{billing, search, hotfix} {
		st.facts.ids[name] = [2]string{c.id("Mission " + name), c.id("Group " + name)}
		st.facts.marks[name] = c.one("first word of "+name, "amber", "blue", "copper", "dusky", "ebony", "frosty") + "-" +
			c.one("second word of "+name, "anchor", "beacon", "cellar", "dynamo", "engine", "foundry") + "-of-" + name
	}
	st.facts.heavy, st.facts.light = billing, search
	if c.one("the Mission with the greater share", billing, search) == search {
		st.facts.heavy, st.facts.light = search, billing
	}
	st.facts.release = fmt.Sprintf("%d.%d", c.number("major of the release", 2, 9), c.number("minor of the release", 0, 20))
	st.facts.country = c.one("the question of the analyst", "For which countries?", "For which tenants?", "For which currencies?")
	st.facts.missing = c.one("what testing lacks", "The test database is missing.", "The test certificate has expired.", "The load generator is missing.")
	st.facts.needless = c.one("what the human finds wanting", "Operators do not learn how to go back.", "Support is not told.", "The limits are not written down.")
	st.shares = map[string]schedule.Share{
		st.facts.ids[st.facts.heavy][1]: {Weight: heavyWeight}, st.facts.ids[st.facts.light][1]: {Weight: 1},
		st.facts.ids[hotfix][1]: {Weight: 1, Class: 1},
	}
}

func (st *stage) mark(m *mission) string { return st.facts.marks[m.name] }

// production is the resource that an external action touches.
const production = "urn:missionweave:demo:production"

// roles of the cast, with what each can do. The reviewer is the shared Worker.
var roles = []struct {
	name         string
	capabilities []string
	slots        int
}{
	{"lead-a", []string{"mission.coordinate@1.0.0"}, 0},
	{"lead-b", []string{"mission.coordinate@1.0.0"}, 0},
	{"lead-security", []string{"mission.coordinate@1.0.0"}, 0},
	{"lead-stand-in", []string{"mission.coordinate@1.0.0"}, 0},
	{"reviewer", []string{"code.review@1.0.0", "security.review@1.0.0"}, 2},
	{"coder", []string{"code.write@1.0.0", "code.test@1.0.0", "code.deploy@1.0.0"}, 2},
	{"analyst", []string{"requirements.write@1.0.0", "code.test@1.0.0"}, 1},
}

func newStage(ctx context.Context, opt Options) (*stage, error) {
	st := &stage{
		opt: opt, stack: opt.Stack, line: newTimeline(opt.Out, opt.Columns, opt.Color),
		random: rand.New(rand.NewPCG(opt.Seed, 22)), choose: newChooser(opt.Seed), //nolint:gosec // a course to repeat, not a secret
		agents: map[string]*actor{}, workers: map[string]*employee{}, names: map[string]string{},
	}
	st.line.nameOf = st.nameOf
	st.decide()
	identity, err := opt.Stack.Identity("mission-owner")
	if err != nil {
		return nil, err //nolint:wrapcheck // says what is missing
	}
	c, err := opt.Stack.Connect(identity)
	if err != nil {
		return nil, err //nolint:wrapcheck // says what is missing
	}
	st.owner = &actor{name: "owner", c: c}
	st.call(identity.Principal.ID, "owner")
	service, err := st.connect("policy")
	if err != nil {
		st.close()
		return nil, err
	}
	if st.external, err = newExternal(ctx, opt.Stack, service); err != nil {
		service.Close()
		st.close()
		return nil, err
	}
	for _, r := range roles {
		if err := st.hire(ctx, r.name, r.capabilities, r.slots); err != nil {
			st.close()
			return nil, err
		}
	}
	return st, nil
}

// hire registers an Agent; one with slots works on its own from now on.
func (st *stage) hire(ctx context.Context, name string, capabilities []string, slots int) error {
	c, err := st.stack.Hire(ctx, client.Hiring{Name: name, Capabilities: capabilities, MaxConcurrency: int64(max(slots, 4))})
	if err != nil {
		return fmt.Errorf("scenario: %w", err)
	}
	st.call(c.Principal().ID, name)
	if slots > 0 {
		st.workers[name] = st.employ(c, name, slots)
		return nil
	}
	a := &actor{name: name, c: c}
	if a.session, err = c.OpenSession(ctx); err != nil {
		return fmt.Errorf("scenario: a session for %s: %w", name, err)
	}
	st.agents[name] = a
	return nil
}

func (st *stage) close() {
	for _, w := range st.workers {
		w.stop()
		w.c.Close()
	}
	for _, m := range st.missions {
		for _, s := range []*seat{m.owner, m.lead} {
			if s != nil {
				s.leave()
			}
		}
	}
	for _, a := range st.agents {
		a.session.Close()
		a.c.Close()
	}
	if st.external != nil {
		st.external.close()
	}
	st.owner.c.Close()
}

func (st *stage) call(id, name string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.names[id] = name
}

func (st *stage) nameOf(id string) string {
	st.mu.Lock()
	defer st.mu.Unlock()
	if name, ok := st.names[id]; ok {
		return name
	}
	return id
}

// agentID is the id of a member of the cast.
func (st *stage) agentID(name string) string {
	if w, ok := st.workers[name]; ok {
		return w.c.Principal().ID
	}
	return st.agents[name].c.Principal().ID
}

// open is called by its creator once a Mission exists: the owner watches it, and
// its Coordinator sits down.
func (s *scene) open(ctx context.Context, m *mission, lead string) {
	s.missions = append(s.missions, m)
	s.call(m.id, m.name)
	s.call(m.group, m.name)
	var err error
	m.owner, err = s.owner.sit(ctx, m, func(e client.Event) { s.line.event(m, e) })
	s.must("the owner follows "+m.name, err)
	m.lead, err = s.agents[lead].sit(ctx, m, nil)
	s.must(lead+" follows "+m.name, err)
	for _, seat := range []*seat{m.owner, m.lead} {
		seat.awaitThat(ctx, s, "the Mission shows itself to "+seat.name, func(b *client.Board) bool { return b.State == "active" })
	}
}

// mission finds a Mission by name.
func (st *stage) mission(name string) *mission {
	for _, m := range st.missions {
		if m.name == name {
			return m
		}
	}
	panic(&broken{errors.New("the Mission " + name + " was never created")})
}

// policyVersion is the approval policy of all Missions here.
const policyVersion = "1.0.0"

func stamp(after time.Duration) string { return client.Timestamp(time.Now().Add(after)) }

// budget is limits in the order euros, tokens, calls, compute, wall clock, side
// effects.
func budget(euros int64, limits ...int64) client.Budget {
	money := client.Money(euros * 1_000_000)
	b := client.Budget{Currency: "EUR", FinancialLimit: &money}
	for i, p := range []**int64{
		&b.ModelTokenLimit, &b.ToolCallLimit, &b.ComputeSecondsLimit, &b.WallClockSecondsLimit, &b.ExternalSideEffectLimit,
	} {
		if i < len(limits) {
			*p = &limits[i]
		}
	}
	return b
}

// admit makes a Worker a member of a Mission.
func (s *scene) admit(ctx context.Context, m *mission, name, role string) {
	m.lead.do(ctx, s, client.Command{Kind: "membership.change"}, map[string]any{
		"member": client.Actor{Type: client.Agent, ID: s.agentID(name)}, "role": role, "visibilityStartSequence": 1,
	})
}

// contract is a Work Contract for a task.
func (s *scene) contract(goal, capability string, t task, edit ...func(*client.WorkContract)) client.WorkContract {
	version := "1.0.0"
	c := client.WorkContract{
		ContractVersion: 1, Goal: goal,
		RequiredDeliverables: []client.Deliverable{{
			DeliverableID: "result", Description: "The result.", MediaType: "text/plain", Schema: "urn:missionweave:demo:text",
		}},
		AcceptanceCriteria: []client.AcceptanceCriterion{{
			CriterionID: "done", Description: "It is what the goal asks for.", EvidenceRequired: []string{"deterministic_test"},
		}},
		InputArtifacts: []string{}, DependencyWorkItemIDs: []string{},
		RequiredCapabilities: []client.CapabilityRef{{ID: capability, Version: version}},
		Deadline:             stamp(8 * time.Hour), RequestedUrgency: "normal", BusinessImpact: "Part of the Mission.",
		RetryPolicy: client.RetryPolicy{MaxAttempts: 1, Backoff: "none", MaxDelay: "PT1M", RetryableFailures: []string{}},
		Budget:      budget(1, 1000, 10, 60, 600), SideEffectRisk: "none", ExecutionApproval: "not_required",
		Constraints: t.encode(),
	}
	for _, e := range edit {
		e(&c)
	}
	return c
}

func urgent(urgency string) func(*client.WorkContract) {
	return func(c *client.WorkContract) { c.RequestedUrgency = urgency }
}

// reviewed asks for the Evidence of somebody who did not make it.
func reviewed(c *client.WorkContract) {
	c.AcceptanceCriteria[0].EvidenceRequired = []string{"deterministic_test", "reviewer_assessment"}
}

// authorize makes a WorkItem.
func (s *scene) authorize(ctx context.Context, m *mission, title string, c client.WorkContract, more ...map[string]any) string {
	id := s.choose.id("WorkItem " + title)
	s.call(id, title)
	var t task
	if client.Decode(c.Constraints, &t) == nil && t.Gate != "" {
		s.held[id] = m
	}
	payload := map[string]any{"title": title, "contract": c}
	for _, members := range more {
		for k, v := range members {
			payload[k] = v
		}
	}
	m.lead.do(ctx, s, client.Command{Kind: "work.authorize", WorkItemID: id}, payload)
	return id
}

// offerTo offers a WorkItem to one Worker.
func (s *scene) offerTo(ctx context.Context, m *mission, id, worker string, more ...map[string]any) {
	m.lead.do(ctx, s, client.Command{Kind: "work.offer", WorkItemID: id}, s.offer(m.lead.item(id).Contract, worker, more...))
}

func (s *scene) offer(c client.WorkContract, worker string, more ...map[string]any) map[string]any {
	payload := map[string]any{
		"candidateAgentIds": []string{s.agentID(worker)}, "offerExpiresInSeconds": 3600,
		"selectionBasis": client.SelectionBasis{
			RequiredCapabilities: c.RequiredCapabilities, VerifiedMatches: c.RequiredCapabilities, AuthorizationEligible: true,
			AvailabilityEstimate: stamp(0), ExpectedCost: 1, ReliabilityEvidence: []string{}, PolicyRulesApplied: []string{"scenario:cast"},
		},
	}
	for _, members := range more {
		for k, v := range members {
			payload[k] = v
		}
	}
	return payload
}

// give authorizes and offers in one go.
func (s *scene) give(ctx context.Context, m *mission, title, worker string, c client.WorkContract) string {
	id := s.authorize(ctx, m, title, c)
	s.offerTo(ctx, m, id, worker)
	return id
}

// acceptance is the payload of work.accept_result: the Coordinator's own check
// and what else there is.
func (s *scene) acceptance(m *mission, id string, more ...client.Raw) map[string]any {
	item := m.lead.item(id)
	signed, err := m.lead.c.Identity().SignEvidence(client.Evidence{
		EvidenceID: client.NewID(), MissionID: m.id, GroupID: m.group, WorkItemID: id, Type: "business_rule",
		Subject: client.EvidenceSubject{Type: "work_item", ID: id}, CriterionIDs: []string{item.Contract.AcceptanceCriteria[0].CriterionID},
		Method: "Compared the result with the contract.", Result: "passed", ArtifactHashes: item.Submission,
		GeneratedBy: m.lead.c.Principal(), CreatedAt: stamp(0),
	})
	s.must("sign Evidence", err)
	return map[string]any{"evidence": append([]client.Raw{signed}, more...)}
}

// verify waits for a result and accepts it.
func (s *scene) verify(ctx context.Context, m *mission, id string, more ...client.Raw) *client.Event {
	m.lead.await(ctx, s, id, "submitted")
	return m.lead.do(ctx, s, client.Command{Kind: "work.accept_result", WorkItemID: id}, s.acceptance(m, id, more...))
}
