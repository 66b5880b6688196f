package events

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// AdmissionLog is the Organization's Admission Log as trust wants it. It is one
// log kept in several places (migration 0002), and a signing hash is looked for
// where documents of its kind are: an Event beside its row, a Command beside its
// receipt, everything else in a table of its own. Reading the log of Events or
// Commands therefore takes ForEvent or ForCommand; the plain log refuses those
// two kinds rather than report an absence it cannot know.
//
// The accepting service is authenticated by the database: only the
// Organization's services have its credentials.
type AdmissionLog struct {
	store   *Store
	service protocol.Actor
	event   *EventAt
	command *ReceiptKey
}

var _ trust.AdmissionLog = (*AdmissionLog)(nil)

// AdmissionLog is the log as written by one service.
func (s *Store) AdmissionLog(service protocol.Actor) *AdmissionLog {
	return &AdmissionLog{store: s, service: service}
}

// ForEvent is the log at the place of one Event; it cannot be appended to,
// because an Event's record is written with the Event.
func (l *AdmissionLog) ForEvent(groupID string, sequence int64) *AdmissionLog {
	return &AdmissionLog{store: l.store, service: l.service, event: &EventAt{groupID, sequence}}
}

// ForCommand is the log at the place of one Command.
func (l *AdmissionLog) ForCommand(key ReceiptKey) *AdmissionLog {
	return &AdmissionLog{store: l.store, service: l.service, command: &key}
}

const sqlCommandAdmission = `SELECT signing_hash, admission_id, 'command', admission_key_id, actor_type, actor_id, admission_at, admission_by
FROM receipts WHERE actor_type = $1 AND actor_id = $2 AND action_id = $3`

const sqlEventAdmission = `SELECT signing_hash, admission_id, 'event', admission_key_id, 'service', admission_by, admission_at, admission_by
FROM event_log WHERE tree_id = $1 AND group_id = $2 AND sequence = $3`

// find reads the record of a signing hash, nil for authoritative absence.
func (l *AdmissionLog) find(ctx context.Context, signingHash string) (*protocol.FirstAdmissionRecord, error) {
	hash, err := hashBytes(signingHash)
	if err != nil {
		return nil, err
	}
	found := map[string]protocol.FirstAdmissionRecord{}
	scan := func(rows pgx.Rows) error { return l.store.scanAdmissions(rows, found) }
	var q pgx.Batch
	switch {
	case l.event != nil:
		tree, err := l.store.Tree(ctx, l.event.GroupID)
		if errors.Is(err, ErrGroupUnknown) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		q.Queue(sqlEventAdmission, tree, l.event.GroupID, l.event.Sequence).Query(scan)
	case l.command != nil:
		// The receipt last: an acceptance takes over the record of a refusal, and
		// in between the record must be seen in at least one place.
		q.Queue(sqlFindAdmissions, l.store.options.OrganizationID, [][]byte{hash}).Query(scan)
		k := l.command
		q.Queue(sqlCommandAdmission, k.Actor.Type, k.Actor.ID, k.ActionID).Query(scan)
	default:
		q.Queue(sqlFindAdmissions, l.store.options.OrganizationID, [][]byte{hash}).Query(scan)
	}
	if err := l.store.readers.SendBatch(ctx, &q).Close(); err != nil {
		return nil, read(err)
	}
	if rec, ok := found[signingHash]; ok {
		return &rec, nil
	}
	return nil, nil
}

// Lookup implements trust.AdmissionLog.
func (l *AdmissionLog) Lookup(ctx context.Context, organizationID, signingHash string) trust.LookupResult {
	if organizationID != l.store.options.OrganizationID {
		return trust.LookupResult{Status: trust.LookupUnauthenticated}
	}
	rec, err := l.find(ctx, signingHash)
	switch {
	case errors.Is(err, ErrUnavailable):
		return trust.LookupResult{Status: trust.LookupUnavailable}
	case err != nil:
		return trust.LookupResult{Status: trust.LookupIndeterminate}
	case rec == nil:
		return trust.LookupResult{Status: trust.LookupAbsent}
	}
	text, err := strictjson.Marshal(rec)
	if err != nil {
		return trust.LookupResult{Status: trust.LookupIntegrityFailed}
	}
	return trust.LookupResult{Status: trust.LookupFound, Record: text, AuthenticatedService: rec.AcceptedBy}
}

// AppendOrReturn implements trust.AdmissionLog.
func (l *AdmissionLog) AppendOrReturn(ctx context.Context, candidate protocol.FirstAdmissionRecord) trust.AppendResult {
	failed := func(s trust.AppendStatus) trust.AppendResult { return trust.AppendResult{Status: s} }
	if candidate.OrganizationID != l.store.options.OrganizationID || candidate.AcceptedBy != l.service {
		return failed(trust.AppendUnauthenticated)
	}
	kind := protocol.DocumentKind(candidate.DocumentKind)
	if l.event != nil || kind == protocol.KindEvent || (kind == protocol.KindCommand) != (l.command != nil) {
		return failed(trust.AppendIntegrityFailed)
	}
	at, err := timestamp(candidate.TrustedAcceptedAt)
	if err != nil || lexical.FormatMicros(at) != candidate.TrustedAcceptedAt {
		return failed(trust.AppendIntegrityFailed)
	}
	committed, err := l.append(ctx, candidate, at)
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.ConstraintName == "admissions_record_id_key":
		return failed(trust.AppendConflict)
	case errors.As(err, &pg) && pg.Code == "23505":
		// Another writer was first; its record is read below.
	case errors.Is(err, ErrUnavailable):
		return failed(trust.AppendUnavailable)
	case err != nil:
		return failed(trust.AppendIndeterminate)
	}
	rec, err := l.find(ctx, candidate.SigningHash)
	switch {
	case errors.Is(err, ErrUnavailable):
		return failed(trust.AppendUnavailable)
	case err != nil:
		return failed(trust.AppendIndeterminate)
	case rec == nil:
		// The receipt key belongs to a Command of other content.
		return failed(trust.AppendConflict)
	case rec.DocumentKind != candidate.DocumentKind || rec.KeyID != candidate.KeyID || rec.Principal != candidate.Principal:
		return failed(trust.AppendConflict)
	}
	text, err := strictjson.Marshal(rec)
	if err != nil {
		return failed(trust.AppendIntegrityFailed)
	}
	status := trust.AppendExisting
	if committed && rec.AdmissionRecordID == candidate.AdmissionRecordID {
		status = trust.AppendCommitted
	}
	return trust.AppendResult{Status: status, Record: text, AuthenticatedService: rec.AcceptedBy}
}

// append writes the candidate unless the hash has a record.
func (l *AdmissionLog) append(ctx context.Context, c protocol.FirstAdmissionRecord, at time.Time) (bool, error) {
	b := &Batch{
		OrganizationID: c.OrganizationID, Authority: c.AcceptedBy, Now: at,
		Admissions: []Admission{{Record: c, At: at, Probe: l.command}},
	}
	conn, err := l.store.writers.Acquire(ctx)
	if err != nil {
		return false, unavailable(err)
	}
	defer conn.Release()
	var q pgx.Batch
	q.Queue("begin")
	if err := l.store.queue(&q, b); err != nil {
		return false, err
	}
	q.Queue("commit")
	if err := conn.SendBatch(ctx, &q).Close(); err != nil {
		if !conn.Conn().IsClosed() {
			_, _ = conn.Exec(ctx, "rollback")
		}
		return false, read(err)
	}
	return true, nil
}
