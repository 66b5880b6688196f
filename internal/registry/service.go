package registry

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/signedwrite"
	"github.com/missionweave/server/internal/trust"
)

// maxBackdate is how far in the past the validFrom of a new binding may lie
// (API.md, Registry): a key must not have been able to sign before anyone knew.
const maxBackdate = time.Hour

// SubmitFunc hands a signed Command to the Group Authority. replayed tells that
// the receipt is an earlier one.
type SubmitFunc func(ctx context.Context, command []byte) (receipt []byte, replayed bool, err *protocol.Error)

// Config is what a Service works with. Submit may be nil: then cards are
// registered without the Authority (first start, tests).
type Config struct {
	Pool      *pgxpool.Pool
	Directory *Directory
	// Signer is the Organization's key for cards: a Principal of role registry.
	Signer trust.Signer
	Submit SubmitFunc
	// Mint returns a fresh urn:uuid: UUIDv7.
	Mint func() string
	Now  func() time.Time
	// Future bounds protected times after now (COMMANDS.md P9).
	Future time.Duration
	Log    *slog.Logger
}

// Service changes and reads the Registry. Its errors are *protocol.Error
// refusals, or failures of the database.
type Service struct {
	cfg Config
}

// New returns a Service.
func New(cfg Config) *Service {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{cfg: cfg}
}

// Author is who asks for a change. Write is the signed body that asks, nil only
// inside the process (first start).
type Author struct {
	Principal protocol.Actor
	Write     *signedwrite.Write
}

// mutation is one registry transaction: the revision it makes, and the Registry
// as of the revision before, which nobody can change meanwhile.
type mutation struct {
	tx       Querier
	base     *View
	revision int64
	now      time.Time
	by       protocol.Actor
}

// mutate runs f under the head's lock and commits. Afterwards the Directory of
// this process knows the new revision.
func (s *Service) mutate(ctx context.Context, author Author, f func(m *mutation) error) error {
	err := pgx.BeginTxFunc(ctx, s.cfg.Pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		m, err := s.cfg.Directory.begin(ctx, tx, author.Principal)
		if err != nil {
			return err
		}
		if author.Write != nil {
			if err := author.Write.Record(ctx, tx); err != nil {
				return err
			}
		}
		return f(m)
	})
	if uniqueViolation(err) {
		// The lock makes this impossible for writers of this package.
		return protocol.NewError(protocol.CodeAuthInvalidSignature, "binding_conflict").WithCause(err)
	}
	if err == nil {
		s.follow(ctx)
	}
	return err
}

// follow brings a committed change into this process's view. Its failure is not
// the caller's: the change stands, and the Directory fails closed by itself.
func (s *Service) follow(ctx context.Context) {
	if _, err := s.cfg.Directory.Current(ctx); err != nil {
		s.cfg.Log.WarnContext(ctx, "registry change committed, view not refreshed", "err", err)
	}
}

// begin takes the head's lock in tx and reads what this process has not seen yet
// through tx itself: a second connection could be one too many for the pool.
func (d *Directory) begin(ctx context.Context, tx Querier, by protocol.Actor) (*mutation, error) {
	revision, now, err := raiseHead(ctx, tx)
	if err != nil {
		return nil, err
	}
	s := d.state.Load()
	if s.fault != nil {
		return nil, s.fault
	}
	organizationID, _, err := readHead(ctx, tx)
	if err != nil {
		return nil, err
	}
	base, err := s.view.next(ctx, tx, organizationID, revision-1)
	if err != nil {
		return nil, err
	}
	return &mutation{tx: tx, base: base, revision: revision, now: now, by: by}, nil
}

// refuse turns a broken registry rule into the neutral refusal (COMMANDS.md 5.7:
// key reuse, alias or invalid point); anything else stays a failure.
func refuse(err error) error {
	var fault *trust.BindingFault
	if errors.As(err, &fault) {
		return protocol.NewError(protocol.CodeAuthInvalidSignature, "").WithStage(trust.StageKey.String()).WithCause(err)
	}
	return err
}

func invalid(reason string) *protocol.Error {
	return protocol.NewError(protocol.CodeInvalidCommand, reason)
}
