package matrix

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
	"github.com/missionweave/server/internal/verify"
)

// Options says where the matrix is played.
type Options struct {
	// Stack is the server under test: a dev stack, whose keys may be used.
	Stack *client.DevStack
	// Kinds limits the run to these Command kinds; empty means all.
	Kinds []string
	// Plays is how many rows are played at the same time, at least 1.
	Plays int
}

// run collects what the plays found.
type run struct {
	mu                   sync.Mutex
	ok, bad              map[string]bool
	failures             []string
	emitted, transitions map[string]bool
	deferred             []func()
	// relaying maps the Action IDs of Organization Commands that carry an extension
	// to their case: their Events can only be looked at in the database.
	relaying map[string]string
	// refusals are the cases that used an Action ID and were refused, taken the
	// Action IDs that were accepted.
	refusals map[action]string
	taken    map[action]bool
}

// action is what a receipt is kept under.
type action struct{ actorType, actorID, id string }

func actionOf(a *attempt) action {
	who, id := a.who.Principal(), a.env["actionId"].(string)
	return action{who.Type, who.ID, id}
}

func (r *run) refused(a *attempt, c string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusals[actionOf(a)] = c
}

func (r *run) took(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken[actionOf(a)] = true
}

func (r *run) pass(c string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ok[c] = true
}

func (r *run) fail(c, problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bad[c] = true
	r.failures = append(r.failures, c+": "+problem)
}

func (r *run) event(kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.emitted[kind] = true
}

// relays notes that the Event of a Command must carry its extension.
func (r *run) relays(actionID, c string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.relaying[actionID] = c
}

// later is called when all plays are over.
func (r *run) later(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deferred = append(r.deferred, f)
}

// Run plays the matrix against a stack. The error is about the stack; what the
// server did wrong is in the Report.
func Run(ctx context.Context, o Options) (*Report, error) {
	s, err := openStand(ctx, o.Stack)
	if s != nil {
		defer s.close()
	}
	if err != nil {
		return nil, fmt.Errorf("matrix: %w", err)
	}
	r := &run{
		ok: map[string]bool{}, bad: map[string]bool{}, emitted: map[string]bool{}, transitions: map[string]bool{}, relaying: map[string]string{},
		refusals: map[action]string{}, taken: map[action]bool{},
	}
	wanted := func(kind string) bool { return len(o.Kinds) == 0 || slices.Contains(o.Kinds, kind) }
	work := errgroup.Group{}
	work.SetLimit(max(1, o.Plays))
	for i := range rows {
		for _, cases := range scripts[rows[i].kind] {
			if !wanted(rows[i].kind) {
				continue
			}
			p := &play{stand: s, ctx: ctx, run: r, row: &rows[i], actionID: client.NewID()}
			work.Go(func() error {
				p.perform(cases)
				return ctx.Err()
			})
		}
	}
	for _, cross := range crossings {
		if len(o.Kinds) > 0 && !slices.Contains(o.Kinds, cross.name) {
			continue
		}
		p := &play{stand: s, ctx: ctx, run: r, row: &row{kind: cross.name}, actionID: client.NewID()}
		work.Go(func() error {
			p.perform(cross.cases)
			return ctx.Err()
		})
	}
	err = work.Wait()
	for _, f := range r.deferred {
		f()
	}
	if err == nil {
		err = r.verify(ctx, o.Stack, s.evidence)
	}
	return r.report(wanted), err
}

// crossings are plays that prove rows of many kinds or tables.
var crossings = []struct {
	name  string
	cases func(*play)
}{
	{"precedence", precedence},
	{"archived Group", archivedGroup},
	{"WorkItem pairs", itemPairs},
	{"Mission pairs", missionPairs},
	{"other pairs", objectPairs},
	{"WorkItem rows", itemRows},
	{"expiry rows", expiryRows},
	{"lease rows", leaseRows},
	{"lease ends", leaseEnds},
	{"end rows", endRows},
	{"Membership rows", memberRows},
	{"waiting rows", waitingRows},
}

// perform plays cases; what stops them is a failure of the row.
func (p *play) perform(cases func(*play)) {
	defer p.leave()
	defer func() {
		if v := recover(); v != nil {
			a, ok := v.(abort)
			if !ok {
				panic(v)
			}
			p.failed("stage", "%v", a.err)
		}
	}()
	cases(p)
	if p.scene != nil {
		for _, g := range p.groups {
			p.served(g)
		}
	}
}

// leave closes the connections of the play's Agents. Their Session Epochs stay
// known.
func (p *play) leave() {
	for _, a := range p.made {
		if a.session != nil {
			a.session.Close()
		}
	}
}

// served compares the fold with what the server serves. The sweeper may write in
// between, so it counts only when the log stood still meanwhile.
func (p *play) served(g *group) {
	for {
		_, err := g.sync(p.ctx)
		p.must(err)
		differ := p.differences(g)
		added, err := g.sync(p.ctx)
		p.must(err)
		if len(added) > 0 {
			continue
		}
		for _, d := range differ {
			p.failed("fold", "%s", d)
		}
		return
	}
}

func (p *play) differences(g *group) (differ []string) {
	want, err := g.state.MissionDoc()
	p.must(err)
	got, err := g.reader.Mission(p.ctx, g.state.Mission.MissionID)
	p.must(err)
	if !same(&want, got) {
		differ = append(differ, "the served Mission differs from the fold of its Events: "+differing(&want, got))
	}
	items, err := g.reader.WorkItems(p.ctx, g.id)
	p.must(err)
	if len(items) != len(g.state.WorkItems) {
		differ = append(differ, fmt.Sprintf("%d WorkItems are served, the fold has %d", len(items), len(g.state.WorkItems)))
	}
	for i := range items {
		w, ok := g.state.WorkItems[items[i].WorkItemID]
		if !ok {
			differ = append(differ, "a WorkItem is served that the fold does not have")
			continue
		}
		// Extensions say what depends on the clock.
		folded := w.WorkItem
		folded.Extensions, items[i].Extensions = nil, nil
		if !same(&folded, &items[i]) {
			differ = append(differ, "WorkItem "+w.WorkItemID+" is served in another state than its Events tell: "+differing(&folded, &items[i]))
		}
	}
	return differ
}

