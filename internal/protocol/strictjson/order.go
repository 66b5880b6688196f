package strictjson

import (
	"encoding/binary"
	"slices"
)

// RFC 8785 sorts member names by UTF-16 code units. On UTF-8 that differs from
// byte order in one place only: U+E000 to U+FFFF (lead bytes EE and EF) come
// after the supplementary planes (lead bytes F0 to F4), whose first code unit
// is a surrogate. Moving those two lead bytes up makes UTF-16 order a plain
// byte comparison; continuation bytes lie below EE and are not touched.
//
// Every object is sorted once, while it is parsed. The same order finds
// duplicate names, writes the canonical form and serves lookups by name.

func rank(b byte) byte {
	if b|1 == 0xEF {
		return b + 0x10
	}
	return b
}

// compareUTF16 orders two UTF-8 texts by their UTF-16 code units. It skips a
// common prefix by leaps: names with a long one are what a hostile text has
// many of.
func compareUTF16(a, b string) int {
	const leap = 16
	n, same := min(len(a), len(b)), 0
	for same+leap <= n && a[same:same+leap] == b[same:same+leap] {
		same += leap
	}
	return compareRanked(a[same:], b[same:])
}

func compareRanked[T []byte | string](a, b T) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			if rank(a[i]) < rank(b[i]) {
				return -1
			}
			return 1
		}
	}
	return len(a) - len(b)
}

// sortKey carries the first eight bytes of a name, so that most comparisons
// touch no text.
type sortKey struct {
	prefix uint64
	node   uint32
}

func prefixOf(name []byte) uint64 {
	var w uint64
	if len(name) >= 8 {
		w = binary.BigEndian.Uint64(name)
	} else {
		for i, c := range name {
			w |= uint64(c) << (56 - 8*i)
		}
	}
	if w&highs != 0 {
		var buf [8]byte
		binary.BigEndian.PutUint64(buf[:], w)
		for i, c := range buf {
			buf[i] = rank(c)
		}
		w = binary.BigEndian.Uint64(buf[:])
	}
	return w
}

// smallObject bounds insertion sort, which is linear when the input is in
// canonical order already and otherwise quadratic in this bound only.
const smallObject = 24

// sortMembers records the name order of the object at node self and refuses
// equal names. It takes n log n comparisons whatever the names are.
func (p *parser) sortMembers(self, count int) bool {
	keys := slices.Grow(p.keys[:0], count)
	p.keys = keys
	k := uint32(self + 1)
	if count <= smallObject {
		for range count {
			key := sortKey{prefix: prefixOf(p.text(&p.nodes[k])), node: k}
			j := len(keys)
			keys = keys[:j+1]
			for ; j > 0; j-- {
				c := p.compareKeys(key, keys[j-1])
				if c == 0 {
					return p.duplicate(key, keys[j-1])
				}
				if c > 0 {
					break
				}
				keys[j] = keys[j-1]
			}
			keys[j] = key
			k = after(p.nodes, k+1)
		}
	} else {
		for range count {
			keys = append(keys, sortKey{prefix: prefixOf(p.text(&p.nodes[k])), node: k})
			k = after(p.nodes, k+1)
		}
		slices.SortFunc(keys, p.compareKeys)
		for i := 1; i < len(keys); i++ {
			if p.compareKeys(keys[i-1], keys[i]) == 0 {
				return p.duplicate(keys[i-1], keys[i])
			}
		}
	}
	for _, key := range keys {
		p.order = append(p.order, key.node)
	}
	return true
}

func (p *parser) compareKeys(a, b sortKey) int {
	if a.prefix != b.prefix {
		if a.prefix < b.prefix {
			return -1
		}
		return 1
	}
	x, y := p.text(&p.nodes[a.node]), p.text(&p.nodes[b.node])
	n := min(len(x), len(y))
	p.compared += n
	same := 0
	for same+8 <= n && binary.LittleEndian.Uint64(x[same:]) == binary.LittleEndian.Uint64(y[same:]) {
		same += 8
	}
	return compareRanked(x[same:], y[same:])
}

func (p *parser) duplicate(a, b sortKey) bool {
	return p.fail(int(max(p.nodes[a.node].start, p.nodes[b.node].start)), ReasonDuplicate)
}
