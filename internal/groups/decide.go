package groups

import (
	"errors"
	"strings"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// Step is a row of the pipeline (COMMANDS.md 2.2).
type Step string

// The steps of Decide, in order. P23 is three steps, because within it values
// go before gates and gates before cooperation limits.
const (
	StepSession     Step = "P13"
	StepGroup       Step = "P14"
	StepCoordinator Step = "P15"
	StepExtensions  Step = "P16"
	StepAuthority   Step = "P17"
	StepReferences  Step = "P18"
	StepRelation    Step = "P18b"
	StepOwnership   Step = "P19"
	StepLeases      Step = "P20"
	StepRevision    Step = "P21"
	StepState       Step = "P22"
	StepValues      Step = "P23"
	StepApprovals   Step = "P23 gate"
	StepLimits      Step = "P23 limit"
	StepBudget      Step = "P24"
	stepEmit        Step = "P25"
)

// pipeline is the order of precedence: the first failing row decides the code.
var pipeline = []struct {
	step Step
	// before runs ahead of the kind's own check of the step, after behind it.
	before, after func(*Ctx) error
}{
	{StepSession, fenceSession, nil},
	{StepGroup, fenceGroup, nil},
	{StepCoordinator, fenceCoordinator, nil},
	{StepExtensions, checkExtensions, nil},
	{StepAuthority, authorize, nil},
	{StepReferences, checkReferences, nil},
	{StepRelation, nil, nil},
	{StepOwnership, nil, nil},
	{StepLeases, nil, nil},
	{StepRevision, checkRevision, nil},
	{StepState, checkState, nil},
	{StepValues, nil, checkDocumentTimes},
	{StepApprovals, nil, nil},
	{StepLimits, nil, settleLimits},
	{StepBudget, nil, nil},
}

// Ctx is one decision in progress: what the steps of a kind look at.
type Ctx struct {
	World   *World
	Command *Command
	// Kind is nil for a kind this server does not implement.
	Kind *Kind
	// Now is the decision's time as Events and documents spell it.
	Now string
	// Group is the envelope's Group, nil for creation and Organization kinds.
	Group *State
	// Agent is the acting Agent, nil for other actors.
	Agent *Agent
	// Membership is the actor's, nil for services and creators.
	Membership *protocol.Membership
	Capacity   Capacity
	// Item is the envelope's WorkItem once P18 has found it.
	Item *WorkItem
	// Conversation is the envelope's Conversation once P18 has found it.
	Conversation *protocol.Conversation

	// Offline is the binding of bounded offline work, nil when none was sent.
	Offline *OfflineBinding

	docs     []documentRef
	exceeded []exceeded
	scratch  any
	out      emitter
}

// Actor is the Command's actor.
func (x *Ctx) Actor() protocol.Actor { return x.Command.Envelope.Actor }

// Decision is what an accepted Command causes.
type Decision struct {
	// Drafts are the Events in append order, those of one Group in sequence.
	Drafts   []Draft
	Capacity Capacity
	// Sign lists documents the caller must sign before encoding the Drafts.
	Sign []SignRequest
}

// Decide runs P13 to P24 and, when nothing refuses, returns the Events of P25.
// The error is a *protocol.Error (the refusal) or a *Need. Neither the World
// nor any State is changed; the same input gives the same answer, ids minted
// aside.
func Decide(w *World, c *Command) (Decision, error) {
	w = w.whole()
	x := &Ctx{
		World: w, Command: c, Kind: kinds[c.Envelope.Kind],
		Now: lexical.FormatMicros(w.Now),
	}
	x.out.init(x)
	if err := x.verified(); err != nil {
		return Decision{}, refused(err, stepEmit)
	}
	for _, row := range pipeline {
		var own func(*Ctx) error
		if x.Kind != nil {
			own = x.Kind.handler.steps[row.step]
		}
		for _, check := range [...]func(*Ctx) error{row.before, own, row.after} {
			if check == nil {
				continue
			}
			if err := check(x); err != nil {
				return Decision{}, refused(err, row.step)
			}
		}
	}
	if err := x.Kind.handler.emit(x); err != nil {
		return Decision{}, refused(err, stepEmit)
	}
	return x.out.decision(x)
}

// refused stamps a refusal with its step. Anything that is neither a refusal
// nor a Need is a defect and becomes INTERNAL_ERROR.
func refused(err error, step Step) error {
	var need *Need
	if errors.As(err, &need) {
		return need
	}
	var refusal *protocol.Error
	if !errors.As(err, &refusal) {
		refusal = protocol.Internal(err)
	}
	name, _, _ := strings.Cut(string(step), " ")
	return refusal.WithStep(name)
}

// refuse makes a refusal.
func refuse(code protocol.Code, reason string) error { return protocol.NewError(code, reason) }

// forbid, invalid and wrongState are the three codes that carry a reason token.
func forbid(reason string) error  { return refuse(protocol.CodeAuthForbidden, reason) }
func invalid(reason string) error { return refuse(protocol.CodeInvalidCommand, reason) }

func wrongState(reason, state string) error {
	e := protocol.NewError(protocol.CodeInvalidStateTransition, reason)
	if state != "" {
		e = e.WithDetail("state", state)
	}
	return e
}

// errUnverified is a defect of the caller, not of the Command.
var errUnverified = errors.New("groups: payload not decoded, or embedded documents not verified")
