package manifest

import (
	"maps"
	"slices"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// canonical writes the document in the native layout as JCS. Lists whose order
// decides nothing are sorted; rules and escalations keep theirs.
func (d *Document) canonical() []byte {
	b := objectWriter{out: make([]byte, 0, 4096)}
	b.open()
	b.member("actions")
	b.open()
	for _, name := range sortedKeys(d.Actions) {
		a := d.Actions[name]
		b.member(name)
		b.open()
		b.member("requires")
		b.list(slices.Sorted(slices.Values(a.Requires)))
		if a.Schema != nil {
			b.member("schema")
			b.raw(a.Schema)
		}
		b.member("side_effect_class")
		b.text(a.class())
		b.close()
	}
	b.close()
	b.member("capabilities")
	b.list(slices.Sorted(slices.Values(d.Capabilities)))
	b.member("capability_matrix")
	b.open()
	for _, level := range slices.Sorted(maps.Keys(d.Matrix)) {
		b.member(level.String())
		b.list(slices.Sorted(slices.Values(d.Matrix[level])))
	}
	b.close()
	if d.Description != "" {
		b.member("description")
		b.text(d.Description)
	}
	b.member("escalations")
	b.rules(d.Escalations)
	b.member("format")
	b.text(Format)
	b.member("name")
	b.text(d.Name)
	if len(d.Provenance) > 0 {
		b.member("provenance")
		b.list(slices.Sorted(slices.Values(d.Provenance)))
	}
	b.member("rules")
	b.rules(d.Rules)
	b.member("taint_rules")
	taint := slices.Clone(d.TaintRules)
	slices.SortFunc(taint, func(x, y TaintRule) int {
		if x.Operation < y.Operation {
			return -1
		}
		return 1
	})
	b.openList()
	for _, t := range taint {
		b.element()
		b.open()
		b.member("operation")
		b.text(t.Operation)
		b.member("result")
		b.text(map[bool]string{true: "clear", false: "preserve"}[t.Clear])
		b.close()
	}
	b.closeList()
	b.member("trust_channels")
	b.open()
	for _, name := range sortedKeys(d.Channels) {
		b.member(name)
		b.text(d.Channels[name].String())
	}
	b.close()
	b.member("version")
	b.text(d.Version)
	b.close()
	// The members above are in the order of the code; JCS has an order of its own.
	out, err := strictjson.Canonicalize(b.out)
	if err != nil {
		panic("manifest: the canonical form cannot be read: " + err.Error()) // names are checked to be UTF-8 without repetition
	}
	return out
}

func (b *objectWriter) rules(list []Rule) {
	b.openList()
	for i := range list {
		r := &list[i]
		b.element()
		b.open()
		b.member("condition")
		b.open()
		c := &r.Condition
		for _, part := range []struct {
			name  string
			names []string
		}{{"action", c.Actions}, {"actor", c.Actors}, {"capability", c.Capabilities}, {"resource", c.Resources}} {
			if len(part.names) > 0 {
				b.member(part.name)
				b.list(slices.Sorted(slices.Values(part.names)))
			}
		}
		if c.Parameters != "" {
			b.member("parameters")
			b.text(c.Parameters)
		}
		if c.Tainted || c.Clean {
			b.member("taint")
			b.text(map[bool]string{true: "tainted", false: "clean"}[c.Tainted])
		}
		if c.Trust != NoTrust {
			b.member("trust")
			b.text(c.Trust.String())
		}
		b.close()
		if r.Effect != Escalate {
			b.member("effect")
			b.text(r.Effect.String())
		}
		b.member("id")
		b.text(r.ID)
		if r.Reason != "" || r.Effect == Escalate {
			b.member("reason")
			b.text(r.Reason)
		}
		b.close()
	}
	b.closeList()
}

// objectWriter writes JSON in the order in which it is told.
type objectWriter struct {
	out   []byte
	comma []bool
}

func (b *objectWriter) element() {
	if top := len(b.comma) - 1; b.comma[top] {
		b.out = append(b.out, ',')
	} else {
		b.comma[top] = true
	}
}

func (b *objectWriter) open() {
	b.out = append(b.out, '{')
	b.comma = append(b.comma, false)
}

func (b *objectWriter) close() {
	b.out = append(b.out, '}')
	b.comma = b.comma[:len(b.comma)-1]
}

func (b *objectWriter) openList() {
	b.out = append(b.out, '[')
	b.comma = append(b.comma, false)
}

func (b *objectWriter) closeList() {
	b.out = append(b.out, ']')
	b.comma = b.comma[:len(b.comma)-1]
}

func (b *objectWriter) member(name string) {
	b.element()
	b.out = append(appendText(b.out, name), ':')
}

func (b *objectWriter) text(s string) { b.out = appendText(b.out, s) }

func (b *objectWriter) raw(json []byte) { b.out = append(b.out, json...) }

func (b *objectWriter) list(items []string) {
	b.openList()
	for _, s := range items {
		b.element()
		b.text(s)
	}
	b.closeList()
}
