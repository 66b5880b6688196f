package evidence

import "slices"

// Grants and decisions that rules name.
const (
	grantOneShot = "one-shot-payload"
	grantLease   = "bounded-lease"
	grantReceipt = "policy-allow-with-receipt"
	grantNone    = "none"

	decAllow   = "allow"
	decDeny    = "deny"
	decExpired = "expired"
	decRevoked = "revoked"
	decDrift   = "drift-requires-reapproval"
)

// authority is what an action says about the authority it had.
type authority struct {
	grant, dec string // grant is never empty
	gross      string
	extension  *Value
	drift      *Value
	ble        *Value
	scope      *Value
	context    *Value
}

// authorityOf reads the placements: the action itself, else its capability
// decision.
func authorityOf(action *Value) authority {
	d := action.Get("capability_decision")
	a := authority{
		grant:     firstOf(action, d, "approval_grant").Str(),
		dec:       firstOf(action, d, "approval_decision").Str(),
		gross:     d.Get("decision").Str(),
		extension: firstOf(d, action, "approval_extension"),
		drift:     action.Get("argument_drift"),
		ble:       action.Get("bounded_lease_evidence"),
		scope:     action.Get("scope_lease_id"),
		context:   action.Get("approval_context_hash"),
	}
	if a.grant == "" {
		a.grant = grantNone
	}
	return a
}

func firstOf(a, b *Value, name string) *Value {
	if v := a.Get(name); v.Exists() {
		return v
	}
	return b.Get(name)
}

// classOf is the side-effect class of an action; an absent one is unknown.
func classOf(action *Value) string {
	if v := action.Get("side_effect_class"); v.Exists() {
		return v.Str()
	}
	return "unknown"
}

// maxClass is the highest class of the actions, empty without actions.
func maxClass(actions []*Value) string {
	top := -1
	for _, a := range actions {
		top = max(top, slices.Index(sideEffectClasses, classOf(a)))
	}
	if top < 0 {
		return ""
	}
	return sideEffectClasses[top]
}

// tier2 checks that the members agree. The shape was checked before, so a member
// that exists has its type.
func (c *checker) tier2() {
	actions := c.root.Get("actions").Items()
	if v := c.root.Get("run_side_effect_class_max"); v.Exists() {
		if want := maxClass(actions); want == "" {
			c.fail("X-01", "E_RUN_SIDE_EFFECT_MAX_MISMATCH", "/run_side_effect_class_max", "there are no actions to summarise")
		} else if v.Str() != want {
			c.fail("X-01", "E_RUN_SIDE_EFFECT_MAX_MISMATCH", "/run_side_effect_class_max", "the actions give %s", want)
		}
	}
	for i, d := range c.root.Get("capability_decisions").Items() {
		c.oneDecision(d, atIndex("/capability_decisions", i))
		c.draftMode(d, atIndex("/capability_decisions", i), d.Get("approval_grant").Str(), d.Get("approval_decision").Str())
	}
	for i, a := range actions {
		c.actionAgrees(a, atIndex("/actions", i))
	}
	c.parents(actions)
}

func (c *checker) actionAgrees(a *Value, path string) {
	c.stateChange(a, path)
	c.stateDigests(a, path)
	au := authorityOf(a)
	if au.grant == grantLease {
		c.lease(au, path)
	} else if au.ble.Exists() {
		c.fail("X-08", "E_LEASE_EVIDENCE_FORBIDDEN", at(path, "bounded_lease_evidence"), "the grant is %s", au.grant)
	}
	c.decisions(a, au, path)
	c.driftAgrees(au, path)
}

func (c *checker) stateChange(a *Value, path string) {
	class := a.Get("side_effect_class")
	if !class.Exists() {
		return
	}
	changing := a.Get("state_changing").IsTrue()
	switch class.Str() {
	case "unknown":
		if !changing {
			c.warn("X-02", warnUnknownClass, at(path, "state_changing"), "the effects are unknown, so a change cannot be ruled out")
		}
	default:
		if changing != (class.Str() != "read") {
			c.fail("X-02", "E_STATE_CHANGING_MISMATCH", at(path, "state_changing"), "the class is %s", class.Str())
		}
	}
}

func (c *checker) stateDigests(a *Value, path string) {
	kind, cov := a.Get("state_digest_kind").Exists(), a.Get("state_digest_coverage").Exists()
	for _, name := range []string{"pre_state_digest", "post_state_digest"} {
		if a.Get(name).Exists() && !(kind && cov) {
			c.fail("X-03", "E_STATE_DIGEST_WITHOUT_COVERAGE", at(path, name), "a digest says nothing without kind and coverage")
		}
	}
	if kind != cov {
		c.fail("X-04", "E_STATE_DIGEST_PAIR", path, "state_digest_kind and state_digest_coverage come together")
	}
	if cov := a.Get("state_digest_coverage"); cov.Get("durable_vs_scratch").Str() == "mixed" && !cov.Get("mixed_partition").Exists() {
		if k := a.Get("state_digest_kind").Str(); k == kindKV || k == kindMemory {
			c.warn("W-02", warnMixed, at(path, "state_digest_coverage"), "such digests can never be compared")
		}
	}
}

