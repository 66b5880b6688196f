package casefile

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// expected is what a case wants; absent members are not compared.
type expected struct {
	decision, rule string
	taint          string
	allowed        *bool
	event          strictjson.Value
}

// judge plays the case and compares.
func (p *play) judge(out *Outcome) error {
	var want expected
	err := p.object("expected", p.c.Expected, map[string]func(strictjson.Value) error{
		"decision": into(&want.decision),
		"rule":     into(&want.rule),
		"taint":    into(&want.taint),
		"allowed": func(v strictjson.Value) error {
			want.allowed = new(bool)
			return strictjson.Decode(v, want.allowed)
		},
		"event": func(v strictjson.Value) error { want.event = v; return nil },
		// What a decision is shown with is no part of the comparison.
		"reason": nil, "note": nil,
	})
	if err != nil {
		return err
	}
	switch {
	case want.decision != "":
		return p.decision(&want, out)
	case want.event.Exists():
		return p.event(want.event, out)
	case want.taint != "":
		return p.taint(&want, out)
	case want.allowed != nil:
		return p.approvals(&want, out)
	}
	return errors.New("expects nothing that is understood")
}

// situation is the context of a decision and what the setup does first.
type situation struct {
	request   manifest.Request
	approvals []approval
	repeat    int64
	extend    []strictjson.Value
}

// approval is an answer on file as a case states it.
type approval struct {
	ActionType string         `json:"action_type"`
	Parameters strictjson.Raw `json:"parameters"`
	Kind       string         `json:"kind"`
	Consumed   bool           `json:"consumed"`
	Expired    bool           `json:"expired"`
	Session    *string        `json:"session_id"`
	Decision   string         `json:"decision"`
	Status     string         `json:"status"`
	Version    *string        `json:"manifest_version"`
	Actor      *string        `json:"actor"`
	WorkItem   *string        `json:"work_item"`
}

func (p *play) decision(want *expected, out *Outcome) error {
	out.Expected = said(want.decision, want.rule)
	s, err := p.situation()
	if err != nil {
		return err
	}
	if p.loadErr != nil {
		out.Got, out.Reason = p.unloaded(s), firstLine(p.loadErr.Error())
		out.Passed = out.Got == out.Expected || want.rule == "" && want.decision == string(manifest.DENY)
		return nil
	}
	if err := p.extend(s.extend); err != nil {
		return err
	}
	d, err := p.decideRepeatedly(s)
	if err != nil {
		return err
	}
	out.Got, out.Reason = said(string(d.Verdict), d.Rule), d.Reason
	out.Passed = want.decision == string(d.Verdict) && (want.rule == "" || ruleMatches(want.rule, d.Rule, d.RuleID))
	return nil
}

// unloaded is the decision without a manifest: nothing is allowed. Where the
// manifest was refused because a rule is about the proposed action, which it does
// not declare, that is the rule.
func (p *play) unloaded(s *situation) string {
	var none *manifest.Manifest
	d := none.Decide(&s.request)
	var invalid *manifest.Invalid
	if errors.As(p.loadErr, &invalid) && invalid.Undeclared(s.request.Action) {
		return said(string(d.Verdict), "OntologyAbsent")
	}
	return said(string(d.Verdict), d.Rule)
}

func (p *play) situation() (*situation, error) {
	s := &situation{repeat: 1}
	s.request.Now = start
	var records []record
	err := p.object("context", p.c.Context, map[string]func(strictjson.Value) error{
		"mode":      func(v strictjson.Value) error { s.request.Mode = manifest.Mode(v.Str()); return nil },
		"approvals": into(&s.approvals),
		"session":   into(&s.request.Session), "session_id": into(&s.request.Session),
		"actor": into(&s.request.Actor), "work_item": into(&s.request.WorkItem),
		"resource": into(&s.request.Resource), "capabilities": into(&s.request.Capabilities),
		"store": into(&records), "records": into(&records),
	})
	if err != nil {
		return nil, err
	}
	if err := p.object("setup", p.c.Setup, map[string]func(strictjson.Value) error{
		"repeat": into(&s.repeat),
		"extend": func(v strictjson.Value) error {
			for _, item := range v.Items() {
				s.extend = append(s.extend, item)
			}
			return nil
		},
	}); err != nil {
		return nil, err
	}
	var chain []record
	if err := p.object("action", p.c.Action, map[string]func(strictjson.Value) error{
		"action_type": func(v strictjson.Value) error { s.request.Action = v.Str(); return nil },
		"parameters":  func(v strictjson.Value) error { s.request.Parameters = v; return nil },
		"provenance_chain": func(v strictjson.Value) error {
			return strictjson.Decode(v, &chain)
		},
		"resource": into(&s.request.Resource), "actor": into(&s.request.Actor), "operation": into(&s.request.Operation),
		"agent_reasoning": nil, "action_id": nil, // what an Agent says about itself decides nothing
	}); err != nil {
		return nil, err
	}
	if !s.request.Parameters.Exists() {
		if s.request.Parameters, err = strictjson.Raw(`{}`).Value(); err != nil {
			return nil, err
		}
	}
	s.request.Chain, s.request.Records = store(chain, records)
	return s, nil
}

