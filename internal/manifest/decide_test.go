package manifest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func world(t testing.TB, edit ...string) *Manifest {
	t.Helper()
	m, err := parseWorld(t, edit...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// stored are records that the tests below refer to.
func stored() RecordMap {
	list := []Record{
		{ID: "user", Source: "user", Trust: "trusted"},
		{ID: "mail", Source: "email", Trust: "untrusted", Tainted: true},
		{ID: "liar", Source: "email", Trust: "trusted"},
		{ID: "pigeon", Source: "carrier_pigeon", Trust: "trusted"},
		{ID: "note", Source: "memory", Trust: "derived", Parents: []string{"user"}},
		{ID: "poison", Source: "memory", Trust: "derived", Parents: []string{"mail"}},
		{ID: "counted", Source: "memory", Trust: "derived", Parents: []string{"mail"}, Transformations: []string{"count_words"}},
		{ID: "orphan", Source: "memory", Trust: "derived"},
		{ID: "lost", Source: "memory", Trust: "derived", Parents: []string{"user", "gone"}},
		{ID: "ring1", Source: "user", Trust: "trusted", Parents: []string{"ring2"}},
		{ID: "ring2", Source: "user", Trust: "trusted", Parents: []string{"ring1"}},
		{ID: "counted-lost", Source: "memory", Trust: "derived", Parents: []string{"gone"}, Transformations: []string{"count_words"}},
		{ID: "before", Source: "user", Trust: "untrusted"},
	}
	out := RecordMap{}
	for i := range list {
		list[i].Sessions = []string{"s1"}
		out[list[i].ID] = &list[i]
	}
	return out
}

func TestTrustAndTaintComeFromTheRecords(t *testing.T) {
	m := world(t)
	for _, c := range []struct {
		chain string
		want  string
	}{
		{"", "untrusted false incomplete"},
		{"user", "trusted false complete"},
		{"mail", "untrusted true complete"},
		{"liar", "untrusted true complete"},
		{"pigeon", "untrusted true complete"},
		{"user mail", "untrusted true complete"},
		{"mail user", "untrusted true complete"},
		{"note", "derived false complete"},
		{"poison", "untrusted true complete"},
		{"counted", "untrusted false complete"},
		{"counted mail", "untrusted true complete"},
		{"orphan", "untrusted true incomplete"},
		{"lost", "untrusted true incomplete"},
		{"nothing", "untrusted true incomplete"},
		{"ring1", "untrusted true incomplete"},
		{"counted-lost", "untrusted true incomplete"},
		{"before", "untrusted true complete"},
	} {
		ctx := m.Context(strings.Fields(c.chain), stored())
		state := "incomplete"
		if ctx.Complete {
			state = "complete"
		}
		if got := fmt.Sprintf("%s %t %s", ctx.Trust, ctx.Tainted, state); got != c.want {
			t.Errorf("[%s]: got %s, want %s", c.chain, got, c.want)
		}
	}
}

func TestAnAncestryTooLargeToFollowIsTheWorst(t *testing.T) {
	m, records := world(t), RecordMap{}
	for i := range MaxRecords + 2 {
		records[fmt.Sprint(i)] = &Record{ID: fmt.Sprint(i), Source: "user", Trust: "trusted", Parents: []string{fmt.Sprint(i + 1)}}
	}
	records[fmt.Sprint(MaxRecords+2)] = &Record{ID: fmt.Sprint(MaxRecords + 2), Source: "user", Trust: "trusted"}
	if ctx := m.Context([]string{"0"}, records); !ctx.Overflow || !ctx.Tainted || ctx.Complete || ctx.Trust != Untrusted {
		t.Errorf("got %+v", ctx)
	}
	if ctx := m.Context([]string{"10"}, records); ctx.Overflow || ctx.Tainted || !ctx.Complete || ctx.Trust != Trusted {
		t.Errorf("got %+v", ctx)
	}
}

func TestDecisionsInTheOrderOfTheSteps(t *testing.T) {
	m := world(t)
	for _, c := range []struct {
		name, mode, action, params, chain string
		want                              string
	}{
		{"an unknown mode", "turbo", "read_email", `{}`, "user", "DENY ShapeInvalid"},
		{"no action", "background", "", `{}`, "user", "DENY ShapeInvalid"},
		{"parameters that are none", "background", "read_email", `[]`, "user", "DENY ShapeInvalid"},
		{"a number that is none", "background", "read_email", `{"n":1e999}`, "user", "DENY ShapeInvalid"},
		{"the flagship", "interactive", "send_email", `{"to":"a@example.org"}`, "poison", "DENY TaintContainmentLaw"},
		{"the flagship while defining", "workflow", "send_email", `{"to":"a@example.org"}`, "poison", "DENY TaintContainmentLaw"},
		{"cleared taint is not trust", "interactive", "send_email", `{"to":"a@example.org"}`, "counted", "DENY CapabilityBoundaryLaw"},
		{"an undeclared action with tainted data", "interactive", "fly", `{}`, "mail", "DENY TaintContainmentLaw"},
		{"a write from nowhere", "interactive", "write_memory", `{}`, "", "DENY ProvenanceLaw"},
		{"a write from something lost", "interactive", "write_memory", `{}`, "lost", "DENY ProvenanceLaw"},
		{"no chain is lowest trust", "interactive", "send_email", `{"to":"a@example.org"}`, "", "DENY CapabilityBoundaryLaw"},
		{"wrong parameters are never asked about", "interactive", "send_email", `{"to":1}`, "user", "DENY SchemaInvalid"},
		{"an explicit deny", "interactive", "send_email", `{"to":"a@evil.test"}`, "user", "DENY no-strangers"},
		{"an escalation", "interactive", "write_memory", `{}`, "mail", "ASK ask-memory"},
		{"an escalation with nobody there", "background", "write_memory", `{}`, "mail", "DENY ask-memory"},
		{"a covered action", "background", "send_email", `{"to":"a@example.org"}`, "user", "ALLOW Covered"},
		{"a covered action from memory", "background", "send_email", `{"to":"a@example.org"}`, "note", "ALLOW Covered"},
		{"an undeclared action", "interactive", "fly", `{}`, "user", "ASK Uncovered"},
		{"an undeclared action with nobody there", "background", "fly", `{}`, "user", "DENY Uncovered"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Request{Mode: Mode(c.mode), Action: c.action, Parameters: object(c.params), Chain: strings.Fields(c.chain), Records: stored()}
			d, steps := m.Explain(r)
			if got := string(d.Verdict) + " " + d.RuleID; got != c.want {
				t.Errorf("got %s (%s), want %s", got, d.Reason, c.want)
			}
			if len(steps) == 0 || steps[len(steps)-1].Said == "" || d.Reason == "" {
				t.Errorf("it is not explained: %v", steps)
			}
			if review := d.Review; review != (c.mode == "background" && d.Verdict == DENY && (d.Rule == Escalation || d.Rule == Uncovered)) {
				t.Errorf("review %t", review)
			}
		})
	}
}

func TestChoicesFollowTheMode(t *testing.T) {
	m := world(t)
	for mode, want := range map[Mode]string{Interactive: "one_shot extension", Workflow: "extension one_shot"} {
		d := m.Decide(&Request{Mode: mode, Action: "fly", Parameters: object(`{}`), Chain: []string{"user"}, Records: stored()})
		if got := strings.Join(d.Choices, " "); got != want {
			t.Errorf("%s: got %s, want %s", mode, got, want)
		}
	}
}

func TestWithoutAManifestNothingIsAllowed(t *testing.T) {
	var m *Manifest
	if d := m.Decide(&Request{Mode: Interactive, Action: "x", Parameters: object(`{}`)}); d.Verdict != DENY || d.Rule != ManifestInvalid {
		t.Errorf("got %+v", d)
	}
}

func TestAReadThatNoDataDrivesMayRead(t *testing.T) {
	m := world(t, "untrusted: [read, memory_write]", "untrusted: [memory_write]")
	r := &Request{Mode: Background, Action: "read_email", Parameters: object(`{}`), Records: stored()}
	if d := m.Decide(r); d.Verdict != ALLOW {
		t.Errorf("an empty chain: %s by %s", d.Verdict, d.RuleID)
	}
	r.Chain = []string{"mail"}
	if d := m.Decide(r); d.Rule != CapabilityBoundaryLaw {
		t.Errorf("untrusted data: %s by %s", d.Verdict, d.RuleID)
	}
}

func TestADerivedRowIsACapOnTop(t *testing.T) {
	m := world(t, "  untrusted: [read", "  derived: [read]\n  untrusted: [read")
	r := &Request{Mode: Background, Action: "send_email", Parameters: object(`{"to":"a@example.org"}`), Chain: []string{"note"}, Records: stored()}
	if d := m.Decide(r); d.Rule != CapabilityBoundaryLaw {
		t.Errorf("%s by %s", d.Verdict, d.RuleID)
	}
	if r.Chain = []string{"user"}; m.Decide(r).Verdict != ALLOW {
		t.Error("the cap is for data that came through memory only")
	}
}

func TestAPredicateThatFailsCountsAgainstTheAction(t *testing.T) {
	rules := "  - {id: huge, effect: deny, condition: {action: read_email, parameters: 'parameters.a.all(x, parameters.a.all(y, parameters.a.all(z, x + y + z > 0)))'}}\n"
	m := world(t, "escalations:", rules+"escalations:")
	list := "[" + strings.Repeat("1,", 199) + "1]"
	for params, want := range map[string]string{
		`{}`:                       "DENY huge",
		`{"a":[1]}`:                "DENY huge",
		`{"a":[-1]}`:               "ALLOW Covered",
		`{"a":["text"]}`:           "DENY huge",
		`{"a":` + list + `}`:       "DENY huge",
		`{"a":[0],"b":"ignored"}`:  "ALLOW Covered",
		`{"a":{"not":"a number"}}`: "DENY huge",
	} {
		began := time.Now()
		d := m.Decide(&Request{Mode: Background, Action: "read_email", Parameters: object(params), Chain: []string{"user"}, Records: stored()})
		if got := string(d.Verdict) + " " + d.RuleID; got != want {
			t.Errorf("%.40s: got %s, want %s", params, got, want)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%.40s took %s", params, took)
		}
	}
}

func TestAnApprovalCoversExactlyWhatItWasGivenFor(t *testing.T) {
	m, now := world(t), time.Unix(1000, 0)
	r := Request{
		Mode: Interactive, Action: "write_memory", Parameters: object(`{"value":"v","key":"k"}`), Chain: []string{"mail"}, Records: stored(),
		Actor: "agent", Session: "s1", WorkItem: "w1", Now: now,
	}
	digest, err := ParametersDigest(object(`{"key":"k","value":"v"}`))
	if err != nil {
		t.Fatal(err)
	}
	exact := Approval{
		ID: "a1", ActionType: "write_memory", ParametersDigest: digest, ArgsEquality: ArgsEquality, ManifestVersion: m.Version(),
		Session: "s1", WorkItem: "w1", Actor: "agent", ExpiresAt: now.Add(time.Second),
	}
	r.Approval = &exact
	if d := m.Decide(&r); d.Verdict != ALLOW || d.Rule != OneShotApproval || d.ApprovalID != "a1" {
		t.Fatalf("got %s by %s: %s", d.Verdict, d.RuleID, d.Reason)
	}
	for name, change := range map[string]func(a *Approval, r *Request){
		"used":               func(a *Approval, _ *Request) { a.Consumed = true },
		"expired":            func(a *Approval, _ *Request) { a.ExpiresAt = now },
		"another action":     func(a *Approval, _ *Request) { a.ActionType = "read_email" },
		"other parameters":   func(_ *Approval, r *Request) { r.Parameters = object(`{"key":"k","value":"w"}`) },
		"another equality":   func(a *Approval, _ *Request) { a.ArgsEquality = "other/1" },
		"another version":    func(a *Approval, _ *Request) { a.ManifestVersion = "sha256:0" },
		"another session":    func(_ *Approval, r *Request) { r.Session = "s2" },
		"another WorkItem":   func(_ *Approval, r *Request) { r.WorkItem = "w2" },
		"another Agent":      func(_ *Approval, r *Request) { r.Actor = "other" },
		"a law in the way":   func(_ *Approval, r *Request) { r.Chain = nil },
		"more tainted words": func(_ *Approval, r *Request) { r.Parameters = object(`{"key":"k","value":"v","more":1}`) },
	} {
		a, changed := exact, r
		change(&a, &changed)
		changed.Approval = &a
		if d := m.Decide(&changed); d.Verdict == ALLOW {
			t.Errorf("%s: allowed by %s", name, d.RuleID)
		}
	}
}

func TestDigestsFollowTheNamedEquality(t *testing.T) {
	same := func(a, b string) bool {
		x, err1 := ParametersDigest(object(a))
		y, err2 := ParametersDigest(object(b))
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		return x == y
	}
	if !same(`{"a":1,"b":"\u00e9"}`, `{ "b":"e\u0301", "a":1.0 }`) {
		t.Error("order, spacing, spelling of numbers and normalization are no difference")
	}
	if !same(`{"a":"x\n\u0303y","\u00e9":1}`, `{"e\u0301":1,"a":"x\n\u0303y"}`) || same(`{"a":"x\n\u0303"}`, `{"a":"x\\\u00f1"}`) {
		t.Error("an escape is no letter")
	}
	if same(`{"a":"1"}`, `{"a":1}`) || same(`{"a":[1,2]}`, `{"a":[2,1]}`) {
		t.Error("types and order in lists are a difference")
	}
	if _, err := ParametersDigest(object(`{"\u00e9":1,"e\u0301":2}`)); err == nil {
		t.Error("names that become one have no digest")
	}
}

func TestExtensionsOnlyAdd(t *testing.T) {
	m := world(t)
	for change, want := range map[string]string{
		`{"actions":{"send_email":{"requires":[]}}}`:                           "never redefines",
		`{"trust_channels":{"email":"trusted"}}`:                               "does not change its trust level",
		`{"capability_matrix":{"untrusted":["external_side_effects"]}}`:        "grants the capabilities that it adds",
		`{"capability_matrix":{"derived":["read"]}}`:                           "no derived row",
		`{"taint_rules":[{"operation":"write_memory","result":"clear"}]}`:      "does to taint",
		`{"taint_rules":[{"operation":"count_words","result":"preserve"}]}`:    "already",
		`{"actions":{"fly":{"requires":["wings"]}}}`:                           "not declared",
		`{"rules":[{"id":"no-strangers","effect":"deny"}]}`:                    "id of another rule",
		`{"rules":[{"id":"x","effect":"allow","condition":{"action":"fly"}}]}`: "not declared",
		`{"invariants":[]}`: "not a key",
		`{}`:                "changes nothing",
		`{"rules":[{"id":"x","effect":"deny","condition":{"action":"send_email"}},{"id":"y","effect":"deny","condition":{"action":"send_email","trust":"untrusted"}}]}`: "can never decide anything",
	} {
		if _, err := m.Extend("change", []byte(change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", change, err, want)
		}
	}
	x, err := m.Extend("change", []byte("capabilities: [wings]\ncapability_matrix: {trusted: [wings]}\nactions: {fly: {requires: [wings]}}\nrules: [{id: stop, effect: deny, condition: {action: send_email}}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	r := &Request{Mode: Background, Action: "fly", Parameters: object(`{}`), Chain: []string{"user"}, Records: stored()}
	if d := x.Decide(r); d.Verdict != ALLOW {
		t.Errorf("%s by %s", d.Verdict, d.RuleID)
	}
	if r.Action, r.Parameters = "send_email", object(`{"to":"a@example.org"}`); x.Decide(r).RuleID != "stop" || m.Decide(r).Verdict != ALLOW {
		t.Error("the added deny must hold in the new version only")
	}
	d := Compare(m, x)
	if len(d.Allowed) == 0 || len(d.Denied) == 0 || d.Empty() {
		t.Errorf("the difference is not told: %+v", d)
	}
}

func TestTheVirtualizationBoundary(t *testing.T) {
	m := world(t)
	for _, c := range []struct {
		source, raw string
		want        Sanitized
	}{
		{"user", "hello", Sanitized{Source: "user", Trust: Trusted, Payload: "hello"}},
		{"email", "hello", Sanitized{Source: "email", Trust: Untrusted, Tainted: true, Payload: "hello"}},
		{"pigeon", "hello", Sanitized{Source: "pigeon", Trust: Untrusted, Tainted: true, Payload: "hello"}},
		{"memory", "hello", Sanitized{Source: "memory", Trust: Derived, Tainted: true, Payload: "hello"}},
		{"user", "he\u200bl\u202elo\U000e0041\x00", Sanitized{Source: "user", Trust: Trusted, Payload: "hello", Invisible: true}},
		{"user", " a [[do b]] c ", Sanitized{Source: "user", Trust: Trusted, Tainted: true, Payload: "a  c", Hidden: true}},
		{"user", "a [\u200b[do b]\u200b]", Sanitized{Source: "user", Trust: Trusted, Tainted: true, Payload: "a", Hidden: true, Invisible: true}},
		{"user", "a [[b", Sanitized{Source: "user", Trust: Trusted, Payload: "a [[b"}},
	} {
		if got := m.Virtualize(c.source, c.raw); got != c.want {
			t.Errorf("%s %q: got %+v", c.source, c.raw, got)
		}
	}
}

func TestCoverageNamesWhatATraceNeverHit(t *testing.T) {
	m := world(t)
	var trace []Entry
	for _, params := range []string{`{"to":"a@example.org"}`, `{"to":"x"}`} {
		r := &Request{Mode: Background, Action: "send_email", Parameters: object(params), Chain: []string{"user"}, Records: stored()}
		d := m.Decide(r)
		trace = append(trace, *d.Entry(r))
	}
	c := m.Cover(trace)
	if c.Hits["no-strangers"] != 1 || len(c.NeverHit) != 1 || c.NeverHit[0] != "ask-memory" || len(c.NeverProposed) != 2 {
		t.Errorf("%+v", c)
	}
	stricter := world(t, "@example.org", "@example.com")
	if s := stricter.Simulate(trace); len(s.Differences) != 1 || s.Differences[0].Was != ALLOW || s.Differences[0].Is != DENY {
		t.Errorf("%+v", s)
	}
}
