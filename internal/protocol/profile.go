package protocol

import (
	"math"
	"strconv"
	"strings"

	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Shapes of Command payloads (COMMANDS.md 3), narrower than the schemas where
// the profile is: money has at most six decimals and an amount needs a
// currency.
var (
	// ShapeMoney is a money amount, see Money.
	ShapeMoney = shape.AtLeast(0).Where("money", func(v strictjson.Value) bool {
		_, err := ParseMoney(v.NumberText())
		return err == nil
	})
	// ShapeBudgetLimits is a budget in a payload.
	ShapeBudgetLimits = budgetOf(ShapeMoney).Rules(
		shape.When("financialLimit", shape.MoreThan(0)).Require("currency").Because("currency"),
	)
	// ShapeFullBudgetLimits names the currency and all six limits, as a
	// Delegation Grant must.
	ShapeFullBudgetLimits = ShapeBudgetLimits.Requiring("currency").Requiring(budgetDimensions...)
	// ShapeUsage is consumption in a payload: at least one amount is above zero.
	ShapeUsage = shape.Object(
		shape.Opt("financial", ShapeMoney),
		shape.Opt("currency", ShapeBudget.MemberShape("currency")),
		shape.Opt("modelTokens", ShapeSafeInteger),
		shape.Opt("toolCalls", ShapeSafeInteger),
		shape.Opt("computeSeconds", ShapeSafeInteger),
		shape.Opt("wallClockSeconds", ShapeSafeInteger),
		shape.Opt("externalSideEffects", ShapeSafeInteger),
	).Rules(
		shape.When("financial", shape.MoreThan(0)).Require("currency").Because("currency"),
	).Where("usage", func(v strictjson.Value) bool {
		for _, amount := range v.Members() {
			if amount.Float() > 0 {
				return true
			}
		}
		return false
	})
	// ShapeContractTerms is a Work Contract in a payload.
	ShapeContractTerms = ShapeWorkContract.Extend(shape.Req("budget", ShapeBudgetLimits))
	// ShapeMessageContent is the content of message.post and message.correct:
	// 1 to 50 parts with at most 100000 code points of text together.
	ShapeMessageContent = shape.Array(ShapeContentPart).Min(1).Max(50).
				Where("content_length", func(v strictjson.Value) bool {
			total := 0
			for _, part := range v.Items() {
				text, _ := part.Get("text")
				total += text.StrLen()
			}
			return total <= 100000
		})
)

// ShapeSeconds is a duration in whole seconds.
func ShapeSeconds(lo, hi int64) *shape.Shape { return shape.Int(lo, hi) }

// FaultError turns a structural fault into SCHEMA_VALIDATION_FAILED with the
// path and keyword of the fault in details, and no value.
func FaultError(f *shape.Fault) *Error {
	return NewError(CodeSchemaValidationFailed, f.Reason).
		WithDetail("path", f.Path).
		WithDetail("keyword", f.Keyword).
		WithCause(f)
}

// maxMissing bounds details.missing.
const maxMissing = 64

// CheckPayload checks a Command payload that may hold a Work Contract in its
// top-level member contract ("" for none). The contract's shape in s should be
// ShapeContractTerms. A fault anywhere is SCHEMA_VALIDATION_FAILED, unless all
// that is wrong is that the contract lacks members or array items: that is
// WORK_CONTRACT_INCOMPLETE with their paths in details.missing (COMMANDS.md
// 3.3). Paths are relative to the payload.
func CheckPayload(s *shape.Shape, payload strictjson.Value, contract string) *Error {
	fault := s.Check(payload)
	if contract == "" {
		if fault != nil {
			return FaultError(fault)
		}
		return nil
	}
	terms, present := payload.Get(contract)
	if fault == nil {
		if present {
			return contractGaps(terms, "/"+contract)
		}
		return nil
	}
	if wrong := s.CheckPresent(payload); wrong != nil {
		return FaultError(wrong)
	}
	// Everything that is left is missing; outside the contract that is SVF too.
	inside := "/" + contract + "/"
	var missing []string
	for _, f := range s.CheckAll(payload, math.MaxInt) {
		if !strings.HasPrefix(f.Path, inside) {
			return FaultError(&f)
		}
		if len(missing) < maxMissing {
			missing = append(missing, f.Path)
		}
	}
	return incomplete("", missing)
}

// CheckContract checks a Work Contract by itself; at is the JSON Pointer that
// its paths begin with.
func CheckContract(terms strictjson.Value, at string) *Error {
	if wrong := ShapeContractTerms.CheckPresent(terms); wrong != nil {
		return FaultError(wrong.Under(at))
	}
	if faults := ShapeContractTerms.CheckAll(terms, maxMissing); len(faults) > 0 {
		missing, _ := shape.Missing(faults)
		for i := range missing {
			missing[i] = at + missing[i]
		}
		return incomplete("", missing)
	}
	return contractGaps(terms, at)
}

func incomplete(reason string, missing []string) *Error {
	return NewError(CodeWorkContractIncomplete, reason).WithDetail("missing", missing)
}

// contractGaps are the ways in which a contract of the right shape still lacks
// information (COMMANDS.md 3.3).
func contractGaps(terms strictjson.Value, at string) *Error {
	risk := terms.Member("sideEffectRisk").Str()
	if (risk == "high_risk" || risk == "destructive") && terms.Member("executionApproval").Str() != "human_required" {
		return incomplete("human_approval", []string{at + "/executionApproval"})
	}
	for _, list := range []struct{ array, id string }{
		{"requiredDeliverables", "deliverableId"},
		{"acceptanceCriteria", "criterionId"},
	} {
		seen := map[string]bool{}
		for i, item := range terms.Member(list.array).Items() {
			id := item.Member(list.id).Str()
			if seen[id] {
				return incomplete("repeated_id", []string{at + "/" + list.array + "/" + strconv.Itoa(i) + "/" + list.id})
			}
			seen[id] = true
		}
	}
	retry := terms.Member("retryPolicy")
	attempts, _ := retry.Member("maxAttempts").Int()
	if attempts > 1 && retry.Member("retryableFailures").Len() == 0 {
		return incomplete("retryable_failures", []string{at + "/retryPolicy/retryableFailures"})
	}
	return nil
}