// decideRepeatedly decides repeat times and wants one answer.
func (p *play) decideRepeatedly(s *situation) (manifest.Decision, error) {
	if err := p.offer(s); err != nil {
		return manifest.Decision{}, err
	}
	d := p.m.Decide(&s.request)
	for range min(max(s.repeat, 1), 10_000) - 1 {
		if again := p.m.Decide(&s.request); again.Verdict != d.Verdict || again.RuleID != d.RuleID || again.Reason != d.Reason {
			return d, errors.New("repeated, it gives another answer")
		}
	}
	return d, nil
}

// offer puts the first approval on file that covers the request beside it.
func (p *play) offer(s *situation) error {
	digest, err := manifest.ParametersDigest(s.request.Parameters)
	if err != nil {
		return nil //nolint:nilerr // the decision will say so
	}
	or := func(stated *string, otherwise string) string {
		if stated != nil {
			return *stated
		}
		return otherwise
	}
	for i := range s.approvals {
		a := &s.approvals[i]
		if a.Kind != "" && a.Kind != "one_shot" {
			p.note("approvals[%d].kind %s is not understood", i, a.Kind)
			continue
		}
		if !granted(a.Decision) || !granted(a.Status) {
			continue
		}
		parameters := a.Parameters
		if len(parameters) == 0 {
			parameters = strictjson.Raw(`{}`)
		}
		v, err := parameters.Value()
		if err != nil {
			return fmt.Errorf("approvals[%d].parameters: %w", i, err)
		}
		given, err := manifest.ParametersDigest(v)
		if err != nil {
			return fmt.Errorf("approvals[%d].parameters: %w", i, err)
		}
		expires := start.Add(time.Hour)
		if a.Expired {
			expires = start
		}
		x := &manifest.Approval{
			ID: "approval-" + strconv.Itoa(i), ActionType: a.ActionType, ParametersDigest: given, ArgsEquality: manifest.ArgsEquality,
			ManifestVersion: or(a.Version, p.m.Version()), Session: or(a.Session, s.request.Session),
			WorkItem: or(a.WorkItem, s.request.WorkItem), Actor: or(a.Actor, s.request.Actor),
			ExpiresAt: expires, Consumed: a.Consumed,
		}
		s.request.Approval = x
		if ok, _ := x.Covers(&s.request, digest, p.m.Version()); ok {
			return nil
		}
	}
	return nil
}

func granted(word string) bool {
	return slices.Contains([]string{"", "allowed", "allow", "approved", "granted"}, word)
}

