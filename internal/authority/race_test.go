package authority_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/authority/authoritytest"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

func unlimited() *authority.Policy {
	p := authority.DefaultPolicy()
	p.Limits.MessagesPerMinute, p.Limits.ProposalsPerMinute = 0, 0
	return &p
}

// submitTo sends exact bytes to one process.
func submitTo(n *authoritytest.Replica, body []byte) (*authority.Result, *protocol.Error) {
	return n.Service.Submit(context.Background(), authority.Submission{Body: body, Peer: "race"})
}

// rendezvous lets two processes come to their commits together, so that they
// really race, for the first few times.
type rendezvous struct {
	on      atomic.Bool
	mu      sync.Mutex
	waiting chan struct{}
	met     int
}

const meetings = 4

func (r *rendezvous) wait(b *events.Batch) error {
	if !r.on.Load() || len(b.Events) == 0 {
		return nil
	}
	r.mu.Lock()
	if other := r.waiting; other != nil {
		r.waiting = nil
		if r.met++; r.met == meetings {
			r.on.Store(false)
		}
		r.mu.Unlock()
		close(other)
		return nil
	}
	own := make(chan struct{})
	r.waiting = own
	r.mu.Unlock()
	select {
	case <-own:
	case <-time.After(30 * time.Second): // only where there is no other
		r.mu.Lock()
		if r.waiting == own {
			r.waiting = nil
		}
		r.mu.Unlock()
	}
	return nil
}

