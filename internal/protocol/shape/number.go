package shape

import (
	"math"
	"strconv"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// span is a range of numbers; openLo excludes its lower end.
type span struct {
	lo, hi bound
	openLo bool
}

// bound is one end of a span. Comparison is exact: the rounded values decide
// unless they are equal, then the decimals do, because 1.00000000000000001
// rounds to 1 and is above it.
type bound struct {
	f     float64
	exact strictjson.Value
}

func boundOf(f float64) bound {
	if math.IsInf(f, 0) {
		return bound{f: f}
	}
	doc, err := strictjson.Parse([]byte(strconv.FormatFloat(f, 'f', -1, 64)))
	if err != nil {
		panic("shape: bound is not a number")
	}
	return bound{f, doc.Root()}
}

// below tells whether v is under the bound, or on it when open is set.
func (b *bound) below(v strictjson.Value, open bool) bool {
	f := v.Float()
	if f != b.f || math.IsInf(f, 0) {
		return f < b.f
	}
	c := strictjson.Compare(v, b.exact)
	return c < 0 || open && c == 0
}

// above tells whether v is over the bound.
func (b *bound) above(v strictjson.Value) bool {
	f := v.Float()
	if f != b.f || math.IsInf(f, 0) {
		return f > b.f
	}
	return strictjson.Compare(v, b.exact) > 0
}
