package verify

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// receiptRow is an accepted Command as stored.
type receiptRow struct {
	key               events.ReceiptKey
	hash              []byte
	tree              *int64
	group             *string
	kind              string
	accepted          time.Time
	record            [16]byte
	keyID, by         string
	admitted          time.Time
	response, command []byte
	hidden            []int32
}

// receiptJSON is what a receipt must say (COMMANDS.md 2.6).
type receiptJSON struct {
	ProtocolVersion   string `json:"protocolVersion"`
	ActionID          string `json:"actionId"`
	SigningHash       string `json:"signingHash"`
	GroupID           string `json:"groupId"`
	AcceptedAt        string `json:"acceptedAt"`
	AdmissionRecordID string `json:"admissionRecordId"`
	Events            []struct {
		EventID  string `json:"eventId"`
		GroupID  string `json:"groupId"`
		Sequence int64  `json:"sequence"`
		Kind     string `json:"kind"`
	} `json:"events"`
}

// receipts verifies every accepted Command with its receipt, page by page.
func (v *verifier) receipts(ctx context.Context) error {
	const page = 500
	var after events.ReceiptKey
	for {
		rows, err := v.tx.Query(ctx, `SELECT actor_type, actor_id, action_id, signing_hash, tree_id, group_id, kind, accepted_at,
				admission_id, admission_key_id, admission_at, admission_by, response, command, hidden
			FROM receipts WHERE (actor_type, actor_id, action_id) > ($1, $2, $3)
			ORDER BY actor_type, actor_id, action_id LIMIT $4`, after.Actor.Type, after.Actor.ID, after.ActionID, page)
		if err != nil {
			return err
		}
		batch, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r receiptRow, err error) {
			err = row.Scan(&r.key.Actor.Type, &r.key.Actor.ID, &r.key.ActionID, &r.hash, &r.tree, &r.group, &r.kind, &r.accepted,
				&r.record, &r.keyID, &r.admitted, &r.by, &r.response, &r.command, &r.hidden)
			return r, err
		})
		if err != nil {
			return err
		}
		for i := range batch {
			v.report.Receipts++
			if err := v.receipt(ctx, &batch[i]); err != nil {
				return err
			}
		}
		if len(batch) < page {
			return nil
		}
		after = batch[len(batch)-1].key
	}
}

func (v *verifier) receipt(ctx context.Context, r *receiptRow) error {
	group := ""
	if r.group != nil {
		group = *r.group
	}
	name := "receipts " + r.key.String()
	verified, failure := trust.VerifyBytes(protocol.KindCommand, r.command, v.view.Evidence)
	if failure != nil {
		v.differ(group, 0, name, "Command: %s", failure)
		return nil
	}
	var answer receiptJSON
	doc, err := strictjson.Parse(r.response)
	if err == nil {
		err = strictjson.Decode(doc.Root(), &answer)
	}
	if err != nil {
		v.differ(group, 0, name, "receipt does not read: %v", err)
		return nil
	}
	canonical, err := doc.Root().AppendJCS(nil)
	if err != nil || !bytes.Equal(canonical, r.response) {
		v.differ(group, 0, name, "the receipt's bytes are not canonical")
	}
	c := verified.Value
	for _, x := range []struct{ what, have, want string }{
		{"signing hash of the row", hashText(r.hash), verified.SigningHash},
		{"signingHash of the receipt", answer.SigningHash, verified.SigningHash},
		{"actor type", r.key.Actor.Type, verified.Principal.Type},
		{"actor id", r.key.Actor.ID, verified.Principal.ID},
		{"actionId of the row", r.key.ActionID, c.Member("actionId").Str()},
		{"actionId of the receipt", answer.ActionID, c.Member("actionId").Str()},
		{"kind", r.kind, c.Member("kind").Str()},
		{"Group of the row", group, c.Member("groupId").Str()},
		{"groupId of the receipt", answer.GroupID, c.Member("groupId").Str()},
		{"protocolVersion", answer.ProtocolVersion, protocol.Version},
		{"acceptedAt", answer.AcceptedAt, lexical.FormatMicros(r.accepted)},
		{"admissionRecordId", answer.AdmissionRecordID, urn(r.record)},
	} {
		if x.have != x.want {
			v.differ(group, 0, name, "%s is %q, not %q", x.what, x.have, x.want)
		}
	}
	if problem := v.checkAdmission(admissionColumns{
		r.record, r.keyID, r.admitted, r.by, protocol.KindCommand, hashText(r.hash), verified.Principal, verified,
	}); problem != "" {
		v.differ(group, 0, name, "admission: %s", problem)
	}
	if len(answer.Events) == 0 {
		v.differ(group, 0, name, "the receipt names no Event")
	}
	v.checkHidden(group, name, r, &answer)
	return v.receiptEvents(ctx, group, name, r, &answer)
}

// receiptEvents checks that the Events a receipt names exist and descend from
// its Command.
func (v *verifier) receiptEvents(ctx context.Context, group, name string, r *receiptRow, answer *receiptJSON) error {
	var q pgx.Batch
	for _, ev := range answer.Events {
		check := func(row pgx.Row) error {
			var kind string
			var command []byte
			err := row.Scan(&kind, &command)
			switch {
			case errors.Is(err, pgx.ErrNoRows) && v.isGone(ev.GroupID, ev.Sequence, ev.EventID):
			case errors.Is(err, pgx.ErrNoRows):
				v.differ(ev.GroupID, ev.Sequence, name, "Event %s does not exist", ev.EventID)
			case err != nil:
				return err
			case kind != ev.Kind:
				v.differ(ev.GroupID, ev.Sequence, name, "Event %s is a %s, not a %s", ev.EventID, kind, ev.Kind)
			case !bytes.Equal(command, r.hash):
				v.differ(ev.GroupID, ev.Sequence, name, "Event %s descends from another Command", ev.EventID)
			}
			return nil
		}
		if ev.GroupID == "" {
			q.Queue("SELECT kind, command_hash FROM org_events WHERE event_id = $1::text::uuid", bare(ev.EventID)).QueryRow(check)
			continue
		}
		q.Queue(`SELECT e.kind, e.command_hash FROM groups g JOIN event_log e ON e.tree_id = g.tree_id AND e.group_id = g.group_id
			WHERE g.group_id = $1 AND e.sequence = $2 AND e.event_id = $3::text::uuid`, ev.GroupID, ev.Sequence, bare(ev.EventID)).QueryRow(check)
	}
	if q.Len() == 0 {
		return nil
	}
	return v.tx.SendBatch(ctx, &q).Close()
}

// bare is the UUID inside a urn:uuid: id; anything else is none that exists.
func bare(eventID string) string {
	const prefix = "urn:uuid:"
	if len(eventID) == len(prefix)+36 && eventID[:len(prefix)] == prefix {
		return eventID[len(prefix):]
	}
	return "00000000-0000-0000-0000-000000000000"
}
