package events

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/missionweave/server/internal/protocol"
)

// Batch is what one transaction writes and the conditions it was decided under.
// Either all of it commits or none; a batch without Events commits its refusals
// (Audits, Admissions) under the same conditions, so that a refusal is as
// current as an acceptance.
type Batch struct {
	// OrganizationID scopes the Admission Log, Authority is the authenticated
	// service that accepts, AuthorityKeyID its signing key.
	OrganizationID string
	Authority      protocol.Actor
	AuthorityKeyID string
	// Now is the clock reading the Agents' loads were counted with.
	Now time.Time

	// Registry is the Registry revision of the evidence; 0 leaves it unchecked.
	Registry int64
	Agents   []AgentCondition
	Heads    []HeadCondition

	Events     []Event
	OrgEvents  []OrgEvent
	Receipts   []Receipt
	Admissions []Admission
	Audits     []Audit
	Policy     []PolicyEntry
	Sessions   []SessionOpened
	Rows       Rows
	Timers     []Timer
	Snapshots  []Snapshot

	// Within runs inside the transaction before it commits, for facts that
	// another service keeps (an Agent Card). It costs the batch its single round
	// trip; an error rolls everything back and is returned as it is.
	Within func(ctx context.Context, tx pgx.Tx) error
}

// AgentCondition is what was known of an Agent when the batch was decided.
type AgentCondition struct {
	AgentID string
	// Epoch is 0 for an Agent that never had a session.
	Epoch     int64
	ExpiresAt time.Time
	// Exclusive takes the Agent's lock exclusively: its load or its active work
	// was counted, or its session is opened.
	Exclusive bool
	// Load is compared when set.
	Load *Load
	// ActiveGroups is compared when Session or card Commands used it.
	ActiveGroups      []string
	CheckActiveGroups bool
}

// Load counts an Agent's WorkItems over all Groups: in state queued, and in
// state active with a live Execution Lease.
type Load struct{ Queued, Active int64 }

// HeadCondition is a Group the batch read (Head equals Expected), appended to
// (Head above Expected), or makes (Create set; Expected is 0).
type HeadCondition struct {
	TreeID   int64
	GroupID  string
	Expected int64
	Head     int64
	Create   *NewGroup
}

// NewGroup is what a Group's row needs beside its head.
type NewGroup struct {
	MissionID     string
	RootMissionID string
	CreatedAt     time.Time
}

// Event is one Group Event as signed.
type Event struct {
	TreeID      int64
	GroupID     string
	Sequence    int64
	EventID     string
	Kind        string
	OccurredAt  time.Time
	CommandHash string // "" when no Command caused it
	SigningHash string
	Document    []byte
}

// OrgEvent is a fact of the Organization as signed. AcceptedBy and KeyID are of
// the service that signed it.
type OrgEvent struct {
	EventID     string
	Kind        string
	SubjectID   string
	OccurredAt  time.Time
	CommandHash string
	SigningHash string
	AcceptedBy  protocol.Actor
	KeyID       string
	Document    []byte
}

// Receipt is an accepted Command.
type Receipt struct {
	ReceiptKey
	SigningHash string
	TreeID      int64  // 0 with GroupID "" for Organization kinds
	GroupID     string //
	Kind        string
	AcceptedAt  time.Time
	Admission   protocol.FirstAdmissionRecord
	AdmittedAt  time.Time
	// Response is the receipt as sent; Hidden lists the positions in its events
	// that the actor could not see.
	Response []byte
	Hidden   []int32
	Command  []byte
}

// Admission is a First-Admission Record that has a row of its own. Probe is set
// for a refused Command: the key under which an acceptance of the same bytes
// would be found.
type Admission struct {
	Record protocol.FirstAdmissionRecord
	At     time.Time
	Probe  *ReceiptKey
}

// Audit is the protected record of one refusal.
type Audit struct {
	ID          string
	At          time.Time
	Step        string
	Stage       string
	Code        string
	Reason      string
	Cause       string
	SigningHash string
	BodyHash    []byte
	Peer        string
	Actor       protocol.Actor
	ActionID    string
	Kind        string
	GroupID     string
	Repeats     int64
}

// PolicyEntry is one Policy Log entry of a Group.
type PolicyEntry struct {
	TreeID     int64
	GroupID    string
	Sequence   int64
	EntryID    string
	Decision   string
	Actor      protocol.Actor
	OccurredAt time.Time
	Document   []byte
}

// SessionOpened raises an Agent's Session Epoch.
type SessionOpened struct {
	AgentID   string
	Epoch     int64
	KeyID     string
	OpenedAt  time.Time
	ExpiresAt time.Time
}

// Timer says when the sweeper must look at a Group: exactly when its folded
// state says that something expires next. A zero DueAt means never.
type Timer struct {
	TreeID  int64
	GroupID string
	DueAt   time.Time
}

// Snapshot is a folded state for fast loading.
type Snapshot struct {
	TreeID    int64
	GroupID   string
	Sequence  int64
	Format    int32
	State     []byte
	CreatedAt time.Time
}

// order puts everything that takes locks into the one order that all writers
// keep (see the package comment).
func (b *Batch) order() {
	slices.SortFunc(b.Agents, func(x, y AgentCondition) int {
		return cmp.Compare(AgentLockKey(x.AgentID), AgentLockKey(y.AgentID))
	})
	slices.SortFunc(b.Heads, func(x, y HeadCondition) int { return cmp.Compare(x.GroupID, y.GroupID) })
	slices.SortFunc(b.Admissions, func(x, y Admission) int {
		return cmp.Compare(x.Record.SigningHash, y.Record.SigningHash)
	})
}

func compareKeys(x, y ReceiptKey) int {
	return cmp.Or(cmp.Compare(x.Actor.Type, y.Actor.Type), cmp.Compare(x.Actor.ID, y.Actor.ID),
		cmp.Compare(x.ActionID, y.ActionID))
}
