package manifest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// maxName bounds names and ids in bytes; they appear in every decision record.
const maxName = 200

// Report is what reading a manifest has to tell beside the manifest.
type Report struct {
	// Layout is the format of the text: worldmanifest/1 or scenario.
	Layout string `json:"layout"`
	// NotCarried is what the importer could not carry over, or carried with another
	// meaning than its author may think.
	NotCarried []Fault `json:"notCarried"`
}

// Load reads a manifest in the native layout, or through the importer in the
// scenario layout. file is used in errors. The error is an *Invalid.
func Load(file string, source []byte) (*Document, *Report, error) {
	root, err := parseSource(file, source)
	if err != nil {
		return nil, nil, err
	}
	r := &reader{faults: faults{file: file, lines: map[string]int{}}}
	r.lines[""] = root.line
	if root.kind != kindMap {
		r.at(root.line, "", "must be a map, not %s", root.kind)
		return nil, nil, r.err()
	}
	doc := &Document{file: file, lines: r.lines}
	report := &Report{NotCarried: []Fault{}}
	if root.get("format") == nil && scenarioLike(root) {
		report.Layout = "scenario"
		im := importer{reader: r, doc: doc, report: report}
		im.document(root)
	} else {
		report.Layout = Format
		r.document(root, doc)
	}
	if err := r.err(); err != nil {
		return nil, nil, err
	}
	return doc, report, nil
}

// reader walks the tree and collects faults.
type reader struct{ faults }

func (r *reader) mark(path string, line int) { r.lines[path] = line }

// fields walks the members of a map and hands each to its reader; a key without
// one is a fault. Missing keys of required are faults.
func (r *reader) fields(n *node, path string, known map[string]func(*node, string), required ...string) bool {
	r.mark(path, n.line)
	if n.kind != kindMap {
		r.at(n.line, path, "must be a map, not %s", n.kind)
		return false
	}
	for i := range n.members {
		m := &n.members[i]
		at := join(path, m.name)
		r.mark(at, m.line)
		read, ok := known[m.name]
		if !ok {
			r.at(m.line, at, "is not a key that is known here; known are %s", strings.Join(sortedKeys(known), ", "))
			continue
		}
		read(m.value, at)
	}
	for _, name := range required {
		if n.get(name) == nil {
			r.at(n.line, join(path, name), "is missing")
		}
	}
	return true
}

// each walks a map of any names.
func (r *reader) each(n *node, path string, read func(name string, v *node, at string)) {
	r.mark(path, n.line)
	if n.kind != kindMap {
		r.at(n.line, path, "must be a map, not %s", n.kind)
		return
	}
	for i := range n.members {
		m := &n.members[i]
		at := join(path, m.name)
		r.mark(at, m.line)
		if r.name(m.name, m.line, at) {
			read(m.name, m.value, at)
		}
	}
}

func (r *reader) items(n *node, path string, read func(v *node, at string)) {
	r.mark(path, n.line)
	if n.kind != kindList {
		r.at(n.line, path, "must be a list, not %s", n.kind)
		return
	}
	for i, item := range n.items {
		at := path + "[" + strconv.Itoa(i) + "]"
		r.mark(at, item.line)
		read(item, at)
	}
}

func (r *reader) text(n *node, path string) string {
	r.mark(path, n.line)
	if n.kind != kindString {
		if n.kind == kindNumber || n.kind == kindBool {
			r.at(n.line, path, "must be a text: put it in quotes")
		} else {
			r.at(n.line, path, "must be a text, not %s", n.kind)
		}
		return ""
	}
	return n.text
}

// ident is a text that names something.
func (r *reader) ident(n *node, path string) string {
	s := r.text(n, path)
	if n.kind == kindString && !r.name(s, n.line, path) {
		return ""
	}
	return s
}

func (r *reader) name(s string, line int, path string) bool {
	switch {
	case s == "":
		r.at(line, path, "must not be empty")
	case len(s) > maxName:
		r.at(line, path, "is longer than %d bytes", maxName)
	case strings.TrimSpace(s) != s || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f }):
		r.at(line, path, "must be a name without control characters and without white space around it")
	default:
		return true
	}
	return false
}

