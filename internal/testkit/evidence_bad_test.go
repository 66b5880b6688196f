package testkit_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/testkit"
)

// badAction is an action under a lease; each case changes one text of it.
const badAction = `{"action_id":"a1","tool_name":"send","state_changing":true,"timestamp_ms":1500,"evidence_refs":[],` +
	`"side_effect_class":"mutate-external","recording_mode":"validation","scope_lease_id":"L",` +
	`"approval_grant":"bounded-lease","approval_decision":"allow",` +
	`"argument_drift":{"result":"matched","approval_or_lease_id":"L","approved_arg_digest":"sha256:1","observed_arg_digest":"sha256:1","args_equality_version":"mw-args-jcs-nfc/1"},` +
	`"bounded_lease_evidence":{"lease_id":"L","lease_granted_at_ms":1000,"lease_expires_at_ms":2000,"lease_duration_ms":1000,"execution_started_at_ms":1500},` +
	`"capability_decision":{"capability":"write","subject":"urn:a","resource":"urn:r","decision":"allow"}}`

// TestBadRecordsAreToldEveryErrorByItsName asks a running service about records that
// are signed as they stand, so that each breaks nothing but what is named.
func TestBadRecordsAreToldEveryErrorByItsName(t *testing.T) {
	s := testkit.Start(t)
	identity := s.As("evidence").Identity()
	sign := func(text string) string {
		v, err := evidence.ParseValue([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSuffix(text, "}") + `,"signature":{"alg":"ed25519","key_id":"` + identity.KeyID + `","sig":"` + evidence.Sign(v, identity.Key) + `"}}`
	}
	record := func(action string) string {
		return `{"schema_version":"aep/v0.3","run_id":"r","created_at_ms":1500,"actions":[` + action + `]}`
	}
	judged := func(body string) (names, paths []string) {
		t.Helper()
		a := s.Do(testkit.Request{Method: http.MethodPost, URL: s.AuthzURL + "/v1/evidence:verify", Token: s.Token(s.Owner), Body: []byte(body)})
		if a.Status != http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		for _, f := range a.Value(t).Member("errors").Items() {
			if rule := f.Member("rule").Str(); rule == "P-03" {
				continue // the lease is of no Group here
			}
			names, paths = append(names, f.Member("name").Str()), append(paths, f.Member("path").Str())
		}
		return names, paths
	}
	if names, _ := judged(sign(record(badAction))); len(names) != 0 {
		t.Fatalf("the record that the cases change is bad itself: %v", names)
	}
	change := func(old, now string) string {
		if !strings.Contains(badAction, old) {
			t.Fatalf("no %s", old)
		}
		return strings.Replace(badAction, old, now, 1)
	}
	coverage := `"pre_state_digest":"sha256:1","state_digest_kind":"git-tree","state_digest_coverage":{"tree_sha":"1","tree_root":"/","why":"so"},`
	for _, tc := range []struct {
		name, body string
		want       []string
		at         string
	}{
		{
			"a summary that is there and wrong", sign(strings.Replace(record(badAction), `"actions"`, `"run_side_effect_class_max":"read","actions"`, 1)),
			[]string{"E_RUN_SIDE_EFFECT_MAX_MISMATCH"},
			"/run_side_effect_class_max",
		},
		{
			"drift bound to another authority", sign(record(change(`"approval_or_lease_id":"L"`, `"approval_or_lease_id":"M"`))),
			[]string{"E_DRIFT_AUTHORITY_MISMATCH"},
			"/actions/0/argument_drift/approval_or_lease_id",
		},
		{
			"drift bound to nothing", sign(record(change(`"approval_or_lease_id":"L",`, ``))),
			[]string{"E_DRIFT_INCOMPLETE"},
			"/actions/0/argument_drift/approval_or_lease_id",
		},
		{
			"lease evidence outside of its window", sign(record(change(`"execution_started_at_ms":1500`, `"execution_started_at_ms":2000`))),
			[]string{"E_LEASE_OUTSIDE_GRANT"},
			"/actions/0/bounded_lease_evidence",
		},
		{
			"a member that comes twice", sign(record(change(`"tool_name":"send"`, `"tool_name":"send","tool_name":"send"`))),
			[]string{"E_DUPLICATE_KEY"},
			"/actions/0/tool_name",
		},
		{
			"a digest without coverage", sign(record(change(`"evidence_refs":[]`, `"evidence_refs":[],"post_state_digest":"opaque"`))),
			[]string{"E_STATE_DIGEST_WITHOUT_COVERAGE"},
			"/actions/0",
		},
		{
			"a member that a closed kind does not have", sign(record(change(`"evidence_refs"`, coverage+`"evidence_refs"`))),
			[]string{"E_COVERAGE_UNKNOWN_FIELD"},
			"/actions/0/state_digest_coverage/why",
		},
		{
			"several at once", sign(record(strings.Replace(change(`"execution_started_at_ms":1500`, `"execution_started_at_ms":2000`), `"lease_duration_ms":1000`, `"lease_duration_ms":7`, 1))),
			[]string{"E_LEASE_DURATION_MISMATCH", "E_LEASE_OUTSIDE_GRANT"},
			"",
		},
		{
			"a default that is written after signing", strings.Replace(sign(record(badAction)), `"actions"`, `"verifier_results":[],"actions"`, 1),
			[]string{"E_SIGNATURE_INVALID"},
			"",
		},
	} {
		names, paths := judged(tc.body)
		if !slices.Equal(names, tc.want) || tc.at != "" && !strings.HasPrefix(strings.Join(paths, ""), tc.at) {
			t.Errorf("%s: %v at %v, want %v at %s", tc.name, names, paths, tc.want, tc.at)
		}
	}
}
