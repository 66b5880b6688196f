package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/client/schedule"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/testwait"
)

func TestMain(m *testing.M) {
	testkit.Main(m, func() error {
		return goleak.Find(
			goleak.IgnoreAnyFunction("github.com/missionweave/server/internal/devstack.startWatchdog"),
		)
	})
}

// employ runs a Worker until the test or stop ends it.
func employ(t *testing.T, opt client.WorkerOptions) (w *client.Worker, stop func()) {
	t.Helper()
	opt.Discover = 50 * time.Millisecond
	w, err := client.NewWorker(opt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the Worker ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return w, stop
}

func state(t *testing.T, m *testkit.Mission, id string) func(want string) func() bool {
	return func(want string) func() bool {
		return func() bool {
			item, err := m.Owner.WorkItem(t.Context(), m.GroupID, id)
			if err != nil {
				t.Fatal(err)
			}
			return item.State == want
		}
	}
}

func write(ctx context.Context, job *client.Job) error {
	hash, err := job.Publish(ctx, "text/plain", []byte("about: "+job.Contract.Goal))
	if err != nil {
		return err
	}
	return job.Submit(ctx, "Wrote it.", []string{hash})
}

func TestAWorkerCarriesWorkItemsOfSeveralMissionsOut(t *testing.T) {
	s := testkit.Start(t)
	agent := s.Agent("worker")
	var missions []*testkit.Mission
	var items []string
	for range 2 {
		m := s.NewMission()
		m.Admit(agent, "worker", 0)
		for range 2 {
			id := m.Authorize()
			m.Offer(id, agent)
			missions, items = append(missions, m), append(items, id)
		}
	}
	employ(t, client.WorkerOptions{Client: agent, Do: write, Slots: 2})
	for i, id := range items {
		testwait.Until(t, "WorkItem is submitted", state(t, missions[i], id)("submitted"))
	}
}

func TestAWorkerThatIsRestartedRebuildsItsQueueAndGoesOnFromTheCheckpoint(t *testing.T) {
	s := testkit.Start(t)
	agent := s.Agent("worker")
	m := s.NewMission()
	m.Admit(agent, "worker", 0)
	var ids []string
	for range 2 {
		id := m.Authorize()
		m.Offer(id, agent)
		ids = append(ids, id)
	}
	begun := make(chan struct{}, 4)
	_, stop := employ(t, client.WorkerOptions{Client: agent, Do: func(ctx context.Context, job *client.Job) error {
		begun <- struct{}{}
		<-job.Yield
		return job.Reached(ctx, "first half", []byte("half of "+job.WorkItemID))
	}})
	<-begun
	testwait.Until(t, "both are owned", func() bool { return state(t, m, ids[1])("queued")() || state(t, m, ids[1])("active")() })
	testwait.Until(t, "both are owned", func() bool { return state(t, m, ids[0])("queued")() || state(t, m, ids[0])("active")() })
	stop()
	for _, id := range ids {
		if !state(t, m, id)("queued")() {
			t.Errorf("WorkItem %s is not queued after the stop", id)
		}
	}
	var mu sync.Mutex
	saved := map[string]string{}
	employ(t, client.WorkerOptions{Client: agent, Do: func(ctx context.Context, job *client.Job) error {
		b, err := job.Saved(ctx)
		if err != nil {
			return err
		}
		mu.Lock()
		if job.Done("first half") {
			saved[job.WorkItemID] = string(b)
		}
		mu.Unlock()
		return write(ctx, job)
	}})
	for _, id := range ids {
		testwait.Until(t, "WorkItem is submitted", state(t, m, id)("submitted"))
	}
	mu.Lock()
	defer mu.Unlock()
	if len(saved) != 1 {
		t.Errorf("saved states: %v, want that of the one that had begun", saved)
	}
	for id, text := range saved {
		if text != "half of "+id {
			t.Errorf("the state of %s is %q", id, text)
		}
	}
}

func TestTheMoreUrgentArrivalGetsTheSlotAtTheNextCheckpoint(t *testing.T) {
	s := testkit.Start(t)
	agent := s.Agent("worker")
	calm, hot := s.NewMission(), s.NewMission()
	calm.Admit(agent, "worker", 0)
	hot.Admit(agent, "worker", 0)
	first := calm.Authorize()
	calm.Offer(first, agent)
	var mu sync.Mutex
	var order []string
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, fmt.Sprintf(format, args...))
	}
	begun := make(chan struct{}, 4)
	employ(t, client.WorkerOptions{
		Client: agent,
		Share: func(groupID string) schedule.Share {
			if groupID == hot.GroupID {
				return schedule.Share{Class: 1}
			}
			return schedule.Share{}
		},
		Do: func(ctx context.Context, job *client.Job) error {
			if job.GroupID == hot.GroupID {
				note("hot")
				return write(ctx, job)
			}
			if job.Done("half") {
				note("resumed")
				return write(ctx, job)
			}
			begun <- struct{}{}
			<-job.Yield
			note("yielded")
			return job.Reached(ctx, "half", nil)
		},
	})
	<-begun
	second := hot.Authorize()
	hot.Offer(second, agent)
	testwait.Until(t, "the first is submitted", state(t, calm, first)("submitted"))
	testwait.Until(t, "the second is submitted", state(t, hot, second)("submitted"))
	mu.Lock()
	defer mu.Unlock()
	if got := fmt.Sprint(order); got != "[yielded hot resumed]" {
		t.Errorf("order %s", got)
	}
}

