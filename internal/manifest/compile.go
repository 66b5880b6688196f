package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Manifest is a compiled manifest. It is immutable and safe for concurrent use.
type Manifest struct {
	doc       *Document
	canonical []byte
	version   string
	channels  map[string]Trust
	clears    map[string]bool
	fields    uint8 // required record fields, bits of RecordFields
	actions   map[string]*action
	global    ruleTable // rules without an action
	count     int       // rules and escalations

	globalPredicates bool // some rule without an action has a predicate
}

// action is an entry of the ontology with everything that does not depend on the
// request worked out.
type action struct {
	name             string
	class            string
	external, memory bool
	schema           *jsonschema.Schema
	missing          [rowCount]string // required capabilities that a row lacks; "" = none
	rules            ruleTable
	predicates       bool // some rule that can be asked for it has one
}

// Rows of the capability matrix in effect: one per set of levels in the chain, and
// one for a read that no data drives.
const (
	levelTrusted = 1 << iota
	levelUntrusted
	levelDerived
	rowRead  = 8
	rowCount = 9
)

// rule is a compiled rule.
type rule struct {
	id, reason string
	effect     Effect
	order      int // position among the rules of its kind
	contexts   uint8
	predicate  *predicate
}

// contextBit is the bit of a trust level and taint in rule.contexts.
func contextBit(t Trust, tainted bool) uint8 {
	bit := uint8(1) << (uint8(t) - 1)
	if tainted {
		bit <<= 3
	}
	return bit
}

// contexts is the set in which a condition's trust and taint hold.
func (c *Condition) contexts(e Effect) (set uint8) {
	for t := Untrusted; t <= Trusted; t++ {
		if c.Trust != NoTrust && (e == Allow && t < c.Trust || e != Allow && t > c.Trust) {
			continue
		}
		if !c.Tainted {
			set |= contextBit(t, false)
		}
		if !c.Clean {
			set |= contextBit(t, true)
		}
	}
	return set
}

// key is what rules are found by. "" in a part is a rule that does not state it.
type key struct{ actor, resource, capability string }

// ruleTable holds the rules of one action, or those of all, by effect.
type ruleTable struct {
	by [Escalate + 1]map[key][]*rule
	// shapes has the parts that any key states, so that tables without such rules
	// are not asked.
	shapes [Escalate + 1]uint8
}

const (
	statesActor = 1 << iota
	statesResource
	statesCapability
)

func (k key) shape() (s uint8) {
	if k.actor != "" {
		s |= statesActor
	}
	if k.resource != "" {
		s |= statesResource
	}
	if k.capability != "" {
		s |= statesCapability
	}
	return s
}

func (t *ruleTable) add(k key, r *rule) {
	if t.by[r.effect] == nil {
		t.by[r.effect] = map[key][]*rule{}
	}
	t.by[r.effect][k] = append(t.by[r.effect][k], r)
	t.shapes[r.effect] |= 1 << k.shape()
}

// Compile checks a document and makes its tables. The error is an *Invalid.
func Compile(d *Document) (*Manifest, error) { return compile(d, true) }

// CompileImported is Compile for a document of the importer: a rule that can never
// decide anything is reported and not refused, because the layout has no way to
// say less.
func CompileImported(d *Document, report *Report) (*Manifest, error) {
	if report.Layout == Format {
		return Compile(d)
	}
	m, err := compile(d, false)
	if err != nil {
		return nil, err
	}
	f := faults{file: d.file, lines: d.lines}
	m.checkReach(&f)
	report.NotCarried = append(report.NotCarried, f.list...)
	return m, nil
}

// Parse loads and compiles a text in either layout. The error is an *Invalid.
func Parse(file string, source []byte) (*Manifest, *Report, error) {
	d, report, err := Load(file, source)
	if err != nil {
		return nil, nil, err
	}
	m, err := CompileImported(d, report)
	if err != nil {
		return nil, report, err
	}
	return m, report, nil
}

