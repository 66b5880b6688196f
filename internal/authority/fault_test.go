package authority_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/authority/authoritytest"
	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/migrate"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/testwait"
)

// faults is a switchboard of injected failures.
type faults struct {
	before, after atomic.Pointer[func(*events.Batch) error]
}

func (f *faults) hooks() events.Hooks {
	call := func(p *atomic.Pointer[func(*events.Batch) error]) func(*events.Batch) error {
		return func(b *events.Batch) error {
			if fn := p.Load(); fn != nil && len(b.Receipts) > 0 {
				return (*fn)(b)
			}
			return nil
		}
	}
	return events.Hooks{BeforeCommit: call(&f.before), AfterCommit: call(&f.after)}
}

func once(err error) *func(*events.Batch) error {
	var done atomic.Bool
	fn := func(*events.Batch) error {
		if done.CompareAndSwap(false, true) {
			return err
		}
		return nil
	}
	return &fn
}

// A failure at any point of a commit leaves exactly one acceptance of a Command
// that was answered with a receipt, and none of one that was refused.
func TestCrashPointsAroundTheCommit(t *testing.T) {
	lost := fmt.Errorf("%w: injected", events.ErrIndeterminate)
	away := fmt.Errorf("%w: injected", events.ErrUnavailable)
	for _, tc := range []struct {
		name          string
		before, after error
	}{
		{"the answer is lost after the commit", nil, lost},
		{"the connection breaks before the commit", lost, nil},
		{"the database is away for a moment", away, nil},
		{"the head moved", &events.HeadMoved{}, nil},
		{"the session moved", events.ErrSessionMoved, nil},
		{"the Registry moved", events.ErrRegistryMoved, nil},
		{"a record exists", events.ErrAdmissionExists, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &faults{}
			r, m := mission(t, authoritytest.Options{Events: events.Options{Hooks: f.hooks()}})
			if tc.before != nil {
				f.before.Store(once(tc.before))
			}
			if tc.after != nil {
				f.after.Store(once(tc.after))
			}
			body := r.Sign(m.Coordinator, m.By(m.Coordinator, m.Post("crash")))
			first, err := r.Submit(body)
			if err != nil {
				t.Fatal(err)
			}
			again, err := r.Submit(body)
			if err != nil || string(again.Receipt) != string(first.Receipt) || !again.Replayed {
				t.Errorf("asked again: %v", err)
			}
			m.Must(m.Coordinator, m.Post("next"))
			if head(t, r, m.GroupID) != 3 {
				t.Errorf("head %d", head(t, r, m.GroupID))
			}
			verified(t, r)
		})
	}
}

func TestDatabaseAwayAnswersInternalErrorAndNothingIsLost(t *testing.T) {
	f := &faults{}
	r, m := mission(t, authoritytest.Options{Events: events.Options{Hooks: f.hooks()}})
	away := func(*events.Batch) error { return fmt.Errorf("%w: injected", events.ErrUnavailable) }
	f.before.Store(&away)
	body := r.Sign(m.Coordinator, m.By(m.Coordinator, m.Post("away")))
	_, err := r.Submit(body)
	wantCode(t, "database away", err, protocol.CodeInternalError)
	if err != nil && !err.Retryable {
		t.Error("not retryable")
	}
	f.before.Store(nil)
	if res, err := r.Submit(body); err != nil || res.Replayed {
		t.Errorf("afterwards: %v", err)
	}
	verified(t, r)
}

