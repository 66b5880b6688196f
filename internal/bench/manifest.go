package bench

import (
	"crypto/ed25519"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// ManifestCell is one size of manifest and store.
type ManifestCell struct {
	Rules   int `json:"rules"`
	Records int `json:"records"` // in the store; a decision looks 20 of them up
	// Micros and Allocations are those of one decision.
	Micros      float64 `json:"micros"`
	Allocations float64 `json:"allocations"`
	// OfVerify is the time of a decision in units of one bare Ed25519 verification of
	// the same run; OfFirst in units of the first cell.
	OfVerify float64 `json:"ofVerify"`
	OfFirst  float64 `json:"ofFirst"`
}

// ManifestReport is what RunManifest measured.
type ManifestReport struct {
	VerifyMicros float64        `json:"verifyMicros"`
	Cells        []ManifestCell `json:"cells"`
}

// WriteTo prints a table.
func (r *ManifestReport) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "one bare Ed25519 verification: %.1f µs\n\n", r.VerifyMicros)
	b.WriteString("| Rules | Records stored | µs a decision | allocations | of one verification | of the first row |\n| ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, c := range r.Cells {
		fmt.Fprintf(&b, "| %d | %d | %.2f | %.0f | %.2f | %.2f |\n", c.Rules, c.Records, c.Micros, c.Allocations, c.OfVerify, c.OfFirst)
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err //nolint:wrapcheck // the writer's own
}

// chainLength is the number of records behind the measured decision.
const chainLength = 20

