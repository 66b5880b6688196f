package shape

import (
	"cmp"
	"slices"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// fewItems is the length up to which comparing pairs beats sorting.
const fewItems = 12

// duplicate returns the index of the first item of an array that equals an
// earlier one as a JSON value, or -1. Long arrays are sorted, so that no
// choice of items makes the check quadratic.
func duplicate(v strictjson.Value) int {
	n := v.Len()
	if n <= fewItems {
		var items [fewItems]strictjson.Value
		for i, item := range v.Items() {
			for j := range i {
				if items[j].Equal(item) {
					return i
				}
			}
			items[i] = item
		}
		return -1
	}
	type entry struct {
		value strictjson.Value
		index int
	}
	entries := make([]entry, 0, n)
	for i, item := range v.Items() {
		entries = append(entries, entry{item, i})
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(strictjson.Compare(a.value, b.value), a.index-b.index)
	})
	first := -1
	for i := 1; i < n; i++ {
		if at := entries[i].index; (first < 0 || at < first) && entries[i-1].value.Equal(entries[i].value) {
			first = at
		}
	}
	return first
}
