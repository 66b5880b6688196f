// Package aeplog keeps the evidence records (aep/v0.3) that the Organization
// emits about Proposed Actions and their outcomes.
//
// A run is one Ownership Epoch of a WorkItem. Its records form a chain: each
// names the hash of the one before it, is signed by the Organization's evidence
// service, and has its own hash as its id. The hazards it guards against:
//
//   - An action without a record. Append takes the transaction of the decision,
//     so that there is both or neither; a record that would break a rule fails
//     the decision.
//   - A chain that forks. Whoever appends holds the row of the run until the
//     transaction ends.
//   - An invocation counted twice or never. The ordinal is read under the same
//     row, and an outcome has the ordinal of its decision.
//   - A record that tells more than its reader may know. Reads begin with
//     views.Enter, and what may not be known answers like what does not exist.
package aeplog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/trust"
)

// Signer gives the key with which the Organization's evidence service signs at a
// time. q is the transaction of the record.
type Signer func(ctx context.Context, q pgx.Tx, now time.Time) (trust.Signer, error)

// Log appends records. It is safe for concurrent use.
type Log struct{ signer Signer }

// New makes a Log.
func New(signer Signer) *Log { return &Log{signer: signer} }

// Run is one Ownership Epoch of a WorkItem. Epoch 0 is that of what nobody owned yet;
// actions about no WorkItem of a Group are in the run of the Group's own id.
type Run struct {
	GroupID        string
	WorkItemID     string
	OwnershipEpoch int64
}

// ID is the run_id of its records.
func (r Run) ID() string { return r.WorkItemID + "#" + strconv.FormatInt(r.OwnershipEpoch, 10) }

// Entry is one action for the record. Action is filled by the caller, except
// what the Log derives: the invocation ordinal of a lease, the link to a drifted
// action of the run whose arguments this one has, and everything that evidence.Emit
// derives.
type Entry struct {
	Run Run
	// At is the time of the record, as the database's clock said it in the
	// transaction.
	At                 time.Time
	TraceID            string
	PolicyBundleDigest string
	ToolManifestDigest string
	Inputs             []evidence.InputRef
	Outputs            []evidence.OutputRef
	Budget             *evidence.BudgetLedger
	Context            *evidence.RunContext
	Action             evidence.Action
}

// ErrReusedApproval says that an action after a drift stands on the approval of
// the arguments that drifted (X-35, over the records of a run).
var ErrReusedApproval = errors.New("aeplog: the approval was for other arguments")

// Append writes the record of one action at the end of its run and gives its id.
// An error leaves tx unusable: what was decided must then not take effect.
// Errors: evidence.ErrDraft for an action that would break a rule,
// ErrReusedApproval, and those of the database and of the signer.
func (l *Log) Append(ctx context.Context, tx pgx.Tx, e Entry) (recordID string, err error) {
	runID := e.Run.ID()
	length, head, err := hold(ctx, tx, e.Run)
	if err != nil {
		return "", err
	}
	var lease *string
	var ordinal *int64
	if b := e.Action.Lease; b != nil {
		n, admitted, err := invocation(ctx, tx, runID, &e.Action)
		if err != nil {
			return "", err
		}
		copied := *b
		if copied.Ordinal == nil && (copied.Limit != nil || admitted) {
			copied.Ordinal = &n
		}
		e.Action.Lease = &copied
		if admitted {
			lease, ordinal = &copied.LeaseID, copied.Ordinal
		}
	}
	if e.Action.ArgumentDrift == nil {
		// Silence would leave open whether the arguments were compared.
		e.Action.ArgumentDrift = &evidence.ArgumentDrift{Result: "not-checked"}
	}
	if err := link(ctx, tx, runID, &e.Action); err != nil {
		return "", err
	}
	if err := reapproved(ctx, tx, runID, &e.Action); err != nil {
		return "", err
	}
	signer, err := l.signer(ctx, tx, e.At)
	if err != nil {
		return "", fmt.Errorf("aeplog: signing key: %w", err)
	}
	raw, hash, err := evidence.Emit(evidence.Draft{
		RunID: runID, CreatedAtMS: e.At.UnixMilli(), TraceID: e.TraceID, PolicyBundleDigest: e.PolicyBundleDigest,
		ToolManifestDigest: e.ToolManifestDigest, PrevRecordHash: head, Inputs: e.Inputs, Outputs: e.Outputs,
		Actions: []evidence.Action{e.Action}, Budget: e.Budget, Context: e.Context,
	}, signer.KeyID, signer.Private)
	if err != nil {
		return "", fmt.Errorf("aeplog: %w", err)
	}
	recordID = "sha256:" + hash
	_, err = tx.Exec(ctx, `WITH linked AS (UPDATE evidence_runs SET length = $2, head = $3 WHERE run_id = $1 RETURNING group_id)
		INSERT INTO evidence_records (run_id, ordinal, record_id, group_id, group_sequence, action_id, lease_id, invocation,
			drifted, recorded_at, key_id, document)
		SELECT $1, $2, $4, linked.group_id, coalesce((SELECT head_sequence FROM groups g WHERE g.group_id = linked.group_id), 0),
			$5, $6, $7, nullif($8, ''), $9, $10, $11 FROM linked`,
		runID, length+1, hash, recordID, e.Action.ActionID, lease, ordinal, drifted(&e.Action), e.At, signer.KeyID, raw)
	if err != nil {
		return "", fmt.Errorf("aeplog: append: %w", err)
	}
	return recordID, nil
}

