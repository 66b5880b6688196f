package manifest

import (
	"slices"
	"strconv"
	"strings"
)

// importer reads the scenario layout: capability rows per level under
// `capabilities`, `explicit_rules` and `escalation_rules` by action, parameters as
// a flat list. What it drops or reads otherwise goes into the report; what would
// change a decision for the worse is a fault as in the native layout.
type importer struct {
	*reader
	doc    *Document
	report *Report
}

func scenarioLike(root *node) bool {
	if rows := root.get("capabilities"); rows != nil && rows.kind == kindMap {
		return true
	}
	for _, key := range []string{"explicit_rules", "escalation_rules"} {
		if root.get(key) != nil {
			return true
		}
	}
	return false
}

func (im *importer) tell(n *node, path, reason string) {
	im.report.NotCarried = append(im.report.NotCarried, Fault{File: im.file, Line: n.line, Path: path, Reason: reason})
}

// loose reads the members it knows and reports the others.
func (im *importer) loose(n *node, path string, known map[string]func(*node, string), required ...string) {
	all := map[string]func(*node, string){}
	for name, read := range known {
		all[name] = read
	}
	if n.kind == kindMap {
		for i := range n.members {
			if m := &n.members[i]; all[m.name] == nil {
				all[m.name] = func(v *node, at string) { im.tell(v, at, "is not a key of the scenario layout; dropped") }
			}
		}
	}
	im.fields(n, path, all, required...)
}

// word is a scalar as text, however it is typed: version: 1.0 names a version.
func (im *importer) word(n *node, at string) string {
	if n.kind == kindNumber || n.kind == kindBool {
		return n.text
	}
	return im.ident(n, at)
}

func (im *importer) document(root *node) {
	d := im.doc
	d.Actions, d.Matrix = map[string]*Action{}, map[Trust][]string{}
	im.loose(root, "", map[string]func(*node, string){
		"name":             func(n *node, at string) { d.Name = im.word(n, at) },
		"version":          func(n *node, at string) { d.Version = im.word(n, at) },
		"description":      func(n *node, at string) { d.Description = im.text(n, at) },
		"trust_channels":   func(n *node, at string) { d.Channels = im.channels(n, at) },
		"capabilities":     im.rows,
		"actions":          func(n *node, at string) { im.each(n, at, im.action) },
		"invariants":       im.invariants,
		"explicit_rules":   im.explicit,
		"escalation_rules": im.escalation,
		"taint_rules":      im.taint,
	}, "name", "trust_channels", "capabilities", "actions")
	if d.Version == "" {
		d.Version = "1.0"
	}
	im.collect()
}

// rows reads the capability rows. A row for tainted data is dropped: taint is no
// trust level, and what tainted data may not do is said by the laws.
func (im *importer) rows(n *node, path string) {
	im.each(n, path, func(name string, v *node, at string) {
		level, ok := ParseTrust(name)
		switch {
		case ok:
			im.doc.Matrix[level] = im.names(v, at)
		case name == "tainted":
			im.tell(v, at, "taint is not a trust level: the row of the origin's level counts, and TaintContainmentLaw; dropped")
		default:
			im.add(at, "is not a trust level: trusted, untrusted, derived")
		}
	})
}

// collect makes the list of capabilities, which this layout does not have, and
// reports those that no level has.
func (im *importer) collect() {
	d := im.doc
	granted := map[string]bool{}
	for _, row := range d.Matrix {
		for _, c := range row {
			granted[c] = true
		}
	}
	d.Capabilities = sortedKeys(granted)
	for _, name := range sortedKeys(d.Actions) {
		for _, c := range d.Actions[name].Requires {
			if !granted[c] {
				at := "actions." + name + ".requires"
				im.tell(&node{line: im.lineOf(at)}, at, "no trust level has the capability "+strconv.Quote(c)+", so the action is never available")
				if !slices.Contains(d.Capabilities, c) {
					d.Capabilities = append(d.Capabilities, c)
				}
			}
		}
	}
	slices.Sort(d.Capabilities)
}

func (im *importer) action(name string, n *node, path string) {
	a := &Action{}
	im.doc.Actions[name] = a
	im.loose(n, path, map[string]func(*node, string){
		"requires":          func(n *node, at string) { a.Requires = im.names(n, at) },
		"parameters":        func(n *node, at string) { a.schemaNode = im.parameters(n, at) },
		"side_effect_class": func(n *node, at string) { a.Class = im.enum(n, at, classes...) },
		"provenance": func(n *node, at string) {
			if !slices.Contains(a.Requires, MemoryWrite) {
				im.tell(n, at, "ProvenanceLaw covers actions that require "+MemoryWrite+" only; dropped")
			}
		},
		"approval": func(n *node, at string) {
			rule := Rule{ID: name + ".approval", Effect: Escalate, Condition: Condition{Actions: []string{name}}, path: at}
			switch im.enum(n, at, "required", "required_if_tainted", "none") {
			case "required_if_tainted":
				rule.Condition.Tainted = true
				rule.Reason = "tainted data drives the action"
			case "required":
				rule.Reason = "the action always needs a human"
			default:
				return
			}
			im.doc.Escalations = append(im.doc.Escalations, rule)
		},
	}, "requires")
}

var scenarioTypes = map[string]string{
	"string": "string", "str": "string", "integer": "integer", "int": "integer", "number": "number", "float": "number",
	"boolean": "boolean", "bool": "boolean", "array": "array", "list": "array", "object": "object", "dict": "object", "map": "object",
}

