package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Commit writes the batch in one transaction and, unless Within is set or the
// batch is large, in one round trip: a condition that has moved raises an error
// on the server, which skips everything behind it.
//
// Errors: *HeadMoved, *ReceiptExists, ErrSessionMoved, ErrAdmissionExists,
// ErrRegistryMoved (decide again), ErrUnavailable (nothing was committed),
// ErrIndeterminate (ask Settle), and what Within returned.
//
// The context bounds the wait for a connection only. Once the transaction is on
// its way its outcome is waited for, up to the store's commit timeout, because a
// cancelled commit would be one with an unknown outcome.
func (s *Store) Commit(ctx context.Context, b *Batch) (*Attempt, error) {
	b.order()
	if hook := s.hooks.BeforeCommit; hook != nil {
		if err := hook(b); err != nil {
			return nil, err
		}
	}
	conn, err := s.writers.Acquire(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	attempt := s.attempt(conn, b)
	running, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.CommitTimeout)
	defer cancel()
	switch {
	case b.Within != nil:
		err = s.commitStepwise(running, conn, b)
	case len(b.Receipts)+len(b.Events) >= s.options.BulkRows:
		err = s.commitBulk(running, conn, b)
	default:
		err = s.commitPiped(running, conn, b)
	}
	if err == nil {
		if hook := s.hooks.AfterCommit; hook != nil {
			err = hook(b)
		}
	}
	// A connection in a broken or open transaction is not reused: the pool
	// closes it.
	conn.Release()
	return attempt, err
}

func (s *Store) commitPiped(ctx context.Context, conn *pgxpool.Conn, b *Batch) error {
	var q pgx.Batch
	q.Queue("begin")
	if err := s.queue(&q, b); err != nil {
		return err
	}
	q.Queue("commit")
	err := conn.SendBatch(ctx, &q).Close()
	if err == nil {
		return nil
	}
	return s.outcome(ctx, conn, err)
}

// outcome says what an error of the pipeline means for the transaction.
func (s *Store) outcome(ctx context.Context, conn *pgxpool.Conn, err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		if conn.Conn().IsClosed() || pgconn.Timeout(err) || ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ErrIndeterminate, err)
		}
		// Encoding a parameter failed before anything was sent.
		return fmt.Errorf("events: commit: %w", err)
	}
	// The server said no to a statement, so the transaction is not committed,
	// unless the answer is about the connection going down at the commit itself.
	if strings.HasPrefix(pg.Code, "57") || strings.HasPrefix(pg.Code, "08") || pg.Severity == "FATAL" || pg.Severity == "PANIC" {
		return fmt.Errorf("%w: %w", ErrIndeterminate, err)
	}
	if !conn.Conn().IsClosed() {
		if _, rollback := conn.Exec(ctx, "rollback"); rollback != nil {
			err = errors.Join(err, rollback)
		}
	}
	if moved := conflictOf(pg); moved != nil {
		return moved
	}
	if taken := takenOf(pg); taken != nil {
		return taken
	}
	if strings.HasPrefix(pg.Code, "53") { // out of disk, memory, connections
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("events: commit: %w", err)
}

// takenOf translates a unique violation: the condition is the index itself.
func takenOf(pg *pgconn.PgError) error {
	if pg.Code != "23505" {
		return nil
	}
	switch pg.ConstraintName {
	case "receipts_pkey":
		return &ReceiptExists{Detail: pg.Detail}
	case "admissions_pkey", "admissions_record_id_key":
		return fmt.Errorf("%w: %s", ErrAdmissionExists, pg.Detail)
	case "groups_pkey", "groups_group_id", "groups_mission_id", "events_pkey", "missions_mission":
		return &HeadMoved{}
	case "agent_sessions_pkey":
		return fmt.Errorf("%w: %s", ErrSessionMoved, pg.Detail)
	}
	return nil
}

// commitStepwise is Commit with a hook of another service inside.
func (s *Store) commitStepwise(ctx context.Context, conn *pgxpool.Conn, b *Batch) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	var q pgx.Batch
	if err := s.queue(&q, b); err != nil {
		return err
	}
	if err := tx.SendBatch(ctx, &q).Close(); err != nil {
		return s.beforeCommit(ctx, conn, err)
	}
	if err := b.Within(ctx, tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return s.outcome(ctx, conn, err)
	}
	return nil
}

