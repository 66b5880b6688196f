package manifest

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

var (
	genChannels = []string{"user", "email", "web", "memory", "tool"}
	genCaps     = []string{Read, "internal_write", MemoryWrite, ExternalSideEffects}
	genActions  = []string{"a0", "a1", "a2", "a3"}
	genActors   = []string{"urn:x:alice", "urn:x:bob"}
	genTargets  = []string{"urn:r:1", "urn:r:2"}
	genSkills   = []string{"mail", "search"}
	genCEL      = []string{
		`parameters.n > 1`, `parameters.to == "x"`, `has(parameters.to)`, `size(parameters.list) > 1`, `parameters.gone.deeper`, `resource == "urn:r:1"`,
	}
	genOps = []string{"write_memory", "summarize", "count_words"}
)

func subset(t *rapid.T, from []string, label string) []string {
	bits := rapid.IntRange(0, 1<<len(from)-1).Draw(t, label)
	out := []string{}
	for i, s := range from {
		if bits&(1<<i) != 0 {
			out = append(out, s)
		}
	}
	return out
}

// maybe is a subset half of the time and nothing otherwise.
func maybe(t *rapid.T, from []string, label string) []string {
	if !rapid.Bool().Draw(t, label+"?") {
		return nil
	}
	if s := subset(t, from, label); len(s) > 0 {
		return s
	}
	return nil
}

func genCondition(t *rapid.T, e Effect) Condition {
	c := Condition{
		Actions: maybe(t, genActions, "actions"), Actors: maybe(t, genActors, "actors"),
		Resources: maybe(t, genTargets, "resources"), Capabilities: maybe(t, genSkills, "skills"),
	}
	if rapid.Bool().Draw(t, "trust?") {
		c.Trust = Trust(rapid.IntRange(int(Untrusted), int(Trusted)).Draw(t, "trust"))
	}
	if rapid.Bool().Draw(t, "taint?") {
		c.Clean, c.Tainted = e == Allow, e != Allow
	}
	if rapid.Bool().Draw(t, "cel?") {
		c.Parameters = rapid.SampledFrom(genCEL).Draw(t, "cel")
	}
	return c
}

func genRules(t *rapid.T, d *Document) {
	d.Rules, d.Escalations = nil, nil
	for i := range rapid.IntRange(0, 6).Draw(t, "rules") {
		e := rapid.SampledFrom([]Effect{Allow, Deny}).Draw(t, "effect")
		d.Rules = append(d.Rules, Rule{ID: fmt.Sprintf("r%d", i), Effect: e, Condition: genCondition(t, e)})
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "escalations") {
		d.Escalations = append(d.Escalations, Rule{ID: fmt.Sprintf("e%d", i), Effect: Escalate, Reason: "why", Condition: genCondition(t, Escalate)})
	}
}

func genDocument(t *rapid.T) *Document {
	d := &Document{
		Name: "generated", Version: "1", Channels: map[string]Trust{}, Capabilities: genCaps,
		Matrix: map[Trust][]string{}, Actions: map[string]*Action{},
	}
	for _, c := range subset(t, genChannels, "channels") {
		d.Channels[c] = Trust(rapid.IntRange(int(Untrusted), int(Trusted)).Draw(t, c))
	}
	for level := Untrusted; level <= Trusted; level++ {
		if rapid.Bool().Draw(t, "row?") {
			d.Matrix[level] = subset(t, genCaps, "row")
		}
	}
	for _, name := range genActions {
		a := &Action{Requires: subset(t, genCaps, name)}
		if rapid.IntRange(0, 3).Draw(t, "schema?") == 0 {
			a.Schema = []byte(`{"properties":{"n":{"type":"integer"}},"type":"object"}`)
		}
		d.Actions[name] = a
	}
	for _, op := range subset(t, genOps, "taint rules") {
		d.TaintRules = append(d.TaintRules, TaintRule{op, rapid.Bool().Draw(t, "clear")})
	}
	d.Provenance = maybe(t, RecordFields, "fields")
	genRules(t, d)
	return d
}

func mustCompile(t interface{ Fatalf(string, ...any) }, d *Document) *Manifest {
	m, err := compile(d, false)
	if err != nil {
		t.Fatalf("compile: %v", err)
	}
	return m
}

