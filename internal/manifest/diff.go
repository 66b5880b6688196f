package manifest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// Cell is a set of Proposed Actions that one version decides otherwise than
// another: one action, one trust context, one choice of what conditions name.
type Cell struct {
	// Action is "*" for every action that neither version declares.
	Action string `json:"action"`
	Modes  []Mode `json:"modes"`
	// Levels are the levels of the data: trusted, untrusted, derived, or none.
	Levels   string `json:"levels"`
	Tainted  bool   `json:"tainted"`
	Complete bool   `json:"provenanceComplete"`
	Actor    string `json:"actor,omitempty"`    // "" is any that no rule names
	Resource string `json:"resource,omitempty"` // the same
	// Capability is the only one of the WorkItem that a rule names.
	Capability string `json:"capability,omitempty"`
	// Predicates are those that hold; all others do not.
	Predicates []string `json:"predicates,omitempty"`
	From       Verdict  `json:"from"`
	FromRule   string   `json:"fromRule"`
	To         Verdict  `json:"to"`
	ToRule     string   `json:"toRule"`
}

// Diff is what changes between two versions.
type Diff struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Allowed are cells that become ALLOW, Denied those that become DENY, Asked those
	// that become ASK.
	Allowed []Cell `json:"allowed"`
	Denied  []Cell `json:"denied"`
	Asked   []Cell `json:"asked"`
	// Channels, Schemas and Taint are changes that move actions between cells: the
	// trust of a channel, the parameters that fit, the operations that clear taint.
	Channels []string `json:"channels"`
	Schemas  []string `json:"schemas"`
	Taint    []string `json:"taint"`
	// Partial are actions with so many named things that only one at a time was tried.
	Partial []string `json:"partial,omitempty"`
	Cells   int      `json:"cells"` // that were compared
}

// Empty reports that nothing changes.
func (d *Diff) Empty() bool {
	return len(d.Allowed)+len(d.Denied)+len(d.Asked)+len(d.Channels)+len(d.Schemas)+len(d.Taint) == 0
}

// Bounds of the enumeration for one action.
const (
	maxValuations = 64
	maxCells      = 20_000
)

// Compare enumerates the finite space of trust contexts and conditions and tells
// where two versions differ. Parameters are not part of it: predicates are taken
// as true or false, whatever would make them so.
func Compare(from, to *Manifest) *Diff {
	d := &Diff{From: from.version, To: to.version, Allowed: []Cell{}, Denied: []Cell{}, Asked: []Cell{}, Channels: []string{}, Schemas: []string{}, Taint: []string{}}
	for _, name := range both(sortedKeys(from.channels), sortedKeys(to.channels)) {
		if a, b := from.Channel(name), to.Channel(name); a != b {
			d.Channels = append(d.Channels, fmt.Sprintf("%s: %s -> %s", name, a, b))
		}
	}
	for _, op := range both(sortedKeys(from.clears), sortedKeys(to.clears)) {
		if from.clears[op] != to.clears[op] {
			d.Taint = append(d.Taint, fmt.Sprintf("%s: clears taint %t -> %t", op, from.clears[op], to.clears[op]))
		}
	}
	for _, name := range append(both(from.Actions(), to.Actions()), "*") {
		a, b := from.doc.Actions[name], to.doc.Actions[name]
		if a != nil && b != nil && !bytes.Equal(a.Schema, b.Schema) {
			d.Schemas = append(d.Schemas, name)
		}
		d.action(from, to, name)
	}
	return d
}

func both(a, b []string) []string {
	out := append(slices.Clone(a), b...)
	slices.Sort(out)
	return slices.Compact(out)
}

// named is what the rules that can be asked for an action name.
type named struct{ actors, resources, capabilities, predicates []string }

func (m *Manifest) named(action string) (n named) {
	for _, list := range [][]Rule{m.doc.Rules, m.doc.Escalations} {
		for i := range list {
			c := &list[i].Condition
			if len(c.Actions) > 0 && !slices.Contains(c.Actions, action) {
				continue
			}
			n.actors, n.resources = append(n.actors, c.Actors...), append(n.resources, c.Resources...)
			n.capabilities = append(n.capabilities, c.Capabilities...)
			if c.Parameters != "" {
				n.predicates = append(n.predicates, c.Parameters)
			}
		}
	}
	return n
}

type point struct{ actor, resource, capability string }