// differing names the top-level members in which two documents differ.
func differing(a, b any) string {
	x, y := marshalled(a), marshalled(b)
	var names []string
	for name := range x {
		if string(x[name]) != string(y[name]) {
			names = append(names, name)
		}
	}
	for name := range y {
		if _, ok := x[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func marshalled(v any) map[string]json.RawMessage {
	b, err := strictjson.Marshal(v)
	if err != nil {
		return nil
	}
	return members(b)
}

func same(a, b any) bool {
	x, errX := strictjson.Marshal(a)
	y, errY := strictjson.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// verify recomputes the whole database when the stack names it, and looks at the
// Events of the Organization, which no Group's log has.
func (r *run) verify(ctx context.Context, stack *client.DevStack, evidence *trust.Evidence) error {
	if stack.DatabaseURL == "" {
		return nil
	}
	pool, err := pgxpool.New(ctx, stack.DatabaseURL)
	if err != nil {
		return errors.New("matrix: the database of the stack cannot be opened") // the error would show the password
	}
	defer pool.Close()
	report, err := verify.Database(ctx, pool, verify.Options{})
	if err != nil {
		return fmt.Errorf("matrix: verify the database: %w", err)
	}
	for _, d := range report.Differences {
		r.fail("verify", d.String())
	}
	if err := r.unreceipted(ctx, pool); err != nil {
		return fmt.Errorf("matrix: read the receipts: %w", err)
	}
	rows, err := pool.Query(ctx, "SELECT document FROM org_events ORDER BY ordinal")
	if err != nil {
		return fmt.Errorf("matrix: read the Organization's Events: %w", err)
	}
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&document}, func() error {
		if err := r.fact(document, evidence); err != nil {
			r.fail("Organization Event", err.Error())
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("matrix: read the Organization's Events: %w", err)
	}
	return nil
}

// unreceipted checks that no refused Action ID has a receipt, but for those that
// the play had accepted itself.
func (r *run) unreceipted(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, "SELECT actor_type, actor_id, action_id FROM receipts")
	if err != nil {
		return err
	}
	var a action
	_, err = pgx.ForEachRow(rows, []any{&a.actorType, &a.actorID, &a.id}, func() error {
		if c, ok := r.refusals[a]; ok && !r.taken[a] {
			r.fail("receipt", "a refused Command left one: "+c)
		}
		return nil
	})
	return err
}

// fact looks at one Event of the Organization.
func (r *run) fact(document []byte, evidence *trust.Evidence) error {
	doc, err := strictjson.Parse(document)
	if err != nil {
		return err
	}
	ev, err := verifiedEvent(doc, evidence)
	if err != nil {
		return err
	}
	r.event(ev.Kind)
	if c, ok := r.relaying[ev.Cause.ID]; ok {
		if !bytes.Contains(doc.Root().Member("extensions").Raw(), []byte(noteURI)) {
			return fmt.Errorf("%s does not carry the Command's extension", ev.Kind)
		}
		r.pass(c)
	}
	return nil
}

// report counts the rows of all tables.
func (r *run) report(wanted func(string) bool) *Report {
	out := &Report{Failed: append([]string{}, slices.Sorted(slices.Values(r.failures))...), Missing: []string{}, Unreachable: []Row{}}
	listed := map[string]bool{}
	for _, row := range rows {
		listed[row.kind] = true
		if !wanted(row.kind) {
			continue
		}
		k := KindCount{Kind: row.kind, Sets: row.sets}
		broken := slices.ContainsFunc([]string{"stage", "fold", "answer"}, func(c string) bool { return r.bad[row.kind+": "+c] })
		var positives, negatives []string
		for _, name := range row.positives {
			positives = append(positives, row.kind+": positive "+name)
		}
		for _, c := range row.cases() {
			negatives = append(negatives, row.kind+": "+c)
		}
		out.tally(&k.Positives, "case", positives, r.ok, r.bad)
		out.tally(&k.Negatives, "case", negatives, r.ok, r.bad)
		out.Kinds = append(out.Kinds, k)
		out.Commands.Total++
		if k.Positives.Passed == k.Positives.Total && !broken {
			out.Commands.Passed++
		}
		out.Negatives.Total += k.Negatives.Total
		out.Negatives.Passed += k.Negatives.Passed
		out.Negatives.Unreachable += k.Negatives.Unreachable
	}
	for _, k := range groups.Kinds() {
		if !listed[k.Kind] {
			out.Commands.Total++ // a kind that the catalogue has and the rows have not
			out.Missing = append(out.Missing, k.Kind+": no row")
		}
	}
	var events, order, absent []string
	for _, k := range groups.EventKinds() {
		events = append(events, k.Kind)
	}
	for _, pair := range pairs {
		order = append(order, "precedence: "+pair)
	}
	for _, p := range absentPairs() {
		absent = append(absent, "pair "+p.name())
	}
	out.tally(&out.Events, "event", events, r.emitted, nil)
	out.tally(&out.Transitions, "transition", transitionRows(), r.transitions, nil)
	out.tally(&out.Precedence, "pair", order, r.ok, r.bad)
	out.tally(&out.Pairs, "absent", absent, r.ok, r.bad)
	return out
}
