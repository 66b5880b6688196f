package evidence

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// The types below are what an emitter fills in. Nothing reads them back: a
// record that was signed is only ever read as its wire members.

// Draft is a record that is not signed yet. Summary, state_changing and every
// default are derived, so that they cannot be wrong.
type Draft struct {
	RunID               string
	CreatedAtMS         int64
	TraceID             string
	PolicyBundleDigest  string
	ToolManifestDigest  string
	RuntimeVersion      string
	PrevRecordHash      string // empty for the first record of a run
	Inputs              []InputRef
	Outputs             []OutputRef
	CapabilityDecisions []CapabilityDecision
	Actions             []Action
	Budget              *BudgetLedger
	Context             *RunContext
}

// Action is one ActionEvidence.
type Action struct {
	ActionID             string              `json:"action_id"`
	ToolName             string              `json:"tool_name"`
	StateChanging        bool                `json:"state_changing"` // derived
	TimestampMS          int64               `json:"timestamp_ms"`
	EvidenceRefs         []string            `json:"evidence_refs"`
	SideEffectClass      string              `json:"side_effect_class"` // empty becomes unknown
	RecordingMode        string              `json:"recording_mode"`    // empty becomes validation
	PreconditionDigest   string              `json:"precondition_digest,omitempty"`
	ResultDigest         string              `json:"result_digest,omitempty"`
	CapabilityDecision   *CapabilityDecision `json:"capability_decision,omitempty"`
	ParentActionID       string              `json:"parent_action_id,omitempty"`
	CausalChainID        string              `json:"causal_chain_id,omitempty"`
	ToolDescriptorDigest string              `json:"tool_descriptor_digest,omitempty"`
	ScopeLeaseID         string              `json:"scope_lease_id,omitempty"`
	ApprovalContextHash  string              `json:"approval_context_hash,omitempty"`
	InputTaintLabels     []string            `json:"input_taint_labels"`
	OutputTaintLabels    []string            `json:"output_taint_labels"`
	MemoryReadRefs       []string            `json:"memory_read_refs,omitempty"`
	MemoryWriteRefs      []string            `json:"memory_write_refs,omitempty"`
	Outcome              string              `json:"outcome,omitempty"`
	ExitCode             *int64              `json:"exit_code,omitempty"`
	ArgumentsDigest      string              `json:"arguments_digest,omitempty"`
	StateDigestKind      string              `json:"state_digest_kind,omitempty"`
	StateDigestCoverage  strictjson.Raw      `json:"state_digest_coverage,omitempty"`
	PreStateDigest       string              `json:"pre_state_digest,omitempty"`
	PostStateDigest      string              `json:"post_state_digest,omitempty"`
	ApprovalGrant        string              `json:"approval_grant"` // empty becomes none
	ApprovalDecision     string              `json:"approval_decision,omitempty"`
	ArgumentDrift        *ArgumentDrift      `json:"argument_drift,omitempty"`
	Lease                *LeaseEvidence      `json:"bounded_lease_evidence,omitempty"`
}

// CapabilityDecision is the gross outcome and its reasons.
type CapabilityDecision struct {
	Capability        string             `json:"capability"`
	Subject           string             `json:"subject"`
	Resource          string             `json:"resource"`
	Decision          string             `json:"decision"` // allow, deny, ask_user or dry_run
	ReasonCode        string             `json:"reason_code,omitempty"`
	DenyReasonClass   string             `json:"deny_reason_class,omitempty"`
	ApprovalExtension *ApprovalExtension `json:"approval_extension,omitempty"`
}

// ApprovalExtension carries evidence of approvals that the closed sets cannot say.
type ApprovalExtension struct {
	Namespace      string `json:"namespace"`
	Mode           string `json:"mode"`
	EvidenceDigest string `json:"evidence_digest"`
}

// ArgumentDrift is the result of comparing approved and observed arguments.
type ArgumentDrift struct {
	Result              string `json:"result"` // matched, drifted or not-checked
	ApprovalOrLeaseID   string `json:"approval_or_lease_id,omitempty"`
	ApprovedArgDigest   string `json:"approved_arg_digest,omitempty"`
	ObservedArgDigest   string `json:"observed_arg_digest,omitempty"`
	ArgsEqualityVersion string `json:"args_equality_version,omitempty"`
	DriftReason         string `json:"drift_reason,omitempty"`
}

// LeaseEvidence is the lease as it was in force at the check.
type LeaseEvidence struct {
	LeaseID                 string `json:"lease_id"`
	GrantedAtMS             int64  `json:"lease_granted_at_ms"`
	ExpiresAtMS             int64  `json:"lease_expires_at_ms"`
	DurationMS              int64  `json:"lease_duration_ms"` // derived
	StartedAtMS             int64  `json:"execution_started_at_ms"`
	Ordinal                 *int64 `json:"invocation_ordinal,omitempty"`
	Limit                   *int64 `json:"invocation_limit,omitempty"`
	Remaining               *int64 `json:"invocations_remaining,omitempty"` // derived from the other two
	RevocationEventID       string `json:"revocation_event_id,omitempty"`
	RevocationPolicyVersion string `json:"revocation_policy_version,omitempty"`
}

// InputRef is something the run read.
type InputRef struct {
	URI         string   `json:"uri"`
	Digest      string   `json:"digest,omitempty"`
	TaintLabels []string `json:"taint_labels"`
}

// OutputRef is something the run made.
type OutputRef struct {
	URI              string `json:"uri"`
	Digest           string `json:"digest,omitempty"`
	RedactionProfile string `json:"redaction_profile,omitempty"`
}

