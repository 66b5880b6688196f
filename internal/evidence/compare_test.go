package evidence_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/evidence"
)

const (
	h1 = "1111111111111111111111111111111111111111111111111111111111111111"
	h2 = "2222222222222222222222222222222222222222222222222222222222222222"
)

var coverages = map[string]string{
	"git-tree":    `{"tree_sha":"t","tree_root":"/"}`,
	"db-rowset":   rowsCoverage,
	"sandbox-fs":  `{"base_image_digest":"i","sandbox_root":"/","include_predicates":[],"exclude_predicates":[],"symlink_policy":"follow","generated_paths_included":true}`,
	"browser-dom": `{"origin":"https://x","route_path":"/","frame_path":"/","selector_root":"#a","selector_kind":"css","capture_phase":"post-hydration","attribute_order":"as-is","whitespace_policy":"preserve"}`,
	"kv-snapshot": `{"namespace":"n","redaction_profile":"p","durable_vs_scratch":"durable-only","generation_number":3}`,
	"memory-bag":  bagCoverage,
	"other":       `{"other_kind":"com.example.x","coverage_schema_version":"1.0.0","description":"d"}`,
}

func digest(t testing.TB, kind string, edits []edit, hash string) evidence.Digest {
	t.Helper()
	d := map[string]any{"kind": kind, "coverage": apply(t, object(t, coverages[kind]), edits), "digest": hash}
	return evidence.DigestOf(parse(t, string(encode(t, d))))
}

func TestComparability(t *testing.T) {
	clock := func(m map[string]any) []edit {
		return []edit{{"generation_number", remove}, {"vector_clock", m}}
	}
	for _, tc := range []struct {
		name, kind string
		a, b       []edit
		want       string // state, or reason, or assumptions
	}{
		{"git the same", "git-tree", nil, nil, "comparable"},
		{"git without excludes is git with none", "git-tree", []edit{{"excludes", []any{}}}, nil, "comparable"},
		{"git with other excludes", "git-tree", []edit{{"excludes", []any{"x"}}}, nil, "selector-mismatch"},
		{"rows without snapshot", "db-rowset", nil, []edit{{"snapshot_id", "s"}}, "best-effort, no snapshot"},
		{"rows of one snapshot", "db-rowset", []edit{{"snapshot_id", "s"}, {"row_count", 1}}, []edit{{"snapshot_id", "s"}, {"rows_predicate", "same"}}, "comparable"},
		{"rows of two snapshots", "db-rowset", []edit{{"snapshot_id", "s"}}, []edit{{"snapshot_id", "r"}}, "boundary-mismatch"},
		{"sandbox with other includes", "sandbox-fs", []edit{{"include_predicates", []any{"a"}}}, nil, "selector-mismatch"},
		{"page captured at another time", "browser-dom", []edit{{"capture_timestamp_ms", 5}}, nil, "boundary-mismatch"},
		{"page as text on one side", "browser-dom", []edit{{"text_only", true}}, []edit{{"text_only", false}}, "digest-input-mismatch"},
		{"keys of one generation", "kv-snapshot", nil, nil, "comparable"},
		{"keys of two generations", "kv-snapshot", nil, []edit{{"generation_number", 4}}, "boundary-mismatch"},
		{"clocks in another order", "kv-snapshot", clock(map[string]any{"n9": 1, "n10": 2}), clock(map[string]any{"n10": 2.0, "n9": 1}), "comparable"},
		{"a clock entry that a signature would drop", "kv-snapshot", clock(map[string]any{"__proto__": 1}), clock(map[string]any{}), "boundary-mismatch"},
		{"scratch", "kv-snapshot", []edit{{"durable_vs_scratch", "scratch-only"}}, []edit{{"durable_vs_scratch", "scratch-only"}}, "scratch-only"},
		{"mixed without versions", "memory-bag", nil, nil, "best-effort, no snapshot|durable subset only"},
		{"mixed with a generation", "memory-bag", []edit{{"generation_number", 1}}, []edit{{"generation_number", 1}}, "durable subset only"},
		{"mixed without partition", "memory-bag", []edit{{"mixed_partition", remove}}, nil, "mixed-without-partition"},
		{"vendor kind", "other", nil, nil, "other-kind-unregistered"},
		{"vendor version", "other", []edit{{"coverage_schema_version", "1.0.1"}}, nil, "boundary-mismatch"},
		{"coverage of another shape", "git-tree", []edit{{"tree_sha", 1}}, nil, "coverage-invalid"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := digest(t, tc.kind, tc.a, h1), digest(t, tc.kind, tc.b, "SHA256-"+h2)
			for _, got := range []evidence.Comparison{evidence.Compare(a, b, nil), evidence.Compare(b, a, nil)} {
				s := string(got.State)
				if got.State == evidence.NotComparable {
					s = got.Reason
				}
				for i, assume := range got.Assumptions {
					s = map[bool]string{true: assume, false: s + "|" + assume}[i == 0]
				}
				if s != tc.want {
					t.Errorf("got %s", s)
				}
				if (got.DigestsEqual == nil) != (got.State == evidence.NotComparable) || (got.DigestsEqual != nil && *got.DigestsEqual) {
					t.Error("digests_equal")
				}
			}
		})
	}
}

