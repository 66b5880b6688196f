package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/trust"
)

// ErrUnknown is a key, card or profile that the Registry does not have.
var ErrUnknown = errors.New("registry: no such record")

// RegisterKey binds a key. An identical binding that exists already is returned
// with created false. Refusals: AUTH_INVALID_SIGNATURE for a key that breaks a
// rule of PROTOCOL.md 6.4 (point, reuse, alias), INVALID_COMMAND for a validFrom
// that lies too far back.
func (s *Service) RegisterKey(ctx context.Context, author Author, b trust.Binding) (record *KeyRecord, created bool, err error) {
	if len(b.History) > 0 {
		return nil, false, fmt.Errorf("registry: a new binding has no history")
	}
	err = s.mutate(ctx, author, func(m *mutation) error {
		_, known := m.base.Evidence.Key(b.KeyID)
		created = !known
		if _, err := m.base.Evidence.Extend(m.revision, []trust.Binding{b}); err != nil {
			return refuse(err)
		}
		if created {
			if err := m.insertKey(ctx, b); err != nil {
				return err
			}
		}
		record, err = ReadKey(ctx, m.tx, b.KeyID)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return record, created, nil
}

// insertKey stores a binding that the evidence has accepted.
func (m *mutation) insertKey(ctx context.Context, b trust.Binding) error {
	if instant(b.ValidFrom).Before(m.now.Add(-maxBackdate)) {
		return invalid("valid_from")
	}
	return m.insertBinding(ctx, b)
}

func (m *mutation) insertBinding(ctx context.Context, b trust.Binding) error {
	return insertBinding(ctx, m.tx, &KeyRecord{
		KeyID: b.KeyID, Principal: b.Principal, Algorithm: b.Algorithm, PublicKey: b.PublicKey, ValidFrom: b.ValidFrom,
	}, m.revision, m.now, m.by)
}

// AppendValidity moves a boundary of a key earlier, or sets it; an empty text
// leaves it. What is there already adds no record (changed false). Refusals:
// INVALID_COMMAND for a later boundary; ErrUnknown for an unknown key.
func (s *Service) AppendValidity(ctx context.Context, author Author, keyID, validUntil, revokedAt string) (record *KeyRecord, changed bool, err error) {
	err = s.mutate(ctx, author, func(m *mutation) error {
		key, ok := m.base.Evidence.Key(keyID)
		if !ok {
			return ErrUnknown
		}
		change, later, err := m.narrowing(key, validUntil, revokedAt)
		if err != nil {
			return err
		}
		if later {
			return invalid("boundary_later")
		}
		if change != nil {
			changed = true
			if err := m.appendValidity(ctx, key, *change); err != nil {
				return err
			}
		}
		record, err = ReadKey(ctx, m.tx, keyID)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return record, changed, nil
}

// narrowing compares boundaries with the effective ones of a key: nil when they
// say nothing new, later when one of them would move a boundary later.
func (m *mutation) narrowing(key *trust.Key, validUntil, revokedAt string) (change *trust.Validity, later bool, err error) {
	v := trust.Validity{Sequence: int64(len(key.Binding().History)) + 1}
	for _, b := range []struct {
		text string
		now  *lexical.Instant
		to   *string
	}{{validUntil, key.Interval().ValidUntil, &v.ValidUntil}, {revokedAt, key.Interval().RevokedAt, &v.RevokedAt}} {
		if b.text == "" {
			continue
		}
		at, err := lexical.ParseTimestamp(b.text)
		if err != nil {
			return nil, false, err
		}
		switch {
		case b.now != nil && at.After(*b.now):
			later = true
		case b.now == nil || at.Before(*b.now):
			*b.to = b.text
		}
	}
	if later || v.ValidUntil == "" && v.RevokedAt == "" {
		return nil, later, nil
	}
	v.RecordedAt = m.recordedAt(key)
	return &v, false, nil
}

// recordedAt is now, or the last record's time where the clock of another
// database host was ahead: records are in order of time.
func (m *mutation) recordedAt(key *trust.Key) string {
	text := lexical.FormatMicros(m.now)
	history := key.Binding().History
	if len(history) == 0 {
		return text
	}
	last := history[len(history)-1].RecordedAt
	if earlier, err := before(text, last); err == nil && earlier {
		return last
	}
	return text
}

func (m *mutation) appendValidity(ctx context.Context, key *trust.Key, v trust.Validity) error {
	binding := key.Binding()
	binding.History = []trust.Validity{v}
	if _, err := m.base.Evidence.Extend(m.revision, []trust.Binding{binding}); err != nil {
		return refuse(err)
	}
	return insertValidity(ctx, m.tx, key.ID(), v.Sequence, ValidityRecord{
		ChangedAt: v.RecordedAt, ChangedBy: m.by, ValidUntil: v.ValidUntil, RevokedAt: v.RevokedAt,
	}, m.revision)
}

// ReadKey returns a key with its history; ErrUnknown when there is none.
func ReadKey(ctx context.Context, q Querier, keyID string) (*KeyRecord, error) {
	k := KeyRecord{KeyID: keyID, History: []ValidityRecord{}}
	var public []byte
	err := q.QueryRow(ctx, `
		SELECT principal_type, principal_id, algorithm, public_key, valid_from FROM key_bindings WHERE key_id = $1`,
		keyID).Scan(&k.Principal.Type, &k.Principal.ID, &k.Algorithm, &public, &k.ValidFrom)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrUnknown
	}
	if err != nil {
		return nil, err
	}
	k.PublicKey = lexical.EncodeBase64URL(public)
	rows, err := q.Query(ctx, `
		SELECT coalesce(valid_until, ''), coalesce(revoked_at, ''), recorded_at, changed_by_type, changed_by_id
		FROM key_validity WHERE key_id = $1 ORDER BY sequence`, keyID)
	if err != nil {
		return nil, err
	}
	var v ValidityRecord
	_, err = pgx.ForEachRow(rows, []any{&v.ValidUntil, &v.RevokedAt, &v.ChangedAt, &v.ChangedBy.Type, &v.ChangedBy.ID}, func() error {
		k.History = append(k.History, v)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &k, k.effective()
}

// Key returns a key with its history; ErrUnknown when there is none.
func (s *Service) Key(ctx context.Context, keyID string) (*KeyRecord, error) {
	return ReadKey(ctx, s.cfg.Pool, keyID)
}

// Evidence returns the complete evidence of a revision, 0 meaning the present
// one. ErrUnknown is a revision that does not exist yet.
func (s *Service) Evidence(ctx context.Context, revision int64) (*EvidenceDocument, error) {
	var doc EvidenceDocument
	err := snapshot(ctx, s.cfg.Pool, func(tx pgx.Tx) error {
		organizationID, head, err := readHead(ctx, tx)
		if err != nil {
			return err
		}
		if revision > head {
			return ErrUnknown
		}
		doc = EvidenceDocument{OrganizationID: organizationID, Revision: head}
		if revision > 0 {
			doc.Revision = revision
		}
		doc.Bindings, _, err = keyRows(ctx, tx, 0, doc.Revision)
		return err
	})
	if err != nil {
		return nil, err
	}
	if doc.Bindings == nil {
		doc.Bindings = []KeyRecord{}
	}
	for i := range doc.Bindings {
		if err := doc.Bindings[i].effective(); err != nil {
			return nil, err
		}
	}
	return &doc, nil
}

// KeyEnd is the instant from which a key is not valid any more; ok is false when
// it has no end.
func KeyEnd(key *trust.Key) (end time.Time, ok bool) {
	interval := key.Interval()
	for _, boundary := range []*lexical.Instant{interval.ValidUntil, interval.RevokedAt} {
		if boundary != nil && (!ok || boundary.Time().Before(end)) {
			end, ok = boundary.Time(), true
		}
	}
	return end, ok
}
