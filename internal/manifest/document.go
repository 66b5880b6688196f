package manifest

import (
	"maps"
	"slices"
)

// Format is the discriminator of a manifest file.
const Format = "worldmanifest/1"

// Built-in capability names: the laws are keyed on the first two; the third is the
// only one that a read without any data may use when untrusted data may not.
const (
	ExternalSideEffects = "external_side_effects"
	MemoryWrite         = "memory_write"
	Read                = "read"
)

// Trust is a trust level, ordered: a smaller one is trusted less.
type Trust uint8

// Trust levels. NoTrust is the zero value and never a level of a channel.
const (
	NoTrust Trust = iota
	Untrusted
	Derived
	Trusted
)

var trustNames = [...]string{"", "untrusted", "derived", "trusted"}

func (t Trust) String() string {
	if int(t) < len(trustNames) {
		return trustNames[t]
	}
	return "invalid"
}

// ParseTrust is the level of this name; false for any other word.
func ParseTrust(name string) (Trust, bool) {
	for i := int(Untrusted); i < len(trustNames); i++ {
		if trustNames[i] == name {
			return Trust(i), true
		}
	}
	return NoTrust, false
}

// Side effect classes of actions.
const (
	ClassRead           = "read"
	ClassMutateLocal    = "mutate-local"
	ClassMutateExternal = "mutate-external"
	ClassNetworkEgress  = "network-egress"
	ClassUnknown        = "unknown"
)

var classes = []string{ClassRead, ClassMutateLocal, ClassMutateExternal, ClassNetworkEgress, ClassUnknown}

// RecordFields are the names that `provenance` may list.
var RecordFields = []string{"id", "source", "trust_level", "transformations", "parent_ids", "sessions", "created_at"}

// The laws, in the order in which they are checked.
const (
	TaintContainmentLaw   = "TaintContainmentLaw"
	ProvenanceLaw         = "ProvenanceLaw"
	CapabilityBoundaryLaw = "CapabilityBoundaryLaw"
)

// Laws are the three laws in the order in which they are checked.
var Laws = [...]string{TaintContainmentLaw, ProvenanceLaw, CapabilityBoundaryLaw}

// Document is a manifest as written: the native layout, whatever it was read from.
// A Document is not changed after Load; Extend makes another one.
type Document struct {
	Name, Version, Description string

	Channels     map[string]Trust
	Capabilities []string
	Matrix       map[Trust][]string
	Actions      map[string]*Action
	Rules        []Rule
	Escalations  []Rule
	TaintRules   []TaintRule
	// Provenance are the fields that each record must carry.
	Provenance []string

	file  string
	lines map[string]int // path -> line of the source text
}

// Action is an entry of the Action Ontology.
type Action struct {
	Requires []string
	// Schema is the JSON Schema of the parameters in canonical JSON; nil takes any
	// object.
	Schema []byte
	// Class is the side effect class.
	Class string

	schemaNode *node
}

// Effect is what a rule does.
type Effect uint8

// Effects.
const (
	Deny Effect = iota + 1
	Allow
	Escalate
)

var effectNames = [...]string{"", "deny", "allow", "escalate"}

func (e Effect) String() string { return effectNames[e] }

// Rule is an explicit rule or an escalation.
type Rule struct {
	ID        string
	Effect    Effect
	Condition Condition
	Reason    string

	path string // where it was written; escalations of actions have one of their own
}

// Condition holds when everything that it states holds.
type Condition struct {
	// Actions are the actions it is about; none is all.
	Actions []string
	// Trust is directed. In a deny or an escalation: the context is trusted at most
	// so. In an allow: at least so. NoTrust states nothing.
	Trust Trust
	// Tainted states a tainted context (deny and escalation); Clean an untainted
	// one (allow).
	Tainted, Clean bool
	// Actors, Resources and Capabilities (of the WorkItem) each state that one of
	// them is meant; none states nothing.
	Actors, Resources, Capabilities []string
	// Parameters is a CEL predicate over `parameters`, `resource`, `operation` and
	// `actor`; "" states nothing.
	Parameters string
}

// TaintRule says what an operation does to taint.
type TaintRule struct {
	Operation string
	// Clear is false for preserve, the default of every operation.
	Clear bool
}

// clone copies what an extension adds to.
func (d *Document) clone() *Document {
	out := *d
	out.Channels = maps.Clone(d.Channels)
	out.Capabilities = slices.Clone(d.Capabilities)
	out.Matrix = maps.Clone(d.Matrix)
	out.Actions = maps.Clone(d.Actions)
	out.Rules = slices.Clone(d.Rules)
	out.Escalations = slices.Clone(d.Escalations)
	out.TaintRules = slices.Clone(d.TaintRules)
	out.Provenance = slices.Clone(d.Provenance)
	out.lines = maps.Clone(d.lines)
	return &out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
