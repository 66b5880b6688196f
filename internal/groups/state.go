package groups

import (
	"time"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

// State is one Group folded from its Events. Everything in it comes from
// Events alone: what depends on the clock (an offer or lease past its expiry,
// a lapsed provisional Membership, a gate, a pause) is computed by readers,
// never stored (COMMANDS.md 6.3).
//
// The exported fields are for reading; only Apply changes them.
type State struct {
	GroupID string
	// TreeID is the root Mission's id. A child learns it from whoever creates
	// or loads it, because its own Events name only the direct parent.
	TreeID string
	// Head is the sequence of the last Event, 0 for a Group without Events.
	Head int64
	// LastEventAt is occurredAt of the last Event.
	LastEventAt string

	Mission          *Mission
	Group            *protocol.Group
	CoordinatorLease *protocol.Lease

	Memberships   map[protocol.Actor]*protocol.Membership
	Conversations map[string]*protocol.Conversation
	Messages      map[string]*Message
	Proposals     map[string]*Proposal
	WorkItems     map[string]*WorkItem

	Evidence        map[string]*Signed[protocol.Evidence]
	ContextPackages map[string]*Signed[protocol.ContextPackage]
	// Approvals are all Approval documents of the Group by id.
	Approvals map[string]*Approval

	Grants    map[string]*protocol.DelegationGrant
	Overrides map[string]*Override
	PolicyLog []protocol.PolicyLogEntry
	Snapshot  *Signed[protocol.GroupSnapshot]
	// SnapshotHash is the hash of the archived snapshot's bytes.
	SnapshotHash string

	Ledger *budget.Ledger
	// FollowUps are the Missions that continue this one.
	FollowUps []FollowUp

	events    eventIndex
	revisions map[Aggregate]int64
	// recent holds, per actor, when it posted and proposed within the last
	// minute before LastEventAt (COMMANDS.md 7.6).
	recentMessages, recentProposals map[protocol.Actor]*window
	// contracts counts unfinished WorkItems and open Proposals per contract
	// digest under a parent (duplicate_decomposition).
	contracts map[contractKey]map[string]bool
	// owned and offered index WorkItems by the Agent that owns them, or holds
	// or held an offer on them.
	owned, offered map[string]map[string]bool
	// artifacts indexes WorkItem Artifacts by id and by content hash.
	artifactsByID   map[string]*Artifact
	artifactsByHash map[string][]*Artifact
	// redacted holds the sequences that a redaction hides from ordinary members:
	// the original Message and its corrections.
	redacted map[int64]bool
	// leaseOwners maps every lease of a WorkItem to that WorkItem.
	leaseOwners map[string]string

	// attributed indexes WorkItems by the Delegation Grant they were authorized
	// or offered under.
	attributed map[string]map[string]bool
	// requests maps every approval request, for execution or for an action, to
	// its WorkItem; actions does the same for the actionIds of Proposed Actions.
	requests, actions map[string]string
	// timers are what expires by itself, and when.
	timers timers
	// childGroups are the Groups of all child Missions there ever were.
	childGroups []string

	changed ChangeSet
}

// Mission is the Mission document with the facts around it.
type Mission struct {
	protocol.Mission
	// Permissions is what contracts may grant; AllowedCapabilities is their
	// ceiling, nil for none.
	Permissions         []protocol.ResourceGrant `json:"permissions,omitempty"`
	AllowedCapabilities []protocol.CapabilityRef `json:"allowedCapabilities,omitempty"`
	// ParentGroupID and FailurePolicy are set for a child Mission.
	ParentGroupID string `json:"parentGroupId,omitempty"`
	FailurePolicy string `json:"failurePolicy,omitempty"`
	// Submission waits for Approval in state awaiting_approval, and stays as
	// what was approved afterwards; Submissions are all there ever were.
	Submission  *MissionSubmission  `json:"submission,omitempty"`
	Submissions []MissionSubmission `json:"submissions,omitempty"`
	// RootHuman is the human at the top of the Mission tree.
	RootHuman protocol.Actor `json:"rootHuman"`
	// ApprovalID is the Approval that ended the Mission, "" before.
	ApprovalID string `json:"approvalId,omitempty"`
}

// MissionSubmission is what a Coordinator submitted for Approval.
type MissionSubmission struct {
	MissionRevision  int64             `json:"missionRevision"`
	ArtifactHashes   []string          `json:"artifactHashes"`
	AcceptedFailures []AcceptedFailure `json:"acceptedFailures,omitempty"`
}

// AcceptedFailure declares a failed WorkItem not required.
type AcceptedFailure struct {
	WorkItemID string `json:"workItemId"`
	Reason     string `json:"reason"`
}

// FollowUp links to a Mission that continues this one.
type FollowUp struct {
	MissionID string `json:"missionId"`
	GroupID   string `json:"groupId"`
}

// Message is what decisions need to know of a Message. The content stays in the
// log: a Group may have hundreds of thousands.
type Message struct {
	MessageID      string
	ConversationID string
	Author         protocol.Actor
	// Kind is message, correction, retraction or redaction.
	Kind            string
	TargetMessageID string
	Sequence        int64
	// Amendments lists correction, retraction and redaction ids in order.
	Amendments []string
	Retracted  bool
	Redacted   bool
}

// Approval is an Approval document and what became of it.
type Approval struct {
	Signed *Signed[protocol.Approval] `json:"approval"`
	// RevokedBy names the Approval that revoked it, "" while it stands.
	RevokedBy string `json:"revokedBy,omitempty"`
}

// Override is a Cooperation Override Grant.
type Override struct {
	CooperationOverrideGrant
	ConsumedByEventID string `json:"consumedByEventId,omitempty"`
}

// Aggregate names what an Event revises (COMMANDS.md 2.4).
type Aggregate struct {
	Type AggregateType
	// ID is the aggregate's id; for a Mission and a Group the Group's, for a
	// Membership the member's type and id, for a budget account its type and
	// id, joined by a space.
	ID string
}

// AggregateType is the letter of COMMANDS.md section 6.
type AggregateType string

// Aggregate types.
const (
	AggregateMission          AggregateType = "mission"
	AggregateCoordinatorLease AggregateType = "coordinator_lease"
	AggregateMembership       AggregateType = "membership"
	AggregateGrant            AggregateType = "delegation_grant"
	AggregateConversation     AggregateType = "conversation"
	AggregateProposal         AggregateType = "proposal"
	AggregateWorkItem         AggregateType = "work_item"
	AggregateAccount          AggregateType = "budget_account"
	AggregateOverride         AggregateType = "override_grant"
	AggregateGroup            AggregateType = "group"
	// AggregateNone is the Organization's: no Group, no revision.
	AggregateNone AggregateType = ""
)

func missionAggregate(groupID string) Aggregate { return Aggregate{AggregateMission, groupID} }
func leaseAggregate(id string) Aggregate        { return Aggregate{AggregateCoordinatorLease, id} }
func conversationAggregate(id string) Aggregate { return Aggregate{AggregateConversation, id} }
func proposalAggregate(id string) Aggregate     { return Aggregate{AggregateProposal, id} }
func workItemAggregate(id string) Aggregate     { return Aggregate{AggregateWorkItem, id} }
func groupAggregate(id string) Aggregate        { return Aggregate{AggregateGroup, id} }

func membershipAggregate(m protocol.Actor) Aggregate {
	return Aggregate{AggregateMembership, m.Type + " " + m.ID}
}

func accountAggregate(a budget.Ref) Aggregate {
	return Aggregate{AggregateAccount, a.Type + " " + a.ID}
}

// New returns a Group without Events.
func New() *State {
	return &State{
		Memberships:     map[protocol.Actor]*protocol.Membership{},
		Conversations:   map[string]*protocol.Conversation{},
		Messages:        map[string]*Message{},
		Proposals:       map[string]*Proposal{},
		WorkItems:       map[string]*WorkItem{},
		Evidence:        map[string]*Signed[protocol.Evidence]{},
		ContextPackages: map[string]*Signed[protocol.ContextPackage]{},
		Approvals:       map[string]*Approval{},
		Grants:          map[string]*protocol.DelegationGrant{},
		Overrides:       map[string]*Override{},
		Ledger:          budget.New(),
		revisions:       map[Aggregate]int64{},
		recentMessages:  map[protocol.Actor]*window{},
		recentProposals: map[protocol.Actor]*window{},
		contracts:       map[contractKey]map[string]bool{},
		owned:           map[string]map[string]bool{},
		offered:         map[string]map[string]bool{},
		attributed:      map[string]map[string]bool{},
		requests:        map[string]string{},
		actions:         map[string]string{},
		artifactsByID:   map[string]*Artifact{},
		artifactsByHash: map[string][]*Artifact{},
		redacted:        map[int64]bool{},
		leaseOwners:     map[string]string{},
	}
}

// Revision is the aggregate's present revision, 0 when it does not exist.
func (s *State) Revision(a Aggregate) int64 { return s.revisions[a] }

// Terminal reports that the Mission has ended.
func (s *State) Terminal() bool {
	switch s.Mission.State {
	case protocol.MissionApproved, protocol.MissionFailed, protocol.MissionCancelled:
		return true
	}
	return false
}

// Archived reports that the Group has been archived.
func (s *State) Archived() bool { return s.Group.State == groupArchived }

// IsChild reports that the Mission has a parent.
func (s *State) IsChild() bool { return s.Mission.Parent != nil }

// Depth is 0 for a root Mission.
func (s *State) Depth() int64 {
	if s.Mission.Parent == nil {
		return 0
	}
	return s.Mission.Parent.Depth
}

// RootOwner is the human at the top of the Mission tree: the MissionOwner of a
// root Mission, in a child the human whom its creation made an observer.
func (s *State) RootOwner() protocol.Actor {
	return s.Mission.RootHuman
}

// CoordinatorActor is the Agent in mission.coordinator.
func (s *State) CoordinatorActor() protocol.Actor {
	return protocol.Actor{Type: protocol.ActorAgent, ID: s.Mission.Coordinator.AgentID}
}

// CoordinatorLive reports that the Coordinator lease is held at now.
func (s *State) CoordinatorLive(now time.Time) bool {
	return leases.LiveAt(s.CoordinatorLease, now)
}

// Member returns the Principal's Membership whatever its state.
func (s *State) Member(p protocol.Actor) (*protocol.Membership, bool) {
	m, ok := s.Memberships[p]
	return m, ok
}

// MemberNow returns the Principal's Membership unless it has ended or, being
// provisional, has lapsed at now.
func (s *State) MemberNow(p protocol.Actor, now time.Time) (*protocol.Membership, bool) {
	m, ok := s.Memberships[p]
	if !ok || membershipEnded(m, now) {
		return nil, false
	}
	return m, true
}

// membershipEnded counts a lapsed provisional Membership as ended
// (COMMANDS.md 4.3).
func membershipEnded(m *protocol.Membership, now time.Time) bool {
	switch m.State {
	case membershipStateEnded:
		return true
	case membershipStateProvisional:
		return !leases.Before(now, m.ProvisionalExpiresAt)
	}
	return false
}

// holdsOffer reports that the Agent holds or held an offer on the WorkItem.
func (s *State) holdsOffer(agentID, workItemID string) bool { return s.offered[agentID][workItemID] }

// WorkItemOf returns the WorkItem that owns a Conversation.
func (s *State) WorkItemOf(conversationID string) (*WorkItem, bool) {
	c, ok := s.Conversations[conversationID]
	if !ok || c.PrimaryWorkItemID == "" {
		return nil, false
	}
	w, ok := s.WorkItems[c.PrimaryWorkItemID]
	return w, ok
}

// LeaseOwner names the WorkItem a lease belonged to at any time.
func (s *State) LeaseOwner(leaseID string) (*WorkItem, bool) {
	w, ok := s.WorkItems[s.leaseOwners[leaseID]]
	return w, ok
}

// ArtifactByID looks an Artifact of this Group up.
func (s *State) ArtifactByID(id string) (*Artifact, bool) {
	a, ok := s.artifactsByID[id]
	return a, ok
}

// ArtifactsByHash lists the Artifacts of this Group with a content hash, in
// order of publication.
func (s *State) ArtifactsByHash(hash string) []*Artifact { return s.artifactsByHash[hash] }

// States and other constant words that documents.go does not name.
const (
	groupActive   = "active"
	groupArchived = "archived"

	membershipStateProvisional = "provisional"
	membershipStateActive      = "active"
	membershipStateEnded       = "ended"
)
