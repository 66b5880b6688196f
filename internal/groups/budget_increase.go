package groups

import (
	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

// budgetIncrease is the payload of ext.missionweave.budget.increase.
type budgetIncrease struct {
	Budget protocol.Budget `json:"budget"`
	Reason string          `json:"reason"`
}

// increase is what its steps hand on.
type increase struct {
	account *budget.Account
	was     protocol.Budget
	limit   budget.Vector
	// parent is the Group above a child Mission whose limit rises.
	parent *State
}

func budgetIncreaseKind() Kind {
	return kind(Kind{
		Kind: "ext.missionweave.budget.increase", WorkItem: WorkItemOptional, Aggregate: AggregateMission,
		Capacities: []CapacityRow{
			{CapacityMissionOwner, ScopeBudgetIncrease},
			{CapacityService, ""},
			{CapacityCoordinator, ScopeWorkAuthorize},
		},
		Shape: shape.Object(
			shape.Opt("workItemId", protocol.ShapeID),
			shape.Req("budget", shapeBudget),
			shape.Req("reason", shape.Text(4000)),
		),
	}, plan[budgetIncrease, increase]{
		// The Mission's own limit is not the Coordinator's to raise.
		Judge: func(x *Ctx, _ *budgetIncrease) (Capacity, bool) {
			return CapacityNone, x.Command.Envelope.WorkItemID == "" && x.Actor() == x.Group.CoordinatorActor()
		},
		References: func(x *Ctx, p *budgetIncrease, s *increase) error {
			ref := budget.MissionRef(x.Group.Mission.MissionID)
			s.was = x.Group.Mission.Budget
			if x.Item != nil {
				ref, s.was = x.Item.Account(), x.Item.Contract.Budget
			}
			s.account, _ = x.Group.Ledger.Account(ref)
			s.limit = budget.FromBudget(p.Budget)
			return nil
		},
		Revision: func(x *Ctx, _ *budgetIncrease, _ *increase) int64 {
			if x.Item != nil {
				return x.Group.Revision(workItemAggregate(x.Item.WorkItemID))
			}
			return x.Group.Revision(missionAggregate(x.Group.GroupID))
		},
		State: func(x *Ctx, _ *budgetIncrease, _ *increase) error {
			if err := missionOpen(x); err != nil || x.Item == nil {
				return err
			}
			return x.itemRow()
		},
		Values: func(x *Ctx, p *budgetIncrease, s *increase) error {
			if s.limit == s.account.Limit || !s.account.Limit.Within(s.limit) {
				return invalid("not_an_increase")
			}
			return x.foreignBudget(p.Budget)
		},
		Budget: func(x *Ctx, _ *budgetIncrease, s *increase) error {
			switch {
			case x.Item != nil:
				return overBudget("", x.Group.Ledger.CheckLimit(s.account.Ref, s.limit))
			case !x.Group.IsChild():
				return withinCeiling(x, s.account.Ref, s.limit)
			}
			var err error
			if s.parent, err = x.parent(x.Group); err != nil {
				return err
			}
			// What the parent Group has left is not this Group's to know.
			return undetailed(overBudget("", s.parent.Ledger.CheckLimit(s.account.Ref, s.limit)))
		},
		Emit: func(x *Ctx, p *budgetIncrease, s *increase) error {
			increased := &BudgetIncreased{
				Account: s.account.Ref, PreviousBudget: s.was, Budget: p.Budget, Reason: p.Reason,
				PolicyLogEntryID: x.Mint(),
			}
			m := emission{Primary: true}
			if x.Item != nil {
				increased.WorkItemID, increased.State = x.Item.WorkItemID, x.Item.State
				increased.ContractVersion = x.Item.Contract.ContractVersion + 1
				m.WorkItem = x.Item
			}
			id := x.emit("ext.missionweave.budget.increased", increased, m)
			if s.parent != nil {
				w := s.parent.WorkItems[x.Group.Mission.Parent.WorkItemID]
				x.emitTo(s.parent, "ext.missionweave.authority.child_budget_reserved", &ChildBudgetReserved{
					WorkItemID: w.WorkItemID, ChildMissionID: x.Group.Mission.MissionID, Budget: p.Budget, SourceEventID: id,
				}, emission{WorkItem: w, Source: id})
			}
			return nil
		},
	})
}

// budgetIncreasedEvent revises the Mission or the WorkItem whose limit rose.
func budgetIncreasedEvent() EventKind {
	row := eventKind("ext.missionweave.budget.increased", AggregateWorkItem, true,
		func(p *BudgetIncreased) string { return p.WorkItemID },
		func(s *State, ev *Event, p *BudgetIncreased) error {
			if p.WorkItemID == "" {
				s.reviseMission(ev, s.Mission.State)
				s.Mission.Budget = p.Budget
				err := s.Ledger.SetLimit(p.Account, budget.FromBudget(p.Budget), p.Budget.Currency)
				if err != nil {
					return integrity(ev, "%v", err)
				}
				return nil
			}
			w, err := s.workItem(ev, p.WorkItemID, p.State)
			if err != nil {
				return err
			}
			contract := w.Contract
			contract.Budget, contract.ContractVersion = p.Budget, p.ContractVersion
			return s.reviseContract(ev, w, contract, w.Offers)
		})
	ofItem := row.aggregate
	row.aggregate = func(ev *Event) Aggregate {
		if p, ok := ev.Payload.(*BudgetIncreased); ok && p.WorkItemID == "" {
			return missionAggregate(ev.GroupID)
		}
		return ofItem(ev)
	}
	return row
}
