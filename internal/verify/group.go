package verify

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// groupRow is a Group's row with what hangs on it.
type groupRow struct {
	tree                     int64
	mission, root            string
	head, published, trimmed int64
	due                      *time.Time
	snapshotAt               *int64
	snapshot                 []byte
}

// group verifies one Group: its log, then everything that is derived from it.
func (v *verifier) group(ctx context.Context, id string) error {
	var g groupRow
	err := v.tx.QueryRow(ctx, `SELECT g.tree_id, g.mission_id, g.root_mission_id, g.head_sequence, g.published_sequence,
			g.trimmed_sequence, t.due_at, s.sequence, s.state
		FROM groups g
		LEFT JOIN group_timers t ON t.tree_id = g.tree_id AND t.group_id = g.group_id
		LEFT JOIN snapshots s ON s.tree_id = g.tree_id AND s.group_id = g.group_id AND s.format = $2
		WHERE g.group_id = $1`, id, events.SnapshotFormat).Scan(&g.tree, &g.mission, &g.root, &g.head, &g.published, &g.trimmed, &g.due,
		&g.snapshotAt, &g.snapshot)
	if err != nil {
		return err
	}
	if g.tree != events.TreeKey(g.root) {
		v.differ(id, 0, "groups", "tree_id is not that of root Mission %s", g.root)
	}
	if g.published > g.head {
		v.differ(id, 0, "groups", "published_sequence %d is past head_sequence %d", g.published, g.head)
	}
	state := groups.New()
	state.TreeID = g.root
	policy := map[int64]events.PolicyEntry{}
	documents := map[string]*trust.Verified{}
	err = v.log(ctx, id, &g, state, policy, documents)
	if errors.Is(err, errStop) {
		return nil // nothing behind it can be compared
	}
	if err != nil {
		return err
	}
	if state.Head != g.head {
		v.differ(id, state.Head, "groups", "head_sequence is %d, the log ends at %d", g.head, state.Head)
	}
	if state.Mission == nil {
		return nil
	}
	if state.Mission.MissionID != g.mission {
		v.differ(id, 1, "groups", "mission_id is %s, the log says %s", g.mission, state.Mission.MissionID)
	}
	if err := v.root(ctx, id, &g, state); err != nil {
		return err
	}
	due := events.NextDue(state)
	if g.due == nil && !due.IsZero() || g.due != nil && !g.due.Equal(due) {
		v.differ(id, state.Head, "group_timers", "due_at is %v, the fold says %v", g.due, due)
	}
	v.archived(id, &g, state)
	if err := v.policyLog(ctx, id, g.tree, policy); err != nil {
		return err
	}
	if err := v.embedded(ctx, id, documents); err != nil {
		return err
	}
	differences, err := events.CompareProjections(ctx, v.tx, g.tree, state)
	if err != nil {
		return err
	}
	for _, d := range differences {
		v.differ(id, state.Head, "projection", "%s", d)
	}
	return nil
}

// root checks that a child is placed in its parent's tree.
func (v *verifier) root(ctx context.Context, id string, g *groupRow, state *groups.State) error {
	if !state.IsChild() {
		if g.root != g.mission {
			v.differ(id, 1, "groups", "root_mission_id %s of a root Mission", g.root)
		}
		return nil
	}
	var parent string
	err := v.tx.QueryRow(ctx, "SELECT root_mission_id FROM groups WHERE group_id = $1", state.Mission.ParentGroupID).Scan(&parent)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		v.differ(id, 1, "groups", "parent Group %s does not exist", state.Mission.ParentGroupID)
	case err != nil:
		return err
	case parent != g.root:
		v.differ(id, 1, "groups", "root_mission_id is %s, the parent's is %s", g.root, parent)
	}
	return nil
}

// log verifies every Event and folds it.
func (v *verifier) log(ctx context.Context, id string, g *groupRow, state *groups.State,
	policy map[int64]events.PolicyEntry, documents map[string]*trust.Verified,
) error {
	if err := v.trimmed(ctx, id, g, state, policy, documents); err != nil {
		return err
	}
	const page = 500
	var command acted
	for {
		n, err := v.page(ctx, id, g, state, policy, documents, &command, page)
		if err != nil {
			return err
		}
		if n < page {
			command.settle(v, state)
			return nil
		}
	}
}

