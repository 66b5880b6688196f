package server

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
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
	out.ExecutionRule = executionRule(p.ExecutionApprovalFrom)
	return out
}

// ruleExecution begins the ids of the rules that ask for an approval before work of
// a side-effect risk starts.
const ruleExecution = "urn:missionweave:policy:execution-approval-from:"

// risks are the side-effect risks for which a contract need not ask for an approval
// itself, the least first.
var risks = []string{"none", "reversible", "external"}

// executionRule is the rule behind the setting executionApprovalFrom: work of this
// risk or a greater one starts with an approval only.
func executionRule(from string) func(*protocol.WorkContract) string {
	gated := gatedRisks(from)
	if len(gated) == 0 {
		return nil
	}
	return func(c *protocol.WorkContract) string {
		// What is not listed is riskier still.
		if i := slices.Index(risks, c.SideEffectRisk); i >= 0 && !slices.Contains(gated, c.SideEffectRisk) {
			return ""
		}
		return ruleExecution + from
	}
}

func gatedRisks(from string) []string {
	if i := slices.Index(risks, from); i >= 0 {
		return risks[i:]
	}
	return nil
}

// readers is what the Organization says about reading: which services may read
// every Group, those that may archive one, and who opens which gates.
type readers struct {
	directory *registry.Directory
	gates     string // the setting executionApprovalFrom
}

// ExecutionRule implements views.Policy.
func (r readers) ExecutionRule(c *protocol.WorkContract) string {
	if rule := executionRule(r.gates); rule != nil {
		return rule(c)
	}
	return ""
}

// GatedRisks implements views.Policy.
func (r readers) GatedRisks() []string { return gatedRisks(r.gates) }

// MayOpenGates implements views.Policy. It fails closed.
func (r readers) MayOpenGates(service protocol.Actor) bool {
	ctx, cancel := shortly()
	defer cancel()
	view, err := r.directory.View(ctx)
	return err == nil && view.HasRole(service, registry.RolePolicy)
}

// MayReadGroups implements views.Policy. It fails closed.
func (r readers) MayReadGroups(service protocol.Actor) bool {
	ctx, cancel := shortly()
	defer cancel()
	view, err := r.directory.View(ctx)
	return err == nil && view.HasRole(service, registry.RoleArchival)
}

// shapeGroupLimits is the file of COMMANDS.md 7.6's "per Group overridable": a
// limit that a Group does not name is the Organization's, and none is below 1,
// except that 0 switches a rate off.
var shapeGroupLimits = shape.Map(protocol.ShapeID, shape.Object(
	shape.Opt("messageRatePerMinute", shape.Int(0, 1_000_000_000)),
	shape.Opt("proposalRatePerMinute", shape.Int(0, 1_000_000_000)),
	shape.Opt("delegationDepth", shape.Int(1, 1000)),
	shape.Opt("queuedWorkItems", shape.Int(1, 1_000_000_000)),
	shape.Opt("activeWorkItems", shape.Int(1, 1_000_000_000)),
))

// groupLimits reads the limits of single Groups.
func groupLimits(path string, all groups.Limits) (map[string]groups.Limits, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("server: limits of Groups: %w", err)
	}
	doc, err := strictjson.Parse(b)
	if err != nil {
		return nil, fmt.Errorf("server: limits of Groups: %s: %w", path, err)
	}
	if fault := shapeGroupLimits.Check(doc.Root()); fault != nil {
		return nil, fmt.Errorf("server: limits of Groups: %s: %w", path, fault)
	}
	out := map[string]groups.Limits{}
	for id, own := range doc.Root().Members() {
		l := all
		for name, into := range map[string]*int{
			"messageRatePerMinute": &l.MessagesPerMinute, "proposalRatePerMinute": &l.ProposalsPerMinute,
			"queuedWorkItems": &l.QueuedWorkItems, "activeWorkItems": &l.ActiveWorkItems,
		} {
			if n, ok := own.Member(name).Int(); ok {
				*into = int(n)
			}
		}
		if n, ok := own.Member("delegationDepth").Int(); ok {
			l.DelegationDepth = n
		}
		out[id] = l
	}
	return out, nil
}
