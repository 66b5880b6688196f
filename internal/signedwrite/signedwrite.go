// Package signedwrite takes the signed bodies of writes that are not Commands
// (API.md, Registry): `{…, requestedAt, signature}`.
//
// The hazard is a body that changes something for someone who did not ask for
// it, or a second time: a stolen access token alone must not be enough, and a
// recorded body must not be either. So a body is verified like a Signed Document
// for exactly the Principal of the token, is fresh like a Command, and is stored
// under its signing hash in the transaction of the change it asks for.
package signedwrite

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// Shape is the shape of a signed body with these members of its own.
func Shape(members ...shape.Member) *shape.Shape {
	return shape.Object(append(members,
		shape.Req("requestedAt", protocol.ShapeTimestamp),
		shape.Req("signature", protocol.ShapeSignature))...)
}

// Verifier judges bodies. All fields are required.
type Verifier struct {
	// Evidence is the Registry evidence of now.
	Evidence func(ctx context.Context) *trust.Evidence
	// Past and Future bound requestedAt around now (COMMANDS.md P9).
	Past, Future time.Duration
	Now          func() time.Time
}

// Write is a body that its signer really wrote, now. Whether the signer may ask
// for it is the caller's to decide.
type Write struct {
	Route    string
	Body     []byte
	Value    strictjson.Value
	Signed   *trust.Verified
	Received time.Time
}

// Principal is who asks.
func (w *Write) Principal() protocol.Actor { return w.Signed.Principal }

// Verify judges a body that has passed a Shape, as written by signer. The error
// is the neutral AUTH_INVALID_SIGNATURE, or PROTOCOL_VIOLATION for a body outside
// the JCS data model.
func (v *Verifier) Verify(ctx context.Context, route string, doc *strictjson.Document, signer protocol.Actor) (*Write, *protocol.Error) {
	signed, failure := trust.VerifyBody(doc.Root(), signer, v.Evidence(ctx))
	if failure != nil {
		return nil, failure.Error()
	}
	now := v.Now()
	at := lexical.InstantOf(now)
	if signed.ProtectedTime.Before(at.Add(-v.Past)) || signed.ProtectedTime.After(at.Add(v.Future)) {
		return nil, protocol.NewError(protocol.CodeAuthInvalidSignature, "not_fresh")
	}
	// A key that ended meanwhile may not write by backdating (PROTOCOL.md 6.4).
	if !signed.Contains(at) {
		return nil, protocol.NewError(protocol.CodeAuthInvalidSignature, "key_not_valid_now")
	}
	return &Write{Route: route, Body: doc.Bytes(), Value: doc.Root(), Signed: signed, Received: now}, nil
}

// Unused refuses a body that was recorded already. It is for changes that another
// service commits: asked before, with Record after.
func (w *Write) Unused(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) error {
	var used bool
	err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM signed_writes WHERE signing_hash = $1)`, w.Signed.SigningHash).Scan(&used)
	if err != nil {
		return err
	}
	if used {
		return replayed()
	}
	return nil
}

func replayed() *protocol.Error {
	return protocol.NewError(protocol.CodeAuthInvalidSignature, "replayed")
}

// Execer is the transaction of the change.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Record stores the body in the transaction of the change, or refuses one that
// was stored before with a *protocol.Error.
func (w *Write) Record(ctx context.Context, tx Execer) error {
	signer := w.Principal()
	tag, err := tx.Exec(ctx, `
		INSERT INTO signed_writes (signing_hash, route, principal_type, principal_id, key_id, requested_at, received_at, body)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (signing_hash) DO NOTHING`,
		w.Signed.SigningHash, w.Route, signer.Type, signer.ID, w.Signed.KeyID, w.Signed.ProtectedText, w.Received, w.Body)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return replayed()
	}
	return nil
}