// queue puts the statements of a batch in the order of its locks.
func (s *Store) queue(q *pgx.Batch, b *Batch) error {
	b.queueWorld(q)
	b.queueHeads(q)
	if err := b.queueReceipts(q); err != nil {
		return err
	}
	if err := b.queueAdmissions(q); err != nil {
		return err
	}
	if err := b.queueEvents(q); err != nil {
		return err
	}
	if err := b.queueRest(q); err != nil {
		return err
	}
	b.Rows.queue(q)
	b.queueEnd(q)
	return nil
}

// queueRest queues what comes between the Events and the projections.
func (b *Batch) queueRest(q *pgx.Batch) error {
	b.queueSessions(q)
	if err := b.queueAudits(q); err != nil {
		return err
	}
	b.queuePolicy(q)
	return nil
}

// queueEnd queues what comes behind the projections.
func (b *Batch) queueEnd(q *pgx.Batch) {
	b.queueTimers(q)
	b.queueSnapshots(q)
}

const (
	sqlLockAgents = `SELECT CASE WHEN exclusive THEN pg_advisory_xact_lock(key)::text
	ELSE pg_advisory_xact_lock_shared(key)::text END FROM unnest($1::bigint[], $2::boolean[]) AS t(key, exclusive)`

	// What else the decisions rest on: Registry revision and Session Epochs.
	sqlCheckWorld = `SELECT mw_conflict(state, string_agg(detail, E'\n')) FROM (
	SELECT 'MW005' AS state, '' AS detail FROM registry_head WHERE $4 > 0 AND revision <> $4
	UNION ALL
	SELECT 'MW003', c.agent_id
	FROM unnest($1::text[], $2::bigint[], $3::timestamptz[]) AS c(agent_id, epoch, expires_at)
	LEFT JOIN agent_sessions s ON s.agent_id = c.agent_id
	WHERE coalesce(s.session_epoch, 0) <> c.epoch OR s.expires_at <> c.expires_at) moved
GROUP BY state`

	sqlCheckLoads = `SELECT mw_conflict('MW003', string_agg(c.agent_id, E'\n'))
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS c(agent_id, queued, active)
CROSS JOIN LATERAL (
	SELECT count(*) FILTER (WHERE w.state = 'queued') AS queued,
		count(*) FILTER (WHERE w.state = 'active' AND w.execution_expires > $4) AS active
	FROM work_items w WHERE w.owner_id = c.agent_id AND w.state IN ('queued', 'active')) l
WHERE l.queued <> c.queued OR l.active <> c.active
HAVING count(*) > 0`

	sqlCheckActive = `SELECT mw_conflict('MW003', $1) WHERE
	ARRAY(SELECT DISTINCT w.group_id FROM work_items w WHERE w.owner_id = $1 AND w.state = 'active' ORDER BY 1) <> $2::text[]`

	sqlNewGroups = `INSERT INTO groups (tree_id, group_id, mission_id, root_mission_id, created_at, head_sequence)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::bigint[])`

	// Rows are locked in the order of their ids before any of them changes.
	sqlMoveHeads = `WITH c AS MATERIALIZED (
	SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[]) AS c(tree_id, group_id, expected, head)
), l AS MATERIALIZED (
	SELECT g.tree_id, g.group_id, c.head FROM c JOIN groups g ON g.tree_id = c.tree_id AND g.group_id = c.group_id
	WHERE g.head_sequence = c.expected
	ORDER BY g.group_id FOR NO KEY UPDATE OF g
), u AS (
	UPDATE groups g SET head_sequence = l.head FROM l
	WHERE g.tree_id = l.tree_id AND g.group_id = l.group_id RETURNING g.group_id
)
SELECT mw_conflict('MW001', string_agg(c.group_id, E'\n')) FROM c
WHERE NOT EXISTS (SELECT FROM u WHERE u.group_id = c.group_id) HAVING count(*) > 0`

	sqlCheckHeads = `SELECT mw_conflict('MW001', string_agg(c.group_id, E'\n'))
FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS c(tree_id, group_id, expected)
LEFT JOIN groups g ON g.tree_id = c.tree_id AND g.group_id = c.group_id
WHERE coalesce(g.head_sequence, 0) <> c.expected HAVING count(*) > 0`

	sqlReceipts = `INSERT INTO receipts (actor_type, actor_id, action_id, signing_hash, tree_id, group_id, kind,
	accepted_at, admission_id, admission_key_id, admission_at, response, command, admission_by)
SELECT t.*, $14 FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bigint[], $6::text[], $7::text[],
	$8::timestamptz[], $9::uuid[], $10::text[], $11::timestamptz[], $12::bytea[], $13::bytea[]) AS t`

	sqlHidden = `UPDATE receipts SET hidden = $4 WHERE actor_type = $1 AND actor_id = $2 AND action_id = $3`

	sqlUnprobe = `DELETE FROM receipts r USING unnest($1::text[], $2::text[], $3::text[]) AS c(actor_type, actor_id, action_id)
WHERE r.actor_type = c.actor_type AND r.actor_id = c.actor_id AND r.action_id = c.action_id`

	sqlCheckAdmissions = `SELECT mw_conflict('MW004', string_agg(encode(a.signing_hash, 'hex'), E'\n'))
FROM unnest($2::bytea[], $3::uuid[]) AS c(signing_hash, record_id)
JOIN admissions a ON a.signing_hash = c.signing_hash AND a.organization_id = $1
WHERE a.record_id <> c.record_id HAVING count(*) > 0`

	sqlAdmissions = `INSERT INTO admissions (organization_id, accepted_by, signing_hash, record_id, document_kind, key_id,
	principal_type, principal_id, trusted_accepted_at)
SELECT $1, $2, t.* FROM unnest($3::bytea[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::timestamptz[]) AS t`

	sqlEvents = `INSERT INTO events (tree_id, group_id, sequence, event_id, kind, occurred_at, command_hash, signing_hash,
	admission_id, document, admission_at, admission_key_id, admission_by)
SELECT t.*, t.at, $11, $12 FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::uuid[], $5::text[], $6::timestamptz[],
	$7::bytea[], $8::bytea[], $9::uuid[], $10::bytea[])
	AS t(tree_id, group_id, sequence, event_id, kind, at, command_hash, signing_hash, admission_id, document)`

	sqlOrgEvent = `INSERT INTO org_events (event_id, kind, subject_id, occurred_at, command_hash, signing_hash,
	admission_id, admission_at, admission_key_id, admission_by, document)
VALUES ($1, $2, $3, $4, $5, $6, $7, $4, $8, $9, $10)`

	sqlFirstSession = `INSERT INTO agent_sessions (agent_id, session_epoch, key_id, opened_at, expires_at)
VALUES ($1, $2, $3, $4, $5)`

	// The Agent's lock is held and its epoch was compared: exactly one row moves.
	sqlNextSession = `UPDATE agent_sessions SET session_epoch = $2, key_id = $3, opened_at = $4, expires_at = $5
WHERE agent_id = $1`

	sqlAudits = `INSERT INTO audit_records (audit_id, recorded_at, step, stage, code, reason, cause, signing_hash, body_hash,
	peer, actor_type, actor_id, action_id, kind, group_id, repeats)
SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[],
	$9::bytea[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bigint[])
ON CONFLICT (audit_id) DO NOTHING`

	sqlPolicy = `INSERT INTO policy_log (tree_id, group_id, sequence, entry_id, decision, actor_type, actor_id, occurred_at, document)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[],
	$8::timestamptz[], $9::bytea[])`

	sqlTimers = `INSERT INTO group_timers (tree_id, group_id, due_at)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::timestamptz[])
ON CONFLICT (tree_id, group_id) DO UPDATE SET due_at = excluded.due_at`

	sqlNoTimers = `DELETE FROM group_timers t USING unnest($1::bigint[], $2::text[]) AS c(tree_id, group_id)
WHERE t.tree_id = c.tree_id AND t.group_id = c.group_id`

	sqlSnapshots = `INSERT INTO snapshots (tree_id, group_id, sequence, format, state, created_at)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tree_id, group_id) DO UPDATE SET sequence = excluded.sequence, format = excluded.format,
	state = excluded.state, created_at = excluded.created_at WHERE snapshots.sequence <= excluded.sequence`
)