// parameters makes a JSON Schema of the flat list. The list is complete: a
// parameter that is not on it does not fit.
func (im *importer) parameters(n *node, path string) *node {
	properties, required := &node{kind: kindMap, line: n.line}, &node{kind: kindList, line: n.line}
	im.each(n, path, func(name string, v *node, at string) {
		spec := &node{kind: kindMap, line: v.line}
		properties.members = append(properties.members, member{name, v.line, spec})
		kindOf := func(n *node, at string) {
			switch typ, ok := scenarioTypes[im.text(n, at)]; {
			case ok:
				spec.members = append(spec.members, member{"type", n.line, &node{kind: kindString, line: n.line, text: typ}})
			case n.text != "any":
				im.add(at, "is not a type of the scenario layout")
			}
		}
		if v.kind == kindString {
			kindOf(v, at)
			return
		}
		known := map[string]func(*node, string){
			"type": kindOf,
			"required": func(n *node, at string) {
				if n.kind != kindBool {
					im.add(at, "must be true or false")
				} else if n.text == "true" {
					required.items = append(required.items, &node{kind: kindString, line: n.line, text: name})
				}
			},
			"description": func(*node, string) {},
		}
		for _, keyword := range []string{"enum", "const", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "items"} {
			known[keyword] = func(n *node, _ string) { spec.members = append(spec.members, member{keyword, n.line, n}) }
		}
		im.loose(v, at, known)
	})
	text := func(s string) *node { return &node{kind: kindString, line: n.line, text: s} }
	return &node{kind: kindMap, line: n.line, members: []member{
		{"type", n.line, text("object")},
		{"properties", n.line, properties},
		{"required", n.line, required},
		{"additionalProperties", n.line, &node{kind: kindBool, line: n.line, text: "false"}},
	}}
}

// invariants may be listed, in part or with details of their own: they hold anyway.
func (im *importer) invariants(n *node, path string) {
	var listed []string
	switch n.kind {
	case kindList:
		listed = im.names(n, path)
	case kindMap:
		for i := range n.members {
			listed = append(listed, n.members[i].name)
		}
		im.tell(n, path, "the laws have no settings; dropped")
	case kindNull:
	default:
		im.add(path, "must be a list")
	}
	for _, name := range listed {
		if !slices.Contains(Laws[:], name) {
			im.tell(n, path, strconv.Quote(name)+" is not a law; dropped")
		}
	}
	for _, law := range Laws {
		if !slices.Contains(listed, law) {
			im.tell(n, path, law+" is not listed and holds all the same")
		}
	}
}

func (im *importer) explicit(n *node, path string) {
	if n.kind == kindNull {
		return
	}
	im.each(n, path, func(name string, v *node, at string) {
		rule := Rule{ID: "explicit." + name, Condition: Condition{Actions: []string{name}}, path: at}
		switch strings.ToLower(im.enum(v, at, "allow", "deny", "ask", "ALLOW", "DENY", "ASK")) {
		case "allow":
			rule.Effect = Allow
		case "deny":
			rule.Effect = Deny
		case "ask":
			rule.Effect, rule.Reason = Escalate, "the action always needs a human"
			im.doc.Escalations = append(im.doc.Escalations, rule)
			return
		}
		im.doc.Rules = append(im.doc.Rules, rule)
	})
}

func (im *importer) escalation(n *node, path string) {
	if n.kind == kindNull {
		return
	}
	one := func(action string, v *node, at string) {
		rule := Rule{ID: "escalation." + action, Effect: Escalate, path: at}
		if action != "" {
			rule.Condition.Actions = []string{action}
		}
		im.loose(v, at, map[string]func(*node, string){
			"action": func(n *node, at string) { rule.Condition.Actions = im.names(n, at) },
			"condition": func(n *node, at string) {
				switch im.enum(n, at, "tainted", "untrusted", "derived", "always") {
				case "tainted":
					rule.Condition.Tainted = true
				case "untrusted":
					rule.Condition.Trust = Untrusted
				case "derived":
					rule.Condition.Trust = Derived
				}
			},
			"decision": func(n *node, at string) {
				if im.enum(n, at, "ask", "deny", "ASK", "DENY"); strings.EqualFold(n.text, "deny") {
					rule.Effect = Deny
				}
			},
			"rule_id": func(n *node, at string) { rule.ID = im.ident(n, at) },
			"id":      func(n *node, at string) { rule.ID = im.ident(n, at) },
			"reason":  func(n *node, at string) { rule.Reason = im.text(n, at) },
		}, "condition")
		if rule.Reason == "" && rule.Effect == Escalate {
			rule.Reason = "escalation " + rule.ID
		}
		if rule.Effect == Deny {
			im.doc.Rules = append(im.doc.Rules, rule)
		} else {
			im.doc.Escalations = append(im.doc.Escalations, rule)
		}
	}
	if n.kind == kindList {
		im.items(n, path, func(v *node, at string) { one("", v, at) })
		return
	}
	im.each(n, path, one)
}

func (im *importer) taint(n *node, path string) {
	if n.kind == kindNull {
		return
	}
	im.items(n, path, func(v *node, at string) {
		var t TaintRule
		clean := false
		im.loose(v, at, map[string]func(*node, string){
			"source_taint": func(n *node, at string) { clean = im.enum(n, at, "tainted", "clean") == "clean" },
			"operation":    func(n *node, at string) { t.Operation = im.ident(n, at) },
			"result":       func(n *node, at string) { t.Clear = im.enum(n, at, "preserve", "clear") == "clear" },
		}, "operation", "result")
		if clean {
			im.tell(v, at, "a rule about clean data says nothing; dropped")
			return
		}
		im.doc.TaintRules = append(im.doc.TaintRules, t)
	})
}