func (c *checker) lease(au authority, path string) {
	blePath := at(path, "bounded_lease_evidence")
	if !au.scope.Exists() {
		c.fail("X-05", "E_LEASE_SCOPE_ID_MISSING", at(path, "scope_lease_id"), "a lease grant names its lease")
	}
	if !au.ble.Exists() {
		c.fail("X-06", "E_LEASE_EVIDENCE_MISSING", blePath, "a lease grant has evidence of the lease")
		return
	}
	e := leaseEvidenceOf(au.ble)
	if au.scope.Exists() && e.id != au.scope.Str() {
		c.fail("X-07", "E_LEASE_ID_MISMATCH", at(blePath, "lease_id"), "scope_lease_id is another lease")
	}
	window := e.expires > e.granted
	if !window {
		c.fail("X-09", "E_LEASE_WINDOW_INVALID", at(blePath, "lease_expires_at_ms"), "the lease ends before it begins")
	}
	// A window that is none has no duration and no inside.
	if e.duration != nil && window && *e.duration != e.expires-e.granted {
		c.fail("X-10", "E_LEASE_DURATION_MISMATCH", at(blePath, "lease_duration_ms"), "expiry minus grant is %d", e.expires-e.granted)
	}
	if e.limit != nil && e.ordinal == nil && e.remaining == nil {
		c.fail("X-11", "E_LEASE_INVOCATION_EVIDENCE_MISSING", at(blePath, "invocation_limit"), "a limit without a count proves nothing")
	}
	if e.limit != nil && e.ordinal != nil && e.remaining != nil && *e.remaining != max(0, *e.limit-*e.ordinal+1) {
		c.fail("X-34", "E_LEASE_INVOCATION_INCONSISTENT", at(blePath, "invocations_remaining"), "limit and ordinal leave %d", max(0, *e.limit-*e.ordinal+1))
	}
	switch {
	case au.dec == decAllow && window && (!e.inside() || e.exhausted()):
		c.fail("X-12", "E_LEASE_OUTSIDE_GRANT", blePath, "execution started outside the window or without an invocation left")
	case au.dec == decExpired && window && e.started < e.expires && !e.exhausted():
		c.fail("X-13", errUnsupported, blePath, "the lease had neither ended nor been used up")
	case au.dec == decRevoked && e.revokedBy == "" && e.revokedPolicy == "":
		c.fail("X-14", errUnsupported, blePath, "nothing says what revoked the lease")
	}
}

// leaseEvidence is bounded_lease_evidence of the right shape.
type leaseEvidence struct {
	id                                  string
	granted, expires, started           int64
	duration, ordinal, limit, remaining *int64
	revokedBy, revokedPolicy            string
}

func leaseEvidenceOf(v *Value) leaseEvidence {
	num := func(name string) *int64 {
		if n, ok := v.Get(name).Int(); ok {
			return &n
		}
		return nil
	}
	must := func(name string) int64 { n, _ := v.Get(name).Int(); return n }
	return leaseEvidence{
		id:      v.Get("lease_id").Str(),
		granted: must("lease_granted_at_ms"), expires: must("lease_expires_at_ms"), started: must("execution_started_at_ms"),
		duration: num("lease_duration_ms"), ordinal: num("invocation_ordinal"), limit: num("invocation_limit"), remaining: num("invocations_remaining"),
		revokedBy: v.Get("revocation_event_id").Str(), revokedPolicy: v.Get("revocation_policy_version").Str(),
	}
}

// inside: the window is half-open.
func (e leaseEvidence) inside() bool { return e.granted <= e.started && e.started < e.expires }

func (e leaseEvidence) exhausted() bool {
	return (e.limit != nil && e.ordinal != nil && *e.ordinal > *e.limit) || (e.remaining != nil && *e.remaining < 1)
}

