package groups

import (
	"slices"

	"github.com/missionweave/server/internal/protocol"
)

// Evidence inside Commands (COMMANDS.md 3.4): who may sign it, what it must be
// about, and what it covers.

// Evidence types and results that rules name.
const (
	evidenceHumanReview = "human_review"
	evidenceAssessment  = "reviewer_assessment"
	evidenceFailure     = "failure_report"
	evidencePolicyCheck = "policy_check"

	resultPassed = "passed"
	resultFailed = "failed"

	subjectWorkItem = "work_item"
	subjectArtifact = "artifact"
)

// evidenceSigners is P17: generatedBy is the actor, somebody with a Membership
// in the Group that has not ended, or an Organization evidence service. A
// human review is a human's. only, when set, is the one Principal allowed.
func (x *Ctx) evidenceSigners(g *State, docs []*Signed[protocol.Evidence], only *protocol.Actor) error {
	for _, e := range docs {
		by := e.Doc.GeneratedBy
		if e.Doc.Type == evidenceHumanReview && by.Type != protocol.ActorHuman {
			return forbid("human_review")
		}
		switch {
		case only != nil && by != *only:
			return forbid("signer")
		case by == x.Actor():
		case by.Type == protocol.ActorService && x.World.Org.EvidenceServices[by.ID]:
		default:
			if _, ok := g.MemberNow(by, x.World.Now); !ok {
				return forbid("signer")
			}
		}
	}
	return nil
}

// evidenceBindings is P18: Evidence is bound to this WorkItem, its subject is
// the WorkItem or one of its Artifacts, and its criteria are the contract's.
// The same signed document may come again; its id may not name another.
func (x *Ctx) evidenceBindings(w *WorkItem, docs []*Signed[protocol.Evidence]) error {
	for i, e := range docs {
		d := &e.Doc
		if d.MissionID != w.MissionID || d.GroupID != w.GroupID || d.WorkItemID != w.WorkItemID ||
			!w.isSubject(d.Subject) {
			return invalid("binding_mismatch")
		}
		for _, id := range d.CriterionIDs {
			if !slices.ContainsFunc(w.Contract.AcceptanceCriteria, func(c protocol.AcceptanceCriterion) bool {
				return c.CriterionID == id
			}) {
				return invalid("binding_mismatch")
			}
		}
		if err := x.sameEvidence(e, docs[:i]); err != nil {
			return err
		}
	}
	return nil
}

func (w *WorkItem) isSubject(s protocol.EvidenceSubject) bool {
	switch s.Type {
	case subjectWorkItem:
		return s.ID == w.WorkItemID
	case subjectArtifact:
		return slices.ContainsFunc(w.Artifacts, func(a *Artifact) bool {
			return a.Manifest.Doc.ContentHash == s.ID || a.Manifest.Doc.ArtifactID == s.ID
		})
	}
	return false
}

// sameEvidence refuses an evidenceId that already names a different document.
func (x *Ctx) sameEvidence(e *Signed[protocol.Evidence], before []*Signed[protocol.Evidence]) error {
	known := x.Group.Evidence[e.Doc.EvidenceID]
	for _, b := range before {
		if b.Doc.EvidenceID == e.Doc.EvidenceID {
			known = b
		}
	}
	if known == nil {
		return nil
	}
	was, err := known.SigningHash()
	if err != nil {
		return err
	}
	is, err := e.SigningHash()
	if err != nil {
		return err
	}
	if was != is {
		return invalid("identifier_in_use")
	}
	return nil
}

// storeEvidence keeps new Evidence; a document that came before stays.
func (s *State) storeEvidence(docs []*Signed[protocol.Evidence]) {
	for _, e := range docs {
		if _, ok := s.Evidence[e.Doc.EvidenceID]; !ok {
			s.Evidence[e.Doc.EvidenceID] = e
		}
	}
}

// evidenceIDs lists the ids in order, each once.
func evidenceIDs(docs []*Signed[protocol.Evidence]) []string {
	ids := make([]string, 0, len(docs))
	for _, e := range docs {
		if !slices.Contains(ids, e.Doc.EvidenceID) {
			ids = append(ids, e.Doc.EvidenceID)
		}
	}
	return ids
}

// knownEvidence is P18 of a progress report.
func (x *Ctx) knownEvidence(p *protocol.Progress) error {
	if p == nil {
		return nil
	}
	for _, id := range p.EvidenceIDs {
		if x.Group.Evidence[id] == nil {
			return invalid("unknown_reference")
		}
	}
	return nil
}

// submissionCovers reports that every criterion of the contract is named by
// Evidence that did not fail.
func submissionCovers(c *protocol.WorkContract, docs []*Signed[protocol.Evidence]) bool {
	for _, criterion := range c.AcceptanceCriteria {
		if !slices.ContainsFunc(docs, func(e *Signed[protocol.Evidence]) bool {
			return e.Doc.Result != resultFailed && slices.Contains(e.Doc.CriterionIDs, criterion.CriterionID)
		}) {
			return false
		}
	}
	return true
}

// reviewCovers reports that every criterion has passed Evidence of every type
// it requires. An owner's own assessment of its work counts for nothing.
func reviewCovers(c *protocol.WorkContract, owner protocol.Actor, docs []*Signed[protocol.Evidence]) bool {
	for _, criterion := range c.AcceptanceCriteria {
		for _, required := range criterion.EvidenceRequired {
			if !slices.ContainsFunc(docs, func(e *Signed[protocol.Evidence]) bool {
				d := &e.Doc
				return d.Result == resultPassed && d.Type == required &&
					slices.Contains(d.CriterionIDs, criterion.CriterionID) &&
					(d.Type != evidenceAssessment || d.GeneratedBy != owner)
			}) {
				return false
			}
		}
	}
	return true
}
