package groups

import (
	"slices"
	"strings"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

// Command is a Command that passed P1 to P12.
type Command struct {
	Envelope    protocol.Command
	SigningHash string
	// Payload is what DecodePayload returned, nil for a kind that is not
	// implemented here.
	Payload any
	// Docs are the embedded Signed Documents in the order of DecodePayload,
	// verified and admitted.
	Docs []Document
	// Internal marks a Command that the server's own service issued inside the
	// process; session_open posted from outside is refused (COMMANDS.md 5.7).
	Internal bool
}

// Document is an embedded Signed Document that passed P11 and P12.
type Document struct {
	Kind        protocol.DocumentKind
	SigningHash string
	Principal   protocol.Actor
}

// WorkItemUse says what the envelope's workItemId means for a kind.
type WorkItemUse string

// Uses of the envelope's workItemId.
const (
	WorkItemUnused   WorkItemUse = ""         // may be sent, then it must exist
	WorkItemRequired WorkItemUse = "required" // an existing WorkItem
	WorkItemNew      WorkItemUse = "new"      // required, and not yet used
	WorkItemOptional WorkItemUse = "optional" // changes what the Command is about
)

// Kind is the row of one Command kind. Everything about a kind that is not a
// check of its own is data here: the conformance matrix, the documentation and
// the answer to "what may I do now" are made from it.
type Kind struct {
	Kind string
	// Capacities lists the capacities of COMMANDS.md 2.3 that the kind knows,
	// each with the Membership scope it needs.
	Capacities []CapacityRow
	// Creates marks the two kinds whose Group does not exist yet, Organization
	// the two without a Group.
	Creates, Organization bool
	WorkItem              WorkItemUse
	// Conversation says that the envelope's conversationId is required.
	Conversation bool
	// Provisional lets a provisional member issue the kind (COMMANDS.md 3.6).
	Provisional bool
	// Limits are the cooperation limits that govern the kind (7.6).
	Limits []string
	// Documents describes the embedded Signed Documents, in document order.
	Documents []DocumentRow
	// Shape is the payload profile.
	Shape *shape.Shape
	// Aggregate says what expectedRevision counts (2.4).
	Aggregate AggregateType
	// Archived lets the kind act on an archived Group.
	Archived bool

	handler handler
}

// CapacityRow is a capacity and the scope it needs, "" for none.
type CapacityRow struct {
	Capacity Capacity
	Scope    string
}

// DocumentRow is a payload member that is or holds Signed Documents.
type DocumentRow struct {
	Member string
	Kind   protocol.DocumentKind
	Many   bool
}

// handler is the type-erased form of a kind's steps.
type handler struct {
	new func() any
	// scratch makes what the steps of one decision share.
	scratch func() any
	// judge picks a more specific capacity than the envelope alone gives;
	// ok is false when it has none.
	judge func(x *Ctx) (Capacity, bool)
	steps map[Step]func(x *Ctx) error
	// revision returns the revision that expectedRevision is compared with.
	revision func(x *Ctx) int64
	emit     func(x *Ctx) error
}

// plan is how a kind states its own checks, one function per step; a nil
// function checks nothing there. P is the payload type, S what the steps hand
// on to each other; both are fresh for every decision.
type plan[P, S any] struct {
	Judge      func(x *Ctx, p *P) (Capacity, bool)
	Extensions func(x *Ctx, p *P, s *S) error // P16
	Authority  func(x *Ctx, p *P, s *S) error // P17
	References func(x *Ctx, p *P, s *S) error // P18
	Relation   func(x *Ctx, p *P, s *S) error // P18b
	Ownership  func(x *Ctx, p *P, s *S) error // P19
	Leases     func(x *Ctx, p *P, s *S) error // P20
	Revision   func(x *Ctx, p *P, s *S) int64 // P21
	State      func(x *Ctx, p *P, s *S) error // P22
	Values     func(x *Ctx, p *P, s *S) error // P23
	Approvals  func(x *Ctx, p *P, s *S) error // P23, gates
	Limits     func(x *Ctx, p *P, s *S) error // P23, cooperation limits
	Budget     func(x *Ctx, p *P, s *S) error // P24
	Emit       func(x *Ctx, p *P, s *S) error
}

// kind completes a row with its plan.
func kind[P, S any](row Kind, pl plan[P, S]) Kind {
	bind := func(fn func(*Ctx, *P, *S) error) func(*Ctx) error {
		if fn == nil {
			return nil
		}
		return func(x *Ctx) error { return fn(x, x.Command.Payload.(*P), x.scratch.(*S)) }
	}
	h := handler{
		new:     func() any { return new(P) },
		scratch: func() any { return new(S) },
		steps:   map[Step]func(*Ctx) error{},
		emit:    bind(pl.Emit),
	}
	for step, fn := range map[Step]func(*Ctx, *P, *S) error{
		StepExtensions: pl.Extensions, StepAuthority: pl.Authority, StepReferences: pl.References,
		StepRelation: pl.Relation, StepOwnership: pl.Ownership, StepLeases: pl.Leases,
		StepState: pl.State, StepValues: pl.Values, StepApprovals: pl.Approvals,
		StepLimits: pl.Limits, StepBudget: pl.Budget,
	} {
		if fn != nil {
			h.steps[step] = bind(fn)
		}
	}
	if pl.Judge != nil {
		h.judge = func(x *Ctx) (Capacity, bool) { return pl.Judge(x, x.Command.Payload.(*P)) }
	}
	if pl.Revision != nil {
		h.revision = func(x *Ctx) int64 { return pl.Revision(x, x.Command.Payload.(*P), x.scratch.(*S)) }
	}
	if h.emit == nil {
		panic("groups: Command kind " + row.Kind + " has no Events")
	}
	row.handler = h
	return row
}

// kinds is the Command catalogue (COMMANDS.md section 5), by kind.
var kinds = indexKinds(
	missionKinds(), memberKinds(), messageKinds(), proposalKinds(), workKinds(), organizationKinds(),
)

func indexKinds(groups ...[]Kind) map[string]*Kind {
	m := map[string]*Kind{}
	for _, g := range groups {
		for i := range g {
			if _, twice := m[g[i].Kind]; twice {
				panic("groups: Command kind " + g[i].Kind + " is listed twice")
			}
			m[g[i].Kind] = &g[i]
		}
	}
	return m
}

// KindOf returns the row of a Command kind; ok is false when this server does
// not implement it.
func KindOf(name string) (row Kind, ok bool) {
	k, ok := kinds[name]
	if !ok {
		return Kind{}, false
	}
	return *k, true
}

func (k *Kind) capacity(c Capacity) (CapacityRow, bool) {
	for _, row := range k.Capacities {
		if row.Capacity == c {
			return row, true
		}
	}
	return CapacityRow{}, false
}

func (k *Kind) governedBy(policy string) bool {
	for _, p := range k.Limits {
		if p == policy {
			return true
		}
	}
	return false
}

// Kinds returns every Command kind that this server implements, by name.
func Kinds() []Kind {
	all := make([]Kind, 0, len(kinds))
	for _, k := range kinds {
		all = append(all, *k)
	}
	slices.SortFunc(all, func(a, b Kind) int { return strings.Compare(a.Kind, b.Kind) })
	return all
}