func (b *Batch) queueWorld(q *pgx.Batch) {
	if len(b.Agents) == 0 && b.Registry == 0 {
		return
	}
	n := len(b.Agents)
	keys, exclusive := make([]int64, n), make([]bool, n)
	ids, epochs, expiries := make([]string, n), make([]int64, n), make([]*time.Time, n)
	var loaded []string
	var queued, active []int64
	for i, a := range b.Agents {
		keys[i], exclusive[i] = AgentLockKey(a.AgentID), a.Exclusive
		ids[i], epochs[i], expiries[i] = a.AgentID, a.Epoch, maybeTime(a.ExpiresAt)
		if a.Load != nil {
			loaded, queued, active = append(loaded, a.AgentID), append(queued, a.Load.Queued), append(active, a.Load.Active)
		}
	}
	if n > 0 {
		q.Queue(sqlLockAgents, keys, exclusive)
	}
	q.Queue(sqlCheckWorld, ids, epochs, expiries, b.Registry)
	if len(loaded) > 0 {
		q.Queue(sqlCheckLoads, loaded, queued, active, b.Now)
	}
	for _, a := range b.Agents {
		if a.CheckActiveGroups {
			groups := slices.Clone(a.ActiveGroups)
			slices.Sort(groups)
			q.Queue(sqlCheckActive, a.AgentID, slices.Compact(groups))
		}
	}
}

