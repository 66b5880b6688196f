package evidence_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/evidence"
)

// edit sets the member at a slash path of a JSON object to a value, or removes
// it. Array elements are named by index; - appends.
type edit struct {
	path  string
	value any // remove removes
}

type removal struct{}

var remove = removal{}

func apply(t testing.TB, doc any, edits []edit) any {
	t.Helper()
	for _, e := range edits {
		doc = set(t, doc, strings.Split(strings.TrimPrefix(e.path, "/"), "/"), e.value)
	}
	return doc
}

func set(t testing.TB, doc any, path []string, value any) any {
	t.Helper()
	last := len(path) == 1
	switch d := doc.(type) {
	case map[string]any:
		switch {
		case last && value == any(remove):
			delete(d, path[0])
		case last:
			d[path[0]] = value
		default:
			d[path[0]] = set(t, d[path[0]], path[1:], value)
		}
		return d
	case []any:
		if path[0] == "-" {
			return append(d, value)
		}
		i, err := strconv.Atoi(path[0])
		if err != nil || i >= len(d) {
			t.Fatalf("no element %s", path[0])
		}
		if last {
			d[i] = value
		} else {
			d[i] = set(t, d[i], path[1:], value)
		}
		return d
	}
	t.Fatalf("nothing at %s", path[0])
	return nil
}

