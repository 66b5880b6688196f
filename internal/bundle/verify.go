package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"

	"github.com/missionweave/server/internal/aeplog"
	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// Options of a verification.
type Options struct {
	// Pin are public keys, by key id, that the reader knows from elsewhere. A key of
	// the bundle under such an id must be the same, and the seal must be by one of
	// them.
	Pin map[string]string
	// Workers check signatures; 0 means one per core.
	Workers int
}

// Verify checks a bundle. The error is about reading it; what is wrong with it is
// in the Report.
func Verify(ctx context.Context, r io.Reader, opt Options) (*Report, error) {
	v := &verifier{
		opt: opt, in: newReader(r), report: &Report{Problems: []Problem{}}, duties: map[string][]protocol.Actor{},
		services: map[protocol.Actor]bool{}, acted: map[[16]byte]struct{}{},
		leaseSince: map[string][]int64{}, tokens: map[[16]byte]*tokenSeen{}, decided: map[[16]byte]bool{}, oneShots: map[[16]byte]bool{},
		state: groups.New(), actions: map[string]bool{}, pending: map[string]*trust.Verified{}, anchoredHere: map[string]bool{},
		known: &evidence.Registry{
			Leases: map[string][]evidence.LeaseWindow{}, Approvals: map[string]bool{}, RevocationEvents: map[string]int64{},
			ArgsEqualityVersions: map[string]bool{}, UnknownNeedsApproval: true,
		},
	}
	for _, version := range evidence.ArgsEqualityVersions() {
		v.known.ArgsEqualityVersions[version] = true
	}
	first, err := v.preface()
	if err == nil && first != nil {
		err = v.body(ctx, *first)
	}
	if !v.in.any && (err == nil || errors.Is(err, io.EOF) || errors.Is(err, errLineTooLong)) {
		return nil, ErrNotBundle
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	v.finish()
	return v.report, nil
}

// ErrNotBundle says that nothing of what was read is a line of a bundle: it is another
// file, and not one that was changed.
var ErrNotBundle = errors.New("bundle: not a bundle: no line is one of " + Format)

// strayLines is how many lines that are none are read before the first that is one.
const strayLines = 1000

// verifier is one run over one bundle.
type verifier struct {
	opt    Options
	in     *reader
	report *Report
	head   header
	place  int
	sealed bool

	bindings []trust.Binding
	keyLines map[string]int64
	ev       *trust.Evidence
	duties   map[string][]protocol.Actor
	services map[protocol.Actor]bool // with any duty that admits documents

	state   *groups.State
	stopped bool // the log could not be folded further
	command acting
	// acted are the actions that were told, by the beginning of a hash.
	acted map[[16]byte]struct{}
	// pending are the last Event's documents that wait for their records, anchoredHere
	// the hashes of those that have got them.
	pending      map[string]*trust.Verified
	anchoredHere map[string]bool
	policies     int
	stateSeen    bool

	// leaseSince has, for each window in known.Leases, the sequence that made it.
	leaseSince map[string][]int64
	tokens     map[[16]byte]*tokenSeen
	decided    map[[16]byte]bool
	oneShots   map[[16]byte]bool

	known   *evidence.Registry
	census  evidence.Census
	run     *runLine
	inRun   int64
	before  *evidence.Value
	actions map[string]bool
	parents []parent
}

type parent struct {
	line int64
	id   string
}

func (v *verifier) problem(l *line, subject, format string, args ...any) {
	v.report.add(Problem{Line: l.at, Kind: l.kind, Sequence: v.state.Head, Subject: subject, Problem: fmt.Sprintf(format, args...)})
}

// accept does for every line what does not depend on its kind. It tells whether
// the value can be looked at.
func (v *verifier) accept(l *line) bool {
	v.report.Lines++
	if l.fault != "" {
		v.problem(l, "", "%s", l.fault)
	}
	if l.kind == "" {
		return false
	}
	place := places[l.kind]
	switch {
	case v.sealed:
		v.problem(l, "", "stands after the seal")
		return false
	case place < v.place:
		v.problem(l, "", "stands in the wrong place")
	case l.kind == kindHeader && v.report.Lines != 1:
		v.problem(l, "", "is a second header")
		return false
	}
	v.place = max(v.place, place)
	return true
}

func decode(l *line, dst any) error { return decodeExactly(l.value, dst) }

// decodeExactly takes only the one spelling that the value has.
func decodeExactly(raw []byte, dst any) error {
	doc, err := strictjson.Parse(raw)
	if err != nil {
		return err
	}
	if err := strictjson.Decode(doc.Root(), dst); err != nil {
		return err
	}
	again, err := strictjson.Marshal(dst)
	if err == nil && string(again) != string(raw) {
		err = errors.New("has members or a spelling that do not belong there")
	}
	return err
}

// preface reads header, keys and duties, on which everything else depends. It
// gives the first line after them, nil at the end of the bundle.
func (v *verifier) preface() (*line, error) {
	var services int64
	v.keyLines = map[string]int64{}
	for {
		l, err := v.in.next(&arena{})
		if err != nil {
			v.trust(services)
			return nil, err
		}
		if v.report.Lines == 0 && l.kind != kindHeader && l.kind != "" {
			v.problem(&l, "", "a bundle begins with its header")
		}
		if l.kind != "" && places[l.kind] > places[kindService] {
			v.trust(services)
			return &l, nil
		}
		if !v.accept(&l) {
			if !v.in.any && v.report.Lines >= strayLines {
				return nil, io.EOF
			}
			continue
		}
		switch l.kind {
		case kindHeader:
			if err := decode(&l, &v.head); err != nil {
				v.problem(&l, "", "%v", err)
			} else if v.head.Format != Format {
				v.problem(&l, "", "is of the format %q, not %s", v.head.Format, Format)
			}
			v.report.Format, v.report.OrganizationID, v.report.GroupID, v.report.Head = v.head.Format, v.head.OrganizationID, v.head.GroupID, v.head.Head
			v.state.TreeID = v.head.RootMissionID
		case kindKey:
			v.key(&l)
		case kindService:
			var s serviceLine
			if err := decode(&l, &s); err != nil {
				v.problem(&l, "", "%v", err)
				continue
			}
			services++
			v.duties[s.Role] = append(v.duties[s.Role], protocol.Actor{Type: s.PrincipalType, ID: s.PrincipalID})
		}
	}
}

func (v *verifier) key(l *line) {
	var k keyLine
	if err := decode(l, &k); err != nil {
		v.problem(l, "", "%v", err)
		return
	}
	v.report.Keys++
	if pinned, ok := v.opt.Pin[k.KeyID]; ok && pinned != k.PublicKey {
		v.problem(l, k.KeyID, "is another key than the one that is pinned")
	}
	b := trust.Binding{
		KeyID: k.KeyID, Principal: protocol.Actor{Type: k.PrincipalType, ID: k.PrincipalID}, Algorithm: k.Algorithm,
		PublicKey: k.PublicKey, ValidFrom: k.ValidFrom,
	}
	for _, s := range k.History {
		b.History = append(b.History, trust.Validity(s))
	}
	v.bindings, v.keyLines[k.KeyID] = append(v.bindings, b), l.at
}

// trust builds the registry evidence. A binding that breaks a rule is reported
// and left out, so that one bad key does not make all others unusable.
func (v *verifier) trust(services int64) {
	if v.report.Keys != v.head.Keys {
		v.report.add(Problem{Kind: kindKey, Problem: fmt.Sprintf("there are %d keys, the header says %d", v.report.Keys, v.head.Keys)})
	}
	if services != v.head.Services {
		v.report.add(Problem{Kind: kindService, Problem: fmt.Sprintf("there are %d duties, the header says %d", services, v.head.Services)})
	}
	for {
		ev, err := trust.NewEvidence(v.head.OrganizationID, v.head.RegistryRevision, v.bindings)
		if err == nil {
			v.ev = ev
			break
		}
		var fault *trust.BindingFault
		if !errors.As(err, &fault) || fault.KeyID == "" {
			v.report.add(Problem{Kind: kindKey, Problem: err.Error()})
			v.ev = trust.UnavailableEvidence(v.head.OrganizationID, err)
			break
		}
		v.report.add(Problem{Line: v.keyLines[fault.KeyID], Kind: kindKey, Subject: fault.KeyID, Problem: err.Error()})
		v.bindings = slices.DeleteFunc(v.bindings, func(b trust.Binding) bool { return b.KeyID == fault.KeyID })
	}
	for role, list := range v.duties {
		for _, p := range list {
			if role != string(registry.RoleContextGenerator) {
				v.services[p] = true
			}
		}
	}
	v.known.Keys = map[string]evidence.KeyStatus{}
	for key := range v.ev.All() {
		if v.hasRole(key.Principal(), "evidence") {
			v.known.Keys[key.ID()] = aeplog.KeyStatusOf(key)
		}
	}
}

func (v *verifier) hasRole(p protocol.Actor, role string) bool {
	return slices.Contains(v.duties[role], p)
}

// batchSize is how many lines a worker takes at once, batchBytes when it takes
// fewer: what is read ahead must stay small.
const (
	batchSize  = 64
	batchBytes = 1 << 20
)

// batch is lines on their way through a worker.
type batch struct {
	lines   []line
	checked []checked
	done    chan struct{} // gets one value when the worker is done
	arena   arena
}

func newBatch() *batch {
	return &batch{
		lines: make([]line, 0, batchSize), checked: make([]checked, 0, batchSize), done: make(chan struct{}, 1),
		arena: arena{make([]byte, 0, batchBytes/4)},
	}
}

// again empties a batch for other lines: nothing of the old ones is kept by whoever
// looked at them.
func (b *batch) again() *batch {
	clear(b.lines)
	clear(b.checked)
	b.lines, b.checked, b.arena.buf = b.lines[:0], b.checked[:0], b.arena.buf[:0]
	return b
}

// body checks everything after the preface: signatures on all cores, everything
// else in the order of the lines.
func (v *verifier) body(ctx context.Context, first line) error {
	workers := v.opt.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work, ordered, free := make(chan *batch, workers), make(chan *batch, 2*workers), make(chan *batch, 3*workers+2)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for range workers {
		running.Go(func() {
			own := &worker{verifier: v}
			for b := range work {
				b.checked = b.checked[:len(b.lines)]
				for i := range b.lines {
					own.check(&b.lines[i], &b.checked[i])
				}
				b.done <- struct{}{}
			}
		})
	}
	var readErr error
	running.Go(func() {
		defer close(ordered)
		defer close(work)
		readErr = v.read(ctx, first, free, work, ordered)
	})
	for b := range ordered {
		select {
		case <-b.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		for i := range b.lines {
			v.follow(&b.lines[i], &b.checked[i])
			v.recycle(&b.lines[i], &b.checked[i])
		}
		select {
		case free <- b.again():
		default:
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return readErr
}

// recycle takes the parsed document of a line that was followed. Its embedded
// documents, which wait for their records, are told by their hashes, and what the
// state holds are texts.
func (v *verifier) recycle(l *line, c *checked) {
	if c.verified != nil && (l.kind == kindEvent || l.kind == kindCommand) {
		strictjson.Recycle(c.verified.Value)
	}
}

func (v *verifier) read(ctx context.Context, first line, free <-chan *batch, work, ordered chan<- *batch) error {
	pending := []line{first}
	for {
		var b *batch
		select {
		case b = <-free:
		default:
			b = newBatch()
		}
		var err error
		b.lines = append(b.lines, pending...)
		pending = nil
		for size := 0; err == nil && len(b.lines) < batchSize && size < batchBytes; {
			var l line
			if l, err = v.in.next(&b.arena); err == nil {
				b.lines = append(b.lines, l)
				size += len(l.value)
			}
		}
		for _, to := range []chan<- *batch{ordered, work} {
			select {
			case to <- b:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err != nil {
			return err
		}
	}
}

// finish reports what is missing at the end.
func (v *verifier) finish() {
	end := &line{at: v.in.at}
	v.leftover(end)
	v.settle()
	switch {
	case v.report.Lines == 0:
		v.problem(end, "", "the bundle is empty")
	case !v.sealed:
		v.problem(end, "", "the bundle ends without a seal")
	}
	if !v.stopped && v.state.Head != v.head.Head {
		v.problem(end, "", "the Events end at #%d, the header says #%d", v.state.Head, v.head.Head)
	}
	if m := v.state.Mission; !v.stopped && m != nil && m.MissionID != v.head.MissionID {
		v.problem(end, "", "the Events are of Mission %s, the header says %s", m.MissionID, v.head.MissionID)
	}
	if !v.stateSeen {
		v.problem(end, "", "there is no state")
	}
	if v.report.Runs != v.head.Runs {
		v.problem(end, "", "there are %d runs, the header says %d", v.report.Runs, v.head.Runs)
	}
	v.endRun(end)
	for _, t := range v.tokens {
		if t.revoked && !t.confirmed {
			v.report.add(Problem{Line: t.line, Kind: kindDecision, Subject: t.id, Problem: "was revoked, and no decision says so"})
		}
	}
	for _, p := range v.parents {
		if !v.actions[p.id] {
			v.report.add(Problem{Line: p.line, Kind: kindEvidence, Subject: p.id, Problem: "P-10 E_PARENT_UNRESOLVED: the record names a parent action that is not in the bundle"})
		}
	}
	for _, kind := range v.census.Graduates() {
		v.report.Warnings = append(v.report.Warnings, "P-13 W_OTHER_KIND_GRADUATE: more than one record in twenty uses the state digest kind "+kind)
	}
	slices.SortStableFunc(v.report.Problems, func(a, b Problem) int { return int(a.Line - b.Line) })
}