func (b *Batch) queueHeads(q *pgx.Batch) {
	type columns struct {
		trees           []int64
		groups          []string
		expected, heads []int64
	}
	var moved, read columns
	add := func(c *columns, h HeadCondition) {
		c.trees, c.groups = append(c.trees, h.TreeID), append(c.groups, h.GroupID)
		c.expected, c.heads = append(c.expected, h.Expected), append(c.heads, h.Head)
	}
	var made columns
	var missions, roots []string
	var created []time.Time
	for _, h := range b.Heads {
		switch {
		case h.Create != nil:
			add(&made, h)
			missions, roots = append(missions, h.Create.MissionID), append(roots, h.Create.RootMissionID)
			created = append(created, h.Create.CreatedAt)
		case h.Head > h.Expected:
			add(&moved, h)
		default:
			add(&read, h)
		}
	}
	if len(made.groups) > 0 {
		q.Queue(sqlNewGroups, made.trees, made.groups, missions, roots, created, made.heads)
	}
	if len(moved.groups) > 0 {
		q.Queue(sqlMoveHeads, moved.trees, moved.groups, moved.expected, moved.heads)
	}
	if len(read.groups) > 0 {
		q.Queue(sqlCheckHeads, read.trees, read.groups, read.expected)
	}
}

// receiptRows are the receipts together with the probes of refused Commands, in
// one order; the probes are taken out again.
func (b *Batch) receiptRows() (rows []Receipt, probes []ReceiptKey) {
	rows = slices.Clone(b.Receipts)
	accepted := make(map[ReceiptKey]bool, len(rows))
	for _, r := range rows {
		accepted[r.ReceiptKey] = true
	}
	for _, a := range b.Admissions {
		if a.Probe == nil || accepted[*a.Probe] {
			continue
		}
		accepted[*a.Probe] = true
		probes = append(probes, *a.Probe)
		rows = append(rows, Receipt{
			ReceiptKey: *a.Probe, SigningHash: a.Record.SigningHash, AcceptedAt: a.At, Admission: a.Record, AdmittedAt: a.At,
			Response: []byte{}, Command: []byte{},
		})
	}
	slices.SortFunc(rows, func(x, y Receipt) int { return compareKeys(x.ReceiptKey, y.ReceiptKey) })
	return rows, probes
}

func (b *Batch) queueReceipts(q *pgx.Batch) error {
	rows, probes := b.receiptRows()
	if len(rows) == 0 {
		return nil
	}
	n := len(rows)
	types, ids, actions := make([]string, n), make([]string, n), make([]string, n)
	hashes, trees, groups := make([][]byte, n), make([]*int64, n), make([]*string, n)
	kinds, at, records := make([]string, n), make([]time.Time, n), make([][16]byte, n)
	keys, admitted := make([]string, n), make([]time.Time, n)
	responses, commands := make([][]byte, n), make([][]byte, n)
	for i := range rows {
		r := &rows[i]
		types[i], ids[i], actions[i] = r.Actor.Type, r.Actor.ID, r.ActionID
		var err error
		if hashes[i], err = hashBytes(r.SigningHash); err != nil {
			return err
		}
		if records[i], err = uuidBytes(r.Admission.AdmissionRecordID); err != nil {
			return err
		}
		if r.GroupID != "" {
			trees[i], groups[i] = &r.TreeID, &r.GroupID
		}
		kinds[i], at[i], keys[i], admitted[i] = r.Kind, r.AcceptedAt, r.Admission.KeyID, r.AdmittedAt
		responses[i], commands[i] = r.Response, r.Command
	}
	q.Queue(sqlReceipts, types, ids, actions, hashes, trees, groups, kinds, at, records, keys, admitted, responses, commands,
		b.Authority.ID)
	b.queueAfterReceipts(q, probes)
	return nil
}