func TestDigestForms(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want string
	}{
		{h1, "sha256:" + h1, "equal"},
		{"sha256-ABCD", "sha256:abcd", "equal"},
		{"sha256:ab", "sha512:ab", "digest-algorithm-mismatch"},
		{"opaque!", "opaque!", "equal"},
		{"opaque!", "Opaque!", "differ"},
		{"opaque!", "sha256:ab", "digest-algorithm-mismatch"},
		{"", "", "equal"},
	} {
		got := evidence.Compare(digest(t, "git-tree", nil, tc.a), digest(t, "git-tree", nil, tc.b), nil)
		s := got.Reason
		if got.DigestsEqual != nil {
			s = map[bool]string{true: "equal", false: "differ"}[*got.DigestsEqual]
		}
		if s != tc.want {
			t.Errorf("%s and %s: %s", tc.a, tc.b, s)
		}
	}
}

func TestRegisteredComparators(t *testing.T) {
	a, b := digest(t, "other", nil, h1), digest(t, "other", []edit{{"window", "x"}}, h1)
	with := func(c evidence.Comparator) evidence.Comparison {
		return evidence.Compare(a, b, evidence.Comparators{"com.example.x@1.0.0": c})
	}
	if got := with(func(_, _ *evidence.Value) (string, []string) { return "", []string{"z", "a", "z"} }); got.State != evidence.ComparableUnderAssumption || !cmp.Equal(got.Assumptions, []string{"a", "z"}) {
		t.Errorf("%+v", got)
	}
	if got := with(func(x, _ *evidence.Value) (string, []string) { return x.Get("window").Str(), nil }); got.Reason != evidence.ReasonAsymmetric {
		t.Errorf("%+v", got)
	}
}

func TestCompareAnswersOneOfThreeAndTheSameBothWays(t *testing.T) {
	kinds := []string{"git-tree", "db-rowset", "sandbox-fs", "browser-dom", "kv-snapshot", "memory-bag", "other", "unknown-kind"}
	side := func(t *rapid.T, label string) evidence.Digest {
		kind := rapid.SampledFrom(kinds).Draw(t, label+" kind")
		d := map[string]any{"kind": kind}
		var cov map[string]any
		if err := json.Unmarshal([]byte(coverages[kind]), &cov); err == nil {
			for _, name := range []string{"snapshot_id", "generation_number", "vector_clock", "durable_vs_scratch", "mixed_partition", "excludes", "text_only", "namespace"} {
				if rapid.IntRange(0, 5).Draw(t, label+name) == 0 {
					cov[name] = rapid.SampledFrom([]any{"durable-only", "scratch-only", "mixed", 1, nil, map[string]any{"a": 1}, []any{"x"}, true}).Draw(t, label+name+" value")
				}
			}
			d["coverage"] = cov
		}
		d["digest"] = rapid.SampledFrom([]any{h1, "sha256:" + h1, "sha512:ab", "x", nil, 4}).Draw(t, label+" digest")
		raw, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		v, err := evidence.ParseValue(raw)
		if err != nil {
			t.Fatal(err)
		}
		return evidence.DigestOf(v)
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := side(t, "a"), side(t, "b")
		x, y := evidence.Compare(a, b, nil), evidence.Compare(b, a, nil)
		if diff := cmp.Diff(x, y); diff != "" {
			t.Fatalf("not symmetric: %s", diff)
		}
		ok := false
		switch x.State {
		case evidence.Comparable:
			ok = x.Reason == "" && len(x.Assumptions) == 0 && x.DigestsEqual != nil
		case evidence.NotComparable:
			ok = x.Reason != "" && len(x.Assumptions) == 0 && x.DigestsEqual == nil
		case evidence.ComparableUnderAssumption:
			ok = x.Reason == "" && len(x.Assumptions) > 0 && x.DigestsEqual != nil
		}
		if !ok {
			t.Fatalf("%+v", x)
		}
	})
}