// RunManifest measures one decision: an action with a schema, parameters of three
// members, 20 provenance records, one predicate and an escalation, over manifests
// of 10 to 10,000 rules and stores of 20 to 1,000,000 records, in which the chain has
// the same shape and lies apart. The cells take turns, so that a machine that is busy
// now and idle then is so for all.
func RunManifest(d time.Duration) (*ManifestReport, error) {
	sizes := []struct{ rules, records int }{{10, chainLength}, {100, chainLength}, {1000, chainLength}, {10_000, chainLength}, {10, 1_000_000}, {10_000, 1_000_000}}
	small, large := storeOf(chainLength), storeOf(1_000_000)
	type run struct {
		m      *manifest.Manifest
		r      manifest.Request
		turns  []float64 // µs a decision
		n      int64
		allocs uint64
	}
	parameters, err := strictjson.Raw(`{"to":"colleague@example.org","subject":"report","body":"figures of the third quarter"}`).Value()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	runs := make([]*run, len(sizes))
	for i, size := range sizes {
		m, _, err := manifest.Parse("bench", manifestOf(size.rules))
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		x := &run{m: m, r: manifest.Request{
			Mode: manifest.Interactive, Action: "send_0", Parameters: parameters, Records: small, Chain: small.chain(),
			Actor: "urn:x:agent", Session: "s", WorkItem: "w", Resource: "urn:r:none", Capabilities: []string{"mail", "search"},
		}}
		if size.records > chainLength {
			x.r.Records, x.r.Chain = large, large.chain()
		}
		if got := m.Decide(&x.r); got.Verdict != manifest.ALLOW {
			return nil, fmt.Errorf("bench: the decision is %s by %s: %s", got.Verdict, got.RuleID, got.Reason)
		}
		runs[i] = x
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	message := make([]byte, 1024)
	signature := ed25519.Sign(private, message)
	// The collector runs between the turns: its share is the allocations, which are
	// shown, and it would fall on whichever cell is running when it is due.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var verify []float64
	for range manifestTurns {
		runtime.GC()
		verify = append(verify, turn(d/manifestTurns, 20, func() { ed25519.Verify(public, message, signature) }, nil))
		for _, x := range runs {
			before := mallocs()
			x.turns = append(x.turns, turn(d/manifestTurns, 100, func() { x.m.Decide(&x.r) }, &x.n))
			x.allocs += mallocs() - before
		}
	}
	report := &ManifestReport{VerifyMicros: middle(verify)}
	first := middle(runs[0].turns)
	for i, x := range runs {
		c := ManifestCell{Rules: sizes[i].rules, Records: sizes[i].records, Micros: middle(x.turns), Allocations: float64(x.allocs) / float64(max(1, x.n))}
		c.OfVerify, c.OfFirst = c.Micros/report.VerifyMicros, c.Micros/first
		report.Cells = append(report.Cells, c)
	}
	return report, nil
}

// manifestTurns is how many turns each cell has.
const manifestTurns = 100

// turn is how many µs of the process's own processor time one call of work takes:
// other work on the machine does not count. The first batch warms the caches, which
// another cell or the collector had.
func turn(d time.Duration, batch int, work func(), count *int64) float64 {
	for range batch {
		work()
	}
	var r rate
	spend(&r, d, batch, work)
	if count != nil {
		*count += r.n + int64(batch)
	}
	took := r.cpu
	if took == 0 {
		took = r.took
	}
	return float64(took.Nanoseconds()) / 1000 / float64(max(1, r.n))
}

// middle is the median.
func middle(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

func mallocs() uint64 {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.Mallocs
}

// spend runs work for d, in batches between two looks at the clock.
func spend(r *rate, d time.Duration, batch int, work func()) {
	began, used := time.Now(), selfCPU()
	for time.Since(began) < d {
		for range batch {
			work()
		}
		r.n += int64(batch)
	}
	r.took += time.Since(began)
	r.cpu += selfCPU() - used
}

func recordID(i int) string { return fmt.Sprintf("urn:uuid:00000000-0000-7000-8000-%012d", i) }

// store is a Records of many records without a pointer in it: a real store is
// outside of the process, and the garbage collector does not walk it. Records lends
// its own room, for one decision at a time.
type store struct {
	at     map[recordKey]int32
	parent []int32 // of each record, -1 for none
	lent   [2 * chainLength]struct {
		manifest.Record
		parents [1]string
	}
	next int
	ids  map[int32]string // of what a chain names
}

// recordKey is the part of an id in which the records differ.
type recordKey [12]byte

var (
	oneSession = []string{"s"}
	none       = []string{}
)

// storeOf makes records of which every other one has the one before as parent.
func storeOf(n int) *store {
	s := &store{at: make(map[recordKey]int32, n), parent: make([]int32, n), ids: map[int32]string{}}
	for i := range n {
		s.at[keyOf(recordID(i))] = int32(i) //nolint:gosec // a million at most
		s.parent[i] = -1
		if i%2 == 1 {
			s.parent[i] = int32(i - 1) //nolint:gosec // a million at most
		}
	}
	return s
}

func keyOf(id string) (k recordKey) {
	copy(k[:], id[len(id)-len(k):])
	return k
}

// Record implements manifest.Records.
func (s *store) Record(id string) *manifest.Record {
	i, ok := s.at[keyOf(id)]
	if !ok {
		return nil
	}
	x := &s.lent[s.next]
	s.next = (s.next + 1) % len(s.lent)
	x.Record = manifest.Record{
		ID: id, Source: "user", Trust: "trusted", Transformations: none, Parents: none, Sessions: oneSession, CreatedAt: "2026-01-01T00:00:00Z",
	}
	if up := s.parent[i]; up >= 0 {
		x.Source, x.Trust = "memory", "derived"
		x.parents[0] = s.ids[up]
		x.Parents = x.parents[:]
	}
	return &x.Record
}

// chain are the ids of a chain whose records lie apart: pairs of a record and the one
// that it came from.
func (s *store) chain() (ids []string) {
	apart := len(s.parent) / chainLength * 2
	for k := range chainLength {
		i := k/2*apart + k%2
		s.ids[int32(i)] = recordID(i) //nolint:gosec // a million at most
		ids = append(ids, recordID(i))
	}
	return ids
}

// manifestOf has a tenth as many actions as rules, and rules of every kind spread
// over them; half of the rules are about the measured action.
func manifestOf(rules int) []byte {
	actions := max(2, rules/10)
	var b strings.Builder
	b.WriteString(`{"format":"worldmanifest/1","name":"bench","version":"1","trust_channels":{"user":"trusted","email":"untrusted","memory":"derived"},
		"capabilities":["read","external_side_effects"],"capability_matrix":{"trusted":["read","external_side_effects"],"untrusted":["read"]},"actions":{`)
	for i := range actions {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"send_%d":{"requires":["external_side_effects"],"schema":{"type":"object","additionalProperties":false,"required":["to","subject"],
			"properties":{"to":{"type":"string","maxLength":200},"subject":{"type":"string"},"body":{"type":"string"}}}}`, i)
	}
	b.WriteString(`},"rules":[{"id":"strangers","effect":"deny","condition":{"action":"send_0","parameters":"!parameters.to.endsWith('@example.org')"}}`)
	for i := range rules - 2 {
		action := 0
		if i%2 == 1 {
			action = 1 + i%(actions-1)
		}
		switch i % 4 {
		case 0, 1:
			fmt.Fprintf(&b, `,{"id":"r%d","effect":"deny","condition":{"action":"send_%d","resource":"urn:r:%d"}}`, i, action, i)
		default:
			fmt.Fprintf(&b, `,{"id":"r%d","effect":"deny","condition":{"action":"send_%d","actor":"urn:x:%d","capability":"mail"}}`, i, action, i)
		}
	}
	b.WriteString(`],"escalations":[{"id":"ask","reason":"a human looks at data from memory that is for sale","condition":{"action":"send_0","trust":"derived","parameters":"parameters.subject == 'sale'"}}]}`)
	return []byte(b.String())
}