// queueAfterReceipts adds what few receipts have, and takes the probes out.
func (b *Batch) queueAfterReceipts(q *pgx.Batch, probes []ReceiptKey) {
	for i := range b.Receipts {
		if r := &b.Receipts[i]; len(r.Hidden) > 0 {
			q.Queue(sqlHidden, r.Actor.Type, r.Actor.ID, r.ActionID, r.Hidden)
		}
	}
	if len(probes) > 0 {
		types, ids, actions := keyColumns(probes)
		q.Queue(sqlUnprobe, types, ids, actions)
	}
}

func keyColumns(keys []ReceiptKey) (types, ids, actions []string) {
	types, ids, actions = make([]string, len(keys)), make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		types[i], ids[i], actions[i] = k.Actor.Type, k.Actor.ID, k.ActionID
	}
	return types, ids, actions
}

func (b *Batch) queueAdmissions(q *pgx.Batch) error {
	if n := len(b.Receipts); n > 0 {
		hashes, records := make([][]byte, n), make([][16]byte, n)
		for i := range b.Receipts {
			r := &b.Receipts[i]
			var err error
			if hashes[i], err = hashBytes(r.SigningHash); err != nil {
				return err
			}
			if records[i], err = uuidBytes(r.Admission.AdmissionRecordID); err != nil {
				return err
			}
		}
		q.Queue(sqlCheckAdmissions, b.OrganizationID, hashes, records)
	}
	n := len(b.Admissions)
	if n == 0 {
		return nil
	}
	hashes, records := make([][]byte, n), make([][16]byte, n)
	kinds, keys, types, ids := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	at := make([]time.Time, n)
	for i := range b.Admissions {
		r := &b.Admissions[i].Record
		var err error
		if hashes[i], err = hashBytes(r.SigningHash); err != nil {
			return err
		}
		if records[i], err = uuidBytes(r.AdmissionRecordID); err != nil {
			return err
		}
		kinds[i], keys[i], types[i], ids[i] = r.DocumentKind, r.KeyID, r.Principal.Type, r.Principal.ID
		at[i] = b.Admissions[i].At
	}
	q.Queue(sqlAdmissions, b.OrganizationID, b.Authority.ID, hashes, records, kinds, keys, types, ids, at)
	return nil
}

// eventKeys are the ids and hashes of an Event as they are stored; command is nil
// when no Command caused it.
type eventKeys struct {
	event, record    [16]byte
	signing, command []byte
}

func (b *Batch) keysOf(eventID, signingHash, commandHash string, at time.Time) (k eventKeys, err error) {
	if k.event, err = uuidBytes(eventID); err != nil {
		return k, err
	}
	if k.signing, err = hashBytes(signingHash); err != nil {
		return k, err
	}
	if k.command, err = maybeHash(commandHash); err != nil {
		return k, err
	}
	k.record, err = uuidBytes(RecordID(b.OrganizationID, signingHash, at))
	return k, err
}

func (b *Batch) queueOrgEvents(q *pgx.Batch) error {
	for i := range b.OrgEvents {
		ev := &b.OrgEvents[i]
		k, err := b.keysOf(ev.EventID, ev.SigningHash, ev.CommandHash, ev.OccurredAt)
		if err != nil {
			return err
		}
		q.Queue(sqlOrgEvent, k.event, ev.Kind, ev.SubjectID, ev.OccurredAt, k.command, k.signing, k.record, ev.KeyID, ev.AcceptedBy.ID, ev.Document)
	}
	return nil
}

func (b *Batch) queueEvents(q *pgx.Batch) error {
	if err := b.queueOrgEvents(q); err != nil {
		return err
	}
	n := len(b.Events)
	if n == 0 {
		return nil
	}
	trees, groups, sequences := make([]int64, n), make([]string, n), make([]int64, n)
	ids, kinds, at := make([][16]byte, n), make([]string, n), make([]time.Time, n)
	commands, hashes, records := make([][]byte, n), make([][]byte, n), make([][16]byte, n)
	documents := make([][]byte, n)
	for i := range b.Events {
		ev := &b.Events[i]
		trees[i], groups[i], sequences[i] = ev.TreeID, ev.GroupID, ev.Sequence
		kinds[i], at[i], documents[i] = ev.Kind, ev.OccurredAt, ev.Document
		k, err := b.keysOf(ev.EventID, ev.SigningHash, ev.CommandHash, ev.OccurredAt)
		if err != nil {
			return err
		}
		ids[i], hashes[i], commands[i], records[i] = k.event, k.signing, k.command, k.record
	}
	q.Queue(sqlEvents, trees, groups, sequences, ids, kinds, at, commands, hashes, records, documents, b.AuthorityKeyID, b.Authority.ID)
	return nil
}