func (d *Diff) action(from, to *Manifest, name string) {
	x, y := from.named(name), to.named(name)
	actors := append([]string{""}, both(x.actors, y.actors)...)
	resources := append([]string{""}, both(x.resources, y.resources)...)
	capabilities := append([]string{""}, both(x.capabilities, y.capabilities)...)
	predicates := both(x.predicates, y.predicates)
	valuations, whole := valuate(predicates)
	var points []point
	if len(actors)*len(resources)*len(capabilities)*len(valuations) <= maxCells {
		for _, a := range actors {
			for _, r := range resources {
				for _, c := range capabilities {
					points = append(points, point{a, r, c})
				}
			}
		}
	} else {
		whole = false
		points = append(points, point{})
		for _, a := range actors[1:] {
			points = append(points, point{actor: a})
		}
		for _, r := range resources[1:] {
			points = append(points, point{resource: r})
		}
		for _, c := range capabilities[1:] {
			points = append(points, point{capability: c})
		}
	}
	if !whole {
		d.Partial = append(d.Partial, name)
	}
	for _, p := range points {
		for _, holding := range valuations {
			d.contexts(from, to, name, p, holding)
		}
	}
}

// valuate is every choice of predicates that hold, or with many of them none, each
// and all.
func valuate(predicates []string) (out [][]string, whole bool) {
	if n := len(predicates); 1<<min(n, 30) <= maxValuations {
		for bits := range 1 << n {
			var holding []string
			for i, p := range predicates {
				if bits&(1<<i) != 0 {
					holding = append(holding, p)
				}
			}
			out = append(out, holding)
		}
		return out, true
	}
	out = append(out, nil, predicates)
	for _, p := range predicates {
		out = append(out, []string{p})
	}
	return out, false
}

func (d *Diff) contexts(from, to *Manifest, name string, p point, holding []string) {
	for levels := range uint8(8) {
		for _, state := range []struct{ tainted, complete bool }{{false, true}, {true, true}, {false, false}, {true, false}} {
			if levels == 0 && (state.tainted || state.complete) || levels == levelDerived {
				continue // data has a level besides having come through memory
			}
			if levels != 0 && !state.complete && !from.memory(name) && !to.memory(name) {
				continue // only memory writes ask for completeness
			}
			ctx := Context{Trust: rowTrust(int(levels)), Tainted: state.tainted, Complete: state.complete, levels: levels}
			var cell *Cell
			for _, mode := range Modes {
				a, b := from.at(name, mode, ctx, p, holding), to.at(name, mode, ctx, p, holding)
				d.Cells++
				if a.Verdict == b.Verdict {
					continue
				}
				if cell != nil && cell.From == a.Verdict && cell.To == b.Verdict && cell.FromRule == a.RuleID && cell.ToRule == b.RuleID {
					cell.Modes = append(cell.Modes, mode)
					continue
				}
				cell = d.put(Cell{
					Action: name, Modes: []Mode{mode}, Levels: levelNames(levels), Tainted: state.tainted, Complete: state.complete,
					Actor: p.actor, Resource: p.resource, Capability: p.capability, Predicates: holding,
					From: a.Verdict, FromRule: a.RuleID, To: b.Verdict, ToRule: b.RuleID,
				})
			}
		}
	}
}

func (m *Manifest) memory(name string) bool { return m.actions[name] != nil && m.actions[name].memory }

func (d *Diff) put(c Cell) *Cell {
	list := &d.Denied
	switch c.To {
	case ALLOW:
		list = &d.Allowed
	case ASK:
		list = &d.Asked
	}
	*list = append(*list, c)
	return &(*list)[len(*list)-1]
}

func levelNames(levels uint8) string {
	var names []string
	for bit, name := range map[uint8]string{levelTrusted: "trusted", levelUntrusted: "untrusted", levelDerived: "derived"} {
		if levels&bit != 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	return strings.Join(names, "+")
}

// at decides in an abstract place: steps 3 and 5 to 8.
func (m *Manifest) at(name string, mode Mode, ctx Context, p point, holding []string) Decision {
	d := Decision{Verdict: DENY, Context: ctx, ManifestVersion: m.version}
	a := m.actions[name]
	if m.laws(a, &d) {
		return d
	}
	q := question{
		m: m, a: a, context: contextBit(ctx.Trust, ctx.Tainted),
		r: &Request{Mode: mode, Action: name, Actor: p.actor, Resource: p.resource, Capabilities: []string{p.capability}},
		answer: func(x *predicate) truth {
			if slices.Contains(holding, x.text) {
				return isTrue
			}
			return isFalse
		},
	}
	m.rest(&q, &d, func(int, string) {})
	return d
}