func (c *checker) decisions(a *Value, au authority, path string) {
	d, dPath := a.Get("capability_decision"), at(path, "capability_decision")
	if au.grant != grantLease && au.grant != grantNone && (au.dec == decExpired || au.dec == decRevoked) && !au.extension.Exists() {
		c.fail("X-15", errUnsupported, path, "nothing says how the approval %s", map[string]string{decExpired: "expired", decRevoked: "was revoked"}[au.dec])
	}
	if au.dec == decDrift && au.drift.Get("result").Str() != "drifted" {
		c.fail("X-33", errUnsupported, path, "re-approval for drift, but no drift was found")
	}
	if au.grant == grantOneShot && !au.context.Exists() {
		c.fail("X-16", "E_APPROVAL_CONTEXT_MISSING", at(path, "approval_context_hash"), "a one-shot grant names its approval")
	}
	if au.grant != grantNone && au.dec == "" {
		c.fail("X-23", "E_APPROVAL_DECISION_MISSING", at(path, "approval_decision"), "the grant is %s", au.grant)
	}
	if au.grant == grantNone && (au.dec == decExpired || au.dec == decRevoked || au.dec == decDrift) {
		c.fail("X-24", "E_APPROVAL_DECISION_WITHOUT_GRANT", path, "%s, but there was no grant", au.dec)
	}
	if au.gross == "allow" && au.dec != "" && au.dec != decAllow {
		c.fail("X-25", "E_APPROVAL_DECISION_CONFLICT", path, "allowed, although the approval decision is %s", au.dec)
	}
	if d.Exists() {
		c.oneDecision(d, dPath)
		c.draftMode(d, dPath, firstOf(a, d, "approval_grant").Str(), au.dec)
	}
	for _, name := range []string{"approval_grant", "approval_decision"} {
		if x, y := a.Get(name), d.Get(name); x.Exists() && y.Exists() && x.Str() != y.Str() {
			c.fail("X-32", "E_APPROVAL_PLACEMENT_CONFLICT", at(dPath, name), "the action itself says %s", x.Str())
		}
	}
	if mode := a.Get("recording_mode").Str(); a.Get("delta_ref").Exists() && mode != "delta" {
		c.warn("W-03", warnDelta, at(path, "delta_ref"), "only recording mode delta uses it")
	}
}

func (c *checker) oneDecision(d *Value, path string) {
	if d.Get("deny_reason_class").Exists() && d.Get("decision").Str() != "deny" {
		c.fail("X-26", "E_DENY_REASON_WITHOUT_DENY", at(path, "deny_reason_class"), "the decision is %s", d.Get("decision").Str())
	}
}

// draftMode judges the superseded approval_mode beside grant and dec, which are
// empty where the record has none.
func (c *checker) draftMode(d *Value, path, grant, dec string) {
	mode := d.Get("approval_mode").Str()
	if mode == "" || mode == "none" {
		return
	}
	if grant == "" && dec == "" {
		c.fail("X-27", "E_APPROVAL_MODE_SUPERSEDED", at(path, "approval_mode"), "say it with approval_grant and approval_decision")
		return
	}
	var agrees bool
	switch mode {
	case "policy-deny-with-evidence":
		agrees = dec == decDeny
	case "re-approval-on-drift":
		agrees = dec == decDrift
	default:
		agrees = grant == mode
	}
	if !agrees {
		c.fail("X-36", "E_APPROVAL_MODE_CONFLICT", at(path, "approval_mode"), "grant and decision say something else")
	}
}

func (c *checker) driftAgrees(au authority, path string) {
	p := at(path, "argument_drift")
	if !au.drift.Exists() {
		if au.grant != grantNone {
			c.fail("X-17", "E_DRIFT_NOT_DECLARED", p, "the grant is %s", au.grant)
		}
		return
	}
	result := au.drift.Get("result").Str()
	c.driftAuthority(au, p)
	for _, name := range []string{"approval_or_lease_id", "approved_arg_digest", "observed_arg_digest", "args_equality_version"} {
		required := result != "not-checked" || (name == "approval_or_lease_id" && au.grant != grantNone)
		if required && !au.drift.Get(name).Exists() {
			c.fail("X-19", "E_DRIFT_INCOMPLETE", at(p, name), "%s is required with %s", name, result)
		}
	}
	if result == "drifted" && !au.drift.Get("drift_reason").Exists() {
		c.fail("X-31", "E_DRIFT_REASON_MISSING", at(p, "drift_reason"), "say what changed")
	}
	if au.grant == grantNone && result != "not-checked" {
		c.fail("X-20", "E_DRIFT_WITHOUT_GRANT", at(p, "result"), "%s against no grant", result)
	}
	if approved, observed := au.drift.Get("approved_arg_digest"), au.drift.Get("observed_arg_digest"); approved.Exists() && observed.Exists() {
		if equal := approved.Str() == observed.Str(); (result == "matched" && !equal) || (result == "drifted" && equal) {
			c.fail("X-21", "E_DRIFT_DIGEST_CONTRADICTION", p, "%s, but the digests say otherwise", result)
		}
	}
	if result == "drifted" && au.dec == decAllow {
		c.fail("X-22", "E_DRIFT_NOT_DENIED", path, "changed arguments were allowed")
	}
}