// names is a list of names, or one name, without repetition.
func (r *reader) names(n *node, path string) []string {
	if n.kind == kindString {
		if s := r.ident(n, path); s != "" {
			return []string{s}
		}
		return nil
	}
	out := []string{}
	r.items(n, path, func(v *node, at string) {
		s := r.ident(v, at)
		if s == "" {
			return
		}
		if slices.Contains(out, s) {
			r.at(v.line, at, "repeats %s", strconv.Quote(s))
			return
		}
		out = append(out, s)
	})
	return out
}

func (r *reader) enum(n *node, path string, words ...string) string {
	s := r.text(n, path)
	if n.kind == kindString && !slices.Contains(words, s) {
		r.at(n.line, path, "must be one of %s", strings.Join(words, ", "))
		return ""
	}
	return s
}

func (r *reader) trust(n *node, path string) Trust {
	t, _ := ParseTrust(r.enum(n, path, Trusted.String(), Untrusted.String(), Derived.String()))
	return t
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// document reads the native layout.
func (r *reader) document(root *node, d *Document) {
	r.fields(root, "", map[string]func(*node, string){
		"format": func(n *node, at string) {
			if s := r.text(n, at); n.kind == kindString && s != Format {
				r.at(n.line, at, "must be %s", Format)
			}
		},
		"name":        func(n *node, at string) { d.Name = r.ident(n, at) },
		"version":     func(n *node, at string) { d.Version = r.ident(n, at) },
		"description": func(n *node, at string) { d.Description = r.text(n, at) },
		"invariants":  r.invariants,
		"provenance": func(n *node, at string) {
			d.Provenance = r.names(n, at)
		},
		"trust_channels":    func(n *node, at string) { d.Channels = r.channels(n, at) },
		"capabilities":      func(n *node, at string) { d.Capabilities = r.names(n, at) },
		"capability_matrix": func(n *node, at string) { d.Matrix = r.matrix(n, at) },
		"actions": func(n *node, at string) {
			d.Actions = map[string]*Action{}
			r.each(n, at, func(name string, v *node, at string) { r.action(d, name, v, at) })
		},
		"rules":       func(n *node, at string) { d.Rules = r.rules(n, at) },
		"escalations": func(n *node, at string) { d.Escalations = append(r.escalations(n, at), d.Escalations...) },
		"taint_rules": func(n *node, at string) { d.TaintRules = r.taintRules(n, at) },
	}, "format", "name", "version", "trust_channels", "capabilities", "capability_matrix", "actions")
}

func (r *reader) invariants(n *node, at string) {
	listed := r.names(n, at)
	for _, name := range listed {
		if !slices.Contains(Laws[:], name) {
			r.add(at, "%s is not a law; the laws are %s", strconv.Quote(name), strings.Join(Laws[:], ", "))
		}
	}
	for _, law := range Laws {
		if !slices.Contains(listed, law) {
			r.add(at, "the laws are not configurable: %s holds whether it is listed or not, so list all three or none", law)
			return
		}
	}
}

func (r *reader) channels(n *node, at string) map[string]Trust {
	out := map[string]Trust{}
	r.each(n, at, func(name string, v *node, at string) { out[name] = r.trust(v, at) })
	return out
}

func (r *reader) matrix(n *node, at string) map[Trust][]string {
	out := map[Trust][]string{}
	r.each(n, at, func(name string, v *node, at string) {
		level, ok := ParseTrust(name)
		if !ok {
			r.add(at, "is not a trust level: trusted, untrusted, derived")
			return
		}
		out[level] = r.names(v, at)
	})
	return out
}

func (r *reader) action(d *Document, name string, n *node, at string) {
	a := &Action{}
	d.Actions[name] = a
	r.fields(n, at, map[string]func(*node, string){
		"requires": func(n *node, at string) { a.Requires = r.names(n, at) },
		"schema": func(n *node, at string) {
			if n.kind != kindMap {
				r.add(at, "must be a JSON Schema, a map")
				return
			}
			a.schemaNode = n
			r.markAll(n, at)
		},
		"side_effect_class": func(n *node, at string) { a.Class = r.enum(n, at, classes...) },
		"escalate": func(n *node, at string) {
			rule := Rule{ID: name + ".escalate", Effect: Escalate, path: at}
			rule.Condition.Actions = []string{name}
			switch r.enum(n, at, "always", "tainted", "untrusted", "derived") {
			case "tainted":
				rule.Condition.Tainted = true
				rule.Reason = "tainted data drives the action"
			case "untrusted":
				rule.Condition.Trust = Untrusted
				rule.Reason = "untrusted data drives the action"
			case "derived":
				rule.Condition.Trust = Derived
				rule.Reason = "data from memory drives the action"
			default:
				rule.Reason = "the action always needs a human"
			}
			d.Escalations = append(d.Escalations, rule)
		},
	}, "requires")
}

// markAll remembers the lines below a node for faults found later.
func (r *reader) markAll(n *node, path string) {
	r.mark(path, n.line)
	for i, item := range n.items {
		r.markAll(item, path+"["+strconv.Itoa(i)+"]")
	}
	for i := range n.members {
		r.markAll(n.members[i].value, join(path, n.members[i].name))
	}
}

func (r *reader) rules(n *node, path string) []Rule {
	var out []Rule
	r.items(n, path, func(v *node, at string) {
		rule := Rule{path: at}
		r.fields(v, at, map[string]func(*node, string){
			"id": func(n *node, at string) { rule.ID = r.ident(n, at) },
			"effect": func(n *node, at string) {
				switch r.enum(n, at, Allow.String(), Deny.String()) {
				case "allow":
					rule.Effect = Allow
				case "deny":
					rule.Effect = Deny
				}
			},
			"reason":    func(n *node, at string) { rule.Reason = r.text(n, at) },
			"condition": func(*node, string) {},
		}, "id", "effect")
		if c := v.get("condition"); c != nil {
			rule.Condition = r.condition(c, at+".condition", rule.Effect)
		}
		out = append(out, rule)
	})
	return out
}

func (r *reader) escalations(n *node, path string) []Rule {
	var out []Rule
	r.items(n, path, func(v *node, at string) {
		rule := Rule{path: at, Effect: Escalate}
		r.fields(v, at, map[string]func(*node, string){
			"id":        func(n *node, at string) { rule.ID = r.ident(n, at) },
			"reason":    func(n *node, at string) { rule.Reason = r.text(n, at) },
			"condition": func(n *node, at string) { rule.Condition = r.condition(n, at, Escalate) },
		}, "id", "condition", "reason")
		out = append(out, rule)
	})
	return out
}

func (r *reader) condition(n *node, path string, effect Effect) Condition {
	var c Condition
	some := func(dst *[]string) func(*node, string) {
		return func(n *node, at string) {
			if *dst = r.names(n, at); len(*dst) == 0 {
				r.add(at, "must name at least one")
			}
		}
	}
	r.fields(n, path, map[string]func(*node, string){
		"action":     some(&c.Actions),
		"actor":      some(&c.Actors),
		"resource":   some(&c.Resources),
		"capability": some(&c.Capabilities),
		"trust":      func(n *node, at string) { c.Trust = r.trust(n, at) },
		"taint": func(n *node, at string) {
			switch r.enum(n, at, "tainted", "clean") {
			case "tainted":
				if c.Tainted = true; effect == Allow {
					r.add(at, "an allow for tainted data only would be an answer that gets better as the data gets worse")
				}
			case "clean":
				if c.Clean = true; effect != Allow {
					r.add(at, "a %s for clean data only would end when the data becomes tainted; leave taint out", effect)
				}
			}
		},
		"parameters": func(n *node, at string) {
			if c.Parameters = r.text(n, at); n.kind == kindString && strings.TrimSpace(c.Parameters) == "" {
				r.add(at, "must not be empty")
			}
		},
	})
	return c
}

func (r *reader) taintRules(n *node, path string) []TaintRule {
	var out []TaintRule
	r.items(n, path, func(v *node, at string) {
		var t TaintRule
		r.fields(v, at, map[string]func(*node, string){
			"operation": func(n *node, at string) { t.Operation = r.ident(n, at) },
			"result":    func(n *node, at string) { t.Clear = r.enum(n, at, "preserve", "clear") == "clear" },
		}, "operation", "result")
		out = append(out, t)
	})
	return out
}

// canonicalJSON is a node's value in canonical form.
func canonicalJSON(n *node) ([]byte, error) {
	out, err := strictjson.Canonicalize(n.appendJSON(nil))
	if err != nil {
		return nil, fmt.Errorf("has no canonical form: %w", err)
	}
	return out, nil
}
