package groups

import (
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Shapes shared by payload profiles (COMMANDS.md section 3). Members that are
// normative documents use the document's own shape.
var (
	shapeMoney = shape.AtLeast(0)

	// shapeBudget is common.budget with the money rules of 3.2.
	shapeBudget = protocol.ShapeBudget.Rule(func(v strictjson.Value) *shape.Fault {
		amount, ok := v.Get("financialLimit")
		if !ok {
			return nil
		}
		return moneyFault(v, amount, "/financialLimit")
	})

	// shapeUsage is usage of 3.2; at least one amount is above zero unless the
	// caller allows none.
	shapeUsageAmounts = shape.Object(
		shape.Opt("financial", shapeMoney),
		shape.Opt("currency", protocol.ShapeBudget.MemberShape("currency")),
		shape.Opt("modelTokens", protocol.ShapeSafeInteger),
		shape.Opt("toolCalls", protocol.ShapeSafeInteger),
		shape.Opt("computeSeconds", protocol.ShapeSafeInteger),
		shape.Opt("wallClockSeconds", protocol.ShapeSafeInteger),
		shape.Opt("externalSideEffects", protocol.ShapeSafeInteger),
	).Rule(func(v strictjson.Value) *shape.Fault {
		amount, ok := v.Get("financial")
		if ok {
			if f := moneyFault(v, amount, "/financial"); f != nil {
				return f
			}
		}
		if _, named := v.Get("currency"); named && !(ok && amount.Float() > 0) {
			return shape.FaultAt("/currency", "currency")
		}
		return nil
	})
	shapeUsage = shapeUsageAmounts.Rule(func(v strictjson.Value) *shape.Fault {
		for name, amount := range v.Members() {
			if name != "currency" && amount.Float() > 0 {
				return nil
			}
		}
		return shape.FaultAt("", "usage_zero")
	})

	// shapeContract is work-contract.schema with the money rules.
	shapeContract = protocol.ShapeWorkContract.Extend(shape.Req("budget", shapeBudget))

	shapeDefinitionOfDone = shape.Array(protocol.ShapeAcceptanceCriterion).Min(1)
	shapeIDs              = shape.Array(protocol.ShapeID).Unique()
	shapeHashes           = shape.Array(protocol.ShapeSHA256).Unique()
	shapeEvidences        = shape.Array(protocol.ShapeEvidence)
	shapeOperations       = shape.Array(protocol.ShapeOperation).Min(1).Unique()

	// shapeCapabilities are capability references with unique ids.
	shapeCapabilities = shape.Array(protocol.ShapeCapabilityRef).Min(1)

	shapeContent = shape.Array(protocol.ShapeContentPart).Min(1).Max(50)

	shapeEmergencyOverride = shape.Object(shape.Req("reason", shape.Text(4000)))

	shapeOfflineBinding = shape.Object(
		shape.Req("agentId", protocol.ShapeID),
		shape.Req("groupId", protocol.ShapeID),
		shape.Req("workItemId", protocol.ShapeID),
		shape.Req("sessionEpoch", protocol.ShapePositiveInteger),
		shape.Req("ownershipEpoch", protocol.ShapePositiveInteger),
		shape.Req("executionLeaseId", protocol.ShapeID),
		shape.Req("disconnectedAt", protocol.ShapeTimestamp),
		shape.Req("bufferedAt", protocol.ShapeTimestamp),
		shape.Req("graceDeadline", protocol.ShapeTimestamp),
		shape.Req("executionLeaseExpiresAt", protocol.ShapeTimestamp),
		shape.Req("resourceUsageDelta", shapeUsageAmounts),
	)
)

// secs is the shape of a duration in seconds.
func secs(most int64) *shape.Shape { return shape.Int(1, most) }

// The protocol's own bounds of lease durations (COMMANDS.md 7.3); policy may
// narrow them, which is decided against state.
const (
	maxCoordinatorSeconds = 86400
	maxOwnershipSeconds   = 2592000
	maxExecutionSeconds   = 3600
)

// moneyFault holds an amount in v against COMMANDS.md 3.2.
func moneyFault(v, amount strictjson.Value, path string) *shape.Fault {
	m, err := protocol.ParseMoney(amount.NumberText())
	if err != nil {
		return shape.FaultAt(path, "money")
	}
	if _, named := v.Get("currency"); m > 0 && !named {
		return shape.FaultAt("/currency", "currency")
	}
	return nil
}

// uniqueMember refuses an array in which two objects agree in one member.
func uniqueMember(array, member string) func(strictjson.Value) *shape.Fault {
	return func(v strictjson.Value) *shape.Fault {
		items, ok := v.Get(array)
		if !ok || items.Len() < 2 {
			return nil
		}
		seen := make(map[string]bool, items.Len())
		for _, item := range items.Items() {
			id, _ := item.Get(member)
			if seen[id.Str()] {
				return &shape.Fault{Path: "/" + array, Keyword: shape.KeywordUnique}
			}
			seen[id.Str()] = true
		}
		return nil
	}
}

// blank reports a text of nothing but white space.
func blank(s string) bool { return !lexical.NotBlank(s) }
