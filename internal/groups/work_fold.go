package groups

import (
	"slices"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/protocol"
)

// How WorkItem Events fold (COMMANDS.md 6.1).

// foldItem builds the row of an Event of the WorkItem aggregate; fold sees the
// WorkItem with its revision, time and state already set.
func foldItem[P any](kind string, policy bool, id func(*P) (id, state string),
	fold func(*State, *Event, *WorkItem, *P) error,
) EventKind {
	return eventKind(kind, AggregateWorkItem, policy,
		func(p *P) string { item, _ := id(p); return item },
		func(s *State, ev *Event, p *P) error {
			item, state := id(p)
			w, err := s.workItem(ev, item, state)
			if err != nil {
				return err
			}
			return fold(s, ev, w, p)
		})
}

func workLifeEvents() []EventKind {
	return []EventKind{
		eventKind("work.authorized", AggregateWorkItem, false,
			func(p *WorkAuthorized) string { return p.WorkItemID }, foldAuthorized),
		foldItem("work.contract.revised", false,
			func(p *WorkContractRevised) (string, string) { return p.WorkItemID, p.State },
			func(s *State, ev *Event, w *WorkItem, p *WorkContractRevised) error {
				return s.reviseContract(ev, w, p.Contract, withdraw(w.Offers, p.WithdrawnOfferIDs))
			}),
		foldItem("work.offer.created", false,
			func(p *WorkOfferCreated) (string, string) { return p.WorkItemID, p.State }, foldOfferCreated),
		foldItem("work.offer.accepted", false,
			func(p *WorkOfferAccepted) (string, string) { return p.WorkItemID, p.State },
			func(s *State, _ *Event, w *WorkItem, p *WorkOfferAccepted) error {
				s.setOffers(w, p.Offers)
				s.setOwner(w, &p.Owner)
				s.setLease(w, p.OwnershipLease)
				w.ScheduleEstimate = latest(w.ScheduleEstimate, p.ScheduleEstimate)
				return nil
			}),
		foldItem("work.started", false,
			func(p *WorkStarted) (string, string) { return p.WorkItemID, p.State },
			func(s *State, _ *Event, w *WorkItem, p *WorkStarted) error {
				w.StartedEpoch = p.OwnershipEpoch
				s.setLease(w, p.ExecutionLease)
				s.setLease(w, p.OwnershipLease)
				return nil
			}),
		foldItem("work.progressed", false,
			func(p *WorkProgressed) (string, string) { return p.WorkItemID, p.State },
			func(s *State, _ *Event, w *WorkItem, p *WorkProgressed) error {
				s.setLease(w, p.ExecutionLease)
				s.setLease(w, p.OwnershipLease)
				w.Progress = latest(w.Progress, p.Progress)
				w.ScheduleEstimate = latest(w.ScheduleEstimate, p.ScheduleEstimate)
				return nil
			}),
		foldItem("work.checkpointed", false,
			func(p *WorkCheckpointed) (string, string) { return p.WorkItemID, p.State },
			func(s *State, ev *Event, w *WorkItem, p *WorkCheckpointed) error {
				s.closeLeases(w, p.ClosedLeases)
				s.setLease(w, p.OwnershipLease)
				w.ScheduleEstimate = latest(w.ScheduleEstimate, p.ScheduleEstimate)
				w.checkpoint(ev, p.CheckpointID, p.OwnershipEpoch, &p.Progress, p.StateArtifactHash)
				return nil
			}),
		foldItem("work.submitted", false,
			func(p *WorkSubmitted) (string, string) { return p.WorkItemID, p.State },
			func(s *State, _ *Event, w *WorkItem, p *WorkSubmitted) error {
				s.closeLeases(w, p.ClosedLeases)
				s.storeEvidence(p.Evidence)
				w.Submission = &p.Submission
				return nil
			}),
		foldItem("work.result.accepted", false,
			func(p *WorkResultAccepted) (string, string) { return p.WorkItemID, p.State }, foldAccepted),
		foldItem("artifact.published", false,
			func(p *ArtifactPublished) (string, string) { return p.WorkItemID, p.State },
			func(s *State, _ *Event, w *WorkItem, p *ArtifactPublished) error {
				a := &Artifact{Manifest: p.Artifact, OwnershipEpoch: p.OwnershipEpoch, ExecutionLeaseID: p.ExecutionLeaseID}
				w.Artifacts = append(w.Artifacts[:len(w.Artifacts):len(w.Artifacts)], a)
				hash := p.Artifact.Doc.ContentHash
				s.artifactsByID[p.Artifact.Doc.ArtifactID] = a
				s.artifactsByHash[hash] = append(s.artifactsByHash[hash], a)
				return nil
			}),
	}
}

// latest keeps the old report when an Event brings none.
func latest[T any](old, reported *T) *T {
	if reported != nil {
		return reported
	}
	return old
}

