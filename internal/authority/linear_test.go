package authority_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/authority/authoritytest"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

// Recorded histories of two processes on one database, each held against a
// sequential model: whatever the clients saw must be explained by one order of
// their Commands that agrees with real time.

// history records operations of many clients.
type history struct {
	mu    sync.Mutex
	start time.Time
	ops   []porcupine.Operation
}

func newHistory() *history { return &history{start: time.Now()} }

// do records one operation around fn.
func (h *history) do(client int, in any, fn func() any) {
	call := time.Since(h.start).Nanoseconds()
	out := fn()
	back := time.Since(h.start).Nanoseconds()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: back})
}

// check fails the test unless the history is linearizable.
func (h *history) check(t *testing.T, model porcupine.Model) {
	t.Helper()
	result := porcupine.CheckOperationsTimeout(model, h.ops, 2*time.Minute)
	if result != porcupine.Ok {
		t.Errorf("%d operations: %v", len(h.ops), result)
		for _, op := range h.ops[:min(len(h.ops), 60)] {
			t.Logf("client %d [%d, %d] %+v -> %+v", op.ClientId, op.Call, op.Return, op.Input, op.Output)
		}
	}
}

// pair is one Organization served by two processes.
type pair struct {
	*authoritytest.Rig
	both []*authoritytest.Replica
	meet *rendezvous
}

// twice starts two processes that meet at their first commits, so that they
// really race.
func twice(t *testing.T, policy *authority.Policy) *pair {
	t.Helper()
	p := &pair{meet: &rendezvous{}}
	options := authoritytest.Options{Policy: policy, Events: events.Options{Hooks: events.Hooks{BeforeCommit: p.meet.wait}}}
	p.Rig = authoritytest.Start(t, options)
	p.both = []*authoritytest.Replica{p.Replica, p.AddReplica(options)}
	return p
}

func (p *pair) race()  { p.meet.on.Store(true) }
func (p *pair) peace() { p.meet.on.Store(false) }

// receipt reads what the tests need of a receipt.
func receipt(t *testing.T, b []byte) (actionID string, sequence int64, eventID string) {
	t.Helper()
	doc, err := strictjson.Parse(b)
	if err != nil {
		t.Error(err)
		return "", 0, ""
	}
	action, _ := doc.Root().Get("actionId")
	list, _ := doc.Root().Get("events")
	for _, e := range list.Items() {
		seq, _ := e.Get("sequence")
		id, _ := e.Get("eventId")
		n, _ := seq.Int()
		return action.Str(), n, id.Str()
	}
	return action.Str(), 0, ""
}

// answer is what a client learned: a code, or the number its Command got.
type answer struct {
	code protocol.Code
	at   int64
	what string
}

// Group log: an accepted Command gets the next number, a read answers the head.
type logOp struct {
	read   bool
	action string
}

var groupLog = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(int64), input.(logOp), output.(answer)
		if in.read {
			return out.at == s, s
		}
		return out.code == "" && out.at == s+1, s + 1
	},
	Equal: func(a, b any) bool { return a == b },
}

// 32 writers give every Command to both processes, while others read the head:
// one line, every effect once, one receipt.
func TestGroupLogIsLinearizable(t *testing.T) {
	p := twice(t, unlimited())
	m := p.NewMission(registrytest.Human("mission-owner"), p.AddAgent("coordinator"))
	h := newHistory()
	first := head(t, p.Rig, m.GroupID)
	const writers, each = 32, 4
	p.race()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				body := p.Sign(m.Coordinator, m.By(m.Coordinator, m.Post(fmt.Sprintf("%d/%d", w, i))))
				var receipts [2][]byte
				var asked sync.WaitGroup
				// Two calls, one operation: it takes effect before the first of
				// them is answered.
				h.do(w, logOp{action: fmt.Sprintf("%d/%d", w, i)}, func() any {
					answers := make(chan answer, 2)
					for n, replica := range p.both {
						asked.Go(func() {
							res, err := patiently(func() (*authority.Result, *protocol.Error) { return submitTo(replica, body) })
							if err != nil {
								t.Errorf("writer %d: %v", w, err)
								answers <- answer{code: err.Code}
								return
							}
							receipts[n] = res.Receipt
							_, at, _ := receipt(t, res.Receipt)
							answers <- answer{at: at - first}
						})
					}
					return <-answers
				})
				asked.Wait()
				if !bytes.Equal(receipts[0], receipts[1]) {
					t.Errorf("two receipts of one Action:\n%s\n%s", receipts[0], receipts[1])
				}
			}
		})
	}
	for n, replica := range p.both {
		wg.Go(func() {
			for range 20 {
				h.do(writers+n, logOp{read: true}, func() any {
					at, err := replica.Store.Head(t.Context(), m.GroupID)
					if err != nil {
						t.Error(err)
					}
					return answer{at: at - first}
				})
			}
		})
	}
	wg.Wait()
	p.peace()
	if got := head(t, p.Rig, m.GroupID) - first; got != writers*each {
		t.Errorf("%d Events for %d Commands", got, writers*each)
	}
	h.check(t, groupLog)
	verified(t, p.Rig)
}