// driftAuthority checks that the drift result names the authority of the grant.
func (c *checker) driftAuthority(au authority, path string) {
	id := au.drift.Get("approval_or_lease_id")
	if !id.Exists() {
		return
	}
	var anchors []*Value
	switch au.grant {
	case grantLease:
		anchors = []*Value{au.scope}
	case grantOneShot:
		anchors = []*Value{au.context}
	case grantReceipt:
		anchors = []*Value{au.context, au.scope, c.root.Get("policy_bundle_digest"), au.extension.Get("evidence_digest")}
	default:
		return
	}
	anchors = slices.DeleteFunc(anchors, func(v *Value) bool { return !v.Exists() })
	switch {
	case len(anchors) == 0:
		if au.grant == grantReceipt { // for the others speak
			c.warn("X-18", warnUnbound, at(path, "approval_or_lease_id"), "nothing in the record anchors this receipt")
		}
	case !slices.ContainsFunc(anchors, func(v *Value) bool { return v.Str() == id.Str() }):
		c.fail("X-18", "E_DRIFT_AUTHORITY_MISMATCH", at(path, "approval_or_lease_id"), "not the authority of the grant")
	}
}

// parents checks identities and links of the actions of one record.
func (c *checker) parents(actions []*Value) {
	index := map[string]int{}
	for i, a := range actions {
		id := a.Get("action_id").Str()
		if _, dup := index[id]; dup {
			c.fail("X-28", "E_ACTION_ID_DUPLICATE", at(atIndex("/actions", i), "action_id"), "an earlier action has this id")
			continue
		}
		index[id] = i
	}
	parent := make([]int, len(actions))
	for i, a := range actions {
		parent[i] = -1
		link := a.Get("parent_action_id")
		if !link.Exists() {
			continue
		}
		path := at(atIndex("/actions", i), "parent_action_id")
		if link.Str() == a.Get("action_id").Str() {
			c.fail("X-29", "E_PARENT_SELF", path, "an action does not cause itself")
			continue
		}
		p, ok := index[link.Str()]
		if !ok {
			continue // earlier in the run, or unknown: tier 4
		}
		parent[i] = p
		c.reapproval(a, actions[p], at(atIndex("/actions", i), "approval_context_hash"))
	}
	if i := firstInCycle(parent); i >= 0 {
		c.fail("X-30", "E_PARENT_CYCLE", at(atIndex("/actions", i), "parent_action_id"), "the parents lead back to this action")
	}
}

// reapproval checks that an action allowed after a drifted one has an approval of
// its own.
func (c *checker) reapproval(child, parent *Value, path string) {
	au, before := authorityOf(child), authorityOf(parent)
	if au.grant == grantOneShot && au.dec == decAllow && au.context.Exists() && before.drift.Get("result").Str() == "drifted" &&
		au.context.Str() == before.drift.Get("approval_or_lease_id").Str() {
		c.fail("X-35", "E_REAPPROVAL_REUSES_GRANT", path, "this approval was for the arguments that drifted")
	}
}

// firstInCycle is the lowest index that lies on a cycle of next, or -1.
func firstInCycle(next []int) int {
	done := make([]int, len(next)) // 0 unseen, otherwise the walk that saw it
	for start := range next {
		walk := start + 1
		for i := start; i >= 0 && (done[i] == 0 || done[i] == walk); i = next[i] {
			if done[i] == walk {
				low := i
				for j := next[i]; j != i; j = next[j] {
					low = min(low, j)
				}
				return low
			}
			done[i] = walk
		}
	}
	return -1
}

var v3RecordMembers = []string{"run_side_effect_class_max"}

var v3ActionMembers = []string{"side_effect_class", "state_digest_kind", "state_digest_coverage", "approval_grant", "approval_decision", "argument_drift", "bounded_lease_evidence"}

var v3DecisionMembers = []string{"deny_reason_class", "approval_extension", "approval_grant", "approval_decision"}

// oldVersion warns about members that an older record may have but that then
// say nothing.
func (c *checker) oldVersion() {
	note := func(v *Value, path string, list []string) {
		for _, name := range list {
			if v.Get(name).Exists() {
				c.warn("W-01", warnOldVersion, at(path, name), "ignored in a record of this version")
			}
		}
	}
	note(c.root, "", v3RecordMembers)
	for i, d := range c.root.Get("capability_decisions").Items() {
		note(d, atIndex("/capability_decisions", i), v3DecisionMembers)
	}
	for i, a := range c.root.Get("actions").Items() {
		path := atIndex("/actions", i)
		note(a, path, v3ActionMembers)
		note(a.Get("capability_decision"), at(path, "capability_decision"), v3DecisionMembers)
		if mode := a.Get("recording_mode").Str(); a.Get("delta_ref").Exists() && mode != "delta" {
			c.warn("W-03", warnDelta, at(path, "delta_ref"), "only recording mode delta uses it")
		}
	}
}