func foldAuthorized(s *State, ev *Event, p *WorkAuthorized) error {
	if s.WorkItems[p.WorkItemID] != nil || p.WorkItem.WorkItemID != p.WorkItemID || ev.WorkItemID != p.WorkItemID {
		return integrity(ev, "authorizes WorkItem %s twice or under another id", p.WorkItemID)
	}
	w := &WorkItem{
		WorkItem:         p.WorkItem,
		ParentWorkItemID: p.ParentWorkItemID, ReplacesWorkItemID: p.ReplacesWorkItemID,
		DelegationDepth: p.DelegationDepth,
	}
	if w.Revision != *ev.AggregateRevision || w.State != p.State {
		return integrity(ev, "document differs from the Event")
	}
	if err := s.Ledger.Reserve(s.parentAccount(p.ParentWorkItemID), w.Account(),
		budget.FromBudget(w.Contract.Budget), w.Contract.Budget.Currency, false); err != nil {
		return integrity(ev, "%v", err)
	}
	s.WorkItems[p.WorkItemID] = w
	conversation := p.Conversation
	s.Conversations[conversation.ConversationID] = &conversation
	s.create(conversationAggregate(conversation.ConversationID))
	if p.ReplacesWorkItemID != "" {
		replaced := s.WorkItems[p.ReplacesWorkItemID]
		if replaced == nil {
			return integrity(ev, "replaces unknown WorkItem %s", p.ReplacesWorkItemID)
		}
		replaced.ReplacedBy = append(replaced.ReplacedBy[:len(replaced.ReplacedBy):len(replaced.ReplacedBy)], p.WorkItemID)
	}
	if p.ProposalID != "" {
		proposal := s.Proposals[p.ProposalID]
		if proposal == nil {
			return integrity(ev, "authorizes unknown Proposal %s", p.ProposalID)
		}
		s.closeProposal(proposal, ProposalAuthorized)
		s.revisions[proposalAggregate(p.ProposalID)]++
	}
	s.attribute(w, p.DelegationGrantID)
	s.trackContract(w)
	return nil
}

// attribute records under which Delegation Grant a WorkItem stands.
func (s *State) attribute(w *WorkItem, grantID string) {
	if grantID == "" || w.DelegationGrantID != "" {
		return
	}
	w.DelegationGrantID = grantID
	index(s.attributed, grantID, w.WorkItemID)
}

// reviseContract replaces a contract and the limit that is its budget.
func (s *State) reviseContract(ev *Event, w *WorkItem, c protocol.WorkContract, offers []protocol.Offer) error {
	w.Contract = c
	s.setOffers(w, offers)
	s.trackContract(w)
	if err := s.Ledger.SetLimit(w.Account(), budget.FromBudget(c.Budget), c.Budget.Currency); err != nil {
		return integrity(ev, "%v", err)
	}
	return nil
}

func foldOfferCreated(s *State, ev *Event, w *WorkItem, p *WorkOfferCreated) error {
	s.closeLeases(w, p.ClosedLeases)
	s.setOwner(w, nil)
	s.setOffers(w, p.Offers)
	w.Block = nil
	basis := p.SelectionBasis
	w.SelectionBasis = &basis
	if p.ContextPackage != nil {
		s.ContextPackages[p.ContextPackage.Doc.ContextPackageID] = p.ContextPackage
	}
	s.attribute(w, p.DelegationGrantID)
	if err := s.Ledger.Reopen(w.Account()); err != nil {
		return integrity(ev, "%v", err)
	}
	return nil
}

// checkpoint appends durable progress.
func (w *WorkItem) checkpoint(ev *Event, id string, epoch int64, progress *protocol.Progress, stateHash string) {
	w.Progress = progress
	w.Checkpoints = append(w.Checkpoints[:len(w.Checkpoints):len(w.Checkpoints)], Checkpoint{
		CheckpointID: id, OwnershipEpoch: epoch, Progress: *progress,
		StateArtifactHash: stateHash, OccurredAt: ev.OccurredAt,
	})
}

func foldAccepted(s *State, ev *Event, w *WorkItem, p *WorkResultAccepted) error {
	s.closeLeases(w, p.ClosedLeases)
	s.storeEvidence(p.Evidence)
	if p.ChildMissionID != "" {
		if p.Submission == nil {
			return integrity(ev, "child form without submission")
		}
		w.Submission = p.Submission
		if err := s.endChild(ev, w, p.ChildMissionID, ChildApproved, p.Submission.ArtifactHashes); err != nil {
			return err
		}
	}
	return s.releaseAccount(ev, w)
}

// endChild closes the link to a child Mission; its account shrinks to what it
// used.
func (s *State) endChild(ev *Event, w *WorkItem, missionID, state string, hashes []string) error {
	w.Children = slices.Clone(w.Children)
	child := w.Child()
	if child == nil || child.MissionID != missionID {
		return integrity(ev, "ends unknown child Mission %s", missionID)
	}
	child.State, child.ApprovedHashes = state, hashes
	if state != ChildApproved {
		s.fenceOwner(w)
	}
	if err := s.Ledger.Release(budget.MissionRef(missionID)); err != nil {
		return integrity(ev, "%v", err)
	}
	return nil
}

func (s *State) releaseAccount(ev *Event, w *WorkItem) error {
	if err := s.Ledger.Release(w.Account()); err != nil {
		return integrity(ev, "%v", err)
	}
	return nil
}
