package manifest

import (
	"slices"
	"sync"
)

// Record is a stored provenance record. Trust and Tainted are what was true at its
// origin; what counts now is computed from the channel map and the parents.
type Record struct {
	ID     string `json:"id"`
	Source string `json:"source"`
	// Trust is the trust level at origin in words; a word that is none is the lowest.
	Trust   string `json:"trust_level"`
	Tainted bool   `json:"tainted"`
	// Transformations are the operations that made it, in order.
	Transformations []string `json:"transformations"`
	Parents         []string `json:"parent_ids"`
	Sessions        []string `json:"sessions"`
	CreatedAt       string   `json:"created_at"`
}

// Records finds stored records.
type Records interface {
	// Record is the record of this id, nil when there is none. It must not change
	// while a decision is made.
	Record(id string) *Record
}

// Chain is a Records of a few records in memory.
type Chain []Record

// Record implements Records.
func (c Chain) Record(id string) *Record {
	for i := range c {
		if c[i].ID == id {
			return &c[i]
		}
	}
	return nil
}

// RecordMap is a Records of many.
type RecordMap map[string]*Record

// Record implements Records.
func (m RecordMap) Record(id string) *Record { return m[id] }

// MaxRecords bounds the ancestry of one decision; what lies beyond counts as
// missing.
const MaxRecords = 4096

// Context is the trust context: what the records say together.
type Context struct {
	// Trust is trusted or untrusted, or derived for trusted data that came through
	// memory. An empty chain is untrusted and not tainted.
	Trust   Trust
	Tainted bool
	// Derived reports data that came through a derived channel.
	Derived bool
	// Complete reports a chain that is not empty, in which no record, no parent and
	// no required field is missing and that leads back to its origins.
	Complete bool
	// Records is the number of records in the ancestry.
	Records int
	// Channels are the channels of the ancestry, sorted, at most maxChannels.
	Channels []string
	// Missing is the least id that was not found or that leads to no origin, "" if
	// none.
	Missing string
	// Cycle reports records that are ancestors of themselves, Overflow an ancestry of
	// more than MaxRecords.
	Cycle, Overflow bool

	levels uint8
}

const maxChannels = 16

// walk is the state of one look through the ancestry.
type walk struct {
	m       *Manifest
	from    Records
	entries []entry
	stack   []int32
	index   map[string]int32 // made when there are many
	ctx     *Context
	// seen are the channels met last, with their levels: a chain has few.
	seen  [4]seenChannel
	count int
}

// walks keeps the room of finished looks for the next ones.
var walks = sync.Pool{New: func() any {
	return &walk{entries: make([]entry, 0, linear), stack: make([]int32, 0, linear)}
}}

// giveBack returns the room without what was in it.
func (w *walk) giveBack() {
	clear(w.entries)
	if cap(w.entries) > 4*linear {
		return // a look at much is rare, and its room would stay
	}
	*w = walk{entries: w.entries[:0], stack: w.stack[:0]}
	walks.Put(w)
}

type seenChannel struct {
	name  string
	level Trust
}

type entry struct {
	id      string
	record  *Record
	levels  uint8
	tainted bool
	bad     bool // incomplete
	color   uint8
	next    int32 // the parent to look at next
}

const (
	white uint8 = iota
	grey
	black
)

// linear is up to how many entries are searched one by one.
const linear = 48

func (w *walk) find(id string) int32 {
	if w.index != nil {
		if i, ok := w.index[id]; ok {
			return i
		}
		return -1
	}
	n := len(id)
	for i := range w.entries {
		// Ids are alike at the beginning and differ at the end.
		if known := w.entries[i].id; len(known) == n && (n == 0 || known[n-1] == id[n-1]) && known == id {
			return int32(i) //nolint:gosec // at most linear
		}
	}
	return -1
}

// enter adds a record; its entry is incomplete when there is none.
func (w *walk) enter(id string) int32 {
	at := int32(len(w.entries)) //nolint:gosec // at most MaxRecords
	if at >= MaxRecords {
		w.ctx.Overflow = true
		return at - 1
	}
	w.entries = append(w.entries, entry{id: id, record: w.from.Record(id)})
	if w.index != nil {
		w.index[id] = at
	} else if len(w.entries) > linear {
		w.index = make(map[string]int32, 4*linear)
		for i := range w.entries {
			w.index[w.entries[i].id] = int32(i) //nolint:gosec // at most linear
		}
	}
	return at
}

// Context works out the trust context of a chain from the stored records. The
// order of chain does not matter.
func (m *Manifest) Context(chain []string, from Records) Context {
	var ctx Context
	m.context(&ctx, chain, from)
	return ctx
}

