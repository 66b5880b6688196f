package strictjson

import (
	"cmp"
	"strings"
)

// Equal is equality of JSON values as JSON Schema defines it: numbers by
// exact value, objects without regard to member order.
func (v Value) Equal(w Value) bool { return Compare(v, w) == 0 }

// Compare is a total order of JSON values that agrees with Equal, so that
// equal elements of a large array can be found by sorting. It orders by kind
// first and means nothing else.
func Compare(v, w Value) int {
	if c := cmp.Compare(v.Kind(), w.Kind()); c != 0 {
		return c
	}
	switch v.Kind() {
	case Bool:
		return cmp.Compare(v.node().flags&flagTrue, w.node().flags&flagTrue)
	case Number:
		return decimalOf(v.Text()).compare(decimalOf(w.Text()))
	case String:
		return strings.Compare(v.Str(), w.Str())
	case Array:
		if c := cmp.Compare(v.Len(), w.Len()); c != 0 {
			return c
		}
		j := w.i + 1
		for i := v.i + 1; i < v.node().a; i = after(v.d.nodes, i) {
			if c := Compare(Value{v.d, i}, Value{w.d, j}); c != 0 {
				return c
			}
			j = after(w.d.nodes, j)
		}
	case Object:
		if c := cmp.Compare(v.Len(), w.Len()); c != 0 {
			return c
		}
		m, n := v.node(), w.node()
		for at := range m.b {
			i, j := v.d.order[m.c+at], w.d.order[n.c+at]
			if c := strings.Compare(v.d.name(i), w.d.name(j)); c != 0 {
				return c
			}
			if c := Compare(Value{v.d, i + 1}, Value{w.d, j + 1}); c != 0 {
				return c
			}
		}
	}
	return 0
}
