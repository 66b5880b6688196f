package manifest

import (
	"time"

	"cel.dev/cel-go/cel"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Mode is how far a human is.
type Mode string

// Modes.
const (
	Workflow    Mode = "workflow"
	Interactive Mode = "interactive"
	Background  Mode = "background"
)

// Modes are the modes that exist.
var Modes = [...]Mode{Workflow, Interactive, Background}

// Known tells a mode from another word.
func (m Mode) Known() bool { return m == Workflow || m == Interactive || m == Background }

// Verdict is the outcome of a decision.
type Verdict string

// Verdicts.
const (
	ALLOW Verdict = "ALLOW"
	DENY  Verdict = "DENY"
	ASK   Verdict = "ASK"
)

// Rules that decide, beside the three laws (rule names of the decision record).
const (
	ShapeInvalid    = "ShapeInvalid"    // step 1
	ManifestInvalid = "ManifestInvalid" // step 1: there is no manifest
	SchemaInvalid   = "SchemaInvalid"   // step 4
	ExplicitDeny    = "ExplicitDeny"    // step 5
	Escalation      = "Escalation"      // step 6
	ExplicitAllow   = "ExplicitAllow"   // step 7
	Covered         = "Covered"         // step 7
	Uncovered       = "Uncovered"       // step 8
	OneShotApproval = "OneShotApproval" // an ASK that was answered
)

// Choices of an ASK.
const (
	ChoiceOneShot   = "one_shot"
	ChoiceExtension = "extension"
)

// Choices in the order in which they are offered.
var (
	choicesInteractive = []string{ChoiceOneShot, ChoiceExtension}
	choicesWorkflow    = []string{ChoiceExtension, ChoiceOneShot}
)

// Request is a Proposed Action with what is known about it. Everything comes from
// the server, but Action, Parameters and Chain.
type Request struct {
	Mode       Mode
	Action     string
	Parameters strictjson.Value // an object
	// Chain are the ids of the records that the action was made from.
	Chain   []string
	Records Records

	Actor, Session, WorkItem string
	// Capabilities are those of the WorkItem's contract.
	Capabilities        []string
	Operation, Resource string
	// Approval is an answer on file for an earlier ASK; nil as a rule.
	Approval *Approval
	// Now is compared with the expiry of the approval and with nothing else.
	Now time.Time
}

// Decision is what Decide says.
type Decision struct {
	Verdict Verdict
	// Rule is the law or one of the rule names above; RuleID the id of the manifest's
	// rule behind it, or Rule where there is none.
	Rule, RuleID string
	// Laws are all violated laws in the order of checking. Not to be changed.
	Laws []string
	// Reason is one sentence for people.
	Reason string
	// ManifestVersion is the content address of the manifest.
	ManifestVersion string
	// Digest is the parameters' digest under ArgsEquality; "" for parameters without
	// a canonical form.
	Digest  string
	Context Context
	// Choices are what an ASK offers, the first one first.
	Choices []string
	// Review reports a background denial that a human should see.
	Review bool
	// ApprovalID is the approval that this ALLOW uses up.
	ApprovalID string
}

// violated are the lists of laws by their bits.
var violated = func() (all [8][]string) {
	for bits := range all {
		for i, law := range Laws {
			if bits&(1<<i) != 0 {
				all[bits] = append(all[bits], law)
			}
		}
	}
	return all
}()

const (
	bitTaint = 1 << iota
	bitProvenance
	bitCapability
)

// Decide takes the decision of section 3: first hit decides. m may be nil: without
// a manifest everything is denied.
func (m *Manifest) Decide(r *Request) Decision {
	var d Decision
	m.decide(r, &d, nil)
	return d
}

// decide is Decide; note, when given, hears of every step.
func (m *Manifest) decide(r *Request, d *Decision, note func(step int, said string)) {
	say := func(step int, said string) {
		if note != nil {
			note(step, said)
		}
	}
	d.Verdict = DENY
	if m == nil {
		d.rule(ManifestInvalid, "there is no manifest, so nothing is allowed")
		say(1, d.Reason)
		return
	}
	d.ManifestVersion = m.version
	if !m.shape(r, d) {
		say(1, d.Reason)
		return
	}
	say(1, "the request has the right shape")
	m.context(&d.Context, r.Chain, r.Records)
	if note != nil {
		note(2, d.Context.String())
	}
	a := m.actions[r.Action]
	if m.laws(a, d) {
		say(3, d.Reason)
		return
	}
	say(3, "no law is violated")
	q := question{m: m, r: r, a: a, context: contextBit(d.Context.Trust, d.Context.Tainted)}
	if a != nil && (a.schema != nil || a.predicates) || a == nil && m.globalPredicates {
		q.values = plain(r.Parameters)
	}
	if a != nil && a.schema != nil {
		if err := a.schema.Validate(q.values); err != nil {
			d.rule(SchemaInvalid, "the parameters do not fit the action's schema: "+schemaReason(err))
			say(4, d.Reason)
			return
		}
		say(4, "the parameters fit the schema")
	} else {
		say(4, "there is no schema to fit")
	}
	m.rest(&q, d, say)
}

// rest is steps 5 to 8.
func (m *Manifest) rest(q *question, d *Decision, say func(int, string)) {
	if x := q.first(Deny); x != nil {
		d.rule(ExplicitDeny, x.reason)
		d.because(x, "an explicit rule denies it")
		say(5, d.Reason)
		return
	}
	say(5, "no deny rule holds")
	escalation := q.first(Escalate)
	declared := q.a != nil
	switch {
	case escalation != nil:
		d.rule(Escalation, escalation.reason)
		d.because(escalation, "an escalation condition holds")
		say(6, d.Reason)
	case declared:
		say(6, "no escalation holds")
		d.Verdict = ALLOW
		if x := q.first(Allow); x != nil {
			d.rule(ExplicitAllow, x.reason)
			d.because(x, "an explicit rule allows the declared action")
		} else {
			d.rule(Covered, "the action is declared and the trust context has every capability it requires")
		}
		say(7, d.Reason)
		return
	default:
		say(6, "no escalation holds")
		say(7, "the action is not declared")
		d.rule(Uncovered, "the manifest says nothing about the action")
		say(8, d.Reason)
	}
	q.ask(d, say)
}

// ask turns steps 6 and 8 into what the mode allows.
func (q *question) ask(d *Decision, say func(int, string)) {
	r := q.r
	if r.Approval != nil {
		ok, why := r.Approval.Covers(r, d.Digest, q.m.version)
		if ok {
			d.Verdict, d.ApprovalID = ALLOW, r.Approval.ID
			d.rule(OneShotApproval, "a human approved exactly this, once")
			say(8, d.Reason)
			return
		}
		say(8, "the approval on file does not count: "+why)
	}
	switch r.Mode {
	case Background:
		d.Verdict, d.Review = DENY, true
		say(8, "nobody is present, so it is denied and queued for review")
	case Workflow:
		d.Verdict, d.Choices = ASK, choicesWorkflow
	default:
		d.Verdict, d.Choices = ASK, choicesInteractive
	}
}

// shape is step 1.
func (m *Manifest) shape(r *Request, d *Decision) bool {
	switch {
	case !r.Mode.Known():
		d.rule(ShapeInvalid, "the mode is none of workflow, interactive, background")
	case r.Action == "" || len(r.Action) > maxName:
		d.rule(ShapeInvalid, "the action type is not a name")
	case r.Parameters.Kind() != strictjson.Object:
		d.rule(ShapeInvalid, "the parameters are not an object")
	case r.Records == nil && len(r.Chain) > 0:
		d.rule(ShapeInvalid, "there are no records to look the chain up in")
	default:
		digest, err := ParametersDigest(r.Parameters)
		if err != nil {
			d.rule(ShapeInvalid, "the parameters have no canonical form")
			return false
		}
		d.Digest = digest
		return true
	}
	return false
}

// laws is step 3. It reports whether one is violated.
func (m *Manifest) laws(a *action, d *Decision) bool {
	ctx := &d.Context
	bits := 0
	reason := ""
	switch {
	case a == nil && ctx.Tainted:
		bits |= bitTaint
		reason = "the action is not declared, so its effects are unknown, and tainted data drives it"
	case a != nil && a.external && ctx.Tainted:
		bits |= bitTaint
		reason = "tainted data must not cause external side effects"
	}
	if a != nil && a.memory && !ctx.Complete {
		bits |= bitProvenance
		if reason == "" {
			reason = "a memory write needs a complete provenance chain"
		}
	}
	if a != nil {
		row := int(ctx.levels)
		if row == 0 && a.class == ClassRead {
			row = rowRead
		}
		if missing := a.missing[row]; missing != "" {
			bits |= bitCapability
			if reason == "" {
				reason = "data that is " + ctx.Trust.String() + " has no capability " + missing
			}
		}
	}
	if bits == 0 {
		return false
	}
	d.Laws = violated[bits]
	d.rule(d.Laws[0], reason)
	return true
}

func (d *Decision) rule(name, reason string) { d.Rule, d.RuleID, d.Reason = name, name, reason }

func (d *Decision) because(x *rule, otherwise string) {
	d.RuleID = x.id
	if d.Reason == "" {
		d.Reason = otherwise
	}
}

// question is one request to the rule tables.
type question struct {
	m       *Manifest
	r       *Request
	a       *action
	context uint8
	values  any // the parameters, when a predicate or a schema may want them
	// answer replaces the evaluation of predicates where there are no parameters.
	answer func(*predicate) truth
}

// first is the first rule of an effect that holds, by the order in the manifest.
func (q *question) first(e Effect) *rule {
	var best *rule
	if q.a != nil {
		best = q.scan(&q.a.rules, e, nil)
	}
	return q.scan(&q.m.global, e, best)
}

func (q *question) scan(t *ruleTable, e Effect, best *rule) *rule {
	shapes := t.shapes[e]
	if shapes == 0 {
		return best
	}
	by := t.by[e]
	for shape := range 8 {
		if shapes&(1<<shape) == 0 {
			continue
		}
		var k key
		if shape&statesActor != 0 {
			if k.actor = q.r.Actor; k.actor == "" {
				continue
			}
		}
		if shape&statesResource != 0 {
			if k.resource = q.r.Resource; k.resource == "" {
				continue
			}
		}
		if shape&statesCapability == 0 {
			best = q.best(by[k], best)
			continue
		}
		for _, k.capability = range q.r.Capabilities {
			if k.capability != "" {
				best = q.best(by[k], best)
			}
		}
	}
	return best
}

func (q *question) best(list []*rule, best *rule) *rule {
	for _, x := range list {
		if best != nil && x.order >= best.order {
			break // a list is in the order of the manifest
		}
		if x.contexts&q.context != 0 && (x.predicate == nil || q.evaluate(x.predicate).holds(x.effect)) {
			best = x
			break
		}
	}
	return best
}

func (q *question) evaluate(p *predicate) truth {
	if q.answer != nil {
		return q.answer(p)
	}
	return p.eval(q)
}

// ResolveName and Parent make a question the variables of a predicate.
func (q *question) ResolveName(name string) (any, bool) {
	switch name {
	case "parameters":
		return q.values, true
	case "resource":
		return q.r.Resource, true
	case "operation":
		return q.r.Operation, true
	case "actor":
		return q.r.Actor, true
	}
	return nil, false
}

// Parent implements cel.Activation.
func (q *question) Parent() cel.Activation { return nil }

// String says the context in words.
func (c Context) String() string {
	s := "the data is " + c.Trust.String()
	if c.Tainted {
		s += " and tainted"
	} else {
		s += " and not tainted"
	}
	switch {
	case c.Overflow:
		s += "; its ancestry is too large to follow"
	case c.Missing != "":
		s += "; the chain is incomplete"
	case c.Cycle:
		s += "; a record is its own ancestor"
	case c.Records == 0:
		s += "; there is no provenance"
	case !c.Complete:
		s += "; a record lacks a required field"
	}
	return s
}