func (m *Manifest) context(ctx *Context, chain []string, from Records) {
	*ctx = Context{Trust: Untrusted, Complete: len(chain) > 0}
	if len(chain) == 0 {
		return
	}
	w := walks.Get().(*walk)
	w.m, w.from, w.ctx = m, from, ctx
	defer w.giveBack()
	for _, id := range chain {
		i := w.find(id)
		if i < 0 {
			i = w.enter(id)
		}
		if w.entries[i].color == white {
			w.visit(i)
		}
		if ctx.Overflow {
			// Which records were seen depends on the order; so none of them counts.
			*ctx = Context{
				Trust: Untrusted, Tainted: true, Derived: true, Records: MaxRecords, Overflow: true,
				levels: levelTrusted | levelUntrusted | levelDerived,
			}
			return
		}
		e := &w.entries[i]
		ctx.levels |= e.levels
		ctx.Tainted = ctx.Tainted || e.tainted
		ctx.Complete = ctx.Complete && !e.bad
	}
	ctx.Records = len(w.entries)
	ctx.Derived = ctx.levels&levelDerived != 0
	ctx.Trust = rowTrust(int(ctx.levels))
}

// visit goes through the ancestry of an entry, depth first without recursion: the
// depth is the data's to choose. A record that is met again above itself has no
// origin, so it and everything between is untrusted, tainted and incomplete.
func (w *walk) visit(start int32) {
	stack := append(w.stack[:0], start)
	w.begin(start)
	for len(stack) > 0 && !w.ctx.Overflow {
		at := stack[len(stack)-1]
		e := &w.entries[at]
		if e.record != nil && int(e.next) < len(e.record.Parents) {
			parent := e.record.Parents[e.next]
			e.next++
			i := w.find(parent)
			if i < 0 {
				i = w.enter(parent)
			}
			switch w.entries[i].color {
			case white:
				w.begin(i)
				stack = append(stack, i)
			case grey:
				for _, j := range stack[slices.Index(stack, i):] {
					w.fault(j, false)
				}
			case black:
				w.inherit(at, i)
			}
			continue
		}
		w.finish(at)
		stack = stack[:len(stack)-1]
		if len(stack) > 0 {
			w.inherit(stack[len(stack)-1], at)
		}
	}
	w.stack = stack
}

// fault marks an entry whose origin is not known.
func (w *walk) fault(i int32, missing bool) {
	e := &w.entries[i]
	e.bad, e.tainted = true, true
	e.levels |= levelUntrusted
	if !missing {
		w.ctx.Cycle = true
	} else if w.ctx.Missing == "" || e.id < w.ctx.Missing {
		w.ctx.Missing = e.id
	}
}

// begin sets what a record is by itself.
func (w *walk) begin(i int32) {
	e := &w.entries[i]
	e.color = grey
	r := e.record
	if r == nil {
		w.fault(i, true)
		return
	}
	channel := w.channel(r.Source)
	stated := channel
	if r.Trust != "" {
		if stated, _ = ParseTrust(r.Trust); stated == NoTrust {
			stated = Untrusted
		}
	}
	if channel == Derived || stated == Derived {
		e.levels |= levelDerived
	}
	switch min(channel, stated) {
	case Untrusted:
		e.levels |= levelUntrusted
		e.tainted = true
	case Derived:
		if len(r.Parents) == 0 {
			w.fault(i, true)
		}
	default:
		e.levels |= levelTrusted
	}
	e.tainted = e.tainted || r.Tainted
	if w.m.fields != 0 && w.m.fields&^r.fieldBits() != 0 || r.Source == "" {
		e.bad = true
	}
}

// channel is the level of a channel, remembered among those of the ancestry: the
// first maxChannels in the order of their names, whatever the order of the records.
func (w *walk) channel(name string) Trust {
	for i := range w.seen[:min(w.count, len(w.seen))] {
		if w.seen[i].name == name {
			return w.seen[i].level
		}
	}
	level := w.m.Channel(name)
	w.seen[w.count%len(w.seen)] = seenChannel{name, level}
	w.count++
	list := w.ctx.Channels
	at, found := slices.BinarySearch(list, name)
	switch {
	case found || at == maxChannels:
		return level
	case len(list) == maxChannels:
		list = list[:maxChannels-1]
	case list == nil:
		list = make([]string, 0, 4)
	}
	w.ctx.Channels = slices.Insert(list, at, name)
	return level
}

// inherit takes what a parent has.
func (w *walk) inherit(child, parent int32) {
	c, p := &w.entries[child], &w.entries[parent]
	c.levels |= p.levels
	c.tainted = c.tainted || p.tainted
	c.bad = c.bad || p.bad
}

// finish applies the taint rules: what went through an operation that clears taint
// is not tainted by what came before. An unknown origin is not cleared, and trust
// does not change.
func (w *walk) finish(i int32) {
	e := &w.entries[i]
	e.color = black
	if !e.tainted || e.bad || len(w.m.clears) == 0 {
		return
	}
	for _, op := range e.record.Transformations {
		if w.m.clears[op] {
			e.tainted = false
			return
		}
	}
}

// fieldBits is which RecordFields a record carries.
func (r *Record) fieldBits() (bits uint8) {
	for i, there := range [...]bool{
		r.ID != "", r.Source != "", r.Trust != "", r.Transformations != nil, r.Parents != nil, len(r.Sessions) > 0, r.CreatedAt != "",
	} {
		if there {
			bits |= 1 << i
		}
	}
	return bits
}

// Join is the taint of something made of several inputs: any tainted one taints it.
func Join(inputs ...bool) bool { return slices.Contains(inputs, true) }
