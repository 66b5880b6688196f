package events

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// AuditRecord is what the server knows about a refused Command and does not
// tell its sender. SigningHash and BodyHash are sha256: spellings.
type AuditRecord struct {
	AuditID     string    `json:"auditId"`
	RecordedAt  time.Time `json:"recordedAt"`
	Step        string    `json:"step"`
	Stage       string    `json:"stage,omitempty"`
	Code        string    `json:"code"`
	Reason      string    `json:"reason,omitempty"`
	Cause       string    `json:"cause,omitempty"`
	SigningHash string    `json:"signingHash,omitempty"`
	BodyHash    string    `json:"bodyHash"`
	Peer        string    `json:"peer"`
	ActorType   string    `json:"actorType,omitempty"`
	ActorID     string    `json:"actorId,omitempty"`
	ActionID    string    `json:"actionId,omitempty"`
	Kind        string    `json:"kind,omitempty"`
	GroupID     string    `json:"groupId,omitempty"`
	// Repeats counts further refusals that were folded into this record.
	Repeats int64 `json:"repeats,omitempty"`
}

// AuditFilter narrows FindAudits; empty members do not. Hash is a signing hash
// or a body hash.
type AuditFilter struct {
	GroupID, ActorID, ActionID, Hash string
	Since                            time.Time
	Limit                            int
}

// FindAudits reads protected audit records, the latest first. It is for
// auditors with access to the database: no service route leads here, so that
// nobody learns from the wire which check failed (PROTOCOL.md 6.4).
func FindAudits(ctx context.Context, pool *pgxpool.Pool, f AuditFilter) ([]AuditRecord, error) {
	var hash []byte
	if f.Hash != "" {
		var err error
		if hash, err = hashBytes(f.Hash); err != nil {
			return nil, err
		}
	}
	if f.Limit <= 0 {
		f.Limit = 100
	}
	rows, err := pool.Query(ctx, `
		SELECT audit_id, recorded_at, step, coalesce(stage, ''), code, reason, coalesce(cause, ''), signing_hash, body_hash, peer,
		       coalesce(actor_type, ''), coalesce(actor_id, ''), coalesce(action_id, ''), coalesce(kind, ''), coalesce(group_id, ''), repeats
		FROM audit_records
		WHERE ($1 = '' OR group_id = $1) AND ($2 = '' OR actor_id = $2) AND ($3 = '' OR action_id = $3)
		  AND ($4::bytea IS NULL OR signing_hash = $4 OR body_hash = $4) AND recorded_at >= $5
		ORDER BY recorded_at DESC, audit_id DESC LIMIT $6`, f.GroupID, f.ActorID, f.ActionID, hash, f.Since, f.Limit)
	if err != nil {
		return nil, fmt.Errorf("events: audit records: %w", err)
	}
	records, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (AuditRecord, error) {
		var r AuditRecord
		var id [16]byte
		var signing, body []byte
		err := row.Scan(&id, &r.RecordedAt, &r.Step, &r.Stage, &r.Code, &r.Reason, &r.Cause, &signing, &body, &r.Peer,
			&r.ActorType, &r.ActorID, &r.ActionID, &r.Kind, &r.GroupID, &r.Repeats)
		r.AuditID, r.RecordedAt, r.BodyHash = uuidURN(id), r.RecordedAt.UTC(), hashText(body)
		if signing != nil {
			r.SigningHash = hashText(signing)
		}
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("events: audit records: %w", err)
	}
	return records, nil
}
