package groups

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// groupArchive is the payload of ext.missionweaveprotocol.core.group_archive.
type groupArchive struct {
	Snapshot *Signed[protocol.GroupSnapshot] `json:"snapshot"`
}

func (p *groupArchive) documents() []documentRef {
	return []documentRef{{protocol.KindGroupSnapshot, p.Snapshot.Doc.CreatedAt}}
}

func groupArchiveKind() Kind {
	return kind(Kind{
		Kind: "ext.missionweaveprotocol.core.group_archive", Aggregate: AggregateGroup,
		Capacities: []CapacityRow{{CapacityService, ""}},
		Documents:  []DocumentRow{{"snapshot", protocol.KindGroupSnapshot, false}},
		Shape:      shape.Object(shape.Req("snapshot", protocol.ShapeGroupSnapshot)),
	}, plan[groupArchive, noScratch]{
		Authority: func(x *Ctx, p *groupArchive, _ *noScratch) error {
			if p.Snapshot.Doc.CreatedBy != x.Actor() {
				return forbid("signer")
			}
			return nil
		},
		References: func(x *Ctx, p *groupArchive, _ *noScratch) error {
			if p.Snapshot.Doc.GroupID != x.Group.GroupID {
				return invalid("binding_mismatch")
			}
			if s := x.Group.Snapshot; s != nil && s.Doc.SnapshotID == p.Snapshot.Doc.SnapshotID {
				return invalid("identifier_in_use")
			}
			return nil
		},
		Revision: func(x *Ctx, _ *groupArchive, _ *noScratch) int64 {
			return x.Group.Revision(groupAggregate(x.Group.GroupID))
		},
		State: func(x *Ctx, _ *groupArchive, _ *noScratch) error {
			if !x.Group.Terminal() {
				return wrongState("mission_not_terminal", x.Group.Mission.State)
			}
			for _, w := range x.Group.WorkItems {
				if w.ChildIsLive() {
					return wrongState("child_live", x.Group.Mission.State)
				}
			}
			return nil
		},
		Values: archiveValues,
		Emit: func(x *Ctx, p *groupArchive, _ *noScratch) error {
			g, id := x.Group, p.Snapshot.Doc.SnapshotID
			x.emit("group.snapshot.created", &GroupSnapshotCreated{
				Snapshot: p.Snapshot, SnapshotHash: bytesHash(p.Snapshot.Bytes()), PolicyLogEntryID: x.Mint(),
			}, emission{})
			for _, m := range g.SortedMemberships() {
				if m.State != membershipStateEnded && m.Role != roleMissionOwner {
					x.emit("membership.ended", x.endMembership(g, m, "archived"), emission{})
				}
			}
			doc := *g.Group
			doc.State, doc.ArchivedAt, doc.ArchiveSnapshotID = groupArchived, x.Now, id
			x.emit("group.archived", &GroupArchived{Group: doc, SnapshotID: id, ArchivedAt: x.Now}, emission{Primary: true})
			return nil
		},
	})
}

func bytesHash(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// archiveValues holds the snapshot against the folded Group.
func archiveValues(x *Ctx, p *groupArchive, _ *noScratch) error {
	g, d := x.Group, &p.Snapshot.Doc
	if d.ThroughSequence != g.Head {
		return protocol.NewError(protocol.CodeRevisionConflict, "").WithRevision(d.ThroughSequence, g.Head)
	}
	if int64(len(d.EventIDs)) != g.Head {
		return invalid("snapshot_events")
	}
	for i, id := range d.EventIDs {
		if at, _ := g.EventAt(int64(i) + 1); at != id {
			return invalid("snapshot_events")
		}
	}
	messages, err := x.World.messageDocs(g)
	if err != nil {
		return err
	}
	hash, err := g.StateHash(messages)
	if err != nil {
		return err
	}
	if d.StateHash != hash {
		return invalid("snapshot_state")
	}
	given, err := strictjson.Marshal(d.PolicyLog)
	if err != nil {
		return err
	}
	folded, err := strictjson.Marshal(g.PolicyLog)
	if err != nil {
		return err
	}
	if !bytes.Equal(given, folded) {
		return invalid("snapshot_policy_log")
	}
	if leases.Compare(d.CreatedAt, g.LastEventAt) < 0 ||
		leases.Compare(d.CreatedAt, x.Command.Envelope.IssuedAt) > 0 {
		return invalid("timestamp")
	}
	return nil
}

// DraftSnapshot is the unsigned snapshot that would archive the Group as it
// stands; messages are its Message documents.
func (s *State) DraftSnapshot(snapshotID string, createdBy protocol.Actor, createdAt string,
	messages []protocol.Message,
) (protocol.GroupSnapshot, error) {
	hash, err := s.StateHash(messages)
	if err != nil {
		return protocol.GroupSnapshot{}, err
	}
	d := protocol.GroupSnapshot{
		SnapshotID: snapshotID, GroupID: s.GroupID, ThroughSequence: s.Head,
		EventIDs: make([]string, 0, s.Head), StateHash: hash, PolicyLog: s.PolicyLog,
		CreatedBy: createdBy, CreatedAt: createdAt,
	}
	for seq := int64(1); seq <= s.Head; seq++ {
		id, _ := s.EventAt(seq)
		d.EventIDs = append(d.EventIDs, id)
	}
	return d, nil
}

func archiveEvents() []EventKind {
	return []EventKind{
		eventKind("group.snapshot.created", AggregateGroup, true, nil,
			func(s *State, ev *Event, p *GroupSnapshotCreated) error {
				s.Snapshot, s.SnapshotHash = p.Snapshot, p.SnapshotHash
				return nil
			}),
		eventKind("group.archived", AggregateGroup, false, nil,
			func(s *State, ev *Event, p *GroupArchived) error {
				if p.Group.GroupID != s.GroupID || p.Group.State != groupArchived {
					return integrity(ev, "document is not the archived Group")
				}
				doc := p.Group
				s.Group = &doc
				return nil
			}),
	}
}