// hold takes the row of the run, making it if there is none.
func hold(ctx context.Context, tx pgx.Tx, r Run) (length int64, head string, err error) {
	var group string
	err = tx.QueryRow(ctx, `INSERT INTO evidence_runs (run_id, group_id, work_item_id, ownership_epoch, length, head)
		VALUES ($1, $2, $3, $4, 0, '')
		ON CONFLICT (run_id) DO UPDATE SET length = evidence_runs.length
		RETURNING length, head, group_id`, r.ID(), r.GroupID, r.WorkItemID, r.OwnershipEpoch).Scan(&length, &head, &group)
	if err != nil {
		return 0, "", fmt.Errorf("aeplog: run: %w", err)
	}
	if group != r.GroupID {
		return 0, "", fmt.Errorf("aeplog: run %s is of another Group", r.ID())
	}
	return length, head, nil
}

// NextInvocation is the number that an action's record would have under its lease.
// The run is held until tx ends, so that the number stays free.
func (l *Log) NextInvocation(ctx context.Context, tx pgx.Tx, r Run, a *evidence.Action) (int64, error) {
	if _, _, err := hold(ctx, tx, r); err != nil {
		return 0, err
	}
	n, _, err := invocation(ctx, tx, r.ID(), a)
	return n, err
}

// invocation is the 1-based number of an attempt under a lease: that of an
// earlier record of the same action, else the next one. admitted tells whether
// the attempt counts.
func invocation(ctx context.Context, tx pgx.Tx, runID string, a *evidence.Action) (n int64, admitted bool, err error) {
	admitted = a.ApprovalDecision == "allow" && a.CapabilityDecision != nil && a.CapabilityDecision.Decision == "allow"
	var known *int64
	err = tx.QueryRow(ctx, `SELECT
			(SELECT max(invocation) FROM evidence_records WHERE run_id = $1 AND action_id = $2 AND lease_id = $3),
			(SELECT coalesce(max(invocation), 0) FROM evidence_records WHERE lease_id = $3)`,
		runID, a.ActionID, a.Lease.LeaseID).Scan(&known, &n)
	if err != nil {
		return 0, false, fmt.Errorf("aeplog: invocations: %w", err)
	}
	if known != nil {
		return *known, admitted, nil
	}
	return n + 1, admitted, nil
}

// drifted is the digest of the arguments that were observed instead of those that
// were approved.
func drifted(a *evidence.Action) string {
	if d := a.ArgumentDrift; d != nil && d.Result == "drifted" {
		return d.ObservedArgDigest
	}
	return ""
}

// link names the drifted action of the run whose arguments this one has as its
// parent: it is proposed again to be approved as it was done.
func link(ctx context.Context, tx pgx.Tx, runID string, a *evidence.Action) error {
	if a.ParentActionID != "" || a.ArgumentsDigest == "" || drifted(a) != "" {
		return nil
	}
	err := tx.QueryRow(ctx, `SELECT action_id FROM evidence_records WHERE run_id = $1 AND drifted = $2 AND action_id <> $3
		ORDER BY ordinal DESC LIMIT 1`, runID, a.ArgumentsDigest, a.ActionID).Scan(&a.ParentActionID)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("aeplog: parent: %w", err)
	}
	return nil
}

// Lease is the lease evidence in a record, nil if it has none: what was checked
// when an action was decided stays what its outcome stands on, whatever became of
// the lease since.
func (l *Log) Lease(ctx context.Context, tx pgx.Tx, recordID, actionID string) (*evidence.LeaseEvidence, error) {
	var raw []byte
	err := tx.QueryRow(ctx, `SELECT document FROM evidence_records WHERE record_id = $1`, recordID).Scan(&raw)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // no record, no lease
	}
	if err != nil {
		return nil, fmt.Errorf("aeplog: lease: %w", err)
	}
	v, err := evidence.ParseValue(raw)
	if err != nil {
		return nil, fmt.Errorf("aeplog: lease: %w", err)
	}
	for _, a := range v.Get("actions").Items() {
		if b := a.Get("bounded_lease_evidence"); a.Get("action_id").Str() == actionID && b.Exists() {
			num := func(name string) int64 { n, _ := b.Get(name).Int(); return n }
			e := &evidence.LeaseEvidence{
				LeaseID: b.Get("lease_id").Str(), GrantedAtMS: num("lease_granted_at_ms"), ExpiresAtMS: num("lease_expires_at_ms"),
				StartedAtMS: num("execution_started_at_ms"),
			}
			for to, name := range map[**int64]string{&e.Ordinal: "invocation_ordinal", &e.Limit: "invocation_limit"} {
				if n, ok := b.Get(name).Int(); ok {
					*to = &n
				}
			}
			return e, nil
		}
	}
	return nil, nil //nolint:nilnil // no lease in it
}

// reapproved checks X-35 where the parent is in an earlier record.
func reapproved(ctx context.Context, tx pgx.Tx, runID string, a *evidence.Action) error {
	if a.ParentActionID == "" || a.ApprovalGrant != "one-shot-payload" || a.ApprovalDecision != "allow" {
		return nil
	}
	rows, err := tx.Query(ctx, `SELECT document FROM evidence_records WHERE run_id = $1 AND action_id = $2`, runID, a.ParentActionID)
	if err != nil {
		return fmt.Errorf("aeplog: parent: %w", err)
	}
	documents, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return fmt.Errorf("aeplog: parent: %w", err)
	}
	for _, raw := range documents {
		v, err := evidence.ParseValue(raw)
		if err != nil {
			return fmt.Errorf("aeplog: parent: %w", err)
		}
		for _, p := range v.Get("actions").Items() {
			drift := p.Get("argument_drift")
			if p.Get("action_id").Str() == a.ParentActionID && drift.Get("result").Str() == "drifted" &&
				drift.Get("approval_or_lease_id").Str() == a.ApprovalContextHash {
				return ErrReusedApproval
			}
		}
	}
	return nil
}
