package evidence

// Gate says to which versions of the record a rule applies.
type Gate string

// The gates.
const (
	GateAll  Gate = "all"
	GateV3   Gate = "v0.3, v0.4" // the body of v0.4 is the one of v0.3
	GateDSSE Gate = "v0.4"
)

// Rule is one validation rule.
type Rule struct {
	ID        string
	Tier      int
	Gate      Gate
	Condition string   // what must hold
	Errors    []string // what is reported when it does not
}

// Error names.
const (
	errNotObject        = "E_NOT_JSON_OBJECT"
	errRequired         = "E_REQUIRED_MISSING"
	errType             = "E_TYPE"
	errEnum             = "E_ENUM"
	errRange            = "E_RANGE"
	errVersion          = "E_SCHEMA_VERSION"
	errSignatureMissing = "E_SIGNATURE_MISSING"
	errSignatureAlg     = "E_SIGNATURE_ALG"
	errCoverageShape    = "E_COVERAGE_SHAPE"
	errCoverageUnknown  = "E_COVERAGE_UNKNOWN_FIELD"
	errOtherKind        = "E_OTHER_KIND_NAMESPACE"
	errCoverageVersion  = "E_COVERAGE_SCHEMA_VERSION"
	errDriftShape       = "E_DRIFT_SHAPE"
	errDriftSuperseded  = "E_DRIFT_SUPERSEDED_FIELD"
	errExtensionShape   = "E_EXTENSION_SHAPE"
	errLeaseShape       = "E_LEASE_EVIDENCE_SHAPE"
	errUnsupported      = "E_DECISION_UNSUPPORTED"

	warnOldVersion   = "W_V03_FIELD_IN_OLD_VERSION"
	warnMixed        = "W_MIXED_WITHOUT_PARTITION"
	warnDelta        = "W_DELTA_REF_UNUSED"
	warnUnknownClass = "W_STATE_CHANGING_UNKNOWN"
	warnUnbound      = "W_DRIFT_AUTHORITY_UNBOUND"
	warnTimestamp    = "W_TIMESTAMP_PROOF_UNSIGNED"
	warnCanon        = "W_CANON_UNSAFE"
	warnGraduate     = "W_OTHER_KIND_GRADUATE"
)