// patiently repeats what a full queue pushed back: nothing happened then.
func patiently(fn func() (*authority.Result, *protocol.Error)) (*authority.Result, *protocol.Error) {
	for {
		res, err := fn()
		if err == nil || err.Code != protocol.CodeBackpressure {
			return res, err
		}
	}
}

// One WorkItem: offers replace each other by compare-and-set on its revision,
// and whoever accepts a standing offer first owns it.
type itemOp struct {
	item     string
	accept   bool
	agent    string
	offer    string
	expected int64
}

type itemState struct {
	revision int64
	owner    string
	offers   string // "agent=offer …" of the standing ones
}

var workItem = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byItem := map[string][]porcupine.Operation{}
		for _, op := range history {
			id := op.Input.(itemOp).item
			byItem[id] = append(byItem[id], op)
		}
		return slices.Collect(maps.Values(byItem))
	},
	Init: func() any { return itemState{revision: 1} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(itemState), input.(itemOp), output.(answer)
		standing := in.accept && bytes.Contains([]byte(s.offers), []byte(" "+in.agent+"="+in.offer+" "))
		switch out.code {
		case "":
			if in.accept {
				return s.owner == "" && standing, itemState{s.revision + 1, in.agent, ""}
			}
			return s.owner == "" && in.expected == s.revision, itemState{s.revision + 1, "", out.what}
		case protocol.CodeRevisionConflict:
			return in.expected != s.revision, s
		case protocol.CodeWorkAlreadyOwned:
			return in.accept && s.owner != "" && s.owner != in.agent, s
		case protocol.CodeWorkOfferExpired:
			return in.accept && s.owner == "" && !standing, s
		case protocol.CodeInvalidStateTransition:
			return !in.accept && s.owner != "" && in.expected == s.revision, s
		}
		return false, s
	},
}

// Two Coordinator clients replace offers while four candidates, two at each
// process, accept whatever they were offered.
func TestOffersAndAcceptancesAreLinearizable(t *testing.T) {
	p := twice(t, unlimited())
	m := p.NewMission(registrytest.Human("mission-owner"), p.AddAgent("coordinator"))
	var workers []trust.Signer
	for i := range 4 {
		workers = append(workers, p.AddAgent(fmt.Sprintf("worker-%d", i)))
		m.Join(workers[i], "worker")
	}
	const items = 6
	ids := make([]string, items)
	for i := range ids {
		ids[i] = m.Authorize()
	}
	h := newHistory()
	var mu sync.Mutex
	known := map[string][][2]string{} // item to (agent, offer) ever made
	p.race()
	var wg sync.WaitGroup
	for n, replica := range p.both {
		wg.Go(func() {
			for round := range 3 {
				for _, id := range ids {
					expected := int64(1 + round)
					c := m.By(m.Coordinator, m.Offer(id, workers...))
					c.ExpectedRevision = &expected
					body := p.Sign(m.Coordinator, c)
					h.do(n, itemOp{item: id, expected: expected}, func() any {
						res, err := patiently(func() (*authority.Result, *protocol.Error) { return submitTo(replica, body) })
						if err != nil {
							return answer{code: err.Code}
						}
						made := offered(t, res.Events)
						mu.Lock()
						defer mu.Unlock()
						standing := " "
						for _, o := range made {
							known[id] = append(known[id], o)
							standing += o[0] + "=" + o[1] + " "
						}
						return answer{what: standing}
					})
				}
			}
		})
	}
	var owners atomic.Int64
	for i, s := range workers {
		wg.Go(func() {
			tried := map[string]bool{}
			for quiet := time.Now(); time.Since(quiet) < 3*time.Second && owners.Load() < items; {
				var id, offer string
				mu.Lock()
				for item, made := range known {
					for _, o := range made {
						if o[0] == s.Principal.ID && !tried[o[1]] {
							id, offer = item, o[1]
						}
					}
				}
				mu.Unlock()
				if offer == "" {
					<-time.After(time.Millisecond)
					continue
				}
				tried[offer] = true
				body := p.Sign(s, m.By(s, m.Accept(id, offer)))
				h.do(2+i, itemOp{item: id, accept: true, agent: s.Principal.ID, offer: offer}, func() any {
					_, err := patiently(func() (*authority.Result, *protocol.Error) { return submitTo(p.both[i%2], body) })
					if err != nil {
						return answer{code: err.Code}
					}
					owners.Add(1)
					return answer{}
				})
			}
		})
	}
	wg.Wait()
	p.peace()
	h.check(t, workItem)
	owned := 0
	for _, id := range ids {
		if m.State().WorkItems[id].Owner != nil {
			owned++
		}
	}
	if int64(owned) != owners.Load() || owned == 0 {
		t.Errorf("%d WorkItems are owned, %d acceptances were answered", owned, owners.Load())
	}
	codes := map[protocol.Code]int{}
	for _, op := range h.ops {
		codes[op.Output.(answer).code]++
	}
	t.Logf("%d operations, answers %v", len(h.ops), codes)
	verified(t, p.Rig)
}

