package groups

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// stateFormat is raised when a dump of an older program must not be read.
const stateFormat = 2

// stateDump is a State as data: every fact, in an order that depends on
// nothing but the facts. Indexes are left out and made again by ParseState.
type stateDump struct {
	Format           int64                              `json:"format"`
	GroupID          string                             `json:"groupId"`
	Head             int64                              `json:"head"`
	LastEventAt      string                             `json:"lastEventAt"`
	Mission          *Mission                           `json:"mission,omitempty"`
	Group            *protocol.Group                    `json:"group,omitempty"`
	CoordinatorLease *protocol.Lease                    `json:"coordinatorLease,omitempty"`
	Memberships      []*protocol.Membership             `json:"memberships"`
	Conversations    []*protocol.Conversation           `json:"conversations"`
	Messages         messageDump                        `json:"messages"`
	Proposals        []*Proposal                        `json:"proposals"`
	WorkItems        []*WorkItem                        `json:"workItems"`
	Evidence         []*Signed[protocol.Evidence]       `json:"evidence"`
	ContextPackages  []*Signed[protocol.ContextPackage] `json:"contextPackages"`
	Approvals        []*Approval                        `json:"approvals"`
	Grants           []*protocol.DelegationGrant        `json:"grants"`
	Overrides        []*Override                        `json:"overrides"`
	PolicyLog        []protocol.PolicyLogEntry          `json:"policyLog"`
	Snapshot         *Signed[protocol.GroupSnapshot]    `json:"snapshot,omitempty"`
	SnapshotHash     string                             `json:"snapshotHash,omitempty"`
	Accounts         []budget.Entry                     `json:"accounts"`
	FollowUps        []FollowUp                         `json:"followUps"`
	ChildGroups      []string                           `json:"childGroups"`
	Revisions        []revisionEntry                    `json:"revisions"`
	RecentMessages   []recentEntry                      `json:"recentMessages"`
	RecentProposals  []recentEntry                      `json:"recentProposals"`
	Contracts        []contractEntry                    `json:"contracts"`
	Events           eventDump                          `json:"events"`
}

type revisionEntry struct {
	Type     AggregateType `json:"type"`
	ID       string        `json:"id"`
	Revision int64         `json:"revision"`
}

type recentEntry struct {
	Actor protocol.Actor `json:"actor"`
	// At are microseconds since 1970.
	At []int64 `json:"at"`
}

// contractEntry keeps a contract's digest, which is costly to make again.
type contractEntry struct {
	ID     string `json:"id"`
	Parent string `json:"parent,omitempty"`
	Digest string `json:"digest"`
}

type eventDump struct {
	// IDs are the 16-byte ids in order, About the subject numbers as uvarints,
	// both base64url.
	IDs      string    `json:"ids"`
	About    string    `json:"about"`
	Subjects []subject `json:"subjects"`
}

// Canonical dumps the State as JCS bytes. Two States with the same Events have
// the same dump, whichever way they came about.
func (s *State) Canonical() ([]byte, error) {
	d := &stateDump{
		Format: stateFormat, GroupID: s.GroupID, Head: s.Head, LastEventAt: s.LastEventAt,
		Mission: s.Mission, Group: s.Group, CoordinatorLease: s.CoordinatorLease,
		Memberships:     s.SortedMemberships(),
		Conversations:   sortedValues(s.Conversations),
		Messages:        s.dumpMessages(),
		Proposals:       sortedValues(s.Proposals),
		WorkItems:       sortedValues(s.WorkItems),
		Evidence:        sortedValues(s.Evidence),
		ContextPackages: sortedValues(s.ContextPackages),
		Approvals:       sortedValues(s.Approvals),
		Grants:          sortedValues(s.Grants),
		Overrides:       sortedValues(s.Overrides),
		PolicyLog:       s.PolicyLog, Snapshot: s.Snapshot, SnapshotHash: s.SnapshotHash,
		Accounts: s.Ledger.Dump(), FollowUps: s.FollowUps, ChildGroups: s.childGroups,
		RecentMessages: dumpRecent(s.recentMessages), RecentProposals: dumpRecent(s.recentProposals),
		Events: s.events.dump(),
	}
	for a, rev := range s.revisions {
		d.Revisions = append(d.Revisions, revisionEntry{a.Type, a.ID, rev})
	}
	slices.SortFunc(d.Revisions, func(a, b revisionEntry) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID))
	})
	for k, ids := range s.contracts {
		for id := range ids {
			d.Contracts = append(d.Contracts, contractEntry{id, k.parent, hex.EncodeToString(k.digest[:])})
		}
	}
	slices.SortFunc(d.Contracts, func(a, b contractEntry) int { return cmp.Compare(a.ID, b.ID) })
	return strictjson.Marshal(d)
}