// Rules is every rule in the order of reports. The ids and error names are those
// of the final form of aep/v0.3.
var Rules = []Rule{
	{"S-01", 1, GateAll, "The document is one JSON object in UTF-8.", []string{errNotObject}},
	{"S-02", 1, GateAll, "schema_version is there and is aep/v0.1, v0.2, v0.3 or v0.4.", []string{errRequired, errVersion}},
	{"S-03", 1, GateAll, "run_id is a string.", []string{errRequired, errType}},
	{"S-04", 1, GateAll, "created_at_ms is a finite number.", []string{errRequired, errType}},
	{"S-05", 1, GateAll, "The record's scalars have their types; only parent_trace_id, mcp_server_card_digest and prev_record_hash may be null.", []string{errType}},
	{"S-06", 1, GateAll, "input_refs, output_refs, capability_decisions, actions and verifier_results are arrays of objects; a reference names its uri.", []string{errType, errRequired}},
	{"S-07", 1, GateAll, "An action has action_id, tool_name, state_changing and timestamp_ms, and every typed member has its type.", []string{errRequired, errType}},
	{"S-08", 1, GateAll, "A capability decision names capability, subject, resource and one of the four decisions.", []string{errRequired, errType, errEnum}},
	{"S-09", 1, GateAll, "permission_gate has one of its three decisions and a gate.", []string{errRequired, errType, errEnum}},
	{"S-10", 1, GateAll, "A verifier result has verifier_id and passed.", []string{errRequired, errType}},
	{"S-11", 1, GateAll, "A budget entry has a numeric spent, the latency budget actual_ms.", []string{errRequired, errType}},
	{"S-12", 1, GateAll, "run_context has its types; turn_index is an integer from 0.", []string{errType, errRange}},
	{"S-13", 1, GateAll, "A signature has the three strings alg, key_id and sig. From v0.3 on it is required and alg is ed25519.", []string{errSignatureMissing, errSignatureAlg, errRequired, errType}},
	{"S-14", 1, GateV3, "side_effect_class, run_side_effect_class_max, state_digest_kind and (in every version) recording_mode are values of their closed sets.", []string{errEnum}},
	{"S-15", 1, GateV3, "state_digest_coverage has the members of its kind, with their types.", []string{errCoverageShape}},
	{"S-16", 1, GateV3, "Coverage of a closed kind has no other member.", []string{errCoverageUnknown}},
	{"S-17", 1, GateV3, "other_kind is a DNS-like name of at least two labels.", []string{errOtherKind}},
	{"S-18", 1, GateV3, "coverage_schema_version is a semantic version 2.0.", []string{errCoverageVersion}},
	{"S-24", 1, GateV3, "argument_drift has no member of the superseded draft. Looked at before S-19.", []string{errDriftSuperseded}},
	{"S-19", 1, GateV3, "argument_drift is an object with a known result; its other named members are non-empty strings.", []string{errDriftShape}},
	{"S-20", 1, GateV3, "approval_grant and approval_decision are values of their closed sets, in the action and in its capability decision.", []string{errEnum}},
	{"S-21", 1, GateV3, "approval_extension has the strings namespace, mode and evidence_digest.", []string{errExtensionShape}},
	{"S-22", 1, GateV3, "deny_reason_class is a value of its closed set.", []string{errEnum}},
	{"S-23", 1, GateV3, "The superseded approval_mode is a value of the draft's set.", []string{errEnum}},
	{"S-25", 1, GateV3, "With a bounded-lease grant, bounded_lease_evidence has its four required members and every member its type and range.", []string{errLeaseShape}},
	{"S-26", 1, GateAll, "timestamp_proof has timestamp, authority and proof.", []string{errRequired, errType}},

	{"X-01", 2, GateV3, "run_side_effect_class_max, if there, is the maximum over the actions; without actions it is absent.", []string{"E_RUN_SIDE_EFFECT_MAX_MISMATCH"}},
	{"X-02", 2, GateV3, "state_changing agrees with an explicit side_effect_class.", []string{"E_STATE_CHANGING_MISMATCH", warnUnknownClass}},
	{"X-03", 2, GateV3, "A state digest comes with kind and coverage.", []string{"E_STATE_DIGEST_WITHOUT_COVERAGE"}},
	{"X-04", 2, GateV3, "Kind and coverage come together.", []string{"E_STATE_DIGEST_PAIR"}},
	{"X-05", 2, GateV3, "A lease grant names scope_lease_id.", []string{"E_LEASE_SCOPE_ID_MISSING"}},
	{"X-06", 2, GateV3, "A lease grant has bounded_lease_evidence.", []string{"E_LEASE_EVIDENCE_MISSING"}},
	{"X-07", 2, GateV3, "The evidence is about the lease of scope_lease_id.", []string{"E_LEASE_ID_MISMATCH"}},
	{"X-08", 2, GateV3, "Any other grant has no bounded_lease_evidence, not even null.", []string{"E_LEASE_EVIDENCE_FORBIDDEN"}},
	{"X-09", 2, GateV3, "The lease expires after it was granted.", []string{"E_LEASE_WINDOW_INVALID"}},
	{"X-10", 2, GateV3, "lease_duration_ms is expiry minus grant.", []string{"E_LEASE_DURATION_MISMATCH"}},
	{"X-11", 2, GateV3, "An invocation limit comes with an ordinal or what remains.", []string{"E_LEASE_INVOCATION_EVIDENCE_MISSING"}},
	{"X-34", 2, GateV3, "Limit, ordinal and remaining agree: remaining = max(0, limit - ordinal + 1).", []string{"E_LEASE_INVOCATION_INCONSISTENT"}},
	{"X-12", 2, GateV3, "What a lease allowed started in its half-open window and with an invocation left.", []string{"E_LEASE_OUTSIDE_GRANT"}},
	{"X-13", 2, GateV3, "An expired lease had ended, or its invocations had.", []string{errUnsupported}},
	{"X-14", 2, GateV3, "A revoked lease names the Event or the policy version that revoked it.", []string{errUnsupported}},
	{"X-15", 2, GateV3, "Another grant that expired or was revoked carries its evidence in approval_extension.", []string{errUnsupported}},
	{"X-33", 2, GateV3, "drift-requires-reapproval stands on a drifted result.", []string{errUnsupported}},
	{"X-16", 2, GateV3, "A one-shot grant names approval_context_hash.", []string{"E_APPROVAL_CONTEXT_MISSING"}},
	{"X-17", 2, GateV3, "A grant comes with argument_drift; silence never means matched.", []string{"E_DRIFT_NOT_DECLARED"}},
	{"X-18", 2, GateV3, "argument_drift names the authority of its grant.", []string{"E_DRIFT_AUTHORITY_MISMATCH", warnUnbound}},
	{"X-19", 2, GateV3, "argument_drift has the members that its result requires.", []string{"E_DRIFT_INCOMPLETE"}},
	{"X-31", 2, GateV3, "A drifted result has a reason.", []string{"E_DRIFT_REASON_MISSING"}},
	{"X-20", 2, GateV3, "Without a grant the result can only be not-checked.", []string{"E_DRIFT_WITHOUT_GRANT"}},
	{"X-21", 2, GateV3, "Matched digests are equal, drifted ones differ.", []string{"E_DRIFT_DIGEST_CONTRADICTION"}},
	{"X-22", 2, GateV3, "What drifted is not allowed.", []string{"E_DRIFT_NOT_DENIED"}},
	{"X-23", 2, GateV3, "A grant comes with a decision.", []string{"E_APPROVAL_DECISION_MISSING"}},
	{"X-24", 2, GateV3, "expired, revoked and drift-requires-reapproval presuppose a grant.", []string{"E_APPROVAL_DECISION_WITHOUT_GRANT"}},
	{"X-25", 2, GateV3, "A gross allow has no other approval decision than allow.", []string{"E_APPROVAL_DECISION_CONFLICT"}},
	{"X-26", 2, GateV3, "deny_reason_class stands beside a deny.", []string{"E_DENY_REASON_WITHOUT_DENY"}},
	{"X-27", 2, GateV3, "The superseded approval_mode does not stand alone.", []string{"E_APPROVAL_MODE_SUPERSEDED"}},
	{"X-36", 2, GateV3, "The superseded approval_mode does not contradict grant and decision.", []string{"E_APPROVAL_MODE_CONFLICT"}},
	{"X-32", 2, GateV3, "Grant and decision are the same in both placements.", []string{"E_APPROVAL_PLACEMENT_CONFLICT"}},
	{"X-28", 2, GateV3, "action_id is unique in the record.", []string{"E_ACTION_ID_DUPLICATE"}},
	{"X-29", 2, GateV3, "An action is not its own parent.", []string{"E_PARENT_SELF"}},
	{"X-30", 2, GateV3, "Parents form no cycle inside the record.", []string{"E_PARENT_CYCLE"}},
	{"X-35", 2, GateV3, "A re-approved action stands on another approval than the one whose arguments drifted.", []string{"E_REAPPROVAL_REUSES_GRANT"}},
	{"W-01", 2, GateAll, "Members of v0.3 in an older record are ignored.", []string{warnOldVersion}},
	{"W-02", 2, GateV3, "Coverage over durable and scratch keys names its partition.", []string{warnMixed}},
	{"W-03", 2, GateAll, "delta_ref stands beside recording_mode delta.", []string{warnDelta}},

	{"C-01", 3, GateAll, "No member is named __proto__, no string holds a lone surrogate, no number overflows binary64.", []string{"E_CANON_UNSAFE", warnCanon}},
	{"C-12", 3, GateV3, "No object has two members of one name. In older records the last one counts.", []string{"E_DUPLICATE_KEY"}},
	{"C-02", 3, GateAll, "A record that shall be verified has a signature.", []string{errSignatureMissing}},
	{"C-03", 3, GateAll, "The signature is not a placeholder of a build.", []string{"E_SIGNATURE_PLACEHOLDER"}},
	{"C-04", 3, GateAll, "alg is ed25519.", []string{errSignatureAlg}},
	{"C-05", 3, GateAll, "sig is base64 of exactly 64 bytes: either alphabet, padding optional, nothing else.", []string{"E_SIGNATURE_ENCODING"}},
	{"C-06", 3, GateAll, "A 32-byte public key is known for key_id.", []string{"E_KEY_UNKNOWN"}},
	{"C-07", 3, GateAll, "The signature verifies over the canonical bytes of the wire members.", []string{"E_SIGNATURE_INVALID"}},
	{"C-08", 3, GateAll, "A timestamp proof that was attached after signing is not covered.", []string{warnTimestamp}},
	{"C-09", 3, GateAll, "prev_record_hash is the hash of the predecessor.", []string{"E_CHAIN_BROKEN"}},
	{"C-10", 3, GateDSSE, "The DSSE envelope verifies and is bound to the record around it.", []string{"E_DSSE_INVALID", "E_DSSE_BINDING"}},
	{"C-11", 3, GateAll, "Verification comes before any default or normalisation. (A rule for programs: this one verifies the wire members.)", nil},

	{"P-01", 4, GateAll, "The key is in the trust root and was not revoked when the record was made.", []string{"E_KEY_UNTRUSTED", "E_KEY_REVOKED"}},
	{"P-02", 4, GateAll, "policy_bundle_digest is known.", []string{"E_POLICY_UNKNOWN"}},
	{"P-03", 4, GateV3, "The lease is known.", []string{"E_LEASE_UNKNOWN"}},
	{"P-04", 4, GateV3, "The lease's window, as in force when execution started, is the evidence's.", []string{"E_LEASE_REGISTRY_MISMATCH"}},
	{"P-05", 4, GateV3, "The approval of a one-shot grant is known.", []string{"E_APPROVAL_UNKNOWN"}},
	{"P-06", 4, GateV3, "The Event that revoked exists and came before the attempt.", []string{"E_REVOCATION_EVENT_UNKNOWN"}},
	{"P-07", 4, GateV3, "The policy version that revoked exists.", []string{"E_POLICY_VERSION_UNKNOWN"}},
	{"P-08", 4, GateV3, "args_equality_version is registered; with the payloads at hand the result is recomputed.", []string{"E_ARGS_EQUALITY_VERSION_UNKNOWN", "E_DRIFT_RECOMPUTE_MISMATCH"}},
	{"P-09", 4, GateV3, "The coverage's redaction profile is named by the record, by an output or by the registry.", []string{"E_REDACTION_PROFILE_UNKNOWN"}},
	{"P-10", 4, GateV3, "parent_action_id resolves in the record or the run's history.", []string{"E_PARENT_UNRESOLVED"}},
	{"P-11", 4, GateV3, "The namespace of approval_extension is registered.", []string{"E_EXTENSION_NAMESPACE_UNKNOWN"}},
	{"P-12", 4, GateV3, "What was allowed with unknown side effects had a one-shot or lease grant.", []string{"E_UNKNOWN_SIDE_EFFECT_POLICY"}},
	{"P-13", 4, GateV3, "No vendor kind is used in more than one record of twenty (over many records).", []string{warnGraduate}},
}

var rulePosition = func() map[string]int {
	m := make(map[string]int, len(Rules))
	for i, r := range Rules {
		m[r.ID] = i
	}
	return m
}()
