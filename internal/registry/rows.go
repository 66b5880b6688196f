package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// Querier is what reading takes: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// ErrNoOrganization is a database in which no Organization was founded yet.
var ErrNoOrganization = errors.New("registry: the database has no Organization")

func readHead(ctx context.Context, q Querier) (organizationID string, revision int64, err error) {
	err = q.QueryRow(ctx, `SELECT organization_id, revision FROM registry_head`).Scan(&organizationID, &revision)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNoOrganization
	}
	return organizationID, revision, err
}

// raiseHead begins a mutation: it takes the head's lock and returns the new
// revision together with the database's clock. All revisions below are then
// committed and none can be added until the transaction ends.
func raiseHead(ctx context.Context, tx Querier) (revision int64, now time.Time, err error) {
	err = tx.QueryRow(ctx,
		`UPDATE registry_head SET revision = revision + 1 RETURNING revision, clock_timestamp()`).Scan(&revision, &now)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNoOrganization
	}
	return revision, now.UTC(), err
}

// keyRows reads bindings and validity records of revisions in (after, upTo]. A
// key whose binding is older comes with its new records only and an empty
// Algorithm.
func keyRows(ctx context.Context, q Querier, after, upTo int64) ([]KeyRecord, map[string]int64, error) {
	var keys []KeyRecord
	at := map[string]int{}
	first := map[string]int64{} // sequence of the first validity record read
	rows, err := q.Query(ctx, `
		SELECT key_id, principal_type, principal_id, algorithm, public_key, valid_from
		FROM key_bindings WHERE revision > $1 AND revision <= $2 ORDER BY key_id`, after, upTo)
	if err != nil {
		return nil, nil, err
	}
	var k KeyRecord
	var public []byte
	_, err = pgx.ForEachRow(rows, []any{&k.KeyID, &k.Principal.Type, &k.Principal.ID, &k.Algorithm, &public, &k.ValidFrom}, func() error {
		record := k
		record.PublicKey = lexical.EncodeBase64URL(public)
		record.History = []ValidityRecord{}
		at[k.KeyID] = len(keys)
		keys = append(keys, record)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	rows, err = q.Query(ctx, `
		SELECT key_id, sequence, coalesce(valid_until, ''), coalesce(revoked_at, ''), recorded_at, changed_by_type, changed_by_id
		FROM key_validity WHERE revision > $1 AND revision <= $2 ORDER BY key_id, sequence`, after, upTo)
	if err != nil {
		return nil, nil, err
	}
	var v ValidityRecord
	var keyID string
	var sequence int64
	_, err = pgx.ForEachRow(rows, []any{&keyID, &sequence, &v.ValidUntil, &v.RevokedAt, &v.ChangedAt, &v.ChangedBy.Type, &v.ChangedBy.ID}, func() error {
		i, known := at[keyID]
		if !known {
			i, at[keyID] = len(keys), len(keys)
			keys = append(keys, KeyRecord{KeyID: keyID})
		}
		if len(keys[i].History) == 0 {
			first[keyID] = sequence
		}
		keys[i].History = append(keys[i].History, v)
		return nil
	})
	return keys, first, err
}

// effective fills in the earliest boundaries of a complete record.
func (k *KeyRecord) effective() error {
	for _, v := range k.History {
		for _, b := range []struct {
			text string
			to   *string
		}{{v.ValidUntil, &k.ValidUntil}, {v.RevokedAt, &k.RevokedAt}} {
			if b.text == "" {
				continue
			}
			earlier, err := before(b.text, *b.to)
			if err != nil {
				return fmt.Errorf("validity of key %s: %w", k.KeyID, err)
			}
			if earlier {
				*b.to = b.text
			}
		}
	}
	return nil
}

// before reports whether a is earlier than b; an absent b is never.
func before(a, b string) (bool, error) {
	at, err := lexical.ParseTimestamp(a)
	if err != nil || b == "" {
		return err == nil, err
	}
	bt, err := lexical.ParseTimestamp(b)
	return err == nil && at.Before(bt), err
}

// instant reads a timestamp that was validated when it was stored; the zero
// time, long past, stands for one that cannot be read.
func instant(text string) time.Time {
	at, err := lexical.ParseTimestamp(text)
	if err != nil {
		return time.Time{}
	}
	return at.Time()
}

func insertBinding(ctx context.Context, tx Querier, k *KeyRecord, revision int64, now time.Time, by protocol.Actor) error {
	public, err := lexical.DecodeBase64URL(k.PublicKey)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO key_bindings (key_id, principal_type, principal_id, algorithm, public_key, valid_from,
			revision, registered_at, registered_by_type, registered_by_id)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		k.KeyID, k.Principal.Type, k.Principal.ID, k.Algorithm, public, k.ValidFrom, revision, now, by.Type, by.ID)
	return err
}

func insertValidity(ctx context.Context, tx Querier, keyID string, sequence int64, v ValidityRecord, revision int64) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO key_validity (key_id, sequence, valid_until, revoked_at, recorded_at, changed_by_type, changed_by_id, revision)
		VALUES ($1, $2, nullif($3, ''), nullif($4, ''), $5, $6, $7, $8)`,
		keyID, sequence, v.ValidUntil, v.RevokedAt, v.ChangedAt, v.ChangedBy.Type, v.ChangedBy.ID, revision)
	return err
}

// insertCard stores a version and makes it the present one.
func insertCard(ctx context.Context, tx Querier, c *Card, signingHash string, revision int64, now time.Time) error {
	if _, err := tx.Exec(ctx, `
		INSERT INTO agent_cards (agent_id, card_version, status, document, signing_hash, revision, registered_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		c.AgentID, c.Version, c.Status, c.Document, signingHash, revision, now); err != nil {
		return err
	}
	capabilities := make([]string, 0, len(c.Card.Capabilities))
	for _, capability := range c.Card.Capabilities {
		capabilities = append(capabilities, capability.ID)
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO agents (agent_id, card_version, status, capabilities, revision) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (agent_id) DO UPDATE SET card_version = excluded.card_version, status = excluded.status,
			capabilities = excluded.capabilities, revision = excluded.revision`,
		c.AgentID, c.Version, c.Status, capabilities, revision)
	return err
}

// uniqueViolation reports whether err is a broken unique key.
func uniqueViolation(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23505"
}