func (v *verifier) page(ctx context.Context, id string, g *groupRow, state *groups.State,
	policy map[int64]events.PolicyEntry, documents map[string]*trust.Verified, command *acted, limit int,
) (int, error) {
	page, err := v.eventRows(ctx, id, g.tree, state.Head, limit)
	if err != nil {
		return 0, err
	}
	var propagated [][]byte
	folded := make([]*groups.Event, len(page))
	faults := make([]error, len(page))
	for i := range page {
		folded[i], faults[i] = events.Decode(page[i].document)
		if faults[i] == nil && folded[i].Cause.Type != "command" && page[i].command != nil {
			propagated = append(propagated, page[i].command)
		}
	}
	actors, err := v.actorsOf(ctx, propagated)
	if err != nil {
		return 0, err
	}
	for i := range page {
		r, ev, err := &page[i], folded[i], faults[i]
		v.report.Events++
		if r.sequence != state.Head+1 {
			v.differ(id, r.sequence, "events", "follows sequence %d", state.Head)
			return i, errStop
		}
		verified := v.event(id, r)
		if err == nil {
			command.follow(v, state, r.command, ev, actors)
			before := len(state.PolicyLog)
			if err = state.Apply(ev); err == nil && len(state.PolicyLog) > before {
				policy[r.sequence], err = events.NewPolicyEntry(g.tree, id, r.sequence, &state.PolicyLog[before])
			}
		}
		if err != nil {
			v.differ(id, r.sequence, "events", "cannot be folded: %v", err)
			return i, errStop
		}
		if verified != nil {
			v.collect(id, r.sequence, verified.Value.Member("payload"), documents)
		}
		if g.snapshotAt != nil && *g.snapshotAt == state.Head {
			dump, err := state.Canonical()
			if err != nil {
				return i, err
			}
			if !bytes.Equal(dump, g.snapshot) {
				v.differ(id, state.Head, "snapshots", "differs from the fold")
			}
		}
	}
	return len(page), nil
}

// eventRows reads one page of a Group's Events.
func (v *verifier) eventRows(ctx context.Context, id string, tree, after int64, limit int) ([]eventRow, error) {
	rows, err := v.tx.Query(ctx, `SELECT sequence, event_id, kind, occurred_at, command_hash, signing_hash, admission_id,
			admission_key_id, admission_at, admission_by, document
		FROM event_log WHERE tree_id = $1 AND group_id = $2 AND sequence > $3 ORDER BY sequence LIMIT $4`,
		tree, id, after, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r eventRow, err error) {
		err = row.Scan(&r.sequence, &r.id, &r.kind, &r.occurred, &r.command, &r.hash, &r.record, &r.keyID, &r.admitted,
			&r.by, &r.document)
		return r, err
	})
}

// eventRow is an Event as stored.
type eventRow struct {
	sequence      int64
	id, record    [16]byte
	kind          string
	occurred      time.Time
	command, hash []byte
	keyID, by     string
	admitted      time.Time
	document      []byte
}

// event verifies one Event's bytes, columns and record. It returns nil when the
// bytes do not verify.
func (v *verifier) event(group string, r *eventRow) *trust.Verified {
	verified, failure := trust.VerifyBytes(protocol.KindEvent, r.document, v.view.Evidence)
	if failure != nil {
		v.differ(group, r.sequence, "events", "%s", failure)
		return nil
	}
	d := verified.Value
	sequence, _ := d.Member("sequence").Int()
	if sequence != r.sequence {
		v.differ(group, r.sequence, "events", "the Event says sequence %d", sequence)
	}
	for _, c := range []struct{ what, event, row string }{
		{"groupId", d.Member("groupId").Str(), group},
		{"eventId", d.Member("eventId").Str(), urn(r.id)},
		{"kind", d.Member("kind").Str(), r.kind},
		{"occurredAt", d.Member("occurredAt").Str(), lexical.FormatMicros(r.occurred)},
		{"commandHash", d.Member("commandHash").Str(), hashText(r.command)},
		{"signing hash", verified.SigningHash, hashText(r.hash)},
	} {
		if c.event != c.row {
			v.differ(group, r.sequence, "events", "%s is %q in the Event and %q in the row", c.what, c.event, c.row)
		}
	}
	canonical, err := d.AppendJCS(nil)
	if err != nil || !bytes.Equal(canonical, r.document) {
		v.differ(group, r.sequence, "events", "the bytes are not canonical")
	}
	if !v.view.HasRole(verified.Principal, registry.RoleGroupAuthority) {
		v.differ(group, r.sequence, "events", "signed by %s, which is no Group Authority", verified.Principal.ID)
	}
	if problem := v.checkAdmission(admissionColumns{
		r.record, r.keyID, r.admitted, r.by, protocol.KindEvent, hashText(r.hash), verified.Principal, verified,
	}); problem != "" {
		v.differ(group, r.sequence, "events", "admission: %s", problem)
	}
	return verified
}

