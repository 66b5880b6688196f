package verify

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// Options narrow a verification.
type Options struct {
	// Group limits it to one Group; what spans Groups is then not looked at.
	Group string
	// Progress is called after each Group when set.
	Progress func(groupID string, r *Report)
}

// verifier is one run on one snapshot.
type verifier struct {
	tx     pgx.Tx
	view   *registry.View
	report *Report
	// hidden holds the ids of Events that the actor of their Command could not see.
	hidden map[string]bool
	// gone holds, per trimmed Group whose archived Events are not in the database
	// any more, the ids that its signed snapshot names, the first Event's first.
	gone map[string][]string
}

// Database verifies a database. The error is about reaching or reading it; what
// differs is in the Report.
func Database(ctx context.Context, pool *pgxpool.Pool, options Options) (*Report, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	// The first statement takes the snapshot. The Registry is read after it: its
	// records are append-only, and a later revision still holds all of them.
	groupIDs, err := groupIDs(ctx, tx, options.Group)
	if err != nil {
		return nil, err
	}
	view, err := registry.NewDirectory(pool, registry.DirectoryOptions{}).Current(ctx)
	if err != nil {
		return nil, fmt.Errorf("registry evidence: %w", err)
	}
	v := &verifier{tx: tx, view: view, report: &Report{OrganizationID: view.OrganizationID}, hidden: map[string]bool{}, gone: map[string][]string{}}
	for _, id := range groupIDs {
		if err := v.group(ctx, id); err != nil {
			return nil, fmt.Errorf("group %s: %w", id, err)
		}
		v.report.Groups++
		if options.Progress != nil {
			options.Progress(id, v.report)
		}
	}
	if options.Group != "" {
		return v.report, nil
	}
	for _, check := range []func(context.Context) error{
		v.receipts, v.orgEvents, v.cards, v.profiles, v.admissions, v.sessions, v.links,
	} {
		if err := check(ctx); err != nil {
			return nil, err
		}
	}
	return v.report, nil
}

func groupIDs(ctx context.Context, tx pgx.Tx, only string) ([]string, error) {
	rows, err := tx.Query(ctx, `SELECT group_id FROM groups WHERE $1 = '' OR group_id = $1 ORDER BY group_id`, only)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (v *verifier) differ(group string, sequence int64, subject, format string, args ...any) {
	v.report.add(Difference{Group: group, Sequence: sequence, Subject: subject, Problem: fmt.Sprintf(format, args...)})
}

// admissionColumns is a First-Admission Record as a row keeps it.
type admissionColumns struct {
	id       [16]byte
	keyID    string
	at       time.Time
	by       string
	kind     protocol.DocumentKind
	hash     string
	actor    protocol.Actor
	document *trust.Verified
}

// checkAdmission validates the record that anchors a verified document.
func (v *verifier) checkAdmission(a admissionColumns) string {
	v.report.Admissions++
	rec := protocol.FirstAdmissionRecord{
		ProtocolVersion: protocol.Version, AdmissionRecordID: urn(a.id), OrganizationID: v.view.OrganizationID,
		DocumentKind: string(a.kind), SigningHash: a.hash, KeyID: a.keyID, Principal: a.actor,
		TrustedAcceptedAt: lexical.FormatMicros(a.at),
		AcceptedBy:        protocol.Actor{Type: protocol.ActorService, ID: a.by},
	}
	if failure := trust.ValidateRecord(rec, a.document, rec.AcceptedBy); failure != nil {
		return failure.String()
	}
	if !v.view.IsService(rec.AcceptedBy) {
		return "accepted by " + a.by + ", which is no service of the Organization"
	}
	return ""
}

func urn(id [16]byte) string {
	s := hex.EncodeToString(id[:])
	return "urn:uuid:" + s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

func hashText(b []byte) string {
	if b == nil {
		return ""
	}
	return "sha256:" + hex.EncodeToString(b)
}

// orgEvents verifies the facts that belong to no Group.
func (v *verifier) orgEvents(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, `SELECT event_id, kind, subject_id, occurred_at, command_hash, signing_hash,
		admission_id, admission_key_id, admission_at, admission_by, document FROM org_events ORDER BY ordinal`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id, record [16]byte
		var kind, subject, key, by string
		var occurred, at time.Time
		var command, hash, document []byte
		if err := rows.Scan(&id, &kind, &subject, &occurred, &command, &hash, &record, &key, &at, &by, &document); err != nil {
			return err
		}
		v.report.OrgEvents++
		name := "org_events " + urn(id)
		verified, failure := trust.VerifyBytes(protocol.KindEvent, document, v.view.Evidence)
		if failure != nil {
			v.differ("", 0, name, "%s", failure)
			continue
		}
		d := verified.Value
		payload := d.Member("payload")
		for what, pair := range map[string][2]string{
			"eventId": {d.Member("eventId").Str(), urn(id)}, "kind": {d.Member("kind").Str(), kind},
			"occurredAt": {d.Member("occurredAt").Str(), lexical.FormatMicros(occurred)}, "subject": {payload.Member("agentId").Str(), subject},
			"commandHash": {d.Member("commandHash").Str(), hashText(command)}, "signing hash": {verified.SigningHash, hashText(hash)},
		} {
			if pair[0] != pair[1] {
				v.differ("", 0, name, "%s is %q in the Event and %q in the row", what, pair[0], pair[1])
			}
		}
		if !v.view.IsService(verified.Principal) {
			v.differ("", 0, name, "signed by %s, which is no service of the Organization", verified.Principal.ID)
		}
		if problem := v.checkAdmission(admissionColumns{
			record, key, at, by, protocol.KindEvent, hashText(hash), verified.Principal, verified,
		}); problem != "" {
			v.differ("", 0, name, "admission: %s", problem)
		}
	}
	return rows.Err()
}

// sessions compares each Agent's Session Epoch with the openings in the log.
func (v *verifier) sessions(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, `SELECT agent_id, session_epoch, opened FROM agent_sessions
		FULL JOIN (SELECT subject_id AS agent_id, count(*) AS opened FROM org_events
			WHERE kind = 'ext.missionweaveprotocol.identity.session_opened' GROUP BY 1) o USING (agent_id)
		WHERE session_epoch IS DISTINCT FROM opened`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var agent string
		var epoch, opened *int64
		if err := rows.Scan(&agent, &epoch, &opened); err != nil {
			return err
		}
		v.differ("", 0, "agent_sessions "+agent, "epoch %d after %d openings", value(epoch), value(opened))
	}
	return rows.Err()
}

