package groups

import (
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

// workPropose is the payload of work.propose.
type workPropose struct {
	workContracted
	ProposalID       string `json:"proposalId"`
	ParentWorkItemID string `json:"parentWorkItemId"`
	Rationale        string `json:"rationale"`
}

func proposalKinds() []Kind {
	return []Kind{
		kind(Kind{
			Kind: "work.propose", Capacities: []CapacityRow{{CapacityMember, ScopeWorkPropose}},
			Aggregate: AggregateProposal, Limits: []string{LimitDuplicate, LimitProposalRate},
			Shape: shape.Object(
				shape.Req("proposalId", protocol.ShapeID),
				shape.Req("contract", shapeContract),
				shape.Opt("parentWorkItemId", protocol.ShapeID),
				shape.Opt("rationale", shape.Text(4000)),
			),
		}, plan[workPropose, noScratch]{
			Extensions: func(x *Ctx, p *workPropose, _ *noScratch) error { return x.extensionsIn(p.Contract.Extensions) },
			References: func(x *Ctx, p *workPropose, _ *noScratch) error {
				if _, used := x.Group.Proposals[p.ProposalID]; used {
					return invalid("identifier_in_use")
				}
				if p.ParentWorkItemID != "" && x.Group.WorkItems[p.ParentWorkItemID] == nil {
					return invalid("unknown_reference")
				}
				return x.knownDependencies(p.Contract, "")
			},
			Revision: func(*Ctx, *workPropose, *noScratch) int64 { return 0 },
			State:    func(x *Ctx, _ *workPropose, _ *noScratch) error { return missionActive(x) },
			Values: func(x *Ctx, p *workPropose, _ *noScratch) error {
				return x.contractValues(p.Contract, 1, func() error { return nil })
			},
			Limits: func(x *Ctx, p *workPropose, _ *noScratch) error {
				limits := x.limits()
				if !limits.DuplicateDecompositionOff && x.Group.Duplicate(p.ParentWorkItemID, p.Contract, "") {
					x.over(LimitDuplicate, 1, 0)
				}
				x.rate(LimitProposalRate, x.Group.recentProposals[x.Actor()], limits.ProposalsPerMinute)
				return nil
			},
			Budget: func(x *Ctx, p *workPropose, _ *noScratch) error {
				return withinMission(x.Group, p.Contract.Budget)
			},
			Emit: func(x *Ctx, p *workPropose, _ *noScratch) error {
				x.emit("work.proposed", &WorkProposed{Proposal: ProposalDoc{
					ProposalID: p.ProposalID, MissionID: x.Group.Mission.MissionID, GroupID: x.Group.GroupID,
					ProposedBy: x.Actor(), Contract: *p.Contract, ParentWorkItemID: p.ParentWorkItemID,
					Rationale: p.Rationale, Status: ProposalOpen, CreatedAt: x.Now,
				}}, emission{Primary: true})
				return nil
			},
		}),
	}
}

func proposalEvents() []EventKind {
	return []EventKind{
		eventKind("work.proposed", AggregateProposal, false,
			func(p *WorkProposed) string { return p.Proposal.ProposalID },
			func(s *State, ev *Event, p *WorkProposed) error {
				at, err := eventTime(ev)
				if err != nil {
					return err
				}
				proposal := &Proposal{ProposalDoc: p.Proposal}
				proposal.key = contractKeyOf(proposal.ParentWorkItemID, &proposal.Contract)
				s.Proposals[proposal.ProposalID] = proposal
				s.track(proposal.key, proposal.ProposalID)
				record(s.recentProposals, proposal.ProposedBy, at)
				return nil
			}),
	}
}
