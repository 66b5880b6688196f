package bundle

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// admission is a First-Admission Record as its document.
func (x *export) admission(kind protocol.DocumentKind, id [16]byte, hash, keyID string, principal protocol.Actor, at time.Time, by string) ([]byte, error) {
	return strictjson.Marshal(protocol.FirstAdmissionRecord{
		ProtocolVersion: protocol.Version, AdmissionRecordID: urn(id), OrganizationID: x.s.head.OrganizationID,
		DocumentKind: string(kind), SigningHash: hash, KeyID: keyID, Principal: principal,
		TrustedAcceptedAt: lexical.FormatMicros(at), AcceptedBy: protocol.Actor{Type: protocol.ActorService, ID: by},
	})
}

func urn(id [16]byte) string {
	s := hex.EncodeToString(id[:])
	return "urn:uuid:" + s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

func hashText(b []byte) string { return "sha256:" + hex.EncodeToString(b) }

// page writes Events, each after the Command it came from and before the records
// of the documents it holds.
func (x *export) page(ctx context.Context, list []row, last []byte) ([]byte, error) {
	commands, err := x.commandsOf(ctx, list)
	if err != nil {
		return nil, err
	}
	embedded := make([][]string, len(list))
	var all []string
	for i := range list {
		doc, err := strictjson.Parse(list[i].document)
		if err != nil {
			return nil, fmt.Errorf("bundle: Event: %w", err)
		}
		if embedded[i], err = embeddedHashes(doc.Root().Member("payload"), nil); err != nil {
			return nil, err
		}
		all = append(all, embedded[i]...)
	}
	records, err := x.recordsOf(ctx, all)
	if err != nil {
		return nil, err
	}
	for i := range list {
		e := &list[i]
		if c, ok := commands[string(e.command)]; ok && !bytes.Equal(e.command, last) {
			if err := x.pair(kindCommand, c.admission, c.document, c.receipt); err != nil {
				return nil, err
			}
			last = e.command
		}
		record, err := x.admission(protocol.KindEvent, e.record, hashText(e.signingHash), e.keyID, protocol.Actor{Type: protocol.ActorService, ID: e.by}, e.at, e.by)
		if err != nil {
			return nil, err
		}
		if err := x.pair(kindEvent, record, e.document, nil); err != nil {
			return nil, err
		}
		for _, hash := range embedded[i] {
			record, ok := records[hash]
			if !ok {
				return nil, fmt.Errorf("bundle: document %s has no Admission Record", hash)
			}
			if err := x.w.line(kindAdmission, record); err != nil {
				return nil, err
			}
		}
	}
	return last, nil
}

func (x *export) pair(kind string, record, document, receipt []byte) error {
	x.buf = appendPair(x.buf[:0], record, document, receipt)
	return x.w.line(kind, x.buf)
}

// signed is a Command with its record and its receipt.
type signed struct{ admission, document, receipt []byte }

// commandsOf finds the Commands of this Group that Events came from, by Signing
// Hash.
func (x *export) commandsOf(ctx context.Context, list []row) (map[string]signed, error) {
	out := map[string]signed{}
	if !x.s.head.Commands {
		return out, nil
	}
	var types, ids, actions []string
	for i := range list {
		if list[i].command == nil {
			continue
		}
		doc, err := strictjson.Parse(list[i].document)
		if err != nil {
			return nil, err
		}
		ev := doc.Root()
		if cause := ev.Member("cause"); cause.Member("type").Str() == causeCommand {
			types = append(types, ev.Member("actor").Member("type").Str())
			ids = append(ids, ev.Member("actor").Member("id").Str())
			actions = append(actions, cause.Member("id").Str())
		}
	}
	rows, err := x.pool.Query(ctx, `SELECT signing_hash, admission_id, admission_key_id, admission_at, admission_by, actor_type, actor_id, command, response
		FROM receipts WHERE group_id = $4 AND (actor_type, actor_id, action_id) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]))`,
		types, ids, actions, x.s.head.GroupID)
	if err != nil {
		return nil, err
	}
	var hash, command, receipt []byte
	var id [16]byte
	var keyID, by string
	var actor protocol.Actor
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&hash, &id, &keyID, &at, &by, &actor.Type, &actor.ID, &command, &receipt}, func() error {
		record, err := x.admission(protocol.KindCommand, id, hashText(hash), keyID, actor, at, by)
		out[string(hash)] = signed{record, command, receipt}
		hash, command, receipt = nil, nil, nil
		return err
	})
	return out, err
}

