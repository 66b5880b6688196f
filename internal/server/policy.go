package server

import (
	"time"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry"
)

// policy is the Organization policy that the settings ask for; what they do not
// say has the values of the Command profile.
func policy(p config.Policy) authority.Policy {
	out := authority.DefaultPolicy()
	out.Limits.MessagesPerMinute = int(p.MessageRatePerMinute)
	out.Limits.ProposalsPerMinute = int(p.ProposalRatePerMinute)
	out.Limits.DelegationDepth = p.DelegationDepth
	out.Limits.QueuedWorkItems = int(p.QueuedWorkItems)
	out.Limits.ActiveWorkItems = int(p.ActiveWorkItems)
	out.Leases.Execution.Max = min(out.Leases.Execution.Max, int64(p.ExecutionLeaseMax()/time.Second))
	out.OfflineGrace = p.MaxGrace()
	out.FreshnessFuture = p.FreshnessFuture()
	return out
}

// readers is which services may read every Group: those that may archive one.
type readers struct{ directory *registry.Directory }

// MayReadGroups implements views.Policy. It fails closed.
func (r readers) MayReadGroups(service protocol.Actor) bool {
	ctx, cancel := shortly()
	defer cancel()
	view, err := r.directory.View(ctx)
	return err == nil && view.HasRole(service, registry.RoleArchival)
}