// genRecords makes records r0.. whose parents may be any of them, also later ones
// and themselves, and some that do not exist.
func genRecords(t *rapid.T, most int) RecordMap {
	n := rapid.IntRange(0, most).Draw(t, "records")
	out := RecordMap{}
	for i := range n {
		r := &Record{
			ID: fmt.Sprintf("r%d", i), Source: rapid.SampledFrom(append([]string{"unheard_of", ""}, genChannels...)).Draw(t, "source"),
			Trust:   rapid.SampledFrom([]string{"", "trusted", "untrusted", "derived", "tainted"}).Draw(t, "stated"),
			Tainted: rapid.Bool().Draw(t, "tainted"), Transformations: subset(t, genOps, "ops"),
			Parents: []string{}, Sessions: []string{"s1"},
		}
		if rapid.Bool().Draw(t, "created?") {
			r.CreatedAt = "2026-01-01T00:00:00Z"
		}
		for range rapid.IntRange(0, 2).Draw(t, "parents") {
			r.Parents = append(r.Parents, fmt.Sprintf("r%d", rapid.IntRange(0, n).Draw(t, "parent")))
		}
		out[r.ID] = r
	}
	return out
}

func genRequest(t *rapid.T) *Request {
	records := genRecords(t, 6)
	r := &Request{
		Mode:       rapid.SampledFrom(Modes[:]).Draw(t, "mode"),
		Action:     rapid.SampledFrom(append([]string{"undeclared"}, genActions...)).Draw(t, "action"),
		Parameters: object(rapid.SampledFrom([]string{`{}`, `{"n":2}`, `{"n":"two","to":"x"}`, `{"to":"x","list":[1,2]}`, `{"to":"é","n":1.0}`}).Draw(t, "parameters")),
		Records:    records,
		Actor:      rapid.SampledFrom(append([]string{""}, genActors...)).Draw(t, "actor"),
		Resource:   rapid.SampledFrom(append([]string{""}, genTargets...)).Draw(t, "resource"),
		Session:    "s1", Capabilities: subset(t, genSkills, "capabilities"),
	}
	for range rapid.IntRange(0, 4).Draw(t, "chain") {
		r.Chain = append(r.Chain, fmt.Sprintf("r%d", rapid.IntRange(0, len(records)).Draw(t, "link")))
	}
	return r
}

func object(text string) strictjson.Value {
	v, err := strictjson.Raw(text).Value()
	if err != nil {
		panic(err)
	}
	return v
}

// naive decides by the words of section 3, with nothing compiled and nothing found
// by a table.
type naive struct{ d *Document }

func (n naive) channel(source string) Trust {
	if t, ok := n.d.Channels[source]; ok {
		return t
	}
	return Untrusted
}

type naiveData struct{ trusted, untrusted, derived, tainted, incomplete bool }

func (x naiveData) or(y naiveData) naiveData {
	return naiveData{x.trusted || y.trusted, x.untrusted || y.untrusted, x.derived || y.derived, x.tainted || y.tainted, x.incomplete || y.incomplete}
}

// lost tells a record from which some path never comes to an end, or to nothing.
func (n naive) lost(id string, from RecordMap, above []string) bool {
	r := from[id]
	if r == nil || slices.Contains(above, id) {
		return true
	}
	if n.derived(r) && !n.untrusted(r) && len(r.Parents) == 0 {
		return true
	}
	return slices.ContainsFunc(r.Parents, func(p string) bool { return n.lost(p, from, append(slices.Clone(above), id)) })
}

func (n naive) untrusted(r *Record) bool {
	return n.channel(r.Source) == Untrusted || r.Trust != "" && r.Trust != "trusted" && r.Trust != "derived"
}

func (n naive) derived(r *Record) bool { return n.channel(r.Source) == Derived || r.Trust == "derived" }

func (n naive) lacks(r *Record) bool {
	for i, f := range RecordFields {
		if slices.Contains(n.d.Provenance, f) && r.fieldBits()&(1<<i) == 0 {
			return true
		}
	}
	return r.Source == ""
}

