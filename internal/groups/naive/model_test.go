package naive

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"
)

// obj is a JSON object as encoding/json gives it.
type obj = map[string]any

// actor is a Principal.
type actor struct{ Type, ID string }

func agentOf(id string) actor { return actor{"agent", id} }
func (a actor) json() obj     { return obj{"type": a.Type, "id": a.ID} }
func actorOf(v any) actor {
	o, _ := v.(obj)
	return actor{text(o["type"]), text(o["id"])}
}

// refusal is a documented error; reason is empty where the profile names none.
type refusal struct{ code, reason string }

func (r refusal) String() string { return strings.TrimSuffix(r.code+":"+r.reason, ":") }

// fail leaves the decision in progress with a refusal.
func fail(code, reason string) { panic(refusal{code, reason}) }

// Abbreviations of the error codes.
const (
	af  = "AUTH_FORBIDDEN"
	apr = "APPROVAL_REQUIRED"
	ar  = "AUTH_REQUIRED"
	asc = "AUTH_STALE_COORDINATOR"
	ass = "AUTH_STALE_SESSION"
	be  = "BUDGET_EXCEEDED"
	gnf = "GROUP_NOT_FOUND"
	ic  = "INVALID_COMMAND"
	ist = "INVALID_STATE_TRANSITION"
	mr  = "MEMBERSHIP_REQUIRED"
	ms  = "MEMBERSHIP_STALE"
	rc  = "REVISION_CONFLICT"
	rl  = "RATE_LIMITED"
	svf = "SCHEMA_VALIDATION_FAILED"
	uce = "UNKNOWN_CRITICAL_EXTENSION"
	wao = "WORK_ALREADY_OWNED"
	wle = "WORK_LEASE_EXPIRED"
	woe = "WORK_OFFER_EXPIRED"
	wso = "WORK_STALE_OWNERSHIP"
)

// model is the whole world as the second model sees it.
type model struct {
	now      time.Time
	agents   map[string]*agent
	humans   map[string]bool
	services map[string]map[string]bool
	limits   limits
	groups   map[string]*group
	missions map[string]bool // ids in use
	accepted map[string]bool // actor and actionId
	// ids binds the placeholders of ids that the server mints to what it minted.
	ids    map[string]string
	minted int
}

type limits struct {
	messages, proposals int
	depth               int
	queued, active      int
}

type agent struct {
	id      string
	session int
	expires time.Time
	card    int
	revoked bool
	most    int
	can     map[string]string // capability to version
}

type group struct {
	id, mission string
	state       string
	head        int
	rev         map[string]int
	owner, root actor
	coordinator string
	epoch       int
	lease       *lease
	deadline    time.Time
	account     *account
	finalHuman  bool
	highRisk    bool
	policy      string
	permissions []any
	ceiling     []any // nil: none
	parent      *group
	parentItem  *item
	failure     string
	depth       int
	objective   any
	done        any

	members   map[actor]*member
	convs     map[string]*item // conversation to its WorkItem, nil for the Group's
	main      string
	messages  map[string]*message
	proposals map[string]*proposal
	items     map[string]*item
	artifacts map[string]*artifact
	approvals map[string]bool
	evidence  map[string]obj
	grants    map[string]*grant
	overrides map[string]*override

	submitted    []string
	submittedRev int
	posts        map[actor][]time.Time
	proposes     map[actor][]time.Time
}

type member struct {
	id      string
	state   string
	role    string
	epoch   int
	scopes  []string
	start   int
	expires time.Time
}

type lease struct {
	id, kind, holder string
	session          int
	coordinatorEpoch int
	ownershipEpoch   int
	group, mission   string
	item             string
	startBy, issued  time.Time
	expires          time.Time
	state            string
	renewals         int
	renewed          time.Time
	closed           time.Time
	reason           string
}

type owner struct {
	agent    string
	card     int
	pins     []any
	epoch    int
	lease    string
	accepted time.Time
	custody  bool
	dead     bool // the record stays but is never live again
	started  bool
}

type offer struct {
	id, agent string
	card      int
	expires   time.Time
	status    string
	reason    string
	made      time.Time
}

type item struct {
	id, conv   string
	state      string
	g          *group
	contract   obj
	account    *account
	offers     []*offer
	epoch      int
	owner      *owner
	owned      map[string]bool
	own, run   *lease
	blk        *lease
	closed     []*lease
	parent     string
	replaces   string
	grantID    string
	depth      int
	child      *group
	childState string
	artifacts  []*artifact
	submission obj
	approvals  []*execution
	requests   []*request
	childGave  []string
}

type artifact struct {
	id, hash string
	epoch    int
	class    string
	item     *item
}

type proposal struct {
	id, state string
	by        actor
	contract  obj
	parent    string
}

type message struct {
	id, conv, kind string
	seq            int
	author         actor
	redacted       bool
}

type execution struct {
	id, status string
	epoch      int
	by         actor
	expires    time.Time
	request    string
	gate       bool // a denial of the gate itself
}