// offered reads (agent, offer) of the pending offers in a work.offer.created.
func offered(t *testing.T, all [][]byte) [][2]string {
	t.Helper()
	var out [][2]string
	for _, b := range all {
		doc, err := strictjson.Parse(b)
		if err != nil {
			t.Error(err)
			return nil
		}
		payload, _ := doc.Root().Get("payload")
		offers, _ := payload.Get("offers")
		for _, o := range offers.Items() {
			status, _ := o.Get("status")
			agent, _ := o.Get("agentId")
			id, _ := o.Get("offerId")
			if status.Str() == "pending" {
				out = append(out, [2]string{agent.Str(), id.Str()})
			}
		}
	}
	return out
}

// A submitted Mission: approvals and requests for changes race, and the first
// takes the submission.
type verdictOp struct{ kind string }

var submission = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(string), input.(verdictOp), output.(answer)
		switch out.code {
		case "":
			return s == "", in.kind
		case protocol.CodeInvalidStateTransition:
			return s != "", s
		}
		return false, s
	},
	Equal: func(a, b any) bool { return a == b },
}

func TestApprovalsAreLinearizable(t *testing.T) {
	p := twice(t, unlimited())
	worker := p.AddAgent("worker")
	for range 3 {
		m := p.NewMission(registrytest.Human("mission-owner"), p.AddAgent("coordinator-"+registrytest.Mint()[30:]))
		m.Join(worker, "worker")
		hash := m.Finish(worker, m.Work(worker))
		m.SubmitForApproval(hash)
		h := newHistory()
		type racer struct {
			kind string
			body []byte
		}
		var racers []racer
		for i := range 8 {
			kind, decision := "mission.approve", "approved"
			if i%2 == 1 {
				kind, decision = "mission.request_changes", "changes_requested"
			}
			racers = append(racers, racer{kind, p.Sign(m.Owner, m.By(m.Owner, m.Decide(kind, decision, hash)))})
		}
		p.race()
		var won atomic.Int64
		var wg sync.WaitGroup
		for i, one := range racers {
			wg.Go(func() {
				h.do(i, verdictOp{one.kind}, func() any {
					_, err := patiently(func() (*authority.Result, *protocol.Error) { return submitTo(p.both[i/2%2], one.body) })
					if err != nil {
						return answer{code: err.Code}
					}
					won.Add(1)
					return answer{}
				})
			})
		}
		wg.Wait()
		p.peace()
		h.check(t, submission)
		if won.Load() != 1 {
			t.Errorf("%d verdicts were accepted", won.Load())
		}
	}
	verified(t, p.Rig)
}

// An Agent's sessions: each opening gives the next epoch, and a Command counts
// only under the epoch that is current.
type sessionOp struct {
	open  bool
	epoch int64
}

var sessions = porcupine.Model{
	Init: func() any { return int64(1) },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(int64), input.(sessionOp), output.(answer)
		switch {
		case in.open:
			return out.code == "" && out.at == s+1, s + 1
		case out.code == "":
			return in.epoch == s, s
		case out.code == protocol.CodeAuthStaleSession:
			return in.epoch != s, s
		}
		return false, s
	},
	Equal: func(a, b any) bool { return a == b },
}