func compile(d *Document, reach bool) (*Manifest, error) {
	f := faults{file: d.file, lines: d.lines}
	d.check(&f)
	if err := f.err(); err != nil {
		return nil, err
	}
	m := &Manifest{doc: d, channels: d.Channels, clears: map[string]bool{}, actions: make(map[string]*action, len(d.Actions))}
	for _, t := range d.TaintRules {
		if t.Clear {
			m.clears[t.Operation] = true
		}
	}
	for i, name := range RecordFields {
		if slices.Contains(d.Provenance, name) {
			m.fields |= 1 << i
		}
	}
	rows := m.rows()
	for _, name := range sortedKeys(d.Actions) {
		m.actions[name] = compileAction(name, d.Actions[name], &rows, &f)
	}
	m.compileRules(&f)
	if reach && len(f.list) == 0 {
		m.checkReach(&f)
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	m.canonical = d.canonical()
	sum := sha256.Sum256(m.canonical)
	m.version = "sha256:" + hex.EncodeToString(sum[:])
	return m, nil
}

// rows are the capabilities that are present for each set of levels. Data of
// several levels has what each of them has; data that came through memory has at
// most the derived row, if there is one.
func (m *Manifest) rows() (rows [rowCount]map[string]bool) {
	has := func(level Trust) func(string) bool {
		return func(c string) bool { return slices.Contains(m.doc.Matrix[level], c) }
	}
	trusted, untrusted, derived := has(Trusted), has(Untrusted), has(Derived)
	_, capped := m.doc.Matrix[Derived]
	for i := range rowCount {
		rows[i] = map[string]bool{}
		for _, c := range m.doc.Capabilities {
			if i == rowRead {
				rows[i][c] = untrusted(c) || c == Read && trusted(c)
				continue
			}
			present := true
			if i&levelTrusted != 0 {
				present = present && trusted(c)
			}
			if i&levelUntrusted != 0 || i&levelTrusted == 0 {
				present = present && untrusted(c)
			}
			if i&levelDerived != 0 && capped {
				present = present && derived(c)
			}
			rows[i][c] = present
		}
	}
	return rows
}

func compileAction(name string, d *Action, rows *[rowCount]map[string]bool, f *faults) *action {
	a := &action{
		name: name, class: d.class(),
		external: slices.Contains(d.Requires, ExternalSideEffects),
		memory:   slices.Contains(d.Requires, MemoryWrite),
	}
	requires := slices.Sorted(slices.Values(d.Requires)) // the order of the text says nothing
	for i := range rows {
		var missing []string
		for _, c := range requires {
			if !rows[i][c] {
				missing = append(missing, c)
			}
		}
		a.missing[i] = strings.Join(missing, ", ")
	}
	if d.Schema != nil {
		schema, err := compileSchema(d.Schema)
		if err != nil {
			f.add("actions."+name+".schema", "is not a JSON Schema: %s", schemaReason(err))
		} else if at, ok := schemaLoop(schema); ok {
			f.add(f.deepest("actions."+name+".schema", pathSteps(at)...), "refers to itself without looking further into the parameters, so nothing would ever fit it")
		}
		a.schema = schema
	}
	return a
}

func (m *Manifest) compileRules(f *faults) {
	programs := map[string]*predicate{} // the same text is compiled once
	perAction := map[string]int{}
	for _, list := range [][]Rule{m.doc.Rules, m.doc.Escalations} {
		for i := range list {
			d := &list[i]
			c := &d.Condition
			m.count++
			r := &rule{id: d.ID, reason: d.Reason, effect: d.Effect, order: i, contexts: c.contexts(d.Effect)}
			if c.Parameters != "" {
				p, ok := programs[c.Parameters]
				if !ok {
					var err error
					if p, err = compilePredicate(c.Parameters); err != nil {
						f.add(d.path+".condition.parameters", "%v", err)
					}
					programs[c.Parameters] = p
				}
				r.predicate = p
			}
			m.place(d, r, perAction, f)
		}
	}
	m.globalPredicates = perAction[""] > 0
	for _, a := range m.actions {
		a.predicates = perAction[a.name]+perAction[""] > 0
	}
}

// place puts a rule under every key that finds it.
func (m *Manifest) place(d *Rule, r *rule, perAction map[string]int, f *faults) {
	c := &d.Condition
	actions := c.Actions
	if len(actions) == 0 {
		actions = []string{""}
	}
	for _, name := range actions {
		table := &m.global
		if name != "" {
			table = &m.actions[name].rules
		}
		if r.predicate != nil {
			perAction[name]++
			if n := perAction[name] + perAction[""]; n == maxPredicates+1 {
				f.add(d.path+".condition.parameters", "is one predicate too many: an action has at most %d, so that a decision has a bounded cost", maxPredicates)
			}
		}
		for k := range c.keys() {
			table.add(k, r)
		}
	}
}

// keys walks the combinations of names that a condition states.
func (c *Condition) keys() func(func(key) bool) {
	or := func(names []string) []string {
		if len(names) == 0 {
			return []string{""}
		}
		return names
	}
	return func(yield func(key) bool) {
		for _, a := range or(c.Actors) {
			for _, r := range or(c.Resources) {
				for _, p := range or(c.Capabilities) {
					if !yield(key{a, r, p}) {
						return
					}
				}
			}
		}
	}
}

// Version is the content address: sha256: and the digest of the canonical form.
func (m *Manifest) Version() string { return m.version }

// Canonical is the canonical compiled form: the manifest in the native layout as
// JCS, with every default spelled out and every list whose order means nothing
// sorted. Reading it gives the same version.
func (m *Manifest) Canonical() []byte { return slices.Clone(m.canonical) }

// Name and VersionName are what the author calls the manifest.
func (m *Manifest) Name() string { return m.doc.Name }

// VersionName is the author's version.
func (m *Manifest) VersionName() string { return m.doc.Version }

// RuleCount is the number of rules and escalations.
func (m *Manifest) RuleCount() int { return m.count }

// Actions are the names of the ontology, sorted.
func (m *Manifest) Actions() []string { return sortedKeys(m.actions) }

// Class is the side effect class of an action; false outside the ontology.
func (m *Manifest) Class(action string) (string, bool) {
	a, ok := m.actions[action]
	if !ok {
		return ClassUnknown, false
	}
	return a.class, true
}

// Channel is the trust level of a channel; unknown channels are untrusted.
func (m *Manifest) Channel(source string) Trust {
	if t, ok := m.channels[source]; ok {
		return t
	}
	return Untrusted
}

// checkReach finds rules that can never decide anything.
func (m *Manifest) checkReach(f *faults) {
	type site struct {
		action string
		key
	}
	seen := map[Effect]map[site][]*rule{Deny: {}, Allow: {}, Escalate: {}}
	covered := func(list []*rule, r *rule) bool {
		return slices.ContainsFunc(list, func(o *rule) bool {
			return o.contexts&r.contexts == r.contexts && (o.predicate == nil || o.predicate == r.predicate)
		})
	}
	// find reports whether a rule of effect e at the same site or a wider one covers r.
	find := func(e Effect, s site, r *rule) bool {
		for mask := range 16 {
			wide := s
			if mask&1 != 0 {
				wide.action = ""
			}
			if mask&2 != 0 {
				wide.actor = ""
			}
			if mask&4 != 0 {
				wide.resource = ""
			}
			if mask&8 != 0 {
				wide.capability = ""
			}
			if covered(seen[e][wide], r) {
				return true
			}
		}
		return false
	}
	rules := map[*Rule]*rule{}
	visit := func(d *Rule, do func(r *rule, s site) bool) bool {
		actions := d.Condition.Actions
		if len(actions) == 0 {
			actions = []string{""}
		}
		r := rules[d]
		all := true
		for _, a := range actions {
			for k := range d.Condition.keys() {
				all = do(r, site{a, k}) && all
			}
		}
		return all
	}
	unreachable := func(d *Rule, why string) {
		f.put(Fault{Path: d.path, Kind: FaultUnreachable, Subject: d.ID, Reason: "can never decide anything: " + why})
	}
	each := func(do func(d *Rule)) {
		for _, list := range [][]Rule{m.doc.Rules, m.doc.Escalations} {
			for i := range list {
				do(&list[i])
			}
		}
	}
	texts := map[string]*predicate{}
	each(func(d *Rule) {
		r := &rule{effect: d.Effect, contexts: d.Condition.contexts(d.Effect)}
		if t := d.Condition.Parameters; t != "" {
			if texts[t] == nil {
				texts[t] = &predicate{text: t}
			}
			r.predicate = texts[t]
		}
		rules[d] = r
	})
	each(func(d *Rule) {
		if visit(d, func(r *rule, s site) bool { return find(d.Effect, s, r) }) {
			unreachable(d, "an earlier rule of the same effect decides all of it")
		}
		visit(d, func(r *rule, s site) bool { seen[d.Effect][s] = append(seen[d.Effect][s], r); return true })
	})
	each(func(d *Rule) {
		if d.Effect != Deny && visit(d, func(r *rule, s site) bool { return find(Deny, s, r) }) {
			unreachable(d, "deny rules decide all of it first")
			return
		}
		if law := m.lawAlways(d); law != "" {
			unreachable(d, law+" denies all of it first")
		}
	})
}

// lawAlways is the law that denies a rule's actions in every context that the rule
// admits; "" when there is one in which it may decide.
func (m *Manifest) lawAlways(d *Rule) string {
	law := ""
	for _, name := range d.Condition.Actions {
		a := m.actions[name]
		if a == nil {
			return ""
		}
		for row := range rowCount {
			for _, tainted := range []bool{false, true} {
				if row == rowRead && (tainted || a.class != ClassRead) {
					continue
				}
				if d.Condition.contexts(d.Effect)&contextBit(rowTrust(row), tainted) == 0 {
					continue
				}
				switch {
				case tainted && a.external:
					law = TaintContainmentLaw
				case a.missing[row] != "":
					law = CapabilityBoundaryLaw
				default:
					return ""
				}
			}
		}
	}
	return law
}

// rowTrust is the trust level that conditions see for a set of levels.
func rowTrust(row int) Trust {
	switch {
	case row == rowRead || row&levelUntrusted != 0 || row&levelTrusted == 0:
		return Untrusted
	case row&levelDerived != 0:
		return Derived
	}
	return Trusted
}

// Clears reports whether an operation clears taint.
func (m *Manifest) Clears(operation string) bool { return m.clears[operation] }

// Stored compiles a canonical form that was compiled before. Rules that an
// extension has made unreachable are no fault of it.
func Stored(canonical []byte) (*Manifest, error) {
	d, _, err := Load("stored", canonical)
	if err != nil {
		return nil, err
	}
	return compile(d, false)
}

// Secret reports an action with a parameter that its schema marks writeOnly: its
// parameters are not to be kept.
func (m *Manifest) Secret(action string) bool {
	a := m.doc.Actions[action]
	return a != nil && strings.Contains(string(a.Schema), `"writeOnly":true`)
}
