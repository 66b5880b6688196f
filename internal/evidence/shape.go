package evidence

import "slices"

// The closed sets of the record.
var (
	versions          = []string{"aep/v0.1", "aep/v0.2", "aep/v0.3", "aep/v0.4"}
	sideEffectClasses = []string{"read", "mutate-local", "mutate-external", "network-egress", "unknown"} // in rising order
	recordingModes    = []string{"validation", "delta", "full"}
	grants            = []string{"one-shot-payload", "bounded-lease", "policy-allow-with-receipt", "none"}
	approvalDecisions = []string{"allow", "deny", "expired", "revoked", "drift-requires-reapproval"}
	grossDecisions    = []string{"allow", "deny", "ask_user", "dry_run"}
	gateDecisions     = []string{"approved", "denied", "auto_approved"}
	denyReasons       = []string{"tool-identity", "argument", "tainted-input", "resource-scope", "missing-delegation", "policy-rule", "other"}
	draftModes        = []string{"one-shot-payload", "bounded-lease", "policy-allow-with-receipt", "policy-deny-with-evidence", "re-approval-on-drift", "none"}
	driftResults      = []string{"matched", "drifted", "not-checked"}
	driftSuperseded   = []string{"detected", "resolution", "approved_args_digest", "observed_args_digest", "canonicalization_version"}
)

// typ is the JSON type that a member must have.
type typ uint8

const (
	typString typ = iota
	typStringOrNull
	typBool
	typNumber  // finite in binary64
	typInteger // integral, at most 2^53-1
	typStrings // array of strings
)

func (t typ) holds(v *Value) bool {
	switch t {
	case typString:
		return v.Kind() == String
	case typStringOrNull:
		return v.Kind() == String || v.Kind() == Null
	case typBool:
		return v.Kind() == Bool
	case typNumber:
		_, ok := v.Float()
		return ok
	case typInteger:
		_, ok := v.Int()
		return ok
	case typStrings:
		return v.Kind() == Array && !slices.ContainsFunc(v.items, func(i *Value) bool { return i.Kind() != String })
	}
	return false
}

func (t typ) String() string {
	return [...]string{"a string", "a string or null", "a boolean", "a finite number", "an integer", "an array of strings"}[t]
}

type member struct {
	name     string
	typ      typ
	required bool
}

// members checks types and presence of an object's members.
func (c *checker) members(rule string, obj *Value, path string, list []member) {
	for _, m := range list {
		v := obj.Get(m.name)
		switch {
		case !v.Exists():
			if m.required {
				c.fail(rule, errRequired, at(path, m.name), "%s is required", m.name)
			}
		case !m.typ.holds(v):
			c.fail(rule, errType, at(path, m.name), "%s must be %s, not %s", m.name, m.typ, v.Kind())
		}
	}
}

func (c *checker) isObject(rule string, v *Value, path string) bool {
	if v.Kind() != Object {
		c.fail(rule, errType, path, "must be an object, not %s", v.Kind())
		return false
	}
	return true
}

// enum checks a member against a closed set. A wrong type is not in the set.
func (c *checker) enum(rule string, obj *Value, path, name string, set []string) {
	if v := obj.Get(name); v.Exists() && (v.Kind() != String || !slices.Contains(set, v.Str())) {
		c.fail(rule, errEnum, at(path, name), "%s is not one of its values", name)
	}
}

var recordScalars = []member{
	{"trace_id", typString, false},
	{"repo_commit", typString, false},
	{"runtime_version", typString, false},
	{"model_provider", typString, false},
	{"model_id", typString, false},
	{"policy_bundle_digest", typString, false},
	{"tool_manifest_digest", typString, false},
	{"parent_trace_id", typStringOrNull, false},
	{"mcp_server_card_digest", typStringOrNull, false},
	{"user_id", typString, false},
	{"subject_id", typString, false},
	{"prev_record_hash", typStringOrNull, false},
	{"redaction_profile", typString, false},
}