// A Command that no database takes fails alone; its neighbours in the round pass.
func TestPoisonedCommandFailsAlone(t *testing.T) {
	f := &faults{}
	r, m := mission(t, authoritytest.Options{Policy: unlimited(), Events: events.Options{Hooks: f.hooks()}})
	poison := r.Sign(m.Coordinator, m.By(m.Coordinator, m.Post("poison")))
	refuse := func(b *events.Batch) error {
		for i := range b.Receipts {
			if string(b.Receipts[i].Command) == string(poison) {
				return errors.New("injected: no such row can be written")
			}
		}
		return nil
	}
	f.before.Store(&refuse)
	var wg sync.WaitGroup
	for i := range 12 {
		body := poison
		if i != 5 {
			body = r.Sign(m.Coordinator, m.By(m.Coordinator, m.Post(fmt.Sprint(i))))
		}
		wg.Go(func() {
			_, err := r.Submit(body)
			if i == 5 {
				wantCode(t, "poison", err, protocol.CodeInternalError)
			} else if err != nil {
				t.Errorf("neighbour %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if head(t, r, m.GroupID) != 12 {
		t.Errorf("head %d", head(t, r, m.GroupID))
	}
	verified(t, r)
}

func TestFullQueueAnswersBackpressure(t *testing.T) {
	f := &faults{}
	r, m := mission(t, authoritytest.Options{
		Policy: unlimited(), Events: events.Options{Hooks: f.hooks()},
		Change: func(o *authority.Options) { o.Queue, o.Round = 2, 1 },
	})
	blocked, release := make(chan struct{}), make(chan struct{})
	var entered sync.Once
	hold := func(*events.Batch) error {
		entered.Do(func() { close(blocked) })
		<-release
		return nil
	}
	f.before.Store(&hold)
	post := func() []byte { return r.Sign(m.Coordinator, m.By(m.Coordinator, m.Post("x"))) }
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := r.Submit(post()); err != nil {
			t.Error(err)
		}
	})
	<-blocked
	var full, done atomic.Int64
	for range 7 { // one round waits in the lane, two Commands in its queue
		body := post()
		wg.Go(func() {
			_, err := r.Submit(body)
			switch {
			case err == nil:
				done.Add(1)
			case err.Code == protocol.CodeBackpressure && err.Retryable && err.RetryAfterMs != nil:
				full.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	testwait.Until(t, "four are pushed back", func() bool { return full.Load() >= 4 || t.Failed() })
	close(release)
	wg.Wait()
	if full.Load() != 4 || done.Load() != 3 {
		t.Errorf("%d pushed back, %d accepted", full.Load(), done.Load())
	}
}

// PostgreSQL is shut down and killed under load. Whatever was answered with a
// receipt is there afterwards, and the server goes on by itself.
func TestPostgresRestartsUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a database of its own")
	}
	stack, err := devstack.Start(t.Context(), devstack.Options{DataDir: t.TempDir(), NATSURL: devstack.ForTest(t).NATSURL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stack.Stop(context.Background()) })
	if _, err := migrate.Up(t.Context(), stack.DatabaseURL); err != nil {
		t.Fatal(err)
	}
	r := authoritytest.Start(t, authoritytest.Options{DatabaseURL: stack.DatabaseURL, Policy: unlimited()})
	m := r.NewMission(registrytest.Human("mission-owner"), r.AddAgent("coordinator"))
	stop := make(chan struct{})
	var accepted, failed atomic.Int64
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				body := r.Sign(m.Coordinator, m.By(m.Coordinator, m.Post(fmt.Sprintf("%d/%d", w, i))))
				for {
					_, err := r.Submit(body)
					if err == nil {
						accepted.Add(1)
						break
					}
					if err.Code != protocol.CodeInternalError && err.Code != protocol.CodeBackpressure {
						t.Errorf("writer %d: %v", w, err)
						return
					}
					failed.Add(1)
					select {
					case <-stop:
						return
					case <-time.After(20 * time.Millisecond):
					}
				}
			}
		})
	}
	more := func(n int64) {
		t.Helper()
		goal := accepted.Load() + n
		deadline := time.After(60 * time.Second)
		for accepted.Load() < goal && !t.Failed() {
			select {
			case <-deadline:
				t.Fatalf("no progress: %d accepted, %d failed, %+v", accepted.Load(), failed.Load(), r.Service.Stats())
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	more(50)
	if err := stack.StopPostgres(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := stack.StartPostgres(t.Context()); err != nil {
		t.Fatal(err)
	}
	more(50)
	if err := stack.KillPostgres(); err != nil {
		t.Fatal(err)
	}
	more(50)
	close(stop)
	wg.Wait()
	receipts := int64(count(t, r, "SELECT count(*) FROM receipts WHERE kind = 'message.post'"))
	if receipts < accepted.Load() {
		t.Errorf("%d receipts for %d answered Commands", receipts, accepted.Load())
	}
	if events := head(t, r, m.GroupID) - 1; events != receipts {
		t.Errorf("%d Events for %d receipts", events, receipts)
	}
	t.Logf("%d accepted, %d answers INTERNAL_ERROR, %+v", accepted.Load(), failed.Load(), r.Service.Stats())
	verified(t, r)
}

// Rounds that overlap fail and succeed in any order: what was answered is in the
// log, and the states in memory stay equal to it.
func TestOverlappingRoundsThroughFailures(t *testing.T) {
	f := &faults{}
	r, m := mission(t, authoritytest.Options{
		Policy: unlimited(), Events: events.Options{Hooks: f.hooks()},
		Change: func(o *authority.Options) { o.Round = 8 },
	})
	item := m.Authorize()
	var commits atomic.Int64
	before := func(*events.Batch) error {
		switch commits.Add(1) % 7 {
		case 2:
			return &events.HeadMoved{}
		case 4:
			return fmt.Errorf("%w: injected", events.ErrIndeterminate)
		case 5:
			return events.ErrRegistryMoved
		}
		return nil
	}
	after := func(*events.Batch) error {
		if commits.Load()%6 == 1 {
			return fmt.Errorf("%w: injected", events.ErrIndeterminate)
		}
		return nil
	}
	f.before.Store(&before)
	f.after.Store(&after)
	var accepted, revised atomic.Int64
	var wg sync.WaitGroup
	for w := range 24 {
		wg.Go(func() {
			for i := range 8 {
				body := r.Sign(m.Coordinator, m.By(m.Coordinator, m.Post(fmt.Sprintf("%d/%d", w, i))))
				first, err := r.Submit(body)
				if err != nil {
					t.Error(err)
					return
				}
				accepted.Add(1)
				if again, err := r.Submit(body); err != nil || string(again.Receipt) != string(first.Receipt) {
					t.Errorf("asked again: %v", err)
				}
				if w == 0 { // refused, with and without effect on the round
					_, err := m.Send(m.Coordinator, m.Start(item, 1, 10))
					if err == nil {
						t.Error("the Coordinator started an offered WorkItem")
					}
					revised.Add(1)
				}
			}
		})
	}
	wg.Wait()
	f.before.Store(nil)
	f.after.Store(nil)
	posts := int64(count(t, r, "SELECT count(*) FROM events WHERE kind = 'message.posted'"))
	if posts != accepted.Load() {
		t.Errorf("%d Messages for %d answers", posts, accepted.Load())
	}
	m.Must(m.Coordinator, m.Post("and on"))
	t.Logf("%+v", r.Service.Stats())
	verified(t, r)
}
