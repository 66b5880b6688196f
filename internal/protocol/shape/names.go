package shape

import (
	"fmt"
	"strconv"
)

// nameTable finds a member's index by its name. The hash reads four bytes at
// fixed places, so a lookup costs one multiplication and one comparison
// whatever the number of members; it is small enough that a chosen name cannot
// make it slow.
type nameTable struct {
	names []string
	mul   uint32
	shift uint8
	slots []uint8 // index + 1, 0 is free
}

func newNameTable(names []string) nameTable {
	seen := map[string]bool{}
	for _, name := range names {
		if name == "" || seen[name] {
			panic(fmt.Sprintf("shape: member %q is empty or declared twice", name))
		}
		seen[name] = true
	}
	best := nameTable{}
	bestProbes := -1
	logSize := uint8(3)
	for 1<<logSize < 2*len(names) {
		logSize++
	}
	for mul := uint32(0x9E3779B1); mul != 0x9E3779B1+2*512; mul += 2 {
		t, probes := fill(names, mul, logSize)
		if bestProbes < 0 || probes < bestProbes {
			best, bestProbes = t, probes
		}
		if probes == 0 {
			break
		}
	}
	return best
}

func fill(names []string, mul uint32, logSize uint8) (t nameTable, probes int) {
	t = nameTable{names: names, mul: mul, shift: 32 - logSize, slots: make([]uint8, 1<<logSize)}
	for i, name := range names {
		at := t.hash(name)
		for t.slots[at] != 0 {
			at = (at + 1) & uint32(len(t.slots)-1)
			probes++
		}
		t.slots[at] = uint8(i + 1)
	}
	return t, probes
}

func (t *nameTable) hash(name string) uint32 {
	n := len(name)
	h := uint32(n)<<24 ^ uint32(name[0])<<16 ^ uint32(name[n/2])<<8 ^ uint32(name[n-1])
	return h * t.mul >> t.shift
}

// find returns the index of name, or -1.
func (t *nameTable) find(name string) int {
	if name == "" || len(t.slots) == 0 {
		return -1
	}
	for at := t.hash(name); ; at = (at + 1) & uint32(len(t.slots)-1) {
		i := int(t.slots[at]) - 1
		if i < 0 || t.names[i] == name {
			return i
		}
	}
}

func itoa(i int) string { return strconv.Itoa(i) }

// codePoints counts code points as strictjson counts them: continuation bytes
// are skipped, so an unpaired surrogate in its three-byte form is one.
func codePoints(s string) int {
	n := 0
	for i := range len(s) {
		if s[i]&0xC0 != 0x80 {
			n++
		}
	}
	return n
}
