package manifest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

const worldText = `format: worldmanifest/1
name: assistant
version: "1"
trust_channels:
  user: trusted
  email: untrusted
  memory: derived
capabilities: [read, memory_write, external_side_effects]
capability_matrix:
  trusted: [read, memory_write, external_side_effects]
  untrusted: [read, memory_write]
actions:
  read_email:
    requires: [read]
  write_memory:
    requires: [memory_write]
  send_email:
    requires: [external_side_effects]
    schema:
      type: object
      properties:
        to: {type: string}
      required: [to]
rules:
  - id: no-strangers
    effect: deny
    condition:
      action: send_email
      parameters: '!parameters.to.endsWith("@example.org")'
escalations:
  - id: ask-memory
    condition: {action: write_memory, taint: tainted}
    reason: tainted data would stay
taint_rules:
  - {operation: count_words, result: clear}
`

func parseWorld(t testing.TB, edit ...string) (*Manifest, error) {
	t.Helper()
	m, _, err := Parse("world.yaml", []byte(strings.NewReplacer(edit...).Replace(worldText)))
	return m, err
}

func TestAManifestIsRefusedWithPathAndLine(t *testing.T) {
	for name, c := range map[string]struct {
		edit []string
		want string
	}{
		"no format":                        {[]string{"format: worldmanifest/1\n", ""}, "world.yaml:1: format: is missing"},
		"another format":                   {[]string{"worldmanifest/1", "worldmanifest/2"}, "world.yaml:1: format: must be worldmanifest/1"},
		"an unknown key":                   {[]string{"taint_rules:", "taint_rule:"}, "world.yaml:34: taint_rule: is not a key"},
		"an unknown key inside":            {[]string{"effect: deny", "effects: deny"}, "world.yaml:26: rules[0].effects: is not a key"},
		"an unknown trust level":           {[]string{"email: untrusted", "email: mostly"}, "world.yaml:6: trust_channels.email: must be one of"},
		"an unknown capability":            {[]string{"requires: [read]", "requires: [reed]"}, `world.yaml:14: actions.read_email.requires[0]: the capability "reed"`},
		"an unknown capability in a row":   {[]string{"untrusted: [read, memory_write]", "untrusted: [fly]"}, `world.yaml:11: capability_matrix.untrusted[0]: the capability "fly"`},
		"a rule about nothing":             {[]string{"action: send_email", "action: launch"}, `world.yaml:28: rules[0].condition.action: the action "launch"`},
		"an escalation about nothing":      {[]string{"action: write_memory", "action: launch"}, `world.yaml:32: escalations[0].condition.action: the action "launch"`},
		"two actions of one name":          {[]string{"  write_memory:", "  read_email:"}, `world.yaml:15: mapping key "read_email" already defined`},
		"two rules of one id":              {[]string{"id: ask-memory", "id: no-strangers"}, `world.yaml:31: escalations[0].id: "no-strangers"`},
		"a number where a text belongs":    {[]string{`version: "1"`, "version: 1"}, "world.yaml:3: version: must be a text: put it in quotes"},
		"a predicate that is no CEL":       {[]string{`!parameters.to.endsWith("@example.org")`, "parameters.to ="}, "world.yaml:29: rules[0].condition.parameters: "},
		"a predicate that asks for trust":  {[]string{`!parameters.to.endsWith("@example.org")`, "trust == 1"}, "undeclared reference to 'trust'"},
		"a predicate that is no condition": {[]string{`!parameters.to.endsWith("@example.org")`, "1 + 1"}, "is a int"},
		"a schema with a typing error":     {[]string{"required: [to]", "requierd: [to]"}, "world.yaml:23: actions.send_email.schema.requierd: is not a keyword"},
		"a schema that is none":            {[]string{"type: object", "type: thing"}, "actions.send_email.schema: is not a JSON Schema"},
		"a schema that is only itself":     {[]string{"to: {type: string}", "to: {$ref: '#/properties/to'}"}, "world.yaml:22: actions.send_email.schema.properties.to: refers to itself"},
		"a schema around itself":           {[]string{"to: {type: string}", "to: {anyOf: [{type: string}, {not: {$ref: '#/properties/to'}}]}"}, "actions.send_email.schema.properties.to: refers to itself"},
		"a reference out of the schema":    {[]string{"to: {type: string}", `to: {$ref: "file:///etc/passwd"}`}, "may only refer to its own schema"},
		"a deny for clean data":            {[]string{"action: send_email\n", "action: send_email\n      taint: clean\n"}, "would end when the data becomes tainted"},
		"an escalation that a law forbids": {[]string{"{action: write_memory, taint: tainted}", "{action: send_email, taint: tainted}"}, "escalations[0]: can never decide anything: TaintContainmentLaw"},
		"a law that is left out":           {[]string{"taint_rules:", "invariants: [ProvenanceLaw]\ntaint_rules:"}, "world.yaml:34: invariants: the laws are not configurable"},
		"effects outside without the name": {[]string{"requires: [read]", "requires: [read]\n    side_effect_class: network-egress"}, "needs the capability external_side_effects"},
		"an outside read":                  {[]string{"    schema:", "    side_effect_class: read\n    schema:"}, "is not a read"},
		"an unknown record field":          {[]string{"taint_rules:", "provenance: [colour]\ntaint_rules:"}, `provenance[0]: "colour"`},
		"a merge":                          {[]string{"  read_email:", "  <<: {}\n  read_email:"}, "is not a name"},
		"a tag":                            {[]string{"name: assistant", "name: !!str assistant"}, "has a YAML tag"},
		"two documents":                    {[]string{"\nrules:\n", "\n---\nrules:\n"}, "must hold one YAML document"},
		"an alias inside of itself":        {[]string{"requires: [read]", "requires: &a [*a]"}, `has the alias "a" inside of itself`},
		"a rule after one that covers it": {[]string{
			"escalations:", "  - {id: again, effect: deny, condition: {action: send_email, trust: untrusted, parameters: '!parameters.to.endsWith(\"@example.org\")'}}\nescalations:",
		}, "world.yaml:30: rules[1]: can never decide anything: an earlier rule"},
		"an allow behind a deny": {[]string{
			"escalations:", "  - {id: x, effect: deny, condition: {action: read_email}}\n  - {id: y, effect: allow, condition: {action: read_email}}\nescalations:",
		}, "rules[2]: can never decide anything: deny rules"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseWorld(t, c.edit...)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
		})
	}
	if _, err := parseWorld(t); err != nil {
		t.Fatal(err)
	}
}

