package groups

import (
	"strings"
	"time"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// World is everything Decide may look at besides the Command. The maps hold
// what the caller has loaded; an entry that is nil (or empty, for Missions)
// says that the thing is known not to exist, a missing entry makes Decide
// answer *Need.
type World struct {
	// Now is the one clock reading of this Command. Events spell times in
	// microseconds, so what is finer is cut off before anything is decided.
	Now time.Time
	// Mint returns a fresh urn:uuid: UUIDv7 (COMMANDS.md D6).
	Mint func() string
	Org  *Organization

	Agents map[string]*Agent
	Groups map[string]*State
	// Missions maps a Mission id to its Group id, "" when no Mission has it.
	Missions map[string]string
	// MessageDocs are, per Group, the Message documents of its log, amendments
	// included. Only archival asks for them.
	MessageDocs map[string][]protocol.Message
	// KeyBound reports whether a Principal has a key binding.
	KeyBound func(protocol.Actor) bool
	// KeyLive reports whether a key is bound to the Principal and valid at Now.
	KeyLive func(keyID string, p protocol.Actor) bool
	// Accepted says which Actions have a receipt. A caller that cannot tell
	// leaves the map nil, and no override is refused for it.
	Accepted map[ActionRef]bool
	// CheckCard holds the keys of a new Agent Card against the Registry: reuse,
	// alias, invalid point, lifted revocation. Its error is the refusal.
	CheckCard func(*protocol.AgentCard) error
}

// whole returns the World with Now in whole microseconds.
func (w *World) whole() *World {
	cut := w.Now.Truncate(time.Microsecond)
	if cut.Equal(w.Now) {
		return w
	}
	c := *w
	c.Now = cut
	return &c
}

// Agent is what the Registry and the session service know of an Agent.
type Agent struct {
	ID string
	// CurrentSessionEpoch is 0 when no session was ever opened.
	CurrentSessionEpoch int64
	SessionExpiresAt    time.Time
	Card                *protocol.AgentCard
	Load                Load
	// ActiveGroups lists the Groups in which the Agent owns a WorkItem in state
	// active; read under the Agent's session lock by session and card Commands.
	ActiveGroups []string
}

// Load counts an Agent's WorkItems over all Groups.
type Load struct {
	// Queued counts WorkItems in state queued; Active those with a live
	// Execution Lease.
	Queued, Active int
}

// Organization is the policy the Authority serves.
type Organization struct {
	ID string
	// Authority accepts Group Events and is the actor of propagated, timer and
	// policy Events; Identity and Registry accept the Organization's own facts.
	Authority, Identity, Registry protocol.Actor
	// ContextGenerator makes Context Packages (COMMANDS.md 3.4.1).
	ContextGenerator protocol.Actor
	// ContextGenerators are further Agents whose packages are taken.
	ContextGenerators map[string]bool
	// EvidenceServices may sign Evidence without a Membership.
	EvidenceServices map[string]bool
	// Services says which kinds each service Principal may issue.
	Services map[string]ServiceGrants
	// Creators restricts who may create Missions; nil lets every human.
	Creators map[string]bool

	Limits Limits
	// GroupLimits overrides Limits per Group id.
	GroupLimits map[string]Limits
	Leases      leases.Policy
	// MissionCeiling bounds the budget of a root Mission when set.
	MissionCeiling *protocol.Budget
	// Profiles are the registered Extension Profiles by URI and major version.
	Profiles map[string]map[int64]bool
	// ExecutionPolicyRule names the Organization policy rule that demands an
	// execution approval for a contract, "" when none does (COMMANDS.md 7.4).
	ExecutionPolicyRule func(*protocol.WorkContract) string
	// Catalogue tells the classification of content that the Organization
	// itself provides; ok is false for content it does not. nil provides none.
	Catalogue func(hash string) (classification string, ok bool)
	// OfflineGrace bounds graceDeadline − disconnectedAt (COMMANDS.md 7.7).
	OfflineGrace time.Duration
	// FreshnessFuture bounds the protected time of embedded documents.
	FreshnessFuture time.Duration
}

// ServiceGrants is what Organization policy allows one service.
type ServiceGrants struct {
	Kinds map[string]bool
}

// Limits are the cooperation limits of COMMANDS.md 7.6; none is below 1,
// except that 0 switches a rate off.
type Limits struct {
	MessagesPerMinute, ProposalsPerMinute int
	DelegationDepth                       int64
	QueuedWorkItems, ActiveWorkItems      int
	// DuplicateDecomposition is on unless Off is set.
	DuplicateDecompositionOff bool
	// SoftPercent is the part of a rate, or of the queued or active work of an
	// Agent, at which the Group is told; 0 tells nobody.
	SoftPercent int
}

// DefaultLimits are the values of COMMANDS.md 7.6.
func DefaultLimits() Limits {
	return Limits{
		MessagesPerMinute: 120, ProposalsPerMinute: 30, DelegationDepth: 3,
		QueuedWorkItems: 100, ActiveWorkItems: 4,
	}
}

// Profile of this server's own extension kinds (COMMANDS.md E11).
const (
	OwnProfileURI   = "urn:missionweave:profile:authority"
	OwnProfileMajor = 1
)

func (o *Organization) limits(groupID string) Limits {
	if l, ok := o.GroupLimits[groupID]; ok {
		return l
	}
	return o.Limits
}

func (o *Organization) allows(service, kind string) bool { return o.Services[service].Kinds[kind] }

// GrantKinds builds a ServiceGrants from Command kinds.
func GrantKinds(kinds ...string) ServiceGrants {
	g := ServiceGrants{Kinds: make(map[string]bool, len(kinds))}
	for _, k := range kinds {
		g.Kinds[k] = true
	}
	return g
}

// Need says what Decide must see before it can go on. It is returned as the
// error of Decide and never reaches the wire.
type Need struct {
	Agents, Groups, Missions []string
	// MessageDocs are Groups whose Message documents are wanted.
	MessageDocs []string
	// Actions are those of which it must be known whether they were accepted.
	Actions []ActionRef
}

// ActionRef names an Action: ids are one Principal's own.
type ActionRef struct {
	Actor    protocol.Actor
	ActionID string
}

func (n *Need) Error() string {
	return "needs agents [" + strings.Join(n.Agents, " ") + "] groups [" + strings.Join(n.Groups, " ") +
		"] missions [" + strings.Join(n.Missions, " ") + "] messages of [" + strings.Join(n.MessageDocs, " ") + "]"
}

// agent returns nil without error for an Agent known not to be registered.
func (w *World) agent(id string) (*Agent, error) {
	a, ok := w.Agents[id]
	if !ok {
		return nil, &Need{Agents: []string{id}}
	}
	return a, nil
}

// group returns nil without error for a Group known not to exist.
func (w *World) group(id string) (*State, error) {
	g, ok := w.Groups[id]
	if !ok {
		return nil, &Need{Groups: []string{id}}
	}
	return g, nil
}

// missionGroup returns "" without error for a Mission known not to exist.
func (w *World) missionGroup(id string) (string, error) {
	g, ok := w.Missions[id]
	if !ok {
		return "", &Need{Missions: []string{id}}
	}
	return g, nil
}

// messageDocs are the Message documents of a Group's log.
func (w *World) messageDocs(g *State) ([]protocol.Message, error) {
	docs, ok := w.MessageDocs[g.GroupID]
	if !ok && len(g.Messages) > 0 {
		return nil, &Need{MessageDocs: []string{g.GroupID}}
	}
	return docs, nil
}

// MessageDoc returns the Message document that an Event carries, nil for other
// Events.
func (ev *Event) MessageDoc() *protocol.Message {
	switch p := ev.Payload.(type) {
	case *MessagePosted:
		return &p.Message
	case *MessageAmended:
		return &p.Message
	}
	return nil
}

// accepted reports whether an Action has a receipt.
func (w *World) accepted(a ActionRef) (bool, error) {
	if w.Accepted == nil {
		return false, nil
	}
	was, ok := w.Accepted[a]
	if !ok {
		return false, &Need{Actions: []ActionRef{a}}
	}
	return was, nil
}