// extend applies extensions in order. One that is refused changes nothing, which
// is what it was refused for.
func (p *play) extend(list []strictjson.Value) error {
	for i, item := range list {
		var change []byte
		if item.Kind() == strictjson.Object {
			change = item.Raw()
		} else {
			var parts []strictjson.Value
			for _, part := range item.Items() {
				parts = append(parts, part)
			}
			if len(parts) != 2 || parts[0].Kind() != strictjson.String {
				return fmt.Errorf("setup.extend[%d]: is not an action with its capabilities", i)
			}
			name, err := strictjson.AppendString(nil, parts[0].Str())
			if err != nil {
				return fmt.Errorf("setup.extend[%d]: %w", i, err)
			}
			change = fmt.Appendf(nil, `{"actions":{%s:{"requires":%s}}}`, name, parts[1].Raw())
		}
		before := p.m.Version()
		extended, err := p.m.Extend("setup.extend["+strconv.Itoa(i)+"]", change)
		switch {
		case errors.Is(err, manifest.ErrInvalid):
			p.note("the extension is refused: %s", firstLine(err.Error()))
		case err != nil:
			return err
		case p.m.Version() != before || extended.Version() == before:
			return errors.New("an extension must make another version and leave the old one")
		default:
			p.m = extended
		}
	}
	return nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// record is a provenance record as cases write it.
type record struct {
	ID              string   `json:"id"`
	RecordID        string   `json:"record_id"`
	Source          string   `json:"source"`
	TrustLevel      string   `json:"trust_level"`
	SessionID       string   `json:"session_id"`
	Tainted         bool     `json:"tainted"`
	Transformations []string `json:"transformations"`
	ParentIDs       []string `json:"parent_ids"`
	Key             string   `json:"key"`
}

func (r *record) id(i int) string {
	switch {
	case r.ID != "":
		return r.ID
	case r.RecordID != "":
		return r.RecordID
	}
	return "record-" + strconv.Itoa(i)
}

// store makes stored records of a chain. A parent is named by its id, or as what
// it wrote: session/key is the record of that session that ends in a memory write
// (any record of the session where none does).
func store(chain, more []record) ([]string, manifest.Records) {
	all := append(slices.Clone(chain), more...)
	out := manifest.RecordMap{}
	ids := make([]string, 0, len(chain))
	for i := range all {
		r := &all[i]
		stored := &manifest.Record{
			ID: r.id(i), Source: r.Source, Trust: r.TrustLevel, Tainted: r.Tainted,
			Transformations: append([]string{}, r.Transformations...), Parents: []string{}, Sessions: []string{r.SessionID},
			CreatedAt: start.Format(time.RFC3339),
		}
		for _, parent := range r.ParentIDs {
			stored.Parents = append(stored.Parents, parents(all, i, parent)...)
		}
		out[stored.ID] = stored
		if i < len(chain) {
			ids = append(ids, stored.ID)
		}
	}
	return ids, out
}

func parents(all []record, child int, named string) []string {
	for i := range all {
		if all[i].id(i) == named {
			return []string{named}
		}
	}
	session, key, isKey := strings.Cut(named, "/")
	var wrote, other []string
	for i := range all {
		r := &all[i]
		switch {
		case !isKey || i == child || r.SessionID != session || r.Key != "" && r.Key != key:
		case slices.Contains(r.Transformations, "write_memory"):
			wrote = append(wrote, r.id(i))
		default:
			other = append(other, r.id(i))
		}
	}
	switch {
	case len(wrote) > 0:
		return wrote
	case len(other) > 0:
		return other
	}
	return []string{named} // missing
}

// taint is a join of inputs, with what an operation does to it where a manifest
// says so.
func (p *play) taint(want *expected, out *Outcome) error {
	out.Expected = want.taint
	var inputs, operations []string
	err := p.object("context", p.c.Context, map[string]func(strictjson.Value) error{
		"inputs":          into(&inputs),
		"operation":       func(v strictjson.Value) error { operations = append(operations, v.Str()); return nil },
		"operations":      into(&operations),
		"transformations": into(&operations),
	})
	if err != nil {
		return err
	}
	if p.loadErr != nil {
		return p.loadErr
	}
	tainted := make([]bool, len(inputs))
	for i, word := range inputs {
		if word != "clean" && word != "tainted" {
			return fmt.Errorf("context.inputs[%d] is neither clean nor tainted", i)
		}
		tainted[i] = word == "tainted"
	}
	result := manifest.Join(tainted...)
	for _, op := range operations {
		result = result && (p.m == nil || !p.m.Clears(op))
	}
	out.Got = map[bool]string{true: "tainted", false: "clean"}[result]
	out.Passed = out.Got == want.taint
	return nil
}

// event compares what an Agent would see of an input.
func (p *play) event(want strictjson.Value, out *Outcome) error {
	var source, payload string
	err := p.object("context", p.c.Context, map[string]func(strictjson.Value) error{
		"event": func(v strictjson.Value) error {
			return p.members("context.event", v, map[string]func(strictjson.Value) error{
				"source": into(&source), "raw_payload": into(&payload), "payload": into(&payload), "session_id": nil, "event_id": nil,
			})
		},
		"mode": nil,
	})
	if err != nil {
		return err
	}
	got := map[string]string{}
	if p.loadErr != nil {
		got["error"] = manifest.ManifestInvalid
	} else {
		e := p.m.Virtualize(source, payload)
		got["source"], got["trust_level"], got["sanitized_payload"] = e.Source, e.Trust.String(), e.Payload
		got["tainted"] = strconv.FormatBool(e.Tainted)
		got["had_hidden_content"] = strconv.FormatBool(e.Hidden)
	}
	out.Passed = true
	var wants, gots []string
	for name, v := range want.Members() {
		text := v.Str()
		if v.Kind() != strictjson.String {
			text = v.Text()
		}
		wants, gots = append(wants, name+"="+text), append(gots, name+"="+got[name])
		out.Passed = out.Passed && text == got[name]
	}
	if p.loadErr != nil {
		out.Reason = firstLine(p.loadErr.Error())
	}
	out.Expected, out.Got = strings.Join(wants, " "), strings.Join(gots, " ")
	return nil
}

// seconds is a span in seconds.
func seconds(v strictjson.Value) time.Duration {
	f := v.Float()
	if math.IsNaN(f) || math.Abs(f) > 1e9 {
		return 0
	}
	return time.Duration(f * float64(time.Second))
}
