package manifest

import (
	"fmt"
	"math"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Bounds of predicates. The cost is counted by the language's own model, so where
// it ends is the same on every machine.
const (
	maxPredicateBytes = 4096
	predicateCost     = 20_000
	maxPredicates     = 64 // that can be asked for one action
)

// environment has no clock, no randomness and nothing about trust or taint: a
// predicate speaks about the parameters only, so that conditions stay directed.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("parameters", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("resource", cel.StringType),
		cel.Variable("operation", cel.StringType),
		cel.Variable("actor", cel.StringType),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserRecursionLimit(64),
		cel.ParserExpressionSizeLimit(maxPredicateBytes),
	)
})

// predicate is one compiled CEL expression.
type predicate struct {
	text    string
	program cel.Program
}

func compilePredicate(text string) (*predicate, error) {
	if len(text) > maxPredicateBytes {
		return nil, fmt.Errorf("is longer than %d bytes", maxPredicateBytes)
	}
	env, err := environment()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, fmt.Errorf("%s", firstLine(strings.TrimPrefix(err.Error(), "ERROR: ")))
	}
	if !ast.OutputType().IsEquivalentType(cel.BoolType) && !ast.OutputType().IsEquivalentType(cel.DynType) {
		return nil, fmt.Errorf("is a %s and not true or false", ast.OutputType())
	}
	program, err := env.Program(ast, cel.CostLimit(predicateCost), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, err
	}
	return &predicate{text: text, program: program}, nil
}

// truth is the outcome of a predicate: a failure is neither true nor false.
type truth uint8

const (
	isFalse truth = iota
	isTrue
	failed // an error, a missing parameter, too costly, not a boolean
)

func (p *predicate) eval(vars cel.Activation) truth {
	out, _, err := p.program.Eval(vars)
	if err != nil {
		return failed
	}
	switch out {
	case types.True:
		return isTrue
	case types.False:
		return isFalse
	}
	return failed
}

// holds reads the outcome against the action: a deny or an escalation that cannot
// be told holds, an allow does not.
func (t truth) holds(e Effect) bool { return t == isTrue || t == failed && e != Allow }

// plain makes Go values of JSON. Numbers that are integers become int64, so that
// `parameters.n == 3` means what it says.
func plain(v strictjson.Value) any {
	switch v.Kind() {
	case strictjson.Bool:
		return v.Bool()
	case strictjson.Number:
		if i, ok := v.Int(); ok && i > -(1<<53) && i < 1<<53 {
			return i
		}
		if f := v.Float(); !math.IsInf(f, 0) {
			return f
		}
		return nil
	case strictjson.String:
		return v.Str()
	case strictjson.Array:
		out := make([]any, 0, v.Len())
		for _, item := range v.Items() {
			out = append(out, plain(item))
		}
		return out
	case strictjson.Object:
		out := make(map[string]any, v.Len())
		for name, item := range v.Members() {
			out[name] = plain(item)
		}
		return out
	}
	return nil
}