func TestSessionOpeningsAreLinearizable(t *testing.T) {
	p := twice(t, unlimited())
	m := p.NewMission(registrytest.Human("mission-owner"), p.AddAgent("coordinator"))
	identity := registrytest.Service(registry.RoleIdentity)
	h := newHistory()
	p.race()
	var latest atomic.Int64
	latest.Store(1)
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for range 4 {
				command := p.Sign(identity, protocol.Command{Kind: protocol.CommandSessionOpen, Payload: authoritytest.Payload(t, map[string]any{
					"agentId": m.Coordinator.Principal.ID, "keyId": m.Coordinator.KeyID, "sessionExpiresAt": registrytest.At(time.Hour),
				})})
				h.do(i, sessionOp{open: true}, func() any {
					all, err := p.both[i%2].Service.OpenSession(t.Context(), command)
					if err != nil {
						t.Errorf("open: %v", err)
						return answer{code: err.Code}
					}
					epoch := opened(t, all)
					for old := latest.Load(); old < epoch && !latest.CompareAndSwap(old, epoch); old = latest.Load() {
					}
					return answer{at: epoch}
				})
			}
		})
	}
	for i := range 8 {
		wg.Go(func() {
			for n := range 12 {
				c := m.By(m.Coordinator, m.Post(fmt.Sprintf("%d/%d", i, n)))
				c.SessionEpoch = latest.Load() + int64(n%3/2)
				body := p.Sign(m.Coordinator, c)
				h.do(6+i, sessionOp{epoch: c.SessionEpoch}, func() any {
					_, err := patiently(func() (*authority.Result, *protocol.Error) { return submitTo(p.both[i%2], body) })
					if err != nil {
						return answer{code: err.Code}
					}
					return answer{}
				})
			}
		})
	}
	wg.Wait()
	p.peace()
	h.check(t, sessions)
	if latest.Load() != 25 {
		t.Errorf("24 openings ended at epoch %d", latest.Load())
	}
	verified(t, p.Rig)
}

// opened reads the epoch of a session_opened.
func opened(t *testing.T, all [][]byte) int64 {
	t.Helper()
	for _, b := range all {
		doc, err := strictjson.Parse(b)
		if err != nil {
			t.Error(err)
			return 0
		}
		payload, _ := doc.Root().Get("payload")
		if epoch, ok := payload.Get("sessionEpoch"); ok {
			n, _ := epoch.Int()
			return n
		}
	}
	t.Error("no session_opened")
	return 0
}

// A checker that accepts everything proves nothing: these histories must fail.
func TestHistoriesWithALostOrDoubledEffectAreRefused(t *testing.T) {
	op := func(in any, out answer, call, back int64) porcupine.Operation {
		return porcupine.Operation{Input: in, Output: out, Call: call, Return: back}
	}
	for _, tc := range []struct {
		name  string
		model porcupine.Model
		ops   []porcupine.Operation
	}{
		{"an effect is lost", groupLog, []porcupine.Operation{
			op(logOp{action: "a"}, answer{at: 1}, 0, 1), op(logOp{read: true}, answer{at: 0}, 2, 3),
		}},
		{"a number is given twice", groupLog, []porcupine.Operation{
			op(logOp{action: "a"}, answer{at: 1}, 0, 2), op(logOp{action: "b"}, answer{at: 1}, 1, 3),
		}},
		{"two candidates own", workItem, []porcupine.Operation{
			op(itemOp{expected: 1}, answer{what: " a=1 b=2 "}, 0, 1),
			op(itemOp{accept: true, agent: "a", offer: "1"}, answer{}, 2, 4), op(itemOp{accept: true, agent: "b", offer: "2"}, answer{}, 3, 5),
		}},
		{"two verdicts on one submission", submission, []porcupine.Operation{
			op(verdictOp{"mission.approve"}, answer{}, 0, 2), op(verdictOp{"mission.request_changes"}, answer{}, 1, 3),
		}},
		{"a fenced session acts", sessions, []porcupine.Operation{
			op(sessionOp{open: true}, answer{at: 2}, 0, 1), op(sessionOp{epoch: 1}, answer{}, 2, 3),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if porcupine.CheckOperations(tc.model, tc.ops) {
				t.Error("the history was taken for linear")
			}
		})
	}
}