func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// admissions looks at the records that have rows of their own: a key of the
// Principal, valid at the trusted time, and no id or hash under two documents.
func (v *verifier) admissions(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, `SELECT organization_id, signing_hash, record_id, key_id, principal_type, principal_id,
		trusted_accepted_at, accepted_by FROM admissions`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var org, key, by string
		var hash []byte
		var id [16]byte
		var actor protocol.Actor
		var at time.Time
		if err := rows.Scan(&org, &hash, &id, &key, &actor.Type, &actor.ID, &at, &by); err != nil {
			return err
		}
		name := "admissions " + urn(id)
		k, ok := v.view.Evidence.Key(key)
		switch {
		case org != v.view.OrganizationID:
			v.differ("", 0, name, "of Organization %s", org)
		case !ok:
			v.differ("", 0, name, "key %s is not registered", key)
		case k.Principal() != actor:
			v.differ("", 0, name, "key %s is not of %s", key, actor.ID)
		case !k.Interval().Contains(lexical.InstantOf(at)):
			v.differ("", 0, name, "key %s was not valid at %s", key, lexical.FormatMicros(at))
		case !v.view.IsService(protocol.Actor{Type: protocol.ActorService, ID: by}):
			v.differ("", 0, name, "accepted by %s, which is no service of the Organization", by)
		}
	}
	return rows.Err()
}