var actionMembers = []member{
	{"action_id", typString, true},
	{"tool_name", typString, true},
	{"state_changing", typBool, true},
	{"timestamp_ms", typNumber, true},
	{"precondition_digest", typString, false},
	{"result_digest", typString, false},
	{"evidence_refs", typStrings, false},
	{"parent_action_id", typString, false},
	{"causal_chain_id", typString, false},
	{"tool_descriptor_digest", typString, false},
	{"server_card_digest", typString, false},
	{"scope_lease_id", typString, false},
	{"approval_context_hash", typString, false},
	{"input_taint_labels", typStrings, false},
	{"output_taint_labels", typStrings, false},
	{"memory_read_refs", typStrings, false},
	{"memory_write_refs", typStrings, false},
	{"pre_state_digest", typString, false},
	{"post_state_digest", typString, false},
	{"delta_ref", typString, false},
	{"outcome", typString, false},
	{"arguments_digest", typString, false},
	{"exit_code", typInteger, false},
}

var (
	inputRef    = []member{{"uri", typString, true}, {"digest", typString, false}, {"taint_labels", typStrings, false}}
	outputRef   = []member{{"uri", typString, true}, {"digest", typString, false}, {"redaction_profile", typString, false}}
	verifier    = []member{{"verifier_id", typString, true}, {"passed", typBool, true}, {"score", typNumber, false}, {"claim_ids", typStrings, false}}
	spending    = []member{{"spent", typNumber, true}, {"limit", typNumber, false}}
	latency     = []member{{"actual_ms", typNumber, true}, {"limit_ms", typNumber, false}}
	decision    = []member{{"capability", typString, true}, {"subject", typString, true}, {"resource", typString, true}, {"reason_code", typString, false}}
	gateMembers = []member{{"gate", typString, true}, {"reason", typString, false}}
	proof       = []member{{"timestamp", typString, true}, {"authority", typString, true}, {"proof", typString, true}, {"logIndex", typNumber, false}}
	signature   = []member{{"alg", typString, true}, {"key_id", typString, true}, {"sig", typString, true}}
	runContext  = []member{
		{"agent_id", typString, false},
		{"agent_version", typString, false},
		{"subagent_id", typString, false},
		{"environment_digest", typString, false},
		{"dependency_lock_digest", typString, false},
		{"delegation_chain", typStrings, false},
		{"session_id", typString, false},
	}
)

// tier1 checks the shape. It tells whether the version is known: nothing else can
// be said about a record of an unknown version. Where the version is missing, the
// rules for all versions are checked.
func (c *checker) tier1() (known bool) {
	r := c.root
	switch v := r.Get(memberVersion); {
	case !v.Exists():
		c.fail("S-02", errRequired, at("", memberVersion), "schema_version is required")
	case v.Kind() != String || !slices.Contains(versions, v.Str()):
		c.fail("S-02", errVersion, at("", memberVersion), "not a version that this program knows")
		return false // another version may have other members
	default:
		known = true
		c.v3 = v.Str() == "aep/v0.3" || v.Str() == "aep/v0.4"
	}
	c.members("S-03", r, "", []member{{"run_id", typString, true}})
	c.members("S-04", r, "", []member{{"created_at_ms", typNumber, true}})
	c.members("S-05", r, "", recordScalars)
	c.list("input_refs", func(v *Value, path string) { c.members("S-06", v, path, inputRef) })
	c.list("output_refs", func(v *Value, path string) { c.members("S-06", v, path, outputRef) })
	c.list("capability_decisions", c.capabilityDecision)
	c.list("actions", c.action)
	c.list("verifier_results", func(v *Value, path string) { c.members("S-10", v, path, verifier) })
	c.budget()
	if v := r.Get("run_context"); v.Exists() && c.isObject("S-12", v, "/run_context") {
		c.members("S-12", v, "/run_context", runContext)
		c.turnIndex(v.Get("turn_index"))
	}
	c.signature(known)
	if c.v3 {
		c.enum("S-14", r, "", "run_side_effect_class_max", sideEffectClasses)
	}
	if v := r.Get(memberTimestamp); v.Exists() && c.isObject("S-26", v, at("", memberTimestamp)) {
		c.members("S-26", v, at("", memberTimestamp), proof)
	}
	return known
}