func TestDecisionEnvelopeGolden(t *testing.T) {
	lease := apply(t, record(t, leaseAction), []edit{
		{"/actions/0/state_digest_kind", "memory-bag"}, {"/actions/0/state_digest_coverage", object(t, bagCoverage)}, {"/actions/0/outcome", "Timeout"},
	})
	for _, tc := range []struct {
		name   string
		record any
		want   string
	}{
		{
			"lease", lease,
			`{"action_class":"network-egress","approval_or_lease_id":"urn:uuid:lease","expiry_ms":1700000060000,"observed_result":"failure","payload_digest":null,"policy_id":"sha256:44","policy_version":"sha256:44","principal_id":"urn:agent:w","run_id":"urn:uuid:w#1","target_boundary":{"kind":"memory-bag","namespace":"notes"}}`,
		},
		{
			"approved, but asked again", apply(t, record(t, approvedAction), []edit{{"/actions/0/capability_decision/decision", "ask_user"}, {"/policy_bundle_digest", remove}}),
			`{"action_class":"mutate-external","approval_or_lease_id":"sha256:11","expiry_ms":null,"observed_result":"skipped","payload_digest":"sha256:22","policy_id":null,"policy_version":null,"principal_id":"urn:agent:w","run_id":"urn:uuid:w#1","target_boundary":null}`,
		},
		{
			"no authority", apply(t, record(t, plainAction), []edit{{"/actions/0/scope_lease_id", "urn:uuid:l"}, {"/actions/0/arguments_digest", "sha256:55"}, {"/actions/0/exit_code", 0}, {"/actions/0/outcome", "error"}}),
			`{"action_class":"read","approval_or_lease_id":"urn:uuid:l","expiry_ms":null,"observed_result":"success","payload_digest":"sha256:55","policy_id":"sha256:44","policy_version":"sha256:44","principal_id":null,"run_id":"urn:uuid:w#1","target_boundary":null}`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := parse(t, string(encode(t, tc.record)))
			got, err := evidence.EnvelopeOf(v, v.Get("actions").Items()[0]).AppendJSON(nil)
			if err != nil || string(got) != tc.want {
				t.Errorf("got %s, want %s (%v)", got, tc.want, err)
			}
		})
	}
}

func TestAssessment(t *testing.T) {
	for _, tc := range []struct {
		name, action string
		edits        []edit
		want         evidence.Assessment
	}{
		{"no grant", plainAction, nil, evidence.Assessment{Authority: "none"}},
		{"proven", approvedAction, nil, evidence.Assessment{Authority: "inside"}},
		{"lease without a check of arguments", leaseAction, nil, evidence.Assessment{Authority: "unproven", Unproven: []string{"argument-drift"}}},
		{"lease without counts", leaseAction, []edit{
			{"bounded_lease_evidence/invocation_ordinal", remove}, {"bounded_lease_evidence/invocation_limit", remove}, {"bounded_lease_evidence/invocations_remaining", remove},
		}, evidence.Assessment{Authority: "unproven", Unproven: []string{"argument-drift", "invocations"}}},
		{"denied", approvedAction, []edit{{"approval_decision", "deny"}}, evidence.Assessment{Authority: "refused"}},
	} {
		got := evidence.Assess(parse(t, string(encode(t, apply(t, object(t, tc.action), tc.edits)))))
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s", tc.name, diff)
		}
	}
}

func TestArgsEquality(t *testing.T) {
	same := [][2]string{
		{`{"b":1.0,"a":"é"}`, ` { "a" : "e\u0301", "b" : 1e0 } `},
		{`{"é":1}`, `{"e\u0301":1}`},
		{`-0`, `0`},
		{`9007199254740993`, `9007199254740992`},
		{`"\n\u0301"`, `"\u000a\u0301"`},
	}
	for _, p := range same {
		if eq, err := evidence.ArgsEqual(evidence.ArgsJCSNFC, []byte(p[0]), []byte(p[1])); err != nil || !eq {
			t.Errorf("%s and %s: %v %v", p[0], p[1], eq, err)
		}
	}
	for _, p := range [][2]string{
		{`[1,2]`, `[2,1]`},
		{`{"a":null}`, `{}`},
		{`"a"`, `"A"`},
		{`"a "`, `"a"`},
		{`1`, `"1"`},
		{`"ﬁ"`, `"fi"`},         // compatibility characters stay apart
		{`"\n\u0301"`, `"\\ń"`}, // the escape does not compose
	} {
		if eq, err := evidence.ArgsEqual(evidence.ArgsJCSNFC, []byte(p[0]), []byte(p[1])); err != nil || eq {
			t.Errorf("%s and %s: %v %v", p[0], p[1], eq, err)
		}
	}
	for _, bad := range []string{``, `{"a":1,"a":1}`, `{"é":1,"e\u0301":2}`, `1e400`, `"\ud800"`, `{"\ud800":1}`, `{"a":1} ` + "\x00"} {
		if _, err := evidence.ArgsDigest(evidence.ArgsJCSNFC, []byte(bad)); !errors.Is(err, evidence.ErrArguments) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := evidence.ArgsDigest("mw-args-jcs-nfc/2", []byte(`{}`)); !errors.Is(err, evidence.ErrArgsEqualityVersion) {
		t.Error(err)
	}
	if got, err := evidence.ArgsDigest(evidence.ArgsJCSNFC, []byte(`{}`)); err != nil || got != "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a" {
		t.Error(got, err)
	}
}

func FuzzArgsForm(f *testing.F) {
	for _, s := range []string{`{"b":[1,"e\u0301"],"a":null}`, `"\n\u0301"`, `{"\u0344":1,"\u0308\u0301":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		form, err := evidence.ArgsForm(evidence.ArgsJCSNFC, b)
		if err != nil {
			return
		}
		again, err := evidence.ArgsForm(evidence.ArgsJCSNFC, form)
		if err != nil || string(again) != string(form) {
			t.Fatalf("%s gives %s (%v)", form, again, err)
		}
	})
}