func object(t testing.TB, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

const (
	plainAction = `{"action_id":"urn:uuid:a","tool_name":"list_orders","state_changing":false,"timestamp_ms":1700000000500,"side_effect_class":"read"}`

	leaseAction = `{"action_id":"urn:uuid:b","tool_name":"send_mail","state_changing":true,"timestamp_ms":1700000000700,
		"side_effect_class":"network-egress","scope_lease_id":"urn:uuid:lease","approval_grant":"bounded-lease","approval_decision":"allow",
		"bounded_lease_evidence":{"lease_id":"urn:uuid:lease","lease_granted_at_ms":1700000000000,"lease_expires_at_ms":1700000060000,
			"lease_duration_ms":60000,"execution_started_at_ms":1700000000700,"invocation_ordinal":2,"invocation_limit":4,"invocations_remaining":3},
		"argument_drift":{"result":"not-checked","approval_or_lease_id":"urn:uuid:lease"},
		"capability_decision":{"capability":"mail.send","subject":"urn:agent:w","resource":"mailto:x","decision":"allow"}}`

	approvedAction = `{"action_id":"urn:uuid:c","tool_name":"pay","state_changing":true,"timestamp_ms":1700000000900,
		"side_effect_class":"mutate-external","approval_context_hash":"sha256:11","approval_grant":"one-shot-payload","approval_decision":"allow",
		"argument_drift":{"result":"matched","approval_or_lease_id":"sha256:11","approved_arg_digest":"sha256:22","observed_arg_digest":"sha256:22",
			"args_equality_version":"mw-args-jcs-nfc/1"},
		"capability_decision":{"capability":"pay","subject":"urn:agent:w","resource":"urn:account:1","decision":"allow"}}`

	rowsCoverage = `{"database_id":"orders","schema":"public","table":"lines","rows_predicate":"open","query_hash":"sha256:33"}`
	bagCoverage  = `{"namespace":"notes","redaction_profile":"none","durable_vs_scratch":"mixed","mixed_partition":{"durable_keys":"a*","scratch_keys":["b"],"audit_equality_basis":"durable-only"}}`
)

func record(t testing.TB, actions ...string) map[string]any {
	t.Helper()
	r := object(t, `{"schema_version":"aep/v0.3","run_id":"urn:uuid:w#1","created_at_ms":1700000001000,"policy_bundle_digest":"sha256:44",
		"signature":{"alg":"ed25519","key_id":"k","sig":"UNSIGNED_PLACEHOLDER"}}`)
	list := []any{}
	for _, a := range actions {
		list = append(list, object(t, a))
	}
	r["actions"] = list
	return r
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// found is a rule and the name it reported.
func found(list []evidence.Finding) []string {
	out := []string{}
	for _, f := range list {
		if s := f.Rule + " " + f.Name; !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func TestEveryRuleReportsItsErrorAndNoOther(t *testing.T) {
	ble, drift := "/actions/0/bounded_lease_evidence/", "/actions/0/argument_drift/"
	for _, tc := range []struct {
		name    string
		actions []string
		edits   []edit
		want    []string // rule and error
		warn    []string
	}{
		{"a plain record is valid", []string{plainAction, leaseAction, approvedAction}, nil, nil, nil},
		{"version missing", nil, []edit{{"/schema_version", remove}}, []string{"S-02 E_REQUIRED_MISSING"}, nil},
		{"version of another type", nil, []edit{{"/schema_version", 3}}, []string{"S-02 E_SCHEMA_VERSION"}, nil},
		{"version unknown", nil, []edit{{"/schema_version", "aep/v0.5"}}, []string{"S-02 E_SCHEMA_VERSION"}, nil},
		{"run id a number", nil, []edit{{"/run_id", 1}}, []string{"S-03 E_TYPE"}, nil},
		{"made at a time that is no number", nil, []edit{{"/created_at_ms", nil}}, []string{"S-04 E_TYPE"}, nil},
		{"null where null is legal", nil, []edit{{"/parent_trace_id", nil}, {"/prev_record_hash", nil}, {"/mcp_server_card_digest", nil}}, nil, nil},
		{"null where it is not", nil, []edit{{"/trace_id", nil}, {"/user_id", nil}}, []string{"S-05 E_TYPE"}, nil},
		{"a list that is an object", nil, []edit{{"/actions", map[string]any{}}}, []string{"S-06 E_TYPE"}, nil},
		{"an entry that is no object", nil, []edit{{"/input_refs", []any{"x"}}}, []string{"S-06 E_TYPE"}, nil},
		{"a reference without uri", nil, []edit{{"/output_refs", []any{map[string]any{}}}}, []string{"S-06 E_REQUIRED_MISSING"}, nil},
		{"an action without id and time", []string{plainAction}, []edit{{"/actions/0/action_id", remove}, {"/actions/0/timestamp_ms", remove}}, []string{"S-07 E_REQUIRED_MISSING"}, nil},
		{"labels that are not strings", []string{plainAction}, []edit{{"/actions/0/input_taint_labels", []any{1}}}, []string{"S-07 E_TYPE"}, nil},
		{"exit code with a fraction", []string{plainAction}, []edit{{"/actions/0/exit_code", 1.5}}, []string{"S-07 E_TYPE"}, nil},
		{"capability decision without subject", []string{leaseAction}, []edit{{"/actions/0/capability_decision/subject", remove}}, []string{"S-08 E_REQUIRED_MISSING"}, nil},
		{"capability decision unknown", nil, []edit{{"/capability_decisions", []any{map[string]any{"capability": "a", "subject": "b", "resource": "c", "decision": "maybe"}}}}, []string{"S-08 E_ENUM"}, nil},
		{"permission gate without gate", []string{plainAction}, []edit{{"/actions/0/permission_gate", map[string]any{"decision": "denied"}}}, []string{"S-09 E_REQUIRED_MISSING"}, nil},
		{"verifier that passed perhaps", nil, []edit{{"/verifier_results", []any{map[string]any{"verifier_id": "v", "passed": "yes"}}}}, []string{"S-10 E_TYPE"}, nil},
		{"latency without actual", nil, []edit{{"/budget_ledger", map[string]any{"latency_budget": map[string]any{"limit_ms": 1}}}}, []string{"S-11 E_REQUIRED_MISSING"}, nil},
		{"turn index with a fraction", nil, []edit{{"/run_context", map[string]any{"turn_index": 0.5}}}, []string{"S-12 E_TYPE"}, nil},
		{"turn index negative", nil, []edit{{"/run_context", map[string]any{"turn_index": -1}}}, []string{"S-12 E_RANGE"}, nil},
		{"signature without key id", nil, []edit{{"/signature/key_id", remove}}, []string{"S-13 E_REQUIRED_MISSING"}, nil},
		{"two enums wrong in one action", []string{plainAction}, []edit{{"/actions/0/side_effect_class", "write"}, {"/actions/0/recording_mode", "some"}}, []string{"S-14 E_ENUM"}, nil},
		{"coverage that is a string", []string{plainAction}, []edit{{"/actions/0/state_digest_kind", "other"}, {"/actions/0/state_digest_coverage", "all"}}, []string{"S-15 E_COVERAGE_SHAPE"}, nil},
		{"coverage with an unknown member", []string{plainAction}, []edit{{"/actions/0/state_digest_kind", "db-rowset"}, {"/actions/0/state_digest_coverage", object(t, rowsCoverage)}, {"/actions/0/state_digest_coverage/port", 1}}, []string{"S-16 E_COVERAGE_UNKNOWN_FIELD"}, nil},
		{"partition with an unknown member", []string{plainAction}, []edit{{"/actions/0/state_digest_kind", "memory-bag"}, {"/actions/0/state_digest_coverage", object(t, bagCoverage)}, {"/actions/0/state_digest_coverage/mixed_partition/more", 1}}, []string{"S-16 E_COVERAGE_UNKNOWN_FIELD"}, nil},
		{"vendor kind of one label and odd version", []string{plainAction}, []edit{{"/actions/0/state_digest_kind", "other"}, {"/actions/0/state_digest_coverage", map[string]any{"other_kind": "mine", "coverage_schema_version": "1.0.0-01", "description": ""}}}, []string{"S-17 E_OTHER_KIND_NAMESPACE", "S-18 E_COVERAGE_SCHEMA_VERSION"}, nil},
		{"drift with an empty digest", []string{approvedAction}, []edit{{drift + "observed_arg_digest", ""}}, []string{"S-19 E_DRIFT_SHAPE"}, nil},
		{"drift of the draft", []string{approvedAction}, []edit{{"/actions/0/argument_drift", map[string]any{"detected": false}}}, []string{"S-24 E_DRIFT_SUPERSEDED_FIELD"}, nil},
		{"grant unknown", []string{plainAction}, []edit{{"/actions/0/approval_grant", "other-mine"}}, []string{"S-20 E_ENUM"}, nil},
		{"extension without digest", []string{leaseAction}, []edit{{"/actions/0/capability_decision/approval_extension", map[string]any{"namespace": "n", "mode": "m"}}}, []string{"S-21 E_EXTENSION_SHAPE"}, nil},
		{"reason class unknown", []string{leaseAction}, []edit{{"/actions/0/capability_decision/deny_reason_class", "mood"}}, []string{"S-22 E_ENUM"}, nil},
		{"lease evidence null", []string{leaseAction}, []edit{{"/actions/0/bounded_lease_evidence", nil}}, []string{"S-25 E_LEASE_EVIDENCE_SHAPE"}, nil},
		{"lease evidence with ordinal zero", []string{leaseAction}, []edit{{ble + "invocation_ordinal", 0}}, []string{"S-25 E_LEASE_EVIDENCE_SHAPE"}, nil},
		{"timestamp proof of numbers", nil, []edit{{"/timestamp_proof", map[string]any{"timestamp": 1, "authority": "a", "proof": "p"}}}, []string{"S-26 E_TYPE"}, nil},
		{"shape stops agreement", []string{leaseAction}, []edit{{"/run_id", 1}, {ble + "lease_duration_ms", 1}}, []string{"S-03 E_TYPE"}, nil},

		{"summary too low", []string{plainAction, leaseAction}, []edit{{"/run_side_effect_class_max", "read"}}, []string{"X-01 E_RUN_SIDE_EFFECT_MAX_MISMATCH"}, nil},
		{"summary without actions", nil, []edit{{"/run_side_effect_class_max", "unknown"}}, []string{"X-01 E_RUN_SIDE_EFFECT_MAX_MISMATCH"}, nil},
		{"an absent class counts as unknown", []string{plainAction}, []edit{{"/actions/0/side_effect_class", remove}, {"/run_side_effect_class_max", "unknown"}}, nil, nil},
		{"a read that changes", []string{plainAction}, []edit{{"/actions/0/state_changing", true}}, []string{"X-02 E_STATE_CHANGING_MISMATCH"}, nil},
		{"unknown effects and no change", []string{plainAction}, []edit{{"/actions/0/side_effect_class", "unknown"}}, nil, []string{"X-02 W_STATE_CHANGING_UNKNOWN"}},
		{"digest with kind only", []string{plainAction}, []edit{{"/actions/0/post_state_digest", "x"}, {"/actions/0/state_digest_kind", "git-tree"}}, []string{"X-03 E_STATE_DIGEST_WITHOUT_COVERAGE", "X-04 E_STATE_DIGEST_PAIR"}, nil},
		{"lease without scope", []string{leaseAction}, []edit{{"/actions/0/scope_lease_id", remove}}, []string{"X-05 E_LEASE_SCOPE_ID_MISSING"}, nil},
		{"lease without evidence", []string{leaseAction}, []edit{{"/actions/0/bounded_lease_evidence", remove}}, []string{"X-06 E_LEASE_EVIDENCE_MISSING"}, nil},
		{"evidence of another lease", []string{leaseAction}, []edit{{ble + "lease_id", "urn:uuid:other"}}, []string{"X-07 E_LEASE_ID_MISMATCH"}, nil},
		{"evidence that is null without lease", []string{plainAction}, []edit{{"/actions/0/bounded_lease_evidence", nil}}, []string{"X-08 E_LEASE_EVIDENCE_FORBIDDEN"}, nil},
		{"lease that ends as it begins", []string{leaseAction}, []edit{{ble + "lease_expires_at_ms", 1700000000000}}, []string{"X-09 E_LEASE_WINDOW_INVALID"}, nil},
		{"duration off by one", []string{leaseAction}, []edit{{ble + "lease_duration_ms", 59999}}, []string{"X-10 E_LEASE_DURATION_MISMATCH"}, nil},
		{"limit without count", []string{leaseAction}, []edit{{ble + "invocation_ordinal", remove}, {ble + "invocations_remaining", remove}}, []string{"X-11 E_LEASE_INVOCATION_EVIDENCE_MISSING"}, nil},
		{"remaining does not follow", []string{leaseAction}, []edit{{ble + "invocations_remaining", 2}}, []string{"X-34 E_LEASE_INVOCATION_INCONSISTENT"}, nil},
		{"allowed at the instant of expiry", []string{leaseAction}, []edit{{ble + "execution_started_at_ms", 1700000060000}}, []string{"X-12 E_LEASE_OUTSIDE_GRANT"}, nil},
		{"allowed with nothing remaining", []string{leaseAction}, []edit{{ble + "invocations_remaining", 0}, {ble + "invocation_ordinal", remove}}, []string{"X-12 E_LEASE_OUTSIDE_GRANT"}, nil},
		{"expired in its window", []string{leaseAction}, []edit{{"/actions/0/approval_decision", "expired"}, {"/actions/0/capability_decision/decision", "deny"}}, []string{"X-13 E_DECISION_UNSUPPORTED"}, nil},
		{"revoked by nothing", []string{leaseAction}, []edit{{"/actions/0/approval_decision", "revoked"}, {"/actions/0/capability_decision/decision", "deny"}}, []string{"X-14 E_DECISION_UNSUPPORTED"}, nil},
		{"approval expired without evidence", []string{approvedAction}, []edit{{"/actions/0/approval_decision", "expired"}, {"/actions/0/capability_decision/decision", "deny"}}, []string{"X-15 E_DECISION_UNSUPPORTED"}, nil},
		{"re-approval without drift", []string{approvedAction}, []edit{{"/actions/0/approval_decision", "drift-requires-reapproval"}, {"/actions/0/capability_decision/decision", "deny"}}, []string{"X-33 E_DECISION_UNSUPPORTED"}, nil},
		{"one-shot without approval", []string{approvedAction}, []edit{{"/actions/0/approval_context_hash", remove}}, []string{"X-16 E_APPROVAL_CONTEXT_MISSING"}, nil},
		{"grant without drift result", []string{approvedAction}, []edit{{"/actions/0/argument_drift", remove}}, []string{"X-17 E_DRIFT_NOT_DECLARED"}, nil},
		{"drift against another authority", []string{approvedAction}, []edit{{drift + "approval_or_lease_id", "sha256:12"}}, []string{"X-18 E_DRIFT_AUTHORITY_MISMATCH"}, nil},
		{"receipt anchored by nothing", []string{approvedAction}, []edit{{"/actions/0/approval_grant", "policy-allow-with-receipt"}, {"/actions/0/approval_context_hash", remove}, {"/policy_bundle_digest", remove}}, nil, []string{"X-18 W_DRIFT_AUTHORITY_UNBOUND"}},
		{"matched without version", []string{approvedAction}, []edit{{drift + "args_equality_version", remove}}, []string{"X-19 E_DRIFT_INCOMPLETE"}, nil},
		{"drifted without reason", []string{approvedAction}, []edit{{drift + "result", "drifted"}, {drift + "observed_arg_digest", "sha256:23"}, {"/actions/0/approval_decision", "deny"}, {"/actions/0/capability_decision/decision", "deny"}}, []string{"X-31 E_DRIFT_REASON_MISSING"}, nil},
		{"matched against no grant", []string{approvedAction}, []edit{{"/actions/0/approval_grant", "none"}}, []string{"X-20 E_DRIFT_WITHOUT_GRANT"}, nil},
		{"matched with two digests", []string{approvedAction}, []edit{{drift + "observed_arg_digest", "sha256:23"}}, []string{"X-21 E_DRIFT_DIGEST_CONTRADICTION"}, nil},
		{"drifted and allowed", []string{approvedAction}, []edit{{drift + "result", "drifted"}, {drift + "observed_arg_digest", "sha256:23"}, {drift + "drift_reason", "amount"}}, []string{"X-22 E_DRIFT_NOT_DENIED"}, nil},
		{"grant without decision", []string{approvedAction}, []edit{{"/actions/0/approval_decision", remove}}, []string{"X-23 E_APPROVAL_DECISION_MISSING"}, nil},
		{"revoked without grant", []string{plainAction}, []edit{{"/actions/0/approval_decision", "revoked"}}, []string{"X-24 E_APPROVAL_DECISION_WITHOUT_GRANT"}, nil},
		{"allowed although denied", []string{approvedAction}, []edit{{"/actions/0/approval_decision", "deny"}}, []string{"X-25 E_APPROVAL_DECISION_CONFLICT"}, nil},
		{"denied by another law although approved", []string{approvedAction}, []edit{{"/actions/0/capability_decision/decision", "deny"}}, nil, nil},
		{"reason of a denial beside an allow", []string{leaseAction}, []edit{{"/actions/0/capability_decision/deny_reason_class", "other"}}, []string{"X-26 E_DENY_REASON_WITHOUT_DENY"}, nil},
		{"draft mode alone", []string{leaseAction}, []edit{{"/actions/0/approval_grant", remove}, {"/actions/0/approval_decision", remove}, {"/actions/0/bounded_lease_evidence", remove}, {"/actions/0/argument_drift", remove}, {"/actions/0/capability_decision/approval_mode", "bounded-lease"}}, []string{"X-27 E_APPROVAL_MODE_SUPERSEDED"}, nil},
		{"draft mode agrees", []string{leaseAction}, []edit{{"/actions/0/capability_decision/approval_mode", "bounded-lease"}}, nil, nil},
		{"draft mode contradicts", []string{leaseAction}, []edit{{"/actions/0/capability_decision/approval_mode", "re-approval-on-drift"}}, []string{"X-36 E_APPROVAL_MODE_CONFLICT"}, nil},
		{"placements differ", []string{leaseAction}, []edit{{"/actions/0/capability_decision/approval_grant", "none"}}, []string{"X-32 E_APPROVAL_PLACEMENT_CONFLICT"}, nil},
		{"two actions of one id", []string{plainAction, plainAction}, nil, []string{"X-28 E_ACTION_ID_DUPLICATE"}, nil},
		{"own parent", []string{plainAction}, []edit{{"/actions/0/parent_action_id", "urn:uuid:a"}}, []string{"X-29 E_PARENT_SELF"}, nil},
		{"parents in a cycle", []string{plainAction, leaseAction, approvedAction}, []edit{{"/actions/0/parent_action_id", "urn:uuid:c"}, {"/actions/1/parent_action_id", "urn:uuid:a"}, {"/actions/2/parent_action_id", "urn:uuid:b"}}, []string{"X-30 E_PARENT_CYCLE"}, nil},
		{"re-approved with the approval that drifted", []string{approvedAction, approvedAction}, []edit{
			{drift + "result", "drifted"},
			{drift + "observed_arg_digest", "sha256:23"},
			{drift + "drift_reason", "amount"},
			{"/actions/0/approval_decision", "drift-requires-reapproval"},
			{"/actions/0/capability_decision/decision", "deny"},
			{"/actions/1/action_id", "urn:uuid:d"},
			{"/actions/1/parent_action_id", "urn:uuid:c"},
		}, []string{"X-35 E_REAPPROVAL_REUSES_GRANT"}, nil},
		{"mixed without partition", []string{plainAction}, []edit{{"/actions/0/state_digest_kind", "memory-bag"}, {"/actions/0/state_digest_coverage", object(t, bagCoverage)}, {"/actions/0/state_digest_coverage/mixed_partition", remove}}, nil, []string{"W-02 W_MIXED_WITHOUT_PARTITION"}},
		{"a delta that nobody uses", []string{plainAction}, []edit{{"/actions/0/delta_ref", "x"}}, nil, []string{"W-03 W_DELTA_REF_UNUSED"}},
		{"new members in an old record", []string{approvedAction}, []edit{{"/schema_version", "aep/v0.2"}, {drift + "result", "nonsense"}}, nil, []string{"W-01 W_V03_FIELD_IN_OLD_VERSION"}},
		{"two faults in one record", []string{leaseAction, approvedAction}, []edit{{ble + "lease_duration_ms", 1}, {"/actions/1/approval_decision", remove}}, []string{"X-10 E_LEASE_DURATION_MISMATCH", "X-23 E_APPROVAL_DECISION_MISSING"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			raw := encode(t, apply(t, record(t, tc.actions...), tc.edits))
			_, rep := evidence.Check(raw, evidence.Options{})
			if tc.want == nil {
				tc.want = []string{}
			}
			if tc.warn == nil {
				tc.warn = []string{}
			}
			if diff := cmp.Diff(tc.want, found(rep.Errors)); diff != "" {
				t.Errorf("errors (-want +got):\n%s\n%v", diff, rep.Errors)
			}
			if diff := cmp.Diff(tc.warn, found(rep.Warnings)); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			for _, f := range slices.Concat(rep.Errors, rep.Warnings) {
				if !inTable(f) {
					t.Errorf("the table of rules does not say that %s reports %s", f.Rule, f.Name)
				}
			}
		})
	}
}

func inTable(f evidence.Finding) bool {
	return slices.ContainsFunc(evidence.Rules, func(r evidence.Rule) bool { return r.ID == f.Rule && slices.Contains(r.Errors, f.Name) })
}

func TestWhatIsNoObjectBreaksOneRule(t *testing.T) {
	for _, raw := range []string{"", "null", "[]", `"{}"`, "{", "{} {}", "\xff", "\ufeff{}", `{"a":1,}`, strings.Repeat("[", 5000)} {
		v, rep := evidence.Check([]byte(raw), evidence.Options{Signature: true})
		if got := found(rep.Errors); v != nil || !slices.Equal(got, []string{"S-01 E_NOT_JSON_OBJECT"}) {
			t.Errorf("%.20q: %v", raw, got)
		}
	}
}

func TestTier4AsksOnlyTheRegistriesItHas(t *testing.T) {
	ms := func(n int64) *int64 { return &n }
	full := func() *evidence.Registry {
		return &evidence.Registry{
			Keys:                 map[string]evidence.KeyStatus{"k": {RevokedAtMS: ms(1700000001001)}},
			Policies:             map[string]bool{"sha256:44": true},
			Leases:               map[string][]evidence.LeaseWindow{"urn:uuid:lease": {{GrantedAtMS: 1700000000000, ExpiresAtMS: 1700000030000}, {SinceMS: 1700000000100, GrantedAtMS: 1700000000000, ExpiresAtMS: 1700000060000}, {SinceMS: 1700000050000, GrantedAtMS: 1700000000000, ExpiresAtMS: 1700000090000}}},
			Approvals:            map[string]bool{"sha256:11": true},
			RevocationEvents:     map[string]int64{"urn:uuid:e": 1700000000700},
			PolicyVersions:       map[string]bool{"7": true},
			ArgsEqualityVersions: map[string]bool{evidence.ArgsJCSNFC: true},
			RedactionProfiles:    map[string]bool{"none": true},
			ExtensionNamespaces:  map[string]bool{"org.example": true},
			Actions:              map[string]bool{"urn:uuid:before": true},
			UnknownNeedsApproval: true,
		}
	}
	revoked := []edit{{"/actions/0/approval_decision", "revoked"}, {"/actions/0/capability_decision/decision", "deny"}}
	for _, tc := range []struct {
		name    string
		actions []string
		edits   []edit
		without func(*evidence.Registry)
		want    []string
	}{
		{"all known", []string{leaseAction, approvedAction}, []edit{{"/actions/0/parent_action_id", "urn:uuid:before"}}, nil, []string{}},
		{"key unknown", nil, []edit{{"/signature/key_id", "z"}}, nil, []string{"P-01 E_KEY_UNTRUSTED"}},
		{"key revoked at that instant", nil, []edit{{"/created_at_ms", 1700000001001}}, nil, []string{"P-01 E_KEY_REVOKED"}},
		{"policy unknown", nil, []edit{{"/policy_bundle_digest", "sha256:45"}}, nil, []string{"P-02 E_POLICY_UNKNOWN"}},
		{"policy unknown without a registry of policies", nil, []edit{{"/policy_bundle_digest", "sha256:45"}}, func(g *evidence.Registry) { g.Policies = nil }, []string{}},
		{"lease unknown", []string{leaseAction}, nil, func(g *evidence.Registry) { g.Leases = map[string][]evidence.LeaseWindow{} }, []string{"P-03 E_LEASE_UNKNOWN"}},
		{"lease before its renewal", []string{leaseAction}, nil, func(g *evidence.Registry) { g.Leases["urn:uuid:lease"] = g.Leases["urn:uuid:lease"][:1] }, []string{"P-04 E_LEASE_REGISTRY_MISMATCH"}},
		{"approval unknown", []string{approvedAction}, nil, func(g *evidence.Registry) { g.Approvals = map[string]bool{} }, []string{"P-05 E_APPROVAL_UNKNOWN"}},
		{"revoked by a known Event", []string{leaseAction}, append(revoked, edit{"/actions/0/bounded_lease_evidence/revocation_event_id", "urn:uuid:e"}), nil, []string{}},
		{"revoked by a later Event", []string{leaseAction}, append(revoked, edit{"/actions/0/bounded_lease_evidence/revocation_event_id", "urn:uuid:e"}), func(g *evidence.Registry) { g.RevocationEvents["urn:uuid:e"]++ }, []string{"P-06 E_REVOCATION_EVENT_UNKNOWN"}},
		{"revoked by an unknown policy", []string{leaseAction}, append(revoked, edit{"/actions/0/bounded_lease_evidence/revocation_policy_version", "8"}), nil, []string{"P-07 E_POLICY_VERSION_UNKNOWN"}},
		{"equality unknown", []string{approvedAction}, []edit{{"/actions/0/argument_drift/args_equality_version", "x/1"}}, nil, []string{"P-08 E_ARGS_EQUALITY_VERSION_UNKNOWN"}},
		{"payload has another digest", []string{approvedAction}, nil, func(g *evidence.Registry) {
			g.Payloads = func(string) ([]byte, []byte, bool) { return []byte(`{}`), nil, true }
		}, []string{"P-08 E_DRIFT_RECOMPUTE_MISMATCH"}},
		{"profile unknown", []string{plainAction}, []edit{{"/actions/0/state_digest_kind", "memory-bag"}, {"/actions/0/state_digest_coverage", object(t, bagCoverage)}, {"/actions/0/state_digest_coverage/redaction_profile", "p"}}, nil, []string{"P-09 E_REDACTION_PROFILE_UNKNOWN"}},
		{"profile named by the record", []string{plainAction}, []edit{{"/redaction_profile", "p"}, {"/actions/0/state_digest_kind", "memory-bag"}, {"/actions/0/state_digest_coverage", object(t, bagCoverage)}, {"/actions/0/state_digest_coverage/redaction_profile", "p"}}, nil, []string{}},
		{"parent unknown", []string{plainAction}, []edit{{"/actions/0/parent_action_id", "urn:uuid:never"}}, nil, []string{"P-10 E_PARENT_UNRESOLVED"}},
		{"namespace unknown", []string{leaseAction}, []edit{{"/actions/0/capability_decision/approval_extension", map[string]any{"namespace": "n", "mode": "m", "evidence_digest": "d"}}}, nil, []string{"P-11 E_EXTENSION_NAMESPACE_UNKNOWN"}},
		{"unknown effects allowed by nobody", []string{plainAction}, []edit{{"/actions/0/side_effect_class", remove}, {"/actions/0/approval_decision", "allow"}}, nil, []string{"P-12 E_UNKNOWN_SIDE_EFFECT_POLICY"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := full()
			if tc.without != nil {
				tc.without(g)
			}
			_, rep := evidence.Check(encode(t, apply(t, record(t, tc.actions...), tc.edits)), evidence.Options{Registry: g})
			if diff := cmp.Diff(tc.want, found(rep.Errors)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryRuleIdIsUsedOnceInTheTable(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range evidence.Rules {
		if seen[r.ID] || r.Condition == "" || r.Tier < 1 || r.Tier > 4 {
			t.Errorf("rule %s", r.ID)
		}
		seen[r.ID] = true
	}
	if len(evidence.Rules) < 26+36+12+13 {
		t.Errorf("%d rules", len(evidence.Rules))
	}
}