const causeCommand = "command"

// recordsOf finds the Admission Records of embedded documents by Signing Hash.
func (x *export) recordsOf(ctx context.Context, hashes []string) (map[string][]byte, error) {
	out := map[string][]byte{}
	if len(hashes) == 0 {
		return out, nil
	}
	rows, err := x.pool.Query(ctx, `SELECT 'sha256:' || encode(signing_hash, 'hex'), record_id, document_kind, key_id, principal_type,
		principal_id, trusted_accepted_at, accepted_by FROM admissions
		WHERE signing_hash = ANY (SELECT decode(substr(h, 8), 'hex') FROM unnest($1::text[]) AS h)`, hashes)
	if err != nil {
		return nil, err
	}
	var hash, kind, keyID, by string
	var id [16]byte
	var actor protocol.Actor
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&hash, &id, &kind, &keyID, &actor.Type, &actor.ID, &at, &by}, func() error {
		record, err := x.admission(protocol.DocumentKind(kind), id, hash, keyID, actor, at, by)
		out[hash] = record
		return err
	})
	return out, err
}

// embeddedHashes are the Signing Hashes of the Signed Documents in a payload, in
// order.
func embeddedHashes(v strictjson.Value, into []string) ([]string, error) {
	err := eachSigned(v, func(doc strictjson.Value) error {
		hash, err := trust.SigningHash(doc)
		into = append(into, hash)
		return err
	})
	return into, err
}

// eachSigned calls f for every outermost signed object in v.
func eachSigned(v strictjson.Value, f func(strictjson.Value) error) error {
	switch v.Kind() {
	case strictjson.Array:
		for _, item := range v.Items() {
			if err := eachSigned(item, f); err != nil {
				return err
			}
		}
	case strictjson.Object:
		if s, ok := v.Get("signature"); ok && s.Kind() == strictjson.Object {
			return f(v)
		}
		for _, m := range v.Members() {
			if err := eachSigned(m, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// derived writes the Policy Log and the state, as the server folded them.
func (x *export) derived(context.Context) error {
	for i := range x.s.policy {
		if err := x.value(kindPolicy, x.s.policy[i]); err != nil {
			return err
		}
	}
	return x.w.line(kindState, x.s.state)
}

// evidence writes the evidence records, run by run.
func (x *export) evidence(ctx context.Context) error {
	for _, run := range x.s.runs {
		if err := x.value(kindRun, run); err != nil {
			return err
		}
		for after := int64(0); after < run.Length; after += page {
			to := min(after+page, run.Length)
			rows, err := x.pool.Query(ctx, `SELECT document FROM evidence_records WHERE run_id = $1 AND ordinal > $2 AND ordinal <= $3
				ORDER BY ordinal`, run.RunID, after, to)
			if err != nil {
				return err
			}
			var document []byte
			var n int64
			_, err = pgx.ForEachRow(rows, []any{&document}, func() error {
				n++
				return x.w.line(kindEvidence, document)
			})
			if err == nil && n != to-after {
				err = fmt.Errorf("bundle: %d records of run %s from %d to %d", n, run.RunID, after+1, to)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// seal writes the last line.
func (x *export) seal(signer trust.Signer) error {
	b, err := strictjson.Marshal(seal{Format, x.s.head.GroupID, x.s.head.Head, x.w.n, "sha256:" + x.w.hash.String(), signer.Principal.ID})
	if err != nil {
		return err
	}
	if b, err = trust.SignBody(b, lexical.FormatMicros(x.now().UTC()), signer); err != nil {
		return err
	}
	return x.w.line(kindSeal, b)
}