// ParseState reads a dump. The State does not know its TreeID, which is not a
// fact of the Group's own Events in a child.
func ParseState(b []byte) (*State, error) {
	doc, err := strictjson.Parse(b)
	if err != nil {
		return nil, err
	}
	d := new(stateDump)
	if err := strictjson.Decode(doc.Root(), d); err != nil {
		return nil, err
	}
	if d.Format != stateFormat {
		return nil, fmt.Errorf("groups: state dump of format %d", d.Format)
	}
	s := New()
	s.GroupID, s.Head, s.LastEventAt = d.GroupID, d.Head, d.LastEventAt
	s.Mission, s.Group, s.CoordinatorLease = d.Mission, d.Group, d.CoordinatorLease
	if s.Mission != nil && s.Mission.Parent == nil {
		s.TreeID = s.Mission.MissionID
	}
	if s.CoordinatorLease != nil {
		s.scheduleCoordinator()
	}
	for _, m := range d.Memberships {
		s.Memberships[m.Member] = m
		s.scheduleMember(m)
	}
	for _, c := range d.Conversations {
		s.Conversations[c.ConversationID] = c
	}
	if err := s.loadMessages(d.Messages); err != nil {
		return nil, err
	}
	for _, p := range d.Proposals {
		s.Proposals[p.ProposalID] = p
	}
	for _, e := range d.Evidence {
		s.Evidence[e.Doc.EvidenceID] = e
	}
	for _, c := range d.ContextPackages {
		s.ContextPackages[c.Doc.ContextPackageID] = c
	}
	for _, a := range d.Approvals {
		s.Approvals[a.Signed.Doc.ApprovalID] = a
	}
	for _, g := range d.Grants {
		s.Grants[g.GrantID] = g
	}
	for _, o := range d.Overrides {
		s.Overrides[o.GrantID] = o
	}
	s.PolicyLog, s.Snapshot, s.SnapshotHash = d.PolicyLog, d.Snapshot, d.SnapshotHash
	s.FollowUps, s.childGroups = d.FollowUps, d.ChildGroups
	if s.Ledger, err = budget.Load(d.Accounts); err != nil {
		return nil, err
	}
	for _, r := range d.Revisions {
		s.revisions[Aggregate{r.Type, r.ID}] = r.Revision
	}
	s.recentMessages, s.recentProposals = loadRecent(d.RecentMessages), loadRecent(d.RecentProposals)
	for _, w := range d.WorkItems {
		s.restoreWorkItem(w)
	}
	for _, c := range d.Contracts {
		k := contractKey{parent: c.Parent}
		if n, err := hex.Decode(k.digest[:], []byte(c.Digest)); err != nil || n != len(k.digest) {
			return nil, errors.New("groups: contract digest in state dump")
		}
		s.track(k, c.ID)
		if w := s.WorkItems[c.ID]; w != nil {
			w.key = k
		} else if p := s.Proposals[c.ID]; p != nil {
			p.key = k
		}
	}
	return s, s.events.load(d.Events, s.Head)
}