// links are conditions between tables that no foreign key states.
var links = []struct{ subject, problem, sql string }{
	{"receipts", "an Event names a Command that has no receipt", `SELECT e.group_id, e.sequence FROM event_log e
		WHERE e.command_hash IS NOT NULL AND NOT EXISTS (SELECT FROM receipts r WHERE r.signing_hash = e.command_hash)`},
	{"receipts", "an Organization Event names a Command that has no receipt", `SELECT '', e.ordinal FROM org_events e
		WHERE e.command_hash IS NOT NULL AND NOT EXISTS (SELECT FROM receipts r WHERE r.signing_hash = e.command_hash)`},
	{"receipts", "tree_id is not that of its Group", `SELECT coalesce(r.group_id, ''), 0::bigint FROM receipts r
		LEFT JOIN groups g ON g.group_id = r.group_id WHERE r.tree_id IS DISTINCT FROM g.tree_id`},
	{"blobs", "belongs to no Group", orphans("blobs")},
	{"admissions", "one record id stands under two signing hashes", `SELECT '', 0::bigint FROM (
			SELECT admission_id AS id, signing_hash FROM event_log UNION SELECT admission_id, signing_hash FROM org_events
			UNION SELECT admission_id, signing_hash FROM receipts UNION SELECT record_id, signing_hash FROM admissions) a
		GROUP BY id HAVING count(*) > 1`},
	{"admissions", "one signing hash has two record ids", `SELECT '', 0::bigint FROM (
			SELECT admission_id AS id, signing_hash FROM event_log UNION SELECT admission_id, signing_hash FROM org_events
			UNION SELECT admission_id, signing_hash FROM receipts UNION SELECT record_id, signing_hash FROM admissions) a
		GROUP BY signing_hash HAVING count(*) > 1`},
	{"events", "belongs to no Group", `SELECT e.group_id, e.sequence FROM event_log e
		WHERE NOT EXISTS (SELECT FROM groups g WHERE g.tree_id = e.tree_id AND g.group_id = e.group_id)`},
	{"events", "is in the online log of a Group that was trimmed further", `SELECT e.group_id, e.sequence FROM groups g
		JOIN events e ON e.tree_id = g.tree_id AND e.group_id = g.group_id AND e.sequence <= g.trimmed_sequence WHERE g.trimmed_sequence > 0`},
	{"archived_events", "was not trimmed from the online log", `SELECT e.group_id, e.sequence FROM archived_events e
		JOIN groups g ON g.tree_id = e.tree_id AND g.group_id = e.group_id WHERE e.sequence > g.trimmed_sequence`},
	{"trim_queue", "belongs to no Group", orphans("trim_queue")},
	{"trim_queue", "the archived Group is neither trimmed nor waits for it", `SELECT m.group_id, 0::bigint FROM missions m
		JOIN groups g ON g.tree_id = m.tree_id AND g.group_id = m.group_id WHERE m.group_state = 'archived'
		AND g.trimmed_sequence = 0 AND NOT EXISTS (SELECT FROM trim_queue q WHERE q.group_id = m.group_id)`},
	{"cursors", "is past the head or belongs to no Group", `SELECT c.group_id, c.sequence FROM cursors c
		LEFT JOIN groups g ON g.tree_id = c.tree_id AND g.group_id = c.group_id WHERE c.sequence > coalesce(g.head_sequence, -1)`},
	{"group_timers", "belongs to no Group", orphans("group_timers")},
	{"policy_log", "belongs to no Group", orphans("policy_log")},
	{"missions", "belongs to no Group", orphans("missions")},
	{"memberships", "belongs to no Group", orphans("memberships")},
	{"conversations", "belongs to no Group", orphans("conversations")},
	{"messages", "belongs to no Group", orphans("messages")},
	{"work_items", "belongs to no Group", orphans("work_items")},
	{"offers", "belongs to no Group", orphans("offers")},
	{"leases", "belongs to no Group", orphans("leases")},
	{"artifacts", "belongs to no Group", orphans("artifacts")},
	{"approvals", "belongs to no Group", orphans("approvals")},
	{"budget_accounts", "belongs to no Group", orphans("budget_accounts")},
	{"group_documents", "belongs to no Group", orphans("group_documents")},
}

func orphans(table string) string {
	return "SELECT x.group_id, 0::bigint FROM " + table + ` x
		WHERE NOT EXISTS (SELECT FROM groups g WHERE g.tree_id = x.tree_id AND g.group_id = x.group_id)`
}

func (v *verifier) links(ctx context.Context) error {
	for _, l := range links {
		rows, err := v.tx.Query(ctx, l.sql+" LIMIT 1000")
		if err != nil {
			return err
		}
		var group string
		var sequence int64
		_, err = pgx.ForEachRow(rows, []any{&group, &sequence}, func() error {
			v.differ(group, sequence, l.subject, "%s", l.problem)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// errStop ends a Group whose log cannot be folded further.
var errStop = errors.New("the log cannot be folded further")