func TestHostileTextsAreRefusedQuickly(t *testing.T) {
	var laughs strings.Builder
	laughs.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&laughs, "a%d: &a%d [", i, i)
		for range 10 {
			fmt.Fprintf(&laughs, "*a%d, ", i-1)
		}
		laughs.WriteString("]\n")
	}
	for name, text := range map[string]string{
		"a bomb of aliases":     laughs.String(),
		"a megabyte of aliases": "a: &a x\nb: [" + strings.Repeat("*a, ", 1<<18) + "]\n",
		"a deep list":           "a: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "\n",
		"a deep map":            strings.Repeat("{a: ", 2000) + strings.Repeat("}", 2000),
		"deep JSON":             `{"a":` + strings.Repeat("[", 100_000),
		"too much":              strings.Repeat("# \n", MaxSourceBytes),
		"a line of dashes":      strings.Repeat("- ", 1<<16),
		"a line of colons":      strings.Repeat("a: ", 1<<16),
		"lines of questions":    strings.Repeat("? x\n", 1<<16),
		"a map of many":         "a:\n" + strings.Repeat("  k: x\n", 1<<15),
		"a flow of many":        "a: [" + strings.Repeat("x,\n ", 1<<16) + "]\n",
		"anchors":               strings.Repeat("- &a x\n", 1<<16),
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			_, _, err := Parse("hostile", []byte(text))
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("loaded: %v", err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
			t.Log(time.Since(began), strings.Split(err.Error(), "\n")[0])
		})
	}
}

func TestYAMLAndJSONAreOneManifest(t *testing.T) {
	m, err := parseWorld(t)
	if err != nil {
		t.Fatal(err)
	}
	again, report, err := Parse("world.json", m.Canonical())
	if err != nil || again.Version() != m.Version() || report.Layout != Format {
		t.Fatalf("%v %v", err, report)
	}
	comment, err := parseWorld(t, "\nrules:\n", "\n# a comment\nrules:\n", "[read, memory_write]", "[memory_write, read]")
	if err != nil || comment.Version() != m.Version() {
		t.Errorf("what says nothing changed the version: %v", err)
	}
	other, err := parseWorld(t, "tainted data would stay", "another reason")
	if err != nil || other.Version() == m.Version() {
		t.Errorf("another reason must be another version: %v", err)
	}
}

func TestPredicatesAreBoundedPerAction(t *testing.T) {
	rules := &strings.Builder{}
	for i := range maxPredicates + 1 {
		fmt.Fprintf(rules, "  - {id: r%d, effect: deny, condition: {action: send_email, parameters: 'parameters.n == %d'}}\n", i, i)
	}
	_, err := parseWorld(t, "escalations:", rules.String()+"escalations:")
	if err == nil || !strings.Contains(err.Error(), "one predicate too many") {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(worldText))
	f.Add([]byte(`{"format":"worldmanifest/1"}`))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("trust_channels: {a: trusted}\ncapabilities: {trusted: [read]}\nactions: {x: {requires: [read]}}\nexplicit_rules: {x: deny}\nname: n\n"))
	f.Fuzz(func(t *testing.T, source []byte) {
		if len(source) > 1<<14 {
			return
		}
		began := time.Now()
		m, _, err := Parse("fuzz", source)
		if took := time.Since(began); took > 3*time.Second {
			t.Fatalf("took %s", took)
		}
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("another kind of error: %v", err)
			}
			return
		}
		d, _, err := Load("canonical", m.Canonical())
		if err != nil {
			t.Fatalf("the canonical form does not load: %v\n%s", err, m.Canonical())
		}
		again, err := compile(d, false)
		if err != nil || again.Version() != m.Version() {
			t.Fatalf("the canonical form is another manifest: %v\n%s\n%s", err, m.Canonical(), again.Canonical())
		}
	})
}