// restoreWorkItem rebuilds what the indexes say about a WorkItem.
func (s *State) restoreWorkItem(w *WorkItem) {
	s.WorkItems[w.WorkItemID] = w
	s.scheduleItem(w)
	if w.Owner != nil && !w.Custody {
		index(s.owned, w.Owner.AgentID, w.WorkItemID)
	}
	for _, o := range w.Offers {
		index(s.offered, o.AgentID, w.WorkItemID)
	}
	if w.DelegationGrantID != "" {
		index(s.attributed, w.DelegationGrantID, w.WorkItemID)
	}
	for _, l := range w.openLeases() {
		s.leaseOwners[l.LeaseID] = w.WorkItemID
	}
	for _, l := range w.ClosedLeases {
		s.leaseOwners[l.LeaseID] = w.WorkItemID
	}
	for i := range w.Requests {
		s.requests[w.Requests[i].RequestID] = w.WorkItemID
	}
	for i := range w.ActionRequests {
		r := &w.ActionRequests[i].Request
		s.requests[r.RequestID], s.actions[r.ActionID] = w.WorkItemID, w.WorkItemID
	}
	for _, a := range w.Artifacts {
		hash := a.Manifest.Doc.ContentHash
		s.artifactsByID[a.Manifest.Doc.ArtifactID] = a
		s.artifactsByHash[hash] = append(s.artifactsByHash[hash], a)
	}
}

// SortedMemberships lists all Memberships by type and id of the member.
func (s *State) SortedMemberships() []*protocol.Membership {
	out := make([]*protocol.Membership, 0, len(s.Memberships))
	for _, m := range s.Memberships {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b *protocol.Membership) int {
		return cmp.Or(cmp.Compare(a.Member.Type, b.Member.Type), cmp.Compare(a.Member.ID, b.Member.ID))
	})
	return out
}

// sortedValues lists a map's values by key in byte order.
func sortedValues[V any](m map[string]V) []V {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	out := make([]V, len(keys))
	for i, k := range keys {
		out[i] = m[k]
	}
	return out
}

func dumpRecent(m map[protocol.Actor]*window) []recentEntry {
	out := make([]recentEntry, 0, len(m))
	for actor, w := range m {
		out = append(out, recentEntry{Actor: actor, At: w.live()})
	}
	slices.SortFunc(out, func(a, b recentEntry) int {
		return cmp.Or(cmp.Compare(a.Actor.Type, b.Actor.Type), cmp.Compare(a.Actor.ID, b.Actor.ID))
	})
	return out
}

func loadRecent(entries []recentEntry) map[protocol.Actor]*window {
	m := make(map[protocol.Actor]*window, len(entries))
	for _, e := range entries {
		m[e.Actor] = &window{at: e.At}
	}
	return m
}

func (x *eventIndex) dump() eventDump {
	ids := make([]byte, 0, 16*len(x.ids))
	for i := range x.ids {
		ids = append(ids, x.ids[i][:]...)
	}
	about := make([]byte, 0, 2*len(x.about))
	for _, n := range x.about {
		about = binary.AppendUvarint(about, uint64(n))
	}
	return eventDump{
		IDs:      base64.RawURLEncoding.EncodeToString(ids),
		About:    base64.RawURLEncoding.EncodeToString(about),
		Subjects: x.subjects,
	}
}

func (x *eventIndex) load(d eventDump, head int64) error {
	ids, err := base64.RawURLEncoding.DecodeString(d.IDs)
	if err != nil {
		return err
	}
	about, err := base64.RawURLEncoding.DecodeString(d.About)
	if err != nil {
		return err
	}
	if int64(len(ids)) != 16*head {
		return fmt.Errorf("groups: state dump names %d Events of %d", len(ids)/16, head)
	}
	x.subjects, x.known = d.Subjects, make(map[subject]uint32, len(d.Subjects))
	for i, sub := range d.Subjects {
		x.known[sub] = uint32(i)
	}
	x.ids, x.about = make([][16]byte, head), make([]uint32, head)
	x.bySeq = make(map[[16]byte]int64, head)
	for i := range x.ids {
		copy(x.ids[i][:], ids[16*i:])
		x.bySeq[x.ids[i]] = int64(i) + 1
		n, size := binary.Uvarint(about)
		if size <= 0 || n >= uint64(len(x.subjects)) {
			return errors.New("groups: subjects in state dump")
		}
		x.about[i], about = uint32(n), about[size:]
	}
	return nil
}
