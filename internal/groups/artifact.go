package groups

import (
	"slices"

	"github.com/missionweave/server/internal/protocol"
)

// artifact.publish: provenance enters the log; content lives elsewhere.

type publishing struct {
	// source is the highest classification among the sources.
	source string
}

func artifactPublishKind() Kind {
	return kind(Kind{
		Kind: "artifact.publish", WorkItem: WorkItemRequired, Aggregate: AggregateWorkItem,
		Shape: shapeArtifactPublish, Capacities: executorRow,
		Documents: []DocumentRow{{"artifact", protocol.KindArtifact, false}},
	}, plan[artifactPublish, publishing]{
		Extensions: func(x *Ctx, p *artifactPublish, _ *publishing) error {
			return x.extensionsIn(p.Artifact.Doc.Extensions)
		},
		Authority: func(x *Ctx, p *artifactPublish, _ *publishing) error {
			if p.Artifact.Doc.Producer.AgentID != x.Actor().ID {
				return forbid("signer")
			}
			return nil
		},
		References: artifactReferences,
		Ownership:  func(x *Ctx, p *artifactPublish, _ *publishing) error { return x.ownedBy(x.Item, p.OwnershipEpoch) },
		Leases: func(x *Ctx, p *artifactPublish, _ *publishing) error {
			return x.executing(x.Item, p.ExecutionLeaseID)
		},
		Revision: itemRevision[artifactPublish, publishing],
		State:    func(x *Ctx, _ *artifactPublish, _ *publishing) error { return activeWork(x) },
		Values:   artifactValues,
		Emit: func(x *Ctx, p *artifactPublish, _ *publishing) error {
			x.emit("artifact.published", &ArtifactPublished{
				WorkItemID: x.Item.WorkItemID, State: x.Item.State, Artifact: &p.Artifact,
				OwnershipEpoch: p.OwnershipEpoch, ExecutionLeaseID: p.ExecutionLeaseID,
			}, emission{WorkItem: x.Item, Primary: true})
			return nil
		},
	})
}

func artifactReferences(x *Ctx, p *artifactPublish, s *publishing) error {
	w, a := x.Item, &p.Artifact.Doc
	if a.MissionID != w.MissionID || a.GroupID != w.GroupID || a.WorkItemID != w.WorkItemID {
		return invalid("binding_mismatch")
	}
	if _, used := x.Group.ArtifactByID(a.ArtifactID); used {
		return invalid("identifier_in_use")
	}
	if w.published(a.ContentHash, p.OwnershipEpoch) {
		return invalid("identifier_in_use")
	}
	for _, hash := range a.SourceArtifactHashes {
		if hash == a.ContentHash {
			continue // P23
		}
		class, err := x.knownContent(&w.Contract, hash)
		if err != nil {
			return err
		}
		s.source = higher(s.source, class)
	}
	return nil
}

// published reports that content was published on the WorkItem under an
// Ownership Epoch.
func (w *WorkItem) published(hash string, epoch int64) bool {
	return slices.ContainsFunc(w.Artifacts, func(a *Artifact) bool {
		return a.OwnershipEpoch == epoch && a.Manifest.Doc.ContentHash == hash
	})
}

func artifactValues(x *Ctx, p *artifactPublish, s *publishing) error {
	a, owner := &p.Artifact.Doc, x.Item.Owner
	switch {
	case a.Producer.AgentCardVersion != owner.AgentCardVersion,
		!sameCapabilities(a.Producer.Capabilities, owner.CapabilityPins):
		return invalid("binding_mismatch")
	case slices.Contains(a.SourceArtifactHashes, a.ContentHash):
		return invalid("cycle")
	case classifications[a.Classification] < classifications[s.source]:
		return forbid("classification")
	}
	return nil
}