// documentKinds tells the kind of an embedded Signed Document by the id that
// only this kind has.
var documentKinds = []struct {
	member string
	kind   protocol.DocumentKind
}{
	{"approvalId", protocol.KindApproval},
	{"artifactId", protocol.KindArtifact},
	{"evidenceId", protocol.KindEvidence},
	{"contextPackageId", protocol.KindContextPackage},
	{"snapshotId", protocol.KindGroupSnapshot},
	{"cardVersion", protocol.KindAgentCard},
}

// collect finds and verifies the Signed Documents inside an Event's payload.
func (v *verifier) collect(group string, sequence int64, value strictjson.Value, into map[string]*trust.Verified) {
	switch value.Kind() {
	case strictjson.Array:
		for _, item := range value.Items() {
			v.collect(group, sequence, item, into)
		}
	case strictjson.Object:
		if signature, ok := value.Get("signature"); ok && signature.Kind() == strictjson.Object {
			v.document(group, sequence, value, into)
			return
		}
		for _, member := range value.Members() {
			v.collect(group, sequence, member, into)
		}
	}
}

func (v *verifier) document(group string, sequence int64, value strictjson.Value, into map[string]*trust.Verified) {
	for _, k := range documentKinds {
		if _, ok := value.Get(k.member); !ok {
			continue
		}
		v.report.Documents++
		verified, failure := trust.Verify(k.kind, value, v.view.Evidence)
		if failure != nil {
			v.differ(group, sequence, string(k.kind), "%s", failure)
			return
		}
		into[verified.SigningHash] = verified
		return
	}
	v.differ(group, sequence, "events", "the payload holds a signed object of unknown kind")
}

// embedded looks the records of embedded documents up.
func (v *verifier) embedded(ctx context.Context, group string, documents map[string]*trust.Verified) error {
	hashes := make([]string, 0, len(documents))
	for hash := range documents {
		hashes = append(hashes, hash)
	}
	rows, err := v.tx.Query(ctx, `SELECT 'sha256:' || encode(signing_hash, 'hex'), record_id, document_kind, key_id, principal_type,
		principal_id, trusted_accepted_at, accepted_by FROM admissions
		WHERE signing_hash = ANY (SELECT decode(substr(h, 8), 'hex') FROM unnest($1::text[]) AS h)`, hashes)
	if err != nil {
		return err
	}
	defer rows.Close()
	found := map[string]bool{}
	for rows.Next() {
		var a admissionColumns
		var kind string
		if err := rows.Scan(&a.hash, &a.id, &kind, &a.keyID, &a.actor.Type, &a.actor.ID, &a.at, &a.by); err != nil {
			return err
		}
		a.kind, a.document = protocol.DocumentKind(kind), documents[a.hash]
		found[a.hash] = true
		if problem := v.checkAdmission(a); problem != "" {
			v.differ(group, 0, kind+" "+a.hash, "admission: %s", problem)
		}
	}
	for hash, d := range documents {
		if !found[hash] {
			v.differ(group, 0, string(d.Kind)+" "+hash, "has no Admission Record")
		}
	}
	return rows.Err()
}

// policyLog compares the stored Policy Log with the folded one.
func (v *verifier) policyLog(ctx context.Context, group string, tree int64, want map[int64]events.PolicyEntry) error {
	rows, err := v.tx.Query(ctx, `SELECT sequence, entry_id, decision, actor_type, actor_id, occurred_at, document FROM policy_log
		WHERE tree_id = $1 AND group_id = $2 ORDER BY sequence`, tree, group)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var have events.PolicyEntry
		if err := rows.Scan(&have.Sequence, &have.EntryID, &have.Decision, &have.Actor.Type, &have.Actor.ID, &have.OccurredAt,
			&have.Document); err != nil {
			return err
		}
		entry, ok := want[have.Sequence]
		delete(want, have.Sequence)
		switch {
		case !ok:
			v.differ(group, have.Sequence, "policy_log", "the Event makes no entry")
		case have.EntryID != entry.EntryID || have.Decision != entry.Decision || have.Actor != entry.Actor ||
			!have.OccurredAt.Equal(entry.OccurredAt) || !bytes.Equal(have.Document, entry.Document):
			v.differ(group, have.Sequence, "policy_log", "differs from the fold")
		}
	}
	for sequence := range want {
		v.differ(group, sequence, "policy_log", "the entry is missing")
	}
	return rows.Err()
}