// Spent is one budget of the ledger.
type Spent struct {
	Limit *float64 `json:"limit,omitempty"`
	Spent float64  `json:"spent"`
}

// Latency is the time budget of the ledger.
type Latency struct {
	LimitMS  *float64 `json:"limit_ms,omitempty"`
	ActualMS float64  `json:"actual_ms"`
}

// BudgetLedger is what the run had and used.
type BudgetLedger struct {
	Token         *Spent   `json:"token_budget,omitempty"`
	Tool          *Spent   `json:"tool_budget,omitempty"`
	Risk          *Spent   `json:"risk_budget,omitempty"`
	Retry         *Spent   `json:"retry_budget,omitempty"`
	HumanApproval *Spent   `json:"human_approval_budget,omitempty"`
	Latency       *Latency `json:"latency_budget,omitempty"`
}

// RunContext says who ran.
type RunContext struct {
	AgentID         string   `json:"agent_id,omitempty"`
	AgentVersion    string   `json:"agent_version,omitempty"`
	DelegationChain []string `json:"delegation_chain"`
	SessionID       string   `json:"session_id,omitempty"`
}

// wireRecord is the record as emitted: the members that other emitters of this
// version write as defaults are written too, so that a reader that fills them in
// before verifying fills in nothing.
type wireRecord struct {
	SchemaVersion       string               `json:"schema_version"`
	RunID               string               `json:"run_id"`
	CreatedAtMS         int64                `json:"created_at_ms"`
	TraceID             string               `json:"trace_id,omitempty"`
	PolicyBundleDigest  string               `json:"policy_bundle_digest,omitempty"`
	ToolManifestDigest  string               `json:"tool_manifest_digest,omitempty"`
	RuntimeVersion      string               `json:"runtime_version,omitempty"`
	PrevRecordHash      *string              `json:"prev_record_hash"`
	InputRefs           []InputRef           `json:"input_refs"`
	OutputRefs          []OutputRef          `json:"output_refs"`
	CapabilityDecisions []CapabilityDecision `json:"capability_decisions"`
	Actions             []Action             `json:"actions"`
	VerifierResults     []string             `json:"verifier_results"`
	BudgetLedger        *BudgetLedger        `json:"budget_ledger,omitempty"`
	RunContext          *RunContext          `json:"run_context,omitempty"`
	SideEffectMax       string               `json:"run_side_effect_class_max,omitempty"`
	Signature           *wireSignature       `json:"signature,omitempty"`
}

type wireSignature struct {
	Alg   string `json:"alg"`
	KeyID string `json:"key_id"`
	Sig   string `json:"sig"`
}

// ErrDraft is matched by the errors of [Emit]: the draft breaks a rule. The text
// lists every finding.
var ErrDraft = errors.New("evidence: the record would break its own rules")

// Emit signs a record of v0.3 and gives its bytes and its hash, which the next
// record of the run names. A draft that breaks any rule of tiers 1 to 3 is
// refused: what is written here can never be taken back.
func Emit(d Draft, keyID string, key ed25519.PrivateKey) (raw []byte, hash string, err error) {
	w := wireRecord{
		SchemaVersion: "aep/v0.3", RunID: d.RunID, CreatedAtMS: d.CreatedAtMS, TraceID: d.TraceID,
		PolicyBundleDigest: d.PolicyBundleDigest, ToolManifestDigest: d.ToolManifestDigest, RuntimeVersion: d.RuntimeVersion,
		InputRefs: d.Inputs, OutputRefs: d.Outputs, CapabilityDecisions: d.CapabilityDecisions,
		VerifierResults: []string{}, BudgetLedger: d.Budget, RunContext: d.Context,
	}
	if d.PrevRecordHash != "" {
		w.PrevRecordHash = &d.PrevRecordHash
	}
	for _, a := range d.Actions {
		w.Actions = append(w.Actions, derived(a))
		if i := slices.Index(sideEffectClasses, w.Actions[len(w.Actions)-1].SideEffectClass); i > slices.Index(sideEffectClasses, w.SideEffectMax) {
			w.SideEffectMax = sideEffectClasses[i]
		}
	}
	unsigned, err := strictjson.Marshal(w)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrDraft, err)
	}
	v, err := ParseValue(unsigned)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrDraft, err)
	}
	w.Signature = &wireSignature{Alg: "ed25519", KeyID: keyID, Sig: Sign(v, key)}
	if raw, err = strictjson.Marshal(w); err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrDraft, err)
	}
	public, _ := key.Public().(ed25519.PublicKey)
	_, rep := Check(raw, Options{Signature: true, Keys: func(string) (ed25519.PublicKey, bool) { return public, true }})
	if !rep.OK() {
		return nil, "", fmt.Errorf("%w: %v", ErrDraft, rep.Errors)
	}
	return raw, RecordHash(v), nil
}

func derived(a Action) Action {
	if a.SideEffectClass == "" {
		a.SideEffectClass = "unknown"
	}
	if a.RecordingMode == "" {
		a.RecordingMode = "validation"
	}
	if a.ApprovalGrant == "" {
		a.ApprovalGrant = grantNone
	}
	a.StateChanging = a.SideEffectClass != "read"
	if l := a.Lease; l != nil {
		e := *l
		e.DurationMS = e.ExpiresAtMS - e.GrantedAtMS
		e.Remaining = nil
		if e.Limit != nil && e.Ordinal != nil {
			left := max(0, *e.Limit-*e.Ordinal+1)
			e.Remaining = &left
		}
		a.Lease = &e
	}
	return a
}