type request struct {
	id, status string
	epoch      int
	expires    time.Time
	operations []any
	resources  []any
	digest     string
}

type grant struct {
	id, grantee, target string
	caps                []any
	limit               vector
	depth               int
	expires             time.Time
	memberEpoch, epoch  int
	by                  string
}

type override struct {
	id, policy, kind, action string
	who                      actor
	expires                  time.Time
	used                     bool
}

func newModel(now time.Time) *model {
	return &model{
		now: now, agents: map[string]*agent{}, humans: map[string]bool{}, services: map[string]map[string]bool{},
		groups: map[string]*group{}, missions: map[string]bool{}, accepted: map[string]bool{}, ids: map[string]string{},
	}
}

// mint makes a placeholder for an id that the server will choose.
func (m *model) mint(what string) string {
	m.minted++
	return fmt.Sprintf("\x00%s:%d", what, m.minted)
}

// real is the id behind a placeholder, or the id itself.
func (m *model) real(id string) string {
	if r, ok := m.ids[id]; ok {
		return r
	}
	return id
}

func (m *model) same(a, b string) bool { return m.real(a) == m.real(b) }

// command is one Command as the model reads it.
type command struct {
	id, kind, group, item, conv, override string
	actor                                 actor
	session, membership, coordinator      int
	expected                              *int
	payload                               obj
	internal                              bool
}

// event is one Event that the model expects. Payload values may be matchers.
type event struct {
	id         string
	group      string
	kind       string
	seq, rev   int
	aggregate  string
	item, conv string
	actor      actor
	cause      string
	causeID    string
	payload    obj
	primary    bool
}

// Matchers of the expected payloads.
type (
	anything  struct{}           // any value
	maybe     struct{ want any } // absent, or this
	part      obj                // these members and perhaps others
	moment    time.Time          // this instant, however it is spelled
	unordered []any              // these elements in any order
	either    []any              // one of these
)

func text(v any) string {
	s, _ := v.(string)
	return s
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func texts(v any) []string {
	var out []string
	for _, s := range list(v) {
		out = append(out, text(s))
	}
	return out
}

func number(v any) int {
	switch n := v.(type) {
	case json.Number:
		f, _ := n.Float64()
		return int(f)
	case float64:
		return int(n)
	case int:
		return n
	}
	return 0
}

func has(o obj, name string) bool { _, ok := o[name]; return ok }

func when(v any) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text(v))
	if err != nil {
		panic(fmt.Sprintf("the driver made the time %v", v))
	}
	return t
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func sortedItems(g *group) []*item {
	var out []*item
	for _, id := range sortedKeys(g.items) {
		out = append(out, g.items[id])
	}
	return out
}

func sortedText(s []string) []string {
	out := slices.Clone(s)
	sort.Strings(out)
	return out
}

func canonical(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func terminalMission(state string) bool {
	return state == "approved" || state == "cancelled" || state == "failed"
}

func unfinished(state string) bool {
	return state != "verified" && state != "cancelled" && state != "failed"
}

func (m *model) secs(o obj, name string, def int) time.Duration {
	if has(o, name) {
		return time.Duration(number(o[name])) * time.Second
	}
	return time.Duration(def) * time.Second
}

// live reports that a Membership has neither ended nor lapsed.
func (m *model) live(x *member) bool {
	return x != nil && x.state != "ended" && (x.state != "provisional" || m.now.Before(x.expires))
}

// liveOwner is section 4.2.1.
func (m *model) liveOwner(w *item) bool {
	o := w.owner
	if o == nil || o.dead {
		return false
	}
	if o.custody {
		return w.childState == "live"
	}
	if w.own == nil || w.own.state != "active" || !m.now.Before(w.own.expires) {
		return false
	}
	switch w.state {
	case "queued":
		if !m.pinsHold(w) {
			return false
		}
		return o.started || m.now.Before(w.own.startBy)
	case "active":
		return w.run != nil && m.now.Before(w.run.expires)
	case "blocked":
		return w.blk != nil && m.now.Before(w.blk.expires)
	}
	return true
}

// pinsHold reports that the owner's present card still satisfies what was
// pinned at acceptance.
func (m *model) pinsHold(w *item) bool {
	a := m.agents[w.owner.agent]
	return a != nil && !a.revoked && a.has(w.owner.pins)
}

func (a *agent) has(required []any) bool {
	for _, r := range required {
		o := r.(obj)
		version, ok := a.can[text(o["id"])]
		if !ok || !satisfies(version, text(o["version"])) {
			return false
		}
	}
	return true
}

// satisfies: same major (and minor while major is 0), and not lower.
func satisfies(have, want string) bool {
	var h, w [3]int
	if _, err := fmt.Sscanf(have, "%d.%d.%d", &h[0], &h[1], &h[2]); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(want, "%d.%d.%d", &w[0], &w[1], &w[2]); err != nil {
		return false
	}
	if h[0] != w[0] || h[0] == 0 && h[1] != w[1] {
		return false
	}
	return slices.Compare(h[:], w[:]) >= 0
}
