package events

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/missionweave/server/internal/protocol"
)

// Errors of a commit. Match with errors.Is; the conditions that moved are also
// typed, so that the caller knows what to load again.
var (
	// ErrHeadMoved: another writer appended to a Group, or made one of its id.
	ErrHeadMoved = errors.New("events: Group head moved")
	// ErrReceiptExists: one of the Commands was accepted elsewhere already.
	ErrReceiptExists = errors.New("events: receipt exists")
	// ErrSessionMoved: a session was opened, renewed or has a load that differs
	// from what the batch was decided under.
	ErrSessionMoved = errors.New("events: session moved")
	// ErrAdmissionExists: a document of the batch has a record under another id.
	ErrAdmissionExists = errors.New("events: admission record exists")
	// ErrRegistryMoved: the Registry has a later revision than the evidence.
	ErrRegistryMoved = errors.New("events: registry revision moved")
	// ErrIndeterminate: the answer to a commit got lost and could not be
	// settled; nobody may be told yet whether it happened.
	ErrIndeterminate = errors.New("events: commit outcome unknown")
	// ErrUnavailable: the database cannot be reached or refuses work; nothing
	// was committed.
	ErrUnavailable = errors.New("events: database unavailable")
	// ErrGroupUnknown: there is no such Group.
	ErrGroupUnknown = errors.New("events: no such Group")
	// ErrPastHead: a Cursor beyond the Group's head.
	ErrPastHead = errors.New("events: beyond the head")
	// ErrTrimmed: the Events asked for are no longer in the online log.
	ErrTrimmed = errors.New("events: trimmed from the online log")
)

// HeadMoved names the Groups whose head is not the expected one.
type HeadMoved struct{ GroupIDs []string }

func (e *HeadMoved) Error() string {
	return ErrHeadMoved.Error() + ": " + strings.Join(e.GroupIDs, ", ")
}

// Is matches ErrHeadMoved.
func (e *HeadMoved) Is(target error) bool { return target == ErrHeadMoved }

// ReceiptKey is the idempotency key of a Command.
type ReceiptKey struct {
	Actor    protocol.Actor
	ActionID string
}

func (k ReceiptKey) String() string { return k.Actor.Type + " " + k.Actor.ID + " " + k.ActionID }

// ReceiptExists says that at least one receipt key is taken.
type ReceiptExists struct{ Detail string }

func (e *ReceiptExists) Error() string { return ErrReceiptExists.Error() }

// Is matches ErrReceiptExists.
func (e *ReceiptExists) Is(target error) bool { return target == ErrReceiptExists }

// SQLSTATEs that mw_conflict raises inside a commit.
const (
	stateHeadMoved       = "MW001"
	stateReceiptExists   = "MW002"
	stateSessionMoved    = "MW003"
	stateAdmissionExists = "MW004"
	stateRegistryMoved   = "MW005"
)

// separator joins ids in the detail of mw_conflict; no id contains it.
const separator = "\n"

// conflictOf translates a condition that the commit pipeline found moved.
func conflictOf(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return nil
	}
	switch pg.Code {
	case stateHeadMoved:
		return &HeadMoved{GroupIDs: strings.Split(pg.Detail, separator)}
	case stateReceiptExists:
		return &ReceiptExists{Detail: pg.Detail}
	case stateSessionMoved:
		return fmt.Errorf("%w: %s", ErrSessionMoved, pg.Detail)
	case stateAdmissionExists:
		return fmt.Errorf("%w: %s", ErrAdmissionExists, pg.Detail)
	case stateRegistryMoved:
		return ErrRegistryMoved
	case "40P01", "40001": // deadlock, serialization: decided again like a lost race
		return &HeadMoved{}
	}
	return nil
}
