package groups

import (
	"fmt"
	"strings"

	"github.com/missionweave/server/internal/protocol"
)

// contextExtensions is P16 for a Context Package.
func (x *Ctx) contextExtensions(c *Signed[protocol.ContextPackage]) error {
	if c == nil {
		return nil
	}
	return x.extensionsIn(c.Doc.Extensions)
}

// contextSigner is P17 for a Context Package: a member who saw what it tells,
// or one of the Organization's generators (COMMANDS.md 3.4).
func (x *Ctx) contextSigner(c *Signed[protocol.ContextPackage]) error {
	if c == nil {
		return nil
	}
	by, org := c.Doc.GeneratedBy, x.World.Org
	if by == org.ContextGenerator || by.Type == protocol.ActorAgent && org.ContextGenerators[by.ID] {
		return nil
	}
	m, ok := x.Group.MemberNow(by, x.World.Now)
	if !ok || m.State != membershipStateActive ||
		max(m.VisibilityStartSequence, 1) > c.Doc.SourceEventRange.FromSequence {
		return forbid("signer")
	}
	return nil
}

// bindContext is P18 for a Context Package; workItemID is the WorkItem it may
// be about, "" when any of the Group's will do.
func (x *Ctx) bindContext(c *Signed[protocol.ContextPackage], workItemID string) error {
	if c == nil {
		return nil
	}
	g, d := x.Group, &c.Doc
	if d.MissionID != g.Mission.MissionID || d.GroupID != g.GroupID {
		return invalid("binding_mismatch")
	}
	if d.WorkItemID != "" {
		if _, ok := g.WorkItems[d.WorkItemID]; !ok || workItemID != "" && d.WorkItemID != workItemID {
			return invalid("binding_mismatch")
		}
	}
	r := d.SourceEventRange
	if r.FromSequence > r.ToSequence || r.ToSequence > g.Head {
		return invalid("binding_mismatch")
	}
	for _, id := range r.EventIDs {
		if seq, ok := g.SequenceOf(id); !ok || seq < r.FromSequence || seq > r.ToSequence {
			return invalid("binding_mismatch")
		}
	}
	if old, known := g.ContextPackages[d.ContextPackageID]; known {
		same, err := sameDocument(old, c)
		if err != nil {
			return err
		}
		if !same {
			return invalid("identifier_in_use")
		}
		return nil
	}
	if d.PreviousContextPackageID == "" {
		if d.Version != 1 {
			return invalid("binding_mismatch")
		}
		return nil
	}
	previous, ok := g.ContextPackages[d.PreviousContextPackageID]
	if !ok {
		return invalid("unknown_reference")
	}
	if d.Version != previous.Doc.Version+1 {
		return invalid("binding_mismatch")
	}
	return nil
}

// sameDocument compares two Signed Documents by signing hash.
func sameDocument[T any](a, b *Signed[T]) (bool, error) {
	x, err := a.SigningHash()
	if err != nil {
		return false, err
	}
	y, err := b.SigningHash()
	return x == y, err
}

// Bounds of a generated package, so that an Event stays deliverable however
// large the Group has grown.
const (
	maxContextDecisions = 500
	maxContextArtifacts = 1000
)

// generateContext makes the Context Package of COMMANDS.md 3.4.1 from the
// folded state at the head: facts and ids, never the text of a Message.
// workItemID is the WorkItem it is made for, "" for none.
func (x *Ctx) generateContext(g *State, workItemID string) (*Signed[protocol.ContextPackage], error) {
	decisions := []protocol.ContextDecision{}
	log := g.PolicyLog
	if len(log) > maxContextDecisions {
		// The founding entry and the latest ones.
		log = append(log[:1:1], log[len(log)-maxContextDecisions+1:]...)
	}
	var ids []string
	for _, entry := range log {
		v, err := entry.Details.Value()
		if err != nil {
			return nil, err
		}
		id, _ := v.Get("eventId")
		ids = append(ids, id.Str())
		decisions = append(decisions, protocol.ContextDecision{
			Description:    entry.Decision + " by " + entry.Actor.Type + " at " + entry.OccurredAt,
			SourceEventIDs: []string{id.Str()},
		})
	}
	hashes, states := map[string]bool{}, map[string]int{}
	questions := []string{}
	for _, id := range sortedIDs(keySet(g.WorkItems)) {
		w := g.WorkItems[id]
		states[w.State]++
		if w.State == protocol.WorkVerified || w.State == protocol.WorkSubmitted || id == workItemID {
			for _, a := range w.Artifacts {
				hashes[a.Manifest.Doc.ContentHash] = true
			}
		}
		if w.State == protocol.WorkBlocked && w.Block != nil && len(questions) < maxContextDecisions {
			questions = append(questions, w.Block.RequiredResolution)
		}
	}
	artifacts := sortedIDs(hashes)
	if len(artifacts) > maxContextArtifacts {
		artifacts = artifacts[:maxContextArtifacts]
	}
	var summary strings.Builder
	fmt.Fprintf(&summary, "Mission %s: %s\nState %s at sequence %d, deadline %s. Coordinator %s (epoch %d).",
		g.Mission.MissionID, g.Mission.Objective, g.Mission.State, g.Head, g.Mission.Deadline,
		g.Mission.Coordinator.AgentID, g.Mission.Coordinator.CoordinatorEpoch)
	for _, state := range workStates {
		if n := states[state]; n > 0 {
			fmt.Fprintf(&summary, " %s WorkItems: %d.", state, n)
		}
	}
	c := &Signed[protocol.ContextPackage]{Doc: protocol.ContextPackage{
		ContextPackageID: x.Mint(), Version: 1,
		MissionID: g.Mission.MissionID, GroupID: g.GroupID, WorkItemID: workItemID,
		SourceEventRange: protocol.EventRange{FromSequence: 1, ToSequence: g.Head, EventIDs: ids},
		ArtifactHashes:   artifacts, Summary: summary.String(), Decisions: decisions,
		Constraints:         []string{"No work before acceptance of an offer; Messages carry no authority."},
		UnresolvedQuestions: questions,
		GeneratedBy:         x.World.Org.ContextGenerator, GeneratedAt: x.Now,
	}}
	x.out.sign = append(x.out.sign, signRequest(protocol.KindContextPackage, c.Doc.GeneratedBy, c))
	return c, nil
}

// workStates are the WorkItem states in the order of a WorkItem's life.
var workStates = []string{
	protocol.WorkOpen, protocol.WorkOffered, protocol.WorkQueued, protocol.WorkActive, protocol.WorkBlocked,
	protocol.WorkSubmitted, protocol.WorkVerified, protocol.WorkFailed, protocol.WorkCancelled,
}

func keySet[V any](m map[string]V) map[string]bool {
	set := make(map[string]bool, len(m))
	for k := range m {
		set[k] = true
	}
	return set
}