func (c *checker) list(name string, each func(v *Value, path string)) {
	v := c.root.Get(name)
	if !v.Exists() {
		return
	}
	path := at("", name)
	if v.Kind() != Array {
		c.fail("S-06", errType, path, "%s must be an array, not %s", name, v.Kind())
		return
	}
	for i, item := range v.items {
		if p := atIndex(path, i); c.isObject("S-06", item, p) {
			each(item, p)
		}
	}
}

func (c *checker) turnIndex(v *Value) {
	if !v.Exists() {
		return
	}
	n, ok := v.Int()
	switch {
	case !ok:
		c.fail("S-12", errType, "/run_context/turn_index", "turn_index must be an integer")
	case n < 0:
		c.fail("S-12", errRange, "/run_context/turn_index", "turn_index must not be negative")
	}
}

func (c *checker) budget() {
	v := c.root.Get("budget_ledger")
	if !v.Exists() || !c.isObject("S-11", v, "/budget_ledger") {
		return
	}
	for _, name := range []string{"token_budget", "tool_budget", "risk_budget", "retry_budget", "human_approval_budget", "latency_budget"} {
		entry, path := v.Get(name), at("/budget_ledger", name)
		if !entry.Exists() || !c.isObject("S-11", entry, path) {
			continue
		}
		if name == "latency_budget" {
			c.members("S-11", entry, path, latency)
		} else {
			c.members("S-11", entry, path, spending)
		}
	}
}

func (c *checker) signature(known bool) {
	v := c.root.Get(memberSignature)
	switch {
	case !v.Exists():
		if c.v3 && known {
			c.fail("S-13", errSignatureMissing, "/signature", "a record of v0.3 is signed")
		}
	case c.isObject("S-13", v, "/signature"):
		c.members("S-13", v, "/signature", signature)
		if alg := v.Get("alg"); c.v3 && alg.Kind() == String && alg.Str() != "ed25519" {
			c.fail("S-13", errSignatureAlg, "/signature/alg", "only ed25519 signs a record of v0.3")
		}
	}
}

func (c *checker) capabilityDecision(v *Value, path string) {
	c.members("S-08", v, path, decision)
	if d := v.Get("decision"); !d.Exists() {
		c.fail("S-08", errRequired, at(path, "decision"), "decision is required")
	} else if d.Kind() != String {
		c.fail("S-08", errType, at(path, "decision"), "decision must be a string, not %s", d.Kind())
	}
	if v.Get("decision").Kind() == String {
		c.enum("S-08", v, path, "decision", grossDecisions)
	}
	if !c.v3 {
		return
	}
	c.enum("S-20", v, path, "approval_grant", grants)
	c.enum("S-20", v, path, "approval_decision", approvalDecisions)
	c.extension(v.Get("approval_extension"), at(path, "approval_extension"))
	c.enum("S-22", v, path, "deny_reason_class", denyReasons)
	c.enum("S-23", v, path, "approval_mode", draftModes)
}

func (c *checker) extension(v *Value, path string) {
	if !v.Exists() {
		return
	}
	for _, name := range []string{"namespace", "mode", "evidence_digest"} {
		if v.Get(name).Kind() != String {
			c.fail("S-21", errExtensionShape, at(path, name), "%s must be a string", name)
		}
	}
}