func maybeHash(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	return hashBytes(s)
}

func (b *Batch) queueSessions(q *pgx.Batch) {
	for _, s := range b.Sessions {
		sql := sqlNextSession
		if s.Epoch == 1 {
			sql = sqlFirstSession
		}
		q.Queue(sql, s.AgentID, s.Epoch, maybe(s.KeyID), s.OpenedAt, s.ExpiresAt)
	}
}

func (b *Batch) queueAudits(q *pgx.Batch) error {
	n := len(b.Audits)
	if n == 0 {
		return nil
	}
	ids, at := make([][16]byte, n), make([]time.Time, n)
	steps, stages, codes, reasons, causes := make([]string, n), make([]*string, n), make([]string, n), make([]string, n), make([]*string, n)
	hashes, bodies, peers := make([][]byte, n), make([][]byte, n), make([]string, n)
	types, actors, actions := make([]*string, n), make([]*string, n), make([]*string, n)
	kinds, groups, repeats := make([]*string, n), make([]*string, n), make([]int64, n)
	for i := range b.Audits {
		a := &b.Audits[i]
		var err error
		if ids[i], err = uuidBytes(a.ID); err != nil {
			return err
		}
		if hashes[i], err = maybeHash(a.SigningHash); err != nil {
			return err
		}
		at[i], steps[i], stages[i], codes[i], reasons[i] = a.At, a.Step, text(a.Stage), a.Code, clean(a.Reason)
		causes[i], bodies[i], peers[i] = text(a.Cause), a.BodyHash, clean(a.Peer)
		types[i], actors[i], actions[i] = text(a.Actor.Type), text(a.Actor.ID), text(a.ActionID)
		kinds[i], groups[i], repeats[i] = text(a.Kind), text(a.GroupID), a.Repeats
	}
	q.Queue(sqlAudits, ids, at, steps, stages, codes, reasons, causes, hashes, bodies, peers, types, actors, actions, kinds, groups, repeats)
	return nil
}

// text is maybe for strings that a stranger chose.
func text(s string) *string { return maybe(clean(s)) }

// clean makes a foreign string storable: PostgreSQL takes neither NUL nor
// invalid UTF-8, and an audit record must not grow with its input.
func clean(s string) string {
	const most = 2048
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

func (b *Batch) queuePolicy(q *pgx.Batch) {
	n := len(b.Policy)
	if n == 0 {
		return
	}
	trees, groups, sequences := make([]int64, n), make([]string, n), make([]int64, n)
	entries, decisions := make([]string, n), make([]string, n)
	types, ids, at, documents := make([]string, n), make([]string, n), make([]time.Time, n), make([][]byte, n)
	for i := range b.Policy {
		p := &b.Policy[i]
		trees[i], groups[i], sequences[i], entries[i], decisions[i] = p.TreeID, p.GroupID, p.Sequence, p.EntryID, p.Decision
		types[i], ids[i], at[i], documents[i] = p.Actor.Type, p.Actor.ID, p.OccurredAt, p.Document
	}
	q.Queue(sqlPolicy, trees, groups, sequences, entries, decisions, types, ids, at, documents)
}

func (b *Batch) queueTimers(q *pgx.Batch) {
	var trees, noTrees []int64
	var groups, noGroups []string
	var due []time.Time
	for _, t := range b.Timers {
		if t.DueAt.IsZero() {
			noTrees, noGroups = append(noTrees, t.TreeID), append(noGroups, t.GroupID)
			continue
		}
		trees, groups, due = append(trees, t.TreeID), append(groups, t.GroupID), append(due, t.DueAt)
	}
	if len(trees) > 0 {
		q.Queue(sqlTimers, trees, groups, due)
	}
	if len(noTrees) > 0 {
		q.Queue(sqlNoTimers, noTrees, noGroups)
	}
}

func (b *Batch) queueSnapshots(q *pgx.Batch) {
	for _, s := range b.Snapshots {
		q.Queue(sqlSnapshots, s.TreeID, s.GroupID, s.Sequence, s.Format, s.State, s.CreatedAt)
	}
}