// 32 writers on two processes append to one Group: every Command is accepted
// once, and the history is one line.
func TestTwoProcessesKeepOneLinearHistory(t *testing.T) {
	meet := &rendezvous{}
	options := authoritytest.Options{Policy: unlimited(), Events: events.Options{Hooks: events.Hooks{BeforeCommit: meet.wait}}}
	r, m := mission(t, options)
	other := r.AddReplica(options)
	meet.on.Store(true)
	const writers, each = 32, 6
	start := head(t, r, m.GroupID)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			n := []*authoritytest.Replica{r.Replica, other}[w%2]
			for i := range each {
				body := r.Sign(m.Coordinator, m.By(m.Coordinator, m.Post(fmt.Sprintf("%d/%d", w, i))))
				for {
					_, err := submitTo(n, body)
					if err == nil {
						break
					}
					if err.Code != protocol.CodeBackpressure {
						t.Errorf("writer %d: %v", w, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if got := head(t, r, m.GroupID) - start; got != writers*each {
		t.Errorf("%d Events for %d Commands", got, writers*each)
	}
	meet.on.Store(false)
	if r.Service.Stats().Redecided+other.Service.Stats().Redecided == 0 {
		t.Error("the processes never raced")
	}
	t.Logf("rounds %d + %d, decided again %d + %d", r.Service.Stats().Rounds, other.Service.Stats().Rounds,
		r.Service.Stats().Redecided, other.Service.Stats().Redecided)
	verified(t, r)
}

// The same bytes arrive many times at once at two processes: one acceptance, and
// everybody gets its receipt.
func TestRacingIdenticalCommandsGetOneReceipt(t *testing.T) {
	r, m := mission(t, authoritytest.Options{})
	other := r.AddReplica(authoritytest.Options{})
	body := r.Sign(m.Coordinator, m.By(m.Coordinator, m.Post("once")))
	const racers = 40
	receipts := make([][]byte, racers)
	var accepted atomic.Int64
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			res, err := submitTo([]*authoritytest.Replica{r.Replica, other}[i%2], body)
			if err != nil {
				t.Errorf("racer %d: %v", i, err)
				return
			}
			receipts[i] = res.Receipt
			if !res.Replayed {
				accepted.Add(1)
			}
		})
	}
	wg.Wait()
	for i := range receipts {
		if !bytes.Equal(receipts[i], receipts[0]) {
			t.Errorf("racer %d got another receipt", i)
		}
	}
	if accepted.Load() != 1 || head(t, r, m.GroupID) != 2 {
		t.Errorf("%d acceptances, head %d", accepted.Load(), head(t, r, m.GroupID))
	}
	verified(t, r)
}

// One actionId with two contents: one wins, the other collides.
func TestRacingContentsUnderOneActionID(t *testing.T) {
	r, m := mission(t, authoritytest.Options{})
	other := r.AddReplica(authoritytest.Options{})
	for range 5 {
		action := registrytest.Mint()
		var won, collided atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 {
			c := m.By(m.Coordinator, m.Post(fmt.Sprintf("content %d", i)))
			c.ActionID = action
			body := r.Sign(m.Coordinator, c)
			wg.Go(func() {
				_, err := submitTo([]*authoritytest.Replica{r.Replica, other}[i%2], body)
				switch {
				case err == nil:
					won.Add(1)
				case err.Code == protocol.CodeActionIDCollision:
					collided.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 || collided.Load() != 7 {
			t.Errorf("%d won, %d collided", won.Load(), collided.Load())
		}
	}
	verified(t, r)
}

// Two candidates accept one offer at once: exactly one owner, the other learns
// that the WorkItem is owned.
func TestOneOfTwoRacingCandidatesOwns(t *testing.T) {
	r, m := mission(t, authoritytest.Options{})
	other := r.AddReplica(authoritytest.Options{})
	a, b := r.AddAgent("a"), r.AddAgent("b")
	m.Join(a, "worker")
	m.Join(b, "worker")
	for range 5 {
		item := m.Authorize()
		offers := m.OfferTo(item, a, b)
		var won, lost atomic.Int64
		var wg sync.WaitGroup
		for i, s := range []trust.Signer{a, b} {
			body := r.Sign(s, m.By(s, m.Accept(item, offers[s.Principal.ID])))
			wg.Go(func() {
				_, err := submitTo([]*authoritytest.Replica{r.Replica, other}[i], body)
				switch {
				case err == nil:
					won.Add(1)
				case err.Code == protocol.CodeWorkAlreadyOwned:
					lost.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 || lost.Load() != 1 {
			t.Errorf("%d won, %d lost", won.Load(), lost.Load())
		}
	}
	verified(t, r)
}

// An Agent's limit counts over all Groups, also when it accepts in several of
// them, on two processes, at once.
func TestAgentLimitHoldsOverGroupsUnderRaces(t *testing.T) {
	policy := authority.DefaultPolicy()
	policy.Limits.QueuedWorkItems = 2
	r := authoritytest.Start(t, authoritytest.Options{Policy: &policy})
	other := r.AddReplica(authoritytest.Options{Policy: &policy})
	owner, coordinator, worker := registrytest.Human("mission-owner"), r.AddAgent("coordinator"), r.AddAgent("worker")
	const missions = 6
	bodies := make([][]byte, missions)
	for i := range missions {
		m := r.NewMission(owner, coordinator)
		m.Join(worker, "worker")
		item := m.Authorize()
		bodies[i] = r.Sign(worker, m.By(worker, m.Accept(item, m.OfferTo(item, worker)[worker.Principal.ID])))
	}
	var won, limited atomic.Int64
	var wg sync.WaitGroup
	for i, body := range bodies {
		wg.Go(func() {
			_, err := submitTo([]*authoritytest.Replica{r.Replica, other}[i%2], body)
			switch {
			case err == nil:
				won.Add(1)
			case err.Code == protocol.CodeRateLimited:
				limited.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 2 || limited.Load() != missions-2 {
		t.Errorf("%d accepted, %d limited; the limit is 2", won.Load(), limited.Load())
	}
	verified(t, r)
}

// Once a session opening was answered, nothing of the epoch before commits.
func TestNothingOfAnOldSessionCommitsAfterTheOpening(t *testing.T) {
	r, m := mission(t, authoritytest.Options{Policy: unlimited()})
	other := r.AddReplica(authoritytest.Options{Policy: unlimited()})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				c := m.By(m.Coordinator, m.Post(fmt.Sprintf("%d/%d", w, i)))
				c.SessionEpoch = 1
				_, err := submitTo([]*authoritytest.Replica{r.Replica, other}[w%2], r.Sign(m.Coordinator, c))
				if err != nil && err.Code != protocol.CodeAuthStaleSession {
					t.Error(err)
					return
				}
			}
		})
	}
	for head(t, r, m.GroupID) < 40 {
		if t.Failed() {
			break
		}
	}
	r.OpenSession(m.Coordinator)
	at := head(t, r, m.GroupID)
	for range 20 {
		_, err := submitTo(other, r.Sign(m.Coordinator, m.By(m.Coordinator, func() protocol.Command {
			c := m.Post("late")
			c.SessionEpoch = 1
			return c
		}())))
		wantCode(t, "old session", err, protocol.CodeAuthStaleSession)
	}
	close(stop)
	wg.Wait()
	if now := head(t, r, m.GroupID); now != at {
		t.Errorf("%d Events of the old session committed after the opening", now-at)
	}
	verified(t, r)
}

// A Command whose client has gone still gets its fate.
func TestCommandOfAGoneClientIsDecided(t *testing.T) {
	r, m := mission(t, authoritytest.Options{})
	body := r.Sign(m.Coordinator, m.By(m.Coordinator, m.Post("gone")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		if _, err := r.Service.Submit(ctx, authority.Submission{Body: body}); err != nil && err.Code != protocol.CodeInternalError {
			t.Fatal(err)
		}
	}
	res, err := r.Submit(body)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Receipt) == 0 || head(t, r, m.GroupID) != 2 {
		t.Errorf("receipt %s, head %d", res.Receipt, head(t, r, m.GroupID))
	}
	verified(t, r)
}

// A creation is guarded like an append: one Group of an id, one Mission of an id.
func TestRacingCreationsOfOneMission(t *testing.T) {
	r := authoritytest.Start(t, authoritytest.Options{})
	other := r.AddReplica(authoritytest.Options{})
	owner, coordinator := registrytest.Human("mission-owner"), r.AddAgent("coordinator")
	first := r.NewMission(owner, coordinator)
	m := *first
	m.ID, m.GroupID = registrytest.Mint(), registrytest.Mint()
	var won, used atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		body := r.Sign(owner, m.Creation(r))
		wg.Go(func() {
			_, err := submitTo([]*authoritytest.Replica{r.Replica, other}[i%2], body)
			switch {
			case err == nil:
				won.Add(1)
			case err.Code == protocol.CodeInvalidCommand && err.Reason == "identifier_in_use":
				used.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || used.Load() != 7 {
		t.Errorf("%d created, %d refused", won.Load(), used.Load())
	}
	verified(t, r)
}

// Agents are registered while others work: that moves the Registry's revision
// under many a round, and none of them has to be decided again for it.
func TestRegistrationsDoNotMakeLanesDecideAgain(t *testing.T) {
	r, m := mission(t, authoritytest.Options{Policy: unlimited()})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(stop)
		for i := range 25 {
			r.Org.AddAgent(t, registrytest.Agent(fmt.Sprintf("new-%d", i)))
		}
	})
	var posted atomic.Int64
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := m.Send(m.Coordinator, m.Post("x")); err != nil {
					t.Error(err)
					return
				}
				posted.Add(1)
			}
		})
	}
	wg.Wait()
	stats := r.Service.Stats()
	t.Logf("%d posted, committed again %d, decided again %d", posted.Load(), stats.Recommitted, stats.Redecided)
	if stats.Redecided > stats.Recommitted {
		t.Errorf("decided again %d times, committed again %d times", stats.Redecided, stats.Recommitted)
	}
	verified(t, r)
}

// A late override of a Command that went through is refused, also in the round
// in which it went through.
func TestOverrideOfAnAcceptedActionIsRefused(t *testing.T) {
	r, m := mission(t, authoritytest.Options{})
	post := m.By(m.Coordinator, m.Post("accepted"))
	post.ActionID = registrytest.Mint()
	r.Must(m.Coordinator, post)
	_, err := m.Send(m.Owner, protocol.Command{Kind: "policy.grant_cooperation_override", Payload: authoritytest.Payload(t, map[string]any{
		"grantId": registrytest.Mint(), "policyName": "message_rate", "beneficiary": m.Coordinator.Principal,
		"targetCommandKind": "message.post", "targetActionId": post.ActionID, "reason": "late", "expiresAt": registrytest.At(time.Hour),
	})})
	wantCode(t, "override of an accepted Action", err, protocol.CodeInvalidCommand)
	if err != nil && err.Reason != "target_accepted" {
		t.Errorf("reason %s", err.Reason)
	}
}