func (c *checker) action(v *Value, path string) {
	c.members("S-07", v, path, actionMembers)
	if d, p := v.Get("capability_decision"), at(path, "capability_decision"); d.Exists() && c.isObject("S-08", d, p) {
		c.capabilityDecision(d, p)
	}
	if g, p := v.Get("permission_gate"), at(path, "permission_gate"); g.Exists() && c.isObject("S-09", g, p) {
		c.members("S-09", g, p, append([]member{{"decision", typString, true}}, gateMembers...))
		if g.Get("decision").Kind() == String {
			c.enum("S-09", g, p, "decision", gateDecisions)
		}
	}
	c.enum("S-14", v, path, "recording_mode", recordingModes)
	if !c.v3 {
		return
	}
	c.enum("S-14", v, path, "side_effect_class", sideEffectClasses)
	c.enum("S-14", v, path, "state_digest_kind", stateKinds)
	if cov := v.Get("state_digest_coverage"); cov.Exists() {
		c.coverage(v.Get("state_digest_kind"), cov, at(path, "state_digest_coverage"))
	}
	c.drift(v.Get("argument_drift"), at(path, "argument_drift"))
	c.enum("S-20", v, path, "approval_grant", grants)
	c.enum("S-20", v, path, "approval_decision", approvalDecisions)
	if ble := v.Get("bounded_lease_evidence"); ble.Exists() && authorityOf(v).grant == grantLease {
		c.leaseEvidence(ble, at(path, "bounded_lease_evidence"))
	}
}

func (c *checker) drift(v *Value, path string) {
	if !v.Exists() {
		return
	}
	if v.Kind() != Object {
		c.fail("S-19", errDriftShape, path, "argument_drift must be an object, not %s", v.Kind())
		return
	}
	superseded := false
	for _, name := range driftSuperseded {
		if v.Get(name).Exists() {
			c.fail("S-24", errDriftSuperseded, at(path, name), "%s belongs to a superseded draft", name)
			superseded = true
		}
	}
	if superseded {
		return // a record of the draft has no result: one cause, one error
	}
	if res := v.Get("result"); res.Kind() != String || !slices.Contains(driftResults, res.Str()) {
		c.fail("S-19", errDriftShape, at(path, "result"), "result must be matched, drifted or not-checked")
	}
	for _, name := range []string{"approval_or_lease_id", "approved_arg_digest", "observed_arg_digest", "args_equality_version", "drift_reason"} {
		if m := v.Get(name); m.Exists() && m.Str() == "" {
			c.fail("S-19", errDriftShape, at(path, name), "%s must be a string that is not empty", name)
		}
	}
}

func (c *checker) leaseEvidence(v *Value, path string) {
	if v.Kind() != Object {
		c.fail("S-25", errLeaseShape, path, "bounded_lease_evidence must be an object, not %s", v.Kind())
		return
	}
	if v.Get("lease_id").Str() == "" {
		c.fail("S-25", errLeaseShape, at(path, "lease_id"), "lease_id must be a string that is not empty")
	}
	for _, m := range []struct {
		name     string
		least    int64
		required bool
	}{
		{"lease_granted_at_ms", 0, true},
		{"lease_expires_at_ms", 0, true},
		{"execution_started_at_ms", 0, true},
		{"lease_duration_ms", 0, false},
		{"invocation_ordinal", 1, false},
		{"invocation_limit", 1, false},
		{"invocations_remaining", 0, false},
	} {
		x := v.Get(m.name)
		if !x.Exists() && !m.required {
			continue
		}
		if n, ok := x.Int(); !ok || n < m.least {
			c.fail("S-25", errLeaseShape, at(path, m.name), "%s must be an integer from %d", m.name, m.least)
		}
	}
	for _, name := range []string{"revocation_event_id", "revocation_policy_version"} {
		if x := v.Get(name); x.Exists() && x.Kind() != String {
			c.fail("S-25", errLeaseShape, at(path, name), "%s must be a string", name)
		}
	}
}
