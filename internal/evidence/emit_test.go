package evidence_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

func one(n int64) *int64 { return &n }

func TestEmittedRecordsKeepTheirOwnRules(t *testing.T) {
	key, keys := keyPair(7)
	lease := evidence.Action{
		ActionID: "urn:uuid:a", ToolName: "send", TimestampMS: 1000, SideEffectClass: "network-egress", ScopeLeaseID: "urn:uuid:l",
		ApprovalGrant: "bounded-lease", ApprovalDecision: "allow",
		ArgumentDrift:      &evidence.ArgumentDrift{Result: "not-checked", ApprovalOrLeaseID: "urn:uuid:l"},
		Lease:              &evidence.LeaseEvidence{LeaseID: "urn:uuid:l", GrantedAtMS: 500, ExpiresAtMS: 2000, StartedAtMS: 1000, Ordinal: one(2), Limit: one(3)},
		CapabilityDecision: &evidence.CapabilityDecision{Capability: "mail", Subject: "urn:agent:w", Resource: "mailto:x", Decision: "allow"},
	}
	raw, hash, err := evidence.Emit(evidence.Draft{RunID: "r", CreatedAtMS: 1001, Actions: []evidence.Action{lease}}, "k", key)
	if err != nil {
		t.Fatal(err)
	}
	first, rep := evidence.Check(raw, evidence.Options{Signature: true, Keys: keys})
	if !rep.OK() || len(rep.Warnings) > 0 || rep.Signature != evidence.SignatureValid || evidence.RecordHash(first) != hash {
		t.Errorf("%+v", rep)
	}
	for _, want := range []string{`"run_side_effect_class_max":"network-egress"`, `"invocations_remaining":2`, `"prev_record_hash":null`, `"state_changing":true`, `"lease_duration_ms":1500`} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("no %s in %s", want, raw)
		}
	}
	raw, _, err = evidence.Emit(evidence.Draft{RunID: "r", CreatedAtMS: 1002, PrevRecordHash: hash}, "k", key)
	if err != nil {
		t.Fatal(err)
	}
	if _, rep := evidence.Check(raw, evidence.Options{Signature: true, Keys: keys, Previous: first}); !rep.OK() {
		t.Errorf("%+v", rep)
	}

	for name, change := range map[string]func(*evidence.Action){
		"E_LEASE_OUTSIDE_GRANT":           func(a *evidence.Action) { a.Lease.StartedAtMS = 2000 },
		"E_DRIFT_NOT_DECLARED":            func(a *evidence.Action) { a.ArgumentDrift = nil },
		"E_ENUM":                          func(a *evidence.Action) { a.SideEffectClass = "write" },
		"E_STATE_DIGEST_WITHOUT_COVERAGE": func(a *evidence.Action) { a.PostStateDigest = "x" },
		"E_CANON_UNSAFE": func(a *evidence.Action) {
			a.StateDigestKind, a.StateDigestCoverage = "other", strictjson.Raw(`{"other_kind":"a.b","coverage_schema_version":"1.0.0","description":"","__proto__":1}`)
		},
		"E_COVERAGE_SHAPE": func(a *evidence.Action) { a.StateDigestKind, a.StateDigestCoverage = "git-tree", strictjson.Raw(`{}`) },
	} {
		bad, l := lease, *lease.Lease
		bad.Lease = &l
		change(&bad)
		if _, _, err := evidence.Emit(evidence.Draft{RunID: "r", CreatedAtMS: 1, Actions: []evidence.Action{bad}}, "k", key); !errors.Is(err, evidence.ErrDraft) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
