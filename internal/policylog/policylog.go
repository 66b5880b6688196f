// Package policylog keeps the log of what policy decided: tokens, gates, Proposed
// Actions, manifests, budgets, escalations (PROTOCOL.md 12). It stands beside the
// Policy Log of each Group, which holds what the Group's own Events decided.
//
// The hazard it guards against is a decision that nobody can account for. So an
// entry is written in the transaction of what it decides, or on its own where
// nothing was changed; it names the rules and the manifest version; it carries
// the whole input, so that the decision can be taken again under another
// version; and the table refuses every change.
//
// An entry never holds a token, a key or a secret parameter: whoever appends
// leaves them out, because the log outlives them.
package policylog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/missionweave/server/internal/protocol"
)

// Categories of decisions.
const (
	Token      = "token"
	Gate       = "gate"
	Action     = "action"
	Manifest   = "manifest"
	Budget     = "budget"
	Escalation = "escalation"
	Input      = "input"
	Memory     = "memory"
	Key        = "key"
)

// Categories are all of them.
var Categories = []string{Token, Gate, Action, Manifest, Budget, Escalation, Input, Memory, Key}

// Decision is one entry. ID, At, Category, Outcome, Principal and Input are
// required; the rest is what there is.
type Decision struct {
	// ID is a urn:uuid, unique for ever.
	ID string
	// At is the time that the decision was taken for.
	At time.Time
	// Category is one of the constants above.
	Category string
	// Outcome is a lower-case word of the category: issued, refused, revoked,
	// allow, deny, ask, consumed, ...
	Outcome string
	// Code and Reason are those of the protocol error of a refusal.
	Code   protocol.Code
	Reason string
	// RuleIDs are the rules and laws that decided, in the order they were asked.
	RuleIDs []string
	// ManifestVersion is the content address of the manifest, "" without one.
	ManifestVersion string
	// Principal is whose request was decided.
	Principal protocol.Actor
	GroupID   string
	// WorkItemID and SubjectID (token id, action id, approval id) may be empty.
	WorkItemID, SubjectID string
	// Input is the JSON that was decided on; Result the JSON of the answer.
	Input, Result []byte
}

// Execer is the transaction of what was decided, or a pool.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Querier reads the log.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

const sqlAppend = `INSERT INTO policy_decisions (decision_id, decided_at, category, outcome, code, reason, rule_ids,
	manifest_version, principal_type, principal_id, group_id, work_item_id, subject_id, input, result)
VALUES ($1, $2, $3, $4, nullif($5, ''), nullif($6, ''), $7, nullif($8, ''), $9, $10, nullif($11, ''), nullif($12, ''),
	nullif($13, ''), $14, $15)`

func (d *Decision) args() []any {
	rules := d.RuleIDs
	if rules == nil {
		rules = []string{}
	}
	return []any{
		d.ID, d.At, d.Category, d.Outcome, string(d.Code), d.Reason, rules, d.ManifestVersion,
		d.Principal.Type, d.Principal.ID, d.GroupID, d.WorkItemID, d.SubjectID, d.Input, d.Result,
	}
}

// errIncomplete is an entry that says too little to be one.
var errIncomplete = errors.New("policylog: incomplete decision")

func (d *Decision) check() error {
	if d.ID == "" || d.At.IsZero() || d.Category == "" || d.Outcome == "" || d.Principal.ID == "" || len(d.Input) == 0 {
		return errIncomplete
	}
	return nil
}

// Append writes an entry in tx. An error leaves tx unusable: the decision must
// then not take effect.
func Append(ctx context.Context, tx Execer, d Decision) error {
	if err := d.check(); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, sqlAppend, d.args()...); err != nil {
		return fmt.Errorf("policylog: append: %w", err)
	}
	return nil
}

// Queue is Append in a batch, for writers that count round trips.
func Queue(b *pgx.Batch, d Decision) error {
	if err := d.check(); err != nil {
		return err
	}
	b.Queue(sqlAppend, d.args()...)
	return nil
}

// Entry is a Decision with its place in the log.
type Entry struct {
	Decision
	// Entry is the place: a later one is greater, and there may be gaps.
	Entry int64
}

// Filter selects entries; empty members select all.
type Filter struct {
	GroupID, Category, SubjectID string
	// NoGroup selects entries about no Group.
	NoGroup bool
	// Principal selects the requests of one Principal.
	Principal protocol.Actor
	// Since selects entries that were decided at it or later.
	Since time.Time
	// After is the place of the last entry seen, Limit bounds the answer.
	After int64
	Limit int
}

// MaxRead bounds the entries of one Read.
const MaxRead = 1000

// where says the filter. Members that are empty are left out, so that each query is
// planned for what it asks.
func (f *Filter) where() (sql string, args []any) {
	var b strings.Builder
	args = append(args, f.After)
	b.WriteString("entry > $1")
	and := func(condition string, values ...any) {
		b.WriteString(" AND ")
		for _, v := range values {
			args = append(args, v)
			condition = strings.Replace(condition, "?", "$"+strconv.Itoa(len(args)), 1)
		}
		b.WriteString(condition)
	}
	if f.NoGroup {
		and("group_id IS NULL")
	}
	if f.GroupID != "" {
		and("group_id = ?", f.GroupID)
	}
	if f.Category != "" {
		and("category = ?", f.Category)
	}
	if f.SubjectID != "" {
		and("subject_id = ?", f.SubjectID)
	}
	if f.Principal.ID != "" {
		and("principal_type = ? AND principal_id = ?", f.Principal.Type, f.Principal.ID)
	}
	if !f.Since.IsZero() {
		and("decided_at >= ?", f.Since)
	}
	args = append(args, min(max(f.Limit, 1), MaxRead))
	return b.String() + " ORDER BY entry LIMIT $" + strconv.Itoa(len(args)), args
}

// Read returns entries in the order of the log. An entry whose transaction was
// longer than that of a later one may appear before the reader's mark: whoever
// follows the log reads again from a mark that lies a transaction's length back.
func Read(ctx context.Context, q Querier, f Filter) ([]Entry, error) {
	where, args := f.where()
	rows, err := q.Query(ctx, `
		SELECT entry, decision_id, decided_at, category, outcome, coalesce(code, ''), coalesce(reason, ''), rule_ids,
			coalesce(manifest_version, ''), principal_type, principal_id, coalesce(group_id, ''),
			coalesce(work_item_id, ''), coalesce(subject_id, ''), input, result
		FROM policy_decisions WHERE `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("policylog: read: %w", err)
	}
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Entry, error) {
		var e Entry
		var code string
		err := row.Scan(&e.Entry, &e.ID, &e.At, &e.Category, &e.Outcome, &code, &e.Reason, &e.RuleIDs,
			&e.ManifestVersion, &e.Principal.Type, &e.Principal.ID, &e.GroupID, &e.WorkItemID, &e.SubjectID, &e.Input, &e.Result)
		e.Code, e.At = protocol.Code(code), e.At.UTC()
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("policylog: read: %w", err)
	}
	return entries, nil
}
