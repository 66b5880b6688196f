package groups

import (
	"slices"

	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/protocol"
)

// Charging consumption through the whole ancestry (COMMANDS.md 7.1, 7.2): one
// decision, an Event in each Group concerned.

func usageRecordKind() Kind {
	return kind(Kind{
		Kind:     "ext.missionweaveprotocol.core.resource_usage_record",
		WorkItem: WorkItemRequired, Aggregate: AggregateAccount, Shape: shapeUsageRecord,
		Capacities: []CapacityRow{{CapacityWorker, ""}, {CapacityService, ""}},
	}, plan[usageRecord, noScratch]{
		References: func(x *Ctx, p *usageRecord, _ *noScratch) error {
			if x.Capacity != CapacityService {
				return nil
			}
			// A meter reports late; the lease need not be the current one.
			l, ok := x.Item.Lease(p.ExecutionLeaseID)
			if !ok || l.LeaseType != protocol.LeaseExecution || l.OwnershipEpoch != p.OwnershipEpoch {
				return invalid("unknown_reference")
			}
			return nil
		},
		Ownership: func(x *Ctx, p *usageRecord, _ *noScratch) error {
			if x.Capacity != CapacityWorker {
				return nil
			}
			return x.ownedBy(x.Item, p.OwnershipEpoch)
		},
		Leases: func(x *Ctx, p *usageRecord, _ *noScratch) error {
			if x.Capacity != CapacityWorker {
				return nil
			}
			return x.executing(x.Item, p.ExecutionLeaseID)
		},
		Revision: func(x *Ctx, _ *usageRecord, _ *noScratch) int64 {
			return x.Group.Revision(accountAggregate(x.Item.Account()))
		},
		State: func(x *Ctx, _ *usageRecord, _ *noScratch) error {
			if x.Capacity != CapacityWorker {
				return nil
			}
			if err := missionOpen(x); err != nil {
				return err
			}
			return x.itemRow()
		},
		Values: func(x *Ctx, p *usageRecord, _ *noScratch) error { return x.usageCurrency(&p.UsageDelta) },
		Budget: func(x *Ctx, p *usageRecord, _ *noScratch) error {
			if x.Capacity == CapacityWorker {
				if err := x.paused(x.Item); err != nil {
					return err
				}
			}
			return x.checkCharge(x.Item, p.UsageDelta.Vector())
		},
		Emit: func(x *Ctx, p *usageRecord, _ *noScratch) error {
			return x.emitCharge(charge{
				item: x.Item, delta: p.UsageDelta.Vector(), leaseID: p.ExecutionLeaseID,
				epoch: p.OwnershipEpoch, primary: true,
			})
		},
	})
}

// charge is consumption on its way to the log.
type charge struct {
	item    *WorkItem
	delta   budget.Vector
	leaseID string
	epoch   int64
	offline *OfflineReconciliation
	primary bool
}

// checkCharge is P24: the WorkItem's account and every account above it, in
// whatever Group, bear the delta.
func (x *Ctx) checkCharge(w *WorkItem, delta budget.Vector) error {
	g, ref := x.Group, w.Account()
	for {
		if err := g.Ledger.CheckCharge(ref, delta); err != nil {
			if g != x.Group {
				return undetailed(overBudget("", err))
			}
			return overBudget("", err)
		}
		up, ok := g.Ledger.Up()
		if !ok {
			return nil
		}
		parent, err := x.World.group(up.GroupID)
		if err != nil {
			return err
		}
		if parent == nil {
			return &IntegrityError{Problem: "parent Group " + up.GroupID + " is gone"}
		}
		if parent.Archived() {
			// The charge would need an Event there, and an archived log is closed.
			return wrongState("group_archived", "")
		}
		g, ref = parent, budget.MissionRef(g.Mission.MissionID)
	}
}

// emitCharge appends the usage Events from the WorkItem's Group up to the root
// Mission's, each followed by the exhaustion it brought about.
func (x *Ctx) emitCharge(c charge) error {
	g, item, child := x.Group, c.item, ""
	m := emission{WorkItem: item, Primary: c.primary}
	for {
		ref := item.Account()
		charged := ref
		if child != "" {
			charged = budget.MissionRef(child)
		}
		// The state is not changed by deciding, so the amounts after the charge
		// are read from a preview.
		after, err := g.Ledger.Preview(charged, c.delta)
		if err != nil {
			return err
		}
		account, _ := g.Ledger.Account(ref)
		own, mission := after.Of(ref), after.Of(g.Ledger.Root().Ref)
		payload := &ResourceUsageRecorded{
			WorkItemID:             item.WorkItemID,
			UsageDelta:             budget.UsageOf(c.delta, account.Currency),
			CumulativeUsage:        budget.UsageOf(own.Usage, account.Currency),
			RemainingBudget:        budget.ToBudget(own.Remaining, account.Currency),
			MissionCumulativeUsage: budget.UsageOf(mission.Usage, g.Ledger.Currency()),
			MissionRemainingBudget: budget.ToBudget(mission.Remaining, g.Ledger.Currency()),
			ChildMissionID:         child, SourceEventID: m.Source,
		}
		if child == "" {
			payload.ExecutionLeaseID, payload.OwnershipEpoch = c.leaseID, c.epoch
			payload.OfflineReconciliation = c.offline
		}
		source := x.out.emit(g.GroupID, g, eventUsageRecorded, payload, m)
		m.Primary = false
		for _, e := range after.Exhausted {
			x.out.emit(g.GroupID, g, eventBudgetExhausted, &BudgetExhausted{
				Account: e.Ref, Dimensions: e.Dimensions.Names(),
				AffectedWorkItemIDs: g.affected(e.Ref), PolicyLogEntryID: x.Mint(),
			}, m)
		}
		up, ok := g.Ledger.Up()
		if !ok {
			return nil
		}
		parent, err := x.World.group(up.GroupID)
		if err != nil {
			return err
		}
		child = g.Mission.MissionID
		g = parent
		if item = g.WorkItems[up.Account.ID]; item == nil {
			return &IntegrityError{Problem: "parent WorkItem " + up.Account.ID + " is gone"}
		}
		m = emission{WorkItem: item, Source: source}
	}
}

const (
	eventUsageRecorded   = "ext.missionweaveprotocol.core.resource_usage_recorded"
	eventBudgetExhausted = "ext.missionweave.authority.budget_exhausted"
)

// affected lists the unfinished WorkItems of this Group that an exhausted
// account covers, in byte order.
func (s *State) affected(ref budget.Ref) []string {
	ids := []string{}
	a, ok := s.Ledger.Account(ref)
	if !ok {
		return ids
	}
	add := func(r budget.Ref) {
		if w := s.WorkItems[r.ID]; r.Type == budget.WorkItem && w != nil && w.Unfinished() {
			ids = append(ids, r.ID)
		}
	}
	add(ref)
	for d := range a.Descend() {
		add(d.Ref)
	}
	slices.Sort(ids)
	return ids
}
