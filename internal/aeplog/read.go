package aeplog

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/views"
)

// Reader reads records for those who may see them.
type Reader struct {
	pool  *pgxpool.Pool
	views *views.Views
}

// NewReader makes a Reader.
func NewReader(pool *pgxpool.Pool, v *views.Views) *Reader { return &Reader{pool: pool, views: v} }

// Filter narrows a list: to a run, to a Group, or to a run of that Group. One of
// the two is needed.
type Filter struct{ RunID, GroupID string }

// enter enters a Group for its evidence. Whoever is only offered work sees none
// of it.
func (r *Reader) enter(ctx context.Context, reader protocol.Actor, groupID string) (*views.Access, *protocol.Error) {
	access, perr := r.views.Enter(ctx, reader, groupID)
	if perr == nil && access.Provisional {
		return nil, protocol.NewError(protocol.CodeGroupNotFound, "")
	}
	return access, perr
}

// List gives one page of records in the order of their runs and chains. A run
// that the reader may not know is one that does not exist: NotFound.
func (r *Reader) List(ctx context.Context, reader protocol.Actor, f Filter, p httpkit.Page) (views.List, error) {
	group := f.GroupID
	if f.RunID != "" {
		of, err := r.groupOf(ctx, `SELECT group_id FROM evidence_runs WHERE run_id = $1`, f.RunID)
		if err != nil {
			return views.List{}, err
		}
		if of == "" || (group != "" && group != of) {
			return views.List{}, r.absent(ctx, reader, group)
		}
		group = of
	}
	access, perr := r.enter(ctx, reader, group)
	if perr != nil {
		if f.GroupID == "" && perr.Code != protocol.CodeInternalError {
			return views.List{}, httpkit.NotFound()
		}
		return views.List{}, perr
	}
	afterRun, afterOrdinal := "", int64(0)
	if p.After != nil {
		n, err := strconv.ParseInt(p.After[1], 10, 64)
		if err != nil {
			return views.List{}, httpkit.SchemaError("/after", "format")
		}
		afterRun, afterOrdinal = p.After[0], n
	}
	rows, err := r.pool.Query(ctx, `SELECT run_id, ordinal, document FROM evidence_records
		WHERE group_id = $1 AND ($2 = '' OR run_id = $2) AND group_sequence >= $3 AND (run_id, ordinal) > ($4, $5)
		ORDER BY run_id, ordinal LIMIT $6`, group, f.RunID, access.From, afterRun, afterOrdinal, p.Limit+1)
	if err != nil {
		return views.List{}, fmt.Errorf("aeplog: list: %w", err)
	}
	var out views.List
	var run, lastRun string
	var ordinal, lastOrdinal int64
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&run, &ordinal, &document}, func() error {
		if len(out.Items) == p.Limit {
			out.Next = httpkit.Cursor(lastRun, strconv.FormatInt(lastOrdinal, 10))
			return nil
		}
		out.Items, lastRun, lastOrdinal = append(out.Items, document), run, ordinal
		document = nil
		return nil
	})
	if err != nil {
		return views.List{}, fmt.Errorf("aeplog: list: %w", err)
	}
	return out, nil
}

// absent is the answer about a run that is not there: that of its Group, where
// the reader named one, so that the two look the same.
func (r *Reader) absent(ctx context.Context, reader protocol.Actor, group string) error {
	if group != "" {
		if _, perr := r.enter(ctx, reader, group); perr != nil {
			return perr
		}
	}
	return httpkit.NotFound()
}

// Get gives one record as it was signed. NotFound stands for an absent record
// and for an undisclosed one alike.
func (r *Reader) Get(ctx context.Context, reader protocol.Actor, recordID string) ([]byte, error) {
	var group string
	var sequence int64
	var document []byte
	err := r.pool.QueryRow(ctx, `SELECT group_id, group_sequence, document FROM evidence_records WHERE record_id = $1`, recordID).
		Scan(&group, &sequence, &document)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, httpkit.NotFound()
	}
	if err != nil {
		return nil, fmt.Errorf("aeplog: get: %w", err)
	}
	access, perr := r.enter(ctx, reader, group)
	switch {
	case perr != nil && perr.Code == protocol.CodeInternalError:
		return nil, perr
	case perr != nil || sequence < access.From:
		return nil, httpkit.NotFound()
	}
	return document, nil
}

func (r *Reader) groupOf(ctx context.Context, sql, id string) (string, error) {
	var group string
	err := r.pool.QueryRow(ctx, sql, id).Scan(&group)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("aeplog: group: %w", err)
	}
	return group, nil
}
