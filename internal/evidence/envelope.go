package evidence

import (
	"slices"
	"strings"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Envelope is the projection decision_envelope of one action: what was asked,
// of whom, under which policy and authority, and what came of it. It is derived
// whenever it is asked for and never stored.
type Envelope struct {
	ActionClass       string
	TargetBoundary    *Value // kind and the identity members of the coverage; nil without coverage
	PrincipalID       *string
	RunID             string
	PolicyID          *string
	PolicyVersion     *string
	ApprovalOrLeaseID *string
	PayloadDigest     *string
	ExpiryMS          *int64
	ObservedResult    string // success, failure, denied or skipped
}

// words with which emitters say that an action failed.
var failureWords = []string{"failure", "failed", "fail", "error", "errored", "exception", "timeout", "timed_out", "timed-out", "aborted", "crashed", "cancelled", "canceled"}

// EnvelopeOf projects one action of a record.
func EnvelopeOf(record, action *Value) Envelope {
	au := authorityOf(action)
	text := func(list ...*Value) *string {
		for _, v := range list {
			if v.Kind() == String {
				s := v.text
				return &s
			}
		}
		return nil
	}
	e := Envelope{
		ActionClass:    classOf(action),
		TargetBoundary: targetBoundary(action),
		PrincipalID:    text(action.Get("capability_decision").Get("subject")),
		RunID:          record.Get("run_id").Str(),
		PolicyID:       text(record.Get("policy_bundle_digest")),
		PolicyVersion:  text(record.Get("policy_bundle_digest")),
		PayloadDigest:  text(au.drift.Get("observed_arg_digest"), action.Get("arguments_digest")),
		ObservedResult: observedResult(action, au),
	}
	switch au.grant {
	case grantLease:
		e.ApprovalOrLeaseID = text(au.scope)
	case grantOneShot:
		e.ApprovalOrLeaseID = text(au.context)
	default:
		e.ApprovalOrLeaseID = text(au.context, au.scope)
	}
	if n, ok := au.ble.Get("lease_expires_at_ms").Int(); ok {
		e.ExpiryMS = &n
	}
	return e
}

func targetBoundary(action *Value) *Value {
	kind, cov := action.Get("state_digest_kind"), action.Get("state_digest_coverage")
	if cov.Kind() != Object {
		return nil
	}
	out := &Value{kind: Object, members: []Member{{Name: "kind", Value: kind}}}
	for _, m := range coverageMembers[kind.Str()] {
		if v := cov.Get(m.name); m.bucket == identity && v.Exists() {
			out.members = append(out.members, Member{Name: m.name, Value: v})
		}
	}
	return out
}

func observedResult(action *Value, au authority) string {
	switch {
	case au.gross == "deny" || slices.Contains([]string{decDeny, decExpired, decRevoked, decDrift}, au.dec):
		return "denied"
	case au.gross == "ask_user" || au.gross == "dry_run":
		return "skipped"
	}
	if code, ok := action.Get("exit_code").Int(); ok {
		if code == 0 {
			return "success"
		}
		return "failure"
	}
	if slices.Contains(failureWords, strings.ToLower(action.Get("outcome").Str())) {
		return "failure"
	}
	return "success"
}

// AppendJSON writes the envelope as one JSON object.
func (e Envelope) AppendJSON(dst []byte) ([]byte, error) {
	str := func(name string, v *string) Member {
		if v == nil {
			return Member{Name: name, Value: &Value{kind: Null}}
		}
		return Member{Name: name, Value: &Value{kind: String, text: *v}}
	}
	expiry := &Value{kind: Null}
	if e.ExpiryMS != nil {
		b, err := strictjson.AppendFloat(nil, float64(*e.ExpiryMS))
		if err != nil {
			return nil, err
		}
		expiry = &Value{kind: Number, text: string(b)}
	}
	return appendCanonical(dst, &Value{kind: Object, members: []Member{
		str("action_class", &e.ActionClass),
		{Name: "target_boundary", Value: e.TargetBoundary},
		str("principal_id", e.PrincipalID),
		str("run_id", &e.RunID),
		str("policy_id", e.PolicyID),
		str("policy_version", e.PolicyVersion),
		str("approval_or_lease_id", e.ApprovalOrLeaseID),
		str("payload_digest", e.PayloadDigest),
		{Name: "expiry_ms", Value: expiry},
		str("observed_result", &e.ObservedResult),
	}}, nil), nil
}

// MarshalJSON writes the envelope for encoding/json.
func (e Envelope) MarshalJSON() ([]byte, error) { return e.AppendJSON(nil) }

// Assessment answers whether an action was inside the exact authority it had.
type Assessment struct {
	Authority string   `json:"authority"`          // none, inside, refused or unproven
	Unproven  []string `json:"unproven,omitempty"` // the checks for which the record has no proof
}

// Assess derives the assessment of an action whose record passed tiers 1 and 2.
// It is the reader's view and no field of the record: a drift that was not
// checked lowers confidence, it does not make the record wrong.
func Assess(action *Value) Assessment {
	au := authorityOf(action)
	switch {
	case au.grant == grantNone:
		return Assessment{Authority: "none"}
	case au.dec != decAllow:
		return Assessment{Authority: "refused"}
	}
	var open []string
	if au.drift.Get("result").Str() != "matched" {
		open = append(open, "argument-drift")
	}
	if au.grant == grantLease {
		if e := leaseEvidenceOf(au.ble); e.ordinal == nil && e.remaining == nil {
			open = append(open, "invocations")
		}
	}
	if au.grant == grantReceipt && !au.context.Exists() && !au.extension.Exists() {
		open = append(open, "receipt")
	}
	if open != nil {
		return Assessment{Authority: "unproven", Unproven: open}
	}
	return Assessment{Authority: "inside"}
}

// Grant, Decision and Class are read by programs that list records.

// Grant is the approval grant of an action, "none" without one.
func Grant(action *Value) string { return authorityOf(action).grant }

// Decision is the approval decision of an action, empty without one.
func Decision(action *Value) string { return authorityOf(action).dec }

// Class is the side-effect class of an action.
func Class(action *Value) string { return classOf(action) }
