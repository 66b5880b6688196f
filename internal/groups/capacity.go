package groups

import "github.com/missionweave/server/internal/protocol"

// Capacity is the one authority a Command is judged in (COMMANDS.md 2.3).
type Capacity string

// Capacities.
const (
	CapacityNone         Capacity = ""
	CapacityCoordinator  Capacity = "coordinator"
	CapacityDelegate     Capacity = "delegate"
	CapacityMissionOwner Capacity = "mission_owner"
	CapacityWorker       Capacity = "worker"
	CapacityApprover     Capacity = "approver"
	CapacityCreator      Capacity = "creator"
	CapacityMember       Capacity = "member"
	CapacitySelf         Capacity = "self"
	CapacityService      Capacity = "service"
)

// judge chooses the capacity. A row that depends on the payload (delegate,
// self, the Worker's form of work.fail) is the kind's own to recognise and
// goes before the rows that the envelope alone decides.
func judge(x *Ctx) Capacity {
	k, actor := x.Kind, x.Command.Envelope.Actor
	if k == nil {
		return CapacityNone
	}
	lists := func(c Capacity) bool { _, ok := k.capacity(c); return ok }
	if actor.Type == protocol.ActorService {
		if lists(CapacityService) {
			return CapacityService
		}
		return CapacityNone
	}
	if k.Creates {
		if actor.Type == protocol.ActorHuman {
			return CapacityCreator
		}
		return CapacityNone
	}
	if x.Group == nil {
		return CapacityNone
	}
	if k.handler.judge != nil {
		if c, ok := k.handler.judge(x); ok {
			return c
		}
	}
	switch agent := actor.Type == protocol.ActorAgent; {
	case lists(CapacityCoordinator) && actor == x.Group.CoordinatorActor():
		return CapacityCoordinator
	case lists(CapacityMissionOwner) && actor == x.Group.Mission.MissionOwner:
		return CapacityMissionOwner
	case lists(CapacityApprover) && !agent:
		return CapacityApprover
	case lists(CapacityWorker) && agent:
		return CapacityWorker
	case lists(CapacityMember):
		return CapacityMember
	}
	return CapacityNone
}