func (n naive) data(id string, from RecordMap, above []string) naiveData {
	var x naiveData
	r := from[id]
	if r == nil || slices.Contains(above, id) {
		return naiveData{untrusted: true, tainted: true, incomplete: true}
	}
	x.untrusted, x.derived = n.untrusted(r), n.derived(r)
	x.trusted = !x.untrusted && !x.derived
	x.tainted = x.untrusted || r.Tainted
	x.incomplete = n.lacks(r)
	for _, p := range r.Parents {
		x = x.or(n.data(p, from, append(slices.Clone(above), id)))
	}
	if n.lost(id, from, nil) {
		x.untrusted, x.tainted, x.incomplete = true, true, true
	}
	if !x.incomplete {
		for _, t := range n.d.TaintRules {
			if t.Clear && slices.Contains(r.Transformations, t.Operation) {
				x.tainted = false
			}
		}
	}
	return x
}

func (n naive) holds(c *Condition, e Effect, r *Request, level Trust, tainted bool) bool {
	one := func(names []string, of ...string) bool {
		return len(names) == 0 || slices.ContainsFunc(of, func(s string) bool { return s != "" && slices.Contains(names, s) })
	}
	switch {
	case !one(c.Actions, r.Action), !one(c.Actors, r.Actor), !one(c.Resources, r.Resource), !one(c.Capabilities, r.Capabilities...):
		return false
	case c.Tainted && !tainted, c.Clean && tainted:
		return false
	case c.Trust != NoTrust && e == Allow && level < c.Trust, c.Trust != NoTrust && e != Allow && level > c.Trust:
		return false
	case c.Parameters == "":
		return true
	}
	p, err := compilePredicate(c.Parameters)
	if err != nil {
		panic(err)
	}
	return p.eval(&question{r: r, values: plain(r.Parameters)}).holds(e)
}

func (n naive) decide(r *Request) (Verdict, string) {
	var x naiveData
	for _, id := range r.Chain {
		x = x.or(n.data(id, r.Records.(RecordMap), nil))
	}
	level := Trusted
	switch {
	case x.untrusted || !x.trusted:
		level = Untrusted
	case x.derived:
		level = Derived
	}
	a := n.d.Actions[r.Action]
	if a == nil && x.tainted {
		return DENY, TaintContainmentLaw
	}
	if a != nil {
		if x.tainted && slices.Contains(a.Requires, ExternalSideEffects) {
			return DENY, TaintContainmentLaw
		}
		if slices.Contains(a.Requires, MemoryWrite) && (len(r.Chain) == 0 || x.incomplete) {
			return DENY, ProvenanceLaw
		}
		for _, c := range a.Requires {
			there := true
			if x.trusted {
				there = there && slices.Contains(n.d.Matrix[Trusted], c)
			}
			if x.untrusted || len(r.Chain) == 0 {
				there = there && slices.Contains(n.d.Matrix[Untrusted], c)
			}
			if row, ok := n.d.Matrix[Derived]; ok && x.derived {
				there = there && slices.Contains(row, c)
			}
			if len(r.Chain) == 0 && a.class() == ClassRead && c == Read && slices.Contains(n.d.Matrix[Trusted], c) {
				there = true
			}
			if !there {
				return DENY, CapabilityBoundaryLaw
			}
		}
		if v := r.Parameters.Member("n"); a.Schema != nil && v.Exists() && !v.IsInteger() {
			return DENY, SchemaInvalid
		}
	}
	for i := range n.d.Rules {
		if x2 := &n.d.Rules[i]; x2.Effect == Deny && n.holds(&x2.Condition, Deny, r, level, x.tainted) {
			return DENY, x2.ID
		}
	}
	ask := func(rule string) (Verdict, string) {
		if r.Mode == Background {
			return DENY, rule
		}
		return ASK, rule
	}
	for i := range n.d.Escalations {
		if n.holds(&n.d.Escalations[i].Condition, Escalate, r, level, x.tainted) {
			return ask(n.d.Escalations[i].ID)
		}
	}
	if a == nil {
		return ask(Uncovered)
	}
	for i := range n.d.Rules {
		if x2 := &n.d.Rules[i]; x2.Effect == Allow && n.holds(&x2.Condition, Allow, r, level, x.tainted) {
			return ALLOW, x2.ID
		}
	}
	return ALLOW, Covered
}

func TestTheEngineDecidesAsTheWordsSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := genDocument(t)
		m := mustCompile(t, d)
		for range 4 {
			r := genRequest(t)
			got := m.Decide(r)
			verdict, rule := naive{d}.decide(r)
			if got.Verdict != verdict || got.RuleID != rule {
				t.Fatalf("got %s by %s (%s; %s), want %s by %s", got.Verdict, got.RuleID, got.Reason, got.Context, verdict, rule)
			}
		}
	})
}
