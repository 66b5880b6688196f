package manifest

import (
	"fmt"
	"slices"
	"strconv"
)

// Extend makes the manifest that a Manifest Extension asks for: the same with
// something added. The change is a map with any of the keys version, description,
// trust_channels, capabilities, capability_matrix, actions, rules, escalations and
// taint_rules of the native layout.
//
// It only adds. Changing what an existing action requires, takes or counts as, the
// level of an existing channel, or who has an existing capability is refused: such
// a change would be another manifest, reviewed as a whole. The error is an
// *Invalid; m stays as it is.
func (m *Manifest) Extend(file string, change []byte) (*Manifest, error) {
	root, err := parseSource(file, change)
	if err != nil {
		return nil, err
	}
	r := &reader{faults: faults{file: file, lines: map[string]int{"": root.line}}}
	add := &Document{file: file, lines: r.lines}
	r.fields(root, "", map[string]func(*node, string){
		"version":           func(n *node, at string) { add.Version = r.ident(n, at) },
		"description":       func(n *node, at string) { add.Description = r.text(n, at) },
		"trust_channels":    func(n *node, at string) { add.Channels = r.channels(n, at) },
		"capabilities":      func(n *node, at string) { add.Capabilities = r.names(n, at) },
		"capability_matrix": func(n *node, at string) { add.Matrix = r.matrix(n, at) },
		"actions": func(n *node, at string) {
			add.Actions = map[string]*Action{}
			r.each(n, at, func(name string, v *node, at string) { r.action(add, name, v, at) })
		},
		"rules":       func(n *node, at string) { add.Rules = r.rules(n, at) },
		"escalations": func(n *node, at string) { add.Escalations = append(r.escalations(n, at), add.Escalations...) },
		"taint_rules": func(n *node, at string) { add.TaintRules = r.taintRules(n, at) },
	})
	if err := r.err(); err != nil {
		return nil, err
	}
	d := m.doc.clone()
	d.file, d.lines = file, r.lines
	merge(d, add, &r.faults)
	if err := r.err(); err != nil {
		return nil, err
	}
	out, err := compile(d, false)
	if err != nil {
		return nil, err
	}
	if out.version == m.version {
		r.add("", "changes nothing")
		return nil, r.err()
	}
	if out.checkAdded(add, &r.faults); len(r.list) > 0 {
		return nil, r.err()
	}
	return out, nil
}

// checkAdded finds rules of the extension that can never decide anything. Those
// that it makes so, in what it extends, are its purpose.
func (m *Manifest) checkAdded(add *Document, f *faults) {
	own := map[string]bool{}
	for _, list := range [][]Rule{add.Rules, add.Escalations} {
		for i := range list {
			own[list[i].ID] = true
		}
	}
	all := faults{file: f.file, lines: f.lines}
	m.checkReach(&all)
	for _, x := range all.list {
		if own[x.Subject] {
			f.put(x)
		}
	}
}

func merge(d, add *Document, f *faults) {
	redefines := func(path, subject, format string, args ...any) {
		f.put(Fault{Path: path, Kind: FaultRedefinition, Subject: subject, Reason: fmt.Sprintf(format, args...)})
	}
	if add.Version != "" {
		d.Version = add.Version
	}
	if add.Description != "" {
		d.Description = add.Description
	}
	for _, name := range sortedKeys(add.Channels) {
		if _, there := d.Channels[name]; there {
			redefines("trust_channels."+name, name, "the channel exists; an extension does not change its trust level")
			continue
		}
		d.Channels[name] = add.Channels[name]
	}
	for i, c := range add.Capabilities {
		if slices.Contains(d.Capabilities, c) {
			redefines(fmt.Sprintf("capabilities[%d]", i), c, "the capability exists already")
			continue
		}
		d.Capabilities = append(d.Capabilities, c)
	}
	for level, row := range add.Matrix {
		_, capped := d.Matrix[level]
		if level == Derived && !capped {
			redefines("capability_matrix.derived", "derived", "there is no derived row, and a new one would change what existing actions may do")
			continue
		}
		for i, c := range row {
			if !slices.Contains(add.Capabilities, c) {
				redefines(fmt.Sprintf("capability_matrix.%s[%d]", level, i), c,
					"an extension grants the capabilities that it adds, and %s is not among them", strconv.Quote(c))
			}
		}
		d.Matrix[level] = append(slices.Clone(d.Matrix[level]), row...)
	}
	existing := map[string]bool{}
	for name := range d.Actions {
		existing[name] = true
	}
	for _, name := range sortedKeys(add.Actions) {
		if existing[name] {
			redefines("actions."+name, name, "the action exists; an extension never redefines one")
			continue
		}
		d.Actions[name] = add.Actions[name]
	}
	d.Rules = append(d.Rules, add.Rules...)
	d.Escalations = append(d.Escalations, add.Escalations...)
	for i, t := range add.TaintRules {
		if t.Clear && existing[t.Operation] {
			redefines(fmt.Sprintf("taint_rules[%d]", i), t.Operation, "the action exists; an extension does not change what it does to taint")
			continue
		}
		d.TaintRules = append(d.TaintRules, t)
	}
}