func TestAWorkerBlocksFailsDeclinesAndAsks(t *testing.T) {
	s := testkit.Start(t)
	agent := s.Agent("worker")
	m := s.NewMission()
	m.Admit(agent, "worker", 0)
	blocked, failed, declined, asked := m.Authorize(), m.Authorize(), m.Authorize(), m.Authorize()
	employ(t, client.WorkerOptions{
		Client: agent,
		Consider: func(_ context.Context, p client.Prospect) client.Answer {
			switch p.WorkItemID {
			case declined:
				return client.Answer{Decline: "dependency"}
			case asked:
				return client.Answer{Ask: "Which language?"}
			}
			return client.Answer{Accept: true}
		},
		Do: func(ctx context.Context, job *client.Job) error {
			switch {
			case job.WorkItemID == failed:
				return errors.New("no such thing")
			case job.Attempt == 1:
				return job.Block(ctx, "The key is missing.", "Send the key.")
			}
			return write(ctx, job)
		},
	})
	for _, id := range []string{blocked, failed, declined, asked} {
		m.Offer(id, agent)
	}
	testwait.Until(t, "blocked", state(t, m, blocked)("blocked"))
	testwait.Until(t, "failed", state(t, m, failed)("failed"))
	testwait.Until(t, "declined", func() bool {
		item, err := m.Owner.WorkItem(t.Context(), m.GroupID, declined)
		return err == nil && item.Offers[0].Status == "declined" && item.Offers[0].DeclineReason == "dependency"
	})
	item, err := m.Owner.WorkItem(t.Context(), m.GroupID, asked)
	if err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "asked", func() bool {
		var page struct {
			Items []client.Message `json:"items"`
		}
		path := client.Path("v1", "groups", m.GroupID, "conversations", item.ConversationID, "messages")
		return m.Owner.Get(t.Context(), path, nil, &page) == nil && len(page.Items) == 1 && page.Items[0].Content[0].Text == "Which language?"
	})
	m.Do(client.Command{Kind: "work.unblock", WorkItemID: blocked}, map[string]any{"resolution": "Here it is."})
	testwait.Until(t, "submitted", state(t, m, blocked)("submitted"))
}

func TestAJobEndsWithItsLease(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(func(p *config.Policy) { p.SweepIntervalMs = 50 }))
	agent := s.Agent("worker")
	m := s.NewMission()
	m.Admit(agent, "worker", 0)
	id := m.Authorize()
	m.Offer(id, agent)
	ended := make(chan error, 4)
	employ(t, client.WorkerOptions{Client: agent, Do: func(ctx context.Context, job *client.Job) error {
		m.Do(client.Command{Kind: "work.cancel", WorkItemID: id}, map[string]any{"reason": "not needed"})
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	}})
	select {
	case err := <-ended:
		if !errors.Is(err, client.ErrLeaseLost) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(testkit.Patience):
		t.Fatal("the Job went on")
	}
}
